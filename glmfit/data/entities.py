"""Stimuli and neurons of a response model: their features, ids and factors."""

import numbers as number_types
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _get_feature_names, check_array

from ..checks import warn_user
from .arrays import as_csr, entries_of, no_overflow, numbers, refuse_large, refuse_some
from .features import KINDS, as_features, warn_of_constant
from .times import plain

LARGEST = 1e15  # whose squares can be summed
_MOST_IDS = 2**31 - 1


class Side(NamedTuple):
    """What a model knows about one side."""

    entity: str  # "stimulus" or "neuron"
    entities: str
    n: int | None  # None while only the responses can tell
    n_features: int | None = None  # None where every entity is its own
    names: np.ndarray | None = None  # of the features


STIMULI, NEURONS = Side("stimulus", "stimuli", None), Side("neuron", "neurons", None)


def read_side(features, side: Side) -> tuple[Side, Any]:
    """Check features for a fit (an array, a number of entities or None); return the side and their values."""
    name = f"{side.entity}_features"
    if features is None:
        return side, None
    is_whole = isinstance(features, number_types.Integral)
    if is_whole and not isinstance(features, bool) and features >= 1:
        return side._replace(n=int(features)), None
    if is_whole or (np.ndim(features) == 0 and not hasattr(features, "shape")):
        or_none = f"if every {side.entity} is its own feature, None or the number of {side.entities}."
        raise ValueError(f"{name} is {features!r}; it must be an array ({side.entity}, feature), or, {or_none}")
    names, values = _names_and_values(features, side)
    if not values.shape[1]:
        raise ValueError(f"{name} has no columns; if every {side.entity} is its own feature, pass None.")
    warn_of_constant(values, name, "Every tower has its own constant")
    return side._replace(n=values.shape[0], n_features=values.shape[1], names=names), values


def read_unseen(features, side: Side) -> Any:
    """Check features of other entities for a prediction: the same columns as in the fit."""
    name = f"{side.entity}_features"
    if side.n_features is None:
        needs = f"unseen {side.entities} need {name} at fit."
        advice = f"Omit them to predict for the {side.n} {side.entities} of the fit."
        raise ValueError(f"{name} were given, but in the fit every {side.entity} is its own feature; {needs} {advice}")
    names, values = _names_and_values(features, side)
    if values.shape[1] != side.n_features:
        raise ValueError(f"{name} has {values.shape[1]} features, but the fit had {side.n_features}.")
    if (names is None) != (side.names is None):
        has, fitted = ("does not have valid", "with") if names is None else ("has", "without")
        warn_user(f"{name} {has} feature names, but the model was fitted {fitted} feature names.")
    elif names is not None and list(names) != list(side.names):
        at = next(i for i, (a, b) in enumerate(zip(names, side.names, strict=True)) if a != b)
        differs = f"column {at} is {names[at]!r}, and was {side.names[at]!r}."
        raise ValueError(f"The feature names of {name} should match those that were passed during fit: {differs}")
    return values


def _names_and_values(features, side: Side) -> tuple[np.ndarray | None, Any]:
    """Return the names of the columns, if all of them are strings, and finite values, (entity, feature)."""
    name, entity = f"{side.entity}_features", side.entity
    spikes = f"features are needed, one row of numbers per {entity}."
    whole = as_features(features, name, f"features, ({entity}, feature)", True, spikes)
    with no_overflow(name):
        values = check_array(
            whole, accept_sparse="csr", dtype=KINDS, ensure_all_finite=False, input_name=name, ensure_min_features=0
        )
    values = as_csr(values) if scipy.sparse.issparse(values) else values
    what = f"{name} has {{n}} values that are NaN or infinite (first at {{at}}); a {entity} without features"
    text = f"{what} cannot be placed: fill them in, or drop the {entity}."
    refuse_some(~np.isfinite(entries_of(values)), values, "column", text)
    refuse_large(values, name, LARGEST, "whose squares cannot be summed")
    return _get_feature_names(plain(features)), values


def read_ids(ids, name: str, n: int | None, entities: str, more: str = "") -> np.ndarray:
    """Check ids of entities: integers from 0, below the number of entities if it is known."""
    values = np.atleast_1d(np.asarray(plain(ids)))
    if values.dtype.kind in "USO":
        raise ValueError(
            f"{name} have dtype {values.dtype}; ids are whole numbers from 0, rows of the features. Convert names to "
            "numbers, the same for all sessions, with pandas.factorize or numpy.unique(names, return_inverse=True)."
        )
    if values.ndim != 1 or (values.dtype.kind not in "iuf" and values.size):
        mask = " For a mask pass numpy.flatnonzero(mask)." if values.dtype.kind == "b" else ""
        needs = "they need to be ids, whole numbers, one row of the features each, (entry,)."
        raise ValueError(f"{name} have shape {values.shape} and dtype {values.dtype}; {needs}{mask}{more}")
    bad = (values < 0) | (values >= (_MOST_IDS if n is None else n)) | (values != np.rint(values))
    if bad.any():
        at = int(np.argmax(bad))
        limit = "0, 1, 2, ..." if n is None else f"whole numbers from 0 to {n - 1}, because there are {n} {entities}"
        raise ValueError(f"{name}: entry {at} is {values[at]}; ids are {limit}. ({int(bad.sum())} are not.){more}")
    return values.astype(np.int64)


def read_fitted_ids(ids, side: Side) -> np.ndarray | slice:
    """Check ids of entities of the fit for a prediction; None means all."""
    if ids is None:
        return slice(None)
    more = f" Pass features of unseen {side.entities} as {side.entity}_features."
    return read_ids(ids, side.entities, side.n, side.entities, more)


def read_prior(factors, m: int, n: int):
    """Check the factors of a prior."""
    if factors is None:
        return None
    if not isinstance(factors, tuple | list) or len(factors) != 2:
        raise ValueError("prior_factors must be a tuple of two arrays, (stimulus, any) and (neuron, any).")
    sides: list[np.ndarray] = []
    for i, (values, size) in enumerate(zip(factors, (m, n), strict=True)):
        name = f"prior_factors[{i}]"
        values = numbers(values, name, f"({size}, any)", "entity", "any")
        if len(values) != size:
            raise ValueError(f"{name} has shape {values.shape}; it needs ({size}, any).")
        refuse_some(
            ~np.isfinite(values), values, "column", f"{name} is {{first:g}} at {{at}}; it needs finite numbers."
        )
        sides.append(values)
    if sides[0].shape[1] != sides[1].shape[1]:
        shapes = f"{sides[0].shape} and {sides[1].shape}"
        raise ValueError(f"prior_factors have shapes {shapes}; they need the same number of columns.")
    return tuple(sides)


def warn_unseen(side: Side, n_pairs: np.ndarray) -> None:
    """Warn of entities that have neither a response nor features."""
    empty = np.flatnonzero(n_pairs == 0)
    if len(empty) and side.n_features is None:
        why = "nothing can be learnt about them, and their predictions are means over the others."
        what = f"{len(empty)} of {side.n} {side.entities} have no response (first: {empty[0]})"
        warn_user(f"{what} and no features: {why}")
