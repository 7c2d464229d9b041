"""Smooth terms in NeMoS models: a regularizer with the quadratic penalties of terms, and strengths from the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import nemos
import numpy as np

from ...checks import as_numbers, shorten
from ...design import Basis, Term, from_nemos
from ...estimators.gam.terms import read_strengths, read_terms
from ...numerics import namespace

Terms = dict[str, Term]
_STEP = 1.0  # of a proximal operator that is given none
_NULL = 1e-12  # share of the largest eigenvalue of a penalty below which nothing is penalised


class Smooth(nemos.regularizer.Regularizer):
    """Quadratic penalties of smooth terms, as a regularizer of NeMoS models.

    Parameters
    ----------
    terms : basis or mapping, optional
        A basis of NeMoS or of `glmfit.design`, or a sum of them, whose features X has; or name of a term ->
        :class:`glmfit.design.Term`, or the features of a ridge. Features in no term have no penalty. None is one
        ridge of all features. If X is a dictionary, terms belong to the entries of the same name.

    Notes
    -----
    The penalty is ``strength * b'S b / 2`` summed over the penalties S of all terms, b the coefficients of the term,
    for every neuron. ``regularizer_strength`` of the model is a number for all; an array, one for each penalty in the
    order of the terms, (penalty,) or (penalty, neuron); or name of a term -> a number, (penalty,) or
    (penalty, neuron). `fit_smooth` chooses them from the data.

    By default models are fitted by ``"SAGA[glmfit]"``. If glmfit knows the observation model and the link, it uses
    Newton's method and proves the gaps. NeMoS's own solvers also accept this regularizer.

    Examples
    --------
    >>> import nemos as nmo
    >>> import numpy as np
    >>> from glmfit.plugins.nemos import Smooth
    >>> basis = nmo.basis.BSplineEval(8, bounds=(0, 1), label="speed")
    >>> speed = np.random.default_rng(0).random(500)
    >>> counts = np.random.default_rng(1).poisson(np.exp(np.sin(6 * speed)))
    >>> model = nmo.glm.GLM(regularizer=Smooth(basis), regularizer_strength={"speed": 1e-3})
    >>> _ = model.fit(basis.compute_features(speed), counts)
    >>> model.solver_state_.route
    'certified'
    """

    _allowed_solvers = (*nemos.regularizer.Ridge._allowed_solvers, "SAGA", "SAGA[glmfit]")
    _default_solver = "SAGA[glmfit]"

    def __init__(self, terms: Any = None):
        super().__init__()
        self.terms = terms
        self.answer = None  # the fit of `fit_smooth`, while it hands its coefficients over

    @property
    def terms(self) -> Any:
        """Terms as given; a basis of NeMoS is converted to one of glmfit."""
        return self._terms

    @terms.setter
    def terms(self, terms: Any) -> None:
        if type(terms).__module__.startswith("nemos."):
            terms = from_nemos(terms)
        if terms is not None and not isinstance(terms, Basis | Mapping):
            raise TypeError(
                f"terms is {shorten(terms)}; Smooth takes a basis of NeMoS or of glmfit.design, or a mapping of names "
                "to glmfit.design.Term or to the features of a ridge."
            )
        self._terms = terms

    # -- what NeMoS calls

    def _validate_strength(self, strength: Any) -> Any:
        """Check the numbers; whether they match the terms is checked with the data."""
        if strength is None:
            return 1.0
        if isinstance(strength, Mapping):
            return {name: self._validate_strength(of) for name, of in strength.items()}
        value = as_numbers("regularizer_strength", strength)
        if not np.isfinite(value).all() or np.any(value < 0):
            raise ValueError(f"regularizer_strength is {shorten(strength)}; strengths must be finite and >= 0.")
        return float(value) if value.ndim == 0 else value

    def _validate_strength_structure(self, params: Any, strength: Any) -> Any:
        coef = params.coef if hasattr(params, "coef") else params
        terms, columns = self.layout(coef)
        strengths = strengths_of(terms, strength, columns)
        if not hasattr(params, "coef"):
            return strengths
        nothing = jax.tree.unflatten(jax.tree.structure(params), [None] * jax.tree.structure(params).num_leaves)
        return eqx.tree_at(lambda p: p.coef, nothing, strengths, is_leaf=lambda leaf: leaf is None)

    def _penalty_on_subtree(self, subtree: Any, strength: Any = None, **_: Any) -> jnp.ndarray:
        terms, b = self.layout(subtree)[0], jnp.asarray(stacked(subtree))
        total = jnp.zeros((), b.dtype)
        for at, (features, S) in enumerate(_penalties(terms)):
            # From a square root of S: nearly free directions would be lost in rounding otherwise.
            root = jnp.asarray(_root(S), b.dtype)
            weight = jnp.asarray(strength[at], b.dtype)
            total += 0.5 * jnp.sum(weight * (root @ b[features]) ** 2)
        return total

    def _proximal_operator(self, x: Any, strength: Any = None, scaling: Any = _STEP) -> Any:
        """Minimise the penalty plus the squared distance from x over twice the scaling."""
        terms, b = self.layout(x)[0], jnp.asarray(stacked(x))
        at = 0
        for term in terms.values():
            of, k = np.asarray(term.features), len(term.features)
            size = jnp.sqrt(jnp.asarray(strength[at : at + len(term.penalties)], b.dtype) * scaling)
            at += len(term.penalties)
            # Least squares: the identity above square roots of the penalties, (column, row, feature).
            rows = [jnp.broadcast_to(jnp.eye(k, dtype=b.dtype), (b.shape[1], k, k))]
            rows += [
                s[:, None, None] * jnp.asarray(_root(S), b.dtype) for s, S in zip(size, term.penalties, strict=True)
            ]
            Q, R = jnp.linalg.qr(jnp.concatenate(rows, axis=1))
            right = jnp.einsum("nka,kn->na", Q[:, :k], b[of])
            b = b.at[of].set(jax.scipy.linalg.solve_triangular(R, right[..., None])[..., 0].T)
        return unstacked(b, x)

    # -- where terms are

    def layout(self, coef: Any) -> tuple[Terms, int]:
        """Terms with their places among the features, leaves of a dictionary side by side; columns per feature."""
        leaves = jax.tree.leaves(coef)
        n_features, columns = sum(map(len, leaves)), int(np.prod(leaves[0].shape[1:], dtype=int))
        if not isinstance(coef, dict) or self.terms is None:
            return read_terms(self.terms, n_features, None), columns
        places, at = {}, 0
        for name in sorted(coef):  # as jax has them
            places[name] = range(at, at + len(coef[name]))
            at += len(coef[name])
        given = self.terms.terms if isinstance(self.terms, Basis) else self.terms
        if unknown := [name for name in given if name not in places]:
            raise ValueError(
                f"X has no entry {unknown[0]!r}; its entries are {', '.join(places)}. If X is a "
                "dictionary, terms have the names of its entries."
            )
        found = {}
        for name, term in given.items():
            if isinstance(term, Term) and len(term.features) != len(places[name]):
                n = len(places[name])
                raise ValueError(f"term {name!r} has {len(term.features)} features; its entry of X has {n}.")
            penalties = term.penalties if isinstance(term, Term) else Term.ridge(places[name]).penalties
            found[name] = Term(places[name], penalties, term.basis if isinstance(term, Term) else None)
        return found, columns


def strengths_of(terms: Terms, given: Any, n_columns: int) -> np.ndarray:
    """Strengths of all penalties, (penalty, column)."""
    try:
        return read_strengths(given, terms, n_columns)
    except (TypeError, ValueError) as error:
        raise type(error)(f"regularizer_strength: {error}") from None


def _root(S: np.ndarray) -> np.ndarray:
    """Matrix R with R'R = S, as many rows as S has rank."""
    values, vectors = np.linalg.eigh(S)
    some = values > _NULL * values.max()
    return np.sqrt(values[some])[:, None] * vectors[:, some].T


def stacked(tree: Any) -> Any:
    """Coefficients as a matrix, (feature, column), leaves one after the other."""
    leaves = jax.tree.leaves(tree)
    return namespace(*leaves).concatenate([leaf.reshape(len(leaf), -1) for leaf in leaves])


def unstacked(matrix: Any, like: Any) -> Any:
    """Coefficients (feature, column) in the form of a tree."""
    leaves, structure = jax.tree.flatten(like)
    pieces = namespace(matrix).split(matrix, np.cumsum([len(leaf) for leaf in leaves])[:-1])
    return jax.tree.unflatten(structure, [p.reshape(leaf.shape) for p, leaf in zip(pieces, leaves, strict=True)])


def _penalties(terms: Terms) -> list[tuple[np.ndarray, np.ndarray]]:
    """Features and matrix of every penalty, in the order of the strengths."""
    return [(np.asarray(term.features), S) for term in terms.values() for S in term.penalties]


@dataclass(frozen=True)
class SmoothPart:
    """Terms of some features and their strengths for some columns."""

    terms: Terms
    strengths: np.ndarray  # (penalty, column)

    def value(self, coef: np.ndarray) -> np.ndarray:
        """Penalty of coefficients (feature, column), (column,)."""
        total = np.zeros(coef.shape[1])
        for (features, S), strength in zip(_penalties(self.terms), self.strengths, strict=True):
            part = coef[features]
            total += 0.5 * strength * np.sum(part * (S @ part), axis=0)
        return total


@dataclass(frozen=True)
class SmoothPenalties:
    """Penalties of a model with `Smooth`, for parts of its columns and features."""

    terms: Terms
    strengths: np.ndarray  # (penalty, column)
    name: ClassVar[str] = "Smooth"
    labels: ClassVar[None] = None

    def takes(self, mask: np.ndarray | None) -> bool:
        """Whether every column has all features of a term or none, unless its penalties are of single features."""
        if mask is None:
            return True
        joined = [t for t in self.terms.values() if any(np.count_nonzero(S - np.diag(np.diag(S))) for S in t.penalties)]
        return all(np.all(mask[list(t.features)] == mask[t.features[0]]) for t in joined)

    def make(self, features: np.ndarray, columns: np.ndarray) -> SmoothPart:
        """Restrict the terms to some features."""
        place = {feature: i for i, feature in enumerate(features.tolist())}
        terms, kept, at = {}, [], 0
        for name, term in self.terms.items():
            has = [i for i, feature in enumerate(term.features) if feature in place]
            penalties = [S[np.ix_(has, has)] for S in term.penalties]
            some = [k for k, S in enumerate(penalties) if np.any(S)]
            if has:
                terms[name] = Term([place[term.features[i]] for i in has], [penalties[k] for k in some])
                kept += [at + k for k in some]
            at += len(penalties)
        return SmoothPart(terms, self.strengths[np.ix_(kept, columns)])


def read_smooth(regularizer: Any, strength: Any, params: Any) -> SmoothPenalties | None:
    """Penalties of a model whose regularizer is `Smooth`; None for others."""
    if type(regularizer) is not Smooth:
        return None
    terms, columns = regularizer.layout(params.coef)
    return SmoothPenalties(terms, strengths_of(terms, strength, columns))
