"""Tables, from nemos_questions.json, of the pages that answer questions of NeMoS's users."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

from _format import provenance, quantity


def render_question(name: str, lines_of) -> Callable:
    """Make a renderer of one section of nemos_questions.json: lines, and their provenance."""

    def render(content: dict) -> str:
        section = content["sections"].get(name)
        if section is None:
            return f"Not measured yet: `python benchmarks/nemos_questions.py --sections {name}`."
        return "\n".join([*lines_of(section["figures"]), "", provenance([section]) + "."])

    return render


def nested_lines(figures: dict) -> list[str]:
    gaps, units = figures["nemos_relative_gaps"], figures["units"]
    size = f"{_spaced(figures['bins'])} bins, {figures['columns']} columns of rank {figures['rank']}, {units} units"
    ended = f"{round(len(gaps) * figures['nemos_share_at_maxiter'])} of {len(gaps)} at `maxiter`"
    rows = (
        ("`PopulationGLMCV` for each variant", sum(figures["seconds_of_variants"].values()), "of each unit",
         f"{figures['fits']} per unit, {min(figures['fits_proved']):.0%} proved"),
        ("`explain`, with held-out scores", figures["seconds_of_explain"], "of each unit, inside the training folds",
         f"{figures['fits_of_explain'] // units} per unit, {figures['explain_proved']:.0%} proved"),
        ("grid search around NeMoS", figures["nemos_seconds_of_the_grid"], "one for all units",
         f"{figures['fits']}, extrapolated from {len(gaps)}: {ended}, gaps {min(gaps):.0e} to {max(gaps):.0e}"),
    )  # fmt: skip
    lines = [f"| {size} | time | strengths | fits |", "|---|---|---|---|"]
    return lines + [f"| {what} | {_minutes(seconds)} | {which} | {fits} |" for what, seconds, which, fits in rows]


def coupling_lines(figures: dict) -> list[str]:
    lines = ["| fit | held-out deviance explained | verdict | spectral radius | diverged |", "|---|---|---|---|---|"]
    names = {"exp": "exp, default ridge", "softplus": "softplus, default ridge", "group lasso": "softplus, group lasso"}
    for name, title in names.items():
        of = figures[name]
        radius = "–" if float(of["spectral_radius"]) == math.inf else f"{of['spectral_radius']:.2f}"
        diverged = f"{sum(at is not None for at in of['diverged_at'])} of {figures['runs']}"
        lines.append(f"| {title} | {of['held_out_d2']:.2%} | {of['verdict']} | {radius} | {diverged} |")
    first, *later = figures["nemos_seconds"]
    ours, theirs, first = (
        quantity(t, "s") for t in (figures["group lasso"]["seconds"], statistics.median(later), first)
    )
    size = f"{_spaced(figures['bins'])} bins of {_neurons(figures['neurons'])}"
    return [*lines, "", f"To simulate {size} takes {ours}, with NeMoS {theirs}, and {first} the first time."]


def compile_lines(figures: dict) -> list[str]:
    sizes = [f"{_spaced(rows)} bins, {d} features, {_neurons(n)}" for rows, d, n in figures["sizes"]]
    columns = [f"{size}, {when}" for size in sizes for when in ("first", "again")]
    names = {
        "glmfit": "`glmfit.PopulationGLMCV`",
        "nemos": "`GridSearchCV` around NeMoS",
        "nemos+glmfit": "the same with `SAGA[glmfit]`",
    }
    lines = ["| programs compiled, time | " + " | ".join(columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for kind, title in names.items():
        pairs = zip(figures[kind]["programs"], figures[kind]["seconds"], strict=True)
        cells = [f"{programs}, {quantity(seconds, 's')}" for programs, seconds in pairs]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return lines


def _spaced(n: int) -> str:
    return f"{n:,}".replace(",", " ")


def _neurons(n: int) -> str:
    return "1 neuron" if n == 1 else f"{n} neurons"


def _minutes(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
