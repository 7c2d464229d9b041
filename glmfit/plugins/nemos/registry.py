"""The names under which NeMoS finds our solvers."""

import nemos

from .solver import SAGA, Newton, NonlinearCG, ProximalNewton, Solver
from .terms import REGULARIZERS

BACKEND = "glmfit"
_SMOOTH = ("UnRegularized", "Ridge")
SOLVERS: dict[str, tuple[type[Solver], tuple[str, ...]]] = {
    "SAGA": (SAGA, REGULARIZERS),
    "NonlinearCG": (NonlinearCG, _SMOOTH),
    "Newton": (Newton, _SMOOTH),
    "ProximalNewton": (ProximalNewton, REGULARIZERS),
}
"""Name of an algorithm -> our solver, and the regularizers it serves."""


class _Spec(nemos.solvers.SolverSpec):
    """Entry of NeMoS's registry whose algorithm is named with its backend.

    Since NeMoS 0.2.9 a model keeps only the name of the algorithm. A clone of a model with "NonlinearCG[glmfit]", for
    example in a grid search, would then be fitted by NeMoS's own "NonlinearCG".
    """

    @property
    def full_name(self) -> str:
        """Algorithm and backend."""
        return self.algo_name


def register() -> None:
    """Register our solvers with NeMoS and with its regularizers. Repeated calls change nothing."""
    for algorithm, (solver, regularizers) in SOLVERS.items():
        name, known = f"{algorithm}[{BACKEND}]", nemos.solvers.list_available_algorithms()
        if algorithm not in known or BACKEND not in nemos.solvers.list_algo_backends(algorithm):
            nemos.solvers.register(algorithm, solver, backend=BACKEND, validate=True)
            spec = nemos.solvers.get_solver(name)
            spec.__class__, spec.algo_name = _Spec, name
        for regularizer in regularizers:
            for allowed in (algorithm, name):
                getattr(nemos.regularizer, regularizer).allow_solver(allowed)
