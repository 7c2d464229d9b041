"""One neuron of a population exactly: its Hessian, its Newton steps, whether it has an optimum at all."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from . import _host, _newton
from ._basis import rough_standard
from .base import ExactHessian, Params


class Finished(NamedTuple):
    """Outcome of finishing one neuron exactly."""

    params: Params
    objective: float
    bound: float
    estimate: float
    separable: bool


class OneNeuron(ExactHessian):
    """The part of a population problem that takes its neurons one by one, on the host."""

    @property
    def design_rank(self) -> int:
        """Directions of the design the data distinguish; all of them unless the basis has been computed."""
        return self.basis.rank if "basis" in self.__dict__ else self.n_features

    @cached_property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale of the coordinates in which Hessians are formed; any will do, near ones round less."""
        return rough_standard(self.X, self.weights)

    def select(self, neuron: int) -> OneNeuron:
        """Return the problem of one neuron, sharing what is known of the design."""
        if self.n_neurons == 1:
            return self
        penalty = jax.tree.map(lambda a: a[..., neuron : neuron + 1] if np.ndim(a) else a, self.penalty)
        Y = np.ascontiguousarray(self.Y[:, neuron : neuron + 1])
        _ = self.standard  # computed once for all neurons
        offset = None if self.offset is None else self.offset[:, [neuron if self.offset.shape[1] > 1 else 0]]
        one = type(self)(self.X, Y, self.observation, penalty, self.weights, self.dtype, offset, self.placement.devices)
        one.__dict__.update({k: v for k, v in self.__dict__.items() if k in ("standard", "basis")})
        return one

    def start_newton(self, params: Params, neuron: int) -> _newton.Iterate:
        """First Newton iterate of one neuron."""
        return _newton.start(self.select(neuron), params.coef[:, neuron], params.intercept[neuron])

    def newton_step(self, iterate: _newton.Iterate, neuron: int) -> _newton.Iterate:
        """One Newton step of one neuron."""
        return _newton.iterate(self.select(neuron), iterate)

    def hessian_of_one(self, coef, intercept, dtype):
        """Standardised Hessian of a one-neuron problem, ridge included, and its largest squared row norm."""
        mean, scale = self.standard
        H, reach = _host.hessian(
            self.X, self.Y[:, 0], self.weights, self.observation, coef, intercept, mean, scale, dtype,
            None if self.offset is None else self.offset[:, 0],
        )  # fmt: skip
        inside = np.arange(self.n_features)
        H[inside, inside] += np.ravel(self.penalty.ridge_strength) / scale**2
        return H, reach

    def largest_move(self, change_coef, change_intercept) -> float:
        """``max_t |change of eta_t|`` of one neuron."""
        change = _host.largest_move(self.X, np.asarray(change_coef)[:, None], np.array([change_intercept]))
        return float(change[0])

    def newton_is_cheap(self, left, final: bool) -> bool:
        """Whether the neurons left are few, or their Hessians a matter of a second or two."""
        flops = 4.0 * self.n_rows * self.n_features**2 * left.sum()
        return bool(left.sum() <= max(2, self.n_neurons // 16) or flops < (3e11 if final else 1e10))

    def finish_neuron(self, params: Params, neuron: int, target: float) -> Finished:
        """Bring one neuron below its target by exact Newton steps (bound only, where the penalty is not smooth)."""
        at = _newton.finish(self.select(neuron), params.coef[:, neuron], params.intercept[neuron], target)
        coef, intercept = params.coef.copy(), params.intercept.copy()
        coef[:, neuron], intercept[neuron] = at.coef, at.intercept
        return Finished(Params(coef, intercept), at.objective, at.bound, at.estimate, at.separable)

    def is_separable(self, params: Params, neuron: int) -> bool:
        """Whether one neuron has run away along a direction that silences it; see `is_separable_along`."""
        return self.select(neuron).is_separable_along(params.coef[:, neuron], params.intercept[neuron], False)

    def is_separable_along(self, coef, intercept, everywhere: bool = True) -> bool:
        """Whether one neuron's predictor falls without limit at silent rows while every spike keeps its rate.

        At most silent rows, or, where nothing proves that there is an optimum, at some (``everywhere`` false).
        """
        if self.penalty.penalises_all:
            return False  # there is an optimum, however far
        spikes = self.Y[:, 0] > 0
        if spikes.all():
            return False
        eta = _host.predictor(self.X, coef, intercept)
        if self.offset is not None:
            eta = eta + self.offset[:, 0]
        low = (np.median if everywhere else np.min)(eta[~spikes])
        return bool(low < -20 and eta[spikes].min() > low + 10)
