"""Sections of peers.py on all pairs with squared loss: alternating least squares of implicit, compared with glmfit.

Both minimise the same objective. That of implicit, with confidence c of positive pairs, 1 of all others, and
regularisation r,

    sum over positive pairs of c (1 - z)^2 + sum over the others of z^2 + r (|P|^2 + |Q|^2),

is 2 / omega times glmfit's with c = 1 / omega and r = strength / omega, no biases and a prior of zero. Both start from
the same embeddings; the problem is not convex, so they may end at different optima. Measured are the seconds until the
objective, in float64, is within a given share of the lowest one found; evaluations and compilation are not counted.
implicit solves its rows by three steps of conjugate gradients or by factorisation, in single and double precision; the
fastest of them counts.
"""

from __future__ import annotations

import numpy as np
from _common import Section
from _foreign import find
from _problems import implicit_feedback

RANK, OMEGA, STRENGTH = 32, 0.03, 3.0
PARTS = {"1 %": 1e-2, "0.1 %": 1e-3}
SOLVERS = ("LBFGS", "GaussNewton")  # the first is the default of linear towers


def measure_of(m: int, n: int):
    """Section that compares traces on simulated positive pairs of m by n entities."""

    def measure(cache, scale: float, section: Section, data=None, other_python=None) -> None:
        import all_pairs
        import jax
        import scipy.sparse

        from glmfit import solvers

        implicit = find(other_python, "implicit")
        if implicit is None:
            section.note(absent={"implicit": "is in no Python given (--other-python)"})
            return
        pairs = implicit_feedback(m=round(m * scale), n=round(n * scale))
        problem = all_pairs.ratings(pairs, OMEGA, STRENGTH)
        theta = problem.draw_params(jax.random.key(0), RANK)
        start = [np.asarray(side.maps[0].weight, np.float64) for side in (theta.left, theta.right)]
        left, right, n_left, n_right = pairs
        seen = scipy.sparse.csr_array((np.ones(len(left)), (left, right)), shape=(n_left, n_right))
        budget = 30.0 * min(1.0, 4 * scale)
        traces = {}
        for name in SOLVERS:
            solver = {"LBFGS": solvers.TowerLBFGS, "GaussNewton": solvers.GaussNewton}[name]()
            told = all_pairs.trace(solver, problem, theta, budget)
            traces[f"glmfit {name}"] = [told["seconds"], told["objective"]]
        arrays = {"left": left, "right": right, "P": start[0], "Q": start[1]}
        how = {"confidence": 1 / OMEGA, "regularization": STRENGTH / OMEGA, "limit_s": budget}
        for cg in (True, False):
            for precision in ("float32", "float64"):
                made = implicit.call("implicit_als", arrays, precision=precision, cg=cg, **how)
                values = [
                    all_pairs.value(p.astype(float), q.astype(float), seen, OMEGA, STRENGTH)
                    for p, q in zip(made["P"], made["Q"], strict=True)
                ]
                name = f"implicit {'conjugate gradients' if cg else 'factorised'}, {precision}"
                traces[name] = [np.cumsum(made["seconds"]), np.array(values)]
                print(f"    {name}: {len(values)} iterations, {np.sum(made['seconds']):.3g} s", flush=True)
        best = min(np.min(values) for _, values in traces.values())
        seconds = {
            name: {part: _first(*trace, best * (1 + above)) for part, above in PARTS.items()}
            for name, trace in traces.items()
        }
        section.note(
            left=n_left, right=n_right, pairs=len(left), components=RANK, best=best, implicit=implicit.version,
            above_best={name: np.min(values) / best - 1 for name, (_, values) in traces.items()}, seconds=seconds,
            traces=traces,
        )  # fmt: skip
        for part in PARTS:
            able = {name: s[part] for name, s in seconds.items() if name.startswith("implicit")}
            rival = min(able, key=able.get)
            if np.isfinite(able[rival]):
                section.require(f"{n_left} x {n_right} entities, to within {part} of the least objective",
                                seconds[f"glmfit {SOLVERS[0]}"][part], able[rival], limit=1, against=rival)  # fmt: skip

    measure.__doc__ = f"Positive pairs of {m} x {n} entities, squared loss: seconds to equal objectives, and implicit."
    return measure


def _first(seconds, values, target: float) -> float:
    """Seconds to an objective; inf if never."""
    there = np.asarray(values) <= target
    return float(np.asarray(seconds)[np.argmax(there)]) if there.any() else np.inf


SECTIONS = {"pairs-small": measure_of(942, 1447), "pairs-large": measure_of(6040, 3706)}
