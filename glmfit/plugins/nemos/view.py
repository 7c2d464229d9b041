"""A NeMoS model as matrices: a generalised linear model that glmfit can fit.

A view is used only if its loss equals NeMoS's on some rows.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import equinox as eqx
import jax
import nemos
import numpy as np

from ...compilation import full_precision
from ...engine.problem import Params
from .smooth import SmoothPenalties, read_smooth, stacked, unstacked
from .terms import KnownLoss, Penalties, candidates, never_changes, read_penalty

_LAYERS = 4  # of functions around a loss
AGREE = {4: 1e-4, 8: 1e-8}  # relative difference of two evaluations of one loss, per bytes of a number


class Part(NamedTuple):
    """Columns that share features and penalty layout, and can be fitted as one problem."""

    columns: np.ndarray
    features: np.ndarray
    penalty: Any


@dataclass(frozen=True)
class View:
    """A generalised linear model as matrices."""

    X: np.ndarray  # (time, feature), leaves side by side
    Y: np.ndarray  # (time, column)
    loss: Any  # KnownLoss or RowLoss
    mask: np.ndarray | None  # (feature, column)
    penalty: Penalties | SmoothPenalties
    disposable: bool = False  # whether nothing compiled for the loss can serve again

    @property
    def certified(self) -> bool:
        """Whether the loss is one with proved bounds."""
        return isinstance(self.loss, KnownLoss)

    @cached_property
    def n_classes(self) -> int:
        """Classes of a softmax model with bounds (labels, all observed, one ridge for all, no mask); otherwise 0."""
        is_ridge = self.penalty.name in ("Ridge", "UnRegularized")
        if self.certified or not self.loss.is_softmax or self.mask is not None or not is_ridge:
            return 0
        K, ridge = self.loss.n_coupled, self.penalty.ridge
        units = self.Y.reshape(len(self.Y), -1, K)
        labels = np.all((units == 0) | (units == 1)) and np.all(units.sum(axis=2) == 1)
        return K if labels and units.any(axis=0).all() and np.all(ridge == ridge[0, 0]) else 0

    @property
    def n_together(self) -> int:
        """Columns of a neuron: the classes of a classifier, else 1."""
        return getattr(self.loss, "n_classes", 1)

    @property
    def dtype(self):
        """Precision of the data."""
        return self.X.dtype

    def same_shift(self, params: Params, start: Params) -> Params:
        """If a common shift of all classes changes nothing, keep that of the starting intercepts, as NeMoS does."""
        if self.certified or not self.loss.shift_invariant:
            return params
        shift = (start.intercept - params.intercept).reshape(-1, self.loss.n_coupled).mean(axis=1)
        return params._replace(intercept=params.intercept + np.repeat(shift, self.loss.n_coupled))

    def columns(self, params) -> Params:
        """Parameters of a model as matrices, float64."""
        coef = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params.coef)
        return Params(stacked(coef), np.asarray(params.intercept, np.float64).ravel())

    def tree(self, params: Params, like):
        """Matrices as parameters of a model."""
        coef = jax.tree.map(_put, unstacked(params.coef, like.coef), like.coef)
        return eqx.tree_at(lambda p: (p.coef, p.intercept), like, (coef, _put(params.intercept, like.intercept)))

    def parts(self) -> list[Part]:
        """List the sets of columns with the same features and groups."""
        n = self.Y.shape[1]
        mask = np.ones((self.X.shape[1], n), bool) if self.mask is None else self.mask
        if self.n_classes:
            kind = np.arange(n) // self.n_classes
        else:
            labels = np.zeros_like(mask, int) if self.penalty.labels is None else self.penalty.labels
            kind = np.unique(np.concatenate([mask, labels]), axis=1, return_inverse=True)[1].ravel()
        parts = []
        for k in range(kind.max() + 1):
            columns = np.flatnonzero(kind == k)
            features = np.flatnonzero(mask[:, columns[0]])
            parts.append(Part(columns, features, self.penalty.make(features, columns)))
        return parts


def views(solver: Any, params, args) -> Iterator[View]:
    """Propose model, loss and penalty as matrices; none if it is not a generalised linear model."""
    shape = _glm_shape(params, args)
    if shape is None:
        return
    X, Y, out = shape
    if not all(np.isfinite(a.sum()) or np.isfinite(a).all() for a in (X, Y)):
        return
    smooth = read_smooth(solver.regularizer, solver.regularizer_strength, params)
    penalty = smooth or read_penalty(solver, params)
    if penalty is None:
        return
    model = model_of(solver.unregularized_loss)
    mask = mask_of(model, params.coef)
    if smooth is not None and not smooth.takes(mask):
        return
    layouts = [layout for layout in (mask, penalty.labels) if layout is not None]
    for loss in candidates(solver, model, params, args, out, Y):
        view = View(X, Y, loss, mask, penalty, not never_changes(loss))
        if smooth is not None and not view.certified:
            return
        if not view.certified:  # coupled columns share features and groups, or the model is not ours
            units = [layout.reshape(len(layout), -1, loss.n_coupled) for layout in layouts]
            if not all(np.all(layout == layout[..., :1]) for layout in units):
                continue
        if _agrees(view, solver.unregularized_loss, params, args):
            yield view


def model_of(loss: Any) -> Any:
    """Find the model that a loss is a method of, directly or wrapped in functions; None if there is none.

    NeMoS passes the bound method or, if parameters can be held fixed, a function that calls it. Whether the loss is
    that of the model is checked later, by its values.
    """
    for _ in range(_LAYERS):
        if isinstance(model := getattr(loss, "__self__", None), nemos.base_class.Base):
            return model
        inner = _within(loss)
        if len(inner) != 1:
            return None
        loss = inner[0]
    return None


def _within(function: Any) -> list:
    """List the functions that a function closes over, or that it is with some arguments bound."""
    found = [getattr(function, "func", None)]
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):  # an empty one
            found.append(cell.cell_contents)
    return [of for of in found if inspect.isroutine(of) or hasattr(of, "func")]


def mask_of(model: Any, coef: Any) -> np.ndarray | None:
    """Return which features each column of a model has, bool (feature, column); None if all have all."""
    mask = getattr(model, "_feature_mask", None)
    if mask is None:
        return None
    leaves = zip(jax.tree.leaves(mask), jax.tree.leaves(coef), strict=True)
    mask = stacked([np.broadcast_to(np.asarray(m), c.shape) for m, c in leaves]) != 0
    return None if mask.all() else mask


def _glm_shape(params, args):
    """Features and targets as matrices, and shape of an output; None for other models."""
    if not (hasattr(params, "coef") and hasattr(params, "intercept")) or len(args) != 2:
        return None
    X, coef = jax.tree.leaves(args[0]), jax.tree.leaves(params.coef)
    y, intercept = args[1], params.intercept
    if not X or len(X) != len(coef) or not hasattr(y, "shape") or not hasattr(intercept, "shape"):
        return None
    if len(jax.tree.leaves(params)) != len(coef) + 1:  # more is fitted than a generalised linear model has
        return None
    out = coef[0].shape[1:]
    good = all(x.ndim == 2 and c.shape == (x.shape[1], *out) for x, c in zip(X, coef, strict=True))
    if not good or y.shape != (len(X[0]), *out) or intercept.shape != (out or (1,)) or len(y) < 2:
        return None
    return *matrices_of(params, args), out


def matrices_of(params, args) -> tuple[np.ndarray, np.ndarray]:
    """Features, leaves side by side, and targets as matrices, in double precision if the parameters are."""
    dtype = np.float64 if params.intercept.dtype == np.float64 else np.float32
    matrices = [np.asarray(x, dtype) for x in jax.tree.leaves(args[0])]
    design = matrices[0] if len(matrices) == 1 else np.concatenate(matrices, axis=1)
    return design, np.asarray(args[1], dtype).reshape(len(args[1]), -1)


@full_precision
def _agrees(view: View, loss: Callable, params, args) -> bool:
    """Whether our loss equals the given one on some rows, at two parameters near the null model."""
    n = len(view.Y)
    busy = np.argmax(np.abs(view.Y).max(axis=1))
    rows = np.unique(np.r_[np.linspace(0, n - 1, min(n, 6)).astype(int), busy])
    some = jax.tree.map(lambda a: jax.device_put(np.asarray(a)[rows]), args)
    X = view.X[rows].astype(np.float64)
    here = view.columns(params)
    size = 0.3 / max(np.sqrt(X.shape[1]) * np.abs(X).max(initial=0.0), 1e-30)
    for seed in range(2):
        rng = np.random.default_rng(seed)
        coef, extra = size * rng.normal(size=here.coef.shape), 0.1 * rng.normal(size=here.intercept.shape)
        at = Params(coef, here.intercept + extra)
        eta = X @ (coef if view.mask is None else coef * view.mask) + at.intercept
        y = view.Y[rows]
        try:
            given = float(loss(view.tree(at, params), *some))
            if view.certified:
                ours = float(np.sum(view.loss.loss(y.astype(np.float64), eta)) / len(rows))
            else:
                weight = np.full((len(rows), 1), 1 / len(rows), view.dtype)
                ours = float(view.loss.total(y, eta.astype(view.dtype), weight))
        except Exception:
            return False  # a loss of other rows, or one that cannot be called row by row
        if not abs(given - ours) <= AGREE[view.dtype.itemsize] * (abs(given) + np.abs(y).mean() + 1e-3):
            return False
    return True


def _put(values: np.ndarray, like) -> jax.Array:
    """Make a jax array of the shape and precision of another; nothing is compiled for it."""
    return jax.device_put(values.reshape(like.shape).astype(like.dtype))
