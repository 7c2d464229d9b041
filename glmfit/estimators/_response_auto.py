"""Solvers of response models by name, and which one ``solver_name="auto"`` picks."""

from __future__ import annotations

from ..pairs import GaussNewton, LeftBatches, SampledPairs, TowerAdam, TowerLBFGS

SOLVERS = {
    "LBFGS": TowerLBFGS,
    "GaussNewton": GaussNewton,
    "Adam": TowerAdam,
    "LeftBatches": LeftBatches,
    "SampledPairs": SampledPairs,
}


def choose_response_solver(hidden: tuple[tuple[int, ...], tuple[int, ...]]) -> str:
    """Name the solver for towers with some hidden layers: "LBFGS" for linear ones, else "Adam".

    Parameters
    ----------
    hidden : tuple of tuple of int
        Widths of the hidden layers of both towers.
    """
    return "Adam" if any(hidden) else "LBFGS"
