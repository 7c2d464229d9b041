"""Scripts for sbatch: of an array job that shares a batch among its tasks, without Dask; options of jobs of workers."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

from ._environment import LIFETIME, MARGIN, SET_STARTED, lifetime_of, seconds_of
from ._plan import write_text

_OPTIONS = {"partition": "partition", "account": "account", "walltime": "time"}


def directive(option: str) -> str:
    """Return the line of a script that gives an option to sbatch, if it is a line."""
    control = re.search(r"[\x00-\x1f\x7f]", option)
    if control:
        why = f"its options are lines without control characters such as {control[0]!r}, after which commands could"
        raise ValueError(
            f"{option!r} was given to SLURM; {why} follow. Give it without, or rename the folder it names."
        )
    return f"#SBATCH {option}"


def log_file(folder: Path, name: str) -> str:
    """Path of a log as sbatch reads it: % stands for a number in the name, and for itself in the folder."""
    if "\\" in str(folder):
        advice = "SLURM takes names of logs without backslashes only. Rename the folder, or give another output folder."
        raise ValueError(f"{str(folder)!r} was given as the folder of logs; {advice}")
    return '"' + str(folder).replace("%", "%%").replace('"', '\\"') + f'/{name}"'


def write_array_script(manifest: Path, out: Path, script: Path, shards: int, name: str, slurm: dict, gpus: int) -> str:
    """Write a script for ``sbatch``, and return it: every task runs its share, and goes on with it when requeued."""
    walltime = slurm.get("walltime")
    lifetime = lifetime_of(walltime, MARGIN)
    job = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "batch"
    options = [f"--job-name=glmfit-{job}", f"--array=1-{shards}", "--requeue", "--open-mode=append"]
    options += ["--ntasks=1", "--cpus-per-task=1", f"--output={log_file(out / 'logs', '%A_%a.log')}"]
    # Before the limit the run is told to end: what it has written stays, what it was fitting is dropped.
    options.append(f"--signal=B:TERM@{MARGIN if lifetime is None else seconds_of(walltime) - lifetime:.0f}")
    options += [f"--{name}={slurm[given]}" for given, name in _OPTIONS.items() if slurm.get(given)]
    if slurm.get("memory"):  # "4GB" and "4 GiB" are "4G"
        memory = re.sub(r"\s*([KMGT])i?B?$", r"\1", str(slurm["memory"]).strip(), flags=re.IGNORECASE)
        options.append(f"--mem={memory.upper()}")
    if gpus:
        options.append("--gres=gpu:1")
    options += list(slurm.get("extra") or [])
    command = [sys.executable, "-m", "glmfit.batch", "run", str(manifest), "--out", str(out), "--scheduler", "serial"]
    command += ["--gpus", "1"] if gpus else []
    lines = ["#!/bin/bash", *map(directive, options), "set -e", SET_STARTED, *(slurm.get("prologue") or [])]
    lines += [] if lifetime is None else [f"export {LIFETIME}={lifetime:.0f}"]
    lines.append(f"cd {shlex.quote(str(Path.cwd()))}")
    lines.append(f'exec {shlex.join(command)} --shard "$SLURM_ARRAY_TASK_ID/{shards}"')
    text = "\n".join(lines) + "\n"
    (out / "logs").mkdir(parents=True, exist_ok=True)
    write_text(script, text)
    return text
