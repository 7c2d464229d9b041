"""Batches: every model fitted to every session, on a laptop or on a cluster, from one manifest."""

from typing import TYPE_CHECKING as _TYPE_CHECKING

from .._lazy import lazy_names as _lazy_names

if _TYPE_CHECKING:
    from ._at_work import BusyFolder
    from ._fit import load_result, run_one
    from ._manifest import Manifest, ManifestError, read_manifest
    from ._overview import Collected, Progress, collect, status
    from ._plan import Receipt, Task
    from ._run import Summary, run
    from ._sources import load_session

__all__ = [
    "BusyFolder",
    "Collected",
    "Manifest",
    "ManifestError",
    "Progress",
    "Receipt",
    "Summary",
    "Task",
    "collect",
    "load_result",
    "load_session",
    "read_manifest",
    "run",
    "run_one",
    "status",
]

__getattr__, __dir__ = _lazy_names(
    __name__,
    _fit=("load_result", "run_one"),
    _at_work=("BusyFolder",),
    _manifest=("Manifest", "ManifestError", "read_manifest"),
    _overview=("Collected", "Progress", "collect", "status"),
    _plan=("Receipt", "Task"),
    _run=("Summary", "run"),
    _sources=("load_session",),
    **{".design": ("Built", "Session", "build")},
)
