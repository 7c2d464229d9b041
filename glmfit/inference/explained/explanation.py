"""Results of `explain`: scores, contributions and p-values, as tables, arrays and a file."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.stats

from ...display import Display, Summary, counted, frame_by_neuron
from ...files import DAMAGED, load_npz, save_npz
from .models import Contribution
from .testing import Statistics, contributions_of, pairs_of

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


@dataclass(frozen=True, repr=False)
class Explanation(Display):
    """Contributions of groups of features to the prediction of held-out responses, neuron by neuron.

    Attributes
    ----------
    neuron, model, feature : list of str
        Names.
    contributions : list of Contribution
        Comparisons: name, kind ("unique", "maximal", "added", "whole" or "model"), and the two models.
    members : numpy.ndarray
        Features of each model, bool (model, feature).
    loss, loss_off : numpy.ndarray
        Held-out loss in nats, up to a constant of the neuron, and a bound of its distance from that of the exact
        optimum, inf if no bound is known, (model, fold, neuron).
    strengths, strength : numpy.ndarray
        Strengths tried, (strength,), and chosen inside the training rows of each fold, (model, fold, neuron).
    gap, proved : numpy.ndarray
        Bound of how far the objective of each fit is above its minimum, in nats, and whether the bound is below its
        target, (model, fold, neuron).
    saturated, n_spikes : numpy.ndarray
        Loss of the model that predicts every response, in nats, and sum of the responses, (fold, neuron).
    n_fits, n_proved : numpy.ndarray
        Number of fits of every neuron, including those that chose strengths, and of proved ones, (neuron,).
    p_value, q_value : numpy.ndarray
        P-value against the null, and the smallest false discovery rate at which the contribution is a discovery
        (Benjamini-Hochberg over the neurons and groups of a kind), (contribution, neuron); nan without a null.
    statistic, null_statistic : numpy.ndarray
        Statistics of the p-values, in nats: contributions at ``null_strength`` of the recording, (contribution,
        neuron), and of the draws, (draw, contribution, neuron), nan where none was computed.
    null_strength : numpy.ndarray
        Strength at which statistics are computed, (neuron,); nan where each draw chooses its own.
    n_draws, n_loose, n_unproved_draws : numpy.ndarray
        Draws evaluated, how many of these a loose bound has decided, and how many count against the group because
        their fits are not proved, so that the p-value is an upper limit, (contribution, neuron).
    n_null_fits, n_null_proved, n_possible_draws : int
        Fits to draws, proved ones among them, and possible draws.
    observation_model, null, status : str
        Observation model, null, and "complete" or "interrupted".
    """

    neuron: list
    model: list
    feature: list
    contributions: list
    members: np.ndarray
    loss: np.ndarray
    loss_off: np.ndarray
    strengths: np.ndarray
    strength: np.ndarray
    gap: np.ndarray
    proved: np.ndarray
    saturated: np.ndarray
    n_spikes: np.ndarray
    n_fits: np.ndarray
    n_proved: np.ndarray
    p_value: np.ndarray
    q_value: np.ndarray
    statistic: np.ndarray
    null_statistic: np.ndarray
    null_strength: np.ndarray
    n_draws: np.ndarray
    n_loose: np.ndarray
    n_unproved_draws: np.ndarray
    n_null_fits: int = 0
    n_null_proved: int = 0
    n_possible_draws: int = 0
    observation_model: str = "Poisson"
    null: str = ""
    status: str = "complete"

    # ---------------------------------------------------------------- contributions

    @property
    def by_fold(self) -> np.ndarray:
        """Contributions in nats of every fold, nan where a fold cannot be scored, (contribution, fold, neuron)."""
        more, less = pairs_of(self.contributions).T
        return self.loss[less] - self.loss[more]

    def _over_folds(self) -> Statistics:
        return contributions_of(self.loss, self.loss_off, self.proved, pairs_of(self.contributions))

    @property
    def contribution(self) -> np.ndarray:
        """Log-likelihood in nats that the larger model gains on all held-out rows, (contribution, neuron)."""
        return self._over_folds().value

    @property
    def off(self) -> np.ndarray:
        """Bound of how far `contribution` is from that of the exact optima, inf if none is known, in its shape."""
        return self._over_folds().off

    @property
    def is_proved(self) -> np.ndarray:
        """Whether all fits behind a contribution are proved, bool (contribution, neuron)."""
        return self._over_folds().proved

    @property
    def standard_error(self) -> np.ndarray:
        """Standard error of `contribution`, from its scatter over folds; nan with one fold that can be scored."""
        each = self.by_fold
        n = np.isfinite(each).sum(axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            mean = np.nansum(each, axis=1) / n
            variance = np.nansum((each - mean[:, None]) ** 2, axis=1) / (n - 1)
            return np.where(n > 1, np.sqrt(n * variance), np.nan)

    def _of_folds(self, values: np.ndarray) -> np.ndarray:
        """Sum values (fold, neuron) over the folds that each contribution has, (contribution, neuron)."""
        return np.sum(np.where(np.isfinite(self.by_fold), values, 0.0), axis=1)

    @property
    def bits_per_spike(self) -> np.ndarray:
        """Contribution in bits over the number of spikes in the folds, (contribution, neuron)."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return self.contribution / np.log(2) / self._of_folds(self.n_spikes)

    @property
    def d2(self) -> np.ndarray:
        """Contribution as a share of the deviance that the constant model leaves, (contribution, neuron)."""
        null = self._of_folds(self.loss[0] - self.saturated)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(null > 0, self.contribution / null, np.nan)

    def compare(self, more: str, less: str) -> pd.DataFrame:
        """Return the gain of one model over another, a row per neuron.

        Parameters
        ----------
        more, less : str
            Names of two of the models in ``model``.

        Returns
        -------
        pandas.DataFrame
            nats, standard_error, off and bits_per_spike, by neuron.
        """
        for name in (more, less):
            if name not in self.model:
                raise ValueError(f"{name!r} is not a model here; the models are {self.model}.")
        only = Contribution(f"{more} over {less}", "model", self.model.index(more), self.model.index(less))
        other = replace(self, contributions=[only])
        columns = {
            "nats": other.contribution[0], "standard_error": other.standard_error[0], "off": other.off[0],
            "bits_per_spike": other.bits_per_spike[0],
        }  # fmt: skip
        return frame_by_neuron(self.neuron, columns)

    # ---------------------------------------------------------------- tables

    def _columns(self, every: bool = False) -> dict[str, np.ndarray]:
        """Columns of the table, (contribution, neuron); those that need a null if there is one, or on request."""
        columns = {
            "nats": self.contribution, "standard_error": self.standard_error, "bits_per_spike": self.bits_per_spike,
            "d2": self.d2, "p_value": self.p_value, "q_value": self.q_value, "off": self.off,
            "proved": self.is_proved, "n_draws": self.n_draws,
        }  # fmt: skip
        if not (self.null or every):
            del columns["p_value"], columns["q_value"], columns["n_draws"]
        return columns

    def to_frame(self) -> pd.DataFrame:
        """Return a row per neuron and contribution as a pandas DataFrame."""
        import pandas as pd

        columns = self._columns()
        n, names = len(self.neuron), self.contributions
        frame = pd.DataFrame({
            "neuron": np.repeat(self.neuron, len(names)),
            "kind": np.tile([c.kind for c in names], n),
            "group": np.tile([c.name for c in names], n),
            **{name: values.T.ravel() for name, values in columns.items()},
        })  # fmt: skip
        return frame.set_index(["neuron", "kind", "group"])

    def to_xarray(self) -> xr.Dataset:
        """Return everything as an xarray Dataset; requires xarray, of the extra ``batch``."""
        import xarray as xr

        both, scores = ("contribution", "neuron"), ("model", "fold", "neuron")
        variables: dict[str, Any] = {name: (both, values) for name, values in self._columns().items()}
        variables |= {name: (scores, getattr(self, name)) for name in ("loss", "loss_off", "strength", "gap")}
        variables |= {"fit_proved": (scores, self.proved), "members": (("model", "feature"), self.members)}
        variables |= {name: (("fold", "neuron"), getattr(self, name)) for name in ("saturated", "n_spikes")}
        if self.null:
            variables |= {"statistic": (both, self.statistic), "null_statistic": (("draw", *both), self.null_statistic)}
        coords = {
            "neuron": self.neuron, "model": self.model, "feature": self.feature,
            "kind": ("contribution", [c.kind for c in self.contributions]),
            "group": ("contribution", [c.name for c in self.contributions]),
        }  # fmt: skip
        attributes = {name: getattr(self, name) for name in ("observation_model", "null", "status")}
        return xr.Dataset(variables, coords, attributes)

    def _summary(self) -> Summary:
        groups, neurons = counted(len(self.contributions), "contribution"), counted(len(self.neuron), "neuron")
        head = [f"contributions to held-out predictions; {groups}, {neurons}, {counted(self.loss.shape[1], 'fold')}"]
        n, proved = int(self.n_fits.sum()), int(self.n_proved.sum())
        tail = [f"{proved} of {n} fits proved"]
        if self.null:
            at = f"{self.null}, {counted(self.n_possible_draws, 'draw')}"
            found = f"{int(np.sum(self.q_value <= 0.05))} of {int(np.isfinite(self.q_value).sum())}"
            tail.append(f"null: {at}; {found} contributions at a false discovery rate of 0.05")
            possible = self.n_possible_draws * int(np.isfinite(self.statistic).sum())
            spared, loose = possible - int(self.n_draws.sum()), int(self.n_loose.sum())
            tail.append(f"of {counted(possible, 'draw')} {spared} were skipped, and {loose} decided by loose bounds")
            if n := int(self.n_unproved_draws.sum()):
                upper = counted(int(np.sum(self.n_unproved_draws > 0)), "p-value")
                tail.append(f"{counted(n, 'draw')} without a proof count against the groups: {upper} may be too large")
        if self.status != "complete":
            tail.append("interrupted: pass the same checkpoint again to continue")
        return Summary(head, self.to_frame(), tail)

    # ---------------------------------------------------------------- files

    def save(self, path: str | Path) -> Path:
        """Write everything to one npz file, without pickle; the file is complete or absent."""
        header, arrays = explanation_to_file(self)
        return save_npz(path, {"class": "Explanation", **header}, arrays)

    @classmethod
    def load(cls, path: str | Path) -> Explanation:
        """Read a file written by `save`.

        Raises
        ------
        ValueError
            If it is another file, or damaged.
        """
        header, arrays = load_npz(path)
        if header.pop("class", None) != "Explanation":
            raise ValueError(f"{path} is not an explanation saved by glmfit.")
        header.pop("format")
        try:
            return explanation_from_file(header, arrays)
        except DAMAGED as error:
            raise ValueError(f"{path} is damaged ({error}).") from error


def explanation_to_file(found: Explanation) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return the header (values of JSON) and the arrays."""
    header = {f.name: getattr(found, f.name) for f in fields(found)}
    arrays = {name: header.pop(name) for name in _array_names()}
    header["contributions"] = [[c.name, c.kind, int(c.more), int(c.less)] for c in found.contributions]
    return header, arrays


def explanation_from_file(header: dict[str, Any], arrays: dict[str, np.ndarray]) -> Explanation:
    """Read the output of `explanation_to_file`; raise one of `DAMAGED` for anything else."""
    compared = [Contribution(*of) for of in header["contributions"]]
    found = Explanation(**header | {"contributions": compared}, **{name: arrays[name] for name in _array_names()})
    shape = len(found.model), len(found.n_spikes), len(found.neuron)
    if found.loss.shape != shape:
        raise ValueError(f"losses have shape {found.loss.shape} instead of {shape}")
    return found


def _array_names() -> list[str]:
    return [f.name for f in fields(Explanation) if f.type == "np.ndarray"]


def false_discovery_rate(p: np.ndarray, kinds: list[str]) -> np.ndarray:
    """Benjamini-Hochberg q-values over all p-values (contribution, neuron) of a kind that are known."""
    q = np.full_like(p, np.nan)
    for kind in set(kinds):
        rows = np.array([k == kind for k in kinds])
        some = rows[:, None] & np.isfinite(p)
        if some.any():
            q[some] = scipy.stats.false_discovery_control(p[some])
    return q
