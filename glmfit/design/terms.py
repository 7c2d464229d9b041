"""Named groups of features with the quadratic penalties that share strengths."""

from __future__ import annotations

import numbers
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..checks import as_numbers, check_whole, shorten
from .penalty_matrices import differences, gram

if TYPE_CHECKING:
    from .bases import Basis

_ROUNDING = 1e-10  # of the largest entry: tolerance for symmetry and negative eigenvalues


@dataclass(frozen=True, eq=False)
class Term:
    """Features of a model that belong together, and their quadratic penalties, each with a strength of its own.

    Parameters
    ----------
    features : sequence of int
        Columns of the features, each once; kept as a tuple.
    penalties : sequence of array, optional
        Symmetric positive semidefinite matrices S, (k, k) for k features. A term adds ``strength * b' S b / 2`` for
        each of them. None: the term is not penalised. Kept as a tuple of read-only arrays in float64.
    basis : Basis, optional
        Basis of the features, for curves in units of the feature.

    Raises
    ------
    ValueError
        If a column is repeated or is not a whole number; if a penalty has another shape, is not finite, not symmetric,
        has a negative eigenvalue, or is 0.

    See Also
    --------
    Basis.terms : Terms of a basis, of a product or of a sum of them.

    Examples
    --------
    >>> from glmfit.design import Term
    >>> Term.ridge([0, 1])
    <Term of 2 features, 1 penalty>
    >>> Term.random_walk(range(3)).penalties[0]
    array([[ 1., -1.,  0.],
           [-1.,  2., -1.],
           [ 0., -1.,  1.]])
    """

    features: tuple[int, ...]
    penalties: tuple[np.ndarray, ...] = ()
    basis: Basis | None = None

    def __post_init__(self) -> None:
        features = _columns(self.features)
        penalties = tuple(_checked(i, S, len(features)) for i, S in enumerate(self.penalties))
        set_fields(self, features=features, penalties=penalties)

    @classmethod
    def ridge(cls, features: Iterable[int]) -> Term:
        """Make a term with one ridge; several of them are a banded ridge.

        Parameters
        ----------
        features : sequence of int
            Columns of the features.

        Returns
        -------
        Term
            With the identity as its penalty.
        """
        features = _columns(features)
        return cls(features, (np.eye(len(features)),))

    @classmethod
    def random_walk(cls, features: Iterable[int], order: int = 1) -> Term:
        """Make a term whose coefficients change little from one to the next, as in a random walk over time.

        Parameters
        ----------
        features : sequence of int
            Columns of the features, in order.
        order : int
            Order of the differences: 1 for steps, 2 for changes of slope.

        Returns
        -------
        Term
            With the sum of squares of the differences as its penalty.

        Raises
        ------
        ValueError
            If there are not more features than the order.
        """
        features, order = _columns(features), check_whole("order", order)
        if order >= len(features):
            few = f"{len(features)} features have differences of order {len(features) - 1} at most"
            raise ValueError(f"order is {order}; {few}. Lower it, or give more features.")
        return cls(features, (gram(differences(len(features), order)),))

    @classmethod
    def ard(cls, features: Iterable[int]) -> Term:
        """Make a term with a ridge of its own for every feature: automatic relevance determination.

        Parameters
        ----------
        features : sequence of int
            Columns of the features.

        Returns
        -------
        Term
            With as many penalties as features, each with a single 1 on the diagonal.

        Notes
        -----
        Source: MacKay 1994, Bayesian nonlinear modeling for the prediction competition. Memory: the cube of the number
        of features.
        """
        features = _columns(features)
        return cls(features, tuple(np.diag(row) for row in np.eye(len(features))))

    @classmethod
    def _of_basis(cls, features: Iterable[int], penalties: tuple[np.ndarray, ...], basis: Basis) -> Term:
        """Make a term without checking its penalties: large ones take long to check."""
        term = object.__new__(cls)
        for S in penalties:
            S.setflags(write=False)
        set_fields(term, features=tuple(features), penalties=penalties, basis=basis)
        return term

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Term):
            return NotImplemented
        if (self.features, self.basis, len(self.penalties)) != (other.features, other.basis, len(other.penalties)):
            return False
        return all(map(np.array_equal, self.penalties, other.penalties))

    def __hash__(self) -> int:
        return hash((self.features, len(self.penalties)))

    def __repr__(self) -> str:
        k, n = len(self.features), len(self.penalties)
        of = "" if self.basis is None else f", {self.basis!r}"
        return f"<Term of {k} feature{'s' * (k != 1)}, {n} penalt{'y' if n == 1 else 'ies'}{of}>"


def set_fields(record: Any, **values: Any) -> None:
    """Set fields of a frozen dataclass, to values that were checked."""
    for key, value in values.items():
        object.__setattr__(record, key, value)


def _columns(features: Iterable[int]) -> tuple[int, ...]:
    """Check columns of a term."""
    allowed = "whole numbers of at least 0, each once: the columns of the features"
    if isinstance(features, str) or not isinstance(features, Iterable):
        raise ValueError(f"features is {shorten(features)}; it must be {allowed}.")
    features = tuple(features)
    right = all(isinstance(f, numbers.Integral) and not isinstance(f, bool) and f >= 0 for f in features)
    if not (features and right and len(set(features)) == len(features)):
        raise ValueError(f"features is {shorten(features)}; it must be {allowed}.")
    return tuple(map(int, features))


def _checked(which: int, given: np.ndarray, k: int) -> np.ndarray:
    """Check one penalty of a term of k features; return a read-only copy."""
    name = f"penalty {which}"
    S = as_numbers(name, given)
    if S.shape != (k, k):
        raise ValueError(f"{name} has shape {S.shape}; a term of {k} features needs ({k}, {k}).")
    if not np.isfinite(S).all():
        raise ValueError(f"{name} has entries that are NaN or infinite; they must be finite.")
    largest = np.abs(S).max()
    if largest == 0:
        raise ValueError(f"{name} is 0 and would have no effect; omit it.")
    if np.abs(S - S.T).max() > _ROUNDING * largest:
        raise ValueError(f"{name} is not symmetric; it must be. Take (S + S.T) / 2.")
    S = (S + S.T) / 2
    try:
        np.linalg.cholesky(S / largest + _ROUNDING * k * np.eye(k))
    except np.linalg.LinAlgError:
        low = np.linalg.eigvalsh(S)[0]
        raise ValueError(
            f"{name} has the eigenvalue {low:.3g}; all must be at least 0 (positive semidefinite)."
        ) from None
    S.setflags(write=False)
    return S
