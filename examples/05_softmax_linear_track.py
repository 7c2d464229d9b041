"""Place cells on a linear track, two softmax models: where is the animal, and which unit fired.

Given the spikes of half a second, in which part of the track is the animal? Given where it is, whose spike is
the next? Both are softmax models, over places and over units. You will see

1. decoding position with ``SoftmaxGLM``: labels are bins of the track, probabilities are the posterior;
2. ``spike_identities``: one row per spike, and the softmax over units beside what was counted;
3. the report: exact solvers say how far from the optimum they are, at most.

Run it with ``python examples/05_softmax_linear_track.py [figure.png] [linear_track.npz or simulated]``. The recording
(nelpy's example data: fields t, xy, spike_times, unit) is not shipped. Where none is named it is looked for in
../shared/data beside the checkout; where that is not, a session like it is simulated.
"""

import sys
from pathlib import Path

import numpy as np
import pynapple as nap

import glmfit
from glmfit import plotting

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


beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "linear_track.npz"
given = sys.argv[2] if len(sys.argv) > 2 else beside if beside.exists() else "simulated"
t, along, trains = simulated_session() if given == "simulated" else recorded_session(given)
print(f"session: {'simulated' if given == 'simulated' else 'recorded'}, {t[-1] - t[0]:.0f} s, {len(trains)} units")
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

# --- Figure. Above: the posterior over places in held-out runs, the longest six joined, and which places are confused.
# Below: whose spikes come where, of all units (those with few spikes are left out) and of five beside what was counted.
axes = plotting.new_axes((1.5, 1), (1, 1), size=(8.4, 6.2))
true = counts.value_from(place).d[later]
runs = np.split(np.arange(later.sum()), np.flatnonzero(np.diff(counts.t[later]) > 1.5 * BIN_S) + 1)
longest = sorted(sorted(runs, key=len)[-6:], key=lambda run: run[0])
show = np.concatenate(longest)
plotting.plot_decoded(
    (np.arange(len(show)) + 0.5) * BIN_S, posterior[show], (decoder.classes_ + 0.5) / N_PLACES, true[show],
    breaks=BIN_S * np.cumsum([len(run) for run in longest])[:-1], limit=0.6, ylabel="place along the track",
    ax=axes[0, 0],
)  # fmt: skip
axes[0, 0].set_xlabel("held-out running time, pauses cut (s)", fontsize=9)
best = decoder.classes_[np.argmax(posterior, axis=1)]
plotting.plot_confusion(
    labels[later] // 2, best // 2, range(N_PLACES // 2), colorbar=True, numbers=False, ax=axes[0, 1]
)
axes[0, 1].set_xlabel("decoded twelfth of the track", fontsize=9)
axes[0, 1].set_ylabel("true twelfth", fontsize=9)

grid = np.linspace(0, 1, 100)
share = identity.predict_proba(np.exp(-(((grid[:, None] - centres) / 0.08) ** 2) / 2))
enough = np.flatnonzero([np.sum(unit.d == name) >= 100 for name in identity.classes_])
enough = enough[np.argsort(np.argmax(share[:, enough], axis=0), kind="stable")]
relative = share[:, enough] / share[:, enough].max(axis=0)
extent = (0, 1, len(enough) - 0.5, -0.5)
image = axes[1, 0].imshow(relative.T, vmin=0, aspect="auto", cmap="magma", extent=extent, interpolation="none")
bars = {axes[0, 0]: (axes[0, 0].images[0], "probability"), axes[1, 0]: (image, "share of the unit's largest")}
for ax, (drawn, words) in bars.items():
    bar = ax.figure.colorbar(drawn, ax=ax, shrink=0.8, aspect=18, extend="max" if ax is axes[0, 0] else "neither")
    bar.ax.tick_params(labelsize=8, length=2)
    bar.set_label(words, fontsize=9)
    bar.outline.set_visible(False)
axes[1, 0].set_yticks(range(len(enough)), [f"{identity.classes_[k]:g}" for k in enough], fontsize=6.5)
axes[1, 0].set_xlabel("place along the track", fontsize=9)
axes[1, 0].set_ylabel("unit", fontsize=9)
at_spike = spikes.count(1 / 30, ep=running)
where = np.minimum((at_spike.value_from(place).d * 12).astype(int), 11)
counted = np.array([at_spike.d[where == k].sum(axis=0) for k in range(12)], float)
counted /= np.maximum(counted.sum(axis=1, keepdims=True), 1)
busiest = np.argsort(-share.max(axis=0))[:5]
for color, k in zip(("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9"), busiest, strict=True):
    own = counted[:, list(spikes).index(identity.classes_[k])]
    axes[1, 1].plot(grid, share[:, k], color=color, lw=1.4, label=f"unit {identity.classes_[k]:g}")
    axes[1, 1].plot((np.arange(12) + 0.5) / 12, own, "o", ms=3.5, color=color)
axes[1, 1].set_ylim(0, 1.35 * share.max())
axes[1, 1].set_xlabel("place along the track", fontsize=9)
axes[1, 1].set_ylabel("share of the spikes", fontsize=9)
axes[1, 1].legend(frameon=False, fontsize=7.5, ncols=2)
titles = ["posterior over places", "% of each place decoded as", "whose spike is the next?"]
plotting.label_panels(axes, [*titles, "model, and counted (dots)"])
path = sys.argv[1] if len(sys.argv) > 1 else "05_softmax_linear_track.png"
axes[0, 0].figure.savefig(path, dpi=150)
print(f"\nfigure: {path}")
