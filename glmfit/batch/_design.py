"""From a session and a design to what an estimator is fitted to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ._estimators import takes_exposure
from ._session import Session


@dataclass(frozen=True)
class Built:
    """What an estimator is fitted to.

    Attributes
    ----------
    X : numpy.ndarray
        (time, feature).
    y : numpy.ndarray
        Counts (time, neuron), or labels (time,).
    sample_weight, offset, exposure : numpy.ndarray or None
        As ``fit`` takes them.
    feature_names : list of str
        Of the columns of X.
    target_names : list of str or None
        Of the columns of y.
    notes : dict
        What was done, values of JSON.
    own : list of numpy.ndarray or None
        History of each neuron by itself, (time, basis) each.
    """

    X: np.ndarray
    y: np.ndarray
    sample_weight: np.ndarray | None
    offset: np.ndarray | None
    exposure: np.ndarray | None
    feature_names: list[str]
    target_names: list[str] | None
    notes: dict[str, Any]
    own: list[np.ndarray] | None = None


def build(session: Session, design: dict[str, Any] | None, estimator: str, dtype: DTypeLike = np.float32) -> Built:
    """Build what an estimator is fitted to.

    Parameters
    ----------
    session : Session
        Of `load_session`.
    design : dict or None
        Of a task: ``task.spec["design"]``; None for matrices.
    estimator : str
        Name of the estimator.
    dtype : {numpy.float32, numpy.float64}
        Of the features.

    Returns
    -------
    Built
        Features, counts or labels, and notes on how they were made.

    Raises
    ------
    ValueError
        If the session lacks what the design names, or nothing is left to fit.
    """
    if session.matrices is not None:
        return _matrices(session.matrices, design, estimator, dtype)
    if design is None:
        raise ValueError("the session is a recording, but the model has no design: add [model.design] with bin_s.")
    from ._recording import build_recording

    return Built(sample_weight=None, offset=None, **build_recording(session, design, dtype))


def _matrices(given: dict[str, Any], design, estimator: str, dtype) -> Built:
    """Matrices as they are."""
    if design is not None:
        raise ValueError("the session has matrices X and y, but the model has a design; leave the design out.")
    if "exposure" in given and not takes_exposure(estimator):
        raise ValueError(f"the session has an exposure, which {estimator} does not know.")
    X, y = given["X"].astype(dtype, copy=False), given["y"]
    names = given.get("feature_names") or [f"x{i}" for i in range(X.shape[1])]
    notes = {"kind": "matrices", "rows": len(X)}
    rest = (given.get(name) for name in ("sample_weight", "offset", "exposure"))
    return Built(X, y, *rest, names, given.get("neuron_names"), notes)
