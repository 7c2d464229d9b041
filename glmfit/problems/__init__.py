"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from ._pairs_objective import AllPairs
    from ._population import PopulationProblem
    from ._responses import SessionBlock, Triples
    from ._towers import TwoTowers
    from .all_pairs import AllPairsProblem
    from .base import Evaluation, FiniteSum, Params, Problem
    from .folds import FoldedProblem
    from .padded import PaddedProblem
    from .path import PathProblem
    from .softmax import Pairs, SoftmaxProblem
    from .streamed import StreamedProblem

__all__ = [
    "AllPairs",
    "AllPairsProblem",
    "Evaluation",
    "FiniteSum",
    "FoldedProblem",
    "PaddedProblem",
    "Pairs",
    "Params",
    "PathProblem",
    "PopulationProblem",
    "Problem",
    "SessionBlock",
    "SoftmaxProblem",
    "StreamedProblem",
    "Triples",
    "TwoTowers",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    _pairs_objective=("AllPairs",),
    _population=("PopulationProblem",),
    _responses=("SessionBlock", "Triples"),
    _towers=("TwoTowers",),
    all_pairs=("AllPairsProblem",),
    base=("Evaluation", "FiniteSum", "Params", "Problem"),
    folds=("FoldedProblem",),
    padded=("PaddedProblem",),
    path=("PathProblem",),
    softmax=("Pairs", "SoftmaxProblem"),
    streamed=("StreamedProblem",),
)
