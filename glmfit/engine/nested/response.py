"""Responses of one neuron: the loss of its rows and the slope, for many fits at once.

Losses are evaluated in the memory of the predictors, with as few function evaluations per number as possible. With log
links and the logistic link the response enters as a factor of the predictor; with the softplus link it enters only in
rows with spikes.
"""

from typing import Self

import numpy as np

from ...observations import Bernoulli, Gamma, Observation, PoissonExp, PoissonSoftplus

_LIMIT = {np.dtype(np.float64): 690.0, np.dtype(np.float32): 80.0}  # of exponents


class Response:
    """Responses y (row,) of one neuron, with weights and a known part of the predictor, (row,) each or None.

    ``slope`` and ``loss_and_slope`` overwrite the predictors eta (row, fit) of some rows with the derivatives of the
    loss, times weights.
    """

    def __init__(self, observation: Observation, y, weights=None, offset=None):
        self.observation, self.y, self.weights, self.offset = observation, y, weights, offset

    @staticmethod
    def of(observation: Observation, y, weights=None, offset=None) -> "Response":
        """Return the fastest implementation of this loss."""
        kind = _KINDS.get(type(observation), Response)
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
        y, eta = self._y(rows, eta), self._known(rows, eta)
        return self._weighted(rows, self._slope(y, eta) if _is_ordinary(eta) else Response._slope(self, y, eta))

    def loss(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        """Sum the losses of some rows, (fit,)."""
        w = np.ones(len(eta)) if self.weights is None else self.weights[rows]
        y, eta = self._y(rows, eta), self._known(rows, eta)
        return self._loss(y, eta, w) if _is_ordinary(eta) else Response._both(self, y, eta, w)[0]

    def loss_and_slope(self, rows: slice, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Sum the losses of some rows, (fit,), and return their derivatives."""
        w = np.ones(len(eta)) if self.weights is None else self.weights[rows]
        y, eta = self._y(rows, eta), self._known(rows, eta)
        loss, slope = self._both(y, eta, w) if _is_ordinary(eta) else Response._both(self, y, eta, w)
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
        return _total(np.ones(len(c)) if self.weights is None else self.weights[rows], c)

    def _y(self, rows: slice, eta) -> np.ndarray:
        return self.y[rows].astype(eta.dtype, copy=False)

    def _known(self, rows: slice, eta: np.ndarray) -> np.ndarray:
        if self.offset is not None:
            eta += self.offset[rows, None].astype(eta.dtype, copy=False)
        return eta

    def _weighted(self, rows: slice, slope: np.ndarray) -> np.ndarray:
        if self.weights is not None:
            w = self.weights[rows]
            slope *= w[:, None].astype(slope.dtype, copy=False)
            if not w.all():
                slope[w == 0] = 0
        return slope

    def _slope(self, y, eta):
        return np.asarray(self.observation.derivative(y[:, None], eta), eta.dtype)

    def _loss(self, y, eta, w):
        return self._both(y, eta, w)[0]

    def _both(self, y, eta, w):
        loss, slope = self.observation.loss_and_derivative(y[:, None], eta)
        return _total(w, np.asarray(loss)), np.array(slope)


class _Softplus(Response):
    """Poisson counts with the softplus link: f - y log f, whose second term is needed only in rows with spikes."""

    def best_order(self, blocks):
        return np.concatenate([block.start + np.argsort(self.y[block] == 0, kind="stable") for block in blocks])

    def _slope(self, y, eta):
        at, u = _spikes(y), np.exp(eta, out=eta)
        f = np.log1p(u[at])
        np.divide(u, u + 1, out=u)
        u[at] -= np.divide(u[at] * y[at, None], f, out=f)
        return u

    def _loss(self, y, eta, w):
        at = _spikes(y)
        total = (w[at] * y[at]) @ eta[at]
        u = np.exp(eta, out=eta)
        ratio = 1 / u[at]
        np.log1p(u, out=u)
        ratio *= u[at]
        return _total(w, u) - total - (w[at] * y[at]) @ np.log(ratio, out=ratio)

    def _both(self, y, eta, w):
        at = _spikes(y)
        eta_at = eta[at].copy()
        u = np.exp(eta, out=eta)
        f = np.log1p(u)
        loss = _total(w, f) - (w[at] * y[at]) @ (eta_at + np.log(f[at] / u[at]))
        np.divide(u, u + 1, out=u)
        u[at] -= u[at] * y[at, None] / f[at]
        return loss, u


class _Exponential(Response):
    """Poisson counts with the exponential link: e^eta - y eta."""

    def _slope(self, y, eta):
        np.exp(eta, out=eta)
        eta -= y[:, None]
        return eta

    def _both(self, y, eta, w):
        linear = (w * y) @ eta
        np.exp(eta, out=eta)
        loss = _total(w, eta) - linear
        eta -= y[:, None]
        return loss, eta


class _Logistic(Response):
    """Shares of trials: log(1 + e^eta) - y eta."""

    def _slope(self, y, eta):
        u = np.exp(eta, out=eta)
        np.divide(u, u + 1, out=u)
        u -= y[:, None]
        return u

    def _both(self, y, eta, w):
        linear = (w * y) @ eta
        u = np.exp(eta, out=eta)
        loss = _total(w, np.log1p(u)) - linear
        np.divide(u, u + 1, out=u)
        u -= y[:, None]
        return loss, u


class _Gamma(Response):
    """Values above 0: y e^-eta + eta."""

    def _slope(self, y, eta):
        np.negative(eta, out=eta)
        np.exp(eta, out=eta)
        eta *= -y[:, None]
        eta += 1
        return eta

    def _both(self, y, eta, w):
        linear = w @ eta
        slope = self._slope(y, eta)
        return linear + w.sum() - _total(w, slope), slope


_KINDS = {PoissonSoftplus: _Softplus, PoissonExp: _Exponential, Bernoulli: _Logistic, Gamma: _Gamma}


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
