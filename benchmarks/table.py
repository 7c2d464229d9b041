"""Render results of benchmarks as Markdown tables and a figure.

python benchmarks/table.py             print the table of poisson_population.json
python benchmarks/table.py --peers     print the table of peers.json
python benchmarks/table.py --write     fill the markers of README.md, benchmarks/README.md and docs/, draw the figure
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from pathlib import Path

from _format import DESIGNS, HEAD, provenance, row
from _kernels_table import render_kernels
from _peers_table import (
    draw_peers,
    render_losses,
    render_others,
    render_peers,
    render_peers_in_short,
    render_some_peers,
)
from _questions_table import compile_lines, coupling_lines, nested_lines, render_question
from _suite_table import render_reasons, render_suite

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "poisson_population.json"
START, END = "<!-- benchmark table -->", "<!-- end of benchmark table -->"
PEERS = ROOT / "benchmarks" / "results" / "peers.json"
PEERS_START, PEERS_END = "<!-- peers table -->", "<!-- end of peers table -->"
SOME_START, SOME_END = "<!-- some peers table -->", "<!-- end of some peers table -->"
SHORT_START, SHORT_END = "<!-- short peers table -->", "<!-- end of short peers table -->"
OTHERS_START, OTHERS_END = "<!-- other packages table -->", "<!-- end of other packages table -->"
LOSSES_START, LOSSES_END = "<!-- losses table -->", "<!-- end of losses table -->"
RECORDINGS = ROOT / "benchmarks" / "results" / "real_designs.json"
FULL_START, FULL_END = "<!-- full recordings table -->", "<!-- end of full recordings table -->"
QUESTIONS = ROOT / "benchmarks" / "results" / "nemos_questions.json"
NESTED_START, NESTED_END = "<!-- nested models table -->", "<!-- end of nested models table -->"
COUPLING_START, COUPLING_END = "<!-- stable coupling table -->", "<!-- end of stable coupling table -->"
COMPILE_START, COMPILE_END = "<!-- compilations table -->", "<!-- end of compilations table -->"
SUITE = ROOT / "benchmarks" / "results" / "nemos_suite.json"
SUITE_START, SUITE_END = "<!-- NeMoS suite table -->", "<!-- end of NeMoS suite table -->"
REASONS_START, REASONS_END = "<!-- NeMoS suite reasons -->", "<!-- end of NeMoS suite reasons -->"
KERNELS = ROOT / "benchmarks" / "results" / "gpu_kernels.json"
KERNELS_START, KERNELS_END = "<!-- GPU kernels table -->", "<!-- end of GPU kernels table -->"
FIGURE = ROOT / "docs" / "figures" / "comparison.png"
_FITS = {
    "glmfit": "glmfit",
    "before": "glmfit, the version before",
    "newton": "glmfit, Newton",
    "numpy": "NumPy, Newton",
    "nemos": "NeMoS",
    "sklearn": "scikit-learn",
    "glum": "glum",
}


def render(content: dict) -> str:
    """Make the table, a sentence on gaps and bounds, and one on the machine."""
    sections = [content["sections"][name] for name in content["order"] if name in content["sections"]]
    entries = [e for section in sections for e in section["requirements"] if e["kind"] == "requirement"]
    lines = [*HEAD, *(row(e) for e in entries if e["topic"] == "cost")]
    return "\n".join(
        [
            *lines,
            "",
            *_certificates(entries),
            provenance(sections) + "; medians of interleaved runs, see `benchmarks/`.",
        ]
    )


def _certificates(entries: list[dict]) -> list[str]:
    gaps = [e for e in entries if e["topic"] == "gap"]
    bounds = [e for e in entries if e["topic"] == "bound"]
    if not gaps:
        return []
    sentence = (
        f"True gaps of these fits, against float64 references: at most {max(e['ours'] for e in gaps):.1e} "
        f"(target: {gaps[0]['reference']:.0e})."
    )
    if bounds:
        sentence += f" Smallest reported bound over true gap: {min(e['ours'] for e in bounds):.4f}."
    return [sentence, ""]


# ---------------------------------------------------------------------------------------- recordings


def render_recordings_in_full(content: dict) -> str:
    """Make a table of the first and later fits of recorded designs and of their gaps, a row per fit."""
    columns = ("recording", "link", "fit", "first fit", "later fit", "relative gap", "worst neuron")
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    names = [name for name in content["order"] if name in content["sections"]]
    for name in names:
        figures = content["sections"][name]["figures"]
        for link in ("softplus", "exp"):
            for kind, fit in _ridge(figures, link).items():
                first = _short_seconds(fit["seconds"][0]) if fit["seconds"] else ""
                gaps = [f"{float(fit[of]):.0e}" if of in fit else "" for of in ("gap", "worst_neuron_gap")]
                cells = [first, _later(fit, figures["neurons"]), *gaps]
                what = f"{DESIGNS[name]}, {_shape(figures)}"
                lines.append(f"| {what} | {link} | {_FITS[kind]} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", provenance([content["sections"][name] for name in names]) + "."])


def _ridge(figures: dict, link: str) -> dict:
    """Return fits by the ridge 1e-4; old results have no other penalties."""
    fits = figures.get(link, {})
    return fits if "glmfit" in fits else fits.get("ridge-1e-4", {})


def _shape(figures: dict) -> str:
    return " x ".join(f"{figures[size]:,}".replace(",", " ") for size in ("rows", "features", "neurons"))


def later(fit: dict) -> float | None:
    """Median seconds of the fits after the first, or of the only one; None if it was ended before."""
    if "ended" in fit and len(fit["seconds"]) < 2:
        return None
    return statistics.median(fit["seconds"][1:] or fit["seconds"])


def _later(fit: dict | None, n_neurons: int) -> str:
    """Seconds of a later fit, and how many neurons converged, if not all."""
    if fit is None or later(fit) is None:
        return fit["ended"] if fit else ""
    settled = fit.get("settled", n_neurons)
    note = "" if settled == n_neurons else f" ({settled} of {n_neurons} converged)"
    return _short_seconds(later(fit)) + note


def _short_seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


# ------------------------------------------------------------------------------------------- filling


def fill(text: str, table: str, start: str = START, end: str = END) -> str:
    """Replace the text between the markers; add the closing marker if it is missing."""
    before, found, rest = text.partition(start)
    if not found:
        raise ValueError(f"no line {start}: put it where the table belongs")
    _, closed, after = rest.partition(end)
    if not closed:
        after = rest
    return f"{before}{start}\n\n{table}\n\n{end}{after}"


def pages(start: str = START) -> list[Path]:
    """README.md, that of benchmarks/, and every page under docs/ with the marker."""
    found = [ROOT / "README.md", ROOT / "benchmarks" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path.exists() and start in path.read_text(encoding="utf-8")]


TABLES = {
    START: (RESULTS, render, END),
    PEERS_START: (PEERS, render_peers, PEERS_END),
    SHORT_START: (PEERS, render_peers_in_short, SHORT_END),
    SOME_START: (PEERS, render_some_peers, SOME_END),
    LOSSES_START: (PEERS, render_losses, LOSSES_END),
    OTHERS_START: (PEERS, render_others, OTHERS_END),
    FULL_START: (RECORDINGS, render_recordings_in_full, FULL_END),
    SUITE_START: (SUITE, render_suite, SUITE_END),
    REASONS_START: (SUITE, render_reasons, REASONS_END),
    KERNELS_START: (KERNELS, render_kernels, KERNELS_END),
    NESTED_START: (QUESTIONS, render_question("nested", nested_lines), NESTED_END),
    COUPLING_START: (QUESTIONS, render_question("coupling", coupling_lines), COUPLING_END),
    COMPILE_START: (QUESTIONS, render_question("compile", compile_lines), COMPILE_END),
}


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="fill README.md, benchmarks/README.md and docs/")
    parser.add_argument("--peers", action="store_true", help="print the comparison with other packages")
    parser.add_argument("--results", help="JSON file to print")
    options = parser.parse_args(arguments)
    if not options.write:
        file, make, _ = TABLES[PEERS_START if options.peers else START]
        print(make(json.loads(Path(options.results or file).read_text(encoding="utf-8"))))
        return 0
    for start, (file, make, end) in TABLES.items():
        if not file.exists():
            print(f"no {file.name} yet")
            continue
        table = make(json.loads(file.read_text(encoding="utf-8")))
        for path in pages(start):
            filled = path.with_suffix(".tmp")
            filled.write_text(fill(path.read_text(encoding="utf-8"), table, start, end), encoding="utf-8")
            os.replace(filled, path)
            print(f"filled {path.relative_to(ROOT)}")
    draw_peers(json.loads(PEERS.read_text(encoding="utf-8")), FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
