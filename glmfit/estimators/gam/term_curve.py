"""A fitted term as a curve, a map or a filter: its values on a grid, and intervals."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...display import Display, Summary, counted

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

OF_THE_CURVE = ("curve", "standard_error", "low", "high", "low_simultaneous", "high_simultaneous")
OF_THE_RATE = ("rate", "rate_low", "rate_high", "rate_low_simultaneous", "rate_high_simultaneous")


@dataclass(frozen=True, repr=False, kw_only=True)
class TermCurve(Display):
    """A term of an additive model on a grid, with Bayesian intervals, from :meth:`PopulationGAM.term`.

    Arrays have an axis for every input and one for the neurons: (point, neuron) for curves and filters, (x, y, neuron)
    for maps. NaN where the term is not known: beyond the range of the basis, for neurons without a fit (silent, or
    never recorded), and for those whose mask lacks the term or the feature.

    Attributes
    ----------
    name : str
        Name of the term.
    inputs : tuple of str
        Name of every input of its basis: one for a curve, two for a map; ``("feature",)`` for a term without a basis.
    axes : tuple of numpy.ndarray
        Grid of every input, in units of the feature; lags in seconds; names of features for a term without a basis.
    neuron : list
        Names of the neurons.
    is_filter : bool
        Whether the curve is a filter (over lags, or the coefficients of a term without a basis): what an event of one
        at that lag, or one more of the feature, adds to the linear predictor. Other curves are centred: their mean over
        the rows of the fit is 0.
    curve, standard_error, low, high : numpy.ndarray
        On the scale of the linear predictor: estimate, posterior standard deviation, ends of the pointwise interval.
    low_simultaneous, high_simultaneous : numpy.ndarray or None
        Ends of the band that contains the whole curve of a neuron with probability `level`.
    rate, rate_low, rate_high : numpy.ndarray
        Expected response per whole bin, as by :meth:`PopulationGAM.predict`, with all other terms at their mean: the
        inverse link of the intercept plus the curve, and its pointwise interval, which includes the
        uncertainty of the intercept.
    rate_low_simultaneous, rate_high_simultaneous : numpy.ndarray or None
        The same for the whole curve.
    level : float
        Coverage.
    with_mean : bool
        Whether the intervals of the curve include the uncertainty of the intercept, as those of the rate do.
    """

    name: str
    inputs: tuple[str, ...]
    axes: tuple[np.ndarray, ...]
    neuron: list
    is_filter: bool
    curve: np.ndarray
    standard_error: np.ndarray
    low: np.ndarray
    high: np.ndarray
    low_simultaneous: np.ndarray | None
    high_simultaneous: np.ndarray | None
    rate: np.ndarray
    rate_low: np.ndarray
    rate_high: np.ndarray
    rate_low_simultaneous: np.ndarray | None
    rate_high_simultaneous: np.ndarray | None
    level: float
    with_mean: bool

    def _columns(self) -> dict[str, np.ndarray]:
        """Arrays by name, without those that were not computed."""
        columns = {name: getattr(self, name) for name in (*OF_THE_CURVE, *OF_THE_RATE)}
        return {name: values for name, values in columns.items() if values is not None}

    def _summary(self) -> Summary:
        import pandas as pd

        kind = "filter" if self.is_filter else "curve" if len(self.axes) == 1 else "map"
        grid = " x ".join(str(len(axis)) for axis in self.axes)
        both = "pointwise" if self.low_simultaneous is None else "pointwise and simultaneous"
        head = (
            f"{kind} {self.name!r} over {', '.join(self.inputs)}, {grid} points; "
            f"{counted(len(self.neuron), 'neuron')}; {100 * self.level:g} % intervals, {both}"
        )
        rate, error = (
            pd.DataFrame(values.reshape(-1, len(self.neuron))) for values in (self.rate, self.standard_error)
        )
        known, highest = rate.notna().any(), rate.fillna(-np.inf).to_numpy().argmax(axis=0)
        table = {
            "neuron": self.neuron, "lowest rate": rate.min(), "highest rate": rate.max(),
            "at": [self._at(k) if ok else "" for k, ok in zip(highest, known, strict=True)],
            "median error": error.median(),
        }  # fmt: skip
        remark = [] if self.is_filter else ["far from the rows of the fit it is extrapolated, with a wide interval"]
        return Summary([head], pd.DataFrame(table), remark)

    def _at(self, point: int) -> str:
        """Write a point of the grid."""
        places = np.unravel_index(point, [len(axis) for axis in self.axes])
        values = [axis[k] for axis, k in zip(self.axes, places, strict=True)]
        return ", ".join(v if isinstance(v, str) else f"{v:.3g}" for v in values)

    def to_frame(self) -> pd.DataFrame:
        """Return one row per neuron and point of the grid as a pandas DataFrame.

        Returns
        -------
        pandas.DataFrame
            Index: neuron, and the value of every input. Columns: the arrays.
        """
        import pandas as pd

        index = pd.MultiIndex.from_product([self.neuron, *self.axes], names=["neuron", *self.inputs])
        columns = {name: np.moveaxis(values, -1, 0).ravel() for name, values in self._columns().items()}
        return pd.DataFrame(columns, index=index)

    def to_xarray(self) -> xr.Dataset:
        """Return everything as an xarray Dataset; it needs xarray, of the extra ``batch``.

        Returns
        -------
        xarray.Dataset
            Dimensions: the inputs and neuron; ``_axis`` is added to an input that is named like one of the arrays.
        """
        import xarray as xr

        columns = self._columns()
        taken = [*columns, "neuron"]
        dims = [f"{name}_axis" if name in taken else name for name in self.inputs]
        variables = {name: ((*dims, "neuron"), values) for name, values in columns.items()}
        coords = dict(zip(dims, self.axes, strict=True)) | {"neuron": self.neuron}
        facts = {"term": self.name, "level": self.level, "with_mean": int(self.with_mean)}
        return xr.Dataset(variables, coords, facts | {"is_filter": int(self.is_filter)})
