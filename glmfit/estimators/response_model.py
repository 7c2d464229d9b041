"""Responses of all neurons to all stimuli, learnt from the pairs that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike

from ..data.entities import NEURONS, STIMULI, read_prior, read_side, warn_unseen
from ..data.features import read_factor
from ..data.responses import read_responses
from ..numerics import DataLike, Seed
from ..observations import Observation
from ..observations.poisson import Poisson
from .model import WholeFit
from .response_fit import ResponseFit, Settings, warn_rank
from .response_prediction import ResponsePrediction


class ResponseModel(ResponsePrediction):
    r"""Two-tower model of the responses of all neurons to all stimuli, learnt from the pairs that were recorded.

    A stimulus i and a neuron j get embeddings :math:`p_i, q_j` (affine maps ``U W + c`` or perceptrons of their
    features, or a vector of their own), and the response has the linear predictor
    :math:`z_{ij} = p_i^\top q_j + s_i + t_j + \delta_j`, with t the linear predictor of the neuron's mean response.
    The fit minimises

    .. math:: L = \sum_{(i,j) \in O}\sum_{\text{trials}} \ell(y, z_{ij})
              + \frac\omega2\sum_{(i,j) \notin O} a_i b_j (z_{ij} - \tilde y_{ij})^2
              + \frac\lambda2|\theta|^2 + \frac{\lambda_b}2(|s|^2 + |\delta|^2)

    over the parameters :math:`\theta` of both towers, their constants c included, and the biases; O are the pairs with
    a response. L is a sum over pairs, not a mean: strengths keep their meaning as pairs are added, and weigh less. With
    :math:`\omega = 0` a pair that was not recorded is simply missing; with :math:`\omega > 0` it is pulled towards the
    prior :math:`\tilde y_{ij}`, a linear predictor.

    Parameters
    ----------
    n_components : int
        Number k of embedding columns.
    loss : {"poisson", "poisson-exp", "logistic", "squared"} or Observation
        Loss of a response: spike counts with rate softplus(z) or exp(z), 0 or 1 (or -1 and 1), measured values (of any
        size and offset if both towers are linear; with hidden layers scale them to about 1); or your own observation
        model, :class:`glmfit.observations.Observation`.
    stimulus_hidden, neuron_hidden : tuple of int
        Widths of the hidden layers (tanh) of the towers; () for a linear one.
    regularizer_strength : float or sequence of float
        Ridge lambda >= 0 of the towers; if several are given, the best on held-out pairs is used.
    bias, bias_strength : bool, float
        Whether stimuli have a bias s and neurons one, t + delta; ridge lambda_b >= 0 of s and delta.
    imputation_weight : float, sequence of float or "auto"
        omega >= 0; if several are given (0 is always added), the best on held-out pairs is used. "auto" tries 0, 0.03,
        0.1 and 0.3 times the mean curvature of the loss at the neurons' means.
    prior : {"mean", "zero"}
        Value that pairs without a record are pulled towards: the neuron's mean response, or z = 0.
    solver_name : {"auto", "LBFGS", "GaussNewton", "Adam", "LeftBatches", "SampledPairs"}
        "auto" is LBFGS for linear towers, and Adam, which ends with L-BFGS, if there is a hidden layer.
    tol, max_epochs : float, int, optional
        Norm of the gradient, relative to that at the start, at which to stop; budget, by default the solver's own.
    validation_fraction : float
        Share of the pairs held out to choose among several weights or strengths: whole pairs, with all their trials,
        and never all pairs of a stimulus or neuron. The best are fitted to all pairs again.

    Attributes
    ----------
    stimulus_embedding_, neuron_embedding_ : numpy.ndarray
        (stimulus, component) and (neuron, component), float64. Determined only up to a common rotation; this one makes
        their joint second moment diagonal and decreasing, and the largest entry of each neuron column positive.
    stimulus_bias_, neuron_bias_ : numpy.ndarray
        Total bias of a stimulus, s, and of a neuron, t + delta; 0 with ``bias=False``.
    imputation_weight_, regularizer_strength_ : float
        Given or chosen.
    n_stimuli_, n_neurons_, n_stimulus_features_in_, n_neuron_features_in_ : int
        Numbers of entities and of features, equal if each entity is its own feature.
    stimulus_feature_names_in_, neuron_feature_names_in_ : numpy.ndarray
        Names of the columns of the features, if all of them are strings.

    Notes
    -----
    Guarantee: the model is not convex. A converged fit is a stationary point; no bound on the distance from the global
    optimum exists, and other seeds may end elsewhere.
    Cost of a pass: O(pairs k + (m + n) k^2) and the towers, for all m n pairs; the table of all of them is formed by
    :meth:`predict` only.
    Unseen stimuli and neurons are predicted from their features, with the mean bias of the fitted ones that have a
    response; ``stimulus_bias_`` also contains those without. An entity that is its own feature and has no response has
    a vector of zeros (nearly, if pairs are imputed).

    References
    ----------
    Yuan, Li, Quan, Lin, Efficient optimization methods for extreme similarity learning with nonlinear embeddings, KDD
    2021.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import ResponseModel
    >>> rng = np.random.default_rng(0)
    >>> z = rng.normal(size=(40, 2)) @ rng.normal(size=(2, 15)) + 1
    >>> counts = rng.poisson(np.logaddexp(0, z)).astype(float)
    >>> counts[rng.random(counts.shape) < 0.5] = np.nan  # not recorded
    >>> model = ResponseModel(n_components=2).fit(None, None, counts)
    >>> model.report_.converged
    True
    >>> model.predict().shape, model.stimulus_embedding_.shape
    ((40, 15), (40, 2))
    """

    def __init__(
        self,
        n_components: int = 8,
        loss: str | Observation = "poisson",
        stimulus_hidden: Sequence[int] = (),
        neuron_hidden: Sequence[int] = (),
        regularizer_strength: float | Sequence[float] | np.ndarray = 1.0,
        bias: bool = True,
        bias_strength: float = 0.1,
        imputation_weight: float | Sequence[float] | np.ndarray | str = 0.0,
        prior: str = "mean",
        solver_name: str = "auto",
        solver_kwargs: Mapping[str, Any] | None = None,
        tol: float = 1e-4,
        max_epochs: int | None = None,
        validation_fraction: float = 0.1,
        random_state: Seed = 0,
        verbose: bool = False,
    ): ...

    def fit(
        self,
        stimulus_features: DataLike | int | None,
        neuron_features: DataLike | int | None,
        responses: DataLike,
        stimulus_weight: ArrayLike | None = None,
        neuron_weight: ArrayLike | None = None,
        prior_factors: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit both towers.

        Parameters
        ----------
        stimulus_features, neuron_features : array-like or SciPy sparse (entity, feature), int or None
            NumPy, pandas, pynapple TsdFrame or sparse. None: every entity is its own feature, as many as the responses
            show; an integer gives their number.
        responses : list of tuple, tuple, or array-like
            Sessions, a list of ``(stimulus ids, neuron ids, array (stimulus, neuron))`` with NaN for gaps (one session
            may come without the list); or one table (stimulus, neuron) with NaN where nothing was recorded (array,
            DataFrame, TsdFrame; of a SciPy sparse one the entries stored are those recorded); or records, a tuple
            ``(stimulus ids, neuron ids, responses)`` of three arrays. Ids are rows of the features, from 0; a pair that
            occurs more than once has repeated trials.
        stimulus_weight, neuron_weight : array-like, (stimulus,) and (neuron,), optional
            Factors a and b >= 0 of the imputation weight; default 1.
        prior_factors : tuple of array-like, (stimulus, any) and (neuron, any), optional
            Prior of pairs that were not recorded, the products of their rows, instead of ``prior``.

        Warns
        -----
        ConvergenceWarning
            If the fit did not converge.
        UserWarning
            For stimuli or neurons about which nothing can be learnt, more components than linear towers can have, and
            counts that are not integers.
        """
        with WholeFit(self):
            settings = Settings(self)
            left, U = read_side(stimulus_features, STIMULI)
            right, V = read_side(neuron_features, NEURONS)
            observed = read_responses(responses, settings.loss, left.n, right.n)
            m, n = observed.n_stimuli, observed.n_neurons
            left, right = left._replace(n=m), right._replace(n=n)
            weights = (
                read_factor(stimulus_weight, "stimulus_weight", m, "stimulus"),
                read_factor(neuron_weight, "neuron_weight", n, "neuron"),
            )
            prior_factors = read_prior(prior_factors, m, n)
            if isinstance(settings.loss, Poisson):
                observed.warn_of_fractions()
            warn_rank(settings, left, right)
            for side, ids in zip((left, right), observed.records[:2], strict=True):
                warn_unseen(side, np.bincount(ids, minlength=side.n))
            fitted = ResponseFit(settings, observed, (U, V), weights, prior_factors).run()
            self._keep(settings.loss, fitted, (left, right))
        return self
