"""Work shared among threads gives what a loop gives, in order."""

import threading

import pytest

from glmfit.problems import _chunks


@pytest.mark.parametrize("n", [0, 1, 2, 37])
@pytest.mark.parametrize("size", [_chunks._SMALL - 1, _chunks._SMALL])
def test_every_item_is_done_once_and_in_order(n, size):
    done = []
    assert _chunks.over_items(lambda i: done.append(i) or i * i, n, size) == [i * i for i in range(n)]
    assert sorted(done) == list(range(n))


@pytest.mark.parametrize(("size", "elsewhere"), [(_chunks._SMALL - 1, False), (_chunks._SMALL, True)])
def test_only_large_matrices_are_worth_a_thread(size, elsewhere, monkeypatch):
    monkeypatch.setattr(_chunks, "n_cores", lambda: 2)
    threads = set(_chunks.over_items(lambda i: threading.current_thread().name, 20, size))
    assert (threads != {threading.current_thread().name}) == elsewhere
