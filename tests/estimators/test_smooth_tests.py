"""P-values of smooth terms, compared with slow computations, draws, and mgcv."""

import numpy as np
import pytest
import scipy.integrate
import scipy.optimize
import scipy.stats

from glmfit import PopulationGAM
from glmfit.design import BSpline, CyclicBSpline, RaisedCosineLinear, Term, product
from glmfit.estimators.gam.smooth_tests import shrunken_test, shrunken_test_of_several, smooth_test, tail


def imhof(value, weights, times):
    """Integrate the characteristic function of a weighted sum of chi-squared variables: P(sum > value)."""
    weights, times = np.asarray(weights, float), np.asarray(times, float)

    def part(u):
        angle = 0.5 * np.sum(times * np.arctan(weights * u)) - 0.5 * value * u
        return np.sin(angle) / (u * np.prod((1 + (weights * u) ** 2) ** (times / 4)))

    pieces = ((1e-12, 1.0), (1.0, 20.0), (20.0, 400.0))
    found = sum(scipy.integrate.quad(part, *ends, limit=2000)[0] for ends in pieces)
    return 0.5 + found / np.pi


@pytest.mark.thorough
@pytest.mark.parametrize("weights", [[1, 1, 1, 1.1, 0.3], [0.9, 0.8, 0.5, 0.2, 0.1, 0.01], [5.0, 5.0, 1.0, 1.0]])
@pytest.mark.parametrize("share", [0.1, 0.7, 1.5, 3.0])
def test_tails_match_the_characteristic_function(weights, share):
    value = share * sum(weights)
    assert tail(value, weights) == pytest.approx(imhof(value, weights, np.ones(len(weights))), rel=1e-4, abs=1e-6)
    many = imhof(0.0, [*weights, -value / 30], [*np.ones(len(weights)), 30])
    assert tail(value, weights, 30.0) == pytest.approx(many, rel=1e-4, abs=1e-7)


def test_tails_of_equal_weights_have_a_closed_form_and_far_tails_are_precise():
    assert tail(7.0, [1, 1, 1]) == pytest.approx(scipy.stats.chi2.sf(7.0, 3), rel=1e-12)
    assert tail(14.0, [2, 2, 0]) == pytest.approx(scipy.stats.chi2.sf(7.0, 2), rel=1e-12)
    assert tail(7.0, [1, 1, 1], 20.0) == pytest.approx(scipy.stats.f.sf(7.0 / 3, 3, 20), rel=1e-12)
    # Two weights with two degrees of freedom each have a closed form: exponential variables of means 2 and 1.
    for value in (0.1, 3.0, 50.0, 400.0):
        closed = 2 * np.exp(-value / 2) - np.exp(-value)
        assert tail(value, [1, 1, 0.5, 0.5]) == pytest.approx(closed, rel=1e-5)
    assert tail(0.0, [1, 0.5]) == 1.0
    assert np.isnan(tail(np.nan, [1, 0.5]))


def versions(f, V, r):
    """Both versions of f' V^(r-) f and their p-values, by the matrices of the paper."""
    values, U = np.linalg.eigh(V)
    values, U = values[::-1], U[:, ::-1]
    k, q = int(r), r - int(r)
    nu = [(1 + q + np.sqrt(1 - q**2)) / 2, (1 + q - np.sqrt(1 - q**2)) / 2]
    found = []
    for sign in (1, -1):
        middle = np.zeros((len(V), len(V)))
        middle[range(k - 1), range(k - 1)] = 1 / values[: k - 1]
        across = sign * np.sqrt(q * (1 - q) / 2)
        D = np.diag(values[k - 1 : k + 1] ** -0.5)
        middle[k - 1 : k + 1, k - 1 : k + 1] = D @ np.array([[1, across], [across, q]]) @ D
        T = f @ U @ middle @ U.T @ f
        found.append((T, imhof(T, [1.0, *nu], [k - 1, 1, 1])))
    return found


def test_the_statistic_matches_that_of_the_curve_at_the_rows():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 6))
    C = np.linalg.inv(X.T @ X + np.diag([0, 0, 3.0, 5.0, 30.0, 50.0]))
    g = rng.multivariate_normal(np.zeros(6), C) * 1.5
    found = smooth_test(g, C, X.T @ X / 40, 3.6)
    expected = versions(X @ g, X @ C @ X.T, 3.6)
    assert found.reference_df == 3.6
    assert found.statistic == pytest.approx(np.mean([T for T, _ in expected]), rel=1e-8)
    assert found.p_value == pytest.approx(np.mean([p for _, p in expected]), rel=1e-4)
    whole = smooth_test(g, C, X.T @ X, 9.0)  # more than the rank: the inverse itself
    assert whole.statistic == pytest.approx(g @ np.linalg.solve(C, g), rel=1e-8)
    assert whole.p_value == pytest.approx(scipy.stats.chi2.sf(whole.statistic, 6), rel=1e-8)
    less = smooth_test(g, C, X.T @ X, 0.4)
    assert less.p_value == pytest.approx(scipy.stats.chi2.sf(less.statistic, 1), rel=1e-8)


@pytest.mark.thorough
def test_p_values_of_shrunken_terms_are_uniform_under_the_null_at_any_penalty():
    rng = np.random.default_rng(1)
    X = rng.normal(size=(200, 5)) @ np.diag([1, 1, 2, 0.5, 0.1])
    for strength in (1.0, 1e2, 1e7):
        S = strength * np.diag([1.0, 2.0, 3.0, 1.0, 1.0])
        C = np.linalg.inv(X.T @ X + S)
        p = [shrunken_test(C @ X.T @ y, C, S).p_value for y in rng.normal(size=(400, 200))]
        assert scipy.stats.kstest(p, "uniform").pvalue > 0.01
    y = rng.normal(size=200)
    g = C @ X.T @ y
    found = shrunken_test(g, C, S)
    assert found.statistic == pytest.approx(y @ X @ C @ X.T @ y, rel=1e-3)
    assert found.reference_df == pytest.approx(np.trace(C @ X.T @ X), rel=1e-3)


def test_several_penalties_are_tested_at_equal_strengths_of_as_many_degrees_of_freedom():
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(200, 5)) @ np.diag([1, 1, 2, 0.5, 0.1]), rng.normal(size=200)
    S, P = np.diag([1e-3, 1e3, 30.0, 1e5, 2.0]), np.diag([1.0, 1, 2, 1, 1])
    C = np.linalg.inv(X.T @ X + S)
    found = shrunken_test_of_several(C @ X.T @ y, C, S, P)
    df = np.trace(C @ X.T @ X)
    assert found.reference_df == pytest.approx(df, rel=1e-8)

    def excess(log):
        return np.trace(np.linalg.solve(X.T @ X + np.exp(log) * P, X.T @ X)) - df

    S = np.exp(scipy.optimize.brentq(excess, -20, 20, xtol=1e-13)) * P
    C = np.linalg.inv(X.T @ X + S)
    equal = shrunken_test(C @ X.T @ y, C, S)
    np.testing.assert_allclose(found, equal, rtol=1e-6)
    np.testing.assert_allclose(shrunken_test_of_several(C @ X.T @ y, C, S, P), equal, rtol=1e-6)


@pytest.mark.parametrize("rounding", [-3.0, 0.0, 1e-12, 3.0])
def test_rounding_of_a_large_strength_hides_no_effect_along_a_small_one(rounding, rng):
    turn = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    data, g = np.diag([50.0, 80.0, 20.0]), np.array([0.9, 0.0, 0.0])  # 40 along the direction that is free
    penalty = np.diag([rounding, 1e17, 2e17])
    covariance = turn @ np.linalg.inv(data + np.diag([1e-12, 1e17, 2e17])) @ turn.T
    found = shrunken_test(turn @ g, covariance, turn @ penalty @ turn.T)
    np.testing.assert_allclose(found.statistic, 50 * 0.9**2, rtol=1e-2)
    assert abs(found.reference_df - 1) < 0.1  # rounding of the covariance


@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:1 of 2 neurons did not converge")
@pytest.mark.parametrize("strengths", [(1e8, 1e-3), (1e12, 1e-12), (1e-12, 1e-12), (1e-3, 1e8)])
def test_strengths_may_be_far_apart(strengths):
    rng = np.random.default_rng(4)
    x = rng.random(1500)
    counts = rng.poisson(np.exp(-0.5 + np.outer(x, [0.0, 1.5])))
    counts[:, 0] = 0
    counts[0, 0] = 1
    basis = BSpline(8, (0, 1), name="x")
    found = PopulationGAM(basis, select=True, strengths={"x": np.array(strengths)}).fit(basis.features(x), counts)
    p = found.term_frame()["p_value"].to_numpy()
    assert not np.isnan(p[1]) and (np.isnan(p[0]) or 0 <= p[0] <= 1)
    assert p[1] < 1e-10 or strengths[1] == 1e8  # which leaves nothing of a slope


@pytest.mark.thorough
@pytest.mark.parametrize("rate", [0.05, 0.5])
def test_terms_with_several_strengths_are_significant_as_often_as_they_should_be(rate):
    """The strengths of what a smooth term leaves free and of the rest, or of every feature, are chosen by the noise."""
    rng = np.random.default_rng(3)
    u, n = rng.random((2000, 2)), 200
    counts = rng.poisson(rate, size=(2000, n))
    place = product(BSpline(5, (0, 1), name="x"), BSpline(5, (0, 1), name="y"), name="place")
    each = {"each": Term(range(4), [np.diag(row) for row in np.eye(4)])}
    for terms, X, more in ((place, place.features(*u.T), {"select": True}), (each, rng.normal(size=(2000, 4)), {})):
        p = PopulationGAM(terms, **more).fit(X, counts).term_frame()["p_value"]
        assert np.mean(p < 0.05) < 0.11
        assert scipy.stats.kstest(p, "uniform").statistic < 0.2


# mgcv 1.8-41, of the data below:
#   knots <- list(x = seq(-30/7, 10 + 30/7, length = 14), phase = seq(0, 2 * pi, length = 11))
#   b <- gam(y ~ s(x, bs = "ps", k = 10, m = c(2, 2)) + s(phase, bs = "cp", k = 10, m = c(2, 2)), knots = knots,
#            family = poisson(), data = d, method = "REML")      # and family = gaussian()
#   b$sp / sapply(b$smooth, `[[`, "S.scale") / nrow(d)
#   summary(b)$s.table; predict(b, data.frame(x = c(2, 5, 9), phase = c(2, 5, 6)), type = "terms", se.fit = TRUE)
#   predict(..., type = "iterms", se.fit = TRUE)
MGCV = {
    "Poisson": {
        "strengths": [0.09930034, 0.72349235],
        "edf": [2.2717379, 0.7399934], "statistic": [1.4338931, 1.0627214], "p_value": [0.5271762, 0.2292869],
        "curve": [0.0378801, -0.0645813, 0.0499763], "error": [0.0486030, 0.0479785, 0.0653722],
        "with_mean": [0.0626450, 0.0636380, 0.0759742],
    },
    "Gaussian": {
        "strengths": [0.38399457, 0.14863069],
        "edf": [1.8618244, 1.9815865], "statistic": [0.7290531 * 2.2814726, 0.8973040 * 9],
        "p_value": [0.4230451, 0.0093810],
        "curve": [0.0962538, -0.1061081, 0.0091657], "error": [0.0954246, 0.0849560, 0.1391694],
        "with_mean": [0.1272336, 0.1195829, 0.1626366],
    },
}  # fmt: skip


@pytest.fixture(scope="module", params=["Poisson", "Gaussian"])
def fitted(request):
    """Fit what mgcv was given, at the strengths that it chose."""
    n, seed = (1000, 1) if request.param == "Poisson" else (150, 2)
    rng = np.random.default_rng(seed)
    x, phase = rng.uniform(0, 10, n), rng.uniform(0, 2 * np.pi, n)
    if request.param == "Poisson":
        y = rng.poisson(np.exp(0.15 * np.sin(x) - 0.5 + 0.15 * np.cos(phase))).astype(float)
    else:
        y = 0.25 * np.sin(x) + 0.3 * np.cos(phase) + rng.normal(size=n)
    basis = BSpline(10, (0, 10), name="x", clamped=False) + CyclicBSpline(10, name="phase")
    link = "exp" if request.param == "Poisson" else None
    mgcv = MGCV[request.param]
    model = PopulationGAM(basis, mgcv["strengths"], link, observation_model=request.param)
    return model.fit(basis.features(x, phase), y), mgcv


def test_tests_agree_with_mgcv(fitted):
    model, mgcv = fitted
    table = model.term_frame().loc["0"]
    np.testing.assert_allclose(table["edf"], mgcv["edf"], rtol=1e-4)
    np.testing.assert_allclose(table["p_value"], mgcv["p_value"], rtol=0.03)
    assert table["statistic"]["phase"] == pytest.approx(mgcv["statistic"][1], rel=1e-3)
    # mgcv reports one of the two versions; here their mean is reported.
    smooth, n = model._smooth, slice(*model._smooth.places[0])
    values, U = np.linalg.eigh(smooth.gram[n, n])
    root = (U * np.sqrt(values)).T
    C = smooth.scale[0] * smooth.covariance["x"][0][:-1, :-1]
    both = versions(root @ smooth.coordinates[0, n], root @ C @ root.T, table["reference_df"]["x"])
    assert table["statistic"]["x"] == pytest.approx(np.mean([T for T, _ in both]), rel=1e-6)
    assert min(abs(T / mgcv["statistic"][0] - 1) for T, _ in both) < 0.02  # mgcv also weights the rows


def test_curves_agree_with_mgcv(fitted):
    model, mgcv = fitted
    for with_mean, error in ((False, "error"), (True, "with_mean")):
        curve = model.term("x", axes=[2.0, 5.0, 9.0], with_mean=with_mean, simultaneous=False)
        np.testing.assert_allclose(curve.curve[:, 0], mgcv["curve"], rtol=1e-4)
        np.testing.assert_allclose(curve.standard_error[:, 0], mgcv[error], rtol=1e-4)


@pytest.mark.thorough
def test_p_values_are_about_uniform_for_unneeded_terms_and_small_for_needed_ones():
    rng = np.random.default_rng(3)
    T, n = 2000, 120
    x, phase = rng.random(T), rng.random(T) * 2 * np.pi
    spikes = rng.poisson(0.3, size=T)
    counts = rng.poisson(0.4, size=(T, n))
    counts[:, 0] = rng.poisson(np.exp(np.cos(phase) - 1))
    history = RaisedCosineLinear(4, window_s=0.1, bin_s=0.01, name="history")
    basis = BSpline(8, (0, 1), name="x") + CyclicBSpline(8, name="phase") + history
    model = PopulationGAM(basis, inverse_link_function="exp").fit(basis.features(x, phase, spikes), counts)
    p = model.term_frame()["p_value"].unstack("term")
    assert p["phase"]["0"] < 1e-10
    for name in basis.terms:
        share = np.mean(p[name][1:] < 0.05)
        assert 0.0 < share < 0.14, name  # two to three standard errors around 5 % of 119
        assert scipy.stats.kstest(p[name][1:], "uniform").statistic < 0.25, name


def test_a_term_without_a_penalty_has_a_wald_test():
    rng = np.random.default_rng(4)
    X = rng.normal(size=(300, 3))
    y = rng.poisson(np.exp(0.1 * X[:, 0] - 0.2))
    terms = {"plain": Term([0, 1]), "ridge": Term.ridge([2])}
    model = PopulationGAM(terms, {"ridge": 0.1}, inverse_link_function="exp", tol=1e-12).fit(X, y)
    mu = model.predict(X)
    one = np.column_stack([X, np.ones(300)])
    H = one.T @ (one * mu[:, None]) + np.diag([0, 0, 30.0, 0])
    C = np.linalg.inv(H)[:2, :2]
    row = model.term_frame().loc[("0", "plain")]
    assert row["statistic"] == pytest.approx(model.coef_[:2] @ np.linalg.solve(C, model.coef_[:2]), rel=1e-3)
    assert row["p_value"] == pytest.approx(scipy.stats.chi2.sf(row["statistic"], 2), rel=1e-6)
    assert row["edf"] == pytest.approx(2) and np.isnan(row["strength_1"])
    ridge = model.term_frame().loc[("0", "ridge")]
    C = np.linalg.inv(H)[2, 2]
    share = 1 - 30 * C
    assert ridge["statistic"] == pytest.approx(model.coef_[2] ** 2 / C, rel=1e-3)
    assert ridge["p_value"] == pytest.approx(scipy.stats.chi2.sf(ridge["statistic"] / share, 1), rel=1e-3)
