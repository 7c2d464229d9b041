"""Stability of models that are driven by their own spikes: a proof, if there is one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from ..display import Display, Summary, counted, frame_by_neuron
from .coupled import Coupled, read_coupled

if TYPE_CHECKING:
    import pandas as pd

_EPS = float(np.finfo(np.float64).eps)
_TINY = float(np.finfo(np.float64).smallest_normal)
_STEEPEST = {"softplus": 1.0, "logistic": 0.25}  # slopes of inverse links
_STEEP = ("exp", "negative-binomial", "gamma")  # these have slopes without a limit
_REFUSED = {
    "squared": "Gaussian responses may be negative",
    "binomial": "trials of Binomial counts are not part of the model",
}


@dataclass(frozen=True, repr=False)
class CouplingStability(Display):
    """Filters and gains of a coupled model, and whether its counts are proved to stay bounded.

    Attributes
    ----------
    neuron : list
        Names.
    filters : numpy.ndarray
        Effect of a spike of the source on the linear predictor of the target, lag by lag, the first one bin later,
        (lag, source, target).
    gain : numpy.ndarray
        Bound of the expected counts that a spike of the source adds to the target, over all lags, rounding included,
        (source, target); inf if there is none, with the exp link.
    spectral_radius : float
        Bound of the spectral radius of the gains, rounding included.
    is_proved : bool
        Whether the model is proved to be stable. If not, it may be stable or not.
    mean_bound : numpy.ndarray
        Bound of the long-run mean count per bin of each neuron, from any start, (neuron,); inf if none is known.
        Without spikes before the first bin it holds for every bin.
    reason : str
        Reason of the proof, or what is missing.
    """

    neuron: list
    filters: np.ndarray
    gain: np.ndarray
    spectral_radius: float
    is_proved: bool
    mean_bound: np.ndarray
    reason: str

    @property
    def verdict(self) -> str:
        """Verdict: "stable" if that is proved, otherwise "not proved"."""
        return "stable" if self.is_proved else "not proved"

    def _summary(self) -> Summary:
        lags, size = counted(len(self.filters), "lag"), counted(len(self.neuron), "neuron")
        return Summary([f"coupling of {size} over {lags}: {self.verdict}", self.reason], self.to_frame())

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron as a pandas DataFrame: gain_in and gain_out (sums), and mean_bound."""
        columns = {"gain_in": self.gain.sum(axis=0), "gain_out": self.gain.sum(axis=1), "mean_bound": self.mean_bound}
        return frame_by_neuron(self.neuron, columns)


def coupling_stability(
    model: Any, basis: Any, *, inputs: ArrayLike | None = None, columns: Any = None
) -> CouplingStability:
    r"""Prove, if possible, that a population coupled by its spike histories cannot diverge, and bound its mean counts.

    With :math:`h_{ij}[k]` the filter from neuron i to neuron j and f the inverse link, whose slope is at most L, the
    gain is :math:`A_{ij} = L \sum_k \max(h_{ij}[k], 0)`. If the spectral radius of A is below 1, long-run mean counts
    are at most :math:`m = c + A^T m`, where c are the largest rates without any spike in the past.

    Parameters
    ----------
    model, basis, columns :
        As in `simulate_recurrent`.
    inputs : array-like of shape (time, feature), optional
        The other features of the fit. The result holds for inputs that drive no neuron more than the largest of these
        rows does.

    Returns
    -------
    CouplingStability

    Raises
    ------
    ValueError, TypeError
        As `simulate_recurrent`; and for Gaussian responses.
    NotFittedError
        Before a fit.

    Notes
    -----
    Guarantee: the theorem for each link and its proof are in docs/theory/stable_coupling.md; radius and bounds are
    computed in float64 and raised by more than its rounding. With the exp link only a model whose filters are nowhere
    positive is proved. The verdict is otherwise "not proved", never "unstable": inhibition is not counted. The bounds
    are for whole bins, without the offset of a fit. They take the fitted coefficients as exact and ignore estimation
    errors. Cost: lag x neuron^2, and neuron^3.

    References
    ----------
    P. Bremaud, L. Massoulie, Stability of nonlinear Hawkes processes, Annals of Probability 24 (1996) 1563-1588; F.
    Gerhard, M. Deger, W. Truccolo, On the stability and dynamics of stochastic spiking neuron models, PLOS
    Computational Biology 13 (2017) e1005390.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLM
    >>> from glmfit.design import Convolution
    >>> from glmfit.inference import coupling_stability
    >>> counts = np.random.default_rng(0).poisson(0.2, size=(2000, 2))
    >>> basis = np.exp(-np.arange(10) / [[2.0], [5.0]]).T  # (lag, basis)
    >>> X = Convolution(counts, basis).to_array()
    >>> model = PopulationGLM(regularizer_strength=1e-2).fit(X, counts)
    >>> coupling_stability(model, basis).verdict
    'stable'
    """
    coupled = read_coupled(model, basis, columns, inputs)
    name = coupled.observation.name
    if name in _REFUSED:
        raise ValueError(f"coupling_stability is for counts: {_REFUSED[name]}, and no bound is known.")
    if name not in (*_STEEPEST, *_STEEP):
        known = ", ".join((*_STEEPEST, *_STEEP))
        raise ValueError(f"the observation model is {name!r}; coupling_stability has proofs for {known}.")
    filters = np.einsum("lb,bst->lst", coupled.kernels, coupled.coef)
    excitation = _excitation(coupled, filters)
    alone = _rates_alone(coupled)
    free = ~(excitation > 0).any(axis=0)  # neurons that nothing excites
    bound = np.where(free, alone, np.inf)
    if name not in _STEEPEST:
        gain = np.where(excitation > 0, np.inf, 0.0)
        radius = np.inf if gain.any() else 0.0
        is_proved, reason = bool(free.all()), _say_exp(int(np.sum(~free)), len(free))
    else:
        gain = _STEEPEST[name] * excitation
        radius, vector = bound_spectral_radius(gain.T)
        is_proved, reason = radius < 1, f"spectral radius of the gains: at most {radius:.4g}"
        if is_proved:
            bound = np.minimum(bound, _bound_means(gain.T, alone, radius, vector))
        if name == "logistic":
            is_proved, bound, reason = True, np.minimum(bound, 1.0), f"a response is at most 1; {reason}"
        elif not is_proved:
            reason += ", and below 1 it would be proved; inhibition, which may stabilise the network, is not counted"
    return CouplingStability(coupled.neuron, filters, gain, float(radius), is_proved, bound, reason)


def _say_exp(n_excited: int, n_neurons: int) -> str:
    if not n_excited:
        return "no filter is positive anywhere, so that no rate exceeds the rate without spikes"
    return (
        f"{n_excited} of {counted(n_neurons, 'neuron')} are excited by spikes, which an exp link can turn into any "
        "rate; with the softplus link a proof may exist"
    )


def _excitation(coupled: Coupled, filters: np.ndarray) -> np.ndarray:
    """Bound the sums over lags of the positive parts of the filters, rounding included, (source, target)."""
    lags, n_kernels = coupled.kernels.shape
    terms = np.einsum("lb,bst->lst", np.abs(coupled.kernels), np.abs(coupled.coef))
    positive = np.maximum(filters + (n_kernels + 4) * _EPS * terms, 0.0)
    return positive.sum(axis=0) * (1 + (lags + 4) * _EPS)


def _rates_alone(coupled: Coupled) -> np.ndarray:
    """Largest rate of each neuron over the inputs if there is no spike in the past, rounding included, (neuron,)."""
    eta = np.max(coupled.base + 2 * coupled.base_error, axis=0)
    rate = np.asarray(coupled.observation.mean(eta), np.float64) * (1 + 64 * _EPS) + _TINY
    return np.where(coupled.silent, 0.0, rate)


def bound_spectral_radius(A: np.ndarray) -> tuple[float, np.ndarray]:
    """Bound the spectral radius of a non-negative matrix by max (Av)_i / v_i of a vector v > 0; return both.

    Any v gives a bound (Collatz and Wielandt); rounding of the quotient is added. The vector solves (t - A) v = 1 for
    a t just above the radius, which has positive entries.
    """
    n = len(A)
    candidates = [np.ones(n)]
    if A.any():
        radius = float(np.abs(np.linalg.eigvals(A)).max())
        for slack in (1e-12, 1e-9, 1e-6, 1e-3, 1e-1):
            t = radius * (1 + slack) + slack * 1e-3 * A.max()
            try:
                v = np.linalg.solve(t * np.eye(n) - A, np.ones(n))
            except np.linalg.LinAlgError:
                continue
            if np.all(np.isfinite(v)) and np.all(v > 0):
                candidates.append(v / v.max())
    candidates = [v for v in candidates if v.min() > _TINY / _EPS]
    found = [float(np.max(((A @ v) * (1 + (n + 4) * _EPS) + n * _TINY) / v)) * (1 + 4 * _EPS) for v in candidates]
    best = int(np.argmin(found))
    return (found[best] if A.any() else 0.0), candidates[best]


def _bound_means(B: np.ndarray, c: np.ndarray, radius: float, vector: np.ndarray) -> np.ndarray:
    """Bound the solution of m = c + B m: any w >= c + B w is one; the solver's answer is raised until it is.

    With B v <= radius v, adding s v to w adds at least s (1 - radius) v to w - B w.
    """
    n = len(B)
    w = np.maximum(np.linalg.solve(np.eye(n) - B, c), 0.0)
    Bw = B @ w
    short = c + Bw - w + (n + 8) * _EPS * (c + Bw + w) + _TINY
    raise_by = max(float(np.max(short / vector)), 0.0) / (1 - radius) * (1 + 1e-9)
    # The products of s v are also rounded.
    raise_by *= 1 + (n + 16) * _EPS / (1 - radius)
    return (w + raise_by * vector) * (1 + 4 * _EPS)
