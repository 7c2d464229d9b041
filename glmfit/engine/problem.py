"""Interface of a problem for solvers: its parameters, its capabilities, its one definition of the gap."""

from abc import ABC, abstractmethod
from typing import NamedTuple

import numpy as np

from ..display import counted


class Params(NamedTuple):
    """Parameters as the user sees them.

    Attributes
    ----------
    coef : numpy.ndarray
        (feature, neuron), float64.
    intercept : numpy.ndarray
        (neuron,), float64.
    """

    coef: np.ndarray
    intercept: np.ndarray

    def of(self, which) -> "Params":
        """Return the parameters of some neurons."""
        return Params(self.coef[:, which], self.intercept[which])


class Evaluation(NamedTuple):
    """Objective and gradient of the smooth part at some parameters, in float64.

    Attributes
    ----------
    objective : numpy.ndarray
        F, penalty included, (neuron,).
    grad_coef : numpy.ndarray
        Gradient of the loss plus the ridge part, (feature, neuron).
    grad_intercept : numpy.ndarray
        (neuron,).
    """

    objective: np.ndarray
    grad_coef: np.ndarray
    grad_intercept: np.ndarray


class Problem(ABC):
    """Objective to minimise, one independent column per neuron.

    Attributes
    ----------
    n_rows, n_neurons : int
        Number of rows and of columns.
    """

    n_rows: int
    n_neurons: int

    @property
    def subject(self) -> str:
        """Name of what is fitted, for a progress bar."""
        return counted(self.n_neurons, "neuron")

    @abstractmethod
    def null_params(self) -> Params:
        """Return the intercept-only model, the reference point of relative gaps."""

    @abstractmethod
    def evaluate(self, params: Params) -> Evaluation:
        """Compute objective and gradient at ``params`` in float64 with the data as given."""
