"""From a manifest to tasks, and what the output folder remembers of them."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import glmfit

from .._files import read_regular, whole_or_absent
from ._manifest import Manifest, read_again
from ._results import write_text
from ._sources import identify, stat_signature
from ._task import Task, check_key


def default_out(path: Path) -> Path:
    """Output folder of a manifest when none is named."""
    return path.resolve().with_name(f"{path.stem}_results")


def read_known(path: Path, out: Path) -> Manifest:
    """Read a manifest; the parameters of one that this version has planned in ``out`` are not checked again.

    Checking them takes importing the estimators, which takes longer than finding that all is done.
    """
    checked = None
    with contextlib.suppress(OSError, ValueError, AttributeError, RecursionError):
        listed = json.loads(read_regular(out / "tasks.json"))
        checked = listed.get("manifest") if listed.get("version") == glmfit.__version__ else None
    return read_again(path, checked)


def plan(manifest: Manifest, out: Path) -> list[Task]:
    """List the tasks of a manifest and write the list down; data are read only if they have changed since.

    Copies of the same data are one session.
    """
    cache = _IdentityCache(out / "identities.json")
    tasks = manifest.tasks(cache)
    cache.save()
    once: dict[str, Task] = {}
    for task in tasks:
        once.setdefault(task.key, task)
    tasks = [_with_stat(task, cache) for task in once.values()]
    write_plan(manifest, tasks, out)
    return tasks


def write_plan(manifest: Manifest, tasks: list[Task], out: Path) -> None:
    """Keep the list of tasks and a copy of the manifest in the output folder."""
    listed = [task.to_json() for task in tasks]
    about = {"manifest": manifest.digest, "version": glmfit.__version__, "name": manifest.name}
    write_text(out / "tasks.json", json.dumps(about | {"tasks": listed}))
    copy = out / f"manifest{manifest.path.suffix}"
    if manifest.path.resolve() != copy.resolve() or copy.is_symlink():
        with whole_or_absent(copy) as file:  # in place of a link, not through it
            file.write(manifest.path.read_bytes())


def read_plan(out: Path) -> list[Task]:
    """Read the list of tasks back; FileNotFoundError or ValueError if there is none, or it is damaged."""
    return _read_plan(out, Task.from_json)


def planned_keys(out: Path) -> list[str]:
    """Read the keys of the tasks alone, which take a tenth of the memory; raises as `read_plan`."""

    def lean(values: dict) -> Any:
        """Keep of a task its key, and of what is in it nothing."""
        return values if "tasks" in values else values.get("key")

    return _read_plan(out, check_key, object_hook=lean)


def _read_plan(out: Path, make: Callable[[Any], Any], **options: Any) -> list:
    path = Path(out) / "tasks.json"
    try:
        return [make(task) for task in json.loads(read_regular(path), **options)["tasks"]]
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{out} has no tasks.json: it is not the output folder of a batch, or no run has got as far as planning."
        ) from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); start the run again, it will be written anew.") from error


def share(tasks: list[Task], shard: tuple[int, int]) -> list[Task]:
    """Part i of n, i from 1: sessions are dealt out if there are enough of them, else tasks."""
    i, n = shard
    sessions = list(dict.fromkeys(task.session for task in tasks))
    if len(sessions) >= n:
        mine = set(sessions[i - 1 :: n])
        return [task for task in tasks if task.session in mine]
    return tasks[i - 1 :: n]


class _IdentityCache:
    """Identity of data, remembered as long as size and times of their files stay."""

    def __init__(self, path: Path):
        self._path, self._fresh = path, {}
        self._hashed: dict[str, list | None] = {}
        try:
            self._known = json.loads(read_regular(path))
        except (OSError, ValueError, RecursionError):
            self._known = {}
        if not isinstance(self._known, dict):
            self._known = {}

    def __call__(self, source: dict) -> str:
        signature = stat_signature(source)
        known = self._known.get(_name(source, signature))
        if not (isinstance(known, str) and re.fullmatch("[0-9a-f]{64}", known)):
            known, signature = identify(source)
        self._hashed[_name(source)] = signature
        if signature is not None:  # a loader's identity is the text of its module, and is quickly read
            self._fresh[_name(source, signature)] = known
        return known

    def files_of(self, source: dict) -> list | None:
        """Describe the files whose identity was given; empty if they could not be read, None for a loader."""
        return self._hashed.get(_name(source), [])

    def save(self) -> None:
        """Write down what was found out."""
        if self._fresh.keys() - self._known.keys():
            write_text(self._path, json.dumps(self._known | self._fresh))


def _name(source: dict, signature: list | None = None) -> str:
    return json.dumps({"source": source, "stat": signature}, sort_keys=True)


def _with_stat(task: Task, cache: _IdentityCache) -> Task:
    """Task that knows what its data were when they were hashed: a worker fits nothing else."""
    source = task.spec["source"]
    planned = {"identity": task.spec["identity"], "files": cache.files_of(source)}
    return replace(task, spec={**task.spec, "source": {**source, "planned": planned}})
