"""Benchmarks without committed results still run at a small scale; their references are optima."""

import importlib
import json
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.optimize import minimize

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
    assert 0 < share < 10  # relative to a product alone in the same process, timed once on a busy machine


@pytest.mark.slow
@pytest.mark.parametrize("section", ["wide", "steps"])
def test_sections_of_2000_neurons_on_a_gpu_run_on_a_cpu(section, tmp_path):
    command = [sys.executable, "benchmarks/gpu_population.py", "--sections", section, "--scale", "0.001"]
    done = subprocess.run([*command, "--cache", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert 0 < float(done.stdout.rpartition("share_of_both = ")[2].split()[0]) < 10


@pytest.mark.slow
def test_sections_of_sampled_classes_on_a_gpu_run_on_a_cpu(tmp_path):
    command = [sys.executable, "benchmarks/gpu_softmax.py", "--sections", "steps,loss-100000", "--scale", "0.002"]
    done = subprocess.run([*command, "--cache", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("rows_per_s") == 12 and "half way there" in done.stdout


@pytest.mark.slow
def test_sections_of_pairs_on_a_gpu_run_on_a_cpu(tmp_path):
    command = [sys.executable, "benchmarks/gpu_pairs.py", "--scale", "0.001"]
    done = subprocess.run([*command, "--cache", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "scattered pairs" in done.stdout and done.stdout.count("seconds_of_epoch") == 2


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
    """A small recording of a simulated design, in files."""
    problems = benchmarks("_problems")
    X = problems.history_design(1000, 4, 3, 0)
    Y = problems.draw_counts(X, 3, "softplus", n_basis=3)
    files = [problems.save_array(tmp_path / f"{name}.npy", array) for name, array in (("X", X), ("Y", Y))]
    return problems.Problem("w_maze_place", "softplus", 1e-4, X, Y, *files)


@pytest.mark.thorough
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


@pytest.mark.slow
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


def test_rival_that_ran_out_of_time_counts_with_the_limit(benchmarks, small, tmp_path):
    designs, common = benchmarks("real_designs"), benchmarks("_common")
    figure = designs.Figure(small, "cv", [0] * 12, tmp_path, before=ROOT, limit_s=60.0)
    ours = {"seconds": [3.0, 2.0, 2.5, 1.0], "proved": 3, "neurons": 3}
    found = {"glmfit": ours, "before": {"seconds": [], "ended": "over 60 s"}, "separate": {"seconds": [9.0, 5.0]}}
    section = common.Section("w_maze_place")
    for _ in range(2):  # the verdicts of a figure replace its earlier ones
        designs.judge(figure, found, section)
    proved, before, separate = section.requirements
    assert before["against"] == "the version before, over 60 s" and before["reference"] == 60.0 and before["met"]
    assert separate["ratio"] == 0.4 and not separate["met"] and separate["kind"] == "requirement"
    assert proved["kind"] == "aim"

    ours |= {"seconds": [], "ended": "over 60 s"}  # if both ran out of time, nothing is known
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
    """In a term as mgcv takes it, the intercept replaces the constant; the penalty is the same."""
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


def rung(peers, package, solver, gap, seconds, first=(), later=(), neurons=None):
    """Result of one setting of a solver."""
    rival = peers.Rival(package, solver, ())
    return peers.Rung(rival, "float32", {"tol": gap}, neurons, gap, 2 * gap, seconds, list(first), list(later))


def test_time_to_a_gap_is_the_time_of_the_fastest_setting_that_reaches_it(benchmarks, small):
    peers = benchmarks("peers")
    loose = rung(peers, "sklearn", "lbfgs", 5e-5, 1.0, first=[3.0, 9.0, 5.0], later=[2.0, 2.0, 0.9])
    tight, exact = rung(peers, "sklearn", "lbfgs", 9e-7, 1.8, [4.0], [1.5]), rung(peers, "sklearn", "sag", 1e-8, 2.3)
    rungs = [rung(peers, "sklearn", "lbfgs", 0.5, 0.1), loose, tight, exact]
    assert peers.fastest(rungs, "sklearn") == [loose, tight]  # the last is far from the fastest
    ours = [rung(peers, "glmfit", solver, 1e-7, 1.0) for solver in ("Newton", "auto")]
    assert peers.fastest(rungs + ours, "glmfit") == ours[1:]
    found = peers.figures(loose.rival, [loose, tight], "over 20 s", small)
    assert found["warm"] == {"0.0001": 1.5, "1e-06": 1.5} and found["cold"] == {"0.0001": 4.0, "1e-06": 4.0}
    assert found["worst_neuron_gap"]["1e-06"] == 1.8e-6 and found["neurons_timed"] == 3
    found = peers.figures(loose.rival, [loose], None, small)
    assert found["warm"] == {"0.0001": 2.0, "1e-06": np.inf} and found["cold"] == {"0.0001": 5.0}
    assert found["setting"] == {"0.0001": {"precision": "float32", "tol": 5e-5}, "1e-06": None}


def test_comparison_counts_gaps_that_glmfit_does_not_reach(benchmarks):
    peers, section = benchmarks("peers"), benchmarks("_common").Section("one")
    rows = {"glmfit auto": {"package": "glmfit", "warm": {"0.0001": 1.0, "1e-06": np.inf}, "cold": {}}}
    for name, seconds in (("lbfgs", 4.0), ("newton", 0.5)):
        rows[f"glum {name}"] = {"package": "glum", "warm": {"0.0001": seconds, "1e-06": 9.0}, "cold": {}}
    peers._judge("one", rows, section, required=(1e-6,))
    loose, tight = section.requirements
    assert (loose["against"], loose["ratio"], loose["met"], loose["kind"]) == ("glum newton", 2.0, False, "aim")
    assert tight["ratio"] == np.inf and not tight["met"] and tight["kind"] == "requirement"


def test_sections_of_other_modules_get_the_options_that_they_accept(benchmarks, monkeypatch):
    peers = benchmarks("peers")

    def paths(cache, scale, section, data=None):
        """Measure paths."""
        return cache, scale, section, data

    monkeypatch.setattr(peers, "MORE", (SimpleNamespace(SECTIONS={"paths": paths}),))
    found = peers.sections(data="there", nemos_tree=None, other_python=None)
    assert found["paths"](1, 2, 3) == (1, 2, 3, "there") and found["paths"].__doc__ == "Measure paths."
    assert found["P1-exp"].keywords == {"data": "there", "nemos_tree": None}


def test_gaps_are_correct_for_classes_and_for_some_neurons(benchmarks, small, tmp_path):
    problems, designs = benchmarks("_peers_problems"), benchmarks("_problems")
    found, _, _ = designs.newton(small)
    gap = problems.Gap(small, tmp_path)
    assert abs(gap(found[:-1], found[-1])[1]) < 1e-10
    part, worst = gap(found[:-1, [2, 0]] + 0.1, found[-1, [2, 0]], [2, 0])
    alone = [gap(found[:-1, [n]] + 0.1, found[-1, [n]], [n])[0] for n in (2, 0)]
    assert min(alone) < part < max(alone) and worst == max(alone)
    assert gap(np.inf * found[:-1], found[-1]) == (np.inf, np.inf)

    rng = np.random.default_rng(0)
    classes = problems.Classes("three", 1e-3, rng.normal(size=(300, 4)).astype(np.float32), np.arange(300) % 3)
    optimum = problems.newton(classes)
    found = minimize(lambda w: classes.objective(*np.split(w.reshape(5, 3), [4])), np.zeros(15), tol=1e-8)
    assert -1e-8 < optimum - found.fun < 1e-12
    assert problems.Gap(classes, tmp_path)(*np.split(found.x.reshape(5, 3), [4]))[0] < 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_compared_solvers_minimise_the_same_objective(benchmarks, small, tmp_path, precision):
    """Solvers that need no compiler, on spike counts and labels."""
    problems, rivals = benchmarks("_peers_problems"), benchmarks("_rivals")
    for link, packages in (("exp", ("sklearn", "glum", "statsmodels")), ("softmax", ("sklearn",))):
        problem = replace(small, link=link, strength=1e-2)  # more than sampling noise: a wrong strength shows
        if link == "softmax":
            problem = problems.Classes("labels", 1e-2, small.X, np.minimum(small.Y[:, 2], 2).astype(int))
        gap = problems.Gap(problem, tmp_path)
        for rival in rivals.rivals(link):
            settings = dict(rival.ladders).get(precision)
            if rival.package in packages and settings:
                solve = rivals.solver(rival.package, rival.solver, link, problem.strength, precision)
                Y = problem.Y if link == "softmax" else problem.Y.astype(precision)
                found = solve(problem.X.astype(precision), Y, **settings[len(settings) // 2])
                assert gap(*found)[0] < 1e-3, rival.name


@pytest.mark.slow
def test_solvers_climb_in_their_own_processes_and_take_turns(benchmarks, small, tmp_path, monkeypatch):
    peers, problems = benchmarks("peers"), benchmarks("_peers_problems")
    problem = replace(small, link="exp")
    race = peers.Race(problem, problems.Gap(problem, tmp_path), tmp_path)
    monkeypatch.setattr(peers, "PART", 1)
    for seconds, neurons in ((10.0, None), (0.0, [1])):
        monkeypatch.setattr(peers, "LONG_S", seconds)
        rival = next(r for r in peers.rivals("exp") if r.name == "sklearn newton-cholesky")
        rungs, ended = race.climb(rival)
        assert ended is None and rungs[-1].gap < peers.GAPS[-1] and rungs[-1].neurons == neurons
    race.take_turns(rungs[-1:], scale=0.5)
    assert len(rungs[-1].first) == 1 and len(rungs[-1].later) == peers.LATER
    broken = replace(rival, solver="none")
    assert race.climb(broken)[1].startswith("failed: ")
