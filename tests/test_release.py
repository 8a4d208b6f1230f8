"""A release has the version of its tag everywhere, and notes in the changelog."""

import importlib.util
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest
import yaml

ROOT = Path(__file__).parents[1]
CHANGELOG = """# Changelog

## [Unreleased]

## [0.2.0] - 2027-01-31

### Added

- Something.

## [0.1.0] - 2026-01-01

The first version.
"""


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / ".ci" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_notes_are_the_section_of_the_version(release: ModuleType) -> None:
    assert release.notes("0.2.0", CHANGELOG) == "### Added\n\n- Something."
    assert release.notes("0.1.0", CHANGELOG) == "The first version."


@pytest.mark.parametrize("version", ["0.3.0", "Unreleased", "0.2"])
def test_a_version_without_a_dated_section_is_refused(release: ModuleType, version: str) -> None:
    with pytest.raises(SystemExit, match=r"CHANGELOG.md has no section '## \["):
        release.notes(version, CHANGELOG)


def test_a_tag_of_another_version_is_refused(release: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["release.py", "v99.0.0"])
    with pytest.raises(SystemExit, match=r"the tag says 99.0.0 and pyproject.toml says "):
        release.main()


def test_the_source_distribution_has_all_that_its_tests_read() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    include = {*project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"], "pyproject.toml"}
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    read = {name for name in re.findall(r'ROOT / "([^"/]+)', tests) if (ROOT / name).exists()}
    assert ".github" in read
    assert read <= include


def test_only_the_job_that_publishes_may_ask_pypi_for_its_trust() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    trusted = [name for name, job in workflow["jobs"].items() if "id-token" in job.get("permissions", {})]
    assert trusted == ["pypi"]
    assert workflow["permissions"] == {"contents": "read"}
