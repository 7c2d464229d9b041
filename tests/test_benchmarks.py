"""Benchmarks that no committed result watches over still run, at a small scale."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_the_large_section_of_a_gpu_runs_on_a_cpu(tmp_path):
    command = [sys.executable, "benchmarks/gpu_population.py", "--sections", "large", "--scale", "0.001"]
    done = subprocess.run([*command, "--cache", tmp_path], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "batches of 4096 rows" in done.stdout
    share = float(done.stdout.rpartition("share_of_single_precision = ")[2].split()[0])
    assert 0 < share < 10  # of what a product alone does in the same process, timed once on a busy machine
