"""Population GLM: data, observation and penalty, one independent convex problem per neuron.

F_n(w, b) = (1/T) sum_t weight_t phi(x_t'w + b + offset_tn; y_tn) + penalty_n(w)
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import jax
import numpy as np
from numpy.typing import DTypeLike

from ..bounds import dual_gap
from ..observations import Observation
from ..penalties import Penalty
from . import _host
from ._basis import SpectralBasis, basis_of
from ._chunks import over_chunks, rows_at_once
from ._one_neuron import OneNeuron
from .base import Evaluation, Params


class PopulationProblem(OneNeuron):
    """Data, observation model and penalty of a population GLM.

    Parameters
    ----------
    X : numpy.ndarray
        Features, (time, feature), float32 or float64, finite. Or what gives rows for a slice, from several threads, and
        has ``shape``, ``dtype``, a length and ``chunk_rows``, the rows that are best read at once: they are then read
        anew in every pass.
    Y : numpy.ndarray
        Responses, (time, neuron), such as the observation model allows: counts, say. Or what gives rows, as X.
    observation : Observation
        Loss of one bin.
    penalty : Penalty
        Of the coefficients; the intercept is never penalised.
    weights : numpy.ndarray, optional
        Row weights (time,), non-negative with a positive sum; rescaled to mean one.
    dtype : numpy dtype
        Precision of the solver's passes (float32, or float64 when jax runs in x64 mode). Objectives, gaps and
        coefficients are float64 in either case.
    offset : numpy.ndarray, optional
        Known part of the linear predictor, (time, 1 or neuron), finite.
    devices : sequence of jax.Device, optional
        Devices that share the rows; default jax's default one.
    """

    def __init__(
        self,
        X: Any,
        Y: Any,
        observation: Observation,
        penalty: Penalty,
        weights: np.ndarray | None = None,
        dtype: DTypeLike = np.float32,
        offset: np.ndarray | None = None,
        devices: Sequence[jax.Device] | None = None,
    ):
        self.X, self.Y, self.observation, self.penalty = X, Y, observation, penalty
        self.dtype = np.dtype(dtype)
        self.n_rows, self.n_features = X.shape
        self.n_neurons = Y.shape[1]
        self.weights = None if weights is None else np.asarray(weights, np.float64) * (len(X) / np.sum(weights))
        self.offset, self.devices = offset, () if devices is None else tuple(devices)
        self.row_weights = None if self.weights is None else self.weights[:, None]  # one column, or one for each

    @property
    def in_memory(self) -> bool:
        """Whether rows are arrays; otherwise they are read as they are needed, a slice at a time."""
        return isinstance(self.X, np.ndarray)

    @cached_property
    def design(self) -> dict:
        """What was computed of the features alone; the problems of single neurons share it."""
        return {}

    @property
    def basis(self) -> SpectralBasis:
        """Spectral basis of the design; see docs/theory/spectral_basis.md."""
        if "basis" not in self.design:
            self.design["basis"] = basis_of(self.X, self.weights, self.penalty)
        return self.design["basis"]

    # ---------------------------------------------------------------- reference point and objective

    @cached_property
    def mean_count(self) -> np.ndarray:
        """Weighted mean response per bin, (neuron,)."""

        def chunk(rows):
            y = np.asarray(self.Y[rows], np.float64)
            return y.sum(axis=0) if self.weights is None else self.weights[rows] @ y

        return sum(over_chunks(chunk, self.n_rows)) / self.n_rows

    @property
    def silent(self) -> np.ndarray:
        """Which neurons have no optimum, whatever the features: those without spikes, bool (neuron,)."""
        return ~(self.observation.has_optimum(self.mean_count) | np.isnan(self.mean_count))

    @cached_property
    def _null(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Intercept, objective and mean curvature of the intercept-only optimum, (neuron,) each."""
        if self.offset is not None:
            return _host.fit_intercept(self.Y, self.row_weights, self.observation, self.offset)
        eta = self.observation.intercept(self.mean_count)
        return eta, self.observation.loss(self.mean_count, eta), self.observation.curvature(self.mean_count, eta)

    @property
    def n_counted(self) -> int:
        """Rows of positive weight."""
        return self.n_rows if self.weights is None else int(np.count_nonzero(self.weights))

    @property
    def kin(self) -> np.ndarray:
        """Which neuron each fit is of, (fit,)."""
        return np.arange(self.n_neurons)

    def rows_of(self, fits: np.ndarray) -> dict:
        """Return what :class:`glmfit.engine.host.HostRows` takes, for some fits."""
        return {"X": self.X, "Y": self.Y, "neuron": fits, "weights": self.row_weights, "offset": self.offset}

    def null_params(self) -> Params:
        """Intercept-only optimum, the reference point of relative gaps."""
        return Params(np.zeros((self.n_features, self.n_neurons)), self._null[0].copy())

    @property
    def null_objective(self) -> np.ndarray:
        """F of the intercept-only model, (neuron,)."""
        return self._null[1]

    @property
    def null_curvature(self) -> np.ndarray:
        """Mean curvature of the loss at the intercept-only optimum, (neuron,)."""
        return self._null[2]

    def null_gradient(self) -> np.ndarray:
        """Gradient of the mean loss at the intercept-only optimum, of centred features, (feature, neuron)."""
        eta = self._null[0]

        def chunk(rows):
            x, y = self.X[rows], np.asarray(self.Y[rows], np.float64)
            x = np.subtract(x, self.basis.mean, out=np.empty(x.shape, self.dtype), casting="same_kind")
            r = self.observation.derivative(y, eta if self.offset is None else eta + self.offset[rows])
            r = r if self.weights is None else r * self.weights[rows, None]
            return x.T @ r.astype(self.dtype, copy=False)

        return (
            sum(over_chunks(chunk, self.n_rows, rows_at_once(self.X)), np.zeros((self.n_features, self.n_neurons)))
            / self.n_rows
        )

    @cached_property
    def saturated_loss(self) -> np.ndarray:
        """Mean loss of the model that predicts every response exactly, (neuron,): no model is below it."""

        def chunk(rows):
            Y = self.Y[rows]
            spikes = Y != 0  # most bins of a recording are empty
            loss = np.full(Y.shape, 0.0 if spikes.all() else self.observation.saturated_loss(0.0))
            loss[spikes] = self.observation.saturated_loss(np.asarray(Y[spikes], np.float64))
            return loss.sum(axis=0) if self.weights is None else self.weights[rows] @ loss

        return sum(over_chunks(chunk, self.n_rows)) / self.n_rows

    def evaluate(self, params: Params, dtype=np.float64) -> Evaluation:
        """Compute objective and gradient of the smooth part on the data as given; products in ``dtype``."""
        loss, grad_coef, grad_intercept = _host.evaluate_loss(
            self.X, self.Y, self.row_weights, self.observation, params.coef, params.intercept, dtype, self.offset,
            self.shift,
        )  # fmt: skip
        ridge = np.asarray(self.penalty.ridge_strength, np.float64)
        objective = loss + np.asarray(self.penalty.value(params.coef), np.float64)
        return Evaluation(objective, grad_coef + ridge * params.coef, grad_intercept)

    def evaluate_with_dual(self, params: Params) -> tuple[Evaluation, np.ndarray]:
        """`evaluate`, and a bound of ``F - F*`` by duality, inf where there is none, (neuron,): one pass.

        Where some coefficients have no penalty, the rounding of their gradient alone takes every dual bound away.
        """
        loss, sums = _host.residual_sums(
            self.X, self.Y, self.row_weights, self.observation, params.coef, params.intercept, self.offset
        )
        ridge = np.asarray(self.penalty.ridge_strength, np.float64)
        objective = loss + np.asarray(self.penalty.value(params.coef), np.float64)
        evaluation = Evaluation(objective, sums.gradient.sum(axis=0) + ridge * params.coef, sums.residual.sum(axis=0))
        if not self.penalty.penalises_all:
            return evaluation, np.full(self.n_neurons, np.inf)
        return evaluation, dual_gap(objective, sums, self.penalty) + self.rounding_of(params, objective)

    def left_out_is_settled(self, coef) -> np.ndarray:
        """Whether nothing is to be gained along the directions of X that the basis leaves out, (neuron,)."""
        return self.basis.settles(self.penalty.rotation_invariant, coef)
