"""Sections of peers.py on very many classes: softmaxes of all classes without sampling, compared with glmfit.

The rival is what one would write in JAX without sampling: the softmax of all classes in single precision, some rows at
a time, by L-BFGS on all rows and by Adam on batches of rows at three rates. glmfit runs its default, which may be
exact, at three tolerances, and samples classes by implicit steps and U-max for three numbers of epochs; the seconds are
those of ``fit``, including the search for a step. All use the same ridge. The measure is the log-loss of held-out rows:
seconds until it is within 1 % of the lowest one reached, relative to the improvement on class frequencies.
"""

from __future__ import annotations

import time

import numpy as np
from _common import Section, timed

EPOCHS, TOLS = (3, 10, 30), (1e-1, 1e-2, 1e-3)
RATES = (0.001, 0.003, 0.01)
SAMPLING = {"glmfit auto": "auto", "glmfit ImplicitSGD": "ImplicitSGD", "glmfit UMax": "UMax"}
N_HELD, LIMIT_S, BATCH = 5000, 150.0, 256


def softmax_data(n: int, d: int, K: int):
    """Rows around the mean of their class, their labels, and the ridge that is the prior of the means.

    The last `N_HELD` rows are to be held out.
    """
    from softmax_fits import simulate

    problem = simulate(n + N_HELD, d, K)
    X, label = problem.X, problem.pairs.label
    return X, label, problem.n_classes, (n + N_HELD) / n * problem.strength


class HeldOut:
    """Log-loss of held-out rows."""

    def __init__(self, X, label, n_classes: int):
        self.X, self.label, self.n_classes = X, label, n_classes

    def loss(self, coef, intercept) -> float:
        """Mean log-loss, some rows at a time."""
        total = 0.0
        for k in range(0, len(self.X), 200):
            s = self.X[k : k + 200] @ coef + intercept
            top = s.max(axis=1)
            norm = top + np.log(np.exp(s - top[:, None]).sum(axis=1))
            total += float(np.sum(norm - s[np.arange(len(s)), self.label[k : k + 200]], dtype=np.float64))
        return total / len(self.X)

    def of_model(self, model) -> float:
        """Log-loss of a fitted SoftmaxGLM, whose training rows may lack some classes."""
        coef = np.zeros((self.X.shape[1], self.n_classes), np.float32)
        intercept = np.full(self.n_classes, -20.0, np.float32)
        coef[:, model.classes_], intercept[model.classes_] = model.coef_, model.intercept_
        return self.loss(coef, intercept)


def sample(X, label, strength: float, held: HeldOut, solver: str, limit_s: float) -> list:
    """Seconds and held-out loss of fits with more and more epochs; the default at tighter and tighter tolerances."""
    import warnings

    from glmfit import SoftmaxGLM

    trace, how = [], {"regularizer_strength": strength, "certify": False, "random_state": 0}
    rungs = [{"tol": tol} for tol in TOLS] if solver == "auto" else [{"max_epochs": epochs} for epochs in EPOCHS]
    for rung in rungs:
        model = SoftmaxGLM(solver_name=solver, **how, **rung)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            seconds, _ = timed(lambda model=model: model.fit(X, label))
        trace.append((seconds, held.of_model(model)))
        if seconds > limit_s / 3:
            break
    return trace


def adam(X, label, strength: float, held: HeldOut, rate: float, limit_s: float) -> list:
    """Adam on batches of rows and all classes, in float32: seconds without evaluation, held-out loss by turns."""
    import jax
    import jax.numpy as jnp

    (n, d), K = X.shape, held.n_classes
    rows, y = jnp.asarray(np.column_stack([X, np.ones(n, np.float32)])), jnp.asarray(label)
    ridge = jnp.asarray(np.append(np.full(d, strength), 0.0)[:, None], jnp.float32)
    frequency = np.log((np.bincount(label, minlength=K) + 0.5) / n)
    W = jnp.asarray(np.vstack([np.zeros((d, K)), frequency]), jnp.float32)

    def one(state, some):
        W, m, v, t = state
        x, t = rows[some], t + 1
        p = jax.nn.softmax(x @ W, axis=1).at[jnp.arange(BATCH), y[some]].add(-1.0)
        g = x.T @ p / BATCH + ridge * W
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
        step = rate * (m / (1 - 0.9**t)) / (jnp.sqrt(v / (1 - 0.999**t)) + 1e-8)
        return (W - step, m, v, t), None

    turn = jax.jit(lambda state, order: jax.lax.scan(one, state, order)[0], donate_argnums=0)
    per_turn, rng = max(1, n // BATCH // 4), np.random.default_rng(0)

    def some_rows():
        return jnp.asarray(rng.integers(0, n, (per_turn, BATCH)))

    zeros = jnp.zeros_like(W)
    turn.lower((W, zeros, zeros, jnp.float32(0)), some_rows()).compile()
    state, trace, spent = (W, zeros, jnp.zeros_like(W), jnp.float32(0)), [], 0.0
    while spent < limit_s and len(trace) < 400:
        seconds, state = timed(lambda state=state: jax.block_until_ready(turn(state, some_rows())))
        spent += seconds
        made = np.asarray(state[0])
        trace.append((spent, held.loss(made[:-1], made[-1])))
        losses = [loss for _, loss in trace]
        if min(losses[-8:]) > min(losses) or not np.isfinite(losses[-1]):  # no improvement for two epochs
            break
    return trace


def lbfgs(X, label, strength: float, held: HeldOut, limit_s: float) -> list:
    """L-BFGS on all rows and classes, in float32: seconds without evaluation, held-out loss by iterations."""
    import jax.numpy as jnp
    import scipy.optimize
    from softmax_fits import Chunked

    from glmfit.stochastic import Pairs, SoftmaxProblem

    n = len(X)
    chunked = Chunked(SoftmaxProblem(X, Pairs(np.arange(n), label, np.ones(n)), held.n_classes, strength))
    shape, trace, aside = (X.shape[1] + 1, held.n_classes), [], 0.0
    start = np.zeros(shape)
    start[-1] = np.log((np.bincount(label, minlength=held.n_classes) + 0.5) / n)

    def function(w):
        value, slope = chunked._value_and_slope(jnp.asarray(w.reshape(shape), jnp.float32))
        return float(value), np.asarray(slope, np.float64).ravel()

    def look(intermediate_result):
        nonlocal aside
        spent = time.perf_counter() - began - aside
        W = intermediate_result.x.reshape(shape).astype(np.float32)
        seconds, loss = timed(lambda: held.loss(W[:-1], W[-1]))
        aside += seconds
        trace.append((spent, loss))
        if spent > limit_s or (len(trace) > 20 and loss > min(seen for _, seen in trace[:-10])):
            raise StopIteration

    function(start.ravel())  # compiles
    began = time.perf_counter()
    how = {"jac": True, "method": "L-BFGS-B", "options": {"maxcor": 10, "maxiter": 500}}
    scipy.optimize.minimize(function, start.ravel(), callback=look, **how)
    return trace


def many(n: int, K: int):
    """Section that compares sampling with all classes."""

    def measure(cache, scale: float, section: Section, data=None, other_python=None) -> None:
        limit_s = LIMIT_S * min(1.0, 10 * scale)
        X, label, n_classes, strength = softmax_data(round(n * scale), 64, round(K * scale))
        held = HeldOut(X[-N_HELD:], label[-N_HELD:], n_classes)
        X, label = X[:-N_HELD], label[:-N_HELD]
        frequency = np.log((np.bincount(label, minlength=n_classes) + 0.5) / len(label)).astype(np.float32)
        null = held.loss(np.zeros((X.shape[1], n_classes), np.float32), frequency)
        traces = {f"Adam, rate {rate:g}": adam(X, label, strength, held, rate, limit_s) for rate in RATES}
        section.note(rows=len(X), classes=n_classes, strength=strength, null=null, traces=traces)
        section.save()
        traces["L-BFGS"] = lbfgs(X, label, strength, held, limit_s)
        traces |= {name: sample(X, label, strength, held, solver, limit_s) for name, solver in SAMPLING.items()}
        least = min(loss for trace in traces.values() for _, loss in trace)
        enough = least + 0.01 * (null - least)
        seconds = {k: min((s for s, loss in trace if loss <= enough), default=np.inf) for k, trace in traces.items()}
        best_loss = {k: min(loss for _, loss in trace) for k, trace in traces.items()}
        section.note(traces=traces, least=least, enough=enough, seconds=seconds, best_loss=best_loss)
        best = min((k for k in traces if k not in SAMPLING), key=seconds.get)
        section.require(f"{n_classes} classes, {len(X)} rows, to within 1 % of the least held-out loss",
                        min(seconds[k] for k in SAMPLING), seconds[best], limit=1,
                        against=f"all classes, {best}")  # fmt: skip

    measure.__doc__ = f"{K} classes, {n} rows: seconds to equal held-out loss, sampled classes and all of them."
    return measure


SECTIONS = {"classes-10000": many(200_000, 10_000), "classes-100000": many(200_000, 100_000)}
