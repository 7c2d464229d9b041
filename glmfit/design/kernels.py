"""Bases of kernels over the past of a signal: raised cosines."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_positive, check_whole
from . import penalty_matrices as matrices
from .bases import Basis, check_name
from .convolution import Convolution
from .terms import set_fields

_STRETCH = 50.0  # of the logarithmic time axis, as in NeMoS
_WIDTH = 2.0  # of a bump, in distances of peaks
_SLACK = 1e-6  # of a bin


def raised_cosines(at: np.ndarray, peaks: np.ndarray) -> np.ndarray:
    """Bumps 1/2 + 1/2 cos, (place, peak), whose evenly spaced peaks are half a bump from their neighbours'."""
    distance = (at[:, None] - peaks) / (_WIDTH * (peaks[1] - peaks[0]))
    return 0.5 + 0.5 * np.cos(np.pi * np.clip(distance, -1, 1))


@dataclass(frozen=True)
class _RaisedCosines(Basis):
    """Kernels at places in the window from 0 to 1: `_at` gives them, (place, kernel)."""

    n: int
    window_s: float
    bin_s: float
    name: str = field(kw_only=True)
    columns: tuple[str, ...] | None = field(default=None, kw_only=True)
    penalty_order: int = field(default=0, kw_only=True)

    def __post_init__(self) -> None:
        check_name(self.name)
        n = check_whole("n", self.n, 2)
        order = check_whole("penalty_order", self.penalty_order, 0)
        window_s, bin_s = (check_positive(key, getattr(self, key)) for key in ("window_s", "bin_s"))
        columns = _checked_columns(self.columns)
        set_fields(self, n=n, penalty_order=order, window_s=window_s, bin_s=bin_s, columns=columns)
        if self._lags < n:
            lags = f"{self._lags} bins of {bin_s:g} s"
            raise ValueError(
                f"window_s is {window_s:g}, {lags}; {n} kernels need as many. Lower n, or widen the window."
            )
        if order >= n:
            raise ValueError(f"penalty_order is {order}; {n} kernels have differences of order {n - 1} at most.")

    @property
    def kernels(self) -> np.ndarray:
        """Kernels, (lag, kernel), the first lag that of the bin before."""
        return self._at(np.linspace(0, 1, self._lags))

    @property
    def _lags(self) -> int:
        return round(self.window_s / self.bin_s)

    def _matrices(self) -> tuple[np.ndarray, ...]:
        return (matrices.gram(matrices.differences(self.n, self.penalty_order)),)

    def _axes(self, n: int) -> tuple[np.ndarray, ...]:
        return (self.bin_s * np.arange(1, self._lags + 1),)

    def _on_grid(self, *axes: np.ndarray) -> np.ndarray:
        place, slack = (axes[0] / self.bin_s - 1) / (self._lags - 1), _SLACK / (self._lags - 1)
        inside = (place >= -slack) & (place <= 1 + slack)
        return np.where(inside[:, None], self._at(np.clip(np.where(inside, place, 0.0), 0, 1)), np.nan)

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        check_columns(values[0], self.name, self.columns)
        return Convolution(values[0], self.kernels, epochs=epochs, dtype=np.float64).to_array()


class RaisedCosineLinear(_RaisedCosines):
    """Raised cosine kernels, evenly spread over the past of a signal.

    Parameters
    ----------
    n : int
        Number of kernels, at least 2.
    window_s, bin_s : float
        How far the kernels look back, and the width of a bin, s. The window has at least ``n`` bins.
    name : str
        Name of the term; features are named after it and the number of their kernel.
    columns : int or sequence of str or int, optional
        Number or names of the columns of a signal with several, such as the counts of other neurons. Each column is a
        separate term, called ``name_column``. By default the signal has one column.
    penalty_order : int
        Order of the penalised differences between neighbouring kernels, below ``n``; 0 is a ridge.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Notes
    -----
    Features are those of `Convolution`: strictly causal, NaN where the window reaches before the start of the epoch.
    Kernels are those of NeMoS (Pillow et al. 2005).

    Examples
    --------
    >>> from glmfit.design import RaisedCosineLinear
    >>> history = RaisedCosineLinear(3, window_s=0.05, bin_s=0.01, name="history")
    >>> history.kernels.round(2)
    array([[1.  , 0.5 , 0.  ],
           [0.85, 0.85, 0.15],
           [0.5 , 1.  , 0.5 ],
           [0.15, 0.85, 0.85],
           [0.  , 0.5 , 1.  ]])
    >>> history.features([1, 0, 0, 0, 0, 0, 0])[5:]
    array([[0. , 0.5, 1. ],
           [0. , 0. , 0. ]])
    """

    kind: ClassVar[str] = "raised_cosine_linear"

    def _at(self, place: np.ndarray) -> np.ndarray:
        return raised_cosines(place, np.linspace(0, 1, self.n))


class RaisedCosineLog(_RaisedCosines):
    """Raised cosine kernels that get wider the further they look back; the last one ends at 0.

    Parameters
    ----------
    n : int
        Number of kernels, at least 2.
    window_s, bin_s : float
        How far the kernels look back, and the width of a bin, s. The window has at least ``n`` bins.
    name : str
        Name of the term; features are named after it and the number of their kernel.
    columns : int or sequence of str or int, optional
        Number or names of the columns of a signal with several, such as the counts of other neurons. Each column is a
        separate term, called ``name_column``. By default the signal has one column.
    penalty_order : int
        Order of the penalised differences between neighbouring kernels, below ``n``; 0 is a ridge.

    Raises
    ------
    ValueError
        If a number is not allowed.

    Notes
    -----
    Features are those of `Convolution`: strictly causal, NaN where the window reaches before the start of the epoch.
    Kernels are those of NeMoS (Pillow et al. 2005), bumps of ``log(1 + 50 lag)`` for lags from 0 to 1.

    Examples
    --------
    >>> from glmfit.design import RaisedCosineLog
    >>> coupling = RaisedCosineLog(2, window_s=0.1, bin_s=0.01, name="from", columns=["a", "b"])
    >>> coupling.feature_names
    ['from_a_0', 'from_a_1', 'from_b_0', 'from_b_1']
    >>> list(coupling.terms)
    ['from_a', 'from_b']
    """

    kind: ClassVar[str] = "raised_cosine_log"

    def _at(self, place: np.ndarray) -> np.ndarray:
        at = np.log1p(_STRETCH * place) / np.log1p(_STRETCH)
        return raised_cosines(at, np.linspace(0, 1 - _WIDTH / (self.n + _WIDTH - 1), self.n))


TIME_BASES = (RaisedCosineLog.kind, RaisedCosineLinear.kind)


def check_columns(
    signal: Any, name: str, columns: tuple[str, ...] | None, how: str = "Give the basis columns={n}, or names."
) -> None:
    """Raise ValueError for a signal with other columns than those of its basis."""
    shape = tuple(np.shape(signal))
    n = 1 if columns is None else len(columns)
    if shape[1:] != (n,) and (shape[1:] or columns is not None):
        needs = "(time,)" if columns is None else f"(time, {n}), a column for each of columns"
        advice = " " + how.format(n=shape[1]) if len(shape) == 2 else ""
        raise ValueError(f"{name} has shape {shape}; it needs {needs}.{advice}")
    given = getattr(signal, "columns", None)
    if columns and given is not None and all(isinstance(c, str) for c in given) and tuple(given) != columns:
        raise ValueError(f"{name} has the columns {list(given)}; the basis has {list(columns)}, in this order.")


def _checked_columns(given: Any) -> tuple[str, ...] | None:
    if given is None:
        return None
    if isinstance(given, Integral) and not isinstance(given, bool) and given > 0:
        return tuple(map(str, range(given)))
    names = () if isinstance(given, str) or not isinstance(given, Iterable) else tuple(given)
    names = tuple(str(c) if isinstance(c, Integral) and not isinstance(c, bool) else c for c in names)  # units
    if not names or not all(isinstance(c, str) and c for c in names) or len(set(names)) < len(names):
        raise ValueError(f"columns is {given!r}; it must be a number of columns, or their names, each once.")
    return names
