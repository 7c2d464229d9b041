"""Threads that share tiles of rows: which thread does what, and what happens if something fails."""

import contextlib
import gc
import threading
import time
import weakref

import pytest

from glmfit import threads
from glmfit.engine.tiles import over_tiles


@pytest.fixture
def two_cores(monkeypatch):
    monkeypatch.setattr(threads, "n_cores", lambda: 2)


@pytest.mark.usefixtures("two_cores")
def test_threads_are_shared_and_nested_work_runs_in_one_thread():
    seen = set()

    def outer(i):
        seen.add(threading.current_thread())
        time.sleep(1e-3)
        return sum(over_tiles(lambda rows: rows.stop - rows.start, 10_000, 1000)) + i

    for _ in range(20):
        with threads.Workers() as workers:
            assert list(workers.each(outer, list(range(8)))) == [10_000 + i for i in range(8)]
    assert len(seen) == 2 and threading.main_thread() in seen
    with threads.Fitters() as workers:
        others = list(workers.each(lambda _: (time.sleep(0.01), threading.current_thread())[1], range(4)))
    assert len(set(others)) == 2 and seen & set(others) == {threading.main_thread()}


@pytest.mark.usefixtures("two_cores")
def test_results_come_in_order_and_before_the_last_task_has_begun():
    begun = []

    def task(i):
        begun.append(i)
        time.sleep(0.002)
        return i

    with threads.Workers() as workers:
        seen = [(i, len(begun)) for i in workers.each(task, range(40))]
    assert [i for i, _ in seen] == list(range(40)) and seen[0][1] < 40


def test_no_work_is_left_if_it_is_interrupted_while_it_is_handed_out(monkeypatch):
    done, submit, calls = [], threads._Threads.submit, []

    def interrupted(self, function):
        calls.append(function)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return submit(self, function)

    monkeypatch.setattr(threads, "n_cores", lambda: 3)
    monkeypatch.setattr(threads._Threads, "submit", interrupted)
    with pytest.raises(KeyboardInterrupt), threads.Workers() as workers:
        list(workers.each(lambda i: (time.sleep(0.01), done.append(i)), range(20)))
    ended = len(done)
    time.sleep(0.1)
    assert len(done) == ended < 20


@pytest.mark.usefixtures("two_cores")
def test_a_failure_holds_nothing_of_its_tasks():
    class Held:
        pass

    def fail(held):
        time.sleep(0.01)
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError

    items = [Held() for _ in range(20)]
    references = [weakref.ref(item) for item in items]
    gc.disable()
    try:
        with contextlib.suppress(MemoryError), threads.Workers() as workers:
            list(workers.each(fail, items))
        del items
        deadline = time.monotonic() + 5
        while any(r() is not None for r in references) and time.monotonic() < deadline:
            time.sleep(0.01)  # a helper forgets its task after it has told of its end
        assert all(r() is None for r in references)
    finally:
        gc.enable()


@pytest.mark.usefixtures("two_cores")
def test_what_the_consumer_does_between_results_may_use_threads():
    def alone(_):
        with threads.Workers() as inner:
            return inner._pool is None

    with threads.Workers() as workers:
        for found in workers.each(alone, range(6)):
            assert found and not alone(0)


@pytest.mark.usefixtures("two_cores")
@pytest.mark.parametrize("where", ["task", "consumer"])
def test_no_work_is_running_after_a_failure(where):
    running, done = threading.Semaphore(0), []

    def task(i):
        if i == 0 and where == "task":
            running.acquire()  # another task has begun
            raise RuntimeError("task")
        running.release()
        time.sleep(0.02)
        done.append(i)
        return i

    with pytest.raises(RuntimeError, match=where), threads.Workers() as workers:
        for _ in workers.each(task, list(range(50))):
            raise RuntimeError("consumer")
    ended = list(done)
    time.sleep(0.1)
    assert done == ended and len(done) < 50


def counts():
    return [library.num_threads for library in threads._BLAS]


def test_threads_of_blas_are_restored_whatever_the_order_in_which_contexts_end():
    before = counts()
    first, second = threads.one_thread_each(), threads.one_thread_each()
    first.__enter__()
    second.__enter__()
    assert set(counts()) == {1}
    first.__exit__(None, None, None)
    assert set(counts()) == {1}
    second.__exit__(None, None, None)
    assert counts() == before


def test_any_thread_may_limit_blas_and_the_last_one_restores_it():
    """threadpoolctl lets the first thread alone change the number."""
    before, seen = counts(), []
    entered, ended = threading.Event(), threading.Event()

    def other():
        with threads.one_thread_each():
            seen.append(counts())
            entered.set()
            ended.wait(10)
            seen.append(counts())

    with threads.one_thread_each():
        pass
    for together in (False, True):  # after the main thread, and while it has entered, too
        entered.clear(), ended.clear()
        with threads.one_thread_each() if together else contextlib.nullcontext():
            thread = threading.Thread(target=other)
            thread.start()
            entered.wait(10)
        ended.set()
        thread.join()
    assert {n for numbers in seen for n in numbers} == {1} and len(seen) == 4
    assert counts() == before
