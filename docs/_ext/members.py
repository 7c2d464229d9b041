"""What the pages of the reference need: the members of a class, and types that link to classes only."""

from __future__ import annotations

import enum
import importlib
import inspect

from sphinx.addnodes import pending_xref


def members_of(module: str, name: str) -> dict[str, list[str]]:
    """Public methods and properties of a class, in the order of its source; those it inherits from us follow.

    What scikit-learn and NamedTuple add is theirs to document; fields of dataclasses stand under Attributes.
    """
    owner = getattr(importlib.import_module(module), name)
    found: dict[str, list[str]] = {"methods": [], "properties": [], "values": []}
    if issubclass(owner, enum.Enum):
        found["values"] = [member.name for member in owner]
    for member, kind, home, value in inspect.classify_class_attrs(owner):
        function = inspect.unwrap(getattr(value, "__func__", None) or getattr(value, "fget", None) or value)
        if member.startswith("_") or not inspect.isfunction(function) or not inspect.getdoc(function):
            continue
        if not (function.__module__ or "").startswith("glmfit") or not home.__module__.startswith("glmfit"):
            continue
        place = (owner.__mro__.index(home), inspect.getsourcelines(function)[1])
        found["properties" if kind == "property" else "methods"].append((place, member))
    for kind in ("methods", "properties"):
        found[kind] = [member for _, member in sorted(found[kind])]
    return found


def unlink_words(app, doctree) -> None:
    """Take links off the words of a type that name no class: "of shape (time, neuron)" is not `RowSource.shape`."""
    for node in list(doctree.findall(pending_xref)):
        word = node.get("reftarget", "").rpartition(".")[2]
        if node.get("refdomain") == "py" and node.get("refspecific") and not word[:1].isupper():
            node.replace_self(node.children)


def setup(app) -> dict:
    """Connect."""
    app.connect("doctree-read", unlink_words)
    app.config.autosummary_context["members_of"] = members_of
    return {"parallel_read_safe": True}
