"""Fits that are stepped together, and what their last steps say of the next."""

import copy
from typing import Self

import numpy as np

from .cg import Descent
from .streamed import StreamedRows

_SHARE_OF_STREAMS = 0.03  # of the aim: a step more costs less than a proof
_LOOK_BACK = 3  # steps over which contraction is measured
_STALLED = 4  # steps without a smaller estimate: rounding
_LONG = 8  # steps whose smallest estimate is compared with that of as many before


class Group:
    """Fits that are stepped together.

    Attributes
    ----------
    descent : Descent
        Where they are.
    fits : numpy.ndarray
        Which of the problem's they are, (fit,).
    aim : numpy.ndarray
        Share of the target below which an estimate asks for a proof, (fit,).
    proofs : numpy.ndarray
        Proofs asked for so far, (fit,).
    trace : list of numpy.ndarray
        Estimates of the last steps, (fit,) each; inf before a metric was renewed.
    looks : int
        How often they were looked at in float64.
    first_order : bool
        Whether bounds are by duality, as near as the gradient is; else by curvature, as near as its square.
    """

    def __init__(self, descent: Descent, fits: np.ndarray):
        self.descent, self.fits = descent, fits
        streamed = isinstance(descent.rows, StreamedRows)
        self.first_order = descent.first_order and not streamed
        aim = descent.aim * (_SHARE_OF_STREAMS if streamed else 1.0)
        self.aim, self.proofs = np.full(len(fits), aim), np.zeros(len(fits), int)
        self.trace, self.looks = [descent.estimate], 0
        self.by_duality: np.ndarray | None = None  # bounds at the last look, where the penalty has kinks

    def step(self, moving: np.ndarray, target: np.ndarray, most_steps: int) -> None:
        """Take a step of some fits, bool (fit,), or some steps while they are above their aim."""
        found = self.descent.advance(moving, self.aim * target, most_steps)
        self.trace = [*self.trace, *found][-2 * _LONG :]

    def split(self, *which: np.ndarray) -> list[Self]:
        """Return some of the fits each, bool (fit,), as groups of their own; this one is nowhere afterwards."""
        indices = [np.flatnonzero(some) for some in which]
        parts = [copy.copy(self) for _ in indices]
        for part, index, descent in zip(parts, indices, self.descent.split(*indices), strict=True):
            part.descent = descent
            part.fits, part.aim, part.proofs = self.fits[index], self.aim[index], self.proofs[index]
            part.trace = [t[index] for t in self.trace]
        return parts

    def is_ready(self, target: np.ndarray) -> np.ndarray:
        """Which fits are to be proved: near enough by their estimates, no nearer for some steps, or not a number."""
        estimate = self.descent.estimate
        ready = (estimate <= self.aim * target) | ~np.isfinite(estimate)
        if len(self.trace) > _STALLED:
            ready |= np.min(self.trace[-_STALLED:], axis=0) >= self.descent.slack * self.trace[-_STALLED - 1]
        if len(self.trace) == 2 * _LONG:  # up and down among rounding
            lately, before = (np.min(some, axis=0) for some in (self.trace[_LONG:], self.trace[:_LONG]))
            ready |= lately >= self.descent.slack * before
        return ready

    def is_slow(self, target: np.ndarray, moving: np.ndarray) -> np.ndarray:
        """Which fits a (new) metric of their own would bring to their aim with less work than the steps to come.

        A step takes the group along: the fewer of it still move, the more a step costs each of them.
        """
        if len(self.trace) <= _LOOK_BACK:
            return np.zeros(len(target), bool)
        estimate = self.descent.estimate
        with np.errstate(divide="ignore", invalid="ignore"):
            fall = np.log(self.trace[-1 - _LOOK_BACK] / estimate) / _LOOK_BACK  # per step
            ahead = np.log(estimate / (self.aim * target)) / np.maximum(fall, 1e-2)
        return moving & np.isfinite(ahead) & (ahead > 3 + self.descent.hessian_cost * moving.mean())
