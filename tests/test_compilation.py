"""The clock of a fit: what it counts, and what it excludes."""

from types import SimpleNamespace

import pytest

from glmfit import compilation


def test_clock_excludes_callbacks(monkeypatch):
    """Also their compilation, or the time of a fit could be negative, and also if they raise."""
    now, compiled = [100.0], [7.0]
    monkeypatch.setattr(compilation, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(compilation, "compile_seconds", lambda: compiled[0])

    def spend(seconds, compiling):
        now[0] += seconds
        compiled[0] += compiling

    clock = compilation.Clock()
    spend(3.0, 2.0)
    with clock.paused():
        spend(50.0, 40.0)
    with pytest.raises(KeyboardInterrupt), clock.paused():
        spend(5.0, 4.0)
        raise KeyboardInterrupt
    spend(1.0, 0.5)
    assert (clock.seconds, clock.compiling) == (4.0, 2.5)
    clock.add(10.0)
    assert (clock.seconds, clock.compiling) == (14.0, 2.5)
