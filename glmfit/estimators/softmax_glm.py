"""The softmax model of labels as a scikit-learn classifier."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Self

import numpy as np
from scipy.special import log_softmax
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from ..checks import check_choice, check_whole, warn_user
from ..data import classes as door
from ..data.features import read_features, read_offset, refuse_lengths
from ..data.times import check_same_rows, wrap
from ..numerics import ArrayOrTsd, DataLike, PerRow, Seed
from .class_model import ClassModel, known, probabilities
from .model import WholeFit


class SoftmaxGLM(ClassifierMixin, ClassModel):
    r"""Softmax model of labels: which neuron fired, which place, which choice; from two classes to very many.

    With scores :math:`s_i = W^\top x_i + b` it minimises

    .. math:: F(W, b) = \frac1N\sum_i \Big[\log\sum_k e^{s_{ik}} - s_{i,y_i}\Big] + \frac{\text{strength}}2 |W|^2

    The intercepts are never penalised. (The papers on sampling classes write a sum over rows with a ridge mu: mu is
    N times the strength.)

    Parameters
    ----------
    regularizer : {"Ridge", "UnRegularized", "Lasso", "ElasticNet", "GroupLasso"} or None
        Penalty of the coefficients, as in `PopulationGLM` with classes for neurons; None is "UnRegularized".
    regularizer_strength : float, optional
        At least 0; the default is one over the sum of the weights (without any, the number of rows), which is the
        ``C = 1`` of scikit-learn's `LogisticRegression`. ``strength_`` is that of the fit.
    solver_name : str
        "auto" takes ConjugateGradients while a pass over rows and classes is affordable, then SampledSoftmax, or
        ImplicitSGD if X is sparse (:func:`glmfit.estimators.choose_class_solver`). For penalties with kinks (lasso,
        elastic net, group lasso) it takes "ProximalNewton", which is the only one for them. Exact: "ConjugateGradients"
        and, with a proved decrease and no step to choose, "BoundMajorization" and "IncrementalMajorization". Sampling
        classes, for very many: "SampledSoftmax", "ImplicitSGD", "UMax"; sampling rows only: "SoftmaxProx". For
        comparison: "SGD", "OVE", "NCE", "ImportanceSampling", "SoftmaxSGD". One pass of second-order steps, without a
        step to choose: "StochasticMajorization" (needs a ridge).
    tol, max_epochs : float, int, optional
        Exact solvers: relative gap ``(F - F*) / (F_null - F)`` at which to stop, as in `PopulationGLM`; budget, default
        500. Sampling solvers: epochs of the schedule, default 50, and 1 of StochasticMajorization.
    step, step_decay : "tune" or float, float
        Sampling solvers: step size times rows, c, of the first epoch, and its factor from one epoch to the next, in
        (0, 1]. "tune" is 0.1 for single implicit steps, chosen by measurement, and otherwise the best of several steps
        that are tried on some of the rows. Exact and majorization solvers ignore them.
    certify : bool
        Sampling solvers: whether to bound the distance from the optimum at the end, if a pass over all rows and
        classes is affordable.
    fit_intercept : bool
        Whether classes have intercepts; if not, they are 0, as in the papers on sampling classes.
    early_stopping : bool
        Sampling solvers: hold out a tenth of the rows, keep the epoch that predicts them best, and stop five epochs
        after it; a tuned step is shortened while that predicts them better. The fit then does not seek the optimum of
        F. With fewer than 10 rows none is held out; exact solvers and streams ignore it.
    groups, l1_ratio :
        As in `PopulationGLM`, for "GroupLasso" and "ElasticNet". A group becomes zero for each class by itself.

    Attributes
    ----------
    classes_ : numpy.ndarray
        Labels, sorted if possible, else in order of appearance, (class,).
    coef_, intercept_ : numpy.ndarray
        (feature, class), float64, which sums to 0 over classes if the penalty has no kinks, and (class,), which is -1e4
        (probability 0) for a class all of whose rows have weight 0.
    strength_, n_features_in_, feature_names_in_ :
        Strength of the penalty; the others as in scikit-learn.

    Notes
    -----
    Guarantee: with ``report_.gap_is_bound``, ``F - F* <= report_.gap``, proved by duality or self-concordance in
    float64. Sampling solvers approach the optimum and do not converge in a finite time; the report says how near.
    Those that sample classes take their steps on centred, whitened features.
    Rows with a NaN in X or offset, or without a label (NaN, None), are dropped and counted.
    Cost: exact solvers some tens of passes of N D K products (nonzeros instead of N D); sampling solvers m D per
    step, whatever the number of classes and rows.

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import SoftmaxGLM
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(500, 2))
    >>> place = np.where(X[:, 0] > 0.5, "arm", np.where(X[:, 1] > 0, "centre", "home"))
    >>> model = SoftmaxGLM(regularizer_strength=1e-3).fit(X, place)
    >>> model.classes_.tolist()
    ['arm', 'centre', 'home']
    >>> model.report_.converged
    True
    >>> model.top_k(X[:1], 2)[0].shape
    (1, 2)
    """

    def _read(self, X, y, sample_weight, offset, reset: bool, classes=None, strange: bool = False):
        """Read labels of a fit, with its classes if these are given, or for a score; strange ones have the index -1."""
        check_same_rows(X, y, sample_weight=sample_weight, offset=offset)
        labels = door.read_labels(y)
        X = read_features(self, X, reset=reset, sparse=True)
        refuse_lengths(X, labels, "observation")
        missing = door.missing_labels(labels)
        index = np.zeros(len(labels), int)
        if reset and classes is None:
            self.classes_, index[~missing] = door.find_classes(labels[~missing])
        else:
            self.classes_ = door.find_classes(door.read_classes(classes))[0] if reset else self.classes_
            index = door.lookup(self.classes_, labels)
            door.check_seen(self.classes_, labels[~missing], index[~missing], strange)
        offset = read_offset(offset, X.shape[0], len(self.classes_), of_classes=True)
        counts = door.counts_of_labels(np.maximum(index, 0), missing, len(self.classes_))
        data = door.read_class_training(X, counts, sample_weight, offset)
        return data, index[data.rows]

    def _warn_of_classes(self, data, y) -> None:
        if len(self.classes_) == 1:
            (only,) = self.classes_.tolist()
            warn_user(f"y has one class only ({only!r}): there is nothing to fit, its probability is 1.")

    def partial_fit(
        self,
        X: DataLike,
        y: DataLike,
        classes: Sequence[Any] | np.ndarray | None = None,
        sample_weight: PerRow = None,
        offset: PerRow = None,
    ) -> Self:
        """Take one pass over more rows by a solver that samples classes, from the current coefficients.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`fit`.
        classes : sequence, optional
            All labels of the stream; others are refused. Needed at the first call, unless all of them are in its y.

        Notes
        -----
        A step is ``step`` divided by the rows seen so far, these included; "tune" chooses it on the first rows, if
        there are at least 100. "auto" is ImplicitSGD here. Steps are taken along the features as they are: standardise
        them. The report is about these rows.
        """
        with WholeFit(self):
            first = not hasattr(self, "classes_")
            if not first and classes is not None and (door.lookup(self.classes_, door.read_classes(classes)) < 0).any():
                raise ValueError(
                    "classes names labels that were not named at the first partial_fit; name all of them then."
                )
            data, _ = self._read(X, y, sample_weight, offset, reset=first, classes=classes)
            if len(self.classes_) < 2:
                raise ValueError(
                    f"a stream needs at least two classes, and classes_ is {self.classes_.tolist()}: name all of them "
                    "with classes= at the first partial_fit."
                )
            self._stream(data)
        return self

    def decision_function(self, X: DataLike, offset: PerRow = None) -> np.ndarray:
        """Compute the scores, which are the log-probabilities up to a constant per row.

        Parameters
        ----------
        X, offset :
            As in :meth:`fit`; NaN rows are allowed.

        Returns
        -------
        numpy.ndarray
            (row, class); for two classes, as everywhere in scikit-learn, the difference of the second and the first,
            (row,).
        """
        scores, _ = self._of_scores(np.asarray, X, offset)
        return scores[:, 1] - scores[:, 0] if len(self.classes_) == 2 else scores

    def predict_log_proba(self, X: DataLike, offset: PerRow = None) -> ArrayOrTsd:
        """Compute the logarithm of :meth:`predict_proba`, which stays finite if that rounds to 0."""
        values, axis = self._of_scores(partial(log_softmax, axis=1), X, offset)
        return wrap(values, axis, None, list(self.classes_))

    def predict_proba(self, X: DataLike, offset: PerRow = None) -> ArrayOrTsd:
        """Compute the probability of every class.

        Parameters
        ----------
        X, offset :
            As in :meth:`decision_function`.

        Returns
        -------
        array or pynapple TsdFrame
            (row, class), NaN where X or the offset has a NaN; a frame with the times of X, classes as columns, if X
            is one.
        """
        values, axis = self._of_scores(probabilities, X, offset)
        return wrap(values, axis, None, list(self.classes_))

    def predict(self, X: DataLike, offset: PerRow = None) -> ArrayOrTsd:
        """Predict the most probable class.

        Parameters
        ----------
        X, offset :
            As in :meth:`decision_function`; NaN is refused here, because there is no label for it.

        Returns
        -------
        array or pynapple Tsd
            Labels, (row,); a Tsd with the times of X if X is one and labels are numbers.
        """
        best, axis = self._of_scores(lambda scores: np.argmax(known(scores), axis=1), X, offset)
        labels = self.classes_[best]
        return wrap(labels, axis, None, None) if labels.dtype.kind in "fiub" else labels

    def top_k(self, X: DataLike, k: int = 5, offset: PerRow = None) -> tuple[np.ndarray, np.ndarray]:
        """Find the k most probable classes of every row.

        Parameters
        ----------
        X, offset :
            As in :meth:`predict`.
        k : int
            Number of classes; at most all are returned.

        Returns
        -------
        labels, probability : numpy.ndarray
            (row, k), most probable first.
        """
        k = check_whole("k", k)

        def find(scores):
            n = min(k, scores.shape[1])
            some = np.argpartition(-known(scores), n - 1, axis=1)[:, :n]
            order = np.argsort(-np.take_along_axis(scores, some, axis=1), axis=1, kind="stable")
            best = np.take_along_axis(some, order, axis=1)
            return np.stack([best, np.take_along_axis(probabilities(scores), best, axis=1)], axis=1)

        found, _ = self._of_scores(find, X, offset)
        return self.classes_[found[:, 0].astype(int)], found[:, 1]

    def score(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        score_type: str = "accuracy",
        offset: PerRow = None,
    ) -> float:
        """Score the predictions of labels.

        Parameters
        ----------
        X, y, sample_weight, offset :
            As in :meth:`fit`; rows with NaN are dropped.
        score_type : {"accuracy", "log-likelihood", "pseudo-r2-McFadden"}
            Share of right labels (labels the fit did not see count as wrong, with a warning if it saw none: numbers
            given as strings are other labels); mean log-probability of the labels (ValueError for one the fit did not
            see, whose log-probability would be minus infinity); 1 - log-likelihood / log-likelihood of the class
            frequencies of the training rows.

        Returns
        -------
        float
            Larger is better.
        """
        check_choice("score_type", score_type, ("accuracy", "log-likelihood", "pseudo-r2-McFadden"))
        check_is_fitted(self)
        of_labels = score_type == "accuracy"
        data, truth = self._read(X, y, sample_weight, offset, reset=False, strange=of_labels)
        if not of_labels:
            self._refuse_unseen(data)
        weight, right = data.pairs.weight, np.empty(data.n_rows)
        for rows, scores in self._tiles(data.X, data.offset):
            if of_labels:
                right[rows] = np.argmax(scores, axis=1) == truth[rows]
            else:
                right[rows] = np.take_along_axis(log_softmax(scores, axis=1), truth[rows, None], axis=1)[:, 0]
        value = float(weight @ right / weight.sum())
        if score_type != "pseudo-r2-McFadden":
            return value
        share = self.report_.class_totals / self.report_.class_totals.sum()
        null = float(weight @ np.log(np.maximum(share[truth], 1e-300)) / weight.sum())
        return 1 - value / null if null < 0 else np.nan

    def simulate(self, X: DataLike, random_state: Seed = None, offset: PerRow = None) -> np.ndarray:
        """Draw labels from the fitted model.

        Parameters
        ----------
        X, offset :
            As in :meth:`predict`.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        numpy.ndarray
            Labels, (row,); the same seed draws the same ones.
        """
        rng = np.random.default_rng(self._seed(random_state))
        drawn, _ = self._of_scores(lambda s: np.argmax(known(s) + rng.gumbel(size=s.shape), axis=1), X, offset)
        return self.classes_[drawn]
