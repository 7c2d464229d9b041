"""Rows on devices that the problem names, or on a GPU: programs of ten steps instead of BLAS."""

from .descent import DeviceDescent
from .rows import DeviceRows
from .shards import layout_of

__all__ = ["DeviceDescent", "DeviceRows", "layout_of"]
