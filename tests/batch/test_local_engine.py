"""Local clusters of real processes: tasks come back whatever happens to the workers, and no port is open to others."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import dask
import distributed
import engine_tasks
import psutil
import pytest
from answers import Answers, carry, listening, without_certificate, without_encryption
from distributed import Security
from slurm import wait_until

from glmfit.batch import driver as _drive
from glmfit.batch.cluster import open_client
from glmfit.batch.driver import ClusterLostError, drive


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def client(importable, folder):
    """Two local workers, shared by the tests; a task is given up after it has killed two of them."""
    with open_client("local", workers=2, out=folder, allowed_failures=1) as client:
        yield client


def worker_pids(client):
    return sorted(client.run(os.getpid).values())


@pytest.mark.thorough
def test_every_task_comes_back_from_one_of_the_workers(client):
    client.wait_for_workers(2, timeout=60)
    answers = carry(client, engine_tasks.echo, range(40))
    assert sorted(answers.receipts) == [r["key"] for _, r in sorted(answers.receipts.items())] == list(range(40))
    assert {r["pid"] for r in answers.receipts.values()} <= set(worker_pids(client))
    assert not answers.lost


@pytest.mark.thorough
def test_few_tasks_are_in_flight_and_finished_tasks_are_released(client):
    client.wait_for_workers(2, timeout=60)
    handed_over = []

    def count_in_flight(task, receipt):
        handed_over.append(len(client.futures))

    drive(client, engine_tasks.echo, range(30), on_receipt=count_in_flight, on_lost=None)
    assert len(handed_over) == 30
    assert max(handed_over) <= 4
    # Dask releases the last one in a separate thread.
    wait_until(lambda: not client.futures, "no future in the client")
    wait_until(lambda: not any(client.has_what().values()), "nothing in the workers")


@pytest.mark.thorough
def test_receipts_arrive_in_the_order_of_completion(client):
    client.wait_for_workers(2, timeout=60)
    answers = carry(client, engine_tasks.nap, [("slow", 1.0), ("a", 0.0), ("b", 0.0), ("c", 0.0)])
    assert next(iter(answers.receipts)) != ("slow", 1.0)


@pytest.mark.thorough
def test_exception_of_a_task_is_reported_with_its_traceback(client):
    answers = carry(client, engine_tasks.fail, [1, 2])
    assert sorted(answers.lost) == [1, 2]
    assert isinstance(answers.lost[1], FileNotFoundError)
    names = []
    step = answers.lost[1].__traceback__
    while step is not None:
        names.append(step.tb_frame.f_code.co_name)
        step = step.tb_next
    assert "fail" in names


@pytest.mark.thorough
def test_workers_use_one_thread_and_the_cpu(client, folder):
    client.wait_for_workers(2, timeout=60)
    (receipt,) = carry(client, engine_tasks.cpu_per_wall, [0]).receipts.values()
    assert receipt["platform"] == "cpu"
    assert receipt["ratio"] < 1.25
    assert any((folder / "compiled").iterdir())


@pytest.mark.thorough
def test_worker_killed_while_it_works_is_replaced_and_its_task_completed(client):
    client.wait_for_workers(2, timeout=60)
    before = worker_pids(client)
    tasks = [("nap", i, 0.3) for i in range(8)]
    answers = Answers()

    def on_receipt(task, receipt):
        if not answers.receipts:
            os.kill(random.Random(1).choice(before), signal.SIGKILL)
        answers.on_receipt(task, receipt)

    drive(client, engine_tasks.perform, tasks, on_receipt=on_receipt, on_lost=answers.on_lost)
    assert sorted(answers.receipts) == tasks
    wait_until(lambda: len(worker_pids(client)) == 2, "two workers")
    assert len(set(before) & set(worker_pids(client))) == 1


@pytest.mark.thorough
def test_only_tasks_that_kill_their_workers_are_lost(client):
    # Innocent tasks run on the same workers at the same time, and are suspected too.
    guilty, innocent = [("poison", 0), ("poison", 1)], [("nap", i, 0.2) for i in range(8)]
    answers = carry(client, engine_tasks.perform, [*guilty, *innocent])
    assert sorted(answers.lost) == guilty
    assert all(isinstance(error, distributed.KilledWorker) for error in answers.lost.values())
    assert sorted(answers.receipts) == innocent


@pytest.mark.thorough
def test_task_that_kills_a_worker_once_is_completed(client, tmp_path):
    task = ("kill once", 0, str(tmp_path / "mark"))
    assert list(carry(client, engine_tasks.perform, [task]).receipts) == [task]


@pytest.mark.thorough
def test_tasks_whose_futures_are_cancelled_are_submitted_again(client):
    client.wait_for_workers(2, timeout=60)
    tasks = [("nap", i, 0.4) for i in range(4)]
    answers, cancelled = Answers(), []

    def on_receipt(task, receipt):
        if not cancelled:
            cancelled.extend(list(client.futures))
            client.cancel([distributed.Future(key, client) for key in cancelled], force=True)
        answers.on_receipt(task, receipt)

    drive(client, engine_tasks.perform, tasks, on_receipt=on_receipt, on_lost=answers.on_lost)
    assert cancelled
    assert sorted(answers.receipts) == tasks
    assert not answers.lost


@pytest.mark.thorough
def test_waiting_does_not_keep_the_driver_busy(client):
    client.wait_for_workers(2, timeout=60)
    start = time.thread_time()
    carry(client, engine_tasks.nap, [(0, 2.5), (1, 2.5)])
    assert time.thread_time() - start < 0.5


def test_every_port_is_local_and_accepts_only_tls(client):
    client.wait_for_workers(2, timeout=60)
    ports = listening([os.getpid(), *worker_pids(client)])
    assert len(ports) >= 6  # the scheduler and two workers, each with its HTTP server
    assert set(ports.values()) == {"127.0.0.1"}
    # An answer in the clear would begin with a letter; b"\x15" begins an alert of TLS.
    assert {without_encryption(port)[:1] for port in ports} <= {b"", b"\x15"}


def test_only_http_servers_answer_without_the_certificate_and_those_of_workers_have_no_pages(client):
    client.wait_for_workers(2, timeout=60)
    info = client.scheduler_info(n_workers=-1)
    http = {w["services"]["dashboard"] for w in info["workers"].values()}
    answers = {port: without_certificate(port) for port in listening([os.getpid(), *worker_pids(client)])}
    assert all(answers[port].startswith(b"HTTP/1.1 404") for port in http)
    assert {port for port, answer in answers.items() if answer} == http | {info["services"]["dashboard"]}


@pytest.mark.parametrize("who", ["another certificate", "no certificate"])
def test_a_client_without_the_certificate_is_refused(client, who):
    security = Security.temporary() if who == "another certificate" else Security()
    workers = list(client.scheduler_info(n_workers=-1)["workers"])
    for address in [client.scheduler.address, *workers]:
        with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
            with pytest.raises(ConnectionError, match=address), open_client(address, security=security):
                pass


def test_certificates_are_private_and_removed_at_the_end(importable, folder):
    with open_client("local", workers=1, out=folder) as client:
        (worker,) = client.cluster.workers.values()
        key = Path(worker.env["DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY"])
        assert str(key.parent) not in " ".join(worker.command[: worker.command.index("--local-directory")])
        assert key.stat().st_mode & 0o777 == 0o600
        assert key.parent.stat().st_mode & 0o777 == 0o700
    assert not key.parent.exists()


@pytest.mark.thorough
def test_each_gpu_has_its_own_worker(importable, monkeypatch, tmp_path):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,8")
    with open_client("local", gpus=2, out=tmp_path) as client:
        client.wait_for_workers(2, timeout=60)
        seen = client.run(engine_tasks.look_around, None).values()
    assert sorted(one["CUDA_VISIBLE_DEVICES"] for one in seen) == ["4", "6"]


def test_an_open_client_and_an_address_are_left_running(client, folder):
    with open_client(client) as same:
        assert same is client
    with open_client(client.scheduler.address, security=client.security) as other:
        assert carry(other, engine_tasks.echo, [1]).receipts[1]["key"] == 1
    assert client.status == "running"


@pytest.mark.thorough
def test_error_names_an_unreachable_scheduler():
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        with pytest.raises(ConnectionError, match=r"could be reached at tcp://127\.0\.0\.1:1: "):
            with open_client("tcp://127.0.0.1:1"):
                pass


@pytest.mark.thorough
def test_scheduler_without_tls_gives_a_warning_and_one_without_workers_an_error(importable, monkeypatch):
    monkeypatch.setattr(_drive, "SPEAK_AFTER", 0.5)
    said = []
    with distributed.LocalCluster(n_workers=0, protocol="tcp://", dashboard_address=None) as cluster:
        with pytest.warns(UserWarning, match="anybody who reaches that port can run code"):
            with open_client(cluster.scheduler_address) as client:
                with pytest.raises(ClusterLostError, match="no worker for"):
                    carry(client, engine_tasks.echo, [1], patience=1.5, say=said.append)
    (sentence,) = said
    assert sentence.startswith("no worker for 1 s, still waiting")


@pytest.fixture
def foreign(importable, tmp_path):
    """A cluster started by someone else, without TLS: its scheduler, and the file that names it."""
    file = tmp_path / "scheduler.json"
    scheduler = ["dask_scheduler", "--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    worker = ["dask_worker", "--host", "127.0.0.1", "--nthreads", "1", "--local-directory", str(tmp_path)]
    processes = []
    for command in (scheduler, worker):
        command = [sys.executable, "-m", f"distributed.cli.{command[0]}", *command[1:], "--scheduler-file", str(file)]
        processes.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait_until(lambda: file.exists() and file.read_text().endswith("}"), "the scheduler's file")
    yield processes[0], file
    for process in reversed(processes):
        process.terminate()
        process.wait(20)


@pytest.mark.thorough
def test_death_of_the_scheduler_raises_and_does_not_hang(foreign):
    scheduler, file = foreign
    done = []

    def on_receipt(task, receipt):
        done.append(task)
        scheduler.kill()

    with dask.config.set({"distributed.comm.timeouts.connect": "2s"}):
        with pytest.warns(UserWarning, match="anybody who reaches that port can run code"), open_client(file) as client:
            with pytest.raises(ClusterLostError, match="scheduler"):
                drive(client, engine_tasks.nap, [(i, 0.2) for i in range(99)], on_receipt=on_receipt, on_lost=None)
    assert 1 <= len(done) < 99


def test_configuration_of_dask_is_unchanged(client):
    before = dask.config.get("distributed.scheduler.allowed-failures")
    with open_client(client.scheduler.address, security=client.security, allowed_failures=7):
        assert dask.config.get("distributed.scheduler.allowed-failures") == before


@pytest.mark.thorough
def test_error_of_workers_that_cannot_start_shows_the_end_of_their_log(importable, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text("import os, sys; print('broken site', flush=True); os._exit(4)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with open_client("local", workers=1, out=tmp_path / "out") as client:
        with pytest.raises(ClusterLostError, match=r"(?s)exit code 4.*broken site"):
            carry(client, engine_tasks.echo, [1])


DRIVER = """
from pathlib import Path
from engine_tasks import nap
from glmfit.batch.cluster import open_client
from glmfit.batch.driver import drive

# No worker imports this file again, so it needs no guard.
with open_client("local", workers=2, out=Path("out").absolute()) as client:
    client.wait_for_workers(2)
    drive(client, nap, [(i, 60.0) for i in range(4)], on_receipt=None, on_lost=None)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        *(pytest.param(n, marks=pytest.mark.slow) for n in (signal.SIGTERM, signal.SIGHUP)),
        signal.SIGKILL,
    ],
)
def test_a_driver_that_is_stopped_leaves_nothing_behind(importable, tmp_path, number):
    handler = {signal.SIGINT: "signal.default_int_handler", signal.SIGKILL: None}.get(number, "signal.SIG_DFL")
    # The parent of the tests may ignore the signal (nohup does), and so would its children.
    ours = f"import signal\nsignal.signal({int(number)}, {handler})\n" if handler else ""
    (tmp_path / "driver.py").write_text(ours + DRIVER)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    driver = subprocess.Popen(
        [sys.executable, "driver.py"], cwd=tmp_path, env=os.environ | {"TMPDIR": str(scratch)}, stderr=subprocess.PIPE
    )
    workers = []

    def two_are_at_work():
        workers[:] = psutil.Process(driver.pid).children(recursive=True)
        return len(workers) == 2 and all(len(w.net_connections()) >= 3 for w in workers)

    wait_until(two_are_at_work, "two workers", 60)
    time.sleep(0.5)
    driver.send_signal(number)
    start = time.monotonic()
    _, error = driver.communicate(timeout=100)
    assert time.monotonic() - start < 50  # running tasks take 60 s, and are not waited for
    _, alive = psutil.wait_procs(workers, timeout=30)
    assert not alive
    in_order = number in (signal.SIGTERM, signal.SIGHUP)
    assert driver.returncode == (128 + number if in_order else -number), error.decode()
    if number != signal.SIGKILL:  # which cannot be handled
        assert not list(scratch.glob(".tls-*"))
