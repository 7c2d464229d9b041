"""Where things live: imports point strictly down, and each dependency is imported in one place only."""

import ast
import functools
import importlib
import subprocess
import sys
from importlib.util import resolve_name
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "glmfit"

LAYERS = (
    {"status", "display", "numerics", "compilation", "files", "lazy", "checks", "cholesky", "threads"}
    | {"design", "data.arrays", "data.times"},
    {"observations", "penalties"},
    {"bounds"},
    {"engine"},
    {"pairs", "saga", "stochastic"},
    {"solvers", "problems", "data"},
    {"estimators"},
    {"plotting", "plugins", "inference"},
    {"batch"},
    {"demo"},
    {"__main__"},
)
LAYER_OF = {name: level for level, names in enumerate(LAYERS) for name in names}

FILES = sorted(PACKAGE.rglob("*.py"))
FOLDERS = sorted({str(path.parent.relative_to(PACKAGE)) for path in FILES})


class Import(NamedTuple):
    """One imported module, as a dotted name, with its position."""

    module: str
    line: int
    at_top: bool  # runs when the file is imported


def dotted(path):
    """Dotted name of a file below the package, "" for its __init__."""
    parts = list(path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def imports_of(path):
    """Every import of a file; names imported from a package count as its modules if they are files."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = []
    folder = ["glmfit", *path.relative_to(PACKAGE).parent.parts]

    def visit(node, at_top):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(Import(alias.name, child.lineno, at_top) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                base = folder[: len(folder) - child.level + 1] if child.level else []
                module = ".".join([*base, *([child.module] if child.module else [])])
                for alias in child.names:
                    target = ROOT.joinpath(*module.split("."), alias.name)
                    is_module = target.is_dir() or target.with_suffix(".py").is_file()
                    found.append(Import(f"{module}.{alias.name}" if is_module else module, child.lineno, at_top))
            lazy = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            typing_only = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
            visit(child, at_top and not lazy and not typing_only)

    visit(tree, True)
    return found


IDS = [str(path.relative_to(ROOT)) for path in FILES]
every_file = pytest.mark.parametrize("path", FILES, ids=IDS)


def room(module):
    """Room of a module: its folder, or the module itself if LAYERS lists it separately."""
    named = ".".join(module.split(".")[:2])
    return named if named in LAYER_OF else module.split(".")[0]


def internal(path):
    """Imports within the package: (dotted name below glmfit, line)."""
    return [
        (i.module.removeprefix("glmfit").lstrip("."), i.line)
        for i in imports_of(path)
        if i.module.split(".")[0] == "glmfit"
    ]


def places(*packages, at_top_only=False):
    """Files (dotted) that import one of the packages, with lines."""
    return {
        f"{dotted(path)}:{i.line}"
        for path in FILES
        for i in imports_of(path)
        if i.module.split(".")[0] in packages and (i.at_top or not at_top_only)
    }


def outside(found, *allowed):
    """Places that are not in or below one of the allowed modules."""
    return sorted(
        place for place in found if not any(place.split(":")[0] == a or place.startswith(a + ".") for a in allowed)
    )


def test_package_is_found():
    assert PACKAGE / "__init__.py" in FILES


@every_file
def test_every_module_has_a_layer(path):
    top = room(dotted(path))
    assert top == "" or top in LAYER_OF, f"{top} has no layer: add it to LAYERS, and explain why there"


@every_file
def test_imports_point_strictly_down(path):
    own = room(dotted(path))
    if dotted(path) == "":  # lists the public names
        return
    wrong = []
    for module, line in internal(path):
        inside = room(module) in ("", own)
        other = own if inside else room(module)
        if inside or LAYER_OF[own] == LAYER_OF[other] == 0:
            continue
        if LAYER_OF[other] >= LAYER_OF[own]:
            wrong.append(f"line {line}: {own} (layer {LAYER_OF[own]}) imports {module} (layer {LAYER_OF[other]})")
    assert not wrong


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_inside_a_folder_have_no_cycle(folder):
    files = {dotted(path): path for path in FILES if path.parent == PACKAGE / folder and path.name != "__init__.py"}
    siblings = {
        own: {i.module.removeprefix("glmfit.") for i in imports_of(path) if i.at_top} & set(files) - {own}
        for own, path in files.items()
    }
    while free := {own for own, needed in siblings.items() if not needed & set(siblings)}:
        siblings = {own: needed for own, needed in siblings.items() if own not in free}
    assert not siblings, "these import each other, or modules that do"


@pytest.mark.thorough
def test_folders_have_few_files_and_functions_are_short():
    crowded = {
        folder: n for folder in FOLDERS if (n := sum(str(f.parent.relative_to(PACKAGE)) == folder for f in FILES)) > 20
    }
    long = [
        f"{dotted(path)}.{node.name}"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno - node.lineno - len((ast.get_docstring(node) or "").splitlines()) >= 60
    ]
    assert not crowded and not long


@every_file
def test_kernels_are_compiled_in_full_precision(path):
    if dotted(path) == "compilation":  # defines the `jit` that all others use
        return
    nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    lines = [n.lineno for n in nodes if isinstance(n, ast.Attribute) and ast.unparse(n) == "jax.jit"]
    assert not lines, f"lines {lines}: use jit from compilation, or products are rounded to TF32 on a GPU"


def test_package_init_only_lists_public_names():
    tree = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    allowed = ast.ImportFrom | ast.Assign | ast.AugAssign | ast.Expr
    body = [inner for node in tree.body for inner in (node.body if isinstance(node, ast.If) else [node])]
    assert all(isinstance(node, allowed) for node in body)


@pytest.mark.parametrize("name", ["glmfit", "glmfit.batch", "glmfit.solvers"])
def test_names_imported_on_use_match_those_for_type_checkers(name):
    package = importlib.import_module(name)
    tree = ast.parse(Path(package.__file__).read_text(encoding="utf-8"))
    typed = {
        f"{resolve_name('.' * node.level + node.module, package.__spec__.parent)}:{alias.name}"
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        for alias in node.names
    }
    public = [key for key in package.__all__ if not key.startswith("__")]
    assert {place.split(":")[1] for place in typed} == set(public)
    for place in typed:
        module, _, key = place.partition(":")
        assert getattr(package, key) is getattr(importlib.import_module(module), key)
    assert set(public) <= set(dir(package))
    with pytest.raises(AttributeError, match="no attribute 'unheard_of'"):
        _ = package.unheard_of


def test_only_estimators_and_data_import_scikit_learn():
    assert not outside(places("sklearn"), "estimators", "data")


def test_only_the_plugin_imports_nemos():
    assert not outside(places("nemos"), "plugins.nemos")


def test_only_plotting_imports_matplotlib_and_only_on_use():
    assert not outside(places("matplotlib"), "plotting")
    assert not places("matplotlib", at_top_only=True)


def test_only_batch_imports_dask():
    assert not outside(places("dask", "distributed", "dask_jobqueue"), "batch")


def test_optax_and_pynapple_are_imported_on_use():
    assert not places("optax", "pynapple", at_top_only=True)


def test_estimators_import_few_packages():
    # Everything else is imported on use: a first fit mostly waits for jax and scikit-learn.
    light = {"jax", "jaxlib", "numpy", "scipy", "sklearn", "equinox", "jaxtyping", "tqdm", "threadpoolctl", "glmfit"}
    found = {
        f"{path.relative_to(ROOT)}:{i.line} {i.module}"
        for path in FILES
        for i in imports_of(path)
        if not dotted(path).startswith(("batch", "plugins"))
        and i.at_top
        and i.module.split(".")[0] not in light | set(sys.stdlib_module_names)
    }
    assert not found


def test_nothing_is_pickled():
    assert not places("pickle", "cPickle", "dill", "cloudpickle", "joblib", "shelve", "marshal")


def attribute_uses(path, *names):
    """Lines where a dotted name such as ``os.environ`` is used."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    lines = [n.lineno for n in ast.walk(tree) if isinstance(n, ast.Attribute) and ast.unparse(n) in names]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level == 0:
            lines += [node.lineno for a in node.names if f"{node.module}.{a.name}" in names]
    return lines


@pytest.mark.thorough
@every_file
def test_the_configuration_of_jax_is_left_alone(path):
    assert not attribute_uses(path, "jax.config", "jax._src.config")


@every_file
def test_the_environment_is_read_in_batch_only(path):
    if not dotted(path).startswith("batch"):
        assert not attribute_uses(path, "os.environ", "os.getenv", "os.putenv")


def test_oracles_never_import_the_package():
    wrong = [
        f"{path.name}:{node.lineno}"
        for path in sorted((ROOT / "tests" / "oracles").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if (isinstance(node, ast.Import) and any(a.name.split(".")[0] == "glmfit" for a in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "glmfit")
    ]
    assert not wrong


@pytest.mark.slow
def test_importing_the_package_stays_light():
    # pandas is not in the second list: scikit-learn imports it if it is installed.
    code = (
        "import sys, glmfit, glmfit.batch\n"
        "heavy = ['pynapple', 'jaxopt', 'optax', 'matplotlib', 'numba', 'nemos', 'distributed', 'nitime']\n"
        "found = [m for m in [*heavy, 'jax', 'sklearn', 'numpy'] if m in sys.modules]\n"
        "glmfit.PopulationGLM, glmfit.spike_identities, glmfit.batch.run\n"
        "print(found + [m for m in heavy if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.thorough
def test_importing_the_package_gives_no_warning_and_leaves_jax_unchanged():
    code = (
        "import jax\n"
        "before = dict(jax.config.values)\n"
        "import glmfit\n"
        "glmfit.PopulationGLM\n"
        "after = dict(jax.config.values)\n"
        "print({k: after.get(k) for k in before if before[k] != after.get(k)})"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{}"
