"""Another version of raysl takes part in `python -m perf pipeline`."""

from pathlib import Path

import pytest

from perf import older
from perf.pipeline import contender_names, measure_pipeline
from raysl.errors import ConfigError

CHECKOUT = Path(__file__).parents[2]


@pytest.mark.parametrize(("file", "package"), [("perf/streams.py", "perf"), ("raysl/speed/streams.py", "raysl.speed")])
def test_the_contenders_of_a_checkout_are_found_where_its_version_has_them(
    file: str, package: str, tmp_path: Path
) -> None:
    assert older.package_of(tmp_path) is None
    (tmp_path / file).parent.mkdir(parents=True)
    (tmp_path / file).touch()
    assert older.package_of(tmp_path) == package
    assert package in older.command(tmp_path, "decode", "{}")


def test_its_processes_import_its_code_and_start_a_cluster_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    variables = older.environment(tmp_path)
    assert variables["PYTHONPATH"] == str(tmp_path)
    assert "RAY_ADDRESS" not in variables


def test_a_folder_that_is_no_checkout_is_refused_before_anything_is_measured(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="git worktree add"):
        measure_pipeline("f", beside=tmp_path)


def test_contenders_are_chosen_by_their_letters() -> None:
    assert contender_names("df") == "df"
    assert set(contender_names()) >= set("abcdefh")
    with pytest.raises(ConfigError, match="no contender 'z'"):
        contender_names("dz")


@pytest.mark.parametrize(("name", "library"), [("g", "DALI"), ("i", "stable-pretraining")])
def test_peers_take_part_where_they_are_installed(name: str, library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perf.pipeline.PEERS", {name: (library, lambda: True)})
    assert contender_names() == "abcdefghi"
    monkeypatch.setattr("perf.pipeline.PEERS", {name: (library, lambda: False)})
    assert contender_names() == "abcdefghi".replace(name, "")
    with pytest.raises(ConfigError, match=f"{library} is not installed; run `pip install"):
        contender_names("d" + name)


@pytest.mark.slow
def test_a_version_is_measured_beside_itself() -> None:
    numbers = measure_pipeline("f", sizes=(32,), repeats=1, seconds=0.1, threads=1, beside=CHECKOUT)
    assert set(numbers["32"]) == {"f", "F"}
    assert numbers["ratios"]["32"] == {"f/F": numbers["32"]["f"] / numbers["32"]["F"]}
