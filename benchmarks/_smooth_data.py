"""Recordings and simulations for additive models: behaviour and counts, in bins.

The recordings are not shipped; ``folder`` has w_maze.npz, linear_track.npz, place_cells.npz and m1_reach.npz.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

BIN_S = 0.05
SLOWEST = 5.0  # of bins that count as running, units of the tracker per second


class Recording(NamedTuple):
    """Values of every bin by name, (time,), and the counts, (time, neuron); float64."""

    values: dict[str, np.ndarray]
    counts: np.ndarray

    def of(self, basis) -> tuple[np.ndarray, np.ndarray]:
        """Features of a basis whose inputs are named like the values, and counts, in bins with known features."""
        X = basis.features(*(self.values[name] for name in inputs(basis)))
        known = np.isfinite(X).all(axis=1)
        return X[known], self.counts[known]

    def part(self, n_bins: int, neurons=None) -> Recording:
        """First bins, and all neurons or some."""
        counts = self.counts[:n_bins] if neurons is None else self.counts[:n_bins, neurons]
        return Recording({name: of[:n_bins] for name, of in self.values.items()}, counts)


def inputs(basis) -> list[str]:
    """Names of the values that a basis takes, in order."""
    parts = getattr(basis, "members", None) or getattr(basis, "factors", None)
    return [name for part in parts for name in inputs(part)] if parts else [basis.name]


# ---------------------------------------------------------------------------------------- recordings


def w_maze(folder: Path) -> Recording:
    """Place and speed on a W-shaped track while the animal runs; some corners are rarely visited."""
    return _tracked(folder, "w_maze")


def linear_track(folder: Path) -> Recording:
    """Place and speed on a linear track while the animal runs; place along the track is ``along``, from 0 to 1."""
    found = _tracked(folder, "linear_track")
    at = np.array([found.values["x"], found.values["y"]])
    at = at - at.mean(axis=1, keepdims=True)
    along = np.linalg.svd(at, full_matrices=False)[2][0]
    found.values["along"] = (along - along.min()) / np.ptp(along)
    return found


def open_field(folder: Path) -> Recording:
    """Place in a box, from -1 to 1."""
    z = np.load(folder / "place_cells.npz")
    known = np.isfinite(z["xy"]).all(axis=1)
    x, y = z["xy"][known].T.astype(float)
    return Recording({"x": x, "y": y}, z["counts"][known].astype(float))


def motor_cortex(folder: Path) -> Recording:
    """Velocity of the hand 100 ms later: components, direction, and speed up to 0.3."""
    z = np.load(folder / "m1_reach.npz")
    x, y = z["velocity"][2:, :2].T.astype(float)
    values = {"vx": np.clip(x, -0.3, 0.3), "vy": np.clip(y, -0.3, 0.3), "direction": np.arctan2(y, x) % (2 * np.pi)}
    values["speed"] = np.minimum(np.hypot(x, y), 0.3)
    return Recording(values, z["counts"][:-2].astype(float))


def with_history(recording: Recording, neuron: int) -> Recording:
    """One neuron of a recording, with its own counts as the value ``history``."""
    counts = recording.counts[:, [neuron]]
    return Recording(recording.values | {"history": counts[:, 0]}, counts)


def _tracked(folder: Path, name: str) -> Recording:
    """Place, speed and counts of a tracked animal that runs, in bins of 50 ms."""
    from scipy.ndimage import gaussian_filter1d

    z = np.load(folder / f"{name}.npz")
    t, first = np.unique(z["t"], return_index=True)
    edges = np.arange(t[0], t[-1], BIN_S)
    middle = (edges[1:] + edges[:-1]) / 2
    at = np.array([np.interp(middle, t, of) for of in z["xy"][first].T.astype(float)])
    speed = np.hypot(*np.gradient(gaussian_filter1d(at, 0.2 / BIN_S, axis=1), BIN_S, axis=1))
    lost = np.diff(t)[np.clip(np.searchsorted(t, middle) - 1, 0, len(t) - 2)] > 1.0  # gaps of the tracker
    run = (speed > SLOWEST) & ~lost
    counts = [np.histogram(z["spike_times"][z["unit"] == unit], edges)[0][run] for unit in np.unique(z["unit"])]
    fastest = np.quantile(speed[run], 0.99)
    values = {"x": at[0, run], "y": at[1, run], "speed": np.minimum(speed[run], fastest)}
    return Recording(values, np.array(counts, float).T)


# --------------------------------------------------------------------------------------- simulations


def walk(n_bins: int, memory: float, rng: np.random.Generator) -> np.ndarray:
    """Autoregressive normal values of variance 1, (time,)."""
    from scipy.signal import lfilter

    burn = 2000
    return lfilter([np.sqrt(1 - memory**2)], [1, -memory], rng.normal(size=n_bins + burn))[burn:]


def place_cells(n_bins: int, n_neurons: int, rate: float, seed: int = 0) -> Recording:
    """Cells with a field in a box, modulated by speed, the phase of a rhythm, and a shared state.

    Rates are log-normal around ``rate`` per bin. ``history`` is the population's count, which reflects the state.
    """
    from scipy.stats import norm

    rng = np.random.default_rng(seed)
    x, y = (norm.cdf(walk(n_bins, 0.99, rng)) for _ in range(2))
    speed = np.minimum(np.abs(walk(n_bins, 0.95, rng)), 3)
    phase = np.cumsum(rng.normal(0.4, 0.1, n_bins)) % (2 * np.pi)
    cx, cy = rng.uniform(size=(2, n_neurons))
    near = np.exp(-((x[:, None] - cx) ** 2 + (y[:, None] - cy) ** 2) / (2 * 0.15**2))
    eta = rng.uniform(0, 2.5, n_neurons) * near + rng.normal(0, 0.3, n_neurons) * speed[:, None]
    eta += rng.uniform(0, 0.8, n_neurons) * np.cos(phase[:, None] - rng.uniform(0, 2 * np.pi, n_neurons))
    eta += rng.normal(0, 0.3, n_neurons) * walk(n_bins, 0.9, rng)[:, None]
    eta += np.log(rng.lognormal(np.log(rate), 0.8, n_neurons)) - np.log(np.exp(eta).mean(axis=0))
    counts = rng.poisson(np.minimum(np.exp(eta), 5)).astype(float)
    total = counts.sum(axis=1)
    values = {"x": x, "y": y, "speed": speed, "phase": phase, "history": (total - total.mean()) / total.std()}
    return Recording(values, counts)


def curves(n_bins: int, rate: float, seed: int) -> Recording:
    """One neuron tuned to a wave of ``position`` and the ``phase`` of a rhythm, but not to ``speed``."""
    from scipy.stats import norm

    rng = np.random.default_rng(seed)
    position, speed = norm.cdf(walk(n_bins, 0.99, rng)), np.minimum(np.abs(walk(n_bins, 0.95, rng)), 3)
    phase = np.cumsum(rng.normal(0.4, 0.1, n_bins)) % (2 * np.pi)
    eta = np.sin(7 * position) + 0.7 * np.cos(phase - 3 * position)
    counts = rng.poisson(rate * np.exp(eta) / np.exp(eta).mean()).astype(float)
    return Recording({"position": position, "speed": speed, "phase": phase}, counts[:, None])


def random_tuning(basis, n_bins: int, n_neurons: int, seed: int) -> tuple[Recording, dict, np.ndarray]:
    """Neurons with random smooth tuning, their functions by term, and rates where these are 0; 0.02 to 2 per bin.

    Functions are sums of waves that become weaker with their frequency; no spline basis represents them exactly.
    """
    from scipy.stats import norm

    rng = np.random.default_rng(seed)
    values = {name: norm.cdf(walk(n_bins, 0.9, rng)) for name in inputs(basis)}
    if "phase" in values:
        values["phase"] = np.cumsum(rng.normal(0.4, 0.1, n_bins)) % (2 * np.pi)
    truths = {}
    for name, term in basis.terms.items():
        names = inputs(term.basis)
        waves = np.array([k for k in np.ndindex(*(len(names) * (4,))) if any(k)], float)
        size = rng.normal(size=(len(waves), n_neurons)) * 0.6 / np.linalg.norm(waves, axis=1)[:, None] ** 1.5
        start = rng.uniform(0, 2 * np.pi, (len(waves), n_neurons))

        def truth(at, names=names, waves=waves, size=size, start=start):
            turns = np.array([at[n] if n == "phase" else np.pi * at[n] for n in names])
            return sum(a * np.cos((k @ turns)[:, None] + s) for k, a, s in zip(waves, size, start, strict=True))

        truths[name] = truth
    eta = sum(of(values) for of in truths.values())
    rates = np.exp(rng.uniform(np.log(0.02), np.log(2.0), n_neurons)) / np.exp(eta).mean(axis=0)
    return Recording(values, rng.poisson(rates * np.exp(eta)).astype(float)), truths, rates
