"""NeMoS' own tests with our solvers: the solver is replaced, and failures are grouped by reason."""

import importlib
from pathlib import Path

import pytest

pytest.importorskip("nemos", minversion="0.2.8")

ROOT = Path(__file__).resolve().parents[1]
TESTS = """
import nemos as nmo
import numpy as np
import pytest

pytestmark = pytest.mark.solver_related


@pytest.mark.parametrize("case", range(9))
def test_a_fit(case):
    rng = np.random.default_rng(case)
    model = nmo.glm.GLM(regularizer="Ridge", solver_name="LBFGS", solver_kwargs={"tol": 1e-8})
    model.fit(rng.normal(size=(50, 2)), rng.poisson(1.0, 50))


def test_the_inside():
    assert hasattr(nmo.solvers.get_solver("LBFGS").implementation, "_solver_class")
    raise AttributeError("'FitState' object has no attribute 'solver_state'")


def test_a_penalty_with_kinks():
    assert nmo.solvers.get_solver("ProximalGradient").backend == "optimistix"
    assert "glmfit" in nmo.solvers.get_solver("ProximalGradient").implementation.__module__


@pytest.mark.skip(reason="of the system")
def test_skipped():
    pass
"""


@pytest.fixture
def suite(monkeypatch):
    """Import the script; benchmarks/ is not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("nemos_suite")


@pytest.fixture
def tree(tmp_path):
    """Make a source tree with its own tests; NeMoS is the installed one."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_few.py").write_text(TESTS)
    (tmp_path / "tests" / "test_of_others.py").write_text("def test_nothing():\n    raise ValueError\n")
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\nmarkers = ["solver_related: of solvers"]\n')
    return tmp_path


@pytest.mark.thorough
def test_tests_of_solvers_run_with_ours(suite, tree):
    outcomes = suite.merged(suite.run_tests(tree, "SAGA", 1.0)[0])
    assert suite.counts(outcomes) == {"passed": suite.CASES + 1, "failed": 1, "skipped": 1, "xfailed": 0}
    fits = [test for name, test in outcomes.items() if "test_a_fit" in name]
    assert len(fits) == suite.CASES and all(test["ran"] for test in fits)
    assert sum(test["ran"] for test in outcomes.values()) == suite.CASES


@pytest.mark.slow
def test_a_solver_of_smooth_models_leaves_the_others_alone(suite, tree):
    outcomes = suite.merged(suite.run_tests(tree, "NonlinearCG", 1.0)[0])
    assert outcomes["tests/test_few.py::test_a_penalty_with_kinks"]["outcome"] == "failed"
    assert all(test["ran"] for name, test in outcomes.items() if "test_a_fit" in name)


def record(name, outcome, message="", ran=True):
    return {"test": name, "outcome": outcome, "message": message, "ran": ran, "seconds": 1.0}


def test_failures_have_reasons_and_those_of_nemos_are_counted_separately(suite):
    tests = [
        record(
            "tests/test_a.py::test_x[1]", "failed", "AttributeError: 'FitState' object has no attribute 'solver_state'"
        ),
        record("tests/test_a.py::test_x[2]", "failed", "AttributeError: 'SAGA' object has no attribute '_solver'"),
        record("tests/test_a.py::test_y", "failed", "AssertionError: Not equal to tolerance"),
        record("tests/test_a.py::test_z", "failed", "ValueError: of both"),
        record("tests/test_a.py::test_maxiter_is_respected", "failed", "assert 0 == 50 num_steps"),
        record("tests/test_a.py::test_ok", "passed"),
        record("tests/test_a.py::test_names", "passed", ran=False),
    ]
    own = {test["test"]: record(test["test"], "failed" if test["test"].endswith("z") else "passed") for test in tests}
    found = suite.compared(suite.merged(tests), own)
    assert (found["passed"], found["failed"], found["failed_with_nemos_own"]) == (2, 5, 1)
    assert (found["ran_our_solver"], found["passed_with_our_solver"]) == (6, 1)
    reasons = {"reads what only NeMoS' own solver has inside": 2, "wants as many iterations as it allows": 1}
    assert found["reasons"] == reasons | {"not explained": 1}
    assert found["failures"]["not explained"] == {"test_a.py::test_y": 1}


def test_a_failure_around_a_test_counts(suite):
    calls = [record("tests/test_a.py::test_x", "passed"), record("tests/test_a.py::test_x", "failed", ran=False)]
    (only,) = suite.merged(calls).values()
    assert only["outcome"] == "failed" and only["ran"]


@pytest.mark.parametrize("text", ["0.2.8", "0.2.8=nowhere", "0.1=."])
def test_trees_are_checked(suite, text):
    with pytest.raises(suite.argparse.ArgumentTypeError, match=r"is no NAME=FOLDER of one of 0\.2\.8, 0\.2\.9"):
        suite.tree_of(text)


def test_tables_have_a_row_per_solver_and_per_reason(suite):
    table = importlib.import_module("_suite_table")
    own = {"passed": 9, "failed": 0, "skipped": 1, "complete": True}
    ours = {
        "passed": 7, "failed": 2, "skipped": 1, "ran_our_solver": 5, "passed_with_our_solver": 4, "complete": False,
        "failed_with_nemos_own": 1, "reasons": {"reads this": 1},
    }  # fmt: skip
    environment = {
        "date": "2026-01-02", "cpu": "a processor", "cores": 2, "device": "cpu", "python": "3.11.1",
        "commit": "0123456789abcdef", "dirty": False, "versions": {"jax": "1", "numpy": "2", "nemos": "0.2.8"},
    }  # fmt: skip
    figures = {"own": own, "commit": "1e1fa524", "solvers": {"SAGA": ours}}
    content = {
        "order": ["0.2.8", "development"],
        "sections": {"development": {"environment": environment, "figures": figures}},
    }
    lines = table.render_suite(content).splitlines()
    assert lines[2] == "| development (1e1fa524) | its own | 9 | 0 | 1 |  |  |"
    assert lines[3] == "| development (1e1fa524) | `SAGA[glmfit]` (ended early) | 7 | 2 | 1 | 5 | 4 |"
    assert "NeMoS" not in lines[-1] and "jax 1, NumPy 2, at commit 0123456789" in lines[-1]
    reasons = table.render_reasons(content).splitlines()
    assert set(reasons[2:]) == {"| reads this | 1 |", "| fails with NeMoS' own solver, too | 1 |"}
