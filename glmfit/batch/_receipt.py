"""What a worker is sent, and what it answers."""

from __future__ import annotations

from typing import NamedTuple

from ._task import Task


class Receipt(NamedTuple):
    """What is told of a task: numbers and words, never its arrays.

    Attributes
    ----------
    key, session, model : str
        Of the task.
    state : {"done", "found", "failed"}
        "found": done before.
    seconds : float
        From the start of loading to the end of writing.
    error : str or None
        Of one that failed.
    worker : str
        Host and process.
    unwritten : bool
        Whether it failed because the output folder cannot be written to.
    """

    key: str
    session: str
    model: str
    state: str
    seconds: float = 0.0
    error: str | None = None
    worker: str = ""
    unwritten: bool = False


class Work(NamedTuple):
    """What a worker is sent."""

    task: Task
    out: str
    manifest: str  # digest
    tries: int  # after so many attempts that ended their process, a fit has failed

    @property
    def key(self) -> str:
        return self.task.key
