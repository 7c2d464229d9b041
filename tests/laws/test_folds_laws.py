"""Laws of strengths, folds and neurons as columns of one problem: each column is the fit it represents."""

import numpy as np
import pytest
from oracles import population as oracle

from glmfit import Status, observations, penalties
from glmfit.engine.population import FoldedProblem, PopulationProblem
from glmfit.engine.problem import Params
from glmfit.solvers import ConjugateGradients, LoopOptions

T, D, N, FOLDS = 900, 4, 3, 3
STRENGTHS = np.array([1e-4, 1e-2, 1.0])


def make(link="softplus", weighted=False, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(T, D)) @ (np.eye(D) + 0.5) + 1
    eta = (X - 1) @ rng.normal(size=(D, N)) * 0.2 - 1
    Y = rng.poisson(np.exp(eta) if link == "exp" else np.logaddexp(0, eta)).astype(float)
    train = np.repeat(~np.eye(FOLDS, dtype=bool), T // FOLDS, axis=0)
    strength, fold, neuron = (a.ravel() for a in np.meshgrid(STRENGTHS, range(FOLDS), range(N), indexing="ij"))
    weights = rng.uniform(0.2, 2, T) if weighted else None
    problem = FoldedProblem(
        X, Y, observations.from_inverse_link(link), penalties.Ridge(strength), neuron, fold, train, weights
    )
    return problem, X, Y, train, weights, strength, fold, neuron


def alone(problem, X, Y, train, weights, strength, fold, neuron, c):
    rows = np.flatnonzero(train[:, fold[c]])
    w = None if weights is None else weights[rows]
    ridge = penalties.Ridge(np.array([strength[c]]))
    return PopulationProblem(X[rows], Y[rows][:, [neuron[c]]], problem.observation, ridge, w), rows, w


@pytest.mark.parametrize("link", ["softplus", "exp"])
@pytest.mark.parametrize("weighted", [False, True])
def test_every_column_is_its_own_problem(link, weighted, rng):
    """Null model, saturated loss, objective and gradient, against the oracle on the rows of the fold."""
    made = make(link, weighted)
    problem, X, Y, _, _, strength, fold, neuron = made
    params = Params(0.1 * rng.normal(size=(D, problem.n_neurons)), rng.normal(size=problem.n_neurons) - 1)
    value = problem.evaluate(params)
    for c in range(problem.n_neurons):
        own, rows, w = alone(*made, c)
        at = params.coef[:, [c]], params.intercept[[c]]
        args = link, X[rows], Y[rows][:, [neuron[c]]], *at, w
        assert value.objective[c] == pytest.approx(oracle.objective(*args, strength=strength[c])[0], rel=1e-12)
        grad_coef, grad_intercept = oracle.gradient(*args, ridge=strength[c])
        np.testing.assert_allclose(value.grad_coef[:, c], grad_coef[:, 0], atol=1e-12)
        assert value.grad_intercept[c] == pytest.approx(grad_intercept[0], abs=1e-12)
        for name in ("mean_count", "null_objective", "saturated_loss"):
            assert getattr(problem, name)[c] == pytest.approx(getattr(own, name)[0], rel=1e-12)
        assert problem.select(c).evaluate(Params(*at)).objective[0] == pytest.approx(value.objective[c], rel=1e-12)
    assert np.all(np.diff(fold.reshape(3, FOLDS, N)[0, :, 0]) == 1)


@pytest.mark.thorough
@pytest.mark.parametrize("weighted", [False, True])
def test_one_solve_fits_all_columns_with_bounds_that_hold(weighted):
    """Against Newton's method in NumPy on the rows of each fold."""
    made = make(weighted=weighted)
    problem = made[0]
    solution = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-5))
    assert np.all(solution.status == Status.CONVERGED) and np.all(solution.gap_is_bound)
    for c in range(0, problem.n_neurons, 4):
        own, rows, w = alone(*made, c)
        X, Y = own.X, own.Y
        coef, intercept = oracle.newton("softplus", X, Y, made[5][c], w)[:2]
        best = oracle.objective("softplus", X, Y, coef, intercept, w, strength=made[5][c])[0]
        assert -1e-10 <= solution.objective[c] - best <= solution.gap[c] + 1e-10
        value = own.evaluate(Params(solution.params.coef[:, [c]], solution.params.intercept[[c]]))
        assert value.objective[0] == pytest.approx(solution.objective[c], rel=1e-10)
        assert len(rows) == T * (FOLDS - 1) // FOLDS


@pytest.mark.slow
def test_a_column_without_spikes_in_its_fold_leaves_the_others_alone():
    problem, X, Y, train, _, strength, fold, neuron = make()
    Y = Y.copy()
    Y[T // FOLDS :, 0] = 0  # the first neuron fires in the first block only: held out by fold 0
    problem = FoldedProblem(X, Y, problem.observation, penalties.Ridge(strength), neuron, fold, train)
    solution = ConjugateGradients().run(problem, options=LoopOptions(tol=1e-4))
    silent = (neuron == 0) & (fold == 0)
    np.testing.assert_array_equal(solution.status == Status.NO_SPIKES, silent)
    assert np.all(solution.status[~silent] == Status.CONVERGED)
