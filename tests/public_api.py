"""The public interface as text: every name with its parameters and defaults. After a deliberate change:

python tests/public_api.py > tests/public_api.txt
"""

import dataclasses
import enum
import importlib
import inspect
import sys
from pathlib import Path

FROZEN = Path(__file__).with_suffix(".txt")
# Names of the package itself are listed with their members, those of these subpackages only with their signatures.
SUBPACKAGES = (
    "batch", "bounds", "design", "engine", "inference", "observations", "pairs", "penalties", "plotting", "solvers",
    "stochastic",
)  # fmt: skip


def render() -> str:
    """Write down the package and its subpackages."""
    import glmfit

    lines = []
    for name in sorted(glmfit.__all__):
        lines += _whole(f"glmfit.{name}", getattr(glmfit, name))
    for package in SUBPACKAGES:
        module = importlib.import_module(f"glmfit.{package}")
        lines.append("")
        lines += [_call(f"glmfit.{package}.{name}", getattr(module, name)) for name in sorted(_names(module))]
    return "\n".join(lines).strip() + "\n"


def listed() -> dict:
    """Every class, function, method and property of the list, except enumerations: {dotted name: object}."""
    import glmfit

    found = {f"glmfit.{name}": getattr(glmfit, name) for name in glmfit.__all__}
    for name, value in list(found.items()):
        if inspect.isclass(value) and not isinstance(value, enum.EnumType):
            for key, member in _members(value):
                static = inspect.getattr_static(value, key, None)
                found[f"{name}.{key}"] = static.fget if isinstance(static, property) else member
    for package in SUBPACKAGES:
        module = importlib.import_module(f"glmfit.{package}")
        found |= {f"glmfit.{package}.{name}": getattr(module, name) for name in _names(module)}
    return {name: value for name, value in found.items() if callable(value) and not isinstance(value, enum.EnumType)}


def _names(module):
    """Names that a module exports: __all__, or the public functions and classes written in it."""
    if hasattr(module, "__all__"):
        return module.__all__
    own = {key for key, value in vars(module).items() if getattr(value, "__module__", None) == module.__name__}
    return {key for key in own if not key.startswith("_") and callable(getattr(module, key))}


def _whole(name, value):
    """Lines of a name with its methods, properties, fields or members."""
    if not inspect.isclass(value):
        return [_call(name, value)]
    if issubclass(value, enum.Enum):
        return ["", name, *(f"    .{member.name} = {member.value!r}" for member in value)]
    lines = ["", name if dataclasses.is_dataclass(value) else _call(name, value)]
    lines += [f"    .{key}{_signature(member)}" for key, member in _members(value)]
    return lines


def _members(cls):
    """Public fields, properties and methods that the package wrote, in alphabetical order."""
    found = dict.fromkeys((f.name for f in dataclasses.fields(cls)), None) if dataclasses.is_dataclass(cls) else {}
    for key in dir(cls):
        member = inspect.getattr_static(cls, key)
        plain = getattr(member, "__func__", member)
        plain = plain.fget if isinstance(plain, property) else plain
        if not key.startswith("_") and inspect.isfunction(plain) and plain.__module__.startswith("glmfit"):
            found[key] = None if isinstance(member, property) else getattr(cls, key)
    return sorted(found.items())


def _call(name, value):
    return f"{name}{_signature(value)}" if callable(value) else name


def _signature(value):
    """Names and defaults of parameters, without annotations; nothing for a field or a property."""
    if value is None:
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:  # for example, of an enumeration
        return ""
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values() if p.name != "self"]
    return str(signature.replace(parameters=bare, return_annotation=inspect.Signature.empty))


if __name__ == "__main__":
    sys.path.insert(0, str(FROZEN.parents[1]))
    sys.stdout.write(render())
