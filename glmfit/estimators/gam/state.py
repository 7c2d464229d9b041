"""State of the terms of a fitted additive model: coordinates, posterior, degrees of freedom."""

from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np

_BY_TERM = ("covariance", "wide")


@dataclass(frozen=True, kw_only=True)
class Smooth:
    """Terms of a fit, in coordinates in which penalties are diagonal; float64.

    The coefficients of a neuron are ``turn @ coordinates[:-1]``, its predictor at features x is
    ``(x - mean) @ turn @ coordinates[:-1] + coordinates[-1]``.
    """

    places: np.ndarray  # first and last + 1 coordinate of every term, (term, 2), in the order of `terms_`
    turn: np.ndarray  # (feature, coordinate)
    mean: np.ndarray  # (feature,)
    gram: np.ndarray  # second moments of the coordinates over the rows, (coordinate, coordinate)
    coordinates: np.ndarray  # (neuron, coordinate + 1), the intercept of centred features last
    degrees: np.ndarray  # effective degrees of freedom: the diagonal of F, (coordinate, neuron)
    degrees_of_tests: np.ndarray  # and that of 2 F - F F
    scale: np.ndarray  # dispersion that multiplies the covariance, 1 for models without a scale, (neuron,)
    # By term: posterior covariance of its coordinates and the intercept, at a scale of 1, (neuron, coordinate + 1,
    # coordinate + 1), at the strengths of the fit, nan for neurons without a fit or the term; and the same with the
    # uncertainty of strengths that were chosen.
    covariance: dict[str, np.ndarray] = field(default_factory=dict)
    wide: dict[str, np.ndarray] = field(default_factory=dict)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays by name, as stored in a file."""
        arrays = {}
        for f in fields(self):
            value = getattr(self, f.name)
            of = {f".{name}": part for name, part in value.items()} if f.name in _BY_TERM else {"": value}
            arrays |= {f"smooth.{f.name}{name}": part for name, part in of.items()}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: dict[str, np.ndarray]) -> Self:
        """Undo `to_arrays`."""
        parts: dict = {name: {} for name in _BY_TERM}
        for name, array in arrays.items():
            first, _, rest = name.partition(".")
            if first == "smooth":
                of, _, term = rest.partition(".")
                if of in _BY_TERM:
                    parts[of][term] = array
                else:
                    parts[of] = array
        return cls(**parts)
