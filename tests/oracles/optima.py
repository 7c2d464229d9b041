"""The optimum of one neuron's Poisson GLM for any design, its value in extended precision. Never imports glmfit.

F(w, b) = sum_t v_t [e_t f(eta_t) - y_t log f(eta_t)] / sum_t v_t e_t + sum_j ridge_j w_j^2 / 2 + sum_g kink_g |w_g|,
eta = X w + b + offset, with weights v, exposure e, and blocks g of features whose norms are penalised.

Smooth problems are solved by Newton steps. Those with norms are solved by following the path of a barrier, whose
parameter bounds the distance from the optimum, and by Newton steps on the remaining blocks. All computations use
coordinates in which the rows are uncorrelated, so that columns that nearly repeat others do no harm. Parameters and
objectives are long doubles: with the coefficients of 1e8 that such columns get, a float64 would not hold the optimum.
"""

from typing import NamedTuple

import mpmath as mp
import numpy as np
from scipy.linalg import solve_triangular, svd
from scipy.optimize import linprog
from scipy.special import expit

LD = np.longdouble
EPS = float(np.finfo(LD).eps)


class Neuron(NamedTuple):
    """Data and penalty of one neuron."""

    link: str
    X: np.ndarray  # (time, feature)
    y: np.ndarray  # (time,)
    weights: np.ndarray  # (time,)
    exposure: np.ndarray  # (time,)
    offset: np.ndarray  # (time,)
    ridge: np.ndarray  # (feature,)
    block: np.ndarray  # (feature,), number of the block whose norm is penalised, or -1
    kink: np.ndarray  # (block,)


class Optimum(NamedTuple):
    """Best parameters found, long double, and how much lower the infimum may be."""

    coef: np.ndarray
    intercept: np.longdouble
    objective: np.longdouble
    uncertainty: float  # if the problem has an optimum


def neuron(link, X, y, weights=None, exposure=None, offset=None, ridge=0.0, block=None, kink=()):
    """Neuron in float64 with the rows that count and omitted arguments filled in; no NaN."""
    n_rows, n_features = X.shape
    weights = np.ones(n_rows) if weights is None else np.asarray(weights, float)
    exposure = np.ones(n_rows) if exposure is None else np.asarray(exposure, float)
    offset = np.zeros(n_rows) if offset is None else np.asarray(offset, float)
    keep = (weights > 0) & (exposure > 0)
    block = np.full(n_features, -1) if block is None else np.asarray(block)
    rows = (np.asarray(a, float)[keep] for a in (X, y, weights, exposure, offset))
    return Neuron(link, *rows, np.broadcast_to(np.asarray(ridge, float), n_features), block, np.asarray(kink, float))


# -------------------------------------------------------------------------------- one bin


def rate(link, eta):
    return np.exp(eta) if link == "exp" else np.logaddexp(0, eta)


def log_rate(link, eta):
    if link == "exp":
        return eta
    far = eta < -30  # log log(1 + e^eta) there: two terms of its series leave e^-90
    near = np.log(np.logaddexp(0, np.where(far, 0, eta)))
    tail = np.exp(np.where(far, eta, -30))
    return np.where(far, eta - tail / 2 + 5 * tail**2 / 24, near)


def derivative(link, y, exposure, eta):
    """Derivative of exposure f - y log f."""
    if link == "exp":
        return exposure * np.exp(eta) - y
    s = expit(eta)
    return exposure * s - y * _slope(eta, s)


def curvature(link, y, exposure, eta):
    if link == "exp":
        return exposure * np.exp(eta)
    s, t = expit(eta), expit(-eta)
    r = _slope(eta, s)
    h = np.where(eta < -12, np.exp(np.minimum(eta, 0)) / 2, r * (r - t))
    return exposure * s * t + y * np.maximum(h, 0)


def _slope(eta, s):
    """(log softplus)'."""
    return np.where(eta < -30, 1.0, s / np.logaddexp(0, np.maximum(eta, -30)))


# -------------------------------------------------------------------------------- one objective


def predictor(p, coef, intercept):
    return p.X.astype(LD) @ np.asarray(coef, LD) + LD(intercept) + p.offset.astype(LD)


def objective(p, coef, intercept):
    """F in extended precision; float64 values are taken as exact."""
    return _mean_loss(p, predictor(p, coef, intercept)) + penalty(p, coef)


def _mean_loss(p, eta):
    v, e, y = (a.astype(LD) for a in (p.weights, p.exposure, p.y))
    with np.errstate(over="ignore", invalid="ignore"):
        costs = v * e * rate(p.link, eta)
        gains = np.where(y > 0, v * y * log_rate(p.link, eta), 0)
        return (costs - gains).sum() / (v * e).sum()


def penalty(p, coef):
    w = np.asarray(coef, LD)
    norms = [np.sqrt(np.sum(w[p.block == g] ** 2)) for g in range(len(p.kink))]
    return p.ridge @ (w * w) / 2 + sum((k * norm for k, norm in zip(p.kink, norms, strict=True)), LD(0))


def rounding(p, coef, intercept):
    """Error that `objective` itself may have."""
    w, b = np.abs(np.asarray(coef, float)), abs(float(intercept))
    share = p.weights / (p.weights @ p.exposure)
    eta = np.asarray(predictor(p, coef, intercept), float)
    with np.errstate(over="ignore", invalid="ignore"):
        f = p.exposure * rate(p.link, eta)
        size = f + p.y * (1 + np.abs(log_rate(p.link, eta)))
        moved = np.abs(derivative(p.link, p.y, p.exposure, eta)) * (np.abs(p.X) @ w + b + np.abs(p.offset))
        return 8 * EPS * float(share @ (size + moved) + penalty(p, coef))


def exact_objective(p, coef, intercept, digits=60):
    """F with many digits, slowly, to settle a doubt."""
    with mp.workdps(digits + 30):
        w, b = [_exact(a) for a in np.asarray(coef, LD)], _exact(LD(intercept))
        total = mp.mpf(0)
        for x, y, v, e, o in zip(p.X, p.y, p.weights, p.exposure, p.offset, strict=True):
            eta = mp.fdot([(mp.mpf(float(a)), c) for a, c in zip(x, w, strict=True)]) + b + mp.mpf(float(o))
            f = mp.exp(eta) if p.link == "exp" else mp.log1p(mp.exp(eta))
            log_f = eta if p.link == "exp" else mp.log(f)
            total += mp.mpf(float(v)) * (mp.mpf(float(e)) * f - mp.mpf(float(y)) * log_f)
        total /= mp.fsum(mp.mpf(float(v)) * mp.mpf(float(e)) for v, e in zip(p.weights, p.exposure, strict=True))
        total += mp.fsum(mp.mpf(float(r)) * c * c for r, c in zip(p.ridge, w, strict=True)) / 2
        for g, kink in enumerate(p.kink):
            total += mp.mpf(float(kink)) * mp.sqrt(mp.fsum(w[j] ** 2 for j in np.flatnonzero(p.block == g)))
        return +total


def _exact(value):
    """Convert a long double to mpmath: the nearest float64 plus the rest."""
    high = float(value)
    return mp.mpf(high) + mp.mpf(float(value - LD(high)))


# -------------------------------------------------------------------------------- coordinates


class Coordinates(NamedTuple):
    """Some features and the intercept in coordinates in which rows are nearly uncorrelated, and the way back."""

    columns: np.ndarray  # features in use
    rows: np.ndarray  # (time, coordinate), long double
    near: np.ndarray  # the same in float64
    mean: np.ndarray  # (feature,)
    scale: np.ndarray  # (feature,)
    back: np.ndarray  # (feature and intercept at the mean, coordinate), long double: of standardised features
    forth: np.ndarray  # (coordinate, feature and intercept at the mean)
    ridge: np.ndarray  # (coordinate, coordinate)

    def coef(self, v):
        return (self.back @ np.asarray(v, LD))[:-1] / self.scale

    def params(self, v):
        coef = self.coef(v)
        return coef, self.back[-1] @ np.asarray(v, LD) - self.mean @ coef

    def start(self, coef, intercept):
        """Coordinates of parameters, or of the nearest representable ones."""
        coef = np.asarray(coef, LD)[self.columns]
        return self.forth @ np.append(coef * self.scale, LD(intercept) + self.mean @ coef)

    def slopes(self, features):
        """Derivatives of some coefficients in these coordinates, float64."""
        return (self.back[:-1][features] / self.scale[features, None]).astype(float)


def coordinates(p, columns, bend):
    """Coordinates of some features and the intercept in which a Hessian with curvatures ``bend`` is about 1."""
    X = p.X[:, columns].astype(LD)
    share = _share(p)
    mean, scale, varies = _standard(X, share)
    Z = np.column_stack([np.where(varies, X - mean, 0) / scale, np.ones(len(X), LD)])
    pull = np.append(p.ridge[columns] / np.asarray(scale, float) ** 2, 0.0)
    kinked = np.append(np.append(p.kink, 0.0)[p.block[columns]] > 0, False)
    weighed = np.sqrt(np.asarray(share, float) * bend)[:, None] * Z.astype(float)
    weighed = np.concatenate([weighed, np.diag(np.sqrt(pull) + 1e-6 * kinked * np.abs(weighed).max())])
    _, s, Vt = svd(np.linalg.qr(weighed, mode="r"), lapack_driver="gesvd")
    # Columns that sum to one do so up to their last bits, which are not a direction: nothing is penalised there.
    s, Vt = s[s > 1e-13 * s[0]], Vt[s > 1e-13 * s[0]]
    back, forth = (Vt.T / s).astype(LD), (s[:, None] * Vt).astype(LD)
    rows, M = Z @ back, back.astype(float)
    return Coordinates(columns, rows, rows.astype(float), mean, scale, back, forth, (M.T * pull) @ M)


def _share(p):
    """Shares of the rows in the loss, long double; they sum to one."""
    share = p.weights.astype(LD) * p.exposure
    return share / share.sum()


def _standard(X, share):
    """Mean, standard deviation (1 for a constant) and whether the feature varies, (feature,) each."""
    mean = share @ X
    scale = np.sqrt(share @ (X - mean) ** 2)
    varies = scale > 1e-15 * np.abs(mean)
    return mean, np.where(varies, scale, 1), varies


# -------------------------------------------------------------------------------- optima


@np.errstate(all="ignore")  # steps that go too far are taken back
def optimum(p):
    """Best parameters; a neuron without spikes has none."""
    everything, b = np.arange(p.X.shape[1]), null_intercept(p)
    start = np.zeros(len(everything), LD), b
    if not np.any(p.kink > 0):
        return _smooth(p, everything, start)
    best = None
    for rough, mu in _barrier(p, start):
        # Blocks that should be zero have norms of about the parameter over their slack.
        out = np.isin(p.block, np.flatnonzero((p.kink * _norms(p, rough.coef) < 30 * float(mu)) & (p.kink > 0)))
        finer = _smooth(p, np.flatnonzero(~out), (np.where(out, 0, rough.coef), rough.intercept))
        if _belongs(p, finer, out):
            return finer
        best = min([rough, finer] + [best] * (best is not None), key=lambda o: o.objective)
    return best._replace(uncertainty=abs(float(best.objective - rough.objective)) + rough.uncertainty)


def _belongs(p, at, out):
    """Whether no excluded block should move: the conditions of the optimum, if the others meet them."""
    eta = np.asarray(predictor(p, at.coef, at.intercept), float)
    pull = p.weights * derivative(p.link, p.y, p.exposure, eta) / (p.weights @ p.exposure)
    X = p.X - p.weights @ p.X / p.weights.sum()  # the sum of pull is 0
    norms = [np.linalg.norm(X[:, (p.block == g) & out].T @ pull) for g in range(len(p.kink))]
    small = at.uncertainty < 1e-17 * (1 + abs(float(at.objective)))
    return small and bool(np.all((norms <= p.kink * (1 + 1e-9)) | ~np.isin(np.arange(len(p.kink)), p.block[out])))


@np.errstate(over="ignore")
def null_intercept(p):
    """Best intercept without features, by halving."""
    share = p.weights / (p.weights @ p.exposure)

    def slope(b):
        return share @ derivative(p.link, p.y, p.exposure, b + p.offset)

    low, high = -800.0 - np.abs(p.offset).max(), 800.0 + np.abs(p.offset).max() + p.y.max() / p.exposure.min()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (low, middle) if slope(middle) > 0 else (middle, high)
    return LD((low + high) / 2)


def null_objective(p):
    return objective(p, np.zeros(p.X.shape[1]), null_intercept(p))


def _norms(p, coef):
    return np.array([float(np.sqrt(np.sum(coef[p.block == g] ** 2))) for g in range(len(p.kink))])


def _smooth(p, columns, start, most=200):
    """Newton steps with these features only; norms of their blocks, which must not be 0, are smooth."""
    eta = np.asarray(predictor(p, *start), float)
    bend = _curvature(p, eta)
    at = coordinates(p, columns, bend)
    v = at.start(*start)
    of_block = [(k, np.flatnonzero(p.block[columns] == g)) for g, k in enumerate(p.kink) if k > 0]
    of_block = [(k, members) for k, members in of_block if len(members)]
    offset = p.offset.astype(LD)

    def full(v):
        coef = np.zeros(p.X.shape[1], LD)
        coef[columns], intercept = at.params(v)
        return coef, intercept

    def value(v):
        return _mean_loss(p, at.rows @ v + offset) + penalty(p, full(v)[0])

    here, decrement = value(v), np.inf
    for _ in range(most):
        A, g = _system(p, at, v)
        coef = np.asarray(at.coef(v), float)
        for k, members in of_block:
            u, B = coef[members], at.slopes(members)
            norm = np.linalg.norm(u)
            if norm == 0:
                continue
            across = np.eye(len(u)) - np.outer(u, u) / norm**2
            A = np.concatenate([A, np.sqrt(k / norm) * across @ B])
            g = g + k * B.T @ (u / norm)
        before = decrement
        step, decrement = _solve(A, g)
        small = decrement < 1e-18 * (1 + abs(float(here)))
        if (small and decrement > before / 4) or decrement < 1e-26 * (1 + abs(float(here))):
            break  # only rounding of the gradient is left
        v, there = _descend(value, v, step, here, decrement)
        if there is None:
            break
        here = there
    coef, intercept = full(v)
    return Optimum(coef, intercept, objective(p, coef, intercept), float(decrement))


def _barrier(p, start):
    """Minima of F with k t - mu log(t^2 - |u|^2) for norms k |u|, 2 mu a norm above the optimum, for falling mu."""
    every = np.arange(p.X.shape[1])
    at = coordinates(p, every, _curvature(p, np.asarray(predictor(p, *start), float)))
    v, offset = at.start(*start), p.offset.astype(LD)
    blocks = [(LD(k), np.flatnonzero(p.block == g)) for g, k in enumerate(p.kink) if k > 0]
    first = mu = LD(max(float(_mean_loss(p, predictor(p, *start)) - saturated(p)), 1e-3) / len(blocks))
    floor = 1e-17 * (1 + abs(float(objective(p, *start)))) / len(blocks)

    def smooth(v):
        coef = at.coef(v)
        return _mean_loss(p, at.rows @ v + offset) + p.ridge @ (coef * coef) / 2

    def reach(k, u, mu):
        """Best t for |u|, and t^2 - |u|^2 without cancellation: k (t^2 - u^2) = 2 mu t."""
        t = (mu + np.sqrt(mu * mu + k * k * (u @ u))) / k
        return t, 2 * mu * t / k

    def value(v, mu):
        coef, total = at.coef(v), smooth(v)
        for k, members in blocks:
            t, s = reach(k, coef[members], mu)
            total = total + k * t - mu * np.log(s)
        return total

    while True:
        here = value(v, mu)
        for _ in range(60):
            A, g = _system(p, at, v)
            coef = at.coef(v)
            for k, members in blocks:
                u, B = coef[members], at.slopes(members)
                t, s = reach(k, u, mu)
                ratio = np.sqrt(float(s / (t * t + u @ u)))  # curvature along u over that across
                length = float(np.sqrt(u @ u))
                along = np.asarray(u, float) / length if length > 0 else np.zeros(len(u))
                K = np.eye(len(u)) - (1 - ratio) * np.outer(along, along)
                A = np.concatenate([A, np.sqrt(float(2 * mu / s)) * K @ B])
                g = g + B.T @ np.asarray(2 * mu * u / s, float)
            step, decrement = _solve(A, g)
            if decrement < 1e-3 * mu:
                break
            v, there = _descend(lambda v: value(v, mu), v, step, here, decrement)  # noqa: B023
            if there is None:
                break
            here = there
        if mu < 1e-5 * first or mu <= floor:
            coef, intercept = at.params(v)
            above = float(2 * mu) * len(blocks) + float(decrement)
            yield Optimum(coef, intercept, objective(p, coef, intercept), above), mu
        if mu <= floor:
            break
        mu = mu / 10


def saturated(p):
    """Smallest conceivable mean loss."""
    y = np.where(p.y > 0, p.y, 1)
    least = p.weights @ np.where(p.y > 0, y - y * np.log(y / p.exposure), 0)
    return LD(least / (p.weights @ p.exposure))


def _curvature(p, eta):
    with np.errstate(over="ignore"):
        bend = curvature(p.link, p.y, p.exposure, eta) / p.exposure
    return np.maximum(np.where(np.isfinite(bend), bend, 0), 1e-12 * max(1.0, np.median(p.y)))


def _system(p, at, v):
    """Root of the Hessian of loss and ridge, and the gradient."""
    eta = np.asarray(at.rows @ v + p.offset.astype(LD), float)
    share = p.weights / (p.weights @ p.exposure)
    with np.errstate(over="ignore"):
        r, c = (f(p.link, p.y, p.exposure, eta) for f in (derivative, curvature))
    pull = np.sqrt(p.ridge[at.columns])[:, None] * at.slopes(slice(None))
    A = np.concatenate([np.sqrt(share * c)[:, None] * at.near, pull])
    return A, at.near.T @ (share * r) + at.ridge @ np.asarray(v, float)


def _solve(A, g):
    """-(A'A)^-1 g, without squaring A where that would lose digits, and g'(A'A)^-1 g."""
    if not np.isfinite(A).all():
        return np.zeros(len(g)), 0.0
    H = A.T @ A
    root = np.sqrt(np.where(np.diag(H) > 0, np.diag(H), 1.0))
    try:
        L = np.linalg.cholesky(H / np.outer(root, root))
        if np.diag(L).min() > 1e-3:
            half = solve_triangular(L, g / root, lower=True)
            return -solve_triangular(L, half, lower=True, trans=1) / root, float(half @ half)
    except np.linalg.LinAlgError:
        pass
    _, s, Vt = svd(np.linalg.qr(A, mode="r"), lapack_driver="gesvd")
    keep = s > 1e-13 * s[0]
    half = Vt[keep] @ g / s[keep]
    return -Vt[keep].T @ (half / s[keep]), float(half @ half)


def _descend(value, v, step, here, decrement):
    """Longest of 1, 1/2, 1/4, ... of a step that descends; None if only rounding is left."""
    length = LD(1)
    while length > 1e-12:
        there = value(v + length * step)
        if np.isfinite(there) and there <= here - 1e-3 * length * LD(decrement):
            return v + length * step, there
        length = length / 2
    return v, None


# -------------------------------------------------------------------------------- existence of an optimum


def separable(p):
    """Whether a direction lowers the predictor in silent rows indefinitely at no cost; None if it is a close call.

    Directions are those of the coefficients without penalty and of the intercept, in uncorrelated coordinates.
    """
    free = np.flatnonzero((p.ridge == 0) & ((p.block < 0) | (np.append(p.kink, 0.0)[p.block] == 0)))
    rows = _uncorrelated(p.X[:, free], p.weights * p.exposure)
    if rows is None:
        return None
    spikes = p.y > 0
    if not spikes.any():
        return None
    stay = rows[spikes]
    _, s, Vt = svd(np.linalg.qr(stay, mode="r"))
    s = np.append(s, np.zeros(len(Vt) - len(s)))[: len(Vt)] / np.sqrt(len(stay))
    if np.any((s > 1e-9) & (s < 1e-4)):
        return None
    moves = rows[~spikes] @ Vt[s <= 1e-9].T
    length = np.linalg.norm(moves, axis=1)
    if np.any((length > 1e-9) & (length < 1e-5)):
        return None
    moves = moves[length >= 1e-5] / length[length >= 1e-5, None]
    if not moves.size:
        return False
    options = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    found = linprog(moves.sum(axis=0), moves, np.zeros(len(moves)), bounds=[(-1, 1)] * moves.shape[1], options=options)
    if found.status != 0:
        return None
    fall = -found.fun
    return True if fall > 1e-3 else False if fall < 1e-7 else None


def _uncorrelated(X, weights):
    """Rows with the intercept's 1 in coordinates of unit variance, without constants; None if that is uncertain."""
    X, share = X.astype(LD), weights.astype(LD) / weights.astype(LD).sum()
    mean, scale, varies = _standard(X, share)
    Z = ((X - mean) / scale)[:, varies]
    near = (np.sqrt(share)[:, None] * Z).astype(float)
    if Z.shape[1] == 0:
        return np.ones((len(X), 1))
    _, s, Vt = svd(np.linalg.qr(near, mode="r"), full_matrices=False)
    if np.any((s > 1e-14 * s[0]) & (s < 1e-9 * s[0])):
        return None
    keep = s >= 1e-9 * s[0]
    whole = Z @ (Vt[keep].T / s[keep]).astype(LD)
    return np.column_stack([whole.astype(float), np.ones(len(X))])
