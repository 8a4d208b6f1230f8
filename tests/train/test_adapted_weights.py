"""Weights for other channels, patches, sizes and tokens begin a run by stated rules; what no rule covers is refused."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torch.nn.functional as F

from raysl.checkpoint.checkpoint_folder import checkpoint_name
from raysl.checkpoint.published import describe_origin
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError
from raysl.nn.backbones.adapt import adapt, adapt_channels, resize_patches
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.runs.begin import check_weights
from raysl.train.state import TrainState
from raysl.weights.convert import load_weights

IMAGES = (64, 10)
VIT = (
    "data=image_folder",
    "backbone=vit",
    "backbone.size=nano",
    "backbone.depth=2",
    "backbone.patch_size=8",
    "data.image_size=32",
)
HEADS = ("method.hidden_dim=8", "method.output_dim=4")


def config_of(tmp_path: Path, *words: str) -> RunConfig:
    return load_config("quickstart", [*VIT, *HEADS, f"storage={tmp_path}", "name=new", *words])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source" / checkpoint_name(0)
    state = TrainState.create(Setup.of(config_of(tmp_path, "seed=3"), *IMAGES))
    state.save(folder, {})
    return folder.parent


def begun(tmp_path: Path, source: Path, *words: str) -> TrainState:
    config = config_of(tmp_path, f"method.weights={source}", *words)
    check_weights(config)
    return TrainState.create(Setup.of(config, *IMAGES))


# channels


@pytest.mark.parametrize("num", [1, 2, 4, 6, 12])
def test_channels_are_adapted_as_timm_does(num: int) -> None:
    weight = torch.randn(5, 3, 4, 4)
    assert torch.allclose(adapt_channels(weight, num), timm.models.adapt_input_conv(num, weight))


@pytest.mark.parametrize("num", [1, 6, 9])
def test_an_image_that_is_the_same_in_every_channel_gets_the_features_that_it_had(num: int) -> None:
    weight, grey = torch.randn(5, 3, 4, 4), torch.rand(1, 1, 8, 8)
    before = F.conv2d(grey.expand(-1, 3, -1, -1), weight)
    assert torch.allclose(F.conv2d(grey.expand(-1, num, -1, -1), adapt_channels(weight, num)), before, atol=1e-4)


@pytest.mark.thorough
def test_a_run_of_four_channels_begins_with_weights_of_three_and_says_so(tmp_path: Path, source: Path) -> None:
    state = begun(tmp_path, source, "data.channels=4")
    old = begun(tmp_path, source).method.export().state_dict()
    new = state.method.export().state_dict()
    name = "patch_embed.proj.weight"
    assert torch.equal(new[name], adapt_channels(old[name], 4))
    assert all(torch.equal(new[other], old[other]) for other in old if other != name)
    assert state.weights is not None
    assert describe_origin(state.weights).endswith(f"adapted: {name} from [96, 3, 8, 8] to [96, 4, 8, 8]")


# patches and positions


@pytest.mark.parametrize(("old", "new"), [(4, 8), (8, 12), (7, 9)])
def test_an_enlarged_patch_gets_the_token_that_it_had(old: int, new: int) -> None:
    weight, patch = torch.randn(5, 3, old, old), torch.rand(2, 3, old, old)
    large = F.interpolate(patch, (new, new), mode="bilinear", antialias=True)
    found = F.conv2d(large, resize_patches(weight, new)).flatten()
    assert torch.allclose(found, F.conv2d(patch, weight).flatten(), atol=1e-4)


def test_resized_patches_are_those_of_timm() -> None:
    from timm.layers import resample_patch_embed

    weight = torch.randn(5, 3, 8, 8)
    theirs = resample_patch_embed(weight, [4, 4], interpolation="bilinear", antialias=True)
    assert torch.allclose(resize_patches(weight, 4), theirs, atol=1e-4)


@pytest.mark.thorough
def test_other_patches_and_another_size_are_adapted_together(tmp_path: Path, source: Path) -> None:
    state = begun(tmp_path, source, "backbone.patch_size=4", "data.image_size=48")
    assert state.weights is not None
    assert sorted(state.weights["adapted"]) == [
        "patch_embed.proj.weight from [96, 3, 8, 8] to [96, 3, 4, 4]",
        "pos_embed from [1, 17, 96] to [1, 145, 96]",
    ]
    assert state.method.export()(torch.rand(2, 3, 48, 48)).isfinite().all()


# tokens


@pytest.mark.thorough
def test_tokens_that_the_weights_lack_begin_at_random_and_one_for_masks_is_left_out(
    tmp_path: Path, source: Path
) -> None:
    state = begun(tmp_path, source, "backbone.num_registers=2", "backbone.mask_token=true")
    assert state.weights is not None
    assert state.weights["adapted"] == ["reg_token begins at random", "mask_token begins at random"]
    with_token = ViT(ViT.Config(size="nano", depth=2, patch_size=8, image_size=32, mask_token=True)).state_dict()
    tensors, notes = adapt(begun(tmp_path, source).method.export(), with_token)
    assert notes == ["mask_token is left out"]
    assert "mask_token" not in tensors


@pytest.mark.thorough
def test_a_teacher_begins_with_the_adapted_weights(tmp_path: Path, source: Path) -> None:
    words = ["method=byol", "data.channels=4", "method.hidden_dim=8", "method.output_dim=4"]
    state = begun(tmp_path, source, *words)
    tensors = state.method.state_dict()
    name = "patch_embed.proj.weight"
    (teacher,) = [value for key, value in tensors.items() if key.endswith(name) and key != f"backbone.{name}"]
    assert torch.equal(teacher, tensors[f"backbone.{name}"])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backbone.depth=3"], "blocks.2"),
        (["backbone.width=64"], "cls_token is"),
        (["backbone.position=rope"], "pos_embed is .* there and not here"),
    ],
)
def test_what_no_rule_covers_is_refused(words: list[str], message: str, tmp_path: Path, source: Path) -> None:
    with pytest.raises(ConfigError, match=rf"the backbone of .* is another one: {message}.*set backbone\."):
        begun(tmp_path, source, *words)


@pytest.mark.thorough
def test_registers_that_the_network_lacks_are_refused_since_features_depend_on_them(tmp_path: Path) -> None:
    folder = tmp_path / "source" / checkpoint_name(0)
    TrainState.create(Setup.of(config_of(tmp_path, "backbone.num_registers=2"), *IMAGES)).save(folder, {})
    with pytest.raises(ConfigError, match=r"reg_token is .* there and not here; set backbone.num_registers=2"):
        begun(tmp_path, folder.parent, "backbone.num_registers=0")


# files of others


def networks() -> dict[str, Any]:
    vit = timm.models.vision_transformer.VisionTransformer
    return {
        "resnet": timm.create_model("resnet18", in_chans=6, num_classes=0),
        "vit": vit(img_size=32, patch_size=8, embed_dim=192, depth=12, num_heads=3, num_classes=0, in_chans=6),
    }


@pytest.mark.thorough
@pytest.mark.parametrize("key", ["resnet", "vit"])
def test_a_file_for_six_channels_is_read_and_can_be_adapted_to_others(key: str, tmp_path: Path) -> None:
    network = networks()[key].eval()
    torch.save(network.state_dict(), tmp_path / "six.pth")
    loaded = load_weights(str(tmp_path / "six.pth"))
    assert (loaded.config.data.channels, loaded.config.backbone.in_channels) == (6, 6)
    images = torch.randn(2, 6, 32, 32)
    with torch.no_grad():
        assert torch.allclose(loaded.backbone(images), network(images), atol=1e-4)
    two = load_weights(str(tmp_path / "six.pth"), ["data.channels=2"])
    assert two.backbone(images[:, :2]).shape == (2, network.num_features)
    assert two.table is not None
    assert len(two.table.resized) == 1
