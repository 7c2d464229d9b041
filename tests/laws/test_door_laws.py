"""Laws of input checks: the same mistake gets the same message at every entry point, from a fit to a plot."""

import warnings
from pathlib import Path
from types import SimpleNamespace

import matplotlib as mpl
import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.sparse

from glmfit import (
    MultinomialGLM,
    MultinomialGLMCV,
    PopulationGLM,
    PopulationGLMCV,
    ResponseModel,
    SoftmaxGLM,
    SoftmaxGLMCV,
    plotting,
)
from glmfit.batch import Session
from glmfit.design import as_source
from glmfit.inference import drop_groups, rescale_time, wald_table

mpl.use("Agg")

T, D, N = 120, 3, 2
RNG = np.random.default_rng(3)
X = RNG.normal(size=(T, D))
COUNTS = RNG.poisson(np.logaddexp(0, X @ RNG.normal(size=(D, N)))).astype(float) + 0.0
LABELS = RNG.integers(0, N, T)
FILE = Path(__file__).parents[1] / "files" / "0.1" / "response.npz"
TIMES = 0.1 * (0.5 + np.arange(T))


@pytest.fixture(scope="module")
def fitted():
    """One fitted model of every kind."""
    return {
        "population": PopulationGLM(regularizer_strength=1e-2).fit(X, COUNTS),
        "softmax": SoftmaxGLM(solver_name="SGD", step=0.1, certify=False).partial_fit(X, LABELS),
        "multinomial": MultinomialGLM(regularizer_strength=1e-2).fit(X, COUNTS + 1),
        "response": ResponseModel.load(FILE),
    }


def _fit(make, y="counts"):
    return lambda m, a: make().fit(a.X, getattr(a, y), **a.rows)


# Entry point for data -> (how it is called, which mistakes are possible there).
COMMON = ("X", "weights", "offset")
ENTRIES = {
    "PopulationGLM.fit": (_fit(PopulationGLM), (*COMMON, "counts", "exposure", "dense")),
    "PopulationGLMCV.fit": (
        _fit(lambda: PopulationGLMCV(strengths=[1e-3, 1e-1], cv=2)),
        (*COMMON, "counts", "exposure", "dense"),
    ),
    "SoftmaxGLM.fit": (_fit(SoftmaxGLM, "labels"), COMMON),
    "SoftmaxGLM.partial_fit": (
        lambda m, a: m["softmax"].partial_fit(a.X, a.labels, **a.rows),
        (*COMMON, "features of the fit"),
    ),
    "SoftmaxGLMCV.fit": (_fit(lambda: SoftmaxGLMCV(strengths=[1e-3, 1e-1], cv=2), "labels"), COMMON),
    "MultinomialGLMCV.fit": (_fit(lambda: MultinomialGLMCV(strengths=[1e-3, 1e-1], cv=2)), (*COMMON, "counts")),
    "MultinomialGLM.fit": (_fit(MultinomialGLM), (*COMMON, "counts")),
    "MultinomialGLM.partial_fit": (
        lambda m, a: MultinomialGLM(solver_name="SGD", step=0.1, certify=False).partial_fit(a.X, a.counts, **a.rows),
        (*COMMON, "counts"),
    ),
    "PopulationGLM.score": (
        lambda m, a: m["population"].score(a.X, a.counts, **a.rows),
        (*COMMON, "counts", "exposure", "dense", "features of the fit"),
    ),
    "SoftmaxGLM.score": (
        lambda m, a: m["softmax"].score(a.X, a.labels, **a.rows),
        (*COMMON, "features of the fit"),
    ),
    "MultinomialGLM.score": (
        lambda m, a: m["multinomial"].score(a.X, a.counts, **a.rows),
        (*COMMON, "counts", "features of the fit"),
    ),
    "PopulationGLM.predict": (
        lambda m, a: m["population"].predict(a.X, **a.rows),
        ("X", "offset", "dense", "features of the fit"),
    ),
    "PopulationGLM.simulate": (
        lambda m, a: m["population"].simulate(a.X, **a.rows),
        ("X", "offset", "exposure", "dense", "features of the fit"),
    ),
    "SoftmaxGLM.predict_proba": (
        lambda m, a: m["softmax"].predict_proba(a.X, **a.rows),
        ("X", "offset", "features of the fit"),
    ),
    "MultinomialGLM.predict": (
        lambda m, a: m["multinomial"].predict(a.X, **a.rows),
        ("X", "offset", "features of the fit"),
    ),
    "wald_table": (
        lambda m, a: wald_table(m["population"], a.X, a.counts, **a.rows),
        (*COMMON, "counts", "exposure", "dense", "features of the fit"),
    ),
    "drop_groups": (
        lambda m, a: drop_groups(m["population"], a.X, a.counts, **a.rows),
        (*COMMON, "counts", "exposure", "dense", "features of the fit"),
    ),
    "a streamed fit": (
        lambda m, a: PopulationGLM(max_memory=1.0).fit(as_source(_Rows(X)), a.counts, **a.rows),
        ("weights", "offset", "counts", "exposure", "dense counts"),
    ),
    "a streamed score": (
        lambda m, a: m["population"].score(as_source(_Rows(X)), a.counts, **a.rows),
        ("weights", "offset", "counts", "exposure", "dense counts"),
    ),
    "ResponseModel.fit": (lambda m, a: ResponseModel(1).fit(a.X, None, COUNTS), ("entities",)),
    "ResponseModel.predict": (lambda m, a: m["response"].predict(neuron_features=a.X), ("entities", "unseen")),
}


def _Rows(array):
    """A file-like array: rows are read from it."""
    import zarr

    return zarr.array(array, chunks=(40, array.shape[1]))


def changed(array, where, value):
    array = np.array(array, copy=True)
    array[where] = value
    return array


def as_frame(array, shift=0.0):
    return nap.TsdFrame(t=TIMES + shift, d=array) if array.ndim == 2 else nap.Tsd(t=TIMES + shift, d=array)


ONES = np.ones(T)
SPIKES = nap.TsGroup({0: nap.Ts(TIMES[:9])})
# Kind of mistake -> mistake -> (arguments that it changes, pattern of the message).
MISTAKES = {
    "X": {
        "three dimensions": ({"X": X[:, :, None]}, r"X has shape .*, 3 dimensions; it needs features"),
        "one dimension": ({"X": X[:, 0]}, r"X has shape \(120,\), one dimension; .*X\[:, None\] if it is one feature"),
        "trials": ({"X": [X[:60], X[60:]]}, "X is a list of 2 arrays .*concatenate them"),
        "words": ({"X": np.full((T, D), "a")}, "X has dtype <U1; it must be real numbers"),
        "complex": ({"X": X + 0j}, "X has dtype complex128; it must be real numbers. Complex data not supported"),
        "dates": ({"X": np.zeros((T, D), "M8[s]")}, r"X has dtype datetime64\[s\]; it must be real numbers"),
        "objects": ({"X": np.full((T, D), "a", object)}, "X has entries that are not numbers"),
        "no array": ({"X": None}, "X is None; it needs features"),
        "a file": ({"X": "design.npy"}, r"X is 'design.npy'; it needs features.*numpy.load\('design.npy'\)"),
        "infinity": ({"X": changed(X, (7, 1), np.inf)}, r"X contains infinity.*first at row 7, feature 1\)"),
        "spikes": ({"X": SPIKES}, r"X is a TsGroup, spike times; .*X.count\(bin_size\)"),
        "a column of words": (
            {"X": pd.DataFrame(X, columns=list("abc")).assign(cue="go")},
            r"X has columns that are not numbers: 'cue' \(with 'go'\). Encode them",
        ),
        "columns of one name": ({"X": pd.DataFrame(X, columns=list("aab"))}, "X has several columns of the same name"),
    },
    "features of the fit": {
        "too few": ({"X": X[:, :2]}, "X has 2 features, but .* is expecting 3 features as input"),
        "turned": ({"X": X.T}, r"X has 120 features, but .* is expecting 3 .*\(feature, time\): pass X.T"),
    },
    "dense": {
        "sparse X": ({"X": scipy.sparse.csr_array(X)}, r"X is a sparse matrix .*dense data is required.*X.toarray\(\)"),
    },
    "dense counts": {
        "sparse y": ({"counts": scipy.sparse.csr_array(COUNTS)}, r"y is a sparse matrix .*dense data is required"),
    },
    "counts": {
        "too few rows": ({"counts": COUNTS[1:]}, "X has 120 rows but y has 119: inconsistent numbers of samples"),
        "three dimensions": ({"counts": COUNTS[:, :, None]}, "y has shape .*, 3 dimensions; it needs counts"),
        "words": ({"counts": np.full((T, N), "a")}, "y has dtype <U1; it must be real numbers"),
        "no array": ({"counts": 3.0}, "y is 3.0; it needs counts"),
        "nothing": ({"counts": None}, "requires y to be passed, but the target y is None"),
        "infinity": ({"counts": changed(COUNTS, (7, 1), np.inf)}, r"y contains infinity.*row 7, (neuron|category) 1\)"),
        "negative": (
            {"counts": changed(COUNTS, (7, 1), -2)},
            r"y has 1 negative counts \(first at row 7, (neuron|category) 1, value -2\); .*z-scored",
        ),
        "spikes": ({"counts": SPIKES}, r"y is a TsGroup, spike times; .*y.count\("),
    },
    "weights": {
        "too few": (
            {"sample_weight": ONES[1:]},
            r"sample_weight has shape \(119,\); it needs one number per row",
        ),
        "two dimensions": (
            {"sample_weight": np.ones((T, 7))},
            r"sample_weight has shape \(120, 7\); it needs one n",
        ),
        "negative": ({"sample_weight": changed(ONES, 3, -1)}, "sample_weight is -1 at row 3; it needs finite numbers"),
        "NaN": ({"sample_weight": changed(ONES, 3, np.nan)}, "sample_weight is nan at row 3; it needs finite numbers"),
        "infinity": (
            {"sample_weight": changed(ONES, 3, np.inf)},
            "sample_weight is inf at row 3; it needs finite",
        ),
        "words": ({"sample_weight": np.full(T, "a")}, "sample_weight has dtype <U1; it must be real numbers"),
        "no array": ({"sample_weight": "weights.npy"}, r"sample_weight is 'weights.npy'; .*numpy.load"),
        "zero": ({"sample_weight": 0 * ONES}, "sample_weight is zero on all|rows that count; a fit needs"),
    },
    "offset": {
        "too few": ({"offset": np.ones((T - 1, N))}, r"offset has shape \(119, 2\); it needs"),
        "too many columns": ({"offset": np.ones((T, N + 1))}, r"offset has shape \(120, 3\); it needs"),
        "three dimensions": ({"offset": np.ones((T, N, 1))}, "offset has shape .*, 3 dimensions; it needs"),
        "infinity": ({"offset": changed(np.ones((T, N)), (3, 1), np.inf)}, "offset is infinite at row 3. "),
        "words": ({"offset": np.full((T, N), "a")}, "offset has dtype <U1; it must be real numbers"),
    },
    "exposure": {
        "too few": ({"exposure": ONES[1:]}, r"exposure has shape \(119,\); it needs one number per bin, \(120,\)"),
        "negative": ({"exposure": changed(ONES, 3, -1)}, "exposure is -1 at row 3; it needs finite numbers >= 0"),
        "NaN": ({"exposure": changed(ONES, 3, np.nan)}, "exposure is nan at row 3; it needs finite numbers >= 0"),
        "words": ({"exposure": np.full(T, "a")}, "exposure has dtype <U1; it must be real numbers"),
    },
    "entities": {
        "three dimensions": (
            {"X": X[:, :, None]},
            "(stimulus|neuron)_features has shape .*, 3 dimensions; it needs features",
        ),
        "one dimension": (
            {"X": X[:, 0]},
            r"(stimulus|neuron)_features has shape \(120,\), one dimension; .*\[:, None\] if",
        ),
        "words": ({"X": np.full((T, D), "a")}, "(stimulus|neuron)_features has dtype <U1; it must be real numbers"),
        "infinity": ({"X": changed(X, (7, 1), np.inf)}, r"(stimulus|neuron)_features has 1 values.*row 7, column 1\)"),
        "spikes": ({"X": SPIKES}, "(stimulus|neuron)_features is a TsGroup, spike times"),
    },
    "unseen": {"too few": ({"X": X[:, :2]}, "(stimulus|neuron)_features has 2 features, but the fit had 3")},
}
CASES = [
    pytest.param(entry, kind, mistake, id=f"{entry}-{kind}: {mistake}")
    for entry, (_, kinds) in ENTRIES.items()
    for kind in kinds
    for mistake in MISTAKES[kind]
    if not (mistake == "zero" and entry in ("PopulationGLM.score", "a streamed score"))  # nothing to score, no mistake
]


def call(entry, fitted, change):
    """Call an entry point with some arguments changed."""
    given = {"X": X, "counts": COUNTS, "labels": LABELS}
    rows = {name: value for name, value in change.items() if name not in given}
    arguments = SimpleNamespace(**(given | {k: v for k, v in change.items() if k in given}), rows=rows)
    return ENTRIES[entry][0](fitted, arguments)


@pytest.mark.parametrize(("entry", "kind", "mistake"), CASES)
def test_a_mistake_gets_the_same_message_everywhere(fitted, entry, kind, mistake):
    change, message = MISTAKES[kind][mistake]
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        call(entry, fitted, change)
    assert len(str(caught.value)) < 450


# The others take seconds to compile, and other tests fit them.
SLOW = ("PopulationGLM.simulate", "MultinomialGLM.partial_fit", "ResponseModel.fit", "a streamed fit")
QUICK = [entry for entry in ENTRIES if entry not in SLOW]


@pytest.mark.parametrize("entry", QUICK)
def test_correct_input_is_accepted(fitted, entry):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that are too short
        assert call(entry, fitted, {}) is not None


TIMED = [
    (entry, what)
    for entry, (_, kinds) in ENTRIES.items()
    for what, kind in {"y": "weights", "sample_weight": "weights", "offset": "offset", "exposure": "exposure"}.items()
    if {"X", kind} <= {*kinds}
]


@pytest.mark.parametrize(("entry", "what"), TIMED)
def test_times_that_differ_are_noticed_everywhere(fitted, entry, what):
    change = {what: as_frame(np.ones((T, N)) if what == "offset" else ONES, 0.03)}
    if what == "y":
        change = {"counts": as_frame(COUNTS, 0.03), "labels": as_frame(LABELS, 0.03)}
    with pytest.raises(ValueError, match=rf"the times of X and {what} differ \(first at row 0.*Align them"):
        call(entry, fitted, {"X": as_frame(X), **change})


@pytest.mark.parametrize("entry", ["a streamed fit", "a streamed score"])
@pytest.mark.parametrize("what", ["sample_weight", "offset", "exposure"])
def test_streamed_rows_must_have_the_times_of_the_counts(fitted, entry, what):
    change = {what: as_frame(np.ones((T, N)) if what == "offset" else ONES, 0.03)}
    with pytest.raises(ValueError, match=rf"the times of y and {what} differ \(first at row 0.*Align them"):
        call(entry, fitted, {"counts": as_frame(COUNTS), **change})


# ----------------------------------------------------------- numbers without a model: plots, rescaling, sessions

NUMBERS = {
    "rescale_time": (lambda v: rescale_time(v, ONES), "counts"),
    "the rate of rescale_time": (lambda v: rescale_time(ONES, v), "rate"),
    "plot_tuning": (lambda v: plotting.plot_tuning(v, COUNTS[:, 0], bin_s=0.1), "covariate"),
    "plot_signal": (lambda v: plotting.plot_signal(TIMES, v, ylabel="speed"), "signal"),
    "plot_scores": (lambda v: plotting.plot_scores(v), "scores"),
    "plot_coupling": (lambda v: plotting.plot_coupling(v), "coupling"),
    "plot_recovery": (lambda v: plotting.plot_recovery(v, ONES), "true"),
    "plot_responses": (lambda v: plotting.plot_responses(v), "responses"),
    "plot_decoded": (lambda v: plotting.plot_decoded(TIMES, X, v), "position"),
    "Session": (lambda v: Session(spikes={"a": [1.0]}, signals={"speed": (TIMES, v)}), "the signal 'speed'"),
}


@pytest.mark.parametrize("entry", NUMBERS)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "{} is None; it needs "),
        ("speed.npy", "{} is 'speed.npy'; it needs .*numpy.load"),
        ({"a": ONES}, "{} is a dict; it needs .*numpy.column_stack"),
        (np.ones((T, 2, 2)), r"{} has shape \(120, 2, 2\), 3 dimensions; it needs"),
        (np.full(T, "a"), "{} has dtype <U1; it must be real numbers"),
        (["a"] * T, "{} has entries that are not numbers"),
        (SPIKES, "{} is a TsGroup, spike times; "),
        (scipy.sparse.eye_array(T), "{} is a sparse matrix of shape"),
    ],
    ids=["None", "file", "dict", "three dimensions", "strings", "list of strings", "spikes", "sparse"],
)
def test_arrays_of_numbers_are_checked_the_same_way_everywhere(entry, value, message):
    draw, name = NUMBERS[entry]
    with pytest.raises((TypeError, ValueError), match=message.format(name)):
        draw(value)


def test_rates_at_other_times_than_the_counts_are_noticed():
    with pytest.raises(ValueError, match=r"the times of counts and rate differ \(first at row 0"):
        rescale_time(as_frame(COUNTS), as_frame(np.ones((T, N)), 0.03))
