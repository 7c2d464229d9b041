"""The additive model of a population as a scikit-learn estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.exceptions import ConvergenceWarning

from ...checks import check_flag, warn_user
from ...data.counts import read_training
from ...data.standard_form import StandardForm
from ...data.times import time_axis
from ...design import Basis, Term
from ...engine.population import PopulationProblem
from ...engine.smooth.coordinates import Coordinates
from ...engine.smooth.population import Outcome, SmoothPopulation
from ...numerics import DataLike, PerRow, Seed
from ...penalties import NoPenalty
from ..default_strength import observed
from ..model import WholeFit
from ..parameters import precision
from ..population_glm import at_dispersion
from ..report import report_of
from ..scores import make_folds
from ..streaming import as_arrays
from .fitted_terms import FittedTerms
from .posterior import Smooth
from .report import SmoothReport, unsettled_words
from .terms import mask_of_coordinates, read_mask_of_terms, read_strengths, read_terms, with_free_parts


class PopulationGAM(FittedTerms):
    r"""Additive model of a population: smooth terms with penalty strengths per neuron, and intervals.

    Per neuron, with the mean loss of `PopulationGLM` and the penalty matrices S of the terms, it minimises

    .. math:: F_n(w, b) = \frac1T \sum_t \phi(x_t'w + b; y_{tn})
              + \frac12 \sum_j \lambda_{jn}\, w_{g(j)}' S_j\, w_{g(j)}

    The strengths :math:`\lambda` are those under which the responses are most likely (empirical Bayes, as mgcv's REML),
    those that predict blocks of rows best from the other rows, or given.

    Parameters
    ----------
    terms : Basis or mapping, optional
        A basis of `glmfit.design`, or a sum of them, whose features are the columns of X; or name of a term ->
        :class:`glmfit.design.Term`, or the features of a ridge (indices, names, a slice). Features in no term have no
        penalty. None is one ridge of all features.
    strengths : {"marginal-likelihood", "cross-validation"}, mapping or array
        How strengths are chosen, or strengths >= 0: name of a term -> a number, one for each of its penalties, or
        (penalty, neuron); or all of them, a number, (penalty,) or (penalty, neuron) in the order of the terms.
    inverse_link_function, observation_model, dispersion :
        As in `PopulationGLM`. A negative binomial dispersion that is not given is estimated with the default ridge.
    feature_mask : mapping or array, optional
        Which features a neuron has: (feature, neuron) of 0 and 1, as in NeMoS, or name of a term -> (neuron,). Terms
        with penalties other than ridges can only be masked as a whole.
    select : bool
        Whether the part of a term that its penalties leave free (straight lines, planes) has its own ridge, one more
        penalty of the term. Then a term that is not needed vanishes, and neurons that are silent on one side of a map
        have an optimum.
    cv : int, pynapple IntervalSet, splitter or iterable
        Blocks of rows for "cross-validation", as in `PopulationGLMCV`.
    tol, max_epochs : float, int
        Relative gap of the last fit per neuron, as in `PopulationGLM`; maximum number of Hessians of each neuron.
    max_memory : float
        Bytes for Hessians; neurons are fitted in groups that need no more.

    Attributes
    ----------
    coef_, intercept_ :
        As in `PopulationGLM`. Terms whose features add up to a constant are centred: their mean over the rows is 0.
    strengths_ : dict of str to numpy.ndarray
        Strengths of each term's penalties, (penalty, neuron), for 1-D y (penalty,).
    edf_ : dict of str to numpy.ndarray
        Effective degrees of freedom of each term, (neuron,), for 1-D y a number.
    terms_ : dict of str to Term
        Terms as they were read.
    dispersion_, n_features_in_, feature_names_in_ :
        As in `PopulationGLM`.

    Notes
    -----
    Guarantee: at the strengths of ``strengths_`` the fit has the certificate of `PopulationGLM`, by its own Hessian in
    double precision. Strengths that were chosen need not be the global optimum: the marginal likelihood sometimes has
    several maxima; ``report_.strength_gradient`` is its gradient, 0 at each of them. A strength that runs to
    the end of a range of more than ten decades stays there, and the report says so: the term is not needed (or
    needs no penalty).
    Directions that no penalty touches, and along which the features vary by less than a millionth of their standard
    deviation beyond earlier terms, are set to 0. Unless that variation is rounding, no gap is a bound then.
    Cost: some Hessians per neuron, each T times the squared number of features that a row has; basis functions that are
    mostly 0 cost that much less.

    References
    ----------
    S. Wood, Generalized additive models (2017); S. Wood, M. Fasiolo, A generalized Fellner-Schall method (2017); S.
    Wood, N. Pya, B. Safken, Smoothing parameter and model selection for general smooth models (2016).

    Examples
    --------
    >>> import numpy as np
    >>> from glmfit import PopulationGAM
    >>> from glmfit.design import BSpline
    >>> rng = np.random.default_rng(0)
    >>> speed = rng.uniform(0, 10, size=4000)
    >>> counts = rng.poisson(np.exp(np.sin(speed / 2) - 1))
    >>> basis = BSpline(10, (0, 10), name="speed")
    >>> X = basis.features(speed)
    >>> model = PopulationGAM(basis, inverse_link_function="exp").fit(X, counts)
    >>> bool(model.report_.converged.all())
    True
    >>> 3 < model.edf_["speed"] < 9
    True
    """

    report_class = SmoothReport

    def __init__(
        self,
        terms: Basis | Mapping[str, Any] | None = None,
        strengths: str | Mapping[str, ArrayLike] | ArrayLike = "marginal-likelihood",
        inverse_link_function: str | Callable | None = None,
        feature_mask: Mapping[str, ArrayLike] | ArrayLike | None = None,
        select: bool = False,
        cv: Any = 5,
        tol: float = 1e-6,
        max_epochs: int = 60,
        random_state: Seed = 0,
        verbose: bool = False,
        max_memory: float = 2e9,
        observation_model: str = "Poisson",
        dispersion: float | ArrayLike | None = None,
    ): ...

    def fit(
        self,
        X: DataLike,
        y: DataLike,
        sample_weight: PerRow = None,
        offset: PerRow = None,
        exposure: PerRow = None,
        epochs: Mapping[Any, Any] | None = None,
    ) -> Self:
        """Choose the strengths and fit the coefficients of every neuron.

        Parameters
        ----------
        X, y, sample_weight, offset, exposure, epochs :
            As in :meth:`PopulationGLM.fit`; in memory.

        Warns
        -----
        ConvergenceWarning
            Once if some neurons did not converge, and once if the strengths of some have not settled.
        UserWarning
            As in :meth:`PopulationGLM.fit`.
        """
        with WholeFit(self):
            options = self._read_options()
            data = read_training(self, *as_arrays(X, y), sample_weight, offset, exposure, epochs)
            n_features, n_neurons = data.X.shape[1], data.Y.shape[1]
            terms = read_terms(self.terms, n_features, getattr(self, "feature_names_in_", None))
            plain = {name: (t.features, t.penalties) for name, t in terms.items()}
            space = Coordinates(data.X, plain, data.weights, check_flag("select", self.select))
            terms = with_free_parts(terms, space.free_parts)
            strengths = read_strengths(self.strengths, terms, n_neurons)
            mask = read_mask_of_terms(self.feature_mask, terms, n_features, n_neurons)
            by_folds = strengths is None and self.strengths == "cross-validation"
            folds = make_folds(self.cv, data, time_axis(X) or time_axis(y)) if by_folds else None
            options = replace(options, negligible=options.negligible / data.mean_exposure)  # F is per whole bin
            observation = at_dispersion(self, data)
            form = StandardForm.of(data, observation)
            problem = PopulationProblem(
                data.X, form.Y, form.observation, NoPenalty(np.zeros(())), data.weights,
                dtype=precision(data.X.dtype), offset=form.offset, own=form.own,
            )  # fmt: skip
            population = SmoothPopulation(
                problem, space, [t.features for t in terms.values()], observed(data),
                form.unit, mask_of_coordinates(mask, space, terms), folds,
            )  # fmt: skip
            solution, outcome = population.fit(strengths, form.options(options))
            problem.penalty = SimpleNamespace(smooth=True, value=lambda coef: outcome.penalty / form.unit)
            self._keep_terms(terms, space, outcome, data, problem)
            self._keep(problem, solution, data, observation, form)
            self._report_terms(outcome)
        if self.report_.unsettled:
            warn_user(unsettled_words(self.report_.unsettled), ConvergenceWarning)
        return self

    def _keep_terms(self, terms: dict[str, Term], space: Coordinates, outcome: Outcome, data, problem) -> None:
        """Store the results of the fit for the terms."""
        one, penalty = data.one_neuron, 0
        self.terms_, self.strengths_, self.edf_ = terms, {}, {}
        for name, term in terms.items():
            which = slice(penalty, penalty + len(term.penalties))
            strengths, edf = outcome.strengths[which], outcome.degrees[space.places[name]].sum(axis=0)
            self.strengths_[name] = strengths[:, 0] if one else strengths
            self.edf_[name] = float(edf[0]) if one else edf
            penalty = which.stop
        problem.degrees = 1.0 + outcome.degrees.sum(axis=0)
        self._smooth = Smooth(
            places=np.array([[space.places[name].start, space.places[name].stop] for name in terms]).reshape(-1, 2),
            turn=space.turn, mean=space.mean, gram=space.gram, coordinates=outcome.coordinates,
            degrees=outcome.degrees, degrees_of_tests=outcome.degrees_of_tests, scale=outcome.scale,
            covariance={name: outcome.covariance[name] for name in terms},
            wide={name: outcome.wide[name] for name in terms},
        )  # fmt: skip

    def _report_terms(self, outcome: Outcome) -> None:
        """Add the choice of the strengths to the report."""
        by = self.strengths if isinstance(self.strengths, str) else "given"
        edf = np.array([np.atleast_1d(self.edf_[name]) for name in self.terms_])
        free = np.where(outcome.at_end == 0, np.abs(outcome.gradient), 0.0)
        gradient = np.zeros(edf.shape[1:]) if by == "given" else free.max(axis=0, initial=0.0)
        self.report_ = report_of(
            SmoothReport, self.report_, strengths_by=by, term=list(self.terms_), edf=edf,
            strength_gradient=gradient, at_end=outcome.at_end,
        )  # fmt: skip

    def _given_terms(self) -> dict[str, Term]:
        return read_terms(self.terms, self.n_features_in_, getattr(self, "feature_names_in_", None))

    def _write_state(self, header: dict, arrays: dict) -> None:
        super()._write_state(header, arrays)
        arrays |= self._smooth.to_arrays()
        arrays |= {f"strengths.{name}": of for name, of in self.strengths_.items()}
        if self.select:
            given = self._given_terms()
            arrays |= {
                f"free.{name}": term.penalties[-1]
                for name, term in self.terms_.items()
                if len(term.penalties) > len(given[name].penalties)
            }

    def _read_state(self, header: dict, arrays: dict) -> None:
        super()._read_state(header, arrays)
        self._smooth = Smooth.from_arrays(arrays)
        terms = self._given_terms()
        parts = {name: arrays[f"free.{name}"] for name in terms if f"free.{name}" in arrays}
        self.terms_ = with_free_parts(terms, parts)
        self.strengths_ = {name: arrays[f"strengths.{name}"] for name in self.terms_}
        edf = (self._smooth.degrees[slice(*of)].sum(axis=0) for of in self._smooth.places)
        one = self.coef_.ndim == 1
        self.edf_ = {name: float(of[0]) if one else of for name, of in zip(self.terms_, edf, strict=True)}
