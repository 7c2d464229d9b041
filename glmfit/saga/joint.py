"""Rows whose loss is known by its value alone, and may couple the columns: a softmax, or a loss given as code.

F(W, b) = (1/T) sum_t loss_t(W'x_t + b) + penalty(W)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ..bounds import bound_largest_eigenvalue
from ..penalties import Penalty
from ..problems._basis import basis_of
from ..problems._chunks import a_twentieth
from ..problems.base import Evaluation
from .joint_rows import JointSweep, joint_blocks, joint_spectrum, joint_sweep
from .row_metric import Metric
from .spectral_view import SpectralView


class Outlook(NamedTuple):
    """What is known at some columns."""

    v: np.ndarray
    memory: object  # warm start of the proximal step
    pass_: JointSweep
    objective: float


class JointProblem(SpectralView):
    """Data, loss of a row and penalty of a model whose columns are fitted together.

    It shares the spectral view of a population, and none of its certificates: curvatures are those at the
    present parameters, not bounds, and so is all that follows from them.

    Parameters
    ----------
    X : numpy.ndarray
        Features, (time, feature).
    Y : numpy.ndarray
        Targets, (time, target).
    loss : RowLoss
        Loss of a row given its targets and its linear predictor.
    penalty : Penalty
        Of the coefficients (feature, column).
    n_columns : int
        Columns of the linear predictor.
    dtype : numpy dtype
        Precision.
    kernels : tuple, optional
        ``(joint_sweep, joint_blocks, joint_spectrum)`` jitted by the caller, who wants them gone with the problem.
    """

    def __init__(self, X, Y, loss, penalty: Penalty, n_columns: int, dtype=np.float32, kernels=None):
        super().__init__(X, Y, loss, penalty, basis_of(X, None, penalty), dtype)
        self.n_neurons = n_columns
        self._sweep, self._blocks_of, self._spectrum = kernels or (joint_sweep, joint_blocks, joint_spectrum)

    @property
    def default_batch_size(self) -> int:
        """Rows per block: 1/20 of the recording, between 32 and 4096."""
        return a_twentieth(self.n_rows)

    def look(self, rows, v, memory) -> Outlook:
        """Take a pass over the rows."""
        pass_ = self._sweep(rows, v)
        return Outlook(v, memory, pass_, self.total(v, memory, float(pass_.loss)))

    def total(self, v, memory, loss: float) -> float:
        """Mean loss plus penalty."""
        return loss + float(np.sum(self.penalty.value(self.from_columns(v, memory).coef)))

    def metric_of(self, rows, at: Outlook) -> Metric:
        """Metric of the mean curvature, one for coupled columns: what is the same for all of them stays so."""
        bend = np.abs(np.asarray(at.pass_.bend, np.float64)).reshape(-1, self.observation.n_coupled).mean(axis=1)
        bend = np.maximum(np.repeat(bend, self.observation.n_coupled), 1e-6 * bend.max() + 1e-12)
        scale = 1 / (bend + np.asarray(rows.ridge, np.float64))
        return Metric(scale.astype(self.dtype), np.zeros_like(scale[:-1], dtype=self.dtype))

    def smoothness(self, rows, v, metric: Metric, seed: int, number: int, n_steps: int = 8) -> float:
        """Largest eigenvalue of any block's Hessian at v, in the metric."""
        start = np.random.default_rng([seed, 3, number]).normal(size=(v.size, 1))
        start = (start / np.linalg.norm(start)).astype(self.dtype)
        alpha, beta = (np.asarray(a).T for a in self._blocks_of(rows, v, metric.scale, start, n_steps=n_steps))
        return float(np.max(bound_largest_eigenvalue(alpha, beta, v.size, 1e-3 / rows.n_blocks)))

    def residual(self, at: Outlook) -> np.ndarray:
        """Gradient plus smallest subgradient in whitened coordinates, (column of v, column)."""
        params, g = self.from_columns(at.v, at.memory), np.asarray(at.pass_.gradient, np.float64)
        grad_coef = self.basis.unwhiten.T @ g[:-1] + self.basis.mean[:, None] * g[-1]
        ridge = np.asarray(self.penalty.ridge_strength, np.float64)
        return self.residual_columns(params, Evaluation(None, grad_coef + ridge * params.coef, g[-1]))

    def joint_gap(self, rows, at: Outlook, metric: Metric, n_steps: int = 16) -> float:
        """Second-order estimate ``g'H^-1 g / 2`` of the gap by Lanczos from the gradient; not a bound.

        Directions the gradient has no part in, such as a softmax's common shift of all classes, do not enter.
        """
        half = (np.sqrt(np.asarray(metric.scale, np.float64)) * self.residual(at)).reshape(-1, 1)
        norm = float(np.linalg.norm(half))
        if not 0 < norm < np.inf:
            return norm
        start = (half / norm).astype(self.dtype)
        alpha, beta = self._spectrum(rows, at.v, metric.scale, start, n_steps=n_steps)
        alpha, beta = np.asarray(alpha, np.float64), np.asarray(beta, np.float64)
        used = 1 + int(np.argmin(beta)) if np.any(beta == 0) else len(alpha)
        T = np.diag(alpha[:used]) + np.diag(beta[: used - 1], 1) + np.diag(beta[: used - 1], -1)
        values, vectors = np.linalg.eigh(T)
        floor = 1e-6 * max(abs(values[-1]), abs(values[0]), 1e-300)
        return float(norm**2 * np.sum(vectors[0] ** 2 / np.maximum(np.abs(values), floor)) / 2)
