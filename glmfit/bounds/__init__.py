"""Guaranteed inequalities: smoothness, step sizes, eigenvalues and distances from the optimum."""

from __future__ import annotations

from .base import StepCertificate
from .duality import DUALITY_THEOREM, ResidualSums, dual_gap
from .log_partition import (
    LOG_PARTITION_THEOREM,
    ORDERS,
    LogPartitionBound,
    SoftmaxBound,
    log_partition_bound,
    softmax_bound,
)
from .low_rank import LowRankPlusDiagonal
from .self_concordance import GAP_THEOREM, descent_step, gap_bound
from .spectral import bound_largest_eigenvalue, bound_smallest_eigenvalue, lanczos, random_start
from .step_size import (
    PARTITION_THEOREM,
    SUBSET_THEOREM,
    batch_smoothness,
    check_batch_size,
    partition_step,
    practical_batch_size,
    subset_step,
)

__all__ = [
    "DUALITY_THEOREM",
    "GAP_THEOREM",
    "LOG_PARTITION_THEOREM",
    "ORDERS",
    "PARTITION_THEOREM",
    "SUBSET_THEOREM",
    "LogPartitionBound",
    "LowRankPlusDiagonal",
    "ResidualSums",
    "SoftmaxBound",
    "StepCertificate",
    "batch_smoothness",
    "bound_largest_eigenvalue",
    "bound_smallest_eigenvalue",
    "check_batch_size",
    "descent_step",
    "dual_gap",
    "gap_bound",
    "lanczos",
    "log_partition_bound",
    "partition_step",
    "practical_batch_size",
    "random_start",
    "softmax_bound",
    "subset_step",
]

_GONE = {
    "GapCertificate": "the report of a fit has its bounds, `report_.gap` and `report_.gap_is_bound`",
    "estimate_smallest_eigenvalue": "use `bound_smallest_eigenvalue`, which is proved",
    "lanczos_step": "use `lanczos`",
    "start_lanczos": "use `lanczos`",
}


def __getattr__(name: str):
    instead = f"; {_GONE[name]}" if name in _GONE else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{instead}.")
