"""One fit to be made, under a name that is a hash of what it is; how it is sent to a worker, and the answer."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

FORMAT = 1
_HASHED = ("estimator", "parameters", "design", "seed", "precision")


@dataclass(frozen=True)
class Task:
    """One fit: a model on a session.

    Attributes
    ----------
    key : str
        20 hexadecimal digits; the same for the same configuration and the same data, whatever they are called and
        wherever they lie.
    session, model : str
        Names, such as "track/rat1" and "place[regularizer_strength=0.001]".
    spec : dict
        Values of JSON only: estimator, parameters, design, source, identity of the data, seed, precision.
    """

    key: str
    session: str
    model: str
    spec: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the task as values of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Task:
        """Make the task of `to_json`; ValueError, TypeError or KeyError if it is none."""
        names = [values[name] for name in ("session", "model")]
        if not all(isinstance(name, str) for name in names) or not isinstance(values["spec"], dict):
            raise ValueError("a session or model without a name, or without a specification")
        return cls(check_key(values["key"]), *names, values["spec"])


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


def make_task(session: str, model: str, spec: dict[str, Any], identity: str) -> Task:
    """Make a task of a configuration and the identity of its data; the source's place is not in the key."""
    spec = {**spec, "identity": identity}
    return Task(key_of(spec), session, model, spec)


def key_of(spec: dict[str, Any]) -> str:
    """Key of a task's spec."""
    facts = {name: spec[name] for name in _HASHED}
    return digest({"format": FORMAT, "data": spec["identity"], **facts})[:20]


def check_key(key: Any) -> str:
    """Return a key; ValueError unless it is one, and so a name of a file."""
    if not (isinstance(key, str) and re.fullmatch("[0-9a-f]{20}", key)):
        raise ValueError(f"{str(key)[:40]!r} is no key of a task, which has 20 hexadecimal digits")
    return key


def digest(value: Any) -> str:
    """Hash of values of JSON, sha256 in hexadecimal: the order of keys and 1 for 1.0 make no difference."""
    text = json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """Refuse what JSON would change on its way, and write whole floats as integers."""
    if isinstance(value, dict):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"the keys {list(value)} are not all strings; values of JSON are needed.")
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    return value
