"""Sources of sessions: what identifies their data, which may change at any time, and loading them."""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .._files import read_regular, whole_or_absent
from ..design.arrays import read_matrices, read_recording
from ..design.sessions import Session
from ._loaders import beside_manifest, digest_of_module, find_loader

_NOT_DATA = ("path", "folder", "planned")  # where data lie is no part of what they are
_TICK_NS = 20_000_000  # two changes within this time may bear one time stamp
_READINGS = 3


class DataChanged(RuntimeError):
    """The data are not those that the key of the task belongs to."""


def load_session(source: dict[str, Any]) -> Session:
    """Load the data of a session.

    Parameters
    ----------
    source : dict
        Of a task: ``task.spec["source"]``.

    Returns
    -------
    Session
        Of a recording or of ready matrices.

    Raises
    ------
    FileNotFoundError
        If the file is not there.
    ValueError
        If the file is damaged, lacks something or holds something that is not allowed: the file is named.
    TypeError
        If a loader returned something other than a Session.
    ImportError
        If a loader cannot be imported.
    """
    if source["kind"] == "loader":
        return _load_own(source)
    if not os.path.exists(source["path"]):
        raise FileNotFoundError(f"{source['path']} is not there; it was when the manifest was read.")
    if source["kind"] == "matrices":
        return read_matrices(source)
    if source["format"] == "nwb":
        from ..design.nwb import read_nwb

        return read_nwb(source)
    return read_recording(source)


def _load_own(source: dict[str, Any]) -> Session:
    """Call a user's loader."""
    name = source["loader"]
    function = find_loader(name, source["folder"])
    with beside_manifest(source["folder"]):  # it may import on use
        session = function(**source["arguments"])
    if not isinstance(session, Session):
        raise TypeError(
            f'the loader "{name}" returned a {type(session).__name__}; it must return a glmfit.batch.Session, such as '
            "Session(X=features, y=counts) or Session(spikes=group, signals={...})."
        )
    return session


def load_planned(source: dict[str, Any]) -> Session:
    """Load the data that the key of the task belongs to; DataChanged if they are others, before or after."""
    planned = source.get("planned")
    if planned is None:
        return load_session(source)
    before = stat_signature(source)  # None for a loader, whose module is quickly read
    same = True
    if before is None or before != planned["files"]:  # files that look other than they did may be the same
        found, before = identify(source)
        same = found == planned["identity"]
    if same:
        session = load_session(source)
        executed = before is not None or identity_of(source, again=False) == planned["identity"]
        if executed and stat_signature(source) == before:
            return session
    raise DataChanged(
        f"the data of this task, {source.get('path') or 'loader ' + source['loader']}, have changed since the run "
        "began. Run again: changed data are another task."
    )


# -- identities


def digest(value: Any) -> str:
    """Hash of values of JSON, sha256 in hexadecimal: the order of keys and 1 for 1.0 make no difference."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Refuse what JSON would change on its way, and write whole floats as integers."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"the keys {list(value)} are not all strings; values of JSON are needed.")
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def identity_of(source: dict[str, Any], again: bool = True) -> str:
    """Hash what the data of a session are, wherever they lie; OSError if a file cannot be read.

    That is, of files, their content and what is read of them; of loaders module, function, arguments, version and the
    text of the module's file: that of now, or without ``again`` that which was executed here last.
    """
    facts = {key: value for key, value in source.items() if key not in _NOT_DATA}
    if source["kind"] == "loader":
        return digest({**facts, "text": digest_of_module(source["loader"], source["folder"], again)})
    return digest({**facts, "content": _content(Path(source["path"]))})


def identify(source: dict[str, Any]) -> tuple[str, list | None]:
    """Hash the data of a source as `identity_of`, and describe the files that were hashed as `stat_signature`.

    Files of this description have the content that was hashed. OSError if they change whenever they are read.
    """
    for _ in range(_READINGS):
        signature = stat_signature(source)
        if signature is None:
            return identity_of(source), None
        young = max(max(changed, written) for _, _, written, _, changed in signature) + _TICK_NS - time.time_ns()
        if 0 < young <= _TICK_NS:  # what is written now might not show
            time.sleep(young / 1e9)
            continue
        identity = identity_of(source)
        if stat_signature(source) == signature:
            return identity, signature
    raise OSError(f"{source['path']} changed {_READINGS} times while it was read. Wait until it is written.")


def stat_signature(source: dict[str, Any]) -> list[list[Any]] | None:
    """Describe the files of a source so that a change of them shows, without reading them.

    Of each file: name, size in bytes, time of writing in ns, inode and time of change in ns (which nobody can set
    back). None for loaders, whose identity costs nothing; OSError if a file is not there.
    """
    if source["kind"] == "loader":
        return None
    path = Path(source["path"])
    found = [(file, os.stat(file)) for file in _files(path)]
    return [[_name(file, path), s.st_size, s.st_mtime_ns, s.st_ino, s.st_ctime_ns] for file, s in found]


class IdentityCache:
    """Identity of data, remembered in a file as long as size and times of the data's files stay."""

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
        known = self._known.get(self._name(source, signature))
        if not (isinstance(known, str) and re.fullmatch("[0-9a-f]{64}", known)):
            known, signature = identify(source)
        self._hashed[self._name(source)] = signature
        if signature is not None:  # a loader's identity is the text of its module, and is quickly read
            self._fresh[self._name(source, signature)] = known
        return known

    def files_of(self, source: dict) -> list | None:
        """Describe the files whose identity was given; empty if they could not be read, None for a loader."""
        return self._hashed.get(self._name(source), [])

    def save(self) -> None:
        """Write down what was found out."""
        if self._fresh.keys() - self._known.keys():
            with whole_or_absent(self._path) as file:
                file.write(json.dumps(self._known | self._fresh).encode())

    @staticmethod
    def _name(source: dict, signature: list | None = None) -> str:
        return json.dumps({"source": source, "stat": signature}, sort_keys=True)


# -- files


def _files(path: Path) -> list[Path]:
    """List the file, or those of a folder in order, behind links too, as readers follow them."""
    if path.is_file():
        return [path]
    if path.exists() and not path.is_dir():
        raise OSError(f"{path} is neither a file nor a folder but a pipe or a device, whose data cannot be read twice.")
    files = sorted(_below(path, ())) if path.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{path} is not there, or is an empty folder.")
    return files


def _below(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Go through a folder; OSError for a link to a folder that it lies in, which has no end."""
    real = os.path.realpath(folder)
    if real in above:
        raise OSError(f"{folder} is a link that leads back to a folder that it lies in, {real}. Remove it.")
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir():
            yield from _below(folder / entry.name, (*above, real))
        elif entry.is_file():
            yield folder / entry.name


def _name(file: Path, path: Path) -> str:
    """Name of a file within its source, "" for the source itself."""
    return "" if file == path else file.relative_to(path).as_posix()


def _content(path: Path) -> str:
    """Hash of the names and bytes of a file or folder."""
    whole = hashlib.sha256()
    for file in _files(path):
        with open(file, "rb") as stream:
            part = hashlib.file_digest(stream, "sha256")
        whole.update(f"{_name(file, path)}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()
