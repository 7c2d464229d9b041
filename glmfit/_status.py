"""Outcome of a fit, one per neuron, each with one sentence of advice."""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """Outcome of the fit of one neuron.

    The verdicts are tried in this order: non-finite numbers, convergence, budget. A fit with a NaN is
    never called converged, and a neuron without an optimum (no spikes, separable) never is either.
    """

    CONVERGED = 0
    MAX_EPOCHS = 1
    PRECISION_FLOOR = 2
    NO_SPIKES = 3
    SEPARABLE = 4
    NON_FINITE = 5
    INTERRUPTED = 6
    SCHEDULE_DONE = 7

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
        """Whether the user should be warned: not of a converged or silent neuron, nor of a schedule that was run."""
        return self not in (Status.CONVERGED, Status.NO_SPIKES, Status.SCHEDULE_DONE)


_ADVICE = {
    Status.CONVERGED: "The gap is below the tolerance; nothing to do.",
    Status.MAX_EPOCHS: "The budget ran out first: raise max_epochs, or accept the reported gap.",
    Status.PRECISION_FLOOR: (
        "Above the tolerance no further progress was seen, because of rounding or, with a lasso on strongly correlated "
        "features, slowness: loosen tol, pass float64 data with jax's x64 mode on, or solve exactly, a "
        'smooth penalty with solver_name="Newton", a lasso with PopulationGLMCV.'
    ),
    Status.NO_SPIKES: "No spike in the training rows: the optimum is at rate 0, which is what predict returns.",
    Status.SEPARABLE: (
        "Some direction of the features silences the neuron without losing a spike, or sets classes apart, so no "
        "finite optimum exists: add a ridge penalty, or remove the feature."
    ),
    Status.NON_FINITE: (
        "A number overflowed or was not finite: check the scale of X and of the counts; a sampling solver needs a "
        "shorter step."
    ),
    Status.INTERRUPTED: "The fit was stopped by the user: the coefficients are usable, the gap is what it says.",
    Status.SCHEDULE_DONE: (
        "A sampling solver has run its epochs: nothing to do if the gap or the held-out score is good enough, "
        "else more epochs or another step."
    ),
}
