"""Files about the project agree with each other: versions, requirements, interpreters, what CI runs."""

import re
import tomllib
from pathlib import Path

import pytest

import glmfit

yaml = pytest.importorskip("yaml")
ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())


def minor_versions(text: str) -> set[str]:
    """Versions of Python in a text, such as py311 or 3.11."""
    return {f"3.{minor}" for minor in re.findall(r"\b(?:py3|3\.)(1\d)\b", text)}


def test_conda_recipe_has_the_version_and_requirements_of_the_package():
    recipe = (ROOT / ".github" / "conda" / "meta.yaml").read_text()
    assert f'version = "{glmfit.__version__}"' in recipe
    run = recipe.partition("  run:\n")[2].partition("\ntest:")[0]
    required = {
        line.removeprefix("    - ").replace(" ", "") for line in run.splitlines() if "python" not in line.split()
    }
    assert required - {""} == set(PROJECT["project"]["dependencies"])
    assert all(need in recipe.replace(" >=", ">=") for need in PROJECT["build-system"]["requires"])


def test_all_files_name_the_same_interpreters():
    classified = minor_versions(" ".join(PROJECT["project"]["classifiers"]))
    (environments,) = re.findall(r"env_list = (.*)", (ROOT / "tox.ini").read_text())
    assert minor_versions(environments) == classified
    assert set(WORKFLOW["jobs"]["ci"]["strategy"]["matrix"]["python"]) == classified
    assert PROJECT["project"]["requires-python"] == f">={min(classified, key=lambda v: int(v[2:]))}"


def test_workflow_runs_the_deciding_checks():
    assert any(step.get("run") == "bash .ci/run" for step in WORKFLOW["jobs"]["ci"]["steps"])
    oldest = [step.get("run", "") for step in WORKFLOW["jobs"]["minimum"]["steps"]]
    assert "tox -e minimum" in oldest and "[testenv:minimum]" in (ROOT / "tox.ini").read_text()


def test_changelog_begins_with_the_next_or_the_last_release():
    first = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    assert re.fullmatch(rf"\[Unreleased\] \d+\.\d+\.\d+|{re.escape(glmfit.__version__)} \(\d{{4}}-\d\d-\d\d\)", first)


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_files_of_the_repository_are_yaml(path):
    assert yaml.safe_load(path.read_text())


def test_the_citation_has_the_version_and_date_of_the_changelog():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    heading = re.search(r"^## (.*)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)[1]
    if not heading.startswith("[Unreleased]"):
        assert heading == f"{cited['version']} ({cited['date-released']})"
