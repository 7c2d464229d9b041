"""The [[data]] of a manifest: its sessions, and how to read each of them."""

import glob
import inspect
import os
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..design import rules as rule
from ..design.files import PARTS, names_in
from ..design.rules import Problems, check_table, guess, is_plain, shown
from ..design.schema import COUNTS
from .sources import digest, find_loader

FORMATS = ("npz", "nwb", "zarr")
_LABEL = 60  # characters that the arguments of a loader may add to a session's name
_PLACE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")

_FILES = {
    "name": rule.NAMED,
    "files": rule.either(rule.TEXT, rule.list_of(rule.TEXT, "a list of them")),
    "format": rule.one_of(*FORMATS),
}
_MATRICES = _FILES | dict.fromkeys(PARTS, rule.TEXT)
_RECORDING = _FILES | {
    "spikes": rule.either(rule.TABLE, rule.TEXT),
    "min_spikes": rule.whole(0),
    "signals": rule.TABLE,
    "epochs": rule.TABLE,
}
_FUNCTION = rule.Rule('a string like "package.module:function"', lambda v: isinstance(v, str) and _PLACE.fullmatch(v))
_LOADER = {"name": rule.NAMED, "loader": _FUNCTION, "version": rule.TEXT}
_LOADER |= {"arguments": rule.list_of(rule.TABLE, "a list of tables, one per session")}
_COLUMNS = rule.list_of(rule.TEXT, "a list of names, one per column")
_ARRAYS = {
    "spikes": ({"times": rule.TEXT, "unit": rule.TEXT}, ("times", "unit")),
    "signals": ({"values": rule.TEXT, "times": rule.TEXT, "columns": _COLUMNS}, ("values", "times")),
    "epochs": ({"start": rule.TEXT, "stop": rule.TEXT}, ("start", "stop")),
}


@dataclass(frozen=True)
class Data:
    name: str
    kind: str  # what its sessions hold, "recording" or "matrices"; "loader": known once it has run
    sessions: dict[str, dict[str, Any]]  # name -> all that is needed to load it, as JSON values
    signals: tuple[str, ...] = ()  # names that a recording has
    epochs: tuple[str, ...] = ()
    columns: dict[str, tuple[str, ...]] = field(default_factory=dict)  # of signals, if the manifest names them


def read_data(problems: Problems, path: tuple, table: dict[str, Any], folder: Path) -> Data:
    name = table["name"] if isinstance(table.get("name"), str) else str(path[-1] + 1)
    if "loader" in table:
        return Data(name, "loader", _loader(problems, path, table, name, folder))
    if "X" not in table and "y" not in table:
        return _recording(problems, path, table, name, folder)
    right = check_table(problems, path, table, _MATRICES, ("name", "files", "X", "y"))
    form, files = _files(problems, path, right, folder)
    if form == "nwb":
        problems.add(path, "matrices are read from npz or zarr, not from nwb; remove X and y.")
    parts = {part: right[part] for part in PARTS if part in right}
    _find_arrays(problems, files, form, [(path, part, array) for part, array in parts.items()])
    return Data(name, "matrices", _sessions(name, files, form, {"kind": "matrices", **parts}))


def _recording(problems: Problems, path: tuple, table: dict, name: str, folder: Path) -> Data:
    right = check_table(problems, path, table, _RECORDING, ("name", "files"))
    form, files = _files(problems, path, right, folder)
    common: dict[str, Any] = {"kind": "recording", "min_spikes": right.get("min_spikes", 0)}
    arrays: list[tuple] = []

    def named(at: tuple, what: str, entry: Any) -> dict:
        found = check_table(problems, at, entry, *_ARRAYS[what])
        arrays.extend((at, part, array) for part, array in found.items() if part != "columns")
        return found

    if form == "nwb":
        common["spikes"] = right.get("spikes", "units")
        if not isinstance(common["spikes"], str):
            problems.add(path, f'spikes is {shown(common["spikes"])}; for nwb it must be a string, "units".')
    elif "spikes" in right:
        common["spikes"] = named((*path, "spikes"), "spikes", right["spikes"])
    elif form is not None and "spikes" not in table:
        example = '{ times = "spike_times", unit = "unit" }'
        problems.add(path, f"spikes is missing; for {form} it must name two arrays, as in {example}.")
    for what in ("signals", "epochs"):
        common[what] = {}
        for key, entry in right.get(what, {}).items():
            at = (*path, what)
            if not rule.NAME.fullmatch(key) or (what, key) == ("signals", COUNTS):
                meant = "stands for the spikes" if key == COUNTS else "is not a name"
                problems.add(at, f'"{key}" {meant}; a name has letters, digits, _ . and - only, and is not "counts".')
            elif form == "nwb" and not rule.TEXT.fits(entry):
                problems.add(at, f"{key} is {shown(entry)}; for nwb it must be a string, the name in the file.")
            else:
                common[what][key] = named((*at, key), what, entry) if form in ("npz", "zarr") else entry
    _find_arrays(problems, files, form, arrays)
    known = (tuple(right.get(what, {})) for what in ("signals", "epochs"))
    columns = {key: tuple(of.get("columns", ())) for key, of in common["signals"].items() if isinstance(of, dict)}
    return Data(name, "recording", _sessions(name, files, form, common), *known, columns)


def _find_arrays(problems: Problems, files: list[Path], form: str | None, arrays: list[tuple]) -> None:
    """Note arrays, as (table, key, name), that no file has; if some files lack them, their fits fail."""
    missing, known = arrays, set()
    for file in files if form in ("npz", "zarr") else []:
        names = names_in(file, form)
        if names is not None:
            known |= names
            missing = [array for array in missing if array[2] not in names]
        if not missing:
            return
    for table, key, name in missing if known else []:
        problems.add(table, f'{key}: no file has an array "{name}"{guess(name, sorted(known))}')


def _files(problems: Problems, path: tuple, right: dict, folder: Path) -> tuple[str | None, list[Path]]:
    """Return the files that the globs match, sorted, each once, and their format."""
    patterns = right.get("files", [])
    found: set[Path] = set()
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = glob.glob(os.path.expanduser(pattern), root_dir=folder, recursive=True)
        paths = {Path(os.path.normpath(folder / match)) for match in matches}
        # A link to a missing file stays: its task will fail, and report it.
        paths = {file for file in paths if not file.is_dir() or "zarr" in (file.suffix[1:], right.get("format"))}
        if not paths:
            text = f'nothing matches "{pattern}" in {folder}. Relative names start at the folder of the manifest.'
            problems.add(path, f"files: {text}")
        found |= paths
    files = sorted(found)
    if "format" in right:
        return right["format"], files
    forms = {file.suffix.removeprefix("."): file for file in reversed(files)}
    for unknown in sorted(forms.keys() - set(FORMATS)):
        allowed = rule.one_of(*FORMATS).allowed
        problems.add(path, f"the format of {forms[unknown].name} is not known; name it with format, {allowed}.")
        return None, []
    if len(forms) > 1:
        problems.add(path, f"the files are of several formats, {', '.join(sorted(forms))}; give each a [[data]] table.")
    return (next(iter(forms)) if len(forms) == 1 else None), files


def _sessions(name: str, files: list[Path], form: str | None, common: dict) -> dict[str, dict[str, Any]]:
    """Make sessions of files, named by stem, with as many parent folders as distinguish them."""
    labels = {file: file.stem for file in files}
    for depth in range(1, 64):
        taken = Counter(labels.values())
        equal = [file for file in files if taken[labels[file]] > 1]
        if not equal:
            break
        for file in equal:
            parts = [part for part in file.parts if part != file.anchor]
            # Files of a folder that differ only in the suffix are distinguished by it.
            last = file.name if depth >= len(parts) else file.stem
            labels[file] = "/".join([*parts[:-1][-depth:], last])
    return {f"{name}/{labels[file]}": {**common, "path": str(file), "format": form} for file in files}


def _loader(problems: Problems, path: tuple, table: dict, name: str, folder: Path) -> dict[str, dict[str, Any]]:
    right = check_table(problems, path, table, _LOADER, ("name", "loader"))
    if "loader" not in right:
        return {}
    try:
        function = find_loader(right["loader"], str(folder))
    except ImportError as error:
        problems.add(path, str(error))
        return {}
    common = {"kind": "loader", "folder": str(folder), "version": right.get("version", ""), "loader": right["loader"]}
    arguments = right.get("arguments", [{}])
    labels = [_label(entry) or str(i) for i, entry in enumerate(arguments)]
    taken = Counter(labels)
    sessions, first = {}, {}
    for i, entry in enumerate(arguments):
        wrong = _misfit(function, entry)
        if not is_plain(entry):
            wrong = "must be made of strings, finite numbers, true and false."
        elif (same := first.setdefault(digest(entry), i)) != i:
            wrong = f"are the same as those of session {same + 1}."
        if wrong:
            at = (*path, "arguments") if "arguments" in table else path
            problems.add(at, f"the arguments {shown(entry)} of session {i + 1} {wrong}")
        label = labels[i] if taken[labels[i]] == 1 else i
        sessions[f"{name}/{label}"] = {**common, "arguments": entry}
    return sessions


def _misfit(function: Any, arguments: dict) -> str | None:
    """Return why a function does not take some arguments; None if it does, or has no signature."""
    signature = None
    try:
        signature = inspect.signature(function)
        signature.bind(**arguments)
    except (TypeError, ValueError) as error:
        if signature is None:
            return None
        known = list(signature.parameters)
        unknown = [key for key in arguments if key not in known]
        return f"do not fit {function.__name__}{signature}: {error}{guess(unknown[0], known) if unknown else '.'}"
    return None


def _label(arguments: dict) -> str:
    """Write arguments as part of a name; empty if they are too many or too long."""
    text = ",".join(f"{key}={value if isinstance(value, str) else shown(value)}" for key, value in arguments.items())
    plain = all(rule.NAME.fullmatch(part) for pair in text.split(",") for part in pair.split("="))
    return text if plain and len(text) <= _LABEL else ""
