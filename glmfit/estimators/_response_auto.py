"""Solvers of response models by name, and which one ``solver_name="auto"`` picks."""

from __future__ import annotations

from typing import Any

from .. import solvers

SOLVERS: dict[str, Any] = {
    name: getattr(solvers, solver)
    for name, solver in {
        "LBFGS": "TowerLBFGS",
        "GaussNewton": "GaussNewton",
        "Adam": "TowerAdam",
        "LeftBatches": "LeftBatches",
        "SampledPairs": "SampledPairs",
    }.items()
    if hasattr(solvers, solver)
}


def choose_response_solver(hidden: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Name the solver for towers with some hidden layers: "LBFGS" for linear ones, else "Adam".

    Parameters
    ----------
    hidden : tuple of tuple of int
        Widths of the hidden layers of both towers.
    """
    return "Adam" if any(hidden) else "LBFGS"
