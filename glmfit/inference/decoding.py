"""Decoding with a prior over time: posteriors of labels that change as a Markov chain does."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import logsumexp, softmax

from ..checks import as_numbers, check_flag, check_model
from ..data.times import time_axis, wrap
from ..estimators import SoftmaxGLM
from ..estimators.model import check_is_fitted
from ..numerics import ArrayOrTsd, DataLike, PerRow

_NEAR_ONE = 1e-6  # of sums of probabilities


def smooth_posterior(
    model: SoftmaxGLM,
    X: DataLike,
    transition: ArrayLike,
    *,
    causal: bool = False,
    initial: ArrayLike | None = None,
    epochs: ArrayLike | None = None,
    offset: PerRow = None,
) -> ArrayOrTsd:
    r"""Decode labels from all rows together, given how likely they change from one row to the next.

    A softmax model decodes each row by itself. Here the labels are a Markov chain, and row t adds the likelihood

    .. math:: p(x_t \mid k) \propto p(k \mid x_t) / p(k),

    with p(k | x) the probabilities of the model and p(k) the shares of the labels in its fit.

    Parameters
    ----------
    model : SoftmaxGLM or SoftmaxGLMCV
        Fitted.
    X, offset :
        As in :meth:`glmfit.SoftmaxGLM.predict_proba`. A row with a NaN says nothing about its label.
    transition : array-like of shape (class, class)
        Probability of the label of the next row (column) given that of this one (row), classes in the order of
        ``classes_``; rows sum to 1.
    causal : bool
        Use the rows up to t only, as a decoder does while the animal runs. By default rows after t count, too.
    initial : array-like of shape (class,), optional
        Probabilities of the labels of first rows; by default their shares in the fit.
    epochs : array-like of int, optional
        First rows of epochs, which are decoded separately, as in `glmfit.design.Convolution`; a pynapple object has its
        own. By default there is one.

    Returns
    -------
    array or pynapple TsdFrame
        Posterior probabilities, (time, class); a frame if X is one.

    Raises
    ------
    ValueError
        For invalid probabilities, and for rows whose labels are all impossible after those before.
    TypeError
        If the model is not a softmax model of labels.
    NotFittedError
        Before a fit.

    Notes
    -----
    Exact for such a chain (forward and backward recursions, in float64), if rows are independent given their labels.
    Features that include the past, such as spike histories, count evidence twice. Cost: rows times classes squared.

    References
    ----------
    L. Rabiner, A tutorial on hidden Markov models, Proceedings of the IEEE 77 (1989) 257-286; K. Zhang et al.,
    Interpreting neuronal population activity by reconstruction, Journal of Neurophysiology 79 (1998) 1017-1044.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import SoftmaxGLM
    >>> from glmfit.inference import smooth_posterior
    >>> rng = np.random.default_rng(0)
    >>> asleep = np.cumsum(rng.random(600) < 0.02) % 2  # changes once in 50 rows
    >>> X = asleep[:, None] + rng.normal(size=(600, 2))
    >>> model = SoftmaxGLM().fit(X[:300], asleep[:300])
    >>> together = smooth_posterior(model, X[300:], [[0.98, 0.02], [0.02, 0.98]])
    >>> alone = model.predict_proba(X[300:])
    >>> bool(np.mean(np.argmax(together, 1) == asleep[300:]) > np.mean(np.argmax(alone, 1) == asleep[300:]))
    True
    """
    check_model(model, SoftmaxGLM, "glmfit.SoftmaxGLM or SoftmaxGLMCV, a model of labels.")
    check_is_fitted(model)
    K, share = len(model.classes_), model.report_.class_totals / model.report_.class_totals.sum()
    transition = _probabilities("transition", transition, (K, K))
    initial = share if initial is None else _probabilities("initial", initial, (K,))
    check_flag("causal", causal)
    found, axis = model.predict_log_proba(X, offset), time_axis(X)
    log_p = np.asarray(found.values if axis is not None else found, np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        evidence = np.where(share > 0, log_p - np.log(share), -np.inf)
    evidence[np.isnan(log_p).any(axis=1)] = np.where(share > 0, 0.0, -np.inf)
    posterior = np.empty_like(evidence)
    for first, last in _epochs(epochs, axis, len(evidence)):
        posterior[first:last] = _of_chain(evidence[first:last], transition, initial, causal, first)
    return wrap(posterior, axis, None, list(model.classes_))


def _of_chain(evidence: np.ndarray, transition: np.ndarray, initial: np.ndarray, causal: bool, row: int) -> np.ndarray:
    """Posterior of one epoch, (time, class), from log-likelihoods; errors name the row, of which the first is given."""
    n = len(evidence)
    with np.errstate(divide="ignore"):
        step, before = np.log(transition), np.log(initial)
    found = np.empty_like(evidence)  # logarithms throughout: a label that is unlikely now may be certain later
    for t in range(n):
        found[t] = evidence[t] + before
        if np.max(found[t]) == -np.inf:
            raise ValueError(
                f"row {row + t} has no possible label: those that the rows before allow have probability 0 there. "
                "Give transition (and initial) small positive probabilities instead of 0."
            )
        before = logsumexp(found[t][:, None] + step, axis=0)
    if not causal:
        after = np.zeros(evidence.shape[1])
        for t in range(n - 2, -1, -1):
            after = logsumexp(step + (evidence[t + 1] + after), axis=1)
            found[t] += after
    return softmax(found, axis=1)


def _probabilities(name: str, value: Any, shape: tuple[int, ...]) -> np.ndarray:
    """Check probabilities whose last axis sums to 1, up to rounding, which is removed."""
    found = as_numbers(name, value)
    if found.shape != shape:
        raise ValueError(f"{name} has shape {found.shape}; it must be {shape}, classes in the order of classes_.")
    total = found.sum(axis=-1, keepdims=True)
    if not np.isfinite(found).all() or np.any(found < 0) or np.any(np.abs(total - 1) > _NEAR_ONE):
        what = "its rows" if found.ndim == 2 else "it"
        raise ValueError(f"{name} must have probabilities, finite and >= 0, and {what} must sum to 1.")
    return found / total


def _epochs(given: ArrayLike | None, axis, n_rows: int) -> list[tuple[int, int]]:
    """First row of every epoch, and the row after its last."""
    starts = np.zeros(0, int)
    if given is not None and axis is not None:
        raise ValueError("epochs is given, but X has times, whose time_support says where epochs begin; give one.")
    if given is not None:
        starts = np.asarray(given)
        if starts.ndim != 1 or starts.dtype.kind not in "iu" or np.any(starts < 0) or np.any(starts >= n_rows):
            raise ValueError(f"epochs must be numbers of rows, from 0 to {n_rows - 1}, at which epochs begin.")
    elif axis is not None:
        number = np.searchsorted(np.asarray(axis.time_support.start), axis.t, side="right")
        starts = np.flatnonzero(np.diff(number)) + 1
    ends = np.unique([0, *starts, n_rows])
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
