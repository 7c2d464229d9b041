"""Laws of solvers that sample classes: they end near the optimum, repeat, resume, and never return NaN."""

import pickle
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

from glmfit import Status
from glmfit.solvers import (
    NCE,
    OVE,
    SGD,
    ImplicitSGD,
    ImportanceSampling,
    SampledSoftmax,
    Schedule,
    SoftmaxProx,
    UMax,
)
from glmfit.stochastic import class_sampler
from glmfit.stochastic.class_problem import Pairs, SoftmaxProblem

N, D, K = 600, 4, 6
SOLVERS = {
    "implicit, one negative": (ImplicitSGD(n_negatives=1), 0.5),
    "implicit": (ImplicitSGD(n_negatives=3), 1.0),
    "implicit, absolute": (ImplicitSGD(n_negatives=3, alpha=1.0), 1.0),
    "implicit, averaged": (ImplicitSGD(n_negatives=3, batch_size=4), 5.0),
    "implicit, dual": (ImplicitSGD(n_negatives=3, batch_size=4, minibatch="dual", sweeps=2), 3.0),
    "implicit, jacobi": (ImplicitSGD(n_negatives=3, batch_size=4, minibatch="jacobi"), 3.0),
    "implicit, newton": (ImplicitSGD(n_negatives=3, batch_size=4, minibatch="newton"), 3.0),
    "umax": (UMax(n_negatives=3), 0.1),
    "umax, batch": (UMax(n_negatives=3, batch_size=4), 0.1),
    "umax, absolute": (UMax(n_negatives=3, alpha=1.0), 0.3),
    "all classes": (SoftmaxProx(), 1.0),
    "all classes, batch": (SoftmaxProx(batch_size=4), 4.0),
    "sgd": (SGD(n_negatives=3), 0.01),
    "sampled softmax": (SampledSoftmax(n_negatives=3, batch_size=4), 1.0),
}
every_solver = pytest.mark.parametrize("solver, step", SOLVERS.values(), ids=SOLVERS)


def make(seed=0, strength=1e-3, n=N, dtype=np.float32, sparse=False):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, D))
    score = X @ rng.normal(size=(D, K)) + rng.normal(size=K)
    label = np.argmax(score + rng.gumbel(size=score.shape), axis=1)
    pairs = Pairs(np.arange(n), label, np.ones(n))
    return SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, K, strength, dtype=dtype), X, label


def lowest(problem, X, label):
    """Objective at the optimum that scikit-learn finds."""
    model = LogisticRegression(C=1 / (len(X) * problem.strength), tol=1e-10, max_iter=5000).fit(X, label)
    from glmfit.engine.problem import Params

    return problem.objective(Params(model.coef_.T, model.intercept_))


@pytest.mark.thorough(cases=1)
@every_solver
def test_a_schedule_ends_near_the_optimum(solver, step):
    """Within 6 % of the improvement over class frequencies: sampling leaves an error that shrinks with the step."""
    problem, X, label = make()
    best = lowest(problem, X, label)
    found = solver.run(problem, key=jax.random.key(0), schedule=Schedule(40, step, 0.9))
    assert found.status == Status.SCHEDULE_DONE and found.epochs == 40
    excess = (problem.objective(found.params) - best) / (problem.null_objective - best)
    assert 0 <= excess < (0.06 if not isinstance(solver, SGD) else 0.5)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", [OVE(3, 10), NCE(3, 10), ImportanceSampling(3, 10), ImportanceSampling(3, 10, True)])
def test_biased_methods_improve_but_miss_the_optimum(solver):
    problem, X, label = make()
    best = lowest(problem, X, label)
    found = solver.run(problem, key=jax.random.key(0), schedule=Schedule(60, 30.0, 0.93))
    excess = (problem.objective(found.params) - best) / (problem.null_objective - best)
    assert 0.005 < excess < 0.9


@pytest.mark.slow
def test_more_negatives_end_nearer_the_optimum():
    problem, X, label = make()
    best = lowest(problem, X, label)
    excess = []
    for m in (1, 5):
        ends = [
            problem.objective(ImplicitSGD(m).run(problem, key=jax.random.key(s), schedule=Schedule(30, 1.0)).params)
            for s in range(3)
        ]
        excess.append(np.mean(ends) - best)
    assert excess[1] < excess[0]


def equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


@pytest.mark.thorough(cases=2)
@every_solver
def test_the_same_key_gives_the_same_answer_and_runs_can_be_resumed(solver, step):
    problem, *_ = make(n=100)

    def run(seed, epochs, state=None):
        return solver.run(problem, key=jax.random.key(seed), schedule=Schedule(epochs, step), state=state)

    whole = run(3, 4)
    assert equal(whole.params, run(3, 4).params) and not equal(whole.params, run(4, 4).params)
    stored = jax.tree.map(np.asarray, run(3, 2).state)  # as a file would hold it
    assert equal(whole.params, run(3, 4, stored).params)


@pytest.mark.slow
def test_sparse_features_give_the_answer_of_dense_ones(x64):
    raw = {"basis": "raw"}  # otherwise sparse features are not centred
    for solver in (
        ImplicitSGD(3, **raw),
        UMax(3, 4, **raw),
        ImplicitSGD(3, 4, "dual", **raw),
        SoftmaxProx(batch_size=3, **raw),
    ):
        ends = []
        for sparse in (False, True):
            problem, *_ = make(n=100, dtype=np.float64, sparse=sparse)
            ends.append(solver.run(problem, key=jax.random.key(0), schedule=Schedule(3, 0.2)).params)
        for a, b in zip(*ends, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-10)


@pytest.mark.thorough
def test_steps_that_overflow_are_reported_and_undone():
    problem, *_ = make()
    for step in (1.0, 100.0):
        found = SGD(3).run(problem, key=jax.random.key(0), schedule=Schedule(20, step))
        assert found.status == Status.NON_FINITE
        assert np.all(np.isfinite(found.params.coef)) and np.all(np.isfinite(found.params.intercept))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("step", [1e-3, 1e3, 1e6])
def test_implicit_steps_never_overflow(step):
    problem, *_ = make(strength=1e-2)
    found = ImplicitSGD(3).run(problem, key=jax.random.key(0), schedule=Schedule(3, step))
    assert found.status == Status.SCHEDULE_DONE and np.all(np.isfinite(found.params.coef))


def test_an_explicit_step_too_long_for_the_ridge_is_refused():
    problem, *_ = make(strength=0.1)
    longest = UMax(3).longest_step(problem)
    assert K < longest < 10 * K  # for a ridge whose strength does not exceed the variances
    with pytest.raises(ValueError, match=rf"step is 100; it must stay below {longest:.3g}, where an explicit step"):
        UMax(3).run(problem, key=jax.random.key(0), schedule=Schedule(3, 100.0))


@pytest.mark.slow
def test_two_classes_one_row_and_more_negatives_than_classes():
    X = np.array([[1.0, -1.0], [0.5, 2.0], [1.0, 1.0]])
    two = SoftmaxProblem(X, Pairs(np.arange(3), np.array([0, 1, 0]), np.ones(3)), 2, 0.1)
    one = SoftmaxProblem(X[:1], Pairs(np.arange(1), np.array([1]), np.ones(1)), 3, 0.1)
    for problem in (two, one):
        for solver in (
            ImplicitSGD(20),
            UMax(20),
            ImplicitSGD(2, batch_size=8),
            ImplicitSGD(2, 8, "jacobi"),
            SoftmaxProx(),
        ):
            step = min(5.0, solver.longest_step(problem) / 2)
            found = solver.run(problem, key=jax.random.key(0), schedule=Schedule(50, step))
            assert problem.objective(found.params) < problem.null_objective + 0.2
            assert np.all(np.isfinite(found.params.coef))


@pytest.mark.slow
def test_counts_are_pairs_and_may_share_an_auxiliary_variable():
    """Forms A and B have the same optimum, that of the multinomial likelihood."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(N, D))
    p = np.exp(X @ rng.normal(size=(D, K)))
    Y = np.stack([rng.multinomial(rng.integers(0, 5), q) for q in p / p.sum(axis=1, keepdims=True)])
    row, label = np.nonzero(Y)
    problem = SoftmaxProblem(X, Pairs(row, label, Y[row, label].astype(float)), K, 1e-3)
    alone, joined = (
        ImplicitSGD(3, alpha=alpha).run(problem, key=jax.random.key(0), schedule=Schedule(40, 0.3, 0.9))
        for alpha in (0.0, 1.0)
    )
    assert alone.state.weights.u.shape == (len(row),) and joined.state.weights.u.shape == (N,)
    values = [problem.objective(found.params) for found in (alone, joined)]
    gain = problem.null_objective - min(values)
    assert abs(values[0] - values[1]) < 0.05 * gain and gain > 0.1


@pytest.mark.thorough
def test_interrupted_runs_keep_the_last_epoch():
    problem, *_ = make(n=100)
    seen = []

    def stop(epoch, seconds, params):
        seen.append(params)
        if epoch == 3:
            raise KeyboardInterrupt

    found = ImplicitSGD(3).run(problem, key=jax.random.key(0), schedule=Schedule(10, 5.0), callback=stop)
    assert found.status == Status.INTERRUPTED and found.epochs == 3
    assert equal(found.params, seen[-1])


@pytest.mark.slow
def test_implicit_steps_use_more_negatives_for_many_classes():
    def equal_runs(K, n_negatives):
        y = np.arange(2 * K) % K
        X = np.random.default_rng(0).normal(size=(2 * K, 2))
        problem = SoftmaxProblem(X, Pairs(np.arange(2 * K), y, np.ones(2 * K)), K, 1e-3)
        runs = (
            solver.run(problem, key=jax.random.key(0), schedule=Schedule(1)) for solver in (ImplicitSGD(), n_negatives)
        )
        return equal(*(run.params for run in runs))

    assert equal_runs(500, ImplicitSGD(20)) and equal_runs(501, ImplicitSGD(60))
    assert not equal_runs(501, ImplicitSGD(20))


@pytest.mark.parametrize(
    "make_it, message",
    [
        (lambda: ImplicitSGD(0), "n_negatives is 0"),
        (lambda: UMax(None), "n_negatives is None"),
        (lambda: UMax(batch_size=0), "batch_size is 0"),
        (
            lambda: ImplicitSGD(minibatch="exact"),
            "minibatch is 'exact'; it must be one of 'averaged', 'shared', 'jacobi'",
        ),
        (lambda: ImplicitSGD(alpha=0.5), "alpha is 0.5"),
        (lambda: ImplicitSGD(8, 4, "shared", alpha=1, visit="row"), 'visit is "row" with minibatch="shared"'),
        (lambda: UMax(alpha=2), "alpha is 2; it must be between 0 and 1"),
        (lambda: UMax(delta=-1), "delta is -1"),
        (lambda: Schedule(step=0), "step is 0"),
        (lambda: Schedule(decay=1.5), "decay is 1.5"),
    ],
)
def test_options_that_make_no_sense_are_refused(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


@pytest.mark.thorough
def test_a_second_run_of_the_same_shapes_compiles_nothing():
    from glmfit.compilation import compiled_programs

    problem, *_ = make(n=100)
    ImplicitSGD(3).run(problem, key=jax.random.key(0), schedule=Schedule(2, 5.0))
    before = compiled_programs()
    other, *_ = make(seed=1, n=100, strength=1e-2)
    ImplicitSGD(3).run(other, key=jax.random.key(1), schedule=Schedule(2, 50.0))
    assert compiled_programs() == before


@pytest.mark.thorough
def test_draws_depend_only_on_seed_and_epoch():
    problem, *_ = make(n=50)
    order = class_sampler._order(jax.random.key(0), 50, 1, 50)
    assert np.array_equal(np.sort(order[:, 0]), np.arange(50))
    keys = [jax.random.key(k) for k in (0, 0, 1)]
    one, two, other = (
        class_sampler._draw(k, problem.class_data("spectral", True), order, 0, 50, K, 3, False, 0) for k in keys
    )
    assert equal(one, two) and not equal(one, other)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 7])
def test_an_epoch_in_portions_visits_every_pair_once(batch, monkeypatch):
    """Count steps by their effect: if c is tiny, every visit adds the same to its own auxiliary variable."""
    problem, *_ = make(seed=0, n=100)
    solver = ImplicitSGD(3, batch_size=batch)
    visited = []
    for portion in (1 << 24, 60):
        monkeypatch.setattr(class_sampler, "_PORTION", portion)
        state = solver.update(problem, solver.init_state(problem, None, key=jax.random.key(0)), 1e-3, 1.0)
        visited.append(np.asarray(state.weights.u) > 0)
    np.testing.assert_array_equal(*visited)
    assert visited[0].sum() == 100 // batch * batch


@pytest.mark.thorough
def test_bounded_umax_stays_within_its_bounds():
    problem, *_ = make(n=100, strength=1e-2)
    problem = SoftmaxProblem(problem.X, problem.pairs, K, 1e-2, fit_intercept=False)
    problem.coef_bound, problem.auxiliary_bound = 0.5, 0.8  # far tighter than the true ones
    free, held = (
        UMax(3, bounded=bounded).run(problem, key=jax.random.key(0), schedule=Schedule(3, 5.0, 1.0))
        for bounded in (False, True)
    )
    assert np.linalg.norm(free.params.coef) > 1 and np.max(free.state.weights.u) > 1
    assert np.linalg.norm(held.params.coef) == pytest.approx(0.5, rel=1e-5)
    assert np.max(held.state.weights.u) <= np.float32(0.8)


@pytest.mark.thorough
def test_a_strong_ridge_causes_no_second_look_up(monkeypatch):
    """However often the weights must be rescaled."""
    problem, *_ = make(strength=1.0)
    calls = []
    look_up = class_sampler.kernels.look_up
    monkeypatch.setattr(class_sampler.kernels, "look_up", lambda *a: calls.append(1) or look_up(*a))
    solver = ImplicitSGD(2)
    solver.update(problem, solver.init_state(problem, None, key=jax.random.key(0)), 1000.0, 1.0)
    assert len(calls) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("intercept", [False, True])
def test_sampled_softmax_with_all_classes_takes_steps_along_the_gradient(intercept, x64):
    """With batches of all rows, a step is a gradient step, including row weights and ridge."""
    rng, step = np.random.default_rng(0), 0.3
    X, label, weight = rng.normal(size=(40, D)), rng.integers(0, K, 40), rng.uniform(0.5, 2, 40)
    problem = SoftmaxProblem(X, Pairs(np.arange(40), label, weight), K, 0.1, intercept, dtype=np.float64)
    solver = SampledSoftmax(batch_size=40, basis="raw")
    found = solver.run(problem, problem.null_params(), key=jax.random.key(0), schedule=Schedule(1, step))
    coef, start = np.zeros((D, K)), problem.null_params().intercept
    p = np.exp(start) / np.exp(start).sum()
    slope = weight[:, None] * (p - np.eye(K)[label]) / 40
    np.testing.assert_allclose(found.params.coef, coef - step * X.T @ slope, atol=1e-12)
    after = start - step * slope.sum(axis=0) * intercept
    np.testing.assert_allclose(found.params.intercept, after - after.mean(), atol=1e-12)


def test_the_first_step_of_sampled_softmax_depends_on_rows_and_classes():
    problem, *_ = make()
    share = problem.class_totals.max() / N
    assert SampledSoftmax().first_step(problem) == pytest.approx(4 / share)
    assert SampledSoftmax(batch_size=4).first_step(problem) == pytest.approx(0.8)
    assert SampledSoftmax(basis="raw").first_step(problem) == pytest.approx(0.03)
    twice = SoftmaxProblem(problem.X, Pairs(np.arange(N), problem.pairs.label, np.full(N, 2.0)), K, 1e-3)
    assert SampledSoftmax().first_step(twice) == pytest.approx(2 / share)


@pytest.mark.thorough
def test_single_rows_are_visited_on_a_cpu_whatever_the_default_device(monkeypatch, rng):
    y = rng.integers(0, 4, 30)
    problem = SoftmaxProblem(rng.normal(size=(30, 2)), Pairs(np.arange(30), y, np.ones(30)), 4, 1e-2)
    usual = ImplicitSGD().run(problem, key=jax.random.key(0), schedule=Schedule(2))
    monkeypatch.setattr(class_sampler, "default_device", lambda: SimpleNamespace(platform="gpu"))
    cases = (ImplicitSGD(), jax.devices("cpu")[0]), (ImplicitSGD(batch_size=8), None), (SoftmaxProx(), None)
    for solver, expected in cases:
        with solver.where(problem):
            assert jax.config.jax_default_device == expected
    seen = []
    how = {"key": jax.random.key(0), "schedule": Schedule(2)}
    there = ImplicitSGD().run(problem, **how, callback=lambda *_: seen.append(jax.config.jax_default_device))
    assert seen == [None, None]  # callbacks are the user's
    pickle.dumps(problem)
    assert equal(there.params, usual.params) and jax.config.jax_default_device is None
    monkeypatch.setattr(class_sampler, "a_cpu", lambda: None)
    with ImplicitSGD().where(problem):
        assert jax.config.jax_default_device is None
