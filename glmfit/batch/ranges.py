"""Ranges of splines compared with the values of signals before anything is fitted, to find units that differ."""

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Any

import numpy as np

from ..design.covariates import column_of
from ..design.files import read_signal
from ..design.splines import BSpline
from .manifest import Manifest, ManifestError
from .sources import digest

_Span = tuple[np.ndarray, np.ndarray]  # smallest and largest value of every column


def check_ranges(manifest: Manifest) -> None:
    """Raise ManifestError for splines whose range is below or above all values of their signal, in all sessions.

    A source with sessions that cannot be judged (NWB files, loaders, files that cannot be read) is not refused. If all
    is right, one session is read for each covariate.
    """
    read, problems, known = cache(_span), [], set()
    for model in manifest.models:
        for name, covariate in _with_range(model.design or {}):
            for data in (data for data in manifest.data if data.name in model.data):
                if (fact := digest([covariate, data.name])) in known:
                    continue
                known.add(fact)
                if (span := _outside(covariate, data.sessions.values(), read)) is not None:
                    low, high = covariate["basis"]["range"]
                    problems.append(
                        f'{manifest.path.name}: model "{model.name}", design: covariate "{name}": its values in data '
                        f'"{data.name}", {span[0]:g} to {span[1]:g}, are outside of the range [{low:g}, {high:g}] of '
                        "its basis. Are the units the same?"
                    )
    if problems:
        raise ManifestError(problems)


def _with_range(design: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield covariates and factors of products that are splines of a value, with their names."""
    named = [(c.get("name", c["signal"]), c) for c in design.get("covariates", ())]
    for product in design.get("products", ()):
        named += [(f"{product['name']}: {factor['signal']}", factor) for factor in product["factors"]]
    for name, covariate in named:
        if covariate.get("basis", {}).get("kind") == BSpline.kind:
            yield name, covariate


def _outside(covariate: dict, sources: Iterable[dict], read: Callable[..., _Span | None]) -> tuple | None:
    """Return smallest and largest value of a covariate if all sessions are outside of its range, else None."""
    (low, high), least, most = covariate["basis"]["range"], np.inf, -np.inf
    for source in sources:
        keys = source.get("signals", {}).get(covariate["signal"])
        if source.get("format") not in ("npz", "zarr") or keys is None:
            return None
        found = read(source["path"], source["format"], keys["values"])
        if found is None:
            return None
        n, names = len(found[0]), tuple(keys.get("columns", ()))
        try:
            columns = [column_of(c, names, n, "") for c in covariate.get("columns", range(n))]
        except ValueError:  # there are no such columns
            return None
        first, last = float(np.min(found[0][columns])), float(np.max(found[1][columns]))
        if not (last < low or first > high):
            return None
        least, most = min(least, first), max(most, last)
    return (least, most) if least <= most else None


def _span(path: str, form: str, name: str) -> _Span | None:
    """Find the smallest and largest value of every column; None if they cannot be read, which the fit will report."""
    try:
        values = np.asarray(read_signal(path, form, name), np.float64)
    except Exception:
        return None
    values = values[:, None] if values.ndim == 1 else values
    known = np.isfinite(values)
    if values.ndim != 2 or not known.any(axis=0).all():
        return None
    return np.min(values, axis=0, where=known, initial=np.inf), np.max(values, axis=0, where=known, initial=-np.inf)
