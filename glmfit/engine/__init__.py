"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""

from __future__ import annotations

from .majorization import BoundMajorization
from .solve import ConjugateGradients, ProximalNewton, solve

__all__ = ["BoundMajorization", "ConjugateGradients", "ProximalNewton", "solve"]
