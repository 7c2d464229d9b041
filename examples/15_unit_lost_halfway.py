# %% [markdown]
# # A unit that is lost halfway: masks instead of zeros
#
# Electrodes drift, and a unit that was isolated in the morning may be out of
# reach in the afternoon. The bins after its loss hold no spikes, but they say
# nothing about its rate either. Epochs of single units mask such bins, and all
# units are still fitted together.
#
# **Question.** How far are rate maps from those of the whole recording when
# half of the units are lost, with masks and with zeros in their place?
#
# **Data.** Hippocampal units of a rat in an open field, in bins of about a
# quarter of a second, as in the example on overdispersed counts. Every second
# unit is made to disappear somewhere in the middle. Without the recording,
# place cells are simulated.
#
# **What you will see**
#
# 1. how a loss shows: residuals against time;
# 2. one fit with epochs for the units that were lost, and what its report says;
# 3. the maps compared with those of the recording before anything was lost.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit
from glmfit import plotting

BIN_S = 8 / 30  # eight samples of the tracker


# %%
def recorded_session(path):
    """Counts (time, unit) and position (time, 2) from -1 to 1."""
    with np.load(path, allow_pickle=False) as file:
        counts, xy = file["counts"].astype(float), file["xy"].astype(float)
    n = len(xy) // 8 * 8
    counts = counts[:n].reshape(-1, 8, counts.shape[1]).sum(axis=1)
    xy = xy[:n].reshape(-1, 8, 2).mean(axis=1)
    known = np.isfinite(xy).all(axis=1)  # the tracker lost the rat elsewhere
    return counts[known], xy[known]


def simulated_session():
    """The same variables."""
    rng = np.random.default_rng(15)
    steps = rng.normal(0, 0.12, (5400, 2))
    xy = np.abs(np.cumsum(steps, axis=0) % 4 - 2) - 1  # walls reflect
    centres = rng.uniform(-1, 1, (24, 2))
    squared = ((xy[:, None] - centres) ** 2).sum(axis=2)
    rate = 0.05 + 2.5 * np.exp(-squared / (2 * 0.25**2))
    return rng.poisson(rate).astype(float), xy


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "place_cells.npz"
if path.exists():
    print("recorded session")
    counts, xy = recorded_session(path)
else:
    print("simulated session")
    counts, xy = simulated_session()
counts = counts[:, counts.sum(axis=0) >= 1000]
n_bins, n_units = counts.shape

# %% [markdown]
# ## Losing units
#
# Every second unit ends at a random time in the middle third.

# %%
time_s = BIN_S * np.arange(n_bins)
lost = np.arange(0, n_units, 2)
rng = np.random.default_rng(0)
ends = time_s[-1] * rng.uniform(1 / 3, 2 / 3, len(lost))
zeros = counts.copy()
for unit, end in zip(lost, ends):
    zeros[time_s > end, unit] = 0
epochs = {str(unit): nap.IntervalSet(0, end) for unit, end in zip(lost, ends)}
names = [str(unit) for unit in range(n_units)]
y = nap.TsdFrame(t=time_s, d=zeros, columns=names)


def bumps(xy):
    """Gaussian bumps on a grid of 8 by 8 places, (row, bump)."""
    grid = np.linspace(-1, 1, 8)
    near = np.exp(-0.5 * ((xy[..., None] - grid) / (grid[1] - grid[0])) ** 2)
    return np.einsum("ti,tj->tij", near[:, 0], near[:, 1]).reshape(len(xy), -1)


X = nap.TsdFrame(t=time_s, d=bumps(xy))

# %% [markdown]
# ## Three fits
#
# The first is the reference: all counts, before anything was lost. The second
# treats the zeros as counts, and the third is given the epochs. The report of
# the third states how much is masked.

# %%
whole = glmfit.PopulationGLM("exp").fit(X, counts)
naive = glmfit.PopulationGLM("exp").fit(X, y)
masked = glmfit.PopulationGLM("exp").fit(X, y, epochs=epochs)
print(masked.report_)

# %% [markdown]
# Maps are compared where the rat was for at least two seconds: the root mean
# square of the difference of log rates, over places. With masks the maps rest
# on half of the data, and the difference is what half of the data, and drift,
# do to any map. With zeros it is larger for every unit, and not random: rates
# are too low.

# %%
middle = np.linspace(-0.95, 0.95, 20)
places = np.stack(np.meshgrid(middle, middle), axis=-1).reshape(-1, 2)
edges = np.linspace(-1, 1, 21)
occupancy = BIN_S * np.histogram2d(xy[:, 1], xy[:, 0], [edges, edges])[0]
visited = occupancy.ravel() >= 2  # s
maps = {
    name: model.predict(bumps(places)) / BIN_S
    for name, model in (("whole", whole), ("masked", masked), ("zeros", naive))
}


def log_ratio(name):
    """Log rate less that of the whole recording, (place, lost unit)."""
    ratio = maps[name][visited] / maps["whole"][visited]
    return np.log(ratio[:, lost])


rms = {n: np.sqrt(np.mean(log_ratio(n) ** 2, axis=0)) for n in maps}
bias = {n: np.mean(log_ratio(n), axis=0) for n in maps}
for name in ("masked", "zeros"):
    print(
        f"{name:<7} difference {np.median(rms[name]):.2f}, "
        f"mean {np.median(bias[name]):+.2f} (median of {len(lost)} units)"
    )

# %% [markdown]
# ## The result in one figure
#
# Panel a: residuals of the fit with zeros, for the best tuned of the lost
# units; the line marks its loss. Panels b to d: its maps, in spikes per second;
# grey places were hardly visited. Panels e and f: every unit that was lost.

# %%
k = np.argmax(whole.report_.pseudo_r2[lost])
unit = lost[k]
figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.6), layout="constrained")
for ax in axes.flat:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
ax = plotting.plot_binned_residuals(
    naive, X, y, neuron=unit, against="time", ax=axes[0, 0]
)
ax.axvline(ends[k], color=plotting.RED, lw=1, ls="--")
top = np.quantile(maps["whole"][visited, unit], 0.99)
words = ["whole recording", "masked", "zeros"]
for ax, name in zip(axes.flat[1:4], maps):
    drawn = np.where(visited, maps[name][:, unit], np.nan).reshape(20, 20)
    ax.set_facecolor(plotting.LIGHT)
    image = ax.imshow(
        drawn, origin="lower", extent=(-1, 1, -1, 1), vmin=0, vmax=top
    )
    ax.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1])
    ax.set_xlabel("x", fontsize=9)
    ax.set_ylabel("y", fontsize=9)
bar = figure.colorbar(image, ax=axes.flat[3], extend="max")
bar.set_label("rate (spikes/s)", fontsize=9)
for ax, (what, of) in zip(
    axes.flat[4:], {"difference": rms, "mean difference": bias}.items()
):
    ends_of_axis = [min(0, of["zeros"].min(), of["masked"].min()), 0]
    ends_of_axis[1] = max(0, of["zeros"].max(), of["masked"].max())
    ax.plot(ends_of_axis, ends_of_axis, color=plotting.GREY, lw=0.8)
    ax.plot(of["masked"], of["zeros"], "o", ms=4.5, mew=0, color=plotting.BLUE)
    ax.set_xlabel(f"{what} of log rates, masked", fontsize=9)
    ax.set_ylabel(f"{what}, zeros", fontsize=9)
titles = [f"unit {unit}", *words, "each lost unit", "each lost unit"]
plotting.label_panels(axes, titles)
figure.savefig("15_unit_lost_halfway.png", dpi=200)
