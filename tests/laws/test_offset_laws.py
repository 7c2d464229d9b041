"""Laws of offsets and exposures (bins observed for part of the time): the same model and certificates."""

import jax
import numpy as np
import pytest
import scipy.optimize
from cases import seen_by_saga

from glmfit import PopulationGLM, observations, penalties
from glmfit.engine.population import PopulationProblem
from glmfit.inference import drop_groups, wald_table
from glmfit.saga.walk import certify_smoothness
from glmfit.solvers import SAGA, LoopOptions, Newton

LINKS = {
    "softplus": (lambda e: np.logaddexp(0, e), lambda e: np.log(np.logaddexp(0, e))),
    "exp": (np.exp, lambda e: e),
}


def make(link, seed=0, T=600, d=3, n=4, per_neuron=True):
    """Rows, counts, offsets of spread 1."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(T, d)) @ rng.normal(size=(d, d))
    offset = rng.normal(size=(T, n if per_neuron else 1))
    coef = 0.3 * rng.normal(size=(d, n))
    Y = rng.poisson(LINKS[link][0](X @ coef - 1 + offset)).astype(float)
    return X, Y, offset


def optimum(link, X, Y, offset, strength, weights):
    """Best value of F of every neuron by SciPy, and the parameters there, in float64."""
    rate, log_rate = LINKS[link]
    share = weights / weights.sum()
    found = []
    for i in range(Y.shape[1]):
        o = offset[:, min(i, offset.shape[1] - 1)]

        def F(p, i=i, o=o):
            eta = X @ p[:-1] + p[-1] + o
            return share @ (rate(eta) - Y[:, i] * log_rate(eta)) + strength / 2 * p[:-1] @ p[:-1]

        start = np.append(np.zeros(X.shape[1]), -1.0)
        found.append(scipy.optimize.minimize(F, start, method="BFGS", options={"gtol": 1e-9}))
    return np.array([f.fun for f in found]), np.array([f.x for f in found]).T


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("solver", [SAGA(batch_size=60), Newton()], ids=lambda s: type(s).__name__)
def test_every_solver_finds_the_optimum_and_its_bound_holds(link, solver):
    X, Y, offset = make(link)
    weights = np.random.default_rng(1).uniform(0.2, 2, len(X))
    observation = observations.from_inverse_link(link)
    problem = PopulationProblem(X, Y, observation, penalties.Ridge(1e-2), weights, np.float32, offset)
    best, at = optimum(link, X, Y, offset, 1e-2, weights)
    loose = LoopOptions(tol=1e-3, negligible=1e-30)
    for options in (loose, LoopOptions(tol=1e-7, negligible=1e-4)):
        solution = solver.run(problem, key=jax.random.key(0), options=options)
        assert solution.gap_is_bound.all()
        # SciPy approaches the optimum from above, to about 1e-12.
        assert np.all(solution.objective - best <= solution.gap + 1e-10)
        assert np.all(solution.gap <= solution.target)
    np.testing.assert_allclose(solution.params.coef, at[:-1], atol=5e-3)
    np.testing.assert_allclose(solution.params.intercept, at[-1], atol=5e-3)


@pytest.mark.parametrize("link", LINKS)
def test_the_null_model_is_the_best_intercept_given_the_offset(link):
    X, Y, offset = make(link, per_neuron=False)
    Y[:, 2] = 0
    problem = PopulationProblem(
        X, Y, observations.from_inverse_link(link), penalties.Ridge(1.0), None, np.float32, 3 * offset
    )
    null = problem.null_params()
    at = problem.evaluate(null)
    np.testing.assert_allclose(at.objective, problem.null_objective, rtol=1e-13)
    np.testing.assert_allclose(at.grad_intercept, 0, atol=1e-12)
    assert np.exp(null.intercept[2] + 3 * offset.max()) < 1e-100  # silent, whatever the offset


def test_the_null_model_is_found_for_extreme_offsets():
    rng = np.random.default_rng(3)
    Y, offset = rng.poisson(2.0, (300, 2)).astype(float), 40 * rng.standard_cauchy((300, 1)).clip(-20, 20)
    for link in LINKS:
        problem = PopulationProblem(
            np.ones((300, 1)), Y, observations.from_inverse_link(link), penalties.Ridge(1.0), None, np.float32, offset
        )
        at = problem.evaluate(problem.null_params())
        assert np.all(np.abs(at.grad_intercept) < 1e-9 * (1 + Y.mean()))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("link", LINKS)
def test_certified_smoothness_of_blocks_is_above_the_exact_one(link):
    X, Y, offset = make(link, T=240)
    observation = observations.from_inverse_link(link)
    problem = PopulationProblem(X, Y, observation, penalties.Ridge(1e-2), None, np.float32, offset)
    view = seen_by_saga(problem)
    rows = view.rows(40, 0)
    v, metric = view.to_columns(problem.null_params()), view.metric(rows, problem.null_curvature)
    radius = np.full(problem.n_neurons, 0.5)
    _, block, _ = certify_smoothness(view, rows, v, radius, metric, 6, 1e-6, 0, 1)
    Z, Y_, w, o = (np.asarray(a, float) for a in rows.blocks)
    for i in range(problem.n_neurons):
        scale = np.diag(np.asarray(metric.scale, float)[:, i])
        S = np.eye(len(scale))
        S[-1, :-1] = -np.asarray(metric.centre, float)[:, i]  # v -> v with the intercept shifted
        root = S @ np.sqrt(scale)
        eta = Z @ np.asarray(v, float)[:, i] + o[:, :, i]
        bend = np.max([observation.curvature(Y_[:, :, i], eta + s) for s in np.linspace(-0.5, 0.5, 41)], axis=0)
        largest = [
            np.linalg.eigvalsh(
                root.T @ (z.T * (q * b[:, 0]) @ z / len(z) + np.diag(np.asarray(rows.ridge)[:, i])) @ root
            )[-1]
            for z, q, b in zip(Z, bend, w, strict=True)
        ]
        assert block[i] >= max(largest) * (1 - 1e-6)
        assert block[i] <= 1.5 * max(largest)


def test_an_offset_of_one_column_is_that_column_for_every_neuron():
    X, Y, offset = make("softplus", per_neuron=False)
    fits = [
        PopulationGLM(regularizer_strength=1e-2).fit(X, Y, offset=o) for o in (offset[:, 0], np.repeat(offset, 4, 1))
    ]
    np.testing.assert_array_equal(fits[0].coef_, fits[1].coef_)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver_name", ["SAGA", "Newton"])
def test_exposure_with_the_exponential_link_is_its_logarithm_as_an_offset(solver_name):
    X, Y, _ = make("exp")
    exposure = np.random.default_rng(2).uniform(0.05, 1.5, len(X))
    common = {"regularizer": "UnRegularized", "solver_name": solver_name, "tol": 1e-9}
    by_exposure = PopulationGLM("exp", **common).fit(X, Y, exposure=exposure)
    by_offset = PopulationGLM("exp", **common).fit(X, Y, offset=np.log(exposure))
    assert by_exposure.report_.gap_is_bound.all() and by_offset.report_.gap_is_bound.all()
    np.testing.assert_allclose(by_exposure.coef_, by_offset.coef_, atol=2e-3)
    np.testing.assert_allclose(by_exposure.intercept_, by_offset.intercept_, atol=2e-3)
    for score_type in ("D2", "log-likelihood"):
        a = by_exposure.score(X, Y, score_type=score_type, exposure=exposure, per_neuron=True)
        b = by_offset.score(X, Y, score_type=score_type, offset=np.log(exposure), per_neuron=True)
        # D2's null models agree for this link, and so do the probabilities of counts.
        np.testing.assert_allclose(a, b, rtol=1e-5)
    a = wald_table(by_exposure, X, Y, exposure=exposure)
    b = wald_table(by_offset, X, Y, offset=np.log(exposure))
    np.testing.assert_allclose(a.standard_error, b.standard_error, rtol=1e-3)
    np.testing.assert_allclose(a.dispersion, b.dispersion, rtol=1e-3)
    a, b = (
        drop_groups(m, X, Y, **k)
        for m, k in ((by_exposure, {"exposure": exposure}), (by_offset, {"offset": np.log(exposure)}))
    )
    np.testing.assert_allclose(a.statistic, b.statistic, rtol=1e-3, atol=1e-4)


@pytest.mark.thorough
def test_exposure_is_the_likelihood_of_the_counts_of_partial_bins():
    """Two parts of a bin with the same features equal one bin: only exposure expresses this."""
    X, Y, _ = make("softplus")
    rng = np.random.default_rng(4)
    first = rng.binomial(Y.astype(int), 0.3)
    halves = np.vstack([X, X]), np.vstack([first, Y - first])
    exposure = np.repeat([0.3, 0.7], len(X))
    common = {"regularizer_strength": 1e-3, "tol": 1e-9}
    whole = PopulationGLM(**common).fit(X, Y)
    split = PopulationGLM(**common).fit(*halves, exposure=exposure)
    np.testing.assert_allclose(split.coef_, whole.coef_, atol=1e-4)
    np.testing.assert_allclose(split.report_.objective, whole.report_.objective, rtol=1e-6)
    np.testing.assert_allclose(wald_table(split, *halves, exposure=exposure).standard_error,
                               wald_table(whole, X, Y).standard_error, rtol=1e-3)  # fmt: skip
    counts = np.stack([split.simulate(X, random_state=s, exposure=np.full(len(X), 0.3)) for s in range(40)])
    np.testing.assert_allclose(counts.mean(axis=(0, 1)), 0.3 * split.predict(X).mean(axis=0), rtol=0.05)


def test_predictions_take_an_offset_and_silent_neurons_stay_silent():
    X, Y, offset = make("softplus")
    Y[:, 1] = 0
    model = PopulationGLM(regularizer_strength=1e-3).fit(X, Y, offset=offset)
    expected = np.logaddexp(0, X @ model.coef_ + model.intercept_ + offset)
    rate = model.predict(X, offset=offset)
    np.testing.assert_allclose(rate[:, [0, 2, 3]], expected[:, [0, 2, 3]], rtol=1e-12)
    np.testing.assert_array_equal(rate[:, 1], 0)
    with_it = model.score(X, Y, offset=offset, per_neuron=True)
    without = model.score(X, Y, per_neuron=True)
    assert np.all(with_it[[0, 2, 3]] > without[[0, 2, 3]])
    np.testing.assert_allclose(with_it[0], model.report_.pseudo_r2[0], rtol=1e-5)


def test_rows_with_a_missing_offset_or_without_exposure_are_dropped():
    X, Y, offset = make("softplus", per_neuron=False)
    offset[5] = np.nan
    model = PopulationGLM(regularizer_strength=1e-2).fit(X, Y, offset=offset[:, 0])
    assert model.report_.n_dropped == 1
    kept = np.arange(len(X)) != 5
    same = PopulationGLM(regularizer_strength=1e-2).fit(X[kept], Y[kept], offset=offset[kept, 0])
    np.testing.assert_array_equal(model.coef_, same.coef_)
    exposure = np.ones(len(X))
    exposure[7], Y[7] = 0, 0
    a = PopulationGLM(regularizer_strength=1e-2).fit(X, Y, exposure=exposure)
    b = PopulationGLM(regularizer_strength=1e-2).fit(np.delete(X, 7, 0), np.delete(Y, 7, 0))
    np.testing.assert_allclose(a.coef_, b.coef_, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"offset": np.zeros(5)}, r"offset has shape \(5,\)"),
        ({"offset": np.full(600, -np.inf)}, "pass exposure"),
        ({"offset": np.array(["a"] * 600)}, "offset has dtype"),
        ({"exposure": np.zeros(5)}, r"exposure has shape \(5,\)"),
        ({"exposure": np.full(600, -1.0)}, "exposure is -1 at row 0"),
        ({"exposure": np.full(600, np.nan)}, "exposure is nan at row 0"),
        ({"exposure": np.zeros(600)}, "has spikes but exposure 0"),
    ],
)
def test_errors_report_what_was_given(given, message):
    X, Y, _ = make("softplus")
    with pytest.raises(ValueError, match=message):
        PopulationGLM().fit(X, Y, **given)


def test_the_best_intercept_is_found_when_newton_arrives_from_below():
    """Offsets of several units: at the optimum the slope may be 0 to the last bit or just below it."""
    offset = np.array([0.8, 8.2, 5, 4, 2.4, -6, 2.4, 6.4])[:, None]
    Y = np.array([0, 8, 5, 2, 0, 0, 2, 7.0])[:, None]
    cases = [(Y, offset)]
    for seed in range(60):
        rng = np.random.default_rng(seed)
        off = rng.normal(size=(40, 2)) * rng.choice([2, 5])
        cases.append((rng.poisson(np.logaddexp(0, off)).astype(float), off))
    for Y, off in cases:
        for link in LINKS:
            X, penalty = np.ones((len(Y), 1)), penalties.Ridge(1.0)
            problem = PopulationProblem(X, Y, observations.from_inverse_link(link), penalty, None, np.float32, off)
            at = problem.evaluate(problem.null_params())
            assert np.all(np.abs(at.grad_intercept) < 1e-9 * (1 + Y.max()))


@pytest.mark.parametrize("unit", [1000.0, 1e-3])
def test_the_tolerance_of_a_hundredth_nat_does_not_depend_on_the_unit_of_exposure(unit):
    rng = np.random.default_rng(5)
    X = rng.normal(size=(4000, 5))
    y = rng.poisson(0.3 * np.exp(X @ [0.08, 0.06, 0, 0, 0]))  # features that hardly matter

    def nats(model, exposure):
        eta = X @ model.coef_ + model.intercept_ + np.log(exposure)
        return np.sum(np.exp(eta) - y * eta)

    best = PopulationGLM("exp", "UnRegularized", solver_name="Newton", tol=1e-12).fit(X, y)
    model = PopulationGLM("exp", "UnRegularized", solver_name="Newton").fit(X, y, exposure=np.full(4000, unit))
    assert model.report_.converged.all()
    assert model.report_.target[0] * 4000 * unit <= 0.0101
    assert nats(model, unit) - nats(best, 1.0) <= 0.0101


def test_spikes_are_counted_as_given_whatever_their_weight_and_exposure():
    X, Y, _ = make("exp")
    rng = np.random.default_rng(6)
    exposure, weight = rng.uniform(0.5, 2, len(X)), rng.integers(0, 3, len(X))
    report = PopulationGLM("exp", solver_name="Newton").fit(X, Y, sample_weight=weight, exposure=exposure).report_
    np.testing.assert_array_equal(report.spike_count, Y[weight > 0].sum(axis=0))


def test_the_precision_of_counts_does_not_change_the_fit():
    """Counts per unit of exposure, if in float32, would have a different optimum from the one that is bounded."""
    X, Y, _ = make("exp")
    exposure = np.random.default_rng(3).uniform(0.05, 1, len(X))
    single, double = (PopulationGLM("exp").fit(X, Y.astype(t), exposure=exposure) for t in (np.float32, np.float64))
    np.testing.assert_array_equal(single.coef_, double.coef_)
