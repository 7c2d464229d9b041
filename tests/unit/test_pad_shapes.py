"""Fits in the shapes of their bucket: the same kernels' results, the same answers, and nothing compiled twice."""

import cases
import jax
import numpy as np
import pytest
from oracles import population as oracle

from glmfit import PopulationGLM, Status, _compile, observations
from glmfit.bounds import estimate_smallest_eigenvalue
from glmfit.estimators._padding import may_pad
from glmfit.problems import PaddedProblem, PopulationProblem
from glmfit.problems._bucket import Slots, bucket
from glmfit.problems._rows import block_spectra, hessian_spectrum, largest_change, predictor
from glmfit.solvers import SAGA, Newton
from glmfit.solvers._epoch import saga_epoch

D, N, T = cases.D, cases.N, cases.T


# ------------------------------------------------------------------------------------------- sizes


def test_buckets_are_few_and_hold_what_is_put_in():
    assert bucket(1, 1) == (32768, 256, 128, 1)
    assert bucket(32768, 33) == (32768, 256, 128, 64)
    assert bucket(32769, 65) == (131072, 1024, 128, 96)
    assert bucket(600_000, 97) == (1048576, 4096, 256, 128)
    assert bucket(3000, 129, batch_size=1000) == (32768, 1000, 33, 192)
    assert len({bucket(10, n).neurons for n in range(1, 513)}) == 13
    for n in range(1, 513):
        assert n <= bucket(10, n).neurons <= max(n + n // 2, 2 * n - 2, 1)


@pytest.mark.parametrize("n_rows", [1, 10, 59, 60, 61, 64, 600, 640])
def test_rows_are_spread_over_the_blocks_used_and_the_places_left_are_free(n_rows):
    used = -(-n_rows // 64)
    slots = Slots(100, 64, used, -(-n_rows // used))
    taken = np.arange(6400)[slots.of(slice(0, n_rows))]
    places = np.r_[taken, np.arange(6400)[slots.free(n_rows)]]
    np.testing.assert_array_equal(np.sort(places), np.arange(64 * used))
    per_block = np.bincount(taken // 64, minlength=used)
    assert per_block[:-1].min(initial=slots.share) == slots.share >= per_block[-1]


# ----------------------------------------------------------------------------------------- kernels


class Layout:
    """A padded problem in float64 whose unused blocks are not numbers, and its rows, weights and offsets as given."""

    def __init__(self):
        rng = np.random.default_rng(5)
        self.X, self.Y = cases.recording()
        self.w, self.offset = rng.uniform(0, 2, T), 0.3 * rng.normal(size=(T, N))
        self.w[:30] = 0
        self.strength = np.array([0.01, 0.02, 0.1])
        plain = PopulationProblem(
            self.X, self.Y, cases.OBSERVATIONS["softplus"], cases.penalty("Ridge", self.strength),
            self.w, np.float64, self.offset,
        )  # fmt: skip
        self.w = plain.weights[:, None]
        self.problem = PaddedProblem(plain, batch_size=64)
        rows = self.problem.rows(64, 0)
        spoilt = {name: np.array(getattr(rows, name)) for name in ("Z", "Y", "weight", "offset")}
        for array in spoilt.values():
            array[rows.n_blocks :] = np.nan
        self.rows = type(rows)(**vars(rows) | spoilt)
        basis = plain.basis
        self.Z = np.column_stack([(self.X - basis.mean) @ basis.whiten, np.ones(T)])
        self.ridge = np.asarray(rows.ridge)[:, :N]
        self.v = 0.1 * rng.normal(size=(D + 1, N + 1))
        self.v[-1] -= 1

    def eta(self, v):
        """Predictor of the rows as given, (row, neuron)."""
        return self.Z @ v[:, :N] + self.offset

    def objective(self, v):
        """Mean loss plus ridge, (neuron,)."""
        loss = np.mean(self.w * oracle.loss("softplus", self.Y, self.eta(v)), axis=0)
        return loss + 0.5 * np.sum(self.ridge * v[:, :N] ** 2, axis=0)

    def curvature(self, v):
        """Curvature times weight, (row, neuron)."""
        return self.w * oracle.curvature("softplus", self.Y, self.eta(v))

    def hessians(self, v, metric, rows=slice(None), n_rows=T):
        """Of the mean over some rows, ridge included, in the metric: one for each neuron."""
        root = np.stack([np.asarray(metric.root(np.tile(e[:, None], N + 1))) for e in np.eye(D + 1)], axis=1)
        for n, bend in enumerate(self.curvature(v).T):
            H = (self.Z[rows].T * bend[rows]) @ self.Z[rows] / n_rows + np.diag(self.ridge[:, n])
            yield root[:, :, n].T @ H @ root[:, :, n]


@pytest.fixture(scope="module")
def layout():
    with jax.enable_x64(True):
        return Layout()


def test_a_sweep_of_the_blocks_used_is_loss_gradient_and_mean_curvature(layout, x64):
    pass_ = layout.problem.sweep(layout.rows, layout.v)
    r = layout.w * oracle.derivative("softplus", layout.Y, layout.eta(layout.v))
    loss = np.mean(layout.w * oracle.loss("softplus", layout.Y, layout.eta(layout.v)), axis=0)
    np.testing.assert_allclose(pass_.loss[:N], loss, rtol=1e-12)
    np.testing.assert_allclose(pass_.gradient[:, :N], layout.Z.T @ r / T, atol=1e-13)
    np.testing.assert_allclose(pass_.bend[:, :N], layout.Z.T @ layout.curvature(layout.v) / T, atol=1e-13)
    assert np.isfinite(np.asarray(pass_.table)).all()


def test_the_largest_change_is_that_of_a_row_that_counts(layout, x64):
    counts = layout.w[:, 0] > 0
    expected = np.abs(layout.Z[counts] @ layout.v).max(axis=0)
    np.testing.assert_allclose(largest_change(layout.rows, layout.v), expected, rtol=1e-12)


def test_smoothness_is_bounded_for_every_block_used_and_for_every_row(layout, x64):
    at, rows, metric = layout.problem, layout.rows, layout.problem.null_metric(layout.rows)
    facts = at.certify_smoothness(rows, layout.v, np.full(N + 1, 1e-9), D + 1, 1e-3, 0, 0, metric)
    assert len(at._block_spectra(rows, layout.v, np.full(N + 1, 1e-9), metric, at.random_column(0, 0), 3).alpha) == 10
    order = np.random.default_rng(0).permutation(T)
    blocks = [list(layout.hessians(layout.v, metric, order[i : i + 60], 60)) for i in range(0, T, 60)]
    largest = np.linalg.eigvalsh(np.array(blocks))[..., -1]
    for bound, exact in ((facts.block, largest.max(axis=0)), (facts.full, largest.mean(axis=0))):
        assert np.all(bound[:N] >= exact) and np.all(bound[:N] <= 1.2 * exact)
    leverage = np.asarray(metric.leverage(layout.Z, np.dot))[:, :N]
    assert np.all(facts.row[:N] >= np.max(layout.curvature(layout.v) * leverage, axis=0))


def test_the_spectrum_is_that_of_the_hessian_over_all_rows(layout, x64):
    metric, start = layout.problem.null_metric(layout.rows), layout.problem.random_column(0, 1)
    spectrum = hessian_spectrum(layout.rows, layout.v, metric, start, n_steps=D + 1)
    exact = np.linalg.eigvalsh(list(layout.hessians(layout.v, metric)))
    np.testing.assert_allclose(estimate_smallest_eigenvalue(spectrum.alpha, spectrum.beta)[:N], exact[:, 0], rtol=1e-6)
    counts = layout.w[:, 0] > 0
    assert np.all(spectrum.leverage >= np.asarray(metric.leverage(layout.Z[counts], np.dot)).max(axis=0) * (1 - 1e-12))


def test_steps_descend_and_leave_the_predictor_they_lead_to(layout, x64):
    at, rows = layout.problem, layout.rows
    start = at.to_columns(at.null_params())
    v, _, pass_, _, n_steps = at.descend_surely(rows, start, None, 0.0, 3)
    before, after = layout.objective(start), layout.objective(np.asarray(v))
    assert n_steps == 3 and np.all(after < before)
    np.testing.assert_allclose(at.objective(v, None, pass_)[:N], after, rtol=1e-12)
    far, *_ = at.descend_surely(rows, start, None, 0.0, 20)
    best = np.linalg.norm(at.evaluate(at.from_columns(far)).grad_coef, axis=0)
    assert np.all(best[:N] < 1e-4)
    plain = at.plain
    silent = PopulationProblem(
        plain.X, 0 * plain.Y, plain.observation, plain.penalty, plain.weights, plain.dtype, plain.offset
    )
    silent = PaddedProblem(silent, 64)
    start = silent.to_columns(silent.null_params())
    assert silent.descend_surely(silent.rows(64, 0), start, None, 0.0, 20)[-1] == 0


def test_an_epoch_is_saga_as_defined(layout, x64):
    at, rows, metric = layout.problem, layout.rows, layout.problem.null_metric(layout.rows)
    pass_, step = at.sweep(rows, layout.v), np.full(N + 1, 0.1)
    order = np.random.default_rng(1).integers(0, 10, 10).astype(np.int32)
    place = np.random.default_rng(0).permutation(T).reshape(10, 60)
    v, table = layout.v.copy(), layout.w * oracle.derivative("softplus", layout.Y, layout.eta(layout.v))
    ridge, mean = np.asarray(rows.ridge), np.asarray(pass_.gradient).copy()
    for rows_of in place[order]:
        new = layout.w[rows_of] * oracle.derivative("softplus", layout.Y, layout.eta(v))[rows_of]
        delta = np.zeros_like(v)
        delta[:, :N] = layout.Z[rows_of].T @ (new - table[rows_of]) / T
        v -= step * metric.apply(mean + 10 * delta + ridge * v)
        mean, table[rows_of] = mean + delta, new
    moved, kept, gradient, _ = at.visit(
        saga_epoch, rows, layout.v.copy(), pass_.table, pass_.gradient, None, metric, step, order, subsets=False
    )
    np.testing.assert_allclose(moved[:, :N], v[:, :N], atol=1e-12)
    np.testing.assert_allclose(gradient[:, :N], mean[:, :N], atol=1e-12)
    np.testing.assert_allclose(np.asarray(kept)[:10, :60, :N], table[place], atol=1e-12)


def test_single_precision_stays_single_in_x64_mode(x64):
    X, Y = cases.recording()
    at = PaddedProblem(cases.problem("softplus", X.astype(np.float32), Y, "Lasso", strength=0.03))
    shapes = at.shapes(256)
    for kernel, args, static in at.calls_of_a_fit(shapes, 3):
        out = jax.eval_shape(lambda *a, kernel=kernel, static=static: kernel(*a, **static), *args)
        assert {a.dtype for a in jax.tree.leaves(out)} == {np.dtype(np.float32)}
    assert jax.eval_shape(predictor, shapes.rows, shapes.columns).shape == (128, 256, 4)
    assert block_spectra in [kernel for kernel, *_ in at.calls_of_a_fit(shapes, 3)]


# -------------------------------------------------------------------------------------------- fits


def session(link, t, n, seed):
    """Features and counts of a recording; the second neuron is silent."""
    X, Y = cases.recording(link, seed, t, D, n)
    Y[:, 1] = 0
    return X.astype(np.float32), Y


def known(t, n, seed):
    """Weights, exposure and offset of a recording."""
    rng = np.random.default_rng(seed)
    exposure = np.where(rng.random(t) < 0.1, 0.4, 1.0)
    return {"sample_weight": rng.uniform(0, 2, t), "exposure": exposure, "offset": 0.3 * rng.normal(size=(t, n))}


KINDS = {  # link, regularizer, strength of n neurons, whether there is more to the data, the penalty of the oracle
    "ridge": ("exp", "Ridge", lambda n: np.geomspace(1e-3, 1e-1, n), True, None),
    "net": ("softplus", "ElasticNet", lambda n: (0.05, 0.6), False,
            {"name": "ElasticNet", "strength": 0.05, "ratio": 0.6}),
}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def fitted(request):
    """Two fits of one bucket, what was compiled in the second, their data, and how to make such a model."""
    link, regularizer, strength, more, penalty = KINDS[request.param]

    def model(n, **how):
        given = {"solver_name": "SAGA", "pad_shapes": True} | how
        return PopulationGLM(link, regularizer, strength(n), **given)

    fits, programs = [], []
    for seed, (t, n) in enumerate([(T, N), (431, 4)]):
        X, Y = session(link, t, n, seed)
        extra = known(t, n, seed) if more else {}
        before = _compile.compiled_programs()
        fits.append((model(n).fit(X, Y, **extra), X, Y, extra))
        for future in list(_compile._ahead.values()):  # what the first fit had no need of
            future.result()
        programs.append(_compile.compiled_programs() - before)
    return fits, programs, model, link, penalty


def test_a_second_fit_of_the_bucket_compiles_nothing(fitted):
    fits, programs, *_ = fitted
    assert programs[0] > 0 and programs[1] == 0
    assert {fit[0]._bucket for fit in fits} == {"32768x4x5"}


def test_gaps_are_proved_and_true(fitted):
    fits, _, model, link, penalty = fitted
    for fit, X, Y, extra in fits:
        report, n = fit.report_, Y.shape[1]
        active = Y.any(axis=0)
        assert report.gap_is_bound.all() and report.converged[active].all() and report.solver_name == "SAGA"
        assert report.gap.shape == report.objective.shape == report.spike_count.shape == (n,)
        assert report.history["gap"].shape[1] == n and fit.coef_.shape == (D, n)
        assert report.step_certificate.step.shape == (n,)
        if penalty is None:
            other = model(n, solver_name="Newton", tol=1e-10, pad_shapes=False).fit(X, Y, **extra)
            lowest = other.report_.objective[active]
        else:
            lowest = oracle.proximal(link, X, Y[:, active], **penalty).objective
        gap = report.objective[active] - lowest
        assert np.all(gap <= report.gap[active] + 1e-12) and np.all(gap > -1e-10)


def test_a_silent_neuron_among_those_added_is_reported_as_ever(fitted):
    for fit, *_ in fitted[0]:
        assert fit.report_.status[1] == Status.NO_SPIKES
        assert not fit.coef_[:, 1].any() and fit.intercept_[1] < -1e3


def test_the_same_fit_gives_the_same_bits(fitted):
    (fit, X, Y, extra), *_ = fitted[0]
    again = fitted[2](Y.shape[1]).fit(X, Y, **extra)
    np.testing.assert_array_equal(again.coef_, fit.coef_)
    np.testing.assert_array_equal(again.report_.gap, fit.report_.gap)


def test_a_padded_fit_is_saved_and_loaded(fitted, tmp_path):
    fit, X, *_ = fitted[0][1]
    loaded = PopulationGLM.load(fit.save(tmp_path / "fit"))
    assert loaded.pad_shapes is True and loaded._bucket is None
    np.testing.assert_array_equal(loaded.predict(X), fit.predict(X))


def test_padding_is_for_solvers_that_compile_in_memory_and_on_one_device():
    X, Y = session("softplus", 200, 2, 0)
    at = cases.problem("softplus", X, Y, strength=0.01)
    spread = PopulationProblem(X, Y, observations.from_inverse_link("softplus"), at.penalty, devices=jax.devices())
    assert may_pad(SAGA(), at, False) and may_pad(SAGA(sampling="shuffle"), at, False)
    for solver, problem, checkpoint in (
        (SAGA(sampling="subsets"), at, False), (Newton(), at, False), (SAGA(), at, True), (SAGA(), spread, False),
    ):  # fmt: skip
        assert not may_pad(solver, problem, checkpoint)
    model = PopulationGLM(regularizer_strength=0.01, solver_name="Newton", pad_shapes=True).fit(X, Y)
    assert model._bucket is None and model.report_.converged[0]
