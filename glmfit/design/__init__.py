"""Designs: from bases of smooth functions, from recordings, or larger than memory and read a run at a time."""

from .base import RowSource
from .bases import Basis
from .builder import Built, build
from .convolution import Convolution
from .kernels import RaisedCosineLinear, RaisedCosineLog
from .nemos_bases import from_nemos
from .products import product
from .sessions import Session
from .sources import as_source, hstack
from .splines import BSpline, CyclicBSpline, Fourier
from .terms import Term
from .trials import Trials

__all__ = [
    "BSpline",
    "Basis",
    "Built",
    "Convolution",
    "CyclicBSpline",
    "Fourier",
    "RaisedCosineLinear",
    "RaisedCosineLog",
    "RowSource",
    "Session",
    "Term",
    "Trials",
    "as_source",
    "build",
    "from_nemos",
    "hstack",
    "product",
]
