"""Names of a package that are imported on first use (PEP 562): importing glmfit costs next to nothing."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any


def names_of_rooms(
    package: str, public: Iterable[str], rooms: tuple[str, ...], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package; ``rooms``, tried in order, hold its public names.

    Its modules are available without an import as well.
    """

    def get(name: str) -> Any:
        was_on = gc.isenabled()
        gc.disable()  # the search for unreachable cycles among modules takes a quarter of the import time
        try:
            for room in (f".{name}",) if name in modules else rooms if name in public else ():
                module = importlib.import_module(room, package)
                value = module if name in modules else getattr(module, name, None)
                if value is not None:
                    setattr(sys.modules[package], name, value)
                    return value
        finally:
            if was_on:
                gc.enable()
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return get, lambda: sorted({*vars(sys.modules[package]), *public, *modules})
