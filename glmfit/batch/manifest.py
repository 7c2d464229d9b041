"""Manifests: which models to fit to which data."""

import hashlib
import json
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..design.rules import BOOLEAN, TABLE, TEXT, Problems, check_table, one_of, shown, tables, whole
from ..display import one_line
from .models import Model, read_model
from .plan import Task, key_of, planned_digest
from .reading import Data, read_data
from .sources import digest, identity_of

_KEYS = {"name": TEXT, "seed": whole(0), "precision": one_of("single", "double")}
_KEYS |= {"options": TABLE, "data": tables("data"), "model": tables("model")}
_DEEPEST = 100  # nested tables and arrays; their readers are recursive


class ManifestError(ValueError):
    """A manifest that cannot be run.

    Parameters
    ----------
    problems : list of str
        All problems, also an attribute; the error's text has one per line.
    """

    def __init__(self, problems: Iterable[str]):
        self.problems = [one_line(problem) for problem in problems]
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True)
class Manifest:
    """A manifest that has been checked.

    Attributes
    ----------
    path, name : pathlib.Path, str
        Path of the file; its name, by default the file's stem.
    seed, precision : int, {"single", "double"}
        Seed and precision of every fit.
    options : dict
        With defaults filled in; its only entry, ``pad_shapes``, has no effect since version 0.2; the next version
        removes it.
    digest : str
        sha256 of the file's bytes, in hexadecimal.
    data, models : tuple
        Sources, each with a name and sessions; configurations, one for each member of a grid.
    """

    path: Path
    name: str
    seed: int
    precision: str
    options: dict[str, Any]
    digest: str
    data: tuple[Data, ...]
    models: tuple[Model, ...]

    def tasks(self, identify: Callable[[dict[str, Any]], str] | None = None) -> list[Task]:
        """List the fits, grouped by session.

        Parameters
        ----------
        identify : callable, optional
            Maps a source (dict) to the identity of its data (str), instead of reading all files again.

        Returns
        -------
        list of Task
            Data that cannot be read raise no error here: only their tasks fail, when they are run.
        """
        identify, tasks = identify or identity_of, []
        for data in self.data:
            models = [model for model in self.models if data.name in model.data]
            for session, source in data.sessions.items() if models else ():
                try:
                    identity = identify(source)
                except (OSError, ImportError):
                    identity = digest(["cannot be read", session])
                tasks += [self._task(session, model, source, identity) for model in models]
        return tasks

    def _task(self, session: str, model: Model, source: dict[str, Any], identity: str) -> Task:
        spec = {"estimator": model.estimator, "parameters": model.parameters, "design": model.design}
        spec |= {"source": source, "seed": self.seed, "precision": self.precision, "identity": identity}
        if model.estimator == "PopulationGLM":  # no effect, but part of the keys of fits by version 0.1
            spec["parameters"] = {"pad_shapes": self.options["pad_shapes"], **model.parameters}
        asked = {"explain": model.explain, "score": model.score}
        spec |= {name: how for name, how in asked.items() if how is not None}
        return Task(key_of(spec), session, model.name, spec)


def read_manifest(path: str | Path) -> Manifest:
    r"""Read a manifest and check all of it: nothing is fitted, no data are read.

    Parameters
    ----------
    path : str or pathlib.Path
        TOML (.toml) or JSON (.json) file. File names in it are relative to its folder, as are modules of loaders.

    Returns
    -------
    Manifest
        Ready to run.

    Raises
    ------
    ManifestError, FileNotFoundError
        With every problem on a line, which names the file, the table and the key; if the file does not exist.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> from glmfit.batch import ManifestError, read_manifest
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "batch.toml"
    >>> _ = path.write_text('sead = 1\n[[data]]\nname = "a"\nfiles = "*.npz"\n[[model]]\nname = "m"\n')
    >>> try:
    ...     read_manifest(path)
    ... except ManifestError as error:
    ...     print(error.problems[0])
    batch.toml: sead is not known here; did you mean "seed"?
    """
    return read_known(Path(path))


def read_known(path: Path, out: Path | None = None) -> Manifest:
    """Read a manifest; parameters are not checked, which takes long, if this version has planned it in ``out``."""
    if not path.exists():
        raise FileNotFoundError(f"there is no manifest {path}.")
    content = path.read_bytes()
    hashed = hashlib.sha256(content).hexdigest()
    is_new = out is None or hashed != planned_digest(out)
    document = _parse(path, content)
    problems = Problems(path.name, document)
    right = check_table(problems, (), document, _KEYS)
    options = check_table(problems, ("options",), right.get("options", {}), {"pad_shapes": BOOLEAN})
    folder = path.resolve().parent
    data = {}
    for place, table in _check_tables(problems, document, "data"):
        source = read_data(problems, place, table, folder)
        data[source.name] = source
    models: list[Model] = []
    for place, table in _check_tables(problems, document, "model"):
        made = read_model(problems, place, table, data, values=is_new)
        _check_new(problems, place, made, models)
        models += made
    if not problems and not any(data[name].sessions for model in models for name in model.data):
        problems.add((), "there is nothing to fit: no model has a session.")
    if problems:
        raise ManifestError(problems.texts)
    name, seed, precision = right.get("name", path.stem), right.get("seed", 0), right.get("precision", "single")
    options = {"pad_shapes": True} | options
    return Manifest(path.resolve(), name, seed, precision, options, hashed, tuple(data.values()), tuple(models))


def _parse(path: Path, content: bytes) -> dict[str, Any]:
    """Read TOML or JSON; errors name the line where parsing fails."""
    suffix, line = path.suffix.lower(), None
    if suffix not in (".toml", ".json"):
        raise ManifestError([f'{path.name}: a manifest is a .toml or a .json file, not "{path.suffix}".'])
    try:
        text = content.decode("utf-8-sig").replace("\r\n", "\n")
        document = tomllib.loads(text) if suffix == ".toml" else _read_json(text)
        if not isinstance(document, dict):
            raise ValueError(f"the document is a {type(document).__name__}; it must be a table")
        if _depth(document) > _DEEPEST:
            raise RecursionError
        return document
    except RecursionError:
        why = f"tables and arrays are nested more than {_DEEPEST} deep"
    except UnicodeDecodeError as error:
        line, why = content[: error.start].count(b"\n") + 1, f"the file is not UTF-8 ({error.reason})"
    except json.JSONDecodeError as error:
        line, why = error.lineno, f"{error.msg} (column {error.colno})"
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        line, why = int(found[1]) if found else text.rstrip().count("\n") + 1, str(error)
    except ValueError as error:
        why = str(error)
    raise ManifestError([f"{path.name}{f', line {line}' if line else ''}: {why}."])


def _depth(value: Any) -> int:
    entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(_depth, entries), default=0) if entries else isinstance(value, dict | list)


def _read_json(text: str) -> Any:
    """Read strict JSON, without NaN and without repeated keys."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) < len(pairs):
            ((key, n),) = Counter(key for key, _ in pairs).most_common(1)
            raise ValueError(f"{key} occurs {n} times in one table, {shown(table)}")
        return table

    def refuse(word: str) -> None:
        raise ValueError(f"{word} is not JSON")

    return json.loads(text, object_pairs_hook=once, parse_constant=refuse)


def _check_new(problems: Problems, place: tuple, made: list[Model], models: list[Model]) -> None:
    """Note a configuration that already exists for the same data: its results would be the same files."""

    def of(model: Model) -> dict[str, str]:
        facts = [model.estimator, model.parameters, model.design, model.explain, model.score]
        return {digest([*facts, name]): name for name in model.data}

    there = {fact: model.name for model in models for fact in of(model)}
    for model in made:
        again = [(there[fact], name) for fact, name in of(model).items() if fact in there]
        for other, name in again[:1]:
            problems.add(place, f'"{model.name}" is the same as model "{other}" for data "{name}".')


def _check_tables(problems: Problems, document: Mapping, key: str) -> list[tuple[tuple, dict]]:
    """Check an array of tables with unique names; return the tables with their paths."""
    value = document.get(key, [])
    if not _KEYS[key].fits(value):  # noted already
        return []
    if not value:
        problems.add((), f"there is no {key}; a manifest needs at least one [[{key}]].")
    first: dict[str, int] = {}
    for i, entry in enumerate(value):
        name = entry.get("name")
        if isinstance(name, str) and first.setdefault(name, i) != i:
            problems.add((), f'{key} {i + 1}: the name "{name}" is already that of {key} {first[name] + 1}.')
    return [((key, i), entry) for i, entry in enumerate(value)]
