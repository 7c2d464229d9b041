# %% [markdown]
# # Decoding the direction of a reach from few trials
#
# **Question.** Given the spike counts of a population around the onset of a
# reach, in which of eight directions does the arm move? There are fewer
# trials than neurons, so the softmax model needs a ridge penalty.
#
# **Data.** 171 neurons in the motor cortex of a macaque (Stevenson et al.
# 2011). Without the recording, cosine-tuned neurons are simulated.
#
# **What you will see**
#
# 1. bound majorization, a solver without a step size, next to gradient
#    descent with three step sizes, from a confidently wrong start;
# 2. the report: a proved bound on the distance from the optimum;
# 3. decoding errors on held-out blocks of time against the number of trials,
#    and which directions are confused.

# %%
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.signal import find_peaks
from scipy.special import log_softmax
from sklearn.model_selection import GridSearchCV, StratifiedKFold
from threadpoolctl import threadpool_limits

import glmfit
from glmfit import plotting
from glmfit.engine import Params
from glmfit.solvers import BoundMajorization, LoopOptions
from glmfit.stochastic import Pairs, SoftmaxProblem

N_DIRECTIONS = 8
FAST_M_S = 0.2  # peak speed of a reach, at least
WINDOW_S = 0.2  # spikes counted before and after the onset
RIDGES = (0.003, 0.03, 0.3)
BLOCKS = 5  # blocks of time, each held out in turn
PER_DIRECTION = (2, 4, 8, None)  # training trials of each; None: all
MAX_PASSES, RELAXATIONS, STEPS = 300, (1.0, 1.5, 1.9), (0.1, 1.0, 10.0)
one_thread = threadpool_limits(1)  # the matrices are small

# %% [markdown]
# ## The recording


# %%
def simulated_recording():
    """190 reaches and 171 cosine-tuned neurons that lead by 100 ms."""
    rng = np.random.default_rng(6)
    bin_s = 0.05
    t = np.arange(0, 770, bin_s)
    out_s = 2 + 4 * np.arange(190) + rng.uniform(0, 1, 190)
    target = rng.integers(0, N_DIRECTIONS, 190)
    angle = target * 2 * np.pi / N_DIRECTIONS + rng.normal(0, 0.12, 190)
    toward = np.column_stack([np.cos(angle), np.sin(angle)])

    def bells(centre_s, sd_s):
        distance = (t[:, None] - centre_s) / sd_s
        return np.exp(-(distance**2) / 2) @ toward

    # fast and outward, slow and back, in m/s
    velocity = 0.3 * bells(out_s, 0.12) - 0.12 * bells(out_s + 1.8, 0.3)
    preferred = rng.uniform(0, 2 * np.pi, 171)
    depth = rng.exponential(0.6, 171)  # of the tuning at 0.3 m/s
    tuning = np.stack([np.cos(preferred), np.sin(preferred)])
    drive = np.roll(velocity, -2, axis=0) / 0.3 @ tuning
    mean_hz = rng.lognormal(2.2, 1.0, 171)
    rate_hz = mean_hz * np.maximum(1 + depth * drive, 0)
    return bin_s, rng.poisson(rate_hz * bin_s), velocity


def recorded(path):
    """Bin (s), counts (time, neuron), velocity of the hand (time, 2)."""
    with np.load(path, allow_pickle=False) as file:
        velocity = file["velocity"][:, :2]
        return float(file["bin_s"]), file["counts"], velocity


RECORDINGS = Path(os.environ.get("GLMFIT_RECORDINGS", "../shared/data"))
path = RECORDINGS / "m1_reach.npz"
if path.exists():
    bin_s, counts, velocity = recorded(path)
else:
    bin_s, counts, velocity = simulated_recording()
source = "recorded" if path.exists() else "simulated"

# %% [markdown]
# Reaches are peaks of the speed. Their direction is that of the velocity at
# the peak; their onset is where the speed leaves a fifth of the peak. The
# features are square roots of spike counts, because the variance of a count
# grows with its mean.

# %%
speed = np.linalg.norm(velocity, axis=1)
window = round(WINDOW_S / bin_s)
peak, _ = find_peaks(speed, height=FAST_M_S, distance=round(1 / bin_s))
onset = np.array([k - np.argmax(speed[k::-1] < speed[k] / 5) for k in peak])
angle = np.arctan2(velocity[peak, 1], velocity[peak, 0])
direction = np.round(angle * N_DIRECTIONS / (2 * np.pi)).astype(int)
direction %= N_DIRECTIONS
windows = [slice(k - window, k + window) for k in onset]
X = np.sqrt([counts[w].sum(axis=0, dtype=float) for w in windows])
n_trials, n_neurons = X.shape
trials = np.arange(n_trials)
print(f"{source}: {n_trials} reaches, {n_neurons} neurons")

# %% [markdown]
# ## A confidently wrong start
#
# The start has random weights so large that the model is certain of its
# answers and mostly wrong. Gradient descent needs a step size, and the right
# one depends on the ridge and the data. Bound majorization has none: it
# minimises a quadratic that lies above the objective and touches it, so the
# objective can only go down. A relaxation above 1 takes longer steps that
# are still guaranteed to descend.

# %%
first = trials[: n_trials - n_trials // BLOCKS]  # all but the last block
Z = X[first] - X[first].mean(axis=0)  # centring helps gradient descent
label, n, ridge = direction[first], len(first), RIDGES[1]
pairs = Pairs(np.arange(n), label, np.ones(n))
rng = np.random.default_rng(0)
start = rng.normal(size=(n_neurons, N_DIRECTIONS))
start -= start.mean(axis=1, keepdims=True)  # changes no probability
start *= 1000 / np.abs(Z @ start).max()


def majorize(ridge, relaxation):
    """Passes over the trials and objective, for each step."""
    solver = BoundMajorization(relaxation=relaxation)
    problem = SoftmaxProblem(Z, pairs, N_DIRECTIONS, ridge)
    params = Params(start, np.zeros(N_DIRECTIONS))
    options = LoopOptions(tol=1e-15, negligible=0.0, max_epochs=MAX_PASSES)
    path = solver.run(problem, params, options=options).history
    passes, objective = path["row_evals"][1:] / n, path["objective"][1:, 0]
    seen = passes <= MAX_PASSES
    first = problem.objective(params)
    return np.append(1, passes[seen]), np.append(first, objective[seen])


def descend(ridge, step):
    """The same for gradient descent, one pass a step."""
    W, b, objective = start, np.zeros(N_DIRECTIONS), []
    for _ in range(MAX_PASSES):
        log_p = log_softmax(Z @ W + b, axis=1)
        loss = -log_p[np.arange(n), label].mean()
        objective.append(loss + ridge / 2 * np.sum(W**2))
        residual = (np.exp(log_p) - np.eye(N_DIRECTIONS)[label]) / n
        W = W - step * (Z.T @ residual + ridge * W)
        b = b - step * residual.sum(axis=0)
    return np.arange(1, MAX_PASSES + 1), np.array(objective)


print(f"nats per trial above the optimum after {MAX_PASSES} passes")
print("(in brackets: how many steps went up)")
paths = {}
for strength in RIDGES:
    best = glmfit.SoftmaxGLM(regularizer_strength=strength, tol=1e-10)
    best = best.fit(Z, label).report_
    floor = best.objective - best.gap  # no model is lower
    runs = [descend(strength, s) for s in STEPS]
    runs += [majorize(strength, r) for r in RELAXATIONS]
    paths[strength] = [(passes, value - floor) for passes, value in runs]
    print(f"ridge {strength:g}")
    names = [f"gradient descent, step {s:g}" for s in STEPS]
    names += [f"majorization, relaxation {r:g}" for r in RELAXATIONS]
    for name, (_, gap) in zip(names, paths[strength]):
        print(f"  {name:<30}{gap[-1]:9.1e} ({np.sum(np.diff(gap) > 0)})")

# %% [markdown]
# ## The estimator and its report
#
# `SoftmaxGLM` starts from the frequencies of the directions. The gap in the
# report is proved. The default solver, `ConjugateGradients`, searches along
# lines for its steps and is usually faster near the optimum.

# %%
model = glmfit.SoftmaxGLM(
    solver_name="BoundMajorization", regularizer_strength=ridge
).fit(X[first], label)
print(model.report_)
default = glmfit.SoftmaxGLM(regularizer_strength=ridge)
default = default.fit(X[first], label).report_
print(
    f"passes over the trials: {model.report_.row_evals / n:.0f};"
    f" {default.solver_name}: {default.row_evals / n:.0f}"
)

# %% [markdown]
# ## Held-out blocks of time
#
# A block of consecutive trials is held out, and the decoder is trained on
# some of the others, so that slow changes of the recording count as errors.
# The ridge is chosen by cross-validation within the training trials. A loose
# tolerance is enough here: the decoded class is what counts.

# %%
decoder = glmfit.SoftmaxGLM(
    solver_name="BoundMajorization", tol=1e-2, max_epochs=5000
)
decoded = np.zeros((len(PER_DIRECTION), n_trials), int)
n_used, errors, chosen = np.zeros((3, len(PER_DIRECTION), BLOCKS))
reports = []
for block, held_out in enumerate(np.array_split(trials, BLOCKS)):
    others = rng.permutation(np.setdiff1d(trials, held_out))
    of = [others[direction[others] == d] for d in range(N_DIRECTIONS)]
    for size, most in enumerate(PER_DIRECTION):
        train = np.sort(np.concatenate([some[:most] for some in of]))
        fewest = np.bincount(direction[train]).min()
        search = GridSearchCV(
            decoder,
            {"regularizer_strength": RIDGES},
            scoring="neg_log_loss",
            cv=StratifiedKFold(min(3, fewest)),  # stretches of time, too
        ).fit(X[train], direction[train])
        decoded[size, held_out] = search.predict(X[held_out])
        n_used[size, block] = len(train)
        chosen[size, block] = search.best_params_["regularizer_strength"]
        wrong = decoded[size, held_out] != direction[held_out]
        errors[size, block] = np.mean(wrong)
        reports.append(search.best_estimator_.report_)

proved = [r.gap for r in reports if r.converged and r.gap_is_bound]
print(f"{len(proved)} of {len(reports)} decoders converged with a proved gap")
# without spikes: always the most frequent direction
chance = 1 - np.bincount(direction).max() / n_trials
half = N_DIRECTIONS // 2
off = np.abs((decoded - direction + half) % N_DIRECTIONS - half)
print(f"chance error {chance:.0%}")
print("trials  wrong  not even a neighbour   ridges chosen, per block")
for size in range(len(PER_DIRECTION)):
    print(
        f"{n_used[size].mean():6.0f} {np.mean(off[size] > 0):6.0%}"
        f" {np.mean(off[size] > 1):10.0%}            "
        + ", ".join(f"{r:g}" for r in chosen[size])
    )
ARROWS = "→↗↑↖←↙↓↘"
print("\ndirection, reaches, decoded correctly with few and with all trials")
for d, arrow in enumerate(ARROWS):
    few, many = (np.sum(off[k][direction == d] == 0) for k in (0, -1))
    print(f"{arrow} {np.sum(direction == d):4d} {few:4d} {many:4d}")
rightward = np.bincount(decoded[-1][direction == 0], minlength=N_DIRECTIONS)
print("reaches → with all trials, decoded as")
print("  ".join(f"{a} {k}" for a, k in zip(ARROWS, rightward) if k))

# %% [markdown]
# With more training trials the decoder gets better overall, and its mistakes
# are mostly neighbouring directions. One direction goes against the trend in
# the recording: with all trials, fewer rightward reaches are decoded correctly,
# and all mistakes are the neighbour ↗. A difference of a few reaches may be
# chance. There is also a likely reason:
# with few trials every direction has the same number of training trials, but
# the full set holds the frequencies of the recording, where → is the rarest
# direction and ↗ the most frequent. The intercepts of the model learn these
# frequencies, so doubtful reaches go to ↗, more of which are decoded correctly.
#
# ## The result in one figure
#
# Panel a: distance from the optimum against the work done, for six runs from
# the same confidently wrong start. Panel b: held-out errors. Panels c and d:
# the confusion of directions with the fewest and with all training trials.

# %%
figure, axes = plt.subplots(2, 2, figsize=(7.4, 6.8), layout="constrained")
descent, curve, few, many = axes.flat
for ax in axes.flat:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
titles = [f"from a confidently wrong start, ridge {ridge:g}"]
titles += ["decoding held-out blocks of time"]
titles += [f"{n_used[k].mean():.0f} training trials (%)" for k in (0, -1)]
plotting.label_panels(axes, titles)
below = {
    "loc": "upper center",
    "bbox_to_anchor": (0.46, -0.19),
    "ncols": 2,
    "columnspacing": 1,
    "handlelength": 1.8,
    "frameon": False,
    "fontsize": 7.5,
}

colors = (plotting.ORANGE, plotting.GREY, plotting.RED)
colors += (plotting.GREEN, plotting.BLUE, plotting.PURPLE)
for (passes, gap), name, color in zip(paths[ridge], names, colors):
    style = "--" if "gradient" in name else ".-"  # a dot is a step
    descent.plot(passes, gap, style, ms=3.5, color=color, lw=1.3, label=name)
descent.set(yscale="log", xlim=(0, MAX_PASSES))
descent.set_xlabel("passes over the trials", fontsize=9)
descent.set_ylabel("objective above optimum (nats per trial)", fontsize=9)
descent.legend(**below)

x = n_used.mean(axis=1)
block_labels = ["wrong, one block"] + [None] * (BLOCKS - 1)
curve.plot(x, 100 * errors, color=plotting.LIGHT, lw=0.8, label=block_labels)
for least, marker, color, name in (
    (1, "o-", plotting.BLUE, "wrong direction"),
    (2, "s-", plotting.GREEN, "not even a neighbour"),
):
    error = 100 * np.mean(off >= least, axis=1)
    curve.plot(x, error, marker, ms=5, color=color, label=name)
curve.axhline(
    100 * chance,
    color=plotting.BLACK,
    lw=1,
    ls="--",
    label="chance (most frequent)",
)
curve.axvline(n_neurons, color=plotting.GREY, lw=0.8, ls=":")
curve.text(
    0.96 * n_neurons,
    60,
    f"{n_neurons} neurons",
    rotation=90,
    ha="right",
    va="center",
    fontsize=8,
)
curve.set_xscale("log", base=2)
curve.set_xticks(x, [f"{k:.0f}" for k in x])
curve.set_ylim(0, 100)
curve.set_xlabel("training trials", fontsize=9)
curve.set_ylabel("error on held-out trials (%)", fontsize=9)
curve.legend(**below)

for ax, guess in ((few, decoded[0]), (many, decoded[-1])):
    plotting.plot_confusion(
        direction, guess, range(N_DIRECTIONS), names=ARROWS, ax=ax
    )
    ax.tick_params(labelsize=11)
    ax.set_xlabel("decoded direction", fontsize=9)
    ax.set_ylabel("direction of the reach", fontsize=9)
one_thread.restore_original_limits()
figure.savefig("06_decode_reach_direction.png", dpi=200)
