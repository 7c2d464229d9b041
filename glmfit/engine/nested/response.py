"""Responses of one neuron: the loss of its rows and the slope, for many fits at once.

With the softplus link, losses are evaluated in the memory of the predictors, and the response enters only in rows with
spikes: faster than by `Observation.evaluate_into`, which does not know that all fits have the same responses.
"""

from typing import Self

import numpy as np

from ...observations import Bernoulli, Observation, PoissonExp, PoissonSoftplus
from ...threads import scratch
from ..tiles import weigh

_LIMIT = {np.dtype(np.float64): 690.0, np.dtype(np.float32): 80.0}  # of exponents


class Response:
    """Responses y (row,) of one neuron, with weights and a known part of the predictor, (row,) each or None.

    ``slope`` and ``loss_and_slope`` may overwrite the predictors eta (row, fit) of some rows; derivatives are times
    weights, in memory that the next call uses again.
    """

    def __init__(self, observation: Observation, y, weights=None, offset=None):
        self.observation, self.y, self.weights, self.offset = observation, y, weights, offset

    @staticmethod
    def of(observation: Observation, y, weights=None, offset=None) -> "Response":
        """Return the fastest implementation of this loss."""
        kind = _Softplus if isinstance(observation, PoissonSoftplus) else Response
        return kind(observation, np.asarray(y, np.float64), weights, offset)

    def best_order(self, blocks: list[slice]) -> np.ndarray | None:
        """Order of rows within blocks in which losses are evaluated fastest, (row,); None if any order will do."""
        return None

    def take(self, order: np.ndarray) -> Self:
        """Return these responses in another order."""
        return type(self)(
            self.observation, *(None if a is None else a[order] for a in (self.y, self.weights, self.offset))
        )

    def slope(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        """Compute the derivatives of the loss of some rows."""
        return self._weighted(rows, self._slope(self._y(rows, eta), self._known(rows, eta)))

    def loss(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        """Sum the losses of some rows, (fit,)."""
        return self._loss(self._y(rows, eta), self._known(rows, eta), self._weights(rows))

    def loss_and_slope(self, rows: slice, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum the losses of some rows, (fit,), and return their derivatives."""
        loss, slope = self._both(self._y(rows, eta), self._known(rows, eta), self._weights(rows))
        return loss, self._weighted(rows, slope)

    def curvature(self, eta: np.ndarray, least: bool = False) -> np.ndarray:
        """Second derivative of the loss of one fit, times weights, at predictors without the known part, (row,).

        With ``least``, that of a response of 0.
        """
        eta = eta if self.offset is None else eta + self.offset
        c = np.asarray(self.observation.curvature(np.zeros_like(eta) if least else self.y, eta), np.float64)
        return c if self.weights is None else np.where(self.weights > 0, c * self.weights, 0.0)

    def bends(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        """Sum the second derivatives of the loss of some rows, (fit,)."""
        eta = self._known(rows, eta)
        c = np.asarray(self.observation.curvature(self.y[rows, None], eta), np.float64)
        return _total(self._weights(rows), c)

    def _weights(self, rows: slice) -> np.ndarray:
        return np.ones(rows.stop - rows.start) if self.weights is None else self.weights[rows]

    def _y(self, rows: slice, eta) -> np.ndarray:
        return self.y[rows].astype(eta.dtype, copy=False)

    def _known(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        if self.offset is not None:
            eta += self.offset[rows, None].astype(eta.dtype, copy=False)
        return eta

    def _weighted(self, rows: slice, slope: np.ndarray) -> np.ndarray:
        if self.weights is not None:
            weigh(slope, self.weights[rows, None].astype(slope.dtype, copy=False))
        return slope

    def _slope(self, y, eta):
        return self._evaluate(y, eta)

    def _loss(self, y, eta, w):
        return self._both(y, eta, w)[0]

    def _both(self, y, eta, w):
        loss = scratch(eta.shape, eta.dtype, "loss")
        slope = self._evaluate(y, eta, loss)
        return _total(w, loss), slope

    def _evaluate(self, y, eta, loss=None):
        slope, every = (scratch(eta.shape, eta.dtype, name) for name in ("slope", "y"))
        every[...] = y[:, None]
        self.observation.evaluate_into(every, eta, slope, None, loss)
        return slope


class _Softplus(Response):
    """Poisson counts with the softplus link: f - y log f, whose second term is needed only in rows with spikes."""

    def best_order(self, blocks):
        return np.concatenate([block.start + np.argsort(self.y[block] == 0, kind="stable") for block in blocks])

    def _slope(self, y, eta):
        if not _is_ordinary(eta):
            return super()._slope(y, eta)
        at, u = _spikes(y), np.exp(eta, out=eta)
        f = np.log1p(u[at])
        np.divide(u, u + 1, out=u)
        u[at] -= np.divide(u[at] * y[at, None], f, out=f)
        return u

    def _loss(self, y, eta, w):
        if not _is_ordinary(eta):
            return super()._loss(y, eta, w)
        at = _spikes(y)
        total = (w[at] * y[at]) @ eta[at]
        u = np.exp(eta, out=eta)
        ratio = 1 / u[at]
        np.log1p(u, out=u)
        ratio *= u[at]
        return _total(w, u) - total - (w[at] * y[at]) @ np.log(ratio, out=ratio)

    def _both(self, y, eta, w):
        if not _is_ordinary(eta):
            return super()._both(y, eta, w)
        at = _spikes(y)
        eta_at = eta[at].copy()
        u = np.exp(eta, out=eta)
        f = np.log1p(u)
        loss = _total(w, f) - (w[at] * y[at]) @ (eta_at + np.log(f[at] / u[at]))
        np.divide(u, u + 1, out=u)
        u[at] -= u[at] * y[at, None] / f[at]
        return loss, u


def curvature_is_least_at_0(observation: Observation) -> bool:
    """Whether no response has less curvature than a response of 0, at any predictor."""
    return isinstance(observation, PoissonExp | PoissonSoftplus | Bernoulli)


def _total(w: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Sum over rows; rows without weight may have any values."""
    if not w.all():
        values = np.where(w[:, None] > 0, values, 0.0)
    return w @ values


def _spikes(y: np.ndarray) -> slice | np.ndarray:
    """Rows with spikes, a slice where they come first."""
    n = np.count_nonzero(y)
    return slice(0, n) if y[:n].all() else np.flatnonzero(y)


def _is_ordinary(eta: np.ndarray) -> bool:
    """Whether exponentials of all predictors are finite, and not 0."""
    limit = _LIMIT[eta.dtype]
    return bool(eta.max(initial=0.0) <= limit and eta.min(initial=0.0) >= -limit)
