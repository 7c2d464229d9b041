"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from ..pairs import AllPairs, AllPairsProblem, SessionBlock, Triples, TwoTowers
    from ..stochastic import Pairs, SoftmaxProblem
    from ._population import PopulationProblem
    from .base import Evaluation, Params, Problem
    from .folds import FoldedProblem

__all__ = [
    "AllPairs",
    "AllPairsProblem",
    "Evaluation",
    "FoldedProblem",
    "Pairs",
    "Params",
    "PopulationProblem",
    "Problem",
    "SessionBlock",
    "SoftmaxProblem",
    "Triples",
    "TwoTowers",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    _population=("PopulationProblem",),
    base=("Evaluation", "Params", "Problem"),
    folds=("FoldedProblem",),
    **{
        ".pairs": ("AllPairs", "AllPairsProblem", "SessionBlock", "Triples", "TwoTowers"),
        ".stochastic": ("Pairs", "SoftmaxProblem"),
    },
)
