"""All stimuli by all neurons, when every session shows a tenth of the stimuli to its own neurons.

Twenty sessions of thirty neurons each; a session has time for 40 of 400 stimuli. How would every neuron respond to
every stimulus? A neuron's own data are 40 stimuli, shown twice. But neurons are alike: their tuning uses a few
combinations of stimulus features, and which ones can be learnt from all sessions together. You will see

1. ``ResponseModel`` on session blocks: stimuli by their features, neurons by what they did;
2. the strength of the ridge, and how much weight pairs nobody recorded should get, chosen on held-out pairs;
3. the table it completes, beside a GLM per neuron and beside the rates that made the data.

Run it with ``python examples/07_all_stimuli_by_all_neurons.py [figure.png]``; the experiment is simulated, so that the
truth about pairs nobody recorded is known.
"""

import sys

import matplotlib.pyplot as plt
import numpy as np

import glmfit

N_STIMULI, N_FEATURES, N_SESSIONS, PER_SESSION, SHOWN, REPEATS, N_TUNED = 400, 30, 20, 30, 40, 2, 4
rng = np.random.default_rng(7)

# --- The experiment. Stimuli have 30 features; neurons listen to four combinations of them.
n_neurons = N_SESSIONS * PER_SESSION
features = rng.normal(size=(N_STIMULI, N_FEATURES))
combinations = features @ np.linalg.qr(rng.normal(size=(N_FEATURES, N_TUNED)))[0]
tuning = rng.normal(size=(N_TUNED, n_neurons))
baseline = rng.normal(-0.5, 0.8, n_neurons)
rate = np.logaddexp(0, combinations @ tuning + baseline)  # expected spikes, (stimulus, neuron)

sessions = []
seen = np.zeros(rate.shape, bool)
for s in range(N_SESSIONS):
    stimuli = np.tile(rng.choice(N_STIMULI, SHOWN, replace=False), REPEATS)
    neurons = np.arange(PER_SESSION) + s * PER_SESSION
    sessions.append((stimuli, neurons, rng.poisson(rate[np.ix_(stimuli, neurons)])))
    seen[np.ix_(stimuli, neurons)] = True
print(f"{seen.mean():.0%} of {N_STIMULI} x {n_neurons} pairs recorded")

# --- 1 and 2. One model of all sessions.
model = glmfit.ResponseModel(n_components=6, regularizer_strength=(1, 3, 10), imputation_weight="auto")
model.fit(features, None, sessions)
print(model.report_)

# --- 3. Beside it a GLM per neuron, on that neuron's trials alone (strengths by cross-validation).
alone = np.empty(rate.shape)
for stimuli, neurons, counts in sessions:
    glm = glmfit.PopulationGLMCV(regularizer="Ridge", strengths=np.logspace(-2, 1, 5), cv=4)
    alone[:, neurons] = glm.fit(features[stimuli], counts).predict(features)
together = model.predict()


def explained(predicted, pairs):
    """Share of the variance of the true rates a prediction explains, per neuron, over some pairs."""
    left = np.where(pairs, (predicted - rate) ** 2, 0).sum(axis=0)
    mean = np.where(pairs, rate, 0).sum(axis=0) / pairs.sum(axis=0)
    return 1 - left / np.where(pairs, (rate - mean) ** 2, 0).sum(axis=0)


by_model, by_glm = explained(together, ~seen), explained(alone, ~seen)
print(f"pairs nobody recorded, median over neurons: {np.median(by_model):.2f} of the variance of the true rates by the "
      f"model of all sessions, {np.median(by_glm):.2f} by a GLM per neuron")  # fmt: skip

# --- Figure: what was recorded (grey: nothing), what was completed, what is true; in the order of one combination and
# of the tuning to it, every fourth stimulus and neuron, so that single pairs can be seen.
figure, axes = plt.subplots(1, 4, figsize=(10.5, 2.9), layout="constrained", width_ratios=[1, 1, 1, 1.15])
rows = np.argsort(combinations[:, 0])[::4]
columns = np.argsort(tuning[0] / np.linalg.norm(tuning, axis=0))[::4]
recorded = np.full(rate.shape, np.nan)
for stimuli, neurons, counts in sessions:
    recorded[np.ix_(stimuli[:SHOWN], neurons)] = counts.reshape(REPEATS, SHOWN, -1).mean(axis=0)
panels = {"recorded (mean of two trials)": recorded, "completed": together, "true expected counts": rate}
for ax, (title, table) in zip(axes, panels.items(), strict=False):
    ax.set_facecolor("0.85")
    image = ax.imshow(table[np.ix_(rows, columns)], aspect="auto", cmap="viridis", vmin=0, vmax=3, interpolation="none")
    ax.set(title=title, xlabel="neuron (sorted)", xticks=[], yticks=[])
axes[0].set_ylabel("stimulus (sorted)")
figure.colorbar(image, ax=axes[:3], shrink=0.8, label="spikes per trial", pad=0.01)
axes[3].scatter(by_glm, by_model, s=5, color="#0072B2", alpha=0.6, lw=0)
axes[3].plot([0, 1], [0, 1], color="0.6", lw=0.8)
axes[3].set(
    xlim=(-0.5, 1), ylim=(-0.1, 1), xlabel="GLM per neuron", ylabel="all sessions together",
    title="explained variance, unrecorded pairs",
)  # fmt: skip
axes[3].spines[["top", "right"]].set_visible(False)
for ax in axes:
    ax.title.set_fontsize(9)
path = sys.argv[1] if len(sys.argv) > 1 else "07_all_stimuli_by_all_neurons.png"
figure.savefig(path, dpi=200)
print(f"figure: {path}")
