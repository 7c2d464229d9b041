"""Fits that end their process, folders that cannot be written, malicious files: the other fits continue."""

import errno
import json
import os
import py_compile
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import MISSING, fields

import numpy as np
import pytest
from batch_runs import Batch, draw, header_of

import glmfit
from glmfit.batch import ManifestError, at_work, collect, load_result, read_manifest, run, status
from glmfit.batch import fits as _fit
from glmfit.batch import plan as _plan
from glmfit.batch import runner as _run
from glmfit.batch import sources as _sources
from glmfit.batch.at_work import Attempt, RunLock, begun, deaths, ended, reason, take_back
from glmfit.batch.plan import Receipt, plan, read_plan
from glmfit.batch.process import LIFETIME, STARTED
from glmfit.batch.results import NEEDED, is_whole
from glmfit.files import load_npz, save_npz


@pytest.fixture
def batch(make_batch):
    """Four sessions."""
    return make_batch([{"seed": k} for k in range(4)])


def serial(batch, **options):
    return run(batch.manifest, out=batch.out, scheduler="serial", progress=False, **options)


# -- fits that end their process


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("mode", [["--scheduler", "serial"], ["--shard", "1/1"]])
def test_fit_that_ends_its_process_runs_last_and_is_given_up(make_batch, mode):
    batch = make_batch([{"seed": 0}, {"seed": 1, "die": True}, {"seed": 2}, {"seed": 3}])
    batch.run(*mode, code=9)
    assert len(batch.results()) == 1
    assert "seed=1,die=true, ridge (1 attempt ended its process)" in batch.run(name="status", code=1)
    batch.run(*mode, code=9)
    assert len(batch.results()) == 3  # the others first
    batch.run(*mode, code=9)
    said = batch.run(*mode, code=1)
    assert "3 of 4 fits done (3 of them before), 1 failed" in said
    assert "seed=1,die=true, ridge: RuntimeError: its process ended 3 times without a result" in said
    assert "1 failed" in batch.run(*mode, code=1)  # not tried again
    batch.run(*mode, name="retry", code=9)
    (key,) = begun(batch.out)
    assert len(deaths(batch.out, key)) == 1  # the count starts again


@pytest.mark.slow
def test_number_of_tries_follows_the_allowed_failures(make_batch):
    batch = make_batch([{"seed": 0, "die": True}])
    batch.run("--scheduler", "serial", "--allowed-failures", 0, code=9)
    assert "its process ended 1 time without" in batch.run("--scheduler", "serial", "--allowed-failures", 0, code=1)


@pytest.mark.thorough
def test_fit_that_ends_its_workers_is_given_up_after_three(make_batch):
    batch = make_batch([{"seed": 0, "die": True}, *({"seed": k} for k in range(1, 4))])
    said = batch.run("--workers", 2, code=1)
    assert "3 of 4 fits done, 1 failed" in said and "its process ended 3 times without a result" in said
    assert not begun(batch.out)


def test_completed_attempts_do_not_count(batch):
    assert serial(batch).ok
    assert not begun(batch.out)


@pytest.mark.slow
def test_terminated_process_leaves_no_mark(make_batch):
    batch = make_batch([{"seed": 0}, {"seed": 1, "sleep_s": 60}])
    process = batch.command("--scheduler", "serial")
    batch.wait_for(1, process)
    until = time.monotonic() + 20
    while not begun(batch.out) and time.monotonic() < until:
        time.sleep(0.01)
    assert begun(batch.out)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)
    assert process.returncode == 143
    assert not begun(batch.out)


def test_live_process_does_not_count_as_a_death(tmp_path):
    Attempt(tmp_path, "k")
    assert begun(tmp_path) == {"k"} and not deaths(tmp_path, "k")
    code = "import sys; from glmfit.batch.at_work import *; Attempt(Path(sys.argv[1]), 'k'); os._exit(9)"
    for _ in range(2):
        subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert len(deaths(tmp_path, "k")) == 2
    subprocess.run([sys.executable, "-c", code.replace("os._exit(9)", "sys.exit(9)"), tmp_path], check=False)
    assert len(deaths(tmp_path, "k")) == 2  # an orderly end does not count
    assert "2 times" in reason(deaths(tmp_path, "k"))
    ended(tmp_path, "k")
    assert not begun(tmp_path)


@pytest.mark.parametrize("line", ["", "[" * 100_000, "null", '{"host": 3}', "\x00\xff", '{"host": "h", "pid": "x"}'])
def test_unreadable_marks_do_not_count_as_deaths(tmp_path, line):
    (tmp_path / "begun").mkdir()
    (tmp_path / "begun" / "k.json").write_text(line + "\n")
    assert not deaths(tmp_path, "k")  # written just now
    os.utime(tmp_path / "begun" / "k.json", (1e9, 1e9))
    assert len(deaths(tmp_path, "k")) == ("host" in line)  # a mark of another host, whatever else it holds


def test_attempts_cut_short_by_a_walltime_count_if_they_had_nearly_all_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv(LIFETIME, "1e6")
    monkeypatch.setattr("glmfit.batch.at_work.is_there", lambda mark, path: False)
    Attempt(tmp_path, "k")
    assert len(deaths(tmp_path, "k")) == 1
    assert "longer than the 1000000 s that a job may run" in reason(deaths(tmp_path, "k"))
    monkeypatch.setattr("glmfit.batch.at_work._age", lambda birth: 5e5)
    Attempt(tmp_path, "k")
    assert len(deaths(tmp_path, "k")) == 1
    ended(tmp_path, "k")
    monkeypatch.undo()
    monkeypatch.setenv(LIFETIME, "0.2")
    attempt = Attempt(tmp_path, "k")
    time.sleep(0.25)
    attempt.forget()  # it used its whole walltime: the mark stays
    assert begun(tmp_path) == {"k"}
    monkeypatch.setenv(LIFETIME, "1000")
    ended(tmp_path, "k")
    Attempt(tmp_path, "k").forget()
    assert not begun(tmp_path)


def test_attempts_with_little_time_count_together(tmp_path, monkeypatch):
    """Workers started at different times: a task repeatedly goes to one whose time is half over."""
    monkeypatch.setenv(LIFETIME, "1000")
    monkeypatch.setattr("glmfit.batch.at_work.is_there", lambda mark, path: False)
    ages, n = [870.0, 220.0, 840.0, 500.0, 500.0, 999.0, 2000.0, 520.0, 500.0], []
    for age in ages:
        monkeypatch.setattr("glmfit.batch.at_work._age", lambda birth, age=age: age)
        Attempt(tmp_path, "k").end()
        n.append(len(deaths(tmp_path, "k")))
    assert n == [0, 0, 1, 1, 2, 2, 2, 2, 3]
    assert "shorter attempts count as one when they add up to as much" in reason(deaths(tmp_path, "k"))
    monkeypatch.setattr("glmfit.batch.at_work._age", lambda birth: 2000.0)
    for _ in range(10):  # those that began when their time was over end too
        Attempt(tmp_path, "k").end()
    assert len(deaths(tmp_path, "k")) == 4
    before = len((tmp_path / "begun" / "k.json").read_text().splitlines())
    monkeypatch.setattr("glmfit.batch.at_work._age", lambda birth: 999.99)
    attempt = Attempt(tmp_path, "k")
    time.sleep(0.02)
    attempt.forget()  # it had all of the time that was left: an orderly end at the walltime takes nothing back
    monkeypatch.setattr("glmfit.batch.at_work._age", lambda birth: 500.0)
    Attempt(tmp_path, "k").forget()
    assert len(at_work._marks(tmp_path / "begun" / "k.json")) == before + 1


@pytest.mark.parametrize(("lifetime", "left"), [("x", 1), (0, 1), (1, "NaN"), (1, "1e999"), ([], {}), (1, None)])
def test_marks_with_an_invalid_walltime_raise_nothing(tmp_path, lifetime, left):
    Attempt(tmp_path, "k").end()
    path = tmp_path / "begun" / "k.json"
    path.write_text(json.dumps({"host": "another", "lifetime": lifetime, "left": left}) + "\n")
    os.utime(path, (1e9, 1e9))
    assert "without a result" in reason([*deaths(tmp_path, "k"), *deaths(tmp_path, "k")])


def test_take_back_leaves_the_attempts_of_others(tmp_path):
    ours, path = Attempt(tmp_path, "k"), tmp_path / "begun" / "k.json"
    other = json.dumps({"host": "another", "began": 1.0})
    with open(path, "a") as file:
        file.write(other + "\n")
    ours.forget()
    assert [line for line, *_ in at_work._marks(path)] == [other]
    ended(tmp_path, "k")
    victim = tmp_path / "victim"
    victim.write_text("precious\nno newline")
    path.symlink_to(victim)
    take_back(tmp_path, ["k"])
    assert victim.read_text() == "precious\nno newline"
    ours._path.unlink()
    path.symlink_to(victim)
    ours.forget()
    Attempt(tmp_path, "k").forget()
    assert victim.read_text() == "precious\nno newline" and not path.exists()


@pytest.mark.parametrize(
    "answer, lifetime", [("10:00", 540.0), ("1-00:00:00", 86_340.0), ("UNLIMITED", None), ("INVALID", None), ("", None)]
)
def test_missing_walltime_is_queried_from_slurm(tmp_path, monkeypatch, answer, lifetime):
    (tmp_path / "squeue").write_text(f"#!/bin/sh\necho {answer}\n")
    (tmp_path / "squeue").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", f"7-{answer}")
    monkeypatch.setenv(STARTED, str(time.time()))
    Attempt(tmp_path, "k").end()
    mark = json.loads((tmp_path / "begun" / "k.json").read_text())
    assert mark.get("lifetime") == (None if lifetime is None else pytest.approx(lifetime, abs=1))


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_run_that_ends_takes_back_the_attempts_of_its_workers(make_batch, how):
    batch = make_batch([{"seed": 0}, {"seed": 1, "sleep_s": 60}])
    driver = batch.command("--workers", "1")
    batch.wait_for(1, driver)
    until = time.monotonic() + 30
    while not begun(batch.out) and time.monotonic() < until:
        time.sleep(0.01)
    assert begun(batch.out)
    driver.send_signal(how)
    driver.communicate(timeout=60)
    until = time.monotonic() + 30
    while begun(batch.out) and time.monotonic() < until:  # workers notice that the driver is gone
        time.sleep(0.1)
    assert not begun(batch.out)


def test_attempts_on_another_host_are_alive_while_their_files_are_touched(tmp_path):
    attempt = Attempt(tmp_path, "k")
    attempt.end()
    path = tmp_path / "begun" / "k.json"
    path.write_text(path.read_text().replace(f'"host": "{socket.gethostname()}"', '"host": "another"'))
    assert not deaths(tmp_path, "k")
    os.utime(path, (1e9, 1e9))
    assert len(deaths(tmp_path, "k")) == 1


# -- data that change


def test_edited_loader_makes_a_new_task_in_the_same_process(make_batch):
    batch = make_batch([{"seed": 0}])
    assert serial(batch).ok
    before = load_result(batch.results()[0]).coef_
    module = batch.folder / "sessions_for_tests.py"
    module.write_text(module.read_text().replace("default_rng(seed)", "default_rng(seed + 1)"))
    assert serial(batch).n_done == 1
    (path,) = set(batch.results()) - {p for p in batch.results() if np.array_equal(load_result(p).coef_, before)}
    np.testing.assert_allclose(
        load_result(path).coef_,
        glmfit.PopulationGLM(regularizer_strength=0.01).fit(*draw({"seed": 1})).coef_,
        atol=1e-3,
    )


def test_loader_edited_during_a_run_is_not_filed_under_its_old_text(make_batch, monkeypatch):
    batch = make_batch([{"seed": 0}, {"seed": 1}])
    module = batch.folder / "sessions_for_tests.py"
    original, text = _fit.write_result, module.read_text()

    def write(*arguments):
        module.write_text(text.replace("default_rng(seed)", "default_rng(seed + 7)"))
        return original(*arguments)

    monkeypatch.setattr(_fit, "write_result", write)
    summary = serial(batch)
    assert summary.n_done == 1 and "have changed since the run began" in summary.failed[0].error
    monkeypatch.undo()
    module.write_text(text)
    assert serial(batch).ok  # missing, not failed
    batch.check(2)


@pytest.fixture
def loader(make_batch, monkeypatch):
    """A batch of one session, its loader's file, two texts of it, and a check that the second is served."""
    monkeypatch.setattr(_sources, "_READ", {})
    monkeypatch.delitem(sys.modules, "sessions_for_tests", raising=False)
    batch = make_batch([{"seed": 0}])
    module = batch.folder / "sessions_for_tests.py"
    first = module.read_text().replace("default_rng(seed)", "default_rng(seed + 3)")

    def check():
        module.write_text(first.replace("seed + 3", "seed + 7"))
        assert serial(batch, retry=True).ok
        (task,) = plan(read_manifest(batch.manifest), batch.out)
        served = load_result(batch.out / "results" / f"{task.key}.npz").coef_
        right = glmfit.PopulationGLM(regularizer_strength=0.01).fit(*draw({"seed": 7})).coef_
        np.testing.assert_allclose(served, right, atol=1e-3)

    return batch, module, first, first.replace("seed + 3", "seed + 7"), check


def test_loader_edited_while_it_is_imported_is_not_served(loader, monkeypatch):
    batch, module, first, second, check = loader
    monkeypatch.setenv("SECOND", second)
    module.write_text(f"{first}\n\nfrom pathlib import Path\n\nPath(__file__).write_text(os.environ['SECOND'])\n")
    serial(batch)
    check()


def test_stale_bytecode_of_a_loader_is_not_used(loader):
    batch, module, first, second, check = loader
    module.write_text(first)
    os.utime(module, (1e9, 1e9))
    py_compile.compile(str(module))
    module.write_text(second)
    os.utime(module, (1e9, 1e9))  # same length and second
    assert serial(batch).ok
    check()


def test_loader_edited_and_restored_while_it_loads_fails(loader, monkeypatch):
    batch, module, first, second, check = loader
    module.write_text(second)
    original = _sources.load_session

    def load(source):
        module.write_text(first)
        session = original(source)
        module.write_text(second)
        return session

    monkeypatch.setattr(_sources, "load_session", load)
    assert "have changed since the run began" in serial(batch).failed[0].error
    monkeypatch.undo()
    check()


def test_loaders_import_their_neighbours_and_tracebacks_show_the_executed_code(loader):
    batch, module, *_ = loader
    package = batch.folder / "package_for_tests"
    package.mkdir()
    (package / "__init__.py").write_text("from .loading import load\n")
    (package / "near.py").write_text(module.read_text())
    (package / "loading.py").write_text(
        "from pathlib import Path\nimport neighbour_for_tests\nfrom . import near\ndef load(seed):\n    if seed == 1:\n"
        "        Path(__file__).write_text('# nothing is left')\n        raise OSError('gone')  # said so\n"
        "    return near.load(seed)\n"
    )
    (batch.folder / "neighbour_for_tests.py").write_text("import package_for_tests.loading\n")
    listed = json.loads(batch.manifest.read_text())
    listed["data"][0] |= {"loader": "package_for_tests.loading:load", "arguments": [{"seed": 0}, {"seed": 1}]}
    batch.manifest.write_text(json.dumps(listed))
    summary = serial(batch)
    assert (summary.n_done, len(summary.failed)) == (1, 1)
    (failure,) = (batch.out / "failed").iterdir()
    said = json.loads(failure.read_text())["traceback"]
    assert f"{package / 'loading.py'}\", line 7, in load\n    raise OSError('gone')  # said so" in said
    (package / "loading.py").unlink()
    with pytest.raises(ManifestError, match="could not be imported"):
        serial(batch)


def test_files_that_only_look_changed_are_fitted(tmp_path, monkeypatch):
    X = np.random.default_rng(0).normal(size=(50, 2))
    np.savez(tmp_path / "a.npz", X=X, y=np.ones((50, 1)))
    source = {"name": "d", "files": "*.npz", "X": "X", "y": "y"}
    (tmp_path / "m.json").write_text(
        json.dumps({"data": [source], "model": [{"name": "m", "estimator": "PopulationGLM"}]})
    )
    original = _plan.write_plan

    def write_then_touch(*arguments):
        original(*arguments)
        os.chmod(tmp_path / "a.npz", 0o600)
        os.utime(tmp_path / "a.npz", (1e9, 1e9))

    monkeypatch.setattr(_plan, "write_plan", write_then_touch)
    assert run(tmp_path / "m.json", out=tmp_path / "out", scheduler="serial", progress=False).ok


# -- outputs that cannot be written


@pytest.mark.thorough
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EDQUOT])
def test_a_run_that_cannot_write_ends_with_its_summary(make_batch, monkeypatch, code):
    batch = make_batch([{"seed": k} for k in range(9)])
    original, n = _fit.write_result, []

    def write(*arguments):
        n.append(1)
        if len(n) > 2:
            raise OSError(code, os.strerror(code))
        return original(*arguments)

    monkeypatch.setattr(_fit, "write_result", write)
    summary = serial(batch)
    assert len(n) == 5  # not nine
    assert (summary.n_done, len(summary.failed), summary.n_missing) == (2, 3, 4) and not summary.ok
    assert f"stopped: results cannot be written any more, 3 in a row: OSError: [Errno {code}]" in str(summary)
    monkeypatch.undo()
    assert serial(batch, retry=True).ok


def test_one_host_that_cannot_write_does_not_end_the_run_of_the_others(batch):
    batch.out.mkdir()

    def receipt(host, unwritten):
        state, error = ("failed", "OSError: full") if unwritten else ("done", None)
        return Receipt("a" * 32, "s", "m", state, worker=f"{host}:1", error=error, unwritten=unwritten)

    manifest = read_manifest(batch.manifest)
    options = {"shard": None, "retry": False, "progress": False, "start": 0.0}
    book = _run.Book(manifest, batch.out, **options)
    book.add(None, receipt("well", False))
    for _ in range(5):
        book.add(None, receipt("sick", True))
    book.lost(book.todo[0], "its worker died")  # on an unknown host
    for _ in range(2):
        book.add(None, receipt("well", True))
    with pytest.raises(_run._CannotWriteError, match="3 in a row"):
        book.add(None, receipt("well", True))
    book = _run.Book(manifest, batch.out, **options)
    book.add(None, receipt("well, and gone", False))
    for _ in range(9):
        book.add(None, receipt("sick", True))
    with pytest.raises(_run._CannotWriteError, match="10 in a row"):
        book.add(None, receipt("sick", True))


def test_summary_counts_the_files_of_results(batch, monkeypatch):
    original = _fit.write_result

    def write(out, task, *arguments):
        original(out, task, *arguments)
        if "seed=2" in task.session:
            for result in batch.results():
                result.unlink()

    monkeypatch.setattr(_fit, "write_result", write)
    summary = serial(batch)
    assert (summary.n_done, summary.n_missing) == (1, 3) and not summary.ok


def test_lock_that_cannot_be_removed_is_not_an_error(tmp_path, monkeypatch):
    with RunLock(tmp_path / "run.lock"):
        monkeypatch.setattr("pathlib.Path.unlink", lambda *a, **k: (_ for _ in ()).throw(OSError(errno.EROFS, "no")))
    assert (tmp_path / "run.lock").exists()


@pytest.mark.thorough(cases=1)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full")
@pytest.mark.parametrize("where", [["--scheduler", "serial"], ["--workers", "1"]])
def test_unwritable_log_does_not_end_the_run(batch, where):
    with open("/dev/full", "w") as full:
        done = subprocess.run(batch.words(*where), stdout=full, stderr=full, check=False, timeout=120, **batch.place)
    assert done.returncode == 0
    batch.check(4)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("closed", [(1, 2), (0, 1, 2)])
def test_closed_streams_do_not_end_the_run_and_are_not_taken_for_files(batch, closed):
    redirected = " ".join(f"{number}>&-" if number else "<&-" for number in closed)
    line = f"exec {shlex.join(batch.words('--scheduler', 'serial'))} {redirected}"
    done = subprocess.run(["sh", "-c", line], check=False, timeout=120, **batch.place)
    assert done.returncode == 0
    batch.check(4)


@pytest.mark.slow
def test_closed_pipes_do_not_end_the_run(batch):
    command = batch.command("--scheduler", "serial")
    command.stdout.close()
    command.stderr.close()
    assert command.wait(120) == 0
    batch.check(4)


@pytest.mark.thorough
@pytest.mark.skipif(signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="started by nohup")
def test_hangup_is_reported_like_other_signals(make_batch):
    batch = make_batch([{"seed": 0}, {"seed": 1, "sleep_s": 60}])
    process = batch.command("--scheduler", "serial")
    batch.wait_for(1, process)
    process.send_signal(signal.SIGHUP)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 129 and "terminated by SIGHUP; completed fits are kept" in said


# -- malicious files


def test_links_in_the_output_folder_are_replaced(batch):
    victim = batch.folder / "victim"
    victim.write_text("precious")
    batch.out.mkdir()
    for name in ("batch.json", "manifest.json", "tasks.json", "identities.json"):
        (batch.out / name).symlink_to(victim)
    assert serial(batch).ok
    assert victim.read_text() == "precious"
    assert (batch.out / "manifest.json").read_text() == batch.manifest.read_text()
    task = read_plan(batch.out)[0]
    (batch.out / "results" / f"{task.key}.npz").unlink()
    (batch.out / "begun").mkdir(exist_ok=True)
    (batch.out / "begun" / f"{task.key}.json").symlink_to(victim)
    assert serial(batch).ok and victim.read_text() == "precious"


@pytest.mark.slow
def test_a_link_or_a_pipe_in_place_of_a_log_is_replaced(batch):
    victim = batch.folder / "victim"
    victim.write_text("precious")
    (batch.out / "logs").mkdir(parents=True)
    (batch.out / "logs" / "local-0.log").symlink_to(victim)
    os.mkfifo(batch.out / "logs" / "local-1.log")
    batch.run("--workers", 2)
    assert victim.read_text() == "precious"
    assert all((batch.out / "logs" / name).is_file() for name in ("local-0.log", "local-1.log"))


def spoil(path, how):
    """Damage a result in one way."""
    header, arrays = load_npz(path)
    if how == "no coef":
        arrays.pop("coef")
    elif how == "other shape":
        arrays["coef"] = np.zeros((7, 5))
    elif how == "no seconds":
        header["batch"].pop("seconds")
    elif how == "no report":
        header.pop("report")
    elif how == "facts of another kind":
        header["batch"] = [1]
    elif how == "seconds in words":
        header["batch"]["seconds"] = "x"
    elif how == "no seed":
        header["batch"]["spec"] = {}
    elif how == "text for coefficients":
        arrays["coef"] = arrays["coef"].astype(str)
    if how == "brackets":
        text = "[" * 200_000
        with open(path, "wb") as file:
            np.savez(file, header=np.frombuffer(text.encode(), np.uint8))
    elif how == "huge":
        import io
        import zipfile

        lie = io.BytesIO()
        np.lib.format.write_array_header_1_0(lie, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("header.npy", lie.getvalue())
    elif how == "empty":
        path.write_bytes(b"")
    else:
        header.pop("format")
        save_npz(path, header, arrays)


@pytest.mark.thorough(cases=3)
@pytest.mark.parametrize(
    "how",
    [
        "no coef",
        "other shape",
        "text for coefficients",
        "no seconds",
        "seconds in words",
        "no seed",
        "no report",
        "facts of another kind",
        "brackets",
        "huge",
        "empty",
    ],
)
def test_incomplete_result_is_named_and_redone(batch, how):
    assert serial(batch).ok
    path = batch.results()[1]
    spoil(path, how)
    if how not in ("no coef", "other shape", "text for coefficients"):  # status does not read arrays
        progress = status(batch.out)
        assert progress.n_damaged == 1 and str(path) in str(progress)
    collected = collect(batch.out)
    assert collected.n_fits == 3 and len(collected.damaged) == 1 and str(path) in collected.damaged[0]
    assert str(path) in batch.run(name="collect", code=1)
    summary = serial(batch)
    assert summary.ok and (summary.n_found, summary.n_done, summary.n_damaged) == (3, 1, 1)
    assert collect(batch.out).n_fits == 4


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A finished batch of two fits, to be copied."""
    batch = Batch(tmp_path_factory.mktemp("finished"), [{"seed": 0}, {"seed": 1}])
    assert serial(batch).ok
    return batch


CRAFTED = {
    "an early year": lambda header, arrays: header["batch"].update(began="0001-01-01T00:00:00"),
    "no time": lambda header, arrays: header["batch"].update(began="x"),
    "huge seconds": lambda header, arrays: header["batch"].update(seconds=10**400),
    "seconds that are not a number": lambda header, arrays: header["batch"].update(seconds=float("nan")),
    "huge rows": lambda header, arrays: header["report"].update(n_rows=10**30),
    "rows in words": lambda header, arrays: header["report"].update(n_rows="x"),
    "a seed in words": lambda header, arrays: header["batch"]["spec"].update(seed="x"),
    "another configuration": lambda header, arrays: header["batch"]["spec"].update(precision="double"),
    "solvers": lambda header, arrays: header["report"].update(solver_name=["a"] * 7),
    "huge gap": lambda header, arrays: (arrays.pop("report.gap"), header["report"].update(gap=10**400)),
    "another status": lambda header, arrays: arrays.update({"report.status": np.array([99, 99])}),
    "more neurons": lambda header, arrays: header["report"].update(neuron=["a"] * 7),
    "no class": lambda header, arrays: header.pop("class"),
    "another class": lambda header, arrays: header.update({"class": "demo"}),
    "no parameters": lambda header, arrays: header.pop("parameters"),
    "a newer format": lambda header, arrays: header.update(format="glmfit/2"),
    "no arrays of the report": lambda header, arrays: [arrays.pop(n) for n in list(arrays) if n.startswith("report.")],
    "names that are numbers": lambda header, arrays: arrays.update({"design.feature_names": np.arange(3)}),
}
FINE = {
    "a surrogate": lambda header, arrays: arrays.update({"design.feature_names": np.array(["\ud800", "b\0c", "d"])}),
    "a null character in a name": lambda header, arrays: header["batch"].update(session="a\0b"),
    "no features": lambda header, arrays: arrays.update(
        {"design.feature_names": np.array([], str), "coef": np.ones((0, 2))}
    ),
}


@pytest.mark.parametrize("how", [*CRAFTED, *FINE])
def test_all_commands_agree_on_what_is_a_result(finished, tmp_path, how):
    out = shutil.copytree(finished.out, tmp_path / "out")
    path = sorted((out / "results").iterdir())[0]
    header, arrays = load_npz(path)
    (CRAFTED | FINE)[how](header, arrays)
    np.savez(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8), **arrays)
    str(status(out))
    collected = collect(out)
    is_fine = how in FINE
    assert collected.n_fits == 1 + is_fine and [str(path) in text for text in collected.damaged] == [True] * (
        not is_fine
    )
    assert is_whole(out, path.stem) == is_fine
    if is_fine:
        load_result(path)
    else:
        with pytest.raises(ValueError, match=str(path)):
            load_result(path)


def test_required_entries_are_those_that_loading_needs(finished):
    from glmfit.estimators import ClassReport, FitReport, PopulationGLM, PopulationGLMCV, SmoothReport
    from glmfit.estimators.gam.posterior import Smooth

    def needed(report):
        return {f.name for f in fields(report) if f.default is MISSING and f.default_factory is MISSING}

    assert NEEDED["PopulationGLM"] == needed(FitReport) and PopulationGLM.report_class is FitReport
    assert NEEDED["PopulationGLMCV"] == needed(FitReport) | {f"cv.{name}" for name in PopulationGLMCV._fitted}
    assert PopulationGLMCV.report_class is FitReport
    smooth = {f"smooth.{name}" for name in needed(Smooth)}
    assert NEEDED["PopulationGAM"] == needed(SmoothReport) | {"strengths_by"} | smooth
    assert NEEDED["SoftmaxGLM"] == needed(ClassReport) | {"classes"}


@pytest.mark.parametrize(
    "changes", [{"model": []}, {"session": []}, {"key": "a" * 300}, {"key": 5}, {"key": "../../../etc"}, {"spec": None}]
)
def test_damaged_list_of_tasks_is_named_and_rewritten(finished, tmp_path, changes):
    out = shutil.copytree(finished.out, tmp_path / "out")
    listed = json.loads((out / "tasks.json").read_text())
    listed["tasks"][0].update(changes)
    (out / "tasks.json").write_text(json.dumps(listed))
    with pytest.raises(ValueError, match=r"tasks\.json is damaged .*rewrites it"):
        status(out)
    if "key" in changes:  # nothing else is read
        with pytest.raises(ValueError, match=r"tasks\.json is damaged .*rewrites it"):
            collect(out)
    assert run(finished.manifest, out=out, scheduler="serial", progress=False).n_found == 2
    assert status(out).complete


@pytest.mark.parametrize(
    "text", ["[" * 200_000, *(f'{{"pid": 1, "host": "h", "since": {since}}}' for since in ("1e300", "NaN"))]
)
def test_crafted_lists_and_locks_do_not_end_the_run(batch, text):
    assert serial(batch).ok
    (batch.out / "tasks.json").write_text(text)
    (batch.out / "identities.json").write_text(text)
    (batch.out / "run.lock").write_text(text)
    long_ago = time.time() - 3600
    os.utime(batch.out / "run.lock", (long_ago, long_ago))
    assert serial(batch).n_found == 4


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["results/{}.npz", "failed/{}.json", "tasks.json", "identities.json", "run.lock"])
def test_pipes_in_the_output_folder_do_not_block(batch, name):
    assert serial(batch).ok
    path = batch.out / name.format(batch.results()[0].stem)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    os.utime(path, (1e9, 1e9))
    assert serial(batch).ok
    assert status(batch.out).complete and collect(batch.out).n_fits == 4


@pytest.mark.thorough
def test_quiet_run_reports_failures(make_batch):
    batch = make_batch([{"seed": 0, "fail": True}])
    process = batch.command("--scheduler", "serial", "--quiet")
    _, complained = process.communicate(timeout=60)
    assert "failed: sim/seed=0" in complained


def test_control_characters_in_names_are_escaped(make_batch):
    batch = make_batch([{"seed": 0}])
    text = json.loads(batch.manifest.read_text())
    evil = "x\x1b]0;owned\x07\nnine of nine fits done"
    (batch.folder / f"{evil}.npz").write_bytes(b"no zip")
    text["data"] = [{"name": "d", "files": "*.npz", "X": "X", "y": "y"}]
    batch.manifest.write_text(json.dumps(text))
    summary = serial(batch)
    for said in (str(summary), str(status(batch.out))):
        assert "\x1b" not in said and "\x07" not in said and r"x\x1b]0;owned\x07\nnine" in said
    text["data"][0]["name"] = evil
    batch.manifest.write_text(json.dumps(text))
    with pytest.raises(ManifestError) as refused:
        serial(batch)
    assert "\x1b" not in str(refused.value) and r"x\x1b]0;owned\x07\nnine" in str(refused.value)


def test_failure_is_forgotten_if_its_result_exists(batch):
    assert serial(batch).ok
    key = batch.results()[0].stem
    (batch.out / "failed" / f"{key}.json").write_text("{}")
    assert serial(batch).ok
    assert not list((batch.out / "failed").glob("*.json"))


@pytest.mark.thorough
def test_finished_work_is_read_once(batch, monkeypatch):
    assert serial(batch).ok
    code = (
        "import sys; from glmfit.batch import results, runner, __main__ as m; import collections\n"
        "n = collections.Counter(); whole = results.is_whole\n"
        "runner.is_whole = lambda out, key: (n.update([key]), whole(out, key))[1]\n"
        "assert m.main(sys.argv[1:]) == 0; assert sorted(n.values()) == [1] * 4, n"
    )
    for arguments in (["--scheduler", "serial"], ["--workers", "2"], ["--shard", "1/1"]):
        subprocess.run(
            [sys.executable, "-c", code, "run", str(batch.manifest), "--out", str(batch.out), *arguments],
            check=True,
            **batch.place,
        )


def test_results_name_their_session(batch):
    assert serial(batch).ok
    assert {header_of(path)["session"] for path in batch.results()} == {f"sim/seed={k}" for k in range(4)}
