"""Held-out losses of a population's nested models, in nats, by the route that suits penalty and responses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from ...data.counts import Training, per_unit
from ...data.standard_form import StandardForm
from ...engine.nested.blocks import Blocks
from ...engine.nested.folded import held_out_by_solvers
from ...engine.nested.moments import Moments, moments_serve
from ...engine.nested.search import HeldOut, Nested, Responses
from ...estimators.parameters import precision
from ...observations import NegativeBinomial, Observation
from ...penalties.by_name import PenaltyFamily
from ...threads import Fitters, Workers, one_thread_each

_WORTH_THREADS = 1_000_000  # entries of the features
_WIDE = 300  # features beyond which steps of all fits are cheaper than Hessians


@dataclass
class Setting:
    """Everything but responses: features, folds, models, strengths."""

    nested: Nested
    penalty: PenaltyFamily
    by_newton: bool
    dtype: Any
    moments: Moments | None = None
    shared: dict[int, dict] | None = None  # of every neuron, results that all draws of its responses share
    kept: dict = field(default_factory=dict)

    def at(self, strength: float | None, loose: float | None = None) -> Setting:
        """Return this setting with one strength, or with all, and a loose target; the same object every time."""
        key = strength, loose
        if key not in self.kept:
            tried = self.nested.strengths if strength is None else np.array([strength])
            nested = replace(self.nested, strengths=tried, loose=loose)
            self.kept[key] = replace(self, nested=nested, moments=None, shared=defaultdict(dict), kept={})
        return self.kept[key]


class Scorer:
    """Scores of nested models.

    Parameters
    ----------
    data : Training
        Checked rows.
    observation : Observation
        Observation model, at the dispersion of every neuron if it has one.
    number, n_held : numpy.ndarray, int
        Fold that holds out each row, (time,), ``n_held`` for none; number of folds.
    masks : numpy.ndarray
        Features of each model, bool (model, feature).
    strengths : numpy.ndarray
        Strengths to choose from, or the only one.
    penalty : PenaltyFamily
        Penalties by their strengths.
    tol, cv_tol : float
        Relative gaps.
    """

    def __init__(
        self, data: Training, observation: Observation, number: np.ndarray, n_held: int, masks: np.ndarray,
        strengths: np.ndarray, penalty: PenaltyFamily, tol: float, cv_tol: float,
    ):  # fmt: skip
        self.number, self.n_held, self.masks, self.strengths = number, n_held, masks, strengths
        self.penalty, self.tol, self.cv_tol = penalty, tol, cv_tol
        self.X, exposure = data.X, data.exposure
        self._exposure = exposure
        self.weights = data.weights
        if exposure is not None and exposure.ndim == 1:
            # The exposure moves with the counts, wherever a draw puts them.
            self.weights = data.weights / exposure
            data = replace(data, weights=self.weights, own=_times(data.own, exposure[:, None]), exposure=None)
        self.form = StandardForm.of(data, observation)
        self.observation = self.form.observation
        is_trials = isinstance(observation, NegativeBinomial)
        self.responses = Responses(
            np.asarray(self.form.Y), _array(self.form.own), _array(data.own if is_trials else self.form.own),
            self.form.offset,
        )  # fmt: skip
        if is_trials and data.own is None:
            self.responses = self.responses._replace(seen=np.ones((len(data.X), 1)))

    @property
    def n_neurons(self) -> int:
        """Number of neurons."""
        return self.responses.Y.shape[1]

    def standard(self, Y: np.ndarray) -> Responses:
        """Bring other counts of all rows into the form of the engine; masks and weights stay in place."""
        if not self.form.is_plain:
            raise ValueError(
                "counts that replace those of the recording are for Poisson, Bernoulli and Binomial responses, which "
                "need no unit of their own; shift or permute other responses."
            )
        bad, needs = self.observation.wrong(Y)
        if bad.any():
            raise ValueError(f"counts of the null have {int(bad.sum())} impossible values; they must be {needs}.")
        return self.responses._replace(
            Y=np.asarray(Y if self._exposure is None else per_unit(Y, self._exposure), float)
        )

    @contextmanager
    def workers(self) -> Iterator[Workers]:
        """Threads that share neurons; one for a short recording, where others would wait for the interpreter."""
        workers = Fitters()
        with workers if self.X.size >= _WORTH_THREADS else one_thread_each():
            yield workers

    def setting(self, rows: np.ndarray | None = None, X: np.ndarray | None = None) -> Setting:
        """Return features, folds and models, of some rows or other features."""
        X, number, weights = self.X if X is None else X, self.number, self.weights
        if rows is not None:
            X, number, weights = X[rows], number[rows], None if weights is None else weights[rows]
        blocks = Blocks(X, number, self.n_held, weights)
        nested = Nested(blocks, self.masks, self.strengths, self.tol, self.cv_tol)
        by_newton = bool(self.penalty.smooth and self.strengths[0] > 0 and X.shape[1] <= _WIDE)
        return Setting(nested, self.penalty, by_newton, precision(X.dtype))

    def taken(self, source: np.ndarray, rows: np.ndarray | None = None) -> Responses:
        """Return the responses of other rows with their weights; offsets of predictors stay in place."""
        offset = self.responses.offset
        offset = offset if offset is None or rows is None else offset[rows]
        Y, own, seen, _ = (None if a is None else a[source] for a in self.responses)
        return Responses(Y, own, seen, offset)

    def one(self, n: int, source: np.ndarray, rows: np.ndarray | None = None) -> Responses:
        """Return the responses of one neuron, as `taken`."""
        offset = self.responses.column(n)[3]
        offset = offset if offset is None or rows is None else offset[rows]
        Y, own, seen, _ = (None if a is None else a[source][:, None] for a in self.responses.column(n))
        return Responses(Y, own, seen, None if offset is None else offset[:, None])

    def held_out(
        self,
        setting: Setting,
        responses: Responses,
        neurons: np.ndarray,
        among: Callable[[int], Any] | None = None,
        told: Callable[[], None] = lambda: None,
    ) -> HeldOut:
        """Compute held-out losses of neurons, in nats, of all models or those of ``among(neuron)``, in their places."""
        out = HeldOut.empty(len(self.masks), self.n_held, self.n_neurons)
        if not len(neurons):
            return out
        if setting.by_newton and moments_serve(setting.nested, self.observation, responses):
            setting.moments = setting.moments or Moments(setting.nested)
            out.put(neurons, setting.moments.held_out(responses._replace(Y=responses.Y[:, neurons])))
        elif setting.by_newton:
            one = partial(self._one, setting, responses, among)
            with self.workers() as workers:
                for n, found in zip(neurons, workers.each(one, list(neurons)), strict=True):
                    out.put([n], found)
                    told()
            if setting.nested.loose is None:
                self._solve(setting, responses, neurons[out.n_proved[neurons] < out.n_fits[neurons]], out)
        else:
            self._solve(setting, responses, neurons, out)
        scale = self.form.scale
        out.loss, out.off, out.gap = (a / scale for a in (out.loss, out.off, out.gap))
        return out

    def _solve(self, setting: Setting, responses: Responses, neurons: np.ndarray, out: HeldOut) -> None:
        """Let the solvers of populations compute the unproved results of some neurons."""
        if not len(neurons):
            return
        some = Responses(*(None if a is None else a if a.shape[1] == 1 else a[:, neurons] for a in responses))
        found = held_out_by_solvers(setting.nested, self.observation, some, self.penalty, setting.dtype)
        for name, value in vars(found).items():
            before = getattr(out, name)[..., neurons]
            known = out.proved[..., neurons] if before.ndim == 3 else np.zeros(before.shape, bool)
            getattr(out, name)[..., neurons] = np.where(known, before, value)

    def _one(self, setting: Setting, responses: Responses, among, n: int) -> HeldOut:
        some = None if among is None else among(n)
        shared = None if setting.shared is None else setting.shared[n]
        return setting.nested.of_neuron(self.observation, responses, n, some, shared)

    def saturated(self, responses: Responses, number: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
        """Loss in nats of the model that predicts every response, of every fold, (fold, neuron)."""
        loss = np.asarray(self.observation.saturated_loss(np.asarray(responses.Y, np.float64)), np.float64)
        return self._sums(loss, responses, number, weights) / self.form.scale

    def spikes(self, data: Training, number: np.ndarray) -> np.ndarray:
        """Sum of the responses as they were given, by their row weights, of every fold, (fold, neuron)."""
        Y = np.asarray(data.Y, np.float64)
        if data.exposure is not None:
            exposure = data.exposure if data.exposure.ndim == 2 else data.exposure[:, None]
            Y = Y * exposure
        seen = 1.0 if data.own is None else data.own > 0
        return np.stack([np.sum((Y * seen)[number == k], axis=0) for k in range(self.n_held)])

    def _sums(self, loss, responses: Responses, number, weights) -> np.ndarray:
        loss = loss if responses.own is None else np.where(responses.own > 0, loss * responses.own, 0.0)
        loss = loss if weights is None else loss * weights[:, None]
        return np.stack([loss[number == k].sum(axis=0) for k in range(self.n_held)])


def _array(values: Any) -> np.ndarray | None:
    return None if values is None else np.asarray(values, np.float64)


def _times(a: np.ndarray | None, b: np.ndarray) -> np.ndarray:
    return b if a is None else a * b
