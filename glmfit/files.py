"""Saving and loading: arrays and a JSON header in one npz file, written atomically, never a pickle."""

import contextlib
import functools
import io
import json
import os
import stat
import time
import tokenize
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import numpy as np

FORMAT = "glmfit/1"
STALE_PART_S = 3600.0  # older partial files are left over from a process that was killed

# Errors from reading a file that was truncated, changed or made to do harm. SyntaxError and TokenError: the header of
# an array is a Python literal; RuntimeError: brackets too deep, or an archive that claims a password; MemoryError: an
# array that claims to be huge; OverflowError: a number that is.
_WRONG = (ValueError, TypeError, LookupError, AttributeError, EOFError, RuntimeError, OverflowError, SyntaxError)
DAMAGED = (*_WRONG, OSError, MemoryError, tokenize.TokenError, zipfile.BadZipFile, zlib.error)


def save_npz(path, header: dict, arrays: dict[str, np.ndarray]) -> Path:
    """Write header and arrays to ``path`` (".npz" is added if missing); the file is complete or absent."""
    if not isinstance(path, str | os.PathLike):
        needs = "it must be a str or pathlib.Path, such as 'model.npz'."
        raise TypeError(f"path is {path!r}, of type {type(path).__name__}; {needs}")
    if str(path).endswith(("/", os.sep)) or Path(path).is_dir():
        raise ValueError(f"cannot save to {path}: it is a folder. Give the name of a file in it, ending in '.npz'.")
    path = Path(path)
    if path.suffix not in ("", ".npz"):
        what = f"models are saved as .npz files, not as {path.suffix!r}. Give '{path}.npz'."
        raise ValueError(f"cannot save to {path}: {what}")
    path = path.with_suffix(".npz")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot save to {path}: the folder {path.parent} does not exist. Create it first.")
    text = json.dumps({"format": FORMAT, **header})
    with whole_or_absent(path) as part:
        np.savez_compressed(part, header=np.frombuffer(text.encode(), np.uint8), **arrays)
    return path


@contextlib.contextmanager
def whole_or_absent(path: Path) -> Iterator[BinaryIO]:
    """Open a file next to ``path`` to be written; it replaces ``path`` if nothing is raised."""
    # Not a tempfile: only its owner can read it, and a model is often read by colleagues.
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")
    try:
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename, error.filename2 = str(path), None  # the error of a write has no file name
        raise


def remove_stale_parts(folder: Path, of: str = "*") -> None:
    """Remove partial files of processes killed long ago from a folder; ``of`` is a pattern for file names."""
    for part in folder.glob(f".{of}.*.part"):
        with contextlib.suppress(OSError):  # already removed, or owned by somebody else
            if time.time() - part.stat().st_mtime > STALE_PART_S:
                part.unlink()


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read; refuse a pipe or a device, which may have no end."""
    raw = open(path, "rb", opener=lambda name, flags: os.open(name, flags | getattr(os, "O_NONBLOCK", 0)))
    if not stat.S_ISREG(os.fstat(raw.fileno()).st_mode):
        raw.close()
        raise ValueError(f"{path} is not a file but a pipe or a device.")
    return raw


def open_to_append(path: Path) -> BinaryIO:
    """Open a file of ours to append to; a link or pipe that somebody put there is replaced, not written to."""
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(os.lstat(path).st_mode):
            os.unlink(path)
    # One that appears in between is refused: a link is not followed, and nobody waits for the reader of a pipe.
    more = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    return open(path, "ab", opener=lambda name, flags: os.open(name, flags | more, 0o666))


def read_regular(path: Path, most: int = -1) -> bytes:
    """Read a file, or the first bytes of it; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read(most)


def load_npz(path) -> tuple[dict, dict[str, np.ndarray]]:
    """Read a file of `save_npz`; raise ValueError if it is not one of ours or has a newer format."""
    path = Path(path)
    if not path.exists() and path.with_name(path.name + ".npz").exists():
        path = path.with_name(path.name + ".npz")
    try:
        header, arrays = read_npz(path)
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        why = f"it has no {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{path} is not a model saved by glmfit ({why}).") from error
    if header.get("format") != FORMAT:
        reads = f"this version of glmfit reads {FORMAT!r}: load it with the version that wrote it."
        raise ValueError(f"{path} has format {header.get('format')!r}, {reads}")
    return header, {name: array.copy() for name, array in arrays.items()}


def read_npz(path, header_only: bool = False) -> tuple[dict, dict[str, np.ndarray]]:
    """Read header and arrays, views of what was read; checksums are compared. Raises one of `DAMAGED`."""
    with open_regular(path) as raw, zipfile.ZipFile(raw) as archive:
        members = ["header.npy"] if header_only else archive.namelist()
        arrays = {name.removesuffix(".npy"): _array(archive.read(name)) for name in members}
    header = json.loads(arrays.pop("header").tobytes())
    if not isinstance(header, dict):
        raise ValueError("its header is not one of ours")
    return header, arrays


def _array(data: bytes) -> np.ndarray:
    """Make an array from the bytes of an npy file: a view, or a copy for other versions of the format."""
    if data[:8] != b"\x93NUMPY\x01\x00":
        return np.lib.format.read_array(io.BytesIO(data), allow_pickle=False)
    start = 10 + int.from_bytes(data[8:10], "little")
    shape, order, dtype = _layout(data[8:start])
    return np.ndarray(shape, dtype, data, start, order=order)


@functools.lru_cache(4096)
def _layout(head: bytes) -> tuple[tuple[int, ...], str, np.dtype]:
    """Read shape, order and dtype from the header of an array; most results of a batch share them."""
    shape, fortran, dtype = np.lib.format.read_array_header_1_0(io.BytesIO(head))
    if dtype.hasobject:
        raise ValueError("it holds Python objects")
    return shape, "F" if fortran else "C", dtype
