"""Problems with known answers: data, optima in float64 and true gaps. NumPy and SciPy; nothing here imports glmfit.

P1  24 sources x 8 raised-cosine history features (d = 192), T = 100 000 bins, 32 neurons, softplus, ridge 1e-4
P2  the same with 128 neurons
P512, W32  the same with 512 neurons, and P1 with four times the sources (d = 768)
E32, E128  the linear predictors of P1 and P2 through exp, intercepts such that mean rates span 0.005 to 2

Objective per neuron: mean over bins of rate - count log(rate), plus strength/2 ||w||^2, intercept free.
gap(W, b) = (F(W, b) - F*) / (F(null) - F*), sums over neurons, null = best constant rate.
"""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from _common import write_atomically
from scipy.signal import fftconvolve

STRENGTH = 1e-4
N_ROWS, N_SOURCES, N_BASIS = 100_000, 24, 8
_CHUNK = 4096
_SHAPES = {
    "P1": ("softplus", 32, N_SOURCES),
    "P2": ("softplus", 128, N_SOURCES),
    "P512": ("softplus", 512, N_SOURCES),
    "W32": ("softplus", 32, 4 * N_SOURCES),
    "E32": ("exp", 32, N_SOURCES),
    "E128": ("exp", 128, N_SOURCES),
}


# --------------------------------------------------------------------------------------------- data


def history_design(n_rows: int, n_sources: int, n_basis: int, seed: int) -> np.ndarray:
    """Spike history of simulated sources through raised cosines in log time, (time, feature) float32."""
    rng = np.random.default_rng(seed)
    sources = rng.poisson(0.1, size=(n_rows, n_sources)).astype(np.float32)
    lags = np.arange(60)
    centres = np.linspace(0, np.log(60), n_basis)
    width = centres[1] - centres[0]
    angle = np.clip((np.log(lags + 1)[:, None] - centres) * np.pi / 2 / width, -np.pi, np.pi)
    basis = 0.5 * np.cos(angle) + 0.5
    columns = [fftconvolve(sources[:, i], basis[:, k])[:n_rows] for i in range(n_sources) for k in range(n_basis)]
    return np.stack(columns, 1).astype(np.float32)


def draw_counts(X: np.ndarray, n_neurons: int, link: str, seed: int = 0, n_basis: int = N_BASIS) -> np.ndarray:
    """Counts (time, neuron) float32 from random filters of a given design."""
    rng = np.random.default_rng(seed + 1)
    W = (rng.normal(size=(X.shape[1], n_neurons)) * 0.15).astype(np.float32)
    if link == "softplus":
        b = np.linspace(-4, 0, n_neurons).astype(np.float32)
        return rng.poisson(np.logaddexp(0, X @ W / np.sqrt(n_basis) + b)).astype(np.float32)
    eta = X @ W / np.sqrt(n_basis)
    drive = np.exp(eta.astype(np.float64))
    rate = np.geomspace(0.005, 2, n_neurons) * (drive / drive.mean(0))
    return rng.poisson(rate).astype(np.float32)


@dataclass(frozen=True)
class Problem:
    """Data of one problem and the files that hold them (for fresh processes)."""

    name: str
    link: str
    strength: float
    X: np.ndarray
    Y: np.ndarray
    x_file: Path | None = None
    y_file: Path | None = None

    def select(self, neurons) -> Problem:
        """Return the problem of some neurons, without files."""
        Y = np.ascontiguousarray(self.Y[:, neurons])
        return Problem(f"{self.name}[{Y.shape[1]}]", self.link, self.strength, self.X, Y)

    def fingerprint(self) -> str:
        """Hash of the data."""
        digest = hashlib.sha256(f"{self.link} {self.strength}".encode())
        for array in (self.X, self.Y):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()[:16]


def load(name: str, cache: Path, scale: float = 1.0) -> Problem:
    """Make a problem, or read it from the cache folder."""
    link, n_neurons, n_sources = _SHAPES[name]
    n_rows = max(2000, round(N_ROWS * scale))
    x_file, y_file = cache / f"design-{n_rows}-{n_sources}.npy", cache / f"{name}-{n_rows}.npy"
    if not x_file.exists():
        save_array(x_file, history_design(n_rows, n_sources, N_BASIS, 0))
    X = np.load(x_file)
    if not y_file.exists():
        save_array(y_file, draw_counts(X, n_neurons, link))
    return Problem(name, link, STRENGTH, X, np.load(y_file), x_file, y_file)


def save_array(path: Path, array: np.ndarray) -> Path:
    """Write an array for a fresh process to read."""
    write_atomically(path, lambda file: np.save(file, array))
    return path


# ---------------------------------------------------------------------------------------- objective


def _loss(link, eta, y):
    if link == "exp":
        return np.exp(eta) - y * eta
    f = np.logaddexp(0, eta)
    return f - y * np.log(f)


def _loss_slope_curvature(link, eta, y):
    if link == "exp":
        f = np.exp(eta)
        return f - y * eta, f - y, f
    f, s = np.logaddexp(0, eta), 0.5 * (1 + np.tanh(0.5 * eta))
    r = s / f
    return f - y * np.log(f), s - y * r, np.maximum(s * (1 - s) + y * r * (r - (1 - s)), 0)


def objective(problem: Problem, coef, intercept, l1=None) -> np.ndarray:
    """F per neuron in float64, (neuron,); with ``l1`` (neuron,) the penalty is l1 ||w||_1 instead of the ridge."""
    coef, intercept = np.asarray(coef, np.float64), np.asarray(intercept, np.float64)
    total = np.zeros(problem.Y.shape[1])
    for start in range(0, len(problem.X), _CHUNK):
        rows = slice(start, start + _CHUNK)
        eta = problem.X[rows].astype(np.float64) @ coef + intercept
        # NumPy sums pairwise along the last axis: the rounding of 1e5 terms stays below that of ten.
        total += np.ascontiguousarray(_loss(problem.link, eta, problem.Y[rows]).T).sum(1)
    penalty = 0.5 * problem.strength * (coef**2).sum(0) if l1 is None else l1 * np.abs(coef).sum(0)
    return total / len(problem.X) + penalty


def null_intercept(problem: Problem) -> np.ndarray:
    """Intercepts of the best constant rates, (neuron,)."""
    mean = np.maximum(problem.Y.mean(0, dtype=np.float64), 1e-8)
    return np.log(mean) if problem.link == "exp" else np.log(np.expm1(mean))


def null_parameters(problem: Problem) -> np.ndarray:
    """Coefficients 0 and `null_intercept` in the last row, (feature + 1, neuron)."""
    return np.vstack([np.zeros((problem.X.shape[1], problem.Y.shape[1])), null_intercept(problem)])


def null_objective(problem: Problem) -> np.ndarray:
    """F of the intercept-only models, (neuron,)."""
    return objective(problem, np.zeros((problem.X.shape[1], problem.Y.shape[1])), null_intercept(problem))


def gaps(problem: Problem, coef, intercept, optimum: np.ndarray) -> dict:
    """True relative gap of the population and of its worst neuron, and F - F* per neuron (not rounded up)."""
    distance = objective(problem, coef, intercept) - optimum
    improvement = null_objective(problem) - optimum
    return {
        "gap": float(distance.sum() / improvement.sum()),
        "worst_neuron_gap": float(np.max(distance / improvement)),
        "distance": distance,
    }


# ------------------------------------------------------------------------------- optima in float64


def reference(problem: Problem, cache: Path | None = None, neurons=None) -> np.ndarray:
    """F* of every neuron by Newton in float64, (neuron,); kept in the cache folder."""
    if neurons is not None:
        return reference(problem, cache)[neurons]
    return _cached(problem, cache, "optimum", lambda: _reference(problem))["optimum"]


def _reference(problem: Problem) -> dict:
    _, optimum, decrement = newton(problem)
    if not decrement.max() < 1e-16:
        raise RuntimeError(f"the reference of {problem.name} did not converge: decrement {decrement.max():.1e}")
    return {"optimum": optimum, "decrement": decrement}


def newton(problem: Problem, start=None, stop: float = 1e-12) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Damped Newton in float64, neuron by neuron, until one step after the squared decrement is below ``stop``.

    ``start`` and the solution are coefficients with the intercept in the last row, (feature + 1, neuron). Also returned
    are F and the final squared decrement, (neuron,). The strength is a number or one per neuron.
    """
    X1, n_neurons = _with_ones(problem.X), problem.Y.shape[1]
    found = null_parameters(problem) if start is None else np.array(start, np.float64)
    value, decrement = np.zeros(n_neurons), np.zeros(n_neurons)
    for n, strength in enumerate(np.broadcast_to(problem.strength, n_neurons)):
        ridge = np.r_[np.full(len(found) - 1, strength), 0.0]
        y = problem.Y[:, n].astype(np.float64)
        found[:, n], value[n], decrement[n] = _newton(X1, y, problem.link, ridge, found[:, n], stop)
    return found, value, decrement


def _newton(X1, y, link, ridge, w, stop):
    """Damped Newton for one neuron: parameters, F, and the final squared decrement."""
    value, g, H = _expand(X1, y, link, ridge, w)
    last = False
    for _ in range(60):
        step = np.linalg.solve(H, g)
        decrement, length = g @ step, 1.0
        if last or decrement < stop:
            last = True
        else:
            while not _value(X1, y, link, ridge, w - length * step) <= value - 1e-4 * length * decrement:
                length /= 2
        w = w - length * step
        value, g, H = _expand(X1, y, link, ridge, w)
        if last:
            return w, value, g @ np.linalg.solve(H, g)
    return w, value, np.inf


def _value(X1, y, link, ridge, w):
    with np.errstate(over="ignore", invalid="ignore"):
        return _loss(link, X1 @ w, y).mean() + 0.5 * ridge @ w**2


def _expand(X1, y, link, ridge, w):
    value, slope, bend = _loss_slope_curvature(link, X1 @ w, y)
    H = np.diag(ridge * len(y))
    for start in range(0, len(y), _CHUNK):
        rows = slice(start, start + _CHUNK)
        x = X1[rows] * np.sqrt(bend[rows])[:, None]
        H += x.T @ x
    return value.mean() + 0.5 * ridge @ w**2, X1.T @ slope / len(y) + ridge * w, H / len(y)


def _with_ones(X):
    return np.concatenate([X, np.ones((len(X), 1), X.dtype)], 1).astype(np.float64)


# -------------------------------------------------------------------------------------------- lasso


def maximal_l1(problem: Problem) -> np.ndarray:
    """Smallest l1 strength at which all coefficients are zero, (neuron,)."""
    _, slope, _ = _loss_slope_curvature(problem.link, null_intercept(problem)[None], problem.Y.astype(np.float64))
    return np.abs(problem.X.T.astype(np.float64) @ slope).max(0) / len(problem.X)


def lasso_residual(problem: Problem, coef, intercept, l1) -> np.ndarray:
    """Largest entry of the smallest subgradient over the strength, (neuron,)."""
    coef = np.asarray(coef, np.float64)
    g = np.zeros((coef.shape[0] + 1, coef.shape[1]))
    for start in range(0, len(problem.X), _CHUNK):
        x = _with_ones(problem.X[start : start + _CHUNK])
        eta = x[:, :-1] @ coef + intercept
        g += x.T @ _loss_slope_curvature(problem.link, eta, problem.Y[start : start + _CHUNK])[1]
    g /= len(problem.X)
    return np.maximum(np.abs(_subgradient(coef, g[:-1], l1)).max(0), np.abs(g[-1])) / l1


def lasso_reference(problem: Problem, l1: np.ndarray, cache: Path | None = None) -> dict:
    """Lasso optima by proximal Newton per neuron in float64 (its quadratics by scikit-learn's coordinate descent).

    Returns ``optimum`` and ``residual`` (neuron,), the latter the KKT residual over the strength.
    """
    strength = hashlib.sha256(np.asarray(l1, np.float64).tobytes()).hexdigest()[:8]
    return _cached(problem, cache, f"lasso-{strength}", lambda: _lasso_reference(problem, l1))


def _lasso_reference(problem, l1):
    X1 = _with_ones(problem.X)
    start = null_intercept(problem)
    outcome = [
        _lasso_newton(X1, problem.Y[:, n].astype(np.float64), problem.link, start[n], l1[n]) for n in range(len(start))
    ]
    optimum, residual = np.array(outcome).T
    return {"optimum": optimum, "residual": residual}


def _subgradient(coef, g, l1):
    at_zero = np.sign(g) * np.maximum(np.abs(g) - l1, 0)
    return np.where(coef == 0, at_zero, g + l1 * np.sign(coef))


def _lasso_newton(X1, y, link, intercept, l1):
    from sklearn.linear_model import Lasso

    d = X1.shape[1] - 1
    flat = np.zeros(d + 1)
    quadratic = Lasso(alpha=l1 / d, fit_intercept=False, warm_start=True, tol=1e-14, max_iter=20_000)
    w = np.r_[np.zeros(d), intercept]
    quadratic.coef_ = w[:-1].copy()
    best, residual = np.inf, np.inf
    for _ in range(40):
        value, g, H = _expand(X1, y, link, flat, w)
        value += l1 * np.abs(w[:-1]).sum()
        residual = max(np.abs(_subgradient(w[:-1], g[:-1], l1)).max(), abs(g[-1])) / l1
        if residual < 1e-9 or not value < best:
            break
        best = value
        # The intercept is free: eliminate it, then complete the square.
        across, bottom = H[:-1, -1], H[-1, -1]
        inner = H[:-1, :-1] - np.outer(across, across) / bottom
        slope = g[:-1] - across * g[-1] / bottom
        L = np.linalg.cholesky(inner + 1e-13 * np.trace(inner) / d * np.eye(d))
        target = L.T @ w[:-1] - np.linalg.solve(L, slope)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quadratic.fit(np.asfortranarray(L.T), target)
        p = quadratic.coef_ - w[:-1]
        step = np.r_[p, -(g[-1] + across @ p) / bottom]
        length = 1.0
        while length > 1e-4:
            trial = w + length * step
            if _value(X1, y, link, flat, trial) + l1 * np.abs(trial[:-1]).sum() <= value:
                break
            length /= 2
        w = trial
        quadratic.coef_ = w[:-1].copy()
    return min(best, value), residual


# -------------------------------------------------------------------------------------------- cache


def _cached(problem: Problem, cache: Path | None, what: str, make) -> dict:
    if cache is None:
        return make()
    path = cache / f"{what}-{problem.name}-{problem.fingerprint()}.npz"
    if path.exists():
        with np.load(path) as stored:
            return dict(stored)
    print(f"    computing the float64 {what} of {problem.name}, kept for the next run ...", flush=True)
    made = make()
    write_atomically(path, lambda file: np.savez(file, **made))
    return made


# ---------------------------------------------------------------------------------------- real data


def reach_problem(file: Path, n_lags: int = 10, n_basis: int = 5) -> tuple[Problem, Problem]:
    """Motor cortex while reaching: position and velocity of the hand through raised cosines; (training, held out).

    A bin's features are the movement in that bin and the nine after it (motor cortex leads the hand), every signal
    through five raised cosines; signals that never change are dropped (the hand moves in a plane). The last fifth
    of the recording is held out, after a gap of ten bins; features are standardised by their training mean and
    deviation.
    """
    with np.load(file, allow_pickle=False) as recording:
        signals = np.concatenate([recording["position"], recording["velocity"]], axis=1).astype(np.float64)
        counts = recording["counts"].astype(np.float32)
    signals = signals[:, np.ptp(signals, axis=0) > 0]
    windows = np.lib.stride_tricks.sliding_window_view(signals, n_lags, axis=0)  # (time, signal, lag)
    X = (windows @ raised_cosines(n_lags, n_basis)).reshape(len(windows), -1)
    Y = counts[: len(X)]
    split = int(0.8 * len(X))
    train, test = slice(0, split - n_lags), slice(split, len(X))
    mean, deviation = X[train].mean(0), X[train].std(0)
    X = ((X - mean) / deviation).astype(np.float32)
    return tuple(
        Problem(name, "softplus", STRENGTH, np.ascontiguousarray(X[rows]), np.ascontiguousarray(Y[rows]))
        for name, rows in (("reach", train), ("reach held out", test))
    )


def raised_cosines(n_lags: int, n_basis: int) -> np.ndarray:
    """Raised cosines spaced evenly over the lags, (lag, basis); they sum to a constant."""
    centres = np.linspace(0, n_lags - 1, n_basis)
    angle = np.pi * (np.arange(n_lags)[:, None] - centres) / (centres[1] - centres[0])
    return np.where(np.abs(angle) < np.pi, 0.5 + 0.5 * np.cos(angle), 0.0)


def deviance_explained(problem: Problem, coef, intercept) -> np.ndarray:
    """1 - deviance / deviance of the best constant of these rows, (neuron,); nan without spikes. Softplus only."""
    Y = problem.Y.astype(np.float64)
    eta = problem.X.astype(np.float64) @ coef + intercept
    rate = np.logaddexp(0, eta)

    def deviance(rate):
        with np.errstate(divide="ignore", invalid="ignore"):
            return 2 * np.sum(np.where(Y > 0, Y * np.log(Y / rate), 0) - Y + rate, axis=0)

    with np.errstate(divide="ignore", invalid="ignore"):
        null = deviance(np.broadcast_to(Y.mean(0), Y.shape))
        return np.where(Y.sum(0) > 0, 1 - deviance(rate) / null, np.nan)


def implicit_feedback(seed: int = 0, m: int = 942, n: int = 1447, share: float = 0.4, rank: int = 6) -> tuple:
    """Positive pairs like those of MovieLens-100K: activity of left and popularity of right entities vary widely."""
    rng = np.random.default_rng(seed)
    taste = 1.1 * rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n)) / np.sqrt(rank)
    fame = -1.1 * np.log(rng.permutation(n) + 5.0)
    activity = np.minimum(np.ceil(np.exp(rng.normal(np.log(36 * share / 0.4), 0.9, m))), n // 3).astype(int)
    score = taste + fame + rng.gumbel(size=(m, n))
    best = np.argsort(-score, axis=1)
    left = np.repeat(np.arange(m), activity)
    return left, np.concatenate([row[:a] for row, a in zip(best, activity, strict=True)]), m, n
