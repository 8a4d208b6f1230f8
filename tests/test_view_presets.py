"""A preset of views gives any method the distortions of a kind of images, and leaves it the structure of its views."""

import logging
import re
from pathlib import Path
from typing import Any, get_args

import pytest

from raysl.components import ALIASES, Classes, resolve
from raysl.config.component import type_hints
from raysl.config.dump import dump, to_dict
from raysl.config.fields import settings_in
from raysl.config.load import apply_overrides, load_config, load_dumped
from raysl.config.schema import MethodConfig, ViewPreset
from raysl.config.view_presets import PRESETS
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.prepare import check_views
from raysl.transforms import Affine, GaussianBlur, Grayscale, HorizontalFlip, ViewRecipe

METHODS = sorted(ALIASES["method"])
ONE_A_KIND = sorted({type_hints(resolve("method", name).Config)["views"]: name for name in METHODS}.values())
"""A method for each kind of views: presets know only the fields of these."""
STRUCTURE = re.compile(r"num|num_\w+|size|\w+_size|grid|square|resize|\w+_jitter|jitter|interpolation")
DOCS = Path(__file__).parents[1] / "docs" / "views.md"


def views(words: str) -> dict[str, Any]:
    name, *overrides = words.split()
    found: dict[str, Any] = to_dict(load_config(name, overrides))["method"]["views"]
    return found


def recipe(words: str) -> ViewRecipe:
    name, *overrides = words.split()
    config = load_config(name, overrides)
    return check_views(Setup.of(config, 20_000, 10), Classes.of(config))


def test_another_method_on_the_quickstart_has_the_views_of_digits() -> None:
    assert recipe("quickstart method=moco").groups == recipe("quickstart").groups
    first, second = recipe("quickstart method=moco").groups["global"]
    assert first == second
    assert first.crop.scale == (0.5, 1.0)
    (affine,) = first.transforms
    assert affine == Affine(p=0.9, degrees=15, translate=(0.1, 0.1), scale=(0.85, 1.15), shear=15)


@pytest.mark.parametrize("method", ONE_A_KIND)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_kind_of_views_takes_every_preset_and_keeps_its_structure(method: str, preset: str) -> None:
    own, made = views(f"quickstart method={method} views=null"), views(f"quickstart method={method} views={preset}")
    assert set(made) == set(own)
    for name, value in made.items():
        assert value == PRESETS[preset].get(name, own[name]) or STRUCTURE.fullmatch(name) or name.startswith("local_")
        assert not STRUCTURE.fullmatch(name) or name == "jitter" or value == own[name]


@pytest.mark.parametrize("method", METHODS)
def test_no_mirror_image_of_a_digit_is_seen(method: str) -> None:
    made = views(f"quickstart method={method}")
    off = ("flip", "jitter_p", "grayscale_p", "blur_p", "solarize_p", "second_blur_p", "second_solarize_p")
    assert all(made.get(name, 0) == 0 for name in off)
    assert made.get("min_scale", 0.5) == 0.5


def test_what_is_set_lies_over_the_preset_and_the_preset_over_the_method(tmp_path: Path) -> None:
    assert views("quickstart method=moco")["min_scale"] == 0.5
    assert views("quickstart method=moco views=null")["min_scale"] == 0.2
    assert views("quickstart method=moco method.views.min_scale=0.3 views=digits")["min_scale"] == 0.3
    path = tmp_path / "mine.yaml"
    path.write_text("base: quickstart\nmethod: {views: {blur_p: 0.25}}\n")
    assert views(f"{path} views=medical")["blur_p"] == 0.25
    assert views("supcon views=digits")["policy"] is None
    assert views("supcon views=digits method.views.policy=svhn")["policy"] == "svhn"


@pytest.mark.thorough
def test_imagenets_preset_is_the_methods_own() -> None:
    assert [
        name
        for name in METHODS
        if views(f"quickstart method={name} views=imagenet") != views(f"quickstart method={name} views=null")
    ] == []


def test_small_views_take_values_only_where_there_are_any() -> None:
    assert views("dino views=cifar")["local_blur_p"] == 0
    assert views("dino views=cifar method.views.num_local=0")["local_blur_p"] == 0.5


def test_a_field_that_holds_something_else_is_left_alone() -> None:
    assert views("jigsaw views=satellite")["jitter"] == 21, "places of a tile, no colours"


def test_satellites_see_no_upside_and_keep_their_hues() -> None:
    made = views("simclr views=satellite")
    assert (made["vertical_flip"], made["jitter"][2:], made["grayscale_p"]) == (0.5, [0, 0], 0.2)
    with pytest.raises(ConfigError, match=r"vertical_flip is 0\.5; RotNet"):
        recipe("rotnet views=satellite")


def test_cifar_has_no_blur_and_else_the_views_of_the_method() -> None:
    first, _ = recipe("moco base=data/cifar10").groups["global"]
    assert [type(transform) for transform in first.transforms if isinstance(transform, GaussianBlur)] == []
    assert {HorizontalFlip, Grayscale} <= {type(transform) for transform in first.transforms}


def test_a_stored_run_holds_the_values_and_needs_no_preset() -> None:
    config = load_config("quickstart", ["method=moco"])
    stored = dump(config)
    assert load_dumped(stored) == config
    without = re.sub(r"^views: digits\n", "", stored, flags=re.MULTILINE)
    assert without != stored
    assert load_dumped(without).method == config.method


def test_a_trial_may_change_the_preset_or_the_method() -> None:
    base = load_config("quickstart", ["method.views.shear=5"])
    medical = to_dict(apply_overrides(base, ["views=medical"]))["method"]["views"]
    assert (medical["degrees"], medical["shear"], medical["flip"], medical["translate"]) == (10, 5, 0.5, 0)
    none = apply_overrides(load_config("quickstart"), ["views=null"])
    assert none.method == load_config("quickstart", ["views=null"]).method
    moco = apply_overrides(load_config("quickstart"), ["method=moco"])
    assert moco == load_config("quickstart", ["method=moco"])
    assert apply_overrides(base, ["optim.lr=0.1"]).method == base.method


def test_a_preset_that_stays_with_other_images_is_told_of(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    def told(*words: str) -> list[str]:
        caplog.clear()
        with caplog.at_level(logging.WARNING, "raysl"):
            load_config(words[0], words[1:])
        return [record.getMessage() for record in caplog.records if "views=" in record.getMessage()]

    line = "views=digits from data=digits stays; for other images set views=, or views=null"
    assert told("quickstart", "data=photos") == [line]
    assert told("quickstart", "data=photos", "views=digits") == []
    assert told("quickstart", "data=photos", "views=null") == []
    path = tmp_path / "mine.yaml"
    path.write_text("base: quickstart\ndata: photos\nviews: imagenet\n")
    assert told(str(path)) == []
    assert told("quickstart", "method=moco") == []


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("views=digit", "views: 'digit' is no"),
        (
            "views.min_scale=0.2",
            r"views: give the name of a preset, one of imagenet, .*, or set values in method\.views\.min_scale",
        ),
    ],
)
def test_what_names_no_preset_is_refused(word: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config("quickstart", [word])


def test_presets_hold_fields_of_recipes_and_stand_on_the_page() -> None:
    assert set(get_args(ViewPreset)) == set(PRESETS)
    found = [keys for name in METHODS for keys, _ in settings_in(MethodConfig, {"name": name}, ("method",))]
    fields = {name for *above, name in found if above == ["method", "views"]}
    assert [name for values in PRESETS.values() for name in values if name not in fields] == []
    table = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", DOCS.read_text(), re.MULTILINE)
    assert [name for name, *_ in table if name in PRESETS] == list(PRESETS)
    for name, told, _ in table:
        if name in PRESETS:
            assert set(re.findall(r"`(\w+)", told)) == set(PRESETS[name]), name
