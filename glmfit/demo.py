"""The demo: a real recording and a simulated population, fitted, reported and drawn (``python -m glmfit demo``)."""

import time
import warnings
from copy import copy
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.special import erf

from . import __version__, plotting
from .checks import check_installed
from .design import Convolution
from .design.kernels import raised_cosines
from .estimators import PopulationGLM
from .inference import filter_table

_BIN_S = 5e-4  # of the recording; resolves its refractory period of 3 ms
_STIMULUS_S = 20e-3
_HISTORY_S = 50e-3
_REFRACTORY_BINS = 5
_RIDGE = 1e-5
_TWO_SD = erf(np.sqrt(2))  # probability within two standard deviations
_REPEATS = 300
_POPULATION_BIN_S = 1e-2
_GROUP_LASSO = 6e-4
_CAPTIONS = {
    "grasshopper_filters.png": "filters of the receptor, with two standard deviations",
    "grasshopper_rate.png": f"held-out time: mean rate of {_REPEATS} simulated repeats, and spikes, smoothed by 2 ms",
    "convergence.png": "gap of every neuron per epoch; reported bounds against measured gaps",
    "population.png": "true and estimated coupling; held-out scores against those of the simulator",
}


def run(
    out="glmfit_demo", *, seed: int = 0, n_neurons: int = 100, n_bins: int = 20_000, recording_s: float = 10.0
) -> dict:
    """Fit a recording and a simulated population, print the results and draw them.

    Parameters
    ----------
    out : str or pathlib.Path
        Folder for the figures; created if missing.
    seed : int
        Seed of the simulation and of the fits.
    n_neurons, n_bins : int
        Size of the population and number of bins fitted (a quarter as many again are held out).
    recording_s : float
        How much of the recording to use, at most 10 s.

    Returns
    -------
    dict
        "grasshopper" and "population" (fitted models), "scores" (dict of held-out pseudo-R²), "figures" (paths).

    Raises
    ------
    glmfit.checks.MissingExtra
        If matplotlib or nitime is not installed.
    """
    check_installed(["matplotlib", "nitime"], "demo")
    start = time.perf_counter()
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    print(f"glmfit {__version__} demo\n")
    recording, scores, figures = _grasshopper(out, recording_s, seed)
    population, more_scores, more_figures = _population(out, n_neurons, n_bins, seed)
    figures += more_figures
    print(f"Figures in {out}/")
    for path in figures:
        print(f"  {path.name:<24} {_CAPTIONS[path.name]}")
    print(f"Done in {time.perf_counter() - start:.1f} s, compilation included.")
    return {"grasshopper": recording, "population": population, "scores": scores | more_scores, "figures": figures}


def _heading(text: str) -> None:
    print(f"{text}\n{'-' * len(text)}")


def _save(axes, path: Path) -> Path:
    np.ravel(axes)[0].figure.savefig(path)
    return path


# --------------------------------------------------------------------------------------- preparing data


def _history(signals, basis, first_lag: int) -> np.ndarray:
    """Convolve signals (time, signal) with a basis that begins at first_lag, (time, signal * basis function).

    A first lag of 1 excludes the current bin. NaN where the window begins before the recording.
    """
    longer = np.vstack([signals, signals[:1]])  # by a row whose past begins with the last
    return Convolution(longer, basis, dtype=np.float64).to_array()[1 - first_lag :][: len(signals)]


# ------------------------------------------------------------------------------------ a real recording


class Recording(NamedTuple):
    """Sound and spikes, one entry per bin."""

    time: np.ndarray  # s, bin centres
    level: np.ndarray  # standard deviations around the mean, of the level in dB
    spikes: np.ndarray  # per bin


def load_grasshopper(duration_s: float = 10.0) -> Recording:
    """Read the auditory receptor that comes with nitime: sound level and spikes in bins of 0.5 ms.

    Parameters
    ----------
    duration_s : float
        How many seconds to read from the beginning, at most 10.

    Returns
    -------
    Recording
        Arrays (time,): ``time``, s; ``level``, of the sound's envelope in dB, standardised; ``spikes``, counts.

    Raises
    ------
    glmfit.checks.MissingExtra
        If nitime, which has the recording, is not installed.
    """
    check_installed(["nitime"], "demo")
    folder = Path(next(iter(find_spec("nitime").submodule_search_locations))) / "data"
    time_us, envelope = np.loadtxt(folder / "grasshopper_stimulus1.txt", unpack=True)
    spikes_us = np.loadtxt(folder / "grasshopper_spike_times1.txt")  # "#" begins a header line
    per_bin = round(_BIN_S * 1e6 / (time_us[1] - time_us[0]))
    n = min(len(envelope) // per_bin, round(duration_s / _BIN_S))
    level = 20 * np.log10(envelope[: n * per_bin]).reshape(n, per_bin).mean(axis=1)
    spikes = np.histogram(spikes_us * 1e-6, np.arange(n + 1) * _BIN_S)[0]
    return Recording((np.arange(n) + 0.5) * _BIN_S, (level - level.mean()) / level.std(), spikes)


def _receptor_bases() -> tuple[np.ndarray, np.ndarray]:
    """Make bases of the stimulus filter, from lag 0, and of the history filter, from lag 1, (lag, basis function).

    One weight of the history covers the whole refractory period, which has no spikes.
    """
    lag_s = np.arange(round(_STIMULUS_S / _BIN_S)) * _BIN_S
    after = np.arange(1, round(_HISTORY_S / _BIN_S) + 1)
    refractory = (after <= _REFRACTORY_BINS)[:, None]
    first_s = _REFRACTORY_BINS * _BIN_S + 1e-3
    peaks = np.linspace(np.log(first_s + 1e-3), np.log(0.03 + 1e-3), 6)
    tail = raised_cosines(np.log(after * _BIN_S + 1e-3), peaks) * ~refractory
    return raised_cosines(lag_s, np.linspace(1e-3, _STIMULUS_S - 2e-3, 10)), np.hstack([refractory, tail])


def _grasshopper(out: Path, duration_s: float, seed: int):
    """Fit the recording with and without spike history; report, draw."""
    _heading("1. An auditory receptor of a grasshopper (real recording, from nitime)")
    recording = load_grasshopper(duration_s)
    of_stimulus, of_history = bases = _receptor_bases()
    compressed = np.tanh(recording.level)  # receptors saturate
    adaptation = np.log(recording.time)  # and slow down while the sound lasts
    stimulus = np.column_stack([_history(compressed[:, None], of_stimulus, 0), adaptation])
    history = _history(recording.spikes[:, None], of_history, 1)
    designs = {"stimulus": stimulus, "stimulus and spike history": np.hstack([stimulus, history])}
    n_train = len(stimulus) * 3 // 4
    train, test = slice(0, n_train), slice(n_train, None)

    rates, scores = {}, {}
    for name, X in designs.items():
        model = PopulationGLM(regularizer="Ridge", regularizer_strength=_RIDGE, random_state=seed)
        model.fit(X[train], recording.spikes[train])
        rates[name] = model.predict(X[test])
        scores[name] = model.score(X[test], recording.spikes[test])
    # Given the past spikes the rate jumps from bin to bin; its mean over repeats is what spikes can be compared with.
    k, before = stimulus.shape[1], 2 * len(of_history)  # repeats begin without a past, a little earlier
    drive = stimulus[n_train - before :] @ model.coef_[:k] + model.intercept_
    kernel = of_history @ model.coef_[k:]
    rates[name] = _mean_rate(np.random.default_rng(seed), drive, kernel, _REPEATS)[before:]

    print(f"{recording.time[-1]:.1f} s, {recording.spikes.sum()} spikes, bins of {_BIN_S * 1e3:g} ms; "
          "the last quarter is held out\n")  # fmt: skip
    print(model.report_)
    print("\nheld-out pseudo-R2 (deviance): " + ", ".join(f"{v:.3f} {name}" for name, v in scores.items()))
    print("(lags and basis were chosen on this recording, so these scores are slightly too good)\n")
    figures = [
        _draw_filters(bases, model, (X[train], recording.spikes[train]), out / "grasshopper_filters.png"),
        _draw_rates(recording, rates, test, out / "grasshopper_rate.png"),
    ]
    return model, scores, figures


def _mean_rate(rng, drive, kernel, n_repeats: int) -> np.ndarray:
    """Rate per bin averaged over simulated repeats, each with the history of its own spikes; (time,)."""
    eta = np.vstack([np.repeat(drive[:, None], n_repeats, axis=1), np.zeros((len(kernel), n_repeats))])
    mean = np.empty(len(drive))
    for t in range(len(drive)):
        rate = np.logaddexp(0, eta[t])
        counts, mean[t] = rng.poisson(rate), rate.mean()
        spiked = np.flatnonzero(counts)
        eta[t + 1 : t + 1 + len(kernel), spiked] += kernel[:, None] * counts[spiked]
    return mean


def _draw_filters(bases: tuple, model, data: tuple, path: Path) -> Path:
    """Stimulus filter, and history filter after the refractory period, with bands of two standard deviations."""

    def band(kernels, features: slice):
        table = filter_table(model, *data, kernels, columns=features, level=_TWO_SD)
        return table.low[:, 0, 0], table.high[:, 0, 0]

    of_stimulus, of_history = bases
    k = of_stimulus.shape[1]
    tail = slice(k + 2, None)  # after the weights of the stimulus, of adaptation and of the refractory period
    late = of_history[_REFRACTORY_BINS:, 1:]
    after_s = np.arange(_REFRACTORY_BINS + 1, len(of_history) + 1) * _BIN_S
    refractory_s = (_REFRACTORY_BINS + 0.5) * _BIN_S
    left, right = plotting.new_axes((1, 1), size=(6.8, 2.7))[0]
    plotting.plot_filter(
        of_stimulus, model.coef_[:k], np.arange(len(of_stimulus)) * _BIN_S, interval=band(of_stimulus, slice(k)),
        xlabel="time before spike", ylabel="stimulus filter", ax=left,
    )  # fmt: skip
    plotting.plot_filter(
        late, model.coef_[tail], after_s, interval=band(late, tail), refractory_s=refractory_s, color=plotting.RED,
        xlabel="time after spike", ylabel="spike-history filter", ax=right,
    )  # fmt: skip
    ticks = (1, 2, 5, 10, 20, 50)
    right.set_xscale("log")
    right.set_xticks(ticks, [f"{t:g}" for t in ticks])
    right.minorticks_off()
    right.set_xlim(1, _HISTORY_S * 1e3)
    middle = np.sqrt(refractory_s * 1e3), np.mean(right.get_ylim())
    right.text(*middle, "refractory", rotation=90, ha="center", va="center", fontsize=8)
    plotting.label_panels((left, right), ("sound level to spikes", "spikes to later spikes"))
    return _save((left, right), path)


def _draw_rates(recording: Recording, rates: dict, test: slice, path: Path) -> Path:
    """Draw sound level, spikes and predictions in a part of the held-out time."""
    when = recording.time[test]
    window = (when[0] + 0.05, when[0] + 0.55)
    axes = plotting.new_axes(height_ratios=(1, 2.6), size=(6.8, 3.2), sharex=True)
    top, bottom = axes[:, 0]
    top.figure.get_layout_engine().set(h_pad=0.12)  # inches, for the spikes, which stand above the lower panel
    plotting.plot_signal(when, recording.level[test], ylabel="level (SD)", limits_s=window, ax=top)
    plotting.plot_rate_against_spikes(when, rates, recording.spikes[test], smooth_s=2e-3, limits_s=window, ax=bottom)
    top.set_xlabel("")
    top.spines["bottom"].set_visible(False)
    top.tick_params(bottom=False)
    bottom.set_ylim(0, 1.2 * bottom.get_ylim()[1])
    bottom.legend(frameon=False, fontsize=8, ncols=4, loc="upper center")
    return _save(axes, path)


# ------------------------------------------------------------------------------ a simulated population


def _simulate_population(rng, n_neurons: int, n_bins: int) -> tuple[np.ndarray, ...]:
    """Simulate neurons, a few of which excite or inhibit each other, each with a refractory self-coupling.

    Returns counts (time, neuron), a basis (lag, basis function) whose columns add up to 1, the coefficients of the
    coupling (source neuron, basis function, target neuron), and intercepts (neuron,).
    """
    lag = np.arange(1, 21)
    basis = raised_cosines(np.log(lag + 1), np.log([2, 6]))
    basis /= basis.sum(axis=0)
    connected = rng.random((n_neurons, n_neurons)) < 6 / n_neurons
    sign = np.where(rng.random(n_neurons) < 0.3, -1, 1)[:, None]  # a neuron excites all its targets or inhibits them
    weight = connected * sign * rng.uniform(0.6, 1.5, connected.shape)
    early = rng.uniform(0.3, 0.9, weight.shape)
    coef = np.stack([weight * early, weight * (1 - early)], axis=1)
    coef[np.arange(n_neurons), :, np.arange(n_neurons)] = [-2.0, -0.5]
    effect = np.einsum("lb,sbt->slt", basis, coef)
    baseline = rng.normal(-1.8, 0.35, n_neurons)
    eta = np.tile(baseline, (n_bins + len(lag), 1))
    counts = np.zeros((n_bins, n_neurons))
    for t in range(n_bins):
        counts[t] = rng.poisson(np.logaddexp(0, eta[t]))
        spiked = np.flatnonzero(counts[t])
        future = eta[t + 1 : t + 1 + len(lag)]
        future += np.tensordot(counts[t, spiked], effect[spiked], 1)[: len(future)]
    return counts, basis, coef, baseline


def _population(out: Path, n_neurons: int, n_bins: int, seed: int):
    """Recover who couples to whom; report, draw, and check the certificates against a tighter fit."""
    _heading(f"2. {n_neurons} coupled neurons (simulated)")
    Y, basis, coef, intercept = _simulate_population(np.random.default_rng(seed), n_neurons, n_bins + n_bins // 4)
    k = basis.shape[1]
    X = _history(Y, basis, 1).astype(np.float32)
    settings = {
        "regularizer": "GroupLasso",  # a source acts through all its basis functions or through none
        "regularizer_strength": _GROUP_LASSO,
        "groups": np.repeat(np.arange(n_neurons), k),
        "solver_name": "SAGA",
        "solver_kwargs": {"check_every": 1},  # a point per epoch for the figure; the default costs less
        "random_state": seed,
    }
    model = PopulationGLM(**settings).fit(X[:n_bins], Y[:n_bins])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # how far it gets is good enough to compare bounds with
        optimum = PopulationGLM(**settings, tol=1e-8).fit(X[:n_bins], Y[:n_bins]).report_.objective
    scores = model.score(X[n_bins:], Y[n_bins:], per_neuron=True)
    simulator = copy(model)
    simulator.coef_, simulator.intercept_ = coef.reshape(model.coef_.shape), intercept
    best = simulator.score(X[n_bins:], Y[n_bins:], per_neuron=True)
    coupled = coef.sum(axis=1)
    found = model.coef_.reshape(n_neurons, k, n_neurons).sum(axis=1)
    for matrix in (coupled, found):
        np.fill_diagonal(matrix, np.nan)  # the refractory self-coupling would drown the rest

    minutes = n_bins * _POPULATION_BIN_S / 60
    print(f"{minutes:.1f} min in bins of {_POPULATION_BIN_S * 1e3:g} ms, {Y.mean():.2f} spikes per bin, "
          f"history of all neurons through {k} basis functions\n")  # fmt: skip
    print(model.report_)
    print(f"\nheld-out pseudo-R2 (deviance): median {np.median(scores):.3f}; "
          f"of the simulator itself {np.median(best):.3f}")  # fmt: skip
    known = np.isfinite(coupled)
    correlation, real = np.corrcoef(coupled[known], found[known])[0, 1], coupled[known] != 0
    print(f"coupling: correlation with the truth {correlation:.3f}; "
          f"{np.mean(found[known][real] != 0):.0%} of {real.sum()} connections found, "
          f"{np.mean(found[known][~real] != 0):.0%} of {np.sum(~real)} absent ones reported")  # fmt: skip
    proved = model.report_.gap_is_bound
    holding = np.sum((model.report_.objective - optimum)[proved] <= model.report_.gap[proved])
    print(f"certificates: {holding} of {proved.sum()} bounds hold against a fit to a hundredth of the tolerance\n")

    axes = plotting.new_axes((1.5, 1), size=(6.8, 3.0))
    plotting.plot_convergence(model.report_, ax=axes[0, 0])
    plotting.plot_bounds(model.report_, optimum, ax=axes[0, 1])
    plotting.label_panels(axes, ("gap of every neuron", "reported against measured"))
    convergence = _save(axes, out / "convergence.png")
    figure = _draw_population(coupled, found, scores, best, out / "population.png")
    return model, {"population": float(np.median(scores))}, [convergence, figure]


def _draw_population(coupled, found, scores, best, path: Path) -> Path:
    """Draw true and estimated coupling, one against the other, and scores against those of the simulator."""
    axes = plotting.new_axes((1, 1), (1.1, 1), size=(6.8, 5.8))
    limit = float(np.nanquantile(np.abs(coupled[coupled != 0]), 0.99))
    plotting.plot_coupling(coupled, limit=limit, colorbar=False, ax=axes[0, 0])
    plotting.plot_coupling(found, limit=limit, colorbar=list(axes[0]), ax=axes[0, 1])
    plotting.plot_recovery(coupled, found, ax=axes[1, 0])
    plotting.plot_recovery(
        best, scores, xlabel="pseudo-$R^2$ of the simulator", ylabel="held-out pseudo-$R^2$", ax=axes[1, 1]
    )
    plotting.label_panels(axes, ("true coupling", "estimated coupling", "every pair of neurons", "every neuron"))
    return _save(axes, path)
