"""What every solver that samples classes shares: draws, the layout of its state, and the steps themselves.

The kernels are compiled once per shape and rule. Every state array is read before it is added to, so that XLA
writes it in place: no step copies weights or auxiliary variables, whatever their number.
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .._compile import jit
from .implicit import softmax_prox
from .lambert import limits
from .minibatch import Batch, dual_ascent, jacobi_ascent, newton_cg

_NONE = jnp.iinfo(jnp.int32).max  # no class
_PASSED = 8  # draws that later ones pass in one sweep over them (measured)


def distinct_negatives(key, known, n_classes: int, m: int, n_known=1):
    """Draw m distinct classes other than those known, uniformly.

    Each draw is a place among the classes not yet taken, numbered without gaps; all are made at once, and then moved
    past what was taken before.

    Parameters
    ----------
    key : jax key
    known : jax.Array
        Distinct classes in increasing order, filled up with the largest integer, (..., known).
    n_classes, m : int
        Classes in all, and to draw.
    n_known : int or jax.Array
        How many are known, (...).

    Returns
    -------
    jax.Array
        (..., m); where fewer than m other classes exist, numbers from ``n_classes`` on stand for the rest.

    Notes
    -----
    Time O(m (m + known)) per row; the size of the program does not depend on m.
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
    """Parameters of a sampling solver.

    Attributes
    ----------
    V : jax.Array
        Coefficients over ``scale`` and intercepts, (class, column).
    u : jax.Array
        Auxiliary variable of every pair (or row), of size 0 for a method without.
    scale : jax.Array
        Number.
    """

    V: jax.Array
    u: jax.Array
    scale: jax.Array


class Span(NamedTuple):
    """Steps of an epoch to take and the numbers they need, none of which compiles anything anew.

    Attributes
    ----------
    start, stop : int
        Steps to take of those drawn.
    c : number
        Step size times number of rows.
    strength : number
        Of the ridge, in the package's convention (mean over rows).
    log_a : number
        Logarithm of the weight of a negative.
    """

    start: Any
    stop: Any
    c: Any
    strength: Any
    log_a: Any


def _shrink(rule, span: Span):
    """Factor by which a step's ridge divides all coefficients."""
    change = span.c * span.strength
    return 1 + change if rule.implicit else 1 / (1 - change)


def _scores(data, V, i, classes, scale):
    s = data.rows.score(V, i, classes, scale)
    return s if data.offset is None else s + data.offset[i, classes]


class Visits(NamedTuple):
    """What visits to single rows need, looked up for many at once: inside the loop each would wait for the memory.

    Attributes
    ----------
    rows : DenseRows or SparseRows
        Features, in the order of the visits where they can be.
    place, auxiliary : jax.Array
        Which of ``rows`` is visited, and which auxiliary variable belongs to it, (step,).
    weight, norm : jax.Array
        Of the pair, and of the row's penalised part squared, (step,).
    touched : jax.Array
        Negatives and, last, the label, (step, class).
    offset : jax.Array or None
        Of the scores of these, (step, class).
    """

    rows: Any
    place: jax.Array
    auxiliary: jax.Array
    weight: jax.Array
    norm: jax.Array
    touched: jax.Array
    offset: jax.Array | None


@jit
def look_up(data, order, negatives) -> Visits:
    """Look up what visits to pairs in some order, (step,), with negatives (step, negative), need."""
    row = data.row[order]
    rows, place = data.rows.in_order(row)
    touched = jnp.concatenate([negatives, data.label[order][:, None]], axis=1)
    offset = None if data.offset is None else data.offset[row[:, None], touched]
    return Visits(rows, place, data.auxiliary[order], data.weight[order], data.rows.norm[row], touched, offset)


def single_steps(data, weights: Weights, order, negatives, span: Span, rule) -> Weights:
    """Visit rows one by one, each with its own negatives.

    Parameters
    ----------
    data : ClassData
        Of the problem.
    weights : Weights
    order : jax.Array
        Pairs in the order of their visits, (step,).
    negatives : jax.Array
        Distinct classes other than the pair's label, (step, negative).
    span : Span
    rule :
        What a step does: see ``class_rules``.
    """
    return visit_singly(look_up(data, order, negatives), weights, span, rule)


@partial(jit, static_argnames="rule", donate_argnames="weights")
def visit_singly(visits: Visits, weights: Weights, span: Span, rule) -> Weights:
    """Take the steps of a span, of visits already looked up."""
    rows, shrink = visits.rows, _shrink(rule, span)

    def visit(t, carry):
        V, u, scale = carry
        i, k, classes = visits.place[t], visits.auxiliary[t], visits.touched[t]
        new_scale = scale / shrink
        # An implicit step starts from weights already shrunk; an explicit one uses the old ones throughout.
        s = rows.score(V, i, classes, new_scale if rule.implicit else scale)
        s = s if visits.offset is None else s + visits.offset[t]
        reach = visits.norm[t] / shrink + rows.free
        old = u[k] if rule.auxiliary else jnp.zeros((), V.dtype)
        step = rule.step(span.c * visits.weight[t], span.log_a, s[:-1], s[-1], reach, old)
        V = rows.add(V, i, classes, jnp.append(-step.push, step.pull), scale if rule.implicit else new_scale)
        if rule.auxiliary:
            u = u.at[k].add(step.u - old)
        return V, u, new_scale

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


@partial(jit, static_argnames="rule", donate_argnames="weights")
def averaged_steps(data, weights: Weights, order, negatives, span: Span, rule) -> Weights:
    """Visit minibatches; of each, the mean of what its rows would do alone from the same weights.

    ``order`` is (step, row) and ``negatives`` (step, row, negative). Of proximal steps the mean is firmly
    nonexpansive, hence stable for any step size.
    """
    rows, shrink, n = data.rows, _shrink(rule, span), order.shape[1]

    def visit(t, carry):
        V, u, scale = carry
        pairs = order[t]
        i, k = data.row[pairs], data.auxiliary[pairs]
        classes = jnp.concatenate([negatives[t], data.label[pairs][:, None]], axis=1)
        new_scale = scale / shrink
        s = jax.vmap(_scores, (None, None, 0, 0, None))(data, V, i, classes, new_scale if rule.implicit else scale)
        mobility = rows.norm[i] / shrink + rows.free
        old = u[k] if rule.auxiliary else jnp.zeros(n, V.dtype)
        c = span.c * data.weight[pairs]
        step = jax.vmap(rule.step, (0, None, 0, 0, 0, 0))(c, span.log_a, s[:, :-1], s[:, -1], mobility, old)
        amount = jnp.concatenate([-step.push, step.pull[:, None]], axis=1) / n
        V = rows.add_many(V, i, classes, amount, scale if rule.implicit else new_scale)
        if rule.auxiliary:
            u = u.at[k].add((step.u - old) / n)
        return V, u, new_scale

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


def support_of(data, seen, i, width: int):
    """Classes with counts in row i, ``_NONE`` beyond them, and their shares, 0 beyond, (width,)."""
    place = seen.first[i] + jnp.arange(width, dtype=jnp.int32)
    real = jnp.arange(width) < seen.size[i]
    place = jnp.minimum(place, data.label.shape[0] - 1)
    share = data.weight[place] / jnp.maximum(seen.total[i], limits(seen.total).smallest)
    return jnp.where(real, data.label[place], _NONE), jnp.where(real, share, 0.0)


@partial(jit, static_argnames=("rule", "width"), donate_argnames="weights")
def count_steps(data, seen, weights: Weights, order, negatives, span: Span, rule, width: int) -> Weights:
    """Visit whole rows of counts: every class with counts and sampled others; of a batch, the mean of its rows' steps.

    Parameters
    ----------
    data : ClassData
        Of the problem.
    seen : CountRows
        Where the rows' counts are.
    weights : Weights
        One auxiliary variable per row.
    order : jax.Array
        Rows, (step, row of the batch).
    negatives : jax.Array
        Distinct classes without counts, (step, row of the batch, negative); numbers that are no class count nothing.
    span : Span
        Its weight of a negative is not used: it depends on the row.
    rule :
        What a step does.
    width : int
        Most classes with counts in a row: every row costs as much as the one that has them.
    """
    rows, shrink, n = data.rows, _shrink(rule, span), order.shape[1]
    n_classes, m = weights.V.shape[0], negatives.shape[2]

    def visit(t, carry):
        V, u, scale = carry
        i, drawn = order[t], negatives[t]
        support, target = jax.vmap(support_of, (None, None, 0, None))(data, seen, i, width)
        others = n_classes - seen.size[i]
        log_a = jnp.log((others / jnp.maximum(jnp.minimum(others, m), 1)).astype(V.dtype))
        log_a = jnp.where(drawn < n_classes, log_a[:, None], -jnp.inf)
        log_a = jnp.concatenate([jnp.where(support < n_classes, 0.0, -jnp.inf).astype(V.dtype), log_a], axis=1)
        classes = jnp.minimum(jnp.concatenate([support, drawn], axis=1), n_classes - 1)
        target = jnp.concatenate([target, jnp.zeros((n, m), V.dtype)], axis=1)
        new_scale = scale / shrink
        s = jax.vmap(_scores, (None, None, 0, 0, None))(data, V, i, classes, new_scale if rule.implicit else scale)
        mobility = rows.norm[i] / shrink + rows.free
        old = u[i]
        step = jax.vmap(rule.step_counts)(span.c * seen.total[i], log_a, s, target, mobility, old)
        V = rows.add_many(V, i, classes, step.amount / n, scale if rule.implicit else new_scale)
        # What was raised is raised whatever the batch; of the step the mean is taken.
        return V, u.at[i].add(step.raised - old + (step.u - step.raised) / n), new_scale

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


@partial(jit, static_argnames="rule", donate_argnames="weights")
def shared_steps(data, weights: Weights, order, negatives, span: Span, rule) -> Weights:
    """Visit minibatches with shared negatives by explicit steps: two matrix products each.

    ``order`` is (step, row) and ``negatives`` (step, negative), distinct, drawn from all classes; one that is a
    row's own label counts nothing for that row, unless the rule wants it.
    """
    rows, shrink, n = data.rows, _shrink(rule, span), order.shape[1]

    def visit(t, carry):
        V, u, scale = carry
        pairs, negative = order[t], negatives[t]
        i, y, k = data.row[pairs], data.label[pairs], data.auxiliary[pairs]
        s, own = rows.scores_shared(V, i, negative, y, scale)
        if data.offset is not None:
            s, own = s + data.offset[i[:, None], negative[None]], own + data.offset[i, y]
        if not rule.hits:
            s = jnp.where(negative[None] == y[:, None], -jnp.inf, s)
        old = u[k] if rule.auxiliary else jnp.zeros(n, V.dtype)
        c = span.c * data.weight[pairs] / n
        step = jax.vmap(rule.step, (0, None, 0, 0, None, 0))(c, span.log_a, s, own, 0.0, old)
        V = rows.add_shared(V, i, negative, y, -step.push, step.pull, scale / shrink)
        if rule.auxiliary:
            u = u.at[k].add(step.u - old)
        return V, u, scale / shrink

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


COUPLED = {"dual": dual_ascent, "jacobi": jacobi_ascent, "newton": newton_cg}


@partial(jit, static_argnames=("method", "budget"), donate_argnames="weights")
def coupled_steps(data, weights: Weights, order, negatives, span: Span, method: str, budget: int) -> Weights:
    """Visit minibatches with shared negatives by the exact proximal step of the whole batch.

    Shapes as in `shared_steps`; ``method`` is one of "dual", "jacobi" (``budget`` sweeps) and "newton" (steps).
    """
    rows, n = data.rows, order.shape[1]
    n_classes = weights.V.shape[0]
    shrink = 1 + span.c * span.strength

    def visit(t, carry):
        V, u, scale = carry
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
        scaled = x * jnp.where(penalised, scale / shrink, 1.0)
        base = scaled @ V.at[touched].get(mode="fill", fill_value=0).T
        if data.offset is not None:
            base = base + data.offset.at[i[:, None], touched[None]].get(mode="fill", fill_value=0)
        mobility = (x * jnp.where(penalised, 1 / shrink, 1.0)) @ x.T
        batch = Batch(base, mobility, label, log_a, span.c * data.weight[pairs] / n, u[k])
        G, new = COUPLED[method](batch, budget)
        change = G.T @ (x * jnp.where(penalised, 1 / scale, 1.0))
        V = V.at[touched].add(-change, mode="drop", unique_indices=True)
        return V, u.at[k].add(new - batch.u), scale / shrink

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


@partial(jit, donate_argnames="weights")
def all_class_steps(data, weights: Weights, order, span: Span) -> Weights:
    """Visit minibatches, ``order`` (step, row); of each, the mean of its rows' proximal steps over all classes."""
    rows, shrink, n = data.rows, 1 + span.c * span.strength, order.shape[1]

    def visit(t, carry):
        V, u, scale = carry
        pairs = order[t]
        i, y = data.row[pairs], data.label[pairs]
        s = rows.score_all(V, i, scale / shrink)
        if data.offset is not None:
            s = s + data.offset[i]
        target = jax.nn.one_hot(y, V.shape[0], dtype=V.dtype)
        c = span.c * data.weight[pairs]
        push = jax.vmap(softmax_prox)(c, s, target, rows.norm[i] / shrink + rows.free)
        V = rows.add_all(V, i, (c[:, None] * target - push) / n, scale)
        return V, u, scale / shrink

    return Weights(*jax.lax.fori_loop(span.start, span.stop, visit, tuple(weights)))


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
