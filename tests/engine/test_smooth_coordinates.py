"""Coordinates of smooth terms: penalties are unchanged, and every direction occurs once."""

import numpy as np
import pytest

from glmfit.design import BSpline, CyclicBSpline, Term
from glmfit.engine.smooth.coordinates import Coordinates


def coordinates(X, terms, weights=None):
    return Coordinates(X, {name: (t.features, t.penalties) for name, t in terms.items()}, weights)


def penalties(X, terms, strengths, coef):
    """Sum of strength w'Sw / 2 from the matrices as given."""
    value, at = 0.0, 0
    for term in terms.values():
        w = coef[list(term.features)]
        for S in term.penalties:
            value += strengths[at] * w @ S @ w / 2
            at += 1
    return value


def rank(A):
    s = np.linalg.svd(A / np.linalg.norm(A, axis=0), compute_uv=False)
    return int(np.sum(s > 1e-8 * s[0]))


def rotated(rng, k, ranks):
    """Matrices with the same eigenvectors."""
    Q = np.linalg.qr(rng.normal(size=(k, k)))[0]
    found = [(Q * np.r_[rng.uniform(0.1, 2, r), np.zeros(k - r)][shift]) @ Q.T for r, shift in ranks]
    return [(S + S.T) / 2 for S in found]


def cases(rng):
    k = 5
    two = [root @ root.T for root in (rng.normal(size=(k, 2)), rng.normal(size=(k, 3)))]
    order = np.arange(k)
    return {
        "ridge": Term.ridge(range(k)),
        "walk": Term.random_walk(range(k), 2),
        "ard": Term.ard(range(k)),
        "none": Term(range(k), ()),
        "commuting": Term(range(k), rotated(rng, k, [(3, order), (2, order[::-1])])),
        "overlapping": Term(range(k), rotated(rng, k, [(3, order), (4, order)])),
        "mixed": Term(range(k), two),
        "mixed with a diagonal": Term(range(k), [two[0], np.diag([1.0, 2, 0, 0, 3])]),
    }


KINDS = list(cases(np.random.default_rng(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_penalties_of_coordinates_equal_those_of_coefficients(kind, rng):
    term = cases(rng)[kind]
    X = rng.normal(size=(60, 7)) + rng.normal(size=7)
    terms = {"a": Term.ridge([5]), "b": term}
    space = coordinates(X, terms)
    strengths = rng.uniform(0.1, 3, (4, space.n_penalties))
    g = rng.normal(size=(4, space.n_coordinates + 1))
    coef, intercept = space.plain(g)
    assert bool(space.mixed) == kind.startswith("mixed")
    found = space.value(strengths, g[:, :-1])
    np.testing.assert_allclose(found, [penalties(X, terms, s, w) for s, w in zip(strengths, coef.T)], rtol=1e-9)
    np.testing.assert_allclose(X @ coef + intercept, ((X - space.mean) @ space.turn) @ g[:, :-1].T + g[:, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_coordinates_span_the_space_of_the_features(kind, rng):
    X = rng.normal(size=(60, 7)) + rng.normal(size=7)
    space = coordinates(X, {"b": cases(rng)[kind]})
    assert space.n_coordinates == 7
    assert rank(np.column_stack([(X - space.mean) @ space.turn, np.ones(60)])) == 8


def test_places_are_contiguous_and_hold_the_features_of_their_terms(rng):
    X = rng.normal(size=(50, 8))
    space = coordinates(X, {"a": Term.ridge([6, 2]), "b": Term([0, 3, 5], ()), "c": Term.ard([7])})
    assert list(space.places) == ["a", "b", "c", None] and space.term_of == ["a", "c"]
    ends = [(s.start, s.stop) for s in space.places.values()]
    assert ends == [(0, 2), (2, 5), (5, 6), (6, 8)]
    for name, features in {"a": [6, 2], "b": [0, 3, 5], "c": [7], None: [1, 4]}.items():
        others = np.setdiff1d(np.arange(8), features)
        assert not np.any(space.turn[others, space.places[name]])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_moments_equal_those_of_the_rows(weighted, dtype, rng):
    X = (rng.normal(size=(9000, 3)) * [1, 1e-3, 1e3] + [1e3, 1.0, -3e5]).astype(dtype)
    w = rng.uniform(0, 2, 9000) if weighted else None
    space = coordinates(X, {"a": Term.ridge([0, 1, 2])}, w)
    exact = np.average(X.astype(np.longdouble), axis=0, weights=w)
    np.testing.assert_allclose(space.mean, exact.astype(float), rtol=1e-12)
    z = (X - exact).astype(float)
    gram = (z.T * (np.ones(9000) if w is None else w)) @ z / (9000 if w is None else w.sum())
    np.testing.assert_allclose(space.gram, space.turn.T @ gram @ space.turn, rtol=1e-9, atol=1e-9 * np.max(gram))


def test_constant_spanned_by_a_term_is_removed_from_the_unpenalised_directions(rng):
    x = rng.uniform(0, 1, 300)
    basis = BSpline(8, (0, 1), name="x")
    space = coordinates(basis.features(x), basis.terms)
    assert space.n_coordinates == 7  # the line stays, the constant is the intercept
    assert np.sum(~np.any(space.diagonal > 0, axis=0)) == 1
    around = CyclicBSpline(8, name="x")
    assert coordinates(around.features(2 * np.pi * x), around.terms).n_coordinates == 7


def test_directions_of_an_earlier_term_are_not_repeated(rng):
    x, z = rng.uniform(0, 1, (2, 300))
    one, two = BSpline(8, (0, 1), name="a"), BSpline(6, (0, 1), name="b")
    basis = one + two
    same, other = coordinates(basis.features(x, x), basis.terms), coordinates(basis.features(x, z), basis.terms)
    assert (same.n_coordinates, other.n_coordinates) == (7 + 4, 7 + 5)
    X = np.column_stack([basis.features(x, z), 3 * x - 7, z + x, rng.normal(size=300)])
    assert coordinates(X, basis.terms).n_coordinates == 7 + 5 + 1  # lines of x and z are already there


def test_repeated_unpenalised_features_are_removed_whatever_their_units(rng):
    base = rng.normal(size=(200, 2))
    X = np.column_stack([base, base @ [1, 2], np.full(200, 3.7), base[:, 0] * 1e6 + 4e6, rng.normal(size=200) * 1e-6])
    space = coordinates(X, {})
    assert space.n_coordinates == 3 and list(space.places) == [None]
    assert rank((X - space.mean) @ space.turn) == 3


def test_features_of_a_term_without_a_penalty_may_have_any_units(rng):
    X = rng.normal(size=(200, 3)) * [1e4, 1e-2, 1.0]
    assert coordinates(X, {"a": Term([0, 1, 2], ())}).n_coordinates == 3


def test_penalised_directions_stay_if_repeated_and_are_removed_if_constant(rng):
    X = rng.normal(size=(50, 4))
    X[:, 1], X[:, 2] = 0.0, X[:, 0]
    space = coordinates(X, {"a": Term.ridge([0, 1]), "b": Term.ridge([2]), "c": Term([3], ())})
    assert space.n_coordinates == 3
    assert np.linalg.matrix_rank(space.gram) == 2
    assert not space.turn[1].any()


def test_unpenalised_directions_get_a_ridge_on_request(rng):
    X = np.append(rng.normal(size=(60, 4)), np.ones((60, 1)), axis=1)
    walk = {"a": Term.random_walk([0, 1, 2, 3]), "b": Term.ridge([4])}
    plain, selected = (
        Coordinates(X, {name: (t.features, t.penalties) for name, t in walk.items()}, select=select)
        for select in (False, True)
    )
    assert plain.term_of == ["a", "b"] and selected.term_of == ["a", "a", "b"]
    np.testing.assert_allclose(plain.turn, selected.turn)
    np.testing.assert_allclose(selected.free_parts["a"], np.full((4, 4), 0.25), atol=1e-9)
    assert np.array_equal(selected.diagonal[1], [1.0, 0.0, 0.0, 0.0])
    strengths = rng.uniform(1, 2, (1, 3))
    g = rng.normal(size=(1, 4))
    w = selected.turn @ g[0]
    expected = strengths[0, 0] * w[:4] @ walk["a"].penalties[0] @ w[:4] + strengths[0, 1] * w[:4].sum() ** 2 / 4
    np.testing.assert_allclose(selected.value(strengths, g)[0], expected / 2)


def test_back_converts_parameters_to_those_of_shifted_features(rng):
    X = rng.normal(size=(40, 6)) + 5
    space = coordinates(X, {"a": Term.random_walk([1, 2, 4]), "b": Term.ridge([0])})
    shift, scale = rng.normal(size=6), rng.uniform(0.5, 2, 6)
    g = rng.normal(size=(3, space.n_coordinates + 1))
    at = space.back(shift, scale) @ g.T
    coef, intercept = space.plain(g)
    np.testing.assert_allclose(((X - shift) / scale) @ at[:-1] + at[-1], X @ coef + intercept)


def test_sizes_are_the_diagonals_of_all_penalties(rng):
    terms = {"a": cases(rng)["mixed"], "b": Term.ridge([5, 6])}
    space = coordinates(rng.normal(size=(50, 7)), terms)
    np.testing.assert_allclose(space.sizes().sum(axis=1), [*(np.trace(S) for S in terms["a"].penalties), 2.0])


def test_no_terms_are_allowed(rng):
    space = coordinates(rng.normal(size=(30, 2)), {})
    assert (space.n_penalties, space.n_coordinates) == (0, 2)


@pytest.mark.parametrize("order, n", [(2, 500), (3, 150), (4, 60)])
def test_a_random_walk_leaves_polynomials_free_and_no_more(order, n, rng):
    space = coordinates(rng.normal(size=(n + 100, n)), {"a": Term.random_walk(range(n), order)})
    assert np.sum(~space.diagonal.any(axis=0)) == order


def test_a_repeat_of_a_feature_in_other_units_is_excluded(rng):
    Z = rng.normal(size=(200, 3))
    X = np.column_stack([Z, Z[:, 2]]) * [1, 1, 1e-10, 1]
    space = coordinates(X, {"a": Term((0, 1, 2), (np.diag([1.0, 0.0, 0.0]),))})
    assert space.n_coordinates == 3 and space.is_whole


def test_rows_of_almost_no_weight_do_not_hide_that_features_vary(rng):
    X, weights = rng.normal(size=(300, 2)), np.ones(300)
    X[:20], weights[:20] = 1e9, 1e-30
    turn = Coordinates(X, {}, weights).turn
    np.testing.assert_allclose(turn, Coordinates(X[20:], {}).turn, rtol=1e-9)
