"""Kernels, waits, bytes and modelled times of the engine's programs, compiled for a GPU without having one.

    pip install jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12   # same version as jax; no driver, no GPU
    python benchmarks/gpu_kernels.py [--sections p1,wide,classes]
    python benchmarks/gpu_kernels.py --compare   # with the committed figures: 1 if any differs by more than a fifth

XLA compiles to machine code for a described H200 (`_gpu_model.py` explains the limits). The counts are: kernels of one
step of conjugate gradients (a fit makes ten steps per wait for the device), of an iteration of Newton's method, or of a
batch of sampled classes (the batches of an epoch are one program); loops whose number of iterations the host would have
to read; products in TF32; and bytes. Times are modelled, nothing here is measured.
"""

from __future__ import annotations

import json
import sys

from _gpu_model import Program, compiled, shapes_there  # first: it sets what jax loads

import jax  # isort: skip
import jax.numpy as jnp
import numpy as np
from _common import RESULTS, Section, environment, run_sections

from glmfit import observations
from glmfit.engine.devices import descent as device_cg
from glmfit.engine.devices import newton, shards
from glmfit.engine.devices import rows as device
from glmfit.solvers import ImplicitSGD, UMax
from glmfit.stochastic import class_kernels
from glmfit.stochastic.class_rows import ClassData, DenseRows

SOFTPLUS = observations.from_inverse_link("softplus")
MOST_KERNELS = 30  # of a step
BATCH, NEGATIVES, N_STEPS = 1024, 512, 100
SAMPLERS = {"U-max": (UMax(NEGATIVES, BATCH), 16), "Implicit": (ImplicitSGD(NEGATIVES, BATCH, "shared"), 24)}
CG_MS, NEWTON_MS = 0.3, {"open_field_coupling": 8.0}  # largest modelled times of a step and of an iteration
ROOM = 26 * 2.0**30  # bytes of a million bins, 200 features and 2 000 neurons


def require(section: Section, what: str, ours, most, unit: str = "") -> None:
    """Judge a number against a limit that it must not exceed; the limit may be 0."""
    section.require(what, ours, most, limit=1, against="limit", unit=unit, topic="gpu")


def check(section: Section, name: str, program: Program) -> None:
    """Note the figures of a program; it must neither wait nor round products."""
    section.note(**{name: program.figures()})
    require(section, f"{section.name}, {name}: loops that wait", program.whole.unknown, 0)
    require(section, f"{section.name}, {name}: instructions in TF32", program.tf32, 0)


def descent(n_rows: int, d: int, n: int):
    """Section that compiles the programs of conjugate gradients of one size."""

    def section_of(_cache, scale: float, section: Section) -> None:
        for name, (function, *shapes) in programs(int(n_rows * scale), d, n).items():
            program = compiled(function, SOFTPLUS, *shapes)
            check(section, name, program)
            if not name.startswith("steps"):
                continue
            (steps,) = program.whole.inner
            if section.name == "p1":
                require(section, f"p1, {name}: kernels of a step", steps.launches, MOST_KERNELS)
                require(section, f"p1, {name}: modelled time of a step", 1e3 * steps.seconds, CG_MS, "ms")
            if section.name == "wide":
                require(
                    section,
                    f"{section.name}, {name}: memory",
                    (program.bytes + program.bytes_of_arguments) / 2**30,
                    ROOM / 2**30,
                    "GiB",
                )

    section_of.__doc__ = f"Conjugate gradients of {n_rows} rows, {d} features, {n} neurons."
    return section_of


def programs(n_rows: int, d: int, n: int) -> dict:
    """Functions of a fit by conjugate gradients, and the shapes of their arguments."""
    array = shapes_there()
    blocks, size = shards.Layout(jax.devices()[:1], n_rows, np.float32).shape
    n, wide, padded = shards.filled_up(n), shards.filled_up(d + 1), shards.filled_up(d + 1, shards.PADDED)
    tall, small, each = array(blocks, size, n), array(padded, n), array(n)
    whole, counts = array(n, dtype=jnp.int32), array(blocks, size, n, dtype=jnp.uint8)
    rows = shards.Shards(array(blocks, size, wide), counts, array(blocks, size, 1), None, None, array())
    point = device_cg.Point(*[small] * 5, each, each, array(n, dtype=jnp.bool_), whole, each)
    shared = device_cg.Metric(array(padded, padded), small)
    own = device_cg.Metric(array(n, padded, padded), None)
    at, inverse = array(8, dtype=jnp.int32), array(wide)
    return {
        "steps": (device_cg._advance, rows, shared, small, each, whole, tall, point),
        "steps, own metrics": (device_cg._advance, rows, own, small, each, whole, tall, point),
        "products": (device._products, rows, tall, small),
        "proximal step, along": (device._along, rows, tall, small),
        "proximal step, move": (device._move, rows, tall, tall, each),
        "Hessians of 8 fits": (device._hessians, rows, tall, at, inverse),
    }


def iteration(n_rows: int, d: int, n: int):
    """Section that compiles an iteration of Newton's method of one size, in double precision."""

    def section_of(_cache, scale: float, section: Section) -> None:
        with jax.enable_x64(True):
            array, (blocks, size) = shapes_there(), shards.Layout(jax.devices()[:1], int(n_rows * scale), float).shape
            wide, fits = shards.filled_up(d + 1), shards.filled_up(n, max(newton._TOGETHER))
            double, place = jnp.float64, array(fits, dtype=jnp.int64)
            rows = shards.Shards(
                array(blocks, size, wide, dtype=double), array(blocks, size, fits, dtype=jnp.uint8),
                array(blocks, size, 1, dtype=double), place, None, array(dtype=double),
            )  # fmt: skip
            small = array(wide, fits, dtype=double)
            program = compiled(newton._iterate, SOFTPLUS, rows, None, small, small)
        check(section, "iteration", program)
        if section.name in NEWTON_MS:
            most = NEWTON_MS[section.name]
            require(section, f"{section.name}: modelled time of an iteration", 1e3 * program.whole.seconds, most, "ms")

    section_of.__doc__ = f"Newton's method on {n_rows} rows, {d} features, {n} neurons."
    return section_of


def classes(_cache, scale: float, section: Section) -> None:
    """1 024 rows a step, 512 shared negatives, 64 features, 1 048 576 rows, 10 000 and 1 000 000 classes."""
    array, n_rows, d = shapes_there(), 1 << 20, 64
    whole, number, each = (array(n_rows, dtype=jnp.int32), array(), array(n_rows))
    kernels = {name: [] for name in SAMPLERS}
    for n_classes in (10_000, 1_000_000):
        for name, (solver, _) in SAMPLERS.items():
            rows = DenseRows(array(n_rows, d), each if solver.implicit else None)
            data = ClassData(rows, whole, whole, each, whole, None, array(n_rows + 1, dtype=jnp.int32), each)
            weights = class_kernels.Weights(array(n_classes, d), each, array(d))
            place = array(dtype=jnp.int32)
            span = class_kernels.Span(place, place, number, array(d), number, number, number)
            order, negatives = (array(N_STEPS, k, dtype=jnp.int32) for k in (BATCH, NEGATIVES))
            args = data, weights, order, negatives, span, class_kernels.shared, solver, N_STEPS
            program = compiled(class_kernels.take_steps, *args)
            check(section, f"{name}, {n_classes} classes", program)
            kernels[name].append(program.whole.inner[-1].launches)
    for name, (_, most) in SAMPLERS.items():
        require(section, f"{name}, a batch: kernels of a step", max(kernels[name]), most)


SECTIONS = {
    "classes": classes,
    "p1": descent(100_000, 192, 32),
    "p2": descent(100_000, 192, 128),
    "wide": descent(1_000_000, 200, 2000),
    "w_maze_place": iteration(43_656, 64, 24),
    "open_field_coupling": iteration(43_789, 196, 49),
}

FILE, MOST_CHANGE = "gpu_kernels.json", 0.2


def numbers(figures, path=()):
    """Yield the path and value of every number of nested figures."""
    if isinstance(figures, int | float):
        yield ", ".join(path), figures
    elif figures:
        items = figures.items() if isinstance(figures, dict) else enumerate(figures)
        for name, value in items:
            yield from numbers(value, (*path, str(name)))


def compare() -> int:
    """Compile all sections, and print which figures differ from the committed ones by more than a fifth."""
    committed, changed = json.loads((RESULTS / FILE).read_text())["sections"], 0
    print("versions now:", environment()["versions"], flush=True)
    for name, section_of in SECTIONS.items():
        section = Section(name)
        section_of(None, 1.0, section)
        now, before = (dict(numbers(figures)) for figures in (section.figures, committed[name]["figures"]))
        for what in sorted(now.keys() | before.keys()):
            old, new = before.get(what), now.get(what)
            if old is None or new is None or abs(new - old) > MOST_CHANGE * abs(old):
                print(f"{name}, {what}: {old} before, {new} now", flush=True)
                changed += 1
    print(f"{changed} figures changed by more than {MOST_CHANGE:.0%}")
    return int(changed > 0)


if __name__ == "__main__":
    sys.exit(compare() if sys.argv[1:] == ["--compare"] else run_sections(__doc__, SECTIONS, FILE))
