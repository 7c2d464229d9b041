"""Bases of NeMoS: the features that NeMoS computes, penalties for its knots, and what is refused."""

import copy

import numpy as np
import pytest

from glmfit.design import BSpline, CyclicBSpline, Fourier, RaisedCosineLog, from_nemos

nap = pytest.importorskip("pynapple")
nb = pytest.importorskip("nemos", minversion="0.2.8").basis
pytestmark = pytest.mark.usefixtures("loose_shapes")
BOUNDS = {"bounds": (0.0, 2.0)}
VALUES = [
    nb.BSplineEval(6, label="v", **BOUNDS),
    nb.BSplineEval(5, order=2, label="v"),
    nb.CyclicBSplineEval(7, label="v", **BOUNDS),
    nb.MSplineEval(7, order=4, label="v", **BOUNDS),
    nb.FourierEval(4, label="v", **BOUNDS),
    nb.FourierEval(3, frequency_mask="all", label="v", **BOUNDS),
    nb.RaisedCosineLinearEval(5, label="v", **BOUNDS),
    nb.RaisedCosineLogEval(5, label="v", **BOUNDS),
]
KERNELS = [
    nb.RaisedCosineLinearConv(4, window_size=9, label="h"),
    nb.RaisedCosineLogConv(4, window_size=9, label="h"),
    nb.BSplineConv(5, window_size=9, label="h"),
    nb.CyclicBSplineConv(5, window_size=9, label="h"),
    nb.MSplineConv(5, order=3, window_size=9, label="h"),
]


def named(bases):
    return pytest.mark.parametrize("theirs", bases, ids=lambda basis: f"{type(basis).__name__}{basis.n_basis_funcs}")


def computed(basis, *values):
    """Features that NeMoS computes from values, with a copy because a basis remembers their shapes."""
    return np.asarray(copy.deepcopy(basis).compute_features(*values))


@pytest.mark.thorough
@named(VALUES)
def test_bases_of_values_give_the_features_of_nemos(theirs, rng):
    ours = from_nemos(theirs)
    x = rng.uniform(0, 2, 50)
    x[[3, 7]] = np.nan, 0
    found = ours.features(x)
    np.testing.assert_array_equal(found, computed(theirs, x))
    assert found.dtype == np.float64 and np.isnan(found[3]).all()
    np.testing.assert_array_equal(ours.features(nap.Tsd(np.arange(50) / 10, x)), found)
    assert ours.n_features == found.shape[1] == len(ours.feature_names) and list(ours.terms) == ["v"]
    for S in ours.penalties:
        assert S.shape == (ours.n_features,) * 2 and np.linalg.eigvalsh(S)[0] > -1e-10 * S.max()
    if theirs.bounds is not None:
        (axis,) = ours.axes(5)
        np.testing.assert_array_equal(axis, np.linspace(0, 2, 5))
        np.testing.assert_array_equal(ours.on_grid(axis), computed(theirs, axis))


@pytest.mark.thorough
@named(KERNELS)
def test_bases_of_kernels_give_the_features_of_nemos(theirs, rng):
    ours = from_nemos(theirs, bin_s=0.01)
    signal = rng.poisson(0.5, 60).astype(float)
    np.testing.assert_allclose(ours.features(signal), computed(theirs, signal), rtol=1e-5, atol=1e-5)
    halves = [computed(theirs, part) for part in (signal[:25], signal[25:])]
    np.testing.assert_allclose(ours.features(signal, epochs=[25]), np.concatenate(halves), rtol=1e-5, atol=1e-5)
    (lags,) = ours.axes()
    np.testing.assert_allclose(lags, 0.01 * np.arange(1, 10))
    kernels = theirs.evaluate(np.linspace(0, 1, 9))
    np.testing.assert_allclose(ours.on_grid(lags), kernels, atol=1e-6)
    assert np.isnan(ours.on_grid([0.0, 0.015, 0.1, np.nan])).all()


@pytest.mark.thorough
def test_each_of_several_columns_is_a_term(rng):
    counts, x = rng.poisson(0.5, (50, 2)).astype(float), rng.uniform(0, 2, (50, 2))
    theirs = nb.BSplineEval(5, label="v", **BOUNDS) + nb.RaisedCosineLogConv(3, window_size=5, label="h")
    expected = theirs.compute_features(x, counts)
    ours = from_nemos(theirs)
    np.testing.assert_allclose(ours.features(x, counts), expected, rtol=1e-5, atol=1e-5)
    assert {name: len(term.features) for name, term in ours.terms.items()} == {"v_0": 5, "v_1": 5, "h_0": 3, "h_1": 3}
    with pytest.raises(ValueError, match=r"shape \(50,\)"):
        ours.features(x, counts[:, 0])


def test_sums_and_products_give_the_features_of_nemos(rng):
    x, y, z = rng.uniform(0, 2, (3, 40))
    place = nb.BSplineEval(5, label="x", **BOUNDS) * nb.CyclicBSplineEval(4, label="y", **BOUNDS)
    theirs = place + nb.BSplineEval(6, label="z", **BOUNDS)
    ours = from_nemos(theirs)
    np.testing.assert_allclose(ours.features(x, y, z), computed(theirs, x, y, z), atol=1e-6)
    assert list(ours.terms) == ["(x * y)", "z"] and ours.n_inputs == 3
    own = BSpline(5, (0, 2), name="x") * CyclicBSpline(4, (0, 2), name="y")
    for a, b in zip(ours.terms["(x * y)"].penalties, own.penalties, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-12)
    axes = ours.terms["(x * y)"].basis.axes(4)
    assert ours.terms["(x * y)"].basis.on_grid(*axes).shape == (16, 20)
    assert theirs.input_shape == [None, None, None], "the given basis must not change"
    mixed = ours + BSpline(4, (0, 1), name="own")
    assert mixed.features(x, y, z, x / 2).shape == (40, 30)


@pytest.mark.thorough
def test_a_wave_of_two_inputs_is_penalised_by_its_frequency(rng):
    theirs = nb.FourierEval(3, ndim=2, bounds=[(0.0, 1.0), (0.0, 2.0)], label="grid")
    ours = from_nemos(theirs, penalty_order=1)
    x, y = rng.uniform(0, 1, 30), rng.uniform(0, 2, 30)
    np.testing.assert_array_equal(ours.features(x, y), computed(theirs, x, y))
    strengths = dict(zip(ours.feature_names, ours.penalties[0].diagonal(), strict=True))
    assert strengths["grid_cos1_2"] == strengths["grid_sin1_2"] == 5 and strengths["grid_cos0_1"] == 1
    assert [len(axis) for axis in ours.axes(3)] == [3, 3] and ours.axes(3)[1][-1] == 2
    assert ours.on_grid(*ours.axes(3)).shape == (9, 16)


@pytest.mark.thorough
@pytest.mark.parametrize("order", [0, 1, 2])
def test_penalties_equal_those_of_our_bases(order):
    pairs = [
        (nb.BSplineEval(6, order=3), BSpline(6, (0, 1), name="x", order=3, penalty_order=order)),
        (nb.CyclicBSplineEval(6), CyclicBSpline(6, name="x", penalty_order=order)),
        (nb.RaisedCosineLogConv(4, window_size=9), RaisedCosineLog(4, 0.09, 0.01, name="x", penalty_order=order)),
    ]
    for theirs, ours in pairs:
        np.testing.assert_array_equal(from_nemos(theirs, penalty_order=order).penalties[0], ours.penalties[0])
    waves = from_nemos(nb.FourierEval((1, 4)), penalty_order=order).penalties[0].diagonal()
    np.testing.assert_array_equal(
        np.sort(waves), np.sort(Fourier(3, name="x", penalty_order=order).penalties[0].diagonal())
    )


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [nb.BSplineEval, nb.MSplineEval])
def test_only_straight_lines_are_unpenalised(kind):
    basis = from_nemos(kind(8, order=4, bounds=(1.0, 3.0)))
    values, vectors = np.linalg.eigh(basis.penalties[0])
    assert (values[:2] < 1e-9).all() and values[2] > 1e-4
    x = np.linspace(1, 3, 41)[:-1]  # NeMoS's M-splines are all 0 at the upper end
    free, line = basis.features(x) @ vectors[:, :2], np.stack([np.ones(40), x], axis=1)
    np.testing.assert_allclose(line @ np.linalg.lstsq(line, free, rcond=None)[0], free, atol=1e-5)


def test_default_order_of_the_penalty():
    found = [from_nemos(nb.BSplineEval(5, order=order)).penalty_order for order in (1, 2, 3, 4)]
    assert found == [0, 1, 2, 2]
    assert from_nemos(nb.RaisedCosineLogEval(5)).penalty_order == 0


@pytest.mark.thorough
def test_equal_bases_and_copies_compare_equal():
    one, two = (from_nemos(nb.FourierEval(n, label="v", **BOUNDS)) for n in (3, 4))
    assert one == copy.deepcopy(one) == from_nemos(nb.FourierEval(3, label="v", **BOUNDS)) and hash(one) == hash(one)
    assert one != two and one != from_nemos(nb.FourierEval(3, label="w", **BOUNDS))
    kernel = nb.RaisedCosineLogConv(3, window_size=9)
    assert from_nemos(kernel) == from_nemos(kernel) != from_nemos(kernel, bin_s=0.1)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: from_nemos(3), TypeError, "basis is 3; it must be a basis of NeMoS"),
        (lambda: from_nemos(BSpline(5, (0, 1), name="x")), TypeError, "must be a basis of NeMoS"),
        (lambda: from_nemos(nb.IdentityEval()), TypeError, "IdentityEval, which has no penalty.*BSplineEval"),
        (lambda: from_nemos(nb.BSplineEval(5).to_transformer()), TypeError, "TransformerBasis"),
        (lambda: from_nemos(nb.BSplineEval(5, order=3), penalty_order=3), ValueError, "allows 2 at most"),
        (lambda: from_nemos(nb.BSplineEval(5), penalty_order=-1), ValueError, "penalty_order is -1"),
        (lambda: from_nemos(KERNELS[0], bin_s=0), ValueError, "bin_s is 0"),
        (lambda: from_nemos(nb.RaisedCosineLogConv(3, 9, conv_kwargs={"shift": False})), ValueError, "causal"),
        (lambda: from_nemos(nb.BSplineEval(5)).axes(), ValueError, "has no bounds"),
        (lambda: from_nemos(nb.BSplineEval(5)).on_grid([0.0, 1.0]), ValueError, "has no bounds"),
        (lambda: from_nemos(nb.BSplineEval(5)).to_dict(), TypeError, "cannot be written"),
        (lambda: from_nemos(nb.BSplineEval(5)).features(np.zeros((4, 2))), ValueError, r"set_input_shape\(2\)"),
        (lambda: BSpline(5, (0, 1), name="x") + KERNELS[0], TypeError, "from_nemos"),
    ],
)
def test_unsupported_bases_are_refused_with_the_reason(make, error, message):
    with pytest.raises(error, match=message):
        make()
