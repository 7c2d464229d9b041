"""The figures of the how-to pages are drawn from the code that the pages show."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "how_to" / "figures"


def is_small_png(path):
    return path.read_bytes().startswith(b"\x89PNG") and 5_000 < path.stat().st_size < 150_000


def test_every_figure_is_small_and_on_a_page():
    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs" / "how_to").glob("*.md"))
    shown = set(re.findall(r"\]\(figures/(\w+\.png)\)", pages))
    assert shown == {path.name for path in FOLDER.iterdir()}
    assert all(is_small_png(path) for path in FOLDER.iterdir())


@pytest.mark.slow
def test_the_figures_are_drawn(tmp_path, monkeypatch, loose_shapes):
    for module in ("matplotlib", "nemos"):
        pytest.importorskip(module)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    import how_to

    how_to.main(tmp_path)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in FOLDER.iterdir()}
    assert all(is_small_png(path) for path in tmp_path.iterdir())
