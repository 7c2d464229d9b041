"""Distance from the optimum of fits with kinked penalties, by duality, neuron by neuron. Never imports glmfit."""

import numpy as np
from oracles import penalties
from oracles import population as oracle


def gap(
    link, X, Y, coef, intercept, name, strength, ratio=0.5, groups=None, sample_weight=None, offset=None, dual_at=None
):
    """Bound F - F* of every neuron, (neuron,); inf where the dual point says only that losses are bounded below.

    Residuals of the dominant sign are shrunk until all sum to 0, then all until the penalty's conjugate is
    finite. ``strength`` is a scalar or (neuron,); ``groups`` label the features of a group lasso; ``dual_at`` are the
    parameters whose residuals serve, those of the fit by default: any lead to a bound, the nearest to the best.
    """
    X, Y = np.asarray(X, float), np.asarray(Y, float)
    w = oracle.mean_one(sample_weight, len(X)) / len(X)
    known = 0.0 if offset is None else np.asarray(offset, float)
    strength = np.broadcast_to(strength, Y.shape[1])
    coefs, intercepts = (coef, intercept) if dual_at is None else dual_at
    bounds = []
    for n in range(Y.shape[1]):
        lower = _lower_bound(
            link, X, Y[:, n], w, known, X @ coefs[:, n] + intercepts[n], name, strength[n], ratio, groups
        )
        loss = w @ oracle.loss(link, Y[:, n], X @ coef[:, n] + intercept[n] + known)
        bounds.append(loss + penalties.value(name, coef[:, n, None], strength[n], ratio, groups)[0] - lower)
    return np.array(bounds)


def _lower_bound(link, X, y, w, known, z, name, strength, ratio, groups):
    """Largest value of the dual known from the predictors ``z``, (); -inf where it says nothing."""
    loss, r = oracle.loss(link, y, z + known), oracle.derivative(link, y, z + known)
    lowest = y - y * np.log(np.where(y > 0, y, 1))
    up, down = w[r > 0] @ r[r > 0], -w[r < 0] @ r[r < 0]
    balance = np.where(r > 0, min(1, down / up), min(1, up / down))
    sizes = _sizes(name, X.T @ (w * balance * r), strength, ratio, groups)
    dual = -np.inf
    for share in (1.0, min(1.0, 1 / sizes.max(initial=1e-300))):
        s = share * balance
        value = w @ ((1 - s) * lowest - s * (r * z - loss))
        dual = max(dual, value - _conjugate(name, X.T @ (w * s * r), strength, ratio, groups))
    return dual if dual > w @ lowest else -np.inf


def _sizes(name, dual, strength, ratio, groups):
    """Sizes of the dual point that must be at most 1 for the conjugate of the kinked part to be 0."""
    if name == "Ridge":
        return np.zeros(0)
    if name == "GroupLasso":
        of = np.array(groups)
        return np.array([np.linalg.norm(dual[of == g]) / np.sqrt(np.sum(of == g)) for g in set(groups)]) / strength
    return np.abs(dual) / (strength * (ratio if name == "ElasticNet" else 1.0))


def _conjugate(name, dual, strength, ratio, groups):
    if name == "Ridge":
        return np.sum(dual**2 / (2 * strength))
    if name == "ElasticNet":
        return np.sum(np.maximum(np.abs(dual) - ratio * strength, 0) ** 2 / (2 * (1 - ratio) * strength))
    return 0.0 if _sizes(name, dual, strength, ratio, groups).max() <= 1 + 1e-9 else np.inf
