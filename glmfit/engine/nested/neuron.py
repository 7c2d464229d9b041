"""Fits of one neuron: passes over its rows, and nearby Hessians that serve all fits as a metric and as a proof.

Sums over rows are not divided by their number, so that objectives are in nats. Theory: docs/theory/nested_models.md.
"""

from typing import NamedTuple

import numpy as np

from ..tiles import tiles_of
from .blocks import Blocks, tiles_within
from .response import Response

_NUMBERS = 1 << 17  # of a tile of predictors
LEVELS = np.array([0.25, 0.5, 1.0, 2.0])  # changes of eta that most rows should stay below
_SINGLE = 64 * 2.0**-24  # of the terms of a predictor in single precision: more than its error
_SUMS = 1e-3  # of sums of a tile of positive numbers in single precision
_ROUGH = 0.01  # share of the largest norm of a row that may be rounding
_BEND = 1.0  # change of eta up to which rows are bounded together, and beyond one by one


class Anchor(NamedTuple):
    """A model whose Hessian was formed, block by block."""

    at: np.ndarray  # (column,)
    loss: np.ndarray  # (block,)
    gradient: np.ndarray  # of the loss, (block, column)
    eta: np.ndarray  # without the known part, (row,)
    pull: np.ndarray  # curvature of a row times its leverage, (row,); they add up to the columns at most
    block: np.ndarray  # largest share of the Hessian of all blocks that each of them has, (block,)
    reach_squared: np.ndarray  # largest leverage of a row, (set,)
    share: np.ndarray  # least share of the Hessian of all blocks that each set has, (set,)
    hessians: np.ndarray  # of every set, (set, column, column)


class Survey(NamedTuple):
    """What a pass over all rows finds at some models, compared with an anchor."""

    loss: np.ndarray  # (model, block)
    gradient: np.ndarray  # of the loss, (model, block, column)
    beyond: np.ndarray  # share of the anchor's Hessian in rows whose eta differs by more than a level, (model, level)
    bend: np.ndarray  # bound of the Hessian of every block, in units of the anchor's of all rows, (model, block)


class Neuron:
    """Rows of one neuron, whose responses are in the order of the blocks.

    ``sets`` are those of the blocks that are fitted, bool (set, block); the first has all. ``size`` (block,) is the
    weight of the rows of every block, by which a strength is multiplied, and ``least`` the strength of the weakest
    ridge. If ``many`` fits follow, it pays to copy rows in the order that suits the responses.
    """

    def __init__(
        self, blocks: Blocks, response: Response, sets: np.ndarray, size: np.ndarray, least: float, many: bool = True
    ):
        order = response.best_order(blocks.slices) if many and blocks.are_kept else None
        self.blocks = blocks if order is None else blocks.reordered(order)
        self.response = response if order is None else response.take(order)
        self.sets = sets
        self.size = sets @ size  # (set,)
        self.ridge = np.append(1 / blocks.scale**2, 0.0)  # of strength 1 and one row
        self.least = least
        y, w = self.response.y, self.response.weights
        self._counts = float(np.sum(np.abs(y)) if w is None else w @ np.abs(y))
        self._terms = self._counts + float(blocks.n_rows if w is None else w.sum())

    def gradients(self, members, at: np.ndarray, over: np.ndarray, loss: bool = False, dtype=np.float64):
        """Losses and gradients of the blocks ``over``, bool (fit, block): (fit, block), (fit, block, member).

        Fits have parameters ``at`` (fit, member) for some columns of the features, the ``members``.
        """
        values, gradient = np.zeros(over.shape), np.zeros((*over.shape, at.shape[1]))
        for k, block in enumerate(self.blocks.slices):
            which = np.flatnonzero(over[:, k])
            if not len(which):
                continue
            coef = np.ascontiguousarray(at[which].T, dtype)
            total, sums = np.zeros(len(which)), np.zeros((at.shape[1], len(which)))
            for rows in _tiles(block, len(which)):
                z = self._columns(rows, members, dtype)
                eta = z @ coef
                if loss:
                    part, slope = self.response.loss_and_slope(rows, eta)
                    total += part
                else:
                    slope = self.response.slope(rows, eta)
                sums += z.T @ slope
            values[which, k], gradient[which, k] = total, sums.T
        return values, gradient

    def losses(self, members, at: np.ndarray, over: np.ndarray) -> np.ndarray:
        """Losses of the blocks ``over``, bool (fit, block), 0 elsewhere."""
        return losses_of(self.blocks, self.response, at, over, lambda rows: self._columns(rows, members))

    def largest(self, members, change: np.ndarray) -> np.ndarray:
        """Return the largest change of a predictor, regardless of weights, by changes (fit, member)."""
        coef, most = np.ascontiguousarray(change.T), np.zeros(len(change))
        for rows in _tiles(slice(0, self.blocks.n_rows), len(change)):
            most = np.maximum(most, np.abs(self._columns(rows, members) @ coef).max(axis=0))
        return most * (1 + 1e-12)

    def rounding(self, at: np.ndarray) -> np.ndarray:
        """Allow for the rounding of objectives and gradients at some models, (model, column), in nats."""
        terms = 3 * np.abs(at[:, :-1]).sum(axis=1) + np.abs(at[:, -1])
        return np.finfo(float).eps * (16 * self._terms + 2 * self._counts * terms)

    def survey(self, members, at: np.ndarray, anchor: Anchor) -> Survey:
        """Evaluate some models (model, member) in single precision, and their distance from an anchor.

        Gradients and losses only guide the steps; the changes of predictors that bounds rest on are rounded up.
        """
        n, blocks = len(at), self.blocks
        coef = np.ascontiguousarray(at.T, np.float32)
        loss, gradient = np.zeros((n, blocks.n_blocks)), np.zeros((n, blocks.n_blocks, at.shape[1]))
        beyond, bend = np.zeros((len(LEVELS), n)), np.zeros((n, blocks.n_blocks))
        size = np.abs(at).sum(axis=1)
        for k, block in enumerate(blocks.slices):
            for rows in _tiles(block, 2 * n):
                z = self._columns(rows, members, np.float32)
                eta, pull = z @ coef, anchor.pull[rows].astype(np.float32)
                moved = np.abs(eta - anchor.eta[rows, None].astype(np.float32))
                moved += (_SINGLE * np.abs(z).max() * size).astype(np.float32)
                part, slope = self.response.loss_and_slope(rows, eta)
                loss[:, k] += part
                gradient[:, k] += slope.T @ z
                for level, of in zip(LEVELS, beyond, strict=True):
                    of += pull @ (moved > level)
                far = moved > _BEND
                bend[:, k] += pull @ np.where(far, np.exp(moved), 0.0) if far.any() else 0.0
            bend[:, k] += anchor.block[k] * np.exp(_BEND)
        return Survey(loss, gradient, beyond.T * (1 + _SUMS), bend * (1 + _SUMS))

    def anchor(self, at: np.ndarray, least: bool = False) -> Anchor:
        """Form Hessian and gradient of every block at a model of all columns, and the leverage of every row there.

        With ``least`` the Hessian is that of responses of 0, the smallest there is (`curvature_is_least_at_0`).
        """
        blocks, p = self.blocks, self.blocks.n_columns
        hessian, gradient = np.zeros((blocks.n_blocks, p, p)), np.zeros((blocks.n_blocks, p))
        loss = np.zeros(blocks.n_blocks)
        eta = np.concatenate([self.blocks.rows(rows) @ at for rows in tiles_of(blocks.n_rows)])
        curvature = self.response.curvature(eta, least)
        for k, block in enumerate(blocks.slices):
            for rows in _tiles(block, p):
                z = self.blocks.rows(rows)
                part, slope = self.response.loss_and_slope(rows, eta[rows, None].copy())
                loss[k] += part[0]
                gradient[k] += slope[:, 0] @ z
                z = z * np.sqrt(curvature[rows, None])
                hessian[k] += z.T @ z
        hessians = np.tensordot(self.sets.astype(float), hessian, 1)
        diagonal = np.arange(p)
        whole = hessians.copy()
        whole[:, diagonal, diagonal] += self.least * self.size[:, None] * self.ridge
        turn = np.linalg.inv(np.linalg.cholesky(whole[0]))
        leverage = self._leverages(turn)
        share = np.linalg.eigvalsh(turn @ whole @ turn.T)[:, 0] * (1 - 1e-9)
        block = np.linalg.eigvalsh(turn @ hessian @ turn.T)[:, -1] * (1 + 1e-9)
        reach = leverage.max() * (1 + 1e-9) / np.maximum(share, 1e-300)
        return Anchor(at, loss, gradient, eta, curvature * leverage, block, reach, share, hessians)

    def _leverages(self, turn: np.ndarray) -> np.ndarray:
        """Bound the squared norm of every row in new coordinates: in single precision if that is accurate enough."""
        for dtype, unit in ((np.float32, 2.0**-24), (np.float64, 2.0**-53)):
            turned, slack = turn.T.astype(dtype), (len(turn) + 16) * unit * np.linalg.norm(turn)
            parts = [_leverage(self.blocks.rows(rows, dtype), turned, slack) for rows in tiles_of(self.blocks.n_rows)]
            size, off = (np.concatenate(of) for of in zip(*parts, strict=True))
            if off.max() <= _ROUGH * size.max():
                break
        return (size + off) ** 2

    def anchor_like(self, base: Anchor) -> Anchor:
        """Return an anchor with the least Hessian that was formed for other responses, at the same model.

        Its pull is in the order of the rows as given: that of a neuron depends on the responses.
        """
        every = np.ones((1, self.blocks.n_blocks), bool)
        loss, gradient = self.gradients(None, base.at[None], every, loss=True, dtype=np.float32)
        # At a constant model the curvature is that of a response of 0, plus a constant times the response.
        observation, eta, y = self.response.observation, np.array(base.at[-1]), self.response.y
        least, more = (float(observation.curvature(np.array(of), eta)) for of in (0.0, 1.0))
        grown = 1 + (more / least - 1) * y
        pull = base.pull[self.blocks.order]
        pull = pull if more == least else pull * grown
        return base._replace(loss=loss[0], gradient=gradient[0], pull=pull, block=base.block * grown.max())

    def _columns(self, rows: slice, members, dtype=np.float64) -> np.ndarray:
        z = self.blocks.rows(rows, dtype)
        return z if members is None else np.take(z, members, axis=1)


def losses_of(blocks: Blocks, response: Response, at: np.ndarray, over: np.ndarray, columns=None) -> np.ndarray:
    """Losses of blocks, bool (fit, block), of one neuron, 0 elsewhere; ``columns`` gives rows of other features."""
    values, columns = np.zeros(over.shape), columns or blocks.rows
    for k, block in enumerate(blocks.slices):
        which = np.flatnonzero(over[:, k])
        coef = np.ascontiguousarray(at[which].T)
        for rows in _tiles(block, len(which)) if len(which) else ():
            values[which, k] += response.loss(rows, columns(rows) @ coef)
    return values


def _tiles(block: slice, n_fits: int) -> list[slice]:
    return tiles_within(block, min(max(_NUMBERS // max(n_fits, 1), 256), 4096))


def _leverage(z: np.ndarray, turn: np.ndarray, slack: float) -> tuple[np.ndarray, np.ndarray]:
    """Norms of some rows in new coordinates, and bounds of their rounding errors."""
    turned = z @ turn
    size, length = (np.sqrt(np.einsum("ij,ij->i", v, v).astype(np.float64)) for v in (turned, z))
    return size, slack * length + 1e-6 * size
