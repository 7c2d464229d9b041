"""Batches on a real SLURM of our own: a node that goes down, an array that is requeued, a walltime that is reached."""

import time

import pytest
from batch_runs import Batch
from slurm import call

pytestmark = pytest.mark.slurm
HERE = ("--scheduler", "slurm", "--host", "127.0.0.1", "--memory", "1GB", "--walltime", "0:10:00")


def nodes_at_work():
    """Names of nodes with a running job."""
    return call("squeue", "--noheader", "--states=R", "--format=%N").split()


def wait_until(true, seconds=90):
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"{true} did not come true within {seconds} s"
        time.sleep(0.1)


@pytest.mark.slow
def test_forty_fits_finish_although_a_node_goes_down(slurm, make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.2} for k in range(40)])
    driver = batch.command("--workers", "2", *HERE)
    batch.wait_for(6, driver)
    down = nodes_at_work()[0]
    slurm.node_down(down)
    try:
        said, complained = driver.communicate(timeout=150)
    finally:
        slurm.node_up(down)
    assert driver.returncode == 0, complained
    assert "40 of 40 fits done" in said
    batch.check(40)
    wait_until(lambda: not slurm.jobs())  # nothing is left in the queue


@pytest.mark.slow
def test_an_array_finishes_although_a_node_goes_down(slurm, make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.2} for k in range(40)])
    said = batch.run("--shards", "3", "--memory", "1GB", name="sbatch")
    script = batch.out / "array.sh"
    assert f"sbatch {script}" in said
    call("sbatch", str(script))
    batch.wait_for(6)
    down = nodes_at_work()[0]
    slurm.node_down(down)
    time.sleep(1)
    slurm.node_up(down)
    wait_until(lambda: not slurm.jobs(), seconds=150)
    assert "40 of 40 fits done" in batch.run(name="status"), logs(batch)
    batch.check(40)


@pytest.mark.thorough
def test_terminated_array_can_be_continued(slurm, make_batch):
    """As SLURM does at the walltime, send SIGTERM to the batch script first."""
    batch = make_batch([{"seed": k, "sleep_s": 0.3} for k in range(12)])
    batch.run("--shards", "1", "--memory", "1GB", name="sbatch")
    call("sbatch", str(batch.out / "array.sh"))
    batch.wait_for(2)
    call("scancel", "--batch", "--signal=TERM", "--name=glmfit-test")
    wait_until(lambda: not slurm.jobs())
    n = len(batch.results())
    assert 2 <= n < 12 and "terminated by" in logs(batch)
    assert f"{n} of 12 fits done" in batch.run(name="status", code=1)
    call("sbatch", str(batch.out / "array.sh"))
    wait_until(lambda: not slurm.jobs())
    batch.check(12)


@pytest.mark.thorough(cases=1)
@pytest.mark.parametrize(
    "options, said",
    [
        (("--partition", "nosuch"), "invalid partition specified: nosuch"),
        (("--memory", "900GB"), "Memory specification can not be satisfied"),
        (("--sbatch-option=--time=soon",), "Invalid --time specification"),
    ],
)
def test_a_run_that_slurm_refuses_ends_with_the_reason(slurm, make_batch, options, said):
    batch = make_batch([{"seed": 0}])
    complained = batch.run("--workers", "1", *HERE, *options, code=1)
    assert f"SLURM refuses the jobs; sbatch said:\nsbatch: error: {said}" in complained
    assert "Traceback" not in complained


@pytest.mark.slow
def test_folders_may_have_any_name(slurm, tmp_path):
    folder = tmp_path / "my dir" / "u50%j 脑" / "fits%A" / "a;touch${IFS}PWN2;b" / 'it\'s "x" #1'
    folder.mkdir(parents=True)
    batch = Batch(folder, [{"seed": k} for k in range(2)])
    assert "2 of 2 fits done" in batch.run("--workers", "1", *HERE)
    for path in batch.results():
        path.unlink()
    batch.run("--shards", "1", "--memory", "1GB", name="sbatch")
    call("sbatch", str(batch.out / "array.sh"))
    wait_until(lambda: not slurm.jobs())
    assert "2 of 2 fits done" in batch.run(name="status"), logs(batch)
    assert {path.suffix for path in (batch.out / "logs").iterdir()} == {".err", ".out", ".log"}
    assert not list(tmp_path.rglob("PWN2"))


@pytest.mark.slow
def test_fits_finish_although_workers_reach_their_walltime(slurm, make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 3.0} for k in range(40)])
    said = batch.run("--workers", "1", *HERE[:-1], "0:01:00", timeout=400)
    assert "40 of 40 fits done" in said


def logs(batch):
    """Output of the tasks of an array."""
    return "".join(path.read_text() for path in sorted((batch.out / "logs").glob("*.log")))
