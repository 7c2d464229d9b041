"""The pages of the gallery belong to the examples as they are."""

import ast
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

pytest.importorskip("PIL")
sys.path.insert(0, str(ROOT / "docs"))

from make_gallery import ABSOLUTE, docstring, fingerprint, index, page  # noqa: E402

sys.path.pop(0)
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])


@every_example
def test_page_was_made_from_the_example_as_it_is(example):
    path = GALLERY / f"{example.stem}.md"
    remedy = f"run: python docs/make_gallery.py {example.stem[:2]}"
    assert path.is_file(), f"{example.name} has no page; {remedy}"
    text = path.read_text(encoding="utf-8")
    recorded = re.search(r"sha256 of \S+: ([0-9a-f]{64})", text)
    assert recorded and recorded[1] == fingerprint(example), f"{example.name} has changed since its page; {remedy}"
    printed = text.split("```text\n")[1].split("\n```")[0]
    assert text == page(example, printed)
    assert "converged" in printed
    assert not ABSOLUTE.search(text)


@every_example
def test_figure_is_there_and_small(example):
    content = (GALLERY / f"{example.stem}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert 5_000 < len(content) < 250_000


@every_example
def test_code_on_the_page_begins_after_the_docstring(example):
    title, text, first = docstring(example)
    lines = example.read_text(encoding="utf-8").splitlines()
    assert lines[first - 2].endswith('"""')
    assert ast.parse("\n".join(lines[first - 1 :])).body
    words = " ".join(text.split())
    assert title and "You will see" in words and "Run it with" in words


def test_index_has_every_example_and_nothing_else_is_there():
    assert (GALLERY / "index.md").read_text(encoding="utf-8") == index()
    expected = {"index.md"} | {f"{path.stem}.{kind}" for path in EXAMPLES for kind in ("md", "png")}
    assert {path.name for path in GALLERY.iterdir()} == expected


def test_the_documentation_leads_to_the_gallery():
    assert "gallery/index" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def test_absolute_paths_are_noticed():
    assert ABSOLUTE.search("figure: /home/me/figure.png")
    assert not ABSOLUTE.search("mu T/b, docs/theory/x.md, spikes/s, ../shared/data")
