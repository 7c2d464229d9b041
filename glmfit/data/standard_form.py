"""Standard form: the responses of an observation model as the engine fits them, and solutions converted back.

Theory: docs/theory/observation_models.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from ..engine.problem import Params
from ..engine.result import LoopOptions, Solution
from ..engine.tiles import over_tiles, rows_at_once, weighted
from ..observations import Bernoulli, Gamma, Gaussian, NegativeBinomial, Observation
from .counts import Training, weights_of


@dataclass(frozen=True)
class StandardForm:
    """Responses, weights and loss of an engine problem that equals a population's up to constants per neuron.

    Counts of a negative binomial of dispersion 1/r become shares y / (y + r) of y + r trials, measured values and gamma
    responses are taken relative to their mean; everything else stays as it is. With F the objective of the population
    and G that of the problem, F = unit G + constant at intercepts that differ by ``shift``, all (neuron,).
    """

    observation: Observation  # of the engine
    Y: Any
    own: Any
    shift: np.ndarray
    unit: np.ndarray
    constant: np.ndarray
    scale: np.ndarray  # of F: the loss of a response, in nats, is F over it
    offset: np.ndarray | None = None  # of the linear predictor, (time, 1 or neuron)

    @classmethod
    def of(cls, data: Training, observation: Observation) -> Self:
        """Bring data to their standard form; a negative binomial at the dispersion of its instance."""
        n = data.Y.shape[1]
        zero, one = np.zeros(n), np.ones(n)
        offset = getattr(data, "offset", None)
        common = {"shift": zero, "unit": one, "constant": zero, "scale": one, "offset": offset}
        if isinstance(observation, NegativeBinomial):
            return cls._of_counts(data, np.broadcast_to(1.0 / np.asarray(observation.dispersion, np.float64), (n,)))
        if isinstance(observation, Gaussian):
            if offset is not None:  # known parts of predictors are subtracted from the responses
                data = replace(data, Y=relative(data.Y, lambda y, rows: y - offset[rows]), offset=None)
            mean = mean_of(data, lambda y: y)
            variance = mean_of(data, lambda y: (y - mean) ** 2)
            common |= {"shift": mean, "constant": variance / 2, "scale": np.where(variance > 0, variance, 1.0)}
            return cls(Gaussian(), relative(data.Y, lambda y, rows: y - mean), data.own, **common | {"offset": None})
        if isinstance(observation, Gamma):
            mean = np.exp(mean_of(data, np.log))
            common |= {"shift": np.log(mean), "constant": np.log(mean)}
            with np.errstate(over="ignore", invalid="ignore"):
                noise = mean_of(data, lambda y: (y / mean) ** 2) / mean_of(data, lambda y: y / mean) ** 2 - 1
            common["scale"] = np.where((noise > 0) & np.isfinite(noise), noise, 1.0)
            return cls(Gamma(), relative(data.Y, lambda y, rows: y / mean), data.own, **common)
        return cls(observation, data.Y, data.own, **common)

    @classmethod
    def _of_counts(cls, data: Training, r: np.ndarray) -> Self:
        mean, own = mean_of(data, lambda y: y), data.own
        shares = relative(data.Y, lambda y, rows: y / (y + r))
        trials = relative(data.Y, lambda y, rows: y + r if own is None else own[rows] * (y + r))
        common = {"shift": np.log(r), "unit": r + mean, "constant": -mean * np.log(r), "scale": np.ones(len(r))}
        return cls(Bernoulli(), shares, trials, **common, offset=getattr(data, "offset", None))

    @property
    def spread(self) -> np.ndarray:
        """Variance of the responses if predictors are in their units, 1 if they are logarithms, (neuron,)."""
        return self.scale if isinstance(self.observation, Gaussian) else np.ones_like(self.scale)

    @property
    def is_plain(self) -> bool:
        """Whether nothing changes."""
        return bool(np.all(self.shift == 0) and np.all(self.unit == 1) and np.all(self.scale == 1))

    def strength(self, strength: Any) -> Any:
        """Turn strengths of F, shared, per neuron or per coefficient, or these and a ratio, into those of G."""
        if np.all(self.unit == 1):
            return strength
        if isinstance(strength, tuple):
            return (self.strength(strength[0]), *strength[1:])
        return np.asarray(1.0 if strength is None else strength, np.float64) / self.unit

    def options(self, options: LoopOptions) -> LoopOptions:
        """Convert the negligible gap from nats to units of G."""
        if self.is_plain:
            return options
        return replace(options, negligible=options.negligible * self.scale / self.unit)

    def params(self, params: Params) -> Params:
        """Turn parameters of the problem into those of the population."""
        return Params(params.coef, params.intercept + self.shift)

    def start(self, params: Params) -> Params:
        """Turn parameters of the population into those of the problem."""
        return Params(params.coef, params.intercept - self.shift)

    def solution(self, solution: Solution) -> Solution:
        """Turn a solution of the problem into that of the population."""
        if self.is_plain:
            return solution

        def of_objective(values):
            return np.asarray(values) * self.unit + self.constant

        history = dict(solution.history)
        history |= {"objective": of_objective(history["objective"]), "gap": history["gap"] * self.unit}
        return replace(
            solution, params=self.params(solution.params), history=history,
            gap=solution.gap * self.unit, target=solution.target * self.unit,
            objective=of_objective(solution.objective), null_objective=of_objective(solution.null_objective),
        )  # fmt: skip


def mean_of(data: Training, function) -> np.ndarray:
    """Compute the weighted mean of a function of the responses, (neuron,); 1 for a neuron without data."""

    def tile(rows):
        values = function(np.asarray(data.Y[rows], np.float64))
        w = np.broadcast_to(weights_of(data, rows), values.shape)
        return np.stack([weighted(values, w).sum(axis=0), w.sum(axis=0)])

    with np.errstate(divide="ignore", invalid="ignore"):
        total, weight = sum(over_tiles(tile, len(data.Y), rows_at_once(data.Y)))
        return np.where(weight > 0, total / weight, 1.0)


def relative(Y: Any, function: Callable) -> Any:
    """Apply a function of responses and the slice of their rows: an array, or an object that does so on demand."""
    return function(np.asarray(Y, np.float64), slice(None)) if isinstance(Y, np.ndarray) else _OnDemand(Y, function)


class _OnDemand:
    """Function of responses that are read on demand."""

    def __init__(self, given: Any, function: Callable):
        self._given, self._function = given, function
        self.shape, self.dtype = tuple(given.shape), np.dtype(np.float64)
        self.chunk_rows = getattr(given, "chunk_rows", 1)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows) -> np.ndarray:
        return self._function(np.asarray(self._given[rows], np.float64), rows)
