"""Sessions from files of arrays: npz and zarr. Nothing is ever unpickled."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ._schema import guess
from .sessions import Session

PARTS = ("X", "y", "sample_weight", "offset", "exposure", "feature_names", "neuron_names")


def read_matrices(source: dict[str, Any]) -> Session:
    """Read X, y and what goes with them."""
    with arrays_of(source) as read, blaming(source["path"]):
        return Session(**{part: read(source[part]) for part in PARTS if part in source})


def read_recording(source: dict[str, Any]) -> Session:
    """Read spikes, signals and epochs."""
    with arrays_of(source) as read, blaming(source["path"]):
        signals = {
            name: (read(keys["times"]), read(keys["values"]), keys.get("columns"))
            for name, keys in source["signals"].items()
        }
        epochs = {name: _pairs(read, keys) for name, keys in source["epochs"].items()}
        spikes = (read(source["spikes"]["times"]), read(source["spikes"]["unit"]))
        return Session(spikes, signals, epochs, min_spikes=source["min_spikes"])


@contextlib.contextmanager
def blaming(path: str) -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(path) else f"{path}: {text}") from error


@contextlib.contextmanager
def blaming_damage(what: str) -> Iterator[None]:
    """Say of whatever a library raises that what it reads is damaged."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip(": ")
        raise ValueError(f"{what} is damaged ({reason}).") from error


@contextlib.contextmanager
def arrays_of(source: dict[str, Any]) -> Iterator[Callable[[str], np.ndarray]]:
    """Open a file of arrays; gives a function from a name to an array."""
    path = source["path"]
    if source["format"] == "zarr":
        yield _zarr_reader(path)
        return
    # numpy.load takes a path, but leaves it open when it fails.
    with open(path, "rb") as raw:
        with blaming_damage(f"{path} is not an npz file, or"):
            file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError(f"{path} is not an npz file but a single array; save it with numpy.savez.")
        with file:
            yield lambda name: _npz_array(file, path, name)


def names_in(path: Path, form: str) -> set[str] | None:
    """Names of the arrays in an npz file or a zarr group, without reading any; None if it cannot be read."""
    try:
        if form == "zarr":
            return set(_names(str(path)))
        if not path.is_file():
            return None  # a pipe would wait for somebody who writes
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except Exception:
        return None


def _npz_array(file: Any, path: str, name: str) -> np.ndarray:
    if name not in file.files:
        raise ValueError(f'{path} has no array "{name}"{guess(name, file.files)}')
    what = f'{path}: the array "{name}"'
    try:
        with blaming_damage(what):
            return file[name]
    except ValueError as error:
        if "Object arrays" not in str(error):
            raise
        raise ValueError(
            f"{what} holds Python objects, which only a pickle can keep; it is not read. Save it as numbers or text."
        ) from error


def _zarr_reader(path: str) -> Callable[[str], np.ndarray]:
    try:
        import zarr
    except ImportError as error:
        raise ImportError(f"{path} needs zarr: pip install zarr.") from error

    with blaming_damage(f"{path} is not a zarr group, or"):
        group = zarr.open_group(path, mode="r")

    def read(name: str) -> np.ndarray:
        what = f'{path}: the array "{name}"'
        with blaming_damage(what):
            array = group.get(name)
        if array is None:
            raise ValueError(f'{path} has no array "{name}"{guess(name, _names(path))}')
        if not isinstance(array, zarr.Array):
            raise ValueError(f'{path}: "{name}" is a group, not an array.')
        codecs = [getattr(codec, "codec_id", "") for codec in (*array.filters, *array.compressors)]
        if "pickle" in codecs or array.dtype == object:
            raise ValueError(f"{what} is pickled, and could run any code if it were read. Save it as numbers or text.")
        with blaming_damage(what):
            return np.asarray(array[...])

    return read


def _names(path: str) -> list[str]:
    """Names in a zarr group, without opening what they stand for."""
    return sorted(entry.name for entry in Path(path).iterdir() if entry.is_dir())


def _pairs(read: Callable[[str], np.ndarray], keys: dict[str, str]) -> np.ndarray:
    """Put starts and stops side by side."""
    start, stop = (np.atleast_1d(read(keys[side])) for side in ("start", "stop"))
    if start.shape != stop.shape or start.ndim != 1:
        raise ValueError(f"{keys['start']} has shape {start.shape}, {keys['stop']} {stop.shape}; both need (epoch,).")
    return np.column_stack([start, stop])
