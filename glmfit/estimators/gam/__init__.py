"""Additive models: smooth terms whose strengths the data choose, with intervals."""

from .population_gam import PopulationGAM
from .report import SmoothReport

__all__ = ["PopulationGAM", "SmoothReport"]
