# %% [markdown]
# # A batch: every model fitted to every session
#
# A file, the manifest, lists the sessions and the models. One call does all
# the fits, on processes of this machine or, with another `scheduler`, on jobs
# of a cluster. Every fit is saved in a file of its own, so no work is done
# twice.
#
# **Question.** Which of three ridge strengths predicts best, in each of four
# sessions?
#
# **Data.** Four simulated sessions, from a loader function that stands for
# yours.
#
# **What you will see**
#
# 1. four sessions and three models, fitted by two workers;
# 2. the same call again: everything is found, nothing is fitted;
# 3. one table with a row and a certificate for each neuron of each fit;
# 4. each fit loaded as the model it is, and its score on held-out data.

# %%
import runpy
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from glmfit import plotting
from glmfit.batch import collect, load_result, run

temporary = tempfile.TemporaryDirectory()
folder = Path(temporary.name)

# %% [markdown]
# ## A loader
#
# The loader is a function in a file next to the manifest. It returns a
# `Session`: here a design matrix and spike counts, or spike times and signals,
# from which the manifest can build the features. An argument `part` lets it
# return the last quarter of a session, which is held out.

# %%
LOADER = '''
import numpy as np
from glmfit.batch import Session


def load(session, part="training"):
    """40 random features and 10 to 40 neurons; norm of coefficients 0.3."""
    rng = np.random.default_rng(session)
    n_bins, n_neurons = rng.integers(4_000, 16_000), rng.integers(10, 41)
    X = rng.normal(size=(n_bins, 40))
    coef = rng.normal(size=(40, n_neurons))
    coef *= 0.3 / np.linalg.norm(coef, axis=0)
    rate = np.logaddexp(0, X @ coef + rng.uniform(-4, 0, n_neurons))
    y = rng.poisson(rate)
    cut = 3 * n_bins // 4
    rows = slice(0, cut) if part == "training" else slice(cut, None)
    names = [f"cell {i}" for i in range(n_neurons)]
    return Session(X=X[rows], y=y[rows], neuron_names=names)
'''
(folder / "simulated.py").write_text(LOADER, encoding="utf-8")
load = runpy.run_path(folder / "simulated.py")["load"]

# %% [markdown]
# ## The manifest
#
# Each `[[data]]` block stands for one or more sessions, each `[[model]]` block
# for an estimator and its parameters.

# %%
MANIFEST = """
name = "four simulated sessions"

[[data]]
name = "simulated"
loader = "simulated:load"  # function load of simulated.py
arguments = [{session = 1}, {session = 2}, {session = 3}, {session = 4}]

[[model]]
name = "weak"
estimator = "PopulationGLM"
parameters = {regularizer_strength = 1e-4, solver_name = "Newton"}

[[model]]
name = "medium"
estimator = "PopulationGLM"
parameters = {regularizer_strength = 1e-2, solver_name = "Newton"}

[[model]]
name = "strong"
estimator = "PopulationGLM"
parameters = {regularizer_strength = 1e-1, solver_name = "Newton"}
"""
manifest = folder / "manifest.toml"
manifest.write_text(MANIFEST, encoding="utf-8")
out = folder / "fits"

# %% [markdown]
# ## Run, and run again
#
# The second call finds every fit and does nothing. After an interruption it
# would do only what is missing.

# %%
for call in ("first call", "second call"):
    summary = run(manifest, out=out, workers=2, progress=False)
    print(
        f"{call}: {summary.n_done} of {summary.n_tasks} fits done, "
        f"{summary.n_found} found"
    )

# %% [markdown]
# ## One table
#
# `collect` writes an index with one row per neuron and fit. The pseudo-$R^2$ in
# it is that of the training data; `proved` is the fraction of neurons whose
# gap is a proved bound.

# %%
n_fits = collect(out).n_fits
table = pd.read_parquet(out / "index.parquet")
print(f"{len(table)} rows, one per neuron of {n_fits} fits\n")
summary = table.groupby(["session", "model"]).agg(
    neurons=("unit", "size"),
    bins=("n_rows", "first"),
    training=("pseudo_r2", "median"),
    proved=("gap_is_bound", "mean"),
    largest_gap=("gap", "max"),
)
print(summary.to_string(float_format="%.2g"))

# %% [markdown]
# ## Every fit is a model again
#
# `load_result` returns the fitted estimator, with its report. Here it scores
# the quarter of the session that is held out.

# %%
table["held_out"], table["norm"] = np.nan, np.nan
for (session, name), rows in table.groupby(["session", "model"]):
    model = load_result(out, session, name)
    number = int(session.split("=")[1])
    test = load(number, part="test").matrices
    X = pd.DataFrame(test["X"], columns=model.feature_names_in_)
    score = model.score(X, test["y"], per_neuron=True)
    table.loc[rows.index, "held_out"] = score
    table.loc[rows.index, "norm"] = np.linalg.norm(model.coef_, axis=0)
print(model.report_)
temporary.cleanup()

# %%
held_out = table.pivot_table(
    index="session", columns="model", values="held_out", aggfunc="median"
)
print("held-out pseudo-R2, median over neurons")
held_out = held_out[["weak", "medium", "strong"]].rename_axis(columns=None)
print(held_out.to_string(float_format="%.4f"))

# %% [markdown]
# Panel a shows the held-out score of each neuron, with the median as a black
# line. No strength is best everywhere: the strong ridge predicts best in three
# sessions, the medium one in session 3. `PopulationGLMCV`, which a manifest
# can also name, chooses a strength for each neuron. Panel b counts the
# neurons whose distance from the optimum is proved to be at most a given
# value. All values are negligible, so the models differ because of the ridge,
# not because of the solver. Panel c shows why the choice matters: a weak ridge
# overestimates the coefficients of neurons with few spikes, a strong one
# shrinks them too much.

# %%
figure, axes = plt.subplots(
    1, 3, figsize=(10, 3.2), layout="constrained", width_ratios=[1.5, 1, 1]
)
for ax in axes:
    ax.spines[["top", "right"]].set_visible(False)
    ax.tick_params(labelsize=8)
colors = {
    "weak": plotting.BLUE,
    "medium": plotting.GREEN,
    "strong": plotting.ORANGE,
}
rng = np.random.default_rng(0)
sessions = sorted(table.session.unique())
for k, (name, color) in enumerate(colors.items()):
    fits = table[table.model == name]
    for s, session in enumerate(sessions):
        score = fits.held_out[fits.session == session]
        x = s + 0.27 * (k - 1)
        shift = rng.uniform(-0.09, 0.09, len(score))
        axes[0].plot(x + shift, score, "o", ms=3, mew=0, color=color, alpha=0.5)
        middle = [np.median(score)] * 2
        axes[0].plot([x - 0.12, x + 0.12], middle, color=plotting.BLACK)
    axes[0].plot([], [], "o", ms=4, mew=0, color=color, label=f"{name} ridge")
    gap = np.sort(fits.gap[fits.gap_is_bound])
    axes[1].step(gap, np.arange(1, len(gap) + 1), where="post", color=color)
    axes[2].plot(
        fits.spike_count, fits.norm, "o", ms=3, mew=0, color=color, alpha=0.6
    )
labels = [f"session {session.split('=')[1]}" for session in sessions]
axes[0].set_xticks(range(len(sessions)), labels)
axes[0].axhline(0, color=plotting.GREY, lw=0.8, zorder=0)
axes[0].set_ylabel("held-out pseudo-$R^2$", fontsize=9)
low, high = axes[0].get_ylim()
axes[0].set_ylim(low, high + 0.2 * (high - low))
axes[0].legend(
    frameon=False, fontsize=8, loc="upper left", ncols=3, columnspacing=1
)
axes[1].set_xscale("log")
axes[1].set_xlabel("proved gap (nats per bin)", fontsize=9)
axes[1].set_ylabel("cumulative number of neurons", fontsize=9)
axes[2].axhline(0.3, color=plotting.BLACK, lw=1, ls="--", label="truth")
axes[2].set_xscale("log")
axes[2].set_xticks([300, 1000, 3000], ["300", "1000", "3000"])
axes[2].minorticks_off()
axes[2].set_ylim(bottom=0)
axes[2].set_xlabel("spikes in training", fontsize=9)
axes[2].set_ylabel("norm of the coefficients", fontsize=9)
axes[2].legend(frameon=False, fontsize=8, loc="upper right")
plotting.label_panels(
    axes,
    ["held-out skill of each neuron", "certificates", "shrinkage"],
)
figure.savefig("11_batch_of_sessions.png", dpi=200)
