"""Bound majorization of spike counts: the quadratic, the step to its minimum, never uphill, the optimum."""

import contextlib

import jax
import numpy as np
import pytest
from cases import GROUPS, OBSERVATIONS, D, N, T, design, penalty, recording
from oracles import population as oracle

from glmfit import PopulationGLM, Status
from glmfit.problems import PaddedProblem, Params, PopulationProblem, StreamedProblem
from glmfit.solvers import BoundMajorization, LoopOptions

RIDGE = 1e-3
KEY = jax.random.key(5)
every_precision = pytest.mark.parametrize("dtype", [np.float32, np.float64])
WEIGHTS = np.random.default_rng(1).choice([0.0, 1.0, 2.0], T)
OFFSET = np.random.default_rng(2).normal(size=(T, N))


def precise(dtype):
    """Let jax keep double precision where it is asked for."""
    return jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext()


def make(X, Y, strength=RIDGE, weights=None, offset=None, dtype=np.float32, kind=PopulationProblem):
    return kind(X, Y, OBSERVATIONS["softplus"], penalty("Ridge", strength), weights, dtype, offset)


def solve(at, relaxation=1.5, tol=1e-7, **options):
    return BoundMajorization(relaxation).run(at, key=KEY, options=LoopOptions(tol=tol, **options))


def gram(X, weights, kappa=1.0):
    """Weighted mean of xx' times kappa, intercept's column last."""
    rows = oracle.with_ones(X)
    return (rows.T * (oracle.mean_one(weights, len(X)) * kappa)) @ rows / len(X)


def random_params(rng, size):
    return Params(size * rng.normal(size=(D, N)), size * rng.normal(size=N))


# ------------------------------------------------------------------------------------------ the quadratic


@every_precision
def test_a_step_is_the_share_of_the_way_to_the_minimum_that_was_asked_for(dtype):
    X, Y = recording()
    strength = np.array([0.0, 1e-3, 0.3])
    start = random_params(np.random.default_rng(0), 0.3)
    with precise(dtype):
        at = make(X, Y, strength, WEIGHTS, OFFSET, dtype)
        for relaxation in (0.5, 1.0, 1.9):
            point = at.start_majorization(start, seed=0).point
            L = at.certify_majorization(point, relaxation).L
            moved = at.user_params(at.majorize(point, np.ones(N, bool), relaxation).point.v)
            before = at.user_params(point.v)
            here = at.evaluate(before)
            for n in range(N):
                curvature = L[n] * gram(X, WEIGHTS) + np.diag(np.append(np.full(D, strength[n]), 0.0))
                step = np.linalg.solve(curvature, np.append(here.grad_coef[:, n], here.grad_intercept[n]))
                expected = np.append(before.coef[:, n], before.intercept[n]) - relaxation * step
                found = np.append(moved.coef[:, n], moved.intercept[n])
                np.testing.assert_allclose(found, expected, atol=1e-6 if dtype == np.float32 else 1e-10)


def test_the_certificate_holds_the_largest_curvature_there_can_be_and_little_more():
    X, Y = recording(rate=np.array([0.02, 0.5, 3.0]))
    solution = solve(make(X, Y, weights=WEIGHTS))
    c = solution.step_certificate
    whiten = np.linalg.inv(np.linalg.cholesky(gram(X, WEIGHTS)))
    leverage = np.sum((oracle.with_ones(X) @ whiten.T) ** 2, axis=1) * oracle.mean_one(WEIGHTS, T)
    for n in range(N):
        kappa = 0.25 + oracle.C_STAR * Y[:, n]
        L = np.linalg.eigvalsh(whiten @ gram(X, WEIGHTS, kappa) @ whiten.T)[-1]
        assert L <= c.L[n] <= 1.02 * L
        assert c.L_max[n] >= np.max(kappa * leverage) * (1 - 1e-6)
    np.testing.assert_allclose(c.step, 1.5 / c.L)
    assert c.certified and "Bohning" in c.theorem and 0 < c.failure_probability <= 1e-3
    assert c.batch_size == c.n_rows == T and np.all(np.isinf(c.anchor_radius))


def test_the_quadratic_touches_the_objective_and_is_above_it_however_far_one_goes():
    rng = np.random.default_rng(3)
    X, Y = recording(rate=np.array([0.02, 0.5, 3.0]))
    at = make(X, Y, weights=WEIGHTS)
    curvature = gram(X, WEIGHTS)
    ridge = np.diag(np.append(np.full(D, RIDGE), 0.0))
    for start in (at.null_params(), random_params(rng, 1.0)):
        L = at.certify_majorization(at.start_majorization(start, seed=0).point, 1.0).L
        here = at.evaluate(start)
        g = np.vstack([here.grad_coef, here.grad_intercept])
        for size in (1e-3, 0.1, 1.0, 10.0, 1e3):
            for _ in range(10):
                away = random_params(rng, size)
                p = np.vstack(away)
                value = at.evaluate(Params(*(a + b for a, b in zip(start, away, strict=True)))).objective
                bend = np.array([p[:, n] @ (L[n] * curvature + ridge) @ p[:, n] for n in range(N)])
                above = here.objective + np.sum(g * p, axis=0) + bend / 2
                assert np.all(value <= above + 1e-12 * (1 + np.abs(above)))


# ---------------------------------------------------------------------------------------- never uphill


def ten_problems():
    """Designs, rates, ridges, weights, offsets, a silent neuron, and starts up to scores of 1e4: (data, start)."""
    rng = np.random.default_rng(4)
    X, Y = recording()
    silent = Y * np.array([1.0, 0.0, 1.0])
    bursts = Y.copy()
    bursts[7] = 300.0
    yield (X, Y), None
    yield (X, recording(rate=np.array([0.01, 5.0, 60.0]))[1], 0.0), None
    yield (X, Y, np.array([0.0, 1e-3, 100.0]), WEIGHTS, OFFSET), random_params(rng, 1.0)
    yield (X, silent, RIDGE), random_params(rng, 0.3)
    yield (X, bursts, 1e-5), None
    yield (X, Y, RIDGE, None, 30 * OFFSET), None
    for kind, ridge in (("duplicate", 0.0), ("scaled 1e8", 0.0), ("outlier", 1e-2)):
        Z = design(kind)
        yield (Z, rng.poisson(np.logaddexp(0, 0.5 * Z[:, [3]] / Z[:, 3].std() - 1), (T, N)).astype(float), ridge), None
    yield (X, Y), random_params(rng, 3e3)


@every_precision
@pytest.mark.parametrize("relaxation", [0.5, 1.0, 1.5, 1.9])
def test_no_step_goes_uphill(relaxation, dtype):
    """In float64 and at the parameters as a user gets them: single precision in the passes does not show."""
    with precise(dtype):
        for data, start in ten_problems():
            at = make(*data, dtype=dtype)
            step = at.start_majorization(start or at.null_params(), seed=0)
            F, told = [], []
            for _ in range(30):
                F.append(at.evaluate(at.user_params(step.point.v)).objective)
                told.append(step.point.objective)
                step = at.majorize(step.point, np.ones(N, bool), relaxation)
            F, told = np.array(F), np.array(told)
            assert np.all(np.diff(F, axis=0) <= 1e-14 * (1 + np.abs(F[:-1])))
            assert np.all(np.diff(told, axis=0) <= 0)
            np.testing.assert_allclose(told, F, rtol=64 * np.finfo(dtype).eps, atol=64 * np.finfo(dtype).eps)
            assert np.all(F[-1] < F[0]) or start is None


def test_neurons_that_are_not_asked_to_move_stay():
    X, Y = recording()
    at = make(X, Y)
    point = at.start_majorization(at.null_params(), seed=0).point
    step = at.majorize(point, np.array([True, False, True]), 1.5)
    moved = np.any(step.point.v != point.v, axis=0)
    np.testing.assert_array_equal(moved, [True, False, True])
    assert step.point.objective[1] == point.objective[1] and step.decrease[1] == step.estimate[1]


def test_a_fit_ends_where_rounding_does():
    X, Y = recording()
    best = oracle.newton("softplus", X, Y, RIDGE, WEIGHTS)
    for relaxation in (1.0, 1.9):
        solution = solve(make(X, Y, weights=WEIGHTS), relaxation, tol=1e-15, max_epochs=1000)
        assert solution.epochs.max() < 200
        assert np.all((solution.status == Status.CONVERGED) | (solution.status == Status.PRECISION_FLOOR))
        assert np.all(solution.objective - best.objective < 1e-12)


# ----------------------------------------------------------------------------------------- the optimum


@pytest.mark.parametrize("kind", ["random", "duplicate", "collinear", "constant column", "scaled 1e8", "far mean"])
def test_the_optimum_is_newtons(kind):
    X = design(kind)
    rng = np.random.default_rng(6)
    seen = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 1e-9, X.std(axis=0), 1)
    Y = rng.poisson(np.logaddexp(0, seen @ rng.normal(size=(D, N)) * 0.2 - 0.5)).astype(float)
    strength = 0.0 if kind == "scaled 1e8" else RIDGE
    best = oracle.newton("softplus", X, Y, strength, WEIGHTS)
    solution = solve(make(X, Y, strength, WEIGHTS), max_epochs=1000)
    gap = oracle.objective("softplus", X, Y, *solution.params, WEIGHTS, strength=strength) - best.objective
    assert np.all(solution.status == Status.CONVERGED)
    assert np.all(gap <= solution.target) and np.all((gap <= solution.gap) | ~solution.gap_is_bound)
    assert solution.gap_is_bound.all()


def test_offsets_and_silent_neurons():
    X, Y = recording()
    Y[:, 1] = 0
    moved = X @ np.full((D, N), 0.2)  # with no ridge an offset the features can make is as good as none
    plain, shifted = (solve(make(X, Y, 0.0, WEIGHTS, o), max_epochs=1000) for o in (None, moved))
    for solution in (plain, shifted):
        assert solution.status.tolist() == [Status.CONVERGED, Status.NO_SPIKES, Status.CONVERGED]
        assert solution.gap_is_bound.all() and np.isfinite(solution.params.coef).all()
    loud = [0, 2]
    np.testing.assert_allclose(shifted.params.coef[:, loud] + 0.2, plain.params.coef[:, loud], atol=2e-3)
    np.testing.assert_allclose(shifted.objective[loud], plain.objective[loud], rtol=1e-6)


def test_room_to_spare_changes_nothing_but_rounding():
    X, Y = recording()
    plain = make(X, Y, weights=WEIGHTS)
    padded = PaddedProblem(plain)
    assert padded.n_neurons > N
    ends = []
    for at in (plain, padded):
        point = at.start_majorization(at.null_params(), seed=0).point
        for _ in range(3):
            point = at.majorize(point, np.ones(at.n_neurons, bool), 1.5).point
        ends.append((at.user_params(point.v).coef[:, :N], at.certify_majorization(point, 1.5).L[:N]))
    for direct, roomy in zip(*ends, strict=True):
        np.testing.assert_allclose(roomy, direct, rtol=2e-3, atol=1e-6)


# -------------------------------------------------------------------------------------- the estimator


def test_the_estimator_fits_reports_and_is_saved(tmp_path):
    X, Y = recording()
    offset, exposure = 0.1 * OFFSET, np.random.default_rng(7).uniform(0.5, 1, T)
    fits = {
        name: PopulationGLM(regularizer_strength=RIDGE, solver_name=name, pad_shapes=True).fit(
            X, Y, WEIGHTS, offset=offset, exposure=exposure
        )
        for name in ("BoundMajorization", "Newton")
    }
    model, newton = fits.values()
    report = model.report_
    assert report.solver_name == "BoundMajorization"
    assert report.converged.all() and report.gap_is_bound.all() and np.all(report.gap <= report.target)
    assert np.all(model.report_.objective - newton.report_.objective <= report.gap)
    assert "fixed quadratic" in str(report) and report.row_evals > report.epochs.max() * T
    loaded = PopulationGLM.load(model.save(tmp_path / "fit"))
    np.testing.assert_array_equal(loaded.predict(X), model.predict(X))
    np.testing.assert_array_equal(loaded.report_.step_certificate.L, report.step_certificate.L)
    assert loaded.get_params()["solver_name"] == "BoundMajorization"


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"inverse_link_function": "exp"}, r'with the exp link there is none. Use solver_name="SAGA" or "Newton"'),
        ({"regularizer": "Lasso"}, r"BoundMajorization needs a smooth penalty .*Lasso. Use solver_name=\"SAGA\""),
        ({"regularizer": "GroupLasso", "groups": GROUPS}, "BoundMajorization needs a smooth penalty .*GroupLasso"),
        ({"regularizer_strength": 1 + np.arange(D * N).reshape(D, N)},
         r"BoundMajorization needs one strength for all .* \(5, 3\)"),
        ({"solver_kwargs": {"order": "given"}}, "order and max_products of BoundMajorization are for softmax models"),
        ({"solver_kwargs": {"max_products": 3}}, "order and max_products of BoundMajorization are for softmax models"),
        ({"solver_kwargs": {"relaxation": 2.0}}, r"relaxation is 2.0; it must be a number in \(0, 2\)"),
        ({"solver_kwargs": {"batch_size": 9}}, "solver_kwargs of BoundMajorization may be relaxation, order"),
    ],
)  # fmt: skip
def test_what_it_cannot_do_is_refused_with_what_to_do(parameters, message):
    parameters = {"solver_name": "BoundMajorization", "regularizer_strength": 0.1} | parameters
    with pytest.raises(ValueError, match=message):
        PopulationGLM(**parameters).fit(*recording())


def test_rows_read_as_they_are_fitted_and_checkpoints_are_refused(tmp_path):
    X, Y = recording()
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    model = PopulationGLM(solver_name="BoundMajorization", max_memory=1e4)
    with pytest.raises(ValueError, match=r"'BoundMajorization', but rows that are read .* needs \"SAGA\""):
        model.fit(mapped, Y)
    with pytest.raises(ValueError, match=r"'BoundMajorization', but a checkpoint needs \"SAGA\""):
        model.fit(X, Y, checkpoint=tmp_path / "fit.npz")
    with pytest.raises(ValueError, match=r"needs its rows in memory, .* Use solver_name=\"SAGA\""):
        solve(make(X, Y, kind=StreamedProblem))
