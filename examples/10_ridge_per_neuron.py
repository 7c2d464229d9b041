"""How strong a ridge? For every neuron its own, chosen on time it has not seen.

A design with many correlated features, here the past of seventy recorded neurons, fits noise unless a ridge holds it
back. How strong it must be is for held-out time to say, and need not be the same for all neurons. You will see

1. ``PopulationGLMCV``: a grid of strengths, five folds of contiguous time, all neurons, in one solve, and every one of
   the fits certified;
2. held-out likelihood against the strength, and the strengths chosen;
3. what is gained in minutes that the choice never saw: over next to no ridge a lot, over the best one that all neurons
   share a little.

Run it with ``python examples/10_ridge_per_neuron.py [figure.png] [m1_reach.npz or simulated]``. The recording
(macaque motor cortex, Stevenson et al. 2011; fields bin_s, counts) is not shipped. Where none is named it is looked for
in ../shared/data beside the checkout; where that is not, coupled neurons are simulated.
"""

import sys
from pathlib import Path

import numpy as np
from scipy.special import xlogy

import glmfit
from glmfit import plotting

N_NEURONS, LAGS_BINS, MOST_BINS = 70, ((1, 1), (2, 4)), 9_000
STRENGTHS = np.logspace(-5, 0, 11)


def simulated_recording():
    """Counts in 50 ms bins of neurons that share a slow drive and excite or inhibit a few others."""
    rng = np.random.default_rng(10)
    slow = np.stack([np.convolve(rng.normal(size=MOST_BINS), np.hanning(15), "same") for _ in range(6)], axis=1) * 0.35
    base = rng.lognormal(-1.2, 1.0, N_NEURONS)
    loading = rng.normal(0, 0.35, (6, N_NEURONS))
    coupling = rng.normal(0, 0.15, (N_NEURONS, N_NEURONS)) * (rng.random((N_NEURONS, N_NEURONS)) < 0.08)
    counts = np.zeros((MOST_BINS, N_NEURONS))
    for t in range(MOST_BINS):
        past = np.minimum(counts[t - 1], 5) if t else 0 * base
        counts[t] = rng.poisson(np.logaddexp(0, np.log(base) + slow[t] @ loading + past @ coupling))
    return counts


beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "m1_reach.npz"
given = sys.argv[2] if len(sys.argv) > 2 else beside if beside.exists() else "simulated"
if given == "simulated":
    counts = simulated_recording()
else:
    with np.load(given, allow_pickle=False) as file:
        counts = file["counts"].astype(float)
    # Every second of them by firing rate, from the slowest that has 100 spikes on.
    rates = counts[:MOST_BINS].sum(axis=0)
    order = np.argsort(rates)
    counts = counts[:MOST_BINS, np.sort(order[rates[order] >= 100][::2][:N_NEURONS])]
n_bins, n_neurons = counts.shape

# --- Features: what every neuron did in the last bin, and on average in the three before it; roots, since the variance
# of a count grows with its mean.
X = np.full((n_bins, n_neurons * len(LAGS_BINS)), np.nan)
for k, (nearest, farthest) in enumerate(LAGS_BINS):
    past = [np.sqrt(counts[farthest - lag : n_bins - lag]) for lag in range(nearest, farthest + 1)]
    X[farthest:, k * n_neurons : (k + 1) * n_neurons] = np.mean(past, axis=0)
known = np.isfinite(X).all(axis=1)
X, counts = X[known], counts[known]
# The last fifth judges at the end; neither fit nor choice sees it.
cut = int(0.8 * len(X))
train, test = slice(0, cut), slice(cut, None)
print(f"{'simulated' if given == 'simulated' else 'recorded'}: {len(X)} bins of 50 ms, {n_neurons} neurons, "
      f"{X.shape[1]} features")  # fmt: skip

# --- 1. All strengths, folds and neurons.
model = glmfit.PopulationGLMCV(regularizer="Ridge", strengths=STRENGTHS, cv=5).fit(X[train], counts[train])
print(model.report_)
print(f"\n{model.cv_gap_.size} fits in the cross-validation: {np.mean(model.cv_converged_):.0%} converged, "
      f"{np.mean(model.cv_gap_is_bound_):.0%} with a proved gap")  # fmt: skip

# --- 3. The same neurons with one strength for all, the best on average over folds and neurons, and with next to none.
# Fits to all training rows at every strength are there already: coef_path_.
own = np.searchsorted(STRENGTHS, model.strength_)
shared = np.full(n_neurons, np.argmax(np.nansum(model.cv_scores_.mean(axis=1), axis=1)))
weakest = np.zeros(n_neurons, int)


def deviance_explained(chosen):
    """Share of the deviance of the last fifth that each neuron's fit at one of the strengths explains."""
    n, y = np.arange(n_neurons), counts[test]
    rate = np.logaddexp(0, X[test] @ model.coef_path_[chosen, :, n].T + model.intercept_path_[chosen, n])
    return 1 - np.sum(xlogy(y, y / rate) - y + rate, axis=0) / np.sum(xlogy(y, y / y.mean(axis=0)), axis=0)


scores = {"own": deviance_explained(own), "shared": deviance_explained(shared), "none": deviance_explained(weakest)}
print("\nlast fifth, deviance explained (D2):          mean  neurons below 0")
words = {
    "own": "a strength for each neuron",
    "shared": f"the best shared one ({STRENGTHS[shared[0]]:.2g})",
    "none": f"next to none ({STRENGTHS[0]:g})",
}
for name, score in scores.items():
    print(f"  {words[name]:<40} {score.mean():8.4f} {np.sum(score < 0):16}")

# --- Figure.
axes = plotting.new_axes((1, 1.15), (1, 1), size=(7.6, 6.0))
spikes = counts[train].sum(axis=0)
by_strength = np.argsort(model.strength_, kind="stable")
some = by_strength[np.linspace(0.1 * n_neurons, 0.9 * n_neurons, 4).astype(int)]
plotting.plot_cv_curves(model, some, ax=axes[0, 0])
lowest = np.min(
    [np.mean(model.cv_scores_[3:, :, n], axis=1) - model.cv_scores_[:, :, n].mean(axis=1).max() for n in some]
)
axes[0, 0].set_ylim(1.3 * lowest, -0.15 * lowest)
plotting.plot_strengths(model, ax=axes[0, 1])
jitter = np.exp(np.random.default_rng(0).normal(0, 0.06, n_neurons))
axes[1, 0].plot(spikes, model.strength_ * jitter, "o", ms=4, mec="none", color=plotting.BLUE, alpha=0.7)
axes[1, 0].set(xscale="log", yscale="log")
axes[1, 0].set_xlabel("spikes in the training time", fontsize=9)
axes[1, 0].set_ylabel("ridge strength chosen (jittered)", fontsize=9)
for name, color, marker in (("none", plotting.ORANGE, "v"), ("shared", plotting.BLUE, "o")):
    gain = scores["own"] - scores[name]
    axes[1, 1].plot(spikes, gain, marker, ms=4.5, mec="none", color=color, alpha=0.8, label=f"over {words[name]}")
axes[1, 1].axhline(0, color=plotting.GREY, lw=0.8, zorder=0)
axes[1, 1].set_xscale("log")
axes[1, 1].set_yscale("symlog", linthresh=0.01)
axes[1, 1].set_ylim(top=5 * axes[1, 1].get_ylim()[1])  # room for the legend
axes[1, 1].set_xlabel("spikes in the training time", fontsize=9)
axes[1, 1].set_ylabel("gain in held-out $D^2$", fontsize=9)
axes[1, 1].legend(frameon=False, fontsize=8, loc="upper right")
titles = [
    "four neurons (dot: best, circle: one-SE rule)",
    "all neurons",
    "strengths chosen",
    "gain of choosing for each neuron",
]
plotting.label_panels(axes, titles)
path = sys.argv[1] if len(sys.argv) > 1 else "10_ridge_per_neuron.png"
axes[0, 0].figure.savefig(path)
print(f"\nfigure: {path}")
