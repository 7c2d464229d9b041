"""From seeds to jax's keys, and from those to the seeds of NumPy's generators."""

import jax
import numpy as np

from .compilation import refuse_fork


def key_for(solver, seed: int) -> jax.Array | None:
    """Key of a solver's draws, which is refused in a forked process; None for a solver that leaves jax alone."""
    if getattr(solver, "on_host", False):
        return None
    refuse_fork()
    return jax.random.key(seed)


def seed_of(key) -> int:
    """Whole number from which NumPy's generators draw what a key stands for."""
    return int(np.asarray(jax.random.key_data(key)).ravel()[-1])
