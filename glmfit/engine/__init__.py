"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""

from __future__ import annotations

from .solve import ConjugateGradients, ProximalNewton, solve

__all__ = ["ConjugateGradients", "ProximalNewton", "solve"]
