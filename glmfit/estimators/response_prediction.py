"""Predictions, scores and files of a response model: everything but its fit."""

from __future__ import annotations

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_is_fitted

from ..checks import check_choice, check_whole
from ..data.entities import NEURONS, STIMULI, Side, read_fitted_ids, read_unseen
from ..data.responses import read_responses
from ..data.times import time_axis, wrap
from ..numerics import ArrayOrTsd, DataLike, Seed
from ..observations import RESPONSE_LOSSES, Gaussian, Observation
from ..pairs import Tower
from ..pairs.towers import SCORES, Predictor, correlations, deviance_explained, recall
from .model import Model
from .model_reports import ResponseReport

_EMBEDDINGS = ("stimulus_embedding", "neuron_embedding", "stimulus_bias", "neuron_bias")


class ResponsePrediction(Model):
    """Common part of models of responses of neurons to stimuli: the use of fitted towers."""

    report_class = ResponseReport

    def _keep(self, loss: Observation, fitted: tuple, sides: tuple[Side, Side]) -> None:
        self._loss, self._sides = loss, sides  # of the fit, whatever the parameter says by now
        self._towers, predictor, self._mean_bias, self.report_ = fitted
        self.stimulus_embedding_, self.stimulus_bias_, self.neuron_embedding_, self.neuron_bias_, self._null = predictor
        self.imputation_weight_ = self.report_.imputation_weight
        self.regularizer_strength_ = self.report_.regularizer_strength
        self.n_stimuli_, self.n_neurons_ = (side.n for side in sides)
        for side in sides:
            setattr(self, f"n_{side.entity}_features_in_", side.n_features or side.n)
            vars(self).pop(f"{side.entity}_feature_names_in_", None)  # of a model that is replaced
            if side.names is not None:
                setattr(self, f"{side.entity}_feature_names_in_", side.names)

    def linear_predictor(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> ArrayOrTsd:
        """Compute the linear predictors, (stimulus, neuron), of the pairs that :meth:`predict` takes."""
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(predictor.table(), stimulus_features, neurons)

    def predict(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> ArrayOrTsd:
        """Compute the expected responses of some neurons to some stimuli.

        Parameters
        ----------
        stimuli, neurons : array-like of int, optional
            Ids of the fit; default all of them.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            Instead of ids: stimuli or neurons that were not fitted. They get the mean bias of those that were.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Expected counts, probabilities or values, (stimulus, neuron); a frame if stimulus_features is one.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        return _wrapped(self._loss.mean(predictor.table()), stimulus_features, neurons)

    def predict_pairs(self, stimuli: ArrayLike, neurons: ArrayLike) -> np.ndarray:
        """Compute the expected responses of scattered pairs, (pair,), from their ids in the fit, (pair,) each."""
        predictor = self._predictor(None, None, None, None)
        i, j = read_fitted_ids(stimuli, self._sides[0]), read_fitted_ids(neurons, self._sides[1])
        if isinstance(i, slice) or isinstance(j, slice) or len(i) != len(j):
            count = [0 if isinstance(ids, slice) else len(ids) for ids in (i, j)]
            raise ValueError(
                f"{count[0]} stimuli and {count[1]} neurons; pairs need one of each. For all pairs use predict."
            )
        return self._loss.mean(predictor.of_pairs(i, j))

    def simulate(
        self,
        stimuli: ArrayLike | None = None,
        neurons: ArrayLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
        random_state: Seed = None,
    ) -> ArrayOrTsd:
        """Draw one response of every pair that :meth:`predict` takes.

        Parameters
        ----------
        stimuli, neurons, stimulus_features, neuron_features :
            As in :meth:`predict`.
        random_state : optional
            Seed as in the constructor; None takes the constructor's.

        Returns
        -------
        numpy.ndarray or pynapple TsdFrame
            Counts, 0 and 1, or other responses of the loss, (stimulus, neuron), float; the same seed draws the same.
            The squared loss has no noise model: ValueError.
        """
        predictor = self._predictor(stimuli, neurons, stimulus_features, neuron_features)
        if isinstance(self._loss, Gaussian):
            raise ValueError('loss "squared" has no noise model to draw from; predict gives the expected responses.')
        drawn = self._loss.sample(jax.random.key(self._seed(random_state)), predictor.table())
        return _wrapped(np.asarray(drawn, np.float64), stimulus_features, neurons)

    def score(
        self,
        responses: DataLike,
        score_type: str = "D2",
        k: int = 20,
        exclude: DataLike | None = None,
        *,
        stimulus_features: DataLike | None = None,
        neuron_features: DataLike | None = None,
    ) -> float | np.ndarray:
        """Score the predictions of responses.

        Parameters
        ----------
        responses :
            In any of the forms of :meth:`fit`, with ids of the fit (or rows of the features given here).
        score_type : {"D2", "correlation", "recall"}
            1 - deviance / deviance of every neuron's mean response in the fit; Pearson correlation of each neuron's
            responses, trials averaged, with their predictions; or recall@k: per stimulus the share of its neurons with
            a response above 0 that are among the k with the largest predictions, averaged over stimuli with any.
        k : int
            Number of top predictions in a recall. A stimulus with fewer responding neurons can have them all.
        exclude : optional
            Responses of the fit, in any form: their pairs are excluded from a recall, as answers and as candidates.
        stimulus_features, neuron_features : array-like or SciPy sparse, (entity, feature), optional
            Of unseen stimuli or neurons, as in :meth:`predict`; the mean response of an unseen neuron is that of an
            average one.

        Returns
        -------
        float or numpy.ndarray
            Larger is better. Correlations are (neuron,), nan for neurons with fewer than 3 pairs or if responses or
            predictions are constant.
        """
        check_choice("score_type", score_type, SCORES)
        if exclude is not None and score_type != "recall":
            raise ValueError(f'exclude is for score_type="recall"; omit it with {score_type!r}.')
        k = check_whole("k", k)
        predictor = self._predictor(None, None, stimulus_features, neuron_features)
        sizes = len(predictor.s), len(predictor.t)
        records = read_responses(responses, self._loss, *sizes).records
        if score_type == "D2":
            return deviance_explained(self._loss, records, predictor)
        if score_type == "correlation":
            return correlations(self._loss, records, predictor)
        if exclude is not None:
            exclude = read_responses(exclude, RESPONSE_LOSSES["squared"], *sizes, "exclude").records
        return recall(records, predictor, k, exclude)

    def _predictor(self, stimuli, neurons, stimulus_features, neuron_features) -> Predictor:
        """Return embeddings and biases of the selected stimuli and neurons."""
        check_is_fitted(self)
        P, s = self._embedded(0, stimuli, stimulus_features, self.stimulus_embedding_, self.stimulus_bias_)
        Q, t, null = self._embedded(1, neurons, neuron_features, self.neuron_embedding_, self.neuron_bias_, self._null)
        return Predictor(P, s, Q, t, null)

    def _embedded(self, which: int, ids, features, *fitted: np.ndarray) -> list[np.ndarray]:
        """Embeddings, biases and more of some entities of one side: as fitted, or of unseen ones."""
        side = self._sides[which]
        if features is None:
            some = read_fitted_ids(ids, side)
            return [values[some] for values in fitted]
        if ids is not None:
            raise ValueError(
                f"{side.entities} and {side.entity}_features were given; pass ids of the fit or features of others."
            )
        embedding = self._towers[which](read_unseen(features, side))
        means = self._mean_bias[which], *map(np.mean, fitted[2:])
        return [embedding, *(np.full(len(embedding), mean) for mean in means)]

    def _write_state(self, header: dict, arrays: dict) -> None:
        arrays.update({name: getattr(self, f"{name}_") for name in _EMBEDDINGS}, null=self._null)
        names = [name for name, loss in RESPONSE_LOSSES.items() if loss == self._loss]
        if not names:
            raise ValueError(f"the loss is {self._loss!r}, which cannot be saved: use one of {list(RESPONSE_LOSSES)}.")
        header["loss"], header["mean_bias"], header["sides"] = names[0], list(self._mean_bias), []
        for side, tower in zip(self._sides, self._towers, strict=True):
            tower.to_file(side.entity, arrays)
            names = None if side.names is None else [str(name) for name in side.names]
            header["sides"].append([side.n, side.n_features, names])

    def _read_state(self, header: dict, arrays: dict) -> None:
        sides = []
        for side, (n, n_features, names) in zip((STIMULI, NEURONS), header["sides"], strict=True):
            names = None if names is None else np.asarray(names, object)
            sides.append(side._replace(n=n, n_features=n_features, names=names))
        towers = tuple(Tower.from_file(side.entity, arrays) for side in sides)
        P, Q, s, t = (arrays[name] for name in _EMBEDDINGS)
        if len(P) != sides[0].n or len(Q) != sides[1].n or P.shape[1] != Q.shape[1]:
            raise IndexError(f"embeddings of shapes {P.shape} and {Q.shape}")
        fitted = towers, Predictor(P, s, Q, t, arrays["null"]), tuple(header["mean_bias"]), self.report_
        self._keep(RESPONSE_LOSSES[header["loss"]], fitted, tuple(sides))


def _wrapped(values: np.ndarray, stimulus_features, neurons):
    """Return a table with the times of the stimulus features, if they have any."""
    columns = list(range(values.shape[1])) if neurons is None else [int(j) for j in np.atleast_1d(neurons)]
    return wrap(values, time_axis(stimulus_features), None, columns)
