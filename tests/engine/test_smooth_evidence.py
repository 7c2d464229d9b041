"""Evidence of quadratic models against its definition, and steps that increase it."""

import numpy as np
import pytest
import scipy.optimize

from glmfit.design import Term
from glmfit.engine.smooth import search
from glmfit.engine.smooth.coordinates import Coordinates
from glmfit.engine.smooth.evidence import Quadratic, evaluate, invert, optimum, with_penalty
from glmfit.engine.smooth.held_out import HeldOut, evaluate_held_out
from glmfit.engine.smooth.search import _simplex, free_of_bounds, improve, with_uncertain_strengths


def space_of(kind, rng):
    """Coordinates of six features with terms of one kind."""
    low, other = (root @ root.T for root in (rng.normal(size=(3, 2)), rng.normal(size=(3, 2))))
    terms = {
        "ridges": {"a": Term.ridge([0, 1]), "b": Term.ridge([2, 3, 4])},
        "walk": {"a": Term.random_walk([0, 1, 2, 3]), "b": Term.ridge([5])},
        "ard": {"a": Term.ard(range(6))},
        "overlapping": {"a": Term(range(4), [np.diag([1.0, 2, 0, 0]), np.diag([0.5, 1, 3, 0])]), "b": Term.ridge([4])},
        "mixed": {"a": Term([0, 1, 2], [low, other]), "b": Term.ridge([3, 4])},
        "two mixed": {"a": Term([0, 1, 2], [low, other]), "b": Term([3, 4, 5], [other, low, np.eye(3)])},
        "free": {"a": Term([0, 1], ()), "b": Term.ridge([2])},
        "nothing penalised": {},
    }[kind]
    X = rng.normal(size=(40, 6))
    return Coordinates(X, {name: (t.features, t.penalties) for name, t in terms.items()})


KINDS = ["ridges", "walk", "ard", "overlapping", "mixed", "two mixed", "free"]


def models(space, rng, n=3, bend=False, inside=None):
    p = space.n_coordinates + 1
    root = rng.normal(size=(n, p, 2 * p))
    H, z = root @ root.transpose(0, 2, 1), 3 * rng.normal(size=(n, p))
    if inside is not None:
        has = np.append(inside, np.ones((n, 1), bool), axis=1)
        H, z = H * has[:, :, None] * has[:, None, :], z * has
    return Quadratic(H, z, 0.3 * rng.normal(size=(n, p)) if bend else None, inside)


def criterion(model, space, rho, k):
    """Definition for one fit: the energy at the optimum, and determinants over the directions it has."""
    has = np.ones(space.n_coordinates, bool) if model.inside is None else model.inside[k]
    both = np.append(has, True)
    S = space.penalty(np.exp(rho)[None])[0]
    held = has & np.any(space.sizes() > 0, axis=0)
    A = model.hessian[k].copy()
    A[:-1, :-1] += S
    A, z = A[np.ix_(both, both)], model.z[k][both]
    at = np.linalg.solve(A, z)
    value = -z @ at / 2 + np.linalg.slogdet(A)[1] / 2 - np.linalg.slogdet(S[np.ix_(held, held)])[1] / 2
    return value + (0.0 if model.bend is None else model.bend[k][both] @ at / 2)


def derivatives(function, at, step):
    move = np.eye(len(at)) * step
    slope = np.array([(function(at + m) - function(at - m)) / (2 * step) for m in move])
    bend = np.array([[
        (function(at + a + b) - function(at + a - b) - function(at - a + b) + function(at - a - b)) / (4 * step**2)
        for a in move] for b in move])  # fmt: skip
    return slope, bend


@pytest.mark.parametrize("bend, kind", [*((b, k) for b in (False, True) for k in KINDS if b or k != "two mixed")])
def test_criterion_and_its_derivatives_match_the_definition(kind, bend, rng):
    space = space_of(kind, rng)
    model, rho = models(space, rng, bend=bend), rng.normal(size=(3, space.n_penalties))
    found = evaluate(model, space, rho)
    for k in range(3):

        def value(r, k=k):
            return criterion(model, space, r, k)

        assert abs(found.criterion[k] - value(rho[k])) < 1e-9 * (1 + abs(value(rho[k])))
        slope, curvature = derivatives(value, rho[k], 1e-4)
        np.testing.assert_allclose(found.gradient[k], slope, atol=1e-6)
        if not bend:  # with a bend, the curvature is that of a model
            np.testing.assert_allclose(found.curvature[k], curvature, atol=1e-5)


def test_curvature_across_mixed_terms_is_complete(rng):
    space = space_of("two mixed", rng)
    model, rho = models(space, rng), rng.normal(size=(3, space.n_penalties))
    found = evaluate(model, space, rho)
    for k in range(3):
        _, curvature = derivatives(lambda r, k=k: criterion(model, space, r, k), rho[k], 1e-4)
        np.testing.assert_allclose(found.curvature[k], curvature, atol=1e-5)


@pytest.mark.parametrize("kind", ["ridges", "ard", "mixed", "two mixed"])
def test_directions_that_a_fit_lacks_change_nothing(kind, rng):
    space = space_of(kind, rng)
    inside = np.ones((3, space.n_coordinates), bool)
    inside[1, space.places["a"]] = False
    model, rho = models(space, rng, inside=inside), rng.normal(size=(3, space.n_penalties))
    found = evaluate(model, space, rho)
    gone = [j for j, name in enumerate(space.term_of) if name == "a"]
    assert (
        not found.gradient[1, gone].any()
        and not found.curvature[1, gone].any()
        and not found.at[1][:-1][~inside[1]].any()
    )
    for k in range(3):
        slope, _ = derivatives(lambda r, k=k: criterion(model, space, r, k), rho[k], 1e-4)
        np.testing.assert_allclose(found.gradient[k], slope, atol=1e-6)


def test_ratios_equal_those_of_fellner_and_schall(rng):
    space = space_of("ridges", rng)
    model, rho = models(space, rng), rng.normal(size=(3, 2))
    found = evaluate(model, space, rho)
    for k in range(3):
        for j, place in enumerate([space.places["a"], space.places["b"]]):
            g, V = found.at[k, place], found.inverse[k][place, place]
            strength = np.exp(rho[k, j])
            expected = (place.stop - place.start - strength * np.trace(V)) / (strength * g @ g)
            np.testing.assert_allclose(found.ratio[k, j], expected)


@pytest.mark.parametrize("kind", [*KINDS, "nothing penalised"])
def test_penalties_their_gradients_and_matrices_agree(kind, rng):
    space = space_of(kind, rng)
    strengths, at = rng.uniform(0.1, 2, (4, space.n_penalties)), rng.normal(size=(4, space.n_coordinates))
    S = space.penalty(strengths)
    np.testing.assert_allclose(space.pull(strengths, at), np.einsum("nij,nj->ni", S, at), atol=1e-12)
    np.testing.assert_allclose(space.value(strengths, at), np.einsum("ni,nij,nj->n", at, S, at) / 2)
    model = models(space, rng, 4)
    A = with_penalty(model, space, strengths)
    np.testing.assert_allclose(A[:, :-1, :-1], model.hessian[:, :-1, :-1] + S)


def test_inverses_are_right_whatever_the_units(rng):
    root = rng.normal(size=(5, 6, 9)) * 10.0 ** rng.uniform(-8, 8, (5, 6, 1))
    A = root @ root.transpose(0, 2, 1)
    inverse, log = invert(A)
    scale = np.sqrt(np.einsum("nii->ni", A))
    exact = np.linalg.inv(A / scale[:, :, None] / scale[:, None, :])
    np.testing.assert_allclose(inverse * scale[:, :, None] * scale[:, None, :], exact, rtol=1e-8)
    np.testing.assert_allclose(log, np.linalg.slogdet(A)[1], rtol=1e-10)


def test_singular_matrix_does_not_change_the_others(rng):
    root = rng.normal(size=(3, 5, 9))
    A = root @ root.transpose(0, 2, 1)
    alone, log = invert(A)
    A[1] = np.outer(root[1, :, 0], root[1, :, 0]) - 1e-9 * np.eye(5)
    inverse, logs = invert(A)
    assert np.isfinite(inverse).all() and np.linalg.eigvalsh(inverse[1])[0] >= 0
    np.testing.assert_allclose(inverse[[0, 2]], alone[[0, 2]], rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(logs[[0, 2]], log[[0, 2]])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_the_search_ends_at_a_stationary_point_or_a_bound(kind, rng):
    space = space_of(kind, rng)
    model, j = models(space, rng, 8), space.n_penalties
    low, high = np.full((8, j), -9.0), np.full((8, j), 9.0)
    start = rng.normal(size=(8, j))
    before = evaluate(model, space, start).criterion
    rho, best, gained = improve(model, space, start, low, high, 1e-4, 200)
    here = evaluate(model, space, rho)
    np.testing.assert_allclose(best.criterion, here.criterion)
    np.testing.assert_allclose(gained, before - here.criterion, atol=1e-9)
    assert np.all(here.criterion <= before + 1e-9)
    free = free_of_bounds(here.gradient, rho, low, high)
    assert np.abs(here.gradient * free).max(initial=0.0) < 5e-3  # strengths that move to their bounds shift others
    for k in range(8):
        found = scipy.optimize.minimize(
            lambda r, k=k: criterion(model, space, r, k), rho[k], method="L-BFGS-B", bounds=[(-9, 9)] * j
        )
        assert here.criterion[k] <= found.fun + 1e-3


def held_out_loss(model, space, rho, k):
    """Definition for one neuron: sum of the losses of blocks after one Newton step of the fits to the others."""
    total = 0.0
    for f in range(model.share.shape[1]):
        A = model.fitted[0][k, f].copy()
        A[:-1, :-1] += space.penalty(np.exp(rho)[None] * model.share[k, f])[0]
        at = np.linalg.solve(A, model.fitted[0][k, f] @ model.start[k, f] - model.fitted[1][k, f])
        away = at - model.start[k, f]
        total += model.test[1][k, f] @ away + away @ model.test[0][k, f] @ away / 2
    return total


@pytest.mark.parametrize("kind", KINDS)
def test_held_out_loss_and_its_gradient_match_the_definition(kind, rng):
    space = space_of(kind, rng)
    p = space.n_coordinates + 1
    root = rng.normal(size=(2, 3, 4, p, 2 * p))
    H = root @ root.swapaxes(-1, -2)
    slopes = rng.normal(size=(2, 3, 4, p))
    start, share = rng.normal(size=(3, 4, p)), rng.uniform(0.5, 1, (3, 4))
    model = HeldOut(start, (H[0], slopes[0]), (H[1], slopes[1]), share)
    rho = rng.normal(size=(3, space.n_penalties))
    found = evaluate_held_out(model, space, rho)
    for k in range(3):
        np.testing.assert_allclose(found.criterion[k], held_out_loss(model, space, rho[k], k), rtol=1e-9)
        slope, _ = derivatives(lambda r, k=k: held_out_loss(model, space, r, k), rho[k], 1e-4)
        np.testing.assert_allclose(found.gradient[k], slope, atol=1e-6 * (1 + np.abs(slope).max()))
    alone = evaluate_held_out(model.take([1]), space, rho[[1]])
    np.testing.assert_allclose(alone.gradient[0], found.gradient[1])


def test_optima_solve_the_penalised_models(rng):
    space = space_of("mixed", rng)
    model, strengths = models(space, rng), rng.uniform(0.1, 3, (3, space.n_penalties))
    at, inverse, log = optimum(model, space, strengths)
    A = with_penalty(model, space, strengths)
    np.testing.assert_allclose(np.einsum("nij,nj->ni", A, at), model.z)
    np.testing.assert_allclose(A @ inverse, np.broadcast_to(np.eye(A.shape[1]), A.shape), atol=1e-9)
    np.testing.assert_allclose(log, np.linalg.slogdet(A)[1])


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_simplex_has_mean_0_and_the_identity_as_covariance(n):
    corners = _simplex(n)
    assert corners.shape == (n + 1, n)
    np.testing.assert_allclose(corners.mean(axis=0), 0, atol=1e-12)
    np.testing.assert_allclose(corners.T @ corners / (n + 1), np.eye(n), atol=1e-12)


@pytest.mark.parametrize("kind", ["ridges", "mixed"])
def test_uncertain_strengths_spread_the_optimum(kind):
    """To first order the covariance grows by J V J', with J the derivative of the optimum by log strengths."""
    rng = np.random.default_rng(4)
    space = space_of(kind, rng)
    model, rho = models(space, rng, 2), rng.normal(size=(2, space.n_penalties))
    root = rng.normal(size=(2, space.n_penalties, space.n_penalties))
    curvature = 1e6 * (root @ root.transpose(0, 2, 1) + np.eye(space.n_penalties))
    found = with_uncertain_strengths(model, space, rho, curvature)
    step = 1e-4
    for k in range(2):
        one, at = model.take([k]), rho[[k]]
        J = np.stack(
            [
                (optimum(one, space, np.exp(at + e))[0][0] - optimum(one, space, np.exp(at - e))[0][0]) / (2 * step)
                for e in step * np.eye(space.n_penalties)
            ],
            axis=1,
        )
        inverse = optimum(one, space, np.exp(at))[1][0]
        V = np.linalg.inv(curvature[k])
        # Twice the variance of a normal; what inverses add is of the same order.
        spread = 2 * J @ V @ J.T
        seconds = found[k] - inverse - spread
        mean = np.zeros_like(inverse)
        values, vectors = np.linalg.eigh(curvature[k] + 0.1 * np.eye(len(V)))
        for corner in _simplex(len(V)):
            there = at + np.sqrt(2) * (vectors / np.sqrt(values)) @ corner
            mean += optimum(one, space, np.exp(there))[1][0] / (len(V) + 1)
        np.testing.assert_allclose(seconds, mean - inverse, atol=1e-3 * np.abs(spread).max() + 1e-12)


def test_certain_strengths_do_not_change_the_covariance():
    rng = np.random.default_rng(5)
    space = space_of("walk", rng)
    model, rho = models(space, rng, 2), rng.normal(size=(2, space.n_penalties))
    found = with_uncertain_strengths(model, space, rho, np.broadcast_to(1e12 * np.eye(space.n_penalties), (2, 2, 2)))
    np.testing.assert_allclose(found, optimum(model, space, np.exp(rho))[1], rtol=1e-6, atol=1e-9)


def test_derivatives_equal_those_of_the_criterion():
    rng = np.random.default_rng(6)
    space = space_of("ridges", rng)
    model, rho = models(space, rng, 40), rng.normal(size=(40, space.n_penalties))
    gradient, curvature = search.derivatives(model, space, rho)
    here = evaluate(model, space, rho)
    np.testing.assert_allclose(gradient, here.gradient, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(curvature, here.curvature, rtol=1e-8, atol=1e-10)
