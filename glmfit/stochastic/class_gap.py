"""Distance of a softmax model from the optimum: a bound by weak duality. Derivation: docs/theory/softmax_gap.md."""

import numpy as np
import scipy.special

from ..engine.problem import Params
from .log_linear import LogLinearGap

GAP_THEOREM = "weak duality of the ridge-penalised softmax problem (docs/theory/softmax_gap.md, Proposition 1)"
KINKS_THEOREM = "weak duality at residuals that the penalty allows (docs/theory/softmax_gap.md, Proposition 3)"
_SETTLING_STEPS = 3  # in the intercepts, for a bound
_SETTLING_WORK, _FEW = 1e9, 64  # rows times pairs of classes, or classes, up to which steps are Newton's
_NEVER = -1e3  # change of the intercept of a class that was never seen
_SHORT = 1e-13  # of residuals: norms of large groups round
_LONGEST = 10.0  # factor of a step, of a class that is rare except where it is certain


def certify_gap(problem, params: Params) -> LogLinearGap:
    """Bound F - F* of a `SoftmaxProblem` at any parameters by a feasible point of the dual, in one to four passes.

    The point is the model's own probabilities, mixed with just enough of a fixed distribution that the expected count
    of every class is the observed one. If this mixing costs the most, nearly optimal intercepts are also tried.
    """
    n_classes = problem.n_classes
    paired = problem.n_rows * n_classes**2 <= _SETTLING_WORK or n_classes <= max(_FEW, problem.n_features)
    sums = problem.sums_at(params, paired)
    objective, slope = sums.objective, sums.gradient.coef + problem.strength * params.coef
    norm = float(np.sqrt(np.sum(slope**2) + np.sum(sums.gradient.intercept**2)))
    if not problem.penalty.penalises_all or not np.isfinite(objective):
        return LogLinearGap(objective, np.inf, norm, "none: without a penalty nothing bounds the distance")
    value, rounding, drop = _dual(problem, params, sums)
    bound = max(objective - value, 0.0) + rounding
    for _ in range(_SETTLING_STEPS):
        mixing = sums.objective - value - drop  # what is added because the intercepts are not optimal
        if mixing <= drop:
            break
        step = _settling_step(problem, sums)
        params = Params(params.coef, params.intercept + step)
        with np.errstate(over="ignore", invalid="ignore"):  # far away a Newton step may diverge
            sums = problem.sums_at(params, paired)
            value, more, drop = _dual(problem, params, sums)
        if not np.isfinite(value):
            break
        bound = min(bound, max(objective - value, 0.0) + rounding + more)
    return LogLinearGap(objective, bound, norm, GAP_THEOREM if problem.penalty.smooth else KINKS_THEOREM)


def _settling_step(problem, sums) -> np.ndarray:
    """Change of the intercepts that brings expected counts nearer to the observed ones, (class,).

    By Newton where the Hessian is known, else with its diagonal, and in logarithms, since counts are positive.
    """
    if sums.bend.ndim == 2:
        return np.linalg.lstsq(sums.bend, -sums.gradient.intercept, rcond=1e-12)[0]
    seen, expected = problem.class_totals, problem.class_totals + problem.n_rows * sums.gradient.intercept
    with np.errstate(divide="ignore", invalid="ignore"):
        step = np.log(seen / expected) * np.minimum(expected / problem.n_rows / sums.bend, _LONGEST)
    return np.where(seen > 0, np.where(np.isfinite(step), step, 0.0), _NEVER)


def _dual(problem, params: Params, sums) -> tuple[float, float, float]:
    """Value of a feasible point of the dual, at most F* up to rounding; the gap of the best intercepts."""
    strength, n_rows = problem.strength, problem.n_rows
    objective, gradient, entropy, tilt, _ = sums
    share, mix = _feasible_mix(problem, gradient.intercept)
    # Residuals of the mixed point: (1 - t) R + t (n q' - Y), whose columns sum to 0.
    pulled = (1 - share) * gradient.coef
    if share > 0:
        toward = np.outer(problem.class_sums.sum(axis=1), mix) - problem.class_sums
        pulled = pulled + share * toward / n_rows
    # Entropy is concave: the mixture's is at least the mixture of the two.
    value = (1 - share) * entropy + share * problem.totals.sum() / n_rows * scipy.special.entr(mix).sum()
    if problem.offset is not None:
        toward = (problem.totals @ problem.offset) @ mix - problem.counts.multiply(problem.offset).sum()
        value += (1 - share) * tilt + share * toward / n_rows
    if problem.penalty.smooth:
        fall = np.sum(pulled**2) / (2 * strength)
        drop = np.sum((gradient.coef + strength * params.coef) ** 2) / (2 * strength)
    else:
        fall = value - _allowed(problem, value, pulled)
        drop = objective - _allowed(problem, entropy + tilt, gradient.coef)
    rounding = 64 * np.finfo(float).eps * (abs(objective) + abs(entropy) + abs(tilt) + abs(fall))
    rounding += problem.rounding_of_scores(params)
    return float(value - fall), float(rounding), float(drop)


def _allowed(problem, value: float, pulled: np.ndarray) -> float:
    """Value of the dual after all residuals are shrunk until the penalty's conjugate is finite.

    Shrunk residuals are those of a mixture with the observed shares, whose entropy is that of the saturated model.
    """
    dual, least = -pulled, problem.saturated_loss
    shares = np.min(problem.penalty.shares(dual), axis=1) * (1 - _SHORT)  # the same for all classes
    values = [s * value + (1 - s) * least - np.sum(problem.penalty.conjugate(s * dual)) for s in shares]
    return float(np.max(values))


def _feasible_mix(problem, grad_intercept) -> tuple[float, np.ndarray]:
    """Share t and distribution q that make expected counts of ``(1 - t) pi + t q`` the observed ones."""
    total = problem.class_totals
    if not problem.fit_intercept:
        return 0.0, np.full(problem.n_classes, 1 / problem.n_classes)
    missing = -problem.n_rows * grad_intercept  # observed minus expected
    missing = missing - total * (missing.sum() / total.sum())  # which add up to 0, up to rounding
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.max(np.where(missing < 0, -missing / total, 0.0))
    if not ratio > 0:
        return 0.0, total / total.sum()
    if not np.isfinite(ratio):  # a class never seen must have an expected count of 0
        return 1.0, total / total.sum()
    share = ratio / (1 + ratio)
    q = np.maximum((share * total + (1 - share) * missing) / (share * total.sum()), 0.0)
    # If rounding leaves nothing of q, next to nothing is missing: any distribution will do.
    return share, q / q.sum() if q.sum() > 0 else total / total.sum()
