"""The environment of a process that fits: one thread per CPU worker, one GPU per GPU worker, a cache of programs."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

# BLAS libraries read these when they are loaded; jax's CPU client takes the number of its threads from NPROC when it is
# made (undocumented: tests/batch/test_environment.py measures it).
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def worker_environment(*, gpu: str | None = None, cache: str | os.PathLike | None = None) -> dict[str, str]:
    """Return the environment variables of one worker process.

    They have to be set before the process starts: jax reads most of them when it is imported. `gpu` is the number (or
    UUID) of the only GPU that the worker may use; without one it computes on the CPU. `cache` is a folder of compiled
    programs, shared by all workers of the same `machine_type`.
    """
    env = dict(ONE_THREAD)
    if gpu is None:
        env["JAX_PLATFORMS"] = "cpu"
    else:
        # A GPU worker that finds no GPU must fail and not quietly compute on the CPU.
        env["JAX_PLATFORMS"] = "cuda,cpu"
        env["CUDA_VISIBLE_DEVICES"] = str(gpu)
    if cache is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = os.fspath(Path(cache).absolute())
        # By default jax keeps only programs that took more than a second to compile; a fit has many smaller ones.
        env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        env["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    return env


def import_path() -> str:
    """Join the places where this process finds modules, so that a worker finds the user's own loaders too."""
    return os.pathsep.join(dict.fromkeys(str(Path(place).absolute()) for place in sys.path))


def visible_gpus(n_gpus: int) -> list[str]:
    """Name the first GPUs that this process may use, as CUDA_VISIBLE_DEVICES wants them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(n_gpus)] if given is None else [name for name in given.split(",") if name.strip()]
    if len(names) < n_gpus:
        raise ValueError(
            f"{n_gpus} GPUs were asked for, but CUDA_VISIBLE_DEVICES={given!r} lists {len(names)}; "
            "ask for fewer, or make more of them visible"
        )
    return [name.strip() for name in names[:n_gpus]]


def _cpu_flags() -> str:
    """Name the instruction sets of the CPU, sorted, or what the system says instead."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            for line in lines:
                name, _, value = line.partition(":")
                if name.strip() in ("flags", "Features"):
                    return " ".join(sorted(value.split()))
    except OSError:
        pass
    return platform.processor()


def machine_type() -> str:
    """Return a short name for the kind of this machine, such as "x86_64-0a1b2c3d4e".

    It hashes architecture, instruction sets and version of jaxlib: a program that was compiled on one kind of machine
    may stop with an illegal instruction on another, or give results that differ in the last bits, so that each kind has
    its own folder of compiled programs.
    """
    what = "\n".join((platform.machine(), _cpu_flags(), metadata.version("jaxlib")))
    return f"{platform.machine()}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"
