"""What a fit writes down of how far it has come, and how another one goes on from there.

Verdicts are kept. Fits that are open begin where they were: not bit for bit on the same way, but to the same proof.
"""

import time

import numpy as np

from ..status import Status
from .problem import Params

_VERDICTS = ("status", "gap", "is_bound", "objective", "target", "epochs", "curved")
_TOTALS = ("passes", "failure_probability", "attempts", "exact")
_SHARE = 0.02  # of the time, at most, goes into writing


class Notebook:
    """Writes a run down, often enough to lose little and seldom enough to cost little."""

    def __init__(self, checkpoint):
        self.checkpoint, self._next = checkpoint, 0.0

    def note(self, run, last: bool = False) -> None:
        """Write a run down if it is time to."""
        begun = time.perf_counter()
        if self.checkpoint is None or (begun < self._next and not last):
            return
        self.checkpoint.save(_pack(run))
        end = time.perf_counter()
        self._next = end + (end - begun) / _SHARE

    def restore(self, run) -> None:
        """Take a run to where one was that was written down, if there is one."""
        arrays = None if self.checkpoint is None else self.checkpoint.load()
        if arrays is None:
            return
        run.start, run.promised = Params(arrays["run/coef"], arrays["run/intercept"]), arrays["run/gained"]
        known = arrays["run/status"] != Status.MAX_EPOCHS
        for name in _VERDICTS:
            kept = arrays[f"run/{name}"]
            setattr(run, name, kept if name in ("epochs", "curved") else np.where(known, kept, getattr(run, name)))
        run.params = Params(*(np.where(known, a, b) for a, b in zip(run.start, run.params, strict=True)))
        for name in _TOTALS:
            setattr(run, name, arrays[f"run/{name}"].item())
        run.open &= ~known
        run.history.restore({k.removeprefix("history/"): a for k, a in arrays.items() if k.startswith("history/")})
        run.clock.add(run.history.seconds[-1])


def _pack(run) -> dict[str, np.ndarray]:
    """Where every fit is, and what is known of it, as named arrays."""
    arrays = {name: np.array(getattr(run, name)) for name in (*_VERDICTS, *_TOTALS)}
    coef, intercept, gained = run.params.coef.copy(), run.params.intercept.copy(), np.zeros(len(run.params.intercept))
    for group in run.groups:
        coef[:, group.fits], intercept[group.fits] = run.params_of(group.descent)
        gained[group.fits], arrays["epochs"][group.fits] = group.descent.gained, group.descent.n_steps
    arrays |= {"coef": coef, "intercept": intercept, "gained": gained}
    history = {f"history/{name}": array for name, array in run.history.arrays().items()}
    return {f"run/{name}": array for name, array in arrays.items()} | history
