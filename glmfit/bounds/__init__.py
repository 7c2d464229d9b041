"""Guaranteed inequalities: smoothness, step sizes, eigenvalues and distances from the optimum."""

from ..lazy import no_longer
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
from .self_concordance import GAP_THEOREM, descent_step, gap_bound, stepped_gap_bound
from .spectral import bound_largest_eigenvalue, bound_smallest_eigenvalue, lanczos, random_start
from .step_size import (
    PARTITION_THEOREM,
    SUBSET_THEOREM,
    StepCertificate,
    batch_smoothness,
    check_batch_size,
    partition_step,
    practical_batch_size,
    subset_step,
)

__all__ = [
    "StepCertificate", "batch_smoothness", "check_batch_size", "practical_batch_size",
    "partition_step", "subset_step", "PARTITION_THEOREM", "SUBSET_THEOREM",
    "lanczos", "random_start", "bound_largest_eigenvalue", "bound_smallest_eigenvalue",
    "gap_bound", "stepped_gap_bound", "descent_step", "GAP_THEOREM", "dual_gap", "ResidualSums", "DUALITY_THEOREM",
    "log_partition_bound", "softmax_bound", "LogPartitionBound", "SoftmaxBound", "ORDERS", "LOG_PARTITION_THEOREM",
    "LowRankPlusDiagonal",
]  # fmt: skip

__getattr__ = no_longer(__name__, {
    "GapCertificate": "the report of a fit has its bounds, `report_.gap` and `report_.gap_is_bound`",
    "estimate_smallest_eigenvalue": "use `bound_smallest_eigenvalue`, which is proved",
    "is_not_above_start": "every fit checks this itself",
    "lanczos_step": "use `lanczos`",
    "start_lanczos": "use `lanczos`",
})  # fmt: skip
