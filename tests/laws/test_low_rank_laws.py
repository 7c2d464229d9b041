"""Laws of low rank plus diagonal: never below the sum it represents, for any additions in any order."""

import numpy as np
import pytest
from oracles import softmax as oracle

from glmfit import bounds
from glmfit.bounds import LowRankPlusDiagonal

D = 12


def sequences():
    """Vectors (addition, D) to add one after another, each kind awkward in its own way."""
    rng = np.random.default_rng(0)
    for scale in (1.0, np.geomspace(1, 1e-4, D), 1e8):
        yield "random", rng.normal(size=(60, D)) * scale
    twice = rng.normal(size=(4, D))
    yield "duplicates", np.concatenate([twice, twice, -2 * twice, np.zeros((3, D)), twice])
    yield "in the span of two", rng.normal(size=(40, 2)) @ rng.normal(size=(2, D))
    yield "sparse", rng.normal(size=(80, D)) * (rng.random((80, D)) < 0.2)
    yield "growing", rng.normal(size=(50, D)) * np.geomspace(1e-8, 1e8, 50)[:, None]
    yield "shrinking", rng.normal(size=(50, D)) * np.geomspace(1e8, 1e-8, 50)[:, None]
    for noise in (1e-15, 1e-13, 1e-9):
        yield f"nearly two, {noise:g}", rng.normal(size=(50, 2)) @ twice[:2] + noise * rng.normal(size=(50, D))
    yield "axes", np.eye(D)[rng.integers(D, size=50)]


SEQUENCES = list(sequences())
every_rank = pytest.mark.parametrize("rank", [0, 1, 2, 3, 5, D, D + 4])
every_sequence = pytest.mark.parametrize("Q", [Q for _, Q in SEQUENCES], ids=[name for name, _ in SEQUENCES])


def exact(diagonal, Q):
    return np.diag(diagonal) + Q.T @ Q


@pytest.mark.thorough
@every_rank
@every_sequence
def test_never_below_the_sum_after_any_number_of_additions(rank, Q):
    diagonal = np.linspace(0, 1, D)
    held = LowRankPlusDiagonal(diagonal, rank)
    for n, q in enumerate(Q, start=1):
        held.add(q)
        truth = exact(diagonal, Q[:n])
        assert np.linalg.eigvalsh(held.dense() - truth)[0] >= -1e-10 * np.linalg.norm(truth, 2)
        assert len(held.S) == len(held.V) <= min(rank, D)
        np.testing.assert_allclose(held.V @ held.V.T, np.eye(len(held.S)), atol=1e-13)
        assert np.all(held.S >= 0) and np.all(np.diff(held.S) <= 0) and np.all(held.D >= diagonal)


@every_sequence
def test_exact_if_the_rank_is_large_enough(Q):
    rank = np.linalg.matrix_rank(Q)
    for enough in (rank, D) if rank < D else (D,):
        held = LowRankPlusDiagonal(np.ones(D), enough)
        held.add_many(Q)
        truth = exact(np.ones(D), Q)
        np.testing.assert_allclose(held.dense(), truth, atol=1e-12 * np.linalg.norm(truth, 2))


def test_rank_zero_is_a_diagonal_that_dominates():
    Q = SEQUENCES[0][1]
    held = LowRankPlusDiagonal(np.zeros(D), 0)
    held.add_many(Q)
    np.testing.assert_allclose(held.D, np.sum(np.abs(Q).sum(axis=1, keepdims=True) * np.abs(Q), axis=0), rtol=1e-12)


@pytest.mark.thorough
def test_many_additions_do_not_degrade_it(rng):
    """V stays orthonormal, and nothing is lost: 20 000 additions of vectors of very different size."""
    held, truth = LowRankPlusDiagonal(np.ones(D), 3), np.eye(D)
    for q in rng.normal(size=(20_000, D)) * 10 ** rng.uniform(-4, 2, (20_000, 1)):
        held.add(q)
        truth += np.outer(q, q)
    np.testing.assert_allclose(held.V @ held.V.T, np.eye(3), atol=1e-12)
    assert np.linalg.eigvalsh(held.dense() - truth)[0] >= 0


@every_rank
@every_sequence
def test_solve_and_product_are_those_of_the_dense_matrix(rank, Q, rng):
    held = LowRankPlusDiagonal(np.full(D, np.linalg.norm(Q, 2) ** 2 / 100 + 1e-3), rank)
    u = rng.normal(size=D)
    np.testing.assert_allclose(held.solve(u), u / held.D, rtol=1e-15)  # V is still empty
    held.add_many(Q)
    matrix = held.dense()
    np.testing.assert_allclose(held.product(u), matrix @ u, atol=1e-13 * np.linalg.norm(matrix, 2))
    np.testing.assert_allclose(held.solve(u), np.linalg.solve(matrix, u), atol=1e-12 * np.abs(u / held.D).max())


def test_solve_with_singular_S():
    held = LowRankPlusDiagonal(np.arange(1.0, D + 1), 3)
    held.add_many(SEQUENCES[0][1][:3])
    held.S = held.S * np.array([1.0, 0.0, 0.0])
    u = np.ones(D)
    np.testing.assert_allclose(held.solve(u), np.linalg.solve(held.dense(), u), rtol=1e-12)


def test_the_printed_sign_of_the_inverse_is_wrong():
    """S5: with a plus sign, the Woodbury formula does not give the inverse."""
    held = LowRankPlusDiagonal(np.ones(D), 2)
    held.add_many(SEQUENCES[0][1])
    V, truth = held.V, np.linalg.inv(held.dense())
    middle = np.linalg.inv(np.diag(1 / held.S) + (V / held.D) @ V.T)
    for sign, error in ((-1, 0.0), (1, 0.175)):
        found = np.diag(1 / held.D) + sign * (V / held.D).T @ middle @ (V / held.D)
        assert np.abs(found - truth).max() / np.abs(truth).max() == pytest.approx(error, abs=0.005)


def test_without_the_cross_terms_it_would_not_be_a_bound():
    """q = V'p + r: what is omitted, V'p r' + r p'V, has trace 0, so a negative eigenvalue."""
    held, q = LowRankPlusDiagonal(np.zeros(2), 1), np.array([1.0, 1.0])
    held.add([1.0, 0.0])
    truth = held.dense() + np.outer(q, q)
    p = held.V @ q
    r = q - p @ held.V
    apart = held.V.T @ (np.diag(held.S) + np.outer(p, p)) @ held.V + np.outer(r, r)
    np.testing.assert_allclose(np.linalg.eigvalsh(apart - truth), [-1, 1], atol=1e-14)
    held.add(q)
    assert np.linalg.eigvalsh(held.dense() - truth)[0] >= -1e-15


@pytest.mark.parametrize("rank", [1, 4])
def test_its_quadratic_bounds_the_objective_of_a_softmax_model(rank, rng):
    X, K, ridge = rng.normal(size=(40, 4)), 4, 0.3
    Y = oracle.one_hot(rng.integers(K, size=40), K)
    W = rng.normal(size=(K, 4))
    held = LowRankPlusDiagonal(np.full(K * 4, ridge), rank)
    for x in X:
        bound = bounds.log_partition_bound(np.kron(np.eye(K), x), W.ravel())
        held.add_many(bound.factors[1:])
    value, gradient = oracle.nll(W, X, Y, mu=ridge), oracle.nll_gradient(W, X, Y, mu=ridge).ravel()
    directions = [*rng.normal(size=(50, K * 4)), -held.solve(gradient)]
    for size in (1e-3, 0.1, 1.0, 10.0):
        for u in directions:
            step = size * u
            above = value + gradient @ step + step @ held.product(step) / 2
            found = oracle.nll(W + step.reshape(W.shape), X, Y, mu=ridge)
            assert above - found >= -1e-10 * max(1, abs(above))
    step = -held.solve(gradient)
    assert oracle.nll(W + step.reshape(W.shape), X, Y, mu=ridge) < value


def test_memory_is_a_few_rows(rng):
    d, rank = 10_000, 10
    held = LowRankPlusDiagonal(np.ones(d, np.float32), rank)
    for _ in range(rank + 2):
        held.add(rng.normal(size=d).astype(np.float32))
    sizes = [value.size for value in vars(held).values() if isinstance(value, np.ndarray)]
    assert sum(sizes) <= (2 * (rank + 1) + 1) * d + rank + 1
    assert held.V.dtype == held.S.dtype == held.D.dtype == held.solve(np.ones(d, np.float32)).dtype == np.float64


def test_the_given_diagonal_is_not_modified():
    diagonal = np.ones(3)
    held = LowRankPlusDiagonal(diagonal, 1)
    held.add_many(np.eye(3))
    np.testing.assert_array_equal(diagonal, 1.0)


@pytest.mark.parametrize("diagonal", [np.eye(2), 1.0, [1.0, -1e-3], [np.nan, 1.0], [np.inf, 1.0]])
def test_bad_diagonals_are_refused(diagonal):
    with pytest.raises(ValueError, match="diagonal must be one-dimensional, finite and not negative"):
        LowRankPlusDiagonal(diagonal, 1)


def test_bad_ranks_and_vectors_are_refused_and_change_nothing():
    with pytest.raises(ValueError, match="rank is -1; it must not be negative"):
        LowRankPlusDiagonal(np.ones(2), -1)
    held = LowRankPlusDiagonal(np.ones(2), 1)
    held.add([1.0, 2.0])
    before = held.dense()
    for q, message in (
        (np.ones(3), r"q has shape \(3,\); it must be \(2,\)"),
        ([np.nan, 1.0], "q and its square must be finite"),
        ([np.inf, 1.0], "q and its square must be finite"),
        ([1e200, 0.0], "q and its square must be finite"),
    ):
        with pytest.raises(ValueError, match=message):
            held.add(q)
    np.testing.assert_array_equal(held.dense(), before)


def test_an_inverse_needs_a_positive_diagonal():
    held = LowRankPlusDiagonal([1.0, 0.0], 2)
    with pytest.raises(ValueError, match="D must be positive for an inverse; start from a positive diagonal"):
        held.solve(np.ones(2))
