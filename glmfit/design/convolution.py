"""Histories of signals, convolved when they are read."""

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike

from ..checks import warn_user
from ..data.arrays import refuse_spike_times
from .base import KnownRows, check_form
from .sources import rows_of

_MOST_ROWS_PER_PRODUCT = 16
_MOST_ENTRIES = 2**20  # of the matrix of shifted kernels
_SCAN_ROWS = 65536


class Convolution(KnownRows):
    """Convolution of a signal's past with kernels, a run of rows at a time; the feature matrix is never formed.

    Row t, of source s and kernel b, is ``sum_k signal[t - 1 - k, s] * basis[k, b]``: strictly causal, without the
    present bin. Features are ordered by source, then kernel: column ``s * n_basis + b``.

    Parameters
    ----------
    signal : array, pynapple.Tsd or TsdFrame, scipy.sparse array, or what `as_source` takes
        Spike counts or a stimulus, (time,) or (time, source). It is kept as given; small integer types stay small.
        A pynapple object's time support gives the epochs.
    basis : array or convolutional basis object
        Kernels, (lag, basis), with the previous bin as the first lag; a `RaisedCosineLog` or `RaisedCosineLinear`; or a
        basis of NeMoS that has a ``window_size``. The object is not changed.
    epochs : array of int, optional
        First row of each epoch, (epoch,). The first rows of an epoch do not use the previous one.
    name, dtype : str, optional; {numpy.float32, numpy.float64}
        Prefix of feature names, ``{name}{source}_{basis}``, "x" by default, with the columns of a pynapple frame or
        numbers for sources; type of the products and of the features.

    Raises
    ------
    ValueError
        If the signal or basis has another shape, is not real or is infinite, the basis is not causal, epochs do not
        increase, or no row's window is complete. More kernels than lags, as in a transposed basis, give a warning.

    Notes
    -----
    Rows whose window reaches before their epoch's first bin, or over a NaN of the signal, are dropped: they are all
    NaN. The features, including NaN rows, are those that NeMoS computes, up to rounding.

    A row is bitwise the same whatever run it is read in: rows are computed in blocks of up to 16 at fixed places, each
    as one product of the block's signal with shifted copies of the kernels. Cost of a row: 2 (lag + 15) basis source
    operations. A signal of floats is read once at the start, to find NaN.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Convolution
    >>> spikes = np.array([[1, 0], [0, 0], [0, 2], [0, 0], [0, 0]], np.uint8)
    >>> basis = np.array([[1.0, 0.5], [0.0, 0.5]])  # the bin before; the mean of two bins before
    >>> history = Convolution(spikes, basis)
    >>> history
    <Convolution (5, 4) float32 of 2 sources, 2 kernels of 2 lags>
    >>> history.fetch(slice(1, 5))
    array([[nan, nan, nan, nan],
           [0. , 0.5, 0. , 0. ],
           [0. , 0. , 2. , 1. ],
           [0. , 0. , 0. , 1. ]], dtype=float32)
    >>> history.columns
    ['x0_0', 'x0_1', 'x1_0', 'x1_1']
    """

    def __init__(
        self,
        signal: Any,
        basis: Any,
        *,
        epochs: ArrayLike | None = None,
        name: str | None = None,
        dtype: DTypeLike = np.float32,
    ):
        self.dtype = np.dtype(dtype)
        if self.dtype not in (np.float32, np.float64):
            raise ValueError(f"dtype is {dtype!r}; it must be numpy.float32 or numpy.float64.")
        refuse_spike_times(signal, "signal", "count them in bins first: signal.count(0.01).")
        kernels = kernels_of(basis, self.dtype)
        self._lags, n_basis = kernels.shape
        starts = _starts(signal, epochs)
        self._source = rows_of(signal, "signal")
        self._n_rows, self._n_sources = self._source.shape
        self.n_columns = self._n_sources * n_basis
        given, prefix = getattr(signal, "columns", None), "x" if name is None else name
        labels = range(self._n_sources) if given is None else given
        self.columns = [f"{prefix}{source}_{b}" for source in labels for b in range(n_basis)]
        self._block, self._shifted = _shifted(kernels)
        missing = self._find_missing()
        self._has_missing = bool(missing.any())
        self.left_out = _incomplete(missing, self._lags, starts)
        if self.left_out.all():
            raise ValueError(
                f"no row of the signal, {self._n_rows} rows in {len(starts)} epochs, has {self._lags} rows without NaN "
                "before it in its epoch. Use a shorter basis or longer epochs."
            )
        self._origin = f" of {self._n_sources} sources, {n_basis} kernels of {self._lags} lags"

    def read(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        first, last = start // self._block, -(-stop // self._block)
        past = self._past(first * self._block - self._lags, last * self._block - 1)
        step = past.strides[0]
        blocks = np.lib.stride_tricks.as_strided(
            past,
            (last - first, self._block + self._lags - 1, self._n_sources),
            (self._block * step, *past.strides),
            writeable=False,
        )
        products = (self._shifted @ blocks).reshape((last - first) * self._block, -1, self._n_sources)
        asked = products[start - first * self._block :][: stop - start]
        features = asked.transpose(0, 2, 1).reshape(stop - start, self.n_columns)
        features[self.left_out[start:stop]] = np.nan
        return features

    def signature(self) -> dict[str, Hashable]:
        return self._source.signature()

    def _past(self, start: int, stop: int) -> np.ndarray:
        """Return rows of the signal as floats, 0 outside and for NaN: rows that need them are dropped."""
        self._source._refuse_shorter(self._n_rows)
        past = np.zeros((stop - start, self._n_sources), self.dtype)
        inside = slice(max(start, 0), min(stop, self._n_rows))
        if inside.start < inside.stop:
            past[inside.start - start : inside.stop - start] = self._source._read(inside.start, inside.stop)
        if self._has_missing:
            np.nan_to_num(past, copy=False, nan=0.0)
        return past

    def _find_missing(self) -> np.ndarray:
        """Rows of the signal with a NaN, bool (time,)."""
        missing = np.zeros(self._n_rows, bool)
        for start in range(0, self._n_rows, _SCAN_ROWS):
            block = self._source._read(start, min(start + _SCAN_ROWS, self._n_rows))
            if block.dtype.kind != "f":
                break
            if np.isinf(block).any():
                row = start + np.isinf(block).any(axis=1).argmax()
                raise ValueError(f"the signal is infinite at row {row}; it must be finite, or NaN where it is missing.")
            missing[start : start + len(block)] = np.isnan(block).any(axis=1)
        return missing


def kernels_of(basis: Any, dtype: DTypeLike) -> np.ndarray:
    """Return the kernels, (lag, basis), of an array or of an object that has or evaluates them."""
    if isinstance(kernels := getattr(basis, "kernels", None), np.ndarray):
        basis = kernels
    if hasattr(basis, "evaluate"):
        if not hasattr(basis, "window_size"):
            advice = "Make a Convolution of each part of a composite one, and put them side by side with hstack."
            needs = f"it must be a single convolutional basis. {advice}"
            raise ValueError(f"basis is a {type(basis).__name__}, which has no window_size; {needs}")
        settings = getattr(basis, "conv_kwargs", None) or {}
        if settings.get("predictor_causality", "causal") != "causal" or settings.get("shift") is False:
            why = "only causal features without the present bin are computed."
            advice = "Leave predictor_causality and shift at their defaults."
            raise ValueError(f"basis has conv_kwargs {settings}; {why} {advice}")
        basis = basis.evaluate(np.linspace(0, 1, basis.window_size))
    kernels = np.asarray(basis)
    check_form(kernels.shape, kernels.dtype, "basis")
    if kernels.ndim != 2:
        advice = "Give basis[:, None] for one kernel."
        raise ValueError(f"basis has shape {kernels.shape}; it must be (lag, basis). {advice}")
    if not np.isfinite(kernels).all():
        raise ValueError("basis has entries that are NaN or infinite; kernels must be finite.")
    lags, n_basis = kernels.shape
    if n_basis > lags:
        warn_user(
            f"basis has {n_basis} kernels of {lags} lags, and no more than {lags} can be independent. It must be (lag, "
            "basis): if it is transposed, give basis.T."
        )
    return kernels.astype(dtype)


def _starts(signal: Any, epochs: Any) -> np.ndarray:
    """Return the rows at which epochs begin, the first of them 0."""
    support = getattr(signal, "time_support", None)
    if support is not None and epochs is not None:
        raise ValueError("epochs are given for a pynapple signal, whose time support has them; omit epochs.")
    if support is not None:
        return np.unique(np.r_[0, np.searchsorted(signal.t, support.start)])
    if epochs is None:
        return np.zeros(1, int)
    epochs, n = np.asarray(epochs), signal.shape[0] if hasattr(signal, "shape") else len(signal)
    if epochs.ndim != 1 or epochs.dtype.kind not in "iu" or not np.all(np.diff(epochs.astype(int)) > 0):
        raise ValueError(f"epochs is {epochs!r}; it must be the rows at which epochs begin, increasing integers.")
    if len(epochs) and not (epochs[0] >= 0 and epochs[-1] < n):
        raise ValueError(f"epochs begin at rows {epochs[0]} to {epochs[-1]}; the signal has rows 0 to {n - 1}.")
    return np.unique(np.r_[0, epochs])


def _incomplete(missing: np.ndarray, lags: int, starts: np.ndarray) -> np.ndarray:
    """Rows whose window of lags reaches over their epoch's start or over a missing row, bool (time,)."""
    incomplete = np.zeros(len(missing), bool)
    if missing.any():
        seen = np.r_[0, np.cumsum(missing)]  # missing rows before each
        incomplete[lags:] = seen[lags:-1] > seen[: -lags - 1]
    for start in starts:
        incomplete[start : start + lags] = True
    return incomplete


def _shifted(kernels: np.ndarray) -> tuple[int, np.ndarray]:
    """Return the rows per product, and the kernels shifted to each of them, (row * basis, row + lag - 1).

    One product computes a block of rows from the signal in its windows, without a copy of each row's window.
    """
    lags, n_basis = kernels.shape
    rows = _MOST_ROWS_PER_PRODUCT
    while rows > 1 and rows * n_basis * (rows + lags - 1) > _MOST_ENTRIES:
        rows //= 2
    shifted = np.zeros((rows, n_basis, rows + lags - 1), kernels.dtype)
    for row in range(rows):
        shifted[row, :, row : row + lags] = kernels[::-1].T
    return rows, shifted.reshape(rows * n_basis, -1)
