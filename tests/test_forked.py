"""Fits in forked processes: if jax had started before the fork, its threads are missing."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

SCRIPT = f"""
import os, sys, warnings
sys.path.insert(0, {str(ROOT)!r})
warnings.simplefilter("ignore")  # jax's own, at the fork
import jax, numpy as np
from glmfit import PopulationGLM, PopulationGLMCV, ResponseModel, SoftmaxGLM
from glmfit.compilation import refuse_fork

rng = np.random.default_rng(0)
X, Y = rng.normal(size=(200, 2)), rng.poisson(1.0, (200, 2))
FITS = {{
    "SAGA": lambda: PopulationGLM(solver_name="SAGA").fit(X, Y),
    "Newton": lambda: PopulationGLM(solver_name="Newton", regularizer_strength=0.1).fit(X, Y),
    "CV": lambda: PopulationGLMCV(strengths=[0.1, 1.0]).fit(X, Y),
    "ConjugateGradients": lambda: SoftmaxGLM(solver_name="ConjugateGradients").fit(X, Y[:, 0] > 0),
    "SGD": lambda: SoftmaxGLM(solver_name="SGD").fit(X, Y[:, 0] > 0),
    "partial": lambda: SoftmaxGLM(solver_name="ImplicitSGD").partial_fit(X, Y[:, 0] > 0, classes=[False, True]),
    "responses": lambda: ResponseModel(1).fit(200, 2, Y.astype(float)),
}}

def in_child(work):
    sys.stdout.flush()
    child = os.fork()
    if not child:
        work()
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)

def fit_all():
    for name, fit in FITS.items():
        try:
            fit()
            print(name, "fits")
        except RuntimeError as error:
            print(name, str(error).partition(",")[0])

FITS["Newton"]()
in_child(lambda: (refuse_fork(), print("before jax")))  # nothing that fits has started jax
jax.numpy.ones(3) + 1
refuse_fork()
in_child(fit_all)
in_child(lambda: in_child(fit_all))
"""


@pytest.mark.thorough
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_fits_that_need_jax_are_refused_after_a_fork_and_others_run():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, timeout=120)
    on_host = {"Newton", "CV", "ConjugateGradients"}
    names = ["SAGA", "Newton", "CV", "ConjugateGradients", "SGD", "partial", "responses"]
    refused = "this process was forked after JAX had started"
    said = [f"{name} {'fits' if name in on_host else refused}" for name in names]
    assert done.stdout.splitlines() == ["before jax", *said, *said]
