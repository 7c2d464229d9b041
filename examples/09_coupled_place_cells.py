"""Place cells on a linear track: does a unit's own past, and that of the others, say more than the place?

A place field predicts how often a unit fires, but not when: units fire in bursts, and together. Spike history of the
unit itself and of all others, added to the place as features of the same GLM, says that. You will see

1. place fields alone, and with the history of all units: what is explained of held-out laps;
2. history filters with intervals, and the coupling of all pairs;
3. a time-rescaling (Kolmogorov-Smirnov) test before and after: do spikes come when the model says?

Run it with ``python examples/09_coupled_place_cells.py [figure.png] [linear_track.npz or simulated]``. The recording
(nelpy's example data: fields t, xy, spike_times, unit) is not shipped. Where none is named it is looked for in
../shared/data beside the checkout; where that is not, a session like it is simulated.
"""

import sys
from pathlib import Path

import numpy as np

import glmfit
from glmfit import plotting
from glmfit.design import Convolution
from glmfit.inference import rescale_time, wald_table

BIN_S, WINDOW = 0.01, 30  # bins of 10 ms, 300 ms of history
N_PLACES, N_HISTORY = 14, 5


def simulated_session():
    """Runs to and fro; fourteen units with place fields and bursts, of which the first drives the second."""
    rng = np.random.default_rng(9)
    t = np.arange(0, 1200, BIN_S)
    place = 0.5 - 0.5 * np.cos(2 * np.pi * t / 16 + 0.8 * np.sin(t / 40))
    log_rate = np.log(0.3 + 14 * np.exp(-(((place[:, None] - np.linspace(0, 1, 14)) / 0.09) ** 2) / 2)) + np.log(BIN_S)
    lag = np.arange(1, WINDOW + 1)
    own = 0.8 * np.exp(1.0 - lag) - 0.3 * np.exp(-(((lag - 12) / 6) ** 2))
    counts = np.zeros((len(t), 14))
    for k in range(WINDOW, len(t)):
        past = counts[k - WINDOW : k][::-1]
        eta = log_rate[k] + own @ past
        eta[1] += (0.6 * np.exp(-lag / 3)) @ past[:, 0]
        counts[k] = rng.poisson(np.logaddexp(0, eta))
    return counts, place, np.abs(np.gradient(place, BIN_S)), [f"unit {n}" for n in range(14)]


def recorded_session(path):
    """Counts (time, unit), place along the track (0 to 1), its speed, names of the units."""
    with np.load(path, allow_pickle=False) as file:
        t, xy, times, unit = file["t"], file["xy"].astype(float), file["spike_times"], file["unit"]
    t, once = np.unique(t, return_index=True)
    xy = xy[once]
    on_track = np.abs(xy[:, 0] - xy[:, 1]) < 100  # a diagonal; at the end the tracker rests elsewhere
    t, xy = t[on_track], xy[on_track]
    along = (xy - xy.mean(axis=0)) @ np.linalg.svd(xy - xy.mean(axis=0), full_matrices=False)[2][0]
    low, high = np.quantile(along, [0.005, 0.995])
    edges = np.arange(t[0], t[-1], BIN_S)
    place = np.interp(edges[:-1] + BIN_S / 2, t, np.clip((along - low) / (high - low), 0, 1))
    smooth = np.convolve(place, np.hanning(51) / np.hanning(51).sum(), "same")
    units = np.unique(unit)
    counts = np.stack([np.histogram(times[unit == u], edges)[0] for u in units], axis=1)
    return counts.astype(float), place, np.abs(np.gradient(smooth, BIN_S)), [f"unit {u}" for u in units]


beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "linear_track.npz"
given = sys.argv[2] if len(sys.argv) > 2 else beside if beside.exists() else "simulated"
counts, place, speed, names = simulated_session() if given == "simulated" else recorded_session(given)

# --- Runs only, and units with at least 150 spikes in them; every fifth of 25 stretches of time is held out.
running = speed > 0.03
running[:WINDOW] = False  # no history yet
enough = np.flatnonzero(counts[running].sum(axis=0) >= 150)
counts, names = counts[:, enough], [names[n] for n in enough]
n_bins, n_units = counts.shape
block = np.arange(n_bins) * 25 // n_bins
train, test = running & (block % 5 != 2), running & (block % 5 == 2)
seconds = running.sum() * BIN_S
print(f"{'simulated' if given == 'simulated' else 'recorded'}: {seconds:.0f} s of running, {n_units} units")

# --- Features: bumps along the track, and the past of every unit through raised cosines of the logarithm of the lag.
lag = np.arange(1, WINDOW + 1)
stretched = np.log(lag + 1)
centres = np.linspace(stretched[0], stretched[-1], N_HISTORY)
phase = np.clip((stretched[:, None] - centres) / (centres[1] - centres[0]) * np.pi / 2, -np.pi, np.pi)
basis = 0.5 * (1 + np.cos(phase))  # (lag, basis function)
history = Convolution(counts.astype(np.uint8), basis).fetch(slice(0, n_bins))  # (time, unit * basis function)
bumps = np.exp(-(((place[:, None] - np.linspace(0, 1, N_PLACES)) * N_PLACES) ** 2) / 2)
designs = {"place": bumps, "place and history": np.column_stack([bumps, history])}

# --- 1. Fit both, and let held-out time judge. Newton's method, as SAGA's certified steps are short here (in its
# report the steepest bin, L_max, has hundreds of times the L of all bins): it takes the 200 epochs it is given at most.
models, scores, rescaled = {}, {}, {}
for name, X in designs.items():
    model = glmfit.PopulationGLM(regularizer_strength=3e-5, solver_name="Newton").fit(X[train], counts[train])
    models[name] = model
    scores[name] = model.score(X[test], counts[test], per_neuron=True)
    rescaled[name] = rescale_time(counts[test], model.predict(X[test]), random_state=0)
full, X = models[name], designs[name]
print(full.report_)
print("\nheld-out runs          pseudo-R2 (median)   units in the 95 % band of the KS test")
for name in designs:
    inside = np.sum(rescaled[name].statistic < rescaled[name].band())
    print(f"  {name:<20} {np.nanmedian(scores[name]):>12.3f} {inside:>20} of {n_units}")

# --- 2. Filters and coupling with intervals: sums of coefficients, weighted by the basis.
busiest = np.argsort(-rescaled["place"].n_intervals)[:3]
rows = []
for source in range(n_units):
    first = N_PLACES + source * N_HISTORY
    filters = np.zeros((WINDOW + 1, X.shape[1]))
    filters[:, first : first + N_HISTORY] = np.vstack([basis, basis.sum(axis=0)])  # every lag, and their sum
    rows.append(filters)
table = wald_table(full, X[train], counts[train], combinations=np.concatenate(rows))
low, high, filters = (a.reshape(n_units, WINDOW + 1, n_units) for a in (table.low, table.high, table.coef))
coupling = filters[:, -1] * BIN_S  # (source, target), area under the filter
certain = (low[:, -1] > 0) | (high[:, -1] < 0)
others = ~np.eye(n_units, dtype=bool)
print(f"\n{np.sum(certain & others)} of {others.sum()} couplings between units have a 95 % interval without 0 "
      f"({0.05 * others.sum():.0f} would by chance)")  # fmt: skip

# --- Figure.
axes = plotting.new_axes((1, 1, 1), (1, 1), size=(9.4, 5.6))
axes[0, 0].figure.get_layout_engine().set(w_pad=0.1)  # inches, between the colour bar and what is beside it
for n, color in zip(busiest, (plotting.BLUE, plotting.RED, plotting.GREEN), strict=True):
    first = N_PLACES + n * N_HISTORY
    plotting.plot_filter(
        basis, full.coef_[first : first + N_HISTORY, n], lag * BIN_S, interval=(low[n, :-1, n], high[n, :-1, n]),
        color=color, label=names[n], xlabel="time after spike", ylabel="own history (linear predictor)", ax=axes[0, 0],
    )  # fmt: skip
axes[0, 0].legend(frameon=False, fontsize=8)
shown = np.where(others, coupling, np.nan)
ids = [name.removeprefix("unit ") for name in names]
plotting.plot_coupling(shown, names=ids, label="area under filter (s)", ax=axes[0, 1])
axes[0, 1].tick_params(labelsize=7)
axes[0, 1].set_xlabel("target unit", fontsize=9)
axes[0, 1].set_ylabel("source unit", fontsize=9)
source, target = np.nonzero(certain & others)
axes[0, 1].plot(target, source, "o", ms=3, mew=0.7, mec="white", color=plotting.BLACK)
strongest = np.unravel_index(np.argmax(np.where(others, low[:, -1], -np.inf)), coupling.shape)
source, target = strongest
first = N_PLACES + source * N_HISTORY
plotting.plot_filter(
    basis, full.coef_[first : first + N_HISTORY, target], lag * BIN_S,
    interval=(low[source, :-1, target], high[source, :-1, target]), color=plotting.PURPLE,
    xlabel=f"time after spike of {names[source]}", ylabel="linear predictor", ax=axes[0, 2],
)  # fmt: skip
before, after = (rescaled[name].statistic / rescaled[name].band() for name in designs)
mended = int(np.argmax(before - after))
plotting.plot_time_rescaling(rescaled, neuron=mended, ax=axes[1, 0])
plotting.plot_recovery(before, after, xlabel="KS distance / band, place", ylabel="with history", ax=axes[1, 1])
axes[1, 1].axhspan(0, 1, color=plotting.LIGHT, alpha=0.45, lw=0, zorder=0)
axes[1, 1].set_ylim(bottom=0)
plotting.plot_recovery(*scores.values(), xlabel="held-out pseudo-$R^2$, place", ylabel="with history", ax=axes[1, 2])
for ax in axes[1, 1:]:
    ax.get_lines()[-1].set(markersize=6, alpha=0.8)
titles = ["own history, 95 % intervals", "coupling (dot: interval without 0)", f"surest coupling, to {names[target]}"]
titles += [f"time rescaling, {names[mended]}", "every unit (grey: within the band)", "every unit"]
plotting.label_panels(axes, titles)
path = sys.argv[1] if len(sys.argv) > 1 else "09_coupled_place_cells.png"
axes[0, 0].figure.savefig(path)
print(f"\nfigure: {path}")
