"""In which line of a TOML or JSON document a value stands.

The parsers of the standard library do not tell. These readers follow documents that those parsers have accepted, and
keep places instead of values.
"""

from __future__ import annotations

import bisect
import json
import re
from json.decoder import scanstring

Path = tuple  # of keys and indices, from the top: ("model", 0, "parameters", "tol")

_SPACE = re.compile(r"[ \t\r\n]*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SCALAR = re.compile(r"[^,\]}#\n]+")
_JSON_SCALAR = re.compile(r"[^,\]}\s]+")
_TOML_GAP = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_STRING = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}(?!")'  # a multi-line string may end in up to two quotes of its own
    r"|'''.*?'{3,5}(?!')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'[^'\n]*'",
    re.DOTALL,
)


class Lines:
    """Lines of the values of a document.

    Parameters
    ----------
    text : str
        A document without errors.
    suffix : {".toml", ".json"}
        How it is written.
    """

    def __init__(self, text: str, suffix: str):
        reader = _Toml(text) if suffix == ".toml" else _Json(text)
        reader.read()
        self._ends = [match.start() for match in re.finditer("\n", text)]
        self._places = reader.places
        self.repeated = [(path, self._line(at)) for path, at in reader.repeated]

    def line_of(self, path: Path) -> int:
        """Line of a value, counted from 1; that of what holds it where it is not there."""
        while path and path not in self._places:
            path = path[:-1]
        return self._line(self._places.get(path, 0))

    def _line(self, place: int) -> int:
        return bisect.bisect_left(self._ends, place) + 1


class _Reader:
    """Places of values, by path."""

    def __init__(self, text: str):
        self.text, self.at = text, 0
        self.places: dict[Path, int] = {}
        self.repeated: list[tuple[Path, int]] = []

    def skip(self, pattern: re.Pattern) -> str:
        """Go past what a pattern matches here, and return it."""
        match = pattern.match(self.text, self.at)
        if match is None:
            raise ValueError(f"the document cannot be followed at character {self.at}.")
        self.at = match.end()
        return match.group()

    def here(self, mark: str) -> bool:
        """Go past a mark if it stands here."""
        if not self.text.startswith(mark, self.at):
            return False
        self.at += len(mark)
        return True


class _Json(_Reader):
    def read(self) -> None:
        self.skip(_SPACE)
        self._value(())

    def _value(self, path: Path) -> None:
        if path not in self.places:
            self.places[path] = self.at
        if self.here("{"):
            self._members(path)
        elif self.here("["):
            self._elements(path)
        elif self.here('"'):
            self.at = scanstring(self.text, self.at)[1]
        else:
            self.skip(_JSON_SCALAR)
        self.skip(_SPACE)

    def _members(self, path: Path) -> None:
        self.skip(_SPACE)
        while not self.here("}"):
            start = self.at
            key, self.at = scanstring(self.text, self.at + 1)
            if (*path, key) in self.places:
                self.repeated.append(((*path, key), start))
            self.places[*path, key] = start
            self.skip(_SPACE)
            self.here(":")
            self.skip(_SPACE)
            self._value((*path, key))
            if self.here(","):
                self.skip(_SPACE)

    def _elements(self, path: Path) -> None:
        self.skip(_SPACE)
        index = 0
        while not self.here("]"):
            self._value((*path, index))
            index += 1
            if self.here(","):
                self.skip(_SPACE)


class _Toml(_Reader):
    def __init__(self, text: str):
        super().__init__(text)
        self.lengths: dict[Path, int] = {}  # of arrays of tables

    def read(self) -> None:
        table: Path = ()
        self.skip(_TOML_GAP)
        while self.at < len(self.text):
            start = self.at
            if self.here("[["):
                *outer, name = self._keys()
                array = (*self._resolve(outer), name)
                self.places.setdefault(array, start)
                table = (*array, self.lengths.get(array, 0))
                self.lengths[array] = table[-1] + 1
                self.places[table] = start
                self.here("]]")
            elif self.here("["):
                table = self._resolve(self._keys())
                self.places[table] = start
                self.here("]")
            else:
                self._entry(table)
            self.skip(_TOML_GAP)

    def _resolve(self, keys: list[str]) -> Path:
        """Path of a header's keys: an array of tables stands for its last one."""
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self.lengths:
                path = (*path, self.lengths[path] - 1)
        return path

    def _keys(self) -> list[str]:
        """Read a key, dotted or not."""
        keys = []
        while True:
            self.skip(_SPACE)
            if self.text[self.at] in "\"'":
                quoted = self.skip(_STRING)
                keys.append(quoted[1:-1] if quoted[0] == "'" else _unescape(quoted))
            else:
                keys.append(self.skip(_BARE))
            self.skip(_SPACE)
            if not self.here("."):
                return keys

    def _entry(self, table: Path) -> None:
        """Read ``key = value``."""
        start = self.at
        path = table
        for key in self._keys():
            path = (*path, key)
            self.places.setdefault(path, start)
        self.here("=")
        self.skip(_TOML_GAP)
        self._value(path)

    def _value(self, path: Path) -> None:
        self.places.setdefault(path, self.at)
        if self.here("["):
            self._several(path, "]")
        elif self.here("{"):
            self._several(path, "}")
        elif self.text[self.at] in "\"'":
            self.skip(_STRING)
        else:
            self.skip(_SCALAR)

    def _several(self, path: Path, end: str) -> None:
        """Read the rest of an array or of an inline table."""
        index = 0
        self.skip(_TOML_GAP)
        while not self.here(end):
            if end == "]":
                self._value((*path, index))
            else:
                self._entry(path)
            index += 1
            self.skip(_TOML_GAP)
            if self.here(","):
                self.skip(_TOML_GAP)


def _unescape(quoted: str) -> str:
    """Value of a quoted key of TOML; its escapes are those of JSON and one of eight digits."""
    short = re.sub(r"\\U([0-9A-Fa-f]{8})", lambda match: json.dumps(chr(int(match[1], 16)))[1:-1], quoted)
    return json.loads(short, strict=False)
