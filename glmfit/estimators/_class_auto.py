"""Which solver ``solver_name="auto"`` picks for a model of classes."""

from __future__ import annotations

_EXACT_WORK = 1e10
_EXACT_SCORES = 1e8


def choose_class_solver(problem) -> str:
    """Name the solver for a problem: "NewtonCG" or "ImplicitSGD".

    NewtonCG, which ends at a proved distance from the optimum, while both

    - its memory is moderate: rows times classes at most 1e8 (32 bytes each);
    - a pass over the rows is: rows (nonzeros, for sparse features) times features times classes at most 1e10, a
      second or two on two cores, of which a fit takes some tens.

    ImplicitSGD beyond, whose steps do not grow with the number of classes. The thresholds are set by what fits in
    memory and ends in minutes; the section "crossover" of benchmarks/softmax_fits.py times both solvers.
    """
    n, K = problem.n_rows, problem.n_classes
    products = getattr(problem.X, "nnz", n * problem.n_features)
    return "NewtonCG" if n * K <= _EXACT_SCORES and (products + 30 * n) * K <= _EXACT_WORK else "ImplicitSGD"
