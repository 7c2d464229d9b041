"""From a session and a design to what an estimator is fitted to."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from ._schema import Problems
from .recording import Built, build_recording
from .sessions import Session
from .settings import COUNT_ESTIMATORS, read_design


def build(
    session: Session, design: dict[str, Any] | None, estimator: str = "PopulationGLM", dtype: DTypeLike = np.float32
) -> Built:
    """Build what an estimator is fitted to.

    Parameters
    ----------
    session : Session
        A recording, or matrices that are ready.
    design : dict or None
        Bins, covariates and history, with the keys of ``[model.design]`` of a manifest; None for matrices. Tuples,
        arrays and numbers of NumPy are taken for lists and numbers.
    estimator : str
        Name of the estimator that will be fitted.
    dtype : {numpy.float32, numpy.float64}
        Of the features.

    Returns
    -------
    Built
        Features, counts or labels, and notes on how they were made.

    Raises
    ------
    TypeError
        If the design is no dict.
    ValueError
        If the design has a key or a value that is not allowed, the session lacks what it names, or nothing is left to
        fit.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit.design import Session, build
    >>> time = np.arange(0, 10, 0.05)
    >>> speed = np.sin(time)
    >>> session = Session(spikes={"a": np.arange(0.1, 10, 0.3)}, signals={"speed": (time, speed)})
    >>> history = {"basis": {"kind": "raised_cosine_log", "n": 2, "window_s": 0.5}}
    >>> built = build(session, {"bin_s": 0.1, "covariates": [{"signal": "speed"}], "history": history})
    >>> built.X.shape, built.feature_names
    ((99, 3), ['speed', 'history_a_0', 'history_a_1'])
    """
    if session.matrices is not None:
        return _matrices(session.matrices, design, estimator, dtype)
    if design is None:
        raise ValueError("the session is a recording, but the model has no design: add [model.design] with bin_s.")
    return build_recording(session, _checked(design), dtype)


def _checked(design: dict[str, Any]) -> dict[str, Any]:
    """Check a design by itself, and fill its defaults in."""
    if not isinstance(design, dict):
        raise TypeError(f"design is a {type(design).__name__}; it must be a dict, with the keys of [model.design].")
    given = _as_read({key: value for key, value in design.items() if value is not None})
    problems = Problems("design", given)
    found = read_design(problems, (), given, (), None)
    if problems:
        raise ValueError("\n".join(problems.texts))
    return found


def _as_read(value: Any) -> Any:
    """Turn tuples and values of NumPy into what a manifest would have in their place."""
    if isinstance(value, dict):
        return {key: _as_read(entry) for key, entry in value.items()}
    value = value.tolist() if isinstance(value, np.ndarray | np.generic) else value
    return [_as_read(entry) for entry in value] if isinstance(value, list | tuple) else value


def _matrices(given: dict[str, Any], design, estimator: str, dtype) -> Built:
    if design is not None:
        raise ValueError("the session has matrices X and y, but the model has a design; leave the design out.")
    if "exposure" in given and estimator not in COUNT_ESTIMATORS:
        raise ValueError(f"the session has an exposure, which {estimator} does not know.")
    X, y = given["X"].astype(dtype, copy=False), given["y"]
    names = given.get("feature_names") or [f"x{i}" for i in range(X.shape[1])]
    notes = {"kind": "matrices", "rows": len(X)}
    rest = (given.get(name) for name in ("sample_weight", "offset", "exposure"))
    return Built(X, y, *rest, names, given.get("neuron_names"), notes)
