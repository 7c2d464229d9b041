"""Laws of the solvers of two-tower models: where they end, how they get there, and how they fail."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from jax.flatten_util import ravel_pytree
from jaxprs import equations

from glmfit import solvers
from glmfit.pairs import AllPairsProblem, Triples, descent
from glmfit.pairs.objective import PairSample, evaluate
from glmfit.solvers import GaussNewton, LeftBatches, SampledPairs, StationaryOptions, TowerAdam, TowerLBFGS
from glmfit.status import Status

M, N, K = 23, 17, 3
KEY = jax.random.key(7)
DESCENDING = (TowerLBFGS(), GaussNewton(), GaussNewton(curvature="exact"), TowerAdam(n_steps=50))
SAMPLING = (LeftBatches(batch_size=5), SampledPairs(n_observed=16, n_imputed=32))
EVERY = DESCENDING + SAMPLING


def name_of(solver):
    return type(solver).__name__ + " exact" * (getattr(solver, "curvature", "") == "exact")


every_solver = pytest.mark.parametrize("solver", EVERY, ids=name_of)


def make(loss="poisson", kind="one-hot", hidden=(), biases=True, prior="mean", dtype=np.float64, strength=0.4):
    """Small problem of low rank with a start."""
    rng = np.random.default_rng(5)
    U, V = rng.normal(size=(M, 5)), rng.normal(size=(N, 4))
    z = U @ rng.normal(size=(5, 2)) @ rng.normal(size=(2, 4)) @ V.T / 4
    pair = np.concatenate([rng.choice(M * N, 150, replace=False), np.arange(0, M * N, 40)])  # some repeated
    left, right = pair // N, pair % N
    mean = z[left, right]
    y = {
        "squared": lambda: mean + 0.3 * rng.normal(size=mean.shape),
        "logistic": lambda: (rng.random(mean.shape) < 1 / (1 + np.exp(-mean))).astype(float),
        "poisson": lambda: rng.poisson(np.logaddexp(0, mean)).astype(float),
    }[loss]()
    sides = (M, N) if kind == "one-hot" else (U, V)
    a, b = rng.uniform(0.3, 1.5, M), rng.uniform(0.3, 1.5, N)
    problem = AllPairsProblem(
        *sides, Triples(left, right, y), loss, 0.2, a, b, prior, strength, biases, 0.3, "triples", dtype
    )  # fmt: skip
    return problem, problem.draw_params(jax.random.key(1), K, hidden, hidden, scale=0.5)


def scipy_optimum(problem, theta):
    """Stationary point that SciPy finds from here, as one vector, with the objective there."""
    x, back = ravel_pytree(theta)

    def wanted(x):
        value, _, gradient = evaluate(problem.data, back(jnp.asarray(x)))
        return float(value), flat(gradient)

    options = {"maxcor": 20, "maxiter": 5000, "maxfun": 10000, "ftol": 0, "gtol": 1e-9}
    found = scipy.optimize.minimize(wanted, np.asarray(x), jac=True, method="L-BFGS-B", options=options)
    return found.x, found.fun


def flat(theta):
    return np.asarray(ravel_pytree(theta)[0])


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(
    ("loss", "kind", "hidden"),
    [("squared", "one-hot", ()), ("logistic", "features", ()), ("poisson", "features", (4,))],
    ids=str,
)
def test_solvers_end_at_a_stationary_point_that_scipy_cannot_improve(loss, kind, hidden):
    plain = {"biases": False, "prior": "zero"} if loss == "squared" else {}
    problem, theta = make(loss, kind, hidden, **plain)
    least = scipy_optimum(problem, theta)[1]
    for solver in DESCENDING:
        options = StationaryOptions(tol=1e-7, max_epochs=3000)
        found = solver.run(problem, theta, key=KEY, options=options)
        assert found.status == Status.CONVERGED, name_of(solver)
        assert found.gradient_norm <= 1e-7 * found.start_gradient_norm
        value, _, gradient = evaluate(problem.data, found.params)
        np.testing.assert_allclose(found.objective, value, rtol=1e-12)
        np.testing.assert_allclose(found.gradient_norm, np.linalg.norm(flat(gradient)), rtol=1e-4)
        rise = np.diff(found.history["objective"])
        assert np.all(rise <= 1e-13 * np.abs(found.start_objective)), name_of(solver)
        if loss == "logistic":  # the others have more than one optimum: SciPy cannot lower the one that was found
            np.testing.assert_allclose(found.objective, least, rtol=1e-9)
        assert found.objective < found.start_objective
        np.testing.assert_allclose(found.objective, scipy_optimum(problem, found.params)[1], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("solver", [TowerLBFGS(), GaussNewton(damping=0.0)], ids=name_of)
def test_9_towers_are_balanced_at_a_stationary_point(solver):
    """With the same ridge on both tables, P'P = Q'Q."""
    problem, theta = make("squared", biases=False, prior="zero")
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-9, max_epochs=3000))
    assert found.status == Status.CONVERGED
    P, Q = problem.data.embeddings(found.params)
    np.testing.assert_allclose(P.T @ P, Q.T @ Q, atol=1e-8)
    assert float(jnp.linalg.norm(P)) > 1


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
def test_the_exact_hessian_converges_in_fewer_steps_where_residuals_are_large():
    problem, theta = make("squared", biases=False, prior="zero")
    options = StationaryOptions(tol=1e-7, max_epochs=3000)
    ours, exact = (
        GaussNewton(forcing=0.01, curvature=curvature).run(problem, theta, key=KEY, options=options)
        for curvature in ("gauss-newton", "exact")
    )
    assert ours.status == exact.status == Status.CONVERGED
    assert exact.epochs < 0.7 * ours.epochs


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("damping", [0.0, 1.0])
def test_the_exact_hessian_leaves_a_saddle(damping):
    """All curvature along the gradient is negative next to the saddle at 0."""
    problem, theta = make("squared", biases=False, prior="zero", strength=1e-3)
    theta = jax.tree.map(lambda leaf: 1e-3 * leaf, theta)
    gradient = flat(problem.data.value_and_gradient(theta)[1])
    _, back = ravel_pytree(theta)
    assert gradient @ flat(problem.data.hessian(theta)(back(jnp.asarray(gradient)))) < 0
    solver = GaussNewton(damping=damping, curvature="exact")
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-6, max_epochs=1000))
    assert found.status == Status.CONVERGED
    assert found.objective < 0.6 * found.start_objective


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("solver", SAMPLING, ids=name_of)
def test_sampling_solvers_end_near_the_optimum(solver):
    problem, theta = make("squared")
    least = scipy_optimum(problem, theta)[1]
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=200))
    assert found.status == Status.SCHEDULE_DONE
    assert found.epochs == 200
    assert found.objective - least < 0.05 * (found.start_objective - least)
    np.testing.assert_allclose(found.objective, evaluate(problem.data, found.params)[0], rtol=1e-12)
    np.testing.assert_array_equal(found.history["epoch"], np.arange(0, 201, 5))


@pytest.mark.slow
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize(("prior", "biases"), [("mean", True), ("mean", False), ("factors", True)])
def test_drawn_pairs_estimate_objective_and_gradient(prior, biases):
    """The mean over all draws, by their probabilities, is the objective itself."""
    rng = np.random.default_rng(2)
    given = (rng.normal(size=(M, 2)), rng.normal(size=(N, 2))) if prior == "factors" else prior
    problem, theta = make(kind="features", biases=biases, prior=given)
    data, pairs = problem.data, problem.observed_pairs
    theta = jax.tree.map(lambda leaf: np.asarray(leaf) + 0.3 * rng.normal(size=leaf.shape), theta)
    nobody = jnp.zeros(1, int)
    one = PairSample(jax.tree.map(lambda values: values[:1], pairs), jnp.asarray(float(len(pairs.y))), nobody, nobody)
    assert pairs.count is not None

    def mean(theta, data, pairs):
        def of_observed(pair):
            observed = jax.tree.map(lambda value: value[None], pair)
            return data.sampled(theta, one._replace(observed=observed))

        def of_imputed(left, right):
            return data.sampled(theta, one._replace(left=left[None], right=right[None]))

        i, j = (grid.ravel() for grid in jnp.meshgrid(jnp.arange(M), jnp.arange(N), indexing="ij"))
        a, b = data.imputation
        chance = (a / a.sum())[i] * (b / b.sum())[j]
        both = jnp.mean(jax.vmap(of_observed)(pairs)) + chance @ jax.vmap(of_imputed)(i, j)
        return both - data.sampled(theta, one)

    value, gradient = jax.jit(jax.value_and_grad(mean))(theta, data, pairs)
    true, _, true_gradient = evaluate(data, theta)
    np.testing.assert_allclose(value, true, rtol=1e-12)
    np.testing.assert_allclose(flat(gradient), flat(true_gradient), atol=1e-12 * np.abs(flat(true_gradient)).max())


@pytest.mark.thorough
def test_pairs_are_drawn_by_their_cost():
    problem, _ = make(dtype=np.float32)
    sample = problem.data.draw(KEY, problem.observed_pairs, 4000, 40_000)
    for drawn, weight in zip((sample.left, sample.right), problem.data.imputation, strict=True):
        chance = np.asarray(weight / weight.sum())
        found = np.bincount(drawn, minlength=len(chance)) / len(drawn)
        np.testing.assert_allclose(found, chance, atol=5 * np.sqrt(chance.max() / len(drawn)))
    seen = np.bincount(sample.observed.left * N + sample.observed.right, minlength=M * N)
    true = np.zeros(M * N, bool)
    true[np.asarray(problem.observed_pairs.left) * N + np.asarray(problem.observed_pairs.right)] = True
    np.testing.assert_array_equal(seen > 0, true)


@pytest.mark.thorough(cases=1)
@every_solver
def test_the_same_key_gives_the_same_answer_in_single_precision(solver):
    problem, theta = make(dtype=np.float32)
    before = flat(theta)
    options = StationaryOptions(max_epochs=15)
    first, again = (solver.run(problem, theta, key=KEY, options=options) for _ in range(2))
    np.testing.assert_array_equal(flat(first.params), flat(again.params))
    assert flat(first.params).dtype == np.float32
    np.testing.assert_array_equal(flat(theta), before)
    assert first.objective < first.start_objective
    if solver in SAMPLING:
        other = solver.run(problem, theta, key=jax.random.key(8), options=options)
        assert not np.array_equal(flat(first.params), flat(other.params))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", [TowerLBFGS(), GaussNewton()], ids=name_of)
def test_single_precision_ends_at_its_floor(solver):
    problem, theta = make(dtype=np.float32)
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-12))
    assert found.status == Status.PRECISION_FLOOR
    assert found.gradient_norm < 1e-3 * found.start_gradient_norm
    loose = solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-3))
    assert loose.status == Status.CONVERGED
    assert loose.epochs < found.epochs


@pytest.mark.thorough(cases=8)
@every_solver
@pytest.mark.parametrize("bad", [np.nan, 1e30], ids=str)
def test_a_start_that_is_not_finite_or_overflows_is_reported(solver, bad):
    problem, theta = make(dtype=np.float32)
    theta = jax.tree.map(lambda leaf: leaf + bad, theta)
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=15))
    assert found.status == Status.NON_FINITE
    assert np.isfinite(flat(found.params)).all()
    assert found.epochs == 0


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", [LeftBatches(5, 1e6, 0.0, "sgd"), TowerAdam(1e25, polish=None)], ids=name_of)
def test_overflow_on_the_way_keeps_the_last_finite_parameters(solver):
    problem, theta = make(dtype=np.float32)
    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=15))
    assert found.status == Status.NON_FINITE
    assert np.isfinite(flat(found.params)).all()
    assert np.isfinite([found.objective, found.gradient_norm]).all()


@pytest.mark.thorough(cases=3)
@every_solver
def test_an_interrupted_run_is_usable(solver):
    problem, theta = make(dtype=np.float32)

    def stop(epoch, seconds, params, state):
        assert seconds > 0
        if epoch == 3:
            raise KeyboardInterrupt

    found = solver.run(problem, theta, key=KEY, options=StationaryOptions(callback=stop))
    assert found.interrupted
    assert found.status == Status.INTERRUPTED
    assert found.epochs == 3
    assert found.objective < found.start_objective
    np.testing.assert_allclose(found.objective, evaluate(problem.data, found.params)[0], rtol=1e-5)


@pytest.mark.thorough
def test_adam_without_a_polish_ends_after_its_steps():
    problem, theta = make(dtype=np.float32)
    found = TowerAdam(n_steps=25, polish=None).run(problem, theta, key=KEY)
    assert (found.epochs, found.evaluations, found.status) == (3, 31, Status.SCHEDULE_DONE)
    assert found.objective < found.start_objective


@pytest.mark.slow
def test_a_batch_size_above_the_number_of_left_entities_makes_one_batch():
    problem, theta = make(dtype=np.float32)
    found = LeftBatches(batch_size=1000).run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=5))
    assert found.objective < found.start_objective


@pytest.mark.thorough
def test_a_start_that_is_stationary_is_converged_at_once():
    problem, theta = make(biases=False, prior="zero", dtype=np.float32)
    found = TowerLBFGS().run(problem, problem.null_params(theta), key=KEY)
    assert found.status == Status.CONVERGED
    assert found.epochs == 0


@pytest.mark.parametrize(
    ("name", "kwargs", "message"),
    [
        ("TowerLBFGS", {"history_size": 0}, "history_size is 0; it must be a whole number of at least 1"),
        ("TowerLBFGS", {"max_line_search": 2.5}, "max_line_search is 2.5"),
        ("GaussNewton", {"max_products": 0}, "max_products is 0"),
        ("GaussNewton", {"forcing": 1.0}, r"forcing is 1.0; it must be a number in \(0, 1\)"),
        ("GaussNewton", {"damping": -1.0}, "damping is -1.0; it must be a finite number of at least 0"),
        ("GaussNewton", {"curvature": "hessian"}, "curvature is 'hessian'; it must be one of 'gauss-newton', 'exact'"),
        ("TowerAdam", {"learning_rate": 0.0}, "learning_rate is 0.0; it must be a finite number above 0"),
        ("TowerAdam", {"n_steps": 0}, "n_steps is 0"),
        ("TowerAdam", {"polish": "newton"}, "polish is 'newton'; it must be one of 'lbfgs'"),
        ("LeftBatches", {"batch_size": 0}, "batch_size is 0"),
        ("LeftBatches", {"decay": -0.1}, "decay is -0.1"),
        ("LeftBatches", {"optimizer": "rmsprop"}, "optimizer is 'rmsprop'; it must be one of 'adam', 'sgd'"),
        ("SampledPairs", {"n_observed": 0}, "n_observed is 0"),
        ("SampledPairs", {"n_imputed": True}, "n_imputed is True"),
        ("StationaryOptions", {"tol": 0.0}, "tol is 0.0"),
        ("StationaryOptions", {"max_epochs": -1}, "max_epochs is -1"),
    ],
)
def test_wrong_hyper_parameters_are_refused(name, kwargs, message):
    with pytest.raises(ValueError, match=message):
        getattr(solvers, name)(**kwargs)


def test_every_solver_of_two_sides_has_its_laws_here():
    exported = [getattr(solvers, name) for name in solvers.__all__]
    two_sided = {c for c in exported if isinstance(c, type) and issubclass(c, solvers.TwoSidedSolver)}
    assert {type(s) for s in EVERY} == two_sided - {solvers.TwoSidedSolver}


# ------------------------------------------------------------------ steps in portions, as on a GPU


@pytest.fixture
def portions(monkeypatch):
    """Ten steps at a time, on the CPU too."""
    monkeypatch.setattr("glmfit.pairs.descent.in_portions", lambda theta: True)


@pytest.mark.thorough
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("solver", [TowerLBFGS(), TowerAdam(n_steps=50)], ids=name_of)
def test_steps_in_portions_equal_the_steps_one_by_one(solver, monkeypatch):
    problem, theta = make()
    monkeypatch.setattr("glmfit.pairs.descent.metric_of", lambda data, theta: None)  # measured at other steps
    one = solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-6))
    monkeypatch.setattr("glmfit.pairs.descent.in_portions", lambda theta: True)
    found, again = (solver.run(problem, theta, key=KEY, options=StationaryOptions(tol=1e-6)) for _ in range(2))
    assert found.status == one.status == Status.CONVERGED
    np.testing.assert_array_equal(found.history["epoch"], np.arange(found.epochs + 1))
    n = min(len(found.history["objective"]), len(one.history["objective"])) // 2  # rounding makes them diverge
    np.testing.assert_allclose(found.history["objective"][:n], one.history["objective"][:n], rtol=1e-6)
    np.testing.assert_allclose(found.objective, one.objective, rtol=1e-6)
    np.testing.assert_array_equal(flat(found.params), flat(again.params))
    value, norm, _ = evaluate(problem.data, found.params)
    np.testing.assert_allclose([found.objective, found.gradient_norm], [value, norm], rtol=1e-9)
    assert found.gradient_norm <= 1e-6 * found.start_gradient_norm < found.history["gradient_norm"][-2]
    assert np.all(np.diff(found.history["objective"]) <= 1e-12 * np.abs(found.start_objective))


@pytest.mark.thorough
@pytest.mark.usefixtures("portions", "x64")
@pytest.mark.parametrize("most", [7, 23])
def test_portions_keep_to_the_budget_and_a_callback_sees_every_epoch(most):
    problem, theta = make()
    seen = []
    told = {"tol": 1e-12, "max_epochs": most}
    found = TowerLBFGS().run(problem, theta, key=KEY, options=StationaryOptions(**told))
    TowerLBFGS().run(
        problem, theta, key=KEY, options=StationaryOptions(**told, callback=lambda epoch, *_: seen.append(epoch))
    )
    assert found.epochs == most and found.status == Status.MAX_EPOCHS and len(found.history["epoch"]) == most + 1
    assert seen == list(range(1, most + 1))
    assert found.evaluations >= most


@pytest.mark.thorough
def test_a_portion_never_asks_the_host():
    problem, theta = make(dtype=np.float32)
    state = TowerLBFGS().init_state(problem, theta, key=KEY)
    numbers = np.float32(state.objective), np.float32(state.gradient_norm), np.float32(1), np.float32(0)
    traced = descent._unit_steps.trace(problem.data, theta, *numbers, 10, state.memory)
    names = [equation.primitive.name for equation in equations(traced.jaxpr)]
    assert names.count("scan") >= 1 and not {"while", "cond"} & set(names)
    traced.lower(lowering_platforms=("cuda",))
