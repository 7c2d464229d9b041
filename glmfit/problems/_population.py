"""Population GLM: data, observation and penalty, one independent convex problem per neuron.

F_n(w, b) = (1/T) sum_t weight_t phi(x_t'w + b + offset_tn; y_tn) + penalty_n(w)
"""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from ..bounds import (
    GAP_THEOREM,
    GapCertificate,
    bound_largest_eigenvalue,
    bound_smallest_eigenvalue,
    dual_gap,
    estimate_smallest_eigenvalue,
    gap_bound,
    random_start,
)
from . import _host
from ._chunks import over_chunks
from ._metric import Metric
from ._one_neuron import OneNeuron
from ._rows import (
    BlockSpectra,
    HessianSpectrum,
    Rows,
    Sweep,
    Track,
    block_spectra,
    hessian_spectrum,
    largest_change,
    predictor,
    sure_step,
    sweep,
)
from ._spectral_view import SpectralView
from .base import Evaluation, FiniteSum, Params

_HESSIAN_STEPS, _MORE_HESSIAN_STEPS = 10, 16


class PopulationProblem(SpectralView, FiniteSum, OneNeuron):
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
        Devices that share the rows of every block; default jax's default one.
    """

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
        return ~self.observation.has_optimum(self.mean_count)

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
        return Params(np.zeros((self.n_features, self.n_neurons)), self._null[0])

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

        return sum(over_chunks(chunk, self.n_rows), np.zeros((self.n_features, self.n_neurons))) / self.n_rows

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

    # ---------------------------------------------------------------- passes of the solver

    @staticmethod
    def sweep(rows: Rows, v) -> Sweep:
        """Loss, derivatives, gradient and mean curvature at v, in one pass."""
        return sweep(rows, v)

    def move(self, rows: Rows, v, anchor) -> np.ndarray:
        """``max_t |eta_t - eta_t at the anchor|``, (neuron,)."""
        return np.asarray(largest_change(rows, np.asarray(v) - np.asarray(anchor)))

    def objective(self, v, memory, pass_: Sweep) -> np.ndarray:
        """F per neuron: the loss in the solver's precision, the penalty in float64."""
        return np.asarray(pass_.loss, np.float64) + self.penalty.value(self.from_columns(v, memory).coef)

    def metric(self, rows: Rows, mean_curvature, bend=None) -> Metric:
        """Metric of mean curvature (neuron,) and, if given, of rows times curvature averaged (column - 1, neuron)."""
        # Below a thousandth of a spike in the whole recording a neuron is silent.
        least = 1e-3 / self.n_rows
        curvature = np.maximum(np.asarray(mean_curvature, np.float64), least)
        scale = 1 / (curvature + np.asarray(rows.ridge))
        centre = np.zeros_like(scale[:-1]) if bend is None else np.asarray(bend, np.float64) / curvature
        return Metric(scale.astype(self.dtype), centre.astype(self.dtype))

    def metric_at(self, rows: Rows, pass_: Sweep) -> Metric:
        """Metric of the curvature where a pass was made."""
        bend = np.asarray(pass_.bend)
        return self.metric(rows, bend[-1], bend[:-1])

    def null_metric(self, rows: Rows) -> Metric:
        """Metric with the curvature of the intercept-only model, which needs no pass."""
        return self.metric(rows, self._null[2])

    def descend_surely(self, rows: Rows, v, memory, radius: float, max_steps: int):
        """Take steps of a length proved to descend (docs/theory/self_concordance.md).

        The directions are conjugate gradients in the metric of the null model, or proximal gradient steps where
        the penalty is not smooth.

        A neuron stops once none of its eta moves by more than ``radius`` in a step: from there an anchored
        certificate holds for a while.

        Returns
        -------
        v, memory, pass_
            Columns, warm start, and the sweep at the columns.
        metric
            Of the curvature there.
        n_steps
            Steps taken.
        """
        null_metric, track = self.null_metric(rows), self._start_track(rows, v)
        n_steps, moving = 0, ~self.silent  # without spikes the rate falls for ever, step after step
        while n_steps < max_steps and moving.any():  # each neuron ends by itself, whatever the others do
            v, memory, track = sure_step(rows, v, memory, null_metric, moving, track)
            n_steps, moving = n_steps + 1, moving & (np.asarray(track.move) > radius)
        del track
        pass_ = self.sweep(rows, v)
        return v, memory, pass_, self.metric_at(rows, pass_), n_steps

    def _start_track(self, rows: Rows, v) -> Track:
        """Prepare what the first step finds."""
        # No pass at the null model; and NumPy, because every operation jax does by itself is one more to compile.
        known = rows.offset is None and not v[:-1].any()
        eta = np.broadcast_to(v[-1], (rows.n_blocks, rows.batch_size, self.n_neurons)) if known else predictor(rows, v)
        if known and self.placement.devices:
            eta = self.placement.put(eta)  # as it comes back
        return Track(eta, np.zeros_like(v), np.zeros_like(v), np.zeros_like(v[0]))

    def certify_smoothness(self, rows: Rows, v, radius, n_steps, failure_probability, seed, number, metric=None):
        """Bound the smoothness of every neuron's blocks where eta stays within ``radius`` of its value at v.

        Returns
        -------
        Smoothness
            In ``metric`` (that of the null model by default), with the ridge inside; ``full`` is the mean over
            blocks of their bounds, itself a bound because the largest eigenvalue is convex.
        """
        if np.isinf(radius).any() and np.isinf(self.observation.curvature_bound(1.0)):
            raise ValueError(
                f"the {self.observation.name} link has no global bound of its curvature: a global certificate is "
                'impossible. Use certificate="anchored".'
            )
        # Any metric is allowed; the nearer its curvature to the one at v, the better the constants.
        metric = self.null_metric(rows) if metric is None else metric
        start = self.random_column(seed, number)
        spectra = self._block_spectra(rows, v, radius.astype(self.dtype), metric, start, n_steps)
        alpha, beta = (np.moveaxis(np.asarray(a), 1, 0) for a in spectra[:2])
        share = failure_probability / (rows.n_blocks * self.n_neurons)
        block = bound_largest_eigenvalue(alpha, beta, self._dimension, share)
        kappa = estimate_smallest_eigenvalue(alpha, beta).mean(axis=0)
        row = np.asarray(spectra.row, np.float64) * (1 + 1e-5)
        return Smoothness(metric, block.mean(axis=0), block.max(axis=0), np.maximum(row, block.mean(axis=0)), kappa)

    def _block_spectra(self, rows, v, radius, metric, start, n_steps) -> BlockSpectra:
        return block_spectra(rows, v, radius, metric, start, n_steps=n_steps)

    def _hessian_spectrum(self, rows, v, metric, start, n_steps) -> HessianSpectrum:
        return hessian_spectrum(rows, v, metric, start, n_steps=n_steps)

    def estimate_gap(self, v, memory, pass_: Sweep, metric, kappa) -> np.ndarray:
        """Second-order estimate ``g'Dg / (2 kappa)`` of the gap, (neuron,); not a bound."""
        params = self.from_columns(v, memory)
        g = np.asarray(pass_.gradient, np.float64)
        grad_coef = self.basis.unwhiten.T @ g[:-1] + self.basis.mean[:, None] * g[-1]
        ridge = np.asarray(self.penalty.ridge_strength, np.float64)
        evaluation = Evaluation(None, grad_coef + ridge * params.coef, g[-1])
        return self.squared_norm(params, evaluation, metric) / (2 * np.maximum(kappa, self._unresolved))

    # ---------------------------------------------------------------- how far from the optimum

    def certify_gap(self, params: Params, *, rows, metric, failure_probability=1e-3, seed=0, number=0, thorough=False):
        """Bound ``F - F*`` of every neuron at ``params``.

        Parameters
        ----------
        params : Params
            The parameters returned to the user.
        rows, metric :
            Device rows and metric: the gradient is taken in float64, the smallest eigenvalue of all Hessians
            together by certified Lanczos in the solver's precision.
        failure_probability : float
            Over the population.
        seed, number : int
            Of the random start; a new number for every certificate of a fit.
        thorough : bool
            Whether to spend more products on the smallest eigenvalue (16 instead of 10).

        Returns
        -------
        GapCertificate

        Notes
        -----
        Cost: one or two float64 passes, and 11 or 17 passes in the solver's precision.
        Where directions of X are left out (``basis.rank``) there is a bound only if nothing is to be gained there:
        see :meth:`left_out_is_settled`.
        """
        smooth = self.penalty.smooth
        evaluation, by_duality = (self.evaluate(params), np.inf) if smooth else self.evaluate_with_dual(params)
        metric64 = Metric(*(np.asarray(part, np.float64) for part in metric))
        start = self.random_column(seed, number)
        n_steps = _MORE_HESSIAN_STEPS if thorough else _HESSIAN_STEPS
        spectrum = self._hessian_spectrum(rows, self.to_columns(params), metric, start, n_steps)
        kappa = bound_smallest_eigenvalue(
            spectrum.alpha, spectrum.beta, self._dimension, failure_probability / self.n_neurons
        )
        decrement = self.squared_norm(params, evaluation, metric64)
        leverage = np.asarray(spectrum.leverage, np.float64) * (1 + 1e-5)
        positive = np.where(kappa > 0, kappa, np.nan)
        positive = np.where(self.left_out_is_settled(params.coef), positive, np.nan)
        constant = self.observation.constant
        bound = gap_bound(decrement / positive, leverage / positive, self.penalty.penalises_all, constant)
        # Where there is no optimum, what says otherwise is rounding.
        bound = np.where(self.may_be_separable(params, np.isfinite(bound)), np.inf, bound)
        if smooth and not np.isfinite(bound).all():  # what duality knows is worth another pass
            by_duality = self.evaluate_with_dual(params)[1]
        bound = np.minimum(bound + self.rounding_of(params, evaluation.objective), by_duality)
        ritz = estimate_smallest_eigenvalue(spectrum.alpha, spectrum.beta)
        estimate = np.minimum(decrement / (2 * np.maximum(ritz, self._unresolved)), by_duality)
        return GapCertificate(
            bound,
            estimate,
            evaluation.objective,
            np.maximum(kappa, 0.0),
            np.zeros(self.n_neurons, bool),
            GAP_THEOREM,
            failure_probability,
        )

    def left_out_is_settled(self, coef) -> np.ndarray:
        """Whether nothing is to be gained along the directions of X that the basis leaves out, (neuron,)."""
        return self.basis.settles(self.penalty.rotation_invariant, coef)

    @property
    def _dimension(self) -> int:
        """Dimension of the space in which eigenvalues are sought: directions the data have, and intercept."""
        return self.basis.rank + 1

    @property
    def _unresolved(self) -> float:
        """Smallest curvature in the metric, where it is about one, that rounding lets through."""
        return float(np.finfo(self.dtype).eps)

    def random_column(self, seed: int, number: int) -> np.ndarray:
        """Random unit start on the sphere of the kept directions and the intercept, (column, 1).

        A new ``number`` for every certificate: the matrix of a later one depends on the starts before it.
        """
        start = np.zeros((self.n_features + 1, 1), self.dtype)
        kept = np.r_[: self._dimension - 1, self.n_features]
        start[kept] = random_start(np.random.default_rng([int(seed), 1, int(number)]), self._dimension, self.dtype)
        return start

    def squared_norm(self, params: Params, evaluation: Evaluation, metric) -> np.ndarray:
        """Squared norm of the residual in the inverse metric, an upper bound of the decrement times kappa."""
        columns, outside = self.residual_columns(params, evaluation)
        if not self.penalty.rotation_invariant:
            return metric.squared_norm(columns)  # no direction is left out
        ridge = np.broadcast_to(np.asarray(self.penalty.ridge_strength, np.float64), outside.shape)
        with_ridge = np.where(ridge > 0, outside**2 / np.where(ridge > 0, ridge, 1.0), 0.0)
        return metric.squared_norm(columns) + with_ridge.sum(axis=0)


class Smoothness(NamedTuple):
    """Certified smoothness in a metric, per neuron; ``kappa`` alone is an estimate."""

    metric: jax.Array
    full: np.ndarray
    block: np.ndarray
    row: np.ndarray
    kappa: np.ndarray
