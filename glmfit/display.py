"""Display of results as text or HTML, a few lines and a table; progress bars."""

from __future__ import annotations

import html
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pandas as pd

_MOST_ROWS = 20


class Summary(NamedTuple):
    """Lines of text, a table, whose first and last rows are shown, and lines below it."""

    head: list[str]
    table: pd.DataFrame | None = None
    tail: Sequence[str] = ()


class Display(ABC):
    """Result that is always shown as its summary, never as an array."""

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


def _style(table: pd.DataFrame) -> dict[str, Any]:
    numbered = table.index.nlevels == 1 and table.index.name is None
    return {"index": not numbered, "max_rows": _MOST_ROWS, "float_format": "{:.3g}".format, "na_rep": "nan"}


def _paragraph(lines: Sequence[str]) -> str:
    text = html.escape("\n".join(lines))
    return f'<pre style="white-space: pre-wrap">{text}</pre>' if lines else ""


def frame_by_neuron(neuron: Sequence[Any], columns: dict[str, Any], **levels: Sequence[Any]) -> pd.DataFrame:
    """Return a pandas DataFrame with a row per neuron and name of each level, of arrays (last level, ..., neuron)."""
    import pandas as pd

    if not levels:
        return pd.DataFrame(columns, index=pd.Index(neuron, name="neuron"))
    index = pd.MultiIndex.from_product([neuron, *levels.values()], names=["neuron", *levels])
    return pd.DataFrame({name: array.T.ravel() for name, array in columns.items()}, index=index)


def one_line(text: str) -> str:
    """Escape control characters in names and errors: a terminal would obey them, or a line would break."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def printable(text: str) -> str:
    """Apply `one_line` to every line of a text."""
    return "\n".join(map(one_line, text.split("\n")))


def counted(n: int, noun: str) -> str:
    """Write a number and its noun, in the plural unless it is 1."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('s') else 's'}"


class ProgressBar:
    """Progress bar, such as "fitting 24 neurons"; it ends full if the work was done, else it stays where it is."""

    def __init__(self, what: str, total: int, unit: str, show: bool, done: int = 0, **options: Any):
        self.n, self._what, self._bar = done, what, None
        if show:
            # Imported on use: in a notebook without ipywidgets the import warns, and few users want the bar.
            from tqdm.auto import tqdm

            with _unseen():
                # miniters: words are shown even if the count has not changed.
                self._bar = tqdm(desc=f"glmfit: {what}", total=total, initial=done, unit=unit, miniters=0, **options)

    @property
    def is_shown(self) -> bool:
        """Whether a bar is shown."""
        return self._bar is not None

    def _tell(self, method: str, *arguments: Any, **options: Any) -> None:
        if self._bar is not None:
            with _unseen():
                getattr(self._bar, method)(*arguments, **options)

    def advance(self, n: int = 1) -> None:
        """Advance the count by n."""
        self.n += n
        self._tell("update", n)

    def to(self, n: int) -> None:
        """Move to a count."""
        self.advance(n - self.n)

    def say(self, words: str) -> None:
        """Put a few words after the bar; they appear at its next update."""
        self._tell("set_postfix_str", words, refresh=False)

    @contextmanager
    def phase(self, words: str) -> Iterator[None]:
        """Name a part of the work while it lasts."""
        self._describe(words)
        try:
            yield
        finally:
            self._describe(self._what)

    def _describe(self, words: str) -> None:
        self.say("")
        self._tell("set_description_str", f"glmfit: {words}")

    def finish(self, decided: bool = True) -> None:
        """End at 100 % if the work was done, whatever total was expected; short of it if some is left."""
        self.to(max(self.n, 1))  # what comes before the first, and may be all there is, counts as one
        if self._bar is not None:
            self._bar.total = self.n if decided else max(self._bar.total, self.n + 1)
            if hasattr(self._bar, "container"):  # of a notebook, which keeps a total of its own
                self._bar.container.children[1].max = self._bar.total

    def write(self, text: str) -> None:
        """Print a line to stderr without tearing the bar; nothing if the bar is not shown."""
        self._tell("write", text, file=sys.stderr)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._tell("close")


def _unseen() -> suppress:
    """Continue if a terminal is gone or a log cannot be written: the work matters more than its bar."""
    return suppress(OSError, ValueError)  # ValueError: of a stream that is closed
