"""A type checker accepts what users write, and finds their mistakes."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mypy")
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.thorough
def test_a_type_checker_finds_the_mistakes_of_users_and_no_others(tmp_path):
    """With the settings of pyproject.toml, mypy also reports comments that expect an error that does not occur."""
    command = [sys.executable, "-m", "mypy", "--cache-dir", tmp_path]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no issues found" in done.stdout
