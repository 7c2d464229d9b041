"""The engine of every convex fit: rows, independent fits, two products; steps that see all rows."""

from .newton import Newton
from .solvers import ConjugateGradients, ProximalNewton

__all__ = ["ConjugateGradients", "Newton", "ProximalNewton"]
