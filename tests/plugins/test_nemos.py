"""NeMoS models fitted by glmfit, against the real NeMoS."""

import contextlib
import copy
import gc
import importlib
import pickle
import subprocess
import sys
import warnings
import weakref

import cloudpickle
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import recording
from scipy.optimize import minimize
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline

nmo = pytest.importorskip("nemos", minversion="0.2.8")

from glmfit import PopulationGLM, SoftmaxGLM, Status  # noqa: E402
from glmfit.compilation import compiled_programs  # noqa: E402
from glmfit.estimators import FitReport  # noqa: E402
from glmfit.plugins.nemos import registry  # noqa: E402
from glmfit.plugins.nemos import solver as plugin  # noqa: E402

T, D, N, K = 400, 4, 2, 3
NAME = "SAGA[glmfit]"
MODELS = {
    "GLM": (nmo.glm.GLM, {}),
    "PopulationGLM": (nmo.glm.PopulationGLM, {}),
    "ClassifierGLM": (nmo.glm.ClassifierGLM, {"n_classes": K}),
    "ClassifierPopulationGLM": (nmo.glm.ClassifierPopulationGLM, {"n_classes": K}),
}
STRENGTHS = {"UnRegularized": None, "Ridge": 0.02, "Lasso": 0.02, "ElasticNet": (0.03, 0.4), "GroupLasso": 0.02}
OBSERVATIONS = {
    ("Poisson", "softplus"): "certified",
    ("Poisson", "exp"): "certified",
    ("Bernoulli", "logistic"): "certified",
    ("Bernoulli", "norm.cdf"): "table",
    ("Gaussian", "identity"): "certified",
    ("Gaussian", "softplus"): "table",
    ("Gamma", "exp"): "certified",
    ("NegativeBinomial", "exp"): "certified",
    ("NegativeBinomial", "softplus"): "table",
}


@pytest.fixture(autouse=True)
def ordinary_jax():
    """Allow the broadcasting of NeMoS, and ignore its known warnings."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.filterwarnings("ignore", message="Mask has not been set")
        warnings.filterwarnings("ignore", message="JAXopt is no longer maintained")
        yield


def data(kind="Poisson", seed=0):
    """Features, and targets of N units that depend on them."""
    rng = np.random.default_rng([seed, 5])
    X, _ = recording(seed=seed, t=T, d=D, n=N)
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(D, N)) * 0.4
    if kind == "Poisson" or kind == "NegativeBinomial":
        return X, rng.poisson(np.logaddexp(0, eta) * rng.gamma(2, 0.5, (T, 1))).astype(float)
    if kind == "Bernoulli":
        return X, (rng.random((T, N)) < 1 / (1 + np.exp(-eta))).astype(float)
    if kind == "Gamma":
        return X, rng.gamma(2.0, np.exp(eta) / 2) + 1e-3
    if kind == "Gaussian":
        return X, 2 + eta + 0.3 * rng.normal(size=(T, N))
    scores = (X - X.mean(axis=0)) @ rng.normal(size=(D, N * K)) * 0.4 + rng.gumbel(size=(T, N * K))
    return X, scores.reshape(T, N, K).argmax(axis=-1)


def make(model="PopulationGLM", regularizer="Ridge", solver=NAME, groups=None, strength=None, **parameters):
    cls, needed = MODELS[model]
    if regularizer == "GroupLasso":
        regularizer = nmo.regularizer.GroupLasso(mask=groups)
    name = regularizer if isinstance(regularizer, str) else type(regularizer).__name__
    strength = STRENGTHS[name] if strength is None else strength
    with_strength = {} if strength is None else {"regularizer_strength": strength}
    kwargs = parameters.pop("solver_kwargs", {})
    return cls(
        regularizer=regularizer, solver_name=solver, solver_kwargs=kwargs, **needed, **with_strength, **parameters
    )


def of_units(Y, model):
    return Y if "Population" in model else Y[:, 0]


def groups_of(model):
    """First two and last two features of every output, one output after the other."""
    out = {"GLM": (), "PopulationGLM": (N,), "ClassifierGLM": (K,), "ClassifierPopulationGLM": (N, K)}[model]
    n = int(np.prod(out, dtype=int))
    mask = np.zeros((2 * n, D, n))
    for column in range(n):
        mask[2 * column, :2, column] = 1
        mask[2 * column + 1, 2:, column] = 1
    return mask.reshape(2 * n, D, *out)


def penalised(model, X, Y):
    """NeMoS's own penalised loss at a fitted model."""
    params = model._get_model_params()
    loss = model.regularizer.penalized_loss(model._compute_loss, params=params, strength=model.regularizer_strength)
    return float(loss(params, *model._preprocess_inputs(X, Y)))


def best_of_nemos(model, X, Y, steps=100_000):
    """The same model fitted by NeMoS itself, as far as possible."""
    smooth = type(model.regularizer).__name__ in ("UnRegularized", "Ridge")
    best = clone(model).set_params(solver_kwargs={})
    best.set_params(solver_name="LBFGS" if smooth else "ProximalGradient")
    best.set_params(solver_kwargs={"tol": 1e-12, "maxiter": steps})
    if getattr(model, "feature_mask", None) is not None and best.feature_mask is None:
        best.feature_mask = model.feature_mask
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        return best.fit(X, Y)


def told(proved):
    """Expect NeMoS's warning if nothing proves the gap."""
    return contextlib.nullcontext() if proved else pytest.warns(RuntimeWarning, match="did not converge")


def assert_close(state, proved):
    """Check that the gap is proved to be below the target, or else is reported as unproved and not converged."""
    assert bool(state.stats.converged) == proved
    assert np.all(state.certificate.status == (Status.CONVERGED if proved else Status.UNPROVED))


def assert_same_answer(model, X, Y, atol=1e-5):
    best = best_of_nemos(model, X, Y)
    for ours, theirs in zip(
        jax.tree.leaves((model.coef_, model.intercept_)), jax.tree.leaves((best.coef_, best.intercept_)), strict=True
    ):
        np.testing.assert_allclose(ours, theirs, atol=atol * max(1.0, float(jnp.abs(theirs).max())))
    assert penalised(model, X, Y) <= penalised(best, X, Y) + 1e-10


# ------------------------------------------------------------------------- the answer


@pytest.mark.thorough(cases=6)
@pytest.mark.parametrize("regularizer", STRENGTHS)
@pytest.mark.parametrize("model, link", [("GLM", "softplus"), ("PopulationGLM", "exp"),
                                         pytest.param("ClassifierGLM", None, marks=pytest.mark.slow),
                                         ("ClassifierPopulationGLM", None)])  # fmt: skip
def test_coefficients_equal_those_of_nemos_at_convergence(model, link, regularizer, x64):
    X, Y = data("classes" if "Classifier" in model else "Poisson")
    Y = of_units(Y, model)
    parameters = {} if link is None else {"inverse_link_function": link}
    ours = make(model, regularizer, groups=groups_of(model), solver_kwargs={"tol": 1e-8}, **parameters)
    # Nothing is proved for penalties with kinks on coupled classes.
    proved = link is not None or regularizer in ("UnRegularized", "Ridge")
    with told(proved):
        ours.fit(X, Y)
    state = ours.solver_state_
    assert state.route == ("certified" if proved else "table")
    assert bool(state.stats.converged) == proved and state.certificate.gap.sum() < 1e-7
    assert_same_answer(ours, X, Y)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize(
    "kind, link",
    [pytest.param(*key, marks=pytest.mark.slow if key[0] == "NegativeBinomial" else ()) for key in OBSERVATIONS],
)
def test_every_observation_model_and_link_is_fitted(kind, link, x64):
    X, Y = data(kind)
    observation = getattr(nmo.observation_models, f"{kind}Observations")()
    ours = make(observation_model=observation, inverse_link_function=link, solver_kwargs={"tol": 1e-8})
    proved = OBSERVATIONS[kind, link] == "certified"
    with told(proved):
        ours.fit(X, Y)
    assert ours.solver_state_.route == OBSERVATIONS[kind, link]
    assert_close(ours.solver_state_, proved)
    assert_same_answer(ours, X, Y)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", "GroupLasso"])
@pytest.mark.parametrize("kind", [pytest.param("Poisson", marks=pytest.mark.slow), "Bernoulli"])
def test_masked_coefficients_stay_zero(regularizer, kind, x64):
    X, Y = data(kind)
    mask = np.array([[1, 0], [1, 1], [0, 1], [1, 1]])
    observation = getattr(nmo.observation_models, f"{kind}Observations")()
    ours = make(regularizer=regularizer, groups=groups_of("PopulationGLM"), observation_model=observation,
                feature_mask=mask, solver_kwargs={"tol": 1e-8})  # fmt: skip
    ours.fit(X, Y)
    assert_close(ours.solver_state_, proved=True)
    assert np.all(np.asarray(ours.coef_)[mask == 0] == 0)
    assert_same_answer(ours, X, Y)


@pytest.mark.slow
def test_a_unit_without_any_feature_gets_its_mean_rate(x64):
    X, Y = data()
    ours = make(feature_mask=np.array([[1, 0]] * D), inverse_link_function="exp").fit(X, Y)
    assert np.all(np.asarray(ours.coef_)[:, 1] == 0)
    np.testing.assert_allclose(np.exp(ours.intercept_[1]), Y[:, 1].mean(), rtol=1e-5)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso", pytest.param("ElasticNet", marks=pytest.mark.slow)])
def test_strengths_per_coefficient(regularizer, x64):
    X, Y = data()
    strength = np.outer([0.0, 0.01, 0.03, 0.1], [1.0, 2.0])
    given = (strength, 0.3) if regularizer == "ElasticNet" else strength
    ours = make(regularizer=regularizer, strength=given, solver_kwargs={"tol": 1e-8}).fit(X, Y)
    assert ours.solver_state_.route == "certified" and ours.solver_state_.stats.converged
    assert_same_answer(ours, X, Y)


@pytest.mark.slow
def test_strengths_per_group(x64):
    X, Y = data()
    ours = make(regularizer="GroupLasso", groups=groups_of("PopulationGLM"), strength=np.array([0.0, 0.01, 0.02, 0.1]),
                solver_kwargs={"tol": 1e-8}).fit(X, Y)  # fmt: skip
    assert ours.solver_state_.route == "certified" and ours.solver_state_.stats.converged
    assert_same_answer(ours, X, Y)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["PopulationGLM", "ClassifierGLM"])
def test_features_in_a_dict_give_the_same_fit(model):
    X, Y = data("classes" if "Classifier" in model else "Poisson")
    Y = of_units(Y, model)
    has_type_of_its_own = nmo.__version__ == "0.2.8"  # newer versions take a dict
    features = nmo.pytrees.FeaturePytree if has_type_of_its_own else dict
    tree = features(position=X[:, :3], speed=X[:, 3:])
    whole, parts = make(model).fit(X, Y), make(model).fit(tree, Y)
    assert parts.solver_state_.route == whole.solver_state_.route
    assert set(parts.coef_) == {"position", "speed"}
    np.testing.assert_array_equal(jnp.concatenate([parts.coef_["position"], parts.coef_["speed"]]), whole.coef_)


@pytest.mark.thorough
def test_fit_through_nemos_equals_the_fit_of_glmfit():
    X, Y = (a.astype(np.float32) for a in data())
    ours = make(inverse_link_function="softplus", solver_kwargs={"tol": 1e-10}).fit(X, Y)
    alone = PopulationGLM(regularizer_strength=STRENGTHS["Ridge"], tol=1e-10).fit(X, Y)
    np.testing.assert_allclose(ours.coef_, alone.coef_, atol=1e-4)  # starts are rounded differently
    certificate = ours.solver_state_.certificate
    assert np.all(np.maximum(certificate.gap, alone.report_.gap) < 1e-8)
    assert certificate.gap_is_bound.all() and np.all(certificate.status == Status.CONVERGED)


# ------------------------------------------------------------------------- where NeMoS's SVRG goes wrong


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    "X, strength",
    [("small", 1e-6), ("opposite", 0.01), ("plain", 100.0)],
    ids=["features of scale 0.01", "columns (a, -a)", "ridge of strength 100"],
)
def test_fit_is_right_where_svrg_takes_a_wrong_step(X, strength, x64):
    """SVRG ends at loss 28 instead of 0.66, or with NaN, or diverges (measured on NeMoS 0.2.8)."""
    rng = np.random.default_rng(0)
    a = rng.normal(size=(T, 2))
    design = {"small": 0.01 * a, "opposite": np.column_stack([a[:, 0], -a[:, 0]]), "plain": a}[X]
    y = rng.poisson(np.logaddexp(0, a[:, 0]))
    ours = make("GLM", strength=strength, inverse_link_function="softplus", solver_kwargs={"tol": 1e-8}).fit(design, y)
    assert ours.solver_state_.stats.converged
    assert_same_answer(ours, design, y, atol=2e-4 if X == "small" else 1e-5)


# ------------------------------------------------------------------------- three routes


class Odd:
    """Parameters that are not those of a linear model."""


def quadratic(params, X, y):
    return jnp.mean((X @ params["w"] - y) ** 2)


@pytest.mark.thorough
def test_loss_that_is_not_a_linear_model_takes_the_proximal_route(x64):
    X, Y = data("Gaussian")
    solver = plugin.SAGA(quadratic, nmo.regularizer.Ridge(), 0.1, False, tol=1e-12)
    params, state, aux = solver.run({"w": jnp.zeros(D)}, jnp.asarray(X), jnp.asarray(Y[:, 0]))
    exact = np.linalg.solve(2 * X.T @ X / T + 0.1 * np.eye(D), 2 * X.T @ Y[:, 0] / T)
    assert state.route == "proximal" and not state.stats.converged and aux is None and state.certificate is None
    np.testing.assert_allclose(params["w"], exact, atol=1e-9)


@pytest.mark.slow
def test_closure_over_a_model_is_recognised_as_a_linear_model(x64):
    X, Y = data("Bernoulli")
    model = make(observation_model="Bernoulli").fit(X, Y)
    loss = model._compute_loss
    start = jax.tree.map(jnp.zeros_like, model._get_model_params())
    solver = plugin.SAGA(lambda p, X, y: loss(p, X, y), model.regularizer, STRENGTHS["Ridge"], False, tol=1e-8)
    params, state, _ = solver.run(start, jnp.asarray(X), jnp.asarray(Y))
    assert state.route == "table"
    assert_close(state, proved=False)
    best = best_of_nemos(model, X, Y)
    np.testing.assert_allclose(params.coef, best.coef_, atol=1e-5)


@pytest.mark.slow
def test_loss_that_only_looks_like_that_of_a_model_is_detected(x64):
    """Twice the loss, or a sum instead of a mean, is never taken for the loss of the model."""
    X, Y = (jnp.asarray(a) for a in data())
    model = make(inverse_link_function="softplus").fit(X, Y)
    start = jax.tree.map(jnp.zeros_like, model._get_model_params())

    class Disguise:
        observation_model, inverse_link_function = model.observation_model, staticmethod(model.inverse_link_function)

        def __init__(self, change):
            self.change = change

        def loss(self, params, X, y):
            return self.change(params, X, y)

    changes = {
        "table": lambda p, X, y: 2 * model._compute_loss(p, X, y),
        "proximal": lambda p, X, y: len(y) * model._compute_loss(p, X, y) / T,
    }
    for route, change in changes.items():
        solver = plugin.SAGA(Disguise(change).loss, model.regularizer, STRENGTHS["Ridge"], False, tol=1e-10)
        params, state, _ = solver.run(start, X, Y)
        total = lambda p, change=change: change(p, X, Y) + STRENGTHS["Ridge"] / 2 * jnp.sum(p.coef**2)  # noqa: E731
        assert state.route == route and not state.stats.converged
        for leaf in jax.tree.leaves(jax.grad(total)(params)):
            np.testing.assert_allclose(leaf, 0, atol=2e-5)


def softplus(x):
    """A user's own link with a well-known name, which differs from that link above 2."""
    return jnp.where(x < 2, jax.nn.softplus(x), jax.nn.softplus(2.0) * (1 + 0.1 * jnp.tanh(x - 2)))


@pytest.mark.slow
def test_link_is_recognised_by_its_function_not_by_its_name():
    X, Y = data()
    with told(proved=False):
        ours = make("GLM", inverse_link_function=softplus, strength=1e-4).fit(4 * X, Y[:, 0])
    assert ours.solver_state_.route == "table" and not ours.solver_state_.certificate.gap_is_bound.any()
    np.testing.assert_allclose(ours.solver_state_.stats.function_val, penalised(ours, 4 * X, Y[:, 0]), rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_link_is_recognised_in_another_process(link):
    """Functions of jax arrive there as copies: joblib workers once took the table route for a Poisson model."""
    X, Y = data()
    model = pickle.loads(cloudpickle.dumps(make("GLM", inverse_link_function=link)))
    assert model.fit(X, Y[:, 0]).solver_state_.route == "certified"


class Penalising(nmo.glm.GLM):
    """A model with its own penalty in the loss, too small to be seen on a few rows."""

    def _compute_loss(self, params, X, y, *args, **kwargs):
        return super()._compute_loss(params, X, y, *args, **kwargs) + 10 * jnp.sum(params.coef**2)


class Weighting(nmo.glm.GLM):
    """A model whose loss takes exactly T rows."""

    def _compute_loss(self, params, X, y, *args, **kwargs):
        rate = self._predict(params, X)
        return jnp.mean(jnp.linspace(0.5, 1.5, T) * (rate - y * jnp.log(rate)))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", [Penalising, Weighting])
def test_loss_changed_in_a_subclass_is_minimised_as_changed(kind):
    rng = np.random.default_rng(0)
    X = 30 * rng.normal(size=(T, D))
    y = rng.poisson(np.exp(0.02 * X[:, 0]))
    with told(proved=False):
        model = kind(regularizer="UnRegularized", solver_name=NAME, solver_kwargs={"tol": 1e-3}).fit(X, y)
    assert model.solver_state_.route == "proximal"
    np.testing.assert_allclose(model.solver_state_.stats.function_val, penalised(model, X, y), rtol=1e-5)


FLOOR = {"rate": 0.1}


def floored(x):
    """A link that reads a global number."""
    return jnp.exp(x) + FLOOR["rate"]


@pytest.mark.slow
def test_compiled_code_does_not_keep_old_values_that_a_custom_link_reads(monkeypatch, x64):
    X, Y = data()
    Y = Y + 2  # every mean can be reached
    for rate in (0.1, 1.0):
        monkeypatch.setitem(FLOOR, "rate", rate)
        with told(proved=False):
            model = make("GLM", inverse_link_function=floored).fit(X, Y[:, 0])
        np.testing.assert_allclose(model.solver_state_.stats.function_val, penalised(model, X, Y[:, 0]), rtol=1e-5)


@pytest.mark.thorough
def test_a_run_under_jit_is_traced(x64):
    X, Y = (jnp.asarray(a) for a in data("Gaussian"))
    solver = plugin.SAGA(quadratic, nmo.regularizer.Ridge(), 0.1, False, tol=1e-12)
    params, state, _ = jax.jit(solver.run)({"w": jnp.zeros(D)}, X, Y[:, 0])
    alone, alone_state, _ = solver.run({"w": jnp.zeros(D)}, X, Y[:, 0])
    assert state.converged and not alone_state.converged  # traced code cannot warn
    assert (state.solver, alone_state.solver) == ("Newton", "proximal gradient")
    np.testing.assert_allclose(params["w"], alone["w"], atol=1e-10)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_traced_run_takes_newton_steps_that_descend(dtype, x64):
    rng = np.random.default_rng(0)
    X = jnp.asarray(rng.normal(size=(200, 5)) * [1, 10, 0.1, 1, 1], dtype)
    y = jnp.asarray(rng.poisson(np.exp(np.clip(X @ np.array([1, 0.2, 3, -1, 0]), -5, 3))), dtype)

    def loss(p, X, y):
        eta = X @ p["w"]
        return jnp.mean(jnp.exp(eta) - y * eta)

    solver = plugin.SAGA(loss, nmo.regularizer.Ridge(), 1e-3, False, tol=1e-6 if dtype == np.float32 else 1e-12)
    start = {"w": jnp.full(5, -2.0, dtype)}  # a full step from here leads uphill
    _, state, _ = jax.jit(solver.run)(start, X, y)
    best = minimize(lambda w: float(loss({"w": jnp.asarray(w)}, X, y)) + 5e-4 * w @ w, np.zeros(5), tol=1e-12)
    assert state.converged and int(state.num_steps) < 60
    np.testing.assert_allclose(float(state.function_val), best.fun, rtol=1e-5 if dtype == np.float32 else 1e-8)


@pytest.mark.slow
def test_group_over_several_units_takes_the_proximal_route(x64):
    X, Y = data()
    mask = np.zeros((2, D, N))
    mask[0, :2], mask[1, 2:] = 1, 1
    ours = make(regularizer="GroupLasso", groups=mask, solver_kwargs={"tol": 1e-9})
    with told(proved=False):
        ours.fit(X, Y)
    assert ours.solver_state_.route == "proximal"
    assert np.all(plugin.report(ours).status == Status.UNPROVED)
    assert_same_answer(ours, X, Y)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("model", MODELS)
def test_the_objective_never_ends_above_its_start(model):
    X, Y = data("classes" if "Classifier" in model else "Poisson")
    Y = of_units(Y, model)
    for budget in (1, 2, 1000):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            ours = make(model, solver_kwargs={"maxiter": budget, "tol": 1e-4}).fit(X, Y)
        end = penalised(ours, X, Y)
        again = make(model, solver_kwargs={"maxiter": 1, "tol": 1e-4})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            again.fit(X, Y, init_params=(ours.coef_, ours.intercept_))
        assert penalised(again, X, Y) <= end * (1 + 1e-6) + 1e-6


@pytest.mark.thorough
def test_a_start_with_nan_is_reported_and_never_called_converged():
    X, Y = (jnp.asarray(a) for a in data())
    model = make().fit(X, Y)
    solver = plugin.SAGA(model._compute_loss, model.regularizer, 0.1, False)
    start = jax.tree.map(lambda a: jnp.full_like(a, jnp.nan), model._get_model_params())
    _, state, _ = solver.run(start, X, Y)
    assert not state.stats.converged


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-6])
def test_the_answer_does_not_depend_on_the_unit_of_the_targets(scale, x64):
    X, Y = data("Gaussian")
    exact = np.linalg.lstsq(X - X.mean(axis=0), Y[:, 0] - Y[:, 0].mean(), rcond=None)[0]
    model = make("GLM", "UnRegularized", observation_model="Gaussian").fit(X, scale * Y[:, 0])
    assert_close(model.solver_state_, proved=True)
    np.testing.assert_allclose(model.coef_ / scale, exact, rtol=1e-6)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("link", ["exp", "softplus"])
def test_converged_means_the_documented_relative_gap(link, x64):
    """Or 1e-4 nats over the whole recording."""
    for seed in range(4):
        X, Y = (a[:60] for a in data(seed=seed))
        model = make("GLM", "UnRegularized", inverse_link_function=link).fit(X, Y[:, 0])
        null = make("GLM", "UnRegularized", inverse_link_function=link).fit(0 * X, Y[:, 0])
        state = model.solver_state_
        improvement = float(null.solver_state_.stats.function_val - state.stats.function_val)
        assert state.stats.converged and state.certificate.gap[0] <= max(1e-6 * improvement, 1e-4 / 60)


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("observation", ["Poisson", "Bernoulli"])
@pytest.mark.parametrize("size", [100.0, 1e3])
def test_a_bad_start_does_no_harm(observation, size):
    X, Y = data(observation)
    parameters = {"observation_model": observation}
    if observation == "Poisson":
        parameters["inverse_link_function"] = "softplus"
    plain = make("GLM", **parameters).fit(X, Y[:, 0])
    bad = make("GLM", **parameters).fit(X, Y[:, 0], init_params=(np.full(D, size), np.zeros(1)))
    assert bad.solver_state_.route == plain.solver_state_.route
    assert_close(bad.solver_state_, proved=True)
    np.testing.assert_allclose(bad.coef_, plain.coef_, atol=2e-3)


@pytest.mark.thorough
def test_estimate_is_not_convergence_and_every_unit_has_its_own():
    """With a probit link a gap is estimated and never proved: NeMoS warns, and every unit has its estimate."""
    X, Y = data("Bernoulli")
    with told(proved=False):
        model = make(observation_model="Bernoulli", inverse_link_function="norm.cdf").fit(X, Y)
    state = model.solver_state_
    assert state.route == "table" and not state.stats.reached_max_steps
    assert_close(state, proved=False)
    assert len(np.unique(state.certificate.gap)) == N
    assert "no bound of it is known" in str(plugin.report(model))


@pytest.mark.thorough
@pytest.mark.parametrize("route", ["certified", "table", "proximal"])
def test_state_is_shown_as_a_report(route):
    X, Y = data("Bernoulli" if route == "table" else "Poisson")
    mask = np.zeros((2, D, N))
    mask[0, :2], mask[1, 2:] = 1, 1
    model = {
        "certified": lambda: make(),
        "table": lambda: make(observation_model="Bernoulli", inverse_link_function="norm.cdf"),
        "proximal": lambda: make(regularizer="GroupLasso", groups=mask),
    }[route]()
    with pytest.raises(ValueError, match="the model is not fitted"):
        plugin.report(model)
    with told(proved=route == "certified"):
        model.fit(X, Y)
    state, report = model.solver_state_, plugin.report(model)
    assert isinstance(report, FitReport) and state.route == route
    known = Status.CONVERGED if route == "certified" else Status.UNPROVED
    assert report.to_frame()["status"].tolist() == [str(known)] * N
    shown = [state, report] if state.certificate is None else [state, report, state.certificate]
    for result in shown:
        assert "array(" not in repr(result) and "Status" not in repr(result)
        assert "array(" not in result._repr_html_()
        assert ("<table" in result._repr_html_()) == (result is not state or route != "proximal")
    sampled = (Status.NO_GAIN, Status.NO_USEFUL_BOUND, Status.SCHEDULE_DONE)
    advice = " ".join(report._advice(status) for status in Status if status not in sampled)
    assert "max_epochs" not in advice and "solver_name" not in advice


@pytest.mark.thorough
def test_report_refuses_models_fitted_by_another_solver():
    X, Y = data()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        model = make("GLM", solver="LBFGS", solver_kwargs={"maxiter": 2}).fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="fitted by another solver"):
        plugin.report(model)


def test_a_report_takes_models_of_nemos():
    X, Y = data()
    with pytest.raises(
        TypeError, match=r"model is 'x', of type str; .* takes a fitted model of NeMoS, .*\.PopulationGLM\.$"
    ):
        plugin.report("x")
    with pytest.raises(TypeError, match=r"a fitted model of NeMoS, .* its report in model\.report_"):
        plugin.report(PopulationGLM().fit(X, Y))


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("model, n", [("ClassifierGLM", 1), ("ClassifierPopulationGLM", N)])
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
def test_the_classes_of_a_neuron_are_one_problem(model, n, regularizer):
    X, Y = data("classes")
    Y = of_units(Y, model)
    with told(proved=regularizer == "Ridge"):
        fitted = make(model, regularizer).fit(X, Y)
    state, report = fitted.solver_state_, plugin.report(fitted)
    assert len(state.certificate.gap) == len(report.to_frame()) == n and report.n_classes == K
    assert f"{K} classes" in str(report) and "spikes" not in str(report) and "spike_count" not in report.to_frame()
    assert ("neurons converged" in str(report)) == (n > 1)
    if regularizer == "Ridge":
        np.testing.assert_allclose(report.objective.sum(), state.function_val, rtol=1e-6)
        for y, *found in zip(Y.reshape(T, -1).T, report.objective, report.gap, report.pseudo_r2, strict=True):
            alone = SoftmaxGLM(regularizer_strength=STRENGTHS["Ridge"], tol=1e-9).fit(X, y).report_
            np.testing.assert_allclose(found[0], alone.objective, rtol=1e-5)
            assert found[0] - alone.objective <= found[1]
            np.testing.assert_allclose(found[2], alone.pseudo_r2, rtol=1e-3)


def nearly_empty(seed=3, rows=600, corners=4):
    """Hats on a square whose middle and corners are hardly visited, and neurons tuned to its sides."""
    rng = np.random.default_rng(seed)
    way = np.cumsum(rng.normal(size=rows) * 0.05) % 4
    x, y = (np.select([way < 1, way < 2, way < 3], sides, last) for sides, last in (
        ([way, 1 + 0 * way, 3 - way], 0 * way), ([0 * way, way - 1, 1 + 0 * way], 4 - way)))  # fmt: skip
    x, y = (np.clip(a + 0.03 * rng.normal(size=rows), 0, 1) for a in (x, y))
    hats = [np.maximum(0, 1 - np.abs(a[:, None] * (corners - 1) - np.arange(corners))) for a in (x, y)]
    X = (hats[0][:, :, None] * hats[1][:, None, :]).reshape(rows, -1) ** 8
    rate = np.exp(-3 + 2.5 * np.cos(np.pi / 2 * (way[:, None] - np.arange(4))))
    return X[:, X.sum(axis=0) > 0].astype(np.float32), rng.poisson(rate).astype(np.float32)


@pytest.mark.thorough
def test_nearly_empty_unpenalised_features_give_only_one_warning():
    X, Y = nearly_empty()
    assert X.sum(axis=0).min() < 1e-7
    with pytest.warns() as caught:
        model = nmo.glm.PopulationGLM(regularizer="UnRegularized", solver_name=NAME).fit(X, Y)
    (warning,) = caught
    assert warning.category is RuntimeWarning and "did not converge" in str(warning.message)
    assert not model.solver_state_.stats.converged
    assert np.all(np.isin(model.solver_state_.certificate.status, [Status.SEPARABLE, Status.UNPROVED]))


@pytest.mark.slow
@pytest.mark.realdata
def test_maze_with_hardly_visited_parts_never_converges_without_proof(shared_data):
    """Place on a W-maze: 40c1cde reported convergence, without a warning, 550 nats above a neuron's optimum."""
    with np.load(shared_data / "w_maze.npz", allow_pickle=False) as file:
        t, xy, spikes, unit = file["t"], file["xy"].astype(float), file["spike_times"], file["unit"]
    edges = np.arange(t[0], t[-1], 0.1)
    place = [np.interp(edges[:-1] + 0.05, t, xy[:, k]) for k in range(2)]
    bases = [nmo.basis.BSplineEval(6, bounds=bounds) for bounds in ((120, 530), (60, 530))]
    X = np.asarray((bases[0] * bases[1]).compute_features(*place), np.float32)
    Y = np.stack([np.histogram(spikes[unit == u], edges)[0] for u in np.unique(unit)], axis=1).astype(np.float32)
    seen = np.isfinite(X).all(axis=1)
    X, Y = X[seen], Y[seen][:, Y[seen].sum(axis=0) > 0]
    with pytest.warns() as caught:
        model = nmo.glm.PopulationGLM(regularizer="UnRegularized", solver_name=NAME).fit(X, Y)
    (warning,) = caught
    assert warning.category is RuntimeWarning and "did not converge" in str(warning.message)
    certificate = model.solver_state_.certificate
    assert not model.solver_state_.stats.converged
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        best = PopulationGLM("exp", "UnRegularized", solver_name="Newton").fit(X, Y)

    def loss(model):
        eta = X.astype(np.float64) @ np.asarray(model.coef_, np.float64) + np.asarray(model.intercept_, np.float64)
        return np.mean(np.exp(eta) - Y * eta, axis=0)

    excess = loss(model) - loss(best)
    proved = certificate.gap_is_bound
    assert np.all(excess[proved] <= certificate.gap[proved] + 1e-9)
    assert np.all(excess[certificate.status == Status.CONVERGED] * len(X) < 0.1)
    assert len(np.unique(certificate.gap)) > 1


# ------------------------------------------------------------------------- options, state, updates


@pytest.mark.slow
def test_options_have_the_names_of_nemos():
    X, Y = data()
    assert plugin.SAGA.get_accepted_arguments() == {"stepsize", "batch_size", "tol", "maxiter", "key"}
    nothing = dict.fromkeys(plugin.SAGA.get_accepted_arguments())
    plain, none = make().fit(X, Y), make(solver_kwargs=nothing).fit(X, Y)
    np.testing.assert_array_equal(plain.coef_, none.coef_)
    some = ({"batch_size": 50.0}, {"stepsize": jnp.array(0.05)}, {"key": jax.random.PRNGKey(1)}, {"key": np.int64(2)})
    for kwargs in some:
        other = make(solver_kwargs={**kwargs, "tol": 1e-3}).fit(X, Y)
        assert other.solver_state_.stats.converged
        np.testing.assert_allclose(other.coef_, plain.coef_, atol=5e-3)
    limited = make(solver_kwargs={"stepsize": 0.01}).fit(X, Y).solver_state_
    assert limited.solver == "SAGA" and limited.step <= 0.01 and limited.certificate.step.certified


@pytest.mark.thorough(cases=7)
@pytest.mark.parametrize(
    "kwargs, message",
    [
        ({"stepsize": -1.0}, "stepsize is -1.0; it must be a positive number, or None for the certified step"),
        ({"stepsize": "a"}, "stepsize is 'a'; it must be a positive number"),
        ({"batch_size": 0}, "batch_size is 0; it must be a whole number of at least 1"),
        ({"batch_size": 2.5}, "batch_size is 2.5; it must be a whole number of at least 1"),
        ({"tol": -1.0}, "tol is -1.0; it must be a positive number, or None for 0.001, or 0 for"),
        ({"tol": np.inf}, "tol is inf; it must be a positive number"),
        ({"maxiter": 0}, "maxiter is 0; it must be a whole number of at least 1"),
        ({"key": "abc"}, "key is 'abc'; it must be a key of jax.random.key, a whole number"),
    ],
)
def test_invalid_options_are_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        make(solver_kwargs=kwargs).fit(*data())


@pytest.mark.thorough
def test_tightest_tolerances_reach_the_limit_of_the_precision(x64):
    X, Y = data("Gamma")
    best = make(observation_model="Gamma", inverse_link_function="exp", solver="Newton[glmfit]")
    best.solver_kwargs = {"tol": 1e-12}
    best.fit(X, Y)
    for tol in (1e-12, 0.0):
        model = make(observation_model="Gamma", inverse_link_function="exp", solver_kwargs={"tol": tol}).fit(X, Y)
        assert model.solver_state_.solver == "Newton"
        np.testing.assert_allclose(model.coef_, best.coef_, rtol=1e-6, atol=1e-8)


@pytest.mark.slow
def test_budget_is_respected_and_reported():
    X, Y = data("classes")
    with pytest.warns(RuntimeWarning, match="did not converge"):
        model = make("ClassifierGLM", "Lasso", solver_kwargs={"maxiter": 2, "tol": 1e-5}).fit(X, Y[:, 0])
    stats = model.solver_state_.stats
    assert not stats.converged
    assert float(stats.function_val) >= 0


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
def test_updates_decrease_the_objective_of_every_batch(regularizer):
    X, Y = data()
    model = make(regularizer=regularizer)
    params = model.initialize_params(X, Y)
    start = getattr(model, "initialize_solver_and_state", None)
    state = start(X, Y, params) if start else model.initialize_optimizer_and_state(params, X, Y)
    for k in range(8):
        rows = slice(50 * k, 50 * k + 50)
        before = penalised_at(model, params, X[rows], Y[rows])
        params, state = model.update(params, state, X[rows], Y[rows])
        assert penalised_at(model, params, X[rows], Y[rows]) <= before * (1 + 1e-6)
    assert int(state.num_steps) == 8


def penalised_at(model, params, X, Y):
    params = model._validator.to_model_params(params)
    loss = model.regularizer.penalized_loss(model._compute_loss, params=params, strength=model.regularizer_strength)
    return float(loss(params, jnp.asarray(X), jnp.asarray(Y)))


# ------------------------------------------------------------------------- compilations and memory


@pytest.mark.thorough(cases=2)
@pytest.mark.parametrize("model, regularizer", [("PopulationGLM", "Ridge"), ("PopulationGLM", "Lasso"),
                                                ("ClassifierGLM", "Ridge")])  # fmt: skip
def test_a_second_fit_of_the_same_shapes_compiles_nothing(model, regularizer):
    X, Y = data("classes" if "Classifier" in model else "Poisson")
    Y = of_units(Y, model)
    make(model, regularizer).fit(X, Y)
    before = compiled_programs()
    make(model, regularizer, strength=0.05).fit(X + 1e-3, Y)
    assert compiled_programs() == before


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("model", ["PopulationGLM", "ClassifierGLM"])
def test_models_are_freed_after_use(model):
    X, Y = data("classes" if "Classifier" in model else "Poisson")
    fitted = make(model).fit(X, of_units(Y, model))
    gone = weakref.ref(fitted)
    del fitted
    gc.collect()
    assert gone() is None


@pytest.mark.slow
def test_custom_link_is_freed_after_use():
    X, Y = data()

    def fit():
        held = np.ones(10)
        link = lambda x: jnp.exp(x) + 1e-3 * jnp.asarray(held)[0]  # noqa: E731
        with told(proved=False):
            make("GLM", inverse_link_function=link).fit(X, Y[:, 0])
        return weakref.ref(link)

    gone = fit()
    jax.clear_caches()  # jax keeps what it traced for a while
    gc.collect()
    assert gone() is None


# ------------------------------------------------------------------------- living with NeMoS and scikit-learn


@pytest.mark.slow
def test_registration_can_be_repeated_and_importing_glmfit_does_not_import_nemos():
    registry.register()
    registry.register()
    for algorithm, (solver, regularizers) in registry.SOLVERS.items():
        assert nmo.solvers.get_solver(f"{algorithm}[glmfit]").implementation is solver
        for name in regularizers:
            assert getattr(nmo.regularizer, name)._allowed_solvers.count(algorithm) == 1
    code = "import glmfit, sys; assert 'nemos' not in sys.modules; import glmfit.plugins.nemos, nemos; "
    code += "assert nemos.solvers.get_solver('SAGA[glmfit]')"
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, timeout=120)


ENGINE = {"NonlinearCG": "ConjugateGradients", "Newton": "Newton", "ProximalNewton": "ProximalNewton"}


@pytest.mark.thorough
@pytest.mark.parametrize("algorithm", registry.SOLVERS)
@pytest.mark.parametrize("regularizer", ["Ridge", "Lasso"])
def test_every_name_runs_its_own_solver_and_a_clone_keeps_it(algorithm, regularizer, x64):
    if regularizer not in registry.SOLVERS[algorithm][1]:
        with pytest.raises(ValueError, match="not allowed for"):
            make("PopulationGLM", regularizer, solver=f"{algorithm}[glmfit]")
        return
    X, Y = data()
    model = make("PopulationGLM", regularizer, solver=f"{algorithm}[glmfit]", solver_kwargs={"tol": 1e-6}).fit(X, Y)
    expected = ENGINE.get(algorithm, "")
    if (algorithm, regularizer) == ("ProximalNewton", "Ridge"):
        expected = "ConjugateGradients"
    assert model.solver_state_.solver.startswith(expected)
    assert (model.solver_state_.report.status == Status.CONVERGED).all()
    twin = clone(model)
    assert twin.solver_name == model.solver_name == f"{algorithm}[glmfit]"
    np.testing.assert_array_equal(twin.fit(X, Y).coef_, model.coef_)
    best = make("PopulationGLM", regularizer, solver_kwargs={"tol": 1e-6}).fit(X, Y)
    np.testing.assert_allclose(model.coef_, best.coef_, atol=1e-5)


def test_other_solvers_take_no_stepsize():
    with pytest.raises(NameError, match="stepsize"):
        make(solver="NonlinearCG[glmfit]", solver_kwargs={"stepsize": 1.0})


@pytest.mark.slow
def test_clone_deepcopy_and_set_params():
    X, Y = data()
    model = make(solver_kwargs={"tol": 1e-4}).fit(X, Y)
    for twin in (clone(model), copy.deepcopy(model)):
        assert twin.solver_name.startswith("SAGA") and twin.solver_kwargs == {"tol": 1e-4}
        np.testing.assert_array_equal(twin.fit(X, Y).coef_, model.coef_)
    other = make("PopulationGLM", solver="GradientDescent").set_params(solver_name=NAME).fit(X, Y)
    np.testing.assert_allclose(other.coef_, model.coef_, atol=1e-3)


@pytest.mark.thorough
def test_saved_models_can_be_loaded(tmp_path):
    X, Y = data()
    model = make().fit(X, Y)
    model.save_params(tmp_path / "model.npz")
    again = nmo.load_model(tmp_path / "model.npz")
    np.testing.assert_array_equal(again.coef_, model.coef_)
    assert again.solver_name.startswith("SAGA")
    np.testing.assert_allclose(again.predict(X), model.predict(X))


@pytest.mark.slow
@pytest.mark.parametrize("n_jobs", [1, 2])
def test_grid_search_also_runs_in_other_processes(n_jobs):
    X, Y = data()
    search = GridSearchCV(make("GLM"), {"regularizer_strength": [1e-3, 10.0]}, cv=2, n_jobs=n_jobs)
    search.fit(X, Y[:, 0])
    assert search.best_params_ == {"regularizer_strength": 1e-3}
    assert search.best_estimator_.solver_state_.route == "certified"


@pytest.mark.thorough
def test_pipeline_with_a_basis_converges():
    rng = np.random.default_rng(0)
    position = rng.random((T, 1))
    y = rng.poisson(np.logaddexp(0, 3 * np.cos(6 * position[:, 0])))
    basis = nmo.basis.RaisedCosineLinearEval(n_basis_funcs=5).to_transformer()
    pipe = Pipeline([("basis", basis), ("glm", make("GLM", strength=1e-4, inverse_link_function="softplus"))])
    pipe.fit(position, y)
    assert pipe["glm"].solver_state_.stats.converged and pipe.score(position, y) > -1.5


def test_without_nemos_the_import_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "glmfit.plugins.nemos")
    monkeypatch.setitem(sys.modules, "nemos", None)
    with pytest.raises(ModuleNotFoundError, match=r'needs NeMoS, .* python -m pip install -e "\.\[nemos\]"  in the'):
        importlib.import_module("glmfit.plugins.nemos")
