"""Which changes of code give a result another digest."""

from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pytest

import raysl
from raysl.benchmarks.knn import KNN
from raysl.benchmarks.suite import digests as digests_module
from raysl.benchmarks.suite.digests import code_of
from raysl.components import resolve
from raysl.nn.backbones.resnet import ResNet


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of raysl's sources, which the digest reads in place of the imported ones."""
    copy = tmp_path / "raysl"
    copytree(Path(raysl.__file__).parent / "benchmarks", copy)
    monkeypatch.setattr(raysl, "__file__", str(copy / "__init__.py"))
    digests_module._package.cache_clear()
    yield copy
    digests_module._package.cache_clear()


def test_a_changed_an_added_and_a_renamed_module_of_raysl_change_every_digest(package: Path) -> None:
    digests = [code_of(KNN, ResNet)]
    file = package / "knn.py"
    for change in (
        lambda: file.write_text(f"{file.read_text()}\nCHANGED = 1\n"),
        lambda: (package / "new.py").write_text(""),
        lambda: (package / "new.py").rename(package / "newer.py"),
    ):
        change()
        digests_module._package.cache_clear()
        digests.append(code_of(KNN, ResNet))
    assert len(set(digests)) == 4
    assert {len(digest) for digest in digests} == {12}


def test_unchanged_code_and_files_that_are_no_modules_keep_the_digest(package: Path) -> None:
    before = code_of(KNN, ResNet)
    (package / "page.css").write_text("p {}")
    digests_module._package.cache_clear()
    assert code_of(KNN, ResNet) == before


def test_another_version_of_a_library_is_another_digest(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = code_of(KNN)
    monkeypatch.setattr(digests_module, "version_of", lambda library: "0.0.1")
    digests_module._package.cache_clear()
    assert code_of(KNN) != before


def test_a_changed_file_of_the_user_is_another_digest(tmp_path: Path) -> None:
    digests = []
    for number, text in enumerate(("class Mine:\n    x = 1\n", "class Mine:\n    x = 2\n")):
        path = tmp_path / f"mine{number}.py"
        path.write_text(text)
        digests.append(code_of(resolve("benchmark", f"{path}:Mine")))
    assert digests[0] != digests[1]
    assert code_of(KNN) not in digests


def test_a_class_without_a_source_has_no_digest() -> None:
    made = type("Made", (), {"__module__": "builtins"})
    assert code_of(made) == ""
