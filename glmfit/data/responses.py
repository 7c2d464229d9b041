"""Responses of neurons to stimuli in their three forms: sessions, a table, records."""

from collections.abc import Iterator, Mapping
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
from .entities import LARGEST, NEURONS, STIMULI, read_ids

_COUNT_FIRST = "count the spikes after each stimulus first, into an array (stimulus, neuron)."
_SPARSEST = 100  # times as many ids as entities
_FORMS = (
    "Give a list of sessions (stimulus ids, neuron ids, array (stimulus, neuron)), one array (stimulus, neuron) with "
    "NaN where nothing was recorded, or a tuple (stimulus ids, neuron ids, responses) with one entry per record."
)
_HINTS = {
    "poisson": " Did you pass z-scored data? Pass the counts themselves.",
    "poisson-exp": " Did you pass z-scored data? Pass the counts themselves.",
    "logistic": " (-1 and 1 also work, if used throughout.)",
}


@dataclass(frozen=True)
class Responses:
    """Checked responses, float64."""

    form: str  # of the input: "sessions", "table" or "records"
    parts: list  # a SessionBlock of each session, one of the whole table, or one Triples of the records
    n_stimuli: int
    n_neurons: int
    dtype: Any  # of the input

    def given(self, parts: list | None = None) -> list[SessionBlock] | Triples | np.ndarray:
        """Return responses, or parts of them, in the form of the input; a table has NaN where there is none."""
        parts = self.parts if parts is None else parts
        return {"sessions": parts, "table": parts[0].y, "records": parts[0]}[self.form]

    @cached_property
    def records(self) -> Triples:
        """All recorded responses, one by one."""
        parts = (Piece(*part).scattered()[:3] for part in self.parts)
        return Triples(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def key(self, stimuli, neurons) -> np.ndarray:
        """Return the number of every pair, ``stimulus * n_neurons + neuron``."""
        return np.asarray(stimuli, np.int64) * self.n_neurons + neurons

    def split(self, pairs: np.ndarray) -> tuple[Triples, Any]:
        """Split off the records of some pairs; the other responses keep the form of the input."""
        among = np.isin(self.key(self.records.left, self.records.right), pairs)
        off, rest = (Triples(*(column[chosen] for column in self.records)) for chosen in (among, ~among))
        if self.form == "records":
            return off, rest
        out = (np.isin(self.key(block.left[:, None], block.right[None, :]), pairs) for block in self.parts)
        return off, self.given([b._replace(y=np.where(o, np.nan, b.y)) for b, o in zip(self.parts, out, strict=True)])

    def warn_of_fractions(self) -> None:
        """Warn of counts that are not integers, as other Poisson models do."""
        records = self.records
        odd = np.bincount(records.right[records.y != np.rint(records.y)], minlength=self.n_neurons) > 0
        warn_of_fractions(odd, name="responses")


def read_responses(
    responses, loss: Observation, n_stimuli: int | None, n_neurons: int | None, name: str = "responses"
) -> Responses:
    """Check responses in any of the three forms of :meth:`glmfit.ResponseModel.fit`, with values that the loss allows.

    If a number of stimuli or neurons is None, it is counted here.
    """
    sizes: tuple = n_stimuli, n_neurons
    refuse_spike_times(responses, name, _COUNT_FIRST)
    if responses is None or isinstance(responses, Mapping | Iterator | str):
        what = "None" if responses is None else f"a {type(responses).__name__}"
        raise ValueError(f"{name} is {what}. {_FORMS}")
    if isinstance(responses, tuple) and len(responses) != 3:
        raise ValueError(f"{name} is a tuple of {len(responses)}. {_FORMS}")
    if scipy.sparse.issparse(responses):
        _check_shape(responses.shape, sizes, name)
        entries = responses.tocoo()  # duplicate entries are repeated trials
        row, column = (np.asarray(ids, np.int64) for ids in entries.coords)
        form, parts, dtype = "records", [Triples(row, column, _values(entries.data, name))], entries.dtype
        sizes = responses.shape
    elif isinstance(responses, list):
        form, parts = "sessions", [_read_session(entry, s, sizes, name) for s, entry in enumerate(responses)]
        if not parts:
            raise ValueError(f"{name} is an empty list: no session. {_FORMS}")
        dtype = np.result_type(*(_dtype(session[2]) for session in responses))
    elif isinstance(responses, tuple):
        parts, dtype = [_read_three(responses, sizes, name)], _dtype(responses[2])
        form = "records" if isinstance(parts[0], Triples) else "sessions"
    else:
        table = _values(responses, name)
        if table.ndim != 2:
            raise ValueError(f"{name} has shape {table.shape}. {_FORMS}")
        _check_shape(table.shape, sizes, name)
        form, parts = "table", [SessionBlock(*map(np.arange, table.shape), table)]
        dtype = _dtype(responses)
    parts = _check_values(form, parts, loss, name)
    counted = (1 + max(int(getattr(part, side).max(initial=-1)) for part in parts) for side in ("left", "right"))
    m, n = (found if size is None else int(size) for size, found in zip(sizes, counted, strict=True))
    checked = Responses(form, parts, m, n, np.dtype(np.float32 if dtype in (np.float32, np.float16) else np.float64))
    alone = [n_stimuli is None, n_neurons is None] if form != "table" else [False, False]  # ids tell how many there are
    for ids, counted_by_ids, size, side in zip(checked.records[:2], alone, (m, n), (STIMULI, NEURONS), strict=True):
        n_different = len(np.unique(ids))
        if counted_by_ids and size > max(1000, _SPARSEST * n_different):
            raise ValueError(
                f"{name} has {n_different} different {side.entities}, but the largest id is {size - 1}: ids count from "
                "0 and every number below the largest gets an embedding. Renumber them with numpy.unique(ids, "
                f"return_inverse=True), or give the number of {side.entities} instead of their features."
            )
    return checked


# ---------------------------------------------------------------------------------------- the forms


def _read_session(session: Any, s: int, sizes, name: str) -> SessionBlock | Triples:
    """Check one of a list of sessions."""
    where = f"session {s} of {name}"
    is_three = isinstance(session, tuple | list) and len(session) == 3
    if not is_three or len(shape_of(session[2]) or ()) != 2:
        third = f" whose third is {_describe(session[2])}" if is_three else ""
        raise ValueError(
            f"{where} is {_describe(session)}{third}; every entry of a list is a session: a tuple (stimulus ids, "
            "neuron ids, array (stimulus, neuron)), in this order. Pass three arrays with one entry per record as a "
            "tuple, a table as numpy.asarray(table)."
        )
    return _read_three(session, sizes, where)


def _read_three(three, sizes, where: str) -> SessionBlock | Triples:
    """Check ids of stimuli and neurons with the responses of all their pairs, or with as many records."""
    stimuli, neurons = (
        read_ids(ids, f"{side.entity} ids of {where}", n, side.entities)
        for ids, n, side in zip(three[:2], sizes, (STIMULI, NEURONS), strict=True)
    )
    if scipy.sparse.issparse(three[2]):
        raise TypeError(f"{where} is a sparse matrix; give it dense, with NaN where nothing was recorded.")
    y = _values(three[2], where)
    if y.ndim == 0:
        raise ValueError(f"{where} is a tuple whose third entry has shape (). {_FORMS}")
    ids = f"{len(stimuli)} stimulus ids and {len(neurons)} neuron ids"
    if y.ndim == 2 and y.shape != (len(stimuli), len(neurons)):
        needs = f"it needs one row per stimulus id and one column per neuron id, ({len(stimuli)}, {len(neurons)})."
        raise ValueError(f"{where} has responses of shape {y.shape}, but {ids}: {needs}")
    if y.ndim == 1 and not len(stimuli) == len(neurons) == len(y):
        needs = "a record has one of each, so their numbers must be equal."
        each = f"{len(stimuli)} stimulus ids, {len(neurons)} neuron ids"
        raise ValueError(f"{where} has {each} and {len(y)} values; {needs}")
    return Triples(stimuli, neurons, y) if y.ndim == 1 else SessionBlock(stimuli, neurons, y)


def _values(values, what: str) -> np.ndarray:
    return numbers(values, what, "numbers, with NaN where nothing was recorded", spikes=_COUNT_FIRST)


def _dtype(values) -> Any:
    """Return the dtype of the input; a frame is float32 only if all its columns are."""
    kinds = getattr(values, "dtypes", None)
    if kinds is not None and np.ndim(kinds) == 1:
        return np.dtype(np.float32 if len(kinds) and all(kind == np.float32 for kind in kinds) else np.float64)
    dtype = getattr(values, "dtype", None)
    return dtype if isinstance(dtype, np.dtype) and dtype.kind in "fiub" else np.dtype(np.float64)


def _check_shape(shape, sizes, name: str) -> None:
    """Raise unless a table has one row per stimulus and one column per neuron."""
    if tuple(shape) == tuple(sizes)[::-1] and shape[0] != shape[1]:
        what = f"there are {sizes[0]} stimuli and {sizes[1]} neurons: it looks like (neuron, stimulus)"
        raise ValueError(f"{name} is a table of shape {tuple(shape)}, but {what}; pass {name}.T.")
    for have, need, side, along in zip(shape, sizes, (STIMULI, NEURONS), ("row", "column"), strict=True):
        if need is not None and have != need:
            entity, several = side.entity, side.entities
            raise ValueError(
                f"{name} is a table of shape {tuple(shape)}, but there are {need} {several}, the rows of "
                f"{entity}_features, ({entity}, feature): it needs one {along} per {entity}. If {entity}_features "
                f"is (feature, {entity}), pass {entity}_features.T; if some {several} have no responses, pass ids "
                "with the responses."
            )


def _check_values(form: str, parts: list, loss: Observation, name: str) -> list:
    """Check the values of all parts; -1 and 1 become 0 and 1 for a logistic loss."""
    if all(np.isnan(part.y).all() for part in parts):
        raise ValueError(f"{name} has no response: all entries are NaN, or there are none. A fit needs at least one.")
    if isinstance(loss, Bernoulli) and any((part.y == -1).any() for part in parts):
        if all(np.all(np.isnan(part.y) | (np.abs(part.y) == 1)) for part in parts):
            parts = [part._replace(y=(part.y + 1) / 2) for part in parts]
    called = next((name for name, known in RESPONSE_LOSSES.items() if known == loss), loss.name)
    hint = _HINTS.get(called, "")
    for index, part in enumerate(parts):
        y, missing = part.y, np.isnan(part.y)
        wrong, needs = loss.wrong(y)
        wrong = wrong & ~missing
        no_record = missing if form == "records" else np.False_
        for bad, what, advice in (
            (no_record, f"{int(no_record.sum())} NaN", "drop records without a value."),
            (np.isinf(y), "infinite values", "use NaN where nothing was recorded."),
            (np.abs(y) > LARGEST, f"values beyond {LARGEST:.0e}", "their squares cannot be summed: rescale them."),
            (wrong, f"{int(wrong.sum())} values that the loss {called!r} cannot take", f"it needs {needs}.{hint}"),
        ):
            if bad.any():
                at = _where(form, index, part, bad)
                raise ValueError(f"{name} has {what} (first at {at}, {y[bad][0]:g}); {advice}")
    return parts


def _where(form: str, index: int, part: SessionBlock | Triples, bad: np.ndarray) -> str:
    """Describe the place of the first marked value of a part."""
    if form == "table":
        return place(bad, bad, "stimulus", "neuron")
    if form == "sessions":
        return f"session {index}, {place(bad, bad, 'row', 'column')}"
    at = int(np.argmax(bad))
    return f"record {at}: stimulus {part.left[at]}, neuron {part.right[at]}"


def _describe(value) -> str:
    of = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
    return f"a {type(value).__name__}{of or (f' of {len(value)}' if hasattr(value, '__len__') else '')}"
