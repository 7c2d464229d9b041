"""Clusters of jobs on a real SLURM: jobs that end, wait, are cancelled or lose their node are replaced."""

import os
import signal
import subprocess
import sys

import engine_tasks
import psutil
import pytest
from answers import carry, do_and_carry, listening, without_encryption
from slurm import call, wait_until

from glmfit.batch import slurm as _slurm
from glmfit.batch.cluster import open_client
from glmfit.batch.driver import ClusterLostError

pytestmark = pytest.mark.slurm

OPTIONS = {"host": "127.0.0.1", "memory": "1GB", "partition": "main"}


@pytest.fixture(scope="module")
def quick():
    """Check more often for jobs whose worker does not arrive."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_slurm, "CHECK_EVERY", 0.5)
        patch.setattr(_slurm, "SECONDS_TO_ARRIVE", 1.0)
        yield


@pytest.fixture(scope="module")
def client(slurm, quick, tmp_path_factory):
    """Two jobs on three nodes, shared by the tests."""
    out = tmp_path_factory.mktemp("jobs")
    with open_client("slurm", workers=2, out=out, slurm=OPTIONS) as client:
        yield client
    wait_until(lambda: not slurm.jobs(), "the end of all jobs")


def wait_for_two(client, slurm):
    client.wait_for_workers(2, timeout=60)
    wait_until(lambda: len(client.nthreads()) == 2 and len(slurm.jobs()) == 2, "two workers in two jobs")


@pytest.mark.thorough
def test_jobs_do_the_tasks_and_open_no_port_without_tls(client, slurm):
    wait_for_two(client, slurm)
    answers = carry(client, engine_tasks.echo, range(20))
    assert sorted(answers.receipts) == list(range(20))
    workers = list(client.run(os.getpid).values())
    assert {receipt["pid"] for receipt in answers.receipts.values()} <= set(workers)
    nannies = [psutil.Process(pid).ppid() for pid in workers]
    ports = listening([os.getpid(), *workers, *nannies])
    assert set(ports.values()) == {"127.0.0.1"}
    assert {without_encryption(port)[:1] for port in ports} <= {b"", b"\x15"}


@pytest.mark.thorough
def test_a_cancelled_job_is_replaced_and_its_task_done(client, slurm):
    wait_for_two(client, slurm)
    before = slurm.jobs()
    tasks = [("nap", i, 0.5) for i in range(8)]
    answers = do_and_carry(client, tasks, lambda: call("scancel", min(before)))
    assert sorted(answers.receipts) == tasks
    wait_for_two(client, slurm)
    assert min(before) not in slurm.jobs()


@pytest.mark.thorough
def test_all_tasks_are_done_when_a_node_goes_down(client, slurm):
    wait_for_two(client, slurm)
    job, node = min(slurm.jobs().items())
    tasks = [("nap", i, 0.4) for i in range(16)]
    try:
        answers = do_and_carry(client, tasks, lambda: slurm.node_down(node))
        assert sorted(answers.receipts) == tasks
        assert not answers.lost
        wait_for_two(client, slurm)
        assert job not in slurm.jobs()
    finally:
        slurm.node_up(node)


@pytest.mark.thorough
def test_job_cancelled_before_its_worker_arrives_is_replaced(client, slurm):
    wait_for_two(client, slurm)
    before = slurm.jobs()
    call("scancel", "--signal=KILL", "--full", min(before))
    wait_until(lambda: set(slurm.jobs()) - set(before), "a new job")
    cancelled = max(slurm.jobs(), key=int)
    call("scancel", cancelled)
    wait_for_two(client, slurm)
    assert cancelled not in slurm.jobs()


@pytest.mark.thorough
def test_error_of_jobs_that_cannot_start_a_worker_shows_their_log(slurm, quick, tmp_path):
    options = OPTIONS | {"prologue": ["echo no such module >&2", "exit 7"]}
    with open_client("slurm", workers=1, out=tmp_path, slurm=options) as client:
        with pytest.raises(ClusterLostError, match=r"(?s)3 jobs ended before.*no such module"):
            carry(client, engine_tasks.echo, [1])


def test_unknown_option_is_named(slurm, tmp_path):
    with pytest.raises(ValueError, match=r"\['queue'\] are not known.*partition"):
        with open_client("slurm", out=tmp_path, slurm={"queue": "main"}):
            pass


@pytest.mark.thorough
def test_each_job_has_its_own_gpu(slurm, tmp_path):
    if not slurm.gpus:
        pytest.skip("only root can make fake GPUs")
    with open_client("slurm", workers=1, gpus=1, out=tmp_path, slurm=OPTIONS) as client:
        client.wait_for_workers(1, timeout=60)
        (seen,) = client.run(engine_tasks.look_around, None).values()
    assert seen == {"CUDA_VISIBLE_DEVICES": "0", "JAX_PLATFORMS": "cuda,cpu", "SLURM_JOB_GPUS": "0"}


DRIVER = """
import sys
from pathlib import Path
from engine_tasks import nap
from glmfit.batch.cluster import open_client
from glmfit.batch.driver import drive

options = {"host": "127.0.0.1", "memory": "1GB"}
with open_client("slurm", workers=1, out=Path("out").absolute(), slurm=options) as client:
    client.wait_for_workers(1)
    print("ready", flush=True)
    drive(client, nap, [(i, 3.0) for i in range(100)], on_receipt=print, on_lost=print)
"""


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_driver_that_is_stopped_leaves_no_job_behind(slurm, tmp_path, number):
    before = set(slurm.jobs())
    (tmp_path / "driver.py").write_text(DRIVER)
    with subprocess.Popen([sys.executable, "driver.py"], cwd=tmp_path, stdout=subprocess.PIPE) as driver:
        assert driver.stdout.readline() == b"ready\n"
        assert set(slurm.jobs()) - before
        driver.send_signal(number)
        driver.wait(timeout=90)
    wait_until(lambda: set(slurm.jobs()) == before, "the end of its job", 60)


@pytest.mark.slow
def test_tasks_survive_the_walltime_of_their_jobs(slurm, tmp_path):
    # SLURM counts in minutes, and checks times twice a minute.
    options = OPTIONS | {"walltime": "00:01:00"}
    with open_client("slurm", workers=2, out=tmp_path, slurm=options, allowed_failures=1) as client:
        tasks = [("nap", i, 8.0) for i in range(24)]
        answers = carry(client, engine_tasks.perform, tasks)
    assert sorted(answers.receipts) == tasks
    assert len({receipt["pid"] for receipt in answers.receipts.values()}) > 2
