"""Responses of neurons to stimuli in their three forms: sessions, a table, records."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from ..observations import RESPONSE_LOSSES, Bernoulli, Observation
from ..pairs import SessionBlock, Triples
from ..pairs.responses import Piece
from .arrays import numbers, place, refuse_spike_times, shape_of
from .counts import warn_of_fractions
from .entities import LARGEST, read_ids

_COUNT_FIRST = "count the spikes after each stimulus first, to an array (stimulus, neuron)."
_SPARSEST = 100  # times as many ids as entities
_FORMS = (
    "Give a list of sessions (stimulus ids, neuron ids, array (stimulus, neuron)), one array (stimulus, neuron) with "
    "NaN where nothing was recorded, or a tuple (stimulus ids, neuron ids, responses) with one entry per record."
)
_HINTS = {
    "poisson": " Did you pass z-scored data? Pass the counts themselves.",
    "poisson-exp": " Did you pass z-scored data? Pass the counts themselves.",
    "logistic": " (-1 and 1 will do as well, throughout.)",
}


@dataclass(frozen=True)
class Responses:
    """Checked responses, float64."""

    given: list[SessionBlock] | Triples | np.ndarray  # in the form they came in; a table has NaN where there is none
    n_stimuli: int
    n_neurons: int
    dtype: Any  # that they came in

    @cached_property
    def records(self) -> Triples:
        """All responses that are there, one by one."""
        if isinstance(self.given, np.ndarray):
            row, column = np.nonzero(~np.isnan(self.given))
            return Triples(row, column, self.given[row, column])
        parts = [self.given] if isinstance(self.given, Triples) else self.given
        parts = [Piece(*part).scattered()[:3] for part in parts]
        return Triples(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def pairs(self) -> np.ndarray:
        """Every pair that has a response, once, as ``stimulus * n_neurons + neuron``; sorted."""
        records = self.records
        return np.unique(self.key(records.left, records.right))

    def key(self, stimuli, neurons) -> np.ndarray:
        """Give every pair its number."""
        return np.asarray(stimuli, np.int64) * self.n_neurons + neurons

    def without(self, pairs: np.ndarray) -> Any:
        """Responses without those of some pairs, in the same form."""
        given = self.given
        if isinstance(given, Triples):
            keep = ~np.isin(self.key(given.left, given.right), pairs)
            return Triples(*(column[keep] for column in given))
        if isinstance(given, np.ndarray):
            left_out = given.copy()
            left_out.ravel()[pairs] = np.nan
            return left_out
        blocks = []
        for block in given:
            out = np.isin(self.key(block.left[:, None], block.right[None, :]), pairs)
            blocks.append(block._replace(y=np.where(out, np.nan, block.y)))
        return blocks

    def only(self, pairs: np.ndarray) -> Triples:
        """Select the records of some pairs."""
        records = self.records
        keep = np.isin(self.key(records.left, records.right), pairs)
        return Triples(*(column[keep] for column in records))

    def warn_of_fractions(self) -> None:
        """Warn of counts that are not integers, as other Poisson models do."""
        records = self.records
        odd = np.bincount(records.right[records.y != np.rint(records.y)], minlength=self.n_neurons) > 0
        if odd.any():
            warn_of_fractions(odd, name="responses")


def read_responses(
    responses, loss: Observation, n_stimuli: int | None, n_neurons: int | None, name: str = "responses"
) -> Responses:
    """Check responses in any of the three forms of :meth:`glmfit.ResponseModel.fit`, with values that the loss allows.

    Numbers of stimuli and neurons that are None are counted here.
    """
    sizes: tuple = n_stimuli, n_neurons
    refuse_spike_times(responses, name, _COUNT_FIRST)
    if responses is None or isinstance(responses, Mapping | Iterator | str):
        what = "None" if responses is None else f"a {type(responses).__name__}"
        raise ValueError(f"{name} is {what}. {_FORMS}")
    if isinstance(responses, tuple) and len(responses) != 3:
        raise ValueError(f"{name} is a tuple of {len(responses)}. {_FORMS}")
    given: Any
    if scipy.sparse.issparse(responses):
        _check_shape(responses.shape, sizes, name)
        entries = responses.tocoo()  # entries that stand twice are repeated trials
        row, column = (np.asarray(ids, np.int64) for ids in entries.coords)
        given, sizes, dtype = Triples(row, column, _values(entries.data, name)), responses.shape, entries.dtype
    elif isinstance(responses, list) or (isinstance(responses, tuple) and _ndim(responses[2]) == 2):
        sessions = responses if isinstance(responses, list) else [responses]
        given, sizes = _read_sessions(sessions, sizes, name)
        dtype = np.result_type(*(_dtype(session[2]) for session in sessions))
    elif isinstance(responses, tuple):
        given, sizes = _read_triples(responses, sizes, name)
        dtype = _dtype(responses[2])
    else:
        given, dtype = _values(responses, name), _dtype(responses)
        if given.ndim != 2:
            raise ValueError(f"{name} has shape {given.shape}. {_FORMS}")
        _check_shape(given.shape, sizes, name)
        sizes = given.shape
    if isinstance(given, Triples) and np.isnan(given.y).any():
        raise ValueError(
            f"{name} has {int(np.isnan(given.y).sum())} NaN (first at record {int(np.argmax(np.isnan(given.y)))}); a "
            "record without a value is none: leave it out."
        )
    given = _check_values(given, loss, name)
    single = dtype in (np.float32, np.float16)
    checked = Responses(given, int(sizes[0]), int(sizes[1]), np.dtype(np.float32 if single else np.float64))
    for known, n, ids, entities in (
        (n_stimuli, sizes[0], "left", "stimuli"),
        (n_neurons, sizes[1], "right", "neurons"),
    ):
        if known is None and not isinstance(given, np.ndarray):
            _refuse_gaps(np.unique(getattr(checked.records, ids)), n, entities, name)
    return checked


def _refuse_gaps(ids: np.ndarray, n: int, entities: str, name: str) -> None:
    """Raise if ids are so far apart that they can hardly be rows of a table."""
    if n > max(1000, _SPARSEST * len(ids)):
        raise ValueError(
            f"{name} has {len(ids)} different {entities}, but the largest id is {n - 1}: ids count from 0 and every "
            "number below the largest gets an embedding. Renumber them with numpy.unique(ids, return_inverse=True), or "
            f"give the number of {entities} in place of their features."
        )


# ---------------------------------------------------------------------------------------- the forms


def _read_sessions(sessions: list, sizes, name: str) -> tuple[list[SessionBlock], tuple]:
    """Check a list of sessions; their sizes where none are given."""
    if not sessions:
        raise ValueError(f"{name} is an empty list: no session. {_FORMS}")
    blocks = []
    for s, session in enumerate(sessions):
        where = f"session {s} of {name}"
        is_three = isinstance(session, tuple | list) and len(session) == 3
        if not is_three or _ndim(session[2]) != 2:
            third = f" whose third is {_describe(session[2])}" if is_three else ""
            raise ValueError(
                f"{where} is {_describe(session)}{third}; every entry of a list is a session: a tuple (stimulus ids, "
                "neuron ids, array (stimulus, neuron)), in this order. Three arrays with one entry per record go into "
                "a tuple, a table into numpy.asarray."
            )
        stimuli, neurons = _read_both_ids(session, sizes, where)
        if scipy.sparse.issparse(session[2]):
            raise TypeError(f"{where} is a sparse matrix; give it dense, with NaN where nothing was recorded.")
        y = _values(session[2], where)
        if y.shape != (len(stimuli), len(neurons)):
            raise ValueError(
                f"{where} has responses of shape {y.shape}, but {len(stimuli)} stimulus ids and {len(neurons)} neuron "
                f"ids: it needs one row per stimulus id and one column per neuron id, ({len(stimuli)}, {len(neurons)})."
            )
        blocks.append(SessionBlock(stimuli, neurons, y))
    return blocks, _sizes(sizes, blocks)


def _read_triples(responses: tuple, sizes, name: str) -> tuple[Triples, tuple]:
    """Check a tuple of three arrays."""
    stimuli, neurons = _read_both_ids(responses, sizes, name)
    y = _values(responses[2], name)
    if y.ndim != 1:
        raise ValueError(f"{name} is a tuple whose third entry has shape {y.shape}. {_FORMS}")
    if not len(stimuli) == len(neurons) == len(y):
        raise ValueError(
            f"{name} has {len(stimuli)} stimulus ids, {len(neurons)} neuron ids and {len(y)} values; a record is one "
            "of each, so their numbers must be the same."
        )
    given = Triples(stimuli, neurons, y)
    return given, _sizes(sizes, [given])


def _read_both_ids(three, sizes, where: str) -> list[np.ndarray]:
    kinds = ("stimulus", "stimuli"), ("neuron", "neurons")
    return [
        read_ids(ids, f"{entity} ids of {where}", n, entities)
        for ids, n, (entity, entities) in zip(three[:2], sizes, kinds, strict=True)
    ]


def _sizes(sizes, parts) -> tuple:
    """Numbers of entities: those given, or one more than the largest id."""
    found = (1 + max(int(getattr(part, side).max(initial=-1)) for part in parts) for side in ("left", "right"))
    return tuple(f if n is None else n for n, f in zip(sizes, found, strict=True))


def _values(values, what: str) -> np.ndarray:
    return numbers(values, what, "numbers, with NaN where nothing was recorded", spikes=_COUNT_FIRST)


def _dtype(values) -> Any:
    """Type of what came in: that of a frame only if all its columns have it."""
    kinds = getattr(values, "dtypes", None)
    if kinds is not None and np.ndim(kinds) == 1:
        return np.dtype(np.float32 if len(kinds) and all(kind == np.float32 for kind in kinds) else np.float64)
    dtype = getattr(values, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and dtype.kind in "fiub" else np.dtype(np.float64)


def _check_shape(shape, sizes, name: str) -> None:
    """Raise unless a table has one row per stimulus and one column per neuron."""
    if tuple(shape) == tuple(sizes)[::-1] and shape[0] != shape[1]:
        raise ValueError(
            f"{name} is a table of shape {tuple(shape)}, but there are {sizes[0]} stimuli and {sizes[1]} neurons: it "
            f"looks like (neuron, stimulus); pass {name}.T."
        )
    entities = ("stimulus", "stimuli"), ("neuron", "neurons")
    for have, need, (entity, several), along in zip(shape, sizes, entities, ("row", "column"), strict=True):
        if need is not None and have != need:
            raise ValueError(
                f"{name} is a table of shape {tuple(shape)}, but there are {need} {several}, the rows of "
                f"{entity}_features, ({entity}, feature): it needs one {along} per {entity}. Where {entity}_features "
                f"is (feature, {entity}), pass {entity}_features.T; where some {several} have no responses, give ids "
                "with the responses."
            )


def _check_values(given, loss: Observation, name: str):
    """Check the values of all parts; -1 and 1 become 0 and 1 for a logistic loss."""
    parts, where = _parts(given)
    if not any(np.isfinite(y).any() for y in parts):
        if any(np.isinf(y).any() for y in parts):
            raise ValueError(f"{name} has infinite values only.")
        raise ValueError(f"{name} has no response: all entries are NaN, or there are none. A fit needs at least one.")
    if isinstance(loss, Bernoulli) and any((y == -1).any() for y in parts):
        if all(np.isnan(y).sum() + (np.abs(y) == 1).sum() == y.size for y in parts):
            given = _signs_to_shares(given)
            parts, where = _parts(given)
    called = next((name for name, known in RESPONSE_LOSSES.items() if known == loss), loss.name)
    for index, y in enumerate(parts):
        wrong, needs = loss.wrong(np.where(np.isnan(y), 0.0, y))
        for bad, what, advice in (
            (np.isinf(y), "infinite values", "use NaN where nothing was recorded"),
            (np.abs(y) > LARGEST, f"values beyond {LARGEST:.0e}", "their squares cannot be summed: rescale them"),
            (wrong, f"{int(wrong.sum())} values that the loss {called!r} cannot take", f"it needs {needs}"),
        ):
            if bad.any():
                hint = _HINTS.get(called, "") if bad is wrong else ""
                raise ValueError(f"{name} has {what} (first at {where(index, bad)}, {y[bad][0]:g}); {advice}.{hint}")
    return given


def _parts(given) -> tuple[list[np.ndarray], Callable]:
    """Arrays of values, and a function that says where the first of some marked places is."""
    if isinstance(given, np.ndarray):
        return [given], lambda index, bad: place(given, bad, "stimulus", "neuron")
    if isinstance(given, Triples):

        def record(index, bad):
            at = int(np.argmax(bad))
            return f"record {at}: stimulus {given.left[at]}, neuron {given.right[at]}"

        return [given.y], record
    return [block.y for block in given], lambda index, bad: f"session {index}, {place(bad, bad, 'row', 'column')}"


def _signs_to_shares(given):
    if isinstance(given, np.ndarray):
        return (given + 1) / 2
    if isinstance(given, Triples):
        return given._replace(y=(given.y + 1) / 2)
    return [block._replace(y=(block.y + 1) / 2) for block in given]


def _ndim(value) -> int:
    """Count the dimensions of anything; 0 of what is no array."""
    return len(shape_of(value) or ())


def _describe(value) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
