# %% [markdown]
# # W-maze: place, speed, own history and coupling
#
# Hippocampal units fire in places, more so when the animal runs fast, in
# bursts, and together. All of this predicts when they fire, and much of it is
# shared: a burst tells where the animal is, and so do the spikes of another
# place cell. Leaving out one group of features at a time tells what only this
# group knows.
#
# **Question.** What do place, speed, the unit's own past and the other units
# each add to the rest, and what would coupling add by chance?
#
# **Data.** Hippocampal units of a rat on a W-shaped maze, in bins of 50 ms
# while it runs. Without the recording, place cells on such a maze are
# simulated.
#
# **What you will see**
#
# 1. contributions to held-out predictions, with groups of features that are
#    different for every unit;
# 2. a null that shifts the features of one group and leaves the others where
#    they are, because the others matter.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.model_selection import PredefinedSplit

import glmfit
from glmfit import plotting
from glmfit.design import Convolution, RaisedCosineLog
from glmfit.inference import CircularShift, explain

BIN_S = 0.05

# %% [markdown]
# ## The session
#
# Position is smoothed over half a second and scaled to the longer side of the
# maze, from -1 to 1.


# %%
def recorded_session(path):
    """Counts (time, unit) and position (time, 2)."""
    with np.load(path, allow_pickle=False) as file:
        t, first = np.unique(file["t"], return_index=True)
        xy = file["xy"][first].astype(float)
        spike_times, unit = file["spike_times"], file["unit"]
    kernel = np.hanning(31) / np.hanning(31).sum()
    xy = [np.convolve(np.pad(x, 15, "edge"), kernel, "valid") for x in xy.T]
    edges = np.arange(t[0], t[-1], BIN_S)
    xy = np.stack([np.interp(edges[:-1] + BIN_S / 2, t, x) for x in xy], axis=1)
    low, high = np.quantile(xy, [0.002, 0.998], axis=0)
    xy = 2 * (xy - (low + high) / 2) / (high - low).max()
    counts = [
        np.histogram(spike_times[unit == u], edges)[0] for u in np.unique(unit)
    ]
    return np.stack(counts, axis=1), xy


def simulated_session():
    """The same variables; bursts, and unit 0 drives unit 1."""
    rng = np.random.default_rng(17)
    n_bins, n_units = 16_000, 8
    corners = [[0, -1], [0, 0.9], [-0.9, 0.9], [-0.9, -1]]
    left = np.array([*corners, *corners[::-1]])
    lap = np.concatenate([left, left * [-1, 1]])
    along = np.cumsum(np.hypot(*np.diff(lap, axis=0).T))
    run = 0.02 * (1 + 0.5 * np.sin(np.arange(n_bins) / 37))  # per bin
    at = np.cumsum(run) % along[-1]
    xy = np.stack([np.interp(at, [0, *along], x) for x in lap.T], axis=1)
    xy += rng.normal(0, 0.002, xy.shape)
    centres = lap[rng.integers(0, len(lap), n_units)]
    centres = centres + rng.uniform(-0.3, 0.3, centres.shape)
    squared = ((xy[:, None] - centres) ** 2).sum(axis=2)
    eta = -3.5 + 2.5 * np.exp(-squared / (2 * 0.4**2))
    counts, trace = np.zeros((n_bins, n_units), int), np.zeros(n_units)
    for k in range(n_bins):
        drive = 0.25 * trace
        drive[1] += 0.5 * trace[0]
        counts[k] = rng.poisson(np.logaddexp(0, eta[k] + np.minimum(drive, 2)))
        trace = 0.5 * trace + counts[k]
    return counts, xy


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "w_maze.npz"
if path.exists():
    print("recorded session")
    counts, xy = recorded_session(path)
else:
    print("simulated session")
    counts, xy = simulated_session()

# %% [markdown]
# Only bins in which the animal runs are used. Units with few spikes then are
# excluded, and those with more than 10 spikes/s, which are interneurons or
# the spikes of many cells.

# %%
WINDOW = 5  # bins of history: 250 ms
speed = np.hypot(*np.gradient(xy, BIN_S, axis=0).T)
running = speed > 0.1
running[:WINDOW] = False  # the history is incomplete here
total = counts[running].sum(axis=0)
units = np.flatnonzero((total >= 700) & (total < 10 * BIN_S * running.sum()))
counts = counts[:, units]
print(f"{running.sum() * BIN_S:.0f} s of running, {len(units)} units")

# %% [markdown]
# ## Features
#
# Place enters through Gaussian bumps wherever the animal has been for long
# enough, speed as itself and its square root, history through two raised
# cosines of each unit. The square root of the history makes a burst count for
# less than its number of spikes.

# %%
grid = np.linspace(-1, 1, 7)
near = np.exp(-0.5 * ((xy[..., None] - grid) / (grid[1] - grid[0])) ** 2)
place = np.einsum("ti,tj->tij", near[:, 0], near[:, 1]).reshape(len(xy), -1)
place = place[:, place[running].sum(axis=0) > 400]

basis = RaisedCosineLog(
    2, window_s=WINDOW * BIN_S, bin_s=BIN_S, name="past"
).kernels
past = Convolution(counts.astype(np.uint8), basis).fetch(slice(0, len(xy)))

columns = [place, np.column_stack([speed, np.sqrt(speed)]), np.sqrt(past)]
X, y = np.column_stack(columns)[running], counts[running]
n_place, n_before = place.shape[1], place.shape[1] + 2


def groups_of(n):
    """Groups of features of a unit: its own past is apart from the others'."""
    source = np.repeat(np.arange(len(units)), basis.shape[1])
    return {
        "place": np.arange(n_place),
        "speed": np.arange(n_place, n_before),
        "own history": n_before + np.flatnonzero(source == n),
        "coupling": n_before + np.flatnonzero(source != n),
    }


# %% [markdown]
# ## What each group contributes
#
# The session is cut into twenty blocks, and every fifth is held out in turn,
# so that each fold visits the whole maze. What is the own history of one unit
# is coupling for the others: the groups differ, and units are explained one
# at a time.

# %%
fold = PredefinedSplit(np.arange(len(X)) * 20 // len(X) % 5)
model = glmfit.PopulationGLMCV(strengths=[1e-3, 1e-2, 1e-1], cv=fold)
print(model.fit(X, y).report_)
tables = {}
for n, unit in enumerate(units):
    found = explain(model, X, y[:, n], groups_of(n))
    tables[str(unit)] = found.to_frame().droplevel("neuron")
table = pd.concat(tables, names=["unit"])
names = list(groups_of(0))
for kind in ("maximal", "unique"):
    values = table["bits_per_spike"].xs(kind, level="kind").unstack("group")
    print(f"\n{kind}, bits per spike\n{values[names].round(3).to_string()}")
print(f"{table['proved'].mean():.0%} of the contributions rest on proofs")

# %% [markdown]
# In the recording, place explains most of the units. Alone, the own history of
# a place cell explains about as much, and for some units so do the others, but
# mostly because past spikes tell where the animal is. For the units that are
# predicted best, the own history adds a third of that or less to the other
# groups, and coupling next to nothing. Unit 22 follows its own history and no
# place. Speed matters little once it is above the threshold.
#
# ## Does coupling add anything?
#
# Place and history matter to most units, so shifting the counts would answer
# another question: whether the unit depends on any of the features. Here the
# coupling features alone are shifted against the rest, by at least 50 s of
# running. Nineteen shifts keep the example short; the smallest p-value is 0.05.

# %%
null = CircularShift(19, least=1000, of="features")
coupling = []
for n, unit in enumerate(units):
    only = {"coupling": groups_of(n)["coupling"]}
    found = explain(
        model, X, y[:, n], only, kinds="unique", null=null, null_strength=1e-3
    )
    coupling.append(found)
    row = found.to_frame().loc["0", "unique", "coupling"]
    print(
        f"unit {unit:>2}: {row.nats:>7.1f} ± {row.standard_error:<5.1f} nats, "
        f"p = {row.p_value:.2f} from {row.n_draws:.0f} shifts"
    )

# %% [markdown]
# In the recording, coupling adds more than any of the shifts to four of eight
# units, where 0.4 would be expected without coupling. But it adds 26 nats at
# most, and less than one nat to one of the four.
#
# ## The result in one figure
#
# Panel a: what each group explains alone, and beyond the others, a line per
# unit. Panel b: unique contributions of every unit. Panel c: the null of
# coupling for the unit whose coupling adds most.

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(10.5, 3), layout="constrained", width_ratios=[1.3, 1.2, 1]
)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
by_kind = table["bits_per_spike"].unstack("kind")
colors = (
    plotting.ORANGE,
    plotting.BLUE,
    plotting.GREEN,
    plotting.PURPLE,
)
for k, (name, color) in enumerate(zip(names, colors)):
    values = by_kind.xs(name, level="group")[["maximal", "unique"]]
    axes[0].plot([k - 0.2, k + 0.2], values.T, color=color, lw=0.7)
    axes[0].plot(k - 0.2 + 0 * values.maximal, values.maximal, "o", c=color)
    axes[0].plot(
        k + 0.2 + 0 * values.unique, values.unique, "o", c=color, mfc="white"
    )
axes[0].axhline(0, color=plotting.GREY, lw=0.8)
axes[0].set_xticks(range(len(names)), names)
axes[0].set_ylabel("bits per spike", fontsize=9)

unique = by_kind["unique"].drop("all", level="group").unstack("group")[names]
limit = unique.abs().to_numpy().max()
image = axes[1].imshow(
    unique.T, cmap="RdBu_r", vmin=-limit, vmax=limit, aspect="auto"
)
axes[1].set_xticks(range(len(units)), units)
axes[1].set_yticks(range(len(names)), names)
axes[1].set_xlabel("unit", fontsize=9)
bar = figure.colorbar(image, ax=axes[1])
bar.ax.tick_params(labelsize=8)
bar.set_label("bits per spike", fontsize=9)

most = int(np.argmax([found.statistic[1, 0] for found in coupling]))
plotting.plot_null(coupling[most], 0, group="coupling", ax=axes[2])
titles = ["alone (filled), beyond the others", "unique contributions"]
plotting.label_panels(axes, [*titles, f"coupling of unit {units[most]}"])
figure.savefig("17_explain_w_maze.png", dpi=200)
