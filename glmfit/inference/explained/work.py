"""Work of an explanation: fits, tests and checkpoints."""

from __future__ import annotations

from contextlib import closing

import numpy as np

from ...checks import check_positive
from ...data.counts import Training
from ...display import ProgressBar, counted
from ...engine.checkpoint import Checkpoint, digest
from ...engine.nested.search import HeldOut
from ...estimators.scores import are_epochs, is_epochs
from .explanation import Explanation, false_discovery_rate
from .models import ModelList
from .nulls import Null, Rows
from .scorer import Scorer
from .testing import NullTest, Verdicts

_FULL = 1  # the model of all features
_CHUNK = 32  # neurons between two writings of a checkpoint


class Work:
    """Fits of an explanation, chunk by chunk, with checkpoints; the parameters are the checked ones of `explain`."""

    def __init__(
        self, scorer: Scorer, nested: ModelList, rows: Rows, null: Null | None, null_strength, level, checkpoint
    ):
        self.scorer, self.nested, self.rows = scorer, nested, rows
        self.null, self.null_strength, self.level = null, null_strength, level
        self.held, self.known = scorer.empty(), np.zeros(scorer.n_neurons, bool)
        self.verdicts: Verdicts | None = None
        self.strength = np.full(scorer.n_neurons, np.nan)
        self.file = None
        if checkpoint is not None:
            self.file = Checkpoint(checkpoint, _facts(scorer, nested, null, null_strength, level))
            if (arrays := self.file.load()) is not None:
                self._restore(arrays)

    def run(self, verbose: bool) -> bool:
        """Do the remaining work; return True after Ctrl-C."""
        n = self.scorer.n_neurons
        what, total = f"explaining {counted(n, 'neuron')}", n if self.null is None else 3 * n
        with closing(ProgressBar(what, total, "neuron", verbose)) as bar:
            try:
                self._score(bar)
                if self.null is not None:
                    self._test(bar)
            except KeyboardInterrupt:
                if not self.known.any():
                    raise
                return True
            bar.finish()
        return False

    def _score(self, bar: ProgressBar) -> None:
        setting = self.scorer.setting()
        left = np.flatnonzero(~self.known)
        size = _CHUNK if self.scorer.by_newton and not self.scorer.observation.is_quadratic else max(len(left), 1)
        for start in range(0, len(left), size):
            some = left[start : start + size]
            self.held.put(some, self.scorer.held_out(setting, self.scorer.responses, some, bar.advance))
            self.known[some] = True
            self._note()

    def _test(self, bar: ProgressBar) -> None:
        self.strength = _strengths_of_tests(
            self.null_strength, self.scorer.strengths, self.held.chosen, np.isfinite(self.held.loss)
        )
        at = None if self.null_strength == "chosen" else self.strength
        test = NullTest(self.scorer, self.nested.contributions, self.null, self.rows, at, self.level)
        self.verdicts = self.verdicts or test.observe(bar.advance)
        for _ in test.run(self.verdicts, bar.advance):
            self._note()

    def result(self, data: Training, features: list[str], observation_model: str, interrupted: bool) -> Explanation:
        """Assemble the results."""
        scorer, held, null, compared = self.scorer, self.held, self.null, self.nested.contributions
        v = self.verdicts or Verdicts.empty(len(compared), scorer.n_neurons, 0)
        p = np.full(v.observed.shape, np.nan)
        if null is not None:
            ended = (v.done == null.n_draws) | (self.level is not None and v.above >= null.enough(self.level or 1.0))
            said = np.isfinite(v.observed) & (ended if null.needs_all else v.done > 0)
            p = np.where(said, null.p_value(v.above, v.done), np.nan)
        fitted = np.isfinite(held.loss) & scorer.masks.any(axis=1)[:, None, None]  # a constant has no strength
        chosen = np.where(fitted, scorer.strengths[held.chosen], np.nan)
        return Explanation(
            neuron=list(data.neuron_names), model=self.nested.names, feature=features,
            contributions=compared, members=self.nested.masks,
            loss=held.loss, loss_off=held.off, strengths=scorer.strengths, strength=chosen, gap=held.gap,
            proved=held.proved, saturated=scorer.saturated(),
            n_spikes=scorer.spikes(data), n_fits=held.n_fits, n_proved=held.n_proved,
            p_value=p, q_value=false_discovery_rate(p, [c.kind for c in compared]),
            statistic=v.observed, null_statistic=v.drawn, null_strength=self.strength,
            n_draws=v.done, n_loose=v.loose, n_unproved_draws=v.unproved,
            n_null_fits=int(v.n_fits.sum()), n_null_proved=int(v.n_proved.sum()),
            n_possible_draws=0 if null is None else null.n_draws, observation_model=observation_model,
            null=_name(null), status="interrupted" if interrupted else "complete",
        )  # fmt: skip

    def _note(self) -> None:
        if self.file is not None:
            arrays = {f"held/{name}": value for name, value in vars(self.held).items()} | {"known": self.known}
            self.file.save(arrays if self.verdicts is None else arrays | self.verdicts.arrays())

    def _restore(self, arrays: dict[str, np.ndarray]) -> None:
        held, null = (
            {name.removeprefix(of): array for name, array in arrays.items() if name.startswith(of)}
            for of in ("held/", "null/")
        )
        self.held, self.known = HeldOut(**held), arrays["known"]
        if null:
            null.setdefault("unproved", np.zeros_like(null["done"]))  # of a file of an earlier state
            self.verdicts = Verdicts(**null)


def _strengths_of_tests(given, strengths: np.ndarray, chosen: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return the strength of every neuron's statistics, (neuron,): given, or the one others choose most often."""
    n = chosen.shape[2]
    if given == "chosen":
        return np.full(n, np.nan)
    if given is not None:
        return np.full(n, check_positive("null_strength", given, '"chosen" lets every draw choose.'))
    of_full = [chosen[_FULL, known[_FULL, :, k], k] for k in range(n)]
    counts = np.stack([np.bincount(of, minlength=len(strengths)) for of in of_full], axis=1)
    others = counts.sum(axis=1, keepdims=True) - counts
    index = len(strengths) - 1 - np.argmax(others[::-1], axis=0) if n > 1 else np.full(1, len(strengths) // 2)
    return strengths[index]


def _facts(scorer: Scorer, nested: ModelList, null: Null | None, null_strength, level) -> dict[str, str]:
    return {
        "features": digest(scorer.X), "responses": digest(*scorer.responses), "weights": digest(scorer.weights),
        "folds": digest(scorer.number), "models": digest(nested.masks), "contributions": str(nested.contributions),
        "strengths": digest(scorer.strengths), "penalty": repr(scorer.penalty(1.0)), "loss": scorer.observation.name,
        "tol": repr((scorer.tol, scorer.cv_tol)), "null": _name(null), "level": repr((level, null_strength)),
        "draws": _draws(null),
    }  # fmt: skip


def _draws(null: Null | None) -> str:
    """Digest what `_name` omits: number of draws, labels or epochs, and arrays that can be read twice."""
    arrays, within = getattr(null, "arrays", ()), getattr(null, "within", None)
    given = [np.asarray(array) for array in arrays] if hasattr(arrays, "__len__") else []
    if is_epochs(within) or are_epochs(within):
        given += [
            np.asarray(of) for some in ([within] if is_epochs(within) else within) for of in (some.start, some.end)
        ]
    elif within is not None:
        given.append(np.unique(within, return_inverse=True)[1])
    return f"{getattr(null, 'n', 0)} {digest(*given)}"


def _name(null: Null | None) -> str:
    """Describe a null in a few words."""
    if null is None:
        return ""
    given = {k: v for k, v in vars(null).items() if k not in ("arrays", "within", "n") and v != 0}
    words = ", ".join(f"{k}={v}" for k, v in given.items())
    return f"{type(null).__name__}({words})"
