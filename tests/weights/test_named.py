"""Any network of torchvision or timm is read from a state dict, once it is named."""

import sys
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from torch import nn
from torchvision import models

import raysl
from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from raysl.weights.convert import convert, load_weights
from raysl.weights.layouts import Rules
from raysl.weights.search import ARCHITECTURES
from tests.console import Console
from tests.nn.test_timm_models import ONE_A_FAMILY as TIMM
from tests.nn.test_torchvision_models import ONE_A_FAMILY as TORCHVISION
from tests.weights.networks import behind, images, pooled, saved, shaken

SHUFFLE = ("backbone=torchvision", "backbone.model=shufflenet_v2_x0_5")
CONVNEXT = ("backbone=timm", "backbone.model=test_convnext")


def named(model: str) -> Any:
    """A network of timm with its classifier."""
    torch.manual_seed(1)
    return shaken(timm.create_model(model))


def shuffle() -> Any:
    torch.manual_seed(1)
    return shaken(models.shufflenet_v2_x0_5())


def refusal(path: str, words: tuple[str, ...], rules: Rules | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_weights(path, words, rules)
    return str(refused.value)


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder_q."])
def test_a_network_of_timm_is_found_where_the_layouts_say(prefix: str, tmp_path: Path) -> None:
    theirs = named("test_convnext")
    tree = {"epoch": 3, "state_dict": behind(prefix, theirs.state_dict())}
    loaded = load_weights(saved(tree, tmp_path / "file.pth"), CONVNEXT)
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images(64)), pooled(theirs, images(64)))
    assert loaded.table is not None
    assert loaded.table.problems == []
    assert loaded.table.unexpected == ["head.fc.weight", "head.fc.bias"]
    assert loaded.config.data.image_size == theirs.default_cfg["input_size"][-1]


@pytest.mark.thorough
def test_a_network_of_torchvision_is_read_and_begins_a_run(tmp_path: Path) -> None:
    theirs = shuffle()
    path = saved(theirs.state_dict(), tmp_path / "file.pth")
    done = convert(path, str(tmp_path / "run"), overrides=SHUFFLE)
    assert done.summary == "Its weights are those of `file.pth`, in the layout of torchvision (plain names)."
    words = [*SHUFFLE, f"method.weights={tmp_path / 'run'}", "data.image_size=64"]
    state = TrainState.create(Setup.of(load_config("quickstart", words), 256, 10))
    theirs.fc = nn.Identity()
    with torch.no_grad():
        expected = theirs(images(64))
        assert torch.equal(raysl.load_backbone(str(tmp_path / "run"))(images(64)), expected)
        assert torch.equal(state.method.export().eval()(images(64)), expected)


@pytest.mark.thorough
def test_a_key_and_a_prefix_lead_to_a_named_network_too(tmp_path: Path) -> None:
    tree = {"nets": {"online": behind("encoder.", shuffle().state_dict())}}
    path = saved(tree, tmp_path / "file.pth")
    table = load_weights(path, SHUFFLE, Rules(key="nets.online", prefix="encoder.")).table
    assert table is not None
    assert (table.problems, len(table.unexpected)) == ([], 2)


@pytest.mark.thorough
def test_positions_of_timms_vits_are_interpolated_by_timm(tmp_path: Path) -> None:
    path = saved(named("test_vit").state_dict(), tmp_path / "file.pth")
    words = ("backbone=timm", "backbone.model=test_vit", "backbone.image_size=96")
    loaded = load_weights(path, words)
    theirs = timm.create_model("test_vit", img_size=96, num_classes=0)
    convert_names = sys.modules["timm.models.vision_transformer"].checkpoint_filter_fn
    theirs.load_state_dict(convert_names(torch.load(path), theirs), strict=False)
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images(96)), theirs.eval()(images(96)))


@pytest.mark.thorough
def test_another_network_is_refused_with_what_does_not_fit(tmp_path: Path) -> None:
    wider = saved({**shuffle().state_dict(), "conv5.1.weight": torch.zeros(9)}, tmp_path / "wider.pth")
    text = refusal(wider, SHUFFLE)
    assert "network.conv5.1.weight is [9] there and [1024] here; " in text
    assert "give the file's own backbone.model in place of shufflenet_v2_x0_5" in text
    other = saved({"net": named("test_convnext").state_dict()}, tmp_path / "other.pth")
    text = refusal(other, SHUFFLE)
    assert text.startswith(f"{other} has no tensor of shufflenet_v2_x0_5, which has conv1.0.weight and ")
    assert "it holds net (" in text


def test_the_command_says_which_architectures_it_reads(
    monkeypatch: pytest.MonkeyPatch, console: Console, tmp_path: Path
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    _, out, _ = console("convert", "--help")
    text = " ".join(out.replace("\u2502", " ").split())
    assert f"{ARCHITECTURES}." in text
    assert ARCHITECTURES in refusal(saved(named("test_convnext").state_dict(), tmp_path / "file.pth"), ())


@pytest.mark.slow
@pytest.mark.parametrize("model", [*TORCHVISION, "squeezenet1_1", "vgg11_bn"])
def test_a_network_of_each_family_of_torchvision_is_read_whole(model: str, tmp_path: Path) -> None:
    more = {"init_weights": True} if model == "googlenet" else {}
    theirs = models.get_model(model, **more).eval()
    path = saved(theirs.state_dict(), tmp_path / "file.pth")
    loaded = load_weights(path, ["backbone=torchvision", f"backbone.model={model}"])
    mine = loaded.backbone.state_dict()
    assert loaded.table is not None
    assert (loaded.table.missing, loaded.table.extra, len(loaded.table.loaded)) == ([], [], len(mine))
    assert all(torch.equal(value, theirs.state_dict()[name.removeprefix("network.")]) for name, value in mine.items())


@pytest.mark.slow
@pytest.mark.parametrize("model", [*TIMM, "deit_tiny_distilled_patch16_224", "pit_ti_224"])
def test_a_network_of_many_families_of_timm_is_read_whole(model: str, tmp_path: Path) -> None:
    theirs = timm.create_model(model).eval()
    path = saved(theirs.state_dict(), tmp_path / "file.pth")
    loaded = load_weights(path, ["backbone=timm", f"backbone.model={model}"])
    side = theirs.default_cfg["input_size"][-1]
    expected = timm.create_model(model, num_classes=0).eval()
    expected.load_state_dict(theirs.state_dict(), strict=False)
    with torch.no_grad():
        assert torch.equal(loaded.backbone(images(side)), expected(images(side)))
