"""Results are whole or absent, whatever happens to the process, the disk or the folder."""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import zipfile

import numpy as np
import pytest
from batch_runs import ROOT, Batch, draw, header_of

import glmfit
from glmfit.batch import BusyFolder, ManifestError, collect, load_result, read_manifest, run, status
from glmfit.batch import plan as _plan
from glmfit.batch import sources as _sources
from glmfit.batch.__main__ import main
from glmfit.batch.at_work import RunLock
from glmfit.batch.models import make_estimator
from glmfit.batch.plan import plan
from glmfit.files import load_npz


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A batch of six sessions and two models, run in this process; one session fails."""
    models = [
        {"name": "ridge", "estimator": "PopulationGLM", "parameters": {"regularizer_strength": 0.01}},
        {"name": "exp", "estimator": "PopulationGLM", "parameters": {"inverse_link_function": "exp"}},
    ]
    arguments = [{"seed": k, "n_neurons": 1 + k % 3} for k in range(5)] + [{"seed": 5, "fail": True}]
    batch = Batch(tmp_path_factory.mktemp("finished"), arguments, models)
    batch.summary = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    return batch


def test_failed_session_does_not_affect_the_others(finished):
    summary = finished.summary
    assert (summary.n_tasks, summary.n_done, len(summary.failed), summary.n_missing) == (12, 10, 2, 0)
    assert not summary.ok and "the tracker of session 5 was off" in str(summary)
    failures = [json.loads(path.read_text()) for path in (finished.out / "failed").iterdir()]
    assert {f["model"] for f in failures} == {"ridge", "exp"}
    assert all("in load" in f["traceback"] and "RuntimeError" in f["traceback"] for f in failures)


def test_a_result_is_a_saved_model_with_its_provenance(finished):
    for path in finished.results():
        facts, model = header_of(path), load_result(path)
        X, y = draw(facts["spec"]["source"]["arguments"])
        expected = make_estimator(facts["spec"]).fit(X, y)
        np.testing.assert_array_equal(model.coef_, expected.coef_)
        np.testing.assert_array_equal(model.report_.gap, expected.report_.gap)
        assert model.report_.gap_is_bound.all() and type(model).load(path).report_.converged.all()
        assert facts["manifest"] == read_manifest(finished.manifest).digest and facts["versions"]["jax"]
        assert facts["key"] == path.stem and facts["host"] and facts["seconds"] > 0


def test_a_result_is_found_by_the_names_in_the_manifest(finished):
    for path in finished.results():
        facts = header_of(path)
        found = load_result(finished.out, session=facts["session"], model=facts["model"])
        np.testing.assert_array_equal(found.coef_, load_result(path).coef_)
    session = facts["session"]
    with pytest.raises(ValueError, match=r'has no model "ridgy" for the session .*; did you mean "ridge"\?'):
        load_result(finished.out, session=session, model="ridgy")
    with pytest.raises(ValueError, match=r"has no session \"sim\""):
        load_result(finished.out, session="sim")
    with pytest.raises(ValueError, match=r'has 2 such fits, of session and model .*"ridge".*: name both'):
        load_result(finished.out, session=session)
    with pytest.raises(ValueError, match="12 such fits"):
        load_result(str(finished.out))
    failed = json.loads(next((finished.out / "failed").iterdir()).read_text())
    with pytest.raises(FileNotFoundError, match="it failed"):
        load_result(finished.out, session=failed["session"], model="exp")
    with pytest.raises(ValueError, match="is not its output folder"):
        load_result(path, session=session)


def test_finished_fits_are_not_repeated_and_failures_wait_for_retry(finished):
    before = {path: path.stat().st_mtime_ns for path in finished.results()}
    again = run(finished.manifest, out=finished.out, scheduler="serial", progress=False)
    assert (again.n_found, again.n_done, len(again.failed)) == (10, 0, 2)
    retried = run(finished.manifest, out=finished.out, scheduler="serial", progress=False, retry=True)
    assert (retried.n_found, retried.n_done, len(retried.failed)) == (10, 0, 2)
    assert {path: path.stat().st_mtime_ns for path in finished.results()} == before


def test_rerun_of_a_finished_batch_imports_no_estimator(finished):
    command = ["run", str(finished.manifest), "--out", str(finished.out), "--quiet"]
    code = f"import sys\nfrom glmfit.batch.__main__ import main\nprint(main({command}), 'jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert "10 of 12 fits done (10 of them before)" in done.stdout
    assert done.stdout.splitlines()[-1] == "1 False"


@pytest.mark.parametrize("how", ["another manifest", "another version", "no plan", "a damaged plan"])
def test_only_manifests_checked_by_this_version_skip_the_check(make_batch, how):
    batch = make_batch([{"seed": 0}])
    run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    content = json.loads(batch.manifest.read_text())
    content["model"][0]["parameters"]["tol"] = -1.0
    batch.manifest.write_text(json.dumps(content))
    plan = batch.out / "tasks.json"
    listed = json.loads(plan.read_text()) | {"manifest": hashlib.sha256(batch.manifest.read_bytes()).hexdigest()}
    if how == "another version":
        plan.write_text(json.dumps(listed | {"version": "0.0.1"}))
    elif how == "no plan":
        plan.unlink()
    elif how == "a damaged plan":
        plan.write_text("[1, 2")
    with pytest.raises(ManifestError, match="tol"):
        run(batch.manifest, out=batch.out, scheduler="serial", progress=False)


def test_unknown_scheduler_is_refused_before_anything_is_written(make_batch):
    batch = make_batch([{"seed": 0}], [{"name": "m", "estimator": "PopulationGLM"}])
    with pytest.raises(ValueError, match="scheduler is 'locl'; it must be 'local', 'serial', 'slurm', an address"):
        run(batch.manifest, out=batch.out, scheduler="locl", progress=False)
    assert not batch.out.exists()


def test_status_counts(finished):
    progress = status(finished.out)
    assert (progress.n_tasks, progress.n_done, progress.n_failed, progress.n_missing) == (12, 10, 2, 0)
    assert progress.by_model == {"ridge": (5, 1, 0), "exp": (5, 1, 0)} and not progress.complete
    assert len(progress.slowest) == 5 and progress.slowest[0][1] >= progress.slowest[-1][1] > 0
    assert "session 5 was off" in str(progress)


@pytest.mark.thorough
def test_collect_has_a_row_per_neuron_and_named_coefficients(finished):
    pd, xr = pytest.importorskip("pandas"), pytest.importorskip("xarray")
    found = collect(finished.out)
    index = pd.read_parquet(found.index)
    assert found.n_fits == 10 and found.n_absent == 2 and len(index) == 2 * (1 + 2 + 3 + 1 + 2)
    with xr.open_dataset(found.arrays, engine="h5netcdf") as arrays:
        assert arrays.coef.dims == ("unit", "feature") and arrays.sizes["unit"] == len(index)
        for path in finished.results():
            rows = np.flatnonzero(index["key"] == path.stem)
            model = load_result(path)
            np.testing.assert_array_equal(arrays.coef.values[rows].T, model.coef_.reshape(3, -1))
            np.testing.assert_array_equal(index["gap"][rows], model.report_.gap)
            np.testing.assert_array_equal(arrays.intercept.values[rows], np.atleast_1d(model.intercept_))
    assert set(index["status"]) == {"converged"} and index["gap_is_bound"].all()


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["truncated", "one bit", "empty", "another fit's"])
def test_a_damaged_result_is_noticed_and_redone(make_batch, how):
    batch = make_batch([{"seed": 1}, {"seed": 2}])
    run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    path, other = batch.results()
    whole = path.read_bytes()
    with zipfile.ZipFile(path) as archive:  # in the middle of an array: names and dates may change unnoticed
        entry = archive.getinfo("coef.npy")
    inside = entry.header_offset + 30 + len("coef.npy") + entry.compress_size // 2
    damaged = {
        "truncated": whole[: len(whole) // 2],
        "one bit": whole[:inside] + bytes([whole[inside] ^ 1]) + whole[inside + 1 :],
        "empty": b"",
        "another fit's": other.read_bytes(),
    }[how]
    expected = load_result(path).coef_
    path.write_bytes(damaged)
    if how in ("truncated", "empty", "another fit's"):
        assert status(batch.out).n_damaged == 1
    again = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert (again.n_found, again.n_done, again.n_damaged) == (1, 1, 1) and again.ok
    np.testing.assert_array_equal(load_result(path).coef_, expected)


@pytest.mark.thorough
def test_a_full_disk_fails_the_fit_and_leaves_no_half_file(make_batch):
    batch = make_batch([{"seed": 1}])
    code = (  # a limit on the size of files: writing fails in the middle, as it does on a full disk
        "import resource, sys\n"
        "from glmfit.batch import run\n"
        "import glmfit.batch.results as results\n"
        f"manifest, out = {str(batch.manifest)!r}, {str(batch.out)!r}\n"
        "from pathlib import Path\n"
        "from glmfit.batch import read_manifest, run_one\n"
        "from glmfit.batch.plan import plan\n"
        "results.make_folders(Path(out))\n"
        "task, = plan(read_manifest(manifest), Path(out))\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))\n"
        "receipt = run_one(task, out)\n"
        "print(receipt.state, receipt.error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=ROOT, timeout=120
    )
    assert done.stdout.startswith("failed OSError"), done.stdout + done.stderr
    assert not batch.results() and not list((batch.out / "results").iterdir())
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False, retry=True).ok


@pytest.mark.thorough
def test_no_file_is_corrupt_after_kills_while_writing(tmp_path):
    code = f"""
import os, random, signal, sys, time, warnings
sys.path.insert(0, {str(ROOT)!r})
import numpy as np
from glmfit.files import load_npz, save_npz
warnings.simplefilter("ignore")
folder, rng = {str(tmp_path)!r}, random.Random(0)
arrays = {{"coef": np.random.default_rng(0).normal(size=(400, 100))}}  # some milliseconds to write
for kill in range(25):
    child = os.fork()
    if not child:
        while True:
            for k in np.roll(range(4), kill):  # start with a different file, in case there is time for only one
                save_npz(folder + f"/{{k}}.npz", {{"batch": {{"key": str(k)}}}}, arrays)
    time.sleep(rng.uniform(0.05, 0.15))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    files = sorted(tmp_path.glob("[0-9].npz"))
    assert len(files) == 4
    assert list(tmp_path.glob(".*.part")), "no kill hit a write: the test has shown nothing"
    for path in files:
        load_npz(path)


@pytest.mark.thorough
def test_second_run_in_a_busy_folder_is_refused(make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.5} for k in range(4)])
    first = batch.command("--scheduler", "serial")
    batch.wait_for(1, first)
    with pytest.raises(BusyFolder, match=f"another run is at work.*process {first.pid} .*--shard"):
        run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    first.kill()
    first.communicate()
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).ok  # the lock is free


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_stopped_run_can_be_continued(make_batch, how, code):
    batch = make_batch([{"seed": k, "sleep_s": 0.3} for k in range(8)])
    first = batch.command("--scheduler", "serial")
    batch.wait_for(2, first)
    first.send_signal(how)
    _, said = first.communicate(timeout=90)
    assert first.returncode == code and "again to continue" in said, said
    n = len(batch.results())
    assert 2 <= n < 8 and not (batch.out / "run.lock").exists() and not list((batch.out / "failed").iterdir())
    again = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert (again.n_found, again.n_done) == (n, 8 - n)


def test_any_exception_of_a_loader_fails_only_its_session(make_batch):
    ways = ["exit", "interrupt", "base"]
    batch = make_batch([{"seed": 0}, *({"seed": k, "leave": way} for k, way in enumerate(ways, 1)), {"seed": 9}])
    summary = run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert summary.n_done == 2 and [r.error.partition(":")[0] for r in summary.failed] == [
        "SystemExit", "KeyboardInterrupt", "BaseException"
    ]  # fmt: skip
    assert len(list((batch.out / "failed").iterdir())) == 3


def test_changed_loader_makes_a_new_task(make_batch):
    batch = make_batch([{"seed": 1}])
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).n_done == 1
    with open(batch.folder / "sessions_for_tests.py", "a") as file:
        file.write("# another way to load\n")
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).n_done == 1


@pytest.mark.parametrize("content", ["[]", "5", "null", '{"host": "elsewhere", "since": "abc"}', "\xff", "{}"])
def test_invalid_lock_does_not_block_indefinitely(make_batch, content):
    batch = make_batch([{"seed": 1}])
    batch.out.mkdir()
    (batch.out / "run.lock").write_bytes(content.encode("latin-1"))
    os.utime(batch.out / "run.lock", (0, 0))
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).ok


def test_refused_run_changes_nothing(make_batch):
    batch = make_batch([{"seed": 1}])
    assert run(batch.manifest, out=batch.out, scheduler="serial", progress=False).ok
    with RunLock(batch.out / "run.lock"):
        make_batch([{"seed": 2}, {"seed": 3}])
        with pytest.raises(BusyFolder):
            run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
        assert main(["run", str(batch.manifest), "--out", str(batch.out), "--scheduler", "serial"]) == 1
        assert status(batch.out).n_tasks == 1


@pytest.mark.thorough
def test_serial_command_has_the_environment_of_a_worker_from_its_start(make_batch):
    """Both NumPy and jax read it when they are imported."""
    batch = make_batch([{"seed": 1}])
    with open(batch.folder / "sessions_for_tests.py", "a") as file:
        file.write(
            "import threadpoolctl\n"
            "assert {pool['num_threads'] for pool in threadpoolctl.threadpool_info()} <= {1}\n"
            "assert os.environ['NPROC'] == '1' and os.environ['JAX_PLATFORMS'] == 'cpu'\n"
        )
    batch.run("--scheduler", "serial")
    assert any((batch.out / "compiled").parent.iterdir())


def test_array_scripts_quote_what_sbatch_would_split(make_batch, tmp_path, capsys):
    batch, out = make_batch([{"seed": 1}]), tmp_path / "a 100% b"
    arguments = ["--shards", "3", "--memory", "4 GB", "--walltime", "1:00:00", "--sbatch-option=--qos=low"]
    assert main(["sbatch", str(batch.manifest), "--out", str(out), *arguments]) == 0
    assert f"sbatch '{out}/array.sh'" in capsys.readouterr().out
    script = (out / "array.sh").read_text()
    for line in ("--array=1-1", "--mem=4G", "--time=1:00:00", "--qos=low"):
        assert f"#SBATCH {line}\n" in script
    assert f'#SBATCH --output="{tmp_path}/a 100%% b/logs/%A_%a.log"\n' in script and f"--out '{out}'" in script
    assert subprocess.run(["bash", "-n", out / "array.sh"], check=False).returncode == 0


@pytest.mark.parametrize(
    "arguments",
    [["--scheduler", "foo"], ["--shard", "5/3"], ["--workers", "0"], ["--gpus", "-1"], ["--memory", "lots"]],
)
def test_bad_arguments_are_refused_before_anything_is_done(make_batch, arguments, capsys):
    batch = make_batch([{"seed": 1}])
    try:
        code = main(["run", str(batch.manifest), "--out", str(batch.out), *arguments])
    except SystemExit as stop:  # argparse
        code = stop.code
    assert code == 2 and arguments[1] in capsys.readouterr().err
    assert not (batch.out / "tasks.json").exists()


def test_shards_share_the_work(make_batch):
    batch = make_batch([{"seed": k} for k in range(5)])
    summaries = [
        run(batch.manifest, out=batch.out, scheduler="serial", shard=(i, 3), progress=False) for i in (1, 2, 3)
    ]
    assert sorted(s.n_done for s in summaries) == [1, 2, 2] and sum(s.n_found for s in summaries) == 0
    batch.check(5)


def changing(folder, seeds):
    """A manifest with one session per seed, with counts drawn from it, and a function that rewrites a session."""
    X = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)

    def write(name, seed):
        np.savez(folder / f"{name}.npz", X=X, y=np.random.default_rng(seed).poisson(1, size=(200, 2)))

    for name, seed in seeds.items():
        write(name, seed)
    source = {"name": "d", "files": "*.npz", "X": "X", "y": "y"}
    manifest = folder / "m.json"
    manifest.write_text(json.dumps({"data": [source], "model": [{"name": "m", "estimator": "PopulationGLM"}]}))
    return manifest, write


@pytest.mark.parametrize("moment", ["after hashing", "while hashing", "while loading"])
def test_a_result_is_filed_under_the_data_that_were_fitted(tmp_path, monkeypatch, moment):
    """A file changes in the middle of a run and is restored later: no fit of the other content is ever served."""
    manifest, write = changing(tmp_path, {"a": 1})
    kept = (tmp_path / "a.npz").read_bytes()
    module, name = {
        "after hashing": (_sources, "identity_of"), "while hashing": (_sources, "_content"),
        "while loading": (_sources, "load_session"),
    }[moment]  # fmt: skip
    original, changes = getattr(module, name), []

    def change_after(source):
        result = original(source)
        if not changes:
            changes.append(write("a", 2))
        return result

    monkeypatch.setattr(module, name, change_after)
    first = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    monkeypatch.undo()
    assert changes
    if moment == "while loading":
        assert "changed since the run began" in first.failed[0].error
    (tmp_path / "a.npz").write_bytes(kept)
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False, retry=True).ok
    (task,) = plan(read_manifest(manifest), tmp_path / "out")
    served = load_result(tmp_path / "out" / "results" / f"{task.key}.npz")
    with np.load(tmp_path / "a.npz") as file:
        right = glmfit.PopulationGLM().fit(file["X"], file["y"])
    np.testing.assert_allclose(served.coef_, right.coef_, atol=1e-4)


def test_unreadable_file_fails_only_its_session(tmp_path):
    manifest, _ = changing(tmp_path, {"a": 1, "b": 2})
    (tmp_path / "c.npz").symlink_to(tmp_path / "nowhere.npz")
    summary = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert summary.n_done == 2
    assert [r.session for r in summary.failed] == ["d/c"] and "does not exist" in summary.failed[0].error


def test_data_behind_links_are_read_and_checked_for_changes(tmp_path):
    zarr = pytest.importorskip("zarr")
    X = np.random.default_rng(0).normal(size=(200, 2)).astype(np.float32)
    for name, seed in (("a", 1), ("b", 2)):
        (tmp_path / name).mkdir()
        zarr.save_array(str(tmp_path / name / "y"), np.random.default_rng(seed).poisson(1, size=(200, 2)))
        zarr.save_group(str(tmp_path / f"{name}.zarr"), X=X)
        (tmp_path / f"{name}.zarr" / "y").symlink_to(tmp_path / name / "y")
    source = {"name": "d", "files": "*.zarr", "X": "X", "y": "y"}
    manifest = tmp_path / "m.json"
    manifest.write_text(json.dumps({"data": [source], "model": [{"name": "m", "estimator": "PopulationGLM"}]}))
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False).n_done == 2
    shutil.rmtree(tmp_path / "b" / "y")
    zarr.save_array(str(tmp_path / "b" / "y"), np.random.default_rng(3).poisson(1, size=(200, 2)))
    summary = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert (summary.n_found, summary.n_done) == (1, 1)
    (tmp_path / "b" / "y" / "back").symlink_to(tmp_path / "b.zarr")
    (tmp_path / "a" / "y" / "itself").symlink_to(tmp_path / "a" / "y")
    summary = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert [("leads back to a parent folder" in r.error) for r in summary.failed] == [True, True]
    with pytest.raises(OSError, match=r"b\.zarr/y/back is a link"):
        _sources.stat_signature({"kind": "matrices", "path": str(tmp_path / "b.zarr")})


def test_pipe_is_refused_as_data(tmp_path):
    os.mkfifo(tmp_path / "a.npz")
    with pytest.raises(OSError, match="neither a file nor a folder but a pipe"):
        _sources.stat_signature({"kind": "matrices", "path": str(tmp_path / "a.npz")})
    source = {"name": "d", "files": "*.npz", "X": "X", "y": "y"}
    (tmp_path / "m.json").write_text(
        json.dumps({"data": [source], "model": [{"name": "m", "estimator": "PopulationGLM"}]})
    )
    summary = run(tmp_path / "m.json", out=tmp_path / "out", scheduler="serial", progress=False)
    assert "a pipe or a device" in summary.failed[0].error


def test_a_file_that_appears_after_planning_is_not_filed_as_unreadable(tmp_path, monkeypatch):
    manifest, write = changing(tmp_path, {"a": 1})
    (tmp_path / "a.npz").unlink()
    (tmp_path / "a.npz").symlink_to(tmp_path / "b")
    original = _plan.write_plan

    def write_then_appear(*arguments):
        original(*arguments)
        (tmp_path / "a.npz").unlink()
        write("a", 1)

    monkeypatch.setattr(_plan, "write_plan", write_then_appear)
    summary = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert not summary.ok and "changed since the run began" in summary.failed[0].error


def test_changed_data_make_a_new_task(tmp_path):
    manifest, write = changing(tmp_path, {"a": 1})
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False).n_done == 1
    os.utime(tmp_path / "a.npz", (time.time() + 9, time.time() + 9))  # touched, not changed
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False).n_found == 1
    write("a", 2)
    assert run(manifest, out=tmp_path / "out", scheduler="serial", progress=False).n_done == 1
    (tmp_path / "a.npz").write_bytes(b"PK not a zip")
    failed = run(manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert len(failed.failed) == 1 and "a.npz" in failed.failed[0].error


def test_packages_that_collect_needs_are_named(tmp_path, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pyarrow" else name)
    with pytest.raises(ImportError, match=r'pyarrow not installed: .* -e "\.\[batch\]"'):
        collect(tmp_path)


def test_a_result_in_the_place_of_another_is_refused_by_name(finished, tmp_path):
    out = shutil.copytree(finished.out, tmp_path / "out")
    one, other = sorted((out / "results").glob("*.npz"))[:2]
    facts = header_of(one)
    shutil.copy(other, one)
    with pytest.raises(ValueError, match=r"is not a complete result .*belong"):
        load_result(out, session=facts["session"], model=facts["model"])


def test_sessions_with_the_same_data_are_fitted_once_and_named(tmp_path):
    for name, seed in (("a", 1), ("b", 2), ("c", 1)):
        X, y = draw({"seed": seed, "n_neurons": 1})
        np.savez(tmp_path / f"{name}.npz", X=X, y=y)
    text = """
        [[data]]
        name = "sim"
        files = "?.npz"
        X = "X"
        y = "y"
        [[model]]
        name = "ridge"
        estimator = "PopulationGLM"
    """
    (tmp_path / "batch.toml").write_text(text)
    with pytest.warns(
        UserWarning, match='1 session with the data of another will not be fitted again: "sim/c" of "sim/a"'
    ):
        assert len(plan(read_manifest(tmp_path / "batch.toml"), tmp_path)) == 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "workers is 0; it must be a whole number of at least 1"),
        ({"workers": "2"}, "workers is '2'; it must be a whole number of at least 1"),
        ({"gpus": -1}, "gpus is -1; it must be a whole number of at least 0"),
        ({"allowed_failures": -1}, "allowed_failures is -1; it must be a whole number of at least 0"),
        ({"shard": (3, 2)}, r"shard is \(3, 2\); it must be \(i, n\), part i of n, with 1 <= i <= n"),
        ({"shard": "1/2"}, r"shard is '1/2'; it must be \(i, n\)"),
        ({"out": 5}, "out is a int; it must be a path"),
    ],
)
def test_numbers_of_a_run_are_checked_before_it_begins(given, message, tmp_path):
    with pytest.raises((ValueError, TypeError), match=message):
        run(tmp_path / "none.toml", **{"scheduler": "serial", **given})


def test_a_fit_that_needs_a_gpu_fails_without_one(finished, tmp_path, monkeypatch):
    monkeypatch.setenv("GLMFIT_BATCH_GPU", "1")
    summary = run(finished.manifest, out=tmp_path / "out", scheduler="serial", progress=False)
    assert len(summary.failed) == 12
    assert all("a GPU is requested, but jax finds none here" in receipt.error for receipt in summary.failed)


def test_a_file_that_cannot_be_made_is_named_as_given():
    with pytest.raises(OSError) as caught:
        glmfit.files.save_npz("/proc/model.npz", {}, {})
    assert caught.value.filename == "/proc/model.npz"
