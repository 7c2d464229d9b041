"""Contributions of groups of features for one task: computed, stored in its file and checked there."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...design.rules import guess
from ..process import stop
from .scores import folds_of, labels_of

if TYPE_CHECKING:
    from ...design.builder import Built
    from ...inference import Explanation

PREFIX = "explain."  # of its arrays among those of the model
# Axes of the arrays, to check a file without importing the code that made it.
AXES = {
    "members": ("model", "feature"),
    "strengths": ("strength",),
    **dict.fromkeys(("loss", "loss_off", "strength", "gap", "proved"), ("model", "fold", "neuron")),
    **dict.fromkeys(("saturated", "n_spikes"), ("fold", "neuron")),
    **dict.fromkeys(("n_fits", "n_proved", "null_strength"), ("neuron",)),
    **dict.fromkeys(
        ("p_value", "q_value", "statistic", "n_draws", "n_loose", "n_unproved_draws"), ("contribution", "neuron")
    ),
    "null_statistic": ("draw", "contribution", "neuron"),
}
_BOOLEAN = ("members", "proved")
_HEADER = dict.fromkeys(("neuron", "model", "feature", "contributions"), list)
_HEADER |= dict.fromkeys(("observation_model", "null", "status"), str)
_HEADER |= dict.fromkeys(("n_null_fits", "n_null_proved", "n_possible_draws"), int)


def explain_built(
    spec: dict[str, Any],
    built: Built,
    inputs: Iterable[tuple[Any, Any]],
    make: Callable[[], Any],
    given: Mapping[str, Any],
    epochs: Mapping[str, np.ndarray],
) -> Explanation:
    """Explain the responses of a task by its groups of features.

    ``inputs`` are the features and counts of each fit, ``make`` makes its estimator, and ``given`` are weights and
    similar arguments of ``fit``.
    """
    from ...inference import explain

    options, parts = _options(spec, built, epochs), []
    for X, y in inputs:
        parts.append(explain(make(), X, y, **options, **given))
        if parts[-1].status != "complete":
            stop()  # an interrupted explanation is not a result
    return parts[0] if built.own is None else _side_by_side(parts, built.target_names)


def to_file(found: Explanation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return header and arrays of an explanation, as in the file of a result."""
    from ...inference.explained.explanation import explanation_to_file

    header, arrays = explanation_to_file(found)
    return header, {f"{PREFIX}{name}": array for name, array in arrays.items()}


def from_file(header: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> Explanation:
    """Make the explanation of `to_file`."""
    from ...inference.explained.explanation import explanation_from_file

    found = {name.removeprefix(PREFIX): a for name, a in arrays.items() if name.startswith(PREFIX)}
    return explanation_from_file(header, found)


def check_explanation(header: Any, arrays: Mapping[str, np.ndarray], n_units: int) -> None:
    """Raise ValueError, or an error of reading damaged values, unless an explanation is complete."""
    if not isinstance(header, dict):
        raise ValueError("it lacks its explanation")
    if header.keys() != _HEADER.keys() or not all(isinstance(header[name], of) for name, of in _HEADER.items()):
        raise ValueError("its explanation is incomplete or invalid")
    sizes = {"neuron": n_units, "contribution": len(header["contributions"])}
    for axis in ("neuron", "model", "feature"):
        names = header[axis]
        if not all(isinstance(name, str) for name in names):
            raise ValueError(f"names in its explanation are not strings ({axis})")
        if sizes.setdefault(axis, len(names)) != len(names):
            raise ValueError(f"it explains {len(names)} of {n_units} neurons")
    for name, kind, *compared in header["contributions"]:
        if not (isinstance(name, str) and isinstance(kind, str) and len(compared) == 2):
            raise ValueError("its contributions have no names, or do not compare two models")
        if not all(type(k) is int and 0 <= k < sizes["model"] for k in compared):
            raise ValueError(f"its contribution {name} compares models that do not exist")
    for name, axes in AXES.items():
        array = arrays[f"{PREFIX}{name}"]
        if array.dtype.kind not in ("b" if name in _BOOLEAN else "fiu"):
            raise ValueError(f"{PREFIX}{name} is of type {array.dtype}")
        if array.ndim != len(axes) or any(sizes.setdefault(a, n) != n for a, n in zip(axes, array.shape, strict=True)):
            expected = tuple(sizes.get(axis, axis) for axis in axes)
            raise ValueError(f"{PREFIX}{name} has shape {array.shape}, not {expected}")


# -- options of a manifest as arguments of `explain`


def _options(spec: dict[str, Any], built: Built, epochs: Mapping[str, np.ndarray]) -> dict[str, Any]:
    asked = spec["explain"]
    options = {
        name: asked[name] for name in ("kinds", "order", "models", "strengths", "null_strength") if name in asked
    }
    features = built.feature_names + built.notes.get("own_names", [])
    options["groups"] = groups_of(asked.get("groups"), built.terms or {}, features)
    cv = asked.get("cv")
    options["cv"] = folds_of(cv, "explain: cv", built, epochs) if isinstance(cv, dict) else cv
    options["level"] = asked["level"] or None
    if "null" in asked:
        options["null"] = _null(asked["null"], built, epochs, spec["seed"])
    return options


def groups_of(
    given: Mapping[str, list[str]] | None, terms: Mapping[str, list[str]], features: list[str]
) -> dict[str, list[str]] | None:
    """Return the features of each group, by default every covariate and the history; None if there are none."""
    if given is None:
        return dict(terms) or None
    groups = {}
    for group, members in given.items():
        found: list[str] = []
        for member in members:
            matched = terms.get(member) or [name for name in features if name == member]
            matched = matched or [name for name in features if "*" in member and fnmatch.fnmatchcase(name, member)]
            if not matched:
                what = "which is neither a covariate nor a feature" if "*" not in member else "which no feature matches"
                raise ValueError(f'explain: group {group} names "{member}", {what}{guess(member, [*terms, *features])}')
            found += matched
        groups[group] = list(dict.fromkeys(found))
    return groups


def _null(asked: dict[str, Any], built: Built, epochs: Mapping[str, np.ndarray], seed: int) -> Any:
    from ...inference import CircularShift, LinearShift

    if asked["kind"] == "linear_shift":
        return LinearShift(asked["largest"], asked["n"])
    within = None
    if "within" in asked:
        labels = labels_of(asked["within"], "explain: within", built, epochs)
        if not np.any(labels >= 0):
            raise ValueError(f'explain: no bin of the design is within the epochs "{asked["within"]}".')
        within = np.where(labels >= 0, labels, -1 - np.arange(len(labels)))  # rows by themselves stay where they are
    return CircularShift(asked["n"], within, asked["least"], asked["of"], seed)


def _side_by_side(parts: list[Explanation], names: list[str]) -> Explanation:
    """Join explanations of one neuron each; discoveries are counted over all of them."""
    from ...inference.explained.explanation import false_discovery_rate

    changes: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts], axis=-1)
        for name, axes in AXES.items()
        if axes[-1] == "neuron"
    }
    changes["strengths"] = np.unique(np.concatenate([part.strengths for part in parts]))
    changes |= {name: sum(getattr(part, name) for part in parts) for name in ("n_null_fits", "n_null_proved")}
    changes["q_value"] = false_discovery_rate(changes["p_value"], [c.kind for c in parts[0].contributions])
    return replace(parts[0], neuron=list(names), **changes)
