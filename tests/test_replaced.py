"""A component that takes the place of another starts from its own defaults; a line tells what was dropped."""

import logging
from pathlib import Path
from typing import Any

import pytest

from raysl.config.config_files import config_names
from raysl.config.dump import to_dict
from raysl.config.load import apply_overrides, load_config
from raysl.config.view_presets import PRESETS
from raysl.errors import ConfigError

STD = "data.std is [0.229, 0.224, 0.225] (was [0.37, 0.37, 0.37])"
NUMBERS = f"data.mean is [0.485, 0.456, 0.406] (was [0.31, 0.31, 0.31]), {STD}"
DIGITS = "data=photos has its own defaults, not the settings of digits:"
OWN = """
from dataclasses import dataclass
from raysl.methods.simclr import SimCLR

class Own(SimCLR):
    @dataclass(frozen=True, kw_only=True)
    class Config(SimCLR.Config):
        name: str = "own"
        hidden_dim: int = 4096
"""


def told(caplog: pytest.LogCaptureFixture, name: str, *overrides: str) -> list[str]:
    caplog.clear()
    with caplog.at_level(logging.WARNING, "raysl"):
        load_config(name, overrides)
    return [record.getMessage() for record in caplog.records]


def tree(name: str, *overrides: str) -> Any:
    return to_dict(load_config(name, overrides))


def test_a_method_inherits_nothing_from_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(OWN)
    method = tree("quickstart", f"method={tmp_path}/own.py:Own", "method.output_dim=8")["method"]
    assert (method["hidden_dim"], method["output_dim"], method["output_norm"]) == (4096, 8, "scale")
    views = tree("simclr", "data.path=/images", "method.views.interpolation=bilinear")["method"]["views"]
    kept = {"size": 16, **PRESETS["digits"]}
    assert method["views"] == {name: kept.get(name, value) for name, value in views.items()}, "the data stay"


def test_another_source_has_its_own_numbers_and_the_views_of_the_method_stay(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "quickstart", "data=photos", "views=digits") == [f"{DIGITS} {NUMBERS}"]
    now, before = tree("quickstart", "data=photos"), tree("quickstart")
    assert now["data"]["mean"] == tree("simclr", "data=photos")["data"]["mean"] != before["data"]["mean"]
    assert now["method"] == before["method"]
    assert now["data"]["image_size"] == before["data"]["image_size"] == 16


def test_what_is_set_anew_holds_and_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    words = ("data=photos", "views=digits", "data.image_size=32", "data.mean=[0.5, 0.5, 0.5]")
    (line,) = told(caplog, "quickstart", *words)
    assert line == f"{DIGITS} {STD}"
    found = tree("quickstart", *words)
    assert (found["data"]["image_size"], found["method"]["views"]["size"]) == (32, 32)
    assert found["data"]["mean"] == [0.5, 0.5, 0.5]


def test_the_same_component_and_one_in_place_of_another_that_nothing_was_set_for_go_without_a_word(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert told(caplog, "quickstart", "data=digits", "data.limit=64") == []
    assert told(caplog, "quickstart", "method=raysl.methods.simclr:SimCLR") == []
    assert told(caplog, "simclr", "data=parquet", "data.path=/images") == []


def test_a_component_that_does_not_exist_is_refused_without_a_word_on_what_it_would_drop(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pytest.raises(ConfigError, match=r"unknown optimizer 'larrs'; did you mean 'lars'"):
        load_config("quickstart", ["optim=larrs"])
    assert caplog.messages == []


@pytest.mark.thorough
def test_no_packaged_configuration_has_anything_to_tell(caplog: pytest.LogCaptureFixture) -> None:
    runs = [name for name in config_names() if not name.startswith(("data/", "digits/", "sweep/"))]
    assert [told(caplog, name) for name in runs] == [[]] * len(runs)


def test_an_optimizer_is_replaced_like_a_source(caplog: pytest.LogCaptureFixture) -> None:
    assert told(caplog, "quickstart", "optim=lars") == [
        "optim=lars has its own defaults, not the settings of sgd: optim.lr is 0.3 (was 1.0), "
        "optim.warmup is 10ep (was 5ep), optim.weight_decay is 1.0e-06 (was 0.0001)"
    ]
    assert tree("quickstart", "optim=lars")["optim"] == tree("simclr", "data.path=/x")["optim"]


def test_a_file_over_its_base_and_the_way_back_start_anew_alike(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: quickstart\nviews: digits\ndata: {name: photos, size: 32}\n")
    (line,) = told(caplog, str(path))
    assert line == f"{DIGITS} {NUMBERS}"
    assert told(caplog, str(path), "data=digits", "views=digits")[-1] == (
        "data=digits has its own defaults, not the settings of photos: data.size was 32 and no longer exists"
    )
    assert tree(str(path), "data=digits")["data"]["mean"] == tree("simclr", "data=digits")["data"]["mean"]


def test_a_trial_that_replaces_a_component_starts_anew_too() -> None:
    trial = to_dict(apply_overrides(load_config("quickstart"), ["data=photos", "optim=lars"]))
    assert trial == tree("quickstart", "data=photos", "optim=lars")


def test_credentials_are_not_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("base: simclr\ndata: {path: 's3://KEY:SeCrEt@bucket/images'}\n")
    (line,) = told(caplog, str(path), "data=parquet")
    assert "data.path is null (was s3://***@bucket/images)" in line


def test_a_value_that_the_other_component_has_too_is_no_news(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run.yaml").write_text("base: simclr\ndata: {name: photos, mean: [0.485, 0.456, 0.406]}\n")
    assert told(caplog, str(tmp_path / "run.yaml"), "data=digits") == []


def test_what_raysls_own_files_replace_is_no_news(caplog: pytest.LogCaptureFixture) -> None:
    load_config("digits/mae")
    assert caplog.records == []
