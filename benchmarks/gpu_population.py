"""Fits of population GLMs on an accelerator, and epochs of SAGA compared with the two ceilings of the device.

    python benchmarks/gpu_population.py [--sections p1,p2,designs,cv,large,wide,steps] [--designs FOLDER]

P1 and P2 (100 000 bins, 192 features, 32 and 128 neurons) are fitted by every solver that runs there, and SAGA's
epochs are timed. Recorded designs, which are not shipped, are fitted by "auto", and one by cross-validation;
`python benchmarks/_designs.py RECORDINGS FOLDER` makes their files, on a machine with NeMoS. The large problem
(2 000 000 bins, 512 features, 512 neurons, single precision) is drawn on the device, 12 GB with its table, and its
epochs are timed. So are those of a population of 2 000 neurons (1 000 000 bins, 200 features, 20 GB), and its steps of
conjugate gradients, ten in one program, with counts in one byte.

Ceilings, with T rows, D = d + 1 columns and N neurons. An epoch visits T rows: it multiplies Z v and Z'r, 2 T D N
floating-point operations times two, 4 T D N in all (what is done per entry of eta is not counted), and so does a step.
An epoch must move at least Z once, counts and table once each, and the table back: 4 (T D + 3 T N) bytes; a step Z
once, counts once, and eta there and back: 4 (T D + 2 T N) + T N bytes. Divided by the rates of the device, measured in
the same run by a product of two 8 192 x 8 192 matrices (in full single precision, which the fits use, and in the
device's default precision, TF32 on NVIDIA's) and by a copy of 2 GB, they give two lower bounds of the time of an epoch.
The maker's specifications are in the figures if known. It also runs on a CPU, with smaller sizes (--scale).
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

import _problems
import jax
import jax.numpy as jnp
import numpy as np
from _common import Section, median, run_sections, timed
from _models import fit_quietly

from glmfit import PopulationGLM, PopulationGLMCV, observations, penalties
from glmfit.compilation import full_precision
from glmfit.engine.devices import descent, shards
from glmfit.engine.devices.descent import Metric as Descending
from glmfit.engine.population import PopulationProblem
from glmfit.saga.spectral_rows import Metric, Rows, saga_epoch
from glmfit.saga.walk import SpectralView, Walk
from glmfit.solvers import SAGA

# Bytes per second, and operations per second in single precision and TF32 without sparsity, by the makers.
SAID = {"H100": (3.35e12, 6.7e13, 4.95e14), "H200": (4.8e12, 6.7e13, 4.95e14), "A100": (2.04e12, 1.95e13, 1.56e14)}
LARGE = 2_000_000, 512, 512
WIDE = 1_000_000, 200, 2000
NAMES = (
    "w_maze_place", "w_maze_place_and_history", "open_field_place", "open_field_coupling", "motor_cortex_coupling",
)  # fmt: skip
LIMITS = {"P1": 0.06, "P2": 0.24, "w_maze_place": 0.03, "open_field_coupling": 0.2}  # seconds


def ceilings(scale: float, section: Section) -> tuple[float, float, float]:
    """Bytes per second, and operations per second in full single and in default precision, as measured."""
    kind = jax.devices()[0].device_kind
    n = 8192 if scale == 1.0 else 1024
    a = jax.random.normal(jax.random.key(0), (n, n), jnp.float32)
    flops = []
    for precision in (jax.lax.Precision.HIGHEST, jax.lax.Precision.DEFAULT):
        multiply = jax.jit(lambda x, p=precision: jnp.dot(x, x, precision=p))
        flops.append(2.0 * n**3 / best(lambda f=multiply: f(a)))
    b = jnp.ones(int(5e8 * min(scale, 1.0)), jnp.float32)
    copy = jax.jit(lambda x: x + 1)
    bandwidth = 2.0 * b.nbytes / best(lambda: copy(b))
    said = next((v for name, v in SAID.items() if name in kind), None)
    section.note(
        device=kind, measured={"bytes_per_s": bandwidth, "flops": flops[0], "flops_default": flops[1]}, said=said
    )
    return bandwidth, *flops


def best(call, repeats: int = 5) -> float:
    """Fewest seconds of some calls after the first."""
    jax.block_until_ready(call())
    return min(timed(lambda: jax.block_until_ready(call()))[0] for _ in range(repeats))


def epoch_seconds(rows: Rows, table, v, metric: Metric, step, repeats: int = 5) -> float:
    """Median seconds of an epoch that visits blocks drawn at random."""
    mean_gradient = jnp.zeros_like(v)
    order = np.random.default_rng(0).integers(0, rows.n_blocks, (repeats + 1, rows.n_blocks)).astype(np.int32)
    spent = []
    for draws in order:
        start = (v, table, mean_gradient, None)
        seconds, out = timed(
            lambda s=start, o=draws: jax.block_until_ready(saga_epoch(rows, *s, metric, step, o, subsets=False))
        )
        v, table, mean_gradient, _ = out  # the inputs were donated
        spent.append(seconds)
    return median(spent[1:])


def compare(section: Section, n_rows: int, d: int, n: int, seconds: float, limits, moved: float | None = None) -> None:
    """Compare an epoch, or a step that moves other bytes, with the two ceilings."""
    bandwidth, full, default = limits
    flops, moved = 4.0 * n_rows * (d + 1) * n, moved or 4.0 * n_rows * (d + 1 + 3 * n)
    section.note(
        seconds_per_epoch=seconds, epochs_per_second=1 / seconds, flops=flops, bytes=moved,
        share_of_both=(moved / bandwidth + flops / full) / seconds, share_of_bandwidth=moved / bandwidth / seconds,
        share_of_single_precision=flops / full / seconds, share_of_default_precision=flops / default / seconds,
    )  # fmt: skip


def fit_there(section: Section, what: str, X, Y, **given) -> None:
    """Time first and later fits on the device, and note what is proved."""
    model = PopulationGLM(regularizer_strength=1e-4, devices=jax.devices()[:1], **given)
    first, _ = timed(lambda: fit_quietly(model, X, Y))
    later = [timed(lambda: fit_quietly(model, X, Y))[0] for _ in range(5)]
    report = model.report_
    section.note(**{what: {"first": first, "later": median(later), "solver": report.solver_name, "all later": later}})
    proved = float((report.converged & report.gap_is_bound).sum())
    section.require(
        f"{what}: neurons with a proved gap of 1e-6", proved, Y.shape[1], limit=1, against="all", unit="", topic="gap",
        at_least=True,
    )  # fmt: skip


def designs(_cache, scale: float, section: Section, *, folder: Path | None) -> None:
    """Recorded designs, ridge 1e-4: seconds of fits by "auto" on the device."""
    for name in NAMES:
        X, Y = recorded(folder, name, scale)
        fit_there(section, name, X, Y)
        if name in LIMITS:
            later = section.figures[name]["later"]
            section.require(f"{name}, later fits", later, LIMITS[name], limit=1, against="limit", aim=True)


def cross_validation(_cache, scale: float, section: Section, *, folder: Path | None) -> None:
    """Eight strengths by five folds of the W-maze: seconds on the device."""
    X, Y = recorded(folder, "w_maze_place", scale)
    model = PopulationGLMCV(strengths=np.logspace(-6, -1, 8), cv=5)
    first, _ = timed(lambda: fit_quietly(model, X, Y))
    later = median(timed(lambda: fit_quietly(model, X, Y))[0] for _ in range(3))
    solver, proved = model.report_.solver_name, float(model.cv_gap_is_bound_.mean())
    section.note(first=first, later=later, solver=solver, share_of_fits_with_a_bound=proved)
    section.require("w_maze_place, 8 x 5, later", later, 1.0, limit=1, against="limit", aim=True)


def recorded(folder: Path | None, name: str, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Features and counts of a recorded design."""
    if folder is None:
        raise SystemExit("the sections designs and cv need --designs FOLDER; see the first lines of this file")
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        return file["X"][: int(scale * len(file["X"]))], file["Y"][: int(scale * len(file["Y"]))].astype(np.float32)


def fitted(name: str):
    """Section that fits a problem and times its epochs."""

    def section_of(cache, scale: float, section: Section) -> None:
        limits = ceilings(scale, section)
        problem = _problems.load(name, cache, scale)
        for batch in (2048, 8192, 32768):
            if batch > len(problem.X) // 2:
                continue
            one = PopulationProblem(
                problem.X, problem.Y, observations.from_inverse_link("softplus"), penalties.Ridge(problem.strength)
            )
            walk = Walk(SAGA(batch_size=batch), SpectralView.of(one), one.null_params(), seed=0)
            step = jnp.asarray(walk.step, jnp.float32)
            seconds = epoch_seconds(walk.rows, jnp.array(walk.table), jnp.array(walk.v), walk.metric, step)
            print(f"  batches of {batch} rows")
            part = Section(section.name)
            compare(part, len(problem.X), problem.X.shape[1], problem.Y.shape[1], seconds, limits)
            section.figures[f"batch {batch}"] = part.figures
        for solver in ("SAGA", "ConjugateGradients", "Newton"):
            fit_there(section, f"{name}, {solver}", problem.X, problem.Y, solver_name=solver)
        there = f"{name}, Newton, features on the device"
        fit_there(section, there, jax.device_put(problem.X, jax.devices()[0]), problem.Y, solver_name="Newton")
        section.require(
            f"{there}, later fits", section.figures[there]["later"], 0.03, limit=1, against="limit", aim=True
        )
        section.require(
            f"{name}, later fits by Newton", section.figures[f"{name}, Newton"]["later"], LIMITS[name], limit=1,
            against="limit", aim=True,
        )  # fmt: skip

    section_of.__doc__ = f"{name}: epochs compared with the device's ceilings, and a fit to a gap of 1e-6."
    return section_of


def epochs(shape: tuple[int, int, int]):
    """Section that times epochs of SAGA on data drawn on the device."""

    def section_of(_cache, scale: float, section: Section) -> None:
        draw_epochs(section, max(8192, int(shape[0] * scale)), *shape[1:], ceilings(scale, section))

    bins, d, n = (f"{size:,}".replace(",", " ") for size in shape)
    section_of.__doc__ = (
        f"{bins} bins, {d} features, {n} neurons in single precision: epochs compared with the device's ceilings."
    )
    return section_of


def draw_epochs(section: Section, n_rows: int, d: int, n: int, limits) -> None:
    """Draw a problem on the device, time epochs in batches of three sizes, and compare them with the ceilings."""
    for batch in (4096, 16384, 65536):
        n_blocks = n_rows // batch
        if n_blocks < 2:
            continue
        keys = jax.random.split(jax.random.key(0), 2)
        Z = jax.random.normal(keys[0], (n_blocks, batch, d + 1), jnp.float32).at[:, :, -1].set(1)
        Y = (jax.random.uniform(keys[1], (n_blocks, batch, n)) < 0.1).astype(jnp.float32)
        penalty = penalties.Ridge(1e-4)
        ridge = jnp.full((d + 1, n), 1e-4, jnp.float32).at[-1].set(0)
        rows = Rows(
            Z, Y, jnp.ones((n_blocks, batch, 1), jnp.float32), None, ridge, penalty, None,
            observations.from_inverse_link("softplus"), n_blocks * batch, n_blocks,
        )  # fmt: skip
        v = jnp.zeros((d + 1, n), jnp.float32)
        metric = Metric(jnp.full((d + 1, n), 4.0, jnp.float32), jnp.zeros((d, n), jnp.float32))
        step = jnp.full(n, 0.05, jnp.float32)
        seconds = epoch_seconds(rows, jnp.zeros_like(Y), v, metric, step, 3)
        print(f"  batches of {batch} rows")
        part = Section(section.name)
        compare(part, n_blocks * batch, d, n, seconds, limits)
        section.figures[f"batch {batch}"] = part.figures
        del Z, Y, rows
    share = max(part["share_of_both"] for name, part in section.figures.items() if name.startswith("batch"))
    section.require("share of both ceilings", share, 1.0, limit=0.6, against="all", unit="", at_least=True, aim=True)


def steps(_cache, scale: float, section: Section) -> None:
    """1 000 000 bins, 200 features, 2 000 neurons: steps of conjugate gradients compared with the device's ceilings."""
    limits = ceilings(scale, section)
    (n_rows, d, n), softplus = WIDE, observations.from_inverse_link("softplus")
    n_rows = max(8192, int(n_rows * scale))
    blocks, size = shards.Layout(jax.devices()[:1], n_rows, np.float32).shape
    wide, padded = shards.filled_up(d + 1), shards.filled_up(d + 1, shards.PADDED)

    @jax.jit
    def draw(key):
        keys = jax.random.split(key, 3)
        here = (jnp.arange(blocks * size) < n_rows).reshape(blocks, size, 1)
        x = jax.random.normal(keys[0], (blocks, size, wide), jnp.float32) * (jnp.arange(wide) < d)[None, None] * here
        x = x.at[:, :, d].set(here[..., 0])
        coef = 0.1 * jax.random.normal(keys[1], (wide, n), jnp.float32)
        rate = jax.nn.softplus(jnp.einsum("btm,mn->btn", x, coef) - 2)
        bits = jax.random.bits(keys[2], (blocks, size, n), jnp.uint8)  # counts of 0 or 1 of these probabilities
        return x, (bits < 256 * jnp.minimum(rate, 1)).astype(jnp.uint8), here.astype(jnp.float32)

    x, y, weight = draw(jax.random.key(0))
    rows = shards.Shards(x, y, weight, None, None, jnp.asarray(1 / n_rows, jnp.float32))
    gradient = jnp.zeros((padded, n), jnp.float32)
    metric = Descending(jnp.eye(padded, dtype=jnp.float32), jnp.full((padded, n), 4.0, jnp.float32))
    ridge = jnp.full((padded, n), 1e-4, jnp.float32).at[d:].set(0)
    eta = jnp.full((blocks, size, n), -2.0, jnp.float32) * weight
    r, _ = jax.jit(lambda rows, eta: rows.derivatives(softplus, eta))(rows, eta)
    gradient = jax.jit(full_precision(lambda rows, r: rows.gather(r)))(rows, r)
    del r
    towards = metric.solve(gradient)
    norm, nothing = jnp.sum(gradient * towards, axis=0), jnp.zeros(n, jnp.float32)
    params, none = jnp.zeros_like(gradient).at[d].set(-2.0), jnp.zeros_like(gradient)
    given = (norm, nothing, jnp.ones(n, bool), jnp.zeros(n, jnp.int32), nothing)
    point = descent.Point(params, none, gradient, towards, none, *given)
    spent = []
    for _ in range(4):
        left = jnp.full(n, 100, jnp.int32) + point.taken
        seconds, (eta, point, _) = timed(
            lambda e=eta, p=point, m=left: jax.block_until_ready(
                descent._advance(softplus, rows, metric, ridge, nothing, m, e, p)
            )
        )
        spent.append(seconds / descent._STEPS)
    fallen = float(jnp.median(point.squared_norm / norm))
    compare(section, n_rows, d, n, median(spent[1:]), limits, 4.0 * n_rows * (d + 1 + 2 * n) + n_rows * n)
    section.note(norm_after_forty_steps_over_first=fallen)
    share = section.figures["share_of_both"]
    section.require("share of both ceilings", share, 1.0, limit=0.6, against="all", unit="", at_least=True, aim=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--designs", type=Path, help="folder of recorded designs")
    options, rest = parser.parse_known_args()
    SECTIONS = {
        "p1": fitted("P1"),
        "p2": fitted("P2"),
        "designs": partial(designs, folder=options.designs),
        "cv": partial(cross_validation, folder=options.designs),
        "large": epochs(LARGE),
        "wide": epochs(WIDE),
        "steps": steps,
    }
    for name, function in (("designs", designs), ("cv", cross_validation)):
        SECTIONS[name].__doc__ = function.__doc__
    sys.exit(run_sections(__doc__, SECTIONS, "gpu_population.json", rest))
