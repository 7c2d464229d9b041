"""Features that only some neurons have: reading masks, and fits with them that have no penalty."""

from typing import Any

import numpy as np

from ...checks import shorten
from ...data.arrays import shape_of
from ...data.counts import Training
from ...data.standard_form import StandardForm
from ...engine.population import PopulationProblem
from ...engine.result import LoopOptions, Solution
from ...engine.smooth.coordinates import Coordinates
from ...engine.smooth.population import SmoothPopulation

UNPENALISED = None, "UnRegularized"
_SOLVERS = "auto", "Newton"


def read_mask(given: Any, n_features: int, n_neurons: int) -> np.ndarray | None:
    """Read which features each neuron has, bool (feature, neuron); None for all."""
    return None if given is None else read_ones("feature_mask", given, (n_features, n_neurons))


def read_ones(what: str, given: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check an array of 0 and 1, and return it as bool."""
    value = np.asarray(given, object if shape_of(given) is None else None)
    value = value[:, None] if value.ndim == 1 == len(shape) - 1 and shape[1] == 1 else value
    if value.shape != shape:
        of = "(feature, neuron)" if len(shape) == 2 else "(neuron,)"
        raise ValueError(f"{what} has shape {value.shape}; it needs {of}, {shape}: 1 where the neuron has it, else 0.")
    if value.dtype.kind not in "biuf" or not np.isin(value, (0, 1)).all():
        raise ValueError(f"{what} has values other than 0 and 1, or True and False: {shorten(given)}")
    return value.astype(bool)


def coordinates_within(turn: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """Find which coordinates each neuron has, bool (coordinate, neuron): those of which it has all features.

    ``turn`` takes coordinates to features, (feature, coordinate), and ``mask`` is bool (feature, neuron).
    """
    return np.array([mask[column != 0].all(axis=0) for column in turn.T], bool).reshape(-1, mask.shape[1])


def check_masked(model, data: Training, checkpoint: Any, init_params: Any) -> None:
    """Raise for what a fit with a mask and no penalty cannot do."""
    given = "feature_mask is given without a penalty"
    if model.solver_name not in _SOLVERS:
        known = " or ".join(map(repr, _SOLVERS))
        raise ValueError(f"{given}, but solver_name is {model.solver_name!r}; use {known}.")
    if not isinstance(data.X, np.ndarray):
        raise ValueError(f"{given}, but X is larger than max_memory; raise max_memory to load it, or pass a penalty.")
    for name, value in {"checkpoint": checkpoint, "init_params": init_params}.items():
        if value is not None:
            raise ValueError(f"{given}; such a fit takes no {name}. Omit it, or pass a penalty.")


def fit_masked(problem: PopulationProblem, form: StandardForm, mask: np.ndarray, options: LoopOptions) -> Solution:
    """Fit a problem without a penalty, each neuron with the features it has; coefficients of other features are 0."""
    n = problem.n_features
    space = Coordinates(problem.X, {str(j): ([j], [np.ones(1)]) for j in range(n)}, problem.weights)
    inside = coordinates_within(space.turn, mask)
    population = SmoothPopulation(problem, space, [range(n)], problem.n_counted, form.unit, inside)
    return population.fit(np.zeros(mask.shape), options)[0]
