"""Designs: built of recordings, or larger than memory and read a run at a time."""

from .base import RowSource
from .builder import Built, build
from .convolution import Convolution
from .sessions import Session
from .sources import as_source, hstack

__all__ = ["Built", "Convolution", "RowSource", "Session", "as_source", "build", "hstack"]
