"""How results show themselves: a few lines and a table, as text in a terminal, as HTML in a notebook."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 20


class Summary(NamedTuple):
    """Lines to read, a table, of whose rows the first and the last are shown, and lines below it."""

    head: list[str]
    table: pd.DataFrame | None = None
    tail: Sequence[str] = ()


class Display(ABC):
    """A result that shows its summary wherever it is shown, and never an array."""

    @abstractmethod
    def _summary(self) -> Summary:
        """Lines and table."""

    def __str__(self) -> str:
        """Return lines and table as text."""
        head, table, tail = self._summary()
        text = [] if table is None else table.to_string(**_style(table)).split("\n")
        return "\n".join(head + ["", *text, ""] * (table is not None) + [*tail]).strip("\n")

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Return lines and table for a notebook."""
        head, table, tail = self._summary()
        table = self.to_frame() if table is None and hasattr(self, "to_frame") else table
        rows = "" if table is None else table.to_html(border=0, **_style(table))
        return f"<div>{_paragraph(head)}{rows}{_paragraph(tail)}</div>"


def _style(table: pd.DataFrame) -> dict:
    numbered = table.index.nlevels == 1 and table.index.name is None
    return {"index": not numbered, "max_rows": _MOST_ROWS, "float_format": "{:.3g}".format, "na_rep": "nan"}


def _paragraph(lines: Sequence[str]) -> str:
    text = html.escape("\n".join(lines))
    return f'<pre style="white-space: pre-wrap">{text}</pre>' if lines else ""


def long_frame(neuron: list, second: str, names: list, values: dict) -> pd.DataFrame:
    """Rows of (second, neuron) arrays as a pandas DataFrame, one per neuron and name."""
    import pandas as pd

    index = pd.MultiIndex.from_product([neuron, names], names=["neuron", second])
    return pd.DataFrame({name: array.T.ravel() for name, array in values.items()}, index=index)


def one_line(text: str) -> str:
    """Show control characters of names and errors as escapes: a terminal obeys them, and lines are lines of ours."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Show what `one_line` shows, of a text of several lines."""
    return "\n".join(map(one_line, text.split("\n")))
