"""The benchmark table of the README shows the committed results."""

import importlib
import json
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def table():
    """Import the script; benchmarks/ is not a package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "benchmarks"))
        yield importlib.import_module("table")


@pytest.fixture
def peers(table):
    """Import the module that makes the tables of the comparison with other packages."""
    return importlib.import_module("_peers_table")


def entry(**changes):
    """One judged requirement as in the JSON."""
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


KINDS = [
    "", "PEERS_", "SOME_", "SHORT_", "LOSSES_", "OTHERS_", "FULL_", "SUITE_", "REASONS_", "NESTED_", "COUPLING_",
    "COMPILE_",
]  # fmt: skip


@pytest.mark.thorough
@pytest.mark.parametrize("kind", KINDS)
def test_pages_show_the_committed_results(table, kind):
    start, end = getattr(table, f"{kind}START"), getattr(table, f"{kind}END")
    file, make = table.TABLES[start][:2]
    assert table.pages(start), f"no page has the marker {start}"
    if not file.exists():
        pytest.skip(f"{file.name} is not committed yet")
    rendered = make(json.loads(file.read_text(encoding="utf-8")))
    for page in table.pages(start):
        text = page.read_text(encoding="utf-8")
        assert text == table.fill(text, rendered, start, end), "run: python benchmarks/table.py --write"


def test_each_recording_has_a_row_that_states_what_did_not_converge(table):
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
    lines = table.render_recordings_in_full(results).splitlines()
    assert len(lines) == 18
    assert lines[2].startswith(
        "| place on a W-maze, 43 656 x 64 x 24 | softplus | glmfit | 9 s | 0.87 s (2 of 24 converged) |"
    )
    assert lines[-1].startswith("Measured 2026-01-02")
    assert lines[6].endswith("| exp | scikit-learn | 9 s | 1.3 s | 2e-07 | 3e-06 |")
    assert lines[7].endswith("| exp | glmfit, the version before | 700 s | over 600 s |  |  |")
    assert lines[8].endswith("| exp | glum |  | failed: MemoryError: no memory |  |  |")


def test_answers_to_users_of_nemos_state_what_was_measured(table):
    nested = {"bins": 25000, "columns": 167, "rank": 155, "units": 30, "fits": 250, "fits_proved": [1.0, 0.99]}
    nested |= {"seconds_of_variants": {"all": 100.0, "speed": 50.0}, "seconds_of_explain": 600.0}
    nested |= {"fits_of_explain": 8040, "explain_proved": 1.0, "nemos_seconds_of_the_grid": 9000.0}
    nested |= {"nemos_relative_gaps": [1e-6, 2e-4], "nemos_share_at_maxiter": 0.5}
    fit = {"held_out_d2": 0.051, "verdict": "stable", "spectral_radius": 0.7234, "diverged_at": [None], "seconds": 0.5}
    coupling = {"runs": 1, "bins": 20000, "neurons": 20, "nemos_seconds": [9.0, 2.0, 4.0], "softplus": fit}
    coupling |= {"group lasso": fit, "exp": fit | {"spectral_radius": "inf", "diverged_at": [7]}}
    once = {"programs": [0, 0], "seconds": [0.05, 0.05]}
    of_nemos = {"programs": [149, 16], "seconds": [50.0, 40.0]}
    compiled = {"sizes": [[1000, 2, 1]], "glmfit": once, "nemos": of_nemos, "nemos+glmfit": once}
    given, lines = {"nested": nested, "coupling": coupling, "compile": compiled}, {}
    record = content()["sections"]["p1"]
    for name, figures in given.items():
        render = table.TABLES[getattr(table, f"{name.upper()}_START")][1]
        lines[name] = render({"sections": {name: record | {"figures": figures}}}).splitlines()
        assert lines[name][-1].startswith("Measured 2026-01-02") and lines[name][-1].endswith(".")
        assert "Not measured yet" in render({"sections": {}})
    assert lines["nested"][0] == "| 25 000 bins, 167 columns of rank 155, 30 units | time | strengths | fits |"
    assert lines["nested"][2].endswith("| 2 min | of each unit | 250 per unit, 99% proved |")
    assert "| 10 min | of each unit, inside the training folds | 268 per unit, 100% proved |" in lines["nested"][3]
    assert lines["nested"][4].endswith("from 2: 1 of 2 at `maxiter`, gaps 1e-06 to 2e-04 |")
    assert lines["coupling"][2] == "| exp, default ridge | 5.10% | stable | – | 1 of 1 |"
    assert lines["coupling"][4] == "| softplus, group lasso | 5.10% | stable | 0.72 | 0 of 1 |"
    assert lines["coupling"][6].endswith("takes 0.5 s, with NeMoS 3 s, and 9 s the first time.")
    size = "1 000 bins, 2 features, 1 neuron"
    assert lines["compile"][0] == f"| programs compiled, time | {size}, first | {size}, again |"
    assert lines["compile"][3] == "| `GridSearchCV` around NeMoS | 149, 50 s | 16, 40 s |"


@pytest.mark.thorough
def test_the_figure_of_the_comparison_is_drawn(table, tmp_path):
    pytest.importorskip("matplotlib")
    table.draw_peers(json.loads(table.PEERS.read_text(encoding="utf-8")), tmp_path / "figure.png")
    assert 10_000 < (tmp_path / "figure.png").stat().st_size < 200_000
    assert table.FIGURE.exists()


def row_of(package, solver, warm, cold=None, **more):
    """Row of peers.json: seconds to gaps of 1e-4 and 1e-6, of a later fit and of the first one."""
    rows = {"warm": warm, "cold": cold or {}}
    rows = {when: dict(zip(("0.0001", "1e-06"), given, strict=False)) for when, given in rows.items()}
    return {"package": package, "solver": solver} | rows | more


def comparison(*rows, section="w_maze_place-exp", **figures):
    """Results of one section of peers.json."""
    problem = {"rows": 43656, "features": 64, "outputs": 24, "link": "exp"}
    figures = {"problem": problem, "peers": {f"{r['package']} {r['solver']}": r for r in rows}, "absent": {}} | figures
    return {"order": [section], "sections": {section: content()["sections"]["p1"] | {"figures": figures}}}


def test_every_solver_has_a_row_with_the_reasons_for_missing_times(peers):
    results = comparison(
        row_of("glmfit", "auto", (0.5, 0.5), (0.7, 2.0), neurons_timed=24, worst_neuron_gap={"1e-06": 4e-5}),
        row_of(
            "nemos", "LBFGS", (3.0, "inf"), (9.0,), ended="over 20 s", worst_neuron_gap={"0.0001": 1e-3, "1e-06": None}
        ),
        row_of("nemos-development", "Newton", ("inf", "inf"), ended="failed: ValueError: no"),
        row_of("sklearn", "lbfgs", (0.05, 6.0), (0.05, 6.0), neurons_timed=8),
        row_of("adelie", "its own", ("inf", "inf")),
        absent={"glum": "is not installed"},
        nemos_development="f" * 40,
    )
    lines = peers.render_peers(results).splitlines()
    assert lines[0] == "**place on a W-maze, 24 neurons, exp** (43 656 rows, 64 features)"
    assert lines[2] == "| | later fit, 1e-4 | later fit, 1e-6 | first fit, 1e-4 | first fit, 1e-6 | worst neuron |"
    assert lines[4:9] == [
        "| glmfit auto | 0.5 s | **0.5 s** | 0.7 s | **2 s** | 4e-05 |",
        "| NeMoS LBFGS | 3 s | over 20 s | 9 s |  | 1e-03 |",
        "| NeMoS, development Newton | failed | failed |  |  |  |",
        "| scikit-learn lbfgs (8 neurons timed) | **50 ms** | 6 s | **50 ms** | 6 s |  |",
        "| adelie its own | not reached | not reached |  |  |  |",
    ]
    assert "One run, 2026-01-02" in lines[10] and lines[10].endswith("Not in this table: glum is not installed.")
    assert lines[-1].startswith("Measured 2026-01-02 on a processor")
    assert lines[-1].endswith("; NeMoS' development branch at commit ffffffffff.")


def test_losses_are_listed_with_their_ratio(peers):
    rows = row_of("glmfit", "auto", (0.5, 0.5), (0.7, 2.0)), row_of("glmfit", "Newton", (0.01, 0.01))
    slower = row_of("glum", "lbfgs", (0.6, "inf"), (0.9,))
    assert peers.render_losses(comparison(*rows, slower)) == "glmfit's `auto` is fastest in 4 of 4 comparisons."
    lines = peers.render_losses(
        comparison(*rows, slower, row_of("sklearn", "sag", (0.2, 0.6), (0.6, 1.9)))
    ).splitlines()
    assert lines[0] == "glmfit's `auto` is fastest in 1 of 4 comparisons. The others:"
    assert lines[4:] == [
        "| place on a W-maze, 24 neurons, exp | later fit | 1e-4 | 0.5 s | scikit-learn: 0.2 s | 2.5 |",
        "| place on a W-maze, 24 neurons, exp | first fit | 1e-4 | 0.7 s | scikit-learn: 0.6 s | 1.17 |",
        "| place on a W-maze, 24 neurons, exp | first fit | 1e-6 | 2 s | scikit-learn: 1.9 s | 1.05 |",
    ]
    never = comparison(row_of("glmfit", "auto", (0.5, "inf"), (0.7,)), row_of("glum", "lbfgs", (0.6, 0.9), (0.9, 0.9)))
    assert [loss["ours"] for loss in peers.losses(never)[0]] == [np.inf, np.inf]  # the worst loss of all


def test_short_comparison_has_the_fastest_solver_of_every_package(peers):
    rows = [row_of("glmfit", "auto", (0.5, 0.6), neurons_timed=24), row_of("glmfit", "Newton", (0.1, 0.1))]
    rows += [row_of("glum", "irls-ls", (0.055, "inf"), neurons_timed=8)]
    rows += [row_of("nemos", "NonlinearCG", (30.0, "inf")), row_of("nemos", "LBFGS", (12.4, 20.0))]
    lines = peers.render_peers_in_short(comparison(*rows)).splitlines()
    assert lines[0] == "| seconds to gaps of 1e-4, 1e-6 | glmfit | NeMoS | glum |"
    assert lines[2] == r"| place on a W-maze, 24 neurons, exp | 0.5, **0.6** | 12, 20 | **0.055**, –\* |"
    assert lines[4] == r"\* Some of the neurons timed, and multiplied."
    assert lines[6].startswith("Measured 2026-01-02 on a processor") and len(lines) == 7
    rows += [row_of("cyanure", "qning", (0.2, 0.3)), row_of("adelie", "path", (0.7, 0.8))]
    lines = peers.render_peers_in_short(comparison(*rows)).splitlines()
    assert lines[0].endswith("| NeMoS | glum | another package |")
    assert lines[2].endswith(r"**0.055**, –\* | adelie: 0.7, 0.8; cyanure: 0.2, **0.3** |")


def test_sections_without_rows_of_peers_show_their_verdicts(peers):
    results = comparison(row_of("glmfit", "auto", (0.5, 0.5)))
    assert peers.render_others(results) == "No results are committed yet."
    paths = entry(
        what="paths", against="adelie", ours=3.0, reference=1.5, ratio=2.0, limit=1 / 3, kind="aim", met=False
    )
    results["order"].append("path")
    results["sections"]["path"] = content(paths)["sections"]["p1"]
    assert list(peers.shown(results)) == ["w_maze_place-exp"]
    lines = peers.render_others(results).splitlines()
    assert lines[2] == "| paths | 3 s | adelie: 1.5 s | 2 | at most 1/3 | **no** |"
    assert lines[4].startswith("Measured 2026-01-02") and len(lines) == 5


@pytest.mark.parametrize(
    ("section", "problem", "words"),
    [
        ("P1-softplus-one", {"outputs": 1, "link": "softplus"}, "spike history, simulated, 1 neuron, softplus"),
        ("softmax-digits", {"outputs": 10, "link": "softmax"}, "softmax, 10 classes, digits"),
        ("softmax-10", {"outputs": 10, "link": "softmax"}, "softmax, 10 classes, simulated"),
        ("lasso-path", {"title": "lasso, 30 strengths"}, "lasso, 30 strengths"),
    ],
)
def test_titles_of_problems_are_words(peers, section, problem, words):
    assert peers.title(section, problem) == words


def test_row_of_a_rival(table):
    lines = table.render(content(entry())).splitlines()
    assert lines[2] == "| P1 warm | 50 ms | a rival: 20 s | 1/400 | at most 1/12 | yes |"


def test_row_of_a_limit_that_was_missed(table):
    missed = entry(what="memory", ours=2e9, reference=1e9, against="limit", unit="bytes", ratio=2, limit=1, met=False)
    lines = table.render(content(missed)).splitlines()
    assert lines[2] == "| memory | 2000 MB |  |  | at most 1000 MB | **no** |"


def test_gaps_and_bounds_become_a_sentence_and_aims_are_omitted(table):
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


def test_fill_replaces_only_the_text_between_the_markers(table):
    text = f"before\n\n{table.START}\n\nold\n\n{table.END}\n\nafter\n"
    once = table.fill(text, "| new |")
    assert once == f"before\n\n{table.START}\n\n| new |\n\n{table.END}\n\nafter\n"
    assert table.fill(once, "| new |") == once
    # The closing marker is added if it is missing.
    assert table.fill(f"before\n\n{table.START}\n\nafter\n", "| new |") == once


def test_fill_needs_the_marker(table):
    with pytest.raises(ValueError, match="benchmark table"):
        table.fill("no marker", "| new |")
