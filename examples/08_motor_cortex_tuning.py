# %% [markdown]
# # Motor cortex: tuning to direction and speed, and how far spikes lead
#
# Neurons in motor cortex are tuned to the direction of a movement, some of
# them also to its speed, and their spikes lead the hand by roughly a tenth of
# a second. A Poisson GLM with the velocity at several lags and its length
# describes all of this in one model, without choosing a lag by hand.
#
# **Question.** Which movements are the neurons tuned to, at which lag, and
# how much do several lags explain that the best single lag does not?
#
# **Data.** 171 neurons of macaque motor cortex during reaching, in bins of
# 50 ms (Stevenson et al., 2011). Without the recording, tuned neurons are
# simulated.
#
# **What you will see**
#
# 1. one fit of all neurons, each with a proved bound on its distance from the
#    optimum, although velocities at neighbouring lags are nearly the same;
# 2. held-out skill of single lags and of all lags together;
# 3. tuning curves of the model and the rates counted on held-out data.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import glmfit
from glmfit import plotting

# %% [markdown]
# ## The recording


# %%
def recorded_session(path):
    """Bin width (s), counts (time, neuron), velocity (time, 2) in m/s."""
    with np.load(path, allow_pickle=False) as file:
        velocity = file["velocity"][:, :2].astype(float)
        return float(file["bin_s"]), file["counts"], velocity


def simulated_session():
    """The same variables; smooth movements, which spikes lead by 100 ms."""
    rng = np.random.default_rng(8)
    n_bins, n_neurons, bin_s = 15_536, 171, 0.05
    kernel = np.exp(-0.5 * (np.arange(-12, 13) / 4) ** 2)
    noise = rng.normal(size=(2, n_bins))
    velocity = np.stack([np.convolve(x, kernel, "same") for x in noise], axis=1)
    velocity *= 0.08 / velocity.std()
    speed = np.linalg.norm(velocity, axis=1)
    angle = rng.uniform(0, 2 * np.pi, n_neurons)
    depth = rng.exponential(6.0, n_neurons)
    eta = velocity @ (depth * np.stack([np.cos(angle), np.sin(angle)]))
    eta += speed[:, None] * rng.normal(1, 2, n_neurons)
    base = np.log(rng.lognormal(1.3, 0.9, n_neurons) * bin_s)
    rate = np.logaddexp(0, base + np.roll(eta, -2, axis=0))
    return bin_s, rng.poisson(rate), velocity


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "m1_reach.npz"
if path.exists():
    print("recorded session")
    bin_s, counts, velocity = recorded_session(path)
else:
    print("simulated session")
    bin_s, counts, velocity = simulated_session()
n_bins, n_neurons = counts.shape
print(f"{n_bins * bin_s / 60:.0f} minutes, {n_neurons} neurons")

# %% [markdown]
# ## Features: the movement at several lags
#
# Lags run from 50 ms before the spike to 350 ms after it. A positive lag
# means that the spike comes first. At each lag the features are the two
# components of the velocity and the speed. Rows at the ends of the recording,
# where a lag reaches beyond the data, contain NaN and are dropped.

# %%
LAGS = np.arange(-1, 8)  # bins


def at_lags(signal, lags):
    """Values of a signal this many bins later, (time, lag * column)."""
    columns = []
    for lag in lags:
        moved = np.roll(signal, -lag, axis=0)
        later = np.arange(len(signal)) + lag
        moved[(later < 0) | (later >= len(signal))] = np.nan
        columns.append(moved)
    return np.concatenate(columns, axis=1)


speed = np.linalg.norm(velocity, axis=1)
movement = np.column_stack([velocity, speed])
X = at_lags(movement, LAGS)
known = np.isfinite(X).all(axis=1)

# %% [markdown]
# Neighbouring bins are similar, so whole stretches of time are held out:
# every fifth of ten blocks.

# %%
block = np.arange(n_bins) * 10 // n_bins
train, test = known & (block % 5 != 4), known & (block % 5 == 4)

# %% [markdown]
# ## One model with all lags
#
# The ridge is weak. It only decides between lags that the data cannot tell
# apart. The report lists the neurons with the largest gaps: every neuron has
# converged, and every gap is a proved bound.

# %%
model = glmfit.PopulationGLM(regularizer_strength=1e-5)
model.fit(X[train], counts[train])
print(model.report_)

# %% [markdown]
# ## Single lags
#
# For comparison, each lag has a model of its own, with velocity only and with
# velocity and speed: two or three coefficients per neuron. The score is the
# pseudo-$R^2$ on held-out data. In bins of 50 ms most of the variability of
# spike counts is not related to the movement, so values around 0.1 are typical
# of well-tuned neurons.
#
# The mean is taken over the neurons that are tuned at all, which is decided
# on the training data so that the held-out data favour no model.

# %%
score = model.score(X[test], counts[test], per_neuron=True)
in_training = model.score(X[train], counts[train], per_neuron=True)
tuned = (in_training > 0.02) & np.isfinite(score)

signals = {"velocity": velocity, "velocity and speed": movement}
by_lag = {name: [] for name in signals}
for name, signal in signals.items():
    for lag in LAGS:
        Z = at_lags(signal, [lag])
        single = glmfit.PopulationGLM(regularizer_strength=1e-5)
        single.fit(Z[train], counts[train])
        assert single.report_.converged.all()
        by_lag[name].append(
            single.score(Z[test], counts[test], per_neuron=True)
        )
skill = {
    name: np.array(values)[:, tuned].mean(axis=1)  # (lag,)
    for name, values in by_lag.items()
}
together = score[tuned].mean()

print(f"held-out pseudo-R2, mean of {tuned.sum()} tuned neurons")
for name, values in skill.items():
    at = 1000 * bin_s * LAGS[np.argmax(values)]
    print(
        f"  {name:<20} {values.max():.3f} at the best single lag, {at:.0f} ms"
    )
print(f"  {'all lags':<20} {together:.3f}")

# %% [markdown]
# In the recording, all lags together explain about twice as much as the best
# single lag, at which spikes lead the hand by 150 ms. A few neurons have a
# negative score: a constant rate predicts them better. The cause is drift. The
# rate of the lowest neuron, printed below, changes between training and
# held-out data, which no model of the movement can follow.

# %%
worst = np.nanargmin(score)
print(f"{np.sum(score < -0.02)} neurons score below -0.02")
print(
    f"lowest: neuron {worst} at {score[worst]:.2f}, "
    f"{counts[train, worst].mean() / bin_s:.2f} spikes/s in training, "
    f"{counts[test, worst].mean() / bin_s:.2f} held out"
)

# %% [markdown]
# ## Tuning curves
#
# Direction and speed are those of the hand at the best single lag. Dots are
# held-out counts, averaged over intervals of 30°. The line averages the rate
# that the model predicts in the same time bins, with a smooth kernel, so that
# both average over the same speeds and accelerations. Each panel shows a
# neuron that prefers another quarter of the circle, chosen for strong and well
# predicted tuning.

# %%
best = LAGS[np.argmax(skill["velocity and speed"])]
vx, vy = at_lags(velocity, [best]).T
hand_speed, direction = np.hypot(vx, vy), np.degrees(np.arctan2(vy, vx))
rate = np.full(counts.shape, np.nan)
rate[test] = model.predict(X[test])

moving = test & (hand_speed > 0.05)
phasor = np.exp(1j * np.radians(direction[moving]))
modulation = phasor @ (rate[moving] - rate[moving].mean(axis=0))
modulation /= rate[moving].sum(axis=0)
preferred = np.degrees(np.angle(modulation)) % 360
order = np.argsort(-np.nan_to_num(score) * np.abs(modulation))
shown = [order[preferred[order] // 90 == k][0] for k in range(4)]


def draw_tuning(x, rows, n, grid, kernel, edges, ax):
    """Counted rates with standard errors, and the model's smooth average."""
    k = np.digitize(x[rows], edges) - 1
    for b in range(len(edges) - 1):
        y = counts[rows, n][k == b] / bin_s
        ax.errorbar(
            (edges[b] + edges[b + 1]) / 2,
            y.mean(),
            y.std() / np.sqrt(len(y)),
            fmt="o",
            ms=3.5,
            color=plotting.BLACK,
            elinewidth=0.8,
            label="counted" if b == 0 else None,
        )
    weight = kernel(grid[:, None] - x[rows])
    curve = weight @ rate[rows, n] / weight.sum(axis=1) / bin_s
    ax.plot(grid, curve, color=plotting.BLUE, lw=1.6, label="model")
    ax.set_ylim(bottom=0)


def near_angle(difference):
    """A von Mises kernel, about 15 degrees wide."""
    return np.exp(14 * (np.cos(np.radians(difference)) - 1))


def near_speed(difference):
    """A Gaussian kernel, 20 mm/s wide."""
    return np.exp(-0.5 * (difference / 0.02) ** 2)


# %% [markdown]
# The speed tuning is that of the neuron whose predicted rate follows the
# speed most closely.

# %%
with np.errstate(invalid="ignore"):
    follows = [np.corrcoef(hand_speed[test], r)[0, 1] for r in rate[test].T]
fast = np.argmax(np.nan_to_num(score * np.abs(follows)))

figure, axes = plt.subplots(2, 4, figsize=(10, 5), layout="constrained")
for ax in axes.flat:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)

angles, sectors = np.linspace(-180, 180, 181), np.linspace(-180, 180, 13)
for ax, n in zip(axes[0], shown):
    draw_tuning(direction, moving, n, angles, near_angle, sectors, ax)
    ax.set_xticks([-180, -90, 0, 90, 180])
    ax.set_xlabel("direction of the hand (°)", fontsize=9)
axes[0, 0].set_ylim(top=1.3 * axes[0, 0].get_ylim()[1])
axes[0, 0].legend(frameon=False, fontsize=8, ncols=2, loc="upper left")

fastest = np.quantile(hand_speed[test], 0.99)
speeds, steps = np.linspace(0, fastest, 101), np.linspace(0, fastest, 10)
draw_tuning(hand_speed, test, fast, speeds, near_speed, steps, axes[1, 0])
axes[1, 0].set_xlabel("speed of the hand (m/s)", fontsize=9)
for ax in axes[:, 0]:
    ax.set_ylabel("rate (spikes/s)", fontsize=9)

lags_ms = 1000 * bin_s * LAGS
for (name, values), color in zip(
    skill.items(), (plotting.ORANGE, plotting.BLUE)
):
    axes[1, 1].plot(lags_ms, values, "o-", ms=3.5, color=color, label=name)
axes[1, 1].axhline(together, color=plotting.BLACK, lw=1.2, ls="--")
axes[1, 1].text(
    lags_ms[-1],
    1.02 * together,
    "velocity and speed, all lags",
    ha="right",
    va="bottom",
    fontsize=8,
)
low = min(values.min() for values in skill.values()) - 0.05 * together
axes[1, 1].set_ylim(low, 1.65 * together)
axes[1, 1].set_xlabel("lag, hand after spike (ms)", fontsize=9)
axes[1, 1].set_ylabel("held-out pseudo-$R^2$", fontsize=9)
axes[1, 1].legend(frameon=False, fontsize=8, loc="upper left", title_fontsize=8)

single = by_lag["velocity and speed"][list(LAGS).index(best)]
low, high = -0.1, 1.1 * np.nanmax(score)
x, y = np.maximum(single[tuned], low), np.maximum(score[tuned], low)
cut = (x == low) | (y == low)
axes[1, 2].axline((0, 0), slope=1, color=plotting.GREY, lw=0.8)
axes[1, 2].plot(
    x[~cut], y[~cut], "o", ms=3.5, mew=0, color=plotting.BLUE, alpha=0.6
)
if cut.any():
    axes[1, 2].plot(
        x[cut],
        y[cut],
        "<",
        ms=5,
        mew=0,
        color=plotting.RED,
        clip_on=False,
        label=f"{cut.sum()} below {low:g}",
    )
    axes[1, 2].legend(frameon=False, fontsize=8, loc="lower right")
axes[1, 2].set(xlim=(low, high), ylim=(low, high))
axes[1, 2].set_xlabel("pseudo-$R^2$, best single lag", fontsize=9)
axes[1, 2].set_ylabel("pseudo-$R^2$, all lags", fontsize=9)

per_neuron = np.array(by_lag["velocity and speed"])
well = tuned & (per_neuron.max(axis=0) > 0.02)
own_best = lags_ms[per_neuron[:, well].argmax(axis=0)]
width = 1000 * bin_s
axes[1, 3].hist(
    own_best,
    np.append(lags_ms, lags_ms[-1] + width) - width / 2,
    color=plotting.BLUE,
    edgecolor="white",
)
axes[1, 3].set_xlabel("best single lag (ms)", fontsize=9)
axes[1, 3].set_ylabel("neurons", fontsize=9)

titles = [f"neuron {n}" for n in [*shown, fast]]
titles += [
    f"mean of {tuned.sum()} tuned neurons",
    "each tuned neuron",
    f"{well.sum()} neurons above 0.02",
]
plotting.label_panels(axes, titles)
figure.savefig("08_motor_cortex_tuning.png", dpi=200)
