"""Blocks of rows: how many there are."""

from __future__ import annotations


def a_twentieth(n_rows: int) -> int:
    """Rows per block where the columns of a row are coupled: 1/20 of them, between 32 and 4096."""
    return int(min(n_rows, max(32, min(4096, n_rows // 20))))
