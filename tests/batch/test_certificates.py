"""Folders of certificates: the next run removes those of killed runs, and all others stay."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from glmfit.batch.cluster import certificates

KILLED = """
import os, signal, sys
from pathlib import Path
from glmfit.batch.cluster import certificates

with certificates(Path(sys.argv[1])):
    os.kill(os.getpid(), signal.SIGKILL)
"""


def seen(folder, seconds_ago):
    """Make it look as if its owner was last seen this many seconds ago."""
    then = time.time() - seconds_ago
    os.utime(folder / "owner.lock", (then, then))


@pytest.fixture
def start(tmp_path):
    """Start and end a run that finds what is in the folder."""

    def start():
        with certificates(tmp_path):
            pass

    return start


@pytest.mark.thorough
def test_old_folder_of_a_killed_run_is_removed(importable, tmp_path, start):
    killed = subprocess.run([sys.executable, "-c", KILLED, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    (left,) = tmp_path.glob(".tls-*")
    start()
    assert left.exists()
    seen(left, 4000)
    start()
    assert not left.exists()


def test_folder_of_a_live_run_stays(tmp_path, start):
    with certificates(tmp_path) as (folder, *_):
        seen(folder, 4000)  # this process is alive, whatever the clock says
        start()
        assert folder.exists()
    assert not folder.exists()


@pytest.mark.parametrize("seconds_ago, stays", [(1800, True), (4000, False)])
def test_folder_of_another_host_stays_while_its_owner_is_seen(tmp_path, start, seconds_ago, stays):
    folder = tmp_path / ".tls-theirs"
    folder.mkdir()
    (folder / "owner.lock").write_text(json.dumps({"host": f"not-{socket.gethostname()}", "pid": 1, "since": 0}))
    seen(folder, seconds_ago)
    start()
    assert folder.exists() == stays


def test_folders_of_others_stay(tmp_path, start):
    (tmp_path / ".tls-no-owner").mkdir()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.lock").touch()
    seen(elsewhere, 4000)
    (tmp_path / ".tls-link").symlink_to(elsewhere)
    start()
    assert (tmp_path / ".tls-no-owner").exists() and (elsewhere / "owner.lock").exists()
