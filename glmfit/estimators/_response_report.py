"""What a fit of a response model says of itself."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from .._display import Summary
from .._status import Status
from ._base_report import Report

_ADVICE = {
    Status.MAX_EPOCHS: "The budget ran out first: raise max_epochs, or accept the reported gradient.",
    Status.PRECISION_FLOOR: (
        "Rounding stops further progress above the tolerance: loosen tol, or pass float64 data with jax's x64 mode on."
    ),
    Status.NON_FINITE: (
        "A number overflowed: check the scale of the features and responses; Adam and its kin need a shorter step, and "
        "a stronger ridge keeps embeddings small. The last finite parameters are kept."
    ),
    Status.INTERRUPTED: "The fit was stopped by the user: the model is usable, and as good as the report says.",
}


@dataclass(frozen=True, repr=False)
class ResponseReport(Report):
    """Report of a fit of a response model.

    Attributes
    ----------
    status : Status
        Outcome; the property ``converged`` says whether it is CONVERGED.
    objective, start_objective : float
        The objective, a sum over pairs, at the solution (in float64) and where the fit began.
    gradient_norm, relative_gradient : float
        Norm of its gradient at the solution (squared loss: in units in which responses are of size one), and divided by
        that at the start (of the observed pairs alone, if that is less): what ``tol`` is compared with.
    gap_stimuli, gap_neurons : float
        How much the objective could fall, at most, by changing the tower and biases of that side alone: proved upper
        bounds, in nats over all pairs (half squares for the squared loss); nan where nothing is proved, which needs a
        linear tower and ridges.
    gap_per_neuron : numpy.ndarray
        The same by changing one neuron alone, (neuron,), where neurons have no features; else nan.
    gap_theorem : str
        What these bounds rest on.
    pseudo_r2 : float
        Share of the deviance explained on the pairs fitted (D2): 1 - deviance / deviance of every neuron's mean.
    n_stimuli, n_neurons : int
        Entities.
    n_pairs, n_trials : int
        Pairs with a response, and responses (repeated trials counted).
    n_stimuli_unseen, n_neurons_unseen : int
        Entities without a response.
    density : float
        Share of all pairs that have a response.
    n_components, n_parameters : int
        Columns of the embeddings; numbers fitted.
    imputation_weight, regularizer_strength : float
        Those of the fit, given or chosen.
    solver_name : str
        Solver that ran.
    epochs, evaluations, products : int, float, int
        Iterations or epochs, passes over the pairs, and products with the Gauss-Newton matrix of the last fit.
    seconds_run, seconds_compile : float
        Wall time without, and of, compilation, choices on held-out pairs included.
    tuning : dict of numpy.ndarray
        imputation_weight, regularizer_strength, score (D2 on held-out pairs) of everything tried; empty if nothing was
        to be chosen.
    history : dict of numpy.ndarray
        epoch, seconds, objective, gradient_norm of the last fit.
    """

    status: Status
    objective: float
    start_objective: float
    gradient_norm: float
    relative_gradient: float
    gap_stimuli: float
    gap_neurons: float
    gap_per_neuron: np.ndarray
    gap_theorem: str
    pseudo_r2: float
    n_stimuli: int
    n_neurons: int
    n_pairs: int
    n_trials: int
    n_stimuli_unseen: int
    n_neurons_unseen: int
    density: float
    n_components: int
    n_parameters: int
    imputation_weight: float
    regularizer_strength: float
    solver_name: str
    epochs: int
    evaluations: float
    products: int
    seconds_run: float
    seconds_compile: float
    tuning: dict = field(default_factory=dict, repr=False)
    history: dict = field(default_factory=dict, repr=False)

    def _advice(self, status: Status) -> str:
        return _ADVICE.get(status, status.advice)

    def _columns(self) -> dict:
        return {
            "status": [self.status.label],
            "relative_gradient": [self.relative_gradient],
            "gap_stimuli": [self.gap_stimuli],
            "gap_neurons": [self.gap_neurons],
            "pseudo_r2": [self.pseudo_r2],
            "objective": [self.objective],
            "n_pairs": [self.n_pairs],
            "epochs": [self.epochs],
        }

    def _summary(self) -> Summary:
        """Say what was fitted, how far it got, what is and is not proved, advice."""
        empty = [
            f"{n} {what}" for n, what in ((self.n_stimuli_unseen, "stimuli"), (self.n_neurons_unseen, "neurons")) if n
        ]
        trials = f", {self.n_trials} responses" if self.n_trials > self.n_pairs else ""
        lines = [
            f"{self.solver_name}: {self.status.label}; {self.n_stimuli} stimuli, {self.n_neurons} neurons, "
            f"{self.n_pairs} pairs ({100 * self.density:.3g} % of all){trials}"
            + (f"; without a response: {', '.join(empty)}" if empty else ""),
            f"{self.n_components} components, {self.n_parameters} parameters, ridge {self.regularizer_strength:g}, "
            f"imputation weight {self.imputation_weight:g}",
        ]
        if self.tuning:
            score = self.tuning["score"]
            best = f"{np.nanmax(score):.4f}" if np.isfinite(score).any() else "none"
            if self.status == Status.INTERRUPTED and np.isnan(score).any():
                lines.append(
                    f"interrupted while {len(score)} combinations were tried: nothing was chosen, and the pairs held "
                    "out are not in the fit"
                )
            else:
                lines.append(f"chosen among {len(score)} by D2 on held-out pairs (best {best})")
        lines += [
            f"{self._seconds()}, {self.epochs} epochs, "
            f"{self.evaluations:.0f} passes over the pairs"
            + (f", {self.products} Gauss-Newton products" if self.products else ""),
            f"objective {self.objective:.6g} (sum over pairs; {self.start_objective:.6g} at the start), "
            f"pseudo-R2 {self.pseudo_r2:.4f}",
            f"gradient {self.gradient_norm:.1e}, {self.relative_gradient:.1e} of that at the start",
            ("a stationary point: " if self.converged else "on the way to a stationary point: ")
            + "the model is not convex, and no bound on the distance from the global optimum exists",
        ]
        gaps = {"stimuli": self.gap_stimuli, "neurons": self.gap_neurons}
        proved = [f"{gap:.1e} ({side})" for side, gap in gaps.items() if np.isfinite(gap)]
        if proved:
            lines.append(f"changing one side alone lowers the objective by at most {', '.join(proved)}")
            lines.append(f"bounds: {self.gap_theorem}")
        return Summary(lines + self.advice)
