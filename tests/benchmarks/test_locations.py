"""Changed files make another result; their order on the disk does not."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pytest

from raysl.benchmarks.robustness import Robustness
from raysl.benchmarks.semi_supervised import SemiSupervised
from raysl.benchmarks.suite.digests import content_of
from raysl.components import ALIASES
from raysl.config.component import type_hints
from raysl.config.fields import component_class
from raysl.config.ranges import Location, NotEmpty
from raysl.config.schema import BenchmarkConfig


@dataclass(frozen=True, kw_only=True)
class Places(BenchmarkConfig):
    name: str = "places"
    one: Location | None = None
    some: Annotated[tuple[Location, ...], NotEmpty()] = ("a",)
    named: dict[str, Location] | None = field(default_factory=dict)
    text: str = "a"


def test_a_changed_added_or_lost_file_is_another_content(tmp_path: Path) -> None:
    (tmp_path / "set" / "n01").mkdir(parents=True)
    image = tmp_path / "set" / "n01" / "0.jpg"
    image.write_bytes(b"one")
    config = Robustness.Config(imagenet_a=str(tmp_path / "set"))
    seen = [content_of(config)]
    assert set(seen[0]) == {"imagenet_a"}
    assert content_of(config) == seen[0]
    os.utime(image, ns=(1, 1))
    seen.append(content_of(config))
    (tmp_path / "set" / "n01" / "1.jpg").write_bytes(b"two")
    seen.append(content_of(config))
    assert len({found["imagenet_a"] for found in seen}) == 3


def test_lists_count_and_what_is_not_there_or_not_named_does_not(tmp_path: Path) -> None:
    (tmp_path / "1.txt").write_text("a.png\n")
    found = content_of(SemiSupervised.Config(lists={"one": str(tmp_path / "1.txt")}))
    assert set(found) == {"lists"}
    assert content_of(Robustness.Config(imagenet_a=str(tmp_path / "nowhere"))) == {}
    assert content_of(Robustness.Config()) == {}


def test_paths_of_settings_are_absolute_however_they_are_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    found = Places(some=("a", "s3://bucket/a", "~/a"), named={"one": "../a"})
    assert found.one is None
    assert found.some == (f"{tmp_path}/a", "s3://bucket/a", "/home/somebody/a")
    assert found.named == {"one": f"{tmp_path.parent}/a"}
    assert found.text == "a"
    (tmp_path / "a").write_text("here")
    assert set(content_of(Places(one="a", named={"one": "a"}))) == {"one", "some", "named"}


@pytest.mark.parametrize("name", sorted(ALIASES["benchmark"]))
def test_paths_of_every_benchmark_are_absolute(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kind = component_class(BenchmarkConfig, name)
    for key, hint in type_hints(kind).items():
        if hint == Location | None:
            assert getattr(kind(name=name, **{key: "a"}), key) == f"{tmp_path}/a"
        elif hint == dict[str, Location]:
            assert getattr(kind(name=name, **{key: {"b": "a"}}), key) == {"b": f"{tmp_path}/a"}
