# %% [markdown]
# # One spike or none: Bernoulli models of short bins
#
# In a bin of a millisecond a neuron fires once or not at all. Poisson models
# are often used all the same, and at low rates they hardly differ. But where a
# spike is likely, a Poisson model also expects second spikes, which a
# refractory period forbids.
#
# **Question.** Does a Bernoulli model predict spikes in short bins better than
# a Poisson model with the same features, and are its probabilities right?
#
# **Data.** Ten seconds of an auditory receptor of a grasshopper and the sound
# that it heard. The recording is part of the package nitime.
#
# **What you will see**
#
# 1. both models in bins of 0.5 to 3 ms, judged on the last quarter;
# 2. whether a predicted probability of, say, one half means a spike in every
#    second bin;
# 3. sound filters of both models.

# %%
import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting
from glmfit.demo import load_grasshopper

BIN_MS = 0.5  # of the recording, which has at most one spike in a bin
recording = load_grasshopper(10.0)
print(f"recorded: {recording.spikes.sum()} spikes in 10 s")

# %% [markdown]
# ## Features
#
# Raised cosines of the lag for the sound, and of the logarithm of the lag for
# past spikes. One more weight takes the refractory period of 2.5 ms.


# %%
def cosines(position, peaks):
    """Raised cosines with evenly spaced peaks, (position, peak)."""
    phase = (position[:, None] - peaks) / (peaks[1] - peaks[0]) * np.pi / 2
    return 0.5 * (1 + np.cos(np.clip(phase, -np.pi, np.pi)))


def design(factor):
    """Features and spikes in bins that pool `factor` bins of the recording."""
    bin_ms = BIN_MS * factor
    n = len(recording.spikes) // factor
    pooled = recording.spikes[: n * factor].reshape(n, factor).sum(axis=1)
    level = np.tanh(recording.level[: n * factor])
    level = level.reshape(n, factor).mean(axis=1)
    lag = bin_ms * np.arange(round(24 / bin_ms))
    sound = cosines(lag, np.arange(2.0, 22, 4))
    after = bin_ms * np.arange(1, round(30 / bin_ms))
    tail = cosines(np.log(after), np.log(np.geomspace(3, 24, 5)))
    history = np.column_stack([after <= 2.5, tail])
    columns = [np.convolve(level, bump)[:n] for bump in sound.T]
    for bump in history.T:
        columns.append(np.r_[0, np.convolve(pooled, bump)[: n - 1]])
    columns.append(np.log(bin_ms * np.arange(1, n + 1)))  # a slow decline
    X = np.column_stack(columns)
    X[: len(lag)] = np.nan  # no full past; fits drop these rows
    return X, pooled.astype(float), lag, sound


# %% [markdown]
# ## Two models in bins of four widths
#
# The logistic function and the exponential agree if the probability is small.
# The score is the log-likelihood of the last quarter. It compares the two
# models directly, because both give probabilities to the same counts.

# %%
MODELS = {"Poisson": "exp", "Bernoulli": "logistic"}


def fit(name, X, y):
    """A model of a family, on the first three quarters."""
    model = glmfit.PopulationGLM(
        MODELS[name], regularizer_strength=1e-5, observation_model=name
    )
    return model.fit(X[: 3 * len(X) // 4], y[: 3 * len(X) // 4])


widths = np.array([1, 2, 4, 6])
bits = {name: [] for name in MODELS}
fits = {}
for factor in widths:
    X, y, lag, sound = design(factor)
    late = slice(3 * len(X) // 4, None)
    for name in MODELS:
        model = fits[name, factor] = fit(name, X, y)
        score = model.score(X[late], y[late], score_type="log-likelihood")
        per_spike = score * len(y[late]) / y[late].sum() / np.log(2)
        bits[name].append(per_spike)
        assert model.report_.converged.all()
gain = np.subtract(bits["Bernoulli"], bits["Poisson"])
print("all fits converged")
for factor, more in zip(widths, gain):
    print(f"bins of {BIN_MS * factor} ms: {more:+.2f} bits per spike")

# %%
print(fits["Bernoulli", 2].report_)

# %% [markdown]
# ## The result in one figure
#
# Panel a: what the Bernoulli model gains, against the width of the bins.
# Panel b: for bins of 1 ms, the share of held-out bins with a spike against
# the predicted probability, in ten intervals of equally many bins. Pale bars
# show the range expected by chance from a correct model. Probabilities above
# 0.1 are about right, smaller ones are too large. Panel c: sound filters of
# both models in bins of 1 ms. The Bernoulli filter is the log-odds of a spike,
# that of the Poisson model the logarithm of its rate.

# %%
X, y, lag, sound = design(2)
late = slice(3 * len(X) // 4, None)
figure, axes = plt.subplots(1, 3, figsize=(10, 3.2), layout="constrained")
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
axes[0].plot(BIN_MS * widths, gain, "o-", ms=4, color=plotting.BLUE)
axes[0].set_ylim(0, None)
axes[0].set_xlabel("width of a bin (ms)", fontsize=9)
axes[0].set_ylabel("gain (bits per spike)", fontsize=9)
plotting.plot_calibration(
    {"Bernoulli": fits["Bernoulli", 2]}, X[late], y[late], ax=axes[1]
)
for name, color in zip(MODELS, (plotting.ORANGE, plotting.BLUE)):
    weights = fits[name, 2].coef_[: sound.shape[1]]
    plotting.plot_filter(
        sound, weights, 1e-3 * lag, color=color, label=name, ax=axes[2]
    )
axes[2].legend(frameon=False, fontsize=8)
plotting.label_panels(axes, ["held out", "bins of 1 ms", "sound filters"])
figure.savefig("14_spike_or_none.png", dpi=200)
