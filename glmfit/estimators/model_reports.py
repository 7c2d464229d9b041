"""Reports of models that are fitted as a whole: of classes, and of responses of neurons to stimuli."""

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from ..display import Summary
from ..status import NO_PROOF, Status
from .report import CertifiedReport, Report


@dataclass(frozen=True, repr=False, kw_only=True)
class ClassReport(CertifiedReport):
    """Report of a softmax or multinomial fit; all classes are fitted together, so there is one of everything.

    Attributes
    ----------
    status : Status
        Outcome; the property ``converged`` says whether it is CONVERGED.
    gap : float
        ``F - F*`` in nats per row: a proved upper bound if ``gap_is_bound``, else an estimate; nan if it was not
        computed (``certify=False``, or too many rows times classes).
    gap_theorem, target : str, float
        Theorem that proves the bound; gap below which an exact fit counts as converged, nan for solvers that follow a
        schedule.
    objective, null_objective : float
        F at the solution and of the model of class frequencies alone, nats per row.
    objective_error : float
        Standard error of an objective that is estimated from some rows, if a pass over all is too expensive; else 0.
    pseudo_r2 : float
        Share of the deviance explained on the training rows (D2): 1 - deviance / deviance of class frequencies. For
        labels it is McFadden's.
    class_totals : numpy.ndarray
        (Weighted) rows or counts of every class, (class,).
    n_rows, n_dropped, n_empty, n_classes : int
        Rows fitted, rows dropped because of a NaN, and because they have no counts; classes.
    epochs, row_evals : int
        Steps of Newton or passes of a sampling solver; rows evaluated, all passes counted (a sampling solver sees a
        handful of classes at each).
    step, step_tuned, steps_tried, overshot : float, bool, tuple of float, bool
        Of a sampling solver: step size times rows, c, of the first epoch (nan for others); whether ``step="tune"``
        chose it, and from which if it tried any; whether the fit ended worse than class frequencies, which were kept
        instead.
    tuning : dict of numpy.ndarray
        Of a cross-validation: regularizer_strength (strength,), score and converged (strength, fold) of what was tried,
        and chosen, the strength of the fit; empty without one.
    gap_is_bound, relative_gap, n_features, step_certificate, failure_probability :
        As in `FitReport`, one each; and so are history, solver_name, seconds_run and seconds_compile.
    """

    gap_theorem: str
    class_totals: np.ndarray
    n_empty: int
    n_classes: int
    objective_error: float = 0.0
    step: float = np.nan
    step_tuned: bool = False
    steps_tried: tuple = ()
    overshot: bool = False
    tuning: dict = field(default_factory=dict, repr=False)

    _frame = "status", "gap", "gap_kind", "relative_gap", "pseudo_r2", "objective", "n_rows", "n_classes", "epochs"
    _words: ClassVar[dict[Status, str]] = {
        Status.PRECISION_FLOOR: (
            "Progress stopped above the tolerance, because of rounding or, with a majorization, slow convergence: "
            'loosen tol, bring the features to similar scales, or use solver_name="auto".'
        ),
        Status.UNPROVED: NO_PROOF.format(", or a proof was too expensive", ', or solver_name="auto"'),
    }

    def _advice(self, status: Status) -> str:
        if status != Status.NO_GAIN or np.isnan(self.step):
            return super()._advice(status)
        how = 'as step="tune" chose it' if self.step_tuned else "as given"
        step = f"the first was {self.step:g}, {how}"
        if self.overshot:
            what = f"The steps led to a worse fit, so class frequencies are kept: they were too long ({step})"
            try_ = "give a shorter step"
        else:
            what = f"The steps have hardly moved the coefficients: they were too short ({step}) or too few"
            try_ = "give a longer step or more epochs"
        return (
            f"{what}, or the features explain nothing (they are constant, or the penalty is strong). Centre X and "
            f'scale it to about 1, {try_}, or solve exactly with solver_name="ConjugateGradients" to find out.'
        )

    def _summary(self) -> Summary:
        """Summarise the data, the distance from the optimum, advice and certificate."""
        left_out = [f"{n} {what}" for n, what in ((self.n_dropped, "with NaN"), (self.n_empty, "without counts")) if n]
        if np.isnan(self.gap):
            gap = "not computed (too many rows times classes, or certify=False)"
        elif self.gap_is_bound and self.relative_gap > 1 and not self.converged:
            gap = f"no useful bound ({self.gap:.1e} nats per row, more than the model explains)"
        else:
            gap = f"{self.gap:.1e} nats per row ({self._gap_kind}), {self.relative_gap:.1e} of what the model explains"
        least, most = (f"{x:.6g}" for x in (self.class_totals.min(), self.class_totals.max()))
        lines = [
            f"{self.solver_name}: {self.status.label}; {self.n_rows} rows"
            + (f" ({', '.join(left_out)} dropped)" if left_out else "")
            + f", {self.n_features} features, {self.n_classes} classes ({least} to {most} rows or counts each)",
            self._seconds(),
            f"gap F-F*: {gap}",
            f"objective {self.objective:.6g}"
            + (f" (of some rows, standard error {self.objective_error:.1g})" if self.objective_error else "")
            + f", class frequencies alone {self.null_objective:.6g}, pseudo-R2 {self.pseudo_r2:.4f}",
        ]
        if not np.isnan(self.step):
            tried = ", ".join(f"{step:.2g}" for step in self.steps_tried)
            lines.append(f"step c {self.step:.3g}" + (f", the best of {tried}" if tried else ""))
        if self.tuning:
            lines.append(self._choice())
        lines += self.advice
        if self.step_certificate is not None:
            lines.append(str(self.step_certificate))
        return Summary([*lines, f"gap bound: {self.gap_theorem}"] if self.gap_is_bound else lines)

    def _choice(self) -> str:
        """Report the strength a cross-validation chose, its score, and how many of its fits have converged."""
        names = "regularizer_strength", "score", "converged", "chosen"
        strengths, score, converged, chosen = (self.tuning[name] for name in names)
        scored = score[:, ~np.isnan(score).any(axis=0)]
        mean = scored.mean(axis=1)[np.searchsorted(strengths, chosen)]
        fits = f"; {converged.sum()} of {converged.size} fits to them converged" if np.isnan(self.step) else ""
        folds = f"{scored.shape[1]} held-out folds (mean score {mean:.4f})"
        return f"ridge {chosen:.3g} chosen among {len(strengths)} by {folds}{fits}"


@dataclass(frozen=True, repr=False, kw_only=True)
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
        bounds, in nats over all pairs (half squares for the squared loss); nan without a proof, which needs a linear
        tower and ridges.
    gap_per_neuron : numpy.ndarray
        The same by changing one neuron alone, (neuron,), where neurons have no features; else nan.
    gap_theorem, pseudo_r2 : str, float
        Theorem that proves these bounds; share of the deviance explained on the pairs fitted (D2): 1 - deviance /
        deviance of every neuron's mean.
    n_stimuli, n_neurons, n_stimuli_unseen, n_neurons_unseen : int
        Entities, and those without a response.
    n_pairs, n_trials, density : int, int, float
        Pairs with a response; responses (repeated trials counted); share of all pairs that have one.
    n_components, n_parameters : int
        Columns of the embeddings; numbers fitted.
    imputation_weight, regularizer_strength, solver_name : float, float, str
        Those of the fit, given or chosen.
    epochs, evaluations, products : int, float, int
        Iterations or epochs, passes over the pairs, and products with the Gauss-Newton matrix of the last fit.
    seconds_run, seconds_compile : float
        Wall time without, and of, compilation, choices on held-out pairs included.
    tuning : dict of numpy.ndarray
        imputation_weight, regularizer_strength, score (D2 on held-out pairs) of everything tried; empty if there was
        nothing to choose.
    history : dict of numpy.ndarray
        epoch, seconds, objective, gradient_norm of the last fit.
    """

    start_objective: float
    gradient_norm: float
    relative_gradient: float
    gap_stimuli: float
    gap_neurons: float
    gap_per_neuron: np.ndarray
    gap_theorem: str
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
    evaluations: float
    products: int
    tuning: dict = field(default_factory=dict, repr=False)

    _frame = (
        "status", "relative_gradient", "gap_stimuli", "gap_neurons", "pseudo_r2", "objective", "n_pairs", "epochs"
    )  # fmt: skip
    _words: ClassVar[dict[Status, str]] = {
        Status.MAX_EPOCHS: "The budget ran out first: raise max_epochs, or accept the reported gradient.",
        Status.PRECISION_FLOOR: (
            "Rounding stops further progress above the tolerance: loosen tol, or pass float64 data with jax's x64 mode "
            "on."
        ),
        Status.NON_FINITE: (
            "A number overflowed: check the scale of the features and responses; Adam and similar solvers need a "
            "shorter step, and a stronger ridge keeps embeddings small. The last finite parameters are kept."
        ),
        Status.INTERRUPTED: "The fit was stopped by the user: the model is usable, and as good as the report says.",
    }

    def _summary(self) -> Summary:
        """Summarise the data, the progress, what is and is not proved, advice."""
        unseen = {"stimuli": self.n_stimuli_unseen, "neurons": self.n_neurons_unseen}
        empty = [f"{n} {what}" for what, n in unseen.items() if n]
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
            f"{self._seconds()}, {self.evaluations:.0f} passes over the pairs"
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
