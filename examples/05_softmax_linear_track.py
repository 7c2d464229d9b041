"""Place cells on a linear track, two softmax models: where is the animal, and which unit fired.

Given the spikes of half a second, in which part of the track is the animal? Given where it is, whose spike is
the next? Both are softmax models, over places and over units. You will see

1. decoding position with ``SoftmaxGLM``: labels are bins of the track, probabilities are the posterior;
2. ``spike_identities``: one row per spike, and the softmax over units beside what was counted;
3. the report: exact solvers say how far from the optimum they are, at most.

Run it with ``python examples/05_softmax_linear_track.py [figure.png] [linear_track.npz]``. The recording (nelpy's
example data: fields t, xy, spike_times, unit) is not shipped; without a file a session like it is simulated.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit

BIN_S, N_PLACES = 0.5, 24
rng = np.random.default_rng(5)


def simulated_session():
    """Half an hour of runs to and fro, and thirty units with a place field each: position (0 to 1), spikes."""
    t = np.arange(0, 1800, 1 / 30)
    place = 0.5 - 0.5 * np.cos(2 * np.pi * t / 24 + 0.8 * np.sin(t / 40))
    rate_hz = 0.05 + 9 * np.exp(-(((place[:, None] - rng.uniform(0, 1, 30)) / 0.08) ** 2) / 2)
    drawn = rng.poisson(rate_hz / 30)
    trains = [np.repeat(t, n) + rng.uniform(0, 1 / 30, n.sum()) for n in drawn.T]
    return t, place, {i: np.sort(train) for i, train in enumerate(trains)}


def recorded_session(path):
    """Position along the track (0 to 1) and spikes of units with at least 100 of them."""
    with np.load(path, allow_pickle=False) as file:
        t, xy, times, unit = file["t"], file["xy"].astype(float), file["spike_times"], file["unit"]
    t, once = np.unique(t, return_index=True)
    xy = xy[once]
    on_track = np.abs(xy[:, 0] - xy[:, 1]) < 100  # a diagonal; at the end the tracker rests elsewhere
    t, xy = t[on_track], xy[on_track]
    along = (xy - xy.mean(axis=0)) @ np.linalg.svd(xy - xy.mean(axis=0), full_matrices=False)[2][0]
    low, high = np.quantile(along, [0.005, 0.995])
    trains = {int(u): np.sort(times[unit == u]) for u in np.unique(unit)}
    return t, np.clip((along - low) / (high - low), 0, 1), {u: s for u, s in trains.items() if len(s) >= 100}


given = Path(sys.argv[2]) if len(sys.argv) > 2 else None
t, along, trains = recorded_session(given) if given else simulated_session()
print("session:", "recorded" if given else "simulated", f"{t[-1] - t[0]:.0f} s, {len(trains)} units")
session = nap.IntervalSet(t[0], t[-1])
spikes = nap.TsGroup({u: nap.Ts(s) for u, s in trains.items()}, time_support=session)
place = nap.Tsd(t=t, d=along, time_support=session)
# While it sits at the ends, the animal's place cells say little: keep the runs.
seconds = np.arange(session.start[0], session.end[0], 0.1)
speed = np.abs(np.gradient(np.convolve(np.interp(seconds, t, along), np.ones(5) / 5, "same"), 0.1))
running = nap.Tsd(t=seconds, d=speed, time_support=session).threshold(0.02).time_support.drop_short_intervals(1.0)

# --- 1. Where is the animal? Features are roots of spike counts, labels are bins of the track.
counts = spikes.count(BIN_S, ep=running)
labels = np.minimum((counts.value_from(place).d * N_PLACES).astype(int), N_PLACES - 1)
cut = counts.t[int(0.7 * len(counts))]
first, later = counts.t < cut, counts.t >= cut
X = np.sqrt(counts.d)
decoder = glmfit.SoftmaxGLM(regularizer_strength=3e-3).fit(X[first], labels[first])
print(f"\nwhere is the animal ({N_PLACES} places)\n{decoder.report_}")
posterior = decoder.predict_proba(X[later])
decoded = posterior @ ((decoder.classes_ + 0.5) / N_PLACES)
error = np.abs(decoded - counts.value_from(place).d[later])
print(f"held out: median error {np.median(error):.3f} of the track, top-3 places right "
      f"{np.mean((decoder.top_k(X[later], 3)[0] == labels[later, None]).any(axis=1)):.2f}")  # fmt: skip

# --- 2. Which unit fired? One row per spike; features are bumps along the track.
centres = np.linspace(0, 1, 12)
bumps = np.exp(-(((along[:, None] - centres) / 0.08) ** 2) / 2)
features = nap.TsdFrame(t=t, d=bumps, time_support=session)
rows, unit = glmfit.spike_identities(spikes, features, ep=running, max_distance_s=0.2)
identity = glmfit.SoftmaxGLM(regularizer_strength=1e-4).fit(rows, unit)
print(f"\nwhich unit fired\n{identity.report_}")

# --- Figure: the posterior over places in held-out time, and shares of spikes along the track.
figure, axes = plt.subplots(1, 2, figsize=(7.2, 3.0), layout="constrained", width_ratios=[1.5, 1])
# The longest run of held-out bins without a pause.
when = counts.t[later]
pauses = np.flatnonzero(np.diff(when) > 1.5 * BIN_S) + 1
runs = np.split(np.arange(len(when)), pauses)
show = np.concatenate(sorted(runs, key=len)[-6:])
show.sort()
image = np.zeros((len(show), N_PLACES))
image[:, decoder.classes_] = posterior[show]
axes[0].imshow(image.T, origin="lower", aspect="auto", cmap="Greys", vmax=0.6, extent=(0, len(show) * BIN_S, 0, 1))
axes[0].plot((np.arange(len(show)) + 0.5) * BIN_S, counts.value_from(place).d[later][show], color="#D55E00", lw=1.2)
axes[0].set(xlabel="held-out running time (s)", ylabel="place along the track", title="posterior; orange: the animal")

grid = np.linspace(0, 1, 100)
share = identity.predict_proba(np.exp(-(((grid[:, None] - centres) / 0.08) ** 2) / 2))
at_spike = spikes.count(1 / 30, ep=running)
where = np.minimum((at_spike.value_from(place).d * 12).astype(int), 11)
counted = np.array([at_spike.d[where == k].sum(axis=0) for k in range(12)], float)
counted /= np.maximum(counted.sum(axis=1, keepdims=True), 1)
busiest = np.argsort(-share.max(axis=0))[:5]
for colour, k in zip(("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"), busiest, strict=True):
    axes[1].plot(grid, share[:, k], color=colour, label=f"unit {identity.classes_[k]}")
    axes[1].plot(
        (np.arange(12) + 0.5) / 12, counted[:, list(spikes).index(identity.classes_[k])], "o", ms=3, color=colour
    )
axes[1].set(xlabel="place along the track", ylabel="share of the spikes", title="model, and counted (dots)")
axes[1].legend(frameon=False, fontsize=7)
for ax in axes:
    ax.title.set_fontsize(9)
    ax.spines[["top", "right"]].set_visible(False)
path = sys.argv[1] if len(sys.argv) > 1 else "05_softmax_linear_track.png"
figure.savefig(path, dpi=200)
print(f"\nfigure: {path}")
