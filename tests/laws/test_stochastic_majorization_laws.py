"""Laws of stochastic majorization: the corrected listing by coordinates, and its behaviour (identities 17 and 18)."""

import tracemalloc
import warnings

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from oracles import stochastic_majorization as oracle
from scipy.special import j0

from glmfit import MultinomialGLM, SoftmaxGLM, Status
from glmfit.bounds import softmax_bound
from glmfit.engine.problem import Params
from glmfit.solvers import ConjugateGradients, LoopOptions, Schedule, SoftmaxSGD, StochasticMajorization, tune_step
from glmfit.stochastic import Pairs, SoftmaxProblem

N, D, K = 40, 3, 4
STRENGTH = 0.02
FROZEN = 1e-300  # a gain that moves nothing
KEY = jax.random.key(5)
CASES = {
    "labels": {},
    "counts and weights": {"counts": True},
    "offsets": {"offset": True},
    "sparse": {"sparse": True},
    "no intercept": {"intercept": False},
    "single precision": {"dtype": np.float32},
    "two classes": {"K": 2},
    "everything": {"counts": True, "offset": True, "sparse": True},
}
every_case = pytest.mark.parametrize("options", CASES.values(), ids=CASES)


class Case:
    """A problem, and the same problem in the oracle's form."""

    def __init__(self, n=N, d=D, K=K, seed=0, strength=STRENGTH, counts=False, offset=False, sparse=False,
                 intercept=True, dtype=np.float64, scale=1.0):  # fmt: skip
        rng = np.random.default_rng(seed)
        X = scale * (rng.normal(size=(n, d)) * (rng.random((n, d)) < 0.7) + rng.normal(size=d))
        X = X.astype(dtype)
        scores = X @ rng.normal(size=(d, K)) / scale
        self.offset = rng.normal(size=(n, K)) if offset else None
        label = np.argmax(scores + rng.gumbel(size=(n, K)), axis=1)
        self.Y = np.eye(K)[label]
        if counts:
            self.Y = rng.poisson(1.0, size=(n, K)) * rng.uniform(0.5, 2, (n, 1)) + self.Y
        row, label = np.nonzero(self.Y)
        pairs = Pairs(row, label, self.Y[row, label])
        features = sp.csr_array(X) if sparse else X
        self.problem = SoftmaxProblem(features, pairs, K, strength, intercept, self.offset, dtype)
        # The oracle's rows are centred and have a 1 for the intercept.
        X = X.astype(np.float64)
        total = self.Y.sum(axis=1)
        self.mean = total @ X / total.sum() if intercept else np.zeros(d)
        self.X = np.hstack([X - self.mean, np.ones((n, 1))]) if intercept else X
        self.n, self.d, self.K, self.intercept = n, d, K, intercept
        ridge = n * strength
        self.ridge, self.start = np.full(self.X.shape[1], ridge), np.full(self.X.shape[1], ridge)
        if intercept:
            self.ridge[-1], self.start[-1] = 0.0, min(ridge, total.mean())

    @property
    def zero(self):
        return np.zeros((self.K, self.X.shape[1]))

    def params(self, W):
        """Parameters in the package's form."""
        coef = W[:, : self.d].T
        if not self.intercept:
            return Params(coef, np.zeros(self.K))
        intercept = W[:, -1] - self.mean @ coef
        return Params(coef, intercept - intercept.mean())

    def batches(self, seed, epoch, size=1):
        order = np.random.default_rng([seed, epoch]).permutation(self.n)
        return [order[i : i + size] for i in range(0, self.n, size)]

    def optimum(self):
        options = LoopOptions(tol=1e-10, max_epochs=200)
        return float(ConjugateGradients().run(self.problem, key=KEY, options=options).objective[0])


def run(case, solver, epochs=1, **options):
    return solver.run(case.problem, key=KEY, schedule=Schedule(epochs, decay=1.0, **options))


def dense_inverse(curvature, n):
    return np.stack([curvature.solve(e) for e in np.eye(n)])


def assert_same_params(a, b, atol):
    np.testing.assert_allclose(a.coef, b.coef, atol=atol)
    np.testing.assert_allclose(a.intercept, b.intercept, atol=atol)


# ----------------------------------------------------------------------------- one pass, parameters held (identity 17)


@pytest.mark.parametrize("order", ["given", "descending", "ascending", "averaged"])
def test_factors_make_up_the_curvature(order, rng):
    scores = rng.normal(size=(20, 5)) * 10.0 ** rng.integers(-3, 5, (20, 1))
    scores[3, 1] = scores[4, 0] = -np.inf
    bound = softmax_bound(scores, order)
    A = bound.factors()
    assert A.shape == (20, 8 if order == "averaged" else 4, 5)
    np.testing.assert_allclose(np.einsum("nfk,nfl->nkl", A, A), bound.matrices(), atol=1e-15)
    assert softmax_bound(scores.astype(np.float32), order).factors().dtype == np.float32
    for least in (np.zeros((2, 1)), np.zeros((0, 3)), np.array([[1e308, -1e308, 0.0], [-1e308, -1e308, 1e308]])):
        bound = softmax_bound(least, order)
        A = bound.factors()
        np.testing.assert_allclose(np.einsum("nfk,nfl->nkl", A, A), bound.matrices(), atol=1e-15)


@every_case
def test_a_pass_with_parameters_held_is_the_batch_step(options):
    case = Case(**options)
    W = case.zero + np.random.default_rng(1).normal(size=case.zero.shape)
    W -= W.mean(axis=0)
    found = StochasticMajorization(gain=FROZEN).run(case.problem, case.params(W), key=KEY, schedule=Schedule(1))
    sigma = oracle.curvature(W, case.X, case.Y, case.offset) + np.diag(np.tile(case.start, case.K))
    step = np.linalg.solve(sigma, oracle.gradient(W, case.X, case.Y, case.ridge, case.offset))
    taken = case.problem.contrast_rows.to_params(found.state.memory.phi)
    assert_same_params(taken, case.params(step.reshape(W.shape)), 1e-10)


def test_the_listing_as_printed_is_not_the_batch_step():
    """Erratum S2: it counts observed features and ridge once per class."""
    case = Case()
    W = case.zero
    sigma = oracle.curvature(W, case.X, case.Y) + np.diag(np.tile(case.start, K))
    step = np.linalg.solve(sigma, oracle.gradient(W, case.X, case.Y, case.ridge))
    args = W, case.X, case.Y, [case.batches(0, 0)], case.ridge, case.start
    right, wrong = (oracle.listing(*args, frozen=True, printed=printed)[3] for printed in (False, True))
    np.testing.assert_allclose(right, step, atol=1e-12)
    assert np.abs(wrong - step).max() > 1


@pytest.mark.parametrize("order", ["given", "averaged"])
def test_after_every_row_phi_is_m_mu_and_m_is_the_inverse(order):
    case = Case(counts=True)
    rows, solver = case.problem.contrast_rows, StochasticMajorization(order=order)
    sigma, mu = np.diag(np.tile(case.start, case.K - 1)), np.zeros(rows.n_parameters)
    state = solver.init_state(case.problem, None, key=KEY)
    for (i,), after in zip(case.batches(state.seed, 0), solver.visits(case.problem, state), strict=True):
        seen = rows.visit(state.theta, np.array([i]))
        contrasts = rows.contrasts
        C = contrasts @ softmax_bound(seen.scores, order).matrices()[0] @ contrasts.T
        sigma = sigma + seen.totals[0] * np.kron(C, np.outer(seen.z, seen.z))
        mu = mu + seen.gradient
        M = dense_inverse(after.memory.curvature, rows.n_parameters)
        np.testing.assert_array_equal(M, M.T)
        np.testing.assert_allclose(M @ sigma, np.eye(len(M)), atol=1e-10)
        np.testing.assert_allclose(after.memory.phi, M @ mu, atol=1e-10)
        np.testing.assert_allclose(after.theta, state.theta - M @ mu / N, atol=1e-10)
        state = after
    assert state.steps == N


def test_batches_of_any_size_give_the_same_sums():
    case = Case(counts=True)
    ends = [run(case, StochasticMajorization(batch_size=b, gain=FROZEN)).state.memory for b in (1, 7, N, 1000)]
    for end in ends[1:]:
        np.testing.assert_allclose(end.mu, ends[0].mu, atol=1e-12)
        np.testing.assert_allclose(end.phi, ends[0].phi, atol=1e-11)


def test_a_batch_with_more_factors_than_fit_at_once_is_split(monkeypatch):
    from glmfit.stochastic import contrast_rows as module

    case = Case()
    whole = run(case, StochasticMajorization(batch_size=N))
    monkeypatch.setattr(module, "_FACTORS", 7)
    parts = run(case, StochasticMajorization(batch_size=N))
    np.testing.assert_allclose(parts.state.theta, whole.state.theta, atol=1e-12)


# ------------------------------------------------------------------------------------------------ whole runs


@every_case
@pytest.mark.parametrize("batch, restart", [(1, False), (1, True), (7, True)])
def test_runs_match_the_listing(options, batch, restart):
    case, solver = Case(**options), StochasticMajorization(batch_size=batch, restart=restart, gain=1.5)
    found = run(case, solver, epochs=2)
    epochs = [case.batches(5, epoch, batch) for epoch in range(2)]
    args = case.zero, case.X, case.Y, epochs, case.ridge, case.start
    W = oracle.listing(*args, gain=1.5, offset=case.offset, restart=restart)[0]
    assert_same_params(found.params, case.params(W - W.mean(axis=0)), 1e-9)
    assert found.status == Status.SCHEDULE_DONE and found.epochs == 2 and found.steps == 2 * -(-N // batch)


def test_two_classes_take_one_rank_one_update_per_row():
    case = Case(K=2)
    found = run(case, StochasticMajorization())
    w = oracle.logistic_listing(  # a ridge on both classes is half of it on their difference
        np.zeros(D + 1), case.X, case.Y[:, 1], np.concatenate(case.batches(5, 0)), case.ridge / 2, case.start / 2
    )
    assert_same_params(found.params, case.params(np.stack([-w / 2, w / 2])), 1e-10)


def test_one_pass_covers_half_of_the_descent():
    """For problems of the size of ecoli, less than half of the descent from zeros is left, at most 0.48."""
    for seed in range(3):
        case = Case(n=336, d=7, K=8, seed=seed, strength=1e-3)
        found = StochasticMajorization().run(case.problem, key=KEY)
        assert found.epochs == 1
        best = case.optimum()
        assert case.problem.objective(found.params) - best < 0.5 * (np.log(8) - best)


class Quadratic(Case):
    """Rows so alike, and an optimum so near zero, that every bound is the loss: one feature that is 1 or -1."""

    def __init__(self, n=1000):
        self.best = 0.01
        x = np.where(np.arange(n) % 2, 1.0, -1.0)
        share = 1 / (1 + np.exp(-self.best * x))
        pairs = Pairs(np.repeat(np.arange(n), 2), np.tile([0, 1], n), np.stack([1 - share, share], 1).ravel())
        self.problem = SoftmaxProblem(x[:, None], pairs, 2, 1e-7, fit_intercept=False)

    def error(self, found):
        coef = found.params.coef[0]
        return 1 - (coef[1] - coef[0]) / self.best


@pytest.mark.slow
def test_errors_of_the_listing_oscillate_and_restarts_prevent_that():
    """Erratum S7: J_0(2 sqrt(tau)) after tau epochs; with restarts every epoch leaves the same share as the first."""
    case = Quadratic()
    for epochs in (1, 2, 4):
        kept, restarted = (case.error(run(case, StochasticMajorization(restart=r), epochs)) for r in (False, True))
        assert kept == pytest.approx(j0(2 * np.sqrt(epochs)), abs=5e-3)
        assert restarted == pytest.approx(j0(2) ** epochs, abs=5e-3)
    assert case.error(run(case, StochasticMajorization(batch_size=10))) == pytest.approx(j0(2), abs=2e-2)


# ----------------------------------------------------------------------------------------- low rank (identity 18)


@every_case
def test_a_rank_of_all_parameters_is_full_rank(options):
    case = Case(**options)
    rank = case.problem.contrast_rows.n_parameters
    full, low = (run(case, StochasticMajorization(rank=r, batch_size=3)) for r in (None, rank))
    np.testing.assert_allclose(low.state.theta, full.state.theta, atol=1e-8)


@pytest.mark.parametrize("rank", [0, 1, 4])
def test_low_rank_curvature_stays_above_the_sum(rank):
    case = Case(d=6, counts=True)
    rows, solver = case.problem.contrast_rows, StochasticMajorization(rank=rank, gain=5.0)
    exact = np.diag(np.tile(case.start, case.K - 1))
    state = solver.init_state(case.problem, None, key=KEY)
    for (i,), after in zip(case.batches(state.seed, 0), solver.visits(case.problem, state), strict=True):
        for q in rows.factors(rows.visit(state.theta, np.array([i])), "given"):
            exact = exact + q.T @ q
        curvature = after.memory.curvature
        kept = curvature.dense()
        assert len(curvature.S) <= rank
        assert np.linalg.eigvalsh(kept - exact)[0] >= -1e-10 * np.linalg.norm(kept)
        np.testing.assert_allclose(after.memory.phi, np.linalg.solve(kept, after.memory.mu), atol=1e-10)
        state = after


@pytest.mark.parametrize("sparse", [False, True])
def test_memory_is_rank_times_features(sparse):
    """Apart from the rows, at most 40 vectors at rank 1 and 100 at rank 10, however long they are."""
    for d in (2500, 10_000):
        X = np.random.default_rng(0).normal(size=(20, d)) / np.sqrt(d)
        X[:, 50:] *= not sparse
        pairs = Pairs(np.arange(20), np.arange(20) % 2, np.ones(20))
        problem = SoftmaxProblem(sp.csr_array(X) if sparse else X, pairs, 2, 1e-2)
        assert problem.contrast_rows.n_parameters == d + 1
        for rank, vectors in ((1, 40), (10, 100)):
            solver = StochasticMajorization(rank=rank, batch_size=2)
            tracemalloc.start()
            state = solver.update(problem, solver.init_state(problem, None, key=KEY), 1.0, 1.0)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert solver.is_finite(state) and peak < 8 * vectors * d + 100_000


# ------------------------------------------------------------------------------------------------ gradient steps


@pytest.mark.parametrize("gain", ["constant", "tau", "inverse"])
@pytest.mark.parametrize("batch", [1, 6])
def test_gradient_steps_are_those_of_the_formula(gain, batch):
    case, c, tau, decay = Case(counts=True), 0.3, 25.0, 0.8
    solver = SoftmaxSGD(batch_size=batch, gain=gain, tau=tau)
    found = solver.run(case.problem, key=KEY, schedule=Schedule(3, c, decay))
    batches = [rows for epoch in range(3) for rows in case.batches(5, epoch, batch)]
    i = np.arange(1, len(batches) + 1)
    gains = {"constant": c * np.ones(len(i)), "tau": c * tau / (tau + i), "inverse": c / i}[gain]
    gains = gains * decay ** ((i - 1) // -(-N // batch))
    W = oracle.gradient_descent(case.zero, case.X, case.Y, batches, case.ridge, gains)
    assert_same_params(found.params, case.params(W - W.mean(axis=0)), 1e-10)
    assert found.steps == len(i)


def test_gradient_steps_can_be_tuned_but_majorization_has_no_step():
    case = Case(n=300)
    tuned = tune_step(SoftmaxSGD(batch_size=10), case.problem, key=KEY, steps=(1e-4, 0.3, 60.0), epochs=3)
    assert tuned.step == 0.3
    assert tuned.loss[2] == np.inf  # the ridge would flip the signs of coefficients
    with pytest.raises(ValueError, match="StochasticMajorization has no step to choose"):
        tune_step(StochasticMajorization(), case.problem, key=KEY)


# ------------------------------------------------------------------------------------------------ behaviour of a run


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [StochasticMajorization(), StochasticMajorization(rank=2), SoftmaxSGD()])
def test_the_same_key_gives_the_same_answer_and_runs_can_be_resumed(solver):
    case = Case()
    whole, again = run(case, solver, 4), run(case, solver, 4)
    np.testing.assert_array_equal(whole.params.coef, again.params.coef)
    half = run(case, solver, 2)
    for _ in range(2):  # the state of a run is not modified
        rest = solver.run(case.problem, key=KEY, schedule=Schedule(4, decay=1.0), state=half.state)
        np.testing.assert_array_equal(rest.params.coef, whole.params.coef)
    other = solver.run(case.problem, key=jax.random.key(6), schedule=Schedule(4, decay=1.0))
    assert np.abs(other.params.coef - whole.params.coef).max() > 1e-6


@pytest.mark.parametrize("solver", [StochasticMajorization(restart=True), SoftmaxSGD()])
def test_callbacks_see_every_epoch_and_interrupted_runs_keep_the_last(solver):
    case, seen = Case(), []

    def look(epoch, seconds, params):
        seen.append((epoch, case.problem.objective(params)))
        if epoch == 3:
            raise KeyboardInterrupt

    found = solver.run(case.problem, key=KEY, schedule=Schedule(9, 0.1), callback=look)
    assert found.status == Status.INTERRUPTED and [epoch for epoch, _ in seen] == [1, 2, 3]
    assert case.problem.objective(found.params) == seen[-1][1]


def test_overflow_is_reported_and_the_parameters_before_it_are_kept():
    case = Case(scale=1e150, strength=1e-12)
    found = run(case, SoftmaxSGD(), 2, step=1e11)
    assert found.status == Status.NON_FINITE and found.epochs == 0
    np.testing.assert_array_equal(found.params.coef, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("strength", [1e-12, 1e-3, 10.0])
@pytest.mark.parametrize("solver", [StochasticMajorization(), StochasticMajorization(rank=2), SoftmaxSGD()])
def test_scores_of_ten_thousand_are_finite(dtype, strength, solver):
    """Large features under any ridge, and a start whose scores are large; warnings are errors here."""
    case = Case(dtype=dtype, strength=strength, scale=1e4)
    start = Params(np.random.default_rng(0).normal(size=(D, K)), np.zeros(K))
    assert np.abs(case.problem.scores(start)).max() > 1e4
    for params in (None, start):
        found = solver.run(case.problem, params, key=KEY, schedule=Schedule(3, 1e-2))
        assert found.status == Status.SCHEDULE_DONE
        assert np.isfinite(found.params.coef).all() and np.isfinite(case.problem.objective(found.params))


@pytest.mark.parametrize(
    "make_it, message",
    [
        (lambda: StochasticMajorization(batch_size=0), "batch_size is 0"),
        (lambda: StochasticMajorization(rank=-1), "rank is -1; it must be a whole number of at least 0"),
        (lambda: StochasticMajorization(gain=0), "gain is 0"),
        (lambda: StochasticMajorization(restart=1), "restart is 1; it must be True or False"),
        (lambda: StochasticMajorization(order="sorted"), "order is 'sorted'; it must be one of 'given'"),
        (lambda: SoftmaxSGD(gain="falling"), "gain is 'falling'; it must be one of 'constant', 'tau', 'inverse'"),
        (lambda: SoftmaxSGD(tau=0), "tau is 0"),
        (lambda: run(Case(), SoftmaxSGD(), step=50.0), "step is 50; it must stay below 50, where an explicit step"),
        (lambda: run(Case(strength=0.0), StochasticMajorization()), "the ridge's strength is 0; stochastic"),
        (
            lambda: run(Case(d=1500, sparse=True), StochasticMajorization()),
            r"4503 parameters \(1501 columns times 4 - 1 classes\).*at most 3000. Give a rank",
        ),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(make_it, message):
    with pytest.raises(ValueError, match=message):
        make_it()


# ------------------------------------------------------------------------------------------------ estimators


@pytest.mark.filterwarnings("ignore:the fit has no useful bound")
def test_estimators_make_one_pass_and_need_no_step():
    case = Case(n=300)
    X, y = case.problem.X, case.Y.argmax(axis=1)
    model = SoftmaxGLM(regularizer_strength=STRENGTH, solver_name="StochasticMajorization").fit(X, y)
    report = model.report_
    assert report.status == Status.NO_USEFUL_BOUND and report.epochs == 1 and report.row_evals == 300
    assert np.isnan(report.step) and not report.step_tuned and "step c" not in str(report)
    assert report.gap_is_bound and report.objective < report.null_objective
    model.set_params(max_epochs=3, solver_kwargs={"restart": True, "batch_size": 7})
    again = model.fit(X, y).report_
    assert again.epochs == 3 and again.row_evals == 900 and again.objective < report.objective
    with pytest.raises(ValueError, match="partial_fit needs a solver that samples: solver_name is 'StochasticMaj"):
        model.partial_fit(X, y)
    with pytest.raises(ValueError, match="strength is 0; stochastic majorization starts from"):
        SoftmaxGLM(regularizer="UnRegularized", solver_name="StochasticMajorization").fit(X, y)
    counts = MultinomialGLM(regularizer_strength=STRENGTH, solver_name="StochasticMajorization").fit(X, case.Y)
    np.testing.assert_allclose(counts.report_.objective, report.objective, rtol=1e-12)


def test_estimators_tune_the_gradient_steps():
    case = Case(n=300)
    kwargs = {"batch_size": 10}
    kwargs = {"solver_name": "SoftmaxSGD", "solver_kwargs": kwargs, "max_epochs": 5, "certify": False}
    model = SoftmaxGLM(regularizer_strength=STRENGTH, **kwargs)
    report = model.fit(case.problem.X, case.Y.argmax(axis=1)).report_
    assert report.step_tuned and report.step > 0 and report.row_evals == 1500
    assert report.objective < 0.9 * report.null_objective


def test_a_pass_that_ends_worse_than_class_frequencies_says_what_to_do():
    case = Case(n=300)
    model = SoftmaxGLM(STRENGTH and "Ridge", STRENGTH, "StochasticMajorization", {"gain": 1e4})
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        model.fit(case.problem.X, case.Y.argmax(axis=1))
    assert any("use a smaller gain" in str(w.message) for w in said)
    assert model.report_.status == Status.NO_GAIN
    assert model.report_.objective == pytest.approx(model.report_.null_objective)
