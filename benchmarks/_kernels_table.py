"""Table of the programs that gpu_kernels.py compiles: kernels, waits, modelled times and memory."""

from __future__ import annotations

from _format import DESIGNS, provenance

_SIZES = {"p1": DESIGNS["P1"], "p2": DESIGNS["P2"], "wide": "1 000 000 bins, 200 features, 2 000 neurons"}


def render_kernels(content: dict) -> str:
    """Make a row for each program that a fit repeats."""
    sections = content["sections"]
    lines = ["| program | kernels | waits | modelled time | memory |", "|---|---|---|---|---|"]
    for name, size in _SIZES.items():
        of = sections[name]["figures"]["steps"]
        lines.append(_row(f"step of conjugate gradients, {size}", of, *_turn(of), "one in ten steps"))
    for name in ("w_maze_place", "open_field_coupling"):
        of = sections[name]["figures"]["iteration"]
        what = f"iteration of Newton's method (four steps), {DESIGNS[name]}"
        lines.append(_row(what, of, of["launches"], of["modelled_ms"], "one"))
    for name, of in sections["classes"]["figures"].items():
        if "1000000" in name:
            what = f"{name.split(',')[0]}, 1 024 rows, 512 negatives, 1 000 000 classes"
            lines.append(_row(what, of, *_turn(of), "none in an epoch"))
    return "\n".join([*lines, "", provenance(list(sections.values())).replace("Measured", "Compiled") + "."])


def _turn(figures: dict) -> tuple[int, float]:
    """Kernels and modelled milliseconds of one iteration of the loop."""
    return figures["kernels_of_a_turn"][-1], figures["modelled_ms_of_a_turn"][-1]


def _row(what: str, figures: dict, kernels: int, milliseconds: float, waits: str) -> str:
    if figures["loops_of_unknown_length"]:
        waits = "in every turn"
    memory = (figures["bytes"] + figures["bytes_of_arguments"]) / 2**30
    return f"| {what} | {kernels} | {waits} | {milliseconds:.2g} ms | {memory:.2g} GiB |"
