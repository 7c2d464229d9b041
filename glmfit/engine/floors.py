"""Floors: matrices K that are proved to lie below the Hessian of every fit, from the ridge or from some rows.

Theory: docs/theory/self_concordance.md.
"""

import numpy as np

from ..bounds import bound_smallest_eigenvalue, random_start
from ..threads import n_cores
from .cg import Descent
from .tiles import tiles_of

MARGIN, _ROUNDING = 1e-5, 1e-6  # of products in single precision, relative; of their sums over the rows
_STEPS, _ROWS_PER_FEATURE = 24, 20  # of Lanczos on some of the rows


class RidgeFloor:
    """Part of every Hessian that comes from a ridge and the sum of the curvature: K below H, exactly.

    In features centred at their mean weighted by curvature, coefficients and intercept decouple in H. Without the rows,
    its first block is the ridge.
    """

    failure_probability = 0.0

    def __init__(self, cg: Descent, longest: np.ndarray, spread: np.ndarray):
        self.ridge, self.spread, self.spread_root = cg.ridge[:-1], spread, np.sqrt(np.maximum(spread, 1.0))
        sums = cg.rows.centre()
        self.total = sums[-1] * (1 - MARGIN)
        with quietly():
            self.centre, self.inverse = sums[:-1] / sums[-1], 1 / self.ridge
            shift = np.sqrt(np.sum(self.centre**2 * self.inverse, axis=0))
            # The rounding error of the mixed derivative must be small compared with both blocks.
            self.total = np.where((_ROUNDING * (longest + shift)) ** 2 * self.total < 1e-2, self.total, np.nan)
            self.reach_squared = (longest + shift) ** 2 * (1 + MARGIN) + 1 / self.total

    def resolved(self, x: np.ndarray) -> np.ndarray:
        """Return the part of a direction of which products are known to some digits: all of it."""
        return x

    def squared_norm(self, r: np.ndarray) -> np.ndarray:
        """``r'K^-1 r``; not finite where there is no ridge."""
        with quietly():
            coef = r[:-1] - self.centre * r[-1]
            return np.sum(coef**2 * self.inverse, axis=0) + r[-1] ** 2 / self.total

    def rounding(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Bound the error of H x in the norm of K^-1: if x is long but hardly moves the rows, products cancel."""
        length = np.sqrt(np.sum(self.ridge * x[:-1] ** 2, axis=0))
        with quietly():
            return _ROUNDING * self.spread * length + MARGIN * np.sqrt(self.squared_norm(g))


class SpectralFloor:
    """Shared metric times a lower bound on the smallest eigenvalue, in it, of the Hessians of the fits ``at``.

    Dropping rows only lowers a Hessian, so a bound for a tenth of the rows also holds for all of them.
    """

    spread_root = 1.0

    def __init__(self, cg: Descent, at: np.ndarray, seed: tuple[int, ...], failure_probability: float, rotated: bool):
        basis, rows = cg.shared.basis, cg.rows
        rng, fits = np.random.default_rng(seed), np.flatnonzero(at)
        # A rotation-invariant ridge separates the directions that the rows resolve from the others.
        self.basis, rank = basis, basis.rank if rotated else len(basis.mean)
        self._rank = rank
        self.failure_probability = failure_probability
        self._scale = np.concatenate([cg.shared.scale[:rank], 1 / cg.shared.curvature[None]])
        self._whiten = basis.whiten[:, :rank]
        self._of_ridge = cg.ridge[:-1]
        x, curvature = rows.some(rng, max(rows.n_rows // 10, _ROWS_PER_FEATURE * (rank + 1)))
        z = np.empty((len(x), rank + 1), x.dtype)
        np.matmul(x, self._whiten.astype(x.dtype), out=z[:, :-1])
        z[:, -1] = 1
        root, of_ridge, curvature = np.sqrt(self._scale)[:, fits], self._of_ridge[:, fits], curvature[:, fits]

        def product(v):
            turned = (root * v).astype(x.dtype)

            def piece(some):
                eta = z[some] @ turned
                eta *= curvature[some]
                return z[some].T @ eta

            out = sum(part.astype(np.float64) for part in rows.each(piece, pieces)) / rows.n_rows
            out[:-1] += self._whiten.T @ (of_ridge * (self._whiten @ (root * v)[:-1]))
            return root * out

        pieces = tiles_of(len(x), min(4096, -(-len(x) // (2 * n_cores()))))
        start = np.broadcast_to(random_start(rng, rank + 1, np.float64), (rank + 1, len(fits)))
        alpha, beta = _lanczos(product, start, min(_STEPS, rank + 1))
        share = failure_probability / len(fits)
        # Coefficients of products in single precision: the bound allows for that.
        kappa = bound_smallest_eigenvalue(alpha.astype(x.dtype), beta.astype(x.dtype), rank + 1, share)
        self.kappa = np.full(len(at), np.nan)
        self.kappa[fits] = np.where(kappa > 0, kappa, np.nan)
        longest, _ = rows.longest(basis.deviation)
        steepest = np.linalg.norm(self._whiten * basis.deviation[:, None], 2) ** 2
        self.reach_squared = (steepest * longest**2 + 1) * self._scale.max(axis=0) / self.kappa

    def resolved(self, x: np.ndarray) -> np.ndarray:
        """Return the part of a direction that moves the rows: products of the rest would be rounding.

        K is the Hessian in the rest, so nothing is lost. A penalty on single coefficients keeps all of x: only constant
        features move no row then (`SpectralBasis.settles`).
        """
        inside = self._whiten @ (self.basis.unwhiten[: self._rank] @ x[:-1]) if self._rank < len(x) - 1 else x[:-1]
        return np.vstack([inside, x[-1:]])

    def rounding(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Bound the error of H x in the norm of K^-1, for directions that are `resolved`."""
        with quietly():
            return MARGIN * np.sqrt(self.squared_norm(g))

    @staticmethod
    def cost_in_steps(n_rows: int, n_features: int, n_fits: int) -> float:
        """Return about its cost in steps of all fits: rows in the spectral basis, and products with them."""
        share = max(0.1, _ROWS_PER_FEATURE * (n_features + 1) / n_rows)
        return _STEPS * (share if share < 0.5 else 1.0) + n_features / (4 * n_fits)

    def squared_norm(self, r: np.ndarray) -> np.ndarray:
        """``r'K^-1 r``; not finite where there is no bound."""
        inside = self._whiten.T @ r[:-1]
        norm = np.sum(self._scale[:-1] * inside**2, axis=0) + self._scale[-1] * r[-1] ** 2
        with quietly():
            norm = norm / self.kappa
            if self._rank < len(r) - 1:  # where the rows resolve nothing, the Hessian is the ridge
                outside = r[:-1] - self.basis.unwhiten[: self._rank].T @ inside
                ridge = np.where(self._of_ridge > 0, self._of_ridge, np.inf)
                norm = norm + np.sum(outside**2 / ridge, axis=0)
        return norm


def longest_rows(cg: Descent) -> tuple[np.ndarray, np.ndarray]:
    """Largest norm of a centred row in the inverse of each fit's ridge, and mean of curvature times its square."""
    ridge = cg.ridge[:-1]
    least = ridge.min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = ridge / least
        if not np.all(np.abs(shape - shape[:, :1]) <= 1e-12 * shape[:, :1]):
            shape = np.ones_like(shape)
        longest, spread = cg.rows.longest(np.sqrt(shape[:, 0]))
        return longest / np.sqrt(least), spread / least


def _lanczos(product, v: np.ndarray, n_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Run the recursion of `glmfit.bounds.lanczos` with NumPy: jax would compile it for every number of fits."""
    kept = np.zeros((n_steps, *v.shape))
    alpha, beta = np.zeros((n_steps, v.shape[1])), np.zeros((n_steps, v.shape[1]))
    scale = np.zeros(v.shape[1])
    for j in range(n_steps):
        kept[j] = v
        w = product(v)
        alpha[j] = np.einsum("pn,pn->n", v, w)
        for _ in range(2):
            w = w - np.einsum("kpn,kn->pn", kept[: j + 1], np.einsum("kpn,pn->kn", kept[: j + 1], w))
        b = np.linalg.norm(w, axis=0)
        scale = np.maximum(scale, np.abs(alpha[j]) + b)
        alive = b > 1e-6 * scale
        beta[j] = np.where(alive, b, 0.0)
        v = np.where(alive, w / np.where(alive, b, 1.0), 0.0)
    return alpha, beta


def quietly():
    """Return a context without warnings: non-finite numbers show by themselves."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")
