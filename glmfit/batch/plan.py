"""Tasks: fits to run, each named by a hash of its content, and their list in the output folder."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import glmfit

from ..checks import warn_user
from ..display import counted
from ..files import DAMAGED, read_regular, whole_or_absent
from .sources import digest, identify, stat_signature

if TYPE_CHECKING:
    from .manifest import Manifest

_FORMAT = 1
_NAMED = 3  # copies in a message
_HASHED = ("estimator", "parameters", "design", "seed", "precision", "explain", "score")  # the last two if given


@dataclass(frozen=True)
class Task:
    """One fit: a model on a session.

    Attributes
    ----------
    key : str
        20 hexadecimal digits; the same for the same configuration and data, whatever their names.
    session, model : str
        Names, such as "track/rat1" and "place[regularizer_strength=0.001]".
    spec : dict
        JSON values only: estimator, parameters, design, source, identity of the data, seed, precision; explain and
        score if the manifest has them.
    """

    key: str
    session: str
    model: str
    spec: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the task as JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Task:
        """Make the task of `to_json`; ValueError, TypeError or KeyError if the values are not a task."""
        task = cls(_check_key(values["key"]), values["session"], values["model"], values["spec"])
        if not (isinstance(task.session, str) and isinstance(task.model, str) and isinstance(task.spec, dict)):
            raise ValueError("a session or model without a name, or without a specification")
        return task


class Receipt(NamedTuple):
    """Report on a task: numbers and strings, never its arrays.

    Attributes
    ----------
    key, session, model : str
        Key and names of the task.
    state, seconds : {"done", "found", "failed"}, float
        "found": done before; time from the start of loading to the end of writing.
    error, worker : str or None, str
        Error of a failed task; host and process.
    unwritten, warned : bool
        Whether it failed because the output folder cannot be written to; whether its fit warned.
    """

    key: str
    session: str
    model: str
    state: str
    seconds: float = 0.0
    error: str | None = None
    worker: str = ""
    unwritten: bool = False
    warned: bool = False


def key_of(spec: dict[str, Any]) -> str:
    """Hash the content of a task; the places of its data are not part of it."""
    facts = {name: spec[name] for name in _HASHED if name in spec}
    return digest({"format": _FORMAT, "data": spec["identity"], **facts})[:20]


def _check_key(key: Any) -> str:
    """Return a key; ValueError unless it is valid, and so usable as a file name."""
    if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{20}", key)):
        raise ValueError(f"{str(key)[:40]!r} is not a key of a task, which has 20 hexadecimal digits")
    return key


def plan(manifest: Manifest, out: Path) -> list[Task]:
    """List the tasks of a manifest and write the list to a file; data are read only if they have changed since.

    Copies of the same data are one session. Every task records the state of its data when they were hashed: a worker
    fits nothing else. Raises ManifestError if the ranges of bases fit no data, unless this version has planned the
    manifest here before.
    """
    if planned_digest(out) != manifest.digest:
        from .ranges import check_ranges  # imports what makes bases

        check_ranges(manifest)
    cache = _IdentityCache(out / "identities.json")
    every = manifest.tasks(cache)
    first = {task.key: task for task in reversed(every)}
    tasks = list(first.values())[::-1]
    copies = {task.session: first[task.key].session for task in every if first[task.key].session != task.session}
    if copies:
        some = ", ".join(f'"{copy}" of "{of}"' for copy, of in list(copies.items())[:_NAMED])
        warn_user(f"{counted(len(copies), 'session')} with the data of another will not be fitted again: {some}.")
    cache.save()
    for spec in (task.spec for task in tasks):
        planned = {"identity": spec["identity"], "files": cache.hashed.get(_name(spec["source"]), [])}
        spec["source"] = {**spec["source"], "planned": planned}
    write_plan(manifest, tasks, out)
    return tasks


class _IdentityCache:
    """Identities of data, cached in a file as long as size and times of the data's files stay the same."""

    def __init__(self, path: Path):
        self._path, self._fresh, self._known = path, {}, {}
        self.hashed: dict[str, list | None] = {}  # source -> files as they were hashed, None for a loader
        with contextlib.suppress(*DAMAGED):
            self._known = dict(json.loads(read_regular(path)))

    def __call__(self, source: dict) -> str:
        signature = stat_signature(source)
        known = self._known.get(_name(source, signature))
        if not (isinstance(known, str) and re.fullmatch("[0-9a-f]{64}", known)):
            known, signature = identify(source)
        self.hashed[_name(source)] = signature
        if signature is not None:  # a loader's identity is the text of its module, which is quick to read
            self._fresh[_name(source, signature)] = known
        return known

    def save(self) -> None:
        if self._fresh.keys() - self._known.keys():
            write_text(self._path, json.dumps(self._known | self._fresh))


def _name(source: dict, signature: list | None = None) -> str:
    return json.dumps({"source": source, "stat": signature}, sort_keys=True)


def planned_digest(out: Path) -> str | None:
    """Return the digest of the manifest that this version has planned in a folder, if there is one."""
    with contextlib.suppress(*DAMAGED):
        listed = json.loads(read_regular(out / "tasks.json"))
        return listed.get("manifest") if listed.get("version") == glmfit.__version__ else None
    return None


def write_plan(manifest: Manifest, tasks: list[Task], out: Path) -> None:
    """Keep the list of tasks and a copy of the manifest in the output folder."""
    about: dict[str, Any] = {"manifest": manifest.digest, "version": glmfit.__version__, "name": manifest.name}
    write_text(out / "tasks.json", json.dumps(about | {"tasks": [task.to_json() for task in tasks]}))
    copy = out / f"manifest{manifest.path.suffix}"
    if manifest.path.resolve() != copy.resolve() or copy.is_symlink():
        with whole_or_absent(copy) as file:  # replace a link, do not write through it
            file.write(manifest.path.read_bytes())


def write_text(path: Path, text: str) -> None:
    with whole_or_absent(path) as file:
        file.write(text.encode())


def read_plan(out: Path) -> list[Task]:
    """Read the list of tasks back; FileNotFoundError or ValueError if there is none, or it is damaged."""
    return _read_plan(out, Task.from_json)


def planned_keys(out: Path) -> list[str]:
    """Read only the keys of the tasks, which take a tenth of the memory; raise as `read_plan`."""
    return _read_plan(out, _check_key, lambda values: values if "tasks" in values else values.get("key"))


def _read_plan(out: Path, make: Callable[[Any], Any], of_each: Callable[[dict], Any] | None = None) -> list:
    path = out / "tasks.json"
    try:
        return [make(task) for task in json.loads(read_regular(path), object_hook=of_each)["tasks"]]
    except FileNotFoundError:
        why = "it is not the output folder of a batch, or no run has planned its fits yet."
        raise FileNotFoundError(f"{out} has no tasks.json: {why}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({error}); start the run again, which rewrites it.") from error


def share(tasks: list[Task], shard: tuple[int, int]) -> list[Task]:
    """Return part i of n, i from 1: sessions are distributed if there are enough of them, else tasks."""
    i, n = shard
    sessions = list(dict.fromkeys(task.session for task in tasks))
    mine = set(sessions[i - 1 :: n])
    return [task for task in tasks if task.session in mine] if len(sessions) >= n else tasks[i - 1 :: n]
