"""Fits of nested models of one neuron: each from a nearby model whose Hessian is known, which also proves it.

Two passes suffice for most fits: one in single precision after a step from the fit to all blocks, and one in double
precision that proves the result of the next step. Theory: docs/theory/nested_models.md.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...bounds import gap_bound
from ..small_systems import solve, solve_bounded, times
from ..tiles import tiles_of
from .neuron import LEVELS, Anchor, Neuron

_CLOSE, _FAR_AWAY = 30.0, 300.0  # nats: where the Hessian serves what is near the optimum, or leads there
_NEAR = 0.3  # nats left in the fit to all blocks from which fits to some of them start
_ROUNDS, _STEPS, _HALVES = 12, 8, 30  # of fits to all blocks, of fits to some, of a step that leads uphill
_SLOW, _FAR = 0.15, 1.2  # contraction of a step, and log growth of a Hessian, from which a new anchor pays
_RENEWALS, _GROUPS = 8, 8  # times that unproved fits get nearer Hessians, and how many at a time
_NOTHING = 1e-300  # share of a Hessian that rounding makes of none
_MOVED = 0.3  # bound of the change of predictors above which it is worth measuring
_NUMBERS = 4e6  # of Hessians that are held at a time


class Leads(NamedTuple):
    """Unfinished fits to all blocks, one for every model and strength, (lead,) each, and what is known there."""

    model: np.ndarray
    strength: np.ndarray
    at: np.ndarray  # (lead, member)
    anchor: np.ndarray  # index among those of the neuron
    loss: np.ndarray  # (lead, block)
    gradient: np.ndarray  # of the loss, (lead, block, member)
    beyond: np.ndarray  # (lead, level), as `Survey` has it
    bend: np.ndarray  # likewise, (lead, block)


class Fits(NamedTuple):
    """Fits to sets of blocks, (fit,) each; objectives are in nats."""

    at: np.ndarray  # (fit, member)
    ahead: np.ndarray  # where one more step leads, of which nothing is proved, (fit, member)
    bound: np.ndarray  # of the objective above its minimum, inf if there is none
    proved: np.ndarray  # whether that is below the target, or as low as rounding allows
    radius: np.ndarray  # bound of the distance from the optimum, in the norm of a lower bound of the Hessian
    bend: np.ndarray  # bound of the Hessian of every block, in units of that lower bound, (fit, block)
    inverse: np.ndarray | None  # of that lower bound, (fit, member, member)
    loss: np.ndarray | None  # of all blocks, if these were evaluated, (fit, block)
    gradient: np.ndarray | None  # of that, (fit, block, member)


class Models:
    """Some models of one neuron.

    ``masks`` are the columns of each model, bool (model, column); the column of ones is in all of them. ``anchors`` are
    models whose Hessians are known, at least one; up to ``most`` are added where they pay, and more where some fit
    cannot be proved without them. If targets are ``loose``, a step from the nearest anchor may suffice.
    """

    def __init__(self, neuron: Neuron, masks: np.ndarray, anchors: list[Anchor], most: int = 8, loose: bool = False):
        union = masks.any(axis=0)
        self.neuron, self.anchors, self.masks = neuron, anchors, masks[:, union]
        self.inside = np.flatnonzero(union)
        self.members = None if union.all() else self.inside
        self._ridge = neuron.ridge[self.inside]
        self.constant = neuron.response.observation.constant
        self._new, self._loose = 0 if loose else most, loose

    # ---------------------------------------------------------------- systems of equations

    def whole(self, at: np.ndarray) -> np.ndarray:
        """Parameters of all columns, 0 outside of the members."""
        whole = np.zeros((*at.shape[:-1], self.neuron.blocks.n_columns))
        whole[..., self.inside] = at
        return whole

    def _ridges(self, strength: np.ndarray, sets: np.ndarray) -> np.ndarray:
        return (strength * self.neuron.size[sets])[:, None] * self._ridge

    def _of_anchors(self, anchor: np.ndarray, sets: np.ndarray) -> np.ndarray:
        """Hessians at anchors, without ridge, (fit, member, member)."""
        out = np.empty((len(sets), len(self.inside), len(self.inside)))
        for a in np.unique(anchor):
            some = anchor == a
            known = self.anchors[a].hessians
            known = known if self.members is None else known[:, self.inside[:, None], self.inside]
            out[some] = known[sets[some]]
        return out

    def _systems(self, model, anchor, sets, ridge) -> np.ndarray:
        """Hessians at anchors with ridges, the identity outside of the models, (fit, member, member)."""
        H, mask, diagonal = self._of_anchors(anchor, sets), self.masks[model], np.arange(len(self.inside))
        H[:, diagonal, diagonal] += ridge
        if not mask.all():
            H *= mask[:, :, None]
            H *= mask[:, None, :]
            H[:, diagonal, diagonal] += ~mask
        return H

    def _nearest(self, model, strength) -> tuple[np.ndarray, np.ndarray]:
        """Minimise the quadratic models at all anchors; returns the nearest one and its minimiser, (lead, member)."""
        n, zero = len(model), np.zeros(len(model), int)
        ridge, mask, best = self._ridges(strength, zero), self.masks[model], np.full(n, np.inf)
        which, at = zero.copy(), np.zeros((n, len(self.inside)))
        for a, known in enumerate(self.anchors):
            H = known.hessians[0]
            right = (H @ known.at - known.gradient.sum(axis=0))[self.inside] * mask
            minimiser = solve(self._systems(model, np.full(n, a), zero, ridge), right)
            distance = _distance(known, self.whole(minimiser))
            nearer = distance < best
            which[nearer], at[nearer], best[nearer] = a, minimiser[nearer], distance[nearer]
        return which, at

    def _nearest_of(self, at: np.ndarray) -> np.ndarray:
        """Find the anchor nearest to each of some models, (model,)."""
        whole = self.whole(at)
        return np.argmin([_distance(known, whole) for known in self.anchors], axis=0)

    # ---------------------------------------------------------------- fits to all blocks

    def leads(self, strengths: np.ndarray) -> Leads:
        """Fit all models approximately to all blocks, at all strengths."""
        neuron, n_models = self.neuron, len(self.masks)
        if len(self.anchors) == 1:
            self._climb(float(np.median(strengths)), _FAR_AWAY if self._loose else _CLOSE)
        model, strength = np.repeat(np.arange(n_models), len(strengths)), np.tile(strengths, n_models)
        n, K, p = len(model), neuron.blocks.n_blocks, len(self.inside)
        which, at = self._nearest(model, strength)
        leads = Leads(
            model, strength, at, which, np.zeros((n, K)), np.zeros((n, K, p)),
            np.full((n, len(LEVELS)), np.inf), np.zeros((n, K)),
        )  # fmt: skip
        if not self._loose:
            self._approach(leads)
        unknown = np.flatnonzero(np.isfinite(leads.at).all(axis=1))
        leads.at[~np.isfinite(leads.at).all(axis=1)] = 0.0  # of which nothing is proved
        while len(unknown):
            self._survey(leads, unknown)
            far = unknown[self.log_growth(leads, unknown, np.zeros(len(unknown), int)) > _FAR]
            if not len(far) or not self._new:
                break
            unknown = self._renew(leads, far)
        return leads

    def _survey(self, leads: Leads, which: np.ndarray) -> None:
        for a in np.unique(leads.anchor[which]):
            some = which[leads.anchor[which] == a]
            found = self.neuron.survey(self.members, leads.at[some], self.anchors[a])
            for name, value in found._asdict().items():
                getattr(leads, name)[some] = value

    def _climb(self, strength: float, close: float) -> None:
        """Take Newton steps of the model of all members from the nearest anchor; their ends become anchors, too."""
        neuron, ridge = self.neuron, strength * self.neuron.size[0] * self._ridge
        known = self.anchors[-1]
        at = known.at[self.inside]
        for _ in range(_ROUNDS):
            g = known.gradient.sum(axis=0)[self.inside] + ridge * at
            H = known.hessians[0][np.ix_(self.inside, self.inside)] + np.diag(ridge)
            step = np.linalg.solve(H, g)
            left = g @ step / 2
            if left <= close:
                return
            here, length = known.loss.sum() + ridge @ at**2 / 2, 1.0
            for _ in range(_HALVES):
                after = at - length * step
                every = np.ones((1, neuron.blocks.n_blocks), bool)
                there = neuron.losses(self.members, after[None], every).sum() + ridge @ after**2 / 2
                if there <= here - 1e-4 * length * 2 * left:
                    break
                length /= 2
            else:
                return
            at = after
            known = neuron.anchor(self.whole(at))
            self.anchors.append(known)

    def _approach(self, leads: Leads) -> None:
        """Take steps in single precision until little is left."""
        neuron, n, zero = self.neuron, len(leads.model), np.zeros(len(leads.model), int)
        ridge, before = self._ridges(leads.strength, zero), np.full(n, np.inf)
        since = np.array([known.at[self.inside] for known in self.anchors])[leads.anchor] * self.masks[leads.model]
        active = np.arange(n)  # those that are not near yet
        for _ in range(_ROUNDS):
            here, every = leads.at[active], np.ones((len(active), neuron.blocks.n_blocks), bool)
            g = self._gradient(here, every) + ridge[active] * here
            model = leads.model[active]
            g *= self.masks[model]
            bad = ~np.isfinite(g).all(axis=1)
            g[bad] = 0
            step = solve(self._systems(model, leads.anchor[active], zero[active], ridge[active]), g)
            left = np.einsum("li,li->l", g, step) / 2
            left[bad] = np.inf
            # Half of a step that has led away from the optimum is undone.
            up = ~(left < before[active]) & (left > _NEAR)
            slow = (left > _NEAR) & (left > _SLOW * before[active])
            there = np.where(up[:, None], (here + since[active]) / 2, here - step)
            since[active[~up]] = here[~up]
            leads.at[active] = there
            before[active[~up]] = left[~up]
            active, slow = active[left > _NEAR], active[slow & ~up]
            if not len(active):
                break
            slow = slow[np.isfinite(leads.at[slow]).all(axis=1)]
            if len(slow) and self._new:
                self._renew(leads, slow)
                before[slow] = np.inf

    def _renew(self, leads: Leads, which: np.ndarray) -> np.ndarray:
        """Form a Hessian at the middle one of some leads; returns those that it is nearer to."""
        self._new -= 1
        middle = which[len(which) // 2]
        self.anchors.append(self.neuron.anchor(self.whole(leads.at[middle])))
        nearest = self._nearest_of(leads.at[which])
        changed = which[nearest != leads.anchor[which]]
        leads.anchor[which] = nearest
        return changed

    def log_growth(self, leads: Leads, lead: np.ndarray, sets: np.ndarray, move=0.0) -> np.ndarray:
        """Log factor by which Hessians may be smaller than those of their anchors; ``move`` is a further move."""
        share = np.maximum(self._of_sets("share", leads.anchor[lead], sets), _NOTHING)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            kept = np.log1p(-np.minimum(leads.beyond[lead] / share[:, None], 1.0))
        return self.constant * move + np.min(self.constant * LEVELS - kept, axis=1)

    def _of_sets(self, name: str, anchor: np.ndarray, sets: np.ndarray) -> np.ndarray:
        return np.array([getattr(known, name) for known in self.anchors])[anchor, sets]

    # ---------------------------------------------------------------- fits to some blocks

    def fit(
        self, leads: Leads, lead: np.ndarray, sets: np.ndarray, target, keep: bool = False, start: Any = None
    ) -> Fits:
        """Fit sets of blocks, (fit,), from leads, (fit,), until all are proved to be within the target, in nats.

        ``keep`` also returns the inverse Hessians, which scores need for their bounds; ``start`` (fit, member) holds
        points that may already be the fits. Fits that cannot be proved from afar get their own Hessians; if that is not
        enough either, the bound is infinite or above the target.
        """
        target = np.broadcast_to(target, len(lead))
        fits = self._fit_all(leads, lead, sets, target, keep, start)
        for _ in range(0 if self._loose else _RENEWALS):
            left = np.flatnonzero(~fits.proved & np.isfinite(fits.at).all(axis=1))
            if not len(left):
                break
            some, first = np.unique(lead[left], return_index=True)
            for one, at in zip(some[:_GROUPS], fits.at[left[first[:_GROUPS]]], strict=True):
                leads.at[one], leads.anchor[one] = at, len(self.anchors)
                self.anchors.append(self.neuron.anchor(self.whole(at)))
            self._survey(leads, some[:_GROUPS])
            left = left[np.isin(lead[left], some[:_GROUPS])]
            # A step from there may lead too far: where it starts is looked at first.
            again = self._fit_all(leads, lead[left], sets[left], target[left], keep, leads.at[lead[left]])
            for whole, part in zip(fits, again, strict=True):
                if whole is not None:
                    whole[left] = part
        return fits

    def _fit_all(self, leads: Leads, lead, sets, target, keep: bool, start: Any = None) -> Fits:
        most = max(int(_NUMBERS / len(self.inside) ** 2), 16)
        each = []
        for some in tiles_of(len(lead), most):
            near = None if start is None else start[some]
            each.append(self._fit(leads, lead[some], sets[some], target[some], keep, near))
        return Fits(*(None if parts[0] is None else np.concatenate(parts) for parts in zip(*each, strict=True)))

    def _fit(self, leads: Leads, lead, sets, target, keep: bool, at: Any) -> Fits:
        neuron, n, anchor, model = self.neuron, len(lead), leads.anchor[lead], leads.model[lead]
        train, mask = neuron.sets[sets], self.masks[model]
        ridge = self._ridges(leads.strength[lead], sets)
        H = self._systems(model, anchor, sets, ridge)
        inverse = np.linalg.inv(H)
        reach, share = (self._of_sets(name, anchor, sets) for name in ("reach_squared", "share"))
        start = leads.at[lead]
        target = np.maximum(target, 4 * neuron.rounding(self.whole(start)))
        if at is None:
            g = mask * (np.einsum("nk,nki->ni", train.astype(float), leads.gradient[lead]) + ridge * start)
            at = start - times(inverse, g)
            if not self._loose:
                g = mask * (self._gradient(at, train) + ridge * at)
                at = at - times(inverse, g)
        at = np.where(np.isfinite(at).all(axis=1, keepdims=True), at, start)
        near = Nearness(self, leads, lead, sets, reach, H, start)
        # Steps that lead away are halved. For each fit: its best point, the next one, and the length of the step.
        best, ahead, length, active = at.copy(), at.copy(), np.ones(n), np.arange(n)
        # The first pass may be the last, so it also evaluates the other blocks, which are to be scored.
        seen = None, None
        if keep and self._loose:
            seen = np.zeros(train.shape), np.zeros((*train.shape, at.shape[1]))
        for _ in range(_STEPS):
            here, over = at[active], train[active] | (seen[0] is not None)
            found = self.neuron.gradients(self.members, here, over, loss=seen[0] is not None)
            of_train = np.einsum("nk,nki->ni", train[active].astype(float), found[1])
            g = mask[active] * (of_train + ridge[active] * here)
            step, decrement = solve_bounded(H[active], inverse[active], g)
            better = decrement < near.decrement[active]
            some = active[better]
            best[some], ahead[some], length[some] = here[better], (here - step)[better], 1.0
            if seen[0] is not None:
                seen[0][some], seen[1][some] = (of[better] for of in found)
            length[active[~better]] /= 2
            near.look(some, here[better], decrement[better])
            active = active[~(near.bound[active] <= target[active])]
            if not len(active):
                break
            at[active] = best[active] + length[active, None] * (ahead[active] - best[active])
        unsure = ~(near.bound <= target) | (keep and not self._loose)
        near.look_again(best, np.flatnonzero((near.moved > _MOVED) & unsure))
        bound, radius, growth = near.bound, near.radius, near.growth
        with np.errstate(over="ignore", invalid="ignore"):
            # On the way to the optimum predictors change by no more than this in addition.
            more = np.exp(self.constant * (near.moved + radius * np.sqrt(growth * reach)))
            bend = leads.bend[lead] * (more * growth / share)[:, None]
        inverse = inverse * (growth[:, None, None] * mask[:, :, None]) if keep else None
        return Fits(best, ahead, bound, bound <= target, radius, bend, inverse, *seen)

    def _gradient(self, at: np.ndarray, over: np.ndarray) -> np.ndarray:
        """Gradients of the loss of blocks ``over``, bool (fit, block), in single precision, (fit, member)."""
        return self.neuron.gradients(self.members, at, over, dtype=np.float32)[1].sum(axis=1)

    def improvement(self, leads: Leads, lead: np.ndarray, sets: np.ndarray) -> np.ndarray:
        """Compute how much lower the objective of sets is at leads than at the first anchor, in nats, (fit,)."""
        gained = (self.anchors[0].loss - leads.loss[lead]) * self.neuron.sets[sets]
        penalty = np.sum(self._ridges(leads.strength[lead], sets) * leads.at[lead] ** 2, axis=1) / 2
        return np.maximum(gained.sum(axis=1) - penalty, 0.0)

    def losses(self, at: np.ndarray, over: np.ndarray) -> np.ndarray:
        """Losses of blocks ``over``, bool (fit, block), of models (fit, member); nan elsewhere."""
        return np.where(over, self.neuron.losses(self.members, at, over), np.nan)

    def score(self, fits: Fits, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses of blocks ``over``, bool (fit, block), and how far those of the optima may be from them."""
        loss, gradient = fits.loss, fits.gradient
        if loss is None:
            loss, gradient = self.neuron.gradients(self.members, fits.at, over, loss=True)
        norm = np.sqrt(np.maximum(np.einsum("nki,nij,nkj->nk", gradient, fits.inverse, gradient, optimize=True), 0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            off = norm * fits.radius[:, None] + fits.bend * fits.radius[:, None] ** 2 / 2
        off = np.where(np.isnan(off), np.inf, off)  # infinitely loose bounds times a loss that does not change
        return np.where(over, loss, np.nan), np.where(over, off, np.nan)


class Nearness:
    """Known distance of some fits from their optima, by the Hessians of their anchors, (fit,) each."""

    def __init__(self, models: Models, leads: Leads, lead, sets, reach, H, start):
        self._models, self._leads, self._lead, self._sets = models, leads, lead, sets
        self._reach, self._H, self._start = reach, H, start
        self.decrement, self.moved, self.bound, self.radius, self.growth = np.full((5, len(lead)), np.inf)

    def look(self, some: np.ndarray, at: np.ndarray, decrement: np.ndarray) -> None:
        """Store where some fits are; predictors have moved no more than their reach allows."""
        away = at - self._start[some]
        with np.errstate(over="ignore", invalid="ignore"):
            moved = np.sqrt(self._reach[some] * np.einsum("ni,ni->n", away, times(self._H[some], away)))
        self.decrement[some], self.moved[some] = decrement, moved
        self._bound(some, at)

    def look_again(self, at: np.ndarray, some: np.ndarray) -> None:
        """Measure how far predictors of some fits have actually moved."""
        if len(some):
            self.moved[some] = self._models.neuron.largest(self._models.members, at[some] - self._start[some])
            self._bound(some, at[some])

    def _bound(self, some: np.ndarray, at: np.ndarray) -> None:
        models, constant = self._models, self._models.constant
        with np.errstate(over="ignore", invalid="ignore"):
            log = models.log_growth(self._leads, self._lead[some], self._sets[some], self.moved[some])
            growth = np.exp(log)
            rounding = models.neuron.rounding(models.whole(at))
            known = growth * (self.decrement[some] + 2 * rounding), growth * self._reach[some]
            self.bound[some] = gap_bound(*known, True, constant) + rounding
            self.radius[some], self.growth[some] = _radius(*known, constant), growth


def _distance(anchor: Anchor, at: np.ndarray) -> np.ndarray:
    """Squared distance of models (model, column) from an anchor, by its Hessian, (model,)."""
    away = at - anchor.at
    return np.einsum("li,li->l", away @ anchor.hessians[0], away)


def _radius(decrement_squared, reach_squared, constant) -> np.ndarray:
    """Bound of the distance from the optimum in the norm of a Hessian, inf if there is none."""
    if constant == 0:
        return np.sqrt(decrement_squared)
    reach = constant * np.sqrt(reach_squared)
    q = reach * np.sqrt(decrement_squared)
    return np.where(q < 1, -np.log1p(-np.minimum(q, 1 - 1e-12)) / reach, np.inf) * (1 + 1e-9)
