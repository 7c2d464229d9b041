"""Minima of quadratics plus norms meet the conditions of optimality, alone and several at once."""

import numpy as np
import pytest

from glmfit.engine.exact import kinked


def quadratic(rng, trial, most=25):
    """Positive definite Q and c; some variables nearly repeat others."""
    n = int(rng.integers(2, most))
    A = rng.normal(size=(n + 5, n)) @ np.diag(rng.uniform(0.1, 1, n))
    if trial % 3 == 0:
        A[:, 1] = A[:, 0] + 1e-3 * rng.normal(size=n + 5)
    return A.T @ A, A.T @ rng.normal(size=n + 5)


def grouped(rng, trial, most=25):
    """Quadratic with groups, one of them without a norm, and a start of which half the groups are zero."""
    Q, c = quadratic(rng, trial, most)
    n = len(c)
    labels = np.unique(rng.integers(-1, 1 + n // 3, n), return_inverse=True)[1] - 1
    strength = np.full(labels.max() + 1, rng.uniform(0.01, 1.1) * np.abs(c).max())
    if len(strength):
        strength[rng.integers(len(strength))] = 0
    start = rng.normal(size=n) * np.append(rng.random(len(strength)) < 0.5, True)[labels]
    return Q, c, labels, strength, start


def least(Q, c, labels, strength, start):
    """Minimise one model."""
    return kinked.least_of_models(Q[None], c[None], labels[None], strength[None], start[None])[0]


def missed(w, Q, c, labels, strength):
    """Violation of the conditions of optimality, over the terms that add up to it."""
    g, found = Q @ w - c, [0.0]
    for k in np.unique(labels):
        at, s = labels == k, strength[k] if k >= 0 else 0.0
        norm = np.linalg.norm(w[at])
        if norm:
            found.append(np.linalg.norm(g[at] + s * w[at] / norm))
        else:
            found.append(max(np.linalg.norm(g[at]) - s, 0))
    return max(found) / (np.abs(c).max() + strength.max(initial=0.0))


@pytest.mark.parametrize("bold", [30, 0], ids=["all at once", "one by one"])
@pytest.mark.parametrize("most", [25, 90], ids=["small", "large"])
def test_the_minimum_of_a_quadratic_plus_l1_meets_its_conditions(most, bold, rng, monkeypatch):
    monkeypatch.setattr(kinked, "_BOLD", bold)
    for trial in range(60):
        Q, c = quadratic(rng, trial, most)
        n = len(c)
        strength = np.full(n - 1, rng.uniform(0.01, 1.1) * np.abs(c).max())
        start, labels = rng.normal(size=n) * (rng.random(n) < 0.5), np.append(np.arange(n - 1), -1)
        w = least(Q, c, labels, strength, start)
        assert missed(w, Q, c, labels, strength) <= 1e-6


@pytest.mark.thorough
@pytest.mark.parametrize("patient", [2, 0], ids=["first over groups that switch", "over all groups"])
@pytest.mark.parametrize("near", [True, False])
def test_the_minimum_of_a_quadratic_plus_norms_of_groups_meets_its_conditions(near, patient, rng, monkeypatch):
    """From a start with the right zeros, and from anywhere; some groups have no norm."""
    monkeypatch.setattr(kinked, "_SWITCHING", patient)
    for trial in range(60):
        Q, c, labels, strength, start = grouped(rng, trial)
        if near:
            start = least(Q, c * 1.01, labels, strength, start)
        w = least(Q, c, labels, strength, start)
        zero = [not w[labels == k].any() for k in np.unique(labels)]
        assert missed(w, Q, c, labels, strength) <= 1e-6 and (strength.max(initial=0) < np.abs(c).max() or any(zero))


@pytest.mark.parametrize("away", [1e-8, 1e-10])
def test_near_the_minimum_only_rounding_is_left(away, rng):
    """There objectives of a point and of the next one hardly differ, and comparing them must not shorten steps."""
    for trial in range(60):
        A = rng.normal(size=(40, 12))
        Q, c, labels = A.T @ A / 40, A.T @ rng.normal(size=40) / 40, np.repeat(np.arange(4), 3)
        strength = np.full(4, 0.1 * np.abs(c).max())
        w = least(Q, c, labels, strength, rng.normal(size=12))
        w = least(Q, c, labels, strength, w * (1 + away * rng.normal(size=12)))
        assert missed(w, Q, c, labels, strength) <= 1e-13, trial


@pytest.mark.parametrize("most", [25, 90], ids=["small", "large"])
def test_models_of_different_sizes_have_the_minima_that_each_has_alone(most, rng):
    """Models with fewer variables are continued by the identity."""
    models = [grouped(rng, trial, most) for trial in range(12)]
    n, m = max(len(c) for _, c, *_ in models), max(len(strength) for *_, strength, _ in models)
    Q, c, start = np.tile(np.eye(n), (12, 1, 1)), np.zeros((12, n)), np.zeros((12, n))
    labels, strength = np.full((12, n), m), np.zeros((12, m))
    for i, (q, *rest, begin) in enumerate(models):
        size = len(q)
        Q[i, :size, :size], c[i, :size], labels[i, :size], start[i, :size] = q, rest[0], rest[1], begin
        strength[i, : len(rest[2])] = rest[2]
    together = kinked.least_of_models(Q, c, labels, strength, start)
    for w, (q, *rest, begin) in zip(together, models, strict=True):
        assert not w[len(q) :].any() and missed(w[: len(q)], q, *rest) <= 1e-6
        alone = least(q, *rest, begin)
        np.testing.assert_allclose(q @ w[: len(q)], q @ alone, atol=1e-6 * np.abs(rest[0]).max())
        np.testing.assert_array_equal(w[: len(q)] == 0, alone == 0)


def test_an_approximate_minimum_leaves_little_of_the_decrease(rng):
    """It stops where a Newton step promises less than the share."""
    for trial in range(60):
        Q, c, labels, strength, start = grouped(rng, trial)

        def value(w, Q=Q, c=c, labels=labels, strength=strength):
            norms = [s * np.linalg.norm(w[labels == k]) for k, s in enumerate(strength)]
            return w @ Q @ w / 2 - c @ w + sum(norms)

        given = (a[None] for a in (Q, c, labels, strength, start))
        near, exact = kinked.least_of_models(*given, 0.01)[0], least(Q, c, labels, strength, start)
        total = value(start) - value(exact)
        assert value(near) - value(exact) <= 0.03 * total + 1e-9 * np.abs(c).max()


def test_a_quadratic_that_is_not_a_number_is_refused():
    given = np.full((1, 3, 3), np.nan), np.ones((1, 3)), np.full((1, 3), 0.1), np.zeros((1, 3))
    with pytest.raises(np.linalg.LinAlgError):
        kinked.minimise_l1(*given)


@pytest.mark.parametrize("n", [30, 90])
@pytest.mark.parametrize("spread", [1e-1, 1e-3])
def test_variables_that_nearly_repeat_each_other_have_their_minimum_from_zero(spread, n, rng):
    """Most of them enter at first, and many leave again."""
    for _ in range(10):
        X = rng.normal(size=(300, 3)) @ rng.normal(size=(3, n)) + spread * rng.normal(size=(300, n))
        Q = X.T @ X / 300
        c = X.T @ (X @ rng.normal(size=n) + rng.normal(size=300)) / 300
        labels, strength = np.arange(n), np.full(n, 10 ** rng.uniform(-4, -1) * np.abs(c).max())
        w = least(Q, c, labels, strength, np.zeros(n))
        assert missed(w, Q, c, labels, strength) <= 1e-6
        near = kinked.least_of_models(*(a[None] for a in (Q, c, labels, strength, np.zeros(n))), 0.01)[0]
        lowest, found = (w @ Q @ w / 2 - c @ w + np.sum(strength * np.abs(w)) for w in (w, near))
        assert lowest <= 0 and found - lowest <= 0.05 * -lowest


@pytest.mark.parametrize("spread", [1e-2, 1e-3, 1e-4])
def test_groups_of_features_that_nearly_repeat_each_other_have_their_minimum(spread, rng):
    """Newton steps go far along directions that are almost flat, and little of them can be taken."""
    for _ in range(10):
        n = int(rng.integers(8, 70))
        X = rng.normal(size=(300, 1)) + spread * rng.normal(size=(300, n))
        Q = X.T @ X / 300 * (1 + 1e-7 * np.eye(n))
        c = X.T @ (X[:, 0] + rng.normal(size=300)) / 300
        labels = np.unique(rng.integers(-1, n // 4, n), return_inverse=True)[1] - 1
        strength = np.full(labels.max() + 1, 10 ** rng.uniform(-4, -1) * np.abs(c).max())
        w = least(Q, c, labels, strength, np.zeros(n))
        assert missed(w, Q, c, labels, strength) <= 1e-6


@pytest.mark.parametrize("start", [1e-17, 1e-100])
def test_a_group_that_is_almost_zero_does_not_break_the_others(start):
    """The curvature of its norm, 0 along a group of one, is larger than anything."""
    Q = np.eye(3)
    Q[0, 1] = Q[1, 0] = 0.3
    given = Q, np.array([1.0, 2.0, 0.1]), np.array([0, 0, 1]), np.full(2, 0.5)
    w = least(*given, np.array([0.3, 1.0, start]))
    assert missed(w, *given) <= 1e-8 and w[2] == 0


def test_a_quadratic_that_is_not_positive_definite_is_refused():
    n = kinked._SMALL + 1
    with pytest.raises(np.linalg.LinAlgError, match="positive definite"):
        least(1 - np.eye(n) / 2, np.ones(n), np.arange(n), np.full(n, 0.1), np.ones(n))
