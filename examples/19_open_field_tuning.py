# %% [markdown]
# # Open field: place, running direction and speed, as smooth as each cell is
#
# Some cells have a sharp field and no interest in speed; others fire in half of
# the arena and follow the running direction. One penalty for all features is
# then too strong for one term and too weak for another. Here each term of each
# cell gets a strength of its own.
#
# **Question.** Which of place, running direction and speed matters to which
# cell, and does it matter how the strengths are chosen?
#
# **Data.** Hippocampal units of a rat in an open field, in bins of 67 ms.
# Without the recording, cells with known tuning are simulated.
#
# **What you will see**
#
# 1. strengths chosen by marginal likelihood, and effective degrees of freedom
#    of each term of each cell;
# 2. p-values of the terms, and a warning about them;
# 3. strengths chosen by cross-validation over blocks of time instead, and a
#    ridge, compared on held-out time.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import PredefinedSplit

import glmfit
from glmfit import plotting
from glmfit.design import BSpline, CyclicBSpline, product

BIN_S = 1 / 15

# %% [markdown]
# ## The session
#
# Two samples of the tracker make a bin. Direction and speed are those of the
# smoothed path: the recording has no compass on the head.


# %%
def recorded_session(path):
    """Counts (time, unit) and position (time, 2) from -1 to 1."""
    with np.load(path, allow_pickle=False) as file:
        counts, xy = file["counts"].astype(float), file["xy"].astype(float)
    known = np.isfinite(xy).all(axis=1)
    at = np.arange(len(xy))
    xy = [np.interp(at, at[known], x[known]) for x in xy.T]
    kernel = np.hanning(15) / np.hanning(15).sum()
    xy = [np.convolve(np.pad(x, 7, "edge"), kernel, "valid") for x in xy]
    n = len(at) // 2 * 2
    counts = counts[:n].reshape(-1, 2, counts.shape[1]).sum(axis=1)
    return counts, np.stack(xy, axis=1)[:n].reshape(-1, 2, 2).mean(axis=1)


def simulated_session():
    """The same variables; half of the cells follow the direction, too."""
    rng = np.random.default_rng(19)
    n_bins, n_units = 18_000, 20
    heading = np.cumsum(0.25 * rng.normal(size=n_bins))
    pace = 0.012 * (1 + 0.7 * np.sin(np.arange(n_bins) / 40))
    steps = pace[:, None] * np.column_stack([np.cos(heading), np.sin(heading)])
    xy = np.abs((np.cumsum(steps, axis=0) + 1) % 4 - 2) - 1  # walls reflect
    centres = rng.uniform(-0.9, 0.9, (n_units, 2))
    squared = ((xy[:, None] - centres) ** 2).sum(axis=2)
    eta = -3.5 + 4 * np.exp(-squared / (2 * 0.3**2))
    way = np.arctan2(*np.gradient(xy, axis=0).T[::-1])
    eta[:, ::2] += np.cos(way[:, None] - rng.uniform(0, 6, n_units // 2))
    return rng.poisson(np.logaddexp(0, eta)).astype(float), xy


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "place_cells.npz"
if path.exists():
    print("recorded session")
    counts, xy = recorded_session(path)
else:
    print("simulated session")
    counts, xy = simulated_session()

# %% [markdown]
# Bins in which the animal moves are used, and units with at least 500 spikes
# but fewer than 5 spikes/s. Every fifth of 25 blocks of time is held out.

# %%
velocity = np.gradient(xy, BIN_S, axis=0)
speed = np.hypot(*velocity.T)  # half-widths of the arena per s
direction = np.arctan2(velocity[:, 1], velocity[:, 0])
moving = (speed > 0.05) & (speed < 0.5)
total = counts[moving].sum(axis=0)
units = np.flatnonzero((total >= 500) & (total < 5 * BIN_S * moving.sum()))
y, xy = counts[moving][:, units], xy[moving]
speed, direction = speed[moving], direction[moving]
block = np.arange(len(y)) * 25 // len(y)
train, test = block % 5 != 2, block % 5 == 2
print(f"{moving.sum() * BIN_S:.0f} s of running, {len(units)} units")

# %% [markdown]
# ## Three smooth terms
#
# The map is a product of splines; the direction has cyclic splines, which join
# at a full turn. `a + b` puts terms next to each other.

# %%
x, z = BSpline(9, (-1, 1), name="x"), BSpline(9, (-1, 1), name="y")
way = CyclicBSpline(8, (-np.pi, np.pi), name="direction")
basis = product(x, z, name="place") + way + BSpline(7, (0, 0.5), name="speed")
X = basis.features(xy[:, 0], xy[:, 1], direction, speed)

model = glmfit.PopulationGAM(basis).fit(X[train], y[train])
print(model.report_)

# %% [markdown]
# ## Which term matters to which cell?
#
# `term_frame` has a row per unit and term. In the recording every unit has a
# place field, and most have a small p-value for direction or speed as well.
# Do not take these at face value: they assume that bins are independent, given
# the features. Runs through a field differ in gain, and a cell that fired more
# on one run seems to prefer the direction of that run.

# %%
table = model.term_frame()
p = table["p_value"].unstack("term")[list(model.terms_)]
print("units with p < 0.001, of", len(units))
print((p < 0.001).sum().to_string())

# %% [markdown]
# Held-out time tells more: how much worse is a model without the term?

# %%
score = model.score(X[test], y[test], per_neuron=True)
adds = {}
for name in model.terms_:
    absent = {name: np.zeros(len(units))}
    less = glmfit.PopulationGAM(basis, feature_mask=absent)
    less.fit(X[train], y[train])
    adds[name] = score - less.score(X[test], y[test], per_neuron=True)
    n_better = np.sum(adds[name] > 0)
    print(
        f"{name:<9} adds {np.median(adds[name]):.4f} to D2 (median), "
        f"more than 0 for {n_better} of {len(units)} units"
    )

# %% [markdown]
# ## Another way to choose strengths
#
# The marginal likelihood also assumes independent bins, and may make maps too
# rough if fields drift or gains change. Cross-validation takes the
# strengths that predict blocks of the training data best from the others. A
# ridge, the default of `PopulationGLM`, knows nothing of maps and curves.

# %%
folds = np.searchsorted(np.unique(block[train]), block[train]) % 5
by_folds = glmfit.PopulationGAM(
    basis, strengths="cross-validation", cv=PredefinedSplit(folds)
).fit(X[train], y[train])
ridge = glmfit.PopulationGLM().fit(X[train], y[train])
models = {
    "marginal likelihood": model,
    "cross-validation": by_folds,
    "default ridge": ridge,
}
scores = {
    name: one.score(X[test], y[test], per_neuron=True)
    for name, one in models.items()
}
for name, values in scores.items():
    print(f"{name:<20} held-out D2, mean: {values.mean():.4f}")
rough = [one.edf_["place"] for one in (model, by_folds)]
smoother = np.sum(rough[1] < rough[0])
print(f"cross-validation: smoother maps of {smoother} of {len(units)} units")

# %% [markdown]
# In the recording the three are close in the mean, and for nearly every cell.
# Cross-validation gives smoother maps, as expected where gains change from run
# to run, and predicts slightly better. The ridge has no terms, and so no
# smoothness, intervals or test for each of them.
#
# ## The result in one figure
#
# Panels a to c: the cell to which direction adds most on held-out time. Rates
# are averaged over the values that the other terms had, so that they compare
# with the rates counted (dots, and the image in the middle). Panel d: effective
# degrees of freedom of the map of each cell, chosen in both ways. Panel e:
# held-out scores.

# %%
n = int(np.argmax(adds["direction"]))
figure, axes = plt.subplots(2, 3, figsize=(9.6, 5.8), layout="constrained")
for ax in axes.flat:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
plotting.plot_terms(
    model,
    X[train],
    y[train],
    neuron=n,
    terms=["place", "direction"],
    covariates={"place": tuple(xy[train].T), "direction": direction[train]},
    bin_s=BIN_S,
    units={"direction": "rad"},
    n_bins=18,
    axes=axes[0],
)
plotting.plot_terms(
    model,
    X[train],
    y[train],
    neuron=n,
    terms="speed",
    covariates={"speed": speed[train]},
    bin_s=BIN_S,
    units={"speed": "half-widths/s"},
    n_bins=10,
    axes=axes[1, :1],
)
axes[1, 0].get_legend().remove()
pairs = {
    axes[1, 1]: (rough, "degrees of freedom"),
    axes[1, 2]: (list(scores.values())[:2], "held-out $D^2$"),
}
for ax, ((a, b), what) in pairs.items():
    high = 1.08 * max(a.max(), b.max())
    ends = min(0, a.min() - high / 30, b.min() - high / 30), high
    ax.axline((0, 0), slope=1, color=plotting.GREY, lw=0.8)
    ax.plot(a, b, "o", ms=4.5, color=plotting.BLUE, mec="white", mew=0.5)
    ax.set(xlim=ends, ylim=ends, aspect="equal")
    ax.set_xlabel(f"{what}, marginal likelihood", fontsize=9)
    ax.set_ylabel("cross-validation", fontsize=9)
titles = [f"unit {units[n]}", "", "direction", "speed", "maps", "all units"]
shown = [0, 2, 3, 4, 5]
plotting.label_panels([axes.flat[k] for k in shown], [titles[k] for k in shown])
figure.savefig("19_open_field_tuning.png", dpi=200)
