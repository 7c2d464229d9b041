"""Names of array shapes used in annotations: time, feature, neuron, batch and column (feature + intercept)."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import Float

Array = jax.Array | np.ndarray

TimeFeature = Float[Array, "time feature"]
TimeNeuron = Float[Array, "time neuron"]
FeatureNeuron = Float[Array, "feature neuron"]
PerTime = Float[Array, "time"]
PerFeature = Float[Array, "feature"]
PerNeuron = Float[Array, "neuron"]
ColumnNeuron = Float[Array, "column neuron"]
Pytree = Any
