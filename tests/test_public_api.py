"""The public names, and the documentation of each."""

import importlib
import inspect
import pkgutil
import re

import public_api
import pytest
from hints import hints_of

import glmfit

PUBLIC = [
    "ClassReport",
    "FitReport",
    "MultinomialGLM",
    "MultinomialGLMCV",
    "PopulationGAM",
    "PopulationGLM",
    "PopulationGLMCV",
    "ResponseModel",
    "ResponseReport",
    "SmoothReport",
    "SoftmaxGLM",
    "SoftmaxGLMCV",
    "Status",
    "__version__",
    "spike_identities",
]
SUBPACKAGES = (
    "batch", "bounds", "design", "engine", "inference", "observations", "pairs", "penalties", "plotting", "solvers",
    "stochastic",
)  # fmt: skip


def test_all_is_exact():
    assert sorted(glmfit.__all__) == sorted(PUBLIC)


def test_the_interface_is_the_frozen_one():
    frozen = public_api.FROZEN.read_text(encoding="utf-8")
    assert public_api.render() == frozen, "if this is intended: python tests/public_api.py > tests/public_api.txt"


def test_version_is_a_release_number():
    assert re.fullmatch(r"\d+\.\d+\.\d+([a-z.]+\d+)?", glmfit.__version__)


def all_modules():
    """Every module of the package that can be imported without its extras."""
    names = ["glmfit"]
    for info in pkgutil.walk_packages(glmfit.__path__, "glmfit."):
        if not info.name.endswith("__main__") and not info.name.startswith(("glmfit.plugins", "glmfit.batch")):
            names.append(info.name)
    return names


MODULES = all_modules()


def exported():
    """Objects that the package and its subpackages export: {dotted name: object}."""
    found = {f"glmfit.{key}": getattr(glmfit, key) for key in glmfit.__all__}
    for name in SUBPACKAGES:
        module = importlib.import_module(f"glmfit.{name}")
        found |= {f"glmfit.{name}.{key}": getattr(module, key) for key in module.__all__}
    return {key: value for key, value in found.items() if inspect.isclass(value) or callable(value)}


def own_methods(cls):
    """Public methods and properties written in the class itself or in a base of the package."""
    for key in dir(cls):
        if key.startswith("_"):
            continue
        value = inspect.getattr_static(cls, key)
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if inspect.isfunction(value) and value.__module__.startswith("glmfit"):
            yield key, value


def sections(doc):
    """Names of the numpydoc sections of a docstring."""
    return set(re.findall(r"^([A-Z][A-Za-z ]+)\n-{3,}$", inspect.cleandoc(doc), flags=re.MULTILINE))


def parameters(function):
    """Parameters a caller may pass, without self, *args and **kwargs."""
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.name not in ("self", "cls") and p.kind not in kinds
    ]


def missing_sections(function):
    """Parts that the docstring of a public function lacks."""
    have, lacks = sections(function.__doc__ or ""), []
    named = parameters(function)
    if named and "Parameters" not in have:
        lacks.append("Parameters")
    lacks += [f"parameter {name}" for name in named if not re.search(rf"\b{name}\b", function.__doc__ or "")]
    body = inspect.getsource(function)
    returns = re.search(r"^\s+(return|yield) (?!None\b)\S", body, flags=re.MULTILINE)
    if returns and not have & {"Returns", "Yields"}:
        lacks.append("Returns")
    return lacks


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_docstring(name):
    if "." in name:
        assert importlib.import_module(name).__doc__


@pytest.mark.parametrize("name", sorted(exported()))
def test_every_public_name_has_a_docstring(name):
    value = exported()[name]
    assert inspect.getdoc(value)
    if inspect.isclass(value):
        lacking = [key for key, method in own_methods(value) if not _inherited_doc(value, key)]
        assert not lacking


def _inherited_doc(cls, key):
    """Docstring of a method or of what it overrides."""
    return any(inspect.getdoc(vars(base)[key]) for base in cls.__mro__ if key in vars(base))


@pytest.mark.parametrize("name", sorted(k for k, v in exported().items() if not inspect.isclass(v)))
def test_exported_functions_document_parameters_and_results(name):
    assert not missing_sections(exported()[name])


@pytest.mark.parametrize("name", sorted(k for k, v in exported().items() if inspect.isclass(v)))
def test_exported_classes_document_their_fields(name):
    cls = exported()[name]
    hints = vars(cls).get("__annotations__", {})
    fields = {key for key, hint in hints.items() if "ClassVar" not in str(hint) and not key.startswith("_")}
    documented = " ".join(base.__doc__ or "" for base in cls.__mro__ if base.__module__.startswith("glmfit"))
    assert not [key for key in fields if not re.search(rf"\b{key}\b", documented)]


@pytest.mark.parametrize("name", sorted(exported()))
def test_type_hints_can_be_read(name):
    value = exported()[name]
    for one in (value, *(method for _, method in own_methods(value))) if inspect.isclass(value) else (value,):
        assert isinstance(hints_of(one), dict)


ESTIMATOR_METHODS = ("fit", "predict", "score", "simulate", "save", "load")


@pytest.mark.parametrize("method", ESTIMATOR_METHODS)
def test_estimator_methods_document_parameters_and_results(method):
    assert not missing_sections(getattr(glmfit.PopulationGLM, method))


def test_estimator_documents_every_parameter_and_attribute():
    doc = glmfit.PopulationGLM.__doc__
    assert {"Parameters", "Attributes", "Examples"} <= sections(doc)
    names = [*parameters(glmfit.PopulationGLM), "coef_", "intercept_", "report_"]
    assert not [name for name in names if not re.search(rf"\b{name}\b", doc)]


@pytest.mark.parametrize("name", ["GapCertificate", "estimate_smallest_eigenvalue", "lanczos_step", "start_lanczos"])
def test_removed_names_say_what_to_use(name):
    with pytest.raises(AttributeError, match=f"{name}'; (the report of a fit has its bounds|use `)"):
        getattr(glmfit.bounds, name)


@pytest.mark.parametrize("name", dir(glmfit.problems))
def test_names_of_problems_warn_and_come_from_elsewhere(name):
    with pytest.warns(UserWarning, match=f"glmfit.problems.{name} is glmfit") as warned:
        value = getattr(glmfit.problems, name)
    place = re.search(r"is (glmfit\.\w+)", str(warned[0].message))[1]
    assert getattr(importlib.import_module(place), name) is value


@pytest.mark.parametrize(
    ("room", "names"),
    [
        ("bounds", "GapCertificate estimate_smallest_eigenvalue is_not_above_start lanczos_step start_lanczos"),
        ("observations", "LogisticLoss PoissonLoss ResponseLoss SquaredLoss"),
        ("problems", "FiniteSum PaddedProblem PathProblem StreamedProblem"),
        ("solvers", "LBFGS NewtonCG OptStep SharedNewton Solver"),
    ],
)
def test_names_that_version_01_had_say_what_replaces_them(room, names):
    module = importlib.import_module(f"glmfit.{room}")
    for name in names.split():
        with pytest.raises(AttributeError, match=rf"module 'glmfit.{room}' has no attribute '{name}'; .*\."):
            getattr(module, name)
    with pytest.raises(AttributeError, match=rf"module 'glmfit.{room}' has no attribute 'nothing'\.$"):
        _ = module.nothing
    assert not hasattr(module, "__wrapped__")  # what tools ask for
