"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from ..pairs import AllPairs, AllPairsProblem, SessionBlock, Triples, TwoTowers
    from ..stochastic import Pairs, SoftmaxProblem
    from ._population import FoldedProblem, PopulationProblem
    from .base import Evaluation, Params, Problem

__all__ = [
    "Problem", "Params", "Evaluation", "PopulationProblem", "FoldedProblem",
    "SoftmaxProblem", "Pairs",
    "AllPairsProblem", "AllPairs", "SessionBlock", "Triples", "TwoTowers",
]  # fmt: skip

__getattr__, __dir__ = _names_of_rooms(__name__, __all__, (".base", "._population", "..pairs", "..stochastic"))
