"""Combinations of bases: tensor products, and terms next to each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import islice
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from ..checks import check_flag, shorten
from . import penalty_matrices as matrices
from .bases import Basis, check_name


@dataclass(frozen=True, repr=False)
class Sum(Basis):
    """Terms next to each other, made by ``a + b``."""

    kind: ClassVar[str] = "sum"
    members: tuple[Basis, ...]

    def __post_init__(self) -> None:
        for what, names in (("terms", [part.name for part in self._parts]), ("features", self.feature_names)):
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise ValueError(
                    f"several {what} of the sum are called {', '.join(twice)}; give each a name of its own."
                )

    @property
    def _parts(self) -> tuple[Basis, ...]:
        return tuple(part for member in self.members for part in member._parts)

    @property
    def n_inputs(self) -> int:
        return sum(member.n_inputs for member in self.members)

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        return np.concatenate(_of_each(self.members, values, epochs), axis=1)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self.members))


@dataclass(frozen=True, repr=False)
class Product(Basis):
    """A tensor product, made by ``a * b`` and `product`."""

    kind: ClassVar[str] = "product"
    factors: tuple[Basis, ...]
    name: str = field(kw_only=True)
    isotropic: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_name(self.name)
        check_flag("isotropic", self.isotropic)
        if len(self.factors) < 2:
            raise ValueError(f"a product takes two or more bases; {len(self.factors)} is given.")
        if several := [factor._called for factor in self.factors if len(factor._parts) > 1]:
            raise ValueError(f"{several[0]} has several terms; a product takes bases of one. Multiply each, then add.")
        if self.isotropic:
            self._check_isotropic()

    def _check_isotropic(self) -> None:
        without = [f.name for f in self.factors if not hasattr(f, "_differences")]
        low = [f.name for f in self.factors if getattr(f, "order", 3) < 3]
        if without:
            what = f"{', '.join(without)} is neither a BSpline nor a CyclicBSpline"
            raise ValueError(f"isotropic is True, but {what}; only these have one unit for all directions.")
        if low:
            raise ValueError(
                f"isotropic is True, but {', '.join(low)} has no second derivative; give it order=3 or more."
            )

    @property
    def n_inputs(self) -> int:
        return sum(factor.n_inputs for factor in self.factors)

    @property
    def _ends(self) -> list[str]:
        return reduce(lambda a, b: [f"{i}_{j}" for i in a for j in b], [factor._ends for factor in self.factors])

    def _matrices(self) -> tuple[np.ndarray, ...]:
        if self.isotropic:
            first, second = ([f._differences(m) for f in self.factors] for m in (1, 2))
            return (matrices.isotropic(first, second, [f._spacing for f in self.factors]),)
        sizes = [factor.n_features for factor in self.factors]
        each = enumerate(self.factors)
        return tuple(matrices.of_factor(S, sizes, i) for i, factor in each for S in factor._matrices())

    def _axes(self, n: int) -> tuple[np.ndarray, ...]:
        return tuple(axis for factor in self.factors for axis in factor._axes(n))

    def _on_grid(self, *axes: np.ndarray) -> np.ndarray:
        rest = iter(axes)
        return matrices.in_tensor([factor._on_grid(*islice(rest, factor.n_inputs)) for factor in self.factors])

    def _features(self, values: Sequence[Any], epochs: ArrayLike | None) -> np.ndarray:
        return row_products(_of_each(self.factors, values, epochs))

    def __repr__(self) -> str:
        more = ", isotropic=True" if self.isotropic else ""
        return f"product({', '.join(map(repr, self.factors))}, name={self.name!r}{more})"


def product(*factors: Basis, name: str | None = None, isotropic: bool = False) -> Basis:
    """Make a tensor product of bases: a smooth function of all their inputs together, such as a map of places.

    Parameters
    ----------
    *factors : Basis
        Two or more bases of one term each.
    name : str, optional
        Name of the term; by default the names of the factors joined by ``*``, as in ``a * b``.
    isotropic : bool
        False: one strength per factor, so that the function may change faster along one input than along another.
        True: one strength for all directions, for inputs with the same unit; factors are `BSpline` or `CyclicBSpline`.

    Returns
    -------
    Basis
        Features are all products of the factors' functions, in C order: the first factor changes slowest.

    Raises
    ------
    ValueError
        If a factor has several terms, or a factor of an isotropic product has no second derivative.
    TypeError
        If a factor is not a `Basis`.

    Notes
    -----
    Penalties are those of each factor on the coefficients along its axis, ``I x .. S .. x I`` (Wood 2017, Generalized
    additive models, 5.6; Eilers and Marx 2003). An isotropic product has one penalty, ``D2'D2 x I + 2 D1'D1 x D1'D1
    + I x D2'D2``, with first and second differences of coefficients D1 and D2. It discretises the thin-plate energy,
    the integral of ``f_xx^2 + 2 f_xy^2 + f_yy^2``, with spline coefficients as values; only ``1, x, y`` are
    unpenalised. If the knot distances of the axes differ, terms are weighted so that the units are the feature's.

    With a basis of kernels a product is a filter that changes with the other input: the features of ``speed * history``
    are ``speed_i(t) * sum_k history_j(k) signal(t - k)``, and its grid covers speed and lag. Two bases of kernels make
    a Volterra kernel of second order.

    Examples
    --------
    >>> from glmfit.design import BSpline, product
    >>> x, y = BSpline(8, (0, 100), name="x"), BSpline(8, (0, 100), name="y")
    >>> place = product(x, y, name="place", isotropic=True)
    >>> place.n_features, place.feature_names[:2], len(place.penalties)
    (64, ['place_0_0', 'place_0_1'], 1)
    """
    _refuse_no_basis(factors, "a product")
    flat = tuple(f for factor in factors for f in (factor.factors if _is_plain_product(factor) else (factor,)))
    if any(isinstance(factor, Sum) for factor in flat):
        raise ValueError("a factor is a sum, which has several terms; multiply each of them, then add: a * c + b * c.")
    name = "*".join(factor.name for factor in flat) if name is None else name
    return Product(flat, name=name, isotropic=isotropic)


def _is_plain_product(basis: Basis) -> bool:
    """Whether a basis is a product with the default name and penalty."""
    return isinstance(basis, Product) and not basis.isotropic and basis.name == "*".join(f.name for f in basis.factors)


def row_products(made: Sequence[np.ndarray]) -> np.ndarray:
    """Multiply features of the same rows, (row, feature) each: all products, the first feature changing slowest."""
    return reduce(lambda a, b: (a[:, :, None] * b[:, None, :]).reshape(len(a), -1), made)


def add(*bases: Basis) -> Basis:
    """Put bases next to each other; sums are split into their members."""
    _refuse_no_basis(bases, "a sum")
    return Sum(tuple(m for basis in bases for m in (basis.members if isinstance(basis, Sum) else (basis,))))


def _refuse_no_basis(values: Sequence[Any], what: str) -> None:
    for value in values:
        if not isinstance(value, Basis):
            is_nemos = type(value).__module__.startswith("nemos")
            advice = "Convert a basis of NeMoS by from_nemos(basis)." if is_nemos else "Make a BSpline, for example."
            raise TypeError(f"{what} takes bases of glmfit.design; {shorten(value)} is not one. {advice}")


def _of_each(bases: Sequence[Basis], values: Sequence[Any], epochs: ArrayLike | None) -> list[np.ndarray]:
    """Return the features of each basis, which takes its values in turn; all must have equally many rows."""
    rest = iter(values)
    made = [basis._features(list(islice(rest, basis.n_inputs)), epochs) for basis in bases]
    rows = {basis._called: len(features) for basis, features in zip(bases, made, strict=True)}
    if len(set(rows.values())) > 1:
        given = ", ".join(f"{n} for {called}" for called, n in rows.items())
        raise ValueError(f"the values differ in their numbers of rows: {given}. Bring all to the same bins.")
    return made
