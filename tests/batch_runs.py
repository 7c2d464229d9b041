"""A small batch to run: sessions from a loader that can be slow, fail or die, and what to expect of its fits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]

LOADER = '''
"""Sessions for tests; what is asked of them happens when they are loaded, in the worker."""

import os
import time

import numpy as np

from glmfit.batch import Session


def load(seed, n_rows=300, n_neurons=2, sleep_s=0.0, fail=False, die=False, leave=None):
    if die:
        os._exit(9)
    time.sleep(sleep_s)
    if leave is not None:
        raise {"exit": SystemExit, "interrupt": KeyboardInterrupt, "base": BaseException}[leave](0)
    if fail:
        raise RuntimeError(f"the tracker of session {seed} was off")
    X, y = draw(seed, n_rows, n_neurons)
    return Session(X=X, y=y)


def draw(seed, n_rows=300, n_neurons=2):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n_rows, 3)).astype(np.float32)
    return X, rng.poisson(np.logaddexp(0, X @ rng.normal(size=(3, n_neurons)) - 1))
'''


def draw(arguments):
    """Features and counts that the loader returns for its arguments."""
    scope = {}
    exec(compile(LOADER, "sessions_for_tests", "exec"), scope)
    return scope["draw"](**{k: v for k, v in arguments.items() if k in ("seed", "n_rows", "n_neurons")})


class Batch:
    """A manifest in its own folder, and the command line."""

    def __init__(self, folder: Path, arguments, models=None):
        self.folder, self.out = folder, folder / "out"
        (folder / "sessions_for_tests.py").write_text(LOADER)
        self.manifest = folder / "batch.json"
        models = models or [
            {"name": "ridge", "estimator": "PopulationGLM", "parameters": {"regularizer_strength": 0.01}}
        ]
        data = [{"name": "sim", "loader": "sessions_for_tests:load", "arguments": list(arguments)}]
        self.manifest.write_text(json.dumps({"name": "test", "data": data, "model": models}))

    def words(self, *arguments, name="run"):
        """Words of the command line."""
        manifest = (
            [str(self.manifest), "--out", str(self.out)] if name in ("run", "retry", "sbatch") else [str(self.out)]
        )
        return [sys.executable, "-m", "glmfit.batch", name, *manifest, *map(str, arguments)]

    @property
    def place(self):
        """Folder and environment in which it starts."""
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        return {"cwd": self.folder, "env": os.environ | {"PYTHONPATH": path}}

    def command(self, *arguments, name="run"):
        """Start the command line."""
        words = self.words(*arguments, name=name)
        return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **self.place)

    def run(self, *arguments, name="run", code=0, timeout=120):
        """Run the command line to its end, and return its output."""
        process = self.command(*arguments, name=name)
        try:
            said, complained = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, f"ended with {process.returncode}\n{said}\n{complained}"
        return said + complained

    def results(self):
        """Files of results."""
        return sorted((self.out / "results").glob("*.npz"))

    def wait_for(self, n, process=None, timeout=60):
        """Wait until n results are there."""
        until = time.monotonic() + timeout
        while len(self.results()) < n:
            assert time.monotonic() < until, f"{len(self.results())} of {n} results after {timeout} s"
            assert process is None or process.poll() is None, f"ended early: {process.communicate()}"
            time.sleep(0.01)

    def check(self, n):
        """Check that there are n results, and that each is the expected fit."""
        from glmfit.batch import load_result
        from glmfit.batch.models import make_estimator

        assert len(self.results()) == n
        for path in self.results():
            spec = header_of(path)["spec"]
            expected = make_estimator(spec).fit(*draw(spec["source"]["arguments"]))
            np.testing.assert_allclose(load_result(path).coef_, expected.coef_, rtol=0, atol=1e-3)


def header_of(path):
    """Metadata of the fit in a result."""
    with np.load(path, allow_pickle=False) as file:
        return json.loads(file["header"].tobytes().decode())["batch"]


def kill(pid, how=signal.SIGKILL):
    """Kill a process if it exists."""
    try:
        os.kill(pid, how)
    except ProcessLookupError:
        return False
    return True
