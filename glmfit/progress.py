"""Progress bars of all loops: what they say they count, and how they end."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


def counted(n: int, noun: str) -> str:
    """Write a number and its noun, in the plural where it is one."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}{'es' if noun.endswith('s') else 's'}"


class ProgressBar:
    """A bar of work, such as "fitting 24 neurons"; it ends full where that was done, and else stays where it is."""

    def __init__(self, what: str, total: int, unit: str, show: bool, done: int = 0, **options: Any):
        self.n, self._what, self._bar = done, what, None
        if show:
            # Imported on use: in a notebook without ipywidgets the import warns, of a bar that few ask for.
            from tqdm.auto import tqdm

            with _unseen():
                # miniters: words are shown although nothing was counted meanwhile.
                self._bar = tqdm(desc=f"glmfit: {what}", total=total, initial=done, unit=unit, miniters=0, **options)

    @property
    def is_shown(self) -> bool:
        """Whether there is a bar to see."""
        return self._bar is not None

    def _tell(self, method: str, *arguments: Any, **options: Any) -> None:
        if self._bar is not None:
            with _unseen():
                getattr(self._bar, method)(*arguments, **options)

    def advance(self, n: int = 1) -> None:
        """Count some more."""
        self.n += n
        self._tell("update", n)

    def to(self, n: int) -> None:
        """Move to a count."""
        self.advance(n - self.n)

    def say(self, words: str) -> None:
        """Put a few words behind the bar, to be seen from its next move on."""
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
        """End at 100 %: the work was done, however much was thought to be needed; short of it where some is left."""
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
    """Go on where a terminal is gone, or a log cannot be written: the work is worth more than its bar."""
    return suppress(OSError, ValueError)  # ValueError: of a stream that is closed
