"""Scripts for sbatch: user input arrives unchanged, and none of it is taken for a directive or a command."""

import itertools
import subprocess
import sys

import pytest

from glmfit.batch.process import lifetime_of, seconds_of, write_array_script
from glmfit.batch.slurm import Job, job_options

NAMES = [
    "my dir/my fits",
    "u50%j 脑/fits%A",
    "a;touch${IFS}PWN2;b",
    'it\'s "x"',
    "my#dir",
    "$(touch PWN2) `touch PWN2`",
]
SHOW = '#!/bin/bash\nprintf "%s\\0" "$@" --secret "$SECRET" > "$SHOW"\n'


def worker_script(folder, **options):
    env = {"NPROC": "1", "SECRET": f"{folder}/key.pem"}
    given = {"gpu": False, "env": env, "logs": folder / "logs", "dashboard": False}
    given |= {"options": {"host": "127.0.0.1", **options.pop("slurm", {})}} | options
    of_the_cluster = ("scheduler_options", "silence_logs")
    of_jobs = {name: value for name, value in job_options(**given).items() if name not in of_the_cluster}
    return Job("tls://scheduler:port", name="worker", **of_jobs).job_script()


def array_script(folder, **slurm):
    return write_array_script(folder / "batch.toml", folder, folder / "array.sh", 4, "test", slurm, 0)


def directives(script):
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if line.startswith("#SBATCH ")]


def arguments(script, tmp_path, monkeypatch):
    """Arguments that a script passes to its last command, which only writes them down."""
    monkeypatch.setenv("SHOW", str(tmp_path / "shown"))
    subprocess.run(["bash", "-c", script], check=True, cwd=tmp_path)
    return (tmp_path / "shown").read_text().split("\0")


@pytest.fixture
def show(tmp_path):
    """A program in place of Python, in a folder with a space in its name."""
    program = tmp_path / "an environment" / "python"
    program.parent.mkdir()
    program.write_text(SHOW)
    program.chmod(0o755)
    return str(program)


@pytest.mark.parametrize("name", NAMES)
def test_paths_reach_the_worker_unchanged(name, tmp_path, monkeypatch, show):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    monkeypatch.setenv("TMPDIR", f"{folder}/tmp")
    monkeypatch.setattr(sys, "executable", show)
    found = arguments(worker_script(folder), tmp_path, monkeypatch)
    given = dict(itertools.pairwise(found))
    assert given["--secret"] == f"{folder}/key.pem"
    assert given["--local-directory"] == f"{folder}/tmp"
    assert not list(tmp_path.rglob("PWN2"))


@pytest.mark.parametrize("name", NAMES)
def test_paths_reach_the_tasks_of_an_array_unchanged(name, tmp_path, monkeypatch, show):
    folder = tmp_path / name
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "executable", show)
    found = arguments(array_script(folder), tmp_path, monkeypatch)
    assert f"{folder}/batch.toml" in found and str(folder) in found
    assert not list(tmp_path.rglob("PWN2"))


@pytest.mark.parametrize("script", [worker_script, array_script])
def test_names_of_logs_are_quoted_and_percent_signs_of_the_folder_doubled(script, tmp_path):
    folder = tmp_path / 'u50%j "脑"'
    (log,) = (one for one in directives(script(folder)) if one.startswith("--output="))
    assert log.startswith(f'--output="{tmp_path}/u50%%j \\"脑\\"/logs/') and log.endswith('"')


BREAKING = [
    {"partition": "main\n#SBATCH --wrap=x"},
    {"account": "lab\ntouch PWN2"},
    {"extra": ["--constraint=a\rb"]},
    {"extra": ["--constraint=avx2", "--comment=\x1b[0m"]},
]


@pytest.mark.parametrize("options", BREAKING)
def test_options_with_control_characters_are_refused(options, tmp_path):
    with pytest.raises(ValueError, match=r"options are lines without control characters.*Give it without"):
        worker_script(tmp_path, slurm=options)
    with pytest.raises(ValueError, match=r"options are lines without control characters.*Give it without"):
        array_script(tmp_path, **options)


@pytest.mark.parametrize("name, why", [("a\nb", "control characters"), ("a\tb", "control"), ("a\\b", "backslashes")])
def test_folders_that_sbatch_cannot_read_are_refused(name, why, tmp_path):
    for script in (worker_script, array_script):
        with pytest.raises(ValueError, match=f"was given.*{why}.*[Rr]ename the folder"):
            script(tmp_path / name)
    assert not list(tmp_path.iterdir())


def test_options_reach_the_script_of_the_job(tmp_path):
    options = {"partition": "main", "account": "lab", "walltime": "02:00:00", "memory": "1GB"}
    options |= {"extra": ["--constraint=avx2"], "prologue": "umask 7"}
    script = worker_script(tmp_path, gpu=True, slurm=options)
    wanted = {"-p main", "-A lab", "-t 02:00:00", "--constraint=avx2", "--gres=gpu:1", "--mem=954M"}
    assert wanted | {"--cpus-per-task=1"} <= set(directives(script))
    lines = script.splitlines()
    assert lines.index("umask 7") < lines.index("export NPROC=1")
    assert "--lifetime 7080s" in lines[-1]


@pytest.mark.parametrize(
    "walltime, seconds",
    [("90", 5400), ("90:30", 5430), ("01:30:00", 5400), ("1-12", 129600), ("1-12:30", 131400), ("1-0:0:5", 86405)],
)
def test_walltimes_are_read_as_slurm_reads_them(walltime, seconds):
    assert seconds_of(walltime) == seconds


def test_invalid_walltime_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"walltime='soon' was given; write it as"):
        array_script(tmp_path, walltime="soon")


@pytest.mark.parametrize(
    "walltime, signal, array, worker", [("0:01:00", 6, 54, 54), ("0:10:00", 60, 540, 540), ("2:00:00", 60, 7140, 7080)]
)
def test_processes_end_a_little_before_the_walltime_and_know_when(walltime, signal, array, worker, tmp_path):
    script = array_script(tmp_path, walltime=walltime)
    assert f"--signal=B:TERM@{signal}" in directives(script)
    assert f"export GLMFIT_BATCH_LIFETIME={array}" in script.splitlines()
    assert f"export GLMFIT_BATCH_LIFETIME={worker}" in worker_script(tmp_path, slurm={"walltime": walltime})


def test_no_lifetime_is_set_without_a_walltime(tmp_path):
    assert lifetime_of(None, 60.0) is lifetime_of("0", 60.0) is None
    script = array_script(tmp_path)
    assert "--signal=B:TERM@60" in directives(script) and "LIFETIME" not in script
