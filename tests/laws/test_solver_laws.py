"""Laws of every solver: the optimum, a valid distance from it, independent neurons, reproducible answers."""

import jax
import numpy as np
import pytest
from cases import GROUPS, OBSERVATIONS, SOLVERS, D, N, T, problem, recording
from oracles import population as oracle
from sklearn.base import clone

from glmfit import PopulationGLM, Status, observations, penalties, solvers
from glmfit.engine.loop import Run
from glmfit.engine.population import PopulationProblem
from glmfit.engine.problem import Params
from glmfit.saga import walk as saga
from glmfit.saga.solver import SagaDescent
from glmfit.solvers import SAGA, LoopOptions, Newton

every_link = pytest.mark.parametrize("link", OBSERVATIONS)
every_solver = pytest.mark.parametrize("solver", SOLVERS)
NON_SMOOTH = {
    "lasso": ("Lasso", {"strength": 0.03}),
    "elastic net": ("ElasticNet", {"strength": 0.05, "ratio": 0.6}),
    "group lasso": ("GroupLasso", {"strength": 0.05, "groups": GROUPS}),
}
KEY = jax.random.key(3)
RIDGE = 1e-3


def solve(solver, at, tol=1e-8, key=KEY, params=None, **options):
    return solver.run(at, params, key=key, options=LoopOptions(tol=tol, **options))


def descent_of(solver, at, seed=3):
    """SAGA of all neurons, at its start."""
    run = Run(at, LoopOptions(), seed, begin=lambda *given: SagaDescent(solver, at, seed, given[-1], *given[:-1]))
    run._begin()
    fits = np.arange(at.n_neurons)
    return run.descent(run.rows(fits), fits)


def advance(descent):
    every = np.ones(len(descent.intercept), bool)
    return descent.advance(every, np.zeros(len(every)), 10_000)


def true_gap(link, X, Y, solution, best, name="Ridge", weights=None, **numbers):
    numbers = numbers or {"strength": RIDGE}
    return oracle.objective(link, X, Y, *solution.params, weights, name, **numbers) - best.objective


def honest(solution, gap):
    """No bound is below the true gap, which is known to rounding."""
    rounding = 1e-15 * (1 + np.abs(solution.objective))
    return np.all((solution.gap >= gap - rounding) | ~solution.gap_is_bound)


def same_bits(a, b):
    """Whether two trees hold the same bits (nan = nan)."""
    leaves = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
    return all(np.array_equal(np.asarray(x), np.asarray(y), equal_nan=_is_float(x)) for x, y in leaves)


def _is_float(x):
    return np.asarray(x).dtype.kind == "f"


# ------------------------------------------------------------------------- the optimum, and the way there


@pytest.mark.thorough(cases=8)
@every_solver
@every_link
def test_every_solver_reaches_the_optimum_and_reports_how_close_it_is(solver, link):
    if link == "exp" and solver == "saga global":
        pytest.skip("refused: its curvature has no bound")
    X, Y = recording(link)
    weights = np.random.default_rng(1).choice([0.0, 1.0, 2.0], T)
    best = oracle.newton(link, X, Y, RIDGE, weights)
    solution = solve(SOLVERS[solver], problem(link, X, Y, weights=weights, strength=RIDGE))
    gap = true_gap(link, X, Y, solution, best, weights=weights)
    assert np.all(solution.status == Status.CONVERGED)
    assert np.all(solution.gap_is_bound) and honest(solution, gap)
    assert np.all(solution.gap <= solution.target) and np.all(gap <= solution.target)
    np.testing.assert_allclose(solution.objective - best.objective, gap, atol=1e-14)
    np.testing.assert_allclose(solution.params.coef, best.coef, atol=2e-3 * np.abs(best.coef).max())
    null = oracle.objective(link, X, Y, np.zeros((D, N)), oracle.null_intercept(link, Y, weights), weights)
    np.testing.assert_allclose(solution.null_objective, null, rtol=1e-12)
    allowed = np.maximum(1e-8 * (null - solution.objective), 1e-4 / T)
    np.testing.assert_allclose(solution.target, allowed, rtol=1e-6)
    assert solution.row_evals >= T * solution.epochs.max()


@pytest.mark.thorough
def test_a_global_certificate_is_refused_if_the_curvature_has_no_bound():
    X, Y = recording("exp")
    with pytest.raises(ValueError, match=r"the exp link has no global bound .*anchored"):
        solve(SAGA(certificate="global"), problem("exp", X, Y, strength=RIDGE))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("penalty", NON_SMOOTH)
def test_saga_solves_non_smooth_penalties_to_their_optimality_conditions(penalty):
    """Identity 13: smallest subgradient at most 1e-6 (a few 1e-8 at the limit of float32), exact zeros."""
    check_optimality(penalty, np.float32, tol=1e-13, residual=1e-6)
    check_optimality(penalty, np.float32, tol=1e-15, residual=5e-6 * NON_SMOOTH[penalty][1]["strength"])


@pytest.mark.parametrize("penalty", NON_SMOOTH)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_newton_solves_non_smooth_penalties_to_their_optimality_conditions(penalty, dtype):
    """In double precision, whatever the precision of the data."""
    check_optimality(penalty, dtype, tol=1e-13, residual=1e-8, solver=Newton())


@pytest.mark.slow
def test_double_precision_solves_the_group_lasso_to_1e_6_of_its_strength(x64):
    """After single precision in the same process, which once broke the index arrays of the groups."""
    check_optimality("group lasso", np.float64, tol=2e-16, residual=1e-6 * NON_SMOOTH["group lasso"][1]["strength"])


def check_optimality(penalty, dtype, tol, residual, solver=None):
    name, numbers = NON_SMOOTH[penalty]
    X, Y = recording(seed=2, size=0.3)
    X[:, 1] = X[:, 0] + 0.1 * X[:, 1]  # correlated: diagonal proximal steps would crawl
    best = oracle.proximal("softplus", X, Y, name, **numbers)
    assert best.residual.max() < 1e-11
    at = problem("softplus", X, Y, name, dtype=dtype, **numbers)
    solution = solve(solver or SAGA(), at, tol=tol, max_epochs=400)
    assert np.all((solution.status == Status.CONVERGED) | (solution.status == Status.PRECISION_FLOOR))
    assert honest(solution, true_gap("softplus", X, Y, solution, best, name, **numbers))
    params = [solution.params]
    if solver is None:  # SAGA alone would reach what the engine finishes exactly
        descent = descent_of(SAGA(), at)
        for _ in range(130):
            advance(descent)
        params.append(descent.walk.params)
    for found in params:
        gap = oracle.objective("softplus", X, Y, *found, None, name, **numbers) - best.objective
        assert np.all(gap < 1e-10)
        assert np.all(oracle.kkt_residual("softplus", X, Y, *found, name, **numbers) <= residual)
        np.testing.assert_array_equal(found.coef == 0, best.coef == 0)
    assert np.any(best.coef == 0) and np.any(best.coef != 0)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["saga", "newton"])
def test_a_ridge_per_coefficient_is_that_of_the_rescaled_features(solver):
    X, Y = recording()
    strength = np.array([0.003, 0.01, 0.03, 0.1, 0.3])
    best = oracle.newton("softplus", X / np.sqrt(strength), Y, 1.0)
    numbers = {"strength": np.tile(strength[:, None], (1, N))}
    solution = solve(SOLVERS[solver], problem("softplus", X, Y, **numbers))
    gap = true_gap("softplus", X, Y, solution, best, **numbers)
    assert np.all(solution.status == Status.CONVERGED) and solution.gap_is_bound.all()
    assert honest(solution, gap) and np.all(gap <= solution.target)
    expected = best.coef / np.sqrt(strength)[:, None]
    np.testing.assert_allclose(solution.params.coef, expected, atol=2e-3 * np.abs(expected).max())


@pytest.mark.thorough
@every_solver
def test_many_fits_that_end_at_different_times_are_those_alone(solver):
    """Groups of fits are split on the way: whatever a solver keeps for each fit is split with them."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(300, 4))
    X[:, 3] += 3 * X[:, 2]
    Y = rng.poisson(np.exp(X @ rng.normal(scale=0.4, size=(4, 150)) - 1)).astype(np.float64)
    strength = np.where(np.arange(150) < 100, 10.0, 1e-5)
    solution = solve(SOLVERS[solver], problem("softplus", X, Y, strength=strength))
    assert np.all(solution.status == Status.CONVERGED) and solution.gap_is_bound.all()
    for i in (0, 99, 100, 149):
        alone = solve(SOLVERS[solver], problem("softplus", X, Y[:, [i]], strength=strength[[i]]))
        apart = np.abs(solution.objective[i] - alone.objective[0])
        assert apart <= solution.gap[i] + alone.gap[0]


@pytest.mark.thorough(cases=1)
@every_link
def test_the_estimate_on_the_way_is_within_a_factor_of_two_of_the_gap(link):
    """Identity 11, rates 0.02 to 1."""
    solver = SAGA(check_every=1)
    for seed in range(3):
        X, Y = recording(link, seed=seed, rate=np.array([0.02, 0.1, 1.0]), size=0.3)
        best = oracle.newton(link, X, Y, RIDGE)
        at = problem(link, X, Y, strength=RIDGE)
        descent = descent_of(solver, at)
        for _ in range(12):
            advance(descent)
            gap = oracle.objective(link, X, Y, *descent.walk.params, strength=RIDGE) - best.objective
            seen = gap > 1e-11
            assert np.all((descent.estimate >= 0.5 * gap)[seen] & (descent.estimate <= 2 * gap)[seen])


@pytest.mark.slow
def test_double_precision_reaches_gaps_of_1e_12(x64):
    X, Y = recording(seed=5)
    best = oracle.newton("softplus", X, Y, RIDGE)
    at = problem("softplus", X, Y, dtype=np.float64, strength=RIDGE)
    solution = solve(SAGA(), at, tol=1e-14)
    assert np.all(solution.status == Status.CONVERGED)
    gap = true_gap("softplus", X, Y, solution, best)
    assert honest(solution, gap) and np.all(gap < 1e-12) and np.all(solution.gap < 1e-12)


# ------------------------------------------------------------------------- steps


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("sampling", ["partition", "subsets"])
@pytest.mark.parametrize("strength", [100.0, 1e6])
def test_a_strong_ridge_does_not_diverge(sampling, strength):
    """Identity 6: a step that ignores the ridge diverges from 8 L(b) on."""
    X, Y = recording()
    best = oracle.newton("softplus", X, Y, strength)
    at = problem("softplus", X, Y, strength=strength)
    solver = SAGA(sampling=sampling)
    descent = descent_of(solver, at)
    before = at.null_objective
    for _ in range(6):
        advance(descent)
        objective = oracle.objective("softplus", X, Y, *descent.walk.params, strength=strength)
        assert np.all(objective <= before * (1 + 1e-6))
    solution = solve(solver, at)
    assert np.all(solution.status == Status.CONVERGED)
    assert np.all(true_gap("softplus", X, Y, solution, best, strength=strength) <= solution.target)


@pytest.mark.thorough
def test_double_steps_work_and_are_labelled_uncertified():
    X, Y = recording()
    best = oracle.newton("softplus", X, Y, RIDGE)
    at = problem("softplus", X, Y, strength=RIDGE)
    single, double = (solve(SAGA(step_scale=s), at) for s in (1.0, 2.0))
    assert np.all(double.status == Status.CONVERGED)
    assert honest(double, true_gap("softplus", X, Y, double, best))
    assert single.step_certificate.certified and not double.step_certificate.certified
    assert double.step_certificate.theorem.startswith("no theorem: 2 times the step of")
    assert "NOT certified" in str(double.step_certificate)


def test_shuffled_blocks_are_labelled_as_having_no_theorem():
    X, Y = recording()
    at = problem("softplus", X, Y, strength=RIDGE)
    certificate = solve(SAGA(sampling="shuffle"), at).step_certificate
    assert not certificate.certified and certificate.theorem.startswith("no theorem")


@pytest.mark.parametrize("sampling", ["partition", "subsets"])
def test_the_step_is_the_one_of_its_theorem(sampling):
    X, Y = recording()
    c = solve(SAGA(sampling=sampling), problem("softplus", X, Y, strength=RIDGE)).step_certificate
    b = c.batch_size
    assert c.certified and c.n_rows == T and b == 200 and np.all(c.mu == 0)
    if sampling == "partition":
        expected = 1 / (4 * c.L_b)
    else:
        noise = (T - b) / (b * (T - 1)) * c.L_max
        np.testing.assert_allclose(c.L_b, c.L * T / b * (b - 1) / (T - 1) + noise, rtol=1e-12)
        expected = 1 / (4 * np.maximum(c.L_b, noise))
    np.testing.assert_allclose(c.step, expected, rtol=1e-12)
    assert np.all(c.L <= c.L_b) and np.all(c.L_b <= c.L_max)


# ------------------------------------------------------------------------- anchored certificates


@pytest.mark.thorough(cases=1)
@every_link
def test_leaving_the_certified_set_is_detected_and_certified_again(link):
    """A radius far too small and a start far away: sets are left repeatedly, and the objective kept never rises."""
    X, Y = recording(link)
    best = oracle.newton(link, X, Y, RIDGE)
    at = problem(link, X, Y, strength=RIDGE)
    far = Params(best.coef + 0.5, best.intercept - 2 - 0.5 * X.mean(axis=0).sum())
    solution = solve(SAGA(radius=1e-3, warmup=0, check_every=1), at, params=far, tol=1e-6)
    assert np.all(solution.status == Status.CONVERGED)
    assert honest(solution, true_gap(link, X, Y, solution, best))
    objective = solution.history["objective"]
    assert np.all(np.diff(objective, axis=0) <= 2e-6 * (1 + np.abs(objective[:-1])))
    assert "left and were certified again: 3" in solution.step_certificate.assumptions[1]


@pytest.mark.thorough
def test_rising_outside_of_the_set_is_undone_and_the_radius_grows():
    """With a step a thousand times too long every epoch ends outside and higher: nothing of it is kept."""
    X, Y = recording("exp", rate=5.0)
    at = problem("exp", X, Y, strength=RIDGE)
    solver = SAGA(check_every=1)
    walk = descent_of(solver, at).walk
    before, objective = walk.params, walk.objective
    walk.step = wild = 1000 * walk.step
    walk.visit(np.ones(N, bool), 1)
    np.testing.assert_array_equal(walk.params.coef, before.coef)
    np.testing.assert_array_equal(walk.objective, objective)
    np.testing.assert_allclose(walk.radius, 1.5 * solver.radius)
    assert np.all(walk.step < wild / 500) and np.all(walk.left == 1) and walk.n_certificates == 2


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [1.0, 1e3])
def test_the_exponential_link_never_diverges_from_the_null_model(rate):
    rng = np.random.default_rng(8)
    X = rng.normal(size=(T, D))
    eta = X @ rng.normal(size=(D, N)) * 0.4 + np.log(rate)
    Y = rng.poisson(np.exp(eta)).astype(float)
    best = oracle.newton("exp", X, Y, RIDGE)
    solution = solve(SAGA(), problem("exp", X, Y, strength=RIDGE), tol=1e-6)
    assert np.all(solution.status == Status.CONVERGED)
    gap = true_gap("exp", X, Y, solution, best)
    assert honest(solution, gap) and np.all(gap <= solution.target)
    objective = solution.history["objective"]
    assert np.all(np.diff(objective, axis=0) <= 2e-6 * (1 + np.abs(objective[:-1])))


# ------------------------------------------------------------------------- resuming


def test_a_newton_fit_resumes_after_the_neurons_in_its_checkpoint(tmp_path, monkeypatch):
    """Neurons proved before an interruption are not fitted again, and the answer is the same bit for bit."""
    X, Y = recording()
    model = PopulationGLM(regularizer_strength=RIDGE, solver_name="Newton")
    whole, finish, fitted = clone(model).fit(X, Y), PopulationProblem.finish_neuron, []

    def interrupted(self, params, neuron, *args, **how):
        if fitted == [0]:
            raise SystemExit
        fitted.append(neuron)
        return finish(self, params, neuron, *args, **how)

    file = tmp_path / "fit.npz"
    monkeypatch.setattr(PopulationProblem, "finish_neuron", interrupted)
    with pytest.raises(SystemExit):
        model.fit(X, Y, checkpoint=file)
    fitted.clear()
    fitted.append("later")
    model.fit(X, Y, checkpoint=file)
    assert fitted == ["later", *range(1, N)]
    np.testing.assert_array_equal(model.coef_, whole.coef_)
    np.testing.assert_array_equal(model.report_.gap, whole.report_.gap)


def test_the_same_seed_gives_the_same_bits_and_another_the_same_optimum():
    X, Y = recording()
    best = oracle.newton("softplus", X, Y, RIDGE)
    first, again, other = (
        solve(SAGA(), problem("softplus", X, Y, strength=RIDGE), key=jax.random.key(seed)) for seed in (1, 1, 2)
    )
    assert same_bits(first.params, again.params) and same_bits(first.gap, again.gap)
    assert not same_bits(first.params, other.params)
    assert np.all(true_gap("softplus", X, Y, other, best) <= other.target)


# ------------------------------------------------------------------------- independence of neurons


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["saga", "newton"])
def test_permuting_neurons_permutes_the_answer(solver):
    X, Y = recording()
    order = np.array([2, 0, 1])
    plain, permuted = (solve(SOLVERS[solver], problem("softplus", X, y, strength=RIDGE)) for y in (Y, Y[:, order]))
    np.testing.assert_allclose(permuted.params.coef, plain.params.coef[:, order], atol=2e-4)
    allowed = plain.target[order] + permuted.target
    assert np.all(np.abs(permuted.objective - plain.objective[order]) <= allowed)
    if solver == "newton":
        assert same_bits(permuted.params, Params(plain.params.coef[:, order], plain.params.intercept[order]))


@pytest.mark.parametrize("solver", [pytest.param("saga", marks=pytest.mark.slow), "newton"])
def test_fitting_neurons_and_strengths_together_equals_fitting_them_apart(solver):
    """Identity 8."""
    X, Y = recording()
    strengths = np.array([1e-4, 1e-2, 1.0])
    together = solve(SOLVERS[solver], problem("softplus", X, Y, strength=strengths))
    for n in range(N):
        apart = solve(SOLVERS[solver], problem("softplus", X, Y[:, [n]], strength=strengths[[n]]))
        assert abs(apart.objective[0] - together.objective[n]) <= apart.target[0] + together.target[n]
        np.testing.assert_allclose(apart.params.coef[:, 0], together.params.coef[:, n], atol=2e-3)


POISON = {"1e38 counts": 1e38, "nan": np.nan, "inf": np.inf}


@pytest.mark.thorough
@pytest.mark.parametrize("poison", POISON)
def test_a_poisoned_neuron_leaves_the_bits_of_the_others_alone(poison):
    """At every epoch of SAGA; the healthy neurons then converge and the poisoned one does not."""
    X, Y = (a.astype(np.float32) for a in recording())
    sick = Y.copy()
    sick[17, 1] = POISON[poison]
    healthy = [0, 2]
    solver = SAGA(check_every=2)
    runs = []
    with np.errstate(all="ignore"):
        for counts in (Y, sick):
            at = problem("softplus", X, counts, strength=RIDGE)
            descent, trace = descent_of(solver, at), []
            for _ in range(6):
                advance(descent)
                trace.append(np.asarray(descent.walk.v)[:, healthy])
            runs.append(trace)
        assert same_bits(*runs)
        solution = solve(solver, problem("softplus", X, sick, strength=RIDGE))
    best = oracle.newton("softplus", X, Y, RIDGE)
    sick_status = Status.UNPROVED if np.isfinite(POISON[poison]) else Status.NON_FINITE
    assert solution.status.tolist() == [Status.CONVERGED, sick_status, Status.CONVERGED]
    kept = Params(solution.params.coef[:, healthy], solution.params.intercept[healthy])
    gap = oracle.objective("softplus", X, Y[:, healthy], *kept, strength=RIDGE) - best.objective[healthy]
    assert np.all(gap <= solution.target[healthy]) and np.all(solution.gap[healthy] >= gap)


def test_a_poisoned_neuron_leaves_the_others_alone_with_newton():
    X, Y = recording()
    sick = Y.copy()
    sick[17, 1] = np.nan
    with np.errstate(all="ignore"):
        plain, poisoned = (solve(Newton(), problem("softplus", X, y, strength=RIDGE)) for y in (Y, sick))
    assert poisoned.status.tolist() == [Status.CONVERGED, Status.NON_FINITE, Status.CONVERGED]
    assert same_bits(poisoned.params.coef[:, [0, 2]], plain.params.coef[:, [0, 2]])


@pytest.mark.thorough
@pytest.mark.parametrize("solver", ["saga", "newton"])
def test_a_silent_neuron_is_reported_and_never_fitted(solver):
    X, Y = recording()
    Y[:, 1] = 0
    solution = solve(SOLVERS[solver], problem("softplus", X, Y, strength=RIDGE))
    assert solution.status.tolist() == [Status.CONVERGED, Status.NO_SPIKES, Status.CONVERGED]
    assert np.all(np.isfinite(solution.params.coef)) and np.all(solution.params.coef[:, 1] == 0)


@pytest.mark.parametrize("solver", ["saga", "newton"])
def test_a_separable_neuron_is_reported_as_separable(solver):
    """It fires only where a feature is high, and always there: no finite optimum without a penalty."""
    X, Y = recording()
    X[:, 0] = np.arange(T) % 4 == 0
    Y[:, 1] = X[:, 0]
    solution = solve(SOLVERS[solver], problem("softplus", X, Y, strength=0.0), max_epochs=300)
    assert solution.status.tolist() == [Status.CONVERGED, Status.SEPARABLE, Status.CONVERGED]
    assert not solution.gap_is_bound[1]
    with_ridge = solve(SOLVERS[solver], problem("softplus", X, Y, strength=1e-3))
    assert np.all(with_ridge.status == Status.CONVERGED)


@pytest.mark.parametrize("solver", ["saga", "newton"])
def test_a_neuron_silent_in_a_tenth_of_the_rows_has_no_optimum_either(solver):
    X, Y = recording()
    X[:, 0] = np.arange(T) % 10 == 0
    Y[X[:, 0] == 1, 1] = 0
    solution = solve(SOLVERS[solver], problem("softplus", X, Y, strength=0.0), max_epochs=300)
    assert solution.status.tolist() == [Status.CONVERGED, Status.SEPARABLE, Status.CONVERGED]
    assert not solution.gap_is_bound[1]


def test_penalising_every_coefficient_gives_every_neuron_an_optimum():
    """A neuron diverges along a direction that silences it only if no penalty holds that direction."""
    X = recording()[0]
    X[:, 0] = np.arange(T) % 4 == 0
    some = np.r_[0.0, np.full(D - 1, 1e-6)][:, None]  # no penalty on the feature along which it diverges
    for penalty, separable in (
        (penalties.NoPenalty(), True),
        (penalties.Ridge(1e-6), False),
        (penalties.Lasso(1e-6), False),
        (penalties.Lasso(some), True),
        (penalties.ElasticNet(1e-6, 0.5), False),
        (penalties.GroupLasso(1e-6, (0,) * D), False),
        (penalties.GroupLasso(1e-6, (-1,) + (0,) * (D - 1)), True),
    ):
        one = PopulationProblem(X, X[:, :1], observations.from_inverse_link("softplus"), penalty)
        assert one.is_separable(0) == separable, penalty


# ------------------------------------------------------------------------- large counts, single precision


@pytest.mark.parametrize("mean", [1e3, 1e4, 1e6])
def test_large_counts_take_few_steps_and_the_bound_covers_rounding(mean):
    """Predictors must move by thousands of units; the objective is known only to some units in the last place."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(3000, 2))
    y = rng.poisson(mean * np.exp(0.3 * X[:, 0] + 0.5 * rng.normal(size=3000)))
    model = PopulationGLM(regularizer="UnRegularized").fit(X, y)
    report = model.report_
    assert report.gap_is_bound.all() and report.epochs[0] < 40
    exact = np.float128 if hasattr(np, "float128") else np.longdouble

    def objective(coef, intercept):
        eta = X.astype(exact) @ coef + intercept
        rate = np.logaddexp(exact(0), eta)
        return np.mean(rate - y * np.log(rate)), np.mean((1 - y / rate) / (1 + np.exp(-eta)))

    coef, intercept = model.coef_.astype(exact), exact(model.intercept_)
    here, slope = objective(coef, intercept)
    assert abs(here - exact(report.objective[0])) <= report.gap[0]
    lower = min(objective(coef, intercept - slope * step)[0] for step in (1, 10, 100) * np.array(mean))
    assert here - lower <= report.gap[0]


def test_the_target_gap_is_not_smaller_than_rounding():
    """Rounding does not loosen the target of parameters that diverged."""
    X, Y = recording()
    solution = solve(SOLVERS["newton"], problem("softplus", X, Y, strength=RIDGE), tol=1e-16, negligible=0.0)
    assert np.all(solution.status == Status.CONVERGED) and np.all(solution.gap_is_bound)
    assert np.all(solution.gap <= solution.target) and np.all(solution.target < 1e-13)
    far = problem("softplus", X, Y, strength=RIDGE)
    run = Run(far, LoopOptions(tol=1e-16, negligible=0.0), seed=0)
    run.params = Params(np.full((D, N), 1e30), np.zeros(N))
    assert np.all(run._targets(np.arange(N), run.objective) < 1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_a_constant_feature_converges_at_the_start(link, dtype):
    """Single precision finds no descent from the rate of the null model, and there is none."""
    y = np.random.default_rng(0).poisson(np.random.default_rng(1).gamma(1, 10, 1000))
    with pytest.warns(UserWarning, match="constant column"):
        report = PopulationGLM(link, regularizer_strength=1e-3).fit(np.ones((1000, 1), dtype), y).report_
    assert report.status == Status.CONVERGED and report.gap_is_bound.all() and report.gap < 1e-4


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_ridge_that_removes_all_effects_converges(dtype):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(30, 8)) * 1e-3 + 0.1, rng.poisson(300, 30)
    report = PopulationGLM(regularizer_strength=1e6).fit(X.astype(dtype), y).report_
    assert report.status == Status.CONVERGED and report.gap_is_bound.all()


# ------------------------------------------------------------------------- budget, interruption, compilation


def test_a_spent_budget_is_reported_with_an_honest_gap(solver="newton"):
    X, Y = recording("exp", size=1.0)
    best = oracle.newton("exp", X, Y, RIDGE)
    at = problem("exp", X, Y, strength=RIDGE)
    solution = solve(SOLVERS[solver], at, tol=1e-12, max_epochs=1)
    gap = true_gap("exp", X, Y, solution, best)
    assert np.all(solution.status == Status.MAX_EPOCHS) and np.all(solution.epochs == 1)
    assert np.all(gap > solution.target) and honest(solution, gap)
    assert np.all((solution.gap > 0.2 * gap) & (solution.gap < 20 * gap))
    np.testing.assert_allclose(solution.objective - best.objective, gap, atol=1e-7)


@pytest.mark.thorough
def test_newton_finishes_what_the_budget_of_saga_leaves():
    X, Y = recording("exp", size=1.0)
    solution = solve(SAGA(warmup=0), problem("exp", X, Y, strength=RIDGE), tol=1e-12, max_epochs=1)
    assert np.all(solution.status == Status.CONVERGED) and np.all(solution.epochs == 1)
    assert solution.solver_name == "SAGA+Newton"
    assert honest(solution, true_gap("exp", X, Y, solution, oracle.newton("exp", X, Y, RIDGE)))


@pytest.mark.parametrize("where", ["callback", "middle of an epoch"])
def test_an_interrupted_fit_keeps_usable_parameters_with_an_honest_label(where, monkeypatch):
    X, Y = recording("exp", size=1.0)
    best = oracle.newton("exp", X, Y, RIDGE)
    at = problem("exp", X, Y, strength=RIDGE)
    calls = []

    def interrupt(*_):
        calls.append(1)
        if len(calls) == 4:
            raise KeyboardInterrupt

    callback = None
    if where == "callback":
        callback = interrupt
    else:  # the buffers of the last step are already donated
        monkeypatch.setattr(saga.Walk, "look", lambda at, f=saga.Walk.look: (interrupt(), f(at))[1])
    solution = solve(SAGA(check_every=1), at, tol=1e-14, callback=callback)
    assert solution.interrupted and np.all(solution.status == Status.INTERRUPTED)
    objective = oracle.objective("exp", X, Y, *solution.params, strength=RIDGE)
    np.testing.assert_allclose(solution.objective, objective, rtol=1e-6)
    assert np.all(objective < solution.null_objective)
    gap = objective - best.objective
    assert honest(solution, gap) and np.all((solution.gap > 0.3 * gap) & (solution.gap < 3 * gap))


@pytest.mark.parametrize("solver", ["SAGA", "Newton"])
def test_the_second_fit_of_the_same_shapes_compiles_nothing(solver):
    """Other data, strengths and seeds, neurons that are silent or leave their set, predictions and scores too."""
    compiled = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    def fit(seed, strength, **kwargs):
        X, Y = recording("exp", seed=seed, size=0.2 + 0.2 * seed)
        Y[:, 0] *= seed != 3
        model = PopulationGLM("exp", regularizer_strength=strength, solver_name=solver, random_state=seed, **kwargs)
        model.fit(X, Y)
        model.predict(X)
        model.score(X, Y)
        return len(compiled)

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        fit(0, 0.1)
        first = fit(1, 1e-3)
        assert [fit(seed, 0.01 / seed) for seed in (2, 3, 4)] == [first] * 3
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    if solver == "Newton":
        assert first == 0


@pytest.mark.slow
def test_compile_time_is_reported_apart_from_run_time():
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(123, 2)), rng.poisson(1.0, (123, 2)).astype(float)  # a shape not used elsewhere
    first, second = (solve(SAGA(), problem("softplus", X, Y, strength=RIDGE)) for _ in range(2))
    assert first.seconds_compile > 0.2 and second.seconds_compile < 0.05
    assert second.seconds_run < 0.5


# ------------------------------------------------------------------------- hyper-parameters


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"sampling": "cyclic"}, "sampling is 'cyclic'; it must be one of .*partition.*subsets.*shuffle"),
        ({"certificate": "local"}, "certificate is 'local'; it must be .*anchored.*global"),
        ({"batch_size": 0}, "batch_size is 0; it must be"),
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be"),
        ({"step_scale": 0.0}, r"step_scale is 0.0; it must be a number in \(0, 2\]"),
        ({"step_scale": 3.0}, r"step_scale is 3.0; it must be a number in \(0, 2\]"),
        ({"radius": -1.0}, "radius is -1.0; it must be"),
        ({"radius": np.nan}, "radius is nan; it must be"),
        ({"failure_probability": 1.0}, "failure_probability is 1.0; it must"),
        ({"lanczos_steps": 0}, "lanczos_steps is 0; it must be"),
        ({"check_every": 0}, "check_every is 0; it must be"),
        ({"warmup": -1}, "warmup is -1; it must be"),
    ],
)
def test_impossible_hyper_parameters_of_saga_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SAGA(**arguments)


def test_solvers_are_frozen_and_equal_by_value():
    for cls in (SAGA, Newton, solvers.BoundMajorization):
        assert cls() == cls() and hash(cls()) == hash(cls())
    with pytest.raises(AttributeError):
        SAGA().radius = 3.0
