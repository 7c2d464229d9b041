"""Pynapple in, pynapple out: tuning of head-direction cells.

When your data are pynapple objects, hand them over as they are. glmfit checks that features and counts have the same
times, fits, and gives predictions back with times, epochs and neuron names. You will see

1. counts from a TsGroup, features as a TsdFrame on the same bins;
2. training and testing on epochs (IntervalSet);
3. that a shifted time axis is refused, rather than fitted;
4. tuning curves of the model beside those counted from the data.

Run it with ``python examples/02_pynapple.py [figure.png]``.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np
import pynapple as nap

import glmfit

BIN_S = 0.02
rng = np.random.default_rng(2)

# --- A simulated session: the head turns at random for ten minutes; eight cells each prefer one direction.
session = nap.IntervalSet(0, 600)
t = np.arange(0, 600, BIN_S) + BIN_S / 2
speed = np.convolve(rng.normal(0, 1.5, len(t)), np.exp(-np.arange(100) / 25), "same")  # rad/s
angle = nap.Tsd(t=t, d=np.cumsum(speed) * BIN_S % (2 * np.pi), time_support=session)
preferred = np.linspace(0, 2 * np.pi, 8, endpoint=False)
rate_hz = 1 + 18 * np.exp(4 * (np.cos(angle.d[:, None] - preferred) - 1))
drawn = rng.poisson(rate_hz * BIN_S)
times = [np.repeat(t, n) + rng.uniform(-BIN_S / 2, BIN_S / 2, n.sum()) for n in drawn.T]
spikes = nap.TsGroup(
    {i: nap.Ts(np.sort(x)) for i, x in enumerate(times)},
    time_support=session,
    metadata={"preferred": preferred},
)

# --- Counts and features on the same bins. value_from takes the angle at the time of each bin.
counts = spikes.count(BIN_S)  # TsdFrame (time, neuron), with the metadata of the group
theta = counts.value_from(angle)
harmonics = {f"{f.__name__} {k}": f(k * theta.d) for k in (1, 2, 3) for f in (np.cos, np.sin)}
X = nap.TsdFrame(t=counts.t, d=np.column_stack(list(harmonics.values())), columns=list(harmonics))

# --- Train on two epochs, test on the one between them.
train = nap.IntervalSet(start=[0, 400], end=[250, 600])
test = nap.IntervalSet(start=250.01, end=399.99)
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X.restrict(train), counts.restrict(train))
print(model.report_)
held_out = model.score(X.restrict(test), counts.restrict(test), per_neuron=True)
print("\nheld-out pseudo-R2 per neuron:", np.round(held_out, 3))

# --- Predictions know when they are, and whose.
rate = model.predict(X.restrict(test))  # expected counts per bin
print(f"\npredict returns a {type(rate).__name__} of shape {rate.shape} with metadata {list(rate.metadata_columns)}")

# --- A shifted clock is a mistake that fits without complaint in most packages. Here it is an error.
late = nap.TsdFrame(t=X.t + 0.5, d=X.d, columns=X.columns)
try:
    model.fit(late, counts)
except ValueError as error:
    print(f"\nrefused: {error}")

# --- Tuning curves: counted from spikes, and of the model's rate, both on held-out time.
counted = nap.compute_tuning_curves(spikes, angle, bins=24, range=(0, 2 * np.pi), epochs=test)
modelled = nap.compute_tuning_curves(rate / BIN_S, angle, bins=24, range=(0, 2 * np.pi), epochs=test)
degrees = np.degrees(np.asarray(counted[counted.dims[1]]))
figure, axes = plt.subplots(2, 4, figsize=(6.8, 3.2), sharex=True, sharey=True, layout="constrained")
for neuron, ax in enumerate(axes.flat):
    ax.plot(degrees, counted.values[neuron], "o", ms=3, color="0.5", label="counted")
    ax.plot(degrees, modelled.values[neuron], color="#0072B2", label="model")
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_xticks([0, 180, 360])
    ax.set_title(f"neuron {counts.columns[neuron]}", fontsize=9)
axes[0, 0].legend(frameon=False, fontsize=7)
figure.supxlabel("head direction (degrees)", fontsize=9)
figure.supylabel("rate (spikes/s)", fontsize=9)
path = sys.argv[1] if len(sys.argv) > 1 else "02_pynapple.png"
figure.savefig(path, dpi=200)
print(f"\nfigure: {path}")
