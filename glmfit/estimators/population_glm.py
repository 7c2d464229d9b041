"""The population GLM as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike

from .. import penalties
from ..checks import check_flag, shorten, warn_user
from ..data.counts import Training, read_training
from ..data.standard_form import StandardForm
from ..engine import Newton
from ..engine.checkpoint import Checkpoint, facts_of
from ..engine.population import PopulationProblem
from ..engine.problem import Params
from ..engine.result import LoopOptions, Solution
from ..numerics import DataLike, PerRow, Seed
from ..observations import NegativeBinomial, Observation
from ..penalties.by_name import PenaltyFamily
from ..saga import SAGA
from .default_strength import default_ridge, name_strength, residual, units_of, warn_if_flat
from .dispersion import most_likely, moved, read_dispersion
from .gam.masked import UNPENALISED, check_masked, fit_masked, read_mask
from .model import WholeFit, from_json, to_json
from .parameters import (
    SOLVERS,
    check_ratio,
    choose_solver,
    key_for,
    precision,
    read_devices,
    read_init_params,
    read_solver,
)  # fmt: skip
from .paths import RegularizationPath, path_of
from .population_model import PROVED, PopulationModel
from .streaming import RowView, as_arrays, read_fitted

_MOST_MOVES = 10  # fits that are certified, at the most, until the dispersion is settled


class PopulationGLM(PopulationModel):
    r"""GLM of spike counts, or other responses, of neurons, fitted to a certified distance from the optimum.

    Per neuron n, with the mean f(eta) per bin and eta = X coef + intercept, it minimises for Poisson counts

    .. math:: F_n(w, b) = \frac1T \sum_t [f(\eta_{tn}) - y_{tn}\log f(\eta_{tn})] + \text{penalty}(w)

    and for other responses the mean of their negative log-likelihood instead of the bracket, in units of the
    dispersion and without terms in y alone (docs/theory/observation_models.md). This is the objective of NeMoS; the
    defaults differ (docs/how_to/use_with_nemos.md). The intercept is never penalised.

    Parameters
    ----------
    inverse_link_function : str or None
        f, the mean per bin as a function of the linear predictor: "softplus" or "exp" for Poisson counts, "exp" for
        negative binomial counts and gamma responses, "logistic" for Bernoulli and binomial ones, "identity" for
        Gaussian ones. None is the first of these.
    regularizer : {"UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"} or None
        Penalty of the coefficients; None is "UnRegularized". Ridge is ``strength/2 ||w||^2``, Lasso
        ``strength ||w||_1``, ElasticNet ``strength ((1 - ratio)/2 ||w||^2 + ratio ||w||_1)``, GroupLasso
        ``strength sum_g sqrt(|g|) ||w_g||``.
    regularizer_strength : float, array or tuple, optional
        Strength >= 0: shared, per neuron (n_neurons,) or per coefficient (n_features, n_neurons), for GroupLasso per
        group (n_groups, n_neurons); for ElasticNet also ``(strength, ratio)``, as in NeMoS. The default for Ridge is
        chosen for every neuron by marginal likelihood at the model without features, times the squared half range of
        each feature; it is in ``strength_`` after the fit (docs/theory/default_strength.md;
        docs/decisions/0013-default-strengths.md has the measurements). It is 1.0 for the other penalties, as in NeMoS.
    groups : array of shape (n_features,) or dict, optional
        For GroupLasso: a label per feature (-1: not penalised), or name -> feature indices or column names (one, a
        list or a slice).
    solver_name : {"auto", "ConjugateGradients", "ProximalNewton", "SAGA", "Newton", "LeastSquares"}
        Algorithm. "auto" takes ConjugateGradients for smooth penalties (none, ridge) and ProximalNewton for those with
        kinks, LeastSquares for Gaussian responses, with exceptions (:func:`glmfit.estimators.choose_solver` has the
        rule); the report names the one that ran.
    tol, max_epochs : float, int
        Relative gap ``(F - F*) / (F_null - F)`` per neuron at which to stop, see Notes; maximum number of steps of each
        neuron (SAGA: passes over the data).
    max_memory : float
        Bytes for rows and arrays made from them, beyond some hundred megabytes for libraries and compiled programs. A
        source of rows is loaded if it fits, and read in every pass otherwise.
    devices : None, "all" or sequence of jax.Device
        Devices that share the rows: all of ``jax.devices()``, or those given; None is jax's default one, a GPU if the
        problem is large enough for it. The result is the same within the reported gaps. SAGA runs on one of them,
        Newton on GPUs or the host, and rows that are read in every pass are fitted on the CPU.
    pad_shapes : bool
        No effect since version 0.2, which compiles nothing for shapes; the next version removes it.
    observation_model : {"Poisson", "NegativeBinomial", "Bernoulli", "Binomial", "Gaussian", "Gamma"}
        Distribution of a response given its mean, by NeMoS' names: counts whose variance is the mean, or mean +
        dispersion mean^2; yes or no, 1 or 0; counts of yes among trials, which are given as ``exposure``; measured
        values; values above 0 whose standard deviation is in proportion to the mean.
    dispersion : float or array of shape (n_neurons,), optional
        Dispersion of negative binomial counts, > 0 (NeMoS' ``scale``). By default it is estimated for every neuron by
        maximum likelihood, around fits that are certified.

    feature_mask : array of shape (n_features, n_neurons), optional
        1 where a neuron has a feature, else 0, as in NeMoS: only its own history, or no coupling filter from itself.
        Coefficients of features that a neuron does not have are 0. With a group lasso, a neuron has all features of a
        group or none. Fits with a penalty need a solver that takes kinks; those without one, "auto" or "Newton".
    l1_ratio : float
        Ratio of the elastic net, in (0, 1], unless ``regularizer_strength`` is a tuple.

    Attributes
    ----------
    coef_, intercept_ : numpy.ndarray, numpy.ndarray or float
        (n_features,) and a number for 1-D y, else (n_features, n_neurons) and (n_neurons,), float64. The intercept of a
        neuron without spikes is -1e4 (rate 0).
    strength_ : float, array or tuple
        Strength of the penalty: the one given, or the one chosen, (n_features, n_neurons).
    dispersion_ : float or numpy.ndarray
        For negative binomial counts, given or estimated (1e-6, the smallest, is as good as Poisson); for Gaussian
        responses their variance about the mean, and for gamma ones over the mean squared, estimated from the fit. A
        number for 1-D y, else (n_neurons,). Other models have none.
    n_features_in_, feature_names_in_ :
        As in scikit-learn.

    Notes
    -----
    Guarantee: for every neuron whose ``report_.gap_is_bound`` is true, ``F - F* <= report_.gap``, proved by
    generalised self-concordance or Fenchel duality from a float64 gradient, up to the stated failure probability of the
    random starts. A neuron is converged if the gap is below ``max(tol (F_null - F), 1e-2/T)`` nats per bin (the second
    term, a hundredth of a nat over the recording, tightens with ``tol`` below 1e-6; T is the number of rows of positive
    weight, with exposure times its mean over them by weight). Without a bound the report says "estimate", and the
    neuron is not called converged.
    Assumption: X is known to its last bits only. Without a penalty, a combination of features that changes over the
    rows by no more than 64 roundings of its terms counts as constant; a neuron that follows such a difference, of the
    last bits of two features, can be better than the bound says (docs/theory/spectral_basis.md).
    Passes run in float32 unless jax is in x64 mode and X is float64; objective, gap and coefficients are always
    float64. With features whose mean is 1e8 or more ``report_.objective`` loses digits, 1e-9 to 1e-3 of it; bounds
    allow for that. Rows with a NaN in X are excluded and counted. A NaN in y masks that bin for that neuron: it counts
    as not recorded, the other neurons are fitted as before, and F is the mean over the bins that count.
    Gaussian responses with a ridge are solved exactly, all neurons and strengths by one factorisation, unless neurons
    have masks of their own. Only the fit at the dispersion chosen is certified: the likelihood is not convex in the
    dispersion, and its maximum is found by a bracketed search.
    Cost: one T d^2 product, then two products of T d n_neurons a step, and T d^2 for each Hessian of a single neuron.
    Steps read only the rows that differ, if at most half of those in memory do.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(2000, 3))
    >>> counts = rng.poisson(np.logaddexp(0, X @ [0.5, -0.3, 0.0] - 1))
    >>> model = PopulationGLM().fit(X, counts)
    >>> bool(model.report_.converged.all())
    True
    >>> model.coef_.shape
    (3,)
    """

    def __init__(
        self,
        inverse_link_function: str | Callable | None = None,
        regularizer: str | None = "Ridge",
        regularizer_strength: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
        groups: ArrayLike | Mapping[str, Any] | None = None,
        solver_name: str = "auto",
        solver_kwargs: Mapping[str, Any] | None = None,
        tol: float = 1e-6,
        max_epochs: int = 200,
        random_state: Seed = 0,
        verbose: bool = False,
        max_memory: float = 2e9,
        devices: str | Sequence[jax.Device] | None = None,
        pad_shapes: bool = False,
        observation_model: str = "Poisson",
        dispersion: float | ArrayLike | None = None,
        feature_mask: ArrayLike | None = None,
        l1_ratio: float = 0.5,
    ): ...

    def fit(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
        checkpoint: str | Path | None = None,
        epochs: Mapping[Any, Any] | None = None,
        init_params: tuple[ArrayLike, ArrayLike] | None = None,
    ) -> Self:
        """Fit the coefficients of every neuron.

        Parameters
        ----------
        X : array-like of shape (time, feature)
            Features: NumPy, JAX, lists, pandas, or a pynapple TsdFrame. Dense, real, no infinities. Or a source of
            rows: a memory-mapped .npy file, an h5py or zarr array, a :class:`glmfit.design.RowSource`.
        y : array-like of shape (time,) or (time, neuron)
            Spike counts per bin, >= 0, or other responses of the observation model; also a pynapple Tsd or TsdFrame,
            whose times must be those of X, or a source of rows. NaN where a neuron was not recorded.
        sample_weight : array-like of shape (time,) or (time, neuron), optional
            Weight of each bin, of all neurons or of each, >= 0. The loss is divided by their sum, so only ratios
            matter: a common factor changes neither the fit nor the default strength. 0 masks a bin.
        offset : array-like of shape (time,) or (time, neuron), optional
            Known part of the linear predictor: eta = X coef + intercept + offset.
        exposure : array-like of shape (time,) or (time, neuron), optional
            Share of each bin that was observed, >= 0 (1 for a whole bin, 0.3 for one the recording ended in): the
            expected count is exposure times the rate. The loss is divided by the sum of weights times exposure. For
            binomial counts it is the number of trials, and must be given; other models do not accept it.
        checkpoint : str or pathlib.Path, optional
            File (.npz) to which the fit saves its progress, after a step now and then. If the file exists, the fit
            continues from it and ends with the same proof (SAGA: bit for bit as without interruption). The file is kept
            after the fit.
        epochs : dict or pynapple.TsGroup, optional
            When units were recorded, {name: IntervalSet} (or an object with a ``time_support``). Bins outside are
            masked for that unit; units that are not named count throughout. X or y must be pynapple objects.
        init_params : tuple of array, optional
            Coefficients and intercepts to start from, as ``(model.coef_, model.intercept_)`` of a fit to similar data.
            A neuron for which these are worse than a constant rate, or not finite, starts at that rate. The fit ends as
            near to an optimum, and as proved, as from any other start. If there are several optima, without a penalty,
            the start may decide which is found. Gaussian responses ignore it, and an existing checkpoint takes
            precedence.

        Raises
        ------
        ValueError
            Also for NaN in a row that is read while fitting (the row is named), and for a checkpoint of another fit.
        OSError
            If rows cannot be read; the message says which, and why. A checkpoint keeps the progress.
        KeyboardInterrupt
            If Ctrl-C came before anything was fitted, or while a dispersion was estimated; the model is unchanged.

        Warns
        -----
        ConvergenceWarning
            Once, if some neurons did not converge.
        UserWarning
            If a feature in memory has values that look like codes for missing ones (-9999), or pandas objects look like
            those of different times. Once, if the fit converged and the penalty leaves next to nothing of the
            coefficients although the features are informative (not checked if rows are read while fitting), or if a
            file whose rows are read while fitting has changed meanwhile.
        """
        with WholeFit(self):
            seed, options = self._seed(), self._read_options()
            solver = read_solver(self.solver_name, self.solver_kwargs, parameters=self._get_param_names())
            check_ratio(self.l1_ratio)
            if check_flag("pad_shapes", self.pad_shapes):
                warn_user("pad_shapes has no effect since version 0.2; the next version removes it.")
            data = read_fitted(self, X, y, sample_weight, offset, exposure, epochs, options.max_memory)
            if isinstance(data.X, RowView) and isinstance(solver, SAGA | Newton):
                raise ValueError(
                    f"solver_name is {self.solver_name!r}, but rows that are read during the fit (X is "
                    f'{data.X.given!r}) need "auto", "ConjugateGradients" (with kinks in the penalty '
                    '"ProximalNewton"), or a max_memory large enough to load them.'
                )
            mask = read_mask(self.feature_mask, data.X.shape[1], data.Y.shape[1])
            if mask is not None and self.regularizer in UNPENALISED:
                check_masked(self, data, checkpoint, init_params)
            options = replace(options, negligible=options.negligible / data.mean_exposure)  # F is per whole bin
            given = None if init_params is None else read_init_params(init_params, data, mask)
            design: dict = {}  # computed from the features alone, and pooled rows
            observation, start = self._at_dispersion(data, options, design, given)
            sought = isinstance(observation, NegativeBinomial) and self.dispersion is None
            for left in reversed(range(_MOST_MOVES)):
                form, problem = self._make_problem(data, observation, design, X)
                if mask is not None and self.regularizer in UNPENALISED:  # other penalties include it
                    solution = fit_masked(problem, form, mask, form.options(options))
                    break
                if solver is None:
                    solver = SOLVERS[choose_solver(problem)]()
                if checkpoint is not None:
                    file = Checkpoint(checkpoint, facts_of(problem, solver, self.regularizer, seed, options.tol))
                    options, checkpoint = replace(options, checkpoint=file), None
                start = start and form.start(start)
                if given is not None and start is None:
                    start = problem.no_worse_than_null(form.start(given))
                solution = solver.run(problem, start, key=key_for(solver, seed), options=form.options(options))
                start, options = form.params(solution.params), replace(options, checkpoint=None)
                if not sought or not left or solution.interrupted:
                    break
                if (dispersion := moved(data, observation, start)) is None:
                    break
                observation = observation.with_dispersion(dispersion)
            self._keep(problem, solution, data, observation, form)
            self._warn_of(problem, solution, data)
        return self

    def path(
        self,
        X: DataLike,
        y: DataLike,
        strengths: ArrayLike | None = None,
        *,
        sample_weight: PerRow | None = None,
        offset: PerRow | None = None,
        exposure: PerRow | None = None,
        epochs: Any = None,
    ) -> RegularizationPath:
        """Fit all neurons at many strengths of the penalty, from strong to weak.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure, epochs :
            As in :meth:`fit`; in memory.
        strengths : array, optional
            (strength,), or (strength, neuron) if neurons have their own; sorted for every neuron, the strongest first.
            The default is 30 for every neuron, evenly spaced in their logarithm: from the smallest strength at which it
            has no coefficients down to a thousandth, for a ridge from 1 to 1e-6.

        Returns
        -------
        RegularizationPath
            Coefficients and gaps of every fit. The estimator itself is not fitted.

        Raises
        ------
        ValueError
            If the model has no penalty or has devices; for strengths that are not numbers of at least 0.
        KeyboardInterrupt
            If Ctrl-C came before anything was fitted.

        Warns
        -----
        UserWarning
            If some fits did not converge, or Ctrl-C ended the path early.

        Notes
        -----
        Neighbouring strengths are stepped together, about fifty fits at a time, from the end of those before. Every fit
        is proved as in :meth:`fit`, to ``tol``. ``solver_name`` and ``regularizer_strength`` are not used, except for
        the ratio of an elastic net that is in its tuple. The dispersion of a negative binomial is estimated once, with
        the default ridge and all features, for all strengths.

        Examples
        --------
        >>> import numpy as np
        >>> from glmfit import PopulationGLM
        >>> rng = np.random.default_rng(0)
        >>> X = rng.normal(size=(500, 10))
        >>> counts = rng.poisson(np.logaddexp(0, X[:, :2] @ [[1.0, 0.0], [0.0, -1.0]]))
        >>> path = PopulationGLM(regularizer="Lasso").path(X, counts)
        >>> path.coef.shape, path.n_nonzero[0], bool(path.converged.all())
        ((30, 10, 2), array([0, 0]), True)
        """
        model = PopulationGLM(**self.get_params(deep=False))  # this one is not fitted
        if self.regularizer in UNPENALISED or self.devices is not None:
            given = {name: getattr(self, name) for name in ("regularizer", "devices")}
            raise ValueError(f"a path needs a penalty and no devices; the model has {shorten(given)}.")
        options = model._read_options()
        data = read_training(model, *as_arrays(X, y), sample_weight, offset, exposure, epochs)
        given = self.regularizer_strength
        ratio = given[1] if isinstance(given, tuple) and len(given) == 2 else self.l1_ratio
        penalty = penalty_family(model, data, ratio)
        return path_of(data, at_dispersion(model, data), penalty, strengths, options)

    def _warn_of(self, problem: PopulationProblem, solution: Solution, data: Training) -> None:
        """Warn of files that changed during the fit, and of a penalty that leaves nothing of the coefficients."""
        if not problem.in_memory:
            data.X.watch.warn_of_changes()
            return
        settled = np.isin(solution.status, PROVED).all() and np.any(problem.penalty.strength)
        # Predictors must not be in units of the responses; features that a neuron lacks may be the informative ones.
        if settled and not problem.observation.is_quadratic and self.feature_mask is None:
            given = name_strength(problem.penalty.strength, self.regularizer_strength is None)
            warn_if_flat(data.X, solution.params.coef, partial(residual, problem, solution.params), *given)

    def _at_dispersion(
        self, data: Training, options: LoopOptions, design: dict, given: Params | None = None
    ) -> tuple[Observation, Params | None]:
        """Choose the dispersion if the fit depends on it; also return the parameters of a nearby fit."""
        family = self._family()
        dispersion = read_dispersion(self.dispersion, family, data.Y.shape[1])
        if not isinstance(family, NegativeBinomial):
            return family, None
        if dispersion is not None:
            return family.with_dispersion(dispersion), None

        def fit(some: Training, which: np.ndarray, dispersion: np.ndarray, start: Params | None, tol: float) -> Params:
            form, problem = self._make_problem(some, family.with_dispersion(dispersion), design, which=which)
            if start is None and given is not None:
                start = problem.no_worse_than_null(form.start(Params(given.coef[:, which], given.intercept[which])))
            elif start is not None:
                start = form.start(start)
            rough = replace(options, tol=tol, verbose=False, proves=False)
            solver = SOLVERS[choose_solver(problem)]()
            solution = solver.run(problem, start, key=key_for(solver, 0), options=form.options(rough))
            if solution.interrupted:
                raise KeyboardInterrupt
            return form.params(solution.params)

        dispersion, near = most_likely(data, fit)
        return family.with_dispersion(dispersion), near

    def _make_problem(
        self, data: Training, observation: Observation, design: dict, X=None, which: np.ndarray | None = None
    ) -> tuple[StandardForm, PopulationProblem]:
        """Lay out data, whose features were given as X, and penalty of all neurons, or of the neurons ``which``.

        Sets ``strength_``, as given or chosen for these data.
        """
        devices, strength = read_devices(self.devices), self.regularizer_strength
        form = StandardForm.of(data, observation)
        names, n_neurons = getattr(self, "feature_names_in_", None), data.Y.shape[1]
        sizes = {"n_features": data.X.shape[1], "n_neurons": n_neurons}

        def make(strength):
            pair = self.regularizer == "ElasticNet" and not isinstance(strength, tuple)
            given = (strength, self.l1_ratio) if pair else strength
            return penalties.make(self.regularizer, given, **sizes, groups=self.groups, feature_names=names)

        choose = strength is None and self.regularizer == "Ridge"
        if choose:
            units = units_of(data.X, data.weights)
            strength = np.tile(units[:, None] ** 2, n_neurons)
        elif strength is None:
            strength = 0.0 if self.regularizer in (None, "UnRegularized") else 1.0
        elif isinstance(strength, tuple) and strength and strength[0] is None:
            strength = 1.0, *strength[1:]
        elif which is not None:
            strength = _of_neurons(strength, which)
        dtype = precision(data.X.dtype)
        given = {"dtype": dtype, "offset": form.offset, "devices": devices, "own": form.own}
        penalty = make(strength)
        problem = PopulationProblem(data.X, form.Y, form.observation, penalty, data.weights, **given)
        problem.design = design
        if isinstance(X, jax.Array) and (X.shape, X.dtype) == (data.X.shape, data.X.dtype):  # all rows are fitted
            problem.there = X
        if data.weights is None and data.own is None and form.Y is data.Y and observation.counts:
            problem.mean_count = data.spike_count / len(data.Y)
        if choose:
            strength = default_ridge(problem, data, units, form)
            problem.penalty, strength = make(strength), strength * form.unit
        elif not np.all(form.unit == 1) and not isinstance(penalty, penalties.NoPenalty):
            problem.penalty = make(form.strength(strength))
        if self.feature_mask is not None and self.regularizer not in UNPENALISED:
            mask = np.asarray(self.feature_mask, bool).reshape(data.X.shape[1], -1)
            problem.penalty = problem.penalty.without(~(mask if which is None else mask[:, which]))
        self.strength_ = _plain(strength)
        return form, problem

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        header["strength"] = to_json(self.strength_, "strength")

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        given = 1.0 if self.regularizer_strength is None else self.regularizer_strength  # of a file of version 0.1
        self.strength_ = _plain(from_json(header["strength"]) if "strength" in header else given)


def _of_neurons(strength, which: np.ndarray):
    """Select the strengths of some neurons; shared ones are unchanged."""
    if isinstance(strength, tuple):
        return tuple(_of_neurons(part, which) for part in strength)
    return np.asarray(strength)[..., which] if np.ndim(strength) else strength


def _plain(strength) -> float | np.ndarray | tuple:
    """Convert a strength to a float, an array, or a tuple of these."""
    if isinstance(strength, tuple):
        return tuple(map(_plain, strength))
    strength = np.array(strength, np.float64)
    return strength if strength.ndim else float(strength)


def at_dispersion(model: PopulationModel, data: Training) -> Observation:
    """Return the observation model at its dispersion, by default that of the default ridge fitted to all rows."""
    same = {name: getattr(model, name) for name in ("observation_model", "inverse_link_function", "dispersion")}
    return PopulationGLM(**same)._at_dispersion(data, model._read_options(), {})[0]


def penalty_family(model: PopulationModel, data: Training, ratio: float) -> PenaltyFamily:
    """Return the penalties of a model by their strength."""
    n_features, names = data.X.shape[1], getattr(model, "feature_names_in_", None)
    mask = read_mask(model.feature_mask, n_features, data.Y.shape[1])
    return PenaltyFamily(model.regularizer, n_features, ratio, model.groups, names, mask)
