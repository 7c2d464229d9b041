"""Some fits of a population that are stepped together: Newton steps, strengths chosen on the way, and the proof."""

import numpy as np

from ...bounds import gap_bound
from ...status import Status
from ..problem import Params
from ..result import stopping_target
from ..small_systems import solve_bounded, times
from .evidence import FLOOR, SINGLE_FLOOR, Quadratic, optimum, with_penalty
from .search import derivatives, free_of_bounds, improve, in_chunks, range_of_strengths, with_uncertain_strengths

_ROUGH, _SETTLED = 0.1, (5e-3, 3e-4)  # nats: gradient of the criterion by log strengths, far away and near
_FIRST, _ENOUGH = 6, 50.0  # rounds on some of the rows, for neurons with more than this many spikes there
_STEPS = 1, 4, 8  # of the strengths at each Hessian: far away, near, and in double precision at the end
_STILL = 0.02, 5e-4  # nats of the criterion below which strengths have hardly changed
_FAR = 10.0  # nats still missing, above which strengths are not worth many steps
_CLOSE = 30.0  # nats from which on the evidence takes into account how Hessians bend
_NEAR = 0.5, 0.1  # nats, twice, of a step after which Hessians are those of the optimum, in double precision
_WATCHED = 0.1  # nats from which on steps are measured
_PATIENCE = 20  # rounds after which some fits are proved although others are still far
_SLACK, _SINGLE_SLACK = (1e-6, 1e-3), 3e-5  # of objectives: share and nats; share in single precision
_MANY = 12  # rounds after which fits are stepped in double precision, and their strengths have a reach
_LEAST_REACH = 0.02  # of log strengths; or half their last step if the criterion has turned, else twice that step
_LEVEL = 0.05  # nats: slope of the criterion at which fits that take long may end
_PROOFS, _MOST_PROOFS = 8, 20  # maximum number of passes in double precision for each Hessian; and of Hessians
_INFLATED = 1e-6
_MOVED = 2e-3, 2e-5  # twice the nats of the last step above which another Hessian is formed
_CHEAP = 2e6  # rows times coordinates below which the second of two numbers is used
_ROUNDING = 16 * np.finfo(float).eps  # of penalties
_MOST_UNCERTAIN = 20  # maximum number of strengths whose uncertainty is taken into account
_DEFINITE = 1e-6  # least diagonal of the Cholesky factor of a scaled Hessian that proves something


class Group:
    """Some fits of a population; arguments are those of `SmoothPopulation.fit`, which they fill in."""

    def __init__(self, population, fits, strengths, options, outcome, bar):
        self.of, self.fits, self.choose = population, fits, strengths is None
        self.options, self.outcome, self.bar = options, outcome, bar
        self.space, self.observation, self.parts = population.space, population.problem.observation, population.parts
        n, p = len(fits), self.space.n_coordinates
        cheap = population.problem.n_rows * p < _CHEAP
        self._near, self._moved, self._settled, self._still = (of[cheap] for of in (_NEAR, _MOVED, _SETTLED, _STILL))
        self.inside = None if population.inside is None else population.inside[fits]
        self.at = outcome.coordinates[fits]
        self.rho = np.zeros((n, self.space.n_penalties))  # logarithms of strengths, of losses in nats times the scale
        if strengths is not None:
            with np.errstate(divide="ignore"):
                self.rho = np.log(strengths[:, fits].T * population.n_observed[fits, None])
        self.low, self.high = np.full((2, *self.rho.shape), np.nan)
        self.change = np.zeros(self.rho.shape)  # of log strengths in the last round
        self.scale, self.inverse = np.ones(n), np.zeros((n, p + 1, p + 1))
        self.bend, self.is_bent = np.zeros((n, p + 1)), np.zeros(n, bool)
        self.gain = np.full(n, np.inf)  # twice the nats by which the last step changes the loss, by its Hessian
        self.exact = np.full(n, self.observation.is_quadratic)  # whether single precision is not enough
        self.trust, self.n_rounds, self.n_proofs = np.ones(n), np.zeros(n, int), np.zeros(n, int)
        self.frozen = np.full(n, not self.choose)  # whether strengths stay as they are
        self.last, self.objective = self.at.copy(), np.full(n, np.inf)  # before the last step
        self.judged = np.full((4, n), np.nan)  # objective, gap, whether that is a bound, and below the target

    def run(self) -> None:
        """Choose strengths, go to the optimum and prove it."""
        active, near = self._start(), np.zeros(0, int)
        try:
            for round_ in range(1, self.options.max_epochs + 1):
                is_near = self._round(active)
                near, active = np.union1d(near, active[is_near]), active[~is_near]
                # All at once, unless some take long: rows of few fits cost as much to prepare.
                last = round_ % _PATIENCE == 0 or round_ == self.options.max_epochs
                if len(near) and (last or not len(active)):
                    near, active = near[:0], np.union1d(active, self._finish(near))
                if not len(active):
                    break
        finally:
            left = np.union1d(active, near)
            left = left[self.n_proofs[left] == 0]  # the others are concluded
            fits = self.fits[left]
            self.outcome.objective[fits] = self.objective[left] / self.of.per_row[fits]
            self.outcome.gap[fits] = 0.5 * self.gain[left] / self.of.per_row[fits]
            self._write(left)

    def _start(self) -> np.ndarray:
        """Take the first steps on some of the rows, if these are informative enough; returns all fits."""
        every = np.arange(len(self.fits))
        if self.of.some is None:
            return every
        self.parts = [self.of.some]
        some = every[self.of.some.size_of_responses()[self.fits] > _ENOUGH]
        for _ in range(_FIRST):
            if len(some):
                self._round(some)
                some = some[self.gain[some] > _FAR]
        self.parts, self.objective[:], self.gain[:] = self.of.parts, np.inf, np.inf
        self.last[:] = self.outcome.coordinates[self.fits]  # point to go back to if other rows reject this one
        return every

    # ---------------------------------------------------------------- on the way

    def _round(self, active: np.ndarray) -> np.ndarray:
        """Choose strengths by new Hessians, and step; returns which fits are then near their optimum, bool (fit,)."""
        model, loss = self._look(active)
        was_exact = self.exact.copy()
        objective = loss + self._penalty(active, self.at[active])
        slack = _SLACK[1] + np.where(self.exact[active], _SLACK[0], _SINGLE_SLACK) * np.abs(objective)
        fine = np.isfinite(objective) & (objective <= self.objective[active] + slack)
        near = np.zeros(len(active), bool)
        near[fine] = self._step(active[fine], model if fine.all() else model.take(np.flatnonzero(fine)), loss[fine])
        back = active[~fine]  # if the last step led uphill, half of it is undone
        self.exact[back] |= self.gain[back] < _FAR  # which may be rounding
        again = self.exact[back] & ~was_exact[back]
        half = 0.5 * (self.last[back] + self.at[back])
        self.at[back], self.gain[back] = np.where(again[:, None], self.last[back], half), np.inf
        self.trust[back] = 1.0
        self.n_rounds[active] += 1
        self.exact[active[self.n_rounds[active] > _MANY]] = True
        self.objective[self.exact & ~was_exact] = np.inf  # in single precision it may be too low
        self.outcome.rounds[self.fits[active]] += 1
        return near

    def _step(self, some, model: Quadratic, loss: np.ndarray) -> np.ndarray:
        """Choose strengths of some fits by their models, and step; returns which are then near optimal, bool (fit,)."""
        if not len(some):
            return np.zeros(0, bool)
        still = self._choose(some, model)
        self.objective[some] = loss + self._penalty(some, self.at[some])
        step = times(self.inverse[some], model.z) - self.at[some]
        gain = np.einsum("ni,ni->n", step, times(model.hessian, step))  # all that matters: penalties are quadratic
        wrong = ~(gain + 2 * self._penalty(some, step) >= 0)  # a Hessian in single precision that is not definite
        gain = np.maximum(gain, 0.0)
        self.exact[some[wrong]] = True
        step[wrong], gain[wrong] = 0.0, np.inf
        length, watched = np.ones(len(some)), np.flatnonzero(gain > _WATCHED)
        if len(watched):
            length[watched] = self.of.lengths(step[watched], self.trust[some[watched]], self.parts)
        self.trust[some] = np.where(length < 1, 2 * self.trust[some], 1.0)
        self.last[some], self.gain[some] = self.at[some], gain
        self.at[some] += length[:, None] * step
        return (gain <= self._near) & still & (self.is_bent[some] | self.frozen[some])

    def _look(self, active: np.ndarray, at_end: bool = False) -> tuple[Quadratic, np.ndarray]:
        """Return quadratic models of losses at the point of some fits, and the losses."""
        # Near the optimum the evidence takes into account that Hessians follow it.
        bent = self.choose & (self.gain[active] < _CLOSE) & (not at_end)
        exact = self.exact[active] | at_end
        kinds = [(np.flatnonzero((bent == a) & (exact == b)), a, b) for a in (True, False) for b in (True, False)]
        kinds = [kind for kind in kinds if len(kind[0])]
        looks = [self._sums(active[of], bend, np.float64 if double else np.float32) for of, bend, double in kinds]
        order = np.argsort(np.concatenate([of for of, *_ in kinds]))
        loss, gradient, H = (np.concatenate(of)[order] for of in zip(*looks, strict=True))
        z, inside = times(H, self.at[active]) - gradient, None if self.inside is None else self.inside[active]
        bend = self.bend[active] if self.choose else None
        return Quadratic(H, z, bend, inside, np.where(exact, FLOOR, SINGLE_FLOOR)), loss

    def _sums(self, some, bend: bool, dtype) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Compute losses, gradients and Hessians; stores the bend of the Hessians, and the scale of responses."""
        packed, fits = self._packed(some) if bend else None, self.fits[some]
        looks = [self.of.sums(rows, self.at[some], fits, dtype, packed) for rows in self.parts]
        loss, gradient, square, H = (sum(parts[1:], parts[0]) for parts in list(zip(*looks, strict=True))[:4])
        if bend:
            self.is_bent[some], self.bend[some] = True, sum(look.bend for look in looks)
        if self.observation.has_scale:  # Pearson's statistic estimates it
            degrees = np.einsum("nij,nji->n", self.inverse[some], H)
            self.scale[some] = np.maximum(square, 1e-300) / np.maximum(self.of.per_row[fits] - degrees, 1.0)
        return loss, gradient, H

    def _packed(self, some) -> np.ndarray:
        """Pack inverses of Hessians for leverages, (pair, fit)."""
        back, pack = self.of.back, self.of.parts[0].pack
        packed = in_chunks(lambda of: pack(back @ self.inverse[some[of]] @ back.T).T, len(some))
        return np.ascontiguousarray(packed.T)

    def _optimum(self, model: Quadratic, some) -> tuple[np.ndarray, np.ndarray]:
        """Optima of quadratic models at the strengths of some fits, and inverses of their Hessians."""
        strengths = np.exp(self.rho[some])
        return in_chunks(lambda of: optimum(model.take(of), self.space, strengths[of])[:2], len(some))

    def _penalty(self, some, at) -> np.ndarray:
        """Penalties of parameters (fit, coordinate + 1) at the strengths of some fits, (fit,)."""
        return self.space.value(np.exp(self.rho[some]), at[:, :-1])

    def _choose(self, some, model: Quadratic, at_end: bool = False) -> np.ndarray:
        """Improve strengths by quadratic models; returns which have hardly changed, bool (fit,)."""
        frozen, still = self.frozen[some], np.ones(len(some), bool)
        if frozen.any():
            self.inverse[some[frozen]] = self._optimum(model.take(frozen), some[frozen])[1]
            if frozen.all():
                return still
            some, model = some[~frozen], model.take(~frozen)
        new = np.isnan(self.low[some]).any(axis=1)
        if new.any():
            ranges = range_of_strengths(self.space, model.hessian[new])
            self.rho[some[new]], self.low[some[new]], self.high[some[new]] = ranges
        model, log = self._in_nats(some, model)
        before, reach = self.rho[some] - log, self._reach(some, model, log)
        bounds = self.low[some] - log, self.high[some] - log
        far = not np.any(self.gain[some] < _FAR)
        rho, best, gained = improve(
            model, self.space, before, *bounds, _ROUGH if far else self._settled, _STEPS[2 * at_end or not far], reach
        )
        self.rho[some], self.inverse[some] = rho + log, best.inverse / np.exp(log)[..., None]
        self.change[some] = rho - before
        free = free_of_bounds(best.gradient, rho, *bounds)
        level = np.abs(np.where(free, best.gradient, 0.0)).max(axis=1, initial=0.0) <= _LEVEL
        still[~frozen] = (gained <= self._still) & (level | np.isinf(reach[:, 0]))
        self.frozen[some] = self.n_rounds[some] >= self.options.max_epochs // 2  # the rest is for the proof
        return still

    def _reach(self, some, model: Quadratic, log: np.ndarray) -> np.ndarray:
        """Limit the change of log strengths of fits that take long, lest they go in circles: (fit, 1)."""
        reach, slow = np.full((len(some), 1), np.inf), np.flatnonzero(self.n_rounds[some] >= _MANY)
        if len(slow):
            which = some[slow]
            gradient, _ = derivatives(model.take(slow), self.space, self.rho[which] - log[slow])
            change = self.change[which]
            turned = np.einsum("nj,nj->n", gradient, change) > 0
            last = np.abs(change).max(axis=1, initial=0.0)
            reach[slow, 0] = np.maximum(np.where(turned, 0.5, 2.0) * last, _LEAST_REACH)
        return reach

    def _in_nats(self, some, model: Quadratic) -> tuple[Quadratic, np.ndarray]:
        """Models of losses over their scale, and the logarithms of the scales, (fit, 1)."""
        scale = self.scale[some]
        if not np.any(scale != 1):
            return model, np.zeros((len(some), 1))
        scaled = model._replace(hessian=model.hessian / scale[:, None, None], z=model.z / scale[:, None])
        return scaled, np.log(scale)[:, None]

    # ---------------------------------------------------------------- at the end

    def _finish(self, some: np.ndarray) -> np.ndarray:
        """Prove fits in double precision; returns those that are not settled, or too far for a proof by one Hessian."""
        model, loss = self._look(some, at_end=True)
        self.objective[some] = loss
        still = self._choose(some, model, at_end=True)
        back, some = some[~still], some[still]
        self.objective[back] = np.inf  # of other strengths
        if not len(some):
            return back
        model = model.take(still) if len(back) else model
        anchor = self.last[some] = self.at[some]
        self.objective[some] += self._penalty(some, anchor)
        self.at[some], self.inverse[some] = self._optimum(model, some)
        step = self.at[some] - anchor
        moved = np.einsum("ni,ni->n", step, times(model.hessian, step))  # if large, strengths chosen there may be off
        A, reach = self._hessians(model, some)
        left = np.arange(len(some))
        for _ in range(_PROOFS):
            left = self._prove(some, left, anchor, A, reach, model)
            if not len(left):
                break
        self.at[some[left]] = self.last[some[left]]  # best points of the fits that are not proved
        self.n_proofs[some] += 1
        few = self.n_proofs[some] < _MOST_PROOFS
        again = left[(np.isfinite(reach) & few)[left]]
        if self.choose:
            again = np.union1d(again, np.flatnonzero((moved > self._moved) & few & ~self.frozen[some]))
        self.exact[some[again]] = True
        self.frozen[some] |= self.n_proofs[some] >= _MOST_PROOFS // 2
        self._conclude(some, model)
        return np.union1d(back, some[again])

    def _hessians(self, model: Quadratic, some) -> tuple[np.ndarray, np.ndarray]:
        """Hessians of penalised losses, and bounds of the largest squared norm of a row, inf if not definite."""
        strengths, turn = np.exp(self.rho[some]), self.of.back
        A = with_penalty(model, self.space, strengths)

        def part(of):
            sizes = np.sum((turn @ self.inverse[some[of]]) * turn, axis=2)
            return np.sqrt(np.maximum(sizes, 0.0)), is_definite(A[of])

        sizes, definite = in_chunks(part, len(some))
        longest = np.max([rows.longest(sizes.T * (1 + _INFLATED)) for rows in self.of.parts], axis=0)
        return A, np.where(definite, longest**2, np.inf)

    def _prove(self, some, left, anchor, A, reach, model: Quadratic) -> np.ndarray:
        """Bound the gaps of some fits from gradients in double precision; step and return those that are not proved."""
        which = some[left]
        fits, at = self.fits[which], self.at[which]
        looks = [self.of.sums(rows, at, fits, np.float64, hessian=False) for rows in self.of.parts]
        pull = self.space.pull(np.exp(self.rho[which]), at[:, :-1])
        if model.inside is not None:
            pull = pull * model.inside[left]
        gradient = sum(look.gradient for look in looks)
        gradient[:, :-1] += pull
        objective = sum(look.loss for look in looks) + 0.5 * np.einsum("ni,ni->n", pull, at[:, :-1])
        per_row, params = self.of.per_row[fits], Params(*self.space.plain(at))
        rounding = self.of.problem.rounding_of(params, objective / per_row, fits) * per_row
        rounding += _ROUNDING * np.abs(np.einsum("ni,ni->n", np.abs(pull), np.abs(at[:, :-1])))
        step, squared = solve_bounded(A[left], self.inverse[which], gradient)
        constant = self.observation.constant
        with np.errstate(over="ignore", invalid="ignore"):
            growth = np.exp(constant * self.of.furthest(at - anchor[left])) * (1 + _INFLATED)
            attained = not self.of.free[fits].any()
            found = gap_bound(growth * (squared + 2 * rounding), growth * reach[left], attained, constant) + rounding
        self.outcome.rounds[fits] += 1
        target = stopping_target(self.of.problem, objective / per_row, self.options, rounding / per_row, fits)
        known = np.isfinite(found) & self.space.is_whole
        reached = known & (found / per_row <= target)
        self.judged[:, which] = objective / per_row, np.where(known, found, 0.5 * squared) / per_row, known, reached
        lower = objective <= self.objective[which] + rounding
        self.objective[which] = np.where(lower, objective, self.objective[which])
        self.last[which] = np.where(lower[:, None], at, self.last[which])
        ahead = np.where(lower[:, None], at - step, 0.5 * (self.last[which] + at))  # uphill, half of the step
        open_ = np.flatnonzero(~reached & np.isfinite(squared) & np.isfinite(ahead).all(axis=1))
        self.at[which[open_]] = ahead[open_]
        return left[open_]

    def _conclude(self, some, model: Quadratic) -> None:
        """Store the results of finished fits."""
        outcome, fits = self.outcome, self.fits[some]
        strengths = np.exp(self.rho[some])

        def part(of):
            inside = None if model.inside is None else model.inside[of]
            F = -self.inverse[some[of], :-1, :-1] @ self.space.penalty(strengths[of], inside)
            i = np.arange(F.shape[1])
            F[:, i, i] += 1.0 if inside is None else inside
            diagonal = np.einsum("nii->ni", F)
            return diagonal, 2 * diagonal - np.einsum("nij,nji->ni", F, F)

        outcome.degrees[:, fits], outcome.degrees_of_tests[:, fits] = (of.T for of in in_chunks(part, len(some)))
        inverse = wide = self.inverse[some]
        outcome.scale[fits] = self.scale[some]
        if self.choose:
            model, log = self._in_nats(some, model)
            gradient, curvature = derivatives(model, self.space, self.rho[some] - log)
            outcome.gradient[:, fits] = gradient.T
            if self.space.n_penalties <= _MOST_UNCERTAIN:
                wide = with_uncertain_strengths(model, self.space, self.rho[some] - log, curvature)
                wide /= np.exp(log)[..., None]
            low, high = self.rho[some] <= self.low[some] + 1e-9, self.rho[some] >= self.high[some] - 1e-9
            outcome.at_end[:, fits] = (high.astype(int) - low.astype(int)).T
        for name, place in self.space.places.items():
            which = np.append(np.arange(place.start, place.stop), -1)
            for kept, matrices in ((outcome.covariance, inverse), (outcome.wide, wide)):
                kept[name][fits] = matrices[:, which[:, None], which]
                if self.inside is not None:
                    kept[name][fits[~self.inside[some][:, place].any(axis=1)]] = np.nan
        self._write(some)
        objective, gap, known, reached = self.judged[:, some]
        outcome.objective[fits], outcome.gap[fits], outcome.proved[fits] = objective, gap, known.astype(bool)
        outcome.status[fits] = np.where(reached, int(Status.CONVERGED), int(Status.UNPROVED))
        self.bar.advance(int(np.sum(self.n_proofs[some] == 1)))

    def _write(self, some) -> None:
        """Store parameters and strengths of some fits in the outcome."""
        outcome, fits = self.outcome, self.fits[some]
        outcome.coordinates[fits] = self.at[some]
        outcome.penalty[fits] = self._penalty(some, self.at[some]) / self.of.n_observed[fits]
        has = np.ones((self.space.n_penalties, len(some)), bool)
        if self.inside is not None:
            has = (self.space.sizes() > 0) @ self.inside[some].T.astype(float) > 0
        outcome.strengths[:, fits] = np.where(has, np.exp(self.rho[some].T) / self.of.n_observed[fits], np.nan)


def is_definite(matrices: np.ndarray) -> np.ndarray:
    """Whether matrices are positive definite beyond rounding, bool (fit,)."""
    i = np.arange(matrices.shape[1])
    diagonal = matrices[:, i, i]
    fine = np.all(diagonal > 0, axis=1)
    root = np.sqrt(np.where(diagonal > 0, diagonal, 1.0))
    for k in np.flatnonzero(fine):
        try:
            lower = np.linalg.cholesky(matrices[k] / np.outer(root[k], root[k]))
            fine[k] = np.diag(lower).min() > _DEFINITE
        except np.linalg.LinAlgError:
            fine[k] = False
    return fine
