"""Sources of sessions: identity of their data, which may change at any time, and loading."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import json
import linecache
import os
import sys
import time
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from ..design.files import read_session
from ..design.sessions import Session

_NOT_DATA = ("path", "folder", "planned")  # the place of data is not part of their identity
_TICK_NS = 20_000_000  # two changes within this time may have the same time stamp
_READINGS = 3
_READ: dict[str, tuple[str, str]] = {}  # module of a loader -> file and digest of the text that was executed here


class DataChanged(RuntimeError):
    """The data are not those of the task's key."""


def load_session(source: dict[str, Any]) -> Session:
    """Load the data of a session.

    Parameters
    ----------
    source : dict
        Source of a task, ``task.spec["source"]``.

    Returns
    -------
    Session
        Of a recording or of ready matrices.

    Raises
    ------
    FileNotFoundError, ValueError, ImportError, TypeError
        If the file does not exist; if it is damaged, incomplete or has content that is not allowed; if a loader cannot
        be imported, or did not return a Session.
    """
    if source["kind"] == "loader":
        name, function = source["loader"], find_loader(source["loader"], source["folder"])
        with _near_manifest(source["folder"]):  # it may import when called
            session = function(**source["arguments"])
        if not isinstance(session, Session):
            such = "such as Session(X=features, y=counts) or Session(spikes=group, signals={...})."
            what = f'the loader "{name}" returned a {type(session).__name__}'
            raise TypeError(f"{what}; it must return a glmfit.batch.Session, {such}")
        return session
    if not os.path.exists(source["path"]):
        raise FileNotFoundError(f"{source['path']} does not exist; it did when the manifest was read.")
    return read_session(source)


def load_planned(source: dict[str, Any]) -> Session:
    """Load the data of the task's key; DataChanged if they are different, before or after loading."""
    planned = source.get("planned")
    if planned is None:
        return load_session(source)
    before = stat_signature(source)  # None for a loader, whose module is quick to read
    found = planned["identity"]
    if before is None or before != planned["files"]:  # files with another signature may have the same content
        found, before = identify(source)
    if found == planned["identity"]:
        session = load_session(source)
        executed = before is not None or identity_of(source, again=False) == planned["identity"]
        if executed and stat_signature(source) == before:
            return session
    what = source.get("path") or f"loader {source['loader']}"
    why = "have changed since the run began. Run again: changed data make a new task."
    raise DataChanged(f"the data of this task, {what}, {why}")


# -- identities


def digest(value: Any) -> str:
    """Hash JSON values, sha256 in hexadecimal; the order of keys and 1 versus 1.0 make no difference."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Refuse values that JSON would change, and write whole floats as integers."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"the keys {list(value)} are not all strings; JSON values are needed.")
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value


def identity_of(source: dict[str, Any], again: bool = True) -> str:
    """Hash the data of a session, independent of their place; OSError if a file cannot be read.

    For files: their content and what is read of them. For loaders: module, function, arguments, version and the text of
    the module's file, the current one, or without ``again`` the one executed here last.
    """
    facts = {key: value for key, value in source.items() if key not in _NOT_DATA}
    if source["kind"] != "loader":
        return digest({**facts, "content": _content(Path(source["path"]))})
    module_name = source["loader"].split(":")[0]
    if again or module_name not in _READ:
        _import(source["loader"], source["folder"])
    return digest({**facts, "text": _READ[module_name][1]})


def identify(source: dict[str, Any]) -> tuple[str, list | None]:
    """Hash the data of a source with `identity_of`, and describe the hashed files with `stat_signature`.

    Files of this description have the content that was hashed. OSError if they change during every reading.
    """
    for _ in range(_READINGS):
        signature = stat_signature(source)
        if signature is None:
            return identity_of(source), None
        young = max(max(changed, written) for _, _, written, _, changed in signature) + _TICK_NS - time.time_ns()
        if 0 < young <= _TICK_NS:  # a write at this moment might not show
            time.sleep(young / 1e9)
            continue
        identity = identity_of(source)
        if stat_signature(source) == signature:
            return identity, signature
    raise OSError(f"{source['path']} changed {_READINGS} times while it was read. Wait until writing ends.")


def stat_signature(source: dict[str, Any]) -> list[list[Any]] | None:
    """Describe the files of a source so that a change shows, without reading them.

    For each file: name, size in bytes, time of writing in ns, inode and time of change in ns (which cannot be set
    back). None for loaders, whose identity costs nothing; OSError if a file does not exist.
    """
    if source["kind"] == "loader":
        return None
    found = [(name, os.stat(file)) for name, file in _files(Path(source["path"]))]
    return [[name, s.st_size, s.st_mtime_ns, s.st_ino, s.st_ctime_ns] for name, s in found]


# -- files


def _files(path: Path) -> list[tuple[str, Path]]:
    """List a file, or the files of a folder in order, with names relative to it; links are followed, as by readers."""
    if path.is_file():
        return [("", path)]
    if path.exists() and not path.is_dir():
        raise OSError(f"{path} is neither a file nor a folder but a pipe or a device, whose data cannot be read twice.")
    files = sorted(_below(path, ())) if path.is_dir() else []
    if not files:
        raise FileNotFoundError(f"{path} does not exist, or is an empty folder.")
    return [(file.relative_to(path).as_posix(), file) for file in files]


def _below(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Iterate over the files below a folder; OSError for a link to a parent folder, which would not end."""
    real = os.path.realpath(folder)
    if real in above:
        raise OSError(f"{folder} is a link that leads back to a parent folder, {real}. Remove it.")
    with os.scandir(folder) as found:
        entries = list(found)
    for entry in entries:
        if entry.is_dir():
            yield from _below(folder / entry.name, (*above, real))
        elif entry.is_file():
            yield folder / entry.name


def _content(path: Path) -> str:
    whole = hashlib.sha256()
    for name, file in _files(path):
        with open(file, "rb") as stream:
            part = hashlib.file_digest(stream, "sha256")
        whole.update(f"{name}\0{part.hexdigest()}\n".encode())
    return whole.hexdigest()


# -- loaders: functions of a user, found by name


def find_loader(name: str, folder: str) -> Callable[..., Any]:
    """Import the function "package.module:function"; ImportError states where it was searched."""
    module_name, function_name = name.split(":")
    function = getattr(_import(name, folder), function_name, None)
    if not callable(function):
        what = "has no function of that name" if function is None else f"has a {type(function).__name__} there"
        raise ImportError(f'loader "{name}": the module {module_name} {what}.')
    return function


@contextlib.contextmanager
def _near_manifest(folder: str) -> Iterator[None]:
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import(name: str, folder: str) -> ModuleType:
    """Import a loader's module, again if the one imported here has changed or belongs to another manifest."""
    module_name = name.split(":")[0]
    with _near_manifest(folder):
        try:
            now = _source_of(module_name)
            if now is None:  # built in, compiled or from an archive: it stays as first imported
                if _READ.get(module_name, ("",))[0]:  # its text is gone
                    del _READ[module_name], sys.modules[module_name]
                file = Path(getattr(importlib.import_module(module_name), "__file__", None) or "")
                hashed = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
                _READ.setdefault(module_name, ("", hashed))
            elif _READ.get(module_name) != (now.path, now.digest) or module_name not in sys.modules:
                now.execute()
                _READ[module_name] = now.path, now.digest
            return sys.modules[module_name]
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            why = f"could not be imported ({type(error).__name__}: {error}). It must be installed, or be in {folder}."
            raise ImportError(f'loader "{name}": the module {module_name} {why}') from error


def _source_of(module_name: str) -> _Source | None:
    """Read the text of the module that would be imported now; None if there is none."""
    loaded = {module_name: sys.modules.pop(module_name)} if module_name in sys.modules else {}
    try:
        spec = importlib.util.find_spec(module_name)
    finally:
        sys.modules.update(loaded)
    return _Source(spec) if spec is not None and isinstance(spec.loader, SourceFileLoader) else None


class _Source(SourceFileLoader):
    """Execute a module from the bytes that were hashed, not from the file or Python's cached bytecode."""

    def __init__(self, spec: ModuleSpec):
        super().__init__(spec.name, spec.origin)
        self.spec, self.text = spec, self.get_data(spec.origin)
        self.digest = hashlib.sha256(self.text).hexdigest()
        spec.loader = self

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes; tracebacks show their lines, even if the file has changed."""
        lines = importlib.util.decode_source(self.text).splitlines(keepends=True)
        linecache.cache[self.path] = len(self.text), None, lines, self.path
        return self.source_to_code(self.text, self.path)

    def execute(self) -> None:
        before, module = sys.modules.get(self.name), importlib.util.module_from_spec(self.spec)
        sys.modules[self.name] = module
        try:
            self.exec_module(module)
        except BaseException:
            del sys.modules[self.name]
            sys.modules.update({} if before is None else {self.name: before})
            raise
        parent, _, child = self.name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
