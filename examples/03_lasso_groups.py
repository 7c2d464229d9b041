# %% [markdown]
# # Which covariates matter? Group lasso with one group per covariate
#
# Each covariate enters a GLM through several basis functions. A group lasso
# keeps or drops all weights of a covariate together, so the result is a list of
# covariates: "reward matters, light does not".
#
# **Question.** Which of twelve covariates drive the neuron?
#
# **Data.** A simulated neuron driven by three covariates. All twelve are
# slow and correlated with themselves over time, like behavioural variables.
#
# **What you will see**
#
# 1. groups given by name;
# 2. a path of strengths, from no covariate to all of them;
# 3. the choice of a strength on validation data by the one-standard-error
#    rule;
# 4. weights that are exactly zero, with a proved bound on the distance from the
#    optimum.

# %%
import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting

# %% [markdown]
# ## The neuron
#
# Covariates 2 and 5 act linearly. Covariate 9 acts through a bump that no
# straight line can follow.

# %%
rng = np.random.default_rng(3)
n_bins, n_covariates = 20_000, 12
names = [f"covariate {i + 1}" for i in range(n_covariates)]
noise = rng.normal(size=(n_bins, n_covariates))
slow = np.apply_along_axis(np.convolve, 0, noise, np.hanning(50), "same")
values = slow + 0.5 * np.roll(slow, 1, axis=1)  # neighbours are correlated
values /= values.std(axis=0)

eta = -2.5 + 0.6 * values[:, 1] - 0.5 * values[:, 4]
eta += 0.9 * np.exp(-0.5 * ((values[:, 8] - 0.5) / 0.4) ** 2)
spikes = rng.poisson(np.log1p(np.exp(eta)))
print(f"{spikes.sum()} spikes in {n_bins} bins")

# %% [markdown]
# ## Features and groups
#
# Five Gaussian bumps cover the range of each covariate. The features are
# standardised, so that one strength penalises all of them equally. The groups
# map each name to the columns of its covariate.

# %%
N_BUMPS = 5
centres = np.linspace(-2, 2, N_BUMPS)
bumps = np.exp(-0.5 * ((values[:, :, None] - centres) / 0.7) ** 2)
X = bumps.reshape(n_bins, -1)  # (time, covariate * bump)
X = (X - X.mean(axis=0)) / X.std(axis=0)
groups = {
    name: list(range(N_BUMPS * i, N_BUMPS * (i + 1)))
    for i, name in enumerate(names)
}

# %% [markdown]
# ## The path
#
# The penalty is $\lambda \sum_g \sqrt{p_g}\,\lVert w_g \rVert$, where
# $\lambda$ is the strength and $p_g$ the number of weights of group $g$. A
# large strength removes every group; a small one keeps all of them. The first
# half of the data is for training, a quarter for the choice of the strength,
# and the last quarter for the final score.

# %%
train, valid, test = (
    slice(0, 10_000),
    slice(10_000, 15_000),
    slice(15_000, None),
)
strengths = np.geomspace(3e-2, 3e-4, 12)
models = []
for strength in strengths:
    model = glmfit.PopulationGLM(
        regularizer="GroupLasso", groups=groups, regularizer_strength=strength
    )
    models.append(model.fit(X[train], spikes[train]))
norms = np.array(
    [
        np.linalg.norm(m.coef_.reshape(n_covariates, N_BUMPS), axis=1)
        for m in models
    ]
)  # (strength, covariate)

# %% [markdown]
# ## One-standard-error rule
#
# The best strength also keeps covariates that the neuron ignores, because
# they hardly change the prediction. The one-standard-error rule chooses the
# sparsest model whose validation score is within one standard error of the
# best score. The standard error is that of the difference from the best score,
# over ten blocks of the validation data: what makes a block hard for one model
# makes it hard for all.

# %%
blocks = np.split(np.arange(10_000, 15_000), 10)
by_block = np.array(
    [[m.score(X[b], spikes[b]) for b in blocks] for m in models]
)  # (strength, block)
scores = by_block.mean(axis=1)
best = int(np.argmax(scores))
behind = by_block[best] - by_block  # (strength, block)
error = behind.std(axis=1, ddof=1) / np.sqrt(len(blocks))
chosen = int(np.argmax(behind.mean(axis=1) <= error))

for label, k in (("best", best), ("one-SE", chosen)):
    kept = (np.flatnonzero(norms[k]) + 1).tolist()
    print(f"{label}: strength {strengths[k]:.1e} keeps covariates {kept}")
final = models[chosen].score(X[test], spikes[test])
print(f"held-out pseudo-R2 of the one-SE choice: {final:.3f}")

# %%
print(models[chosen].report_)

# %% [markdown]
# ## The path in a figure
#
# Strength decreases from left to right, so covariates enter one after another.
# The three that drive the neuron enter first. The true effect of covariate 9
# is the weakest of the three, and it enters last.

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(7.4, 3.2), layout="constrained"
)
colors = {1: plotting.BLUE, 4: plotting.RED, 8: plotting.GREEN}
for i, name in enumerate(names):
    drives = i in colors
    left.plot(
        strengths,
        norms[:, i],
        color=colors.get(i, plotting.LIGHT),
        lw=1.6 if drives else 1,
        zorder=2 if drives else 1,
        label=f"{name} (drives the neuron)" if drives else None,
    )
left.plot([], [], color=plotting.LIGHT, lw=1, label="the nine others")
left.set_ylabel("norm of the weights of a covariate", fontsize=9)
left.set_ylim(-0.02, 0.72)
legend = left.legend(fontsize=7.5, loc="upper left", framealpha=1)
legend.get_frame().set_edgecolor("none")

right.errorbar(
    strengths,
    scores,
    error,
    fmt=".-",
    color=plotting.BLACK,
    lw=1.2,
    elinewidth=0.8,
)
right.plot(
    strengths[best], scores[best], "o", ms=7, mfc="none", color=plotting.BLACK
)
right.annotate(
    "best",
    (strengths[best], scores[best]),
    (5, 5),
    textcoords="offset points",
    fontsize=8,
)
right.axhline(scores[best], color=plotting.GREY, lw=0.8, ls=":")
right.set_ylabel(
    "pseudo-$R^2$ on validation data\n(± SE of the difference)", fontsize=9
)
for ax in (left, right):
    ax.axvline(strengths[chosen], color=plotting.BLACK, lw=0.8, ls="--")
    ax.set_xscale("log")
    ax.invert_xaxis()
    ax.set_xlabel("strength $\\lambda$ (log scale, decreasing)", fontsize=9)
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
right.annotate(
    "chosen: one-SE",
    (strengths[chosen], 0.05),
    (4, 0),
    xycoords=("data", "axes fraction"),
    textcoords="offset points",
    fontsize=8,
)
plotting.label_panels(
    [left, right], ["covariates along the path", "the choice"]
)
figure.savefig("03_lasso_groups.png", dpi=200)
