"""Fixtures shared by the tests of the engines."""

import os
from pathlib import Path

import pytest
from batch_runs import Batch
from slurm import Slurm, can_fake_gpus, why_not

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def importable():
    """Let workers import the package and the tasks of the tests; only the package limits their threads."""
    with pytest.MonkeyPatch.context() as patch:
        path = os.pathsep.join([str(HERE), str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")])
        patch.setenv("PYTHONPATH", path)
        patch.delenv("NPROC", raising=False)
        yield


@pytest.fixture(scope="session")
def slurm(importable):
    """A private SLURM: three nodes with one CPU each, and one fake GPU if possible."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Slurm(n_nodes=3, cpus=1, gpus=int(can_fake_gpus())) as slurm:
        yield slurm


@pytest.fixture
def make_batch(tmp_path):
    """Make a batch from the arguments of a loader."""
    return lambda arguments, models=None: Batch(tmp_path, arguments, models)
