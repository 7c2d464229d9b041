"""An executed notebook: bars have names and end green and full, and results are tables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
pytest.importorskip("ipywidgets")

ROOT = Path(__file__).resolve().parents[1]
DATA = """
import numpy as np
from glmfit import PopulationGLM, PopulationGLMCV, SoftmaxGLM
rng = np.random.default_rng(0)
X = rng.normal(size=(600, 3))
Y = rng.poisson(np.exp(0.4 * X[:, :2] - 1))
labels = np.argmax(X + rng.gumbel(size=X.shape), axis=1)
"""
FITS = {
    "fitting 2 neurons": "PopulationGLM(verbose=True).fit(X, Y)",
    "2 strengths x 3 folds, 2 neurons": "PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3, verbose=True).fit(X, Y)",
    "fitting 3 classes": "SoftmaxGLM(solver_name='ConjugateGradients', verbose=True).fit(X, labels)",
}
RESULTS = {
    "report_": "PopulationGLM().fit(X, Y).report_",
    "cross-validated": "PopulationGLMCV(strengths=[1e-3, 1e-1], cv=3).fit(X, Y).report_",
    "classes": "SoftmaxGLM().fit(X, labels).report_",
    "wald": "import glmfit.inference; m = PopulationGLM().fit(X, Y); glmfit.inference.wald_table(m, X, Y)",
    "groups": "glmfit.inference.drop_groups(m, X, Y, {'first': 0, 'others': [1, 2]})",
    "rescaled": "glmfit.inference.rescale_time(Y, m.predict(X))",
}


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """Cells and their outputs, and the final state of widgets."""
    cells = [DATA, *(f"model = {fit}" for fit in FITS.values()), *RESULTS.values()]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    # The notebook's own process sees this checkout, and none of the settings of the tests.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]))
        patch.delenv("JAX_NUMPY_RANK_PROMOTION", raising=False)
        patch.setenv("IPYTHONDIR", str(tmp_path_factory.mktemp("ipython")))
        client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3")
        client.execute(cwd=str(tmp_path_factory.mktemp("notebook")))
    return book


@pytest.mark.thorough
def test_bars_in_a_notebook_have_names_and_end_green_and_full(notebook):
    state = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    models = [widget["state"] for widget in state.values()]
    texts = {id_: widget["state"].get("value", "") for id_, widget in state.items()}
    boxes = [model for model in models if model["_model_name"] == "HBoxModel"]
    assert len(boxes) == len(FITS)
    for box, name in zip(boxes, FITS, strict=True):
        before, bar, after = (child.removeprefix("IPY_MODEL_") for child in box["children"])
        bar = state[bar]["state"]
        assert bar["bar_style"] == "success" and bar["value"] == bar["max"] > 0
        assert f"glmfit: {name}: 100%" in texts[before].replace("\u2007", " ")
        assert "/" in texts[after]


@pytest.mark.thorough
def test_results_in_a_notebook_are_tables_and_never_arrays(notebook):
    for name, cell in zip(RESULTS, notebook.cells[-len(RESULTS) :], strict=True):
        (output,) = (output for output in cell.outputs if output.output_type == "execute_result")
        text, html = output.data["text/plain"], output.data["text/html"]
        assert "<table" in html and "array(" not in html, name
        assert "array(" not in text and len(text) < 5000, name
    assert "2 of 2 neurons converged" in notebook.cells[len(FITS) + 1].outputs[-1].data["text/plain"]


@pytest.mark.thorough
def test_nothing_in_a_notebook_goes_to_the_error_stream(notebook):
    for cell in notebook.cells:
        for output in cell.outputs:
            assert output.output_type != "error" and output.get("name") != "stderr", output.get("text")


@pytest.mark.thorough
def test_bars_in_a_terminal_have_names_and_end_full():
    """The last state of every bar, as it stays on the screen."""
    code = DATA + "\n".join(FITS.values())
    env = {**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "100"}
    env.pop("JAX_NUMPY_RANK_PROMOTION", None)
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, env=env, timeout=300)
    text = run.stderr.decode()
    assert run.returncode == 0, text
    lines = [line.rsplit("\r", 1)[-1] for line in text.strip().split("\n")]
    assert len(lines) == len(FITS)
    for line, name in zip(lines, FITS, strict=True):
        assert line.startswith(f"glmfit: {name}: 100%|")
