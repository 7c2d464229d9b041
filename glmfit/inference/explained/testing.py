"""P-values by draws from a null distribution, of which only those that can change a verdict are computed.

The statistic is a contribution at one strength that neither the neuron's own counts nor a draw have chosen. Theory:
docs/theory/nested_models.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...engine.nested.search import HeldOut
from .models import Contribution
from .nulls import Draw, Null, Rows
from .scorer import Scorer, Setting

_LOOSE = 1.0  # nats of a fit: what is enough where the statistic is far from what was observed


@dataclass
class Verdicts:
    """What draws have said so far, (contribution, neuron) each."""

    observed: np.ndarray  # statistic of the recording
    above: np.ndarray  # draws that are not known to be below it
    done: np.ndarray  # draws looked at
    loose: np.ndarray  # of these, how many a loose bound has decided
    drawn: np.ndarray  # statistics, (draw, contribution, neuron), nan where none was computed
    n_fits: int = 0
    n_proved: int = 0

    def arrays(self) -> dict[str, np.ndarray]:
        """Return it as named arrays."""
        return {f"null/{name}": np.asarray(value) for name, value in vars(self).items()}


class NullTest:
    """Compares what groups contribute with draws from a null.

    Parameters
    ----------
    scorer : Scorer
        Of the recording.
    contributions : list of Contribution
        To test.
    null : Null
        Where draws come from.
    rows : Rows
        Of the fit.
    strength : numpy.ndarray or None
        Strength of every neuron at which statistics are computed, (neuron,); None: every draw chooses its own, as the
        contributions have.
    level : float or None
        Significance: once a verdict at this level is known, later draws are spared. None spares none.
    features : list of numpy.ndarray
        Of every contribution, those of its group, which a null of features moves, bool (feature,).
    """

    def __init__(
        self, scorer: Scorer, contributions: list[Contribution], null: Null, rows: Rows, strength: np.ndarray | None,
        level: float | None, features: list[np.ndarray],
    ):  # fmt: skip
        self.scorer, self.contributions, self.null, self.rows = scorer, contributions, null, rows
        self.strength, self.level, self.features = strength, level, features
        self.used = null.used(rows)
        self._setting = scorer.setting(self.used)

    # ---------------------------------------------------------------- the recording

    def observe(self, told: Callable[[], None]) -> Verdicts:
        """Compute the statistics of the recording."""
        scorer, shape = self.scorer, (len(self.contributions), self.scorer.n_neurons)
        middle = np.arange(len(self.rows.given)) if self.used is None else self.used
        responses = scorer.taken(middle, self.used)
        held = self._held_out(self._setting, responses, np.ones(shape, bool), None, told)
        value, off = self._statistics(held)
        drawn = np.full((self.null.n_draws, *shape), np.nan)
        zero = lambda: np.zeros(shape, int)  # noqa: E731
        self._off = off
        return Verdicts(value, zero(), zero(), zero(), drawn, int(held.n_fits.sum()), int(held.n_proved.sum()))

    def run(self, verdicts: Verdicts, first: int, told: Callable[[], None]) -> Iterator[int]:
        """Look at the draws from the ``first`` on, and yield how many were looked at after each."""
        for k, draw in enumerate(self.null.draws(self.rows)):
            if k < first:
                continue
            open_ = self.open(verdicts)
            if not open_.any():
                return
            self._look(verdicts, k, draw, open_, told)
            yield k + 1

    def open(self, verdicts: Verdicts) -> np.ndarray:
        """Which verdicts further draws may change, bool (contribution, neuron)."""
        known = np.isfinite(verdicts.observed)
        if self.level is None:
            return known
        return known & (verdicts.above < self.null.enough(self.level))

    # ---------------------------------------------------------------- one draw

    def _look(self, verdicts: Verdicts, k: int, draw: Draw, open_: np.ndarray, told) -> None:
        floor = verdicts.observed - np.where(np.isfinite(self._off), self._off, 0.0)
        undecided, loose = open_, _LOOSE if self.level is not None else None
        while True:
            value, off, held = self._draw(draw, undecided, loose, told)
            verdicts.n_fits += int(held.n_fits.sum())
            verdicts.n_proved += int(held.n_proved.sum())
            value = np.where(np.isnan(value), np.inf, value)  # what cannot be computed counts against the group
            off = np.where(np.isfinite(off), off, np.inf if loose else 0.0)
            verdicts.drawn[k][undecided] = np.where(np.isfinite(value), value, np.nan)[undecided]
            below, above = undecided & (value + off < floor), undecided & (value - off >= verdicts.observed + self._off)
            settled = undecided if loose is None else below | above
            verdicts.loose += settled if loose else 0
            verdicts.above += settled & ~below
            verdicts.done += settled
            undecided = undecided & ~settled
            if not undecided.any():
                return
            loose = None

    def _draw(self, draw: Draw, wanted: np.ndarray, loose, told):
        scorer, setting = self.scorer, self._setting
        if draw.X is not None:
            setting = scorer.setting(self.used, draw.X)
        elif draw.Y is not None:
            held = self._held_out(setting, scorer.standard(draw.Y), wanted, loose, told)
            return (*self._statistics(held), held)
        elif self.null.of == "features":
            return self._draw_features(draw, wanted, loose, told)
        else:
            held = self._held_out(setting, scorer.taken(draw.source, self.used), wanted, loose, told)
            return (*self._statistics(held), held)
        held = self._held_out(setting, scorer.responses, wanted, loose, told)
        return (*self._statistics(held), held)

    def _draw_features(self, draw: Draw, wanted: np.ndarray, loose, told):
        """Move the features of one group at a time: the contributions of the others have no draw."""
        value, off = np.full(wanted.shape, np.nan), np.full(wanted.shape, np.inf)
        total = HeldOut.empty(*self._empty())
        groups: dict[bytes, list[int]] = {}
        for c, mask in enumerate(self.features):
            groups.setdefault(mask.tobytes(), []).append(c)
        for members in groups.values():
            some = np.zeros_like(wanted)
            some[members] = wanted[members]
            if not some.any():
                continue
            X = np.array(self.scorer.X)
            mask = self.features[members[0]]
            X[:, mask] = X[draw.source][:, mask]
            setting = self.scorer.setting(None, X)
            held = self._held_out(setting, self.scorer.responses, some, loose, told)
            for name, of in zip(("value", "off"), self._statistics(held), strict=True):
                (value if name == "value" else off)[members] = of[members]
            total.n_fits += held.n_fits
            total.n_proved += held.n_proved
        return value, off, total

    def _empty(self) -> tuple[int, int, int]:
        return len(self.scorer.masks), self.scorer.n_held, self.scorer.n_neurons

    def _held_out(self, setting: Setting, responses, wanted: np.ndarray, loose, told) -> HeldOut:
        """Losses of the models that some contributions compare, of the neurons they are wanted of."""
        pairs = np.array([[c.more, c.less] for c in self.contributions])

        def among(n: int) -> np.ndarray:
            return np.unique(pairs[wanted[:, n]])

        neurons = np.flatnonzero(wanted.any(axis=0))
        if self.strength is None:
            setting.nested = _with_loose(setting.nested, loose)
            return self.scorer.held_out(setting, responses, neurons, among, told)
        out = HeldOut.empty(*self._empty())
        for strength in np.unique(self.strength[neurons]):
            some = neurons[self.strength[neurons] == strength]
            key = strength, loose
            kept = vars(setting).setdefault("kept", {})
            if key not in kept:
                kept[key] = setting.at(strength, loose)
            found = self.scorer.held_out(kept[key], responses, some, among, told)
            for name, value in vars(found).items():
                getattr(out, name)[..., some] = value[..., some]
        return out

    def _statistics(self, held: HeldOut) -> tuple[np.ndarray, np.ndarray]:
        """Contributions over all folds that have both losses, and how far they may be off, (contribution, neuron)."""
        more, less = (np.array([getattr(c, name) for c in self.contributions]) for name in ("more", "less"))
        return contributions_of(held.loss, held.off, more, less)


def contributions_of(loss: np.ndarray, off: np.ndarray, more, less) -> tuple[np.ndarray, np.ndarray]:
    """Sum differences of losses (model, fold, neuron) over folds; (contribution, neuron) both, nan without any fold."""
    each = loss[less] - loss[more]
    known = np.isfinite(each)
    value = np.where(known.any(axis=1), np.sum(np.where(known, each, 0.0), axis=1), np.nan)
    return value, np.sum(np.where(known, off[less] + off[more], 0.0), axis=1)


def _with_loose(nested: Any, loose: float | None) -> Any:
    from dataclasses import replace

    return replace(nested, loose=loose)
