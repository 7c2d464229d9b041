"""Which solver ``solver_name="auto"`` picks for a model of classes."""

from __future__ import annotations

_EXACT_WORK = 4e9
_EXACT_SCORES = 1e8


def choose_class_solver(problem) -> str:
    """Name the solver for a problem: "ConjugateGradients" or "ImplicitSGD".

    ConjugateGradients, which ends at a proved distance from the optimum, while both

    - its memory is moderate: rows times classes at most 1e8 (32 bytes each);
    - a pass over the rows is: rows times (features + 30) times classes, the nonzeros in place of rows times features
      for sparse ones, at most 4e9.

    ImplicitSGD beyond, whose steps do not grow with the number of classes. The second is where both were measured to
    be equally fast (section "crossover" of benchmarks/softmax_fits.py: 20 000 rows, 32 features): with 1 000 classes
    ConjugateGradients passes what 50 epochs of ImplicitSGD reach in 0.3 of their time, with 4 000 it takes 1.3 times as long.
    """
    n, K = problem.n_rows, problem.n_classes
    products = getattr(problem.X, "nnz", n * problem.n_features)
    return "ConjugateGradients" if n * K <= _EXACT_SCORES and (products + 30 * n) * K <= _EXACT_WORK else "ImplicitSGD"
