"""Motor cortex: which movements 171 neurons are tuned to, and how far ahead of them they fire.

Neurons of motor cortex fire for directions of movement, and some for its speed; their spikes lead the hand by about a
tenth of a second. A Poisson GLM of the velocity at several lags, and of its length, has all of this in one model: no
lag is chosen by hand. You will see

1. all neurons fitted at once, each with a proof of how far it is from its optimum, although lagged velocities are so
   alike that solvers find them hard;
2. what is explained of held-out minutes, by the velocity at single lags, with the speed, and by all lags together;
3. tuning curves of the model beside the rates counted in the held-out minutes.

Run it with ``python examples/08_motor_cortex_tuning.py [figure.png] [m1_reach.npz or simulated]``. The recording
(macaque motor cortex, Stevenson et al. 2011; fields bin_s, counts, velocity) is not shipped. Where none is named it is
looked for in ../shared/data beside the checkout; where that is not, tuned neurons are simulated.
"""

import sys
from pathlib import Path

import numpy as np

import glmfit
from glmfit import plotting

LAGS = range(-1, 8)  # bins of 50 ms; positive: the spikes come before the movement
SINGLE = LAGS[::2]  # those looked at one by one
BLOCKS = 10  # stretches of time, of which every fifth is held out


def simulated_recording():
    """Thirteen minutes of smooth movement, and 171 Poisson neurons that lead it by 100 ms."""
    rng = np.random.default_rng(8)
    n_bins, bin_s = 15_536, 0.05
    kernel = np.exp(-0.5 * (np.arange(-12, 13) / 4) ** 2)
    velocity = np.stack([np.convolve(rng.normal(size=n_bins), kernel, "same") for _ in range(2)], axis=1)
    velocity *= 0.08 / velocity.std()  # m/s
    speed = np.linalg.norm(velocity, axis=1)
    angle, depth = rng.uniform(0, 2 * np.pi, 171), rng.exponential(6.0, 171)
    eta = velocity @ (depth * np.stack([np.cos(angle), np.sin(angle)])) + speed[:, None] * rng.normal(1, 2, 171)
    rate = np.logaddexp(0, np.log(rng.lognormal(1.3, 0.9, 171) * bin_s) + np.roll(eta, -2, axis=0))
    return bin_s, rng.poisson(rate), velocity


def recorded(path):
    """Width of a bin (s), spike counts (time, neuron), velocity of the hand in the plane (time, 2) in m/s."""
    with np.load(path, allow_pickle=False) as file:
        return float(file["bin_s"]), file["counts"], file["velocity"][:, :2].astype(float)


beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "m1_reach.npz"
given = sys.argv[2] if len(sys.argv) > 2 else beside if beside.exists() else "simulated"
bin_s, counts, velocity = simulated_recording() if given == "simulated" else recorded(given)
n_bins, n_neurons = counts.shape
print(f"{'simulated' if given == 'simulated' else 'recorded'}: {n_bins * bin_s / 60:.0f} minutes, {n_neurons} neurons")


# --- Features: what the hand does some bins later than the spikes. Rows at the ends, without it, are NaN: left out.
def at_lags(signal, lags):
    """Values of a signal so many bins after each time, (time, lag * column)."""
    columns = []
    for lag in lags:
        moved = np.full((len(signal), signal[0].size), np.nan)
        inside = np.arange(max(0, -lag), min(len(signal), len(signal) - lag))
        moved[inside] = signal[inside + lag].reshape(len(inside), -1)
        columns.append(moved)
    return np.concatenate(columns, axis=1)


speed = np.linalg.norm(velocity, axis=1)
moves = np.column_stack([velocity, speed])
X = at_lags(moves, LAGS)

# --- Every fifth block of time is held out: neighbouring bins are alike, so whole stretches of time must be.
known = np.isfinite(X).all(axis=1)
block = np.arange(n_bins) * BLOCKS // n_bins
train, test = known & (block % 5 != 4), known & (block % 5 == 4)

# --- 1. One model with all lags. The ridge is weak: it only decides between lags that the data cannot tell apart.
model = glmfit.PopulationGLM(regularizer_strength=1e-5).fit(X[train], counts[train])
print(model.report_)
score = model.score(X[test], counts[test], per_neuron=True)
# Which neurons are tuned is decided in training time, so that held-out time favours no model. (Some are silent there.)
tuned = np.flatnonzero((model.score(X[train], counts[train], per_neuron=True) > 0.02) & np.isfinite(score))

# --- 2. Beside it models of one lag each, with and without speed: two or three numbers per neuron.
one_lag = {}
for name, signal in {"velocity": velocity, "velocity and speed": moves}.items():
    for lag in SINGLE:
        Z = at_lags(signal, [lag])
        single = glmfit.PopulationGLM(regularizer_strength=1e-5).fit(Z[train], counts[train])
        one_lag[name, lag] = single.score(Z[test], counts[test], per_neuron=True)
        assert single.report_.converged.all()
curves = {name: [one_lag[name, lag][tuned].mean() for lag in SINGLE] for name in ("velocity", "velocity and speed")}
best = SINGLE[int(np.argmax(curves["velocity and speed"]))]
print(f"\nheld-out pseudo-R2, mean of {len(tuned)} tuned neurons (chosen above 0.02 in training time, with all lags):")
for name, values in curves.items():
    print(f"  {name:<20} {max(values):.3f} at the best single lag")
print(f"  {'all lags':<20} {score[tuned].mean():.3f}")
print(f"best single lag: spikes {1000 * best * bin_s:.0f} ms ahead of the hand")
worst = np.nanargmin(score)
before, after = counts[train, worst].mean() / bin_s, counts[test, worst].mean() / bin_s
print(f"{np.sum(score < -0.02)} neurons below -0.02; the lowest is neuron {worst}, at {score[worst]:.2f}: "
      f"{before:.2f} spikes/s in training time, {after:.2f} in held-out time")  # fmt: skip

# --- 3. Figure. Direction of the movement that follows, where the hand moves; counts are those of held-out time.
ahead = at_lags(velocity, [best])
fast = test & (np.linalg.norm(ahead, axis=1) > 0.05)
direction = np.degrees(np.arctan2(ahead[:, 1], ahead[:, 0]))
rate = np.full(counts.shape, np.nan)
rate[test] = model.predict(X[test])

# Of the neurons most tuned to direction, and explained best, one for each quarter of the circle.
around = np.exp(1j * np.deg2rad(direction[fast])) @ (rate[fast] - rate[fast].mean(axis=0)) / rate[fast].sum(axis=0)
preferred = np.degrees(np.angle(around)) % 360
order = np.argsort(-np.nan_to_num(score) * np.abs(around))
shown = [order[(preferred[order] // 90) == quarter][0] for quarter in range(4)]

axes = plotting.new_axes((1, 1, 1, 1), (1, 1), size=(9.4, 4.9))
for ax, n in zip(axes[0], shown, strict=True):
    plotting.plot_tuning(
        direction[fast], counts[fast, n], rate[fast, n], bin_s=bin_s, edges=np.linspace(-180, 180, 13),
        xlabel="direction of the hand (°)", ax=ax,
    )  # fmt: skip
    ax.set_xticks([-180, -90, 0, 90, 180])
axes[0, 0].set_ylim(top=1.25 * axes[0, 0].get_ylim()[1])
axes[0, 0].legend(frameon=False, fontsize=8, loc="upper left", ncols=2, columnspacing=1)
by_speed = at_lags(speed[:, None], [best])[:, 0]
modulated = np.nan_to_num(score) * np.abs([np.corrcoef(by_speed[test], r)[0, 1] for r in rate[test].T])
fastest = np.quantile(by_speed[test], 0.99)
plotting.plot_tuning(
    by_speed[test], counts[test, np.argmax(modulated)], rate[test, np.argmax(modulated)], bin_s=bin_s,
    edges=np.linspace(0, fastest, 10), xlabel="speed of the hand (m/s)", ax=axes[1, 0],
)  # fmt: skip
lags_ms = 1000 * bin_s * np.array(SINGLE)
for (name, values), color in zip(curves.items(), (plotting.ORANGE, plotting.BLUE), strict=True):
    axes[1, 1].plot(lags_ms, values, "o-", ms=3.5, lw=1.3, color=color, label=name)
axes[1, 1].axhline(score[tuned].mean(), color=plotting.BLACK, lw=1, ls="--", label="all lags together")
axes[1, 1].set(ylim=(min(0, 1.3 * min(map(min, curves.values()))), 1.45 * score[tuned].mean()))
axes[1, 1].set_xlabel("hand after spikes (ms)", fontsize=9)
axes[1, 1].set_ylabel("held-out pseudo-$R^2$", fontsize=9)
axes[1, 1].legend(frameon=False, fontsize=7.5, loc="upper left")
plotting.plot_recovery(
    one_lag["velocity and speed", best], score, xlabel="pseudo-$R^2$, best single lag", ylabel="all lags", ax=axes[1, 2]
)
axes[1, 2].get_lines()[-1].set(markersize=5, alpha=0.6)
low = -0.2
axes[1, 2].set_xlim(left=low)
axes[1, 2].set_ylim(bottom=low)
drawn = score > low  # not those without a score
plotting.plot_scores(score[drawn], xlabel="held-out pseudo-$R^2$, all lags", ax=axes[1, 3])
titles = [f"neuron {n}" for n in shown] + [
    f"neuron {np.argmax(modulated)}",
    f"mean of {len(tuned)} tuned neurons",
    "all lags against one",
    f"{drawn.sum()} of {n_neurons}, above {low:g}",
]
plotting.label_panels(axes, titles)
path = sys.argv[1] if len(sys.argv) > 1 else "08_motor_cortex_tuning.png"
axes[0, 0].figure.savefig(path)
print(f"\nfigure: {path}")
