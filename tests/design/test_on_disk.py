"""Files that change while a fit reads them: noticed, named, and told apart from files that are replaced."""

import os
import shutil
import warnings

import h5py
import numpy as np
import pytest
import zarr

from glmfit import PopulationGLM, design
from glmfit.design import RowSource, as_source
from glmfit.design.on_disk import Watch

T, D, N = 3000, 4, 2


@pytest.fixture
def data(rng):
    X = rng.normal(size=(T, D)).astype(np.float32)
    return X, rng.poisson(np.logaddexp(0, X[:, :N])).astype(np.uint8)


class Then(RowSource):
    """Rows of another source that call `then` after a number of reads."""

    def __init__(self, source, then, after=20):
        self.source, self.then, self.after = as_source(source), then, after
        self.left_out = self.source.left_out

    def __len__(self):
        return len(self.source)

    def read(self, rows):
        block = self.source.read(rows)
        self.after -= 1
        if not self.after:
            self.then()
        return block

    def signature(self):
        return self.source.signature()


def warnings_of(X, Y, **more):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        PopulationGLM(regularizer_strength=1e-2, max_memory=1e5).fit(X, Y, **more)
    return [str(w.message) for w in caught]


def later(path):
    """Change the modification time of the files at a path, as writing does, without waiting for the clock."""
    for file in [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]:
        found = os.stat(file)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns + 1))


def stored(folder, X):
    """The same rows in each kind of file, with the path that a message must name."""
    np.save(folder / "x.npy", X)
    yield folder / "x.npy", np.load(folder / "x.npy", mmap_mode="r")
    with h5py.File(folder / "x.h5", "w") as file:
        file["x"] = X
    with h5py.File(folder / "x.h5") as file:
        yield folder / "x.h5", file["x"]
    group = zarr.create_group(folder / "x.zarr")
    array = group.create_array("x", shape=X.shape, chunks=(500, D), dtype=X.dtype)
    array[:] = X
    yield folder / "x.zarr" / "x", array


@pytest.mark.thorough
def test_a_file_changed_in_place_is_named_in_one_warning(tmp_path, data):
    X, Y = data
    path = tmp_path / "x.npy"
    np.save(path, X)
    rows = np.load(path, mmap_mode="r")
    (said,) = warnings_of(Then(rows, lambda: later(path)), Y)
    assert said.startswith(f"data changed while the fit read them: {path}. ") and "mixture" in said
    assert not warnings_of(rows, Y)


def test_every_kind_of_file_is_watched(tmp_path, data):
    for path, rows in stored(tmp_path, data[0]):
        watch = Watch([as_source(rows)])
        watch.warn_of_changes()  # no warning
        later(path)
        with pytest.warns(UserWarning, match=f"data changed while the fit read them: {path}. "):
            watch.warn_of_changes()
    for unknown in (data[0], zarr.array(data[0]), None):
        assert not Watch([as_source(unknown)])._before


@pytest.mark.thorough
def test_replaced_file_is_fitted_with_its_original_content(tmp_path, data):
    X, Y = data
    path, other = tmp_path / "x.npy", tmp_path / "other.npy"
    np.save(path, X)
    alone = PopulationGLM(regularizer_strength=1e-2, max_memory=1e5).fit(np.load(path, mmap_mode="r"), Y)
    for after, words in ((1 + X, f"files were replaced during the fit: {path}. "), (X, None), (None, None)):
        rows = np.load(path, mmap_mode="r")

        def replace(after=after):
            if after is None:
                path.unlink()
                return
            np.save(other, after)
            if after is X:
                shutil.copystat(path, other)  # looks like the same file, as after rsync
            other.replace(path)

        source, model = Then(rows, replace), PopulationGLM(regularizer_strength=1e-2, max_memory=1e5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model.fit(source, Y)
        assert source.after < 0 and len(caught) == (words is not None)
        assert words is None or str(caught[0].message).startswith(words)
        np.testing.assert_array_equal(model.coef_, alone.coef_)
        if after is not None:
            np.save(path, X)


def test_combined_sources_report_all_their_files(tmp_path, data):
    X, Y = data
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "n.npy", Y)
    mapped, counts = (np.load(tmp_path / name, mmap_mode="r") for name in ("x.npy", "n.npy"))
    history = design.Convolution(counts, np.ones((3, 1)))
    both = design.hstack([mapped, history, np.ones(T)])
    assert set(both.signature()) == {str(tmp_path / "x.npy"), str(tmp_path / "n.npy")}
    watch = Watch([both])
    later(tmp_path / "n.npy")
    with pytest.warns(UserWarning, match=rf"data changed while the fit read them: {tmp_path / 'n.npy'}\. "):
        watch.warn_of_changes()


@pytest.mark.thorough
def test_counts_offsets_and_exposures_in_files_are_watched(tmp_path, data):
    X, Y = data
    given = {"y": Y, "offset": np.zeros(T), "exposure": np.ones(T)}
    paths = [tmp_path / f"{name}.npy" for name in given]
    for path, array in zip(paths, given.values(), strict=True):
        np.save(path, array)
    y, offset, exposure = (np.load(path, mmap_mode="r") for path in paths)
    (said,) = warnings_of(Then(Table(X), lambda: [later(p) for p in paths]), y, offset=offset, exposure=exposure)
    assert said.startswith(f"data changed while the fit read them: {', '.join(map(str, paths))}. ")


class Table:
    """The two methods and a signature, without the base class."""

    def __init__(self, X, version=1):
        self.X, self.version = X, version

    def __len__(self):
        return len(self.X)

    def read(self, rows):
        return self.X[rows]

    def signature(self):
        return {"the table": self.version}


def test_custom_source_defines_its_own_signature(data):
    table = Table(data[0])
    watch = Watch([as_source(table)])
    watch.warn_of_changes()
    table.version = 2
    with pytest.warns(UserWarning, match=r"data changed while the fit read them: the table\. "):
        watch.warn_of_changes()


# ------------------------------------------------------------------------------------------ lengths


@pytest.mark.parametrize("where", ["X", "y", "signal", "part"])
def test_a_source_that_becomes_shorter_is_refused_with_both_lengths(data, where):
    X, Y = data
    table = Table(Y if where in ("y", "signal") else X)
    source = Then(table, lambda: vars(table).update(X=table.X[:-7]))
    given = {
        "X": (source, Y),
        "y": (Table(X), source),
        "signal": (design.Convolution(source, np.ones((3, 1))), Y),
        "part": (design.hstack([np.ones(T), source]), Y),
    }[where]
    with pytest.raises((ValueError, OSError), match=r"Then had 3000 rows .* and has 2993 now|has 2993 rows now"):
        PopulationGLM(regularizer_strength=1e-2, max_memory=1e5).fit(*given)


@pytest.mark.thorough
def test_source_that_becomes_longer_is_fitted_at_its_original_length(data):
    X, Y = data
    table = Table(X)
    source = Then(table, lambda: vars(table).update(X=np.concatenate([X, X])))
    longer = PopulationGLM(regularizer_strength=1e-2, max_memory=1e5).fit(source, Y)
    alone = PopulationGLM(regularizer_strength=1e-2, max_memory=1e5).fit(Table(X), Y)
    np.testing.assert_array_equal(longer.coef_, alone.coef_)
    assert len(source) == 2 * T
