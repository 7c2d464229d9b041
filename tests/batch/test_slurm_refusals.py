"""Refusals of SLURM and reasons for waiting are reported in its own words, here from fake SLURM programs."""

import itertools
import sys

import engine_tasks
import pytest
from answers import carry
from slurm import wait_until

from glmfit.batch import cluster, driver
from glmfit.batch import slurm as _slurm
from glmfit.batch.cluster import open_client
from glmfit.batch.driver import ClusterLostError

OPTIONS = {"host": "127.0.0.1", "memory": "1GB"}
NO_PARTITION = "sbatch: error: invalid partition specified: nosuch"
NO_CONTROLLER = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"

# Accept as many submissions as "taken" says, and later ones unless there is a refusal.
SBATCH = """
asked = open("asked", "a+")
fcntl.flock(asked, fcntl.LOCK_EX)
asked.write(f"{time.time()}\\n")
asked.seek(0)
number, refusal = len(asked.readlines()), open("refusal").read()
if refusal and number > int(open("taken").read()):
    sys.exit(refusal)
print("Submitted batch job", number)
"""
SQUEUE = "print(open('queue').read())"


class Answers:
    """Answers of the fake programs, and times of the submissions."""

    def __init__(self, folder):
        self.folder = folder
        for name, text in {"sbatch": SBATCH, "squeue": SQUEUE, "scancel": ""}.items():
            start = f"#!{sys.executable} -IS\nimport fcntl, os, sys, time\nos.chdir({str(folder)!r})\n"
            (folder / name).write_text(start + text)
            (folder / name).chmod(0o755)
        self.answer()

    def answer(self, refusal="", taken=0, queue=""):
        for name, text in {"refusal": refusal, "taken": taken, "queue": queue}.items():
            (self.folder / name).write_text(str(text))

    def asked(self):
        file = self.folder / "asked"
        return [float(line) for line in file.read_text().split()] if file.exists() else []


@pytest.fixture
def slurm(importable, tmp_path, monkeypatch):
    """The SLURM programs that a cluster calls, as fakes; no job ever runs, and waits are short."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    for name, seconds in {"LOOK_EVERY": 0.05, "FIRST_PAUSE": 0.1, "LONGEST_PAUSE": 0.3, "CHECK_EVERY": 0.1}.items():
        monkeypatch.setattr(_slurm, name, seconds)
    monkeypatch.setattr(_slurm, "SECONDS_TO_ARRIVE", 0.0)
    monkeypatch.setattr(driver, "LOOK_EVERY", 0.05)
    monkeypatch.setattr(driver, "SPEAK_AFTER", 0.5)
    return Answers(folder)


class EnoughError(Exception):
    """The expected message has come."""


def listen(said, until):
    """Record messages, and raise at the first that contains `until`."""

    def say(sentence):
        said.append(sentence)
        if until in sentence:
            raise EnoughError

    return say


def test_refused_first_submission_ends_the_run_with_the_message_of_sbatch(slurm, tmp_path):
    slurm.answer(NO_PARTITION)
    with open_client("slurm", workers=2, out=tmp_path / "out", slurm=OPTIONS) as client:
        with pytest.raises(ClusterLostError, match=f"no worker can start: SLURM refuses.*sbatch said:\n{NO_PARTITION}"):
            carry(client, engine_tasks.echo, [1])
    assert len(slurm.asked()) == 2


@pytest.mark.thorough
def test_later_refusal_is_reported_once_and_retried_with_growing_pauses(slurm, tmp_path):
    slurm.answer(NO_CONTROLLER, taken=1, queue="1|Resources")
    said = []
    with open_client("slurm", workers=2, out=tmp_path / "out", slurm=OPTIONS) as client:
        (refused,) = wait_for(lambda: list(client.cluster.news))
        assert NO_CONTROLLER in refused
        wait_until(lambda: len(slurm.asked()) >= 5, "three more attempts")
        assert len(client.cluster.news) == 1 and client.cluster.trouble is None
        slurm.answer(queue="\n".join(f"{number}|Resources" for number in range(20)))
        with pytest.raises(EnoughError):
            carry(client, engine_tasks.echo, [1], say=listen(said, "accepts jobs again"))
    assert [sentence for sentence in said if "no worker" not in sentence] == [refused, "SLURM accepts jobs again"]
    times = slurm.asked()[1:]
    pauses = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert all(pause > 0.8 * least for pause, least in zip(pauses, (0.1, 0.2, 0.3)))


def wait_for(find):
    """Wait until `find` finds something, and return it."""
    wait_until(find, "what is looked for")
    return find()


@pytest.mark.thorough
def test_reason_why_jobs_wait_is_reported(slurm, tmp_path):
    slurm.answer(queue="1|PartitionDown\n2|PartitionDown\n7|None")
    said = []
    with open_client("slurm", workers=2, out=tmp_path / "out", slurm=OPTIONS) as client:
        wait_until(lambda: client.cluster.reasons, "an answer of squeue")
        with pytest.raises(EnoughError):
            carry(client, engine_tasks.echo, [1], say=listen(said, "no worker"))
    assert "still waiting; SLURM's reason: PartitionDown; logs of workers are in" in said[0]


@pytest.mark.parametrize("error", [AssertionError("Status.created"), OSError("no scancel")])
def test_cluster_that_fails_to_close_hides_no_result_and_no_error(error):
    class Cluster:
        def close(self):
            raise error

    with pytest.warns(UserWarning, match=f"did not close in order .{type(error).__name__}: {error}.*squeue"):
        with cluster._closed(Cluster()):
            summary = "what was done"
    assert summary
    with pytest.warns(UserWarning, match="did not close"), pytest.raises(KeyError):
        with cluster._closed(Cluster()):
            raise KeyError("what went wrong before")


def test_missing_sbatch_is_reported(slurm, tmp_path, monkeypatch):
    (slurm.folder / "sbatch").unlink()
    monkeypatch.setenv("PATH", str(slurm.folder))
    with open_client("slurm", workers=1, out=tmp_path / "out", slurm=OPTIONS) as client:
        with pytest.raises(ClusterLostError, match="No such file or directory: 'sbatch'"):
            carry(client, engine_tasks.echo, [1])
