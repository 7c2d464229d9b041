# %% [markdown]
# # First fit: one neuron, NumPy in, NumPy out
#
# A GLM predicts the spike count of a bin from features of that bin. Here the
# features are the recent past of a stimulus. The neuron is simulated, so its
# filter is known.
#
# **Question.** Which part of the recent stimulus drives the neuron?
#
# **What you will see**
#
# 1. features: the past of a signal through a few smooth basis functions;
# 2. a fit and its report: did it converge, and how far from the best possible
#    fit can the answer be;
# 3. the score on held-out time, compared with that of the true model;
# 4. the filter with its 95 % interval.

# %%
import numpy as np

import glmfit
from glmfit import plotting
from glmfit.inference import wald_table

BIN_S = 5e-3
rng = np.random.default_rng(1)

# %% [markdown]
# ## A stimulus and a neuron
#
# The filter says how much the linear predictor changes, some time later, per
# unit of stimulus. The softplus turns the linear predictor into a rate.

# %%
n_bins, n_lags = 40_000, 30
stimulus = rng.normal(size=n_bins)
lag_s = BIN_S * np.arange(n_lags)
true_filter = 0.9 * np.exp(-0.5 * ((lag_s - 0.04) / 0.015) ** 2)
true_filter -= 0.4 * np.exp(-0.5 * ((lag_s - 0.08) / 0.02) ** 2)
eta = np.convolve(stimulus, true_filter)[:n_bins] - 3.0
spikes = rng.poisson(np.log1p(np.exp(eta)))

# %% [markdown]
# ## Features
#
# Thirty lags would give thirty noisy coefficients. Twelve overlapping bumps
# are enough for a smooth filter. The past of the first bins is not known:
# rows with NaN are dropped from the fit, and counted.

# %%
peaks = np.linspace(0, lag_s[-1], 12)
phase = np.clip((lag_s[:, None] - peaks) / (peaks[1] - peaks[0]), -2, 2)
basis = 0.5 * (1 + np.cos(np.pi / 2 * phase))  # (lag, bump)
past = [np.convolve(stimulus, bump)[:n_bins] for bump in basis.T]
X = np.column_stack(past)
X[: n_lags - 1] = np.nan

# %% [markdown]
# ## Fit
#
# The first three quarters are for training. A weak ridge adds half the
# strength times the sum of the squared coefficients to the loss.

# %%
n_train = 3 * n_bins // 4
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X[:n_train], spikes[:n_train])
print(model.report_)

# %% [markdown]
# `bound` means proved: the objective is at most that much above its minimum.
# The pseudo-$R^2$ is the share of the deviance that the model explains.
#
# ## Score
#
# In short bins most of the deviance is chance. The ceiling is the score of a
# model whose only feature is the true linear predictor.

# %%
held_out = model.score(X[n_train:], spikes[n_train:])
truth = glmfit.PopulationGLM(regularizer="UnRegularized")
truth.fit(eta[:n_train, None], spikes[:n_train])
ceiling = truth.score(eta[n_train:, None], spikes[n_train:])
print(f"held-out pseudo-R2 {held_out:.4f}, ceiling {ceiling:.4f}")

# %% [markdown]
# ## The filter
#
# The filter at each lag is a combination of the twelve coefficients.

# %%
wald = wald_table(model, X[:n_train], spikes[:n_train], combinations=basis)
ax = plotting.plot_filter(
    basis,
    model.coef_,
    lag_s,
    interval=(wald.low[:, 0], wald.high[:, 0]),
    label="fitted, 95 % interval",
    xlabel="time before spike",
    ylabel="linear predictor\nper unit of stimulus",
)
ax.plot(1e3 * lag_s, true_filter, "--", color="black", lw=1, label="true")
ax.legend(frameon=False, fontsize=8)
ax.figure.savefig("01_first_fit.png", dpi=200)
