"""Explain responses: nested models x folds x strengths x draws of a null, and what they say of each group."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import clone

from ...checks import check_flag, check_positive, check_real, warn_user
from ...data.counts import Training, read_training
from ...data.times import time_axis
from ...display import ProgressBar, counted
from ...engine.checkpoint import Checkpoint, digest
from ...engine.nested.search import HeldOut
from ...estimators import PopulationGLM, PopulationGLMCV
from ...estimators.cv_fits import default_strengths, read_tried
from ...estimators.parameters import read_strengths
from ...estimators.streaming import as_arrays
from ...estimators.scores import make_folds
from ...numerics import DataLike, PerRow
from .explanation import Explanation, false_discovery_rate
from .models import read_groups, read_models
from .nulls import Null, Rows
from .scorer import Scorer, penalty_of
from .testing import NullTest, Verdicts

_CHUNK = 32  # neurons between two writings of a checkpoint


def explain(
    model: PopulationGLM | PopulationGLMCV,
    X: DataLike,
    y: DataLike,
    groups: ArrayLike | Mapping[str, Any] | None = None,
    *,
    kinds: str | list[str] = ("unique", "maximal"),
    order: list[str] | None = None,
    models: Mapping[str, list[str]] | None = None,
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
    """Measure what each group of features explains of held-out responses, neuron by neuron.

    Parameters
    ----------
    model : PopulationGLM or PopulationGLMCV
        Says the observation model, the penalty and the strengths; it need not be fitted and is not changed. Ridge,
        lasso, elastic net or no penalty.
    X, y, sample_weight, offset, exposure, epochs :
        As the model's ``fit`` takes them; in memory.
    groups : dict or array, optional
        Name -> feature indices or names, one, a list or a slice; or a label per feature, (feature,); each feature by
        itself by default.
    kinds : str or list of {"unique", "maximal"}
        What is compared: all features with all but those of a group (unique), and those of a group alone with a
        constant (maximal); both by default.
    order : list of str, optional
        Groups that are added one after the other: each with what those before it leave ("added").
    models : dict, optional
        More models, by name: lists of groups; each is compared with a constant, and any two by `Explanation.compare`.
    cv : optional
        Folds, as `PopulationGLMCV` takes them, each row held out at most once; default the model's ``cv``, or 5 blocks.
        Blocks of trials or of time: held-out rows next to training rows are not independent of them.
    strengths : array of shape (strength,), optional
        Strengths to choose from, for every model, fold and neuron inside the training folds; default those of the
        model: ``strengths`` of a `PopulationGLMCV`, or a number given as ``regularizer_strength``.
    null : CircularShift, LinearShift, Permutation, Designs or Counts, optional
        Null distribution for p-values.
    null_strength : float, "chosen" or None
        Strength at which the statistics of the recording and of the draws are computed. None takes the one that the
        other neurons choose most often; "chosen" lets every draw choose, as the contributions do, at many times the
        cost.
    level : float or None
        Significance level, default 0.05, at which verdicts are wanted: draws that cannot change one are spared. None
        computes all draws.
    tol : float, optional
        Relative gap of the fits, default that of the model.
    checkpoint : str or pathlib.Path, optional
        File to write down how far the work has come; where it exists, the work goes on from there.
    verbose : bool
        Show a progress bar.

    Returns
    -------
    Explanation

    Raises
    ------
    TypeError, ValueError
        For what is none of the above, and for folds that overlap or, with several strengths, fewer than three.

    Warns
    -----
    UserWarning
        If some fits are not proved, or some folds cannot be scored for some neurons.

    Notes
    -----
    Each held-out fold is predicted by a model that has not seen it, strength included: that is chosen by leaving out
    each other fold, too, and fits that leave out two folds serve both. Guarantee: for every fit a bound of how far its
    objective is above the minimum, and with a ridge on up to 300 features, or Gaussian responses, for every contribution
    a bound of how far it is from that of the exact optima, at the strengths chosen. P-values are as valid as the null:
    the statistic is a contribution at a strength that does not depend on the neuron's own responses.

    Cost: for each neuron, model, pair of folds and strength about two passes over the rows; Hessians are shared by the
    models, folds and strengths near them. Gaussian responses need one pass in all. After Ctrl-C what was found so far
    is returned.

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
    check_flag("verbose", verbose)
    if level is not None:
        check_real("level", level, 1.0)
    if null is not None and not isinstance(null, Null):
        raise TypeError(
            f"null is a {type(null).__name__}; it must be one of glmfit.inference: CircularShift, LinearShift, "
            "Permutation, Designs or Counts."
        )
    X, y = as_arrays(X, y)
    data = read_training(estimator, X, y, sample_weight, offset, exposure, epochs)
    axis = time_axis(X) or time_axis(y)
    rows = Rows(data.rows, data.n_given, axis)
    number, n_held = _read_folds(cv, estimator, data, axis)
    observation = _at_dispersion(estimator, data)
    penalty = penalty_of(*_read_penalty(estimator))
    tried = _read_strengths(strengths, estimator, data, observation, penalty)
    if len(tried) > 1 and n_held < 3:
        raise ValueError(
            f"cv has {n_held} folds and there are {len(tried)} strengths to choose from; that needs at least three: "
            "one to score, one to choose by and one to fit. Give more folds, or one strength."
        )
    features = [str(name) for name in getattr(estimator, "feature_names_in_", range(data.X.shape[1]))]
    named = getattr(estimator, "feature_names_in_", None)
    groups = read_groups(groups, data.X.shape[1], named)
    nested = read_models(groups, data.X.shape[1], kinds, order, models)
    cv_tol = getattr(estimator, "cv_tol", max(1e-5, tol)) if tol >= estimator.tol else 10 * tol
    scorer = Scorer(data, observation, number, n_held, nested.masks, tried, penalty, tol, cv_tol)
    facts = {} if checkpoint is None else _facts(scorer, data, nested, null, null_strength, level)
    file = None if checkpoint is None else Checkpoint(checkpoint, facts)
    work = _Work(scorer, nested, data, rows, null, null_strength, level, groups, file)
    n_passes = scorer.n_neurons * (1 if null is None else 2 + null.n_draws)
    with closing(ProgressBar(f"explaining {counted(scorer.n_neurons, 'neuron')}", n_passes, "neuron", verbose)) as bar:
        interrupted = work.run(bar)
        if not interrupted:
            bar.finish()
    found = work.result(data, features, estimator.observation_model, interrupted)
    _warn(found)
    return found


# ---------------------------------------------------------------- what a user gives


def _read_model(model: Any) -> PopulationGLM | PopulationGLMCV:
    if not isinstance(model, PopulationGLM | PopulationGLMCV):
        raise TypeError(
            f"model is a {type(model).__name__}; it must be a glmfit.PopulationGLM or PopulationGLMCV, which says the "
            "observation model, the penalty and the strengths."
        )
    return clone(model)


def _read_penalty(estimator) -> tuple[str, float]:
    name, ratio = estimator.regularizer, getattr(estimator, "l1_ratio", 0.5)
    if name in (None, "UnRegularized"):
        return "Ridge", ratio
    if name not in ("Ridge", "Lasso", "ElasticNet"):
        raise ValueError(
            f"regularizer is {name!r}; explain fits with 'Ridge', 'Lasso', 'ElasticNet' or 'UnRegularized'."
        )
    strength = getattr(estimator, "regularizer_strength", None)
    if name == "ElasticNet" and isinstance(strength, tuple):
        ratio = float(strength[1])
    return name, ratio


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
            "regularizer_strength has one strength for each neuron or coefficient; explain needs one for all, or "
            "chooses: pass strengths=[...]."
        )
    return read_strengths("regularizer_strength", strength, needs, 0)


def _read_folds(cv, estimator, data: Training, axis) -> tuple[np.ndarray, int]:
    cv = getattr(estimator, "cv", 5) if cv is None else cv
    folds = make_folds(cv, data, axis)
    again = folds.test.sum(axis=1) > 1
    if again.any():
        raise ValueError(
            f"{int(again.sum())} rows are held out by more than one fold of cv; explain adds up folds, and needs each row "
            "held out at most once."
        )
    if np.any(folds.train == folds.test):
        raise ValueError(
            "cv has folds whose training rows are not all rows that they do not hold out; explain fits every fold to "
            "all other rows. Take rows out altogether by sample_weight 0."
        )
    return np.where(folds.test.any(axis=1), np.argmax(folds.test, axis=1), folds.test.shape[1]), folds.test.shape[1]


def _at_dispersion(estimator, data: Training):
    """Observation model at a dispersion: that of a fit with the default ridge to all rows where none is given."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        names = ("observation_model", "inverse_link_function", "dispersion")
        return PopulationGLMCV(**{name: getattr(estimator, name) for name in names})._at_dispersion(data)


def _facts(scorer: Scorer, data: Training, nested, null, null_strength, level) -> dict[str, str]:
    return {
        "features": digest(data.X), "responses": digest(*scorer.responses), "weights": digest(data.weights),
        "folds": digest(scorer.number), "models": digest(nested.masks), "contributions": str(nested.contributions),
        "strengths": digest(scorer.strengths), "penalty": repr(scorer.penalty(1.0)), "loss": scorer.observation.name,
        "tol": repr((scorer.tol, scorer.cv_tol)), "null": _name(null), "level": repr((level, null_strength)),
    }  # fmt: skip


def _name(null: Null | None) -> str:
    """Describe a null in a few words."""
    if null is None:
        return ""
    given = {k: v for k, v in vars(null).items() if k not in ("arrays", "within", "n") and v != 0}
    words = ", ".join(f"{k}={v}" for k, v in given.items())
    return f"{type(null).__name__}({words})"


# ---------------------------------------------------------------- the work


class _Work:
    """The fits of an explanation, chunk by chunk, written down on the way."""

    def __init__(self, scorer: Scorer, nested, data, rows, null, null_strength, level, groups, file):
        self.scorer, self.nested, self.data, self.rows = scorer, nested, data, rows
        self.null, self.null_strength, self.level, self.groups, self.file = null, null_strength, level, groups, file
        n = scorer.n_neurons
        self.held = HeldOut.empty(len(nested.masks), scorer.n_held, n)
        self.known = np.zeros(n, bool)
        self.verdicts: Verdicts | None = None
        self.strength = np.full(n, np.nan)
        self._restore()

    def run(self, bar: ProgressBar) -> bool:
        """Do what is left to do; True if Ctrl-C came."""
        try:
            self._score(bar)
            if self.null is not None:
                self._test(bar)
        except KeyboardInterrupt:
            if not self.known.any():
                raise
            return True
        return False

    def _score(self, bar: ProgressBar) -> None:
        setting = self.scorer.setting()
        left = np.flatnonzero(~self.known)
        size = _CHUNK if setting.by_newton and not self.scorer.observation.is_quadratic else max(len(left), 1)
        for start in range(0, len(left), size):
            some = left[start : start + size]
            found = self.scorer.held_out(setting, self.scorer.responses, some, told=bar.advance)
            for name, value in vars(found).items():
                getattr(self.held, name)[..., some] = value[..., some]
            self.known[some] = True
            self._note()

    def _test(self, bar: ProgressBar) -> None:
        self.strength = _strengths_of_tests(self.null_strength, self.scorer.strengths, self.held.chosen)
        at = None if self.null_strength == "chosen" else self.strength
        features = [self._features_of(c) for c in self.nested.contributions]
        given = self.nested.contributions, self.null, self.rows, at, self.level, features
        test = NullTest(self.scorer, *given)
        self.verdicts = self.verdicts or test.observe(bar.advance)
        for _ in test.run(self.verdicts, bar.advance):
            self._note()

    def _features_of(self, contribution) -> np.ndarray:
        """Features that the larger model has and the smaller one lacks, bool (feature,)."""
        masks = self.nested.masks
        return masks[contribution.more] & ~masks[contribution.less]

    def result(self, data: Training, features: list[str], observation_model: str, interrupted: bool) -> Explanation:
        """Put together what was found."""
        scorer, held, shape = self.scorer, self.held, (len(self.nested.contributions), self.scorer.n_neurons)
        v, null = self.verdicts, self.null
        nothing = np.full(shape, np.nan)
        p = nothing
        if v is not None:
            p = np.where(np.isfinite(v.observed) & (v.done > 0), null.p_value(v.above, v.done), np.nan)
        chosen = np.where(np.isfinite(held.loss), scorer.strengths[held.chosen], np.nan)
        return Explanation(
            neuron=list(data.neuron_names), model=self.nested.names, feature=features,
            contributions=self.nested.contributions, members=self.nested.masks,
            loss=held.loss, loss_off=held.off, strengths=scorer.strengths, strength=chosen, gap=held.gap,
            proved=held.proved, saturated=scorer.saturated(scorer.responses, scorer.number, scorer.weights),
            n_spikes=scorer.spikes(data, scorer.number), n_fits=held.n_fits, n_proved=held.n_proved,
            p_value=p, q_value=false_discovery_rate(p, [c.kind for c in self.nested.contributions]),
            statistic=nothing if v is None else v.observed,
            null_statistic=np.full((0, *shape), np.nan) if v is None else v.drawn,
            null_strength=self.strength,
            n_draws=np.zeros(shape, int) if v is None else v.done,
            n_loose=np.zeros(shape, int) if v is None else v.loose,
            n_null_fits=0 if v is None else int(v.n_fits.sum()), n_null_proved=0 if v is None else int(v.n_proved.sum()),
            n_possible_draws=0 if null is None else null.n_draws, observation_model=observation_model,
            null=_name(null), status="interrupted" if interrupted else "complete",
        )  # fmt: skip

    def _note(self) -> None:
        if self.file is None:
            return
        arrays = {f"held/{name}": value for name, value in vars(self.held).items()}
        arrays |= {"known": self.known}
        self.file.save(arrays | ({} if self.verdicts is None else self.verdicts.arrays()))

    def _restore(self) -> None:
        arrays = None if self.file is None else self.file.load()
        if arrays is None:
            return
        self.held = HeldOut(**{k.removeprefix("held/"): a for k, a in arrays.items() if k.startswith("held/")})
        self.known = arrays["known"]
        null = {k.removeprefix("null/"): a for k, a in arrays.items() if k.startswith("null/")}
        if null:
            self.verdicts = Verdicts(**null)


def _strengths_of_tests(given, strengths: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """Strength of every neuron's statistics, (neuron,): given, or what all other neurons choose most often."""
    n = chosen.shape[2]
    if given == "chosen":
        return np.full(n, np.nan)
    if given is not None:
        return np.full(n, check_positive("null_strength", given, '"chosen" lets every draw choose.'))
    counts = np.stack([np.bincount(chosen[1:, :, k].ravel(), minlength=len(strengths)) for k in range(n)], axis=1)
    others = counts.sum(axis=1, keepdims=True) - counts
    index = len(strengths) - 1 - np.argmax(others[::-1], axis=0) if n > 1 else np.full(1, len(strengths) // 2)
    return strengths[index]


def _warn(found: Explanation) -> None:
    lost = found.n_fits - found.n_proved
    if lost.any():
        warn_user(
            f"{int(lost.sum())} of {int(found.n_fits.sum())} fits are not proved to be at their optimum, of "
            f"{int(np.sum(lost > 0))} neurons (column proved says which contributions rest on such fits). Leave out the "
            "weakest strengths, or features that nearly repeat others."
        )
    empty = ~np.isfinite(found.loss[0])
    if empty.any() and found.status == "complete":
        warn_user(
            f"{int(empty.any(axis=0).sum())} of {len(found.neuron)} neurons have folds that cannot be fitted or scored, "
            "for want of spikes or of rows; those folds are left out for them. Fewer folds, or longer ones, have spikes."
        )
