"""Bounds from generalised self-concordance: distance from the optimum, and steps that are proved to descend.

Losses with ``|phi'''| <= M phi''`` (M = 1 for Poisson counts, both links): along any line the curvature changes by at
most a factor exp(M times the change of eta). Derivations: docs/theory/self_concordance.md.
"""

import numpy as np
from numpy.typing import ArrayLike

from ..numerics import Array

GAP_THEOREM = (
    "generalised self-concordance |phi'''| <= M phi'', M = 1 for Poisson counts: with q = M R lambda < 1, "
    "F - F* <= (q + (1 - q) log(1 - q)) / (M R)^2 (docs/theory/self_concordance.md)"
)
_SURE = 0.5  # of q; rounding does not halve it


def gap_bound(
    decrement_squared: ArrayLike, radius_squared: ArrayLike, attained: bool = True, constant: float | None = 1.0
) -> np.ndarray:
    r"""Bound ``F - F*`` from the Newton decrement and the reach of the Hessian's ball.

    .. math:: F - F^* \le \frac{q + (1-q)\log(1-q)}{M^2R^2},\qquad q = MR\lambda < 1

    Parameters
    ----------
    decrement_squared :
        :math:`\lambda^2 = g'H^{-1}g` or an upper bound, (neuron,). With a non-smooth penalty g is the gradient of the
        smooth part plus any subgradient of the penalty.
    radius_squared :
        :math:`R^2 = \max_t x_t'H^{-1}x_t` with the intercept's 1 in x, or an upper bound, (neuron,).
    attained : bool
        Whether an optimum is known to exist, as with a ridge. If there is none, q >= 1 everywhere, and q = 1 is common.
        So that rounding cannot turn that into a bound, none is given for q > 1/2 if existence is unknown.
    constant : float or None
        M of the loss (`Observation.constant`); None, if there is none, gives no bound.

    Returns
    -------
    numpy.ndarray
        float64 bounds, (neuron,), about :math:`\lambda^2/2` for small q; infinite ("no bound yet") where q >= 1 (or
        1/2) or an argument is not finite.

    Notes
    -----
    `GAP_THEOREM`; proof in docs/theory/self_concordance.md. The last step inflates by 1e-9, far above its own rounding.
    """
    decrement_squared = np.asarray(decrement_squared, np.float64)
    constant = np.nan if constant is None else constant
    with np.errstate(over="ignore", invalid="ignore"):
        radius_squared = constant**2 * np.asarray(radius_squared, np.float64)
        product = decrement_squared * radius_squared
    most = 1 if attained else _SURE**2
    valid = np.isfinite(product) & (product < most) & (decrement_squared >= 0) & (radius_squared >= 0)
    q = np.sqrt(np.where(valid, product, 0.0))
    # Below q = 1e-2 the closed form cancels; there the series, the sum of q^k / (k (k - 1)), is exact.
    series = 0.5 + q / 6 + q**2 / 12 + q**3 / 20 + q**4 / 30 + q**5 / 42 + q**6 / 56
    large = np.maximum(q, 1e-2)
    closed = (large + (1 - large) * np.log1p(-large)) / large**2
    factor = np.where(q < 1e-2, series * (1 + 1e-12), closed)
    return np.where(valid, decrement_squared * factor * (1 + 1e-9), np.inf)


def stepped_gap_bound(
    slope: ArrayLike,
    curvature: ArrayLike,
    length: ArrayLike,
    residual: ArrayLike,
    reach: ArrayLike,
    radius_squared: ArrayLike,
    attained: bool = True,
    constant: float | None = 1.0,
) -> np.ndarray:
    r"""Bound ``F - F*`` by the gain of a step ``-x`` and the bound `gap_bound` at its end.

    .. math:: F(w) - F^* \le g'x - \frac{x'Hx}{2 + S} + B(e^{S/2}(\lVert g - Hx\rVert_{H^{-1}}
        + \tfrac S2e^S\lVert x\rVert_H),\ e^{S/2}R)

    with B the bound of `gap_bound`. If x is almost Newton's step, this needs a small S, not a small :math:`MR\lambda`.

    Parameters
    ----------
    slope, curvature :
        :math:`g'x`, and a lower bound of :math:`x'Hx`, (neuron,) each.
    length, residual :
        Upper bounds of :math:`\lVert x\rVert_H` and of :math:`\lVert g - Hx\rVert_{H^{-1}}`, (neuron,) each.
    reach :
        :math:`\max_t|x_t'x|` or an upper bound, with the intercept's 1 in :math:`x_t`, (neuron,); S is M times that.
    radius_squared, attained, constant :
        As for `gap_bound`, at the start of the step.

    Returns
    -------
    numpy.ndarray
        float64 bounds, (neuron,), infinite where `gap_bound` has none.

    Notes
    -----
    `GAP_THEOREM` at the end of the step; proof in docs/theory/self_concordance.md, "Through a step".
    """
    with np.errstate(over="ignore", invalid="ignore"):
        S = (np.nan if constant is None else constant) * np.asarray(reach, np.float64)
        rest = residual + S / 2 * np.exp(S) * length
        gain = slope - np.maximum(curvature, 0.0) / (2 + S)
        left = gap_bound(np.exp(S) * rest**2, np.exp(S) * radius_squared, attained, constant)
        found = np.maximum(gain, 0.0) * (1 + 1e-9) + left
    return np.where(np.isfinite(found), found, np.inf)


def descent_step(slope: Array, curvature: Array, reach: Array) -> Array:
    r"""Step along a direction that is proved to descend: :math:`t = \log(1 + S a/q)/S`, Newton's a/q as S -> 0.

    Parameters
    ----------
    slope, curvature :
        :math:`a = -g'v`, the directional decrease, and :math:`q = v'Hv` at the current point; NumPy or JAX arrays.
    reach :
        :math:`S = M\max_t |x_t'v|`.

    Returns
    -------
    array
        t, 0 where the slope is not positive.

    Notes
    -----
    t minimises the upper model :math:`F - ta + q(e^{tS} - tS - 1)/S^2`, so F decreases by at least as much as the
    model; proof in docs/theory/self_concordance.md.
    """
    xp = slope.__array_namespace__()
    tiny = xp.finfo(slope.dtype).tiny
    with np.errstate(over="ignore", invalid="ignore"):
        newton = slope / xp.maximum(curvature, tiny)
        x = xp.clip(reach * newton, 0, 1e30)
        step = xp.where(x < 1e-4, newton * (1 - 0.5 * x), xp.log1p(x) / xp.maximum(reach, tiny))
    return xp.where((slope > 0) & xp.isfinite(step), step, 0)
