"""First fit: one neuron, NumPy in, NumPy out.

A GLM predicts the spike count of a bin from features of that bin. Here the features are the recent past of a stimulus,
and the neuron's filter is known because we simulate it. You will see how to

1. make features: the past of a signal through a few smooth basis functions;
2. fit, and read the report: did it converge, and how far from the best possible fit can the answer be;
3. judge the model on time it has not seen;
4. draw the filter.

Run it with ``python examples/01_first_fit.py [figure.png]``.
"""

import sys

import numpy as np

import glmfit
from glmfit import plotting

BIN_S = 5e-3
rng = np.random.default_rng(1)

# --- A stimulus, and the filter by which the neuron listens to it (lags 0 to 145 ms).
n_bins, n_lags = 40_000, 30
stimulus = rng.normal(size=n_bins)
lag_s = BIN_S * np.arange(n_lags)
true_filter = 0.9 * np.exp(-0.5 * ((lag_s - 0.04) / 0.015) ** 2) - 0.4 * np.exp(-0.5 * ((lag_s - 0.08) / 0.02) ** 2)
eta = np.convolve(stimulus, true_filter)[:n_bins] - 3.0  # linear predictor
spikes = rng.poisson(np.log1p(np.exp(eta)))  # softplus turns it into a rate per bin

# --- Features. Thirty lags would be thirty noisy coefficients; twelve overlapping bumps are enough for a smooth filter.
peaks = np.linspace(0, lag_s[-1], 12)
phase = (lag_s[:, None] - peaks) / (peaks[1] - peaks[0])
basis = 0.5 * (1 + np.cos(np.pi / 2 * np.clip(phase, -2, 2)))  # (lag, basis function)
X = np.column_stack([np.convolve(stimulus, bump)[:n_bins] for bump in basis.T])
X[: n_lags - 1] = np.nan  # the past is not known here: rows with NaN are left out of the fit, and counted

# --- Fit on the first three quarters. A weak ridge: strength/2 times the sum of squared coefficients.
n_train = 3 * n_bins // 4
model = glmfit.PopulationGLM(regularizer="Ridge", regularizer_strength=1e-4)
model.fit(X[:n_train], spikes[:n_train])

# --- The report. "bound" means proved: the objective is at most that much above its minimum. The pseudo-R2 says how
# much of the deviance the model explains; in small bins most of it is chance, so compare with the true model, below.
print(model.report_)

# --- Judge on held-out time: share of the deviance explained, 0 for a constant rate.
held_out = model.score(X[n_train:], spikes[n_train:])
truth = glmfit.PopulationGLM(regularizer="UnRegularized").fit(eta[:n_train, None], spikes[:n_train])
ceiling = truth.score(eta[n_train:, None], spikes[n_train:])
print(f"\nheld-out pseudo-R2: {held_out:.4f}; with the true linear predictor as the only feature: {ceiling:.4f}")

# --- Draw.
ax = plotting.plot_filter(basis, model.coef_, lag_s, label="fitted", xlabel="time before spike")
ax.plot(1e3 * lag_s, true_filter, "--", color="black", lw=1, label="true")
ax.legend(frameon=False)
path = sys.argv[1] if len(sys.argv) > 1 else "01_first_fit.png"
ax.figure.savefig(path, dpi=200)
print(f"figure: {path}")
