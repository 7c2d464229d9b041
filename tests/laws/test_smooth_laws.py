"""Laws of smooth terms: optima, bounds and strengths match the oracle for any data."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.optimize
from oracles import responses
from oracles import smooth_terms as oracle
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from glmfit import PopulationGAM, PopulationGLM
from glmfit.design import BSpline, CyclicBSpline, Term, product
from glmfit.status import Status

A = 0.5  # dispersion of negative binomial counts
NAMES = responses.NAMES
KNOWN = (Status.NO_SPIKES, Status.ALL_ONES, Status.NO_DATA)
every_name = pytest.mark.parametrize("name", NAMES)


def quiet(function, *given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **named)


def estimator(name, terms, strengths="marginal-likelihood", **more):
    link = name if name in ("softplus", "exp") else None
    more = ({"dispersion": A} if name == "NegativeBinomial" else {}) | more
    return PopulationGAM(terms, strengths, link, observation_model="Poisson" if link else name, **more)


def whole(terms, d):
    """Penalty matrices of all features, in the order of their strengths."""
    found = []
    for term in terms.values():
        for S in term.penalties:
            found.append(np.zeros((d, d)))
            found[-1][np.ix_(term.features, term.features)] = S
    return found


def all_strengths(model):
    """Strengths of all penalties, (penalty, neuron)."""
    n = np.shape(model.coef_)[1]
    return np.concatenate([np.zeros((0, n)), *model.strengths_.values()])


# ---------------------------------------------------------------- random problems


def random_term(rng, features):
    """Penalties of any kind on some features."""
    k = len(features)
    kind = rng.choice(["none", "ridge", "walk", "ard", "low rank", "commuting", "mixed"])
    if kind == "none":
        return Term(features, ())
    if kind == "walk" and k > 1:
        return Term.random_walk(features, int(rng.integers(1, k)))
    if kind == "ard":
        return Term.ard(features)
    if kind == "commuting" and k > 1:
        Q = np.linalg.qr(rng.normal(size=(k, k)))[0]
        sizes = [rng.random(k) * (rng.random(k) < 0.6) for _ in range(2)]
        made = [(Q * of) @ Q.T for of in sizes if of.any()]
        return Term(features, [(S + S.T) / 2 for S in made])
    if kind in ("low rank", "mixed") and k > 1:
        roots = [rng.normal(size=(k, rng.integers(1, k))) for _ in range(1 if kind == "low rank" else 2)]
        return Term(features, [10.0 ** rng.uniform(-3, 3) * root @ root.T for root in roots])
    return Term.ridge(features)


def random_features(rng, t, d, hard):
    """Features of any kind and size, and the same in units of their standard deviation."""
    X = rng.normal(size=(t, d))
    if rng.random() < 0.4:
        X = X @ rng.normal(size=(d, d))
    if rng.random() < 0.3:  # places, some of them never visited
        X = np.eye(d + 1)[np.minimum(rng.integers(0, d + 2, t), d)][:, :d]
    if rng.random() < 0.2 and d > 1:
        X[:, 1] = X[:, 0] + (10.0 ** rng.uniform(-9, -1) * X[:, 1] if hard else 0.0)
    base = (X - X.mean(axis=0)) / np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    if hard and rng.random() < 0.2:
        X[rng.integers(t), rng.integers(d)] *= 10.0 ** rng.uniform(0, 3)
    if rng.random() < 0.4:
        X = X * 10.0 ** rng.uniform(-4 if hard else -2, 4 if hard else 2, size=d)
    if rng.random() < 0.3:
        X = X + 10.0 ** rng.uniform(0, 5 if hard else 2) * (X.std(axis=0) + 1e-3) * rng.normal(size=d)
    return X.astype(np.float32) if rng.random() < 0.3 else X, base


def random_data(rng, t, n):
    """Offsets, weights and exposures of any shape, or none."""
    data = {}
    if rng.random() < 0.3:
        data["offset"] = rng.normal(size=t if rng.random() < 0.5 else (t, n)) * 0.5
    if rng.random() < 0.3:
        data["sample_weight"] = rng.uniform(0.1, 3, t if rng.random() < 0.5 else (t, n)) * 10.0 ** rng.integers(-2, 3)
        data["sample_weight"][rng.random(t) < 0.1] = 0
    return data


def problem(seed, hard, name=None):
    """Return a random problem; ``hard`` ones contain whatever could break a proof, others resemble recordings."""
    rng = np.random.default_rng([seed, 34])
    drawn = str(rng.choice(NAMES))
    name = drawn if name is None else name
    t, d, n = int(rng.choice([30, 60, 120, 300])), int(rng.integers(1, 9)), int(rng.integers(1, 4))
    X, base = random_features(rng, t, d, hard)
    level = rng.uniform(-3, 3 if hard else 1) * (name in ("softplus", "exp", "NegativeBinomial"))
    effect = base @ rng.normal(size=(d, n)) * 10.0 ** rng.uniform(-1.5, 0.7 if hard else 0.0)
    eta, units, data = np.clip(effect, -20, 6) + level, np.ones(t), random_data(rng, t, n)
    if name == "Binomial" or (name in ("softplus", "exp") and rng.random() < 0.3):
        units = rng.integers(1, 9, t).astype(float)
        data["exposure"] = units
    more = np.log(units)[:, None] if name == "exp" else 0.0
    Y = responses.draw(name, rng, eta + more, A, units[:, None].astype(int))
    Y = np.maximum(Y, 1e-9) if name == "Gamma" else Y * (10.0 ** rng.integers(-3, 4) if name == "Gaussian" else 1.0)
    if rng.random() < 0.4:
        Y = np.where(rng.random(Y.shape) > 0.2, Y, np.nan)
    order, at, terms = rng.permutation(d), 0, {}
    while at < d:
        size = int(rng.integers(1, 6))
        if rng.random() < 0.85:
            terms[f"term {at}"] = random_term(rng, [int(i) for i in order[at : at + size]])
        at += size
    j = sum(len(term.penalties) for term in terms.values())
    strengths = 10.0 ** rng.uniform(-10 if hard else -4, 6 if hard else 1, (j, n))
    strengths[(rng.random((j, n)) < 0.3) & (rng.random() < 0.1)] = 0.0
    has = {str(rng.choice(list(terms))): rng.random(n) < 0.5} if rng.random() < 0.3 and terms else {}
    return SimpleNamespace(
        name=name, X=X, Y=Y, terms=terms, strengths=strengths, has=has, units=units, data=data,
        tol=10.0 ** rng.integers(-10, -3),
    )  # fmt: skip


def weights_of(p, n):
    """Weights (0 for missing responses) and exposures of the responses of a neuron, (time,) each."""
    t, N = p.Y.shape
    w = np.broadcast_to(np.reshape(p.data.get("sample_weight", np.ones(t)), (t, -1)), (t, N))[:, n]
    return np.where(np.isnan(p.Y[:, n]), 0.0, w), p.units


def of_neuron(p, n, total=1.0):
    """Oracle's problem of a neuron; features of terms that it lacks are 0."""
    t, N = p.Y.shape
    w, units = weights_of(p, n)
    offset = np.broadcast_to(np.reshape(p.data.get("offset", np.zeros(t)), (t, -1)), (t, N))[:, n]
    X = np.asarray(p.X, np.float64).copy()
    for name, of in p.has.items():
        X[:, list(p.terms[name].features)] *= of[n]
    y, v = np.where(w > 0, p.Y[:, n] / units, 1.0 if p.name == "Gamma" else 0.0), w * units
    return oracle.Problem(p.name, X, y, total * v / v.sum(), offset, whole(p.terms, X.shape[1]), 1.0, A)


def fitted(p, strengths=None, **more):
    """Fit a problem at ``strengths``, by default its own."""
    given = p.strengths if strengths is None else strengths
    return quiet(estimator(p.name, p.terms, given, feature_mask=p.has, **more).fit, p.X, p.Y, **p.data)


def coordinates_of(model, p, n):
    """Which coordinates a neuron has, bool (coordinate,)."""
    has = np.ones(model._smooth.turn.shape[1], bool)
    for name, of in p.has.items():
        first, last = model._smooth.places[list(model.terms_).index(name)]
        has[first:last] = of[n]
    return has


def excess(model, p, n):
    """Excess of a fit's objective over the optimum along its coordinates, its rounding error, and the optimum."""
    one, strengths = of_neuron(p, n), np.nan_to_num(all_strengths(model)[:, n])  # NaN for terms that it lacks
    has, smooth = coordinates_of(model, p, n), model._smooth
    g, turn = smooth.coordinates[n], smooth.turn[:, has]
    start = np.append(g[:-1][has], g[-1] + (oracle.centre_of(one) - smooth.mean) @ turn @ g[:-1][has])
    best = oracle.fit(one, strengths, turn, start)  # from the better start
    coef, intercept = model.coef_[:, n], model.intercept_[n]
    loss = responses.loss(one.name, one.y, one.X @ coef + intercept + one.offset, A)
    penalty = sum(s * coef @ S @ coef / 2 for s, S in zip(strengths, one.S, strict=True))
    terms = np.abs(one.X) @ np.abs(coef) + abs(intercept)
    terms += np.abs(one.X - oracle.centre_of(one)) @ np.abs(best.basis) @ np.abs(best.at[:-1])
    size = abs(best.value) + np.sum(one.v * (1 + np.abs(one.y)) * (1 + terms))
    size += sum(s * np.linalg.norm(S) * coef @ coef for s, S in zip(strengths, one.S, strict=True))
    return float(np.sum(one.v * loss, dtype=np.longdouble) + penalty) - best.value, 4e-15 * size, best


def check_bounds(p, strengths=None):
    """Compare bounds of gaps with the true gaps; return how many neurons have one."""
    model = fitted(p, strengths, tol=p.tol)
    bounded = np.flatnonzero(model.report_.gap_is_bound & ~np.isin(model.report_.status, KNOWN))
    for n in bounded:
        gap, rounding, best = excess(model, p, n)
        assert gap <= model.report_.gap[n] + rounding, (n, gap, model.report_.gap[n], rounding)
        assert gap >= -1e-6 * (1 + abs(best.value))  # the oracle is at the optimum
    return len(bounded)


# ---------------------------------------------------------------- optima at given strengths


@pytest.mark.parametrize("hard", [False, True])
def test_no_bound_is_violated(hard):
    assert sum(check_bounds(problem(seed, hard)) for seed in range(20)) > 25


@pytest.mark.parametrize("hard", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "part", [pytest.param(k, marks=pytest.mark.thorough if k < 1 else pytest.mark.slow) for k in range(8)]
)
def test_no_bound_of_many_problems_is_violated(part, hard):
    assert sum(check_bounds(problem(seed, hard)) for seed in range(100 + 300 * part, 400 + 300 * part)) > 300


@pytest.mark.thorough
@pytest.mark.parametrize("hard", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_bound_at_chosen_strengths_is_violated(hard):
    seeds = [s for s in range(1000, 1100) if problem(s, hard).strengths.size]
    assert sum(check_bounds(problem(seed, hard), "marginal-likelihood") for seed in seeds) > 100


def check_covariance(p, model, n, best):
    """Compare the posterior of the terms that a neuron has with the oracle's, at Kish's effective sample size."""
    (w, units), smooth, has = weights_of(p, n), model._smooth, coordinates_of(model, p, n)
    if np.any(units != 1):
        return  # exposures that vary have a test of their own
    turn = smooth.turn[:, has]
    move = np.eye(has.sum() + 1)
    move[-1, :-1] = (smooth.mean - oracle.centre_of(of_neuron(p, n))) @ turn  # moves the intercept to other means
    V = np.zeros((len(has) + 1,) * 2)
    both = np.append(has, True)
    V[np.ix_(both, both)] = move @ np.linalg.inv(best.hessian + best.penalty) @ move.T * (w**2).sum() / w.sum() ** 2
    for (first, last), name in zip(smooth.places, p.terms, strict=False):  # features of no term are last
        some = np.r_[first:last, len(has)]
        if not p.has.get(name, np.ones(n + 1))[n]:
            continue
        size = np.sqrt(np.diag(V)[some])
        assert np.all(np.abs(smooth.covariance[name][n] - V[np.ix_(some, some)]) <= 0.1 * np.outer(size, size) + 1e-300)


@pytest.mark.thorough
@every_name
def test_optima_degrees_and_covariances_match_the_oracle(name):
    compared = 0
    for seed in range(15):
        p = problem(seed, False, name)
        if sum(len(term.features) for term in p.terms.values()) < p.X.shape[1]:
            continue
        model = fitted(p, tol=1e-12)
        for n in np.flatnonzero(model.report_.status == Status.CONVERGED):
            has, smooth = coordinates_of(model, p, n), model._smooth
            gap, rounding, best = excess(model, p, n)
            assert gap < 1e-9 * (1 + abs(best.value)) + rounding
            F = oracle.influence(best)[:-1, :-1]
            np.testing.assert_allclose(smooth.degrees[has, n], np.diag(F), atol=0.1)
            np.testing.assert_allclose(smooth.degrees_of_tests[has, n], np.diag(2 * F - F @ F), atol=0.2)
            assert not smooth.degrees[~has, n].any() and not smooth.coordinates[n][:-1][~has].any()
            check_covariance(p, model, n, best)
            compared += 1
    assert compared > 5


@every_name
def test_a_term_with_the_identity_is_a_ridge(name):
    p = problem(3, False, name)
    strength = 10.0 ** np.linspace(-2, 0, p.Y.shape[1])
    terms = {"all": Term.ridge(range(p.X.shape[1]))}
    model = quiet(estimator(name, terms, strength[None], tol=1e-12).fit, p.X, p.Y, **p.data)
    link = name if name in ("softplus", "exp") else None
    more = {"dispersion": A} if name == "NegativeBinomial" else {}
    ridge = PopulationGLM(link, "Ridge", strength, tol=1e-12, observation_model="Poisson" if link else name, **more)
    quiet(ridge.fit, p.X, p.Y, **p.data)
    for n in range(p.Y.shape[1]):
        size = np.abs(np.asarray(p.X, float)).max(axis=0)
        np.testing.assert_allclose(
            (model.coef_ * size[:, None])[:, n],
            (ridge.coef_ * size[:, None])[:, n],
            atol=1e-4 * np.abs(ridge.coef_ * size[:, None]).max(),
        )
    np.testing.assert_allclose(model.report_.objective, ridge.report_.objective, rtol=1e-9)


def test_omitted_directions_would_gain_nothing():
    """Directions set to 0 are constant or redundant: the optimum over all directions is the same."""
    for seed in range(25):
        p = problem(seed, False)
        model = fitted(p)
        for n in np.flatnonzero(model.report_.status == Status.CONVERGED):
            one, strengths = of_neuron(p, n), np.nan_to_num(all_strengths(model)[:, n], nan=1.0)
            part = oracle.fit(one, strengths, model._smooth.turn[:, coordinates_of(model, p, n)])
            assert part.value - oracle.fit(one, strengths).value < 1e-7 * (1 + abs(part.value))


# ---------------------------------------------------------------- strengths by marginal likelihood


def curves(name, seed=0, t=500, n=2, noise=False):
    """Features of two splines, and responses that follow the first, and the second unless it is ``noise``."""
    rng = np.random.default_rng([seed, NAMES.index(name)])
    x, around = rng.uniform(0, 1, t), rng.uniform(0, 2 * np.pi, t)
    basis = BSpline(8, (0, 1), name="x") + CyclicBSpline(6, name="around")
    eta = np.sin(6 * x)[:, None] * rng.uniform(0.4, 1, n) + 0.5 * (not noise) * np.cos(around - 1)[:, None]
    trials = 5 if name == "Binomial" else 1
    Y = responses.draw(name, rng, eta, A, np.full(eta.shape, trials))
    data = {"exposure": np.full(t, 5.0)} if name == "Binomial" else {}
    p = SimpleNamespace(name=name, X=basis.features(x, around), Y=Y, terms=basis.terms, has={}, data=data)
    p.units, p.basis, p.strengths = np.full(t, float(trials)), basis, None
    return p


def in_nats(p, model, n):
    """Problem and strengths of a neuron in nats, at the scale of the fit."""
    phi, total = model._smooth.scale[n], len(p.X) * p.units[0]
    return of_neuron(p, n, total)._replace(phi=phi), all_strengths(model)[:, n] * total / phi


@every_name
def test_strengths_are_stationary_points_of_the_marginal_likelihood(name):
    p = curves(name)
    model = fitted(p, "marginal-likelihood")
    assert model.report_.converged.all()
    for n in range(2):
        one, strengths = in_nats(p, model, n)
        free, gradient = model.report_.at_end[:, n] == 0, oracle.gradient(one, strengths)
        assert np.abs(gradient[free]).max(initial=0.0) < 0.02
        assert abs(np.abs(gradient[free]).max(initial=0.0) - model.report_.strength_gradient[n]) < 2e-3
        assert np.all(gradient[model.report_.at_end[:, n] > 0] < 1e-2)
        if name in ("Gaussian", "Gamma"):
            found = oracle.fit(one, strengths)
            assert abs(oracle.pearson_scale(one, found) / one.phi - 1) < 1e-4


def without_what_is_missing(p, model, n):
    """Problem of a neuron in nats with the features it has, their strengths, and which of these are free."""
    (w, _), phi = weights_of(p, n), model._smooth.scale[n]
    total, missing = w.sum() ** 2 / (w**2).sum(), {name for name, of in p.has.items() if not of[n]}
    gone = np.concatenate([[name in missing] * len(term.penalties) for name, term in p.terms.items()]).astype(bool)
    kept = np.setdiff1d(np.arange(p.X.shape[1]), [f for name in missing for f in p.terms[name].features]).astype(int)
    one = of_neuron(p, n, total)
    S = [S[np.ix_(kept, kept)] for S, no in zip(one.S, gone, strict=True) if not no]
    one = one._replace(X=one.X[:, kept], S=S, phi=phi)
    return one, all_strengths(model)[~gone, n] * total / phi, model.report_.at_end[~gone, n] == 0


@pytest.mark.parametrize("part", range(3))
@pytest.mark.thorough
def test_strengths_of_random_problems_are_stationary_points(part):
    slopes = []
    for seed in range(40 * part, 40 + 40 * part):
        p = problem(seed, False)
        # Exposures that vary have a test of their own.
        if "exposure" in p.data or not p.terms:
            continue
        model = fitted(p, "marginal-likelihood")
        for n in np.flatnonzero(model.report_.status == Status.CONVERGED):
            one, strengths, free = without_what_is_missing(p, model, n)
            if free.any():
                slopes.append(np.abs(oracle.gradient(one, strengths)[free]).max())
    assert len(slopes) > 15
    assert np.mean(np.array(slopes) < 0.03) > 0.97 and max(slopes) < 0.1


@pytest.mark.thorough(cases=1)
@every_name
def test_strengths_are_as_good_as_the_best_of_several_starts(name):
    worse = []
    for seed in range(4):
        p = curves(name, seed, t=200)
        model = fitted(p, "marginal-likelihood")
        for n in range(2):
            one, strengths = in_nats(p, model, n)
            low, high = np.full(2, 1e-5), np.full(2, 1e7)
            starts = [[a, b] for a in (1e-1, 1e4) for b in (1e-1, 1e4)]
            _, values = oracle.strengths_of(one, starts, low, high)
            worse.append(oracle.criterion(one, np.clip(strengths, low, high)) - values[0])
    assert np.mean(np.array(worse) < 0.02) > 0.8


@pytest.mark.parametrize("kind", ["mixed", "commuting", "ard"])
def test_strengths_of_several_penalties_of_a_term_are_stationary_points(kind):
    p, rng = curves("exp", 1), np.random.default_rng(5)
    k, S = 8, p.terms["x"].penalties[0]
    if kind == "ard":
        terms = {"x": Term.ard(range(k)), "around": p.terms["around"]}
    else:
        other = np.eye(k) if kind == "commuting" else np.diag(rng.uniform(0.1, 5, k))
        terms = {"x": Term(range(k), (S, other)), "around": p.terms["around"]}
    p.terms = terms
    model = fitted(p, "marginal-likelihood")
    assert model.report_.converged.all()
    for n in range(2):
        one, strengths = in_nats(p, model, n)
        free = model.report_.at_end[:, n] == 0
        assert np.abs(oracle.gradient(one, strengths)[free]).max(initial=0.0) < 0.02
        gap, rounding, _ = excess(model, p, n)
        assert gap <= model.report_.gap[n] + rounding


def test_a_matrix_c_times_as_large_has_a_strength_c_times_smaller():
    p = curves("exp")
    c = {"x": 1e3, "around": 1e-4}
    scaled = {name: Term(t.features, [c[name] * S for S in t.penalties]) for name, t in p.terms.items()}
    one = fitted(p, "marginal-likelihood")
    p.terms = scaled
    two = fitted(p, "marginal-likelihood")
    for name in c:
        np.testing.assert_allclose(two.strengths_[name] * c[name], one.strengths_[name], rtol=1e-3)
        np.testing.assert_allclose(two.edf_[name], one.edf_[name], rtol=1e-4)
    np.testing.assert_allclose(two.predict(p.X), one.predict(p.X), rtol=1e-4)


@every_name
def test_a_noise_term_shrinks_to_almost_nothing(name):
    """About half of the null effects have no best strength: they end with almost nothing left of the term."""
    p = curves(name, 2, noise=True, n=12, t=300)
    model = fitted(p, "marginal-likelihood")
    assert model.report_.converged.all() and model.report_.strength_gradient.max() < 0.01
    assert np.sum(model.edf_["around"] < 0.05) > 3
    assert np.all(model.edf_["around"] < 3) and np.all(model.edf_["x"] > 1)


# ---------------------------------------------------------------- strengths by cross-validation


def held_out_loss(p, n, strengths, folds):
    """Sum of the losses of blocks after refits to the other rows, at strengths for mean losses."""
    total = 0.0
    one = of_neuron(p, n, len(p.X))
    for train, test in folds:
        part = one._replace(X=one.X[train], y=one.y[train], v=one.v[train], offset=one.offset[train])
        found = oracle.fit(part, np.asarray(strengths) * one.v[train].sum())
        eta = one.X[test] @ found.coef + found.intercept + one.offset[test]
        total += np.sum(one.v[test] * responses.loss(p.name, one.y[test], eta, A))
    return total


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["exp", "Bernoulli", "Gaussian"])
def test_strengths_by_cross_validation_predict_blocks_as_well_as_the_best_of_a_grid(name):
    p = curves(name, n=3, t=300)
    p.X, p.terms = p.X[:, :8], {"x": p.terms["x"]}
    folds = [(np.flatnonzero(np.arange(300) % 4 != k), np.flatnonzero(np.arange(300) % 4 == k)) for k in range(4)]
    model = fitted(p, "cross-validation", cv=folds)
    assert model.report_.converged.all() and model.report_.strengths_by == "cross-validation"
    for n in range(3):
        chosen = held_out_loss(p, n, model.strengths_["x"][:, n], folds)
        best = min(held_out_loss(p, n, [s], folds) for s in 10.0 ** np.arange(-8, 3))
        assert chosen <= best + 0.1  # nats: fits without a block are one Newton step from the fit to all rows
        gap, rounding, _ = excess(model, p, n)
        assert gap <= model.report_.gap[n] + rounding


# ---------------------------------------------------------------- what must not matter


@pytest.mark.parametrize("name", ["softplus", "Gaussian", "NegativeBinomial"])
def test_a_neuron_among_many_equals_that_neuron_alone(name):
    p = curves(name, n=5)
    p.Y[np.random.default_rng(0).random(p.Y.shape) < 0.1] = np.nan
    model = fitted(p, "marginal-likelihood")
    for n in (0, 3):
        alone = quiet(estimator(name, p.terms).fit, p.X, p.Y[:, n])
        assert alone.coef_.ndim == 1
        np.testing.assert_allclose(alone.predict(p.X), model.predict(p.X)[:, n], rtol=2e-3, atol=1e-4)
        for term in p.terms:
            np.testing.assert_allclose(alone.edf_[term], model.edf_[term][n], rtol=1e-3, atol=1e-3)


def test_neurons_terms_and_rows_may_come_in_any_order():
    p, rng = curves("exp", n=4), np.random.default_rng(0)
    model = fitted(p, "marginal-likelihood")
    rows, neurons = rng.permutation(len(p.X)), rng.permutation(4)
    terms = dict(reversed(p.terms.items()))
    other = quiet(estimator("exp", terms).fit, p.X[rows], p.Y[rows][:, neurons])
    np.testing.assert_allclose(other.predict(p.X), model.predict(p.X)[:, neurons], rtol=2e-3)
    for name in terms:
        np.testing.assert_allclose(other.edf_[name], model.edf_[name][neurons], rtol=1e-3)


@pytest.mark.parametrize("strengths", ["marginal-likelihood", 0.01])
def test_features_may_come_in_any_order_and_single_precision(strengths):
    p = curves("exp", n=3)
    order = np.random.default_rng(0).permutation(p.X.shape[1])
    back = np.argsort(order)
    terms = {name: Term([int(back[f]) for f in t.features], t.penalties) for name, t in p.terms.items()}
    model = fitted(p, strengths)
    for X, given in ((p.X[:, order], terms), (p.X.astype(np.float32), p.terms)):
        other = quiet(estimator("exp", given, strengths).fit, X, p.Y)
        np.testing.assert_allclose(other.predict(X), model.predict(p.X), rtol=2e-3)


@pytest.mark.parametrize("strengths", ["marginal-likelihood", 0.01])
def test_the_same_call_gives_the_same_bits(strengths):
    p = curves("softplus", n=9, t=3000)
    one, two = fitted(p, strengths), fitted(p, strengths)
    np.testing.assert_array_equal(one.coef_, two.coef_)
    np.testing.assert_array_equal(all_strengths(one), all_strengths(two))
    np.testing.assert_array_equal(one.report_.gap, two.report_.gap)


def test_a_common_factor_of_weights_changes_nothing_and_weight_0_drops_a_row():
    p, rng = curves("Bernoulli"), np.random.default_rng(0)
    some = rng.random(len(p.X)) < 0.7
    left = quiet(estimator("Bernoulli", p.terms).fit, p.X[some], p.Y[some])
    by_weights = quiet(estimator("Bernoulli", p.terms).fit, p.X, p.Y, sample_weight=7.0 * some)
    by_nan = quiet(estimator("Bernoulli", p.terms).fit, p.X, np.where(some[:, None], p.Y, np.nan))
    for other in (by_weights, by_nan):
        np.testing.assert_allclose(other.predict(p.X), left.predict(p.X), atol=1e-3)
        np.testing.assert_allclose(all_strengths(other), all_strengths(left), rtol=2e-2)


def test_a_constant_exposure_equals_that_many_rows():
    rng = np.random.default_rng(0)
    basis, x = BSpline(8, (0, 1), name="x"), rng.uniform(0, 1, 400)
    X, one, two = basis.features(x), *rng.poisson(np.exp(np.sin(6 * x)), (2, 400))
    summed = estimator("exp", basis).fit(X, one + two, exposure=np.full(400, 2.0))
    rows = estimator("exp", basis).fit(np.vstack([X, X]), np.r_[one, two])
    np.testing.assert_allclose(summed.strengths_["x"], rows.strengths_["x"], rtol=1e-3)
    np.testing.assert_allclose(summed._smooth.covariance["x"], rows._smooth.covariance["x"], rtol=1e-3, atol=1e-7)


def test_varying_exposures_equal_offsets_of_their_logarithm():
    rng = np.random.default_rng(0)
    basis, x, e = BSpline(8, (0, 1), name="x"), rng.uniform(0, 1, 500), rng.choice([1.0, 20.0], 500)
    X, y = basis.features(x), rng.poisson(e * np.exp(np.sin(6 * x)))
    one = estimator("exp", basis).fit(X, y, exposure=e)
    two = estimator("exp", basis).fit(X, y, offset=np.log(e))
    np.testing.assert_allclose(one.edf_["x"], two.edf_["x"], rtol=1e-3)
    V = [model._smooth.covariance["x"][:, :-1, :-1] for model in (one, two)]  # means of features differ
    np.testing.assert_allclose(V[0], V[1], rtol=1e-2, atol=1e-6)


def test_binomial_trials_equal_as_many_bernoulli_rows():
    rng = np.random.default_rng(0)
    basis, x, k = BSpline(8, (0, 1), name="x"), rng.uniform(0, 1, 300), rng.choice([1, 20], 300)
    single = np.repeat(x, k)
    yes = rng.binomial(1, 1 / (1 + np.exp(-np.sin(6 * single))))
    total = np.add.reduceat(yes, np.r_[0, np.cumsum(k)[:-1]])
    one = estimator("Binomial", basis).fit(basis.features(x), total, exposure=k)
    two = estimator("Bernoulli", basis).fit(basis.features(single), yes)
    np.testing.assert_allclose(one.edf_["x"], two.edf_["x"], rtol=1e-3)


def test_masking_terms_equals_a_fit_without_them():
    p = curves("exp", n=3)
    model = quiet(estimator("exp", p.terms, feature_mask={"around": [1, 0, 1]}).fit, p.X, p.Y)
    alone = quiet(estimator("exp", {"x": p.terms["x"]}).fit, p.X[:, :8], p.Y[:, 1])
    np.testing.assert_allclose(model.predict(p.X)[:, 1], alone.predict(p.X[:, :8]), rtol=1e-3)
    np.testing.assert_allclose(model.edf_["x"][1], alone.edf_["x"], rtol=1e-3)
    assert model.edf_["around"][1] == 0 and not model.coef_[8:, 1].any()
    assert model.edf_["around"][0] > 0.5 and model.coef_[8:, 0].any()


@pytest.mark.parametrize("strengths", ["marginal-likelihood", 0.01])
def test_a_term_that_a_neuron_does_not_have_has_no_covariance(strengths):
    p = curves("exp", n=3)
    model = quiet(estimator("exp", p.terms, strengths, feature_mask={"around": [1, 0, 1]}).fit, p.X, p.Y)
    V = model._smooth.covariance["around"][1][:-1, :-1]
    assert np.all((V == 0) | np.isnan(V))


# ---------------------------------------------------------------- data at the edges


@every_name
def test_neurons_without_a_fit_do_not_change_the_others(name):
    p = curves(name, n=4)
    clean = fitted(p, "marginal-likelihood")
    before = p.Y.copy()
    p.Y[:, 1] = np.nan
    p.Y[:, 3] = 1.0 if name == "Gamma" else 0.0
    model = fitted(p, "marginal-likelihood")
    status = model.report_.status
    assert (
        status[1] == Status.NO_DATA and np.isnan(model.coef_[:, 1]).all() and np.isnan(model.predict(p.X)[:, 1]).all()
    )
    if name not in ("Gamma", "Gaussian"):
        assert status[3] == Status.NO_SPIKES and not model.predict(p.X)[:, 3].any()
    assert all(np.isnan(V[1]).all() for V in model._smooth.covariance.values())
    for n in (0, 2):
        np.testing.assert_allclose(model.predict(p.X)[:, n], clean.predict(p.X)[:, n], rtol=2e-3, atol=1e-4)
    str(model.report_)
    np.testing.assert_array_equal(before[:, 0], p.Y[:, 0])


def few_spikes(link, counts):
    """Fit neurons with few spikes."""
    rng = np.random.default_rng(0)
    basis, x = BSpline(20, (0, 1), name="x"), rng.uniform(0, 1, 2000)
    Y = np.zeros((2000, len(counts)))
    for n, count in enumerate(counts):
        Y[rng.choice(2000, count, replace=False), n] = 1
    X = basis.features(x)
    return quiet(PopulationGAM(basis, inverse_link_function=link).fit, X, Y), X, basis


@pytest.mark.parametrize("link", ["softplus", "exp"])
def test_three_spikes_are_enough_for_a_fit(link):
    model, X, basis = few_spikes(link, [3, 3, 2])
    assert model.report_.converged.all() and np.isfinite(model._smooth.covariance["x"]).all()
    np.testing.assert_allclose(model.predict(X).sum(axis=0), [3, 3, 2], rtol=1e-3 if link == "exp" else 0.1)
    curve = model.predict(basis.on_grid(np.linspace(0, 1, 200)))
    assert np.all(curve < 1)


def test_strengths_that_have_not_settled_are_named():
    rng = np.random.default_rng(1)
    basis, x = BSpline(12, (0, 1), name="x"), rng.uniform(0, 1, 1500)
    Y = rng.poisson(np.exp(2 * np.sin(8 * x[:, None]) - [1.0, 9.0]))
    with pytest.warns(ConvergenceWarning) as told:
        model = PopulationGAM(basis, max_epochs=8, select=True).fit(basis.features(x), Y)
    unsettled = model.report_.unsettled
    assert unsettled == ["1"] and any(f"({', '.join(unsettled)}) have not settled" in str(w.message) for w in told)
    assert "a local optimum" not in str(model.report_) and "have not settled" in str(model.report_)
    settled = PopulationGAM(basis).fit(basis.features(x), Y[:, 0])
    assert not settled.report_.unsettled and "a local optimum" in str(settled.report_)


def test_one_spike_ends_at_a_limit_of_the_strengths():
    """Its marginal likelihood has no best strength: the narrower a peak at the spike, the more likely it is."""
    model, *_ = few_spikes("exp", [1])
    assert model.report_.converged.all()


@pytest.mark.parametrize("rate", [60.0, 1000.0])
def test_high_rates_are_fitted_with_the_softplus(rate):
    rng = np.random.default_rng(0)
    basis, x = BSpline(8, (0, 1), name="x"), rng.uniform(0, 1, 500)
    mean = rate * (1 + 0.3 * np.sin(6 * x))
    model = quiet(PopulationGAM(basis).fit, basis.features(x), rng.poisson(mean))
    assert model.report_.converged.all()
    np.testing.assert_allclose(model.predict(basis.features(x)), mean, rtol=0.2)


def test_unvisited_places_follow_their_neighbours():
    rng = np.random.default_rng(0)
    x = np.where(rng.random(1500) < 0.5, rng.uniform(0, 0.3, 1500), rng.uniform(0.7, 1, 1500))
    basis = BSpline(20, (0, 1), name="x")
    model = PopulationGAM(basis, inverse_link_function="exp").fit(basis.features(x), rng.poisson(np.exp(2 * x)))
    assert model.report_.converged.all()
    between = np.log(model.predict(basis.on_grid(np.linspace(0.35, 0.65, 7))))
    np.testing.assert_allclose(between, 2 * np.linspace(0.35, 0.65, 7), atol=0.3)


@pytest.mark.parametrize("strength", [0.0, 1e-12, 1e12])
def test_strengths_may_be_tiny_huge_or_0(strength):
    p = curves("exp", n=2)
    model = quiet(estimator("exp", p.terms, strength).fit, p.X, p.Y)
    assert model.report_.converged.all()
    edf = np.array(list(model.edf_.values()))
    np.testing.assert_allclose(edf, [[7, 7], [5, 5]] if strength < 1 else [[1, 1], [0, 0]], atol=1e-3)


def test_features_of_any_size_and_place_give_the_same_curves():
    p, rng = curves("exp", n=2), np.random.default_rng(0)
    X = np.column_stack([p.X, rng.normal(size=(len(p.X), 2))])
    model = quiet(estimator("exp", p.terms).fit, X, p.Y)
    far = X.copy()
    far[:, -2:] = far[:, -2:] * [1e-6, 1e5] + [3.0, -1e7]
    moved = quiet(estimator("exp", p.terms).fit, far, p.Y)
    assert moved.report_.converged.all()
    np.testing.assert_allclose(moved.predict(far), model.predict(X), rtol=2e-3)


# ---------------------------------------------------------------- files and clones


def test_files_and_clones_keep_everything(tmp_path):
    p = curves("Gamma", n=3)
    model = quiet(PopulationGAM(p.basis, observation_model="Gamma").fit, p.X, p.Y)
    loaded = PopulationGAM.load(model.save(tmp_path / "model.npz"))
    np.testing.assert_array_equal(loaded.predict(p.X), model.predict(p.X))
    assert loaded.terms_ == model.terms_ and loaded.terms == model.terms
    for name in p.terms:
        np.testing.assert_array_equal(loaded.strengths_[name], model.strengths_[name])
        np.testing.assert_array_equal(loaded.edf_[name], model.edf_[name])
        np.testing.assert_array_equal(loaded._smooth.covariance[name], model._smooth.covariance[name])
    assert str(loaded.report_) == str(model.report_)
    again = quiet(clone(loaded).fit, p.X, p.Y)
    np.testing.assert_array_equal(again.coef_, model.coef_)


@pytest.mark.parametrize("one", [False, True])
def test_files_keep_models_of_terms_without_a_basis(tmp_path, one):
    p = curves("exp", n=2)
    terms = {"a": Term([0, 1, 2], (np.eye(3), np.ones((3, 3)))), "b": [3, 4], "c": Term([5], ())}
    model = quiet(PopulationGAM(terms, inverse_link_function="exp").fit, p.X, p.Y[:, 0] if one else p.Y)
    loaded = PopulationGAM.load(model.save(tmp_path / "model"))
    assert loaded.terms_ == model.terms_ and list(loaded.edf_) == ["a", "b", "c"]
    for name in terms:
        np.testing.assert_array_equal(loaded.strengths_[name], model.strengths_[name])
        np.testing.assert_array_equal(loaded.edf_[name], model.edf_[name])
        assert type(loaded.edf_[name]) is type(model.edf_[name])


def test_parameters_are_set_as_scikit_learn_sets_them():
    p = curves("exp")
    model = PopulationGAM(p.basis).set_params(inverse_link_function="exp", strengths=0.1)
    assert clone(model).get_params()["strengths"] == 0.1
    first = quiet(model.fit, p.X, p.Y).coef_
    second = quiet(model.set_params(strengths={"x": 0.1, "around": [0.1]}).fit, p.X, p.Y).coef_
    np.testing.assert_allclose(first, second, rtol=1e-6)


def test_a_fit_that_fails_leaves_the_model_as_it_was():
    p = curves("exp")
    model = quiet(estimator("exp", p.basis, 0.1).fit, p.X, p.Y)
    before = model.coef_.copy()
    with pytest.raises(ValueError):
        model.fit(p.X[:, :5], p.Y)
    np.testing.assert_array_equal(model.coef_, before)
    assert model.n_features_in_ == p.X.shape[1]


def sparse_places():
    """Places of a walk that leaves corners empty, and neurons with few spikes, some of which come alone."""
    rng = np.random.default_rng(3)
    u = np.clip(np.cumsum(rng.normal(size=(6000, 2)) * 0.03, axis=0) % 2 - 0.5, 0, 1)
    b = product(BSpline(8, (0, 1), name="x"), BSpline(8, (0, 1), name="y"), name="place")
    centre = rng.uniform(0, 1, (12, 2))
    rate = 0.3 * np.exp(-((u[:, None] - centre) ** 2).sum(axis=2) / 0.02)
    return b, b.features(*u.T), rng.poisson(rate)


@pytest.mark.thorough
@pytest.mark.parametrize("smooth", [True, False])
def test_a_population_converges_where_each_neuron_does(smooth):
    b, X, Y = sparse_places()
    terms = b if smooth else None
    model = quiet(PopulationGAM(terms).fit, X, Y)
    alone = [quiet(PopulationGAM(terms).fit, X, y).report_.converged for y in Y.T]
    assert model.report_.converged.sum() >= np.sum(alone) and np.sum(alone) >= 10


def test_neurons_near_their_optimum_are_proved_when_the_rounds_end():
    rng = np.random.default_rng(0)
    x = rng.random((1500, 1)) * 3
    counts = rng.poisson(np.exp(np.sin(3 * x) - 1) * np.ones((1, 4))).astype(float)
    counts[:, 0] = np.exp(rng.normal(size=1500) * 8).round()  # which takes long
    terms = {"x": Term([0], [[[1.0]]])}
    status = quiet(PopulationGAM(terms, max_epochs=15).fit, x, counts).report_.status
    assert np.all(status[1:] == Status.CONVERGED)


# ------------------------------------------------------------------------------------------ features of any units


def least_loss(X, y):
    """Least mean loss of Poisson counts with the softplus link, by SciPy, of features in their own units."""
    Z = np.column_stack([(X - X.mean(axis=0)) / X.std(axis=0), np.ones(len(X))])

    def loss(w):
        rate = np.logaddexp(0, Z @ w)
        return np.mean(rate - y * np.log(rate))

    return scipy.optimize.minimize(loss, np.append(np.zeros(X.shape[1]), -1.0), tol=1e-14).fun


def test_a_mask_keeps_features_of_small_units(rng):
    X = np.column_stack([rng.normal(size=500) * 5e3, rng.normal(size=500) * 1e-4])
    y = rng.poisson(np.logaddexp(0, 1e4 * X[:, 1]))
    model = PopulationGLM(regularizer=None, feature_mask=[[1, 0], [1, 1]]).fit(X, np.column_stack([y, y]))
    assert model.report_.converged.all() and model.report_.gap_is_bound.all()
    for k, features in enumerate(([0, 1], [1])):
        assert abs(model.report_.objective[k] - least_loss(X[:, features], y)) <= model.report_.gap[k] + 1e-9


def test_a_clock_is_a_feature(rng):
    t = np.arange(100.0)
    X, y = np.column_stack([1.7e9 + t / 20, rng.normal(size=100)]), rng.poisson(np.exp(t / 50 - 1))
    models = [
        PopulationGAM({"s": Term([1], [np.eye(1)])}, strengths={"s": 1e-3}).fit(x, y) for x in (X, X - [1.7e9, 0])
    ]
    objectives = [float(model.report_.objective[0]) for model in models]
    np.testing.assert_allclose(objectives[0], objectives[1], rtol=1e-9)
    np.testing.assert_allclose(models[0].coef_, models[1].coef_, rtol=1e-6)


def test_masked_coefficients_are_exactly_0(rng):
    X = rng.normal(size=(40, 4))
    X[:, 1] = X[:, 0]
    X = np.column_stack([X, X[:, 2]])
    mask = np.array([[1, 1], [1, 1], [1, 0], [1, 1], [1, 1]])
    coef = quiet(PopulationGLM(regularizer=None, feature_mask=mask).fit, X, rng.poisson(1.0, (40, 2))).coef_
    assert np.all(coef[mask == 0] == 0) and coef[mask == 1].any()


def test_features_that_do_not_vary_leave_constant_rates(rng):
    Y = rng.poisson(1.0, (100, 2))
    model = quiet(PopulationGLM(regularizer=None, feature_mask=[[1, 1], [0, 1]]).fit, np.ones((100, 2)), Y)
    assert not model.coef_.any() and model.report_.converged.all()
    np.testing.assert_allclose(model.predict(np.ones((1, 2)))[0], Y.mean(axis=0))


@pytest.mark.parametrize("unit", [1e-7, 1e-10])
@pytest.mark.parametrize("penalised", [True, False])
def test_units_of_single_features_change_no_fit(unit, penalised, rng):
    """Neither of a feature with a ridge nor of one that the penalty of its term leaves free."""
    Z = rng.normal(size=(400, 2))
    y = rng.poisson(np.exp(Z @ [0.5, 0.7] - 0.5))
    term = Term((0, 1), (np.eye(2) if penalised else np.diag([1.0, 0.0]),))
    model = PopulationGAM({"a": term}, strengths=0.0 if penalised else 1e-3, inverse_link_function="exp")
    one, other = (clone(model).fit(Z * [1, u], y) for u in (1, unit))
    assert other.report_.gap_is_bound.all() and other.report_.converged.all()
    np.testing.assert_allclose(other.report_.objective, one.report_.objective, rtol=1e-10)
    np.testing.assert_allclose(other.coef_ * [1, unit], one.coef_, rtol=1e-6)


def test_what_repeats_others_but_for_little_is_not_proved(rng):
    Z = rng.normal(size=(400, 3))
    y = rng.poisson(np.exp(0.5 * Z[:, 0] + 0.4 * Z[:, 1] - 0.5))
    for distance, proved in ((1e-4, True), (3e-7, False), (0.0, True)):
        X = np.column_stack([Z[:, 0], Z[:, 0] + distance * Z[:, 1], Z[:, 2]])
        model = quiet(PopulationGAM({"r": [2]}, strengths=1e-3, inverse_link_function="exp").fit, X, y)
        assert model.report_.gap_is_bound.all() == proved
