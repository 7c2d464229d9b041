"""NeMoS models fitted by passes over a loader: steps and proofs of all rows, whatever their order."""

import inspect
import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

nmo = pytest.importorskip("nemos", minversion="0.2.8")

from glmfit import Status  # noqa: E402
from glmfit.plugins.nemos import SAGA, NonlinearCG  # noqa: E402

T, D, N = 1500, 4, 3
LINKS = {
    "Poisson": jax.nn.softplus,
    "Bernoulli": None,
    "Gaussian": None,
    "Gamma": jnp.exp,
    "NegativeBinomial": jnp.exp,
}
STRENGTHS = {"UnRegularized": None, "Ridge": 0.02, "Lasso": 0.02, "ElasticNet": (0.03, 0.4)}


@pytest.fixture(autouse=True)
def ordinary_jax():
    """Allow the broadcasting of NeMoS, and ignore its known warnings."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.filterwarnings("ignore", message="JAXopt is no longer maintained")
        warnings.filterwarnings("ignore", message="Mask has not been set")
        warnings.filterwarnings("ignore", message="FeaturePytree is deprecated")
        yield


def data(kind="Poisson", seed=0):
    rng = np.random.default_rng([seed, 9])
    X = rng.normal(size=(T, D)) * [1, 0.3, 1, 2] + [0, 3, 0, 0]
    X[:, 2] += 2 * X[:, 0]
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(D, N)) * 0.2 - 0.5
    if kind in ("Poisson", "NegativeBinomial"):
        return X, rng.poisson(np.logaddexp(0, eta)).astype(float)
    if kind == "Bernoulli":
        return X, (rng.random((T, N)) < 1 / (1 + np.exp(-eta))).astype(float)
    return X, rng.gamma(2.0, np.exp(eta) / 2) + 1e-3 if kind == "Gamma" else 2 + eta + 0.3 * rng.normal(size=(T, N))


class Loader:
    """Batches of rows in a new order in every pass."""

    def __init__(self, X, Y, size=200, seed=0):
        self.X, self.Y, self.size, self.rng, self.n_samples = X, Y, size, np.random.default_rng(seed), len(Y)
        self.n_passes = 0

    def sample_batch(self):
        return jax.tree.map(lambda a: jnp.asarray(a[: self.size]), (self.X, self.Y))

    def order(self):
        return self.rng.permutation(self.n_samples)

    def __iter__(self):
        self.n_passes += 1
        order = self.order()
        for i in range(0, len(order), self.size):
            yield jax.tree.map(lambda a, at=order[i : i + self.size]: jnp.asarray(a[at]), (self.X, self.Y))


def make(kind="Poisson", regularizer="Ridge", **parameters):
    strength = STRENGTHS[regularizer]
    more = {} if strength is None else {"regularizer_strength": strength}
    return nmo.glm.PopulationGLM(
        observation_model=kind, inverse_link_function=LINKS[kind], regularizer=regularizer, **more, **parameters
    )


def solver_of(model, sample, kind=SAGA, **options):
    """Solver and initial parameters, as NeMoS makes them; masked features are 0."""
    model.solver_name = f"{kind.__name__}[glmfit]"
    X, y = sample
    start = model._model_specific_initialization(X, y)
    loss = model._compute_loss
    return kind(loss, model.regularizer, model.regularizer_strength, False, init_params=start, **options), start


def fit(model, loader, n_passes=30, kind=SAGA, tol=None, **more):
    solver, start = solver_of(model, loader.sample_batch(), kind, tol=tol)
    params, state, aux = solver.stochastic_run(start, loader, n_passes=n_passes, **more)
    assert aux is None and loader.n_passes <= n_passes
    return params, state


def objective(model, params, X, Y):
    penalised = model.regularizer.penalized_loss(
        model._compute_loss, params=params, strength=model.regularizer_strength
    )
    return float(penalised(params, jnp.asarray(X), jnp.asarray(Y)))


def _slow(names, first):
    """Names, with all but the first ones marked slow."""
    return [*names[:first], *(pytest.param(name, marks=pytest.mark.slow) for name in names[first:])]


@pytest.mark.thorough
@pytest.mark.parametrize("kind", _slow([*LINKS], 1))
@pytest.mark.parametrize("regularizer", _slow(["Ridge", "Lasso", "UnRegularized", "ElasticNet"], 2))
def test_gaps_are_bounds_whatever_the_order(kind, regularizer, x64):
    X, Y = data(kind)
    model = make(kind, regularizer)
    params, state = fit(model, Loader(X, Y))
    assert state.route == "certified" and state.converged and state.report.gap_is_bound.all()
    best = make(kind, regularizer, solver_name="SAGA[glmfit]", solver_kwargs={"tol": 1e-7}).fit(X, Y)
    found, least = objective(model, params, X, Y), float(best.solver_state_.function_val)
    np.testing.assert_allclose(float(state.function_val), found, rtol=1e-12)
    assert -1e-13 <= found - least <= state.report.gap.sum() + 1e-13
    assert np.all(state.report.gap <= 1e-6 * 10) and int(state.num_steps) <= 12
    np.testing.assert_allclose(state.report.spike_count, Y.sum(axis=0))
    assert state.report.n_rows == T


@pytest.mark.thorough
def test_single_precision_is_proved_at_the_returned_parameters():
    X, Y = data()
    model = make()
    params, state = fit(model, Loader(X.astype(np.float32), Y.astype(np.float32)))
    assert params.coef.dtype == jnp.float32 and state.converged
    with jax.enable_x64(True):
        exact = jax.tree.map(lambda a: jnp.asarray(a, float), params)
        best = make(solver_name="SAGA[glmfit]", solver_kwargs={"tol": 1e-8}).fit(X.astype(np.float32), Y)
        found = objective(make(), exact, X.astype(np.float32), Y)
    assert found - float(best.solver_state_.function_val) <= state.report.gap.sum() + 1e-9


@pytest.mark.thorough
def test_masks_and_dictionaries_of_features(x64):
    X, Y = data()
    tree = nmo.pytrees.FeaturePytree(first=X[:, :1], rest=X[:, 1:])
    mask = {"first": np.array([1.0, 0.0, 1.0]), "rest": np.array([1.0, 1.0, 0.0])}
    model = make(feature_mask=jax.tree.map(jnp.asarray, mask))
    whole = make(feature_mask=jax.tree.map(jnp.asarray, mask), solver_name="SAGA[glmfit]", solver_kwargs={"tol": 1e-7})
    whole.fit(tree, Y)
    model._feature_mask = whole._feature_mask
    solver, start = solver_of(model, Loader(tree, Y).sample_batch(), tol=1e-6)
    rows = Loader({"first": X[:, :1], "rest": X[:, 1:]}, Y)
    params, state, _ = solver.stochastic_run(start, rows, 30)
    assert state.converged
    for name in ("first", "rest"):
        np.testing.assert_allclose(params.coef[name], whole.coef_[name], atol=1e-5)
    assert not np.any(params.coef["first"][:, 1]) and not np.any(params.coef["rest"][:, 2])


def test_first_step_starts_at_the_given_parameters(x64):
    X, Y = data()
    model, loader = make(), Loader(X, Y)
    best, _ = fit(model, loader, tol=1e-7)
    solver, _ = solver_of(model, loader.sample_batch(), NonlinearCG)
    again, state, _ = solver.stochastic_run(best, Loader(X, Y), 2)
    assert state.converged and int(state.num_steps) == 2  # one pass over the data, and the proof
    np.testing.assert_array_equal(again.coef, best.coef)
    bad = jax.tree.map(lambda a: a + 50.0, best)
    found, state, _ = solver.stochastic_run(bad, Loader(X, Y), 30)
    assert state.converged and objective(model, found, X, Y) <= objective(model, best, X, Y) + 1e-5


def test_budget_is_respected_and_reported(x64):
    X, Y = data()
    loader = Loader(X, Y)
    params, state = fit(make(), loader, n_passes=1)
    assert loader.n_passes == 1 and not state.converged and state.reached_max_steps
    assert (state.report.status == Status.MAX_EPOCHS).all() and np.isnan(state.report.gap).all()
    assert np.any(params.coef)  # the fit to some rows
    _, state = fit(make(), Loader(X, Y), n_passes=2, tol=1e-8)
    assert int(state.num_steps) == 2 and not state.converged and state.report.gap_is_bound.all()
    with pytest.raises(ValueError, match="at least 1"):
        fit(make(), Loader(X, Y), n_passes=0)


class Less(Loader):
    def order(self):
        return super().order()[:-100] if self.n_passes > 1 else super().order()


class Drawn(Loader):
    def order(self):
        return self.rng.integers(self.n_samples, size=self.n_samples)


class Changed(Loader):
    """Rows whose features do not belong to their responses after the first pass."""

    def __iter__(self):
        if self.n_passes:
            self.X = self.X[self.rng.permutation(self.n_samples)]
        return super().__iter__()


class Once(Loader):
    def order(self):
        return super().order() if self.n_passes == 1 else np.zeros(0, int)


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [Less, Drawn, Changed, Once])
def test_passes_over_different_rows_are_refused(kind):
    X, Y = data()
    with pytest.raises(ValueError, match="must give the same rows"):
        fit(make(), kind(X, Y))


def test_responses_that_the_model_cannot_have_are_refused():
    X, Y = data()
    Y[-1, 0] = -1
    with pytest.raises(ValueError, match="a batch of the loader has -1"):
        fit(make(), Loader(X, Y))
    X[-1, 0], Y[-1, 0] = np.inf, 0
    with pytest.raises(ValueError, match="finite features"):
        fit(make(), Loader(X, Y))


@pytest.mark.thorough
def test_batches_may_have_one_row_or_none_and_loaders_no_count(x64):
    X, Y = (a[:150] for a in data())
    expected, _ = fit(make(), Loader(X, Y))

    class Odd(Loader):
        def __iter__(self):
            yield jax.tree.map(lambda a: jnp.asarray(a[:0]), (self.X, self.Y))
            yield from super().__iter__()

    for n_samples in (None, 10**9):
        solver, start = solver_of(make(), Loader(X, Y).sample_batch())
        loader = Odd(X, Y, size=1)
        loader.n_samples, loader.order = n_samples, lambda: np.random.default_rng(0).permutation(150)
        params, state, _ = solver.stochastic_run(start, loader, 20)
        assert state.route == "certified" and state.converged
        np.testing.assert_allclose(params.coef, expected.coef, atol=3e-3)


@pytest.mark.parametrize("kind", ["Poisson", "Gaussian"])
def test_a_loader_without_rows_is_refused(kind):
    X, Y = data()
    model = make() if kind == "Poisson" else make("Gaussian")
    if kind == "Gaussian":
        model.inverse_link_function = jax.nn.softplus  # not a known model
    solver, start = solver_of(model, Loader(X, Y).sample_batch())
    empty = Loader(X, Y)
    empty.order = lambda: np.zeros(0, int)
    with pytest.raises(ValueError, match="gave no rows"):
        solver.stochastic_run(start, empty, 5)


def test_the_smaller_of_both_budgets_counts(x64):
    X, Y = data()
    solver, start = solver_of(make(), Loader(X, Y).sample_batch(), maxiter=2, tol=1e-8)
    _, state, _ = solver.stochastic_run(start, Loader(X, Y), 30)
    assert int(state.num_steps) == 2


class Told:
    """Callback that records its events, and requests a stop at one of them."""

    def __init__(self, stop_at=None):
        self.events, self.stop_at, self.losses = [], stop_at, []

    def __getattr__(self, name):
        if not name.startswith("on_"):
            raise AttributeError(name)

        def hook(ctx):
            event = (name[3:], ctx.epoch_idx, ctx.batch_idx)
            self.events.append(event)
            if name == "on_epoch_end":
                self.losses.append(float(ctx.state.function_val))
            ctx.should_stop = ctx.should_stop or event == self.stop_at

        return hook


def context():
    return SimpleNamespace(epoch_idx=None, batch_idx=None, should_stop=False, params=None, state=None)


def test_callbacks_are_called_for_passes_and_batches(x64):
    X, Y = data()
    told, ctx = Told(), context()
    params, state = fit(make(), Loader(X, Y, size=600), callback=told, ctx=ctx)
    names = [name for name, *_ in told.events]
    one = ["epoch_begin", *["batch_begin", "batch_end"] * 3, "epoch_end"]
    assert names == ["train_begin", *one * int(state.num_steps), "train_end"]
    assert np.isnan(told.losses[0]) and np.all(np.diff(told.losses[1:]) <= 1e-12)
    np.testing.assert_array_equal(ctx.params.coef, params.coef)


@pytest.mark.parametrize("event", [("epoch_end", 1, 2), ("batch_end", 2, 0)])
def test_callback_may_stop_the_fit_and_the_result_is_kept(event, x64):
    X, Y = data()
    told = Told(event)
    params, state = fit(make(), Loader(X, Y, size=600), callback=told, ctx=context(), tol=1e-12)
    assert told.events[-2:] == [event, ("train_end", *event[1:])]
    assert np.isfinite(float(state.function_val)) and int(state.num_steps) == 2
    np.testing.assert_allclose(objective(make(), params, X, Y), float(state.function_val), rtol=1e-12)


@pytest.mark.thorough
def test_unknown_loss_decreases_and_is_not_proved(x64):
    X, Y = data("Gaussian")
    model = nmo.glm.PopulationGLM(
        observation_model="Gaussian", inverse_link_function=jax.nn.softplus, regularizer="Lasso",
        regularizer_strength=0.02,
    )  # fmt: skip
    told = Told()
    params, state = fit(model, Loader(X, Y), n_passes=60, callback=told, ctx=context())
    assert state.route == "proximal" and not state.converged
    assert np.all(np.diff(told.losses) <= 1e-12)
    best = model.set_params(solver_name="ProximalGradient", solver_kwargs={"tol": 1e-7, "maxiter": 50_000}).fit(X, Y)
    least = float(best.compute_loss((best.coef_, best.intercept_), X, Y)) + 0.02 * np.abs(best.coef_).sum()
    null = float(np.mean(np.var(Y, axis=0)) * N)
    assert objective(model, params, X, Y) - least <= 0.2 * null


def _budget(model):
    """Name that this NeMoS has for the number of passes."""
    return next(
        name for name in inspect.signature(model.stochastic_fit).parameters if name in ("num_epochs", "n_passes")
    )


@pytest.mark.skipif(not hasattr(nmo.glm.GLM, "stochastic_fit"), reason="this NeMoS has no stochastic_fit")
def test_nemos_fits_stochastically_with_each_of_our_solvers():
    from nemos.batching import ArrayDataLoader

    X, Y = data()
    loader = ArrayDataLoader(X, Y, batch_size=100, shuffle=True)
    for name in ("SAGA", "Newton", "NonlinearCG"):
        model = make(solver_name=f"{name}[glmfit]")
        model.stochastic_fit(loader, **{_budget(model): 20})
        assert model.solver_state_.converged and model.solver_state_.solver == "Newton"
        whole = make(solver_name=f"{name}[glmfit]").fit(X, Y)
        np.testing.assert_allclose(model.coef_, whole.coef_, atol=2e-3)
