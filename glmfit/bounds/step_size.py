"""Smoothness of mini-batches, and the step sizes of SAGA that it allows, each by its theorem."""

import textwrap
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from ..display import Display, Summary
from ..numerics import Array

SUBSET_THEOREM = (
    "Gazagnadou, Gower, Salmon (2019), uniform subsets of b rows: "
    "step = 1 / (4 max{L(b), (T-b)/(b(T-1)) L_max + (mu/4)(T/b)})"
)
PARTITION_THEOREM = (
    "Gazagnadou, Gower, Salmon (2019), partition sampling: blocks of one fixed random "
    "partition drawn independently, step = 1 / (4 max_B L_B + mu T/b)"
)


@dataclass(frozen=True, repr=False)
class StepCertificate(Display):
    """A step size per neuron, in the metric of the spectral basis, and the theorem that allows it.

    Attributes
    ----------
    step, L, L_max, L_b, mu : numpy.ndarray
        (neuron,): the step; upper bounds, with the ridge inside, of the smoothness of the mean over all rows, of the
        worst single row and of the mini-batches (the one the step uses); proved strong convexity, or 0.
    batch_size, n_rows : int
        b and T.
    theorem : str
        The statement that allows the step, or the words "no theorem" where there is none.
    assumptions : tuple of str
        Assumptions of the statement; those that are checked during the fit say so.
    failure_probability : float
        Probability, over the random starts, that some L or L_b of the population is below the truth.
    anchor_radius : numpy.ndarray
        Largest change of eta an anchored certificate allows, (neuron,); infinite for a global one.
    certified : bool
        False for a step scaled above its theorem or a sampling without one.
    """

    step: np.ndarray
    L: np.ndarray
    L_max: np.ndarray
    L_b: np.ndarray
    mu: np.ndarray
    batch_size: int
    n_rows: int
    theorem: str
    assumptions: tuple[str, ...]
    failure_probability: float
    anchor_radius: np.ndarray
    certified: bool = True

    def _summary(self) -> Summary:
        # A silent neuron has next to no curvature; its constants would only widen the ranges.
        alive = np.asarray(self.L) > 1e-9 * np.max(self.L, initial=0.0)
        alive |= ~alive.any()

        def span(values):
            values = np.asarray(values)[alive]
            low, high = float(np.min(values)), float(np.max(values))
            return f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"

        kind = "certified" if self.certified else "NOT certified"
        lines = [
            f"step {span(self.step)} ({kind}), batches of {self.batch_size} of {self.n_rows} rows",
            f"  L {span(self.L)}, L_b {span(self.L_b)}, L_max {span(self.L_max)}, mu {span(self.mu)}",
            f"  theorem: {self.theorem}",
            f"  failure probability {self.failure_probability:.1e} over the population",
        ]
        lines += [f"  assumes: {a}" for a in self.assumptions]
        return Summary([textwrap.fill(line, 100, subsequent_indent="    ") for line in lines])


def batch_smoothness(full: Array, row: Array, n_rows: int, batch_size: int) -> Array:
    r"""Bound the expected smoothness of uniform subsets of ``batch_size`` of ``n_rows`` rows.

    .. math:: L(b) = L\,\frac{T}{b}\frac{b-1}{T-1} + L_{\max}\,\frac1b\frac{T-b}{T-1}

    Parameters
    ----------
    full, row :
        L of the mean over all rows, and L_max of the worst single row, per neuron; the ridge inside both.
    n_rows, batch_size :
        T and b.

    Returns
    -------
    array
        L(b), with L(1) = L_max and L(T) = L.

    Raises
    ------
    ValueError
        Unless 1 <= b <= T.

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
    """Raise ValueError unless 1 <= batch_size <= n_rows.

    Parameters
    ----------
    batch_size, n_rows : int
        Rows per batch and in total.
    """
    if not 1 <= batch_size <= n_rows:
        raise ValueError(
            f"batch_size is {batch_size} but there are {n_rows} rows; it must lie between 1 and {n_rows}. "
            "Omit it to have it chosen."
        )


def practical_batch_size(full: ArrayLike, kappa: ArrayLike, n_rows: int) -> np.ndarray:
    r"""Compute the batch size beyond which larger batches gain nothing in theory: :math:`1 + \kappa (T-1)/(4L)`.

    Below it the rate of SAGA is limited by the table of T scalars, above it by the condition number L/kappa
    (Gazagnadou, Gower, Salmon 2019).

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
    """
    full = np.maximum(np.asarray(full, float), np.finfo(float).tiny)
    with np.errstate(over="ignore"):
        size = 1 + np.asarray(kappa, float) * (n_rows - 1) / (4 * full)
    return np.clip(np.floor(size), 1, n_rows).astype(int)


def subset_step(smoothness_b: Array, row: Array, mu: Array | float, n_rows: int, batch_size: int) -> np.ndarray:
    r"""Step of SAGA, per neuron, with uniform subsets of ``batch_size`` rows drawn without replacement.

    .. math:: \gamma = \frac{1}{4\max\{L(b),\ \frac{T-b}{b(T-1)}L_{\max} + \frac{\mu}{4}\frac{T}{b}\}}

    Parameters
    ----------
    smoothness_b, row :
        L(b) and L_max per neuron, with the ridge inside; see :func:`batch_smoothness`.
    mu :
        *Proved* strong convexity in the same metric, or 0. It protects the rate that the theorem claims, not
        stability. An estimate of the curvature here would shrink the step unnecessarily.
    n_rows, batch_size :
        T and b.

    Returns
    -------
    array
        By `SUBSET_THEOREM` of Gazagnadou, Gower, Salmon (2019); proof in docs/theory/smoothness_and_step.md.
    """
    noise = row * (n_rows - batch_size) / (batch_size * max(n_rows - 1, 1))
    rate = noise + mu * n_rows / (4 * batch_size)
    return 1 / (4 * np.maximum(smoothness_b, rate))


def partition_step(block: ArrayLike, mu: ArrayLike, n_rows: int, batch_size: int) -> np.ndarray:
    r"""Step of SAGA, per neuron, with blocks of a fixed partition, drawn independently and uniformly.

    .. math:: \gamma = \frac{1}{4 \max_B L_B + \mu T/b}

    Parameters
    ----------
    block :
        :math:`\max_B L_B` per neuron: smoothness of the worst block's mean loss, with the ridge inside.
    mu, n_rows, batch_size :
        As in :func:`subset_step`.

    Returns
    -------
    array
        By `PARTITION_THEOREM` of Gazagnadou, Gower, Salmon (2019); proof in docs/theory/smoothness_and_step.md.
    """
    return 1 / (4 * np.asarray(block) + np.asarray(mu) * n_rows / batch_size)
