"""Bases of the values of a feature: B-splines on a range and around a circle, and Fourier series."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_flag, check_whole
from . import penalty_matrices as matrices
from .bases import Basis, as_values, check_name
from .terms import set_fields

_CIRCLE = (0.0, 2 * np.pi)


@dataclass(frozen=True)
class _ValueBasis(Basis):
    """Functions of the position of a value in a range, from 0 to 1: `_at` gives them, (position, function)."""

    n: int
    range: tuple[float, float]
    name: str = field(kw_only=True)
    # Subclasses add penalty_order, after order if they have one: the order in which fields are written.
    _goes_around = False

    def __post_init__(self) -> None:
        check_name(self.name)
        n, limits = check_whole("n", self.n), _checked_range(self.range)
        set_fields(self, n=n, range=limits, penalty_order=check_whole("penalty_order", self.penalty_order, 0))

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        return self._on_grid(as_values(values[0], self.name))

    def _axes(self, n: int) -> tuple[np.ndarray, ...]:
        return (np.linspace(*self.range, n),)

    def _on_grid(self, *axes: np.ndarray) -> np.ndarray:
        (values,), (low, high) = axes, self.range
        phase = (values - low) / (high - low)
        if self._goes_around:
            with np.errstate(invalid="ignore"):  # of infinity, which becomes NaN
                phase = np.mod(phase, 1.0)
            phase = np.where(phase >= 1.0, 0.0, phase)  # of a tiny negative number
        known = (phase >= 0) & (phase <= 1)
        features = np.full((len(values), len(self._ends)), np.nan)
        if known.any():
            features[known] = self._at(phase[known])
        return features


@dataclass(frozen=True)
class _Splines(_ValueBasis):
    """Splines with evenly spaced knots in the range, penalised by `_differences` of their coefficients."""

    order: int = field(default=4, kw_only=True)
    penalty_order: int = field(default=2, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, order=check_whole("order", self.order))
        n, order, penalty = self.n, self.order, self.penalty_order
        if n < order:
            raise ValueError(
                f"n is {n}, order {order}; n must be at least the order. Lower order, or give more splines."
            )
        if penalty >= order:
            few = f"splines of order {order} have {order - 1} derivatives"
            raise ValueError(f"penalty_order is {penalty}; {few}, so it must be below order. Lower it, or raise order.")

    @property
    def _intervals(self) -> int:
        """Number of intervals that the knots divide the range into."""
        return self.n if self._goes_around else self.n - self.order + 1

    @property
    def _spacing(self) -> float:
        """Distance of knots, in units of the feature."""
        return (self.range[1] - self.range[0]) / self._intervals

    def _matrices(self) -> tuple[np.ndarray, ...]:
        return (matrices.gram(self._differences(self.penalty_order)),)


@dataclass(frozen=True)
class BSpline(_Splines):
    """B-splines on a range, which add up to 1, penalised by differences of their coefficients (P-splines).

    Parameters
    ----------
    n : int
        Number of splines, at least ``order``.
    range : (float, float)
        Lowest and highest value of the feature. Rows beyond it are NaN.
    name : str
        Name of the term; features are named after it and their number.
    order : int
        Degree of the polynomials plus 1; 4 is cubic.
    penalty_order : int
        Order of the differences, below ``order``: 2 for curvature, where a large strength gives a straight line; 1 for
        steps; 0 for a ridge.
    clamped : bool
        True: knots are repeated at both ends of the range, so that the first and last spline are 1 there, as in NeMoS.
        False: evenly spaced knots continue beyond the range, as in Eilers and Marx 1996. The range has
        ``n - order + 1`` intervals either way.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Notes
    -----
    The penalty is the sum of squares of the coefficients of the derivative of order ``penalty_order``, written in
    splines of a lower order, in units of the knot distance. For evenly spaced knots these are the ordinary differences
    of Eilers and Marx 1996 (Flexible smoothing with B-splines and penalties); otherwise, as at clamped ends, the
    general differences of Li and Cao 2022 (General P-splines for non-uniform B-splines). Only polynomials of a degree
    below ``penalty_order`` are unpenalised, whatever the knots.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import BSpline
    >>> position = BSpline(6, (0, 100), name="position")
    >>> position.features([0, 50, 120]).round(2)
    array([[1.  , 0.  , 0.  , 0.  , 0.  , 0.  ],
           [0.  , 0.03, 0.47, 0.47, 0.03, 0.  ],
           [ nan,  nan,  nan,  nan,  nan,  nan]])
    >>> BSpline(5, (0, 1), name="x", penalty_order=1, clamped=False).penalties[0]
    array([[ 1., -1.,  0.,  0.,  0.],
           [-1.,  2., -1.,  0.,  0.],
           [ 0., -1.,  2., -1.,  0.],
           [ 0.,  0., -1.,  2., -1.],
           [ 0.,  0.,  0., -1.,  1.]])
    """

    kind: ClassVar[str] = "bspline"
    clamped: bool = field(default=True, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        set_fields(self, clamped=check_flag("clamped", self.clamped))

    def _differences(self, times: int) -> np.ndarray:
        knots = matrices.clamped_knots if self.clamped else matrices.even_knots
        return matrices.spline_differences(knots(self.n, self.order), self.order, times)

    def _at(self, phase: np.ndarray) -> np.ndarray:
        degree = self.order - 1
        if self.clamped:
            knots = np.r_[np.zeros(degree), np.linspace(0, 1, self._intervals + 1), np.ones(degree)]
        else:
            knots = matrices.even_knots(self.n, self.order) / self._intervals
        return _design(phase, knots, degree)


@dataclass(frozen=True)
class CyclicBSpline(_Splines):
    """B-splines around a circle, which add up to 1, penalised by differences around it.

    Parameters
    ----------
    n : int
        Number of splines, at least ``order``, and of evenly spaced knots.
    range : (float, float)
        One turn; values beyond it continue around the circle.
    name : str
        Name of the term; features are named after it and their number.
    order : int
        Degree of the polynomials plus 1; 4 is cubic.
    penalty_order : int
        Order of the differences, below ``order``; 0 is a ridge.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Notes
    -----
    Only constants are unpenalised, whatever the order of the differences (unless it is 0). Source: Eilers and Marx
    1996; Wood 2017, Generalized additive models, 5.3.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import CyclicBSpline
    >>> phase = CyclicBSpline(4, name="phase", penalty_order=1)
    >>> phase.features([0, 2 * np.pi]).round(2)
    array([[0.17, 0.67, 0.17, 0.  ],
           [0.17, 0.67, 0.17, 0.  ]])
    >>> phase.penalties[0]
    array([[ 2., -1.,  0., -1.],
           [-1.,  2., -1.,  0.],
           [ 0., -1.,  2., -1.],
           [-1.,  0., -1.,  2.]])
    """

    kind: ClassVar[str] = "cyclic_bspline"
    range: tuple[float, float] = _CIRCLE
    _goes_around = True

    def _differences(self, times: int) -> np.ndarray:
        return matrices.circular_differences(self.n, times)

    def _at(self, phase: np.ndarray) -> np.ndarray:
        n, degree = self.n, self.order - 1
        straight = _design(phase, np.arange(-degree, n + degree + 1) / n, degree)
        straight[:, :degree] += straight[:, n:]  # splines that cross the end continue at the beginning
        return straight[:, :n]


@dataclass(frozen=True)
class Fourier(_ValueBasis):
    """Cosines and sines of the first frequencies around a circle.

    Parameters
    ----------
    n : int
        Number of frequencies: 1, 2, ... n turns, each with a cosine and a sine.
    range : (float, float)
        One turn; values beyond it continue around the circle.
    name : str
        Name of the term; features are named after it, cos or sin and the frequency.
    penalty_order : int
        Order of the penalised derivative; 0 is a ridge.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Notes
    -----
    The penalty is ``k^(2 penalty_order)`` on the diagonal for frequency k: the integral of the squared derivative,
    exact up to a factor. Nothing is unpenalised, because the constant belongs to the intercept. Source: Wood 2017,
    Generalized additive models, 5.4.

    Examples
    --------
    >>> from glmfit.design import Fourier
    >>> heading = Fourier(2, (0, 360), name="heading", penalty_order=1)
    >>> heading.feature_names
    ['heading_cos1', 'heading_sin1', 'heading_cos2', 'heading_sin2']
    >>> heading.penalties[0].diagonal()
    array([1., 1., 4., 4.])
    """

    kind: ClassVar[str] = "fourier"
    range: tuple[float, float] = _CIRCLE
    penalty_order: int = field(default=2, kw_only=True)
    _goes_around = True

    @property
    def _ends(self) -> list[str]:
        return [f"{wave}{k}" for k in np.arange(1, self.n + 1) for wave in ("cos", "sin")]

    def _matrices(self) -> tuple[np.ndarray, ...]:
        frequency = np.repeat(np.arange(1.0, self.n + 1), 2)
        return (np.diag(frequency ** (2 * self.penalty_order)),)

    def _at(self, phase: np.ndarray) -> np.ndarray:
        angle = 2 * np.pi * phase[:, None] * np.arange(1, self.n + 1)
        return np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(len(phase), -1)


VALUE_BASES = (BSpline.kind, CyclicBSpline.kind, Fourier.kind)
CYCLIC = (CyclicBSpline.kind, Fourier.kind)


def _design(phase: np.ndarray, knots: np.ndarray, degree: int) -> np.ndarray:
    """B-splines at places between the inner knots, (place, spline)."""
    from scipy.interpolate import BSpline as Splines

    return Splines.design_matrix(phase, knots, degree).toarray()


def _checked_range(given: Any) -> tuple[float, float]:
    try:
        low, high = map(float, given)
    except (TypeError, ValueError):
        low = high = np.nan
    if not (np.isfinite([low, high]).all() and low < high and np.isfinite(high - low)):
        raise ValueError(f"range is {given!r}; it must be two finite numbers, the lower first.")
    return low, high
