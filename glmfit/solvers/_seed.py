"""From jax's keys to the seeds of NumPy's generators."""

from __future__ import annotations

import jax
import numpy as np


def seed_of(key) -> int:
    """Whole number from which NumPy's generators draw what a key stands for."""
    return int(np.asarray(jax.random.key_data(key)).ravel()[-1])
