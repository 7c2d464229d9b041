"""Writes docs/benchmarks.md from the committed results when the documentation is built.

Numbers are formatted by benchmarks/_format.py; what a file and its sections measure is read from their docstrings,
without running them.
"""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))

from _format import HEAD, provenance, quantity, row  # noqa: E402  (the path comes first)

INTRODUCTION = """\
# Benchmarks

Every result that is committed under `benchmarks/results`: this page is made from those files when
the documentation is built. A timing is shown with its rival's, taken in the same run on the same machine.
*Requirements* have to be met; an *aim* is measured and written down only. `benchmarks/README.md` says
how to run everything and what the figures mean. P1 is 100 000 bins, 192 correlated features (spike history in raised
cosines) and 32 neurons, P2 the same with 128 neurons; T, d and N count bins, features and neurons, K classes.
"""


def page() -> str:
    """Make the page."""
    files = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((FOLDER / "results").glob("*.json"))
    }
    parts = [INTRODUCTION, _overview(files), _not_met(files)]
    parts += [_file(name, content) for name, content in files.items()]
    waiting = [path for path in sorted(FOLDER.glob("[a-z]*.py")) if path.stem not in {*files, "table"}]
    parts.append("## Without a committed result\n")
    parts.append("".join(f"- `benchmarks/{path.name}`: {_first_line(_tree(path))}\n" for path in waiting))
    return "\n".join(parts)


def _entries(content: dict) -> list[tuple[str, dict]]:
    """Requirements and aims with the section they are from."""
    sections = content.get("sections", {})
    return [
        (name, entry) for name in content.get("order", ()) for entry in sections.get(name, {}).get("requirements", ())
    ]


def _overview(files: dict) -> str:
    lines = ["| | what | requirements met | aims met |", "|---|---|---|---|"]
    for name, content in files.items():
        counts = []
        for kind in ("requirement", "aim"):
            met = [entry["met"] for _, entry in _entries(content) if entry["kind"] == kind]
            counts.append(f"{sum(met)} of {len(met)}" if met else "")
        lines.append(
            f"| [{name}](#{_anchor(name)}) | {_first_line(_tree(FOLDER / f'{name}.py'))} | {' | '.join(counts)} |"
        )
    return "\n".join(lines) + "\n"


def _not_met(files: dict) -> str:
    rows = [
        row({**entry, "what": f"{name}, {entry['kind']}: {entry['what']}"})
        for name, content in files.items()
        for _, entry in _entries(content)
        if not entry["met"]
    ]
    text = "## Not met\n\n" + ("\n".join([*HEAD, *rows]) if rows else "Every requirement and every aim is met.")
    return text + "\n"


def _file(name: str, content: dict) -> str:
    path = FOLDER / f"{name}.py"
    tree = _tree(path)
    parts = [f"({_anchor(name)})=\n## {name}\n", f"{_first_line(tree)} (`benchmarks/{path.name}`)\n"]
    if "sections" not in content:
        return "\n".join([*parts, _summary(content.get("summary", {})), provenance([content]) + ".\n"])
    docs = _docs_of_sections(tree)
    for section_name in content["order"]:
        section = content["sections"].get(section_name)
        if section is None:
            continue
        parts.append(f"### {name}: {section_name}\n")
        if section_name in docs:
            parts.append(docs[section_name] + "\n")
        entries = section["requirements"]
        if entries:
            marked = [{**e, "what": e["what"] if e["kind"] == "requirement" else f"aim: {e['what']}"} for e in entries]
            parts.append("\n".join([*HEAD, *map(row, marked)]) + "\n")
        else:
            parts.append(f"Figures only, in `results/{name}.json`; nothing is required.\n")
        parts.append(provenance([section]) + ".\n")
    return "\n".join(parts)


def _summary(summary: dict, prefix: str = "") -> str:
    """Write the figures of a file that judges nothing."""
    lines = [] if prefix else ["| figure | value |", "|---|---|"]
    for name, value in summary.items():
        words = f"{prefix}{name.replace('_', ' ')}"
        if isinstance(value, dict):
            lines.append(_summary(value, words + ": "))
        else:
            lines.append(
                f"| {words} | {quantity(value, '') if isinstance(value, float | int) else ', '.join(map(str, value))} |"
            )
    return "\n".join(lines) + ("" if prefix else "\n")


def _anchor(name: str) -> str:
    return f"benchmark-{name.replace('_', '-')}"


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _first_line(tree: ast.Module) -> str:
    return (ast.get_docstring(tree) or "").partition("\n")[0].removesuffix(": see README.md in this folder.").rstrip(
        ".:"
    ) + "."


def _docs_of_sections(tree: ast.Module) -> dict[str, str]:
    """Docstrings of the functions that dictionaries of sections name, or call ``partial`` on."""
    docs = {node.name: ast.get_docstring(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    found = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Dict):
            continue
        for key, value in zip(node.keys, node.values, strict=True):
            function = value.args[0] if isinstance(value, ast.Call) and value.args else value
            if isinstance(key, ast.Constant) and isinstance(function, ast.Name) and docs.get(function.id):
                found[key.value] = " ".join(docs[function.id].split("\n\n")[0].split())
    return found


def write(app) -> None:
    """Write the page where it has changed."""
    path, text = Path(app.srcdir) / "benchmarks.md", page()
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")


def setup(app) -> dict:
    """Connect."""
    app.connect("builder-inited", write)
    return {"parallel_read_safe": True}
