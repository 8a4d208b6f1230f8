"""The grid of a ViT's positions is read where a file tells it, and asked for where several fit."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.errors import ConfigError
from raysl.weights.convert import load_weights
from raysl.weights.layouts import Rules
from tests.console import Console
from tests.weights.networks import behind, images, pooled, saved, small_resnet, small_vit

HEADS = ("backbone.heads=1",)


def refusal(path: str, grid: str | None = None) -> str:
    with pytest.raises(ConfigError) as refused:
        load_weights(path, HEADS, Rules(grid=grid))
    return str(refused.value)


@pytest.mark.parametrize("layout", ["", "moco_v3", "teacher", "mae"])
def test_positions_of_oblong_images_are_not_taken_for_a_square(layout: str, tmp_path: Path) -> None:
    net = small_vit(img_size=(32, 16))
    assert net.pos_embed.shape[1] == 9
    tensors: dict[str, Any] = net.state_dict()
    tree: Any = {
        "": tensors,
        "moco_v3": {"state_dict": behind("module.base_encoder.", tensors)},
        "teacher": {"teacher": behind("backbone.", tensors)},
        "mae": {"model": {**tensors, "mask_token": torch.zeros(1, 1, 64)}},
    }[layout]
    path = saved(tree, tmp_path / "vit.pth")
    assert refusal(path) == (
        f"{path} has 9 position embeddings, which fit 3x3 patches with none for the class token and images that are "
        "not square, such as 4x2 patches, with one for the class token; give grid=3x3, on the command line --grid "
        "3x3, if that is its grid. raysl's ViT takes squares only"
    )
    assert refusal(path, "4x2").startswith("grid=4x2: raysl's ViT is trained on square images; ")


@pytest.mark.parametrize(
    ("options", "grid"),
    [
        ({}, None),
        ({"no_embed_class": True}, "4x4"),
        ({"no_embed_class": True, "reg_tokens": 4}, None),
        ({"reg_tokens": 4}, None),
        ({"reg_tokens": 5, "img_size": 24}, None),
        ({"reg_tokens": 5, "img_size": 16}, "2x2"),
    ],
)
def test_a_square_is_read_with_and_without_positions_of_other_tokens(
    options: dict[str, Any], grid: str | None, tmp_path: Path
) -> None:
    net = small_vit(**options)
    path = saved(net.state_dict(), tmp_path / "vit.pth")
    loaded = load_weights(path, HEADS, Rules(grid=grid))
    side = options.get("img_size", 32)
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images(side)), pooled(net, images(side)), rtol=0, atol=1e-6)
    assert loaded.table is not None
    assert f"positions   {side // 8}x{side // 8} patches" in loaded.table.text()
    if grid is not None:
        assert f"{grid}, if that is its grid" in refusal(path)


@pytest.mark.thorough
def test_a_grid_that_cannot_be_is_refused(tmp_path: Path) -> None:
    path = saved(small_vit().state_dict(), tmp_path / "vit.pth")
    assert refusal(path, "5x5") == f"grid=5x5 has 25 or 26 positions, and {path} has 17; give its own grid"
    assert refusal(path, "8x2").startswith("grid=8x2: raysl's ViT is trained on square images; ")
    assert refusal(path, "16") == "grid='16': give rows and columns of patches, such as 14x14"
    resnet = saved(small_resnet().state_dict(), tmp_path / "resnet.pth")
    with pytest.raises(ConfigError, match="grid='4x4' is for files of ViTs with position embeddings; leave it out"):
        load_weights(resnet, rules=Rules(grid="4x4"))
    maps: dict[str, Tensor] = {**small_vit().state_dict(), "pos_embed": torch.zeros(1, 4, 4, 64)}
    assert "has position embeddings of shape [1, 4, 4, 64]; " in refusal(saved(maps, tmp_path / "sam.pth"))


def test_the_command_takes_a_grid(tmp_path: Path, console: Console) -> None:
    path = saved(small_vit(no_embed_class=True).state_dict(), tmp_path / "vit.pth")
    _, out, _ = console("convert", path, "--out", str(tmp_path / "run"), "--grid", "4x4", *HEADS)
    assert "positions   4x4 patches\n" in out
