"""A batch: every model fitted to every session, on two workers of this machine.

One file, the manifest, says which sessions and which models; one call does all of the fits, on processes of this
machine here, on jobs of a cluster with another ``scheduler``. Every fit is a file, so that nothing is ever done twice.
You will see

1. four sessions by two models, fitted by two workers;
2. the same call again: all is there, nothing is fitted;
3. the batch collected into one table, with a row and a certificate for every neuron of every fit, and any fit loaded as
   the model it is.

Run it with ``python examples/11_batch_of_sessions.py [figure.png]``. The sessions are simulated by the loader in
examples/batch/simulated.py, which stands for yours.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd

from glmfit import plotting
from glmfit.batch import collect, load_result, run

MANIFEST = """
name = "simulated sessions"

[[data]]
name = "mouse"
loader = "simulated:load"           # function load of simulated.py, beside this file
arguments = [{ seed = 1 }, { seed = 2 }, { seed = 3 }, { seed = 4 }]

[[model]]
name = "weak"
estimator = "PopulationGLM"
parameters = { regularizer_strength = 1e-4, solver_name = "Newton" }  # which compiles nothing

[[model]]
name = "strong"
estimator = "PopulationGLM"
parameters = { regularizer_strength = 1e-1, solver_name = "Newton" }
"""
TRUE_NORM = 0.3  # of every neuron's coefficients in examples/batch/simulated.py, about


def main():
    """Run, run again, collect, draw. (In a function, so that a process that imports this file does not run it.)"""
    with tempfile.TemporaryDirectory() as folder:
        manifest, out = Path(folder) / "manifest.toml", Path(folder) / "fits"
        manifest.write_text(MANIFEST)
        shutil.copy(Path(__file__).resolve().parent / "batch" / "simulated.py", folder)
        # --- 1 and 2. All fits, and once more.
        for call in ("first call", "second call"):
            summary = run(manifest, out=out, workers=2, progress=False)
            print(f"{call}: {summary.n_done} of {summary.n_tasks} fits done, {summary.n_found} found done")
        # --- 3. One table; and the fits as models.
        n_fits = collect(out).n_fits
        table = pd.read_parquet(out / "index.parquet")
        models = {key: load_result(out / "results" / f"{key}.npz") for key in table.key.unique()}
    print(f"collected: {len(table)} rows, one per neuron of {n_fits} fits\n")
    summary = table.groupby(["session", "model"]).agg(
        neurons=("unit", "size"), bins=("n_rows", "first"), pseudo_r2=("pseudo_r2", "median"),
        proved=("gap_is_bound", "mean"), largest_gap=("gap", "max"),
    )  # fmt: skip
    print(summary.to_string(float_format="%.2g"))
    print(f"\nthe last of them, loaded\n{models[table.key.iloc[-1]].report_}")
    table["norm"] = np.concatenate([np.linalg.norm(models[key].coef_, axis=0) for key in table.key.unique()])

    # --- Figure: what is explained, how sure every fit is, and what a strong ridge does to neurons with few spikes.
    axes = plotting.new_axes((1.25, 1, 1), size=(9.0, 3.0))[0]
    rng = np.random.default_rng(0)
    sessions = list(table.session.unique())
    colors = {"weak": plotting.BLUE, "strong": plotting.ORANGE}
    for (session, model), own in table.groupby(["session", "model"]):
        x = sessions.index(session) + (0.2 if model == "strong" else -0.2)
        axes[0].plot(
            x + rng.uniform(-0.11, 0.11, len(own)), own.pseudo_r2, "o", ms=3, mec="none", color=colors[model], alpha=0.5
        )
        axes[0].plot([x - 0.16, x + 0.16], [own.pseudo_r2.median()] * 2, color=plotting.BLACK, lw=1.5)
    axes[0].set_xticks(range(len(sessions)), [session.replace("/", "\n") for session in sessions])
    axes[0].set_ylabel("pseudo-$R^2$ (training)", fontsize=9)
    axes[0].set_ylim(0, 1.25 * axes[0].get_ylim()[1])
    for model, color in colors.items():
        axes[0].plot([], [], "o", ms=4, mec="none", color=color, label=f"{model} ridge")
    axes[0].legend(frameon=False, fontsize=8, loc="upper left", ncols=2)
    for model, color in colors.items():
        own = table[table.model == model]
        gap = np.sort(own.gap[own.gap_is_bound])
        axes[1].step(gap, np.arange(1, len(gap) + 1), where="post", color=color, lw=1.5, label=f"{model} ridge")
        axes[2].plot(own.spike_count, own["norm"], "o", ms=3, mec="none", color=color, alpha=0.6)
    axes[1].set_xscale("log")
    axes[1].set_xlabel("proved gap (nats per bin)", fontsize=9)
    axes[1].set_ylabel("neurons with at most that", fontsize=9)
    axes[1].legend(frameon=False, fontsize=8, loc="lower right")
    axes[2].axhline(TRUE_NORM, color=plotting.BLACK, lw=1, ls="--", label="as simulated, on average")
    axes[2].set(xscale="log", ylim=(0, 1.75 * TRUE_NORM))
    axes[2].set_xlabel("spikes", fontsize=9)
    axes[2].set_ylabel("norm of the coefficients", fontsize=9)
    axes[2].legend(frameon=False, fontsize=8, loc="upper right")
    plotting.label_panels(axes, ["every neuron (line: median)", "every neuron, certified", "a strong ridge shrinks"])
    path = sys.argv[1] if len(sys.argv) > 1 else "11_batch_of_sessions.png"
    axes[0].figure.savefig(path)
    print(f"\nfigure: {path}")


if __name__ == "__main__":
    main()
