"""Kernels shared by all solvers that sample classes: draws, the layout of the state, and the steps themselves.

Every state array is read before it is added to, so that XLA writes it in place: no step copies weights.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ..compilation import jit
from .class_rows import ALL, add_all, spread
from .implicit import Batch, dual_ascent, jacobi_ascent, limits, newton_cg

_NONE = jnp.iinfo(jnp.int32).max  # no class
_NEWTON_STEPS = 30  # at least: Newton's method cut short gives no proximal step
_PASSED = 8  # draws that later ones pass in one sweep over them (measured)


def distinct_negatives(key, known, n_classes: int, m: int, n_known=1):
    """Draw m distinct classes, (..., m), other than those known, uniformly; if too few exist, numbers beyond them.

    ``known`` (..., known) increases, padded with the largest integer; ``n_known`` are real.
    """
    *shape, width = known.shape
    place = jnp.arange(m, dtype=jnp.int32)
    # Each draw is a place among the classes not yet taken; all are made at once, and moved past what was taken before.
    draw = partial(jax.random.randint, shape=tuple(shape), minval=0, dtype=jnp.int32)
    free = jax.vmap(lambda key, j: draw(key, maxval=n_classes - n_known - j))(jax.random.split(key, m), place)
    later = place.reshape(m, *([1] * len(shape)))

    def pass_by(i, new):
        """Move every later draw past draw j, both by their places among what is left when j is drawn."""
        j = m - 2 - i
        taken = jax.lax.dynamic_index_in_dim(free, j)
        return new + ((later > j) & (new >= taken))

    new = jnp.moveaxis(jax.lax.fori_loop(0, m - 1, pass_by, free, unroll=_PASSED), 0, -1)
    # In increasing order, the k-th class known is passed by what has passed k others and reaches it.
    reached = known - jnp.broadcast_to(jnp.arange(width, dtype=jnp.int32), known.shape)
    return new + jnp.sum(new[..., None] >= reached[..., None, :], axis=-1, dtype=jnp.int32)


class Weights(NamedTuple):
    """Parameters of a sampling solver."""

    V: jax.Array  # coefficients and intercepts over ``scale``, (class, column)
    u: jax.Array  # auxiliary variable of every pair (or row), of size 0 if there are none
    scale: jax.Array  # (column,)


class Span(NamedTuple):
    """Steps of an epoch to take and the numbers they need, none of which compiles anything again."""

    start: Any  # of those drawn, the first to take
    stop: Any
    c: Any  # step size times number of rows
    ridge: Any  # strength of every column, in the package's convention (mean over rows), (column,); 0 for the intercept
    log_a: Any  # logarithm of the weight of a negative
    limit: Any  # upper limit of auxiliary variables
    tau: Any = 0.0  # step of auxiliary variables, if it is not that of the coefficients


class Visit(NamedTuple):
    """Data and draws of one step, and its treatment of auxiliary variables."""

    data: Any
    span: Span
    solver: Any
    chosen: Any  # pairs, (row of the batch,), or rows of counts
    negatives: Any  # drawn for them
    read: Any  # scales at which scores are taken
    write: Any  # scales at which rows are added
    pairs: Any  # row, label, place of the auxiliary variable, and length of the step of each pair

    def pace(self, c):
        """Step of the auxiliary variables of rows whose step is c."""
        return c if self.solver.auxiliary_step is None else jnp.full_like(c, self.span.tau)

    def log_weights(self, n_classes: int):
        """Logarithms of the weights of some negatives and last the label, (class,)."""
        log_a = jnp.full(n_classes, self.span.log_a, self.data.weight.dtype)
        return jnp.where(jnp.arange(n_classes) < n_classes - 1, log_a, 0)

    def mobility(self, i):
        """How far an implicit step along a row moves its scores."""
        return self.data.rows.mobility[i] if self.solver.implicit else jnp.zeros(jnp.shape(i), self.data.weight.dtype)

    def offset(self, score, i, classes):
        """Scores of several rows with their offsets."""
        offset = self.data.offset
        if offset is None:
            return score
        return score + (offset[i] if classes is ALL else offset[i[:, None], classes])

    def auxiliary(self, u, k):
        """Auxiliary variables, or zeros if the method has none."""
        return u[k] if self.solver.auxiliary else jnp.zeros(k.shape, self.data.weight.dtype)

    def moved(self, u, k, old, step, n=1):
        """Auxiliary variables after a step: raises apply in full; the rest is averaged over n rows."""
        if not self.solver.auxiliary:
            return u
        new = jnp.minimum(step.u, self.span.limit)
        if jnp.ndim(k) and self.solver.per_row:
            # Pairs of a row share a variable: it is raised to the most that any of them proves.
            return add_all(u.at[k].max(step.raised), k, (new - step.raised) / n)
        return u.at[k].add(new - old if n == 1 else step.raised - old + (new - step.raised) / n, unique_indices=True)


def shrink_of(span: Span, solver):
    """Return the divisor of the scales in one step, (column,)."""
    change = span.c * span.ridge
    return 1 + change if solver.implicit else 1 / (1 - change)


@partial(jit, static_argnames="solver")
def measure(data, span: Span, solver):
    """Lay out what steps of the span's length require of every row."""
    return data._replace(rows=data.rows.measured(shrink_of(span, solver))) if solver.implicit else data


@partial(jit, static_argnames=("visit", "solver", "n_steps"), donate_argnames="weights")
def take_steps(data, weights: Weights, order, negatives, span: Span, visit, solver, n_steps=None) -> Weights:
    """Take the steps of a span, each by ``visit``, on a batch of ``order``, (step, row), and its ``negatives``.

    If given, ``n_steps`` replaces the span's limits; a GPU need not ask the host after each step whether to continue.
    """
    # The ridge shrinks all coefficients in every step, by the scales. An implicit step starts from weights already
    # shrunk; an explicit one uses the old ones throughout.
    shrink = shrink_of(span, solver)
    known = n_steps is not None  # then a scale follows from the number of its step, and is not carried
    first, last = (0, n_steps) if known else (span.start, span.stop)
    pairs = pairs_of(data, span, order) if known and visit is not counts else None  # for all steps by one kernel each

    def scale_at(t):
        return weights.scale / shrink ** jnp.asarray(t, shrink.dtype)

    def step(t, carry):
        V, u, *carried = carry
        # Two calls: of one, XLA makes a program that rounds differently from that of carried scales.
        scale, shrunk = (scale_at(t), scale_at(t) / shrink) if known else (carried[0], carried[0] / shrink)
        chosen, drawn, own = jax.tree.map(lambda of_steps: of_steps[t], (order, negatives, pairs))
        chosen = t if order is None else chosen
        own = pairs_of(data, span, chosen) if own is None else own
        scales = (shrunk, scale) if solver.implicit else (scale, shrunk)
        V, u = visit(Visit(data, span, solver, chosen, drawn, *scales, own), V, u)
        return (V, u) if known else (V, u, shrunk)

    end = jax.lax.fori_loop(first, last, step, weights[: 2 if known else 3])
    return Weights(*end, scale_at(n_steps)) if known else Weights(*end)


def pairs_of(data, span: Span, at):
    """Look up the pairs of a visit, or of several."""
    return data.row[at], data.label[at], data.auxiliary[at], span.c * data.weight[at]


@jit
def look_up(data, order, negatives):
    """Lay out the inputs of `one_row` in the order of its steps: inside the loop each look-up would wait for memory.

    Every step is a pair of the returned data, with all classes it touches as its label, the actual label last.
    """
    order, negatives = order.reshape(-1), negatives.reshape(len(order), -1)
    row = data.row[order]
    rows, place = data.rows.in_order(row)
    touched = jnp.concatenate([negatives, data.label[order][:, None]], axis=1)
    offset = None if data.offset is None else data.offset[row[:, None], touched]
    auxiliary, weight = data.auxiliary[order], data.weight[order]
    return data._replace(rows=rows, row=place, label=touched, auxiliary=auxiliary, weight=weight, offset=offset)


def one_row(at: Visit, V, u):
    """Visit a row that was looked up, with its own negatives."""
    i, classes, k, c = at.pairs
    s = at.data.rows.score(V, i, classes, at.read)
    s = s if at.data.offset is None else s + at.data.offset[at.chosen]
    old, log_a = at.auxiliary(u, k), at.log_weights(len(classes))
    step = at.solver.step(c, at.pace(c), log_a, s, None, at.mobility(i), old)
    return at.data.rows.add(V, i, classes, step.amount, at.write), at.moved(u, k, old, step)


def _step_of_batch(at: Visit, V, u, i, k, c, classes, log_a, target=None, shared=False):
    """Take the mean of the rows' own steps, given the places of their auxiliary variables, and their classes.

    The mean of proximal steps is firmly nonexpansive, hence stable for any step size. An explicit step of rows that
    share negatives is that of their mean loss.
    """
    rows, n = at.data.rows, len(i)
    scores, add = (rows.scores_shared, rows.add_shared) if shared else (rows.scores, rows.add)
    s = at.offset(scores(V, i, classes, at.read), i, classes)
    if shared and not at.solver.implicit:
        n, c = 1, c / n
    old = at.auxiliary(u, k)
    tau = c if at.solver.auxiliary_step is None else n * at.pace(c)  # of which the mean takes one part in n
    step = jax.vmap(at.solver.step)(c, tau, log_a, s, target, at.mobility(i), old)
    return add(V, i, classes, step.amount / n, at.write), at.moved(u, k, old, step, n)


def averaged(at: Visit, V, u):
    """Visit rows with negatives of their own, (row, negative)."""
    i, y, k, c = at.pairs
    classes = jnp.concatenate([at.negatives, y[:, None]], axis=1)
    log_a = jnp.broadcast_to(at.log_weights(classes.shape[1]), classes.shape)
    return _step_of_batch(at, V, u, i, k, c, classes, log_a)


def all_classes(at: Visit, V, u):
    """Visit rows with all classes."""
    i, y, k, c = at.pairs
    target = jax.nn.one_hot(y, V.shape[0], dtype=V.dtype)
    return _step_of_batch(at, V, u, i, k, c, ALL, jnp.zeros_like(target), target)


def support_of(data, i, width: int):
    """Classes with counts in row i, ``_NONE`` beyond them, and their shares, 0 beyond, (width,)."""
    place = data.first[i] + jnp.arange(width, dtype=jnp.int32)
    real = place < data.first[i + 1]
    place = jnp.minimum(place, data.label.shape[0] - 1)
    share = data.weight[place] / jnp.maximum(data.total[i], limits(data.total).smallest)
    return jnp.where(real, data.label[place], _NONE), jnp.where(real, share, 0.0)


def counts(at: Visit, V, u):
    """Visit whole rows of counts: their classes with counts, as `support_of` gives them, and distinct others.

    Both are negatives; numbers beyond the classes do not count. The weight of a negative is the row's, not the span's.
    """
    i, data, (support, drawn) = at.chosen, at.data, at.negatives
    (n, m), n_classes = drawn.shape, V.shape[0]
    target = jax.vmap(support_of, (None, 0, None))(data, i, support.shape[1])[1]
    others = n_classes - data.n_seen(i)
    log_a = jnp.log((others / jnp.maximum(jnp.minimum(others, m), 1)).astype(V.dtype))
    log_a = jnp.where(drawn < n_classes, log_a[:, None], -jnp.inf)
    log_a = jnp.concatenate([jnp.where(support < n_classes, 0.0, -jnp.inf).astype(V.dtype), log_a], axis=1)
    classes = jnp.minimum(jnp.concatenate([support, drawn], axis=1), n_classes - 1)
    target = jnp.concatenate([target, jnp.zeros((n, m), V.dtype)], axis=1)
    return _step_of_batch(at, V, u, i, i, at.span.c * data.total[i], classes, log_a, target)


def shared(at: Visit, V, u):
    """Visit rows with shared negatives, (negative,) distinct: two matrix products."""
    i, y, k, c = at.pairs
    classes = jnp.column_stack([jnp.broadcast_to(at.negatives, (len(y), len(at.negatives))), y])
    n_classes = classes.shape[1]
    log_a = jnp.broadcast_to(at.log_weights(n_classes), classes.shape)
    if not at.solver.hits:  # a row's own label among them does not count
        negative = jnp.arange(n_classes) < n_classes - 1
        log_a = jnp.where((classes == y[:, None]) & negative[None], -jnp.inf, log_a)
    return _step_of_batch(at, V, u, i, k, c, classes, log_a, shared=True)


COUPLED = {"jacobi": jacobi_ascent, "dual": dual_ascent, "newton": newton_cg}


def coupled(at: Visit, V, u):
    """Visit rows with shared negatives, (negative,) distinct, by the exact proximal step of the whole batch."""
    (i, y, k, c), negative, rows, n_classes = at.pairs, at.negatives, at.data.rows, V.shape[0]
    # The classes touched, each once; the rest of the list names a class that does not exist.
    touched = jnp.unique(jnp.concatenate([y, negative]), size=len(y) + len(negative), fill_value=n_classes)
    drawn = jnp.any(touched[:, None] == negative[None], axis=1)
    label = jnp.searchsorted(touched, y).astype(jnp.int32)
    log_a = jnp.where(drawn[None] & (touched[None] != y[:, None]), at.span.log_a, -jnp.inf)
    x = rows.gather(i, V.shape[1])
    base = (x * spread(at.read, x)) @ V.at[touched].get(mode="fill", fill_value=0).T
    base = at.offset(base, i, jnp.minimum(touched, n_classes - 1)[None])  # what no class has is not read
    mobility = (x / spread(shrink_of(at.span, at.solver), x)) @ x.T
    c = c / len(y)
    share = 1.0 if at.solver.auxiliary_step is None else jnp.mean(c) / at.span.tau  # as for single rows
    batch = Batch(base, share * mobility, label, log_a, c / share, u[k])
    kind, budget = at.solver.minibatch, at.solver.sweeps
    G, new = COUPLED[kind](batch, max(budget, _NEWTON_STEPS) if kind == "newton" else budget)
    change = share * G.T @ (x / spread(at.write, x))
    return V.at[touched].add(-change, mode="drop", unique_indices=True), u.at[k].add(new - batch.u)


@partial(jit, donate_argnames="weights")
def merge_scale(weights: Weights) -> Weights:
    """Multiply the scales into the coefficients, before they become too small."""
    return Weights(weights.V * spread(weights.scale, weights.V), weights.u, jnp.ones_like(weights.scale))


@partial(jit, donate_argnames="weights")
def project(weights: Weights, units, radius) -> Weights:
    """Shrink coefficients by their scales to a norm of at most ``radius``, in units (column,), 0 for intercepts."""
    V = weights.V
    norm = jnp.sqrt(jnp.sum((V * spread(weights.scale, V)) ** 2 * spread(units, V)))
    share = jnp.minimum(1.0, radius / jnp.maximum(norm, limits(norm).smallest))
    return weights._replace(scale=weights.scale * jnp.where(units > 0, share, 1.0))
