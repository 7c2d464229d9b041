"""What every solver that samples classes shares: draws, the layout of its state, and the steps themselves.

The kernels are compiled once per shape and solver. Every state array is read before it is added to, so that XLA
writes it in place: no step copies weights or auxiliary variables, whatever their number.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._compile import jit
from .lambert import limits
from .minibatch import Batch, dual_ascent, jacobi_ascent, newton_cg

_NONE = jnp.iinfo(jnp.int32).max  # no class
_PASSED = 8  # draws that later ones pass in one sweep over them (measured)


def distinct_negatives(key, known, n_classes: int, m: int, n_known=1):
    """Draw m distinct classes, (..., m), other than those known, uniformly.

    Each draw is a place among the classes not yet taken, numbered without gaps; all are made at once, and then moved
    past what was taken before. Time O(m (m + known)) per row; the size of the program does not depend on m.

    ``known`` (..., known) is distinct and in increasing order, filled up with the largest integer; ``n_known`` (...)
    are real. Where fewer than m other classes exist, numbers from ``n_classes`` on stand for the rest.
    """
    *shape, width = known.shape
    place = jnp.arange(m, dtype=jnp.int32)

    def draw(key, j):
        return jax.random.randint(key, shape, 0, n_classes - n_known - j, jnp.int32)

    free = jax.vmap(draw)(jax.random.split(key, m), place)
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

    V: jax.Array  # coefficients over ``scale`` and intercepts, (class, column)
    u: jax.Array  # auxiliary variable of every pair (or row), of size 0 for a method without
    scale: jax.Array  # number


class Span(NamedTuple):
    """Steps of an epoch to take and the numbers they need, none of which compiles anything anew."""

    start: Any  # of those drawn, the first to take
    stop: Any
    c: Any  # step size times number of rows
    strength: Any  # of the ridge, in the package's convention (mean over rows)
    log_a: Any  # logarithm of the weight of a negative
    limit: Any  # what auxiliary variables are kept below


@jit
def look_up(data, order, negatives):
    """Look up what visits to pairs in some order, (step,), with negatives (step, negative), need.

    Inside the loop each would wait for the memory. The answer is data again, of which every visit is a pair, with all
    classes it touches, the label last, as its label, and their offsets: (step, class).
    """
    row = data.row[order]
    rows, place = data.rows.in_order(row)
    touched = jnp.concatenate([negatives, data.label[order][:, None]], axis=1)
    offset = None if data.offset is None else data.offset[row[:, None], touched]
    auxiliary, weight = data.auxiliary[order], data.weight[order]
    return data._replace(rows=rows, row=place, label=touched, auxiliary=auxiliary, weight=weight, offset=offset)


def _walk(weights: Weights, span: Span, implicit: bool, visit) -> Weights:
    """Take the steps of a span; ``visit`` gets a step's number, V, u and the scales to read at and to write at.

    The ridge shrinks all coefficients in every step, by the scale. An implicit step starts from weights already
    shrunk; an explicit one uses the old ones throughout.
    """
    change = span.c * span.strength
    shrink = 1 + change if implicit else 1 / (1 - change)

    def step(t, carry):
        V, u, scale = carry
        shrunk = scale / shrink
        V, u = visit(t, V, u, *((shrunk, scale) if implicit else (scale, shrunk)))
        return V, u, shrunk

    return Weights(*jax.lax.fori_loop(span.start, span.stop, step, tuple(weights)))


def _mobility(rows, i, span: Span):
    """How far an implicit step along a row moves its scores: an unpenalised intercept adds 1."""
    return rows.norm[i] / (1 + span.c * span.strength) + (1 - rows.penalised[-1])


def _scores_alone(data, V, i, classes, scale):
    """Scores of several rows at classes of their own, (row, class)."""
    s = jax.vmap(data.rows.score, (None, 0, 0, None))(V, i, classes, scale)
    return s if data.offset is None else s + data.offset[i[:, None], classes]


@partial(jit, static_argnames="solver", donate_argnames="weights")
def single_steps(visits, weights: Weights, span: Span, solver) -> Weights:
    """Visit rows one by one, each with its own negatives, in the order they were looked up in."""
    rows = visits.rows

    def visit(t, V, u, read, write):
        i, k, classes = visits.row[t], visits.auxiliary[t], visits.label[t]
        s = rows.score(V, i, classes, read)
        s = s if visits.offset is None else s + visits.offset[t]
        old = u[k] if solver.auxiliary else jnp.zeros((), V.dtype)
        mobility = _mobility(rows, i, span)
        step = solver.step(span.c * visits.weight[t], span.log_a, s[:-1], s[-1], mobility, old)
        V = rows.add(V, i, classes, jnp.append(-step.push, step.pull), write)
        return V, u.at[k].add(jnp.minimum(step.u, span.limit) - old) if solver.auxiliary else u

    return _walk(weights, span, solver.implicit, visit)


@partial(jit, static_argnames="solver", donate_argnames="weights")
def averaged_steps(data, weights: Weights, order, negatives, span: Span, solver) -> Weights:
    """Visit minibatches; of each, the mean of what its rows would do alone from the same weights.

    ``order`` is (step, row) and ``negatives`` (step, row, negative). Of proximal steps the mean is firmly
    nonexpansive, hence stable for any step size.
    """
    rows, n = data.rows, order.shape[1]

    def visit(t, V, u, read, write):
        pairs = order[t]
        i, k = data.row[pairs], data.auxiliary[pairs]
        classes = jnp.concatenate([negatives[t], data.label[pairs][:, None]], axis=1)
        s = _scores_alone(data, V, i, classes, read)
        old = u[k] if solver.auxiliary else jnp.zeros(n, V.dtype)
        c, mobility = span.c * data.weight[pairs], _mobility(rows, i, span)
        step = jax.vmap(solver.step, (0, None, 0, 0, 0, 0))(c, span.log_a, s[:, :-1], s[:, -1], mobility, old)
        amount = jnp.concatenate([-step.push, step.pull[:, None]], axis=1) / n
        V = rows.add(V, i, classes, amount, write)
        return V, u.at[k].add((jnp.minimum(step.u, span.limit) - old) / n) if solver.auxiliary else u

    return _walk(weights, span, solver.implicit, visit)


def support_of(data, i, width: int):
    """Classes with counts in row i, ``_NONE`` beyond them, and their shares, 0 beyond, (width,)."""
    place = data.first[i] + jnp.arange(width, dtype=jnp.int32)
    real = place < data.first[i + 1]
    place = jnp.minimum(place, data.label.shape[0] - 1)
    share = data.weight[place] / jnp.maximum(data.total[i], limits(data.total).smallest)
    return jnp.where(real, data.label[place], _NONE), jnp.where(real, share, 0.0)


@partial(jit, static_argnames=("solver", "width"), donate_argnames="weights")
def count_steps(data, weights: Weights, order, negatives, span: Span, solver, width: int) -> Weights:
    """Visit whole rows of counts: every class with counts and sampled others; of a batch, the mean of its rows' steps.

    ``order`` (step, row) are rows, ``negatives`` (step, row, negative) distinct classes without counts, or numbers
    that are no class and count nothing; ``width`` is how many classes have counts in a row at most: every row costs
    as much. There is one auxiliary variable per row, and the weight of a negative is the row's, not the span's.
    """
    rows, n = data.rows, order.shape[1]
    n_classes, m = weights.V.shape[0], negatives.shape[2]

    def visit(t, V, u, read, write):
        i, drawn = order[t], negatives[t]
        support, target = jax.vmap(support_of, (None, 0, None))(data, i, width)
        others = n_classes - data.n_seen(i)
        log_a = jnp.log((others / jnp.maximum(jnp.minimum(others, m), 1)).astype(V.dtype))
        log_a = jnp.where(drawn < n_classes, log_a[:, None], -jnp.inf)
        log_a = jnp.concatenate([jnp.where(support < n_classes, 0.0, -jnp.inf).astype(V.dtype), log_a], axis=1)
        classes = jnp.minimum(jnp.concatenate([support, drawn], axis=1), n_classes - 1)
        target = jnp.concatenate([target, jnp.zeros((n, m), V.dtype)], axis=1)
        s, old = _scores_alone(data, V, i, classes, read), u[i]
        c, mobility = span.c * data.total[i], _mobility(rows, i, span)
        step = jax.vmap(solver.step_counts)(c, log_a, s, target, mobility, old)
        V = rows.add(V, i, classes, step.amount / n, write)
        # What was raised is raised whatever the batch; of the step the mean is taken.
        return V, u.at[i].add(step.raised - old + (jnp.minimum(step.u, span.limit) - step.raised) / n)

    return _walk(weights, span, solver.implicit, visit)


@partial(jit, static_argnames="solver", donate_argnames="weights")
def shared_steps(data, weights: Weights, order, negatives, span: Span, solver) -> Weights:
    """Visit minibatches with shared negatives by explicit steps: two matrix products each.

    ``order`` is (step, row) and ``negatives`` (step, negative), distinct; a row's own label among them counts nothing
    for that row, unless the solver wants it.
    """
    rows, n = data.rows, order.shape[1]

    def visit(t, V, u, read, write):
        pairs, negative = order[t], negatives[t]
        i, y, k = data.row[pairs], data.label[pairs], data.auxiliary[pairs]
        s, own = rows.scores_shared(V, i, negative, y, read)
        if data.offset is not None:
            s, own = s + data.offset[i[:, None], negative[None]], own + data.offset[i, y]
        if not solver.hits:
            s = jnp.where(negative[None] == y[:, None], -jnp.inf, s)
        old = u[k] if solver.auxiliary else jnp.zeros(n, V.dtype)
        c = span.c * data.weight[pairs] / n
        step = jax.vmap(solver.step, (0, None, 0, 0, None, 0))(c, span.log_a, s, own, 0.0, old)
        V = rows.add_shared(V, i, negative, y, -step.push, step.pull, write)
        return V, u.at[k].add(jnp.minimum(step.u, span.limit) - old) if solver.auxiliary else u

    return _walk(weights, span, solver.implicit, visit)


COUPLED = {"jacobi": jacobi_ascent, "dual": dual_ascent, "newton": newton_cg}


@partial(jit, static_argnames=("method", "budget"), donate_argnames="weights")
def coupled_steps(data, weights: Weights, order, negatives, span: Span, method: str, budget: int) -> Weights:
    """Visit minibatches with shared negatives by the exact proximal step of the whole batch.

    Shapes as in `shared_steps`; ``method`` is one of "dual", "jacobi" (``budget`` sweeps) and "newton" (steps).
    """
    rows, n, n_classes = data.rows, order.shape[1], weights.V.shape[0]

    def visit(t, V, u, read, write):
        pairs, negative = order[t], negatives[t]
        i, y, k = data.row[pairs], data.label[pairs], data.auxiliary[pairs]
        # The classes touched, each once; the rest of the list names a class that does not exist.
        touched = jnp.unique(jnp.concatenate([y, negative]), size=n + negative.shape[0], fill_value=n_classes)
        drawn = jnp.any(touched[:, None] == negative[None], axis=1)
        label = jnp.searchsorted(touched, y).astype(jnp.int32)
        use = drawn[None] & (touched[None] != y[:, None])
        log_a = jnp.where(use, span.log_a, -jnp.inf)
        x = rows.gather(i)
        penalised = jnp.broadcast_to(rows.penalised, x.shape) > 0
        base = (x * jnp.where(penalised, read, 1.0)) @ V.at[touched].get(mode="fill", fill_value=0).T
        if data.offset is not None:
            base = base + data.offset.at[i[:, None], touched[None]].get(mode="fill", fill_value=0)
        mobility = (x * jnp.where(penalised, 1 / (1 + span.c * span.strength), 1.0)) @ x.T
        batch = Batch(base, mobility, label, log_a, span.c * data.weight[pairs] / n, u[k])
        G, new = COUPLED[method](batch, budget)
        change = G.T @ (x * jnp.where(penalised, 1 / write, 1.0))
        return V.at[touched].add(-change, mode="drop", unique_indices=True), u.at[k].add(new - batch.u)

    return _walk(weights, span, True, visit)


@partial(jit, static_argnames="solver", donate_argnames="weights")
def all_class_steps(data, weights: Weights, order, span: Span, solver) -> Weights:
    """Visit minibatches, ``order`` (step, row); of each, the mean of its rows' proximal steps over all classes."""
    rows, n = data.rows, order.shape[1]

    def visit(t, V, u, read, write):
        pairs = order[t]
        i, y = data.row[pairs], data.label[pairs]
        s = rows.score_all(V, i, read)
        s = s if data.offset is None else s + data.offset[i]
        target = jax.nn.one_hot(y, V.shape[0], dtype=V.dtype)
        c = span.c * data.weight[pairs]
        push = jax.vmap(solver.step)(c, s, target, _mobility(rows, i, span))
        return rows.add_all(V, i, (c[:, None] * target - push) / n, write), u

    return _walk(weights, span, True, visit)


@partial(jit, donate_argnames="weights")
def merge_scale(weights: Weights, penalised) -> Weights:
    """Multiply the scale into the coefficients, before it becomes too small."""
    V = weights.V * jnp.where(penalised > 0, weights.scale, 1.0)[None]
    return Weights(V, weights.u, jnp.ones_like(weights.scale))


@partial(jit, donate_argnames="weights")
def project(weights: Weights, penalised, radius) -> Weights:
    """Shrink the coefficients to a norm of at most ``radius``; the scale alone changes."""
    norm = weights.scale * jnp.sqrt(jnp.sum(jnp.where(penalised[None] > 0, weights.V, 0.0) ** 2))
    return weights._replace(scale=weights.scale * jnp.minimum(1.0, radius / jnp.maximum(norm, limits(norm).smallest)))
