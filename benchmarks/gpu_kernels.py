"""Kernels and memory of the engine's programs, compiled for a GPU that is not there.

    pip install jax-cuda12-plugin jax-cuda12-pjrt nvidia-cuda-nvcc-cu12   # of the version of jax; no driver, no GPU
    python benchmarks/gpu_kernels.py [--sections p1,wide,classes]

XLA compiles to machine code for an H200 described in words. Counted are the kernels of one step of conjugate gradients
(a fit makes ten with one wait for the device), or of a batch of sampled classes (an epoch's are one program), loops
whose number of turns the host would have to read, and bytes.
What a compiler cannot do without the device is to try products in several ways: it takes defaults, and on the device
their kernels may be others. Nothing here is a time.
"""

from __future__ import annotations

import os
import re
import sys

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the plugin of CUDA is loaded, and not asked for devices

import jax
import jax.numpy as jnp
import numpy as np
from _common import Section, run_sections
from jax.experimental import topologies

from glmfit import observations
from glmfit.engine.devices import descent as device_cg
from glmfit.engine.devices import rows as device
from glmfit.engine.devices import shards
from glmfit.solvers import ImplicitSGD, UMax
from glmfit.stochastic import class_kernels
from glmfit.stochastic.class_rows import ClassData, DenseRows

H200 = """
platform_name: "CUDA" device_description_str: "NVIDIA H200"
runtime_version { major: 12 minor: 9 patch: 0 } dnn_version_info { major: 9 minor: 10 patch: 0 }
gpu_device_info {
  cuda_compute_capability { major: 9 minor: 0 } core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  memory_bandwidth: 4800000000000 device_memory_size: 150754820096 l2_cache_size: 62914560
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
"""
MOST_KERNELS = 30  # of a step
BATCH, NEGATIVES, N_STEPS = 1024, 512, 100
SAMPLERS = {"U-max": (UMax(NEGATIVES, BATCH), 16), "Implicit": (ImplicitSGD(NEGATIVES, BATCH, "shared"), 24)}
FREE = {"parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "after-all", "optimization-barrier"}


def shapes_there():
    """Make shapes of arrays on the device that is not there."""
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=H200)
    there = jax.sharding.SingleDeviceSharding(topology.devices[0])
    return lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=there)


def programs(n_rows: int, d: int, n: int) -> dict:
    """Compiled functions of a fit, and the shapes of their arguments."""
    array = shapes_there()
    blocks, size = shards.Layout(jax.devices()[:1], n_rows, np.float32).shape
    n, wide, padded = shards.filled_up(n), shards.filled_up(d + 1), shards.filled_up(d + 1, shards.PADDED)
    tall, small, each = array(blocks, size, n), array(padded, n), array(n)
    whole = array(n, dtype=jnp.int32)
    rows = shards.Shards(array(blocks, size, wide), tall, array(blocks, size, 1), None, None, array())
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


def count(text: str) -> tuple[list[int], int]:
    """Kernels of the program and of each turn of its loops, and how many of these have no known length."""
    bodies, entry, name = {}, None, None
    for line in re.sub(r"/\*index=\d+\*/", "", text).splitlines():
        start = re.match(r"(ENTRY )?%(\S+) \(.*\{\s*$", line)
        if start:
            name, entry = start[2], start[2] if start[1] else entry
            bodies[name] = []
        elif name and (step := re.match(r"\s+(?:ROOT )?%\S+ = (?:\([^=]*?\)|\S+) ([\w-]+)\(", line)):
            bodies[name].append((step[1], line))
    loops = [line for code, line in bodies[entry] if code == "while"]
    parts = [entry, *(re.search(r"body=%([^\s,]+)", line)[1] for line in loops)]
    kernels = [sum(code not in FREE and not code.endswith("-done") for code, _ in bodies[part]) for part in parts]
    return kernels, sum("known_trip_count" not in line for line in loops)


def compiled(n_rows: int, d: int, n: int):
    """Section that compiles the programs of one size."""

    def section_of(_cache, scale: float, section: Section) -> None:
        observation = observations.from_inverse_link("softplus")
        for name, (function, *shapes) in programs(int(n_rows * scale), d, n).items():
            done = function.lower(observation, *shapes).compile()
            (once, *turns), unknown = count(done.as_text())
            memory = done.memory_analysis()
            figures = {"kernels": once, "kernels_of_a_turn": turns, "loops_of_unknown_length": unknown}
            figures |= {"bytes_of_arguments": memory.argument_size_in_bytes, "bytes": memory.temp_size_in_bytes}
            section.note(**{name: figures})
            if name.startswith("steps"):
                section.require(f"{section.name}, {name}: kernels of a step", turns[0], MOST_KERNELS, limit=1,
                                against="limit", unit="", topic="gpu")  # fmt: skip
                section.require(f"{section.name}, {name}: loops that wait", unknown, 0, limit=1,
                                against="limit", unit="", topic="gpu")  # fmt: skip

    section_of.__doc__ = f"{n_rows} rows, {d} features, {n} neurons."
    return section_of


def classes(_cache, scale: float, section: Section) -> None:
    """1 024 rows a step, 512 shared negatives, 64 features, 1 048 576 rows, 10 000 and 1 000 000 classes."""
    array, n_rows, d = shapes_there(), 1 << 20, 64
    whole, number, each = (array(n_rows, dtype=jnp.int32), array(), array(n_rows))
    counted = {}
    for n_classes in (10_000, 1_000_000):
        for name, (solver, _) in SAMPLERS.items():
            rows = DenseRows(array(n_rows, d), each if solver.implicit else None)
            data = ClassData(rows, whole, whole, each, whole, None, array(n_rows + 1, dtype=jnp.int32), each)
            weights = class_kernels.Weights(array(n_classes, d), each, array(d))
            place = array(dtype=jnp.int32)
            span = class_kernels.Span(place, place, number, array(d), number, number, number)
            order, negatives = (array(N_STEPS, k, dtype=jnp.int32) for k in (BATCH, NEGATIVES))
            args = data, weights, order, negatives, span, class_kernels.shared, solver, N_STEPS
            done = class_kernels.take_steps.lower(*args).compile()
            (once, *turns), unknown = count(done.as_text())
            counted[name, n_classes] = turns[0], unknown
            figures = {"kernels": once, "kernels_of_a_turn": turns, "loops_of_unknown_length": unknown}
            section.note(
                **{f"{name}, {n_classes} classes": figures | {"bytes": done.memory_analysis().temp_size_in_bytes}}
            )
    for name, (_, most) in SAMPLERS.items():
        kernels, unknown = np.max([of for (who, _), of in counted.items() if who == name], axis=0)
        section.require(
            f"{name}, a batch: kernels of a step", kernels, most, limit=1, against="limit", unit="", topic="gpu"
        )
        section.require(f"{name}, a batch: loops that wait", unknown, 0, limit=1, against="limit", unit="", topic="gpu")


SECTIONS = {
    "classes": classes,
    "p1": compiled(100_000, 192, 32),
    "p2": compiled(100_000, 192, 128),
    "wide": compiled(1_000_000, 200, 2000),
}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "gpu_kernels.json"))
