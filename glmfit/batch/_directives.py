"""What sbatch reads of a script before its commands, and how long the job may work."""

from __future__ import annotations

import re
from pathlib import Path


def directive(option: str) -> str:
    """Return the line of a script that gives an option to sbatch, if it is a line."""
    control = re.search(r"[\x00-\x1f\x7f]", option)
    if control:
        raise ValueError(
            f"{option!r} was given to SLURM; its options are lines without control characters such as {control[0]!r}, "
            "after which commands could follow. Give it without, or rename the folder that has it."
        )
    return f"#SBATCH {option}"


def log_file(folder: Path, name: str) -> str:
    """Path of a log as sbatch reads it: % stands for a number in the name, and for itself in the folder."""
    if "\\" in str(folder):
        raise ValueError(
            f"{str(folder)!r} was given as the folder of logs; SLURM takes names of logs without backslashes only. "
            "Rename the folder, or give another output folder."
        )
    return '"' + str(folder).replace("%", "%%").replace('"', '\\"') + f'/{name}"'


def seconds_of(walltime: str | int) -> float:
    """Seconds of a time as SLURM writes it: minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM or D-HH:MM:SS."""
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", str(walltime).strip())
    if match is None:
        raise ValueError(f"walltime={walltime!r} was given; write it as 'HH:MM:SS' or 'D-HH:MM:SS'")
    days, *parts = match.groups()
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return 86400.0 * int(days) + 3600.0 * hours + 60.0 * minutes + seconds
    hours, minutes, seconds = {1: [0, *numbers, 0], 2: [0, *numbers], 3: numbers}[len(numbers)]
    return 3600.0 * hours + 60.0 * minutes + seconds


def lifetime_of(walltime: str | float | None, margin: float) -> float | None:
    """Seconds after which a process ends: `margin`, or a tenth if that is less, before the walltime.

    None without a walltime; SLURM reads 0 as none.
    """
    seconds = seconds_of(walltime) if isinstance(walltime, str | int) and walltime else float(walltime or 0.0)
    return seconds - min(margin, 0.1 * seconds) if seconds else None
