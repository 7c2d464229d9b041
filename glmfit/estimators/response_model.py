"""Responses of all neurons to all stimuli, learnt from the pairs that were recorded."""

from __future__ import annotations

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from ..observations import RESPONSE_LOSSES
from ._model import Model
from ._parameters import read_count, read_seed
from ._response_fit import Data, Settings, fit_responses, warn_rank
from ._response_report import ResponseReport
from ._response_scores import SCORES, Predictor, correlations, deviance_explained, recall
from ._response_sides import (
    NEURONS,
    STIMULI,
    Side,
    read_factor,
    read_ids,
    read_prior,
    read_side,
    read_unseen,
    warn_unseen,
)
from ._response_towers import HostTower
from ._response_validation import read_responses, warn_of_shares
from ._validation import time_axis, wrap
from ._warn import warn_user

_EMBEDDINGS = ("stimulus_embedding", "neuron_embedding", "stimulus_bias", "neuron_bias")


class ResponseModel(Model):
    r"""Two-tower model of the responses of all neurons to all stimuli, learnt from the pairs that were recorded.

    A stimulus i and a neuron j get embeddings :math:`p_i, q_j` (linear maps or perceptrons of their features, or a
    vector of their own), and the response has the linear predictor
    :math:`z_{ij} = p_i^\top q_j + s_i + t_j + \delta_j`, with t the linear predictor of the neuron's mean response.
    The fit minimises

    .. math:: L = \sum_{(i,j) \in O}\sum_{\text{trials}} \ell(y, z_{ij})
              + \frac\omega2\sum_{(i,j) \notin O} a_i b_j (z_{ij} - \tilde y_{ij})^2
              + \frac\lambda2|\theta|^2 + \frac{\lambda_b}2(|s|^2 + |\delta|^2)

    over the parameters :math:`\theta` of both towers and the biases; O are the pairs with a response. L is a sum over
    pairs, not a mean: strengths keep their meaning as pairs are added, and weigh less. With :math:`\omega = 0` a pair
    that was not recorded is missing, no more; with :math:`\omega > 0` it is drawn to the prior
    :math:`\tilde y_{ij}`, a linear predictor.

    Parameters
    ----------
    n_components : int
        Columns k of the embeddings.
    loss : {"poisson", "logistic", "squared"}
        Of a response: spike counts with rate softplus(z), 0 or 1 (or -1 and 1), measured values.
    stimulus_hidden, neuron_hidden : tuple of int
        Widths of the hidden layers (tanh) of the towers; () for a linear one.
    regularizer_strength : float or sequence of float
        Ridge lambda >= 0 of the towers; of several, the best on held-out pairs.
    bias : bool
        Whether stimuli have a bias s and neurons one, t + delta.
    bias_strength : float
        Ridge lambda_b >= 0 of s and delta.
    imputation_weight : float, sequence of float or "auto"
        omega >= 0; of several, to which 0 is always added, the best on held-out pairs. "auto" tries 0, 0.03, 0.1 and
        0.3 times the mean curvature of the loss at the neurons' means.
    prior : {"mean", "zero"}
        What pairs that were not recorded are drawn to: the neuron's mean response, or z = 0.
    solver_name : {"auto", "LBFGS", "GaussNewton", "Adam", "LeftBatches", "SampledPairs"}
        "auto" is LBFGS for linear towers and Adam, which ends with L-BFGS, where there is a hidden layer.
    solver_kwargs : dict, optional
        Hyper-parameters of the solver.
    tol : float
        Norm of the gradient, relative to that at the start, at which to stop.
    max_epochs : int, optional
        Budget; the solver's own when left out.
    validation_fraction : float
        Share of the pairs held out to choose among several weights or strengths: whole pairs, with all their trials,
        and never all those of a stimulus or neuron. The best are fitted to all pairs again.
    random_state : int, numpy.random.RandomState, numpy.random.Generator, jax key or None
        Seed of all draws. None is 0: the same call gives the same answer.
    verbose : bool
        Show a progress bar.

    Attributes
    ----------
    stimulus_embedding_, neuron_embedding_ : numpy.ndarray
        (stimulus, component) and (neuron, component), float64. Known up to a common rotation only; this one makes their
        joint second moment diagonal and decreasing, and the largest entry of each column of the second positive.
    stimulus_bias_, neuron_bias_ : numpy.ndarray
        All that is added for a stimulus, s, and for a neuron, t + delta; 0 with ``bias=False``.
    imputation_weight_, regularizer_strength_ : float
        Given or chosen.
    n_stimuli_, n_neurons_ : int
        Entities.
    n_stimulus_features_in_, n_neuron_features_in_ : int
        Features; the number of entities where each is its own feature.
    stimulus_feature_names_in_, neuron_feature_names_in_ : numpy.ndarray
        Names of the columns of the features, where all of them are strings.
    report_ : ResponseReport
        Status, deviance explained and more; ``print(model.report_)``.

    Notes
    -----
    Guarantee: the model is not convex. A converged fit is a stationary point; no bound on the distance from the global
    optimum exists, and other seeds may end elsewhere.
    Cost of a pass: O(pairs k + (m + n) k^2) and the towers, for all m n pairs; the table of all of them is formed by
    :meth:`predict` only.
    Unseen stimuli and neurons are predicted from their features, with the mean of the biases of those of the fit. An
    entity that is its own feature and has no response has a vector of (nearly, if pairs are imputed) zeros.

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
        n_components=8,
        loss="poisson",
        stimulus_hidden=(),
        neuron_hidden=(),
        regularizer_strength=1.0,
        bias=True,
        bias_strength=0.1,
        imputation_weight=0.0,
        prior="mean",
        solver_name="auto",
        solver_kwargs=None,
        tol=1e-4,
        max_epochs=None,
        validation_fraction=0.1,
        random_state=0,
        verbose=False,
    ):
        self.n_components = n_components
        self.loss = loss
        self.stimulus_hidden = stimulus_hidden
        self.neuron_hidden = neuron_hidden
        self.regularizer_strength = regularizer_strength
        self.bias = bias
        self.bias_strength = bias_strength
        self.imputation_weight = imputation_weight
        self.prior = prior
        self.solver_name = solver_name
        self.solver_kwargs = solver_kwargs
        self.tol = tol
        self.max_epochs = max_epochs
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.verbose = verbose

    def fit(
        self, stimulus_features, neuron_features, responses, stimulus_weight=None, neuron_weight=None,
        prior_factors=None,
    ):  # fmt: skip
        """Fit both towers.

        Parameters
        ----------
        stimulus_features, neuron_features : array-like or SciPy sparse (entity, feature), int or None
            NumPy, pandas, pynapple TsdFrame or sparse. None: every entity is its own feature, as many as the responses
            show; an integer says how many.
        responses : list of tuple, tuple, or array-like
            Sessions, a list of ``(stimulus ids, neuron ids, array (stimulus, neuron))`` with NaN for gaps (one session
            may come without the list); or one table (stimulus, neuron) with NaN where nothing was recorded (array,
            DataFrame, TsdFrame; of a SciPy sparse one the entries stored are those recorded); or records, a tuple
            ``(stimulus ids, neuron ids, responses)`` of three arrays. Ids are rows of the features, from 0; a pair that
            occurs more than once has repeated trials.
        stimulus_weight, neuron_weight : array-like, (stimulus,) and (neuron,), optional
            Factors a and b >= 0 of the imputation weight; 1 when left out.
        prior_factors : tuple of array-like, (stimulus, any) and (neuron, any), optional
            Prior of pairs that were not recorded, the products of their rows, in place of ``prior``.

        Returns
        -------
        ResponseModel
            self. Interrupting with Ctrl-C leaves a usable model whose report says so.

        Raises
        ------
        ValueError, TypeError
            For data or parameters that make no sense; the message says what to do. The model stays as it was.

        Warns
        -----
        ConvergenceWarning
            If the fit did not converge.
        UserWarning
            For stimuli or neurons of which nothing can be learnt, more components than linear towers can have, and
            counts that are no integers.
        """
        arguments = stimulus_features, neuron_features, responses, stimulus_weight, neuron_weight, prior_factors
        self._do_or_undo(self._fit, *arguments)
        status = self.report_.status
        if status.is_failure:
            warn_user(f"the fit did not converge: {status.label} ({self.report_.advice})", ConvergenceWarning)
        return self

    def _fit(self, stimulus_features, neuron_features, responses, stimulus_weight, neuron_weight, prior_factors):
        settings = Settings.of(self)
        left, U = read_side(stimulus_features, STIMULI)
        right, V = read_side(neuron_features, NEURONS)
        observed = read_responses(responses, settings.loss, left.n, right.n)
        m, n = observed.n_stimuli, observed.n_neurons
        left, right = left._replace(n=m), right._replace(n=n)
        weights = (
            read_factor(stimulus_weight, "stimulus_weight", (m,), signed=False),
            read_factor(neuron_weight, "neuron_weight", (n,), signed=False),
        )
        data = Data(observed, (U, V), weights, read_prior(prior_factors, m, n))
        if settings.loss.name == "poisson":
            warn_of_shares(observed)
        warn_rank(settings, left, right)
        fitted = fit_responses(settings, data)
        for side, n_pairs in zip((left, right), fitted.n_pairs, strict=True):
            warn_unseen(side, n_pairs)
        self._keep(fitted.towers, fitted.predictor, fitted.mean_bias, (left, right))
        self.report_ = fitted.report
        self.imputation_weight_ = fitted.report.imputation_weight
        self.regularizer_strength_ = fitted.report.regularizer_strength

    def _keep(self, towers, predictor: Predictor, mean_bias, sides: tuple[Side, Side]) -> None:
        self._towers, self._mean_bias, self._sides, self._null = towers, mean_bias, sides, predictor.null
        self.stimulus_embedding_, self.stimulus_bias_, self.neuron_embedding_, self.neuron_bias_ = predictor[:4]
        self.n_stimuli_, self.n_neurons_ = (side.n for side in sides)
        for side in sides:
            setattr(self, f"n_{side.entity}_features_in_", side.n_features or side.n)
            vars(self).pop(f"{side.entity}_feature_names_in_", None)  # of a model that is replaced
            if side.names is not None:
                setattr(self, f"{side.entity}_feature_names_in_", side.names)

    # -------------------------------------------------------------------------------------- predict

    def linear_predictor(self, stimuli=None, neurons=None, *, stimulus_features=None, neuron_features=None):
        """Compute the linear predictors of all pairs of some stimuli and neurons.

        Parameters
        ----------
        stimuli, neurons, stimulus_features, neuron_features :
            As in :meth:`predict`.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            (stimulus, neuron).
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(predictor.table(), stimulus_features, neurons)

    def predict(self, stimuli=None, neurons=None, *, stimulus_features=None, neuron_features=None):
        """Compute the expected responses of some neurons to some stimuli.

        Parameters
        ----------
        stimuli, neurons : array-like of int, optional
            Ids of the fit; all of them when left out.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            In place of ids: stimuli or neurons that the fit has not seen. They get the mean bias of those it has.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Expected counts, probabilities or values, (stimulus, neuron); a frame where stimulus_features is one.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(self._loss.response(predictor.table()), stimulus_features, neurons)

    def predict_pairs(self, stimuli, neurons):
        """Compute the expected responses of scattered pairs.

        Parameters
        ----------
        stimuli, neurons : array-like of int
            Ids of the fit, (pair,) each.

        Returns
        -------
        numpy.ndarray
            (pair,).
        """
        predictor = self._predictor(None, None, None, None)
        i, j = read_ids(stimuli, self._sides[0]), read_ids(neurons, self._sides[1])
        if isinstance(i, slice) or isinstance(j, slice) or len(i) != len(j):
            count = [0 if isinstance(ids, slice) else len(ids) for ids in (i, j)]
            raise ValueError(
                f"{count[0]} stimuli and {count[1]} neurons; pairs need one of each. For all pairs use predict."
            )
        return self._loss.response(predictor.of_pairs(i, j))

    def simulate(self, stimuli=None, neurons=None, *, stimulus_features=None, neuron_features=None, random_state=None):
        """Draw one response of every pair of some stimuli and neurons.

        Parameters
        ----------
        stimuli, neurons, stimulus_features, neuron_features :
            As in :meth:`predict`.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Counts, or 0 and 1, (stimulus, neuron), float; the same seed draws the same ones.

        Raises
        ------
        ValueError
            For the squared loss, which has no noise model.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        if self.loss == "squared":
            raise ValueError('loss "squared" has no noise model to draw from; predict gives the expected responses.')
        rng = np.random.default_rng(read_seed(self.random_state if random_state is None else random_state))
        expected = self._loss.response(predictor.table())
        drawn = rng.poisson(expected) if self.loss == "poisson" else rng.random(expected.shape) < expected
        return _wrapped(drawn.astype(np.float64), stimulus_features, neurons)

    def score(self, responses, score_type="D2", k=20, exclude=None, *, stimulus_features=None, neuron_features=None):
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
            Of the recall. A stimulus with fewer responding neurons can have them all.
        exclude : optional
            Responses of the fit, in any form: their pairs are left out of a recall, as answers and as candidates.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            Of unseen stimuli or neurons, as in :meth:`predict`; the mean response of an unseen neuron is that of an
            average one.

        Returns
        -------
        float or numpy.ndarray
            Larger is better. Correlations are (neuron,), nan for neurons with fewer than 3 pairs or where responses or
            predictions are constant.
        """
        if score_type not in SCORES:
            raise ValueError(f"score_type is {score_type!r}; it must be one of {', '.join(SCORES)}.")
        if exclude is not None and score_type != "recall":
            raise ValueError(f'exclude is for score_type="recall"; leave it out of {score_type!r}.')
        k = read_count("k", k)
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

    @property
    def _loss(self):
        return RESPONSE_LOSSES[self.loss]

    def _predictor(self, stimuli, neurons, stimulus_features, neuron_features) -> Predictor:
        """Embeddings and biases of what is asked for."""
        check_is_fitted(self)
        fitted = (
            (self.stimulus_embedding_, self.stimulus_bias_, None),
            (self.neuron_embedding_, self.neuron_bias_, self._null),
        )
        asked = (stimuli, stimulus_features), (neurons, neuron_features)
        out = []
        for side, tower, mean_bias, (ids, features), (embedding, bias, null) in zip(
            self._sides, self._towers, self._mean_bias, asked, fitted, strict=True
        ):
            if features is None:
                some = read_ids(ids, side)
                out += [embedding[some], bias[some], None if null is None else null[some]]
                continue
            if ids is not None:
                raise ValueError(
                    f"{side.entities} and {side.entity}_features were given; give ids of the fit or features of others."
                )
            embedding = tower.embed(read_unseen(features, side))
            n = len(embedding)
            out += [embedding, np.full(n, mean_bias), None if null is None else np.full(n, np.mean(null))]
        return Predictor(out[0], out[1], out[3], out[4], out[5])

    # ---------------------------------------------------------------------------------------- files

    def _write_state(self, header: dict, arrays: dict) -> None:
        arrays.update({name: getattr(self, f"{name}_") for name in _EMBEDDINGS}, null=self._null)
        header["mean_bias"], header["sides"] = list(self._mean_bias), []
        for side, tower in zip(self._sides, self._towers, strict=True):
            tower.to_file(side.entity, arrays)
            names = None if side.names is None else [str(name) for name in side.names]
            header["sides"].append([side.n, side.n_features, names])

    def _read_state(self, header: dict, arrays: dict) -> None:
        sides = []
        for side, (n, n_features, names) in zip((STIMULI, NEURONS), header["sides"], strict=True):
            names = None if names is None else np.asarray(names, object)
            sides.append(side._replace(n=n, n_features=n_features, names=names))
        towers = tuple(HostTower.from_file(side.entity, arrays) for side in sides)
        P, Q, s, t = (arrays[name] for name in _EMBEDDINGS)
        if len(P) != sides[0].n or len(Q) != sides[1].n or P.shape[1] != Q.shape[1]:
            raise IndexError(f"embeddings of shapes {P.shape} and {Q.shape}")
        self._keep(towers, Predictor(P, s, Q, t, arrays["null"]), tuple(header["mean_bias"]), tuple(sides))
        self.imputation_weight_ = self.report_.imputation_weight
        self.regularizer_strength_ = self.report_.regularizer_strength


def _wrapped(values: np.ndarray, stimulus_features, neurons):
    """Table with the times of the features of stimuli, where they have any."""
    axis = time_axis(stimulus_features)
    columns = list(range(values.shape[1])) if neurons is None else [int(j) for j in np.atleast_1d(neurons)]
    return values if axis is None else wrap(values, axis, None, columns)
