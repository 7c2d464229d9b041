"""Coordinates of the features in which quadratic penalties are diagonal and no direction occurs twice.

Theory: docs/theory/smooth_terms.md.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import scipy.linalg

from ...threads import one_thread_each
from ..tiles import rows_at_once, sums_over_tiles

_NULL = 1e-13  # share of the largest eigenvalue of a penalty below which nothing is penalised: its rounding
_TWICE = 1e-12  # share of a direction's variance that others do not have; below, it is a duplicate
_ROUNDING = 64 * float(np.finfo(float).eps)  # of variances, and of means
_COMMUTE = 1e-9  # of the norms of two matrices: more than the rounding of their commutator


class Mixed(NamedTuple):
    """Penalties of one term that no coordinates make diagonal together."""

    place: slice  # of the coordinates
    which: list[int]  # of the penalties
    matrices: np.ndarray  # (penalty of the term, coordinate, coordinate)


class Coordinates:
    """Centred features turned term by term, without unpenalised directions that other features already contain.

    With parameters g (coordinate,) and the intercept g_0 of centred features, coefficients are ``turn @ g``. ``terms``
    are the features of every term, and its penalty matrices or their diagonals. Features in no term have no penalty.
    With ``select``, directions that the penalties of a term leave free get a ridge, the last penalty of the term.
    """

    def __init__(self, X, terms: Mapping[str, tuple[Sequence[int], Sequence[np.ndarray]]], weights=None, select=False):
        self.mean, self._covariance = _moments(X, weights)  # of the features
        columns = {name: np.asarray(of, int) for name, (of, _) in terms.items()}
        rest = np.setdiff1d(np.arange(X.shape[1]), np.concatenate([*columns.values(), np.zeros(0, int)]))
        self.term_of: list[str] = []  # of every penalty
        self.mixed: list[Mixed] = []  # of terms whose matrices do not commute
        self.places: dict[str | None, slice] = {}  # coordinates of every term; None for features in no term
        self.free_parts: dict[str, np.ndarray] = {}  # the last penalty of a term, among its features
        self._taken = np.zeros((X.shape[1], 0))  # directions without a penalty so far
        self.is_whole = True  # whether what is excluded varies by no more than rounding
        turns, weights_of, at = [np.zeros((X.shape[1], 0))], [np.zeros((0, 0))], 0
        for name, (of, matrices) in [*terms.items(), *([(None, (rest, ()))] if len(rest) else [])]:
            turn, weight, mixed = self._of_term(np.asarray(of, int), [_as_diagonal(m) for m in matrices], select)
            self.places[name] = place = slice(at, at + turn.shape[1])
            n_free = int(np.sum(~np.any(weight > 0, axis=0))) if len(matrices) else 0
            if mixed is not None:
                first = len(self.term_of)
                self.mixed.append(Mixed(place, list(range(first, first + len(mixed))), mixed))
                weight = np.zeros((len(mixed), turn.shape[1]))
            if select and n_free:
                weight = np.append(weight, [np.arange(turn.shape[1]) < n_free], axis=0).astype(np.float64)
                free = turn[np.asarray(of, int), :n_free]
                self.free_parts[name] = free @ free.T
            weight = weight[: len(matrices) + bool(select and n_free)]
            self.term_of += [name] * len(weight)
            weights_of.append(weight)
            turns.append(turn)
            at = place.stop
        self.turn = np.concatenate(turns, axis=1)  # (feature, coordinate)
        self.diagonal = scipy.linalg.block_diag(*weights_of)  # (penalty, coordinate), 0 for those that are mixed
        self.gram = self.turn.T @ self._covariance @ self.turn  # second moments of the coordinates

    def _of_term(self, of: np.ndarray, matrices, select: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Turn the features of a term: (feature, coordinate), those free of penalties first, and weights as turned."""
        covariance = self._covariance
        turn, diagonals, mixed = _diagonalise(len(self.mean), of, matrices)
        if not len(matrices):
            diagonals = np.zeros((1, turn.shape[1]))
        free = ~np.any(diagonals > 0, axis=0)
        kept = self._new_directions(turn[:, free])
        self._taken = _uncorrelated(np.append(self._taken, kept, axis=1), covariance)
        # Orthonormal ones, if possible: their ridge is that of the coefficients.
        if len(matrices) and kept.shape[1] == free.sum():
            kept = turn[:, free]
        elif select:
            kept = np.linalg.qr(kept)[0]
        held = turn[:, ~free]
        if mixed is not None:
            whole = np.zeros((len(mixed), kept.shape[1] + held.shape[1], kept.shape[1] + held.shape[1]))
            whole[:, kept.shape[1] :, kept.shape[1] :] = mixed
            sizes = np.append(np.zeros((len(mixed), kept.shape[1])), diagonals[:, ~free], axis=1)
            return np.append(kept, held, axis=1), sizes, whole
        # Directions that do not vary are 0 at every strength.
        varies = self._variance(held) > 0
        weight = np.append(np.zeros((len(diagonals), kept.shape[1])), diagonals[:, ~free][:, varies], axis=1)
        return np.append(kept, held[:, varies], axis=1), weight, None

    def _variance(self, turn: np.ndarray) -> np.ndarray:
        """Compute variances along directions, 0 where they may be rounding."""
        size, found = np.abs(turn), np.einsum("ij,ij->j", turn, self._covariance @ turn)
        spread = np.sqrt(np.maximum(np.diag(self._covariance), 0.0)) @ size
        rounding = np.maximum(_ROUNDING * spread**2, (_ROUNDING * (np.abs(self.mean) @ size)) ** 2)
        return np.where(found > rounding, found, 0.0)

    def _new_directions(self, turn: np.ndarray) -> np.ndarray:
        """Scale directions to variance 1; combine them if features do not vary along some, apart from those taken."""
        variance = self._variance(turn)
        turn = turn[:, variance > 0] / np.sqrt(variance[variance > 0])
        across = self._taken.T @ self._covariance @ turn  # of directions that are uncorrelated, of variance 1
        values, vectors = np.linalg.eigh(turn.T @ self._covariance @ turn - across.T @ across)
        self.is_whole &= not np.any((values > _ROUNDING) & (values <= _TWICE))
        if np.all(values > _TWICE):
            return turn
        vectors *= np.where(np.sqrt(1.0 + np.arange(len(vectors))) @ vectors < 0, -1.0, 1.0)  # whatever the rounding
        return turn @ vectors[:, values > _TWICE]

    @property
    def n_coordinates(self) -> int:
        """Number of coordinates, without the intercept."""
        return self.turn.shape[1]

    @property
    def n_penalties(self) -> int:
        """Number of penalties, each with a strength of its own."""
        return len(self.diagonal)

    def sizes(self) -> np.ndarray:
        """Diagonals of all penalties, mixed ones included, (penalty, coordinate)."""
        sizes = self.diagonal.copy()
        for block in self.mixed:
            sizes[block.which, block.place] = np.einsum("kii->ki", block.matrices)
        return sizes

    def plain(self, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Turn parameters (fit, coordinate + 1) into coefficients (feature, fit) and intercepts (fit,)."""
        coef = self.turn @ g[:, :-1].T
        return coef, g[:, -1] - self.mean @ coef

    def penalty(self, strengths: np.ndarray, inside=None) -> np.ndarray:
        """Add up the penalties at strengths (fit, penalty), (fit, coordinate, coordinate)."""
        S = np.zeros((len(strengths), self.n_coordinates, self.n_coordinates))
        i = np.arange(self.n_coordinates)
        S[:, i, i] = strengths @ self.diagonal
        for block in self.mixed:
            S[:, block.place, block.place] += np.tensordot(strengths[:, block.which], block.matrices, 1)
        if inside is not None:
            S *= inside[:, :, None] & inside[:, None, :]
        return S

    def pull(self, strengths: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Gradients of the penalties at strengths (fit, penalty) and coordinates (fit, coordinate)."""
        pull = (strengths @ self.diagonal) * at
        for block in self.mixed:
            part = np.einsum("kab,nb->nka", block.matrices, at[:, block.place])
            pull[:, block.place] += np.einsum("nk,nka->na", strengths[:, block.which], part)
        return pull

    def value(self, strengths: np.ndarray, at: np.ndarray) -> np.ndarray:
        """Values of the penalties, (fit,)."""
        return 0.5 * np.einsum("np,np->n", self.pull(strengths, at), at)

    def back(self, shift: np.ndarray, scale: np.ndarray) -> np.ndarray:
        """Matrix that maps parameters to those of features ``(x - shift) / scale``, intercepts last."""
        d, p = self.turn.shape
        back = np.zeros((d + 1, p + 1))
        back[:-1, :-1] = self.turn * scale[:, None]
        back[-1, :-1], back[-1, -1] = (shift - self.mean) @ self.turn, 1.0
        return back


def _moments(X, weights) -> tuple[np.ndarray, np.ndarray]:
    """Weighted means (feature,) and covariance (feature, feature), in float64."""
    n_rows = len(X)
    some = slice(0, min(n_rows, 4096))
    near = np.average(np.asarray(X[some], np.float64), 0, None if weights is None else weights[some])  # cancels less

    def tile(rows):
        x = np.asarray(X[rows], np.float64) - near
        w = np.ones(len(x)) if weights is None else weights[rows]
        return np.array(w.sum()), w @ x, x.T @ (x * w[:, None])

    total, sums, gram = sums_over_tiles(tile, n_rows, rows_at_once(X))
    mean = sums / total
    return near + mean, gram / total - np.outer(mean, mean)


def _as_diagonal(matrix: np.ndarray) -> np.ndarray:
    """Return the diagonal of a diagonal matrix, and any other matrix unchanged."""
    matrix = np.asarray(matrix, np.float64)
    if matrix.ndim == 1 or np.count_nonzero(matrix - np.diag(np.diag(matrix))):
        return matrix
    return np.diag(matrix)


def _diagonalise(n_features: int, columns: np.ndarray, matrices) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Turn the features of a term so that its penalties are diagonal, (penalty, coordinate), if they commute.

    Otherwise the third value is these matrices among the coordinates that some of them penalises.
    """
    whole = np.zeros((n_features, len(columns)))
    if all(np.ndim(m) == 1 for m in matrices):
        whole[columns, np.arange(len(columns))] = 1.0
        return whole, np.array([*matrices, np.zeros(len(columns))])[: max(len(matrices), 1)], None
    matrices = [np.diag(m) if np.ndim(m) == 1 else m for m in matrices]
    scaled = [m / np.linalg.norm(m) for m in matrices]
    # Sums with unequal weights have the eigenvectors of all matrices, if these commute.
    with one_thread_each():
        values, turn = np.linalg.eigh(sum(m / np.sqrt(k + 1.3) for k, m in enumerate(scaled)))
    whole[columns] = turn
    some = values > _NULL * values.max()
    turned = np.array([turn.T @ m @ turn for m in matrices])
    diagonals = np.where(some, np.einsum("kii->ki", turned), 0.0)
    if _commute(scaled):
        diagonals[diagonals < _NULL * diagonals.max(axis=1, keepdims=True)] = 0.0
        return whole, diagonals, None
    turned = turned[:, some][:, :, some]
    return whole, np.where(some, np.maximum(diagonals, 1e-300), 0.0), (turned + turned.transpose(0, 2, 1)) / 2


def _uncorrelated(turn: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Combine directions into uncorrelated ones with variance 1."""
    values, vectors = np.linalg.eigh(turn.T @ covariance @ turn)
    return turn @ (vectors / np.sqrt(np.maximum(values, 1e-300)))


def _commute(matrices) -> bool:
    """Whether matrices of norm 1 have common eigenvectors."""
    pairs = [(a, b) for k, a in enumerate(matrices) for b in matrices[:k]]
    return all(np.linalg.norm(a @ b - b @ a) <= _COMMUTE for a, b in pairs)
