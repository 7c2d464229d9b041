"""Sessions from files: npz, zarr and NWB. Nothing is ever unpickled."""

import contextlib
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .rules import guess
from .sessions import Session

PARTS = ("X", "y", "sample_weight", "offset", "exposure", "feature_names", "neuron_names")


def read_session(source: dict[str, Any]) -> Session:
    """Read the session that a source of a manifest describes: matrices, or spikes, signals and epochs."""
    path = source["path"]
    if source["format"] == "nwb":
        with _nwb(path) as file, _blaming(path):
            return _read_nwb(file, path, source)
    with _arrays(path, source["format"]) as read, _blaming(path):
        if source["kind"] == "matrices":
            return Session(**{part: read(source[part]) for part in PARTS if part in source})
        signals = {
            name: (read(keys["times"]), read(keys["values"]), keys.get("columns"))
            for name, keys in source["signals"].items()
        }
        epochs = {name: _pairs(read, keys) for name, keys in source["epochs"].items()}
        spikes = (read(source["spikes"]["times"]), read(source["spikes"]["unit"]))
        return Session(spikes, signals, epochs, min_spikes=source["min_spikes"])


def read_signal(path: str, form: str, name: str) -> np.ndarray:
    """Read one array of an npz file or a zarr group; ValueError or OSError if that fails."""
    with _arrays(path, form) as read:
        return read(name)


@contextlib.contextmanager
def _blaming(path: str) -> Iterator[None]:
    """Name the file in errors about what it holds."""
    try:
        yield
    except (TypeError, ValueError) as error:
        text = str(error)
        raise ValueError(text if text.startswith(path) else f"{path}: {text}") from error


@contextlib.contextmanager
def _blaming_damage(what: str) -> Iterator[None]:
    """Turn any error of a library into a ValueError that reports damage, or a pickle."""
    try:
        yield
    except Exception as error:
        if "Object arrays" in str(error):
            why = "holds Python objects, which need a pickle; it is not read. Save it as numbers or text."
            raise ValueError(f"{what} {why}") from error
        reason = f"{type(error).__name__}: {error}".strip(": ")
        raise ValueError(f"{what} is damaged ({reason}).") from error


# -- npz and zarr


@contextlib.contextmanager
def _arrays(path: str, form: str) -> Iterator[Callable[[str], np.ndarray]]:
    """Open a file of arrays; yield a function from a name to an array."""
    if form == "zarr":
        yield _zarr_reader(path)
        return
    # numpy.load takes a path, but leaves it open when it fails.
    with open(path, "rb") as raw:
        if raw.read(2) not in (b"PK", b"\x93N"):  # of a zip file, or a single array
            raise ValueError(f"{path} is not an npz file; save it with numpy.savez.")
        raw.seek(0)
        with _blaming_damage(f"{path} is not an npz file, or"):
            file = np.load(raw, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError(f"{path} is not an npz file but a single array; save it with numpy.savez.")

        def read(name: str) -> np.ndarray:
            if name not in file.files:
                raise ValueError(f'{path} has no array "{name}"{guess(name, file.files)}')
            with _blaming_damage(f'{path}: the array "{name}"'):
                return file[name]

        with file:
            yield read


def names_in(path: Path, form: str) -> set[str] | None:
    """Return the names of arrays in an npz file or a zarr group, without reading any; None if it cannot be read."""
    try:
        if form == "zarr":
            return set(_names_in_group(path))
        if not path.is_file():
            return None  # a pipe would wait for a writer
        with zipfile.ZipFile(path) as file:
            return {name.removesuffix(".npy") for name in file.namelist()}
    except Exception:
        return None


def _names_in_group(path: Path) -> list[str]:
    """Return the names in a zarr group, without opening its members."""
    return sorted(entry.name for entry in path.iterdir() if entry.is_dir())


def _zarr_reader(path: str) -> Callable[[str], np.ndarray]:
    try:
        import zarr
    except ImportError as error:
        raise ImportError(f"{path} needs zarr: pip install zarr.") from error

    with _blaming_damage(f"{path} is not a zarr group, or"):
        group = zarr.open_group(path, mode="r")

    def read(name: str) -> np.ndarray:
        what = f'{path}: the array "{name}"'
        with _blaming_damage(what):
            array = group.get(name)
        if array is None:
            raise ValueError(f'{path} has no array "{name}"{guess(name, _names_in_group(Path(path)))}')
        if not isinstance(array, zarr.Array):
            raise ValueError(f'{path}: "{name}" is a group, not an array.')
        codecs = [getattr(codec, "codec_id", "") for codec in (*array.filters, *array.compressors)]
        if "pickle" in codecs or array.dtype == object:
            raise ValueError(f"{what} is pickled, and could run any code if it were read. Save it as numbers or text.")
        with _blaming_damage(what):
            return np.asarray(array[...])

    return read


def _pairs(read: Callable[[str], np.ndarray], keys: dict[str, str]) -> np.ndarray:
    """Put starts and stops side by side."""
    start, stop = (np.atleast_1d(read(keys[side])) for side in ("start", "stop"))
    if start.shape != stop.shape or start.ndim != 1:
        needs = f"{keys['start']} has shape {start.shape}, {keys['stop']} {stop.shape}; both need (epoch,)."
        raise ValueError(f"an interval set is incomplete: {needs}")
    return np.column_stack([start, stop])


# -- NWB, through pynapple and pynwb: HDF5


@contextlib.contextmanager
def _nwb(path: str) -> Iterator[Any]:
    """Open a file with pynapple, and close it."""
    try:
        import pynwb  # noqa: F401  pynapple imports it when it reads
    except ImportError as error:
        raise ImportError(f"{path} needs pynwb: pip install pynwb.") from error
    from pynapple.io import NWBFile

    with warnings.catch_warnings():
        # hdmf warns of namespaces of other versions and of details of the standard: not relevant here.
        warnings.simplefilter("ignore", UserWarning)
        with _blaming_damage(f"{path} is not an NWB file, or"):
            file = NWBFile(path)
        with contextlib.closing(file):
            yield file


def _read_nwb(file: Any, path: str, source: dict[str, Any]) -> Session:
    """Read units, signals and interval sets; values as they are stored, without NWB's conversion factors."""
    import pynapple as nap

    def name_of(key: str) -> str:
        name, known = file.full_path_to_key.get(key, key), list(file.keys())  # a name, or a full path
        if name not in known:
            raise ValueError(f'{path} has no "{key}"{guess(key, known)}')
        return name

    def take(key: str, what: str, *kinds: type) -> Any:
        name = name_of(key)
        with _blaming_damage(f'{path}: "{key}"'):
            found = file[name]
        if not isinstance(found, kinds):
            raise ValueError(f'{path}: "{key}" is a {type(found).__name__}, which holds no {what}.')
        return found

    def signal(key: str) -> tuple:
        found = take(key, "signal of one or several columns", nap.Tsd, nap.TsdFrame)
        with _blaming_damage(f'{path}: "{key}"'):  # read on access
            values = np.asarray(found.values)
        return found.t, values, [str(column) for column in getattr(found, "columns", ())]

    def intervals(key: str) -> np.ndarray:
        table = file.nwb.objects[file.key_to_id[name_of(key)]]  # pynapple would merge intervals that overlap
        if not {"start_time", "stop_time"} <= set(getattr(table, "colnames", ())):
            raise ValueError(f'{path}: "{key}" is a {type(table).__name__}, which holds no intervals.')
        return np.column_stack([np.asarray(table[side].data[:]) for side in ("start_time", "stop_time")])

    # Without its time support: it is that of the spikes found, as for every format.
    spikes = {unit: train.t for unit, train in take(source["spikes"], "units", nap.TsGroup).items()}
    signals = {name: signal(key) for name, key in source["signals"].items()}
    epochs = {name: intervals(key) for name, key in source["epochs"].items()}
    return Session(spikes, signals, epochs, min_spikes=source["min_spikes"])
