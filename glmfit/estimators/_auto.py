"""Which solver ``solver_name="auto"`` picks."""

from __future__ import annotations

from ..problems import PopulationProblem

_FEW_NEURONS = 3
_NEWTON_WORK = 2e9


def choose_solver(problem: PopulationProblem) -> str:
    """Name the solver for a problem: "Newton" or "SAGA".

    Newton forms one T x d^2 product per neuron and step and compiles nothing; SAGA shares one T x d^2 product
    among all neurons and then reads the rows some forty times for all of them together. So: SAGA for
    penalties without a Hessian; otherwise Newton for up to three neurons, or when all its Hessians together
    (N T d^2 multiplications) take well under a second; SAGA beyond. The first threshold is measured in
    benchmarks/poisson_population.py (section newton); benchmarks/auto_rule.py maps other shapes.
    """
    if not problem.penalty.rotation_invariant:
        return "SAGA"
    work = float(problem.n_neurons) * problem.n_rows * (problem.n_features + 1) ** 2
    return "Newton" if problem.n_neurons <= _FEW_NEURONS or work <= _NEWTON_WORK else "SAGA"
