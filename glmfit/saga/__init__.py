"""SAGA: one scalar per row and fit stores the last gradient."""

from .solver import SAGA

__all__ = ["SAGA"]
