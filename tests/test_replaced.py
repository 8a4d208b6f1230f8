"""A component that takes the place of another keeps what was set for that one; whoever loads it is told."""

import logging
from pathlib import Path

import pytest

from raysl.config.files import config_names
from raysl.config.load import load_config, to_dict

OTHER_SOURCE = (
    "data=photos replaces data=digits: "
    "still as set for digits: data.image_size=16, data.mean=[0.31, 0.31, 0.31], data.std=[0.37, 0.37, 0.37]; "
    "still the views made for digits, method.views: min_scale=0.5, "
)


def told(caplog: pytest.LogCaptureFixture, name: str, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "raysl"):
        load_config(name, overrides)
    return [record.getMessage() for record in caplog.records]


def test_another_source_says_which_numbers_and_views_are_those_of_the_one_before(
    caplog: pytest.LogCaptureFixture,
) -> None:
    (line,) = told(caplog, "quickstart", "data=photos")
    assert line.startswith(OTHER_SOURCE)
    assert line.endswith("; set what should be different")
    data = to_dict(load_config("quickstart", ["data=photos"]))["data"]
    assert (data["image_size"], data["mean"]) == (16, [0.31, 0.31, 0.31]), "it is as it was told"


def test_what_is_set_anew_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = told(caplog, "quickstart", "data=photos", "data.image_size=32", "method.views.size=32")
    assert "data.image_size" not in line
    assert " size=16" not in line
    assert "data.mean=" in line
    assert "method.views: min_scale=0.5, " in line


def test_the_same_source_and_one_in_place_of_another_that_nothing_was_set_for_go_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, "quickstart", "data=digits", "data.limit=64") == []
    assert told(caplog, "simclr", "data=parquet", "data.path=/images") == []


def test_no_packaged_configuration_has_anything_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    runs = [name for name in config_names() if "/" not in name]
    assert [told(caplog, name) for name in runs] == [[]] * len(runs)


def test_an_optimizer_is_told_of_like_a_source(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "quickstart", "optim=lars") == [
        "optim=lars replaces optim=sgd: still as set for sgd: optim.lr=1.0, optim.warmup=5ep, "
        "optim.weight_decay=0.0001; set what should be different"
    ]


def test_what_the_new_component_has_no_place_for_is_told_of_too(caplog: pytest.LogCaptureFixture) -> None:
    words = ("data=digits", "method.views.size=32", "method.views.jitter_strength=1", "method.views.blur_p=0")
    (line,) = told(caplog, "simclr_cifar10", *words)
    assert line.startswith("data=digits replaces data=parquet: still as set for parquet: data.image_size=32, ")
    assert line.endswith("; dropped, since digits has no such setting: data.classes; set what should be different")


def test_a_file_over_its_base_and_the_way_back_are_told_of_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: quickstart\ndata: {name: photos, size: 32}\n")
    (line,) = told(caplog, str(path))
    assert line.startswith(OTHER_SOURCE)
    (line,) = told(caplog, str(path), "data=digits")
    assert line == "data=digits replaces data=photos: dropped, since digits has no such setting: data.size"


def test_credentials_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: simclr\ndata: {path: 's3://KEY:SeCrEt@bucket/images'}\n")
    (line,) = told(caplog, str(path), "data=parquet")
    assert "data.path=s3://***@bucket/images" in line
