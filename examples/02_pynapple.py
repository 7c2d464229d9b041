# %% [markdown]
# # Pynapple in, pynapple out: tuning of head-direction cells
#
# Pynapple objects carry their times, epochs and the names of neurons. glmfit
# takes them as they are, checks that features and counts share the same time
# bins, and returns predictions as pynapple objects.
#
# **Question.** How does the rate of each cell depend on the direction of the
# head?
#
# **Data.** Eight simulated head-direction cells, ten minutes.
#
# **What you will see**
#
# 1. counts from a `TsGroup` and features as a `TsdFrame` in the same bins;
# 2. training and testing on epochs (`IntervalSet`);
# 3. what happens when features and counts are shifted in time;
# 4. tuning curves of the model next to those counted from the data.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit
from glmfit import plotting

# %% [markdown]
# ## The session
#
# The head turns at random. Each cell prefers one direction and fires at up to
# 19 spikes/s there and at 1 spike/s elsewhere.

# %%
BIN_S = 0.02
rng = np.random.default_rng(2)

session = nap.IntervalSet(0, 600)
t = np.arange(0, 600, BIN_S) + BIN_S / 2
memory = np.exp(-np.arange(100) / 25)
speed = np.convolve(rng.normal(0, 1.5, len(t)), memory, "same")  # rad/s
angle = nap.Tsd(
    t=t, d=np.cumsum(speed) * BIN_S % (2 * np.pi), time_support=session
)
preferred = np.linspace(0, 2 * np.pi, 8, endpoint=False)
rate_hz = 1 + 18 * np.exp(4 * (np.cos(angle.d[:, None] - preferred) - 1))
drawn = rng.poisson(rate_hz * BIN_S)
times = [
    np.repeat(t, n) + rng.uniform(-BIN_S / 2, BIN_S / 2, n.sum())
    for n in drawn.T
]
spikes = nap.TsGroup(
    {i: nap.Ts(np.sort(x)) for i, x in enumerate(times)},
    time_support=session,
    metadata={"preferred": preferred},
)
print(spikes)

# %% [markdown]
# ## Counts and features in the same bins
#
# `count` bins the spikes, and `value_from` reads the angle at the time of each
# bin. Three harmonics of the angle describe a smooth periodic tuning curve:
#
# $$\eta_t = b + \sum_{k=1}^{3} a_k \cos(k\theta_t) + c_k \sin(k\theta_t).$$

# %%
counts = spikes.count(BIN_S)  # (time, neuron), with the metadata of the group
theta = counts.value_from(angle)
harmonics = {
    f"{f.__name__} {k}": f(k * theta.d)
    for k in (1, 2, 3)
    for f in (np.cos, np.sin)
}
X = nap.TsdFrame(
    t=counts.t,
    d=np.column_stack(list(harmonics.values())),
    columns=list(harmonics),
)

# %% [markdown]
# ## Fit on two epochs, test on the one between them

# %%
train = nap.IntervalSet(start=[0, 400], end=[250, 600])
test = nap.IntervalSet(start=250.01, end=399.99)
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X.restrict(train), counts.restrict(train))
print(model.report_)

# %%
score = model.score(X.restrict(test), counts.restrict(test), per_neuron=True)
print("held-out pseudo-R2 per neuron:", np.round(score, 3))

# %% [markdown]
# Predictions are pynapple objects, too. They keep the times, the names of the
# neurons and their metadata.

# %%
rate = model.predict(X.restrict(test))  # expected counts per bin
print(f"{type(rate).__name__} of shape {rate.shape}")
print(f"columns {list(rate.columns)}, metadata {list(rate.metadata_columns)}")

# %% [markdown]
# ## A shifted clock is an error
#
# Two devices with different clocks are a common mistake. Arrays of the same
# length would fit without complaint. With pynapple objects, glmfit compares
# the times and refuses.

# %%
late = nap.TsdFrame(t=X.t + 0.5, d=X.d, columns=X.columns)
try:
    model.fit(late, counts)
except ValueError as error:
    print(f"ValueError: {error}")

# %% [markdown]
# ## Tuning curves
#
# Both curves are computed by pynapple on held-out time: one from the spikes,
# the other from the rate that the model predicts. Bars show the standard error
# of the counted rate, its square root divided by the square root of the time
# that the head spent in each direction.

# %%
whole_turn = {"bins": 24, "range": (0, 2 * np.pi), "epochs": test}
counted = nap.compute_tuning_curves(spikes, angle, **whole_turn)
modelled = nap.compute_tuning_curves(rate / BIN_S, angle, **whole_turn)
degrees = np.degrees(np.asarray(counted[counted.dims[1]]))
visits = np.histogram(angle.restrict(test).d, 24, (0, 2 * np.pi))[0]
spent_s = visits * BIN_S

figure, axes = plt.subplots(
    2, 4, figsize=(7.4, 3.8), sharex=True, sharey=True, layout="constrained"
)
for neuron, ax in enumerate(axes.flat):
    y = counted.values[neuron]
    ax.errorbar(
        degrees,
        y,
        np.sqrt(y / spent_s),
        fmt="o",
        ms=2.5,
        color=plotting.GREY,
        elinewidth=0.8,
        label="counted on held-out time",
    )
    ax.plot(
        degrees,
        modelled.values[neuron],
        color=plotting.BLUE,
        lw=1.6,
        label="model",
    )
    ax.spines[["top", "right"]].set_visible(False)
    ax.set(xlim=(0, 360), xticks=[0, 120, 240, 360], ylim=(0, 25))
    ax.set_xticks(range(60, 360, 120), minor=True)
    ax.tick_params(labelsize=7.5)
    # Labels at the ends of an axis lie inside it, clear of the next panel.
    for label, side in zip(
        ax.get_xticklabels(), ("left", *["center"] * 2, "right")
    ):
        label.set_horizontalalignment(side)
    ax.set_title(f"neuron {counts.columns[neuron]}", fontsize=9)
figure.legend(
    *axes[0, 0].get_legend_handles_labels(),
    loc="outside upper right",
    ncols=2,
    frameon=False,
    fontsize=8,
)
figure.supxlabel("head direction (°)", fontsize=9)
figure.supylabel("rate (spikes/s)", fontsize=9)
figure.savefig("02_pynapple.png", dpi=200)
