"""Laws of every observation model."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from cases import OBSERVATIONS
from oracles import poisson as oracle

from glmfit.observations import PoissonExp, PoissonSoftplus

MODELS = list(OBSERVATIONS.values())
COUNTS = np.array([0.0, 1.0, 2.0, 7.0, 100.0])
ETA = np.concatenate([np.linspace(-30, 30, 61), np.linspace(-1.5, 1.5, 31)])

every_model = pytest.mark.parametrize("model", MODELS, ids=lambda m: m.name)
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])
every_namespace = pytest.mark.parametrize("xp", [np, jnp], ids=["numpy", "jax"])


@pytest.fixture(scope="module")
def exact():
    """40-digit values on ETA x COUNTS, at float32 points so that both dtypes have the same input."""
    points = [[(np.float32(a), y) for y in COUNTS] for a in ETA]
    table = {m.name: [[oracle.exact(m.name, a, y) for a, y in row] for row in points] for m in MODELS}
    keys = ("rate", "log_rate", "loss", "derivative", "curvature")
    return {
        name: {key: np.array([[float(cell[key]) for cell in row] for row in rows]) for key in keys}
        for name, rows in table.items()
    }


def on(xp, method):
    """Method, compiled for JAX: one compilation instead of one per operation."""
    return jax.jit(method) if xp is jnp else method


def grid(xp, dtype):
    """Counts and predictors, (eta, count)."""
    eta = np.broadcast_to(ETA.astype(np.float32)[:, None], (len(ETA), len(COUNTS)))
    return xp.asarray(np.broadcast_to(COUNTS, eta.shape), dtype=dtype), xp.asarray(eta, dtype=dtype)


@pytest.mark.thorough(cases=6)
@every_model
@every_dtype
@every_namespace
def test_formulas_match_40_digits(model, dtype, xp, exact, x64):
    true = exact[model.name]
    y, eta = grid(xp, dtype)

    def everything(y, eta):
        alone = model.rate(eta), model.log_rate(eta), model.loss(y, eta), model.derivative(y, eta)
        return *alone, model.curvature(y, eta), *model.loss_and_derivative(y, eta)

    names = ("rate", "log_rate", "loss", "derivative", "curvature", "loss", "derivative")

    # A difference is judged by the size of its terms.
    without_count = true["derivative"][:, :1]
    scale = {
        "rate": true["rate"],
        "log_rate": np.maximum(np.abs(true["log_rate"]), 1.0),
        "loss": true["rate"] + COUNTS * np.maximum(np.abs(true["log_rate"]), 1.0),
        "derivative": without_count + np.abs(true["derivative"] - without_count),
        "curvature": true["curvature"],
    }
    tol = 1e-6 if dtype == np.float32 else 1e-14
    for key, value in zip(names, on(xp, everything)(y, eta), strict=True):
        assert value.dtype == dtype
        assert np.all(np.abs(np.asarray(value, np.float64) - true[key]) <= tol * scale[key]), key


@pytest.mark.thorough(cases=1)
@every_model
def test_derivatives_match_autodiff(model, x64):
    y, eta = (a.ravel() for a in grid(jnp, np.float64))
    first, second, reverse_twice = (
        jax.jit(jax.vmap(jax.grad(formula, argnums=1)))(y, eta)
        for formula in (model.loss, model.derivative, jax.grad(model.loss, argnums=1))
    )
    scale = 1.0 + y + (np.exp(eta) if model.name == "exp" else 0.0)
    for automatic, ours in [
        (first, on(jnp, model.derivative)(y, eta)),
        (second, on(jnp, model.curvature)(y, eta)),
        (reverse_twice, on(jnp, model.curvature)(y, eta)),
    ]:
        assert np.all(np.abs(automatic - ours) <= 1e-10 * scale)
    assert np.any(eta == 0.0)


@pytest.mark.thorough
@every_model
def test_third_derivative_is_below_second(model, x64):
    y, eta = (a.ravel() for a in grid(jnp, np.float64))
    third = jax.jit(jax.vmap(jax.grad(model.curvature, argnums=1)))(y, eta)
    second = on(jnp, model.curvature)(y, eta)
    assert np.all(np.abs(third) <= second * (1 + 1e-12) + 1e-15 * y)


@pytest.mark.thorough
@every_namespace
def test_softplus_is_finite_for_extreme_predictors_in_float32(xp):
    model = PoissonSoftplus()
    eta = xp.asarray([-1e4, -1e3, -89.0, -60.0, -43.0, 0.0, 43.0, 60.0, 89.0, 1e3, 1e4], dtype=xp.float32)[:, None]
    y = xp.asarray(COUNTS, dtype=xp.float32)[None, :]

    def everything(y, eta):
        return {
            "rate": model.rate(eta),
            "log_rate": model.log_rate(eta),
            "loss": model.loss(y, eta),
            "derivative": model.derivative(y, eta),
            "curvature": model.curvature(y, eta),
            "curvature_bound": model.curvature_bound(y, eta - 1.0, eta),
            "deviance": model.deviance(y, eta),
            "log_likelihood": model.log_likelihood(y, eta),
        }

    values = on(xp, everything)(y, eta)
    assert all(np.all(np.isfinite(a)) and a.dtype == np.float32 for a in values.values())
    np.testing.assert_allclose(values["derivative"][0], -COUNTS, atol=1e-16)
    np.testing.assert_allclose(values["derivative"][-1], 1.0 - COUNTS / 1e4, rtol=1e-6)
    np.testing.assert_array_less(values["curvature"][0], 1e-16)
    np.testing.assert_array_equal(values["log_rate"][:3, 0], eta[:3, 0])


@pytest.mark.thorough
def test_softplus_gradients_are_finite_for_extreme_predictors_in_float32():
    model = PoissonSoftplus()
    eta = jnp.asarray([-1e4, -89.0, -43.0, -30.0, 0.0, 50.0, 89.0, 1e4], dtype=jnp.float32)
    y = jnp.asarray(COUNTS, dtype=jnp.float32)
    for method in (model.loss, model.derivative, model.curvature):
        pointwise = jax.grad(method, argnums=1)
        gradient = jax.jit(jax.vmap(jax.vmap(pointwise, (0, None)), (None, 0)))(y, eta)
        assert np.all(np.isfinite(gradient))
        if method == model.loss:
            np.testing.assert_array_equal(gradient[0], -COUNTS)


@every_namespace
def test_exp_is_finite_on_the_left_and_infinite_on_the_right(xp):
    model = PoissonExp()
    y = xp.asarray(COUNTS, dtype=xp.float32)
    left, right = xp.full_like(y, -1e4), xp.full_like(y, 1e4)
    np.testing.assert_array_equal(model.derivative(y, left), -COUNTS)
    np.testing.assert_allclose(model.loss(y, left), COUNTS * 1e4)
    np.testing.assert_array_equal(model.curvature(y, left), 0.0)
    np.testing.assert_array_equal(model.loss(y, right), np.inf)
    np.testing.assert_array_equal(model.derivative(y, right), np.inf)


@every_namespace
def test_global_curvature_bound_holds_and_is_tight(xp):
    model = PoissonSoftplus()
    eta = np.linspace(-12, 12, 100_000)
    for y in (0.0, 0.3, 1.0, 1.72, 5.0, 20.0, 100.0, 1e3, 1e4, 1e6):
        bound = float(model.curvature_bound(xp.asarray(y, dtype=np.float32)))
        largest = model.curvature(y, eta).max()
        assert largest <= bound <= 1.0132 * largest
        assert bound >= 0.25 + 0.16709557267051662 * y
    assert np.all(np.isinf(PoissonExp().curvature_bound(xp.asarray(COUNTS))))


@every_model
@every_dtype
@every_namespace
def test_curvature_bound_holds_on_intervals(model, dtype, xp, x64):
    rng = np.random.default_rng(0)
    n = 300
    lower = rng.uniform(-8, 6, n).astype(dtype)
    upper = lower + rng.choice([0, 1e-3, 0.1, 1, 4], n).astype(dtype)
    y = rng.choice([0, 0.2, 1, 1.72, 5, 100, 1e4], n).astype(dtype)
    bound = on(xp, model.curvature_bound)(*(xp.asarray(a) for a in (y, lower, upper)))
    assert bound.dtype == dtype
    # The largest curvature in float64, peaks of its two terms included.
    a_star = float(oracle.slope_maximum()[0])
    inside = np.linspace(lower.astype(float), upper.astype(float), 400)
    peaks = [np.clip(peak, lower.astype(float), upper.astype(float))[None] for peak in (0.0, a_star)]
    largest = model.curvature(y.astype(float), np.concatenate([inside, *peaks])).max(axis=0)
    assert np.all(np.asarray(bound, np.float64) >= largest)
    assert np.all(np.asarray(bound, np.float64) <= 1.0132 * largest)


@every_model
def test_curvature_bound_on_half_lines_and_points(model):
    y, eta = grid(np, np.float64)
    np.testing.assert_allclose(model.curvature_bound(y, eta, eta), model.curvature(y, eta), rtol=1e-13, atol=1e-300)
    assert np.all(model.curvature_bound(y, None, eta) >= model.curvature_bound(y, eta - 9, eta))
    assert np.all(model.curvature_bound(y, eta, None) >= model.curvature_bound(y, eta, eta + 9))
    widest = model.curvature_bound(y) * (1 + 1e-14)
    assert np.all(widest >= model.curvature_bound(y, eta, None))
    assert np.all(widest >= model.curvature_bound(y, None, eta))


@every_model
def test_curvature_bound_of_distant_intervals_in_float32(model):
    """Where e^a underflows the bound is still >= the true curvature, which is not 0."""
    upper = np.linspace(-200, -30, 71).astype(np.float32)
    for y in (0.0, 0.05, 3.0):
        bound = np.asarray(on(jnp, model.curvature_bound)(jnp.float32(y), upper - 1, upper))
        assert np.all(bound.astype(float) >= model.curvature(y, upper.astype(float)))


@pytest.mark.thorough(cases=6)
@every_model
@every_dtype
@every_namespace
def test_deviance_is_excess_loss_and_not_negative(model, dtype, xp, x64):
    y, eta = (a.ravel() for a in grid(np, dtype))
    y, eta = (xp.asarray(a[np.abs(eta) < 8]) for a in (y, eta))
    rate = np.asarray(on(xp, model.rate)(eta), np.float64)
    true = oracle.deviance(rate, np.asarray(y, np.float64))
    size = rate + y * (1 + np.abs(np.log(rate)))
    got = on(xp, model.deviance)(y, eta)
    assert np.all(np.asarray(got) >= 0)
    assert np.all(np.abs(got - true) <= 40 * np.finfo(dtype).eps * (size + np.asarray(y) * np.log1p(y)))
    at_optimum = on(xp, lambda y: model.deviance(y, model.intercept(y)))(y)
    assert np.all(np.asarray(at_optimum) <= 400 * np.finfo(dtype).eps * (1 + np.asarray(y)) * np.log1p(1 + y))


@every_model
def test_mean_loss_is_above_saturated_loss(model):
    rng = np.random.default_rng(1)
    y = rng.poisson(2.0, (200, 3))
    for _ in range(20):
        eta = rng.normal(0, rng.choice([0.1, 1, 4]), y.shape)
        assert np.all(model.loss(y, eta).mean(axis=0) >= model.saturated_loss(y).mean(axis=0))


@every_model
@every_namespace
def test_log_likelihood_is_that_of_scipy(model, xp, x64):
    y, eta = grid(xp, np.float64)
    expected = scipy.stats.poisson.logpmf(np.asarray(y), np.asarray(on(xp, model.rate)(eta)))
    finite = np.isfinite(expected)
    np.testing.assert_allclose(np.asarray(on(xp, model.log_likelihood)(y, eta))[finite], expected[finite], rtol=1e-9)
    assert finite.mean() > 0.9


@every_model
def test_fractional_counts(model):
    """Weighted or deconvolved counts: log y! is log Gamma(y + 1), the loss has its minimum at rate y."""
    y = np.array([0.0, 0.3, 1.7, 12.25])
    best = model.intercept(y)
    np.testing.assert_allclose(model.derivative(y, best), 0.0, atol=1e-14)
    np.testing.assert_allclose(model.loss(y, best), model.saturated_loss(y), rtol=1e-14, atol=1e-14)
    expected = y * np.log(model.rate(best)) - model.rate(best) - scipy.special.gammaln(y + 1)
    np.testing.assert_allclose(model.log_likelihood(y, best), expected, rtol=1e-13)


@pytest.mark.thorough
def test_samples_have_mean_and_variance_of_the_rate():
    """Also for extreme predictors: no count at -1e4, the rate itself above 2^30, NaN and inf for NaN and inf.

    Only one model is tested: drawing is written once, in terms of the rate, and takes seconds to compile.
    """
    model = PoissonSoftplus()
    eta = np.array([-3.0, 0.0, 2.0, 4.0, -1e4, np.nan, np.inf, *model.intercept(np.array([1e9, 1e10]))])
    n = 20_000
    draw = jax.jit(lambda key, eta: model.sample(key, jnp.broadcast_to(eta, (n, eta.size))))
    counts = draw(jax.random.key(0), eta.astype(np.float32))
    assert counts.dtype == jnp.float32
    counts, far_out = np.split(np.asarray(counts, np.float64), [4], axis=1)
    rate = model.rate(eta[:4])
    assert np.all(np.abs(counts.mean(axis=0) - rate) <= 4.5 * np.sqrt(rate / n))
    assert np.all(np.abs(counts.var(axis=0) - rate) <= 4.5 * np.sqrt((rate + 2 * rate**2) / n))
    assert np.all(counts == np.round(counts))
    silent, missing, infinite, large, larger = far_out.T
    assert np.all(silent == 0) and np.all(np.isnan(missing)) and np.all(infinite == np.inf)
    np.testing.assert_allclose(large, 1e9, rtol=1e-3)
    np.testing.assert_allclose(larger, 1e10, rtol=1e-3)


def test_samples_have_the_requested_dtype():
    eta, key = np.zeros(20), jax.random.key(0)
    assert jax.eval_shape(lambda key, eta: PoissonExp().sample(key, eta, jnp.int32), key, eta).dtype == jnp.int32


@pytest.mark.thorough
@every_model
@every_dtype
@every_namespace
def test_intercept_inverts_the_rate(model, dtype, xp, x64):
    mean = xp.asarray(np.logspace(-18, 4, 45), dtype=dtype)
    eta = on(xp, model.intercept)(mean)
    assert eta.dtype == dtype
    tol = 100 * np.finfo(dtype).eps
    np.testing.assert_allclose(on(xp, model.rate)(eta), mean, rtol=tol)
    floor = on(xp, model.intercept)(xp.asarray([0.0, 1e-45], dtype=dtype))
    if dtype == np.float32:
        np.testing.assert_allclose(floor, -43.0)
    else:
        np.testing.assert_allclose(floor, [-354.0, -45 * np.log(10)])
    assert np.all(np.asarray(floor) > -np.inf)


@every_model
def test_methods_respect_strict_promotion_under_jit(model):
    """float32 in, float32 out, integer counts included; ranks are never promoted."""
    y = jnp.asarray([[0, 1], [2, 3]])
    eta = jnp.asarray([[-1.0, 0.5], [2.0, -90.0]], dtype=jnp.float32)
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        calls = (
            *((m, y, eta) for m in (model.loss, model.derivative, model.curvature, model.deviance)),
            (model.log_likelihood, y, eta),
            (model.curvature_bound, y, eta, eta),
            (model.curvature_bound, y),
            (model.saturated_loss, y),
            (model.intercept, eta),
            (model.sample, jax.random.key(0), eta),
        )
        assert all(jax.eval_shape(*call).dtype == jnp.float32 for call in calls)


@every_model
def test_large_numpy_arrays_equal_their_rows(model):
    rng = np.random.default_rng(2)
    y, eta = rng.poisson(0.5, (3000, 7)), rng.normal(-1, 3, (3000, 7))
    for method in (model.loss, model.derivative, model.curvature, model.deviance):
        whole = method(y, eta)
        np.testing.assert_array_equal(
            whole, np.concatenate([method(y[t : t + 100], eta[t : t + 100]) for t in range(0, len(y), 100)])
        )
    np.testing.assert_array_equal(model.loss(1.0, eta.ravel()), model.loss(np.ones_like(eta), eta).ravel())
    np.testing.assert_array_equal(
        model.curvature_bound(y, -1.0, eta[:1] * 0)[:3], model.curvature_bound(y[:3], -1.0, 0.0)
    )


@every_model
@every_namespace
def test_nan_stays_nan(model, xp):
    y, eta = xp.asarray(1.0), xp.asarray(np.nan)
    values = on(xp, lambda y, eta: (*model.loss_and_derivative(y, eta), model.curvature(y, eta)))(y, eta)
    assert np.all(np.isnan(values))
