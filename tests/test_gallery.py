"""The notebooks of the gallery match the current examples, and run."""

import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

for module in ("PIL", "jupytext", "nbclient"):
    pytest.importorskip(module)
nbformat = pytest.importorskip("nbformat")
sys.path.insert(0, str(ROOT / "docs"))

import make_gallery  # noqa: E402

sys.path.pop(0)
every_example = pytest.mark.parametrize("example", EXAMPLES, ids=[path.stem for path in EXAMPLES])


def outputs(notebook):
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


@every_example
def test_a_notebook_is_its_example_executed(example):
    found, fresh = nbformat.read(GALLERY / f"{example.stem}.ipynb", 4), make_gallery.notebook(example)
    again = f"run: python docs/make_gallery.py {example.stem[:2]}"
    assert found.metadata.glmfit.sha256 == make_gallery.fingerprint(example), again
    assert [(c.cell_type, c.source) for c in found.cells] == [(c.cell_type, c.source) for c in fresh.cells], again
    nbformat.validate(found)
    code = [cell for cell in found.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for output in outputs(found) if output.output_type == "error"]


@every_example
def test_notebook_has_narration_and_figures(example):
    found = nbformat.read(GALLERY / f"{example.stem}.ipynb", 4)
    assert found.cells[0].source.startswith("# ")
    words = sum(len(cell.source.split()) for cell in found.cells if cell.cell_type == "markdown")
    assert words > 80  # narration, not code alone
    pictures = make_gallery.figures(found)
    assert pictures and all(5_000 < len(picture) < make_gallery.MOST_BYTES for picture in pictures)
    assert 5_000 < (GALLERY / f"{example.stem}.png").stat().st_size < make_gallery.THUMBNAIL[1]
    assert "converged" in "".join(output.text for output in outputs(found) if output.output_type == "stream")


def test_outputs_of_notebooks_have_no_absolute_paths():
    for path in GALLERY.glob("*.ipynb"):
        for output in outputs(nbformat.read(path, 4)):
            text = output.text if output.output_type == "stream" else str(output.data.get("text/plain", ""))
            assert not make_gallery.ABSOLUTE.search(text), f"{path.name}: {text}"


def test_the_index_has_a_card_for_every_example():
    text = (GALLERY / "index.md").read_text(encoding="utf-8")
    assert text == make_gallery.index(), "run: python docs/make_gallery.py"
    assert text.count("grid-item-card") == len(EXAMPLES) == len(list(GALLERY.glob("*.ipynb")))


@every_example
def test_the_lines_of_an_example_fit_on_the_page(example):
    long = [line for line in example.read_text(encoding="utf-8").splitlines() if len(line) > 80]
    assert not long


@pytest.mark.thorough(cases=2)
@every_example
def test_a_notebook_executes_without_recordings(example, tmp_path):
    pictures = make_gallery.figures(make_gallery.execute(example, tmp_path))
    assert len(pictures[-1]) > 5_000


@pytest.mark.parametrize("text", ["/home/me/x", "see /tmp/a.png", "(/root/x)"])
def test_an_absolute_path_is_refused(text):
    with pytest.raises(SystemExit, match="absolute path"):
        make_gallery.tidy(nbformat.v4.new_output("stream", text=text))


def test_bars_and_warnings_are_dropped_and_streams_joined():
    streams = [nbformat.v4.new_output("stream", name=name, text=name) for name in ("stdout", "stderr", "stdout")]
    assert [output.text for output in make_gallery.joined(streams)] == ["stdoutstdout"]
