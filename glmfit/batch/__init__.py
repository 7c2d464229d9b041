"""Many fits from one manifest."""

from ._design import build
from ._manifest import Manifest, read_manifest
from ._schema import ManifestError
from ._session import Session
from ._sources import identity_of, load_session, stat_signature
from ._task import Task

__all__ = [
    "Manifest",
    "ManifestError",
    "Session",
    "Task",
    "build",
    "identity_of",
    "load_session",
    "read_manifest",
    "stat_signature",
]
