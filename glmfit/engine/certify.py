"""Bounds on the gap of every fit to its optimum, from one pass in float64 and a few products.

Products make x close to Newton's step. Its gain is known, and at its end a bound may be loose: there the gradient is
about the residual g - H x, whose norm any K below H bounds. Theory: docs/theory/self_concordance.md.
"""

import numpy as np

from ..bounds import bound_smallest_eigenvalue, random_start, stepped_gap_bound
from ..threads import n_cores
from .cg import FEW, Descent, inner, steps_of_a_hessian
from .problem import Params
from .tiles import tiles_of

_MARGIN, _ROUNDING = 1e-5, 1e-6  # of products in single precision, relative; of their sums over the rows
_DOUBLE = np.finfo(np.float64).eps / np.finfo(np.float32).eps  # of these errors in products in double precision
_TIGHT = 0.5  # term of K, relative to the others of the squared decrement; reducing it further is not worth a product
_PRODUCTS = 8  # at least
_FEW, _ATTEMPTS = 0.5, 2  # of the fits; proofs of each
_CHEAP = 6  # steps: a bound from some rows is computed at once if it costs less
_FAILURE = 1e-3  # probability, over all fits and proofs, that some bound fails
_STEPS, _ROWS_PER_FEATURE = 24, 20  # of Lanczos on some of the rows


def bounds_of(run, cg: Descent, target: np.ndarray, params: Params) -> tuple[np.ndarray, np.ndarray]:
    """Bound the gaps of a group by duality or from the ridge; if too loose, from the spectrum of some rows.

    With kinks, that from some rows may come first, see `may_be_spectral`.
    """
    problem, fits = run.problem, cg.fits
    smooth, bound, estimate = problem.penalty.smooth, *np.full((2, len(fits)), np.inf)
    some = np.all(cg.ridge[:-1] > 0, axis=0) & smooth
    if not smooth:
        estimate = cg.estimate
        # The rounding of the gradient of unpenalised coefficients rules out a bound by duality.
        bound = cg.by_duality if cg.by_duality is not None and problem.penalty.penalises_all else bound
        if cg.first_order and not may_be_spectral(run, cg):
            return bound, estimate
    if some.any():
        bound, estimate = bound_gaps(cg, some, target, RidgeFloor(cg, *_longest(cg)))
    # With a ridge, a point closer to the optimum may not need this bound, at the cost of some steps. If a fit has its
    # own metric, the shared one describes it poorly.
    first = SpectralFloor.cost_in_steps(cg.rows.n_rows, problem.n_features, len(fits)) < _CHEAP
    useful = (estimate <= target) & ~run.curved[fits] & (first | (cg.proofs > 0))
    left = ~(bound <= target) & (~some | useful | (not smooth))
    # Products in single precision must resolve every direction; excluded ones must be 0 where features are centred.
    shown = problem.basis.tame or cg.rows.dtype == np.float64
    centred = problem.basis.rank == problem.n_features or np.all(cg.rows.mean == problem.basis.mean)
    if not (shown and centred and left.any()):
        return bound, estimate
    seed = int(run.seed), 1, run.attempts
    share = _FAILURE / 2**run.attempts * np.count_nonzero(left) / problem.n_neurons
    floor = SpectralFloor(cg, left, seed, share, problem.penalty.rotation_invariant)
    run.failure_probability += floor.failure_probability
    found, second = bound_gaps(cg, left, target, floor, smooth and problem.penalty.penalises_all)
    second = second if smooth else estimate
    found = np.where(problem.basis.settles(problem.penalty.rotation_invariant, params.coef), found, np.inf)
    found = np.where(left, found, np.inf)
    if not problem.penalty.penalises_all and np.isfinite(found).any():
        among = np.zeros(problem.n_neurons, bool)
        among[fits] = np.isfinite(found)
        found = np.where(problem.may_be_separable(run.params, among)[fits], np.inf, found)
    return np.minimum(bound, found), np.where(some, estimate, second)


def may_be_spectral(run, cg: Descent) -> bool:
    """Tell whether a bound from some rows may serve at once, for a penalty with kinks in memory.

    It is of second order, unlike that by duality; but where fits have metrics of their own, the shared one is loose.
    """
    basis = run.problem.basis
    return basis.is_resolved and cg.proofs.max() < _ATTEMPTS and np.mean(run.curved[cg.fits]) < _FEW


def _longest(cg: Descent) -> tuple[np.ndarray, np.ndarray]:
    """Largest norm of a centred row in the inverse of each fit's ridge, and mean of curvature times its square."""
    ridge = cg.ridge[:-1]
    least = ridge.min(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        shape = ridge / least
        if not np.all(np.abs(shape - shape[:, :1]) <= 1e-12 * shape[:, :1]):
            shape = np.ones_like(shape)
        longest, spread = cg.rows.longest(np.sqrt(shape[:, 0]))
        return longest / np.sqrt(least), spread / least


class RidgeFloor:
    """Part of every Hessian that comes from a ridge and the sum of the curvature: K below H, exactly.

    In features centred at their mean weighted by curvature, coefficients and intercept decouple in H. Without the rows,
    its first block is the ridge.
    """

    failure_probability = 0.0

    def __init__(self, cg: Descent, longest: np.ndarray, spread: np.ndarray):
        self.ridge, self.spread, self.spread_root = cg.ridge[:-1], spread, np.sqrt(np.maximum(spread, 1.0))
        sums = cg.rows.centre()
        self.total = sums[-1] * (1 - _MARGIN)
        with _quietly():
            self.centre, self.inverse = sums[:-1] / sums[-1], 1 / self.ridge
            shift = np.sqrt(np.sum(self.centre**2 * self.inverse, axis=0))
            # The rounding error of the mixed derivative must be small compared with both blocks.
            self.total = np.where((_ROUNDING * (longest + shift)) ** 2 * self.total < 1e-2, self.total, np.nan)
            self.reach_squared = (longest + shift) ** 2 * (1 + _MARGIN) + 1 / self.total

    def resolved(self, x: np.ndarray) -> np.ndarray:
        """Return the part of a direction of which products are known to some digits: all of it."""
        return x

    def squared_norm(self, r: np.ndarray) -> np.ndarray:
        """``r'K^-1 r``; not finite where there is no ridge."""
        with _quietly():
            coef = r[:-1] - self.centre * r[-1]
            return np.sum(coef**2 * self.inverse, axis=0) + r[-1] ** 2 / self.total

    def rounding(self, x: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Bound the error of H x in the norm of K^-1: if x is long but hardly moves the rows, products cancel."""
        length = np.sqrt(np.sum(self.ridge * x[:-1] ** 2, axis=0))
        with _quietly():
            return _ROUNDING * self.spread * length + _MARGIN * np.sqrt(self.squared_norm(g))


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
        with _quietly():
            return _MARGIN * np.sqrt(self.squared_norm(g))

    @staticmethod
    def cost_in_steps(n_rows: int, n_features: int, n_fits: int) -> float:
        """Return its cost in steps of all fits: products with some rows, and the lengths of all of them."""
        share = max(0.1, _ROWS_PER_FEATURE * (n_features + 1) / n_rows)
        return _STEPS * (share if share < 0.5 else 1.0) + n_features / (4 * n_fits)

    def squared_norm(self, r: np.ndarray) -> np.ndarray:
        """``r'K^-1 r``; not finite where there is no bound."""
        inside = self._whiten.T @ r[:-1]
        norm = np.sum(self._scale[:-1] * inside**2, axis=0) + self._scale[-1] * r[-1] ** 2
        with _quietly():
            norm = norm / self.kappa
            if self._rank < len(r) - 1:  # where the rows resolve nothing, the Hessian is the ridge
                outside = r[:-1] - self.basis.unwhiten[: self._rank].T @ inside
                ridge = np.where(self._of_ridge > 0, self._of_ridge, np.inf)
                norm = norm + np.sum(outside**2 / ridge, axis=0)
        return norm


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


def bound_gaps(
    cg: Descent, at: np.ndarray, target: np.ndarray, floor: RidgeFloor | SpectralFloor, attained: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Bound the gap of the fits ``at``, bool (fit,), whose gradients are in float64; products end at a target.

    Returns bounds of ``F - F*`` without the allowance for rounding, inf where there is none, and half of
    ``g'x + x'r``, which is an estimate, (fit,) each.
    """
    g = np.where(at, cg.residual, 0.0)
    system = _System(cg, g, target, floor, attained)
    most = _PRODUCTS + steps_of_a_hessian(len(g) - 1) / 2  # a metric of its own takes about as long
    with _quietly():
        open_, waits = at, np.zeros(len(at), bool)
        p = floor.resolved(cg.direction(g))
        rz = inner(g, p)
        for _ in range(int(most)):
            system.step(p, rz, open_)
            open_ = open_ & ~system.ended
            waits |= open_ & system.rounded  # until the others are, too: residuals in float64 are expensive
            open_ &= ~waits
            begins = np.zeros(len(at), bool)
            if not open_.any():
                system.restart(np.flatnonzero(waits))
                open_ = begins = waits & ~system.ended
                waits = np.zeros(len(at), bool)
            if not open_.any():
                break
            z = floor.resolved(cg.direction(system.r))
            after = inner(system.r, z)
            p, rz = open_ * (z + np.where(begins | ~(rz > 0), 0.0, after / rz) * p), after
        else:
            system.restart(np.flatnonzero(waits))
    return np.where(at, system.bound, np.inf), system.least / 2


class _System:
    """Approximate solution x of ``H x = g`` of each fit, its residual, and the bounds that follow.

    Products are in single precision. Where rounding dominates a residual, it is taken in float64, and the error of what
    follows is that of a smaller system.
    """

    def __init__(self, cg: Descent, g: np.ndarray, target: np.ndarray, floor, attained: bool):
        self.cg, self.g, self.target, self.floor, self.attained = cg, g, target, floor, attained
        self.x, self.r = np.zeros_like(g), g
        self.growth = _growth(cg) * (1 + _MARGIN)
        n = len(target)
        self.reach, self.least, self.bound = np.zeros(n), np.zeros(n), np.full(n, np.inf)
        # Where a residual was last exact: x, the residual, and the bound of its error.
        self._begin, self._rest, self._known = self.x, g, np.zeros(n)

    def step(self, p: np.ndarray, rz: np.ndarray, which: np.ndarray) -> None:
        """Take a step of conjugate gradients along p, of some fits, bool (fit,)."""
        rows, (q, reach) = self.cg.rows, (np.zeros_like(p), np.zeros(len(which)))
        some = np.flatnonzero(which) if rows.selects and which.mean() < FEW else None
        if some is None:
            q, reach = rows.products(p)
        else:
            q[:, some], reach[some] = rows.products(p[:, some], some)
        q += self.cg.ridge * p
        length = rz / inner(p, q)
        length = np.where(which & np.isfinite(length), length, 0.0)
        self.x, self.r = self.x + length * p, self.r - length * q
        self.reach = self.reach + np.abs(length) * reach
        self._judge(self._known + self.floor.rounding(self.x - self._begin, self._rest))

    def restart(self, some: np.ndarray) -> None:
        """Compute residuals of some fits in float64, and go on from these."""
        if len(some):
            x = self.x[:, some]
            exact, self.reach[some] = self.cg.rows.products(x, some, exact=True)
            exact += self.cg.ridge[:, some] * x
            self.r, self._begin, self._rest = self.r.copy(), self._begin.copy(), self._rest.copy()
            self.r[:, some] = self._rest[:, some] = self.g[:, some] - exact
            self._begin[:, some] = x
            self._known[some] = _DOUBLE * self.floor.rounding(self.x, self.g)[some]
            self._judge(self._known + self.floor.rounding(self.x - self._begin, self._rest))

    def _judge(self, error: np.ndarray) -> None:
        """Tighten the bounds, given the errors of residuals in the norm of K^-1, and tell which fits are finished."""
        constant, floor, growth = self.cg.rows.observation.constant, self.floor, self.growth
        slope, inside, left = inner(self.g, self.x), inner(self.x, self.r), floor.squared_norm(self.r)
        bend, ball = slope - inside, growth * floor.reach_squared
        self.least = np.fmax(self.least, slope + inside)
        of_size = error / floor.spread_root  # x'Hx differs from bend by twice this times |x|, and by the growth
        size = of_size + np.sqrt(np.maximum(bend, 0) + of_size**2)
        off, size = 2 * of_size * size, np.sqrt(growth) * size
        most = np.sqrt(ball) * size
        moved = np.minimum(most, self.reach * (1 + 1e-4) + _MARGIN * most)
        rest = np.sqrt(growth) * (np.sqrt(left) + error) + (growth - 1) * size
        step = slope, (bend - off) / growth, size, rest, moved, ball, self.attained, constant
        self.bound = np.minimum(self.bound, stepped_gap_bound(*step))
        known = constant is not None
        # A step may move the rows too far for any bound at its end.
        self.rounded = (left <= error**2) & known
        far = np.isinf(stepped_gap_bound(*step[:3], 0.0, *step[4:])) & known & ~self.rounded
        near = (np.isfinite(self.bound) | (not known)) & (left <= _TIGHT * bend)
        self.ended = (self.bound <= self.target) | far | near | ~np.isfinite(left)


def _growth(cg: Descent) -> np.ndarray:
    """Return the factor by which rounding of eta may change the curvature, by self-concordance."""
    with _quietly():
        return np.exp(np.finfo(cg.rows.dtype).eps * (cg.rows.observation.constant or 0.0) * cg.rows.furthest())


def _quietly():
    """Return a context without warnings: non-finite numbers show by themselves."""
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")
