"""Smooth terms in NeMoS models: the penalty, its proximal operator, certified fits and strengths the data choose."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pynapple as nap
import pytest
import scipy.stats
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

nmo = pytest.importorskip("nemos", minversion="0.2.8")

from nemos.glm.params import GLMParams  # noqa: E402

from glmfit import PopulationGAM, Status  # noqa: E402
from glmfit.design import BSpline, Term, from_nemos  # noqa: E402
from glmfit.plugins.nemos import Smooth, fit_smooth, report  # noqa: E402

T, N = 600, 2
TERMS = {"(x * y)": 2, "phase": 1}


@pytest.fixture(autouse=True)
def ordinary_jax():
    """Allow the broadcasting of NeMoS, and ignore its known warnings."""
    with warnings.catch_warnings(), jax.numpy_rank_promotion("allow"):
        warnings.filterwarnings("ignore", message="JAXopt is no longer maintained")
        yield


@pytest.fixture(scope="module")
def basis():
    x, y = (nmo.basis.BSplineEval(5, bounds=(0, 1), label=label) for label in "xy")
    return x * y + nmo.basis.CyclicBSplineEval(6, bounds=(0, 2 * np.pi), label="phase")


@pytest.fixture(scope="module")
def design(basis):
    rng = np.random.default_rng(0)
    x, y = rng.random((2, T))
    phase = rng.uniform(0, 2 * np.pi, T)
    tuned = np.sin(5 * x)[:, None] * [1, 0.5] + np.cos(phase)[:, None] * [0, 0.5]
    return np.asarray(basis.compute_features(x, y, phase), np.float64), -0.5 + tuned


@pytest.fixture(scope="module")
def counts(design):
    return np.random.default_rng(1).poisson(np.exp(design[1]))


def strengths_of(shape=()):
    rng = np.random.default_rng(2)
    return {name: 10 ** rng.uniform(-4, -2, (n, *shape)) for name, n in TERMS.items()}


def penalty(basis, strengths, coef):
    """Sum of strength b'S b / 2, written out."""
    total = 0.0
    for name, term in from_nemos(basis).terms.items():
        for j, S in enumerate(term.penalties):
            for n in range(coef.shape[1]):
                b = coef[list(term.features), n]
                total += 0.5 * np.broadcast_to(strengths[name][j], coef.shape[1:])[n] * (b @ S @ b)
    return total


def objective(model, X, Y):
    params = model._get_model_params()
    penalised = model.regularizer.penalized_loss(model._compute_loss, params, model.regularizer_strength)
    return float(penalised(params, X, Y))


# -- the regularizer


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(), (N,)])
def test_penalty_and_proximal_operator(basis, shape):
    strengths, coef = strengths_of(shape), np.random.default_rng(3).normal(size=(31, N))
    params = GLMParams(jnp.asarray(coef), jnp.zeros(N))
    smooth = Smooth(basis)
    loss = smooth.penalized_loss(lambda *_: 0.0, params, strengths)
    assert float(loss(params)) == pytest.approx(penalty(basis, strengths, coef), rel=1e-5)
    prox = smooth.get_proximal_operator(params, strengths)(params, None, scaling=50.0)

    for n in range(N):
        A = np.eye(31)
        for name, term in from_nemos(basis).terms.items():
            for j, S in enumerate(term.penalties):
                A[np.ix_(term.features, term.features)] += 50.0 * np.broadcast_to(strengths[name][j], N)[n] * S
        np.testing.assert_allclose(prox.coef[:, n], np.linalg.solve(A, coef[:, n]), atol=1e-5)
    np.testing.assert_array_equal(prox.intercept, params.intercept)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("solver", ["ProximalGradient", "LBFGS"])
def test_solvers_of_nemos_reach_the_certified_optimum(basis, design, counts, solver):
    X, given = design[0], {"regularizer": Smooth(basis), "regularizer_strength": strengths_of()}
    ours = nmo.glm.PopulationGLM(**given).fit(X, counts)
    assert ours.solver_state_.route == "certified" and report(ours).converged.all() and report(ours).gap_is_bound.all()
    theirs = nmo.glm.PopulationGLM(**given, solver_name=solver, solver_kwargs={"maxiter": 2000, "tol": 1e-9})
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The fit did not converge")
        theirs.fit(X, counts)
    assert objective(ours, X, counts) == pytest.approx(objective(theirs, X, counts), rel=1e-5)
    np.testing.assert_allclose(ours.predict(X), theirs.predict(X), rtol=0.02)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("shape", [(), (N,)])
def test_certified_fit_equals_that_of_the_additive_model(basis, design, counts, shape):
    X, strengths = design[0], strengths_of(shape)
    theirs = nmo.glm.PopulationGLM(regularizer=Smooth(basis), regularizer_strength=strengths).fit(X, counts)
    ours = PopulationGAM(from_nemos(basis), strengths=strengths, inverse_link_function="exp").fit(X, counts)
    np.testing.assert_allclose(theirs.coef_, ours.coef_, atol=1e-5)
    np.testing.assert_allclose(report(theirs).pseudo_r2, ours.report_.pseudo_r2, rtol=1e-4)
    assert objective(theirs, X, counts) == pytest.approx(ours.report_.objective.sum(), rel=1e-5)
    assert objective(theirs, X, counts) == pytest.approx(report(theirs).objective.sum(), rel=1e-5)


@pytest.mark.thorough
def test_masked_features_are_excluded_from_the_fit(basis, design, counts):
    X, mask = design[0], np.ones((31, N))
    mask[25:, 1] = 0
    model = nmo.glm.PopulationGLM(regularizer=Smooth(basis), regularizer_strength=1e-3, feature_mask=mask)
    model.fit(X, counts)
    alone = nmo.glm.GLM(regularizer=Smooth({"m": Term(range(25), from_nemos(basis).terms["(x * y)"].penalties)}),
                        regularizer_strength=1e-3).fit(X[:, :25], counts[:, 1])  # fmt: skip
    assert model.solver_state_.route == "certified" and not np.any(model.coef_[25:, 1])
    np.testing.assert_allclose(model.coef_[:25, 1], alone.coef_, atol=1e-5)


@pytest.mark.thorough
def test_partly_masked_term_is_fitted_without_a_proof(basis, design, counts):
    part = np.ones((31, N))
    part[27, 0] = 0  # part of a term with coupled features: NeMoS' own objective, without a proof
    model = nmo.glm.PopulationGLM(regularizer=Smooth(basis), regularizer_strength=1e-3, feature_mask=part)
    with pytest.warns(RuntimeWarning, match="did not converge"):
        model.fit(design[0], counts)
    assert model.solver_state_.route == "proximal"


@pytest.mark.thorough
def test_strengths_can_be_searched(basis, design, counts):
    model = nmo.glm.PopulationGLM(regularizer=Smooth(basis))
    grid = {"regularizer_strength": [{"(x * y)": s, "phase": 1e-4} for s in (1e-4, 1e3)]}
    search = GridSearchCV(model, grid, cv=2).fit(design[0], counts)
    assert search.best_params_["regularizer_strength"]["(x * y)"] == 1e-4


@pytest.mark.thorough
def test_an_unknown_model_is_fitted_without_a_proof(basis, design, counts):
    model = nmo.glm.PopulationGLM(
        regularizer=Smooth(basis), regularizer_strength=1e-2, observation_model="Bernoulli",
        inverse_link_function="norm.cdf",
    )  # fmt: skip
    with pytest.warns(RuntimeWarning, match="did not converge"):
        model.fit(design[0], (counts > 0).astype(float))
    assert model.solver_state_.route == "proximal"


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("terms", "strength", "message"),
    [
        (3, 1.0, "terms is 3; Smooth takes a basis of NeMoS or of glmfit.design"),
        (BSpline(5, (0, 1), name="x"), 1.0, "X has 31 features, but terms is a basis of 5"),
        ({"a": [0, 40]}, 1.0, "features"),
        ({"a": [0, 1]}, {"b": 1.0}, "regularizer_strength: strengths names 'b', which is not a term"),
        ({"a": [0, 1]}, [1.0, 2.0], "regularizer_strength: strengths has shape"),
        ({"a": [0, 1]}, -1.0, "regularizer_strength is -1.0; strengths must be finite"),
        ({"a": [0, 1]}, "much", "regularizer_strength"),
    ],
)
def test_invalid_terms_and_strengths_are_refused_with_the_reason(design, counts, terms, strength, message):
    with pytest.raises((TypeError, ValueError), match=message):
        nmo.glm.PopulationGLM(regularizer=Smooth(terms), regularizer_strength=strength).fit(design[0], counts)


# -- strengths chosen from the data


KINDS = [("Poisson", "softplus"), ("Gaussian", "identity"), ("Bernoulli", "logistic"), ("Gamma", "exp")]
KINDS = [pytest.param(*kind, marks=pytest.mark.thorough) for kind in [*KINDS, ("NegativeBinomial", "exp")]]


@pytest.mark.thorough
@pytest.mark.parametrize(("observation", "link"), [("Poisson", "exp"), *KINDS])
def test_model_predicts_scores_and_is_cloned_like_one_fitted_by_nemos(basis, design, counts, observation, link):
    rng, (X, eta) = np.random.default_rng(4), design
    y = {
        "Gaussian": eta + rng.normal(size=eta.shape), "Bernoulli": (counts > 0).astype(float),
        "Gamma": np.exp(eta) * rng.gamma(2.0, 0.5, eta.shape) + 1e-3,
    }.get(observation, counts)  # fmt: skip
    function = (lambda x: x) if link == "identity" else link
    model = nmo.glm.PopulationGLM(observation_model=observation, inverse_link_function=function)
    gam = fit_smooth(model, basis, X, y)
    assert model.solver_state_.route == "certified" and gam.report_.converged.all() and report(model).converged.all()
    assert gam.report_.strengths_by == "marginal-likelihood" and list(gam.terms_) == list(TERMS)
    np.testing.assert_allclose(model.coef_, gam.coef_, atol=1e-5)
    np.testing.assert_allclose(model.predict(X), gam.predict(X), rtol=1e-4, atol=1e-5)
    assert np.all(model.scale_ > 0) and model.dof_resid_.shape == (N,) and model.solver_state_.stats.converged
    assert np.isfinite(float(model.score(X, y)))
    factor = 2.0 if observation == "Gaussian" else 1.0
    np.testing.assert_allclose(model.regularizer_strength["phase"], factor * gam.strengths_["phase"])
    again = clone(model).fit(X, y)
    np.testing.assert_allclose(again.coef_, model.coef_, atol=1e-5)
    assert report(again).objective == pytest.approx(report(model).objective, rel=1e-5)


@pytest.mark.thorough
def test_log_likelihoods_agree(basis, design, counts):
    model = nmo.glm.PopulationGLM()
    gam = fit_smooth(model, basis, design[0], counts)
    theirs = model.score(
        design[0], counts, score_type="log-likelihood", aggregate_sample_scores=lambda s: s.sum(axis=0)
    )
    rate = gam.predict(design[0])
    np.testing.assert_allclose(theirs, scipy.stats.poisson.logpmf(counts, rate).sum(axis=0), rtol=1e-4)
    assert model.simulate(jax.random.key(0), design[0])[0].shape == (T, N)


@pytest.mark.thorough
def test_masks_dictionaries_and_single_neurons(basis, design, counts):
    X, mask = design[0], np.ones((31, N))
    mask[25:, 1] = 0
    masked = nmo.glm.PopulationGLM(feature_mask=mask)
    gam = fit_smooth(masked, basis, X, counts)
    assert (
        not np.any(gam.coef_[25:, 1])
        and not np.any(masked.coef_[25:, 1])
        and masked.regularizer_strength["phase"][0, 1] == 1
    )
    entries = {"phase": X[:, 25:], "(x * y)": X[:, :25]}
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="FeaturePytree is deprecated", category=FutureWarning)
        trees = [nmo.pytrees.FeaturePytree(**entries)] if hasattr(nmo.pytrees, "FeaturePytree") else []
        trees += [] if nmo.__version__.startswith("0.2.8") else [entries]  # 0.2.8 takes no plain dictionary
        for tree in trees:
            by_name = nmo.glm.PopulationGLM(feature_mask={"(x * y)": np.ones(N), "phase": np.array([1, 0])})
            fit_smooth(by_name, basis, tree, counts)
            np.testing.assert_allclose(by_name.coef_["phase"], masked.coef_[25:], atol=1e-4)
    one = nmo.glm.GLM()
    alone = fit_smooth(one, basis, X, counts[:, 0])
    assert one.coef_.shape == alone.coef_.shape == (31,) and one.intercept_.shape == (1,)
    np.testing.assert_allclose(one.coef_, masked.coef_[:, 0], atol=5e-3)  # strengths are chosen to a tolerance


@pytest.mark.thorough
def test_rows_with_missing_values_are_dropped(basis, design, counts):
    X, t = design[0].copy(), np.arange(T) * 0.02
    X[:50, 3], y = np.nan, counts.astype(float)
    model, plain = nmo.glm.PopulationGLM(), nmo.glm.PopulationGLM()
    gam = fit_smooth(model, basis, nap.TsdFrame(t=t, d=X), nap.TsdFrame(t=t, d=y))
    fit_smooth(plain, basis, X[50:], y[50:])
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-5)
    assert gam.report_.n_rows == T - 50


@pytest.mark.thorough
def test_neurons_without_spikes_do_not_affect_the_others(basis, design, counts):
    model = nmo.glm.PopulationGLM()
    gam = fit_smooth(model, basis, design[0], counts * [1, 0])
    assert gam.report_.status[1] == Status.NO_SPIKES and report(model).status[1] == Status.NO_SPIKES
    assert report(model).converged[0] and np.all(np.isfinite(model.intercept_))


def test_other_models_are_refused(basis, design, counts):
    with pytest.raises(TypeError, match=r"takes a nemos.glm.GLM or a nemos.glm.PopulationGLM"):
        fit_smooth(nmo.glm.ClassifierGLM(n_classes=2), basis, design[0], counts[:, 0])
    probit = nmo.glm.GLM(observation_model="Bernoulli", inverse_link_function="norm.cdf")
    with pytest.raises(ValueError, match=r"BernoulliObservations with .* has no certified fit"):
        fit_smooth(probit, basis, design[0], counts[:, 0])
