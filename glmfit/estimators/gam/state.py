"""What a fitted additive model keeps of its terms: their coordinates, the posterior there, degrees of freedom."""

from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """Terms of a fit, in coordinates in which penalties are diagonal; float64.

    The coefficients of a neuron are ``turn @ coordinates[:-1]``, its predictor at features x is
    ``(x - mean) @ turn @ coordinates[:-1] + coordinates[-1]``.

    Attributes
    ----------
    places : numpy.ndarray
        First and last + 1 coordinate of every term, (term, 2), terms in the order of ``terms_``.
    turn, mean, gram : numpy.ndarray
        (feature, coordinate), (feature,), and second moments of the coordinates over the rows,
        (coordinate, coordinate).
    coordinates : numpy.ndarray
        (neuron, coordinate + 1), the intercept of centred features last.
    degrees, degrees_of_tests : numpy.ndarray
        Effective degrees of freedom of every coordinate: the diagonals of F and of 2 F - F F, (coordinate, neuron).
    scale : numpy.ndarray
        Dispersion that multiplies the covariance, 1 for models without a scale, (neuron,).
    covariance : dict of str to numpy.ndarray
        By term: posterior covariance of its coordinates and the intercept, at a scale of 1,
        (neuron, coordinate + 1, coordinate + 1); nan for neurons without a fit.
    """

    places: np.ndarray
    turn: np.ndarray
    mean: np.ndarray
    gram: np.ndarray
    coordinates: np.ndarray
    degrees: np.ndarray
    degrees_of_tests: np.ndarray
    scale: np.ndarray
    covariance: dict[str, np.ndarray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Arrays by name, as a file has them."""
        plain = {f"smooth.{f.name}": getattr(self, f.name) for f in fields(self) if f.name != "covariance"}
        return plain | {f"smooth.covariance.{name}": of for name, of in self.covariance.items()}

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Undo `to_arrays`."""
        of = {name.removeprefix("smooth."): array for name, array in arrays.items() if name.startswith("smooth.")}
        covariance = {n.removeprefix("covariance."): a for n, a in of.items() if n.startswith("covariance.")}
        return cls(covariance=covariance, **{f.name: of[f.name] for f in fields(cls) if f.name != "covariance"})
