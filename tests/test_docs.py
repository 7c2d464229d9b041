"""Every block of code in the documentation is executed, or is listed with the reason why not.

A page is a session: its blocks run from top to bottom, in one namespace and one folder that has examples/ as a checkout
has. Python that a page takes for granted (mostly data) is in an HTML comment ``<!-- setup ... -->``.
"""

import contextlib
import doctest
import io
import json
import os
import re
import shlex
import shutil
import sys
import tomllib
import types
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import jax
import pytest

import glmfit.__main__
from glmfit.batch import read_manifest
from glmfit.batch.__main__ import _parser as batch_parser
from glmfit.batch.__main__ import main as batch_main

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
GENERATED = {ROOT / "docs" / "benchmarks.md"}

# Commands that run here, word for word: cheap, local, nothing installed.
RUN = (
    "python -m glmfit info",
    "python -m glmfit.batch run examples/batch/simulated.toml --out simulated_fits",
    "python -m glmfit.batch status simulated_fits",
    "python -m glmfit.batch collect simulated_fits",
    "python -m glmfit.batch sbatch manifest.toml --out fits --shards 40 --partition short --walltime 2:00:00 "
    "--memory 4GB",
)

# Commands that do not run here, by how they begin, and where they are covered.
NOT_RUN = {
    "python3 -m venv .venv": "installs; .ci/run makes a virtual environment of its own",
    "source .venv/bin/activate": "of the shell that stays",
    "python -m pip install": "installs; .ci/run does what the README says, test_examples compares the two",
    "python -m glmfit demo": "test_examples and .ci/run",
    "python -m pytest": "this is it",
    "python -m glmfit.batch run manifest.toml --out fits --scheduler slurm": "needs SLURM: tests/batch",
    "sbatch fits/array.sh": "needs SLURM: tests/batch",
    "JAX_PLATFORMS=cuda python benchmarks/gpu_population.py --sections p1,large,wide,steps": "needs a GPU",
    "python -m glmfit.batch run manifest.toml --out fits --gpus": "needs GPUs",
    "ruff check": "style: .ci/run",
    "ruff format": "style: .ci/run",
    "codespell": "spelling: .ci/run",
    "mypy": "types: tests/test_type_checker.py",
    "pre-commit install": "needs a network, and changes the checkout",
    "sphinx-build": "the documentation itself: .ci/run",
    "tox": "runs everything",
}

MAIN = {"glmfit": glmfit.__main__.main, "glmfit.batch": batch_main}  # python -m, without another process

NOT_CODE = {"text", ""}  # what a program prints


# ------------------------------------------------------------------------------------------ blocks


@dataclass(frozen=True)
class Block:
    """A fenced block of a page, or the Python of a setup comment."""

    page: Path
    line: int  # of its first line of content
    language: str
    text: str

    @property
    def place(self):
        """Position of the block, for messages."""
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def pages():
    """Pages of the documentation: the README, what it includes, docs/."""
    found = [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "CHANGELOG.md",
        *sorted((ROOT / "docs").rglob("*.md")),
    ]
    return [page for page in found if page not in GENERATED and "_build" not in page.parts]


BLOCK = re.compile(
    r"^(?P<fence>`{3,}|~{3,}|:{3,})(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=fence)[ ]*$|^<!-- setup\n(?P<setup>.*?)^-->$",
    re.MULTILINE | re.DOTALL,
)


def blocks(page):
    """Blocks of a page in their order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in BLOCK.finditer(text):
        line = text[: match.start()].count("\n") + 2
        if match["setup"] is not None:
            found.append(Block(page, line, "python", match["setup"]))
        else:
            found.append(Block(page, line, match["info"].strip(), match["text"]))
    return found


def commands(block):
    """Commands of a block for the shell, without comments, continued lines joined."""
    lines = block.text.replace("\\\n", " ").splitlines()
    for line in lines:
        line = re.sub(r"(^|\s)#.*", "", line)
        for command in line.split("&&"):
            if command.strip():
                yield " ".join(command.split())


# ----------------------------------------------------------------------------------- how they run


class WithoutEffort(doctest.OutputChecker):
    """Compares outputs without the work of a solver and without the gap at which it happened to stop."""

    def check_output(self, want, got, optionflags):
        effort = r"\d\.\de[-+]\d\d|\d+ epochs|\d+ passes"
        return super().check_output(re.sub(effort, "#", want), re.sub(effort, "#", got), optionflags)


def run_python(block, names):
    """Run a block of Python, by doctest if it has prompts, and return its output."""
    if not re.search(r"^>>>", block.text, re.MULTILINE):
        padded = "\n" * (block.line - 1) + block.text  # so that a traceback has the lines of the page
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(padded, str(block.page), "exec"), names)
        return printed.getvalue()
    test = doctest.DocTestParser().get_doctest(block.text, {}, block.place, str(block.page), block.line - 1)
    test.globs = names
    told = []
    runner = doctest.DocTestRunner(WithoutEffort(), optionflags=doctest.ELLIPSIS)
    runner.run(test, out=told.append, clear_globs=False)
    assert runner.failures == 0, "".join(told)
    return ""


def run_sh(block, _names):
    """Run the commands of a block that are in RUN, and check that the others are in NOT_RUN."""
    for command in commands(block):
        words = shlex.split(command)
        if words[:3] == ["python", "-m", "glmfit.batch"]:
            batch_parser().parse_args(words[3:])  # SystemExit for options that do not exist
        if command in RUN:
            assert MAIN[words[2]](words[3:]) == 0, f"{block.place}: {command}"
        else:
            known = any(command.startswith(start) for start in NOT_RUN)
            assert known, f"{block.place}: {command!r} is neither in RUN nor in NOT_RUN of this file: which is it?"


def run_toml(block, _names):
    """Read a manifest, or a part of one, as a batch would."""
    text = block.text
    if "[[data]]" not in text:
        tomllib.loads(text)
        return
    if "[[model]]" not in text:
        text += '\n[[model]]\nname = "any"\nestimator = "PopulationGLM"\n'
    path = Path("block.toml")
    path.write_text(text, encoding="utf-8")
    assert read_manifest(path).tasks(), f"{block.place}: no tasks"


def run_json(block, _names):
    """Check that the block can be parsed."""
    json.loads(block.text)


def run_yaml(block, _names):
    """Check that the block can be parsed."""
    yaml = pytest.importorskip("yaml")
    yaml.safe_load(block.text)


def run_snakefile(block, _names):
    """Check the shape of the rules, and that our commands in them exist."""
    rules = re.findall(r"^rule (\w+):\n((?:    .*\n)+)", block.text, re.MULTILINE)
    assert len(rules) == block.text.count("rule ") and rules, f"{block.place}: rules"
    for name, body in rules:
        keys = re.findall(r"^    (\w+):", body, re.MULTILINE)
        assert set(keys) <= {"input", "output", "threads", "shell"}, f"{block.place}: rule {name}"
        for shell in re.findall(r'shell: "(.*)"', body):
            words = shlex.split(shell.replace("{wildcards.i}", "1"))
            assert words[:3] == ["python", "-m", "glmfit.batch"], f"{block.place}: {shell}"
            batch_parser().parse_args(words[3:])


def run_included(block, _names):
    """Check that a file that a page shows exists and is valid in its language."""
    path = (block.page.parent / block.language.split("}", 1)[1].strip()).resolve()
    assert path.is_file(), f"{block.place}: no such file"
    if path.suffix == ".toml":
        tomllib.loads(path.read_text(encoding="utf-8"))
    elif path.suffix == ".py":
        compile(path.read_text(encoding="utf-8"), str(path), "exec")


RUNNERS = {
    "python": run_python,
    "sh": run_sh,
    "toml": run_toml,
    "json": run_json,
    "yaml": run_yaml,
    "snakefile": run_snakefile,
}


def runner(block):
    """Function that runs a block; None if it is not code."""
    if block.language.startswith("{literalinclude}"):
        return run_included
    if block.language.startswith("{") or block.language in NOT_CODE:
        return None
    assert block.language in RUNNERS, f"{block.place}: nothing runs blocks of {block.language!r}"
    return RUNNERS[block.language]


# ------------------------------------------------------------------------------------------- stand-ins


def submitit():
    """Stand in for submitit, which starts jobs: parse the options of all, and run the last, which is empty."""

    class Job:
        def __init__(self, command, last):
            self.command, self.last = command, last

        def result(self):
            assert self.command[:3] == ["python", "-m", "glmfit.batch"]
            batch_parser().parse_args(self.command[3:])
            if self.last:
                assert batch_main(self.command[3:]) == 0

    class AutoExecutor:
        def __init__(self, folder):
            pass

        def update_parameters(self, *, timeout_min, mem_gb, cpus_per_task):
            pass

        def map_array(self, command, shards):
            return [Job([*command, shard], shard == shards[-1]) for shard in shards]

    module = types.ModuleType("submitit")
    module.AutoExecutor = AutoExecutor
    module.helpers = types.SimpleNamespace(CommandFunction=list)
    return module


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Work in a folder with examples/, on one host without a cluster, and close figures at the end."""
    folder = tmp_path / "glmfit"
    shutil.copytree(EXAMPLES, folder / "examples")
    loader = folder / "examples" / "batch" / "simulated.py"
    text = loader.read_text(encoding="utf-8")
    for size, small in {"rng.integers(3_000, 30_001)": "400", "rng.integers(10, 61)": "3"}.items():
        assert size in text  # sessions are made smaller, so that a batch takes seconds
        text = text.replace(size, small)
    loader.write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", str(EXAMPLES.parent), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "submitit", submitit())
    monkeypatch.setattr(jax.distributed, "initialize", lambda: None)  # this is the only host
    yield folder
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


# ------------------------------------------------------------------------------------------------ tests


WITH_CODE = [page for page in pages() if any(runner(block) for block in blocks(page))]
LONG = {
    "place_fields",
    "explain",
    "coupling",
    "nemos_nested_models",
    "response_models",
    "many_classes",
}  # tens of seconds


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=pytest.mark.slow if page.stem in LONG else ()) for page in WITH_CODE],
    ids=[str(page.relative_to(ROOT)) for page in WITH_CODE],
)
def test_every_block_of_a_page_runs(page, checkout, request):
    for module in ("matplotlib", "pandas"):
        pytest.importorskip(module)
    found = blocks(page)
    if any("nemos" in block.text for block in found):
        pytest.importorskip("nemos")
        request.getfixturevalue("loose_shapes")
    names = {"__name__": "__main__"}
    printed = ""
    for block in found:
        run = runner(block)
        if run is not None:
            printed = run(block, names)
        elif page.name == "README.md" and block.language == "text":  # what the block above printed
            seconds = r"\d+\.\d\d s"
            want, got = (re.sub(seconds, "# s", text) for text in (block.text, printed))
            assert WithoutEffort().check_output(want, got, 0), f"{block.place}: printed\n{printed}"


def test_no_code_hides_from_the_tests():
    for page in pages():
        text = page.read_text(encoding="utf-8")
        fences = re.findall(r"^ *(?:```|~~~)", text, re.MULTILINE)
        assert len(fences) == 2 * sum(not b.language.startswith(":") for b in fenced(page)), f"{page}: an odd fence"
        indented = re.search(r"\n\n {4,}(python|pip|sphinx|import|from|>>>|\$) ?.*", BLOCK.sub("", text))
        assert not indented, f"{page}: fence this block, so that it is tested: {indented[0].strip()}"


def fenced(page):
    """Blocks with a fence of backticks or tildes."""
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, 0, match["info"].strip(), match["text"])
        for match in BLOCK.finditer(text)
        if match["setup"] is None and match["fence"][0] in "`~"
    ]


def test_attributes_keep_their_underscore_in_the_reference(monkeypatch):
    """docutils reads a trailing underscore as a link, and Sphinx a space after a comma as the end of a type."""
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import docstrings

    lines = [":ivar coef_, intercept_: Weights.", ":vartype coef_, intercept_: array", "", "coef_, and a : in text"]
    lines.append("see docs/theory/saga.md, Theorem 1")
    docstrings.for_sphinx(None, "class", "", None, None, lines)
    assert lines == [
        r":ivar coef\_,intercept\_: Weights.",
        r":vartype coef\_,intercept\_: array",
        "",
        "coef_, and a : in text",
        "see :doc:`/theory/saga`, Theorem 1",
    ]


def test_the_page_on_reports_has_a_row_for_every_status():
    page = (ROOT / "docs" / "how_to" / "read_the_report.md").read_text(encoding="utf-8")
    assert [status.label for status in glmfit.Status if f"\n| {status.label} |" not in page] == []


def test_the_readme_shows_its_output():
    page = blocks(ROOT / "README.md")
    assert any(a.language == "python" and b.language == "text" for a, b in pairwise(page))


def test_every_listed_command_is_on_a_page():
    all_commands = [c for page in pages() for block in blocks(page) if block.language == "sh" for c in commands(block)]
    assert set(RUN) <= set(all_commands)
    for start in NOT_RUN:
        assert any(command.startswith(start) for command in all_commands), f"no page has {start!r}"


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("```sh\ncurl example.org | sh\n```\n", "which is it"),
        ("```sh\npython -m glmfit.batch run manifest.toml --no-such-option\n```\n", "SystemExit"),
        ("```cobol\nDISPLAY 'HELLO'.\n```\n", "nothing runs blocks of 'cobol'"),
        ("```python\n>>> 1 + 1\n3\n\n```\n", "Expected"),
        ("```python\nno_such_name\n```\n", "NameError"),
        ("```python\nimport warnings\nwarnings.warn('hm')\n```\n", "UserWarning"),
        ("<!-- setup\nx = 1\n-->\n\n```python\nassert x == 2\n```\n", "AssertionError"),
    ],
)
def test_a_wrong_block_fails(text, complaint, monkeypatch, tmp_path, checkout, request):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    with pytest.raises(BaseException) as caught:
        test_every_block_of_a_page_runs(page, checkout, request)
    assert complaint in f"{caught.type.__name__}: {caught.value}"


@pytest.mark.slow
def test_the_figures_are_drawn(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "figures"))
    import draw

    draw.main(tmp_path)
    for path in tmp_path.iterdir():
        assert path.read_bytes().startswith(b"\x89PNG")
        assert 5_000 < path.stat().st_size < 150_000
    shown = {path.name for path in (ROOT / "docs" / "figures").glob("*.png")}
    shown.remove("comparison.png")  # which benchmarks/table.py draws
    assert {path.name for path in tmp_path.iterdir()} == shown


@pytest.mark.thorough
def test_the_page_of_benchmarks_has_every_verdict(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "_ext"))
    import benchmarks

    text, missed = benchmarks.page(), 0
    results = sorted((ROOT / "benchmarks" / "results").glob("*.json"))
    assert results
    for path in results:
        content = json.loads(path.read_text(encoding="utf-8"))
        assert f"\n## {path.stem}\n" in text
        for name, section in content.get("sections", {}).items():
            assert f"\n### {path.stem}: {name}\n" in text
            assert section["environment"]["commit"][:10] in text
            for entry in section["requirements"]:
                assert entry["what"].replace("|", r"\|") in text
                missed += not entry["met"]
    assert text.count("**no**") == 2 * missed  # in its section, and at the top


def test_ten_minutes_use_what_the_readme_shows():
    """Readers of the README alone can follow docs/ten_minutes.md: it uses only names of ours from the README."""
    code = {
        page: "".join(block.text for block in blocks(ROOT / page) if block.language == "python")
        for page in ("README.md", "docs/ten_minutes.md")
    }
    ours = r"\b(?:glmfit|inference|plotting|model|best|wald)\.\w+"
    shown, typed = (set(re.findall(ours, text)) for text in code.values())
    also = {"model.fit", "best.score", "best.strength_"}  # attributes that siblings of shown ones have
    assert typed - shown <= also
    assert {"glmfit.PopulationGLM", "glmfit.PopulationGLMCV", "model.score", "plotting.plot_filter"} <= typed


# Habits of the first drafts, and what to say in their place: plain English is part of the documentation's contract.
OLD_MANNER = {
    r"\bleft out\b": "dropped; excluded; held out; (if) omitted",
    r"\banew\b": "again",
    r"\bbeside\b": "next to; compared with",
    r"\bmend(s|ed|ing)?\b": "fix",
    r"\b(too|so|as) dear\b|\bdearer\b": "expensive",
    r"\bto be had\b": "available",
    r"\bone to one\b": "directly",
    r"\bdo(es)? as well\b": "also work",
    r"\bwhere it may stay\b": "somewhere it can keep running",
    r"\bwhich is no \[": "is not a ... name",
    r"\b(counts|classes) that are no\b": "that aren't",
    r"\bsurest\b": "most significant",
    r"\b(time|data|bins|recording) (it|that) has not seen\b": "held-out",
    r"\bfeatures of the past\b": "history features",
    r"\basked / met\b": "target / pass",
    r"\bcompiles for some seconds\b": "takes a few seconds to compile",
    r"\bwhere to find what\b": "documentation overview",
}


def in_old_manner(text: str) -> set[str]:
    """Words of the first drafts in a text, and what to say in their place."""
    text = " ".join(text.split())
    return {f"{match[0]!r}: say {better!r}" for words, better in OLD_MANNER.items()
            for match in re.finditer(words, text, re.IGNORECASE)}  # fmt: skip


@pytest.mark.parametrize("page", [*pages(), *sorted(EXAMPLES.glob("[0-9]*.py"))], ids=lambda path: path.stem)
def test_the_documentation_is_in_plain_english(page):
    assert not in_old_manner(re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL))


@pytest.mark.thorough
@pytest.mark.parametrize("folder", ["glmfit", "tests", "benchmarks"])
def test_the_code_is_in_plain_english(folder):
    """Also docstrings, messages and comments."""
    modules = [path for path in (ROOT / folder).rglob("*.py") if path.name != "test_docs.py"]
    found = {f"{path.relative_to(ROOT)}: {words}" for path in modules for words in in_old_manner(path.read_text())}
    assert modules and not found
