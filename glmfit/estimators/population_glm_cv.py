"""Ridge strengths chosen per neuron by cross-validation, all fits in one solve."""

from __future__ import annotations

import jax
import numpy as np

from .. import observations, penalties
from .._status import Status
from ..problems import FoldedProblem, Params, PopulationProblem
from ..solvers import LBFGS, SAGA, LoopOptions, Newton
from ._auto import choose_solver
from ._folds import Folds, make_folds
from ._parameters import read_count, read_number, read_seed, read_solver
from ._population_model import PopulationModel
from ._validation import check_training, time_axis
from ._warn import warn_user

SCORINGS = ("log-likelihood", "D2")
RULES = ("best", "one-se")
_COPIES = 7  # arrays of rows times columns alive at a time: counts, weights, table, and what warm-up adds
_FINISHERS = {"SAGA": SAGA, "LBFGS": LBFGS, "Newton": Newton}


class PopulationGLMCV(PopulationModel):
    r"""Poisson GLM of one or many neurons whose ridge strength is chosen per neuron by cross-validation.

    All strengths, folds and neurons are columns of one problem in the spectral basis of the design, solved together by
    SAGA; the model is then fitted to all rows at the strengths chosen. Objective and conventions are those of
    `PopulationGLM`.

    Parameters
    ----------
    inverse_link_function : {"softplus", "exp"}
        As in `PopulationGLM`.
    strengths : array of float, optional
        Ridge strengths to try, >= 0, at least two different ones; eight from 1e-6 to 1 when left out.
    cv : int, pynapple IntervalSet, splitter or iterable
        Folds: a number of contiguous blocks of rows (neighbouring bins are correlated, shuffled rows would leak);
        epochs, each left out in turn; a scikit-learn splitter; or pairs of (train, test) row indices.
    scoring : {"log-likelihood", "D2"}
        Of the rows left out, per neuron: mean log-likelihood per bin, or share of the deviance explained over their own
        constant rate.
    rule : {"best", "one-se"}
        Take the strength of the best mean score, or the strongest one within a standard error of it.
    solver_kwargs : dict, optional
        Hyper-parameters of SAGA in the cross-validation.
    cv_tol : float
        Relative gap at which the fits of the cross-validation stop.
    tol, max_epochs :
        Of the last fit, as in `PopulationGLM`; the epochs limit both.
    max_memory : float
        Bytes that the fits of the cross-validation may take beside the design; neurons are done in groups that do.
    random_state, verbose :
        As in `PopulationGLM`.

    Attributes
    ----------
    strengths_ : numpy.ndarray
        Strengths tried, increasing, (strength,).
    cv_scores_ : numpy.ndarray
        Scores of the rows left out, (strength, fold, neuron); nan where the score is not defined: a neuron without
        spikes in the rows fitted, or for D2 in those left out.
    strength_, best_strength_, one_se_strength_ : numpy.ndarray
        Chosen by the rule, and by either, (neuron,).
    coef_path_, intercept_path_ : numpy.ndarray
        Of the fits to all rows, (strength, feature, neuron) and (strength, neuron).
    cv_gap_, cv_gap_is_bound_, cv_converged_ : numpy.ndarray
        Distance from the optimum of every fit, whether proved, and whether below its target, (strength, fold, neuron).
    coef_, intercept_, report_, n_iter_ :
        Of the last fit, as in `PopulationGLM`.

    Notes
    -----
    Guarantee: the last fit's as in `PopulationGLM`; the fits of the cross-validation have the same certificates, in
    ``cv_gap_``. Cost: about as many passes over the rows as one fit, on strengths times (folds + 1) times neurons
    columns.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLMCV
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(600, 20))
    >>> counts = rng.poisson(np.logaddexp(0, X[:, :2] @ [0.5, -0.5]))
    >>> model = PopulationGLMCV(strengths=[1e-4, 1e-2, 1]).fit(X, counts)
    >>> model.cv_scores_.shape
    (3, 5, 1)
    >>> float(model.strength_[0])
    0.01
    """

    def __init__(
        self,
        inverse_link_function="softplus",
        strengths=None,
        cv=5,
        scoring="log-likelihood",
        rule="best",
        solver_kwargs=None,
        cv_tol=1e-5,
        tol=1e-6,
        max_epochs=200,
        max_memory=2e9,
        random_state=0,
        verbose=False,
    ):
        self.inverse_link_function = inverse_link_function
        self.strengths = strengths
        self.cv = cv
        self.scoring = scoring
        self.rule = rule
        self.solver_kwargs = solver_kwargs
        self.cv_tol = cv_tol
        self.tol = tol
        self.max_epochs = max_epochs
        self.max_memory = max_memory
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X, y, sample_weight=None):
        """Choose the strengths and fit the coefficients of every neuron.

        Parameters
        ----------
        X, y, sample_weight :
            As :meth:`PopulationGLM.fit` takes them.

        Returns
        -------
        PopulationGLMCV
            self.

        Raises
        ------
        ValueError, TypeError
            For data or parameters that make no sense; the message says what to do. The model stays as it was.

        Warns
        -----
        ConvergenceWarning
            If some neurons did not converge in the last fit.
        UserWarning
            If some neurons have no spikes in the rows fitted of some folds, which are left out for them, or some fits
            of the cross-validation did not converge.
        """
        self._do_or_undo(self._fit, X, y, sample_weight)
        self._warn()
        return self

    def _fit(self, X, y, sample_weight) -> None:
        for name, allowed in (("scoring", SCORINGS), ("rule", RULES)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be one of {', '.join(allowed)}.")
        strengths = _read_strengths(self.strengths)
        solver = read_solver("SAGA", self.solver_kwargs, {"SAGA": SAGA})
        max_epochs, verbose = read_count("max_epochs", self.max_epochs), bool(self.verbose)
        cv_options = LoopOptions(tol=read_number("cv_tol", self.cv_tol), max_epochs=max_epochs, verbose=verbose)
        options = LoopOptions(tol=read_number("tol", self.tol), max_epochs=max_epochs, verbose=verbose)
        max_memory, key = read_number("max_memory", self.max_memory), jax.random.key(read_seed(self.random_state))
        data = check_training(self, X, y, sample_weight)
        total = data.Y.sum(axis=1, dtype=np.float64)
        folds = make_folds(self.cv, data.rows, data.n_given, time_axis(X) or time_axis(y), total)
        observation = observations.from_inverse_link(self.inverse_link_function)
        double = data.X.dtype == np.float64 and jax.dtypes.canonicalize_dtype(np.float64) == np.float64
        common = {"weights": data.weights, "dtype": np.float64 if double else np.float32}

        per_neuron = (
            _COPIES * len(strengths) * (folds.train.shape[1] + 1) * data.X.shape[0] * common["dtype"]().itemsize
        )
        n_neurons = data.Y.shape[1]
        n_groups = -(-n_neurons // max(1, int(max_memory // per_neuron)))
        parts = [
            _fit_all(data, neurons, observation, strengths, folds, solver, cv_options, key, common)
            for neurons in np.array_split(np.arange(n_neurons), n_groups)
        ]
        coef, intercept, status, gap, is_bound = (np.concatenate(part, axis=-1) for part in zip(*parts, strict=True))
        scores = _scores(observation, data, folds, coef[:, :-1], intercept[:, :-1], self.scoring)
        scores[status[:, :-1] == Status.NO_SPIKES] = np.nan
        best, one_se = _choose(scores)

        self.strengths_, self.cv_scores_ = strengths, scores
        self.best_strength_, self.one_se_strength_ = strengths[best], strengths[one_se]
        chosen = best if self.rule == "best" else one_se
        self.strength_ = strengths[chosen]
        self.coef_path_, self.intercept_path_ = coef[:, -1], intercept[:, -1]
        self.cv_gap_, self.cv_gap_is_bound_ = gap[:, :-1], is_bound[:, :-1]
        self.cv_converged_ = np.isin(status[:, :-1], (Status.CONVERGED, Status.NO_SPIKES))

        problem = PopulationProblem(data.X, data.Y, observation, penalties.Ridge(self.strength_), **common)
        place = chosen, np.arange(n_neurons)
        start = Params(np.ascontiguousarray(self.coef_path_[chosen, :, place[1]].T), self.intercept_path_[place])
        solution = _FINISHERS[choose_solver(problem)]().run(problem, start, key=key, options=options)
        self._keep(problem, solution, data)
        self._warn_of_folds(status)

    def _warn_of_folds(self, status) -> None:
        silent = np.isnan(self.cv_scores_).any(axis=(0, 1))
        if silent.any():
            warn_user(
                f"{int(silent.sum())} of {len(silent)} neurons have folds without a spike that cannot be scored; those "
                "folds are left out for them (cv_scores_ is nan there). Fewer folds, or longer ones, have spikes.",
            )
        failed = ~self.cv_converged_
        if failed.any():
            warn_user(
                f"{int(failed.sum())} of {failed.size} fits of the cross-validation did not converge (cv_gap_ says how "
                "far they are); raise max_epochs, or leave out the weakest strengths.",
            )

    # ------------------------------------------------------------------------------------------ files

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        arrays.update({f"cv.{name}": getattr(self, name) for name in _FITTED})

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        for name in _FITTED:
            setattr(self, name, arrays[f"cv.{name}"])


_FITTED = (
    "strengths_",
    "cv_scores_",
    "strength_",
    "best_strength_",
    "one_se_strength_",
    "coef_path_",
    "intercept_path_",
    "cv_gap_",
    "cv_gap_is_bound_",
    "cv_converged_",
)


def _read_strengths(given) -> np.ndarray:
    """Strengths in increasing order, each once."""
    if given is None:
        return np.logspace(-6, 0, 8)
    strengths = np.asarray(given)
    if (
        strengths.dtype.kind not in "fiu"
        or strengths.ndim != 1
        or not np.all(np.isfinite(strengths) & (strengths >= 0))
    ):
        raise ValueError(f"strengths is {given!r}; it must be a list of finite numbers of at least 0.")
    strengths = np.unique(strengths.astype(np.float64))
    if len(strengths) < 2:
        raise ValueError(
            f"strengths is {given!r}; it takes at least two different ones to choose. For one, use PopulationGLM."
        )
    return strengths


def _fit_all(data, neurons, observation, strengths, folds: Folds, solver, options, key, common):
    """Fit some neurons at all strengths to all folds and, last, to all rows.

    Returns coefficients (strength, fold, feature, neuron), and intercepts, statuses, gaps and whether these are bounds,
    (strength, fold, neuron).
    """
    train = np.column_stack([folds.train, np.ones(len(data.X), bool)])
    shape = len(strengths), train.shape[1], len(neurons)
    strength, fold, neuron = (a.ravel() for a in np.meshgrid(strengths, range(shape[1]), neurons, indexing="ij"))
    problem = FoldedProblem(data.X, data.Y, observation, penalties.Ridge(strength), neuron, fold, train, **common)
    solution = solver.run(problem, key=key, options=options)
    coef = np.moveaxis(solution.params.coef.reshape(-1, *shape), 0, -2)
    rest = (solution.params.intercept, solution.status, solution.gap, solution.gap_is_bound)
    return coef, *(a.reshape(shape) for a in rest)


def _scores(observation, data, folds: Folds, coef, intercept, scoring: str) -> np.ndarray:
    """Scores of the rows left out, (strength, fold, neuron); coef is (strength, fold, feature, neuron)."""
    S, F, _, N = coef.shape
    out = np.empty((S, F, N))
    of = observation.deviance if scoring == "D2" else observation.log_likelihood
    for f in range(F):
        rows = np.flatnonzero(folds.test[:, f])
        w = np.ones(len(rows)) if data.weights is None else data.weights[rows]
        mean = w @ data.Y[rows] / w.sum()
        total, null = np.zeros((S, N)), np.zeros(N)
        for start in range(0, len(rows), 8192):
            part = rows[start : start + 8192]
            x, y, weight = (
                np.asarray(data.X[part], np.float64),
                np.asarray(data.Y[part], np.float64),
                w[start : start + 8192],
            )
            for s in range(S):
                total[s] += weight @ of(y, x @ coef[s, f] + intercept[s, f])
            if scoring == "D2":
                null += weight @ of(y, np.broadcast_to(observation.intercept(mean), y.shape))
        with np.errstate(divide="ignore", invalid="ignore"):
            out[:, f] = np.where(mean > 0, 1 - total / null, np.nan) if scoring == "D2" else total / w.sum()
    return out


def _choose(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Index of the best mean score, and of the strongest strength within a standard error of it, (neuron,)."""
    known = ~np.isnan(scores)
    n = known.all(axis=0).sum(axis=0)  # folds, (neuron,)
    usable = known.all(axis=0)[None]  # of the same folds for all strengths
    mean = np.sum(np.where(usable, scores, 0.0), axis=1) / np.maximum(n, 1)
    spread = np.sum(np.where(usable, scores - mean[:, None], 0.0) ** 2, axis=1)
    error = np.sqrt(spread / np.maximum(n - 1, 1) / np.maximum(n, 1))
    strongest = len(scores) - 1
    best = strongest - np.argmax(mean[::-1], axis=0)  # of equal ones the strongest
    neurons = np.arange(scores.shape[2])
    within = mean >= (mean - error)[best, neurons]
    one_se = strongest - np.argmax(within[::-1], axis=0)
    return best, one_se
