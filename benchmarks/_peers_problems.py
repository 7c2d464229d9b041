"""Problems of peers.py: recorded and simulated designs with many neurons and with one, softmax of ten classes.

A section is a design and a link, "w_maze_place-exp", with "-one" for the neuron with the median count; or
"softmax-digits" and "softmax-10". Gaps are against Newton's method in float64; nothing here imports glmfit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import _problems
import numpy as np
from _designs import DESIGNS
from _problems import STRENGTH, Problem
from _references import objective
from scipy.special import logsumexp

MANY = (
    "w_maze_place",
    "w_maze_place_and_history",
    "open_field_place",
    "open_field_coupling",
    "motor_cortex_velocity_lags",
    "motor_cortex_coupling",
    "P1",
)
ONE = ("w_maze_place", "P1")
NAMES = (
    *(f"{design}-{link}" for design in MANY for link in ("softplus", "exp")),
    *(f"{design}-{link}-one" for design in ONE for link in ("softplus", "exp")),
    "softmax-digits",
    "softmax-10",
)
N_ROWS = 30_000  # of the simulated softmax


@dataclass(frozen=True)
class Classes:
    """Rows with one label each; F = mean of -log p(label) + strength/2 ||W||^2, intercepts free."""

    name: str
    strength: float
    X: np.ndarray
    Y: np.ndarray  # labels
    x_file: Path | None = None
    y_file: Path | None = None

    link = "softmax"

    @property
    def n_classes(self) -> int:
        """Number of classes; all of them occur."""
        return int(self.Y.max()) + 1

    def objective(self, coef, intercept) -> float:
        """F in float64."""
        s = self.X.astype(np.float64) @ np.asarray(coef, np.float64) + np.asarray(intercept, np.float64)
        loss = logsumexp(s, axis=1) - s[np.arange(len(s)), self.Y]
        return float(loss.mean() + self.strength / 2 * np.sum(np.asarray(coef, np.float64) ** 2))

    def null(self) -> float:
        """F of the frequencies of the classes."""
        share = np.bincount(self.Y) / len(self.Y)
        return self.objective(np.zeros((self.X.shape[1], self.n_classes)), np.log(share))


def make_problem(name: str, cache: Path, scale: float, data: Path | None):
    """Make the problem of a section and write its arrays for fresh processes to read.

    "softmax-standardised" and "softmax-unscaled" are other scalings of the digits; "softmax-digits" is from 0 to 1.
    """
    kind, what, *one = name.split("-")
    if kind == "softmax":
        problem = make_classes(name, what, scale)
    else:
        X, Y = _design(kind, cache, scale, data)
        if one:
            middle = np.argsort(Y.sum(axis=0))[Y.shape[1] // 2]
            Y = Y[:, middle : middle + 1]
        problem = Problem(name, what, STRENGTH, X, np.ascontiguousarray(Y))
    n_rows, design = len(problem.X), name if kind == "softmax" else kind
    x_file = _problems.save_array(cache / f"{design}-{n_rows}-X.npy", problem.X)
    return replace(problem, x_file=x_file, y_file=_problems.save_array(cache / f"{name}-{n_rows}-Y.npy", problem.Y))


def _design(name: str, cache: Path, scale: float, data: Path | None):
    """Features and counts of the first rows, for neurons with spikes there."""
    if name == "P1":
        problem = _problems.load(name, cache, scale)
        X, Y = problem.X, problem.Y
    elif data is None:
        raise ValueError(f"{name} is a recording that is not shipped: name its folder by --data FOLDER")
    else:
        X, Y = (array[: int(scale * len(array))] for array in DESIGNS[name](data))
    return X, Y[:, Y.sum(axis=0) > 0]


def make_classes(name: str, what: str, scale: float) -> Classes:
    """Digits of scikit-learn, or independent features with the number of classes in the name."""
    if what.isdigit():
        rng, n_rows, d, n_classes = np.random.default_rng(0), max(1000, round(N_ROWS * scale)), 64, int(what)
        X = rng.normal(size=(n_rows, d)).astype(np.float32)
        scores = X @ rng.normal(size=(d, n_classes)) / np.sqrt(d) * 2
        return Classes(name, STRENGTH, X, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1))
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    if what == "standardised":
        X = (X - X.mean(axis=0)) / np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1.0)
    X = X / 16 if what == "digits" else X
    return Classes(name, 1e-4 if what == "unscaled" else 1e-3, X.astype(np.float32), y)


# ---------------------------------------------------------------------------------------------- gaps


class Gap:
    """Relative gaps, (F - F*) / (F_null - F*), with sums over the fitted neurons."""

    def __init__(self, problem, cache: Path):
        self.problem = problem
        if problem.link == "softmax":
            self.best, self.null = newton(problem), problem.null()
        else:
            self.best, self.null = _problems.reference(problem, cache), _problems.null_objective(problem)

    def __call__(self, coef, intercept, neurons=None) -> tuple[float, float | None]:
        """Gap of the population, and of its worst neuron, which is relative to at least a hundredth of a nat."""
        problem, best, null = self.problem, self.best, self.null
        if problem.link == "softmax":
            return _finite((problem.objective(coef, intercept) - best) / (null - best)), None
        if neurons is not None:
            problem, best, null = problem.select(neurons), best[neurons], null[neurons]
        distance = objective(problem, None, coef, intercept) - best
        least = np.maximum(null - best, 1e-2 / len(problem.X))
        return _finite(distance.sum() / (null - best).sum()), _finite(np.max(distance / least))


def _finite(gap) -> float:
    return float(gap) if np.isfinite(gap) else np.inf


def newton(problem: Classes) -> float:
    """F of the optimum: damped Newton with the whole Hessian, float64."""
    X = np.column_stack([problem.X.astype(np.float64), np.ones(len(problem.X))])
    (n, d), n_classes = X.shape, problem.n_classes
    ridge = np.r_[np.full(d - 1, problem.strength), 0.0][:, None]
    hit, W = np.eye(n_classes)[problem.Y], np.zeros((d, n_classes))
    for _ in range(50):
        s = X @ W
        p = np.exp(s - logsumexp(s, axis=1, keepdims=True))
        g = X.T @ (p - hit) / n + ridge * W
        H = np.zeros((d, n_classes, d, n_classes))
        for a in range(n_classes):
            for b in range(a, n_classes):
                block = X.T @ (X * (p[:, a] * ((a == b) - p[:, b]))[:, None]) / n
                H[:, a, :, b] = H[:, b, :, a] = block
        H = H.reshape(d * n_classes, -1) + np.diag(np.repeat(ridge.ravel(), n_classes))
        shift = np.zeros((d, n_classes))
        shift[-1] = 1.0  # a shift of all intercepts changes nothing
        step = np.linalg.solve(H + np.outer(shift.ravel(), shift.ravel()), g.ravel()).reshape(W.shape)
        decrement, length, value = float(np.sum(g * step)), 1.0, problem.objective(W[:-1], W[-1])
        if decrement < 1e-18:
            return value
        while length > 1e-3:
            trial = W - length * step
            if problem.objective(trial[:-1], trial[-1]) <= value - 1e-4 * length * decrement:
                break
            length /= 2
        W = W - length * step
    raise RuntimeError(f"the reference of {problem.name} did not converge: decrement {decrement:.1e}")
