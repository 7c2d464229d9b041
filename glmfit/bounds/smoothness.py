"""How smooth a mini-batch of rows is, from the smoothness of one row and of all of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._types import Array


def batch_smoothness(full: Array, row: Array, n_rows: int, batch_size: int) -> Array:
    r"""Bound the expected smoothness of uniform subsets of ``batch_size`` of ``n_rows`` rows.

    .. math:: L(b) = L\,\frac{T}{b}\frac{b-1}{T-1} + L_{\max}\,\frac1b\frac{T-b}{T-1}

    Parameters
    ----------
    full, row :
        L of the mean over all rows, and L_max of the worst single row, per neuron; the ridge inside both.
    n_rows, batch_size :
        T and b, 1 <= b <= T.

    Returns
    -------
    array
        L(b), with L(1) = L_max and L(T) = L.

    Raises
    ------
    ValueError
        If the batch size is outside [1, n_rows].

    References
    ----------
    Gazagnadou, Gower, Salmon (2019), Optimal mini-batch and step sizes for SAGA, ICML; proof for uniform subsets
    in Gower et al. (2019), SGD: general analysis and improved rates, and in docs/theory/smoothness_and_step.md.
    """
    check_batch_size(batch_size, n_rows)
    if n_rows == 1:
        return full
    spread = (n_rows - batch_size) / (batch_size * (n_rows - 1))
    joint = n_rows * (batch_size - 1) / (batch_size * (n_rows - 1))
    return full * joint + row * spread


def check_batch_size(batch_size: int, n_rows: int) -> None:
    """Refuse batch sizes that the data cannot fill.

    Parameters
    ----------
    batch_size, n_rows : int
        Rows per batch and in all.

    Raises
    ------
    ValueError
        Unless 1 <= batch_size <= n_rows.
    """
    if not 1 <= batch_size <= n_rows:
        raise ValueError(
            f"batch_size is {batch_size} but there are {n_rows} rows; it must lie between 1 and {n_rows}. "
            "Leave it out to have it chosen."
        )


def practical_batch_size(full: ArrayLike, kappa: ArrayLike, n_rows: int) -> np.ndarray:
    r"""Batch size from which larger batches buy nothing in theory: :math:`1 + \kappa (T-1)/(4L)`.

    Below it the rate of SAGA is limited by the table of T scalars, above it by the condition number L/kappa.

    Parameters
    ----------
    full, kappa :
        L and the strong convexity in the same metric (bound or estimate), per neuron.
    n_rows :
        T.

    Returns
    -------
    numpy.ndarray
        Batch sizes per neuron, integers within [1, n_rows].

    References
    ----------
    Gazagnadou, Gower, Salmon (2019), Optimal mini-batch and step sizes for SAGA, ICML.
    """
    full = np.maximum(np.asarray(full, float), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        size = 1 + np.asarray(kappa, float) * (n_rows - 1) / (4 * full)
    return np.clip(np.floor(size), 1, n_rows).astype(int)
