"""Sections of peers.py on models that few packages have: gaps are correct, and missing packages are reported.

Tests that need another Python run if GLMFIT_OTHER_PYTHON names it (several are separated by commas).
"""

import importlib
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]
OTHER = os.environ.get("GLMFIT_OTHER_PYTHON")


@pytest.fixture
def benchmarks(monkeypatch):
    """Import a module of benchmarks/, which is not a package."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module


@pytest.fixture
def counts(benchmarks):
    """Features and counts of two neurons, exponential link."""
    problems = benchmarks("_problems")
    X = problems.history_design(1500, 3, 4, 0)
    return problems.Problem("small", "exp", 1e-3, X, problems.draw_counts(X, 2, "exp", n_basis=4)[:, ::-1])


@pytest.mark.thorough
def test_process_of_another_python_returns_results_and_reports_errors(benchmarks):
    foreign = benchmarks("_foreign")
    own = foreign.Foreign(None, "numpy")
    assert own.version == np.__version__
    with pytest.raises(RuntimeError, match=r"version of numpy ended with status 1: [\s\S]*no_such_package"):
        own.call("version", package="no_such_package")
    assert foreign.find("no_such_python", "numpy").python == own.python
    assert foreign.find(None, "no_such_package") is None


def test_lower_bounds_of_paths_are_valid_and_tight(benchmarks, counts):
    problems = benchmarks("_problems")
    for labels in (None, np.repeat([0, 1, 2], 4)):
        paths = benchmarks("_peers_paths").Paths(counts.X, counts.Y, labels)
        if labels is None:
            np.testing.assert_allclose(paths.strengths[0], 0.95 * problems.maximal_l1(counts), rtol=1e-6)
        null = problems.null_parameters(counts)
        shape = (len(paths.strengths), *null[:-1].shape)
        paths.values(np.broadcast_to(null[:-1], shape), np.broadcast_to(null[-1], (shape[0], 2)))
        loose = paths.lower.copy()

        found = np.array([_optima(benchmarks, counts, labels, s) for s in paths.strengths[::10]])
        assert np.all(loose[::10] <= found + 1e-12)
        from glmfit import PopulationGLM

        given = {"regularizer": "Lasso"} if labels is None else {"regularizer": "GroupLasso", "groups": labels}
        fits = [
            PopulationGLM("exp", regularizer_strength=s, tol=1e-10, **given).fit(counts.X, counts.Y)
            for s in paths.strengths[::10]
        ]
        paths.strengths, paths.lower = paths.strengths[::10], loose[::10]
        objective = paths.values(np.stack([m.coef_ for m in fits]), np.stack([m.intercept_ for m in fits]))
        np.testing.assert_allclose(objective, found, rtol=1e-9)
        assert np.all(paths.lower <= found + 1e-12)
        assert max(gap.max() for gap in paths.gaps(objective).values()) < 1e-5


def _optima(benchmarks, problem, labels, strength):
    """F* of every neuron by the reference, each at its strength."""
    references, null = benchmarks("_references"), benchmarks("_problems").null_parameters(problem)
    labels = range(problem.X.shape[1]) if labels is None else labels.tolist()
    return [
        references.optimum(replace(problem.select([n]), strength=strength[n]), labels, null[:, [n]])[0][0]
        for n in range(problem.Y.shape[1])
    ]


def test_lower_bounds_of_classes_are_valid_and_tight(benchmarks):
    problems = benchmarks("_peers_problems")
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 4)).astype(np.float32)
    y = np.argmax(2 * X @ rng.normal(size=(4, 3)) + rng.gumbel(size=(300, 3)), axis=1)
    gaps, best = benchmarks("_peers_classes").Gaps(X, y, 1e-2), problems.newton(problems.Classes("few", 1e-2, X, y))
    null = gaps.value(np.zeros((4, 3)), np.log(gaps.share))
    assert null == pytest.approx(gaps.null, rel=1e-12)
    assert gaps.lower <= best + 1e-12

    from glmfit import SoftmaxGLM

    model = SoftmaxGLM(regularizer_strength=1e-2, tol=1e-9).fit(X, y)
    value = gaps.value(model.coef_, model.intercept_ + 1.0)  # a shift of all intercepts changes nothing
    assert value == pytest.approx(best, rel=1e-7)
    assert best - 1e-5 < gaps.lower <= best + 1e-12
    assert gaps.value(np.nan * model.coef_, model.intercept_) == np.inf


def test_given_bands_are_fitted_to_the_optimum_and_chosen_ones_predict(benchmarks):
    module, rng = benchmarks("_peers_bands"), np.random.default_rng(0)
    one, other = rng.normal(size=(600, 3)), rng.normal(size=(600, 8))
    Y = one @ rng.normal(size=(3, 2)) + rng.normal(size=(600, 2))
    bands = module.Bands(one.astype(np.float32), other.astype(np.float32), Y.astype(np.float32))
    strength = bands.spread([1e-2, 1.0])
    best = bands.optimum(strength)
    rows = np.vstack([bands.X.astype(float), *(np.diag(np.sqrt(480 * strength)),)])
    middle = bands.Y.mean(axis=0)
    stacked = np.vstack([bands.Y - middle, np.zeros((11, 2))])
    coef = np.linalg.lstsq(rows, stacked, rcond=None)[0]
    assert bands.objective(coef, middle - bands.X.mean(axis=0) @ coef, strength) == pytest.approx(best, rel=1e-6)
    shares = np.array([[0.5, 0.5], [0.99, 0.01], [0.01, 0.99]])
    r2 = bands.r2(*module.search(bands, shares))
    assert r2 > 0.5 and r2 >= bands.r2(*module.search(bands, shares[2:])) - 0.01


def test_missing_packages_are_reported(benchmarks, monkeypatch, tmp_path):
    common = benchmarks("_common")
    for name in ("_peers_paths", "_peers_pairs", "_peers_bands", "_peers_classes"):
        module = benchmarks(name)
        monkeypatch.setattr(module, "find", lambda *_: None)
        needs = {"data": None} if name == "_peers_classes" else {}
        measure = module.SECTIONS["classes-place" if needs else next(iter(module.SECTIONS))]
        section = common.Section(name)
        measure(tmp_path, 0.02, section, **needs)
        assert section.figures["absent"] and not section.requirements


@pytest.mark.thorough
@pytest.mark.skipif(not OTHER, reason="GLMFIT_OTHER_PYTHON names no Python with the packages")
@pytest.mark.parametrize(
    ("module", "name", "package", "scale"),
    [
        ("_peers_paths", "path-P1-lasso-1", "adelie", 0.02),
        ("_peers_classes", "classes-digits", "cyanure", 0.2),
        ("_peers_pairs", "pairs-small", "implicit", 0.2),
    ],
)
def test_sections_with_other_packages_are_measured_and_judged(benchmarks, tmp_path, module, name, package, scale):
    if benchmarks("_foreign").find(OTHER, package) is None:
        pytest.skip(f"no given Python has {package}")
    section = benchmarks("_common").Section(name)
    benchmarks(module).SECTIONS[name](tmp_path, scale, section, other_python=OTHER)
    assert section.requirements and all(np.isfinite(e["ratio"]) for e in section.requirements)
