"""Bases of NeMoS, unchanged, with penalty matrices for them. NeMoS itself is not imported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive, check_whole, shorten
from . import penalty_matrices as matrices
from .bases import Basis
from .convolution import Convolution, kernels_of
from .kernels import check_columns
from .products import add, product

_SPLINES = ("BSpline", "CyclicBSpline", "MSpline")
_COSINES = ("RaisedCosineLinear", "RaisedCosineLog")
_VALUES = (*(f"{kind}Eval" for kind in _SPLINES + _COSINES), "FourierEval")
_KERNELS = tuple(f"{kind}Conv" for kind in _SPLINES + _COSINES)
_SLACK = 1e-6  # of a bin
_SHAPE = "Call basis.set_input_shape({n}) before from_nemos(basis)."


def from_nemos(basis: Any, *, penalty_order: int | None = None, bin_s: float | None = None) -> Basis:
    """Convert a basis of NeMoS, and make penalty matrices for it.

    Parameters
    ----------
    basis : nemos.basis.Basis
        ``BSpline``, ``CyclicBSpline``, ``MSpline``, ``RaisedCosineLinear`` or ``RaisedCosineLog``, with ``Eval`` or
        ``Conv``; ``FourierEval``; sums and products of them. It is copied. For an input of several columns call
        ``basis.set_input_shape`` first, or compute its features once.
    penalty_order : int, optional
        For all parts. By default 2 for splines and Fourier series (1 for splines of order 2, 0 for order 1), and 0, a
        ridge, for raised cosines.
    bin_s : float, optional
        Width of a bin, s, for the lags of kernels; without it they are in bins.

    Returns
    -------
    Basis
        With the features of ``basis.compute_features``. Terms are named by the labels.

    Raises
    ------
    TypeError
        If ``basis`` is not a basis of NeMoS, or one of another kind.
    ValueError
        If the penalty's order is too high, a convolution is not causal, or a product has an input of several columns.

    Notes
    -----
    Functions of values and kernels come from the object itself. Kernels are convolved by `Convolution`, which takes
    ``epochs`` and gives the features of NeMoS up to rounding. The penalties are those of `BSpline`, `CyclicBSpline`,
    `Fourier` and `RaisedCosineLinear`; coefficients of M-splines are first brought to the scale of B-splines.

    Without ``bounds`` NeMoS stretches every input array from its minimum to its maximum. Features and penalties are
    then correct, but there is no grid in units of the feature, and new data need the same two values.

    The result cannot be written by ``to_dict``: models that are saved need bases of this package.

    Examples
    --------
    >>> import nemos as nmo
    >>> from glmfit.design import from_nemos
    >>> x, y = (nmo.basis.BSplineEval(6, bounds=(0, 100), label=label) for label in ("x", "y"))
    >>> history = nmo.basis.RaisedCosineLogConv(4, window_size=20, label="history")
    >>> basis = from_nemos(x * y + history, bin_s=0.01)
    >>> {name: (len(term.features), len(term.penalties)) for name, term in basis.terms.items()}
    {'(x * y)': (36, 2), 'history': (4, 1)}
    """
    kind = type(basis).__name__
    if not type(basis).__module__.startswith("nemos."):
        raise TypeError(f"basis is {shorten(basis)}; it must be a basis of NeMoS, such as nemos.basis.BSplineEval(8).")
    if penalty_order is not None:
        check_whole("penalty_order", penalty_order, 0)
    if bin_s is not None:
        check_positive("bin_s", bin_s)
    if kind in ("AdditiveBasis", "MultiplicativeBasis"):
        parts = [from_nemos(b, penalty_order=penalty_order, bin_s=bin_s) for b in (basis.basis1, basis.basis2)]
        return add(*parts) if kind == "AdditiveBasis" else product(*parts, name=basis.label)
    if kind not in _VALUES + _KERNELS:
        known = ", ".join((*_VALUES, *_KERNELS))
        raise TypeError(f"basis is a {kind}, which has no penalty here; allowed are {known}, their sums and products.")
    order = _order(basis, penalty_order)
    shape = basis.input_shape[0]
    columns = None if shape is None or prod(shape) == 1 else tuple(map(str, range(prod(shape))))
    basis = basis.__sklearn_clone__()  # parts of a composite one do nothing by themselves
    params = sorted((key, _comparable(value)) for key, value in basis.get_params().items())
    of_all = basis, repr((type(basis), params)), basis.label, columns, order
    if kind in _VALUES:
        return NemosValues(*of_all)
    return NemosKernels(*of_all, 1.0 if bin_s is None else bin_s, kernels_of(basis, np.float64))


@dataclass(frozen=True, repr=False)
class _NemosBasis(Basis):
    basis: Any = field(compare=False)
    settings: str  # of the basis, to compare
    name: str
    columns: tuple[str, ...] | None
    penalty_order: int

    @property
    def _ends(self) -> list[str]:
        return [str(b) for b in range(self.basis.n_basis_funcs)]

    def _matrices(self) -> tuple[np.ndarray, ...]:
        kind, m, n = type(self.basis).__name__[:-4], self.penalty_order, self.basis.n_basis_funcs
        if kind == "CyclicBSpline":
            return (matrices.gram(matrices.circular_differences(n, m)),)
        if kind in _COSINES:
            return (matrices.gram(matrices.differences(n, m)),)
        order = self.basis.order
        knots = matrices.clamped_knots(n, order)
        differences = matrices.spline_differences(knots, order, m)
        # An M-spline is a B-spline divided by the mean distance of its knots.
        width = (knots[order:] - knots[:-order]) / order
        return (matrices.gram(differences / width if kind == "MSpline" else differences),)

    def to_dict(self) -> dict[str, Any]:
        """Raise TypeError: files hold only bases of this package."""
        advice = "Make a basis of glmfit.design, such as BSpline, to write it to a file."
        raise TypeError(f"{self.name!r} is a {type(self.basis).__name__} of NeMoS, which cannot be written. {advice}")

    def __repr__(self) -> str:
        return f"from_nemos({type(self.basis).__name__}({self.basis.n_basis_funcs}, label={self.name!r}))"


@dataclass(frozen=True, repr=False)
class NemosValues(_NemosBasis):
    """A basis of NeMoS that is evaluated at values."""

    @property
    def n_inputs(self) -> int:
        return getattr(self.basis, "ndim", 1)

    @property
    def _ends(self) -> list[str]:
        if not hasattr(self.basis, "masked_frequencies"):
            return super()._ends
        turns = ["_".join(str(int(f)) for f in pair) for pair in self._frequencies]
        return [f"cos{k}" for k in turns] + [f"sin{k}" for k in turns if set(k) - set("0_")]

    def _matrices(self) -> tuple[np.ndarray, ...]:
        if not hasattr(self.basis, "masked_frequencies"):
            return super()._matrices()
        squared = (self._frequencies**2).sum(axis=1)
        squared = np.r_[squared, squared[squared > 0]]  # no sine of frequency 0
        return (np.diag(squared**self.penalty_order),)

    @property
    def _frequencies(self) -> np.ndarray:
        """Turns of each wave along each input, (wave, input)."""
        return np.asarray(self.basis.masked_frequencies, np.float64).T

    def _axes(self, n: int) -> tuple[np.ndarray, ...]:
        return tuple(np.linspace(low, high, n) for low, high in self._bounds())

    def _on_grid(self, *axes: np.ndarray) -> np.ndarray:
        self._bounds()
        return self._computed([mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")])

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        for value in values:
            check_columns(value, self.name, self.columns, _SHAPE)
        return self._computed([np.asarray(value, np.float64) for value in values])

    def _computed(self, values: list[Any]) -> np.ndarray:
        """Let NeMoS compute features, on a copy, because it remembers shapes."""
        return np.asarray(self.basis.__sklearn_clone__().compute_features(*values), np.float64)

    def _bounds(self) -> list[tuple[float, float]]:
        """Range of every input."""
        bounds = self.basis.bounds
        if bounds is None:
            why = "NeMoS stretches every array from its minimum to its maximum"
            raise ValueError(f"{self.name!r} has no grid, because it has no bounds: {why}. Give it bounds=(low, high).")
        return [bounds] * self.n_inputs if np.ndim(bounds) == 1 else list(bounds)


@dataclass(frozen=True, repr=False)
class NemosKernels(_NemosBasis):
    """A basis of NeMoS that is convolved with a signal."""

    bin_s: float
    kernels: np.ndarray = field(compare=False)

    def _axes(self, n: int) -> tuple[np.ndarray, ...]:
        return (self.bin_s * np.arange(1, len(self.kernels) + 1),)

    def _on_grid(self, *axes: np.ndarray) -> np.ndarray:
        with np.errstate(invalid="ignore"):
            lag = np.rint(axes[0] / self.bin_s)
            known = (np.abs(axes[0] / self.bin_s - lag) < _SLACK) & (lag >= 1) & (lag <= len(self.kernels))
        found = np.full((len(lag), self.kernels.shape[1]), np.nan)
        found[known] = self.kernels[lag[known].astype(int) - 1]
        return found

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        check_columns(values[0], self.name, self.columns, _SHAPE)
        return Convolution(values[0], self.kernels, epochs=epochs, dtype=np.float64).to_array()


def _order(basis: Any, given: int | None) -> int:
    """Return the order of the penalty of one basis, as given or the default."""
    kind, n = type(basis).__name__[:-4], basis.n_basis_funcs
    if kind == "Fourier":
        return 2 if given is None else given
    most = (n if kind in _COSINES else basis.order) - 1
    if given is None:
        return 0 if kind in _COSINES else min(2, most)
    if given > most:
        raise ValueError(f"penalty_order is {given}; {basis.label!r} allows {most} at most. Take its parts one by one.")
    return given


def _comparable(value: Any) -> Any:
    """Turn arrays, which compare entry by entry, into lists."""
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    return np.asarray(value).tolist() if hasattr(value, "shape") else value
