"""Rows shared by several devices, on one host and on two: the same answers, and each device has its part only."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from glmfit import PopulationGLM

ROOT = str(Path(__file__).resolve().parents[2])

COMMON = f"""
    import os, sys, socket
    sys.path.insert(0, {ROOT!r})
    import jax
    import numpy as np

    def data():
        rng = np.random.default_rng(0)
        X = (rng.normal(size=(5001, 4)) @ rng.normal(size=(4, 4)) * 0.3).astype(np.float32)
        Y = rng.poisson(np.logaddexp(0, X @ rng.normal(size=(4, 5)) * 0.3 - 1.5)).astype(np.float32)
        return X, Y, 0.1 * rng.normal(size=5001), rng.uniform(0.5, 2, 5001)
"""

ONE_HOST = (
    COMMON
    + """
    from glmfit import PopulationGLM, observations, penalties
    from glmfit.design import RowSource
    from glmfit.problems import PopulationProblem

    class Source(RowSource):
        def __init__(self, X): self.X = X
        def __len__(self): return len(self.X)
        def read(self, rows): return self.X[rows]

    X, Y, offset, weight = data()
    assert len(jax.devices()) == 4
    streamed = {"regularizer": "Lasso", "max_memory": 1e4}
    for given, source in [({"solver_name": "SAGA"}, X), (streamed, Source(X))]:  # the CPU does what is streamed
        given = {"regularizer_strength": 1e-3, "tol": 1e-7} | given
        one, other = (PopulationGLM(devices=d, **given).fit(source, Y, weight, offset=offset) for d in (None, "all"))
        assert other.report_.converged.all() and other.report_.gap_is_bound.all()
        np.testing.assert_allclose(other.report_.objective, one.report_.objective, rtol=1e-6)
        np.testing.assert_allclose(other.coef_, one.coef_, atol=1e-4)
        np.testing.assert_array_equal(other.report_.epochs, one.report_.epochs)

    link, penalty = observations.from_inverse_link("softplus"), penalties.Ridge(1e-3)
    problem = PopulationProblem(X, Y, link, penalty, devices=jax.devices())
    rows = problem.rows(333, 0)
    for array in (rows.Z, rows.Y, rows.weight, problem.sweep(rows, problem.to_columns(problem.null_params())).table):
        assert {shard.device for shard in array.addressable_shards} == set(jax.devices())
        assert all(shard.data.nbytes * 4 == array.nbytes for shard in array.addressable_shards)
    print("fine")
"""
)

TWO_HOSTS = (
    COMMON
    + """
    jax.distributed.initialize(sys.argv[2], num_processes=2, process_id=int(sys.argv[1]))
    from glmfit import PopulationGLM

    assert len(jax.devices()) == 4 and len(jax.local_devices()) == 2
    X, Y, offset, weight = data()
    given = {"regularizer_strength": 1e-3, "tol": 1e-7}
    model = PopulationGLM(solver_name="SAGA", devices="all", **given).fit(X, Y, weight, offset=offset)
    assert model.report_.converged.all()
    alone = PopulationGLM(solver_name="Newton", **given).fit(X, Y, weight, offset=offset)
    np.testing.assert_allclose(model.coef_, alone.coef_, atol=1e-3)
    print("fine")
"""
)


def start(script, n_devices, *arguments):
    flags = {"XLA_FLAGS": f"--xla_force_host_platform_device_count={n_devices}", "JAX_PLATFORMS": "cpu",
             "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo", "PATH": "/usr/bin:/bin"}  # fmt: skip
    command = [sys.executable, "-c", textwrap.dedent(script), *arguments]
    return subprocess.Popen(command, env=flags, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def outcome(process):
    out, err = process.communicate(timeout=240)
    assert process.returncode == 0, err
    return out


def test_four_devices_of_one_host_give_the_answer_of_one():
    assert outcome(start(ONE_HOST, 4)).strip().endswith("fine")


def test_two_hosts_of_two_devices_give_the_answer_of_one():
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    both = [start(TWO_HOSTS, 2, str(i), address) for i in range(2)]
    assert all(outcome(process).strip().endswith("fine") for process in both)


@pytest.mark.parametrize("devices", ["gpu", [], 2, ["cpu"]])
def test_devices_that_are_none_are_refused(devices):
    with pytest.raises(ValueError, match=r"devices is .*it must be None"):
        PopulationGLM(devices=devices).fit([[0.0], [1.0], [0.5]], [1, 0, 2])
