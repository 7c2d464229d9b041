"""Draw the figures of the documentation from simulated data with fixed seeds.

python docs/figures/draw.py [FOLDER]     into docs/figures unless another folder is named; takes about ten seconds
"""

from __future__ import annotations

import doctest
import os
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from glmfit import PopulationGLM, SoftmaxGLM, plotting  # noqa: E402
from glmfit.bounds.self_concordance import gap_bound  # noqa: E402
from glmfit.plotting import BLACK, BLUE, GREEN, GREY, ORANGE, RED  # noqa: E402

DPI = 120


def softplus_loss(eta, y):
    """Mean loss, its slope in eta per row and its curvature, softplus link."""
    rate, share = np.logaddexp(0, eta), 1 / (1 + np.exp(-eta))
    slope = share * (1 - y / rate)
    curvature = share * (1 - share) * (1 - y / rate) + y * share**2 / rate**2
    return np.mean(rate - y * np.log(rate)), slope, curvature


# ------------------------------------------------------------------------- a gap, a bound, an estimate


def gap_in_one_dimension():
    """One coefficient: objective, second-order model, lower bound, and the three distances that follow."""
    rng = np.random.default_rng(7)
    x = rng.uniform(-1, 1, 60)
    y = rng.poisson(np.logaddexp(0, 3 * x))

    def objective(w):
        return softplus_loss(w * x, y)[0]

    w = np.linspace(0, 9, 901)
    curve = np.array([objective(a) for a in w])
    best = w[np.argmin(curve)]
    here = best - 1
    value, slope, curvature = softplus_loss(here * x, y)
    g, h, reach = np.mean(slope * x), np.mean(curvature * x**2), np.abs(x).max()
    v, s = w - here, reach * np.abs(w - here) + 1e-12
    model = value + g * v + 0.5 * h * v**2
    below = value + g * v + h * v**2 * (np.exp(-s) + s - 1) / s**2
    bound = float(gap_bound(np.array([g**2 / h]), np.array([reach**2 / h]))[0])
    assert np.all(below <= curve + 1e-12) and abs(value - below.min() - bound) < 1e-4

    ax = plotting.new_axes(size=(6.2, 3.4))[0, 0]
    ax.plot(w, curve, color=BLACK, lw=1.8, label="objective $F$")
    ax.plot(w, below, color=BLUE, lw=1.4, label="proved lower bound of $F$")
    ax.plot(w, model, color=ORANGE, lw=1.4, ls="--", label="second-order approximation")
    ax.plot(here, value, "o", color=RED, ms=6, zorder=5)
    ax.text(here - 0.1, value - 0.004, "where the\nfit stopped", fontsize=8, color=RED, ha="right", va="top")
    ax.plot(best, curve.min(), "o", color=BLACK, ms=4)
    ax.text(best + 0.2, curve.min() - 0.001, "optimum", fontsize=8, va="center")
    ax.axhline(value, color=GREY, lw=0.6, ls=":")
    lows = (("gap", curve.min(), BLACK), ("estimate", model.min(), ORANGE), ("bound", below.min(), BLUE))
    for k, (name, low, color) in enumerate(lows):
        at = best + 3.2 + 0.65 * k
        ax.annotate("", (at, low), (at, value), arrowprops={"arrowstyle": "<->", "color": color, "lw": 1.3})
        ax.text(at, low - 0.0015, name, color=color, fontsize=8, ha="center", va="top")
        ax.plot([at - 0.25, at + 0.25], [low, low], color=color, lw=0.8)
    ax.set_xlim(best - 2.2, best + 4.9)
    ax.set_ylim(below.min() - 0.012, value + 0.05)
    ax.set_xlabel("coefficient", fontsize=9)
    ax.set_ylabel("objective (nats per bin)", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return ax.figure


# ------------------------------------------------------------------------ true gap, bound, estimate, by epochs


def smooth_stimulus(n_bins, n_basis, seed):
    """Past of a smooth stimulus through overlapping bumps: features that are nearly the same."""
    rng = np.random.default_rng(seed)
    stimulus = np.convolve(rng.normal(size=n_bins + 200), np.hanning(25), "same")
    stimulus /= stimulus.std()
    lags = np.arange(60)
    peaks = np.linspace(0, 59, n_basis)
    phase = np.clip((lags[:, None] - peaks) / (peaks[1] - peaks[0]), -2, 2)
    basis = 0.5 * (1 + np.cos(np.pi / 2 * phase))
    basis /= basis.sum(axis=0)
    X = np.column_stack([np.convolve(stimulus, b)[100 : 100 + n_bins] for b in basis.T])
    return rng, X, basis


def convergence():
    """True gap of a classifier and the reported gap, for fits stopped after each epoch."""
    rng, X, _ = smooth_stimulus(6000, 10, 3)
    eta = X @ rng.normal(size=10) - 3
    y = rng.poisson(np.logaddexp(0, eta)) > 0
    best = SoftmaxGLM(solver_name="ConjugateGradients", tol=1e-14, regularizer_strength=0).fit(X, y).report_
    epochs = np.r_[1:13, 14:39:3]
    reports = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fits that are stopped early warn
        for n in epochs:
            model = SoftmaxGLM(solver_name="BoundMajorization", max_epochs=int(n), tol=1e-12, regularizer_strength=0)
            reports.append(model.fit(X, y).report_)
    true = np.array([r.objective - best.objective for r in reports])
    said = np.array([r.gap for r in reports])
    proved = np.array([r.gap_is_bound for r in reports])
    assert np.all(said[proved] >= true[proved])

    axes = plotting.new_axes(width_ratios=(1, 1), size=(7.2, 2.9))
    left, right = axes[0]
    left.plot(epochs, [r.objective for r in reports], "-", color=BLACK, lw=1.4)
    left.set_ylabel("objective (nats per bin)", fontsize=9)
    right.plot(epochs, true, "-", color=BLACK, lw=1.4, label="true gap")
    right.plot(epochs[proved], said[proved], "v", color=BLUE, ms=5, label="reported bound", zorder=4)
    right.plot(epochs[~proved], said[~proved], "o", mfc="none", mec=ORANGE, ms=5, label="reported estimate", zorder=3)
    right.set_yscale("log")
    right.set_ylabel("gap (nats per bin)", fontsize=9)
    right.legend(frameon=False, fontsize=8)
    for ax in (left, right):
        ax.set_xlabel("epochs run before the fit was stopped", fontsize=9)
    plotting.label_panels(axes)
    return left.figure


# --------------------------------------------------------------------------------- stopped is not arrived


def correlated():
    """Plain gradient descent on correlated features: the objective flattens long before the gap is small."""
    rng, X, basis = smooth_stimulus(40_000, 10, 5)
    lags = np.arange(len(basis))
    truth = basis @ [0, 0, 1, -0.6, 0.6, 0, 0, -0.4, 0, 0]
    eta = X @ [0, 0, 1, -0.6, 0.6, 0, 0, -0.4, 0, 0]
    scale = 1 / eta.std()
    y = rng.poisson(np.logaddexp(0, scale * eta - 1))
    strength = 1e-7
    fit = PopulationGLM(regularizer="Ridge", regularizer_strength=strength, solver_name="Newton", tol=1e-12).fit(X, y)
    A = np.column_stack([X, np.ones(len(X))])
    ridge = np.r_[np.full(X.shape[1], strength), 0]
    step = 1 / np.linalg.eigvalsh(A.T @ A / len(A))[-1]  # short enough to descend here
    w, path, stopped = np.zeros(A.shape[1]), [], None
    for k in range(5001):
        value, slope, _ = softplus_loss(A @ w, y)
        path.append(value + 0.5 * ridge @ w**2)
        if stopped is None and k and (path[-2] - path[-1]) < 1e-5 * abs(path[-1]):
            stopped, w_stopped = k, w.copy()
        w = w - step * (A.T @ slope / len(A) + ridge * w)
    path = np.array(path)
    gap = path - fit.report_.objective[0]

    axes = plotting.new_axes(width_ratios=(1, 1, 1), size=(8.4, 2.8))
    a, b, c = axes[0]
    iterations = np.arange(len(path))
    a.plot(iterations, path, color=BLACK, lw=1.4)
    a.set_ylabel("objective (nats per bin)", fontsize=9)
    b.plot(iterations, gap, color=BLACK, lw=1.4)
    b.set_yscale("log")
    b.set_ylabel("true gap (nats per bin)", fontsize=9)
    for ax, values in ((a, path), (b, gap)):
        ax.plot(stopped, values[stopped], "o", color=RED, ms=5, zorder=5)
        ax.set_xlabel("iterations of gradient descent", fontsize=9)
        ax.set_xticks([0, 2500, 5000])
    a.annotate("objective changes by\nless than 1e-5: stop", (stopped, path[stopped]), (1500, path[stopped] + 0.06),
               fontsize=8, color=RED, arrowprops={"arrowstyle": "-", "color": RED, "lw": 0.7})  # fmt: skip
    b.axhline(0.01 / len(X), color=GREEN, lw=1, ls="--")
    b.text(5000, 1.3 * 0.01 / len(X), "converged: 0.01 nat in all", fontsize=7, color=GREEN, ha="right")
    plotting.plot_filter(basis, fit.coef_, lags / 100, label="optimum", ax=c)
    plotting.plot_filter(
        basis, w_stopped[:-1], lags / 100, label="stopped early", color=RED, ylabel="filter weight", ax=c
    )
    c.plot(10 * lags, scale * truth, "--", color=BLACK, lw=1, label="true")
    c.legend(frameon=False, fontsize=8)
    plotting.label_panels(axes)
    print(f"    stopped after {stopped} iterations, gap {gap[stopped]:.2g}, {gap[stopped] * len(X):.3g} nats in all")
    return a.figure


# -------------------------------------------------------------------- a gap is no distance between coefficients


def valley():
    """Two nearly identical features: coefficients far apart with nearly the same objective."""
    rng = np.random.default_rng(11)
    shared = rng.normal(size=3000)
    X = np.column_stack([shared + 0.12 * rng.normal(size=3000), shared + 0.12 * rng.normal(size=3000)])
    true = np.array([0.8, 0.0])
    y = rng.poisson(np.logaddexp(0, X @ true - 1))
    fit = PopulationGLM(regularizer="UnRegularized", tol=1e-12).fit(X, y)
    one, two = np.linspace(0.2, 1.5, 240), np.linspace(-0.7, 0.6, 240)
    values = np.array([[softplus_loss(X @ [a, b] + fit.intercept_, y)[0] for a in one] for b in two])
    gap = values - fit.report_.objective[0]

    ax = plotting.new_axes(size=(4.6, 3.6))[0, 0]
    for level, color in ((1e-4, BLUE), (1e-3, GREEN), (5e-3, GREY)):
        ax.contour(one, two, gap, levels=[level], colors=[color], linewidths=1.3)
        ax.plot([], [], color=color, lw=1.3, label=f"gap {level:g} nats per bin")
    ax.plot(*fit.coef_, "o", color=BLACK, ms=5, label="optimum")
    ax.plot(*true, "*", color=RED, ms=9, mec="none", label="true coefficients")
    ax.set_aspect("equal")
    ax.set_xlabel("coefficient of feature 1", fontsize=9)
    ax.set_ylabel("coefficient of feature 2", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="upper right")
    return ax.figure


# -------------------------------------------------------------------------------------------- start here


def start_here():
    """Run the blocks of the page, which draw its figure."""
    text = (ROOT / "docs" / "start_here.md").read_text(encoding="utf-8")
    names = {}
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            for example in doctest.DocTestParser().get_examples(text):
                exec(example.source, names)
        finally:
            os.chdir(before)
    return names["axes"][0, 0].figure


FIGURES = {
    "gap.png": gap_in_one_dimension,
    "convergence.png": convergence,
    "correlated.png": correlated,
    "valley.png": valley,
    "start_here.png": start_here,
}


def main(folder: Path = HERE) -> None:
    """Draw everything."""
    for name, draw in FIGURES.items():
        draw().savefig(folder / name, dpi=DPI, metadata={"Software": None})
        print(f"{name}: {(folder / name).stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
