"""Fits of one model of one neuron: all sets of blocks and strengths, each from the nearest model that is known."""

from dataclasses import dataclass, field

import numpy as np

from ...bounds import gap_bound
from .neuron import _LEVELS, Anchor, Neuron

_NEAR = 0.3  # nats: what is left of the fit to all blocks, from which fits to some of them begin
_ROUNDS, _STEPS = 12, 10  # of fits to all blocks, and to some
_NEW = 3  # anchors of a model at most
_SLOW, _FAR = 0.15, 1.2  # contraction of a step, and log growth of a Hessian, from which a new anchor pays
_EPS = np.finfo(float).eps


@dataclass
class Leads:
    """Fits to all blocks, not to the end, (strength,) each: where they are and what is known there."""

    strength: np.ndarray
    at: np.ndarray  # (strength, member)
    anchor: np.ndarray  # which, of those of the neuron
    gradient: np.ndarray = field(init=False)  # (strength, block, member)
    beyond: np.ndarray = field(init=False)  # (strength, level)
    bend: np.ndarray = field(init=False)  # (strength, block)


@dataclass
class Fits:
    """Fits to sets of blocks, (fit,) each; objectives are in nats."""

    at: np.ndarray  # (fit, member)
    bound: np.ndarray  # of what the objective is above its minimum
    radius: np.ndarray  # bound of the distance from the optimum, in the norm of `inverse`
    inverse: np.ndarray  # of a lower bound of the Hessian, (fit, member, member)
    bend: np.ndarray  # bound of the Hessian of every block, in units of that lower bound, (fit, block)
    passes: int = 0


class Model:
    """One model of one neuron.

    Parameters
    ----------
    neuron : Neuron
        Its rows.
    members : numpy.ndarray or None
        Columns of the model, that of ones last; None are all.
    anchors : list of Anchor
        Models whose Hessians are known; more are added where they pay.
    """

    def __init__(self, neuron: Neuron, members: np.ndarray | None, anchors: list[Anchor]):
        self.neuron, self.anchors, self.members = neuron, anchors, members
        self.inside = np.arange(neuron.blocks.n_columns) if members is None else members
        self.ridge = neuron.ridge[self.inside]
        self.constant = neuron.response.observation.constant

    def _whole(self, at: np.ndarray) -> np.ndarray:
        """Put down parameters among those of all columns."""
        whole = np.zeros((*at.shape[:-1], self.neuron.blocks.n_columns))
        whole[..., self.inside] = at
        return whole

    def _hessians(self, anchor: np.ndarray, sets: np.ndarray) -> np.ndarray:
        """Hessians without ridge in the columns of the model, (fit, member, member)."""
        parts = [known.hessians[:, self.inside[:, None], self.inside] for known in self.anchors]
        out = np.empty((len(sets), *parts[0].shape[1:]))
        for a, part in enumerate(parts):
            out[anchor == a] = part[sets[anchor == a]]
        return out

    def _ridges(self, strength: np.ndarray, sets: np.ndarray) -> np.ndarray:
        return (strength * self.neuron.size[sets])[:, None] * self.ridge

    def _nearest(self, strength: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Minimise the quadratic models at all anchors: which is the nearest, and its minimiser, (strength, member)."""
        everything, best = np.zeros(len(strength), int), np.full(len(strength), np.inf)
        ridge = self._ridges(strength, everything)
        which, at = np.zeros(len(strength), int), np.zeros((len(strength), len(self.inside)))
        for a, known in enumerate(self.anchors):
            H = known.hessians[0]
            right = (H @ known.at - known.gradient.sum(axis=0))[self.inside]
            minimiser = np.linalg.solve(_with(H[np.ix_(self.inside, self.inside)], ridge), right[:, None])[..., 0]
            away = self._whole(minimiser) - known.at
            distance = np.einsum("si,ij,sj->s", away, H, away)
            nearer = distance < best
            which[nearer], at[nearer], best[nearer] = a, minimiser[nearer], distance[nearer]
        return which, at

    def _nearest_of(self, at: np.ndarray) -> np.ndarray:
        """Which anchor is nearest to some models, (model,)."""
        whole = self._whole(at)
        away = [whole - known.at for known in self.anchors]
        return np.argmin(
            [np.einsum("si,ij,sj->s", x, known.hessians[0], x) for x, known in zip(away, self.anchors, strict=True)], 0
        )

    def leads(self, strength: np.ndarray) -> Leads:
        """Fit all blocks, nearly, at all strengths."""
        neuron, n = self.neuron, len(strength)
        which, at = self._nearest(strength)
        leads, everything, new = Leads(strength, at, which), np.zeros(n, int), 0
        leads.gradient = np.zeros((n, neuron.blocks.n_blocks, len(self.inside)))
        leads.beyond, leads.bend = np.zeros((n, len(_LEVELS))), np.zeros((n, neuron.blocks.n_blocks))
        ridge, before, every = self._ridges(strength, everything), np.full(n, np.inf), np.ones((n, 1), bool)
        active = np.arange(n)  # those that are not near yet
        for _ in range(_ROUNDS):
            here = leads.at[active]
            over = np.broadcast_to(every[active], (len(active), neuron.blocks.n_blocks))
            g = neuron.gradients(self.members, here, over, dtype=np.float32)[1].sum(axis=1) + ridge[active] * here
            H = _with(self._hessians(leads.anchor[active], everything[active]), ridge[active])
            step = np.linalg.solve(H, g[..., None])[..., 0]
            left = np.einsum("si,si->s", g, step) / 2
            leads.at[active] -= step
            slow = (left > _NEAR) & (left > _SLOW * before[active])
            before[active] = left
            active, slow = active[left > _NEAR], active[slow]
            if not len(active):
                break
            if len(slow) and new < _NEW:
                new += 1
                self._renew(leads, slow)
                before[slow] = np.inf
        unknown = np.arange(n)
        while len(unknown):
            for a in np.unique(leads.anchor[unknown]):
                some = unknown[leads.anchor[unknown] == a]
                leads.gradient[some], leads.beyond[some], leads.bend[some] = neuron.survey(
                    self.members, leads.at[some], self.anchors[a]
                )
            far = unknown[self._log_growth(leads, unknown, everything[unknown]) > _FAR]
            if not len(far) or new >= _NEW:
                break
            new += 1
            unknown = self._renew(leads, far)
        return leads

    def _renew(self, leads: Leads, which: np.ndarray) -> np.ndarray:
        """Form a Hessian at the middle one of some leads; returns those that it is nearer to."""
        middle = which[len(which) // 2]
        self.anchors.append(self.neuron.anchor(self._whole(leads.at[middle])))
        nearest = self._nearest_of(leads.at[which])
        changed = which[nearest != leads.anchor[which]]
        leads.anchor[which] = nearest
        return changed

    def _log_growth(self, leads: Leads, lead: np.ndarray, sets: np.ndarray, move=0.0) -> np.ndarray:
        """Logarithm by which Hessians may be smaller than those of their anchors; what is further moved by ``move``."""
        share = np.array([known.share for known in self.anchors])[leads.anchor[lead], sets]
        with np.errstate(divide="ignore", invalid="ignore"):
            kept = np.log1p(-np.minimum(leads.beyond[lead] / share[:, None], 1.0))
        return self.constant * move + np.min(self.constant * _LEVELS - kept, axis=1)

    def fit(self, leads: Leads, lead: np.ndarray, sets: np.ndarray, target: float) -> Fits:
        """Fit sets of blocks, (fit,), at the strengths of leads, (fit,), until they are proved near enough."""
        neuron, n, anchor = self.neuron, len(lead), leads.anchor[lead]
        strength, train = leads.strength[lead], neuron.sets[sets]
        ridge = self._ridges(strength, sets)
        H = _with(self._hessians(anchor, sets), ridge)
        inverse = np.linalg.inv(H)
        reach = np.array([known.reach_squared for known in self.anchors])[anchor, sets]
        share = np.array([known.share for known in self.anchors])[anchor, sets]
        start = leads.at[lead]
        g = np.einsum("nk,nki->ni", train.astype(float), leads.gradient[lead]) + ridge * start
        at = start - np.einsum("nij,nj->ni", inverse, g)
        bound, radius, growth, moved = np.full((4, n), np.inf)
        active, passes = np.arange(n), n
        g = neuron.gradients(self.members, at, train, dtype=np.float32)[1].sum(axis=1) + ridge * at
        at = at - np.einsum("nij,nj->ni", inverse, g)
        for _ in range(_STEPS):
            here = at[active]
            g = neuron.gradients(self.members, here, train[active])[1].sum(axis=1) + ridge[active] * here
            passes += len(active)
            step = np.einsum("nij,nj->ni", inverse[active], g)
            decrement = np.maximum(np.einsum("ni,ni->n", g, step), 0.0)
            away = here - start[active]
            moved[active] = np.sqrt(reach[active] * np.einsum("ni,nij,nj->n", away, H[active], away))
            with np.errstate(over="ignore", invalid="ignore"):
                grown = np.exp(self._log_growth(leads, lead[active], sets[active], moved[active]))
                known = grown * decrement, grown * reach[active]
                bound[active] = gap_bound(*known, True, self.constant) + self._rounding(here)
                radius[active] = _radius(*known, self.constant)
            growth[active] = grown
            going = ~(bound[active] <= target)
            at[active[going]] -= step[going]
            active = active[going]
            if not len(active):
                break
        with np.errstate(over="ignore", invalid="ignore"):
            # On the way to the optimum predictors change by no more than this besides.
            more = np.exp(self.constant * (moved + radius * np.sqrt(growth * reach)))
            bend = leads.bend[lead] * (more * growth / share)[:, None]
        return Fits(at, bound, radius, inverse * growth[:, None, None], bend, passes)

    def _rounding(self, at: np.ndarray) -> np.ndarray:
        return np.zeros(len(at))

    def score(self, fits: Fits, over: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses of blocks ``over``, bool (fit, block), and how far those of the optima may be from them."""
        loss, gradient = self.neuron.gradients(self.members, fits.at, over, loss=True)
        norm = np.sqrt(np.maximum(np.einsum("nki,nij,nkj->nk", gradient, fits.inverse, gradient), 0.0))
        with np.errstate(over="ignore", invalid="ignore"):
            off = norm * fits.radius[:, None] + fits.bend * fits.radius[:, None] ** 2 / 2
        return np.where(over, loss, np.nan), np.where(over, off, np.nan)


def _with(H: np.ndarray, ridge: np.ndarray) -> np.ndarray:
    """Hessians with ridges on their diagonals, (fit, member, member)."""
    H = np.broadcast_to(H, (len(ridge), *H.shape[-2:])).copy()
    diagonal = np.arange(H.shape[-1])
    H[:, diagonal, diagonal] += ridge
    return H


def _radius(decrement_squared, reach_squared, constant) -> np.ndarray:
    """Bound of the distance from the optimum in the norm of a Hessian, inf where there is none."""
    reach = constant * np.sqrt(reach_squared)
    q = reach * np.sqrt(decrement_squared)
    return np.where(q < 1, -np.log1p(-np.minimum(q, 1 - 1e-12)) / np.where(reach > 0, reach, 1.0), np.inf) * (1 + 1e-9)
