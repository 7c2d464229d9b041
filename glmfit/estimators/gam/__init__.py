"""Additive models: smooth terms whose strengths the data choose, with intervals."""

from .population_gam import PopulationGAM
from .report import SmoothReport
from .term_curve import TermCurve

__all__ = ["PopulationGAM", "SmoothReport", "TermCurve"]
