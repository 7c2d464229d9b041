"""Names used in annotations; array shapes are those of feature and neuron."""

from typing import Any

import jax
import numpy as np
from jaxtyping import Float
from numpy.typing import ArrayLike

Array = jax.Array | np.ndarray

FeatureNeuron = Float[Array, "feature neuron"]
PerFeature = Float[Array, "feature"]
PerNeuron = Float[Array, "neuron"]

# What users give and get.
DataLike = Any  # rows: array-like, pandas, pynapple, SciPy sparse, or what is read a run at a time
PerRow = ArrayLike | None  # one number, or one row of numbers, of each row
ArrayOrTsd = Any  # an array, or the pynapple object with the times of the rows given; a union would need narrowing
Seed = int | np.random.RandomState | np.random.Generator | jax.Array | None
