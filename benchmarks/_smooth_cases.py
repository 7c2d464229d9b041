"""Additive models of recorded and simulated neurons on which glmfit and mgcv are compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import _smooth_data as data
import numpy as np
from _mgcv import Parametric, Run

RUNS = "control=list(epsilon=1e-10, newton=list(conv.tol=1e-9))"  # more exact than mgcv's default of 1e-6
SMALL_RANGE, SMALL_DEGREES = 0.1, 0.5  # log rate, degrees of freedom: least scales of relative differences


class Case(NamedTuple):
    """A model of one neuron; ``own`` is mgcv's formula for it, if its own bases can express it."""

    name: str
    make: Callable[[Path], data.Recording]
    basis: Callable
    own: str | None = None


def _neuron(recording: Callable[[Path], data.Recording], count: int, n_bins: int = 12_000):
    """First bins of a recording, with the neuron whose total number of spikes is closest to ``count``."""

    def make(folder: Path) -> data.Recording:
        whole = recording(folder)
        neuron = int(np.argmin(np.abs(whole.counts.sum(axis=0) - count)))
        return data.with_history(whole, neuron).part(n_bins)

    return make


def map_of(low, high, n: int = 8, names: str = "xy", **more):
    """Tensor product of cubic splines over a rectangle."""
    from glmfit.design import BSpline, product

    x, y = (BSpline(n, (low[k], high[k]), name=names[k], **more) for k in range(2))
    return product(x, y)


def spline(name: str, low: float, high: float, n: int = 10, **more):
    """Cubic splines of a value."""
    from glmfit.design import BSpline

    return BSpline(n, (low, high), name=name, **more)


def circle(name: str, n: int = 8):
    """Cubic splines around a circle."""
    from glmfit.design import CyclicBSpline

    return CyclicBSpline(n, name=name)


def history(window_s: float = 0.5, bin_s: float = data.BIN_S, n: int = 5):
    """Ridge on raised cosines of the past."""
    from glmfit.design import RaisedCosineLog

    return RaisedCosineLog(n, window_s, bin_s, name="history")


def _isotropic(low, high):
    from glmfit.design import product

    return product(*map_of(low, high).factors, name="place", isotropic=True)


MAZE = (180, 120), (530, 480)
BOX = (-1, -1), (1, 1)
UNIT = (0, 0), (1, 1)
TE_XY = "te(x, y, bs='ps', m=list(c(2, 2), c(2, 2)), k=c(8, 8), np=FALSE)"
CASES = (
    Case("W-maze: place, many spikes", _neuron(data.w_maze, 5649), lambda: map_of(*MAZE)),
    Case("W-maze: place, few spikes", _neuron(data.w_maze, 336), lambda: map_of(*MAZE)),
    Case("W-maze: place + speed", _neuron(data.w_maze, 3048), lambda: map_of(*MAZE) + spline("speed", 5, 130)),
    Case(
        "W-maze: place + speed, own bases", _neuron(data.w_maze, 1673),
        lambda: map_of(*MAZE, clamped=False) + spline("speed", 5, 130, clamped=False),
        f"{TE_XY} + s(speed, bs='ps', m=c(2, 2), k=10)",
    ),
    Case("W-maze: place + history", _neuron(data.w_maze, 2040), lambda: map_of(*MAZE) + history()),
    Case("open field: place", _neuron(data.open_field, 3536, 15_000), lambda: map_of(*BOX)),
    Case(
        "open field: place, own basis", _neuron(data.open_field, 900, 15_000),
        lambda: map_of(*BOX, clamped=False), TE_XY,
    ),
    Case("open field: isotropic place", _neuron(data.open_field, 2047, 15_000), lambda: _isotropic(*BOX)),
    Case("linear track: position", _neuron(data.linear_track, 3136), lambda: spline("along", 0, 1, 20)),
    Case(
        "linear track: position, own basis, few spikes", _neuron(data.linear_track, 152),
        lambda: spline("along", 0, 1, 20, clamped=False), "s(along, bs='ps', m=c(2, 2), k=20)",
    ),
    Case(
        "linear track: position + speed", _neuron(data.linear_track, 606),
        lambda: spline("along", 0, 1, 20) + spline("speed", 5, 140),
    ),
    Case(
        "motor cortex: direction + speed", _neuron(data.motor_cortex, 9000),
        lambda: circle("direction") + spline("speed", 0, 0.3),
    ),
    Case(
        "motor cortex: direction, own basis", _neuron(data.motor_cortex, 1200), lambda: circle("direction"),
        "s(direction, bs='cp', m=c(2, 2), k=8)",
    ),
    Case(
        "motor cortex: direction + speed + history", _neuron(data.motor_cortex, 3400),
        lambda: circle("direction") + spline("speed", 0, 0.3) + history(),
    ),
    Case(
        "motor cortex: velocity map", _neuron(data.motor_cortex, 20_000),
        lambda: map_of((-0.3, -0.3), (0.3, 0.3), names=("vx", "vy")),
    ),
    Case("simulated: curve, 0.02 per bin", lambda _: data.curves(8000, 0.02, 1), lambda: spline("position", 0, 1, 12)),
    Case(
        "simulated: curve, own basis, 2 per bin", lambda _: data.curves(8000, 2.0, 2),
        lambda: spline("position", 0, 1, 20, clamped=False), "s(position, bs='ps', m=c(2, 2), k=20)",
    ),
    Case(
        "simulated: curve + speed without effect", lambda _: data.curves(8000, 0.2, 3),
        lambda: spline("position", 0, 1, 12) + spline("speed", 0, 3, 8),
    ),
    Case(
        "simulated: position by phase, own bases", lambda _: data.curves(10_000, 0.3, 4),
        lambda: spline("position", 0, 1, 8, clamped=False) * circle("phase"),
        "te(position, phase, bs=c('ps', 'cp'), m=list(c(2, 2), c(2, 2)), k=c(8, 8), np=FALSE)",
    ),
    Case(
        "simulated: place + speed + phase + history",
        lambda _: data.place_cells(12_000, 60, 0.15).part(12_000, [7]),
        lambda: map_of(*UNIT) + spline("speed", 0, 3, 8) + circle("phase") + history(0.4, 0.02, 8),
    ),
)  # fmt: skip


class Fitted(NamedTuple):
    """Result of a package for the comparison: curves by term, degrees of freedom by term, strengths."""

    curves: dict[str, np.ndarray]  # at the bins and, after them, on a grid
    edf: dict[str, float]
    strengths: np.ndarray


def by_glmfit(X, y, basis) -> Fitted:
    """Strengths by marginal likelihood."""
    from glmfit import PopulationGAM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = PopulationGAM(basis, inverse_link_function="exp", tol=1e-10).fit(X, y)
    strengths = np.concatenate([of for of in model.strengths_.values()]) * len(X)
    curves = {name: _curve(X, term, model.coef_[list(term.features)]) for name, term in basis.terms.items()}
    return Fitted(curves, dict(model.edf_), strengths)


def _curve(X, term, coef) -> np.ndarray:
    """A term at the bins and on its grid, less its mean over the bins."""
    at_bins = X[:, list(term.features)] @ coef
    n = 100 if term.basis.n_inputs == 1 else 30
    grid = term.basis.on_grid(*term.basis.axes(n)) @ coef
    if term.basis.kind.startswith("raised"):  # a filter: compare its values on the grid without centring
        return np.append(at_bins - at_bins.mean(), grid)
    return np.append(at_bins, grid) - at_bins.mean()


def by_mgcv(X, y, basis, strengths: np.ndarray) -> tuple[Fitted, float, float]:
    """The same matrices through paraPen; REML scores at its strengths and at the given ones, lower is better."""
    terms = {name: Parametric(X[:, list(t.features)], t.penalties) for name, t in basis.terms.items()}
    with Run() as run:
        free, held, at = [], [], 0
        for j, term in enumerate(terms.values()):
            run.give(f"X{j}", term.X)
            matrices = ", ".join(run.give(f"S{j}.{k}", S) for k, S in enumerate(term.penalties))
            given = run.give(f"sp{j}", np.clip(strengths[at : at + len(term.penalties)], 1e-12, 1e14))
            free.append(f"X{j}=list({matrices})")
            held.append(f"X{j}=list({matrices}, sp={given})")
            at += len(term.penalties)
        run.give("y", y)
        formula = "y ~ " + " + ".join(f"X{j}" for j in range(len(terms)))
        call = f"gam({formula}, family=poisson(), method='REML', {RUNS}, paraPen="
        run.call(
            f"fit <- {call}list({', '.join(free)}))\nput('coef', coef(fit)); put('edf', fit$edf); put('sp', fit$sp)\n"
            f"put('score', fit$gcv.ubre)\nat <- {call}list({', '.join(held)}))\nput('at', at$gcv.ubre)"
        )
        coef, edf, sp = run.take("coef"), run.take("edf"), run.take("sp")
        scores = float(run.take("score")[0]), float(run.take("at")[0])
    curves_, edf_, place = {}, {}, 1
    for (name, term), own in zip(basis.terms.items(), terms.values(), strict=True):
        which = slice(place, place + own.X.shape[1])
        curves_[name] = _curve(X, term, own.coef(coef[which]))
        edf_[name], place = float(edf[which].sum()), which.stop
    return Fitted(curves_, edf_, sp), *scores


def by_own_bases(recording: data.Recording, basis, formula: str) -> Fitted:
    """Bases of mgcv, with the knots of ours."""
    with Run() as run:
        names = data.inputs(basis)
        for name in names:
            run.give(name, recording.values[name])
        run.give("spikes", recording.counts[:, 0])
        knots = ", ".join(f"{part.name}={run.give(f'knots.{part.name}', _knots(part))}" for part in _single(basis))
        lines = [f"fit <- gam(spikes ~ {formula}, family=poisson(), method='REML', knots=list({knots}), {RUNS})"]
        lines.append(f"d <- data.frame({', '.join(names)})")
        for j, term in enumerate(basis.terms.values()):
            axes = np.meshgrid(*term.basis.axes(100 if term.basis.n_inputs == 1 else 30), indexing="ij")
            given = zip(data.inputs(term.basis), axes, strict=True)
            new = ", ".join(f"{name}={run.give(f'grid{j}.{name}', of.ravel())}" for name, of in given)
            others = "".join(f", {name}={name}[1]" for name in names if name not in data.inputs(term.basis))
            lines += [
                f"p <- predict(fit, rbind(d, data.frame({new}{others})[, names(d), drop=FALSE]), type='terms')",
                f"put('curve{j}', p[, {j + 1}])",
            ]
        lines.append("put('edf', sapply(fit$smooth, function(s) sum(fit$edf[s$first.para:s$last.para])))")
        lines.append("put('sp', fit$sp)")
        run.call("\n".join(lines))
        n, edf = len(recording.counts), run.take("edf")
        found = {name: run.take(f"curve{j}") for j, name in enumerate(basis.terms)}
        curves_ = {name: of - of[:n].mean() for name, of in found.items()}
        return Fitted(curves_, dict(zip(basis.terms, edf, strict=True)), run.take("sp"))


def _single(basis) -> list:
    """One-dimensional bases that a basis is made of."""
    parts = getattr(basis, "members", None) or getattr(basis, "factors", None)
    return [one for part in parts for one in _single(part)] if parts else [basis]


def _knots(basis) -> np.ndarray:
    """Knots of evenly spaced splines as mgcv takes them."""
    low, high = basis.range
    if basis.kind == "cyclic_bspline":
        return np.linspace(low, high, basis.n + 1)
    intervals = basis.n - basis.order + 1
    return low + (high - low) / intervals * np.arange(1.0 - basis.order, basis.n + 1)


def difference(one: Fitted, other: Fitted, name: str) -> tuple[float, float]:
    """Compare a term: largest difference of curves over their range, relative difference of degrees of freedom."""
    a, b = one.curves[name], other.curves[name]
    reach = max(np.ptp(a), np.ptp(b), SMALL_RANGE)
    edf = one.edf[name], other.edf[name]
    return float(np.abs(a - b).max() / reach), float(abs(edf[0] - edf[1]) / max(*edf, SMALL_DEGREES))


def compare(case: Case, folder: Path) -> dict:
    """Differences of one case by term, and mgcv's score at our strengths less that at its own: negative is better."""
    recording, basis = case.make(folder), case.basis()
    X, Y = recording.of(basis)
    ours = by_glmfit(X, Y[:, 0], basis)
    theirs, score, score_at_ours = by_mgcv(X, Y[:, 0], basis, ours.strengths)
    if case.own:
        theirs = by_own_bases(recording, basis, case.own)
    found = {name: difference(ours, theirs, name) for name in basis.terms}
    totals = [1 + sum(of.edf.values()) for of in (ours, theirs)]
    return {
        "bins": len(X), "spikes": int(Y.sum()),
        "curve": {name: curve for name, (curve, _) in found.items()},
        "edf": {name: [ours.edf[name], theirs.edf[name]] for name in found}, "edf_total": totals,
        "largest": [*np.max(list(found.values()), axis=0), abs(totals[0] / totals[1] - 1)],
        "score_less_that_of_mgcv": score_at_ours - score,
    }  # fmt: skip
