"""Tests that are not in the fast suite are named in a file: the names, and how they get there."""

import ast
from pathlib import Path

import tiers

ROOT = Path(__file__).resolve().parents[2]


def functions(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_name_is_that_of_a_test():
    named = [line.split(" ", 1) for line in tiers.FILE.read_text().splitlines()]
    assert {tier for tier, _ in named} == {"thorough", "slow"}
    by_file = {}
    for _, name in named:
        file, function = name.split("[")[0].split("::")
        by_file.setdefault(file, set()).add(function)
    for file, there in by_file.items():
        assert there <= functions(ROOT / file), f"{file}: make tests/tiers.txt again, or mend the name"


def log(**seconds):
    return "\n".join(f"{s:.2f}s call     tests/laws/test_a.py::{name}" for name, s in seconds.items())


def test_tiers_follow_from_durations():
    first = log(test_quick=1.9, test_dear=3.0, test_dearest=17.0)
    first += "\n" + "\n".join(
        f"{s}s call tests/laws/test_a.py::test_of[{case}]" for case, s in dict(a=0.9, b=3, c=9).items()
    )
    first += "\n3.0s setup    tests/test_docs.py::test_page[a]\n28.0s call     tests/test_docs.py::test_page[a]\n"
    first += "50.0s call     tests/test_docs.py::test_page[b]\n"
    a = "tests/laws/test_a.py::test_"
    slow = {f"{a}of[b]": "slow", f"{a}of[c]": "slow", f"{a}dearest": "slow", "tests/test_docs.py::test_page[b]": "slow"}
    thorough = {f"{a}of": "thorough", f"{a}dear": "thorough", "tests/test_docs.py::test_page": "thorough"}
    assert tiers.sort_tests(first) == slow | thorough
    later = log(test_quick=2.6, test_dear=0.1)  # it compiles what another one did before
    assert tiers.sort_tests(first, later) == slow | thorough | {f"{a}quick": "thorough"}


def test_a_case_has_the_mark_of_its_function_and_its_own(tmp_path, monkeypatch):
    class Item:
        def __init__(self, nodeid):
            self.nodeid, self.marks = nodeid, []

        def add_marker(self, name):
            self.marks.append(name)

    file = tmp_path / "tiers.txt"
    file.write_text("thorough tests/a.py::test_of\nslow tests/a.py::test_of[b c]\n")
    monkeypatch.setattr(tiers, "FILE", file)
    items = [Item(f"tests/a.py::test_{name}") for name in ("of[a]", "of[b c]", "off")]
    tiers.mark(items)
    assert [sorted(item.marks) for item in items] == [["thorough"], ["slow", "thorough"], []]
