"""The multinomial model of counts over categories as a scikit-learn estimator."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from ..checks import check_choice, warn_user
from ..data.classes import ClassTraining, read_category_counts, read_class_training
from ..data.features import check_same_columns, read_factor, read_features, read_offset, refuse_lengths, warn_if_turned
from ..data.times import TimeAxis, check_same_rows, time_axis, wrap
from ..numerics import ArrayOrTsd, DataLike, PerRow, Seed
from ..observations.softmax import Multinomial
from .class_fit import NO_DEVIANCE
from .class_model import ClassModel, probabilities
from .model import WholeFit

_MOST_COUNTS = 2.0**62  # of a row that are drawn


class MultinomialGLM(RegressorMixin, ClassModel):
    r"""Multinomial model of counts over categories given each row's total: how spikes share out over neurons.

    With scores :math:`s_i = W^\top x_i + b` and totals :math:`n_i = \sum_k y_{ik}` it minimises

    .. math:: F(W, b) = \frac1N\sum_i \Big[n_i\log\sum_k e^{s_{ik}} - \sum_k y_{ik}s_{ik}\Big]
              + \frac{\text{strength}}2 |W|^2

    over the N rows that have counts. The intercepts are never penalised.

    Parameters
    ----------
    regularizer, regularizer_strength, solver_name, tol, max_epochs, step, step_decay :
        As in `SoftmaxGLM`. A sampling solver's epoch visits every pair of a row and a category it has counts of, or
        with ``solver_kwargs={"visit": "row", ...}`` every row; StochasticMajorization and SoftmaxSGD visit rows.
    certify, fit_intercept, early_stopping, groups, l1_ratio :
        As in `SoftmaxGLM`.

    Attributes
    ----------
    classes_ : numpy.ndarray
        Names of the categories: columns of y where it has any, else numbers, (category,).
    coef_, intercept_, strength_, n_features_in_, feature_names_in_ :
        As in `SoftmaxGLM`; the intercept is -1e4 for a category without counts.

    Notes
    -----
    Guarantee: as in `SoftmaxGLM`. Rows with a NaN in X, y or offset are dropped and counted, and so are rows without
    counts, which carry no information on shares. Counts need not be integers: any weights define shares.
    Counts given as a sparse matrix are never made dense.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import MultinomialGLM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 2))
    >>> drive = np.exp(X @ rng.normal(size=(2, 4)))
    >>> counts = np.stack([rng.multinomial(5, d / d.sum()) for d in drive])
    >>> model = MultinomialGLM(regularizer_strength=1e-3).fit(X, counts)
    >>> model.predict(X[:1]).shape
    (1, 4)
    """

    def _read(self, X, y, sample_weight, offset, reset: bool) -> tuple[ClassTraining, Any]:
        """Read counts of a fit, or of the categories of the fit; the counts of all rows."""
        check_same_rows(X, y, sample_weight=sample_weight, offset=offset)
        columns, axis = getattr(y, "columns", None), time_axis(y)
        names = None if columns is None else np.asarray(columns)
        X, Y = read_features(self, X, reset, sparse=True), read_category_counts(y)
        if reset:
            self.classes_, self._columns = np.arange(Y.shape[1]) if names is None else names, axis
        named = names is not None and not np.array_equal(self.classes_, np.arange(len(self.classes_)))
        check_same_columns(Y.shape[1], list(self.classes_), list(names) if named else None, "category", "classes_")
        refuse_lengths(X, Y, "observation")
        offset = read_offset(offset, X.shape[0], Y.shape[1], of_classes=True)
        return read_class_training(X, Y, sample_weight, offset), Y

    def _warn_of_classes(self, data: ClassTraining, y) -> None:
        warn_if_turned(data.X, y)
        if y.shape[1] == 1:
            warn_user("y has one category only: there is nothing to fit, its probability is 1.")
        empty = int(np.sum(data.class_totals <= 0))
        if empty:
            warn_user(f"{empty} of {y.shape[1]} categories have no counts: their probability is 0.")

    def partial_fit(self, X: DataLike, y: DataLike, sample_weight: PerRow = None, offset: PerRow = None) -> Self:
        """Take one pass over more rows of the same categories, with the steps of :meth:`SoftmaxGLM.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`fit`.
        """
        with WholeFit(self):
            data, _ = self._read(X, y, sample_weight, offset, reset=not hasattr(self, "classes_"))
            self._stream(data)
        return self

    def predict(self, X: DataLike, total: PerRow = None, offset: PerRow = None) -> ArrayOrTsd:
        """Compute the expected counts of rows of given totals.

        Parameters
        ----------
        X, offset :
            As in :meth:`fit`; NaN rows are allowed.
        total : array-like, (row,), optional
            Counts of each row over all categories; default 1, which gives probabilities.

        Returns
        -------
        array or pynapple TsdFrame
            (row, category), NaN where X or the offset has a NaN; a frame with the times of X if X is one.
        """
        check_same_rows(X, total=total)
        expected, axis = self._of_scores(probabilities, X, offset)
        if total is not None:
            expected = expected * read_factor(total, "total", len(expected), "row")[:, None]
        return wrap(expected, axis, self._columns, list(self.classes_))

    def score(
        self, X: DataLike, y: DataLike, sample_weight: PerRow = None, score_type: str = "D2", offset: PerRow = None
    ) -> float:
        """Score the predicted shares of counts.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`fit`; rows with NaN or without counts are dropped.
        score_type : {"D2", "log-likelihood"}
            Share of the deviance explained over the best constant shares of these rows; or mean log-likelihood per
            row, with the multinomial coefficient.

        Returns
        -------
        float
            Larger is better; D2 is at most 1, and nan where constant shares are exact.
        """
        check_choice("score_type", score_type, ("D2", "log-likelihood"))
        check_is_fitted(self)
        data, Y = self._read(X, y, sample_weight, offset, reset=False)
        self._refuse_unseen(data)
        weight, Y, of = data.weight, Y[data.rows], Multinomial()
        measure = of.deviance if score_type == "D2" else of.log_likelihood
        value = 0.0
        for rows, scores in self._tiles(data.X, data.offset):
            counts = Y[rows].toarray() if scipy.sparse.issparse(Y) else Y[rows]
            value += weight[rows] @ measure(counts, scores) / data.n_rows
        if score_type == "log-likelihood":
            return float(value)
        constant, saturated = data.extreme_losses()
        explainable = 2 * (constant - saturated)
        return float(1 - value / explainable) if explainable > NO_DEVIANCE else np.nan

    def simulate(self, X: DataLike, total: ArrayLike, random_state: Seed = None, offset: PerRow = None) -> np.ndarray:
        """Draw counts from the fitted model.

        Parameters
        ----------
        X, offset :
            As in :meth:`predict`.
        total : array-like of int, (row,)
            Counts of each row over all categories.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        numpy.ndarray
            Counts, (row, category), NaN where X or offset has a NaN; the same seed draws the same ones.
        """
        check_same_rows(X, total=total)
        X, offset, _ = self._prepare(X, offset)
        total = read_factor(total, "total", X.shape[0], "row")
        if (total > _MOST_COUNTS).any():
            raise ValueError(f"total is {total.max():g} in a row; at most {_MOST_COUNTS:g} counts of a row are drawn.")
        if (total != np.rint(total)).any():
            raise ValueError("total has numbers that are not integers; counts are drawn, so each total must be one.")
        rng, of = np.random.default_rng(self._seed(random_state)), Multinomial()
        counts = np.empty((X.shape[0], len(self.classes_)))
        for rows, scores in self._tiles(X, offset):
            unknown = np.isnan(scores).any(axis=1, keepdims=True)
            drawn = of.sample(rng, total[rows].astype(np.int64), np.where(unknown, 0.0, scores))
            counts[rows] = np.where(unknown, np.nan, drawn)
        return counts

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        header["pynapple_columns"] = self._columns is not None

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        self._columns = TimeAxis(np.empty(0), None, self.classes_) if header["pynapple_columns"] else None

    def __sklearn_tags__(self):
        """Tags: y has many columns, none negative."""
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = tags.target_tags.positive_only = True
        tags.target_tags.single_output = False
        tags.regressor_tags.poor_score = True
        return tags
