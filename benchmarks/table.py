"""Renders results of benchmarks as Markdown tables and a figure.

python benchmarks/table.py             print the table of poisson_population.json
python benchmarks/table.py --peers     print the table of peers.json
python benchmarks/table.py --write     fill the markers of README.md, benchmarks/README.md and docs/, draw the figure
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import statistics
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "poisson_population.json"
HEAD = ["| | glmfit | compared with | ratio | target | met |", "|---|---|---|---|---|---|"]
START, END = "<!-- benchmark table -->", "<!-- end of benchmark table -->"
PEERS = ROOT / "benchmarks" / "results" / "peers.json"
PEERS_START, PEERS_END = "<!-- peers table -->", "<!-- end of peers table -->"
SHORT_START, SHORT_END = "<!-- short peers table -->", "<!-- end of short peers table -->"
RECORDINGS = ROOT / "benchmarks" / "results" / "real_designs.json"
RECORDINGS_START, RECORDINGS_END = "<!-- recordings table -->", "<!-- end of recordings table -->"
FULL_START, FULL_END = "<!-- full recordings table -->", "<!-- end of full recordings table -->"
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
_DESIGNS = {
    "w_maze_place": "place on a W-maze",
    "w_maze_place_6x6": "place on a W-maze, 6 x 6 splines",
    "w_maze_place_and_history": "place and history on a W-maze",
    "open_field_place": "place in an open field",
    "open_field_coupling": "coupling of place cells",
    "motor_cortex_velocity_lags": "velocity, motor cortex",
    "motor_cortex_coupling": "coupling, motor cortex",
    "P1": "spike history, simulated, 32 neurons",
    "P2": "spike history, simulated, 128 neurons",
    "P512": "spike history, simulated, 512 neurons",
    "W32": "spike history of 96 sources, simulated",
}
_IN_README = ("w_maze_place", "open_field_place", "open_field_coupling", "motor_cortex_velocity_lags")
_PACKAGES = {
    "glmfit": "glmfit",
    "nemos": "NeMoS",
    "sklearn": "scikit-learn",
    "statsmodels": "statsmodels",
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


def row(e: dict) -> str:
    """Write one requirement as a row under `HEAD`."""
    if e["against"] in ("limit", "all") or re.fullmatch(r"[\d.]+ \w+", e["against"]):  # "25 passes" is a limit
        target = f"{e['sense']} {quantity(e['reference'], e['unit'])}"
        other, ratio = "", ""
    else:
        target = f"{e['sense']} {fraction(e['limit'])}"
        other, ratio = f"{e['against']}: {quantity(e['reference'], e['unit'])}", fraction(e["ratio"])
    met = "yes" if e["met"] else "**no**"
    what = e["what"].replace("|", r"\|")
    return f"| {what} | {quantity(e['ours'], e['unit'])} | {other} | {ratio} | {target} | {met} |"


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


def provenance(sections: list[dict]) -> str:
    """Say when, where and with which versions sections were measured; without a full stop."""
    records = [s["environment"] for s in sections]

    def one(get):
        return ", ".join(sorted({str(get(r)) for r in records} - {"None"}))  # not every section had every package

    versions = ", ".join(
        f"{label} {one(lambda r, name=name: r['versions'].get(name))}"
        for label, name in (
            ("jax", "jax"), ("NumPy", "numpy"), ("scikit-learn", "scikit-learn"), ("NeMoS", "nemos"),
            ("statsmodels", "statsmodels"), ("glum", "glum"),
        )
        if any(r["versions"].get(name) for r in records)
    )  # fmt: skip
    commit = one(lambda r: (r["commit"] or "unknown")[:10] + (" with local changes" if r["dirty"] else ""))
    return (
        f"Measured {one(lambda r: r['date'][:10])} on {one(lambda r: r['cpu'])} ({one(lambda r: r['cores'])} cores, "
        f"{one(lambda r: r['device'])}) with Python {one(lambda r: r['python'])}, {versions}, at commit {commit}"
    )


def fraction(ratio: float) -> str:
    """Write a ratio below one half as one over its inverse."""
    if float(ratio) == math.inf:  # written as text, since it is no JSON
        return "–"
    if 0 < ratio < 0.5:
        return f"1/{1 / ratio:.3g}"
    return f"{ratio:.3g}"


def quantity(value: float, unit: str) -> str:
    """Give a number its unit, readable; what took forever was not reached."""
    if float(value) == math.inf:
        return "not reached"
    if unit == "s" and value < 1e-4:
        return f"{1e6 * value:.3g} µs"
    if unit == "s" and value < 0.1:
        return f"{1000 * value:.3g} ms"
    if unit in ("bytes", "B"):
        return f"{value / 1e6:.0f} MB"
    return f"{value:.3g} {unit}".strip()


# --------------------------------------------------------------------------------------------- peers


def render_peers(content: dict) -> str:
    """Make one table per problem: seconds to each gap by every solver, warm and cold, the least of a column in bold."""
    names = [name for name in content["order"] if name in content["sections"]]
    parts = [_peers_of(name, content["sections"][name]) for name in names]
    return "\n\n".join([*parts, provenance([content["sections"][name] for name in names])])


def _peers_of(name: str, section: dict) -> str:
    figures, record = section["figures"], section["environment"]
    problem, peers = figures["problem"], figures["peers"]
    goals = _goals(peers)
    columns = [(when, goal) for when in ("warm", "cold") for goal in goals]
    least = {(when, goal): _least(_of(row, when, goal) for row in peers.values()) for when, goal in columns}
    lines = [f"**{_title(name, problem)}**", ""]
    lines += [
        "| | " + " | ".join(f"{when}, {goal}" for when, goal in columns) + " |",
        "|---" * (1 + len(columns)) + "|",
    ]
    order = list(_PACKAGES)
    for row in sorted(peers.values(), key=lambda r: (order.index(r["package"]), r["solver"] != "auto", r["solver"])):
        cells = [_seconds(row, when, goal, least[when, goal]) for when, goal in columns]
        lines.append(f"| {_PACKAGES[row['package']]} {row['solver']} | " + " | ".join(cells) + " |")
    absent = "; ".join(f"{_PACKAGES[package]} {why}" for package, why in figures["absent"].items())
    when = f"One run, {record['date'][:16].replace('T', ' ')}, at commit {(record['commit'] or 'unknown')[:10]}."
    return "\n".join([*lines, "", when + (f" Not in this table: {absent}." if absent else "")])


def _title(name: str, problem: dict, short: bool = False) -> str:
    rows = f"{problem['rows']:,}".replace(",", " ")
    shape = f"{rows} rows, {problem['features']} features"
    if problem["link"] == "softmax":
        what = "scikit-learn's digits" if "digits" in name else "independent features"
        return f"Softmax, {problem['outputs']} classes: {what}" + ("" if short else f" ({shape})")
    what = "independent features" if name.startswith("white") else "spike history in raised cosines"
    neurons = "1 neuron" if problem["outputs"] == 1 else f"{problem['outputs']} neurons"
    condition = f", condition number {float(problem['condition']):.2g}" if problem["condition"] else ""
    return f"Poisson, {problem['link']}, {neurons}: {what}" + ("" if short else f" ({shape}{condition})")


def _goals(peers: dict) -> list[str]:
    return sorted(next(iter(peers.values()))["warm"], key=float, reverse=True)


def _of(row: dict, when: str, goal: str) -> float:
    """Seconds to a gap; infinite where it was not reached, nan where nothing was timed."""
    return float(row[when].get(goal, "nan"))


def _least(seconds) -> float:
    return min((value for value in seconds if not math.isnan(value)), default=math.inf)


def _seconds(row: dict, when: str, goal: str, least: float) -> str:
    value = _of(row, when, goal)
    if math.isnan(value) or (when == "cold" and math.isinf(value)):
        return ""
    return f"**{quantity(value, 's')}**" if value == least < math.inf else quantity(value, "s")


def render_peers_in_short(content: dict) -> str:
    """Make one table of warm seconds to the gaps: a row per problem, the fastest solver of every package."""
    names = [name for name in content["order"] if name in content["sections"]]
    figures = [content["sections"][name]["figures"] for name in names]
    goals = _goals(figures[0]["peers"])
    lines = [
        f"| seconds to gaps of {', '.join(goals)} | glmfit auto | " + " | ".join(list(_PACKAGES.values())[1:]) + " |",
        "|---" * (1 + len(_PACKAGES)) + "|",
    ]
    for name, of in zip(names, figures, strict=True):
        rows = {package: _fastest(of["peers"], package, goals) for package in _PACKAGES}
        least = [min(seconds[k] for seconds in rows.values() if seconds) for k in range(len(goals))]
        cells = [_three(rows[package], least) for package in _PACKAGES]
        lines.append(f"| {_title(name, of['problem'], short=True)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", provenance([content["sections"][name] for name in names])])


def _fastest(peers: dict, package: str, goals: list[str]) -> list[float]:
    """Least seconds to each gap by the solvers of a package; of glmfit those of "auto"; nothing if it has no row."""
    rows = [row for row in peers.values() if row["package"] == package]
    rows = [row for row in rows if row["solver"] == "auto"] if package == "glmfit" else rows
    return [min(_of(row, "warm", goal) for row in rows) for goal in goals] if rows else []


def _three(seconds: list[float], least: list[float]) -> str:
    def one(value, best):
        text = "–" if value == math.inf else f"{value:.2g}" if value < 10 else f"{value:.0f}"
        return f"**{text}**" if value == best < math.inf else text

    return ", ".join(one(*pair) for pair in zip(seconds, least, strict=False))  # no seconds, no cell


# ---------------------------------------------------------------------------------------- recordings


def render_recordings(content: dict) -> str:
    """Make a table of later fits of recorded designs by the softplus link, a row each."""
    columns = ("recording", "bins x features x neurons", *(_FITS[kind] for kind in ("glmfit", "newton", "nemos")))
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    names = [name for name in content["order"] if name in content["sections"] and name in _IN_README]
    for name in names:
        figures = content["sections"][name]["figures"]
        fits = _ridge(figures, "softplus")
        cells = [_later(fits.get(kind), figures["neurons"]) for kind in ("glmfit", "newton", "nemos")]
        lines.append(f"| {_DESIGNS[name]} | {_shape(figures)} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", provenance([content["sections"][name] for name in names]) + "."])


def render_recordings_in_full(content: dict) -> str:
    """Make a table of the first and later fits of recorded designs and of the gaps they end with, a row per fit."""
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
                what = f"{_DESIGNS[name]}, {_shape(figures)}"
                lines.append(f"| {what} | {link} | {_FITS[kind]} | " + " | ".join(cells) + " |")
    return "\n".join([*lines, "", provenance([content["sections"][name] for name in names]) + "."])


def _ridge(figures: dict, link: str) -> dict:
    """Return fits by the ridge 1e-4; results from before there were other penalties have no others."""
    fits = figures.get(link, {})
    return fits if "glmfit" in fits else fits.get("ridge-1e-4", {})


def _shape(figures: dict) -> str:
    return " x ".join(f"{figures[size]:,}".replace(",", " ") for size in ("rows", "features", "neurons"))


def later(fit: dict) -> float | None:
    """Median seconds of the fits after the first, or of the only one; None where it was ended before."""
    if "ended" in fit and len(fit["seconds"]) < 2:
        return None
    return statistics.median(fit["seconds"][1:] or fit["seconds"])


def _later(fit: dict | None, n_neurons: int) -> str:
    """Seconds of a later fit, and how many neurons converged where not all of them did."""
    if fit is None or later(fit) is None:
        return fit["ended"] if fit else ""
    settled = fit.get("settled", n_neurons)
    note = "" if settled == n_neurons else f" ({settled} of {n_neurons} converged)"
    return _short_seconds(later(fit)) + note


def _short_seconds(value: float) -> str:
    return f"{value:.0f} s" if value >= 10 else f"{value:.2g} s"


# -------------------------------------------------------------------------------------------- figure

_COLORS = {"glmfit": "#0072B2", "nemos": "#E69F00", "sklearn": "#009E73", "statsmodels": "#CC79A7", "glum": "#888888"}


def draw_peers(content: dict, path: Path, goal: str = "0.0001") -> None:
    """Draw the seconds of later and of first fits to a relative gap, a dot per package, a row per problem."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    names = [name for name in content["order"] if name in content["sections"]][::-1]
    figure, axes = plt.subplots(1, 2, figsize=(10, 4.6), sharey=True, sharex=True, layout="constrained")
    for ax, when, title in zip(axes, ("warm", "cold"), ("later fits", "first fit of a process"), strict=True):
        for y, name in enumerate(names):
            peers = content["sections"][name]["figures"]["peers"].values()
            for package, color in _COLORS.items():
                rows = [r for r in peers if r["package"] == package and (package != "glmfit" or r["solver"] == "auto")]
                seconds = _least(_of(r, when, goal) for r in rows)
                if seconds < math.inf:
                    size, front = (9, 3) if package == "glmfit" else (7, 2)
                    ax.plot(seconds, y, "o", color=color, ms=size, mec="white", mew=0.8, zorder=front)
            ax.axhline(y, color="0.92", lw=0.8, zorder=0)
        ax.set(xscale="log", xlabel=f"seconds to a relative gap of {float(goal):g}")
        ax.set_title(title, fontsize=11)
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="x", color="0.92", lw=0.8)
    titles = [_title(name, content["sections"][name]["figures"]["problem"], short=True) for name in names]
    axes[0].set_yticks(range(len(names)), titles, fontsize=9)
    handles = [plt.Line2D([], [], marker="o", ls="", color=c, label=_PACKAGES[p]) for p, c in _COLORS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


# ------------------------------------------------------------------------------------------- filling


def fill(text: str, table: str, start: str = START, end: str = END) -> str:
    """Replace what stands between the markers; the closing one is added where it is missing."""
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
    RECORDINGS_START: (RECORDINGS, render_recordings, RECORDINGS_END),
    FULL_START: (RECORDINGS, render_recordings_in_full, FULL_END),
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
            beside = path.with_suffix(".tmp")
            beside.write_text(fill(path.read_text(encoding="utf-8"), table, start, end), encoding="utf-8")
            os.replace(beside, path)
            print(f"filled {path.relative_to(ROOT)}")
    draw_peers(json.loads(PEERS.read_text(encoding="utf-8")), FIGURE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
