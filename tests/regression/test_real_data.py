"""Real recordings: correlated features, silent and busy units, designs that do not have full rank."""

import numpy as np
import pytest
from oracles import population as oracle

from glmfit import PopulationGLM, Status

pytestmark = pytest.mark.realdata


def lagged(signal, n_lags, n_basis):
    """Past of a signal (time, channel) through raised cosines over its lags, (time, channel * n_basis)."""
    lags, centres = np.arange(n_lags), np.linspace(0, n_lags - 1, n_basis)
    width = centres[1] - centres[0]
    basis = 0.5 + 0.5 * np.cos(np.clip((lags[:, None] - centres) * np.pi / (2 * width), -np.pi, np.pi))
    past = np.stack([np.roll(signal, lag, axis=0) for lag in lags], axis=-1)
    return (past @ basis)[n_lags:].reshape(len(signal) - n_lags, -1)


@pytest.fixture(scope="module")
def reach(shared_data):
    """Motor cortex while reaching: lagged position and velocity, counts of 40 neurons in 8 000 bins of 50 ms."""
    with np.load(shared_data / "m1_reach.npz", allow_pickle=False) as file:
        moved = np.concatenate([file["position"], file["velocity"]], axis=1)[:8010].astype(np.float64)
        counts = file["counts"][:8010, ::4][:, :40]
    moved = moved[:, moved.std(axis=0) > 0]
    X = lagged((moved - moved.mean(axis=0)) / moved.std(axis=0), 10, 4)
    return X.astype(np.float32), np.asarray(counts[10:], np.float32)


@pytest.mark.thorough
@pytest.mark.parametrize("link", ["softplus", pytest.param("exp", marks=pytest.mark.slow)])
def test_motor_cortex_converges_certified_and_predicts_held_out_time(reach, link):
    X, Y = reach
    train, test = slice(0, 6000), slice(6000, None)
    model = PopulationGLM(link, regularizer_strength=1e-4, solver_name="SAGA", tol=1e-4).fit(X[train], Y[train])
    report = model.report_
    assert np.all((report.status == Status.CONVERGED) | (report.status == Status.NO_SPIKES))
    assert report.gap_is_bound.mean() > 0.9
    chosen = np.argsort(report.spike_count)[[1, 10, 20, 39]]
    best = oracle.newton(link, X[train], Y[train][:, chosen], 1e-4)
    objective = oracle.objective(
        link, X[train], Y[train][:, chosen], model.coef_[:, chosen], model.intercept_[chosen], strength=1e-4
    )
    gap = objective - best.objective
    assert np.all(gap <= report.target[chosen]) and np.all(gap <= report.gap[chosen] + 1e-14)
    assert model.score(X[test], Y[test]) > 0.02
    assert model.score(X[train], Y[train]) > 0.03


@pytest.fixture(scope="module")
def track(shared_data):
    """Hippocampus on a linear track: one-hot place bins (collinear with the intercept), 31 units, 0.25 s bins."""
    with np.load(shared_data / "linear_track.npz", allow_pickle=False) as file:
        t, xy = file["t"], file["xy"]
        spikes, unit = file["spike_times"], file["unit"]
    edges = np.arange(t[0], t[-1], 0.25)
    place = np.interp(edges[:-1] + 0.125, t, xy[:, 0])
    rank = np.argsort(np.argsort(place, kind="stable"), kind="stable")
    bins = rank * 15 // len(rank)  # the same number of rows in each
    Y = np.stack([np.histogram(spikes[unit == u], edges)[0] for u in np.unique(unit)], axis=1)
    return np.eye(15)[bins], Y.astype(float)


@pytest.mark.thorough
def test_place_cells_on_one_hot_bins_are_fitted_although_bins_sum_to_one(track):
    """Without a penalty the rate in each bin must be the mean count there: an answer known in closed form."""
    X, Y = track
    counts = X.T @ Y / X.sum(axis=0)[:, None]
    everywhere = np.all(counts > 0, axis=0)  # elsewhere the optimum is at infinity
    assert 5 <= everywhere.sum() <= 30
    model = PopulationGLM(regularizer="UnRegularized", tol=1e-9).fit(X, Y[:, everywhere])
    report = model.report_
    assert report.converged.all() and report.gap_is_bound.all()
    np.testing.assert_allclose(model.predict(np.eye(15)), counts[:, everywhere], rtol=0.02, atol=1e-5)


@pytest.mark.thorough
def test_units_with_few_spikes_and_bins_without_any_are_fitted_with_a_ridge(track):
    X, Y = track
    Y = Y[:, np.argsort(Y.sum(axis=0))[[0, 1, 2, 15, 30]]]
    assert Y.sum(axis=0).min() < 50 and np.any(X.T @ Y == 0)
    model = PopulationGLM(regularizer_strength=1e-4, solver_name="SAGA").fit(X, Y)
    best = oracle.newton("softplus", X, Y, 1e-4)
    gap = oracle.objective("softplus", X, Y, model.coef_, model.intercept_, strength=1e-4) - best.objective
    assert model.report_.converged.all()
    assert np.all(gap <= model.report_.target) and np.all(
        (model.report_.gap >= gap - 1e-14) | ~model.report_.gap_is_bound
    )
    assert model.report_.rank == 14
