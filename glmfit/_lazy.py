"""Names of a package that are imported when they are first used (PEP 562): naming glmfit costs next to nothing."""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any


def lazy_names(
    package: str, modules: Iterable[str] = (), **names: tuple[str, ...]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package: of modules below it, and of names in such modules.

    The keyword of names is their module relative to the package, ``".other"`` for one next to it.
    """
    where = {name: name for name in modules} | {name: module for module, found in names.items() for name in found}

    def get(name: str) -> Any:
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with _collector_paused():
            module = importlib.import_module(f".{where[name]}", package)
        value = module if where[name] == name else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    def names_of_it() -> list[str]:
        return sorted({*vars(sys.modules[package]), *where})

    return get, names_of_it


def names_of_rooms(
    package: str, public: list[str], rooms: tuple[str, ...]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package whose public names are in some modules, tried in order."""

    def get(name: str) -> Any:
        for room in rooms if name in public else ():
            with _collector_paused():
                module = importlib.import_module(room, package)
            if hasattr(module, name):
                setattr(sys.modules[package], name, getattr(module, name))
                return getattr(module, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[package]), *public})


@contextlib.contextmanager
def _collector_paused() -> Iterator[None]:
    """Let Python look for no unreachable cycles: among the modules of an import, that takes a quarter of its time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
