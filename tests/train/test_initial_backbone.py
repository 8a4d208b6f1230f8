"""A run that begins with weights has their backbone, unless the user gave another one."""

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import raysl
from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.plan.setup import Setup
from raysl.train.state import TrainState
from raysl.weights.convert import convert
from tests.weights.networks import saved, small_vit


def started(config: RunConfig) -> Any:
    """The backbone of a new run."""
    return TrainState.create(Setup.of(config, 100_000, 10)).method.export().eval()


@pytest.mark.thorough
@pytest.mark.parametrize("method", ["cifar10/dino", "simclr", "quickstart"])
def test_one_setting_goes_on_from_a_trained_backbone(method: str, caplog: pytest.LogCaptureFixture) -> None:
    images = torch.rand(2, 3, 32, 32)
    with caplog.at_level(logging.INFO, "raysl"):
        config = load_config(method, ["method.weights=cifar10/dino"])
    theirs = raysl.load_backbone("cifar10/dino")
    with torch.no_grad():
        assert torch.equal(started(config)(images), theirs(images))
    (line,) = [line for line in caplog.messages if line.startswith("method.weights=cifar10/dino: ")]
    assert "backbone=resnet" in line
    assert "backbone.width=16" in line


@pytest.mark.thorough
def test_a_vit_takes_the_place_of_a_recipes_resnet_and_keeps_the_settings_of_training(tmp_path: Path) -> None:
    net = small_vit(num_classes=0)
    source = saved(net.state_dict(), tmp_path / "vit.pth")
    convert(source, str(tmp_path / "vit"), ["backbone.heads=1"])
    words = [f"method.weights={tmp_path / 'vit'}", "data.image_size=32"]
    config: Any = load_config("simclr", words)
    assert (config.backbone.name, config.backbone.width, config.backbone.depth) == ("vit", 64, 3)
    with torch.no_grad():
        theirs = raysl.load_backbone(str(tmp_path / "vit"))
        images = torch.rand(2, 3, 32, 32)
        assert torch.equal(started(config)(images), theirs(images))
    ibot: Any = load_config("ibot", words)
    assert (ibot.backbone.width, ibot.backbone.mask_token) == (64, True)
    assert ibot.backbone.drop_path == load_config("ibot").backbone.drop_path  # type: ignore[attr-defined]


@pytest.mark.thorough
def test_settings_that_the_user_gave_stay(tmp_path: Path) -> None:
    weights = "method.weights=cifar10/dino"
    typed: Any = load_config("simclr", [weights, "backbone.depth=18"])
    assert (typed.backbone.depth, typed.backbone.width) == (18, 16)
    with pytest.raises(ConfigError, match="is another one: "):
        started(typed)
    other: Any = load_config("simclr", [weights, "backbone=vit"])
    assert (other.backbone.name, other.backbone.width) == ("vit", None)
    (tmp_path / "mine.yaml").write_text("base: simclr\nmethod: {weights: cifar10/dino}\nbackbone: {stem: imagenet}\n")
    mine: Any = load_config(tmp_path / "mine.yaml")
    assert (mine.backbone.stem, mine.backbone.depth) == ("imagenet", 10)


@pytest.mark.thorough
def test_a_run_whose_weights_were_deleted_goes_on_with_its_own_settings(tmp_path: Path) -> None:
    first = load_config("quickstart", ["backbone.width=8", "backbone.depth=18"])
    TrainState.create(Setup.of(first, 256, 10)).save(tmp_path / "first" / checkpoint_name(0), {})
    words = [f"method.weights={tmp_path / 'first'}", "name=second", f"storage={tmp_path}"]
    second: Any = load_config("quickstart", words)
    assert (second.backbone.width, second.backbone.depth) == (8, 18)
    TrainState.create(Setup.of(second, 256, 10)).save(tmp_path / "second" / checkpoint_name(0), {})
    shutil.rmtree(tmp_path / "first")
    assert load_config("quickstart", words) == second


def test_code_that_a_checkpoint_names_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text("backbone: {name: 'evil.py:Net', width: 8}\n")
    config: Any = load_config("simclr", [f"method.weights={tmp_path / 'run'}"])
    assert config == load_config("simclr", [f"method.weights={tmp_path / 'run'}", "backbone.name=resnet"])
