"""Pytest plugin of nemos_suite.py: NeMoS' tests run with a solver of glmfit under every name of NeMoS' own.

Loaded by ``-p _nemos_plugin``. The environment says which solver (none: NeMoS' own), how many cases of every test, the
share of these, and the file that gets a line of JSON for every test.
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
_ENTRIES = ("run", "update", "stochastic_run")  # methods by which NeMoS has a solver work
_FILES = ("test_stochastic.py",)  # of solvers, too, though not marked so
_ABOUT_OTHERS = ("test_optimize_solver_params",)  # thousands of cases, of step sizes of SVRG; nothing is fitted
_ran: list[str] = []


def pytest_configure(config) -> None:
    """Put the solver into NeMoS' registry, in the place of every other whose penalties it takes."""
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
        @functools.wraps(getattr(solver, name))  # NeMoS looks at signatures
        def method(self, *args, **kwargs):
            _ran.append(name)
            return getattr(solver, name)(self, *args, **kwargs)

        return method

    methods = {name: noting(name) for name in _ENTRIES if hasattr(solver, name)}
    return type(solver.__name__, (solver,), methods | {"__module__": solver.__module__, "__doc__": solver.__doc__})


def pytest_collection_modifyitems(config, items) -> None:
    """Keep tests of solvers, of every test some cases: by a hash of their names, the same ones in every run."""
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
    """Forget what the test before used."""
    _ran.clear()


def pytest_runtest_logreport(report) -> None:
    """Write the outcome of a test, and what went wrong where it failed."""
    if report.when != "call" and report.outcome == "passed":
        return
    line = {"test": report.nodeid, "outcome": "xfailed" if hasattr(report, "wasxfail") else report.outcome}
    line |= {"ran": bool(_ran), "when": report.when, "seconds": report.duration}
    if report.outcome == "failed":
        crash = getattr(report.longrepr, "reprcrash", None)
        line["message"] = crash.message if crash else str(report.longrepr)[-2000:]
        line["file"] = Path(crash.path).name if crash else ""
    with open(REPORT, "a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
