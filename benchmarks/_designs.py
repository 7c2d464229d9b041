"""Seven designs of shared recordings: place, history, coupling and movement, as features and counts.

The recordings are not shipped; ``folder`` has w_maze.npz, place_cells.npz and m1_reach.npz.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np


def _clean(features, counts) -> tuple[np.ndarray, np.ndarray]:
    """Rows with known features and neurons with spikes, float32."""
    known = np.isfinite(features).all(axis=1)
    X, Y = np.asarray(features)[known].astype(np.float32), np.asarray(counts)[known].astype(np.float32)
    return X, np.ascontiguousarray(Y[:, Y.sum(axis=0) > 0])


def _maps(n_splines: int, *bounds):
    """Product of B-splines over a rectangle."""
    from nemos.basis import BSplineEval

    first, second = (BSplineEval(n_splines, bounds=b, label=label) for b, label in zip(bounds, "xy", strict=True))
    return first * second


def w_maze(folder: Path, n_splines: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Place on a W-shaped track while the animal runs, bins of 50 ms; some corners are rarely visited."""
    import pynapple as nap

    z = np.load(folder / "w_maze.npz")
    spikes = nap.TsGroup({int(u): nap.Ts(z["spike_times"][z["unit"] == u]) for u in np.unique(z["unit"])})
    place = nap.TsdFrame(t=z["t"], d=z["xy"].astype(float), columns=["x", "y"])
    speed = nap.Tsd(t=place.t, d=np.append(0, np.hypot(*np.diff(place.d, axis=0).T) / np.diff(place.t))).smooth(0.2)
    running = speed.threshold(5.0).time_support.drop_short_intervals(1.0)
    counts = spikes.count(0.05, ep=running)
    at = counts.value_from(place, ep=running).d
    return _clean(_maps(n_splines, (120, 530), (60, 530)).compute_features(at[:, 0], at[:, 1]), counts.d)


def w_maze_history(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Place on the track and the history of every neuron, four raised cosines over half a second."""
    from nemos.basis import RaisedCosineLogConv

    X, Y = w_maze(folder)
    return _clean(np.c_[X, RaisedCosineLogConv(4, window_size=10).compute_features(Y.astype(float))], Y)


def open_field(folder: Path, coupling: bool) -> tuple[np.ndarray, np.ndarray]:
    """Place in a box, or the history of every neuron."""
    from nemos.basis import RaisedCosineLogConv

    z = np.load(folder / "place_cells.npz")
    counts = z["counts"].astype(float)
    if coupling:
        return _clean(RaisedCosineLogConv(4, window_size=10).compute_features(counts), counts)
    return _clean(_maps(8, (-1, 1), (-1, 1)).compute_features(*z["xy"].T.astype(float)), counts)


def motor_cortex(folder: Path, coupling: bool) -> tuple[np.ndarray, np.ndarray]:
    """Velocity of the hand over one second, or the history of every neuron."""
    from nemos.basis import RaisedCosineLinearConv, RaisedCosineLogConv

    z = np.load(folder / "m1_reach.npz")
    counts = z["counts"].astype(float)
    if coupling:
        return _clean(RaisedCosineLogConv(3, window_size=10).compute_features(counts), counts)
    return _clean(RaisedCosineLinearConv(8, window_size=20).compute_features(z["velocity"].astype(float)), counts)


DESIGNS = {
    "w_maze_place": w_maze,
    "w_maze_place_6x6": lambda folder: w_maze(folder, 6),
    "w_maze_place_and_history": w_maze_history,
    "open_field_place": lambda folder: open_field(folder, False),
    "open_field_coupling": lambda folder: open_field(folder, True),
    "motor_cortex_velocity_lags": lambda folder: motor_cortex(folder, False),
    "motor_cortex_coupling": lambda folder: motor_cortex(folder, True),
}

_SPLINES = {"w_maze_place": 64, "w_maze_place_6x6": 36, "w_maze_place_and_history": 64, "open_field_place": 64}
_PER_SOURCE = {"motor_cortex_velocity_lags": 8, "motor_cortex_coupling": 3, "P1": 8, "P2": 8, "P512": 8, "W32": 8}


def groups(name: str, n_features: int) -> list[int]:
    """Label of every feature for a group lasso: consecutive eighths of the splines, then one per neuron or signal."""
    splines = _SPLINES.get(name, 0)
    eighths = [k for k, part in enumerate(np.array_split(np.arange(splines), 8)) for _ in part]
    first = 8 if splines else 0
    return eighths + [first + k // _PER_SOURCE.get(name, 4) for k in range(n_features - splines)]


if __name__ == "__main__":  # RECORDINGS FOLDER: writes X and Y of every design, for a machine without NeMoS
    for design, make in DESIGNS.items():
        made = make(Path(sys.argv[1]))
        np.savez_compressed(Path(sys.argv[2], f"{design}.npz"), X=made[0], Y=made[1].astype(np.uint8))
