"""Held-out losses of a population's nested models, in nats, by the route that suits penalty and responses."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ...data.counts import Training, per_unit
from ...data.standard_form import StandardForm
from ...engine.nested.blocks import Blocks
from ...engine.nested.folded import held_out_by_solvers
from ...engine.nested.moments import Moments, moments_serve
from ...engine.nested.search import HeldOut, Nested, Responses
from ...estimators.parameters import precision
from ...estimators.scores import as_given
from ...observations import NegativeBinomial, Observation
from ...penalties.by_name import PenaltyFamily
from ...threads import Fitters, Workers, one_thread_each

_WORTH_THREADS = 1_000_000  # entries of the features
_WIDE = 300  # features beyond which steps of all fits are cheaper than Hessians


@dataclass
class Setting:
    """Everything but responses: features, folds, models, strengths."""

    nested: Nested
    shared: dict[int, dict] | None = None  # of every neuron, results that all draws of its responses share
    kept: dict = field(default_factory=dict)

    @cached_property
    def moments(self) -> Moments:
        """Moments of the features, which serve any responses."""
        return Moments(self.nested)

    def at(self, strength: float | None, loose: float | None = None) -> Setting:
        """Return this setting with one strength, or with all, and a loose target; the same object every time."""
        key = strength, loose
        if key not in self.kept:
            tried = self.nested.strengths if strength is None else np.array([strength])
            self.kept[key] = Setting(replace(self.nested, strengths=tried, loose=loose), defaultdict(dict))
        return self.kept[key]


class Scorer:
    """Scores of nested models, from checked rows, an observation model at its dispersion, folds and penalties."""

    def __init__(
        self, data: Training, observation: Observation, number: np.ndarray, n_held: int, masks: np.ndarray,
        strengths: np.ndarray, penalty: PenaltyFamily, tol: float, cv_tol: float,
    ):  # fmt: skip
        self.number, self.n_held = number, n_held  # fold that holds out each row, (time,), n_held for none
        self.masks, self.strengths = masks, strengths  # bool (model, feature); to choose from, or the only one
        self.penalty, self.tol, self.cv_tol = penalty, tol, cv_tol
        self.by_newton = bool(penalty.smooth and strengths[0] > 0 and data.X.shape[1] <= _WIDE)
        self.X, self.weights, self._exposure = data.X, data.weights, data.exposure
        if data.exposure is not None and data.exposure.ndim == 1:
            # The exposure moves with the counts, wherever a draw puts them.
            self.weights, own = data.weights / data.exposure, data.exposure[:, None]
            own = own if data.own is None else data.own * own
            data = replace(data, weights=self.weights, own=own, exposure=None)
        self.form = StandardForm.of(data, observation)
        self.observation = self.form.observation
        own = seen = None if self.form.own is None else np.asarray(self.form.own, np.float64)
        if isinstance(observation, NegativeBinomial):  # whose weights in the loss are trials
            seen = np.ones((len(data.X), 1)) if data.own is None else np.asarray(data.own, np.float64)
        self.responses = Responses(np.asarray(self.form.Y), own, seen, self.form.offset)

    @property
    def n_neurons(self) -> int:
        """Number of neurons."""
        return self.responses.Y.shape[1]

    def empty(self) -> HeldOut:
        """Return results of all neurons, without any yet."""
        return HeldOut.empty(len(self.masks), self.n_held, self.n_neurons)

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
        return Setting(Nested(blocks, self.masks, self.strengths, self.tol, self.cv_tol))

    def taken(self, source: np.ndarray, rows: np.ndarray | None = None, n: int | None = None) -> Responses:
        """Return the responses of other rows with their weights, of all neurons or one; offsets stay in place."""
        *moved, offset = self.responses if n is None else self.responses.column(n)
        parts = [None if a is None else a[source] for a in moved]
        parts.append(offset if offset is None or rows is None else offset[rows])
        return Responses(*(a if a is None or n is None else a[:, None] for a in parts))

    def held_out(
        self,
        setting: Setting,
        responses: Responses,
        neurons: np.ndarray,
        told: Callable[[], None],
        among: Callable[[int], Any] | None = None,
    ) -> HeldOut:
        """Compute held-out losses of some neurons, in nats, of all models or those of ``among(neuron)``."""
        out = HeldOut.empty(len(self.masks), self.n_held, len(neurons))
        if not len(neurons):
            return out
        if not self.by_newton:
            self._solve(setting, responses, neurons, out, np.arange(len(neurons)))
        elif moments_serve(setting.nested, self.observation, responses):
            out = setting.moments.held_out(responses._replace(Y=responses.Y[:, neurons]))
        else:

            def one(n: int) -> HeldOut:
                some = None if among is None else among(n)
                shared = None if setting.shared is None else setting.shared[n]
                return setting.nested.of_neuron(self.observation, responses, n, some, shared)

            with self.workers() as workers:
                for k, found in enumerate(workers.each(one, list(neurons))):
                    out.put([k], found)
                    told()
            if setting.nested.loose is None:
                self._solve(setting, responses, neurons, out, np.flatnonzero(out.n_proved < out.n_fits))
        scale = self.form.scale[neurons]
        out.loss, out.off, out.gap = (a / scale for a in (out.loss, out.off, out.gap))
        return out

    def _solve(self, setting: Setting, responses: Responses, neurons, out: HeldOut, places: np.ndarray) -> None:
        """Let the solvers of populations compute the unproved results of the neurons in some places."""
        if not len(places):
            return
        which, dtype = neurons[places], precision(setting.nested.blocks.X.dtype)
        some = Responses(*(None if a is None else a if a.shape[1] == 1 else a[:, which] for a in responses))
        found = held_out_by_solvers(setting.nested, self.observation, some, self.penalty, dtype)
        proved = out.proved[..., places]
        for name, value in vars(found).items():
            before = getattr(out, name)
            before[..., places] = value if value.ndim < 3 else np.where(proved, before[..., places], value)

    def saturated(self) -> np.ndarray:
        """Loss in nats of the model that predicts every response, of every fold, (fold, neuron)."""
        Y, own, *_ = self.responses
        loss = np.asarray(self.observation.saturated_loss(np.asarray(Y, np.float64)), np.float64)
        loss = loss if own is None else np.where(own > 0, loss * own, 0.0)
        loss = loss if self.weights is None else loss * self.weights[:, None]
        return self._by_fold(loss) / self.form.scale

    def spikes(self, data: Training) -> np.ndarray:
        """Sum of the responses as they were given, of every fold, (fold, neuron)."""
        data = as_given(data)
        Y = np.asarray(data.Y, np.float64)
        return self._by_fold(Y if data.own is None else Y * (data.own > 0))

    def _by_fold(self, values: np.ndarray) -> np.ndarray:
        """Sum (time, neuron) over the rows of every fold, (fold, neuron)."""
        return np.stack([values[self.number == k].sum(axis=0) for k in range(self.n_held)])
