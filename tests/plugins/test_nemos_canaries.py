"""What the plugin needs and NeMoS does not promise: each test says what breaks if it changes."""

import ast
import functools
import importlib
import inspect
import warnings
from dataclasses import replace
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

nmo = pytest.importorskip("nemos", minversion="0.2.8")

from glmfit.plugins import nemos as package  # noqa: E402
from glmfit.plugins.nemos import Smooth, solver, terms, view  # noqa: E402

T, D, N = 60, 4, 2
SOURCES = sorted(Path(package.__file__).parent.glob("*.py"))


@pytest.fixture(autouse=True)
def ordinary_jax():
    """Allow the broadcasting of NeMoS, and ignore its known warnings."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.filterwarnings("ignore", message="JAXopt is no longer maintained")
        yield


@pytest.fixture
def rows(rng):
    X = rng.normal(size=(T, D))
    return X, rng.poisson(np.exp(0.3 * X[:, :N])).astype(float)


def model(**parameters):
    return nmo.glm.PopulationGLM(regularizer="Ridge", regularizer_strength=0.1, **parameters)


def fit_by(kind, model, X, Y):
    """Fit with another class instead of the plugin's."""
    nmo.solvers.register("SAGA", kind, backend="spy", replace=True, validate=False)
    try:
        return model.set_params(solver_name="SAGA[spy]").fit(X, Y)
    finally:
        del nmo.solvers._solver_registry._registry["SAGA"]["spy"]


# ---------------------------------------------------------------------------------- names


def names_in(source: Path):
    """Names of NeMoS in a source: (module, attribute) of imports, and dotted paths."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "nemos":
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            path, at = [], node
            while isinstance(at, ast.Attribute):
                path.append(at.attr)
                at = at.value
            if isinstance(at, ast.Name) and at.id == "nemos":
                yield ".".join(["nemos", *reversed(path)])


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_canary_names_of_nemos_exist(source):
    for name in sorted(set(names_in(source))):
        found, rest = nmo, name.split(".")[1:]
        for k, part in enumerate(rest):
            if not hasattr(found, part) and inspect.ismodule(found):
                importlib.import_module(".".join(["nemos", *rest[: k + 1]]))
            assert hasattr(found, part), f"NeMoS no longer has {name}, which glmfit/plugins/nemos/{source.name} uses."
            found = getattr(found, part)


def test_search_for_names_finds_those_in_use():
    found = {name for source in SOURCES for name in names_in(source)}
    assert "nemos.solvers._abstract_solver.OptimizationInfo" in found and "nemos.base_class.Base" in found


# ------------------------------------------------------------------------ what a solver gets


@pytest.mark.thorough
def test_canary_losses_lead_to_their_model(rows):
    seen = []

    class Spy(solver.SAGA):
        def __init__(self, unregularized_loss, *args, **kwargs):
            seen.append(view.model_of(unregularized_loss))
            super().__init__(unregularized_loss, *args, **kwargs)

    fitted = fit_by(Spy, model(), *rows)
    assert seen[-1] is fitted and fitted.solver_state_.route == "certified", (
        "NeMoS no longer hands its loss over as a bound method of the model, or a function around one: models are "
        "no longer recognised (they take the table route). See model_of in glmfit/plugins/nemos/view.py."
    )


@pytest.mark.thorough
def test_loss_wrapped_in_functions_leads_to_its_model(rows):
    class Wrapping(solver.SAGA):
        def __init__(self, unregularized_loss, *args, **kwargs):
            frozen = jax.tree.map(lambda _: None, kwargs["init_params"])

            def loss(params, *of):
                return unregularized_loss(eqx.combine(params, frozen), *of)

            super().__init__(loss, *args, **kwargs)

    plain, wrapped = model(), model()
    fit_by(solver.SAGA, plain, *rows)
    assert fit_by(Wrapping, wrapped, *rows).solver_state_.route == "certified"
    np.testing.assert_array_equal(wrapped.coef_, plain.coef_)


def test_loss_of_no_model_or_of_two_leads_to_none():
    one, other = model(), model()

    def of_two(params, X, y):
        return one._compute_loss(params, X, y) + other._compute_loss(params, X, y)

    def of_none(params, X, y):
        return jnp.mean((y - X @ params.coef) ** 2)

    def without_end(params):
        return without_end(params)

    within = functools.partial(functools.partial(one._compute_loss), X=None)
    assert view.model_of(within) is one
    assert [view.model_of(loss) for loss in (of_none, without_end, len, None)] == [None] * 4
    assert view.model_of(of_two) is None


@pytest.mark.thorough
def test_parameters_other_than_coefficients_and_intercepts_are_fitted(rows):
    class Params(nmo.glm.params.GLMParams):
        width: jax.Array

    def loss(params, X, y):
        off = y - X @ params.coef - params.intercept
        return jnp.mean(off**2) * jnp.exp(-params.width) + params.width

    start = Params(jnp.zeros((D, N)), jnp.zeros(N), jnp.zeros(()))
    args = tuple(jnp.asarray(a) for a in rows)
    found, state, _ = solver.SAGA(loss, nmo.regularizer.UnRegularized(), None, False, init_params=start).run(
        start, *args
    )
    residual = float(loss(Params(found.coef, found.intercept, jnp.zeros(())), *args))
    assert state.route == "proximal" and float(found.width) == pytest.approx(np.log(residual), abs=1e-2)


def test_canary_coefficients_and_intercepts_are_found(rows):
    params = nmo.glm.params.GLMParams(coef=jnp.zeros((D, N)), intercept=jnp.zeros(N))
    assert view.model_of(model()._compute_loss) is not None and len(jax.tree.leaves(params)) == 2, (
        "the parameters of a GLM are no longer coef and intercept alone: models take the proximal route. See "
        "_glm_shape in glmfit/plugins/nemos/view.py."
    )


def test_canary_models_say_what_they_are(rows):
    plain = model(observation_model="NegativeBinomial", inverse_link_function=jnp.exp)
    assert terms.known_loss(plain.observation_model, plain.inverse_link_function) is not None, (
        "observation models no longer have get_params and scale, or models no inverse_link_function: known models "
        "take the table route. See known_loss in glmfit/plugins/nemos/terms.py."
    )
    assert terms._settings(plain.observation_model) is not None


def test_canary_links_are_listed_by_name():
    links = terms._LINKS
    assert all(callable(link) for link in links.values()) and {"softplus", "exp"} <= {n.split(".")[-1] for n in links}
    assert model(inverse_link_function="softplus").inverse_link_function in [*terms._SOFTPLUS], (
        "NeMoS' softplus is no longer in LINK_NAME_TO_FUNC: it is recognised by its jaxpr alone."
    )


# ------------------------------------------------------------------------ what models are made of


def test_canary_rates_are_clipped_before_the_logarithm():
    poisson = nmo.observation_models.PoissonObservations()
    loss = poisson._negative_log_likelihood(jnp.ones(1), jnp.zeros(1))
    eps = float(jnp.finfo(loss.dtype).eps)
    assert float(loss) == pytest.approx(eps - np.log(eps), rel=1e-5), (
        "NeMoS no longer clips rates at the machine epsilon: docs/how_to/use_with_nemos.md says that it does."
    )


def test_canary_observation_models_take_their_own_aggregation():
    total = nmo.observation_models.PoissonObservations()._negative_log_likelihood(
        jnp.ones((3, 2)), jnp.ones((3, 2)), aggregate_sample_scores=lambda s: s.shape
    )
    assert total == (3, 2), (
        "aggregate_sample_scores no longer gets a score per row: the table route falls back to automatic row losses. "
        "See _NemosLoss in glmfit/plugins/nemos/terms.py."
    )


def test_canary_a_feature_mask_is_where_we_look():
    assert view.mask_of(model(feature_mask=np.eye(D, N)), jnp.zeros((D, N))) is not None, (
        "PopulationGLM no longer keeps its mask in _feature_mask: masked models take the proximal route. See "
        "mask_of in glmfit/plugins/nemos/view.py."
    )


@pytest.mark.thorough
def test_canary_groups_have_the_shape_of_the_coefficients(rows):
    mask = np.zeros((2, D, N))
    mask[0, :2], mask[1, 2:] = 1, 1
    mask = np.stack([mask[k, :, n : n + 1] * np.eye(N)[n] for n in range(N) for k in range(2)])
    grouped = nmo.glm.PopulationGLM(regularizer=nmo.regularizer.GroupLasso(mask=mask), regularizer_strength=0.01)
    grouped.set_params(solver_name="SAGA[glmfit]").fit(*rows)
    leaves = jax.tree.leaves(grouped.regularizer.mask)
    assert [leaf.shape for leaf in leaves] == [(2 * N, D, N)] and grouped.solver_state_.route == "certified", (
        "masks of the group lasso are kept in another shape: its models take the proximal route. See _group_labels in "
        "glmfit/plugins/nemos/terms.py."
    )


# ------------------------------------------------------------------------ regularizers


def test_canary_penalties_and_proximal_operators_are_called_as_before():
    params = nmo.glm.params.GLMParams(coef=jnp.full((D, N), 2.0), intercept=jnp.ones(N))
    lasso = nmo.regularizer.Lasso()
    penalised = lasso.penalized_loss(lambda *_: 0.0, params=params, strength=0.5)
    prox = lasso.get_proximal_operator(params=params, strength=0.5)
    moved = prox(params, None, scaling=2.0)
    assert float(penalised(params)) == pytest.approx(0.5 * 2 * D * N)
    np.testing.assert_allclose(moved.coef, 1.0)
    np.testing.assert_allclose(moved.intercept, 1.0)


@pytest.mark.parametrize("name", terms.REGULARIZERS)
def test_canary_regularizers_allow_solvers_by_name(name):
    kind = getattr(nmo.regularizer, name)
    assert "SAGA" in kind._allowed_solvers and kind().allowed_solvers == kind._allowed_solvers, (
        f"allow_solver of {name} no longer writes _allowed_solvers. See register in "
        "glmfit/plugins/nemos/solver.py, and Smooth in smooth.py."
    )


def test_canary_smooth_overrides_what_regularizers_have():
    base = nmo.regularizer.Regularizer
    given = [name for name in vars(Smooth) if name.startswith("_") and not name.startswith("__")]
    known = {*dir(nmo.regularizer.Ridge), *base.__annotations__}
    assert {"_penalty_on_subtree", "_validate_strength_structure"} <= set(given) and set(given) <= known, (
        f"Regularizer no longer has {', '.join(sorted(set(given) - known))}: Smooth in "
        "glmfit/plugins/nemos/smooth.py overrides what NeMoS does not call."
    )
    for name in ("_validate_strength_structure", "_penalty_on_subtree", "_validate_strength"):
        ours, theirs = (list(inspect.signature(getattr(kind, name)).parameters) for kind in (Smooth, base))
        assert ours[: len(theirs) - 1] == theirs[: len(theirs) - 1], f"{name} takes {theirs} now"


# ------------------------------------------------------------------------ what NeMoS reads


@pytest.mark.thorough
def test_canary_nemos_reads_the_result_of_a_run(rows):
    info = nmo.solvers._abstract_solver.OptimizationInfo
    assert set(info.__annotations__) == {"function_val", "num_steps", "converged", "reached_max_steps"}, (
        "NeMoS' summary of a run has other fields: see stats in glmfit/plugins/nemos/results.py."
    )

    class Short(solver.SAGA):
        def run(self, *args):
            params, state, aux = super().run(*args)
            return params, replace(state, converged=np.asarray(False), reached_max_steps=np.asarray(True)), aux

    with pytest.warns(RuntimeWarning, match="did not converge"):
        fit_by(Short, model(), *rows)


def test_canary_a_solver_is_found_by_name_and_backend():
    spec = nmo.solvers.get_solver("SAGA[glmfit]")
    assert (spec.algo_name, spec.backend, spec.implementation) == ("SAGA[glmfit]", "glmfit", solver.SAGA)
    assert spec.full_name == spec.algo_name
    assert issubclass(spec.implementation, nmo.solvers.SolverProtocol)
