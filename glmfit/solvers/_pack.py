"""Trees of numbers and arrays as named arrays, and back: what a checkpoint holds."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np


def to_arrays(tree: Any) -> dict[str, np.ndarray]:
    """Leaves of a tree by their path."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in leaves}


def from_arrays(arrays: dict[str, np.ndarray], like: Any) -> Any:
    """Tree of the structure of ``like`` from its named leaves; Python numbers and bools stay such.

    Raises
    ------
    KeyError
        For a leaf that is not there.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        value = arrays[jax.tree_util.keystr(path)]
        found.append(type(leaf)(value.item()) if isinstance(leaf, bool | int | float) else value)
    return jax.tree.unflatten(structure, found)
