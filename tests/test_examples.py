"""What a newcomer runs: the examples, the commands, the demo. The blocks of README and docs run in test_docs.py."""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import glmfit
from glmfit import demo
from glmfit.__main__ import main
from glmfit.checks import MissingExtra

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted((ROOT / "examples").glob("[0-9]*.py"))

pytest.importorskip("matplotlib")
pytest.importorskip("nitime")

pytestmark = pytest.mark.usefixtures("close_figures")


@pytest.fixture
def close_figures():
    """Close the figures of pyplot."""
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def is_png(path):
    """Whether a file is a PNG of some size."""
    content = path.read_bytes()
    return content.startswith(b"\x89PNG") and len(content) > 5000


def test_there_are_examples():
    assert len(EXAMPLES) >= 3


SLOW = {  # take minutes: solvers of NeMoS run to their tolerance; 171 neurons if the recording is available
    "04_nemos_backend", "08_motor_cortex_tuning",
}  # fmt: skip


@pytest.fixture
def away(tmp_path, monkeypatch):
    """Work in an empty folder, with the recordings if they are available."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GLMFIT_RECORDINGS", str(ROOT.parent / "shared" / "data"))
    return tmp_path


@pytest.mark.thorough(cases=5)
@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if path.stem in SLOW else []) for path in EXAMPLES],
)
def test_example_runs_and_draws(path, away, capsys, request):
    if "nemos" in path.stem:
        request.getfixturevalue("loose_shapes")
    runpy.run_path(str(path), run_name="__main__")
    assert is_png(away / f"{path.stem}.png")
    assert "converged" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("recording", ["m1_reach.npz", "simulated"])
def test_reaches_are_decoded_by_fits_with_decreasing_gaps(recording, away, monkeypatch, request):
    if recording == "simulated":
        monkeypatch.setenv("GLMFIT_RECORDINGS", str(away))
    else:
        request.getfixturevalue("shared_data")
    names = runpy.run_path(str(ROOT / "examples" / "06_decode_reach_direction.py"), run_name="__main__")
    for runs in names["paths"].values():
        for _, gap in runs[len(names["STEPS"]) :]:  # majorization
            assert (np.diff(gap) <= 0).all()
            assert gap[0] > 1e3
            assert 0 <= gap[-1] < 1
    assert len(names["proved"]) == len(names["reports"])
    wrong = np.mean(names["off"] > 0, axis=1)  # few trials to many
    assert wrong[-1] < wrong[0] < names["chance"] - 0.2
    assert wrong[-1] < 0.35
    assert np.mean(names["off"][-1] > 1) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize("topic", ["05_softmax_linear_track", "08_motor_cortex_tuning", "09_coupled_place_cells",
                                   "10_ridge_per_neuron", "13_overdispersed_counts",
                                   "15_unit_lost_halfway", "16_explain_motor_cortex", "17_explain_w_maze",
                                   "18_place_fields_w_maze", "19_open_field_tuning"])  # fmt: skip
def test_examples_on_recordings_run_without_them(topic, away, monkeypatch, capsys):
    monkeypatch.setenv("GLMFIT_RECORDINGS", str(away))
    runpy.run_path(str(ROOT / "examples" / f"{topic}.py"), run_name="__main__")
    assert is_png(away / f"{topic}.png")
    out = capsys.readouterr().out
    assert "simulated" in out and "converged" in out


def test_info_names_versions_and_devices(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert f"glmfit {glmfit.__version__}" in out
    assert f"numpy {np.__version__}" in out
    for word in ("python", "jax", "jax devices", "x64"):
        assert re.search(rf"^{word}", out, re.MULTILINE) or word in out
    assert len(out.splitlines()) < 24


def test_command_line_without_arguments_lists_the_commands():
    done = subprocess.run([sys.executable, "-m", "glmfit"], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 2
    assert "demo" in done.stderr
    assert "info" in done.stderr


def test_the_recording_says_which_extra_is_missing(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtra, match=r"nitime not installed: in the checkout run .*\[demo\]"):
        demo.load_grasshopper()


def test_demo_says_which_extra_is_missing(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "nitime" else object())
    assert main(["demo", "--out", str(tmp_path / "out")]) == 1
    message = capsys.readouterr().err
    assert "nitime" in message
    assert "matplotlib" not in message
    assert 'pip install -e ".[demo]"' in message
    assert not (tmp_path / "out").exists()


FIGURES = {"grasshopper_filters.png", "grasshopper_rate.png", "convergence.png", "population.png"}


def test_the_demo_says_where_it_cannot_write(tmp_path, capsys):
    taken = tmp_path / "taken"
    taken.write_text("")
    assert main(["demo", "--out", str(taken)]) == 1
    assert "taken: File exists; choose a writable folder" in capsys.readouterr().err


@pytest.mark.slow  # CI runs the whole demo
def test_small_demo_converges(tmp_path, capsys):
    result = demo.run(tmp_path, n_neurons=8, n_bins=4_000, recording_s=4.0)
    assert {path.name for path in result["figures"]} == FIGURES
    assert all(is_png(path) for path in result["figures"])
    for model in (result["grasshopper"], result["population"]):
        assert model.report_.converged.all()
    assert result["scores"]["stimulus and spike history"] > result["scores"]["stimulus"] > 0.05
    out = capsys.readouterr().out
    assert "held-out pseudo-R2" in out
    assert "bounds hold" in out


@pytest.mark.slow
def test_demo_in_full_recovers_the_coupling(tmp_path, capsys):
    assert main(["demo", "--out", str(tmp_path)]) == 0
    assert all(is_png(tmp_path / name) for name in FIGURES)
    out = capsys.readouterr().out
    assert float(re.search(r"correlation with the truth (\S+);", out)[1]) > 0.85
    holding, bounds = re.search(r"certificates: (\d+) of (\d+) bounds hold", out).groups()
    assert holding == bounds == "100"


def test_demo_draws_spikes_clear_of_the_level(monkeypatch, rng):
    monkeypatch.setattr(demo, "_save", lambda axes, path: axes)
    time_s = np.arange(2000) * demo._BIN_S
    recording = demo.Recording(time_s, rng.normal(size=2000), rng.poisson(0.05, 2000))
    top, bottom = demo._draw_rates(recording, {"rate": np.full(2000, 0.05)}, slice(None), None)[:, 0]
    top.figure.draw_without_rendering()
    (spikes,) = (entry for entry in bottom.collections if entry.get_label() == "spikes")
    highest = spikes.get_transform().transform(spikes.get_segments()[0])[:, 1].max()
    assert highest < top.get_window_extent().y0


def test_demo_features_are_causal(rng):
    signal = rng.normal(size=(200, 2))
    basis = rng.normal(size=(7, 3))
    for first_lag in (0, 1):
        X = demo._history(signal, basis, first_lag)
        assert np.isnan(X[: 6 + first_lag]).all()
        assert np.isfinite(X[6 + first_lag :]).all()
        changed = signal.copy()
        changed[100:] = 0
        same = demo._history(changed, basis, first_lag)[: 100 + first_lag]
        np.testing.assert_array_equal(same, X[: 100 + first_lag])
        t = 50
        past = signal[t - first_lag - np.arange(7)]  # (lag, signal)
        np.testing.assert_allclose(X[t], (past.T @ basis).ravel(), atol=1e-12)


def test_demo_refractory_part_excludes_the_spike_itself():
    spikes = np.zeros((50, 1))
    spikes[20] = 1
    X = demo._history(spikes, np.ones((5, 1)), 1)[:, 0]
    np.testing.assert_array_equal(np.flatnonzero(X == 1), np.arange(21, 26))


def test_ci_runs_the_commands_of_the_readme():
    readme, ci = (ROOT / "README.md").read_text(), (ROOT / ".ci" / "run").read_text()
    commands = [line.strip() for line in readme.splitlines() if line.strip().startswith("python -m pip install")]
    assert len(commands) == 2
    for command in commands:
        for part in command.split(" && "):
            assert part in ci


def test_a_seed_of_the_demo_is_checked(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["demo", "--seed", "-1"])
    assert ended.value.code == 2 and "--seed is -1; it must be at least 0" in capsys.readouterr().err
