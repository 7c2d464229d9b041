"""Responses of all neurons to all stimuli, learnt from the pairs that were recorded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from ..checks import check_choice, check_whole
from ..data.entities import NEURONS, STIMULI, Side, read_fitted_ids, read_prior, read_side, read_unseen, warn_unseen
from ..data.features import read_factor
from ..data.responses import read_responses
from ..data.times import time_axis, wrap
from ..numerics import ArrayOrTsd, DataLike, Seed
from ..observations import RESPONSE_LOSSES, Gaussian, Observation
from ..observations.poisson import Poisson
from ..pairs import Tower
from ..pairs.towers import SCORES, Predictor, correlations, deviance_explained, recall
from .model import Model, WholeFit
from .model_reports import ResponseReport
from .response_fit import ResponseFit, Settings, warn_rank

_EMBEDDINGS = ("stimulus_embedding", "neuron_embedding", "stimulus_bias", "neuron_bias")


class ResponseModel(Model):
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

    report_class = ResponseReport

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

    def _keep(self, loss: Observation, fitted: tuple, sides: tuple[Side, Side]) -> None:
        self._loss, self._sides = loss, sides  # of the fit, whatever the parameter says by now
        self._towers, predictor, self._mean_bias, self.report_ = fitted
        self.stimulus_embedding_, self.stimulus_bias_, self.neuron_embedding_, self.neuron_bias_, self._null = predictor
        self.imputation_weight_ = self.report_.imputation_weight
        self.regularizer_strength_ = self.report_.regularizer_strength
        self.n_stimuli_, self.n_neurons_ = (side.n for side in sides)
        for side in sides:
            setattr(self, f"n_{side.entity}_features_in_", side.n_features or side.n)
            vars(self).pop(f"{side.entity}_feature_names_in_", None)  # of a model that is replaced
            if side.names is not None:
                setattr(self, f"{side.entity}_feature_names_in_", side.names)

    def linear_predictor(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> ArrayOrTsd:
        """Compute the linear predictors, (stimulus, neuron), of the pairs that :meth:`predict` takes."""
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(predictor.table(), stimulus_features, neurons)

    def predict(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> ArrayOrTsd:
        """Compute the expected responses of some neurons to some stimuli.

        Parameters
        ----------
        stimuli, neurons : array-like of int, optional
            Ids of the fit; default all of them.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            Instead of ids: stimuli or neurons that were not fitted. They get the mean bias of those that were.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Expected counts, probabilities or values, (stimulus, neuron); a frame if stimulus_features is one.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(self._loss.mean(predictor.table()), stimulus_features, neurons)

    def predict_pairs(self, stimuli: ArrayLike, neurons: ArrayLike) -> np.ndarray:
        """Compute the expected responses of scattered pairs, (pair,), from their ids in the fit, (pair,) each."""
        predictor = self._predictor(None, None, None, None)
        i, j = read_fitted_ids(stimuli, self._sides[0]), read_fitted_ids(neurons, self._sides[1])
        if isinstance(i, slice) or isinstance(j, slice) or len(i) != len(j):
            count = [0 if isinstance(ids, slice) else len(ids) for ids in (i, j)]
            raise ValueError(
                f"{count[0]} stimuli and {count[1]} neurons; pairs need one of each. For all pairs use predict."
            )
        return self._loss.mean(predictor.of_pairs(i, j))

    def simulate(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
        random_state: Seed = None,
    ) -> ArrayOrTsd:
        """Draw one response of every pair that :meth:`predict` takes.

        Parameters
        ----------
        stimuli, neurons, stimulus_features, neuron_features :
            As in :meth:`predict`.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Counts, 0 and 1, or other responses of the loss, (stimulus, neuron), float; the same seed draws the same.
            The squared loss has no noise model: ValueError.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        if isinstance(self._loss, Gaussian):
            raise ValueError('loss "squared" has no noise model to draw from; predict gives the expected responses.')
        drawn = self._loss.sample(jax.random.key(self._seed(random_state)), predictor.table())
        return _wrapped(np.asarray(drawn, np.float64), stimulus_features, neurons)

    def score(
        self,
        responses: DataLike,
        score_type: str = "D2",
        k: int = 20,
        exclude: DataLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> float | np.ndarray:
        """Score the predictions of responses.

        Parameters
        ----------
        responses :
            In any of the forms of :meth:`fit`, with ids of the fit (or rows of the features given here).
        score_type : {"D2", "correlation", "recall"}
            1 - deviance / deviance of every neuron's mean response in the fit; Pearson correlation of each neuron's
            responses, trials averaged, with their predictions; or recall@k: per stimulus the share of its neurons with
            a response above 0 that are among the k with the largest predictions, averaged over stimuli with any.
        k : int
            Number of top predictions in a recall. A stimulus with fewer responding neurons can have them all.
        exclude : optional
            Responses of the fit, in any form: their pairs are excluded from a recall, as answers and as candidates.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            Of unseen stimuli or neurons, as in :meth:`predict`; the mean response of an unseen neuron is that of an
            average one.

        Returns
        -------
        float or numpy.ndarray
            Larger is better. Correlations are (neuron,), nan for neurons with fewer than 3 pairs or if responses or
            predictions are constant.
        """
        check_choice("score_type", score_type, SCORES)
        if exclude is not None and score_type != "recall":
            raise ValueError(f'exclude is for score_type="recall"; omit it with {score_type!r}.')
        k = check_whole("k", k)
        predictor = self._predictor(None, None, stimulus_features, neuron_features)
        sizes = len(predictor.s), len(predictor.t)
        records = read_responses(responses, self._loss, *sizes).records
        if score_type == "D2":
            return deviance_explained(self._loss, records, predictor)
        if score_type == "correlation":
            return correlations(self._loss, records, predictor)
        if exclude is not None:
            exclude = read_responses(exclude, RESPONSE_LOSSES["squared"], *sizes, "exclude").records
        return recall(records, predictor, k, exclude)

    def _predictor(self, stimuli, neurons, stimulus_features, neuron_features) -> Predictor:
        """Return embeddings and biases of the selected stimuli and neurons."""
        check_is_fitted(self)
        P, s = self._embedded(0, stimuli, stimulus_features, self.stimulus_embedding_, self.stimulus_bias_)
        Q, t, null = self._embedded(1, neurons, neuron_features, self.neuron_embedding_, self.neuron_bias_, self._null)
        return Predictor(P, s, Q, t, null)

    def _embedded(self, which: int, ids, features, *fitted: np.ndarray) -> list[np.ndarray]:
        """Embeddings, biases and more of some entities of one side: as fitted, or of unseen ones."""
        side = self._sides[which]
        if features is None:
            some = read_fitted_ids(ids, side)
            return [values[some] for values in fitted]
        if ids is not None:
            raise ValueError(
                f"{side.entities} and {side.entity}_features were given; pass ids of the fit or features of others."
            )
        embedding = self._towers[which](read_unseen(features, side))
        means = self._mean_bias[which], *map(np.mean, fitted[2:])
        return [embedding, *(np.full(len(embedding), mean) for mean in means)]

    def _write_state(self, header: dict, arrays: dict) -> None:
        arrays.update({name: getattr(self, f"{name}_") for name in _EMBEDDINGS}, null=self._null)
        names = [name for name, loss in RESPONSE_LOSSES.items() if loss == self._loss]
        if not names:
            raise ValueError(f"the loss is {self._loss!r}, which cannot be saved: use one of {list(RESPONSE_LOSSES)}.")
        header["loss"], header["mean_bias"], header["sides"] = names[0], list(self._mean_bias), []
        for side, tower in zip(self._sides, self._towers, strict=True):
            tower.to_file(side.entity, arrays)
            names = None if side.names is None else [str(name) for name in side.names]
            header["sides"].append([side.n, side.n_features, names])

    def _read_state(self, header: dict, arrays: dict) -> None:
        sides = []
        for side, (n, n_features, names) in zip((STIMULI, NEURONS), header["sides"], strict=True):
            names = None if names is None else np.asarray(names, object)
            sides.append(side._replace(n=n, n_features=n_features, names=names))
        towers = tuple(Tower.from_file(side.entity, arrays) for side in sides)
        P, Q, s, t = (arrays[name] for name in _EMBEDDINGS)
        if len(P) != sides[0].n or len(Q) != sides[1].n or P.shape[1] != Q.shape[1]:
            raise IndexError(f"embeddings of shapes {P.shape} and {Q.shape}")
        fitted = towers, Predictor(P, s, Q, t, arrays["null"]), tuple(header["mean_bias"]), self.report_
        self._keep(RESPONSE_LOSSES[header["loss"]], fitted, tuple(sides))


def _wrapped(values: np.ndarray, stimulus_features, neurons):
    """Return a table with the times of the stimulus features, if they have any."""
    columns = list(range(values.shape[1])) if neurons is None else [int(j) for j in np.atleast_1d(neurons)]
    return wrap(values, time_axis(stimulus_features), None, columns)
