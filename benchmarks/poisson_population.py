"""Population Poisson GLMs and their rivals, each requirement measured in one run; see README.md in this folder.

python benchmarks/poisson_population.py [--sections p1,pass,...] [--data ../shared/data]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

import _problems
import numpy as np
from _common import (
    RESULTS,
    ROOT,
    CompileCount,
    Section,
    environment,
    fresh,
    interleaved,
    median,
    timed,
    write_json,
)
from _models import fit_quietly, fit_summary, judge, make_model, sklearn_population, timed_fit

GAP = 1e-6


@dataclass(frozen=True)
class Run:
    """Folders and size of a run."""

    cache: Path
    data: Path
    scale: float
    repeats: int

    def problem(self, name: str) -> _problems.Problem:
        return _problems.load(name, self.cache, self.scale)

    def optimum(self, problem) -> np.ndarray:
        return _problems.reference(problem, self.cache)


def saga(problem, **parameters):
    """Seconds of a fit by certified SAGA, and the model."""
    return timed_fit("glmfit", problem, **({"solver_name": "SAGA"} | parameters))


def require_gap(section: Section, what: str, facts: dict) -> None:
    """Require the true gap, and that no bound is below the truth."""
    section.require(
        f"{what}, true gap", facts["gap"], GAP, limit=1, against="limit", unit="", topic="gap"
    )  # fmt: skip
    if facts["bounds"]:
        section.require(
            f"{what}, smallest gap bound over true gap ({facts['bounds']} of {facts['neurons']} neurons bounded)",
            facts["coverage_min"], 1, limit=1, against="truth", unit="", topic="bound", at_least=True,
        )  # fmt: skip


# ----------------------------------------------------------------------------------------- sections


def p1(run: Run, section: Section) -> None:
    """Cold and warm fits of P1 compared with NeMoS' L-BFGS, in turns."""
    problem = run.problem("P1")
    optimum = run.optimum(problem)
    files = {"x_file": str(problem.x_file), "y_file": str(problem.y_file)}
    cold = {"glmfit": [], "nemos": []}
    for kind in ("glmfit", "nemos", "glmfit"):
        extra = {"solver_name": "SAGA"} if kind == "glmfit" else {}
        cold[kind] += fresh("fit", kind=kind, **files, **extra)["seconds"]

    seconds_first, _ = saga(problem)
    models, warm = {}, {"glmfit": [], "nemos": []}
    with CompileCount() as compiled:
        spent, models["glmfit"] = saga(problem)
    warm["glmfit"].append(spent)
    for kind in ("nemos", "glmfit") * 2:
        fit = saga if kind == "glmfit" else lambda p: timed_fit("nemos", p)
        spent, models[kind] = fit(problem)
        warm[kind].append(spent)

    nemos_facts = judge(models["nemos"], problem, optimum)
    facts = judge(models["glmfit"], problem, optimum)
    # The strictest comparison: the fastest run of the rival, including later fits in a warm process.
    nemos = min(cold["nemos"] + warm["nemos"])
    section.note(
        cold_seconds=cold,
        warm_seconds=warm,
        seconds_first_in_process=seconds_first,
        fit=facts,
        nemos=nemos_facts,
        programs_compiled_by_second_fit=compiled.programs,
        seconds_per_epoch_all_in=median(warm["glmfit"]) / facts["epochs"],
    )
    rival = "NeMoS L-BFGS, 400 iterations, fastest run"
    section.require("P1 cold, compile included", median(cold["glmfit"]), nemos, limit=1 / 4, against=rival)
    section.require("P1 cold, compile included", median(cold["glmfit"]), nemos, limit=1 / 10, against=rival, aim=True)
    section.require("P1 warm", median(warm["glmfit"]), nemos, limit=1 / 12, against=rival)
    require_gap(section, "P1", facts)


def p1_rivals(run: Run, section: Section) -> None:
    """Other solvers and settings of glmfit on P1, warm: context, no requirement."""
    problem = run.problem("P1")
    optimum = run.optimum(problem)
    variants = {
        "SAGA": {"solver_name": "SAGA"},
        "SAGA, global certificate": {"solver_name": "SAGA", "solver_kwargs": {"certificate": "global"}},
        "SAGA, shuffled blocks": {"solver_name": "SAGA", "solver_kwargs": {"sampling": "shuffle"}},
        "SAGA, twice the step": {"solver_name": "SAGA", "solver_kwargs": {"step_scale": 2.0}},
        "SAGA, subsets of rows": {"solver_name": "SAGA", "solver_kwargs": {"sampling": "subsets"}},
        "Newton": {"solver_name": "Newton"},
    }
    models = {}

    def fit(name):
        models[name] = timed_fit("glmfit", problem, **variants[name])[1]

    for name in variants:
        if name != "Newton":  # nothing to compile
            fit(name)
    seconds = interleaved({name: lambda name=name: fit(name) for name in variants}, min(run.repeats, 2))
    for name, model in models.items():
        section.note(**{name: {"seconds": median(seconds[name])} | judge(model, problem, optimum)})


def pass_cost(run: Run, section: Section) -> None:
    """One epoch of SAGA compared with NumPy's two products of the same shapes."""
    for name in ("P1", "P2", "P512"):
        problem = run.problem(name)
        X, n_neurons = problem.X, problem.Y.shape[1]
        rng = np.random.default_rng(0)
        W = rng.normal(size=(X.shape[1], n_neurons)).astype(np.float32)
        Z = rng.normal(size=(len(X), n_neurons)).astype(np.float32)
        eta, gradient = np.empty_like(Z), np.empty_like(W)
        calls = {"numpy": lambda X=X, W=W, Z=Z: (X @ W, X.T @ Z)}
        calls["numpy, into arrays at hand"] = lambda X=X, W=W, Z=Z, eta=eta, gradient=gradient: (
            np.matmul(X, W, out=eta),
            np.matmul(X.T, Z, out=gradient),
        )
        for sampling in ("partition", "subsets"):
            calls[sampling] = epochs(problem, sampling)
        for call in calls.values():
            call()
        seconds = interleaved(calls, max(5, 3 * run.repeats))
        middle = {kind: median(values) for kind, values in seconds.items()}
        section.note(**{f"N={n_neurons}": middle})
        for sampling, what, limit in (("partition", "blocks", 1.5), ("subsets", "row gathers", 4)):
            section.require(
                f"one pass of SAGA with {what}, N={n_neurons}", middle[sampling], middle["numpy"], limit=limit,
                against="NumPy X @ W plus X.T @ Z", aim=n_neurons == 512,
            )  # fmt: skip
        del calls, problem


def epochs(problem, sampling: str):
    """Make a function that runs the next epoch of a SAGA fit, without its periodic checks."""
    import jax

    from glmfit import observations, penalties
    from glmfit.engine.population import PopulationProblem
    from glmfit.saga.walk import SpectralView, Walk
    from glmfit.solvers import SAGA

    d, n_neurons = problem.X.shape[1], problem.Y.shape[1]
    penalty = penalties.make("Ridge", problem.strength, d, n_neurons)
    population = PopulationProblem(problem.X, problem.Y, observations.from_inverse_link(problem.link), penalty)
    view = SpectralView(
        observation=population.observation, penalty=penalty, basis=population.basis, dtype=population.dtype,
        **population.rows_of(np.arange(n_neurons)),
    )  # fmt: skip
    walk = Walk(SAGA(sampling=sampling), view, population.null_params(), seed=0)

    def epoch():
        walk.visit_rows(walk.step, walk.metric, sampling)
        jax.block_until_ready((walk.v, walk.table, walk.mean_gradient))

    epoch()
    return epoch


def newton(run: Run, section: Section) -> None:
    """The exp link for few and for many neurons compared with one scikit-learn Newton fit per neuron."""
    many = {name: run.problem(name) for name in ("E32", "E128")}
    optimum = {name: run.optimum(problem) for name, problem in many.items()}
    rival = newton_rival(run, section, many["E32"], optimum["E32"])
    for n_neurons in (1, 2, 3, 4):
        neurons = np.unique(np.linspace(4, 28, n_neurons).astype(int)) if n_neurons > 1 else np.array([16])
        few_neurons(run, section, many["E32"].select(neurons), optimum["E32"][neurons], rival)
    for name, factor in (("E32", 8), ("E128", 20)):
        problem = many[name]
        n_neurons = problem.Y.shape[1]
        # E128 has four times the neurons of E32 over the same rates.
        chosen = range(n_neurons) if name == "E32" else range(7, n_neurons, 16)
        saga(problem)
        ours, theirs, models = [], [], []
        for part in np.array_split(np.array(chosen), 3):
            spent, model = saga(problem)
            ours.append(spent)
            models.append(model)
            theirs += sklearn_population(problem, part, rival)["seconds"]
        facts = judge(models[-1], problem, optimum[name])
        section.note(**{f"N={n_neurons}": {"seconds": ours, "sklearn_seconds_per_neuron": theirs, "fit": facts}})
        how = "" if len(theirs) == n_neurons else f", {n_neurons} x the mean of {len(theirs)} neurons"
        section.require(
            f"exp link, N={n_neurons}, warm", median(ours), n_neurons * float(np.mean(theirs)), limit=1 / factor,
            against=f"scikit-learn newton-cholesky per neuron{how}",
        )  # fmt: skip
        require_gap(section, f"exp link, N={n_neurons}", facts)


def newton_rival(run: Run, section: Section, problem, optimum):
    """Find the fastest precision of scikit-learn among those that reach the target gap."""
    neurons = np.array([4, 16, 28])
    some, goal = problem.select(neurons), optimum[neurons]
    facts = {}
    for dtype in (np.float32, np.float64):
        fits = [sklearn_population(problem, neurons, dtype) for _ in range(2)][-1]
        true = _problems.gaps(some, fits["coef"], fits["intercept"], goal)
        facts[np.dtype(dtype).name] = {
            "seconds_per_neuron": float(np.mean(fits["seconds"])),
            "gap": true["gap"],
            "worst_neuron_gap": true["worst_neuron_gap"],
        }
    section.note(sklearn=facts)
    able = [name for name, fact in facts.items() if fact["gap"] <= GAP] or ["float64"]
    best = min(able, key=lambda name: facts[name]["seconds_per_neuron"])
    section.note(sklearn_precision=best)
    return np.dtype(best)


def few_neurons(run: Run, section: Section, problem, optimum, dtype) -> None:
    """Warm "auto" (and SAGA from four neurons) compared with scikit-learn, in turns."""
    n_neurons = problem.Y.shape[1]
    models = {}

    def ours(name):
        models[name] = timed_fit("glmfit", problem, solver_name=name)[1]

    names = ("auto", "SAGA") if n_neurons >= 4 else ("auto",)
    calls = {name: lambda name=name: ours(name) for name in names}
    for call in calls.values():
        call()
    X, Y = problem.X.astype(dtype), problem.Y.astype(dtype)

    def theirs():
        for n in range(n_neurons):
            fit_quietly(make_model("sklearn"), X, np.ascontiguousarray(Y[:, n]))

    seconds = interleaved(calls | {"sklearn": theirs}, run.repeats)
    facts = {name: judge(model, problem, optimum) for name, model in models.items()}
    section.note(**{f"N={n_neurons}": {"seconds": seconds, "fits": facts}})
    best = "SAGA" if n_neurons >= 4 else "auto"
    chosen = facts[best]["solver"]
    section.require(
        f"exp link, N={n_neurons}, warm ({'auto: ' if best == 'auto' else ''}{chosen})",
        median(seconds[best]), median(seconds["sklearn"]), limit=1,
        against="scikit-learn newton-cholesky per neuron",
    )  # fmt: skip
    require_gap(section, f"exp link, N={n_neurons}", facts[best])


def exp(run: Run, section: Section) -> None:
    """Exp link from the intercept-only start: gap, epochs compared with softplus, and no objective above the start."""
    soft, hard = run.problem("P1"), run.problem("E32")
    facts = {}
    for problem in (soft, hard):
        saga(problem)
        seconds, model = saga(problem)
        facts[problem.link] = {"seconds": seconds} | judge(model, problem, run.optimum(problem))
    null = _problems.null_objective(hard)
    path = model.report_.history["objective"]
    rise = float(np.nanmax((path - null) / null)) if np.isfinite(path).all() else float("inf")
    section.note(
        fits=facts,
        mean_rate=[float(hard.Y.mean(0).min()), float(hard.Y.mean(0).max())],
        largest_count=float(hard.Y.max()),
        largest_objective_over_null=1 + rise,
    )
    require_gap(section, "exp link on P1's predictors", facts["exp"])
    section.require(
        "exp link, epochs", facts["exp"]["epochs"], facts["softplus"]["epochs"], limit=2,
        against="softplus on P1", unit="epochs",
    )  # fmt: skip
    section.require(
        "exp link, passes over the rows, all work counted", facts["exp"]["passes"], facts["softplus"]["passes"],
        limit=2, against="softplus on P1", unit="passes", aim=True,
    )  # fmt: skip
    section.require(
        "exp link from the null model, highest objective on the way", 1 + rise, 1, limit=1,
        against="null model", unit="",
    )  # fmt: skip


def p2(run: Run, section: Section) -> None:
    """Four times the neurons of P1, in turns with it."""
    problems = {name: run.problem(name) for name in ("P1", "P2")}
    models = {}

    def fit(name):
        models[name] = saga(problems[name])[1]

    for name in problems:
        fit(name)
    seconds = interleaved({name: lambda name=name: fit(name) for name in problems}, run.repeats)
    facts = judge(models["P2"], problems["P2"], run.optimum(problems["P2"]))
    section.note(seconds=seconds, fit=facts)
    section.require("P2 warm", median(seconds["P2"]), median(seconds["P1"]), limit=4, against="P1 warm")
    require_gap(section, "P2", facts)


def memory(run: Run, section: Section) -> None:
    """Peak resident memory of a fresh process that fits, minus its memory after the imports."""
    for name in ("P1", "P2"):
        problem = run.problem(name)
        facts = fresh("fit", kind="glmfit", solver_name="SAGA", x_file=str(problem.x_file), y_file=str(problem.y_file))
        table = 4 * problem.Y.size
        allowed = 2 * problem.X.nbytes + problem.Y.nbytes + table + 500e6
        used = facts["peak_bytes"] - facts["baseline_bytes"]
        section.note(**{name: facts | {"used_bytes": used, "allowed_bytes": allowed}})
        section.require(
            f"{name} memory", used, allowed, limit=1,
            against="X + Y + table + rotated X + 500 MB", unit="bytes",
        )  # fmt: skip


def lasso(run: Run, section: Section) -> None:
    """Lasso on P1 at a tenth of every neuron's maximal strength compared with the best objective known."""
    from glmfit import observations, penalties
    from glmfit.engine.population import PopulationProblem

    problem = run.problem("P1")
    shape = problem.X.shape[1], problem.Y.shape[1]
    unit = penalties.make("Lasso", 1.0, *shape)
    population = PopulationProblem(problem.X, problem.Y, observations.from_inverse_link(problem.link), unit)
    largest = unit.maximal_strength(population.evaluate(population.null_params()).grad_coef)
    own = _problems.maximal_l1(problem)
    np.testing.assert_allclose(largest, own, rtol=1e-6)
    # In single precision, so that the order of a sum does not change the problem.
    l1 = (0.1 * own).astype(np.float32).astype(np.float64)
    del population

    default = {"regularizer": "Lasso", "strength": l1}
    cold, _ = saga(problem, **default)
    warm, models = [], []
    for _ in range(run.repeats):
        spent, model = saga(problem, **default)
        warm.append(spent)
        models.append(model)
    long_seconds, tight = saga(problem, **default, tol=1e-10, max_epochs=400)
    independent = _problems.lasso_reference(problem, l1, run.cache)

    values = {
        name: _problems.objective(problem, m.coef_, m.intercept_, l1)
        for name, m in (("default", models[-1]), ("tight", tight))
    }
    best = np.minimum.reduce([*values.values(), independent["optimum"]])
    excess = (values["default"] - best) / best
    relative = float((values["default"].sum() - best.sum()) / best.sum())
    section.note(
        seconds_first=cold,
        seconds=warm,
        fit=fit_summary(models[-1]),
        nonzero=int(np.count_nonzero(models[-1].coef_)),
        coefficients=int(np.prod(shape)),
        worst_neuron_excess=float(excess.max()),
        kkt_residual_over_strength=float(
            _problems.lasso_residual(problem, models[-1].coef_, models[-1].intercept_, l1).max()
        ),
        tight={"seconds": long_seconds}
        | fit_summary(tight)
        | {"excess": float((values["tight"].sum() - best.sum()) / best.sum())},
        independent={
            "excess": float((independent["optimum"].sum() - best.sum()) / best.sum()),
            "kkt_residual_over_strength": float(independent["residual"].max()),
        },
    )
    section.require(
        "lasso on P1 at 0.1 of the maximal strength, relative excess over the best objective known",
        max(relative, 0.0), 1e-6, limit=1, against="limit", unit="",
    )  # fmt: skip


def small(run: Run, section: Section) -> None:
    """The second fit of a small problem of the same shapes but other data."""
    from glmfit import PopulationGLM

    rng = np.random.default_rng(0)
    n_rows, d = 5000, 20
    w = 0.2 * rng.normal(size=d)

    def draw():
        X = rng.normal(size=(n_rows, d))
        return X, rng.poisson(np.logaddexp(0, X @ w - 1)).astype(float)

    def fit(solver_name, strength, data):
        return fit_quietly(PopulationGLM(solver_name=solver_name, regularizer_strength=strength), *data)

    for solver_name in ("auto", "SAGA"):
        first, model = timed(lambda name=solver_name: fit(name, 1e-4, draw()))
        seconds, programs, epochs_run = [], 0, [model.n_iter_]
        for strength in (1e-4, 1e-3, 1e-4, 1e-2, 1e-4):
            data = draw()
            with CompileCount() as compiled:
                spent, model = timed(lambda name=solver_name, s=strength, data=data: fit(name, s, data))
            seconds.append(spent)
            epochs_run.append(model.n_iter_)
            programs += compiled.programs
        section.note(
            **{
                solver_name: {
                    "seconds_first": first,
                    "seconds": seconds,
                    "programs_compiled": programs,
                    "epochs_of_each_fit": epochs_run,
                    "fit": fit_summary(model),
                }
            }
        )
        what = f"T=5 000, d=20, N=1, later fits ({solver_name}: {fit_summary(model)['solver']})"
        section.require(what, median(seconds), 0.05, limit=1, against="limit", aim=solver_name != "auto")
        section.require(f"{what}, programs compiled by five fits", programs, 0, limit=1, against="limit", unit="")


def m1(run: Run, section: Section) -> None:
    """171 neurons of motor cortex on hand position and velocity, in a fresh process."""
    file = run.data / "m1_reach.npz"
    if not file.exists():
        section.note(skipped="m1_reach.npz is not there; give its folder with --data")
        return
    train, test = _problems.reach_problem(file)
    with tempfile.TemporaryDirectory() as folder:
        x_file, y_file, out = (Path(folder) / name for name in ("x.npy", "y.npy", "fit.npz"))
        _problems.save_array(x_file, train.X)
        _problems.save_array(y_file, train.Y)
        files = {"x_file": str(x_file), "y_file": str(y_file), "out": str(out)}
        by_saga = fresh("fit", kind="glmfit", tol=1e-4, fits=3, solver_name="SAGA", **files)
        facts = fresh("fit", kind="glmfit", tol=1e-4, fits=3, **files)
        with np.load(out) as fitted:
            coef, intercept = fitted["coef"], fitted["intercept"]
    spiking = np.flatnonzero(train.Y.sum(0) > 0)
    true = _problems.gaps(
        train.select(spiking), coef[:, spiking], intercept[spiking], run.optimum(train.select(spiking))
    )
    held_out = _problems.deviance_explained(test, coef, intercept)
    known = held_out[np.isfinite(held_out)]
    cold, *warm = facts["seconds"]
    section.note(
        rows=len(train.X),
        features=train.X.shape[1],
        neurons=train.Y.shape[1],
        neurons_without_training_spikes=int(train.Y.shape[1] - len(spiking)),
        warm_seconds=warm,
        fit=facts,
        fit_by_saga=by_saga,
        true_gap=true["gap"],
        true_worst_neuron_gap=true["worst_neuron_gap"],
        held_out_pseudo_r2={
            "neurons": len(known),
            "quartiles": np.quantile(known, [0.25, 0.5, 0.75]),
            "best": float(known.max()),
        },
    )
    section.require("171 neurons of motor cortex to gap 1e-4, cold", cold, 20, limit=1, against="limit")
    section.require(
        "171 neurons of motor cortex, neurons converged or without spikes", facts["settled"], train.Y.shape[1],
        limit=1, against="all", unit="neurons", at_least=True,
    )  # fmt: skip
    section.require(
        "171 neurons of motor cortex, true gap of the population", true["gap"], 1e-4, limit=1, against="limit",
        unit="",
    )  # fmt: skip


SECTIONS = {
    "p1": p1,
    "p1_rivals": p1_rivals,
    "pass": pass_cost,
    "newton": newton,
    "exp": exp,
    "p2": p2,
    "memory": memory,
    "lasso": lasso,
    "small": small,
    "m1": m1,
}


# ------------------------------------------------------------------------------------------ running


def main(arguments=None) -> int:
    options = parse(arguments)
    cache = Path(options.cache)
    run = Run(cache, Path(options.data), options.scale, options.repeats)
    scaled = options.scale != 1
    path = cache / "poisson_population.scaled.json" if scaled else RESULTS / "poisson_population.json"
    path = Path(options.results) if options.results else path
    failed = []
    for name in options.sections:
        section = Section(name)
        facts = environment() | ({"scale": options.scale} if scaled else {})
        print(f"{name}: {SECTIONS[name].__doc__}", flush=True)
        try:
            seconds, _ = timed(lambda name=name, section=section: SECTIONS[name](run, section))
        except Exception:
            traceback.print_exc()
            failed.append(name)
            continue
        if "skipped" in section.figures:
            continue
        content = json.loads(path.read_text()) if path.exists() else {"sections": {}}
        content["order"] = list(SECTIONS)
        content["sections"][name] = section.content() | {"environment": facts, "seconds_in_all": seconds}
        write_json(path, content)
        print(f"  {name} took {seconds:.0f} s", flush=True)
    if scaled:
        print("reduced size: the verdicts above mean nothing")
    if failed:
        print(f"sections that failed: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def parse(arguments):
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sections", default=",".join(SECTIONS), help="comma-separated, default all")
    parser.add_argument(
        "--cache",
        default=str(Path(tempfile.gettempdir()) / "glmfit-benchmarks"),
        help="folder for data and float64 references, which take minutes to make",
    )
    parser.add_argument("--data", default=str(ROOT.parent / "shared" / "data"), help="folder with m1_reach.npz")
    parser.add_argument("--repeats", type=int, default=3, help="rounds of interleaved timings")
    parser.add_argument("--results", help="JSON file to write or merge into")
    parser.add_argument("--scale", type=float, default=1.0, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.sections = options.sections.split(",")
    unknown = set(options.sections) - set(SECTIONS)
    if unknown:
        parser.error(f"no section {sorted(unknown)}; available are {', '.join(SECTIONS)}")
    return options


if __name__ == "__main__":
    sys.exit(main())
