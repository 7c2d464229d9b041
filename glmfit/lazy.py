"""Names of a package that are imported on first use (PEP 562): importing glmfit costs next to nothing."""

import gc
import importlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn


def names_of_rooms(
    package: str,
    public: Iterable[str],
    rooms: tuple[str, ...],
    modules: tuple[str, ...] = (),
    instead: Mapping[str, str] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Make the ``__getattr__`` and ``__dir__`` of a package; ``rooms``, tried in order, hold its public names.

    Its modules are available without an import as well; ``instead`` is that of `no_longer`.
    """
    gone = no_longer(package, instead or {})

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
        gone(name)

    return get, lambda: sorted({*vars(sys.modules[package]), *public, *modules})


def no_longer(package: str, instead: Mapping[str, str]) -> Callable[[str], NoReturn]:
    """Make a ``__getattr__`` that raises AttributeError, and says what replaces the names that are gone."""

    def get(name: str) -> NoReturn:
        advice = f"; {instead[name]}" if name in instead else ""
        raise AttributeError(f"module {package!r} has no attribute {name!r}{advice}.")

    return get
