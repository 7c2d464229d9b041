"""Designs larger than memory: rows of features or of counts, read a run at a time."""

from ._side_by_side import hstack
from ._sources import as_source
from .base import RowSource
from .convolution import Convolution

__all__ = ["Convolution", "RowSource", "as_source", "hstack"]
