"""Rows of a softmax model on the device, dense or sparse, and the two things a sampling solver does with one row.

Weights live in one array ``V`` (class, column): the class's coefficients divided by a global scale, and last its
intercept, undivided, if there is one. The scale lets a ridge shrink all coefficients at the cost of one product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse

_UNROLLED = 8  # classes, up to which reading their weights one by one is faster than by a list (measured)
_SEGMENT_COST = 60  # a segment's overhead in a step on a CPU, in nonzeros


class DenseRows(NamedTuple):
    """Features as a matrix.

    Attributes
    ----------
    x : jax.Array
        (row, column), last a column of ones if there is an intercept.
    penalised : jax.Array
        (column,): 1, but 0 for the intercept.
    norm : jax.Array
        Squared norm of the row's penalised part, (row,).
    """

    x: jax.Array
    penalised: jax.Array
    norm: jax.Array

    @property
    def free(self):
        """1 if there is an intercept, else 0: what an unpenalised column adds to the mobility."""
        return 1 - self.penalised[-1]

    def _scaled(self, i, scale):
        """Row, or rows, with their penalised columns multiplied."""
        x = self.x[i]
        return x * jnp.broadcast_to(jnp.where(self.penalised > 0, scale, jnp.ones_like(scale)), x.shape)

    def in_order(self, visits):
        """Rows laid out as they will be visited, and the number of each: memory is then read in sequence."""
        return self._replace(x=self.x[visits], norm=self.norm[visits]), jnp.arange(len(visits))

    def score(self, V, i, classes, scale):
        """Scores of some classes at row i, (class,)."""
        x = self._scaled(i, scale)
        if len(classes) > _UNROLLED:
            return V[classes] @ x
        # A number of each class first, all at once: they then come from memory together instead of one after another.
        ahead = sum(V[k, 0] for k in classes)
        return jnp.stack([jax.lax.dynamic_index_in_dim(V, k, keepdims=False) for k in classes]) @ (x + 0 * ahead)

    def add(self, V, i, classes, amount, scale):
        """Add ``amount * row`` to some classes, distinct ones, whose coefficients are stored divided by the scale."""
        change = amount[:, None] * self._scaled(i, 1 / scale)[None]
        return V.at[classes].add(change, mode="promise_in_bounds", unique_indices=True)

    def add_many(self, V, i, classes, amount, scale):
        """Add for several rows, classes and amounts (row, class); classes may repeat between rows."""
        change = amount[:, :, None] * self._scaled(i, 1 / scale)[:, None]
        return V.at[classes].add(change, mode="promise_in_bounds")

    def scores_shared(self, V, i, shared, own, scale):
        """Scores of several rows at shared classes, (row, class), and at one of their own, (row,)."""
        x = self._scaled(i, scale)
        return x @ V[shared].T, jnp.sum(x * V[own], axis=1)

    def add_shared(self, V, i, shared, own, amount, amount_own, scale):
        """Add for several rows to shared classes, distinct ones, and to one of their own each."""
        x = self._scaled(i, 1 / scale)
        V = V.at[shared].add(amount.T @ x, mode="promise_in_bounds", unique_indices=True)
        return V.at[own].add(amount_own[:, None] * x, mode="promise_in_bounds")

    def score_all(self, V, i, scale):
        """Scores of every class at several rows, (row, class)."""
        return self._scaled(i, scale) @ V.T

    def add_all(self, V, i, amount, scale):
        """Add several rows to every class, amounts (row, class)."""
        return V + amount.T @ self._scaled(i, 1 / scale)

    def gather(self, i):
        """Features of several rows, (row, column)."""
        return self.x[i]


class SparseRows(NamedTuple):
    """Features as segments of nonzeros: a row is one or more consecutive segments, padded with zeros.

    Attributes
    ----------
    column, value : jax.Array
        (segment, nonzero).
    first, count : jax.Array
        First segment of a row and their number, (row,).
    intercept : jax.Array
        Number of the intercept's column, or -1.
    penalised : jax.Array
        (column,): 1, but 0 for the intercept.
    norm : jax.Array
        Squared norm of the row's penalised part, (row,).
    """

    column: jax.Array
    value: jax.Array
    first: jax.Array
    count: jax.Array
    intercept: jax.Array
    penalised: jax.Array
    norm: jax.Array

    @property
    def free(self):
        """1 if there is an intercept, else 0: what an unpenalised column adds to the mobility."""
        return (self.intercept >= 0).astype(self.value.dtype)

    def in_order(self, visits):
        """Rows that will be visited, and the number of each: segments stay where they are."""
        return self, visits

    def _segment(self, s, scale):
        column = jax.lax.dynamic_index_in_dim(self.column, s, keepdims=False)
        value = jax.lax.dynamic_index_in_dim(self.value, s, keepdims=False)
        return column, value * jnp.where(column == self.intercept, jnp.ones_like(scale), scale)

    def score(self, V, i, classes, scale):
        """Scores of some classes at row i, (class,)."""

        def add(s, total):
            column, value = self._segment(s, scale)
            return total + V[classes[:, None], column[None]] @ value

        first = self.first[i]
        return jax.lax.fori_loop(first, first + self.count[i], add, jnp.zeros(classes.shape, V.dtype))

    def add(self, V, i, classes, amount, scale):
        """Add ``amount * row`` to some classes, distinct ones, whose coefficients are stored divided by the scale."""

        def add(s, V):
            column, value = self._segment(s, 1 / scale)
            return V.at[classes[:, None], column[None]].add(amount[:, None] * value[None], mode="promise_in_bounds")

        first = self.first[i]
        return jax.lax.fori_loop(first, first + self.count[i], add, V)

    def add_many(self, V, i, classes, amount, scale):
        """Add for several rows, classes and amounts (row, class); classes may repeat between rows."""
        return jax.lax.fori_loop(0, i.shape[0], lambda j, V: self.add(V, i[j], classes[j], amount[j], scale), V)

    def scores_shared(self, V, i, shared, own, scale):
        """Scores of several rows at shared classes, (row, class), and at one of their own, (row,)."""

        def one(carry, drawn):
            i, own = drawn
            return carry, self.score(V, i, jnp.append(shared, own), scale)

        s = jax.lax.scan(one, None, (i, own))[1]
        return s[:, :-1], s[:, -1]

    def add_shared(self, V, i, shared, own, amount, amount_own, scale):
        """Add for several rows to shared classes, distinct ones, and to one of their own each."""

        def one(j, V):
            return self.add(V, i[j], jnp.append(shared, own[j]), jnp.append(amount[j], amount_own[j]), scale)

        return jax.lax.fori_loop(0, i.shape[0], one, V)

    def score_all(self, V, i, scale):
        """Scores of every class at several rows, (row, class)."""

        def one(carry, i):
            def add(s, total):
                column, value = self._segment(s, scale)
                return total + V[:, column] @ value

            first, zero = self.first[i], jnp.zeros(V.shape[0], V.dtype)
            return carry, jax.lax.fori_loop(first, first + self.count[i], add, zero)

        return jax.lax.scan(one, None, i)[1]

    def add_all(self, V, i, amount, scale):
        """Add several rows to every class, amounts (row, class)."""

        def one(j, V):
            def add(s, V):
                column, value = self._segment(s, 1 / scale)
                return V.at[:, column].add(amount[j][:, None] * value[None], mode="promise_in_bounds")

            first = self.first[i[j]]
            return jax.lax.fori_loop(first, first + self.count[i[j]], add, V)

        return jax.lax.fori_loop(0, i.shape[0], one, V)

    def gather(self, i):
        """Features of several rows, (row, column): a scratch of the minibatch, never more."""

        def one(carry, i):
            row = jnp.zeros(self.penalised.shape, self.value.dtype)

            def add(s, row):
                column, value = self._segment(s, jnp.ones((), row.dtype))
                return row.at[column].add(value)

            return carry, jax.lax.fori_loop(self.first[i], self.first[i] + self.count[i], add, row)

        return jax.lax.scan(one, None, i)[1]


class ClassData(NamedTuple):
    """Data of a softmax model on the device: labelled pairs of rows and classes.

    A row with one label is one pair; a row of counts is one pair per class that was seen.

    Attributes
    ----------
    rows : DenseRows or SparseRows
        Features.
    label : jax.Array
        Class of each pair, (pair,).
    row : jax.Array
        Row of each pair, (pair,).
    weight : jax.Array
        Weight of each pair, (pair,).
    auxiliary : jax.Array
        Which auxiliary variable belongs to each pair, (pair,): its own, or that of its row.
    offset : jax.Array or None
        Offsets of the scores, (row, class).
    """

    rows: Any
    label: jax.Array
    row: jax.Array
    weight: jax.Array
    auxiliary: jax.Array
    offset: jax.Array | None


class CountRows(NamedTuple):
    """Where a row's counts are among the pairs.

    Attributes
    ----------
    first, size : jax.Array
        First pair of a row and their number, (row,).
    total : jax.Array
        Sum of their weights, (row,).
    """

    first: jax.Array
    size: jax.Array
    total: jax.Array


def dense_rows(X: np.ndarray, intercept: bool, dtype) -> DenseRows:
    """Lay out a matrix of features."""
    x = np.ones((X.shape[0], X.shape[1] + intercept), dtype)
    x[:, : X.shape[1]] = X
    penalised = np.ones(x.shape[1], dtype)
    penalised[X.shape[1] :] = 0
    norm = np.einsum("td,td->t", X, X, dtype=np.float64).astype(dtype)
    return DenseRows(*map(jax.device_put, (x, penalised, norm)))


def sparse_rows(X: scipy.sparse.csr_array, intercept: bool, dtype) -> SparseRows:
    """Lay out a sparse matrix of features; costs its nonzeros."""
    d = X.shape[1]
    norm = np.asarray(X.multiply(X).sum(axis=1), dtype=np.float64).ravel().astype(dtype)
    nonzeros = np.diff(X.indptr) + intercept
    width = _width(nonzeros)
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
    penalised = np.ones(d + intercept, dtype)
    penalised[d:] = 0
    return SparseRows(*map(jax.device_put, (*arrays, np.int32(d if intercept else -1), penalised, norm)))


def _width(nonzeros: np.ndarray) -> int:
    """Nonzeros per segment that make a pass over the rows cheapest, padding and overhead counted."""
    longest = max(1, int(nonzeros.max(initial=1)))
    widths = np.unique(np.minimum(16 * np.arange(1, 33), longest))
    cost = [np.sum(-(-nonzeros // width)) * (width + _SEGMENT_COST) for width in widths]
    return int(widths[np.argmin(cost)])
