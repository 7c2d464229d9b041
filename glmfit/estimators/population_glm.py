"""The population Poisson GLM as a scikit-learn estimator."""

from __future__ import annotations

import warnings

import jax
import numpy as np
from sklearn.base import RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from .. import observations, penalties
from .._status import Status
from ..problems import Params, PopulationProblem
from ..solvers import LBFGS, SAGA, LoopOptions, Newton
from ._auto import choose_solver
from ._model import Model
from ._parameters import read_count, read_number, read_seed, read_solver
from ._report import FitReport
from ._validation import TimeAxis, check_features, check_scoring, check_training, wrap

SOLVERS = {"SAGA": SAGA, "LBFGS": LBFGS, "Newton": Newton}
SCORES = ("D2", "pseudo-r2-McFadden", "log-likelihood")
_SILENT_INTERCEPT = -1e4  # rate exactly 0, and finite
_NO_DEVIANCE = 1e-100  # a null model without spikes has the smallest rate there is, not 0


class PopulationGLM(RegressorMixin, Model):
    r"""Poisson GLM of one or many neurons' spike counts, fitted to a certified distance from the optimum.

    Per neuron n, with rate f(eta) per bin and eta = X coef + intercept, it minimises

    .. math:: F_n(w, b) = \frac1T \sum_t [f(\eta_{tn}) - y_{tn}\log f(\eta_{tn})] + \text{penalty}(w)

    which is NeMoS's objective, so that answers compare one to one. The intercept is never penalised.

    Parameters
    ----------
    inverse_link_function : {"softplus", "exp"}
        f, the rate per bin as a function of the linear predictor.
    regularizer : {"UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"}
        Penalty of the coefficients. Ridge is ``strength/2 ||w||^2``, Lasso ``strength ||w||_1``, ElasticNet
        ``strength ((1 - ratio)/2 ||w||^2 + ratio ||w||_1)``, GroupLasso ``strength sum_g sqrt(|g|) ||w_g||``.
    regularizer_strength : float, array or tuple, optional
        Strength >= 0: shared, per neuron (n_neurons,) or per coefficient (n_features, n_neurons), for GroupLasso per
        group (n_groups, n_neurons); for ElasticNet also ``(strength, ratio)``. 1.0 when left out (none for
        UnRegularized).
    groups : array of shape (n_features,) or dict, optional
        For GroupLasso: a label per feature (-1: not penalised), or name -> feature indices or column names.
    solver_name : {"auto", "SAGA", "Newton", "LBFGS"}
        Algorithm. "auto" takes Newton for up to three neurons and for small or short recordings, SAGA otherwise
        (:func:`glmfit.estimators.choose_solver` has the rule).
    solver_kwargs : dict, optional
        Hyper-parameters of the solver, for example ``{"batch_size": 2000, "certificate": "global"}``.
    tol : float
        Relative gap ``(F - F*) / (F_null - F)`` per neuron at which to stop; see Notes.
    max_epochs : int
        Budget in passes over the data (Newton: iterations).
    random_state : int, numpy.random.RandomState, numpy.random.Generator, jax key or None
        Seed of the row order and of the certificates' random starts. None is 0: the same call gives the same
        answer.
    verbose : bool
        Show a progress bar with epochs and gap.

    Attributes
    ----------
    coef_ : numpy.ndarray
        (n_features,) for 1-D y, else (n_features, n_neurons), float64.
    intercept_ : numpy.ndarray or float
        Number for 1-D y, else (n_neurons,). -1e4 (rate 0) for a neuron without spikes.
    report_ : FitReport
        Status, certified gap and more per neuron; ``print(model.report_)``.
    n_features_in_, feature_names_in_ :
        As in scikit-learn.
    n_iter_ : int
        Epochs run.

    Notes
    -----
    Guarantee: for every neuron whose ``report_.gap_is_bound`` is true, ``F - F* <= report_.gap``, proved by
    generalised self-concordance from a float64 gradient, up to the stated failure probability of the random
    starts. A neuron stops when that is below ``max(tol (F_null - F), 1e-2/T)`` nats per bin (the second term, a
    hundredth of a nat over the recording, tightens with ``tol`` below 1e-6). Where no bound is to be had the
    report says "estimate". Passes run in float32 unless jax is in x64 mode and X is float64; objective,
    gap and coefficients are float64 always. Rows with a NaN in X or y are left out and counted.
    Cost: one T d^2 product, then about 40 passes of T d n_neurons.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3))
    >>> counts = rng.poisson(np.logaddexp(0, X @ [0.5, -0.3, 0.0] - 1))
    >>> model = PopulationGLM(regularizer_strength=1e-4).fit(X, counts)
    >>> bool(model.report_.converged.all())
    True
    >>> model.coef_.shape
    (3,)
    """

    report_class = FitReport

    def __init__(
        self,
        inverse_link_function="softplus",
        regularizer="Ridge",
        regularizer_strength=None,
        groups=None,
        solver_name="auto",
        solver_kwargs=None,
        tol=1e-6,
        max_epochs=200,
        random_state=0,
        verbose=False,
    ):
        self.inverse_link_function = inverse_link_function
        self.regularizer = regularizer
        self.regularizer_strength = regularizer_strength
        self.groups = groups
        self.solver_name = solver_name
        self.solver_kwargs = solver_kwargs
        self.tol = tol
        self.max_epochs = max_epochs
        self.random_state = random_state
        self.verbose = verbose

    # ------------------------------------------------------------------------------------------ fit

    def fit(self, X, y, sample_weight=None):
        """Fit the coefficients of every neuron.

        Parameters
        ----------
        X : array-like of shape (time, feature)
            Features: NumPy, JAX, lists, pandas, or a pynapple TsdFrame. Dense, real, no infinities.
        y : array-like of shape (time,) or (time, neuron)
            Spike counts per bin, >= 0; also a pynapple Tsd or TsdFrame, whose times must be those of X.
        sample_weight : array-like of shape (time,), optional
            Weight of each bin, >= 0; the loss is divided by their sum.

        Returns
        -------
        PopulationGLM
            self. Interrupting with Ctrl-C leaves a usable model whose report says so.

        Raises
        ------
        ValueError, TypeError
            For data or parameters that make no sense; the message says what to do.

        Warns
        -----
        ConvergenceWarning
            Once, if some neurons did not converge.
        """
        self._do_or_undo(self._fit, X, y, sample_weight)
        self._warn()
        return self

    def _fit(self, X, y, sample_weight) -> None:
        data = check_training(self, X, y, sample_weight)
        solver = read_solver(self.solver_name, self.solver_kwargs, SOLVERS)
        problem = self._make_problem(data)
        if solver is None:
            solver = SOLVERS[choose_solver(problem)]()
        options = LoopOptions(
            tol=read_number("tol", self.tol),
            max_epochs=read_count("max_epochs", self.max_epochs),
            verbose=bool(self.verbose),
        )
        solution = solver.run(problem, key=jax.random.key(read_seed(self.random_state)), options=options)

        silent = solution.status == Status.NO_SPIKES
        coef = np.where(silent, 0.0, solution.params.coef)
        intercept = np.where(silent, _SILENT_INTERCEPT, solution.params.intercept)
        self.coef_ = coef[:, 0] if data.one_neuron else coef
        self.intercept_ = float(intercept[0]) if data.one_neuron else intercept
        self.n_iter_ = int(solution.epochs.max())
        self.report_ = _report(problem, solution, data, Params(coef, intercept))
        self._neurons = data.neurons

    def _make_problem(self, data) -> PopulationProblem:
        observation = observations.from_inverse_link(self.inverse_link_function)
        penalty = penalties.make(
            self.regularizer,
            self.regularizer_strength,
            data.X.shape[1],
            data.Y.shape[1],
            groups=self.groups,
            feature_names=getattr(self, "feature_names_in_", None),
        )
        double = data.X.dtype == np.float64 and jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        dtype = np.float64 if double else np.float32
        return PopulationProblem(data.X, data.Y, observation, penalty, data.weights, dtype)

    def _warn(self) -> None:
        status = self.report_.status
        counts = {s: int(np.sum(status == s)) for s in Status if s.is_failure and np.any(status == s)}
        if counts:
            parts = [f"{n} {s.label} ({s.advice})" for s, n in counts.items()]
            warnings.warn(
                f"{sum(counts.values())} of {len(status)} neurons did not converge: {'; '.join(parts)}",
                ConvergenceWarning,
                stacklevel=3,
            )

    # -------------------------------------------------------------------------------------- predict

    def predict(self, X):
        """Compute the expected count per bin.

        Parameters
        ----------
        X : array-like of shape (time, feature)
            Features, as in :meth:`fit`; NaN rows are allowed.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Rates (time,) or (time, neuron), NaN where X has a NaN; a pynapple object with the times of X (and the
            columns and metadata y had in :meth:`fit`) when X is one.
        """
        eta, axis = self._predictor(X)
        rate = observations.from_inverse_link(self.inverse_link_function).rate(eta)
        # A silent neuron has rate 0, not the smallest number.
        rate = np.where(eta <= _SILENT_INTERCEPT, 0.0, rate)
        return wrap(rate, axis, self._neurons, self.report_.neuron)

    def _predictor(self, X):
        check_is_fitted(self)
        X, axis = check_features(self, X)
        with np.errstate(invalid="ignore"):
            return np.asarray(X, np.float64) @ self.coef_ + self.intercept_, axis

    def score(self, X, y, sample_weight=None, score_type="D2", per_neuron=False):
        """Score the predictions of counts.

        Parameters
        ----------
        X, y, sample_weight :
            As in :meth:`fit`; rows with NaN are left out.
        score_type : {"D2", "pseudo-r2-McFadden", "log-likelihood"}
            D2: share of the Poisson deviance explained over the best constant rate of these rows. McFadden: 1 -
            log-likelihood / log-likelihood of that constant. log-likelihood: mean per bin, with the log-factorial.
        per_neuron : bool
            Return one score per neuron instead of one over the population (deviances and log-likelihoods are
            summed over neurons before the ratio; for the log-likelihood the mean over neurons is returned).

        Returns
        -------
        float or numpy.ndarray of shape (neuron,)
            Larger is better; D2 and McFadden are at most 1, and nan for a neuron without spikes in these rows.
        """
        if score_type not in SCORES:
            raise ValueError(f"score_type is {score_type!r}; it must be one of {', '.join(SCORES)}.")
        X, Y, weights = check_scoring(self, X, y, sample_weight)
        coef, intercept = self._matrix()
        if Y.shape[1] != coef.shape[1]:
            raise ValueError(f"y has {Y.shape[1]} neurons but the model was fitted to {coef.shape[1]}.")
        observation = observations.from_inverse_link(self.inverse_link_function)
        model, null = _sums(observation, X, Y, weights, coef, intercept, score_type)
        if score_type == "log-likelihood":
            return model if per_neuron else float(model.mean())
        if not per_neuron:
            model, null = model.sum(), null.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            value = 1 - model / null
        value = np.where(np.abs(null) < _NO_DEVIANCE, np.nan, value)
        return value if per_neuron else float(value)

    def simulate(self, X, random_state=None):
        """Draw spike counts from the fitted model.

        Parameters
        ----------
        X : array-like of shape (time, feature)
            Features; no NaN.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        array or pynapple Tsd / TsdFrame
            Counts (time,) or (time, neuron), float; the same seed draws the same counts.
        """
        eta, axis = self._predictor(X)
        if np.isnan(eta).any():
            raise ValueError(
                f"X has {int(np.isnan(eta).any(axis=-1).sum())} rows with NaN; counts cannot be drawn there."
            )
        seed = read_seed(self.random_state if random_state is None else random_state)
        observation = observations.from_inverse_link(self.inverse_link_function)
        counts = np.asarray(observation.sample(jax.random.key(seed), eta.astype(np.float32)), np.float64)
        return wrap(counts, axis, self._neurons, self.report_.neuron)

    def _matrix(self):
        return (self.coef_.reshape(self.n_features_in_, -1), np.atleast_1d(self.intercept_))

    # ------------------------------------------------------------------------------------------ files

    def _write_state(self, header: dict, arrays: dict) -> None:
        header["n_iter"] = self.n_iter_
        columns = getattr(self._neurons, "columns", None)
        columns = [] if columns is None else [c.item() if isinstance(c, np.generic) else c for c in columns]
        if columns and all(isinstance(c, int | float | str) for c in columns):
            header["columns"] = columns

    def _read_state(self, header: dict, arrays: dict) -> None:
        if self.coef_.ndim == 1:
            self.intercept_ = float(self.intercept_)
        self.n_iter_ = header["n_iter"]
        columns = header.get("columns")
        self._neurons = None if columns is None else TimeAxis(np.empty(0), None, np.asarray(columns))

    # ---------------------------------------------------------------------------------- scikit-learn

    def __sklearn_tags__(self):
        """Tags: NaN rows are allowed, y is non-negative and may have many columns."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = True
        tags.target_tags.positive_only = True
        tags.regressor_tags.poor_score = True
        return tags


def _report(problem, solution, data, params: Params) -> FitReport:
    improvement = np.maximum(solution.null_objective - solution.objective, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(solution.gap == 0, 0.0, solution.gap / improvement)
    penalty = np.asarray(problem.penalty.value(params.coef), np.float64)
    deviance = solution.objective - penalty - problem.saturated_loss
    null = solution.null_objective - problem.saturated_loss
    return FitReport(
        neuron=data.neuron_names,
        status=solution.status,
        gap=solution.gap,
        gap_is_bound=solution.gap_is_bound,
        relative_gap=relative,
        target=solution.target,
        objective=solution.objective,
        null_objective=solution.null_objective,
        pseudo_r2=1 - deviance / np.where(null > _NO_DEVIANCE, null, np.nan),
        spike_count=problem.mean_count * problem.n_rows,
        epochs=solution.epochs,
        row_evals=solution.row_evals,
        n_rows=problem.n_rows,
        n_dropped=data.n_dropped,
        rank=problem.design_rank,
        n_features=problem.n_features,
        solver_name=solution.solver_name,
        step_certificate=solution.step_certificate,
        failure_probability=solution.failure_probability,
        seconds_run=solution.seconds_run,
        seconds_compile=solution.seconds_compile,
        history=solution.history,
    )


def _sums(observation, X, Y, weights, coef, intercept, score_type):
    """Weighted (deviance, null deviance), log-likelihoods, or mean log-likelihood per neuron."""
    w = np.ones(len(X)) if weights is None else weights
    mean = w @ Y / w.sum()
    null_eta = observation.intercept(mean)
    totals = np.zeros((2, Y.shape[1]))
    size = 8192
    for start in range(0, len(X), size):
        rows = slice(start, start + size)
        y = np.asarray(Y[rows], np.float64)
        eta = np.asarray(X[rows], np.float64) @ coef + intercept
        of = observation.deviance if score_type == "D2" else observation.log_likelihood
        totals[0] += w[rows] @ of(y, eta)
        totals[1] += w[rows] @ of(y, np.broadcast_to(null_eta, y.shape))
    if score_type == "log-likelihood":
        return totals[0] / w.sum(), None
    return totals
