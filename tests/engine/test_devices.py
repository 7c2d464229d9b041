"""Rows shared by several devices, on one host and on two: same answers, and each device holds only its part.

Also what a GPU would have to do, as far as this is known without one.
"""

import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import jax
import numpy as np
import pytest
from cases import penalty, recording, solve
from jaxprs import equations
from oracles import population as oracle
from sklearn.exceptions import ConvergenceWarning

from glmfit import PopulationGLM, PopulationGLMCV, Status, observations, penalties
from glmfit.compilation import compiled_programs
from glmfit.engine import population, solvers
from glmfit.engine.devices import descent as device_cg
from glmfit.engine.devices import layout_of, shards
from glmfit.engine.devices import newton as device_newton
from glmfit.engine.metric import basis_of
from glmfit.engine.population import PopulationProblem
from glmfit.engine.result import Hints
from glmfit.estimators import choose_solver, cv_fits, dispersion
from glmfit.solvers import LoopOptions, Newton

SOFTPLUS = observations.from_inverse_link("softplus")
ROOT = str(Path(__file__).resolve().parents[2])

COMMON = f"""
    import os, sys, socket
    sys.path.insert(0, {ROOT!r})
    import jax
    import numpy as np

    def data():
        rng = np.random.default_rng(0)
        X = (rng.normal(size=(5001, 4)) @ rng.normal(size=(4, 4)) * 0.3).astype(np.float32)
        Y = rng.poisson(np.logaddexp(0, X @ rng.normal(size=(4, 5)) * 0.3 - 1.5)).astype(np.float32)
        return X, Y, 0.1 * rng.normal(size=5001), rng.uniform(0.5, 2, 5001)
"""

ONE_HOST = (
    COMMON
    + """
    from glmfit import PopulationGLM
    from glmfit.design import RowSource

    class Source(RowSource):
        def __init__(self, X): self.X = X
        def __len__(self): return len(self.X)
        def read(self, rows): return self.X[rows]

    X, Y, offset, weight = data()
    assert len(jax.devices()) == 4
    streamed = {"regularizer": "Lasso", "max_memory": 1e4}
    for given, source in [(streamed, Source(X))]:  # the CPU does what is streamed
        given = {"regularizer_strength": 1e-3, "tol": 1e-7} | given
        one, other = (PopulationGLM(devices=d, **given).fit(source, Y, weight, offset=offset) for d in (None, "all"))
        assert other.report_.converged.all() and other.report_.gap_is_bound.all()
        np.testing.assert_allclose(other.report_.objective, one.report_.objective, rtol=1e-6)
        np.testing.assert_allclose(other.coef_, one.coef_, atol=1e-4)
        np.testing.assert_array_equal(other.report_.epochs, one.report_.epochs)

    try:
        PopulationGLM(solver_name="SAGA", devices="all").fit(X, Y)
    except ValueError as error:
        assert "SAGA runs on one device; devices names 4" in str(error)
    else:
        raise AssertionError("SAGA took several devices")
    print("fine")
"""
)

ENGINE_ON_ONE_HOST = (
    COMMON
    + """
    from glmfit import PopulationGLM, observations, penalties
    from glmfit.engine.devices.rows import DeviceRows
    from glmfit.engine.devices.shards import layout_of
    from glmfit.engine import PopulationProblem

    X, Y, offset, weight = data()
    for name, solver in [("Ridge", "ConjugateGradients"), ("Lasso", "ProximalNewton"), (None, "ConjugateGradients")]:
        given = {"regularizer": name, "regularizer_strength": 1e-3 if name else None, "tol": 1e-7}
        host, one, other = (
            PopulationGLM(devices=d, **given).fit(X, Y, weight, offset=offset)
            for d in (None, jax.devices()[:1], "all")
        )
        for model in (one, other):
            report, near = model.report_, np.maximum(model.report_.gap, host.report_.gap) + 1e-12
            assert report.solver_name.startswith(solver) and report.converged.all() and report.gap_is_bound.all()
            assert np.all(np.abs(report.objective - host.report_.objective) <= near)
        np.testing.assert_allclose(other.coef_, one.coef_, atol=1e-5)
        np.testing.assert_array_equal(other.report_.epochs, one.report_.epochs)

    link, penalty = observations.from_inverse_link("softplus"), penalties.Ridge(1e-3)
    problem = PopulationProblem(X, Y, link, penalty, devices=jax.devices())
    layout = layout_of(problem)
    given = problem.rows_of(np.arange(5)) | {"observation": link, "mean": problem.basis.mean}
    with DeviceRows(layout, **given) as there:
        there.place(np.zeros((5, 5)))
        shards = there.shards
        for array in (shards.x, shards.y, shards.weight, there.eta_there):
            assert {shard.device for shard in array.addressable_shards} == set(jax.devices())
            assert all(shard.data.nbytes * 4 == array.nbytes for shard in array.addressable_shards)
    print("fine")
"""
)

TWO_HOSTS = (
    COMMON
    + """
    jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
    from glmfit import PopulationGLM

    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    X, Y, offset, weight = data()
    given = {"regularizer_strength": 1e-3, "tol": 1e-7}
    for name, solver in [("Ridge", "auto"), ("Lasso", "auto")]:
        given["regularizer"] = name
        model = PopulationGLM(solver_name=solver, devices="all", **given).fit(X, Y, weight, offset=offset)
        alone = PopulationGLM(solver_name="Newton", **given).fit(X, Y, weight, offset=offset)
        report, other = model.report_, alone.report_
        assert report.converged.all() and report.gap_is_bound.all()
        assert np.all(np.abs(report.objective - other.objective) <= np.maximum(report.gap, other.gap) + 1e-12)
    print("fine")
"""
)


def start(script, n_devices, *arguments):
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices}", "JAX_PLATFORMS": "cpu",
             "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "PATH": "/usr/bin:/bin"}  # fmt: skip
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, env=flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


@pytest.mark.slow
def test_four_devices_of_one_host_give_the_answer_of_one():
    assert outcome(start(ONE_HOST, 4)).strip().endswith("fine")


@pytest.mark.thorough
def test_the_engine_on_four_devices_gives_the_answer_of_the_host():
    assert outcome(start(ENGINE_ON_ONE_HOST, 4)).strip().endswith("fine")


@pytest.mark.slow
def test_laws_of_fits_hold_on_three_devices():
    laws = Path(ROOT, "tests", "laws", "test_fit_laws.py")
    options = ["-q", "-x", "-k", "devices or newton", "-m", "", "-p", "no:cacheprovider", str(laws)]
    script = f"import pytest, sys; sys.exit(pytest.main({options}))"
    outcome(start(script, 3))


@pytest.mark.thorough
def test_two_hosts_of_two_devices_give_the_answer_of_one():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    both = [start(TWO_HOSTS, 2, str(i), address) for i in range(2)]
    assert all(outcome(process).strip().endswith("fine") for process in both)


@pytest.mark.parametrize("devices", ["gpu", [], 2, ["cpu"]])
def test_invalid_devices_are_refused(devices):
    with pytest.raises(ValueError, match=r"devices is .*it must be None"):
        PopulationGLM(devices=devices).fit([[0.0], [1.0], [0.5]], [1, 0, 2])


@pytest.mark.thorough
@pytest.mark.parametrize("own", [False, True])
def test_steps_on_a_gpu_do_not_wait_for_the_host(own, monkeypatch):
    """They lower for a GPU as one program without branches or loops whose length the host has to read."""
    X, Y = recording(t=300)
    seen, advance = [], device_cg._advance

    def watched(*given):
        seen.append(advance.trace(*given))
        return advance(*given)

    monkeypatch.setattr(device_cg, "_advance", watched)
    link, penalty = observations.from_inverse_link("softplus"), penalties.Ridge(1e-3)
    problem = PopulationProblem(X, Y, link, penalty, devices=jax.devices())
    hints = Hints(np.full(Y.shape[1], own), np.ones(Y.shape[1]))
    solution = solve(problem, LoopOptions(tol=1e-8), hints=hints)
    assert np.all(solution.status == Status.CONVERGED) and len(seen) < solution.epochs.max()
    names = {equation.primitive.name for equation in equations(seen[0].jaxpr)}
    assert "scan" in names and not {"while", "cond"} & names
    assert "stablehlo.dot_general" in seen[0].lower(lowering_platforms=("cuda",)).as_text()


# ---------------------------------------------------------------- Newton's method


@pytest.fixture
def by_newton(monkeypatch):
    """Let Newton's method run on this device, as it does on a GPU."""
    monkeypatch.setattr(solvers, "newton_serves", lambda problem: bool(problem.devices))


def newton_problem(X, Y, strength=1e-3, **more):
    penalty = penalties.Ridge(np.full(Y.shape[1], strength)) if strength else penalties.NoPenalty()
    return PopulationProblem(X, Y, more.pop("link", SOFTPLUS), penalty, devices=jax.devices(), **more)


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("link", ["softplus", "exp"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_newton_on_devices_gives_valid_bounds(link, dtype):
    X, Y = recording(link=link, t=300)
    made = newton_problem(X.astype(dtype), Y, link=observations.from_inverse_link(link))
    solution = Newton().run(made)
    best = oracle.newton(link, X.astype(dtype).astype(float), Y, 1e-3).objective
    gap = solution.objective - best
    assert solution.solver_name == "Newton" and np.all(solution.status == Status.CONVERGED)
    assert solution.gap_is_bound.all() and solution.failure_probability == 0
    assert np.all(gap <= solution.gap) and np.all(solution.gap <= solution.target)
    assert np.all(np.abs(made.evaluate(solution.params).objective - solution.objective) <= 1e-15)
    assert np.all(solution.epochs <= 4)


@pytest.mark.thorough
@pytest.mark.parametrize("room", [1e9, 1.0])  # bytes: for all fits at once, or one at a time
def test_factors_are_those_of_the_inverse_hessians(room, monkeypatch):
    monkeypatch.setattr(device_newton, "_ROOM", room)
    X, Y = recording(t=200)
    made, every = newton_problem(X, Y, 1e-2), np.arange(Y.shape[1])
    there = device_newton.DeviceNewton(made, layout_of(made), every, made.null_params())
    c = np.random.default_rng(0).uniform(0, 1, (200, Y.shape[1]))
    with jax.enable_x64(True):
        laid = layout_of(made).put(c, there._ridge.shape[1], dtype=np.float64)
        factor, resolved = jax.tree.map(np.asarray, device_newton._factors(there._rows, laid, there._ridge))
    mean, scale = made.standard
    Z, d = np.column_stack([(X - mean) / scale, np.ones(200)]), X.shape[1]
    for n in every:
        h = (Z * c[:, n : n + 1]).T @ Z / 200 + np.diag(np.append(1e-2 / scale**2, 0))
        inverse = (factor[n].T @ factor[n])[: d + 1, : d + 1]
        np.testing.assert_allclose(inverse @ h, np.eye(d + 1), atol=1e-9)
    assert resolved[every].all() and not factor[:, d + 1 :].any() and not factor[:, :, d + 1 :].any()


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
def test_features_on_the_device_are_used_there(monkeypatch):
    X, Y = recording(t=200)
    X, padded, seen = X.astype(np.float32), device_newton._padded, []
    monkeypatch.setattr(device_newton, "_padded", lambda x, shape: (seen.append(x), padded(x, shape))[1])
    given = {"solver_name": "Newton", "regularizer_strength": 1e-3, "devices": jax.devices()[:1]}
    there = jax.device_put(X, jax.devices()[0])
    one, other = (PopulationGLM(**given).fit(x, Y) for x in (X, there))
    np.testing.assert_array_equal(one.coef_, other.coef_)
    assert len(seen) == 1 and seen[0] is there
    missing = X.copy()
    missing[3, 1] = np.nan  # the row is dropped
    fitted = PopulationGLM(**given).fit(jax.device_put(missing, jax.devices()[0]), Y)
    np.testing.assert_array_equal(fitted.coef_, PopulationGLM(**given).fit(missing, Y).coef_)


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("seed", range(5))
def test_bounds_of_newton_hold_wherever_it_is_stopped(seed):
    """Also if features have very different units, are constant or are always 0."""
    X, Y = recording(seed=seed, t=250)
    X = (X + 5) * 10 ** np.random.default_rng(seed).uniform(-2, 2, X.shape[1])
    X[:, 1], X[:, 3] = 7.0, 0.0
    made, best = newton_problem(X, Y, 1e-4), oracle.newton("softplus", X, Y, 1e-4).objective
    for most in (1, 2, 20):
        solution = Newton().run(made, options=LoopOptions(tol=1e-12, max_epochs=most))
        gap, known = solution.objective - best, solution.gap_is_bound
        assert np.all(gap[known] <= solution.gap[known])
    assert np.all(solution.status == Status.CONVERGED)


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
def test_fits_whose_hessian_is_singular_end_on_the_host():
    """Duplicates without a penalty, and a neuron that fires in one place only."""
    X, Y = recording(t=300)
    X[:, 1] = X[:, 0]
    X[:, 2], Y[:, 0] = np.arange(300) < 30, np.where(np.arange(300) < 30, Y[:, 0], 0)
    solution = Newton().run(newton_problem(X, Y, 0.0))
    alone = Newton().run(PopulationProblem(X, Y, SOFTPLUS, penalties.NoPenalty()))
    np.testing.assert_array_equal(solution.status, alone.status)
    assert solution.status[0] == Status.SEPARABLE and np.all(solution.status[1:] == Status.CONVERGED)
    assert np.all(np.abs(solution.objective - alone.objective)[1:] <= (solution.gap + alone.gap)[1:])


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("kind", ["plain", "weighted", "far and duplicate"])
def test_newton_gives_the_degrees_of_freedom_and_the_rank(kind):
    X, Y = recording(t=300)
    weights = np.random.default_rng(0).integers(0, 3, 300).astype(float) if kind == "weighted" else None
    if kind == "far and duplicate":
        X = np.column_stack([X + 1e3, X[:, 0], np.full(300, 7.0)]).astype(np.float64)
    made = newton_problem(X, Y, 1e-2, weights=weights)
    at = Newton().run(made, options=LoopOptions(tol=1e-10)).params
    assert made.design_rank == basis_of(X, made.weights, made.penalty).rank
    assert made.design_rank == X.shape[1] - 2 * (kind == "far and duplicate")
    w = np.ones(300) if weights is None else made.weights
    c = SOFTPLUS.curvature(Y, X @ at.coef + at.intercept) * w[:, None] / 300
    Z = np.column_stack([X - X.mean(axis=0), np.ones(300)])
    for n, degrees in enumerate(made.degrees):
        loss = Z.T @ (c[:, n, None] * Z)
        whole = loss + np.diag([1e-2] * X.shape[1] + [0.0])
        assert degrees == pytest.approx(np.trace(np.linalg.solve(whole, loss)), rel=1e-3)  # formed some steps earlier


@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("most, kind", [(255, np.uint8), (256, np.uint16), (70_000, np.float32)])
def test_counts_are_stored_in_the_smallest_type_that_holds_them(most, kind):
    X, Y = recording(t=300)
    Y = Y.astype(np.float32)
    Y[0, 0] = most
    layout = layout_of(newton_problem(X, Y))
    there = layout.put_counts(Y, np.array([0, 2]))
    assert there.dtype == kind
    np.testing.assert_array_equal(np.asarray(there).reshape(-1, 2)[:300], Y[:, [0, 2]])
    Y[5, 1] = 0.5
    assert layout.put_counts(Y, np.array([0, 1])).dtype == np.float32


def test_responses_that_devices_round_are_laid_out_to_the_last_row(rng, monkeypatch):
    monkeypatch.setattr(shards, "ROWS_OF_A_TILE", 64)
    monkeypatch.setattr(shards, "_NUMBERS", 1)
    Y = rng.gamma(2.0, size=(4000, 3))
    layout = shards.Layout(jax.devices()[:1], len(Y), np.float32)
    there = np.asarray(layout.put_counts(Y, np.array([0, 2]))).reshape(-1, 2)[: len(Y)]
    np.testing.assert_array_equal(there, Y[:, [0, 2]].astype(np.float32))


@pytest.mark.usefixtures("by_newton")
def test_newton_on_devices_resumes_from_a_checkpoint_and_returns_partial_results(tmp_path):
    X, Y = recording(t=300)
    given = {"solver_name": "Newton", "regularizer_strength": 1e-3, "devices": jax.devices(), "tol": 1e-9}
    with pytest.warns(ConvergenceWarning, match="max_epochs"):
        begun = PopulationGLM(**given, max_epochs=1).fit(X, Y, checkpoint=tmp_path / "fit.npz")
    assert np.all(begun.report_.epochs == 1) and np.any(begun.report_.status == Status.MAX_EPOCHS)
    with pytest.warns(ConvergenceWarning, match="max_epochs"):
        again = PopulationGLM(**given, max_epochs=1).fit(X, Y, checkpoint=tmp_path / "fit.npz")
    np.testing.assert_allclose(again.report_.objective, begun.report_.objective, rtol=1e-13)
    ended, at_once = PopulationGLM(**given).fit(X, Y, checkpoint=tmp_path / "fit.npz"), PopulationGLM(**given).fit(X, Y)
    ended_again = PopulationGLM(**given).fit(X, Y, checkpoint=tmp_path / "fit.npz")
    for resumed in (ended, ended_again):
        np.testing.assert_allclose(resumed.report_.dispersion, at_once.report_.dispersion, rtol=1e-3)
    np.testing.assert_allclose(ended.coef_, at_once.coef_, rtol=1e-12)
    np.testing.assert_array_equal(ended.report_.epochs, at_once.report_.epochs)
    assert ended.report_.converged.all()

    def interrupt(epoch, *_):
        raise KeyboardInterrupt

    made = newton_problem(X, Y)
    solution = Newton().run(made, options=LoopOptions(tol=1e-9, callback=interrupt))
    assert solution.interrupted and np.all(solution.objective < solution.null_objective)
    one_at_a_time = LoopOptions(tol=1e-9, callback=interrupt, max_memory=1.0)
    solution = Newton().run(made, solution.params, options=one_at_a_time)
    assert solution.interrupted
    np.testing.assert_allclose(solution.objective, made.evaluate(solution.params).objective, rtol=1e-13)


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("given", ["plain", "weights", "masks", "offset", "exposure", "groups", "gamma"])
def test_report_of_newton_on_devices_is_that_of_the_host(given, rng):
    X, Y = recording(t=3000)
    Y[:, 1], more, how, kind = 0, {}, {"regularizer_strength": 1e-3, "tol": 1e-12}, {}
    if given == "weights":
        more["sample_weight"] = rng.uniform(0, 2, 3000) * (rng.uniform(size=3000) < 0.9)
    elif given == "masks":
        more["sample_weight"] = rng.uniform(size=Y.shape) < 0.8
    elif given == "offset":
        more["offset"] = rng.normal(size=3000) / 2
    elif given == "exposure":
        more["exposure"] = rng.uniform(0.5, 1, 3000)
    elif given == "groups":
        how["max_memory"] = 1.0  # a neuron at a time
    elif given == "gamma":
        Y, kind = rng.gamma(2.0, size=Y.shape), {"observation_model": "Gamma"}
    there = PopulationGLM(solver_name="Newton", devices=jax.devices(), **how, **kind).fit(X, Y, **more).report_
    here = PopulationGLM(solver_name="ConjugateGradients", **how, **kind).fit(X, Y, **more).report_
    for name in "dispersion", "pseudo_r2":
        np.testing.assert_allclose(getattr(there, name), getattr(here, name), rtol=1e-3, atol=1e-6, err_msg=name)
    np.testing.assert_array_equal(there.is_overdispersed, here.is_overdispersed)
    assert np.isnan(there.dispersion[1]) or given == "gamma"


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
@pytest.mark.parametrize("memory", [1e9, 1.0])  # bytes: for all neurons, or one at a time
def test_ranges_from_devices_are_those_of_all_rows(memory, rng):
    X, Y = rng.normal(size=(900, 4)).astype(np.float32), rng.poisson(1.0, (900, 4)).astype(float)
    X[:, 0], X[:30, 0], Y[:30, 1] = 0, 1, 0  # neuron 1 has no spikes where feature 0 is not 0
    Y[:30, 0] = np.nan
    how = {"regularizer_strength": 1e-10, "tol": 1e-12, "max_memory": memory}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        there = PopulationGLM(solver_name="Newton", devices=jax.devices(), **how).fit(X, Y).report_.runaway
        here = PopulationGLM(solver_name="Newton", **how).fit(X, Y).report_.runaway
    assert list(here["neuron"]) == ["1"] and list(there["neuron"]) == ["1"]
    np.testing.assert_allclose(there["coef"], here["coef"], rtol=1e-2)


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
def test_newton_on_devices_leaves_nothing_of_the_report_to_the_host(monkeypatch):
    X, Y = recording(t=3000)

    def never(*_):
        raise AssertionError("summed on the host")

    for where, name in (
        (dispersion, "_sums"),
        (population, "ranges_of"),
        (population.PopulationProblem, "_mean_of_counts"),
    ):
        monkeypatch.setattr(where, name, never)
    model = PopulationGLM(solver_name="Newton", regularizer_strength=1e-3, devices=jax.devices()).fit(X, Y)
    assert np.isfinite(model.report_.dispersion).all() and np.isfinite(model.report_.pseudo_r2).all()


def test_iteration_of_newton_on_a_gpu_does_not_wait_for_the_host(monkeypatch):
    X, Y = recording(t=300)
    seen, iterate = [], device_newton._iterate
    monkeypatch.setattr(
        device_newton, "_iterate", lambda *given: (seen.append(iterate.trace(*given)), iterate(*given))[1]
    )
    made = newton_problem(X, Y)
    with jax.enable_x64(True):
        device_newton.DeviceNewton(made, layout_of(made), np.arange(Y.shape[1]), made.null_params()).iterate()
        names = {equation.primitive.name for equation in equations(seen[0].jaxpr)}
        assert "scan" in names and not {"while", "cond"} & names
        lowered = seen[0].lower(lowering_platforms=("cuda",)).as_text()
    assert "stablehlo.dot_general" in lowered and "f64" in lowered


@pytest.fixture
def a_gpu(monkeypatch):
    """Make the device of this machine look like a GPU."""

    class Gpu(NamedTuple):
        platform: str = "gpu"

        def memory_stats(self):
            return {"bytes_limit": 80e9}

    monkeypatch.setattr(shards, "devices_for", lambda work: (Gpu(),) if work > 1e8 else ())
    monkeypatch.setattr(shards, "Layout", lambda devices, *_: SimpleNamespace(devices=devices))


@pytest.mark.usefixtures("a_gpu")
@pytest.mark.parametrize(
    ("n_rows", "n_features", "n_neurons", "name", "chosen"),
    [
        (100_000, 192, 32, "Ridge", True),
        (100_000, 192, 32, "Lasso", False),
        (5_000, 10, 32, "Ridge", False),  # faster on the host
        (100_000, 2000, 32, "Ridge", False),
        (1_000, 20_000, 12, "Ridge", False),  # the factorisations
        (2_000, 8_000, 9, "Ridge", False),  # memory for Hessians
        (3_000_000, 1000, 1, "Ridge", False),  # memory for features
    ],
)
def test_newton_is_chosen_on_a_gpu_if_it_is_affordable(n_rows, n_features, n_neurons, name, chosen):
    X, Y = np.broadcast_to(np.float32(0), (n_rows, n_features)), np.broadcast_to(np.float32(1), (n_rows, n_neurons))
    problem = PopulationProblem(X, Y, SOFTPLUS, penalty(name, 0.1, d=n_features, n=n_neurons))
    assert (choose_solver(problem) == "Newton") == chosen


@pytest.mark.thorough
@pytest.mark.usefixtures("by_newton")
def test_recordings_of_similar_size_share_a_program():
    X, Y = recording(t=700, n=8)
    Newton().run(newton_problem(X, Y))
    before = compiled_programs()
    for some, neurons in (slice(0, 690), slice(0, 8)), (slice(0, 680), slice(0, 5)), (slice(0, 700), slice(2, 8)):
        Newton().run(newton_problem(X[some], Y[some, neurons]))
    assert compiled_programs() == before


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_pieces_of_features_have_shapes_of_the_layout(dtype, rng):
    X = rng.normal(size=(43_656, 3)).astype(dtype)
    shapes = set()
    with jax.enable_x64(True):
        for n_rows in (43_656, 42_500, 43_008, 43_009):
            layout = shards.Layout(jax.devices()[:1], n_rows, dtype)
            pieces = layout.pieces(X[:n_rows])
            shapes.add((layout.shape, *(piece.shape for piece in pieces)))
            whole = np.concatenate(pieces).reshape(-1, 3)
            np.testing.assert_array_equal(whole[:n_rows], X[:n_rows])
            assert not whole[n_rows:].any() and len(pieces) <= 16 and whole.dtype == dtype
            turned = np.asfortranarray(X[:n_rows])
            np.testing.assert_array_equal(np.concatenate(layout.pieces(turned)).reshape(-1, 3), whole)
    assert len(shapes) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("named", [None, "ConjugateGradients"])
def test_cross_validation_uses_newton_on_a_gpu_unless_another_is_named(named, monkeypatch):
    X, Y = recording(t=300)
    monkeypatch.setattr(solvers, "newton_serves", lambda problem: bool(problem.devices))
    monkeypatch.setattr(cv_fits, "newton_pays", lambda problem: bool(problem.devices))
    monkeypatch.setattr(cv_fits, "devices_for", lambda work: jax.devices())
    given = {"strengths": [1e-4, 1e-2], "cv": 3, "cv_tol": 1e-10, "solver_name": named or "auto"}
    there = PopulationGLMCV(**given).fit(X, Y)
    monkeypatch.setattr(cv_fits, "devices_for", lambda work: ())
    here = PopulationGLMCV(**given).fit(X, Y)
    assert there.report_.solver_name == ("ConjugateGradients" if named else "Newton")
    assert there.cv_gap_is_bound_.all()
    np.testing.assert_array_equal(there.strength_, here.strength_)
    np.testing.assert_allclose(there.cv_scores_, here.cv_scores_, atol=1e-4)
