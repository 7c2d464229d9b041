"""Bins, counts and features of a recording, one entry at a time, in whole nanoseconds."""

import math

import numpy as np


def ns(seconds):
    """Whole nanoseconds."""
    return round(seconds * 1_000_000_000)


def bins(epochs, bin_s, keep_partial):
    """List of (start, stop, is_last_and_full, epoch index) in ns, bins that start in each epoch."""
    found = []
    for number, (start, stop) in enumerate(epochs):
        k = 0
        while True:
            low, high = ns(start + k * bin_s), ns(start + (k + 1) * bin_s)
            if low >= ns(stop):
                break
            if high > ns(stop):
                if keep_partial:
                    found.append((low, ns(stop), True, number))
                break
            found.append((low, high, high == ns(stop), number))
            k += 1
    return found


def counts(trains, epochs, bin_s, keep_partial):
    """Spike counts (bin, train): a bin has its start, the last of an epoch also its stop unless one begins there."""
    rows = bins(epochs, bin_s, keep_partial)
    begins = {ns(start) for start, _ in epochs}
    table = np.zeros((len(rows), len(trains)), int)
    for row, (low, high, last, _) in enumerate(rows):
        for column, train in enumerate(trains):
            for spike in train:
                at_end = last and ns(spike) == high and high not in begins
                table[row, column] += low <= ns(spike) < high or at_end
    return table


def exposure(epochs, bin_s):
    """Share of each bin that was recorded."""
    return np.array([(high - low) / ns(bin_s) for low, high, *_ in bins(epochs, bin_s, True)])


def lagged(values, epoch, lag):
    """Value ``lag`` bins earlier, NaN if that bin is in another epoch."""
    found = np.full(len(values), np.nan)
    for row in range(len(values)):
        source = row - lag
        if 0 <= source < len(values) and epoch[source] == epoch[row]:
            found[row] = values[source]
    return found


def convolved(values, kernels, epoch):
    """Sum over earlier bins, (bin, kernel), NaN if one of them is missing or in another epoch."""
    found = np.zeros((len(values), kernels.shape[1]))
    for b in range(kernels.shape[1]):
        for k in range(len(kernels)):
            found[:, b] += kernels[k, b] * lagged(values, epoch, k + 1)
    return found


def raised_cosines_log(n, lags, stretch=50.0):
    """Bumps over the logarithm of the lag, (lag, kernel)."""
    kernels = np.zeros((lags, n))
    last = 1 - 2 / (n + 1)
    for k in range(lags):
        at = math.log(1 + stretch * k / (lags - 1)) / math.log(1 + stretch)
        for b in range(n):
            distance = (at - last * b / (n - 1)) / (2 * last / (n - 1))
            kernels[k, b] = (1 + math.cos(math.pi * distance)) / 2 if abs(distance) < 1 else 0.0
    return kernels


def mean_in(times, values, low_s, high_s):
    """Mean of the samples in [low, high) that are not NaN, NaN if there are none."""
    inside = [v for t, v in zip(times, values) if ns(low_s) <= ns(t) < ns(high_s) and not math.isnan(v)]
    return sum(inside) / len(inside) if inside else math.nan


def cox_de_boor(x, knots, degree, i):
    """B-spline i of a degree at x by the recursion."""
    if degree == 0:
        last = x == knots[-1] and knots[i] < knots[i + 1] == knots[-1]
        return float(knots[i] <= x < knots[i + 1] or last)
    total = 0.0
    if knots[i + degree] > knots[i]:
        total += (x - knots[i]) / (knots[i + degree] - knots[i]) * cox_de_boor(x, knots, degree - 1, i)
    if knots[i + degree + 1] > knots[i + 1]:
        rest = (knots[i + degree + 1] - x) / (knots[i + degree + 1] - knots[i + 1])
        total += rest * cox_de_boor(x, knots, degree - 1, i + 1)
    return total
