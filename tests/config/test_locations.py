"""`~` and environment variables in the paths of a user's settings."""

from pathlib import Path
from typing import Any

import pytest

import raysl
from raysl.components import ALIASES
from raysl.config.build import from_dict
from raysl.config.config_files import expand
from raysl.config.dump import to_dict
from raysl.config.load import load_config
from raysl.errors import ConfigError
from tests.config.conftest import Write

OWN = {slot: dict(names) for slot, names in ALIASES.items()}


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for slot, names in OWN.items():
        monkeypatch.setitem(ALIASES, slot, names)
    monkeypatch.setenv("PLACE", "/place")
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.delenv("NOWHERE", raising=False)


def path_of(config: Any) -> str:
    return str(to_dict(config)["data"]["path"])


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("$PLACE/images", "/place/images"),
        ("$HOME/images", "/home/somebody/images"),
        ("~/images", "/home/somebody/images"),
        ("/data/$PLACE-2/x", "/data//place-2/x".replace("//", "/")),
        ("s3://bucket$PLACE/x", "s3://bucket/place/x"),
        ("s3://bucket/x?sign=$NOWHERE", "s3://bucket/x?sign=$NOWHERE"),
        ("/costs/5$", "/costs/5$"),
    ],
)
def test_paths_are_expanded_when_they_are_loaded(written: str, meant: str) -> None:
    assert path_of(load_config("simclr", [f"data.path={written}"])) == meant


def test_every_kind_of_path_is_expanded(write: Write) -> None:
    inner = "{name: image_folder, train: $PLACE/a, subset: ~/list.txt}"
    text = f"base: simclr\nstorage: $PLACE/runs\ndata: {{name: concat, sources: {{a: {inner}}}}}\n"
    file = write("run.yaml", text)
    tree = to_dict(load_config(file))
    source = tree["data"]["sources"]["a"]
    assert (tree["storage"], source["train"], source["subset"]) == (
        "/place/runs",
        "/place/a",
        "/home/somebody/list.txt",
    )


def test_paths_by_name_are_expanded_too() -> None:
    lists = "benchmarks.semi_supervised={lists: {1pct: $PLACE/1.txt, 10pct: ~/10.txt}}"
    found: Any = load_config("simclr", [lists]).benchmarks["semi_supervised"]
    assert found.lists == {"1pct": "/place/1.txt", "10pct": "/home/somebody/10.txt"}
    with pytest.raises(ConfigError, match=r"benchmarks\.semi_supervised\.lists: .*NOWHERE"):
        load_config("simclr", ["benchmarks.semi_supervised={lists: {1pct: $NOWHERE/1.txt}}"])


def test_a_variable_that_is_not_set_is_refused_by_the_setting() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("simclr", ["data.path=$NOWHERE/x", "storage=$NOWHERE"])
    told = sorted(str(caught.value).splitlines())
    rule = "the variable $NOWHERE is not set; export it, or write the whole path"
    assert told == [f"data.path: '$NOWHERE/x': {rule}", f"storage: '$NOWHERE': {rule}"]


def test_a_file_whose_name_has_a_dollar_is_itself(tmp_path: Path) -> None:
    (tmp_path / "$PLACE").mkdir()
    assert expand(f"{tmp_path}/$PLACE") == f"{tmp_path}/$PLACE"


def test_settings_that_were_stored_do_not_read_the_environment() -> None:
    stored = to_dict(load_config("simclr", ["data.path=/x"]))
    stored["data"]["path"] = "https://example.com/$PLACE"
    assert path_of(from_dict(stored)) == "https://example.com/$PLACE"


def test_braces_are_told_to_be_another_thing() -> None:
    with pytest.raises(ConfigError, match=r"data.path: .*an environment variable is \$NAME"):
        load_config("simclr", ["data.path=${HOME}/x"])


def test_a_file_that_is_not_utf_8_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes("base: simclr\nname: café\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"latin.yaml line 2: not UTF-8 \(byte 0xe9\); save it as UTF-8"):
        load_config(str(path))


def test_a_configuration_is_found_below_a_variable(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLACE", str(Path(write("mine.yaml", "base: simclr\nseed: 7\n")).parent))
    assert load_config("$PLACE/mine.yaml").seed == 7


def test_the_storage_stays_where_it_was_meant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert raysl.load_config("simclr").storage == str(tmp_path / "runs")
    assert raysl.load_config("simclr", ["storage=a/../b"]).storage == str(tmp_path / "b")
    assert raysl.load_config("simclr", ["storage=s3://bucket/runs"]).storage == "s3://bucket/runs"
