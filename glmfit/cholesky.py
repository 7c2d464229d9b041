"""Cholesky's method without the interpreter lock, which SciPy's wrappers of LAPACK hold: threads work side by side."""

import ctypes
from collections.abc import Callable

import numpy as np
from scipy.linalg import cython_lapack


def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """Return a routine of LAPACK, whose address SciPy publishes for other compiled code."""
    capsule = cython_lapack.__pyx_capi__[name]
    name_of = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)(("PyCapsule_GetName", ctypes.pythonapi))
    pointer_of = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
        ("PyCapsule_GetPointer", ctypes.pythonapi)
    )
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(pointer_of(capsule, name_of(capsule)))


_factorise, _solve = _routine("dpotrf", 5), _routine("dposv", 8)
_whole = ctypes.c_int64  # right for integers of 32 bits, too, on machines that store the low bytes first
_LOWER, _ONE = ctypes.byref(ctypes.c_char(b"L")), ctypes.byref(_whole(1))


def solve_definite(matrix: np.ndarray, right: np.ndarray) -> bool:
    """Overwrite ``right`` (n,) with the solution of a linear system; return whether it has one.

    The matrix (n, n) is symmetric, and destroyed. There is no solution unless it is positive definite. Both must be
    contiguous float64; ValueError if they are not.
    """
    size, failed = len(right), _whole()
    if matrix.shape != (size, size) or not (_is_plain(matrix) and _is_plain(right)):
        raise ValueError("a system must be a square matrix and a vector of its length, contiguous float64 arrays.")
    if size:
        n = ctypes.byref(_whole(size))
        _solve(_LOWER, n, _ONE, matrix.ctypes.data, n, right.ctypes.data, n, ctypes.byref(failed))
    return failed.value == 0


def is_definite(matrix: np.ndarray) -> bool:
    """Tell whether a symmetric matrix is positive definite, and finite."""
    factor, failed = np.array(matrix, np.float64, order="C"), _whole()
    if len(factor):
        n = ctypes.byref(_whole(len(factor)))
        _factorise(_LOWER, n, factor.ctypes.data, n, ctypes.byref(failed))
    return failed.value == 0 and bool(np.isfinite(factor.diagonal()).all())


def _is_plain(array: np.ndarray) -> bool:
    return array.dtype == np.float64 and array.flags.c_contiguous
