"""Numbers and times that functions are given, read and checked."""

import numpy as np

from ..checks import check_positive
from ..data.arrays import numbers


def read_numbers(name, values, *axes) -> np.ndarray:
    """Return values as an array of floats with these axes; TypeError for no array, ValueError for other axes."""
    return numbers(values, name, f"an array of numbers, ({', '.join(axes)}{',' if len(axes) == 1 else ''})", *axes)


def read_like(name, values, like, shape) -> np.ndarray:
    """Return values as an array of floats; ValueError unless it has the shape of what it must be like."""
    array = numbers(values, name, f"an array of numbers like {like}, {shape}")
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}; it must be that of {like}, {shape}.")
    return array


def read_bins(time_s, bin_s) -> tuple[np.ndarray, float]:
    """Return the centres of bins, which must increase, and their width, s: the median difference if it is None."""
    time = read_numbers("time_s", time_s, "time")
    backwards = np.flatnonzero(~(np.diff(time) > 0))  # also where one is NaN
    if len(backwards):
        first, second = time[backwards[0]], time[backwards[0] + 1]
        raise ValueError(f"time_s must increase, but {second:g} s follows {first:g} s; sort it, and what goes with it.")
    if bin_s is None:
        if len(time) < 2:
            raise ValueError(f"time_s has {len(time)} bin(s), which do not tell their width; give bin_s.")
        return time, float(np.median(np.diff(time)))
    check_positive("bin_s", bin_s)
    return time, bin_s


def check_limits(limits_s, time) -> np.ndarray:
    """Return which times are within the limits, all if these are None; ValueError for limits that hold none."""
    if limits_s is None:
        return np.ones(len(time), bool)
    limits = read_numbers("limits_s", limits_s, "2")
    if len(limits) != 2 or not limits[0] < limits[1]:
        raise ValueError(f"limits_s is {limits_s!r}; it must be a first time and a later last one, s.")
    seen = (time >= limits[0]) & (time <= limits[1])
    if not seen.any():
        span = f"times lie from {np.nanmin(time):g} to {np.nanmax(time):g} s" if len(time) else "there are no times"
        raise ValueError(f"limits_s is {limits_s!r}, where there is nothing to draw: {span}.")
    return seen
