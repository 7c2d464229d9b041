"""Minima of quadratics with an l1 norm or group norms, of several models at once.

Only what is not zero takes part in a linear system. Models differ in what is zero, and leave when they are done.
"""

import contextlib
from typing import NamedTuple

import numpy as np

from ...cholesky import solve_definite
from ..small_systems import solve, times

_ROUNDS, _BOLD = 40, 30  # per variable; rounds in which many variables may enter at once
_PARTS = 0.5, 0.25, 0.125, 0.06, 0.015  # of a step that is too long
_SMALL = 64  # variables of systems that are solved together
_ROUNDING = 16 * float(np.finfo(float).eps)
_GROUP_ROUNDS, _SECULAR_STEPS = 200, 60
_SWITCHING, _STUCK = 2, 20  # rounds without half the gradient: then all groups are minimised over; then it ends
_FAST = 0.1  # of the gradient before: a Newton step that leaves more of it does not converge fast yet
_NEAR = 1e-9  # of the terms of the gradient: the step that has been taken from there leaves its square
_DAMPED = 1e-6, 1e-3  # added to the diagonal, 1, of models whose Newton step is shortened a lot
_SHORT = 0.02  # part of a Newton step
_SHORTEST = 1e-12  # part of a Newton step that is tried: of a nearly singular system, little of it is a lot


def least_of_models(Q, c, labels, strength, before, left=0.0):
    """Minimise ``w'Q w / 2 - c'w + sum_g strength_g |w_g|`` of several models, from ``before``, (model, variable).

    ``labels`` (model, variable) has the group of each variable, -1 if it has no norm. A model with fewer variables than
    others ends in variables with the label n_groups, for which Q is the identity and c is 0. ``strength`` is (model,
    group). w has exact zeros. It may stop when about a share ``left`` of the decrease is left.
    """
    unit = 1 / np.sqrt(np.maximum(np.einsum("nii->ni", Q), np.finfo(float).tiny))
    labels = labels + 1  # those without a norm come first, those past the end last
    strength = np.pad(strength, ((0, 0), (1, 1)))
    own = np.take_along_axis(strength, labels, 1)
    if single := _sums(labels, np.ones(labels.shape), strength.shape)[:, 1:-1].max(initial=0) <= 1:
        strength = own * unit
    else:  # the features of a group keep their proportions
        least = np.full(strength.shape, np.inf)
        np.minimum.at(least, (np.arange(len(labels))[:, None], labels), unit)
        unit = np.where(own > 0, np.take_along_axis(least, labels, 1), unit)
        strength = strength * np.where(np.isfinite(least), least, 0.0)
    Q = Q * unit[:, None]
    Q *= unit[:, :, None]
    c, before = c * unit, before / unit
    if single:
        return unit * minimise_l1(Q, c, strength, before, left)
    return unit * minimise_groups(Q, c, labels, strength, before, left)


def minimise_l1(Q, c, l1, start, left=0.0):
    """Minimise ``w'Q w / 2 - c'w + sum l1 |w|`` of several quadratics, (quadratic, variable).

    w has exact zeros; variables with l1 = 0 are free. Given zeros and signs, the optimum solves one linear system.
    Variables that should not be zero enter it at once, and those whose signs change are set to zero, if that descends.
    If it does not, a shorter step may. If that does not either, variables enter one by one, along a path on which the
    objective falls, which must end (Lee, Battle, Raina, Ng 2007, Efficient sparse coding algorithms). It may stop when
    a step promises less than a share ``left`` of the decrease.
    """
    out, at, free = start.copy(), np.arange(len(c)), l1 == 0
    size, careful = np.sqrt(np.einsum("nii->ni", Q)), np.zeros(len(c), bool)
    w, (gradient, value) = start, _at(Q, c, l1, start)
    first = value
    for round_ in range(_ROUNDS * c.shape[1]):
        careful |= round_ >= _BOLD
        sign = np.where(free, 0.0, np.sign(w))
        missed = _missed(gradient, c, l1, w, size)
        if careful.any():  # one at a time, and only after the others have settled
            settled = np.abs(gradient + l1 * sign) <= _slack(c, l1, w, size)
            settled = np.all(settled | ((sign == 0) & ~free), axis=1, keepdims=True)
            beyond = np.where(missed, np.abs(gradient) - l1, -np.inf)
            missed &= ~careful[:, None] | (settled & (beyond == beyond.max(axis=1, keepdims=True)))
        sign = np.where(missed, -np.sign(gradient), sign)
        inside = free | (sign != 0)
        slope = np.where(inside, gradient + l1 * sign, 0.0)
        step = _solve_inside(Q, slope, inside)
        if np.isnan(step).any() or np.isnan(value).any():
            raise np.linalg.LinAlgError("the quadratic is not positive definite, or not finite")
        target = w - step
        crosses = target * sign < 0
        after = np.where(crosses, 0.0, target)
        slopes, low = _at(Q, c, l1, after)
        partly = crosses.any(axis=1)
        high = np.flatnonzero(partly & ~(low < value))
        if len(high):
            some = (values[high] for values in (Q, c, l1, w, step, crosses, careful))
            after[high], slopes[high], low[high] = _shorter(*some)
            up = high[~careful[high] & ~(low[high] < value[high])]
            after[up], slopes[up], low[up], careful[up] = w[up], gradient[up], value[up], True
        w, gradient, value = after, slopes, low
        ended = ~partly & ~_missed(gradient, c, l1, w, size).any(axis=1)
        if left:
            ended |= ~careful & (np.sum(slope * step, axis=1) / 2 < left * (first - value))
        out[at] = w
        if ended.all():
            break
        if ended.any():
            some = (at, Q, c, l1, free, size, careful, w, gradient, value, first)
            at, Q, c, l1, free, size, careful, w, gradient, value, first = (values[~ended] for values in some)
    return out


def _at(Q, c, l1, w):
    """Gradient of quadratics without their norms, (quadratic, variable), and objectives, (quadratic,)."""
    gradient = times(Q, w) - c
    return gradient, np.sum(w * (gradient - c), axis=1) / 2 + np.sum(l1 * np.abs(w), axis=1)


def _slack(c, l1, w, size):
    """Bound the rounding of a gradient, each variable in its own units."""
    terms = size * np.sum(size * np.abs(w), axis=1, keepdims=True)  # at least |Q| |w|
    return 1e-10 * l1 + _ROUNDING * (terms + np.abs(c))


def _missed(gradient, c, l1, w, size):
    """Which variables are zero that should not be."""
    return (w == 0) & (l1 > 0) & (np.abs(gradient) > l1 + _slack(c, l1, w, size))


def _shorter(Q, c, l1, w, step, crosses, careful):
    """Return the lowest of the points after parts of a step, on which variables stop at zero; gradient, objective.

    Where this must be ``careful``, it is the first where one does: rounding may hide that it is lower.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        when = np.where(crosses, np.where(w == 0, 0.0, w / step), np.inf)
    parts = np.append(np.broadcast_to(_PARTS, (len(w), len(_PARTS))), when.min(axis=1, keepdims=True), axis=1)
    parts = parts[:, :, None]
    points = np.where(when[:, None] <= parts, 0.0, w[:, None] - parts * step[:, None])
    gradients = points @ Q - c[:, None]
    values = np.sum(points * (gradients - c[:, None]), axis=2) / 2 + np.sum(l1[:, None] * np.abs(points), axis=2)
    best = np.arange(len(w)), np.where(careful, len(_PARTS), values.argmin(axis=1))
    return points[best], gradients[best], values[best]


def _sums(labels, values, shape):
    """Sum values over the variables of each group, of the shape (quadratic, group)."""
    place = labels + shape[1] * np.arange(shape[0])[:, None]
    return np.bincount(place.ravel(), values.ravel(), shape[0] * shape[1]).reshape(shape)


def _solve_inside(Q, right, inside, bend=None, unit=None, labels=None):
    """Solve for some variables of each quadratic with the others at zero; NaN if one is not positive definite.

    Group norms add the curvature ``bend`` in all directions within the group but ``unit``, (model, variable) each.
    """
    right, n, diagonal = np.where(inside, right, 0.0), right.shape[1], np.einsum("nii->ni", Q)
    if bend is not None:
        diagonal = diagonal + bend * (1 - unit**2)  # exactly 0 more for a group of one
    if n <= _SMALL:
        own = Q
        if bend is not None:
            own = Q - (labels[:, :, None] == labels[:, None]) * (bend * unit)[:, :, None] * unit[:, None]
            np.einsum("nii->ni", own)[:] = diagonal
        outside = ~inside
        own = np.where(outside[:, :, None] | outside[:, None, :], np.eye(n), own)
        with contextlib.suppress(np.linalg.LinAlgError):  # of one of them
            return solve(own, right)
    for i, which in enumerate(inside):
        at = np.flatnonzero(which)
        if at.size:
            own = Q[i].take(at, 0).take(at, 1)  # faster than to index both
            if bend is not None:
                u, b, group = unit[i, at], bend[i, at], labels[i, at]
                own -= (group[:, None] == group) * np.outer(b * u, u)
                own.flat[:: len(at) + 1] = diagonal[i, at]
            solved = right[i, at]
            right[i, at] = solved if solve_definite(own, solved) else np.nan
    return right


def minimise_groups(Q, c, labels, strength, start, share=0.0):
    """Minimise ``w'Q w / 2 - c'w + sum_g strength_g |w_g|`` of several quadratics, (quadratic, variable).

    w has groups of exact zeros; the first group is free, and the last past the end. Newton steps on the groups that are
    not zero, where the norms are smooth, are fast once the zeros are right. Where they are not, the objective is
    minimised over one group after the other: over those that should switch between zero and not, or over all if this
    does not help. It never increases, but for rounding. It may stop when a Newton step promises less than a ``share``
    of the decrease.
    """
    out, w, left, groups = start.copy(), start, np.arange(len(c)), None
    size = np.abs(c).max(axis=1, initial=0.0) + strength.max(axis=1, initial=0.0)
    best, since, before = np.full(len(c), np.inf), np.zeros(len(c)), np.full(len(c), np.inf)
    given, first = (Q, c, labels, strength), None  # the objective at the start
    for _ in range(_GROUP_ROUNDS):
        after, missed, released, value, promised, length = _newton_of_groups(*given, w)
        if (short := length < _SHORT).any():
            after[short] = _damped(*(values[short] for values in (*given, w, after)))
        first = value if first is None else first
        enough = (length == 1) & (promised < share * (first - value))
        done = ((missed <= _NEAR * size) | enough) & ~released
        since = np.where(missed < 0.5 * best, 0, since + 1)
        best = np.minimum(best, missed)
        ended = done | (since >= _STUCK)
        slow = ~ended & (released | ~(missed <= _FAST * before))
        if slow.any():
            groups = groups or list(_groups(Q, labels, strength))
            row = np.full(len(out), -1)
            row[left[slow]] = np.flatnonzero(slow)
            _switch(groups, row, *given[:2], after, since >= _SWITCHING)
        w, before = np.where((ended & ~done)[:, None], w, after), missed
        out[left] = w
        if ended.all():
            break
        if ended.any():
            some = (left, w, size, best, since, before, first, *given)
            left, w, size, best, since, before, first, *given = (values[~ended] for values in some)
    return out


class _Groups(NamedTuple):
    """Groups of one size of all quadratics, in the order of these."""

    quadratic: np.ndarray
    at: np.ndarray  # variables, (group, member)
    strength: np.ndarray
    values: np.ndarray  # eigenvalues of Q within the group
    vectors: np.ndarray

    def slopes(self, some, place, residual, w):
        """Slope at zero of some groups, in their eigenvectors; ``place`` has the rows of their quadratics."""
        turn, here = self.vectors[some].swapaxes(1, 2), (place[:, None], self.at[some])
        return times(turn, residual[here]) + self.values[some] * times(turn, w[here])


def _groups(Q, labels, strength):
    """Yield the groups of all quadratics, except those past the end, by size."""
    counts = _sums(labels, np.ones(labels.shape), strength.shape).astype(int)
    order, first = np.argsort(labels, axis=1, kind="stable"), np.cumsum(counts, axis=1) - counts
    for size in np.unique(counts[:, :-1]):
        if size:
            which, group = np.nonzero(counts[:, :-1] == size)
            at = order[which[:, None], first[which, group][:, None] + np.arange(size)]
            inner = np.linalg.eigh(Q[which[:, None, None], at[:, :, None], at[:, None]])
            yield _Groups(which, at, strength[which, group], *inner)


def _switch(groups, row, Q, c, w, everything) -> None:
    """Minimise over the groups that should switch between zero and not, one after the other; changes w.

    ``row`` has the place of every quadratic in Q, c and w, or -1; ``everything`` (place,) says where to minimise over
    all groups.
    """
    residual = c - times(Q, w)
    for of in groups:
        place = row[of.quadratic]
        chosen = (place >= 0) & everything[place]
        if not everything.all():
            b, active = of.slopes(slice(None), place, residual, w), w[place[:, None], of.at].any(axis=1)
            chosen |= (place >= 0) & (of.strength > 0) & (active != (np.sum(b * b, axis=1) > of.strength**2))
        chosen = np.flatnonzero(chosen)
        turns = np.arange(len(chosen)) - np.searchsorted(place[chosen], place[chosen])  # one group of each at a time
        for turn in range(turns.max(initial=-1) + 1):
            some = chosen[turns == turn]
            here, at = place[some], (place[some][:, None], of.at[some])
            b = of.slopes(some, here, residual, w)
            new = times(of.vectors[some], _least_of_groups(of.values[some], b, of.strength[some]))
            residual[here] -= ((new - w[at])[:, None] @ Q[at])[:, 0]
            w[at] = new


def _least_of_groups(values, b, strength):
    """Minimise ``v'diag(values) v / 2 - b'v + strength |v|`` of several groups, (group, member)."""
    strength = strength[:, None]
    active = np.sum(b * b, axis=1, keepdims=True) > strength**2
    if not active.all():
        out = np.zeros_like(b)
        some = active[:, 0]
        if some.any():
            out[some] = _least_of_groups(values[some], b[some], strength[some, 0])
        return out
    # With t the norm of v, sum (b / (values t + strength))^2 = 1: a power mean of lines in t, concave and increasing,
    # so that Newton's steps come from below and never pass the root.
    t = np.zeros_like(strength)
    free = strength == 0
    bound = np.where(free, 1.0, strength)
    for _ in range(_SECULAR_STEPS):
        line = values * t + bound
        squares = (b / line) ** 2
        total = np.sum(squares, axis=1, keepdims=True)
        step = total * (np.sqrt(total) - 1) / np.sum(squares * values / line, axis=1, keepdims=True)
        step[free] = 0.0
        t += step
        if np.all(step <= 1e-15 * t):
            break
    return np.where(free, b / values, b * t / (values * t + bound))


def _damped(Q, c, labels, strength, w, after):
    """Return the lowest of some points and those after damped Newton steps from w: some directions are almost flat."""
    best = _values(Q, c, labels, strength, after)
    for damping in _DAMPED:  # the same gradient at w, and an upper bound elsewhere
        there = _newton_of_groups(Q + damping * np.eye(Q.shape[1]), c + damping * w, labels, strength, w)[0]
        value = _values(Q, c, labels, strength, there)
        after, best = np.where((value < best)[:, None], there, after), np.fmin(value, best)
    return after


def _values(Q, c, labels, strength, w):
    """Objectives of quadratics plus norms, (quadratic,)."""
    norms = np.sqrt(_sums(labels, w**2, strength.shape))
    return np.sum(w * (times(Q, w) / 2 - c), axis=1) + np.sum(strength * norms, axis=1)


def _newton_of_groups(Q, c, labels, strength, w):
    """Take a Newton step on the groups that are not zero, if it descends.

    Returns w after the step as a new array and, (quadratic,) each: the largest entry of the gradient before it, whether
    some group was zero there that should not be, the objective there, the decrease that the whole step promised, and
    which part of it was taken.
    """
    shape = strength.shape

    def own(values):
        """Values of the group of each variable."""
        return np.take_along_axis(values, labels, 1)

    gradient = times(Q, w) - c
    norms = np.sqrt(_sums(labels, w**2, shape))
    smooth, zero = (norms > 0) & (strength > 0), (norms == 0) & (strength > 0)
    released = np.any(zero & (np.sqrt(_sums(labels, gradient**2, shape)) > strength * (1 + 1e-10)), axis=1)
    unit = w / own(np.where(norms > 0, norms, 1.0))
    bend = own(np.where(smooth, strength / np.where(smooth, norms, 1.0), 0.0))
    inside = ~own(zero) & (labels < shape[1] - 1)
    slope = np.where(inside, gradient + own(strength) * unit, 0.0)
    step = _solve_inside(Q, slope, inside, bend, unit, labels)
    failed = ~np.isfinite(step).all(axis=1)
    step[failed] = 0.0
    push, bent = -np.sum(step * gradient, axis=1), np.sum(step * times(Q, step), axis=1)
    length, rounding = np.ones(len(w)), _ROUNDING * np.sum(strength * norms, axis=1)
    while True:
        # The objective after a part of the step minus that before, with the rounding of the norms alone.
        moved = np.sqrt(_sums(labels, (w - length[:, None] * step) ** 2, shape)) - norms
        change = length * (push + length / 2 * bent) + np.sum(strength * moved, axis=1)
        high = ~(change < rounding) & (length > _SHORTEST) & step.any(axis=1)
        if not high.any():
            break
        length[high] /= 2
    length[length <= _SHORTEST] = 0.0
    value = np.sum(w * (gradient - c), axis=1) / 2 + np.sum(strength * norms, axis=1)
    missed = np.abs(slope).max(axis=1, initial=0.0)
    promised, length = np.sum(step * slope, axis=1) / 2, np.where(failed, 0.0, length)
    return w - length[:, None] * step, missed, released, value, promised, length
