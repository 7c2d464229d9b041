"""Neurons fitted one by one, each with features of its own, as one model of the population."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
from numpy.typing import NDArray

from ..bounds import StepCertificate
from ..estimators import FitReport


def join_neurons(models: list, names: list[str]):
    """Put models of one neuron each, fitted to as many features, side by side.

    The PopulationGLM has coefficients (feature, neuron) and one report: the bounds are those of the single fits, and
    their failure probabilities are added up. It has no history of checks.
    """
    joined, reports = models[0], [m.report_ for m in models]
    coef = np.concatenate([m.coef_ for m in models], axis=1)
    intercept = np.concatenate([m.intercept_ for m in models])
    changes = {
        "neuron": list(names),
        "row_evals": max(r.row_evals for r in reports),
        "rank": min(r.rank for r in reports),
        "solver_name": "/".join(sorted({r.solver_name for r in reports})),
        "step_certificate": _join_steps([r.step_certificate for r in reports]),
        "failure_probability": sum(r.failure_probability for r in reports),
        "seconds_run": sum(r.seconds_run for r in reports),
        "seconds_compile": sum(r.seconds_compile for r in reports),
        "history": {},
    }
    report = replace(joined.report_, **_arrays(reports, FitReport), **changes)
    joined.coef_, joined.intercept_, joined.report_ = coef, intercept, report
    if isinstance(joined.strength_, np.ndarray):  # chosen for every neuron
        joined.strength_ = np.concatenate([m.strength_ for m in models], axis=-1)
    return joined


def _join_steps(steps: list[StepCertificate | None]) -> StepCertificate | None:
    """One certificate for all neurons, if all have one."""
    if any(step is None for step in steps):
        return None
    return replace(
        steps[0],
        **_arrays(steps, StepCertificate),
        assumptions=tuple(dict.fromkeys(a for step in steps for a in step.assumptions)),
        failure_probability=sum(step.failure_probability for step in steps),
        certified=all(step.certified for step in steps),
    )


def _arrays(parts: list, cls: type) -> dict[str, NDArray]:
    """Arrays with a number per neuron, one after the other."""
    found = {}
    for f in fields(cls):
        if isinstance(getattr(parts[0], f.name), np.ndarray):
            found[f.name] = np.concatenate([getattr(part, f.name) for part in parts])
    return found
