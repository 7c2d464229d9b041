"""An auditory receptor of a grasshopper: how far back do the sound and its own spikes matter?

A receptor follows the loudness of a sound within milliseconds, and is held back by its own last spikes. How many
milliseconds of both a model needs is a question of its own: too few miss something, too many are noise. It is answered
here on time held out in turn, with the ridge strength of every model chosen in the same cross-validation. You will see

1. `PopulationGLMCV` for one window after the other, of the sound and of the spikes;
2. the models chosen, judged on the last quarter of the recording, which nothing was chosen on;
3. both filters with 95 % intervals, and a time-rescaling test: do spikes come when the model says? Every part brings
   it closer, but no model stays within the band: the spikes are more regular than any of them says.

Run it with ``python examples/12_auditory_receptor.py [figure.png]``. The recording comes with the package nitime (extra
`examples`), so it is always there; ``python -m glmfit demo`` fits the same receptor with windows found by eye.
"""

import sys

import numpy as np

import glmfit
from glmfit import plotting
from glmfit.demo import load_grasshopper  # bins of 0.5 ms
from glmfit.inference import rescale_time, wald_table

BIN_S, REFRACTORY = 5e-4, 5  # no two spikes within 5 bins
STRENGTHS = np.geomspace(1e-6, 1e-3, 4)

recording = load_grasshopper(10.0)
spikes, n_bins = recording.spikes, len(recording.spikes)
train, test = slice(0, 3 * n_bins // 4), slice(3 * n_bins // 4, None)
print(f"recorded: {n_bins * BIN_S:.1f} s, {spikes.sum()} spikes; the last quarter is held out")


# --- Features: a constant and a slow decline; the sound, through bumps every 2 ms; the past spikes, one weight for the
# refractory period, then bumps that widen. A window of the first k bumps looks back to where the last of them peaks.
def bumps(position, peaks):
    """Raised cosines with evenly spaced peaks, (position, peak)."""
    phase = (position[:, None] - peaks) / (peaks[1] - peaks[0]) * np.pi / 2
    return 0.5 * (1 + np.cos(np.clip(phase, -np.pi, np.pi)))


def past(signal, basis):
    """What the bumps see of the past of a signal, (time, bump); NaN, which fits leave out, where it is not known."""
    seen = np.column_stack([np.convolve(signal, bump)[:n_bins] for bump in basis.T])
    seen[: len(basis)] = np.nan
    return seen


lag_s = BIN_S * np.arange(50)
sound_ms = np.arange(1.0, 22, 2)
sound_basis = bumps(1e3 * lag_s, sound_ms)
after = np.arange(200)  # in bins; 0 is the present, which must not be seen
history_ms = np.geomspace(4, 80, 8)
tail = bumps(np.log(np.maximum(1e3 * BIN_S * after, 0.1)), np.log(history_ms)) * (after > REFRACTORY)[:, None]
refractory = (after > 0) & (after <= REFRACTORY)
decline = np.log(recording.time)[:, None]
sound = past(np.tanh(recording.level), sound_basis)  # receptors saturate
history = past(spikes, np.column_stack([refractory, tail]))


def design(n_sound, n_history):
    """Features with so many bumps of the sound, and so many of the spikes (the refractory weight included)."""
    return np.column_stack([decline, sound[:, :n_sound], history[:, :n_history]])


# --- 1. Cross-validation in five blocks of the training time, for one window after the other.
def cross_validate(n_sound, n_history):
    """All strengths; the score of the best in every fold."""
    X = design(n_sound, n_history)
    model = glmfit.PopulationGLMCV(strengths=STRENGTHS, scoring="D2").fit(X[train], spikes[train])
    return model, model.cv_scores_[list(STRENGTHS).index(model.strength_.item()), :, 0]


def shortest(scores):
    """First window whose score is less than one standard error (over folds, of the difference) below the best one's."""
    scores = np.array(scores)
    behind = scores[np.argmax(scores.mean(axis=1))] - scores
    error = behind.std(axis=1, ddof=1) / np.sqrt(behind.shape[1])
    return int(np.flatnonzero(behind.mean(axis=1) <= error)[0])


n_sound, n_history = len(sound_ms), 1 + len(history_ms)
by_sound = {
    "without spikes": [cross_validate(k, 0)[1] for k in range(1, n_sound + 1)],
    "with spikes": [cross_validate(k, n_history)[1] for k in range(1, n_sound + 1)],
}
by_history = [cross_validate(n_sound, k)[1] for k in range(n_history + 1)]
looks_back = 1 + shortest(by_sound["with spikes"]), shortest(by_history)
to_ms = sound_ms[looks_back[0] - 1], np.append([0, BIN_S * 1e3 * REFRACTORY], history_ms)[looks_back[1]]
print(f"shortest windows within one standard error of the best: sound {to_ms[0]:.0f} ms, spikes {to_ms[1]:.1f} ms")

# --- 2. Held-out time judges.
windows = {
    "sound": (looks_back[0], 0),
    "refractory, too": (looks_back[0], 1),
    "windows chosen": looks_back,
    "all windows": (n_sound, n_history),
}
rescaled = {}
print("\nheld-out quarter           features  pseudo-R2  KS distance / 95 % band")
for name, window in windows.items():
    X, model = design(*window), cross_validate(*window)[0]
    rescaled[name] = rescale_time(spikes[test], model.predict(X[test]), random_state=0)
    distance = (rescaled[name].statistic / rescaled[name].band()).item()
    print(f"  {name:<26} {X.shape[1]:>6} {model.score(X[test], spikes[test]):>10.3f} {distance:>12.2f}")

# --- 3. Filters of the largest model, at the strength chosen, with intervals.
full = glmfit.PopulationGLM(regularizer_strength=model.strength_.item()).fit(X[train], spikes[train])
print(f"\n{full.report_}")
filters = np.zeros((len(lag_s) + len(after), X.shape[1]))
filters[: len(lag_s), 1 : 1 + n_sound] = sound_basis
filters[len(lag_s) :, 2 + n_sound :] = tail
table = wald_table(full, X[train], spikes[train], combinations=filters)
low, high = table.low.ravel(), table.high.ravel()

# --- Figure.
axes = plotting.new_axes((1, 1, 1), (1, 1), size=(9.4, 5.4))
plotting.plot_filter(
    sound_basis, full.coef_[1 : 1 + n_sound], lag_s, interval=(low[: len(lag_s)], high[: len(lag_s)]),
    xlabel="time after sound", ylabel="linear predictor", ax=axes[0, 0],
)  # fmt: skip
late = slice(REFRACTORY + 1, None)
plotting.plot_filter(
    tail[late], full.coef_[2 + n_sound :], BIN_S * after[late], refractory_s=BIN_S * (REFRACTORY + 0.5),
    interval=(low[len(lag_s) :][late], high[len(lag_s) :][late]), color=plotting.RED,
    xlabel="time after spike", ylabel="linear predictor", ax=axes[1, 0],
)  # fmt: skip
axes[1, 0].set(xscale="log", xlim=(1, 100))
axes[1, 0].set_xticks([1, 3, 10, 30, 100], ["1", "3", "10", "30", "100"])


def draw_windows(ax, end_ms, scores, color, label):
    """Mean score of every window, with its standard error over folds."""
    scores = np.array(scores)
    error = scores.std(axis=1, ddof=1) / np.sqrt(scores.shape[1])
    ax.errorbar(end_ms, scores.mean(axis=1), error, fmt="o-", ms=3.5, lw=1.2, color=color, label=label)
    ax.set_ylabel("cross-validated $D^2$", fontsize=9)


for (name, scores), color in zip(by_sound.items(), (plotting.ORANGE, plotting.BLUE), strict=True):
    draw_windows(axes[0, 1], sound_ms, scores, color, name)
draw_windows(axes[1, 1], np.arange(n_history + 1), by_history, plotting.BLUE, "with all of the sound")
axes[1, 1].set_xticks(range(n_history + 1), ["0", "2.5", *(f"{ms:.0f}" for ms in history_ms)])
for ax, end, what in zip(axes[:, 1], (to_ms[0], looks_back[1]), ("sound", "spikes"), strict=True):
    ax.axvline(end, color=plotting.GREY, lw=1, ls="--", label="chosen")
    ax.set_ylim(bottom=min(0, ax.get_ylim()[0]))
    ax.set_xlabel(f"{what} seen, back to (ms)", fontsize=9)
    ax.legend(frameon=False, fontsize=8, loc="lower right")
drawn = {name: rescaled[name] for name in ("sound", "refractory, too", "windows chosen")}
plotting.plot_time_rescaling(drawn, ax=axes[0, 2])
axes[0, 2].legend(frameon=False, fontsize=7, loc="upper left", handlelength=1.2, borderpad=0)
axes[0, 2].legend(frameon=False, fontsize=7.5, loc="upper left", handlelength=1.2, borderpad=0)
rates = {name: cross_validate(*windows[name])[0].predict(design(*windows[name])[test]) for name in list(drawn)[::2]}
begin = recording.time[test][0]
plotting.plot_rate_against_spikes(
    recording.time[test], rates, spikes[test], smooth_s=2e-3, limits_s=(begin + 0.1, begin + 0.3), ax=axes[1, 2]
)
axes[1, 2].set_ylim(top=1.35 * axes[1, 2].get_ylim()[1])  # room for the legend
axes[1, 2].legend(frameon=False, fontsize=7.5, loc="upper left", ncols=2, columnspacing=1, handlelength=1.2)
plotting.label_panels(axes, [
    "sound to spikes, 95 % intervals", "how far back the sound matters", "time rescaling, held-out quarter",
    "spikes to later spikes", "how far back spikes matter", "in held-out time",
])  # fmt: skip
axes[1, 2].set_title(axes[1, 2].get_title(loc="left"), loc="left", fontsize=9, pad=20)  # spikes stand below it
path = sys.argv[1] if len(sys.argv) > 1 else "12_auditory_receptor.png"
axes[0, 0].figure.savefig(path)
print(f"\nfigure: {path}")
