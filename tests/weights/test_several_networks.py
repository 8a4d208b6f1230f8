"""A file with several networks: which is taken is said, and `key` and `prefix` choose another."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torchvision import models

from raysl.errors import ConfigError
from raysl.weights.convert import convert, load_weights
from raysl.weights.fill import Loaded
from raysl.weights.layouts import Rules
from tests.console import Console
from tests.weights.networks import behind, head, images, pooled, saved, shaken, small_resnet, small_vit

FIRST, SECOND = 3, 4  # seeds of the two networks of a file


def both(first: str, second: str) -> dict[str, Any]:
    return {first: small_resnet(FIRST).state_dict(), second: small_resnet(SECOND).state_dict(), "epoch": 3}


def flat(first: str, second: str) -> dict[str, Any]:
    return behind(first, small_resnet(FIRST).state_dict()) | behind(second, small_resnet(SECOND).state_dict())


def seed_of(loaded: Loaded) -> int:
    """The seed of the network that was read."""
    with torch.no_grad():
        features = loaded.backbone(images())
        return next(seed for seed in (FIRST, SECOND) if torch.equal(features, small_resnet(seed)(images())))


def rules_of(text: str) -> Rules:
    """The rules that a message shows."""
    words = dict(word.split("=") for word in text.split())
    return Rules(key=words.get("key"), prefix=words.get("prefix"))


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("tree", "other"),
    [
        (both("state_dict", "state_dict_ema"), "key=state_dict_ema"),
        (both("model", "model_ema"), "key=model_ema"),
        (both("model", "ema"), "key=ema"),
        ({"state_dict": behind("module.", small_resnet(FIRST).state_dict()), "ema": {"net": flat("", "m.")}}, None),
        ({"model": small_resnet(FIRST).state_dict(), "ema": {"module": small_resnet(SECOND).state_dict()}}, None),
        ({"state_dict": flat("encoder.", "momentum.")}, "key=state_dict prefix=momentum."),
        (flat("", "module_ema."), "prefix=module_ema."),
        ({"state_dict": flat("backbone.", "momentum_backbone.")}, "key=state_dict prefix=momentum_backbone."),
    ],
)
def test_the_networks_that_were_not_taken_are_listed_with_the_rules_that_take_them(
    tree: dict[str, Any], other: str | None, tmp_path: Path
) -> None:
    path = saved(tree, tmp_path / "file.pth")
    loaded = load_weights(path)
    assert seed_of(loaded) == FIRST
    assert loaded.table is not None
    assert loaded.table.others
    assert f"more in the file ({loaded.table.others[0]}" in loaded.table.text()
    assert other in (None, loaded.table.others[0])
    assert seed_of(load_weights(path, rules=rules_of(loaded.table.others[-1]))) == SECOND


@pytest.mark.thorough
@pytest.mark.parametrize(
    "tree",
    [
        both("student", "teacher"),
        both("online", "target"),
        both("params", "params_ema"),
        {"nets": both("module", "module_ema")},
        flat("student.backbone.", "teacher.backbone."),
        {"model": flat("student.backbone.", "teacher.backbone.")},
    ],
)
def test_two_networks_in_no_known_layout_are_asked_for(tree: dict[str, Any], tmp_path: Path) -> None:
    path = saved(tree, tmp_path / "file.pth")
    with pytest.raises(ConfigError, match="holds 2 networks, in no layout that says which one counts; ") as refused:
        load_weights(path)
    for way, seed in zip(str(refused.value).partition("choose one: ")[2].split(" or "), (FIRST, SECOND), strict=True):
        assert seed_of(load_weights(path, rules=rules_of(way))) == seed


@pytest.mark.thorough
def test_a_key_alone_leads_to_the_networks_inside_it(tmp_path: Path) -> None:
    tree = {"ema": {"state_dict": behind("module.encoder.", small_resnet(SECOND).state_dict())}, **both("a", "b")}
    path = saved(tree, tmp_path / "file.pth")
    assert seed_of(load_weights(path, rules=Rules(key="ema.state_dict"))) == SECOND
    assert seed_of(load_weights(path, rules=Rules(prefix="module.encoder."))) == SECOND


@pytest.mark.thorough
def test_a_key_leaves_the_settings_of_the_layout(tmp_path: Path) -> None:
    net = small_vit(embed_dim=384, depth=12, num_heads=12, num_classes=0)
    tree = {"state_dict": behind("module.base_encoder.", net.state_dict())}
    tree["state_dict"] |= behind("module.momentum_encoder.", shaken(net, SECOND).state_dict())
    path = saved(tree, tmp_path / "moco_v3.pth")
    chosen = load_weights(path, rules=Rules(key="state_dict", prefix="module.momentum_encoder."))
    with torch.no_grad():
        torch.testing.assert_close(chosen.backbone(images()), pooled(net, images()), rtol=0, atol=1e-5)


@pytest.mark.thorough
def test_named_networks_are_listed_and_chosen_too(tmp_path: Path) -> None:
    words = ("backbone=torchvision", "backbone.model=shufflenet_v2_x0_5")
    torch.manual_seed(0)
    nets = [models.shufflenet_v2_x0_5(num_classes=3).state_dict() for _ in range(2)]
    path = saved({"model": nets[0], "model_ema": nets[1]}, tmp_path / "file.pth")
    weights = []
    for rules in (Rules(), Rules(key="model_ema")):
        loaded = load_weights(path, words, rules)
        weights.append(loaded.backbone.state_dict()["network.conv1.0.weight"])
        assert loaded.table is not None
        assert list(loaded.table.others) == ["key=model" if rules.key else "key=model_ema"]
    assert [torch.equal(mine, net["conv1.0.weight"]) for mine, net in zip(weights, nets, strict=True)] == [True, True]
    path = saved({"student": nets[0], "teacher": nets[1]}, tmp_path / "two.pth")
    with pytest.raises(ConfigError, match="choose one: key=student or key=teacher"):
        load_weights(path, words)


@pytest.mark.thorough
def test_the_command_and_the_result_say_that_there_is_another(tmp_path: Path, console: Console) -> None:
    path = saved({**both("state_dict", "state_dict_ema"), **head()}, tmp_path / "timm.pth")
    _, out, _ = console("convert", path, "--out", str(tmp_path / "run"))
    assert "others      1 more in the file (key=state_dict_ema)\n" in out
    done = convert(path, str(tmp_path / "ema"), rules=Rules(key="state_dict_ema"))
    assert "others 1 more in the file (key=state_dict)" in repr(done)
    assert done.summary == "Its weights are those of `timm.pth`, in the layout of torchvision ([state_dict_ema])."
