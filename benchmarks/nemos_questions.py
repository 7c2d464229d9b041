"""Problems that users of NeMoS have described, on the same data by glmfit and by NeMoS; see README.md in this folder.

    python benchmarks/nemos_questions.py [--sections nested,coupling,compile] [--scale 1.0]

nested (nemos#605): 25 000 bins of 25 ms in 177 trials, 30 units, splines of movement and labels of syllables, ten sets
of predictors, elastic nets of ratio 0.9 with 8 strengths and 3 folds of trials. NeMoS's fits are extrapolated from a
few.
coupling (nemos#46): 20 neurons that burst and excite one another, fitted with both links and simulated recurrently.
compile (nemos#547): cross-validations of 3 strengths and 5 folds in fresh processes, and what they compile.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
from _common import CompileCount, Section, fresh, median, run_sections, timed
from _models import fit_quietly

RATIO, STRENGTHS, FOLDS = 0.9, np.logspace(-4, -1, 8), 3
N_BINS, N_TRIALS, N_UNITS = 25_000, 177, 30
MOVEMENT = ("position", "velocity", "acceleration", "speed", "heading")
VARIANTS = {
    "all": (*MOVEMENT, "syllable"),
    "kinematics": MOVEMENT,
    "position and syllable": ("position", "syllable"),
    "velocity and speed": ("velocity", "speed"),
} | {name: (name,) for name in (*MOVEMENT, "syllable")}
TIMED = {"all": (1, 4, 6), "position": (4,), "speed": (4,)}  # fits of NeMoS: indices of strengths


# -------------------------------------------------------------------------------------------- nested


def _wander(rng: np.random.Generator, n_rows: int, n: int, memory: float) -> np.ndarray:
    """Draw series with an autocorrelation time of ``memory`` bins, (time, series)."""
    keep, x = np.exp(-1 / memory), rng.normal(size=(n_rows, n))
    for t in range(1, n_rows):
        x[t] = keep * x[t - 1] + np.sqrt(1 - keep**2) * x[t]
    return x


def movement(n_rows: int, n_units: int) -> tuple[np.ndarray, np.ndarray, dict]:
    """Features (167 columns, rank deficient like B-splines), counts driven by two groups, and columns by group."""
    from glmfit.design import BSpline, CyclicBSpline

    rng = np.random.default_rng(0)
    series = {"position": 60, "velocity": 15, "acceleration": 5}
    series = {name: _wander(rng, n_rows, 3, memory) for name, memory in series.items()}
    velocity = series["velocity"]
    series["speed"] = np.linalg.norm(velocity, axis=1, keepdims=True)
    parts = {
        name: [BSpline(14, (x.min(), x.max()), name=name).features(x) for x in values.T]
        for name, values in series.items()
    }
    parts["heading"] = [CyclicBSpline(15, name="heading").features(np.arctan2(velocity[:, 1], velocity[:, 0]))]
    parts["syllable"] = [np.eye(12)[np.repeat(rng.integers(0, 12, n_rows // 10 + 1), 10)[:n_rows]]]
    parts = {name: parts[name] for name in VARIANTS["all"]}
    ends = np.cumsum([0] + [sum(x.shape[1] for x in of) for of in parts.values()])
    groups = {name: np.arange(*ends[k : k + 2]) for k, name in enumerate(parts)}
    X = np.concatenate([x for of in parts.values() for x in of], axis=1)
    W = np.zeros((X.shape[1], n_units))
    for unit in range(n_units):
        for name in rng.choice(list(groups), 2, replace=False):
            W[groups[name], unit] = 0.6 * rng.normal(size=len(groups[name]))
    drive = np.exp(X @ W - (X @ W).mean(axis=0))
    counts = rng.poisson(np.minimum(drive * rng.uniform(0.05, 0.5, n_units), 20.0))
    return X.astype(np.float32), counts.astype(np.float32), groups


def nested(_cache: Path, scale: float, section: Section) -> None:
    """Ten sets of predictors, elastic nets of 8 strengths, 3 folds of trials; also with held-out scores."""
    from glmfit import PopulationGLMCV
    from glmfit.inference import explain

    n_rows, n_units = int(scale * N_BINS), max(int(N_UNITS * min(2 * scale, 1.0)), 2)
    X, Y, groups = movement(n_rows, n_units)
    columns = {name: np.concatenate([groups[g] for g in of]) for name, of in VARIANTS.items()}
    fold = (np.arange(n_rows) * N_TRIALS // n_rows) % FOLDS
    cv = [(np.flatnonzero(fold != k), np.flatnonzero(fold == k)) for k in range(FOLDS)]
    model = PopulationGLMCV("exp", "ElasticNet", l1_ratio=RATIO, strengths=STRENGTHS, cv=cv)
    fit_quietly(PopulationGLMCV("exp", "ElasticNet", strengths=[1e-3, 1e-1], cv=cv), X[:, :3], Y)  # compiles
    seconds, proved, chosen = {}, [], {}
    for name, of in columns.items():
        x = np.ascontiguousarray(X[:, of])
        seconds[name] = timed(lambda x=x: fit_quietly(model, x, Y))[0]
        proved.append(float((model.cv_converged_ & model.cv_gap_is_bound_).mean()))
        chosen[name] = {"strength": model.strength_, "coef": model.coef_, "intercept": model.intercept_}
    ours = sum(seconds.values())
    section.note(bins=n_rows, units=n_units, columns=X.shape[1], rank=int(np.linalg.matrix_rank(X)), fits_proved=proved)
    section.note(seconds_of_variants=seconds, fits=len(VARIANTS) * (len(STRENGTHS) * FOLDS + 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        given = {"kinds": (), "models": VARIANTS}
        held_out, found = timed(lambda: explain(model, X, Y, groups, **given))
    section.note(seconds_of_explain=held_out, fits_of_explain=int(found.n_fits.sum()),
                 explain_proved=float(found.n_proved.sum() / found.n_fits.sum()))  # fmt: skip
    rival = nemos_grid(X, Y, columns, fold, section)
    section.require("ten variants x 8 strengths x 3 folds: share of fits proved", min(proved), 1, limit=1,
                    against="all", unit="", topic="gap", at_least=True)  # fmt: skip
    section.require("ten variants x 8 strengths x 3 folds: share of explain's fits proved",
                    section.figures["explain_proved"], 1, limit=1, against="all", unit="", topic="gap",
                    at_least=True)  # fmt: skip
    section.require("ten variants x 8 strengths x 3 folds, one strength per unit", ours, rival, limit=1 / 5,
                    against="grid search around NeMoS, extrapolated")  # fmt: skip
    section.require("the same, strengths inside every held-out fold (explain)", held_out, rival, limit=1,
                    against="grid search around NeMoS, extrapolated", aim=True)  # fmt: skip


def nemos_grid(X: np.ndarray, Y: np.ndarray, columns: dict, fold: np.ndarray, section: Section) -> float:
    """Seconds of the grid search around NeMoS, extrapolated from some fits of the first fold by numbers of columns."""
    x, y = X[fold != 0], Y[fold != 0]
    seconds, gaps, ended = {}, [], []
    for name, which in TIMED.items():
        here = np.ascontiguousarray(x[:, columns[name]])
        for s in which:
            model = nemos_net(float(STRENGTHS[s]))
            spent = timed(lambda model=model, here=here: fit_quietly(model, here, y))[0]
            seconds.setdefault(name, []).append(spent)
            ended.append(bool(model.optim_info_.reached_max_steps))
            gaps.append(net_gap(model, here, y, float(STRENGTHS[s])))
    sizes = [len(columns[name]) for name in TIMED]
    means = [float(np.mean(seconds[name])) for name in TIMED]
    order = np.argsort(sizes)
    each = {
        name: float(np.interp(len(of), np.take(sizes, order), np.take(means, order))) for name, of in columns.items()
    }
    total = (len(STRENGTHS) * FOLDS + 1) * sum(each.values())
    section.note(nemos_seconds=seconds, nemos_seconds_of_the_grid=total, nemos_relative_gaps=gaps,
                 nemos_share_at_maxiter=float(np.mean(ended)))  # fmt: skip
    return total


def nemos_net(strength: float):
    """NeMoS's model with the elastic net, at its defaults."""
    import jax
    import nemos

    return nemos.glm.PopulationGLM(
        inverse_link_function=jax.numpy.exp, regularizer="ElasticNet", regularizer_strength=(strength, RATIO)
    )


def net_gap(model, X: np.ndarray, Y: np.ndarray, strength: float) -> float:
    """Relative gap of a fit, summed over units, to a fit of ours that is proved to 1e-9."""
    from glmfit import PopulationGLM

    def objective(coef, intercept):
        eta = X.astype(np.float64) @ np.asarray(coef, np.float64) + np.asarray(intercept, np.float64)
        penalty = RATIO * np.abs(coef).sum(axis=0) + (1 - RATIO) / 2 * np.square(coef).sum(axis=0)
        return float(np.sum((np.exp(eta) - Y * eta).mean(axis=0) + strength * penalty))

    best = fit_quietly(PopulationGLM("exp", "ElasticNet", (strength, RATIO), tol=1e-9, max_epochs=1000), X, Y)
    least, null = objective(best.coef_, best.intercept_), objective(0 * best.coef_, np.log(Y.mean(axis=0)))
    return (objective(np.asarray(model.coef_), model.intercept_) - least) / (null - least)


# ------------------------------------------------------------------------------------------ coupling


def bursting(n_rows: int, n_neurons: int, n_lags: int = 20) -> np.ndarray:
    """Counts of neurons that burst and excite the next one, (time, neuron)."""
    rng, lag = np.random.default_rng(0), np.arange(1, n_lags + 1)
    shape = np.where(lag > 1, lag * np.exp(-lag / 4), 0.0)
    weight = 0.6 * np.eye(n_neurons)
    source = np.flatnonzero(np.arange(n_neurons - 1) % 3 < 2)
    weight[source, source + 1] = 0.5
    kernel, counts = (shape / shape.sum())[::-1], np.zeros((n_rows + n_lags, n_neurons))
    for t in range(n_lags, n_rows + n_lags):
        counts[t] = rng.poisson(np.logaddexp(0, kernel @ counts[t - n_lags : t] @ weight))
    return counts[n_lags:]


def coupling(_cache: Path, scale: float, section: Section) -> None:
    """Twenty neurons, three fits, 20 simulations of 20 000 bins by each, and NeMoS's at the parameters of the last."""
    from glmfit import PopulationGLM
    from glmfit.design import Convolution, RaisedCosineLog
    from glmfit.inference import coupling_stability, simulate_recurrent

    n_rows, n_neurons, n_runs = max(int(scale * 50_000), 10_000), 20, max(int(20 * scale), 2)
    n_bins = max(int(scale * 20_000), 2000)
    counts, basis = bursting(n_rows, n_neurons), RaisedCosineLog(6, 0.8, 0.04, name="past")
    X = Convolution(counts, basis).to_array()
    train, test = slice(0, n_rows * 4 // 5), slice(n_rows * 4 // 5, None)
    others = {
        "groups": np.repeat(np.arange(n_neurons), 6),
        "regularizer_strength": 0.01 * ~np.eye(n_neurons, dtype=bool),
    }
    fits = {
        "exp": PopulationGLM("exp"),
        "softplus": PopulationGLM("softplus"),
        "group lasso": PopulationGLM("softplus", "GroupLasso", **others),
    }
    figures = {}
    for name, model in fits.items():
        fit_quietly(model, X[train], counts[train])
        found = coupling_stability(model, basis)
        runs = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            for seed in range(n_runs):
                runs.append(timed(lambda m=model, s=seed: simulate_recurrent(m, basis, n_bins, random_state=s)))
        figures[name] = {
            "held_out_d2": model.score(X[test], counts[test]),
            "verdict": found.verdict,
            "spectral_radius": found.spectral_radius,
            "diverged_at": [run.diverged_at for _, run in runs],
            "means": np.mean([run.counts.mean(axis=0) for _, run in runs], axis=0),
            "bounds": found.mean_bound,
            "seconds": median([spent for spent, run in runs if run.diverged_at is None] or [np.nan]),
        }
    theirs, theirs_means = nemos_runs(model, basis.kernels, n_bins)
    section.note(runs=n_runs, bins=n_bins, neurons=n_neurons, recorded_means=counts.mean(axis=0), **figures)
    section.note(nemos_seconds=theirs, nemos_means=theirs_means)
    _judge_coupling(section, figures, theirs)


def _judge_coupling(section: Section, figures: dict, theirs: list) -> None:
    proved, given = figures["group lasso"], {"limit": 1, "against": "limit", "unit": ""}
    diverged = {name: sum(at is not None for at in of["diverged_at"]) for name, of in figures.items()}
    section.require("exp link: simulations that diverge", diverged["exp"], 1, at_least=True, aim=True, **given)
    section.require("softplus link, group lasso: simulations that diverge", diverged["group lasso"], 0, **given)
    section.require("softplus link, group lasso: spectral radius of the gains", proved["spectral_radius"], 1, **given)
    section.require("softplus link, group lasso: simulated mean count over its bound, the largest",
                    np.max(proved["means"] / proved["bounds"]), 1, **given)  # fmt: skip
    section.require("softplus link, group lasso: held-out deviance explained", proved["held_out_d2"],
                    figures["exp"]["held_out_d2"], limit=1, against="exp link", unit="", at_least=True)  # fmt: skip
    bins = f"{section.figures['bins']} bins"
    ours = proved["seconds"]
    section.require(f"a later simulation of {bins}", ours, median(theirs[1:]), limit=1, against="NeMoS")
    section.require(f"a first simulation of {bins}", ours, theirs[0], limit=1, against="NeMoS")


def nemos_runs(model, kernels: np.ndarray, n_bins: int) -> tuple[list, np.ndarray]:
    """Seconds of three simulations by NeMoS at the parameters of a model, and the mean counts of the last."""
    import jax
    from nemos.simulation import simulate_recurrent

    n = len(model.intercept_)
    given = {
        "coupling_coef": model.coef_.reshape(n, -1, n).transpose(2, 0, 1),  # (target, source, kernel)
        "feedforward_coef": np.zeros((n, 1)),
        "intercepts": model.intercept_,
        "feedforward_input": np.zeros((n_bins, n, 1)),
        "coupling_basis_matrix": kernels,
        "init_y": np.zeros((len(kernels), n)),
    }
    seconds = []
    for seed in range(3):
        key = jax.random.key(seed)
        spent, counts = timed(lambda key=key: np.asarray(simulate_recurrent(**given, random_key=key)[0]))
        seconds.append(spent)
    return seconds, counts.mean(axis=0)


# ------------------------------------------------------------------------------------------- compile


def cross_validate(kind: str, sizes: list) -> dict:
    """Cross-validate problems of some sizes (rows, features, neurons), each twice: seconds and programs of every one.

    Runs in a fresh process, by _worker.py.
    """
    make = _make_cv(kind)
    rng, seconds, programs = np.random.default_rng(0), [], []
    for n_rows, n_features, n_neurons in sizes:
        X = rng.normal(size=(n_rows, n_features)).astype(np.float32)
        Y = rng.poisson(np.exp(0.3 * X[:, :1] - 0.5), size=(n_rows, n_neurons)).astype(np.float32)
        for _ in range(2):
            model = make(n_neurons)
            with CompileCount() as compiled, warnings.catch_warnings():
                warnings.simplefilter("ignore")
                seconds.append(timed(lambda m=model, x=X, y=Y: m.fit(x, y[:, 0] if y.shape[1] == 1 else y))[0])
            programs.append(compiled.programs)
    return {"seconds": seconds, "programs": programs}


def _make_cv(kind: str):
    """Make unfitted cross-validations of 3 strengths and 5 folds, for a number of neurons."""
    strengths = [1e-3, 1e-2, 1e-1]
    if kind == "glmfit":
        from glmfit import PopulationGLMCV

        return lambda _: PopulationGLMCV("exp", strengths=strengths, cv=5)
    import nemos
    from sklearn.model_selection import GridSearchCV

    given = {"regularizer": "Ridge"}
    if kind == "nemos+glmfit":
        import glmfit.plugins.nemos  # noqa: F401  registers the solver

        given["solver_name"] = "SAGA[glmfit]"

    def make(n_neurons):
        glm = (nemos.glm.GLM if n_neurons == 1 else nemos.glm.PopulationGLM)(regularizer_strength=1.0, **given)
        return GridSearchCV(glm, {"regularizer_strength": strengths}, cv=5)

    return make


def compiled(_cache: Path, scale: float, section: Section) -> None:
    """3 strengths x 5 folds on 100 bins and one neuron, and on more, in a fresh process: seconds, programs compiled."""
    sizes = [(100, 2, 1), (max(int(20_000 * scale), 500), 40, 20)]
    found = {kind: fresh("cross_validations", kind=kind, sizes=sizes) for kind in ("glmfit", "nemos", "nemos+glmfit")}
    section.note(sizes=sizes, **found)
    ours, theirs = found["glmfit"], found["nemos"]
    runs = ("100 bins, first", "100 bins, again", f"{sizes[1][0]} bins, first", f"{sizes[1][0]} bins, again")
    for k, what in enumerate(runs):
        section.require(f"3 strengths x 5 folds, {what}", ours["seconds"][k], theirs["seconds"][k], limit=1,
                        against="grid search around NeMoS")  # fmt: skip
    for k, what in enumerate(runs):
        against = {"against": "grid search around NeMoS", "unit": "programs", "aim": not k}
        section.require(f"3 strengths x 5 folds, {what}: compiled", ours["programs"][k], theirs["programs"][k],
                        limit=1 / 10 if k else 1, **against)  # fmt: skip


SECTIONS = {"nested": nested, "coupling": coupling, "compile": compiled}

if __name__ == "__main__":
    sys.exit(run_sections(__doc__, SECTIONS, "nemos_questions.json"))
