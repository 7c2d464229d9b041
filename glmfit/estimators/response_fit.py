"""Fits of response models: settings, choices on held-out pairs, the fit of all pairs and its report."""

from __future__ import annotations

import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._checks import check_choice, check_real
from .._warn import warn_user
from ..data.entities import Side
from ..data.responses import Responses
from ..observations import RESPONSE_LOSSES, Gaussian, Observation
from ..pairs import (
    AllPairsProblem,
    GaussNewton,
    LeftBatches,
    SampledPairs,
    StationaryOptions,
    Tower,
    TowerAdam,
    TowerLBFGS,
    TwoTowers,
)
from ..pairs.embedding import Predictor, canonical_rotation, deviance_explained, hold_out
from ..pairs.responses import Units
from ..pairs.towers import AffineMap
from ..solvers._seed import key_for
from ._parameters import precision, read_count, read_flag, read_seed, read_solver, read_verbose
from .model_reports import ResponseReport
from .report import report_of

SOLVERS = {
    "LBFGS": TowerLBFGS,
    "GaussNewton": GaussNewton,
    "Adam": TowerAdam,
    "LeftBatches": LeftBatches,
    "SampledPairs": SampledPairs,
}
PRIORS = ("mean", "zero")
_AUTO_WEIGHTS = (0.0, 0.03, 0.1, 0.3)  # of the mean curvature of the observed losses


@dataclass(frozen=True)
class Settings:
    """Constructor parameters, read and checked."""

    loss: Observation
    n_components: int
    hidden: tuple[tuple[int, ...], tuple[int, ...]]
    strengths: tuple[float, ...]
    weights: tuple[float, ...] | None  # None: in proportion to the curvature
    biases: bool
    bias_strength: float
    prior: Any
    solver: Any
    options: StationaryOptions
    fraction: float
    seed: int

    @classmethod
    def of(cls, model) -> Settings:
        """Read the parameters of a `ResponseModel`."""
        check_choice("prior", model.prior, PRIORS, "Other priors go to fit as prior_factors.")
        check_real("validation_fraction", model.validation_fraction, 1.0)
        check_real("tol", model.tol, 1.0, hint="It is a share of the gradient at the start.")
        epochs = None if model.max_epochs is None else read_count("max_epochs", model.max_epochs)
        hidden = tuple(_widths(f"{s}_hidden", getattr(model, f"{s}_hidden")) for s in ("stimulus", "neuron"))
        own = model._get_param_names()
        solver = read_solver(model.solver_name, model.solver_kwargs, SOLVERS, parameters=own)
        weights = model.imputation_weight
        if isinstance(weights, str) and weights == "auto":
            weights = None
        else:
            weights = _grid("imputation_weight", weights, ' or "auto"')
            if np.ndim(model.imputation_weight):
                weights = tuple(sorted({0.0, *weights}))
        return cls(
            loss=_loss(model.loss),
            n_components=read_count("n_components", model.n_components),
            hidden=hidden,
            strengths=_grid("regularizer_strength", model.regularizer_strength),
            weights=weights,
            biases=read_flag("bias", model.bias),
            bias_strength=_grid("bias_strength", model.bias_strength, single=True)[0],
            prior=model.prior,
            solver=(TowerAdam() if any(hidden) else TowerLBFGS()) if solver is None else solver,
            options=StationaryOptions(float(model.tol), epochs, verbose=read_verbose(model.verbose)),
            fraction=float(model.validation_fraction),
            seed=read_seed(model.random_state),
        )


def _loss(given) -> Observation:
    """Find a loss by its name; an observation model is one itself."""
    if isinstance(given, Observation):
        return given
    check_choice("loss", given, RESPONSE_LOSSES, "An observation model (glmfit.observations.Observation) will do, too.")
    return RESPONSE_LOSSES[given]


def _widths(name: str, given) -> tuple[int, ...]:
    """Read widths of hidden layers."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{name} is {given!r}; it must be a tuple of widths, such as (32,), or () for a linear tower.")
    return tuple(read_count(f"{name}[{i}]", width) for i, width in enumerate(given))


def _grid(name: str, given, more: str = "", single: bool = False) -> tuple[float, ...]:
    """Read one number of at least 0, or several."""
    several = isinstance(given, Sequence | np.ndarray) and not isinstance(given, str) and np.ndim(given) == 1
    values = list(given) if several and not single else [given]
    for value in values:
        number = isinstance(value, numbers.Real | np.ndarray) and np.ndim(value) == 0 and not isinstance(value, bool)
        if not number or not 0 <= float(value) < np.inf:
            kinds = "a finite number >= 0" + (
                "" if single else (", a sequence of such numbers" + more if more else " or a sequence of such numbers")
            )
            text = " Give numbers, such as 0.1, and not text." if isinstance(value, str) else ""
            raise ValueError(f"{name} is {given!r}; it must be {kinds}.{text}")
    if not values:
        raise ValueError(f"{name} is empty; give one number of at least 0, or several.")
    return tuple(float(value) for value in values)


def warn_rank(settings: Settings, *sides: Side) -> None:
    """Warn of components that a linear tower cannot fill."""
    ranks = [
        side.n if side.n_features is None else min(side.n, side.n_features + 1)
        for side, hidden in zip(sides, settings.hidden, strict=True)
        if not hidden
    ]
    if ranks and settings.n_components > min(ranks):
        warn_user(
            f"n_components is {settings.n_components}, but linear towers of {sides[0].n} stimuli and {sides[1].n} "
            f"neurons with these features have rank {min(ranks)} at most: the other columns only cost time."
        )


class Data(NamedTuple):
    """Checked data of a fit."""

    responses: Responses
    features: tuple  # of stimuli and of neurons, None where every entity is its own
    weights: tuple  # factors of imputation of both sides, or None
    prior_factors: tuple | None  # instead of the prior of the settings

    @property
    def dtype(self) -> type:
        """Precision of the passes: that of the features, or of the responses where there are none."""
        given = [values.dtype for values in self.features if values is not None]
        return precision(np.result_type(*given) if given else self.responses.dtype)


class Fitted(NamedTuple):
    """Outcome of a fit, on the host."""

    towers: tuple[Tower, Tower]  # of stimuli and of neurons, rotated as `canonical_rotation` says
    predictor: Predictor  # of the entities of the fit
    mean_bias: tuple[float, float]  # of the stimuli, and the neurons, that have responses: what others are given
    n_pairs: tuple[np.ndarray, np.ndarray]  # with a response, of every stimulus and of every neuron
    report: ResponseReport


def fit_responses(settings: Settings, data: Data) -> Fitted:
    """Fit towers, with weight and strength chosen on held-out pairs where several are offered."""
    weights = _weights(settings, data)
    if not any(weights) and (data.prior_factors is not None or any(w is not None for w in data.weights)):
        warn_user(
            "stimulus_weight, neuron_weight and prior_factors are about pairs that were not recorded, which have no "
            "say with imputation_weight=0: give a weight above 0, or leave them out."
        )
    grid = [(weight, strength) for weight in weights for strength in settings.strengths]
    tuning: dict[str, np.ndarray] = {}
    seconds = np.zeros(2)
    weight, strength = grid[0]
    run = None
    if len(grid) > 1:
        held, seen = _split(settings, data)
        scores = np.full(len(grid), np.nan)
        for i, (weight, strength) in enumerate(grid):
            run = _run(settings, data, seen, weight, strength)
            seconds += (run.solution.seconds_run, run.solution.seconds_compile)
            if run.solution.interrupted:
                break
            scores[i] = deviance_explained(settings.loss, held, _embed(run, data)[1])
        tuning = dict(zip(("imputation_weight", "regularizer_strength"), map(np.array, zip(*grid, strict=True))))
        tuning["score"] = scores
        if not run.solution.interrupted:
            weight, strength = grid[int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))]
            run = None
    if run is None:
        run = _run(settings, data, data.responses.given, weight, strength)
        seconds += (run.solution.seconds_run, run.solution.seconds_compile)
    return _finish(run, data, weight, strength, tuning, seconds)


def _weights(settings: Settings, data: Data) -> tuple[float, ...]:
    """Imputation weights to try."""
    if settings.weights is not None:
        return settings.weights
    records = data.responses.records
    n = data.responses.n_neurons
    trials = np.bincount(records.right, minlength=n)
    mean = np.bincount(records.right, records.y, n) / np.maximum(trials, 1)
    base = settings.loss.intercept(np.where(trials > 0, mean, records.y.mean()), np.maximum(trials, 1))
    scale = float(np.mean(settings.loss.curvature(records.y, base[records.right])))
    return tuple(scale * share for share in _AUTO_WEIGHTS)


def _split(settings: Settings, data: Data):
    """Draw pairs to hold out: their records, and the responses without them."""
    responses = data.responses
    records = responses.records
    pairs = hold_out(records, responses.key, settings.fraction, np.random.default_rng([settings.seed, 1]))
    if not len(pairs):
        raise ValueError(
            f"nothing can be held out to choose among several strengths: of {len(responses.pairs())} pairs, "
            f"validation_fraction {settings.fraction:g} is none, or every one is the only pair of its stimulus or "
            "neuron. Give one imputation_weight and one regularizer_strength."
        )
    return responses.only(pairs), responses.without(pairs)


class _Run(NamedTuple):
    """A problem, what a solver made of it, and the units of both."""

    problem: AllPairsProblem
    solution: Any
    units: Units


def _run(settings: Settings, data: Data, responses, weight: float, strength: float) -> _Run:
    start_key, solver_key = jax.random.split(key_for(settings.solver, settings.seed))
    m, n = data.responses.n_stimuli, data.responses.n_neurons
    prior = settings.prior if data.prior_factors is None else data.prior_factors
    units = Units(np.zeros(n))
    if isinstance(settings.loss, Gaussian):
        units = Units.of(data.responses.records, n, settings.biases, linear=not any(settings.hidden))
        responses, prior = units.responses(responses), units.prior(prior, m)
    left, right = (
        size if values is None else values for size, values in zip((m, n), data.features, strict=True)
    )  # fmt: skip
    problem = AllPairsProblem(
        left,
        right,
        responses,
        loss=settings.loss,
        imputation_weight=weight,
        left_weight=data.weights[0],
        right_weight=data.weights[1],
        prior=prior,
        strength=strength / units.size,
        biases=settings.biases,
        bias_strength=settings.bias_strength,
        dtype=data.dtype,
    )
    theta = _start(
        problem, problem.draw_params(start_key, settings.n_components, *settings.hidden, scale=units.start), data
    )
    return _Run(problem, settings.solver.run(problem, theta, key=solver_key, options=settings.options), units)


def _start(problem: AllPairsProblem, theta: TwoTowers, data: Data) -> TwoTowers:
    """Let entities without a response or features begin at 0, where the ridge keeps them."""

    def quiet(tower, n_pairs, values):
        if values is not None:
            return tower
        (weight, constant), *others = tower.maps
        seen = jnp.asarray(n_pairs > 0, weight.dtype)[:, None]
        return Tower((AffineMap(weight * seen, constant), *others))

    left = quiet(theta.left, problem.pairs_left, data.features[0])
    right = quiet(theta.right, problem.pairs_right, data.features[1])
    return TwoTowers(left, right, theta.left_bias, theta.right_bias)


def _embed(run: _Run, data: Data) -> tuple[tuple[Tower, Tower], Predictor]:
    """Towers on the host, rotated, and the predictors of all entities."""
    problem, theta, (shift, size, _) = run.problem, run.solution.params, run.units
    left, right = theta.left.on_host(), theta.right.on_host()
    rotation = canonical_rotation(left(data.features[0]), right(data.features[1]))
    left, right = left.rotate(np.sqrt(size) * rotation), right.rotate(np.sqrt(size) * rotation)
    if theta.left_bias is None:
        s, t = np.zeros(problem.n_left), np.zeros(problem.n_right)
    else:
        s = size * np.asarray(theta.left_bias, np.float64)
        t = shift + size * (problem.base + np.asarray(theta.right_bias, np.float64))
    P, Q = left(data.features[0]), right(data.features[1])
    return (left, right), Predictor(P, s, Q, t, shift + size * np.asarray(problem.base, np.float64))


def _finish(run: _Run, data: Data, weight, strength, tuning, seconds) -> Fitted:
    problem, solution, units = run
    size = units.size
    towers, predictor = _embed(run, data)
    seen = problem.pairs_left > 0, problem.pairs_right > 0
    mean_bias = float(predictor.s[seen[0]].mean()), float(predictor.t[seen[1]].mean())
    gaps = problem.certify_sides(solution.params)
    start = solution.start_gradient_norm
    report = report_of(
        ResponseReport,
        solution,
        objective=size**2 * gaps.objective,
        start_objective=size**2 * solution.start_objective,
        relative_gradient=solution.gradient_norm / start if start > 0 else 0.0,
        gap_stimuli=size**2 * gaps.left,
        gap_neurons=size**2 * gaps.right,
        gap_per_neuron=size**2 * gaps.per_right,
        gap_theorem=gaps.theorem,
        pseudo_r2=deviance_explained(problem.loss, data.responses.records, predictor),
        n_stimuli=problem.n_left,
        n_neurons=problem.n_right,
        n_pairs=problem.n_pairs,
        n_trials=int(problem.n_trials.sum()),
        n_stimuli_unseen=int(np.sum(~seen[0])),
        n_neurons_unseen=int(np.sum(~seen[1])),
        density=problem.n_pairs / (problem.n_left * problem.n_right),
        n_components=predictor.P.shape[1],
        n_parameters=sum(leaf.size for leaf in jax.tree.leaves(solution.params)),
        imputation_weight=weight,
        regularizer_strength=strength,
        solver_name=next(name for name, kind in SOLVERS.items() if kind.__name__ == solution.solver_name),
        seconds_run=float(seconds[0]),
        seconds_compile=float(seconds[1]),
        tuning=tuning,
    )
    return Fitted(towers, predictor, mean_bias, (problem.pairs_left, problem.pairs_right), report)
