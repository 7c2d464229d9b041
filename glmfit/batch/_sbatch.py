"""An array job that shares a batch among its tasks, without Dask."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from ._attempts import LIFETIME, MARGIN, SET_STARTED
from ._directives import directive, lifetime_of, log_file, seconds_of
from ._results import write_text

_OPTIONS = {"partition": "partition", "account": "account", "walltime": "time"}


def write_array_script(manifest: Path, out: Path, script: Path, shards: int, name: str, slurm: dict, gpus: int) -> str:
    """Write a script for ``sbatch``; return it.

    Every task of the array runs its share of the fits. A task that is requeued, or the whole script submitted again,
    goes on with what is missing.
    """
    walltime = slurm.get("walltime")
    lifetime = lifetime_of(walltime, MARGIN)
    options = [f"--job-name={_job_name(name)}", f"--array=1-{shards}", "--requeue", "--open-mode=append"]
    options += ["--ntasks=1", "--cpus-per-task=1", f"--output={log_file(out / 'logs', '%A_%a.log')}"]
    # Before the limit the run is told to end: what it has written stays, what it was fitting is dropped.
    options.append(f"--signal=B:TERM@{MARGIN if lifetime is None else seconds_of(walltime) - lifetime:.0f}")
    options += [f"--{name}={slurm[given]}" for given, name in _OPTIONS.items() if slurm.get(given)]
    if slurm.get("memory"):
        options.append(f"--mem={_slurm_memory(slurm['memory'])}")
    if gpus:
        options.append("--gres=gpu:1")
    options += list(slurm.get("extra") or [])
    command = [sys.executable, "-m", "glmfit.batch", "run", str(manifest), "--out", str(out), "--scheduler", "serial"]
    command += ["--gpus", "1"] if gpus else []
    lines = ["#!/bin/bash", *map(directive, options), "set -e"]
    lines += [SET_STARTED, *(slurm.get("prologue") or [])]
    if lifetime is not None:
        lines.append(f"export {LIFETIME}={lifetime:.0f}")
    lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    lines.append(f'exec {shlex.join(command)} --shard "$SLURM_ARRAY_TASK_ID/{shards}"')
    text = "\n".join(lines) + "\n"
    (out / "logs").mkdir(parents=True, exist_ok=True)
    write_text(script, text)
    return text


def _job_name(name: str) -> str:
    return "glmfit-" + (re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "batch")


def _slurm_memory(memory: str) -> str:
    """Memory as SLURM writes it: "4GB" and "4 GiB" are "4G"."""
    return re.sub(r"\s*([KMGT])i?B?$", r"\1", str(memory).strip(), flags=re.IGNORECASE).upper()
