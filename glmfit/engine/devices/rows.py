"""Rows on jax devices, one GPU or several: the passes that guide steps; those that results rest on stay on the host.

Small arrays are laid out as columns there, (column, fit): the features, the intercept, and padding zeros.
"""

from functools import partial
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np

from ...compilation import jit
from ..host import HostRows
from ..tiles import ALL
from .shards import PADDED, Layout, Shards, filled_up

_HESSIANS = 8  # made by one call


class DeviceRows(HostRows):
    """Rows of independent fits on devices; the methods are those of :class:`HostRows`.

    The devices keep features, counts, weights, eta and at times a direction. Fits that leave are dropped on the host
    only: programs are compiled for one number of fits, and results of dropped fits are ignored. The host evaluates, and
    eta on the devices follows.
    """

    selects = False

    def __init__(self, layout: Layout, **given):
        super().__init__(**given | {"dtype": layout.dtype})
        self.layout = layout
        self.columns = np.arange(len(self.neuron))  # the column of each fit on the devices
        self.width = filled_up(len(self.neuron))
        self.n_columns = filled_up(self.X.shape[1] + 1, PADDED)
        neurons, neuron = np.unique(self.neuron, return_inverse=True)
        each = np.array_equal(neuron, self.columns)
        weight, which = np.ones((self.n_rows, 1)) if self.weights is None else self.weights, self.rows
        if self.own is not None:  # of every fit
            weight, which = self._weight(ALL, ALL), self.columns
        self.shards = Shards(
            x=layout.features(self),
            y=layout.put_counts(self.Y, neurons, self.width if each else None),
            weight=layout.put(weight),
            neuron=None if each else layout.everywhere(_fill(neuron, self.width)),
            which=None if which is None else layout.everywhere(_fill(which, self.width)),
            share=layout.everywhere(np.asarray(1 / self.n_rows, self.dtype)),
        )

    # ---------------------------------------------------------------- small arrays, there and back

    def spread(self, values: np.ndarray, dtype=None) -> np.ndarray:
        """Put values of each fit, (..., fit), into its column on the devices."""
        out = np.zeros((*values.shape[:-1], self.width), self.dtype if dtype is None else dtype)
        out[..., self.columns] = values
        return out

    def stack(self, values) -> np.ndarray:
        """Lay out slopes, parameters or values of features as columns, (column, fit) of all fits there."""
        out = np.zeros((self.n_columns, self.width), self.dtype)
        out[: len(values)] = self.spread(values)
        return out

    def unstack(self, columns) -> np.ndarray:
        """Slopes or parameters of the fits, float64."""
        return np.asarray(columns, np.float64)[: self.X.shape[1] + 1, self.columns]

    # ---------------------------------------------------------------- passes that guide steps

    def _follow(self) -> None:
        """Copy eta from the host, rounded as it is there."""
        self.eta_there = self.layout.put(self.eta, self.width, self.columns)

    def place(self, at) -> np.ndarray:
        """Set the parameters of all fits; return the gradient there."""
        slopes = super().place(at)
        self._follow()
        return slopes

    def evaluate(self, at, dual: bool = False):
        """Run :meth:`HostRows.evaluate`, and copy eta to the devices."""
        found = super().evaluate(at, dual)
        self._follow()
        return found

    def along(self, p) -> np.ndarray:
        """Keep the predictors of a direction; return the mean of curvature times their squares, (fit,)."""
        given = self.observation, self.shards, self.eta_there
        self._D, bend, self._reach = _along(*given, self.stack(p))
        self.passes += 0.5
        return np.asarray(bend, np.float64)[self.columns]

    def reach(self, at) -> np.ndarray:
        """Largest ``|D|`` of some fits over the rows that count, (fit,)."""
        return np.asarray(self._reach, np.float64)[self.columns][at]

    def move(self, step, at: np.ndarray | None = None) -> np.ndarray:
        """Go ``step`` (fit,) along the direction, and return the gradient there; of the fits ``at`` if given."""
        steps = np.zeros(len(self.columns))
        steps[slice(None) if at is None else at] = step
        self.eta_there, gradient = _move(self.observation, self.shards, self.eta_there, self._D, self.spread(steps))
        self.passes += 0.5
        slopes = self.unstack(gradient)
        return slopes if at is None else slopes[:, at]

    def products(self, p, at: np.ndarray | None = None, exact: bool = False) -> tuple[np.ndarray, np.ndarray]:
        """Hessians of the mean loss times a direction, and its reach; on the host for some fits, or if ``exact``."""
        if exact or at is not None:
            return super().products(p, at, exact)
        self.passes += 1
        found, reach = _products(self.observation, self.shards, self.eta_there, self.stack(p))
        return self.unstack(found), np.asarray(reach, np.float64)[self.columns]

    def centre(self) -> np.ndarray:
        """Means of curvature times centred features, then of curvature itself, (feature + 1, fit)."""
        return self.products(np.eye(self.X.shape[1] + 1)[:, -1:] * np.ones(len(self.columns)))[0]

    def hessians(self, fits, scale, columns=None) -> list[np.ndarray]:
        """Hessians of some fits; see :meth:`HostRows.hessians`. All columns are multiplied."""
        n = len(scale)
        inverse = np.zeros(self.shards.x.shape[-1], self.dtype)
        inverse[: n + 1] = np.append(1 / scale, 1)
        at = [self.columns[fits[start : start + _HESSIANS]] for start in range(0, len(fits), _HESSIANS)]
        given = self.observation, self.shards, self.eta_there
        made = [_hessians(*given, _fill(some, _HESSIANS), inverse) for some in at]
        found = [h[: n + 1, : n + 1].astype(np.float64) for some in jax.device_get(made) for h in some]
        if columns is None:
            return found[: len(fits)]
        columns = [np.append(some, n) for some in columns]
        return [h[np.ix_(some, some)] for h, some in zip(found, columns, strict=False)]

    def split(self, *indices: np.ndarray) -> list[Self]:
        """Return rows for the fits of each index array, with their parameters."""
        parts = super().split(*indices)
        for part, index in zip(parts, indices, strict=True):
            part.columns = self.columns[index]
            part.eta_there = jnp.copy(self.eta_there)  # steps overwrite it
        return parts


def _fill(index: np.ndarray, size: int) -> np.ndarray:
    """Pad an index array with its first entry."""
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
    D = rows.predict(p)
    return rows.gather(D * rows.derivatives(observation, eta)[1]), rows.reach(D)


@partial(jit, static_argnums=0)
def _hessians(observation, rows: Shards, eta, at, inverse):
    c = rows.of(at).derivatives(observation, eta[..., at])[1]

    def of_one(k):
        root = jnp.sqrt(c[..., k])[..., None] * inverse[None, None] * rows.x
        return jnp.einsum("btl,btm->lm", root, root) * rows.share

    return jax.lax.map(of_one, jnp.arange(len(at)))
