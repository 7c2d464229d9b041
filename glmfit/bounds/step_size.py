"""Step sizes of SAGA, each by the theorem that allows it."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from .._types import Array

SUBSET_THEOREM = (
    "Gazagnadou, Gower, Salmon (2019), uniform subsets of b rows: "
    "step = 1 / (4 max{L(b), (T-b)/(b(T-1)) L_max + (mu/4)(T/b)})"
)
PARTITION_THEOREM = (
    "Gazagnadou, Gower, Salmon (2019), partition sampling: blocks of one fixed random "
    "partition drawn independently, step = 1 / (4 max_B L_B + mu T/b)"
)


def subset_step(smoothness_b: Array, row: Array, mu: Array | float, n_rows: int, batch_size: int) -> np.ndarray:
    r"""Step of SAGA with uniform subsets of ``batch_size`` rows drawn without replacement.

    .. math:: \gamma = \frac{1}{4\max\{L(b),\ \frac{T-b}{b(T-1)}L_{\max} + \frac{\mu}{4}\frac{T}{b}\}}

    Parameters
    ----------
    smoothness_b, row :
        L(b) and L_max per neuron, with the ridge inside; see :func:`glmfit.bounds.batch_smoothness`.
    mu :
        *Proved* strong convexity in the same metric, or 0. It protects the rate the theorem claims, not
        stability, and an estimate of the curvature here would shrink the step for nothing.
    n_rows, batch_size :
        T and b.

    Returns
    -------
    array
        Step per neuron.

    References
    ----------
    Gazagnadou, Gower, Salmon (2019), Optimal mini-batch and step sizes for SAGA; proof for SAGA with an exact ridge
    gradient or a prox in docs/theory/smoothness_and_step.md.
    """
    noise = row * (n_rows - batch_size) / (batch_size * max(n_rows - 1, 1))
    rate = noise + mu * n_rows / (4 * batch_size)
    return 1 / (4 * np.maximum(smoothness_b, rate))


def partition_step(block: ArrayLike, mu: ArrayLike, n_rows: int, batch_size: int) -> np.ndarray:
    r"""Step of SAGA with blocks of a fixed partition, drawn independently and uniformly.

    .. math:: \gamma = \frac{1}{4 \max_B L_B + \mu T/b}

    Parameters
    ----------
    block :
        :math:`\max_B L_B` per neuron: smoothness of the worst block's mean loss, with the ridge inside.
    mu :
        Proved strong convexity in the same metric, or 0.
    n_rows, batch_size :
        T and b.

    Returns
    -------
    array
        Step per neuron.

    References
    ----------
    Gazagnadou, Gower, Salmon (2019), Optimal mini-batch and step sizes for SAGA; proof in
    docs/theory/smoothness_and_step.md.
    """
    return 1 / (4 * np.asarray(block) + np.asarray(mu) * n_rows / batch_size)
