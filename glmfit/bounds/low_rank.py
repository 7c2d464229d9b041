"""Sums of rank-one matrices in little memory, never below the sum itself, on the host.

Parts beyond the low rank are moved into the diagonal by ``v v' <= |v|_1 diag(|v|)``.
"""

import numpy as np
from numpy.typing import ArrayLike

# The part of a vector orthogonal to V keeps at least this share when it is made orthogonal again; if it keeps less,
# it was rounding, and the vector lies in the span. (Less than 1/sqrt(2) would let errors of orthogonality grow.)
_REAL = 0.9


class LowRankPlusDiagonal:
    r"""Symmetric matrix ``V' diag(S) V + diag(D)`` that is at least the sum of everything added to it.

    Parameters
    ----------
    diagonal : array_like
        Initial diagonal, (d,), not negative.
    rank : int
        Largest number of rows of V, not negative; 0 keeps only a diagonal, and at most d are ever needed.

    Attributes
    ----------
    V : numpy.ndarray
        (k, d) with orthonormal rows, k at most the rank: a view, which the next addition overwrites.
    S, D : numpy.ndarray
        (k,), largest first, and (d,); not negative.

    Raises
    ------
    ValueError
        If the diagonal is not a vector of finite non-negative numbers, or the rank is negative.

    Notes
    -----
    Guarantee: the matrix minus ``diag(diagonal) + sum q q'`` is positive semi-definite, up to rounding, in whatever
    order vectors are added; it is zero as long as they span no more than ``rank`` dimensions. It does not need
    orthonormality of V, so rounding does not erode it. Proof: docs/theory/bound_majorization.md, Proposition 5.

    Cost: memory for 2 (rank + 1) d numbers, in float64.

    References
    ----------
    Choromanska and Jebara (2013), section 3.2, whose listing is corrected in docs/theory/bound_majorization.md.
    """

    def __init__(self, diagonal: ArrayLike, rank: int):
        self.D = np.array(diagonal, np.float64)
        if self.D.ndim != 1 or not (np.isfinite(self.D).all() and (self.D >= 0).all()):
            raise ValueError("diagonal must be one-dimensional, finite and not negative.")
        if rank < 0:
            raise ValueError(f"rank is {rank}; it must not be negative.")
        self.S = np.zeros(0)
        self._rank = min(rank, len(self.D))
        self._rows, self._spare = np.zeros((2, self._rank + 1, len(self.D)))

    @property
    def V(self) -> np.ndarray:
        """Rows of the low-rank part."""
        return self._rows[: len(self.S)]

    def add(self, q: ArrayLike) -> None:
        """Add ``q q'`` of a vector, (d,); cost: rank squared times d.

        Raises
        ------
        ValueError
            If the shape is wrong, or q or its square is not finite; nothing is changed then.
        """
        q = np.asarray(q, np.float64)
        if q.shape != self.D.shape:
            raise ValueError(f"q has shape {q.shape}; it must be {self.D.shape}.")
        with np.errstate(over="ignore", invalid="ignore"):
            if not np.isfinite(q @ q):
                raise ValueError("q and its square must be finite.")
        V = self.V
        p = V @ q
        rest = np.subtract(q, p @ V, out=self._rows[len(V)])
        before = np.linalg.norm(rest)
        again = V @ rest
        rest -= again @ V
        p += again
        length = np.linalg.norm(rest)
        if length > _REAL * before:
            rest /= length
            p = np.append(p, length)
        inner = np.outer(p, p)
        inner[range(len(V)), range(len(V))] += self.S
        values, vectors = np.linalg.eigh(inner)
        values = np.maximum(values[::-1], 0)
        np.matmul(vectors.T[::-1], self._rows[: len(p)], out=self._spare[: len(p)])
        self._rows, self._spare = self._spare, self._rows
        self.S = values[: self._rank]
        for value, row in zip(values[self._rank :], self._rows[self._rank :]):  # one at most
            row = np.abs(row)
            self.D += value * row.sum() * row

    def add_many(self, Q: ArrayLike) -> None:
        """Add ``Q' Q``, (row, d), row by row: all at once would be no tighter for sparse rows, whose sums are dense."""
        for q in Q:
            self.add(q)

    def product(self, v: ArrayLike) -> np.ndarray:
        """Multiply a vector, (d,); cost: rank times d."""
        return (self.S * (self.V @ v)) @ self.V + self.D * v

    def solve(self, u: ArrayLike) -> np.ndarray:
        r"""Multiply a vector, (d,), by the inverse; cost: rank squared times d.

        .. math:: (V'SV + D)^{-1} = D^{-1} - A'(I + A D A')^{-1}A, \qquad A = S^{1/2} V D^{-1}

        Raises
        ------
        ValueError
            If D has a zero.
        """
        if not (self.D > 0).all():
            raise ValueError("D must be positive for an inverse; start from a positive diagonal, such as a ridge.")
        A = np.sqrt(self.S)[:, None] * self.V / self.D
        inner = np.eye(len(A)) + (A * self.D) @ A.T
        return u / self.D - np.linalg.solve(inner, A @ u) @ A

    def dense(self) -> np.ndarray:
        """Return the whole matrix, (d, d): for inspection, not for computing."""
        return (self.V.T * self.S) @ self.V + np.diag(self.D)
