"""Trials: arrays with named dimensions, laid out as the rows of a fit, and its results as arrays again."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import check_whole

if TYPE_CHECKING:
    import xarray as xr

_FACTORS = "sample_weight", "offset", "exposure"


class Trials:
    """Features and responses with named dimensions, as rows: one for each bin of each trial.

    Arrays are matched by the names of their dimensions, in any order. One that lacks a dimension of the rows is
    repeated along it: a feature of trials is the same in all bins of a trial, and so is an exposure of trials.

    Parameters
    ----------
    X : xarray.DataArray or xarray.Dataset
        Features. An array has the dimension ``feature``; a dataset has one variable per feature. A variable that has
        the name of its dimension is no feature, since xarray takes it for labels: rename it.
    y : xarray.DataArray, optional
        Responses. All its dimensions but ``neuron`` are those of the rows; without y, these are the dimensions of X.
    sample_weight, offset, exposure : xarray.DataArray, optional
        As in :meth:`glmfit.PopulationGLM.fit`, of any dimensions of the rows, and of neurons if they have their own.
    trial : str, optional
        Dimension of trials, default "trial", or the only one of the rows.
    feature : str
        Dimension of features.
    neuron : str or None
        Dimension of neurons; None if y has the responses of one, or labels of classes.

    Attributes
    ----------
    given : dict
        Arguments of ``fit`` and ``score``: X and y, and the others that were given.
    X, y : pandas.DataFrame, numpy.ndarray, or None
        (row, feature) and (row, neuron) or (row,); frames if the dimension has labels. The rows of a trial are
        neighbours. They may share memory with the arrays given.
    trial : numpy.ndarray
        Number of each row's trial, (row,).
    starts : numpy.ndarray
        First row of each trial, (trial,): the ``epochs`` of a :class:`Convolution`, whose features then do not reach
        into the trial before.

    Raises
    ------
    TypeError
        If X is neither a DataArray nor a Dataset, or another argument is not a DataArray.
    ValueError
        If a dimension is missing or is not one of the rows, has different labels or lengths in two arrays, or must be
        named; for variables that are not numbers.

    Notes
    -----
    Trials that differ in length end in NaN: rows with a NaN in X are dropped by a fit, those in y masked, and weights
    and exposures that are NaN there count as 0. All arrays are loaded into memory. It needs xarray, of the extra
    ``batch``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from glmfit import PopulationGLM
    >>> from glmfit.design import Trials
    >>> rng = np.random.default_rng(0)
    >>> X = xr.Dataset({"contrast": ("trial", rng.uniform(size=40))})
    >>> X["time_s"] = "bin", np.arange(10) / 10
    >>> rate = np.exp(X.contrast - X.time_s)
    >>> y = xr.DataArray(rng.poisson(rate), dims=("trial", "bin"))
    >>> trials = Trials(X, y, neuron=None)
    >>> trials.X.shape, list(trials.X.columns)
    ((400, 2), ['contrast', 'time_s'])
    >>> model = PopulationGLM("exp").fit(**trials.given)
    >>> trials.unstack(model.predict(trials.X)).sizes["trial"]
    40
    """

    def __init__(
        self,
        X: xr.DataArray | xr.Dataset,
        y: xr.DataArray | None = None,
        *,
        sample_weight: xr.DataArray | None = None,
        offset: xr.DataArray | None = None,
        exposure: xr.DataArray | None = None,
        trial: str | None = None,
        feature: str = "feature",
        neuron: str | None = "neuron",
    ):
        known = {"y": y, "X": _as_array(X, feature)}
        known |= {"sample_weight": sample_weight, "offset": offset, "exposure": exposure}
        known = {name: array for name, array in known.items() if name == "X" or array is not None}
        for name, array in known.items():
            _check_array(name, array)
        self._dims = _dims_of_rows(known, trial, feature, neuron)
        _check_dims(known, self._dims, feature, neuron)
        _check_labels(known)
        self._neuron = "neuron" if neuron is None else neuron
        self._sizes = {dim: next(a.sizes[dim] for a in known.values() if dim in a.dims) for dim in self._dims}
        n_trials, *others = self._sizes.values()
        size = math.prod(others)
        if n_trials * size == 0:
            raise ValueError(f"there is no row: {self._shape}. Labels that differ by rounding share none.")
        self.trial, self.starts = np.repeat(np.arange(n_trials), size), np.arange(0, n_trials * size, size)
        self._labels = [_labels(array, [*self._dims, self._neuron]) for array in known.values()]
        self.X = self._rows(known["X"], feature)
        self.y = None if y is None else self._rows(y, neuron)
        factors = {name: np.asarray(self._rows(known[name], neuron)) for name in _FACTORS if name in known}
        self.given = {"X": self.X} | ({} if y is None else {"y": self.y}) | self._without_nan(factors)

    @property
    def _shape(self) -> str:
        return " x ".join(f"{size} {dim}" for dim, size in self._sizes.items())

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.trial)

    def __repr__(self) -> str:
        return f"<Trials: {len(self)} rows ({self._shape}), {self.X.shape[1]} features>"

    def _rows(self, array: Any, column: str | None) -> Any:
        """Lay an array out as (row,), or (row, column): a frame if the columns have labels."""
        missing = {dim: n for dim, n in self._sizes.items() if dim not in array.dims}
        bare = array.drop_vars(list(array.coords)).expand_dims(missing).transpose(*self._dims, ...)
        values = np.ascontiguousarray(bare.values).reshape(len(self), *bare.shape[len(self._dims) :])
        if column not in array.dims or column not in array.indexes:
            return values
        import pandas as pd

        return pd.DataFrame(values, columns=[str(label) for label in array.indexes[column]], copy=False)

    def _without_nan(self, factors: dict) -> dict:
        """Set weights and exposures of bins without features or responses to 0 if they are unknown."""
        for name in {"sample_weight", "exposure"} & set(factors):
            factor = np.asarray(factors[name], np.float64)
            if not np.isnan(factor).any():
                continue
            absent = np.isnan(np.asarray(self.X, np.float64)).any(axis=1, keepdims=True)
            if self.y is not None and np.asarray(self.y).dtype.kind == "f":
                absent = absent | np.isnan(np.asarray(self.y)).reshape(len(self), -1)
            absent = absent if factor.ndim == 2 else absent.all(axis=1)
            factors[name] = np.where(np.isnan(factor) & absent, 0.0, factor)
        return factors

    def folds(self, n: int = 5, random_state: int | None = None) -> list[tuple[np.ndarray, np.ndarray]]:
        """Split into folds of whole trials, the ``cv`` of cross-validating estimators.

        Parameters
        ----------
        n : int
            Number of folds.
        random_state : int, optional
            Seed by which trials are shuffled; by default folds are of neighbouring trials, so that what drifts is
            predicted, too.

        Returns
        -------
        list of (train, test)
            Row indices of each fold.

        Raises
        ------
        ValueError
            If there are fewer trials than folds.
        """
        n_trials = len(self.starts)
        if not 2 <= check_whole("n", n) <= n_trials:
            raise ValueError(f"n is {n}; it must be at least 2 and at most {n_trials}, the number of trials.")
        order = np.arange(n_trials)
        if random_state is not None:
            order = np.random.default_rng(check_whole("random_state", random_state, 0)).permutation(n_trials)
        fold = np.empty(n_trials, int)
        fold[order] = np.arange(n_trials) * n // n_trials
        tested = [fold[self.trial] == k for k in range(n)]
        return [(np.flatnonzero(~test), np.flatnonzero(test)) for test in tested]

    def unstack(self, values: Any, columns: str | None = None, labels: Any = None) -> xr.DataArray:
        """Turn rows, such as predictions, into an array with the dimensions of the trials.

        Parameters
        ----------
        values : array of shape (row,) or (row, column)
            Predictions, residuals, simulated counts, probabilities.
        columns : str, optional
            Name of the last dimension; the default is that of neurons.
        labels : sequence, optional
            Labels of the columns, such as ``model.classes_``; by default those of the neurons of y.

        Returns
        -------
        xarray.DataArray
            With the coordinates of trials and bins: their labels, and others such as the stimulus of each trial.

        Raises
        ------
        ValueError
            If there is another number of rows or of labels, or if the columns have the name of a dimension of the rows.
        """
        import xarray as xr

        values = np.asarray(values)
        if values.ndim not in (1, 2) or len(values) != len(self):
            raise ValueError(f"values has shape {values.shape}; it needs ({len(self)},) or ({len(self)}, column).")
        several = values.ndim == 2
        n_columns = values.shape[1] if several else 0
        if labels is not None and len(labels) != n_columns:
            raise ValueError(f"labels has {len(labels)} entries; values has {n_columns} columns.")
        if several and columns in self._dims:
            raise ValueError(f"columns is {columns!r}, a dimension of the rows ({_listed(self._dims)}); name another.")
        dims = [*self._dims, *([columns or self._neuron] if several else [])]
        array = xr.DataArray(values.reshape(*self._sizes.values(), *values.shape[1:]), dims=dims)
        for known in self._labels:
            fits = [n for n, c in known.coords.items() if all(array.sizes.get(d) == k for d, k in c.sizes.items())]
            new = [name for name in fits if name not in array.coords]
            if labels is not None or columns not in (None, self._neuron):
                new = [name for name in new if dims[-1] not in known[name].dims]
            array = array.assign_coords(known.drop_vars([name for name in known.coords if name not in new]).coords)
        return array if labels is None else array.assign_coords({dims[-1]: np.asarray(labels)})


def _as_array(X: Any, feature: str) -> Any:
    """Turn a dataset into an array of features."""
    xarray = sys.modules.get("xarray")
    if xarray is None or not isinstance(X, xarray.Dataset):
        return X
    if feature in X.dims:
        raise ValueError(
            f"X is a Dataset with a dimension {feature!r}; name that of its variables: feature='variable'."
        )
    wrong = [f"{name!r} ({v.dtype})" for name, v in X.data_vars.items() if v.dtype.kind not in "biuf"]
    if wrong:
        raise ValueError(f"X has variables that are not numbers: {', '.join(wrong)}. Encode or drop them.")
    if not X.data_vars:
        raise ValueError("X is a Dataset without variables; it needs one for each feature (labels do not count).")
    return X.to_dataarray(feature)


def _check_array(name: str, array: Any) -> None:
    xarray = sys.modules.get("xarray")
    if xarray is not None and isinstance(array, xarray.DataArray):
        return
    shape = f" of shape {tuple(array.shape)}" if hasattr(array, "shape") else ""
    dims = ["trial", "time", "feature" if name == "X" else "neuron"]
    if len(getattr(array, "shape", dims)) == 2:
        del dims[1]
    raise TypeError(
        f"{name} is a {type(array).__name__}{shape}; it must be an xarray DataArray{' or Dataset' * (name == 'X')}, "
        f"for example xarray.DataArray({name}, dims={tuple(dims)})."
    )


def _dims_of_rows(known: dict, trial: str | None, feature: str, neuron: str | None) -> list[str]:
    """Dimensions of the rows, that of trials first."""
    X, of_rows = known["X"], next(iter(known.values()))
    if feature not in X.dims:
        raise ValueError(
            f"X has the dimensions {_listed(X.dims)}, none of features: name it (feature=...), or for a single feature "
            f"pass X.expand_dims({feature!r})."
        )
    y = known.get("y")
    if neuron is not None and y is not None and y.ndim > 1 and neuron not in y.dims:
        raise ValueError(
            f"y has the dimensions {_listed(y.dims)}, none named {neuron!r}: pass the name of that of neurons, "
            "neuron=..., or neuron=None if y is of a single neuron or has labels."
        )
    dims = [str(dim) for dim in of_rows.dims if dim not in (feature, neuron)]
    if not dims:
        raise ValueError(f"{'X' if y is None else 'y'} has no dimension of trials, only {_listed(of_rows.dims)}.")
    if trial is None and "trial" not in dims and len(dims) > 1:
        raise ValueError(f"none of the dimensions of the rows ({_listed(dims)}) is 'trial'; pass its name, trial=...")
    trial = trial or ("trial" if "trial" in dims else dims[0])
    if trial not in dims:
        raise ValueError(f"trial is {trial!r}; the dimensions of the rows are {_listed(dims)}.")
    return [trial, *(dim for dim in dims if dim != trial)]


def _check_dims(known: dict, dims: list, feature: str, neuron: str | None) -> None:
    """Raise for dimensions that the rows do not have."""
    for name, array in known.items():
        for dim in array.dims:
            if dim in dims or dim == (feature if name == "X" else neuron):
                continue
            if name == "X" and dim == neuron:
                advice = "Features are shared by all neurons; fit each neuron to its own, with neuron=None."
            elif dim == feature:
                advice = "That is the dimension of the features: select one of them, or rename it."
            else:
                advice = "Select from it, average over it, or give y that dimension."
            raise ValueError(f"{name} has the dimension {dim!r}, but the rows have {_listed(dims)}. {advice}")


def _check_labels(known: dict) -> None:
    """Raise for arrays of another length, or with other labels, along a dimension that they share."""
    first: dict = {}
    for name, array in known.items():
        for dim in array.dims:
            other = first.setdefault(dim, name)
            length, expected = array.sizes[dim], known[other].sizes[dim]
            if length != expected:
                raise ValueError(
                    f"{name} has {length} entries along {dim!r}, but {other} has {expected}. Select those of both: "
                    f"xarray.align({other}, {name}, join='inner') if both have labels."
                )
            if dim not in array.indexes:
                continue
            other, labels = first.setdefault((dim, "labels"), (name, array.indexes[dim]))
            given = array.indexes[dim]
            if labels.equals(given):
                continue
            at = next(i for i, (a, b) in enumerate(zip(labels, given, strict=True)) if a != b and (a == a or b == b))
            join = "inner"
            if labels.dtype.kind == given.dtype.kind == "f" and np.allclose(labels, given, rtol=1e-6, equal_nan=True):
                join = "override"  # rounding
            raise ValueError(
                f"{other} and {name} have different labels along {dim!r} (first at {at}: {labels[at]} and "
                f"{given[at]}). Align them: xarray.align({other}, {name}, join={join!r})."
            )


def _labels(array: Any, dims: list) -> Any:
    """Coordinates along some dimensions, as a dataset; a name that a dimension has must be its labels."""
    known = array.coords.to_dataset()
    wrong = [
        name
        for name, c in known.coords.items()
        if not c.dims or not set(c.dims) <= set(dims) or (name in dims and c.dims != (name,))
    ]
    return known.drop_vars(wrong)


def _listed(dims) -> str:
    return ", ".join(repr(str(dim)) for dim in dims) or "none"
