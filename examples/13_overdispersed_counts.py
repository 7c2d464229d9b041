# %% [markdown]
# # Counts that vary more than Poisson: negative binomial place cells
#
# A place cell does not fire equally often each time the rat crosses its field.
# Its count then varies more than a Poisson count of the same mean. The places
# where it fires can still be right, but the probabilities that a Poisson model
# gives to counts are not.
#
# **Question.** Do negative binomial models predict held-out counts better than
# Poisson models with the same features, and is their distribution right?
#
# **Data.** Hippocampal units of a rat in an open field, counted in bins of
# about a quarter of a second. Without the recording, place cells whose gain
# fluctuates are simulated.
#
# **What you will see**
#
# 1. the report of a Poisson fit, which names the overdispersed units;
# 2. the gain in held-out log-likelihood, unit by unit;
# 3. the number of bins with 0, 1, 2, ... spikes against the expected one;
# 4. residuals against the predicted mean.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting

# %% [markdown]
# ## The session
#
# Eight samples of the tracker make a bin of 267 ms. Only units with at least
# 400 spikes are used.


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
    """The same variables; the gain of each unit fluctuates."""
    rng = np.random.default_rng(13)
    steps = rng.normal(0, 0.12, (5400, 2))
    xy = np.abs(np.cumsum(steps, axis=0) % 4 - 2) - 1  # walls reflect
    centres = rng.uniform(-1, 1, (24, 2))
    gain = rng.gamma(0.7, 1 / 0.7, (5400, 24))
    squared = ((xy[:, None] - centres) ** 2).sum(axis=2)
    rate = 0.05 + 2.5 * np.exp(-squared / (2 * 0.25**2))
    return rng.poisson(rate * gain).astype(float), xy


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "place_cells.npz"
if path.exists():
    print("recorded session")
    counts, xy = recorded_session(path)
else:
    print("simulated session")
    counts, xy = simulated_session()
counts = counts[:, counts.sum(axis=0) >= 400]

# %% [markdown]
# Features are Gaussian bumps on a grid of 8 by 8 places. Every fifth of 25
# blocks of time is held out.

# %%
grid = np.linspace(-1, 1, 8)
along = np.exp(-0.5 * ((xy[..., None] - grid) / (grid[1] - grid[0])) ** 2)
X = np.einsum("ti,tj->tij", along[:, 0], along[:, 1]).reshape(len(xy), -1)
block = np.arange(len(X)) * 25 // len(X)
train, test = block % 5 != 2, block % 5 == 2

# %% [markdown]
# ## Two models
#
# Both have the exponential link and the default ridge, so they differ only in
# the distribution. The report of the Poisson model states how many units vary
# more than the model assumes.

# %%
poisson = glmfit.PopulationGLM("exp").fit(X[train], counts[train])
print(poisson.report_)

# %%
model = glmfit.PopulationGLM(observation_model="NegativeBinomial")
model.fit(X[train], counts[train])
print(f"{model.report_.converged.sum()} of {counts.shape[1]} units converged")


def per_bin(model):
    """Held-out log-likelihood of each unit, nats per bin."""
    return model.score(
        X[test], counts[test], score_type="log-likelihood", per_neuron=True
    )


gain = per_bin(model) - per_bin(poisson)
print(f"{np.sum(gain > 0)} units gain, {np.median(gain):.3f} nats per bin")

# %% [markdown]
# ## The result in one figure
#
# Panel a: held-out gain of each unit against the Pearson dispersion of its
# Poisson model. Panels b and c: how many held-out bins have how many spikes,
# for the unit with the median gain and for the one with the largest. A Poisson
# model expects too few silent bins and too few bins with many spikes. The
# negative binomial model is much closer, but not perfect: in the recording,
# the unit in panel c has fewer single spikes and more bins with three to seven
# than it expects. Panel d: mean residuals of the negative binomial model
# against its predicted mean, with two standard errors. Here most bars cover 0.

# %%
figure, axes = plt.subplots(2, 2, figsize=(8.4, 6), layout="constrained")
for ax in axes.flat:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
axes[0, 0].axhline(0, color=plotting.GREY, lw=0.8)
axes[0, 0].plot(
    poisson.report_.dispersion, gain, "o", ms=4.5, mew=0, color=plotting.BLUE
)
axes[0, 0].set_xlabel("Pearson dispersion, Poisson model", fontsize=9)
axes[0, 0].set_ylabel("gain (nats per held-out bin)", fontsize=9)

order = np.argsort(gain)
median, largest = order[len(order) // 2], order[-1]
models = {"Poisson": poisson, "negative binomial": model}
for ax, n in zip(axes.flat[1:], (median, largest)):
    plotting.plot_calibration(models, X[test], counts[test], neuron=n, ax=ax)
plotting.plot_binned_residuals(
    model, X[test], counts[test], neuron=largest, n_bins=12, ax=axes[1, 1]
)
titles = ["each unit", f"unit {median}", f"unit {largest}", f"unit {largest}"]
plotting.label_panels(axes, titles)
figure.savefig("13_overdispersed_counts.png", dpi=200)
