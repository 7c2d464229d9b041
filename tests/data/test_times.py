"""One row per spike: covariates at its time, and the unit that fired."""

import numpy as np
import pynapple as nap
import pytest

from glmfit import SoftmaxGLM, spike_identities


@pytest.fixture
def session(rng):
    t = np.arange(0, 100, 0.05)
    place = nap.TsdFrame(t=t, d=np.column_stack([np.sin(t), np.cos(t)]), columns=["x", "y"])
    spikes = nap.TsGroup({i: nap.Ts(np.sort(rng.uniform(-5, 105, 200))) for i in (7, 2, 11)})
    return spikes, place


def by_hand(spikes, place):
    rows = sorted((t, unit) for unit in spikes for t in spikes[unit].t if place.t[0] <= t <= place.t[-1])
    return np.array([t for t, _ in rows]), np.array([u for _, u in rows])


def test_rows_are_the_spikes_in_order_with_the_nearest_sample(session):
    spikes, place = session
    X, unit = spike_identities(spikes, place)
    t, u = by_hand(spikes, place)
    np.testing.assert_array_equal(X.t, t)
    np.testing.assert_array_equal(unit.t, t)
    np.testing.assert_array_equal(unit.values, u)
    nearest = np.abs(t[:, None] - place.t).argmin(axis=1)
    np.testing.assert_array_equal(X.values, place.values[nearest])
    assert list(X.columns) == ["x", "y"]


def test_linear_covariates_are_interpolated(session):
    spikes, place = session
    X, _ = spike_identities(spikes, place["x"], method="linear")
    t, _ = by_hand(spikes, place)
    np.testing.assert_allclose(X.values[:, 0], np.interp(t, place.t, place.values[:, 0]), atol=1e-12)


def test_spikes_outside_of_epochs_or_far_from_samples_are_dropped(session):
    spikes, place = session
    ep = nap.IntervalSet([10, 50], [20, 60])
    X, _ = spike_identities(spikes, place, ep=ep)
    t, _ = by_hand(spikes, place)
    inside = ((t >= 10) & (t <= 20)) | ((t >= 50) & (t <= 60))
    np.testing.assert_array_equal(X.t, t[inside])
    holes = place[(place.t < 30) | (place.t > 40)]
    holes = nap.TsdFrame(t=holes.t, d=holes.values, time_support=place.time_support)
    X, unit = spike_identities(spikes, holes, max_distance_s=0.1)
    assert not np.any((X.t > 30.1) & (X.t < 39.9))
    assert len(X) == len(unit) == np.sum((t <= 29.95 + 0.1) | (t >= 40.05 - 0.1))


def test_spikes_at_one_time_stay_in_the_order_of_units():
    spikes = nap.TsGroup({5: nap.Ts([1.0, 2.0]), 3: nap.Ts([2.0, 3.0])}, time_support=nap.IntervalSet(0, 5))
    place = nap.Tsd(t=np.arange(5.0), d=np.arange(5.0))
    X, unit = spike_identities(spikes, place)
    assert X.t.tolist() == [1, 2, 2, 3]
    assert X.values.ravel().tolist() == [1, 2, 2, 3]
    assert unit.values.tolist() == [5, 3, 5, 3]


def test_softmax_of_log_rates_is_recovered(rng):
    """If units fire at rates exp(w x + b), the unit that fired follows a softmax with the same w and b."""
    t = np.arange(0, 400, 0.01)
    x = np.sin(t / 3)
    w, b = np.array([1.0, -1.0, 0.3]), np.array([1.0, 0.5, 0.0])
    drawn = rng.poisson(np.exp(np.outer(x, w) + b) * 0.01)
    spikes = nap.TsGroup({i: nap.Ts(t[drawn[:, i] > 0] + 0.001) for i in range(3)})
    X, unit = spike_identities(spikes, nap.Tsd(t=t, d=x))
    model = SoftmaxGLM(regularizer_strength=1e-6).fit(X, unit)
    np.testing.assert_allclose(model.coef_[0], w - w.mean(), atol=0.15)
    np.testing.assert_allclose(model.intercept_, b - b.mean(), atol=0.15)


def test_features_in_ms_give_one_warning(session):
    spikes, place = session
    in_ms = nap.TsdFrame(t=1000 * place.t, d=place.values)
    words = r"all 600 spikes lie within 1\d\d s, but the features span 1e\+05 s.*Divide times in ms by 1000"
    with pytest.warns(UserWarning, match=words) as caught:
        spike_identities(spikes, in_ms)
    assert len(caught) == 1 and caught[0].filename == __file__
    spike_identities(spikes, place, ep=nap.IntervalSet(10, 10.9))  # a short epoch gives no warning
    spike_identities(nap.TsGroup({0: nap.Ts(10 + np.arange(19) / 1000)}), place)  # nor does a burst


def test_bad_input_is_refused(session):
    spikes, place = session
    with pytest.raises(TypeError, match="spikes is a dict"):
        spike_identities({}, place)
    with pytest.raises(TypeError, match="features is a ndarray"):
        spike_identities(spikes, place.values)
    with pytest.raises(TypeError, match="ep is a list"):
        spike_identities(spikes, place, ep=[0, 1])
    with pytest.raises(ValueError, match="method is 'cubic'"):
        spike_identities(spikes, place, method="cubic")
    with pytest.raises(ValueError, match="max_distance_s is 0"):
        spike_identities(spikes, place, max_distance_s=0)
    with pytest.raises(ValueError, match="no spike is left"):
        spike_identities(spikes, place, ep=nap.IntervalSet(2000, 2001))
