"""Certificates: a number together with the theorem it rests on and the assumptions under which it holds."""

import textwrap
from dataclasses import dataclass

import numpy as np

from ..display import Display, Summary


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
        What the statement needs; what is checked during the fit says so.
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
