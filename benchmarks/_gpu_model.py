"""Programs compiled by XLA for a GPU without having one: their kernels, waits, bytes and modelled time.

Without the device, the compiler cannot autotune matrix products: it takes defaults, and the kernels on the device may
differ. Seconds are a model: XLA's own estimate of each kernel, at least `LAUNCH`; for an update in place, which XLA
prices as the whole array, the bytes that it touches; and `WAIT` whenever the host reads a number. Kernels of NVIDIA's
libraries (factorisations) have no estimate, and count as a launch.
"""

from __future__ import annotations

import glob
import os
import re
import tempfile
from dataclasses import dataclass, field

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # the CUDA plugin is loaded, but no devices are requested
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_dump_to={tempfile.mkdtemp(prefix='glmfit-gpu-')}"

import jax
import jax.numpy as jnp
from jax.experimental import topologies

DUMP = os.environ["XLA_FLAGS"].rpartition("=")[2]  # where the compiler writes machine code
LAUNCH, WAIT = 4e-6, 15e-6
BANDWIDTH = 4.8e12
H200 = f"""
platform_name: "CUDA" device_description_str: "NVIDIA H200"
runtime_version {{ major: 12 minor: 9 patch: 0 }} dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
gpu_device_info {{
  cuda_compute_capability {{ major: 9 minor: 0 }} core_count: 132 fpus_per_core: 128 clock_rate_ghz: 1.98
  memory_bandwidth: {BANDWIDTH:.0f} device_memory_size: 150754820096 l2_cache_size: 62914560
  threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  shared_memory_per_block: 49152 shared_memory_per_core: 233472 shared_memory_per_block_optin: 232448
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}}
"""
FREE = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "optimization-barrier",
    "partition-id", "replica-id",
}  # fmt: skip


def shapes_there():
    """Make shapes of arrays on the absent device."""
    topology = topologies.get_topology_desc(platform="cuda", topology="1x1x1", target_config=H200)
    there = jax.sharding.SingleDeviceSharding(topology.devices[0])
    return lambda *shape, dtype=jnp.float32: jax.ShapeDtypeStruct(shape, dtype, sharding=there)


@dataclass
class Loop:
    """A loop of a compiled program, or the program itself (one iteration)."""

    turns: int | None = 1  # None: the host checks the condition after every iteration
    kernels: list[float] = field(default_factory=list)  # seconds, as XLA estimates them
    names: list[str] = field(default_factory=list)
    inner: list[Loop] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Seconds of one iteration; a loop of unknown length counts as one iteration and a wait."""
        own = sum(max(s, LAUNCH) for s in self.kernels)
        return own + sum(loop.seconds * loop.turns if loop.turns else loop.seconds + WAIT for loop in self.inner)

    @property
    def launches(self) -> int:
        """Kernels of one iteration, with those of inner loops times their iterations."""
        return len(self.kernels) + sum(loop.launches * (loop.turns or 1) for loop in self.inner)

    @property
    def unknown(self) -> int:
        """Number of inner loops and branches that the host waits for."""
        return sum(loop.unknown + (loop.turns is None) for loop in self.inner)


@dataclass(frozen=True)
class Program:
    """Work of a compiled function on the device."""

    whole: Loop
    bytes_of_arguments: int
    bytes: int  # beyond arguments and results
    tf32: int  # instructions of tensor cores that round to TF32

    def figures(self) -> dict:
        """Figures for JSON; the loops are those of the program itself."""
        return {
            "kernels": len(self.whole.kernels),
            "launches": self.whole.launches,
            "kernels_of_a_turn": [loop.launches for loop in self.whole.inner],
            "modelled_ms": 1e3 * self.whole.seconds,
            "modelled_ms_of_a_turn": [1e3 * loop.seconds for loop in self.whole.inner],
            "loops_of_unknown_length": self.whole.unknown,
            "tf32_instructions": self.tf32,
            "bytes_of_arguments": self.bytes_of_arguments,
            "bytes": self.bytes,
        }


def compiled(function, *args) -> Program:
    """Compile a jitted function for shapes; other arguments are passed unchanged."""
    for old in glob.glob(f"{DUMP}/*"):
        os.unlink(old)
    done = function.lower(*args).compile(compiler_options={"xla_gpu_collect_cost_model_stats": True})
    memory, tf32 = done.memory_analysis(), 0
    for path in glob.glob(f"{DUMP}/*.ptx"):
        with open(path, encoding="utf-8") as file:
            tf32 += sum("tf32" in line and "mma" in line for line in file)
    return Program(read(done.as_text()), memory.argument_size_in_bytes, memory.temp_size_in_bytes, tf32)


def read(text: str) -> Loop:
    """Find loops and kernels in the text of an optimised module."""
    bodies, entry, name = {}, None, None
    for line in re.sub(r"/\*index=\d+\*/", "", text).splitlines():
        if start := re.match(r"(ENTRY )?%(\S+) \(.*\{\s*$", line):
            name, entry = start[2], start[2] if start[1] else entry
            bodies[name] = []
        elif name and (step := re.match(r"\s+(?:ROOT )?%(\S+) = (?:\([^=]*?\)|\S+) ([\w-]+)\(", line)):
            bodies[name].append((step[2], step[1], line))
    return _loop(bodies, entry, 1)


def _loop(bodies: dict, body: str, turns: int | None) -> Loop:
    loop = Loop(turns)
    for code, name, line in bodies.get(body, ()):
        if code == "while":
            known = re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line)
            inside = re.search(r"body=%([^\s,]+)", line)[1]
            loop.inner.append(_loop(bodies, inside, int(known[1]) if known else None))
        elif code == "conditional":  # the longest branch; the host reads which one
            given = re.search(r"branch_computations=\{([^}]*)\}|true_computation=(.*)", line)[0]
            branches = [_loop(bodies, part, None) for part in re.findall(r"%([^\s,}]+)", given) if part in bodies]
            loop.inner.append(max(branches, key=lambda branch: branch.seconds))
        elif code == "call":
            loop.inner.append(_loop(bodies, re.search(r"to_apply=%([^\s,]+)", line)[1], 1))
        elif code not in FREE and not code.endswith("-done"):
            loop.kernels.append(_seconds(bodies, line))
            loop.names.append(name)
    return loop


def _seconds(bodies: dict, line: str) -> float:
    """Seconds of a kernel by XLA's estimate; for updates in place, by the bytes touched."""
    cost = re.search(r'"reification_cost":\[\{[^}]*?"exec_time_us":([\d.e+-]+),"compute_time_us":([\d.e+-]+)', line)
    total, compute = (1e-6 * float(x) for x in cost.groups()) if cost else (0.0, 0.0)
    called = re.search(r"calls=%([^\s,]+)", line)
    body = bodies.get(called[1], []) if called else []
    root = next((text for _, _, text in body if " ROOT " in text), "")
    written = re.search(r" (scatter|dynamic-update-slice)\(([^)]*)\)", root)
    if not written:
        return total
    update = written[2].split(",")[2 if written[1] == "scatter" else 1].strip().lstrip("%")
    shape = next((re.search(r"= (\S+)", text)[1] for _, name, text in body if name == update), "")
    return min(total, compute + 3 * _bytes(shape) / BANDWIDTH)


def _bytes(shape: str) -> int:
    found = re.match(r"[a-z]+(\d*)\w*\[([\d,]*)\]", shape)
    if not found:
        return 0
    size = 1
    for n in (int(x) for x in found[2].split(",") if x):
        size *= n
    return size * max(1, int(found[1] or 8) // 8)
