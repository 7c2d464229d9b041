"""Least of a quadratic plus an l1 norm in a few dozen variables: exact, on the variables that are not zero."""

from __future__ import annotations

import numpy as np
from scipy.linalg.lapack import dposv

_ROUNDS, _PATIENT = 40, 6


def minimise_l1(Q, c, l1, start):
    """Minimise ``w'Q w / 2 - c'w + sum l1 |w|``.

    Parameters
    ----------
    Q : numpy.ndarray
        Positive definite, (variable, variable).
    c, l1 : numpy.ndarray
        (variable,); l1 is >= 0, and 0 for a variable that is free.
    start : numpy.ndarray
        First guess of w, (variable,): the nearer its zeros and signs, the fewer rounds.

    Returns
    -------
    numpy.ndarray
        w with exact zeros.

    Notes
    -----
    The optimum given zeros and signs is one linear system. At first all variables that come out with the wrong sign,
    or should not be zero, change over at once, which ends after a few rounds as a rule. If it has not, they
    change over one by one along a path on which the objective falls, which must end (Lee, Battle, Raina, Ng 2007,
    Efficient sparse coding algorithms).
    """
    w, free = start.copy(), l1 == 0
    sign = np.where(free, 0.0, np.sign(w))
    slack = 1e-8 * (np.abs(c) + l1)  # each in its own units
    for round_ in range(_ROUNDS * len(c)):
        inside = free | (sign != 0)
        target = _given_signs(Q, c, l1, sign, inside)
        wrong = (target * sign < 0) | (inside & ~free & (target == 0))
        if round_ < _PATIENT:
            w = np.where(wrong, 0.0, target)
            sign = np.where(wrong, 0.0, sign)
        elif wrong.any():
            w, sign = _to_first_crossing(w, target, sign, wrong)
            continue
        else:
            w = target
        gradient = Q @ w - c
        missed = ~free & (sign == 0) & ~wrong & (np.abs(gradient) > l1 + slack)
        if not wrong.any() and not missed.any():
            return w
        if round_ >= _PATIENT - 1:
            missed &= np.abs(gradient) - l1 == np.max(np.where(missed, np.abs(gradient) - l1, -np.inf))
        sign = np.where(missed, -np.sign(gradient), sign)
    return w


def _given_signs(Q, c, l1, sign, inside):
    """Optimum with the other variables at zero."""
    at = np.flatnonzero(inside)
    out = np.zeros_like(c)
    if at.size:
        _, out[at], failed = dposv(Q[np.ix_(at, at)], (c - l1 * sign)[at], lower=True)
        if failed:
            raise np.linalg.LinAlgError("the quadratic is not positive definite")
    return out


def _to_first_crossing(w, target, sign, wrong):
    """Go from w towards the target until a variable reaches zero, which leaves."""
    with np.errstate(divide="ignore", invalid="ignore"):
        when = np.where(wrong, np.where(w == target, 0.0, w / (w - target)), np.inf)
    when = np.clip(when, 0.0, np.inf)
    t = when.min()
    gone = when <= t
    return np.where(gone, 0.0, w + min(t, 1.0) * (target - w)), np.where(gone, 0.0, sign)
