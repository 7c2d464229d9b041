"""Ctrl-C and SIGTERM are what they are, whoever catches them on their way."""

import contextlib
import gc
import signal
import sys
import time
import weakref

import pytest

from glmfit.batch import run, stop
from glmfit.batch.__main__ import main
from glmfit.batch.driver import drive
from glmfit.batch.stop import is_stopped, signals_noted

every_signal = pytest.mark.parametrize(
    ("how", "comes_out"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)


@pytest.fixture(autouse=True)
def as_in_a_shell():
    """SIGINT as Python handles it by itself: a process of tests may ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("how", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stop_in_the_middle_of_an_import_is_a_stop(make_batch, capsys, how, code):
    batch = make_batch([{"seed": 0}])
    with open(batch.folder / "sessions_for_tests.py", "a") as file:
        file.write(f"import signal\nsignal.raise_signal({int(how)})\n")
    assert main(["run", str(batch.manifest), "--out", str(batch.out), "--scheduler", "serial"]) == code
    assert "again to go on" in capsys.readouterr().err and not batch.results()


@every_signal
def test_a_stop_that_a_loader_catches_is_a_stop_after_its_fit(make_batch, how, comes_out):
    batch = make_batch([{"seed": k} for k in range(3)])
    file = batch.folder / "sessions_for_tests.py"
    signalled = f"signal.raise_signal({int(how)})"
    catch = f"import signal\n    try:\n        {signalled}\n    except BaseException:\n        pass\n"
    file.write_text(file.read_text().replace("time.sleep(sleep_s)\n", catch))
    with pytest.raises(comes_out):
        run(batch.manifest, out=batch.out, scheduler="serial", progress=False)
    assert len(batch.results()) == 1 and not list((batch.out / "failed").iterdir())


@every_signal
def test_a_stop_told_as_another_error_is_a_stop(how, comes_out):
    with pytest.raises(comes_out), signals_noted():
        try:
            signal.raise_signal(how)
        except BaseException as error:
            raise RuntimeError("the file is broken") from error
    assert not is_stopped()


@every_signal
def test_a_stop_that_was_caught_comes_out_at_the_next_look(how, comes_out):
    for look in (signals_noted().__enter__, lambda: drive(None, None, [1], on_receipt=None, on_lost=None)):
        with pytest.raises(comes_out), signals_noted():
            with contextlib.suppress(BaseException):
                signal.raise_signal(how)
            look()
            pytest.fail("nobody looked")


@pytest.mark.parametrize("where", ["garbage collector", "weak reference", "finalizer"])
@pytest.mark.parametrize("again_s", [1e-4, pytest.param(0.01, marks=pytest.mark.thorough)])  # at once: while it drops
@every_signal
def test_a_stop_that_python_drops_comes_again(how, comes_out, again_s, where, monkeypatch, capfd):
    """What is raised in any of these is dropped, and jax has a callback that the garbage collector calls often."""
    monkeypatch.setattr(stop, "_AGAIN_S", again_s)

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


def test_what_else_python_drops_is_shown_as_before(monkeypatch):
    shown = []
    monkeypatch.setattr(sys, "unraisablehook", shown.append)

    class Thing:
        def __del__(self):
            raise RuntimeError("in a finalizer")

    with signals_noted():
        Thing()
        assert len(shown) == 1 and isinstance(shown[0].exc_value, RuntimeError)
    assert sys.unraisablehook == shown.append


def test_an_error_without_a_signal_is_that_error():
    before = [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(RuntimeError, match="broken"), signals_noted():
        with signals_noted():
            raise RuntimeError("the file is broken")
    assert [signal.getsignal(one) for one in (signal.SIGINT, signal.SIGTERM)] == before
