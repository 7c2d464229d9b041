"""Ten mistakes a newcomer makes: an error, or one warning where the fit is legitimate, says what to do."""

import inspect
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.sparse

from glmfit import MultinomialGLM, PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM
from glmfit.design import BSpline

T, D, N, BIN_S = 240, 4, 3, 0.1
RNG = np.random.default_rng(5)
X = RNG.normal(size=(T, D))
COUNTS = RNG.poisson(np.logaddexp(0, 0.3 * X @ RNG.normal(size=(D, N)))).astype(float)
LABELS = RNG.integers(0, 3, T)
TIMES = np.sort(RNG.uniform(0, T * BIN_S, T))  # as many spikes as bins: only their values show what they are
BIN_TIMES = BIN_S * (0.5 + np.arange(T))
SPIKES = nap.TsGroup({n: nap.Ts(np.sort(RNG.uniform(0, T * BIN_S, 50))) for n in range(N)})
STIMULI, NEURONS = RNG.normal(size=(30, 2)), RNG.normal(size=(20, 2))
RESPONSES = RNG.poisson(1.0, size=(30, 20)).astype(float)

MODELS = {
    "PopulationGLM": (lambda **k: PopulationGLM(**k), COUNTS),
    "PopulationGLMCV": (lambda **k: PopulationGLMCV(**{"strengths": [1e-3, 1e-1], "cv": 3, **k}), COUNTS),
    "SoftmaxGLM": (lambda **k: SoftmaxGLM(**k), LABELS),
    "MultinomialGLM": (lambda **k: MultinomialGLM(**k), COUNTS),
}
POISSON = ("PopulationGLM", "PopulationGLMCV")
every_model = pytest.mark.parametrize("name", MODELS)
poisson_models = pytest.mark.parametrize("name", POISSON)
models_of_counts = pytest.mark.parametrize("name", [*POISSON, "MultinomialGLM"])


def refuses(name, message, X=X, y=None, error=ValueError, **parameters):
    """Check that the fit raises an error with this message."""
    make, target = MODELS[name]
    with pytest.raises(error, match=message) as caught:
        make(**parameters).fit(X, target if y is None else y)
    assert len(str(caught.value)) < 400


def warns_once(name, message, X=X, y=None):
    """Fit, and check that there is one warning, which points here."""
    make, target = MODELS[name]
    with pytest.warns(UserWarning, match=message) as caught:
        model = make().fit(X, target if y is None else y)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    return model


def response_model(**parameters):
    return ResponseModel(n_components=1, **parameters)


# ------------------------------------------------------------------------- 1: wrong orientation


@every_model
def test_transposed_features_are_refused(name):
    refuses(name, rf"X has shape \({D}, {T}\), which looks like \(feature, time\): pass X.T", X=X.T)


@models_of_counts
def test_transposed_counts_are_refused(name):
    refuses(name, rf"y has shape \({N}, {T}\), which looks like \(neuron, time\): pass y.T", y=COUNTS.T)


@models_of_counts
def test_transposed_features_and_counts_are_refused(name):
    refuses(name, r"X and y look like \(feature, time\) and \(neuron, time\): pass X.T and y.T", X=X.T, y=COUNTS.T)


@pytest.mark.slow
def test_transposed_features_and_counts_of_equal_shape_give_one_warning():
    words = rf"{N} rows and {T} columns each. Rows are time bins: if the columns are, pass X.T and y.T"
    for name in ("PopulationGLM", "MultinomialGLM"):
        warns_once(name, words, X=X[:, :N].T, y=COUNTS.T + 1)


def test_transposed_inputs_of_a_response_model_are_refused():
    with pytest.raises(ValueError, match=r"looks like \(neuron, stimulus\); pass responses.T"):
        response_model().fit(STIMULI, NEURONS, RESPONSES.T)
    with pytest.raises(ValueError, match=r"are 2 stimuli, .*one row per stimulus. .* pass stimulus_features.T; "):
        response_model().fit(STIMULI.T, NEURONS, RESPONSES)
    with pytest.raises(ValueError, match=r"2 neurons, .*one column per neuron. .* pass neuron_features.T; "):
        response_model().fit(STIMULI, NEURONS.T, RESPONSES)


@every_model
def test_transposed_features_are_refused_for_a_prediction(name):
    make, y = MODELS[name]
    model = make().fit(X, y)
    words = rf"X has {T} features, but {name} is expecting {D} features as input. .*\(feature, time\): pass X.T"
    with pytest.raises(ValueError, match=words):
        model.predict(X.T)
    with pytest.raises(ValueError, match=f"X has 2 features, but {name} is expecting {D} features as input"):
        model.predict(X[:, :2])


@every_model
def test_one_covariate_needs_a_second_axis(name):
    refuses(name, rf"X has shape \({T},\), one dimension; .*X\[:, None\] if it is one feature", X=X[:, 0])
    make, y = MODELS[name]
    column = nap.Tsd(t=BIN_TIMES, d=X[:, 0])
    assert make().fit(column[:, None], y).n_features_in_ == 1  # as the message advises
    assert make().fit(pd.Series(X[:, 0], name="speed").to_frame(), y).feature_names_in_ == ["speed"]


@every_model
def test_error_for_trials_says_to_concatenate_them(name):
    words = "needs features, .*If these are trials, concatenate them: numpy.concatenate"
    refuses(name, rf"X has shape \(3, 80, {D}\), 3 dimensions; it {words}\(X\)", X=X.reshape(3, 80, D))
    refuses(name, rf"X is a list of 2 arrays \(the first of shape \(9, {D}\)\); it {words}", X=[X[:9], X[9:]])


@models_of_counts
def test_error_for_counts_of_trials_says_to_concatenate_them(name):
    words = "needs counts, .*If these are trials, concatenate them: numpy.concatenate"
    refuses(name, rf"y has shape \(3, 80, {N}\), 3 dimensions; it {words}\(y\)", y=COUNTS.reshape(3, 80, N))
    refuses(name, rf"y is a list of 2 arrays \(the first of shape \(9, {N}\)\); it {words}", y=[COUNTS[:9], COUNTS[9:]])


@every_model
@pytest.mark.parametrize("argument", ["X", "y"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"speed": X[:, 0]}, r"is a dict; it needs .*numpy.column_stack\(list\({}.values\(\)\)\)"),
        ("session.npy", r"is 'session.npy'; it needs .*numpy.load\('session.npy'\)"),
        (Path("session.npy"), r"is .*Path\('session.npy'\); it needs .*numpy.load\('session.npy'\)"),
        (nap.IntervalSet([0, 2], [1, 3]), "is an IntervalSet; it needs .*Pass epochs to restrict"),
        (iter(X), r"is a \w+; it needs .*numpy.array\(list\({}\)\)"),
    ],
    ids=["dict", "text", "path", "epochs", "iterator"],
)
def test_inputs_that_are_not_arrays_are_refused(name, argument, value, words):
    refuses(name, f"{argument} {words.format(argument)}", error=TypeError, **{argument: value})


@every_model
def test_missing_features_are_refused(name):
    refuses(name, "X is None; it needs features", X=None, error=TypeError)


@every_model
def test_infinity_is_found(name):
    y = MODELS[name][1]
    at = (7, 1) if y.ndim == 2 else 7
    place = r"first at row 7(, (neuron|category) 1)?\)"
    endless, some = X.copy(), y.astype(float)
    endless[7, 2], some[at] = -np.inf, np.inf
    refuses(name, r"Input X contains infinity: 1 infinite values \(first at row 7, feature 2\)", X=endless)
    refuses(name, rf"Input y contains infinity: 1 infinite values \({place}", y=some)
    if name in ("SoftmaxGLM", "MultinomialGLM"):
        refuses(name, r"X contains infinity.*row 7, feature 2\)", X=scipy.sparse.csr_array(endless))
    if name == "MultinomialGLM":
        refuses(name, r"y contains infinity.*row 7, category 1\)", y=scipy.sparse.csr_array(some))


# ------------------------------------------------------------------------- 2: counts with halves


@poisson_models
def test_half_counts_give_one_warning(name):
    words = "counts that are not integers, in 3 of 3 neurons.*firing rates, multiply by the bin width"
    warns_once(name, words, y=COUNTS + 0.5)


def test_half_counts_are_valid_for_a_multinomial_model():
    assert MultinomialGLM().fit(X, COUNTS + 0.5).report_.converged  # documented, and no warning


@pytest.mark.thorough
def test_half_responses_give_one_warning():
    with pytest.warns(UserWarning, match="responses has counts that are not integers.*multiply by") as caught:
        response_model().fit(STIMULI, NEURONS, RESPONSES + 0.5)
    assert len(caught) == 1


# ------------------------------------------------------------------------- 3: z-scored counts


@models_of_counts
def test_z_scored_counts_are_refused(name):
    z = (COUNTS - COUNTS.mean(axis=0)) / COUNTS.std(axis=0)
    refuses(name, "negative counts .*Did you pass z-scored data. Pass the counts themselves", y=z)


def test_z_scored_responses_are_refused():
    with pytest.raises(ValueError, match=r"needs counts >= 0. Did you pass z-scored data. Pass the counts themselves"):
        response_model().fit(STIMULI, NEURONS, RESPONSES - RESPONSES.mean())


# ------------------------------------------------------------------------- 4: the intercept is automatic


@every_model
@pytest.mark.parametrize("value", [1.0, -2.5])
def test_column_of_ones_gives_one_warning(name, value):
    words = (
        rf"X has a constant column \(feature 0, always {value:g}\). The intercept is automatic.*drop constant columns"
    )
    with_ones = warns_once(name, words, X=np.column_stack([np.full(T, value), X]))
    make, y = MODELS[name]
    np.testing.assert_allclose(with_ones.coef_[0], 0, atol=1e-6)
    np.testing.assert_allclose(with_ones.coef_[1:], make().fit(X, y).coef_, atol=2e-3)


@pytest.mark.slow
def test_column_of_ones_in_a_tower_gives_one_warning():
    words = r"neuron_features has a constant column \(feature 2, always 1\). Every tower has its own constant: drop"
    with pytest.warns(UserWarning, match=words) as caught:
        response_model().fit(STIMULI, np.column_stack([NEURONS, np.ones(20)]), RESPONSES)
    assert len(caught) == 1 and caught[0].filename == __file__


def test_sparse_constant_columns_are_found_and_others_are_not():
    dense = np.column_stack([X * (np.abs(X) > 1), np.ones(T), np.arange(T) % 2, np.zeros(T)])
    words = rf"a constant column \(feature {D}, always 1\)"
    warns_once("SoftmaxGLM", words, X=scipy.sparse.csr_array(dense))
    warns_once("SoftmaxGLM", words, X=dense)
    warns_once("PopulationGLM", "2 constant columns", X=np.column_stack([dense, np.full(T, 0.1)]))


@every_model
def test_column_of_zeros_is_accepted(name):
    make, y = MODELS[name]
    model = make().fit(np.column_stack([X, np.zeros(T)]), y)
    assert not model.coef_[-1].any()


# ------------------------------------------------------------------------- 5: mixed bins


@every_model
def test_arrays_of_different_bins_are_refused(name):
    words = f"X has {T} rows but y has {T // 2}.*same bin size, start and end"
    refuses(name, words, y=MODELS[name][1][::2])


@every_model
def test_pynapple_objects_of_different_bins_are_refused(name):
    y = MODELS[name][1]
    frame = nap.TsdFrame(t=BIN_TIMES, d=X)
    wrap = (lambda t, d: nap.Tsd(t=t, d=d)) if y.ndim == 1 else (lambda t, d: nap.TsdFrame(t=t, d=d))
    words = r"240 time bins of 0.1 s .* y has 120 time bins of 0.2 s .*spikes.count\(bin_size, ep=X.time_support\)"
    refuses(name, words, X=frame, y=wrap(2 * BIN_TIMES[: T // 2], y[: T // 2]))
    words = "the times of X and y differ .*wrong features. Align them, .*same epochs and bin size"
    refuses(name, words, X=frame, y=wrap(2 * BIN_TIMES, y))


# ------------------------------------------------------------------------- 6: spike times


@poisson_models
def test_spike_times_are_not_counts(name):
    advice = r"spike times.*the bins of X.*numpy.histogram\(y, edges\)"
    refuses(name, advice, y=TIMES[:180])
    warns_once(name, advice, y=TIMES)
    ragged = (
        r"list of 3 sequences of different lengths \(4 to 9\).*Count spike times first.*numpy.histogram\(times, edges\)"
    )
    refuses(name, ragged, y=[TIMES[:4], TIMES[:6], TIMES[:9]])
    alike = r"list of 3 sequences that increase and have fractions, like spike times; .*numpy.histogram\(times, edges\)"
    refuses(name, alike, y=[TIMES[:40], TIMES[40:80], TIMES[60:100]])


def test_spike_times_are_neither_labels_nor_shares():
    refuses("SoftmaxGLM", "continuous.*measurements, not classes. Bin them first", y=TIMES)
    refuses("MultinomialGLM", r"needs counts \(row, category\).*Count spike times in the bins of X", y=TIMES)
    for name in ("SoftmaxGLM", "MultinomialGLM"):
        refuses(name, "Count spike times first", y=[TIMES[:4], TIMES[:6], TIMES[:9]])


# ------------------------------------------------------------------------- 7: spike trains of pynapple


@models_of_counts
def test_spike_trains_are_refused_as_counts(name):
    words = r"y is a TsGroup, spike times; .*y.count\(bin_size, ep=X.time_support\)"
    refuses(name, words, y=SPIKES, error=TypeError)
    refuses(name, words, X=nap.TsdFrame(t=BIN_TIMES, d=X), y=SPIKES, error=TypeError)
    refuses(name, r"y is a Ts, spike times; .*y.count\(", y=SPIKES[0], error=TypeError)
    refuses(name, r"y is a list of Ts, .*TsGroup\(y\).count\(", y=[SPIKES[0], SPIKES[1]], error=TypeError)


def test_the_advice_on_spike_trains_works():
    frame = nap.TsdFrame(t=BIN_TIMES, d=X, time_support=nap.IntervalSet(0, T * BIN_S))
    counts = SPIKES.count(BIN_S, ep=frame.time_support)
    assert PopulationGLM(regularizer_strength=0.1).fit(frame, counts).coef_.shape == (D, N)


def test_spike_trains_are_refused_as_labels():
    refuses("SoftmaxGLM", r"TsGroup, spike times; .*glmfit.spike_identities\(y, X\)", y=SPIKES, error=TypeError)


@every_model
def test_spike_trains_are_refused_as_features(name):
    words = r"X is a TsGroup, spike times; .*Count them first: X.count\(bin_size\)"
    refuses(name, words, X=SPIKES, error=TypeError)
    make, y = MODELS[name]
    model = make().fit(X, y)
    with pytest.raises(TypeError, match=words):
        model.predict(SPIKES)


def test_spike_trains_are_refused_as_responses():
    with pytest.raises(TypeError, match="count the spikes after each stimulus first"):
        response_model().fit(STIMULI, NEURONS, SPIKES)
    with pytest.raises(TypeError, match="one row of numbers per stimulus"):
        response_model().fit(SPIKES, NEURONS, RESPONSES)


# ------------------------------------------------------------------------- 8: words in a frame


@every_model
@pytest.mark.parametrize("dtype", ["str", "object", "category"])
def test_a_frame_with_words_is_refused_and_the_column_named(name, dtype):
    frame = pd.DataFrame(X, columns=list("abcd")).assign(cue=np.where(np.arange(T) % 2, "go", "stop"))
    frame["cue"] = frame["cue"].astype(dtype)
    refuses(name, r"'cue' \(with 'stop'\). Encode them, for example with pandas.get_dummies\(X", X=frame)
    make, y = MODELS[name]
    make().fit(pd.get_dummies(frame, dtype=float), y)  # as the message advises


@poisson_models
def test_words_are_refused_as_counts(name):
    refuses(name, "y has dtype <U4; .*For class labels use SoftmaxGLM", y=np.where(LABELS == 1, "go", "stop"))
    frame = pd.DataFrame(COUNTS).assign(cue="go")
    refuses(name, r"y has columns that are not numbers: 'cue' \(with 'go'\). Drop them", y=frame)


def test_responses_to_stimuli_with_words_are_refused():
    stimuli = pd.DataFrame({"size": STIMULI[:, 0], "kind": ["face"] * 30})
    with pytest.raises(ValueError, match=r"stimulus_features has .*'kind' \(with 'face'\). Encode them"):
        response_model().fit(stimuli, NEURONS, RESPONSES)


# ------------------------------------------------------------------------- 9: labels as floats


def test_whole_floats_are_labels_and_halves_are_not():
    as_floats, as_integers = SoftmaxGLM().fit(X, LABELS.astype(float)), SoftmaxGLM().fit(X, LABELS)
    np.testing.assert_array_equal(as_floats.predict(X), as_integers.predict(X))
    words = r"the first is [0-9.]*5\).*Bin them first.*numpy.digitize, or convert them to strings"
    refuses("SoftmaxGLM", words, y=LABELS + 0.5)


def test_labels_and_counts_taken_for_each_other_are_refused():
    refuses("SoftmaxGLM", "one label per row.*use MultinomialGLM", y=COUNTS)
    refuses("MultinomialGLM", "For one label per row use SoftmaxGLM", y=LABELS)


# ------------------------------------------------------------------------- 10: strength as text


@every_model
@pytest.mark.parametrize("text", ["0.1", "strong"])
def test_a_strength_as_text_is_refused(name, text):
    parameter = "strengths" if name == "PopulationGLMCV" else "regularizer_strength"
    refuses(name, f"{parameter} is '{text}'; .*such as .*not text", **{parameter: text})


@every_model
@pytest.mark.parametrize("value", [True, np.nan, -1.0, 10**400], ids=["True", "nan", "-1", "10**400"])
def test_error_mentions_text_only_if_text_was_given(name, value):
    parameter = "strengths" if name == "PopulationGLMCV" else "regularizer_strength"
    refuses(name, f"{parameter} is (?!.*text)", **{parameter: [value, 1.0] if parameter == "strengths" else value})


def test_strengths_as_text_are_refused():
    refuses("PopulationGLM", "Give real numbers", regularizer_strength=["0.1"] * N)
    refuses("PopulationGLMCV", "list of finite numbers", strengths=["0.1", "1"])
    with pytest.raises(ValueError, match=r"regularizer_strength is '0.1'; .*such as 0.1, .*and not text"):
        response_model(regularizer_strength="0.1").fit(STIMULI, NEURONS, RESPONSES)


# ------------------------------------------------------------------------- 11: names of parameters


@pytest.mark.parametrize("cls", [PopulationGLM, PopulationGLMCV, SoftmaxGLM, MultinomialGLM, ResponseModel])
def test_error_for_an_unknown_parameter_names_the_estimator(cls):
    known = list(inspect.signature(cls).parameters)
    with pytest.raises(TypeError) as caught:
        cls(C=1)
    words = f"{cls.__name__}: got an unexpected keyword argument 'C'; its parameters are {', '.join(known)}."
    assert str(caught.value) == words
    with pytest.raises(TypeError, match=f"^{cls.__name__}: too many positional arguments; its parameters are"):
        cls(*range(len(known) + 1))
    assert sorted(known) == sorted(cls().get_params())


# ------------------------------------------------------------------------- what a hostile reader passed


@pytest.mark.parametrize("strength", [1j, True, np.True_, np.array([1j, 1, 1]), [True, False, True], 10**400])
@pytest.mark.parametrize("name", ["PopulationGLM", "SoftmaxGLM", "MultinomialGLM"])
def test_strength_that_is_not_a_real_number_is_refused(name, strength):
    refuses(name, "^regularizer_strength is .*numbe", regularizer_strength=strength)


@pytest.mark.parametrize("strengths", [[1j, 1.0], [True, False], [True, 2.0], [10**400, 1]])
def test_strengths_that_are_not_real_numbers_are_refused(strengths):
    refuses("PopulationGLMCV", "^strengths is .*must be a list of finite numbers", strengths=strengths)


@pytest.mark.parametrize("name", ["PopulationGLM", "SoftmaxGLM", "MultinomialGLM"])
def test_a_strength_without_a_penalty_is_refused(name):
    refuses(name, "regularizer_strength is 10.0.*UnRegularized", regularizer="UnRegularized", regularizer_strength=10.0)


@every_model
def test_columns_with_the_same_name_are_refused_and_named(name):
    frame = pd.DataFrame(X, columns=["a", "b", "a", "c"])
    refuses(name, "X has several columns of the same name: 'a'", frame)
    make, y = MODELS[name]
    model = make().fit(X, y)
    with pytest.raises(ValueError, match="X has several columns of the same name: 'a'"):
        model.predict(frame)
    if name != "SoftmaxGLM":
        counts = pd.DataFrame(COUNTS, columns=["u", "v", "u"])
        refuses(name, "y has several columns of the same name: 'u'", y=counts)


@every_model
def test_integers_too_large_for_a_float_are_refused(name):
    refuses(name, "X has integers that no float can hold", [[10**400, 1.0]] * T)


@poisson_models
def test_counts_too_large_for_a_float_are_refused(name):
    refuses(name, "y has integers that no float can hold", y=[10**400] * T)


@every_model
def test_class_instead_of_an_array_is_refused(name):
    refuses(
        name,
        r"X is the class ndarray; it needs features.*Give an array of it, not the class",
        np.ndarray,
        error=TypeError,
    )
    refuses(name, r"y is the class ndarray", y=np.ndarray, error=TypeError)


@every_model
@pytest.mark.filterwarnings("ignore:FeaturePytree is deprecated:FutureWarning")
def test_tree_of_features_is_refused_with_advice(name):
    nemos = pytest.importorskip("nemos")
    if not hasattr(nemos.pytrees, "FeaturePytree"):
        pytest.skip("this NeMoS takes dictionaries instead")
    tree = nemos.pytrees.FeaturePytree(place=X[:, :1], speed=X[:, 1:])
    message = r"X is a FeaturePytree of NeMoS.*numpy\.column_stack\(list\(X\.data\.values\(\)\)\).*SAGA\[glmfit\]"
    refuses(name, message, tree, error=TypeError)
    np.testing.assert_array_equal(np.column_stack(list(tree.data.values())), X)  # the advice works


def test_integers_that_a_float_rounds_give_a_warning():
    clock = np.uint64(2**63) + np.arange(T, dtype=np.uint64)
    with pytest.warns(UserWarning) as caught:
        PopulationGLM(regularizer_strength=1e-3).fit(np.column_stack([clock, np.arange(T, dtype=np.uint64)]), COUNTS)
    assert any("X has whole numbers up to 9.22e+18, which float64 rounds" in str(w.message) for w in caught)


@pytest.mark.thorough
def test_valid_input_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for make, y in MODELS.values():
            assert np.all(np.isfinite(make().fit(X, y).coef_))
        assert np.all(np.isfinite(response_model().fit(STIMULI, NEURONS, RESPONSES).predict()))


def every(n, code, x):
    return np.where(np.arange(len(x)) % n == 0, code, x)


CODES = {
    "a lost tracker": (lambda x: every(50, -9999.0, x), "is -9999 in 5 rows, "),
    "of a place in pixels": (lambda x: every(50, -9999.0, 300 + 100 * x), "is -9999 in 5 rows, "),
    "a fifth of the rows": (lambda x: every(5, 9999.0, x), "is 9999 in 48 rows, "),
    "an overflow": (lambda x: np.where(np.arange(len(x)) == 7, 1e15, x), r"is 1e\+15 in 1 row, "),
}


@pytest.mark.parametrize("kind", CODES)
def test_codes_for_missing_values_are_named(kind):
    change, words = CODES[kind]
    wrong = X.copy()
    wrong[:, 2] = change(X[:, 2])
    with pytest.warns(UserWarning, match=f"feature 2 {words}.*use NaN"):
        PopulationGLM().fit(wrong, COUNTS)


def test_rare_and_skewed_features_are_not_taken_for_codes():
    rng = np.random.default_rng(0)
    rare = (rng.random((5000, 2)) < [0.02, 0.15]).astype(float)
    decaying = np.array([sum(0.5**k * rare[t - k, 0] for k in range(min(t, 60))) for t in range(5000)])
    pulses = 0.001 * rng.normal(size=5000) + 5 * rare[:, 0]  # an analogue signal
    still = np.where(rare[:, 0] > 0, rng.uniform(0.5, 30, 5000), 0.01 * rng.random(5000))  # a speed
    skewed = np.exp(2 * rng.normal(size=5000)), rng.standard_t(2, size=5000)
    ends = BSpline(8, (0, 1), name="x").features(np.where(rare[:, 0] > 0, 1.0, 0.3 * rng.random(5000)))
    features = np.column_stack([rare, decaying, pulses, still, *skewed, ends[:, -1] + 0.1 * rng.random(5000)])
    PopulationGLM().fit(features, rng.poisson(0.3, size=(5000, 1)))  # warnings are errors


@poisson_models
def test_frames_at_other_times_give_a_warning(name):
    make, target = MODELS[name]
    features, shifted = pd.DataFrame(X, index=BIN_TIMES), pd.DataFrame(target, index=BIN_TIMES + 3.0)
    features.columns = [f"x{j}" for j in range(D)]
    with pytest.warns(UserWarning, match="the indexes of X and y, which look like times, differ"):
        make().fit(features, shifted)
    make().fit(features, pd.DataFrame(target, index=BIN_TIMES + 1e-9))
    make().fit(features, pd.DataFrame(target))  # rows are numbered


def test_times_are_compared_whatever_their_kind():
    dates = pd.date_range("2026-01-01", periods=T, freq="100ms")
    unknown = pd.Index(np.where(np.arange(T) == 5, np.nan, BIN_TIMES))
    kinds = [
        (dates.tz_localize("UTC"), dates.tz_localize("UTC").tz_convert("Europe/Berlin")),
        (dates, dates + pd.Timedelta("1ns")), (unknown, unknown + 1e-9),
        (pd.Index(BIN_TIMES, dtype="Float64"), pd.Index(BIN_TIMES)),
        (pd.to_timedelta(BIN_TIMES, unit="s"), pd.to_timedelta(BIN_TIMES + 1e-7, unit="s")),
    ]  # fmt: skip
    for index, other in kinds:
        PopulationGLM().fit(pd.DataFrame(X, index=index).add_prefix("x"), pd.DataFrame(COUNTS, index=other))
    for index, other in ((dates, dates + pd.Timedelta("1s")), (unknown, pd.Index(BIN_TIMES))):
        with pytest.warns(UserWarning, match="look like times"):
            PopulationGLM().fit(pd.DataFrame(X, index=index).add_prefix("x"), pd.DataFrame(COUNTS, index=other))
    one = PopulationGLM().fit(X, COUNTS)
    one.score(pd.DataFrame(X[:1], index=[0.1]), pd.DataFrame(COUNTS[:1], index=[0.1 + 1e-12]))
