"""Where a fit writes down how far it has come, so that it can go on after a crash."""

from __future__ import annotations

import hashlib
from pathlib import Path

import jax
import numpy as np

from ._files import load_npz, save_npz

_LAYOUT = "1"  # of the state; a file of another one cannot be read
_LOOKS = 64  # rows that tell one recording from another


class Checkpoint:
    """One file with the state of one fit, replaced atomically.

    Parameters
    ----------
    path : str or pathlib.Path
        The file; ".npz" is added where missing.
    facts : dict
        What the fit is of: name -> string. A file with other facts is refused.
    """

    def __init__(self, path, facts: dict[str, str]):
        path = Path(path)
        self.path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
        self.facts = facts
        if not self.path.parent.is_dir():
            raise FileNotFoundError(
                f"checkpoint {self.path} cannot be written: the folder {self.path.parent} does not exist. Create it."
            )

    @property
    def exists(self) -> bool:
        """Whether there is something to go on from."""
        return self.path.exists()

    def save(self, arrays: dict[str, np.ndarray]) -> None:
        """Write the state; the file is the old one or the new one, whatever happens."""
        save_npz(self.path, {"class": "checkpoint", "facts": self.facts}, arrays)

    def load(self) -> dict[str, np.ndarray] | None:
        """Read the state, None if there is none.

        Raises
        ------
        ValueError
            If the file is something else, or belongs to another fit: what differs is named.
        """
        if not self.exists:
            return None
        header, arrays = load_npz(self.path)
        if header.get("class") != "checkpoint":
            raise ValueError(
                f"checkpoint {self.path} is a file of a {header.get('class')}, not a checkpoint. Give another path."
            )
        found = header["facts"]
        different = [
            f"{name} ({found.get(name, 'unknown')}, here {self.facts.get(name, 'unknown')})"
            for name in dict.fromkeys([*found, *self.facts])
            if found.get(name) != self.facts.get(name)
        ]
        if different:
            raise ValueError(
                f"checkpoint {self.path} belongs to another fit; it differs in {', '.join(different)}. Nothing was "
                "changed: give another path for this fit, or delete the file to begin anew."
            )
        return arrays


def facts_of(problem, solver, regularizer: str, seed: int) -> dict[str, str]:
    """Tell one fit from another: shapes, model, solver, and digests of data and numbers."""
    return {
        "layout": _LAYOUT,
        "rows": str(problem.n_rows),
        "features": str(problem.n_features),
        "neurons": str(problem.n_neurons),
        "link": problem.observation.name,
        "regularizer": regularizer,
        "strength": _digest(*jax.tree.leaves(problem.penalty)),
        "solver": repr(solver),
        "seed": str(seed),
        "precision": str(problem.dtype),
        "rows read": "all at once" if problem.in_memory else f"in runs of {problem.run_rows}",
        "weights": _digest(problem.weights),
        "offset": _digest(problem.offset),
        "counts": _digest(problem.mean_count),
        "data": _data_digest(problem),
    }


def _data_digest(problem) -> str:
    """Digest of some rows, spread evenly."""
    at = np.unique(np.linspace(0, problem.n_rows - 1, _LOOKS).astype(int))
    return _digest(*(np.asarray(a[i : i + 1]) for i in at for a in (problem.X, problem.Y)))


def _digest(*arrays) -> str:
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
