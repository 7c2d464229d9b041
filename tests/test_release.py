"""Contents of a release: the wheel and the sdist are built, inspected, and used outside the checkout."""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import glmfit

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("[0-9]*.py"))

pytest.importorskip("hatchling")
pytest.importorskip("pip")
pytestmark = pytest.mark.slow


def run(*command, cwd):
    """Run a command without the checkout and the settings of the tests, and return its output."""
    outside = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST", "JAX"))}
    done = subprocess.run([str(c) for c in command], cwd=cwd, env=outside, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The unpacked sdist."""
    folder = tmp_path_factory.mktemp("sdist")
    run(sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", folder, cwd=ROOT)
    (archive,) = folder.glob("*.tar.gz")
    assert archive.name == f"glmfit-{glmfit.__version__}.tar.gz"
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
    return folder / archive.name.removesuffix(".tar.gz")


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, built from the sdist as an installer would."""
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder, cwd=sdist)
    (path,) = folder.glob("*.whl")
    assert path.name == f"glmfit-{glmfit.__version__}-py3-none-any.whl"
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """Interpreter of a fresh environment with the wheel; its dependencies are those of the running one."""
    folder = tmp_path_factory.mktemp("fresh") / "env"
    venv.create(folder, with_pip=False)
    bin_ = folder / ("Scripts" if os.name == "nt" else "bin")
    python = shutil.which("python", path=bin_)
    install = (sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", wheel)
    run(*install, cwd=folder)
    own = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip()
    borrowed = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    Path(own, "dependencies.pth").write_text("\n".join(sorted(borrowed)) + "\n", encoding="utf-8")
    return python


def relative_files(folder):
    """Files below a folder, as named in an archive."""
    found = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    return {name for name in found if "__pycache__" not in name}


def test_wheel_holds_the_package_and_nothing_else(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        metadata = email.message_from_bytes(archive.read(f"glmfit-{glmfit.__version__}.dist-info/METADATA"))
    info = f"glmfit-{glmfit.__version__}.dist-info/"
    package = {f"glmfit/{name}" for name in relative_files(ROOT / "glmfit")}
    assert {name for name in names if not name.startswith(info)} == package
    assert "glmfit/py.typed" in names
    assert {name.removeprefix(info) for name in names - package} == {"METADATA", "WHEEL", "RECORD", "licenses/LICENSE"}
    assert metadata["Version"] == glmfit.__version__
    assert metadata["License-Expression"] == "MIT"
    assert {"demo", "nemos", "batch", "plot"} <= set(metadata.get_all("Provides-Extra"))
    assert "# glmfit" in metadata.get_payload()


def test_sdist_holds_what_is_needed_to_build_test_and_read(sdist):
    names = relative_files(sdist)
    assert {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", "tox.ini", "docs/index.md"} <= names
    assert {"tests/test_release.py", "glmfit/py.typed", *(f"examples/{name}" for name in EXAMPLES)} <= names
    unwanted = (".ci/", ".git/", ".github/", "docs/_build/", "dist/", "build/")
    assert not [name for name in names if name.startswith(unwanted) or name.endswith((".pyc", ".html", ".egg-info"))]


def test_installed_wheel_states_its_version_and_imports_all_modules(python, tmp_path):
    where = run(python, "-c", "import glmfit; print(glmfit.__file__)", cwd=tmp_path).strip()
    assert Path(where).is_relative_to(Path(python).parents[1])
    assert f"glmfit {glmfit.__version__}" in run(python, "-m", "glmfit", "info", cwd=tmp_path)
    code = "import importlib, pkgutil, glmfit\n"
    code += "for m in pkgutil.walk_packages(glmfit.__path__, 'glmfit.'):\n"
    code += "    '__main__' in m.name or importlib.import_module(m.name)"
    run(python, "-W", "ignore", "-c", code, cwd=tmp_path)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_run_from_the_installed_wheel(name, python, sdist, tmp_path):
    for extra in ("matplotlib", "nemos"):
        pytest.importorskip(extra)
    here = shutil.copytree(sdist / "examples", tmp_path / "examples")
    assert "converged" in run(python, here / name, cwd=tmp_path)
    assert (tmp_path / name).with_suffix(".png").stat().st_size > 5000
