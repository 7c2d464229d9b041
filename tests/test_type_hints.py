"""Type hints are text until they are evaluated: each must name something, and agree with its default.

Everything that users call is completely annotated.
"""

import dataclasses
import functools
import importlib
import inspect
import pkgutil
import types
import typing

import public_api
import pytest
from hints import hints_of, unannotated

import glmfit

MODULES = sorted(
    found.name for found in pkgutil.walk_packages(glmfit.__path__, "glmfit.") if not found.name.endswith("__main__")
)
DECIDABLE = (bool, int, float, str, bytes, list, tuple, dict, set, types.NoneType)


def annotated(module):
    """Functions, methods and classes that a module defines."""
    for name, member in vars(module).items():
        if getattr(member, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(member):
            yield name, member
            for inner, method in vars(member).items():
                if inner == "__init__" and dataclasses.is_dataclass(member):
                    continue
                plain = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
                plain = inspect.unwrap(plain.func if isinstance(plain, functools.cached_property) else plain)
                if inspect.isfunction(plain) and plain.__module__ == module.__name__:
                    yield f"{name}.{inner}", plain
        elif callable(member) and inspect.isfunction(inspect.unwrap(member)):  # jitted, cached
            yield name, inspect.unwrap(member)


def allows(hint, value) -> bool:
    """Whether a default agrees with its hint, as far as this can be decided."""
    kind = typing.get_origin(hint) or hint
    if kind in (typing.Union, types.UnionType):
        return any(allows(part, value) for part in typing.get_args(hint))
    if kind is typing.Annotated:
        return allows(typing.get_args(hint)[0], value)
    if kind is typing.Literal:
        return value in typing.get_args(hint)
    if kind not in DECIDABLE:
        return True if kind is not None and value is not None else hint in (typing.Any, object, None)
    if isinstance(value, bool) and kind in (int, float):
        return False
    return isinstance(value, (int, float) if kind is float else kind)


@pytest.mark.parametrize("name", MODULES)
def test_hints_name_something_and_agree_with_defaults(name):
    module = importlib.import_module(name)
    wrong = []
    for where, member in annotated(module):
        try:
            hints = hints_of(member)
        except Exception as error:
            wrong.append(f"{where}: {error}")
            continue
        if inspect.isfunction(member):
            defaults = {k: p.default for k, p in inspect.signature(member).parameters.items()}
        elif dataclasses.is_dataclass(member):
            defaults = {field.name: field.default for field in dataclasses.fields(member)}
        else:
            continue
        missing = (inspect.Parameter.empty, dataclasses.MISSING)
        for parameter, default in defaults.items():
            if parameter in hints and not any(default is m for m in missing) and not allows(hints[parameter], default):
                wrong.append(f"{where}: {parameter} is {default!r}, not {hints[parameter]}")
    assert not wrong, "\n".join(wrong)


def test_check_of_defaults_finds_mistakes():
    assert allows(int | None, None) and allows(float, 1) and allows(typing.Any, None) and not allows(int, None)
    assert not allows(str, 1) and not allows(typing.Callable, None) and not allows(int, True)
    assert allows(typing.Callable | None, None)


LISTED = public_api.listed()


def called_in_the_list() -> set[str]:
    """Names that tests/public_api.txt has with their parameters."""
    found, owner = set(), ""
    for line in public_api.FROZEN.read_text(encoding="utf-8").splitlines():
        name, call, _ = line.strip().partition("(")
        owner = owner if name.startswith(".") else name
        if call:
            found.add(owner + name if name.startswith(".") else name)
    return found


def test_no_name_of_the_list_is_overlooked():
    called = called_in_the_list()
    assert {"glmfit.PopulationGLM.fit", "glmfit.plotting.plot_filter", "glmfit.solvers.SAGA"} <= called
    assert not called - set(LISTED)


@pytest.mark.parametrize("package", sorted({name.rpartition(".")[0] for name in LISTED}))
def test_names_of_the_list_are_completely_annotated(package):
    own = {name: value for name, value in LISTED.items() if name.rpartition(".")[0] == package}
    lacking = [f"{name}: {', '.join(lacks)}" for name, value in own.items() if (lacks := unannotated(value))]
    assert not lacking, "\n".join(lacking)


def test_check_of_completeness_finds_missing_annotations():
    class Half:
        def __init__(self, a: int, b=1): ...

        def method(self, c, *d, e: int = 0, **f) -> None: ...

        @classmethod
        def make(cls, g: int): ...

    assert unannotated(Half) == ["b"] and unannotated(Half.make) == ["return"]
    assert unannotated(Half.method) == ["c", "d", "f"]
    assert unannotated(called_in_the_list) == []
