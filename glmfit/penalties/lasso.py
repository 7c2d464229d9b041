"""Lasso penalty."""

from typing import ClassVar, final

from glmfit.penalties._l1 import L1Penalty


@final
class Lasso(L1Penalty):
    """Lasso, R(w) = strength ||w||_1: the elastic net of ratio 1."""

    ratio: ClassVar[float] = 1.0
    name: ClassVar[str] = "Lasso"
    smooth: ClassVar[bool] = False
