"""Importable functions that the tests of the engines run on workers, some of them harmful."""

import os
import signal
import time
from pathlib import Path


def echo(task):
    return {"key": task, "pid": os.getpid()}


def nap(task):
    number, seconds = task
    time.sleep(seconds)
    return {"key": number, "pid": os.getpid()}


def look_around(_):
    return {name: os.environ.get(name) for name in ("CUDA_VISIBLE_DEVICES", "JAX_PLATFORMS", "SLURM_JOB_GPUS")}


def fail(task):
    raise FileNotFoundError(f"task {task} finds nothing")


def perform(task):
    """Perform a task: ("echo", n), ("poison", n), ("nap", n, seconds), ("kill once", n, file)."""
    what, number, *rest = task
    if what == "poison":
        os._exit(3)
    if what == "nap":
        time.sleep(rest[0])
    if what == "kill once" and not Path(rest[0]).exists():
        Path(rest[0]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return {"key": number, "pid": os.getpid()}


def cpu_per_wall(_):
    """CPU seconds per second of work that uses every core unless it is limited."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    product = jax.jit(lambda a: (a @ a).sum())
    on_device, on_host = jnp.ones((1500, 1500)), np.ones((1500, 1500), np.float32)
    product(on_device).block_until_ready()
    wall, cpu = time.perf_counter(), time.process_time()
    while time.perf_counter() - wall < 1.5:
        product(on_device).block_until_ready()
        on_host @ on_host
    return {"ratio": (time.process_time() - cpu) / (time.perf_counter() - wall), "platform": jax.default_backend()}
