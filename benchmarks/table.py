"""Renders the requirements of benchmarks/results/poisson_population.json as a Markdown table.

python benchmarks/table.py             print it
python benchmarks/table.py --write     put it between the markers of README.md and of pages under docs/
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "poisson_population.json"
HEAD = ["| | glmfit | beside | ratio | asked | met |", "|---|---|---|---|---|---|"]
START, END = "<!-- benchmark table -->", "<!-- end of benchmark table -->"


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


def row(e: dict) -> str:
    """Write one requirement as a row under `HEAD`."""
    if e["against"] in ("limit", "all") or re.fullmatch(r"[\d.]+ \w+", e["against"]):  # "25 passes" is a limit
        asked = f"{e['sense']} {quantity(e['reference'], e['unit'])}"
        beside, ratio = "", ""
    else:
        asked = f"{e['sense']} {fraction(e['limit'])}"
        beside, ratio = f"{e['against']}: {quantity(e['reference'], e['unit'])}", fraction(e["ratio"])
    met = "yes" if e["met"] else "**no**"
    what = e["what"].replace("|", r"\|")
    return f"| {what} | {quantity(e['ours'], e['unit'])} | {beside} | {ratio} | {asked} | {met} |"


def _certificates(entries: list[dict]) -> list[str]:
    gaps = [e for e in entries if e["topic"] == "gap"]
    bounds = [e for e in entries if e["topic"] == "bound"]
    if not gaps:
        return []
    sentence = (
        f"True gaps of these fits, against float64 references: at most {max(e['ours'] for e in gaps):.1e} "
        f"(asked: {gaps[0]['reference']:.0e})."
    )
    if bounds:
        sentence += f" Smallest reported bound over true gap: {min(e['ours'] for e in bounds):.4f}."
    return [sentence, ""]


def provenance(sections: list[dict]) -> str:
    """Say when, where and with which versions sections were measured; without a full stop."""
    records = [s["environment"] for s in sections]

    def one(get):
        return ", ".join(sorted({str(get(r)) for r in records}))

    versions = ", ".join(
        f"{label} {one(lambda r, name=name: r['versions'][name])}"
        for label, name in (
            ("jax", "jax"), ("NumPy", "numpy"), ("scikit-learn", "scikit-learn"), ("NeMoS", "nemos"),
        )
    )  # fmt: skip
    commit = one(lambda r: (r["commit"] or "unknown")[:10] + (" with local changes" if r["dirty"] else ""))
    return (
        f"Measured {one(lambda r: r['date'][:10])} on {one(lambda r: r['cpu'])} ({one(lambda r: r['cores'])} cores, "
        f"{one(lambda r: r['device'])}) with Python {one(lambda r: r['python'])}, {versions}, at commit {commit}"
    )


def fraction(ratio: float) -> str:
    """Write a ratio below one as one over its inverse."""
    if 0 < ratio < 0.9:
        return f"1/{1 / ratio:.3g}"
    return f"{ratio:.3g}"


def quantity(value: float, unit: str) -> str:
    """Give a number its unit, readable."""
    if unit == "s" and value < 1e-4:
        return f"{1e6 * value:.3g} µs"
    if unit == "s" and value < 0.1:
        return f"{1000 * value:.3g} ms"
    if unit in ("bytes", "B"):
        return f"{value / 1e6:.0f} MB"
    return f"{value:.3g} {unit}".strip()


def fill(text: str, table: str) -> str:
    """Replace what stands between the markers; the closing one is added where it is missing."""
    before, found, rest = text.partition(START)
    if not found:
        raise ValueError(f"no line {START}: put it where the table belongs")
    _, closed, after = rest.partition(END)
    if not closed:
        after = rest
    return f"{before}{START}\n\n{table}\n\n{END}{after}"


def pages() -> list[Path]:
    """README.md and every page under docs/ with the marker."""
    found = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return [path for path in found if path.exists() and START in path.read_text(encoding="utf-8")]


def main(arguments=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help="fill README.md and docs/")
    parser.add_argument("--results", default=str(RESULTS))
    options = parser.parse_args(arguments)
    table = render(json.loads(Path(options.results).read_text(encoding="utf-8")))
    if not options.write:
        print(table)
        return 0
    for path in pages():
        beside = path.with_suffix(".tmp")
        beside.write_text(fill(path.read_text(encoding="utf-8"), table), encoding="utf-8")
        os.replace(beside, path)
        print(f"filled {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
