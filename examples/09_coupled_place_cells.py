# %% [markdown]
# # Coupled place cells: position, direction and the past of every unit
#
# A place field predicts how often a unit fires, but not exactly when. Place
# cells fire in bursts, follow the theta rhythm and fire together. A Poisson
# GLM describes all of this at once: the position and the running direction of
# the animal, and the spike history of every recorded unit, are features of
# the same model.
#
# **Question.** How much do running direction and spike history add to
# position, on held-out runs?
#
# **Data.** A rat runs back and forth on a linear track while hippocampal
# units are recorded (the example data of the package nelpy). Without the
# recording, a similar session is simulated.
#
# **What you will see**
#
# 1. four nested models, each fitted to all units, and their held-out skill;
# 2. a time-rescaling test of when the spikes occur;
# 3. history filters and couplings with 95 % intervals;
# 4. place fields, couplings and skill in one figure.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import xlogy

import glmfit
from glmfit import plotting
from glmfit.design import Convolution
from glmfit.inference import rescale_time, wald_table

BIN_S = 0.01  # bins of 10 ms

# %% [markdown]
# ## The session
#
# The tracker reports pixels. The first principal component of the track is
# the position, scaled from 0 to 1. The simulated session has the same
# variables: fourteen units with place fields and bursts, where unit 0 drives
# unit 1.


# %%
def recorded_session(path):
    """Counts (time, unit), position from 0 to 1, names of the units."""
    with np.load(path, allow_pickle=False) as file:
        t, first = np.unique(file["t"], return_index=True)
        xy = file["xy"][first].astype(float)
        spike_times, unit = file["spike_times"], file["unit"]
    on_track = np.abs(xy[:, 0] - xy[:, 1]) < 100  # the track is a diagonal
    t, xy = t[on_track], xy[on_track] - xy[on_track].mean(axis=0)
    along = xy @ np.linalg.svd(xy, full_matrices=False)[2][0]
    low, high = np.quantile(along, [0.005, 0.995])
    edges = np.arange(t[0], t[-1], BIN_S)
    scaled = np.clip((along - low) / (high - low), 0, 1)
    position = np.interp(edges[:-1] + BIN_S / 2, t, scaled)
    names = np.unique(unit)
    counts = [np.histogram(spike_times[unit == u], edges)[0] for u in names]
    return np.stack(counts, axis=1), position, [str(u) for u in names]


def simulated_session():
    """The same variables, for eight minutes of running."""
    rng = np.random.default_rng(9)
    t = np.arange(0, 480, BIN_S)
    phase = 2 * np.pi * t / 16 + 0.8 * np.sin(t / 40)
    position = 0.5 - 0.5 * np.cos(phase)
    height = np.where(np.sin(phase)[:, None] > 0, [14, 3] * 7, [3, 14] * 7)
    distance = (position[:, None] - np.linspace(0, 1, 14)) / 0.09
    log_rate = np.log(BIN_S * (0.3 + height * np.exp(-(distance**2) / 2)))
    lag = np.arange(1, 31)
    own = 0.8 * np.exp(1 - lag) - 0.3 * np.exp(-(((lag - 12) / 6) ** 2))
    drive = 0.6 * np.exp(-lag / 3)
    counts = np.zeros((len(t), 14), int)
    for k in range(30, len(t)):
        past = counts[k - 30 : k][::-1]
        eta = log_rate[k] + own @ past
        eta[1] += drive @ past[:, 0]
        counts[k] = rng.poisson(np.logaddexp(0, eta))
    return counts, position, [str(n) for n in range(14)]


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "linear_track.npz"
if path.exists():
    print("recorded session")
    counts, position, names = recorded_session(path)
else:
    print("simulated session")
    counts, position, names = simulated_session()

# %% [markdown]
# Only runs are used, and only units with at least 150 spikes during runs.
# The session is cut into 25 blocks of time, and every fifth block is held
# out: neighbouring bins are too similar for a random split.

# %%
WINDOW = 50  # bins of history: 500 ms

smooth = np.convolve(position, np.hanning(51) / np.hanning(51).sum(), "same")
velocity = np.gradient(smooth, BIN_S)
running = np.abs(velocity) > 0.03  # track lengths per second
running[:WINDOW] = False  # the history is incomplete here
forth = velocity > 0

busy = np.flatnonzero(counts[running].sum(axis=0) >= 150)
counts, names = counts[:, busy], [names[n] for n in busy]
n_bins, n_units = counts.shape
block = np.arange(n_bins) * 25 // n_bins
train, test = running & (block % 5 != 2), running & (block % 5 == 2)
print(f"{running.sum() * BIN_S:.0f} s of running, {n_units} units")

# %% [markdown]
# ## Features
#
# Position enters through 14 Gaussian bumps along the track. Direction
# doubles them: one set of bumps for each direction. The history of each unit
# enters through six raised cosines of the logarithm of the lag, narrow at
# short lags and wide at long ones, which fall to zero at 500 ms. Every unit
# sees the history of all units: its own history describes bursts, refractory
# periods and rhythm, that of another unit is a coupling.

# %%
N_PLACES, N_HISTORY = 14, 6


def place_bumps(position):
    """Gaussian bumps along the track, (time, bump)."""
    centres = np.linspace(0, 1, N_PLACES)
    return np.exp(-(((position[:, None] - centres) * N_PLACES) ** 2) / 2)


def directed_bumps(position, forth):
    """A set of bumps for each direction, and the direction itself."""
    bumps, forth = place_bumps(position), forth[:, None]
    return np.column_stack([bumps * forth, bumps * ~forth, forth])


lag = np.arange(1, WINDOW + 1)
log_lag = np.log(lag + 1)
peaks = np.linspace(log_lag[0], log_lag[-1], N_HISTORY + 2)[:N_HISTORY]
phase = (log_lag[:, None] - peaks) / (peaks[1] - peaks[0]) * np.pi / 2
basis = 0.5 * (1 + np.cos(np.clip(phase, -np.pi, np.pi)))  # (lag, function)
past = Convolution(counts.astype(np.uint8), basis).fetch(slice(0, n_bins))

directed = directed_bumps(position, forth)
designs = {
    "position": place_bumps(position),
    "+ direction": directed,
    "+ history of all units": np.column_stack([directed, past]),
}

# %% [markdown]
# ## Four models, judged on held-out runs
#
# Each model has a ridge penalty, whose strength is chosen for every unit by
# cross-validation within the training runs. The report of the largest model
# shows that each unit has converged, with a proved bound on the distance
# from the optimum.

# %%
STRENGTHS = np.geomspace(1e-5, 1e-2, 5)
models, rates = {}, {}
for name, X in designs.items():
    model = glmfit.PopulationGLMCV(strengths=STRENGTHS).fit(
        X[train], counts[train]
    )
    models[name], rates[name] = model, model.predict(X[test])
full = models["+ history of all units"]
print(full.report_)

# %% [markdown]
# Does the model need the other units, or is the history of the unit itself
# enough? The model in between has different features for each unit, so its
# units are fitted one at a time.

# %%
own_rate = np.empty((test.sum(), n_units))
for n in range(n_units):
    own = past[:, n * N_HISTORY : (n + 1) * N_HISTORY]
    X = np.column_stack([directed, own])
    model = glmfit.PopulationGLMCV(strengths=STRENGTHS)
    model.fit(X[train], counts[train, n])
    own_rate[:, n] = model.predict(X[test])
rates["+ own history"] = own_rate

# %% [markdown]
# The score is the pseudo-$R^2$, the fraction of the deviance that a model
# explains. In bins of 10 ms most of the deviance is chance, so even a perfect
# model stays far below 1. The last column counts the units that pass a
# time-rescaling test: the held-out intervals between spikes, measured in
# expected spikes, follow the distribution that the model implies.

# %%
ORDER = ["position", "+ direction", "+ own history", "+ history of all units"]


def pseudo_r2(rate):
    """Fraction of the deviance of held-out counts explained, per unit."""
    y = counts[test]
    left = xlogy(y, y / rate) - y + rate
    whole = xlogy(y, y / y.mean(axis=0)) - y + y.mean(axis=0)
    return 1 - left.sum(axis=0) / whole.sum(axis=0)


scores = {name: pseudo_r2(rates[name]) for name in ORDER}
rescaled = {name: rescale_time(counts[test], rates[name]) for name in ORDER}
print("held-out runs           median pseudo-R2  mean   units that pass")
for name in ORDER:
    score = scores[name]
    passed = np.sum(rescaled[name].statistic < rescaled[name].band())
    print(
        f"{name:<24} {np.median(score):>14.3f} {score.mean():>6.3f}"
        f" {passed:>8} of {n_units}"
    )

# %% [markdown]
# In the recording, direction matters most: many place fields exist in one
# running direction only. The history of the unit itself adds skill, and more
# units pass the test of their intervals. The history of the other units adds
# little once position, direction and the unit's own past are known. With
# position alone, more couplings seem significant (38 instead of 26 in the
# recording), because the spikes of other units tell which way the animal runs.
#
# ## When do the spikes occur?
#
# Under the model, rescaled intervals are uniform, so their cumulative
# distribution lies on the diagonal. The grey band holds 95 % of the curves of
# a correct model. The right panel shows, for each unit, the largest distance
# from the diagonal divided by the half-width of the band: below 1, the unit
# passes.

# %%
before, after = (
    rescaled[name].statistic / rescaled[name].band()
    for name in ("+ direction", "+ own history")
)
unit = int(np.argmax(before - after))
figure, axes = plt.subplots(1, 2, figsize=(7, 3), layout="constrained")
drawn = {name: rescaled[name] for name in ("+ direction", "+ own history")}
plotting.plot_time_rescaling(drawn, neuron=unit, ax=axes[0])
axes[0].set_title(f"unit {names[unit]}", fontsize=9)
top = 1.1 * max(before.max(), after.max())
axes[1].axhspan(0, 1, color=plotting.LIGHT, alpha=0.45, lw=0)
axes[1].axline((0, 0), slope=1, color=plotting.GREY, lw=0.8)
axes[1].plot(before, after, "o", ms=5, color=plotting.BLUE, mec="none")
axes[1].set(xlim=(0, top), ylim=(0, top), aspect="equal")
axes[1].set_xlabel("distance / band, + direction", fontsize=9)
axes[1].set_ylabel("distance / band, + own history", fontsize=9)
axes[1].set_title("all units", fontsize=9)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# ## History filters and couplings with intervals
#
# A filter is the basis times its coefficients, and its area, in the linear
# predictor times seconds, sums up a coupling. Both are linear combinations
# of coefficients, so `wald_table` gives their 95 % intervals. It takes a
# `PopulationGLM`, fitted here with the strengths chosen above.

# %%
X = designs["+ history of all units"]
final = glmfit.PopulationGLM(
    regularizer_strength=full.strength_, solver_name="Newton"
).fit(X[train], counts[train])
combinations = np.zeros((n_units, WINDOW + 1, X.shape[1]))
for source in range(n_units):
    first = directed.shape[1] + source * N_HISTORY
    columns = slice(first, first + N_HISTORY)
    combinations[source, :WINDOW, columns] = basis  # every lag
    combinations[source, WINDOW, columns] = BIN_S * basis.sum(axis=0)  # area
table = wald_table(
    final,
    X[train],
    counts[train],
    combinations=combinations.reshape(-1, X.shape[1]),
)
shape = (n_units, WINDOW + 1, n_units)  # (source, lag or area, target)
low, high, value = (
    x.reshape(shape) for x in (table.low, table.high, table.coef)
)
coupling = value[:, WINDOW]
clear = (low[:, WINDOW] > 0) | (high[:, WINDOW] < 0)
others = ~np.eye(n_units, dtype=bool)
print(
    f"{np.sum(clear & others)} of {others.sum()} couplings have a 95 % interval"
    f" that excludes 0; chance alone gives {0.05 * others.sum():.0f}"
)

# %% [markdown]
# An interval is a statement about this model, not about synapses, and it is
# not corrected for the number of pairs. In the simulated session only unit 0
# drives unit 1, yet many other intervals exclude 0. They are positive between
# units with fields close to each other and negative between distant ones: the
# spikes of the others stand in for what the penalised bumps miss of position.

# %% [markdown]
# The own history of the three busiest units, and the most significant
# positive coupling between two units. In the recording, a unit bursts within
# 30 ms, pauses, and fires again about one cycle of the theta rhythm (125 ms)
# after a spike. The last basis function falls to zero at 500 ms, and the
# filters are small well before: the window is long enough.

# %%
figure, axes = plt.subplots(1, 4, figsize=(10, 2.6), layout="constrained")


def draw_filter(source, target, color, ax):
    """A filter with its interval."""
    lag_ms = 1000 * BIN_S * lag
    ends = low[source, :-1, target], high[source, :-1, target]
    ax.axhline(0, color=plotting.GREY, lw=0.8)
    ax.fill_between(lag_ms, *ends, color=color, alpha=0.2, lw=0)
    ax.plot(lag_ms, value[source, :-1, target], color=color)
    ax.set_xlabel(f"time after spike of unit {names[source]} (ms)", fontsize=9)
    ax.set_title(f"to unit {names[target]}", fontsize=9)
    ax.spines[["top", "right"]].set_visible(False)


for n, ax in zip(np.argsort(-counts[train].sum(axis=0)), axes[:3]):
    draw_filter(n, n, plotting.BLUE, ax)
z = np.where(others, coupling / (high - low)[:, WINDOW], 0)
source, target = np.unravel_index(np.argmax(z), z.shape)
axes[0].set_ylabel("linear predictor", fontsize=9)
draw_filter(source, target, plotting.RED, axes[3])

# %% [markdown]
# ## The result in one figure
#
# Panels a and b: place fields of six units in either direction. Dots are
# rates counted in all runs, with standard errors; lines are the model with
# position and direction, fitted to the training runs. Panel c: the area under
# each coupling filter, with a dot where the 95 % interval excludes 0. Panel
# d: held-out skill of each unit, with position alone and with everything.

# %%
figure, axes = plt.subplots(
    1,
    4,
    figsize=(10, 3),
    layout="constrained",
    width_ratios=[1, 1, 1.4, 1.15],
)
for ax in axes:
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)

grid, edges = np.linspace(0, 1, 201), np.linspace(0, 1, 17)
field = {
    way: models["+ direction"].predict(directed_bumps(grid, np.full(201, way)))
    for way in (True, False)
}
peak = np.maximum(field[True], field[False]).max(axis=0)  # (unit,)
centre = np.maximum(field[True], field[False]).argmax(axis=0)
shown = np.argsort(-scores["+ direction"])[:6]
shown = shown[np.argsort(centre[shown])]
interval = np.digitize(position, edges[1:-1])
for ax, way in zip(axes, (True, False)):
    for row, n in enumerate(shown):
        color = plt.cm.viridis(0.9 * row / len(shown))
        height = row + 0.75 / peak[n] * field[way][:, n]
        ax.fill_between(grid, row, height, color=color, alpha=0.3, lw=0)
        ax.plot(grid, height, color=color, lw=1.5)
        for k in range(len(edges) - 1):
            y = counts[running & (forth == way) & (interval == k), n]
            if len(y) < 10:
                continue
            ax.errorbar(
                edges[k : k + 2].mean(),
                row + 0.75 / peak[n] * y.mean(),
                0.75 / peak[n] * y.std() / np.sqrt(len(y)),
                fmt="o",
                ms=2,
                color=plotting.BLACK,
                elinewidth=0.7,
            )
    ax.set(xlim=(0, 1), ylim=(-0.1, len(shown)))
    ax.set_xticks([0, 0.5, 1], ["0", "0.5", "1"])
    ax.set_xlabel("position (track lengths)", fontsize=9)
labels = [f"unit {names[n]}\n{peak[n] / BIN_S:.0f}/s" for n in shown]
axes[0].set_yticks(np.arange(len(shown)) + 0.3, labels)
axes[0].tick_params(axis="y", length=0, labelsize=7.5)
axes[0].set_ylabel("rate (peak: spikes/s)", fontsize=9)
axes[1].set_yticks([])

plotting.plot_coupling(
    np.where(others, coupling, np.nan),
    names=names,
    limit=np.abs(coupling[others]).max(),
    label="area of filter (s)",
    ax=axes[2],
)
axes[2].tick_params(labelsize=6.5, length=0)
axes[2].set_xlabel("target unit", fontsize=9)
axes[2].set_ylabel("source unit", fontsize=9)
source, target = np.nonzero(clear & others)
axes[2].plot(
    target, source, "o", ms=4, mew=0.7, mec="white", color=plotting.BLACK
)

x, y = scores["position"], scores["+ history of all units"]
low, high = min(0, x.min(), y.min()) - 0.02, 1.08 * max(x.max(), y.max())
axes[3].axline((0, 0), slope=1, color=plotting.GREY, lw=0.8)
axes[3].plot(
    x, y, "o", ms=6, color=plotting.BLUE, mec="white", mew=0.6, clip_on=False
)
axes[3].set(xlim=(low, high), ylim=(low, high))
axes[3].text(
    0.97,
    0.05,
    f"better for\n{np.sum(y > x)} of {n_units} units",
    ha="right",
    fontsize=8.5,
    transform=axes[3].transAxes,
)
axes[3].set_xlabel("held-out pseudo-$R^2$, position", fontsize=9)
axes[3].set_ylabel("+ direction and history", fontsize=9)
plotting.label_panels(
    axes,
    [
        "place fields, running →",
        "running ←",
        "couplings (dot: $p$ < 0.05)",
        f"median $R^2$ {np.median(x):.2f} → {np.median(y):.2f}",
    ],
)
figure.savefig("09_coupled_place_cells.png", dpi=200)
