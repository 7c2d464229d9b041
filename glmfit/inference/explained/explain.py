"""Contributions of groups of features to responses, by nested models x folds x strengths x draws of a null."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ...checks import check_flag, check_positive, check_real, warn_user
from ...data.counts import Training, read_training
from ...data.times import time_axis
from ...estimators import PopulationGLM, PopulationGLMCV
from ...estimators.cv_fits import default_strengths, read_tried
from ...estimators.parameters import read_strengths
from ...estimators.population_glm import at_dispersion
from ...estimators.scores import make_folds
from ...estimators.streaming import as_arrays
from ...numerics import DataLike, PerRow
from ...penalties.by_name import PenaltyFamily
from .explanation import Explanation
from .models import read_groups, read_models
from .nulls import Null, Rows
from .scorer import Scorer
from .work import Work


def explain(
    model: PopulationGLM | PopulationGLMCV,
    X: DataLike,
    y: DataLike,
    groups: ArrayLike | Mapping[str, Any] | None = None,
    *,
    kinds: str | Sequence[str] = ("unique", "maximal"),
    order: Sequence[str] | None = None,
    models: Mapping[str, Sequence[str]] | None = None,
    cv: Any = None,
    strengths: ArrayLike | None = None,
    null: Null | None = None,
    null_strength: float | str | None = None,
    level: float | None = 0.05,
    sample_weight: PerRow = None,
    offset: PerRow = None,
    exposure: PerRow = None,
    epochs: Mapping[Any, Any] | None = None,
    tol: float | None = None,
    checkpoint: Any = None,
    verbose: bool = False,
) -> Explanation:
    """Measure how much each group of features explains of held-out responses, neuron by neuron.

    Parameters
    ----------
    model : PopulationGLM or PopulationGLMCV
        Gives the observation model, the penalty (ridge, lasso, elastic net or none) and the strengths. It need not be
        fitted and is not changed.
    X, y, sample_weight, offset, exposure, epochs :
        As in the model's ``fit``; in memory.
    groups : dict or array, optional
        Group name -> feature indices or names (one, a list or a slice); or a label per feature, (feature,). By default
        each feature is a group. Groups may overlap, and features in none are in every model of unique contributions.
    kinds : str or list of {"unique", "maximal"}
        Comparisons: all features with all but those of a group (unique), and those of a group alone with a constant
        (maximal). Both by default.
    order : list of str, optional
        Groups to add one after the other; each contributes its gain over those before it ("added").
    models : dict, optional
        More models: name -> list of groups. Each is compared with a constant, and any two by `Explanation.compare`.
    cv : optional
        Folds, as in `PopulationGLMCV`, each row held out at most once; default the model's ``cv``, or 5 blocks. Use
        blocks of trials or of time: held-out rows next to training rows are not independent of them.
    strengths : array of shape (strength,), optional
        Candidate strengths. One is chosen for every model, fold and neuron inside the training folds. Default those of
        the model: ``strengths`` of a `PopulationGLMCV`, or a number given as ``regularizer_strength``.
    null : CircularShift, LinearShift, Permutation, Designs or Counts, optional
        Null distribution for p-values.
    null_strength : float, "chosen" or None
        Strength at which the statistics of the recording and of the draws are computed. None takes the one that the
        other neurons choose most often for the model of all features, for a single neuron the middle one; "chosen" lets
        every draw choose, as the contributions do, at many times the cost.
    level : float or None
        Significance level of the verdicts, default 0.05: draws that cannot change a verdict are skipped. None computes
        all draws.
    tol : float, optional
        Relative gap of the fits, default that of the model. With penalties that have kinks, fits end when 0.01 nats are
        left, whatever it is.
    checkpoint : str or pathlib.Path, optional
        File that stores the progress. If it exists, the work continues from there.
    verbose : bool
        Show a progress bar.

    Returns
    -------
    Explanation

    Raises
    ------
    TypeError, ValueError
        For other arguments than the above, overlapping folds, and fewer than three folds with several strengths.

    Warns
    -----
    UserWarning
        If some fits are not proved, or some folds cannot be scored for some neurons.

    Notes
    -----
    Neither the model that predicts a held-out fold nor its strength depends on that fold. Guarantee: every fit has a
    bound of how far its objective is above the minimum. With a ridge on up to 300 features, a contribution also has a
    bound of how far it is from that of the exact optima at the chosen strengths, unless the ridge is weak and features
    are rarely above 0 (docs/theory/nested_models.md). P-values are as valid as the null (docs/how_to/explain.md); a
    draw whose fits cannot be proved counts against the group.

    Cost: for each neuron, model, pair of folds and strength about two passes over the rows; Hessians are shared by
    similar models, folds and strengths. Gaussian responses need one pass in total. Ctrl-C returns the results so far.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGLMCV
    >>> from glmfit.inference import explain
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(900, 3))
    >>> counts = rng.poisson(np.exp(0.5 * X[:, :1] - 1))
    >>> model = PopulationGLMCV(inverse_link_function="exp", strengths=[1e-3, 1e-1])
    >>> found = explain(model, X, counts, {"place": 0, "speed": [1, 2]}, kinds="unique")
    >>> bool(found.contribution[1, 0] > found.contribution[2, 0])
    True
    """
    estimator = _read_model(model)
    tol = check_positive("tol", estimator.tol if tol is None else tol)
    _check_null(null, level)
    check_flag("verbose", verbose)
    X, y = as_arrays(X, y)
    data = read_training(estimator, X, y, sample_weight, offset, exposure, epochs)
    rows = Rows(data.rows, data.n_given, *data.X.shape[1:], *data.Y.shape[1:], time_axis(X) or time_axis(y))
    n_features, named = data.X.shape[1], getattr(estimator, "feature_names_in_", None)
    nested = read_models(read_groups(groups, n_features, named), n_features, kinds, order, models)
    scorer = _scorer(estimator, data, rows, nested.masks, cv, strengths, tol)
    work = Work(scorer, nested, rows, null, null_strength, level, checkpoint)
    interrupted = work.run(verbose)
    features = [str(name) for name in (range(n_features) if named is None else named)]
    found = work.result(data, features, estimator.observation_model, interrupted)
    _warn(found)
    return found


# ---------------------------------------------------------------- arguments


def _read_model(model: Any) -> PopulationGLM | PopulationGLMCV:
    if not isinstance(model, PopulationGLM | PopulationGLMCV):
        raise TypeError(
            f"model is a {type(model).__name__}; it must be a glmfit.PopulationGLM or PopulationGLMCV, which gives the "
            "observation model, the penalty and the strengths."
        )
    if getattr(model, "feature_mask", None) is not None:
        raise ValueError(
            "model has a feature_mask, which explain does not support; explain neurons with the same features "
            "together, without the other features."
        )
    return type(model)(**model.get_params(deep=False))


def _check_null(null: Any, level: Any) -> None:
    if level is not None:
        check_real("level", level, 1.0)
    if null is not None and not isinstance(null, Null):
        raise TypeError(
            f"null is a {type(null).__name__}; it must be one of glmfit.inference: CircularShift, LinearShift, "
            "Permutation, Designs or Counts."
        )
    if null is not None and level is not None and null.enough(level) < 1:
        raise ValueError(
            f"null has n={null.n}, too few for a p-value of {level:g} or less; take at least "
            f"{int(np.ceil(1 / level)) - 1} draws, or level=None to compute the p-values anyway."
        )


def _scorer(estimator, data: Training, rows: Rows, masks: np.ndarray, cv, strengths, tol: float) -> Scorer:
    """Read folds, penalty and strengths of an estimator, and make the scorer of its models."""
    number, n_held = _read_folds(cv, estimator, data, rows.axis)
    observation, penalty = _observation(estimator, data), _read_penalty(estimator, data.X.shape[1])
    tried = _read_strengths(strengths, estimator, data, observation, penalty)
    if len(tried) > 1 and n_held < 3:
        raise ValueError(
            f"cv has {n_held} folds and there are {len(tried)} strengths to choose from; this needs at least three "
            "folds: one to score, one to choose by and one to fit. Give more folds, or one strength."
        )
    cv_tol = getattr(estimator, "cv_tol", 10 * tol) * min(1.0, tol / estimator.tol)
    return Scorer(data, observation, number, n_held, masks, tried, penalty, tol, cv_tol)


def _read_penalty(estimator, n_features: int) -> PenaltyFamily:
    name, ratio = estimator.regularizer, getattr(estimator, "l1_ratio", 0.5)
    if name in (None, "UnRegularized"):
        return PenaltyFamily("Ridge", n_features)
    if name not in ("Ridge", "Lasso", "ElasticNet"):
        raise ValueError(
            f"regularizer is {name!r}; explain fits with 'Ridge', 'Lasso', 'ElasticNet' or 'UnRegularized'."
        )
    strength = getattr(estimator, "regularizer_strength", None)
    if name == "ElasticNet" and isinstance(strength, tuple):
        ratio = float(strength[1])
    return PenaltyFamily(name, n_features, ratio)


def _read_strengths(strengths, estimator, data: Training, observation, penalty) -> np.ndarray:
    needs = "a number, or a list of finite numbers of at least 0, such as [1e-4, 1e-2, 1]"
    if strengths is not None:
        return np.unique(read_strengths("strengths", strengths, needs, 0, 1))
    if estimator.regularizer in (None, "UnRegularized"):
        return np.zeros(1)
    if isinstance(estimator, PopulationGLMCV):
        tried = read_tried(estimator.strengths)
        return default_strengths(penalty, data, observation) if tried is None else tried
    strength = estimator.regularizer_strength
    strength = strength[0] if isinstance(strength, tuple) else strength
    if strength is None:
        return default_strengths(penalty, data, observation)
    if np.ndim(strength):
        raise ValueError(
            "regularizer_strength has one strength for each neuron or coefficient; explain needs one for all: pass a "
            "number, or strengths=[...] to choose from."
        )
    return read_strengths("regularizer_strength", strength, needs, 0)


def _read_folds(cv, estimator, data: Training, axis) -> tuple[np.ndarray, int]:
    cv = getattr(estimator, "cv", 5) if cv is None else cv
    folds = make_folds(cv, data, axis)
    again = folds.test.sum(axis=1) > 1
    if again.any():
        raise ValueError(
            f"{int(again.sum())} rows are held out by more than one fold of cv; explain sums over folds, so that each "
            "row may be held out at most once."
        )
    if np.any(folds.train == folds.test):
        raise ValueError(
            "cv has folds whose training rows are not all rows that they do not hold out; explain fits every fold to "
            "all other rows. Exclude rows from all folds by sample_weight 0."
        )
    return np.where(folds.test.any(axis=1), np.argmax(folds.test, axis=1), folds.test.shape[1]), folds.test.shape[1]


def _observation(estimator, data: Training):
    """Return the observation model at its dispersion, by default that of a fit with the default ridge to all rows."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names = ("observation_model", "inverse_link_function", "dispersion")
        return at_dispersion(PopulationGLMCV(**{name: getattr(estimator, name) for name in names}), data)


def _warn(found: Explanation) -> None:
    lost = found.n_fits - found.n_proved
    if lost.any():
        warn_user(
            f"{int(lost.sum())} of {int(found.n_fits.sum())} fits are not proved to be at their optimum, of "
            f"{int(np.sum(lost > 0))} neurons (column proved shows which contributions rest on such fits). Drop "
            "the weakest strengths, or features that nearly repeat others."
        )
    upper = found.n_unproved_draws > 0
    if upper.any():
        warn_user(
            f"{int(found.n_unproved_draws.sum())} draws of the null count against the groups because their fits are "
            f"not proved: {int(upper.sum())} of {int(np.isfinite(found.p_value).sum())} p-values may be too large "
            "(n_unproved_draws says which). Pass a larger null_strength."
        )
    empty = ~np.isfinite(found.loss[0])
    if empty.any() and found.status == "complete":
        warn_user(
            f"{int(empty.any(axis=0).sum())} of {len(found.neuron)} neurons have folds that cannot be fitted or "
            "scored because they lack spikes or rows; those folds are skipped for them. Use fewer or longer folds."
        )
