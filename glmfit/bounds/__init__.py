"""Guaranteed inequalities: smoothness, step sizes, eigenvalues and distances from the optimum."""

from __future__ import annotations

from .base import GapCertificate, StepCertificate
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
from .spectral import (
    bound_largest_eigenvalue,
    bound_smallest_eigenvalue,
    estimate_smallest_eigenvalue,
    lanczos,
    lanczos_step,
    random_start,
    start_lanczos,
)
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
    "GapCertificate",
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
    "estimate_smallest_eigenvalue",
    "gap_bound",
    "lanczos",
    "lanczos_step",
    "log_partition_bound",
    "partition_step",
    "practical_batch_size",
    "random_start",
    "softmax_bound",
    "start_lanczos",
    "subset_step",
]
