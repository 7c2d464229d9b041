# %% [markdown]
# # W-maze: smooth place fields with intervals
#
# A rate map divides spikes by time. Where the animal was for half a second, one
# spike more or less makes a hot spot, so maps are smoothed by hand, all by the
# same kernel. A smooth term learns this from the data: each neuron gets the
# smoothness under which its spikes are most likely, and its map gets intervals
# that are wide where the animal rarely was.
#
# **Question.** Where does each unit fire on the maze, how well is this known,
# and does the running speed matter, too?
#
# **Data.** Hippocampal units of a rat on a W-shaped maze, in bins of 50 ms
# while it runs. Without the recording, place cells on such a maze are
# simulated.
#
# **What you will see**
#
# 1. maps in spikes per second, next to the rates that were counted, with
#    places grey where the animal never was;
# 2. the lower and upper ends of 95 % intervals, as maps;
# 3. tuning to speed with bands for whole curves, and a test of each term.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting
from glmfit.design import BSpline, product

BIN_S = 0.05

# %% [markdown]
# ## The session
#
# Position is smoothed over half a second and scaled to the longer side of the
# maze, from 0 to 100.


# %%
def recorded_session(path):
    """Counts (time, unit) and position (time, 2), % of the longer side."""
    with np.load(path, allow_pickle=False) as file:
        t, first = np.unique(file["t"], return_index=True)
        xy = file["xy"][first].astype(float)
        spike_times, unit = file["spike_times"], file["unit"]
    kernel = np.hanning(31) / np.hanning(31).sum()
    xy = [np.convolve(np.pad(x, 15, "edge"), kernel, "valid") for x in xy.T]
    edges = np.arange(t[0], t[-1], BIN_S)
    xy = np.stack([np.interp(edges[:-1] + BIN_S / 2, t, x) for x in xy], axis=1)
    low, high = np.quantile(xy, [0.002, 0.998], axis=0)
    xy = 50 + 96 * (xy - (low + high) / 2) / (high - low).max()
    counts = [
        np.histogram(spike_times[unit == u], edges)[0] for u in np.unique(unit)
    ]
    return np.stack(counts, axis=1), xy


def simulated_session():
    """The same variables; rates rise with speed."""
    rng = np.random.default_rng(18)
    n_bins, n_units = 16_000, 8
    corners = [[0, -1], [0, 0.9], [-0.9, 0.9], [-0.9, -1]]
    left = np.array([*corners, *corners[::-1]])
    lap = np.concatenate([left, left * [-1, 1]])
    along = np.cumsum(np.hypot(*np.diff(lap, axis=0).T))
    run = 0.02 * (1 + 0.8 * np.sin(np.arange(n_bins) / 37))  # per bin
    at = np.cumsum(run) % along[-1]
    xy = np.stack([np.interp(at, [0, *along], x) for x in lap.T], axis=1)
    xy += np.cumsum(rng.normal(0, 0.004, xy.shape), axis=0) % 0.08
    centres = lap[rng.integers(0, len(lap), n_units)]
    centres = centres + rng.uniform(-0.3, 0.3, centres.shape)
    squared = ((xy[:, None] - centres) ** 2).sum(axis=2)
    eta = -4 + 4 * np.exp(-squared / (2 * 0.3**2)) + 20 * run[:, None]
    return rng.poisson(np.logaddexp(0, eta)), 50 + 46 * xy


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "w_maze.npz"
if path.exists():
    print("recorded session")
    counts, xy = recorded_session(path)
else:
    print("simulated session")
    counts, xy = simulated_session()

# %% [markdown]
# Only bins in which the animal runs are used. Places where it was for less than
# half a second in all are tracking errors. Units need 300 spikes; those with
# more than 10 spikes/s are interneurons or the spikes of many cells.

# %%
speed = np.hypot(*np.gradient(xy, BIN_S, axis=0).T)  # % of the side per s
running = np.all((xy > 0) & (xy < 100), axis=1) & (speed > 5) & (speed < 40)
square = tuple(np.clip(xy // 5, 0, 19).astype(int).T)
visits = np.zeros((20, 20))
np.add.at(visits, square, running)
running &= visits[square] * BIN_S > 0.5
total = counts[running].sum(axis=0)
units = np.flatnonzero((total >= 300) & (total < 10 * BIN_S * running.sum()))
y, xy, speed = counts[running][:, units], xy[running], speed[running]
print(f"{running.sum() * BIN_S:.0f} s of running, {len(units)} units")

# %% [markdown]
# ## Two smooth terms
#
# The map is a product of B-splines of x and y, and the speed has B-splines of
# its own. Twelve by twelve splines allow fields as narrow as a twelfth of the
# maze; the data decide how much of this a unit uses. With the exponential
# inverse link, place and speed multiply. Some units fire in one arm only. A
# plane, which the penalty of a map leaves free, could silence the rest of the
# maze completely, and `select=True` gives it a penalty as well.

# %%
place = product(
    BSpline(12, (0, 100), name="x"), BSpline(12, (0, 100), name="y"),
    name="place",
)  # fmt: skip
basis = place + BSpline(8, (5, 40), name="speed")
X = basis.features(xy[:, 0], xy[:, 1], speed)

options = {"select": True, "inverse_link_function": "exp"}
model = glmfit.PopulationGAM(basis, **options).fit(X, y)
print(model.report_)

# %% [markdown]
# Each unit has five strengths (two directions of the map, the curvature of the
# tuning to speed, and what these leave free), and a proved bound on how far its
# coefficients are from the optimum at these strengths. About the strengths
# themselves the report claims less: a local optimum.
#
# ## Do place and speed matter?
#
# `term_frame` has the effective degrees of freedom and a p-value for each term.
# The p-values assume that bins are independent, given the features. Bursts and
# drifts violate this, so only very small ones mean something. How well
# the model predicts held-out time is the other half of the answer. Here every
# fifth of 25 blocks is held out.

# %%
block = np.arange(len(y)) * 25 // len(y) % 5
train, test = block != 2, block == 2
half = glmfit.PopulationGAM(basis, **options).fit(X[train], y[train])
score = half.score(X[test], y[test], per_neuron=True)
table = model.term_frame()
edf, p = table["edf"].unstack("term"), table["p_value"].unstack("term")
print("unit spikes   edf: place  speed   p: place   speed   held-out D2")
for n, unit in enumerate(units):
    row = edf.index[n]
    print(
        f"{unit:>4} {y[:, n].sum():>6} {edf.place[row]:>12.1f} "
        f"{edf.speed[row]:>6.1f} {p.place[row]:>10.0e} {p.speed[row]:>7.0e} "
        f"{score[n]:>13.2f}"
    )

# %% [markdown]
# ## One unit, with `plot_terms`
#
# Of the four units that are predicted best, the busiest: its map, the rates
# that were counted in the same places, and its tuning to speed. Dots are
# counted rates with standard errors; the curve is averaged over the places
# where the animal was, so that both compare.

# %%
shown = np.argsort(-score)[:4]
busiest = shown[np.argmax(y[:, shown].sum(axis=0))]
axes = plotting.plot_terms(
    model,
    X,
    y,
    neuron=busiest,
    covariates={"place": (xy[:, 0], xy[:, 1]), "speed": speed},
    bin_s=BIN_S,
    units={"x": "%", "y": "%", "speed": "%/s"},
    n_bins=25,
)

# %% [markdown]
# ## The result in one figure
#
# Panels a to d: the four units that are predicted best. From top to bottom:
# rates that were counted (spikes over time); the model; the lower and the upper
# end of pointwise 95 % intervals, with speed at its mean. All maps of a unit
# have one colour scale, and places are grey where the animal never was. Where
# the lower end is still bright, there is a field. Where the upper end is bright
# and the lower one dark, the interval says little. That happens at borders, and
# in the recording in one arm where unit 10 is never seen to fire: intervals are
# symmetric on a logarithmic scale, on which a rate of nearly 0 has no clear
# value, and err on the safe side. Panel e: the factor by which the speed
# multiplies the rate of the same units, with bands for whole curves.

# %%
CELLS = 40
edges = np.linspace(0, 100, CELLS + 1)
middle = (edges[1:] + edges[:-1]) / 2
field = model.term("place", axes=(middle, middle), neuron=shown)
time_s = BIN_S * np.histogram2d(*xy.T, [edges, edges])[0]


def counted(n):
    """Spikes over time, (x, y), NaN where there is no time."""
    n_spikes = np.histogram2d(*xy.T, [edges, edges], weights=y[:, n])[0]
    return np.divide(
        n_spikes, time_s, out=np.full_like(time_s, np.nan), where=time_s > 0
    )


figure = plt.figure(figsize=(10, 6.6), layout="constrained")
left, right = figure.subfigures(1, 2, width_ratios=[3, 1])
grid = left.subplots(4, 4)
rows = ["counted", "model", "lower end", "upper end"]
for column, n in enumerate(shown):
    of = (field.rate, field.rate_low, field.rate_high)
    maps = [counted(n), *(part[..., column] / BIN_S for part in of)]
    limit = 1.2 * np.max(maps[1][time_s > 0])
    for ax, rate in zip(grid[:, column], maps):
        ax.set_facecolor("#D9D9D9")
        image = ax.imshow(
            np.where(time_s > 0, rate, np.nan).T,
            origin="lower",
            extent=(0, 100, 0, 100),
            vmin=0,
            vmax=limit,
            interpolation="nearest",
        )
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    bar = left.colorbar(
        image, ax=list(grid[:, column]), location="bottom", shrink=0.8
    )
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    bar.set_label("spikes/s", fontsize=9)
for ax, name in zip(grid[:, 0], rows):
    ax.set_ylabel(name, fontsize=9)

tuning = model.term("speed", neuron=shown)
curves = right.subplots(4, 1, sharex=True)
for column, (n, ax) in enumerate(zip(shown, curves)):
    band = tuning.low_simultaneous, tuning.high_simultaneous
    low, high = (np.exp(end[:, column]) for end in band)
    ax.fill_between(
        tuning.axes[0], low, high, color=plotting.BLUE, alpha=0.2, lw=0
    )
    ax.plot(
        tuning.axes[0], np.exp(tuning.curve[:, column]), color=plotting.BLUE
    )
    ax.axhline(1, color=plotting.LIGHT, lw=0.8, zorder=0)
    ax.set_yscale("log")
    ax.set_ylim(0.1, 10)
    ax.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    ax.minorticks_off()
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(f"unit {units[n]}", fontsize=9, loc="right")
curves[-1].set_xlabel("speed (% of the side per s)", fontsize=9)
curves[1].set_ylabel("factor of the rate", fontsize=9)
names = [f"unit {units[n]}" for n in shown]
plotting.label_panels([*grid[0], curves[0]], [*names, "speed"])
figure.savefig("18_place_fields_w_maze.png", dpi=200)
