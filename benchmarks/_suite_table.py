"""Tables of NeMoS' own tests with our solvers, from nemos_suite.json."""

from __future__ import annotations

from collections import Counter

from _format import provenance

_TREES = {"stochastic_fit": "with `stochastic_fit`"}
_COLUMNS = ("NeMoS", "solver", "passed", "failed", "skipped", "run our solver", "of these pass")


def render_suite(content: dict) -> str:
    """Make a row per version and solver."""
    sections = _sections(content)
    lines = ["| " + " | ".join(_COLUMNS) + " |", "|---" * len(_COLUMNS) + "|"]
    for name, section in sections.items():
        figures = section["figures"]
        commit = f" ({figures['commit']})" if figures.get("commit") else ""
        share = f", {figures['share']:.0%} of the tests" if figures.get("share", 1.0) < 1 else ""
        tree = _TREES.get(name, name) + commit + share
        lines.append(_row(tree, "its own", figures["own"]))
        lines += [_row(tree, f"`{solver}[glmfit]`", found) for solver, found in figures["solvers"].items()]
    return "\n".join([*lines, "", provenance([_without_nemos(section) for section in sections.values()]) + "."])


def render_reasons(content: dict) -> str:
    """Count failures by their reasons, a row per reason and a column per solver."""
    found: dict[str, Counter] = {}
    for section in _sections(content).values():
        for solver, of in section["figures"]["solvers"].items():
            for reason, number in of["reasons"].items():
                found.setdefault(reason, Counter())[solver] += number
            if of["failed_with_nemos_own"]:
                found.setdefault("fails with NeMoS' own solver, too", Counter())[solver] += of["failed_with_nemos_own"]
    solvers = sorted({solver for of in found.values() for solver in of})
    lines = [
        "| the test ... | " + " | ".join(f"`{s}[glmfit]`" for s in solvers) + " |",
        "|---" * (1 + len(solvers)) + "|",
    ]
    for reason, of in sorted(found.items(), key=lambda item: -sum(item[1].values())):
        lines.append(f"| {reason} | " + " | ".join(str(of[solver]) for solver in solvers) + " |")
    return "\n".join(lines)


def _sections(content: dict) -> dict[str, dict]:
    return {name: content["sections"][name] for name in content["order"] if name in content["sections"]}


def _row(tree: str, solver: str, found: dict) -> str:
    ended = "" if found["complete"] else " (ended early)"
    ran = ("", "") if "ran_our_solver" not in found else (found["ran_our_solver"], found["passed_with_our_solver"])
    cells = (tree, solver + ended, found["passed"], found["failed"], found["skipped"], *ran)
    return "| " + " | ".join(map(str, cells)) + " |"


def _without_nemos(section: dict) -> dict:
    """Record of a section without the installed NeMoS, which is not the tested one."""
    record = section["environment"]
    versions = {name: version for name, version in record["versions"].items() if name in ("jax", "numpy")}
    return {"environment": record | {"versions": versions}}
