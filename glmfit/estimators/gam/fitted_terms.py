"""Results of a fitted additive model: terms on grids with intervals, and a test of each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from ...checks import check_flag, check_real, check_whole
from ...design import Term
from ...numerics import Seed
from ...threads import one_thread_each
from ..population_model import PopulationModel
from .masked import coordinates_within
from .posterior import Quantiles, Smooth, deviations, grid_of
from .smooth_tests import NO_TEST, TermTest, penalty_of, shrunken_test, shrunken_test_of_several, smooth_test
from .term_curve import OF_THE_CURVE, OF_THE_RATE, TermCurve
from .terms import read_mask_of_terms, read_neurons

if TYPE_CHECKING:
    import pandas as pd


class FittedTerms(PopulationModel):
    """Part of `PopulationGAM` that evaluates terms after the fit."""

    terms_: dict[str, Term]
    strengths_: dict[str, np.ndarray]
    feature_mask: Any
    _smooth: Smooth

    def term(
        self,
        name: str,
        *,
        axes: Any = None,
        neuron: int | str | Sequence[int | str] | None = None,
        level: float = 0.95,
        simultaneous: bool = True,
        with_mean: bool = False,
        given_strengths: bool = False,
        n_draws: int = 10_000,
        random_state: Seed = None,
    ) -> TermCurve:
        r"""Evaluate a term on a grid, with Bayesian intervals, on the scales of the linear predictor and of the rate.

        Parameters
        ----------
        name : str
            Name of the term.
        axes : int, array or tuple of array, optional
            Grid: values of every input in units of the feature (lags in s), or a number of points for each; by default
            100 points of a curve, 40 x 40 of a map, all lags of a filter. The curve of a term without a basis is its
            coefficients.
        neuron : int, str or sequence of these, optional
            Which neurons, by number or name; all by default.
        level : float
            Coverage of the intervals, in (0, 1).
        simultaneous : bool
            Whether to compute bands for whole curves as well.
        with_mean : bool
            Whether intervals of the curve include the uncertainty of the intercept, the overall mean, as
            ``seWithMean`` does in mgcv: they then also cover nearly straight curves. Those of the rate always do.
        given_strengths : bool
            Whether intervals treat strengths chosen by marginal likelihood as known. By default their uncertainty
            widens the intervals, most for neurons with few spikes (mgcv's ``unconditional``).
        n_draws : int
            Draws from the posterior for the bands.
        random_state : optional
            Seed of these draws, as in the constructor; None takes the constructor's.

        Returns
        -------
        TermCurve

        Raises
        ------
        ValueError
            If there is no such term or neuron, or axes are not those of its basis.
        NotFittedError
            Before a fit.

        Notes
        -----
        Guarantee: approximate, from a normal posterior at the optimum and the uncertainty of up to 20 strengths that
        were chosen (docs/theory/smooth_terms.md). Pointwise intervals have their coverage on average over the curve,
        not at every point: they are too narrow at sharp peaks. The quantiles of bands are accurate to about 1 %. With
        an estimated scale, quantiles are Student's with the residual degrees of freedom.
        Cost: points times features of the term times draws, for each neuron.

        References
        ----------
        D. Nychka, Bayesian confidence intervals for smoothing splines (1988); G. Marra, S. Wood, Coverage properties of
        confidence intervals for generalized additive model components (2012); D. Ruppert, M. Wand, R. Carroll,
        Semiparametric regression (2003), 6.5.

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
        >>> curve = model.term("speed", axes=[2.0, 5.0])
        >>> curve.rate[:, 0].round(1)
        array([0.9, 0.7])
        >>> true = np.exp(np.sin(curve.axes[0] / 2) - 1)
        >>> bool(np.all((curve.rate_low[:, 0] < true) & (true < curve.rate_high[:, 0])))
        True
        """
        check_is_fitted(self)
        term = self.terms_[self._known(name)]
        check_real("level", level, 1.0, hint="The usual one is 0.95.")
        check_flag("simultaneous", simultaneous)
        check_flag("with_mean", with_mean)
        grid = grid_of(name, term, axes, self._feature_names())
        place = self._place(name)
        draws = check_whole("n_draws", n_draws, 100) if simultaneous else 0
        quantiles = Quantiles(level, draws, self._seed(random_state), place.stop - place.start + 1)
        which = read_neurons(neuron, list(self.report_.neuron))
        features = list(term.features)
        centre = 0.0 if grid.is_filter else self._smooth.mean[features]
        rows = (grid.functions - centre) @ self._smooth.turn[features, place]  # (point, coordinate)
        inside = self._inside()[features]
        covariance = (self._smooth.covariance if given_strengths else self._smooth.wide)[name]
        with one_thread_each():
            found = [self._on_grid(name, n, inside[:, n], rows, covariance[n], quantiles, with_mean) for n in which]
        names = (*OF_THE_CURVE, *OF_THE_RATE)
        parts = zip(names, zip(*found, strict=True), strict=True)
        arrays = {key: np.stack(of, axis=-1).reshape(*grid.shape, -1) for key, of in parts}
        if not simultaneous:
            arrays = {key: None if key.endswith("simultaneous") else of for key, of in arrays.items()}
        return TermCurve(
            name=name, inputs=grid.inputs, axes=grid.axes, neuron=[self.report_.neuron[n] for n in which],
            is_filter=grid.is_filter, level=float(level), with_mean=with_mean, **arrays,
        )  # fmt: skip

    def term_frame(self) -> pd.DataFrame:
        """Test every term of every neuron, and report its degrees of freedom and the strengths of its penalties.

        Returns
        -------
        pandas.DataFrame
            A row per neuron and term. ``edf``: effective degrees of freedom; ``reference_df``: those of the test;
            ``statistic``, ``p_value``: of the term being 0 everywhere; ``strength_1``, ...: of its penalties. NaN for
            neurons without a fit and for terms that their mask lacks.

        Raises
        ------
        NotFittedError
            Before a fit.

        Notes
        -----
        Guarantee: approximate; two tests of Wood (docs/theory/smooth_terms.md). If the penalties leave some part of a
        term free (a spline, a map), its curve at the rows of the fit is tested in the metric of its Bayesian
        covariance, cut to the rank ``reference_df``; if all of it is shrunk towards 0 (a ridge, ARD, a cyclic spline, a
        Fourier series), it is tested as a random effect, with ``reference_df = edf``. p-values are a little too small
        if the strengths were chosen by the same rows (5 to 8 % are below 0.05 in simulations). They assume rows to be
        independent given the features: if residuals are autocorrelated, p-values are far too small.
        Cost: the cube of the number of a term's features, for each neuron.

        References
        ----------
        S. Wood, On p-values for smooth components of an extended generalized additive model (2013); A simple test for
        random effects in regression models (2013).
        """
        import pandas as pd

        check_is_fitted(self)
        most = max((len(term.penalties) for term in self.terms_.values()), default=0)
        columns = ["edf", *TermTest._fields, *(f"strength_{k + 1}" for k in range(most))]
        rows, inside = [], self._inside()
        for n in range(len(self.report_.neuron)):
            for name, term in self.terms_.items():
                own, row = inside[list(term.features), n], np.full(len(columns), np.nan)
                if self._has_fit(name, n) and own.any():
                    strengths = self.strengths_[name]
                    strengths = strengths if strengths.ndim == 1 else strengths[:, n]
                    row[0] = np.atleast_1d(self.edf_[name])[n]
                    row[1:4] = self._test(name, n, own, strengths)
                    row[4 : 4 + len(strengths)] = strengths
                rows.append(row)
        index = pd.MultiIndex.from_product([self.report_.neuron, list(self.terms_)], names=["neuron", "term"])
        return pd.DataFrame(np.reshape(rows, (len(index), len(columns))), index=index, columns=columns)

    def coef_by_term(self) -> dict[str, np.ndarray]:
        """Split the coefficients by term.

        Returns
        -------
        dict of str to numpy.ndarray
            Coefficients of each term, in the order of its features: (feature, neuron), for 1-D y (feature,). Features
            in no term are not included; `coef_frame` has all.

        Raises
        ------
        NotFittedError
            Before a fit.
        """
        check_is_fitted(self)
        return {name: self.coef_[list(term.features)] for name, term in self.terms_.items()}

    # -- of one term and neuron

    def _on_grid(
        self, name: str, n: int, inside: np.ndarray, rows: np.ndarray, covariance: np.ndarray, quantiles: Quantiles,
        with_mean: bool,
    ) -> list:  # fmt: skip
        """Compute curve and rate of a neuron with their intervals, (point,) each, as in TermCurve."""
        if not self._has_fit(name, n) or not inside.any():
            return [np.full(len(rows), np.nan)] * len((*OF_THE_CURVE, *OF_THE_RATE))
        smooth, df, has = self._smooth, self._residual_df(n), self._has(name, inside)
        rows, covariance, point = rows * has, smooth.scale[n] * covariance, quantiles.pointwise(df)
        curve = rows @ np.where(has, smooth.coordinates[n, self._place(name)], 0.0)
        if len(inside) == len(curve) and self.terms_[name].basis is None:
            curve = np.where(inside, curve, np.nan)

        def interval(rows: np.ndarray, covariance: np.ndarray) -> list[np.ndarray]:
            """Compute the standard error, and the ends of the pointwise interval and of the band."""
            error = np.where(np.isnan(curve), np.nan, deviations(rows, covariance))
            wide = quantiles.simultaneous(rows, covariance, df)
            return [error, *(curve + sign * q * error for q in (point, wide) for sign in (-1, 1))]

        of_mean = interval(np.append(rows, np.ones((len(rows), 1)), axis=1), covariance)
        of_curve = of_mean if with_mean else interval(rows, covariance[:-1, :-1])
        coef, intercept = self._matrix()
        middle, mean = intercept[n] + smooth.mean @ coef[:, n], self._family().mean
        rates = [np.asarray(mean(middle + of), np.float64) for of in (curve, *of_mean[1:])]
        return [curve, *of_curve, *rates]

    def _test(self, name: str, n: int, inside: np.ndarray, strengths: np.ndarray) -> TermTest:
        place, smooth, df = self._place(name), self._smooth, self._residual_df(n)
        has = self._has(name, inside)
        some = np.ix_(has, has)
        g, covariance = smooth.coordinates[n, place][has], smooth.covariance[name][n][:-1, :-1][some]
        if not len(g):
            return NO_TEST
        term = self.terms_[name]
        penalty, pattern, is_whole = penalty_of(term.penalties, strengths, smooth.turn[list(term.features), place])
        if is_whole:
            # The strengths are those of mean losses: how many responses these stand for, the degrees tell.
            left = np.sum(1 - smooth.degrees[place, n][has])
            unit = left / np.sum(covariance * penalty[some])
            given = g, smooth.scale[n] * covariance, unit / smooth.scale[n] * penalty[some]
            if np.count_nonzero(strengths > 0) > 1 and self.report_.strengths_by != "given":
                return shrunken_test_of_several(*given, pattern[some], df)
            return shrunken_test(*given, df)
        used = smooth.degrees_of_tests[place, n][has].sum()
        return smooth_test(g, smooth.scale[n] * covariance, smooth.gram[place, place][some], used, df)

    def _has(self, name: str, inside: np.ndarray) -> np.ndarray:
        """Find which coordinates of a term a neuron has, bool (coordinate,): those of which it has all features."""
        turn = self._smooth.turn[list(self.terms_[name].features), self._place(name)]
        return coordinates_within(turn, inside[:, None])[:, 0]

    def _place(self, name: str) -> slice:
        return slice(*self._smooth.places[list(self.terms_).index(name)])

    def _has_fit(self, name: str, n: int) -> bool:
        return bool(np.isfinite(self._smooth.covariance[name][n]).all())

    def _inside(self) -> np.ndarray:
        """Find which features each neuron has, bool (feature, neuron)."""
        shape = (self.n_features_in_, len(self.report_.neuron))
        mask = read_mask_of_terms(self.feature_mask, self.terms_, *shape)
        return np.ones(shape, bool) if mask is None else mask

    def _residual_df(self, n: int) -> float:
        """Degrees of freedom on which the scale of a neuron rests; infinite for models without a scale."""
        if not self._family().has_scale:
            return np.inf
        masked = 0 if self.report_.n_masked is None else self.report_.n_masked[n]
        return max(float(self.report_.n_rows - masked - 1 - self._smooth.degrees[:, n].sum()), 1.0)

    # -- names

    def _known(self, name: Any) -> str:
        if name not in self.terms_:
            raise ValueError(f"name is {name!r}; the model has the terms {', '.join(map(repr, self.terms_))}.")
        return name

    def _feature_names(self) -> list[str]:
        """Name of each feature: of the columns of X, else of the basis of its term, else its number."""
        names = [str(k) for k in range(self.n_features_in_)]
        for term in self.terms_.values():
            if term.basis is not None:
                for feature, name in zip(term.features, term.basis.feature_names, strict=True):
                    names[feature] = name
        return [str(name) for name in getattr(self, "feature_names_in_", names)]

    def _labels(self) -> Any:
        """Rows of `coef_frame`: term and feature."""
        import pandas as pd

        term_of = {feature: name for name, term in self.terms_.items() for feature in term.features}
        pairs = [(term_of.get(k, ""), name) for k, name in enumerate(self._feature_names())]
        return pd.MultiIndex.from_tuples([*pairs, ("intercept", "intercept")], names=["term", "feature"])
