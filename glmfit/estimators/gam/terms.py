"""Reading terms from users: their features and penalties, their strengths, and which neurons have them."""

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np

from ...checks import as_numbers, shorten
from ...design import Basis, Term
from ...penalties.by_name import read_members
from .masked import coordinates_within, read_mask, read_ones

CHOSEN = ("marginal-likelihood", "cross-validation")


def read_terms(given: Any, n_features: int, feature_names) -> dict[str, Term]:
    """Read terms: a basis, or a mapping of names to terms or features; None is one ridge of all features."""
    if given is None:
        return {"features": Term.ridge(range(n_features))}
    if isinstance(given, Basis):
        if given.n_features != n_features:
            raise ValueError(
                f"X has {n_features} features, but terms is a basis of {given.n_features}: {given!r}. Fit to "
                "terms.features(...), or give terms as a mapping {name: glmfit.design.Term} that says which columns "
                "of X each has."
            )
        return dict(given.terms)
    if not isinstance(given, Mapping):
        raise TypeError(
            f"terms is a {type(given).__name__}; it must be a glmfit.design.Basis (or a sum of them), or a mapping of "
            "names to glmfit.design.Term, or to the features of a ridge: {'speed': [0, 1, 2]}."
        )
    terms, of = {}, {}
    for name, term in given.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"terms has the name {name!r}; names of terms are non-empty strings.")
        if not isinstance(term, Term):
            if isinstance(term, Basis):
                raise TypeError(
                    f"term {name!r} is a basis, which does not say where its features are in X; give "
                    "glmfit.design.Term(features, basis.penalties, basis), or terms=basis."
                )
            term = Term.ridge(read_members(name, term, n_features, feature_names, "term"))
        for feature in term.features:
            if feature >= n_features:
                raise ValueError(
                    f"term {name!r} has the feature {feature}; X has {n_features} features, so allowed are 0 to "
                    f"{n_features - 1}."
                )
            if feature in of:
                raise ValueError(
                    f"feature {feature} is in term {of[feature]!r} and again in {name!r}; a feature can be in one term "
                    "only. For a second penalty of a term give it two penalties; for a second term copy the column."
                )
            of[feature] = name
        terms[name] = term
    return terms


def with_free_parts(terms: Mapping[str, Term], parts: Mapping[str, np.ndarray]) -> dict[str, Term]:
    """Give terms a ridge of what their penalties leave free, as a further penalty."""
    return {
        name: Term(term.features, (*term.penalties, parts[name]), term.basis) if name in parts else term
        for name, term in terms.items()
    }


def read_strengths(given: Any, terms: Mapping[str, Term], n_neurons: int) -> np.ndarray | None:
    """Read strengths of all penalties, (penalty, neuron); None if the data choose them."""
    if isinstance(given, str):
        if given not in CHOSEN:
            raise ValueError(f"strengths is {given!r}; allowed are {', '.join(map(repr, CHOSEN))}, or numbers.")
        return None
    sizes = {name: len(term.penalties) for name, term in terms.items()}
    total = sum(sizes.values())
    if not isinstance(given, Mapping):
        return _strengths("strengths", given, total, n_neurons)
    unknown = [name for name in given if name not in terms]
    missing = [name for name, size in sizes.items() if size and name not in given]
    if unknown or missing:
        what = f"strengths names {unknown[0]!r}, which is not a term" if unknown else f"strengths lacks {missing[0]!r}"
        raise ValueError(f"{what}; it needs the terms {', '.join(name for name, size in sizes.items() if size)}.")
    parts = [
        _strengths(f"the strength of {name!r}", given[name], sizes[name], n_neurons) for name in terms if sizes[name]
    ]
    return np.concatenate(parts) if parts else np.zeros((0, n_neurons))


def _strengths(what: str, given: Any, n_penalties: int, n_neurons: int) -> np.ndarray:
    value = as_numbers(what, given)
    shapes = {(): (), (n_penalties,): (n_penalties, 1), (n_penalties, n_neurons): (n_penalties, n_neurons)}
    if value.shape not in shapes:
        raise ValueError(
            f"{what} has shape {value.shape}; allowed are a number, one for each of the {n_penalties} penalties, or "
            f"one for each penalty and neuron, ({n_penalties}, {n_neurons})."
        )
    if not np.all(np.isfinite(value)) or np.any(value < 0):
        raise ValueError(f"{what} is {shorten(given)}; strengths must be finite and >= 0.")
    return np.broadcast_to(value.reshape(shapes[value.shape]), (n_penalties, n_neurons)).copy()


def read_mask_of_terms(given: Any, terms: Mapping[str, Term], n_features: int, n_neurons: int) -> np.ndarray | None:
    """Read which features each neuron has, bool (feature, neuron); None for all."""
    if isinstance(given, Mapping):
        mask = np.ones((n_features, n_neurons), bool)
        for name, of in given.items():
            if name not in terms:
                raise ValueError(f"feature_mask names {name!r}, which is not a term; terms are {', '.join(terms)}.")
            mask[list(terms[name].features)] = read_ones(f"feature_mask of {name!r}", of, (n_neurons,))
        return mask
    return read_mask(given, n_features, n_neurons)


def mask_of_coordinates(mask: np.ndarray | None, space, terms: Mapping[str, Term]) -> np.ndarray | None:
    """Find which coordinates each neuron has, bool (coordinate, neuron), from the features it has."""
    if mask is None:
        return None
    for name, place in space.places.items():
        for column in space.turn[:, place].T:
            of = mask[column != 0]
            split = np.any(of != of[:1], axis=0)
            if split.any():
                raise ValueError(
                    f"feature_mask leaves neuron {np.argmax(split)} some features of term {name!r} and not others; a "
                    "smooth term can be masked as a whole only. Make terms of the parts, or give them a ridge "
                    "(glmfit.design.Term.ridge)."
                )
    return coordinates_within(space.turn, mask)


def read_neurons(given: Any, names: list[str]) -> list[int]:
    """Read which neurons a user wants, by number or name; return their numbers, all for None."""
    if given is None:
        return list(range(len(names)))
    found = []
    for one in [given] if isinstance(given, str | numbers.Integral) else given:
        if isinstance(one, numbers.Integral) and not isinstance(one, bool) and 0 <= one < len(names):
            found.append(int(one))
        elif one in names:
            found.append(names.index(one))
        else:
            shown = ", ".join(map(str, names[:5])) + (", ..." if len(names) > 5 else "")
            allowed = f"whole numbers from 0 to {len(names) - 1}, and the names {shown}"
            raise ValueError(f"neuron is {shorten(one)}; allowed are {allowed}.")
    if not found:
        raise ValueError("neuron is empty; name at least one.")
    return found
