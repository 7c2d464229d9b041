"""Trials: arrays with named dimensions, laid out as the rows of a fit, and its results as arrays again."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import check_whole, shorten

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
        Features. An array has the dimension ``feature``; a dataset has one variable per feature.
    y : xarray.DataArray, optional
        Responses, with the dimension ``neuron`` if there are several. All its other dimensions are those of the rows;
        without it, these are the dimensions of X.
    sample_weight, offset, exposure : xarray.DataArray, optional
        As in :meth:`glmfit.PopulationGLM.fit`, of any dimensions of the rows, and of neurons if they have their own.
    trial : str, optional
        Dimension of trials, default "trial", or the first of the rows' if none has this name.
    feature, neuron : str
        Dimensions of features and neurons.

    Attributes
    ----------
    given : dict
        Arguments of ``fit`` and ``score``: X and y, and the others that were given.
    X, y : pandas.DataFrame, numpy.ndarray, or None
        (row, feature) and (row, neuron) or (row,); frames if the dimension has labels. The rows of a trial are
        neighbours.
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
        If a dimension is missing or is not one of the rows, or has different labels or lengths in two arrays.

    Notes
    -----
    Trials that differ in length end in NaN: rows with a NaN in X are dropped by a fit, and those in y masked. All
    arrays are loaded into memory. It needs xarray, of the extra ``batch``.

    Examples
    --------
    >>> import numpy as np, xarray as xr
    >>> from glmfit import PopulationGLM
    >>> from glmfit.design import Trials
    >>> rng = np.random.default_rng(0)
    >>> X = xr.Dataset({"contrast": ("trial", rng.uniform(size=40)), "time": ("bin", np.arange(10) / 10)})
    >>> rate = np.exp(X.contrast - X.time)
    >>> y = xr.DataArray(rng.poisson(rate), dims=("trial", "bin"))
    >>> trials = Trials(X, y)
    >>> trials.X.shape, list(trials.X.columns)
    ((400, 2), ['contrast', 'time'])
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
        neuron: str = "neuron",
    ):
        if type(X).__name__ == "Dataset" and hasattr(X, "to_dataarray"):
            X = X.to_dataarray(feature)
        known = {"X": X, "y": y, "sample_weight": sample_weight, "offset": offset, "exposure": exposure}
        known = {name: array for name, array in known.items() if name == "X" or array is not None}
        for name, array in known.items():
            _check_array(name, array)
        if feature not in X.dims:
            raise ValueError(
                f"X has the dimensions {_listed(X.dims)}; name that of the features, for example "
                f"feature={str(X.dims[-1]) if X.dims else feature!r}."
            )
        of_rows = known["y" if "y" in known else "X"]
        dims = [dim for dim in of_rows.dims if dim not in (feature, neuron)]
        trial = trial or ("trial" if "trial" in dims or not dims else str(dims[0]))
        if trial not in dims:
            raise ValueError(f"trial is {trial!r}; the dimensions of the rows are {_listed(dims)}.")
        dims = [trial, *(dim for dim in dims if dim != trial)]
        columns = {"X": (feature,), "y": (neuron,)}
        for name, array in known.items():
            _check_dims(name, array, dims, columns.get(name, (neuron,)))
        _check_labels(known)
        self._neuron, self._dims = neuron, dims
        self._sizes = [_size(dim, known) for dim in dims]
        self._coords = _coordinates(known, dims)
        self._neurons = _coordinates({"y": y} if y is not None else {}, [neuron])
        n_trials = self._sizes[0]
        size = math.prod(self._sizes[1:])
        self.trial, self.starts = np.repeat(np.arange(n_trials), size), np.arange(0, n_trials * size, size or 1)
        self.X = self._rows(X, feature)
        self.y = None if y is None else self._rows(y, neuron)
        factors = {name: np.asarray(self._rows(known[name], neuron)) for name in _FACTORS if name in known}
        self.given = {"X": self.X} | ({} if y is None else {"y": self.y}) | factors

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.trial)

    def __repr__(self) -> str:
        sizes = " x ".join(f"{size} {dim}" for dim, size in zip(self._dims, self._sizes, strict=True))
        return f"<Trials: {len(self)} rows ({sizes}), {self.X.shape[1]} features>"

    def _rows(self, array: Any, column: str) -> Any:
        """Lay an array out as (row,), or (row, column): a frame if the columns have labels."""
        several = column in array.dims
        sizes = dict(zip(self._dims, self._sizes, strict=True))
        missing = {dim: size for dim, size in sizes.items() if dim not in array.dims}
        array = array.expand_dims(missing).transpose(*self._dims, *((column,) if several else ()))
        values = np.ascontiguousarray(array.values).reshape(len(self), *array.shape[len(self._dims) :])
        if not several or column not in array.coords:
            return values
        import pandas as pd

        return pd.DataFrame(values, columns=[str(label) for label in array.coords[column].values], copy=False)

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
            raise ValueError(f"n is {n}; with {n_trials} trials it must be from 2 to {n_trials}.")
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
            With the labels of the trials and bins.

        Raises
        ------
        ValueError
            If there is another number of rows, or of labels.
        """
        import xarray as xr

        values = np.asarray(values)
        if values.ndim not in (1, 2) or len(values) != len(self):
            raise ValueError(f"values has shape {values.shape}; it needs ({len(self)},) or ({len(self)}, column).")
        dims, coords = list(self._dims), dict(self._coords)
        if values.ndim == 2:
            dims.append(self._neuron if columns is None else columns)
            if labels is not None:
                if len(labels) != values.shape[1]:
                    raise ValueError(f"labels has {len(labels)} entries; values has {values.shape[1]} columns.")
                coords[dims[-1]] = np.asarray(labels)
            elif columns is None and self._neurons and self._neurons[self._neuron].size == values.shape[1]:
                coords |= self._neurons
        return xr.DataArray(values.reshape(*self._sizes, *values.shape[1:]), dims=dims, coords=coords)


def _check_array(name: str, array: Any) -> None:
    if not (hasattr(array, "dims") and hasattr(array, "expand_dims") and hasattr(array, "values")):
        kinds = "an xarray DataArray or Dataset" if name == "X" else "an xarray DataArray"
        what = f"an array of shape {array.shape}" if isinstance(array, np.ndarray) else shorten(array)
        raise TypeError(
            f"{name} is {what}, without names of dimensions; it must be {kinds}, for example "
            f"xarray.DataArray({name}, dims=('trial', 'time', {'feature' if name == 'X' else 'neuron'!r}))."
        )


def _check_dims(name: str, array: Any, dims: list, columns: tuple) -> None:
    """Raise for dimensions that the rows do not have."""
    for dim in array.dims:
        if dim not in (*dims, *columns):
            what = "y has not" if name == "X" else "neither rows nor neurons have"
            raise ValueError(
                f"{name} has the dimension {dim!r}, which {what}; the rows have {_listed(dims)}. Select from it or "
                "average over it first, or give y that dimension."
            )


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
        for dim in set(array.dims) & set(array.coords):
            other, labels = first.setdefault((dim, "labels"), (name, array.coords[dim].values))
            given = array.coords[dim].values
            if not np.array_equal(labels, given):
                at = int(np.argmax(labels != given))
                raise ValueError(
                    f"{other} and {name} have different labels along {dim!r} (first at {at}: {labels[at]} and "
                    f"{given[at]}). Align them: xarray.align({other}, {name}, join='inner')."
                )


def _size(dim, known: dict) -> int:
    return next(array.sizes[dim] for array in known.values() if dim in array.dims)


def _coordinates(known: dict, dims: list) -> dict:
    """Labels of dimensions, from the first array that has them."""
    found = {dim: next((a.coords[dim] for a in known.values() if dim in a.coords), None) for dim in dims}
    return {dim: labels for dim, labels in found.items() if labels is not None}


def _listed(dims) -> str:
    return ", ".join(map(repr, dims)) or "none"
