"""Laws of log-linear models, including chains of labels: bounds, monotone steps, proved gaps, the optimum."""

from functools import partial

import numpy as np
import pytest
from oracles import log_linear as oracle
from scipy.special import softmax

import glmfit
from glmfit import Status
from glmfit.solvers import BoundMajorization, LoopOptions
from glmfit.stochastic import LabelChains, LogLinearProblem, Pairs, SoftmaxProblem, outcome_probabilities
from glmfit.stochastic.log_linear import HESSIAN_THEOREM, RIDGE_THEOREM

ORDERS = ("given", "descending", "ascending", "averaged")
RELAXATIONS = (0.5, 1.0, 1.5, 1.9)


def listed(rng, n=12, d=3, scale=1.0, strength=0.02):
    """Rows of two to five outcomes with uneven weights, some excluded, and the arguments of the oracle."""
    features = [scale * rng.normal(size=(rng.integers(2, 6), d)) + rng.normal() for _ in range(n)]
    log_h, observed = [], []
    for f in features:
        h = 2 * rng.normal(size=len(f))
        h[(rng.random(len(f)) < 0.2) & (np.arange(len(f)) > 0)] = -np.inf
        log_h.append(h)
        observed.append(rng.choice(np.flatnonzero(np.isfinite(h))))
    weight = rng.uniform(0, 2, n)
    strength = np.broadcast_to(np.asarray(strength, float), (d,))
    model = features, np.array(observed), strength, log_h, weight
    return LogLinearProblem(features, observed, strength, log_h, weight), model


def chains(rng, n=6, n_labels=2, d=2, longest=4, strength=0.05):
    """Sequences of one to ``longest`` labels, and the same sequences listed by the oracle."""
    X = [rng.normal(size=(rng.integers(1, longest + 1), d)) for _ in range(n)]
    labels = [rng.integers(0, n_labels, len(x)) for x in X]
    weight = rng.uniform(0.5, 2, n)
    features, observed = zip(*(oracle.chain(x, y, n_labels) for x, y in zip(X, labels, strict=True)), strict=True)
    strength = np.full(n_labels * (d + n_labels), strength)
    model = list(features), np.array(observed), strength, [np.zeros(len(f)) for f in features], weight
    return LabelChains(X, labels, n_labels, strength, weight), model


MAKE = {"listed": listed, "chains": chains, "three labels": lambda rng: chains(rng, n_labels=3, d=1)}
every_model = pytest.mark.parametrize("name", MAKE)


def at(model, theta):
    """Arguments of the oracle at some parameters."""
    features, observed, strength, log_h, weight = model
    return features, observed, strength, theta, log_h, weight


def kept(seen, epoch, seconds, theta, state):
    """Store the current parameters of a fit."""
    seen.append(theta)


def fit(problem, relaxation=1.5, order="descending", start=None, **options):
    return BoundMajorization(relaxation, order).run(problem, start, options=LoopOptions(**options))


@every_model
def test_objective_and_gradient_are_those_of_the_definition(name, rng):
    problem, model = MAKE[name](rng)
    for scale in (0.0, 1.0, 5.0):
        theta = scale * rng.normal(size=problem.n_parameters)
        value, gradient = problem.value_and_gradient(theta)
        assert value == pytest.approx(oracle.objective(*at(model, theta)), rel=1e-12)
        np.testing.assert_allclose(gradient, oracle.derivatives(*at(model, theta))[0], atol=1e-12)
        for j, e in enumerate(1e-5 * np.eye(len(theta))):
            slope = (problem.objective(theta + e) - problem.objective(theta - e)) / 2e-5
            assert gradient[j] == pytest.approx(slope, abs=1e-7)
        assert problem.bound(theta).value == pytest.approx(value, rel=1e-13)
        np.testing.assert_allclose(problem.bound(theta).gradient, gradient, atol=1e-12)


@pytest.mark.thorough
@every_model
@pytest.mark.parametrize("order", ORDERS)
def test_the_bound_is_above_the_objective_everywhere_and_touches_it(name, order, rng):
    problem, model = MAKE[name](rng)
    for scale in (0.0, 1.0, 20.0):
        theta = scale * rng.normal(size=problem.n_parameters)
        bound = problem.bound(theta, order)
        assert bound.at(theta) == pytest.approx(problem.objective(theta), rel=1e-13)
        hessian = oracle.derivatives(*at(model, theta))[1]
        assert np.linalg.eigvalsh(bound.curvature - hessian)[0] >= -1e-12
        directions = np.concatenate([rng.normal(size=(6, len(theta))), np.linalg.eigh(bound.curvature)[1].T])
        for size in (1e-2, 1.0, 30.0, 1e3):
            for u in size * directions:
                found, value = bound.at(theta + u), problem.objective(theta + u)
                assert found >= value - 1e-12 * (abs(found) + abs(value))


def test_the_curvature_adds_up_the_bounds_of_the_rows(rng):
    problem, (features, _, strength, log_h, weight) = listed(rng)
    theta = rng.normal(size=3)
    for order in ORDERS[:3]:
        bounds = [glmfit.bounds.log_partition_bound(f, theta, h, order) for f, h in zip(features, log_h, strict=True)]
        expected = sum(c * b.curvature for c, b in zip(weight, bounds, strict=True)) / len(features)
        np.testing.assert_allclose(problem.bound(theta, order).curvature, expected + np.diag(strength), atol=1e-12)
    mean = (problem.bound(theta, "ascending").curvature + problem.bound(theta, "descending").curvature) / 2
    np.testing.assert_allclose(problem.bound(theta, "averaged").curvature, mean, atol=1e-12)


def test_a_step_follows_equation_2(rng):
    problem, _ = listed(rng)
    theta = rng.normal(size=3)
    bound = problem.bound(theta)
    found = fit(problem, 1.3, start=theta, max_epochs=1, tol=1e-14)
    expected = theta - 1.3 * np.linalg.solve(bound.curvature, bound.gradient)
    np.testing.assert_allclose(found.params, expected, rtol=1e-11)
    assert found.status == Status.MAX_EPOCHS and found.epochs == 1


@pytest.mark.thorough
@every_model
@pytest.mark.parametrize("relaxation", RELAXATIONS)
def test_no_step_raises_the_objective_from_any_start(name, relaxation, rng):
    problem, model = MAKE[name](rng)
    for scale in (0.0, 3.0, 100.0):
        start, seen = scale * rng.normal(size=problem.n_parameters), []
        keep = partial(kept, seen)
        fit(problem, relaxation, start=start, max_epochs=12, tol=1e-14, callback=keep)
        values = [oracle.objective(*at(model, theta)) for theta in (start, *seen)]
        assert len(values) > 4
        assert np.all(np.diff(values) <= 1e-13 * np.abs(values[1:]))
        assert values[-1] < values[0]


@pytest.mark.thorough
@pytest.mark.parametrize("order", ORDERS)
@every_model
def test_fits_end_at_the_optimum_with_a_proof(name, order, rng):
    problem, model = MAKE[name](rng)
    theta, best = oracle.optimum(*model)
    found = fit(problem, order=order, tol=1e-10, max_epochs=3000)
    assert found.status == Status.CONVERGED and found.gap_is_bound.all() and found.gap <= found.target
    assert -1e-12 <= found.objective[0] - best <= found.gap[0]
    np.testing.assert_allclose(found.params, theta, atol=5e-3)
    assert "Jebara" in found.step_certificate.theorem and found.solver_name == "BoundMajorization"
    assert found.only().objective == pytest.approx(oracle.objective(*at(model, found.params)), rel=1e-12)
    assert np.all(np.diff(found.history["objective"][:, 0]) <= 1e-14)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["listed", "chains"])
def test_the_gap_is_never_below_the_true_one(name):
    """Checked on 100 small problems (20 with chains), at points near the optimum and far from it."""
    proved = {RIDGE_THEOREM: 0, HESSIAN_THEOREM: 0}
    for seed in range(100 if name == "listed" else 20):
        rng = np.random.default_rng(seed)
        how = {"strength": 10.0 ** rng.integers(-5, 1)}
        if name == "listed":
            how |= {"n": int(rng.integers(3, 9)), "d": int(rng.integers(1, 4)), "scale": 10.0 ** rng.integers(-1, 2)}
        problem, model = (listed if name == "listed" else chains)(rng, **how)
        theta, best = oracle.optimum(*model)
        for scale in (0.0, 1e-6, 1e-3, 0.1, 1.0, 10.0):
            there = theta + scale * rng.normal(size=len(theta))
            gap = problem.certify_gap(there)
            assert gap.bound >= problem.objective(there) - best
            assert gap.objective == pytest.approx(problem.objective(there), rel=1e-14)
            proved[gap.theorem] += 1
    assert proved[RIDGE_THEOREM] > 50 and (name == "chains" or proved[HESSIAN_THEOREM] > 50)


def test_without_a_ridge_the_hessian_proves_the_gap(rng):
    problem, model = listed(rng, n=60, strength=0.0)
    _, best = oracle.optimum(*model)
    found = fit(problem, tol=1e-8, max_epochs=2000)
    assert found.status == Status.CONVERGED and problem.certify_gap(found.params).theorem == HESSIAN_THEOREM
    assert -1e-12 <= found.objective[0] - best <= found.gap[0]


def test_a_missing_proof_is_reported(rng):
    """One parameter without a ridge that no outcome depends on: it stays, and nothing is proved."""
    problem, model = listed(rng, n=60, strength=0.01)
    features = [np.column_stack([f, np.ones(len(f))]) for f in model[0]]
    flat = LogLinearProblem(features, model[1], [0.01, 0.01, 0.01, 0.0], model[3], model[4])
    found, known = fit(flat, tol=1e-12), fit(problem, tol=1e-12)
    assert found.status == Status.UNPROVED and not found.gap_is_bound and np.isinf(flat.certify_gap(found.params).bound)
    np.testing.assert_allclose(found.params[:3], known.params, atol=1e-3)
    assert found.params[3] == 0.0


def test_rows_with_a_single_possible_outcome_change_nothing(rng):
    problem, (features, observed, strength, log_h, weight) = listed(rng)
    more = [*features, np.ones((1, 3)), np.ones((2, 3))]
    h = [*log_h, np.zeros(1), np.array([-np.inf, 0.0])]
    larger = LogLinearProblem(more, [*observed, 0, 1], strength, h, [*weight, 1.0, 1.0])
    theta, n = rng.normal(size=3), len(features)
    ridge = strength @ theta**2 / 2
    assert larger.objective(theta) - ridge == pytest.approx((problem.objective(theta) - ridge) * n / (n + 2))


# ------------------------------------------------------------------------- softmax


def test_a_softmax_given_as_a_log_linear_model_is_fitted_as_one(rng):
    """The last class's intercept is 0, so that no direction is flat; the ridge penalises only the weights."""
    n, d, K = 60, 2, 3
    X = rng.normal(size=(n, d))
    y = np.argmax(X @ rng.normal(size=(d, K)) + rng.gumbel(size=(n, K)), axis=1)
    intercepts = np.eye(K)[:, :-1]
    features = [np.hstack([np.kron(np.eye(K), x), intercepts]) for x in X]
    strength = np.append(np.full(K * d, 0.1), np.zeros(K - 1))
    found = fit(LogLinearProblem(features, y, strength), tol=1e-12, max_epochs=1000)
    model = glmfit.SoftmaxGLM(solver_name="ConjugateGradients", regularizer_strength=0.1, tol=1e-10).fit(X, y)
    assert found.status == Status.CONVERGED
    assert found.objective[0] == pytest.approx(model.report_.objective, abs=1e-8)
    found_p = np.array(outcome_probabilities(features, found.params))
    np.testing.assert_allclose(found_p, model.predict_proba(X), atol=1e-3)


@pytest.mark.parametrize("order", ORDERS)
def test_exact_steps_of_a_softmax_are_those_of_the_log_linear_model(order, rng):
    n, d, K = 60, 2, 4
    X, y, offset = rng.normal(size=(n, d)), rng.integers(0, K, n), rng.normal(size=(n, K))
    softmax_problem = SoftmaxProblem(X, Pairs(np.arange(n), y, np.ones(n)), K, 0.05, False, offset)
    problem = LogLinearProblem([np.kron(np.eye(K), x) for x in X], y, 0.05, offset)
    for epochs in (1, 3):
        options = LoopOptions(tol=1e-14, max_epochs=epochs)
        start = softmax_problem.null_params()
        known = BoundMajorization(1.3, order, exact=True).run(softmax_problem, start, options=options)
        found = BoundMajorization(1.3, order).run(problem, start.coef.T.ravel(), options=options)
        np.testing.assert_allclose(found.params.reshape(K, d).T, known.params.coef, atol=1e-11)
        assert found.objective[0] == pytest.approx(known.objective[0], rel=1e-12)


# ------------------------------------------------------------------------- chains


def test_listing_a_chain_gives_the_same_objective(rng):
    problem, model = chains(rng, n_labels=3, d=2, longest=4)
    same, theta = problem.listed(), rng.normal(size=problem.n_parameters)
    assert same.objective(theta) == pytest.approx(problem.objective(theta), rel=1e-12)
    np.testing.assert_allclose(same.bound(theta).gradient, problem.bound(theta).gradient, atol=1e-12)
    for found, expected in zip(outcome_probabilities(model[0], theta), model[0], strict=True):
        np.testing.assert_allclose(found, softmax(expected @ theta), atol=1e-13)


def test_a_bound_along_the_chain_is_far_below_that_of_all_sequences(rng):
    X, labels = rng.normal(size=(3, 8, 2)), rng.integers(0, 2, (3, 8))
    problem = LabelChains(X, labels, 2, 1e-3)
    along, at_once = (np.trace(p.bound(np.zeros(8)).curvature) for p in (problem, problem.listed()))
    assert along < 0.1 * at_once


def test_decoding_finds_the_most_probable_of_all_sequences(rng):
    problem, _ = chains(rng, n_labels=3, d=2)
    for length in (1, 2, 5):
        theta, X = rng.normal(size=problem.n_parameters), rng.normal(size=(length, 2))
        labels = problem.decode(theta, X)
        features, place = oracle.chain(X, labels, 3)
        assert place == np.argmax(features @ theta)


@pytest.mark.thorough
def test_long_chains_are_fitted_without_listing_their_sequences(rng):
    """Far more sequences of labels than could be listed, fitted to a proved gap; decoding finds what was simulated."""
    weights, stay = 3 * np.array([[1.0, 0.0], [-1.0, 0.0]]), 2.0
    X, labels = [], []
    for _ in range(8):
        y = np.cumsum(rng.random(60) < 0.1) % 2
        X.append(weights[y] / 3 + 0.7 * rng.normal(size=(60, 2)))
        labels.append(y)
    problem = LabelChains(X, labels, 2, 1e-2)
    with pytest.raises(ValueError, match=r"2 labels at 60 times make 2\^60 sequences; at most 20000 are listed"):
        problem.listed()
    found = fit(problem, 1.9, tol=1e-3, max_epochs=1000)
    assert found.status == Status.CONVERGED and found.gap_is_bound.all()
    _, transitions = problem.split(found.params)
    assert transitions[0, 0] + transitions[1, 1] > transitions[0, 1] + transitions[1, 0] + stay / 2
    right = np.mean([np.mean(problem.decode(found.params, x) == y) for x, y in zip(X, labels, strict=True)])
    assert right > 0.9


# ------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": []}, "features are empty"),
        ({"features": [np.ones(3)]}, r"features of row 0 have shape \(3,\); they must be \(outcome, parameter\)"),
        ({"features": [np.eye(2), np.ones((2, 3))]}, r"features of row 1 have shape \(2, 3\)"),
        ({"features": [np.eye(2), np.full((2, 2), np.nan)]}, "features of row 1 are not finite; exclude an outcome"),
        ({"observed": [0]}, r"observed has shape \(1,\) and dtype int64; it must be an integer per row, \(2,\)"),
        ({"observed": [0.0, 1.0]}, "observed has shape .* and dtype float64"),
        ({"observed": [0, 2]}, "observed is 2 at row 1, which has 2 outcomes, or excludes this one"),
        ({"log_weights": [[0, 0], [0, -np.inf]]}, "observed is 1 at row 1, which has 2 outcomes, or excludes"),
        ({"log_weights": [[0, 0]]}, "log_weights have 1 rows, but features have 2"),
        ({"log_weights": [[0, 0], [0, 0, 0]]}, r"log_weights of row 1 have shape \(3,\); one per outcome"),
        ({"log_weights": [[0, 0], [np.nan, 0]]}, "log_weights of row 1 must be finite, or -inf"),
        ({"strength": -1.0}, "strength is -1.0; it must be a finite number of at least 0, or one per parameter"),
        ({"strength": np.ones(3)}, r"one per parameter, \(2,\)"),
        ({"sample_weight": [1.0]}, r"sample_weight has shape \(1,\); it must be one number per row, \(2,\)"),
        (
            {"sample_weight": [1.0, -1.0]},
            r"sample_weight is \[1.0, -1.0\]; it must be finite, at least 0, and not all 0",
        ),
        ({"strength": "a"}, "strength is 'a'; it must be an array of numbers"),
        (
            {"features": [[[1e160], [0.0]], [[1.0], [0.0]]]},
            "features of row 0 must be finite and at most 1e[+]100 in size",
        ),
    ],
)
def test_bad_problems_are_refused(change, message):
    good = {"features": [np.eye(2), np.eye(2)], "observed": [0, 1], "strength": 0.1}
    with pytest.raises(ValueError, match=message):
        LogLinearProblem(**(good | change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"X": []}, "X holds 0 sequences and labels 1; both need equally many"),
        ({"X": [np.ones(3)]}, r"X has shape \(3,\) at sequence 0; it must be \(time, feature\)"),
        ({"X": [np.full((3, 2), np.inf)]}, "X has shape .* at sequence 0; it must be .*, finite"),
        ({"labels": [[0, 1]]}, r"labels of sequence 0 have shape \(2,\) and dtype int64; they must be 3 integers"),
        ({"labels": [[0, 1, 2]]}, "they must be 3 integers from 0 to 1"),
        ({"n_labels": 1}, "n_labels is 1; it must be a whole number of at least 2"),
    ],
)
def test_bad_chains_are_refused(change, message):
    good = {"X": [np.ones((3, 2))], "labels": [[0, 1, 0]], "n_labels": 2, "strength": 0.1}
    with pytest.raises(ValueError, match=message):
        LabelChains(**(good | change))


def test_parameters_must_have_the_right_shape_and_be_finite():
    problem = LogLinearProblem([np.eye(2)], [0], 0.1)
    with pytest.raises(ValueError, match=r"theta has shape \(3,\); it must be 2 finite numbers"):
        problem.objective(np.ones(3))
    with pytest.raises(ValueError, match="and is not finite"):
        fit(problem, start=[np.nan, 0.0])
    with pytest.raises(ValueError, match=r"theta has shape \(3,\); features have 2 parameters"):
        outcome_probabilities([np.eye(2)], np.ones(3))


def test_bad_arguments_are_refused_by_name():
    problem = LogLinearProblem([np.eye(2)], [0], 0.1)
    with pytest.raises(ValueError, match="order is 'foo'; it must be one of"):
        problem.bound(np.zeros(2), "foo")
    with pytest.raises(ValueError, match=r"theta is \[nan, 1.0\]; it must be finite"):
        outcome_probabilities([np.eye(2)], [np.nan, 1.0])
    chains = LabelChains([np.ones((3, 2))], [[0, 1, 0]], 2, 0.1)
    with pytest.raises(ValueError, match=r"X has shape \(\) at sequence 0"):
        chains.decode(np.zeros(8), 3.0)
