"""SAGA: one scalar per row and fit remembers the last gradient seen."""

from .solver import SAGA

__all__ = ["SAGA"]
