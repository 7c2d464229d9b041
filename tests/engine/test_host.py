"""First steps read the rows once: their gradients, the lengths they are given, and fits that need more."""

import numpy as np
import pytest
from cases import problem, recording, solve
from oracles import population as oracle

from glmfit.engine import tiles
from glmfit.engine.cg import Descent
from glmfit.engine.host import HostRows
from glmfit.engine.metric import SharedMetric
from glmfit.solvers import LoopOptions


@pytest.fixture
def light(monkeypatch):
    """Small fits begin as large ones do."""
    monkeypatch.setattr(tiles.Tiles, "are_many", True)


def descent_of(made, at=None):
    n = made.n_neurons
    rows = HostRows(observation=made.observation, mean=made.basis.mean, dtype=made.dtype, **made.rows_of(np.arange(n)))
    ridge = np.broadcast_to(np.asarray(made.penalty.ridge_strength, float), (made.n_features, n))
    null = made.null_params()
    at = np.vstack([null.coef, null.intercept]) if at is None else at
    return Descent(rows, SharedMetric(made.basis, made.null_curvature, (made.basis.whiten**2).T @ ridge), ridge, at)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_glance_gives_the_gradient_and_keeps_nothing(weighted, light, rng):
    X, Y = recording(seed=4, t=3000, n=4)
    weights = rng.uniform(size=3000) if weighted else None
    made = problem("softplus", X, Y, weights=weights)
    coef, intercept, some = 0.1 * rng.normal(size=(X.shape[1], 4)), -np.ones(4), np.array([1, 3])
    at = np.vstack([coef, intercept + made.basis.mean @ coef])
    g, g0 = oracle.gradient("softplus", X, Y, coef, intercept, weights)
    exact = np.vstack([g - np.outer(made.basis.mean, g0), g0])
    with descent_of(made).rows as rows:
        rows.place(at)
        assert rows.held
        tolerance = 2e-6 * np.abs(X - made.basis.mean).max()
        np.testing.assert_allclose(rows.glance(at), exact, atol=tolerance)
        np.testing.assert_allclose(rows.glance(at[:, some], some), exact[:, some], atol=tolerance)
        assert not rows.held
        rows.hold(at)
        assert rows.held
        p = rng.normal(size=at.shape)
        for n in range(4):
            H = oracle.hessian("softplus", X - made.basis.mean, Y[:, n], coef[:, n], at[-1, n], weights)
            np.testing.assert_allclose(rows.products(p)[0][:, n], H @ p[:, n], rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weighted", [False, True])
def test_lengths_from_some_rows_are_close_to_those_at_which_slopes_vanish(weighted, rng):
    X, Y = recording(seed=4, t=20_000)
    weights = rng.uniform(size=20_000) if weighted else None
    descent = descent_of(problem("softplus", X, Y, weights=weights))
    with descent.rows as rows:
        p, slope = descent.choose(np.ones(len(descent.own), bool))
        rise = descent.inner(descent.ridge * p, p)
        for size in (0.3, 1.0, 2.0):  # directions that are too short, about right, and too long
            length = rows.lengths(descent.at, size * p, size * slope, size**2 * rise)
            at = descent.at + length * size * p
            end = descent.inner(rows.glance(at) + descent.ridge * at, size * p)
            assert np.all(np.abs(end) < 0.5 * size * np.abs(slope)) and np.all(length > 0)


@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_fits_that_begin_with_one_reading_a_step_are_proved(link, light, rng, monkeypatch):
    X, Y = recording(link, seed=6, t=4000)
    glances, glance = [], HostRows.glance
    monkeypatch.setattr(HostRows, "glance", lambda *given: glances.append(0) or glance(*given))
    found = solve(problem(link, X, Y, strength=1e-3), LoopOptions(tol=1e-8))
    assert glances and found.gap_is_bound.all()
    gap = found.objective - oracle.newton(link, X, Y, 1e-3).objective
    assert np.all(gap <= found.gap + 1e-13)


def test_a_step_that_no_correction_rescues_is_followed_by_one_that_is_sure_to_descend(light, monkeypatch, rng):
    """Guessed lengths are absurd, so that the rate overflows; then lengths come from the curvature of all rows."""
    X, Y = recording("exp", seed=3, t=4000)
    X[0] *= 1e4
    monkeypatch.setattr(HostRows, "lengths", lambda self, at, p, slope, rise: np.full(len(slope), 1e12))
    descent = descent_of(problem("exp", X, Y, strength=1e-3))
    with descent.rows:
        before, moving, start = descent.estimate.copy(), np.ones(len(descent.fits), bool), descent.at.copy()
        descent.advance(moving)
        assert descent.rows.held and not descent.gained.any()
        np.testing.assert_array_equal(descent.at, start)
        for _ in range(12):
            descent.advance(moving)
        assert np.all(descent.estimate < before)


def test_light_rows_split_into_light_rows(light, rng):
    X, Y = recording(seed=5, t=3000, n=5)
    descent = descent_of(problem("softplus", X, Y))
    with descent.rows:
        descent.advance(np.ones(5, bool))
        assert not descent.rows.held
        one, other = descent.split(np.array([0, 2]), np.array([1, 3, 4]))
        for part in one, other:
            assert not part.rows.held
            part.renew_metrics(np.arange(len(part.fits)), np.ones(X.shape[1]))
            assert part.rows.held
            before = part.estimate.copy()
            part.advance(np.ones(len(part.fits), bool))
            assert np.all(part.estimate < before)
