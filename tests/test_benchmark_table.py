"""The benchmark table of the README is what the committed results say."""

import importlib
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def table():
    """Load the script; benchmarks/ is not a package."""
    spec = importlib.util.spec_from_file_location("benchmark_table", ROOT / "benchmarks" / "table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def entry(**changes):
    """One judged requirement as it stands in the JSON."""
    return {
        "what": "P1 warm",
        "ours": 0.05,
        "reference": 20.0,
        "against": "a rival",
        "unit": "s",
        "ratio": 0.0025,
        "limit": 1 / 12,
        "sense": "at most",
        "topic": "cost",
        "kind": "requirement",
        "met": True,
    } | changes


def content(*requirements, **environment):
    """Results with one section."""
    versions = {"jax": "1", "numpy": "2", "scikit-learn": "3", "nemos": "4", "glmfit": "5"}
    record = {
        "date": "2026-01-02T03:04:05+00:00",
        "cpu": "a processor",
        "cores": 2,
        "device": "cpu",
        "python": "3.11.1",
        "commit": "0123456789abcdef",
        "dirty": False,
        "versions": versions,
    }
    section = {"environment": record | environment, "figures": {}, "requirements": list(requirements)}
    return {"order": ["p1", "p2"], "sections": {"p1": section}}


@pytest.mark.parametrize("kind", ["", "PEERS_", "SHORT_", "RECORDINGS_", "FULL_"])
def test_pages_show_the_committed_results(table, kind):
    start, end = getattr(table, f"{kind}START"), getattr(table, f"{kind}END")
    file, make = table.TABLES[start][:2]
    assert table.pages(start), f"no page has the marker {start}"
    rendered = make(json.loads(file.read_text(encoding="utf-8")))
    for page in table.pages(start):
        text = page.read_text(encoding="utf-8")
        assert text == table.fill(text, rendered, start, end), "run: python benchmarks/table.py --write"


def test_recordings_have_a_row_each_and_say_what_did_not_converge(table):
    def fit(seconds, **more):
        return {"seconds": [9.0, seconds, seconds - 0.1, seconds + 4], "gap": 2e-7, "worst_neuron_gap": 3e-6} | more

    section = content()["sections"]["p1"]
    fits = {"glmfit": fit(0.87, settled=2), "newton": fit(1.1, settled=24), "nemos": fit(12.3)}
    slow = {"glmfit": fit(2.0), "sklearn": fit(1.26), "before": {"seconds": [700.0], "ended": "over 600 s"}}
    slow["glum"] = {"seconds": [], "ended": "failed: MemoryError: no memory"}
    section["figures"] = {"rows": 43656, "features": 64, "neurons": 24}
    section["figures"] |= {"softplus": {"ridge-1e-4": fits, "lasso": {}}, "exp": {"ridge-1e-4": slow}}
    names = ["w_maze_place", "w_maze_place_6x6"]
    results = {"order": names, "sections": dict.fromkeys(names, section)}
    lines = table.render_recordings(results).splitlines()
    assert lines[2] == "| place on a W-maze | 43 656 x 64 x 24 | 0.87 s (2 of 24 converged) | 1.1 s | 12 s |"
    assert lines[3] == ""  # the README has four designs
    assert lines[-1].startswith("Measured 2026-01-02")
    lines = table.render_recordings_in_full(results).splitlines()
    assert len(lines) == 18
    assert lines[6].endswith("| exp | scikit-learn | 9 s | 1.3 s | 2e-07 | 3e-06 |")
    assert lines[7].endswith("| exp | glmfit, the version before | 700 s | over 600 s |  |  |")
    assert lines[8].endswith("| exp | glum |  | failed: MemoryError: no memory |  |  |")


def test_the_figure_of_the_comparison_is_drawn(table, tmp_path):
    pytest.importorskip("matplotlib")
    table.draw_peers(json.loads(table.PEERS.read_text(encoding="utf-8")), tmp_path / "figure.png")
    assert 10_000 < (tmp_path / "figure.png").stat().st_size < 150_000
    assert table.FIGURE.exists()


def test_losses_and_failures_of_a_comparison_are_shown(table):
    def row(package, solver, warm, cold):
        return {
            "package": package,
            "solver": solver,
            "warm": {"0.01": warm, "1e-06": warm},
            "cold": {"0.01": cold, "1e-06": "inf"},
        }

    peers = {"glmfit auto": row("glmfit", "auto", 0.5, 2.0), "glum irls-ls": row("glum", "irls-ls", 0.05, "inf")}
    problem = {"rows": 30000, "features": 64, "outputs": 1, "link": "exp", "condition": 2.3}
    results = content()
    results["order"] = ["white-exp-1"]
    figures = {"problem": problem, "peers": peers, "absent": {"nemos": "not installed"}}
    results["sections"] = {"white-exp-1": results["sections"]["p1"] | {"figures": figures}}
    lines = table.render_peers(results).splitlines()
    assert (
        lines[0] == "**Poisson, exp, 1 neuron: independent features (30 000 rows, 64 features, condition number 2.3)**"
    )
    assert lines[2] == "| | warm, 0.01 | warm, 1e-06 | cold, 0.01 | cold, 1e-06 |"
    assert lines[4] == "| glmfit auto | 0.5 s | 0.5 s | **2 s** |  |"
    assert lines[5] == "| glum irls-ls | **50 ms** | **50 ms** |  |  |"
    assert "One run, 2026-01-02" in lines[-3] and lines[-3].endswith("Not in this table: NeMoS not installed.")
    assert lines[-1].startswith("Measured 2026-01-02 on a processor")


def test_first_fit_to_a_tight_gap_reaches_a_loose_one(monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    peers = importlib.import_module("peers")
    assert peers.least_of_tighter({"0.01": 3.0, "0.0001": 2.0, "1e-06": np.inf}) == {
        "0.01": 2.0, "0.0001": 2.0, "1e-06": np.inf,
    }  # fmt: skip
    for section in json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["sections"].values():
        for row in section["figures"]["peers"].values():
            for cost in (row["warm"], row["cold"]):
                cost = {goal: float(seconds) for goal, seconds in cost.items()}
                assert cost == peers.least_of_tighter(cost)


def test_short_comparison_has_the_fastest_solver_of_every_package(table):
    def row(package, solver, *warm):
        return {
            "package": package,
            "solver": solver,
            "warm": dict(zip(("0.01", "1e-06"), warm, strict=True)),
            "cold": {},
        }

    rows = [row("glmfit", "auto", 0.5, 0.6), row("glmfit", "SAGA", 0.1, 0.1), row("glum", "irls-ls", 0.055, "inf")]
    rows += [row("nemos", "BFGS", 30.0, "inf"), row("nemos", "LBFGS", 12.4, 20.0)]
    figures = {"problem": {"rows": 30000, "features": 64, "outputs": 1, "link": "exp", "condition": 2.3}}
    figures["peers"] = {f"{r['package']} {r['solver']}": r for r in rows}
    results = {
        "order": ["white-exp-1"],
        "sections": {"white-exp-1": content()["sections"]["p1"] | {"figures": figures}},
    }
    lines = table.render_peers_in_short(results).splitlines()
    assert lines[0] == "| seconds to gaps of 0.01, 1e-06 | glmfit auto | NeMoS | scikit-learn | statsmodels | glum |"
    assert lines[2] == "| Poisson, exp, 1 neuron: independent features | 0.5, **0.6** | 12, 20 |  |  | **0.055**, – |"
    assert lines[3] == "" and lines[4].startswith("Measured 2026-01-02 on a processor") and len(lines) == 5


def test_comparison_says_in_words_what_its_tables_say():
    """Which package wins where, as docs/comparison.md and the README have it in a few sentences."""
    sections = json.loads((ROOT / "benchmarks" / "results" / "peers.json").read_text())["sections"]

    def ahead_of_auto(name, when, goal):
        peers = sections[name]["figures"]["peers"]
        ours = peers["glmfit auto"][when][goal]
        return {r["package"] for r in peers.values() if float(r[when].get(goal, "inf")) < ours} - {"glmfit"}

    learn, everyone = {"sklearn"}, {"sklearn", "statsmodels", "glum"}
    losses = {  # at gaps of 1e-2, 1e-4 and 1e-6
        ("white-exp-1", "warm"): (everyone, everyone, everyone),
        ("white-exp-1", "cold"): (learn | {"glum"}, learn, learn),
        ("history-exp-1", "warm"): (learn, learn, learn),
        ("history-exp-1", "cold"): (learn, learn, learn),
        ("white-exp-32", "cold"): (everyone, everyone, learn | {"statsmodels"}),
        ("history-exp-32", "cold"): (learn, learn, set()),
        **{(name, when): (learn,) * 3 for name in ("softmax-10", "softmax-digits") for when in ("warm", "cold")},
    }
    assert len(sections) == 10
    for name in sections:
        for when in ("warm", "cold"):
            found = tuple(ahead_of_auto(name, when, goal) for goal in ("0.01", "0.0001", "1e-06"))
            assert found == losses.get((name, when), (set(),) * 3), (name, when)


def test_row_of_a_rival(table):
    lines = table.render(content(entry())).splitlines()
    assert lines[2] == "| P1 warm | 50 ms | a rival: 20 s | 1/400 | at most 1/12 | yes |"


def test_row_of_a_limit_that_was_missed(table):
    missed = entry(what="memory", ours=2e9, reference=1e9, against="limit", unit="bytes", ratio=2, limit=1, met=False)
    lines = table.render(content(missed)).splitlines()
    assert lines[2] == "| memory | 2000 MB |  |  | at most 1000 MB | **no** |"


def test_gaps_and_bounds_become_a_sentence_and_aims_are_left_out(table):
    gap = entry(topic="gap", ours=2e-8, reference=1e-6, against="limit", unit="")
    bound = entry(topic="bound", ours=1.25, reference=1, sense="at least")
    text = table.render(content(entry(), gap, bound, entry(what="a wish", kind="aim")))
    assert "at most 2.0e-08 (target: 1e-06). Smallest reported bound over true gap: 1.2500." in text
    assert "a wish" not in text
    assert sum(line.startswith("| P1") for line in text.splitlines()) == 1


def test_machine_and_commit_are_named(table):
    last = table.render(content(entry(), dirty=True)).splitlines()[-1]
    assert "2026-01-02 on a processor (2 cores, cpu) with Python 3.11.1, jax 1, NumPy 2" in last
    assert "at commit 0123456789 with local changes" in last


def test_fill_replaces_what_is_between_the_markers_and_only_that(table):
    text = f"before\n\n{table.START}\n\nold\n\n{table.END}\n\nafter\n"
    once = table.fill(text, "| new |")
    assert once == f"before\n\n{table.START}\n\n| new |\n\n{table.END}\n\nafter\n"
    assert table.fill(once, "| new |") == once
    # The closing marker is added where it is missing.
    assert table.fill(f"before\n\n{table.START}\n\nafter\n", "| new |") == once


def test_fill_needs_the_marker(table):
    with pytest.raises(ValueError, match="benchmark table"):
        table.fill("no marker", "| new |")
