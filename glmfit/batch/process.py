"""Processes that fit: threads, one GPU or none, compiled programs, lifetime, signals; scripts for sbatch."""

import contextlib
import functools
import hashlib
import os
import platform
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

# BLAS libraries read these when they are loaded; jax's CPU client takes the number of its threads from NPROC when it is
# made (undocumented: tests/batch/test_process.py measures it).
ONE_THREAD = {"NPROC": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

_OPTIONS = {"partition": "partition", "account": "account", "walltime": "time"}
SLURM_OPTIONS = ("partition", "account", "walltime", "memory", "interface", "host", "extra", "prologue")
LIFETIME = "GLMFIT_BATCH_LIFETIME"  # seconds that a process may run, in jobs with a walltime
STARTED = "GLMFIT_BATCH_STARTED"  # when its job began, in seconds since 1970
SET_STARTED = f"export {STARTED}=$(date +%s)"
NEEDS_GPU = "GLMFIT_BATCH_GPU"  # set in a process that must find a GPU
MARGIN = 60.0  # seconds before its walltime at which a job is told to end, or a tenth of it if that is less


def default_out(path: Path) -> Path:
    return path.resolve().with_name(f"{path.stem}_results")


def worker_environment(*, gpu: str | None = None, cache: str | os.PathLike | None = None) -> dict[str, str]:
    """Return the environment of a process that fits, on one GPU (number or UUID) or none; NumPy and jax read it."""
    env = ONE_THREAD | {"JAX_PLATFORMS": "cpu"}
    if gpu is not None:
        env |= {NEEDS_GPU: "1", "JAX_PLATFORMS": "cuda,cpu", "CUDA_VISIBLE_DEVICES": str(gpu)}
    if cache is not None:
        env["JAX_COMPILATION_CACHE_DIR"] = os.fspath(Path(cache).absolute())
        # By default jax keeps only programs that took more than a second to compile; a fit has many smaller ones.
        env["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        env["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    return env


def visible_gpus(n_gpus: int) -> list[str]:
    """Name the first GPUs that this process may use, as CUDA_VISIBLE_DEVICES expects them."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = map(str, range(n_gpus)) if given is None else given.split(",")
    names = [name.strip() for name in names if name.strip()]
    if len(names) < n_gpus:
        advice = f"lists {len(names)}; request fewer, or make more of them visible"
        raise ValueError(f"{n_gpus} GPUs were requested, but CUDA_VISIBLE_DEVICES={given!r} {advice}")
    return names[:n_gpus]


def machine_type() -> str:
    """Return a short name for architecture, instruction sets and jaxlib of this machine, like "x86_64-0a1b2c3d4e".

    A program compiled on another kind of machine may stop with an illegal instruction, or differ in the last bits.
    """
    found = None
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.M)
    instructions = " ".join(sorted(found[1].split())) if found else platform.processor()
    what = "\n".join((platform.machine(), instructions, metadata.version("jaxlib")))
    return f"{platform.machine()}-{hashlib.sha256(what.encode()).hexdigest()[:10]}"


def seconds_of(walltime: str | int) -> float:
    """Convert a time of SLURM to seconds: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(walltime).strip())
    if match is None:
        raise ValueError(f"walltime={walltime!r} was given; write it as 'HH:MM:SS' or 'D-HH:MM:SS'")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is None and len(numbers) < 3:  # minutes, and seconds
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return 86400.0 * int(days or 0) + 3600.0 * hours + 60.0 * minutes + seconds


def lifetime_of(walltime: str | float | None, margin: float) -> float | None:
    """Seconds after which a process ends: `margin`, or a tenth if less, before the walltime; None without one, or 0."""
    seconds = seconds_of(walltime) if isinstance(walltime, str | int) and walltime else float(walltime or 0.0)
    return seconds - min(margin, 0.1 * seconds) if seconds else None


# -- Ctrl-C, SIGTERM and SIGHUP: distinguished from similar errors of a loader, and never lost

_noted: list[int] = []  # received signals
_handled: dict[int, object] = {}  # the signals that are noted at present, and their previous handlers
_ALARM = getattr(signal, "SIGALRM", None)
_AGAIN_S = 0.01  # after which a stop that Python dropped is raised again
ENDING = {143: "SIGTERM", 128 + getattr(signal, "SIGHUP", 1): "SIGHUP"}  # exit codes of an orderly end


def is_stopped() -> bool:
    return bool(_noted)


def stop() -> NoReturn:
    """Raise the exception of a signal again if it was caught: KeyboardInterrupt for Ctrl-C, else SystemExit."""
    if not _noted:
        _noted.append(signal.SIGINT)
    raise SystemExit(128 + _noted[-1]) if 128 + _noted[-1] in ENDING else KeyboardInterrupt


def stop_if_told() -> None:
    """Stop here if a signal came earlier, and its exception was caught."""
    if is_stopped():
        stop()


@contextlib.contextmanager
def signals_noted() -> Iterator[None]:
    """Note SIGINT, SIGTERM and SIGHUP before their handlers run; the last two end the process in order.

    After a signal its exception is raised, even if other code turned it into another error: it may come in the middle
    of an import or of a read, whose errors are caught and reported differently. In threads other than the main one
    there are no signals; a nested one of these contexts adds nothing.
    """
    if _handled or threading.current_thread() is not threading.main_thread():
        if _handled:
            stop_if_told()
        yield
        return
    _noted.clear()
    numbers = (signal.SIGINT, *(code - 128 for code in ENDING))
    before = {number: signal.getsignal(number) for number in numbers if number in signal.valid_signals()}
    _handled.update({number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)})
    hook, sys.unraisablehook = sys.unraisablehook, functools.partial(_raise_again, sys.unraisablehook)
    try:
        for number in _handled:
            signal.signal(number, _note)
        yield
    except Exception:
        stop_if_told()
        raise
    finally:
        sys.unraisablehook = hook
        if _ALARM in _handled:
            signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in _handled.items():
            signal.signal(number, handler)
        _handled.clear()
        _noted.clear()


def _note(number: int, frame: FrameType | None) -> None:
    """Note a signal, and raise its exception; an alarm stands for the last signal that was dropped."""
    if number != _ALARM:
        _noted.append(number)
    if _is_in(frame, _raise_again):  # an exception there is also dropped: the alarm is still to come
        return
    if _ALARM in _handled:
        signal.setitimer(signal.ITIMER_REAL, 0)
    handler = _handled.get(_noted[-1])
    if callable(handler):
        handler(_noted[-1], frame)
    stop()


def _is_in(frame: FrameType | None, function: Callable) -> bool:
    while frame is not None and frame.f_code is not function.__code__:
        frame = frame.f_back
    return frame is not None


def _raise_again(hook: Callable[[Any], object], unraisable: Any) -> None:
    """Raise a stop again that Python drops, such as in callbacks of its garbage collector: jax has one."""
    is_stop = is_stopped() and isinstance(unraisable.exc_value, KeyboardInterrupt | SystemExit)
    if not is_stop or threading.current_thread() is not threading.main_thread():
        hook(unraisable)
        return
    before = signal.signal(_ALARM, _note)
    _handled.setdefault(_ALARM, before)
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S, _AGAIN_S)


# -- scripts for sbatch: an array job that distributes a batch over its tasks, without Dask; options of worker jobs


def directive(option: str) -> str:
    """Return the script line that gives an option to sbatch; ValueError unless it is one line."""
    control = re.search(r"[\x00-\x1f\x7f]", option)
    if control:
        why = f"its options are lines without control characters such as {control[0]!r}, after which commands could"
        raise ValueError(
            f"{option!r} was given to SLURM; {why} follow. Give it without, or rename the folder it names."
        )
    return f"#SBATCH {option}"


def log_file(folder: Path, name: str) -> str:
    """Return the path of a log as sbatch reads it: % stands for a number in the name, and for itself in the folder."""
    if "\\" in str(folder):
        advice = "SLURM takes names of logs without backslashes only. Rename the folder, or give another output folder."
        raise ValueError(f"{str(folder)!r} was given as the folder of logs; {advice}")
    return '"' + str(folder).replace("%", "%%").replace('"', '\\"') + f'/{name}"'


def write_array_script(manifest: Path, out: Path, script: Path, shards: int, name: str, slurm: dict, gpus: int) -> str:
    """Write a script for ``sbatch``, and return it: every task runs its share, and continues it when requeued."""
    walltime = slurm.get("walltime")
    lifetime = lifetime_of(walltime, MARGIN)
    job = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "batch"
    options = [f"--job-name=glmfit-{job}", f"--array=1-{shards}", "--requeue", "--open-mode=append"]
    options += ["--ntasks=1", "--cpus-per-task=1", f"--output={log_file(out / 'logs', '%A_%a.log')}"]
    # Before the limit the run is told to end: written results stay, the current fit is dropped.
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
    from .plan import write_text  # which imports NumPy

    (out / "logs").mkdir(parents=True, exist_ok=True)
    write_text(script, text)
    return text
