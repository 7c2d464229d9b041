"""Batches of sampled classes on an accelerator: rows per second, and seconds to the loss of the exact softmax.

    JAX_PLATFORMS=cuda python benchmarks/gpu_softmax.py [--sections steps,loss-10000,loss-100000,loss-1000000]

"steps" times epochs, draws included, of U-max and implicit steps with 512 shared negatives, 64 features and a million
rows, on 10 000 to 1 000 000 classes. The other sections compare sampled classes with the exact softmax in single
precision: batches of the same size, classes in chunks, so that there is never a matrix of rows by classes, and Adam.
Both start from the frequencies of the classes, and take the best of several steps. The measure is the loss of held-out
rows: seconds, without compilation, start and evaluation, to the lowest loss of the exact softmax, and half way there.
It also runs on a CPU, with smaller sizes (--scale).
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from _common import Section, median, run_sections, timed
from softmax_fits import simulate

from glmfit.solvers import ImplicitSGD, SampledSoftmax, UMax
from glmfit.stochastic import Pairs, SoftmaxProblem

D, NEGATIVES, BATCH = 64, 512, 1024
LEAST_RATE = 1e7  # rows per second
N_HELD, CHUNK = 4096, 1 << 16
EPOCHS, RATES, DECAY = 12, (0.003, 0.01, 0.03), 0.7
highest = jax.lax.Precision.HIGHEST


def steps(_cache, scale: float, section: Section) -> None:
    """10 000 to 1 000 000 classes: rows per second of an epoch, draws included."""
    rng, n_rows = np.random.default_rng(0), int(2**20 * scale)
    X = (rng.normal(size=(n_rows, D)) / 8).astype(np.float32)
    rates = {}
    for n_classes in (int(scale * K) for K in (10_000, 100_000, 1_000_000)):
        pairs = Pairs(np.arange(n_rows), rng.integers(0, n_classes, n_rows), np.ones(n_rows))
        problem = SoftmaxProblem(X, pairs, n_classes, 1e-6, False)
        for size in (BATCH, 8 * BATCH):
            solvers = {"U-max": UMax(NEGATIVES, size), "Implicit": ImplicitSGD(NEGATIVES, size, "shared")}
            for name, solver in solvers.items():
                rate, first = rows_per_second(solver, problem)
                rates[name, size, n_classes] = rate
                section.note(
                    **{f"{name}, {n_classes} classes, {size} rows a step": {"rows_per_s": rate, "first": first}}
                )
    for name in ("U-max", "Implicit"):
        of = {K: rate for (who, size, K), rate in rates.items() if (who, size) == (name, BATCH)}
        section.require(f"{name}, {max(of)} classes, batches of {BATCH}: rows per second", of[max(of)], LEAST_RATE,
                        limit=1, against="limit", unit="", topic="gpu", at_least=True, aim=True)  # fmt: skip
        section.require(f"{name}, seconds of a row, {max(of)} classes", 1 / of[max(of)], 1 / of[min(of)], limit=1.25,
                        against=f"{min(of)} classes", topic="gpu")  # fmt: skip


def rows_per_second(solver, problem) -> tuple[float, float]:
    """Rows per second of later epochs, and seconds of the first, including compilation."""
    state = solver.init_state(problem, None, key=jax.random.key(0))

    def epoch(state):
        return timed(lambda: jax.block_until_ready(solver.update(problem, state, 0.1, 1.0)))

    (first, state), spent = epoch(state), []
    for _ in range(5):
        seconds, state = epoch(state)
        spent.append(seconds)
    return solver.n_steps(problem) * min(solver.batch_size, problem.n_rows) / median(spent), first


@jax.jit
def held_loss(V, x, label):
    """Mean loss of rows with weights (class, column), some classes at a time."""
    return jnp.mean(log_norm(filled_up(V), x) - jnp.sum(x * V[label], axis=1))


def filled_up(V):
    """Pad the weights to whole chunks of classes; the added classes have negligible probability."""
    missing = -len(V) % min(CHUNK, len(V))
    return jnp.concatenate([V, jnp.zeros((missing, V.shape[1]), V.dtype).at[:, -1].set(-1e4)])


def log_norm(V, x):
    """Logarithm of the normaliser of every row."""

    def part(carry, v):
        top, total = carry
        s = jnp.dot(x, v.T, precision=highest)
        new = jnp.maximum(top, s.max(axis=1))
        return (new, total * jnp.exp(top - new) + jnp.exp(s - new[:, None]).sum(axis=1)), None

    start = jnp.full(len(x), -1e30, x.dtype), jnp.zeros(len(x), x.dtype)
    (top, total), _ = jax.lax.scan(part, start, V.reshape(-1, min(CHUNK, len(V)), V.shape[1]))
    return top + jnp.log(total)


@partial(jax.jit, donate_argnums=0)
def exact_steps(state, X, y, order, rate, ridge):
    """Steps of Adam on batches, with the softmax over all classes."""
    shape = (-1, min(CHUNK, len(state[0])), X.shape[1])

    def step(state, some):
        V, m, v, t = state
        x, label, t = X[some], y[some], t + 1
        norm, n = log_norm(V, x), len(some)
        # Labels first: their part of the slope is added chunk by chunk of the classes.
        pull = jnp.zeros_like(V).at[label].add(-x / n)

        def part(_, chunk):
            w, first, second, toward = chunk
            p = jnp.exp(jnp.dot(x, w.T, precision=highest) - norm[:, None])
            g = jnp.dot(p.T, x, precision=highest) / n + toward + ridge * w
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g**2
            w = w - rate * (first / (1 - 0.9**t)) / (jnp.sqrt(second / (1 - 0.999**t)) + 1e-8)
            return None, (w, first, second)

        _, new = jax.lax.scan(part, None, tuple(a.reshape(shape) for a in (V, m, v, pull)))
        return (*(a.reshape(V.shape) for a in new), t), None

    return jax.lax.scan(step, state, order)[0]


def run_exact(problem, held, start, rate: float, limit_s: float) -> list:
    """Seconds and held-out loss of Adam, after every tenth of an epoch."""
    X = jnp.asarray(np.column_stack([problem.X, np.ones(problem.n_rows, np.float32)]))
    y, batch = jnp.asarray(problem.pairs.label), min(BATCH, problem.n_rows)
    ridge = jnp.asarray(np.append(np.full(D, problem.strength), 0.0), jnp.float32)
    V = filled_up(start)
    state, rng, trace, spent = (
        (V, jnp.zeros_like(V), jnp.zeros_like(V), jnp.float32(0)),
        np.random.default_rng(0),
        [],
        0.0,
    )
    per_turn = max(1, problem.n_rows // batch // 10)

    def order():
        return jnp.asarray(rng.integers(0, problem.n_rows, (per_turn, batch)))

    exact_steps.lower(state, X, y, order(), jnp.float32(rate), ridge).compile()
    while spent < limit_s:
        some = order()
        seconds, state = timed(
            lambda s=state, o=some: jax.block_until_ready(exact_steps(s, X, y, o, jnp.float32(rate), ridge))
        )
        spent += seconds
        trace.append((spent, float(held_loss(state[0][: len(start)], *held))))
        if not np.isfinite(trace[-1][1]) or trace[-1][1] > min(t for _, t in trace) + 0.5:
            break
    return trace


def run_sampled(problem, X_held, label, solver, step: float) -> tuple[float, list]:
    """Seconds of a first epoch; seconds (without the start) and held-out loss by epochs of a second run."""
    coordinates = solver.coordinates(problem)
    x = jnp.asarray(np.column_stack([coordinates.rows(X_held, np.float32), np.ones(len(X_held), np.float32)]))

    def begin():
        return solver.init_state(problem, problem.null_params(), key=jax.random.key(0))

    state = begin()
    first, _ = timed(lambda: jax.block_until_ready(solver.update(problem, state, step, 1.0)))
    state, spent, trace = begin(), 0.0, []
    for epoch in range(EPOCHS):
        share = DECAY**epoch
        seconds, state = timed(lambda s=state, a=share: jax.block_until_ready(solver.update(problem, s, step * a, a)))
        spent += seconds
        weights = state.weights
        trace.append((spent, float(held_loss(weights.V * weights.scale, x, label))))
        if not np.isfinite(trace[-1][1]):
            break
    return first, trace


def losses(n: int, K: int, limit_s: float, rates=RATES, names=("SampledSoftmax", "U-max", "Implicit")):
    """Section that compares sampled classes with all classes."""

    def section_of(_cache, scale: float, section: Section) -> None:
        whole = simulate(int(n * scale) + N_HELD, D, int(K * scale))
        X_held, label = whole.X[-N_HELD:], jnp.asarray(whole.pairs.label[-N_HELD:])
        n_rows = whole.n_rows - N_HELD
        pairs = Pairs(np.arange(n_rows), whole.pairs.label[:-N_HELD], np.ones(n_rows))
        problem = SoftmaxProblem(whole.X[:-N_HELD], pairs, whole.n_classes, whole.strength)
        null = problem.null_params()
        start = jnp.asarray(np.column_stack([null.coef.T, null.intercept]), jnp.float32)
        held = jnp.asarray(np.column_stack([X_held, np.ones(N_HELD, np.float32)])), label
        floor = float(held_loss(start, *held))
        exact = {f"Adam, rate {rate:g}": run_exact(problem, held, start, rate, limit_s * min(1.0, 10 * scale))
                 for rate in rates}  # fmt: skip
        solvers = {
            "SampledSoftmax": SampledSoftmax(1024, BATCH), "U-max": UMax(NEGATIVES, BATCH),
            "Implicit": ImplicitSGD(NEGATIVES, BATCH, "shared"),
        }  # fmt: skip
        sampled, first_epochs = {}, {}
        for name, solver in ((name, solvers[name]) for name in names):
            usual = solver.known_step(problem) or solver.first_step(problem)
            for step in (usual / 3, usual, 3 * usual, 9 * usual):
                if step < solver.longest_step(problem):
                    first, trace = run_sampled(problem, X_held, label, solver, step)
                    first_epochs.setdefault(name, first)
                    sampled[f"{name}, step {step:.3g}"] = trace
        least = min(loss for trace in exact.values() for _, loss in trace if np.isfinite(loss))
        section.note(
            rows=n_rows, classes=problem.n_classes, null=floor, least_of_exact=least, first_epochs=first_epochs
        )
        section.note(exact=thinned(exact), sampled=sampled)
        for what, goal in (("the least of the exact softmax", least), ("half way there", (floor + least) / 2)):
            ours, theirs = (fewest_seconds(traces, goal) for traces in (sampled, exact))
            section.note(**{what: {"sampled": ours, "exact": theirs}})
            section.require(f"{problem.n_classes} classes, to {what}", min(ours.values()), min(theirs.values()),
                            limit=1 / 3, against="all classes, Adam", aim=True)  # fmt: skip

    section_of.__doc__ = f"{K} classes, {n} rows: seconds to equal held-out loss, sampled classes and all of them."
    return section_of


def thinned(traces: dict, most: int = 40) -> dict:
    """Some of the points of each trace."""
    return {name: trace[:: -(-len(trace) // most)] for name, trace in traces.items()}


def fewest_seconds(traces: dict, goal: float) -> dict:
    """Seconds in which each run reaches a loss, infinite if it does not."""
    return {name: min((s for s, loss in trace if loss <= goal), default=np.inf) for name, trace in traces.items()}


SECTIONS = {
    "steps": steps,
    "loss-10000": losses(200_000, 10_000, 10.0),
    "loss-100000": losses(1_000_000, 100_000, 15.0),
    # An epoch of Adam takes half a minute, so only the best settings of fewer classes are run.
    "loss-1000000": losses(2_000_000, 1_000_000, 60.0, (0.003,), ("SampledSoftmax",)),
}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "gpu_softmax.json"))
