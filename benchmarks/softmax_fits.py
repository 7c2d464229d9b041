"""Fits of softmax models: exact compared with scikit-learn, the crossover to sampling, which of 20 000 neurons fired.

    python benchmarks/softmax_fits.py [--sections standardised,unscaled,simulated,crossover,...]

The first three sections climb the ladders of peers.py: the time to a gap, (F - F*) / (F_null - F*) in float64, is the
shortest of the tolerances that reach it, and first fits are those of fresh processes. Each section prints one line per
requirement and is merged into results/softmax_fits.json. Close everything else first.
"""

from __future__ import annotations

import json
import sys
import time
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize
import scipy.special
from _common import RESULTS, Section, fresh, run_sections
from _peers_problems import make_classes
from peers import compare

from glmfit import SoftmaxGLM
from glmfit.solvers import ConjugateGradients, ImplicitSGD, LoopOptions, SampledSoftmax, Schedule, tune_step
from glmfit.stochastic import Pairs, SoftmaxProblem

ONLY = ("glmfit auto", "sklearn lbfgs", "sklearn newton-cg", "sklearn newton-cholesky")


def exact(name: str, what: str):
    """Section that compares exact fits of a problem of peers.py with those of scikit-learn."""

    def section_of(cache, scale: float, section: Section) -> None:
        compare(name, cache, scale, section, only=ONLY, required=(1e-4, 1e-6))

    section_of.__doc__ = f"{what}: seconds to relative gaps of 1e-4 and 1e-6 compared with scikit-learn."
    return section_of


def crossover(_cache, scale: float, section: Section) -> None:
    """20 000 rows, 32 features, 30 to 4 000 classes: time until the exact solver passes the best sampled fit."""
    rng, n, d = np.random.default_rng(0), int(20_000 * scale), 32
    X = rng.normal(size=(n, d)).astype(np.float32)
    ratios = {}
    for K in (30, 300, 1000, 4000):
        W = 2 * rng.normal(size=(d, K)) / np.sqrt(d)
        y = np.argmax(X @ W + rng.gumbel(size=(n, K)), axis=1)
        y = np.unique(y, return_inverse=True)[1]  # classes that occur
        problem = SoftmaxProblem(X, Pairs(np.arange(n), y, np.ones(n)), int(y.max()) + 1, 1e-4)
        sampled = {}
        for step in (0.01, 0.1, 1.0):
            run = ImplicitSGD(n_negatives=5).run(
                problem, problem.null_params(), key=jax.random.key(0), schedule=Schedule(50, step)
            )
            sampled[f"{step:g}"] = {"seconds": run.seconds_run, "objective": problem.objective(run.params)}
        solution = ConjugateGradients().run(problem, key=jax.random.key(0))
        history = solution.history
        best = min(sampled.values(), key=lambda run: run["objective"])
        passed = history["seconds"][np.argmax(history["objective"][:, 0] <= best["objective"])]
        ratios[K] = passed / best["seconds"]
        section.note(**{
            f"{K} classes": {
                "null": problem.null_objective, "optimum": solution.objective[0], "gap": solution.gap[0],
                "exact_seconds": history["seconds"], "exact_objective": history["objective"][:, 0],
                "exact_seconds_to_pass_the_sampled": passed, "sampled_50_epochs": sampled,
            }
        })  # fmt: skip
    section.note(seconds_to_pass_over_seconds_sampled=ratios)


def lasso(_cache, _scale: float, section: Section) -> None:
    """Digits with a lasso of 1e-2 and 1e-3: seconds of later fits to gaps of 1e-2, 1e-4, 1e-6, and of sklearn saga."""
    from sklearn.linear_model import LogisticRegression

    digits = make_classes("digits", "standardised", 1.0)
    X, y = digits.X, digits.Y
    for strength in (1e-2, 1e-3):
        exact = SoftmaxGLM(regularizer="Lasso", regularizer_strength=strength, tol=1e-10).fit(X, y)
        best, null = exact.report_.objective, exact.report_.null_objective

        def glmfit(tol, strength=strength):
            return SoftmaxGLM(regularizer="Lasso", regularizer_strength=strength, tol=tol).fit(X, y)

        def sklearn(tol, strength=strength):
            C = 1 / (len(X) * strength)
            return LogisticRegression(C=C, l1_ratio=1.0, solver="saga", tol=tol, max_iter=2000).fit(X, y)

        def gap(model, strength=strength, best=best, null=null):
            W, b = (np.asarray(of, np.float64) for of in (model.coef_, model.intercept_))
            s = X @ (W if W.shape[0] == X.shape[1] else W.T) + b
            loss = np.mean(scipy.special.logsumexp(s, axis=1) - s[np.arange(len(y)), y])
            return (loss + strength * np.abs(W).sum() - best) / (null - best)

        found = {}
        for name, fit in {"glmfit": glmfit, "sklearn saga": sklearn}.items():
            found[name] = []
            for tol in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
                seconds = [_timed(fit, tol) for _ in range(4)][1:]
                found[name].append((float(np.median([s for s, _ in seconds])), float(gap(seconds[-1][1]))))
        section.note(**{f"lasso {strength:g}": found | {"zeros": float(np.mean(exact.coef_ == 0))}})
        for goal in (1e-2, 1e-4, 1e-6):
            first = {name: min((s for s, g in of if g <= goal), default=np.inf) for name, of in found.items()}
            what = f"digits, lasso {strength:g}, later fits, gap {goal:g}"
            section.require(what, first["glmfit"], first["sklearn saga"], limit=1, against="sklearn saga", aim=True)


def _timed(fit, tol: float) -> tuple:
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = fit(tol)
    return time.perf_counter() - began, model


def simulate(n: int, d: int, K: int, spread: float = 0.4) -> SoftmaxProblem:
    """Rows around the mean of their class; the ridge matches the prior of the means."""
    rng = np.random.default_rng(0)
    mean, label = spread * rng.normal(size=(K, d)), rng.integers(0, K, n)
    X = (mean[label] + rng.normal(size=(n, d))).astype(np.float32)
    label = np.unique(label, return_inverse=True)[1]  # classes that occur
    return SoftmaxProblem(X, Pairs(np.arange(n), label, np.ones(n)), int(label.max()) + 1, 1 / (n * spread**2))


class Chunked:
    """F of a softmax and its slope in float32, compiled, some rows at a time: as one would write it in JAX."""

    def __init__(self, problem: SoftmaxProblem):
        (n, d), K = problem.X.shape, problem.n_classes
        n_parts = next(parts for parts in range(n * K // 20_000_000 + 1, n + 1) if n % parts == 0)
        size = n // n_parts
        X = jnp.asarray(np.column_stack([problem.X, np.ones(n, np.float32)]).reshape(n_parts, size, d + 1))
        y = jnp.asarray(problem.pairs.label.reshape(n_parts, size))
        ridge = jnp.asarray(np.append(np.full(d, problem.strength), 0.0)[:, None], jnp.float32)

        @jax.jit
        def value_and_slope(W):
            def part(total, rows):
                x, label = rows
                s = x @ W
                log_norm = jax.scipy.special.logsumexp(s, axis=1)
                p = jnp.exp(s - log_norm[:, None]).at[jnp.arange(size), label].add(-1.0)
                loss = jnp.sum(log_norm - jnp.take_along_axis(s, label[:, None], axis=1)[:, 0])
                return (total[0] + loss, total[1] + x.T @ p), None

            (loss, slope), _ = jax.lax.scan(part, (jnp.float32(0), jnp.zeros_like(W)), (X, y))
            return loss / n + jnp.sum(ridge * W**2) / 2, slope / n + ridge * W

        self._value_and_slope, self._null = value_and_slope, np.zeros((d + 1, K))
        self._null[d] = problem.null_params().intercept

    def objective(self, params) -> float:
        """F at some parameters."""
        return float(self._value_and_slope(jnp.asarray(np.vstack(params), jnp.float32))[0])

    def lbfgs(self, enough: float, limit_s: float) -> list[tuple[float, float]]:
        """Seconds and F after each iteration of SciPy's L-BFGS, until F is low enough or time is up."""
        shape = self._null.shape

        def function(w):
            value, slope = self._value_and_slope(jnp.asarray(w.reshape(shape), jnp.float32))
            return float(value), np.asarray(slope, np.float64).ravel()

        def look(intermediate_result):
            value = float(intermediate_result.fun)
            trace.append((time.perf_counter() - start, value))
            if value <= enough or trace[-1][0] > limit_s:
                raise StopIteration

        function(self._null.ravel())  # compiles
        trace, start = [], time.perf_counter()
        how = {"jac": True, "method": "L-BFGS-B", "options": {"maxcor": 10, "maxiter": 500}}
        scipy.optimize.minimize(function, self._null.ravel(), callback=look, **how)
        return trace


def to_one_percent(n: int, K: int, rival: bool, most_steps: int = 100):
    """Section that times each solver to within 1 % of (class frequencies - optimum)."""

    def section_of(_cache, scale: float, section: Section) -> None:
        problem = simulate(int(n * scale), 64, int(K * scale))
        null, chunked = problem.null_objective, Chunked(problem)
        options = LoopOptions(tol=2e-3, max_epochs=most_steps)
        exact = ConjugateGradients().run(problem, key=jax.random.key(0), options=options)
        history = exact.history
        lowest = float(exact.objective[0] - exact.gap[0])  # proved to be below the optimum
        enough = lowest + 0.01 * (null - lowest)
        passed = float(history["seconds"][np.argmax(history["objective"][:, 0] <= enough)])
        section.note(
            null=null, exact_objective=exact.objective[0], exact_gap=exact.gap[0], exact_seconds=history["seconds"],
            exact_trace=history["objective"][:, 0], exact_seconds_to_one_percent=passed,
            exact_seconds_in_all=exact.seconds_run,
        )  # fmt: skip
        section.save()
        sampled, first = {}, {}
        for how, solver, tried in ("as it comes", ImplicitSGD(), (20, 50)), ("20 negatives", ImplicitSGD(20), (20, 50)):
            for epochs in tried:
                run = solver.run(problem, key=jax.random.key(0), schedule=Schedule(epochs))
                objective = chunked.objective(run.params)
                below = history["objective"][:, 0] <= objective
                sampled[f"{how}, {epochs} epochs"] = {
                    "seconds": run.seconds_run, "away": (objective - lowest) / (null - lowest),
                    "exact_seconds_to_pass_it": float(history["seconds"][np.argmax(below)]) if below.any() else np.inf,
                }  # fmt: skip
                print(f"    {how}, {epochs} epochs: {sampled[f'{how}, {epochs} epochs']}", flush=True)
                if objective <= enough:
                    first[how] = run.seconds_run
                    break
        section.note(sampled=sampled)
        section.save()
        reached = []
        if rival:
            trace = chunked.lbfgs(enough, 5 * passed)
            reached = [seconds for seconds, objective in trace if objective <= enough]
            section.note(lbfgs=trace)
        best = min([passed, *reached[:1]])
        of = f"{problem.n_classes} classes, {problem.n_rows} rows, to within 1 % of the optimum"
        for how in ("as it comes", "20 negatives"):
            now = first.get(how, np.inf)
            section.require(f"{of}, sampled, {how}", now, best, limit=1 / 3, against="exact", aim=how != "as it comes")
        if rival:
            against = reached[0] if reached else np.inf
            section.require(f"{of}, exact", passed, against, limit=1, against="chunked L-BFGS", aim=True)

    section_of.__doc__ = f"{K} classes, 64 features, {n} rows: seconds to within 1 % of the optimum."
    return section_of


def sampled(_cache, _scale: float, section: Section) -> None:
    """SampledSoftmax on the previous three problems: seconds to within 1 %, compared with the exact fits there."""
    known = json.loads((RESULTS / "softmax_fits.json").read_text())["sections"]
    sizes = {"classes_9000": (20_000, 10_000), "classes_10000": (200_000, 10_000), "classes_100000": (200_000, 100_000)}
    for name, (n, K) in sizes.items():
        figures, problem = known[name]["figures"], simulate(n, 64, K)
        chunked, lowest = Chunked(problem), figures["exact_objective"] - figures["exact_gap"]
        reached, tried, solver = np.inf, {}, SampledSoftmax()
        for epochs in (10, 20, 30, 50):
            start = time.perf_counter()
            step = tune_step(solver, problem, key=jax.random.key(0), schedule=Schedule(epochs)).step
            run = solver.run(problem, problem.null_params(), key=jax.random.key(0), schedule=Schedule(epochs, step))
            seconds = time.perf_counter() - start
            away = (chunked.objective(run.params) - lowest) / (problem.null_objective - lowest)
            tried[f"{epochs} epochs"] = {"seconds": seconds, "of_run": run.seconds_run, "step": step, "away": away}
            reached = min(reached, seconds) if away <= 0.01 else reached
        section.note(**{name: tried})
        section.require(
            f"{problem.n_classes} classes, {n} rows, to within 1 % of the optimum, SampledSoftmax, search included",
            reached, figures["exact_seconds_to_one_percent"], limit=1 / 3, against="exact",
        )  # fmt: skip
        section.save()


def neurons(_cache, scale: float, section: Section) -> None:
    """20 000 units, 16 covariates, 2e6 simulated spikes: minutes, memory, held-out log-loss of which one fired."""
    report = fresh("which_neuron", n_spikes=int(2_000_000 * scale), n_units=int(20_000 * scale))
    section.note(**report)
    closed = (report["null_loss"] - report["loss"]) / (report["null_loss"] - report["generating_loss"])
    section.require(
        "20 000 units, share of the held-out log-loss between frequencies and truth that is closed", closed, 0.8,
        limit=1, against="limit", unit="", topic="loss", at_least=True,
    )  # fmt: skip
    section.require("20 000 units, 2e6 spikes, fit from cold", report["seconds"], 600, limit=1, against="limit")
    section.require(
        "20 000 units, 2e6 spikes, peak memory of the process", report["peak_bytes"], 3e9, limit=1, against="limit",
        unit="bytes", topic="memory",
    )  # fmt: skip


SECTIONS = {
    "standardised": exact("softmax-standardised", "Standardised digits (1 797 x 64, 10 classes), ridge 1e-3"),
    "unscaled": exact("softmax-unscaled", "Digits with pixels from 0 to 16, ridge 1e-4"),
    "simulated": exact("softmax-10", "30 000 x 64, 10 classes, ridge 1e-4"),
    "crossover": crossover,
    "classes_9000": to_one_percent(20_000, 10_000, rival=True),
    "classes_10000": to_one_percent(200_000, 10_000, rival=True),
    "classes_100000": to_one_percent(200_000, 100_000, rival=False, most_steps=6),
    "lasso": lasso,
    "sampled": sampled,
    "neurons": neurons,
}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "softmax_fits.json"))
