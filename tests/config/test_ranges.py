"""Every number among the settings has a range; what is out of it is refused by name, what is in it is possible."""

import dataclasses
import json
import math
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pytest
import torch

from raysl.components import ALIASES, resolve
from raysl.config.build import build_node, from_dict
from raysl.config.component import type_hints
from raysl.config.config_files import read
from raysl.config.dump import to_dict
from raysl.config.fields import SLOTS, find_group, list_settings
from raysl.config.load import load_config
from raysl.config.ranges import LARGEST, OutOfRange, Rising, Share, Within, bare, check_ranges, describe_rules, rules_of
from raysl.config.schema import RunConfig, TrainConfig
from raysl.config.values import convert
from raysl.errors import ConfigError
from raysl.schedule import Duration
from raysl.sweeps.load import load_sweep
from raysl.sweeps.schema import SweepConfig
from tests.config.conftest import PARTS, Write
from tests.config.unbounded import lacks_range
from tests.console import Console
from tests.transforms.papers import RECIPES

OWN = {slot: list(names) for slot, names in ALIASES.items()}
NODES = {"method": "method", "backbone": "backbone", "data": "source", "optim": "optimizer"}
HUGE = "1" + 400 * "0"
BAD = ["-3", "-0.5", "1.5", ".nan", ".inf", "-.inf", "1e300", "100000000000000000000", HUGE, "true", "much", "[]",
       "[2, 1]", "[1, .nan]", "{a: -1}", "-1ep", "0st", "99999999999999ep", f"{HUGE}st"]  # fmt: skip
BAD_VALUES = {bad: read(bad, "test") for bad in BAD}
Field = tuple[tuple[str, ...], str, Any]
"""Overrides that choose a component, the dotted key of a number there, and its annotation."""

RESTARTS = ["optim.schedule=restarts", "optim.restart_every=10%"]
SCHEDULES = {
    "optim.decay_at": ["optim.schedule=steps"],
    "optim.num_decays": ["optim.schedule=steps"],
    "optim.values": ["optim.schedule=steps"],
    "optim.power": ["optim.schedule=polynomial"],
    "optim.restart_every": ["optim.schedule=restarts"],
    "optim.restart_growth": RESTARTS,
    "optim.restart_factor": RESTARTS,
    "train.ema_every": ["train.ema=0.9"],
    "train.ema_warmup": ["train.ema=0.9"],
}
"""What settings go with alone."""
TILES = {
    "method.views.resize": ["method.views.size=6", "method.views.tile_size=2", "method.views.jitter=1"],
    "method.views.size": ["method.views.resize=16384", "method.views.tile_size=2", "method.views.jitter=1"],
    "method.views.tile_size": ["method.views.resize=16384", "method.views.size=16384", "method.views.jitter=1"],
    "method.views.square": ["method.views.tile_size=2", "method.views.tile_jitter=1"],
    "method.views.tile_jitter": ["method.views.square=16384", "method.views.tile_size=2"],
    "method.views.jitter": ["method.views.resize=16384", "method.views.size=16384", "method.views.tile_size=2"],
}
"""The same of squares that are cut into tiles."""
SWIN = {
    "backbone.width": ["backbone.head_dim=1"],
    "backbone.head_dim": ["backbone.width=65536"],
}
"""The same of Swin transformers."""
LARGE = ("method.views.num_permutations", "backbone.depth")
"""Numbers whose largest value takes seconds to build with."""


def components() -> Iterator[tuple[tuple[str, ...], str, type[Any]]]:
    """Overrides that choose a component, its node, and its settings."""
    for node, slot in NODES.items():
        for name in OWN[slot]:
            yield (f"{node}={name}",), node, resolve(slot, name).Config
    for name in OWN["benchmark"]:
        yield (f"benchmarks.{name}={{}}",), f"benchmarks.{name}", resolve("benchmark", name).Config
    yield (), "train", TrainConfig


def numbers(kind: type[Any], key: str) -> Iterator[tuple[str, Any]]:
    """Dotted keys and annotations of the numbers in a group of settings."""
    for setting in list_settings(kind).values():
        inner = f"{key}.{setting.name}" if key else setting.name
        group = find_group(setting.kind)
        if group is not None and group not in SLOTS:
            yield from numbers(group, inner)
        elif describe_rules(setting.kind) or lacks_range(setting.kind):
            yield inner, setting.kind


def fields() -> list[Field]:
    """Each number once, though many components share it."""
    found: dict[tuple[str, Any], Field] = {}
    for choice, node, group in components():
        for key, kind in numbers(group, node):
            found.setdefault((key, kind), (choice, key, kind))
    return [((), "seed", type_hints(RunConfig)["seed"]), *found.values()]


FIELDS = fields()


@pytest.fixture(autouse=True)
def aliases(monkeypatch: pytest.MonkeyPatch) -> None:
    """All components of raysl, in place of the small ones of the other tests here."""
    for slot in OWN:
        monkeypatch.setitem(ALIASES, slot, {name: ALIASES[slot][name] for name in OWN[slot]})


def refusal(choice: tuple[str, ...], *overrides: str) -> str:
    """Empty where the settings load."""
    try:
        load_config("quickstart", [*choice, *overrides])
    except ConfigError as error:
        return str(error)
    return ""


def field_refusal(key: str, kind: Any, value: Any) -> str:
    """Empty where a field of this annotation takes the value; no configuration is loaded."""
    try:
        convert(kind, value, key, None, lambda group, inner, inner_key, _: build_node(group, inner, inner_key))
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [RunConfig, TrainConfig, SweepConfig, *(group for _, _, group in components())])
def test_every_number_has_a_range(kind: type[Any]) -> None:
    bare_ones = [setting.name for setting in list_settings(kind).values() if lacks_range(setting.kind)]
    groups = [group for s in list_settings(kind).values() if (group := find_group(s.kind)) and group not in SLOTS]
    assert bare_ones == []
    assert [(group, name) for group in groups for name, hint in type_hints(group).items() if lacks_range(hint)] == []


@pytest.mark.parametrize("name", RECIPES)
def test_every_number_of_a_recipe_has_a_range(name: str) -> None:
    hints = get_type_hints(RECIPES[name], include_extras=True)
    assert [key for key, kind in hints.items() if key != "return" and lacks_range(kind)] == []


def test_a_number_without_a_range_is_found() -> None:
    assert lacks_range(int)
    assert lacks_range(float | None)
    assert lacks_range(Duration)
    assert lacks_range(dict[str, tuple[float, ...]])
    assert lacks_range(tuple[float, float])
    assert not lacks_range(str | bool | None)


def test_there_are_many_numbers() -> None:
    assert len({key for _, key, _ in FIELDS}) > 50


@pytest.mark.parametrize(("choice", "key", "kind"), FIELDS)
def test_a_bad_value_is_refused_by_its_name_or_is_in_the_range(choice: tuple[str, ...], key: str, kind: Any) -> None:
    messages = {bad: field_refusal(key, kind, value) for bad, value in BAD_VALUES.items()}
    refused = [bad for bad in BAD if messages[bad]]
    assert len(refused) >= len(BAD) - 9
    taken = [bad for bad in BAD if bad not in refused]
    never = [bad for bad in taken if bad in (".nan", "much", HUGE, "{a: -1}")]  # where the component refuses
    for bad in (refused[0], *taken[:1], *never):
        message = refusal(choice, f"{key}={bad}")
        assert message or bad in {*taken} - {*never}
        messages[f"{bad} among all settings"] = message
    for bad, message in messages.items():
        assert all(key in line for line in message.splitlines()), bad


@pytest.mark.parametrize(
    ("words", "key"),
    [
        ("optim.momentum=1.5", "optim.momentum"),
        ("data.buffer_gb=-1", "data.buffer_gb"),
        ("train.threads=5000", "train.threads"),
        ("method.views.min_scale=2", "method.views.min_scale"),
        ("method.views.blur_sigma=[2,1]", "method.views.blur_sigma"),
        ("seed=100000000000000000000", "seed"),
        ("benchmarks.low_shot.draws=0", "benchmarks.low_shot.draws"),
        ("benchmarks.knn.k=[]", "benchmarks.knn.k"),
        ("benchmarks.knn.k=[5,0]", "benchmarks.knn.k[1]"),
        ("data.mean=[0.5,0.5,103.5]", "data.mean[2]"),
        (f"optim.warmup={HUGE}st", "optim.warmup"),
        (f"optim.lr={HUGE}", "optim.lr"),
    ],
)
def test_the_command_refuses_with_one_line_and_exit_code_2(words: str, key: str, console: Console) -> None:
    code, _, err = console("config", words)
    told_lines = err.splitlines()
    assert code == 2
    assert {line.split(": ")[0] for line in told_lines} == {"error"}
    assert {line.split(": ")[1] for line in told_lines} == {key}


def ends(kind: Any) -> list[Any]:
    """The least and the largest values that an annotation allows."""
    for rule in rules_of(kind):
        if isinstance(rule, Within):
            low = math.nextafter(rule.low, math.inf) if rule.above else rule.low
            high = math.nextafter(rule.high, -math.inf) if rule.below else rule.high
            return [f"{x:f}ep" for x in (rule.low + 0.01, high)] if bare(kind) is Duration else [low, high]
    inner = [
        arg for arg in get_args(bare(kind)) if arg not in (type(None), Ellipsis) and get_origin(arg) is not Literal
    ]
    for rule in rules_of(kind):
        if isinstance(rule, Rising):
            low, high = ends(inner[0])
            return [[low, high]] if rule.strictly else [[low, low], [low, high], [high, high]]
    found = ends(inner[-1])
    is_list = get_origin(bare(kind)) is tuple and (bare(kind) != kind or len(inner) > 1)
    return [[value] * len(inner) for value in found] if is_list else found


def is_free(choice: tuple[str, ...], key: str) -> bool:
    """Whether a number may be anything in its range: the side of images is also for the chosen network to say."""
    # these depend on data.channels, data.sources, the length of the run or the backbone
    bound = ("backbone.in_channels", "data.mean", "data.std", "data.value_range", "data.weights", "train.expect")
    if key in (*bound, "train.view_scale", "train.patch_drop"):
        return False
    return key != "backbone.image_size" or "backbone=vit" in choice


@pytest.mark.parametrize(
    ("choice", "key", "kind"),
    [
        pytest.param(*field, marks=pytest.mark.slow if field[1] in LARGE else pytest.mark.thorough)
        for field in FIELDS
        if is_free(field[0], field[1])
    ],
)
def test_both_ends_of_a_range_are_possible(choice: tuple[str, ...], key: str, kind: Any) -> None:
    for value in ends(kind):
        others = ["data.lanes=1", "data.eval_resize=null"]
        if key in ("data.lanes", "data.eval_resize"):
            others = ["train.batch_size=10_000_000", "data.image_size=2"]
        others += {
            "backbone.heads": ["backbone.width=1024"],
            "backbone.patch_size": ["backbone.image_size=1024"],
            "backbone.image_size": ["backbone.patch_size=2"],
            "backbone.palette": ["backbone.patch_size=1"],
            "backbone.groups": ["backbone.depth=14"],
            "backbone.sk_ratio": ["backbone.depth=14"],
            "backbone.width_per_group": ["backbone.depth=14", "backbone.width=64"],
        }.get(key, [])
        others += SCHEDULES.get(key, [])
        others += SWIN.get(key, []) if "backbone=swin" in choice else []
        others += TILES.get(key, []) if {"method=jigsaw", "method=pirl"} & {*choice} else []
        wanted = [setting for setting in others if not setting.startswith(key)]
        config = load_config("quickstart", [*choice, *wanted, f"{key}={json.dumps(value)}".replace("Infinity", ".inf")])
        if key.startswith("method."):
            config.method.views.recipe()
        if key.startswith("optim."):
            optimizer = resolve("optimizer", config.optim.name)
            optimizer([{"params": [torch.nn.Parameter(torch.ones(2))]}], config.optim)
        for benchmark in config.benchmarks.values():
            resolve("benchmark", benchmark.name)(benchmark)
        if key.startswith("backbone."):
            with torch.device("meta"):
                resolve("backbone", config.backbone.name)(config.backbone)
        assert from_dict(to_dict(config)) == config


def test_pairs_of_settings_that_do_not_go_together_are_refused() -> None:
    assert "optim: nesterov needs a momentum" in refusal(("optim=sgd",), "optim.momentum=0", "optim.nesterov=true")


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "setting"), [("ibot", {"size": 100}), ("mae", {"patch_size": 15}), ("jigsaw", {"tile_size": 200})]
)
def test_views_that_cannot_be_drawn_are_refused_when_they_are_made(name: str, setting: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"does not divide|jitter"):
        RECIPES[name](**setting)


@pytest.mark.parametrize("override", ["trials=0", "trials=.nan", "seeds=0", "concurrent=-1", f"retries={HUGE}"])
def test_the_numbers_of_a_sweep_have_ranges(override: str) -> None:
    with pytest.raises(ConfigError, match=override.partition("=")[0]):
        load_sweep("sweep/quickstart", [override])


@pytest.mark.parametrize(
    "space",
    [
        "{uniform: [0, .inf]}",
        "{uniform: [.nan, 1]}",
        "{uniform: [true, 2]}",
        "{randint: [1.5, 3]}",
        "{loguniform: [0, 1]}",
    ],
)
def test_a_range_to_search_is_finite(write: Write, space: str) -> None:
    with pytest.raises(ConfigError, match=r"space.optim.lr.\w+: .* is no range"):
        load_sweep(write("search.yaml", f"space: {{optim.lr: {space}}}"))


def test_numbers_of_ones_own_components_are_finite_at_least(tiny: str) -> None:
    for words in (
        "method.temperature=.nan",
        "method.terms={a: .inf}",
        "method.range=[0, .nan]",
        f"method.ramp={HUGE}st",
    ):
        with pytest.raises(ConfigError, match="out of range; give a finite number"):
            load_config(tiny, [f"method={PARTS}:Contrast", words])
    assert load_config(tiny, ["method.temperature=-1e300"]).method.name


def test_defaults_are_in_their_ranges() -> None:
    for choice, _, group in components():
        for setting in list_settings(group).values():
            if setting.default is not dataclasses.MISSING and setting.default is not None and setting.name != "name":
                for rule in rules_of(setting.kind):
                    assert rule.problem(setting.default) is None, (choice, setting.name)


def test_ranges_are_told_in_words() -> None:
    assert Within(0, 1, below=True).describe() == "in [0, 1)"
    assert Within(1, LARGEST).describe() == "at least 1"
    assert Within(0, above=True).describe() == "above 0"
    assert Within(1, LARGEST).problem(LARGEST + 1) == f"is out of range; give at most {LARGEST}"
    assert Within(0, 1).problem(math.nan) == "is out of range; give a number in [0, 1]"
    assert Within().problem(math.inf) == "is out of range; give a finite number"
    assert Within(is_finite=False).problem(math.inf) is None
    assert Within(is_finite=False).problem(math.nan) is not None


def test_a_value_of_another_kind_is_refused_where_a_number_has_a_range() -> None:
    @dataclasses.dataclass
    class Settings:
        share: Share | None = None
        range: tuple[Share, Share] = (0.0, 1.0)

    check_ranges(Settings(1, (np.float32(0.5), 1)))
    for settings, message in (
        (Settings(True), "share=True is a bool; give a number"),
        (Settings("1"), "share='1' is a str; give a number"),  # type: ignore[arg-type]
        (Settings(None, (0, False)), r"range=\(0, False\) is a bool; give a number"),
    ):
        with pytest.raises(OutOfRange, match=message):
            check_ranges(settings)
