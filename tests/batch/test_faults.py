"""Workers and drivers that are killed, on real processes: nothing is lost, nothing is done twice."""

import random
import signal
import time

import pytest
from batch_runs import header_of, kill

from glmfit.batch import load_result

psutil = pytest.importorskip("psutil")
pytest.importorskip("distributed")


def workers_of(driver):
    """Worker processes of a driver."""
    found = []
    for process in psutil.Process(driver.pid).children(recursive=True):
        try:
            if "dask_worker" in " ".join(process.cmdline()):
                found.append(process)
        except psutil.Error:
            pass
    return found


@pytest.mark.slow
def test_sixty_fits_finish_although_workers_are_killed_five_times(make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.2} for k in range(60)])
    driver = batch.command("--workers", "2")
    rng, killed = random.Random(0), 0
    batch.wait_for(3, driver)
    for n in (6, 14, 22, 30, 38):
        batch.wait_for(n, driver)
        time.sleep(rng.uniform(0, 0.2))
        killed += kill(rng.choice(workers_of(driver)).pid)
    said, complained = driver.communicate(timeout=120)
    assert driver.returncode == 0, complained
    assert killed == 5 and "60 of 60 fits done" in said
    batch.check(60)


@pytest.mark.slow
def test_restarted_driver_does_only_the_missing_fits(make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.2} for k in range(40)])
    driver = batch.command("--workers", "2")
    batch.wait_for(15, driver)
    family = [driver.pid, *(p.pid for p in psutil.Process(driver.pid).children(recursive=True))]
    kill(driver.pid)
    driver.communicate()
    until = time.monotonic() + 20
    while any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in family):
        assert time.monotonic() < until, "workers outlive their driver"
        time.sleep(0.1)
    before = {path: path.stat().st_mtime_ns for path in batch.results()}
    assert 15 <= len(before) < 40
    said = batch.run("--workers", "2")
    assert f"40 of 40 fits done ({len(before)} of them before)" in said
    assert {path: path.stat().st_mtime_ns for path in before} == before
    batch.check(40)


@pytest.mark.slow
def test_a_task_that_kills_its_workers_fails_alone(make_batch):
    batch = make_batch([{"seed": k, "die": k == 3} for k in range(8)])
    said = batch.run("--workers", "2", "--allowed-failures", "0", code=1)
    assert "7 of 8 fits done, 1 failed" in said and "its process ended 1 time without a result" in said
    batch.check(7)
    assert "sim/" in batch.run(name="status", code=1)


@pytest.mark.slow
def test_ctrl_c_ends_the_workers_too(make_batch):
    batch = make_batch([{"seed": k, "sleep_s": 0.2} for k in range(40)])
    driver = batch.command("--workers", "2")
    batch.wait_for(4, driver)
    family = [p.pid for p in psutil.Process(driver.pid).children(recursive=True)]
    driver.send_signal(signal.SIGINT)
    _, said = driver.communicate(timeout=90)
    assert driver.returncode == 130 and "again to continue" in said, said
    assert "Traceback" not in said
    assert not any(psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie" for pid in family)
    assert not list((batch.out / "failed").iterdir()) and not (batch.out / "run.lock").exists()


@pytest.mark.thorough
def test_results_of_workers_equal_those_of_a_serial_run_bit_for_bit(make_batch):
    models = [
        {"name": name, "estimator": "PopulationGLM", "parameters": {"solver_name": name, "regularizer_strength": 0.01}}
        for name in ("SAGA", "Newton")
    ]
    arguments = [{"seed": k, "n_rows": 2000 + 500 * k, "n_neurons": 5 + k} for k in range(4)]
    batch = make_batch(arguments, models)
    batch.run("--workers", "2")
    by_workers = {path.name: load_result(path) for path in batch.results()}
    facts = [header_of(path) for path in batch.results()]
    for path in batch.results():
        path.unlink()
    batch.run("--scheduler", "serial")
    assert len(by_workers) == 8 and {p.name for p in batch.results()} == by_workers.keys()
    for path in batch.results():
        ours, theirs = load_result(path), by_workers[path.name]
        assert (ours.coef_ == theirs.coef_).all() and (ours.report_.gap == theirs.report_.gap).all()
    assert {f["model"] for f in facts if f["programs"]} == {"SAGA"}
