"""glmfit compared with NeMoS, scikit-learn, statsmodels and glum: seconds to a gap, same objective, one run.

    python benchmarks/peers.py [--sections white-exp-1,softmax-10,...] [--scale 1.0]
    python benchmarks/table.py --write

Every solver of every package that minimises the objective climbs a ladder of tolerances or numbers of iterations; the
gap of what it returns is computed in float64 against a Newton reference. The time to a gap is the least median, over
the rungs that reach it, of runs that take turns. The first fit of a fresh process is timed for glmfit's "auto" and for
the fastest solver of every package. Merged into results/peers.json. Close everything else first.
"""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import _problems
import numpy as np
from _common import CompileCount, Section, fresh, interleaved, median, run_sections, timed
from scipy.special import logsumexp

GAPS = (1e-2, 1e-4, 1e-6)
ENOUGH = 3e-7  # a rung below this is the last
CAP_S = 10.0  # of one fit: the ladder ends there, and longer ones are timed once
REPEATS = 3
N_ROWS = 30_000
STRENGTH = 1e-4
TOLS = tuple(10.0**-k for k in range(1, 9))
ITERATIONS = (3, 10, 30, 100, 300, 1000, 3000, 10_000)
NEMOS = ("GradientDescent", "LBFGS", "BFGS", "NonlinearCG", "ProximalGradient", "SVRG", "ProxSVRG")
PACKAGES = ("nemos", "sklearn", "statsmodels", "glum")


# ------------------------------------------------------------------------------------------ problems


@dataclass(frozen=True)
class Classes:
    """Rows with one label each; F = mean of -log p(label) + strength/2 ||W||^2, intercepts free."""

    name: str
    strength: float
    X: np.ndarray
    Y: np.ndarray  # labels

    link = "softmax"

    def objective(self, coef, intercept) -> float:
        """F in float64."""
        s = self.X.astype(np.float64) @ np.asarray(coef, np.float64) + np.asarray(intercept, np.float64)
        loss = logsumexp(s, axis=1) - s[np.arange(len(s)), self.Y]
        return float(loss.mean() + self.strength / 2 * np.sum(np.asarray(coef, np.float64) ** 2))

    def bounds(self) -> tuple[float, float]:
        """F of the optimum and of class frequencies."""
        d, n_classes = self.X.shape[1], int(self.Y.max()) + 1
        share = np.bincount(self.Y) / len(self.Y)
        return _newton(self, n_classes), self.objective(np.zeros((d, n_classes)), np.log(share))


def _newton(problem: Classes, n_classes: int) -> float:
    """F of the optimum: damped Newton with the whole Hessian, float64."""
    X = np.column_stack([problem.X.astype(np.float64), np.ones(len(problem.X))])
    n, d = X.shape
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
        shift[-1] = 1.0  # all intercepts together change nothing
        step = np.linalg.solve(H + np.outer(shift.ravel(), shift.ravel()), g.ravel()).reshape(W.shape)
        decrement, length, value = float(np.sum(g * step)), 1.0, problem.objective(W[:-1], W[-1])
        if decrement < 1e-18:
            return value
        while problem.objective(*_split(W - length * step)) > value - 1e-4 * length * decrement and length > 1e-3:
            length /= 2
        W = W - length * step
    raise RuntimeError(f"the reference of {problem.name} did not converge: decrement {decrement:.1e}")


def _split(W):
    return W[:-1], W[-1]


def make_problem(name: str, scale: float):
    """Make the problem of a section: "white-exp-32", "history-softplus-1", "softmax-digits", "softmax-10".

    The digits of scikit-learn have pixels from 0 to 1; "softmax-standardised" and "softmax-unscaled" are the same.
    """
    n_rows = max(1000, round(N_ROWS * scale))
    kind, what, *neurons = name.split("-")
    if kind == "softmax" and not what.isdigit():
        from sklearn.datasets import load_digits

        X, y = load_digits(return_X_y=True)
        if what == "standardised":
            X = (X - X.mean(axis=0)) / np.where(np.ptp(X, axis=0) > 0, X.std(axis=0), 1.0)
        X = X / 16 if what == "digits" else X
        return Classes(name, 1e-4 if what == "unscaled" else 1e-3, X.astype(np.float32), y)
    rng = np.random.default_rng(0)
    if kind == "softmax":
        n_classes, d = int(what), 64
        X = rng.normal(size=(n_rows, d)).astype(np.float32)
        scores = X @ rng.normal(size=(d, n_classes)) / np.sqrt(d) * 2
        return Classes(name, STRENGTH, X, np.argmax(scores + rng.gumbel(size=scores.shape), axis=1))
    n_neurons = int(neurons[0])
    if kind == "history":
        X = _problems.history_design(n_rows, _problems.N_SOURCES, _problems.N_BASIS, 0)
        Y = _problems.draw_counts(X, max(n_neurons, 32), what)
    else:
        X = rng.normal(size=(n_rows, 64)).astype(np.float32)
        Y = _problems.draw_counts(X, max(n_neurons, 32), what, n_basis=4)
    Y = Y if n_neurons > 1 else Y[:, 24:25]  # neither the quietest nor the busiest
    return _problems.Problem(name, what, STRENGTH, X, np.ascontiguousarray(Y))


def gap_of(problem, cache: Path) -> Callable:
    """Return what computes the relative gap of coefficients and intercepts."""
    if isinstance(problem, Classes):
        best, null = problem.bounds()
        return lambda coef, intercept: (problem.objective(coef, intercept) - best) / (null - best)
    optimum = _problems.reference(problem, cache)

    def gap(coef, intercept):
        coef = np.asarray(coef).reshape(problem.X.shape[1], -1)
        with np.errstate(over="ignore", invalid="ignore"):
            found = _problems.gaps(problem, coef, np.atleast_1d(intercept), optimum)["gap"]
        return found if np.isfinite(found) else np.inf

    return gap


# -------------------------------------------------------------------------------------------- rivals


@dataclass(frozen=True)
class Rival:
    """A solver of a package and its ladder."""

    package: str
    solver: str
    fit: Callable  # (problem, rung) -> coef, intercept
    rungs: tuple

    @property
    def name(self) -> str:
        """How tables call it."""
        return f"{self.package} {self.solver}"


def _quietly(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def _glmfit(solver, problem, rung):
    import glmfit

    if problem.link == "softmax":
        model = glmfit.SoftmaxGLM(regularizer_strength=problem.strength, solver_name=solver, tol=rung, max_epochs=3000)
        return _answer(_quietly(model, problem.X, problem.Y))
    model = glmfit.PopulationGLM(
        problem.link, regularizer_strength=problem.strength, solver_name=solver, tol=rung, max_epochs=2000
    )
    return _answer(_quietly(model, problem.X, problem.Y))


def _answer(model):
    return np.asarray(model.coef_), np.asarray(model.intercept_)


def _nemos(solver, problem, rung):
    import jax
    import nemos

    common = {
        "regularizer": "Ridge",
        "regularizer_strength": problem.strength,
        "solver_name": solver,
        "solver_kwargs": {"maxiter": rung, "tol": 1e-12},
    }
    if problem.link == "softmax":
        return _answer(_quietly(nemos.glm.ClassifierGLM(int(problem.Y.max()) + 1, **common), problem.X, problem.Y))
    link = {"softplus": jax.nn.softplus, "exp": jax.numpy.exp}[problem.link]
    alone = problem.Y.shape[1] == 1
    kind = nemos.glm.GLM if alone else nemos.glm.PopulationGLM
    Y = problem.Y[:, 0] if alone else problem.Y
    return _answer(_quietly(kind(inverse_link_function=link, **common), problem.X, Y))


def _per_neuron(make, problem, rung):
    """One model per neuron; a rung is a tolerance and a precision."""
    tol, precision = rung
    X, found = problem.X.astype(precision, copy=False), []
    for y in problem.Y.T.astype(precision):
        model = _quietly(make(problem.strength, tol), X, np.ascontiguousarray(y))
        found.append((model.coef_, model.intercept_))
    coef, intercept = zip(*found, strict=True)
    return np.stack(coef, axis=1), np.array(intercept)


def _sklearn_poisson(solver, strength, tol):
    from sklearn.linear_model import PoissonRegressor

    return PoissonRegressor(alpha=strength, solver=solver, tol=tol, max_iter=10_000)


def _glum_poisson(solver, strength, tol):
    from glum import GeneralizedLinearRegressor

    return GeneralizedLinearRegressor(
        family="poisson", link="log", alpha=strength, l1_ratio=0, solver=solver, gradient_tol=tol, max_iter=10_000
    )


def _sklearn_softmax(solver, problem, rung):
    from sklearn.linear_model import LogisticRegression

    tol, precision = rung
    C = 1 / (len(problem.Y) * problem.strength)
    model = _quietly(
        LogisticRegression(C=C, solver=solver, tol=tol, max_iter=10_000), problem.X.astype(precision), problem.Y
    )
    return model.coef_.T, model.intercept_


def _statsmodels(method, problem, rung):
    """Ridge of a GLM by one of SciPy's minimisers; its tolerance cannot be chosen."""
    import statsmodels.api as sm

    X = np.column_stack([problem.X.astype(np.float64), np.ones(len(problem.X))])
    alpha, found = np.r_[np.full(X.shape[1] - 1, problem.strength), 0.0], []
    for y in problem.Y.T.astype(np.float64):
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            start = np.r_[np.zeros(X.shape[1] - 1), np.log(max(y.mean(), 1e-8))]
            model = sm.GLM(y, X, family=sm.families.Poisson())
            found.append(model.fit_regularized(alpha=alpha, L1_wt=0, start_params=start, opt_method=method).params)
    W = np.stack(found, axis=1)
    return _split(W)


_BOTH = tuple((tol, precision) for precision in ("float32", "float64") for tol in TOLS)


def rivals(problem) -> list[Rival]:
    """Solvers that minimise the objective of a problem; of packages that are installed."""
    softmax = problem.link == "softmax"
    ours = ("auto", "ConjugateGradients", "BoundMajorization") if softmax else ("auto", "SAGA", "Newton")
    found = [Rival("glmfit", name, partial(_glmfit, name), TOLS[1:]) for name in ours]
    found += [Rival("nemos", name, partial(_nemos, name), ITERATIONS) for name in NEMOS]
    if softmax:
        names = ("lbfgs", "newton-cg", "newton-cholesky", "sag", "saga")
        found += [Rival("sklearn", name, partial(_sklearn_softmax, name), _BOTH) for name in names]
    if problem.link == "exp":
        for package, names, make in (
            ("sklearn", ("lbfgs", "newton-cholesky"), _sklearn_poisson),
            ("glum", ("irls-ls", "lbfgs"), _glum_poisson),
        ):
            found += [Rival(package, n, partial(_per_neuron, partial(make, n)), _BOTH) for n in names]
        names = ("bfgs", "L-BFGS-B", "CG")
        found += [Rival("statsmodels", name, partial(_statsmodels, name), (None,)) for name in names]
    return [rival for rival in found if find_spec(rival.package)]


def why_absent(problem) -> dict[str, str]:
    """Packages without a row, and why."""
    there, absent = {rival.package for rival in rivals(problem)}, {}
    for package in PACKAGES:
        if find_spec(package) is None:
            absent[package] = "not installed"
        elif package not in there:
            absent[package] = "has no softplus link" if problem.link == "softplus" else "has no softmax with this ridge"
    return absent


# ----------------------------------------------------------------------------------------- measuring


@dataclass
class Rung:
    """What one setting did."""

    setting: object
    gap: float
    first_s: float
    second_s: float  # the first where it was not repeated
    programs: int  # compiled by the second


def climb(rival: Rival, problem, gap: Callable, cap_s: float) -> list[Rung]:
    """Try every rung until one is good enough or takes longer than the cap; a precision begins anew.

    A rung that reaches a gap none before it did, or seems to take too long, is run again: the first may have compiled.
    """
    done: list[Rung] = []
    over, most = set(), {}
    for setting in rival.rungs:
        precision = setting[1] if isinstance(setting, tuple) else None
        if precision in over:
            continue
        try:
            first, answer = timed(lambda setting=setting: rival.fit(problem, setting))
        except Exception as error:  # a rival that fails is a row that says so
            print(f"    {rival.name} at {setting}: {type(error).__name__}: {str(error)[:120]}", flush=True)
            over.add(precision)
            continue
        reached, second, programs = gap(*answer), first, 0
        goals = sum(reached <= goal for goal in GAPS)
        if first < 3 * cap_s and (goals > most.get(precision, 0) or first >= cap_s):
            with CompileCount() as compiled:
                second, _ = timed(lambda setting=setting: rival.fit(problem, setting))
            most[precision], programs = max(goals, most.get(precision, 0)), compiled.programs
        done.append(Rung(setting, float(reached), first, second, programs))
        if reached <= ENOUGH or second >= cap_s:
            over.add(precision)
    return done


def fastest(rungs: list[Rung]) -> list[Rung]:
    """Rungs that were the fastest to one of the gaps."""
    chosen = {}
    for goal in GAPS:
        able = [r for r in rungs if r.gap <= goal]
        if able:
            best = min(able, key=lambda r: r.second_s)
            chosen[str(best.setting)] = best
    return list(chosen.values())


def compare(name: str, cache: Path, scale: float, section: Section, only: tuple = (), required: tuple = ()) -> None:
    """Seconds to the gaps by every solver of every package, cold and warm."""
    _forget_programs()
    problem = make_problem(name, scale)
    gap, cap_s = gap_of(problem, cache), CAP_S if scale == 1 else 5.0
    entrants = [rival for rival in rivals(problem) if not only or rival.name in only]
    walked, calls, at, seconds = {}, {}, {}, {}
    for rival in entrants:
        walked[rival.name] = rungs = climb(rival, problem, gap, cap_s)
        best = min((rung.gap for rung in rungs), default=np.inf)
        print(f"    {rival.name}: {len(rungs)} rungs, smallest gap {best:.1e}", flush=True)
        for rung in fastest(rungs):
            key = f"{rival.name} {rung.setting}"
            at[key], seconds[key] = (rival, rung), rung.second_s
            if rung.second_s <= cap_s:
                calls[key] = lambda rival=rival, rung=rung: rival.fit(problem, rung.setting)
    seconds |= {key: median(values) for key, values in interleaved(calls, REPEATS if scale == 1 else 1).items()}
    peers, best_of = {}, {}
    for rival in entrants:
        row = {"package": rival.package, "solver": rival.solver, "warm": {}, "cold": {}, "setting": {}}
        for goal in GAPS:
            able = [key for key in seconds if at[key][0] is rival and at[key][1].gap <= goal]
            best = best_of[rival.name, goal] = min(able, key=seconds.get, default=None)
            row["warm"][f"{goal:g}"] = seconds[best] if best else np.inf
            row["setting"][f"{goal:g}"] = at[best][1].setting if best else None
        rungs = walked[rival.name]
        row["smallest_gap"] = min((r.gap for r in rungs), default=np.inf)
        row["rungs"] = [[r.setting, r.gap, r.first_s, r.second_s, r.programs] for r in rungs]
        peers[rival.name] = row
    cold_runs = {}
    for goal in GAPS:
        for rival in _first_fits(entrants, peers, goal):
            best = best_of[rival.name, goal]
            if best and best not in cold_runs:
                place = rival.rungs.index(at[best][1].setting)
                cold_runs[best] = fresh("peer", name=name, scale=scale, rival=rival.name, rung=place)["seconds"]
            peers[rival.name]["cold"][f"{goal:g}"] = cold_runs[best] if best else np.inf
    for row in peers.values():
        row["cold"] = least_of_tighter(row["cold"])
    covariance = np.cov(problem.X.T.astype(np.float64))
    facts = {
        "rows": len(problem.X),
        "features": problem.X.shape[1],
        "outputs": int(problem.Y.max()) + 1 if problem.link == "softmax" else problem.Y.shape[1],
        "link": problem.link,
        "strength": problem.strength,
        "condition": float(np.linalg.cond(covariance)) if np.diag(covariance).all() else None,
    }
    section.note(problem=facts, peers=peers, absent=why_absent(problem))
    _judge(name, peers, section, required)


def least_of_tighter(cold: dict) -> dict:
    """Give every gap the least seconds of its own first fit and of those to tighter gaps, which reach it as well."""
    return {goal: min(cold[other] for other in cold if float(other) <= float(goal)) for goal in cold}


def _forget_programs() -> None:
    """Free what earlier sections compiled: NeMoS compiles at every fit, and Linux limits the maps of a process."""
    import jax

    jax.clear_caches()
    gc.collect()


def _first_fits(entrants: list[Rival], peers: dict, goal: float) -> list[Rival]:
    """Solvers whose first fit is timed: glmfit's "auto", and of every package the fastest to the gap."""
    chosen = {}
    for rival in entrants:
        held = chosen.setdefault(rival.package, rival)
        if peers[rival.name]["warm"][f"{goal:g}"] < peers[held.name]["warm"][f"{goal:g}"]:
            chosen[rival.package] = rival
    return list({rival.name: rival for rival in (entrants[0], *chosen.values())}.values())


def _judge(name: str, peers: dict, section: Section, required: tuple) -> None:
    """Say the ratio of glmfit's "auto" to the fastest solver of every other package; aims but for gaps required."""
    for when in ("warm", "cold"):
        for goal in GAPS:
            ours = peers["glmfit auto"][when][f"{goal:g}"]
            for package in PACKAGES:
                rows = [row for row in peers.values() if row["package"] == package]
                best = min(rows, key=lambda row: row[when].get(f"{goal:g}", np.inf), default=None)
                theirs = np.inf if best is None else best[when].get(f"{goal:g}", np.inf)
                if np.isfinite(ours) and np.isfinite(theirs):
                    what, against = f"{name}, {when}, gap {goal:g}", f"{package} {best['solver']}"
                    section.require(what, ours, theirs, limit=1, against=against, aim=goal not in required)


def one_cold_fit(name: str, scale: float, rival: str, rung: int) -> dict:
    """Seconds of the first fit of a fresh process, imports done before."""
    problem = make_problem(name, scale)
    entrant = next(r for r in rivals(problem) if r.name == rival)
    _import(entrant.package)
    return {"seconds": timed(lambda: entrant.fit(problem, entrant.rungs[rung]))[0]}


def _import(package: str) -> None:
    import importlib

    more = {"sklearn": "sklearn.linear_model", "statsmodels": "statsmodels.api", "nemos": "nemos.glm"}
    module = importlib.import_module(more.get(package, package))
    if package == "glmfit":
        _ = module.PopulationGLM, module.SoftmaxGLM


SECTIONS = {
    f"{design}-{link}-{n_neurons}": None
    for design in ("white", "history")
    for link in ("softplus", "exp")
    for n_neurons in (1, 32)
} | {"softmax-digits": None, "softmax-10": None}


def _section(name: str) -> Callable:
    def measure(cache, scale, section):
        compare(name, cache, scale, section)

    measure.__doc__ = compare.__doc__
    return measure


SECTIONS = {name: _section(name) for name in SECTIONS}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "peers.json"))
