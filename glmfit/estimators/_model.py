"""What all estimators share: a fit that is done whole or not at all, and files."""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted

from .._files import load_npz, save_npz
from .._warn import warn_user
from ._model_file import model_from_file, model_to_file


class Model(BaseEstimator):
    """Common part of all estimators; their fits set ``report_``, and what `_write_state` knows of."""

    report_class: ClassVar[type]

    def __init_subclass__(cls, **options):
        """Let the constructor name the estimator when it refuses a parameter."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _naming(cls.__init__)

    @property
    def n_iter_(self) -> int:
        """Epochs of the fit; of a population, those of the neuron that took most."""
        return int(np.max(self.report_.epochs))

    def _fit_safely(self, work, *arguments) -> None:
        """Do the work, or leave everything as it was; warn of what did not converge."""
        before = dict(vars(self))
        try:
            work(*arguments)
        except BaseException:
            vars(self).clear()  # nothing half-done: checks have set n_features_in_ already
            vars(self).update(before)
            raise
        failure = self.report_._failure()
        if failure:
            warn_user(failure, ConvergenceWarning)

    def save(self, path: str | Path) -> Path:
        """Save the fitted model to one .npz file (arrays and a JSON header; no pickle), atomically.

        Parameters
        ----------
        path : str or pathlib.Path
            Where to, ending in ".npz", which is added to a name without an ending.

        Returns
        -------
        pathlib.Path
            The file written.

        Raises
        ------
        NotFittedError, FileNotFoundError, ValueError, TypeError
            Before anything is written: ValueError for another ending, TypeError for parameters or labels that a file
            without pickle cannot keep.
        """
        check_is_fitted(self)
        return save_npz(path, *model_to_file(self))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Load a model that :meth:`save` wrote.

        Parameters
        ----------
        path : str or pathlib.Path
            The file.

        Returns
        -------
        PopulationGLM, SoftmaxGLM, MultinomialGLM or ResponseModel
            Fitted: coefficients, report and names; pynapple metadata is not stored.

        Raises
        ------
        ValueError
            If the file is not such a model.

        Warns
        -----
        UserWarning
            If a `PopulationGLMCV` had a ``cv`` that files cannot keep (a splitter, row indices): it is 5 then.
        """
        return model_from_file(cls, *load_npz(path))

    @abstractmethod
    def _write_state(self, header: dict, arrays: dict) -> None:
        """Add to a file what it holds besides parameters and report."""

    @abstractmethod
    def _read_state(self, header: dict, arrays: dict) -> None:
        """Set what `_write_state` wrote."""


def _naming(init):
    """Wrap a constructor: what it does not know is refused in the name of the estimator, with what it does know."""
    signature = inspect.signature(init)

    @functools.wraps(init)
    def checked(self, *args, **parameters):
        try:
            signature.bind(self, *args, **parameters)
        except TypeError as error:
            known = ", ".join(list(signature.parameters)[1:])
            raise TypeError(f"{type(self).__name__}: {error}; its parameters are {known}.") from None
        init(self, *args, **parameters)

    return checked
