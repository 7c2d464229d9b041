"""P-values by draws from a null distribution; only draws that can change a verdict are computed.

The statistic is a contribution at one strength, chosen by neither the neuron's own counts nor a draw. Theory:
docs/theory/nested_models.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...engine.nested.moments import moments_serve
from ...engine.nested.search import HeldOut
from .models import Contribution
from .nulls import Draw, Null, Rows
from .scorer import Scorer, Setting

_LOOSE = 1.0, 0.03, 1e-3  # nats of a fit: enough if the statistic is far from the observed one
_CHUNK = 32  # neurons between two points at which a checkpoint may be written


@dataclass
class Verdicts:
    """Results of the draws so far, (contribution, neuron) each unless stated otherwise."""

    observed: np.ndarray  # statistic of the recording
    off: np.ndarray  # bound of its distance from that of the exact optima, inf if unknown
    above: np.ndarray  # draws that are not known to be below it
    done: np.ndarray  # draws evaluated
    loose: np.ndarray  # of these, how many a loose bound has decided
    unproved: np.ndarray  # and how many count against the group because their fits are not proved
    drawn: np.ndarray  # statistics, (draw, contribution, neuron), nan where none was computed
    n_fits: np.ndarray  # (neuron,)
    n_proved: np.ndarray  # (neuron,)
    ended: np.ndarray  # neurons of which all wanted draws were evaluated, bool (neuron,)
    looked: np.ndarray  # draws evaluated of all neurons, a number

    @classmethod
    def empty(cls, n_contributions: int, n_neurons: int, n_draws: int) -> Verdicts:
        """Return an object without results."""
        shape = n_contributions, n_neurons
        counts, fits = np.zeros((4, *shape), int), np.zeros((2, n_neurons), int)
        drawn, ended = np.full((n_draws, *shape), np.nan), np.zeros(n_neurons, bool)
        return cls(np.full(shape, np.nan), np.full(shape, np.inf), *counts, drawn, *fits, ended, np.zeros((), int))

    def arrays(self) -> dict[str, np.ndarray]:
        """Return it as named arrays."""
        return {f"null/{name}": np.asarray(value) for name, value in vars(self).items()}

    def of(self, n: int) -> Verdicts:
        """Return views of the results of one neuron, without an axis for it."""
        return Verdicts(**{name: value[..., n] if value.ndim else value for name, value in vars(self).items()})

    def count(self, held: HeldOut, at: Any = ...) -> None:
        """Count the fits of draws."""
        self.n_fits[at] += held.n_fits
        self.n_proved[at] += held.n_proved

    def take(self, k: int, wanted: np.ndarray, found: Statistics, last: bool) -> np.ndarray:
        """Store the statistics of a draw where ``wanted``; return where a tighter bound is needed.

        In the ``last`` evaluation, statistics that cannot be computed or proved count against the group.
        """
        known = np.where(np.isfinite(self.off), self.off, 0.0)
        bounded = np.isfinite(found.off) & np.isfinite(found.value)
        off = np.where(bounded, found.off, 0.0 if last else np.inf)
        value = np.where(bounded | found.proved, found.value, np.inf)
        self.drawn[k][wanted] = np.where(np.isfinite(value), value, np.nan)[wanted]
        with np.errstate(invalid="ignore"):
            below = wanted & (value + off < self.observed - known)
            settled = wanted if last else below | (wanted & (value - off >= self.observed + known))
        self.loose[...] += settled & (not last)
        self.unproved[...] += settled & ~bounded & ~found.proved
        self.above[...] += settled & ~below
        self.done[...] += settled
        return wanted & ~settled


class Statistics(NamedTuple):
    """Contributions of the recording or of a draw, (contribution, ...) each."""

    value: np.ndarray  # nan where a model cannot be fitted
    off: np.ndarray  # bound of its distance from that of the exact optima, inf if unknown
    proved: np.ndarray  # whether the fits behind it are proved


def contributions_of(loss: np.ndarray, off: np.ndarray, proved: np.ndarray, pairs: np.ndarray) -> Statistics:
    """Sum what the first of every pair of models, (contribution, 2), gains in loss, (model, fold, neuron), over folds.

    Bounds of the losses add up; folds that cannot be scored are skipped.
    """
    more, less = pairs.T
    each = loss[less] - loss[more]
    known = np.isfinite(each)
    some = known.any(axis=1)
    value = np.where(some, np.sum(np.where(known, each, 0.0), axis=1), np.nan)
    off = np.sum(np.where(known, off[less] + off[more], 0.0), axis=1)
    return Statistics(value, off, np.all((proved[more] & proved[less]) | ~known, axis=1) & some)


def pairs_of(contributions: list[Contribution]) -> np.ndarray:
    """Models that contributions compare, the larger one first, (contribution, 2)."""
    return np.array([[c.more, c.less] for c in contributions], int).reshape(-1, 2)


class NullTest:
    """Test that compares the contributions of groups with draws from a null, at one strength of every neuron.

    Without strengths every draw chooses its own, as the contributions do. Once a verdict at the level is known, later
    draws are skipped; without a level none is.
    """

    def __init__(
        self, scorer: Scorer, contributions: list[Contribution], null: Null, rows: Rows, strength: np.ndarray | None,
        level: float | None,
    ):  # fmt: skip
        self.scorer, self.null, self.rows, self.strength, self.level = scorer, null, rows, strength, level
        self.used = null.used(rows)
        self._setting = scorer.setting(self.used)
        self._targets = (None,) if level is None else (*_LOOSE, None)
        self._pairs = pairs_of(contributions)

    def observe(self, told: Callable[[], None]) -> Verdicts:
        """Compute the statistics of the recording."""
        out = Verdicts.empty(len(self._pairs), self.scorer.n_neurons, self.null.n_draws)
        responses = self.scorer.taken(slice(None) if self.used is None else self.used, self.used)
        every = np.ones(out.off.shape, bool)
        value, out.off, proved = self._measure(out, self._setting, responses, every, None, told)
        out.observed = np.where(np.isfinite(out.off) | proved, value, np.nan)  # an unproved value is not compared
        return out

    def run(self, verdicts: Verdicts, told: Callable[[], None]) -> Iterator[None]:
        """Evaluate the wanted draws, and yield from time to time."""
        moved = self.null.moves_counts and self.scorer.by_newton
        if moved and not moments_serve(self._setting.nested, self.scorer.observation, self.scorer.responses):
            yield from self._run_by_neuron(verdicts, told)
        if verdicts.ended.all():
            return
        for k, draw in enumerate(self.null.draws(self.rows)):
            if k < verdicts.looked:
                continue
            wanted = self._wanted(verdicts.observed, verdicts.above) & ~verdicts.ended
            if not wanted.any():
                break
            for loose in self._targets:
                found = self._draw(verdicts, draw, wanted, loose, told)
                wanted = verdicts.take(k, wanted, found, loose is None)
                if not wanted.any():
                    break
            verdicts.looked += 1
            yield
        verdicts.ended[:] = True

    def _run_by_neuron(self, verdicts: Verdicts, told) -> Iterator[None]:
        """Evaluate all draws neuron by neuron: the draws of a neuron have much in common."""
        sources = [draw.source.astype(np.int32) for draw in self.null.draws(self.rows)]
        # If the Hessians of the recording prove nothing of a neuron, those of a draw hardly will.
        left = np.flatnonzero(~verdicts.ended & np.isfinite(verdicts.off).any(axis=0))
        with self.scorer.workers() as workers:
            for start in range(0, len(left), _CHUNK):
                following = dict.fromkeys(map(int, left[start : start + _CHUNK]), 0)  # the next draw of each neuron
                while following:
                    look, some = partial(self._look_at, verdicts, sources, following), list(following)
                    opened = dict(zip(some, workers.each(look, some), strict=True))
                    for n, found in opened.items():
                        if found is None:
                            verdicts.ended[n] = True
                            told()
                    following = self._solve(verdicts, sources, opened, told)
                yield

    def _solve(self, verdicts: Verdicts, sources, opened: dict[int, tuple | None], told) -> dict[int, int]:
        """Let the solvers of populations decide draws that have no proof; returns the draw of each neuron after it."""
        draws = {n: found for n, found in opened.items() if found is not None}
        for k in sorted({k for k, _ in draws.values()}):
            wanted = np.zeros(verdicts.observed.shape, bool)
            for n, (at, of) in draws.items():
                wanted[:, n] = of & (at == k)
            responses = self.scorer.taken(sources[k], self.used)
            found = self._measure(verdicts, self._setting, responses, wanted, None, told)
            verdicts.take(k, wanted, found, last=True)
        return {n: k + 1 for n, (k, _) in draws.items()}

    def _look_at(self, verdicts: Verdicts, sources: list[np.ndarray], following: dict, n: int) -> tuple | None:
        """Evaluate the draws of a neuron; returns the first that lacks a proof, and of which contributions."""
        verdict, shared, scorer = verdicts.of(n), {}, self.scorer
        strength, scale = None if self.strength is None else float(self.strength[n]), scorer.form.scale[n]
        first = np.zeros(len(self._pairs), int)
        for k, source in list(enumerate(sources))[following[n] :]:
            wanted = self._wanted(verdict.observed, verdict.above)
            if not wanted.any():
                return None
            responses = scorer.taken(source, self.used, n)
            for i, loose in enumerate(self._targets):
                some = wanted & (first <= i)
                if not some.any():
                    continue
                nested, among = self._setting.at(strength, loose).nested, np.unique(self._pairs[some])
                held = nested.of_neuron(scorer.observation, responses, 0, among, shared)
                verdicts.count(held, [n])
                found = Statistics(*(a[:, 0] for a in self._statistics(held, scale)))
                opened = some & ~(found.proved | (np.isfinite(found.off) & np.isfinite(found.value)))
                if loose is None and opened.any():
                    verdict.take(k, some & ~opened, found, last=True)
                    return k, opened
                left = verdict.take(k, some, found, loose is None)
                first[left] = i + 1  # what has not decided this draw will hardly decide the next
                first[some & ~left] = max(i - 1, 0)  # but a looser one may suffice again
                wanted = (wanted & ~some) | left
        return None

    def _wanted(self, observed: np.ndarray, above: np.ndarray) -> np.ndarray:
        """Return which verdicts further draws may change."""
        known = np.isfinite(observed)
        return known if self.level is None else known & (above < self.null.enough(self.level))

    def _draw(self, verdicts: Verdicts, draw: Draw, wanted: np.ndarray, loose, told) -> Statistics:
        """Compute the statistics of a draw."""
        scorer, setting, responses = self.scorer, self._setting, self.scorer.responses
        if draw.X is not None:
            setting = scorer.setting(self.used, draw.X)
        elif draw.Y is not None:
            responses = scorer.standard(draw.Y)
        elif self.null.of == "features":
            return self._draw_features(verdicts, draw, wanted, loose, told)
        else:
            responses = scorer.taken(draw.source, self.used)
        return self._measure(verdicts, setting, responses, wanted, loose, told)

    def _draw_features(self, verdicts: Verdicts, draw: Draw, wanted: np.ndarray, loose, told) -> Statistics:
        """Move the features of one group at a time: the contributions of the others have no draw."""
        nothing = np.full(wanted.shape, np.nan), np.full(wanted.shape, np.inf), np.zeros(wanted.shape, bool)
        out, (more, less) = Statistics(*nothing), self.scorer.masks[self._pairs.T]
        groups, group = np.unique(more & ~less, axis=0, return_inverse=True)  # features only the larger model has
        for k, mask in enumerate(groups):
            some = wanted & (group.reshape(-1, 1) == k)
            if not some.any():
                continue
            X = np.array(self.scorer.X)
            X[:, mask] = self.scorer.X[draw.source][:, mask]
            setting = self.scorer.setting(None, X)
            found = self._measure(verdicts, setting, self.scorer.responses, some, loose, told)
            for whole, part in zip(out, found, strict=True):
                whole[some] = part[some]
        return out

    def _statistics(self, held: HeldOut, scale: float = 1.0) -> Statistics:
        return contributions_of(held.loss / scale, held.off / scale, held.proved, self._pairs)

    def _measure(self, verdicts: Verdicts, setting: Setting, responses, wanted: np.ndarray, loose, told) -> Statistics:
        """Compute contributions of the neurons of which they are wanted, and count the fits behind them."""

        def among(n: int) -> np.ndarray:
            return np.unique(self._pairs[wanted[:, n]])

        neurons, out = np.flatnonzero(wanted.any(axis=0)), self.scorer.empty()
        parts = [(None, neurons)]
        if self.strength is not None:
            tried = self.strength[neurons]
            parts = [(strength, neurons[tried == strength]) for strength in np.unique(tried)]
        for strength, some in parts:
            out.put(some, self.scorer.held_out(setting.at(strength, loose), responses, some, told, among))
        verdicts.count(out)
        return self._statistics(out)
