"""What Sphinx has to be told of docstrings once napoleon has read them."""

from __future__ import annotations

import re


def for_sphinx(app, what, name, obj, options, lines) -> None:
    """Write ``:ivar a_, b_:`` without the space, at which Sphinx takes "a_," for a type, and shield a_ of links."""

    def repaired(found):
        return found[1] + re.sub(r"_(?=,|$)", r"\\_", found[2].replace(", ", ","))

    for i, line in enumerate(lines):
        line = re.sub(r"`{0,2}docs/([\w/]+)\.md`{0,2}", r":doc:`/\1`", line)  # a path in the source, a link here
        lines[i] = re.sub(r"^(\s*:(?:ivar|vartype) )([\w, ]+)(?=:)", repaired, line)


def setup(app) -> dict:
    """Connect, after napoleon."""
    app.connect("autodoc-process-docstring", for_sphinx, priority=600)
    return {"parallel_read_safe": True}
