# %% [markdown]
# # All stimuli by all neurons: completing a sparse experiment
#
# An experiment has 400 stimuli, but a session has time for only 40 of them,
# and each session records other neurons. How would every neuron respond to
# every stimulus? The data of a single neuron are 40 stimuli, shown twice. But
# neurons are similar: their tuning combines a few directions in the space of
# stimulus features, and these directions can be learned from all sessions
# together.
#
# **Question.** How well can the responses to pairs of stimulus and neuron that
# were never recorded be predicted?
#
# **Data.** Twenty simulated sessions of thirty neurons each, so that the truth
# about unrecorded pairs is known.
#
# **What you will see**
#
# 1. `ResponseModel` fitted to blocks of sessions: stimuli are described by
#    their features, neurons by their responses;
# 2. the strength of the ridge and the weight of unrecorded pairs, chosen on
#    held-out pairs;
# 3. the completed table, compared with a GLM per neuron and with the truth.

# %%
import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting

# %% [markdown]
# ## The experiment
#
# Stimuli have 30 features $x_i$. Each neuron $j$ responds to a mixture of the
# same four combinations of features, with the expected count
# $\mathrm{softplus}(x_i^\top Q\,t_j + b_j)$, where the four columns of $Q$ are
# shared and the tuning $t_j$ belongs to the neuron.

# %%
N_STIMULI, N_FEATURES, N_TUNED = 400, 30, 4
N_SESSIONS, PER_SESSION, SHOWN, REPEATS = 20, 30, 40, 2
rng = np.random.default_rng(7)

n_neurons = N_SESSIONS * PER_SESSION
features = rng.normal(size=(N_STIMULI, N_FEATURES))
Q = np.linalg.qr(rng.normal(size=(N_FEATURES, N_TUNED)))[0]
combinations = features @ Q
tuning = rng.normal(size=(N_TUNED, n_neurons))
baseline = rng.normal(-0.5, 0.8, n_neurons)
rate = np.logaddexp(0, combinations @ tuning + baseline)  # (stimulus, neuron)

# %% [markdown]
# Each session is a triple: which stimulus each trial showed, which neurons
# were recorded, and the spike counts (trial, neuron).

# %%
sessions = []
seen = np.zeros(rate.shape, bool)
for s in range(N_SESSIONS):
    shown = rng.choice(N_STIMULI, SHOWN, replace=False)
    stimuli = np.tile(shown, REPEATS)
    neurons = np.arange(PER_SESSION) + s * PER_SESSION
    counts = rng.poisson(rate[np.ix_(stimuli, neurons)])
    sessions.append((stimuli, neurons, counts))
    seen[np.ix_(shown, neurons)] = True
print(f"{seen.mean():.0%} of {N_STIMULI} x {n_neurons} pairs recorded")

# %% [markdown]
# ## One model for all sessions
#
# Six components are more than the truth has; the ridge removes the excess.
# The problem is not convex, so there is no bound on the distance from the
# global optimum. The report says what can be proved: the fit is a stationary
# point, and how little changing one side alone could still gain.

# %%
model = glmfit.ResponseModel(
    n_components=6,
    regularizer_strength=(1, 3, 10),
    imputation_weight="auto",
)
model.fit(features, None, sessions)
together = model.predict()  # expected counts, (stimulus, neuron)
print(model.report_)

# %% [markdown]
# ## A GLM per neuron, for comparison
#
# It sees the trials of that neuron alone: 80 trials for 30 features, with the
# ridge strength chosen by cross-validation.

# %%
alone = np.empty(rate.shape)
for stimuli, neurons, counts in sessions:
    glm = glmfit.PopulationGLMCV(strengths=np.logspace(-2, 1, 5), cv=4)
    glm.fit(features[stimuli], counts)
    alone[:, neurons] = glm.predict(features)


def explained(predicted, pairs):
    """Fraction of the variance of the true rates explained, per neuron."""
    error = np.where(pairs, (predicted - rate) ** 2, 0).sum(axis=0)
    mean = np.where(pairs, rate, 0).sum(axis=0) / pairs.sum(axis=0)
    return 1 - error / np.where(pairs, (rate - mean) ** 2, 0).sum(axis=0)


by_model, by_glm = explained(together, ~seen), explained(alone, ~seen)
print("variance of the true rates explained, unrecorded pairs (median)")
print(f"  all sessions together {np.median(by_model):.2f}")
print(f"  a GLM per neuron      {np.median(by_glm):.2f}")
print(f"all sessions together are better for {np.mean(by_model > by_glm):.0%}")

# %% [markdown]
# For a few neurons the shared model predicts worse than their mean. They are
# neurons with hardly any tuning: there is little variance to explain, and
# any error exceeds it.

# %%
poor = by_model < 0
print(f"{poor.sum()} of {n_neurons} neurons below 0")
print(
    "standard deviation of true rates (spikes per trial): "
    f"{rate.std(axis=0)[poor].mean():.2f} for these neurons, "
    f"{rate.std(axis=0).mean():.2f} for all"
)

# %% [markdown]
# ## The completed table
#
# Panels a to c show every fourth stimulus and neuron, sorted by the first
# combination of features and by the tuning to it. Grey pairs were not
# recorded. Panel d compares both models for every neuron on the pairs that
# were never recorded. Nearly all neurons lie above the diagonal; triangles
# stand for values below the range shown.

# %%
recorded = np.full(rate.shape, np.nan)
for stimuli, neurons, counts in sessions:
    mean = counts.reshape(REPEATS, SHOWN, -1).mean(axis=0)
    recorded[np.ix_(stimuli[:SHOWN], neurons)] = mean
tables = [recorded, together, rate]
rows = np.argsort(combinations[:, 0])[::4]
columns = np.argsort(tuning[0] / np.linalg.norm(tuning, axis=0))[::4]

figure, axes = plt.subplots(
    1, 4, figsize=(10.4, 3.2), layout="constrained", width_ratios=[1, 1, 1, 1.1]
)
for ax, table in zip(axes, tables):
    ax.set_facecolor("0.85")
    image = ax.imshow(
        table[np.ix_(rows, columns)],
        aspect="auto",
        vmin=0,
        vmax=3,
        interpolation="none",
    )
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("neurons (sorted)", fontsize=9)
axes[0].set_ylabel("stimuli (sorted)", fontsize=9)
bar = figure.colorbar(
    image,
    ax=axes[:3],
    location="bottom",
    shrink=0.35,
    aspect=28,
    pad=0.02,
    extend="max",
)
bar.set_label("spikes per trial", fontsize=9)
bar.ax.tick_params(labelsize=8)

ax = axes[3]
low = -0.5
x, y = np.maximum(by_glm, low), np.maximum(by_model, low)
cut = (x == low) | (y == low)
ax.axline((0, 0), slope=1, color=plotting.GREY, lw=0.8)
ax.axhline(0, color=plotting.LIGHT, lw=0.8, zorder=0)
ax.axvline(0, color=plotting.LIGHT, lw=0.8, zorder=0)
dots = {"ls": "none", "mew": 0, "alpha": 0.6, "clip_on": False}
ax.plot(x[~cut], y[~cut], marker="o", ms=2.8, color=plotting.BLUE, **dots)
ax.plot(x[cut], y[cut], marker="v", ms=4.5, color=plotting.RED, **dots)
ax.text(0.98, -0.45, f"{cut.sum()} below {low}", ha="right", fontsize=8)
ax.set(xlim=(low, 1), ylim=(low, 1))
ax.set_xlabel("a GLM per neuron", fontsize=9)
ax.set_ylabel("all sessions together", fontsize=9)
ax.tick_params(labelsize=8)
ax.spines[["top", "right"]].set_visible(False)
plotting.label_panels(
    axes,
    [
        "recorded (mean of 2 trials)",
        "completed",
        "truth",
        "$R^2$ of unrecorded pairs",
    ],
)
figure.savefig("07_all_stimuli_by_all_neurons.png", dpi=200)
