"""Command line: ``python -m glmfit demo`` and ``python -m glmfit info``."""

import argparse
import os
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from . import __version__

_REQUIRED = ("jax", "jaxlib", "equinox", "numpy", "scipy", "scikit-learn", "pynapple")
_OPTIONAL = ("matplotlib", "nitime", "nemos", "distributed")


def main(arguments: list[str] | None = None) -> int:
    """Run a command; the exit code is 1 if an extra is missing or the folder of the figures is not writable."""
    parser = argparse.ArgumentParser(prog="python -m glmfit", description="Certified GLMs of spikes and labels.")
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser("demo", help="fit a real recording and a simulated population, and draw both")
    demo.add_argument("--out", type=Path, default=Path("glmfit_demo"), help="folder for the figures (%(default)s)")
    demo.add_argument("--seed", type=int, default=0, help="seed of the simulation and the fit (%(default)s)")
    commands.add_parser("info", help="versions and devices, for bug reports")
    options = parser.parse_args(arguments)
    if options.command == "info":
        print(info())
        return 0
    from . import demo as demo_module
    from .checks import MissingExtra

    if options.seed < 0:
        parser.error(f"--seed is {options.seed}; it must be at least 0")
    try:
        demo_module.run(options.out, seed=options.seed)
        return 0
    except MissingExtra as error:
        said = error
    except BrokenPipeError:  # nobody reads what is printed
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        said = f"--out {options.out}: {error.strerror or error}; choose a writable folder."
    print(said, file=sys.stderr)
    return 1


def info() -> str:
    """Return versions of glmfit and its dependencies, devices and precision, one line each."""
    import jax
    import numpy as np

    x64 = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    devices = ", ".join(f"{d.platform}:{d.id} ({d.device_kind})" for d in jax.devices())
    lines = [f"glmfit {__version__}", f"python {platform.python_version()} on {platform.platform()}"]
    lines += [f"{name} {_version(name)}" for name in _REQUIRED]
    lines += [f"{name} {_version(name)} (optional)" for name in _OPTIONAL]
    lines += [f"jax devices: {devices}", f"jax x64 mode: {'on' if x64 else 'off'}"]
    return "\n".join(lines)


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


if __name__ == "__main__":
    sys.exit(main())
