"""Command line: ``python -m glmfit.batch run | status | collect | retry | sbatch``."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import sys
from pathlib import Path

from .._display import one_line, printable
from ._environment import machine_type, worker_environment
from ._lock import BusyFolder, RunLock, lock_of
from ._manifest import ManifestError
from ._plan import default_out, plan, read_known, read_plan, share
from ._results import failure_path, make_folders, result_path
from ._run import Summary, look, run
from ._sbatch import write_array_script
from ._stop import ENDING, signals_noted

_READY = "GLMFIT_BATCH_ENVIRONMENT"
_BAD_INPUT, _INTERRUPTED = 2, 130
_BAD_PATH = FileNotFoundError | NotADirectoryError | IsADirectoryError | FileExistsError | PermissionError


def main(arguments: list[str] | None = None) -> int:
    """Run a command.

    Parameters
    ----------
    arguments : list of str, optional
        Default: those of the command line.

    Returns
    -------
    int
        Exit code: 0 if all is done, 1 if something failed or is missing, 2 for a bad manifest or bad arguments, 130
        after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP.
    """
    _occupy_standard_streams()
    options = _parser().parse_args(arguments)
    try:
        with signals_noted():
            return options.command(options)
    except ManifestError as error:
        print(error, file=sys.stderr)
        return _BAD_INPUT
    except (BusyFolder, ValueError, ImportError, RuntimeError, OSError) as error:
        text = f"{type(error).__name__ if isinstance(error, OSError) else 'error'}: {error}"
        print(printable(text), file=sys.stderr)
        return _BAD_INPUT if isinstance(error, _BAD_PATH | ValueError) else 1
    except KeyboardInterrupt:
        print("stopped; what was done stays. Run the same command again to go on.", file=sys.stderr)
        return _INTERRUPTED
    except SystemExit as stop:
        if stop.code not in ENDING:
            raise
        told = f"told to end ({ENDING[stop.code]}); what was done stays. Run the same command again to go on."
        with contextlib.suppress(OSError):  # a terminal that is gone
            print(told, file=sys.stderr, flush=True)
        return stop.code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m glmfit.batch", description="Fit every model to every session.")
    commands = parser.add_subparsers(required=True)
    for name, text in (("run", "do what is missing"), ("retry", "do what is missing, and what failed, again")):
        command = commands.add_parser(name, help=text)
        command.set_defaults(command=_run, retry=name == "retry")
        _add_manifest(command)
        where = command.add_argument_group("where to work")
        where.add_argument(
            "--scheduler", default=None, help="local (processes, the default), serial, slurm, or a scheduler's address"
        )
        where.add_argument("--workers", type=_count, default=2, metavar="N", help="processes or jobs (%(default)s)")
        where.add_argument(
            "--allowed-failures",
            type=_none_or_more,
            default=2,
            metavar="N",
            help="how often a fit that ends its process is tried again (%(default)s)",
        )
        where.add_argument("--shard", type=_shard, metavar="I/N", help="do part I of N, in this process")
        where.add_argument("--quiet", action="store_true", help="no progress bar")
        _add_slurm(command)
    command = commands.add_parser("status", help="how far it is")
    command.set_defaults(command=_status)
    command.add_argument("out", type=Path, metavar="DIR", help="output folder")
    command = commands.add_parser("collect", help="put all results into one table and one netCDF file")
    command.set_defaults(command=_collect)
    command.add_argument("out", type=Path, metavar="DIR", help="output folder")
    command = commands.add_parser("sbatch", help="write a script for an array job")
    command.set_defaults(command=_sbatch)
    _add_manifest(command)
    command.add_argument("--shards", type=_count, default=10, metavar="N", help="tasks of the array (%(default)s)")
    command.add_argument("--script", type=Path, metavar="FILE", help="where to (DIR/array.sh)")
    _add_slurm(command)
    return parser


def _add_manifest(command: argparse.ArgumentParser) -> None:
    command.add_argument("manifest", type=Path, metavar="MANIFEST", help="TOML or JSON file")
    command.add_argument("--out", type=Path, metavar="DIR", help="output folder (MANIFEST_results)")


def _add_slurm(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--gpus", type=_none_or_more, default=0, metavar="N", help="GPUs; one per worker or job (%(default)s)"
    )
    group = command.add_argument_group("SLURM")
    group.add_argument("--partition")
    group.add_argument("--account")
    group.add_argument("--walltime", metavar="H:MM:SS", help="of a job")
    group.add_argument("--memory", type=_memory, metavar="4GB", help="of a job")
    group.add_argument("--sbatch-option", action="append", default=[], metavar="--OPTION=X", help="further option")
    group.add_argument("--prologue", action="append", default=[], metavar="COMMAND", help="shell command before Python")
    group.add_argument("--interface", metavar="ib0", help="network interface of scheduler and workers")
    group.add_argument("--host", metavar="NAME", help="this machine's address as the nodes see it, in place of it")


def _slurm(options: argparse.Namespace) -> dict:
    names = ("partition", "account", "walltime", "memory", "prologue", "interface", "host")
    given = {name: getattr(options, name) for name in names} | {"extra": options.sbatch_option}
    return {name: value for name, value in given.items() if value}


def _run(options: argparse.Namespace) -> int:
    out = (options.out or default_out(options.manifest)).resolve()
    scheduler = options.scheduler or ("local" if options.shard is None else "serial")
    if options.shard is not None and scheduler != "serial":
        raise ValueError(f"--shard works in this process; leave --scheduler {scheduler} out.")
    here = scheduler == "serial" and _READY not in os.environ
    if here and options.manifest.is_file() and _is_missing(out, options.shard):
        return _start_again(out, options.gpus)  # at once: what is to be done is looked up there
    manifest = read_known(options.manifest, out)
    if here:
        make_folders(out)
        with RunLock(lock_of(out, options.shard)):
            book = look(manifest, out, options.shard, options.retry)
        return _start_again(out, options.gpus) if book.todo else _end(book.summary())
    summary = run(
        manifest,
        out=out,
        scheduler=scheduler,
        workers=options.workers,
        gpus=options.gpus,
        slurm=_slurm(options),
        allowed_failures=options.allowed_failures,
        shard=options.shard,
        retry=options.retry,
        progress=not options.quiet,
    )
    return _end(summary)


def _end(summary: Summary) -> int:
    """Print a summary; one that cannot be read changes nothing."""
    try:
        print(summary, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # Python writes what is left when it ends
    return 0 if summary.ok else 1


def _is_missing(out: Path, shard: tuple[int, int] | None) -> bool:
    """Whether a result that was planned is not there, or nothing is known of a plan."""
    try:
        tasks = read_plan(out)
    except (OSError, ValueError):
        return True
    tasks = tasks if shard is None else share(tasks, shard)
    return any(not (result_path(out, t.key).exists() or failure_path(out, t.key).exists()) for t in tasks)


def _occupy_standard_streams() -> None:
    """Open what is closed of stdin, stdout and stderr: the next files opened would be taken for them."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout, sys.stderr = (stream or open(os.devnull, "w") for stream in (sys.stdout, sys.stderr))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # names that the terminal cannot show


def _start_again(out: Path, gpus: int) -> int:
    """Become the same command in the environment of a worker, which must be there before jax and NumPy are imported."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0] if gpus else None
    environment = worker_environment(gpu=gpu, cache=str(out / "compiled" / machine_type()))
    sys.stdout.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **environment, _READY: "1"})


def _status(options: argparse.Namespace) -> int:
    from ._progress import status

    progress = status(options.out)
    print(progress)
    return 0 if progress.complete else 1


def _collect(options: argparse.Namespace) -> int:
    from ._collect import collect

    found = collect(options.out)
    print(f"{found.n_fits} fits, {found.n_units} units: {found.index} and {found.arrays}")
    if found.n_absent:
        print(f"{found.n_absent} tasks have no result and are not in them", file=sys.stderr)
    for error in found.damaged:
        print(f"{one_line(error)} It is not in them; run the manifest again, which redoes it.", file=sys.stderr)
    return 1 if found.n_absent or found.damaged else 0


def _sbatch(options: argparse.Namespace) -> int:
    out = (options.out or default_out(options.manifest)).resolve()
    manifest = read_known(options.manifest, out)
    make_folders(out)
    with RunLock(lock_of(out, None)):
        n_tasks = len(plan(manifest, out))  # so that the tasks of the array need not look at all data
    script = options.script or out / "array.sh"
    shards = min(options.shards, n_tasks)
    write_array_script(manifest.path.resolve(), out, script, shards, manifest.name, _slurm(options), options.gpus)
    print(f"{n_tasks} fits in {shards} tasks: sbatch {shlex.quote(str(script))}")
    return 0


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _none_or_more(text: str) -> int:
    return 0 if text == "0" else _count(text)


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
