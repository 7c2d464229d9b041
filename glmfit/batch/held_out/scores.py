"""Held-out scores of the fits of a batch: the [model.score] of a manifest, and folds of the rows of a session."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...design import rules as rule
from ...design.bins import interval_of
from ...design.rules import Problems, check_table, guess, shown
from ...design.schema import CLASS_ESTIMATORS, COUNT_ESTIMATORS, LABEL_ESTIMATORS, check_known
from ...status import Status

if TYPE_CHECKING:
    from ..fits import Work
    from ..reading import Data

SCORES = "held_out.scores"  # (fold, unit), among the arrays of a result
CV = rule.either(rule.whole(2), rule.Rule('a table, { epochs = "trials", n = 5 }', rule.TABLE.fits))
_CV = {"epochs": rule.TEXT, "n": rule.whole(2)}
_KEYS = {"cv": CV, "test": rule.TEXT, "scoring": rule.TEXT}
_SCORINGS = dict.fromkeys(CLASS_ESTIMATORS, ("log-likelihood", "D2"))
_SCORINGS |= dict.fromkeys(COUNT_ESTIMATORS, ("log-likelihood", "D2", "pseudo-r2-McFadden"))
_SCORINGS |= dict.fromkeys(LABEL_ESTIMATORS, ("log-likelihood", "accuracy", "pseudo-r2-McFadden"))
_NO_SCORE = Status.NO_SPIKES, Status.ALL_ONES, Status.NO_DATA  # in the rows fitted


def read_score(
    problems: Problems, path: tuple, table: dict[str, Any], sources: list[Data], estimator: str | None
) -> dict[str, Any]:
    """Check how a model is scored; return it with defaults."""
    right = check_table(problems, path, table, _KEYS)
    found = {"scoring": right.get("scoring", "log-likelihood")}
    allowed = _SCORINGS.get(estimator or "", (found["scoring"],))
    if found["scoring"] not in allowed:
        text = f"scoring is {shown(found['scoring'])}; for {estimator} it must be {rule.one_of(*allowed).allowed}."
        problems.add(path, text)
    if "test" not in right:
        return found | {"cv": read_cv(problems, (*path, "cv"), right.get("cv", 5), sources)}
    if "cv" in right:
        problems.add(path, "cv and test are both given; remove one of them.")
    check_epochs(problems, path, "test", right["test"], sources)
    return found | {"test": right["test"]}


def read_cv(problems: Problems, path: tuple, given: Any, sources: list[Data]) -> Any:
    """Check folds: their number, or a table that names a set of intervals."""
    if not isinstance(given, dict):
        return given
    found = {"n": 5, **check_table(problems, path, given, _CV, ("epochs",))}
    check_epochs(problems, path, "epochs", found.get("epochs"), sources)
    return found


def check_epochs(problems: Problems, path: tuple, key: str, name: str | None, sources: list[Data]) -> None:
    """Note a set of intervals that the data do not have."""
    for source in sources if name is not None else ():
        if source.kind == "matrices":
            problems.add(path, f'{key} names "{name}", but the data "{source.name}" are matrices, without epochs.')
        elif source.kind == "recording":
            check_known(partial(problems.add, path), key, name, [source], "epochs")


# -- folds of the rows of a design


def labels_of(name: str, key: str, work: Work) -> np.ndarray:
    """Return the interval with the centre of each row's bin, numbered in time order, -1 for none, (time,)."""
    times, epochs = work.built.times, work.epochs
    if times is None:
        raise ValueError(f'{key} names the epochs "{name}", but matrices have no times.')
    if name not in epochs:
        raise ValueError(f'{key} names "{name}", which is not among the epochs{guess(name, epochs)}')
    intervals = np.asarray(epochs[name])
    return interval_of(intervals[np.argsort(intervals[:, 0], kind="stable")], times)


def folds_of(cv: dict[str, Any], key: str, work: Work) -> list[tuple[np.ndarray, np.ndarray]]:
    """Make folds of whole intervals, assigned in turn: (train, test) indices of rows."""
    labels = labels_of(cv["epochs"], key, work)
    there = np.unique(labels[labels >= 0])
    if len(there) < cv["n"]:
        raise ValueError(
            f'{key} has {cv["n"]} folds of the epochs "{cv["epochs"]}", of which {len(there)} have bins in the '
            "design. Give a smaller n."
        )
    number = np.where(labels >= 0, np.searchsorted(there, labels) % cv["n"], -1)
    return _by_number(number, cv["n"])


def _by_number(number: np.ndarray, n: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(np.flatnonzero(number != k), np.flatnonzero(number == k)) for k in range(n)]


def _folds(work: Work, usable: np.ndarray) -> list:
    """Make the folds of a score: (train, test) indices of rows; blocks have equally many usable rows, bool (row,)."""
    asked = work.spec["score"]
    if "test" in asked:
        held = labels_of(asked["test"], "score: test", work) >= 0
        if held.all() or not held.any():
            raise ValueError(
                f'score: the epochs "{asked["test"]}" have {held.sum()} of {len(held)} bins of the design; they must '
                "have some, and leave some to fit."
            )
        return _by_number(np.where(held, 0, -1), 1)
    if isinstance(asked["cv"], dict):
        return folds_of(asked["cv"], "score: cv", work)
    n_rows, n = int(usable.sum()), asked["cv"]
    if n > n_rows:
        raise ValueError(f"score: cv is {n}, more than the {n_rows} bins of the design with all features.")
    number = np.full(len(usable), -1)
    number[usable] = np.arange(n_rows) * n // n_rows
    return _by_number(number, n)


# -- scores


def score_task(work: Work) -> np.ndarray:
    """Fit a task's model without the rows of each fold, and score these rows: (fold, unit), (fold, 1) for classes.

    nan for neurons without spikes in the rows fitted, and for folds without rows that can be fitted or scored.
    """
    parts = []
    for X, y in work.inputs():
        Y = np.asarray(y).reshape(len(X), -1)
        usable = np.isfinite(np.asarray(X)).all(axis=1)
        usable &= ~np.isnan(Y).all(axis=1) if Y.dtype.kind == "f" else True
        scores = []
        for train, test in _folds(work, usable):
            if usable[train].sum() < 2 or not usable[test].any():
                scores.append(np.full(1, np.nan))
            else:
                scores.append(_score(work, X, y, train[usable[train]], test[usable[test]]))
        n_units = max(map(len, scores))
        parts.append(np.stack([np.broadcast_to(score, n_units) for score in scores]))
    return np.concatenate(parts, axis=1)


def _score(work: Work, X, y, train: np.ndarray, test: np.ndarray) -> np.ndarray:
    """Fit some rows, and score others, (unit,)."""
    given, scoring = work.given, work.spec["score"]["scoring"]
    model = work.fit(_take(X, train), _take(y, train), {name: _take(a, train) for name, a in given.items()})
    X, y, rest = _take(X, test), _take(y, test), {name: _take(a, test) for name, a in given.items()}
    if not hasattr(model, "classes_"):
        score = np.atleast_1d(model.score(X, y, score_type=scoring, per_neuron=True, **rest))
        return np.where(np.isin(model.report_.status, _NO_SCORE), np.nan, score)
    # Classes without rows in the fit have probability 0, and would make every score minus infinity.
    seen, y = model.report_.class_totals > 0, np.asarray(y)
    y = y if y.ndim == 1 else np.where(seen, y, 0)
    known = np.flatnonzero(np.isin(y, model.classes_[seen]) if y.ndim == 1 else y.any(axis=1))
    if not len(known):
        return np.full(1, np.nan)
    rest = {name: _take(a, known) for name, a in rest.items()}
    return np.atleast_1d(model.score(_take(X, known), y[known], score_type=scoring, **rest))


def _take(values: Any, rows: np.ndarray) -> Any:
    return values.iloc[rows] if hasattr(values, "iloc") else values[rows]
