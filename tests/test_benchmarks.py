"""Benchmarks that no committed result watches over still run, at a small scale; their references are optima."""

import importlib
import json
import signal
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


@pytest.mark.thorough
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


@pytest.fixture
def small(benchmarks, tmp_path):
    """One recording of one design of its own, on file."""
    problems = benchmarks("_problems")
    X = problems.history_design(1000, 4, 3, 0)
    Y = problems.draw_counts(X, 3, "softplus", n_basis=3)
    files = [problems.save_array(tmp_path / f"{name}.npy", array) for name, array in (("X", X), ("Y", Y))]
    return problems.Problem("w_maze_place", "softplus", 1e-4, X, Y, *files)


def test_contenders_that_run_out_of_time_or_fail_are_recorded(benchmarks, small, tmp_path):
    files = {"x_file": str(small.x_file), "y_file": str(small.y_file), "out": str(tmp_path / "answer.npz")}
    start = benchmarks("_common").Contender
    runs = {
        name: start(limit, kind="each-newton", compiles=False, strength=strength, **files)
        for name, limit, strength in (("good", 60.0, 1e-4), ("slow", 0.1, 1e-4), ("bad", 60.0, "strong"))
    }
    for run in runs.values():
        run.wait()
    runs["slow"].process.send_signal(signal.SIGSTOP)
    for _ in range(2):
        for run in runs.values():
            run.fit()
    figures = {name: run.figures() for name, run in runs.items()}
    assert len(figures["good"]["seconds"]) == 2 and "ended" not in figures["good"]
    assert [run.has_time(3) for run in runs.values()] == [True, False, False]
    assert not runs["good"].has_time(1)
    assert figures["slow"] == {"seconds": [], "ended": "over 0.1 s"}
    assert figures["bad"]["ended"].startswith("failed: ")
    for run in runs.values():
        run.close()
        assert run.process.poll() is not None


@pytest.mark.thorough
def test_a_figure_of_recorded_designs_is_measured_and_judged(benchmarks, small, tmp_path):
    designs, common = benchmarks("real_designs"), benchmarks("_common")
    groups = [0] * 6 + [1] * 6
    section = common.Section("w_maze_place")
    for penalty, contenders in (("ridge-1e-4", ["glmfit", "before", "numpy"]), ("group-lasso", ["newton", "ridge"])):
        figure = designs.Figure(small, penalty, groups, tmp_path, before=ROOT, limit_s=60.0)
        found = designs.measure(figure, contenders)
        assert list(found) == contenders
        for name in set(contenders) - {"ridge"}:
            assert -1e-12 < found[name]["gap"] < 1e-3 and len(found[name]["seconds"]) > 1, name
        designs.judge(figure, found, section)
    verdicts = {(e["what"], e["against"]): e["limit"] for e in section.requirements}
    what = "w_maze_place, softplus, ridge-1e-4: "
    assert verdicts == {
        (what + "neurons proved", "all"): 1,
        (what + "later fit", "the version before"): 0.1,
        (what + "first fit", "a later fit and half a second"): 1,
        (what + "later fit", "NumPy, Newton per neuron"): 1.5,
    }


def test_a_rival_that_ran_out_of_time_took_the_limit(benchmarks, small, tmp_path):
    designs, common = benchmarks("real_designs"), benchmarks("_common")
    figure = designs.Figure(small, "cv", [0] * 12, tmp_path, before=ROOT, limit_s=60.0)
    ours = {"seconds": [3.0, 2.0, 2.5, 1.0], "proved": 3, "neurons": 3}
    found = {"glmfit": ours, "before": {"seconds": [], "ended": "over 60 s"}, "separate": {"seconds": [9.0, 5.0]}}
    section = common.Section("w_maze_place")
    for _ in range(2):  # the verdicts of a figure take the place of its earlier ones
        designs.judge(figure, found, section)
    proved, before, separate = section.requirements
    assert before["against"] == "the version before, over 60 s" and before["reference"] == 60.0 and before["met"]
    assert separate["ratio"] == 0.4 and not separate["met"] and separate["kind"] == "requirement"
    assert proved["kind"] == "aim"

    ours |= {"seconds": [], "ended": "over 60 s"}  # of two that ran out of time nothing is known
    designs.judge(figure, found, section)
    assert [e["against"] for e in section.requirements] == ["all", "40 separate fits"]
    assert section.requirements[1]["ours"] == 60.0 and not section.requirements[1]["met"]


def test_an_interrupted_section_keeps_its_figures(benchmarks, monkeypatch, tmp_path):
    common = benchmarks("_common")
    code = {"commit": "1", "dirty": False, "date": "today"}
    monkeypatch.setattr(common, "RESULTS", tmp_path)
    monkeypatch.setattr(common, "ROOT", tmp_path)
    monkeypatch.setattr(common, "environment", lambda: dict(code))

    def measure(cache, scale, section):
        """Measure."""
        section.figures[code["date"]] = 1
        section.save()
        raise KeyboardInterrupt

    for code["date"], code["commit"], kept in (("today", "1", 1), ("tomorrow", "1", 2), ("later", "2", 1)):
        arguments = ["--cache", str(tmp_path)]
        with pytest.raises(KeyboardInterrupt):
            common.run_sections("A benchmark.", {"one": measure}, "results.json", arguments, resume=True)
        section = json.loads((tmp_path / "results.json").read_text())["sections"]["one"]
        assert len(section["figures"]) == kept and section["environment"]["date"] == code["date"]


def test_terms_without_their_constant_are_the_same_model(benchmarks):
    """A term as mgcv takes it: what the constant did, the intercept does; the penalty is the same."""
    from glmfit.design import BSpline

    basis, rng = BSpline(7, (0, 1), name="x"), np.random.default_rng(0)
    X, coef = basis.features(rng.random(50)), rng.normal(size=7)
    term = benchmarks("_mgcv").Parametric(X, basis.penalties)
    found = term.turn.T @ coef
    assert term.X.shape == (50, 6) and np.linalg.matrix_rank(term.X) == 6
    curve = X @ coef
    np.testing.assert_allclose(term.X @ found, curve - curve.mean(), atol=1e-12)
    np.testing.assert_allclose(found @ term.penalties[0] @ found, coef @ basis.penalties[0] @ coef)
    ridge = benchmarks("_mgcv").Parametric(X, [np.eye(7)])
    assert ridge.X.shape == (50, 7)
