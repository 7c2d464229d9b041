"""Units of measured responses: a fit sees them centred, and of size one."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from .responses import SessionBlock, Triples


class Units(NamedTuple):
    """Responses are ``shift + size`` times those of the fit.

    With the squared loss this changes nothing but numbers: the objective is ``size^2`` times that of the fit if the
    ridge is divided by the size, embeddings are multiplied by its root, and biases by itself. Single precision then
    does not see how large the responses are, nor how far from 0.
    """

    shift: np.ndarray  # mean response of every neuron, that of all where it has none; zeros without biases
    size: float = 1.0  # a power of 4, near the root mean square of what is left; 1 for towers that are not linear
    start: float = 0.2  # root mean square of the embeddings a fit begins with, in its own units

    @classmethod
    def of(cls, records: Triples, n_neurons: int, biases: bool, linear: bool) -> Units:
        """Measure the records of a fit with the squared loss."""
        count = np.bincount(records.right, minlength=n_neurons)
        shift = np.zeros(n_neurons)
        if biases:
            total = np.bincount(records.right, records.y, n_neurons)
            shift = np.where(count > 0, total / np.maximum(count, 1), records.y.mean())
        size = float(np.sqrt(np.mean((records.y - shift[records.right]) ** 2)))
        rounding = 1e-12 * float(np.max(np.abs(records.y), initial=0.0))
        if size <= rounding:
            return cls(shift)
        if not linear:
            return cls(shift, start=cls(shift).start * math.sqrt(size))
        return cls(shift, 4.0 ** round(math.log(size, 4)))

    def responses(self, given: Any) -> Any:
        """Responses of the fit, in the form they came in."""
        if isinstance(given, np.ndarray):
            return (given - self.shift) / self.size
        if isinstance(given, Triples):
            return given._replace(y=(given.y - self.shift[given.right]) / self.size)
        return [SessionBlock(b.left, b.right, (b.y - self.shift[b.right]) / self.size) for b in given]

    def prior(self, prior: Any, n_stimuli: int) -> Any:
        """Prior of the fit: "mean" stays, others become factors."""
        if isinstance(prior, str) and (prior == "mean" or not self.shift.any()):
            return prior
        left, right = np.ones((n_stimuli, 1)), -self.shift[:, None] / self.size
        if isinstance(prior, str):
            return left, right
        return np.concatenate([prior[0], left], axis=1), np.concatenate([prior[1] / self.size, right], axis=1)
