# %% [markdown]
# # Motor cortex: decoding the direction of a reach from few trials
#
# Which of eight directions does the arm reach in, given the spike counts of 171
# neurons around the onset? There are fewer trials than neurons, so the decoder
# needs a ridge, and the right step of gradient descent changes with the ridge
# and the trials. Bound majorization has no step to choose. It minimises a
# quadratic that lies above the objective and touches it, so the objective
# decreases in every iteration.
#
# **Question.** How many trials does a decoder need, and how safely can it be
# fitted?
#
# **Data.** Macaque motor cortex during reaching (Stevenson et al., 2011).
# Without the recording, cosine-tuned neurons are simulated.
#
# **What you will see**
#
# 1. fits from a confidently wrong start: bound majorization, and gradient
#    descent with steps that are too short, right and too long;
# 2. the report, with a proved bound on the distance from the optimum;
# 3. decoding errors on held-out blocks of time against the number of training
#    trials, and which directions are confused.

# %%
import os
from pathlib import Path

import jax
import matplotlib.pyplot as plt
import numpy as np
from scipy.signal import find_peaks
from scipy.special import log_softmax
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from threadpoolctl import threadpool_limits

import glmfit
from glmfit import plotting
from glmfit.problems import Pairs, Params, SoftmaxProblem
from glmfit.solvers import BoundMajorization

N_DIRECTIONS = 8
one_thread = threadpool_limits(1)  # the matrices are small

# %% [markdown]
# ## The recording


# %%
def recorded_session(path):
    """Bin width (s), counts (time, neuron), velocity (time, 2) in m/s."""
    with np.load(path, allow_pickle=False) as file:
        velocity = file["velocity"][:, :2].astype(float)
        return float(file["bin_s"]), file["counts"], velocity


def simulated_session():
    """The same variables: 190 reaches, 171 neurons that lead by 100 ms."""
    rng = np.random.default_rng(6)
    bin_s, n_reaches, n_neurons = 0.05, 190, 171
    t = np.arange(0, 770, bin_s)
    out_s = 2 + 4 * np.arange(n_reaches) + rng.uniform(0, 1, n_reaches)
    angle = rng.integers(0, N_DIRECTIONS, n_reaches) * 2 * np.pi / N_DIRECTIONS
    angle += rng.normal(0, 0.12, n_reaches)
    toward = np.column_stack([np.cos(angle), np.sin(angle)])

    def bells(centre_s, sd_s):
        return np.exp(-(((t[:, None] - centre_s) / sd_s) ** 2) / 2) @ toward

    # Fast and outward, then slowly back.
    velocity = 0.3 * bells(out_s, 0.12) - 0.12 * bells(out_s + 1.8, 0.3)
    preferred = rng.uniform(0, 2 * np.pi, n_neurons)
    depth = rng.exponential(0.6, n_neurons)  # of the tuning at 0.3 m/s
    drive = np.roll(velocity, -2, axis=0) / 0.3
    drive = drive @ np.stack([np.cos(preferred), np.sin(preferred)])
    mean_hz = rng.lognormal(2.2, 1.0, n_neurons)
    rate_hz = mean_hz * np.maximum(1 + depth * drive, 0)
    return bin_s, rng.poisson(rate_hz * bin_s), velocity


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "m1_reach.npz"
if path.exists():
    print("recorded session")
    bin_s, counts, velocity = recorded_session(path)
else:
    print("simulated session")
    bin_s, counts, velocity = simulated_session()

# %% [markdown]
# ## Trials
#
# A reach is a peak of the speed above 0.2 m/s. Its direction is that of the
# velocity at the peak, and its onset is the moment at which the speed leaves a
# fifth of the peak. Features are the square roots of the spike counts from
# 200 ms before the onset to 200 ms after it; the root makes their variance
# nearly independent of their mean.

# %%
FAST_M_S, WINDOW_S = 0.2, 0.2
speed = np.linalg.norm(velocity, axis=1)
window = round(WINDOW_S / bin_s)
peak, _ = find_peaks(speed, height=FAST_M_S, distance=round(1 / bin_s))
onset = np.array([k - np.argmax(speed[k::-1] < speed[k] / 5) for k in peak])
angle = np.arctan2(velocity[peak, 1], velocity[peak, 0])
direction = np.round(angle * N_DIRECTIONS / (2 * np.pi)).astype(int)
direction %= N_DIRECTIONS
around = [counts[k - window : k + window] for k in onset]
X = np.sqrt([c.sum(axis=0, dtype=float) for c in around])  # (trial, neuron)
n_trials, n_neurons = X.shape
print(f"{n_trials} reaches, {n_neurons} neurons")

# %% [markdown]
# ## A confidently wrong start
#
# The start has random weights, scaled so that scores reach 1000: probabilities
# are 0 or 1, and mostly wrong. A solver that survives this start survives any.
# Features are centred, which helps gradient descent.

# %%
RIDGES, BLOCKS = (0.003, 0.03, 0.3), 5
MAX_PASSES, RELAXATIONS, STEPS = 300, (1.0, 1.5, 1.9), (0.1, 1.0, 10.0)

trials = np.arange(n_trials)
first = trials[: n_trials - n_trials // BLOCKS]  # all but the last block
Z = X[first] - X[first].mean(axis=0)
label, n, ridge = direction[first], len(first), RIDGES[1]
pairs = Pairs(np.arange(n), label, np.ones(n))
rng = np.random.default_rng(0)
start = rng.normal(size=(n_neurons, N_DIRECTIONS))
start -= start.mean(axis=1, keepdims=True)  # changes no probability
start *= 1000 / np.abs(Z @ start).max()


def majorize(ridge, relaxation):
    """Passes over the trials, and the objective after every iteration."""
    solver = BoundMajorization(relaxation=relaxation)
    problem = SoftmaxProblem(Z, pairs, N_DIRECTIONS, ridge).exact
    params = Params(start, np.zeros(N_DIRECTIONS))
    params, state = solver.init_state(problem, params, key=jax.random.key(0))
    path = [(1, state.objective[0])]
    while path[-1][0] < MAX_PASSES:
        params, state = solver.update(problem, params, state)
        path.append((state.row_evals / n, state.objective[0]))
    return np.array(path).T


def descend(ridge, step):
    """The same for gradient descent, which takes one pass per iteration."""
    W, b, objective = start, np.zeros(N_DIRECTIONS), []
    for _ in range(MAX_PASSES):
        log_p = log_softmax(Z @ W + b, axis=1)
        loss = -log_p[np.arange(n), label].mean()
        objective.append(loss + ridge / 2 * np.sum(W**2))
        residual = (np.exp(log_p) - np.eye(N_DIRECTIONS)[label]) / n
        W = W - step * (Z.T @ residual + ridge * W)
        b = b - step * residual.sum(axis=0)
    return np.arange(1, MAX_PASSES + 1), np.array(objective)


# %% [markdown]
# The table has the distance from the optimum after 300 passes over the trials,
# and in brackets the number of iterations in which the objective increased.
# Columns are gradient descent (GD) by step, and bound majorization (BM) by
# relaxation.
#
# An iteration of bound majorization takes about three passes. Its relaxation
# may be any number below 2, and the objective never increases. For gradient
# descent, each ridge has another best step, and a step of 10 diverges at the
# strongest ridge.

# %%
header = "ridge" + "".join(f"{f'GD {s:g}':>13}" for s in STEPS)
print(header + "".join(f"{f'BM {r:g}':>13}" for r in RELAXATIONS))
paths = {}
for strength in RIDGES:
    best = glmfit.SoftmaxGLM(regularizer_strength=strength, tol=1e-10)
    report = best.fit(Z, label).report_
    lowest = report.objective - report.gap  # proved: no model is lower
    runs = [descend(strength, s) for s in STEPS]
    runs += [majorize(strength, r) for r in RELAXATIONS]
    paths[strength] = [(passes, f - lowest) for passes, f in runs]
    cells = [
        f"{gap[-1]:.0e} ({np.sum(np.diff(gap) > 0)})"
        for _, gap in paths[strength]
    ]
    print(f"{strength:<5g}" + "".join(f"{cell:>13}" for cell in cells))

# %% [markdown]
# ## The estimator and its report
#
# `SoftmaxGLM` starts from the frequencies of the directions. With bound
# majorization, the report names the theorem by which every step is safe. The
# default solver, NewtonCG, searches along lines for its steps and needs fewer
# passes to reach the same certificate.

# %%
model = glmfit.SoftmaxGLM(
    solver_name="BoundMajorization", regularizer_strength=ridge
)
model.fit(X[first], label)
print(model.report_)
default = glmfit.SoftmaxGLM(regularizer_strength=ridge).fit(X[first], label)
print("\npasses over the trials:", end=" ")
print(f"BoundMajorization {model.report_.row_evals / n:.0f}", end=", ")
print(f"{default.report_.solver_name} {default.report_.row_evals / n:.0f}")

# %% [markdown]
# ## Decoding held-out blocks of time
#
# Each of five blocks of consecutive trials is decoded by models trained on 2, 4
# or 8 trials per direction of the other blocks, or on all of them. Slow changes
# of the recording therefore count as errors. The ridge is chosen by
# cross-validation within the training trials.

# %%
PER_DIRECTION = (2, 4, 8, None)  # None: all
decoder = glmfit.SoftmaxGLM(
    solver_name="BoundMajorization", tol=1e-2, max_epochs=5000
)
decoded = np.zeros((len(PER_DIRECTION), n_trials), int)
n_used, errors, chosen = np.zeros((3, len(PER_DIRECTION), BLOCKS))
reports = []
for block, held_out in enumerate(np.array_split(trials, BLOCKS)):
    others = rng.permutation(np.setdiff1d(trials, held_out))
    for size, most in enumerate(PER_DIRECTION):
        parts = [
            others[direction[others] == d][:most] for d in range(N_DIRECTIONS)
        ]
        train = np.sort(np.concatenate(parts))
        fewest = np.bincount(direction[train]).min()
        search = GridSearchCV(
            decoder,
            {"regularizer_strength": RIDGES},
            scoring="neg_log_loss",
            cv=StratifiedKFold(min(3, fewest)),  # stretches of time
        )
        search.fit(X[train], direction[train])
        guess = search.predict(X[held_out])
        decoded[size, held_out] = guess
        n_used[size, block] = len(train)
        chosen[size, block] = search.best_params_["regularizer_strength"]
        errors[size, block] = np.mean(guess != direction[held_out])
        reports.append(search.best_estimator_.report_)

proved = [r.gap for r in reports if r.converged and r.gap_is_bound]
print(f"{len(proved)} of {len(reports)} decoders converged with a proved gap,")
print(f"the largest {max(proved):.1e} nats")

# %% [markdown]
# Without spikes, the best guess is always the most frequent direction; its
# error is the chance level.

# %%
chance = 1 - np.bincount(direction).max() / n_trials
half = N_DIRECTIONS // 2
off = np.abs((decoded - direction + half) % N_DIRECTIONS - half)  # directions
print(f"held-out error (chance {chance:.0%})")
print("trials   wrong   wrong, and not a neighbour   ridges chosen")
for size in range(len(PER_DIRECTION)):
    print(
        f"{n_used[size].mean():6.0f} {np.mean(off[size] > 0):7.0%} "
        f"{np.mean(off[size] > 1):28.0%}   "
        + ", ".join(f"{r:g}" for r in chosen[size])
    )

# %% [markdown]
# ## Does more data hurt one direction?
#
# Errors decrease with the number of trials, and nearly all of them are
# confusions of neighbours. A single direction can go against the trend. The
# table counts, for each direction, its trials and how many of them are decoded
# correctly with the fewest and with the most training trials. In the recording,
# reaches to the right (→) lose three, and reaches to the upper right (↗) gain
# nine. The small training sets have equally many trials of all directions,
# whereas the full ones have more of ↗ than of →, so that the decoder favours
# ↗ in doubt. With so few trials of a direction, the standard error of such a
# percentage is about ten points.

# %%
ARROWS = "→↗↑↖←↙↓↘"
hits = decoded == direction
print(f"direction trials correct({n_used[0].mean():.0f})", end=" ")
print(f"correct({n_used[-1].mean():.0f})")
for d in range(N_DIRECTIONS):
    own = direction == d
    few, many = hits[0, own].sum(), hits[-1, own].sum()
    print(f"{ARROWS[d]:<9} {own.sum():6d} {few:11d} {many:12d}")

# %% [markdown]
# ## The figure
#
# Panel a shows the table above for one ridge: each dot is an iteration of
# majorization. In panel b the thin lines are the five held-out blocks. Rows of
# panels c and d add up to 100 %.

# %%
figure, axes = plt.subplots(2, 2, figsize=(8, 7.4), layout="constrained")
descent, curve, *tables = axes.flat
below = {
    "loc": "upper center",
    "bbox_to_anchor": (0.46, -0.18),
    "ncols": 2,
    "columnspacing": 1,
    "handlelength": 1.8,
    "frameon": False,
    "fontsize": 7.5,
}
names = [f"gradient descent, step {s:g}" for s in STEPS]
names += [f"majorization, relaxation {r:g}" for r in RELAXATIONS]
colors = (
    plotting.ORANGE,
    plotting.GREY,
    plotting.RED,
    plotting.GREEN,
    plotting.BLUE,
    plotting.PURPLE,
)
for (passes, gap), name, color in zip(paths[ridge], names, colors):
    style = "--" if "gradient" in name else ".-"
    descent.plot(passes, gap, style, ms=3, color=color, lw=1.3, label=name)
descent.set(yscale="log", xlim=(0, MAX_PASSES))
descent.set_xlabel("passes over the trials", fontsize=9)
descent.set_ylabel("objective above optimum (nats per trial)", fontsize=9)
descent.legend(**below)

x = n_used.mean(axis=1)
names = ["wrong, one block"] + [None] * (BLOCKS - 1)
curve.plot(x, 100 * errors, color=plotting.LIGHT, lw=0.8, label=names)
for least, marker, color, name in (
    (1, "o", plotting.BLUE, "wrong direction"),
    (2, "s", plotting.GREEN, "wrong, and not a neighbour"),
):
    wrong = 100 * np.mean(off >= least, axis=1)
    curve.plot(x, wrong, marker + "-", ms=5, color=color, label=name)
curve.axhline(
    100 * chance,
    color=plotting.BLACK,
    lw=1,
    ls="--",
    label="chance (most frequent direction)",
)
curve.set_xscale("log", base=2)
curve.set_xticks(x, [f"{k:.0f}" for k in x])
curve.set_ylim(0, 100)
curve.set_xlabel("training trials (log scale)", fontsize=9)
curve.set_ylabel("error on held-out trials (%)", fontsize=9)
curve.legend(**below)

for ax, guess in zip(tables, (decoded[0], decoded[-1])):
    plotting.plot_confusion(
        direction, guess, range(N_DIRECTIONS), names=ARROWS, ax=ax
    )
    ax.set_xlabel("decoded direction", fontsize=9)
    ax.set_ylabel("direction of the reach", fontsize=9)
for ax in (descent, curve):
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
titles = [f"confidently wrong start, ridge {ridge:g}"]
titles += [f"held-out blocks of time, {n_neurons} neurons"]
titles += [
    f"% decoded as, {n_used[k].mean():.0f} training trials" for k in (0, -1)
]
plotting.label_panels(axes, titles)
figure.savefig("06_decode_reach_direction.png", dpi=200)
one_thread.restore_original_limits()
