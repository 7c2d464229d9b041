"""Bases match slow references, sum to 1, leave the right functions unpenalised, and can be made from plain values."""

import copy
import json

import numpy as np
import pytest
from scipy.interpolate import BSpline as SciPySpline

from glmfit.design import (
    Basis,
    BSpline,
    Convolution,
    CyclicBSpline,
    Fourier,
    RaisedCosineLinear,
    RaisedCosineLog,
    Session,
    Term,
    build,
    product,
)
from tests.oracles import design as oracle

rng = np.random.default_rng(3)
X = BSpline(6, (0, 2), name="x")
Y = BSpline(5, (1, 4), name="y", order=3)
PHASE = CyclicBSpline(5, name="phase")
HISTORY = RaisedCosineLog(3, 0.1, 0.01, name="history")
EVERY = [
    X,
    BSpline(7, (-1, 1), name="odd", order=3, penalty_order=1, clamped=False),
    PHASE,
    Fourier(2, (0, 360), name="heading"),
    HISTORY,
    RaisedCosineLinear(4, 0.1, 0.01, name="coupling", columns=["a", "b"], penalty_order=1),
    X * Y,
    product(X, Y, PHASE, name="place", isotropic=True),
    X * Y + PHASE + HISTORY,
]
each = pytest.mark.parametrize("basis", EVERY, ids=lambda basis: "+".join(basis.terms))
knots = pytest.mark.parametrize("clamped", [True, False])


def inputs_of(basis, rows=40):
    """Values in range for every input of the basis."""
    found = []
    for part in getattr(basis, "members", (basis,)):
        for factor in getattr(part, "factors", (part,)):
            columns = getattr(factor, "columns", None)
            low, high = getattr(factor, "range", (0, 1))
            found.append(rng.uniform(low, high, rows if columns is None else (rows, len(columns))))
    return found


# -- functions


@pytest.mark.parametrize(("n", "order"), [(4, 4), (9, 4), (5, 1), (6, 2)])
def test_bsplines_equal_the_recursion(n, order):
    basis = BSpline(n, (2, 5), name="x", order=order, penalty_order=0)
    x = np.array([2.0, 2.1, 3.5, 4.999, 5.0])
    at = [0.0] * (order - 1) + np.linspace(0, 1, n - order + 2).tolist() + [1.0] * (order - 1)
    expected = [[oracle.cox_de_boor((v - 2) / 3, at, order - 1, i) for i in range(n)] for v in x]
    np.testing.assert_allclose(basis.features(x), expected, atol=1e-12)
    assert np.isnan(basis.features([1.999, 5.001, np.nan, np.inf])).all()


@pytest.mark.parametrize(("n", "order"), [(4, 4), (9, 4), (5, 1), (6, 2)])
def test_even_knots_continue_beyond_the_range(n, order):
    basis = BSpline(n, (2, 5), name="x", order=order, penalty_order=0, clamped=False)
    step = 3 / (n - order + 1)
    at = 2 + step * np.arange(-(order - 1), n + 1)
    x = np.linspace(2, 5, 50)[:-1]
    expected = np.stack([SciPySpline(at, row, order - 1)(x) for row in np.eye(n)], axis=1)
    np.testing.assert_allclose(basis.features(x), expected, atol=1e-12)
    np.testing.assert_allclose(basis.features([2.0, 5.0]).sum(axis=1), 1)
    assert np.isnan(basis.features([1.999, 5.001, np.nan])).all()


@knots
def test_splines_sum_to_one_and_are_never_negative(clamped):
    features = BSpline(8, (-1, 3), name="x", clamped=clamped).features(np.linspace(-1, 3, 101))
    np.testing.assert_allclose(features.sum(axis=1), 1)
    assert features.min() >= 0


@pytest.mark.parametrize(("n", "order"), [(8, 4), (4, 4), (5, 2), (3, 1)])
def test_cyclic_bsplines_are_periodic_and_shift_with_the_angle(n, order):
    basis = CyclicBSpline(n, (-np.pi, np.pi), name="phase", order=order, penalty_order=0)
    angle = np.linspace(-9, 9, 101)
    features = basis.features(angle)
    np.testing.assert_allclose(features.sum(axis=1), 1)
    np.testing.assert_allclose(basis.features(angle + 2 * np.pi), features, atol=1e-9)
    np.testing.assert_allclose(basis.features(angle + 2 * np.pi / n), np.roll(features, 1, axis=1), atol=1e-9)
    uniform = (np.arange(2 * n + order + 1) - n) / n
    one = [oracle.cox_de_boor(a, uniform, order - 1, n) for a in (np.arange(20) + 0.5) / 20]
    own = basis.features(-np.pi + 2 * np.pi * (np.arange(20) + 0.5) / 20)
    folded = np.array(one) + [oracle.cox_de_boor(a + 1, uniform, order - 1, n) for a in (np.arange(20) + 0.5) / 20]
    assert min(np.abs(own[:, i] - folded).max() for i in range(n)) < 1e-12
    assert np.isnan(basis.features([np.nan, np.inf, -np.inf])).all()


def test_fourier_features():
    features = Fourier(2, (0, 360), name="heading").features([0.0, 90, 450, np.nan])
    np.testing.assert_allclose(features[:3], [[1, 0, 1, 0], [0, 1, -1, 0], [0, 1, -1, 0]], atol=1e-12)
    assert np.isnan(features[3]).all()


@pytest.mark.thorough
def test_raised_cosines_equal_those_of_nemos_and_of_the_oracle(loose_shapes):
    nmo = pytest.importorskip("nemos")
    at = np.linspace(0, 1, 20)
    log, linear = (kind(5, 0.4, 0.02, name="h").kernels for kind in (RaisedCosineLog, RaisedCosineLinear))
    np.testing.assert_allclose(log, oracle.raised_cosines_log(5, 20), atol=1e-12)
    np.testing.assert_allclose(log, nmo.basis.RaisedCosineLogConv(5, window_size=20).evaluate(at), atol=1e-5)
    np.testing.assert_allclose(linear, nmo.basis.RaisedCosineLinearConv(5, window_size=20).evaluate(at), atol=1e-5)


@pytest.mark.parametrize("columns", [3, np.int64(3), range(3), np.arange(3), ["0", "1", "2"]], ids=repr)
def test_columns_are_counted_or_named_by_units(columns):
    basis = RaisedCosineLog(2, 0.1, 0.01, name="from", columns=columns)
    assert basis.columns == ("0", "1", "2")


@pytest.mark.parametrize("kind", [RaisedCosineLinear, RaisedCosineLog])
def test_kernels_see_the_past_of_their_epoch_and_of_each_column(kind):
    signal = rng.poisson(0.5, (60, 2))
    one, both = kind(3, 0.1, 0.01, name="h"), kind(3, 0.1, 0.01, name="h", columns=2)
    found = both.features(signal, epochs=[0, 25])
    expected = np.full((60, 6), np.nan)
    for start, stop in ((0, 25), (25, 60)):
        for t in range(start + 10, stop):
            expected[t] = (signal[t - 10 : t][::-1].T @ one.kernels).ravel()
    np.testing.assert_allclose(found, expected, atol=1e-12)
    np.testing.assert_allclose(one.features(signal[:, 1], epochs=[0, 25]), found[:, 3:], atol=1e-12)
    np.testing.assert_array_equal(Convolution(signal, one.kernels, dtype=np.float64).to_array(), both.features(signal))
    assert both.feature_names == [f"h_{c}_{b}" for c in range(2) for b in range(3)]


def test_a_design_has_the_features_of_its_bases():
    time = np.arange(0, 20, 0.1)
    x, angle = rng.uniform(-0.2, 1.2, 200), rng.uniform(-7, 7, 200)
    trains = {"a": np.sort(rng.uniform(0, 20, 80)), "b": np.sort(rng.uniform(0, 20, 60))}
    session = Session(spikes=trains, signals={"x": (time, x), "angle": (time, angle)})
    tables = {
        "x": {"kind": "bspline", "n": 5, "range": [0, 1], "order": 3},
        "angle": {"kind": "fourier", "n": 2},
    }
    covariates = [{"signal": key, "basis": table, "resample": "nearest"} for key, table in tables.items()]
    history = {"basis": {"kind": "raised_cosine_log", "n": 3, "window_s": 0.6}}
    built = build(session, {"bin_s": 0.1, "covariates": covariates, "history": history}, dtype=np.float64)
    basis = BSpline(5, (0, 1), name="x", order=3) + Fourier(2, name="angle")
    basis = basis + RaisedCosineLog(3, 0.6, 0.1, name="history", columns=["a", "b"])
    rows = np.searchsorted(time, built.times, side="left") - 1
    counts = built.y
    np.testing.assert_array_equal(built.X, basis.features(x[rows], angle[rows], counts))
    assert built.feature_names == basis.feature_names


# -- the common interface


@each
def test_all_have_the_same_interface(basis):
    features = basis.features(*inputs_of(basis))
    assert features.dtype == np.float64 and features.shape == (40, basis.n_features)
    assert len(set(basis.feature_names)) == basis.n_features
    for S in basis.penalties:
        assert S.dtype == np.float64 and S.shape == (basis.n_features,) * 2
        np.testing.assert_array_equal(S, S.T)
        assert np.linalg.eigvalsh(S)[0] > -1e-10 * np.abs(S).max()
    columns = [column for term in basis.terms.values() for column in term.features]
    assert columns == list(range(basis.n_features))
    for name, term in basis.terms.items():
        assert term == Term(term.features, term.penalties, term.basis) and term.basis.name == name
        found = [basis.penalties[i][np.ix_(term.features, term.features)] for i in range(len(basis.penalties))]
        for S in term.penalties:
            assert any(np.array_equal(S, part) for part in found)
    assert sum(np.trace(S) for S in basis.penalties) == pytest.approx(
        sum(np.trace(S) for term in basis.terms.values() for S in term.penalties)
    )


@each
def test_basis_can_be_made_from_plain_values(basis):
    again = Basis.from_dict(json.loads(json.dumps(basis.to_dict())))
    assert again == basis and repr(again) == repr(basis) and hash(again) == hash(basis)
    assert copy.deepcopy(basis) == basis
    assert again != BSpline(6, (0, 2.5), name="x") and again != "x"


@each
def test_grids_evaluate_the_functions_at_their_points(basis):
    for term in basis.terms.values():
        axes = term.basis.axes(7)
        assert len(axes) == term.basis.n_inputs
        found = term.basis.on_grid(*axes)
        assert found.shape == (np.prod([len(axis) for axis in axes]), len(term.features))
        if not hasattr(term.basis, "kernels"):
            points = [mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij")]
            np.testing.assert_allclose(found, term.basis.features(*points), atol=1e-12)


def test_grids_of_kernels_are_over_lags_in_seconds():
    (lags,) = HISTORY.axes()
    np.testing.assert_allclose(lags, 0.01 * np.arange(1, 11))
    np.testing.assert_allclose(HISTORY.on_grid(lags), HISTORY.kernels, atol=1e-12)
    linear = RaisedCosineLinear(4, 0.1, 0.01, name="h")
    between = linear.on_grid([0.0, 0.025, 0.1, 0.11])
    assert np.isnan(between[[0, 3]]).all()
    bump = 0.5 + 0.5 * np.cos(np.pi * (1.5 / 9 - np.arange(4) / 3) / (2 / 3))
    np.testing.assert_allclose(between[1], bump * [1, 1, 1, 0], atol=1e-12)


# -- penalties


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_penalty_of_even_knots_takes_ordinary_differences(order):
    D = np.diff(np.eye(9), order, axis=0)
    for basis in (BSpline(9, (-3, 8), name="x", penalty_order=order, clamped=False),):
        np.testing.assert_array_equal(basis.penalties[0], D.T @ D)


@knots
@pytest.mark.parametrize(("order", "penalty"), [(4, 1), (4, 2), (4, 3), (3, 2), (5, 2), (2, 1)])
def test_only_polynomials_of_lower_degree_are_unpenalised(clamped, order, penalty):
    basis = BSpline(10, (2, 7), name="x", order=order, penalty_order=penalty, clamped=clamped)
    (S,), x = basis.penalties, np.linspace(2, 7, 60)
    values, vectors = np.linalg.eigh(S)
    assert (values[:penalty] < 1e-10).all() and values[penalty] > 1e-4
    free = basis.features(x) @ vectors[:, :penalty]
    powers = np.vander(x, penalty)
    np.testing.assert_allclose(powers @ np.linalg.lstsq(powers, free, rcond=None)[0], free, atol=1e-9)


@knots
@pytest.mark.parametrize("penalty", [1, 2, 3])
def test_penalty_is_the_sum_of_squared_coefficients_of_the_derivative(clamped, penalty):
    n, order, low, high = 9, 4, 2.0, 7.0
    basis = BSpline(n, (low, high), name="x", penalty_order=penalty, clamped=clamped)
    step = (high - low) / (n - order + 1)
    inner, degree = np.linspace(low, high, n - order + 2), order - 1
    beyond = step * np.arange(1, order)
    ends = (np.full(degree, low), np.full(degree, high)) if clamped else (low - beyond[::-1], high + beyond)
    beta = rng.normal(size=n)
    derivative = SciPySpline(np.r_[ends[0], inner, ends[1]], beta, degree).derivative(penalty)
    coefficients = derivative.c[: n - penalty] * step**penalty
    assert beta @ basis.penalties[0] @ beta == pytest.approx(np.sum(coefficients**2), rel=1e-10)


def test_cyclic_and_fourier_penalties_and_those_of_kernels():
    n = 6
    D = np.array([np.roll([1.0, -2, 1, 0, 0, 0], i) for i in range(n)])
    np.testing.assert_array_equal(CyclicBSpline(n, name="phase").penalties[0], D.T @ D)
    np.testing.assert_array_equal(CyclicBSpline(n, name="phase", penalty_order=0).penalties[0], np.eye(n))
    wave, angle = Fourier(3, name="f"), np.linspace(0, 2 * np.pi, 20_001)[:-1]
    second = -wave.features(angle) * np.repeat(np.arange(1, 4), 2) ** 2
    np.testing.assert_allclose(wave.penalties[0], 2 * second.T @ second / len(angle), atol=1e-9)
    np.testing.assert_array_equal(Fourier(2, name="f", penalty_order=0).penalties[0], np.eye(4))
    np.testing.assert_array_equal(HISTORY.penalties[0], np.eye(3))
    steps = RaisedCosineLinear(3, 0.1, 0.01, name="h", penalty_order=1).penalties[0]
    np.testing.assert_array_equal(steps, [[1, -1, 0], [-1, 2, -1], [0, -1, 1]])


# -- products and sums


def test_a_product_is_the_tensor_product():
    both = X * Y
    x, y = inputs_of(both)
    expected = np.stack([np.kron(a, b) for a, b in zip(X.features(x), Y.features(y), strict=True)])
    np.testing.assert_array_equal(both.features(x, y), expected)
    np.testing.assert_array_equal(both.penalties[0], np.kron(X.penalties[0], np.eye(5)))
    np.testing.assert_array_equal(both.penalties[1], np.kron(np.eye(6), Y.penalties[0]))
    assert both.name == "x*y" and both.feature_names[:6] == [f"x*y_0_{j}" for j in range(5)] + ["x*y_1_0"]
    three = (X * Y) * PHASE
    assert three == X * (Y * PHASE) == product(X, Y, PHASE)
    named = product(product(X, Y, name="place"), PHASE)
    assert named.name == "place*phase" and len(named.penalties) == 3
    for a, b in zip(named.penalties, three.penalties, strict=True):
        np.testing.assert_array_equal(a, b)


@knots
def test_isotropic_product_leaves_only_planes_unpenalised(clamped):
    x, y = (BSpline(n, (0, n - 3), name=name, clamped=clamped) for n, name in ((7, "x"), (9, "y")))
    (S,) = product(x, y, isotropic=True).penalties
    axes = np.linspace(0, 4, 25), np.linspace(0, 6, 25)
    at_x, at_y = (mesh.ravel() for mesh in np.meshgrid(*axes, indexing="ij"))
    values, vectors = np.linalg.eigh(S)
    assert (values[:3] < 1e-10).all() and values[3] > 1e-4
    free = (x * y).features(at_x, at_y) @ vectors[:, :3]
    plane = np.stack([np.ones(len(at_x)), at_x, at_y], axis=1)
    np.testing.assert_allclose(plane @ np.linalg.lstsq(plane, free, rcond=None)[0], free, atol=1e-9)


def test_an_isotropic_product_is_the_thin_plate_energy_of_waves():
    # f = cos(kx x + ky y) has the energy (kx^2 + ky^2)^2 / 2, whatever its direction and the knot spacings.
    x, y = CyclicBSpline(30, (0, 1), name="x"), CyclicBSpline(45, (0, 1), name="y")
    spacing = np.sqrt(1 / 30 / 45)
    (S,) = product(x, y, isotropic=True).penalties
    at_x, at_y = np.meshgrid(np.arange(30) / 30, np.arange(45) / 45, indexing="ij")
    for turns in ((1, 0), (0, 2), (1, 1), (1, -2)):
        wave = np.cos(2 * np.pi * (turns[0] * at_x + turns[1] * at_y)).ravel()
        energy = (wave @ S @ wave) / len(wave) / spacing**4
        assert energy == pytest.approx((2 * np.pi) ** 4 * np.sum(np.square(turns)) ** 2 / 2, rel=0.02)


def test_a_product_with_kernels_is_a_filter_that_changes_with_the_value():
    both = X * HISTORY
    x, signal = rng.uniform(0, 2, 50), rng.normal(size=50)
    beta = rng.normal(size=both.n_features)
    (at,), (lags,) = X.axes(3), HISTORY.axes()
    x[30] = at[1]
    filters = (both.on_grid(at, lags) @ beta).reshape(3, len(lags))
    assert both.features(x, signal)[30] @ beta == pytest.approx(filters[1] @ signal[20:30][::-1])
    assert np.isnan(both.features(x, signal)[:10]).all()


def test_sum_takes_the_inputs_of_its_parts_in_order():
    basis = X * Y + PHASE + HISTORY
    x, y, phase, signal = inputs_of(basis)
    x[3] = np.nan
    found = basis.features(x, y, phase, signal, epochs=[0, 20])
    expected = [(X * Y).features(x, y), PHASE.features(phase), HISTORY.features(signal, epochs=[0, 20])]
    np.testing.assert_array_equal(found, np.concatenate(expected, axis=1))
    assert np.isnan(found[3, :30]).all() and np.isfinite(found[3, 30:35]).all()
    assert basis.feature_names == [*(X * Y).feature_names, *PHASE.feature_names, *HISTORY.feature_names]
    assert basis == X * Y + (PHASE + HISTORY) and basis.n_inputs == 4
    assert {name: len(term.features) for name, term in basis.terms.items()} == {"x*y": 30, "phase": 5, "history": 3}


def test_signals_of_pynapple_bring_their_epochs_and_columns():
    nap = pytest.importorskip("pynapple")
    t, epochs = np.arange(0.05, 6, 0.1), nap.IntervalSet([0, 3.02], [2.98, 6])
    x, counts = rng.uniform(0, 2, 60), rng.poisson(0.5, (60, 2))
    basis = X + RaisedCosineLog(3, 0.5, 0.1, name="from", columns=["a", "b"])
    frame = nap.TsdFrame(t, counts, time_support=epochs, columns=["a", "b"])
    found = basis.features(nap.Tsd(t, x, time_support=epochs), frame)
    np.testing.assert_array_equal(found, basis.features(x, counts, epochs=[0, 30]))
    with pytest.raises(ValueError, match=r"columns \['b', 'a'\]; the basis has \['a', 'b'\]"):
        basis.features(x, nap.TsdFrame(t, counts, time_support=epochs, columns=["b", "a"]))


# -- terms


def test_terms_without_a_basis():
    assert Term.ridge([3, 1]).features == (3, 1)
    np.testing.assert_array_equal(Term.ridge([3, 1]).penalties[0], np.eye(2))
    D = np.diff(np.eye(5), 2, axis=0)
    np.testing.assert_array_equal(Term.random_walk(range(5), order=2).penalties[0], D.T @ D)
    ard = Term.ard(np.arange(3))
    assert len(ard.penalties) == 3
    for i, S in enumerate(ard.penalties):
        np.testing.assert_array_equal(S, np.diag(np.eye(3)[i]))
    assert Term((0, 1)).penalties == ()
    assert copy.deepcopy(ard) == ard and ard != Term.ridge(range(3)) and Term.ridge([0]) != Term.ridge([1])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Term([0, 0]), "each once"),
        (lambda: Term([]), "each once"),
        (lambda: Term("x"), "features is 'x'"),
        (lambda: Term([-1]), "at least 0"),
        (lambda: Term([0], (np.eye(2),)), r"shape \(2, 2\).*\(1, 1\)"),
        (lambda: Term([0], ([[np.nan]],)), "NaN"),
        (lambda: Term([0], ([[0.0]],)), "no effect"),
        (lambda: Term([0, 1], ([[1.0, 1], [0, 1]],)), "not symmetric"),
        (lambda: Term([0, 1], ([[1.0, 2], [2, 1]],)), "eigenvalue -1"),
        (lambda: Term.random_walk([0, 1], order=2), "order 1 at most"),
    ],
)
def test_invalid_terms_are_refused_with_the_reason(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# -- refused input


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BSpline(3, (0, 1), name="x"), "at least the order"),
        (lambda: BSpline(0, (0, 1), name="x"), "n is 0"),
        (lambda: BSpline(5, (1, 0), name="x"), r"range is \(1, 0\)"),
        (lambda: BSpline(5, (0, np.inf), name="x"), "finite"),
        (lambda: BSpline(5, 3, name="x"), "two finite numbers"),
        (lambda: BSpline(5, (0, 1), name=""), "name is ''"),
        (lambda: BSpline(5, (0, 1), name="x", penalty_order=4), "3 derivatives"),
        (lambda: CyclicBSpline(5, name="x", order=2), "1 derivatives"),
        (lambda: BSpline(5, (0, 1), name="x", clamped="no"), "clamped"),
        (lambda: Fourier(2, name="x", penalty_order=-1), "penalty_order is -1"),
        (lambda: RaisedCosineLog(5, 0.03, 0.01, name="h"), "3 bins.*5 kernels need as many"),
        (lambda: RaisedCosineLog(1, 0.03, 0.01, name="h"), "n is 1"),
        (lambda: RaisedCosineLog(3, 0.1, 0.01, name="h", penalty_order=3), "order 2 at most"),
        (lambda: RaisedCosineLog(3, 0.1, 0.01, name="h", columns=["a", "a"]), "each once"),
        (lambda: HISTORY.features(np.zeros((50, 3))), "columns=3"),
        (lambda: X + X, "called x"),
        (lambda: BSpline(5, (0, 1), name="x_1") + RaisedCosineLog(3, 1, 0.1, name="x", columns=2), "terms.*called x_1"),
        (lambda: (X + Y) * PHASE, "several terms.*then add"),
        (lambda: RaisedCosineLog(3, 1, 0.1, name="x", columns=2) * PHASE, "several terms"),
        (lambda: product(X), "two or more"),
        (lambda: product(X, Fourier(2, name="f"), isotropic=True), "f is neither"),
        (lambda: product(X, BSpline(5, (0, 1), name="y", order=2, penalty_order=1), isotropic=True), "order=3"),
        (lambda: X.features(), "0 arrays are given.*takes 1"),
        (lambda: X.features(np.zeros((3, 2))), "shape"),
        (lambda: (X + Y).features([0.0], [0.0, 1.0]), "numbers of rows: 1 for the basis 'x', 2"),
        (lambda: (X + Y).axes(), "take terms"),
        (lambda: (X * Y).on_grid([0.0]), "1 axes are given.*has 2"),
        (lambda: Basis.from_dict({"kind": "wavelet"}), "kind is one of bspline"),
        (lambda: Basis.from_dict({"kind": "bspline", "n": 5, "knots": 3}), "has no 'knots'; allowed are n, range"),
        (lambda: Basis.from_dict({"kind": "bspline", "n": 5}), "lacks range, name"),
    ],
)
def test_errors_say_what_is_allowed(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("make", [lambda: X + 3, lambda: X * np.ones(3), lambda: product(X, "y")])
def test_only_bases_are_added_and_multiplied(make):
    with pytest.raises(TypeError, match=r"takes bases of glmfit\.design"):
        make()
