"""One neuron of a population exactly: its Hessian, its Newton steps, whether it has an optimum at all."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from . import _host, _newton
from ._basis import rough_standard
from ._chunks import over_chunks
from ._recession import recedes
from .base import ExactHessian, Params

_EPS = float(np.finfo(float).eps)
_STILL = 1e-10  # root mean square of a move of standardised rows that is none
_MOST_ENTRIES = 5e7  # of a linear programme


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
        """Directions of the design that were resolved; all of them unless the basis or a neuron has shown otherwise."""
        rank = self.basis.rank if "basis" in self.__dict__ else self.n_features
        return min([rank, *(found["rank"] for found in (self._found, *self._found_of.values()) if "rank" in found)])

    def note_rank(self, rank: int | None) -> None:
        """Keep how many directions of the design one neuron's Hessian resolves; None where all that matter."""
        self._found.pop("rank", None)
        if rank is not None:
            self._found["rank"] = rank

    @cached_property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale of the coordinates in which Hessians are formed; any will do, near ones round less."""
        return rough_standard(self.X, self.weights)

    @cached_property
    def _found(self) -> dict:
        """What was found out about this problem's neuron, kept by the population however often it is selected."""
        return {}

    @cached_property
    def _found_of(self) -> dict[int, dict]:
        """`_found` of every neuron."""
        return defaultdict(dict)

    def rounding_of(self, params: Params, objective) -> np.ndarray:
        """Allow for the rounding of an objective and its gradient in float64, added to every bound, (neuron,).

        Sixteen units in the last place of the loss and of the mean count, and two of the predictor's terms.
        """
        mean, scale = self.standard
        terms = (np.abs(mean) + 3 * scale) @ np.abs(params.coef) + np.abs(params.intercept)
        with np.errstate(over="ignore", invalid="ignore"):
            return _EPS * (16 * (np.abs(objective) + self.mean_count) + 2 * self.mean_count * terms)

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
        one.__dict__["_found"] = self._found_of[neuron]
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
        """Whether one neuron has run away, and no finite optimum exists; see `may_be_separable`."""
        one = self.select(neuron)
        return one.may_be_separable(params.coef[:, neuron], params.intercept[neuron], False) and one.recedes is True

    def may_be_separable(self, coef, intercept, everywhere: bool = True) -> bool:
        """Whether one neuron looks as if it ran away: rates next to 0 in silent rows, far below those of spikes.

        In most silent rows, or, where nothing proves that there is an optimum, in some (``everywhere`` false). It may
        look so at an optimum, too; `recedes` knows.
        """
        if self.penalty.penalises_all:
            return False  # there is an optimum, however far
        silent, spikes = self._silent_and_spikes
        if not silent.any():
            return False
        eta = _host.predictor(self.X, coef, intercept)
        if self.offset is not None:
            eta = eta + self.offset[:, 0]
        low = (np.median if everywhere else np.min)(eta[silent])
        return bool(low < -20 and eta[spikes].min(initial=np.inf) > low + 10 and self.recedes is not False)

    @property
    def _silent_and_spikes(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of one neuron without and with spikes, of those that count."""
        counts = np.ones(self.n_rows, bool) if self.weights is None else self.weights > 0
        spikes = self.Y[:, 0] > 0
        return counts & ~spikes, counts & spikes

    @property
    def recedes(self) -> bool | None:
        """Whether one neuron's predictor can fall without limit at silent rows while every row with spikes keeps its.

        None where that is too much to compute. The direction is free of penalties.
        """
        if "recedes" not in self._found:
            self._found["recedes"] = self._look_for_recession()
        return self._found["recedes"]

    def _look_for_recession(self) -> bool | None:
        mean, scale = self.standard
        free = np.append(self.penalty.leaves_free(self.n_features), True)
        silent, spikes = self._silent_and_spikes

        def standardised(rows, which):
            x = np.asarray(self.X[rows][which[rows]], np.float64)
            return np.column_stack([(x - mean) / scale, np.ones(len(x))])[:, free]

        # Directions along which rows with spikes stay where they are. Triangles keep what squares would lose.
        triangles = over_chunks(lambda rows: np.linalg.qr(standardised(rows, spikes), mode="r"), self.n_rows)
        _, singular, directions = np.linalg.svd(np.linalg.qr(np.concatenate(list(triangles)), mode="r"))
        moves = np.append(singular, np.zeros(len(directions) - len(singular)))
        still = directions[moves <= _STILL * np.sqrt(spikes.sum())].T
        if not still.shape[1]:
            return False
        if silent.sum() * still.shape[1] > _MOST_ENTRIES:
            return None
        return recedes(np.concatenate(list(over_chunks(lambda rows: standardised(rows, silent) @ still, self.n_rows))))
