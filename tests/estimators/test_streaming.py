"""Recordings read from files or computed on demand: the same fits, recovery after a crash, clear errors."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
import zarr

from glmfit import PopulationGLM, design, threads
from glmfit.design import RowSource
from glmfit.engine import tiles
from glmfit.engine.checkpoint import Checkpoint
from glmfit.engine.host import HostRows
from glmfit.files import load_npz, save_npz

T, D, N, SMALL = 6000, 5, 4, 1e5  # SMALL: fewer bytes than such a recording needs
ROOT = Path(__file__).resolve().parents[2]


def make(link="softplus", seed=0):
    rng = np.random.default_rng(seed)
    X = (rng.normal(size=(T, D)) @ rng.normal(size=(D, D)) * 0.4 + 1).astype(np.float32)
    eta = X @ (0.3 * rng.normal(size=(D, N))) - 1.5
    Y = rng.poisson(np.exp(eta) if link == "exp" else np.logaddexp(0, eta)).clip(max=200).astype(np.uint8)
    return X, Y


class Counted(RowSource):
    """An array that counts its reads and applies a function after a given number of them."""

    def __init__(self, X, then=None, after=0):
        self.X, self.then, self.after, self.reads, self.runs = X, then, after, 0, []

    def __len__(self):
        return len(self.X)

    def read(self, rows):
        self.reads += 1
        self.runs.append((rows.start, rows.stop))
        x = self.X[rows]
        return self.then(rows, x.copy()) if self.then is not None and self.reads > self.after else x


def near(one, other):
    """Check that two reports prove every neuron and that their objectives differ by no more than the proofs allow."""
    for report in (one, other):
        assert report.converged.all() and report.gap_is_bound.all()
    assert np.all(np.abs(one.objective - other.objective) <= one.gap + other.gap + 1e-12)


# ------------------------------------------------------------------------------------------ the same fits


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording():
    sizes = []
    for times in (1, 8):
        X, Y = (np.tile(a, (times, 1)) for a in make())
        model = PopulationGLM(regularizer_strength=1e-2, max_memory=5 * SMALL).fit(Counted(X), Y)
        sizes.append(model.report_.memory_bytes)
    assert 0 < sizes[0] == sizes[1] < X.nbytes
    assert "at a time" in str(model.report_)


def test_a_step_reads_the_rows_once_and_a_fit_a_few_times():
    X, Y = make()
    source = Counted(X)
    model = PopulationGLM(regularizer_strength=1e-2, max_memory=8e5).fit(source, Y)
    rows = sum(stop - start for start, stop in source.runs)
    # A sample, moments, the start, an evaluation for the proof, and a product or two.
    assert rows / len(X) <= 6 + model.n_iter_ and model.n_iter_ > 3
    assert model.report_.converged.all() and model.report_.memory_bytes is not None


def sources(folder, X):
    """The same rows from every kind of source."""
    np.save(folder / "x.npy", X)
    with h5py.File(folder / "x.h5", "w") as file:
        file.create_dataset("x", data=X, chunks=(300, D))
    store = zarr.create_array(folder / "x.zarr", shape=X.shape, chunks=(512, D), dtype=X.dtype)
    store[:] = X
    yield np.load(folder / "x.npy", mmap_mode="r")
    with h5py.File(folder / "x.h5") as file:
        yield file["x"]
    yield store
    yield Counted(X)


@pytest.mark.thorough
def test_files_sources_and_arrays_give_the_same_fit(tmp_path):
    X, Y = make()
    model = PopulationGLM(regularizer_strength=1e-2).fit(X, Y)
    for source in sources(tmp_path, X):
        loaded = PopulationGLM(regularizer_strength=1e-2).fit(source, Y)
        np.testing.assert_array_equal(loaded.coef_, model.coef_)  # it fits in memory
        read = PopulationGLM(regularizer_strength=1e-2, max_memory=SMALL).fit(source, Y)
        near(read.report_, model.report_)
        assert read.report_.memory_bytes > 0 and model.report_.memory_bytes is None
        np.testing.assert_allclose(read.predict(source), read.predict(X), rtol=1e-12)
        for score_type in ("D2", "log-likelihood"):
            assert read.score(source, Y, score_type=score_type) == pytest.approx(
                read.score(X, Y, score_type=score_type), rel=1e-12
            )


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    "link, regularizer",
    [("softplus", "Lasso"), ("exp", "Ridge"), pytest.param("softplus", "UnRegularized", marks=pytest.mark.slow)],
)
def test_weights_exposure_offsets_and_counts_from_files_are_fitted_as_in_memory(tmp_path, link, regularizer):
    X, Y = make(link)
    rng = np.random.default_rng(3)
    more = {"sample_weight": rng.uniform(0, 2, T) * (rng.random(T) < 0.8), "exposure": rng.uniform(0.5, 1, T),
            "offset": 0.1 * rng.normal(size=T)}  # fmt: skip
    X[more["sample_weight"] == 0] = np.nan  # rows that do not count may hold anything
    np.save(tmp_path / "y.npy", Y)
    strength = None if regularizer == "UnRegularized" else 1e-3
    given = {"inverse_link_function": link, "regularizer": regularizer, "regularizer_strength": strength, "tol": 1e-7}
    whole = PopulationGLM(solver_name="SAGA", **given).fit(X, Y, **more)
    read = PopulationGLM(max_memory=SMALL, **given).fit(Counted(X), np.load(tmp_path / "y.npy", mmap_mode="r"), **more)
    near(read.report_, whole.report_)
    np.testing.assert_allclose(read.report_.pseudo_r2, whole.report_.pseudo_r2, rtol=1e-3)
    usable = np.nan_to_num(X)
    assert read.score(Counted(X), Y, **more) == pytest.approx(read.score(usable, Y, **more), rel=1e-12)


@pytest.mark.slow
def test_a_history_computed_on_demand_gives_the_same_fit_as_its_matrix(tmp_path):
    rng = np.random.default_rng(4)
    spikes = rng.poisson(0.2, size=(T, 3)).astype(np.uint8)
    basis = np.exp(-np.arange(12)[:, None] / np.array([1.0, 4.0]))
    X = design.Convolution(spikes, basis)
    matrix = X.to_array()
    drive = np.nan_to_num(matrix) @ (0.3 * rng.normal(size=(6, 2)))
    Y = rng.poisson(np.logaddexp(0, drive - 1))
    read = PopulationGLM(regularizer_strength=1e-3, max_memory=SMALL).fit(X, Y)
    whole = PopulationGLM(regularizer_strength=1e-3).fit(matrix, Y)
    assert read.report_.n_dropped == whole.report_.n_dropped == 12
    assert list(read.feature_names_in_) == X.columns
    # The mean is over all rows or over those that count: the same, except for dropped rows.
    assert np.all(np.abs(read.report_.objective - whole.report_.objective) <= read.report_.gap + whole.report_.gap)


@pytest.mark.slow
def test_silent_neurons_and_one_neuron():
    X, Y = make()
    Y[:, 1] = 0
    model = PopulationGLM(regularizer_strength=1e-2, max_memory=SMALL).fit(Counted(X), Y)
    assert model.report_.status[1] == 3 or model.predict(X)[:, 1].max() == 0
    one = PopulationGLM(regularizer_strength=1e-2, max_memory=SMALL).fit(Counted(X), Y[:, 0])
    assert one.coef_.shape == (D,)
    np.testing.assert_allclose(one.coef_, model.coef_[:, 0], atol=2e-3)


# ------------------------------------------------------------------------------------------ checkpoints


@pytest.mark.thorough
@pytest.mark.parametrize(
    "how, regularizer",
    [
        ("in memory", "Ridge"),
        ("streamed", "Lasso"),
        ("SAGA", "Ridge"),
        pytest.param("in memory", "Lasso", marks=pytest.mark.thorough),
        pytest.param("streamed", "Ridge", marks=pytest.mark.thorough),
        pytest.param("SAGA", "Lasso", marks=pytest.mark.thorough),
    ],
)
def test_a_fit_resumes_from_its_checkpoint(tmp_path, monkeypatch, how, regularizer):
    X, Y = make()
    given = {"regularizer": regularizer, "regularizer_strength": 1e-3, "tol": 1e-9}
    saga = {"solver_name": "SAGA", "solver_kwargs": {"check_every": 1, "warmup": 0}}
    given |= {"in memory": {}, "streamed": {"max_memory": SMALL}, "SAGA": saga}[how]
    give = Counted if how == "streamed" else np.asarray
    file, saves, save = tmp_path / "fit.npz", [], Checkpoint.save

    def crash(self, arrays):
        save(self, arrays)
        saves.append(arrays["run/epochs"].max())
        if len(saves) == 3:
            raise MemoryError("crash")

    monkeypatch.setattr("glmfit.engine.checkpoint._SHARE", 1e9)  # after every step
    alone = PopulationGLM(**given).fit(give(X), Y)
    monkeypatch.setattr(Checkpoint, "save", crash)
    with pytest.raises(MemoryError, match="crash"):
        PopulationGLM(**given).fit(give(X), Y, checkpoint=file)
    again = PopulationGLM(**given).fit(give(X), Y, checkpoint=file)
    near(again.report_, alone.report_)
    assert len(saves) > 3 and np.all(np.diff(saves) >= 0) and saves[2] >= 2
    assert again.n_iter_ > saves[2]
    source = Counted(X)
    ended = PopulationGLM(**given).fit(
        source if how == "streamed" else X, Y, checkpoint=file
    )  # this fit has already ended
    for name in ("gap", "objective", "epochs", "status"):
        np.testing.assert_array_equal(getattr(ended.report_, name), getattr(again.report_, name))
    np.testing.assert_array_equal(ended.coef_, again.coef_)
    read = sum(stop - start for start, stop in source.runs)
    assert read < 3 * len(X)  # for the digest, the report, and the scales of features in some rows


SCRIPT = """
import sys, time
import numpy as np
sys.path.insert(0, {root!r})
from glmfit import PopulationGLM
from glmfit.design import RowSource

class Slow(RowSource):
    def __init__(self, X): self.X = X
    def __len__(self): return len(self.X)
    def read(self, rows):
        time.sleep({pause})
        return self.X[rows]

X, Y = np.load("x.npy"), np.load("y.npy")
model = PopulationGLM(regularizer_strength=1e-3, tol=1e-8, max_memory=1e5).fit(Slow(X), Y, checkpoint={checkpoint})
np.savez({out!r}, objective=model.report_.objective, gap=model.report_.gap, bound=model.report_.gap_is_bound)
"""


@pytest.mark.thorough
def test_a_killed_fit_resumes_and_reaches_the_same_proofs(tmp_path):
    X, Y = make()
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)

    def start(out, checkpoint, pause=0.0):
        text = SCRIPT.format(root=str(ROOT), out=out, checkpoint=repr(checkpoint), pause=pause)
        return subprocess.Popen([sys.executable, "-c", textwrap.dedent(text)], cwd=tmp_path)

    undisturbed = start("alone.npz", None)
    victim, file = start("never.npz", "fit.npz", pause=0.01), tmp_path / "fit.npz"
    deadline = time.monotonic() + 120
    while victim.poll() is None and not file.exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    with np.load(file) as saved:
        assert saved["run/coef"].any()
    assert not (tmp_path / "never.npz").exists()
    assert start("again.npz", "fit.npz").wait() == 0
    assert undisturbed.wait() == 0
    with np.load(tmp_path / "alone.npz") as a, np.load(tmp_path / "again.npz") as b:
        assert a["bound"].all() and b["bound"].all()
        assert np.all(np.abs(a["objective"] - b["objective"]) <= a["gap"] + b["gap"])


@pytest.mark.slow
def test_a_checkpoint_of_another_fit_raises_an_error_that_names_the_difference(tmp_path):
    X, Y = make()
    file = tmp_path / "fit.npz"
    PopulationGLM(regularizer_strength=1e-2, solver_name="SAGA").fit(X, Y, checkpoint=file)
    before = file.read_bytes()
    for given, data, different in [
        ({"regularizer_strength": 1e-1}, (X, Y), "strength"),
        ({"random_state": 1}, (X, Y), "seed"),
        ({"inverse_link_function": "exp"}, (X, Y), "link"),
        ({}, (X[:, :4], Y), "features"),
        ({}, (X[:-1], Y[:-1]), "rows"),
        ({}, (X + 1, Y), "features' values"),
        ({}, (X, np.roll(Y, 7, axis=0)), "counts"),
        ({"tol": 1e-3}, (X, Y), "tol"),
        ({"solver_kwargs": {"check_every": 2}}, (X, Y), "solver"),
    ]:
        with pytest.raises(ValueError, match=f"belongs to another fit; it differs in .*{different}"):
            PopulationGLM(**{"regularizer_strength": 1e-2, "solver_name": "SAGA"} | given).fit(*data, checkpoint=file)
    assert file.read_bytes() == before
    saved = PopulationGLM(regularizer_strength=1e-2).fit(X[:500], Y[:500]).save(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="is a file of a PopulationGLM"):
        PopulationGLM(solver_name="SAGA").fit(X, Y, checkpoint=saved)
    with pytest.raises(FileNotFoundError, match=r"the folder .* does not exist"):
        PopulationGLM(solver_name="SAGA").fit(X, Y, checkpoint=tmp_path / "no" / "fit.npz")


# ------------------------------------------------------------------------------------------ bad input


@pytest.mark.slow
def test_truncating_a_file_while_it_is_read_raises_an_error_and_loses_nothing(tmp_path):
    X, Y = make()
    path, checkpoint = tmp_path / "x.npy", tmp_path / "fit.npz"
    np.save(path, X)
    whole = path.read_bytes()
    mapped = np.load(path, mmap_mode="r")
    source = design.as_source(mapped)

    def cut(rows, x):
        if checkpoint.exists() and path.stat().st_size == len(whole):
            os.truncate(path, len(whole) // 2)
        return source.read(rows)

    model = PopulationGLM(regularizer_strength=1e-3, tol=1e-8, max_memory=SMALL)
    with pytest.raises(OSError, match=r"rows \d+ to \d+ .* could not be read"):
        model.fit(Counted(X, cut), Y, checkpoint=checkpoint)
    assert not hasattr(model, "coef_") and checkpoint.exists()
    path.write_bytes(whole)
    again = model.fit(Counted(X), Y, checkpoint=checkpoint)
    alone = PopulationGLM(regularizer_strength=1e-3, tol=1e-8, max_memory=SMALL).fit(Counted(X), Y)
    near(again.report_, alone.report_)


@pytest.mark.thorough
def test_nan_in_a_block_raises_an_error_that_names_its_row():
    X, Y = make()

    def spoil(rows, x):
        if rows.start <= 4321 < rows.stop:
            x[4321 - rows.start, 2] = np.nan
        return x

    with pytest.raises(ValueError, match="X is nan at row 4321, feature 2"):
        PopulationGLM(max_memory=SMALL).fit(Counted(X, spoil), Y)
    with pytest.raises(ValueError, match="X is nan at row 4321, feature 2"):  # in the middle of the fit
        PopulationGLM(max_memory=SMALL).fit(Counted(X, spoil, after=100), Y)
    weight = np.ones(T)
    weight[4321] = 0
    assert (
        PopulationGLM(max_memory=SMALL, regularizer_strength=1e-2)
        .fit(Counted(X, spoil), Y, weight)
        .report_.converged.all()
    )


@pytest.mark.parametrize(
    "change, message",
    [
        ({"Y": (7, 1, np.inf)}, r"1 infinite values \(first at row 7, neuron 1\)"),
        ({"Y": (5000, 2, -1.0)}, "first at row 5000, neuron 2, value -1"),
        ({"exposure": np.zeros(T)}, "has spikes but exposure 0"),
        ({"length": T - 1}, "X has 6000 rows but y has 5999"),
        ({"offset": np.zeros(3)}, r"offset has shape \(3,\)"),
        ({"sample_weight": np.eye(1, T)[0]}, "X has 1 rows that count"),
        ({"solver_name": "Newton"}, 'need "auto", "ConjugateGradients".*, or a max_memory large enough'),
        ({"solver_name": "SAGA"}, r"solver_name is 'SAGA', but rows that are read .*\(X is <Counted \(6000, 5\)"),
        ({"max_memory": -1}, "max_memory is -1"),
    ],
)
def test_errors_say_what_was_given(change, message):
    X, Y = make()
    Y = Y.astype(float)
    if "Y" in change:
        row, neuron, value = change.pop("Y")
        Y[row, neuron] = value
    Y = Y[: change.pop("length", T)]
    names = ("solver_name", "solver_kwargs", "max_memory")
    model = PopulationGLM(**{"max_memory": SMALL} | {k: v for k, v in change.items() if k in names})
    with pytest.raises(ValueError, match=message):
        model.fit(Counted(X), Y, **{k: v for k, v in change.items() if k not in names})
    assert not hasattr(model, "n_features_in_")


def test_a_different_number_of_features_is_refused():
    X, Y = make()
    model = PopulationGLM(regularizer_strength=1e-2).fit(X, Y)
    with pytest.raises(ValueError, match="X has 4 features"):
        model.predict(Counted(X[:, :4]))


# ------------------------------------------------------------------------------------------ rows that do not count


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("counted", [pytest.param(1 / 100, marks=pytest.mark.slow), 1 / 5])
def test_weight_on_only_a_part_of_the_recording(counted):
    X, Y = make()
    weight = (np.arange(T) < counted * T).astype(float)
    given = {"regularizer_strength": 1e-2, "tol": 1e-7}
    read = PopulationGLM(max_memory=SMALL, **given).fit(Counted(X), Y, weight)
    whole = PopulationGLM(**given).fit(X, Y, weight)
    near(read.report_, whole.report_)
    np.testing.assert_allclose(read.report_.spike_count, weight @ Y, rtol=1e-6)
    assert read.report_.n_rows == whole.report_.n_rows == weight.sum()


@pytest.mark.slow
def test_a_checkpoint_distinguishes_fits_by_every_row_and_by_groups(tmp_path):
    X, Y = make()
    given = {"regularizer": "GroupLasso", "regularizer_strength": 1e-2}
    PopulationGLM(groups=[0, 0, 0, 1, 1], **given).fit(X, Y, checkpoint=tmp_path / "g")
    with pytest.raises(ValueError, match="differs in groups"):
        PopulationGLM(groups=[0, 1, 1, 0, 1], **given).fit(X, Y, checkpoint=tmp_path / "g")
    X[4567, 3] += 1e-3
    with pytest.raises(ValueError, match="differs in features' values"):
        PopulationGLM(groups=[0, 0, 0, 1, 1], **given).fit(X, Y, checkpoint=tmp_path / "g")


@pytest.mark.slow
def test_an_unwritable_checkpoint_raises_a_warning_and_an_unreadable_one_an_error(tmp_path, monkeypatch):
    X, Y = make()
    file = tmp_path / "fit.npz"

    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("glmfit.engine.checkpoint.save_npz", full)
        with pytest.warns(UserWarning, match=r"fit.npz could not be written, and the fit continues .*No space left"):
            model = PopulationGLM(solver_name="SAGA", regularizer_strength=1e-2).fit(X, Y, checkpoint=file)
    assert model.report_.converged.all()
    file.write_bytes(b"not a file of ours")
    with pytest.raises(ValueError, match=r"fit.npz cannot be read .*delete it to start over"):
        PopulationGLM(solver_name="SAGA").fit(X, Y, checkpoint=file)
    assert file.read_bytes() == b"not a file of ours"
    with pytest.raises(TypeError, match="checkpoint is 3"):
        PopulationGLM(solver_name="SAGA").fit(X, Y, checkpoint=3)


@pytest.mark.thorough
@pytest.mark.parametrize("damage", ["missing", "shape", "type", "more", "facts", "arrays"])
def test_a_damaged_checkpoint_is_refused_and_left_alone(tmp_path, damage):
    X, Y = make()
    file, model = tmp_path / "fit.npz", PopulationGLM(solver_name="SAGA", regularizer_strength=1e-2)
    model.fit(X, Y, checkpoint=file)
    header, arrays = load_npz(file)
    name = next(name for name, array in arrays.items() if name == "run/coef")
    if damage == "missing":
        del arrays[name]
    elif damage == "shape":
        arrays[name] = arrays[name][:-1]
    elif damage == "type":
        arrays[name] = arrays[name].astype(int)
    elif damage == "more":
        arrays["other"] = arrays[name]
    else:
        header[damage] = None
    save_npz(file, header, arrays)
    before = file.read_bytes()
    with pytest.raises(ValueError, match=r"fit\.npz is damaged \(.*delete it to start over") as caught:
        model.fit(X, Y, checkpoint=file)
    assert file.read_bytes() == before
    assert damage in ("facts", "arrays", "more") or name in str(caught.value)


def test_only_old_files_of_a_killed_fit_are_removed(tmp_path):
    names = (".fit[1].npz.0.part", ".fit[1].npz.1.part", ".fit1.npz.2.part")
    for name in names:
        (tmp_path / name).write_bytes(b"")
    for name in names[1:]:
        os.utime(tmp_path / name, (time.time() - 4000,) * 2)
    Checkpoint(tmp_path / "fit[1].npz", {})
    assert sorted(path.name for path in tmp_path.iterdir()) == [".fit1.npz.2.part", ".fit[1].npz.0.part"]


def test_small_mapped_files_are_loaded_in_any_layout(tmp_path):
    X, Y = make()
    np.save(tmp_path / "f.npy", np.asfortranarray(X))
    mapped = np.load(tmp_path / "f.npy", mmap_mode="r")
    model = PopulationGLM(regularizer_strength=1e-2)
    np.testing.assert_array_equal(model.fit(mapped, Y).coef_, PopulationGLM(regularizer_strength=1e-2).fit(X, Y).coef_)
    with pytest.raises(ValueError, match="ascontiguousarray"):
        PopulationGLM(max_memory=SMALL).fit(mapped, Y)


@pytest.mark.thorough
@pytest.mark.parametrize("observation_model", ["Poisson", "NegativeBinomial", "Bernoulli", "Gaussian", "Gamma"])
def test_masks_and_other_responses_match_fits_in_memory(observation_model):
    X, Y = make()
    rng = np.random.default_rng(0)
    Y = {"Bernoulli": lambda: (Y > 0) * 1.0, "Gaussian": lambda: Y + rng.normal(size=Y.shape) - 3,
         "Gamma": lambda: Y + rng.gamma(2, 0.3, Y.shape)}.get(observation_model, lambda: Y.astype(float))()  # fmt: skip
    Y[rng.random(Y.shape) < 0.1] = np.nan
    Y[: T // 2, 1] = np.nan
    weights = rng.uniform(0.5, 2, size=Y.shape)
    given = {"dispersion": 0.7} if observation_model == "NegativeBinomial" else {}
    given |= {"observation_model": observation_model, "regularizer_strength": 1e-2, "tol": 1e-7}
    streamed = PopulationGLM(max_memory=SMALL, **given).fit(Counted(X), Y, weights)
    loaded = PopulationGLM(**given).fit(X, Y, weights)
    assert streamed.report_.memory_bytes is not None and streamed.report_.converged.all()
    slack = streamed.report_.gap + loaded.report_.gap + 1e-12
    assert np.all(np.abs(streamed.report_.objective - loaded.report_.objective) <= slack)
    np.testing.assert_allclose(streamed.coef_, loaded.coef_, atol=2e-3)
    empty = np.isnan(Y).all(axis=1)
    assert streamed.report_.n_masked.tolist() == np.isnan(Y[~empty]).sum(axis=0).tolist()
    assert streamed.report_.n_dropped == loaded.report_.n_dropped == empty.sum() > 0
    np.testing.assert_allclose(streamed.report_.pseudo_r2, loaded.report_.pseudo_r2, atol=1e-5)
    np.testing.assert_allclose(streamed.report_.spike_count, np.nansum(Y, axis=0))
    of = {"score_type": "log-likelihood", "per_neuron": True}
    np.testing.assert_allclose(streamed.score(Counted(X), Y, **of), streamed.score(X, Y, **of), rtol=1e-12)
    np.testing.assert_allclose(streamed.report_.dispersion.mean(), loaded.report_.dispersion.mean(), rtol=0.3)


def test_exposures_per_neuron_rare_neurons_and_one_neuron_are_streamed(tmp_path):
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(400, 2)), rng.poisson(1.0, size=(400, 3)).astype(float)
    np.save(tmp_path / "X.npy", X), np.save(tmp_path / "Y.npy", Y)
    mapped = [np.load(tmp_path / name, mmap_mode="r") for name in ("X.npy", "Y.npy")]
    exposure = rng.uniform(0.5, 1, Y.shape)
    loaded = PopulationGLM("exp").fit(X, Y, exposure=exposure)
    for counts in (Y, mapped[1]):
        streamed = PopulationGLM("exp", max_memory=10).fit(mapped[0], counts, exposure=exposure)
        np.testing.assert_allclose(streamed.coef_, loaded.coef_, atol=2e-3)
    one = PopulationGLM("exp", "Ridge", 1e-3, tol=1e-11, max_memory=10).fit(mapped[0], mapped[1][:, :1])
    np.testing.assert_allclose(one.coef_, PopulationGLM("exp", "Ridge", 1e-3).fit(X, Y[:, :1]).coef_, atol=1e-3)
    Y[5:, 1], Y[:5, 1] = np.nan, 1.0  # observed in five bins
    np.save(tmp_path / "Y.npy", Y)
    rare = PopulationGLM("exp", "Ridge", 1e-2, max_memory=10).fit(mapped[0], np.load(tmp_path / "Y.npy", mmap_mode="r"))
    assert rare.report_.converged.all()
    np.testing.assert_allclose(rare.coef_, PopulationGLM("exp", "Ridge", 1e-2).fit(X, Y).coef_, atol=5e-3)


@pytest.mark.thorough
def test_the_rows_that_guide_a_streamed_fit_may_span_several_tiles(tmp_path, monkeypatch):
    monkeypatch.setattr(threads, "n_cores", lambda: 2)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60_000, 4)).astype(np.float32)
    Y = rng.poisson(np.logaddexp(0, X @ rng.normal(size=(4, 40)) * 0.3 - 1))
    np.save(tmp_path / "x.npy", X)
    seen, along = [], HostRows.along
    monkeypatch.setattr(HostRows, "along", lambda rows, p: (seen.append(rows.n_rows), along(rows, p))[1])
    model = PopulationGLM(regularizer_strength=1e-3, max_memory=6e7)
    model.fit(np.load(tmp_path / "x.npy", mmap_mode="r"), Y)
    assert model.report_.converged.all()
    assert max(seen) > tiles.rows_of_a_tile(40) and len(X) not in seen


def test_dropped_rows_are_those_without_features_or_offset(tmp_path):
    X, Y = make()
    Y, offset = Y.astype(float), np.zeros(T)
    Y[:30, 0], offset[-7:] = np.nan, np.nan
    streamed = PopulationGLM(max_memory=SMALL).fit(Counted(X), Y, offset=offset).report_
    loaded = PopulationGLM().fit(X, Y, offset=offset).report_
    assert streamed.n_dropped == loaded.n_dropped == 7
    np.testing.assert_array_equal(streamed.n_masked, loaded.n_masked)
