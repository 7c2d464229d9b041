"""Names that moved; the next version removes `glmfit.problems`."""

import importlib
from typing import Any

from .checks import warn_user
from .lazy import no_longer

_ROOMS = {
    "engine": ("Evaluation", "FoldedProblem", "Params", "PopulationProblem", "Problem"),
    "pairs": ("AllPairs", "AllPairsProblem", "SessionBlock", "Triples", "TwoTowers"),
    "stochastic": ("Pairs", "SoftmaxProblem"),
}
_PLACES = {name: f"glmfit.{room}" for room, names in _ROOMS.items() for name in names}
_INSTEAD = {
    "FiniteSum": "solvers take a `glmfit.engine.PopulationProblem`, or a `glmfit.stochastic.SoftmaxProblem`",
    "PaddedProblem": "use `glmfit.engine.PopulationProblem`: no shape is compiled any more, so that padding has no use",
    "PathProblem": "use `PopulationGLM.path` or `PopulationGLMCV`",
    "StreamedProblem": "use `glmfit.engine.PopulationProblem`, which also takes rows that are read during the fit",
}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        no_longer(__name__, _INSTEAD)(name)
    warn_user(f"glmfit.problems.{name} is {_PLACES[name]}.{name} now; the next version removes glmfit.problems.")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
