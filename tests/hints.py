"""Type hints as types: also of names that are imported for type checkers only, such as matplotlib's."""

import ast
import functools
import importlib
import inspect
import typing


@functools.cache
def imported_for_hints(module) -> dict:
    """Names imported below ``if TYPE_CHECKING``."""
    names = {"__package__": module.__spec__.parent}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            exec(compile(ast.Module(node.body, []), module.__name__, "exec"), names)
    return names


def hints_of(value) -> dict:
    """Type hints of a class or function, as a type checker sees them; NameError for a hint that names nothing."""
    module = importlib.import_module(value.__module__)
    return typing.get_type_hints(value, localns=vars(module) | imported_for_hints(module))


def unannotated(value) -> list[str]:
    """Parameters of a class or function that have no annotation, and "return" if what it returns has none."""
    try:
        signature = inspect.signature(value)
    except ValueError:  # an exception without a signature of its own
        return []
    given = [(k, p.annotation) for k, p in signature.parameters.items() if k not in ("self", "cls")]
    given += [] if inspect.isclass(value) else [("return", signature.return_annotation)]
    return [name for name, annotation in given if annotation is inspect.Signature.empty]
