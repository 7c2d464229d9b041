"""Softmax solvers with default settings: distance from the optimum after one call, on many old and new data sets.

    python benchmarks/class_defaults.py [--solvers ImplicitSGD,...] [--names "digits;K=6000"]
    python benchmarks/class_defaults.py --sections version_before --before CHECKOUT [--data FOLDER]

Features are correlated, far from 0, of very different scales, heavy-tailed, sparse or redundant, like spike histories,
positions in pixels, clocks in seconds and words; classes are rare, separable or thousands. The defaults were chosen
on the sets of the section "defaults"; those of "fresh" were added later, and three of them, which are recordings, are
also in "version_before". A figure is ``(F - F*) / (F of class frequencies - F*)``, where F* is an exact fit with its
bound; 0 is the optimum, 1 is no better than frequencies.
"""

from __future__ import annotations

import argparse
import functools
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import scipy.sparse
from _common import ROOT, Section, fresh, run_sections

SOLVERS = ("auto", "ImplicitSGD", "UMax", "SoftmaxProx", "OVE", "NCE", "ImportanceSampling")
TARGETS = {  # median and worst case
    "auto": (1e-4, 1e-4),
    "SampledSoftmax": (0.05, 0.20),
    "ImplicitSGD": (0.05, 0.20),
    "UMax": (0.20, 0.40),
}
STRENGTH = 1e-4
MOST_OF_PROX = 300  # largest number of classes for steps over all of them


# --------------------------------------------------------------------------------------------- data


def draw(rng, X, K, size=1.0, intercept=None, centre=True):
    """Labels of a softmax model of the standardised features, ``size`` times a unit spread of scores."""
    Z = (X - X.mean(axis=0) * centre) / np.maximum(X.std(axis=0), 1e-12)
    score = Z @ (size * rng.normal(size=(X.shape[1], K)) / np.sqrt(X.shape[1]))
    score += 0 if intercept is None else intercept
    return np.argmax(score + rng.gumbel(size=score.shape), axis=1)


def normal(rng, n, d):
    """Independent features."""
    return rng.normal(size=(n, d))


def smooth(rng, n, d, rho=0.98):
    """Features whose neighbours are nearly equal, like lags of a smooth stimulus."""
    X = rng.normal(size=(n, d))
    for j in range(1, d):
        X[:, j] = rho * X[:, j - 1] + np.sqrt(1 - rho**2) * X[:, j]
    return X


def history(rng, n, sources, width=8):
    """Spike counts of some units, each through overlapping filters."""
    counts = rng.poisson(np.exp(0.7 * smooth(rng, n, sources, 0.5) - 2))
    t, centres = np.arange(40), np.geomspace(1, 30, width)
    filters = [np.maximum(np.cos(np.clip((np.log1p(t) - np.log1p(c)) * 2, -np.pi, np.pi)) + 1, 0) for c in centres]
    return np.column_stack([np.convolve(c, f)[:n] for c in counts.T for f in filters])


def place(rng, n, side=8, pixels=640):
    """Two positions in pixels and bumps over the arena."""
    at = pixels * rng.random((n, 2))
    centres = (np.stack(np.meshgrid(*[np.arange(6)] * 2), -1).reshape(-1, 2) + 0.5) * pixels / 6
    bumps = np.exp(-np.sum((at[:, None] - centres) ** 2, axis=2) / (2 * (pixels / 6) ** 2))
    cell = (at // (pixels / side)).astype(int)
    X = np.column_stack([at, bumps])
    noisy = np.where(rng.random(n) < 0.2, rng.integers(side**2, size=n), cell[:, 0] * side + cell[:, 1])
    return X, noisy


def words(rng, n, d, K, factor=1.0):
    """Word counts, with few frequent words, and topics."""
    topics = np.array([rng.dirichlet(0.1 + 5 / np.arange(1, d + 1)) for _ in range(K)])
    y = rng.integers(K, size=n)
    X = np.array([rng.multinomial(30, topics[k]) for k in y])
    return scipy.sparse.csr_array(factor * X.astype(float)), np.where(rng.random(n) < 0.1, rng.integers(K, size=n), y)


def sets() -> dict:
    """Map the name of every set to a function that makes features and labels."""

    def make(features, K, **of_labels):
        def function(rng):
            X = features(rng)
            return X, draw(rng, X, K, **of_labels)

        return function

    def scales(rng, n, d):
        return rng.normal(size=(n, d)) * np.geomspace(1e-3, 1e3, d)

    def one_hot(rng, n, kinds):
        parts = [np.eye(k)[np.minimum(rng.geometric(3 / k, size=n) - 1, k - 1)] for k in kinds]
        return np.column_stack(parts)

    def clock(rng, n):
        return np.column_stack([rng.normal(size=(n, 8)), 1e4 + 3e3 * rng.normal(size=n)])

    def apart(rng, n, d, K):
        centres = 8 * rng.normal(size=(K, d))
        y = rng.integers(K, size=n)
        return centres[y] + rng.normal(size=(n, d)), y

    def digits(rng, unit=False):
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        return (X / np.linalg.norm(X, axis=1, keepdims=True) if unit else X), y

    zipf = lambda K, power: -power * np.log(np.arange(1, K + 1))  # noqa: E731
    return {
        "independent, K=10": make(lambda r: normal(r, 2000, 10), 10, size=2),
        "mean 100, K=10": make(lambda r: 100 + normal(r, 2000, 10), 10, size=2),
        "scales 1e-3 to 1e3, K=10": make(lambda r: scales(r, 2000, 15), 10, size=2),
        "scales 1e-3 to 1e3, K=50": make(lambda r: scales(r, 3000, 20), 50, size=2),
        "scales 1e-3 to 1e3, K=2": make(lambda r: scales(r, 1000, 10), 2, size=2),
        "Cauchy, K=10": make(lambda r: r.standard_cauchy(size=(2000, 8)), 10, size=30),
        "Student with 2 degrees, K=20": make(lambda r: r.standard_t(2, size=(4000, 10)), 20, size=3),
        "smooth, K=50": make(lambda r: smooth(r, 5000, 20), 50, size=3),
        "smooth lags, D=200, K=5": make(lambda r: smooth(r, 1000, 200), 5, size=3),
        "spike histories, K=24": make(lambda r: history(r, 12000, 12), 24, size=2),
        "Zipf, K=300": make(lambda r: normal(r, 5000, 30), 300, size=2, intercept=zipf(300, 1)),
        "shares k^-3, K=10": make(lambda r: smooth(r, 5000, 10, 0.8), 10, intercept=zipf(10, 3)),
        "one of a hundred, K=2": make(lambda r: normal(r, 5000, 20), 2, size=2, intercept=[0, -5.5]),
        "one-hot, K=30": make(lambda r: one_hot(r, 8000, (60, 30, 10, 4)), 30, size=3),
        "places from pixels, K=64": lambda r: place(r, 8000),
        "words, D=500, K=50": lambda r: words(r, 4000, 500, 50),
        "words times 100, D=300, K=20": lambda r: words(r, 3000, 300, 20, 100.0),
        "separable, K=20": lambda r: apart(r, 2000, 10, 20),
        "digits": lambda r: digits(r),
        "digits, unit rows": lambda r: digits(r, True),
        "K=6000": make(lambda r: normal(r, 24000, 8), 6000, size=3, intercept=zipf(6000, 0.5)),
        "mean 100, K=6000": make(lambda r: 100 + normal(r, 24000, 8), 6000, size=3, intercept=zipf(6000, 0.5)),
        "a clock, K=1000": make(lambda r: clock(r, 24000), 1000, size=3),
    }


# ------------------------------------------------------------------------------------------ figures


def fit(name: str, X, y, **more):
    """Fit, seconds, and warnings."""
    from glmfit import SoftmaxGLM

    clock = time.perf_counter()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        model = SoftmaxGLM(solver_name=name, regularizer_strength=STRENGTH, certify=False, **more).fit(X, y)
    return model, time.perf_counter() - clock, [str(w.message) for w in told]


def objective(coef, intercept, X, y) -> float:
    """F over all rows, in float64, from scratch."""
    index = np.unique(y, return_inverse=True)[1]
    total = 0.0
    for rows in np.array_split(np.arange(len(y)), max(1, len(y) * len(intercept) // 4_000_000)):
        s = np.asarray(X[rows] @ coef) + intercept
        top = s.max(axis=1)
        total += np.sum(top + np.log(np.exp(s - top[:, None]).sum(axis=1)) - s[np.arange(len(rows)), index[rows]])
    return total / len(y) + STRENGTH / 2 * np.sum(coef**2)


def fresh_sets(folder: Path) -> dict:
    """Sets that were added after the defaults were chosen: other features and classes, and recorded ones."""

    def quadratic(rng):
        Z = rng.gamma(2.0, size=(6000, 5))
        X = np.column_stack([Z, *(Z[:, i] * Z[:, j] for i in range(5) for j in range(i, 5))])
        return X, draw(rng, X, 40, size=3)

    def lognormal(rng):
        X = np.exp(1.5 * smooth(rng, 3000, 12, 0.9)) * np.geomspace(1, 1e5, 12)
        return X, draw(rng, np.log(X), 15, size=2)

    def few_each(rng):
        X = smooth(rng, 15000, 24, 0.9) - 20
        return X, draw(rng, X, 2000, size=4)

    def rates(rng):
        X = rng.poisson(np.exp(rng.normal(size=80)), size=(4000, 80)).astype(float)
        return X, draw(rng, X, 8, size=2, intercept=-0.8 * np.arange(8))

    def phases(rng):
        angle = 2 * np.pi * rng.random((10000, 3))
        X = np.column_stack([f(k * angle) for k in (1, 2, 3) for f in (np.cos, np.sin)] + [np.linspace(0, 3600, 10000)])
        return X, draw(rng, X, 150, size=5)

    def noise(rng):
        X = rng.normal(size=(2000, 40)) @ rng.normal(size=(40, 40)) + 7
        return X, draw(rng, X, 25, size=0.5)

    def of(file):
        return lambda _rng: file

    made = {"products of gammas, K=40": quadratic, "lognormal, K=15": lognormal, "few rows each, K=2000": few_each,
            "spike counts, K=8": rates, "phases and time, K=150": phases, "little to learn, K=25": noise}  # fmt: skip
    return made | {name: of(file) for name, file in labelled(folder).items() if name != "digits"}


def defaults(_cache, scale: float, section: Section, *, solvers, names, sets=sets) -> None:
    """Distance from the optimum of every solver at its defaults, on every set, and its seconds."""
    found = {}
    for name, make in sets().items():
        if names and name not in names:
            continue
        X, y = make(np.random.default_rng(0))
        X, y = X[: int(scale * X.shape[0])], y[: int(scale * len(y))]
        best, seconds, _ = fit("ConjugateGradients", X, y, tol=1e-9)
        optimum, null = objective(best.coef_, best.intercept_, X, y), best.report_.null_objective
        K = len(best.classes_)
        row = {"rows": X.shape[0], "features": X.shape[1], "classes": K, "frequencies": null, "optimum": optimum,
               "exact_seconds": seconds, "exact_gap": float(best.report_.gap)}  # fmt: skip
        for solver in solvers:
            if solver == "SoftmaxProx" and K > MOST_OF_PROX:
                continue
            model, seconds, told = fit(solver, X, y)
            away = (objective(model.coef_, model.intercept_, X, y) - optimum) / (null - optimum)
            report = model.report_
            row[solver] = {"away": away, "seconds": seconds, "status": str(report.status), "warnings": told}
            row[solver] |= {"step": report.step, "tried": report.steps_tried}
        said = {k: f"{v['away']:.2g} in {v['seconds']:.1f} s" for k, v in row.items() if isinstance(v, dict)}
        print(f"    {name}:", said, flush=True)
        found[name] = row
    section.note(sets=found)
    for solver in solvers:
        away = np.array([row[solver]["away"] for row in found.values() if solver in row])
        reached = {"in the median": np.median(away), "at worst": away.max()}
        section.note(**{f"{solver}, {how}": value for how, value in reached.items()})
        for (how, value), limit in zip(reached.items(), TARGETS.get(solver, ()), strict=False):
            what = f"{solver} as it comes, share of what features explain that is missed, {how}"
            section.require(what, value, limit, limit=1, against="limit", unit="", topic="loss")


def labelled(folder: Path) -> dict:
    """Classification sets of the folder, and scikit-learn's digits: features and labels."""
    from sklearn.datasets import load_digits

    with np.load(folder / "bibtex_train.npz") as file:
        words = scipy.sparse.csr_array((file["data"], file["indices"], file["indptr"]), tuple(file["shape"]))
        found = {"bibtex": (words.astype(np.float64), file["first_label"])}
    for name in ("digit1", "ecoli"):
        with np.load(folder / f"{name}.npz") as file:
            found[name] = np.asarray(file["X"], np.float64), np.asarray(file["y"])
    return found | {"digits": load_digits(return_X_y=True)}


def version_before(cache, _scale: float, section: Section, *, folder: Path, before: Path | None) -> None:
    """Classification sets, raw and scaled, compared with the version before and its search for a step."""
    from sklearn.preprocessing import StandardScaler

    if before is None:
        raise SystemExit("Name a checkout of the version before with --before.")
    solvers = ("ImplicitSGD", "UMax")
    for name, (X, y) in labelled(folder).items():
        sparse = scipy.sparse.issparse(X)
        scaled = StandardScaler(with_mean=not sparse).fit_transform(X)
        for how, features in {"as it comes": X, "scaled": scaled}.items():
            file = cache / f"{name}-{how.replace(' ', '-')}.npz"
            parts = {"data": features.data, "indices": features.indices, "indptr": features.indptr,
                     "shape": features.shape} if sparse else {"X": features}  # fmt: skip
            np.savez(file, y=y, **parts)
            for solver in solvers:
                figures = {}
                for which, checkout in (("before", before), ("now", ROOT)):
                    out = cache / "answer.npz"
                    told = fresh("classes", checkout=checkout, file=str(file), out=str(out), solver_name=solver,
                                 regularizer_strength=STRENGTH)  # fmt: skip
                    with np.load(out) as answer:
                        told["objective"] = objective(answer["coef"], answer["intercept"], features, y)
                    figures[which] = told
                what = f"{name} {how}, {solver}"
                section.note(**{what: figures})
                for kind, limit in (("objective", 1 + 1e-3), ("seconds", 1 / 4)):
                    now, then = (np.ravel(figures[which][kind])[-1] for which in ("now", "before"))
                    unit = {"unit": "", "topic": "loss"} if kind == "objective" else {}
                    section.require(f"{what}: {kind}", now, then, limit=limit, against="the version before", **unit)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--solvers", type=lambda text: text.split(","), default=list(SOLVERS))
    parser.add_argument("--names", type=lambda text: text.split(";"), default=None)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    parser.add_argument("--before", type=Path, help="checkout of the version to compare with")
    options, rest = parser.parse_known_args()
    run = functools.partial(defaults, solvers=options.solvers, names=options.names)
    sections = {
        "defaults": run,
        "fresh": functools.partial(run, sets=functools.partial(fresh_sets, options.data)),
        "batches": functools.partial(
            defaults, solvers=["SampledSoftmax"], names=options.names, sets=lambda: sets() | fresh_sets(options.data)
        ),
        "version_before": functools.partial(version_before, folder=options.data, before=options.before),
    }
    sections["defaults"].__doc__ = defaults.__doc__
    sections["fresh"].__doc__ = "Distance from the optimum on sets that were added after the defaults were chosen."
    sections["batches"].__doc__ = "Distance of SampledSoftmax from the optimum, on the sets of both sections."
    sections["version_before"].__doc__ = version_before.__doc__
    sys.exit(run_sections(__doc__, sections, "class_defaults.json", rest))
