"""The first step of a sampling solver is the best of a few short trials."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from glmfit import Status
from glmfit.solvers import OVE, SGD, ImplicitSGD, UMax, tune_step
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic.step_search import JUDGES


@pytest.fixture
def problem(rng):
    X = rng.normal(size=(500, 3)).astype(np.float32)
    y = np.argmax(X @ rng.normal(size=(3, 4)) + rng.gumbel(size=(500, 4)), axis=1)
    return SoftmaxProblem(X, Pairs(np.arange(500), y, np.ones(500)), 4, 1e-3)


@pytest.mark.slow
def test_the_chosen_step_has_the_smallest_loss(problem):
    tuned = tune_step(ImplicitSGD(), problem, key=jax.random.key(0), steps=(1e-4, 1e-2, 1.0))
    assert tuned.steps == (1e-4, 1e-2, 1.0)
    assert tuned.step == tuned.steps[int(np.argmin(tuned.loss))]
    assert tuned.loss[0] > tuned.loss.min() + 0.1  # far too short a step learns nothing
    again = tune_step(ImplicitSGD(), problem, key=jax.random.key(0), steps=(1e-4, 1e-2, 1.0))
    np.testing.assert_array_equal(again.loss, tuned.loss)


@pytest.mark.thorough
def test_steps_that_overflow_or_turn_coefficients_around_are_never_chosen(problem):
    problem.X[:] *= 100
    tuned = tune_step(SGD(basis="raw"), problem, key=jax.random.key(0), steps=(1e-6, 1e3, 1e4))
    assert tuned.step <= 1e-6 and tuned.steps[-3:] == (1e-6, 1e3, 1e4)
    assert np.isinf(tuned.loss[-2:]).all()
    too_long = UMax().longest_step(problem)
    assert tune_step(UMax(), problem, key=jax.random.key(0), steps=(0.1, too_long)).loss[-1] == np.inf


@pytest.mark.thorough
def test_shorter_steps_are_tried_while_the_shortest_is_best(problem):
    tuned = tune_step(ImplicitSGD(), problem, key=jax.random.key(0), steps=(1e4, 1e5))
    assert tuned.steps == tuple(sorted(tuned.steps)) and len(tuned.steps) > 2
    best = int(np.argmin(tuned.loss))
    assert tuned.step == tuned.steps[best] and 0 < best and tuned.step < 1e4


def test_shorter_steps_are_tried_while_none_beats_class_frequencies(problem):
    """The least bad of steps that are all too long must not be chosen: the fit would end at class frequencies."""

    class OnlyShort(ImplicitSGD):
        """Better than class frequencies only with steps near 1e-6; of the others, those near 1 do the least harm."""

        def run(self, problem, start, *, key, schedule, verbose=False):
            slope = problem.evaluate(start).grad_coef
            size = -0.1 if schedule.step < 2e-6 else 0.1 * (1 + abs(np.log10(schedule.step)))
            params = start._replace(coef=start.coef + size * np.asarray(slope))
            return SimpleNamespace(status=Status.SCHEDULE_DONE, params=params)

    tuned = tune_step(OnlyShort(), problem, key=jax.random.key(0), steps=(1e-2, 1.0, 1e2))
    assert tuned.step < 2e-6


def test_too_few_rows_are_not_tried(problem):
    few = problem.subset(np.arange(3))
    for solver, step in ((ImplicitSGD(), 1.0), (UMax(), 0.1)):
        tuned = tune_step(solver, few, key=jax.random.key(0))
        assert tuned.step == step and tuned.steps == () and tuned.loss.size == 0


def test_subset_has_the_requested_rows(problem):
    rows = np.array([7, 3, 400])
    part = problem.subset(rows)
    np.testing.assert_array_equal(part.X, problem.X[[3, 7, 400]])
    np.testing.assert_array_equal(part.counts.toarray(), problem.counts.toarray()[[3, 7, 400]])
    params = problem.null_params()
    assert part.loss(params) == pytest.approx(problem.objective(params, [3, 7, 400]))


@pytest.mark.thorough
@pytest.mark.parametrize("solver", [UMax(), OVE(), SGD()], ids=lambda solver: type(solver).__name__)
def test_few_steps_are_tried_and_the_best_has_worse_neighbours(solver, problem):
    tuned = tune_step(solver, problem, key=jax.random.key(0))
    assert 2 <= len(tuned.steps) <= 8 and 0.03 in tuned.steps
    at = tuned.steps.index(tuned.step)
    assert tuned.loss[at] == tuned.loss.min() < problem.null_objective
    assert at > 0 or tuned.step < 0.03
    np.testing.assert_allclose(np.diff(np.log10(tuned.steps)), 0.5, rtol=1e-3)


@pytest.mark.thorough
def test_the_judge_is_the_objective_or_held_out_rows(problem):
    """With almost no ridge and few rows, the objective still falls when new rows are predicted worse."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 40))
    y = np.argmax(X[:, :3] @ rng.normal(size=(3, 4)) + 2 * rng.gumbel(size=(150, 4)), axis=1)
    few = SoftmaxProblem(X, Pairs(np.arange(150), y, np.ones(150)), 4, 1e-8)
    steps = {judge: tune_step(UMax(), few, key=jax.random.key(0), judge=judge).step for judge in JUDGES}
    assert steps["held-out"] < steps["objective"]
    with pytest.raises(ValueError, match="judge is 'loss'; it must be one of 'objective', 'held-out'"):
        tune_step(UMax(), problem, key=jax.random.key(0), judge="loss")
