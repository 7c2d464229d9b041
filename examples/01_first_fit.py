# %% [markdown]
# # First fit: one neuron, from arrays to a filter
#
# A generalized linear model (GLM) predicts the spike count of each time bin
# from features of that bin. Here the features describe the recent past of a
# stimulus, and the fitted weights form the filter of the neuron.
#
# **Question.** Which part of the recent stimulus drives the neuron?
#
# **Data.** One simulated neuron, so that the true filter is known.
#
# **What you will see**
#
# 1. how to turn the past of a stimulus into a few smooth features;
# 2. a fit, and how to read its report;
# 3. a score on held-out data, compared with the best possible one;
# 4. the fitted filter next to the true filter.

# %%
import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting

# %% [markdown]
# ## A neuron that listens to a stimulus
#
# The stimulus $s$ is white noise in bins of 5 ms. The neuron filters its past
# over 150 ms, and a softplus turns the result into an expected count per bin:
#
# $$\eta_t = b + \sum_k h_k\, s_{t-k}, \qquad
# \mathrm{E}[y_t] = \log(1 + e^{\eta_t}).$$
#
# The linear predictor $\eta$ has no unit. A filter value $h_k$ is therefore the
# change of $\eta$ per standard deviation of the stimulus at that lag.

# %%
BIN_S = 5e-3
rng = np.random.default_rng(1)

n_bins, n_lags = 40_000, 30
stimulus = rng.normal(size=n_bins)
lag_s = BIN_S * np.arange(n_lags)


def bump(centre_s, width_s):
    """A Gaussian over the lags, with a peak of 1."""
    return np.exp(-0.5 * ((lag_s - centre_s) / width_s) ** 2)


true_filter = 0.9 * bump(0.04, 0.015) - 0.4 * bump(0.08, 0.02)
eta = np.convolve(stimulus, true_filter)[:n_bins] - 3.0
spikes = rng.poisson(np.log1p(np.exp(eta)))
print(f"{spikes.sum()} spikes in {n_bins * BIN_S:.0f} s")

# %% [markdown]
# ## Features: the past through a few smooth bumps
#
# One weight per lag would give thirty noisy weights. Twelve overlapping
# cosine bumps describe a smooth filter with fewer. Each feature is the
# stimulus convolved with one bump.

# %%
peaks = np.linspace(0, lag_s[-1], 12)
phase = (lag_s[:, None] - peaks) / (peaks[1] - peaks[0])
basis = 0.5 * (1 + np.cos(np.pi / 2 * np.clip(phase, -2, 2)))  # (lag, bump)

figure, ax = plt.subplots(figsize=(5, 2), layout="constrained")
ax.plot(1e3 * lag_s, basis, color=plotting.BLUE, lw=1)
ax.set_xlabel("time before the spike (ms)", fontsize=9)
ax.set_ylabel("value of the bump", fontsize=9)
ax.set_yticks([0, 0.5, 1])
ax.tick_params(labelsize=8)
ax.spines[["top", "right"]].set_visible(False)

# %% [markdown]
# The past of the first bins is unknown, so their features are NaN. `fit` drops
# such rows and reports how many.

# %%
X = np.column_stack([np.convolve(stimulus, b)[:n_bins] for b in basis.T])
X[: n_lags - 1] = np.nan

# %% [markdown]
# ## Fit
#
# The model is fitted to the first three quarters of the recording. The weak
# ridge adds half its strength times the sum of squared weights to the loss.

# %%
n_train = 3 * n_bins // 4
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X[:n_train], spikes[:n_train])
print(model.report_)

# %% [markdown]
# The column `gap F-F*` is the distance between the loss of this fit and the
# lowest loss that any weights can reach. The word `bound` means that the
# distance is proved to be at most that large.
#
# ## Score on held-out data
#
# The pseudo-$R^2$ is the fraction of the deviance that the model explains: 0
# for a constant rate, 1 for a perfect prediction of every count. Spikes are
# random even when the rate is known, so the reachable score is below 1. Here
# the truth is known, and a model whose only feature is the true linear
# predictor shows how high the score can be.

# %%
held_out = model.score(X[n_train:], spikes[n_train:])
truth = glmfit.PopulationGLM(regularizer="UnRegularized")
truth.fit(eta[:n_train, None], spikes[:n_train])
ceiling = truth.score(eta[n_train:, None], spikes[n_train:])
print(f"held-out pseudo-R2:           {held_out:.4f}")
print(f"with the true predictor only: {ceiling:.4f}")

# %% [markdown]
# ## The filter
#
# The filter is the sum of the bumps, weighted by the coefficients. A positive
# value means that a high stimulus at that lag raises the rate. The fit
# recovers excitation about 40 ms before the spike and the suppression that
# precedes it.

# %%
figure, ax = plt.subplots(figsize=(5, 3), layout="constrained")
ax.plot(1e3 * lag_s, true_filter, color=plotting.BLACK, lw=3, alpha=0.25)
ax.lines[0].set_label("true")
plotting.plot_filter(
    basis,
    model.coef_,
    lag_s,
    label="fitted",
    xlabel="time before the spike",
    ylabel="filter (change of $\\eta$ per SD of the stimulus)",
    ax=ax,
)
ax.tick_params(labelsize=8)
ax.spines[["top", "right"]].set_visible(False)
ax.legend(frameon=False, fontsize=8)
figure.savefig("01_first_fit.png", dpi=200)
