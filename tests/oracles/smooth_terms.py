"""One neuron with quadratic penalties from the definitions, float64, dense, slow and plain. Never imports glmfit.

Everything is in nats: with weights v, a scale phi and penalty matrices S_j of all features,

    G(w, b) = sum_t v_t loss(y_t, x_t'w + b + offset_t) / phi + sum_j strength_j w'S_j w / 2

and minus the log marginal likelihood of the strengths, up to constants, is by Laplace's approximation

    G + log det (H + S) / 2 - log det+ S / 2

at the optimum, H the second derivative of the losses over phi. Directions of w that no S_j touches are kept once:
those along which centred features do not vary, or vary as along others, are removed.
"""

from typing import NamedTuple

import numpy as np
import scipy.linalg
import scipy.optimize
from oracles import responses
from scipy.special import expit


class Problem(NamedTuple):
    """Data of a neuron and penalty matrices, (feature, feature) each."""

    name: str
    X: np.ndarray
    y: np.ndarray
    v: np.ndarray
    offset: np.ndarray
    S: list
    phi: float = 1.0
    dispersion: float = 1.0  # of negative binomial counts


class Fit(NamedTuple):
    """Optimum at some strengths."""

    coef: np.ndarray
    intercept: float
    value: float  # of G
    basis: np.ndarray  # directions that are fitted, (feature, direction)
    hessian: np.ndarray  # of the losses over phi, among directions and the intercept of centred features
    penalty: np.ndarray  # the same of the penalties
    at: np.ndarray
    left: float  # nats that a Newton step would gain


def centre_of(p: Problem) -> np.ndarray:
    """Weighted means of the features."""
    return np.average(p.X, axis=0, weights=p.v)


def penalised(p: Problem) -> np.ndarray:
    """Orthonormal basis of what some matrix penalises, (feature, direction)."""
    total = sum((S / np.linalg.norm(S) for S in p.S), np.zeros((p.X.shape[1],) * 2))
    values, vectors = np.linalg.eigh(total)
    return vectors[:, values > 1e-9 * max(values.max(initial=0.0), 1e-300)]


def basis_of(p: Problem, tol: float = 1e-5) -> np.ndarray:
    """Directions that are fitted: all that are penalised, and of the others those along which the features vary."""
    Q = penalised(p)
    free = scipy.linalg.null_space(Q.T) if Q.shape[1] else np.eye(p.X.shape[1])
    varies = (p.X - centre_of(p)) * np.sqrt(p.v / p.v.sum())[:, None]
    moves = varies @ free
    size = np.sqrt((moves**2).sum(axis=0))
    rounding = 1e-12 * np.sqrt(np.mean((np.abs(p.X) @ np.abs(free)) ** 2, axis=0)) + 1e-300
    size = np.where(size > rounding, size, np.inf)
    _, s, right = np.linalg.svd(moves / size, full_matrices=False)
    kept = (free / size) @ right[s > tol].T / s[s > tol]
    return np.column_stack([Q, kept])


def fit(p: Problem, strengths, basis=None, start=None, rounds: int = 300) -> Fit:
    """Minimise G by damped Newton steps whose Hessians are factored as their square roots.

    ``start`` holds parameters of the basis and an intercept of centred features; it is used if better than the default.
    """
    basis = basis_of(p) if basis is None else basis
    keep = p.v > 0
    centre, y, v, offset = centre_of(p), p.y[keep], p.v[keep], np.broadcast_to(p.offset, len(p.v))[keep]
    Z = np.column_stack([(p.X[keep] - centre) @ basis, np.ones(keep.sum())])
    S = np.zeros((Z.shape[1],) * 2)
    for strength, one in zip(strengths, p.S, strict=True):
        S[:-1, :-1] += strength * basis.T @ one @ basis
    values, vectors = np.linalg.eigh(S)
    root = np.sqrt(np.maximum(values, 0.0))[:, None] * vectors.T
    at = np.append(np.zeros(Z.shape[1] - 1), _start(p.name, np.average(y, weights=v), v, y, offset))

    def value(z):
        with np.errstate(over="ignore", invalid="ignore"):
            eta = Z @ z + offset
            loss = np.sum(v * responses.loss(p.name, y, eta, p.dispersion), dtype=np.longdouble) / p.phi
            return loss + z @ S @ z / 2

    if start is not None and value(start) < value(at):
        at = np.asarray(start, np.float64)
    here, left = value(at), np.inf
    for _ in range(rounds):
        slope, bend = responses.slopes(p.name, y, Z @ at + offset, p.dispersion)
        H = (Z.T * (v * bend)) @ Z / p.phi
        g = Z.T @ (v * slope) / p.phi + S @ at
        if not (np.isfinite(g).all() and np.isfinite(H).all()):  # no optimum, rates are 0 to the last bit
            break
        square = np.vstack([np.sqrt(v * np.maximum(bend, 0) / p.phi)[:, None] * Z, root])
        size = np.maximum(np.linalg.norm(square, axis=0), 1e-150)
        R = np.linalg.qr(square / size, mode="r")
        R[np.diag_indices(len(R))] += (np.abs(np.diag(R)) < 1e-15) * 1e-15
        half = np.linalg.solve(R.T, g / size)
        step = np.linalg.solve(R, half) / size
        before, left = left, float(half @ half) / 2
        if abs(left) < 1e-24 or (abs(left) < 1e-8 and abs(left) > abs(before) / 4):  # rounding
            break
        length, new = 1.0, value(at - step)
        while not new <= here - 0.1 * length * left and length > 1e-9 and left > 1e-9:
            length /= 2
            new = value(at - length * step)
        at, here = at - length * step, new
    coef = basis @ at[:-1]
    return Fit(coef, float(at[-1] - centre @ coef), float(here), basis, H, S, at, abs(left))


def _start(name, level, v, y, offset) -> float:
    shift = np.average(offset, weights=v)
    if name == "Gaussian":
        return level - shift
    if name in ("Bernoulli", "Binomial"):
        return np.log(level / (1 - level)) - shift
    if name == "softplus":
        return (np.log(np.expm1(level)) if level < 30 else level) - shift
    return np.log(level) - shift


def criterion(p: Problem, strengths, basis=None) -> float:
    """Compute minus the log marginal likelihood of strengths > 0, up to terms that do not depend on them."""
    found = fit(p, strengths, basis)
    Q = penalised(p)
    S = sum(
        (strength * Q.T @ one @ Q for strength, one in zip(strengths, p.S, strict=True)), np.zeros((Q.shape[1],) * 2)
    )
    return found.value + _log_det(found.hessian + found.penalty) / 2 - _log_det(S) / 2


def _log_det(matrix: np.ndarray) -> float:
    """Logarithm of the determinant of a positive definite matrix."""
    if not len(matrix):
        return 0.0
    scale = 1 / np.sqrt(np.diag(matrix))
    return float(np.linalg.slogdet(matrix * np.outer(scale, scale))[1] - 2 * np.log(scale).sum())


def gradient(p: Problem, strengths, step: float = 1e-3) -> np.ndarray:
    """Differentiate `criterion` by the logarithms of strengths: central differences of fourth order."""
    rho, basis, found = np.log(strengths), basis_of(p), []
    for j in range(len(rho)):
        move = np.eye(len(rho))[j] * step
        near, far = (
            criterion(p, np.exp(rho + k * move), basis) - criterion(p, np.exp(rho - k * move), basis) for k in (1, 2)
        )
        found.append((8 * near - far) / (12 * step))
    return np.array(found)


def covariance(found: Fit) -> np.ndarray:
    """Posterior covariance of coefficients and the intercept of centred features, (feature + 1, feature + 1)."""
    whole = scipy.linalg.block_diag(found.basis, 1.0)
    scale = 1 / np.sqrt(np.diag(found.hessian + found.penalty))
    A = (found.hessian + found.penalty) * np.outer(scale, scale)
    return whole @ (np.linalg.inv(A) * np.outer(scale, scale)) @ whole.T


def influence(found: Fit) -> np.ndarray:
    """F = (H + S)^-1 H of the directions that are fitted and the intercept."""
    return np.linalg.solve(found.hessian + found.penalty, found.hessian)


def degrees(p: Problem, found: Fit, features) -> float:
    """Effective degrees of freedom of the features of a term: trace of their part of F in original coordinates."""
    F = (
        scipy.linalg.block_diag(found.basis, 1.0)
        @ influence(found)
        @ np.linalg.pinv(scipy.linalg.block_diag(found.basis, 1.0))
    )
    return float(sum(F[i, i] for i in features))


def pearson_scale(p: Problem, found: Fit) -> float:
    """Estimate the scale by Pearson's statistic over the residual degrees of freedom; weights sum to responses."""
    eta = p.X @ found.coef + found.intercept + p.offset
    slope, _ = responses.slopes(p.name, p.y, eta, p.dispersion)
    return float(np.sum(p.v * slope**2) / (p.v.sum() - np.trace(influence(found))))


def strengths_of(p: Problem, starts, low, high) -> tuple[np.ndarray, np.ndarray]:
    """Best strengths from many starts by Nelder and Mead's or a quasi-Newton method; all local optima, (start, ...)."""
    basis, low, high = basis_of(p), np.log(low), np.log(high)

    def value(rho):
        return criterion(p, np.exp(np.clip(rho, low, high)), basis)

    found = []
    for start in starts:
        bounds = list(zip(low, high, strict=True))
        one = scipy.optimize.minimize(value, np.log(start), method="L-BFGS-B", bounds=bounds, options={"eps": 1e-4})
        found.append((one.fun, *one.x))
    found = np.array(found)
    order = np.argsort(found[:, 0])
    return np.exp(found[order, 1:]), found[order, 0]


def curvature_slope(name, y, eta, dispersion=1.0):
    """Third derivative of the loss, by formulas where they do not cancel and mpmath where they do."""
    if name == "exp":
        return np.exp(eta) + 0 * y
    if name == "Gaussian":
        return 0.0 * (eta + y)
    if name == "Gamma":
        return -y * np.exp(-eta)
    if name in ("Bernoulli", "Binomial"):
        return expit(eta) * expit(-eta) * (expit(-eta) - expit(eta)) + 0 * y
    if name == "NegativeBinomial":
        z = eta + np.log(dispersion)
        return (y + 1 / dispersion) * expit(z) * expit(-z) * (expit(-z) - expit(z))
    return np.vectorize(_softplus_third)(y, eta)


def _softplus_third(y: float, eta: float) -> float:
    import mpmath as mp

    with mp.workdps(60):
        a = mp.mpf(float(eta))
        f, s = mp.log1p(mp.exp(a)), 1 / (1 + mp.exp(-a))
        q = 1 - s
        r = s / f
        second = s * q * (q - s)
        # (log f)''' = f'''/f - 3 f'' f'/f^2 + 2 (f'/f)^3
        return float(second - mp.mpf(float(y)) * (second / f - 3 * s * q * r / f + 2 * r**3))
