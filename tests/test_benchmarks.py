"""Benchmarks that no committed result watches over still run, at a small scale; their references are optima."""

import importlib
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def benchmarks(monkeypatch):
    """Import a module of benchmarks/, which is not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


def test_the_large_section_of_a_gpu_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "benchmarks/gpu_population.py", "--sections", "large", "--scale", "0.001"]
    done = subprocess.run([*command, "--cache", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "batches of 4096 rows" in done.stdout
    share = float(done.stdout.rpartition("share_of_single_precision = ")[2].split()[0])
    assert 0 < share < 10  # of what a product alone does in the same process, timed once on a busy machine


@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_references_with_kinks_are_optima(benchmarks, link):
    problems, references = benchmarks("_problems"), benchmarks("_references")
    X = problems.history_design(2000, 4, 3, 0)
    problem = problems.Problem("small", link, 1e-3, X, problems.draw_counts(X, 3, link, n_basis=3))
    null = problems.null_parameters(problem)
    alone, _ = references.optimum(problem, range(12), null)  # groups of one are the lasso
    lasso = problems.lasso_reference(problem, np.full(3, 1e-3))
    np.testing.assert_allclose(alone, lasso["optimum"], rtol=1e-13)

    from glmfit import PopulationGLM

    groups = [0] * 5 + [1] * 4 + [2] * 3
    model = PopulationGLM(link, "GroupLasso", 1e-3, groups=groups, tol=1e-8).fit(X, problem.Y)
    from_null, left = references.optimum(problem, groups, null)
    assert left.max() < 1e-6
    found = references.Reference(problem, groups).gaps(model.coef_, model.intercept_)
    distance = references.objective(problem, groups, model.coef_, model.intercept_) - from_null
    assert np.all(distance >= -1e-14) and np.all(distance <= model.report_.gap + 1e-14)
    assert found["worst_neuron_gap"] < 1e-7
    assert references.Reference(problem, groups).gaps(np.nan * model.coef_, model.intercept_)["gap"] == np.inf


def test_a_ridge_per_neuron_has_its_own_reference(benchmarks):
    problems, references = benchmarks("_problems"), benchmarks("_references")
    X = problems.history_design(2000, 4, 3, 0)
    problem = problems.Problem("small", "softplus", 1e-3, X, problems.draw_counts(X, 2, "softplus", n_basis=3))
    reference = references.Reference(problem)
    for strengths in (np.array([1e-3, 1e-1]), np.full(2, 1e-4)):
        alone = [problems.newton(replace(problem.select([n]), strength=strengths[n]))[0] for n in range(2)]
        found = np.hstack(alone)
        assert abs(reference.gaps(found[:-1], found[-1], strengths)["worst_neuron_gap"]) < 1e-12
