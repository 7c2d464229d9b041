"""Where the rows of a problem lie: on one device, or each block's rows spread over several."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

_AXIS = "row"


class Placement:
    """Devices that share the rows of every block; what has no rows lies on all of them.

    Parameters
    ----------
    devices : sequence of jax.Device, optional
        One device; default jax's.

    Notes
    -----
    Kernels are the same: from where their arguments lie the compiler finds what each device computes, and adds up over
    devices what is summed over rows.
    """

    def __init__(self, devices: Sequence[jax.Device] | None = None):
        self.devices = () if devices is None else tuple(devices)
        self.sharding = None
        if self.devices:
            mesh = jax.sharding.Mesh(np.array(self.devices), (_AXIS,))
            self.sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, _AXIS, None))

    def put(self, array: np.ndarray) -> jax.Array:
        """Lay an array (block, row, ...) out; rows of zeros fill up what the devices cannot share evenly."""
        if self.sharding is None:
            return jax.device_put(array)
        missing = self.block_rows(array.shape[1]) - array.shape[1]
        if missing:  # the partition into blocks stays the same, whatever the devices
            array = np.concatenate([array, np.zeros_like(array[:, :1]).repeat(missing, axis=1)], axis=1)
        if self.sharding.is_fully_addressable:
            return jax.device_put(array, self.sharding)
        # Several hosts: each has all rows and puts those of its own devices there.
        return jax.make_array_from_callback(array.shape, self.sharding, lambda index: array[index])

    def block_rows(self, n_rows: int) -> int:
        """Rows of a block on the device, with those that fill up."""
        return n_rows + -n_rows % max(1, len(self.devices))
