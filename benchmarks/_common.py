"""Common tools of the benchmarks: record of the machine, timings, memory, fresh processes, results as JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import select
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from _format import quantity

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PACKAGES = ("jax", "jaxlib", "numpy", "scipy", "scikit-learn", "nemos", "jaxopt", "statsmodels", "glum")

CHECKOUT = Path(os.environ.get("GLMFIT_CHECKOUT", ROOT))  # whose glmfit is measured; it need not be installed
sys.path.insert(0, str(CHECKOUT))


# -------------------------------------------------------------------------------------- environment


def environment() -> dict:
    """Record what a timing depends on: machine, versions, commit. No names or paths of the machine."""
    import jax

    import glmfit

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "system": platform.system(),
        "python": platform.python_version(),
        "device": jax.devices()[0].device_kind,
        "versions": {"glmfit": glmfit.__version__} | {name: _version(name) for name in PACKAGES},
    } | commit(ROOT)


def commit(checkout: Path) -> dict:
    """Commit of a checkout, and whether the code differs from it; changes in the results do not count.

    On another machine, a copy without git history takes the commit from the variable GLMFIT_COMMIT.
    """
    told = os.environ.get("GLMFIT_COMMIT")
    return {
        "commit": told or _git(checkout, "rev-parse", "HEAD"),
        "dirty": not told and bool(_git(checkout, "status", "--porcelain", "--", ".", ":(exclude)benchmarks/results")),
    }


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def subject(checkout: Path) -> str | None:
    """First line of the message of the commit of a checkout."""
    return _git(checkout, "log", "-1", "--format=%s")


def _git(checkout: Path, *arguments: str) -> str | None:
    command = ["git", "--no-optional-locks", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None


# ------------------------------------------------------------------------------------------ timings


def timed(call: Callable) -> tuple[float, object]:
    """Seconds a call takes, and what it returns."""
    start = time.perf_counter()
    value = call()
    return time.perf_counter() - start, value


def interleaved(calls: dict[str, Callable], repeats: int, settle_s: float = 0.1) -> dict[str, list[float]]:
    """Time calls in turns, a b a b ..., so that a slow phase of the machine affects all of them equally.

    A short sleep before each call lets the threads of the previous call stop spinning.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            time.sleep(settle_s)
            seconds[name].append(timed(call)[0])
    return seconds


def median(values) -> float:
    """Median as a float."""
    return float(statistics.median(values))


class CompileCount:
    """Count of the programs that jax compiles inside a ``with`` block, by jax's own events."""

    def __enter__(self):
        import jax

        self.programs = 0
        self._on = True
        jax.monitoring.register_event_duration_secs_listener(self._listen)
        return self

    def __exit__(self, *_):
        self._on = False  # listeners cannot be removed

    def _listen(self, event: str, _seconds: float, **_facts) -> None:
        if self._on and event == "/jax/core/compile/backend_compile_duration":
            self.programs += 1


# ------------------------------------------------------------------------- memory, fresh processes


def memory_bytes(field: str) -> int:
    """Resident memory of this process: "VmRSS" now, "VmHWM" at its highest; Linux only."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def start_fresh(task: str, *, checkout: Path = ROOT, tree=None, stdin=None, **arguments) -> subprocess.Popen:
    """Start a task of _worker.py in a fresh process, with nothing compiled yet, using the glmfit of a checkout.

    The source under ``tree`` takes precedence over installed packages.
    """
    environment_ = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
    environment_["GLMFIT_CHECKOUT"] = str(checkout)
    if tree is not None:
        environment_["PYTHONPATH"] = os.pathsep.join([str(tree), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, str(Path(__file__).with_name("_worker.py")), task, json.dumps(arguments)]
    return subprocess.Popen(command, env=environment_, stdin=stdin, stdout=subprocess.PIPE, text=True)


def fresh(task: str, **arguments) -> dict:
    """Run a task of _worker.py in a fresh process and return what it reports."""
    process = start_fresh(task, **arguments)
    told, _ = process.communicate()
    if process.returncode:
        raise RuntimeError(f"the fresh process of task {task} ended with status {process.returncode}")
    return json.loads(told.splitlines()[-1])


class Contender:
    """A fresh process that fits on request, in turns with others; its first fit is the first of the process.

    ``compiles`` states whether a later fit differs from the first. A fit that takes longer than ``limit_s`` is ended,
    together with the contender.
    """

    def __init__(self, limit_s: float, *, task: str = "contend", compiles: bool = True, **arguments):
        self.limit_s, self.compiles = limit_s, compiles
        self.seconds, self.told, self.ended = [], {}, None
        self.process = start_fresh(task, stdin=subprocess.PIPE, **arguments)

    def wait(self) -> None:
        """Wait until imports are done and the data are in memory."""
        self._hear(600.0)

    def fit(self, **changes) -> None:
        """Fit once more, optionally with changed parameters."""
        if self.ended is None:
            with contextlib.suppress(BrokenPipeError):  # the process has died; there is no reply
                self.process.stdin.write(json.dumps(changes) + "\n")
                self.process.stdin.flush()
            if told := self._hear(self.limit_s):
                self.seconds.append(told.pop("seconds"))
                self.told = told

    def has_time(self, repeats: int) -> bool:
        """Whether to fit again: at least one later fit, up to ``repeats`` if they fit into the limit."""
        if self.ended or not self.seconds or len(self.seconds) > repeats:
            return False
        must = self.compiles and len(self.seconds) == 1
        return must or sum(self.seconds) + self.seconds[-1] <= self.limit_s

    def figures(self) -> dict:
        """Seconds of every fit, the report of the last one, and the reason if the process ended early."""
        ended = {} if self.ended is None else {"ended": self.ended}
        return {"seconds": self.seconds} | self.told | ended

    def close(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.communicate()

    def _hear(self, limit_s: float) -> dict | None:
        ready, _, _ = select.select([self.process.stdout], [], [], limit_s)
        line = self.process.stdout.readline() if ready else None
        told = json.loads(line) if line else {"error": f"status {self.process.wait()}"} if ready else {}
        if "error" in told or not ready:
            self.ended = f"failed: {told['error']}" if ready else f"over {limit_s:g} s"
            self.process.kill()
            return None
        return told


# ------------------------------------------------------------------------------------------ results


def write_atomically(path: Path, write: Callable) -> None:
    """Write a file by ``write(file)`` under a temporary name and move it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            write(file)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def write_json(path: Path, content: dict) -> None:
    """Write JSON with sorted keys and six significant digits, atomically."""
    text = json.dumps(plain(content), indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomically(path, lambda file: file.write(text.encode()))


def plain(value):
    """Rounded Python numbers of nested NumPy and Python values; non-finite values become text."""
    if isinstance(value, dict):
        return {str(k): plain(v) for k, v in value.items()}
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    return value


class Section:
    """Figures and verdicts of one section; every verdict is printed immediately."""

    def __init__(self, name: str):
        self.name = name
        self.figures: dict = {}
        self.requirements: list[dict] = []
        self.save: Callable = lambda: None  # writes the results so far

    def note(self, **figures) -> None:
        """Keep figures and print them."""
        self.figures |= figures
        for name, value in figures.items():
            print(f"    {name} = {_short(plain(value))}", flush=True)

    def require(
        self,
        what: str,
        ours,
        reference,
        *,
        limit,
        against: str,
        unit: str = "s",
        topic: str = "cost",
        at_least: bool = False,
        aim: bool = False,
    ) -> None:
        """Judge ``ours / reference`` against a limit (1 if the reference is itself the limit, which may be 0)."""
        ours, reference = float(ours), float(reference)
        ratio = ours / reference if reference else 1.0 + ours
        met = ratio >= limit if at_least else ratio <= limit
        entry = {
            "what": what,
            "ours": ours,
            "against": against,
            "reference": reference,
            "unit": unit,
            "ratio": ratio,
            "limit": float(limit),
            "sense": "at least" if at_least else "at most",
            "topic": topic,
            "kind": "aim" if aim else "requirement",
            "met": bool(met),
        }
        self.requirements.append(entry)
        print("  " + describe(entry), flush=True)

    def content(self) -> dict:
        """Content of the section in the JSON file."""
        return {"figures": self.figures, "requirements": self.requirements}


def describe(entry: dict) -> str:
    """One line: requirement, measured, ratio, verdict."""
    measured = f"{entry['ours']:.6g}" if entry["topic"] == "bound" else quantity(entry["ours"], entry["unit"])
    return (
        f"{entry['kind']}: {entry['what']} | measured {measured} | "
        f"{entry['against']} {quantity(entry['reference'], entry['unit'])} | ratio {entry['ratio']:.3g}, "
        f"{entry['sense']} {entry['limit']:.3g} | met {'yes' if entry['met'] else 'NO'}"
    )


def _short(value) -> str:
    text = json.dumps(value)
    return text if len(text) <= 160 else text[:157] + "..."


def run_sections(doc: str, sections: dict[str, Callable], file_name: str, arguments=None, resume: bool = False) -> int:
    """Run the sections a user names (default all) and store their figures; return 0 if every requirement is met.

    Aims do not count. A section is called with the folder of cached data, the scale of the problem, and the `Section`
    to fill. With ``resume`` it keeps existing figures if the same code made them on the same machine. Results of
    sections that no longer exist are dropped.
    """
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--sections", default=",".join(sections))
    parser.add_argument("--scale", type=float, default=1.0, help="share of the rows; below 1 nothing is written")
    parser.add_argument("--cache", default=str(Path(tempfile.gettempdir()) / "glmfit-benchmarks"))
    options = parser.parse_args(arguments)
    cache, path = Path(options.cache), RESULTS / file_name
    cache.mkdir(parents=True, exist_ok=True)
    content = json.loads(path.read_text()) if path.exists() else {"sections": {}}
    content["order"] = list(sections)
    content["sections"] = {name: kept for name, kept in content["sections"].items() if name in sections}
    met = True
    for name in options.sections.split(","):
        section = Section(name)
        record, stored = environment(), content["sections"].get(name)
        if resume and stored and _same_code_and_machine(record, stored["environment"]):
            section.figures, section.requirements = stored["figures"], stored["requirements"]

        def save(name=name, section=section, record=record):
            content["sections"][name] = {"environment": record} | section.content()
            if options.scale == 1.0:
                write_json(path, content)

        section.save = save
        print(f"{name}: {sections[name].__doc__}", flush=True)
        sections[name](cache, options.scale, section)
        met &= all(e["met"] for e in section.requirements if e["kind"] == "requirement")
        save()
        if options.scale == 1.0:
            print(f"wrote {path.relative_to(ROOT)}")
    return 0 if met else 1


def _same_code_and_machine(one: dict, other: dict) -> bool:
    passing = ("date", "load_before")
    return not one["dirty"] and all(plain(one[key]) == other.get(key) for key in one if key not in passing)
