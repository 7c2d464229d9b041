"""Rows of a softmax model on the device, dense or sparse: scores of some classes, and updates of them.

Weights live in one array ``V`` (class, column): the class's coefficients, and last its intercept if there is one, all
divided by a scale of the column. The scales let a ridge shrink all classes' coefficients at the cost of one row; that
of the intercept stays 1. Scores are computed at given scales; updates of weights are ``amount * row`` over scales.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

_TILE = 2048  # changes that are compared with one another at a time
_UNROLLED = 8  # classes, up to which reading their weights one by one is faster than by a list (measured)
_SEGMENT_COST = 60  # a segment's overhead in a step on a CPU, in nonzeros
ALL = slice(None)  # classes


def spread(of_columns, like):
    """Broadcast numbers of the columns, (column,), to every row of an array (..., column)."""
    return jnp.broadcast_to(of_columns, like.shape)


def add_all(array, place, change):
    """Add changes (change, ...) to an array, (place, ...); places may repeat; results are reproducible bit by bit."""
    if not len(place):
        return array
    return jax.lax.platform_dependent(array, place, change, cpu=one_by_one, default=summed_first)


def one_by_one(array, place, change):
    """Add all changes in turn: repeated places wait for one another."""
    return array.at[place].add(change, mode="promise_in_bounds")


def summed_first(array, place, change):
    """Add all changes, those of one place summed first: a GPU adds to a place in arbitrary order."""
    n, (size, *shape) = min(len(place), _TILE), array.shape
    missing = -len(place) % n
    place = jnp.concatenate([place, jnp.full(missing, size, place.dtype)]).reshape(-1, n)
    change = jnp.pad(change.reshape(len(change), -1), ((0, missing), (0, 0))).reshape(*place.shape, -1)

    def add(k, array):
        same = place[k][:, None] == place[k][None]
        total = (same.astype(change.dtype) @ change[k]).reshape(n, *shape)
        index = jnp.arange(n)
        first = (jnp.argmax(same, axis=1) == index) & (place[k] < size)  # of equal ones; padding is dropped
        return array.at[jnp.where(first, place[k], size + index)].add(total, mode="drop", unique_indices=True)

    return add(0, array) if len(place) == 1 else jax.lax.fori_loop(0, len(place), add, array)


def two_lists(V, shared, own, push, pull, x):
    """Add rows x to the classes that they share, by ``push`` (row, shared), then to one of their own, by ``pull``."""
    V = V.at[shared].add(push.T @ x, mode="promise_in_bounds", unique_indices=True)
    return add_all(V, own, pull * x)


def one_list(V, shared, own, push, pull, x):
    """Do the same with one product and one list of distinct classes: four kernels of a GPU instead of seven."""
    m, n = len(shared), len(own)
    classes, index = jnp.concatenate([shared, own]), jnp.arange(m + n)
    place = jnp.argmax(own[:, None] == classes[None], axis=1)[:, None]  # the first of equal ones
    total = (jnp.pad(push, ((0, 0), (0, n))) + jnp.where(place == index[None], pull, 0)).T @ x
    first = jnp.concatenate([jnp.ones(m, bool), place[:, 0] == index[m:]])
    return V.at[jnp.where(first, classes, len(V) + index)].add(total, mode="drop", unique_indices=True)


class DenseRows(NamedTuple):
    """Features as a matrix."""

    x: jax.Array  # (row, column), last a column of ones if there is an intercept
    mobility: jax.Array | None  # how far an implicit step along a row moves its scores, (row,); see `measured`

    def measured(self, shrink):
        """Return rows with their mobility for steps that divide the columns by ``shrink``, (column,)."""
        return self._replace(mobility=jnp.sum(self.x**2 / spread(shrink, self.x), axis=1))

    def _times(self, i, scale):
        """Row, or rows, with their columns multiplied."""
        x = self.x[i]
        return x * spread(scale, x)

    def in_order(self, visits):
        """Rows laid out as they will be visited, and the number of each: memory is then read in sequence."""
        mobility = None if self.mobility is None else self.mobility[visits]
        return DenseRows(self.x[visits], mobility), jnp.arange(len(visits))

    def score(self, V, i, classes, scale):
        """Scores of some classes at row i, (class,)."""
        x = self._times(i, scale)
        if len(classes) > _UNROLLED:
            return V[classes] @ x
        # Read a number of each class first: they then come from memory together instead of one after another.
        ahead = sum(V[k, 0] for k in classes)
        return jnp.stack([jax.lax.dynamic_index_in_dim(V, k, keepdims=False) for k in classes]) @ (x + 0 * ahead)

    def scores(self, V, i, classes, scale):
        """Scores of several rows at classes of their own, or all, (row, class)."""
        if classes is ALL:
            return self._times(i, scale) @ V.T
        return jax.vmap(self.score, (None, 0, 0, None))(V, i, classes, scale)

    def add(self, V, i, classes, amount, scale):
        """Add row i to some classes, distinct ones; or several rows, whose classes (row, class) may be the same."""
        x = self._times(i, 1 / scale)
        if classes is ALL:
            return V + amount.T @ x
        change = amount[..., None] * x[..., None, :]
        if jnp.ndim(i):
            return add_all(V, classes.reshape(-1), change.reshape(-1, V.shape[1]))
        return V.at[classes].add(change, mode="promise_in_bounds", unique_indices=True)

    def scores_shared(self, V, i, classes, scale):
        """Scores of several rows at classes, (row, class), all but the last of which they share."""
        x = self._times(i, scale)
        return jnp.column_stack([x @ V[classes[0, :-1]].T, jnp.sum(x * V[classes[:, -1]], axis=1)])

    def add_shared(self, V, i, classes, amount, scale):
        """Add several rows to such classes; those that they share are distinct."""
        given = V, classes[0, :-1], classes[:, -1], amount[:, :-1], amount[:, -1:], self._times(i, 1 / scale)
        every = one_list if len(amount) <= _TILE else two_lists
        return jax.lax.platform_dependent(*given, cpu=two_lists, default=every)

    def gather(self, i, n_columns):
        """Features of several rows, (row, column)."""
        return self.x[i]


class SparseRows(NamedTuple):
    """Features as consecutive segments of nonzeros, padded with zeros, with the methods of dense rows, row by row."""

    column: jax.Array  # (segment, nonzero)
    value: jax.Array  # (segment, nonzero)
    first: jax.Array  # first segment of a row, (row,)
    count: jax.Array  # segments of a row, (row,)
    mobility: jax.Array | None  # how far an implicit step along a row moves its scores, (row,); see `measured`

    def measured(self, shrink):
        """Return rows with their mobility for steps that divide the columns by ``shrink``, (column,)."""
        of_segments = jnp.sum(self.value**2 / shrink[self.column], axis=1)
        row = jnp.repeat(jnp.arange(len(self.count)), self.count, total_repeat_length=len(of_segments))
        return self._replace(mobility=add_all(jnp.zeros(len(self.count), self.value.dtype), row, of_segments))

    def _over(self, i, scale, update, start):
        """Let every segment of a row, its columns and scaled values, update something."""

        def step(s, state):
            column = jax.lax.dynamic_index_in_dim(self.column, s, keepdims=False)
            value = jax.lax.dynamic_index_in_dim(self.value, s, keepdims=False)
            return update(state, column, value * scale[column])

        return jax.lax.fori_loop(self.first[i], self.first[i] + self.count[i], step, start)

    def in_order(self, visits):
        """Rows that will be visited, and the number of each: segments stay where they are."""
        return self, visits

    def score(self, V, i, classes, scale):
        """Scores of some classes at row i, (class,)."""

        def update(total, column, value):
            return total + V[_entries(classes, column)] @ value

        return self._over(i, scale, update, jnp.zeros_like(V[classes, 0]))

    def scores(self, V, i, classes, scale):
        """Scores of several rows at classes of their own, or all, (row, class)."""
        if classes is ALL:
            return jax.lax.map(lambda row: self.score(V, row, ALL, scale), i)
        return jax.lax.map(lambda row: self.score(V, *row, scale), (i, classes))

    def add(self, V, i, classes, amount, scale):
        """Add row i to some classes, distinct ones; or several rows, whose classes (row, class) may be the same."""
        if jnp.ndim(i):

            def one(j, V):
                return self.add(V, i[j], classes if classes is ALL else classes[j], amount[j], scale)

            return jax.lax.fori_loop(0, len(i), one, V)

        def update(V, column, value):
            return V.at[_entries(classes, column)].add(amount[:, None] * value[None], mode="promise_in_bounds")

        return self._over(i, 1 / scale, update, V)

    scores_shared, add_shared = scores, add

    def gather(self, i, n_columns):
        """Features of several rows, (row, column): scratch memory of the minibatch only."""
        one = jnp.ones(n_columns, self.value.dtype)

        def add(x, column, value):
            return x.at[column].add(value)

        return jax.lax.map(lambda row: self._over(row, one, add, jnp.zeros_like(one)), i)


def _entries(classes, column):
    """Index of some columns of some classes, or of all."""
    return (classes, column) if classes is ALL else (classes[:, None], column[None])


class ClassData(NamedTuple):
    """Data of a softmax model on the device: pairs of rows and the classes that were seen in them."""

    rows: Any  # features: DenseRows or SparseRows
    label: jax.Array  # class of each pair, (pair,)
    row: jax.Array  # row of each pair, (pair,)
    weight: jax.Array  # of each pair, (pair,)
    auxiliary: jax.Array  # which auxiliary variable belongs to each pair, (pair,): its own, or that of its row
    offset: jax.Array | None  # of the scores, (row, class)
    first: jax.Array  # first pair of each row, and the end, (row + 1,)
    total: jax.Array  # weight of all pairs of each row, (row,)

    def n_seen(self, i):
        """Return the number of classes with counts in row i, or rows."""
        return self.first[i + 1] - self.first[i]


def row_products(a, b) -> np.ndarray:
    """Inner products of the rows of two matrices on the host, the first perhaps sparse, (row,), float64."""
    if scipy.sparse.issparse(a):
        return np.asarray(a.multiply(b).sum(axis=1), np.float64).ravel()
    return np.einsum("ij,ij->i", a, b, dtype=np.float64)


def dense_rows(X: np.ndarray, intercept: bool, dtype) -> DenseRows:
    """Lay out a matrix of features."""
    x = np.ones((X.shape[0], X.shape[1] + intercept), dtype)
    x[:, : X.shape[1]] = X
    return DenseRows(jax.device_put(x), None)


def sparse_rows(X: scipy.sparse.csr_array, intercept: bool, dtype) -> SparseRows:
    """Lay out a sparse matrix of features, at the cost of its nonzeros."""
    d = X.shape[1]
    nonzeros = np.diff(X.indptr) + intercept
    # Nonzeros per segment that make a pass over the rows cheapest, padding and overhead counted.
    widths = np.unique(np.minimum(16 * np.arange(1, 33), max(1, int(nonzeros.max(initial=1)))))
    width = int(widths[np.argmin([np.sum(-(-nonzeros // w)) * (w + _SEGMENT_COST) for w in widths])])
    count = np.maximum(-(-nonzeros // width), 0)
    first = np.concatenate([[0], np.cumsum(count)[:-1]]).astype(np.int32)
    column = np.zeros(int(count.sum()) * width, np.int32)
    value = np.zeros(column.shape, dtype)
    start = first * width  # where a row's nonzeros begin in the flat arrays
    place = np.repeat(start - X.indptr[:-1], np.diff(X.indptr)) + np.arange(X.nnz)
    column[place], value[place] = X.indices, X.data
    if intercept:
        last = start + np.diff(X.indptr)
        column[last], value[last] = d, 1
    shape = (-1, width)
    arrays = column.reshape(shape), value.reshape(shape), first, count.astype(np.int32)
    return SparseRows(*map(jax.device_put, arrays), None)
