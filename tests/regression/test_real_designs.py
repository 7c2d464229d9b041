"""Place fields on a W-shaped track: columns of splines that hardly any row reaches, and sparse neurons."""

import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
from oracles import duality as oracle

from glmfit import PopulationGLM, PopulationGLMCV

pytestmark = pytest.mark.realdata

ROOT = Path(__file__).resolve().parents[2]

GROUPS = [0] * 18 + [1] * 18
PENALTIES = {
    "Lasso": lambda strength: {"regularizer_strength": strength},
    "ElasticNet": lambda strength: {"regularizer_strength": (strength, 0.5)},
    "GroupLasso": lambda strength: {"regularizer_strength": strength, "groups": GROUPS},
}


@pytest.fixture(scope="module")
def maze(shared_data):
    """Products of 6 x 6 B-splines of position, 43 656 bins of 50 ms, 24 neurons."""
    spec = importlib.util.spec_from_file_location("_designs", ROOT / "benchmarks" / "_designs.py")
    designs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(designs)
    return designs.DESIGNS["w_maze_place_6x6"](shared_data)


def weights_and_offset(n_rows):
    rng = np.random.default_rng(0)
    return {"sample_weight": rng.uniform(0.5, 2, n_rows), "offset": 0.3 * rng.normal(size=n_rows)}


def slow_unless(chosen, *values):
    return [pytest.param(v, marks=() if v in chosen else pytest.mark.slow) for v in values]


def check(link, model, X, Y, known, name, strength):
    """Check that every neuron is converged and proved, and within its target by an independent dual bound."""
    report = model.report_
    assert report.converged.all() and report.gap_is_bound.all(), str(report)
    strengths, kinked = np.broadcast_to(strength, Y.shape[1]), {"ratio": 0.5, "groups": GROUPS}
    bound = oracle.gap(link, X, Y, model.coef_, model.intercept_, name, strengths, **kinked, **known)
    # Both bound the same distance. The oracle's is tight unless rounding of the coefficients moves its dual point.
    for n in np.flatnonzero(bound > report.target):
        near = PopulationGLM(link, name, **PENALTIES[name](strengths[n]), tol=1e-9)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the penalty leaves next to nothing")
            near.fit(X.astype(float), Y[:, [n]], **known)
        fit = link, X, Y[:, [n]], model.coef_[:, [n]], model.intercept_[[n]], name, strengths[n]
        bound[n] = oracle.gap(*fit, **kinked, **known, dual_at=(near.coef_, near.intercept_))[0]
    assert np.all(bound <= report.target + 1e-12)


@pytest.mark.thorough
@pytest.mark.parametrize("extras", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("strength", slow_unless([1e-4], 1e-2, 1e-3, 1e-4, 1e-5))
@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("link", slow_unless(["softplus"], "softplus", "exp"))
def test_every_neuron_is_proved_with_kinked_penalties(maze, link, name, strength, extras):
    X, Y = maze
    known = weights_and_offset(len(X)) if extras else {}
    model = PopulationGLM(link, name, **PENALTIES[name](strength))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the penalty leaves next to nothing")  # as 0.01 does
        model.fit(X, Y, **known)
    check(link, model, X, Y, known, name, strength)


@pytest.mark.thorough
@pytest.mark.parametrize("extras", slow_unless([False], False, True))
@pytest.mark.parametrize("name, l1_ratio", [("Lasso", 1.0), pytest.param("ElasticNet", 0.5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("link", slow_unless(["softplus"], "softplus", "exp"))
def test_every_neuron_is_proved_in_a_cross_validation(maze, link, name, l1_ratio, extras):
    X, Y = maze
    known = weights_and_offset(len(X)) if extras else {}
    strengths = [1e-5, 1e-4, 1e-3, 1e-2]
    model = PopulationGLMCV(
        strengths=strengths, cv=2, regularizer=name, l1_ratio=l1_ratio, inverse_link_function=link
    ).fit(X, Y, **known)
    assert model.cv_converged_.all() and model.cv_gap_is_bound_.all()
    check(link, model, X, Y, known, name, model.strength_)
