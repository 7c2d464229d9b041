"""Laws of nested models: held-out losses match the oracle, bounds hold, and nulls are as documented."""

import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from oracles import nested as oracle
from oracles import responses

import glmfit.threads as threads
from glmfit import PopulationGLM, PopulationGLMCV
from glmfit.engine.nested import models as fits_module
from glmfit.engine.nested.blocks import Blocks, sets_of_blocks
from glmfit.engine.nested.moments import Moments
from glmfit.engine.nested.neuron import Neuron
from glmfit.engine.nested.response import Response
from glmfit.engine.nested.search import Nested, Responses
from glmfit.engine.nested.search import _first as first_anchor
from glmfit.inference import CircularShift, Counts, Designs, LinearShift, Permutation, explain
from glmfit.inference.explained import work as work_module
from glmfit.inference.explained.nulls import Rows
from glmfit.inference.explained.testing import Statistics, Verdicts
from glmfit.observations import Bernoulli, Gamma, Gaussian, PoissonExp, PoissonSoftplus

LOSSES = {
    "softplus": PoissonSoftplus, "exp": PoissonExp, "Bernoulli": Bernoulli, "Binomial": Bernoulli, "Gamma": Gamma,
    "Gaussian": Gaussian,
}  # fmt: skip
A = 0.5  # dispersion of negative binomial counts


def quiet(function, *given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*given, **named)


def folds_of(number, n_held):
    return [(np.flatnonzero(number != k), np.flatnonzero(number == k)) for k in range(n_held)]


def estimator(name, strengths=(1e-3, 1e-1), regularizer="Ridge", **parameters):
    link = name if name in ("softplus", "exp") else None
    more = {"dispersion": A} if name == "NegativeBinomial" else {}
    given = {"strengths": list(strengths), "tol": 1e-8, "cv_tol": 1e-8} | parameters | more
    return PopulationGLMCV(link, regularizer, observation_model="Poisson" if link else name, **given)


def recording(name, seed, t=100, d=3, n=1):
    """Features, responses, other arguments of a fit, and for the oracle: shares, weights, offset, (row, neuron)."""
    rng = np.random.default_rng([seed, responses.NAMES.index(name)])
    X = rng.normal(size=(t, d)) @ (np.eye(d) + 0.3 * rng.normal(size=(d, d))) + rng.normal(size=d)
    offset = 0.3 * rng.normal(size=t)
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(d, n)) * 0.4 + 0.3 * rng.normal(size=n) + offset[:, None]
    weight, units = rng.uniform(0.2, 3, t), np.ones(t)
    if name == "Binomial":
        units = rng.integers(1, 9, t).astype(float)
        Y = responses.draw(name, rng, eta, A, units[:, None].astype(int))
    elif name in ("softplus", "exp"):
        units = rng.uniform(0.5, 2, t)
        Y = rng.poisson(responses.mean(name, eta) * units[:, None]).astype(float)
    else:
        Y = responses.draw(name, rng, eta, A)
    seen = rng.random(Y.shape) > 0.15
    Y = np.where(seen, Y, np.nan)
    more = {"sample_weight": weight, "offset": offset} | ({} if np.all(units == 1) else {"exposure": units})
    shares = np.where(seen, Y, 1.0) / units[:, None]
    return X, Y, more, (shares, (weight * units)[:, None] * seen, offset)


def unit_of(name, y, v, offset):
    """Divisor that turns losses of the oracle into nats."""
    if name == "Gaussian":
        left = y - offset
        return np.average((left - np.average(left, weights=v)) ** 2, weights=v)
    if name == "Gamma":
        q = y / np.exp(np.average(np.log(y), weights=v))
        return np.average(q**2, weights=v) / np.average(q, weights=v) ** 2 - 1
    return 1.0


# ---------------------------------------------------------------- the oracle


@pytest.mark.thorough
@pytest.mark.parametrize("name", responses.NAMES)
def test_contributions_and_strengths_match_the_oracle(name):
    X, Y, more, (shares, v, offset) = recording(name, 0)
    number, strengths = np.arange(len(X)) * 3 // len(X), [1e-3, 1e-1]
    model = estimator(name, strengths, tol=1e-9, cv_tol=1e-9)
    found = quiet(explain, model, X, Y, **more, cv=folds_of(number, 3))
    loss, chosen, scores = oracle.held_out(
        name, X, shares[:, 0], v[:, 0], offset, number, 3, found.members, strengths, A
    )
    unit = unit_of(name, shares[:, 0], v[:, 0], offset)
    np.testing.assert_allclose((found.loss[0] - found.loss)[..., 0], (loss[0] - loss) / unit, atol=1e-4)
    for c, of in enumerate(found.contributions):
        assert abs(found.contribution[c, 0] - (loss[of.less] - loss[of.more]).sum() / unit) < 3e-4
    clear = np.abs(np.diff(scores, axis=1)[:, 0]) > 1e-6
    clear[0] = False  # the constant has no strength
    assert clear.sum() > 12
    np.testing.assert_array_equal(found.strength[..., 0][clear], np.asarray(strengths)[chosen][clear])
    assert found.n_proved.sum() > 0.7 * found.n_fits.sum() > 0


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["exp", "Bernoulli"])
@pytest.mark.parametrize("regularizer, ratio", [("Lasso", 1.0), ("ElasticNet", 0.5)])
def test_losses_with_kinked_penalties_match_the_oracle(name, regularizer, ratio):
    X, Y, more, (shares, v, offset) = recording(name, 1)
    number, strengths = np.arange(len(X)) * 3 // len(X), [3e-3, 1e-1]
    model = estimator(name, strengths, regularizer, **({"l1_ratio": 0.5} if regularizer == "ElasticNet" else {}))
    found = quiet(explain, model, X, Y, {"a": 0, "b": [1, 2]}, kinds="unique", **more, cv=folds_of(number, 3))
    loss, *_ = oracle.held_out(
        name, X, shares[:, 0], v[:, 0], offset, number, 3, found.members, strengths, A, l1_ratio=ratio
    )
    np.testing.assert_allclose((found.loss[0] - found.loss)[..., 0], loss[0] - loss, atol=1e-3)
    assert np.isinf(found.loss_off[1:]).all()


def test_losses_without_a_penalty_match_the_oracle():
    X, Y, more, (shares, v, offset) = recording("exp", 2)
    number = np.arange(len(X)) * 3 // len(X)
    model = PopulationGLM("exp", "UnRegularized", tol=1e-12)
    found = quiet(explain, model, X, Y, **more, cv=folds_of(number, 3))
    loss, *_ = oracle.held_out("exp", X, shares[:, 0], v[:, 0], offset, number, 3, found.members, [0.0])
    np.testing.assert_allclose((found.loss[0] - found.loss)[..., 0], loss[0] - loss, atol=1e-3)


# ---------------------------------------------------------------- no bound is violated


def problem(seed, hard):
    """Return a random problem; ``hard`` ones contain whatever could break a proof, others resemble recordings."""
    rng = np.random.default_rng([seed, 9])
    name = str(rng.choice(list(LOSSES)))
    t, d, k = int(rng.choice([40, 60, 100, 200, 400])), int(rng.integers(1, 7)), int(rng.integers(3, 6))
    X = rng.normal(size=(t, d))
    if rng.random() < 0.4:
        X = X @ rng.normal(size=(d, d))
    if rng.random() < 0.25:
        X = 0.3 * np.cumsum(X, axis=0)
    if hard and rng.random() < 0.25 and d > 1:
        X[:, 1] = X[:, 0] + 10.0 ** rng.uniform(-9, -1) * X[:, 1]
    if hard and rng.random() < 0.25:  # rows of one fold only
        first = rng.integers(t)
        X[:, 0] = 0
        X[first : first + rng.integers(1, max(2, t // k)), 0] = rng.choice([1, 30.0])
    if hard and rng.random() < 0.2:
        X[rng.integers(t), rng.integers(d)] *= 10.0 ** rng.uniform(0, 3)
    spread = np.where(X.std(axis=0) > 0, X.std(axis=0), 1.0)
    base = (X - X.mean(axis=0)) / spread
    if rng.random() < 0.4:
        X = X * 10.0 ** rng.uniform(-4, 4, size=d)
    if rng.random() < 0.3:
        X = X + 10.0 ** rng.uniform(0, 6 if hard else 3) * (X.std(axis=0) + 1e-3) * rng.normal(size=d)
    level = rng.uniform(-5, 3) if name in ("softplus", "exp") else rng.uniform(-3, 2)
    effect = base @ rng.normal(size=d) * 10.0 ** rng.uniform(-1.5, 0.7 if hard else 0.0)
    eta = np.minimum(np.clip(effect, -20, 8) + level, 9)
    offset = rng.normal(size=t) * 10.0 ** rng.uniform(-1, 0.5) if rng.random() < 0.3 else None
    trials = rng.integers(1, 9, t) if name == "Binomial" else np.ones(t, int)
    y = responses.draw(name, rng, eta, A, trials) / trials
    y = np.maximum(y, 1e-12) if name == "Gamma" else y * (10.0 ** rng.integers(-3, 4) if name == "Gaussian" else 1)
    row = rng.uniform(0.2, 3, t) * 10.0 ** rng.integers(-2, 3) if rng.random() < 0.3 else None
    own = trials.astype(float) if name == "Binomial" else None
    if rng.random() < 0.4 or name == "Gaussian":
        own = (np.ones(t) if own is None else own) * (rng.random(t) > 0.2)
    number = rng.integers(0, k, t) if rng.random() < 0.2 else np.arange(t) * k // t
    number = np.where(rng.random(t) < 0.1, k, number) if rng.random() < 0.2 else number
    strengths = np.unique(10.0 ** rng.uniform(-9 if hard else -4, 1, size=rng.integers(1, 4)))
    masks = np.unique(np.vstack([np.zeros(d, bool), np.ones(d, bool), rng.random((3, d)) < 0.5]), axis=0)
    return SimpleNamespace(
        name=name, X=X, y=y, offset=offset, row=row, own=own, number=number, k=k, strengths=strengths, masks=masks,
        tol=10.0 ** rng.integers(-12, -3), rng=rng,
    )  # fmt: skip


def fits_of(p, monkeypatch, loose=None):
    """Run the search on a problem; return every batch of fits with its bounds and losses, the search and its result."""
    made, original = [], fits_module.Models.fit

    def fit(self, leads, lead, sets, target, keep=False, **named):
        fits = original(self, leads, lead, sets, target, keep, **named)
        loss, off = self.score(fits, ~self.neuron.sets[sets]) if keep else (None, None)
        made.append(SimpleNamespace(
            models=self, mask=self.masks[leads.model[lead]], strength=leads.strength[lead], sets=sets, at=fits.at,
            bound=fits.bound, loss=loss, off=off,
        ))  # fmt: skip
        return fits

    monkeypatch.setattr(fits_module.Models, "fit", fit)
    blocks = Blocks(p.X, p.number, p.k, p.row)
    nested = Nested(blocks, p.masks, p.strengths, p.tol, 10 * p.tol, loose)
    own, offset = (None if a is None else a[:, None] for a in (p.own, p.offset))
    held = nested.of_neuron(LOSSES[p.name](), Responses(p.y[:, None], own, own, offset), 0)
    monkeypatch.undo()
    return made, nested, held


def check_bounds(p, monkeypatch, most=8, loose=None):
    """Compare bounds with optima; return how many were compared and the largest ratio of a true gap to its bound."""
    made, nested, held = fits_of(p, monkeypatch, loose)
    blocks, name, d = nested.blocks, p.name, p.X.shape[1]
    v = np.ones(len(p.y)) * (1.0 if p.row is None else p.row) * (1.0 if p.own is None else p.own)
    y, offset = np.where(v > 0, p.y, 1.0), np.zeros(len(p.y)) if p.offset is None else p.offset
    Z, n, worst = (p.X - blocks.mean) / blocks.scale, 0, 0.0
    for of in made:
        finite = p.rng.permutation(np.flatnonzero(np.isfinite(of.bound)))[:most]
        for i in finite:
            members = of.models.inside[of.mask[i]][:-1]
            at = np.zeros(d + 1)
            at[of.models.inside] = of.at[i]
            assert not at[np.setdiff1d(np.arange(d), members)].any()
            weight = np.where(nested.sets[of.sets[i]][p.number], v, 0.0)
            ridge = of.strength[i] * weight.sum() / blocks.scale[members] ** 2
            given = name, Z[:, members], y, weight, offset
            best = min(
                (oracle.fit(*given, ridge, start=start) for start in (None, (at[members], at[-1]))),
                key=lambda found: oracle.value_of(*given, found.coef, found.intercept, ridge),
            )
            least = oracle.value_of(*given, best.coef, best.intercept, ridge)
            gap = float(oracle.value_of(*given, at[members], at[-1], ridge) - least)
            assert gap <= of.bound[i], (name, gap, of.bound[i], "a false proof")
            n, worst = n + 1, max(worst, gap / of.bound[i])
            if of.off is not None:
                for k in np.flatnonzero(~nested.sets[of.sets[i]]):
                    check_loss(name, Z[:, members], y, np.where(p.number == k, v, 0.0), offset, best, of, i, k)
    check_constant(p, nested, held, y, v, offset)
    return n, worst


def check_loss(name, Z, y, v, offset, best, of, i, k):
    """Check that a held-out loss is within its bound of that of the optimum, up to rounding."""
    rows = v > 0
    eta = (Z[rows].astype(np.longdouble) * best.coef).sum(axis=1) + np.longdouble(best.intercept) + offset[rows]
    each = v[rows] * oracle.loss_of(name, y[rows], eta)
    exact = float(each.sum() - (np.sum(v[rows] * y[rows].astype(np.longdouble) ** 2) / 2 if name == "Gaussian" else 0))
    size = float(np.sum(np.abs(each)) + np.sum(v[rows] * np.abs(y[rows]) * (np.abs(eta) + np.abs(y[rows]))))
    assert abs(of.loss[i, k] - exact) <= of.off[i, k] + 1e-8 * best.left + 1e-12 * (1 + size)


def check_constant(p, nested, held, y, v, offset):
    """Check that losses of the model without features are those of the best intercept."""
    constant = int(np.flatnonzero(~p.masks.any(axis=1))[0])
    for k in range(p.k):
        out = held.loss[constant, k, 0]
        if np.isfinite(out):
            weight, rows = np.where(p.number != k, v, 0.0), (p.number == k) & (v > 0)
            best = oracle.fit(p.name, p.X[:, :0], y, weight, offset, np.zeros(0))
            each = v[rows] * oracle.loss_of(p.name, y[rows], best.intercept + offset[rows])
            exact = float(each.sum() - (np.sum(v[rows] * y[rows] ** 2) / 2 if p.name == "Gaussian" else 0))
            size = np.abs(each).sum() + np.sum(v[rows] * y[rows] ** 2) * (p.name == "Gaussian")
            assert abs(out - exact) <= held.off[constant, k, 0] + 1e-11 * float(1 + size)


@pytest.mark.parametrize("seed", range(24))
def test_no_bound_is_violated(seed, monkeypatch):
    check_bounds(problem(seed, hard=False), monkeypatch, most=3)


@pytest.mark.parametrize("seed", range(6))
def test_no_bound_of_loose_fits_is_violated(seed, monkeypatch):
    p = problem(seed, hard=False)
    p.strengths = p.strengths[:1]
    check_bounds(p, monkeypatch, most=4, loose=1.0)


@pytest.mark.slow
@pytest.mark.parametrize("hard", [False, True])
def test_no_bound_of_many_problems_is_violated(hard, monkeypatch):
    n, worst, violated = 0, 0.0, []
    for seed in range(1000, 2000):
        try:
            found = check_bounds(problem(seed, hard), monkeypatch)
        except (AssertionError, np.linalg.LinAlgError) as error:
            violated.append((seed, str(error).splitlines()[0]))
            continue
        n, worst = n + found[0], max(worst, found[1])
    assert not violated and n > 10_000, (len(violated), violated[:5])
    assert 0.1 < worst <= 1


@pytest.mark.parametrize("scales", [(1, 1, 1, 1), (1e6, 1e-6, 1, 1e-3)])
@pytest.mark.parametrize("near", [None, 1e-4, 1e-8])
def test_losses_from_moments_are_within_their_bounds(scales, near):
    for seed, strength in ((0, 1e-12), (1, 1e-6), (2, 1e-3), (3, 1.0)):
        rng, t, k = np.random.default_rng(seed), 200, 4
        X = rng.normal(size=(t, 4))
        difference = X[:, 1].copy()
        if near:
            X[:, 1] = X[:, 0] + near * X[:, 1]
        y = X @ rng.normal(size=4) + difference + 0.5 * rng.normal(size=t)
        X, number = X * scales, np.arange(t) * k // t
        masks = np.array([[0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 1, 1]], bool)
        nested = Nested(Blocks(X, number, k), masks, np.array([strength]), 1e-12, 1e-12)
        held = Moments(nested).held_out(Responses(y[:, None]))
        for model, mask in enumerate(masks):
            for fold in range(k):
                train, x = number != fold, X[:, mask]
                best = oracle.fit("Gaussian", x, y, train * 1.0, np.zeros(t), strength * train.sum())
                out = ~train
                misfit = np.sum((y - x @ best.coef - best.intercept)[out] ** 2 - y[out] ** 2) / 2
                assert abs(held.loss[model, fold, 0] - misfit) <= held.off[model, fold, 0] + 1e-8 * best.left + 1e-10


# ---------------------------------------------------------------- what must not matter


def population(n=5, t=240, seed=3, name="softplus", d=4):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(t, d))
    eta = X @ (0.5 * rng.normal(size=(d, n))) + rng.normal(size=n) - 0.5
    return X, responses.draw(name, rng, eta, A), rng


GROUPS = {"a": [0, 1], "b": 2, "c": 3}


def same(one, other, neurons=slice(None), others=slice(None), **close):
    close = close or {"rtol": 0, "atol": 0}
    for name in ("loss", "loss_off", "strength", "gap", "n_fits", "n_proved", "p_value", "statistic", "n_draws"):
        np.testing.assert_allclose(getattr(one, name)[..., neurons], getattr(other, name)[..., others], **close)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["softplus", "Bernoulli", "Gaussian", "NegativeBinomial"])
def test_a_neuron_among_many_gives_the_same_result_as_alone(name):
    X, Y, _ = population(name=name)
    model = estimator(name, cv=4, tol=1e-6, cv_tol=1e-6)
    found = explain(model, X, Y, GROUPS)
    back = explain(model, X, Y[:, ::-1], GROUPS)
    close = {"rtol": 1e-7, "atol": 1e-7} if name in ("Gaussian", "NegativeBinomial") else {}
    same(found, back, others=slice(None, None, -1), **close)
    for n in (0, 3):
        same(found, explain(model, X, Y[:, n], GROUPS), [n], [0], **close)


def test_order_of_features_and_single_precision_do_not_matter_beyond_rounding():
    X, Y, _ = population()
    X = X.astype(np.float32)
    found = explain(estimator("softplus", cv=4), X, Y, GROUPS)
    wide = explain(estimator("softplus", cv=4), X.astype(float), Y, GROUPS)
    turned = explain(estimator("softplus", cv=4), X[:, ::-1], Y, {"a": [3, 2], "b": 1, "c": 0})
    for other in (wide, turned):
        np.testing.assert_array_equal(other.strength[1:], found.strength[1:])
        assert np.all(np.abs(other.loss - found.loss) <= other.loss_off + found.loss_off + 1e-9)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["softplus", "Gaussian"])
def test_results_do_not_depend_on_the_number_of_threads(name, monkeypatch):
    X, Y, _ = population(name=name)
    null = CircularShift(5, random_state=3)
    found = []
    for cores in (1, 3):
        monkeypatch.setattr(threads, "n_cores", lambda cores=cores: cores)
        found.append(explain(estimator(name, cv=4), X, Y, GROUPS, kinds="unique", null=null, level=0.2))
    same(*found)


class Stopping:
    """A function that is interrupted by Ctrl-C at one of its calls."""

    def __init__(self, function, at):
        self.function, self.left = function, at

    def __get__(self, of, kind=None):
        return lambda *given, **named: self(of, *given, **named)

    def __call__(self, *given, **named):
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return self.function(*given, **named)


@pytest.mark.thorough
@pytest.mark.parametrize("null", [None, CircularShift(4), LinearShift(8, 3), CircularShift(2, of="features")])
@pytest.mark.parametrize("at", [pytest.param(3, marks=pytest.mark.thorough), 9])
def test_an_interrupted_run_continues_from_its_checkpoint(at, null, monkeypatch, tmp_path):
    from glmfit.inference.explained import testing

    X, Y, _ = population(n=4)
    monkeypatch.setattr(threads, "n_cores", lambda: 1)
    monkeypatch.setattr(work_module, "_CHUNK", 2)
    monkeypatch.setattr(testing, "_CHUNK", 2)
    given = estimator("softplus", cv=3), X, Y, GROUPS
    more = {"kinds": "unique", "null": null, "level": None}
    whole = quiet(explain, *given, **more)
    original = Nested.of_neuron
    monkeypatch.setattr(Nested, "of_neuron", Stopping(original, at))
    broken = quiet(explain, *given, **more, checkpoint=tmp_path / "state")
    monkeypatch.setattr(Nested, "of_neuron", original)
    assert broken.status == ("interrupted" if at < 5 or null is not None else "complete")
    resumed = quiet(explain, *given, **more, checkpoint=tmp_path / "state.npz")
    assert resumed.status == "complete"
    same(whole, resumed)
    np.testing.assert_array_equal(whole.null_statistic, resumed.null_statistic)
    assert whole.n_null_fits == resumed.n_null_fits and whole.n_null_proved == resumed.n_null_proved


def test_a_checkpoint_of_another_problem_is_refused(tmp_path):
    X, Y, _ = population(n=2)
    given = {"groups": GROUPS, "kinds": "unique", "checkpoint": tmp_path / "state.npz"}
    model, shift = estimator("softplus", cv=4), CircularShift(19)
    explain(model, X, Y, **given, null=shift)
    for other in (
        (model, X + 1e-9, Y, {"null": shift}), (model, X, Y + 1, {"null": shift}), (model, X, Y, {}),
        (model, X, Y, {"null": CircularShift(19, random_state=1)}), (model, X, Y, {"null": shift, "level": 0.1}),
        (model, X, Y, {"null": shift, "sample_weight": np.full(len(X), 2.0)}),
        (model, X, Y, {"null": shift, "offset": np.full(len(X), 0.1)}),
        (model, X, Y, {"null": shift, "strengths": [1e-3, 1.0]}), (model, X, Y, {"null": shift, "cv": 5}),
        (estimator("exp", cv=4), X, Y, {"null": shift}),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="checkpoint"):
            explain(*other[:3], **given, **other[3])


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["within", "designs", "n"])
def test_a_checkpoint_of_another_null_is_refused(kind, tmp_path):
    X, Y, rng = population(n=2)
    if kind == "within":
        nulls = [CircularShift(19, within=np.arange(len(X)) // length) for length in (120, 60)]
    elif kind == "n":
        nulls = [CircularShift(19), CircularShift(24)]
    else:
        nulls = [Designs(rng.normal(size=(19, *X.shape))) for _ in range(2)]
    given = {"groups": GROUPS, "kinds": "unique", "checkpoint": tmp_path / "state.npz"}
    explain(estimator("softplus", cv=4), X, Y, **given, null=nulls[0])
    with pytest.raises(ValueError, match="checkpoint"):
        explain(estimator("softplus", cv=4), X, Y, **given, null=nulls[1])


# ---------------------------------------------------------------- nulls


def rows_of(X):
    return Rows(np.arange(len(X)), len(X), X.shape[1], 0, None)


def by_hand(model, X, Y, number, strength, **more):
    """Contributions at one strength."""
    held = sorted(set(number.tolist()))
    return explain(model, X, Y, GROUPS, cv=folds_of(number, len(held)), strengths=[strength], **more).contribution


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["softplus", "Bernoulli", "Gaussian"])
def test_draws_are_explained_like_the_recording(name):
    X, Y, _ = population(n=2, t=160, name=name)
    null, number, model = CircularShift(3, least=5, random_state=4), np.arange(160) * 4 // 160, estimator(name)
    more = {"null": null, "null_strength": 0.05, "level": None, "cv": folds_of(number, 4)}
    found = explain(model, X, Y, GROUPS, **more)
    close = {"atol": 5e-3, "rtol": 1e-6}
    np.testing.assert_allclose(found.statistic, by_hand(model, X, Y, number, 0.05), **close)
    for k, draw in enumerate(null.draws(rows_of(X))):
        shift = int(np.flatnonzero(draw.source == 0)[0])
        np.testing.assert_array_equal(draw.source, np.roll(np.arange(160), shift))
        assert 5 <= shift <= 155
        moved = by_hand(model, X, Y[draw.source], number, 0.05)
        if name == "Gaussian":  # nats of the recording
            assert found.null_statistic[k].shape == moved.shape
        np.testing.assert_allclose(found.null_statistic[k], moved, **close)
    above = np.sum(found.null_statistic >= found.statistic, axis=0)
    np.testing.assert_allclose(found.p_value, (above + 1) / 4)
    assert np.all(found.n_draws == 3)


@pytest.mark.thorough
def test_linear_shifts_use_the_middle_rows_and_p_values_rank_among_half_the_shifts():
    X, Y, _ = population(n=2, t=200)
    null, number, model = LinearShift(20, 4), np.arange(200) * 4 // 200, estimator("softplus")
    found = explain(model, X, Y, GROUPS, null=null, null_strength=0.05, level=None, cv=folds_of(number, 4))
    middle, shifts = np.arange(20, 180), [5, -5, 10, -10, 15, -15, 20, -20]
    close = {"atol": 5e-3, "rtol": 1e-6}
    held = by_hand(model, X[middle], Y[middle], number[middle], 0.05)
    np.testing.assert_allclose(found.statistic, held, **close)
    assert found.n_possible_draws == len(shifts) == len(found.null_statistic)
    for k, shift in enumerate(shifts):
        moved = by_hand(model, X[middle], Y[middle + shift], number[middle], 0.05)
        np.testing.assert_allclose(found.null_statistic[k], moved, **close)
    above = np.sum(found.null_statistic >= found.statistic, axis=0)
    np.testing.assert_allclose(found.p_value, np.minimum((above + 1) / 5, 1))


def test_permuted_sessions_keep_their_rows_in_order():
    X, Y, _ = population(n=2, t=170)
    session = np.minimum(np.arange(170) // 40, 3)  # the last one is longer
    null, number, model = Permutation(session, 3, random_state=1), session, estimator("softplus")
    found = explain(model, X, Y, GROUPS, null=null, null_strength=0.05, level=None, cv=folds_of(number, 4))
    for k, draw in enumerate(null.draws(rows_of(X))):
        order = session[draw.source[::40][:4]]
        assert sorted(order) == [0, 1, 2, 3]
        expected = np.concatenate([*(np.arange(40) + 40 * s for s in order), np.arange(160, 170)])
        np.testing.assert_array_equal(draw.source, expected)
        moved = by_hand(model, X, Y[expected], number, 0.05)
        np.testing.assert_allclose(found.null_statistic[k], moved, atol=5e-3, rtol=1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("as_iterator", [False, True])
def test_given_designs_and_counts_replace_those_of_the_recording(as_iterator):
    X, Y, rng = population(n=2, t=160)
    designs, counts = list(rng.normal(size=(3, *X.shape))), list(rng.poisson(1.0, size=(3, *Y.shape)) * 1.0)
    number, model = np.arange(160) * 4 // 160, estimator("softplus")
    more = {"null_strength": 0.05, "level": None, "cv": folds_of(number, 4)}
    for kind, arrays in ((Designs, designs), (Counts, counts)):
        null = kind(iter(arrays), 3) if as_iterator else kind(arrays)
        found = explain(model, X, Y, GROUPS, null=null, **more)
        for k, array in enumerate(arrays):
            moved = by_hand(model, *((array, Y) if kind is Designs else (X, array)), number, 0.05)
            np.testing.assert_allclose(found.null_statistic[k], moved, atol=5e-3, rtol=1e-6)


def test_features_of_a_group_are_shifted_and_the_others_are_not():
    X, Y, _ = population(n=2, t=160)
    null, number = CircularShift(2, of="features", least=10), np.arange(160) * 4 // 160
    model = estimator("softplus")
    found = explain(
        model, X, Y, GROUPS, kinds="unique", null=null, null_strength=0.05, level=None, cv=folds_of(number, 4)
    )
    for k, draw in enumerate(null.draws(rows_of(X))):
        for c, of in enumerate(found.contributions):
            moved = X.copy()
            members = found.members[of.more] & ~found.members[of.less]
            moved[:, members] = X[draw.source][:, members]
            expected = explain(model, moved, Y, GROUPS, kinds="unique", strengths=[0.05], cv=folds_of(number, 4))
            np.testing.assert_allclose(found.null_statistic[k, c], expected.contribution[c], atol=5e-3)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("kind", ["circular", "linear", "features", "designs", "chosen"])
def test_skipped_draws_change_no_verdict(kind):
    X, Y, rng = population(n=4, t=150, d=4)
    Y[:, 2:] = rng.poisson(0.5, size=(150, 2))
    arrays = rng.normal(size=(19, *X.shape))
    null = {
        "circular": CircularShift(19), "linear": LinearShift(30, 19), "features": CircularShift(19, of="features"),
        "designs": Designs(arrays), "chosen": CircularShift(19, random_state=1),
    }[kind]  # fmt: skip
    strength = "chosen" if kind == "chosen" else None
    model = estimator("softplus", cv=3, tol=1e-6, cv_tol=1e-6)
    more = {"kinds": "unique", "null": null, "null_strength": strength}
    every = explain(model, X, Y, GROUPS, **more, level=None)
    for level in (0.05, 0.3):
        spared = explain(model, X, Y, GROUPS, **more, level=level)
        np.testing.assert_array_equal(spared.p_value <= level, every.p_value <= level)
        whole = spared.n_draws == null.n_draws
        np.testing.assert_allclose(spared.p_value[whole], every.p_value[whole])
        assert spared.n_draws.sum() < every.n_draws.sum() and whole.any()
        np.testing.assert_allclose(spared.statistic, every.statistic, atol=1e-9)


def test_a_draw_whose_fits_are_not_proved_counts_against_the_group():
    one, none = np.array([[5.0]]), np.zeros((1, 1), int)
    verdict = Verdicts(one, 0 * one, *(none.copy() for _ in range(4)), np.full((1, 1, 1), np.nan), *[none] * 4)
    found = Statistics(np.array([[-270.0]]), np.array([[np.inf]]), np.array([[False]]))
    verdict.take(0, np.ones((1, 1), bool), found, last=True)
    assert verdict.done[0, 0] == 1 and verdict.above[0, 0] == 1 and verdict.unproved[0, 0] == 1


def test_draws_repeat_for_a_seed_and_differ_between_seeds():
    rows = Rows(np.arange(100), 100, 1, 1, None)
    first, again, other = (
        [draw.source.tolist() for draw in CircularShift(5, random_state=seed).draws(rows)] for seed in (1, 1, 2)
    )
    assert first == again != other


def test_each_trial_is_shifted_circularly_within_itself():
    rows, trial = Rows(np.arange(100), 100, 1, 1, None), np.repeat([0, 1, 2], [50, 47, 3])
    for draw in CircularShift(20, within=trial, least=4).draws(rows):
        np.testing.assert_array_equal(trial[draw.source], trial)
        np.testing.assert_array_equal(draw.source[97:], [97, 98, 99])  # too short
        for part in (slice(0, 50), slice(50, 97)):
            shift = (draw.source[part][0] - part.start) % (part.stop - part.start)
            assert 4 <= shift <= part.stop - part.start - 4
            np.testing.assert_array_equal(np.sort(draw.source[part]), np.arange(100)[part])


@pytest.mark.parametrize("many", [False, True])
def test_a_hessian_shared_by_draws_belongs_to_the_same_rows_whatever_their_order(many, rng):
    X, y = rng.normal(size=(120, 3)), rng.poisson(0.4, size=120).astype(float)
    blocks, shared, at = Blocks(X, np.arange(120) * 3 // 120, 3), {}, np.array([0.0, 0.0, 0.0, -0.7])
    found = []
    for draw in (y, np.roll(y, 31)):
        response = Response.of(PoissonSoftplus(), draw)
        neuron = Neuron(blocks, response, sets_of_blocks(3, 3, False), np.full(3, 40.0), 1e-3, many)
        pull = first_anchor(neuron, at, shared).pull
        curvature, by_row = neuron.response.curvature(np.full(120, at[-1])), np.empty(120)
        by_row[neuron.blocks.order] = pull / curvature  # the leverages, which do not depend on the responses
        found.append(by_row)
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)


# ---------------------------------------------------------------- false positives


def slow_series(rng, t, n, memory):
    """Autoregressive series of unit variance, (time, n)."""
    kept, x = np.exp(-1 / memory), np.empty((t, n))
    x[0], noise = rng.normal(size=n), rng.normal(size=(t, n)) * np.sqrt(1 - kept**2)
    for k in range(1, t):
        x[k] = kept * x[k - 1] + noise[k]
    return x


@pytest.mark.slow
def test_autocorrelated_neurons_without_tuning_give_no_more_false_positives_than_stated():
    from glmfit.inference import drop_groups

    t, n, groups = 1500, 40, {"a": 0, "b": [1, 2]}
    found = {"CircularShift": [], "LinearShift": [], "chi-squared": []}
    for seed in range(5):  # neurons of a recording share its features, so false positives occur together
        rng = np.random.default_rng(seed)
        X, rate = slow_series(rng, t, 3, 30.0), 0.5 * np.exp(0.7 * slow_series(rng, t, n, 30.0))
        Y = rng.poisson(rate).astype(float)
        model = PopulationGLMCV("exp", "Ridge", strengths=[1e-3, 1e-1], cv=5)
        for null in (CircularShift(99, least=100), LinearShift(300, 99)):
            p = quiet(explain, model, X, Y, groups, kinds="unique", null=null).p_value
            found[type(null).__name__].append(np.mean(p <= 0.05))
        table = quiet(drop_groups, PopulationGLM("exp", "UnRegularized").fit(X, Y), X, Y, groups=groups)
        found["chi-squared"].append(np.mean(table.p_value <= 0.05))
    shares = {name: np.mean(values) for name, values in found.items()}
    assert shares["CircularShift"] <= 0.08 and shares["LinearShift"] <= 0.05, shares
    assert shares["chi-squared"] > 0.4, shares
