"""Start of fits: their rows, in memory or read again in every pass, and their initial parameters."""

from dataclasses import replace

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
from .result import LoopOptions
from .streamed import StreamedRows, draw

_SAMPLE = LoopOptions(tol=1e-4)  # of a fit at which another one starts
_GUIDED = 20  # rows per feature in which a neuron must be observed for the sample to guide it
_SHARE_OF_STREAMS = 0.03  # of the aim: one more step costs less than a proof


class Beginning:
    """Rows of the fits of a run, and their start: by default the models without features."""

    sample: PopulationProblem | None = None  # some of the rows in memory, if the others are read
    held_bytes: int | None = None  # of rows at a time, if they are read again in every pass
    is_of_sample = False  # whether they start at the results of fits to the sample

    def _begin(self) -> None:
        """Set the start of the fits; if rows are read in every pass, at fits to some of them."""
        problem, options, told = self.problem, self.options, self.start
        self.start, self.dtype = told or problem.null_params(), problem.dtype
        self._layout = layout_of(problem) if self.make is None else None
        if problem.in_memory:
            return
        room = options.max_memory / 8
        self.sample, self._share = draw(problem, room, self.seed)
        if problem.penalty.smooth and not (problem.penalty.penalises_all or problem.basis.is_resolved):
            self.dtype = np.dtype(np.float64)
        # Give every fit its own metric, from some rows, if there is room: it saves passes.
        self.curved |= 16.0 * problem.n_neurons * (problem.n_features + 1) ** 2 <= room
        if told is not None:
            return
        found = type(self)(self.sample, replace(_SAMPLE, max_memory=room), self.seed).run()
        if found.interrupted:
            raise KeyboardInterrupt
        settled = found.status == Status.CONVERGED  # fits that converged
        self.start = Params(*(np.where(settled, a, b) for a, b in zip(found.params, self.start, strict=True)))
        self.promised = np.where(settled, found.null_objective - found.objective, 0.0)
        self.is_of_sample = True

    def rows(self, fits: np.ndarray) -> HostRows | StreamedRows:
        """Return the rows of some fits."""
        p = self.problem
        near, pooled = self.sample or p, self.sample is None and self._layout is None and self.make is None
        given = {"observation": p.observation, "mean": p.basis.mean, "dtype": self.dtype}
        given |= near.rows_of(fits, pooled)
        if self._layout is not None:
            return DeviceRows(self._layout, **given)
        rows = HostRows(**given)
        if self.sample is None:
            return rows
        share, scale = (a[fits] if np.ndim(a) else a for a in (self._share, p.scale))
        given = {"offset": p.offset, "own": p.own, "scale": scale, "max_bytes": self.options.max_memory / 4}
        rows = StreamedRows(p.X, p.Y, rows, share, p.sets, **given)
        if p.own is not None:  # the sample hardly guides a neuron that is rarely observed
            seen = np.count_nonzero(self.sample.own, axis=0)[p.neuron[fits]]
            rows.doubt(seen < _GUIDED * (p.n_features + 1))
        self.held_bytes = rows.held_bytes + self.sample.X.nbytes + self.sample.Y.nbytes
        return rows

    def descent(self, rows: HostRows | StreamedRows, fits: np.ndarray) -> Descent:
        """Put fits at their start.

        Fits that are further from their optimum there than the sample promised begin at the null model: a fit that
        diverged on the sample would continue to diverge.
        """
        begun = self._at(rows, fits)
        worse = self.is_of_sample & ~(begun.estimate <= self.promised[fits])
        if worse.any():
            null = self.problem.null_params()
            self.start.coef[:, fits[worse]], self.start.intercept[fits[worse]] = 0, null.intercept[fits[worse]]
            begun = self._at(rows, fits)
        begun.gained = np.where(worse, 0.0, self.promised[fits])
        if self.sample is not None:
            begun.first_order, begun.aims = False, _SHARE_OF_STREAMS * begun.aims
        return begun

    def _at(self, rows: HostRows | StreamedRows, fits: np.ndarray) -> Descent:
        p, basis = self.problem, self.problem.basis
        ridge = np.broadcast_to(np.asarray(p.penalty.ridge_strength, np.float64), (p.n_features, p.n_neurons))
        ridge = ridge[:, fits]
        curvature = np.maximum(p.null_curvature[fits], 1e-3 / p.n_rows)
        coef = np.asarray(self.start.coef[:, fits], np.float64)
        at = np.vstack([coef, self.start.intercept[fits] + rows.mean @ coef])
        metric = SharedMetric(basis, curvature, (basis.whiten**2).T @ ridge)
        if self.make is not None:
            return self.make(rows, metric, ridge, at, fits)
        if p.penalty.smooth:
            kind = Descent if self._layout is None else DeviceDescent
            return kind(rows, metric, ridge, at)
        return ProximalDescent(rows, metric, ridge, select(p.penalty, fits), at)
