"""Runs one task in a fresh process: ``python _worker.py TASK JSON``; the last line it prints is its report as JSON.

Seconds are those of ``fit`` alone: imports and loading of data come before the clock starts, compilation is included.
"""

from __future__ import annotations

import gc
import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
from _common import CHECKOUT, memory_bytes, plain, timed
from _models import fit_quietly, fit_summary, make_model
from _problems import implicit_feedback


def fit(kind: str, x_file: str, y_file: str, out: str | None = None, fits: int = 1, **parameters) -> dict:
    """Fit ``fits`` times; report seconds of each, memory before the data and peak memory; parameters go to ``out``."""
    make_model(kind, **parameters)  # imports
    before = memory_bytes("VmRSS")
    X, Y = np.load(x_file), np.load(y_file)
    models = [make_model(kind, **parameters) for _ in range(fits)]
    seconds = [timed(lambda model=model: fit_quietly(model, X, Y))[0] for model in models]
    peak = memory_bytes("VmHWM")
    if out is not None:
        np.savez(out, coef=np.asarray(models[-1].coef_), intercept=np.asarray(models[-1].intercept_))
    summary = fit_summary(models[-1])
    return {"seconds": seconds, "baseline_bytes": before, "peak_bytes": peak, **summary}


def contend(kind: str, x_file: str, y_file: str, out: str, **parameters) -> dict:
    """Fit once for every line of stdin, which may change parameters; write the last result to ``out``."""
    import glmfit

    if CHECKOUT.resolve() not in Path(glmfit.__file__).resolve().parents:
        raise RuntimeError("the glmfit that was imported is not that of the checkout")
    make_model(kind, **parameters)  # imports
    X, Y = np.load(x_file), np.load(y_file)

    def fit(**changes) -> dict:
        model = make_model(kind, **parameters | changes)
        seconds, _ = timed(lambda: fit_quietly(model, X, Y))
        chosen = {"strength": model.strength_} if kind == "cv" else {}
        version = {"version": glmfit.__version__} if hasattr(model, "report_") else {}
        np.savez(out, coef=np.asarray(model.coef_), intercept=np.asarray(model.intercept_), **chosen)
        return {"seconds": seconds, "peak_bytes": memory_bytes("VmHWM"), **version, **fit_summary(model)}

    return _take_turns(fit)


def rival(x_file: str, y_file: str, out: str, precision: str, **how) -> dict:
    """Fit by a solver of _rivals.py once for every line of stdin: a setting and, optionally, some of the neurons."""
    from _rivals import solver

    solve = solver(precision=precision, **how)
    X, Y = np.load(x_file).astype(precision, copy=False), np.load(y_file)
    Y = Y if Y.dtype.kind == "i" else Y.astype(precision, copy=False)  # labels stay integers

    def fit(setting: dict, neurons: list | None = None) -> dict:
        y = Y if neurons is None else np.ascontiguousarray(Y[:, neurons])
        seconds, (coef, intercept) = timed(lambda: solve(X, y, **setting))
        np.savez(out, coef=coef, intercept=intercept)
        return {"seconds": seconds}

    return _take_turns(fit)


def _take_turns(fit: Callable) -> dict:
    """Call ``fit`` with the JSON of every line of stdin; print a line of JSON when ready and for every call."""
    _tell({"ready": True})
    for line in sys.stdin:
        try:
            told = fit(**json.loads(line))
        except Exception as error:  # from any package: reported as a figure
            _tell({"error": f"{type(error).__name__}: {str(error)[:200]}"})
            break
        _tell(told)
    return {}


def _tell(facts: dict) -> None:
    print(json.dumps(plain(facts)), file=sys.__stdout__, flush=True)


def classes(file: str, out: str, fits: int = 2, **parameters) -> dict:
    """Fit a softmax model of features (dense or CSR) and labels; report seconds; parameters go to ``out``."""
    import scipy.sparse

    import glmfit

    if CHECKOUT.resolve() not in Path(glmfit.__file__).resolve().parents:
        raise RuntimeError("the glmfit that was imported is not that of the checkout")
    with np.load(file) as given:
        y = given["y"]
        csr = "indptr" in given
        X = (
            scipy.sparse.csr_array(tuple(given[k] for k in ("data", "indices", "indptr")), given["shape"])
            if csr
            else given["X"]
        )
    seconds = []
    for _ in range(fits):
        model = glmfit.SoftmaxGLM(certify=False, **parameters)
        seconds.append(timed(lambda model=model: fit_quietly(model, X, y))[0])
    np.savez(out, coef=model.coef_, intercept=model.intercept_)
    return {"seconds": seconds, "step": model.report_.step, "status": str(model.report_.status)}


def stream(x_file: str, y_file: str, checkpoint: str | None = None, out: str | None = None, **parameters) -> dict:
    """Fit memory-mapped files; report seconds, and the peak of anonymous memory, sampled twenty times a second."""
    model = make_model("glmfit", **parameters)
    highest, ended = [memory_bytes("RssAnon")], threading.Event()

    def watch():
        while not ended.wait(0.05):
            highest[0] = max(highest[0], memory_bytes("RssAnon"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    X, Y = (np.load(file, mmap_mode="r") for file in (x_file, y_file))
    seconds = timed(lambda: fit_quietly(model, X, Y, checkpoint=checkpoint))[0]
    ended.set()
    watcher.join()
    if out is not None:
        np.savez(out, objective=model.report_.objective, gap=model.report_.gap)
    told = {"memory_said": model.report_.memory_bytes, "peak_anonymous_bytes": highest[0]}
    return {"seconds": seconds, **told, **fit_summary(model)}


def warm_fits(files: list[str], **parameters) -> dict:
    """Fit every file twice, so that the second fit compiles nothing; report its seconds."""
    from glmfit import PopulationGLM

    seconds = []
    for file in files:
        with np.load(file) as session:
            X, Y = session["X"], session["counts"]
        for _ in range(2):
            took = timed(lambda X=X, Y=Y: fit_quietly(PopulationGLM(**parameters), X, Y))[0]
        seconds.append(took)
    return {"seconds": seconds}


def many_fits(kind: str, n_fits: int, n_rows: int, n_features: int, n_neurons: int) -> dict:
    """Fit new models of one shape repeatedly; report memory after the first fit, the first tenth and all fits."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
    after = []
    for k in range(n_fits):
        Y = rng.poisson(np.logaddexp(0, X[:, :n_neurons] - 1)).astype(np.float32)
        fit_quietly(make_model(kind), X, Y)
        if k + 1 in (1, n_fits // 10, n_fits):
            gc.collect()
            after.append(memory_bytes("VmRSS"))
    return {"bytes_after_first": after[0], "bytes_after_tenth": after[1], "bytes_at_the_end": after[2]}


def which_neuron(n_spikes: int, n_units: int, n_covariates: int = 16, n_states: int = 4000) -> dict:
    """Fit which unit fired each spike, given covariates; score spikes at held-out states of the covariates.

    Units fire with log-rates linear in the covariates; a tenth of the states is held out.
    """
    from glmfit import SoftmaxGLM

    rng = np.random.default_rng(0)
    states = rng.normal(size=(n_states, n_covariates)).astype(np.float32)
    W = 1.5 / np.sqrt(n_covariates) * rng.normal(size=(n_covariates, n_units))
    b = rng.normal(size=n_units)
    each = n_spikes // n_states
    unit = np.empty((n_states, each), np.int32)
    for state, row in enumerate(states):
        scores = row.astype(float) @ W + b
        share = np.cumsum(np.exp(scores - scores.max()))
        unit[state] = np.searchsorted(share / share[-1], rng.random(each))
    n_train = n_states - n_states // 10
    order = rng.permutation(n_train * each)
    X, y = states[order // each], unit[:n_train].ravel()[order]
    model = SoftmaxGLM(regularizer_strength=1e-8, max_epochs=8, step_decay=0.55)
    seconds = timed(lambda: model.fit(X, y))[0]
    peak = memory_bytes("VmHWM")

    held = rng.permutation((n_states - n_train) * each)[:4000]
    x, truth = states[n_train + held // each].astype(float), unit[n_train:].ravel()[held]

    def loss(coef, intercept):
        total = 0.0
        for i in range(0, len(x), 500):
            s = x[i : i + 500] @ coef + intercept
            top = s.max(axis=1)
            normaliser = top + np.log(np.exp(s - top[:, None]).sum(axis=1))
            total += np.sum(normaliser - s[np.arange(len(s)), truth[i : i + 500]])
        return total / len(x)

    coef, intercept = np.zeros((n_covariates, n_units)), np.full(n_units, -30.0)
    coef[:, model.classes_], intercept[model.classes_] = model.coef_, model.intercept_
    frequency = np.log(np.bincount(y, minlength=n_units) + 0.5)
    report = model.report_
    return {
        "seconds": seconds, "peak_bytes": peak, "solver": report.solver_name, "epochs": report.epochs,
        "step": report.step, "step_tuned": report.step_tuned, "n_train": len(y), "loss": loss(coef, intercept),
        "null_loss": loss(0 * coef, frequency), "generating_loss": loss(W, b),
    }  # fmt: skip


def all_pairs_pass(n: int, k: int = 32, repeats: int = 5) -> dict:
    """Objective and gradient of an all-pairs model of n by n entities, 40 n scattered pairs: median seconds, memory."""
    import jax

    from glmfit.pairs import AllPairsProblem, Triples

    rng = np.random.default_rng(0)
    left, right = rng.integers(0, n, 40 * n), rng.integers(0, n, 40 * n)
    counts = rng.poisson(1.0, 40 * n).astype(np.float64)
    problem = AllPairsProblem(n, n, Triples(left, right, counts), imputation_weight=0.1, layout="triples")
    theta = problem.draw_params(jax.random.key(0), k)
    both = jax.jit(lambda data, theta: data.value_and_gradient(theta))
    compiling, program = timed(lambda: both.lower(problem.data, theta).compile())
    jax.block_until_ready(program(problem.data, theta))
    seconds = [timed(lambda: jax.block_until_ready(program(problem.data, theta)))[0] for _ in range(repeats)]
    return {
        "seconds": float(np.median(seconds)),
        "temporary_bytes": int(program.memory_analysis().temp_size_in_bytes),
        "peak_bytes": memory_bytes("VmHWM"),
        "compile_seconds": compiling,
    }


def pairs(solver: str, epochs: int = 20) -> dict:
    """Fit embeddings of positive pairs for some epochs, repeatedly; seconds of later runs, and the objective."""
    import jax

    import glmfit.solvers

    try:
        from glmfit.pairs import AllPairsProblem, Triples
    except ImportError:  # their location in version 0.1
        from glmfit.problems import AllPairsProblem, Triples
    left, right, m, n = implicit_feedback()
    given = {"loss": "squared", "imputation_weight": 0.03, "prior": "zero", "biases": False, "strength": 3.0}
    problem = AllPairsProblem(m, n, Triples(left, right, np.ones(len(left))), **given, layout="triples")
    theta = problem.draw_params(jax.random.key(0), 32)
    options = glmfit.solvers.StationaryOptions(tol=1e-12, max_epochs=epochs)
    seconds = []
    for _ in range(6):
        made = getattr(glmfit.solvers, solver)()
        took, found = timed(lambda made=made: made.run(problem, theta, key=jax.random.key(1), options=options))
        seconds.append(took)
    return {"seconds": seconds[1:], "objective": float(problem.data.objective(found.params)), "epochs": found.epochs}


def cross_validations(kind: str, sizes: list) -> dict:
    """Cross-validate problems of nemos_questions.py."""
    from nemos_questions import cross_validate

    return cross_validate(kind, sizes)


def nemos_hmm(repeats: int) -> dict:
    """Fit a hidden Markov model of NeMoS by several solvers."""
    from _nemos_fits import glm_hmm

    return glm_hmm(repeats)


def nemos_stochastic(**given) -> dict:
    """Fit a population of NeMoS from a data loader by several solvers."""
    from _nemos_fits import stochastic

    return stochastic(**given)


TASKS = {
    "fit": fit, "contend": contend, "stream": stream, "many_fits": many_fits, "warm_fits": warm_fits,
    "which_neuron": which_neuron, "all_pairs_pass": all_pairs_pass, "rival": rival, "classes": classes, "pairs": pairs,
    "cross_validations": cross_validations, "nemos_hmm": nemos_hmm, "nemos_stochastic": nemos_stochastic,
}  # fmt: skip

if __name__ == "__main__":
    sys.stdout = sys.stderr  # only replies go to the real stdout
    _tell(TASKS[sys.argv[1]](**json.loads(sys.argv[2])))
