"""Command line: ``python -m glmfit.batch run | status | collect | retry | sbatch``."""

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path

from ..display import counted, one_line, printable
from .process import ENDING, SLURM_OPTIONS, default_out, machine_type, signals_noted, worker_environment

# Modules that import NumPy or jax are imported on use: both read the environment, which must be a worker's by then.

_BAD_INPUT, _INTERRUPTED = 2, 130
_BAD_PATH = FileNotFoundError | NotADirectoryError | IsADirectoryError | FileExistsError | PermissionError


def main(arguments: list[str] | None = None) -> int:
    """Run a command, by default that of the command line; return its exit code.

    0 if all is done, 1 if something failed or is missing, 2 for a bad manifest or bad arguments, 130 after Ctrl-C, 143
    after SIGTERM, 129 after SIGHUP.
    """
    _occupy_standard_streams()
    options = _parser().parse_args(arguments)
    try:
        with signals_noted():
            return options.command(options)
    except (ValueError, ImportError, RuntimeError, OSError) as error:
        kind = "" if hasattr(error, "problems") else "error: "  # lines of a manifest state their place
        print(printable(f"{kind}{error}"), file=sys.stderr)
        return _BAD_INPUT if isinstance(error, _BAD_PATH | ValueError) else 1
    except KeyboardInterrupt:
        print("stopped; completed fits are kept. Run the same command again to continue.", file=sys.stderr)
        return _INTERRUPTED
    except SystemExit as stop:
        if stop.code not in ENDING:
            raise
        told = f"terminated by {ENDING[stop.code]}; completed fits are kept. Run the same command again to continue."
        with contextlib.suppress(OSError):  # a terminal that is gone
            print(told, file=sys.stderr, flush=True)
        return stop.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m glmfit.batch", description="Fit every model to every session.")
    commands = parser.add_subparsers(required=True)
    for name, text in (("run", "run the missing fits"), ("retry", "run the missing and the failed fits")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(command=_run, retry=name == "retry")
        _add_shared(command)
        add = command.add_argument_group("where to work").add_argument
        add("--scheduler", help="local (processes, the default), serial, slurm, or a scheduler's address")
        add("--workers", type=_count, default=2, metavar="N", help="processes or jobs (%(default)s)")
        again = "how often a fit that ends its process is tried again (%(default)s)"
        add("--allowed-failures", type=partial(_count, least=0), default=2, metavar="N", help=again)
        add("--shard", type=_shard, metavar="I/N", help="run part I of N in this process")
        add("--quiet", action="store_true", help="no progress bar")
    collected = "write all results to one table and one netCDF file"
    for name, act, text in (("status", _status, "show the progress"), ("collect", _collect, collected)):
        command = commands.add_parser(name, help=text)
        command.set_defaults(command=act)
        command.add_argument("out", type=Path, metavar="DIR", help="output folder")
    command = commands.add_parser("sbatch", help="write a script for an array job")
    command.set_defaults(command=_sbatch)
    _add_shared(command)
    command.add_argument("--shards", type=_count, default=10, metavar="N", help="number of array tasks (%(default)s)")
    command.add_argument("--script", type=Path, metavar="FILE", help="script to write (DIR/array.sh)")
    return parser


def _add_shared(command: argparse.ArgumentParser) -> None:
    command.add_argument("manifest", type=Path, metavar="MANIFEST", help="TOML or JSON file")
    command.add_argument("--out", type=Path, metavar="DIR", help="output folder (MANIFEST_results)")
    gpus = "GPUs; one per worker or job (%(default)s)"
    command.add_argument("--gpus", type=partial(_count, least=0), default=0, metavar="N", help=gpus)
    add = command.add_argument_group("SLURM").add_argument
    add("--partition")
    add("--account")
    add("--walltime", metavar="H:MM:SS", help="walltime of a job")
    add("--memory", type=_memory, metavar="4GB", help="memory of a job")
    add("--sbatch-option", dest="extra", action="append", metavar="--OPTION=X", help="further option")
    add("--prologue", action="append", metavar="COMMAND", help="shell command before Python")
    add("--interface", metavar="ib0", help="network interface of scheduler and workers")
    add("--host", metavar="NAME", help="address of this machine as the nodes see it")


def _slurm(options: argparse.Namespace) -> dict:
    return {name: getattr(options, name) for name in SLURM_OPTIONS if getattr(options, name)}


def _run(options: argparse.Namespace) -> int:
    out = (options.out or default_out(options.manifest)).resolve()
    scheduler = options.scheduler or ("local" if options.shard is None else "serial")
    if options.shard is not None and scheduler != "serial":
        raise ValueError(f"--shard works in this process; remove --scheduler {scheduler}.")
    if scheduler == "serial" and not sys.modules.keys() & {"numpy", "jax"}:
        gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] if options.gpus else None
        os.environ.update(worker_environment(gpu=gpu, cache=out / "compiled" / machine_type()))
    from .runner import run

    given = {name: getattr(options, name) for name in ("workers", "gpus", "allowed_failures", "shard", "retry")}
    slurm, progress = _slurm(options), not options.quiet
    summary = run(options.manifest, out=out, scheduler=scheduler, slurm=slurm, progress=progress, **given)
    try:
        print(summary, flush=True)
    except OSError:  # a summary that cannot be read changes nothing
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
    return 0 if summary.ok else 1


def _occupy_standard_streams() -> None:
    """Open closed standard streams: the next files opened would be taken for them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal cannot show


def _status(options: argparse.Namespace) -> int:
    from .overview import status

    progress = status(options.out)
    print(progress)
    return 0 if progress.complete else 1


def _collect(options: argparse.Namespace) -> int:
    from .collected import collect

    found = collect(options.out)
    print(f"{counted(found.n_fits, 'fit')}, {counted(found.n_units, 'unit')}: {found.index} and {found.arrays}")
    if found.explained is not None:
        print(f"contributions of groups of features: {found.explained}")
    if found.n_absent:
        print(f"no result, and not included: {counted(found.n_absent, 'task')}", file=sys.stderr)
    for error in found.damaged:
        print(f"{one_line(error)} It is not included; run the manifest again to redo it.", file=sys.stderr)
    return 1 if found.n_absent or found.damaged else 0


def _sbatch(options: argparse.Namespace) -> int:
    from .at_work import RunLock, lock_of
    from .manifest import read_known
    from .plan import plan
    from .process import write_array_script
    from .results import make_folders

    out = (options.out or default_out(options.manifest)).resolve()
    manifest = read_known(options.manifest, out)
    make_folders(out)
    with RunLock(lock_of(out, None)):
        n_tasks = len(plan(manifest, out))  # so that the tasks of the array need not read all data
    script = options.script or out / "array.sh"
    shards = min(options.shards, n_tasks)
    write_array_script(manifest.path.resolve(), out, script, shards, manifest.name, _slurm(options), options.gpus)
    print(f"{counted(n_tasks, 'fit')} in {counted(shards, 'task')}: sbatch {shlex.quote(str(script))}")
    return 0


def _count(text: str, least: int = 1) -> int:
    if not text.isdigit() or int(text) < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
    return int(text)


def _memory(text: str) -> str:
    if not re.fullmatch(r"\d+\s*([KMGT]i?B?)?", text.strip(), flags=re.IGNORECASE):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number with a unit, for example 4GB or 512MB")
    return text if text.strip()[-1].isalpha() else f"{text.strip()}MB"  # as SLURM reads it


def _shard(text: str) -> tuple[int, int]:
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"{text!r} is not I/N with 1 <= I <= N, for example 3/40")
    return int(i), int(n)


if __name__ == "__main__":
    sys.exit(main())
