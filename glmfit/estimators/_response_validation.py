"""The only door for data of response models: responses in three forms, features of both sides, weights."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse

from .._warn import warn_user
from ..observations import ResponseLoss
from ..pairs import SessionBlock, Triples
from ._mistakes import refuse_columns_of_words, refuse_spike_times
from ._validation import NOT_INTEGER, plain, refuse_words_and_times

_LARGEST = 1e15
_COUNT_FIRST = "count the spikes after each stimulus first, to an array (stimulus, neuron)."
_SPARSEST = 100  # times as many ids as entities
_FORMS = (
    "Give a list of sessions (stimulus ids, neuron ids, array (stimulus, neuron)), one array (stimulus, neuron) with "
    "NaN where nothing was recorded, or a tuple (stimulus ids, neuron ids, responses) with one entry per record."
)


@dataclass(frozen=True)
class Responses:
    """Checked responses.

    Attributes
    ----------
    given : list of SessionBlock, Triples or numpy.ndarray
        Float64, in the form they came in; a table has NaN where there is none.
    n_stimuli, n_neurons : int
        Entities: those of the features, the shape of a table, or one more than the largest id.
    dtype : dtype
        What they came in.
    """

    given: list[SessionBlock] | Triples | np.ndarray
    n_stimuli: int
    n_neurons: int
    dtype: Any

    @cached_property
    def records(self) -> Triples:
        """All responses that are there, one by one."""
        if isinstance(self.given, Triples):
            return self.given
        if isinstance(self.given, np.ndarray):
            row, column = np.nonzero(~np.isnan(self.given))
            return Triples(row, column, self.given[row, column])
        parts = []
        for block in self.given:
            row, column = np.nonzero(~np.isnan(block.y))
            parts.append(Triples(block.left[row], block.right[column], block.y[row, column]))
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


def read_responses(
    responses, loss: ResponseLoss, n_stimuli: int | None, n_neurons: int | None, name: str = "responses"
) -> Responses:
    """Check responses in any of the three forms.

    Parameters
    ----------
    responses :
        As :meth:`glmfit.ResponseModel.fit` takes them.
    loss : ResponseLoss
        Says which values are allowed.
    n_stimuli, n_neurons : int or None
        Entities that there are; None to count them here.
    name : str
        What errors call the responses.

    Raises
    ------
    ValueError, TypeError
        Saying what was given, what is wrong first, and what is allowed.
    """
    sizes = n_stimuli, n_neurons
    refuse_spike_times(responses, name, _COUNT_FIRST)
    if responses is None or isinstance(responses, Mapping | Iterator | str):
        what = "None" if responses is None else f"a {type(responses).__name__}"
        raise ValueError(f"{name} is {what}. {_FORMS}")
    if scipy.sparse.issparse(responses):
        _check_shape(responses.shape, sizes, name)
        entries = responses.tocoo()  # entries that stand twice are repeated trials
        row, column = (np.asarray(ids, np.int64) for ids in entries.coords)
        y, dtype = _numbers(entries.data, name)
        _refuse_nan(y, name)
        given, sizes = Triples(row, column, y), responses.shape
    elif isinstance(responses, list):
        given, sizes, dtype = _read_sessions(responses, sizes, name)
    elif isinstance(responses, tuple):
        if len(responses) != 3:
            raise ValueError(f"{name} is a tuple of {len(responses)}. {_FORMS}")
        if _ndim(responses[2]) == 2:
            given, sizes, dtype = _read_sessions([responses], sizes, name)
        else:
            given, sizes, dtype = _read_triples(responses, sizes, name)
    else:
        given, dtype = _numbers(responses, name)
        if given.ndim != 2:
            raise ValueError(f"{name} has shape {given.shape}. {_FORMS}")
        _check_shape(given.shape, sizes, name)
        sizes = given.shape
    given = _check_values(given, loss, name)
    checked = Responses(given, int(sizes[0]), int(sizes[1]), dtype)
    for n_given, n, ids, entities in (
        (n_stimuli, sizes[0], "left", "stimuli"),
        (n_neurons, sizes[1], "right", "neurons"),
    ):
        if n_given is None and not isinstance(given, np.ndarray):
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


def warn_of_shares(responses: Responses) -> None:
    """Warn of counts that are not integers, as other Poisson models do."""
    records = responses.records
    odd = records.y != np.rint(records.y)
    if odd.any():
        text = NOT_INTEGER.format(len(np.unique(records.right[odd])), responses.n_neurons)
        warn_user(text.replace("y has", "responses has", 1))


# ---------------------------------------------------------------------------------------- the forms


def _read_sessions(sessions: list, sizes, name: str):
    """Check a list of sessions; their sizes where none are given, and their dtype."""
    if not sessions:
        raise ValueError(f"{name} is an empty list: no session. {_FORMS}")
    blocks, dtypes = [], []
    for s, session in enumerate(sessions):
        where = f"session {s} of {name}"
        if not _is_tuple_of_three(session) or _ndim(session[2]) != 2:
            third = f" whose third is {_describe(session[2])}" if _is_tuple_of_three(session) else ""
            raise ValueError(
                f"{where} is {_describe(session)}{third}; every entry of a list is a session: a tuple (stimulus ids, "
                "neuron ids, array (stimulus, neuron)), in this order. Three arrays with one entry per record go into "
                "a tuple, a table into numpy.asarray."
            )
        stimuli = _read_ids(session[0], f"stimulus ids of {where}", sizes[0], "stimuli")
        neurons = _read_ids(session[1], f"neuron ids of {where}", sizes[1], "neurons")
        y, dtype = _numbers(session[2], where)
        if y.shape != (len(stimuli), len(neurons)):
            raise ValueError(
                f"{where} has responses of shape {y.shape}, but {len(stimuli)} stimulus ids and {len(neurons)} neuron "
                f"ids: it needs one row per stimulus id and one column per neuron id, ({len(stimuli)}, {len(neurons)})."
            )
        blocks.append(SessionBlock(stimuli, neurons, y))
        dtypes.append(dtype)
    found = (
        1 + max(int(block.left.max(initial=-1)) for block in blocks),
        1 + max(int(block.right.max(initial=-1)) for block in blocks),
    )
    sizes = tuple(f if size is None else size for size, f in zip(sizes, found, strict=True))
    return blocks, sizes, np.result_type(*dtypes)


def _is_tuple_of_three(session) -> bool:
    return isinstance(session, tuple | list) and len(session) == 3


def _read_triples(responses: tuple, sizes, name: str):
    """Check a tuple of three arrays."""
    stimuli = _read_ids(responses[0], f"stimulus ids of {name}", sizes[0], "stimuli")
    neurons = _read_ids(responses[1], f"neuron ids of {name}", sizes[1], "neurons")
    y, dtype = _numbers(responses[2], name)
    if y.ndim != 1:
        raise ValueError(f"{name} is a tuple whose third entry has shape {y.shape}. {_FORMS}")
    if not len(stimuli) == len(neurons) == len(y):
        raise ValueError(
            f"{name} has {len(stimuli)} stimulus ids, {len(neurons)} neuron ids and {len(y)} values; a record is one "
            "of each, so their numbers must be the same."
        )
    _refuse_nan(y, name)
    found = 1 + int(stimuli.max(initial=-1)), 1 + int(neurons.max(initial=-1))
    return Triples(stimuli, neurons, y), tuple(f if n is None else n for n, f in zip(sizes, found, strict=True)), dtype


def _refuse_nan(y: np.ndarray, name: str) -> None:
    if np.isnan(y).any():
        raise ValueError(
            f"{name} has {int(np.isnan(y).sum())} NaN (first at record {int(np.argmax(np.isnan(y)))}); a record without"
            " a value is none: leave it out."
        )


def _read_ids(ids, what: str, n: int | None, entities: str) -> np.ndarray:
    """Check ids of entities: whole numbers from 0."""
    values = np.asarray(plain(ids))
    if values.dtype.kind in "USO":
        raise ValueError(
            f"{what} have dtype {values.dtype}; ids are whole numbers from 0, rows of the features. Turn names into "
            "numbers, the same for all sessions, with pandas.factorize or numpy.unique(names, return_inverse=True)."
        )
    if values.ndim != 1 or (values.dtype.kind not in "iuf" and values.size):
        hint = " For a mask give numpy.flatnonzero of it." if values.dtype.kind == "b" else ""
        raise ValueError(
            f"{what} have shape {values.shape} and dtype {values.dtype}; they need to be whole numbers, one row of the "
            f"features each, (entry,).{hint}"
        )
    whole = np.full(len(values), True)
    if values.dtype.kind == "f":
        whole = np.isfinite(values) & (values == np.rint(values))
    bad = ~whole | (values < 0) | (values >= (n if n is not None else 2**31 - 1))
    if bad.any():
        at = int(np.argmax(bad))
        limit = f"whole numbers from 0 to {n - 1}, as there are {n} {entities}" if n is not None else "0, 1, 2, ..."
        raise ValueError(f"{what}: entry {at} is {values[at]}; ids are {limit}. ({int(bad.sum())} are not.)")
    return values.astype(np.int64)


def _numbers(values, what: str) -> tuple[np.ndarray, Any]:
    """Float64 array of what should be numbers, and the dtype they came in."""
    if scipy.sparse.issparse(values):
        raise TypeError(f"{what} is a sparse matrix; give it dense, with NaN where nothing was recorded.")
    refuse_spike_times(values, what, _COUNT_FIRST)
    values = plain(values)
    if hasattr(values, "to_numpy"):
        kinds = np.atleast_1d(np.asarray(getattr(values, "dtypes", values.dtype if values.ndim == 1 else None), object))
        single = len(kinds) > 0 and all(kind == np.float32 for kind in kinds)
        refuse_columns_of_words(values, what)
        try:
            return values.to_numpy(np.float64, na_value=np.nan), np.dtype(np.float32 if single else np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(f"{what} has entries that are not numbers ({error}). Convert or remove them.") from None
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{what} is no array of numbers ({error}).") from None
    refuse_words_and_times(array, what)
    if array.dtype.kind not in "fiubO":
        raise ValueError(f"{what} has dtype {array.dtype}; it must be real numbers.")
    single = array.dtype in (np.float32, np.float16)
    return array.astype(np.float64), np.dtype(np.float32 if single else np.float64)


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


def _check_values(given, loss: ResponseLoss, name: str):
    """Check the values of all parts; -1 and 1 become 0 and 1 for a logistic loss."""
    parts, place = _parts(given)
    if not any(np.isfinite(y).any() for y in parts):
        if any(np.isinf(y).any() for y in parts):
            raise ValueError(f"{name} has infinite values only.")
        raise ValueError(f"{name} has no response: all entries are NaN, or there are none. A fit needs at least one.")
    if loss.name == "logistic" and any((y == -1).any() for y in parts):
        if all(np.isnan(y).sum() + (np.abs(y) == 1).sum() == y.size for y in parts):
            given, parts = _signs_to_shares(given), [(y + 1) / 2 for y in parts]
    for index, y in enumerate(parts):
        for bad, what in (
            (np.isinf(y), "infinite values; use NaN where nothing was recorded"),
            (np.abs(y) > _LARGEST, f"values beyond {_LARGEST:.0e}, whose squares cannot be summed; rescale them"),
        ):
            if bad.any():
                raise ValueError(f"{name} has {what} (first at {place(index, bad)}).")
        wrong, needs = loss.wrong(np.where(np.isnan(y), 0.0, y))
        if wrong.any():
            hints = {
                "poisson": " Did you pass z-scored data? Pass the counts themselves.",
                "logistic": " (-1 and 1 will do as well, throughout.)",
            }
            raise ValueError(
                f"{name} has {int(wrong.sum())} values that the loss {loss.name!r} cannot take (first at "
                f"{place(index, wrong)}, {y[wrong][0]:g}); it needs {needs}.{hints.get(loss.name, '')}"
            )
    return given


def _parts(given) -> tuple[list[np.ndarray], Callable]:
    """Arrays of values, and a function that says where the first of some marked places is."""
    if isinstance(given, np.ndarray):
        return [given], lambda index, bad: "stimulus {}, neuron {}".format(*np.argwhere(bad)[0])
    if isinstance(given, Triples):

        def record(index, bad):
            at = int(np.argmax(bad))
            return f"record {at}: stimulus {given.left[at]}, neuron {given.right[at]}"

        return [given.y], record

    def entry(index, bad):
        row, column = np.argwhere(bad)[0]
        return f"session {index}, row {row}, column {column}"

    return [block.y for block in given], entry


def _signs_to_shares(given):
    if isinstance(given, np.ndarray):
        return (given + 1) / 2
    if isinstance(given, Triples):
        return given._replace(y=(given.y + 1) / 2)
    return [block._replace(y=(block.y + 1) / 2) for block in given]


def _ndim(value) -> int:
    """Count the dimensions of anything; 0 of what is no array."""
    try:
        return len(value.shape) if hasattr(value, "shape") else np.ndim(value)
    except ValueError:  # ragged
        return 0


def _describe(value) -> str:
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"a {type(value).__name__} of shape {tuple(shape)}"
    return f"a {type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")
