"""A real SLURM whose controller goes away in the middle of a run, as during maintenance."""

import os

import psutil
import pytest
from answers import do_and_carry
from slurm import wait_until

from glmfit.batch import slurm as _slurm
from glmfit.batch.cluster import open_client

pytestmark = pytest.mark.slurm

OPTIONS = {"host": "127.0.0.1", "memory": "1GB", "partition": "main"}


def kill_one_job(client):
    """Kill the processes of a job without telling SLURM."""
    worker = psutil.Process(min(client.run(os.getpid).values()))
    for process in (worker.parent(), worker):
        process.kill()


@pytest.mark.slow
def test_worker_lost_during_an_outage_is_replaced_afterwards(slurm, tmp_path, monkeypatch):
    monkeypatch.setattr(_slurm, "FIRST_PAUSE", 0.5)
    said, tasks = [], [("nap", i, 0.2) for i in range(8)]

    def do():
        slurm.controller_down()
        kill_one_job(client)

    def say(sentence):
        said.append(sentence)
        if "refuses" in sentence:
            slurm.controller_up()

    with open_client("slurm", workers=1, out=tmp_path, slurm=OPTIONS) as client:
        client.wait_for_workers(1, timeout=60)
        answers = do_and_carry(client, tasks, do, say=say)
    assert sorted(answers.receipts) == tasks
    refused, again = said
    assert "Unable to contact slurm controller" in refused and again == "SLURM accepts jobs again"
    wait_until(lambda: not slurm.jobs(), "the end of all jobs")


@pytest.mark.thorough
def test_run_ends_in_order_although_slurm_is_down(slurm, tmp_path):
    said, tasks = [], [("nap", i, 1.5) for i in range(8)]

    def do():
        slurm.controller_down()
        kill_one_job(client)

    try:
        with open_client("slurm", workers=2, out=tmp_path, slurm=OPTIONS) as client:
            client.wait_for_workers(2, timeout=60)
            answers = do_and_carry(client, tasks, do, say=said.append)
    finally:
        slurm.controller_up()
    assert sorted(answers.receipts) == tasks
    (refused,) = said
    assert "Unable to contact slurm controller" in refused
    wait_until(lambda: not slurm.jobs(), "the end of all jobs")
