# %% [markdown]
# # NeMoS with the solver of glmfit: two lines to change
#
# The model, its basis functions, `predict` and `score` are those of NeMoS.
# Only the solver that minimizes the loss is replaced.
#
# **What you will see**
#
# 1. the two lines;
# 2. the certificate: how far each neuron is from its optimum, at most;
# 3. the objective against wall-clock time for solvers of NeMoS, each run until
#    its own tolerance stops it, and for `SAGA[glmfit]`;
# 4. how much the coefficients of these fits differ.

# %%
import time
import warnings

import matplotlib.pyplot as plt
import nemos as nmo
import numpy as np

import glmfit.plugins.nemos  # noqa: F401  line 1: registers the solver

STRENGTH = 1e-4

# %% [markdown]
# ## Eight neurons and their spike history
#
# History features overlap, so they are correlated. Such designs are ordinary,
# and they are what makes first-order solvers slow.

# %%
rng = np.random.default_rng(0)
n_bins, n_neurons = 20_000, 8
counts = rng.poisson(0.1, size=(n_bins, n_neurons)).astype(float)
basis = nmo.basis.RaisedCosineLogConv(
    n_basis_funcs=8,
    window_size=60,
    conv_kwargs={"predictor_causality": "causal"},
)
X = np.asarray(basis.compute_features(counts))  # (time, neuron * bump)
X = np.nan_to_num(X, nan=0.0)
weights = rng.normal(size=(X.shape[1], n_neurons)) * 0.5
spikes = rng.poisson(np.logaddexp(0, X @ weights - 2)).astype(float)


# %%
def fit(solver_name, **solver_kwargs):
    """Fit a NeMoS population model: seconds of the fit, and the model."""
    model = nmo.glm.PopulationGLM(
        inverse_link_function="softplus",
        regularizer="Ridge",
        regularizer_strength=STRENGTH,
        solver_name=solver_name,
        solver_kwargs=solver_kwargs,
    )
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fits that end early on purpose
        model.fit(X, spikes)
    np.asarray(model.coef_)
    return time.perf_counter() - start, model


def objective(model):
    """Penalized loss in float64, summed over neurons, nats per bin."""
    coef = np.asarray(model.coef_, np.float64)
    rate = np.logaddexp(0, X.astype(float) @ coef + model.intercept_)
    loss = (rate - spikes * np.log(rate)).mean(axis=0)
    return float(np.sum(loss + STRENGTH / 2 * np.sum(coef**2, axis=0)))


# %% [markdown]
# ## The fit, and its certificate
#
# The first fit of a process compiles; the second shows what a fit costs.

# %%
first_s, model = fit("SAGA[glmfit]")  # line 2: the name of the solver
later_s, model = fit("SAGA[glmfit]")
state = model.solver_state_
certificate = state.certificate
print(f"{state.route} by {state.solver}, converged: {state.stats.converged}")
for n in range(n_neurons):
    kind = "at most" if certificate.gap_is_bound[n] else "estimated"
    print(f"neuron {n}: {kind} {certificate.gap[n]:.0e} nats per bin off")

# %% [markdown]
# The smallest value that the objective can take is known up to the sum of
# these gaps. That makes it possible to say how far any other fit is from it.

# %%
lowest = objective(model) - float(np.sum(certificate.gap))
ours = objective(model) - lowest

# %% [markdown]
# ## Solvers of NeMoS, until their own tolerance stops them
#
# Each point is one fit with a limit on the number of iterations; the last one
# ends by the solver's default tolerance. NeMoS compiles in every fit, so its
# curves begin at the time that compilation takes.

# %%
LIMITS = {
    "LBFGS": (1, 10, 30, 100, 300, 5000),
    "BFGS": (1, 10, 30, 100, 5000),
    "NonlinearCG": (1, 10, 100, 300, 5000),
}
curves, first, ends = {}, {}, {}
for name, limits in LIMITS.items():
    first[name], _ = fit(name, maxiter=limits[-1])
    runs = [fit(name, maxiter=limit) for limit in limits]
    ends[name] = runs[-1][1]
    curves[name] = [(s, objective(fitted) - lowest) for s, fitted in runs]
    steps = int(ends[name].optim_info_.num_steps)
    off = np.abs(np.asarray(ends[name].coef_) - np.asarray(model.coef_)).max()
    print(
        f"{name}: stops after {steps} iterations, {curves[name][-1][1]:.0e} "
        f"nats per bin above the optimum; coefficients up to {off:.1g} off"
    )

# %% [markdown]
# ## Objective against time

# %%
figure, (left, right) = plt.subplots(
    1, 2, figsize=(8.8, 3.6), layout="constrained", width_ratios=(1.3, 1)
)
colors = dict(zip(LIMITS, ("#D55E00", "#009E73", "#CC79A7")))
for name, points in curves.items():
    seconds, gap = np.transpose(points)
    color = colors[name]
    left.plot(seconds, gap, ".-", color=color, lw=1.2, label=f"NeMoS {name}")
    left.plot(first[name], gap[-1], "o", mfc="white", mec=color, ms=7)
left.plot(later_s, ours, "*", ms=13, color="#0072B2", label="SAGA[glmfit]")
left.plot(first_s, ours, "*", ms=13, mfc="white", mec="#0072B2")
left.plot([], [], "o", mfc="white", mec="0.3", label="first fit of each")
left.set(yscale="log", xlim=(0, None))
left.set_xlabel("seconds of one fit, compilation included", fontsize=9)
left.set_ylabel(
    "nats per bin above the optimum\n(sum of 8 neurons)", fontsize=9
)
left.legend(frameon=False, fontsize=8)
limit = 1.05 * np.abs(np.asarray(model.coef_)).max()
right.plot([-limit, limit], [-limit, limit], color="0.8", lw=0.8, zorder=0)
for name, fitted in ends.items():
    theirs = np.ravel(fitted.coef_)
    right.plot(np.ravel(model.coef_), theirs, ".", ms=4, color=colors[name])
right.set_aspect("equal")
right.set_xlabel("coefficients, SAGA[glmfit]", fontsize=9)
right.set_ylabel("coefficients, NeMoS at its tolerance", fontsize=9)
for ax in (left, right):
    ax.tick_params(labelsize=8)
    ax.spines[["top", "right"]].set_visible(False)
figure.savefig("04_nemos_backend.png", dpi=200)
