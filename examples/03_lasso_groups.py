# %% [markdown]
# # Group lasso: which covariates does a neuron care about?
#
# Each covariate enters a GLM through several basis functions. A group lasso
# keeps or drops all of them together, so the answer reads "reward matters,
# the light does not".
#
# **What you will see**
#
# 1. groups given by name;
# 2. a path of strengths, from no covariate to all of them, and a choice on it
#    by validation time;
# 3. coefficients that are exactly zero, and a report of how far the fit is
#    from the optimum.

# %%
import matplotlib.pyplot as plt
import numpy as np

import glmfit

rng = np.random.default_rng(3)

# %% [markdown]
# ## Twelve covariates, three of which matter
#
# The covariates are correlated with their neighbours, as recorded ones are.
# Covariates 2 and 5 act linearly, covariate 9 through a bump that no straight
# line can follow.

# %%
n_bins, names = 20_000, [f"covariate {i}" for i in range(1, 13)]
noise, window = rng.normal(size=(n_bins, 12)), np.hanning(50)
slow = np.apply_along_axis(np.convolve, 0, noise, window, "same")
values = slow + 0.5 * np.roll(slow, 1, axis=1)
values /= values.std(axis=0)
bump = np.exp(-0.5 * ((values[:, 8] - 0.5) / 0.4) ** 2)
eta = -2.5 + 0.6 * values[:, 1] - 0.5 * values[:, 4] + 0.9 * bump
spikes = rng.poisson(np.log1p(np.exp(eta)))

# %% [markdown]
# ## Features and groups
#
# Five bumps cover the range of each covariate. They are standardized, so that
# one strength penalizes them equally.

# %%
centres = np.linspace(-2, 2, 5)
X = np.exp(-0.5 * ((values[:, :, None] - centres) / 0.7) ** 2)
X = X.reshape(n_bins, -1)  # (time, covariate * bump)
X = (X - X.mean(axis=0)) / X.std(axis=0)
groups = {name: list(range(5 * i, 5 * i + 5)) for i, name in enumerate(names)}

# %% [markdown]
# ## A path of strengths
#
# Half of the time is for training, a quarter for the choice of the strength
# and a quarter for the final score. Covariates are named by the strongest
# penalty whose validation score is within 0.005 of the best: the best score
# itself tends to keep a few covariates too many.

# %%
train, valid = slice(0, 10_000), slice(10_000, 15_000)
test = slice(15_000, None)
strengths = np.geomspace(3e-2, 3e-4, 12)
models = [
    glmfit.PopulationGLM(
        regularizer="GroupLasso", groups=groups, regularizer_strength=strength
    ).fit(X[train], spikes[train])
    for strength in strengths
]
weights = np.array([m.coef_.reshape(12, 5) for m in models])
norms = np.linalg.norm(weights, axis=2)  # (strength, covariate)
scores = np.array([m.score(X[valid], spikes[valid]) for m in models])
chosen = int(np.argmax(scores >= scores.max() - 0.005))
print(models[chosen].report_)

# %%
kept = [name for name, norm in zip(names, norms[chosen]) if norm > 0]
print(f"kept at strength {strengths[chosen]:.1e}: {', '.join(kept)}")
score = models[chosen].score(X[test], spikes[test])
print(f"pseudo-R2 on the last quarter: {score:.4f}")

# %% [markdown]
# ## The path
#
# Strengths fall from left to right, so that covariates enter one by one.

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.6, 3.0), layout="constrained"
)
colors = {1: "#0072B2", 4: "#D55E00", 8: "#009E73"}  # those that matter
for i, name in enumerate(names):
    label = name if i in colors else None
    left.plot(strengths, norms[:, i], color=colors.get(i, "0.75"), label=label)
left.plot([], [], color="0.75", label="the other nine")
left.set_ylabel("norm of the group's coefficients", fontsize=9)
right.plot(strengths, scores, ".-", color="black", lw=1)
right.set_ylabel("pseudo-$R^2$, validation time", fontsize=9)
for ax in (left, right):
    ax.set_xscale("log")
    ax.invert_xaxis()
    ax.set_xlabel("strength (log scale, falling →)", fontsize=9)
    ax.axvline(
        strengths[chosen],
        color="black",
        lw=0.8,
        ls="--",
        label="chosen: within 0.005 of the best",
    )
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
figure.legend(
    *left.get_legend_handles_labels(),
    loc="outside upper center",
    ncols=5,
    frameon=False,
    fontsize=8,
)
figure.savefig("03_lasso_groups.png", dpi=200)
