"""Random problems by number: designs, counts and options that break careless fits. Never imports glmfit.

The options of an estimator (`Problem.options`) and their documented meaning (`Problem.neuron`) are written down
separately here, so that neither is derived from the code that reads the other.
"""

from typing import NamedTuple

import numpy as np
from oracles import optima
from scipy.interpolate import BSpline

# SAGA compiles, so it gets few shapes: otherwise a campaign would spend its time on compiling.
ROWS, FEATURES, NEURONS = (40, 400, 1500), (3, 12), (1, 3)


class Problem(NamedTuple):
    """One fit: arrays as a user would pass them, the parameters of the estimator, and the penalty in plain numbers."""

    seed: int
    words: str  # what kind of problem it is
    X: np.ndarray
    Y: np.ndarray
    weights: np.ndarray | None
    exposure: np.ndarray | None
    offset: np.ndarray | None
    options: dict
    double: bool  # whether jax is in x64 mode
    cross_validated: bool

    @property
    def fit_arguments(self):
        return {"sample_weight": self.weights, "exposure": self.exposure, "offset": self.offset}

    def neuron(self, n, strength=None):
        """Neuron n with the penalty that the documentation promises; ``strength`` replaces one that was chosen."""
        d = self.X.shape[1]
        ridge, block, kink = _penalty(self.options, d, self.Y.shape[1], n, strength)
        offset = np.zeros(len(self.X)) if self.offset is None else self.offset
        # A row with a NaN anywhere counts for no neuron.
        known = np.isfinite(np.column_stack([self.X, self.Y, offset])).all(axis=1)
        offset = offset if offset.ndim == 1 else offset[:, n]
        weights, exposure = (np.ones(len(self.X)) if a is None else a for a in (self.weights, self.exposure))
        rows = (np.asarray(a, float)[known] for a in (self.X, self.Y[:, n], weights, exposure, offset))
        return optima.neuron(self.options["inverse_link_function"], *rows, ridge, block, kink)


def _penalty(options, d, n_neurons, n, strength):
    """Ridge of every feature, block of every feature, factor of the norm of every block."""
    name = options["regularizer"]
    given = options.get("regularizer_strength") if strength is None else strength
    nothing = np.zeros(d), np.full(d, -1), np.zeros(0)
    if name in (None, "UnRegularized"):
        return nothing
    ratio = options.get("l1_ratio", 0.5)
    if isinstance(given, tuple):
        given, ratio = given
    labels = None
    if name == "GroupLasso":
        labels = np.asarray(options["groups"])
        present = np.unique(labels[labels >= 0])
    size = d if labels is None else len(present)
    alpha, ratio = _of_neuron(given, size, n_neurons, n), _of_neuron(ratio, size, n_neurons, n)
    if name == "Ridge":
        return alpha, *nothing[1:]
    if name == "Lasso":
        return nothing[0], np.arange(d), alpha
    if name == "ElasticNet":
        return alpha * (1 - ratio), np.arange(d), alpha * ratio
    block = np.full(d, -1)
    for g, label in enumerate(present):
        block[labels == label] = g
    return nothing[0], block, alpha * np.sqrt([np.sum(labels == label) for label in present])


def _of_neuron(value, size, n_neurons, n):
    value = np.asarray(value, float)
    if value.ndim == 2:
        return value[:, n]
    return np.full(size, value[n] if value.ndim == 1 else value)


# -------------------------------------------------------------------------------- designs


def _normal(rng, T, d):
    return rng.normal(size=(T, d))


def _correlated(rng, T, d):
    return rng.normal(size=(T, d)) @ (0.2 * np.eye(d) + rng.normal(size=(d, d)) / np.sqrt(d)) + rng.normal(size=d)


def _near_duplicates(rng, T, d):
    X = rng.normal(size=(T, d))
    for j in range(1, d, 2):
        X[:, j] = X[:, j - 1] * rng.choice([1, -1, 3]) + 10.0 ** rng.uniform(-8, -3) * X[:, j]
    return X


def _splines(rng, T, d):
    """Position on a track that is visited unevenly: some bumps are almost never reached."""
    position = rng.beta(2, rng.choice([2, 6, 20]), T)
    knots = np.r_[[0.0] * 3, np.linspace(0, 1, max(d - 2, 2)), [1.0] * 3]
    X = BSpline.design_matrix(np.clip(position, 0, 1 - 1e-9), knots, 3).toarray()
    return X[:, :d]


def _indicators(rng, T, d):
    """One-hot bins, some with one row or none."""
    return np.eye(d)[np.minimum(rng.geometric(min(0.9, 2.5 / d), T) - 1, d - 1)]


def _clock(rng, T, d):
    X = rng.normal(size=(T, d))
    X[:, 0] = 1.7e9 + np.arange(T) * rng.choice([0.01, 1.0, 20.0])
    return X


def _huge_means(rng, T, d):
    return rng.normal(size=(T, d)) + rng.choice([-1, 1], d) * 10.0 ** rng.uniform(0, 6, d)


def _scales(rng, T, d):
    return rng.normal(size=(T, d)) * 10.0 ** rng.uniform(-3, 3, d)


def _low_rank(rng, T, d):
    r = max(1, d // 2)
    return rng.integers(-2, 3, (T, r)) @ rng.integers(-1, 2, (r, d)) + 0.0  # integers: repeats are exact


def _constants(rng, T, d):
    X = rng.normal(size=(T, d))
    X[:, rng.random(d) < 0.4] = rng.choice([0.0, 1.0, -3.7])
    return X


def _heavy_tails(rng, T, d):
    return np.clip(rng.standard_t(1.5, (T, d)), -1e3, 1e3)


def _history(rng, T, d):
    """Spikes of other neurons in earlier bins."""
    return (rng.random((T, d)) < rng.uniform(0.01, 0.3, d)) + 0.0


def _powers(rng, T, d):
    t = np.linspace(-1, 1, T)
    return np.stack([t ** (j % 6 + 1) + (j > 5) * rng.normal(size=T) for j in range(d)], axis=1)


DESIGNS = (
    _normal, _correlated, _near_duplicates, _splines, _indicators, _clock, _huge_means, _scales, _low_rank, _constants,
    _heavy_tails, _history, _powers,
)  # fmt: skip

COUNTS = ("tuned", "sparse", "huge", "silent", "few rows", "separable", "refractory", "flat", "one spike")


def _eta(rng, X, size):
    Z = X - X.mean(axis=0)
    Z = Z / np.where(Z.std(axis=0) > 0, Z.std(axis=0), 1)
    coef = rng.normal(size=X.shape[1]) * (rng.random(X.shape[1]) < 0.6)
    return Z @ coef * size / np.sqrt(max(1, np.count_nonzero(coef)))


def _counts(rng, kind, X, gain):
    """Counts of one neuron of one kind, drawn at rates times ``gain``; X may be changed to suit the kind."""
    T = len(X)
    base = np.clip(_eta(rng, X, rng.uniform(0.2, 1.2)), -5, 4)
    mean = {"sparse": 0.02, "huge": 10.0 ** rng.uniform(4, 5), "flat": 1.0}.get(kind, 10.0 ** rng.uniform(-0.7, 0.7))
    rate = mean * (np.exp(base) if kind != "flat" else 1.0) * np.minimum(gain, 1e3)
    y = rng.poisson(np.minimum(rate, 1e7)).astype(float)
    if kind == "silent":
        return np.zeros(T)
    if kind == "few rows":
        rows = rng.permutation(T)[: max(1, T // 50)]
        y = np.where(np.isin(np.arange(T), rows), 1 + y, 0)
    if kind == "one spike":
        y = (np.arange(T) == rng.integers(T)) + 0.0
    if kind == "separable":
        X[:, rng.integers(X.shape[1])] = (y == 0) & (rng.random(T) < 0.4)
    if kind == "refractory" and T > 2:
        y = np.minimum(y, 1)
        for t in range(1, T):
            y[t] *= 1 - y[t - 1]
        X[1:, rng.integers(X.shape[1])] = y[:-1]
    return y


# -------------------------------------------------------------------------------- options


def _strength(rng, shape):
    return 10.0 ** rng.uniform(-6, 0, shape)


def _regularizer(rng, d, n):
    """Name, strength and groups; strengths of 0 leave a coefficient or a neuron free."""
    names = ["UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso"]
    name = str(rng.choice(names, p=[0.3, 0.35, 0.12, 0.1, 0.13]))
    if name == "UnRegularized":
        return {"regularizer": name}
    options, size = {"regularizer": name}, d
    if name == "GroupLasso":
        labels = rng.integers(-1, max(1, d // 2), d)
        labels[rng.integers(d)] = 0
        if rng.random() < 0.5:
            labels = np.maximum(labels, 0)
        options["groups"], size = labels.tolist(), len(set(labels.tolist()) - {-1})
    form = rng.choice(["one", "neuron", "coefficient"] + ["default"] * (name == "Ridge"))
    if form == "default":
        return options
    if form == "one":
        strength = float(_strength(rng, ()))
    elif form == "neuron":
        strength = _strength(rng, n) * (rng.random(n) > 0.1)
    else:
        strength = _strength(rng, (size, n)) * (rng.random((size, 1)) > 0.25)
    if name == "ElasticNet" and rng.random() < 0.7:
        strength = (strength, float(rng.uniform(0.05, 1)))
    options["regularizer_strength"] = strength
    return options


def problem(seed):
    """Problem number ``seed``."""
    rng = np.random.default_rng([seed, 20261124])
    design = DESIGNS[seed % len(DESIGNS)]
    cross_validated = bool(rng.random() < 0.06)
    solver = str(rng.choice(["auto", "Newton", "SAGA"], p=[0.4, 0.4, 0.2]))
    solver = "auto" if cross_validated else solver
    link = "softplus" if rng.random() < 0.5 else "exp"
    if solver == "SAGA" or cross_validated:
        T, d, n = (int(rng.choice(some)) for some in (ROWS, FEATURES, NEURONS))
        T = 400 if cross_validated else T
    else:
        T = int(10.0 ** rng.uniform(0.5, 3.48))
        d, n = int(10.0 ** rng.uniform(0, 1.6)), int(rng.integers(1, 5))
    missing = int(rng.integers(0, 6)) if rng.random() < 0.25 else 0  # rows that will not count
    X = np.array(design(rng, T + missing, d), float)
    n_rows = len(X)
    offset = exposure = weights = None
    if rng.random() < 0.3:
        offset = rng.normal(size=(n_rows, n) if rng.random() < 0.5 else n_rows) * rng.choice([0.3, 1.0, 10.0])
        offset += rng.choice([0, 0, 0, -30, 200, -1e3])
    if rng.random() < 0.2:
        exposure = rng.uniform(0.05, 1, n_rows) * rng.choice([1.0, 1.0, 0.02, 50.0])
    if rng.random() < 0.25:
        weights = rng.choice([1.0, 2.0, 0.5], n_rows) if rng.random() < 0.5 else rng.exponential(size=n_rows)
    gains = np.ones((n_rows, n))
    if offset is not None:
        gains = np.exp(np.clip(offset - np.median(offset), -6, 3)).reshape(n_rows, -1) * gains
    if exposure is not None:
        gains = gains * exposure[:, None]
    kinds = [str(rng.choice(COUNTS, p=[0.35, 0.12, 0.08, 0.06, 0.08, 0.1, 0.08, 0.08, 0.05])) for _ in range(n)]
    if cross_validated:
        kinds = ["tuned" if kind in ("silent", "one spike", "few rows") else kind for kind in kinds]
    Y = np.stack([_counts(rng, kind, X, gains[:, i]) for i, kind in enumerate(kinds)], axis=1)
    if missing:
        _spoil(rng, missing, X, Y, weights, offset)
    X = X.astype(np.float32) if rng.random() < 0.4 else X
    Y = Y.astype(np.float32) if rng.random() < 0.3 else Y
    options = {"inverse_link_function": link, **_regularizer(rng, d, n), "solver_name": solver}
    options["tol"] = float(rng.choice([1e-6, 1e-4, 1e-9, 1e-12], p=[0.6, 0.15, 0.15, 0.1]))
    if rng.random() < 0.12:
        options["max_epochs"] = int(rng.choice([1, 2, 4, 10, 30]))
    if cross_validated:
        options = {key: options[key] for key in ("inverse_link_function", "tol")}
        options |= {"regularizer": str(rng.choice(["Ridge", "Lasso", "ElasticNet"])), "cv": 3}
        options |= {"strengths": sorted(_strength(rng, 3).tolist())}
        options |= {"l1_ratio": float(rng.uniform(0.1, 1))} if options["regularizer"] == "ElasticNet" else {}
    double = bool(rng.random() < 0.15)
    parts = [design.__name__[1:], f"{T} x {d}", "+".join(kinds), str(X.dtype), "x64" if double else ""]
    parts += ["weights"] * (weights is not None) + ["exposure"] * (exposure is not None)
    parts += ["offset"] * (offset is not None) + ["cross-validated"] * cross_validated
    short = {k: v for k, v in options.items() if k not in ("groups", "regularizer_strength")}
    words = f"{seed}: {', '.join(part for part in parts if part)}; {short}"
    return Problem(seed, words, X, Y, weights, exposure, offset, options, double, cross_validated)


def _spoil(rng, missing, X, Y, weights, offset):
    """Make some rows not count, each in one way."""
    for row in rng.permutation(len(X))[:missing]:
        way = rng.integers(4)
        if way == 0 and weights is not None:
            weights[row] = 0
        elif way == 1 and offset is not None:
            offset[row] = np.nan
        elif way == 2:
            Y[row, rng.integers(Y.shape[1])] = np.nan
        else:
            X[row, rng.integers(X.shape[1])] = np.nan
