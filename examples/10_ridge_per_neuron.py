# %% [markdown]
# # How strong a ridge? Cross-validation for every neuron
#
# A design with many correlated features, here the recent spikes of seventy
# neurons, fits noise unless a ridge penalty holds it back. The right strength
# is an empirical question, and the answer differs between neurons.
#
# **Question.** Which ridge strength does each neuron need, and what does the
# choice gain on data that it never saw?
#
# **Data.** Seventy neurons of macaque motor cortex in bins of 50 ms
# (Stevenson et al., 2011). Without the recording, coupled neurons are
# simulated.
#
# **What you will see**
#
# 1. `PopulationGLMCV`: a grid of strengths, five folds and all neurons in one
#    call, with a certificate for every one of the thousands of fits;
# 2. held-out likelihood against strength, and the strengths chosen;
# 3. the gain on the last fifth of the recording, which neither the fit nor
#    the choice has seen: large compared with almost no ridge, small or none
#    compared with the best strength that all neurons share.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import xlogy

import glmfit
from glmfit import plotting

N_NEURONS, MOST_BINS = 70, 9_000

# %% [markdown]
# ## The recording
#
# Seventy neurons are enough: every second one by firing rate, starting with
# the slowest that has 100 spikes.


# %%
def recorded_session(path):
    """Spike counts (time, neuron) in bins of 50 ms."""
    with np.load(path, allow_pickle=False) as file:
        counts = file["counts"][:MOST_BINS].astype(float)
    spikes = counts.sum(axis=0)
    order = np.argsort(spikes)
    chosen = order[spikes[order] >= 100][::2][:N_NEURONS]
    return counts[:, np.sort(chosen)]


def simulated_session():
    """Neurons that share a slow drive and excite or inhibit a few others."""
    rng = np.random.default_rng(10)
    noise = rng.normal(size=(6, MOST_BINS))
    window = 0.35 * np.hanning(15)
    slow = np.stack([np.convolve(x, window, "same") for x in noise], axis=1)
    base = np.log(rng.lognormal(-1.2, 1.0, N_NEURONS))
    drive = base + slow @ rng.normal(0, 0.35, (6, N_NEURONS))
    coupling = rng.normal(0, 0.15, (N_NEURONS, N_NEURONS))
    coupling *= rng.random(coupling.shape) < 0.08
    counts = np.zeros((MOST_BINS, N_NEURONS))
    for t in range(1, MOST_BINS):
        past = np.minimum(counts[t - 1], 5)
        counts[t] = rng.poisson(np.logaddexp(0, drive[t] + past @ coupling))
    return counts


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "m1_reach.npz"
if path.exists():
    print("recorded session")
    counts = recorded_session(path)
else:
    print("simulated session")
    counts = simulated_session()
n_neurons = counts.shape[1]

# %% [markdown]
# ## Features: the recent past of all neurons
#
# For each neuron there are two features: its count in the last bin, and its
# mean count over the three bins before. Both are square roots, because the
# variance of a count grows with its mean.

# %%
root = np.sqrt(counts)
last = root[3:-1]
before = (root[2:-2] + root[1:-3] + root[:-4]) / 3
X, y = np.column_stack([last, before]), counts[4:]

cut = int(0.8 * len(X))  # the last fifth is the final test
train, test = slice(0, cut), slice(cut, None)
print(f"{len(X)} bins, {n_neurons} neurons, {X.shape[1]} features")

# %% [markdown]
# ## All strengths, folds and neurons
#
# The folds are five contiguous blocks of time.

# %%
STRENGTHS = np.logspace(-5, 0, 11)
model = glmfit.PopulationGLMCV(strengths=STRENGTHS, cv=5)
model.fit(X[train], y[train])
print(model.report_)
print(
    f"\n{model.cv_gap_.size} fits in the cross-validation: "
    f"{np.mean(model.cv_converged_):.0%} converged, "
    f"{np.mean(model.cv_gap_is_bound_):.0%} with a proved gap"
)

# %% [markdown]
# The map shows the held-out score of each neuron and strength, from its worst
# strength to its best. The line marks the strength chosen.

# %%
ax = plotting.plot_strengths(model)
# %% [markdown]
# ## What does the choice gain?
#
# On the last fifth of the recording, three choices compete: a strength for
# each neuron, the one strength for all that is best on average over folds and
# neurons, and almost no ridge. No further fit is needed: the fits to all
# training rows at every strength are in `coef_path_`. The score $D^2$ is the
# fraction of the deviance explained.

# %%
own = np.searchsorted(STRENGTHS, model.strength_)
mean_score = np.nanmean(model.cv_scores_, axis=(1, 2))  # (strength,)
shared = np.full(n_neurons, np.argmax(mean_score))
weakest = np.zeros(n_neurons, int)


def deviance_explained(chosen):
    """Held-out D2 of each neuron, with the strength chosen for it."""
    n = np.arange(n_neurons)
    coef = model.coef_path_[chosen, :, n].T
    eta = X[test] @ coef + model.intercept_path_[chosen, n]
    rate, seen = np.logaddexp(0, eta), y[test]
    left = xlogy(seen, seen / rate) - seen + rate
    return 1 - left.sum(axis=0) / xlogy(seen, seen / seen.mean(axis=0)).sum(0)


scores = {
    "a strength for each neuron": deviance_explained(own),
    f"shared strength ({STRENGTHS[shared[0]]:.2g})": deviance_explained(shared),
    f"almost no ridge ({STRENGTHS[0]:g})": deviance_explained(weakest),
}
print("\nlast fifth                      mean D2   neurons below 0")
for name, score in scores.items():
    print(f"{name:<28} {score.mean():10.4f} {np.sum(score < 0):17}")

# %% [markdown]
# Panels a to d show four neurons, from the weakest ridge to the strongest:
# the held-out log-likelihood less that of the best strength, with the standard
# error of this difference over folds. The filled dot is the best strength, the
# open circle the strongest one within a standard error of it. The curves are
# flat near the optimum, so the exact strength matters little there; where a
# ridge is far too strong, they fall steeply and leave the panel.
#
# Panel e shows the strengths chosen. Panels f and g show the gain of choosing
# for each neuron: neurons with few spikes gain most compared with almost no
# ridge. Compared with the best shared strength the mean gain is small: most
# neurons choose that strength or a neighbouring one anyway.

# %%
figure = plt.figure(figsize=(9.6, 5.6), layout="constrained")
top, bottom = figure.subfigures(2, 1)
axes = [*top.subplots(1, 4), *bottom.subplots(1, 3)]
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
    ax.set_xscale("log")

by_strength = np.argsort(model.strength_, kind="stable")
ranks = np.linspace(0.05, 0.95, 4) * n_neurons
for ax, n in zip(axes, by_strength[ranks.astype(int)]):
    score = 1000 * model.cv_scores_[:, :, n]  # (strength, fold)
    best = np.searchsorted(STRENGTHS, model.best_strength_[n])
    one_se = np.searchsorted(STRENGTHS, model.one_se_strength_[n])
    behind = score - score[best]
    mean = behind.mean(axis=1)
    error = behind.std(axis=1, ddof=1) / np.sqrt(behind.shape[1])
    ax.fill_between(
        STRENGTHS, mean - error, mean + error, color=plotting.LIGHT, lw=0
    )
    ax.plot(STRENGTHS, mean, color=plotting.BLUE)
    for chosen, face in ((one_se, "white"), (best, plotting.BLUE)):
        ax.plot(
            STRENGTHS[chosen], mean[chosen], "o", mfc=face, mec=plotting.BLUE
        )
    spread = -mean[STRENGTHS <= 0.3].min()
    ax.set_ylim(-1.4 * spread, 0.25 * spread)
    ax.set_xticks([1e-4, 1e-2, 1])
    ax.set_xlabel("ridge strength", fontsize=9)
axes[0].set_ylabel(
    "log-likelihood − best\n(10$^{-3}$ nats per bin)", fontsize=9
)

spikes = y[train].sum(axis=0)
jitter = np.exp(np.random.default_rng(0).normal(0, 0.08, n_neurons))
dots = {"ls": "none", "marker": "o", "ms": 4.5, "mew": 0, "alpha": 0.7}
axes[4].plot(spikes, model.strength_ * jitter, color=plotting.BLUE, **dots)
axes[4].set_yscale("log")
axes[4].set_ylabel("strength chosen (jittered)", fontsize=9)
each, *rest = scores.values()
for ax, other, color in zip(
    axes[5:], rest[::-1], (plotting.ORANGE, plotting.BLUE)
):
    ax.axhline(0, color=plotting.GREY, lw=0.8)
    ax.plot(spikes, each - other, color=color, **dots)
    ax.set_ylabel("gain in held-out $D^2$", fontsize=9)
for ax in axes[4:]:
    ax.set_xlabel("spikes in training", fontsize=9)

_, *names = scores
plotting.label_panels(
    axes,
    [
        *(f"neuron {n}" for n in by_strength[ranks.astype(int)]),
        "strengths chosen",
        *(f"gain over {name}" for name in names[::-1]),
    ],
)
figure.savefig("10_ridge_per_neuron.png", dpi=200)
