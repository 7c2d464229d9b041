"""Draws the figures of the how-to pages from the code that the pages show.

python docs/figures/how_to.py [FOLDER]     into docs/how_to/figures unless another folder is named; takes a minute

A page is run block by block, and its axes are saved. The W-maze recording of the page on place fields (field names t,
xy, spike_times, unit) is not shipped; it is looked for in ../shared/data beside the checkout, and its figure is left as
it is where there is none.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

import glmfit  # noqa: E402
from glmfit import plotting  # noqa: E402
from glmfit.plotting import BLACK, BLUE  # noqa: E402

DPI = 110
W_MAZE = ROOT.parent / "shared" / "data" / "w_maze.npz"


def run(name: str, until: str | None = None) -> dict:
    """Names that the blocks of a page leave, those that it hides included; up to a heading if one is named."""
    text = (ROOT / "docs" / "how_to" / f"{name}.md").read_text(encoding="utf-8")
    if until is not None:
        text = text[: text.index(f"\n## {until}\n")]
    names = {"__name__": "__main__"}
    for fenced, hidden in re.findall(r"^```python\n(.*?)^```|^<!-- setup\n(.*?)^-->", text, re.MULTILINE | re.DOTALL):
        exec(fenced or hidden, names)
    return names


def place_fields() -> dict:
    """Maps, and a cut with intervals, of the simulated place cells."""
    names = run("place_fields")
    return {"place_fields": names["axes"][0, 0].figure, "place_cut": names["ax"].figure}


def coupling() -> dict:
    """The network that is known."""
    return {"coupling": run("coupling", until="Sparse couplings: group lasso")["axes"][0].figure}


def explain() -> dict:
    """What two groups contribute, and what they would by chance."""
    return {"explain": run("explain", until="Which null for which question")["axes"][0].figure}


def features() -> dict:
    """Columns of four recipes, against what they are functions of."""
    names = run("features", until="Categories")
    from nemos.basis import BSplineEval, CyclicBSplineEval

    x, angle = np.linspace(0, 100, 401), np.linspace(0, 2 * np.pi, 401)
    kernels = names["basis"].evaluate(np.linspace(0, 1, 40))  # (lag, kernel)
    panels = (
        (x, BSplineEval(8, bounds=(0, 100)).compute_features(x), "place (cm)", "B-splines"),
        (x, np.exp(-((x[:, None] - names["centres"]) ** 2) / (2 * 10**2)), "place (cm)", "bumps"),
        (angle, CyclicBSplineEval(8, bounds=(0, 2 * np.pi)).compute_features(angle), "angle (rad)", "cyclic B-splines"),
        (20 * np.arange(1, 41), kernels, "time after spike (ms)", "raised cosines, log lag"),
    )
    axes = plotting.new_axes((1, 1, 1, 1), size=(8.6, 2.3))[0]
    for ax, (at, columns, xlabel, _) in zip(axes, panels, strict=True):
        columns = np.asarray(columns)
        ax.plot(at, columns, color=BLUE, lw=1, alpha=0.45)
        third = columns.shape[1] // 2
        ax.plot(at, columns[:, third], color=BLACK, lw=1.6)
        ax.set_xlabel(xlabel, fontsize=9)
        ax.set_ylim(0, 1.08)
        if ax is not axes[0]:
            ax.set_yticklabels([])
    axes[0].set_ylabel("value of the column", fontsize=9)
    axes[2].set_xticks([0, np.pi, 2 * np.pi], ["0", "π", "2π"])
    plotting.label_panels(axes, [title for *_, title in panels])
    return {"features": axes[0].figure}


def w_maze() -> dict:
    """The steps of the page on place fields, on a recording."""
    if not W_MAZE.exists():
        return {}
    import pynapple as nap

    page = run("place_fields", until="Fit, and score on held-out time")  # its features
    with np.load(W_MAZE, allow_pickle=False) as file:
        t, xy, times, unit = file["t"], file["xy"].astype(float), file["spike_times"], file["unit"]
    kernel = np.hanning(31) / np.hanning(31).sum()
    xy = np.stack([np.convolve(np.pad(column, 15, "edge"), kernel, "valid") for column in xy.T], axis=1)
    low, high = np.quantile(xy, [0.002, 0.998], axis=0)  # the tracker strays now and then
    xy = 96 * (xy - (low + high) / 2) / (high - low).max()  # percent of the maze's side
    position = nap.TsdFrame(t=t, d=xy, columns=["x", "y"])
    spikes = nap.TsGroup({int(u): nap.Ts(np.sort(times[unit == u])) for u in np.unique(unit)})
    velocity = position.derivative()
    speed = nap.Tsd(t=velocity.t, d=np.hypot(*velocity.d.T))
    running = speed.threshold(5.0).time_support.drop_short_intervals(0.5)
    bin_s = 0.05
    counts = spikes.count(bin_s, ep=running)
    xy = counts.value_from(position)
    X = nap.TsdFrame(t=xy.t, d=page["place_features"](xy.d, 14), time_support=running)
    minutes = position.time_support.split(60)
    test = minutes[4::5]
    train = position.time_support.set_diff(test)
    enough = np.flatnonzero(counts.restrict(train).d.sum(axis=0) >= 300)
    counts = counts[:, enough]
    model = glmfit.PopulationGLM().fit(X.restrict(train), counts.restrict(train))
    scores = model.score(X.restrict(test), counts.restrict(test), per_neuron=True)
    print(
        f"    {running.tot_length():.0f} s of running, {len(enough)} units, {len(counts.restrict(test))} bins held out"
    )
    print(f"    {np.sum(model.report_.converged)} converged; held-out D2: median {np.median(scores):.3f}")

    edges = np.linspace(-50, 50, 51)
    middle = (edges[1:] + edges[:-1]) / 2
    grid = np.stack(np.meshgrid(middle, middle), axis=-1).reshape(-1, 2)
    maps = model.predict(page["place_features"](grid, 14)) / bin_s
    occupancy = bin_s * np.histogram2d(*xy.restrict(train).d.T, [edges, edges])[0].T.ravel()
    rare = occupancy < 0.2  # s
    maps[rare] = np.nan
    best = np.argsort(-scores)[:4]
    axes = plotting.new_axes((1, 1, 1, 1), (1, 1), size=(8.6, 3.9))
    for column, n in enumerate(best):
        weights = counts.restrict(train).d[:, n]
        each = np.histogram2d(*xy.restrict(train).d.T, [edges, edges], weights=weights)[0].T.ravel()
        raw = np.divide(each, occupancy, out=np.full_like(each, np.nan), where=~rare)
        limit = np.nanquantile(maps[:, n], 0.995)
        for row, of in enumerate((raw, maps[:, n])):
            ax = axes[row, column]
            ax.set_facecolor("lightgrey")
            image = ax.imshow(
                of.reshape(50, 50), origin="lower", extent=(-50, 50, -50, 50), vmin=0, vmax=limit, interpolation="none"
            )
            ax.set(xticks=[], yticks=[], ylim=(grid[~rare, 1].min() - 3, grid[~rare, 1].max() + 3))
        axes[0, column].set_title(f"unit {counts.columns[n]}, D2 {scores[n]:.2f}", fontsize=9)
        place = {"ax": list(axes[:, column]), "location": "bottom", "shrink": 0.8, "pad": 0.03}
        bar = axes[0, column].figure.colorbar(image, extend="max", **place)
        bar.ax.tick_params(labelsize=8)
        bar.set_label("rate (spikes/s)", fontsize=9)
        bar.outline.set_visible(False)
    axes[0, 0].set_ylabel("raw", fontsize=9)
    axes[1, 0].set_ylabel("model", fontsize=9)
    return {"place_fields_w_maze": axes[0, 0].figure}


DRAWN = (features, place_fields, coupling, explain, w_maze)


def main(folder: Path = ROOT / "docs" / "how_to" / "figures") -> None:
    """Draw every figure into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for draw in DRAWN:
        for name, figure in draw().items():
            figure.savefig(folder / f"{name}.png", dpi=DPI, metadata={"Software": None})
            print(f"{name}.png")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
