"""Motor cortex, few trials: in which direction does the arm reach?

Given the spike counts of 171 neurons around the onset of a reach, which of eight directions is it? There are fewer
trials than neurons, so a ridge is needed; and the right step of gradient descent is another one for another ridge and
other trials. Bound majorization has none to choose: it minimises a quadratic that lies above the objective and touches
it, so that the objective can only go down. You will see

1. a fit from an absurd start, beside gradient descent with steps too short, right and too long;
2. the report: how far from the optimum the fit is, at most, and by which theorem;
3. the decoding error on held-out blocks of time against the number of trials, and which directions are confused.

Run it with ``python examples/06_decode_reach_direction.py [figure.png] [m1_reach.npz or simulated]``. The recording
(macaque motor cortex, Stevenson et al. 2011; fields t, bin_s, counts, velocity) is not shipped. Where none is named it
is looked for in ../shared/data beside the checkout; where that is not, cosine-tuned neurons are simulated.
"""

import sys
from pathlib import Path

import jax
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
FAST_M_S, WINDOW_S = 0.2, 0.2  # reaches at least so fast; spikes from so long before their onset to so long after it
RIDGES = (0.003, 0.03, 0.3)
BLOCKS, PER_DIRECTION = 5, (2, 4, 8, None)  # blocks of time; training trials of each direction, None for all
MAX_PASSES, RELAXATIONS, STEPS = 300, (1.0, 1.5, 1.9), (0.1, 1.0, 10.0)
one_thread = threadpool_limits(1)  # matrices are small: threads would only wait for each other


def simulated_recording():
    """190 reaches, fast and outward, slow and back, and 171 Poisson neurons with cosine tuning that lead by 100 ms."""
    rng = np.random.default_rng(6)
    bin_s = 0.05
    t = np.arange(0, 770, bin_s)
    out_s = 2 + 4 * np.arange(190) + rng.uniform(0, 1, 190)
    angle = rng.integers(0, N_DIRECTIONS, 190) * 2 * np.pi / N_DIRECTIONS + rng.normal(0, 0.12, 190)
    toward = np.column_stack([np.cos(angle), np.sin(angle)])

    def bells(centre_s, sd_s):
        return np.exp(-(((t[:, None] - centre_s) / sd_s) ** 2) / 2) @ toward

    velocity = 0.3 * bells(out_s, 0.12) - 0.12 * bells(out_s + 1.8, 0.3)  # m/s
    preferred = rng.uniform(0, 2 * np.pi, 171)
    depth = rng.exponential(0.6, 171)  # of the tuning at 0.3 m/s, as a share of the mean rate
    drive = np.roll(velocity, -2, axis=0) / 0.3 @ np.stack([np.cos(preferred), np.sin(preferred)])
    rate_hz = rng.lognormal(2.2, 1.0, 171) * np.maximum(1 + depth * drive, 0)
    return bin_s, rng.poisson(rate_hz * bin_s), velocity


def recorded(path):
    """Width of a bin (s), spike counts (time, neuron), velocity of the hand in the plane (time, 2)."""
    with np.load(path, allow_pickle=False) as file:
        return float(file["bin_s"]), file["counts"], file["velocity"][:, :2]


beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "m1_reach.npz"
given = sys.argv[2] if len(sys.argv) > 2 else beside if beside.exists() else "simulated"
bin_s, counts, velocity = simulated_recording() if given == "simulated" else recorded(given)

# --- Reaches are peaks of the speed. Their direction is that of the velocity there; their onset is where the speed
# leaves a fifth of the peak. Square roots, because the variance of a spike count grows with its mean.
speed = np.linalg.norm(velocity, axis=1)
window = round(WINDOW_S / bin_s)
peak, _ = find_peaks(speed, height=FAST_M_S, distance=round(1 / bin_s))
onset = np.array([k - np.argmax(speed[k::-1] < speed[k] / 5) for k in peak])
angle = np.arctan2(velocity[peak, 1], velocity[peak, 0])
direction = np.round(angle * N_DIRECTIONS / (2 * np.pi)).astype(int) % N_DIRECTIONS
X = np.sqrt([counts[k - window : k + window].sum(axis=0, dtype=float) for k in onset])  # (trial, neuron)
n_trials, n_neurons = X.shape
trials = np.arange(n_trials)
print(f"{'simulated' if given == 'simulated' else 'recorded'}: {n_trials} reaches, {n_neurons} neurons")

# --- 1. Down at every step, from a start that is certain and wrong: scores up to 1000. All trials but the last block.
first = trials[: n_trials - n_trials // BLOCKS]
Z = X[first] - X[first].mean(axis=0)  # a favour to gradient descent
label, n, ridge = direction[first], len(first), RIDGES[1]
pairs = Pairs(np.arange(n), label, np.ones(n))
rng = np.random.default_rng(0)
start = rng.normal(size=(n_neurons, N_DIRECTIONS))
start -= start.mean(axis=1, keepdims=True)  # a shift common to all directions changes no probability
start *= 1000 / np.abs(Z @ start).max()


def majorize(ridge, relaxation):
    """Passes over the trials and objective after every step of bound majorization; a step takes some three passes."""
    solver, problem = BoundMajorization(relaxation=relaxation), SoftmaxProblem(Z, pairs, N_DIRECTIONS, ridge).exact
    params, state = solver.init_state(problem, Params(start, np.zeros(N_DIRECTIONS)), key=jax.random.key(0))
    path = [(1, state.objective[0])]
    while path[-1][0] < MAX_PASSES:
        params, state = solver.update(problem, params, state)
        path.append((state.row_evals / n, state.objective[0]))
    return np.array(path).T


def descend(ridge, step):
    """Passes and objective of gradient descent, which takes one pass a step."""
    W, b, objective = start, np.zeros(N_DIRECTIONS), []
    for _ in range(MAX_PASSES):
        log_p = log_softmax(Z @ W + b, axis=1)
        objective.append(-log_p[np.arange(n), label].mean() + ridge / 2 * np.sum(W**2))
        residual = (np.exp(log_p) - np.eye(N_DIRECTIONS)[label]) / n
        W, b = W - step * (Z.T @ residual + ridge * W), b - step * residual.sum(axis=0)
    return np.arange(1, MAX_PASSES + 1), np.array(objective)


print(f"\nnats per trial above the optimum after {MAX_PASSES} passes, from scores up to 1000 (in brackets: steps up)")
print("          gradient descent, step" + " " * 20 + "bound majorization, relaxation")
print("ridge" + "".join(f"{s:>16g}" for s in STEPS) + "".join(f"{r:>16g}" for r in RELAXATIONS))
paths = {}
for strength in RIDGES:
    best = glmfit.SoftmaxGLM(regularizer_strength=strength, tol=1e-10).fit(Z, label).report_
    runs = [descend(strength, s) for s in STEPS] + [majorize(strength, r) for r in RELAXATIONS]
    # The objective less its proved gap: no model is lower.
    paths[strength] = [(passes, objective - (best.objective - best.gap)) for passes, objective in runs]
    cells = [f"{gap[-1]:.1e} ({np.sum(np.diff(gap) > 0)})" for _, gap in paths[strength]]
    print(f"{strength:<5g}" + "".join(f"{cell:>16}" for cell in cells))

# --- 2. The same as an estimator, which starts from the frequencies of the directions. The report's gap is proved.
# The default solver, NewtonCG, searches along lines for its steps; at the end it is the faster one.
model = glmfit.SoftmaxGLM(solver_name="BoundMajorization", regularizer_strength=ridge).fit(X[first], label)
print(f"\n{model.report_}")
default = glmfit.SoftmaxGLM(regularizer_strength=ridge).fit(X[first], label).report_
print(f"passes over the trials: {model.report_.row_evals / n:.0f}; {default.solver_name}: {default.row_evals / n:.0f}")

# --- 3. Hold out a block of consecutive trials and train on some of the others, so that slow changes of the recording
# count as errors. The ridge is chosen by cross-validation inside the training trials: held-out trials have no say.
# (Weaker ridges than these decode as well, and take longer.) A gap of a hundredth of what the model explains will do:
# with a tenth of it errors change by two points at most.
decoder = glmfit.SoftmaxGLM(solver_name="BoundMajorization", tol=1e-2, max_epochs=5000)
decoded = np.zeros((len(PER_DIRECTION), n_trials), int)
n_used, errors, chosen = np.zeros((3, len(PER_DIRECTION), BLOCKS))
reports = []
for block, held_out in enumerate(np.array_split(trials, BLOCKS)):
    others = rng.permutation(np.setdiff1d(trials, held_out))
    for size, most in enumerate(PER_DIRECTION):
        train = np.sort(np.concatenate([others[direction[others] == d][:most] for d in range(N_DIRECTIONS)]))
        folds = StratifiedKFold(min(3, np.bincount(direction[train]).min()))  # not shuffled: stretches of time, too
        search = GridSearchCV(decoder, {"regularizer_strength": RIDGES}, scoring="neg_log_loss", cv=folds)
        search.fit(X[train], direction[train])
        decoded[size, held_out] = search.predict(X[held_out])
        n_used[size, block], chosen[size, block] = len(train), search.best_params_["regularizer_strength"]
        errors[size, block] = np.mean(decoded[size, held_out] != direction[held_out])
        reports.append(search.best_estimator_.report_)

proved = [report.gap for report in reports if report.converged and report.gap_is_bound]
print(f"\n{len(proved)} of {len(reports)} decoders converged with a proved gap, the largest {max(proved):.1e} nats")
# What a decoder without spikes would do: always the most frequent direction.
chance = 1 - np.bincount(direction).max() / n_trials
off = np.abs((decoded - direction + N_DIRECTIONS // 2) % N_DIRECTIONS - N_DIRECTIONS // 2)  # in directions
print(f"held out, wrong by one direction or more (chance {chance:.0%}), by two or more:")
for size in range(len(PER_DIRECTION)):
    print(
        f"{n_used[size].mean():5.0f} trials: {np.mean(off[size] > 0):4.0%} {np.mean(off[size] > 1):4.0%}, "
        f"ridges {', '.join(f'{r:g}' for r in chosen[size])}"
    )

# --- Figure.
axes = plotting.new_axes((1, 1), (1, 1), size=(7.4, 6.8))
descent, curve, few, many = axes.flat
titles = [f"from a start certain and wrong, ridge {ridge:g}", "decoding held-out blocks of time"]
titles += [f"{n_used[k].mean():.0f} training trials: % decoded as" for k in (0, -1)]
plotting.label_panels(axes, titles)
below = {"loc": "upper center", "bbox_to_anchor": (0.46, -0.19), "ncols": 2, "columnspacing": 1, "handlelength": 1.8}
below |= {"frameon": False, "fontsize": 7.5}

names = [f"gradient descent, step {s:g}" for s in STEPS] + [f"majorization, relaxation {r:g}" for r in RELAXATIONS]
colors = (plotting.ORANGE, plotting.GREY, plotting.RED, plotting.GREEN, plotting.BLUE, plotting.PURPLE)
for (passes, gap), name, color in zip(paths[ridge], names, colors, strict=True):
    style = "--" if "gradient" in name else ".-"  # a dot is a step of majorization
    descent.plot(passes, gap, style, ms=3.5, color=color, lw=1.3, label=name)
descent.set(yscale="log", xlim=(0, MAX_PASSES))
descent.set_xlabel("passes over the trials", fontsize=9)
descent.set_ylabel("objective above optimum (nats per trial)", fontsize=9)
descent.legend(**below)

x = n_used.mean(axis=1)
curve.plot(x, 100 * errors, color=plotting.LIGHT, lw=0.8, label=["wrong, one block"] + [None] * (BLOCKS - 1))
curve.plot(x, 100 * np.mean(off > 0, axis=1), "o-", ms=5, color=plotting.BLUE, label="wrong direction")
curve.plot(x, 100 * np.mean(off > 1, axis=1), "s-", ms=5, color=plotting.GREEN, label="wrong, and not a neighbour")
curve.axhline(100 * chance, color=plotting.BLACK, lw=1, ls="--", label="chance (the commonest)")
curve.axvline(n_neurons, color=plotting.GREY, lw=0.8, ls=":")
curve.text(0.96 * n_neurons, 60, f"{n_neurons} neurons", rotation=90, ha="right", va="center", fontsize=8)
curve.set_xscale("log", base=2)
curve.set_xticks(x, [f"{k:.0f}" for k in x])
curve.set_ylim(0, 100)
curve.set_xlabel("training trials", fontsize=9)
curve.set_ylabel("error on held-out trials (%)", fontsize=9)
curve.legend(**below)

for ax, guess in ((few, decoded[0]), (many, decoded[-1])):
    table = np.zeros((N_DIRECTIONS, N_DIRECTIONS))
    np.add.at(table, (direction, guess), 1)
    table *= 100 / table.sum(axis=1, keepdims=True)
    ax.imshow(table, cmap="Blues", vmin=0, vmax=100)
    for i, j in np.argwhere(table >= 0.5):
        color = "white" if table[i, j] > 55 else "black"
        ax.text(j, i, f"{table[i, j]:.0f}", ha="center", va="center", fontsize=7.5, color=color)
    ax.set_xticks(range(N_DIRECTIONS), "→↗↑↖←↙↓↘", fontsize=11)
    ax.set_yticks(range(N_DIRECTIONS), "→↗↑↖←↙↓↘", fontsize=11)
    ax.set_xlabel("decoded direction", fontsize=9)
    ax.set_ylabel("direction of the reach", fontsize=9)
path = sys.argv[1] if len(sys.argv) > 1 else "06_decode_reach_direction.png"
descent.figure.savefig(path)
one_thread.restore_original_limits()
print(f"\nfigure: {path}")
