# %% [markdown]
# # Pynapple in, pynapple out: tuning of head-direction cells
#
# Hand over pynapple objects as they are. glmfit checks that features and
# counts have the same times, fits, and gives predictions back with times,
# epochs and neuron names.
#
# **Question.** How does the rate of each cell depend on the direction of the
# head?
#
# **What you will see**
#
# 1. counts from a TsGroup, and features as a TsdFrame on the same bins;
# 2. training and testing on epochs (IntervalSet);
# 3. an error for a shifted clock, which most packages fit without complaint;
# 4. tuning curves of the model and of the data on held-out time.

# %%
import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit

BIN_S = 0.02
rng = np.random.default_rng(2)

# %% [markdown]
# ## A simulated session
#
# The head turns at random for ten minutes. Each of eight cells prefers one
# direction.

# %%
session = nap.IntervalSet(0, 600)
t = np.arange(0, 600, BIN_S) + BIN_S / 2
memory = np.exp(-np.arange(100) / 25)
speed = np.convolve(rng.normal(0, 1.5, len(t)), memory, "same")  # rad/s
turned = np.cumsum(speed) * BIN_S % (2 * np.pi)
angle = nap.Tsd(t=t, d=turned, time_support=session)
preferred = np.linspace(0, 2 * np.pi, 8, endpoint=False)
tuning = np.exp(4 * (np.cos(angle.d[:, None] - preferred) - 1))
drawn = rng.poisson((1 + 18 * tuning) * BIN_S)
half = BIN_S / 2
times = [np.repeat(t, n) + rng.uniform(-half, half, n.sum()) for n in drawn.T]
spikes = nap.TsGroup(
    {i: nap.Ts(np.sort(x)) for i, x in enumerate(times)},
    time_support=session,
    metadata={"preferred": preferred},
)

# %% [markdown]
# ## Counts and features on the same bins
#
# `count` keeps the metadata of the group. `value_from` takes the angle at the
# time of each bin.

# %%
counts = spikes.count(BIN_S)  # TsdFrame (time, neuron)
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
# ## Train on two epochs, test on the one between them

# %%
train = nap.IntervalSet(start=[0, 400], end=[250, 600])
test = nap.IntervalSet(start=250.01, end=399.99)
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X.restrict(train), counts.restrict(train))
print(model.report_)

# %%
held_out = model.score(X.restrict(test), counts.restrict(test), per_neuron=True)
print("held-out pseudo-R2 per neuron:", np.round(held_out, 3))

# %% [markdown]
# ## Predictions know their times and neurons

# %%
rate = model.predict(X.restrict(test))  # expected counts per bin
print(type(rate).__name__, rate.shape, list(rate.metadata_columns))

# %% [markdown]
# ## A shifted clock is an error

# %%
late = nap.TsdFrame(t=X.t + 0.5, d=X.d, columns=X.columns)
try:
    model.fit(late, counts)
except ValueError as error:
    print(error)

# %% [markdown]
# ## Tuning curves on held-out time
#
# Dots are counted from the spikes; lines are the model's rate, averaged in
# the same 24 bins of direction.

# %%
bins = {"bins": 24, "range": (0, 2 * np.pi), "epochs": test}
counted = nap.compute_tuning_curves(spikes, angle, **bins)
modelled = nap.compute_tuning_curves(rate / BIN_S, angle, **bins)
degrees = np.degrees(np.asarray(counted[counted.dims[1]]))
figure, axes = plt.subplots(
    2, 4, figsize=(7.6, 3.4), sharex=True, sharey=True, layout="constrained"
)
for neuron, ax in enumerate(axes.flat):
    dots = ax.plot(degrees, counted.values[neuron], "o", ms=3, color="0.5")
    line = ax.plot(degrees, modelled.values[neuron], color="#0072B2")
    ax.axvline(np.degrees(preferred[neuron]), color="0.85", lw=1, zorder=0)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xticks([0, 120, 240, 360])
    ax.tick_params(labelsize=8)
    ax.set_title(f"neuron {counts.columns[neuron]}", fontsize=9)
figure.legend(
    [*dots, *line, plt.Line2D([], [], color="0.85")],
    ["counted", "model", "preferred (simulated)"],
    loc="outside upper center",
    ncols=3,
    frameon=False,
    fontsize=9,
)
figure.supxlabel("head direction (°)", fontsize=9)
figure.supylabel("rate (spikes/s)", fontsize=9)
figure.savefig("02_pynapple.png", dpi=200)
