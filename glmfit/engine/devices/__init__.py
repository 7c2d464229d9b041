"""Rows on devices that the problem names, or on a GPU: programs of ten steps instead of BLAS."""

from .descent import DeviceDescent
from .newton import DeviceNewton, Judgement, newton_pays, newton_serves
from .rows import DeviceRows
from .shards import devices_for, layout_of

__all__ = [
    "DeviceDescent", "DeviceNewton", "DeviceRows", "Judgement", "devices_for", "layout_of", "newton_pays",
    "newton_serves",
]  # fmt: skip
