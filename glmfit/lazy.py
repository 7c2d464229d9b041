"""Names of a package that are imported when they are first used (PEP 562): naming glmfit costs next to nothing."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterable
from typing import Any


def names_of_rooms(
    package: str, public: Iterable[str], rooms: tuple[str, ...], modules: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package: its public names are in rooms, tried in order.

    Modules of it may be named without an import as well.
    """

    def get(name: str) -> Any:
        was_on = gc.isenabled()
        gc.disable()  # looking for unreachable cycles among modules takes a quarter of the time of an import
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
