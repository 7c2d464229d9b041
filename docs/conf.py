"""Configuration of the documentation. It builds offline and its pages fetch nothing, MathJax included."""

import json
import sys
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # a checkout need not be installed
sys.path.insert(0, str(Path(__file__).resolve().parent / "_ext"))

import glmfit

project = "glmfit"
author = "glmfit developers"
copyright = "2026, glmfit developers"
version = release = glmfit.__version__

extensions = [
    "myst_nb",  # Markdown and notebooks
    "sphinx_copybutton",
    "sphinx_design",  # cards and tabs
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "benchmarks",  # writes benchmarks.md
    "docstrings",
    "members",
]
exclude_patterns = ["_build", "_ext", "_templates", "jupyter_execute"]
templates_path = ["_templates"]
nb_execution_mode = "off"  # notebooks are committed with their outputs: make_gallery.py

myst_enable_extensions = ["amsmath", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

autodoc_member_order = "bysource"
toc_object_entries_show_parents = "hide"
autodoc_typehints = "none"  # the docstrings name axes, units and ranges
autosummary_context = {}  # filled by _ext/members.py
autosummary_generate = True
suppress_warnings = ["config.cache"]  # the context has a function, which cannot be cached
napoleon_google_docstring = False
napoleon_numpy_docstring = True
napoleon_use_rtype = False
napoleon_use_ivar = True

html_theme = "pydata_sphinx_theme"
html_title = "glmfit"
html_show_sourcelink = False
html_css_files = ["site.css"]
# One file of MathJax that needs no fonts, from its package instead of a content delivery network.
mathjax_folder = Path(find_spec("sphinx-mathjax-offline").origin).parent / "static" / "mathjax"
html_static_path = ["_static", str(mathjax_folder / "tex-svg.js")]
mathjax_path = "tex-svg.js"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
html_sidebars = {
    page: [] for page in ("index", "start_here", "concepts", "glossary", "comparison", "benchmarks", "changelog")
}
html_theme_options = {
    "logo": {"text": "glmfit"},
    "header_links_before_dropdown": 7,
    "navbar_end": ["theme-switcher"],
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
}


def offer_downloads(app, docname, source):
    """Offer a notebook of the gallery, and its script, below its title; the file itself is not changed."""
    folder, _, name = docname.partition("/")
    if folder == "gallery" and name[:2].isdigit():
        notebook = json.loads(source[0])
        first = notebook["cells"][0]
        title, _, text = "".join(first["source"]).partition("\n")
        links = f"{{download}}`Notebook <{name}.ipynb>` · {{download}}`Script <../../examples/{name}.py>`"
        first["source"] = f"{title}\n\n{links}\n{text}"
        source[0] = json.dumps(notebook)


def setup(app):
    """Colour Snakefiles, which are Python with rules, and offer notebooks."""
    from pygments.lexers import PythonLexer
    from sphinx.highlighting import lexers

    lexers["snakefile"] = PythonLexer()
    app.connect("source-read", offer_downloads)
