"""Names that moved; the next version removes `glmfit.problems`."""

import importlib
from typing import Any

from .checks import warn_user

_ROOMS = {
    "engine": ("Evaluation", "FoldedProblem", "Params", "PopulationProblem", "Problem"),
    "pairs": ("AllPairs", "AllPairsProblem", "SessionBlock", "Triples", "TwoTowers"),
    "stochastic": ("Pairs", "SoftmaxProblem"),
}
_PLACES = {name: f"glmfit.{room}" for room, names in _ROOMS.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module 'glmfit.problems' has no attribute {name!r}")
    warn_user(f"glmfit.problems.{name} is {_PLACES[name]}.{name} now; the next version removes glmfit.problems.")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
