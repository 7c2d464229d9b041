"""Terms of a fitted additive model: curves follow from the coefficients, intervals from the posterior."""

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.exceptions import NotFittedError

from glmfit import PopulationGAM, PopulationGLM, PopulationGLMCV
from glmfit.design import BSpline, CyclicBSpline, Fourier, RaisedCosineLog, Term, product
from glmfit.estimators import TermCurve

T = 3000
PLACE = product(BSpline(5, (0, 100), name="x"), BSpline(4, (0, 80), name="y"), name="place")
BASIS = (
    PLACE
    + CyclicBSpline(6, name="phase")
    + RaisedCosineLog(4, window_s=0.1, bin_s=0.01, name="history")
    + BSpline(5, (0, 1), name="speed", clamped=False)
)


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(0)
    x, y = rng.random((2, T)) * [[100], [80]]
    return x, y, rng.random(T) * 2 * np.pi, rng.poisson(0.2, T), rng.random(T)


@pytest.fixture(scope="module")
def data(inputs):
    """Features and counts: one cell with all terms, one with a low rate and no terms, one that is silent."""
    x, y, phase, _, _ = inputs
    X = BASIS.features(*inputs)
    rate = np.exp(-((x - 60) ** 2 + (y - 40) ** 2) / 1500 + 0.4 * np.cos(phase))
    Y = np.random.default_rng(1).poisson(np.stack([rate, np.full(T, 0.2), np.zeros(T)], axis=1))
    return X, Y.astype(float)


@pytest.fixture(scope="module")
def model(data):
    return PopulationGAM(BASIS, inverse_link_function="exp", tol=1e-10).fit(*data)


def posterior(model, X, Y, n):
    """Posterior covariance of coefficients and intercept, a pseudo-inverse of the whole Hessian, and the mean of X."""
    X = X[np.isfinite(X).all(axis=1)]
    one = np.column_stack([X, np.ones(len(X))])
    mu = np.exp(X @ model.coef_[:, n] + model.intercept_[n])
    H = one.T @ (one * mu[:, None])
    for name, term in model.terms_.items():
        for S, strength in zip(term.penalties, model.strengths_[name][:, n], strict=True):
            H[np.ix_(term.features, term.features)] += len(X) * strength * S
    return np.linalg.pinv(H, rcond=1e-11, hermitian=True), X.mean(axis=0)


def combinations(model, name, grid, mean, rate):
    """Weights of coefficients and intercept that give the curve, or the predictor at the mean of other terms."""
    features = list(model.terms_[name].features)
    rows = np.zeros((len(grid), model.n_features_in_ + 1))
    rows[:, features] = grid if name == "history" else grid - mean[features]
    if rate:
        rows[:, :-1] += mean
        rows[:, -1] = 1.0
    return rows


@pytest.mark.parametrize("name", ["place", "phase", "history", "speed"])
def test_intervals_match_the_full_posterior(model, data, name):
    curve = model.term(name, simultaneous=False, given_strengths=True)
    grid = model.terms_[name].basis.on_grid(*curve.axes)
    for n in (0, 1):
        C, mean = posterior(model, *data, n)
        coef = np.append(model.coef_[:, n], model.intercept_[n])
        rows = combinations(model, name, grid, mean, rate=False)
        error = np.sqrt(np.einsum("pi,ij,pj->p", rows, C, rows))
        np.testing.assert_allclose(curve.curve[..., n].ravel(), rows @ coef, atol=1e-8)
        np.testing.assert_allclose(curve.standard_error[..., n].ravel(), error, rtol=2e-3, atol=1e-7)
        np.testing.assert_allclose(curve.low[..., n].ravel(), rows @ coef - 1.959964 * error, rtol=2e-3, atol=1e-3)
        rows = combinations(model, name, grid, mean, rate=True)
        error = np.sqrt(np.einsum("pi,ij,pj->p", rows, C, rows))
        np.testing.assert_allclose(curve.rate[..., n].ravel(), np.exp(rows @ coef), rtol=1e-6)
        high = np.exp(rows @ coef + 1.959964 * error)
        np.testing.assert_allclose(curve.rate_high[..., n].ravel(), high, rtol=1e-3)
        wide = model.term(name, simultaneous=False, with_mean=True, given_strengths=True)
        np.testing.assert_allclose(wide.standard_error[..., n].ravel(), error, rtol=2e-3)
        assert np.array_equal(wide.rate_high, curve.rate_high, equal_nan=True)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["place", "phase", "history"])
@pytest.mark.parametrize("with_mean", [False, True])
def test_bands_contain_the_whole_curve_at_the_stated_level(model, data, name, with_mean):
    C, mean = posterior(model, *data, 0)
    values, U = np.linalg.eigh(C)
    drawn = U @ (np.sqrt(np.maximum(values, 0))[:, None] * np.random.default_rng(5).normal(size=(len(C), 20_000)))
    axes = 12 if name == "place" else None
    how = {"with_mean": with_mean, "given_strengths": True, "n_draws": 20_000, "random_state": 3}
    curve = model.term(name, axes=axes, level=0.9, **how)
    grid = model.terms_[name].basis.on_grid(*curve.axes)
    low, high = (getattr(curve, f"{end}_simultaneous")[..., 0].ravel() for end in ("low", "high"))
    off = combinations(model, name, grid, mean, rate=with_mean) @ drawn
    half = (high - low)[:, None] / 2
    some = curve.standard_error[..., 0].ravel() > 1e-9
    assert np.mean(np.all(np.abs(off) <= half, axis=0, where=some[:, None])) == pytest.approx(0.9, abs=0.012)
    off = combinations(model, name, grid, mean, rate=True) @ drawn
    middle = np.log(curve.rate[..., 0].ravel())[:, None]
    inside = off <= np.log(curve.rate_high_simultaneous[..., 0].ravel())[:, None] - middle
    inside &= off >= np.log(curve.rate_low_simultaneous[..., 0].ravel())[:, None] - middle
    assert np.mean(inside.all(axis=0)) == pytest.approx(0.9, abs=0.012)
    assert np.all(curve.low_simultaneous[..., 0] <= curve.low[..., 0])


def test_curves_at_the_rows_add_up_to_the_predictor_and_have_mean_0(model, data, inputs):
    X, _ = data
    x, y, phase, _, speed = inputs
    rows = slice(20, 120)
    used = np.isfinite(X).all(axis=1)
    parts = {"phase": model.term("phase", axes=phase, simultaneous=False)}
    parts["speed"] = model.term("speed", axes=(speed,), simultaneous=False)
    np.testing.assert_allclose(parts["phase"].curve[used, :2].mean(axis=0), 0, atol=1e-9)
    place = np.array([
        model.term("place", axes=(x[[t]], y[[t]]), simultaneous=False, neuron=0).curve.item() for t in range(20, 120)
    ])  # fmt: skip
    history = X[rows, 26:30] @ model.coef_by_term()["history"][:, 0]
    intercept = model.intercept_[0] + X[used].mean(axis=0) @ model.coef_[:, 0] - (
        X[used, 26:30].mean(axis=0) @ model.coef_[26:30, 0]
    )  # fmt: skip
    total = intercept + place + history + parts["phase"].curve[rows, 0] + parts["speed"].curve[rows, 0]
    np.testing.assert_allclose(np.exp(total), model.predict(X)[rows, 0], rtol=1e-8)


def test_shapes_axes_and_names(model):
    place = model.term("place", axes=(np.linspace(0, 100, 7), np.linspace(0, 80, 5)), n_draws=200)
    assert place.curve.shape == place.rate_low_simultaneous.shape == (7, 5, 3)
    assert place.inputs == ("x", "y") and not place.is_filter
    assert model.term("place", n_draws=200).rate.shape == (40, 40, 3)
    history = model.term("history", n_draws=200)
    assert history.is_filter and history.inputs == ("lag_s",)
    np.testing.assert_allclose(history.axes[0], 0.01 * np.arange(1, 11))
    kernels = RaisedCosineLog(4, window_s=0.1, bin_s=0.01, name="history").kernels
    np.testing.assert_allclose(history.curve[:, 0], kernels @ model.coef_by_term()["history"][:, 0], atol=1e-12)
    phase = model.term("phase", n_draws=200)
    np.testing.assert_allclose(phase.rate[0], phase.rate[-1], rtol=1e-9)  # once around
    outside = model.term("speed", axes=[-0.5, 0.5], n_draws=200)
    assert np.isnan(outside.rate_high[0]).all() and np.isfinite(outside.rate_high_simultaneous[1, :2]).all()
    assert np.isnan(place.curve[..., 2]).all() and np.isnan(place.rate_high[..., 2]).all()  # silent
    some = model.term("place", axes=6, neuron=["1", 0], n_draws=200)
    assert some.neuron == ["1", "0"] and some.curve.shape == (6, 6, 2)
    alone = model.term("place", axes=6, neuron=0, n_draws=200)
    assert np.array_equal(alone.low_simultaneous[..., 0], some.low_simultaneous[..., 1])


def test_the_same_seed_gives_the_same_draws(model):
    a, b, c = (model.term("phase", n_draws=300, random_state=seed).high_simultaneous for seed in (1, 1, 2))
    assert np.array_equal(a, b, equal_nan=True) and not np.array_equal(a, c, equal_nan=True)


def test_saved_models_give_the_same_terms(model, tmp_path):
    loaded = PopulationGAM.load(model.save(tmp_path / "gam.npz"))
    for name in model.terms_:
        pd.testing.assert_frame_equal(
            loaded.term(name, axes=None, n_draws=200).to_frame(), model.term(name, n_draws=200).to_frame()
        )
    pd.testing.assert_frame_equal(loaded.term_frame(), model.term_frame())


def test_frames_and_printed_text(model):
    curve = model.term("place", axes=(np.array([10.0, 20, 30]), np.array([5.0, 6])), n_draws=200)
    frame = curve.to_frame()
    assert frame.index.names == ["neuron", "x", "y"] and len(frame) == 18
    assert frame.loc[("1", 20.0, 6.0), "rate_low"] == curve.rate_low[1, 1, 1]
    bare = model.term("place", axes=3, simultaneous=False)
    assert bare.low_simultaneous is None and "low_simultaneous" not in bare.to_frame()
    text = repr(curve)
    assert "map 'place' over x, y, 3 x 2 points; 3 neurons; 95 % intervals, pointwise and simultaneous" in text
    assert "array" not in text and len(text.splitlines()) == 8
    assert "<table" in curve._repr_html_()
    assert isinstance(curve, TermCurve)
    with pytest.raises(AttributeError):
        curve.level = 0.5


def test_xarray_has_the_arrays_by_axis(model):
    pytest.importorskip("xarray")
    curve = model.term("place", axes=4, n_draws=200)
    found = curve.to_xarray()
    assert found["rate"].dims == ("x", "y", "neuron") and found.attrs["term"] == "place"
    assert float(found["rate"].sel(neuron="1").isel(x=2, y=3)) == curve.rate[2, 3, 1]


def test_a_term_without_a_basis_has_its_coefficients_and_masked_features_are_nan():
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(400, 4)), columns=["a", "b", "c", "d"])
    Y = rng.poisson(0.5, size=(400, 2))
    mask = np.ones((4, 2))
    mask[1, 0] = 0
    mask[2:, 1] = 0
    terms = {"first": ["a", "b"], "second": Term.random_walk([2, 3])}
    model = PopulationGAM(terms, 0.1, inverse_link_function="exp", feature_mask=mask).fit(X, Y)
    first = model.term("first", n_draws=200)
    assert first.inputs == ("feature",) and list(first.axes[0]) == ["a", "b"]
    np.testing.assert_allclose(first.curve, np.where(mask[:2] == 1, model.coef_[:2], np.nan), rtol=1e-12)
    assert np.array_equal(np.isnan(first.rate_high_simultaneous), mask[:2] == 0)
    one = np.column_stack([X.to_numpy(), np.ones(400)])[:, [0, 2, 3, 4]]
    mu = np.asarray(model.predict(X))[:, 0]
    H = one.T @ (one * mu[:, None])
    H[:3, :3] += 400 * 0.1 * np.array([[1, 0, 0], [0, 1, -1], [0, -1, 1.0]])
    assert first.standard_error[0, 0] == pytest.approx(np.sqrt(np.linalg.inv(H)[0, 0]), rel=1e-5)
    second = model.term("second", n_draws=200)
    assert np.isnan(second.rate[:, 1]).all() and np.isfinite(second.rate[:, 0]).all()
    table = model.term_frame()
    assert np.isnan(table.loc[("1", "second")]).all() and np.isfinite(table.loc[("0", "second")]).all()
    with pytest.raises(ValueError, match="has no basis"):
        model.term("first", axes=3)


def test_an_estimated_scale_widens_intervals_to_student_t_intervals():
    rng = np.random.default_rng(0)
    x = rng.random(30)
    basis = Fourier(3, (0, 1), name="x")
    y = np.sin(2 * np.pi * x) + 0.3 * rng.normal(size=30) + 100
    model = PopulationGAM(basis, 1e-3, observation_model="Gaussian").fit(basis.features(x), y)
    one = np.column_stack([basis.features(x), np.ones(30)])
    S = np.zeros((7, 7))
    S[:6, :6] = 30 * 1e-3 * basis.penalties[0]
    C = np.linalg.inv(one.T @ one + S)
    df = 30 - np.trace(C @ one.T @ one)
    scale = np.sum((y - one @ C @ one.T @ y) ** 2) / df
    curve = model.term("x", axes=[0.2, 0.7], level=0.9, n_draws=20_000)
    rows = np.column_stack([basis.on_grid(np.array([0.2, 0.7])), np.ones(2)])
    error = np.sqrt(scale * np.einsum("pi,ij,pj->p", rows, C, rows))
    np.testing.assert_allclose(curve.rate[:, 0], rows @ C @ one.T @ y, rtol=1e-7)
    half = (curve.rate_high - curve.rate_low)[:, 0] / 2
    np.testing.assert_allclose(half, scipy.stats.t.isf(0.05, df) * error, rtol=1e-4)
    root = np.linalg.cholesky(rows @ C @ rows.T)
    draws = np.random.default_rng(7).normal(size=(2, 50_000))
    largest = np.abs(root @ draws / np.sqrt(np.diag(rows @ C @ rows.T))[:, None]).max(axis=0)
    largest /= np.sqrt(np.random.default_rng(8).chisquare(df, 50_000) / df)
    half = (curve.rate_high_simultaneous - curve.rate_low_simultaneous)[:, 0] / 2
    np.testing.assert_allclose(half, np.quantile(largest, 0.9) * error, rtol=0.02)


def test_intervals_cover_across_the_function():
    rng = np.random.default_rng(0)
    n = 100
    x, phase = rng.random(2000), rng.random(2000) * 2 * np.pi
    peak = rng.random(n)

    def place(x):
        return 1.5 * np.exp(-((x[:, None] - peak) ** 2) / 0.06)

    eta = place(x) + 0.5 * np.cos(phase)[:, None] + np.linspace(-2.5, -0.5, n)
    basis = BSpline(10, (0, 1), name="x") + CyclicBSpline(8, name="phase")
    model = PopulationGAM(basis, inverse_link_function="exp").fit(basis.features(x, phase), rng.poisson(np.exp(eta)))
    for name, true in (("x", place), ("phase", lambda v: np.repeat(0.5 * np.cos(v)[:, None], n, axis=1))):
        curve = model.term(name, n_draws=2000, with_mean=True)
        values, at_rows = true(curve.axes[0]), true(x if name == "x" else phase).mean(axis=0)
        values = values - at_rows
        assert 0.92 < np.mean((curve.low < values) & (values < curve.high)) < 0.98
        band = (curve.low_simultaneous < values) & (values < curve.high_simultaneous)
        assert np.mean(band.all(axis=0)) > 0.87
        narrow = model.term(name, simultaneous=False)
        assert np.all(narrow.standard_error.mean(axis=0) < curve.standard_error.mean(axis=0))


def test_invalid_requests_are_refused(model):
    with pytest.raises(ValueError, match=r"name is 'plaice'; the model has the terms 'place', 'phase'"):
        model.term("plaice")
    with pytest.raises(ValueError, match=r"neuron is 7; allowed are whole numbers from 0 to 2, and the names 0, 1, 2"):
        model.term("phase", neuron=7)
    with pytest.raises(ValueError, match="neuron is 'north'"):
        model.term("phase", neuron=["north"])
    with pytest.raises(ValueError, match="neuron is empty"):
        model.term("phase", neuron=[])
    with pytest.raises(ValueError, match=r"axes of the term 'place' must be 2 array\(s\), one for each of x, y"):
        model.term("place", axes=[0.5])
    with pytest.raises(ValueError, match=r"axes\[0\] has shape \(1, 2\)"):
        model.term("phase", axes=(np.ones((1, 2)),))
    with pytest.raises(ValueError, match="level"):
        model.term("phase", level=95)
    with pytest.raises(ValueError, match="n_draws"):
        model.term("phase", n_draws=5)
    for call in ("term_frame", "coef_frame", "coef_by_term"):
        with pytest.raises(NotFittedError):
            getattr(PopulationGAM(BASIS), call)()
    with pytest.raises(NotFittedError):
        PopulationGAM(BASIS).term("place")


def test_coefficients_by_term_and_as_a_frame(model):
    frame = model.coef_frame()
    assert frame.index.names == ["term", "feature"] and frame.columns.name == "neuron"
    assert list(frame.columns) == ["0", "1", "2"]
    np.testing.assert_array_equal(frame.to_numpy()[:-1], model.coef_)
    assert frame.index[-1] == ("intercept", "intercept") and frame.index[20] == ("phase", "phase_0")
    np.testing.assert_array_equal(frame.iloc[-1], model.intercept_)
    for name, coef in model.coef_by_term().items():
        np.testing.assert_array_equal(frame.loc[name], coef)


@pytest.mark.parametrize("kind", [PopulationGLM, PopulationGLMCV, PopulationGAM])
@pytest.mark.parametrize("one", [True, False])
def test_every_population_estimator_has_a_frame_of_coefficients(kind, one):
    rng = np.random.default_rng(0)
    X = pd.DataFrame(rng.normal(size=(200, 2)), columns=["speed", "heading"])
    Y = pd.DataFrame(rng.poisson(1.0, size=(200, 2)), columns=["n4", "n9"])
    y = Y["n4"] if one else Y
    model = kind({"plain": ["heading"]}, 0.1).fit(X, y) if kind is PopulationGAM else kind().fit(X, y)
    frame = model.coef_frame()
    names = list(frame.index.get_level_values("feature"))
    assert names == ["speed", "heading", "intercept"]
    assert list(frame.columns) == list(model.report_.neuron)
    np.testing.assert_array_equal(frame.to_numpy()[:2].reshape(model.coef_.shape), model.coef_)
    np.testing.assert_array_equal(frame.to_numpy()[2], np.atleast_1d(model.intercept_))
    if kind is PopulationGAM:
        assert list(frame.index.get_level_values("term")) == ["", "plain", "intercept"]
        assert model.coef_by_term()["plain"].shape == ((1,) if one else (1, 2))


def test_uncertain_strengths_widen_intervals(model):
    for name in model.terms_:
        given, wide = (model.term(name, simultaneous=False, given_strengths=known) for known in (True, False))
        error, narrow = (curve.standard_error[..., 0].ravel() for curve in (wide, given))
        some = narrow > 1e-3
        assert np.all(error[some] > 0.9 * narrow[some]) and np.all(error[some] < 3 * narrow[some])
        assert not some.any() or error[some].mean() > narrow[some].mean()
        assert np.array_equal(wide.curve, given.curve, equal_nan=True)


def test_given_strengths_are_certain(data):
    X, Y = data[0], data[1]
    model = PopulationGAM({"some": range(X.shape[1])}, 0.01).fit(X, Y)
    given, wide = (model.term("some", simultaneous=False, given_strengths=known) for known in (True, False))
    assert np.array_equal(wide.standard_error, given.standard_error, equal_nan=True)
