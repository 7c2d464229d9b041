"""Laws of the existence of an optimum: it agrees with enumeration, and every fit reports it."""

import warnings

import numpy as np
import pytest
from cases import problem

from glmfit import PopulationGLM, SoftmaxGLM, Status
from glmfit.engine.exact.recession import find_recession, recedes
from glmfit.inference import wald_table


def enumerated(rows):
    """In the plane: the edge of a cone of directions is perpendicular to a row, or else the cone is a half plane."""
    turned = np.stack([-rows[:, 1], rows[:, 0]], axis=1)
    moves = rows @ np.concatenate([turned, -turned, -rows]).T
    return bool(np.any(np.all(moves <= 1e-12, axis=0) & np.any(moves < -1e-6, axis=0)))


@pytest.mark.parametrize("seed", range(40))
def test_a_direction_is_found_exactly_if_enumeration_finds_one(seed):
    rng = np.random.default_rng(seed)
    spread = [1.0, 3.0, np.pi, np.pi, 2 * np.pi][seed % 5]  # with π, one row decides whether the cone closes
    angles = np.sort(rng.uniform(0, spread, rng.integers(2, 7)))
    if seed % 5 == 3:
        angles = np.r_[0.0, angles, np.pi]  # one line left, along which those between move
    rows = np.stack([np.cos(angles), np.sin(angles)], axis=1) * rng.exponential(size=len(angles))[:, None]
    assert recedes(rows) is enumerated(rows)


@pytest.mark.parametrize("seed", range(20))
def test_a_direction_holds_for_every_row_even_if_few_rows_may_move(seed):
    """Most rows lie in a face that no direction leaves; heavy weights hide those that do."""
    rng = np.random.default_rng(seed)
    n_held, n_free = rng.integers(1, 12), rng.integers(1, 6)
    held = rng.normal(size=(60, n_held))
    held = np.vstack([held, -(rng.uniform(size=(3, 60)) @ held)])  # positive sums that vanish: these rows stay
    held = np.hstack([np.vstack([held, -held]), np.zeros((126, n_free))])
    free = np.hstack([rng.normal(size=(20, n_held)), rng.normal(size=(20, n_free)) - 3.0])
    rows = np.vstack([held, free])[rng.permutation(146)] @ np.linalg.qr(rng.normal(size=(n_held + n_free,) * 2))[0]
    u = find_recession(rows)
    moves = rows @ u
    assert moves.max() < 1e-6 * np.abs(u).max() and moves.min() < -1e-4 * np.abs(u).max()
    assert recedes(np.vstack([rows, -rows])) is False


def test_rows_that_never_move_give_no_direction():
    assert recedes(np.zeros((5, 3))) is False
    assert recedes(np.zeros((0, 3))) is False
    line = np.outer([1.0, -1.0, 2.0], [1.0, 2.0, 3.0])  # both ways along one line: it stays where it is
    assert recedes(line) is False
    assert recedes(np.abs(line)) is True


def test_short_rows_count_as_much_as_long_ones():
    assert recedes(np.array([[-1e8], [1.0]])) is False
    assert recedes(np.array([[-1e8, 0.0], [0.0, -1.0]])) is True


@pytest.mark.thorough
def test_thousands_of_inequalities_are_solved():
    """No single feature is low in all rows, but a combination is."""
    rows = np.random.default_rng(1).normal(size=(20_000, 40))
    rows[:, 0] -= 3.2
    assert (rows.max(axis=0) > 0).all() and recedes(rows) is True


def test_many_rows_are_taken_a_few_at_a_time():
    """One row of 20 000 closes the cone."""
    rng = np.random.default_rng(0)
    rows = np.abs(rng.normal(size=(20_000, 6)))
    assert recedes(rows) is True
    rows[12_345] = -1e-3
    rows = np.concatenate([rows, np.eye(6)])
    assert recedes(rows) is False


def test_a_rectified_neuron_has_an_optimum():
    """Rates range from 1e-30 to 100: the optimum is far away, but it exists."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 2))
    y = rng.poisson(np.logaddexp(0, 30 * X[:, 0]))
    model = PopulationGLM(regularizer="UnRegularized").fit(X, y)
    assert model.report_.status == Status.CONVERGED and model.report_.gap_is_bound.all()
    np.testing.assert_allclose(model.coef_, [30, 0], atol=1)
    table = wald_table(model, X, y)
    assert np.all(np.isfinite(np.asarray(table.standard_error)))


def test_rows_without_weight_do_not_decide_whether_there_is_an_optimum():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(400, 2)), rng.poisson(1.0, 400)
    X[:, 0] = np.arange(400) % 4 == 0
    y[X[:, 0] == 1] = 0
    y[4] = 3
    without = (np.arange(400) != 4).astype(float)
    fit = PopulationGLM(regularizer="UnRegularized").fit
    assert fit(X, y).report_.status == Status.CONVERGED
    with warnings.catch_warnings(action="ignore"):
        assert fit(X, y, without).report_.status == Status.SEPARABLE


@pytest.mark.thorough
@pytest.mark.parametrize("n_rows", [7, 13, 50, 2000])
@pytest.mark.parametrize("count", [1, 3])
def test_one_indicator_of_silent_rows_leaves_no_optimum(n_rows, count):
    """The reach times the decrement is 1 exactly; rounding must not make a bound of it."""
    for silent in (1, 2, 3):
        X = (np.arange(n_rows) < silent)[:, None] + 0.0
        y = np.where(X[:, 0] == 0, float(count), 0.0)
        with warnings.catch_warnings(action="ignore"):
            report = PopulationGLM("exp", regularizer_strength=0.0).fit(X, y).report_
        assert report.status == Status.SEPARABLE and not report.gap_is_bound


@pytest.mark.parametrize("n_rows, move", [(2000, 3e-6), (10_000, 1e-5)])
@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_few_spikes_with_tiny_features_still_give_an_optimum(n_rows, move, link):
    X, y = np.full((n_rows, 1), -1.0), np.zeros(n_rows)
    X[: n_rows // 2] = -2
    X[:2, 0], y[:2] = [move, -move], 1
    report = PopulationGLM(link, regularizer_strength=0.0).fit(X, y).report_
    assert report.status == Status.CONVERGED and report.gap_is_bound


def test_one_silent_row_gives_an_optimum_however_far_the_others_are():
    X, y = np.zeros((400, 1)), np.ones(400)
    X[:300], X[300], y[:301] = -1e8, 1, 0
    report = PopulationGLM("exp", regularizer_strength=0.0).fit(X, y).report_
    assert report.status == Status.CONVERGED and report.gap_is_bound


@pytest.mark.parametrize("n_rows", range(4, 24))
def test_labels_that_are_their_own_feature_are_separable(n_rows):
    y = np.arange(n_rows) // (n_rows // 2)
    with warnings.catch_warnings(action="ignore"):
        report = SoftmaxGLM(regularizer_strength=0.0).fit(y[:, None] + 0.0, y).report_
    assert report.status == Status.SEPARABLE and not report.gap_is_bound


def test_a_penalised_coefficient_gives_no_direction():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 2)), rng.poisson(1.0, 300)[:, None].astype(float)
    X[:, 0] = np.arange(300) % 4 == 0
    y[X[:, 0] == 1] = 0
    for strength, answer in (((0.0, 0.0), True), ((1e-6, 0.0), False), ((0.0, 1e-6), True)):
        assert problem("softplus", X, y, strength=np.array(strength)[:, None]).recedes is answer


@pytest.mark.thorough
def test_a_class_that_is_separable_from_the_others_leaves_no_optimum():
    """c is separable from a and b, which are mixed: only rows of c improve indefinitely."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(600, 2))
    mixed = np.where(X[:, 1] + rng.normal(size=600) > 0, "a", "b")
    labels = np.where(X[:, 0] > 1, "c", mixed)
    with warnings.catch_warnings(action="ignore"):
        model = SoftmaxGLM(regularizer_strength=0, max_epochs=2000).fit(X, labels)
    assert model.report_.status == Status.SEPARABLE and not model.report_.gap_is_bound
    held = SoftmaxGLM(regularizer_strength=1e-4).fit(X, labels)
    assert held.report_.gap_is_bound
    assert SoftmaxGLM(regularizer_strength=0).fit(X, mixed).report_.status == Status.CONVERGED


@pytest.mark.parametrize("kind", ["sum to one", "zero"])
def test_redundant_columns_give_no_direction(kind):
    """The rounding errors along their direction once looked like a direction."""
    for seed in range(20):
        rng = np.random.default_rng(seed)
        X = np.column_stack([np.eye(3)[rng.integers(0, 3, 60)], rng.normal(size=(60, 2))])
        if kind == "zero":
            X[:, 1] = 0
        assert problem("exp", X, rng.poisson(1.0, (60, 1)) + 0.0, strength=0.0).recedes is False
