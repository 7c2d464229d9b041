"""Designs of additive models: every covariate, product and history is a term with the requested penalty."""

import numpy as np
import pytest

from glmfit.design import BSpline, CyclicBSpline, RaisedCosineLog, Session, Term, build, product

BIN = 0.1
LOG = {"kind": "raised_cosine_log", "n": 3, "window_s": 0.5}


@pytest.fixture
def session(rng):
    """Twenty seconds of two signals and three units."""
    t = np.arange(0, 20, 0.02)
    return Session(
        spikes={name: np.sort(rng.uniform(0, 20, n)) for name, n in (("a", 90), ("b", 40), ("7", 25))},
        signals={"speed": (t, rng.normal(size=len(t))), "place": (t, rng.uniform(0, 10, (len(t), 2)), ("x", "y"))},
    )


def spline(n, **more):
    return {"kind": "bspline", "n": n, "range": [0, 10], **more}


def built_of(session, **design):
    return build(session, {"bin_s": BIN, **design}, "PopulationGAM", np.float64)


def test_each_column_of_a_basis_is_a_term_with_its_penalty(session):
    covariates = [{"signal": "place", "basis": spline(6, penalty_order=1, clamped=False)}]
    built = built_of(session, covariates=covariates)
    bases = [BSpline(6, (0, 10), name=f"place_{c}", penalty_order=1, clamped=False) for c in "xy"]
    assert built.smooth_terms == (bases[0] + bases[1]).terms
    assert built.feature_names == (bases[0] + bases[1]).feature_names
    assert built.terms == {"place": built.feature_names} and built.feature_mask is None
    assert built.notes["smooth_terms"] == {"place": ["place_x", "place_y"]}


@pytest.mark.parametrize(("order", "penalty"), [(1, 0), (2, 1), (3, 2), (5, 2)])
def test_penalty_of_splines_has_order_two_or_the_highest_possible(session, order, penalty):
    built = built_of(session, covariates=[{"signal": "place", "columns": ["x"], "basis": spline(6, order=order)}])
    assert built.smooth_terms["place_x"].basis.penalty_order == penalty


def test_covariates_without_a_basis_are_unpenalised_or_a_ridge(session):
    covariates = [{"signal": "place"}, {"signal": "speed", "lags_s": [0, 0.1, 0.2], "ridge": True}]
    built = built_of(session, covariates=covariates)
    assert built.smooth_terms == {"place": Term([0, 1]), "speed": Term.ridge([2, 3, 4])}


def test_a_product_is_a_term_with_a_penalty_for_every_factor(session):
    factors = [
        {"signal": "place", "columns": ["x"], "basis": spline(5)},
        {"signal": "speed", "basis": {"kind": "cyclic_bspline", "n": 4, "range": [0, 1]}},
    ]
    covariates = [{"signal": "speed"}]
    built = built_of(session, covariates=covariates, products=[{"name": "map", "factors": factors}])
    basis = product(BSpline(5, (0, 10), name="place_x"), CyclicBSpline(4, (0, 1), name="speed"), name="map")
    term = built.smooth_terms["map"]
    assert term.basis == basis and len(term.penalties) == 2 and term.features == tuple(range(1, 21))
    assert built.feature_names == ["speed", *basis.feature_names]
    flat = [
        built_of(session, covariates=[{"signal": "place", "columns": ["x"]}], epochs=[[0, 20]]).X[:, 0],
        built_of(
            session, covariates=[{"signal": "speed", "resample": "nearest"}], epochs=[[0, 20]]
        ).X[:, 0],
    ]  # fmt: skip
    np.testing.assert_allclose(built.X[:, 1:], basis.features(*(values[: len(built.X)] for values in flat)), atol=1e-12)
    isotropic = [{"name": "map", "isotropic": True, "factors": [{**factors[0], "columns": [c]} for c in "xy"]}]
    assert len(built_of(session, products=isotropic).smooth_terms["map"].penalties) == 1
    assert build(session, {"bin_s": BIN, "products": isotropic}).X.shape[1] == 25


def test_product_also_takes_kernels(session):
    factors = [{"signal": "place", "columns": ["x"], "basis": spline(4)}, {"signal": "speed", "basis": LOG}]
    built = built_of(session, products=[{"name": "gain", "factors": factors}])
    parts = [built_of(session, covariates=[factor], epochs=[[0, 19.9]]).X for factor in factors]
    n = min(len(built.X), len(parts[0]))
    slow = np.array([np.outer(a, b).ravel() for a, b in zip(*(part[:n] for part in parts), strict=True)])
    np.testing.assert_allclose(built.X[:n], slow, atol=1e-12)


@pytest.mark.parametrize("of", ["all", "own", "others"])
def test_the_history_of_every_unit_is_a_term(session, of):
    built = built_of(session, history={"of": of, "basis": {**LOG, "penalty_order": 1}})
    basis = RaisedCosineLog(3, 0.5, BIN, name="history", columns=["a", "b", "7"], penalty_order=1)
    assert built.smooth_terms == basis.terms and built.feature_names == basis.feature_names and built.own is None
    expected = {"own": np.eye(3, dtype=bool), "others": ~np.eye(3, dtype=bool)}.get(of)
    if of == "all":
        assert built.feature_mask is None
    else:
        assert list(built.feature_mask) == ["history_a", "history_b", "history_7"]
        np.testing.assert_array_equal(list(built.feature_mask.values()), expected)


def test_other_estimators_get_no_terms(session):
    design = {"bin_s": BIN, "history": {"basis": LOG}}
    built = build(session, design)
    assert built.smooth_terms is None and built.feature_mask is None and "smooth_terms" not in built.notes


@pytest.mark.parametrize(
    ("design", "estimator", "message"),
    [
        ({"history": {"of": "others", "basis": LOG}}, "PopulationGLM", 'of is "others", which PopulationGLM cannot'),
        ({"units": ["a"], "history": {"of": "others", "basis": LOG}}, "PopulationGAM", 'there is one unit; use "own"'),
        ({"covariates": [{"signal": "speed", "basis": LOG, "standardize": True}]}, "PopulationGAM", "as they are"),
        ({"covariates": [{"signal": "speed", "name": "history_a"}], "history": {"basis": LOG}}, "PopulationGAM",
         "several terms are called history_a; give their covariates different names"),
        ({"products": [{"name": "m", "factors": [{"signal": "place", "basis": spline(5)}] * 2}]}, "PopulationGAM",
         'product "m": the factor "place" has 2 columns; select one of them by columns'),
        ({"products": [{"name": "m", "factors": [{"signal": "speed", "basis": LOG}]}]}, "PopulationGAM",
         "factors has 1 entry; a product needs at least two"),
        ({"products": [{"name": "m", "factors": [{"signal": "sped", "basis": LOG}] * 2}]}, "PopulationGAM",
         'no signal "sped"; did you mean "speed"'),
    ],
)  # fmt: skip
def test_designs_that_make_no_terms_are_refused_with_the_reason(session, design, estimator, message):
    with pytest.raises(ValueError, match=message):
        build(session, {"bin_s": BIN, **design}, estimator)
