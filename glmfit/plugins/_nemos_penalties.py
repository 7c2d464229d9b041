"""Penalties of NeMoS as penalties of glmfit.

A regularizer that is none of the five, or a group that reaches over columns, is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import nemos
import numpy as np

from .. import penalties

REGULARIZERS = ("UnRegularized", "Ridge", "Lasso", "ElasticNet", "GroupLasso")


@dataclass(frozen=True)
class Penalties:
    """Penalty of every coefficient, read off the gradient of NeMoS's own."""

    name: str
    l1: np.ndarray  # (feature, column); for the group lasso the strength of its group
    ridge: np.ndarray  # (feature, column)
    labels: np.ndarray | None = None  # (feature, column) group within its column, -1 without

    @property
    def is_ridge(self) -> bool:
        """Whether it is a ridge, or nothing."""
        return self.name in ("Ridge", "UnRegularized")

    def make(self, features, columns):
        """Penalty of ours for some features and columns."""
        at = np.ix_(features, columns)
        if not len(features) or self.name == "UnRegularized":
            return penalties.NoPenalty(np.zeros(()))
        l1, ridge = self.l1[at], self.ridge[at]
        if self.name == "Ridge":
            return penalties.Ridge(_shared(ridge))
        if self.name == "Lasso":
            return penalties.Lasso(_shared(l1))
        if self.name == "ElasticNet":
            strength = l1 + ridge
            ratio = np.where(strength > 0, l1 / np.where(strength > 0, strength, 1), 1.0)
            return penalties.ElasticNet(_shared(strength), _shared(ratio))
        labels = self.labels[features, columns[0]]
        found = np.unique(labels[labels >= 0])
        if not len(found):
            return penalties.NoPenalty(np.zeros(()))
        # A group keeps the weight of its full size where a mask has taken some of its features.
        whole = np.array([np.sum(self.labels[:, columns[0]] == g) for g in found])
        left = np.array([np.sum(labels == g) for g in found])
        strength = np.stack([l1[np.argmax(labels == g)] for g in found]) * np.sqrt(whole / left)[:, None]
        return penalties.GroupLasso(strength, tuple(labels.tolist()))


def _shared(strength: np.ndarray) -> np.ndarray:
    """One number, one per column or one per coefficient: the least that says it all."""
    if np.all(strength == strength[0, 0]):
        return strength[0, 0]
    return strength[0] if np.all(strength == strength[:1]) else strength


def read_penalty(solver: Any, params) -> Penalties | None:
    """Strengths per coefficient, from the gradient of NeMoS's penalty at all ones and all twos."""
    regularizer = solver.regularizer
    name = type(regularizer).__name__
    if name not in REGULARIZERS or type(regularizer) is not getattr(nemos.regularizer, name, None):
        return None
    value = regularizer.penalized_loss(lambda *_: 0.0, params=params, strength=solver.regularizer_strength)

    def slope(at):
        there = jax.tree.map(lambda a: jax.device_put(np.full(a.shape, at, a.dtype)), params)
        leaves = jax.tree.leaves(jax.grad(value)(there).coef)
        return np.concatenate([np.asarray(g, np.float64).reshape(len(g), -1) for g in leaves])

    one, labels = slope(1.0), None
    ridge = one if name == "Ridge" else np.zeros_like(one)
    if name == "ElasticNet":
        ridge = np.maximum(slope(2.0) - one, 0.0)
        ridge[ridge < 1e-6 * one] = 0.0
    if name == "GroupLasso" and (labels := _group_labels(regularizer.mask, params)) is None:
        return None
    return Penalties(name, one - ridge, ridge, labels)


def _group_labels(mask, params) -> np.ndarray | None:
    """Group of every coefficient within its column; None if a group reaches over columns."""
    leaves = [np.asarray(m) for m in jax.tree.leaves(mask)]
    shapes = [c.shape for c in jax.tree.leaves(params.coef)]
    if [m.shape[1:] for m in leaves] != shapes:
        return None
    member = np.concatenate([m.reshape(len(m), shape[0], -1) for m, shape in zip(leaves, shapes, strict=True)], axis=1)
    if np.any(np.sum(np.any(member != 0, axis=1), axis=1) > 1):
        return None
    labels = np.where(np.any(member != 0, axis=0), np.argmax(member, axis=0), -1)
    # Numbered within a column in order of appearance, so that columns with the same groups look the same.
    for column in labels.T:
        found, first = np.unique(column[column >= 0], return_index=True)
        number = {g: i for i, g in enumerate(found[np.argsort(first)])}
        column[:] = [number.get(g, -1) for g in column]
    return labels
