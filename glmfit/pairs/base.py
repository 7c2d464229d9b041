"""What a solver may ask of a problem of pairs, which is not convex."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from .._progress import counted


class TwoSided(ABC):
    """A smooth problem of pairs of left and right entities that is not convex: solvers look for a stationary point.

    Parameters are a tree of arrays of the problem's choosing, every array leaf a parameter.

    Attributes
    ----------
    data : equinox.Module
        What is compiled, passed as an argument: ``objective(theta)``, ``value_and_gradient(theta)``,
        ``magnitude(theta)`` (size of the terms whose sum the objective is, to judge its rounding),
        ``gauss_newton(theta)`` (a function of a direction), ``observed_alone()`` (the same without imputation and
        penalty), and ``take(rows, observed)``, the same for some left entities, in expectation over even draws the
        objective itself. Besides, ``draw(key, observed_pairs, n_observed,
        n_imputed)`` and ``sampled(theta, draw)``, an estimate of the objective from single pairs.
    n_left, n_right, n_pairs : int
        Entities, and observed pairs.
    """

    data: Any
    n_left: int
    n_right: int
    n_pairs: int

    @property
    def subject(self) -> str:
        """What a progress bar says is fitted."""
        return counted(self.n_pairs, "response")

    @abstractmethod
    def left_batches(self, size: int, seed: int) -> tuple[Any, Any]:
        """Cut the left entities, in a drawn order, into batches: rows (batch, size), and what `take` takes besides."""

    @property
    @abstractmethod
    def observed_pairs(self) -> Any:
        """Observed pairs on the device, for ``data.draw``."""

    @property
    @abstractmethod
    def triples(self) -> tuple[Any, Any]:
        """Observed pairs on the host: left, right, mean response; and numbers of trials, None if all are 1."""
