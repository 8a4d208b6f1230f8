"""A stored run without a setting of a later version is read with what it did."""

from pathlib import Path
from typing import Any

import pytest

from raysl.config import former
from raysl.config.dump import differences, dump, to_dict, write
from raysl.config.fields import SLOTS, component_class, settings_in
from raysl.config.former import FORMER, add_former_values
from raysl.config.load import load_config, load_dumped, stored_settings, stored_tree
from raysl.config.schema import RunConfig

TABLE = {
    ("train", "sync_bn"): False,
    ("method", "simclr", "temperature"): 0.7,
    ("method", "simclr", "views", "blur_p"): 0.3,
    ("method", "byol", "momentum"): 0.5,
    ("benchmarks", "knn", "temperature"): 0.9,
}
"""Settings that there are, as if a later version had brought them."""


@pytest.fixture
def older(monkeypatch: pytest.MonkeyPatch) -> str:
    """The stored settings of a run of before the settings in `TABLE`."""
    monkeypatch.setattr(former, "FORMER", TABLE)
    tree = to_dict(load_config("quickstart"))
    del tree["train"]["sync_bn"], tree["method"]["temperature"], tree["method"]["views"]["blur_p"]
    del tree["benchmarks"]["knn"]["temperature"]
    return write(tree)


def test_settings_that_a_stored_run_lacks_have_their_former_values(older: str) -> None:
    config: Any = load_dumped(older)
    assert (config.train.sync_bn, config.method.temperature, config.method.views.blur_p) == (False, 0.7, 0.3)
    assert config.benchmarks["knn"].temperature == 0.9
    assert stored_tree(older, "run.yaml") == to_dict(config)


def test_a_resume_with_the_new_default_is_refused_with_the_former_value(older: str) -> None:
    now = load_config("quickstart", ["benchmarks=[]"])
    changes = differences(stored_settings(older, "run.yaml", now), now)
    assert changes == [
        "method.temperature: 0.7 -> 0.5",
        "method.views.blur_p: 0.3 -> 0.0",
        "train.sync_bn: false -> true",
    ]
    overrides = ["method.temperature=0.7", "method.views.blur_p=0.3", "train.sync_bn=false"]
    same = load_config("quickstart", overrides)
    assert differences(stored_settings(older, "run.yaml", same), same) == []


def test_an_older_run_starts_again_from_its_own_file(older: str, tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(older)
    assert load_config(path) == load_dumped(older)
    longer: Any = load_config(path, ["train.epochs=77", "method.temperature=0.2"])
    assert (longer.train.epochs, longer.train.sync_bn, longer.method.temperature) == (77, False, 0.2)
    views: Any = load_config(path, ["views=imagenet"]).method.views
    assert (views.flip, views.affine_p) == (0.5, 0.0), "its views are those of a preset, which gives way to another one"
    recipe = tmp_path / "mine.yaml"
    recipe.write_text("base: quickstart\nmethod: {hidden_dim: 64}\n")
    assert load_config(recipe).train.sync_bn, "what a recipe does not say has the default of today"


def test_settings_that_a_stored_run_has_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(former, "FORMER", TABLE)
    config = load_config("quickstart")
    assert load_dumped(dump(config)) == config


def test_a_component_counts_by_its_alias_and_by_its_class() -> None:
    for name in ("simclr", "raysl.methods.simclr:SimCLR"):
        assert add_former_values({"method": {"name": name}}, TABLE)["method"]["temperature"] == 0.7
    for tree in ({"method": {"name": "dcl"}}, {"method": {"name": "mine.py:SimCLR"}}, {"benchmarks": {"svm": {}}}, {}):
        assert "temperature" not in str(add_former_values(tree, TABLE))
    named = add_former_values({"benchmarks": {"mine": {"name": "knn"}, "svm": {}}}, TABLE)["benchmarks"]
    assert named == {"mine": {"name": "knn", "temperature": 0.9}, "svm": {}}


def test_every_entry_is_a_setting_with_another_default() -> None:
    kinds = {slot: kind for kind, slot in SLOTS.items()}
    slots = former._SINGLE | former._SEVERAL
    shared = dict(settings_in(RunConfig, to_dict(load_config("quickstart"))))
    for keys, value in FORMER.items():
        if keys in shared:
            setting = shared[keys]
        else:
            node, alias, *rest = keys
            setting = dict(settings_in(component_class(kinds[slots[node]], alias), {}))[tuple(rest)]
        assert setting.default != value, f"{keys}: the former value is the default, so the entry does nothing"


@pytest.mark.parametrize("blur_p", [0.0, 0.5])
def test_both_views_of_an_older_vicreg_are_drawn_alike_and_normalised_together(blur_p: float) -> None:
    tree = to_dict(load_config("vicreg", ["data.path=/images", f"method.views.blur_p={blur_p}"]))
    del tree["method"]["batch_norm"], tree["method"]["views"]["second_blur_p"]
    del tree["method"]["views"]["second_solarize_p"]
    tree["method"]["views"]["solarize_p"] = 0.1
    config: Any = load_dumped(write(tree))
    assert config.method.batch_norm == "joint"
    assert (config.method.views.second_blur_p, config.method.views.second_solarize_p) == (blur_p, 0.1)
    first, second = config.method.views.recipe().groups["global"]
    assert first == second


FORMERLY = {"data": {"exact_below": 4_194_304, "window": 2048}}


def test_a_resume_takes_a_former_default_for_the_default_of_today(tmp_path: Path) -> None:
    """Both settings are None by default since version 2 of the order of samples, and version 1 has its own numbers."""
    now = load_config("quickstart")
    older = to_dict(now)
    older["data"] |= FORMERLY["data"]
    assert differences(stored_settings(write(older), "run.yaml", now), now) == []
    same = load_config("quickstart", ["data.window=2048", "data.exact_below=4194304"])
    assert differences(stored_settings(write(older), "run.yaml", same), same) == []
    older["data"]["window"] = 512
    assert differences(stored_settings(write(older), "run.yaml", now), now) == ["data.window: 512 -> null"]
    of_today = to_dict(load_config("quickstart", ["data.window=2048"]))
    assert differences(stored_settings(write(of_today), "run.yaml", now), now) == ["data.window: 2048 -> null"]


def test_sources_inside_a_source_lose_the_former_defaults_that_they_may_not_set() -> None:
    now = load_config("quickstart", ["data={name: concat, sources: {a: {name: digits}, b: {name: digits}}}"])
    older = to_dict(now)
    for node in (older["data"], *older["data"]["sources"].values()):
        node |= FORMERLY["data"]
    config: Any = load_dumped(write(older))
    assert config.data.sources["a"] == now.data.sources["a"]  # type: ignore[attr-defined]
    assert differences(stored_settings(write(older), "run.yaml", now), now) == []
