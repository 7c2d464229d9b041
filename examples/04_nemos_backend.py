"""A NeMoS script changed by two lines: import the plugin, name the solver.

The model is NeMoS's, with its basis functions, its predict and its score; only what minimises the loss is ours. You
will see

1. the two lines;
2. the objective against seconds, for NeMoS's own solvers and for ``SAGA[glmfit]``, on spike history, whose
   correlated features are what solvers find hard;
3. the certificate in ``solver_state_``: how far each neuron is from its optimum, at most;
4. what that is worth: the coefficients of the runs that ended early, beside those of the fit that is certified.

Run it with ``python examples/04_nemos_backend.py [figure.png]``.
"""

import sys
import time
import warnings

import matplotlib.pyplot as plt
import nemos as nmo
import numpy as np

import glmfit.plugins.nemos  # noqa: F401  line 1: registers the solver

# --- Eight neurons' spikes and, through a basis of NeMoS, their history as features.
rng = np.random.default_rng(0)
n_bins, n_neurons = 20_000, 8
counts = rng.poisson(0.1, size=(n_bins, n_neurons)).astype(float)
basis = nmo.basis.RaisedCosineLogConv(n_basis_funcs=8, window_size=60, conv_kwargs={"predictor_causality": "causal"})
X = np.nan_to_num(np.asarray(basis.compute_features(counts)), nan=0.0)  # (time, neuron * basis function)
weights = rng.normal(size=(X.shape[1], n_neurons)) * 0.5
spikes = rng.poisson(np.logaddexp(0, X @ weights - 2)).astype(float)


def fit(solver_name, **solver_kwargs):
    """Fit a NeMoS population model; seconds, penalised loss, model."""
    model = nmo.glm.PopulationGLM(
        inverse_link_function="softplus",
        regularizer="Ridge",
        regularizer_strength=1e-4,
        solver_name=solver_name,
        solver_kwargs=solver_kwargs,
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of runs cut short on purpose
        model.fit(X, spikes)
    np.asarray(model.coef_)
    seconds = time.perf_counter() - start
    params = model._get_model_params()
    loss = model.regularizer.penalized_loss(model._compute_loss, params=params, strength=1e-4)
    return seconds, float(loss(params, *model._preprocess_inputs(X, spikes))), model


# --- Before: what NeMoS offers, with more and more iterations. After: one fit. Every solver is run once before the
# clock counts; NeMoS's compile again in each fit, ours do not.
budgets = {"GradientDescent": (10, 50, 200), "LBFGS": (10, 50, 200)}
runs = {}
for name, numbers in budgets.items():
    fit(name, maxiter=2)
    runs[name] = [fit(name, maxiter=n, tol=1e-12) for n in numbers]
fit("SAGA[glmfit]")
seconds, objective, model = fit("SAGA[glmfit]")  # line 2: the name of the solver

# --- The certificate.
state = model.solver_state_
certificate = state.certificate
print(f"route: {state.route}, solver: {state.solver}, converged: {bool(state.stats.converged)}")
for n in range(n_neurons):
    kind = "at most" if certificate.gap_is_bound[n] else "estimated"
    print(f"  neuron {n}: {kind} {certificate.gap[n]:.1e} nats per bin above its optimum")
print(f"pseudo-R2 as NeMoS computes it: {model.score(X, spikes, score_type='pseudo-r2-McFadden'):.3f}")

# --- Draw: distance from the best objective known, which lies at most the sum of the gaps below ours; and coefficients
# of the longest runs against ours.
best = objective - float(np.sum(certificate.gap))
figure, (axis, beside) = plt.subplots(1, 2, figsize=(8.6, 3.6), layout="constrained", width_ratios=(1.25, 1))
ours = np.ravel(model.coef_)
limit = 1.05 * np.abs(ours).max()
beside.plot([-limit, limit], [-limit, limit], color="0.6", lw=0.8, zorder=0)
for (name, points), color in zip(runs.items(), ("#D55E00", "#009E73"), strict=True):
    x, y, models = zip(*points, strict=True)
    axis.plot(x, np.subtract(y, best), "o", color=color, label=f"{name} after n iterations")
    for number, at in zip(budgets[name], zip(x, np.subtract(y, best), strict=True), strict=True):
        axis.annotate(str(number), at, (6, 0), textcoords="offset points", va="center", color=color, fontsize=8)
    theirs, most = np.ravel(models[-1].coef_), budgets[name][-1]
    off, largest = np.abs(theirs - ours).max(), np.abs(ours).max()
    print(f"{name}, {most} iterations: coefficients up to {off:.2g} from ours, which are up to {largest:.2g}")
    beside.plot(ours, theirs, ".", ms=4, color=color, alpha=0.5, label=f"{name}, {most} iterations")
axis.plot(seconds, objective - best, "*", markersize=14, color="#0072B2", label="SAGA[glmfit], at most this far")
axis.set(yscale="log", ylim=(1e-9, 3e3), xlim=(0, 1.12 * axis.get_xlim()[1]))  # room for the numbers
axis.set(xlabel="seconds of one fit", ylabel="nats per bin above the optimum,\nsum of 8 neurons")
axis.legend(frameon=False, fontsize=8, loc="upper right")
beside.set(xlabel="coefficients, SAGA[glmfit]", ylabel="coefficients, NeMoS's solvers", aspect="equal")
beside.legend(frameon=False, fontsize=8, loc="upper left")
for ax in (axis, beside):
    ax.spines[["top", "right"]].set_visible(False)
path = sys.argv[1] if len(sys.argv) > 1 else "04_nemos_backend.png"
figure.savefig(path, dpi=150)
print(f"figure: {path}")
