"""Sessions from NWB files, through pynapple and pynwb; HDF5, no pickle."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from ._schema import guess
from .arrays import blaming, blaming_damage
from .sessions import Session


def read_nwb(source: dict[str, Any]) -> Session:
    """Read units, signals and interval sets; values as they are stored, without NWB's conversion factors."""
    import pynapple as nap

    path = source["path"]
    with _opened(path) as file, blaming(path):
        units = _take(file, path, source["spikes"], "units", nap.TsGroup)
        # Without its time support, which is that of the spikes found: the same for every format.
        spikes = {unit: train.t for unit, train in units.items()}
        signals = {name: _signal(file, path, key, nap) for name, key in source["signals"].items()}
        epochs = {name: _epochs(file, path, key) for name, key in source["epochs"].items()}
        return Session(spikes, signals, epochs, min_spikes=source["min_spikes"])


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open a file by pynapple, and close it."""
    try:
        import pynwb  # noqa: F401  pynapple imports it when it reads
    except ImportError as error:
        raise ImportError(f"{path} needs pynwb: pip install pynwb.") from error
    from pynapple.io import NWBFile

    with warnings.catch_warnings():
        # hdmf warns of namespaces of other versions and of details of the standard: nothing to be done here.
        warnings.simplefilter("ignore", UserWarning)
        with blaming_damage(f"{path} is not an NWB file, or"):
            file = NWBFile(path)
        with contextlib.closing(file):
            yield file


def _name(file: Any, path: str, key: str) -> str:
    """Find the name of an object that is given by it, or by its full path."""
    name, known = file.full_path_to_key.get(key, key), list(file.keys())
    if name not in known:
        raise ValueError(f'{path} has no "{key}"{guess(key, known)}')
    return name


def _take(file: Any, path: str, key: str, what: str, *kinds: type) -> Any:
    """Read an object of the file."""
    name = _name(file, path, key)
    with blaming_damage(f'{path}: "{key}"'):
        found = file[name]
    if not isinstance(found, kinds):
        raise ValueError(f'{path}: "{key}" is a {type(found).__name__}, which holds no {what}.')
    return found


def _signal(file: Any, path: str, key: str, nap: Any) -> tuple:
    """Read times, values and names of columns of a signal."""
    found = _take(file, path, key, "signal of one or several columns", nap.Tsd, nap.TsdFrame)
    with blaming_damage(f'{path}: "{key}"'):  # read when it is asked for
        values = np.asarray(found.values)
    columns = [str(column) for column in found.columns] if isinstance(found, nap.TsdFrame) else None
    return found.t, values, columns


def _epochs(file: Any, path: str, key: str) -> np.ndarray:
    """Read starts and stops as they are written; pynapple would merge intervals that overlap."""
    table = file.nwb.objects[file.key_to_id[_name(file, path, key)]]
    if not {"start_time", "stop_time"} <= set(getattr(table, "colnames", ())):
        raise ValueError(f'{path}: "{key}" is a {type(table).__name__}, which holds no intervals.')
    return np.column_stack([np.asarray(table[side].data[:]) for side in ("start_time", "stop_time")])
