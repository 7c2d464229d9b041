"""Poisson losses with as many digits as it takes (mpmath), one number at a time. Never imports glmfit."""

import mpmath as mp
import numpy as np

DIGITS = 40


def exact(link, eta, y):
    """All quantities at one point, from their definitions, as mpmath numbers correct to DIGITS digits."""
    eta, y = float(eta), float(y)
    # log(1 + e^a) and the difference in h lose about |a| / log(10) digits each.
    with mp.workdps(DIGITS + 20 + int(abs(eta))):
        a, y = mp.mpf(eta), mp.mpf(y)
        if link == "exp":
            f = mp.exp(a)
            out = {"rate": f, "log_rate": a, "derivative": f - y, "curvature": f}
        else:
            s = 1 / (1 + mp.exp(-a))
            f = mp.log(1 + mp.exp(a))
            r = s / f
            h = r * (r - (1 - s))
            out = {"rate": f, "log_rate": mp.log(f), "r": r, "h": h}
            out |= {"derivative": s - y * r, "curvature": s * (1 - s) + y * h}
        out["loss"] = f - y * out["log_rate"]
        return {key: +value for key, value in out.items()}


def exact_array(link, key, eta, y=0.0):
    """One quantity at many points, rounded to float64."""
    eta, y = np.broadcast_arrays(np.asarray(eta, float), np.asarray(y, float))
    values = [float(exact(link, a, b)[key]) for a, b in zip(eta.ravel(), y.ravel(), strict=True)]
    return np.reshape(values, eta.shape)


def slope_maximum():
    """Where h is largest, and its value there, to DIGITS digits."""
    with mp.workdps(DIGITS + 20):

        def h(a):
            s, f = 1 / (1 + mp.exp(-a)), mp.log(1 + mp.exp(a))
            return (s / f) * (s / f - (1 - s))

        a_star = mp.findroot(lambda a: mp.diff(h, a), mp.mpf("0.5"))
        return +a_star, +h(a_star)


def curvature(link, eta, y):
    """Curvature in float64 from the definition: accurate only for |eta| < 8, where little cancels."""
    if link == "exp":
        return np.exp(eta) + 0 * y
    s, f = 1 / (1 + np.exp(-eta)), np.log(1 + np.exp(eta))
    return s * (1 - s) + y * (s / f) * (s / f - (1 - s))


def deviance(rate, y):
    """2 (y log(y / rate) - (y - rate)), with 0 log 0 = 0."""
    return 2 * (y * np.log(np.where(y > 0, y, 1) / np.where(y > 0, rate, 1)) - (y - rate))
