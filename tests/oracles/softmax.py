"""Softmax models written down slowly: losses by loops, gradients by hand, proximal steps by a generic minimiser."""

import itertools

import jax.numpy as jnp
import numpy as np
from scipy.optimize import minimize
from scipy.special import logsumexp, wrightomega

# ------------------------------------------------------------------- the model, W (class, feature), sums over rows


def scores(W, X, offset=None):
    s = X @ W.T
    return s if offset is None else s + offset


def nll(W, X, Y, offset=None, weight=None, mu=0.0):
    """Negative log-likelihood of counts Y (row, class), without the multinomial coefficient, plus ridge."""
    s = scores(W, X, offset)
    weight = np.ones(len(X)) if weight is None else weight
    rows = Y.sum(axis=1) * logsumexp(s, axis=1) - (Y * s).sum(axis=1)
    return float(weight @ rows + mu / 2 * np.sum(W**2))


def nll_gradient(W, X, Y, offset=None, weight=None, mu=0.0):
    s = scores(W, X, offset)
    weight = np.ones(len(X)) if weight is None else weight
    pi = np.exp(s - logsumexp(s, axis=1, keepdims=True))
    return (weight[:, None] * (Y.sum(axis=1, keepdims=True) * pi - Y)).T @ X + mu * W


def one_hot(y, K):
    return np.eye(K)[np.asarray(y)]


def minimum(X, Y, offset, strength):
    """Least mean loss plus ridge over coefficients and free intercepts, by quasi-Newton steps from three starts."""
    n, d = X.shape
    K, wide = Y.shape[1], np.column_stack([X, np.ones(n)])

    def objective(v):
        W = v.reshape(K, d + 1)
        free = W * np.r_[np.ones(d), 0]
        value = nll(W, wide, Y, offset) / n + strength / 2 * np.sum(free**2)
        return value, (nll_gradient(W, wide, Y, offset) / n + strength * free).ravel()

    found = []
    for scale in (0.0, 1.0, 10.0):
        v = scale * np.random.default_rng(0).normal(size=K * (d + 1))
        for _ in range(3):  # restarted because its memory belongs to another point
            v = minimize(
                objective, v, jac=True, method="L-BFGS-B", options={"maxiter": 5000, "ftol": 1e-16, "gtol": 1e-12}
            ).x
        found.append(objective(v)[0])
    return min(found)


def newton(X, Y, offset=None, strength=0.0, n_steps=100):
    """Minimiser of the mean loss plus ridge, none on the last column of X, by Newton's method: W (class, column).

    Uses every row's whole curvature and halves steps until they descend; the shift common to all classes stays at 0.
    """
    n, K = Y.shape
    free = np.append(np.ones(X.shape[1] - 1), 0.0)
    W = np.zeros((K, X.shape[1]))

    def value(W):
        return nll(W, X, Y, offset) / n + strength / 2 * np.sum((W * free) ** 2)

    for _ in range(n_steps):
        s = scores(W, X, offset)
        p = np.exp(s - logsumexp(s, axis=1, keepdims=True))
        total = Y.sum(axis=1)
        g = nll_gradient(W, X, Y, offset) / n + strength * W * free
        H = -np.einsum("i,ik,il,id,ie->kdle", total, p, p, X, X, optimize=True) / n
        for k in range(K):
            H[k, :, k] += (X.T * (total * p[:, k])) @ X / n + np.diag(strength * free)
        move = -np.linalg.lstsq(H.reshape(W.size, -1), g.ravel(), rcond=1e-15)[0].reshape(W.shape)
        here, t = value(W), 1.0
        while not value(W + t * move) <= here and t > 1e-12:
            t /= 2
        if t <= 1e-12 or np.abs(move).max() < 1e-14:
            break
        W = W + t * move
    return W, value(W)


# ------------------------------------------------------------------------- the double sum


def row_term(s, y, v, alpha=0.0):
    """Term of one labelled row in the double sum, with v = u + alpha s_y."""
    total = v - alpha * s[y] + np.exp(alpha * s[y] - v)
    return total + sum(np.exp(s[k] - (1 - alpha) * s[y] - v) for k in range(len(s)) if k != y)


def double_sum(v, W, X, y, alpha=0.0, offset=None, weight=None, mu=0.0):
    s = scores(W, X, offset)
    weight = np.ones(len(X)) if weight is None else weight
    return sum(weight[i] * row_term(s[i], y[i], v[i], alpha) for i in range(len(X))) + mu / 2 * np.sum(W**2)


def best_auxiliary(W, X, y, alpha=0.0, offset=None):
    s = scores(W, X, offset)
    return logsumexp(s, axis=1) - (1 - alpha) * s[np.arange(len(X)), y]


def double_sum_gradient(v, W, X, y, alpha=0.0, offset=None, weight=None, mu=0.0):
    """Gradient in v and in W, term by term."""
    s = scores(W, X, offset)
    weight = np.ones(len(X)) if weight is None else weight
    gv, gW = np.zeros(len(X)), mu * W
    for i in range(len(X)):
        label = np.exp(alpha * s[i, y[i]] - v[i])
        gv[i] = weight[i] * (1 - label)
        gW[y[i]] += weight[i] * (-alpha + alpha * label) * X[i]
        for k in range(W.shape[0]):
            if k == y[i]:
                continue
            e = np.exp(s[i, k] - (1 - alpha) * s[i, y[i]] - v[i])
            gv[i] -= weight[i] * e
            gW[k] += weight[i] * e * X[i]
            gW[y[i]] -= weight[i] * (1 - alpha) * e * X[i]
    return gv, gW


def count_term(s, y, v, alpha=0.0):
    """Term of one row of counts with a single auxiliary variable v = u + alpha m, m the mean score of its counts."""
    mean = sum(y[k] * s[k] for k in range(len(s))) / y.sum()
    return y.sum() * (v - alpha * mean + sum(np.exp(s[k] - (1 - alpha) * mean - v) for k in range(len(s))))


def count_gradient(v, W, X, Y, alpha=0.0, offset=None, weight=None):
    """Gradient of the sum of `count_term` in v and in W, term by term."""
    s = scores(W, X, offset)
    weight = np.ones(len(X)) if weight is None else weight
    gv, gW = np.zeros(len(X)), np.zeros_like(W)
    for i in range(len(X)):
        n, share = weight[i] * Y[i].sum(), Y[i] / Y[i].sum()
        e = np.exp(s[i] - (1 - alpha) * share @ s[i] - v[i])
        gv[i] = n * (1 - e.sum())
        for k in range(W.shape[0]):
            gW[k] += n * (e[k] - alpha * share[k] - (1 - alpha) * share[k] * e.sum()) * X[i]
    return gv, gW


def subsets(items, m):
    """Every subset of m of the items; all equally likely."""
    return list(itertools.combinations(items, m))


# ------------------------------------------------------------------------- proximal steps by a generic minimiser


def implicit_objective(theta, c, a, x, u, w, w_label, ridge=0.0, offset=None):
    """c (v + exp(-v) + sum a_k exp(s_k - s_y - v)) + ridge and distances; theta = (v, w_k of all, w_y)."""
    m, d = w.shape
    v, wk, wy = theta[0], theta[1 : 1 + m * d].reshape(m, d), theta[1 + m * d :]
    delta = wk @ x - wy @ x + (0 if offset is None else offset)
    value = c * (v + np.exp(-v) + np.sum(a * np.exp(delta - v)))
    value += ridge / 2 * (np.sum(wk**2) + np.sum(wy**2))
    return value + ((v - u) ** 2 + np.sum((wk - w) ** 2) + np.sum((wy - w_label) ** 2)) / 2


def implicit_by_bisection(c, log_a, delta, mobility, u):
    """Return v after steps with one negative, whose mobility includes that of the label: Algorithm 1."""
    level, safe = np.log(c) + log_a + delta, np.where(mobility > 0, mobility, 1.0)
    low, high = np.zeros_like(u), np.maximum(u, np.logaddexp(0, log_a + delta))
    for _ in range(200):
        v = (low + high) / 2
        with np.errstate(over="ignore"):
            still = np.exp(level - v)
        push = np.where(mobility > 0, wrightomega(level - v + np.log(safe)).real / safe, still)
        below = c * -np.expm1(-v) + v - u < push
        low, high = np.where(below, v, low), np.where(below, high, v)
    return v


def implicit_by_minimiser(c, a, x, u, w, w_label, ridge=0.0, offset=None):
    """Return v, w_k (negative, feature), w_y at the minimum."""
    m, d = w.shape

    def parts(theta):
        v, wk, wy = theta[0], theta[1 : 1 + m * d].reshape(m, d), theta[1 + m * d :]
        delta = wk @ x - wy @ x + (0 if offset is None else offset)
        return v, wk, wy, a * np.exp(delta - v)

    def gradient(theta):
        v, wk, wy, e = parts(theta)
        gv = c * (1 - np.exp(-v) - e.sum()) + v - u
        gk = c * e[:, None] * x + ridge * wk + wk - w
        gy = -c * e.sum() * x + ridge * wy + wy - w_label
        return np.concatenate([[gv], gk.ravel(), gy])

    def hessian(theta):
        v, _, _, e = parts(theta)
        n = len(theta)
        H = np.eye(n)
        H[1:, 1:] += ridge * np.eye(n - 1)
        H[0, 0] += c * np.exp(-v)
        for k in range(m):
            g = np.zeros(n)
            g[0] = -1
            g[1 + k * d : 1 + (k + 1) * d] = x
            g[1 + m * d :] = -x
            H += c * e[k] * np.outer(g, g)
        return H

    theta = np.concatenate([[u], w.ravel(), w_label])
    args = (c, a, x, u, w, w_label, ridge, offset)
    found = minimize(
        implicit_objective, theta, args=args, jac=lambda t, *_: gradient(t), hess=lambda t, *_: hessian(t),
        method="trust-exact", options={"gtol": 1e-13, "maxiter": 2000},
    ).x  # fmt: skip
    for _ in range(5):  # polish
        found = found - np.linalg.solve(hessian(found), gradient(found))
    v, wk, wy, _ = parts(found)
    return v, wk, wy


def pair_step(solver, c, log_a, score, own, mobility, u, tau=None):
    """Step of a solver on a row and a label: pushes on the negatives, the pull on the label, and the variable after."""
    scores, target = jnp.append(jnp.asarray(score), own), jnp.arange(len(score) + 1) == len(score)
    tau = c if tau is None else tau
    step = solver.step(c, tau, jnp.where(target, 0.0, log_a), scores, target.astype(scores.dtype), mobility, u)
    return -step.amount[:-1], step.amount[-1], step.u
