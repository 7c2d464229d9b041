"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from __future__ import annotations

from ._population import PopulationProblem
from .base import Evaluation, FiniteSum, Params, Problem
from .folds import FoldedProblem
from .padded import PaddedProblem
from .path import PathProblem
from .softmax import Pairs, SoftmaxProblem
from .streamed import StreamedProblem

__all__ = [
    "Evaluation",
    "FiniteSum",
    "FoldedProblem",
    "PaddedProblem",
    "Pairs",
    "Params",
    "PathProblem",
    "PopulationProblem",
    "Problem",
    "SoftmaxProblem",
    "StreamedProblem",
]
