"""Laws of every penalty."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from oracles import penalties as oracle

from glmfit import penalties

N_FEATURES, N_NEURONS = 7, 3
GROUPS = (2, 0, 2, -1, 0, 2, 5)
PER_NEURON = np.array([0.3, 0.7, 1.1])
PER_COEF = np.random.default_rng(9).uniform(0.1, 1.5, (N_FEATURES, N_NEURONS))
PER_COEF[[1, 5], [0, 2]] = 0.0

CASES = {
    "none": ("UnRegularized", {"strength": 0.0}),
    "ridge": ("Ridge", {"strength": 0.4}),
    "ridge per neuron": ("Ridge", {"strength": PER_NEURON}),
    "lasso": ("Lasso", {"strength": 0.4}),
    "lasso per neuron": ("Lasso", {"strength": PER_NEURON}),
    "elastic net": ("ElasticNet", {"strength": 0.4, "ratio": 0.3}),
    "elastic net per neuron": ("ElasticNet", {"strength": PER_NEURON, "ratio": np.array([0.1, 0.5, 1.0])}),
    "ridge per coefficient": ("Ridge", {"strength": PER_COEF}),
    "lasso per coefficient": ("Lasso", {"strength": PER_COEF}),
    "elastic net per coefficient": ("ElasticNet", {"strength": PER_COEF, "ratio": 1.0 - PER_COEF / 3}),
    "group lasso per group": ("GroupLasso", {"strength": PER_COEF[:3], "groups": GROUPS}),
    "group lasso": ("GroupLasso", {"strength": 0.4, "groups": GROUPS}),
    "group lasso per neuron": ("GroupLasso", {"strength": PER_NEURON, "groups": GROUPS}),
}
every_case = pytest.mark.parametrize("name, numbers", CASES.values(), ids=CASES.keys())


def make(name, numbers, dtype=np.float64):
    strength = (numbers["strength"], numbers["ratio"]) if name == "ElasticNet" else numbers["strength"]
    return penalties.make(name, strength, N_FEATURES, N_NEURONS, groups=numbers.get("groups"), dtype=dtype)


def compiled(method):
    """Method as one compilation, instead of one per operation."""
    return jax.jit(lambda *arrays: method(*arrays))


def some_coef(seed=0):
    """Coefficients with exact zeros, also in whole groups."""
    rng = np.random.default_rng(seed)
    coef = rng.normal(size=(N_FEATURES, N_NEURONS))
    coef[rng.random(coef.shape) < 0.3] = 0.0
    coef[[1, 4], 0] = 0.0
    coef[[0, 2, 5], 1] = 0.0
    coef[:, 2] *= rng.random() < 0.5
    return coef


@every_case
def test_value_is_the_definition(name, numbers):
    penalty = make(name, numbers)
    for seed in range(5):
        coef = some_coef(seed)
        value = penalty.value(coef)
        assert value.shape == (N_NEURONS,) and value.dtype == np.float64
        np.testing.assert_allclose(value, oracle.value(name, coef, **numbers), rtol=1e-13)
    missing = penalty.value(np.full((N_FEATURES, N_NEURONS), np.nan))
    assert np.all(np.isnan(missing)) or name == "UnRegularized"


@every_case
def test_ridge_strength_is_the_smooth_part(name, numbers, x64):
    penalty, coef = make(name, numbers), some_coef()
    assert np.shape(penalty.ridge_strength) in ((), np.shape(numbers["strength"]))
    smooth = np.sum(penalty.ridge_strength / 2 * coef**2, axis=0)
    np.testing.assert_allclose(smooth, oracle.smooth(name, coef, numbers["strength"], numbers.get("ratio", 0.5)))


@pytest.mark.thorough(cases=23)
@every_case
@pytest.mark.parametrize("scaled", [False, True])
def test_prox_beats_every_candidate(name, numbers, scaled, x64):
    penalty = make(name, numbers)
    rng = np.random.default_rng(3)
    scale = np.array([0.5, 2.0, 0.5, 3.0, 2.0, 0.5, 1.5]) if scaled else np.ones(N_FEATURES)
    for step in (0.3, np.array([0.2, 1.0, 5.0])):
        at = rng.normal(size=(N_FEATURES, N_NEURONS)) * rng.choice([0.1, 1, 3], N_NEURONS)
        best = np.asarray(compiled(penalty.prox)(at, step, scale if scaled else None))
        objective = lambda v, step=step, at=at: oracle.prox_objective(name, v, at, step, scale, **numbers)  # noqa: E731
        lowest = objective(best)
        assert np.all(lowest <= objective(at)) and np.all(lowest <= objective(np.zeros_like(at)))
        for size in (1e-4, 1e-2, 1.0):
            for _ in range(100):
                noise = size * rng.normal(size=at.shape) * (rng.random(at.shape) < rng.random())
                assert np.all(lowest <= objective(best + noise) + 1e-13)
        for feature in range(N_FEATURES):
            for number in np.linspace(-3, 3, 31):
                candidate = best.copy()
                candidate[feature] = number
                assert np.all(lowest <= objective(candidate) + 1e-13)


@every_case
def test_prox_solves_its_optimality_condition(name, numbers, x64):
    """The smooth part of the proximal problem has the gradient (v - at)/step: its residual is 0."""
    penalty = make(name, numbers)
    rng = np.random.default_rng(4)
    at, step = rng.normal(size=(N_FEATURES, N_NEURONS)), np.array([0.2, 1.0, 2.0])
    best = np.asarray(compiled(penalty.prox)(at, step))
    np.testing.assert_allclose(penalty.subgradient_residual(best, (best - at) / step), 0.0, atol=1e-13)
    if penalty.smooth:
        np.testing.assert_array_equal(best, at)
    else:
        assert np.any(best == 0.0)


@pytest.mark.parametrize("name, numbers", [CASES["lasso per neuron"], CASES["elastic net"]], ids=["lasso", "net"])
def test_l1_prox_takes_a_step_per_coefficient(name, numbers, x64):
    penalty = make(name, numbers)
    rng = np.random.default_rng(5)
    at, step = rng.normal(size=(N_FEATURES, N_NEURONS)), rng.uniform(0.1, 3, (N_FEATURES, N_NEURONS))
    best = np.asarray(compiled(penalty.prox)(at, step))
    np.testing.assert_allclose(penalty.subgradient_residual(best, (best - at) / step), 0.0, atol=1e-13)


@every_case
def test_subgradient_residual_is_the_steepest_descent(name, numbers):
    """No unit direction descends faster than the norm of the residual; minus the residual does."""
    penalty = make(name, numbers)
    rng = np.random.default_rng(6)
    for seed in range(4):
        coef, grad = some_coef(seed), rng.normal(size=(N_FEATURES, N_NEURONS))
        residual = penalty.subgradient_residual(coef, grad)
        norm = np.linalg.norm(residual, axis=0)
        slope = lambda d, coef=coef, grad=grad: oracle.directional_derivative(name, coef, grad, d, **numbers)  # noqa: E731
        assert np.any(norm > 0)
        np.testing.assert_allclose(slope(-residual / np.maximum(norm, 1e-9)), -norm, rtol=1e-5)
        for _ in range(150):
            direction = rng.normal(size=coef.shape) * (rng.random(coef.shape) < rng.uniform(0.2, 1))
            direction /= np.maximum(np.linalg.norm(direction, axis=0), 1e-9)
            assert np.all(slope(direction) >= -norm - 1e-6)


@every_case
def test_maximal_strength_is_where_zero_becomes_optimal(name, numbers):
    rng = np.random.default_rng(7)
    grad = rng.normal(size=(N_FEATURES, N_NEURONS))
    if name == "GroupLasso":
        grad[np.asarray(GROUPS) == -1] = 0.0  # unpenalised coefficients are at their optimum
    penalty = make(name, numbers)
    strength = penalty.maximal_strength(grad)
    assert strength.shape == (N_NEURONS,)
    if penalty.smooth:
        assert np.all(np.isinf(strength))
        return
    zero = np.zeros_like(grad)
    above = make(name, numbers | {"strength": strength * (1 + 1e-12)}).subgradient_residual(zero, grad)
    below = make(name, numbers | {"strength": strength * (1 - 1e-3)}).subgradient_residual(zero, grad)
    assert np.all(above == 0) and np.all(np.abs(below).max(axis=0) > 0)


@every_case
def test_rotation_invariance_is_as_declared(name, numbers):
    penalty, coef = make(name, numbers), some_coef(1) + 0.1
    rotation = np.linalg.qr(np.random.default_rng(8).normal(size=(N_FEATURES, N_FEATURES)))[0]
    invariant = np.allclose(penalty.value(rotation @ coef), penalty.value(coef), rtol=1e-12)
    assert invariant == penalty.rotation_invariant


@pytest.mark.thorough(cases=11)
@every_case
def test_compiled_formulas_keep_float32_and_compile_once(name, numbers):
    """Under strict promotion, for any dtype of the strength, whose value must not cause a recompilation."""
    traces = []
    coef, step, scale = some_coef().astype(np.float32), np.float32(0.5), np.ones(N_FEATURES, np.float32)

    @jax.jit
    def everything(penalty, coef, grad):
        traces.append(name)
        return {
            "value": penalty.value(coef),
            "prox": penalty.prox(coef, step, scale),
            "residual": penalty.subgradient_residual(coef, grad),
            "maximal_strength": penalty.maximal_strength(grad),
            "gradient at zero": jax.grad(lambda w: penalty.value(w).sum())(jnp.zeros_like(coef)),
        }

    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        for dtype, factor in [(np.float64, 1.0), (np.float32, 1.0), (np.float64, 2.0)]:
            penalty = make(name, numbers | {"strength": factor * numbers["strength"]}, dtype)
            results = everything(penalty, coef, coef)
            assert {a.dtype for a in results.values()} == {np.dtype("float32")}
            on_numpy = {
                "value": penalty.value(coef),
                "residual": penalty.subgradient_residual(coef, coef),
                "maximal_strength": penalty.maximal_strength(coef),
            }
            for key, value in on_numpy.items():
                assert isinstance(value, np.ndarray) and value.dtype == np.float32
                np.testing.assert_allclose(results[key], value, rtol=1e-5, atol=1e-6)
            assert np.all(np.isfinite(results["gradient at zero"]))
    assert traces == [name]


@every_case
def test_the_conjugate_bounds_the_penalty_and_touches_it_along_a_subgradient(name, numbers):
    """Fenchel and Young: R(w) + R*(u) >= u'w, with equality where u is a subgradient of R at w."""
    penalty = make(name, numbers)
    for seed in range(20):
        rng = np.random.default_rng([seed, 3])
        coef, other = some_coef(seed), some_coef(seed + 100)
        grad = rng.normal(size=coef.shape)
        # -grad plus the smallest subgradient of <grad, .> + R is a subgradient of R.
        ridge = np.asarray(penalty.ridge_strength) * coef
        slope = np.asarray(penalty.subgradient_residual(coef, grad + ridge)) - grad
        conjugate = np.asarray(penalty.conjugate(slope * (1 - 1e-12)))
        value, product = np.asarray(penalty.value(coef)), np.sum(slope * coef, axis=0)
        np.testing.assert_allclose(value + conjugate, product, rtol=1e-9, atol=1e-9)
        bound = np.sum(slope * other, axis=0) - conjugate
        assert np.all(np.asarray(penalty.value(other)) >= bound - 1e-9)


@every_case
def test_shares_are_the_largest_with_a_finite_conjugate(name, numbers):
    penalty = make(name, numbers)
    for seed in range(20):
        dual = np.random.default_rng([seed, 4]).normal(size=(N_FEATURES, N_NEURONS)) * 10.0 ** (seed % 5 - 2)
        shares = np.asarray(penalty.shares(dual))
        assert np.all((shares >= 0) & (shares <= 1))
        assert all(np.all(np.isfinite(np.asarray(penalty.conjugate(share * dual)))) for share in shares)
        largest = shares.max(axis=0)
        beyond = np.asarray(penalty.conjugate(np.maximum(largest * (1 + 1e-12), 1e-9) * dual))
        assert np.all(np.isinf(beyond) | (largest >= 1 - 1e-14))
