"""Pytest plugin of nemos_suite.py: NeMoS' tests run with a solver of glmfit under the names of NeMoS' own solvers.

Loaded by ``-p _nemos_plugin``. Environment variables set the solver (none: NeMoS' own), the number of cases per test,
the share of the tests, and the file that gets a line of JSON for every test.
"""

from __future__ import annotations

import functools
import json
import os
import zlib
from collections import Counter
from pathlib import Path

ALGORITHM = os.environ.get("GLMFIT_SUITE_ALGORITHM", "")
CASES = int(os.environ.get("GLMFIT_SUITE_CASES", "4"))
SHARE = float(os.environ.get("GLMFIT_SUITE_SHARE", "1"))
REPORT = os.environ.get("GLMFIT_SUITE_REPORT", os.devnull)
_ENTRIES = ("run", "update", "stochastic_run")  # methods through which NeMoS runs a solver
_FILES = ("test_stochastic.py",)  # also about solvers, but without the mark
_ABOUT_OTHERS = ("test_optimize_solver_params",)  # thousands of cases about step sizes of SVRG; nothing is fitted
_ran: list[str] = []


def pytest_configure(config) -> None:
    """Replace every solver in NeMoS' registry whose penalties ours supports."""
    from nemos import regularizer
    from nemos.solvers import _solver_registry

    if not ALGORITHM:
        return
    from glmfit.plugins.nemos import REGULARIZERS  # which registers the solvers

    kinds = [getattr(regularizer, name) for name in REGULARIZERS]
    without = [kind for kind in kinds if f"{ALGORITHM}[glmfit]" not in kind._allowed_solvers]

    ours = _noting(_solver_registry._registry[ALGORITHM]["glmfit"].implementation)
    for name, backends in _solver_registry._registry.items():
        for backend, spec in backends.items():
            if backend != "glmfit" and not any(name in kind._allowed_solvers for kind in without):
                spec.implementation = ours


def _noting(solver: type) -> type:
    """Solver that keeps a record of having been used."""

    def noting(name):
        @functools.wraps(getattr(solver, name))  # NeMoS inspects signatures
        def method(self, *args, **kwargs):
            _ran.append(name)
            return getattr(solver, name)(self, *args, **kwargs)

        return method

    methods = {name: noting(name) for name in _ENTRIES if hasattr(solver, name)}
    return type(solver.__name__, (solver,), methods | {"__module__": solver.__module__, "__doc__": solver.__doc__})


def pytest_collection_modifyitems(config, items) -> None:
    """Keep some cases of every test of solvers, chosen by a hash of their names, so the same in every run."""
    seen, kept = Counter(), []
    for item in sorted(items, key=lambda item: zlib.crc32(item.nodeid.encode())):
        function = item.nodeid.split("[")[0]
        of_solvers = item.get_closest_marker("solver_related") or item.path.name in _FILES
        if of_solvers and item.originalname not in _ABOUT_OTHERS and seen[function] < CASES:
            seen[function] += 1
            if zlib.crc32(function.encode()) < SHARE * 2**32:
                kept.append(item)
    kept = set(kept)
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def pytest_runtest_logstart(nodeid, location) -> None:
    """Clear the record of the previous test."""
    _ran.clear()


def pytest_runtest_logreport(report) -> None:
    """Write the outcome of a test, and the error if it failed."""
    if report.when != "???":  # a worker that crashed, which only the process that started it can report
        of_worker = "PYTEST_XDIST_WORKER" in os.environ  # that process hears of every other test, too
        if not of_worker or (report.when != "call" and report.outcome == "passed"):
            return
    line = {"test": report.nodeid, "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome}
    line |= {"ran": bool(_ran), "when": report.when, "seconds": report.duration}
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        line["message"] = crash.message if crash else str(report.longrepr)[-2000:]
        line["file"] = Path(crash.path).name if crash else ""
    with open(REPORT, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
