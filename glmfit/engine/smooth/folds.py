"""Search for strengths by cross-validation: every fold has its own fits, which follow the strengths."""

import numpy as np

from .evidence import SINGLE_FLOOR
from .held_out import HeldOut
from .search import free_of_bounds, improve, range_of_strengths

_ROUGH, _SETTLED = 0.1, 5e-3  # nats: gradient of the loss held out by log strengths, far away and near
_STEPS = 6  # of the strengths at each Hessian, near
_WALK = (12.0, 9.0, 7.0, 5.0, 3.5, 2.0, 0.5, -1.0)  # log strengths, relative to those that hold terms as data do
_ROUNDS = 6  # at each of these
_FAR, _NEAR = 10.0, 0.02  # twice the nats by which a step changes a loss
_STILL = 0.02  # nats of the loss held out
_MOST = 40  # rounds


class FoldSearch:
    """Search for the strengths of some neurons (fit,) of a population with folds by the loss of held-out rows.

    ``rho`` (fit, penalty) are the logarithms of the strengths of losses in nats, and ``gradient`` that of the held-out
    loss by them.
    """

    def __init__(self, population, fits: np.ndarray):
        self.of, self.fits, self.space = population, fits, population.space
        self.fitted, self.scored = (of.astype(float) for of in population.folds)  # (part, fold)
        n, n_folds, p = len(fits), self.fitted.shape[1], self.space.n_coordinates
        self.at = np.zeros((n, n_folds, p + 1))
        self.at[..., -1] = population.problem.null_params().intercept[fits, None]
        self.last, self.objective = self.at.copy(), np.full((n, n_folds), np.inf)
        self.rho, self.gradient = np.zeros((n, self.space.n_penalties)), np.full((n, self.space.n_penalties), np.nan)
        self.gain, self.trust = np.full(n, np.inf), np.ones((n, n_folds))
        self.share = population.weight_of_parts[fits] @ self.fitted
        self.inside = None if population.inside is None else population.inside[fits]

    def run(self) -> None:
        """Evaluate strengths in common steps from strong to weak, and continue from the best with each separately."""
        self._walk()
        self._rounds(_MOST, choose=True)
        held = self._look(np.arange(len(self.fits)))[2]
        worse = np.flatnonzero(~(held <= self.best + _STILL))
        self.rho[worse], self.gradient[worse] = self.rho_at_best[worse], np.nan

    def _walk(self) -> None:
        """Fit every fold at some multiples of the strengths that hold a term as the data do; keep the best, (fit,)."""
        every = np.arange(len(self.fits))
        H = self._look(every)[0].fitted[0].mean(axis=1)
        middle, self.low, self.high = range_of_strengths(self.space, H)
        self.best, self.rho_at_best, at_best = np.full(len(every), np.inf), middle.copy(), self.at.copy()
        for step in _WALK:
            self.rho[:] = np.clip(middle + step, self.low, self.high)
            self.objective[:] = np.inf
            self._rounds(_ROUNDS, choose=False)
            held = self._look(every)[2]
            better = held < self.best
            self.best[better], self.rho_at_best[better] = held[better], self.rho[better]
            at_best[better] = self.at[better]
        self.rho[:], self.at[:], self.objective[:] = self.rho_at_best, at_best, np.inf
        self.last[:], self.gain[:] = at_best, _FAR

    @property
    def at_end(self) -> np.ndarray:
        """Which strengths are at the lower (-1) or the upper end (1) of their range, (fit, penalty)."""
        return (self.rho >= self.high - 1e-9).astype(int) - (self.rho <= self.low + 1e-9).astype(int)

    def _rounds(self, most: int, choose: bool) -> None:
        """Step all neurons until each is done."""
        active = np.arange(len(self.fits))
        for _ in range(most):
            active = active[~self._round(active, choose)]
            if not len(active):
                break

    def _round(self, active: np.ndarray, choose: bool) -> np.ndarray:
        """Evaluate the losses, choose strengths on request, and step; returns which neurons are done, bool (fit,)."""
        model, loss, _ = self._look(active)
        objective = loss + self._penalties(active)
        slack = 1e-6 * np.abs(objective) + 1e-3
        worse = ~(np.isfinite(objective) & (objective <= self.objective[active] + slack))
        fine = ~worse.any(axis=1)
        done = np.zeros(len(active), bool)
        if fine.any():
            done[fine] = self._step(active[fine], model if fine.all() else model.take(fine), loss[fine], choose)
        back = active[~fine]  # if some fold went uphill, all undo half of the step
        self.at[back], self.trust[back] = 0.5 * (self.last[back] + self.at[back]), 1.0
        return done

    def _look(self, active: np.ndarray) -> tuple[HeldOut, np.ndarray, np.ndarray]:
        """Model the losses of every fold; returns also those of rows fitted, (fit, fold), and held out, (fit,)."""
        here = self.at[active]
        n, n_folds, p = here.shape
        fits, shares = np.repeat(self.fits[active], n_folds), np.stack([self.fitted, self.scored], axis=1)
        # Of the rows fitted and of those held out, in every fold.
        loss, gradient, H = np.zeros((2, n, n_folds)), np.zeros((2, *here.shape)), np.zeros((2, *here.shape, p))
        for rows, weights in zip(self.of.parts, shares, strict=True):
            found = self.of.sums(rows, here.reshape(-1, p), fits)
            for k, weight in enumerate(weights):
                loss[k] += weight * found.loss.reshape(n, n_folds)
                gradient[k] += weight[:, None] * found.gradient.reshape(here.shape)
                H[k] += weight[:, None, None] * found.hessian.reshape(*here.shape, p)
        inside = None if self.inside is None else self.inside[active]
        fitted, test = zip(H, gradient, strict=True)
        model = HeldOut(here, fitted, test, self.share[active], inside, SINGLE_FLOOR)
        return model, loss[0], loss[1].sum(axis=1)

    def _step(self, some: np.ndarray, model: HeldOut, loss: np.ndarray, choose: bool) -> np.ndarray:
        """Improve strengths, and step every fold towards its optimum there."""
        far = not np.any(self.gain[some] < _FAR)
        bounds = self.low[some], self.high[some]
        tol, most = (_ROUGH, 1) if far else (_SETTLED, _STEPS)
        rho, best, gained = improve(model, self.space, self.rho[some], *bounds, tol, most * choose)
        self.rho[some], self.gradient[some] = rho, best.gradient
        self.objective[some] = loss + self._penalties(some)
        step = best.at - self.at[some]
        gain = np.einsum("nfi,nfij,nfj->nf", step, model.fitted[0], step)
        step[~(gain >= 0)] = 0.0
        n, n_folds, _ = step.shape
        length = self.of.lengths(step.reshape(n * n_folds, -1), self.trust[some].ravel()).reshape(n, n_folds)
        self.trust[some] = np.where(length < 1, 2 * self.trust[some], 1.0)
        self.last[some], self.gain[some] = self.at[some], np.max(np.where(gain >= 0, gain, np.inf), axis=1)
        self.at[some] += length[..., None] * step
        free = free_of_bounds(best.gradient, rho, *bounds)
        settled = np.abs(np.where(free, best.gradient, 0.0)).max(axis=1, initial=0.0) <= 10 * _SETTLED
        return (self.gain[some] <= _NEAR) & (gained <= _STILL) & (settled | (not choose))

    def _penalties(self, some: np.ndarray) -> np.ndarray:
        """Penalties of some fits at their strengths, (fit, fold)."""
        strengths, at = np.exp(self.rho[some])[:, None, :] * self.share[some][..., None], self.at[some][..., :-1]
        flat = self.space.value(strengths.reshape(-1, strengths.shape[2]), at.reshape(-1, at.shape[2]))
        return flat.reshape(at.shape[:2])
