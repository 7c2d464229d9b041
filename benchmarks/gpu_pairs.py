"""Two towers on an accelerator: passes over all pairs compared with the ceilings of the device, and whole fits.

    JAX_PLATFORMS=cuda python benchmarks/gpu_pairs.py [--sections passes,fits]

"passes" times objective and gradient of a dense table of counts, 32 components, and of scattered pairs. A pass reads
the table once and multiplies three matrices: the linear predictors, and their slopes on either side. Divided by the
rates of the device, measured in the same run by a product of two large matrices in full single precision and by a copy,
these give two lower bounds of the time of a pass. "fits" times first and later fits of solvers on a table of 4 096
stimuli and 2 048 neurons, to a thousandth of the initial gradient. It also runs on a CPU, with smaller sizes (--scale).
"""

from __future__ import annotations

import sys
from functools import partial

import jax
import numpy as np
from _common import Section, median, run_sections, timed
from gpu_population import best, ceilings

from glmfit.pairs import AllPairsProblem, Triples
from glmfit.pairs.objective import evaluate
from glmfit.solvers import GaussNewton, StationaryOptions, TowerLBFGS

K = 32
TABLES = (4096, 2048), (16384, 16384)
N_ENTITIES, N_SCATTERED = 200_000, 8_000_000
TOL, LATER = 1e-3, 3


def table(m: int, n: int) -> AllPairsProblem:
    """Counts of a model of eight components; repeated rows do not matter for the time of a pass."""
    rng, some = np.random.default_rng(0), min(m, 1024)
    eta = rng.normal(size=(some, 8)) @ rng.normal(size=(8, n)) / 3 - 1
    counts = rng.poisson(np.logaddexp(0, eta)).astype(np.float32)
    return AllPairsProblem(m, n, np.tile(counts, (-(-m // some), 1))[:m], layout="dense")


def pass_seconds(problem: AllPairsProblem) -> float:
    """Fewest seconds of objective and gradient."""
    theta = problem.draw_params(jax.random.key(0), K)
    return best(partial(evaluate, problem.data, theta))


def passes(_cache, scale: float, section: Section) -> None:
    """Dense tables up to 16 384 x 16 384, and 8 000 000 scattered pairs: a pass compared with the ceilings."""
    bandwidth, full, _ = ceilings(scale, section)
    for m, n in (tuple(max(64, int(size * scale**0.5)) for size in shape) for shape in TABLES):
        seconds = pass_seconds(table(m, n))
        least = 3 * 2.0 * m * n * K / full + 4.0 * m * n / bandwidth
        section.note(**{f"{m} x {n}": {"seconds": seconds, "ceilings": least, "share": least / seconds}})
    rng, size, n = np.random.default_rng(0), max(64, int(N_ENTITIES * scale)), int(N_SCATTERED * scale)
    left, right = rng.integers(0, size, n), rng.integers(0, size, n)
    problem = AllPairsProblem(size, size, Triples(left, right, np.ones(n)), imputation_weight=0.01, layout="triples")
    seconds = pass_seconds(problem)
    section.note(
        **{f"{problem.n_pairs} scattered pairs": {"seconds": seconds, "pairs_per_s": problem.n_pairs / seconds}}
    )


def fits(_cache, scale: float, section: Section) -> None:
    """4 096 x 2 048 counts, 32 components: seconds of fits, first and later, and of an epoch."""
    m, n = (max(64, int(size * scale**0.5)) for size in TABLES[0])
    problem = table(m, n)
    theta = problem.draw_params(jax.random.key(0), K)
    options = StationaryOptions(tol=TOL, max_epochs=300)
    for solver in (TowerLBFGS(), GaussNewton()):

        def fit(solver=solver):
            return solver.run(problem, theta, key=jax.random.key(1), options=options)

        first, found = timed(fit)
        later = median(timed(fit)[0] for _ in range(LATER))
        figures = {"first": first, "later": later, "epochs": found.epochs, "passes": found.evaluations}
        figures |= {"status": found.status.name, "objective": found.objective, "seconds_of_epoch": later / found.epochs}
        section.note(**{type(solver).__name__: figures})


if __name__ == "__main__":
    sys.exit(run_sections(__doc__, {"passes": passes, "fits": fits}, "gpu_pairs.json"))
