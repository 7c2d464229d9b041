"""Bounds on the gap of every fit to its optimum, from one pass in float64 and a few products.

Products make x close to Newton's step. Its gain is known, and at its end a bound may be loose: there the gradient is
about the residual g - H x, whose norm any K below H bounds. Theory: docs/theory/self_concordance.md.
"""

import numpy as np

from ..bounds import stepped_gap_bound
from .cg import FEW, Descent, inner, steps_of_a_hessian
from .floors import MARGIN, RidgeFloor, SpectralFloor, longest_rows, quietly
from .problem import Params

_DOUBLE = np.finfo(np.float64).eps / np.finfo(np.float32).eps  # of errors of single precision, in double precision
_TIGHT = 0.5  # term of K, relative to the others of the squared decrement; reducing it further is not worth a product
_PRODUCTS = 8  # at least
_FEW, _ATTEMPTS = 0.5, 2  # of the fits; proofs of each
_CHEAP = 6  # steps: a bound from some rows is computed at once if it costs less
_FAILURE = 1e-3  # probability, over all fits and proofs, that some bound fails


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
        bound, estimate = bound_gaps(cg, some, target, RidgeFloor(cg, *longest_rows(cg)))
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
    Fits of folds are compared with each other, and the last step before a bound by duality makes them more accurate.
    """
    basis = run.problem.basis
    return (
        basis.is_resolved
        and run.problem.fold is None
        and cg.proofs.max() < _ATTEMPTS
        and np.mean(run.curved[cg.fits]) < _FEW
    )


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
    with quietly():
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
            z = floor.resolved(cg.direction(np.where(open_, system.r, 0.0)))
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
        self.growth = _growth(cg) * (1 + MARGIN)
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
        moved = np.minimum(most, self.reach * (1 + 1e-4) + MARGIN * most)
        rest = np.sqrt(growth) * (np.sqrt(left) + error) + (growth - 1) * size
        step = slope, (bend - off) / growth, size, rest, moved, ball, self.attained, constant
        self.bound = np.minimum(self.bound, stepped_gap_bound(*step))
        known = constant is not None
        self.rounded = (left <= error**2) & known
        # A step may move the rows too far for any bound at its end.
        far = np.isinf(stepped_gap_bound(*step[:3], 0.0, *step[4:])) & known & ~self.rounded
        near = (np.isfinite(self.bound) | (not known)) & (left <= _TIGHT * bend)
        self.ended = (self.bound <= self.target) | far | near | ~np.isfinite(left)


def _growth(cg: Descent) -> np.ndarray:
    """Return the factor by which rounding of eta may change the curvature, by self-concordance."""
    with quietly():
        return np.exp(np.finfo(cg.rows.dtype).eps * (cg.rows.observation.constant or 0.0) * cg.rows.furthest())
