"""Data + observation + penalty: something to minimise, and the one definition of its gap."""

from __future__ import annotations

from .base import Evaluation, FiniteSum, Params, Problem
from .population import PopulationProblem

__all__ = ["Evaluation", "FiniteSum", "Params", "PopulationProblem", "Problem"]
