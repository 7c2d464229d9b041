"""Outcome of a fit, one per neuron, each with one sentence of advice."""

from collections.abc import Iterable
from enum import IntEnum

import numpy as np


class Status(IntEnum):
    """Outcome of the fit of one neuron.

    Converged means proved: a bound of the gap is below the target. If the gap is only estimated, the status is
    UNPROVED, however small the estimate. Outcomes are checked in this order: non-finite numbers, convergence, budget.
    A fit with a NaN is never called converged, nor is a neuron without an optimum (no spikes, separable).
    """

    CONVERGED = 0
    MAX_EPOCHS = 1
    PRECISION_FLOOR = 2
    NO_SPIKES = 3
    SEPARABLE = 4
    NON_FINITE = 5
    INTERRUPTED = 6
    SCHEDULE_DONE = 7
    UNPROVED = 8
    NO_GAIN = 9
    NO_USEFUL_BOUND = 10
    ALL_ONES = 11
    NO_DATA = 12

    def __str__(self) -> str:
        """Words of the status."""
        return self.label

    __repr__ = __str__  # an array of statuses shows words too

    def __format__(self, spec: str) -> str:
        """Words of the status, formatted as text."""
        return format(self.label, spec)

    @property
    def label(self) -> str:
        """Words of the status, for reports."""
        return self.name.lower().replace("_", " ")

    @property
    def advice(self) -> str:
        """One sentence on what to do about it."""
        return _ADVICE[self]

    @property
    def is_failure(self) -> bool:
        """Whether the user should be warned: not for a converged or silent neuron, nor for a completed schedule."""
        return self not in (Status.CONVERGED, Status.NO_SPIKES, Status.ALL_ONES, Status.SCHEDULE_DONE)


NO_PROOF = (
    "The estimated gap is below the tolerance, but nothing proves it: along some direction the features vary too "
    "little{}. A ridge penalty can give the curvature a proof needs; so may removing features that nearly repeat "
    "others{}."
)
_ADVICE = {
    Status.CONVERGED: "The gap is below the tolerance; nothing to do.",
    Status.MAX_EPOCHS: "The budget ran out first: raise max_epochs, or accept the reported gap.",
    Status.PRECISION_FLOOR: (
        "Progress stopped above the tolerance, because of rounding or slow convergence: loosen tol, or use "
        'solver_name="Newton", which works in double precision.'
    ),
    Status.NO_SPIKES: "No spike in the training rows: the optimum is at rate 0, which is what predict returns.",
    Status.ALL_ONES: "Every response is a yes: the optimum is at probability 1, which is what predict returns.",
    Status.NO_DATA: "Every bin of the neuron is masked (a NaN or weight 0): drop the neuron, or give it some bins.",
    Status.SEPARABLE: (
        "Some direction of the features silences the neuron without losing a spike, or separates classes, so no "
        "finite optimum exists: add a ridge penalty, or remove the feature."
    ),
    Status.NON_FINITE: (
        "A number overflowed or was not finite: check the scale of X and of the counts; a sampling solver needs a "
        "shorter step."
    ),
    Status.INTERRUPTED: "The fit was stopped by the user: the coefficients are usable, the reported gap applies.",
    Status.SCHEDULE_DONE: (
        "A sampling solver has run its epochs: the fit is fine if its gap or its held-out score is good enough; "
        "otherwise use more epochs, or another step."
    ),
    Status.UNPROVED: NO_PROOF.format(", or a proof was too expensive", ', or solver_name="Newton"'),
    Status.NO_GAIN: (
        "The features explain nothing (they are constant, or the penalty is strong), or one pass over these rows is "
        'too noisy. Scale X to about 1, use a smaller gain, or solve exactly with solver_name="ConjugateGradients" to '
        "find out."
    ),
    Status.NO_USEFUL_BOUND: (
        "The bound of the gap exceeds what the features explain, so it is not informative: judge the fit by its score "
        'on held-out rows, or solve exactly with solver_name="ConjugateGradients".'
    ),
}


def as_statuses(values: Iterable[int]) -> np.ndarray:
    """Make an array of statuses, which shows them as words."""
    return np.array([Status(int(value)) for value in values], object)
