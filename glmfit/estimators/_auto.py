"""Which solver ``solver_name="auto"`` picks."""

from __future__ import annotations

from collections.abc import Iterable

from ..engine import ConjugateGradients, ProximalNewton
from ..problems import PopulationProblem
from ..solvers import SAGA, Newton
from ._parameters import read_solver

SOLVERS = {
    "ConjugateGradients": ConjugateGradients,
    "ProximalNewton": ProximalNewton,
    "SAGA": SAGA,
    "Newton": Newton,
}
_REMOVED = ("LBFGS", "BoundMajorization", "SharedNewton")
_FEW_NEURONS = 3
_ROWS_PER_FEATURE = 32
_NEWTON_WORK = 4e7
_SMALL_WORK = 4e6  # up to which a few neurons are fitted one by one
_EXACT_WORK, _EXACT_SCORES = 4e9, 1e8  # of models of classes


def read_population_solver(name, kwargs, parameters: Iterable[str] = (), solvers=SOLVERS):
    """Return the solver of a name, as `read_solver` does; ValueError for those that earlier versions had."""
    if isinstance(name, str) and name in _REMOVED:
        raise ValueError(
            f'solver_name is {name!r}, which version 0.2 no longer has for populations. Use "auto" or '
            '"ConjugateGradients" ("ProximalNewton" for a lasso), which is faster and proves how far from the optimum '
            "a fit is."
        )
    return read_solver(name, kwargs, solvers, parameters=parameters)


def choose_solver(problem: PopulationProblem) -> str:
    """Name the solver for a problem.

    For rows that are read as they are needed, or shared by several devices, "ConjugateGradients" if the penalty is
    smooth, else "ProximalNewton".

    For rows in memory, on whatever device

    - "ConjugateGradients" for smooth penalties; where some coefficients have no penalty only if the features have full
      rank and single precision resolves all their directions;
    - "ProximalNewton" for penalties with kinks on all coefficients, but for up to three neurons of short recordings.

    Of the others "Newton"

    - for up to three neurons;
    - with fewer than 32 rows per feature, where blocks of rows say little about the whole;
    - where it takes about half a second at most, measured by ``N T (d + 56)``: it compiles nothing, and the first
      fit by SAGA takes some seconds to compile.

    "SAGA" beyond. The thresholds rest on benchmarks/auto_rule.py, whose timings of both solvers are committed.
    """
    if not problem.in_memory or len(problem.devices) > 1:
        return "ConjugateGradients" if problem.penalty.smooth else "ProximalNewton"
    if problem.penalty.smooth and (problem.penalty.penalises_all or problem.basis.is_resolved):
        return "ConjugateGradients"
    n_rows, n_features, n_neurons = problem.n_rows, problem.n_features, problem.n_neurons
    work, few = n_neurons * n_rows * (n_features + 56.0), n_neurons <= _FEW_NEURONS
    kinks = not problem.penalty.smooth and problem.penalty.penalises_all
    if kinks and not (few and work <= _SMALL_WORK):
        return "ProximalNewton"
    few = few or n_rows < _ROWS_PER_FEATURE * n_features
    return "Newton" if few or work <= _NEWTON_WORK else "SAGA"


def choose_class_solver(problem) -> str:
    """Name the solver for a problem: "ConjugateGradients" or "ImplicitSGD".

    ConjugateGradients, which ends at a proved distance from the optimum, while both

    - its memory is moderate: rows times classes at most 1e8 (32 bytes each);
    - a pass over the rows is: rows times (features + 30) times classes, the nonzeros in place of rows times features
      for sparse ones, at most 4e9.

    ImplicitSGD beyond, whose steps do not grow with the number of classes. The second is where both were measured to
    be equally fast with version 0.1 (section "crossover" of benchmarks/softmax_fits.py: 20 000 rows, 32 features): with
    1 000 classes the exact solver passed what 50 epochs of ImplicitSGD reach in 0.3 of their time, with 4 000 it took
    1.3 times as long.
    """
    n, K = problem.n_rows, problem.n_classes
    products = getattr(problem.X, "nnz", n * problem.n_features)
    return "ConjugateGradients" if n * K <= _EXACT_SCORES and (products + 30 * n) * K <= _EXACT_WORK else "ImplicitSGD"
