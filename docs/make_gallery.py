"""Run the examples and write the pages of the gallery: ``python docs/make_gallery.py [01 08 ...]``, or all of them.

Examples on recordings use those in ../shared/data beside the checkout and simulate data like them where that is not.
Each page has the title and text of the example's docstring, its figure, what it printed and its code, and records the
SHA-256 of its source: tests/test_gallery.py fails when an example has changed since.
"""

import ast
import hashlib
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).resolve().parents[1]
GALLERY = ROOT / "docs" / "gallery"
EXAMPLES = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
MOST_BYTES = 240_000
ABSOLUTE = re.compile(r"(?<![\w.)])/(?:home|tmp|root|Users|work|usr|opt|mnt|var)/\S*")


def fingerprint(example):
    """SHA-256 of a source file, with the line ends of Unix."""
    return hashlib.sha256(example.read_bytes().replace(b"\r\n", b"\n")).hexdigest()


def docstring(example):
    """Title, text and the number of the first line of code after it."""
    node = ast.parse(example.read_text(encoding="utf-8")).body[0]
    title, _, text = ast.get_docstring(ast.parse(example.read_text(encoding="utf-8"))).partition("\n")
    return title.strip().rstrip("."), text.strip(), node.end_lineno + 1


def run(example):
    """What an example prints, and the figure it saves."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT), "MPLBACKEND": "Agg"}
        command = [sys.executable, "-W", "ignore", str(example), f"{example.stem}.png"]
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{example.name} failed:\n{done.stderr}")
        figure = Image.open(io.BytesIO((Path(folder) / f"{example.stem}.png").read_bytes()))
        figure.load()
    printed = "\n".join(line.rstrip() for line in done.stdout.strip().splitlines())
    if ABSOLUTE.search(printed):
        raise SystemExit(f"{example.name} printed an absolute path: {ABSOLUTE.search(printed)[0]}")
    return printed, figure


def small_png(figure):
    """Bytes of a figure in all of its colours, as wide as they allow; with few colours where none is wide enough."""
    figure = figure.convert("RGB")
    for width, colors in ((1500, None), (1300, None), (1100, None), (1300, 256), (1100, 256), (900, 256)):
        width = min(width, figure.width)
        drawn = figure.resize((width, round(figure.height * width / figure.width)), Image.LANCZOS)
        drawn = drawn if colors is None else drawn.quantize(colors)
        buffer = io.BytesIO()
        drawn.save(buffer, "PNG", optimize=True)
        if buffer.tell() < MOST_BYTES:
            return buffer.getvalue()
    raise SystemExit("a figure stays too large; draw less on it")


def page(example, printed):
    """Text of the page of an example."""
    title, text, first = docstring(example)
    return f"""# {title}

![{title}]({example.stem}.png)

{text}

## What it prints

```text
{printed}
```

## The code

[examples/{example.name}](../../examples/{example.name})

```{{literalinclude}} ../../examples/{example.name}
:language: python
:lines: {first}-
```

<!-- made by docs/make_gallery.py; sha256 of examples/{example.name}: {fingerprint(example)} -->
"""


def index():
    """Text of the page with all thumbnails, two to a row: a table that shows wherever Markdown does."""
    titles = {e.stem: docstring(e)[0] for e in EXAMPLES}
    cells = [f"[![{title}]({stem}.png)]({stem}.md) [{title}]({stem}.md)" for stem, title in titles.items()]
    cells += [""] * (len(cells) % 2)
    rows = "\n".join(f"| {left} | {right} |" for left, right in zip(cells[::2], cells[1::2], strict=True))
    names = "\n".join(e.stem for e in EXAMPLES)
    return f"""# Gallery

Scripts that run in under a minute, with the figure each of them draws and all that it prints. They are in the folder
`examples`; those on recordings that are not shipped simulate data like them where there is no file.

| | |
|---|---|
{rows}

```{{toctree}}
:hidden:

{names}
```
"""


def main():
    """Make the pages named on the command line, or all, and the index."""
    GALLERY.mkdir(exist_ok=True)
    wanted = [e for e in EXAMPLES if not sys.argv[1:] or e.stem[:2] in sys.argv[1:]]
    for example in wanted:
        start = time.perf_counter()
        printed, figure = run(example)
        png = small_png(figure)
        (GALLERY / f"{example.stem}.png").write_bytes(png)
        (GALLERY / f"{example.stem}.md").write_text(page(example, printed), encoding="utf-8")
        print(f"{example.stem}: {time.perf_counter() - start:.0f} s, figure of {len(png) / 1000:.0f} kB", flush=True)
    (GALLERY / "index.md").write_text(index(), encoding="utf-8")


if __name__ == "__main__":
    main()
