"""Rows on devices of jax, a GPU or several: the passes that show the way; what numbers rest on stays on the host.

Small arrays are laid out as columns there, (column, fit): the features, the intercept, and zeros up to a whole number
of `_ALIGNED`. The rows have a one for the intercept, so that one product is all that a pass needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .._compile import jit, refuse_fork
from ..problems._chunks import over_chunks
from .host import HostRows, Slopes

_ALIGNED = 16  # columns and fits are filled up to a multiple: products of GPUs come in tiles
_PADDED = 32  # columns of small arrays: else XLA pads them in every product
_BLOCK = 1024  # rows whose terms are added up one after the other; sums of blocks then lose little in single precision
_HESSIANS = 8  # made by one call
_LEAST_WORK = 1e8  # rows times features times fits below which the host is done before a GPU's programs are compiled


class Shards(NamedTuple):
    """Rows where they lie: whole blocks on each device, (block, row, ...)."""

    x: jax.Array  # (block, row, column), features centred, then 1; 0 where no fit has weight
    y: jax.Array  # (block, row, neuron)
    weight: jax.Array  # (block, row, 1 or set), 0 on rows that fill up
    neuron: np.ndarray | None  # (fit,) index into y; None: each its own
    which: np.ndarray | None  # (fit,) index into weight; None: all have one set
    share: np.ndarray  # one over the number of rows

    def of(self, at) -> Shards:
        """Return those of some fits."""
        neuron = at if self.neuron is None else self.neuron[at]
        return self._replace(neuron=neuron, which=None if self.which is None else self.which[at])

    def weights(self) -> jax.Array:
        """Weights of the fits, (block, row, 1 or fit)."""
        return self.weight if self.which is None else self.weight[..., self.which]

    def derivatives(self, observation, eta) -> tuple[jax.Array, jax.Array]:
        """First and second derivative of the loss times weights; rows without weight may be anything."""
        y, w = self.y if self.neuron is None else self.y[..., self.neuron], self.weights()
        r, c = observation.derivatives(y, eta)
        most = float(jnp.finfo(eta.dtype).max)  # times 0 it is 0, as infinity is not
        return jnp.clip(r, -most, most) * w, jnp.minimum(c, most) * w

    def predict(self, columns) -> jax.Array:
        """Predictors, (block, row, fit)."""
        return jnp.einsum("btm,mn->btn", self.x, columns[: self.x.shape[-1]])

    def gather(self, r) -> jax.Array:
        """Mean over the rows of ``r`` (block, row, fit) times columns, (column, fit)."""
        sums = jnp.einsum("btm,btn->bmn", self.x, r).sum(axis=0)
        return jnp.pad(sums, ((0, -len(sums) % _PADDED), (0, 0))) * self.share

    def mean(self, values) -> jax.Array:
        """Mean over the rows, (fit,)."""
        return values.sum(axis=1).sum(axis=0) * self.share

    def reach(self, D) -> jax.Array:
        """Largest ``|D|`` of each fit over the rows that count, (fit,)."""
        return jnp.where(self.weights() > 0, jnp.abs(D), 0).max(axis=(0, 1))


class Layout:
    """How rows are cut among devices.

    Parameters
    ----------
    devices : sequence of jax.Device
        Which share the rows; jax's default one if empty.
    n_rows : int
        Rows in all.
    dtype : numpy.dtype
        Of what lies there.
    """

    def __init__(self, devices: Sequence[jax.Device], n_rows: int, dtype):
        refuse_fork()
        self.dtype, self.n_rows, self.sharding = jax.dtypes.canonicalize_dtype(dtype), n_rows, None
        share = -(-n_rows // max(1, len(devices)))
        blocks = -(-share // max(_BLOCK, math.isqrt(n_rows)))
        self.shape = max(1, len(devices)) * blocks, _up(-(-share // blocks))
        if devices:
            mesh = jax.sharding.Mesh(np.array(devices), ("row",))
            self.sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))
        self._x: jax.Array | None = None

    def put(self, array: np.ndarray, width: int | None = None, at=None) -> jax.Array:
        """Lay a copy of an array (row, ...) out, filled up with zeros; its columns come first, or where ``at`` says."""
        whole = np.zeros((math.prod(self.shape), array.shape[1] if width is None else width), self.dtype)
        whole[: self.n_rows, slice(array.shape[1]) if at is None else at] = array
        return self._lay(whole)

    def everywhere(self, array: np.ndarray) -> jax.Array:
        """Put a copy on every device."""
        if self.sharding is None:
            return jax.device_put(array)
        whole = jax.sharding.NamedSharding(self.sharding.mesh, jax.sharding.PartitionSpec())
        return jax.make_array_from_callback(array.shape, whole, lambda index: array[index])

    def _lay(self, whole: np.ndarray) -> jax.Array:
        whole = whole.reshape(*self.shape, -1)
        if self.sharding is None:
            return jax.device_put(whole)
        if self.sharding.is_fully_addressable:
            return jax.device_put(whole, self.sharding)
        # Several hosts: each has all rows and puts those of its own devices there.
        return jax.make_array_from_callback(whole.shape, self.sharding, lambda index: whole[index])

    def features(self, rows: HostRows) -> jax.Array:
        """Centred features, then 1: one copy serves all groups of fits."""
        if self._x is None:
            n = rows.X.shape[1]
            whole = np.zeros((math.prod(self.shape), _up(n + 1)), self.dtype)

            def fill(piece):
                counts = 1.0 if rows.weights is None else (rows.weights[piece] > 0).any(axis=1, keepdims=True)
                whole[piece, :n] = np.where(counts, rows.X[piece] - rows.mean, 0)
                whole[piece, n] = np.ravel(counts)

            list(over_chunks(fill, self.n_rows))
            self._x = self._lay(whole)
        return self._x


def layout_of(problem) -> Layout | None:
    """Where the rows of a problem are to lie: on devices if it names some, or on a GPU if it is worth it."""
    devices = problem.placement.devices
    work = problem.n_rows * problem.n_features * problem.n_neurons
    if devices or (jax.default_backend() != "cpu" and work > _LEAST_WORK):
        return Layout(devices, problem.n_rows, problem.dtype)
    return None


class DeviceRows(HostRows):
    """Rows of independent fits on devices; the methods are those of :class:`HostRows`.

    Parameters
    ----------
    layout : Layout
        Where they lie.
    given :
        As for :class:`HostRows`.

    Notes
    -----
    Kept there are features, counts, weights, eta and now and then a direction. Fits that leave do so on the host alone:
    programs are compiled for one number of fits, and what the others do there is ignored. Evaluation is the host's, and
    eta follows.
    """

    def __init__(self, layout: Layout, **given):
        super().__init__(**given | {"dtype": layout.dtype})
        self.layout = layout
        self.columns = np.arange(len(self.neuron))  # where each fit is among those on the devices
        self.width = _up(len(self.neuron))
        self.n_columns = _up(self.X.shape[1] + 1, _PADDED)
        neurons, neuron = np.unique(self.neuron, return_inverse=True)
        each = np.array_equal(neuron, self.columns)
        self.shards = Shards(
            x=layout.features(self),
            y=layout.put(self.Y[:, neurons], self.width if each else None),
            weight=layout.put(np.ones((self.n_rows, 1)) if self.weights is None else self.weights),
            neuron=None if each else _fill(neuron, self.width),
            which=None if self.rows is None else _fill(self.rows, self.width),
            share=np.asarray(1 / self.n_rows, self.dtype),
        )

    # ---------------------------------------------------------------- small arrays, there and back

    def spread(self, values, fill: float = 0.0, dtype=None) -> np.ndarray:
        """Put what each fit has, (..., fit), where the devices have it."""
        values = np.asarray(values)
        out = np.full((*values.shape[:-1], self.width), fill, self.dtype if dtype is None else dtype)
        out[..., self.columns] = values
        return out

    def stack(self, coef, intercept=None) -> np.ndarray:
        """Columns of slopes or parameters, (column, fit) of all fits there."""
        out = np.zeros((self.n_columns, self.width), self.dtype)
        out[: len(coef), self.columns] = coef
        if intercept is not None:
            out[len(coef), self.columns] = intercept
        return out

    def unstack(self, columns) -> Slopes:
        """Slopes of the fits, float64."""
        columns = np.asarray(columns, np.float64)[:, self.columns]
        n = self.X.shape[1]
        return Slopes(columns[:n], columns[n])

    # ---------------------------------------------------------------- passes that show the way

    def _follow(self) -> None:
        """Take over eta from the host, rounded as it is there."""
        self.eta_there = self.layout.put(self.eta, self.width, self.columns)

    def place(self, coef, intercept) -> Slopes:
        """Put all fits at parameters of centred features; returns the gradient there."""
        slopes = super().place(coef, intercept)
        self._follow()
        return slopes

    def evaluate(self, coef, intercept, dual: bool = False):
        """Compute what :meth:`HostRows.evaluate` does, and follow."""
        found = super().evaluate(coef, intercept, dual)
        self._follow()
        return found

    def along(self, coef, intercept) -> np.ndarray:
        """Predictors of a direction, kept; returns the mean of curvature times their squares, (fit,)."""
        p = self.stack(coef, intercept)
        self._D, bend, self._reach = _along(self.observation, self.shards, self.eta_there, p)
        self.passes += 0.5
        return np.asarray(bend, np.float64)[self.columns]

    def reach(self, at) -> np.ndarray:
        """Largest ``|D|`` of some fits over the rows that count, (fit,)."""
        return np.asarray(self._reach, np.float64)[self.columns][at]

    def move(self, step, at: np.ndarray | None = None) -> Slopes:
        """Go ``step`` (fit,) along the direction, and return the gradient of the mean loss there.

        Of the fits ``at`` alone where given, as indices.
        """
        steps = np.zeros(len(self.columns))
        steps[slice(None) if at is None else at] = step
        self.eta_there, gradient = _move(self.observation, self.shards, self.eta_there, self._D, self.spread(steps))
        self.passes += 0.5
        slopes = self.unstack(gradient)
        return slopes if at is None else slopes.part(at)

    def products(self, coef, intercept) -> Slopes:
        """Hessians of the mean loss times a direction."""
        self.passes += 1
        return self.unstack(_products(self.observation, self.shards, self.eta_there, self.stack(coef, intercept)))

    def centre(self) -> Slopes:
        """Means of curvature times centred features, and of curvature: (feature, fit) and (fit,)."""
        return self.products(np.zeros((self.X.shape[1], len(self.columns))), np.ones(len(self.columns)))

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Hessians of the mean loss of some fits, in features centred and divided by ``scale``, intercept last.

        In the features ``columns`` of each alone, where given; all are multiplied.
        """
        n = len(scale)
        inverse = np.zeros(self.shards.x.shape[-1], self.dtype)
        inverse[: n + 1] = np.append(1 / scale, 1)
        found = []
        for start in range(0, len(fits), _HESSIANS):
            at = self.columns[fits[start : start + _HESSIANS]]
            some = _hessians(self.observation, self.shards, self.eta_there, _fill(at, _HESSIANS), inverse)
            found += list(np.asarray(some, np.float64)[: len(at), : n + 1, : n + 1])
        if columns is None:
            return found
        columns = [np.append(some, n) for some in columns]
        return [matrix[np.ix_(some, some)] for matrix, some in zip(found, columns, strict=True)]

    def part(self, index: np.ndarray) -> DeviceRows:
        """Return some of the fits, where they are, as rows of their own."""
        part = super().part(index)
        part.columns = self.columns[index]
        part.eta_there = jnp.copy(self.eta_there)  # steps write over it
        return part


def _up(n: int, whole: int = _ALIGNED) -> int:
    """Return a number, filled up to a multiple."""
    return -(-n // whole) * whole


def _fill(index: np.ndarray, size: int) -> np.ndarray:
    """Fill an index up by its first."""
    return np.append(index, np.full(size - len(index), index[0])).astype(np.int32)


@partial(jit, static_argnums=0)
def _along(observation, rows: Shards, eta, p):
    D = rows.predict(p)
    return D, rows.mean(D * D * rows.derivatives(observation, eta)[1]), rows.reach(D)


@partial(jit, static_argnums=0, donate_argnums=2)
def _move(observation, rows: Shards, eta, D, step):
    eta = eta + D * step[None, None]
    return eta, rows.gather(rows.derivatives(observation, eta)[0])


@partial(jit, static_argnums=0)
def _products(observation, rows: Shards, eta, p):
    return rows.gather(rows.predict(p) * rows.derivatives(observation, eta)[1])


@partial(jit, static_argnums=0)
def _hessians(observation, rows: Shards, eta, at, inverse):
    c = rows.of(at).derivatives(observation, eta[..., at])[1]

    def of_one(k):
        root = jnp.sqrt(c[..., k])[..., None] * inverse[None, None] * rows.x
        return jnp.einsum("btl,btm->lm", root, root) * rows.share

    return jax.lax.map(of_one, jnp.arange(len(at)))
