"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from __future__ import annotations

from .base import Evaluation, FiniteSum, Params, Problem
from .population import PopulationProblem
from .softmax import Pairs, SoftmaxProblem

__all__ = ["Evaluation", "FiniteSum", "Pairs", "Params", "PopulationProblem", "Problem", "SoftmaxProblem"]
