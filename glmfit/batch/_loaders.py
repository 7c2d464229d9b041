"""Functions of a user's own that load a session, found by name."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import linecache
import sys
from collections.abc import Callable, Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

_READ: dict[str, tuple[str, str]] = {}  # module -> file and digest of the text that was executed here


def find_loader(name: str, folder: str) -> Callable[..., Any]:
    """Import the function of a name "package.module:function"; modules next to the manifest are found.

    ImportError says why it cannot be imported, and where it was looked for.
    """
    module_name, function_name = name.split(":")
    module = _import(module_name, folder, name)
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no function of that name" if function is None else f"has a {type(function).__name__} there"
        raise ImportError(f'loader "{name}": the module {module_name} {what}.')
    return function


def digest_of_module(name: str, folder: str, again: bool = True) -> str:
    """Hash of the text of a loader's module, "" where it has none.

    Without ``again`` it is that of the text that was executed here last, whatever the file holds now.
    """
    module_name = name.split(":")[0]
    if again or module_name not in _READ:
        _import(module_name, folder, name)
    return _READ[module_name][1]


@contextlib.contextmanager
def beside_manifest(folder: str) -> Iterator[None]:
    """Let modules in the manifest's folder be imported."""
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)


def _import(module_name: str, folder: str, name: str) -> ModuleType:
    """Import a module, anew where the one that was imported here has changed or is of another manifest."""
    with beside_manifest(folder):
        try:
            now = _source_of(module_name)
            if now is None:  # built in, compiled or from an archive: it stays as it was imported first
                if _READ.get(module_name, ("",))[0]:  # its text is gone
                    del _READ[module_name], sys.modules[module_name]
                module = importlib.import_module(module_name)
                file = Path(getattr(module, "__file__", None) or "")
                digest = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
                _READ.setdefault(module_name, ("", digest))
            elif _READ.get(module_name) != (now.path, now.digest) or module_name not in sys.modules:
                _execute(now)
                _READ[module_name] = now.path, now.digest
            return sys.modules[module_name]
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            raise ImportError(
                f'loader "{name}": the module {module_name} could not be imported ({type(error).__name__}: {error}). '
                f"It must be installed, or lie in {folder}."
            ) from error


class _Source(SourceFileLoader):
    """Execute a module from the bytes that were hashed: not from the file, nor from what Python compiled of it once."""

    def __init__(self, spec: ModuleSpec):
        super().__init__(spec.name, spec.origin)
        self.spec, self.text = spec, self.get_data(spec.origin)
        self.digest = hashlib.sha256(self.text).hexdigest()

    def get_code(self, fullname: str) -> CodeType:
        """Compile the bytes; tracebacks show their lines, also when the file has changed."""
        lines = importlib.util.decode_source(self.text).splitlines(keepends=True)
        linecache.cache[self.path] = len(self.text), None, lines, self.path
        return self.source_to_code(self.text, self.path)


def _source_of(module_name: str) -> _Source | None:
    """Read the text of what would be imported now, None if there is none."""
    loaded = sys.modules.pop(module_name, None)
    try:
        spec = importlib.util.find_spec(module_name)
    finally:
        if loaded is not None:
            sys.modules[module_name] = loaded
    return _Source(spec) if spec is not None and isinstance(spec.loader, SourceFileLoader) else None


def _execute(source: _Source) -> None:
    """Make the module of a text, in place of what was imported under its name."""
    source.spec.loader = source
    before, module = sys.modules.get(source.name), importlib.util.module_from_spec(source.spec)
    sys.modules[source.name] = module
    try:
        source.exec_module(module)
    except BaseException:
        del sys.modules[source.name]
        if before is not None:
            sys.modules[source.name] = before
        raise
    parent, _, child = source.name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
