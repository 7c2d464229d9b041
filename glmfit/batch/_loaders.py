"""Functions of a user's own that load a session, found by name."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

_READ: dict[str, tuple[str, str]] = {}  # module -> its file and digest when it was imported here


def find_loader(name: str, folder: str) -> Callable[..., Any]:
    """Import the function of a name "package.module:function"; modules beside the manifest are found.

    Raises
    ------
    ImportError
        If it cannot be imported: why, and where it was looked for.
    """
    module_name, function_name = name.split(":")
    module = _import(module_name, folder, name)
    function = getattr(module, function_name, None)
    if not callable(function):
        what = "has no function of that name" if function is None else f"has a {type(function).__name__} there"
        raise ImportError(f'loader "{name}": the module {module_name} {what}.')
    return function


def digest_of_module(name: str, folder: str) -> str:
    """Hash of the text of a loader's module, "" where it has none."""
    return _digest(_import(name.split(":")[0], folder, name))


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


def _import(module_name: str, folder: str, name: str) -> Any:
    """Import a module, anew where the one that was imported here has changed or is of another manifest."""
    with beside_manifest(folder):
        try:
            if module_name in _READ and _READ[module_name] != (now := _expected(module_name)):
                sys.modules.pop(module_name, None)
                _forget_bytecode(now[0])
            module = importlib.import_module(module_name)
        except (Exception, SystemExit) as error:  # a module may do anything when it is imported
            raise ImportError(
                f'loader "{name}": the module {module_name} could not be imported ({type(error).__name__}: {error}). '
                f"It must be installed, or lie in {folder}."
            ) from error
    _READ[module_name] = (str(getattr(module, "__file__", "")), _digest(module))
    return module


def _expected(module_name: str) -> tuple[str, str]:
    """File and digest of what would be imported now."""
    loaded = sys.modules.pop(module_name, None)
    try:
        spec = importlib.util.find_spec(module_name)
    finally:
        if loaded is not None:
            sys.modules[module_name] = loaded
    file = spec.origin if spec is not None and spec.origin else ""
    return file, _digest_of_file(file)


def _forget_bytecode(file: str) -> None:
    """Remove what Python compiled of a file: it takes an edit of the same second and length for no edit."""
    if file.endswith(".py"):
        with contextlib.suppress(OSError, NotImplementedError):
            Path(importlib.util.cache_from_source(file)).unlink(missing_ok=True)


def _digest(module: Any) -> str:
    return _digest_of_file(getattr(module, "__file__", None) or "")


def _digest_of_file(file: str) -> str:
    """Hash of a file's bytes, "" for none."""
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file and Path(file).is_file() else ""
