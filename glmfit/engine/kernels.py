"""Derivatives of a loss, element by element: one program per observation model, whatever the shapes of a fit.

XLA compiles for every shape; a tile of fixed size serves all rows, features and neurons of a process.
"""

from __future__ import annotations

import functools
import threading

import numpy as np

from .._compile import is_forked, jit
from ..observations import Observation
from ..problems._chunks import aligned_empty

TILE = 1 << 17  # numbers; smaller tiles cost more calls, larger ones leave the cache
_FEW = 1 << 15  # NumPy is as fast on so few numbers, and compiles nothing

_own = threading.local()


def derivatives(observation: Observation, y: np.ndarray, eta: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """First and second derivative of the loss in eta.

    Parameters
    ----------
    observation :
        Loss of one response.
    y, eta :
        Responses and linear predictor, of one shape and dtype; float32 arrays hold at most `TILE` numbers.

    Returns
    -------
    r, c : numpy.ndarray
        Of the shape of eta; they may be views that the next call in the same thread leaves alone, and read-only.
    """
    if eta.dtype != np.float32 or eta.size <= _FEW or is_forked():
        return observation.derivatives(y, eta)
    pad = _scratch()
    for tile, values in zip(pad, (y, eta), strict=True):
        np.copyto(tile[: eta.size].reshape(eta.shape), values)
        tile[eta.size :] = 0
    r, c = (np.asarray(a)[: eta.size].reshape(eta.shape) for a in _program(observation)(*pad))
    return r, c


@functools.cache
def _program(observation: Observation):
    return jit(observation.derivatives)


def _scratch() -> list[np.ndarray]:
    """Two tiles of this thread."""
    if not hasattr(_own, "tiles"):
        _own.tiles = [aligned_empty((TILE,), np.dtype(np.float32)) for _ in range(2)]
    return _own.tiles
