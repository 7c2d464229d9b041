"""Common interface of bases of smooth functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_whole, shorten
from ..data.arrays import numbers
from .terms import Term

GRID = 100  # points of an axis


class Basis:
    """Functions of one or several features, whose weighted sum is a smooth term of a model.

    Bases are immutable values: they are equal if they are made alike, and are written as plain dictionaries.
    ``a * b`` is the tensor product, a smooth function of the inputs of both, see `product`. ``a + b`` puts terms next
    to each other: an additive model.

    See Also
    --------
    BSpline, CyclicBSpline, Fourier, RaisedCosineLinear, RaisedCosineLog : Bases of one feature.
    from_nemos : Convert a basis of NeMoS.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import BSpline, CyclicBSpline
    >>> place = BSpline(5, (0, 1), name="x") * BSpline(5, (0, 1), name="y")
    >>> basis = place + CyclicBSpline(6, name="phase")
    >>> x, y, phase = np.random.default_rng(0).random((3, 20))
    >>> basis.features(x, y, phase).shape
    (20, 31)
    >>> {name: (len(term.features), len(term.penalties)) for name, term in basis.terms.items()}
    {'x*y': (25, 2), 'phase': (6, 1)}
    """

    kind: ClassVar[str]
    name: str
    _kinds: ClassVar[dict[str, type[Basis]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "kind" in vars(cls):
            Basis._kinds[cls.kind] = cls

    # Every basis has _features(values, epochs). One of a single term has _matrices(), its penalties, and _axes(n) and
    # _on_grid(*axes), which do what `axes` and `on_grid` do for checked arguments.

    @property
    def _parts(self) -> tuple[Basis, ...]:
        """Bases that are one term each: of every column of a signal, for a basis with ``columns``."""
        columns = getattr(self, "columns", None)
        if columns is None:
            return (self,)
        return tuple(replace(self, name=f"{self.name}_{column}", columns=None) for column in columns)

    @property
    def _ends(self) -> list[str]:
        """Name of each function within the term."""
        return [str(b) for b in range(self.n)]

    @property
    def n_inputs(self) -> int:
        """Number of arrays that `features` takes."""
        return 1

    @property
    def n_features(self) -> int:
        """Number of columns of the features."""
        return sum(len(part._ends) for part in self._parts)

    @property
    def feature_names(self) -> list[str]:
        """Name of each column: that of its term and of the function within it."""
        return [f"{part.name}_{end}" for part in self._parts for end in part._ends]

    @property
    def terms(self) -> dict[str, Term]:
        """Terms by name, each with its columns, penalties and the basis of these columns."""
        return terms_of(self._parts)

    @property
    def penalties(self) -> tuple[np.ndarray, ...]:
        """Symmetric positive semidefinite matrices, (feature, feature) each, in float64."""
        if len(self._parts) == 1:
            return self._parts[0]._matrices()
        found, n = [], self.n_features
        for term in self.terms.values():
            for S in term.penalties:
                whole = np.zeros((n, n))
                whole[np.ix_(term.features, term.features)] = S
                found.append(whole)
        return tuple(found)

    def features(self, *values: Any, epochs: ArrayLike | None = None) -> np.ndarray:
        """Evaluate the functions at every row.

        Parameters
        ----------
        values : array, (time,) each
            One per input, in order; for a sum those of its first member, then of the next. A basis of kernels
            with ``columns`` takes (time, column).
        epochs : array of int, optional
            First row of each epoch, for bases of kernels: no row uses the previous epoch. pynapple signals have their
            own epochs.

        Returns
        -------
        numpy.ndarray
            Features in float64, (time, feature). Rows are NaN in the columns of a term that has no value there: an
            input is NaN or out of range, or the past is incomplete.

        Raises
        ------
        ValueError
            If the number of values is not that of the inputs, or their numbers of rows differ.
        """
        if len(values) != self.n_inputs:
            given = f"{len(values)} array{'s are' if len(values) != 1 else ' is'} given"
            raise ValueError(f"{given} to {self._called}, which takes {self.n_inputs}, in the order of its terms.")
        return self._features(values, epochs)

    def axes(self, n: int = GRID) -> tuple[np.ndarray, ...]:
        """Make an evenly spaced axis for every input.

        Parameters
        ----------
        n : int
            Number of points, from the lower to the upper end of a range. Kernels have one point per lag.

        Returns
        -------
        tuple of numpy.ndarray
            Values in units of the feature; lags of kernels in seconds.

        Raises
        ------
        ValueError
            If the basis has several terms.
        """
        return self._one()._axes(check_whole("n", n, 2))

    def on_grid(self, *axes: ArrayLike) -> np.ndarray:
        """Evaluate the functions on a grid.

        Parameters
        ----------
        axes : array, (point,) each
            Values of every input, as made by `axes`; lags in seconds for kernels.

        Returns
        -------
        numpy.ndarray
            Functions at the points, (point, feature), NaN out of range. Points are in C order, as in
            ``numpy.meshgrid(*axes, indexing="ij")``.

        Raises
        ------
        ValueError
            If the basis has several terms, or the number of axes is not that of its inputs.
        """
        if len(axes) != self._one().n_inputs:
            raise ValueError(f"{len(axes)} axes are given; {self._called} has {self.n_inputs}.")
        return self._one()._on_grid(*(as_values(axis, f"axis {i}") for i, axis in enumerate(axes)))

    def to_dict(self) -> dict[str, Any]:
        """Write the basis as JSON values.

        Returns
        -------
        dict
            Input of `from_dict`.

        Raises
        ------
        TypeError
            For a basis of NeMoS.
        """
        return {"kind": self.kind} | {f.name: _plain(getattr(self, f.name)) for f in fields(self)}

    @staticmethod
    def from_dict(table: Mapping[str, Any]) -> Basis:
        """Make the basis that `to_dict` wrote.

        Parameters
        ----------
        table : dict
            ``kind`` and the arguments of the class.

        Returns
        -------
        Basis
            Equal to the one that was written.

        Raises
        ------
        ValueError
            If the kind, a key or a value is not allowed, or a key is missing.
        """
        kind = table.get("kind") if isinstance(table, Mapping) else None
        if not isinstance(kind, str) or kind not in Basis._kinds:
            allowed = ", ".join(Basis._kinds)
            raise ValueError(f"the basis is {shorten(table)}; it must be a dict whose kind is one of {allowed}.")
        cls = Basis._kinds[kind]
        given = {key: value for key, value in table.items() if key != "kind"}
        known = {f.name: f.default is MISSING for f in fields(cls)}
        for key in given:
            if key not in known:
                raise ValueError(f"a basis of kind {kind!r} has no {key!r}; allowed are {', '.join(known)}.")
        if missing := [key for key, needed in known.items() if needed and key not in given]:
            raise ValueError(f"the basis of kind {kind!r} lacks {', '.join(missing)}.")
        for key in ("members", "factors"):
            if key in given:
                given[key] = tuple(map(Basis.from_dict, given[key]))
        return cls(**given)

    def __mul__(self, other: Basis) -> Basis:
        from .products import product

        return product(self, other)

    def __add__(self, other: Basis) -> Basis:
        from .products import add

        return add(self, other)

    @property
    def _called(self) -> str:
        return f"the basis {' + '.join(part.name for part in self._parts)!r}"

    def _one(self) -> Basis:
        """Return the only term; ValueError if there are several."""
        if len(self._parts) > 1:
            names = ", ".join(part.name for part in self._parts)
            raise ValueError(f"there is a grid for each term, not for all of them: take terms[name].basis of {names}.")
        return self._parts[0]


def terms_of(parts: Iterable[Basis], first: int = 0) -> dict[str, Term]:
    """Make the terms of bases of one term each, whose features begin at column ``first``."""
    found = {}
    for part in parts:
        stop = first + len(part._ends)
        found[part.name] = Term._of_basis(range(first, stop), part._matrices(), part)
        first = stop
    return found


def check_name(name: Any) -> None:
    """Raise ValueError for an invalid name of a term."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"name is {name!r}; it must be a non-empty string, which names the term and its features.")


def as_values(values: Any, name: str) -> np.ndarray:
    """Values of one input, (time,), in float64; NaN stays."""
    return numbers(values, name, "one number per row, (time,)", "time")


def _plain(value: Any) -> Any:
    """Turn a field into a JSON value."""
    if isinstance(value, Basis):
        return value.to_dict()
    return [_plain(entry) for entry in value] if isinstance(value, tuple) else value
