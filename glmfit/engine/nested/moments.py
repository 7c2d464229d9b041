"""Held-out losses of normal responses: every model, set of blocks and strength from the moments of the blocks."""

from typing import NamedTuple

import numpy as np

from ...threads import small_blas
from .blocks import tiles_within
from .search import HeldOut, Nested, Responses, best_of

_EPS = np.finfo(float).eps
_ROUNDINGS = 64  # units in the last place of the terms of a moment, which tiles add up


class _Factor(NamedTuple):
    """Eigenvectors of the centred moments of a set in the features of a model, in units of the ridge."""

    members: np.ndarray
    mean: np.ndarray  # of these features
    weight: float
    gram: np.ndarray
    root: np.ndarray  # of the ridge of strength 1 and one row
    values: np.ndarray
    vectors: np.ndarray


class Moments:
    """Moments of the features in every block, and the factors of models and sets: they serve any responses.

    Cost: T d^2 once, then for every model and set an eigendecomposition, d^3, and d^2 for each neuron and strength.
    """

    def __init__(self, nested: Nested):
        self.nested, blocks = nested, nested.blocks
        p = blocks.n_columns
        self.gram = np.zeros((blocks.n_blocks, p, p))
        for gram, block in zip(self.gram, blocks.slices, strict=True):
            for rows in tiles_within(block):
                z = blocks.rows(rows)
                gram += z.T @ (z if blocks.weights is None else z * blocks.weights[rows, None])
        self._factors: dict = {}

    def _factor(self, model: int, set_: int) -> _Factor:
        if (model, set_) not in self._factors:
            members = np.flatnonzero(self.nested.masks[model])
            whole = self.gram[self.nested.sets[set_]].sum(axis=0)
            weight = whole[-1, -1]
            mean = whole[-1, members] / weight
            gram = whole[np.ix_(members, members)] - weight * np.outer(mean, mean)
            root = 1 / self.nested.blocks.scale[members]
            values, vectors = np.linalg.eigh(gram / np.outer(root, root)) if len(members) else (np.zeros(0), gram)
            self._factors[model, set_] = _Factor(members, mean, weight, gram, root, np.maximum(values, 0.0), vectors)
        return self._factors[model, set_]

    def held_out(self, responses: Responses) -> HeldOut:
        """Held-out losses of all neurons; in units of half a squared residual."""
        nested, blocks = self.nested, self.nested.blocks
        Y = blocks.take(np.asarray(responses.Y, np.float64))
        cross = np.zeros((blocks.n_blocks, blocks.n_columns, Y.shape[1]))
        square = np.zeros((blocks.n_blocks, Y.shape[1]))
        for k, block in enumerate(blocks.slices):
            for rows in tiles_within(block):
                y = Y[rows]
                wy = y if blocks.weights is None else y * blocks.weights[rows, None]
                cross[k] += blocks.rows(rows).T @ wy
                square[k] += np.einsum("tn,tn->n", wy, y)
        out = HeldOut.empty(len(nested.masks), nested.n_held, Y.shape[1])
        with small_blas(blocks.n_columns):
            for model in range(len(nested.masks)):
                self._of_model(model, cross, square, out)
        return out

    def _of_model(self, model: int, cross, square, out: HeldOut) -> None:
        nested, K, S, N = self.nested, self.nested.n_held, len(self.nested.strengths), cross.shape[2]
        chosen = np.full((K, N), S - 1)
        if S > 1:
            total = np.zeros((S, K, N))
            for pair in nested.pairs():
                i, j = np.flatnonzero(~nested.sets[pair])
                for s, strength in enumerate(nested.strengths):
                    loss, _, bound = self._fit(model, pair, np.full(N, strength), (i, j), cross, square)
                    total[s, i] += loss[1]
                    total[s, j] += loss[0]
                    out.n_fits += 1
                    out.n_proved += bound <= nested.close
            chosen = best_of(total[None])[0]
        out.chosen[model] = chosen
        for k, set_ in enumerate(nested.singles()):
            loss, off, bound = self._fit(model, set_, nested.strengths[chosen[k]], (k,), cross, square)
            out.loss[model, k], out.off[model, k], out.gap[model, k] = loss[0], off[0], bound
            out.proved[model, k] = bound <= nested.close
            out.n_fits += 1
            out.n_proved += bound <= nested.close

    def _fit(self, model: int, set_: int, strength: np.ndarray, over: tuple, cross, square):
        """Losses of some blocks, bounds of their errors, and the gap: (block, neuron) twice, (neuron,)."""
        f = self._factor(model, set_)
        c = cross[self.nested.sets[set_]].sum(axis=0)
        response, root = c[-1] / f.weight, f.root[:, None]
        right = (c[f.members] - f.weight * np.outer(f.mean, response)) / root
        ridge = f.weight * strength
        whole = f.values[:, None] + ridge
        u = f.vectors @ ((f.vectors.T @ right) / whole)
        v = u / root
        left = f.vectors.T @ ((f.gram @ v) / root + ridge * u - right)
        # Rounding of the moments, which the gradient rests on.
        size = np.sqrt(np.maximum(np.diagonal(f.gram), 0.0))[:, None]
        terms = size * (np.sqrt(square[self.nested.sets[set_]].sum(axis=0)) + np.sum(size * np.abs(v), axis=0)) / root
        slack = _ROUNDINGS * _EPS * np.linalg.norm(terms + ridge * np.abs(u), axis=0)
        least = whole.min(axis=0, initial=np.inf)
        radius = np.sqrt(np.sum(left**2 / whole, axis=0)) + slack / np.sqrt(least)
        intercept = response - f.mean @ v
        losses, offs = [], []
        for k in over:
            gram = self.gram[k]
            inside, alone = gram[np.ix_(f.members, f.members)] @ v, gram[-1, f.members]
            misfit = square[k] + np.sum(v * (inside - 2 * cross[k][f.members]), axis=0)
            misfit = misfit + intercept * (2 * (alone @ v - cross[k][-1]) + gram[-1, -1] * intercept)
            gradient = inside - cross[k][f.members] + np.outer(alone, intercept)
            gradient = gradient - np.outer(f.mean, alone @ v + gram[-1, -1] * intercept - cross[k][-1])
            centred = np.trace(gram[np.ix_(f.members, f.members)] / np.outer(f.root, f.root)) if len(f.members) else 0.0
            far = gram[-1, -1] * np.sum((f.mean / f.root) ** 2)
            norm = np.linalg.norm(gradient / root, axis=0) / np.sqrt(least)
            losses.append((misfit - square[k]) / 2)
            offs.append(norm * radius + (centred + far) / least * radius**2 + _ROUNDINGS * _EPS * square[k])
        return np.array(losses), np.array(offs), radius**2 / 2


def moments_serve(nested: Nested, observation, responses: Responses) -> bool:
    """Whether all neurons are normal responses with the same rows."""
    return observation.is_quadratic and responses.own is None and responses.offset is None
