"""Smooth terms: agreement with mgcv, time compared with a loop over it, predictions compared with ridge, coverage.

    python benchmarks/smooth_terms.py [--sections agreement,speed,held_out,coverage] [--data FOLDER]

``agreement`` and ``speed`` need R with its package mgcv; all but ``coverage`` need the folder of the recordings.
"""

from __future__ import annotations

import argparse
import functools
import sys
import warnings
from pathlib import Path

import _smooth_data as data
import numpy as np
from _common import ROOT, Section, median, run_sections, timed
from _mgcv import Run, version
from _smooth_cases import BOX, CASES, MAZE, UNIT, circle, compare, history, map_of, spline

WITHIN = 0.02  # of the range of a curve, and of degrees of freedom
BETTER = 1e-4  # nats: an optimum of the same criterion lower by this is better
MEASURED, ROUNDS = 2, 3  # units of the loop in each round, and rounds
LEAST_SPIKES, BLOCKS = 50, 5
# How strengths are chosen: for P-splines and their null space, or for P-splines and a ridge on every term.
CHOSEN_BY = ("marginal-likelihood", "cross-validation")
LEVEL = 0.95  # of intervals


def quiet(call):
    """Call without warnings; fits that did not converge are counted."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call()


def agreement(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """20 models of recorded and simulated neurons: curves and degrees of freedom compared with mgcv's gam by REML.

    If the two do not agree, mgcv's own score at both strengths decides whose optimum is better.
    """
    cases, agree, better, largest = {}, 0, 0, np.zeros(3)
    for case in CASES[:: max(1, int(1 / scale))]:
        cases[case.name] = found = compare(case, folder)
        worst, score = np.array(found["largest"]), found["score_less_that_of_mgcv"]
        print(f"    {case.name}: curve {worst[0]:.2g}, edf {worst[1]:.2g}, score {score:+.2g} nats", flush=True)
        if np.all(worst <= WITHIN):
            agree, largest = agree + 1, np.maximum(largest, worst)
        else:
            better += score < -BETTER
    section.note(mgcv=version(), cases=cases, agree=agree, better=better, largest_of_those_that_agree=largest)
    section.require(
        "models that agree within 2 %, or have a better optimum", agree + better, len(cases), limit=1,
        against="all models", unit="models", at_least=True, topic="bound",
    )  # fmt: skip


# --------------------------------------------------------------------------------------------- speed

_PLACE = "te(x, y, bs='ps', m=list(c(2, 2), c(2, 2)), k=c(8, 8), np=FALSE)"
_SPEED = "s(speed, bs='ps', m=c(2, 2), k=8)"
_PHASE = "s(phase, bs='cp', m=c(2, 2), k=8)"


def speed(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """500 simulated units (place, speed, phase, history) and a recording (place, speed), compared with mgcv's bam.

    bam (discrete, two threads) fits the units one by one; six, spread over rates, are timed in turns with fits of the
    whole population, in a process that has already made a fit. The faster of two fits of a unit counts.
    """
    section.note(mgcv=version())
    even = {"clamped": False}
    simulated = map_of(*UNIT, **even) + spline("speed", 0, 3, 8, **even) + circle("phase") + history(0.4, 0.02, 8)
    n_bins, n_units = max(4000, int(40_000 * scale)), max(8, int(500 * scale))
    formula = f"{_PLACE} + {_SPEED} + {_PHASE} + H"
    cells, ridge = data.place_cells(n_bins, n_units, 0.15), "paraPen=list(H=list(diag(8)))"
    _race(section, "simulated", cells, simulated, formula, ridge)
    recorded = map_of(*MAZE, **even) + spline("speed", 5, 130, 8, **even)
    whole = data.w_maze(folder)
    whole = whole.part(int(scale * len(whole.counts)), whole.counts.sum(axis=0) > 0)
    _race(section, "recorded", whole, recorded, f"{_PLACE} + {_SPEED}", "")


def _race(section: Section, name: str, recording: data.Recording, basis, formula: str, more: str) -> None:
    """Time fits of a population in turns with some units of the loop; require a fiftieth of the time of the loop."""
    from glmfit import PopulationGAM

    X, Y = recording.of(basis)
    X, Y, known = X.astype(np.float32), Y.astype(np.float32), slice(len(recording.counts) - len(X), None)
    recording = data.Recording({key: of[known] for key, of in recording.values.items()}, Y)
    model = PopulationGAM(basis, inverse_link_function="exp")
    first, _ = timed(lambda: quiet(lambda: model.fit(X, Y)))
    by_rate = np.argsort(Y.sum(axis=0))
    units = by_rate[np.linspace(0, len(by_rate) - 1, MEASURED * ROUNDS + 2).astype(int)[1:-1]]
    ours, loop, edf, spikes = [], [], [], []
    for round_ in range(ROUNDS):
        ours.append(timed(lambda: quiet(lambda: model.fit(X, Y)))[0])
        seconds, degrees = _loop(recording, X, basis, units[round_::ROUNDS], formula, more)
        loop, edf = [*loop, *seconds], [*edf, *degrees]
        spikes += Y[:, units[round_::ROUNDS]].sum(axis=0).tolist()
    whole = float(np.mean(loop)) * Y.shape[1]
    rates = np.quantile(Y.mean(axis=0), (0, 0.1, 0.5, 0.9, 1))
    section.note(
        **{name: {
            "shape": [*X.shape, Y.shape[1]], "rates": rates, "first": first, "later": ours, "loop_each": loop,
            "loop_whole": whole, "spikes_each": spikes, "edf_of_loop": edf,
            "edf": {term: np.nanmedian(of) for term, of in model.edf_.items()},
        }}
    )  # fmt: skip
    against = f"bam in a loop, {len(loop)} of {Y.shape[1]} units measured"
    section.require(f"{name}: later fit", median(ours), whole, limit=1 / 50, against=against)
    section.require(f"{name}: first fit", first, whole, limit=1 / 50, against=against, aim=True)
    section.require(
        f"{name}: fits proved", np.sum(model.report_.converged), Y.shape[1], limit=1, against="all", unit="units",
        at_least=True, topic="bound",
    )  # fmt: skip


def _loop(recording: data.Recording, X, basis, units, formula: str, more: str) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of some units' fits by bam, the faster of two each, and their degrees of freedom."""
    with Run() as run:
        for name, of in recording.values.items():
            run.give(name, of)
        frame = f"d <- data.frame({', '.join(recording.values)})"
        if "history" in basis.terms:
            run.give("H", X[:, list(basis.terms["history"].features)])
            frame += "; d$H <- H"
        run.give("Y", recording.counts[:, [units[0], *np.repeat(units, 2)]])
        more = f", {more}" if more else ""
        run.call(f"""{frame}
seconds <- degrees <- c()
for (k in 1:ncol(Y)) {{
  d$n <- Y[, k]
  spent <- system.time(fit <- bam(n ~ {formula}, family=poisson(), data=d, discrete=TRUE, nthreads=2{more}))
  seconds <- c(seconds, spent[["elapsed"]]); degrees <- c(degrees, sum(fit$edf))
}}
put("seconds", seconds[-1]); put("degrees", degrees[-1])""")
        return run.take("seconds").reshape(-1, 2).min(axis=1), run.take("degrees")[::2]


# ------------------------------------------------------------------------------------------ held out


def held_out(_cache, scale: float, section: Section, *, folder: Path) -> None:
    """Log-likelihood of held-out blocks of rows, compared with the best ridge by cross-validation.

    The ridge's strengths, 13 from 1e-8 to 1e-2, are chosen per neuron in five blocks of the training rows. Features are
    the same: place (a map), place and speed, or position on a track and speed. Neurons have 50 spikes or more.
    """
    track = spline("along", 0, 1, 20) + spline("speed", 5, 140, 8)
    designs = {
        "W-maze, place": (data.w_maze, map_of(*MAZE), True),
        "W-maze, place and speed": (data.w_maze, map_of(*MAZE) + spline("speed", 5, 130, 8), True),
        "open field, place": (data.open_field, map_of(*BOX), True),
        "linear track, position and speed": (data.linear_track, track, False),
    }
    for name, (recording, basis, is_map) in designs.items():
        X, Y = recording(folder).of(basis)
        n = int(scale * len(X))
        X, Y = X[:n].astype(np.float32), Y[:n].astype(np.float32)
        Y = np.ascontiguousarray(Y[:, Y.sum(axis=0) >= LEAST_SPIKES])
        _predict(section, name, X, Y, basis, "softplus", is_map)


def _predict(section: Section, name: str, X, Y, basis, link: str, is_map: bool) -> None:
    """Compare held-out log-likelihoods per neuron, in nats over the recording, minus those of constant rates."""
    from glmfit import PopulationGAM, PopulationGLMCV
    from glmfit.design import Term

    with_ridges = {
        term: Term(of.features, (*of.penalties, np.eye(len(of.features))), of.basis) for term, of in basis.terms.items()
    }
    models = {
        "marginal-likelihood": PopulationGAM(basis, inverse_link_function=link, select=True),
        "cross-validation": PopulationGAM(with_ridges, "cross-validation", inverse_link_function=link, cv=BLOCKS),
    }
    models["ridge"] = PopulationGLMCV(inverse_link_function=link, strengths=np.logspace(-8, -2, 13), cv=BLOCKS)
    gain = {key: np.zeros(Y.shape[1]) for key in models}
    block, not_proved = np.arange(len(X)) * BLOCKS // len(X), dict.fromkeys(models, 0)
    for k in range(BLOCKS):
        train, test = block != k, block == k
        constant = np.maximum(Y[train].mean(axis=0, dtype=float), 1e-3 / train.sum())
        for key, model in models.items():
            quiet(lambda model=model, train=train: model.fit(X[train], Y[train]))
            not_proved[key] += int(np.sum(~model.report_.converged))
            rate = np.maximum(np.asarray(model.predict(X[test]), float), 1e-300)
            gain[key] += np.sum(Y[test] * np.log(rate / constant) - rate + constant, axis=0)
    ridge, spikes = gain["ridge"], Y.sum(axis=0, dtype=float)
    figures = {"shape": [*X.shape, Y.shape[1]], "not_proved": not_proved}
    for key, of in gain.items():
        figures[key] = {"nats": of.mean(), "nats_per_spike": np.mean(of / spikes)}
        if key != "ridge":
            quantiles = np.quantile(of - ridge, (0, 0.25, 0.5, 0.75, 1))
            figures[key] |= {"share_of_neurons_above_ridge": np.mean(of > ridge), "less_ridge": quantiles}
    section.note(**{name: figures})
    for key in CHOSEN_BY:
        section.require(
            f"{name}, by {key}: held-out nats above a constant rate's, mean over neurons", gain[key].mean(),
            ridge.mean(), limit=1 + 1e-6 * is_map, against="ridge by cross-validation", unit="nats", at_least=True,
            topic="bound",
        )  # fmt: skip


# ------------------------------------------------------------------------------------------ coverage


def coverage(_cache, scale: float, section: Section) -> None:
    """Intervals of 95 %: share of functions inside pointwise intervals, functions wholly inside simultaneous ones.

    200 simulated neurons with random smooth tuning to position and to the phase of a rhythm, and 200 with random smooth
    maps; 0.02 to 2 spikes per bin. Functions are rates along a term, the other term at its mean.
    """
    from glmfit import PopulationGAM

    n_bins, n_units = 20_000, max(20, int(200 * scale))
    curves = spline("position", 0, 1, 20) + circle("phase", 20)
    for kind, basis, seed in (("curves", curves, 0), ("maps", map_of(*UNIT, 10), 1)):
        recording, truths, rates = data.random_tuning(basis, n_bins, n_units, seed)
        X, Y = recording.of(basis)
        model = quiet(lambda X=X, Y=Y, basis=basis: PopulationGAM(basis, inverse_link_function="exp").fit(X, Y))
        low, pointwise, wholly = rates <= np.median(rates), [], []
        for name, term in basis.terms.items():
            found = model.term(name, axes=60 if term.basis.n_inputs == 1 else 15, level=LEVEL)
            points = np.meshgrid(*found.axes, indexing="ij")
            eta = truths[name]({n: p.ravel() for n, p in zip(data.inputs(term.basis), points, strict=True)})
            eta += sum(of(recording.values).mean(axis=0) for other, of in truths.items() if other != name)
            truth = (rates * np.exp(eta)).reshape(found.rate.shape)
            grid = tuple(range(truth.ndim - 1))
            pointwise.append(np.mean((found.rate_low <= truth) & (truth <= found.rate_high), axis=grid))
            inside = (found.rate_low_simultaneous <= truth) & (truth <= found.rate_high_simultaneous)
            wholly.append(np.all(inside, axis=grid))
            section.note(
                **{f"{kind}, {name}": {
                    "pointwise": pointwise[-1].mean(), "simultaneous": wholly[-1].mean(),
                    "at_low_rates": [pointwise[-1][low].mean(), wholly[-1][low].mean()],
                    "at_high_rates": [pointwise[-1][~low].mean(), wholly[-1][~low].mean()],
                    "standard_error": np.quantile(found.standard_error.mean(axis=grid), (0.1, 0.5, 0.9)),
                    "edf": np.quantile(model.edf_[name], (0.1, 0.5, 0.9)),
                    "spikes": np.quantile(Y.sum(axis=0), (0, 0.5, 1)),
                }}
            )  # fmt: skip
        given = {"limit": 1, "unit": "", "topic": "bound"}
        what, share = f"{kind}: share inside pointwise intervals", np.mean(pointwise)
        section.require(what, share, 0.93, against="least", at_least=True, **given)
        section.require(what, share, 0.97, against="most", **given)
        what, share = f"{kind}: functions wholly inside simultaneous intervals", np.mean(wholly)
        section.require(what, share, 0.93, against="least", at_least=True, **given)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--data", type=Path, default=ROOT.parent / "shared" / "data")
    options, rest = parser.parse_known_args()
    if version() is None and not any(argument.startswith("--sections") for argument in rest):
        print("agreement and speed are skipped: there is no R with its package mgcv (Debian: r-cran-mgcv)")
        rest += ["--sections", "held_out,coverage"]
    sections = {f.__name__: f for f in (agreement, speed, held_out, coverage)}
    for recorded in ("agreement", "speed", "held_out"):
        sections[recorded] = functools.partial(sections[recorded], folder=options.data)
        sections[recorded].__doc__ = globals()[recorded].__doc__
    sys.exit(run_sections(__doc__, sections, "smooth_terms.json", rest))
