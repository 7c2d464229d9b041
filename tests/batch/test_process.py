"""Ctrl-C and SIGTERM stop a run, whoever catches them; one thread, the right device, compiled programs."""

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
import weakref

import pytest

from glmfit.batch import process, run
from glmfit.batch.__main__ import main
from glmfit.batch.driver import drive
from glmfit.batch.process import is_stopped, machine_type, signals_noted, visible_gpus, worker_environment

every_signal = pytest.mark.parametrize(
    ("how", "comes_out"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)


@pytest.fixture(autouse=True)
def as_in_a_shell():
    """Use Python's default handler of SIGINT, because the process of the tests may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_workers_have_one_thread():
    command = [sys.executable, "-c", "from glmfit.threads import n_cores; print(n_cores())"]
    assert subprocess.check_output(command, env=os.environ | worker_environment()) == b"1\n"


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_during_an_import_stops_the_run(make_batch, capsys, how, code):
    batch = make_batch([{"seed": 0}])
    with open(batch.folder / "sessions_for_tests.py", "a") as file:
        file.write(f"import signal\nsignal.raise_signal({int(how)})\n")
    assert main(["run", str(batch.manifest), "--out", str(batch.out), "--scheduler", "serial"]) == code
    assert "again to continue" in capsys.readouterr().err and not batch.results()


@every_signal
def test_signal_that_a_loader_catches_stops_the_run_after_its_fit(make_batch, how, comes_out):
    batch = make_batch([{"seed": k} for k in range(3)])
    file = batch.folder / "sessions_for_tests.py"
    signalled = f"signal.raise_signal({int(how)})"
    catch = f"import signal\n    try:\n        {signalled}\n    except BaseException:\n        pass\n"
    file.write_text(file.read_text().replace("time.sleep(sleep_s)\n", catch))
    with pytest.raises(comes_out):
        run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert len(batch.results()) == 1 and not list((batch.out / "failed").iterdir())


@every_signal
def test_signal_hidden_by_another_error_is_raised(how, comes_out):
    with pytest.raises(comes_out), signals_noted():
        try:
            signal.raise_signal(how)
        except BaseException as error:
            raise RuntimeError("the file is broken") from error
    assert not is_stopped()


@every_signal
def test_caught_signal_is_raised_at_the_next_check(how, comes_out):
    for look in (signals_noted().__enter__, lambda: drive(None, None, [1], on_receipt=None, on_lost=None)):
        with pytest.raises(comes_out), signals_noted():
            with contextlib.suppress(BaseException):
                signal.raise_signal(how)
            look()
            pytest.fail("the signal was not checked")


@pytest.mark.thorough
@pytest.mark.parametrize("where", ["garbage collector", "weak reference", "finalizer"])
@pytest.mark.parametrize("again_s", [1e-4, pytest.param(0.01, marks=pytest.mark.thorough)])  # 1e-4: while it drops
@every_signal
def test_signal_that_python_drops_is_raised_again(how, comes_out, again_s, where, monkeypatch, capfd):
    """Python drops exceptions raised in these, and the garbage collector often calls a callback of jax."""
    monkeypatch.setattr(process, "_AGAIN_S", again_s)

    class Thing:
        def __del__(self):
            if where == "finalizer":
                signalled(None)

    called = []

    def signalled(*_):
        if not called:
            called.append(True)
            signal.raise_signal(how)
            time.sleep(0)

    thing = Thing()
    kept = weakref.ref(thing, signalled) if where == "weak reference" else None
    if where == "garbage collector":
        gc.callbacks.append(signalled)
    try:
        with pytest.raises(comes_out), signals_noted():
            del thing
            gc.collect()
            assert called and (kept is None or kept() is None)
            time.sleep(20)
            pytest.fail("the signal was lost")
    finally:
        if where == "garbage collector":
            gc.callbacks.remove(signalled)
    assert "Traceback" not in capfd.readouterr().err


def test_other_errors_that_python_drops_are_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)

    class Thing:
        def __del__(self):
            raise RuntimeError("in a finalizer")

    with signals_noted():
        Thing()
        assert len(shown) == 1 and isinstance(shown[0].exc_value, RuntimeError)
    assert sys.unraisablehook == shown.append


def test_error_without_a_signal_is_unchanged():
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError, match="broken"), signals_noted():
        with signals_noted():
            raise RuntimeError("the file is broken")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before


# -- the environment of a worker

THREADS = {"NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


def test_a_cpu_worker_has_one_thread_and_no_gpu():
    env = worker_environment()
    assert {name: env[name] for name in THREADS} == dict.fromkeys(THREADS, "1")
    assert env["JAX_PLATFORMS"] == "cpu"
    assert set(env) == {*THREADS, "JAX_PLATFORMS"}


def test_a_gpu_worker_sees_one_gpu_and_never_falls_back_to_the_cpu():
    env = worker_environment(gpu="3")
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["JAX_PLATFORMS"].split(",")[0] == "cuda" and env["GLMFIT_BATCH_GPU"] == "1"


@pytest.mark.thorough
def test_every_compiled_program_is_kept_in_the_cache(tmp_path):
    env = os.environ | worker_environment(cache=tmp_path / "programs")
    code = "import jax; jax.jit(lambda a: a + 1)(1.0)"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert any((tmp_path / "programs").iterdir())


def test_gpus_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7,9")
    assert visible_gpus(2) == ["5", "7"]
    with pytest.raises(ValueError, match=r"4 GPUs were requested.*lists 3"):
        visible_gpus(4)


def test_the_type_of_a_machine_is_short_stable_and_changes_with_jaxlib(monkeypatch):
    here = machine_type()
    assert machine_type() == here
    assert len(here) < 30
    assert not set(here) & set("/ \\")
    monkeypatch.setattr("glmfit.batch.process.metadata.version", lambda package: "0.0.1")
    assert machine_type() != here
