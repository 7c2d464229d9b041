"""Cholesky's method without the interpreter lock, which SciPy's wrappers of LAPACK hold: threads work side by side."""

import ctypes
from collections.abc import Callable

import numpy as np
from scipy.linalg import cython_lapack

_name, _pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
_name.restype, _name.argtypes = ctypes.c_char_p, [ctypes.py_object]
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


def _routine(name: str, n_arguments: int) -> Callable[..., None]:
    """Return a routine of LAPACK, whose address SciPy publishes for other compiled code."""
    capsule = cython_lapack.__pyx_capi__[name]
    return ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * n_arguments)(_pointer(capsule, _name(capsule)))


_factorise, _solve = _routine("dpotrf", 5), _routine("dposv", 8)
_LOWER, _ONE = ctypes.byref(ctypes.c_char(b"L")), ctypes.byref(ctypes.c_int(1))


def solve_definite(matrix: np.ndarray, right: np.ndarray) -> bool:
    """Overwrite ``right`` (n,) with the solution of a linear system; return whether it has one.

    The matrix (n, n) is symmetric, and destroyed. There is no solution unless it is positive definite. Both are
    contiguous float64.
    """
    n, failed = ctypes.byref(ctypes.c_int(len(matrix))), ctypes.c_int()
    _solve(_LOWER, n, _ONE, matrix.ctypes.data, n, right.ctypes.data, n, ctypes.byref(failed))
    return failed.value == 0


def is_definite(matrix: np.ndarray) -> bool:
    """Tell whether a symmetric float64 matrix is positive definite, and finite."""
    factor = np.array(matrix, np.float64, order="C")
    n, failed = ctypes.byref(ctypes.c_int(len(factor))), ctypes.c_int()
    _factorise(_LOWER, n, factor.ctypes.data, n, ctypes.byref(failed))
    return failed.value == 0 and bool(np.isfinite(factor.diagonal()).all())
