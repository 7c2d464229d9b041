"""Fits of response models: settings, choices on held-out pairs, the fit of all pairs and its report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import equinox as eqx
import jax
import numpy as np

from .. import pairs
from ..checks import check_choice, check_flag, check_real, check_whole, warn_user
from ..data.entities import Side
from ..data.responses import Responses
from ..observations import RESPONSE_LOSSES, Gaussian, Observation
from ..pairs import AllPairsProblem, StationarySolution, Tower, TwoTowers
from ..pairs.responses import Units
from ..pairs.towers import Predictor, canonical_rotation, deviance_explained, hold_out
from .model_reports import ResponseReport
from .parameters import by_name, key_for, precision, read_solver, read_strengths, read_verbose
from .report import report_of

SOLVERS = {
    "LBFGS": pairs.TowerLBFGS,
    "GaussNewton": pairs.GaussNewton,
    "Adam": pairs.TowerAdam,
    **by_name(pairs.LeftBatches, pairs.SampledPairs),
}
_NUMBER = "a finite number of at least 0, such as 0.1"
_AUTO_WEIGHTS = (0.0, 0.03, 0.1, 0.3)  # of the mean curvature of the observed losses


class Settings:
    """Constructor parameters of a `ResponseModel`, read and checked."""

    def __init__(self, model):
        check_choice("prior", model.prior, ("mean", "zero"), "Pass other priors to fit as prior_factors.")
        check_real("validation_fraction", model.validation_fraction, 1.0)
        check_real("tol", model.tol, 1.0, hint="It is a fraction of the gradient at the start.")
        epochs = None if model.max_epochs is None else check_whole("max_epochs", model.max_epochs)
        solver = read_solver(model.solver_name, model.solver_kwargs, SOLVERS, parameters=model._get_param_names())
        several, weights = f"{_NUMBER}, or a sequence of such numbers", model.imputation_weight
        self.weights = None  # in proportion to the curvature
        if not isinstance(weights, str) or weights != "auto":
            weights = read_strengths("imputation_weight", weights, f'{several} or "auto"', 0, 1)
            self.weights = sorted({0.0, *weights.tolist()}) if np.ndim(model.imputation_weight) else weights.tolist()
        self.strengths = read_strengths("regularizer_strength", model.regularizer_strength, several, 0, 1).tolist()
        self.loss, self.prior = model.loss, model.prior
        if not isinstance(self.loss, Observation):
            hint = "An observation model (glmfit.observations.Observation) is accepted, too."
            check_choice("loss", self.loss, RESPONSE_LOSSES, hint)
            self.loss = RESPONSE_LOSSES[self.loss]
        self.n_components = check_whole("n_components", model.n_components)
        self.hidden = tuple(_widths(name, getattr(model, name)) for name in ("stimulus_hidden", "neuron_hidden"))
        self.biases = check_flag("bias", model.bias)
        self.bias_strength = float(read_strengths("bias_strength", model.bias_strength, _NUMBER, 0)[0])
        self.solver = solver or (pairs.TowerAdam() if any(self.hidden) else pairs.TowerLBFGS())
        self.options = pairs.StationaryOptions(float(model.tol), epochs, verbose=read_verbose(model.verbose))
        self.fraction = float(model.validation_fraction)
        self.seed = model._seed()


def _widths(name: str, given) -> tuple[int, ...]:
    """Read widths of hidden layers."""
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise ValueError(f"{name} is {given!r}; it must be a tuple of widths, such as (32,), or () for a linear tower.")
    return tuple(check_whole(f"{name}[{i}]", width) for i, width in enumerate(given))


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


class ResponseFit(NamedTuple):
    """Settings and checked data of a fit."""

    settings: Settings
    responses: Responses
    features: tuple = (None, None)  # of stimuli and of neurons, None where every entity is its own
    weights: tuple = (None, None)  # factors of imputation of both sides
    prior_factors: tuple | None = None  # instead of the prior of the settings

    @property
    def dtype(self) -> type:
        """Precision of the passes: that of the features, or of the responses if there are none."""
        given = [values.dtype for values in self.features if values is not None]
        return precision(np.result_type(*given) if given else self.responses.dtype)

    def run(self) -> tuple[tuple[Tower, Tower], Predictor, tuple[float, float], ResponseReport]:
        """Fit towers, with weight and strength chosen on held-out pairs if several are given.

        Returns towers of stimuli and of neurons, rotated by `canonical_rotation`; predictor of the entities of the fit;
        mean biases of stimuli and of neurons that have responses, which are used for others; report.
        """
        weights = self.imputation_weights()
        if not any(weights) and (self.prior_factors is not None or any(w is not None for w in self.weights)):
            warn_user(
                "stimulus_weight, neuron_weight and prior_factors apply to pairs that were not recorded, which have "
                "no effect with imputation_weight=0: pass a weight above 0, or omit them."
            )
        grid = [(weight, strength) for weight in weights for strength in self.settings.strengths]
        best, trial, tuning, seconds = 0, None, {}, np.zeros(2)
        if len(grid) > 1:
            held, seen = self.split()
            scores = np.full(len(grid), np.nan)
            for i, choice in enumerate(grid):
                trial = self.trial(seen, *choice)
                seconds += trial.solution.seconds_run, trial.solution.seconds_compile
                if trial.solution.interrupted:
                    break
                scores[i] = deviance_explained(self.settings.loss, held, trial.embed()[1])
            best = int(np.argmax(np.nan_to_num(scores, nan=-np.inf)))
            tried = map(np.array, zip(*grid, strict=True))
            tuning = dict(zip(("imputation_weight", "regularizer_strength"), tried)) | {"score": scores}
        if trial is None or not trial.solution.interrupted:
            trial = self.trial(self.responses.given(), *grid[best])
            seconds += trial.solution.seconds_run, trial.solution.seconds_compile
        return trial.fitted(tuning, seconds)

    def imputation_weights(self) -> tuple[float, ...]:
        """Imputation weights to try."""
        loss, records, n = self.settings.loss, self.responses.records, self.responses.n_neurons
        if self.settings.weights is not None:
            return self.settings.weights
        trials = np.bincount(records.right, minlength=n)
        mean = np.bincount(records.right, records.y, n) / np.maximum(trials, 1)
        base = loss.intercept(np.where(trials > 0, mean, records.y.mean()), np.maximum(trials, 1))
        scale = float(np.mean(loss.curvature(records.y, base[records.right])))
        return tuple(scale * share for share in _AUTO_WEIGHTS)

    def split(self):
        """Draw pairs to hold out: their records, and the responses without them."""
        responses, fraction = self.responses, self.settings.fraction
        rng = np.random.default_rng([self.settings.seed, 1])
        held = hold_out(responses.records, responses.key, fraction, rng)
        if not len(held):
            n_pairs = len(np.unique(responses.key(responses.records.left, responses.records.right)))
            raise ValueError(
                f"nothing can be held out to choose among several strengths: of {n_pairs} pairs, "
                f"validation_fraction {fraction:g} is none, or every one is the only pair of its stimulus or "
                "neuron. Pass one imputation_weight and one regularizer_strength."
            )
        return responses.split(held)

    def trial(self, responses, weight: float, strength: float) -> _Trial:
        """Fit towers to some of the responses at one weight and strength."""
        settings, sizes = self.settings, (self.responses.n_stimuli, self.responses.n_neurons)
        start_key, solver_key = jax.random.split(key_for(settings.solver, settings.seed))
        prior = settings.prior if self.prior_factors is None else self.prior_factors
        units = Units(np.zeros(sizes[1]))
        if isinstance(settings.loss, Gaussian):
            linear = not any(settings.hidden)
            units = Units.of(self.responses.records, sizes[1], settings.biases, linear)
            responses, prior = units.responses(responses), units.prior(prior, sizes[0])
        sides = [size if values is None else values for size, values in zip(sizes, self.features, strict=True)]
        problem = AllPairsProblem(
            *sides, responses, settings.loss, weight, *self.weights, prior=prior, strength=strength / units.size,
            biases=settings.biases, bias_strength=settings.bias_strength, dtype=self.dtype,
        )  # fmt: skip
        theta = problem.draw_params(start_key, settings.n_components, *settings.hidden, scale=units.start)
        # Entities without a response or features begin at 0, where the ridge keeps them.
        theta = TwoTowers(
            _quiet(theta.left, problem.pairs_left > 0) if self.features[0] is None else theta.left,
            _quiet(theta.right, problem.pairs_right > 0) if self.features[1] is None else theta.right,
            theta.left_bias,
            theta.right_bias,
        )
        solution = settings.solver.run(problem, theta, key=solver_key, options=settings.options)
        return _Trial(self, weight, strength, problem, solution, units)


class _Trial(NamedTuple):
    """A fit at one weight and strength: its problem, its solution, and the units of both."""

    of_fit: ResponseFit
    imputation_weight: float
    regularizer_strength: float
    problem: AllPairsProblem
    solution: StationarySolution
    units: Units

    def embed(self) -> tuple[tuple[Tower, Tower], Predictor]:
        """Towers on the host, rotated, and the predictors of all entities."""
        problem, theta, (shift, size, _) = self.problem, self.solution.params, self.units
        U, V = self.of_fit.features
        left, right = theta.left.on_host(), theta.right.on_host()
        rotation = np.sqrt(size) * canonical_rotation(left(U), right(V))
        left, right = left.rotate(rotation), right.rotate(rotation)
        s, t = np.zeros(problem.n_left), np.zeros(problem.n_right)
        null = shift + size * np.asarray(problem.base, np.float64)
        if theta.left_bias is not None:
            s = size * np.asarray(theta.left_bias, np.float64)
            t = shift + size * (problem.base + np.asarray(theta.right_bias, np.float64))
        return (left, right), Predictor(left(U), s, right(V), t, null)

    def fitted(self, tuning: dict[str, np.ndarray], seconds: np.ndarray):
        """Return the outcome with a report; ``seconds`` includes earlier choices."""
        problem, solution, scale = self.problem, self.solution, self.units.size**2
        towers, predictor = self.embed()
        seen = problem.pairs_left > 0, problem.pairs_right > 0
        gaps, start = problem.certify_sides(solution.params), solution.start_gradient_norm
        report = report_of(
            ResponseReport, solution, self, problem,
            objective=scale * gaps.objective, start_objective=scale * solution.start_objective,
            relative_gradient=solution.gradient_norm / start if start > 0 else 0.0,
            gap_stimuli=scale * gaps.left, gap_neurons=scale * gaps.right, gap_per_neuron=scale * gaps.per_right,
            gap_theorem=gaps.theorem,
            pseudo_r2=deviance_explained(problem.loss, self.of_fit.responses.records, predictor),
            n_stimuli=problem.n_left, n_stimuli_unseen=int(np.sum(~seen[0])),
            n_neurons=problem.n_right, n_neurons_unseen=int(np.sum(~seen[1])),
            n_trials=int(problem.n_trials.sum()), density=problem.n_pairs / (problem.n_left * problem.n_right),
            n_components=predictor.P.shape[1], n_parameters=sum(leaf.size for leaf in jax.tree.leaves(solution.params)),
            solver_name=next(name for name, kind in SOLVERS.items() if kind.__name__ == solution.solver_name),
            seconds_run=float(seconds[0]), seconds_compile=float(seconds[1]), tuning=tuning,
        )  # fmt: skip
        mean_bias = float(predictor.s[seen[0]].mean()), float(predictor.t[seen[1]].mean())
        return towers, predictor, mean_bias, report


def _quiet(tower: Tower, seen: np.ndarray) -> Tower:
    """Set a tower of entities that are their own features to 0 where they are not seen."""
    return eqx.tree_at(lambda tower: tower.maps[0].weight, tower, replace_fn=lambda table: table * seen[:, None])
