"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from __future__ import annotations

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
