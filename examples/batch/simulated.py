"""Sessions made of random numbers: what a loader of your own looks like."""

import numpy as np

from glmfit.design import Session


def load(seed, n_features=40):
    """Simulate a session: 3 000 to 30 000 bins, 10 to 60 neurons."""
    rng = np.random.default_rng(seed)
    n_bins = int(rng.integers(3_000, 30_001))
    n_neurons = int(rng.integers(10, 61))
    X = rng.normal(size=(n_bins, n_features)).astype(np.float32)
    coef = 0.3 * rng.normal(size=(n_features, n_neurons)) / np.sqrt(n_features)
    base = rng.uniform(-3, 0, n_neurons)
    rate = np.logaddexp(0, X @ coef + base)  # expected spikes per bin
    y = rng.poisson(rate).astype(np.uint8)
    names = [f"cell{i}" for i in range(n_neurons)]
    return Session(X=X, y=y, neuron_names=names)
