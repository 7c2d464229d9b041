"""Every product of a compiled kernel asks for full precision: on GPUs float32 is otherwise multiplied with 10 bits.

A CPU multiplies in full whatever it is asked for, so that only the programs tell.
"""

import sys
from pathlib import Path

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxprs import equations

import glmfit
from glmfit import MultinomialGLM, PopulationGLM, ResponseModel, SoftmaxGLM
from glmfit._compile import jit

FULL = {jax.lax.Precision.HIGHEST, (jax.lax.Precision.HIGHEST, jax.lax.Precision.HIGHEST)}


class Recorder:
    """Stands for a compiled kernel, and keeps the programs it is called with."""

    def __init__(self, name, kernel, programs):
        self.name, self.kernel, self.programs = name, kernel, programs
        self.__wrapped__ = kernel.__wrapped__

    def __call__(self, *args, **kwargs):
        self.programs.setdefault(self.name, []).append(self.kernel.trace(*args, **kwargs).jaxpr)
        return self.kernel(*args, **kwargs)

    def __getattr__(self, name):
        return getattr(self.kernel, name)


@pytest.fixture
def programs(monkeypatch):
    """Programs of all kernels that are called, by the name of the kernel."""
    found, recorders = {}, {}
    kind = type(jit(lambda x: x))
    for module in [m for name, m in sorted(sys.modules.items()) if name.split(".")[0] == "glmfit"]:
        for name, value in list(vars(module).items()):
            if isinstance(value, kind):
                label = f"{value.__wrapped__.__module__}.{value.__wrapped__.__name__}"
                monkeypatch.setattr(module, name, recorders.setdefault(id(value), Recorder(label, value, found)))
    return found


def in_part(jaxpr):
    """Products of float32 that do not ask for full precision."""
    products = [e for e in equations(jaxpr) if e.primitive.name == "dot_general"]
    return [e for e in products if e.outvars[0].aval.dtype == jnp.float32 and e.params["precision"] not in FULL]


def n_products(programs):
    return sum(e.primitive.name == "dot_general" for p in programs.values() for j in p for e in equations(j))


def populations():
    X, Y = cases.recording(t=300)
    groups = [0, 0, 1, 1, 1]
    for solver in ("SAGA", "LBFGS", "BoundMajorization"):
        yield PopulationGLM(solver_name=solver, max_epochs=3, regularizer_strength=1e-3), X, Y
    yield PopulationGLM(regularizer="GroupLasso", groups=groups, solver_name="SAGA", regularizer_strength=1e-2), X, Y


def classes():
    rng = np.random.default_rng(0)
    X, labels = rng.normal(size=(120, 4)), rng.integers(0, 6, 120)
    yield SoftmaxGLM(solver_name="SAGA", max_epochs=2), X, labels
    for minibatch in ("dual", "jacobi", "newton"):
        options = {"batch_size": 4, "n_negatives": 3, "minibatch": minibatch}
        yield SoftmaxGLM(solver_name="ImplicitSGD", solver_kwargs=options, step=0.1, max_epochs=1), X, labels
    for name in ("UMax", "SGD", "OVE", "NCE", "ImportanceSampling"):
        options = {"batch_size": 4, "n_negatives": 3}
        yield SoftmaxGLM(solver_name=name, solver_kwargs=options, step=0.1, max_epochs=1), X, labels
    counts = rng.poisson(1.0, (120, 6))
    yield MultinomialGLM(solver_name="ImplicitSGD", step=0.1, max_epochs=1), X, counts


def pairs():
    rng = np.random.default_rng(0)
    features, table = rng.normal(size=(30, 3)), rng.normal(size=(30, 8))
    table[rng.random(table.shape) < 0.3] = np.nan
    for solver in ("LBFGS", "GaussNewton", "Adam", "LeftBatches", "SampledPairs"):
        yield ResponseModel(n_components=2, solver_name=solver, loss="squared", max_epochs=2), features, table


@pytest.mark.parametrize("models", [populations, classes, pairs])
@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore:X has columns", "ignore:the penalty"
)
def test_every_product_of_a_fit_asks_for_full_precision(models, programs):
    for model, X, y in models():
        arguments = (X, None, y) if isinstance(model, ResponseModel) else (X, y)
        model.fit(*arguments)
    assert n_products(programs) > 20
    wrong = {
        name: len(found) for name, jaxprs in programs.items() if (found := [e for j in jaxprs for e in in_part(j)])
    }
    assert not wrong


def test_a_kernel_is_compiled_by_the_packages_own_jit_alone():
    """Which is what asks for full precision."""
    root = Path(glmfit.__file__).parent
    for path in sorted(root.rglob("*.py")):
        text = path.read_text()
        made = text.count("jax.jit(") + text.count("@jax.jit") + text.count("(jax.jit,") + text.count("filter_jit")
        assert made == (1 if path.name == "_compile.py" else 0), path.relative_to(root)


def test_products_without_the_packages_jit_are_noticed():
    x = jnp.ones((2, 2), jnp.float32)
    assert len(in_part(jax.make_jaxpr(lambda a: a @ a)(x))) == 1
    assert not in_part(jit(lambda a: a @ a).trace(x).jaxpr)
