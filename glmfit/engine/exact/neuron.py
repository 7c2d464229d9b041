"""Exact treatment of one neuron of a population: Hessian, Newton steps, and whether it has an optimum at all."""

import numpy as np

from .. import passes
from ..problem import Params, Problem
from ..tiles import Columns, over_tiles
from . import newton, proximal_newton
from .recession import find_recession

_STILL = 1e-10  # root mean square of a move of standardised rows that counts as none
_NO_MOVE = 1e-13  # of the length of a row: rounding
_NEXT_TO_0, _FAR_BELOW = -20.0, 10.0  # linear predictors of a neuron that may have diverged
_STALLED = 8  # steps without a smaller estimate or a lower objective
_SURELY, _FEW = 1e-3, 2  # of the target: once estimates are below it, so many steps without progress end a fit
_GOES_ON = 0.1  # change of a predictor by a step, from which a neuron without a proof may have no optimum
_FAR = 40.0  # change of a predictor after which a rate is practically 0
_WILD, _MOST_WILD = 200.0, 20  # change of a predictor by a step; so many such steps in a row have no end
_MOST_ENTRIES = 5e7  # of a linear programme


class OneNeuron(Problem):
    """Part of a population problem that treats its neurons one by one, on the host.

    Results about a neuron are kept between selections: ``rank``, the number of directions of the design that its
    Hessian resolves if these are not all that matter, and ``recession``.
    """

    found: dict  # of this problem's neuron
    found_of: dict[int, dict]  # of every neuron

    @property
    def design_rank(self) -> int:
        """Number of resolved directions of the design; all of them unless the basis or a neuron has shown otherwise."""
        rank = self.basis.rank if "basis" in self.design else self.design.get("rank", self.n_features)
        return min([rank, *(found["rank"] for found in (self.found, *self.found_of.values()) if "rank" in found)])

    def hessian_of_one(self, at, dtype, inside=slice(None)):
        """Standardised Hessian of a one-neuron problem in some features, with the ridge; largest squared row norm."""
        mean, scale = (of_feature[inside] for of_feature in self.standard)
        ridge = np.broadcast_to(np.ravel(self.penalty.ridge_strength), self.n_features)[inside]
        X = self.X if isinstance(inside, slice) else Columns(self.X, inside)
        place = at[:-1][inside], at[-1], mean, scale, dtype, None if self.offset is None else self.offset[:, 0]
        H, reach = passes.hessian(X, self.Y[:, 0], self.weights, self.observation, *place)
        diagonal = np.arange(len(mean))
        H[diagonal, diagonal] += ridge / scale**2
        return H, reach

    def largest_move(self, change: np.ndarray) -> float:
        """``max_t |change of eta_t|`` of one neuron."""

        def tile(rows):
            return np.abs(np.asarray(self.X[rows], np.float64) @ change[:-1] + change[-1]).max()

        return float(np.max(list(over_tiles(tile, self.n_rows))))

    def finish_neuron(self, params: Params, neuron: int, target: float, most_steps: int = 50, near: bool = True):
        """Bring one neuron below its target by exact Newton steps, if they lead there; returns the last iterate."""
        one, at_once = self.select(neuron), newton if self.penalty.smooth else proximal_newton
        at = at_once.start(one, np.append(params.coef[:, neuron], params.intercept[neuron]), near)
        if near and not at.bound <= target and one.goes_on(at):
            at = one.far_along(at)
        since, best, lowest, patience, wild = 0, np.inf, np.inf, _STALLED, 0
        while not (at.bound <= target or at.stuck or since >= patience) and at.n_steps < most_steps:
            before = at.at
            at = at_once.iterate(one, at)._replace(n_steps=at.n_steps + 1)
            if near and not (self.penalty.penalises_all or self.observation.is_quadratic):
                wild = wild + 1 if one.largest_move(at.at - before) > _WILD else 0
                at = at._replace(stuck=bool(at.stuck or wild >= _MOST_WILD))
            # Far away the estimate may rise for many steps while the objective still falls.
            since = 0 if at.estimate < 0.9 * best or at.objective < lowest - 1e-2 * target else since + 1
            best, lowest = min(best, at.estimate), min(lowest, at.objective)
            patience = _STALLED if best > _SURELY * target else _FEW
        return at._replace(stuck=bool(at.stuck or since >= patience))

    def goes_on(self, at) -> bool:
        """Whether Newton steps from an iterate would not end, because a one-neuron problem `recedes`."""
        if self.penalty.penalises_all or not self.penalty.smooth or not np.isfinite(at.objective):
            return False
        step = newton.form(self, at, np.float64).system.step(at.gradient)
        return self.largest_move(step.move) > _GOES_ON and self.recedes is True

    def far_along(self, at):
        """Go from an iterate along the direction without an optimum, until rates there are practically 0."""
        way = self.recession
        there = newton.evaluate(self, at._replace(at=at.at + way * (_FAR / self.largest_move(way))))
        lower = there.objective <= at.objective
        return (newton.judge_exactly(self, there) if lower else at)._replace(stuck=True)

    def is_separable(self, neuron: int) -> bool:
        """Whether one neuron has no finite optimum, as far as `recedes` can tell."""
        return not self.penalty.penalises_all and self.select(neuron).recedes is True

    def may_be_separable(self, params: Params, among: np.ndarray | None = None) -> np.ndarray:
        """Whether neurons may have diverged, so that no bound of their gap can be trusted, (neuron,).

        Their predictors are extreme in rows that allow it (`Observation.recession`): rates near 0 in silent rows, far
        below those of rows with spikes. This can also happen at an optimum; `recedes` decides. Only the neurons
        ``among``, bool (neuron,), are examined.
        """
        among = np.ones(self.n_neurons, bool) if among is None else among
        if self.penalty.penalises_all or not among.any():
            return np.zeros(self.n_neurons, bool)  # there is an optimum, however far

        def lowest(rows):
            eta = np.asarray(self.X[rows], np.float64) @ params.coef + params.intercept
            eta = eta if self.offset is None else eta + self.offset[rows]
            counts = True if self.row_weights is None else self.row_weights[rows] > 0
            way = np.asarray(self.observation.recession(np.asarray(self.Y[rows], np.float64)))
            free, held = np.where(way > 0, -eta, eta), eta
            some = (free, way != 0), (held, way == 0)
            return [np.where(counts & which, eta, np.inf).min(axis=0) for eta, which in some]

        free, held = np.min(list(over_tiles(lowest, self.n_rows)), axis=0)
        far = among & (free < _NEXT_TO_0) & (held > free + _FAR_BELOW)
        return np.array([far[n] and self.select(n).recedes is not False for n in range(self.n_neurons)])

    @property
    def recedes(self) -> bool | None:
        """Whether one neuron's predictor can move indefinitely in some rows (`Observation.recession`), not in others.

        With counts it falls in silent rows and stays in those with spikes. None if this is too expensive to compute.
        The direction is free of penalties.
        """
        return True if isinstance(self.recession, np.ndarray) else self.recession

    @property
    def recession(self) -> np.ndarray | bool | None:
        """Direction in which it moves, (feature + 1,), intercept last; False if there is none, None if unknown."""
        if "recession" not in self.found:
            self.found["recession"] = self._look_for_recession()
        return self.found["recession"]

    def _look_for_recession(self) -> np.ndarray | bool | None:
        mean, scale = self.standard
        free = np.append(self.penalty.leaves_free(self.n_features), True)
        counts = True if self.weights is None else self.weights > 0
        way = np.asarray(self.observation.recession(np.asarray(self.Y[:, 0], np.float64)))
        goes, stays = counts & (way != 0), counts & (way == 0)

        def standardised(rows, which):
            x = np.asarray(self.X[rows][which[rows]], np.float64)
            return np.column_stack([(x - mean) / scale, np.ones(len(x))])[:, free]

        # Directions that leave the held predictors as they are. Triangles keep the precision that squares would lose.
        triangles = over_tiles(lambda rows: np.linalg.qr(standardised(rows, stays), mode="r"), self.n_rows)
        _, singular, directions = np.linalg.svd(np.linalg.qr(np.concatenate(list(triangles)), mode="r"))
        spread = np.append(singular, np.zeros(len(directions) - len(singular)))
        still = directions[spread <= _STILL * np.sqrt(stays.sum())].T
        if not still.shape[1]:
            return False
        if goes.sum() * still.shape[1] > _MOST_ENTRIES:
            return None

        def moves_of(rows):
            x = standardised(rows, goes)
            move = -way[rows][goes[rows], None] * (x @ still)
            seen = np.linalg.norm(move, axis=1) > _NO_MOVE * np.linalg.norm(x, axis=1)
            return np.where(seen[:, None], move, 0.0)

        found = find_recession(np.concatenate(list(over_tiles(moves_of, self.n_rows))))
        if not isinstance(found, np.ndarray):
            return found
        direction = np.zeros(len(free))
        direction[free] = still @ found
        direction[:-1] /= scale
        direction[-1] -= mean @ direction[:-1]
        return direction
