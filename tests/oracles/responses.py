"""GLMs of one neuron's responses from their definitions, in float64, slow and plain. Never imports glmfit.

F(w, b) = sum_t v_t loss(y_t, x_t'w + b + offset_t) / sum_t v_t + ridge |w|^2 / 2 + lasso |w|_1, with weights v, for
binomial counts times the trials. Losses are minus log-likelihoods in units of the dispersion, up to terms in y.
"""

import numpy as np
import scipy.optimize
import scipy.stats
from scipy.special import expit, gammaln

NAMES = ("softplus", "exp", "NegativeBinomial", "Bernoulli", "Binomial", "Gaussian", "Gamma")


def loss(name, y, eta, dispersion=1.0):
    """Loss of a response (of a binomial count per trial: y is the share)."""
    if name == "softplus":
        rate = np.logaddexp(0, eta)
        return rate - y * np.log(rate)
    if name == "exp":
        return np.exp(eta) - y * eta
    if name == "NegativeBinomial":
        return (y + 1 / dispersion) * np.log1p(dispersion * np.exp(eta)) - y * eta
    if name in ("Bernoulli", "Binomial"):
        return np.logaddexp(0, eta) - y * eta
    return (y - eta) ** 2 / 2 if name == "Gaussian" else y * np.exp(-eta) + eta


def slopes(name, y, eta, dispersion=1.0):
    """First and second derivative of the loss."""
    s = expit(eta)
    if name == "softplus":
        f = np.logaddexp(0, eta)
        r = s / f
        return s - y * r, s * (1 - s) + y * r * (r - (1 - s))
    if name == "exp":
        return np.exp(eta) - y, np.exp(eta) + 0 * y
    if name == "NegativeBinomial":
        p = expit(eta + np.log(dispersion))
        return (y + 1 / dispersion) * p - y, (y + 1 / dispersion) * p * (1 - p)
    if name in ("Bernoulli", "Binomial"):
        return s - y, s * (1 - s) + 0 * y
    if name == "Gaussian":
        return eta - y, np.ones_like(eta + y)
    return 1 - y * np.exp(-eta), y * np.exp(-eta)


def objective(name, X, y, v, offset, w, b, ridge=0.0, lasso=0.0, dispersion=1.0):
    """F, summed in extended precision."""
    value = np.sum(v * loss(name, y, X @ w + b + offset, dispersion), dtype=np.longdouble) / np.sum(v)
    return float(value) + ridge * np.sum(w**2) / 2 + lasso * np.sum(np.abs(w))


def optimum(name, X, y, v, offset, ridge=0.0, lasso=0.0, dispersion=1.0):
    """Best coefficients and intercept, by proximal Newton steps whose models are solved one coordinate at a time."""
    centre = np.average(X, axis=0, weights=v)
    rows, d = np.column_stack([X - centre, np.ones(len(X))]), X.shape[1]
    level = np.average(y, weights=v)
    start = level if name == "Gaussian" else np.log(level) if name == "Gamma" else 0.0
    at = np.append(np.zeros(d), start)
    l1, l2 = np.append(np.full(d, lasso), 0.0), np.append(np.full(d, ridge), 0.0)

    def value(z):
        return objective(name, X - centre, y, v, offset, z[:-1], z[-1], ridge, lasso, dispersion)

    for _ in range(300):
        first, second = slopes(name, y, rows @ at + offset, dispersion)
        g = rows.T @ (v * first) / v.sum() + l2 * at
        H = (rows.T * (v * second)) @ rows / v.sum() + np.diag(l2)
        new = at.copy()
        if lasso:
            for _ in range(3000):
                before = new.copy()
                for j in range(d + 1):
                    slope = g[j] + H[j] @ (new - at) - H[j, j] * new[j]
                    new[j] = -np.sign(slope) * max(abs(slope) - l1[j], 0.0) / H[j, j]
                if np.max(np.abs(new - before)) <= 1e-15 * (1 + np.max(np.abs(new))):
                    break
        else:
            new = at - np.linalg.lstsq(H, g, rcond=1e-14)[0]
        length = 1.0
        while length > 1e-9 and not value(at + length * (new - at)) <= value(at) + 1e-15 * abs(value(at)):
            length /= 2
        step = length * (new - at)
        at = at + step
        if np.max(np.abs(step)) <= 1e-13 * (1 + np.max(np.abs(at))):
            break
    return at[:-1], at[-1] - centre @ at[:-1]


def log_likelihood(name, y, eta, dispersion=1.0, trials=1.0):
    """Log-probability of responses by SciPy; y of binomial counts is the count."""
    if name in ("softplus", "exp"):
        return scipy.stats.poisson.logpmf(y, np.logaddexp(0, eta) if name == "softplus" else np.exp(eta))
    if name == "NegativeBinomial":
        r = 1 / dispersion
        return scipy.stats.nbinom.logpmf(y, r, r / (r + np.exp(eta)))
    if name == "Bernoulli":
        return scipy.stats.bernoulli.logpmf(y.astype(int), expit(eta))
    if name == "Binomial":
        return scipy.stats.binom.logpmf(y, trials, expit(eta))
    if name == "Gaussian":
        return scipy.stats.norm.logpdf(y, eta, np.sqrt(dispersion))
    return scipy.stats.gamma.logpdf(y, 1 / dispersion, scale=np.exp(eta) * dispersion)


def mean(name, eta):
    """Expected response, for binomial counts per trial."""
    if name in ("Bernoulli", "Binomial"):
        return expit(eta)
    if name == "Gaussian":
        return eta
    return np.logaddexp(0, eta) if name == "softplus" else np.exp(eta)


def variance(name, eta, dispersion=1.0):
    """Variance of a response, for binomial counts of the share in one trial."""
    mu = mean(name, eta)
    if name in ("Bernoulli", "Binomial"):
        return mu * expit(-eta)
    if name == "Gaussian":
        return dispersion + 0 * eta
    return {"NegativeBinomial": mu + dispersion * mu**2, "Gamma": dispersion * mu**2}.get(name, mu)


def draw(name, rng, eta, dispersion=1.0, trials=1):
    """Responses of the shape of eta."""
    mu = mean(name, eta)
    if name in ("softplus", "exp"):
        return rng.poisson(mu).astype(float)
    if name == "NegativeBinomial":
        return rng.poisson(mu * rng.gamma(1 / dispersion, dispersion, eta.shape)).astype(float)
    if name in ("Bernoulli", "Binomial"):
        return rng.binomial(trials, expit(eta)).astype(float)
    if name == "Gaussian":
        return eta + np.sqrt(dispersion) * rng.normal(size=eta.shape)
    return mu * rng.gamma(1 / dispersion, dispersion, eta.shape)


def dispersion_of(X, y, v=None, offset=0.0, ridge=0.0):
    """Maximum likelihood dispersion of negative binomial counts, penalised or not, by a search over its whole range."""
    v = np.ones(len(y)) if v is None else v

    def loss_at(log_dispersion):
        a = np.exp(log_dispersion)
        w, b = optimum("NegativeBinomial", X, y, v, offset, ridge, dispersion=a)
        eta, r = X @ w + b + offset, 1 / a
        log_p = gammaln(y + r) - gammaln(r) - y * np.log(r) - loss("NegativeBinomial", y, eta, a)
        return -np.sum(v * log_p) / np.sum(v) + ridge * np.sum(w**2) / 2

    found = scipy.optimize.minimize_scalar(loss_at, bounds=(-12, 6), method="bounded", options={"xatol": 1e-7})
    return float(np.exp(found.x))
