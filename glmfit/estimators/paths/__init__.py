"""Fits of a population at many strengths of its penalty, from the strongest to the weakest."""

from .fits import path_of
from .regularization_path import RegularizationPath

__all__ = ["RegularizationPath", "path_of"]
