"""All stimuli by all neurons: cost of a pass, interleaved solvers, sampled pairs; see README.md in this folder.

python benchmarks/all_pairs.py [--sections scaling,blocks,linear,mlp,negatives]

The section "negatives" needs bibtex_train.npz in ../shared/data next to the checkout for its real data set.
"""

from __future__ import annotations

import sys

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
from _common import ROOT, Section, fresh, interleaved, median, run_sections, timed
from _problems import implicit_feedback

from glmfit.pairs import AllPairsProblem, SessionBlock, Triples
from glmfit.solvers import GaussNewton, LeftBatches, SampledPairs, StationaryOptions, TowerAdam, TowerLBFGS

BIBTEX = ROOT.parent / "shared" / "data" / "bibtex_train.npz"


# --------------------------------------------------------------------------------------- cost of a pass


def scaling(cache, scale: float, section: Section) -> None:
    """Objective and gradient at m = n = 2 000 to 200 000, k = 32, 20 (m + n) scattered pairs: time, memory."""
    sizes = [int(size * scale) for size in (2_000, 20_000, 200_000)]
    reports = [fresh("all_pairs_pass", n=n) for n in sizes]
    again = [fresh("all_pairs_pass", n=n) for n in sizes]  # interleaved, so that a slow phase is visible
    seconds = [min(a["seconds"], b["seconds"]) for a, b in zip(reports, again, strict=True)]
    section.note(
        sizes=sizes,
        seconds=seconds,
        microseconds_per_pair=[1e6 * s / (40 * n) for s, n in zip(seconds, sizes, strict=True)],
        temporary_bytes=[r["temporary_bytes"] for r in reports],
        peak_bytes=[r["peak_bytes"] for r in reports],
        compile_seconds=[r["compile_seconds"] for r in reports],
    )
    for index in (1, 2):
        section.require(
            f"time of objective and gradient, {sizes[index]} compared with {sizes[0]} entities a side",
            seconds[index],
            seconds[0] * sizes[index] / sizes[0],
            limit=1.3,
            against="as sizes grow",
        )
    section.require(
        "memory of a process with 200 000 entities a side at its peak", reports[-1]["peak_bytes"], 4e9, limit=1,
        against="4 GB", unit="B", topic="memory",
    )  # fmt: skip


N_STIMULI, N_SESSIONS, N_NEURONS = 20_000, 20, 200


def sessions(rng, n_shown: int) -> list[SessionBlock]:
    """Sessions that each show some stimuli to 200 different neurons."""
    blocks = []
    for s in range(N_SESSIONS):
        stimuli = np.sort(rng.choice(N_STIMULI, n_shown, replace=False))
        counts = rng.poisson(1.0, (n_shown, N_NEURONS)).astype(float)
        blocks.append(SessionBlock(stimuli, np.arange(N_NEURONS) + N_NEURONS * s, counts))
    return blocks


def blocks(cache, scale: float, section: Section) -> None:
    """4 million pairs as 20 session blocks, as our triples, and as triples gathered at once, differentiated by JAX."""
    data, n_neurons = sessions(np.random.default_rng(0), int(1_000 * scale)), N_SESSIONS * N_NEURONS
    problems = {how: AllPairsProblem(N_STIMULI, n_neurons, data, layout=how) for how in ("blocks", "triples")}
    theta = problems["blocks"].draw_params(jax.random.key(0), 32)
    both = jax.jit(lambda data, theta: data.value_and_gradient(theta))
    triples = problems["triples"].triples
    loss = problems["blocks"].loss
    plain = jax.jit(jax.value_and_grad(lambda theta, d, i, j, y: gathered(theta, d, i, j, y, loss)))
    records = tuple(jnp.asarray(a) for a in (triples.left, triples.right, triples.y.astype(np.float32)))
    arguments = {name: (problem.data, theta) for name, problem in problems.items()}
    calls, temporary, held = {}, {}, {}
    for name, function, given in [
        *((name, both, given) for name, given in arguments.items()),
        ("gathered", plain, (theta, problems["triples"].data, *records)),
    ]:
        program = function.lower(*given).compile()
        temporary[name] = int(program.memory_analysis().temp_size_in_bytes)
        pairs = records if name == "gathered" else given[0].observed
        held[name] = sum(leaf.nbytes for leaf in jax.tree.leaves(pairs))
        calls[name] = lambda function=function, given=given: in_a_row(function, given)
        calls[name]()
    seconds = {name: median(times) / IN_A_ROW for name, times in interleaved(calls, 7).items()}
    size = {name: temporary[name] + held[name] for name in calls}
    section.note(pairs=len(triples.y), seconds=seconds, temporary_bytes=temporary, data_bytes=held)
    for name in ("triples", "gathered"):
        section.require(
            f"speed of blocks compared with {name}",
            seconds[name],
            seconds["blocks"],
            limit=8,
            against="blocks",
            at_least=True,
        )
    section.require(
        "size of triples gathered at once compared with blocks", size["gathered"], size["blocks"], limit=10,
        against="blocks", unit="B", topic="memory", at_least=True,
    )  # fmt: skip
    section.require(
        "size of our triples compared with blocks", size["triples"], size["blocks"], limit=10,
        against="blocks", unit="B", topic="memory", at_least=True, aim=True,
    )  # fmt: skip


IN_A_ROW = 5  # as in a fit, where passes follow one another


def in_a_row(function, given) -> None:
    """Call a function several times in a row."""
    for _ in range(IN_A_ROW):
        jax.block_until_ready(function(*given))


def gathered(theta, data, i, j, y, loss):
    """Objective of triples in one gather."""
    tables = data.tables(theta)
    z = jnp.sum(tables.P[i] * tables.Q[j], axis=1)
    return jnp.sum(loss.loss_and_derivative(y, z)[0]) + data.penalty(theta)


# ------------------------------------------------------------------------------------------- solvers


def ratings(pairs, omega: float = 0.03, strength: float = 3.0, **more) -> AllPairsProblem:
    """Squared loss on positive pairs, with all others pulled to 0: the problem of the section on solvers."""
    left, right, m, n = pairs
    given = {"loss": "squared", "imputation_weight": omega, "prior": "zero", "biases": False, "strength": strength}
    return AllPairsProblem(m, n, Triples(left, right, np.ones(len(left))), **(given | {"layout": "triples"} | more))


_WARM_UP = 4.0  # seconds of a first run that compiles everything


def trace(solver, problem, theta, seconds: float, max_epochs: int = 100_000) -> dict:
    """Run twice for some seconds; return times (without evaluation) and objectives of the second run."""

    def once(seconds):
        told = {"seconds": [0.0], "objective": [float(objective(problem.data, theta))]}

        def look(epoch, spent, params, state):
            told["seconds"].append(spent)
            told["objective"].append(float(objective(problem.data, params)))
            if spent > seconds:
                raise KeyboardInterrupt

        options = StationaryOptions(tol=1e-9, max_epochs=max_epochs, callback=look)
        _, solution = timed(lambda: solver.run(problem, theta, key=jax.random.key(1), options=options))
        told["best"] = min(told["objective"])
        told["params"] = solution.params
        return told

    objective = jax.jit(lambda data, theta: data.objective(theta))
    once(min(seconds, _WARM_UP))
    return once(seconds)


def reached(told: dict, target: float) -> float:
    """Seconds to an objective; inf if never."""
    for spent, value in zip(told["seconds"], told["objective"], strict=True):
        if value <= target:
            return spent
    return float("inf")


def alternating(problem, theta, seconds: float, omega: float, strength: float) -> dict:
    """Alternating least squares in NumPy: exact solutions of one side's rows in turn."""
    import time

    P, Q = (np.asarray(t.maps[0].weight, np.float64) for t in (theta.left, theta.right))
    triples = problem.triples
    seen = scipy.sparse.csr_array((triples.y, (triples.left, triples.right)), shape=(problem.n_left, problem.n_right))
    told = {"seconds": [0.0], "objective": [value(P, Q, seen, omega, strength)]}
    clock = spent = 0.0
    while spent < seconds:
        clock = time.perf_counter()
        P = half_step(seen, Q, omega, strength)
        Q = half_step(seen.T.tocsr(), P, omega, strength)
        spent += time.perf_counter() - clock
        told["seconds"].append(spent)
        told["objective"].append(value(P, Q, seen, omega, strength))
    told["best"] = min(told["objective"])
    return told


def half_step(seen, Q, omega, strength):
    """Best rows of one side given the other."""
    k = Q.shape[1]
    shared = omega * Q.T @ Q + strength * np.eye(k)
    out = np.zeros((seen.shape[0], k))
    for i in range(seen.shape[0]):
        some = slice(seen.indptr[i], seen.indptr[i + 1])
        rows = Q[seen.indices[some]]
        out[i] = np.linalg.solve(shared + (1 - omega) * rows.T @ rows, rows.T @ seen.data[some])
    return out


def value(P, Q, seen, omega, strength):
    """Objective of look-up tables with squared loss, in float64."""
    row, column = seen.tocoo().coords
    z = np.einsum("rk,rk->r", P[row], Q[column])
    imputed = omega / 2 * (np.sum((P.T @ P) * (Q.T @ Q)) - z @ z)
    return 0.5 * np.sum((seen.tocoo().data - z) ** 2) + imputed + strength / 2 * (np.sum(P**2) + np.sum(Q**2))


RATES = (0.003, 0.01, 0.03)


def compare(section, problem, theta, budget: float, extra=(), name="") -> dict:
    """Time to within given shares of the best objective found, for every solver."""
    runs = {
        "LBFGS": TowerLBFGS(),
        "GaussNewton": GaussNewton(),
        "Adam": TowerAdam(),
        "Adam, not polished": TowerAdam(polish=None),
    }
    runs |= {f"LeftBatches, {rate:g}": LeftBatches(learning_rate=rate) for rate in RATES}
    runs |= {f"SampledPairs, {rate:g}, constant": SampledPairs(learning_rate=rate, decay=0.0) for rate in RATES}
    runs |= {f"SampledPairs, {rate:g}, decaying": SampledPairs(learning_rate=rate) for rate in RATES}
    traces = {label: trace(solver, problem, theta, budget) for label, solver in runs.items()}
    traces |= dict(extra)
    best = min(told["best"] for told in traces.values())
    parts = {"10 %": 0.1, "2 %": 0.02, "1 %": 0.01, "0.1 %": 0.001}
    times = {label: {p: reached(told, best * (1 + x)) for p, x in parts.items()} for label, told in traces.items()}
    section.note(start=traces["LBFGS"]["objective"][0], best=best)
    section.note(**{f"above_best_{label}": told["best"] / best - 1 for label, told in traces.items()})
    section.note(seconds_to=times)
    return times


def linear(cache, scale: float, section: Section) -> None:
    """Linear towers on simulated positive pairs (942 x 1447): the default, the others, sampled pairs and ALS."""
    problem = ratings(implicit_feedback())
    theta = problem.draw_params(jax.random.key(0), 32)
    section.note(pairs=problem.n_pairs)
    budget = 10 * scale
    als = {"ALS (NumPy)": alternating(problem, theta, budget, 0.03, 3.0)}
    times = compare(section, problem, theta, budget, als.items())
    for kind, aim in (("constant", False), ("decaying", True)):
        sampled = min(seconds["2 %"] for label, seconds in times.items() if label.endswith(kind))
        section.require(
            f"the default within 0.1 % of the best objective, sampled pairs ({kind} steps) within 2 %",
            times["LBFGS"]["0.1 %"],
            min(sampled, budget),
            limit=0.2,
            against="sampled pairs" if np.isfinite(sampled) else f"sampled pairs, not there in {budget:g} s",
            aim=aim,
        )


def mlp(cache, scale: float, section: Section) -> None:
    """Towers with a hidden layer of 32 tanh units on the same pairs: which solver should be the default."""
    problem = ratings(implicit_feedback(), omega=0.1)
    theta = problem.draw_params(jax.random.key(0), 32, (32,), (32,))
    times = compare(section, problem, theta, 20 * scale)
    ours = {label: t["1 %"] for label, t in times.items()}
    section.require(
        "the default (Adam, then L-BFGS) within 1 % of the best objective, against the quickest of the others",
        ours["Adam"],
        min(seconds for label, seconds in ours.items() if label != "Adam"),
        limit=1.0,
        against="the quickest other",
    )


# ------------------------------------------------------------------- all pairs and sampled negatives


def recall(params, problem, held, k: int = 20) -> float:
    """Mean over left entities of hits among the k best pairs not trained on, over the largest possible number."""
    P, Q = (np.asarray(e) for e in jax.jit(lambda d, t: d.embeddings(t))(problem.data, params))
    score = P @ Q.T
    triples = problem.triples
    score[triples.left, triples.right] = -np.inf
    best = np.argpartition(-score, k, axis=1)[:, :k]
    truth = np.zeros(score.shape, bool)
    truth[held] = True
    hits = np.take_along_axis(truth, best, axis=1).sum(axis=1)
    n = truth.sum(axis=1)
    return float(np.mean(hits[n > 0] / np.minimum(n[n > 0], k)))


def words() -> tuple:
    """Words of documents (Bibtex): positive pairs of words and documents with at least five words."""
    with np.load(BIBTEX, allow_pickle=False) as z:
        X = scipy.sparse.csr_array((z["data"], z["indices"], z["indptr"]), shape=tuple(z["shape"]))
    X = X[np.diff(X.indptr) >= 5]
    row, column = X.nonzero()
    return row, column, *X.shape


def negatives(cache, scale: float, section: Section) -> None:
    """Ranking of held-out pairs after equal time: all pairs, and the same objective by sampled pairs."""
    sets = {"simulated": implicit_feedback()} | ({"words of documents": words()} if BIBTEX.exists() else {})
    for name, (left, right, m, n) in sets.items():
        held = np.random.default_rng(1).random(len(left)) < 0.2
        test = (left[held], right[held])
        fame = np.bincount(right[~held], minlength=n)
        problem = ratings((left[~held], right[~held], m, n))
        theta = problem.draw_params(jax.random.key(0), 32)
        table = {}
        for budget in (1.0, 4.0):
            for label, solver in {
                "all pairs (LBFGS)": TowerLBFGS(),
                **{f"sampled pairs, {rate:g}": SampledPairs(learning_rate=rate) for rate in RATES},
            }.items():
                told = trace(solver, problem, theta, budget * scale)
                table[f"{label}, {budget:g} s"] = {
                    "recall@20": recall(told["params"], problem, test), "objective": told["objective"][-1]
                }  # fmt: skip
        section.note(**{f"{name}: shape": [m, n, int(np.sum(~held))], f"{name}: results": table})
        flat = np.tile(fame.astype(float), (m, 1))
        flat[left[~held], right[~held]] = -np.inf
        best = np.argpartition(-flat, 20, axis=1)[:, :20]
        truth = np.zeros((m, n), bool)
        truth[test] = True
        hits, count = np.take_along_axis(truth, best, axis=1).sum(axis=1), truth.sum(axis=1)
        popular = float(np.mean(hits[count > 0] / np.minimum(count[count > 0], 20)))
        section.note(**{f"{name}: popularity alone": popular})
        ours = table["all pairs (LBFGS), 1 s"]["recall@20"]
        rival = max(r["recall@20"] for label, r in table.items() if label.startswith("sampled") and ", 1 s" in label)
        section.require(
            f"recall@20 after 1 s, {name}: all pairs, sampled pairs at their best rate", ours, rival, limit=1.0,
            against="sampled pairs", unit="", topic="quality", at_least=True, aim=True,
        )  # fmt: skip


SECTIONS = {"scaling": scaling, "blocks": blocks, "linear": linear, "mlp": mlp, "negatives": negatives}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "all_pairs.json"))
