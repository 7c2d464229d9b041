"""Quadratic bounds of log-partition functions: never below them, tangent to them, and the structure for softmax."""

import itertools
import math

import numpy as np
import pytest
from oracles import majorization as oracle
from scipy.special import j0, logsumexp, softmax

from glmfit import bounds
from glmfit.bounds.log_partition import ORDERS, curvature_of_gap

every_order = pytest.mark.parametrize("order", ORDERS)
orders_of_one = pytest.mark.parametrize("order", ORDERS[:3])
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def models():
    """Log-linear models (features, theta, log_weights), a few of every kind."""
    for seed, scale in itertools.product(range(4), (0.1, 1.0, 30.0)):
        rng = np.random.default_rng([seed, int(10 * scale)])
        n, d = rng.integers(2, 9), rng.integers(1, 5)
        features = rng.normal(size=(n, d))
        log_weights = rng.normal(size=n)
        if seed % 2:  # some are excluded, the first among them
            log_weights[: n // 2] = -np.inf
        if seed == 2:
            features[-1] = features[0]
        yield features, scale * rng.normal(size=d), log_weights
    yield np.array([[0.0, 1.0], [1e4, -1.0], [1e4, 0.0]]), np.array([1.0, 2.0]), np.zeros(3)


MODELS = list(models())


def everywhere(rng, bound):
    """Parameters near and far, at random and along the eigenvectors of the curvature."""
    directions = np.concatenate([rng.normal(size=(30, len(bound.theta))), np.linalg.eigh(bound.curvature)[1].T])
    for size in (1e-6, 1e-2, 1.0, 10.0, 1e3):
        for sign in (-1, 1):
            yield from bound.theta + sign * size * directions


# ------------------------------------------------------------------------- the curvature of one pair of outcomes


@every_dtype
def test_curvature_of_a_gap_matches_50_digits(dtype):
    info = np.finfo(dtype)
    grid = np.concatenate(
        [
            [0.0, info.smallest_subnormal, info.tiny, info.eps, info.max / 3, info.max, np.inf],
            np.logspace(-6, 4, 101),
            0.01 * (1 + np.linspace(-1e-3, 1e-3, 21)),
        ]
    ).astype(dtype)
    found = curvature_of_gap(grid)
    assert found.dtype == dtype
    exact = np.array([float(oracle.beta(d)) for d in grid])
    np.testing.assert_allclose(found.astype(float), exact, rtol=4 * info.eps, atol=float(info.smallest_subnormal))
    np.testing.assert_array_equal(curvature_of_gap(-grid), found)
    assert np.all(np.diff(curvature_of_gap(np.linspace(0, 20, 2001, dtype=dtype))) <= info.eps)


@pytest.mark.parametrize("d", [1e-3, 0.5, -2.0, 30.0])
def test_two_outcomes_on_a_line_have_the_tightest_possible_bound(d):
    """It touches log(1 + exp(x)) at d and -d: less curvature would fall below it at -d (Jaakkola and Jordan)."""
    bound = bounds.log_partition_bound([[0.0], [1.0]], [d])
    for x in (d, -d):
        assert bound.at([x]) == pytest.approx(np.logaddexp(0, x), rel=1e-14)
    less = bound._replace(factors=bound.factors * (1 - 1e-4))
    assert less.at([-d]) < np.logaddexp(0, -d)


# ------------------------------------------------------------------------- any log-linear model


@pytest.mark.thorough(cases=1)
@orders_of_one
def test_bound_is_never_below_the_log_partition_function(order, rng):
    for features, theta, log_weights in MODELS:
        bound = bounds.log_partition_bound(features, theta, log_weights, order)
        for at in everywhere(rng, bound):
            exact, found = oracle.log_partition(features, at, log_weights), bound.at(at)
            assert found - exact >= -1e-12 * max(1, abs(exact), abs(found))


@orders_of_one
def test_bound_touches_with_the_gradient_and_at_least_the_curvature(order):
    for features, theta, log_weights in MODELS:
        bound = bounds.log_partition_bound(features, theta, log_weights, order)
        assert bound.value == pytest.approx(oracle.log_partition(features, theta, log_weights), rel=1e-13)
        size = np.abs(features).max()
        mean, hessian = oracle.moments(features, theta, log_weights)
        np.testing.assert_allclose(bound.gradient, mean, atol=1e-12 * size)
        assert np.linalg.eigvalsh(bound.curvature - hessian)[0] >= -1e-12 * size**2
        v = np.arange(1.0, len(theta) + 1)
        np.testing.assert_allclose(bound.product(v), bound.curvature @ v, atol=1e-12 * size**2)


def test_bound_is_the_listing_in_its_exact_limit():
    for features, theta, log_weights in MODELS:
        bound = bounds.log_partition_bound(features, theta, log_weights)
        _, _, curvature = oracle.bound(features, theta, log_weights)
        np.testing.assert_allclose(bound.curvature, curvature, atol=1e-12 * np.abs(curvature).max())


def test_an_order_equals_rearranging_the_outcomes():
    features, theta, log_weights = MODELS[2]
    place = np.argsort(features @ theta + log_weights)
    for order, arranged in (("ascending", place), ("descending", place[::-1])):
        found = bounds.log_partition_bound(features, theta, log_weights, order)
        expected = bounds.log_partition_bound(features[arranged], theta, log_weights[arranged])
        np.testing.assert_allclose(found.curvature, expected.curvature, rtol=1e-12)
        np.testing.assert_allclose(found.factors[arranged], expected.factors, rtol=1e-12)


def test_excluded_outcomes_have_no_effect():
    features, theta, _ = MODELS[2]
    log_weights = np.zeros(len(features))
    log_weights[[0, 3]] = -np.inf
    there = np.isfinite(log_weights)
    found = bounds.log_partition_bound(features, theta, log_weights)
    expected = bounds.log_partition_bound(features[there], theta)
    np.testing.assert_array_equal(found.factors[there], expected.factors)
    np.testing.assert_array_equal(found.factors[~there], 0.0)
    assert found.value == expected.value


def test_a_bound_keeps_its_own_copy_of_its_point():
    theta = np.zeros(1)
    bound = bounds.log_partition_bound([[0.0], [1.0]], theta)
    theta += 1
    assert bound.at([0.0]) == bound.value


def test_a_small_z_differs_from_its_limit():
    """S6: started from z > 0 the first outcome adds f f' / (2 log(1/z)), which moves with the origin of features."""
    rng = np.random.default_rng(6)
    features, theta = rng.normal(size=(4, 2)), np.zeros(2)
    bound = bounds.log_partition_bound(features, theta)
    np.testing.assert_array_equal(bound.factors[0], 0.0)
    for z, relative in ((1e-300, 7.2e-4), (1e-12, 1.8e-2)):
        for shift in (0.0, 100.0):
            _, _, curvature = oracle.printed_bound(features + shift, theta, np.ones(4), z)
            first = np.outer(features[0] + shift, features[0] + shift)
            np.testing.assert_allclose(curvature - bound.curvature, relative * first, rtol=0.02, atol=1e-5)
        moved = bounds.log_partition_bound(features + 100.0, theta)
        np.testing.assert_allclose(moved.curvature, bound.curvature, rtol=1e-10, atol=1e-12)
    # Weights below z are ignored, whatever their ratio: here the gradient is 0.
    small = np.full(4, 1e-20)
    assert np.abs(oracle.printed_bound(features, theta, small, 1e-12)[1]).max() < 1e-7
    np.testing.assert_allclose(bounds.log_partition_bound(features, theta, np.log(small)).gradient, features.mean(0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.ones(3)}, r"features has shape \(3,\) and theta \(2,\); they must be \(outcome, parameter\)"),
        ({"features": np.ones((0, 2))}, r"features has shape \(0, 2\)"),
        ({"theta": np.ones(3)}, r"theta \(3,\); they must be"),
        ({"features": np.array([[1.0, np.nan]])}, "must be finite; exclude an outcome by a log weight of -inf"),
        ({"theta": np.array([np.inf, 0.0])}, "features, theta and their products must be finite"),
        (
            {"features": np.array([[1e200, 0], [-1e200, 0]]), "theta": np.full(2, 1e200)},
            "their products must be finite",
        ),
        ({"log_weights": np.zeros(2)}, r"log_weights has shape \(2,\); one per outcome is needed, \(3,\)"),
        ({"log_weights": np.array([0, np.nan, 0])}, "log_weights hold nan or .inf; they must be finite, or -inf"),
        ({"log_weights": np.array([0, np.inf, 0])}, "log_weights hold nan or .inf"),
        ({"log_weights": np.full(3, -np.inf)}, "every outcome of some row is excluded"),
        ({"order": "averaged"}, "order is 'averaged'; it must be one of 'given', 'descending', 'ascending'"),
    ],
)
def test_bad_models_are_refused(change, message):
    good = {"features": np.eye(3)[:, :2], "theta": np.zeros(2), "log_weights": None, "order": "given"}
    with pytest.raises(ValueError, match=message):
        bounds.log_partition_bound(**(good | change))


# ------------------------------------------------------------------------- softmax


def scores(dtype=np.float64, n_classes=5, n_rows=60, seed=0):
    """Rows of scores, small and large, some with classes excluded."""
    rng = np.random.default_rng(seed)
    s = rng.normal(size=(n_rows, n_classes)) * rng.choice([0.1, 1, 10, 1e4], (n_rows, 1))
    s[:9] += 1e4
    s[10:20][rng.random((10, n_classes)) < 0.4] = -np.inf
    s[10:20, -1] = 0.0
    return s.astype(dtype)


def hessians(s):
    p = softmax(s.astype(float), axis=1)
    return p[:, :, None] * np.eye(s.shape[1]) - p[:, :, None] * p[:, None, :]


@every_order
@every_dtype
def test_softmax_curvature_ignores_the_common_shift_and_is_at_least_the_hessian(order, dtype):
    s = scores(dtype)
    bound = bounds.softmax_bound(s, order)
    C, small = bound.matrices(), 8 * np.finfo(dtype).eps
    assert C.dtype == bound.log_norm.dtype == dtype
    assert np.isfinite(C).all()
    np.testing.assert_allclose(C.sum(axis=2), 0.0, atol=small)
    np.testing.assert_allclose(C, np.swapaxes(C, 1, 2), atol=small)
    assert np.linalg.eigvalsh(C.astype(float) - hessians(s)).min() >= -small
    np.testing.assert_allclose(bound.log_norm, logsumexp(s.astype(float), axis=1), rtol=small, atol=small)


@every_order
@every_dtype
def test_products_match_the_matrices(order, dtype, rng):
    s = scores(dtype)
    bound = bounds.softmax_bound(s, order)
    v = rng.normal(size=s.shape).astype(dtype)
    found = bound.product(v)
    assert found.dtype == dtype
    np.testing.assert_allclose(found, np.einsum("ikl,il->ik", bound.matrices(), v), atol=32 * np.finfo(dtype).eps)
    np.testing.assert_allclose(bound.product(np.ones_like(v)), 0.0, atol=8 * np.finfo(dtype).eps)


def test_softmax_curvature_is_the_sum_of_rank_ones():
    s = scores()
    np.testing.assert_allclose(
        bounds.softmax_bound(s).matrices(), [oracle.softmax_curvature(row) for row in s], rtol=1e-11, atol=1e-13
    )


@orders_of_one
def test_softmax_bound_equals_that_of_the_log_linear_model(order, rng):
    """With f(y) = e_y (x) x the whole curvature is C (x) xx', and the gradient p (x) x."""
    s = scores()[10:]
    for row in s[::5]:
        x = rng.normal(size=3)
        coefficients = rng.normal(size=(len(row), 3))
        features = np.kron(np.eye(len(row)), x)
        bound = bounds.log_partition_bound(features, coefficients.ravel(), row - coefficients @ x, order)
        C = bounds.softmax_bound(row[None], order).matrices()[0]
        np.testing.assert_allclose(bound.curvature, np.kron(C, np.outer(x, x)), atol=1e-12)
        np.testing.assert_allclose(bound.gradient, np.kron(softmax(row), x), atol=1e-12)


@every_order
def test_softmax_bound_is_never_below_the_log_sum_of_exponentials(order, rng):
    s = scores()[20:]
    bound = bounds.softmax_bound(s, order)
    p = softmax(s, axis=1)
    for size in (1e-4, 1e-2, 1.0, 30.0, 1e4):
        u = size * rng.normal(size=(20, *s.shape))
        exact = logsumexp(s + u, axis=2)
        curvature = np.array([np.sum(v * bound.product(v), axis=1) for v in u])
        quadratic = bound.log_norm + np.sum(p * u, axis=2) + curvature / 2
        scale = np.maximum.reduce([np.ones_like(exact), abs(exact), abs(quadratic), np.abs(s).max(axis=1) + 0 * exact])
        assert np.all(quadratic - exact >= -1e-12 * scale)


def test_averaged_order_is_the_mean_of_the_two_by_score():
    s = scores()
    one, two, mean = (bounds.softmax_bound(s, order).matrices() for order in ("descending", "ascending", "averaged"))
    np.testing.assert_allclose(mean, (one + two) / 2, rtol=1e-14, atol=1e-16)
    assert np.abs(one - two).max() > 0.01


@every_dtype
def test_two_classes_are_logistic_regression(dtype):
    s = np.random.default_rng(3).normal(size=(50, 2)).astype(dtype) * 5
    expected = curvature_of_gap(s[:, 1] - s[:, 0])[:, None, None] * np.array([[1, -1], [-1, 1]])
    for order in ORDERS:
        np.testing.assert_allclose(bounds.softmax_bound(s, order).matrices(), expected, rtol=8 * np.finfo(dtype).eps)


def test_one_class_has_no_curvature_and_zero_rows_are_allowed():
    for order in ORDERS:
        np.testing.assert_array_equal(bounds.softmax_bound(np.ones((2, 1)), order).matrices(), 0.0)
        assert bounds.softmax_bound(np.ones((0, 3)), order).matrices().shape == (0, 3, 3)


@every_order
def test_a_common_shift_of_scores_changes_nothing_in_single_precision_either(order):
    s = (np.random.default_rng(4).integers(-512, 512, (40, 6)) / 128).astype(np.float32)  # exact after the shift
    found = bounds.softmax_bound(s + np.float32(1e4), order)
    np.testing.assert_allclose(found.matrices(), bounds.softmax_bound(s, order).matrices(), rtol=1e-6, atol=1e-8)


@every_order
@every_dtype
def test_scores_of_any_size_are_fine(order, dtype):
    largest = float(np.finfo(dtype).max)
    for size in (1e4, 1e30, largest):
        s = (size * np.array([[1, -1, 0], [-1, -1, -1], [0, 0, 1]])).astype(dtype)
        bound = bounds.softmax_bound(s, order)
        C = bound.matrices()
        assert np.isfinite(C).all() and np.isfinite(bound.product(np.eye(3, dtype=dtype))).all()
        np.testing.assert_allclose(C[1], bounds.softmax_bound(np.zeros((1, 3)), order).matrices()[0], rtol=1e-6)


def test_curvature_is_not_always_below_that_of_boehning():
    """It is far below where probabilities are uneven, but the two are not comparable in general."""
    s = np.array([[-3.0, 0.0, 0.0]])
    fixed = (np.eye(3) - 1 / 3) / 2
    gap = np.linalg.eigvalsh(fixed - bounds.softmax_bound(s).matrices()[0])
    assert gap[0] < -0.08 and gap[-1] > 0.3


@pytest.mark.parametrize("spread", [0.5, 2.0, 6.0])
def test_descending_order_has_the_least_trace_and_determinant_of_all(spread):
    rng = np.random.default_rng(int(10 * spread))
    for s in spread * rng.normal(size=(10, 4)):
        arranged = np.array(list(itertools.permutations(s)))
        C = bounds.softmax_bound(arranged).matrices()
        best = bounds.softmax_bound(s[None], "descending").matrices()[0]
        assert np.trace(best) <= np.trace(C, axis1=1, axis2=2).min() * (1 + 1e-12)
        determinants = np.prod(np.linalg.eigvalsh(C)[:, 1:], axis=1)
        assert math.prod(np.linalg.eigvalsh(best)[1:]) <= determinants.min() * (1 + 1e-10)


@pytest.mark.parametrize(
    ("s", "message"),
    [
        (np.zeros(3), r"scores has shape \(3,\); it must be \(row, class\)"),
        (np.zeros((3, 0)), r"scores has shape \(3, 0\); it must be \(row, class\)"),
        ([[0.0, np.nan]], "scores hold nan or .inf; they must be finite, or -inf where a class is excluded"),
        ([[0.0, np.inf]], "scores hold nan or .inf"),
        ([[0.0, 1.0], [-np.inf, -np.inf]], "every outcome of some row is excluded"),
    ],
)
def test_bad_scores_are_refused(s, message):
    with pytest.raises(ValueError, match=message):
        bounds.softmax_bound(s)


def test_unknown_orders_and_vectors_of_wrong_shape_are_refused():
    with pytest.raises(ValueError, match="order is 'best'; it must be one of 'given', 'descending', 'asc"):
        bounds.softmax_bound(np.zeros((1, 2)), "best")
    with pytest.raises(ValueError, match=r"v has shape \(3,\); it must be \(row, class\), \(2, 3\)"):
        bounds.softmax_bound(np.zeros((2, 3))).product(np.zeros(3))


# ------------------------------------------------------------------------- the stochastic listing


def test_one_pass_at_fixed_parameters_is_the_batch_step_only_with_the_corrected_update():
    """S2: the parts of the gradient from label and ridge belong to a row, not to each of its outcomes."""
    rng = np.random.default_rng(2)
    features, theta = rng.normal(size=(20, 4, 3)), rng.normal(size=3)
    labels = rng.integers(4, size=20)
    phi, step = oracle.one_pass(features, labels, theta, 0.5)
    np.testing.assert_allclose(phi, step, rtol=1e-12)
    phi, step = oracle.one_pass(features, labels, theta, 0.5, printed=True)
    np.testing.assert_allclose([np.linalg.norm(phi - step), np.linalg.norm(step)], [1.07, 0.91], rtol=0.01)


def test_a_listing_that_never_forgets_oscillates_like_a_bessel_function():
    """S7: on least squares, whose bound is exact, the error after tau passes is J_0(2 sqrt(tau)) times the first."""
    rng = np.random.default_rng(7)
    rows, ridge = rng.normal(size=(2000, 3)), 1e-3
    theta, M, mu, errors = np.ones(3), np.eye(3) / ridge, np.zeros(3), []
    for _ in range(4):
        for x in rng.permutation(rows):
            M = M - np.outer(M @ x, M @ x) / (1 + x @ M @ x)
            mu = mu + x * (x @ theta) + ridge * theta / len(rows)
            theta = theta - M @ mu / len(rows)
        errors.append(theta)
    expected = j0(2 * np.sqrt([1, 2, 3, 4]))
    np.testing.assert_allclose(errors, np.tile(expected[:, None], 3), atol=0.03)
    np.testing.assert_allclose(expected, [0.224, -0.197, -0.375, -0.397], atol=1e-3)
