"""Whether what a fit reads is still at its end what it was at its beginning."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from .._warn import warn_user
from ..design import RowSource
from ..design._signatures import OpenFile, Stamp


class Watch:
    """What the data of a fit are read from, as it was when this was made.

    Parameters
    ----------
    data : iterable
        Sources, and arrays in memory or mapped; None is left out.
    """

    def __init__(self, data: Iterable[Any]):
        self._read = [found for given in data if (found := _signed(given)) is not None]
        self._before = self._signature()

    def warn_of_changes(self) -> None:
        """Warn once if something has changed since: a fit does not end, and what it found is not lost."""
        now, changed, replaced = self._signature(), [], []
        for name, was in self._before.items():
            if _read(was) != _read(now.get(name)):
                changed.append(name)
            elif was != now[name] and now[name].at_path is not None:
                replaced.append(name)
        said = []
        if changed:
            said.append(
                f"data changed while the fit read them: {', '.join(changed)}. Coefficients, gaps and statuses may be "
                "those of a mixture of rows from before and after; fit again when nothing writes there any more."
            )
        if replaced:
            said.append(
                f"another file was put in place during the fit: {', '.join(replaced)}. The fit is of the file that was "
                "there when it began."
            )
        if said:
            warn_user(" ".join(said))

    def _signature(self) -> dict[str, Hashable]:
        return {name: state for source in self._read for name, state in source.signature().items()}


def _signed(given: Any):
    """Return what has the signature of data that are read during the fit, None for data in memory."""
    if isinstance(given, RowSource):
        return given
    mapped = isinstance(given, np.memmap) and given._mmap is not None and given.filename is not None
    return OpenFile(given.filename) if mapped else None


def _read(state: Hashable) -> Hashable:
    """Return the part of a state that is of what rows are read from."""
    return state.read if isinstance(state, Stamp) else state
