"""Sort tests by how long they take: python tests/tiers.py LOG... > tests/tiers.txt

A LOG is what ``python -m pytest -n 2 -m "" --durations=0 --durations-min=0.05`` printed; a second one, of the fast
suite that came out, finds tests that had only reused what others compiled. A function whose cases take no more than
FAST together is in the fast suite. Of the others the cases below DEAR, and the quickest case up to DEARER, are
thorough: CI runs them, so that it reaches nearly every function. What is left is slow. Where a whole is tested and not
a law, DEAREST is the limit of every case. A few wholes below it were made slow by hand, to keep CI well within its 25
minutes on a slow machine: see the log of tests/tiers.txt, and keep them so.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from pathlib import Path

import pytest

FAST, DEAR, DEARER, DEAREST = 2.0, 0.7, 6.0, 45.0  # seconds, two tests at a time on two cores
WHOLES = (
    "tests/batch",
    "tests/regression",
    "tests/test_docs.py",
    "tests/test_examples.py",
    "tests/test_precision.py",
    # One of a kind each, whatever they cost.
    "tests/unit/test_devices.py::test_two_hosts",
    "tests/unit/test_nemos_plugin.py::test_a_fit_through_nemos",
    "tests/unit/test_nemos_plugin.py::test_a_link_is_known",
    "tests/unit/test_population_glm.py::test_double_precision",
    "tests/unit/test_population_glm_cv.py::test_both_solvers",
    "tests/unit/test_reports.py::test_pseudo_r2",
    "tests/unit/test_reports.py::test_a_gap_nobody",
    "tests/unit/test_response_model.py::test_double_precision",
    "tests/unit/test_response_model.py::test_features_may_be",
    "tests/unit/test_softmax_glm.py::test_sparse_features_are_never",
    "tests/unit/test_streaming.py::test_a_fit_killed",
    "tests/unit/test_streaming.py::test_files_sources",
)
FILE = Path(__file__).with_name("tiers.txt")


def sort_tests(*logs: str) -> dict[str, str]:
    """Names of functions and of their cases, with the tier of each that is not in the fast suite."""
    cases: dict[str, dict[str, float]] = defaultdict(dict)
    for log in logs:
        took: dict[str, float] = defaultdict(float)
        for seconds, name in re.findall(r"^([\d.]+)s (?:call|setup|teardown) +(tests/.+?) *$", log, re.M):
            took[name] += float(seconds)
        for name, seconds in took.items():
            of = cases[name.split("[")[0]]
            of[name] = max(seconds, of.get(name, 0.0))
    tiers = {}
    for function, of in sorted(cases.items()):
        if sum(of.values()) <= FAST:
            continue
        whole = function.startswith(WHOLES)
        limit = DEAREST if whole else max(DEAR, min(DEARER, min(of.values())))
        dear = {name: "slow" for name, seconds in sorted(of.items()) if seconds > limit}
        tiers |= dear if len(dear) == len(of) == 1 else {function: "thorough"} | dear
    return tiers


def mark(items: list[pytest.Item]) -> None:
    """Give every test the marks that its name, and that of its function, have in tiers.txt."""
    tiers = dict(line.split(" ", 1)[::-1] for line in FILE.read_text().splitlines())
    for item in items:
        for name in {item.nodeid, item.nodeid.split("[")[0]} & tiers.keys():
            item.add_marker(tiers[name])


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(f"no LOG was given; see the top of {__file__}")
    for name, tier in sort_tests(*(Path(log).read_text() for log in sys.argv[1:])).items():
        print(tier, name)
