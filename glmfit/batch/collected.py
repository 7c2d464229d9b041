"""All results of a batch in one table of units, one of contributions, and one file of arrays."""

from __future__ import annotations

from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..checks import check_installed
from ..files import whole_or_absent
from .held_out.explained import from_file
from .plan import planned_keys
from .results import read_result, result_path

if TYPE_CHECKING:
    from ..inference import Explanation


class Collected(NamedTuple):
    """Files that `collect` wrote.

    Attributes
    ----------
    index, arrays : pathlib.Path
        Table, including strengths and held-out scores; file of arrays.
    n_fits, n_units, n_absent : int
        Results in the files; their neurons (classes) in total, the rows of the table; tasks without a result.
    damaged : list of str
        Results that cannot be read, and why; they are not in the files.
    explained : pathlib.Path or None
        Table of contributions of groups of features; None if no result has any.
    """

    index: Path
    arrays: Path
    n_fits: int
    n_units: int
    n_absent: int
    damaged: list[str]
    explained: Path | None = None


def collect(out: str | Path) -> Collected:
    """Write the results of a batch to one table and one file of arrays.

    Parameters
    ----------
    out : str or pathlib.Path
        Output folder of a batch; missing or damaged results are skipped, counted and named.

    Returns
    -------
    Collected
        Files and counts. The table, OUT/index.parquet, has a row per neuron (class, for class models) of every fit:
        session, model, unit, status, gap, gap_is_bound, pseudo_r2, spike_count, strength, held_out_score, held_out_se,
        scoring, n_dropped, seconds, warnings, key, path and more. The arrays, OUT/fits.nc (netCDF-4), have dimensions
        ``unit`` (the rows of the table, in order) and ``feature`` (every name that occurs): coef, nan where a model
        lacks the feature, and intercept. OUT/explained.parquet, for models with ``[model.explain]``, has a row per unit
        and contribution: session, model, unit, kind, group, nats, standard_error, bits_per_spike, d2, p_value, q_value,
        off, proved, n_draws and key; p_value and q_value are nan without a null.

    Raises
    ------
    ValueError, ImportError
        If there is no result; if the extra ``batch`` is missing.

    Notes
    -----
    The index also has the columns edf, edf.TERM, strength.TERM and strength_gradient, if any result is of a
    PopulationGAM, and explain.KIND.GROUP, the contributions in nats; nan for units without. The how-to "Fit many
    sessions" explains all columns.

    Each file is written whole or not at all; an old table of contributions is removed if no result has any. Cost: all
    results are read; units times features and contributions are held in memory, plus some hundred bytes for each unit.
    """
    check_installed(("pandas", "pyarrow", "xarray", "h5netcdf"), "batch")
    import pandas as pd

    out = Path(out)
    columns: dict[str, list] = defaultdict(list)  # of the table; a data frame for each fit would be much larger
    of_terms, of_groups = defaultdict(list), defaultdict(list)  # further ones that only some fits have
    rows: dict[str, list] = defaultdict(list)  # of the table of contributions, by its columns
    coefs, names, damaged, n_absent, n_units = [], {}, [], 0, 0
    for key in planned_keys(out):
        try:
            arrays, facts, smooth, explained = read_result(result_path(out, key))
        except FileNotFoundError:
            n_absent += 1
            continue
        except ValueError as error:
            damaged.append(str(error))
            continue
        features = [_printable(str(name)) for name in arrays["design.feature_names"]]
        intercept = np.atleast_1d(arrays["intercept"])
        places = np.array([names.setdefault(name, len(names)) for name in features], np.int32)
        coefs.append((places, arrays["coef"].reshape(len(features), len(intercept))))
        units = slice(n_units, n_units + len(intercept))
        n_units = units.stop
        facts = {name: _printable(value) for name, value in (facts | {"intercept": intercept}).items()}
        for name, value in facts.items():
            columns[name].append(value if isinstance(value, list | np.ndarray) else [value] * len(intercept))
        for name, values in smooth.items():
            of_terms[_printable(name)].append((units, values))
        if explained is not None:
            found = from_file(explained, arrays)
            for c, values in zip(found.contributions, found.contribution, strict=True):
                of_groups[_printable(f"explain.{c.kind}.{c.name}")].append((units, values))
            for name, values in _contributions(facts, found).items():
                rows[name].append(values)
    if not coefs:
        n = n_absent + len(damaged)
        raise ValueError(f"there is no result in {out}: {n} tasks are still to be done. Run the manifest first.")
    index = pd.DataFrame(_joined(columns) | _filled(of_terms, n_units) | _filled(of_groups, n_units))
    with whole_or_absent(out / "index.parquet") as file:
        index.to_parquet(file)
    with whole_or_absent(out / "fits.nc") as file:
        _dataset(index, coefs, names).to_netcdf(file.name, engine="h5netcdf")
    explained = out / "explained.parquet" if rows else None
    if explained is None:
        (out / "explained.parquet").unlink(missing_ok=True)
    else:
        with whole_or_absent(explained) as file:
            pd.DataFrame(_joined(rows)).to_parquet(file)
    return Collected(out / "index.parquet", out / "fits.nc", len(coefs), n_units, n_absent, damaged, explained)


def _contributions(facts: dict[str, Any], found: Explanation) -> dict[str, Any]:
    """Make the rows of a fit in the table of contributions: for each unit, all its groups."""
    n, n_units = len(found.contributions), len(facts["unit"])
    return {
        "session": [facts["session"]] * (n * n_units),
        "model": [facts["model"]] * (n * n_units),
        "unit": [unit for unit in facts["unit"] for _ in range(n)],
        "kind": [_printable(c.kind) for c in found.contributions] * n_units,
        "group": [_printable(c.name) for c in found.contributions] * n_units,
        **{name: values.T.ravel() for name, values in found._columns(every=True).items()},
        "key": [facts["key"]] * (n * n_units),
    }


def _filled(columns: dict[str, list], n_units: int) -> dict[str, np.ndarray]:
    """Join the parts of columns, each of a slice of the units; nan for units without."""
    filled = {}
    for name, parts in columns.items():
        filled[name] = np.full(n_units, np.nan)
        for units, values in parts:
            filled[name][units] = values
    return filled


def _joined(columns: dict[str, list]) -> dict[str, Any]:
    """Concatenate the parts of every column, and release them."""
    joined = {}
    for name in list(columns):
        parts = columns.pop(name)
        joined[name] = np.concatenate(parts) if isinstance(parts[0], np.ndarray) else [*chain.from_iterable(parts)]
    return joined


def _printable(value: Any) -> Any:
    """Escape characters that cannot be written, such as file names that are not UTF-8, or a zero."""
    if isinstance(value, list):
        return [_printable(entry) for entry in value]
    if not isinstance(value, str):
        return value
    return value.encode("utf-8", "backslashreplace").decode().replace("\0", r"\x00")


def _dataset(index, coefs: list, names: dict[str, int]):
    """Coefficients of all units over the features of all models."""
    import xarray as xr

    values = np.full((len(index), len(names)), np.nan)
    at = 0
    for places, coef in coefs:
        values[at : at + coef.shape[1], places] = coef.T
        at += coef.shape[1]
    words = {"session": "session", "model": "model", "status": "status", "key": "key", "unit_name": "unit"}
    described = {name: ("unit", index[column].to_numpy(object).astype(str)) for name, column in words.items()}
    numbers = {name: ("unit", index[name].to_numpy(float)) for name in ("intercept", "gap", "pseudo_r2", "spike_count")}
    return xr.Dataset(
        {"coef": (("unit", "feature"), values), **numbers, "gap_is_bound": ("unit", index["gap_is_bound"].to_numpy())},
        coords={"feature": np.array(list(names), str), **described},
        attrs={"title": "glmfit batch", "coef": "nan where the unit's model does not have the feature"},
    )
