"""Configuration of the documentation. Builds offline: no intersphinx, nothing fetched."""

import re
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed
sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

import glmfit

project = "glmfit"
author = "glmfit developers"
copyright = "2026, glmfit developers"
version = release = glmfit.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "benchmarks",  # writes benchmarks.md
]
exclude_patterns = ["_build", "_ext"]

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings name axes, units and ranges
autosummary_generate = False
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "glmfit"
html_show_sourcelink = False
html_theme_options = {
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
}


def names_in_one_field(app, what, name, obj, options, lines):
    """Write ``:ivar a_, b_:`` without the space, at which Sphinx takes "a_," for a type, and shield a_ of links."""

    def mended(found):
        return found[1] + re.sub(r"_(?=,|$)", r"\\_", found[2].replace(", ", ","))

    for i, line in enumerate(lines):
        lines[i] = re.sub(r"^(\s*:(?:ivar|vartype) )([\w, ]+)(?=:)", mended, line)


def setup(app):
    """Colour Snakefiles, which are Python with rules, and mend fields of several names once napoleon has made them."""
    from pygments.lexers import PythonLexer
    from sphinx.highlighting import lexers

    lexers["snakefile"] = PythonLexer()
    app.connect("autodoc-process-docstring", names_in_one_field, priority=600)
