"""Every float32 product of every kernel requests full precision, as read from what the solvers run."""

import functools
import importlib
import pkgutil
import warnings
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from cases import recording
from jaxprs import equations
from sklearn.exceptions import ConvergenceWarning

from glmfit import (
    MultinomialGLM,
    PopulationGLM,
    bounds,
    engine,
    observations,
    pairs,
    penalties,
    saga,
    stochastic,
)
from glmfit.compilation import jit
from glmfit.engine.population import PopulationProblem
from glmfit.engine.problem import Params
from glmfit.engine.result import Hints
from glmfit.engine.solvers import NewtonOnDevices
from glmfit.observations.base import RowLoss
from glmfit.pairs import AllPairsProblem, Triples
from glmfit.plugins.nemos.proximal import proximal_gradient
from glmfit.saga.joint import JointProblem, fit_joint
from glmfit.solvers import (
    ConjugateGradients,
    GaussNewton,
    ImplicitSGD,
    LeftBatches,
    LoopOptions,
    SampledPairs,
    SoftmaxProx,
    StationaryOptions,
    TowerAdam,
    TowerLBFGS,
    UMax,
)
from glmfit.stochastic import Pairs, SoftmaxProblem
from glmfit.stochastic.class_steps import MINIBATCHES

KEY = jax.random.key(0)
JITTED = type(jax.jit(lambda: 0))


def products(jaxpr):
    """Float32 products of a jaxpr."""
    found = [equation for equation in equations(jaxpr) if equation.primitive.name == "dot_general"]
    return [equation for equation in found if any(v.aval.dtype == jnp.float32 for v in equation.invars)]


def is_full(product):
    """Whether a product requests full precision for both its factors."""
    asked = product.params["precision"]
    return asked is not None and {jax.lax.Precision.HIGHEST} == set(asked if isinstance(asked, tuple) else (asked,))


def where(product):
    """Line of the package that requests a product."""
    frames = product.source_info.traceback.frames
    return next((f"{Path(f.file_name).name}:{f.line_num}" for f in frames if "/glmfit/" in f.file_name), "?")


class Watched:
    """A kernel that records the jaxprs of all calls from outside of other kernels."""

    def __init__(self, kernel):
        functools.update_wrapper(self, kernel)
        self.kernel, self.jaxprs = kernel, []

    def __call__(self, *args, **options):
        if not any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves((args, options))):
            self.jaxprs.append(self.kernel.trace(*args, **options).jaxpr)
        return self.kernel(*args, **options)

    def __getattr__(self, name):
        return getattr(self.kernel, name)


def watch(monkeypatch):
    """Replace every compiled function of the package by a `Watched`, and return these by full name."""
    modules = [
        importlib.import_module(found.name)
        for package in (bounds, penalties, engine, pairs, saga, stochastic)
        for found in pkgutil.walk_packages(package.__path__, package.__name__ + ".")
    ]
    watched = {}
    for module in modules:
        for name, value in vars(module).copy().items():
            if isinstance(value, JITTED):
                one = watched.setdefault(f"{value.__module__.removeprefix('glmfit.')}.{value.__name__}", Watched(value))
                assert one.kernel is value
                monkeypatch.setattr(module, name, one)
    return watched


# ------------------------------------------------------------------------- what runs: small problems, a few epochs


def populations():
    """Every solver of counts that compiles, penalties with and without splitting."""
    X, Y = recording(t=300)
    for options in (
        {"solver_name": "SAGA", "regularizer": "Lasso", "solver_kwargs": {"check_every": 1}},
        {"solver_name": "SAGA", "regularizer": "Lasso", "solver_kwargs": {"sampling": "subsets"}},
        {"solver_name": "SAGA"},
    ):
        PopulationGLM(**{"regularizer_strength": 1e-2, "max_epochs": 4} | options).fit(X, Y)
    fit = PopulationGLM(regularizer_strength=1e-2, solver_name="SAGA", max_epochs=4).fit
    fit(X, Y, offset=np.full((len(X), 1), 0.1))


def devices():
    """Fits whose rows are on devices, penalties with and without kinks."""
    X, Y = recording(t=300)
    for name, solver in (("Ridge", "ConjugateGradients"), ("Lasso", "ProximalNewton")):
        PopulationGLM(regularizer=name, regularizer_strength=1e-2, solver_name=solver, devices="all").fit(X, Y)
    softplus = observations.from_inverse_link("softplus")
    problem = PopulationProblem(X, Y, softplus, penalties.Ridge(1e-2), dtype=np.float32, devices=jax.devices())
    own = Hints(curved=np.ones(Y.shape[1], bool), fall=np.ones(Y.shape[1]))
    ConjugateGradients(hints=own).run(problem)  # each with its Hessian
    NewtonOnDevices(problem, LoopOptions(), seed=0).run()
    problem.there = jax.device_put(problem.X, jax.devices()[0])
    NewtonOnDevices(problem, LoopOptions(), seed=0).run()


class Softmax(RowLoss):
    n_coupled = 5

    def total(self, y, eta, weight):
        return -jnp.sum(weight[:, 0] * jnp.sum(y * jax.nn.log_softmax(eta), axis=1))


def coupled_columns():
    """A loss that couples columns and is known by its value alone."""
    X, label = labelled()
    for name in ("Ridge", "ElasticNet"):
        penalty = penalties.make(name, (1e-2, 0.5) if name == "ElasticNet" else 1e-2, X.shape[1], 5)
        problem = JointProblem(X, np.eye(5, dtype=np.float32)[label], Softmax(), penalty, 5)
        fit_joint(problem, Params(np.zeros((3, 5)), np.zeros(5)), key=KEY, max_epochs=4)


def classes():
    """Every kind of step of the solvers that sample classes, dense and sparse features, labels and counts."""
    X, label = labelled()
    pairs = Pairs(np.arange(len(X)), label, np.ones(len(X)))
    dense, sparse = (SoftmaxProblem(x, pairs, 12, 1e-2, True, None) for x in (X, sp.csr_array(X)))
    many = ImplicitSGD(9)  # enough classes for another way to read their weights
    for solver in (many, ImplicitSGD(2), *(ImplicitSGD(2, 4, how) for how in MINIBATCHES), UMax(2, 4), SoftmaxProx()):
        update(solver, dense)
    for solver in (many, UMax(2, 4), SoftmaxProx()):
        update(solver, sparse)
    update(UMax(2, bounded=True), SoftmaxProblem(X, pairs, 12, 1e-2, False, None))
    counts = np.random.default_rng(0).poisson(1.0, (len(X), 5))
    options = {"alpha": 1.0, "visit": "row"}
    MultinomialGLM(solver_name="ImplicitSGD", solver_kwargs=options, step=0.1, max_epochs=1).fit(X, counts)


def towers():
    """Every solver of responses, tables and records, entities of their own and with features, all kinds of priors."""
    rng = np.random.default_rng(0)
    table = rng.poisson(1.0, (20, 15)).astype(np.float32)
    table[rng.random(table.shape) < 0.3] = np.nan
    left, right = np.nonzero(~np.isnan(table))
    triples = Triples(left, right, table[left, right])
    sides = rng.normal(size=(20, 4)), rng.normal(size=(15, 3))
    prior = rng.normal(size=(20, 2)), rng.normal(size=(15, 2))
    cost = rng.uniform(0.3, 1.5, 20), rng.uniform(0.3, 1.5, 15)
    deep = AllPairsProblem(*sides, table, "poisson", 0.2, *cost, prior, 0.4, layout="dense", dtype=np.float32)
    plain = AllPairsProblem(20, 15, triples, "poisson", 0.2, strength=0.4, layout="triples", dtype=np.float32)
    every = TowerLBFGS(), GaussNewton(), TowerAdam(n_steps=2), LeftBatches(5), SampledPairs(16, 32)
    for problem, hidden, some in ((deep, (4,), every), (plain, (), every[:2])):
        theta = problem.draw_params(KEY, 3, hidden, hidden, scale=0.5)
        for solver in some:
            solver.run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=2))
    with mock.patch("glmfit.pairs.descent.in_portions", lambda theta: True):
        TowerLBFGS().run(problem, theta, key=KEY, options=StationaryOptions(max_epochs=30))


def labelled(n_classes=5):
    """Features and labels, single precision."""
    rng = np.random.default_rng(0)
    return rng.normal(size=(60, 3)).astype(np.float32), rng.integers(0, n_classes, 60)


def update(solver, problem):
    """Run one epoch."""
    solver.update(problem, solver.init_state(problem, None, key=KEY), 0.1, 1.0)


AREAS = {
    populations: ("saga.spectral_rows",),
    devices: ("engine.devices.rows", "engine.devices.descent", "engine.devices.newton"),
    coupled_columns: ("saga.joint",),
    classes: ("stochastic.class_kernels", "stochastic.class_sampler"),
    towers: ("pairs.descent", "pairs.metric", "pairs.objective", "pairs.sampling", "pairs.stationary"),
}


def test_every_kernel_belongs_to_an_area(monkeypatch):
    modules = {name.rpartition(".")[0] for name in watch(monkeypatch)}
    assert modules == {module for of in AREAS.values() for module in of}


@pytest.fixture
def quickly():
    """Compile with few optimisations: what runs does not matter here, only what is asked for."""
    before = jax.config.values["jax_disable_most_optimizations"]
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)


@pytest.mark.thorough
@pytest.mark.usefixtures("quickly")
@pytest.mark.parametrize("area", AREAS, ids=lambda area: area.__name__)
def test_kernels_multiply_in_full_precision(area, monkeypatch):
    watched = watch(monkeypatch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        area()
    unseen = [name for name, one in watched.items() if name.rpartition(".")[0] in AREAS[area] and not one.jaxprs]
    assert not unseen
    found = [(name, product) for name, one in watched.items() for jaxpr in one.jaxprs for product in products(jaxpr)]
    assert found
    rough = sorted({f"{name}: {where(product)}" for name, product in found if not is_full(product)})
    assert not rough, "\n".join(rough)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: bounds.lanczos(lambda v: x @ v, x[:, :1], 2),
        lambda x: proximal_gradient(lambda w: jnp.sum((x @ w - 1) ** 2), lambda w, _: w, lambda _: 0.0, x, 1e-3, 5),
    ],
    ids=["lanczos", "proximal_gradient"],
)
def test_functions_compiled_by_others_multiply_in_full_precision(function):
    found = products(jax.make_jaxpr(function)(jnp.eye(3, dtype=jnp.float32)))
    assert found
    assert all(map(is_full, found))


@pytest.mark.thorough
def test_a_loss_of_nemos_is_called_in_full_precision(monkeypatch):
    """Also outside of our kernels: its value is compared with ours, at the start and at the end."""
    nemos = pytest.importorskip("nemos", minversion="0.2.8")
    importlib.import_module("glmfit.plugins.nemos")
    asked = []
    loss = nemos.observation_models.PoissonObservations._negative_log_likelihood

    def watched(*args, **options):
        asked.append(jax.config.jax_default_matmul_precision)
        return loss(*args, **options)

    monkeypatch.setattr(nemos.observation_models.PoissonObservations, "_negative_log_likelihood", watched)
    model = nemos.glm.PopulationGLM(regularizer="Ridge", regularizer_strength=0.1, solver_name="SAGA[glmfit]")
    with jax.numpy_rank_promotion("allow"):
        model.fit(*(a.astype(np.float32) for a in recording(t=300)))
    assert len(asked) > 1 and set(asked) == {"highest"}


def test_users_precision_of_jax_is_unchanged():
    x = jnp.eye(2, dtype=jnp.float32)
    with jax.default_matmul_precision("bfloat16"):
        kernel = jit(lambda x: x @ x)
        (own,), (ours,) = products(jax.make_jaxpr(lambda x: x @ x)(x)), products(kernel.trace(x).jaxpr)
        assert jax.config.jax_default_matmul_precision == "bfloat16"
    assert is_full(ours)
    assert not is_full(own)
    assert jax.config.jax_default_matmul_precision is None
