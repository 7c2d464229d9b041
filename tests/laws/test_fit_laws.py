"""Laws of fits: a fit among many equals the same fit alone, however it is folded, masked, weighted, ordered or grouped.

"The same" is defined by the certificates: both objectives are within their bounds of one optimum. Fits with rows on
devices obey the same laws. They use all devices of jax; tests/engine/test_devices.py gives it several.
"""

import warnings

import jax
import numpy as np
import pytest
from cases import LOSSES, solve
from oracles import population as oracle

from glmfit import PopulationGLM, Status, engine, observations, penalties
from glmfit.compilation import compiled_programs
from glmfit.engine import Newton, cg, passes, solvers
from glmfit.engine.certify import bound_gaps
from glmfit.engine.cg import Descent, inner
from glmfit.engine.devices.rows import DeviceRows
from glmfit.engine.devices.shards import layout_of
from glmfit.engine.floors import RidgeFloor, SpectralFloor
from glmfit.engine.host import HostRows
from glmfit.engine.metric import OwnMetric, SharedMetric
from glmfit.engine.population import FoldedProblem, PopulationProblem
from glmfit.engine.tiles import is_far
from glmfit.numerics import few_nonzero
from glmfit.observations import poisson_softplus
from glmfit.solvers import LoopOptions

T, D, N = 700, 6, 5
LINKS = ("softplus", "exp")
TIGHT = LoopOptions(tol=1e-9)


def recording(seed=0, link="softplus", t=T, d=D, n=N):
    """Correlated features, and neurons that fire rarely to often: X (t, d), Y (t, n), float64."""
    rng = np.random.default_rng([seed, 29])
    X = rng.normal(size=(t, d)) @ (np.eye(d) + 0.4) + rng.normal(size=d)
    eta = (X - X.mean(axis=0)) @ rng.normal(size=(d, n)) * 0.2 + np.linspace(-2.5, 0.5, n)
    Y = rng.poisson(np.exp(np.minimum(eta, 3)) if link == "exp" else np.logaddexp(0, eta)).astype(float)
    Y[0] += 1  # no neuron is silent
    return X, Y


@pytest.fixture(
    params=[
        "host",
        *(pytest.param(name, marks=pytest.mark.thorough) for name in ("sampled", "light", "devices", "newton")),
    ]
)
def devices(request, monkeypatch):
    """Location of the rows: in memory, with metrics of some rows or light steps whenever possible, or on all devices.

    There also for Newton's method.
    """
    if request.param == "sampled":
        monkeypatch.setattr(cg, "_MUCH", 0)
        monkeypatch.setattr(cg, "steps_of_a_sample", lambda *_: -np.inf)
    if request.param == "light":
        monkeypatch.setattr(HostRows, "are_many", True)
    if request.param == "newton":
        monkeypatch.setattr(solvers, "newton_serves", lambda problem: bool(problem.devices))
        monkeypatch.setattr(engine, "ConjugateGradients", lambda hints=None: Newton())
    return None if request.param in ("host", "sampled", "light") else jax.devices()


def problem(X, Y, link="softplus", strength=1e-3, **more):
    made = penalties.Ridge(np.asarray(strength, float)) if np.any(strength) else penalties.NoPenalty()
    return PopulationProblem(X, Y, observations.from_inverse_link(link), made, **more)


def same(solution, at, alone):
    """Check that every fit of ``alone`` equals that of ``solution`` at an index: both proved, with one optimum."""
    assert np.all(alone.status == Status.CONVERGED) and np.all(solution.status[at] == Status.CONVERGED)
    slack = np.maximum(solution.gap[at], alone.gap) + 1e-13
    assert np.all(np.abs(solution.objective[at] - alone.objective) <= slack)
    np.testing.assert_allclose(solution.params.coef[:, at], alone.params.coef, atol=1e-3)


@pytest.mark.thorough
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("strength", [1e-3, 1e-6, 0.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_fit_among_many_equals_the_same_fit_alone(link, strength, dtype, devices):
    X, Y = recording(link=link)
    many = solve(problem(X.astype(dtype), Y, link, strength, devices=devices), TIGHT)
    for n in range(N):
        same(many, [n], solve(problem(X.astype(dtype), Y[:, [n]], link, strength, devices=devices), TIGHT))


@pytest.mark.parametrize("link", LINKS)
def test_order_groups_and_location_do_not_matter(link, devices):
    X, Y = recording(link=link)
    many, order = solve(problem(X, Y, link), TIGHT), np.random.default_rng(0).permutation(N)
    same(many, order, solve(problem(X, Y[:, order], link, devices=devices), TIGHT))
    one_at_a_time = LoopOptions(tol=1e-9, max_memory=1.0)
    same(many, np.arange(N), solve(problem(X, Y, link, devices=devices), one_at_a_time))


@pytest.mark.thorough
@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("known", [False, True])
def test_a_fold_is_the_fit_to_its_rows(link, weighted, known, devices):
    X, Y = recording(link=link)
    rng = np.random.default_rng(1)
    weights = rng.uniform(0.2, 2, T) if weighted else None
    offset = rng.normal(size=(T, N)) * 0.3 if known else None
    train = rng.random((T, 2)) < 0.7
    neuron, fold = (a.ravel() for a in np.meshgrid(np.arange(N), [0, 1], indexing="ij"))
    strength = np.where(fold == 0, 1e-3, 1e-2)
    observation = observations.from_inverse_link(link)
    folded = FoldedProblem(X, Y, observation, penalties.Ridge(strength), neuron, fold, train, weights, offset=offset)
    folded.devices = tuple(devices or ())
    many = solve(folded, TIGHT)
    for k in range(len(neuron)):
        rows, n = train[:, fold[k]], [neuron[k]]
        more = {"weights": None if weights is None else weights[rows]}
        more["offset"] = None if offset is None else offset[rows][:, n]
        same(many, [k], solve(problem(X[rows], Y[rows][:, n], link, strength[k], **more), TIGHT))


@pytest.mark.parametrize("link", LINKS)
def test_a_row_without_weight_is_ignored_whatever_its_values(link, devices):
    X, Y = recording(link=link)
    weights = np.ones(T)
    weights[::7] = 0
    wild, kept = X.copy(), weights > 0
    wild[::7] *= 1e6
    many = solve(problem(wild, Y, link, weights=weights, devices=devices), TIGHT)
    same(many, np.arange(N), solve(problem(X[kept], Y[kept], link), TIGHT))


@pytest.mark.parametrize("link", LINKS)
def test_integer_weights_equal_repeated_rows(link, devices):
    X, Y = recording(link=link)
    weights = np.random.default_rng(2).integers(0, 4, T)
    repeated = np.repeat(np.arange(T), weights)
    many = solve(problem(X, Y, link, weights=weights.astype(float), devices=devices), TIGHT)
    same(many, np.arange(N), solve(problem(X[repeated], Y[repeated], link), TIGHT))


def test_a_constant_offset_is_part_of_the_intercept(devices):
    X, Y = recording()
    many = solve(problem(X, Y, offset=np.full((T, 1), 0.7), devices=devices), TIGHT)
    alone = solve(problem(X, Y), TIGHT)
    same(many, np.arange(N), alone)
    np.testing.assert_allclose(many.params.intercept + 0.7, alone.params.intercept, atol=1e-3)


@pytest.mark.parametrize("shift", [1e3, 1e6])
def test_means_of_features_do_not_matter(shift, devices):
    X, Y = recording()
    X = np.round(X, 3)
    far = solve(problem(X + shift, Y, devices=devices), TIGHT)
    same(far, np.arange(N), solve(problem(X, Y), TIGHT))


@pytest.mark.parametrize("mean", [1e6, 1e7])
@pytest.mark.parametrize("name", ["Ridge", "Lasso"])
def test_the_objective_belongs_to_the_parameters_if_means_are_rounded(mean, name):
    """A mean of 1e7 has a unit in the last place of 1 in single precision."""
    rng = np.random.default_rng(0)
    z = rng.normal(size=(T, 2))
    X = (z * [30.0, 1.0] + [mean, 0.0]).astype(np.float32)
    Y = rng.poisson(np.exp(0.5 * z[:, :1] - 0.5)).astype(float)
    model = PopulationGLM(regularizer=name, regularizer_strength=1e-4).fit(X, Y)
    at = model.coef_, model.intercept_
    value = oracle.objective("softplus", X.astype(float), Y, *at, name=name, strength=1e-4)
    np.testing.assert_allclose(model.report_.objective, value, atol=1e-8)


@pytest.mark.thorough
@pytest.mark.parametrize("strength", [1e-9, 0.0])
@pytest.mark.parametrize("apart", [1e-5, 1e-3])
def test_features_that_single_precision_cannot_tell_apart_give_no_false_bound(strength, apart, devices):
    """Rounding of nearly equal features looks like curvature along their difference."""
    for seed in range(6):
        X, Y = recording(seed)
        X[:, 1] = X[:, 0] + apart * X[:, 1]
        X = (X + 7) * 10 ** np.random.default_rng(seed).uniform(-2, 2, D)
        made = problem(X, Y, strength=strength, devices=devices)
        solution = solve(made, LoopOptions(tol=1e-4))
        gap = solution.objective - oracle.newton("softplus", X, Y, strength).objective
        assert np.all(gap[solution.gap_is_bound] <= solution.gap[solution.gap_is_bound] + 1e-12)


def test_a_start_changes_the_path_but_not_the_result(devices):
    X, Y = recording()
    made = problem(X, Y, devices=devices)
    first = solve(made, TIGHT)
    again = solve(made, TIGHT, start=first.params)
    same(again, np.arange(N), first)
    assert again.epochs.max() < first.epochs.max()


@pytest.mark.parametrize("link", LINKS)
def test_double_precision_is_kept_wherever_rows_are(link, devices, x64):
    X, Y = recording(link=link)
    made = problem(X, Y, link, dtype=np.float64, devices=devices)
    solution = solve(made, LoopOptions(tol=1e-13, negligible=1e-8))
    gap = solution.objective - oracle.newton(link, X, Y, 1e-3).objective
    assert np.all(solution.status == Status.CONVERGED) and np.all(gap <= 1e-13)


# ---------------------------------------------------------------- rows that are read again in every pass


class Stream:
    """Rows of an array that are read by slices, in chunks of some size."""

    def __init__(self, array, chunk_rows):
        self.array, self.chunk_rows = array, chunk_rows
        self.shape, self.dtype = array.shape, array.dtype

    def __len__(self):
        return len(self.array)

    def __getitem__(self, rows):
        assert isinstance(rows, slice)
        return self.array[rows].copy()


PENALTIES = {
    "none": penalties.NoPenalty(),
    "ridge": penalties.Ridge(np.array(1e-3)),
    "lasso": penalties.Lasso(np.array(5e-3)),
    "groups": penalties.GroupLasso(np.array(5e-3), np.array([0, 0, 1, 1, 2, 2])),
}


@pytest.mark.thorough
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize(
    "dtype, link, weighted, known",
    [
        pytest.param(np.float32, "softplus", False, False, marks=pytest.mark.thorough),
        (np.float64, "exp", True, True),
        (np.float32, "softplus", True, True),
    ],
)
def test_streamed_rows_give_the_fit_in_memory(name, dtype, link, weighted, known):
    X, Y = recording(7, link, t=3000)
    rng, chunk = np.random.default_rng(3), {"none": 100, "ridge": 1, "lasso": 7000, "groups": 256}[name]
    weights = rng.uniform(0, 2, len(X)) * (rng.random(len(X)) < 0.8) if weighted else None
    offset = 0.3 * rng.normal(size=(len(X), N)) if known else None
    made = observations.from_inverse_link(link), PENALTIES[name], weights, np.float32, offset
    X = X.astype(dtype)
    whole = solve(PopulationProblem(X, Y, *made), TIGHT)
    streamed = PopulationProblem(Stream(X, chunk), Stream(Y, 1), *made)
    same(solve(streamed, LoopOptions(tol=1e-9, max_memory=1e5)), np.arange(N), whole)


@pytest.mark.thorough
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("n_problems", [1, pytest.param(40, marks=pytest.mark.slow)])
def test_no_bound_of_streamed_rows_is_below_the_gap(name, n_problems):
    """Twenty neurons per problem, compared with the fit in memory to a negligible gap."""
    for seed in range(n_problems):
        rng = np.random.default_rng([seed, 37])
        link, t, d = LINKS[seed % 2], int(rng.integers(300, 2000)), 6
        X, Y = recording(seed, link, t, d, 20)
        X = (X * 10 ** rng.uniform(-0.5, 0.5, d)).astype(np.float32)
        made = observations.from_inverse_link(link), PENALTIES[name]
        best = solve(PopulationProblem(X, Y, *made), LoopOptions(tol=1e-9, negligible=1e-7))
        options = LoopOptions(tol=10 ** rng.uniform(-6, -1), negligible=10 ** rng.uniform(-4, 1), max_memory=2e5)
        solution = solve(PopulationProblem(Stream(X, 100), Stream(Y, 100), *made), options)
        assert np.all(best.gap_is_bound) and np.all(solution.gap_is_bound)
        assert np.all(solution.objective - best.objective <= solution.gap + 1e-13)


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_features_that_nearly_repeat_each_other_are_read_in_double_precision(mean):
    """Without a penalty, where single precision does not resolve all directions."""
    X, Y = recording(t=2000)
    X[:, 1] = X[:, 0] + 1e-4 * X[:, 1]
    X = X + mean
    made = observations.from_inverse_link("softplus"), penalties.NoPenalty()
    solution = solve(PopulationProblem(Stream(X, 100), Stream(Y, 100), *made), LoopOptions(tol=1e-6))
    assert np.all(solution.status == Status.CONVERGED) and np.all(solution.gap_is_bound)
    gap = solution.objective - oracle.newton("softplus", X, Y, 0.0).objective
    assert np.all(gap <= solution.gap + 1e-12)


# ---------------------------------------------------------------- the bounds


def descent_at(made, coef, intercept, own=False):
    """Fits of a problem at parameters, their gradient in float64."""
    basis, n, layout = made.basis, made.n_neurons, layout_of(made)
    given = {"observation": made.observation, "mean": basis.mean, "dtype": made.dtype} | made.rows_of(np.arange(n))
    rows = HostRows(**given) if layout is None else DeviceRows(layout, **given)
    ridge = np.broadcast_to(np.asarray(made.penalty.ridge_strength, float), (made.n_features, n))
    metric = SharedMetric(basis, made.null_curvature, (basis.whiten**2).T @ ridge)
    with rows:
        descent = Descent(rows, metric, ridge, np.vstack([coef, intercept + basis.mean @ coef]))
        if own:
            descent.renew_metrics(np.arange(n), basis.deviation)
        descent.arrive(rows.evaluate(descent.at)[1])
    return descent


@pytest.mark.parametrize("own", [False, True])
def test_directions_agree_with_the_last_step_and_descend(own):
    """The corrected inverse metric is symmetric, positive, and takes the last change of the gradient to the step."""
    X, Y = recording(4)
    descent = descent_at(problem(X, Y, "softplus", 1e-3), np.zeros((D, N)), np.log(np.expm1(Y.mean(axis=0))), own)
    rng = np.random.default_rng(1)
    with descent.rows:
        for n_remembered in range(1, 4):
            descent.advance(np.ones(N, bool))
            a, b = rng.normal(size=(2, D + 1, N))
            np.testing.assert_allclose(inner(a, descent.direction(b)), inner(descent.direction(a), b), rtol=1e-8)
            assert np.all(inner(a, descent.direction(a)) > 0) and len(descent.past) == n_remembered
            step, change, weight = descent.past[-1]
            assert np.all(weight > 0)
            np.testing.assert_allclose(descent.direction(change), step, rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("strength", [1e-2, 1e-5])
@pytest.mark.parametrize("step", [1e-2, 1e-4])
def test_bounds_are_above_the_gap_but_close_to_it(link, own, strength, step, devices):
    """At random points near the optimum, compared with Newton's method in NumPy, for both floors of the Hessian."""
    X, Y = recording(3, link)
    best = oracle.newton(link, X, Y, strength)
    rng = np.random.default_rng(0)
    coef, intercept = best.coef + step * rng.normal(size=(D, N)), best.intercept + step * rng.normal(size=N)
    gap = oracle.objective(link, X, Y, coef, intercept, strength=strength) - best.objective
    made = problem(X, Y, link, strength, devices=devices)
    descent = descent_at(made, coef, intercept, own)
    with descent.rows as rows:
        longest, spread = rows.longest(np.ones(D))
        assert longest >= np.sqrt(np.max(np.sum((X - X.mean(axis=0)) ** 2, axis=1)))
        ridge_floor = RidgeFloor(descent, longest / np.sqrt(strength) * np.ones(N), spread / strength)
        floors = ridge_floor, SpectralFloor(descent, np.ones(N, bool), (0, 1), 1e-3, True)
        for floor in floors:
            bound, estimate = bound_gaps(descent, np.ones(N, bool), np.zeros(N), floor)
            assert np.all(bound >= gap) and np.all(estimate <= gap * (1 + 5 * step) + 1e-15)
            near = bound[np.isfinite(bound)] / gap[np.isfinite(bound)]
            assert np.all(near < 3)
        assert step > 1e-3 or np.isfinite(bound).all()


@pytest.mark.parametrize("strength", [1e-6, 1e-7])
def test_the_ridge_proves_fits_whose_products_are_dominated_by_rounding(strength, monkeypatch):
    """Two features that are almost the same: residuals in double precision, and products that go on from there."""
    X, Y = recording(3)
    X = np.column_stack([X, X[:, 0] + 1e-3 * np.random.default_rng(0).normal(size=len(X))]).astype(np.float32)
    best = oracle.newton("softplus", X, Y, strength)
    made = problem(X, Y, strength=strength)
    rng, exact = np.random.default_rng(0), []
    products = HostRows.products
    monkeypatch.setattr(HostRows, "products", lambda *a, **k: (exact.append(k.get("exact")), products(*a, **k))[1])
    for step in (1e-4, 1e-5):
        coef, intercept = best.coef + step * rng.normal(size=(D + 1, N)), best.intercept + step * rng.normal(size=N)
        coef[[0, D]] += 300 * step * np.array([[1], [-1]])  # hardly moves a row
        gap = oracle.objective("softplus", X, Y, coef, intercept, strength=strength) - best.objective
        descent = descent_at(made, coef, intercept)
        with descent.rows as rows:
            longest, spread = rows.longest(np.ones(D + 1))
            floor = RidgeFloor(descent, longest / np.sqrt(strength) * np.ones(N), spread / strength)
            bound, _ = bound_gaps(descent, np.ones(N, bool), 1.5 * gap, floor)
        assert np.all(bound >= gap) and np.all(bound < 4 * gap)
    assert any(exact)


def test_directions_that_move_no_row_leave_bounds_above_the_gap(monkeypatch):
    """Products of single precision along them would be rounding."""
    X, Y = recording(3)
    repeated = np.column_stack([X, X[:, 0] + X[:, 1]])
    best = oracle.newton("softplus", X, Y)
    still, direction = np.array([1.0, 1, *np.zeros(D - 2), -1, 0])[:, None], Descent.direction

    def wanders(self, g):
        z = direction(self, g)
        return z + 1e4 * np.linalg.norm(z, axis=0) * still

    monkeypatch.setattr(Descent, "direction", wanders)
    made = problem(repeated, Y, strength=0.0)
    for seed in range(20):
        coef = best.coef + 1e-3 * np.random.default_rng(seed).normal(size=(D, N))
        gap = oracle.objective("softplus", X, Y, coef, best.intercept, name="UnRegularized") - best.objective
        descent = descent_at(made, np.vstack([coef, np.zeros(N)]), best.intercept)
        with descent.rows:
            floor = SpectralFloor(descent, np.ones(N, bool), (0, 1), 1e-3, True)
            bound, _ = bound_gaps(descent, np.ones(N, bool), np.zeros(N), floor)
        assert np.all(bound >= gap) and np.all(bound < 3 * gap)


@pytest.mark.parametrize(
    ("n_problems", "devices"),
    [
        pytest.param(8, None, id="8"),
        pytest.param(200, None, id="200", marks=pytest.mark.slow),
        pytest.param(6, jax.devices(), id="6-devices", marks=pytest.mark.thorough),  # each compiles
    ],
)
def test_no_bound_of_random_fits_is_below_the_gap(n_problems, devices):
    """Fifty neurons per problem, of all strengths, links and sizes, compared with Newton's method in NumPy."""
    tightness = []
    for seed in range(n_problems):
        rng = np.random.default_rng([seed, 31])
        link, n = LINKS[seed % 2], 50
        t, d = int(rng.integers(60, 400)), int(rng.integers(1, 7))
        X, Y = recording(seed, link, t, d, n)
        X = X * 10 ** rng.uniform(-1, 1, d)
        strength = 10 ** rng.uniform(-6, -1)
        made = problem(X.astype(np.float32), Y, link, strength, devices=devices)
        solution = solve(made, LoopOptions(tol=10 ** rng.uniform(-6, -1), negligible=10 ** rng.uniform(-4, 0)))
        best = oracle.newton(link, X.astype(np.float32), Y, strength)
        gap = solution.objective - best.objective
        assert np.all(solution.gap_is_bound) and np.all(gap <= solution.gap)
        assert np.all(solution.status == Status.CONVERGED)
        tightness.append(solution.gap / np.maximum(gap, 1e-14))
    assert np.median(np.concatenate(tightness)) < 10


@pytest.mark.parametrize("penalty", ["UnRegularized", "Ridge", "Lasso", "GroupLasso"])
@pytest.mark.parametrize("name", ["softplus", "exp", "NegativeBinomial", "Bernoulli", "Gaussian", "Gamma"])
def test_fits_on_the_host_compile_nothing(name, penalty):
    """Shapes that no other test has, with passes in several tiles."""
    X, Y = recording(9, t=9001, d=4, n=17)
    more = {"groups": np.repeat([0, 1], 2)} if penalty == "GroupLasso" else {}
    more |= {} if penalty == "UnRegularized" else {"regularizer_strength": 1e-3}
    more |= {"inverse_link_function": name} if name in LINKS else {"observation_model": name}
    Y = {"Bernoulli": np.minimum(Y, 1), "Gamma": Y + 0.5}.get(name, Y)
    before = compiled_programs()
    model = PopulationGLM(regularizer=penalty, **more).fit(X, Y)
    model.score(X, Y)
    assert compiled_programs() == before


# ---------------------------------------------------------------- parts


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("share", [0.1, 0.9])
@pytest.mark.parametrize("name", LOSSES)
def test_derivatives_in_tiles_match_the_formulas(name, share, dtype, rng, monkeypatch):
    """Whether zeros are skipped or not, and where exponentials are limited; arguments are not changed."""
    observation, eps = LOSSES[name].model, np.finfo(dtype).eps
    eta = np.clip(rng.normal(scale=8, size=(600, 15)), -40, 40).astype(dtype)
    if name in ("softplus", "logistic"):
        eta[:6, 0] = -1e4, -300, -50, 50, 300, 1e4
    if name == "softplus" and share < 0.5:
        monkeypatch.setattr(poisson_softplus, "_ENTRIES", 1000)  # some blocks
    y = rng.choice(np.asarray(LOSSES[name].responses, dtype), size=eta.shape)
    y[rng.uniform(size=y.shape) > share] = observation.neutral
    arguments = y.copy(), eta.copy()
    exact = y.astype(float), eta.astype(float)
    slope, bend, loss = (f(*exact) for f in (observation.derivative, observation.curvature, observation.loss))
    spikes = few_nonzero(y)
    assert (spikes is None) == (share > 0.5 or observation.neutral != 0)
    for some in {id(spikes): spikes, id(None): None}.values():
        r, r_alone, c, l, l_alone = np.full((5, *eta.shape), np.nan, dtype)
        c_single = np.full(eta.shape, np.nan, np.float32)
        observation.evaluate_into(y, eta, r, c, l, some)
        observation.evaluate_into(y, eta, r_alone, c_single, spikes=some)
        np.testing.assert_array_equal(r_alone, r)
        observation.evaluate_into(y, eta, r_alone, loss=l_alone, spikes=some)
        np.testing.assert_array_equal(r_alone, r)
        np.testing.assert_array_equal(l_alone, l)
        np.testing.assert_array_less(np.abs(r - slope), 40 * eps * (np.abs(slope) + np.abs(y) + 1))
        for rounding, found in ((eps, c), (np.finfo(np.float32).eps, c_single)):
            np.testing.assert_array_less(np.abs(found - bend), 200 * rounding * bend + 1e-17 * (1 + np.abs(y)))
        terms = np.abs(loss) + np.abs(y * eta)
        np.testing.assert_array_less(np.abs(l - loss), 40 * eps * terms + 1e-18)  # where exponentials are limited
    for after, before in zip((y, eta), arguments, strict=True):
        np.testing.assert_array_equal(after, before)
    eta[:, -1] = np.nan  # one fit that diverges changes no other
    broken, l_broken = np.empty_like(eta), np.empty_like(eta)
    observation.evaluate_into(y, eta, broken, None, l_broken, spikes)
    observation.evaluate_into(y, arguments[1], r, None, l, spikes)
    np.testing.assert_array_equal(broken[:, :-1], r[:, :-1])
    np.testing.assert_array_equal(l_broken[:, :-1], l[:, :-1])


@pytest.mark.parametrize("own", [False, True])
def test_sums_with_weights_are_those_of_weighted_rows(own, rng):
    """Weights of all rows of a tile, or of each; what has no weight may be infinite."""
    X, Y = recording(3, t=50)
    eta, x = rng.normal(size=(50, N)), X.astype(float)
    eta[:, 2], X = np.inf, None
    w = rng.uniform(size=(50 if own else 1, N))
    w[:, 2], w[:, 0] = 0, 1.0
    softplus = observations.from_inverse_link("softplus")
    bend, plain_bend = np.full((2, 50, N), np.nan)
    with np.errstate(all="ignore"):
        plain = [passes.sums_of(softplus, x[[t]], eta[[t]], eta[[t]], Y[[t]], None, True) for t in range(50)]
        found = passes.sums_of(softplus, x, eta, eta, Y, w, True, bend)
        softplus.evaluate_into(Y, eta, np.empty((50, N)), plain_bend)
    w = np.broadcast_to(w, (50, N))
    for k, sums in enumerate(zip(*plain, strict=True)):
        rows = np.stack(sums)
        each = w[:, :, None] if k == 1 else w.reshape(50, *(1,) * (rows.ndim - 2), N)
        expected = np.where(each > 0, rows * each, 0).sum(axis=0)
        np.testing.assert_allclose(found[k], expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bend, np.where(w > 0, plain_bend * w, 0), rtol=1e-14)


@pytest.mark.parametrize("centre, far", [(0.0, False), (20.0, True)])
def test_rare_features_are_not_far_from_0(rng, centre, far):
    """Rows that are looked at may miss a place that is rarely visited: then its feature is 0 there, not constant."""
    X = rng.normal(centre, 1.0, (100_000, 3))
    X[:, 0] = 0.0
    X[1:4, 0] = 1.0
    assert is_far(X) == far
    X[:, 0] = 1.0
    assert is_far(X)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("mean", [0.0, 50.0])
def test_rows_give_the_gradient_and_products_with_the_hessian(weighted, mean, devices):
    """Compare with the oracle's matrices."""
    X, Y = recording(5)
    X = X + mean
    rng = np.random.default_rng(0)
    weights = rng.uniform(0.5, 2, T) if weighted else None
    made = problem(X, Y, weights=weights, devices=devices)
    coef, intercept = 0.1 * rng.normal(size=(D, N)), -0.1 * np.ones(N) - X.mean(axis=0) @ np.zeros((D, N))
    intercept = intercept - X.mean(axis=0) @ coef
    descent = descent_at(made, coef, intercept)
    g_coef, g_intercept = oracle.gradient("softplus", X, Y, coef, intercept, weights)
    centre = made.basis.mean
    expected = g_coef - np.outer(centre, g_intercept)
    with descent.rows as rows:
        fast = rows.place(descent.at)
        np.testing.assert_allclose(fast[:-1], expected, atol=2e-6 * np.abs(X - centre).max())
        np.testing.assert_allclose(fast[-1], g_intercept, atol=2e-6)
        loss, exact, _ = rows.evaluate(descent.at)
        np.testing.assert_allclose(exact[:-1], expected, atol=1e-12 * (1 + mean))
        np.testing.assert_allclose(loss, oracle.objective("softplus", X, Y, coef, intercept, weights, strength=0.0))
        p = rng.normal(size=(D + 1, N))
        product, reach = rows.products(p)
        np.testing.assert_allclose(reach, np.abs(np.column_stack([X - centre, np.ones(T)]) @ p).max(axis=0), rtol=1e-5)
        some = np.array([0, 2])
        one, one_reach = rows.products(p[:, some], some, exact=True)
        np.testing.assert_allclose(one, product[:, some], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one_reach, reach[some], rtol=1e-5)
        bend = rows.along(p)
        Z = np.column_stack([X - centre, np.ones(T)])
        for n in range(N):
            eta = X @ coef[:, n] + intercept[n]
            w = oracle.mean_one(weights, T) * oracle.curvature("softplus", Y[:, n], eta)
            H = (Z.T * w) @ Z / T
            v = p[:, n]
            np.testing.assert_allclose(product[:, n], H @ v, rtol=1e-4, atol=1e-5)
            if n in some:  # the curvature is in single precision
                np.testing.assert_allclose(one[:, n // 2], H @ v, rtol=1e-6, atol=1e-6)
            np.testing.assert_allclose(bend[n], v @ H @ v, rtol=1e-4)
            (matrix,) = rows.hessians(np.array([n]), np.ones(D))
            np.testing.assert_allclose(matrix, H, rtol=5e-3, atol=1e-4)
        reach = np.abs(Z @ p).max(axis=0)
        np.testing.assert_allclose(rows.reach(np.arange(N)), reach, rtol=1e-5)
        step = np.linspace(0.1, 0.2, N)
        after = coef + step * p[:-1], intercept + step * (p[-1] - centre @ p[:-1])
        moved = rows.move(step)
        g_coef, g_intercept = oracle.gradient("softplus", X, Y, *after, weights)
        expected = g_coef - np.outer(centre, g_intercept)
        np.testing.assert_allclose(moved[:-1], expected, atol=2e-6 * np.abs(X - centre).max())
        np.testing.assert_allclose(moved[-1], g_intercept, atol=2e-6)
        after[0][:, 2] += 0.1 * p[:-1, 2]
        after[1][2] += 0.1 * (p[-1, 2] - centre @ p[:-1, 2])
        moved = rows.move(np.array([0.1]), np.array([2]))
        g_coef, g_intercept = oracle.gradient("softplus", X, Y, *after, weights)
        np.testing.assert_allclose(moved[-1], g_intercept[[2]], atol=2e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_passes_of_some_fits_are_those_of_all(weighted, rng):
    X, Y = recording(5, t=9000)
    weights = rng.uniform(0, 2, 9000) if weighted else None
    made, some, step = problem(X, Y, weights=weights), np.array([0, 3]), np.linspace(0.1, 0.2, N)
    coef, p = 0.1 * rng.normal(size=(D, N)), rng.normal(size=(D + 1, N))
    of_all, of_some = (descent_at(made, coef, np.full(N, -0.1)).rows for _ in range(2))
    for rows in of_all, of_some:
        with rows:
            rows.place(np.vstack([coef, np.full(N, -0.1)]))
    with of_all, of_some:
        np.testing.assert_allclose(of_some.along(p[:, some], some), of_all.along(p)[some], rtol=1e-6)
        before = of_some.eta.copy()
        np.testing.assert_allclose(of_some.move(step[some], some), of_all.move(step)[:, some], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_some.eta[:, some], of_all.eta[:, some], rtol=1e-5, atol=1e-6)
    others = np.setdiff1d(np.arange(N), some)
    np.testing.assert_array_equal(of_some.eta[:, others], before[:, others])


@pytest.mark.parametrize("mean", [0.0, 3e4])
@pytest.mark.parametrize("weighted", [False, True])
def test_hessians_of_some_rows_are_close_to_those_of_all(weighted, mean, rng):
    t = 20_000
    X, Y = recording(5, t=t)
    weights = rng.uniform(0, 2, t) * (rng.uniform(size=t) < 0.7) if weighted else None
    made, scale = problem(X + mean, Y, weights=weights), rng.uniform(0.5, 2, D)
    coef = rng.normal(size=(D, N))
    descent = descent_at(made, coef, -1 - (X + mean).mean(axis=0) @ coef)
    with descent.rows as rows:
        rows.place(descent.at)
        exact, every = rows.hessians(np.arange(N), scale), np.arange(N)
        sizes = rows.sizes_in(made.basis.whiten)
        z = (X + mean - made.basis.mean) @ made.basis.whiten
        ratio = sizes / (1 + np.sum(z * z, axis=1))
        assert 0.5 < np.median(ratio) < 1.5 and np.quantile(ratio, 0.99) < 4
        for share, most in (16, 2.5), (600, 1.2):
            found, again = (rows.sampled_hessians(every, scale, share, sizes) for _ in range(2))
            part = rows.sampled_hessians(every, scale, share, sizes, [np.array([0, 3])] * N)
            found, again = found + part, again + part
            inside = [H[np.ix_([0, 3, D], [0, 3, D])] for H in exact]
            for H, S, same_again in zip(exact + inside, found, again, strict=True):
                factor = np.linalg.inv(np.linalg.cholesky(H))
                spectrum = np.linalg.eigvalsh(factor @ S @ factor.T)
                assert 1 / most < spectrum[0] and spectrum[-1] < most
                np.testing.assert_array_equal(S, same_again)
        rows.curvature[:, 1] = 0
        assert not rows.sampled_hessians([1], scale, 2, sizes)[0].any()


@pytest.mark.parametrize("n_trials", [112, 56, 224])
def test_samples_show_trials_that_repeat_and_rare_features(n_trials):
    """Rows at equal distances would be the same bin of every trial; those of high curvature miss rare features."""
    bins = np.tile(np.arange(100) / 100, n_trials)
    X = np.exp(-((bins[:, None] - np.linspace(0, 1, D)) ** 2) / 0.02)
    X[:, 0] = 0
    X[np.arange(12) * 317, 0] = 1
    Y = np.random.default_rng(0).poisson(np.exp(2 * X[:, 3] - 2.0))[:, None].astype(float)
    descent = descent_at(problem(X, Y, strength=1e-6), np.array([-4.0, 0, 0, 2, 0, 0])[:, None], np.array([-2.0]))
    with descent.rows as rows:
        rows.place(descent.at)
        exact = rows.hessians(np.array([0]), np.ones(D))[0]
        sizes = rows.sizes_in(descent.shared.basis.whiten)
        sample = rows.sampled_hessians(np.array([0]), np.ones(D), 16, sizes)[0]
    factor = np.linalg.inv(np.linalg.cholesky(exact))
    spectrum = np.linalg.eigvalsh(factor @ sample @ factor.T)
    assert 0.25 < spectrum[0] and spectrum[-1] < 4


def test_metrics_of_some_rows_need_a_ridge_and_many_rows():
    for strength, t, sampled in (1e-6, 5000, True), (0.0, 5000, False), (1e-6, 300, False):
        X, Y = recording(t=t)
        descent = descent_at(problem(X, Y, strength=strength), np.zeros((D, N)), np.zeros(N))
        assert descent._may_be_sampled.all() == sampled
    X, Y = recording(t=5000)
    descent = descent_at(problem(X, Y, strength=1e-6), np.zeros((D, N)), np.zeros(N))
    with descent.rows:
        for _ in range(descent.most_samples):
            assert descent._may_be_sampled.all()
            descent.renew_metrics(np.array([1, 2]), np.ones(D))
        assert descent._may_be_sampled.tolist() == [True, False, False, True, True]
        exact = descent.rows.hessians(np.array([1]), np.ones(D))[0]
        descent.renew_metrics(np.array([1, 2]), np.ones(D))
        g = np.ones(D + 1)
        np.testing.assert_allclose(descent.own[1].solve(g), OwnMetric(exact, 1e-6 * np.ones(D), np.ones(D)).solve(g))


def test_the_own_metric_of_a_fit_is_its_hessian():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, D + 1))
    H, ridge, scale = A.T @ A / 40, rng.uniform(0.1, 1, D), rng.uniform(0.5, 2, D)
    unit = np.append(1 / scale, 1.0)
    metric = OwnMetric(H * np.outer(unit, unit), ridge, scale)
    g = rng.normal(size=D + 1)
    whole = H + np.diag(np.append(ridge, 0))
    np.testing.assert_allclose(metric.solve(g), np.linalg.solve(whole, g), rtol=1e-5)


def test_columns_that_sum_to_one_but_for_rounding_do_not_carry_a_fit_away():
    """Along them gradients in single precision are rounding; a metric of a fit's own must not follow it."""
    for seed in (1, 4, 20):
        rng = np.random.default_rng(seed)
        p = rng.random(40)
        X = np.column_stack([1 - p, p, 1 - p]).astype(np.float32)
        Y = rng.gamma(2.0, 0.5, (40, 6)) + 1e-6
        made = {"observation_model": "Gamma", "regularizer": "UnRegularized"}
        with warnings.catch_warnings(action="ignore"):  # nothing proves them
            model, newton = (PopulationGLM("exp", solver_name=name, **made).fit(X, Y) for name in ("auto", "Newton"))
        assert np.abs(model.coef_).max() < 100
        np.testing.assert_allclose(model.predict(X), newton.predict(X), rtol=1e-4)


@pytest.mark.filterwarnings("ignore:X has a constant column")
@pytest.mark.parametrize("solver", ["ProximalNewton", "Newton"])
def test_constant_features_stay_at_0_whatever_groups_they_are_in(solver, rng):
    """Otherwise nothing proves a fit: rounding would decide what the penalty has to."""
    X = rng.normal(size=(400, 8))
    X[:, [2, 6]] = 0.0, 7.5
    Y = rng.poisson(np.exp(0.5 * X[:, [0, 1]]))
    model = PopulationGLM("exp", "GroupLasso", regularizer_strength=1e-3, groups=[0, 0, 0, 1, 1, -1, -1, -1],
                          solver_name=solver).fit(X, Y)  # fmt: skip
    assert np.all(model.coef_[[2, 6]] == 0) and model.report_.gap_is_bound.all()
