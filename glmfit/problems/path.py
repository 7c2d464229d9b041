"""Fits of one design along a path of strengths, to several sets of rows: one Hessian serves many of them.

Columns are (rows to be fitted to, neuron). The Hessian of a neuron is formed at a reference point, piece of rows by
piece, and those of all sets of rows are sums of pieces: docs/theory/shared_hessians.md.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..bounds import ResidualSums, dual_gap, gap_bound
from ..observations import Observation
from ..penalties import Penalty
from . import _host
from ._basis import floored_basis, spectral_basis
from ._chunks import over_chunks, over_items
from ._host import fit_intercept, rounding_of
from ._pieces import split_rows
from ._shared_hessian import SharedHessian
from .base import Params

_CHUNK = 2048  # rows summed in the precision of the data
_FEW = 0.5  # share of the features in use below which it pays to copy them
_SPOILT = 0.4  # error of a Hessian over its smallest eigenvalue, above which it is formed in double precision


class Columns(NamedTuple):
    """Which rows and which neuron every column stands for, (column,) each."""

    fold: np.ndarray
    neuron: np.ndarray

    def __getitem__(self, which):
        return Columns(self.fold[which], self.neuron[which])

    def __len__(self):
        return len(self.fold)


class Pass(NamedTuple):
    """What one pass over the rows yields, float64.

    Attributes
    ----------
    loss : numpy.ndarray
        Mean loss, (column,).
    gradient : numpy.ndarray
        Of the mean loss in coefficients and, last, intercept, (feature + 1, column).
    drift : numpy.ndarray
        Largest distance of eta from its value at the reference, over the rows that count, (column,).
    pieces : numpy.ndarray
        Gradients of the summed loss over each piece, (piece, feature + 1, column).
    sums : ResidualSums or None
        What a dual bound needs, for penalties with kinks.
    """

    loss: np.ndarray
    gradient: np.ndarray
    drift: np.ndarray
    pieces: np.ndarray
    sums: ResidualSums | None

    def take(self, which) -> Pass:
        """Keep some of the columns."""
        sums = None if self.sums is None else ResidualSums(*(a[..., which] for a in self.sums))
        return Pass(self.loss[which], self.gradient[:, which], self.drift[which], self.pieces[:, :, which], sums)


class PathProblem:
    """Data of a path of strengths, and what may be asked of it.

    Parameters
    ----------
    X, Y, observation, weights, dtype, offset :
        As in :class:`PopulationProblem`. ``dtype`` is the precision of Hessians; all else is float64.
    penalty : callable
        Penalty of a strength.
    train : numpy.ndarray
        Which rows each set holds, bool (time, fold); a set may be all of them.

    Notes
    -----
    A column's objective is the mean over the rows of its set, plus the penalty.
    """

    def __init__(
        self,
        X: np.ndarray,
        Y: np.ndarray,
        observation: Observation,
        penalty: Callable[[float], Penalty],
        train: ArrayLike,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
    ):
        self.X, self.Y, self.observation, self.penalty = X, Y, observation, penalty
        self.train = np.asarray(train, bool)
        self.n_rows, self.n_features = X.shape
        self.n_folds, self.n_neurons = self.train.shape[1], Y.shape[1]
        self.weights = None if weights is None else np.asarray(weights, np.float64)
        counted = self.train if self.weights is None else self.train * self.weights[:, None]
        self.total = counted.sum(axis=0, dtype=np.float64)  # (fold,)
        self.offset = offset
        self.smooth = penalty(1.0).smooth
        self._dtype = np.dtype(dtype)
        self._tasks, self.member = split_rows(self.train, _CHUNK)
        self._delicate: set[int] = set()  # neurons whose Hessians are formed in double precision

    @staticmethod
    def columns(fold, neuron) -> Columns:
        """Name columns by their rows and neuron."""
        return Columns(np.asarray(fold), np.asarray(neuron))

    # ---------------------------------------------------------------- reference point

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean count per bin, (fold, neuron)."""
        counted = self.train if self.weights is None else self.train * self.weights[:, None]

        def chunk(rows):
            return counted[rows].T.astype(np.float64) @ np.asarray(self.Y[rows], np.float64)

        return sum(over_chunks(chunk, self.n_rows)) / self.total[:, None]

    @cached_property
    def _null(self) -> tuple[np.ndarray, np.ndarray]:
        """Intercept and objective of the intercept-only optimum, (fold, neuron)."""
        if self.offset is None:
            intercept = self.observation.intercept(self.mean_count)
            return intercept, self.observation.loss(self.mean_count, intercept)
        found = []
        for fold, total in enumerate(self.total):
            weights = self.train[:, fold] * (1.0 if self.weights is None else self.weights) * (self.n_rows / total)
            found.append(fit_intercept(self.Y, weights, self.observation, self.offset)[:2])
        return tuple(np.array(part) for part in zip(*found, strict=True))

    @cached_property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of the model that predicts every count exactly, (fold, neuron): no model is below it."""
        counted = self.train if self.weights is None else self.train * self.weights[:, None]

        def chunk(rows):
            return counted[rows].T.astype(np.float64) @ self.observation.saturated_loss(
                np.asarray(self.Y[rows], np.float64)
            )

        return sum(over_chunks(chunk, self.n_rows)) / self.total[:, None]

    def null_params(self, columns: Columns) -> Params:
        """Intercept-only optimum."""
        intercept = self._null[0][columns.fold, columns.neuron]
        return Params(np.zeros((self.n_features, len(columns))), intercept)

    def null_objective(self, columns: Columns) -> np.ndarray:
        """F of the intercept-only model, (column,)."""
        return self._null[1][columns.fold, columns.neuron]

    def _known(self, rows, neuron) -> np.ndarray | float:
        """Offset of some rows and neurons."""
        if self.offset is None:
            return 0.0
        return self.offset[rows][:, neuron if self.offset.shape[1] > 1 else np.zeros_like(neuron)]

    @cached_property
    def basis(self):
        """Spectral basis of all rows; see docs/theory/spectral_basis.md."""
        weights = None if self.weights is None else self.weights * (self.n_rows / self.weights.sum())
        if self.smooth:
            return spectral_basis(self.X, weights)
        return floored_basis(self.X, weights, np.arange(self.n_features))

    @cached_property
    def hessian_dtype(self) -> np.dtype:
        """Precision of Hessians: single where the data are, and conditioning leaves their whitening harmless."""
        single = self.X.dtype == self._dtype == np.float32 and self.basis.tame
        return np.dtype(np.float32 if single else np.float64)

    @cached_property
    def kept(self) -> np.ndarray:
        """Directions of the basis in use, (direction,)."""
        return np.arange(self.basis.rank if self.smooth else self.n_features)

    @cached_property
    def ridge_shape(self) -> np.ndarray:
        """Hessian of ``|coef|^2 / 2`` in whitened coordinates, (column, column)."""
        whiten = self.basis.whiten[:, self.kept]
        shape = np.zeros((len(self.kept) + 1,) * 2)
        shape[:-1, :-1] = whiten.T @ whiten
        return shape

    # ---------------------------------------------------------------- passes

    def evaluate(self, columns: Columns, params: Params, at: Params) -> Pass:
        """Loss and gradient of the columns, and how far they are from references ``at`` (one per column).

        Rows that none of the columns holds are not looked at.
        """
        C, d, P = len(columns), self.n_features, len(self.member)
        where = [np.flatnonzero(self.member[p, columns.fold]) for p in range(P)]
        unique, column_of = np.unique(columns.neuron, return_inverse=True)
        first = np.array([np.flatnonzero(column_of == i)[0] for i in range(len(unique))], int)
        # One reference per neuron: its eta is computed once for all its columns.
        ref = Params(at.coef[:, first], at.intercept[first])
        # Features with no coefficient in any column leave the product: exact, whatever the penalty.
        used = np.any(params.coef != 0, axis=1) | np.any(ref.coef != 0, axis=1)
        used = np.flatnonzero(used) if used.mean() < _FEW else slice(None)
        ref = Params(ref.coef[used], ref.intercept)
        parts = [(params.coef[used][:, c], params.intercept[c], columns.neuron[c], column_of[c]) for c in where]

        def chunk(which):
            p, rows = self._tasks[which.start]
            if not len(where[p]):
                return None
            coef, intercept, neuron, of = parts[p]
            x = np.asarray(self.X[rows], np.float64)
            few = x[:, used]
            z = few @ coef + intercept
            away = np.abs(z - (few @ ref.coef + ref.intercept)[:, of])  # the offset is in both
            y = np.asarray(self.Y[rows], np.float64)[:, neuron]
            value, r = self.observation.loss_and_derivative(y, z + self._known(rows, neuron))
            w = 1.0
            if self.weights is not None:
                w = self.weights[rows][:, None]
                value, r, away = value * w, r * w, np.where(w > 0, away, 0)
            gradient = np.concatenate([x.T @ r, r.sum(axis=0)[None]])
            sums = None if self.smooth else _host.sums_of(x, r, z * r - value, w * self.observation.saturated_loss(y))
            return p, value.sum(axis=0), gradient, away.max(axis=0), sums

        loss, drift, pieces = np.zeros(C), np.zeros(C), np.zeros((P, d + 1, C))
        sums = None if self.smooth else ResidualSums(*(np.zeros((2, *shape, C)) for shape in ((), (d,), (), ())))
        for done in over_chunks(chunk, len(self._tasks), 1):
            if done is not None:
                p, value, gradient, away, some = done
                loss[where[p]] += value
                pieces[p][:, where[p]] += gradient
                drift[where[p]] = np.maximum(drift[where[p]], away)
                for whole, part in zip(sums or (), some or (), strict=True):
                    whole[..., where[p]] += part
        total = self.total[columns.fold]
        sums = None if sums is None else ResidualSums(*(a / total for a in sums))
        return Pass(loss / total, pieces.sum(axis=0) / total, drift, pieces, sums)

    def hessians(self, neurons: np.ndarray, params: Params) -> list[SharedHessian]:
        """Form the Hessians of some neurons at parameters, one column each.

        In single precision where that is harmless, and again in double where its rounding would spoil a proof.
        """
        single = self.hessian_dtype == np.float32
        first = np.array([single and n not in self._delicate for n in neurons], bool)
        made: dict[int, SharedHessian] = {}
        for dtype in (np.float32, np.float64):
            at = (
                np.flatnonzero(first)
                if dtype == np.float32
                else np.array([i for i in range(len(neurons)) if i not in made])
            )
            if not len(at):
                continue
            some = Params(params.coef[:, at], params.intercept[at])
            for i, pieces in zip(at, self._curvature(neurons[at], some, dtype), strict=True):
                new = SharedHessian(self, params.coef[:, i], params.intercept[i], pieces)
                if dtype == np.float64 or new.error(self.n_folds - 1) < _SPOILT * new.smallest(self.n_folds - 1):
                    made[int(i)] = new
                else:
                    self._delicate.add(neurons[i])
        return [made[i] for i in range(len(neurons))]

    def _curvature(self, neurons, params: Params, dtype) -> np.ndarray:
        """Sum curvature over every piece, (neuron, piece, column, column)."""
        whiten = self.basis.whiten[:, self.kept].astype(dtype)
        k = len(self.kept) + 1

        def chunk(which):
            with np.errstate(over="ignore", invalid="ignore"):  # what overflows proves nothing: see SharedHessian
                return one_chunk(*self._tasks[which.start])

        def one_chunk(p, rows):
            x = np.asarray(self.X[rows], np.float64)
            eta = x @ params.coef + params.intercept + self._known(rows, neurons)
            bend = self.observation.curvature(np.asarray(self.Y[rows], np.float64)[:, neurons], eta)
            if self.weights is not None:
                bend = bend * self.weights[rows][:, None]
            z = np.empty((len(x), k), dtype)
            # The mean is taken off in double precision: what rounding makes of it is the same in all rows.
            np.matmul((x - self.basis.mean).astype(dtype), whiten, out=z[:, :-1])
            z[:, -1] = 1
            root = np.sqrt(bend).astype(dtype)
            out, scaled = np.empty((len(neurons), k, k), dtype), np.empty_like(z)
            for i in range(len(neurons)):
                np.multiply(z, root[:, i : i + 1], out=scaled)
                np.matmul(scaled.T, scaled, out=out[i])
            return p, out

        pieces = np.zeros((len(neurons), len(self.member), k, k))
        for p, part in over_chunks(chunk, len(self._tasks), 1):
            pieces[:, p] += part
        return pieces.astype(dtype)

    @staticmethod
    def rounding(dtype) -> float:
        """Error of a sum of curvature as a share of its trace: as many products as a chunk has rows, and whitening."""
        single = np.dtype(dtype) == np.float32
        return (_CHUNK + 8) * float(np.finfo(dtype).eps) / 2 + (2e-4 if single else 0)

    @cached_property
    def reach(self) -> float:
        """Largest squared norm of a row in whitened coordinates, intercept included."""
        whiten = self.basis.whiten[:, self.kept].astype(self.hessian_dtype)

        def chunk(rows):
            z = (np.asarray(self.X[rows], np.float64) - self.basis.mean).astype(self.hessian_dtype) @ whiten
            size = np.einsum("ij,ij->i", z, z)
            return float(np.max(size if self.weights is None else np.where(self.weights[rows] > 0, size, 0)))

        return (1 + max(over_chunks(chunk, self.n_rows))) * (1 + 1e-4 if self.hessian_dtype == np.float32 else 1 + 1e-9)

    # ---------------------------------------------------------------- coordinates and certificates

    def residual(self, penalty: Penalty, coef, gradient) -> tuple[np.ndarray, np.ndarray]:
        """Gradient plus smallest subgradient in whitened coordinates, (column, fit), and its square outside, (fit,)."""
        ridge = np.asarray(penalty.ridge_strength, np.float64)
        smooth = gradient[:-1] + ridge * coef
        g = np.asarray(penalty.subgradient_residual(coef, smooth), np.float64)
        g = g - self.basis.mean[:, None] * gradient[-1]
        inside = self.basis.whiten[:, self.kept].T @ g
        outside = np.sum((g - self.basis.unwhiten[self.kept].T @ inside) ** 2, axis=0)
        return np.concatenate([inside, gradient[-1:]]), outside

    def look(self, columns: Columns, penalty: Penalty, params: Params, pass_: Pass, references, target):
        """Squared Newton decrements, and bounds of ``F - F*`` (inf where there is none), (column,) each.

        Parameters
        ----------
        columns, penalty, params, pass_ :
            Fits, their penalty, where they are and what a pass said there.
        references : list of SharedHessian
            One per column.
        target : numpy.ndarray
            Gap that matters: for those not below it at once, the smallest eigenvalue is computed and not only bounded.
        """
        ridge = float(penalty.ridge_strength)
        residual, outside = self.residual(penalty, params.coef, pass_.gradient)
        settled = self.basis.settles(self.smooth, params.coef)

        def one(i):
            fold, reference = columns.fold[i], references[i]
            decrement = reference.decrement(fold, ridge, residual[:, i])
            model = reference.model(fold, ridge)
            if not (settled[i] and model.proper):
                return decrement, np.inf
            rest = outside[i], ridge, penalty.penalises_all, reference.error(fold), pass_.drift[i]
            bound = self.bound_gap(decrement, *rest, reference.smallest(fold))
            if bound > target[i] >= decrement / 2:
                bound = min(bound, self.bound_gap(decrement, *rest, model.smallest))
            return decrement, bound

        decrement, bound = np.array(over_items(one, len(columns), len(self.kept))).reshape(-1, 2).T
        if pass_.sums is not None and penalty.penalises_all:
            objective = pass_.loss + np.asarray(penalty.value(params.coef), np.float64)
            bound = np.minimum(bound, dual_gap(objective, pass_.sums, penalty))
        mean_count = self.mean_count[columns.fold, columns.neuron]
        return decrement, bound + rounding_of(self.basis.mean, self.basis.deviation, params, pass_.loss, mean_count)

    def step(self, columns: Columns, penalty: Penalty, params: Params, gradient, references) -> Params:
        """Change of the parameters to the least of the quadratic models, penalty included."""
        if self.smooth:
            ridge = float(penalty.ridge_strength)
            residual, _ = self.residual(penalty, params.coef, gradient)

            def one(i):
                return references[i].newton_step(columns.fold[i], ridge, residual[:, i])

            v = np.array(over_items(one, len(columns), len(self.kept))).reshape(len(columns), -1).T
            coef = self.basis.whiten[:, self.kept] @ v[:-1]
            return Params(coef, v[-1] - self.basis.mean @ coef)

        def one_l1(i):
            return references[i].l1_step(columns.fold[i], penalty, params.coef[:, i], gradient[:, i])

        done = over_items(one_l1, len(columns), len(self.kept))
        coef = np.array([w for w, _ in done]).reshape(len(columns), -1).T - params.coef
        return Params(coef, np.array([b for _, b in done]) - self.basis.mean @ coef)

    def bound_gap(self, decrement, outside, ridge: float, attained: bool, error, drift, smallest) -> np.ndarray:
        """Bound ``F - F*`` of every fit, inf where there is no bound.

        Parameters
        ----------
        decrement, outside :
            ``r' H^-1 r`` with the Hessian at the reference, ridge inside; squared residual outside of the basis.
        ridge : float
            Strength of the ridge.
        attained : bool
            Whether the penalty sees to it that there is an optimum.
        error :
            Norm of what rounding may have made of that Hessian.
        drift :
            Largest distance of eta from the reference, over the rows of the fit: the Hessian at the fit is at least
            ``exp(-drift)`` of that at the reference.
        smallest :
            Smallest eigenvalue of that Hessian, or less.
        """
        rounded = error / np.maximum(smallest, np.finfo(float).tiny)
        beyond = outside / ridge if ridge > 0 and self.smooth else np.zeros_like(outside)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            growth = np.exp(drift) / np.where(rounded < 0.5, 1 - rounded, np.nan)  # infinite far away: no bound
            bound = gap_bound(growth * decrement + beyond, growth * self.reach / smallest, attained)
        return np.where(np.isfinite(bound) & (smallest > 0), bound, np.inf)
