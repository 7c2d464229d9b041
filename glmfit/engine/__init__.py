"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""

from .solvers import ConjugateGradients, Newton, ProximalNewton

__all__ = ["ConjugateGradients", "Newton", "ProximalNewton"]
