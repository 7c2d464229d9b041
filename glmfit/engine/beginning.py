"""Where fits begin: their rows, in memory or read anew in every pass, and the parameters that they start from."""

import numpy as np

from ..status import Status
from .cg import Descent
from .devices.descent import DeviceDescent
from .devices.rows import DeviceRows
from .devices.shards import layout_of
from .host import HostRows
from .metric import SharedMetric
from .population import PopulationProblem
from .problem import Params
from .proximal import ProximalDescent, select
from .result import Solution
from .streamed import StreamedRows, draw

_SHARE_OF_STREAMS = 0.03  # of the aim: a step more costs less than a proof


class Beginning:
    """Rows of the fits of a run, and where they start: at the models without features unless told."""

    def __init__(self, run):
        problem, make = self.problem, self._make = run.problem, run.make
        self.options, self.params, self.promised = run.options, run.start or problem.null_params(), run.promised
        self._is_of_sample = False
        self.sample: PopulationProblem | None = None  # some of the rows in memory, where the others are read
        self.held_bytes: int | None = None  # of rows at a time, where they are read anew in every pass
        self.dtype, self._layout = problem.dtype, layout_of(problem) if make is None else None
        if not problem.in_memory:
            self.sample, self._share = draw(problem, run.options.max_memory / 8, run.seed)
            if problem.penalty.smooth and not (problem.penalty.penalises_all or problem.basis.is_resolved):
                self.dtype = np.dtype(np.float64)

    def take(self, found: Solution) -> None:
        """Begin where fits of the sample ended, those that came to their ends."""
        if found.interrupted:
            raise KeyboardInterrupt
        self._is_of_sample = True
        settled = found.status == Status.CONVERGED
        self.params = Params(*(np.where(settled, a, b) for a, b in zip(found.params, self.params, strict=True)))
        self.promised = np.where(settled, found.null_objective - found.objective, 0.0)

    def rows(self, fits: np.ndarray) -> HostRows | StreamedRows:
        """Return the rows of some fits."""
        p = self.problem
        near = self.sample or p
        given = {"observation": p.observation, "mean": p.basis.mean, "dtype": self.dtype} | near.rows_of(fits)
        if self._layout is not None:
            return DeviceRows(self._layout, **given)
        rows = HostRows(**given)
        if self.sample is None:
            return rows
        rows = StreamedRows(p.X, p.Y, rows, self._share, p.row_weights, p.offset, self.options.max_memory / 4)
        self.held_bytes = rows.held_bytes + self.sample.X.nbytes + self.sample.Y.nbytes
        return rows

    def descent(self, rows: HostRows | StreamedRows, fits: np.ndarray) -> Descent:
        """Put fits at their start.

        Those that are further from their optimum there than what the sample promised begin at the null model: what ran
        away on some of the rows would go on doing so.
        """
        begun = self._at(rows, fits, self.params)
        worse = self._is_of_sample & ~(begun.estimate <= self.promised[fits])
        if worse.any():
            null = self.problem.null_params()
            self.params.coef[:, fits[worse]], self.params.intercept[fits[worse]] = 0, null.intercept[fits[worse]]
            begun = self._at(rows, fits, self.params)
        begun.gained = np.where(worse, 0.0, self.promised[fits])
        if self.sample is not None:
            begun.first_order, begun.aims = False, _SHARE_OF_STREAMS * begun.aims
        return begun

    def _at(self, rows: HostRows | StreamedRows, fits: np.ndarray, start: Params) -> Descent:
        p, basis = self.problem, self.problem.basis
        ridge = np.broadcast_to(np.asarray(p.penalty.ridge_strength, np.float64), (p.n_features, p.n_neurons))
        ridge = ridge[:, fits]
        curvature = np.maximum(p.null_curvature[fits], 1e-3 / p.n_rows)
        coef = np.array(start.coef[:, fits], np.float64)
        at = coef, start.intercept[fits] + rows.mean @ coef
        metric = SharedMetric(basis, curvature, (basis.whiten**2).T @ ridge)
        if self._make is not None:
            return self._make(rows, metric, ridge, *at, fits)
        if p.penalty.smooth:
            kind = Descent if self._layout is None else DeviceDescent
            return kind(rows, metric, ridge, *at)
        return ProximalDescent(rows, metric, ridge, select(p.penalty, fits), *at)
