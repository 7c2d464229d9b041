"""Held-out losses of nested models: strengths chosen inside the training folds, and every fit with its bound."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np

from ...observations import Observation
from .blocks import Blocks, sets_of_blocks, tiles_within
from .models import Models
from .neuron import Anchor, Neuron
from .response import Response, curvature_is_least_at_0

_NEGLIGIBLE, _TOL = 1e-2, 1e-6  # negligible nats of a fit, fewer with a tolerance below the second
_CLOSE = 1e-6  # of these, for fits whose losses are returned: the error of a loss goes with the root
_CLOSE_ENOUGH = 1e-4  # nats of fits whose strengths are next to the best
_TIE = 0.03  # nats: strengths with closer scores are compared by finished fits
_MOST_OF_IT = 0.8  # share of the curvature without any response, above which it stands for all
_ROUNDING = 1e-12  # of a loss
_SMALL = 0.5  # share of the columns, above which models are fitted together
_NEWTON_STEPS = 100  # of an intercept
_NEW, _NEW_SMALL = 8, 3  # Hessians for models that are fitted together
_MANY = 1000  # fits from which on rows are worth copying


class Responses(NamedTuple):
    """Responses of neurons, in the order of the rows of the features, and weights and known predictors if any."""

    Y: np.ndarray  # (time, neuron)
    own: np.ndarray | None = None  # weights of single responses in the loss, (time, neuron)
    seen: np.ndarray | None = None  # and in the number of responses, by which a strength is multiplied
    offset: np.ndarray | None = None  # (time, 1 or neuron)

    def column(self, n: int) -> tuple[np.ndarray | None, ...]:
        """Columns of one neuron, (time,) or None each."""
        return tuple(None if a is None else a[:, n if a.shape[1] > 1 else 0] for a in self)

    def in_order(self, blocks: Blocks, n: int) -> tuple[np.ndarray, Any, Any, Any]:
        """Responses of one neuron in the order of the blocks, their weights, those that count rows, and offsets."""
        y, *others = self.column(n)
        own, seen, offset = (blocks.take(a) for a in others)
        weights, counts = (
            a if blocks.weights is None else blocks.weights if a is None else a * blocks.weights for a in (own, seen)
        )
        return blocks.take(np.asarray(y, np.float64)), weights, counts, offset


@dataclass
class HeldOut:
    """Held-out losses in nats, with strengths and bounds; axes are (model, held-out block, neuron)."""

    loss: np.ndarray  # of the model fitted to the other blocks at the strength chosen there; nan if there is none
    off: np.ndarray  # bound of the difference to the loss of the exact optimum, inf if unknown
    chosen: np.ndarray  # index of the strength
    gap: np.ndarray  # bound of the distance of the fit from its optimum, in nats, inf if there is none
    proved: np.ndarray  # whether the gap is below its target, and so are those of the fits that chose the strength
    n_fits: np.ndarray  # of every neuron, including those that chose the strengths, (neuron,)
    n_proved: np.ndarray  # how many of these are proved, (neuron,)

    @classmethod
    def empty(cls, n_models: int, n_held: int, n_neurons: int) -> Self:
        """Return an object without results."""
        shape = n_models, n_held, n_neurons
        unknown = [np.full(shape, value) for value in (np.nan, np.inf, 0, np.inf, False)]
        return cls(*unknown, *np.zeros((2, n_neurons), int))

    def put(self, at: Any, other: Self) -> None:
        """Store the results of some neurons."""
        for name, whole in vars(self).items():
            whole[..., at] = getattr(other, name)


@dataclass(frozen=True)
class Nested:
    """Models, blocks, strengths and tolerances of a search.

    Strengths are those of a ridge on coefficients of the features as given. A single one is used; of several, each
    held-out block gets the one with the best score on the other blocks, each of which is also held out in turn.
    """

    blocks: Blocks
    masks: np.ndarray  # features of each model, bool (model, feature)
    strengths: np.ndarray  # increasing and positive, (strength,)
    tol: float = 1e-6  # relative gap of the fits whose losses are returned
    cv_tol: float = 1e-5  # and of those that choose the strengths
    loose: float | None = None  # gap in nats that is near enough for the first, instead of that from `tol`

    def __post_init__(self):
        object.__setattr__(self, "sets", sets_of_blocks(self.n_held, self.blocks.n_blocks, len(self.strengths) > 1))

    @property
    def n_held(self) -> int:
        """Blocks that are held out."""
        return self.blocks.n_held

    def singles(self) -> np.ndarray:
        """Return the sets that leave out one block, in the order of the blocks."""
        return 1 + np.arange(self.n_held)

    def pairs(self) -> np.ndarray:
        """Return the sets that leave out two."""
        return np.arange(1 + self.n_held, len(self.sets))

    def target(self, improvement: np.ndarray, tol: float) -> np.ndarray:
        """Gap in nats below which a fit that chooses a strength is near enough."""
        return np.maximum(tol * improvement, _NEGLIGIBLE * min(1.0, tol / _TOL))

    @property
    def close(self) -> float:
        """Gap in nats below which a fit whose loss is returned is near enough."""
        return _CLOSE * _NEGLIGIBLE * min(1.0, self.tol / _TOL) if self.loose is None else self.loose

    def batches(self, among: np.ndarray) -> Iterator[np.ndarray]:
        """Yield models that are fitted together: all large ones, then small ones by themselves, largest first."""
        size = self.masks[among].sum(axis=1)
        large = size > _SMALL * self.masks.shape[1]
        if large.any():
            yield among[large]
        for model in among[~large][np.argsort(-size[~large], kind="stable")]:
            yield np.array([model])

    def of_neuron(
        self, observation: Observation, responses: Responses, n: int, among=None, shared: dict | None = None
    ) -> HeldOut:
        """Held-out losses of one neuron, of all models or those ``among``, by Newton steps from nearby Hessians.

        ``shared`` keeps results that other responses of the same neuron to the same features can reuse.
        """
        among = np.arange(len(self.masks)) if among is None else among
        out = HeldOut.empty(len(self.masks), self.n_held, 1)
        with np.errstate(all="ignore"):  # what is not a number has no bound
            try:
                self._of_neuron(observation, among, shared, out, *responses.in_order(self.blocks, n))
            except np.linalg.LinAlgError:  # duplicate features, with almost no ridge
                out.n_fits += 1
        return out

    def _of_neuron(
        self, observation: Observation, among, shared: dict | None, out: HeldOut, y, weights, counts, offset
    ):
        blocks = self.blocks
        size = np.array(
            [block.stop - block.start if counts is None else counts[block].sum() for block in blocks.slices]
        )
        mass = size if weights is None else np.array([weights[block].sum() for block in blocks.slices])

        def means(values):
            total = np.array([(values if weights is None else values * weights)[b].sum() for b in blocks.slices])
            return (self.sets @ total) / (self.sets @ mass)

        mean = observation.exact_mean(means(y), lambda: means(1.0 - y))
        usable = (self.sets @ size > 0) & np.asarray(observation.has_optimum(mean), bool)
        held = usable[self.singles()] & (size[: self.n_held] > 0)
        if not (usable[0] and held.any()):
            return
        response = Response.of(observation, y, weights, offset)
        flat, among = among[~self.masks[among].any(axis=1)], among[self.masks[among].any(axis=1)]
        if len(flat):
            self._constant(response, flat, mean, usable, size > 0, out)
        if not len(among):
            return
        many = len(self.sets) * len(among) * len(self.strengths) > _MANY
        neuron = Neuron(blocks, response, self.sets, size.astype(float), self.strengths[0], many)
        at = np.zeros(blocks.n_columns)
        at[-1] = observation.intercept(np.array(mean[0]))
        shared = shared if weights is None and offset is None and curvature_is_least_at_0(observation) else None
        anchors, masks = [_first(neuron, at, shared)], np.column_stack([self.masks, np.ones(len(self.masks), bool)])
        for some in self.batches(among):
            most, loose = _NEW if len(some) > 1 else _NEW_SMALL, self.loose is not None
            self._search(Models(neuron, masks[some], anchors, most, loose), some, usable, size > 0, out)

    def totals(self, loss: np.ndarray, sets: np.ndarray, there: np.ndarray, n_models: int) -> np.ndarray:
        """Sum the losses (fit, block) of pairs of blocks over the partners of each, (model, strength, held)."""
        S, K = len(self.strengths), self.n_held
        total = np.zeros((n_models, S, K))
        for pair, of in zip(sets[:: n_models * S], loss.reshape(-1, n_models, S, loss.shape[1]), strict=True):
            i, j = np.flatnonzero(~self.sets[pair])
            total[..., i] += np.where(there[j], of[..., j], 0.0)
            total[..., j] += np.where(there[i], of[..., i], 0.0)
        return np.where(np.isfinite(total), total, np.inf)

    def _constant(self, response: Response, some: np.ndarray, mean, usable, there, out: HeldOut) -> None:
        """Store the losses of models without features, whose optima are known up to rounding."""
        at = intercepts(response, self.blocks.slices, self.sets, mean)
        for k, set_ in enumerate(self.singles()):
            if not (usable[set_] and there[k]):
                continue
            block = self.blocks.slices[k]
            loss = response.loss(block, np.full((block.stop - block.start, 1), at[set_]))[0]
            out.loss[some, k], out.off[some, k] = loss, _ROUNDING * (abs(loss) + 1)
            out.gap[some, k], out.proved[some, k] = 0.0, True
            out.n_fits += len(some)
            out.n_proved += len(some)

    def _search(self, models: Models, some: np.ndarray, usable: np.ndarray, there: np.ndarray, out: HeldOut) -> None:
        """Fit a batch of models of one neuron, and store the results."""
        S, K, n = len(self.strengths), self.n_held, len(some)
        leads = models.leads(self.strengths)
        chosen, sure = np.full((n, K), S - 1), np.ones((n, K), bool)
        pairs = self.pairs()[usable[self.pairs()]]
        if len(pairs):
            lead, sets = np.tile(np.arange(n * S), len(pairs)), np.repeat(pairs, n * S)
            target = self.target(models.improvement(leads, lead, sets), self.cv_tol)
            fits = models.fit(leads, lead, sets, target)
            out.n_fits += len(sets)
            out.n_proved += int(np.sum(fits.proved))
            loss = models.losses(fits.ahead, ~self.sets[sets])
            total = self.totals(loss, sets, there, n)
            close = _near_the_best(total)[lead // S, lead % S]  # (fit, held)
            close = np.flatnonzero(np.any(close & ~self.sets[sets][:, :K], axis=1))
            if len(close):  # otherwise the distances from their optima would choose between them
                target = max(self.close, _CLOSE_ENOUGH)
                again = models.fit(leads, lead[close], sets[close], target, start=fits.ahead[close])
                loss[close] = models.losses(again.ahead, ~self.sets[sets[close]])
                total = self.totals(loss, sets, there, n)
            chosen = best_of(total)
            lost, of_model = np.flatnonzero(~fits.proved), leads.model[lead]
            for k in range(K):
                sure[of_model[lost[~self.sets[sets[lost], k]]], k] = False
        out.chosen[some, :, 0] = chosen
        held = np.flatnonzero(usable[self.singles()] & there[:K])
        model, at = np.repeat(np.arange(n), len(held)), np.tile(held, n)
        lead, sets = model * S + chosen[model, at], self.singles()[at]
        fits = models.fit(leads, lead, sets, self.close, keep=True)
        loss, off = models.score(fits, ~self.sets[sets])
        place, each = (some[model], at, 0), np.arange(len(at))
        out.loss[place], out.gap[place], out.proved[place] = loss[each, at], fits.bound, fits.proved & sure[model, at]
        out.off[place] = np.where(np.isfinite(fits.bound), off[each, at], np.inf)
        out.n_fits += len(at)
        out.n_proved += int(np.sum(fits.proved))


def _first(neuron: Neuron, at: np.ndarray, shared: dict | None) -> Anchor:
    """Return the anchor at a constant model, with a shared Hessian if possible."""
    if shared is None:
        return neuron.anchor(at)
    observation, y = neuron.response.observation, neuron.response.y
    eta = np.array(at[-1])
    expected = observation.curvature(np.array(y.mean()), eta)
    if observation.curvature(np.array(0.0), eta) < _MOST_OF_IT * expected:
        return neuron.anchor(at)
    key = float(at[-1])
    if key not in shared:
        shared.clear()
        anchor = neuron.anchor(at, least=True)
        shared[key] = anchor._replace(pull=anchor.pull[np.argsort(neuron.blocks.order)])
    return neuron.anchor_like(shared[key])


def intercepts(response: Response, blocks: list[slice], sets: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Optimal intercepts of a model without features, up to rounding, (set,), from the mean response of every set."""
    at = np.asarray(response.observation.intercept(mean), np.float64)
    if response.offset is None:
        return at
    at = at - np.average(response.offset)
    for _ in range(_NEWTON_STEPS):
        slope, bend = np.zeros((2, len(blocks), len(at)))
        for k, block in enumerate(blocks):
            for rows in tiles_within(block, 65536):
                eta = np.broadcast_to(at, (rows.stop - rows.start, len(at))).copy()
                slope[k] += response.slope(rows, eta.copy()).sum(axis=0)
                bend[k] += response.bends(rows, eta)
        total, curvature = (np.einsum("sk,ks->s", sets.astype(float), of) for of in (slope, bend))
        step = np.where(curvature > 0, total / np.where(curvature > 0, curvature, 1.0), 0.0)
        at = at - np.clip(step, -2.0, 2.0) if not response.observation.is_quadratic else at - step
        if np.all(np.abs(step) <= 1e-13 * (1 + np.abs(at))):
            break
    return at


def best_of(total: np.ndarray) -> np.ndarray:
    """Index of the strength with the smallest loss (model, strength, ...), the strongest among ties, (model, ...)."""
    return total.shape[1] - 1 - np.argmin(total[:, ::-1], axis=1)


def _near_the_best(total: np.ndarray) -> np.ndarray:
    """Whether strengths score close to the best, if several do, bool (model, strength, held)."""
    near = total <= total.min(axis=1, keepdims=True) + _TIE
    return near & (near.sum(axis=1, keepdims=True) > 1)
