"""Conjugate gradients of many independent fits at once, each in a metric that is shared or its own.

A step takes two products with the rows for all fits: predictors of the direction, gradient at its end. Its length is a
Newton step along the line, corrected by the slope at its end. Directions are those of BFGS with a limited memory
(Nocedal 1980), which on a quadratic are conjugate. First steps from the models without features, until a fit needs a
metric of its own or is evaluated in float64, read the rows once: they try lengths of 1, or estimated from some rows.
"""

import copy
from typing import ClassVar, Self

import numpy as np

from ..bounds import ResidualSums, descent_step
from .host import HostRows
from .metric import OwnMetric, SharedMetric

OVERSHOT, SHORT = 0.3, 0.5  # of the slope at the start, in size: beyond these, a step is corrected
_OVERSHOT_LIGHT = 0.8  # likewise, if a correction takes as long as a step
_CORRECTIONS = 12
_MEMORY = 8  # last steps that are remembered
_NO_CURVATURE = 1e-12  # of the product of the lengths of a step and of its change of the gradient
LOOK_BACK = 3  # steps over which contraction is measured
_STALLED = 4  # steps without a smaller estimate: rounding
FEW = 0.7  # of the fits: passes of fewer take less time than passes of all
_SAMPLE = 16  # rows per parameter in a metric of some rows
_MUCH = 4  # times as many rows are needed to be worth a sample
_MOST, _SURELY = 0.9, 0.3  # of the fits, of their aim: if a step should bring them there, it ends with a look
_LONG = 8  # steps whose smallest estimate is compared with that of the same number before


class Descent:
    """State of a group of fits that are stepped together, and what their last steps imply for the next."""

    of_fits: ClassVar[tuple[str, ...]] = (  # arrays whose last axis is the fits
        "fits", "at", "ridge", "gradient", "towards", "squared_norm", "gained", "n_steps", "hessian_cost",
        "aims", "proofs", "n_samples", "sample_cost", "fall", "_unsure",
    )  # fmt: skip
    most_samples: ClassVar[int] = 4  # metrics of a fit from some rows; then they are of all rows
    begins_light = True  # whether first steps from models without features read rows in memory only once
    first_order = False  # whether bounds in memory may be by duality
    extensions = 3  # times a step may be made longer
    aim = 0.3  # of the target: an estimate below it asks for a proof
    slack = 0.9  # of an estimate: if some steps leave more of it, only rounding is assumed to be left

    def __init__(self, rows: HostRows, metric: SharedMetric, ridge: np.ndarray, at: np.ndarray):
        self.rows, self.shared, self.at = rows, metric, at
        self.ridge = np.vstack([ridge, np.zeros_like(at[-1:])])  # of every parameter
        n = at.shape[1]
        self.fits = np.arange(n)  # their indices in the problem
        self.own: list[OwnMetric | None] = [None] * n
        self.gained, self.n_steps = np.zeros(n), np.zeros(n, int)  # an estimate: decrease of F since the start
        self.aims, self.proofs = np.full(n, self.aim), np.zeros(n, int)  # proofs attempted so far
        self.n_samples = np.zeros(n, int)  # metrics of some rows so far
        self._sizes: np.ndarray | None = None  # of rows in the spectral basis, (row,)
        self.trace: list[np.ndarray] = []  # estimates of the last steps, (fit,) each; inf before a metric was renewed
        self.looks = 0  # how often they were evaluated in float64
        self.by_duality: np.ndarray | None = None  # bounds at the last look, if the penalty has kinks
        self.fall = np.ones(n)  # factor by which the first step is expected to change the estimate
        self.ends_there = False  # whether the next step ends with a look in float64
        self.forget()
        self.hessian_cost = np.full(n, steps_of_a_hessian(len(ridge)))  # in steps of that fit
        self.sample_cost = np.full(n, steps_of_a_sample(rows.n_rows, len(ridge)))
        self._went: np.ndarray | None = None  # which fits the last step moved, while it ends
        self._unsure = np.ones(n, bool)  # whether 1 may not be a good length of the next step, if lengths are guessed
        self._begins = self.begins_light and rows.selects and rows.are_many and not at[:-1].any()
        self.arrive(rows.place(at))

    @property
    def coef(self) -> np.ndarray:
        """Coefficients of centred features, (feature, fit)."""
        return self.at[:-1]

    @property
    def intercept(self) -> np.ndarray:
        """Intercepts at the centre of the features, (fit,)."""
        return self.at[-1]

    def arrive(self, loss_gradient: np.ndarray, *since: np.ndarray) -> None:
        """Store the gradient of the loss at the parameters, and judge it; learn from its change ``since`` others."""
        # Losses in float64 there, if they are known; nan for fits that have moved on.
        self.seen: tuple[np.ndarray, ResidualSums | None] | None = None
        self.gradient = loss_gradient + self.ridge * self.at
        if since:
            self.remember(*since)
        self.judge()

    def judge(self) -> None:
        """Measure how far the gradient is from 0, and precondition it, for fits that the last step moved."""
        new = self._went if self._went is not None else np.ones(len(self.own), bool)
        towards = self.precondition(np.where(new, self.gradient, 0.0))
        self.towards = towards if new.all() else np.where(new, towards, self.towards)
        self.squared_norm = self.inner(self.gradient, self.towards)

    @property
    def estimate(self) -> np.ndarray:
        """Half the squared norm of the gradient in the inverse metric, (fit,): the gap if that is the Hessian."""
        return self.squared_norm / 2

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Inner product of each fit, (fit,)."""
        return inner(a, b)

    def precondition(self, g: np.ndarray) -> np.ndarray:
        """Apply the inverse of the metric of each fit."""
        shares = [own is None for own in self.own]
        z = self.shared.solve(g) if any(shares) else np.zeros_like(g)
        for k in np.flatnonzero(~np.array(shares) & g.any(axis=0)):  # each reads a large matrix
            z[:, k] = self.own[k].solve(g[:, k])
        return z

    def renew_metrics(self, fits: np.ndarray, scale: np.ndarray, kin: np.ndarray | None = None) -> None:
        """Give some fits the Hessian at their current point, or an estimate of it from some rows, as their metric.

        Fits of one ``kin`` (fit,), such as the folds of a neuron, share the metric of the first of them.
        """
        self.settle()
        kin = np.arange(len(self.own)) if kin is None else kin
        _, first, which = np.unique(kin[fits], return_index=True, return_inverse=True)
        found = dict(zip(fits[first], self.hessians(fits[first], scale), strict=True))
        metrics = list(self.rows.each(lambda k: self.metric_of(found[k], k, scale), list(fits[first])))
        for k, i in zip(fits, which, strict=True):
            self.own[k] = metrics[i]
        self.n_samples[fits] = self.n_samples[fits[first]][which]
        self.judge()

    def hessians(self, fits: np.ndarray, scale: np.ndarray, columns=None) -> list[np.ndarray]:
        """Form the Hessians of some fits at their current point, or estimate them from some rows.

        In all features, or in the ``columns`` of each fit.
        """
        few, found = self._may_be_sampled[fits], [np.empty(0)] * len(fits)
        for which, form in ((few, self._sampled_hessians), (~few, self.rows.hessians)):
            at = np.flatnonzero(which)
            some = None if columns is None else [columns[i] for i in at]
            for i, matrix in zip(at, form(fits[at], scale, some) if len(at) else [], strict=True):
                found[i] = matrix
        self.n_samples[fits] += few
        return found

    def _sampled_hessians(self, fits: np.ndarray, scale: np.ndarray, columns=None) -> list[np.ndarray]:
        if self._sizes is None:
            self._sizes = self.rows.sizes_in(self.shared.basis.whiten)
        return self.rows.sampled_hessians(fits, scale, _SAMPLE, self._sizes, columns)

    @property
    def _may_be_sampled(self) -> np.ndarray:
        """Whether the next metric of each fit may be of some rows, bool (fit,)."""
        sampled = self.rows.selects and _MUCH * _SAMPLE * len(self.at) <= self.rows.n_rows
        return sampled & (self.n_samples < self.most_samples) & self.bounded

    @property
    def bounded(self) -> np.ndarray:
        """Whether the penalty bounds each fit along directions that some rows do not show, (fit,)."""
        return np.all(self.ridge[:-1] > 0, axis=0)

    def forget(self) -> None:
        """Forget past steps: the next direction is the gradient in the metric."""
        self.past: list[tuple[np.ndarray, ...]] = []  # steps, changes of the gradient, 1 / their product

    def remember(self, at: np.ndarray, gradient: np.ndarray) -> None:
        """Learn from the change of the gradient since earlier parameters ``at``."""
        self.learn(self.at - at, self.gradient - gradient)

    def learn(self, step: np.ndarray, change: np.ndarray) -> None:
        """Keep some steps, and the changes of the gradient along them."""
        with np.errstate(invalid="ignore", over="ignore"):
            curved = self.inner(step, change)
            known = curved > _NO_CURVATURE * np.sqrt(self.inner(step, step) * self.inner(change, change))
        step, change = np.where(known, step, 0.0), np.where(known, change, 0.0)
        self.past = [*self.past, (step, change, known / np.where(known, curved, 1.0))][-_MEMORY:]

    @property
    def residual(self) -> np.ndarray:
        """Gradient of the objective, with the subgradient that leaves least if there are several."""
        return self.gradient

    def direction(self, g: np.ndarray) -> np.ndarray:
        """Apply the inverse of the metric, corrected by the steps that are remembered."""
        shares = []
        for step, change, weight in reversed(self.past):
            shares.append(weight * self.inner(step, g))
            g = g - shares[-1] * change
        z = self.precondition(g)
        for step, change, weight in self.past:
            z = z + (shares.pop() - weight * self.inner(change, z)) * step
        return z

    def doubt(self, which: np.ndarray) -> None:
        """Take metrics and step lengths of some fits, bool (fit,), from all rows instead of from a guide."""
        self.rows.doubt(which)

    def metric_of(self, matrix: np.ndarray, k: int, scale: np.ndarray) -> OwnMetric:
        """Metric of one fit from its Hessian without the ridge."""
        return OwnMetric(matrix, self.ridge[:-1, k], scale, self.shared.basis)

    def advance(self, moving: np.ndarray, goal: np.ndarray | None = None, most_steps: int | None = None) -> None:
        """Take a step of the moving fits, bool (fit,); subclasses may take some, up to ``goal`` or ``most_steps``."""
        p, slope = self.choose(moving)
        p = np.where(moving, p, 0.0)
        some = np.flatnonzero(moving) if self.rows.selects and moving.mean() < FEW else None
        if self._begins and not self.ends_there and all(own is None for own in self.own):
            self.rows.held = False
        self._begins = False
        if self.ends_there:
            self.settle()
        bend, length = self._measure(p, slope, some) if self.rows.held else self._guess(p, slope)
        length = np.where(moving & (slope < 0), length, 0.0)
        self._go(p, slope, bend, np.where(np.isfinite(length), length, 0.0), some)
        self.n_steps += moving
        self.trace.append(self.estimate)

    def settle(self) -> None:
        """Let the rows hold the predictors and the curvature of all fits."""
        if not self.rows.held:
            self.rows.hold(self.at)

    def choose(self, moving: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Directions of the moving fits, and slopes along them."""
        z = self.direction(np.where(moving, self.gradient, 0.0)) if self.past else self.towards
        p = -np.where(self.inner(self.gradient, z) > 0, z, self.towards)
        return p, self.inner(self.gradient, p)

    def _measure(self, p: np.ndarray, slope, some: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Curvature along directions, of all fits or some, and lengths that it suggests."""
        if some is None:
            bend = self.rows.along(p)
        else:
            bend = np.zeros(p.shape[1])
            bend[some] = self.rows.along(p[:, some], some)
        bend = bend + self.inner(self.ridge * p, p)
        return bend, self.first_length(slope, bend)

    def _guess(self, p: np.ndarray, slope) -> tuple[np.ndarray, np.ndarray]:
        """Lengths from some rows where 1 was not a good one in the last step; the curvature is not known."""
        unknown, length = np.full(p.shape[1], np.nan), np.ones(p.shape[1])
        if self._unsure.any():
            guessed = self.rows.lengths(self.at, p, slope, self.inner(self.ridge * p, p))
            length = np.where(self._unsure, guessed, length)
        return unknown, length

    def first_length(self, slope, bend) -> np.ndarray:
        """Length of a Newton step along the line."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return -slope / bend

    def rise_of_kinks(self, p: np.ndarray, lengths: np.ndarray) -> np.ndarray | float:
        """Mean slope of the penalty without its ridge, on the way to lengths along p."""
        return 0.0

    def _go(self, p: np.ndarray, slope, bend, length, some: np.ndarray | None = None) -> None:
        """Go along a direction, all fits or some; correct lengths of those whose slopes at the end require it."""
        start, rise = self.inner(self.ridge * self.at, p), self.inner(self.ridge * p, p)
        seen, ends_there, self.ends_there = None, self.ends_there, False
        if some is None and ends_there:
            value, loss, sums = self.rows.evaluate(self.at + length * p, dual=self.first_order)
            seen = value, sums
        elif some is None:
            loss = self._move(p, length, 0.0)
        else:
            loss = self.gradient - self.ridge * self.at
            loss[:, some] = self._move(p, length, 0.0, some)
        end = self.inner(loss, p) + start + length * rise + self.rise_of_kinks(p, length)
        lengths, low, high = length.copy(), np.zeros_like(length), np.full_like(length, np.inf)
        at, sure, limit = np.arange(len(length)), np.zeros_like(length), OVERSHOT if self.rows.held else _OVERSHOT_LIGHT
        for attempt in range(_CORRECTIONS):
            here, s0, s1 = lengths[at], slope[at], end[at]
            over = ~(s1 <= -limit * s0) | self.rises(p, lengths)[at]  # or not a number
            short = (s1 < SHORT * s0) & np.isinf(high[at]) & (attempt < self.extensions)
            wrong = (over | short) & (here > 0)
            if not wrong.any():
                break
            high[at[over]], low[at[~over]] = here[over], here[~over]
            at, here, s0, s1, over = (a[wrong] for a in (at, here, s0, s1, over))
            unsure = over & (sure[at] == 0)
            if unsure.any():
                which = at[unsure]
                sure[which] = self._sure_step(which, -s0[unsure], bend[which])
            with np.errstate(divide="ignore", invalid="ignore"):
                secant = here * s0 / (s0 - s1)
            secant = np.where(np.isfinite(secant) & (secant > 0), secant, np.where(over, 0.0, np.inf))
            surely = np.minimum(sure[at], here)  # cannot go up
            back = np.maximum(np.clip(secant, 0.1 * here, 0.9 * here), np.maximum(surely, low[at]))
            back = surely if attempt >= _CORRECTIONS // 2 else back
            after = np.where(over, back, np.clip(secant, 2 * here, 10 * here))
            changed = after != here
            at, here, after = at[changed], here[changed], after[changed]
            if not len(at):
                break
            before, lengths[at] = lengths.copy(), after
            loss[:, at] = found = self._move(p, lengths, before, at)
            if seen is not None:
                seen[0][at] = np.nan
            kinks = np.broadcast_to(self.rise_of_kinks(p, lengths), len(lengths))[at]
            end[at] = self.inner(found, p[:, at]) + start[at] + after * rise[at] + kinks
        with np.errstate(invalid="ignore"):
            gain = -lengths * (slope + end) / 2
        self.gained = self.gained + np.where((lengths > 0) & np.isfinite(gain), gain, 0.0)
        since, self.at = (self.at, self.gradient), self.at + lengths * p
        self._went = lengths > 0
        self.arrive(loss, *since)
        self._went, self.seen = None, seen
        if not self.rows.held:
            self._unsure = (length > 0) & ~((lengths > 0.7) & (lengths < 1.5))
            if np.any((length > 0) & (lengths == 0)):  # only a sure step descends
                self.settle()

    def _move(self, p: np.ndarray, lengths: np.ndarray, before, some: np.ndarray | None = None) -> np.ndarray:
        """Go to lengths along a direction, from others before, all fits or some; return the gradient of the loss."""
        if self.rows.held:
            step = lengths - before
            return self.rows.move(step if some is None else step[some], some)
        at = self.at + lengths * p
        return self.rows.glance(at if some is None else at[:, some], some)

    def rises(self, p: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Which fits are known to be higher at lengths along p than before, bool (fit,); slopes may not show it."""
        return np.zeros(len(lengths), bool)

    def _sure_step(self, fits: np.ndarray, slope, bend) -> np.ndarray:
        """Length that self-concordance proves to descend, of some fits; close to 0 if there is no theorem."""
        if not self.rows.held:
            return np.zeros(len(fits))
        constant = self.rows.observation.constant
        reach = np.full(len(fits), 1e12) if constant is None else constant * self.rows.reach(fits)
        return descent_step(slope, bend, reach)

    @property
    def moved(self) -> np.ndarray:
        """Which fits have moved since they were last evaluated in float64, bool (fit,)."""
        return np.ones(len(self.fits), bool) if self.seen is None else np.isnan(self.seen[0])

    def split(self, *indices: np.ndarray) -> list[Self]:
        """Return a descent for the fits of each index array; this one is invalid afterwards."""
        return [self._part(i, rows) for i, rows in zip(indices, self.rows.split(*indices), strict=True)]

    def _part(self, index: np.ndarray, rows: HostRows) -> Self:
        """Return some of the fits as a descent of their own, on their rows."""
        part = copy.copy(self)
        part.rows = rows
        part.shared = self.shared.part(index)
        part.own = [self.own[k] for k in index]
        for name in set(self.of_fits) & set(vars(self)):
            setattr(part, name, getattr(self, name)[..., index])
        part.past = [tuple(of[..., index] for of in step) for step in self.past]
        part.trace = [estimate[index] for estimate in self.trace]
        if self.seen is not None:
            loss, sums = self.seen
            part.seen = loss[index], sums and ResidualSums(*(of[..., index] for of in sums))
        return part

    # ---------------------------------------------------------------- what the last steps say

    def is_ready(self, target: np.ndarray) -> np.ndarray:
        """Which fits to prove: near enough by their estimates, no nearer for some steps, or not a number."""
        del self.trace[: -2 * _LONG]
        ready = (self.estimate <= self.aims * target) | ~np.isfinite(self.estimate)
        if len(self.trace) > _STALLED:
            ready |= np.min(self.trace[-_STALLED:], axis=0) >= self.slack * self.trace[-_STALLED - 1]
        if len(self.trace) == 2 * _LONG:  # up and down within rounding
            lately, before = (np.min(some, axis=0) for some in (self.trace[_LONG:], self.trace[:_LONG]))
            ready |= lately >= self.slack * before
        return ready

    def should_end(self, target: np.ndarray, moving: np.ndarray) -> bool:
        """Tell whether the first step should bring most fits to their aim, if it does as much as for similar fits."""
        near = self.estimate * self.fall <= _SURELY * self.aims * target
        return self.rows.selects and len(self.trace) == 1 and bool(np.mean(near | ~moving) >= _MOST)

    def is_almost_there(self, target: np.ndarray) -> np.ndarray:
        """Which fits one more step should bring to their aim, if it does as much as the last one."""
        before = self.trace[-2] if len(self.trace) > 1 else np.zeros(len(target))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            return np.isfinite(before) & (self.estimate * (self.estimate / before) <= self.aims * target)

    def is_slow(self, target: np.ndarray, moving: np.ndarray) -> np.ndarray:
        """Which fits a (new) metric of their own would bring to their aim with less work than further steps.

        A step works on the whole group: the fewer fits still move, the more a step costs each of them.
        """
        if len(self.trace) <= LOOK_BACK:
            return np.zeros(len(target), bool)
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = np.log(self.trace[-1 - LOOK_BACK] / self.estimate) / LOOK_BACK  # per step
            ahead = np.log(self.estimate / (self.aims * target)) / np.maximum(fall, 1e-2)
        cost = np.where(self._may_be_sampled, self.sample_cost, self.hessian_cost)
        return moving & np.isfinite(ahead) & (ahead > 3 + cost * moving.mean())


def steps_of_a_hessian(n_features: int, n_in_it=None):
    """Return how many steps of a fit cost as much as its Hessian, in all features or in some, by flops."""
    n_in_it = n_features if n_in_it is None else n_in_it
    return n_in_it * (n_in_it + 8) / (4 * n_features + 150)


def steps_of_a_sample(n_rows: int, n_features: int, n_in_it=None):
    """Return `steps_of_a_hessian` of some rows, which are looked up one by one."""
    n_in_it = n_features if n_in_it is None else n_in_it
    return _SAMPLE * (n_in_it + 1) / n_rows * n_in_it * (n_in_it + 40) / (4 * n_features + 150) + 0.2


def inner(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Inner product of each fit."""
    return np.einsum("fn,fn->n", a, b)
