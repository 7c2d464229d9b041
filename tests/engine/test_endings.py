"""How runs end: few small fits at once after a failed proof, interrupts between them, and the last row of a history."""

from types import SimpleNamespace

import numpy as np
import pytest
from cases import problem, recording, solve

from glmfit import PopulationGLM
from glmfit.engine import loop
from glmfit.engine.cg import Descent
from glmfit.engine.host import HostRows
from glmfit.engine.result import Hints
from glmfit.solvers import LoopOptions
from glmfit.status import Status


@pytest.fixture
def drift(rng):
    """A polynomial of time, which the ridge alone does not prove, and three neurons."""
    t = np.arange(2000.0)
    X = np.column_stack([t, t**2, t**3, rng.normal(size=2000)])
    return X, rng.poisson(np.exp(np.sin(t / 300)[:, None] - [0.0, 1.0, 2.0])).astype(float)


def test_few_small_fits_end_by_newton_after_one_failed_proof(drift, monkeypatch):
    X, Y = drift
    attempts = []
    monkeypatch.setattr(loop, "bounds_of", lambda run, group, *_: attempts.append(0) or (np.full(3, np.inf),) * 2)
    report = PopulationGLM(regularizer_strength=1e-4).fit(X, Y).report_
    assert len(attempts) == 1 and report.converged.all() and report.gap_is_bound.all()
    assert report.solver_name == "ConjugateGradients+Newton"
    np.testing.assert_array_equal(report.history["gap"][-1], report.gap)


def test_ctrl_c_between_exact_finishes_keeps_the_proofs_before_it(drift, monkeypatch):
    X, Y = drift
    finish, calls = loop.Run._finish_exactly, []

    def interrupted(self, neuron, *given, **how):
        calls.append(neuron)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return finish(self, neuron, *given, **how)

    monkeypatch.setattr(loop, "bounds_of", lambda *_: (np.full(3, np.inf),) * 2)
    monkeypatch.setattr(loop.Run, "_finish_exactly", interrupted)
    with pytest.warns(UserWarning):
        report = PopulationGLM(regularizer_strength=1e-4).fit(X, Y).report_
    assert report.status.tolist() == [Status.CONVERGED, Status.INTERRUPTED, Status.INTERRUPTED]
    assert report.gap_is_bound.tolist() == [True, False, False]
    np.testing.assert_array_equal(report.history["gap"][-1], report.gap)
    np.testing.assert_array_equal(report.history["gap_is_bound"][-1], report.gap_is_bound)


def test_a_first_step_that_should_suffice_ends_with_the_evaluation_of_the_proof(monkeypatch):
    """As hints say; the result is that of a run that evaluates its end again."""
    X, Y = recording(4, t=4000)
    whole, near = (problem("softplus", X, Y, strength=s) for s in (1e-2, 1.3e-2))
    start, looks, evaluate = solve(near, LoopOptions(tol=1e-9)).params, [], HostRows.evaluate
    monkeypatch.setattr(HostRows, "evaluate", lambda *given, **how: looks.append(0) or evaluate(*given, **how))
    n, found = Y.shape[1], []
    for fall in (1.0, 1e-6):
        looks.clear()
        found.append(solve(whole, start=start, hints=Hints(np.zeros(n, bool), np.full(n, fall))))
        assert found[-1].epochs.max() == 1 and len(looks) == 1
        assert np.all(found[-1].status == Status.CONVERGED) and np.all(found[-1].state.fall < 0.1)
    steps = [np.diff(one.history["row_evals"]).sum() for one in found]
    assert steps[1] < steps[0]
    np.testing.assert_allclose(found[1].objective, found[0].objective, rtol=0, atol=2 * found[0].target.max())


def test_a_fit_whose_step_is_corrected_after_the_evaluation_is_proved_apart(monkeypatch):
    """The evaluation of the others still holds."""
    X, Y = recording(4, t=4000)
    whole, near = (problem("softplus", X, Y, strength=s) for s in (1e-2, 1.3e-2))
    n, looks, evaluate, rises = Y.shape[1], [], HostRows.evaluate, Descent.rises
    start, told = solve(near, LoopOptions(tol=1e-9)).params, Hints(np.zeros(n, bool), np.full(n, 1e-6))
    plain = solve(whole, start=start, hints=told)

    def first_rises(self, p, lengths):
        monkeypatch.setattr(Descent, "rises", rises)
        return np.arange(len(lengths)) == 0

    monkeypatch.setattr(HostRows, "evaluate", lambda *a, **how: looks.append(a[1].shape[1]) or evaluate(*a, **how))
    monkeypatch.setattr(Descent, "rises", first_rises)
    found = solve(whole, start=start, hints=told)
    assert looks == [n, 1]
    assert found.row_evals > plain.row_evals
    assert np.all(found.status == Status.CONVERGED) and np.all(found.gap_is_bound)
    np.testing.assert_allclose(found.objective, plain.objective, rtol=0, atol=2 * plain.target.max())


@pytest.mark.parametrize(
    "last, seen, part",
    [(2.5, False, False), (2.5, True, True), (40.0, False, True), (np.inf, False, True)],
    ids=["one more step should do", "the others are seen", "too far", "the last step is unknown"],
)
def test_fits_that_are_ready_wait_for_few_others_that_are_almost_there(last, seen, part):
    n = 100
    estimate = np.full(n, 0.5)
    estimate[:4] = min(last, 40.0)
    group = object.__new__(Descent)
    group.trace, group.squared_norm = [np.where(np.isinf(last), np.inf, 20 * estimate), estimate], 2 * estimate
    group.aims, group.seen = np.ones(n), (np.zeros(n), None) if seen else None
    run = SimpleNamespace(problem=SimpleNamespace(in_memory=True))
    assert loop.Run._should_part(run, group, estimate <= 1, np.ones(n)) == part


def test_a_fit_that_diverges_is_not_almost_there():
    group = object.__new__(Descent)
    group.trace, group.squared_norm, group.aims = [np.ones(2), np.ones(2)], np.array([1e200, np.nan]), np.ones(2)
    assert not group.is_almost_there(np.ones(2)).any()


def test_parameters_that_are_better_than_where_the_steps_end_share_its_proof():
    """With a strong ridge a model without features may be nearer to the optimum than a start that is near enough."""
    X, Y = recording(4)
    whole = problem("softplus", X, Y, strength=1e6)
    start, tight = whole.null_params(), solve(whole, LoopOptions(tol=1e-9))
    away = np.random.default_rng(0).normal(size=start.coef.shape)
    start.coef[:] = away * np.sqrt(0.2 * 0.01 / len(X) / 1e6 / np.sum(away**2, axis=0))
    found = solve(whole, start=start)
    np.testing.assert_array_equal(found.params.coef, 0)
    assert found.solver_name == "ConjugateGradients" and np.all(found.status == Status.CONVERGED)
    assert np.all(found.gap_is_bound) and np.all(found.gap >= found.objective - tight.objective)
