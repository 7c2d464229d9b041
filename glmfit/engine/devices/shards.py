"""Rows on jax devices, and how they are split among devices.

The rows contain a one for the intercept, so that a pass needs only one product.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from ...compilation import is_forked, refuse_fork
from ..host import HostRows
from ..tiles import ROWS_OF_A_TILE, over_tiles

ALIGNED = 16  # columns and fits are padded to a multiple of this: products on GPUs come in tiles
PADDED = 32  # columns of small arrays: otherwise XLA pads them in every product
_BLOCK = 1024  # rows whose terms are added up one after the other; sums of blocks then lose little in single precision
_FEW_BLOCKS = 8  # whose size is chosen for the rows, to avoid too much padding
_PIECES = 16  # most arrays in which features are sent
_NUMBERS = 1 << 20  # that a thread copies at a time
_LEAST_WORK = 1e8  # rows times features times fits: below it, the host finishes before a GPU's programs are compiled


class Shards(NamedTuple):
    """Rows on the devices: whole blocks on each, (block, row, ...)."""

    x: jax.Array  # (block, row, column), features centred, then 1; 0 where no fit has weight
    y: jax.Array  # (block, row, neuron), integers of 8 or 16 bits if they hold the counts
    weight: jax.Array  # (block, row, 1 or set), 0 on padding rows
    neuron: jax.Array | None  # (fit,) index into y; None: each its own
    which: jax.Array | None  # (fit,) index into weight; None: all have one set
    share: jax.Array  # one over the number of rows

    def of(self, at) -> Self:
        """Return the rows of some fits."""
        neuron = at if self.neuron is None else self.neuron[at]
        return self._replace(neuron=neuron, which=None if self.which is None else self.which[at])

    def weights(self) -> jax.Array:
        """Weights of the fits, (block, row, 1 or fit)."""
        return self.weight if self.which is None else self.weight[..., self.which]

    def derivatives(self, observation, eta) -> tuple[jax.Array, jax.Array]:
        """First and second derivative of the loss times weights; rows without weight may hold anything."""
        y, w = self.y if self.neuron is None else self.y[..., self.neuron], self.weights()
        r, c = observation.derivatives(y.astype(eta.dtype), eta)
        most = float(jnp.finfo(eta.dtype).max)  # times 0 this is 0, unlike infinity
        return jnp.clip(r, -most, most) * w, jnp.minimum(c, most) * w

    def predict(self, columns) -> jax.Array:
        """Predictors, (block, row, fit)."""
        return jnp.einsum("btm,mn->btn", self.x, columns[: self.x.shape[-1]])

    def gather(self, r) -> jax.Array:
        """Mean over the rows of ``r`` (block, row, fit) times columns, (column, fit)."""
        sums = jnp.einsum("btm,btn->bmn", self.x, r).sum(axis=0)
        return jnp.pad(sums, ((0, -len(sums) % PADDED), (0, 0))) * self.share

    def mean(self, values) -> jax.Array:
        """Mean over the rows, (fit,)."""
        return values.sum(axis=1).sum(axis=0) * self.share

    def reach(self, D) -> jax.Array:
        """Largest ``|D|`` of each fit over the rows that count, (fit,)."""
        return jnp.where(self.weights() > 0, jnp.abs(D), 0).max(axis=(0, 1))


class Layout:
    """Split of rows among devices, in one of few sizes: programs are compiled for every new size."""

    def __init__(self, devices: Sequence[jax.Device], n_rows: int, dtype):
        refuse_fork()
        self.dtype, self.n_rows = jax.dtypes.canonicalize_dtype(dtype), n_rows
        share, tall = -(-n_rows // len(devices)), max(_BLOCK, 1 << (math.isqrt(n_rows) - 1).bit_length())
        blocks = _rounded(-(-share // tall))
        size = tall if blocks > _FEW_BLOCKS else filled_up(_rounded(-(-share // blocks)))
        self.devices, self.shape = tuple(devices), (len(devices) * blocks, size)
        mesh = jax.sharding.Mesh(np.array(devices), ("row",))
        self.sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("row"))
        self._x: jax.Array | None = None

    def put(self, array: np.ndarray, width: int | None = None, at=None, dtype=None) -> jax.Array:
        """Lay out a copy of an array (row, ...), padded with zeros; its columns come first, or at ``at``."""
        columns = slice(array.shape[1]) if at is None else at

        def fill(whole, rows):
            whole[rows, columns] = array[rows]

        return self._lay(self._filled(array.shape[1] if width is None else width, dtype, fill)[0])

    def _filled(self, width: int, dtype, fill: Callable[[np.ndarray, slice], Any]) -> tuple[np.ndarray, bool]:
        """Fill zeros (row, width), tile by tile, up to where ``fill(whole, rows)`` is False; return whether none is."""
        whole = np.zeros((math.prod(self.shape), width), self.dtype if dtype is None else dtype)
        size = max(ROWS_OF_A_TILE, _NUMBERS // width)
        return whole, not any(found is False for found in over_tiles(partial(fill, whole), self.n_rows, size))

    def pieces(self, X: np.ndarray) -> tuple[jax.Array, ...]:
        """Lay out features as few arrays of whole blocks: on one device, rows that fill theirs are not copied first."""
        (n_blocks, size), d = self.shape, X.shape[1]
        if len(self.devices) > 1 or not X.flags.c_contiguous:
            return (self.put(X, dtype=X.dtype),)

        def blocks(first: int, last: int) -> np.ndarray:
            part = X[first * size : last * size]
            if len(part) < (last - first) * size:
                part = np.concatenate([part, np.zeros(((last - first) * size - len(part), d), X.dtype)])
            return part.reshape(-1, size, d)

        step = -(-n_blocks // _PIECES)
        parts = [blocks(first, min(first + step, n_blocks)) for first in range(0, n_blocks, step)]
        return tuple(jax.device_put(parts, self.devices[0]))

    def put_counts(self, Y: np.ndarray, neurons: np.ndarray, width: int | None = None, dtype=None) -> jax.Array:
        """Lay out the responses of some neurons, in the smallest integers that hold counts; others in ``dtype``."""
        width, every = len(neurons) if width is None else width, np.array_equal(neurons, np.arange(Y.shape[1]))

        def fill(whole, rows):
            y, into = Y[rows] if every else Y[rows][:, neurons], whole[rows, : len(neurons)]
            np.copyto(into, y, casting="unsafe")
            return whole.dtype.kind == "f" or np.array_equal(into, y)  # what no integers hold may be rounded

        for kind in (np.uint8, np.uint16, dtype):
            whole, fits = self._filled(width, kind, fill)
            if fits:
                break
        return self._lay(whole)

    def everywhere(self, array: np.ndarray) -> jax.Array:
        """Put a copy on every device."""
        whole = jax.sharding.NamedSharding(self.sharding.mesh, jax.sharding.PartitionSpec())
        if self.sharding.is_fully_addressable:
            return jax.device_put(array, whole)
        return jax.make_array_from_callback(array.shape, whole, lambda index: array[index])

    def _lay(self, whole: np.ndarray) -> jax.Array:
        whole = whole.reshape(*self.shape, -1)
        if self.sharding.is_fully_addressable:
            return jax.device_put(whole, self.sharding)
        # Several hosts: each has all rows and puts those of its own devices there.
        return jax.make_array_from_callback(whole.shape, self.sharding, lambda index: whole[index])

    def features(self, rows: HostRows) -> jax.Array:
        """Centred features, then 1: one copy serves all groups of fits."""
        if self._x is None:
            n = rows.X.shape[1]

            def fill(whole, piece):
                counts = 1.0 if rows.weights is None else (rows.weights[piece] > 0).any(axis=1, keepdims=True)
                whole[piece, :n] = np.where(counts, rows.X[piece] - rows.mean, 0)
                whole[piece, n] = np.ravel(counts)

            self._x = self._lay(self._filled(filled_up(n + 1), None, fill)[0])
        return self._x


def layout_of(problem) -> Layout | None:
    """Return where to put a problem's rows: on devices if it names some, or on a GPU if it is worthwhile."""
    work = problem.n_rows * problem.n_features * problem.n_neurons
    devices = problem.devices or devices_for(work)
    return Layout(devices, problem.n_rows, problem.dtype) if devices and problem.in_memory else None


def devices_for(work: float) -> tuple[jax.Device, ...]:
    """Return jax's default device if it is a GPU and rows times features times fits are worth its programs, or none."""
    worthwhile = work > _LEAST_WORK and not is_forked() and jax.default_backend() != "cpu"
    return tuple(jax.device_put(np.zeros(())).devices()) if worthwhile else ()


def _rounded(n: int) -> int:
    """Round up by less than an eighth, to one of eight numbers above a power of two, up to the next."""
    step = 1 << max(0, (n - 1).bit_length() - 4)
    return filled_up(n, step)


def filled_up(n: int, whole: int = ALIGNED) -> int:
    """Round a number up to a multiple."""
    return -(-n // whole) * whole
