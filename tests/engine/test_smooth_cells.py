"""Sums over rows in cells against sums over all rows and features."""

import numpy as np
import pytest
from oracles import responses
from oracles import smooth_terms as oracle

from glmfit.design import BSpline
from glmfit.engine.smooth.cells import Rows
from glmfit.observations import Bernoulli, Binomial, Gamma, Gaussian, NegativeBinomial, PoissonExp, PoissonSoftplus

MODELS = {
    "softplus": PoissonSoftplus(), "exp": PoissonExp(), "NegativeBinomial": NegativeBinomial(0.5),
    "Bernoulli": Bernoulli(), "Binomial": Binomial(), "Gaussian": Gaussian(), "Gamma": Gamma(),
}  # fmt: skip
EXTRAS = ["plain", "weights", "own", "offset", "offsets", "all"]


def made(name, extras, rng, t=700, n=12, dense=False):
    """Rows, and all inputs of the sums by definition."""
    basis = BSpline(7, (0, 1), name="a") + BSpline(6, (0, 1), name="b")
    X = basis.features(rng.uniform(0, 1, t), rng.uniform(0, 1, t))
    if dense:
        X = X + rng.normal(size=X.shape)
    X = np.column_stack([X, 50 + rng.normal(size=t), rng.normal(size=t)])
    d = X.shape[1]
    shift, scale = np.r_[np.zeros(d - 2), 50.0, 0.0], rng.uniform(0.5, 2, d)
    at = 0.4 * rng.normal(size=(d + 1, n))
    eta = ((X - shift) / scale) @ at[:-1] + at[-1]
    Y = responses.draw(name, rng, eta, 0.5, np.full(eta.shape, 3)) / (3 if name == "Binomial" else 1)
    given = {}
    if extras in ("weights", "all"):
        given["weights"] = rng.uniform(0, 2, t)
    if extras in ("own", "all"):
        given["own"] = rng.uniform(0, 2, (t, n)) * (rng.random((t, n)) > 0.2)
    if extras in ("offset", "offsets", "all"):
        given["offset"] = rng.normal(size=(t, 1 if extras == "offset" else n)) * 0.3
    groups = [range(7), range(7, 13)]
    return Rows(X, Y, MODELS[name], shift, scale, groups, **given), X, Y, shift, scale, at, given


def by_definition(name, X, Y, shift, scale, at, given, fits, inverse=None):
    """Loss, gradient, square, Hessian and bend of some fits."""
    z = np.column_stack([(X - shift) / scale, np.ones(len(X))])
    t, n = Y.shape
    w = np.broadcast_to(given.get("weights", np.ones(t))[:, None], (t, n)) * given.get("own", np.ones((t, n)))
    offset = np.broadcast_to(given.get("offset", np.zeros((t, 1))), (t, n))
    found = []
    for k, of in enumerate(fits):
        eta, y, v = z @ at[:, k] + offset[:, of], Y[:, of], w[:, of]
        loss = responses.loss(name, y, eta, 0.5) - (y**2 / 2 if name == "Gaussian" else 0.0)
        slope, bend = responses.slopes(name, y, eta, 0.5)
        third = oracle.curvature_slope(name, y, eta, 0.5)
        leverage = 0.0 if inverse is None else np.einsum("ti,ij,tj->t", z, inverse[k], z)
        found.append((v @ loss, z.T @ (v * slope), v @ slope**2, (z.T * (v * bend)) @ z, z.T @ (v * third * leverage)))
    return [np.array(part) for part in zip(*found, strict=True)]


def inverses(rng, n, size):
    root = rng.normal(size=(n, size, size)) / size
    return root @ root.transpose(0, 2, 1)


@pytest.mark.parametrize("extras", EXTRAS)
@pytest.mark.parametrize("name", MODELS)
def test_sums_equal_those_over_all_rows(name, extras, rng):
    rows, X, Y, shift, scale, at, given = made(name, extras, rng, t=200)
    fits = np.arange(12)
    inverse = inverses(rng, 12, len(at))
    loss, gradient, square, H, bend = by_definition(name, X, Y, shift, scale, at, given, fits, inverse)
    for dtype, tol in ((np.float32, 2e-5), (np.float64, 1e-6)):  # leverages are packed in single precision
        sums = rows.sums(at, fits, True, rows.pack(inverse), dtype)
        few = tol if dtype == np.float32 else 1e-11
        np.testing.assert_allclose(sums.loss, loss, rtol=few, atol=few * len(X))
        np.testing.assert_allclose(sums.gradient.T, gradient, atol=few * np.abs(H).max())
        np.testing.assert_allclose(rows.square(sums.hessian), H, atol=few * np.abs(H).max())
        np.testing.assert_allclose(sums.bend.T, bend, atol=tol * (np.abs(bend).max() + 1e-3))
        if MODELS[name].has_scale:
            np.testing.assert_allclose(sums.square, square, rtol=10 * few)


@pytest.mark.thorough
@pytest.mark.parametrize("fits", [[3], [0, 5, 7], [11, 2, 2, 9, 4, 1, 0, 3, 8]], ids=len)
@pytest.mark.parametrize("extras", ["plain", "all"])
def test_sums_of_some_fits_match_the_definition(fits, extras, rng):
    rows, X, Y, shift, scale, at, given = made("softplus", extras, rng, t=200)
    fits, inverse = np.array(fits), inverses(rng, len(fits), len(at))
    at = at[:, fits]
    loss, gradient, _, H, bend = by_definition("softplus", X, Y, shift, scale, at, given, fits, inverse)
    sums = rows.sums(at, fits, True, rows.pack(inverse), np.float64)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-11)
    np.testing.assert_allclose(sums.gradient.T, gradient, atol=1e-10)
    np.testing.assert_allclose(rows.square(sums.hessian), H, atol=1e-10)
    np.testing.assert_allclose(sums.bend.T, bend, atol=1e-6 * np.abs(bend).max())
    alone = rows.sums(at, fits, dtype=np.float64)
    assert alone.hessian is None and alone.bend is None
    np.testing.assert_allclose(alone.loss, sums.loss, rtol=1e-13)


def test_cells_hold_every_row_once_and_all_nonzero_entries(rng):
    rows, X, _, shift, *_ = made("exp", "plain", rng, t=3000)
    assert len(rows.cells) > 3
    np.testing.assert_array_equal(np.sort(np.concatenate([c.rows for c in rows.cells])), np.arange(3000))
    for cell in rows.cells:
        gone = np.setdiff1d(np.arange(X.shape[1]), cell.columns[:-1])
        assert cell.columns[-1] == X.shape[1] and not X[cell.rows][:, gone].any() and not shift[gone].any()


def test_sums_of_many_rows_in_many_cells_match_the_definition(rng):
    rows, X, Y, shift, scale, at, given = made("Bernoulli", "all", rng, t=20_000, n=9)
    fits = np.arange(9)
    loss, gradient, _, H, _ = by_definition("Bernoulli", X, Y, shift, scale, at, given, fits)
    sums = rows.sums(at, fits, True, dtype=np.float64)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-11)
    np.testing.assert_allclose(sums.gradient.T, gradient, atol=1e-11 * np.abs(H).max())
    np.testing.assert_allclose(rows.square(sums.hessian), H, atol=1e-11 * np.abs(H).max())


def test_sums_can_be_restricted_to_some_rows(rng):
    rows, X, Y, shift, scale, at, given = made("exp", "all", rng, t=300)
    only = np.sort(rng.choice(300, 100, replace=False))
    part = Rows(X, Y, MODELS["exp"], shift, scale, [range(7), range(7, 13)], **given, only=only)
    some = {name: of[only] for name, of in given.items()}
    loss, gradient, _, H, _ = by_definition("exp", X[only], Y[only], shift, scale, at, some, np.arange(12))
    sums = part.sums(at, np.arange(12), True, dtype=np.float64)
    np.testing.assert_allclose(sums.loss, loss, rtol=1e-11)
    np.testing.assert_allclose(sums.gradient.T, gradient, atol=1e-10)
    np.testing.assert_allclose(rows.square(sums.hessian), H, atol=1e-10)


@pytest.mark.parametrize("eta", [-80.0, -30.0, -12.0, -5.0, 30.0, 100.0, 3e3])
def test_sums_of_the_softplus_stay_accurate_far_from_0(eta, rng):
    y = np.r_[np.zeros(5), rng.poisson(max(eta, 1.0), 5)].astype(float)
    X, at = np.ones((10, 1)), np.array([[eta], [0.0]])
    rows = Rows(X, y[:, None], PoissonSoftplus(), np.zeros(1), np.ones(1), [[0]])
    single, double = (rows.sums(at, np.array([0]), True, dtype=dtype) for dtype in (np.float32, np.float64))
    np.testing.assert_allclose(single.loss, double.loss, rtol=1e-5)
    np.testing.assert_allclose(single.gradient, double.gradient, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(single.hessian, double.hessian, rtol=1e-3, atol=1e-5)


def test_furthest_and_longest_are_tight_upper_bounds(rng):
    rows, X, _, shift, scale, at, _ = made("exp", "plain", rng, t=500)
    z = np.column_stack([(X - shift) / scale, np.ones(500)])
    moved, long = np.abs(z @ at).max(axis=0), (np.abs(z) @ np.abs(at)).max(axis=0)
    furthest, longest = rows.furthest(at), rows.longest(np.abs(at))
    assert np.all(furthest >= moved) and np.all(furthest <= moved * (1 + 1e-3))
    assert np.all(longest >= long) and np.all(longest <= long * (1 + 1e-3))


def test_pack_turns_quadratic_forms_into_sums_of_products(rng):
    rows, *_ = made("exp", "plain", rng, t=50)
    A, z = inverses(rng, 3, 16), rng.normal(size=16)
    i, j = np.triu_indices(16)
    np.testing.assert_allclose((z[i] * z[j]) @ rows.pack(A), np.einsum("i,nij,j->n", z, A, z), rtol=1e-5)
