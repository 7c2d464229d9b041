"""Format results as text: numbers with units, ratios, names of designs, and the provenance of a result."""

from __future__ import annotations

import math
import re

HEAD = ["| | glmfit | compared with | ratio | target | met |", "|---|---|---|---|---|---|"]
DESIGNS = {
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


def provenance(sections: list[dict]) -> str:
    """State when, where and with which versions sections were measured; without a full stop."""
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
    if float(ratio) == math.inf:  # stored as text, because JSON has no infinity
        return "–"
    if 0 < ratio < 0.5:
        return f"1/{1 / ratio:.3g}"
    return f"{ratio:.3g}"


def quantity(value: float, unit: str) -> str:
    """Format a number with its unit; an infinite time was not reached."""
    if float(value) == math.inf:
        return "not reached"
    if unit == "s" and value < 1e-4:
        return f"{1e6 * value:.3g} µs"
    if unit == "s" and value < 0.1:
        return f"{1000 * value:.3g} ms"
    if unit in ("bytes", "B"):
        return f"{value / 1e6:.0f} MB"
    return f"{value:.3g} {unit}".strip()
