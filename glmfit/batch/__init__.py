"""Batches: every model fitted to every session, on a laptop or on a cluster, from one manifest."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from ..lazy import names_of_rooms as _names_of_rooms

if _TYPE_CHECKING:
    from .at_work import BusyFolder
    from .collected import Collected, collect
    from .fits import run_one
    from .loading import load_explanation, load_result, load_scores
    from .manifest import Manifest, ManifestError, read_manifest
    from .overview import Progress, status
    from .plan import Receipt, Task
    from .runner import Summary, run
    from .sources import load_session

__all__ = [
    "Manifest", "ManifestError", "read_manifest", "load_session",
    "run", "run_one", "status", "collect", "load_result", "load_explanation", "load_scores",
    "Task", "Receipt", "Summary", "Progress", "Collected", "BusyFolder",
]  # fmt: skip

_ROOMS = (
    ".at_work", ".manifest", ".plan", ".overview", ".collected", ".sources", ".runner", ".fits", ".loading", "..design",
)  # fmt: skip
__getattr__, __dir__ = _names_of_rooms(__name__, [*__all__, "Built", "Session", "build"], _ROOMS)
