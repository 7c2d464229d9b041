"""ResponseModel from a user's point of view."""

import pickle
import warnings

import jax
import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.sparse as sp
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError

from glmfit import ResponseModel, Status
from glmfit.data.entities import NEURONS, STIMULI
from glmfit.data.responses import read_responses
from glmfit.estimators import response_fit
from glmfit.observations import RESPONSE_LOSSES, Gamma
from glmfit.pairs import SessionBlock, Triples

M, N, K = 40, 25, 3


def softplus(z):
    return np.logaddexp(0, z)


def poisson_deviance(y, rate):
    return 2 * np.sum(np.where(y > 0, y * np.log(np.where(y > 0, y, 1) / rate), 0) - y + rate)


def draw(seed=0, m=M, n=N, share=1 / 3):
    """Features, linear predictor, counts of all pairs, and which of them are seen."""
    rng = np.random.default_rng(seed)
    U, V = rng.normal(size=(m, 4)), rng.normal(size=(n, 4))
    z = 0.7 * (U @ rng.normal(size=(4, 2))) @ (V @ rng.normal(size=(4, 2))).T + 2 + rng.normal(size=n)
    y = rng.poisson(softplus(z)).astype(float)
    return U, V, z, y, rng.random((m, n)) < share


def gaps(y, seen):
    return np.where(seen, y, np.nan)


def model(**parameters):
    return ResponseModel(**{"n_components": K, **parameters})


@pytest.fixture(scope="module")
def data():
    U, V, _, y, seen = draw()
    return U, V, gaps(y, seen), gaps(y, ~seen)


@pytest.fixture(scope="module")
def fitted(data):
    """A model with features on both sides; tests must leave it alone."""
    U, V, Y, _ = data
    return model().fit(U, V, Y)


@pytest.fixture(scope="module")
def one_hot(data):
    return model().fit(None, None, data[2])


# ------------------------------------------------------------------------------------ forms of input


@pytest.mark.slow
def test_all_forms_of_responses_give_the_same_model(data, one_hot):
    Y = data[2]
    row, column = np.nonzero(~np.isnan(Y))
    y = Y[row, column]
    sparse = sp.coo_array((y, (row, column)), shape=Y.shape)
    first, second = np.arange(25), np.arange(25, M)
    sessions = [(first, np.arange(N), Y[first]), SessionBlock(second, np.arange(N), Y[second])]
    table = pd.DataFrame(Y)
    frame = nap.TsdFrame(t=np.arange(M) * 0.1, d=Y)
    masked = np.ma.masked_invalid(Y)
    for form in ((row, column, y), Triples(row, column, y), sparse, table, frame, masked):  # all become one table
        np.testing.assert_array_equal(model().fit(None, None, form).predict(), one_hot.predict())
    for form in (sessions, (np.arange(M), np.arange(N), Y)):
        z = model(tol=1e-5).fit(None, None, form).linear_predictor()
        np.testing.assert_allclose(z, model(tol=1e-5).fit(M, N, Y).linear_predictor(), atol=2e-3)


@pytest.mark.slow
def test_repeated_trials_count_as_trials_and_as_one_pair():
    rng = np.random.default_rng(1)
    U, V, z, _, seen = draw(1)
    row, column = np.nonzero(seen)
    y = rng.poisson(softplus(z[row, column]), (2, len(row))).astype(float)
    twice = Triples(*(np.tile(ids, 2) for ids in (row, column)), y.ravel())
    fit = model(imputation_weight=0.3).fit(U, V, twice)
    assert fit.report_.n_pairs == len(row) and fit.report_.n_trials == 2 * len(row)
    session = np.tile(np.arange(M), 2), np.arange(N), np.full((2 * M, N), np.nan)
    for t in range(2):
        session[2][row + t * M, column] = y[t]
    np.testing.assert_allclose(fit.predict(), model(imputation_weight=0.3).fit(U, V, session).predict(), atol=0.01)
    # A trial given twice weighs twice: with all other terms doubled, the model equals that of single trials.
    doubled = Triples(twice.left, twice.right, np.tile(y[0], 2))
    strong = model(regularizer_strength=2.0, bias_strength=0.2, imputation_weight=0.6).fit(U, V, doubled)
    once = model(imputation_weight=0.3).fit(U, V, (row, column, y[0]))
    np.testing.assert_allclose(strong.predict(), once.predict(), atol=0.01)
    assert np.max(np.abs(fit.predict() - once.predict())) > 0.1


@pytest.mark.thorough
def test_features_may_be_frames_sparse_or_pynapple(data, fitted):
    U, V, Y, _ = data
    t = np.arange(M) * 0.1
    for left in (sp.csr_array(U), nap.TsdFrame(t=t, d=U), pd.DataFrame(U), U.tolist()):
        np.testing.assert_allclose(model().fit(left, V, Y).predict(), fitted.predict(), atol=0.01)
    out = fitted.predict(stimulus_features=nap.TsdFrame(t=t, d=U))
    assert isinstance(out, nap.TsdFrame)
    np.testing.assert_array_equal(out.t, t)
    np.testing.assert_allclose(out.values, fitted.predict(stimulus_features=U))


@pytest.mark.slow
def test_names_of_features_are_remembered(data):
    U, V, Y, _ = data
    frame = pd.DataFrame(U, columns=list("abcd"))
    fit = model().fit(frame, V, Y)
    assert fit.stimulus_feature_names_in_.tolist() == list("abcd")
    assert not hasattr(fit, "neuron_feature_names_in_")
    assert (fit.n_stimulus_features_in_, fit.n_neuron_features_in_) == (4, 4)
    with pytest.raises(ValueError, match="column 0 is 'b', and was 'a'"):
        fit.predict(stimulus_features=frame[list("bacd")])
    with pytest.warns(UserWarning, match="stimulus_features does not have valid feature names"):
        fit.predict(stimulus_features=U)
    with pytest.warns(UserWarning, match="neuron_features has feature names, but"):
        fit.predict(neuron_features=pd.DataFrame(V, columns=list("abcd")))
    assert not hasattr(fit.fit(U, V, Y), "stimulus_feature_names_in_")


# ------------------------------------------------------------------------------------------ results


@pytest.mark.slow
def test_held_out_pairs_are_predicted_nearly_as_well_as_by_the_truth(data, fitted):
    _, _, z, y, seen = draw()
    mean = np.nanmean(data[2], axis=0)[None, :].repeat(M, 0)
    null = poisson_deviance(y[~seen], mean[~seen])
    truth = 1 - poisson_deviance(y[~seen], softplus(z)[~seen]) / null
    score = fitted.score(data[3])
    assert score == pytest.approx(1 - poisson_deviance(y[~seen], fitted.predict()[~seen]) / null, rel=1e-4)
    assert truth > 0.5 and truth - 0.12 < score < truth + 0.03
    assert fitted.report_.pseudo_r2 == pytest.approx(fitted.score(data[2]), abs=1e-12)


@pytest.mark.slow
def test_one_hot_towers_fill_in_a_low_rank_table():
    _, _, _, y, seen = draw(share=0.5)
    fit = model(bias_strength=3.0).fit(M, N, gaps(y, seen))
    additive = model(regularizer_strength=1e4).fit(M, N, gaps(y, seen))
    assert np.max(np.abs(additive.stimulus_embedding_)) < 1e-2
    assert fit.score(gaps(y, ~seen)) > additive.score(gaps(y, ~seen)) + 0.1


@pytest.mark.slow
def test_unseen_stimuli_and_neurons_are_predicted_from_their_features():
    U, V, _, y, seen = draw(2, 60, 33)
    fit = model().fit(U[:M], V[:N], gaps(y, seen)[:M, :N])
    assert fit.score(y[M:, :N], stimulus_features=U[M:]) > 0.4
    assert fit.score(y[:M, N:], neuron_features=V[N:]) > 0.3
    null = np.mean(np.log(np.expm1(np.nanmean(gaps(y, seen)[:M, :N], axis=0))))
    rate = fit.predict(neuron_features=V[N:])
    expected = 1 - poisson_deviance(y[:M, N:], rate) / poisson_deviance(y[:M, N:], softplus(null))
    assert fit.score(y[:M, N:], neuron_features=V[N:]) == pytest.approx(expected, rel=1e-4)
    both = fit.predict(stimulus_features=U[M:], neuron_features=V[N:])
    assert both.shape == (20, 8)
    assert np.corrcoef(both.ravel(), y[M:, N:].ravel())[0, 1] > 0.6
    # The features of the fit give its embeddings; biases are the means.
    z = fit.linear_predictor(stimulus_features=U[:M])
    bias = fit.stimulus_bias_.mean() - fit.stimulus_bias_
    np.testing.assert_allclose(z, fit.linear_predictor() + bias[:, None], atol=1e-9)


@pytest.mark.thorough
def test_predictions_agree_with_the_formula(fitted):
    P, Q = fitted.stimulus_embedding_, fitted.neuron_embedding_
    z = P @ Q.T + fitted.stimulus_bias_[:, None] + fitted.neuron_bias_
    np.testing.assert_allclose(fitted.linear_predictor(), z, atol=1e-12)
    np.testing.assert_allclose(fitted.predict(), softplus(z), rtol=1e-9)
    np.testing.assert_array_equal(fitted.predict([3, 1], [0, 4, 2]), fitted.predict()[np.ix_([3, 1], [0, 4, 2])])
    np.testing.assert_allclose(fitted.predict_pairs([3, 1], [0, 4]), fitted.predict()[[3, 1], [0, 4]], rtol=1e-12)
    assert all(a.dtype == np.float64 for a in (P, Q, fitted.stimulus_bias_, fitted.neuron_bias_))


@pytest.mark.thorough
def test_embeddings_are_rotated_to_a_unique_form(fitted):
    P, Q = fitted.stimulus_embedding_, fitted.neuron_embedding_
    moment = P.T @ P + Q.T @ Q
    np.testing.assert_allclose(moment, np.diag(np.diag(moment)), atol=1e-10 * moment[0, 0])
    assert np.all(np.diff(np.diag(moment)) <= 0)
    assert np.all(Q[np.argmax(np.abs(Q), axis=0), np.arange(K)] > 0)


@pytest.mark.slow
def test_the_objective_is_the_documented_formula(data, fitted):
    """The report's objective is the formula of the docstring at the fitted parameters, for any imputation."""
    U, V, Y, _ = data
    a, b = np.linspace(0.5, 2, M), np.linspace(1, 0.2, N)
    fit = model(imputation_weight=0.4, prior="mean").fit(U, V, Y, a, b)
    z, seen = fit.linear_predictor(), ~np.isnan(Y)
    loss = np.sum((softplus(z) - np.where(seen, Y, 0) * np.log(softplus(z)))[seen])
    base = np.nanmean(Y, axis=0)
    prior = np.log(np.expm1(base))
    imputed = 0.2 * np.sum((a[:, None] * b * (z - prior) ** 2)[~seen])
    towers = sum(np.sum(w**2) for tower in fit._towers for pair in tower.maps for w in pair)
    biases = np.sum(fit.stimulus_bias_**2) + np.sum((fit.neuron_bias_ - prior) ** 2)
    assert fit.report_.objective == pytest.approx(loss + imputed + 0.5 * towers + 0.05 * biases, rel=1e-4)
    assert np.max(np.abs(fit.predict() - fitted.predict())) > 0.05


@pytest.mark.slow
def test_prior_factors_attract_unobserved_pairs(data):
    factors = np.ones((M, 1)), np.full((N, 1), 5.0)
    with jax.enable_x64(True):  # the observed part is a thousandth of the objective
        fit = model(imputation_weight=1e3).fit(None, None, data[2], prior_factors=factors)
    assert np.median(np.abs(fit.linear_predictor() - 5.0)[np.isnan(data[2])]) < 0.5


@pytest.mark.slow
def test_logistic_accepts_booleans_and_signs(data):
    U, V, z, _, seen = draw(3)
    y = np.random.default_rng(3).random(z.shape) < expit(z - 2)
    fit = model(loss="logistic").fit(U, V, gaps(y, seen))
    np.testing.assert_array_equal(fit.predict(), model(loss="logistic").fit(U, V, gaps(2.0 * y - 1, seen)).predict())
    row, column = np.nonzero(seen)
    by_booleans = model(loss="logistic").fit(U, V, (row, column, y[row, column]))
    np.testing.assert_array_equal(fit.predict(), by_booleans.predict())
    assert fit.score(gaps(y, ~seen)) == fit.score(gaps(2.0 * y - 1, ~seen))
    np.testing.assert_allclose(fit.predict(), expit(fit.linear_predictor()))
    assert set(np.unique(fit.simulate())) == {0.0, 1.0}


@pytest.mark.slow
def test_squared_loss_and_no_biases():
    _, _, z, _, seen = draw(4, share=0.7)
    fit = model(loss="squared", bias=False, regularizer_strength=1e-2).fit(None, None, gaps(z, seen))
    assert not fit.stimulus_bias_.any() and not fit.neuron_bias_.any()
    assert fit.score(gaps(z, ~seen)) > 0.95  # the rank of z is 3, one of it the neurons' offsets
    assert fit.score(gaps(z, seen)) > 0.999
    with pytest.raises(ValueError, match="no noise model"):
        fit.simulate()


@pytest.mark.slow
def test_equal_responses_are_predicted():
    np.testing.assert_allclose(model().fit(M, N, np.full((M, N), 2.0)).predict(), 2.0, rtol=1e-2)


@pytest.mark.thorough
def test_simulation_is_reproducible_and_has_the_right_mean(fitted):
    counts = fitted.simulate(random_state=3)
    np.testing.assert_array_equal(counts, fitted.simulate(random_state=3))
    np.testing.assert_array_equal(fitted.simulate(), fitted.simulate(random_state=fitted.random_state))
    assert np.any(counts != fitted.simulate(random_state=4))
    mean = np.mean([fitted.simulate([0] * M, random_state=seed) for seed in range(10)], axis=(0, 1))  # one compilation
    rate = fitted.predict([0])
    assert np.all(np.abs(mean - rate[0]) < 5 * np.sqrt(rate[0] / 400) + 0.02)


# ------------------------------------------------------------------------------------------- scores


@pytest.mark.thorough
def test_correlation_is_computed_per_neuron(data, fitted):
    held = data[3].copy()
    held[:, 0] = np.nan
    held[:2, 0] = 1.0  # two pairs
    held[:, 1] = np.where(np.isnan(held[:, 1]), np.nan, 2.0)  # no variance
    value, mu = fitted.score(held, "correlation"), fitted.predict()
    assert value.shape == (N,) and np.isnan(value[:2]).all()
    for j in range(2, N):
        rows = ~np.isnan(held[:, j])
        assert value[j] == pytest.approx(np.corrcoef(held[rows, j], mu[rows, j])[0, 1])
    row, column = np.nonzero(~np.isnan(held))
    y = held[row, column]
    trials = np.tile(row, 2), np.tile(column, 2), np.concatenate([y - np.minimum(y, 1), y + np.minimum(y, 1)])
    np.testing.assert_allclose(fitted.score(trials, "correlation")[2:], value[2:])


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("k", [1, 4, 100])
def test_recall_matches_a_loop(k, data, fitted):
    Y = data[2]
    held = np.where(np.isnan(data[3]), np.nan, data[3] > 4)  # rare: most stimuli have fewer than four
    z, shares = fitted.linear_predictor(), []
    for i in range(M):
        positive = set(np.flatnonzero(held[i] > 0))
        candidates = [j for j in np.argsort(-z[i]) if np.isnan(Y[i, j])][:k]
        if positive:
            shares.append(len(positive & set(candidates)) / min(k, len(positive)))
    assert fitted.score(held, "recall", k=k, exclude=Y) == pytest.approx(np.mean(shares))
    everything = np.where(np.isnan(Y), held, Y > 4)
    assert fitted.score(everything, "recall", k=k, exclude=Y) == pytest.approx(np.mean(shares))


@pytest.mark.slow
def test_scores_refuse_invalid_input(data, fitted):
    Y = data[2]
    with pytest.raises(ValueError, match="score_type is 'R2'"):
        fitted.score(Y, "R2")
    with pytest.raises(ValueError, match='exclude is for score_type="recall"'):
        fitted.score(Y, exclude=Y)
    with pytest.raises(ValueError, match="no remaining pair"):
        fitted.score(Y, "recall", exclude=Y)
    with pytest.raises(ValueError, match="k is 0"):
        fitted.score(Y, "recall", k=0)
    with pytest.raises(ValueError, match=r"table of shape \(39, 25\), but there are 40"):
        fitted.score(Y[:39])


# ------------------------------------------------------------------------------------------- tuning


@pytest.mark.slow
def test_weights_and_strengths_are_chosen_on_held_out_pairs(data):
    U, V, Y, _ = data
    fit = model(imputation_weight=[30.0], regularizer_strength=(1.0, 1e4)).fit(U, V, Y)
    tuning = fit.report_.tuning
    assert sorted(tuning) == ["imputation_weight", "regularizer_strength", "score"]
    assert tuning["imputation_weight"].tolist() == [0, 0, 30, 30]
    assert tuning["regularizer_strength"].tolist() == [1, 1e4, 1, 1e4]
    best = int(np.argmax(tuning["score"]))
    assert best == 0 and (fit.imputation_weight_, fit.regularizer_strength_) == (0.0, 1.0)
    assert tuning["score"][0] > tuning["score"][3] + 0.1
    # The best candidate is fitted again to all pairs.
    assert fit.report_.n_pairs == np.sum(~np.isnan(Y))
    np.testing.assert_array_equal(fit.predict(), model().fit(U, V, Y).predict())
    assert "chosen among 4 by D2 on held-out pairs" in str(fit.report_)
    alone = model(imputation_weight=0.5).fit(U, V, Y)
    assert alone.imputation_weight_ == 0.5 and not alone.report_.tuning


@pytest.mark.parametrize("loss", ["squared", "poisson"])
def test_auto_weights_are_shares_of_the_curvature(loss, data):
    responses = read_responses(data[2], RESPONSE_LOSSES[loss], None, None)
    settings = response_fit.Settings(model(loss=loss, imputation_weight="auto"))
    weights = response_fit.ResponseFit(settings, responses).imputation_weights()
    y, mean = responses.records.y, np.nanmean(data[2], axis=0)[responses.records.right]
    z = np.log(np.expm1(mean))
    h = 1e-4
    loss_at = (lambda x: (y - x) ** 2 / 2) if loss == "squared" else (lambda x: softplus(x) - y * np.log(softplus(x)))
    curvature = np.mean((loss_at(z + h) - 2 * loss_at(z) + loss_at(z - h)) / h**2)
    np.testing.assert_allclose(weights, curvature * np.array([0, 0.03, 0.1, 0.3]), rtol=1e-4)


@pytest.mark.parametrize("form", ["records", "table", "sessions"])
def test_holding_out_leaves_every_entity_a_pair_and_keeps_trials_together(form, data):
    Y = data[2]
    row, column = np.nonzero(~np.isnan(Y))
    twice = np.tile(row, 2), np.tile(column, 2), np.tile(Y[row, column], 2)
    half = np.arange(M // 2, M)
    sessions = [(np.tile(np.arange(M), 2), np.arange(N), np.tile(Y, (2, 1))), (half, np.arange(N), Y[half])]
    given = {"records": twice, "table": Y, "sessions": sessions}[form]
    responses = read_responses(given, RESPONSE_LOSSES["poisson"], M, N)
    settings = response_fit.Settings(model(validation_fraction=0.9))
    held, rest = response_fit.ResponseFit(settings, responses).split()
    rest = read_responses(rest, RESPONSE_LOSSES["poisson"], M, N)
    before, held, left = (
        pd.Series(responses.key(r.left, r.right)).value_counts() for r in (responses.records, held, rest.records)
    )
    pd.testing.assert_series_equal(pd.concat([held, left]).sort_index(), before.sort_index())
    assert held.index.is_unique and not set(held.index) & set(left.index) and len(held) > 0.5 * len(before)
    assert len(np.unique(left.index // N)) == len(np.unique(row)) and len(np.unique(left.index % N)) == N


def test_missing_responses_are_not_refused_as_invalid_values(data):
    Y = np.abs(data[2]) + 1  # NaN where nothing was recorded; gamma responses are above 0
    np.testing.assert_array_equal(read_responses(Y, Gamma(), None, None).parts[0].y, Y)
    Y[tuple(np.argwhere(~np.isnan(Y))[0])] = 0.0
    with pytest.raises(ValueError, match=r"responses has 1 values that the loss 'gamma' cannot take.*needs values > 0"):
        read_responses(Y, Gamma(), None, None)


def test_nothing_can_be_held_out_of_a_diagonal():
    with pytest.raises(ValueError, match="nothing can be held out"):
        model(n_components=1, imputation_weight=[0.1]).fit(5, 5, sp.coo_array(np.eye(5)))


# ----------------------------------------------------------------------------------------- warnings


@pytest.mark.slow
def test_entities_without_a_response_are_named_and_get_the_mean(data):
    Y = data[2].copy()
    Y[[3, 7]] = np.nan
    Y[:, 5] = np.nan
    with pytest.warns(UserWarning) as caught:
        fit = model().fit(None, None, Y)
    messages = [str(w.message) for w in caught]
    assert any("2 of 40 stimuli have no response (first: 3)" in text for text in messages)
    assert any("1 of 25 neurons have no response (first: 5)" in text for text in messages)
    assert len(messages) == 2 and all(w.filename == __file__ for w in caught)
    assert not fit.stimulus_embedding_[[3, 7]].any() and not fit.neuron_embedding_[5].any()
    assert not fit.stimulus_bias_[[3, 7]].any()
    np.testing.assert_allclose(softplus(fit.neuron_bias_[5]), np.nanmean(Y), rtol=1e-5)
    report = fit.report_
    assert (report.n_stimuli_unseen, report.n_neurons_unseen) == (2, 1)
    assert "without a response: 2 stimuli, 1 neurons" in str(report)


def test_entities_with_features_need_no_response(data):
    U, V, Y, _ = data
    Y = Y.copy()
    Y[3] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fit = model().fit(U, V, Y)
    assert fit.stimulus_embedding_[3].any() and fit.report_.n_stimuli_unseen == 1


def test_more_components_than_rank_raise_a_warning():
    left, right = STIMULI._replace(n=M, n_features=4), NEURONS._replace(n=N)
    with pytest.warns(UserWarning, match="n_components is 6, but .* rank 5 at most"):
        response_fit.warn_rank(response_fit.Settings(model(n_components=6)), left, right)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        response_fit.warn_rank(response_fit.Settings(model(n_components=5)), left, right)
        perceptron = model(n_components=6, stimulus_hidden=(9,))
        response_fit.warn_rank(response_fit.Settings(perceptron), left, right)


def test_non_integer_counts_raise_a_warning(data):
    U, V, Y, _ = data
    with pytest.warns(UserWarning, match="responses has counts that are not integers, in 25 of 25 neurons"):
        model(max_epochs=500).fit(U, V, Y + 0.5)


def test_a_fit_that_did_not_converge_warns_once_and_is_usable(data):
    U, V, Y, _ = data
    with pytest.warns(ConvergenceWarning, match="raise max_epochs") as caught:
        fit = model(max_epochs=2).fit(U, V, Y)
    assert len(caught) == 1 and caught[0].filename == __file__
    report = fit.report_
    assert report.status == Status.MAX_EPOCHS and not report.converged and report.epochs == 2
    assert report.relative_gradient > fit.tol
    assert "on the way to a stationary point" in str(report) and "max epochs" in str(report)
    assert np.isfinite(fit.predict()).all()


def test_interrupting_leaves_a_usable_model(data, monkeypatch):
    U, V, Y, _ = data
    solver = response_fit.SOLVERS["LBFGS"]
    step, calls = solver.update, []

    def update(self, problem, state):
        calls.append(state.epoch)
        if len(calls) > 5:
            raise KeyboardInterrupt
        return step(self, problem, state)

    monkeypatch.setattr(solver, "update", update)
    for parameters in ({}, {"regularizer_strength": [1.0, 2.0]}):
        calls.clear()
        with pytest.warns(ConvergenceWarning, match="stopped by the user"):
            fit = model(**parameters).fit(U, V, Y)
        assert fit.report_.status == Status.INTERRUPTED and fit.report_.epochs == 5
        assert np.isfinite(fit.predict()).all() and fit.score(Y) > 0
        assert np.isnan(fit.report_.tuning.get("score", np.nan)).all()


def test_report_says_what_is_and_is_not_proved(fitted):
    report = fitted.report_
    text = str(report)
    assert report.converged and report.relative_gradient <= fitted.tol
    assert report.n_parameters == 2 * (4 + 1) * K + M + N
    assert report.density == pytest.approx(report.n_pairs / (M * N))
    for words in (
        "LBFGS: converged", "40 stimuli, 25 neurons", "a stationary point", "not convex", "sum over pairs",
        "no bound on the distance", f"pseudo-R2 {report.pseudo_r2:.4f}", "3 components, ", "ridge 1, imputation",
    ):  # fmt: skip
        assert words in text


# ---------------------------------------------------------------------------------- scikit-learn, files


def test_clone_parameters_and_pickle(data, fitted):
    given = {"n_components": 4, "imputation_weight": [0.1, 1.0], "stimulus_hidden": (5,), "solver_name": "LBFGS"}
    unfitted = ResponseModel(**given)
    again = clone(unfitted.set_params(loss="squared"))
    assert again.get_params() == {**ResponseModel(**given).get_params(), "loss": "squared"}
    assert repr(again).startswith("ResponseModel(") and "squared" in repr(again)
    before = fitted.get_params()
    assert before == model().get_params() and not hasattr(clone(fitted), "report_")
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).predict(), fitted.predict())


def test_unfitted_models_raise_not_fitted_error(data, tmp_path):
    U, _, Y, _ = data
    for use in (
        lambda m: m.predict(), lambda m: m.predict(stimulus_features=U), lambda m: m.predict_pairs([0], [0]),
        lambda m: m.linear_predictor(), lambda m: m.score(Y), lambda m: m.simulate(), lambda m: m.save(tmp_path / "m"),
    ):  # fmt: skip
        with pytest.raises(NotFittedError):
            use(model())


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", ["features", "one-hot", "perceptron"])
def test_a_loaded_model_is_the_same(kind, data, tmp_path):
    U, V, Y, held = data
    left = {"features": pd.DataFrame(U, columns=list("abcd")), "one-hot": None, "perceptron": U}[kind]
    hidden = {"stimulus_hidden": (6,)} if kind == "perceptron" else {}
    tuned = {"regularizer_strength": (0.5, 1.0)} if kind == "features" else {}
    fit = model(solver_name="LBFGS", tol=1e-3, **hidden, **tuned).fit(left, V, Y)
    again = ResponseModel.load(fit.save(tmp_path / "model"))
    np.testing.assert_array_equal(again.predict(), fit.predict())
    np.testing.assert_array_equal(again.predict(neuron_features=V[:3]), fit.predict(neuron_features=V[:3]))
    if left is not None:
        a, b = (m.predict(stimulus_features=left, neurons=[2]) for m in (fit, again))
        np.testing.assert_array_equal(a, b)
    assert again.get_params() == fit.get_params() and str(again.report_) == str(fit.report_)
    assert again.score(held) == fit.score(held) and again.imputation_weight_ == fit.imputation_weight_
    np.testing.assert_array_equal(again.report_.history["objective"], fit.report_.history["objective"])
    assert list(again.report_.tuning) == list(fit.report_.tuning)
    for name, values in fit.report_.tuning.items():
        np.testing.assert_array_equal(again.report_.tuning[name], values)
    public = {name for name in vars(fit) if name.endswith("_")}
    assert {name for name in vars(again) if name.endswith("_")} == public


def test_a_damaged_file_is_refused(fitted, tmp_path):
    path = fitted.save(tmp_path / "model")
    with np.load(path) as file:
        arrays = dict(file)
    for lost in ("stimulus.0.weight", "null", "neuron_bias"):
        np.savez(path, **{name: a for name, a in arrays.items() if name != lost})
        with pytest.raises(ValueError, match="not a complete ResponseModel"):
            ResponseModel.load(path)


@pytest.mark.thorough
def test_double_precision_is_used_if_jax_and_the_data_have_it(data, fitted, x64):
    U, V, Y, _ = data
    fit, other = (model(tol=1e-9, random_state=seed).fit(U, V, Y) for seed in (0, 1))
    assert fit.report_.relative_gradient < 1e-9
    np.testing.assert_allclose(fit.predict(), fitted.predict(), atol=0.02)
    # Two starts that reach one optimum give the same embeddings, because these are rotated to a unique form.
    assert fit.report_.start_objective != other.report_.start_objective
    assert fit.report_.objective == pytest.approx(other.report_.objective, rel=1e-12)
    for name in ("stimulus_embedding_", "neuron_embedding_", "stimulus_bias_", "neuron_bias_"):
        np.testing.assert_allclose(getattr(fit, name), getattr(other, name), atol=1e-4)
    assert response_fit.ResponseFit(None, None, (U.astype(np.float32), None)).dtype == np.float32
    assert response_fit.ResponseFit(None, None, (None, V)).dtype == np.float64


def test_single_precision_is_used_otherwise(data):
    assert not jax.config.jax_enable_x64
    assert response_fit.ResponseFit(None, None, (None, data[1])).dtype == np.float32


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("name", sorted(response_fit.SOLVERS))
def test_every_solver_decreases_the_objective(name, data, fitted):
    U, V, Y, _ = data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        report = model(solver_name=name, max_epochs=30).fit(U, V, Y).report_
    assert report.solver_name == name
    drop = report.start_objective - report.objective
    assert drop > 0.5 * (fitted.report_.start_objective - fitted.report_.objective)


def test_auto_is_lbfgs_for_linear_towers_and_adam_for_perceptrons(fitted):
    assert fitted.report_.solver_name == "LBFGS"
    for hidden in ({"stimulus_hidden": (6,)}, {"neuron_hidden": [6]}):
        assert isinstance(response_fit.Settings(model(**hidden)).solver, response_fit.SOLVERS["Adam"])


@pytest.mark.slow
def test_perceptron_towers_fit(data):
    U, V, Y, _ = data
    fit = model(stimulus_hidden=(6,), solver_name="LBFGS", tol=1e-3).fit(U, V, Y)
    hidden = np.tanh(U @ fit._towers[0].maps[0].weight + fit._towers[0].maps[0].constant)
    P = hidden @ fit._towers[0].maps[1].weight + fit._towers[0].maps[1].constant
    np.testing.assert_allclose(fit.stimulus_embedding_, P, atol=1e-12)
    assert fit.score(Y) > 0.3


# ----------------------------------------------------------------------------------------- bad input

IDS = np.arange(4)
BAD_RESPONSES = {
    "none": (None, "responses is None"),
    "empty list": ([], "empty list: no session"),
    "two arrays": ((IDS, IDS), "is a tuple of 2"),
    "one dimension": (np.ones(4), r"has shape \(4,\)"),
    "three arrays in a list": ([IDS, IDS, np.ones(4)], "session 0 of responses is a ndarray of shape"),
    "session shape": ([(IDS, IDS, np.ones((4, 3)))], r"session 0 .* shape \(4, 3\), but 4 stimulus ids and 4 neuron"),
    "second session": ([(IDS, IDS, np.ones((4, 4))), (IDS, [30], np.ones((4, 1)))], "neuron ids of session 1.*is 30"),
    "id too large": ((np.array([0, 40]), [0, 1], np.ones(2)), "stimulus ids of responses: entry 1 is 40; .* 0 to 39"),
    "negative id": (([0, -1], [0, 1], np.ones(2)), "entry 1 is -1"),
    "fractional id": (([0, 0.5], [0, 1], np.ones(2)), "entry 1 is 0.5"),
    "NaN id": (([0, np.nan], [0, 1], np.ones(2)), "entry 1 is nan"),
    "mask": ((np.array([True, False]), [0, 1], np.ones(2)), "numpy.flatnonzero"),
    "ids of words": ((np.array(["a", "b"]), [0, 1], np.ones(2)), "dtype"),
    "lengths": (([0, 1, 2], [0, 1], np.ones(2)), "3 stimulus ids, 2 neuron ids and 2 values"),
    "NaN record": (([0, 1], [0, 1], [1, np.nan]), "1 NaN .*record 1"),
    "infinite": (([0, 1], [0, 1], [1, np.inf]), "infinite values.*record 1: stimulus 1, neuron 1"),
    "negative count": (([0, 1], [0, 1], [1, -2]), "'poisson' cannot take .*record 1.*-2.*z-scored"),
    "negative in table": (-np.ones((M, N)), "stimulus 0, neuron 0"),
    "negative in session": ([(IDS, IDS, np.ones((4, 4))), (IDS, IDS, -np.eye(4))], "session 1, row 0, column 0"),
    "words": (np.array([["a"] * N] * M), "dtype"),
    "objects": (np.array([["a"] * N] * M, object), "not numbers"),
    "table shape": (np.ones((M, N + 1)), r"table of shape \(40, 26\), but there are 25"),
    "sparse shape": (sp.eye_array(M), r"table of shape \(40, 40\), but there are 25"),
    "all NaN": (np.full((M, N), np.nan), "has no response"),
    "no record": (([], [], []), "has no response"),
    "empty sparse": (sp.coo_array((M, N)), "has no response"),
    "sparse session": ([(IDS, IDS, sp.eye_array(4))], "is a sparse matrix"),
    "huge": (([0], [0], [1e30]), "beyond 1e[+]15"),
}


@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_bad_responses_are_refused(name, data):
    responses, message = BAD_RESPONSES[name]
    fit = model()
    with pytest.raises((ValueError, TypeError), match=message):
        fit.fit(data[0], data[1], responses)
    assert not [key for key in vars(fit) if key.endswith("_")]


@pytest.mark.parametrize("y", [0.5, -2.0, 2.0])
def test_values_other_than_zero_and_one_are_refused_by_a_logistic_loss(y):
    with pytest.raises(ValueError, match=r"needs responses 0 or 1. \(-1 and 1"):
        model(loss="logistic").fit(None, None, ([0, 1], [0, 1], [1, y]))
    with pytest.raises(ValueError, match="'logistic' cannot take"):
        model(loss="logistic").fit(None, None, ([0, 1, 1], [0, 1, 0], [1, -1, 0]))


def features_with(value):
    U = np.ones((M, 2))
    U[3, 1] = value
    return U


BAD_FIT = {
    "NaN features": ({"stimulus_features": features_with(np.nan)}, "stimulus_features has 1 values .*row 3, column 1"),
    "infinite features": ({"stimulus_features": features_with(np.inf)}, "NaN or infinite"),
    "sparse NaN": ({"stimulus_features": sp.csr_array(features_with(np.nan))}, "row 3, column 1"),
    "huge features": (
        {"stimulus_features": features_with(1e20)},
        "up to 1.0e[+]20, whose squares cannot be summed; rescale them",
    ),
    "features 1-D": (
        {"neuron_features": np.ones(N)},
        r"shape \(25,\), one dimension; .*neuron_features\[:, None\] if it is one feature",
    ),
    "too few neurons": (
        {"neuron_features": np.eye(N - 1)[:, :2]},
        r"shape \(40, 25\), but there are 24 neurons, the rows of neuron_features",
    ),
    "words": ({"stimulus_features": np.array([["a"]] * M)}, "dtype"),
    "number 0": ({"stimulus_features": 0}, "stimulus_features is 0"),
    "fraction": ({"neuron_features": 25.0}, "neuron_features is 25.0"),
    "true": ({"neuron_features": True}, "neuron_features is True"),
    "weight length": (
        {"stimulus_weight": np.ones(3)},
        r"stimulus_weight has shape \(3,\); it needs one number per stimulus, \(40,\)",
    ),
    "weight negative": (
        {"neuron_weight": np.r_[1, -1, np.ones(23)]},
        "neuron_weight is -1 at neuron 1; it needs finite numbers >= 0",
    ),
    "weight NaN": ({"neuron_weight": np.full(N, np.nan)}, "neuron_weight is nan at neuron 0; it needs finite"),
    "one factor": ({"prior_factors": np.ones((M, 1))}, "tuple of two arrays"),
    "factor rows": ({"prior_factors": (np.ones((3, 1)), np.ones((N, 1)))}, r"prior_factors\[0\] has shape \(3, 1\)"),
    "factor columns": ({"prior_factors": (np.ones((M, 1)), np.ones((N, 2)))}, "same number of columns"),
}


@pytest.mark.parametrize("name", BAD_FIT)
def test_bad_features_and_weights_are_refused(name, data):
    change, message = BAD_FIT[name]
    arguments = {"stimulus_features": None, "neuron_features": None, "responses": data[2], **change}
    with pytest.raises(ValueError, match=message):
        model(imputation_weight=0.1).fit(**arguments)


BAD_PARAMETERS = {
    "n_components": [0, 1.5, True, None],
    "loss": ["hinge", None],
    "stimulus_hidden": [32, (0,), "ab"],
    "neuron_hidden": [(3.5,)],
    "regularizer_strength": [-1.0, np.nan, [1.0, -1.0], [], "auto", None, [[1.0]]],
    "bias": ["yes", None],
    "bias_strength": [-0.1, np.inf, [1.0]],
    "imputation_weight": [-1.0, np.nan, [0.1, np.nan], "some", None],
    "prior": ["median", np.ones(3)],
    "solver_name": ["SAGA", None],
    "tol": [0, -1, 2.0, np.nan],
    "max_epochs": [0, 2.5],
    "validation_fraction": [0, 1, 1.5],
    "random_state": [-1, "seed"],
}


@pytest.mark.parametrize("name", BAD_PARAMETERS)
def test_bad_parameters_are_refused(name, data):
    for value in BAD_PARAMETERS[name]:
        with pytest.raises(ValueError, match=name):
            model(**{name: value}).fit(None, None, data[2])


def test_bad_solver_arguments_are_refused(data):
    with pytest.raises(ValueError, match="name the solver they are for"):
        model(solver_kwargs={"history_size": 3}).fit(None, None, data[2])
    with pytest.raises(ValueError, match="solver_kwargs of LBFGS may be history_size"):
        model(solver_name="LBFGS", solver_kwargs={"memory": 3}).fit(None, None, data[2])


@pytest.mark.slow
def test_invalid_queries_are_refused(data, fitted, one_hot):
    U, V, _, _ = data
    with pytest.raises(ValueError, match="every stimulus is its own feature; unseen stimuli need stimulus_features"):
        one_hot.predict(stimulus_features=U)
    with pytest.raises(ValueError, match="stimuli and stimulus_features were given"):
        fitted.predict([0], stimulus_features=U)
    with pytest.raises(ValueError, match="stimulus_features has 3 features, but the fit had 4"):
        fitted.predict(stimulus_features=U[:, :3])
    with pytest.raises(ValueError, match="NaN or infinite"):
        fitted.predict(neuron_features=V * np.nan)
    with pytest.raises(ValueError, match="neurons: entry 1 is 25; ids are whole numbers from 0 to 24"):
        fitted.predict(neurons=[0, 25])
    with pytest.raises(ValueError, match="stimuli: entry 0 is -1"):
        fitted.predict([-1])
    with pytest.raises(ValueError, match=r"stimuli: entry 0 is 0\.5; ids are whole numbers"):
        fitted.predict([0.5])
    with pytest.raises(ValueError, match="need to be ids"):
        fitted.predict([[0]])
    with pytest.raises(ValueError, match="2 stimuli and 1 neurons; pairs need one of each"):
        fitted.predict_pairs([0, 1], [0])
    with pytest.raises(ValueError, match="record 0: stimulus 0"):
        fitted.score(([0], [0], [-1.0]))


def test_a_fit_that_fails_leaves_the_model_as_it_was(data):
    U, V, Y, _ = data
    fit = model().fit(U, V, Y)
    before = fit.predict()
    with pytest.raises(ValueError):
        fit.fit(U, V, -Y)
    np.testing.assert_array_equal(fit.predict(), before)


# ------------------------------------------------------------------------------- found in reviews


def measured(rng):
    Z = rng.normal(size=(30, 2)) @ rng.normal(size=(2, 20)) + 0.3 * rng.normal(size=(30, 20))
    Z[rng.random(Z.shape) < 0.5] = np.nan
    return Z


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-9, 1e6])
def test_measured_responses_may_have_any_unit(rng, unit):
    Z = measured(rng)
    small, large = (
        ResponseModel(2, loss="squared", regularizer_strength=0.1 * c).fit(None, None, c * Z) for c in (1.0, unit)
    )
    assert large.report_.converged
    np.testing.assert_allclose(large.report_.objective / unit**2, small.report_.objective, rtol=1e-4)
    np.testing.assert_allclose(large.predict() / unit, small.predict(), atol=0.01)
    np.testing.assert_allclose(large.report_.gap_per_neuron.sum(), large.report_.gap_neurons, rtol=1e-9)
    assert large.report_.gap_neurons < 1e-4 * large.report_.objective


@pytest.mark.slow
@pytest.mark.parametrize("prior", ["mean", "zero", "factors"])
def test_measured_responses_may_be_far_from_zero(rng, prior):
    Z, factors = measured(rng), None
    if prior == "factors":
        factors = rng.normal(size=(30, 2)), rng.normal(size=(20, 2))
        prior = "mean"
    kwargs = {"loss": "squared", "imputation_weight": 0.2, "prior": prior}
    near = ResponseModel(2, **kwargs).fit(None, None, Z, prior_factors=factors)
    with jax.enable_x64(True):
        double = ResponseModel(2, **kwargs).fit(None, None, Z, prior_factors=factors)
    np.testing.assert_allclose(near.report_.objective, double.report_.objective, rtol=1e-4)
    if prior == "mean" and factors is None:
        far = ResponseModel(2, **kwargs).fit(None, None, Z + 1e6)
        np.testing.assert_allclose(far.report_.objective, near.report_.objective, rtol=1e-4)
        np.testing.assert_allclose(far.predict() - 1e6, near.predict(), atol=0.01)


@pytest.mark.slow
def test_repeated_trials_far_from_zero_are_the_same_in_every_form(rng):
    y = 1e8 + rng.normal(size=(12, 5))
    ids, neurons = np.tile(np.arange(6), 2), np.arange(5)
    records = np.repeat(ids, 5), np.tile(neurons, 12), y.ravel()
    sessions, triples = (
        ResponseModel(1, loss="squared").fit(None, None, r).report_.objective for r in ([(ids, neurons, y)], records)
    )
    np.testing.assert_allclose(sessions, triples, rtol=1e-6)


@pytest.mark.slow
def test_a_large_imputation_weight_does_not_end_the_fit_at_once(rng):
    counts = rng.poisson(1.5, (30, 20)).astype(float)
    counts[rng.random(counts.shape) < 0.5] = np.nan
    report = ResponseModel(2, imputation_weight=100.0).fit(None, None, counts).report_
    assert report.converged
    assert report.gap_stimuli + report.gap_neurons < 1e-3
    with pytest.warns(ConvergenceWarning):
        ResponseModel(2, imputation_weight=1e6).fit(None, None, counts)


@pytest.mark.slow
def test_perceptrons_of_single_precision_data_in_double_mode(rng):
    counts = rng.poisson(2.0, (12, 6)).astype(np.float32)
    with jax.enable_x64(True):
        model = ResponseModel(2, stimulus_hidden=(4,), max_epochs=110)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(rng.normal(size=(12, 3)).astype(np.float32), None, counts)
    assert np.isfinite(model.predict()).all()


@pytest.mark.slow
def test_predictions_use_the_loss_of_the_fit(rng, tmp_path):
    model = ResponseModel(2).fit(None, None, rng.poisson(1.5, (12, 6)).astype(float))
    expected = model.predict()
    model.set_params(loss="squared")
    np.testing.assert_array_equal(model.predict(), expected)
    np.testing.assert_array_equal(ResponseModel.load(model.save(tmp_path / "m")).predict(), expected)


@pytest.mark.slow
def test_constant_responses_have_no_deviance_to_explain():
    assert np.isnan(ResponseModel(2, loss="squared").fit(None, None, np.full((7, 6), 0.1)).report_.pseudo_r2)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((None, None, (np.array(["a", "b"]), [0, 1], [1.0, 2.0])), "pandas.factorize"),
        ((None, None, [(np.ones((2, 2)), [0, 1], [0, 1])]), "in this order"),
        ((np.ones((3, 0)), None, np.ones((3, 2))), "stimulus_features has no columns"),
        ((None, None, {}), "is a dict. Give a list of sessions"),
        ((None, None, ([0, 10**7], [0, 1], [1.0, 2.0])), "Renumber them"),
    ],
)
def test_mistakes_raise_errors_with_advice(arguments, match):
    with pytest.raises(ValueError, match=match):
        ResponseModel(2).fit(*arguments)


@pytest.mark.slow
def test_weights_without_effect_raise_a_warning():
    with pytest.warns(UserWarning, match="no effect with imputation_weight=0"):
        ResponseModel(1).fit(None, None, np.arange(12.0).reshape(4, 3), stimulus_weight=np.ones(4))


def test_unseen_stimuli_get_the_mean_bias_of_those_with_a_response(data):
    """A stimulus without a response also has a bias (that of the ridge), but is not part of the mean."""
    U, V, Y, _ = data
    Y = Y.copy()
    Y[:15] = np.nan
    fit = model().fit(U, V, Y)
    bias = fit.stimulus_bias_
    assert abs(bias[15:].mean() - bias.mean()) > 1e-3
    seen, again = fit.predict(stimuli=[20]), fit.predict(stimulus_features=U[20:21])  # by its id, and as an unseen one
    predictors = (np.log(np.expm1(rate[0])) for rate in (again, seen))
    np.testing.assert_allclose(np.subtract(*predictors), bias[15:].mean() - bias[20], atol=1e-4)
