"""Laws of fits of every observation model: within their bounds of the optimum, masks, weights and offsets included."""

import warnings

import numpy as np
import pytest
import scipy.sparse
from oracles import responses as oracle

from glmfit import PopulationGLM, PopulationGLMCV, Status
from glmfit.design import RowSource
from glmfit.engine import population
from glmfit.engine.exact.least_squares import LeastSquaresRun
from glmfit.inference import drop_groups, wald_table

every_model = pytest.mark.parametrize("name", oracle.NAMES)
T, D, N = 400, 3, 3
PENALTIES = (("UnRegularized", None), ("Ridge", 1e-3), ("Ridge", 0.1), ("Lasso", 0.01), ("Lasso", 0.1))
PROVED = (Status.CONVERGED, Status.PRECISION_FLOOR)


def make(name, regularizer=None, strength=None, model=PopulationGLM, **parameters):
    """Estimator for the oracle's name of an observation model."""
    link = name if name in ("softplus", "exp") else None
    observation = "Poisson" if link else name
    given = {} if model is PopulationGLMCV else {"regularizer_strength": strength}
    return model(link, regularizer, observation_model=observation, **given, **parameters)


def recording(name, seed, t=T, d=D, n=N, dispersion=0.5):
    """Features, responses, other arguments of a fit, and the generator."""
    rng = np.random.default_rng([seed, 71])
    X = rng.normal(size=(t, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) + rng.normal(size=d)
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(d, n)) * 0.3 + rng.normal(size=n) * 0.3
    trials = rng.integers(1, 9, size=t) if name == "Binomial" else np.ones(t, int)
    Y = oracle.draw(name, rng, eta, dispersion, trials[:, None])
    if name == "Gaussian":
        Y = Y * 10.0 ** rng.integers(-3, 4, size=n) + 100 * rng.normal(size=n)
    more = {"exposure": trials.astype(float)} if name == "Binomial" else {}
    return X, Y, more, rng


def random_problem(name, seed):
    """Return a recording with random weights, masks and offsets."""
    n = 1 + 2 * (seed % 3 > 0)
    X, Y, more, rng = recording(name, seed, n=n)
    if rng.random() < 0.5:
        shape = (T,) if rng.random() < 0.5 else (T, n)
        more["sample_weight"] = rng.uniform(0.2, 3, shape) * (rng.random(shape) > 0.1)
    if rng.random() < 0.5:
        more["offset"] = 0.3 * rng.normal(size=(T, n) if rng.random() < 0.5 else T)
    if rng.random() < 0.6:
        Y = np.where(rng.random(Y.shape) < 0.2, np.nan, Y)
        Y[: T // 2, 0] = np.nan
    return X, Y, more, rng


def of_neuron(name, X, Y, more, n):
    """Arguments of the oracle for one neuron: rows that count, responses, weights, offset."""
    y = Y[:, n]
    trials = more.get("exposure", np.ones(len(X)))
    weight = np.asarray(more.get("sample_weight", 1.0))
    weight = np.broadcast_to(weight[:, None] if weight.ndim == 1 else weight, Y.shape)[:, n]
    offset = np.asarray(more.get("offset", 0.0))
    offset = np.broadcast_to(offset[:, None] if offset.ndim == 1 else offset, Y.shape)[:, n]
    keep = ~np.isnan(y) & (weight > 0)
    v = weight * (trials if name == "Binomial" else 1.0)
    return X[keep], (y / trials if name == "Binomial" else y)[keep], v[keep], offset[keep]


def check_random_problem(name, seed):
    """Check every bound and objective against the oracle."""
    X, Y, more, rng = random_problem(name, seed)
    regularizer, strength = PENALTIES[rng.integers(len(PENALTIES))]
    parameters = {"dispersion": float(rng.uniform(0.05, 2))} if name == "NegativeBinomial" else {}
    model = make(name, regularizer, strength, tol=10.0 ** rng.integers(-10, -2), **parameters)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(X, Y, **more)
    report, a = model.report_, parameters.get("dispersion", 1.0)
    penalty = {"ridge": strength or 0.0} if regularizer != "Lasso" else {"lasso": strength}
    for n in range(Y.shape[1]):
        if report.status[n] == Status.SEPARABLE:
            continue
        given = of_neuron(name, X, Y, more, n)
        at = oracle.optimum(name, *given, **penalty, dispersion=a)
        best = oracle.objective(name, *given, *at, **penalty, dispersion=a)
        here = oracle.objective(name, *given, model.coef_[:, n], model.intercept_[n], **penalty, dispersion=a)
        size = 1e-13 * (1 + abs(best))
        assert report.status[n] in PROVED and report.gap_is_bound[n]
        assert here - best <= report.gap[n] + size
        assert abs(here - report.objective[n]) <= 1e-11 * (1 + abs(here))
        assert here - best <= report.target[n] + size or report.status[n] != Status.CONVERGED


@pytest.mark.thorough
@every_model
def test_bounds_hold_on_random_problems(name):
    for seed in range(12):
        check_random_problem(name, seed)


@every_model
@pytest.mark.slow
def test_bounds_hold_on_many_random_problems(name):
    for seed in range(12, 300):
        check_random_problem(name, seed)


@every_model
@pytest.mark.parametrize("regularizer, strength", PENALTIES)
def test_coefficients_match_the_oracle(name, regularizer, strength):
    X, Y, more, _ = recording(name, 5, t=1500)
    parameters = {"dispersion": 0.7} if name == "NegativeBinomial" else {}
    solver = "Newton" if name != "Gaussian" and regularizer != "Lasso" else "auto"
    model = make(name, regularizer, strength, tol=1e-14, solver_name=solver, **parameters)
    with warnings.catch_warnings():  # the last digits may be out of reach
        warnings.simplefilter("ignore")
        model.fit(X, Y, **more)
    penalty = {"ridge": strength or 0.0} if regularizer != "Lasso" else {"lasso": strength}
    for n in range(N):
        given = of_neuron(name, X, Y, more, n)
        coef, intercept = oracle.optimum(name, *given, **penalty, dispersion=0.7)
        np.testing.assert_allclose(model.coef_[:, n], coef, rtol=1e-7, atol=1e-6)
        np.testing.assert_allclose(model.intercept_[n], intercept, rtol=1e-7, atol=1e-6)


@every_model
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
def test_a_masked_bin_equals_one_that_was_not_recorded(name, regularizer):
    """NaN and weight 0 are the same: a neuron is fitted to its own rows, and the others do not change."""
    tol = 1e-12 if regularizer == "Ridge" else 1e-10
    X, Y, more, rng = recording(name, 3)
    seen = rng.random((T, N)) > 0.3
    seen[:, 1] = True
    parameters = {"dispersion": 0.6} if name == "NegativeBinomial" else {}
    fits = [
        make(name, regularizer, 1e-2, tol=tol, **parameters).fit(X, y, **more, **given)
        for y, given in ((Y, {}), (np.where(seen, Y, np.nan), {}), (Y, {"sample_weight": seen * 1.0}))
    ]
    whole, missing, weighted = fits
    np.testing.assert_allclose(missing.coef_, weighted.coef_, rtol=1e-9, atol=1e-12)
    if regularizer == "Ridge":  # every step of the others is the same
        np.testing.assert_array_equal(missing.coef_[:, 1], whole.coef_[:, 1])
    np.testing.assert_allclose(missing.coef_[:, 1], whole.coef_[:, 1], rtol=1e-5, atol=1e-9)
    assert missing.report_.n_masked.tolist() == (~seen).sum(axis=0).tolist() and missing.report_.n_dropped == 0
    exposure = more.get("exposure")
    for n in (0, 2):
        rows = seen[:, n]
        own = {} if exposure is None else {"exposure": exposure[rows]}
        alone = make(name, regularizer, 1e-2, tol=tol, **parameters).fit(X[rows], Y[rows, n], **own)
        slack = missing.report_.gap[n] + alone.report_.gap[0] + 1e-12 * abs(alone.report_.objective[0])
        assert abs(missing.report_.objective[n] - alone.report_.objective[0]) <= slack
        np.testing.assert_allclose(missing.coef_[:, n], alone.coef_, atol=2e-4 * np.abs(alone.coef_).max())
        np.testing.assert_allclose(
            missing.score(X, np.where(seen, Y, np.nan), per_neuron=True, **more)[n],
            alone.score(X[rows], Y[rows, n], **own), rtol=1e-3, atol=1e-5,
        )  # fmt: skip


@pytest.mark.thorough
@every_model
def test_folds_and_masks_can_be_combined(name):
    X, Y, more, rng = recording(name, 4)
    Y[:, :2] = np.where(rng.random((T, 2)) < 0.2, np.nan, Y[:, :2])
    parameters = {"dispersion": 0.6} if name == "NegativeBinomial" else {}
    model = make(name, "Ridge", model=PopulationGLMCV, strengths=[1e-3, 1e-1], cv=3, cv_tol=1e-11, **parameters)
    model.fit(X, Y, **more)
    assert model.cv_converged_.all() and model.report_.converged.all()
    held = np.arange(T) * 3 // T == 1
    own = {name: value[~held] for name, value in more.items()}
    alone = make(name, "Ridge", 1e-1, tol=1e-11, **parameters).fit(X[~held], Y[~held], **own)
    own = {name: value[held] for name, value in more.items()}
    of = "D2" if name in ("Gaussian", "Gamma") else "log-likelihood"
    model.set_params(scoring=of).fit(X, Y, **more)
    np.testing.assert_allclose(
        model.cv_scores_[1, 1],
        alone.score(X[held], Y[held], score_type=of, per_neuron=True, **own),
        rtol=2e-4,
        atol=1e-6,
    )


@pytest.mark.thorough
@every_model
def test_likelihoods_variances_and_quantiles_are_those_of_scipy(name):
    X, Y, more, _ = recording(name, 6)
    model = make(name, "Ridge", 1e-3).fit(X, Y, **more)
    a = np.asarray(getattr(model, "dispersion_", 1.0))
    trials = more.get("exposure", np.ones(T))[:, None]
    eta = X @ model.coef_ + model.intercept_
    expected = oracle.log_likelihood(name, Y, eta, a, trials)
    found = model.score(X, Y, score_type="log-likelihood", per_neuron=True, **more)
    np.testing.assert_allclose(found, expected.mean(axis=0), rtol=1e-9)
    mean = trials * model.predict(X)
    pearson = (Y - mean) / np.sqrt(trials * oracle.variance(name, eta, a))
    np.testing.assert_allclose(model.residuals(X, Y, **more), pearson, rtol=1e-9, atol=1e-9)
    deviance = model.residuals(X, Y, kind="deviance", **more)
    d2 = model.score(X, Y, per_neuron=True, **more)
    np.testing.assert_allclose(1 - np.sum(deviance**2, axis=0) / np.sum(
        null_residuals(model, name, X, Y, more) ** 2, axis=0), d2, rtol=1e-7)  # fmt: skip
    low, high = model.predict_interval(X, level=0.9, **more)
    inside = np.mean((Y >= low) & (Y <= high))
    assert 0.87 <= inside and np.all(low <= mean + 1e-9) and np.all(mean <= high + 1)
    drawn = model.simulate(X, random_state=1, **more)
    spread = np.sqrt(np.sum(trials * oracle.variance(name, eta, a), axis=0))
    assert np.all(np.abs(drawn.sum(axis=0) - mean.sum(axis=0)) <= 5 * spread)
    assert not model._family().wrong(drawn)[0].any()


def null_residuals(model, name, X, Y, more):
    null = make(name, "UnRegularized", **({"dispersion": model.dispersion_} if name == "NegativeBinomial" else {}))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        null.fit(0 * X, Y, **more)
    return null.residuals(X, Y, kind="deviance", **more)


@pytest.mark.thorough
@pytest.mark.parametrize("ridge", [0.0, 0.01])
def test_the_dispersion_maximises_the_likelihood(ridge):
    X, Y, *_ = recording("NegativeBinomial", 8, t=1500, dispersion=0.4)
    Y[:, 2] = np.random.default_rng(0).poisson(1.0, len(Y))
    model = make("NegativeBinomial", "Ridge" if ridge else None, ridge or None).fit(X, Y)
    for n in range(N):
        best = oracle.dispersion_of(X, Y[:, n], ridge=ridge)
        if best > 1e-4:
            assert abs(model.dispersion_[n] / best - 1) < 1e-3
        else:
            assert model.dispersion_[n] < 1e-3
    assert np.all(model.report_.converged) and "not convex" in str(model.report_)
    assert make("NegativeBinomial").fit(X, Y[:, 0]).dispersion_ == pytest.approx(
        oracle.dispersion_of(X, Y[:, 0]), rel=0.05
    )


def test_counts_that_vary_less_than_poisson_have_the_smallest_dispersion_and_the_poisson_fit():
    X, Y, *_ = recording("exp", 9, t=1000)
    Y[:, 0] = np.random.default_rng(0).binomial(4, 0.3, len(Y))  # varies less than Poisson
    negative = make("NegativeBinomial", None).fit(X, Y)
    poisson = make("exp", None).fit(X, Y)
    assert negative.dispersion_[0] == pytest.approx(1e-6, rel=1e-3)
    np.testing.assert_allclose(negative.coef_[:, 0], poisson.coef_[:, 0], atol=1e-3)
    assert not poisson.report_.is_overdispersed[0] and poisson.report_.dispersion[0] < 1


def test_counts_that_vary_more_than_poisson_are_reported():
    X, Y, *_ = recording("NegativeBinomial", 10, t=2000, dispersion=1.0)
    poisson, negative = make("exp", None).fit(X, Y), make("NegativeBinomial", None).fit(X, Y)
    assert poisson.report_.is_overdispersed.all() and not negative.report_.is_overdispersed.any()
    table = wald_table(poisson, X, Y)
    np.testing.assert_allclose(poisson.report_.dispersion, table.dispersion, rtol=1e-6)
    assert "vary more than the model allows" in str(poisson.report_)
    assert "vary more" not in str(negative.report_)


@every_model
def test_errors_and_tests_are_those_of_the_information_matrix(name):
    X, Y, more, rng = recording(name, 11)
    Y[rng.random(Y.shape) < 0.2] = np.nan
    parameters = {"dispersion": 0.5} if name == "NegativeBinomial" else {}
    model = make(name, "UnRegularized", tol=1e-12, **parameters).fit(X, Y, **more)
    table = {kind: wald_table(model, X, Y, covariance=kind, **more) for kind in ("fisher", "observed")}
    tested = drop_groups(model, X, Y, {"two": [0, 1]}, **more)
    for n in range(N):
        rows, y, v, offset = of_neuron(name, X, Y, more, n)
        a = np.ravel(getattr(model, "dispersion_", np.ones(N)))[n]
        eta, ones = rows @ model.coef_[:, n] + model.intercept_[n], np.column_stack([rows, np.ones(len(rows))])
        scale = a if name in ("Gaussian", "Gamma") else 1.0
        bend = {"observed": oracle.slopes(name, y, eta, a)[1]}
        bend["fisher"] = oracle.slopes(name, oracle.mean(name, eta), eta, a)[1]
        for kind, curvature in bend.items():
            covariance = scale * np.linalg.inv((ones.T * (v * curvature)) @ ones)
            np.testing.assert_allclose(table[kind].standard_error[:, n], np.sqrt(np.diag(covariance))[:-1], rtol=1e-5)
            np.testing.assert_allclose(table[kind].intercept_standard_error[n], np.sqrt(covariance[-1, -1]), rtol=1e-5)
        less = oracle.optimum(name, rows[:, 2:], y, v, offset, dispersion=a)
        full = oracle.optimum(name, rows, y, v, offset, dispersion=a)
        lost = oracle.objective(name, rows[:, 2:], y, v, offset, *less, dispersion=a)
        lost -= oracle.objective(name, rows, y, v, offset, *full, dispersion=a)
        np.testing.assert_allclose(tested.statistic[0, n], 2 * v.sum() * lost / scale, rtol=1e-4)


def test_least_squares_is_exact_and_shares_moments(monkeypatch):
    """All strengths and neurons share one set of moments for each fold; the gap is that of rounding."""
    from glmfit.engine.exact import least_squares

    made = []
    original = least_squares.Moments.of.__func__
    monkeypatch.setattr(least_squares.Moments, "of", classmethod(lambda cls, *a: made.append(1) or original(cls, *a)))
    X, Y, *_ = recording("Gaussian", 12)
    model = PopulationGLMCV(observation_model="Gaussian", strengths=np.logspace(-5, 1, 9), cv=4).fit(X, Y)
    assert model.report_.solver_name == "LeastSquares" and model.cv_converged_.all()
    assert len(made) == 4 + 1 + 4  # folds, all rows, and held-out rows
    scale = np.var(Y, axis=0)
    assert np.all(model.cv_gap_ <= 1e-12 * scale) and np.all(model.report_.gap <= 1e-12 * scale)
    for per_coefficient in (1e-2, np.outer([0.0, 1e-2, 1.0], [1.0, 2.0, 3.0])):
        fit = make("Gaussian", "Ridge", per_coefficient).fit(X, Y)
        ridge = np.broadcast_to(per_coefficient, (D, N))
        centred, response = X - X.mean(axis=0), Y - Y.mean(axis=0)
        for n in range(N):
            exact = np.linalg.solve(centred.T @ centred / T + np.diag(ridge[:, n]), centred.T @ response[:, n] / T)
            np.testing.assert_allclose(fit.coef_[:, n], exact, rtol=1e-9)
        assert fit.report_.converged.all()


@pytest.mark.parametrize(
    "name, y, more, message",
    [
        (
            "NegativeBinomial",
            [-1.0, 2, 3],
            {},
            "first at row 0, neuron 0, value -1.*it needs counts >= 0",
        ),
        ("Bernoulli", [0, 1, 2.0], {}, r"first at row 2, neuron 0, value 2\).*it needs responses 0 or 1"),
        ("Gamma", [0.0, 1, 2], {}, r"first at row 0, neuron 0, value 0\).*it needs values > 0"),
        ("Binomial", [1.0, 2, 3], {}, "needs the trials of every bin: pass exposure"),
        (
            "Binomial",
            [1.0, 2, 3],
            {"exposure": [3.0, 3, 2]},
            r"y is 3 at row 2, neuron 0, more than its 2 trials \(exposure\)",
        ),
        ("Binomial", [1.5, 2, 3], {"exposure": [3.0, 3, 3]}, "it needs whole counts >= 0"),
        ("Gaussian", [1.0, 2, 3], {"exposure": [3.0, 3, 3]}, "exposure is given, but observation_model is 'Gaussian'"),
        (
            "exp",
            [1.0, 2, 3],
            {"sample_weight": np.ones((3, 2))},
            r"sample_weight has shape \(3, 2\); it needs",
        ),
        ("exp", [1.0, 2, 3], {"sample_weight": -np.ones((3, 1))}, "sample_weight is -1 at row 0, neuron 0"),
        ("exp", [1.0, 2, 3], {"epochs": {"a": 1}}, "epochs are given, but neither X nor y has times"),
        ("exp", [1.0, 2, 3], {"epochs": [1]}, "epochs is a list; it must map units"),
        ("exp", [np.nan, np.nan, np.nan], {}, "every row has a NaN in X, y or offset"),
    ],
)
def test_mistakes_get_an_error_that_says_what_to_do(name, y, more, message):
    X = np.arange(6.0).reshape(3, 2) % 4
    with pytest.raises((TypeError, ValueError), match=message):
        make(name, "Ridge").fit(X, np.asarray(y, float), **more)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"observation_model": "poisson"}, "observation_model is 'poisson'; allowed are 'Poisson', 'NegativeBinomial'"),
        ({"observation_model": "NegativeBinomial", "inverse_link_function": "softplus"}, "loss is not convex"),
        ({"observation_model": "Bernoulli", "inverse_link_function": "cloglog"}, "no constant of self-concordance"),
        ({"dispersion": 1.0}, "only observation_model='NegativeBinomial' takes one"),
        ({"observation_model": "NegativeBinomial", "dispersion": -1}, "dispersion is -1"),
        ({"observation_model": "NegativeBinomial", "dispersion": [1.0, 2.0]}, "one per neuron"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters, message):
    X, Y, *_ = recording("exp", 0)
    with pytest.raises(ValueError, match=message):
        PopulationGLM(**parameters).fit(X, Y)
    with pytest.raises(ValueError, match=message):
        PopulationGLMCV(**parameters).fit(X, Y)


def test_least_squares_is_for_normal_responses():
    X, Y, *_ = recording("exp", 0)
    for parameters in ({}, {"observation_model": "Gaussian", "regularizer": "Lasso"}):
        with pytest.raises(ValueError, match="LeastSquares needs Gaussian responses and a smooth penalty"):
            PopulationGLM(solver_name="LeastSquares", **parameters).fit(X, Y)


def test_neurons_without_data_or_variation_have_a_status_and_do_not_affect_the_others():
    X, Y, *_ = recording("Bernoulli", 13, n=4)
    Y[:, 1], Y[:, 2], Y[:, 3] = 1.0, 0.0, np.nan
    with pytest.warns(UserWarning, match="1 of 4 neurons did not converge: 1 no data"):
        model = make("Bernoulli", "Ridge").fit(X, Y)
    assert [str(s) for s in model.report_.status] == ["converged", "all ones", "no spikes", "no data"]
    predicted = model.predict(X)
    assert np.all(predicted[:, 1] == 1) and np.all(predicted[:, 2] == 0) and np.all(np.isnan(predicted[:, 3]))
    assert np.isfinite(model.score(X, Y)) and np.isnan(model.score(X, Y, per_neuron=True)[3])
    alone = make("Bernoulli", "Ridge").fit(X, Y[:, 0])
    np.testing.assert_allclose(model.coef_[:, 0], alone.coef_, atol=1e-6)


def test_separable_choices_are_recognised():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2))
    Y = np.column_stack([X[:, 0] > 0, (X[:, 0] > 0) ^ (np.arange(300) == 7)]).astype(float)
    with pytest.warns(UserWarning, match="separable"):
        model = make("Bernoulli", "UnRegularized").fit(X, Y)
    assert model.report_.status[0] == Status.SEPARABLE
    assert make("Bernoulli", "Ridge", 1e-4).fit(X, Y).report_.converged.all()


def test_models_survive_saving_and_loading(tmp_path):
    for name in ("NegativeBinomial", "Gamma", "Binomial"):
        X, Y, more, _ = recording(name, 14)
        for y in (Y, Y[:, 0]):
            model = make(name, "Ridge").fit(X, y, **more)
            back = PopulationGLM.load(model.save(tmp_path / f"{name}.npz"))
            np.testing.assert_array_equal(back.predict(X), model.predict(X))
            assert back.score(X, y, score_type="log-likelihood", **more) == model.score(
                X, y, score_type="log-likelihood", **more)  # fmt: skip


def test_units_can_have_their_own_epochs():
    import pynapple as nap

    X, Y, *_ = recording("exp", 15)
    t = np.arange(T) * 0.02
    features, counts = nap.TsdFrame(t, X), nap.TsdFrame(t, Y, columns=[4, 7, 9])
    epochs = {7: nap.IntervalSet([0, 5], [2, 7])}
    model = make("exp", "Ridge", 1e-3).fit(features, counts, epochs=epochs)
    inside = ((t >= 0) & (t <= 2)) | ((t >= 5) & (t <= 7))
    masked = np.where(inside[:, None] | (np.arange(N) != 1), Y, np.nan)
    np.testing.assert_array_equal(model.coef_, make("exp", "Ridge", 1e-3).fit(X, masked).coef_)
    assert model.score(features, counts, epochs=epochs) == model.score(X, masked)
    spikes = nap.TsGroup({7: nap.Ts([0.5, 1.5])}, time_support=epochs[7])
    np.testing.assert_array_equal(make("exp", "Ridge", 1e-3).fit(features, counts, epochs=spikes).coef_, model.coef_)
    with pytest.raises(ValueError, match="epochs names unit 8, which y does not have; its units are 4, 7, 9"):
        model.fit(features, counts, epochs={8: epochs[7]})


def test_only_dense_features_are_accepted():
    with pytest.raises(TypeError, match="dense data is required"):
        make("Bernoulli", "Ridge").fit(scipy.sparse.eye_array(10), np.ones(10))


WHERE = ["Newton", "ConjugateGradients"]
WHERE += [pytest.param(where, marks=pytest.mark.thorough) for where in ("SAGA", "devices", "Newton there")]


@every_model
@pytest.mark.parametrize("where", WHERE)
def test_every_solver_fits_every_model_with_masks(name, where, monkeypatch):
    import jax

    from glmfit.engine import solvers

    X, Y, more, rng = recording(name, 21)
    Y[rng.random(Y.shape) < 0.2] = np.nan
    parameters = {"dispersion": 0.5} if name == "NegativeBinomial" else {}
    best = make(name, "Ridge", 1e-2, tol=1e-10, **parameters).fit(X, Y, **more)
    if where == "Newton there":
        monkeypatch.setattr(solvers, "newton_serves", lambda problem: True)
    there = {"devices": jax.devices()} if where in ("devices", "Newton there") else {}
    there["solver_name"] = {"devices": "auto", "Newton there": "Newton"}.get(where, where)
    model = make(name, "Ridge", 1e-2, tol=1e-6, **there, **parameters).fit(X, Y, **more)
    report = model.report_
    assert report.converged.all()
    slack = report.gap + best.report_.gap + 1e-12 * (1 + np.abs(report.objective))
    assert np.all(report.objective - best.report_.objective <= slack)
    scale = np.nanstd(Y, axis=0) if name == "Gaussian" else np.ones(N)
    np.testing.assert_allclose(model.coef_ / scale, best.coef_ / scale, atol=1e-2)


# ---------------------------------------------------------------- found by a hostile reader


def of_scales(seed):
    """Features and measured values for which least squares lost directions."""
    rng = np.random.default_rng(seed)
    Z = rng.normal(size=(200, 2))
    near = np.column_stack([Z[:, 0], Z[:, 0] + 3e-7 * Z[:, 1]])
    y = Z @ [1.0, 1.0] + 0.1 * rng.normal(size=200)
    return (Z * [1e5, 1e-4], y), (near, y), (Z * [1e12, 1.0] + [1e13, 0.0], y), (np.column_stack([Z, Z[:, :1]]), y)


@pytest.mark.parametrize("strength", [0.0, 1e-12, 1e-9, 1e-6, 1e-2])
def test_least_squares_loses_no_direction_that_a_proof_needs(strength):
    for X, y in (of for seed in range(3) for of in of_scales(seed)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = make("Gaussian", "Ridge", strength).fit(X, y)
        centred = X - X.mean(axis=0)
        rows = np.vstack([centred / np.sqrt(len(y)), np.sqrt(strength) * np.eye(X.shape[1])])
        scale = np.linalg.norm(rows, axis=0)
        right = np.append((y - y.mean()) / np.sqrt(len(y)), np.zeros(X.shape[1]))
        best = np.linalg.lstsq(rows / scale, right, rcond=1e-15)
        F = [np.mean((y - y.mean() - centred @ w) ** 2) / 2 + strength * np.sum(w**2) / 2 for w in
             (model.coef_, best[0] / scale)]  # fmt: skip
        if model.report_.gap_is_bound[0]:
            assert F[0] - F[1] <= model.report_.gap[0] + 1e-13
        else:
            assert not model.report_.converged[0]


def test_results_do_not_depend_on_the_solver():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 40))
    for name, y in (("Gaussian", X[:, 0] + rng.normal(size=60)), ("exp", rng.poisson(np.exp(0.3 * X[:, 0])) * 1.0)):
        fits = [make(name, "Ridge", 1.0, tol=1e-10, solver_name=solver).fit(X, y)
                for solver in ("auto", "Newton", "ConjugateGradients")]  # fmt: skip
        for model in fits[1:]:
            np.testing.assert_allclose(model.report_.dispersion, fits[0].report_.dispersion, rtol=1e-4)
            if name == "Gaussian":
                np.testing.assert_allclose(model.dispersion_, fits[0].dispersion_, rtol=1e-4)
    spectrum = np.linalg.eigvalsh(np.cov(X.T, bias=True))
    gaussian = make("Gaussian", "Ridge", 1.0).fit(X, X[:, 0] + rng.normal(size=60))
    misfit = np.sum(gaussian.residuals(X, X[:, 0], kind="response") ** 2)
    assert np.isfinite(misfit) and 1 + np.sum(spectrum / (spectrum + 1)) < 41


def test_a_fold_has_the_requested_strength():
    """For a negative binomial whose rate changes, so that folds differ in the unit of a trial."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(400, 2))
    rate = np.exp(0.3 * X @ [1.0, -1.0] + np.where(np.arange(400) < 200, -2.0, 2.0))
    Y = rng.poisson(rate * rng.gamma(0.5, 2.0, 400))[:, None] * 1.0
    Y[rng.random(400) < 0.1] = np.nan
    Y = np.column_stack([Y, rng.poisson(1.0, 400)])
    fits = make(
        "NegativeBinomial", "Ridge", model=PopulationGLMCV, dispersion=2.0, strengths=[0.1, 1.0], cv=2, cv_tol=1e-10
    )
    fits.fit(X, Y)
    for fold, train in enumerate((np.arange(400) >= 200, np.arange(400) < 200)):
        alone = make("NegativeBinomial", "Ridge", 0.1, dispersion=2.0, tol=1e-10).fit(X[train], Y[train])
        scores = alone.score(X[~train], Y[~train], score_type="log-likelihood", per_neuron=True)
        np.testing.assert_allclose(fits.cv_scores_[0, fold], scores, rtol=1e-5)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_results_do_not_depend_on_the_unit_of_measured_values(scale):
    rng = np.random.default_rng(2)
    X, offset = rng.normal(size=(300, 2)), 1e10 * (1 + rng.normal(size=300))
    y = X @ [1.0, 1.0] + rng.normal(size=300)
    model = make("Gaussian", "Ridge", 1e-3).fit(X, scale * y)
    plain = make("Gaussian", "Ridge", 1e-3).fit(X, y)
    for name in ("pseudo_r2", "dispersion"):
        np.testing.assert_allclose(getattr(model.report_, name), getattr(plain.report_, name), rtol=1e-9)
    np.testing.assert_allclose(model.report_.objective, scale**2 * plain.report_.objective, rtol=1e-9)
    with_offset = make("Gaussian", "Ridge", 1e-3).fit(X, scale * y + offset, offset=offset)
    assert with_offset.report_.objective[0] >= 0
    if scale > 1:  # rounding of the sum destroys smaller values
        np.testing.assert_allclose(with_offset.report_.pseudo_r2, plain.report_.pseudo_r2, atol=1e-4)


@pytest.mark.thorough
def test_constant_responses_give_finite_numbers():
    X = np.random.default_rng(0).normal(size=(50, 2))
    for name in ("Gaussian", "Gamma"):
        for constant in (0.1, 7.0):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make(name, "Ridge", 1e-3).fit(X, np.full(50, constant))
            low, high = model.predict_interval(X)
            assert np.allclose(low, constant, rtol=1e-5) and np.allclose(high, constant, rtol=1e-5)
            assert np.all(np.isfinite(model.residuals(X, np.full(50, constant))))
            assert np.all(model.simulate(X) > 0)


@pytest.mark.thorough
def test_gamma_responses_of_any_dispersion_are_drawn_above_0():
    X, Y, *_ = recording("Gamma", 22, dispersion=40.0)
    model = make("Gamma", "Ridge", 1e-2).fit(X, np.maximum(Y, 1e-30))
    assert np.all(model.simulate(X) > 0)


@pytest.mark.parametrize(
    "name, parameters, more, message",
    [
        (
            "Binomial",
            {},
            {"exposure": np.full(400, 1.5)},
            "for Binomial counts it is the number of trials, an integer",
        ),
        ("NegativeBinomial", {"dispersion": ["a", "b", "c"]}, {}, "it must be a number from 1e-8 to 1e8"),
        ("NegativeBinomial", {"dispersion": 1e-300}, {}, "None estimates it"),
    ],
)
def test_more_mistakes_are_refused(name, parameters, more, message):
    X, Y, *_ = recording(name, 0)
    with pytest.raises(ValueError, match=message):
        make(name, "Ridge", **parameters).fit(X, np.minimum(Y, 1), **more)


def test_moments_of_a_rarely_observed_neuron_do_not_cancel():
    rng = np.random.default_rng(0)
    X, Y = 1e6 * rng.normal(size=(300, 25)), 1e6 + rng.normal(size=(300, 2))
    Y[5:, 0] = np.nan
    model = make("Gaussian", "Ridge", 1.0).fit(X, Y)
    x, y = X[:5] - X[:5].mean(axis=0), Y[:5, 0] - Y[:5, 0].mean()
    exact = x.T @ np.linalg.solve(x @ x.T + 5 * np.eye(5), y)

    def F(w):
        return np.mean((y - x @ w) ** 2) / 2 + np.sum(w**2) / 2

    assert F(model.coef_[:, 0]) - F(exact) <= model.report_.gap[0] + 1e-18


@pytest.mark.parametrize("kind", ["shared", "of neurons", "of coefficients", "of few rows"])
def test_dispersions_of_normal_responses_use_exact_degrees_of_freedom(kind):
    rng = np.random.default_rng(5)
    X, Y = rng.normal(size=(40, 4)), rng.normal(size=(40, 3))
    strengths = {
        "shared": 0.3, "of neurons": np.array([0.1, 1.0, 10.0]), "of coefficients": rng.uniform(0.1, 2, (4, 3)),
        "of few rows": 0.3,
    }  # fmt: skip
    if kind == "of few rows":
        Y[::3, 1] = np.nan
    model = PopulationGLM(regularizer_strength=strengths[kind], observation_model="Gaussian").fit(X, Y)
    assert model.report_.solver_name == "LeastSquares" and model.report_.rank == 4
    for n, ridge in enumerate(np.broadcast_to(strengths[kind], (4, 3)).T):
        x, y = (a[~np.isnan(Y[:, n])] for a in (X, Y[:, n]))
        x, y = x - x.mean(axis=0), y - y.mean()
        gram = x.T @ x / len(x)
        degrees = 1 + np.trace(np.linalg.solve(gram + np.diag(ridge), gram))
        left = y - x @ np.linalg.solve(gram + np.diag(ridge), x.T @ y / len(x))
        np.testing.assert_allclose(model.dispersion_[n], left @ left / (len(x) - degrees), rtol=1e-10)


def test_degrees_of_freedom_and_rank_survive_a_checkpoint_and_masks(tmp_path, monkeypatch):
    rng = np.random.default_rng(2)
    X, Y = rng.normal(size=(60, 5)), rng.normal(size=(60, 3))
    X[:, 4] = X[:, 0]
    given = {"regularizer_strength": 0.1, "observation_model": "Gaussian"}
    whole = PopulationGLM(**given).fit(X, Y)

    few, file, solve, solved = given | {"max_memory": 2000.0}, tmp_path / "fit.npz", LeastSquaresRun._solve, []

    def stop(*system):
        if solved:
            raise KeyboardInterrupt
        solved.append(solve(*system))

    with monkeypatch.context() as patched, pytest.warns(UserWarning):
        patched.setattr("glmfit.engine.checkpoint._SHARE", 1e9)  # after every group
        patched.setattr(LeastSquaresRun, "_solve", stop)
        begun = PopulationGLM(**few).fit(X, Y, checkpoint=file)
    assert 0 < np.sum(begun.report_.converged) < 3
    resumed, again = (PopulationGLM(**few).fit(X, Y, checkpoint=file) for _ in range(2))
    for model in (resumed, again):
        np.testing.assert_allclose(model.dispersion_, whole.dispersion_, rtol=1e-12)
        assert model.report_.rank == whole.report_.rank == 4
    Y[::3, 1] = np.nan
    assert PopulationGLM(**given).fit(X, Y).report_.rank == 4


class Source(RowSource):
    def __init__(self, X):
        self.X = X

    def __len__(self):
        return len(self.X)

    def read(self, rows):
        return self.X[rows]


@pytest.mark.parametrize("far", [0.0, 1e5, 1e7])
def test_bounds_of_streamed_normal_responses_hold_far_from_zero(far):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(3000, 3)) + far
    y = (X - far) @ [1.0, -1.0, 0.5] + rng.normal(size=3000)
    given = {"regularizer_strength": 1e-3, "observation_model": "Gaussian", "max_memory": 100.0}
    model = PopulationGLM(**given).fit(Source(X), y)
    z, u = X - X.mean(axis=0), y - y.mean()

    def objective(coef):
        return np.mean((u - z @ coef) ** 2) / 2 + 1e-3 * coef @ coef / 2

    best = objective(np.linalg.solve(z.T @ z / 3000 + 1e-3 * np.eye(3), z.T @ u / 3000))
    off = model.intercept_ - (y.mean() - X.mean(axis=0) @ model.coef_)
    gap = objective(model.coef_) + off**2 / 2 - best
    assert model.report_.gap_is_bound.all() and gap <= model.report_.gap[0] <= 1e-6


def test_rank_of_repeated_features_is_counted_without_a_basis(monkeypatch):
    monkeypatch.setattr(population, "basis_of", None)  # a call fails
    X = np.random.default_rng(0).normal(size=(50, 5))
    X[:, 3], X[:, 4] = X[:, 0] - 2 * X[:, 1], 1.5
    y = X[:, 0] + np.random.default_rng(1).normal(size=50)
    with pytest.warns(UserWarning, match="constant column"):
        model = PopulationGLM(regularizer_strength=0.1, observation_model="Gaussian").fit(X, y)
    assert model.report_.rank == 3


@pytest.mark.parametrize("offset", [None, 0.1])
def test_weights_do_not_hide_that_all_responses_are_1(offset, rng):
    for _ in range(20):  # the mean of the weights rounds to more or less than 1
        X, w, y = rng.normal(size=(100, 2)), rng.random(100), np.ones(100)
        given = {"sample_weight": w, "offset": None if offset is None else np.full(100, offset)}
        model = make("Bernoulli", "Ridge", 0.1).fit(X, y, **given)
        assert model.report_.status == [Status.ALL_ONES] and model.intercept_ == 1e4
        path = make("Bernoulli", "Ridge").path(X, y, strengths=[1.0, 0.1], **given)
        assert np.all(path.status == Status.ALL_ONES) and np.all(path.intercept == 1e4) and np.all(path.objective == 0)
        with pytest.warns(UserWarning, match="folds without a spike that cannot be scored"):
            cv = make("Bernoulli", "Ridge", model=PopulationGLMCV, strengths=[0.1, 1.0]).fit(X, y, **given)
        assert np.all(cv.intercept_path_ == 1e4) and np.isnan(cv.cv_scores_).all()


@pytest.mark.parametrize("method", ["path", "cv"])
def test_paths_have_no_parameters_of_a_neuron_without_data(method):
    X, Y, *_ = recording("softplus", 3)
    Y[:, 1], Y[:, 2] = np.nan, 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if method == "path":
            path = make("softplus", "Ridge").path(X, Y, strengths=[1.0, 0.1])
            coef, intercept = path.coef, path.intercept
        else:
            model = make("softplus", "Ridge", model=PopulationGLMCV, strengths=[0.1, 1.0]).fit(X, Y)
            coef, intercept = model.coef_path_, model.intercept_path_
    assert np.isfinite(coef[..., 0]).all() and np.isnan(coef[..., 1]).all() and not coef[..., 2].any()
    assert np.isnan(intercept[:, 1]).all() and np.all(intercept[:, 2] == -1e4)


@pytest.mark.parametrize("how", ["weights", "weights of responses", "exposure", "missing", "streamed"])
def test_rows_that_count_for_no_neuron_affect_nothing(how, rng, tmp_path):
    X = rng.normal(size=(1000, 4))
    Y = rng.poisson(np.logaddexp(0, X @ [0.4, -0.3, 0, 0.2] - 0.5)[:, None] * [1, 2.0]).astype(float)
    masked = np.arange(1000) % 10 == 0
    X[masked] *= 50
    kept = (~masked).astype(float)
    expected = PopulationGLM().fit(X[~masked], Y[~masked])
    other = np.column_stack([kept, kept * np.where(np.arange(1000) == 1, 0.5, 1.0)])  # one response counts half
    given, model = {}, PopulationGLM()
    if how in ("missing", "streamed"):
        Y[masked] = np.nan
    elif how == "exposure":
        given, Y = {"exposure": np.column_stack([kept, kept])}, np.where(masked[:, None], 0, Y)
    else:
        given = {"sample_weight": np.column_stack([kept, kept]) if how == "weights" else other}
    if how == "streamed":
        np.save(tmp_path / "X.npy", X)
        model, X = PopulationGLM(max_memory=1e3), np.load(tmp_path / "X.npy", mmap_mode="r")
    found = model.fit(X, Y, **given)
    rtol = 1e-2 if how == "weights of responses" else 1e-6
    np.testing.assert_allclose(found.strength_, expected.strength_, rtol=rtol)
    np.testing.assert_allclose(found.coef_, expected.coef_, rtol=rtol, atol=1e-3)
    assert found.report_.n_rows == 900 and not found.report_.n_masked.any()
    assert found.report_.n_dropped == (100 if how in ("missing", "streamed") else 0)


def test_weights_of_rows_may_be_given_for_every_neuron(rng):
    X = rng.normal(size=(400, 4))
    Y, w = rng.poisson(np.exp(X @ np.full((4, 2), 0.3) - 0.5)), rng.uniform(size=400) ** 4 + 1e-3
    one, other = (PopulationGLM("exp").fit(X, Y, sample_weight=weights) for weights in (w, np.column_stack([w, w])))
    np.testing.assert_array_equal(one.strength_, other.strength_)
    np.testing.assert_array_equal(one.coef_, other.coef_)
