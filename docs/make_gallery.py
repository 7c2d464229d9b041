"""Run the examples as notebooks and write the gallery: ``python docs/make_gallery.py [01 08 ...]``, or all of them.

An example is a script in cells (``# %%``), the one source of its notebook. The notebook is executed and kept with its
outputs and the SHA-256 of its source: tests/test_gallery.py fails if the example has changed.
Its last figure becomes the thumbnail. Recordings are taken from ../shared/data next to the checkout, or simulated.
"""

import base64
import hashlib
import io
import os
import re
import sys
import tempfile
import time
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
MOST_BYTES = 240_000  # of a figure
THUMBNAIL = (1400, 200_000)  # width in pixels, largest size in bytes
ABSOLUTE = re.compile(r"(?<![\w.)])/(?:home|tmp|root|Users|work|usr|opt|mnt|var)/\S*")
TAGS = {
    "01": "one neuron", "02": "pynapple", "03": "cross-validation", "04": "NeMoS", "05": "recording, softmax",
    "06": "recording, softmax", "07": "response model", "08": "recording, population", "09": "recording, coupling",
    "10": "recording, cross-validation", "11": "batch", "12": "recording, inference",
    "13": "recording, observation models", "14": "recording, observation models", "15": "recording, masks",
    "16": "recording, inference", "17": "recording, inference, coupling",
    "18": "recording, smooth terms, inference", "19": "recording, smooth terms, cross-validation",
}  # fmt: skip


def fingerprint(example):
    """SHA-256 of a source file, with the line ends of Unix."""
    return hashlib.sha256(example.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def notebook(example):
    """The notebook of an example, not executed: its cells, with a stable id each."""
    found = jupytext.read(example, fmt="py:percent")
    for k, cell in enumerate(found.cells):
        cell.id, cell.metadata = f"cell-{k:02d}", {}
    found.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
        "glmfit": {"source": f"examples/{example.name}", "sha256": fingerprint(example)},
    }
    return found


def title(example):
    """The heading of the first cell."""
    return notebook(example).cells[0].source.partition("\n")[0].lstrip("# ").strip()


def question(example):
    """The question that the first cell asks."""
    text = notebook(example).cells[0].source.split("**Question.**")[1]
    return " ".join(text.partition("?")[0].split()) + "?"


def execute(example, recordings):
    """The notebook with its outputs; `recordings` is a folder."""
    found = notebook(example)
    environment = {
        "GLMFIT_RECORDINGS": str(recordings),
        "PYTHONPATH": str(ROOT),
        "PYTHONWARNINGS": "ignore",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",  # regardless of the backend of this process
    }
    before = dict(os.environ)
    os.environ |= environment  # the kernel inherits it
    try:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "matplotlibrc").write_text("figure.dpi: 150\n")  # of a screen; read by the kernel
            NotebookClient(found, timeout=900, resources={"metadata": {"path": folder}}, record_timing=False).execute()
    finally:
        os.environ.clear()
        os.environ |= before
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs = [tidy(output) for output in joined(cell.outputs)]
            cell.metadata = {}
    return found


def joined(outputs):
    """Outputs without progress bars and warnings, with consecutive streams merged."""
    found = []
    for output in outputs:
        if output.output_type == "stream" and output.name == "stderr":
            continue
        if found and output.output_type == "stream" == found[-1].output_type:
            found[-1].text += output.text
        else:
            found.append(output)
    return found


def tidy(output):
    """An output with small figures and without absolute paths."""
    texts = [output.text] if output.output_type == "stream" else list(output.get("data", {}).values())
    if any(ABSOLUTE.search(text) for text in texts if isinstance(text, str)):
        raise SystemExit(f"an absolute path in an output: {texts}")
    if "image/png" in output.get("data", {}):
        figure = Image.open(io.BytesIO(base64.b64decode(output.data["image/png"])))
        output.data["image/png"] = base64.b64encode(small_png(figure)).decode()
        output.data.pop("text/plain", None)
    return output


def small_png(figure, widths=(1500, 1300, 1100, 900), most_bytes=MOST_BYTES):
    """Bytes of a figure, as wide as the size limit allows, in full colour if possible."""
    figure = figure.convert("RGB")
    for width in widths:
        width = min(width, figure.width)
        for colors in (None, 256):
            drawn = figure.resize((width, round(figure.height * width / figure.width)), Image.LANCZOS)
            drawn = drawn if colors is None else drawn.quantize(colors)
            buffer = io.BytesIO()
            drawn.save(buffer, "PNG", optimize=True)
            if buffer.tell() < most_bytes:
                return buffer.getvalue()
    raise SystemExit("a figure stays too large; draw less on it")


def figures(found):
    """PNG files of an executed notebook."""
    outputs = [output for cell in found.cells if cell.cell_type == "code" for output in cell.outputs]
    return [base64.b64decode(o.data["image/png"]) for o in outputs if "image/png" in o.get("data", {})]


def index():
    """Text of the page with a card per example."""
    cards = "".join(
        f""":::{{grid-item-card}} {title(example)}
:link: {example.stem}
:link-type: doc
:img-top: {example.stem}.png

{question(example)}

{" ".join(f"{{bdg-secondary}}`{tag.strip()}`" for tag in TAGS[example.stem[:2]].split(","))}
:::

"""
        for example in EXAMPLES
    )
    names = "\n".join(example.stem for example in EXAMPLES)
    return f"""# Gallery

Notebooks that run in about a minute each, with what they print and draw. You can download each as a notebook or as a
script. Recordings are not shipped: an example that does not find its recording simulates data like it.

::::{{grid}} 1 2 3 3
:gutter: 3

{cards}::::

```{{toctree}}
:hidden:

{names}
```
"""


def main():
    """Make the notebooks named on the command line, or all, and the index."""
    GALLERY.mkdir(exist_ok=True)
    recordings = Path(os.environ.get("GLMFIT_RECORDINGS", ROOT.parent / "shared" / "data")).resolve()
    for example in EXAMPLES:
        if sys.argv[1:] and example.stem[:2] not in sys.argv[1:]:
            continue
        start = time.perf_counter()
        found = execute(example, recordings)
        nbformat.write(found, GALLERY / f"{example.stem}.ipynb")
        last = Image.open(io.BytesIO(figures(found)[-1]))
        width, most = THUMBNAIL
        (GALLERY / f"{example.stem}.png").write_bytes(small_png(last, (width, 1200, 1000, 800), most))
        print(f"{example.stem}: {time.perf_counter() - start:.0f} s, {len(figures(found))} figures", flush=True)
    (GALLERY / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
