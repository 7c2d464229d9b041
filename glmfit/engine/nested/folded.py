"""Held-out losses by the solvers of populations: for penalties with kinks, without a ridge, and for wide designs."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...observations import Observation
from ...penalties import Penalty, Ridge
from ..population import FoldedProblem
from ..result import LoopOptions
from ..solvers import ConjugateGradients, LeastSquares, Newton, ProximalNewton
from .neuron import losses_of
from .response import Response
from .search import HeldOut, Nested, Responses, best_of, intercepts

_NEGLIGIBLE, _TOL = 1e-2, 1e-6  # nats of a fit that chooses a strength; tolerance below which fewer are allowed


def held_out_by_solvers(
    nested: Nested, observation: Observation, responses: Responses, penalty: Callable[[Any], Penalty], dtype: Any
) -> HeldOut:
    """Held-out losses of all neurons: for every model, all sets and neurons at once, from the largest strength down.

    ``penalty`` makes a penalty of one strength for each fit. How far losses are from those of the optima is unknown.
    """
    N, K = responses.Y.shape[1], nested.n_held
    out = HeldOut.empty(len(nested.masks), K, N)
    run = _Runs(nested, observation, responses, penalty, dtype)
    for model in range(len(nested.masks)):
        coef, intercept, gap, proved = run.fit(model)
        out.n_fits += np.isfinite(intercept).sum(axis=(0, 1))
        out.n_proved += proved.sum(axis=(0, 1))
        for n in range(N):
            run.score(model, n, coef[..., n], intercept[..., n], out)
        at = nested.singles()[:, None], np.arange(N)
        chosen = out.chosen[model]
        out.gap[model], out.proved[model] = gap[chosen, *at], proved[chosen, *at]
    return out


class _Runs:
    """Problems of all sets and neurons of one model and strength."""

    def __init__(self, nested: Nested, observation, responses: Responses, penalty, dtype):
        self.nested, self.observation, self.responses, self.penalty, self.dtype = (
            nested, observation, responses, penalty, dtype,
        )  # fmt: skip
        blocks = nested.blocks
        self.weights = None if blocks.weights is None else np.empty(blocks.n_rows)
        if self.weights is not None:
            self.weights[blocks.order] = blocks.weights
        self.train = nested.sets[:, blocks.number].T
        n_neurons, ones = responses.Y.shape[1], np.ones((blocks.n_rows, 1))
        base = ones if self.weights is None else self.weights[:, None]
        own, seen = (ones if a is None else a for a in (responses.own, responses.seen))
        self.mass, self.size = (
            np.broadcast_to(self.train.T @ (base * a), (len(nested.sets), n_neurons)) for a in (own, seen)
        )
        y = np.where(np.asarray(own) > 0, responses.Y, 0.0)
        with np.errstate(divide="ignore", invalid="ignore"):
            mean, room = (self.train.T @ (base * own * values) / self.mass for values in (y, 1.0 - y))
        self.mean = observation.exact_mean(mean, lambda: room)
        self.usable = (self.size > 0) & np.asarray(observation.has_optimum(self.mean), bool)
        # One column serves all neurons.
        self.own = None if responses.own is None else np.broadcast_to(own, responses.Y.shape)
        self._designs: dict = {}

    def fit(self, model: int):
        """Fit one model at all strengths: coefficients of all features, intercepts, gaps in nats, and which are proved.

        Axes are (strength, set, feature, neuron), without features for the last three.
        """
        nested, members = self.nested, np.flatnonzero(self.nested.masks[model])
        S, Q, N, d = len(nested.strengths), len(nested.sets), self.responses.Y.shape[1], self.nested.masks.shape[1]
        coef, intercept = np.zeros((S, Q, d, N)), np.full((S, Q, N), np.nan)
        gap, proved = np.full((S, Q, N), np.inf), np.zeros((S, Q, N), bool)
        fold, neuron = (a.ravel() for a in np.indices((Q, N)))
        some = self.usable[fold, neuron] & (fold > 0)
        fold, neuron = fold[some], neuron[some]
        if not len(fold):
            return coef, intercept, gap, proved
        if not len(members):
            for n in range(N):
                intercept[:, :, n] = intercepts(self.response(n), nested.blocks.slices, nested.sets, self.mean[:, n])
            gap[:], proved[:] = 0.0, self.usable
            return coef, np.where(self.usable, intercept, np.nan), gap, proved
        X, start = np.ascontiguousarray(nested.blocks.X[:, members]), None
        single = fold <= nested.n_held
        unit = (self.mass / np.where(self.size > 0, self.size, 1.0))[fold, neuron]
        tol = np.where(single, nested.tol, nested.cv_tol)
        for s in reversed(range(S)):
            # A penalty of strength 0 has no kinks.
            kind = self.penalty if nested.strengths[s] > 0 else Ridge
            penalty = kind(nested.strengths[s] / unit)
            # A gap of a hundredth of a nat is negligible; but the error of losses that are returned goes with its root.
            nats = np.where(single & penalty.smooth, nested.close, _NEGLIGIBLE)
            options = LoopOptions(tol=tol, negligible=nats / np.minimum(1.0, tol / _TOL) / unit, max_epochs=500)
            problem = FoldedProblem(
                X, self.responses.Y, self.observation, penalty, neuron, fold, self.train, weights=self.weights,
                dtype=self.dtype, offset=self.responses.offset, own=self.own,
            )  # fmt: skip
            problem.design = self._designs.setdefault((model, penalty.smooth), {})
            solution = _solver(problem).run(problem, start, options=options)
            start = solution.params
            place = s, fold[:, None], members, neuron[:, None]
            coef[place], intercept[s, fold, neuron] = start.coef.T, start.intercept
            mass = self.mass[fold, neuron]
            gap[s, fold, neuron] = np.where(solution.gap_is_bound, solution.gap * mass, np.inf)
            proved[s, fold, neuron] = solution.gap_is_bound & (solution.gap <= solution.target)
        return coef, intercept, gap, proved

    def response(self, n: int) -> Response:
        """Responses of one neuron, in the order of the blocks."""
        y, weights, _, offset = self.responses.in_order(self.nested.blocks, n)
        return Response.of(self.observation, y, weights, offset)

    def score(self, model: int, n: int, coef, intercept, out: HeldOut) -> None:
        """Compute losses of one neuron: of the pairs, which choose the strengths, and of the blocks at these."""
        nested, blocks = self.nested, self.nested.blocks
        K, S, response = nested.n_held, len(nested.strengths), self.response(n)
        there = np.array([response.weights is None or response.weights[block].any() for block in blocks.slices])

        def losses(s, sets):
            at = blocks.standard(coef[s, sets].T, intercept[s, sets])
            return losses_of(blocks, response, at, ~nested.sets[sets])

        chosen, pairs = np.full(K, S - 1), nested.pairs()
        pairs = pairs[self.usable[pairs, n]]
        if len(pairs):
            sets = np.repeat(pairs, S)
            loss = losses(np.tile(np.arange(S), len(pairs)), sets)
            chosen = best_of(nested.totals(loss, sets, there, 1))[0]
        out.chosen[model, :, n] = chosen
        held = np.flatnonzero(self.usable[nested.singles(), n] & there[:K])
        if len(held):
            loss = losses(chosen[held], nested.singles()[held])
            out.loss[model, held, n] = loss[np.arange(len(held)), held]


def _solver(problem):
    if problem.observation.is_quadratic and problem.penalty.smooth and problem.own is None:
        return LeastSquares()
    if not problem.penalty.smooth:
        return ProximalNewton()
    return ConjugateGradients() if problem.penalty.penalises_all or problem.basis.is_resolved else Newton()
