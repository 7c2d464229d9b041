"""Workers that share a folder of compiled programs do not compile the same one at the same time."""

import os
import subprocess
import sys
import threading
import time

from batch_runs import ROOT

from glmfit.batch._turns import _turn

HOLD = f"""
import sys, time
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from glmfit.batch._turns import _turn
with _turn(Path(sys.argv[1]), "kernel"):
    print("here", flush=True)
    time.sleep(60)
"""


def test_the_second_waits_for_the_first_and_not_for_one_that_was_killed(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "here\n"
    entered = threading.Event()

    def second():
        with _turn(tmp_path, "kernel"):
            entered.set()

    waiting = threading.Thread(target=second)
    waiting.start()
    start = time.monotonic()
    with _turn(tmp_path, "another kernel"):  # of another kernel nobody waits
        assert time.monotonic() - start < 20
    assert not entered.wait(0.3)
    holder.kill()
    assert entered.wait(10)
    waiting.join()
    holder.communicate()


def test_a_folder_that_cannot_be_written_does_no_harm():
    with _turn(ROOT / "pyproject.toml" / "no folder", "kernel"):
        pass


def test_what_was_put_in_the_place_of_a_lock_is_not_waited_for_and_not_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "link").symlink_to("victim")
    for name in ("pipe", "link"):
        with _turn(tmp_path, name):
            pass
    assert (tmp_path / "victim").read_text() == "precious"
