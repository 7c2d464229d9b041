"""What a worker's environment promises: one thread, the right device, a cache of compiled programs."""

import os
import subprocess
import sys

import pytest

from glmfit.batch.environment import machine_type, visible_gpus, worker_environment

THREADS = {"NPROC", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"}


def test_a_cpu_worker_has_one_thread_and_no_gpu():
    env = worker_environment()
    assert {name: env[name] for name in THREADS} == dict.fromkeys(THREADS, "1")
    assert env["JAX_PLATFORMS"] == "cpu"
    assert set(env) == {*THREADS, "JAX_PLATFORMS"}


def test_a_gpu_worker_sees_one_gpu_and_never_falls_back_to_the_cpu():
    env = worker_environment(gpu="3")
    assert env["CUDA_VISIBLE_DEVICES"] == "3"
    assert env["JAX_PLATFORMS"].split(",")[0] == "cuda"


@pytest.mark.thorough
def test_every_compiled_program_is_kept_in_the_cache(tmp_path):
    env = os.environ | worker_environment(cache=tmp_path / "programs")
    code = "import jax; jax.jit(lambda a: a + 1)(1.0)"
    subprocess.run([sys.executable, "-c", code], env=env, check=True)
    assert any((tmp_path / "programs").iterdir())


def test_gpus_are_those_that_the_process_may_use(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert visible_gpus(2) == ["0", "1"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5, 7,9")
    assert visible_gpus(2) == ["5", "7"]
    with pytest.raises(ValueError, match=r"4 GPUs were asked for.*lists 3"):
        visible_gpus(4)


def test_the_type_of_a_machine_is_short_stable_and_changes_with_jaxlib(monkeypatch):
    here = machine_type()
    assert machine_type() == here
    assert len(here) < 30
    assert not set(here) & set("/ \\")
    monkeypatch.setattr("glmfit.batch.environment.metadata.version", lambda package: "0.0.1")
    assert machine_type() != here
