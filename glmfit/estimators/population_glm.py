"""The population Poisson GLM as a scikit-learn estimator."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike

from .. import observations, penalties
from ..checks import check_flag
from ..data.counts import Training
from ..engine import Newton
from ..engine.checkpoint import Checkpoint, facts_of
from ..engine.population import PopulationProblem
from ..numerics import DataLike, PerRow, Seed
from ..saga import SAGA
from .default_strength import default_ridge, name_strength, residual, units_of, warn_if_flat
from .model import WholeFit, from_json, to_json
from .parameters import SOLVERS, choose_solver, key_for, precision, read_devices, read_solver
from .population_model import PROVED, PopulationModel
from .streaming import RowView, read_fitted


class PopulationGLM(PopulationModel):
    r"""Poisson GLM of one or many neurons' spike counts, fitted to a certified distance from the optimum.

    Per neuron n, with rate f(eta) per bin and eta = X coef + intercept, it minimises

    .. math:: F_n(w, b) = \frac1T \sum_t [f(\eta_{tn}) - y_{tn}\log f(\eta_{tn})] + \text{penalty}(w)

    which is the objective of NeMoS; the defaults differ (docs/how_to/use_with_nemos.md). The intercept is never
    penalised.

    Parameters
    ----------
    inverse_link_function : {"softplus", "exp"}
        f, the rate per bin as a function of the linear predictor.
    regularizer : {"UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"} or None
        Penalty of the coefficients; None is "UnRegularized". Ridge is ``strength/2 ||w||^2``, Lasso
        ``strength ||w||_1``, ElasticNet ``strength ((1 - ratio)/2 ||w||^2 + ratio ||w||_1)``, GroupLasso
        ``strength sum_g sqrt(|g|) ||w_g||``.
    regularizer_strength : float, array or tuple, optional
        Strength >= 0: shared, per neuron (n_neurons,) or per coefficient (n_features, n_neurons), for GroupLasso per
        group (n_groups, n_neurons); for ElasticNet also ``(strength, ratio)``. The default for Ridge is chosen for
        every neuron by marginal likelihood at the model without features, times the squared half range of each
        feature, in ``strength_`` after the fit (docs/theory/default_strength.md;
        docs/decisions/0013-default-strengths.md has the measurements). It is 1.0 for the other penalties, as in NeMoS.
    groups : array of shape (n_features,) or dict, optional
        For GroupLasso: a label per feature (-1: not penalised), or name -> feature indices or column names (one, a
        list or a slice).
    solver_name : {"auto", "ConjugateGradients", "ProximalNewton", "SAGA", "Newton"}
        Algorithm. "auto" takes ConjugateGradients for smooth penalties (none, ridge) and ProximalNewton for those with
        kinks, but for some cases (:func:`glmfit.estimators.choose_solver` has the rule); the report names the one that
        ran.
    tol, max_epochs : float, int
        Relative gap ``(F - F*) / (F_null - F)`` per neuron at which to stop, see Notes; budget, in steps of each neuron
        (SAGA: passes over the data).
    max_memory : float
        Bytes for rows and what is kept of them, beyond some hundred megabytes for libraries and compiled programs; what
        rows are read from is loaded if it fits, and read in every pass otherwise.
    devices : None, "all" or sequence of jax.Device
        Devices that share the rows: all of ``jax.devices()``, or those given; None is jax's default one, a GPU if the
        problem is large enough for it. The answer is the same within the gaps reported. SAGA runs on one of them,
        Newton on GPUs or the host, and rows that are read in every pass are fitted on the CPU.
    pad_shapes : bool
        Without effect since version 0.2: nothing is compiled for shapes any more.

    Attributes
    ----------
    coef_, intercept_ : numpy.ndarray, numpy.ndarray or float
        (n_features,) and a number for 1-D y, else (n_features, n_neurons) and (n_neurons,), float64. The intercept of a
        neuron without spikes is -1e4 (rate 0).
    strength_ : float, array or tuple
        Strength of the penalty: the one given, or the one chosen, (n_features, n_neurons).
    n_features_in_, feature_names_in_ :
        As in scikit-learn.

    Notes
    -----
    Guarantee: for every neuron whose ``report_.gap_is_bound`` is true, ``F - F* <= report_.gap``, proved by
    generalised self-concordance or Fenchel duality from a float64 gradient, up to the stated failure probability of the
    random starts. A neuron is converged when that is below ``max(tol (F_null - F), 1e-2/T)`` nats per bin (the second
    term, a hundredth of a nat over the recording, tightens with ``tol`` below 1e-6; T is the number of rows of positive
    weight, with exposure times its mean over them by weight). Where there is no bound the report says "estimate", and
    the neuron is not called converged.
    Assumption: X is known to its last bits only. Without a penalty, a combination of features that changes over the
    rows by no more than 64 roundings of its terms counts as constant; a neuron that follows such a difference, of the
    last bits of two features, can be better than the bound says (docs/theory/spectral_basis.md).
    Passes run in float32 unless jax is in x64 mode and X is float64; objective, gap and coefficients are float64
    always. With features whose mean is 1e8 and more ``report_.objective`` loses digits, 1e-9 to 1e-3 of it; bounds
    allow for that. Rows with a NaN in X or y are excluded and counted.
    Cost: one T d^2 product, then two products of T d n_neurons a step, and T d^2 for each Hessian of a single neuron.

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
        inverse_link_function: str = "softplus",
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
    ): ...

    def fit(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
        checkpoint: str | Path | None = None,
    ) -> Self:
        """Fit the coefficients of every neuron.

        Parameters
        ----------
        X : array-like of shape (time, feature)
            Features: NumPy, JAX, lists, pandas, or a pynapple TsdFrame. Dense, real, no infinities. Or what rows are
            read from: a memory-mapped .npy file, an h5py or zarr array, a :class:`glmfit.design.RowSource`.
        y : array-like of shape (time,) or (time, neuron)
            Spike counts per bin, >= 0; also a pynapple Tsd or TsdFrame, whose times must be those of X, or what rows
            are read from.
        sample_weight : array-like of shape (time,), optional
            Weight of each bin, >= 0; the loss is divided by their sum, so that only ratios count: a common factor
            changes neither the fit nor the default strength.
        offset : array-like of shape (time,) or (time, neuron), optional
            Known part of the linear predictor: eta = X coef + intercept + offset.
        exposure : array-like of shape (time,), optional
            Share of each bin that was observed, >= 0 (1 for a whole bin, 0.3 for one the recording ended in): the
            expected count is exposure times the rate. The loss is divided by the sum of weights times exposure.
        checkpoint : str or pathlib.Path, optional
            File (.npz) in which the fit writes down how far it has come, after a step now and then. If it is there
            already, the fit goes on from it and ends with the same proof (SAGA: as if nothing had happened, bit for
            bit). It stays when the fit has ended.

        Raises
        ------
        ValueError
            Also for NaN in a row that is read while fitting (the row is named), and for a checkpoint of another fit.
        OSError
            If rows cannot be read: which, and why. A checkpoint keeps what was reached.

        Warns
        -----
        ConvergenceWarning
            Once, if some neurons did not converge.
        UserWarning
            Once, if the fit converged and the penalty leaves next to nothing of the coefficients although the features
            are informative (not looked at where rows are read while fitting), or if a file whose rows are read while
            fitting has changed meanwhile.
        """
        with WholeFit(self):
            seed, options = self._seed(), self._read_options()
            solver = read_solver(self.solver_name, self.solver_kwargs, parameters=self._get_param_names())
            check_flag("pad_shapes", self.pad_shapes)
            data = read_fitted(self, X, y, sample_weight, offset, exposure, options.max_memory)
            if isinstance(data.X, RowView) and isinstance(solver, SAGA | Newton):
                raise ValueError(
                    f"solver_name is {self.solver_name!r}, but rows that are read as they are fitted (X is "
                    f'{data.X.given!r}) need "auto", "ConjugateGradients" (with kinks in the penalty '
                    '"ProximalNewton"), or a max_memory large enough to load them.'
                )
            options = replace(options, negligible=options.negligible / data.mean_exposure)  # F is per whole bin
            problem = self._make_problem(data)
            if solver is None:
                solver = SOLVERS[choose_solver(problem)]()
            if checkpoint is not None:
                file = Checkpoint(checkpoint, facts_of(problem, solver, self.regularizer, seed, options.tol))
                options = replace(options, checkpoint=file)
            solution = solver.run(problem, key=key_for(solver, seed), options=options)
            self._keep(problem, solution, data)
            if not problem.in_memory:
                data.X.watch.warn_of_changes()
            elif np.isin(solution.status, PROVED).all() and np.any(problem.penalty.strength):
                given = name_strength(problem.penalty.strength, self.regularizer_strength is None)
                warn_if_flat(data.X, solution.params.coef, partial(residual, problem, solution.params), *given)
        return self

    def _make_problem(self, data: Training) -> PopulationProblem:
        """Lay out data and penalty; ``strength_`` is the strength given, or one for these data."""
        devices, strength = read_devices(self.devices), self.regularizer_strength
        observation = observations.from_inverse_link(self.inverse_link_function)
        names, n_neurons = getattr(self, "feature_names_in_", None), data.Y.shape[1]
        sizes = {"n_features": data.X.shape[1], "n_neurons": n_neurons}
        make = partial(penalties.make, self.regularizer, **sizes, groups=self.groups, feature_names=names)
        choose = strength is None and self.regularizer == "Ridge"
        if choose:
            units = units_of(data.X, data.weights)
            strength = np.tile(units[:, None] ** 2, n_neurons)
        elif strength is None:
            strength = 0.0 if self.regularizer in (None, "UnRegularized") else 1.0
        dtype = precision(data.X.dtype)
        problem = PopulationProblem(
            data.X, data.Y, observation, make(strength), data.weights, dtype, data.offset, devices
        )
        if choose:
            strength = default_ridge(problem, data, units)
            problem.penalty = make(strength)
        self.strength_ = _plain(strength)
        return problem

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        header["strength"] = to_json(self.strength_, "strength")

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        given = 1.0 if self.regularizer_strength is None else self.regularizer_strength  # of a file of version 0.1
        self.strength_ = _plain(from_json(header["strength"]) if "strength" in header else given)


def _plain(strength) -> float | np.ndarray | tuple:
    """Strength as a float, an array, or a tuple of these."""
    if isinstance(strength, tuple):
        return tuple(map(_plain, strength))
    strength = np.array(strength, np.float64)
    return strength if strength.ndim else float(strength)
