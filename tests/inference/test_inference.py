"""Standard errors and tests of groups of features: compared with NumPy's linear algebra, and by their error rates."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
import zarr
from oracles import population as oracle
from sklearn.exceptions import NotFittedError

from glmfit import PopulationGLM, SoftmaxGLM, Status
from glmfit.design import Convolution, as_source, hstack
from glmfit.inference import drop_groups, rescale_time, wald_table

LINKS = {"exp": np.exp, "softplus": lambda eta: np.logaddexp(0, eta)}
every_link = pytest.mark.parametrize("link", LINKS)


def make(link, T=1500, N=3, seed=0, d=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(T, d)) * [1, 30, 0.1, 1][:d] + 2
    W = np.zeros((d, N))
    W[:2] = [[0.4], [-0.01]]
    eta = (X - 2) @ W - 0.5
    return X, rng.poisson(LINKS[link](eta)), W, rng


def errors_of(cov):
    return np.sqrt(np.diag(cov))


@every_link
@pytest.mark.parametrize("strength", [0.0, 0.02])
@pytest.mark.parametrize("weighted", [False, True])
def test_errors_match_the_information_matrix(link, strength, weighted):
    X, Y, _, rng = make(link)
    weights = rng.uniform(0.5, 3, len(X)) if weighted else None
    model = PopulationGLM(link, "Ridge" if strength else "UnRegularized", strength or None).fit(X, Y, weights)
    w = oracle.mean_one(weights, len(X))
    Z = np.column_stack([X, np.ones(len(X))])
    P = len(X) * strength * np.diag([1.0] * 4 + [0])
    for covariance in ("fisher", "observed", "robust"):
        table = wald_table(model, X, Y, weights, covariance=covariance)
        for n in range(Y.shape[1]):
            eta = X @ model.coef_[:, n] + model.intercept_[n]
            at = LINKS[link](eta) if covariance != "observed" else Y[:, n]
            J = (Z * (w * oracle.curvature(link, at, eta))[:, None]).T @ Z
            inverse = np.linalg.inv(J + P)
            cov = inverse
            if covariance == "robust":
                G = Z * (w * oracle.derivative(link, Y[:, n], eta))[:, None]
                cov = inverse @ (G.T @ G) @ inverse
            np.testing.assert_allclose(table.standard_error[:, n], errors_of(cov)[:-1], rtol=1e-7)
            np.testing.assert_allclose(table.intercept_standard_error[n], errors_of(cov)[-1], rtol=1e-7)
            assert table.effective_df[n] == pytest.approx(np.trace(inverse @ J), rel=1e-9)
            mu = LINKS[link](eta)
            pearson = np.sum(w * (Y[:, n] - mu) ** 2 / mu) / (len(X) - table.effective_df[n])
            assert table.dispersion[n] == pytest.approx(pearson, rel=1e-9)
        np.testing.assert_allclose(table.high - table.low, 2 * 1.959964 * table.standard_error, rtol=1e-6)
        np.testing.assert_allclose(table.p_value, 2 * scipy.stats.norm.sf(np.abs(model.coef_ / table.standard_error)))


@pytest.fixture(scope="module")
def many():
    """Four hundred neurons of one design whose last two features drive none of them."""
    X, Y, W, _ = make("softplus", T=1200, N=400, seed=1)
    return X, Y, W, PopulationGLM("softplus", "UnRegularized").fit(X, Y)


@pytest.mark.thorough
def test_intervals_cover_at_the_stated_level(many):
    """Between 85 and 95 % of 400 intervals at 90 % contain the truth: five standard errors of that share are 7.5 %."""
    X, Y, W, model = many
    table = wald_table(model, X, Y, level=0.9)
    share = np.mean((table.low < W) & (table.high > W), axis=1)
    assert np.all(np.abs(share - 0.9) < 0.05)
    assert abs(table.dispersion.mean() - 1) < 0.01
    np.testing.assert_allclose(table.effective_df, 5, rtol=1e-9)


@pytest.mark.slow
def test_robust_errors_stay_right_if_counts_vary_more_than_poisson():
    rng = np.random.default_rng(2)
    X = rng.normal(size=(1500, 2))
    rate = np.exp(0.3 * X[:, :1] - 0.2) * rng.gamma(0.5, 2, size=(1500, 300))
    Y = rng.poisson(rate)
    model = PopulationGLM("exp", "UnRegularized").fit(X, Y)
    kinds = {name: wald_table(model, X, Y, covariance=name) for name in ("fisher", "robust")}
    share = {name: np.mean((t.low[0] < 0.3) & (t.high[0] > 0.3)) for name, t in kinds.items()}
    assert share["fisher"] < 0.85 and abs(share["robust"] - 0.95) < 0.05
    assert kinds["fisher"].dispersion.mean() > 2


@pytest.mark.slow
def test_p_values_of_uninformative_features_are_uniform(many):
    X, Y, _, model = many
    table = drop_groups(model, X, Y, {"drives": [0, 1], "nothing": [2, 3]})
    assert scipy.stats.kstest(table.p_value[1], "uniform").pvalue > 0.01
    assert np.median(table.p_value[0]) < 1e-6
    np.testing.assert_array_equal(table.df, 2)
    assert table.converged.all() and not table.approximate


@pytest.mark.thorough
def test_the_statistic_lies_within_its_proved_limits(many):
    """Compare with exact optima by Newton's method in NumPy, and deviances with their definition."""
    X, Y, _, model = many
    few = Y[:, :3]
    model = PopulationGLM("softplus", "UnRegularized", tol=1e-3).fit(X, few)  # loose, so that the limits differ
    table = drop_groups(model, X, few, {"first": [0], "all": [0, 1, 2, 3]})
    standard = (X - X.mean(axis=0)) / X.std(axis=0)

    def lowest(Z):
        return oracle.objective("softplus", Z, few, *oracle.newton("softplus", Z, few)[:2], name="UnRegularized")

    full, less = lowest(standard), lowest(standard[:, 1:])
    null_eta = oracle.null_intercept("softplus", few)
    null = np.mean(oracle.loss("softplus", few, null_eta), axis=0)
    for g, rest in ((0, less), (1, null)):
        exact = 2 * len(X) * (rest - full)
        assert np.all(table.statistic_low[g] <= exact + 1e-6) and np.all(exact <= table.statistic_high[g] + 1e-6)
    saturated = oracle.saturated(few)
    found = 1 - (full - saturated) / (null - saturated)
    np.testing.assert_allclose(table.deviance_explained, found, atol=1e-3)
    np.testing.assert_allclose(table.deviance_explained_without[1], 0, atol=1e-9)
    np.testing.assert_array_equal(table.df, [[1] * 3, [4] * 3])


def test_a_ridge_uses_effective_degrees_of_freedom():
    X, Y, _, _ = make("softplus")
    model = PopulationGLM("softplus", "Ridge", 0.05).fit(X, Y)
    table = drop_groups(model, X, Y, np.array(["a", "b", "c", "c"]))
    assert table.group == ["a", "b", "c"] and table.approximate
    assert np.all((table.df > 0) & (table.df < [[1], [1 + 1e-9], [2]])) and np.isnan(table.statistic_low).all()
    Z = np.column_stack([X, np.ones(len(X))])
    P, group, rest = len(X) * 0.05 * np.eye(2), [2, 3], [0, 1, 4]
    for n in range(3):
        eta = X @ model.coef_[:, n] + model.intercept_[n]
        J = (Z * oracle.curvature("softplus", LINKS["softplus"](eta), eta)[:, None]).T @ Z
        J = J[np.ix_(group, group)] - J[np.ix_(group, rest)] @ np.linalg.solve(J[np.ix_(rest, rest)], J[rest][:, group])
        weights = np.linalg.eigvals(np.linalg.solve(J + P, J)).real
        assert table.df[2, n] == pytest.approx(weights.sum(), rel=1e-6)
        draws = np.random.default_rng(0).normal(size=(200_000, 2)) ** 2 @ weights
        assert table.p_value[2, n] == pytest.approx(np.mean(draws > table.statistic[2, n]), abs=5e-3)
    # About the penalised deviance that is lost if the ridge shrinks the group alone.
    own = np.zeros((4, 3))
    own[group] = 0.05
    whole = PopulationGLM("softplus", "Ridge", own, tol=1e-10).fit(X, Y).report_.objective
    less = PopulationGLM("softplus", "UnRegularized", tol=1e-10).fit(X[:, :2], Y).report_.objective
    np.testing.assert_allclose(table.statistic[2], 2 * len(X) * (less - whole), rtol=0.1, atol=0.02)
    strengths = np.full((4, 3), 0.05)
    again = drop_groups(
        PopulationGLM("softplus", "Ridge", strengths).fit(X, Y), X, Y, {"a": [0], "b": [1], "c": [2, 3]}
    )
    np.testing.assert_allclose(again.statistic, table.statistic, atol=1e-2)


@pytest.mark.thorough
@pytest.mark.parametrize(("strength", "effect"), [(None, 1), (1e-3, 1), (None, 0), (0.1, 0), (10.0, 0)])
def test_groups_without_an_effect_are_significant_as_often_as_they_should_be(strength, effect):
    """Also where the ridge leaves them next to no degrees of freedom, of features that are rarely above 0."""
    rng = np.random.default_rng(0)
    X = np.exp(-(((rng.uniform(0, 12, (2000, 1)) ** 1.5 / 4 - np.arange(10)) / 0.7) ** 2))
    Y = rng.poisson(np.exp(-1 + effect * X[:, :1]) * np.ones(150))
    model = PopulationGLM("exp", regularizer_strength=strength).fit(X, Y)
    table = drop_groups(model, X, Y, {"one": [9], "two": [4, 5], "many": range(3, 10)})
    assert np.all(table.df < [[1], [2], [7]])
    assert np.all(np.mean(table.p_value < 0.05, axis=1) < 0.11) and np.mean(table.p_value < 0.05) > 0.01
    assert np.all(abs(np.mean(table.p_value < 0.5, axis=1) - 0.5) < 0.15)


@pytest.mark.thorough
@pytest.mark.parametrize("strength", [None, 0.01, 0.1])
def test_a_group_does_not_get_what_the_ridge_takes_from_correlated_features(strength):
    rng = np.random.default_rng(2)
    X = np.sqrt(0.3) * rng.normal(size=(400, 6)) + np.sqrt(0.7) * rng.normal(size=(400, 1))
    Y = rng.poisson(np.exp(0.3 * X[:, :3].sum(axis=1, keepdims=True) - 0.3) * np.ones(200))
    table = drop_groups(PopulationGLM(regularizer_strength=strength).fit(X, Y), X, Y, {"a": [3, 4, 5], "b": [4]})
    assert np.all(np.mean(table.p_value < 0.05, axis=1) < 0.11)


@pytest.mark.filterwarnings("ignore:X has a constant column")
def test_coefficients_the_data_do_not_determine_have_no_finite_error():
    X, Y, _, _ = make("softplus")
    twice = np.column_stack([X, X[:, 0], np.full(len(X), 3.0)])
    model = PopulationGLM("softplus", "UnRegularized").fit(twice, Y)
    table = wald_table(model, twice, Y)
    assert np.all(np.isinf(table.standard_error[[0, 4, 5]])) and np.all(table.p_value[[0, 4, 5]] == 1)
    alone = wald_table(PopulationGLM("softplus", "UnRegularized").fit(X, Y), X, Y)
    np.testing.assert_allclose(table.standard_error[1:4], alone.standard_error[1:4], rtol=1e-3)
    np.testing.assert_allclose(table.effective_df, 5, rtol=1e-9)


def test_silent_neurons_have_no_errors_and_do_not_affect_others():
    X, Y, _, _ = make("exp")
    Y = np.column_stack([Y, np.zeros(len(Y))])
    model = PopulationGLM("exp", "UnRegularized").fit(X, Y)
    assert model.report_.status[3] == Status.NO_SPIKES
    table, groups = wald_table(model, X, Y), drop_groups(model, X, Y, {"first": [0]})
    assert np.isnan(table.standard_error[:, 3]).all() and np.isfinite(table.standard_error[:, :3]).all()
    assert np.isnan(groups.p_value[0, 3]) and np.isfinite(groups.p_value[0, :3]).all()


def test_tables_accept_pandas_pynapple_and_rows_with_nan():
    import pandas as pd
    import pynapple as nap

    X, Y, _, _ = make("softplus")
    X[7, 2] = np.nan
    t = np.arange(len(X)) * 0.01
    features = nap.TsdFrame(t=t, d=X, columns=["speed", "x", "y", "theta"])
    counts = nap.TsdFrame(t=t, d=Y, columns=["u1", "u2", "u5"])
    model = PopulationGLM("softplus", "UnRegularized").fit(features, counts)
    frame = wald_table(model, features, counts).to_frame()
    assert isinstance(frame, pd.DataFrame) and frame.index.names == ["neuron", "feature"]
    assert frame.loc[("u2", "x"), "coef"] == model.coef_[1, 1]
    groups = drop_groups(model, features, counts, {"place": ["x", "y"], "speed": "speed"}).to_frame()
    assert groups.loc[("u5", "place"), "df"] == 2 and groups.loc[("u5", "speed"), "df"] == 1
    one = PopulationGLM("softplus", "UnRegularized").fit(X, Y[:, 0])
    np.testing.assert_allclose(wald_table(one, X, Y[:, 0]).coef[:, 0], one.coef_)


def test_groups_may_also_be_slices_and_single_features():
    X, Y, _, _ = make("softplus", T=200)
    model = PopulationGLM(regularizer="UnRegularized").fit(X, Y)
    short = drop_groups(model, X, Y, {"first": slice(0, 2), "third": 2, "fourth": np.int64(3)})
    long = drop_groups(model, X, Y, {"first": [0, 1], "third": [2], "fourth": [3]})
    np.testing.assert_array_equal(short.statistic, long.statistic)


@pytest.mark.slow
def test_invalid_input_is_refused():
    X, Y, _, _ = make("softplus", T=200)
    model = PopulationGLM(regularizer="UnRegularized").fit(X, Y)
    for arguments, message in (
        ({"covariance": "white"}, "covariance is 'white'; it must be one of 'fisher'"),
        ({"level": 95}, "level is 95; it must be a number in .0, 1."),
        ({"X": X[:100], "y": Y[:100]}, "X has 100 rows that count, the fit had 200"),
        ({"y": Y + 1}, "other spike counts than the fit had"),
        (
            {"sample_weight": np.linspace(1, 2, 200)},
            "the objective of neuron 0 is .* and was .* in the fit: X",
        ),
        ({"X": X * 10}, "not those of the fit .other rows, another order, another scale of the features"),
        ({"X": X[:, [1, 0, 2, 3][: X.shape[1]]]}, "not those of the fit"),
        ({"y": Y[::-1]}, "not those of the fit"),
        ({"exposure": np.full(200, 0.5)}, "not those of the fit"),
    ):
        with pytest.raises(ValueError, match=message):
            wald_table(model, **{"X": X, "y": Y, **arguments})
    for groups, message in (
        ({"a": [4]}, "group 'a' has the feature index 4; X has 4 features"),
        ({"a": ["speed"]}, "group 'a' names the feature 'speed', which does not exist"),
        ({"a": []}, "group 'a' is empty"),
        ({"a": [True, False]}, r"member True \(bool\).*numpy.flatnonzero"),
        ([[0, 1], [2, 3, 1]], "groups has 2 entries of different lengths; it needs one label per feature"),
        ({}, "groups is empty"),
        ([0, 1], "groups has shape"),
    ):
        with pytest.raises(ValueError, match=message):
            drop_groups(model, X, Y, groups)
    with pytest.raises(ValueError, match="fitted with Lasso, which selects"):
        wald_table(PopulationGLM(regularizer="Lasso", regularizer_strength=0.1).fit(X, Y), X, Y)
    with pytest.raises(NotFittedError):
        wald_table(PopulationGLM(), X, Y)
    with pytest.raises(TypeError, match=r"model is a glmfit\.SoftmaxGLM; it must be a fitted glmfit\.PopulationGLM"):
        wald_table(SoftmaxGLM(), X, Y)


def test_intervals_of_combinations_match_the_covariance(rng):
    X, Y, _, _ = make("softplus")
    model = PopulationGLM("softplus", "UnRegularized").fit(X, Y)
    combinations = np.vstack([np.eye(4)[1], rng.normal(size=(5, 4)), np.zeros(4)])
    table = wald_table(model, X, Y, combinations=combinations)
    Z = np.column_stack([X, np.ones(len(X))])
    for n in range(Y.shape[1]):
        eta = X @ model.coef_[:, n] + model.intercept_[n]
        cov = np.linalg.inv((Z * oracle.curvature("softplus", np.logaddexp(0, eta), eta)[:, None]).T @ Z)[:4, :4]
        np.testing.assert_allclose(
            table.standard_error[:, n], errors_of(combinations @ cov @ combinations.T), rtol=1e-7
        )
        np.testing.assert_allclose(table.coef[:, n], combinations @ model.coef_[:, n])
    np.testing.assert_allclose((table.low + table.high) / 2, table.coef, atol=1e-12)
    plain = wald_table(model, X, Y)
    np.testing.assert_allclose(table.standard_error[0], plain.standard_error[1])
    np.testing.assert_array_equal(table.intercept_standard_error, plain.intercept_standard_error)
    assert len(table.to_frame()) == 7 * 3
    with pytest.raises(ValueError, match=r"\(combination, 4\)"):
        wald_table(model, X, Y, combinations=np.ones((2, 3)))


# ------------------------------------------------------------------------------------------------ time rescaling


@pytest.fixture
def spikes(rng):
    """Rates of 200 neurons, from a hundredth of a spike per bin to three, and counts drawn from them."""
    phase = rng.uniform(0, 6, 200)
    rate = np.geomspace(0.01, 2, 200) * np.exp(np.sin(np.arange(4000)[:, None] / 60 + phase))
    return rng.poisson(rate), rate


@pytest.mark.thorough
def test_intervals_rescaled_by_the_true_rates_are_uniform(spikes):
    counts, rate = spikes
    found = rescale_time(counts, rate)
    np.testing.assert_array_equal(found.n_intervals, counts.sum(axis=0))
    for u, statistic, p in zip(found.uniform, found.statistic, found.p_value, strict=True):
        test = scipy.stats.kstest(u, "uniform")
        assert (test.statistic, test.pvalue) == (statistic, p)
        assert np.all(np.diff(u) >= 0)
    assert scipy.stats.kstest(found.p_value, "uniform").pvalue > 0.01
    assert abs(np.mean(found.statistic > found.band(0.9)) - 0.1) < 0.1
    assert scipy.stats.kstest(np.concatenate(found.uniform), "uniform").pvalue > 0.01


@pytest.mark.thorough
def test_intervals_rescaled_by_wrong_rates_are_not_uniform(spikes):
    counts, rate = spikes
    enough = counts.sum(axis=0) > 2000
    assert enough.sum() > 50
    for wrong in (0.8 * rate, np.broadcast_to(rate.mean(axis=0), rate.shape), np.roll(rate, 188, axis=0)):
        assert rescale_time(counts[:, enough], wrong[:, enough]).p_value.max() < 1e-3


def test_without_random_places_wide_bins_would_look_wrong(spikes):
    """Spikes at the end of their bins need the correction of Haslinger, Pipa and Brown."""
    counts, rate = spikes
    n = int(np.argmin(np.abs(counts.mean(axis=0) - 0.3)))
    ends = np.repeat(np.cumsum(rate[:, n]), counts[:, n])
    assert scipy.stats.kstest(-np.expm1(-np.diff(ends, prepend=0)), "uniform").pvalue < 1e-6
    assert rescale_time(counts[:, n], rate[:, n]).p_value[0] > 1e-3


def test_first_spikes_of_bins_are_placed_as_by_haslinger_pipa_and_brown(rng):
    """Theirs is -log(1 - r p) with r uniform and p the probability of a spike; ours is the smallest of the places."""
    q, n = 0.7, 40_000
    counts = rng.poisson(q, n)
    found = rescale_time(counts, np.full(n, q))
    xi = -np.log1p(-np.concatenate(found.uniform))
    theirs = rng.random(20_000)
    first = -np.log1p(-theirs * -np.expm1(-q))
    assert scipy.stats.kstest(first, lambda x: np.expm1(-x) / np.expm1(-q)).pvalue > 0.01
    assert scipy.stats.kstest(xi, "expon").pvalue > 0.01
    # Intervals below q have the distribution of the first spike of a bin, given that there is one.
    assert scipy.stats.ks_2samp(xi[xi < q], first).pvalue > 0.01


def test_rescaling_is_repeatable_skips_nan_and_treats_neurons_separately(spikes):
    counts, rate = (a[:, 150:153].astype(float) for a in spikes)
    whole = rescale_time(counts, rate, random_state=3)
    again = rescale_time(counts, rate, random_state=3)
    other = rescale_time(counts, rate, random_state=4)
    alone = rescale_time(counts[:, 0], rate[:, 0], random_state=3)
    np.testing.assert_array_equal(whole.uniform[2], again.uniform[2])
    assert not np.array_equal(whole.uniform[2], other.uniform[2])
    np.testing.assert_array_equal(whole.uniform[0], alone.uniform[0])
    gap = np.r_[np.arange(500), np.arange(900, 4000)]
    rate[500:900, 0] = np.nan
    with_gap = rescale_time(counts, rate, random_state=3)
    np.testing.assert_array_equal(with_gap.uniform[0], rescale_time(counts[gap, 0], rate[gap, 0], 3).uniform[0])
    assert with_gap.n_intervals[0] == counts[gap, 0].sum()


@pytest.mark.parametrize("factor", [100.0, 0.01])
def test_rates_in_another_unit_raise_one_warning(spikes, factor):
    counts, rate = (a[:, 150:153] for a in spikes)
    words = rf"rate expects .* but counts has {counts.sum()}; it must be the expected count .*rate in Hz by the width"
    with pytest.warns(UserWarning, match=words) as caught:
        rescale_time(counts, factor * rate)
    assert len(caught) == 1 and caught[0].filename == __file__
    few = (np.cumsum(counts[:, 0]) < 20) * counts[:, 0]
    rescale_time(few, factor * rate[:, 0])  # a model off by a factor of three is tested without a warning
    rescale_time(counts, 3 * rate)


def test_the_title_does_not_claim_separate_fits_for_groups(rng):
    X, y = rng.normal(size=(100, 2)), rng.poisson(1.0, 100)
    head = str(drop_groups(PopulationGLM().fit(X, y), X, y, {"both": [0, 1]})).split("\n")[0]
    assert head == "deviance explained without each group of features, and lost with it; 1 group, 1 neuron"


def test_rescaling_refuses_a_model_in_place_of_counts_or_rates():
    model, X = PopulationGLM(), np.ones((5, 1))
    for arguments, name in (((model, X), "counts"), ((X, model), "rate")):
        with pytest.raises(
            TypeError, match=rf"{name} is a PopulationGLM; .*rescale_time\(counts, model\.predict\(X\)\)"
        ):
            rescale_time(*arguments)


def test_rescaling_accepts_silence_and_refuses_values_that_are_not_counts(rng):
    found = rescale_time(np.zeros(10), np.ones(10))
    assert found.n_intervals[0] == 0 and np.isnan(found.p_value[0]) and np.isnan(found.band()[0])
    for counts, rate, word in (
        (np.full(5, 0.5), np.ones(5), "numbers of spikes"),
        (-np.ones(5), np.ones(5), "counts has 5 negative counts"),
        (np.ones(5), -np.ones(5), "negative"),
        (np.ones(5), np.ones((5, 1)), r"\(5, 1\)"),
        (np.ones(5), np.r_[np.ones(4), np.inf], "rate is infinite in 1 bins"),
        (np.r_[np.zeros(4), np.inf], np.ones(5), "counts"),
        ([], [], "no bins"),
    ):
        with pytest.raises(ValueError, match=word):
            rescale_time(counts, rate)
    with pytest.raises(ValueError, match="such as"):
        found.band(1.0)


@pytest.mark.parametrize("table", [wald_table, drop_groups])
def test_tables_accept_the_sources_that_the_fit_read(table, tmp_path):
    """History and a covariate side by side, as a source and as an array; too large a source raises an error."""
    X, Y, _, _ = make("softplus", T=300, N=2, d=2)
    source = hstack([Convolution(Y.astype(float), np.eye(3)), X])
    model = PopulationGLM(regularizer_strength=1e-2).fit(source, Y)
    frame = pd.DataFrame(source.to_array(), columns=model.feature_names_in_)
    assert np.isnan(frame.iloc[:3]).any(axis=None)
    pd.testing.assert_frame_equal(table(model, source, Y).to_frame(), table(model, frame, Y).to_frame())
    mapped = np.lib.format.open_memmap(tmp_path / "X.npy", "w+", np.float64, X.shape)
    mapped[:] = X
    plain = PopulationGLM(regularizer_strength=1e-2).fit(mapped, Y)
    pd.testing.assert_frame_equal(table(plain, mapped, Y).to_frame(), table(plain, X, Y).to_frame())
    model.set_params(max_memory=1e4)
    with pytest.raises(ValueError, match=r"X is <SideBySide .* need all rows in memory: (\d+) bytes.*max_memory=\1\)"):
        table(model, source, Y)


def test_counts_may_also_be_read():
    X, Y, _, _ = make("softplus", T=300, N=2, d=2)
    model = PopulationGLM(regularizer_strength=1e-2).fit(X, Y)
    counts = as_source(zarr.array(Y.astype(float)))
    np.testing.assert_array_equal(wald_table(model, X, counts).low, wald_table(model, X, Y).low)
