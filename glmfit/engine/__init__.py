"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""

from __future__ import annotations

from .newton import Newton
from .solve import ConjugateGradients, ProximalNewton, solve

__all__ = ["ConjugateGradients", "Newton", "ProximalNewton", "solve"]
