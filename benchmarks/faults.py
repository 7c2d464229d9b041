"""A batch, a stream and their files under faults: what is lost, and whether it is reported.

    python benchmarks/faults.py [--sections kills,disks,files,streams,slurm,load]

Every case must end either with all fits done and bitwise identical to those of an undisturbed run, or with exit code 1
and a message that names the reason and the file or job. `slurm` starts a private SLURM of two nodes and needs its
programs (Debian: slurmctld slurmd slurm-client munge). Linux only; runs for an hour.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
from _common import ROOT, Section, memory_bytes, run_sections, timed

sys.path.insert(0, str(ROOT / "tests"))
from batch_runs import Batch, header_of

N_FITS = 120
HERE = ("--scheduler", "slurm", "--host", "127.0.0.1", "--memory", "1GB", "--walltime", "0:10:00")


def make(cache: Path, name: str, sessions: list[dict], models=None) -> Batch:
    """Make a batch in a fresh folder."""
    folder = cache / "faults" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return Batch(folder, sessions, models)


def arrays_of(batch: Batch) -> dict:
    """All numbers of all results by session, without timings; sessions are matched regardless of the loader's sleep."""
    found = {}
    for path in batch.results():
        with np.load(path, allow_pickle=False) as file:
            found[header_of(path)["session"].partition(",sleep_s")[0]] = {
                name: file[name].tobytes() for name in file.files if name != "header" and "seconds" not in name
            }
    return found


def undisturbed(cache: Path, sessions: list[dict]) -> dict:
    """Results of an undisturbed serial run."""
    batch = make(cache, "undisturbed", sessions)
    batch.run("--scheduler", "serial", "--quiet", timeout=3600)
    return arrays_of(batch)


class Tally:
    """Cases of a section, and their outcomes."""

    def __init__(self, section: Section):
        self._section, self._cases = section, {}

    @contextlib.contextmanager
    def case(self, name: str) -> Iterator[None]:
        """Count a case; print its failure, if any."""
        try:
            yield
            self._cases[name] = "as it should"
        except Exception as error:
            self._cases[name] = f"{type(error).__name__}: {error}"[:300]
        print(f"    {name}: {self._cases[name]}", flush=True)

    def judge(self, what: str) -> None:
        """Require that all cases end as they should."""
        good = sum(said == "as it should" for said in self._cases.values())
        self._section.note(cases=self._cases)
        self._section.require(what, good, len(self._cases), limit=1, against="all", unit="cases", topic="gap",
                              at_least=True)  # fmt: skip


def said_with(code: int, *texts: str) -> Callable[[Batch, tuple], None]:
    """Make a check that runs a command line and expects an exit code and texts."""

    def check(batch: Batch, arguments: tuple, **options) -> None:
        said = batch.run(*arguments, code=code, **options)
        missing = [text for text in texts if text not in said]
        assert not missing, f"{missing} not in {said[-500:]!r}"

    return check


def same(batch: Batch, expected: dict) -> None:
    """Raise unless the results are those expected, bit for bit."""
    found = arrays_of(batch)
    assert found.keys() == expected.keys(), f"{len(found)} of {len(expected)} results"
    other = [name for name in expected if found[name] != expected[name]]
    assert not other, f"other numbers in {other[:3]}"


# ------------------------------------------------------------------------------------------- kills


def kills(cache: Path, scale: float, section: Section) -> None:
    """60 worker kills, 6 driver kills: all fits done, and identical."""
    tally, rng = Tally(section), random.Random(0)
    sessions = [{"seed": k, "sleep_s": 0.1} for k in range(max(12, round(N_FITS * scale)))]
    expected = undisturbed(cache, sessions)
    n_killed, i = 0, 0
    while n_killed < 60 * scale:
        i, before = i + 1, n_killed
        with tally.case(f"workers killed, run {i}"):
            batch = make(cache, "workers", sessions)
            driver = batch.command("--workers", "2", "--quiet")
            batch.wait_for(1, driver)
            while driver.poll() is None:
                workers = [p for p in psutil.Process(driver.pid).children() if "dask_worker" in " ".join(p.cmdline())]
                if workers:
                    rng.choice(workers).kill()
                    n_killed += 1
                time.sleep(rng.uniform(1.0, 2.5))
            said = driver.communicate(timeout=600)
            assert driver.returncode == 0, said
            same(batch, expected)
            assert n_killed > before
    batch = make(cache, "drivers", sessions)
    for i in range(max(1, round(6 * scale))):
        with tally.case(f"driver kill {i + 1}"):
            driver = batch.command(*(("--workers", "2") if i % 2 else ("--scheduler", "serial")))
            batch.wait_for(min((i + 1) * len(sessions) // 8, len(sessions) - 1), driver)
            time.sleep(rng.uniform(0, 0.3))
            driver.kill()
            driver.communicate()
    with tally.case("the run after them"):
        time.sleep(6)  # workers without a driver exit
        batch.run("--workers", "2", "--quiet", timeout=600)
        same(batch, expected)
    section.note(workers_killed=n_killed)
    tally.judge("runs under kills that end with every fit, identical")


# ------------------------------------------------------------------------------------------- disks


def disks(cache: Path, scale: float, section: Section) -> None:
    """Folders that are full, read-only or removed; fits that end their process; output streams that fail."""
    tally = Tally(section)
    sessions = [{"seed": k} for k in range(8)]
    expected = undisturbed(cache, sessions)
    for mode in (("--scheduler", "serial"), ("--workers", "2")):
        with tally.case(f"a log on a full disk, {mode[-1]}"):
            batch = make(cache, "full-log", sessions)
            with open("/dev/full", "w") as full:
                done = subprocess.run(batch.words(*mode), stdout=full, stderr=full, check=False, **batch.place)
            assert done.returncode == 0, done.returncode
            same(batch, expected)
        with tally.case(f"stdout and stderr closed, {mode[-1]}"):
            batch = make(cache, "closed", sessions)
            line = f"exec {subprocess.list2cmdline(batch.words(*mode))} >&- 2>&-"
            assert subprocess.run(["sh", "-c", line], check=False, **batch.place).returncode == 0
            same(batch, expected)
        with tally.case(f"files may not grow: nothing can be written, {mode[-1]}"):
            batch = make(cache, "full", sessions)
            limited = f"ulimit -f 1; exec {subprocess.list2cmdline(batch.words('--scheduler', 'serial'))}"
            done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=False, **batch.place)
            assert done.returncode == 1, done
            assert "File too large" in done.stdout + done.stderr
            batch.run(*mode, name="retry", timeout=300)
            same(batch, expected)
        with tally.case(f"the output folder is removed, {mode[-1]}"):
            batch = make(cache, "gone", [{**s, "sleep_s": 0.3} for s in sessions])
            driver = batch.command(*mode)
            batch.wait_for(3, driver)
            shutil.rmtree(batch.out, ignore_errors=True)
            said, complained = driver.communicate(timeout=120)
            assert driver.returncode == 1 and "of 8 fits done" in said, (said, complained)
            batch.run(*mode, timeout=300)
            assert len(batch.results()) == 8
        with tally.case(f"a fit that ends its process, {mode[-1]}"):
            batch = make(cache, "deadly", [*sessions[:3], {"seed": 99, "die": True}])
            for _ in range(4):
                done = subprocess.run(batch.words(*mode), capture_output=True, text=True, check=False, **batch.place)
                if done.returncode == 1:
                    break
            assert "its process ended 3 times" in done.stdout + done.stderr, done
            assert len(batch.results()) == 3
    with tally.case("symbolic links in the output folder"):
        batch = make(cache, "links", sessions)
        victim = batch.folder / "victim"
        victim.write_text("precious")
        (batch.out / "logs").mkdir(parents=True)
        for name in ("batch.json", "manifest.json", "tasks.json", "identities.json", "logs/local-0.log"):
            (batch.out / name).symlink_to(victim)
        batch.run("--workers", "1", timeout=300)
        same(batch, expected)
        assert victim.read_text() == "precious"
    tally.judge("faults of disks and processes that end as they should")


# ------------------------------------------------------------------------------------------- files


def files(cache: Path, scale: float, section: Section) -> None:
    """Results that are corrupted, truncated or malicious: reported and redone, without blocking other fits."""
    tally, rng = Tally(section), random.Random(0)
    batch = make(cache, "files", [{"seed": k} for k in range(4)])
    batch.run("--scheduler", "serial", timeout=300)
    expected = arrays_of(batch)
    path = batch.results()[0]
    whole = path.read_bytes()
    silent = 0
    n_flips = max(20, round(320 * scale))
    for _ in range(n_flips):
        changed = bytearray(whole)
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        from glmfit.batch.results import is_whole, read_result

        if is_whole(batch.out, path.stem):
            with np.load(path, allow_pickle=False) as file:
                numbers = {n: file[n].tobytes() for n in file.files if n != "header" and "seconds" not in n}
            silent += numbers != expected[header_of(path)["session"].partition(",sleep_s")[0]]
        with contextlib.suppress(ValueError):
            read_result(path)
    with tally.case(f"{n_flips} flipped bits, every one refused or harmless"):
        assert not silent, silent
    for n in range(0, len(whole), max(1, len(whole) // max(10, round(204 * scale)))):
        path.write_bytes(whole[:n])
        assert not is_whole(batch.out, path.stem)
    with tally.case("truncations, all refused"):
        pass
    for name, write in {
        "an empty file": lambda: path.write_bytes(b""),
        "a header of brackets": lambda: np.savez(path, header=np.frombuffer(b"[" * 200_000, np.uint8)),
        "an array of 10^12": lambda: _huge(path),
    }.items():
        with tally.case(f"{name} as a result"):
            write()
            said_with(1, path.name)(batch, (), name="status")
            said_with(1, path.name)(batch, (), name="collect")
            said_with(0, "1 results were damaged")(batch, ("--scheduler", "serial"), timeout=300)
            same(batch, expected)
    for name in ("tasks.json", "identities.json", "run.lock"):
        with tally.case(f"{name} of brackets"):
            (batch.out / name).write_text("[" * 200_000)
            os.utime(batch.out / name, (1e9, 1e9))
            said_with(0, "4 of 4 fits done")(batch, ("--scheduler", "serial"), timeout=300)
    tally.judge("crafted and damaged files that end nothing")


def _huge(path: Path) -> None:
    import io

    lie = io.BytesIO()
    np.lib.format.write_array_header_1_0(lie, {"descr": "|u1", "fortran_order": False, "shape": (10**12,)})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("header.npy", lie.getvalue())


# ------------------------------------------------------------------------------------------ streams

STREAM = """
import sys, numpy as np
from glmfit import PopulationGLM, design
folder = sys.argv[1]
X, S = np.load(folder + "/X.npy", mmap_mode="r"), np.load(folder + "/S.npy", mmap_mode="r")
kernel = np.linspace(1, 0, 20)[:, None] ** np.arange(1, 5)
features = design.hstack([X, design.Convolution(S, kernel)])
model = PopulationGLM(regularizer="Lasso", regularizer_strength=1e-3, max_memory=4e5)
model.fit(features, np.load(folder + "/Y.npy", mmap_mode="r"), checkpoint=folder + "/state.npz")
report = model.report_
np.savez(folder + "/end.npz", objective=report.objective, gap=report.gap, bound=report.gap_is_bound)
"""


def streams(cache: Path, scale: float, section: Section) -> None:
    """Forty SIGKILLs at random moments of a streamed fit with a checkpoint: the same optimum within the gaps proved."""
    folder, rng, tally = cache / "faults" / "stream", random.Random(0), Tally(section)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    numbers = np.random.default_rng(0)
    X, S = numbers.normal(size=(60_000, 8)).astype(np.float32), numbers.poisson(0.2, (60_000, 2)).astype(np.float32)
    Y = numbers.poisson(np.logaddexp(0, X @ numbers.normal(size=(8, 4)) * 0.3 - 2)).astype(np.float32)
    for name, array in {"X": X, "S": S, "Y": Y}.items():
        np.save(folder / f"{name}.npy", array)
    command = [sys.executable, "-W", "ignore", "-c", STREAM, str(folder)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    seconds, _ = timed(lambda: subprocess.run(command, check=True, env=environment))
    with np.load(folder / "end.npz") as file:
        expected = {name: file[name] for name in file.files}
    n, killed, ended = max(2, round(40 * scale)), 0, 0
    while killed < n:
        process = subprocess.Popen(command, env=environment)
        try:
            process.wait(rng.uniform(0.4, 1.0) * seconds)
            ended += 1  # it had already finished, which does not count as a kill: start over
            (folder / "state.npz").unlink(missing_ok=True)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed += 1
    with tally.case(f"{n} kills"):
        subprocess.run(command, check=True, env=environment)
        with np.load(folder / "end.npz") as file:
            assert file["bound"].all()
            apart = np.abs(file["objective"] - expected["objective"])
            np.testing.assert_array_less(apart, file["gap"] + expected["gap"] + 1e-12)
    section.note(kills=killed, ended_before_the_kill=ended, seconds_undisturbed=seconds)
    tally.judge("streamed fits that end at the same optimum")


# -------------------------------------------------------------------------------------------- slurm


def slurm(cache: Path, scale: float, section: Section) -> None:
    """A private SLURM: jobs that are cancelled, requeued or killed, refused submissions, an absent controller."""
    from slurm import Slurm, call, why_not

    if why_not():
        raise SystemExit(why_not())
    tally = Tally(section)
    sessions = [{"seed": k, "sleep_s": 1.0} for k in range(16)]
    expected = undisturbed(cache, [{"seed": k} for k in range(16)])
    with Slurm(n_nodes=2, cpus=1) as ours:

        def jobs() -> list[str]:
            return call("squeue", "--noheader", "--states=R", "--format=%A").split()

        def disturbed(name: str, fault: Callable[[], None], workers: int = 2) -> None:
            with tally.case(name):
                batch = make(cache, "slurm", sessions)
                driver = batch.command("--workers", str(workers), *HERE)
                batch.wait_for(4, driver, timeout=120)
                fault()
                said = driver.communicate(timeout=400)
                assert driver.returncode == 0, said
                same(batch, expected)
                assert not list((batch.out / "results").glob(".*"))

        def drain() -> None:
            node = call("squeue", "--noheader", "--states=R", "--format=%N").split()[0]
            call("scontrol", "update", f"NodeName={node}", "State=DRAIN", "Reason=test")
            call("scancel", jobs()[0])
            time.sleep(5)
            call("scontrol", "update", f"NodeName={node}", "State=RESUME")

        def kill(word: str, whose: str) -> None:
            """Kill our processes whose command line contains both texts."""
            for process in psutil.process_iter(["cmdline"]):
                line = " ".join(process.info["cmdline"] or [])
                if word in line and whose in line:
                    with contextlib.suppress(psutil.Error):
                        process.kill()

        def controller_away() -> None:
            ours.controller_down()
            kill("dask_worker", str(cache))
            time.sleep(15)
            ours.controller_up()

        disturbed("no fault", lambda: None)
        disturbed("a job is cancelled", lambda: call("scancel", jobs()[0]))
        disturbed("a job is requeued", lambda: call("scontrol", "requeue", jobs()[0]))
        disturbed("a node is drained and its job cancelled", drain)
        disturbed("a slurmstepd is killed", lambda: kill("slurmstepd", f"[{jobs()[0]}."))
        disturbed("the controller is away while the only worker dies", controller_away, workers=1)
        refusals = {
            "a partition that does not exist": (("--partition", "nosuch"), "nosuch"),
            "more memory than there is": (("--memory", "900GB"), "emory"),
        }
        for name, (options, word) in refusals.items():
            with tally.case(name):
                batch = make(cache, "slurm", sessions[:2])
                said_with(1, word)(batch, ("--workers", "1", *HERE, *options), timeout=60)
        for name in ("my dir", "u50%j 脑", "a;touch${IFS}PWN2;b"):
            with tally.case(f"an output folder called {name}"):
                batch = make(cache, f"slurm-{name}", sessions[:2])
                batch.run("--workers", "1", *HERE, timeout=200)
                assert len(batch.results()) == 2
                assert not list(cache.rglob("PWN2")) and not list(Path.cwd().glob("PWN2"))
        with tally.case("a fit longer than the walltime"):
            batch = make(cache, "slurm", [{"seed": 0}, {"seed": 1, "sleep_s": 300}])
            options = (*HERE[:-1], "0:01:00")
            said_with(1, "1 of 2 fits done", "its process ended 3 times", "longer than the 54 s")(
                batch, ("--workers", "1", *options), timeout=500
            )
    tally.judge("faults of SLURM that end as they should")


# --------------------------------------------------------------------------------------------- load


def load(cache: Path, scale: float, section: Section) -> None:
    """50 000 finished results: read once by a run, collected in at most 500 MB."""
    from glmfit.batch import read_manifest, run
    from glmfit.batch import results as _results
    from glmfit.batch import runner as _run
    from glmfit.batch.plan import plan

    n = max(100, round(50_000 * scale))
    batch = make(cache, "load", [{"seed": k} for k in range(n)])
    _results.make_folders(batch.out)
    tasks = plan(read_manifest(batch.manifest), batch.out)
    from glmfit.batch.fits import run_one

    run_one(tasks[0], batch.out)
    whole = batch.results()[0]
    with np.load(whole, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files if name != "header"}
        header = json.loads(file["header"].tobytes())
    for task in tasks[1:]:
        header["batch"] |= {"key": task.key, "session": task.session, "spec": task.spec}
        text = np.frombuffer(json.dumps(header).encode(), np.uint8)
        np.savez(batch.out / "results" / f"{task.key}.npz", header=text, **arrays)
    before, n_read = _run.is_whole, []
    _run.is_whole = lambda out, key: (n_read.append(key), before(out, key))[1]
    seconds, summary = timed(lambda: run(batch.manifest, out=batch.out, scheduler="serial", progress=False))
    _run.is_whole = before
    assert summary.n_found == n, summary
    code = f"import sys; from glmfit.batch import collect; sys.path.insert(0, {str(ROOT / 'benchmarks')!r})\n"
    code += "from _common import memory_bytes; print(collect(sys.argv[1]).n_fits, memory_bytes('VmHWM'))"
    words, place = [sys.executable, "-c", code, str(batch.out)], os.environ | {"PYTHONPATH": str(ROOT)}
    collecting, done = timed(lambda: subprocess.run(words, check=True, capture_output=True, text=True, env=place))
    n_fits, most = map(int, done.stdout.split())
    command, _ = timed(lambda: batch.run("--scheduler", "serial", timeout=600))
    section.note(results=n, seconds_run=seconds, seconds_command=command, seconds_collect=collecting, collected=n_fits,
                 bytes_of_this_process=memory_bytes("VmHWM"))  # fmt: skip
    section.require("times each result is read by a run", len(n_read) / n, 1, limit=1, against="once", unit="readings")
    section.require("memory of collect", most / 1e6, 500, limit=1, against="500 MB", unit="MB")
    shutil.rmtree(batch.folder)


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    sections = {f.__name__: f for f in (kills, disks, files, streams, slurm, load)}
    sys.exit(run_sections(__doc__, sections, "faults.json"))
