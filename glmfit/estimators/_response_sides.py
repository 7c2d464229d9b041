"""Features of stimuli or neurons: one side of a response model, checked."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse
from sklearn.utils.validation import _get_feature_names, check_array

from .._warn import warn_user
from ._mistakes import refuse_spike_times, warn_of_constant
from ._validation import plain, refuse_words_and_times

_LARGEST = 1e15


class Side(NamedTuple):
    """What a model knows of one side.

    Attributes
    ----------
    entity, entities : str
        "stimulus" and "stimuli", or "neuron" and "neurons".
    n : int or None
        Entities; None while only the responses can tell.
    n_features : int or None
        Features; None where every entity is its own.
    names : numpy.ndarray or None
        Names of the features.
    """

    entity: str
    entities: str
    n: int | None
    n_features: int | None = None
    names: np.ndarray | None = None


STIMULI, NEURONS = Side("stimulus", "stimuli", None), Side("neuron", "neurons", None)


def read_side(features, side: Side) -> tuple[Side, Any]:
    """Check features for a fit: an array, a number of entities, or None.

    Parameters
    ----------
    features :
        As :meth:`glmfit.ResponseModel.fit` takes them.
    side : Side
        Which.

    Returns
    -------
    side : Side
        With what the features say.
    values : numpy.ndarray, scipy.sparse.csr_array or None
        (entity, feature); None where every entity is its own.
    """
    name = f"{side.entity}_features"
    if features is None:
        return side, None
    if isinstance(features, numbers.Integral) or (np.ndim(features) == 0 and not hasattr(features, "shape")):
        if isinstance(features, bool) or not isinstance(features, numbers.Integral) or features < 1:
            raise ValueError(
                f"{name} is {features!r}; it must be an array ({side.entity}, feature), or, where every {side.entity} "
                f"is its own feature, None or the number of {side.entities}."
            )
        return side._replace(n=int(features)), None
    names = _names(features)
    values = _values(features, name, side.entity)
    if not values.shape[1]:
        raise ValueError(f"{name} has no columns; where every {side.entity} is its own feature give None.")
    warn_of_constant(values, name, "Every tower has a constant of its own")
    return side._replace(n=values.shape[0], n_features=values.shape[1], names=names), values


def read_unseen(features, side: Side) -> Any:
    """Check features of other entities for a prediction: the same columns as in the fit."""
    name = f"{side.entity}_features"
    if side.n_features is None:
        raise ValueError(
            f"{name} were given, but in the fit every {side.entity} is its own feature; unseen {side.entities} need "
            f"{name} at fit. Leave them out to predict for the {side.n} {side.entities} of the fit."
        )
    names = _names(features)
    values = _values(features, name, side.entity)
    if values.shape[1] != side.n_features:
        raise ValueError(f"{name} has {values.shape[1]} features, but the fit had {side.n_features}.")
    if names is not None and side.names is None:
        warn_user(f"{name} has feature names, but the model was fitted without feature names.")
    elif names is None and side.names is not None:
        warn_user(f"{name} does not have valid feature names, but the model was fitted with feature names.")
    elif names is not None and list(names) != list(side.names):
        at = next(i for i, (a, b) in enumerate(zip(names, side.names, strict=True)) if a != b)
        raise ValueError(
            f"The feature names of {name} should match those that were passed during fit: column {at} is "
            f"{names[at]!r}, and was {side.names[at]!r}."
        )
    return values


def _values(features, name: str, entity: str):
    """Array or CSR matrix of finite numbers, (entity, feature)."""
    refuse_spike_times(features, name, f"features are needed, one row of numbers per {entity}.")
    refuse_words_and_times(features, name)
    features = plain(features)
    if (hasattr(features, "shape") and len(features.shape) != 2) or np.ndim(features) == 1:
        raise ValueError(
            f"{name} has shape {np.shape(features)}; it needs one row per {entity}, ({entity}, feature). For one "
            "feature give values[:, None]."
        )
    values = check_array(
        features,
        accept_sparse="csr",
        dtype=[np.float64, np.float32],
        ensure_all_finite=False,
        input_name=name,
        ensure_min_features=0,
    )
    sparse = scipy.sparse.issparse(values)
    if sparse:
        values = scipy.sparse.csr_array(values)
        values.sum_duplicates()
    entries = values.data if sparse else values
    bad = ~np.isfinite(entries)
    if bad.any():
        row, column = (c[bad][0] for c in values.tocoo().coords) if sparse else np.argwhere(bad)[0]
        raise ValueError(
            f"{name} has {int(bad.sum())} values that are NaN or infinite (first at row {row}, column {column}); a "
            f"{entity} without features cannot be placed: fill them in, or leave the {entity} out."
        )
    most = float(np.max(np.abs(entries), initial=0.0))
    if most > _LARGEST:
        raise ValueError(f"{name} holds values up to {most:.1e}; rescale its columns to about 1.")
    return values


def _names(features) -> np.ndarray | None:
    """Names of the columns, where all of them are strings."""
    return _get_feature_names(plain(features))


def read_ids(ids, side: Side) -> np.ndarray | slice:
    """Check ids of entities of the fit for a prediction; all where None."""
    if ids is None:
        return slice(None)
    refuse_words_and_times(ids, side.entities)
    values = np.asarray(plain(ids))
    if values.ndim == 0:
        values = values[None]
    kind = values.dtype.kind
    if values.ndim != 1 or (kind not in "iuf" and values.size) or (kind == "f" and (values != np.rint(values)).any()):
        raise ValueError(
            f"{side.entities} have shape {values.shape} and dtype {values.dtype}; they need to be ids, whole numbers, "
            f"(entry,). Features of unseen {side.entities} go to {side.entity}_features."
        )
    bad = (values < 0) | (values >= side.n)
    if bad.any():
        at = int(np.argmax(bad))
        raise ValueError(
            f"{side.entities}: entry {at} is {values[at]}; ids are whole numbers from 0 to {side.n - 1}, those of the "
            f"fit. Unseen {side.entities} need {side.entity}_features."
        )
    return values.astype(np.int64)


def read_factor(values, what: str, shape: tuple, signed: bool) -> np.ndarray | None:
    """Check weights of entities or factors of a prior: finite numbers of a shape (None: any)."""
    if values is None:
        return None
    refuse_words_and_times(values, what)
    array = np.asarray(plain(values), np.float64)
    fits = array.ndim == len(shape) and all(n in (m, None) for m, n in zip(array.shape, shape, strict=True))
    if not fits:
        wanted = ", ".join("any" if n is None else str(n) for n in shape)
        raise ValueError(f"{what} has shape {array.shape}; it needs ({wanted}{',' if len(shape) == 1 else ''}).")
    bad = ~np.isfinite(array) if signed else ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        at = tuple(int(i) for i in np.argwhere(bad)[0])
        kind = "finite numbers" if signed else "finite numbers >= 0"
        raise ValueError(f"{what} is {array[at]:g} at {at[0] if len(at) == 1 else at}; it needs {kind}.")
    return array


def read_prior(factors, m: int, n: int):
    """Check the factors of a prior."""
    if factors is None:
        return None
    if not isinstance(factors, tuple | list) or len(factors) != 2:
        raise ValueError("prior_factors must be a tuple of two arrays, (stimulus, any) and (neuron, any).")
    left = read_factor(factors[0], "prior_factors[0]", (m, None), signed=True)
    right = read_factor(factors[1], "prior_factors[1]", (n, None), signed=True)
    if left is None or right is None or left.shape[1] != right.shape[1]:
        shapes = [None if side is None else side.shape for side in (left, right)]
        raise ValueError(
            f"prior_factors have shapes {shapes[0]} and {shapes[1]}; they need the same number of columns."
        )
    return left, right


def warn_unseen(side: Side, n_pairs: np.ndarray) -> None:
    """Warn of entities without a response that have no features from which to tell anything."""
    empty = np.flatnonzero(n_pairs == 0)
    if len(empty) and side.n_features is None:
        warn_user(
            f"{len(empty)} of {side.n} {side.entities} have no response (first: {empty[0]}) and no features: nothing "
            f"can be learnt of them, and predictions there are means over the others."
        )
