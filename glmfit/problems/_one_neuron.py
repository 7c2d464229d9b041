"""One neuron of a population exactly: its Hessian, its Newton steps, whether it has an optimum at all."""

from __future__ import annotations

from collections import defaultdict
from functools import cached_property
from typing import NamedTuple

import jax
import numpy as np

from . import _host, _newton, _proximal_newton
from ._basis import rough_standard
from ._chunks import chunks, over_chunks
from ._recession import recedes
from .base import Params, Problem

_STILL = 1e-10  # root mean square of a move of standardised rows that is none
_NO_MOVE = 1e-13  # of the length of a row: rounding
_FAR_FROM_0 = 8.0  # standard deviations of a feature
_NEXT_TO_0, _FAR_BELOW = -20.0, 10.0  # linear predictors of a neuron that may have run away
_STALLED = 8  # steps without a smaller estimate or a lower objective
_MOST_ENTRIES = 5e7  # of a linear programme


class Finished(NamedTuple):
    """Outcome of finishing one neuron exactly."""

    params: Params
    objective: float
    bound: float
    estimate: float
    n_steps: int
    passes: int  # over the rows
    is_stuck: bool  # no step leads any further


class OneNeuron(Problem):
    """The part of a population problem that takes its neurons one by one, on the host."""

    @property
    def design_rank(self) -> int:
        """Directions of the design that were resolved; all of them unless the basis or a neuron has shown otherwise."""
        rank = self.basis.rank if "basis" in self.design else self.n_features
        return min([rank, *(found["rank"] for found in (self._found, *self._found_of.values()) if "rank" in found)])

    def note_rank(self, rank: int | None) -> None:
        """Keep how many directions of the design one neuron's Hessian resolves; None where all that matter."""
        self._found.pop("rank", None)
        if rank is not None:
            self._found["rank"] = rank

    @property
    def standard(self) -> tuple[np.ndarray, np.ndarray]:
        """Shift and scale of the coordinates in which Hessians are formed; any will do, near ones round less."""
        if "standard" not in self.design:
            if self.in_memory:
                self.design["standard"] = rough_standard(self.X, self.weights)
            else:  # single rows are slow to read
                self.design["standard"] = self.basis.mean, self.basis.deviation
        return self.design["standard"]

    @property
    def shift(self) -> np.ndarray | None:
        """Means of features that are far from 0 for how much they vary, 0 for the others; None if no feature is."""
        if "shift" not in self.design:
            mean, scale = self.standard
            shift = np.where(np.abs(mean) > _FAR_FROM_0 * scale, mean, 0.0)
            self.design["shift"] = shift if shift.any() else None
        return self.design["shift"]

    @cached_property
    def _found(self) -> dict:
        """What was found out about this problem's neuron, kept by the population however often it is selected."""
        return {}

    @cached_property
    def _found_of(self) -> dict[int, dict]:
        """`_found` of every neuron."""
        return defaultdict(dict)

    def rounding_of(self, params: Params, objective) -> np.ndarray:
        """Allow for the rounding of an objective and its gradient in float64, added to every bound, (neuron,)."""
        return _host.rounding_of(*self.standard, params, objective, self.mean_count)

    def select(self, neuron: int) -> OneNeuron:
        """Return the problem of one neuron, sharing what is known of the design."""
        if self.n_neurons == 1:
            return self
        penalty = jax.tree.map(lambda a: a[..., neuron : neuron + 1] if np.ndim(a) else a, self.penalty)
        if self.in_memory:
            Y = np.ascontiguousarray(self.Y[:, neuron : neuron + 1])
        else:
            Y = np.concatenate([self.Y[rows][:, [neuron]] for rows in chunks(self.n_rows, 65536)])
        offset = None if self.offset is None else self.offset[:, [neuron if self.offset.shape[1] > 1 else 0]]
        one = type(self)(self.X, Y, self.observation, penalty, self.weights, self.dtype, offset, self.devices)
        one.__dict__.update(design=self.design, _found=self._found_of[neuron])
        return one

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

    def finish_neuron(
        self, params: Params, neuron: int, target: float, most_steps: int = 50, near: bool = True
    ) -> Finished:
        """Bring one neuron below its target by exact Newton steps, if they lead there."""
        one, at_once = self.select(neuron), _newton if self.penalty.smooth else _proximal_newton
        at = at_once.start(one, params.coef[:, neuron], params.intercept[neuron], near)
        n_steps, since, best, lowest = 0, 0, np.inf, np.inf
        while not (at.bound <= target or at.stuck or since >= _STALLED) and n_steps < most_steps:
            at, n_steps = at_once.iterate(one, at), n_steps + 1
            # Far away the estimate may rise for long while the objective still falls.
            since = 0 if at.estimate < 0.9 * best or at.objective < lowest - 1e-2 * target else since + 1
            best, lowest = min(best, at.estimate), min(lowest, at.objective)
        coef, intercept = params.coef.copy(), params.intercept.copy()
        coef[:, neuron], intercept[neuron] = at.coef, at.intercept
        is_stuck = bool(at.stuck or since >= _STALLED)
        return Finished(Params(coef, intercept), at.objective, at.bound, at.estimate, n_steps, at.passes, is_stuck)

    def is_separable(self, params: Params, neuron: int) -> bool:
        """Whether one neuron has no finite optimum, as far as `recedes` can tell, wherever its fit has got to."""
        return not self.penalty.penalises_all and self.select(neuron).recedes is True

    def may_be_separable(self, params: Params, among: np.ndarray | None = None) -> np.ndarray:
        """Whether neurons ran away, as far as is known: no bound of the gap is to be believed there, (neuron,).

        Their rates are next to 0 in silent rows, far below those of spikes. That may be so at an optimum, too;
        `recedes` knows. Only those ``among`` the neurons are looked at, bool (neuron,).
        """
        among = np.ones(self.n_neurons, bool) if among is None else among
        if self.penalty.penalises_all or not among.any():
            return np.zeros(self.n_neurons, bool)  # there is an optimum, however far
        weights = np.ones(self.n_rows) if self.weights is None else self.weights

        def lowest(rows):
            eta = np.asarray(self.X[rows], np.float64) @ params.coef + params.intercept
            eta = eta if self.offset is None else eta + self.offset[rows]
            eta = np.where(weights[rows, None] > 0, eta, np.inf)
            spikes = self.Y[rows] > 0
            return [np.where(which, eta, np.inf).min(axis=0) for which in (~spikes, spikes)]

        silent, spikes = np.min(list(over_chunks(lowest, self.n_rows)), axis=0)
        far = among & (silent < _NEXT_TO_0) & (spikes > silent + _FAR_BELOW)
        return np.array([far[n] and self.select(n).recedes is not False for n in range(self.n_neurons)])

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

    @property
    def has_no_optimum(self) -> bool:
        """Whether it was found out already that one neuron recedes."""
        return self._found.get("recedes") is True

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
        spread = np.append(singular, np.zeros(len(directions) - len(singular)))
        still = directions[spread <= _STILL * np.sqrt(spikes.sum())].T
        if not still.shape[1]:
            return False
        if silent.sum() * still.shape[1] > _MOST_ENTRIES:
            return None

        def moves_of(rows):
            x = standardised(rows, silent)
            move = x @ still
            seen = np.linalg.norm(move, axis=1) > _NO_MOVE * np.linalg.norm(x, axis=1)
            return np.where(seen[:, None], move, 0.0)

        return recedes(np.concatenate(list(over_chunks(moves_of, self.n_rows))))
