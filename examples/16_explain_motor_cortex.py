# %% [markdown]
# # Motor cortex: lags, speed, and what other neurons already know
#
# Spikes in motor cortex follow the velocity of the hand, its speed, and the
# activity of other neurons. These are correlated: fast reaches come with
# high activity everywhere. Models that lack one group of features at a time
# tell what only this group explains, and models of one group alone tell what
# it explains at most.
#
# **Question.** How much do the coming movement, the past movement, the speed
# and the other neurons each explain, alone and beyond all the rest?
#
# **Data.** Macaque motor cortex during reaching, in bins of 50 ms (Stevenson
# et al., 2011): ten busy neurons are explained, and the others make up the
# population. Without the recording, a similar session is simulated.
#
# **What you will see**
#
# 1. a likelihood ratio test that warns that its p-values are too small;
# 2. contributions to held-out predictions, with strengths chosen inside the
#    training folds;
# 3. p-values from counts that are shifted in time.

# %%
import os
import warnings
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting
from glmfit.inference import CircularShift, drop_groups, explain

BIN_S = 0.05

# %% [markdown]
# ## The recording


# %%
def recorded_session(path):
    """Counts (time, neuron), velocity (time, 2) in m/s."""
    with np.load(path, allow_pickle=False) as file:
        return file["counts"].astype(float), file["velocity"][:, :2].astype(
            float
        )


def simulated_session():
    """The same variables; spikes lead movements by 100 ms and share a drive."""
    rng = np.random.default_rng(16)
    n_bins, n_neurons = 8000, 60
    kernel = np.exp(-0.5 * (np.arange(-12, 13) / 4) ** 2)
    noise = rng.normal(size=(3, n_bins))
    smooth = np.stack([np.convolve(x, kernel, "same") for x in noise], axis=1)
    smooth /= smooth.std(axis=0)
    velocity, drive = 0.08 * smooth[:, :2], smooth[:, 2]
    angle = rng.uniform(0, 2 * np.pi, n_neurons)
    eta = 5 * velocity @ np.stack([np.cos(angle), np.sin(angle)])
    eta += 3 * np.linalg.norm(velocity, axis=1)[:, None]
    eta = np.roll(eta, -2, axis=0) + 0.3 * drive[:, None]
    rate = np.exp(eta + np.log(rng.uniform(5, 20, n_neurons) * BIN_S))
    return rng.poisson(rate).astype(float), velocity


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "m1_reach.npz"
if path.exists():
    print("recorded session")
    counts, velocity = recorded_session(path)
else:
    print("simulated session")
    counts, velocity = simulated_session()
n_bins = len(counts)
explained = np.sort(np.argsort(-counts.sum(axis=0))[:10])
others = np.setdiff1d(np.arange(counts.shape[1]), explained)
print(f"{n_bins * BIN_S / 60:.0f} minutes, {len(others)} other neurons")

# %% [markdown]
# ## Groups of features
#
# The coming movement is the velocity 0 to 300 ms after the spike, the past
# movement that 100 and 200 ms before it. Speed enters at the same lags. The
# other neurons enter through ten principal components of their smoothed past
# spike counts, which are the same for all explained neurons and contain none
# of them.


# %%
def at_lags(signal, lags):
    """Values of a signal this many bins later, (time, lag * column)."""
    return np.column_stack([np.roll(signal, -lag, axis=0) for lag in lags])


COMING, PAST, WINDOW = [0, 2, 4, 6], [-2, -4], 10
speed = np.linalg.norm(velocity, axis=1)
decay = np.exp(-np.arange(1, WINDOW + 1) / 3)
past = sum(
    weight * np.roll(counts[:, others], lag + 1, axis=0)
    for lag, weight in enumerate(decay)
)
past = (past - past.mean(axis=0)) / (past.std(axis=0) + 1e-9)
left, size, _ = np.linalg.svd(past, full_matrices=False)
population = left[:, :10] * np.sqrt(n_bins)

parts = {
    "coming movement": at_lags(velocity, COMING),
    "past movement": at_lags(velocity, PAST),
    "speed": at_lags(speed, COMING + PAST),
    "population": population,
}
groups, n_columns = {}, 0
for name, part in parts.items():
    groups[name] = range(n_columns, n_columns + part.shape[1])
    n_columns += part.shape[1]
complete = slice(WINDOW, n_bins - max(COMING))  # lags stay in the recording
X = np.column_stack(list(parts.values()))[complete]
y = counts[complete][:, explained]

# %% [markdown]
# ## A test that warns
#
# The likelihood ratio test compares a fit with one that lacks a group. It
# assumes that bins are independent, given the features. The residuals of these
# neurons are autocorrelated, and `drop_groups` warns about it. It is unclear
# whether the tiny p-values below mean anything.

# %%
model = glmfit.PopulationGLM(regularizer_strength=1e-6).fit(X, y)
print(model.report_)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    dropped = drop_groups(model, X, y, groups)
for warning in told:
    print(warning.message)
table = dropped.to_frame()["p_value"].unstack("group")[list(groups)]
print("\nneurons with p < 0.001, likelihood ratio test")
print((table < 0.001).sum().to_string())

# %% [markdown]
# ## Contributions to held-out predictions
#
# Five blocks of the session are held out in turn. The strength of the ridge is
# chosen for every model and neuron inside the other blocks. The null shifts
# the counts in a circle by at least 10 s, which keeps how they vary and breaks
# their relation to the features. Nineteen shifts keep this example short, and
# the smallest possible p-value is 0.05.

# %%
cv_model = glmfit.PopulationGLMCV(strengths=[1e-6, 1e-5, 1e-4])
found = explain(
    cv_model,
    X,
    y,
    groups,
    null=CircularShift(19, least=200),
    null_strength=1e-5,
)
print(found)

# %% [markdown]
# The table has a row per neuron and contribution. Means over neurons, in bits
# per spike, show how much the groups have in common: what a group explains
# alone is several times what it adds to all others.

# %%
frame = found.to_frame()
means = frame["bits_per_spike"].groupby(["kind", "group"]).mean()
chance = (frame["p_value"] <= 0.05).groupby(["kind", "group"]).sum()
print("bits per spike, mean      maximal   unique    unique beyond chance")
for name in groups:
    beyond = f"{chance['unique', name]} of {len(explained)}"
    print(
        f"  {name:<20} {means['maximal', name]:>9.4f} "
        f"{means['unique', name]:>9.4f} {beyond:>16}"
    )

# %% [markdown]
# In the recording the shifted counts confirm what the likelihood ratio test
# found: even the past movement, which hardly matters, adds more to the rest
# than chance does in nine of ten neurons. The other neurons explain most. But
# two thirds of what they explain alone, and four fifths of what the speed
# explains alone, are shared with other groups.
#
# ## One neuron
#
# All about the neuron that the features predict best: contributions with
# standard errors, the gain of every fold, the strengths that were chosen, and
# where the recording lies among the shifted counts.

# %%
best = int(np.nanargmax(found.d2[0]))
axes = plotting.plot_explained_neuron(found, best, unit="bits per spike")

# %% [markdown]
# ## The result in one figure
#
# Panel a: unique contributions; a dot marks neurons for which the shifted
# counts never reach as much. Panel b: unique against maximal contributions of
# all groups. On the diagonal a group would share nothing with the others.
# Panel c: the null of one group and neuron.

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(10.5, 3), layout="constrained", width_ratios=[1.5, 1.1, 1]
)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
plotting.plot_contributions(found, unit="bits per spike", level=0.1, ax=axes[0])
plotting.plot_unique_against_maximal(
    found, unit="bits per spike", level=0.1, ax=axes[1]
)
plotting.plot_null(found, best, group="speed", ax=axes[2])
titles = ["unique contributions", "all neurons", f"neuron {best}, speed"]
plotting.label_panels(axes, titles)
figure.savefig("16_explain_motor_cortex.png", dpi=200)
