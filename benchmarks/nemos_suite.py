"""NeMoS' own tests of solvers and models, run with each solver of glmfit instead of NeMoS' own.

    python benchmarks/nemos_suite.py --tree 0.2.8=FOLDER --tree 0.2.9=FOLDER [--sections 0.2.9] [--solvers SAGA]
        [--share 0.1]

A folder is a source tree of NeMoS with src/ and tests/. Its dependencies must be installed, but not NeMoS itself. A
share of the tests takes minutes instead of hours.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path

from _common import ROOT, Section, run_sections

SECTIONS = ("0.2.8", "0.2.9", "development", "stochastic_fit")
MARK, ALSO = "solver_related", "test_stochastic.py"
CASES, LIMIT_S = 4, 1800.0
OWN = ""  # no solver of glmfit
PROGRAMS = tempfile.TemporaryDirectory()  # compiled by JAX
# Why a test fails that passes with NeMoS' own solver: the first reason whose patterns match its name and message.
REASONS = (
    (
        "reads what only NeMoS' own solver has inside",
        r"",
        r"has no attribute '(solver_state|_solver|_solver_loss_fun|fun\w*|stepsize|linesearch|_replace"
        r"|\w*reference_point)'",
    ),
    ("reads what only NeMoS' own solver has inside", r"test_newton_glm_(initialize|instantiate)", r""),
    ("reads what only NeMoS' own solver has inside", r"svrg", r"Expected a callable value, got None"),
    ("asks SVRG for its own errors", r"svrg", r"DID NOT RAISE"),
    ("wants as many iterations as it allows", r"maxiter|convergence_callback", r"num_steps|reached_max_steps"),
    (
        "compares coefficients more closely than a gap of tol determines them",
        r"match_sklearn",
        r"does not match sklearn",
    ),
    ("gives an option that only NeMoS' own solver has", r"", r"not a kwarg for|unexpected keyword argument"),
)


def environment_of(tree: Path, **more: str) -> dict:
    """Environment of a process with the NeMoS of a tree and this glmfit; nothing is written into the tree.

    Most of the tests' time is compilation: what one process has compiled, the others read.
    """
    more |= {"JAX_COMPILATION_CACHE_DIR": PROGRAMS.name, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1"}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "PYTEST_", "GLMFIT_SUITE_"))}
    path = os.pathsep.join(map(str, (tree / "src", ROOT, ROOT / "benchmarks")))
    return kept | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1", "JAX_PLATFORMS": "cpu"} | more


def solvers_of(tree: Path) -> list[str]:
    """Name the solvers that glmfit registers with the NeMoS of a tree."""
    code = (
        "import glmfit.plugins.nemos, nemos.solvers as s;"
        "print(*[n for n in s.list_available_algorithms() if 'glmfit' in s.list_algo_backends(n)])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], env=environment_of(tree), check=True, capture_output=True, text=True
    )
    return told.stdout.split()


def run_tests(tree: Path, solver: str, scale: float) -> tuple[list[dict], float, bool]:
    """Run the tests of a tree by a solver; return a record per test, seconds, and whether the run finished."""
    tests = sorted((tree / "tests").glob("test_*.py"))
    files = [str(f.relative_to(tree)) for f in tests if f.name == ALSO or MARK in f.read_text(encoding="utf-8")]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "tests.jsonl"
        settings = {"ALGORITHM": solver, "CASES": str(CASES), "SHARE": str(scale), "REPORT": str(report)}
        environment = environment_of(tree, **{f"GLMFIT_SUITE_{name}": value for name, value in settings.items()})
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-p", "no:cacheprovider", "-p", "_nemos_plugin"]
        start = time.perf_counter()
        with open(Path(folder) / "log", "w+", encoding="utf-8") as log:
            try:
                code = subprocess.run(
                    [*command, "--capture=fd", *files], cwd=tree, env=environment, stdout=log, stderr=log,
                    timeout=LIMIT_S,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                code = None
            seconds = time.perf_counter() - start
            if not report.exists():
                log.seek(0)
                raise RuntimeError(f"no test ran: {log.read()[-2000:]}")
        records = [json.loads(line) for line in report.read_text(encoding="utf-8").splitlines()]
    return records, seconds, code in (0, 1)


def merged(records: list[dict]) -> dict[str, dict]:
    """One record per test: its failure, if it has one in the call, setup or teardown."""
    tests: dict[str, dict] = {}
    for record in records:
        known = tests.setdefault(record["test"], record)
        if record["outcome"] == "failed" and known["outcome"] != "failed":
            tests[record["test"]] = record | {"ran": known["ran"]}
    return tests


def counts(tests: dict[str, dict]) -> dict[str, int]:
    """Count outcomes."""
    found = Counter(test["outcome"] for test in tests.values())
    return {name: found[name] for name in ("passed", "failed", "skipped", "xfailed")}


def reason_of(test: dict) -> str:
    """Reason of a failure, as far as the name and message of the test tell."""
    for reason, name, message in REASONS:
        if re.search(name, test["test"]) and re.search(message, test["message"], re.DOTALL):
            return reason
    return "not explained"


def compared(tests: dict[str, dict], own: dict[str, dict]) -> dict:
    """Outcomes by a solver of ours, and failures by reason, without those of NeMoS' own solver."""
    failed = {name: test for name, test in tests.items() if test["outcome"] == "failed"}
    also = [name for name in failed if own.get(name, {}).get("outcome") == "failed"]
    reasons: dict[str, Counter] = defaultdict(Counter)
    for name, test in failed.items():
        if name not in also:
            reasons[reason_of(test)][name.split("[")[0].removeprefix("tests/")] += 1
    return counts(tests) | {
        "ran_our_solver": sum(test["ran"] for test in tests.values()),
        "passed_with_our_solver": sum(test["ran"] and test["outcome"] == "passed" for test in tests.values()),
        "failed_with_nemos_own": len(also),
        "reasons": {reason: sum(of.values()) for reason, of in sorted(reasons.items())},
        "failures": {reason: dict(sorted(of.items())) for reason, of in sorted(reasons.items())},
    }


def suite(
    _cache,
    scale: float,
    section: Section,
    *,
    tree: Path | None,
    commit: str | None,
    only: list[str],
    share: float = 1.0,
) -> None:
    """Tests of NeMoS by every solver of glmfit, and by NeMoS' own."""
    if tree is None:
        raise SystemExit(f"section {section.name} needs its tree: --tree {section.name}=FOLDER")
    scale *= share
    own, seconds, whole = run_tests(tree, OWN, scale)
    own = merged(own)
    section.note(commit=commit, share=share, own=counts(own) | {"seconds": seconds, "complete": whole}, solvers={})
    for solver in only or solvers_of(tree):
        records, seconds, whole = run_tests(tree, solver, scale)
        found = compared(merged(records), own) | {"seconds": seconds, "complete": whole}
        section.note(solvers=section.figures["solvers"] | {solver: found})
        section.require(
            f"{solver}[glmfit]: failures without an explanation", found["reasons"].get("not explained", 0), 0, limit=1,
            against="limit", unit="tests", topic="agreement",
        )  # fmt: skip
        section.save()


def tree_of(text: str) -> tuple[str, Path, str | None]:
    """Read NAME=FOLDER, or NAME@COMMIT=FOLDER."""
    name, _, folder = text.partition("=")
    name, _, commit = name.partition("@")
    path = Path(folder).expanduser().resolve()
    if name not in SECTIONS or not (path / "src" / "nemos").is_dir() or not (path / "tests").is_dir():
        names = ", ".join(SECTIONS)
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=FOLDER of one of {names}, with src/nemos and tests")
    return name, path, commit or None


if __name__ == "__main__":
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--tree", type=tree_of, action="append", default=[], metavar="NAME[@COMMIT]=FOLDER")
    parser.add_argument("--solvers", type=lambda text: text.split(","), default=[], help="of glmfit; all if not given")
    parser.add_argument("--share", type=float, default=1.0, help="of the tests")
    options, rest = parser.parse_known_args()
    trees = {name: (path, commit) for name, path, commit in options.tree}
    sections = {}
    for name in SECTIONS:
        tree, commit = trees.get(name, (None, None))
        sections[name] = functools.partial(suite, tree=tree, commit=commit, only=options.solvers, share=options.share)
        sections[name].__doc__ = suite.__doc__
    if trees and not any(given.startswith("--sections") for given in rest):
        rest += ["--sections", ",".join(trees)]
    sys.exit(run_sections(__doc__, sections, "nemos_suite.json", rest))
