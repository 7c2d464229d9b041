# %% [markdown]
# # Place cells on a linear track: which unit fires, and where is the rat?
#
# A softmax model gives the probabilities of several classes. Two questions
# about place cells have this form. Given the position of the rat, which unit
# fires the next spike? And given the spikes, where on the track is the rat?
#
# **Question.** How precisely do about twenty hippocampal units tell the
# position of a running rat?
#
# **Data.** A rat running back and forth on a linear track (example data of the
# nelpy package). Without the recording, place cells are simulated. The tracker
# of the recording reports pixels and the file has no scale, so positions and
# errors are percentages of the length of the track.
#
# **What you will see**
#
# 1. `spike_identities` and a softmax over units: the place fields, in one
#    model, compared with counts;
# 2. a softmax over positions, judged on runs that it was not fitted to;
# 3. how large the errors are, and how far the fits can be from their optimum.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit
from glmfit import plotting

rng = np.random.default_rng(5)

# %% [markdown]
# ## The session
#
# The track is a straight line in the image of the camera. Positions are
# projected on this line, 0 % at one end and 100 % at the other. Points far from
# it, where the tracker saw something other than the rat on the track, are
# dropped. So are units with fewer than 50 spikes.


# %%
def recorded_session(path):
    """Times (s), position along the track (%), spike times of each unit."""
    with np.load(path, allow_pickle=False) as file:
        t, xy = file["t"], file["xy"].astype(float)
        spike_times, unit = file["spike_times"], file["unit"]
    t, once = np.unique(t, return_index=True)
    start, end = np.array([139.0, 141.0]), np.array([473.0, 396.0])  # pixels
    length = np.linalg.norm(end - start)
    x, y = (end - start) / length
    along, across = ((xy[once] - start) @ np.array([[x, -y], [y, x]])).T
    on_track = np.abs(across) < 45
    t, along = t[on_track], along[on_track]
    trains = {}
    for u in np.unique(unit):
        train = np.sort(spike_times[unit == u])
        train = train[(train > t[0]) & (train < t[-1])]
        if len(train) >= 50:
            trains[int(u)] = train
    return t, 100 * along / length, trains


def simulated_session():
    """The same variables; 24 units with one place field each."""
    t = np.arange(0, 950, 1 / 30)
    swing = np.sin(2 * np.pi * t / 24 + 0.8 * np.sin(t / 40))
    along = 50 + 50 * np.clip(1.6 * swing, -1, 1)  # rests at the ends
    centres = rng.uniform(0, 100, 24)
    rate_hz = 0.2 + 8 * np.exp(-(((along[:, None] - centres) / 9) ** 2) / 2)
    drawn = rng.poisson(rate_hz / 30)
    trains = [
        np.repeat(t, n) + rng.uniform(0, 1 / 30, n.sum()) for n in drawn.T
    ]
    return t, along, {i: np.sort(train) for i, train in enumerate(trains)}


path = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = path / "linear_track.npz"
if path.exists():
    print("recorded session")
    t, along, trains = recorded_session(path)
else:
    print("simulated session")
    t, along, trains = simulated_session()
session = nap.IntervalSet(t[0], t[-1])
spikes = nap.TsGroup(
    {u: nap.Ts(train) for u, train in trains.items()}, time_support=session
)
print(f"{t[-1] - t[0]:.0f} s, {len(spikes)} units")

# %% [markdown]
# Place cells are active while the rat runs. Runs are stretches of at least 2 s
# in which the rat moves faster than 5 % of the track per second, away from the
# ends. Many place cells fire in one direction only, so the direction matters.

# %%
STEP_S = 0.1
time_s = np.arange(t[0], t[-1], STEP_S)
padded = np.pad(np.interp(time_s, t, along), 3, "edge")
position = np.convolve(padded, np.ones(7) / 7, "valid")  # smoothed over 0.7 s
velocity = np.gradient(position, STEP_S)
moving = (np.abs(velocity) > 5) & (position > 3) & (position < 97)
runs = nap.Tsd(t=time_s, d=1.0 * moving).threshold(0.5).time_support
runs = runs.drop_short_intervals(2.0)
print(f"{len(runs)} runs, {runs.tot_length():.0f} s")

# %% [markdown]
# ## Which unit fires the next spike?
#
# `spike_identities` makes one row per spike: the features at its time and the
# name of the unit. The features are Gaussian bumps along the track, a set for
# each direction. The model then is
#
# $$P(\text{unit } k \mid \text{spike at } x) =
# \frac{e^{w_k^\top \phi(x) + b_k}}{\sum_j e^{w_j^\top \phi(x) + b_j}}.$$

# %%
CENTRES = np.linspace(0, 100, 12)


def bumps(where, forward):
    """Gaussian bumps, (time, direction * bump)."""
    values = np.exp(-(((np.asarray(where)[:, None] - CENTRES) / 8) ** 2) / 2)
    forward = np.broadcast_to(forward, len(values))[:, None]
    return np.concatenate([values * forward, values * ~forward], axis=1)


features = nap.TsdFrame(t=time_s, d=bumps(position, velocity > 0))
rows, unit = glmfit.spike_identities(
    spikes, features, ep=runs, max_distance_s=STEP_S
)
identity = glmfit.SoftmaxGLM(regularizer_strength=1e-4).fit(rows, unit)
print(identity.report_)

# %% [markdown]
# The report says that the loss is at most the gap above its minimum, and how
# small this is compared with what the model explains.
#
# The upper panels show the probability of each unit relative to its maximum,
# with units in the same order. A unit with a field in one direction is bright
# in one panel only. The lower panels compare the probabilities of the five most
# informative units with the fraction of spikes counted in tenths of the track
# (bars: standard error). Note that these are probabilities given that a spike
# occurs, not rates.

# %%
grid = np.linspace(3, 97, 189)
names = identity.classes_
well = np.array([np.sum(unit.d == name) >= 50 for name in names])
share = [identity.predict_proba(bumps(grid, way)) for way in (True, False)]
largest = np.maximum(*[s.max(axis=0) for s in share])
peak = np.where(
    share[0].max(axis=0) > share[1].max(axis=0),
    share[0].argmax(axis=0),
    share[1].argmax(axis=0),
)
order = np.argsort(peak + 1e6 * ~well)[: well.sum()]

spike_position = np.interp(unit.t, time_s, position)
spike_forward = np.interp(unit.t, time_s, velocity) > 0
edges = np.linspace(0, 100, 11)
tenth = np.digitize(spike_position, edges) - 1
top = order[np.argsort(-largest[order])[:5]]
top = top[np.argsort(peak[top])]

figure, axes = plt.subplots(
    2, 2, figsize=(8.4, 6), sharex=True, sharey="row", layout="constrained"
)
colors = (
    plotting.BLUE,
    plotting.ORANGE,
    plotting.GREEN,
    plotting.PURPLE,
    plotting.RED,
)
for column, way in enumerate((True, False)):
    upper, lower = axes[:, column]
    image = upper.imshow(
        (share[column] / largest).T[order],
        aspect="auto",
        vmin=0,
        vmax=1,
        cmap="viridis",
        extent=(3, 97, len(order) - 0.5, -0.5),
        interpolation="none",
    )
    here = tenth[spike_forward == way]
    n = np.bincount(here, minlength=10)
    for k, color in zip(top, colors):
        own = unit.d[spike_forward == way] == names[k]
        counted = np.bincount(here[own], minlength=10) / np.maximum(n, 1)
        error = np.sqrt(counted * (1 - counted) / np.maximum(n, 1))
        label = f"unit {names[k]:g}" if way else None
        lower.plot(grid, share[column][:, k], color=color, lw=1.5, label=label)
        lower.errorbar(
            (edges[:-1] + edges[1:])[n >= 20] / 2,
            counted[n >= 20],
            error[n >= 20],
            fmt="o",
            ms=3,
            color=color,
            elinewidth=0.8,
        )
    lower.spines[["top", "right"]].set_visible(False)
    lower.set_xlabel("position (% of the track)", fontsize=9)
    lower.set_xlim(3, 97)
for ax in axes.flat:
    ax.tick_params(labelsize=8)
axes[0, 0].set_yticks(range(len(order)), [f"{k:g}" for k in names[order]])
axes[0, 0].tick_params(axis="y", labelsize=7)
axes[0, 0].set_ylabel("unit (sorted by its peak)", fontsize=9)
axes[1, 0].set_ylabel("probability of the unit", fontsize=9)
axes[1, 0].set_ylim(0, 1.3 * largest[top].max())
axes[1, 0].legend(frameon=False, fontsize=8, ncols=3, loc="upper left")
bar = figure.colorbar(image, ax=axes[0], aspect=18)
bar.set_label("probability / its maximum", fontsize=9)
bar.ax.tick_params(labelsize=8)
plotting.label_panels(
    axes,
    [
        "place fields, running forward",
        "place fields, running back",
        "model (lines) and counts, forward",
        "model (lines) and counts, back",
    ],
)

# %% [markdown]
# ## Where is the rat?
#
# Every 0.1 s of a run gives a row: the square roots of the spike counts within
# 0.5 s before and after. The classes are 20 bins of the track for each of the
# two directions; the probability of a position is the sum over directions.
#
# Runs are split into five groups. The position in each run is decoded by a
# model that was fitted to the other four groups of runs, so that overlapping
# rows of one run are never in both. The strength of the ridge is the default,
# which depends only on the training data.

# %%
N_PLACES, N_FOLDS, HALF_S = 20, 5, 0.5
inside = runs.in_interval(nap.Ts(time_s))  # the run of each time, or NaN
used = np.flatnonzero(np.isfinite(inside))
now, true, run = time_s[used], position[used], inside[used].astype(int)
counts = [
    np.searchsorted(train, now + HALF_S) - np.searchsorted(train, now - HALF_S)
    for train in trains.values()
]
X = np.sqrt(np.stack(counts, axis=1))
place = (true * N_PLACES / 100).astype(int)
classes = place + N_PLACES * (velocity[used] > 0)

posterior = np.zeros((len(used), 2 * N_PLACES))
gaps = []
for fold in range(N_FOLDS):
    test = run % N_FOLDS == fold
    decoder = glmfit.SoftmaxGLM().fit(X[~test], classes[~test])
    rows_of = np.flatnonzero(test)[:, None]
    posterior[rows_of, decoder.classes_] = decoder.predict_proba(X[test])
    gaps.append(decoder.report_.gap)
    assert decoder.report_.converged and decoder.report_.gap_is_bound
posterior = posterior.reshape(-1, 2, N_PLACES).sum(axis=1)
print(
    f"{len(X)} rows; five decoders converged, gap at most {max(gaps):.1e} nats"
)

# %% [markdown]
# The decoded position is the centre of the most probable bin. Two references
# show what the errors mean: a decoder that always answers with the middle of
# the track, and one whose answers belong to another moment, drawn at random.
# The error is larger in moments with fewer spikes.

# %%
centres = (np.arange(N_PLACES) + 0.5) * 100 / N_PLACES
decoded = centres[posterior.argmax(axis=1)]
error = np.abs(decoded - true)
middle = np.abs(50 - true)
shuffled = np.abs(rng.permutation(decoded) - true)
print("held-out error, % of the track   median   mean   above 20 %")
for name, e in (
    ("softmax", error),
    ("always the middle", middle),
    ("shuffled in time", shuffled),
):
    print(
        f"{name:<32} {np.median(e):6.1f} {e.mean():6.1f} {np.mean(e > 20):9.0%}"
    )

n_spikes = np.sum(counts, axis=0)
low, high = np.quantile(n_spikes, [1 / 3, 2 / 3])
for name, rows_of in (("fewest", n_spikes <= low), ("most", n_spikes >= high)):
    third = f"third of the rows with the {name} spikes"
    print(f"{third}: mean error {error[rows_of].mean():.1f} %")

# %% [markdown]
# Panel a shows consecutive held-out runs with the pauses between them removed.
# The dark band of high probability follows the rat. In panel b each column adds
# up to 100 %; positions point in the same direction as in panel a. Most answers
# lie on the diagonal, and the rare large errors are spread over the track.
# Panel c shows how often the error stays below a given value.

# %%
shown = np.flatnonzero((run >= 20) & (run < 28))
breaks = STEP_S * (np.flatnonzero(np.diff(run[shown])) + 1)
figure, axes = plt.subplot_mosaic(
    "aa;bc", figsize=(8.4, 6.4), layout="constrained"
)

ax = axes["a"]
image = ax.imshow(
    posterior[shown].T,
    origin="lower",
    aspect="auto",
    cmap="Greys",
    vmin=0,
    vmax=0.6,
    extent=(0, STEP_S * len(shown), 0, 100),
    interpolation="none",
)
clock = STEP_S * (np.arange(len(shown)) + 0.5)
for part in np.split(
    np.arange(len(shown)), np.flatnonzero(np.diff(run[shown])) + 1
):
    label = "true position" if part[0] == 0 else None
    ax.plot(
        clock[part], true[shown][part], color=plotting.RED, lw=1.5, label=label
    )
for at in breaks:
    ax.axvline(at, color=plotting.BLUE, lw=0.8, ls=":")
ax.set_xlabel("time in held-out runs, pauses removed (s)", fontsize=9)
ax.set_ylabel("position (% of the track)", fontsize=9)
ax.legend(
    frameon=False, fontsize=8, loc="lower right", bbox_to_anchor=(1, 0.99)
)
bar = figure.colorbar(image, ax=ax, extend="max", aspect=18)
bar.set_label("probability", fontsize=9)
bar.ax.tick_params(labelsize=8)

ax = axes["b"]
table = np.zeros((N_PLACES, N_PLACES))
np.add.at(table, (place, posterior.argmax(axis=1)), 1)
table *= 100 / np.maximum(table.sum(axis=1, keepdims=True), 1)
image = ax.imshow(
    table.T,
    origin="lower",
    cmap="Blues",
    vmin=0,
    vmax=60,
    extent=(0, 100, 0, 100),
)
ax.set_xlabel("true position (% of the track)", fontsize=9)
ax.set_ylabel("decoded position (% of the track)", fontsize=9)
bar = figure.colorbar(image, ax=ax, extend="max", aspect=18)
bar.set_label("% of the moments there", fontsize=9)
bar.ax.tick_params(labelsize=8)

ax = axes["c"]
for name, e, color in (
    ("softmax", error, plotting.BLUE),
    ("always the middle", middle, plotting.GREY),
    ("shuffled in time", shuffled, plotting.ORANGE),
):
    x = np.sort(e)
    ax.plot(x, 100 * np.arange(1, len(x) + 1) / len(x), color=color, label=name)
ax.set(xlim=(0, 60), ylim=(0, 100))
ax.set_xlabel("error (% of the track)", fontsize=9)
ax.set_ylabel("moments with at most this error (%)", fontsize=9)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, fontsize=8, loc="lower right")

for ax in axes.values():
    ax.tick_params(labelsize=8)
plotting.label_panels(
    list(axes.values()),
    ["posterior of eight held-out runs", "decoded against true", "errors"],
)
figure.savefig("05_softmax_linear_track.png", dpi=200)
