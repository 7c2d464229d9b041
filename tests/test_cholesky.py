"""Linear systems by LAPACK, called without the interpreter lock."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from glmfit.cholesky import is_definite, solve_definite


def definite(rng, n):
    """A symmetric matrix."""
    half = rng.normal(size=(n, n))
    return half @ half.T


@pytest.mark.parametrize("n", [0, 1, 2, 37, 300])
def test_solutions_are_those_of_numpy(rng, n):
    A, b = definite(rng, n) + np.eye(n), rng.normal(size=n)
    x = b.copy()
    assert solve_definite(A.copy(), x)
    np.testing.assert_allclose(x, np.linalg.solve(A, b), rtol=1e-9, atol=1e-12)


def test_systems_of_several_threads_do_not_mix(rng):
    problems = [(definite(rng, n) + np.eye(n), rng.normal(size=n)) for n in rng.integers(1, 120, 200)]

    def solve(problem):
        x = problem[1].copy()
        return x if solve_definite(problem[0].copy(), x) else None

    with ThreadPoolExecutor(4) as pool:
        for (A, b), x in zip(problems, pool.map(solve, problems), strict=True):
            np.testing.assert_allclose(A @ x, b, atol=1e-8)


def test_what_is_not_definite_is_refused(rng):
    A = definite(rng, 20)
    assert is_definite(A + np.eye(20)) and not is_definite(-A)
    assert is_definite(np.zeros((0, 0))) and not solve_definite(np.ones((2, 2)) - np.eye(2), np.ones(2))
    indefinite = A - 2 * np.linalg.eigvalsh(A)[-1] * np.eye(20)
    assert not is_definite(indefinite) and not solve_definite(indefinite.copy(), np.ones(20))
    for wrong in (np.nan, np.inf):
        spoiled = A + np.eye(20)
        spoiled[3, 3] = wrong
        before = spoiled.copy()
        assert not is_definite(spoiled)
        np.testing.assert_array_equal(spoiled, before)  # only looked at


@pytest.mark.parametrize(
    ("matrix", "right"),
    [
        (np.eye(4, dtype=np.float32), np.ones(4)),
        (np.eye(4), np.ones(4, np.float32)),
        (np.eye(8)[::2, ::2], np.ones(4)),
        (np.eye(4), np.ones(8)[::2]),
        (np.eye(4), np.ones(5)),
        (np.ones((4, 3)), np.ones(4)),
    ],
)
def test_arrays_that_lapack_would_misread_are_refused(matrix, right):
    with pytest.raises(ValueError, match="contiguous float64"):
        solve_definite(matrix, right)
