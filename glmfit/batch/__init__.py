"""Batches: every model fitted to every session, on a laptop or on a cluster, from one manifest."""

from ._collect import Collected, collect
from ._design import Built, build
from ._fit import Receipt, load_result, run_one
from ._lock import BusyFolder
from ._manifest import Manifest, ManifestError, read_manifest
from ._progress import Progress, status
from ._run import Summary, run
from ._session import Session
from ._sources import load_session
from ._task import Task

__all__ = [
    "Built",
    "BusyFolder",
    "Collected",
    "Manifest",
    "ManifestError",
    "Progress",
    "Receipt",
    "Session",
    "Summary",
    "Task",
    "build",
    "collect",
    "load_result",
    "load_session",
    "read_manifest",
    "run",
    "run_one",
    "status",
]
