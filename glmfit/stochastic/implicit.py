"""Proximal maps of a sampled softmax loss: the effect of an implicit step on the scores of the classes it touches.

Minibatches are a `Batch`; all other functions take one row. A score moves by `mobility` per unit of impulse on its
class, and all unknowns of a row follow from one number: the root of a concave increasing equation, found by Newton's
method from the left, where it never overshoots. Roots are elementwise and branch-free, for use in innermost loops.
Derivations and error bounds: docs/theory/implicit_sgd.md. Arguments of the functions of a row:

- c: step times weight (and total count) of the row, at least 0;
- log_a: logarithm of the weight of each class, a number or (class,); -inf excludes one;
- delta or score: scores, relative to the label's or absolute, at weights already shrunk by the ridge, (class,);
- target: shares of the label or counts, (class,), summing to 1;
- mobility: squared norm of the row in the metric of the step, a number, 0 if the weights are frozen;
- u or v: the auxiliary variable before the step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ..engine.exact.quadratic import conjugate_gradients

_MOST = 30  # Newton steps: two or three suffice for ordinary numbers, a dozen for extreme ones
_ALIKE_STEPS, _MORE_ALIKE_STEPS = 3, 5  # of the scalar equation that gives the start
_USUAL = 3  # steps taken without a test, in single precision


class Limits(NamedTuple):
    """Largest arguments of exp, wexp's iteration and an impulse's logarithm in a precision; smallest divisor."""

    exp: float
    iterate: float
    impulse: float
    smallest: float


def limits(x) -> Limits:
    """Return the limits of an array's precision."""
    return Limits(80.0, 1e8, 40.0, 1e-37) if x.dtype.itemsize == 4 else Limits(700.0, 1e15, 350.0, 1e-300)


def wexp(z):
    """Solve ``w + log(w) = z`` for w > 0: the Lambert function W_0 of ``exp(z)``, to 2e-15, or 1e-6 in single."""
    tiny = jnp.exp(jnp.minimum(z, 0.0))
    w = jnp.where(z > limits(z).iterate, z - jnp.log(jnp.maximum(z, 1.0)), _wexp_between(z))
    return jnp.where(z < -18, tiny * (1 - tiny), w)


def _wexp_between(z):
    """Solve if z is neither below -18 nor beyond the range of the iteration; finite in any case."""
    inside = jnp.clip(z, -30.0, limits(z).iterate)
    small = jnp.exp(jnp.minimum(inside, 1.0))
    large = jnp.maximum(inside, 1.0)
    log = jnp.log(large)
    w = jnp.where(inside < 1, small / (1 + small), large - log * (1 - 1 / large))
    for _ in range(2):
        t = inside - jnp.log(w) - w
        q = 2 * (1 + w) * (1 + w + 2 * t / 3)
        w = w * (1 + t / (1 + w) * (q - t) / (q - 2 * t))
    return w


def hsolve(c, q):
    """Solve ``delta + c (1 - exp(-delta)) = q`` for delta, of the sign of q and no larger, for c >= 0."""
    log_c = log_of(c, q)
    floor = jnp.maximum(log_c, 0.0) - limits(q).exp  # c exp(-delta) must not overflow
    delta = q - c + jnp.where(c > 0, wexp(log_c + c - q), 0.0)
    # This cancels if c is much larger than q: clip it to bounds from concavity, and refine it by Newton steps.
    lowest, highest = q / (1 + c), jnp.maximum(q, 0.0)
    delta = jnp.clip(delta, lowest, highest)
    for _ in range(4):
        at = jnp.maximum(delta, floor)
        excess = c * jnp.expm1(-at)
        delta = jnp.clip(delta - (delta - excess - q) / (1 + c + excess), lowest, highest)
    return delta


def uprox(c, log_total, u):
    """Minimise ``c (v + exp(log_total - v)) + (v - u)^2 / 2`` over v: the implicit step of an auxiliary variable u."""
    return log_total + hsolve(c, u - log_total)


def p_of(level, mobility):
    """Solve ``log(p) + mobility * p = level`` for p > 0, of slope ``p / (1 + mobility * p)``: p, and mobility * p."""
    free = mobility > 0
    safe = jnp.where(free, mobility, 1.0)
    moved = jnp.where(free, _wexp_between(level + jnp.log(safe)), 0.0)
    # The quotient is exact where the class moves; the exponential where it hardly does.
    p = jnp.where(moved > 1e-2, moved / safe, jnp.exp(jnp.minimum(level - moved, limits(level).impulse)))
    return p, mobility * p


def log1p_sum_exp(terms):
    """Compute ``log(1 + sum(exp(terms)))`` along the last axis, with full relative precision where it is small."""
    top = jnp.maximum(jnp.max(terms, axis=-1, initial=0.0, keepdims=True), 0.0)
    total = jnp.sum(jnp.exp(terms - top), axis=-1)
    top = jnp.squeeze(top, -1)
    return jnp.where(top > 0, top + jnp.log(jnp.exp(-top) + total), jnp.log1p(total))


def log_of(c, like):
    """Logarithm of a number that may be 0, kept finite in the precision of an array."""
    return jnp.log(jnp.maximum(c, limits(like).smallest))


class Impulse(NamedTuple):
    """Impulse of a step on the classes it touches: ``w_k -= push_k x`` for negatives, ``w_y += pull x``."""

    push: jax.Array  # (negative,)
    pull: jax.Array  # number, the sum of the pushes
    u: jax.Array  # auxiliary variable after the step


class Alike(NamedTuple):
    """Classes of one level that stand for those of a row: of the same total weight, and of the same sum of squares.

    They push at most as much as the row does (Jensen), and nearly as much: the root of their scalar equation is a bound
    on the left of the row's.
    """

    level: jax.Array  # of each
    log_number: jax.Array
    mobility: jax.Array
    log_total: jax.Array  # logarithm of the sum of exp(level) over the row

    @classmethod
    def of(cls, level, mobility):
        """Find those of levels (class,)."""
        top = jnp.max(level)
        share = jnp.exp(level - jnp.where(top > -jnp.inf, top, 0.0))
        total, square = jnp.sum(share), jnp.sum(share * share)
        log_total = jnp.where(total > 0, top + jnp.log(total), -jnp.inf)
        log_number = jnp.where(total > 0, 2 * jnp.log(total) - jnp.log(square), 0.0)
        return cls(log_total - log_number, log_number, mobility, log_total)

    def pushes(self, t):
        """Sum of their pushes, and minus its slope."""
        p, moved = p_of(self.level - t, self.mobility)
        number = jnp.exp(self.log_number)
        return number * p, number * (p / (1 + moved))

    def together(self, pull):
        """Return the t at which all weight on a single class pushes this much: never above that of the row."""
        return self.log_total - self.mobility * pull - jnp.log(pull)


def _climb(newton, lowest, alike: Alike, level):
    """Solve a concave increasing equation by Newton's method from the left, first for classes that are alike.

    ``newton(t, pull, slope)`` takes a step, given the sum of the pushes at t and minus its slope. ``lowest`` is left of
    either root; from the right of it, after rounding, the first step leads there.
    """

    def of_row(t):
        p, moved = p_of(level - t, alike.mobility)
        return newton(t, jnp.sum(p), jnp.sum(p / (1 + moved)))

    def solve(lowest, n_alike, finish):
        start = lowest
        for _ in range(n_alike):
            start = newton(start, *alike.pushes(start))
        return finish(of_row, jnp.maximum(lowest, start))

    # On a GPU, steps of the scalar equation of all rows are one kernel.
    return jax.lax.platform_dependent(
        lowest,
        cpu=lambda lowest: solve(lowest, _ALIKE_STEPS, until_rounding),
        default=lambda lowest: solve(lowest, _MORE_ALIKE_STEPS, known_number),
    )


def until_rounding(newton, start):
    """Take steps until only rounding is left."""
    # In single precision one step earlier: steps shrink quadratically, and the rest is rounding.
    close = 3e-5 if start.dtype.itemsize == 4 else 30 * jnp.finfo(start.dtype).eps

    def goes_on(at):  # number, the one before, and how many steps were taken
        return (jnp.abs(at[0] - at[1]) > close * (1 + jnp.abs(at[0]))) & (at[2] < _MOST)

    return jax.lax.while_loop(goes_on, lambda at: (newton(at[0]), at[0], at[2] + 1), (start, start - jnp.inf, 0))[0]


def known_number(newton, start):
    """Take enough steps for ordinary numbers: with a test, a GPU would ask the host after each of them.

    If scores of hundreds of negatives differ by ten or more and steps are long, pushes can be some percent too large.
    """
    for _ in range(_USUAL if start.dtype.itemsize == 4 else _USUAL + 2):
        start = newton(start)
    return start


def implicit_step(c, log_a, delta, mobility, u) -> Impulse:
    """Minimise ``c (v + exp(-v) + sum_k a_k exp(delta_k - v)) + (v - u)^2 / 2`` plus half the weights' squared change.

    With ``t = v + mobility * pull`` the pushes are ``log p_k + mobility p_k = log(c a_k) + delta_k - t``, and the
    remaining equation is ``v + c (1 - exp(-v)) = u + pull``.
    """
    level = log_of(c, delta) + log_a + delta
    lowest = jnp.minimum(u, 0.0)

    def safe_exp(x):
        return jnp.exp(jnp.minimum(x, limits(x).exp))

    def relaxed(v):
        """Value and slope of 1 - exp(-v), continued by its tangent below the range of v."""
        inside = jnp.maximum(v, lowest)
        slope = safe_exp(-inside)
        return slope * (v - inside) - jnp.expm1(-inside), slope

    def newton(t, pull, slope):
        v = t - mobility * pull
        rise, e = relaxed(v)
        value = c * rise + v - u - pull
        return t - value / ((1 + c * e) * (1 + mobility * slope) + slope)

    # v is at least what it would be without a push, and at most what the scores would have it. All weight on a single
    # class pushes less than the row does: from its largest pull follows a t on the left.
    least = jnp.maximum(u / (1 + c), u - c)
    alike = Alike.of(level, mobility)
    highest = jnp.maximum(jnp.logaddexp(0.0, alike.log_total - log_of(c, delta)), u)
    upper = jnp.maximum(c * -jnp.expm1(-highest) + highest - u, 0.0)
    alone = p_of(alike.log_total - least, 2 * mobility)[0]
    most = jnp.maximum(jnp.minimum(upper, alone), limits(delta).smallest)
    t = _climb(newton, jnp.maximum(least, alike.together(most)), alike, level)
    p = p_of(level - t, mobility)[0]
    pull = jnp.sum(p)
    v = t - mobility * pull
    # Take the expression for v whose terms cancel less.
    better = (jnp.abs(u) + pull) / (1 + c * safe_exp(-v)) < jnp.abs(t) + mobility * pull
    return Impulse(p, pull, jnp.where(better, hsolve(c, u + pull), v))


def _balance(level, alike: Alike, most, wanted):
    """Return the pushes of ``log p_k + mobility p_k = level_k - z`` with the wanted sum at z, and z.

    All weight on a single class pushes at most ``most``; ``wanted`` returns the value and slope of the sum at z.
    """

    def newton(z, pushed, slope):
        total, rise = wanted(z)
        slope = rise + slope
        return jnp.where(slope > 0, z + (pushed - total) / jnp.where(slope > 0, slope, 1.0), z)

    lowest = alike.together(jnp.maximum(most, limits(level).smallest))
    z = _climb(newton, lowest, alike, level)
    return p_of(level - z, alike.mobility)[0], z


def implicit_counts(c, log_a, score, target, mobility, v):
    """Step of a row of counts that has one auxiliary variable (alpha = 1): pushes (class,), and the variable after it.

    Minimises ``c (z - sum_j target_j s_j + exp(-z) sum_j a_j exp(s_j)) + (z - v)^2 / 2`` plus half the squared change
    of the weights, ``w_j += (c target_j - push_j) x``.
    """
    level = log_of(c, score) + log_a + score + mobility * c * target
    alike = Alike.of(level, mobility)
    alone = p_of(alike.log_total - v + c, mobility + 1)[0]  # the root itself for a single class
    return _balance(level, alike, alone, lambda z: (z - v + c, 1.0))


def softmax_prox(c, score, target, mobility):
    """Proximal step of ``c (logsumexp(s) - sum_k target_k s_k)`` over all classes: pushes (class,), which sum to c."""
    level = log_of(c, score) + score + mobility * c * target
    return _balance(level, Alike.of(level, mobility), c, lambda z: (c, 0.0))[0]


class Batch(NamedTuple):
    """Sampled objective of rows with shared negatives, at scores ``base - mobility @ G`` with pushes G (row, class)."""

    base: jax.Array  # scores before the pushes, at weights already shrunk, (row, class)
    mobility: jax.Array  # (row, row)
    label: jax.Array  # place of each row's label among the classes, (row,)
    log_a: jax.Array  # logarithms of the weights of the negatives, -inf for others, (row, class)
    c: jax.Array  # step times weight, (row,)
    u: jax.Array  # auxiliary variables before the step, (row,)


def _solve_row(batch: Batch, i, base, mobility):
    """Solve a row with the others' pushes fixed: its pushes, balanced by the label's, and its auxiliary variable."""
    label = batch.label[i]
    step = implicit_step(batch.c[i], batch.log_a[i], base - base[label], mobility, batch.u[i])
    return step.push.at[label].add(-step.pull), step.u


def dual_ascent(batch: Batch, n_sweeps: int):
    """Cycle through the rows, each solved exactly with the others' pushes fixed: (pushes, auxiliary variables)."""

    def visit(t, carry):
        G, u = carry
        i = t % len(batch.c)
        others = batch.base[i] - batch.mobility[i] @ G + batch.mobility[i, i] * G[i]
        pushes, after = _solve_row(batch, i, others, batch.mobility[i, i])
        return G.at[i].set(pushes), u.at[i].set(after)

    return jax.lax.fori_loop(0, n_sweeps * len(batch.c), visit, (jnp.zeros_like(batch.base), batch.u))


def jacobi_ascent(batch: Batch, n_sweeps: int):
    """Solve all rows at once in a metric that bounds their coupling: monotone, without a line search."""
    reach = jnp.sum(jnp.abs(batch.mobility), axis=1)  # a diagonal above the mobility
    rows = jnp.arange(len(batch.c))

    def sweep(_, carry):
        G, _u = carry
        base = batch.base + reach[:, None] * G - batch.mobility @ G
        return jax.vmap(_solve_row, (None, 0, 0, 0))(batch, rows, base, reach)

    return jax.lax.fori_loop(0, n_sweeps, sweep, (jnp.zeros_like(batch.base), batch.u))


def newton_cg(batch: Batch, n_newton: int, n_cg: int = 40):
    """Newton's method on the pushes, its systems solved by conjugate gradients in the metric of the mobility."""
    M, c, at = batch.mobility, batch.c, jnp.arange(len(batch.c))
    reach = jnp.max(jnp.sum(jnp.abs(M), axis=1))
    close = max(1e-12, 4 * float(jnp.finfo(M.dtype).eps))

    def parts(G):
        S = batch.base - M @ G
        delta = S - S[at, batch.label][:, None]
        log_total = log1p_sum_exp(batch.log_a + delta)
        u = uprox(c, log_total, batch.u)
        push = c[:, None] * jnp.exp(batch.log_a + delta - u[:, None])
        value = c * (u + jnp.exp(log_total - u)) + (u - batch.u) ** 2 / 2
        return u, push, jnp.sum(value) + jnp.sum(G * (M @ G)) / 2

    def balanced(push):
        return push.at[at, batch.label].add(-jnp.sum(push, axis=1))

    def curved(u, push, V):
        """Product with the Hessian of the rows' objectives in their scores."""
        change = V - V[at, batch.label][:, None]
        mean = jnp.sum(push * change, axis=1) / (c * jnp.exp(-u) + 1 + jnp.sum(push, axis=1))
        return balanced(push * (change - mean[:, None]))

    def inner(a, b):
        return jnp.sum(a * (M @ b))

    def newton(carry):
        G, _, k = carry
        u, push, value = parts(G)
        residual = balanced(push) - G
        size = inner(residual, residual)

        def enough(r):
            rounding = jnp.finfo(r.dtype).eps * reach * jnp.sum(r * r)
            return jnp.maximum(jnp.minimum(1e-4, size) * 1e-4 * size, rounding)

        x, *_ = conjugate_gradients(lambda p: curved(u, push, M @ p) + p, residual, enough, n_cg, inner)
        d = residual - curved(u, push, M @ x)  # from scores alone, so that a singular mobility does no harm
        slope = -inner(residual, d)

        def too_long(state):
            s, j = state
            rounding = 8 * jnp.finfo(G.dtype).eps * jnp.abs(value)
            return (parts(G + s * d)[2] > value + 1e-4 * s * slope + rounding) & (j < 40)

        s, _ = jax.lax.while_loop(too_long, lambda state: (state[0] / 2, state[1] + 1), (jnp.ones_like(size), 0))
        return G + s * d, size, k + 1

    start = jnp.zeros_like(batch.base), jnp.full((), jnp.inf, batch.base.dtype), 0
    G, *_ = jax.lax.while_loop(
        lambda at: (at[1] > close**2 * (1 + inner(at[0], at[0]))) & (at[2] < n_newton), newton, start
    )
    u, push, _ = parts(G)
    return balanced(push), u
