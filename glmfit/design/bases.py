"""Basis functions of a value, and kernels over time."""

import numpy as np

VALUE_BASES = ("bspline", "cyclic_bspline", "fourier")
TIME_BASES = ("raised_cosine_log", "raised_cosine_linear")
CYCLIC = ("cyclic_bspline", "fourier")
_STRETCH = 50.0  # of the logarithmic time axis, as in NeMoS
_WIDTH = 2.0  # of a bump, in distances of peaks


def lags_of(window_s: float, bin_s: float) -> int:
    """Bins of a window."""
    return round(window_s / bin_s)


def time_kernels(basis: dict, bin_s: float) -> np.ndarray:
    """Kernels (lag, basis), the first lag that of the bin before; NeMoS's raised cosines.

    Bumps 1/2 + 1/2 cos over a linear or logarithmic axis of the window from 0 to 1, where neighbours' peaks are half
    a bump apart; the logarithmic ones end at 0.
    """
    n, lags = basis["n"], lags_of(basis["window_s"], bin_s)
    at = np.linspace(0, 1, lags)
    peaks = np.linspace(0, 1, n)
    if basis["kind"] == "raised_cosine_log":
        at = np.log1p(_STRETCH * at) / np.log1p(_STRETCH)
        peaks = np.linspace(0, 1 - _WIDTH / (n + _WIDTH - 1), n)
    distance = (at[:, None] - peaks) / (_WIDTH * (peaks[1] - peaks[0]))
    return (0.5 + 0.5 * np.cos(np.pi * np.clip(distance, -1, 1))).astype(np.float64)


def evaluate(basis: dict, values: np.ndarray) -> np.ndarray:
    """Basis functions (row, basis) of values (row,), NaN where they are NaN or, unless cyclic, out of range."""
    low, high = basis["range"]
    phase = (values - low) / (high - low)
    if basis["kind"] in CYCLIC:
        phase = np.mod(phase, 1.0)
        phase = np.where(phase >= 1.0, 0.0, phase)  # of a tiny negative number
    known = (phase >= 0) & (phase <= 1)
    make = _fourier if basis["kind"] == "fourier" else _splines
    features = np.full((len(values), len(names_of(basis))), np.nan)
    if known.any():
        features[known] = make(phase[known], basis)
    return features


def names_of(basis: dict) -> list[str]:
    """Name of each basis function within its covariate."""
    if basis["kind"] == "fourier":
        return [f"{wave}{k}" for k in range(1, basis["n"] + 1) for wave in ("cos", "sin")]
    return [str(b) for b in range(basis["n"])]


def _splines(phase: np.ndarray, basis: dict) -> np.ndarray:
    """B-splines that add up to 1: on [0, 1], clamped at both ends, or shifts of each other around a circle."""
    from scipy.interpolate import BSpline

    n, degree = basis["n"], basis["order"] - 1
    if basis["kind"] == "bspline":
        knots = np.r_[np.zeros(degree), np.linspace(0, 1, n - degree + 1), np.ones(degree)]
        return BSpline.design_matrix(phase, knots, degree).toarray()
    straight = BSpline.design_matrix(phase, np.arange(-degree, n + degree + 1) / n, degree).toarray()
    straight[:, :degree] += straight[:, n:]  # what runs over the end goes on at the beginning
    return straight[:, :n]


def _fourier(phase: np.ndarray, basis: dict) -> np.ndarray:
    angle = 2 * np.pi * phase[:, None] * np.arange(1, basis["n"] + 1)
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).reshape(len(phase), -1)
