"""Checkpoints, from which a fit continues after a crash: one file of named arrays.

Verdicts are kept. Open fits continue from where they were: not bit for bit along the same path, but to the same proof.
"""

import glob
import hashlib
import os
import time
from pathlib import Path

import jax
import numpy as np

from ..checks import warn_user
from ..files import load_npz, remove_stale_parts, save_npz
from ..status import Status
from .problem import Params
from .tiles import over_tiles, rows_at_once

_LAYOUT = "3"  # of the state; a file with another layout cannot be read
_VERDICTS = ("status", "gap", "is_bound", "objective", "target", "epochs", "curved")
_TOTALS = ("passes", "failure_probability", "attempts", "exact")
_SHARE = 0.02  # of the time, at most, is spent on writing


class Checkpoint:
    """File with the state of one fit, replaced atomically; a file with the facts of another fit is refused."""

    def __init__(self, path, facts: dict[str, str]):
        if not isinstance(path, str | os.PathLike):
            raise TypeError(f"checkpoint is {path!r}; it must be the path of a file.")
        path = Path(path)
        self.path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        self.facts = facts
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint {self.path} cannot be written: the folder {self.path.parent} does not exist. Create it."
            )
        self._silent = False
        remove_stale_parts(self.path.parent, of=glob.escape(self.path.name))
        if not os.access(self.path.parent, os.W_OK):
            raise PermissionError(
                f"checkpoint {self.path} cannot be written: {self.path.parent} is not writable. Give another path."
            )

    def save(self, arrays: dict[str, np.ndarray]) -> None:
        """Write the state; the file is the old one or the new one, whatever happens.

        A fit whose state cannot be written does not stop: it warns once and continues.
        """
        try:
            if self.path.exists():
                self._check(load_npz(self.path)[0])  # another fit may have started on the same path
            save_npz(self.path, {"class": "checkpoint", "facts": self.facts, "arrays": _forms(arrays)}, arrays)
        except (OSError, ValueError) as error:
            if not self._silent:
                warn_user(f"checkpoint {self.path} could not be written, and the fit continues without it: {error}")
            self._silent = True

    def load(self) -> dict[str, np.ndarray] | None:
        """Read the state, None if there is none; ValueError if the file belongs to another fit or is damaged."""
        if not self.path.exists():
            return None
        try:
            header, arrays = load_npz(self.path)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"checkpoint {self.path} cannot be read ({error}). Nothing was changed: delete it to start over, or "
                "give another path."
            ) from error
        self._check(header)
        kept, found = header.get("arrays"), _forms(arrays)
        wrong = _different(kept if isinstance(kept, dict) else {}, found)
        if kept != found:
            raise self._damaged(f"arrays missing or changed: {', '.join(wrong)}")
        return arrays

    def _check(self, header: dict) -> None:
        """Raise ValueError unless a file belongs to this fit."""
        if header.get("class") != "checkpoint":
            raise ValueError(
                f"checkpoint {self.path} is a file of a {header.get('class')}, not a checkpoint. Give another path."
            )
        found = header.get("facts")
        if not isinstance(found, dict):
            raise self._damaged("it does not state which fit it belongs to")
        different = [
            f"{name} ({found.get(name, 'unknown')}, here {self.facts.get(name, 'unknown')})"
            for name in _different(found, self.facts)
        ]
        if different:
            raise ValueError(
                f"checkpoint {self.path} belongs to another fit; it differs in {', '.join(different)}. Nothing was "
                "changed: give another path for this fit, or delete the file to start over."
            )

    def _damaged(self, how: str) -> ValueError:
        return ValueError(
            f"checkpoint {self.path} is damaged ({how}). Nothing was changed: replace it with an intact copy, "
            "or delete it to start over."
        )


def _different(a: dict, b: dict) -> list[str]:
    """Return the names whose values differ."""
    return [name for name in dict.fromkeys([*a, *b]) if a.get(name) != b.get(name)]


def _forms(arrays: dict[str, np.ndarray]) -> dict[str, list]:
    """Return types and shapes of arrays, as JSON stores them."""
    return {name: [str(array.dtype), *array.shape] for name, array in arrays.items()}


def facts_of(problem, solver, regularizer: str, seed: int, tol: float) -> dict[str, str]:
    """Tell one fit from another: shapes, model, solver, and digests of numbers and of all data, which are read once."""
    return {
        "layout": _LAYOUT,
        "rows": str(problem.n_rows),
        "features": str(problem.n_features),
        "neurons": str(problem.n_neurons),
        "link": problem.observation.name,
        "regularizer": regularizer,
        "groups": hashlib.sha256(str(jax.tree.structure(problem.penalty)).encode()).hexdigest()[:16],
        "strength": digest(*jax.tree.leaves(problem.penalty)),
        "solver": repr(solver),
        "seed": str(seed),
        "tol": repr(tol),
        "precision": str(problem.dtype),
        "rows read": "all at once" if problem.in_memory else "as they are needed",
        "weights": digest(problem.weights) if problem.own is None else _digest_of_rows(problem.row_weights),
        "offset": digest(problem.offset),
        "features' values": _digest_of_rows(problem.X),
        "counts": _digest_of_rows(problem.Y),
    }


def _digest_of_rows(rows) -> str:
    """Digest of all rows, piece by piece."""
    pieces = over_tiles(lambda part: digest(np.asarray(rows[part])), len(rows), rows_at_once(rows))
    return hashlib.sha256("".join(pieces).encode()).hexdigest()[:16]


def digest(*arrays) -> str:
    """First digits of a hash of numbers, their types and shapes."""
    hash_ = hashlib.sha256()
    for array in arrays:
        if array is None:
            hash_.update(b"none")
            continue
        array = np.ascontiguousarray(array)
        hash_.update(f"{array.dtype.str}{array.shape}".encode())
        hash_.update(array)
    return hash_.hexdigest()[:16]


class Notebook:
    """Saver of a run, often enough to lose little and rarely enough to cost little."""

    def __init__(self, checkpoint):
        self.checkpoint, self._next = checkpoint, 0.0

    def note(self, run, last: bool = False) -> None:
        """Save a run if it is time to."""
        begun = time.perf_counter()
        if self.checkpoint is None or (begun < self._next and not last):
            return
        self.checkpoint.save(_pack(run))
        end = time.perf_counter()
        self._next = end + (end - begun) / _SHARE

    def restore(self, run) -> None:
        """Restore a run from the saved state, if there is one."""
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
    """Return the state of every fit, and what is known of it, as named arrays."""
    arrays = {name: np.array(getattr(run, name)) for name in (*_VERDICTS, *_TOTALS)}
    coef, intercept, gained = run.params.coef.copy(), run.params.intercept.copy(), np.zeros(len(run.params.intercept))
    for group in run.groups:
        coef[:, group.fits], intercept[group.fits] = run.params_of(group)
        gained[group.fits], arrays["epochs"][group.fits] = group.gained, group.n_steps
    arrays |= {"coef": coef, "intercept": intercept, "gained": gained}
    history = {f"history/{name}": array for name, array in run.history.arrays().items()}
    return {f"run/{name}": array for name, array in arrays.items()} | history
