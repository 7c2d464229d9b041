"""Designs larger than memory: rows that are read equal those stored, and read errors say what failed."""

import gc
import os
from concurrent.futures import ThreadPoolExecutor

import h5py
import nemos as nmo
import numpy as np
import pandas as pd
import pynapple as nap
import pytest
import scipy.sparse
import zarr

from glmfit.design import Convolution, RowSource, as_source, hstack
from glmfit.design.base import runs_of

N, P = 700, 5


@pytest.fixture
def values(rng):
    return rng.normal(size=(N, P)).astype(np.float32)


@pytest.fixture
def path(values, tmp_path):
    np.save(tmp_path / "x.npy", values)
    return tmp_path / "x.npy"


class Table(RowSource):
    """Source as a user writes it, with two methods."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def read(self, rows):
        assert rows.step is None and 0 <= rows.start < rows.stop <= len(self)
        return self.values[rows]


class NotASource:
    """The two methods without the base class."""

    def __init__(self, values):
        self.values, self.columns = values, ["a", "b", "c", "d", "e"]

    def __len__(self):
        return len(self.values)

    def read(self, rows):
        return self.values[rows]


def by_loop(signal, basis, starts=(0,)):
    """Features of a convolution, one entry at a time: (time, source * basis), and NaN where a window is incomplete."""
    (n, n_sources), (lags, n_basis) = signal.shape, basis.shape
    features = np.full((n, n_sources * n_basis), np.nan)
    for t in range(n):
        epoch = max(start for start in starts if start <= t)
        if t - lags < epoch or np.isnan(signal[t - lags : t]).any():
            continue
        for s in range(n_sources):
            for b in range(n_basis):
                features[t, s * n_basis + b] = sum(float(signal[t - 1 - k, s]) * basis[k, b] for k in range(lags))
    return features


# -- custom classes


def test_a_class_with_two_methods_is_a_source(values):
    source = Table(values)
    assert as_source(source) is source
    assert source.shape == (N, P) and source.ndim == 2 and source.chunk_rows == 256
    assert source.left_out is None and source.columns is None and not source.one_column
    assert repr(source) == f"<Table ({N}, {P}) float32>"
    np.testing.assert_array_equal(source.to_array(), values)


@pytest.mark.parametrize(
    "rows", [slice(3, 9), slice(None), slice(-5, None), slice(690, 9999), [0, 1, 2, 7, 8, 699], []]
)
def test_fetch_returns_the_requested_rows(values, rows):
    block = Table(np.asfortranarray(values)).fetch(rows)
    np.testing.assert_array_equal(block, values[np.arange(N)[rows]])
    assert block.flags.c_contiguous and block.shape[1] == P


def test_indices_are_read_in_the_fewest_runs():
    assert runs_of(np.array([0, 1, 2, 7, 8, 699], np.uint16), N) == [(0, 3), (7, 9), (699, 700)]
    assert runs_of(slice(5, 5), N) == []


@pytest.mark.parametrize(
    ("given", "served"),
    [
        ("f8", "f8"),
        (">f8", "f8"),
        ("f4", "f4"),
        ("f2", "f4"),
        ("i8", "f8"),
        ("i4", "f8"),
        ("u1", "f4"),
        ("?", "f4"),
        (">i2", "f4"),
    ],
)
def test_single_precision_serves_what_it_holds_exactly(rng, given, served):
    values = rng.integers(0, 2, (N, P)).astype(given)
    source = Table(values)
    block = source.fetch(slice(2, 50))
    assert source.dtype == block.dtype == np.dtype(served)
    np.testing.assert_array_equal(block, values[2:50].astype(served))


def test_class_may_declare_its_columns_and_dtype(values):
    class Known(Table):
        n_columns = P
        dtype = np.dtype(np.float64)

        def read(self, rows):
            assert rows.start > 0, "the first row is read although everything is known"
            return super().read(rows)

    source = Known(values)
    assert source.shape == (N, P)
    assert source.fetch(slice(1, 3)).dtype == np.float64


@pytest.mark.parametrize(
    ("rows", "error", "words"),
    [
        (slice(0, 9, 2), ValueError, "step 1"),
        (3, ValueError, r"slice\(3, 4\)"),
        ([2, 1], ValueError, "increase"),
        ([1, 1], ValueError, "increase"),
        ([0.0, 1.0], ValueError, "float64"),
        (np.ones(N, bool), ValueError, "flatnonzero"),
        ([[1, 2]], ValueError, r"shape \(1, 2\)"),
        ([-1, 2], IndexError, "rows 0 to 699"),
        ([2, N], IndexError, "from 2 to 700"),
    ],
)
def test_invalid_selections_of_rows_are_refused(values, rows, error, words):
    with pytest.raises(error, match=words):
        Table(values).fetch(rows)


def test_a_read_that_fails_says_which_rows_and_why(values):
    class Lost(Table):
        def read(self, rows):
            if rows.stop > 300:
                raise KeyError("tape 7 is not mounted")
            return super().read(rows)

    source = Lost(values)
    assert len(source.fetch(slice(0, 300))) == 300
    with pytest.raises(OSError, match=r"rows 299 to 300 of Lost could not be read: KeyError: 'tape 7 is not") as caught:
        source.fetch(slice(299, 301))
    assert isinstance(caught.value.__cause__, KeyError)


def test_an_unreadable_source_can_still_be_shown():
    class Never(Table):
        def read(self, rows):
            raise OSError("gone")

    assert repr(Never(np.ones((3, 2)))) == "<Never that cannot be read>"
    with pytest.raises(OSError, match="rows 0 to 0 of Never could not be read: OSError: gone"):
        _ = Never(np.ones((3, 2))).shape


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda block: block[:-1], r"slice\(10, 20\)\) gave shape \(9, 5\).*\(10, 5\)"),
        (lambda block: block[:, 0], r"gave shape \(10,\)"),
        (lambda block: block[:, :3], r"gave shape \(10, 3\).*\(10, 5\)"),
        (lambda block: block.astype(complex), "complex128"),
        (lambda block: block.astype(str), "<U"),
    ],
)
def test_return_value_of_read_is_checked(values, wrong, words):
    class Wrong(Table):
        def read(self, rows):
            block = super().read(rows)
            return wrong(block) if rows.start else block

    with pytest.raises(ValueError, match=words):
        Wrong(values).fetch(slice(10, 20))


def test_a_source_needs_rows():
    with pytest.raises(ValueError, match="Table has no rows"):
        _ = Table(np.ones((0, 3))).shape


# -- arrays that are read in runs, and arrays that are not


def test_arrays_in_memory_are_not_sources(values):
    t = np.arange(float(N))
    in_memory = [values, values[:, 0], values.tolist(), pd.DataFrame(values), pd.Series(values[:, 0])]
    in_memory += [nap.TsdFrame(t=t, d=values), nap.Tsd(t=t, d=values[:, 0]), scipy.sparse.csr_array(values), None]
    assert [as_source(array) for array in in_memory] == [None] * len(in_memory)


def test_any_object_with_rows_to_read_is_a_source(values):
    source = as_source(NotASource(values))
    np.testing.assert_array_equal(source.to_array(), values)
    assert source.columns == ["a", "b", "c", "d", "e"]
    assert repr(source) == f"<ReadableRows ({N}, {P}) float32 of NotASource>"
    with pytest.raises(ValueError, match="has no rows"):
        as_source(NotASource(values[:0]))


VIEWS = {
    "whole": np.s_[:],
    "rows": np.s_[100:200],
    "rows not at a page": np.s_[1:],
    "columns": np.s_[:, 3:5],
    "both": np.s_[333:600, 1:4],
    "every third row": np.s_[2::3],
    "every second column": np.s_[:, ::2],
    "one column": np.s_[:, 4],
    "one row": np.s_[17:18],
    "one entry of a row": np.s_[17:18, 2:3],
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
def test_views_of_a_mapped_file_are_read_from_the_file(values, path, view):
    mapped = np.load(path, mmap_mode="r")[view]
    source = as_source(mapped)
    expected = values[view]
    assert source.one_column == (expected.ndim == 1)
    assert str(path) in repr(source)
    expected = expected.reshape(len(expected), -1)
    np.testing.assert_array_equal(source.to_array(), expected)
    np.testing.assert_array_equal(
        source.fetch([0, len(expected) - 1] if len(expected) > 1 else [0]), expected[[0, -1]][: len(expected)]
    )


@pytest.mark.parametrize("offset", [0, 12, 4096, 70_000])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", ">f8", "<i2", ">i2", "u1"])
def test_mapped_files_may_have_any_offset_and_byte_order(rng, tmp_path, offset, dtype):
    values = rng.integers(0, 100, (N, P)).astype(dtype)
    (tmp_path / "raw").write_bytes(rng.bytes(offset) + values.tobytes())
    mapped = np.memmap(tmp_path / "raw", dtype, mode="r", offset=offset, shape=(N, P))
    block = as_source(mapped[7:]).fetch(slice(100, 300))
    assert block.dtype.isnative
    np.testing.assert_array_equal(block, values[107:307])


def test_a_copy_of_mapped_rows_is_in_memory(path):
    assert as_source(np.load(path, mmap_mode="r")[[2, 0, 5]]) is None


def test_truncated_file_is_an_error_and_does_not_end_the_process(path):
    mapped = np.load(path, mmap_mode="r")
    source = as_source(mapped)
    need = path.stat().st_size
    os.truncate(path, 5000)
    assert source.fetch(slice(0, 200)).shape == (200, P)  # the remaining rows can be read
    with pytest.raises(
        OSError, match=rf"rows 600 to 699 of .*x.npy has 5000 bytes now.* need {need}\. It was cut short"
    ):
        source.fetch(slice(600, 700))


@pytest.mark.parametrize(
    "arrange",
    [lambda a: a.T, lambda a: a[::-1], lambda a: a[:, ::-1], lambda a: np.broadcast_to(a[:1], (9, P), subok=True)],
)
def test_mapped_rows_that_do_not_lie_one_after_the_other_are_refused(path, arrange):
    with pytest.raises(ValueError, match=r"do not lie one after the other.*ascontiguousarray"):
        as_source(arrange(np.load(path, mmap_mode="r")))


def test_a_file_in_fortran_order_is_refused(values, tmp_path):
    np.save(tmp_path / "f.npy", np.asfortranarray(values))
    with pytest.raises(ValueError, match=r"Fortran order.*np.save\(path, np.ascontiguousarray"):
        as_source(np.load(tmp_path / "f.npy", mmap_mode="r"))


def test_maps_with_copy_on_write_are_refused(path):
    with pytest.raises(ValueError, match="copy on write"):
        as_source(np.load(path, mmap_mode="c"))


def test_the_file_is_closed_with_the_source(path):
    source = as_source(np.load(path, mmap_mode="r"))
    file = source._file.number
    assert os.path.samestat(os.fstat(file), path.stat())
    del source
    gc.collect()
    with pytest.raises(OSError):
        os.fstat(file)


def test_mapped_files_are_read_if_the_system_has_no_preadv(values, path, monkeypatch):
    monkeypatch.delattr(os, "preadv")
    np.testing.assert_array_equal(as_source(np.load(path, mmap_mode="r")).fetch([5, 6, 600]), values[[5, 6, 600]])


@pytest.mark.parametrize(("chunk", "run"), [(None, 256), (10, 256), (300, 300)])
def test_datasets_of_hdf5_are_read_by_chunks(values, tmp_path, chunk, run):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("session/x", data=values, chunks=chunk and (chunk, P))
        source = as_source(file["session/x"])
        assert source.chunk_rows == run
        assert "/session/x" in repr(source) and "a.h5" in repr(source)
        np.testing.assert_array_equal(source.to_array(), values)
        counts = as_source(file.create_dataset("y", data=np.arange(N, dtype=np.uint8)))
        assert counts.one_column and counts.shape == (N, 1) and counts.dtype == np.float32
        np.testing.assert_array_equal(counts.fetch([3, 200]), [[3], [200]])
        dataset = file["y"]
    with pytest.raises(OSError, match="rows 3 to 4 of"):
        counts.fetch(slice(3, 5))
    with pytest.raises(ValueError, match="keep the file open"):
        as_source(dataset)


def test_chunks_are_bounded_in_memory(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        assert as_source(file.create_dataset("y", (200_000,), "u1", chunks=(100_000,))).chunk_rows == 65536


def test_zarr_arrays_are_read_by_chunks(values, tmp_path):
    stored = zarr.create_array(store=tmp_path / "a.zarr", data=values, chunks=(300, 2))
    source = as_source(stored)
    assert source.chunk_rows == 300 and "a.zarr" in repr(source)
    np.testing.assert_array_equal(source.to_array(), values)
    assert as_source(zarr.array(np.arange(N))).one_column


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [((4, 2, 3), "f4", "3 dimensions"), ((4, 2), "c8", "complex64"), ((4, 2), "M8[s]", "datetime64")],
)
def test_arrays_without_rows_of_numbers_are_refused(tmp_path, shape, dtype, words):
    with pytest.raises(ValueError, match=words):
        as_source(np.lib.format.open_memmap(tmp_path / "a.npy", "w+", dtype, shape))
    if dtype == "f4":
        with pytest.raises(ValueError, match=words):
            as_source(zarr.zeros(shape))


def test_arrays_without_rows_are_refused():
    with pytest.raises(ValueError, match="has no rows"):
        as_source(zarr.zeros((0, 3)))


# -- convolutions


@pytest.mark.parametrize("n_sources", [1, 3])
@pytest.mark.parametrize(("lags", "n_basis"), [(1, 1), (7, 3), (40, 2)])
def test_a_convolution_equals_the_loop(rng, n_sources, lags, n_basis):
    signal, basis = rng.poisson(0.3, (131, n_sources)).astype(np.uint8), rng.normal(size=(lags, n_basis))
    starts = [0, 5, 60]
    expected = by_loop(signal, basis, starts)
    source = Convolution(signal, basis, epochs=starts[1:])
    assert source.shape == expected.shape and source.dtype == np.float32
    np.testing.assert_allclose(source.to_array(), expected, atol=2e-6)
    np.testing.assert_array_equal(source.left_out, np.isnan(expected).any(axis=1))
    exact = Convolution(signal, basis, epochs=starts, dtype=np.float64)
    assert exact.dtype == np.float64
    np.testing.assert_allclose(exact.to_array(), expected, atol=1e-13)


def test_large_bases_are_convolved_in_smaller_products(rng):
    signal = rng.normal(size=(700, 2))
    source = Convolution(signal, np.eye(600), dtype=np.float64)
    assert 1 <= source._block < 16
    lagged = source.fetch(slice(640, 700)).reshape(60, 2, 600)
    for t in range(60):
        np.testing.assert_array_equal(lagged[t], signal[640 + t - 600 : 640 + t][::-1].T)


@pytest.mark.parametrize("n_sources", [1, 3, 24])
def test_a_row_is_the_same_to_the_last_bit_in_every_run(rng, n_sources):
    source = Convolution(rng.normal(size=(600, n_sources)), rng.normal(size=(100, 8)))
    whole = source.fetch(slice(0, 600))
    for start, stop in [(0, 1), (31, 32), (100, 356), (257, 258), (599, 600), (17, 581)]:
        np.testing.assert_array_equal(source.fetch(slice(start, stop)), whole[start:stop])


def test_features_depend_on_past_bins_only(rng):
    signal, basis = rng.normal(size=(200, 2)), rng.normal(size=(10, 3))
    before = Convolution(signal, basis).fetch(slice(0, 121))
    signal[120:] += 1
    np.testing.assert_array_equal(Convolution(signal, basis).fetch(slice(0, 121)), before)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("make", [nmo.basis.RaisedCosineLogConv, nmo.basis.BSplineConv, nmo.basis.HistoryConv])
def test_features_equal_those_of_nemos(rng, loose_shapes, make):
    basis = make(12) if make is nmo.basis.HistoryConv else make(5, 12)
    before = dict(vars(basis))
    signal = rng.poisson(0.5, (90, 4))
    source = Convolution(signal, basis)
    assert vars(basis) == before
    expected = np.asarray(basis.compute_features(signal))
    features = source.to_array()
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_allclose(features, expected, atol=1e-6)
    np.testing.assert_array_equal(source.left_out, np.isnan(expected).any(axis=1))


# NeMoS passes a jax array to pynapple, which warns that it converts it.
@pytest.mark.thorough
@pytest.mark.filterwarnings("ignore:Converting 'd' to numpy.array:UserWarning")
def test_epochs_equal_those_of_pynapple_and_nemos(rng, loose_shapes):
    support = nap.IntervalSet([0, 20, 41.5, 80], [15, 34, 42.5, 119.2])  # one is short, and some end between bins
    frame = nap.TsdFrame(t=np.arange(120.0), d=rng.normal(size=(120, 3)), columns=[7, 2, 9]).restrict(support)
    basis = nmo.basis.RaisedCosineLinearConv(4, 9)
    source = Convolution(frame, basis, name="unit")
    with pytest.warns(UserWarning, match="shorter than the convolution window"):
        expected = basis.compute_features(frame).values
    np.testing.assert_allclose(source.to_array(), expected, atol=1e-6)
    np.testing.assert_array_equal(source.left_out, np.isnan(expected).any(axis=1))
    assert source.left_out.sum() == 9 + 9 + 1 + 9
    assert source.columns[:5] == ["unit7_0", "unit7_1", "unit7_2", "unit7_3", "unit2_0"]
    one = Convolution(frame[:, 1], basis)
    np.testing.assert_allclose(one.to_array(), source.to_array()[:, 4:8], atol=1e-6)
    assert one.columns[0] == "x0_0"


def test_rows_with_a_missing_value_in_their_window_are_dropped(rng):
    signal, basis = rng.normal(size=(150, 2)), rng.normal(size=(8, 3))
    signal[[40, 90, 149], [0, 1, 0]] = np.nan
    source = Convolution(signal, basis)
    expected = by_loop(signal, basis)
    np.testing.assert_allclose(source.to_array(), expected, atol=2e-6)
    np.testing.assert_array_equal(source.left_out, np.isnan(expected).any(axis=1))
    assert source.left_out.sum() == 8 + 8 + 8


def test_a_signal_may_be_sparse_or_on_disk(rng, tmp_path):
    signal, basis = rng.poisson(0.2, (300, 4)).astype(np.uint8), rng.normal(size=(20, 2))
    np.save(tmp_path / "y.npy", signal)
    expected = Convolution(signal, basis).to_array()
    stored = [scipy.sparse.csr_array(signal), scipy.sparse.csc_matrix(signal), zarr.array(signal), Table(signal)]
    for other in [*stored, np.load(tmp_path / "y.npy", mmap_mode="r"), signal.tolist()]:
        np.testing.assert_array_equal(Convolution(other, basis).to_array(), expected)
    one = Convolution(signal[:, 0], basis).to_array()
    np.testing.assert_allclose(one, expected[:, :2], atol=2e-6)


def test_a_signal_of_small_integers_is_not_copied(rng):
    signal = rng.poisson(0.2, (300, 4)).astype(np.uint8)
    source = Convolution(signal, np.ones((2, 1)))
    signal[100] = 200
    assert source.fetch([101])[0, 0] >= 200


@pytest.mark.parametrize(
    ("signal", "basis", "options", "words"),
    [
        (np.ones((50, 2)), np.ones(5), {}, r"basis\[:, None\]"),
        (np.ones((50, 2)), np.ones((5, 0)), {}, "no columns"),
        (np.ones((50, 2)), np.ones((5, 1)) * 1j, {}, "complex128"),
        (np.ones((50, 2)), np.full((5, 1), np.nan), {}, "kernels must be finite"),
        (np.ones((50, 2, 2)), np.ones((5, 1)), {}, "3 dimensions"),
        (np.ones((0, 2)), np.ones((5, 1)), {}, "no rows"),
        (np.r_[np.ones(9), np.inf, np.ones(9)], np.ones((5, 1)), {}, "infinite at row 9"),
        (np.ones((50, 2)), np.ones((50, 1)), {}, "no row of the signal, 50 rows in 1 epochs, has 50 rows"),
        (np.ones((50, 2)), np.ones((5, 1)), {"epochs": [3, 3]}, "increasing integers"),
        (np.ones((50, 2)), np.ones((5, 1)), {"epochs": [0.5]}, "increasing integers"),
        (np.ones((50, 2)), np.ones((5, 1)), {"epochs": [0, 50]}, "rows 0 to 49"),
        (np.ones((50, 2)), np.ones((5, 1)), {"dtype": np.float16}, "float64"),
        (nap.Tsd(t=np.arange(50.0), d=np.ones(50)), np.ones((5, 1)), {"epochs": [9]}, "time support"),
        (np.ones((50, 2)), nmo.basis.BSplineEval(5), {}, "no window_size"),
        (np.ones((50, 2)), nmo.basis.BSplineConv(5, 9) + nmo.basis.HistoryConv(9), {}, "hstack"),
        (np.ones((50, 2)), nmo.basis.HistoryConv(9, conv_kwargs={"shift": False}), {}, "only causal"),
        (np.ones((50, 2)), nmo.basis.HistoryConv(9, conv_kwargs={"predictor_causality": "acausal"}), {}, "acausal"),
    ],
)
def test_invalid_signals_and_bases_are_refused(signal, basis, options, words):
    with pytest.raises(ValueError, match=words):
        Convolution(signal, basis, **options)


def test_transposed_basis_gives_one_warning():
    with pytest.warns(UserWarning, match=r"20 kernels of 4 lags.*if it is transposed, give basis.T") as caught:
        Convolution(np.ones((50, 2)), np.ones((4, 20)))
    assert len(caught) == 1 and caught[0].filename == __file__
    Convolution(np.ones((50, 2)), np.eye(4))


# -- side by side


@pytest.mark.parametrize("make", [np.asarray, pd.DataFrame, lambda X: Convolution(X, np.ones((3, 1)))])
def test_hstack_refuses_a_single_array(make):
    with pytest.raises(TypeError, match=r"sources is a \w+ of shape \(50, 2\); it must be a list.*\[X\] for one"):
        hstack(make(np.ones((50, 2))))


def test_hstack_joins_the_columns_of_sources(rng, values, path):
    signal = rng.poisson(0.2, (N, 2)).astype(np.uint8)
    history = Convolution(signal, rng.normal(size=(20, 3)), name="n")
    frame = pd.DataFrame(values[:, :2].astype(np.float64), columns=["speed", "turn"])
    frame.iloc[500, 0] = np.nan
    mapped = np.load(path, mmap_mode="r")
    whole = hstack([history, frame, mapped, signal[:, 0]])
    expected = np.column_stack([history.to_array(), frame.to_numpy(), values, signal[:, 0]])
    assert whole.shape == (N, 6 + 2 + P + 1) and whole.dtype == np.float64
    np.testing.assert_array_equal(whole.to_array(), expected)
    np.testing.assert_array_equal(whole.fetch([5, 6, 650]), expected[[5, 6, 650]])
    np.testing.assert_array_equal(whole.left_out, np.isnan(expected).any(axis=1))
    assert np.flatnonzero(whole.left_out).tolist() == [*range(20), 500]
    assert whole.columns == [*history.columns, "speed", "turn", "x8", "x9", "x10", "x11", "x12", "x13"]


def test_hstack_takes_the_longest_run_and_the_wider_type(values):
    class Long(Table):
        chunk_rows = 400

    whole = hstack([Table(values), Long(values)])
    assert whole.chunk_rows == 400 and whole.dtype == np.float32
    assert whole.columns is None and whole.left_out is None
    assert repr(whole) == f"<SideBySide ({N}, {2 * P}) float32 of Table, Long>"


def test_hstack_needs_sources_of_equal_length(values):
    with pytest.raises(ValueError, match="sources have 700, 699 rows"):
        hstack([Table(values), values[1:]])
    with pytest.raises(ValueError, match="sources is empty"):
        hstack([])


def test_hstack_names_the_part_that_cannot_be_read(values, path):
    whole = hstack([Table(values), np.load(path, mmap_mode="r")])
    os.truncate(path, 0)
    with pytest.raises(OSError, match=r"^rows 0 to 4 of MappedRows of .*x\.npy could not be read"):
        whole.fetch(slice(0, 5))


# -- threads


def test_threads_read_what_one_thread_reads(rng, values, path, tmp_path):
    signal = rng.poisson(0.2, (N, 3)).astype(np.uint8)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        stored = file.create_dataset("x", data=values, chunks=(64, P))
        source = hstack(
            [
                Convolution(signal, rng.normal(size=(20, 3))),
                np.load(path, mmap_mode="r"),
                stored,
                zarr.create_array(store=tmp_path / "a.zarr", data=values, chunks=(64, P)),
            ]
        )
        expected = source.to_array()
        starts = rng.integers(0, N - 100, 64).tolist()
        with ThreadPoolExecutor(4) as pool:
            blocks = list(pool.map(lambda start: source.fetch(slice(start, start + 100)), starts))
    assert np.isfinite(expected[20:]).all()
    for start, block in zip(starts, blocks):
        np.testing.assert_array_equal(block, expected[start : start + 100])


def test_masked_entries_are_missing():
    values = np.ma.masked_array(np.ones((200, 2)), mask=np.zeros((200, 2), bool))
    values[50:53, 1] = np.ma.masked
    values.data[50:53] = 999
    side = hstack([values, np.zeros((200, 1))])
    np.testing.assert_array_equal(np.flatnonzero(side.left_out), [50, 51, 52])
    made = Convolution(values, np.ones((4, 1)))
    assert np.nanmax(made.to_array()) == 4.0
    np.testing.assert_array_equal(np.flatnonzero(made.left_out), [0, 1, 2, 3, *range(51, 57)])


def test_parts_without_a_name_are_numbered():
    counts = np.zeros((100, 2), np.uint8)
    both = hstack([Convolution(counts, np.ones((3, 1))), Convolution(counts, np.ones((5, 1)))])
    assert both.columns == ["part0_x0_0", "part0_x1_0", "part1_x0_0", "part1_x1_0"]


def test_spike_times_are_refused():
    with pytest.raises(TypeError, match=r"is a TsGroup, spike times; count them in bins first"):
        Convolution(nap.TsGroup({0: nap.Ts(np.arange(5.0))}), np.ones((3, 1)))
