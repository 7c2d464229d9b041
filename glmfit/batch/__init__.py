"""Batches: every model fitted to every session, on a laptop or on a cluster, from one manifest."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from ._at_work import BusyFolder
    from ._fit import load_result, run_one
    from ._manifest import Manifest, ManifestError, read_manifest
    from ._overview import Collected, Progress, collect, status
    from ._plan import Receipt, Task
    from ._run import Summary, run
    from ._sources import load_session

__all__ = [
    "Manifest", "ManifestError", "read_manifest", "load_session",
    "run", "run_one", "status", "collect", "load_result",
    "Task", "Receipt", "Summary", "Progress", "Collected", "BusyFolder",
]  # fmt: skip

_ROOMS = ("._at_work", "._manifest", "._plan", "._overview", "._sources", "._run", "._fit", "..design")
__getattr__, __dir__ = _names_of_rooms(__name__, [*__all__, "Built", "Session", "build"], _ROOMS)
