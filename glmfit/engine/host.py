"""Rows on the host: the two products of a fit, with BLAS, and the derivatives of the loss between them.

Bases and metrics are applied to small arrays, (feature, fit): rows are not whitened, and are copied only if features in
double precision are read in single precision.
"""

import copy
from typing import Self

import numpy as np

from ..bounds import ResidualSums
from ..numerics import Nonzero
from ..threads import n_cores, scratch
from .passes import sums_of
from .tiles import ALL, Tiles, column_sums, tiles_of, weigh

_MOST_ROWS = 16384  # most rows of a tile from which Hessians are formed; below, its most numbers
_MOST_OF_A_TILE = 1 << 18
_RUN = 256  # neighbouring rows drawn together
_FEW_PRODUCTS = 2e8  # in Hessians, finished before threads have started
_PROJECTIONS = 8  # estimate the size of a row to a factor of two
_ONE_IN, _MOST_DRAWN = 10, 1024  # rows from which lengths are estimated
_TRIALS, _FURTHEST, _LEAST = 2, 4.0, 0.05  # of these lengths; the longest; how far into an interval, at least
_ROOM = 2e8  # bytes for Hessians of all fits in every thread; if they take more, threads share the fits
_NEGLIGIBLE = 1e-3  # of the mean curvature: rows below it are skipped in a Hessian that only guides


class HostRows(Tiles):
    """Rows of independent fits, at their current parameters.

    Features X are (row, feature), counts Y (row, neuron), of which every fit has the column ``neuron`` (fit,). Row
    weights of mean one are (row, 1) for all fits, or (row, set), where ``rows`` (fit,) is the set of each fit. If
    neurons also have ``own`` weights (row, neuron), those of a fit are the product times its ``scale`` (fit,).
    Offsets are (row, 1 or neuron). ``mean`` (feature,) is subtracted from the features, rounded as they are: gradients
    and directions are those of centred features. ``dtype`` is the precision of the passes that guide steps.

    While ``held``, it keeps eta, a direction D = X p, and the curvature of the loss, (row, fit) each. Tiles of rows are
    shared among threads while the rows are entered as a context; BLAS keeps to one thread meanwhile.
    """

    selects = True  # whether passes of some fits, and Hessians of some rows, take less time
    coupled = False  # whether a row has one loss of all its predictors

    def _allocate(self) -> None:
        shape = self.n_rows, len(self.neuron)
        self._every = np.array_equal(self.neuron, np.arange(self.Y.shape[1]))  # then counts are views
        self._spikes: dict[tuple[int, int], Nonzero | None] = {}  # of tiles of all fits
        self._sizes: tuple[np.ndarray, np.ndarray] | None = None  # squared lengths of rows, in some units
        self._some: Self | None = None  # rows from which lengths of steps are estimated
        self.eta, self.D, self.curvature = (np.empty(shape, self.dtype) for _ in range(3))
        self.held = True  # whether eta and the curvature are those of the fits, rather than of earlier parameters
        self.passes = 0.0  # products with all rows, both ways, in units of all fits

    # ---------------------------------------------------------------- passes that guide steps

    def place(self, at) -> np.ndarray:
        """Set the parameters of all fits; return the gradient of the mean loss there."""
        coef, base = self._rounded(at)
        moves, self.held = coef.any(), True
        if not (moves or self.coupled or self.offset is not None):
            return self._place_at_one(base)

        def tile(rows):
            eta = self.eta[rows]
            if moves:
                self._predict(rows, coef, base, eta)
            else:
                eta[:] = base
            known = self._known(rows, ALL)
            if known is not None:
                eta += known.astype(self.dtype)
            return self._slopes_of(rows)

        self.passes += 0.5 * bool(moves)
        return self._sum(self._over(tile))

    def _rounded(self, at) -> tuple[np.ndarray, np.ndarray]:
        """Coefficients and constant terms of predictors, in the precision of passes."""
        with np.errstate(over="ignore", invalid="ignore"):  # the fit gives up on a predictor that overflows
            return at[:-1].astype(self.dtype), self._base(at).astype(self.dtype)

    def glance(self, at, some: np.ndarray | None = None) -> np.ndarray:
        """Compute the gradient at parameters of all fits, or of some, and keep nothing: one reading of the features."""
        coef, base = self._rounded(at)
        fits, self.held = ALL if some is None else some, False

        def tile(rows):
            eta = self._predicted(rows, fits, coef, base)
            r = self._differentiate(rows, fits, eta)
            return r.T @ self._x(rows), column_sums(r)

        share = self._share(some)
        self.passes += 0.5 * share
        return self._sum(self._over(tile, at.shape[1]), share)

    def hold(self, at) -> None:
        """Set the parameters of all fits without a gradient."""
        coef, base = self._rounded(at)

        def tile(rows):
            eta = self._predicted(rows, ALL, coef, base, self.eta[rows])
            self._differentiate(rows, ALL, eta, self.curvature[rows])

        self._over(tile)
        self.passes, self.held = self.passes + 0.5, True

    def _predicted(self, rows: slice, fits, coef, base, out=None) -> np.ndarray:
        """Predictors of some rows, in memory that is used again unless it is given."""
        eta = scratch((rows.stop - rows.start, len(base)), self.dtype, "eta") if out is None else out
        self._predict(rows, coef, base, eta)
        known = self._known(rows, fits)
        if known is not None:
            eta += known.astype(self.dtype)
        return eta

    @np.errstate(over="ignore", invalid="ignore", divide="ignore")  # of a fit far from its optimum
    def lengths(self, at, p, slope, rise) -> np.ndarray:
        """Estimate from some rows where slopes along p from parameters ``at`` vanish, (fit,).

        The ``slope`` at the start is that of all rows and of the penalty, whose second derivative is ``rise``.
        """
        if self._some is None:
            self._some = self._draw()
        rows, every, change = self._some, slice(0, self._some.n_rows), p.astype(self.dtype)
        eta = rows._predicted(every, ALL, *self._rounded(at)).copy()
        D = rows._x(every) @ change[:-1] + self._base(p).astype(self.dtype)

        def bends(length):  # by how much slopes change on the way
            r = rows._differentiate(every, ALL, eta + length.astype(self.dtype) * D)
            return np.einsum("tn,tn->n", r, D).astype(np.float64) / rows.n_rows + length * rise

        length, low, high = np.ones_like(slope), np.zeros_like(slope), np.full_like(slope, _FURTHEST)
        before, since = bends(low), slope
        for _ in range(_TRIALS):
            there = slope + bends(length) - before
            over = ~(there <= 0)
            secant = low + (length - low) * since / (since - there)
            low, since, high = np.where(over, low, length), np.where(over, since, there), np.where(over, length, high)
            secant = np.where(np.isfinite(secant), secant, (low + high) / 2)
            length = np.clip(secant, low + _LEAST * (high - low), high)
        return length

    def _draw(self) -> Self:
        """Draw a row from each of as many shares of the weight, in the order of the recording."""
        n = max(1, min(self.n_rows // _ONE_IN, _MOST_DRAWN))
        mass = np.ones(self.n_rows) if self.weights is None else self.weights.mean(axis=1)
        upto = np.cumsum(mass)
        places = (np.arange(n) + np.random.default_rng(0).uniform(size=n)) * (upto[-1] / n)
        at = np.minimum(np.searchsorted(upto, places), self.n_rows - 1)
        weights = None if self.weights is None else self.weights[at] / mass[at, None] * (upto[-1] / self.n_rows)
        offset, own = (None if a is None else a[at] for a in (self.offset, self.own))
        return self.with_rows(self.X[at], self.Y[at], weights, offset, own)

    def _place_at_one(self, base) -> np.ndarray:
        """Set one predictor of all rows of each fit, (fit,): there, derivatives are linear in the response."""
        (r0, r1), (c0, c1) = self.observation.derivatives(np.array([[0.0], [1.0]]), base[None].astype(np.float64))
        r0, dr, c0, dc = (a.astype(self.dtype) for a in (r0, r1 - r0, c0, c1 - c0))

        def tile(rows):
            y, w = self._y(rows, ALL, self.dtype), self._weight(rows, ALL)
            r, c = scratch(y.shape, self.dtype, "slope"), self.curvature[rows]
            np.multiply(y, dr, out=r)
            r += r0
            np.multiply(y, dc, out=c)
            c += c0
            self.eta[rows] = base
            if w is not None:
                w = w.astype(self.dtype)
                weigh(r, w)
                weigh(c, w)
            return r.T @ self._x(rows), column_sums(r)

        return self._sum(self._over(tile))

    def along(self, p, at: np.ndarray | None = None) -> np.ndarray:
        """Keep the predictors of a direction as D; return the mean of curvature times their squares, (fit,).

        Of the fits ``at`` if given.
        """
        coef, base = p[:-1].astype(self.dtype), self._base(p).astype(self.dtype)

        def tile(rows):
            if at is None:
                self._predict(rows, coef, base, self.D[rows])
                return self._bend(rows)
            D = np.empty((rows.stop - rows.start, len(at)), self.dtype)
            self._predict(rows, coef, base, D)
            self.D[rows, at] = D
            return np.einsum("tn,tn,tn->n", D, D, np.take(self.curvature[rows], at, axis=1))

        self.passes += 0.5 * self._share(at)
        return self._mean(self._over(tile, None if at is None else len(at)))

    def _share(self, at: np.ndarray | None) -> float:
        """Share of the fits."""
        return 1.0 if at is None else len(at) / len(self.neuron)

    def _predict(self, rows: slice, coef, base, out) -> None:
        """Write the predictors of some rows to ``out``."""
        np.matmul(self._x(rows), coef, out=out)
        out += base

    def _bend(self, rows: slice) -> np.ndarray:
        """Sum curvature times squares of D over some rows."""
        return np.einsum("tn,tn,tn->n", self.D[rows], self.D[rows], self.curvature[rows])

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Go ``step`` (fit,) along D, and return the gradient of the mean loss there; of the fits ``at`` if given."""
        step = step.astype(self.dtype)

        def tile(rows):
            shape = rows.stop - rows.start, len(step)
            eta, way = (scratch(shape, self.dtype, name) for name in ("eta", "slope"))
            if at is None:
                self.eta[rows] += np.multiply(self.D[rows], step, out=way)
                return self._slopes_of(rows)
            np.take(self.D[rows], at, axis=1, out=way, mode="clip")
            way *= step
            np.take(self.eta[rows], at, axis=1, out=eta, mode="clip")
            eta += way
            c = scratch(shape, self.dtype, "bend")
            r = self._differentiate(rows, at, eta, c)
            self.eta[rows, at], self.curvature[rows, at] = eta, c
            return r.T @ self._x(rows), column_sums(r)

        return self._sum(self._over(tile, None if at is None else len(at)), self._share(at))

    def _slopes_of(self, rows: slice):
        """Store the curvature at eta, and sum the derivatives of some rows."""
        r = self._differentiate(rows, ALL, self.eta[rows], self.curvature[rows])
        return r.T @ self._x(rows), column_sums(r)

    def furthest(self) -> np.ndarray:
        """Largest ``|eta|`` of each fit over the rows that count, (fit,)."""
        return self._largest(self.eta, ALL)

    def reach(self, at) -> np.ndarray:
        """Largest ``|D|`` of some fits over the rows that count, (fit,)."""
        return self._largest(self.D, at)

    def _largest(self, values, at) -> np.ndarray:
        parts = self._over(lambda rows: self._largest_of(values[rows][:, at], rows, at), len(self.neuron[at]))
        return np.max(parts, axis=0).astype(np.float64)

    def _largest_of(self, some, rows: slice, at) -> np.ndarray:
        """Largest size of some predictors over the rows of a tile that count."""
        w = self._weight(rows, at)
        if w is not None and len(w) > 1:
            some = np.where(w > 0, some, 0)
        size = np.maximum(some.max(axis=0), -some.min(axis=0))
        return size if w is None or len(w) > 1 else np.where(w[0] > 0, size, 0)

    def products(self, p, at: np.ndarray | None = None, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Multiply the Hessians of the mean loss by a direction, reading the rows once; return its `reach`, too.

        Of the fits ``at`` if given. If ``exact``, everything but the curvature is in float64.
        """
        base, fits = self._base(p), ALL if at is None else at
        coef = p[:-1] if exact else p[:-1].astype(self.dtype)

        def tile(rows):
            if exact:
                x, r = self._moves(rows, coef, base)
            else:
                x = self._x(rows)
                r = x @ coef
                r += base.astype(self.dtype)
            furthest = self._largest_of(r, rows, fits)
            r *= self.curvature[rows] if at is None else np.take(self.curvature[rows], at, axis=1)
            return furthest, r.T @ x, column_sums(r)

        self.passes += 0.5 * self._share(at)
        furthest, *sums = zip(*self._over(tile, p.shape[1]), strict=True)
        return self._sum(zip(*sums, strict=True), self._share(at)), np.max(furthest, axis=0).astype(np.float64)

    def centre(self) -> np.ndarray:
        """Means of curvature times centred features, then of curvature itself, (feature + 1, fit)."""

        def tile(rows):
            c = self.curvature[rows]
            return c.T @ self._x(rows), column_sums(c)

        return self._sum(self._over(tile))

    def _sum(self, parts, share: float = 1.0) -> np.ndarray:
        """Mean over the rows of sums over tiles, of a share of the fits."""
        self.passes += 0.5 * share
        return self._centred(*(self._mean(part) for part in zip(*parts, strict=True)))

    def _mean(self, parts) -> np.ndarray:
        """Mean over the rows from sums over tiles, in float64."""
        with np.errstate(invalid="ignore"):  # a non-finite fit shows by itself
            return sum(part.astype(np.float64) for part in parts) / self.n_rows

    def _centred(self, G, g) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            return np.vstack([G.T if self._shift is not None else G.T - np.outer(self.mean, g), g])

    def some(self, rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Draw runs of rows, about n in all: centred features (row, feature) and curvature (row, fit)."""
        if n >= self.n_rows // 2:
            runs = [slice(0, self.n_rows)]
        else:
            starts = np.arange(0, self.n_rows, _RUN)
            chosen = np.sort(rng.choice(len(starts), -(-n // _RUN), replace=False))
            runs = [slice(s, s + _RUN) for s in starts[chosen].tolist()]
        x = np.concatenate([self._centred_rows(run) for run in runs])
        return x, np.concatenate([self.curvature[run] for run in runs])

    def _dense(self, tile: slice) -> np.ndarray:
        return self._x(tile)

    def _centred_rows(self, rows: slice) -> np.ndarray:
        x = self._x(rows)
        return x if self._shift is not None else x - self.mean.astype(self.dtype)

    def _furthest(self, rows: slice, size: np.ndarray) -> float:
        """Largest of some sizes, (row,), over the rows that count for some fit."""
        if self.weights is None:
            return float(size.max(initial=0.0))
        return float(np.where((self.weights[rows] > 0).any(axis=1), size, 0).max(initial=0.0))

    def longest(self, unit: np.ndarray) -> tuple[float, np.ndarray]:
        """Largest norm of a centred row over ``unit`` (feature,), rounding included; mean curvature times squares."""
        if self._sizes is None or not np.array_equal(self._sizes[0], unit):  # they are those of every group of fits
            inverse = (1 / unit).astype(self.dtype)

            def sizes(rows):
                z = self._centred_rows(rows) * inverse
                return np.einsum("ij,ij->i", z, z)

            self._sizes = unit, np.concatenate(self._over(sizes))
        size = self._sizes[1]

        def tile(rows):
            return self._furthest(rows, size[rows]), size[rows] @ self.curvature[rows]

        furthest, spread = zip(*self._over(tile), strict=True)
        return float(np.sqrt(np.max(furthest))) * (1 + 1e-4), self._mean(spread) * (1 + 1e-4)

    def sampled_hessians(self, fits, scale, share: int, importance: np.ndarray, columns=None) -> list[np.ndarray]:
        """Estimate Hessians of some fits, see `hessians`, from ``share`` rows per parameter of each.

        Rows are drawn in proportion to their ``importance`` (row,), times the sum of their curvature and its mean: one
        from each of n shares of the recording, at a place that is random, since trials may repeat, but the same every
        time.
        """
        inverse, d = (1 / scale).astype(self.dtype), len(scale)
        X, mean = (self._fast, self.mean) if self._shift is None else (self.X, self._shift)
        mean, draws = mean.astype(X.dtype), np.random.default_rng(0).uniform(size=share * (d + 1))

        def estimate(k: int) -> np.ndarray:
            some = ALL if columns is None else columns[k]
            m = d if columns is None else len(some)
            n = share * (m + 1)
            c = np.asarray(self.curvature[:, fits[k]], np.float64)
            chance = importance * (c + c.mean()) * (c > 0)  # rows without weight show nothing
            total = np.cumsum(chance)
            if not (np.isfinite(total[-1]) and total[-1] > 0):
                return np.zeros((m + 1, m + 1))
            places = (np.arange(n) + draws[:n]) * (total[-1] / n)
            at = np.minimum(np.searchsorted(total, places), self.n_rows - 1)
            z = np.ones((n, m + 1), self.dtype)
            z[:, :-1] = (np.take(X, at, axis=0)[:, some] - mean[some]) * inverse[some]
            z *= np.sqrt(c[at] / chance[at] * (total[-1] / n / self.n_rows)).astype(self.dtype)[:, None]
            return (z.T @ z).astype(np.float64)

        shared = len(draws) * (d + 1) ** 2 * len(fits) > _FEW_PRODUCTS
        return list(self.each(estimate, range(len(fits))) if shared else map(estimate, range(len(fits))))

    def sizes_in(self, coordinates: np.ndarray) -> np.ndarray:
        """Estimate squared norms of ``[coordinates' (x - mean), 1]``, (row,), from a few random projections."""
        projections = np.random.default_rng(0).normal(size=(coordinates.shape[1], _PROJECTIONS))
        turn = (coordinates @ projections / np.sqrt(_PROJECTIONS)).astype(self.dtype)

        def tile(rows):
            z = self._centred_rows(rows) @ turn
            return np.einsum("ij,ij->i", z, z)

        return 1 + np.concatenate(self._over(tile)).astype(np.float64)

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Hessians of some fits in centred features over ``scale``, or in ``columns`` of each, intercept last."""
        inverse, d = (1 / scale).astype(self.dtype)[:, None], len(scale)
        mean = self.mean.astype(self.dtype)[:, None]
        least = (_NEGLIGIBLE * self.curvature.mean(axis=0, dtype=np.float64)).astype(self.dtype)
        columns = [np.append(some, d) for some in columns] if columns is not None else [ALL] * len(fits)
        tiles = tiles_of(self.n_rows, int(np.clip(_MOST_OF_A_TILE // (d + 1), 512, _MOST_ROWS)))

        def sums(some_tiles: list[slice], share: slice) -> list[np.ndarray]:
            totals = [np.zeros((d + 1 if some is ALL else len(some),) * 2) for some in columns[share]]
            for tile in some_tiles:
                x = np.empty((d + 1, tile.stop - tile.start), self.dtype)  # one feature per row: fast to select
                x[:-1] = self._dense(tile).T
                if self._shift is None:
                    x[:-1] -= mean
                x[:-1] *= inverse
                x[-1] = 1
                for fit, some, total in zip(fits[share], columns[share], totals, strict=True):
                    c = self.curvature[tile, fit]
                    rows = np.flatnonzero(c > least[fit])
                    if len(rows) < len(c) // 2:
                        z = np.take(x[some], rows, axis=1)
                        z *= np.sqrt(c[rows])
                    else:
                        z = x[some] * np.sqrt(c)
                    total += z @ z.T
            return totals

        shared = self._pool is not None and self.n_rows * (d + 1) ** 2 * len(fits) > _FEW_PRODUCTS
        n_threads = n_cores() if shared else 1
        if 8 * n_threads * sum((d + 1 if some is ALL else len(some)) ** 2 for some in columns) <= _ROOM:
            parts = list(self.each(lambda i: sums(tiles[i::n_threads], slice(None)), range(n_threads)))
            totals = [sum(of_fit) for of_fit in zip(*parts, strict=True)]
        else:
            totals = [np.empty(0)] * len(fits)
            for i, found in enumerate(self.each(lambda i: sums(tiles, slice(i, None, n_threads)), range(n_threads))):
                totals[i::n_threads] = found
        return [total / self.n_rows for total in totals]

    # ---------------------------------------------------------------- passes that results rest on

    def evaluate(self, at, dual: bool = False) -> tuple[np.ndarray, np.ndarray, ResidualSums | None]:
        """Compute mean loss and gradient in float64, with sums for a bound if ``dual``; update eta and curvature."""
        base, observation, self.held = self._base(at), self.observation, True

        def tile(rows):
            x, own, eta = self._predictors(rows, at[:-1], base)
            self.eta[rows] = eta
            y, spikes = self._responses(rows, ALL, np.float64, whole=dual)
            return sums_of(observation, x, own, eta, y, self._weight(rows, ALL), dual, self.curvature[rows], spikes)

        parts = self._over(tile, at.shape[1])
        self.passes += 1 + dual / 2
        loss, G, g, *rest = (self._mean(part) for part in zip(*parts, strict=True))
        return loss, self._centred(G, g), ResidualSums(*rest) if dual else None

    def put(self, at) -> None:
        """Set the parameters of all fits, with predictors in float64, without a gradient."""
        base, self.held = self._base(at), True

        def tile(rows):
            self.eta[rows] = self._predictors(rows, at[:-1], base)[2]
            self._differentiate(rows, ALL, self.eta[rows], self.curvature[rows])

        self._over(tile)

    def _predictors(self, rows: slice, coef, base):
        """Features, their part of the predictor, and the predictor, in float64."""
        x, own = self._moves(rows, coef, base)
        known = self._known(rows, ALL)
        return x, own, own if known is None else own + known

    def _moves(self, rows: slice, coef, base) -> tuple[np.ndarray, np.ndarray]:
        """Features, and their part of the predictor, in float64."""
        x = scratch((rows.stop - rows.start, len(coef)), np.float64, "x")
        np.subtract(self.X[rows], 0 if self._shift is None else self._shift, out=x, dtype=np.float64)  # no rounding
        own = np.matmul(x, coef, out=scratch((len(x), coef.shape[1]), np.float64, "own"))
        own += base
        return x, own

    # ---------------------------------------------------------------- which fits

    def split(self, *indices: np.ndarray) -> list[Self]:
        """Return rows for the fits of each index array, in the memory of these rows, which are invalid afterwards."""
        ends = np.cumsum([self.n_rows * len(index) for index in indices])

        def divided(memory):
            return [piece.reshape(self.n_rows, -1) for piece in np.split(memory.reshape(-1), ends)[:-1]]

        def taken(values, memory):
            pieces = divided(memory)

            def tile(rows):
                for piece, index in zip(pieces, indices, strict=True):
                    np.take(values[rows], index, axis=1, out=piece[rows], mode="clip")  # else it is buffered

            self._over(tile)
            return pieces

        parts = [copy.copy(self) for _ in indices]
        if self.held:
            memory = taken(self.eta, self.D), taken(self.curvature, self.eta), divided(self.curvature)
        else:
            memory = tuple(divided(array) for array in (self.eta, self.curvature, self.D))
        for part, index, *arrays in zip(parts, indices, *memory, strict=True):
            part.eta, part.curvature, part.D = arrays
            part.neuron = self.neuron[index]
            part.rows, part.scale = (None if a is None else a[index] for a in (self.rows, self.scale))
            part.passes, part._every, part._spikes, part._some = 0.0, False, {}, None
        return parts
