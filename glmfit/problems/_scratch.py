"""Arrays too large for memory, in temporary files."""

from __future__ import annotations

import errno
import math
import os
import tempfile

import numpy as np
from numpy.typing import DTypeLike

_UNSUPPORTED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)
_PIECE = 2**20


def mapped_zeros(shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap:
    """Map an array of zeros to a temporary file that is gone with it.

    Raises
    ------
    OSError
        If there is no room for it. Space is reserved first: where a disk turns out to be full only when a mapping is
        written to, the kernel ends the process (SIGBUS).
    """
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    folder = tempfile.gettempdir()
    try:
        with tempfile.TemporaryFile(prefix="glmfit-table-", dir=folder) as file:
            _reserve(file, n_bytes)
            return np.memmap(file, dtype, "r+", shape=shape)  # the mapping keeps the file
    except OSError as error:
        raise OSError(
            error.errno,
            f"the fit needs a temporary file of {n_bytes} bytes in {folder}, which cannot be made "
            f"({error.strerror or error}). Free that much there, set the environment variable TMPDIR to a folder with "
            "more room, or raise max_memory so that the fit's table stays in memory",
        ) from error


def _reserve(file, n_bytes: int) -> None:
    """Give a file a size for which there is room on the disk."""
    if hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, n_bytes)
            return
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
    for start in range(0, n_bytes, _PIECE):
        file.write(bytes(min(_PIECE, n_bytes - start)))
    file.flush()
