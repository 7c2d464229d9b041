"""Which covariates does a neuron care about? Group lasso, one group per covariate.

Each covariate enters a GLM through several basis functions. A group lasso keeps or drops all of them together, so that
the answer reads "reward matters, the light does not". You will see

1. groups given by name;
2. a path of strengths, from everything out to everything in, and on it the strongest penalty that predicts held-out
   time about as well as the best does;
3. that coefficients left out are exactly zero, and that the report says how far from the optimum the fit is.

Run it with ``python examples/03_lasso_groups.py [figure.png]``.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import glmfit

rng = np.random.default_rng(3)

# --- Twelve covariates, correlated with their neighbours as real ones are. Three of them drive the neuron, one of them
# through a bump that no straight line can follow.
n_bins, names = 20_000, [f"covariate {i}" for i in range(1, 13)]
slow = np.apply_along_axis(np.convolve, 0, rng.normal(size=(n_bins, 12)), np.hanning(50), "same")
values = slow + 0.5 * np.roll(slow, 1, axis=1)
values /= values.std(axis=0)
eta = -2.5 + 0.6 * values[:, 1] - 0.5 * values[:, 4] + 0.9 * np.exp(-0.5 * ((values[:, 8] - 0.5) / 0.4) ** 2)
spikes = rng.poisson(np.log1p(np.exp(eta)))

# --- Five bumps along the range of each covariate; centred and scaled, so that one strength is fair to all.
centres = np.linspace(-2, 2, 5)
X = np.exp(-0.5 * ((values[:, :, None] - centres) / 0.7) ** 2).reshape(n_bins, -1)  # (time, covariate * bump)
X = (X - X.mean(axis=0)) / X.std(axis=0)
groups = {name: list(range(5 * i, 5 * i + 5)) for i, name in enumerate(names)}

# --- The path. The second fit of the same shapes compiles nothing, so that a path costs little more than its first fit.
train, valid, test = slice(0, 10_000), slice(10_000, 15_000), slice(15_000, None)
strengths = np.geomspace(3e-2, 3e-4, 12)
models = [
    glmfit.PopulationGLM(regularizer="GroupLasso", groups=groups, regularizer_strength=s).fit(X[train], spikes[train])
    for s in strengths
]
norms = np.array([np.linalg.norm(m.coef_.reshape(12, 5), axis=1) for m in models])  # (strength, covariate)
scores = np.array([m.score(X[valid], spikes[valid]) for m in models])
best = int(np.argmax(scores))
# --- The best prediction likes company; the sparsest model about as good as the best is the one to name covariates by.
sparse = int(np.argmax(scores >= scores[best] - 0.005))

print(models[sparse].report_)
kept = [name for name, norm in zip(names, norms[sparse], strict=True) if norm > 0]
print(f"\nkept at strength {strengths[sparse]:.1e}: {', '.join(kept)} (true: covariates 2, 5 and 9)")
print(f"held-out pseudo-R2: {models[sparse].score(X[test], spikes[test]):.4f}")

# --- Draw.
figure, (left, right) = plt.subplots(1, 2, figsize=(6.8, 2.8), layout="constrained")
colors = {1: "#0072B2", 4: "#D55E00", 8: "#009E73"}  # the true ones
for i, name in enumerate(names):
    left.plot(strengths, norms[:, i], color=colors.get(i, "0.75"), label=name if i in colors else None)
left.plot([], [], color="0.75", label="the others")
left.set(xscale="log", xlabel="strength", ylabel="norm of the group")
right.plot(strengths, scores, ".-", color="#0072B2")
right.set(xscale="log", xlabel="strength", ylabel="pseudo-$R^2$ on validation time")
for ax in (left, right):
    ax.axvline(strengths[sparse], color="black", lw=0.8, ls="--", label="chosen: nearly the best")
    ax.invert_xaxis()
    ax.spines[["top", "right"]].set_visible(False)
figure.legend(*left.get_legend_handles_labels(), loc="outside upper center", ncols=5, frameon=False, fontsize=8)
path = sys.argv[1] if len(sys.argv) > 1 else "03_lasso_groups.png"
figure.savefig(path, dpi=200)
print(f"figure: {path}")
