"""Tables and the figure of results/peers.json: seconds to equal gaps, including rows that glmfit does not win.

A section is included if its figures have "peers", rows by name with a package, a solver, and seconds to gaps ("warm" is
a later fit, "cold" the first fit of a process), and "problem", which has a "title" or is a design of `_format.DESIGNS`.
"""

from __future__ import annotations

import math
from pathlib import Path

from _format import DESIGNS, HEAD, fraction, provenance, quantity
from _format import row as judged

PACKAGES = {
    "glmfit": "glmfit",
    "nemos": "NeMoS",
    "nemos-development": "NeMoS, development",
    "sklearn": "scikit-learn",
    "statsmodels": "statsmodels",
    "glum": "glum",
}
COLORS = {
    "glmfit": "#0072B2",
    "nemos": "#E69F00",
    "nemos-development": "#D55E00",
    "sklearn": "#009E73",
    "statsmodels": "#CC79A7",
    "glum": "#888888",
}
_MORE_COLORS = ("#56B4E9", "#B8A800", "#5D3A9B", "#000000", "#8B4513", "#A6CEE3")
_WHEN = {"warm": "later fit", "cold": "first fit"}
_SOME = (
    "w_maze_place-softplus",
    "open_field_coupling-softplus",
    "P1-exp",
    "w_maze_place-exp-one",
    "softmax-10",
)  # for README


def shown(content: dict) -> dict[str, dict]:
    """Sections with rows of peers, in their order."""
    sections = content["sections"]
    return {k: sections[k] for k in content["order"] if "peers" in sections.get(k, {}).get("figures", {})}


def packages(content: dict) -> dict[str, str]:
    """Names of the packages of all sections: first those of `PACKAGES`, then others."""
    others = {row["package"] for s in shown(content).values() for row in s["figures"]["peers"].values()}
    there = [name for name in PACKAGES if name in others]
    return {name: PACKAGES.get(name, name) for name in (*there, *sorted(others - set(PACKAGES)))}


def title(name: str, problem: dict) -> str:
    """Name a problem in words."""
    if "title" in problem:
        return problem["title"]
    kind, *what = name.split("-")
    if kind == "softmax":
        return f"softmax, {problem['outputs']} classes, " + ("digits" if what == ["digits"] else "simulated")
    if kind not in DESIGNS:
        return name
    neurons = "1 neuron" if problem["outputs"] == 1 else f"{problem['outputs']} neurons"
    return f"{DESIGNS[kind].removesuffix(', 32 neurons')}, {neurons}, {problem['link']}"


def goals(peers: dict) -> list[str]:
    """Gaps, loosest first."""
    return sorted(next(iter(peers.values()))["warm"], key=float, reverse=True)


def power(goal: str) -> str:
    """Write a gap as a power of ten: 1e-4."""
    return f"1e{round(math.log10(float(goal)))}"


def seconds(row: dict, when: str, goal: str) -> float:
    """Seconds to a gap; infinite if it was not reached, nan if nothing was timed."""
    return float(row[when].get(goal, "nan"))


def fastest(peers: dict, package: str, when: str, goal: str) -> float:
    """Fewest seconds of a package, for glmfit those of "auto"; infinite if no solver reached the gap."""
    rows = [row for row in peers.values() if row["package"] == package]
    rows = [row for row in rows if row["solver"] == "auto"] if package == "glmfit" else rows
    return min((s for row in rows if not math.isnan(s := seconds(row, when, goal))), default=math.inf)


def losses(content: dict) -> tuple[list[dict], int]:
    """List the comparisons in which another package is faster than "auto", and count all of them."""
    found, compared = [], 0
    for name, section in shown(content).items():
        peers = section["figures"]["peers"]
        for when in _WHEN:
            for goal in goals(peers):
                of = {package: fastest(peers, package, when, goal) for package in packages(content)}
                ours = of.pop("glmfit")
                best = min(of, key=of.get)
                compared += min(ours, of[best]) < math.inf
                if of[best] < ours:
                    found.append({"section": name, "when": when, "goal": goal, "package": best,
                                  "ours": ours, "theirs": of[best], "ratio": ours / of[best]})  # fmt: skip
    return found, compared


# -------------------------------------------------------------------------------------------- tables


def render_losses(content: dict) -> str:
    """State in how many comparisons glmfit is fastest, and list the others."""
    found, compared = losses(content)
    said = f"glmfit's `auto` is fastest in {compared - len(found)} of {compared} comparisons"
    if not found:
        return said + "."
    lines = ["| problem | | gap | glmfit | fastest | ratio |", "|---" * 6 + "|"]
    for loss in found:
        what = title(loss["section"], shown(content)[loss["section"]]["figures"]["problem"])
        theirs = f"{packages(content)[loss['package']]}: {quantity(loss['theirs'], 's')}"
        cells = (
            what,
            _WHEN[loss["when"]],
            power(loss["goal"]),
            quantity(loss["ours"], "s"),
            theirs,
            fraction(loss["ratio"]),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([said + ". The others:", "", *lines])


def render_peers_in_short(content: dict) -> str:
    """Make one table of seconds of later fits: a row per problem, the fastest solver of every package."""
    sections, names = shown(content), packages(content)
    others = [name for name in names if name not in PACKAGES]  # these occur in few sections, so they share a column
    columns = [name for name in names if name in PACKAGES]
    steps = goals(next(iter(sections.values()))["figures"]["peers"])
    head = [f"seconds to gaps of {', '.join(map(power, steps))}", *(names[name] for name in columns)]
    head += ["another package"] if others else []
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for name, section in sections.items():
        peers = section["figures"]["peers"]
        least = [min(fastest(peers, package, "warm", goal) for package in names) for goal in goals(peers)]
        cells = [_in_short(peers, package, least) for package in columns]
        there = [f"{package}: {cell}" for package in others if (cell := _in_short(peers, package, least))]
        cells += ["; ".join(there)] if others else []
        lines.append(f"| {title(name, section['figures']['problem'])} | " + " | ".join(cells) + " |")
    note = ["", r"\* Some of the neurons timed, and multiplied."] if any(r"\*" in line for line in lines) else []
    return "\n".join([*lines, *note, "", _provenance(content)])


def render_some_peers(content: dict) -> str:
    """Make the short table of a few problems of different kinds."""
    sections = {name: section for name, section in content["sections"].items() if name in _SOME}
    return render_peers_in_short(content | {"sections": sections})


def _in_short(peers: dict, package: str, least: list[float]) -> str:
    """Seconds to every gap; a dash if it was not reached, empty if the package has no row."""
    rows = [row for row in peers.values() if row["package"] == package]
    if not rows:
        return ""

    def one(goal: str, best: float) -> str:
        value = fastest(peers, package, "warm", goal)
        text = "–" if value == math.inf else f"{value:.2g}" if value < 10 else f"{value:.0f}"
        return f"**{text}**" if value == best < math.inf else text

    star = r"\*" if any(_is_part(row, peers) for row in rows) else ""
    return ", ".join(map(one, goals(peers), least)) + star


def _is_part(row: dict, peers: dict) -> bool:
    """Whether a solver was timed on only some of the neurons."""
    timed = [other.get("neurons_timed") or 0 for other in peers.values()]
    return 0 < (row.get("neurons_timed") or 0) < max(timed)


def render_peers(content: dict) -> str:
    """Make one table per problem: seconds to each gap by every solver, the fastest of a column in bold."""
    parts = [_table_of(name, section) for name, section in shown(content).items()]
    return "\n\n".join([*parts, _provenance(content)])


def render_others(content: dict) -> str:
    """Make one table of the verdicts of sections without rows of peers (models that few packages offer)."""
    sections = {k: content["sections"][k] for k in content["order"] if k in content["sections"]}
    others = [s for k, s in sections.items() if k not in shown(content)]
    entries = [e for s in others for e in s["requirements"]]
    if not entries:
        return "No results are committed yet."
    return "\n".join([*HEAD, *map(judged, entries), "", provenance(others) + "."])


def _table_of(name: str, section: dict) -> str:
    figures, record = section["figures"], section["environment"]
    problem, peers = figures["problem"], figures["peers"]
    columns = [(when, goal) for when in _WHEN for goal in goals(peers)]
    least = {
        (when, goal): min(
            (s for row in peers.values() if not math.isnan(s := seconds(row, when, goal))), default=math.inf
        )
        for when, goal in columns
    }
    size = f"{problem['rows']:,}".replace(",", " ") + f" rows, {problem['features']} features"
    heads = [*(f"{_WHEN[when]}, {power(goal)}" for when, goal in columns), "worst neuron"]
    lines = [
        f"**{title(name, problem)}** ({size})",
        "",
        "| | " + " | ".join(heads) + " |",
        "|---" * (1 + len(heads)) + "|",
    ]
    order = list(PACKAGES)
    for row in sorted(peers.values(), key=lambda r: (_place(order, r["package"]), r["solver"] != "auto", r["solver"])):
        part = f" ({row['neurons_timed']} neurons timed)" if _is_part(row, peers) else ""
        cells = [_cell(row, when, goal, least[when, goal]) for when, goal in columns]
        label = f"{PACKAGES.get(row['package'], row['package'])} {row['solver']}{part}"
        lines.append("| " + " | ".join([label, *cells, _worst(row)]) + " |")
    absent = "; ".join(f"{PACKAGES.get(package, package)} {why}" for package, why in figures.get("absent", {}).items())
    when = f"One run, {record['date'][:16].replace('T', ' ')}, at commit {(record['commit'] or 'unknown')[:10]}."
    return "\n".join([*lines, "", when + (f" Not in this table: {absent}." if absent else "")])


def _place(order: list[str], package: str) -> int:
    return order.index(package) if package in order else len(order)


def _cell(row: dict, when: str, goal: str, least: float) -> str:
    value = seconds(row, when, goal)
    if math.isnan(value) or (when == "cold" and math.isinf(value)):
        return ""
    if math.isinf(value):
        return (row.get("ended") or "not reached").partition(":")[0]  # "over 20 s", "failed"
    return f"**{quantity(value, 's')}**" if value == least else quantity(value, "s")


def _worst(row: dict) -> str:
    """Gap of the worst neuron, by the setting that is fastest to the tightest gap that was reached."""
    gaps = {goal: gap for goal, gap in row.get("worst_neuron_gap", {}).items() if gap is not None}
    return f"{float(gaps[min(gaps, key=float)]):.0e}" if gaps else ""


def _provenance(content: dict) -> str:
    sections = list(shown(content).values())
    commits = {s["figures"].get("nemos_development") for s in sections} - {None}
    branch = f"; NeMoS' development branch at commit {', '.join(sorted(c[:10] for c in commits))}" if commits else ""
    return provenance(sections) + branch + "."


# -------------------------------------------------------------------------------------------- figure


def draw_peers(content: dict, path: Path) -> None:
    """Draw seconds to the two tightest gaps, a dot per package, a row per problem; bands mark where glmfit loses."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    sections, names = shown(content), packages(content)
    lost = {(loss["section"], loss["when"]) for loss in losses(content)[0]}
    more = dict(zip((name for name in names if name not in COLORS), _MORE_COLORS, strict=False))
    colors = {name: (COLORS | more).get(name, "black") for name in names}
    height = 1.6 + 0.27 * len(sections)
    figure, axes = plt.subplots(1, 2, figsize=(10, height), sharey=True, sharex=True, layout="constrained")
    for ax, when in zip(axes, _WHEN, strict=True):
        for y, (name, section) in enumerate(sections.items()):
            if (name, when) in lost:
                ax.axhspan(y - 0.5, y + 0.5, color="#F6DCD6", lw=0, zorder=0)
            missing = [p for p in colors if not _draw_dot(ax, y, section["figures"]["peers"], p, when, colors[p])]
            for k, package in enumerate(missing):  # at the edge, one below another
                at = y + 0.2 * (k - (len(missing) - 1) / 2)
                ax.plot(1, at, ">", color=colors[package], ms=4, clip_on=False, transform=ax.get_yaxis_transform())
        ax.set(xscale="log", xlabel="seconds", title="later fits" if when == "warm" else "first fit of a process")
        ax.spines[["top", "right", "left"]].set_visible(False)
        ax.tick_params(axis="y", length=0)
        ax.grid(axis="both", color="0.9", lw=0.8)
        ax.set_axisbelow(True)
    axes[0].set_yticks(
        range(len(sections)), [title(k, s["figures"]["problem"]) for k, s in sections.items()], fontsize=9
    )
    axes[0].set_ylim(len(sections) - 0.5, -0.5)
    handles = [plt.Line2D([], [], marker="o", ls="", color=c, label=names[p]) for p, c in colors.items()]
    steps = [power(goal) for goal in goals(next(iter(sections.values()))["figures"]["peers"])[-2:]]
    marks = {
        f"{steps[0]} to {steps[1]}": ("o", "-", "0.3"),
        f"{steps[0]} only": ("o", "", "white"),
        "neither": (">", "", "0.3"),
    }
    for label, (marker, line, fill) in marks.items():
        handles.append(plt.Line2D([], [], marker=marker, ls=line, lw=2, mfc=fill, color="0.3", label=label))
    handles.append(Patch(color="#F6DCD6", label="glmfit is not the fastest"))
    figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    figure.savefig(path, dpi=130, metadata={"Software": None})
    plt.close(figure)


def _draw_dot(ax, y: int, peers: dict, package: str, when: str, color: str) -> bool:
    """Draw a dot at the tightest gap with a line from the second tightest, or a ring if only the latter was reached.

    False if a package that has rows reached neither.
    """
    loose, tight = (fastest(peers, package, when, goal) for goal in goals(peers)[-2:])
    size, front = (8, 4) if package == "glmfit" else (6.5, 3)
    if tight < math.inf:
        ax.plot([loose, tight], [y, y], "-", color=color, lw=2, zorder=front - 0.5)
        ax.plot(tight, y, "o", color=color, ms=size, mec="white", mew=0.8, zorder=front)
    elif loose < math.inf:
        ax.plot(loose, y, "o", mfc="white", mec=color, ms=size - 1, mew=1.5, zorder=front)
    return loose < math.inf or all(row["package"] != package for row in peers.values())
