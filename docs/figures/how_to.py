"""Draw the figures of the how-to pages from the code on the pages.

python docs/figures/how_to.py [FOLDER]     into docs/how_to/figures unless another folder is named; takes a minute

A page is run block by block, and its axes are saved.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # a checkout need not be installed

from glmfit import plotting  # noqa: E402
from glmfit.plotting import BLACK, BLUE, GREY  # noqa: E402

DPI = 110


def run(name: str, until: str | None = None) -> dict:
    """Namespace after running the blocks of a page, hidden ones included, up to a heading if given."""
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


def filters() -> dict:
    """Filters of a stimulus, of own history and of a coupling, with bands."""
    return {"filters": run("filters")["axes"][0].figure}


def coupling() -> dict:
    """The known network."""
    return {"coupling": run("coupling", until="Sparse couplings: group lasso")["axes"][0].figure}


def stable_coupling() -> dict:
    """A simulation that diverges and one that cannot."""
    return {"stable_coupling": run("stable_coupling", until="If it is not proved")["axes"][0].figure}


def nemos_nested_models() -> dict:
    """Held-out scores of nested models."""
    return {"nemos_nested_models": run("nemos_nested_models", until="Did every fit converge?")["axes"][0].figure}


def compile_once() -> dict:
    """Programs compiled by the fits of a cross-validation, one by one, after a first fit."""
    names = run("compile_once", until="If you stay with NeMoS")
    import nemos
    from sklearn.model_selection import KFold

    rng = np.random.default_rng(0)
    X = rng.normal(size=(100, 2))
    counts = rng.poisson(np.exp(0.5 * X[:, 0]))
    ax = plotting.new_axes((1,), size=(4.6, 2.5))[0, 0]
    for label, make, color in (
        ("NeMoS", lambda s: nemos.glm.GLM(regularizer="Ridge", regularizer_strength=s), GREY),
        ("glmfit", lambda s: names["glmfit"].PopulationGLM("exp", regularizer_strength=s), BLUE),
    ):
        compiled = []
        for s in (1.0, 1e-3, 1e-2, 0.1):
            for train, _ in KFold(5).split(X) if s < 1 else [(np.arange(80), None)]:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    make(s).fit(X[train], counts[train])
                compiled.append(names["programs"]())
        ax.plot(np.arange(16), np.subtract(compiled, compiled[0]), "o-", c=color, ms=4, label=label)
    ax.set_xlabel("fits after the first", fontsize=9)
    ax.set_ylabel("programs compiled", fontsize=9)
    ax.legend(frameon=False, fontsize=8)
    return {"compile_once": ax.figure}


def explain() -> dict:
    """Contributions of two groups, and their chance level."""
    return {"explain": run("explain", until="Which null for which question")["axes"][0].figure}


def features() -> dict:
    """Columns of four recipes, against their variables."""
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


DRAWN = (
    features, place_fields, filters, coupling, stable_coupling, explain, nemos_nested_models, compile_once,
)  # fmt: skip


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
