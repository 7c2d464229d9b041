"""Sections of peers.py on banded ridge of measured responses: himalaya, compared with glmfit.

Responses are square roots of spike counts of motor cortex; the velocity of the hand and the history of all neurons are
the two bands of features. F = mean of (y - eta)^2 / 2 + sum over bands of strength/2 times the squared coefficients,
with free intercepts; himalaya's is 2 T times that. Features are standardised on the training rows.

"bands-given": the same strengths of both bands for all neurons; both packages solve a linear system.
"bands-chosen": every neuron gets the pair of a share of the bands (of 6) and a strength (of 10) that predicts held-out
blocks of rows best. himalaya's search is given these candidates; glmfit has no such search, so it tries the shares one
after another, each by `PopulationGLMCV` on scaled features. Held-out R2 is computed on the last fifth of the rows.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from _common import Section, median, timed
from _designs import DESIGNS
from _foreign import find
from _models import fit_quietly

N_SHARES, ALPHAS, FOLDS = 6, np.logspace(-4, 1, 10), 5
STRENGTH = np.array([1e-3, 3e-2])  # of the two bands, in "bands-given"


class Bands:
    """Features of both bands, and responses, for training and held-out rows."""

    def __init__(self, velocity, history, Y):
        X, split = np.hstack([velocity, history]), 4 * len(Y) // 5
        self.sizes = np.array([velocity.shape[1], history.shape[1]])
        X = (X - X[:split].mean(axis=0)) / np.maximum(X[:split].std(axis=0), 1e-6)
        keep = Y[:split].std(axis=0) > 0
        self.X, self.Y, self.X_held, self.Y_held = X[:split], Y[:split, keep], X[split:], Y[split:, keep]

    @classmethod
    def load(cls, data, scale: float):
        """Motor cortex: velocity of the hand, history of all neurons, square roots of their counts."""
        velocity, _ = DESIGNS["motor_cortex_velocity_lags"](Path(data))
        history, counts = DESIGNS["motor_cortex_coupling"](Path(data))
        n = min(len(velocity), len(history))  # both designs end with the recording
        some = slice(-n, round(scale * n) - n or None)
        return cls(velocity[some], history[some], np.sqrt(counts[some]))

    def spread(self, strengths):
        """Expand values per band to values per feature."""
        return np.repeat(np.asarray(strengths), self.sizes, axis=0)

    def objective(self, coef, intercept, strength) -> float:
        """Sum of F over the neurons in float64."""
        coef = np.asarray(coef, np.float64)
        left = self.Y.astype(np.float64) - self.X.astype(np.float64) @ coef - np.asarray(intercept, np.float64)
        return float((left**2).mean(axis=0).sum() / 2 + strength @ np.sum(coef**2, axis=1) / 2)

    def optimum(self, strength) -> float:
        """Minimum of the objective, from the normal equations in float64."""
        X, Y = self.X.astype(np.float64), self.Y.astype(np.float64)
        mean, middle = X.mean(axis=0), Y.mean(axis=0)
        H = (X - mean).T @ (X - mean) / len(X) + np.diag(strength)
        coef = np.linalg.solve(H, (X - mean).T @ (Y - middle) / len(X))
        return self.objective(coef, middle - mean @ coef, strength)

    def r2(self, coef, intercept) -> float:
        """Median R2 on the held-out rows, over the neurons that vary there."""
        left = self.Y_held - self.X_held @ np.asarray(coef) - np.asarray(intercept)
        varies = self.Y_held.var(axis=0) > 0
        return float(np.median(1 - np.mean(left**2, axis=0)[varies] / self.Y_held.var(axis=0)[varies]))


def given(cache, scale: float, section: Section, data=None, other_python=None) -> None:
    """Banded ridge of 171 neurons at given strengths: seconds and gaps, compared with himalaya."""
    from glmfit import PopulationGLM

    himalaya = _himalaya(section, data, other_python)
    if himalaya is None:
        return
    bands, repeats = Bands.load(data, scale), 3 if scale == 1 else 1
    strength = bands.spread(STRENGTH)
    best = bands.optimum(strength)
    improvement = float(bands.Y.astype(np.float64).var(axis=0).sum() / 2) - best

    def fit():
        each = np.tile(strength[:, None], (1, bands.Y.shape[1]))
        return fit_quietly(PopulationGLM(regularizer_strength=each, observation_model="Gaussian"), bands.X, bands.Y)

    seconds, firsts, gaps = {}, {}, {}
    firsts["glmfit"], model = timed(fit)
    seconds["glmfit"] = median(timed(fit)[0] for _ in range(repeats))
    gaps["glmfit"] = (bands.objective(model.coef_, model.intercept_, strength) - best) / improvement
    arrays = {"X": bands.X, "Y": bands.Y, "strength": strength}
    for precision in ("float32", "float64"):
        made = himalaya.call("himalaya_ridge", arrays, precision=precision, solver="svd", repeats=repeats + 1)
        name = f"himalaya, {precision}"
        firsts[name], seconds[name] = made["seconds"][0], median(made["seconds"][1:])
        gaps[name] = (bands.objective(made["coef"], made["intercept"], strength) - best) / improvement
    section.note(rows=len(bands.X), features=bands.sizes, neurons=bands.Y.shape[1], himalaya=himalaya.version,
                 seconds=seconds, first_fits=firsts, gaps=gaps)  # fmt: skip
    able = [name for name in seconds if name != "glmfit" and gaps[name] <= 1e-6]
    if able:
        rival = min(able, key=seconds.get)
        section.require("banded ridge at given strengths, warm", seconds["glmfit"], seconds[rival], limit=1,
                        against=rival)  # fmt: skip
        rival = min(able, key=firsts.get)
        section.require("banded ridge at given strengths, first fit", firsts["glmfit"], firsts[rival], limit=1,
                        against=rival)  # fmt: skip
    section.require("banded ridge at given strengths, gap", gaps["glmfit"], 1e-6, limit=1, against="limit", unit="",
                    topic="gap")  # fmt: skip


def chosen(cache, scale: float, section: Section, data=None, other_python=None) -> None:
    """Strengths of two bands chosen for each of 171 neurons: seconds and held-out R2, compared with himalaya."""
    himalaya = _himalaya(section, data, other_python)
    if himalaya is None:
        return
    bands = Bands.load(data, scale)
    n_shares = N_SHARES if scale == 1 else 3
    rng = np.random.default_rng(0)
    shares = np.vstack([[[0.5, 0.5]], rng.dirichlet([1.0, 1.0], n_shares - 1)])
    arrays = {"X": bands.X, "Y": bands.Y, "sizes": bands.sizes, "shares": shares, "alphas": ALPHAS * len(bands.X)}
    seconds, r2 = {}, {}
    for precision in ("float32", "float64"):
        made = himalaya.call("himalaya_bands", arrays, precision=precision, n_folds=FOLDS, repeats=1)
        name = f"himalaya, {precision}"
        seconds[name], r2[name] = made["seconds"][-1], bands.r2(made["coef"], made["intercept"])
        print(f"    {name}: {seconds[name]:.3g} s, R2 {r2[name]:.4f}", flush=True)
    seconds["glmfit"], (coef, intercept) = timed(lambda: search(bands, shares))
    r2["glmfit"] = bands.r2(coef, intercept)
    section.note(rows=len(bands.X), features=bands.sizes, neurons=bands.Y.shape[1], himalaya=himalaya.version,
                 shares=n_shares, strengths=len(ALPHAS), seconds=seconds, held_out_r2=r2)  # fmt: skip
    rival = min((k for k in seconds if k.startswith("himalaya")), key=seconds.get)
    section.require("banded ridge, strengths chosen", seconds["glmfit"], seconds[rival], limit=1, against=rival)
    section.require("banded ridge, strengths chosen: held-out R2", r2["glmfit"], r2[rival] - 0.001, limit=1, unit="",
                    topic="quality", against=f"{rival}, less 0.001", at_least=True)  # fmt: skip


def search(bands: Bands, shares) -> tuple:
    """Try shares one after another, with all strengths and folds at once; fit every neuron at its best ones."""
    from glmfit import PopulationGLM, PopulationGLMCV

    best, strength = np.full(bands.Y.shape[1], -np.inf), np.ones((bands.X.shape[1], bands.Y.shape[1]))
    for share in shares:
        unit = np.sqrt(np.maximum(bands.spread(share), 1e-12)).astype(np.float32)
        model = PopulationGLMCV(strengths=ALPHAS, cv=FOLDS, scoring="D2", observation_model="Gaussian")
        fit_quietly(model, bands.X * unit, bands.Y)
        scores = model.cv_scores_.mean(axis=1)  # (strength, neuron)
        at = scores.argmax(axis=0)
        score = scores.max(axis=0)
        strength = np.where(score > best, model.strengths_[at] / unit[:, None] ** 2, strength)
        best = np.maximum(best, score)
    model = fit_quietly(PopulationGLM(regularizer_strength=strength, observation_model="Gaussian"), bands.X, bands.Y)
    return model.coef_, model.intercept_


def _himalaya(section: Section, data, other_python):
    if data is None:
        section.note(absent={"recording": "needs --data, the folder of the recordings"})
        return None
    found = find(other_python, "himalaya")
    if found is None:
        section.note(absent={"himalaya": "is in no Python given (--other-python)"})
    return found


SECTIONS = {"bands-given": given, "bands-chosen": chosen}
