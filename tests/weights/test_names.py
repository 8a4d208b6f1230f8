"""Networks that were compiled, wrapped, cut into chunks or built of numbered children are read as what they are."""

import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from lightly.models import ResNetGenerator
from torch import Tensor, nn

from raysl.errors import ConfigError
from raysl.nn.backbones.resnet import ResNet
from raysl.weights.convert import load_weights
from raysl.weights.layouts import Rules
from tests.weights.networks import (
    behind,
    features,
    head,
    images,
    pooled,
    saved,
    shaken,
    small_resnet,
    small_vit,
    tv_resnet,
)

HEADS = ("backbone.heads=1",)
PREFIXES = ("", "module.", "model.", "student.backbone.", "module.student.backbone.")


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("is_outside", [True, False])
def test_a_compiled_network_is_read(prefix: str, is_outside: bool, tmp_path: Path) -> None:
    net = small_resnet()
    compiled = torch.compile(net).state_dict()
    assert "_orig_mod.conv1.weight" in compiled
    tensors = behind(prefix, compiled) if is_outside else behind("_orig_mod.", behind(prefix, net.state_dict()))
    for tree in (tensors, {"state_dict": tensors}, {"model": tensors}):
        loaded = load_weights(saved(tree, tmp_path / "file.pth"))
        with torch.no_grad():
            assert torch.equal(loaded.backbone(images()), net(images()))


@pytest.mark.thorough
def test_single_compiled_or_sharded_blocks_are_read(tmp_path: Path) -> None:
    net = small_vit()
    truth = pooled(net, images())
    for wrapper in ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module._orig_mod"):
        names = {name.replace(".attn.", f".{wrapper}.attn."): value for name, value in net.state_dict().items()}
        loaded = load_weights(saved(names, tmp_path / "file.pth"), HEADS)
        with torch.no_grad():
            torch.testing.assert_close(loaded.backbone(images()), truth, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_prefix_is_the_one_in_the_file(tmp_path: Path) -> None:
    path = saved(behind("_orig_mod.net.", small_resnet().state_dict()), tmp_path / "file.pth")
    for prefix in ("_orig_mod.net.", "net."):
        table = load_weights(path, rules=Rules(prefix=prefix)).table
        assert table is not None
        assert table.problems == []


@pytest.mark.thorough
@pytest.mark.parametrize("prefix", ["", "backbone.", "module.backbone.", "model.student_backbone."])
def test_a_resnet_of_numbered_children_is_read_as_lightly_builds_it(prefix: str, tmp_path: Path) -> None:
    for depth in (18, 50):
        net = tv_resnet(depth)
        backbone = nn.Sequential(*list(net.children())[:-1])
        tensors = behind(prefix, backbone.state_dict())
        assert f"{prefix}4.0.conv1.weight" in tensors
        loaded = load_weights(saved({"state_dict": {**tensors, **head("projection_head.")}}, tmp_path / "l.ckpt"))
        assert (loaded.config.backbone.depth, loaded.config.backbone.stem) == (depth, "imagenet")  # type: ignore[attr-defined]
        with torch.no_grad():
            torch.testing.assert_close(loaded.backbone(images(64)), features(net, images(64)), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_a_stem_for_small_images_may_have_no_pooling(tmp_path: Path) -> None:
    net = ResNet(ResNet.Config(depth=18, width=8, stem="cifar"))
    shaken(net)
    for between in ([nn.ReLU()], [nn.ReLU(), nn.Identity()]):
        stages = [net.layer1, net.layer2, net.layer3, net.layer4]
        children = nn.Sequential(net.conv1, net.bn1, *between, *stages, nn.AdaptiveAvgPool2d(1))
        loaded = load_weights(saved(behind("backbone.", children.state_dict()), tmp_path / "file.pth"))
        with torch.no_grad():
            torch.testing.assert_close(loaded.backbone(images()), children(images()).flatten(1), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_lightlys_own_resnet_is_read_and_refused_where_it_lost_its_relu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    net = shaken(ResNetGenerator("resnet-18", width=0.125))
    loaded = load_weights(saved(behind("backbone.", net.state_dict()), tmp_path / "whole.pth"))
    children = nn.Sequential(*list(net.children())[:-1]).eval()
    net.linear = nn.Identity()
    with torch.no_grad():
        torch.testing.assert_close(loaded.backbone(images()), net(images()), rtol=0, atol=1e-6)
    path = saved({"state_dict": behind("backbone.", children.state_dict())}, tmp_path / "children.ckpt")
    with pytest.raises(
        ConfigError, match=r"backbone\.2\.0\.conv1\.weight is of an nn\.Sequential that has a block after"
    ):
        load_weights(path)


def chunked(tensors: dict[str, Tensor], size: int, restarts: bool) -> dict[str, Tensor]:
    """Names of DINOv2's `BlockChunk`s, which keep the numbers of blocks; or of lists that number from 0 in each."""

    def renamed(match: re.Match[str]) -> str:
        chunk, block = divmod(int(match[1]), size)
        return f"blocks.{chunk}.{block if restarts else match[1]}."

    return {re.sub(r"^blocks\.(\d+)\.", renamed, name): value for name, value in tensors.items()}


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("prefix", ["", "backbone.", "module.backbone.", "teacher.backbone.", "_orig_mod.backbone."])
def test_the_blocks_of_dinov2s_chunks_are_read(prefix: str, restarts: bool, tmp_path: Path) -> None:
    net = small_vit(depth=5)
    for size in (2, 5):
        tensors = behind(prefix, chunked(net.state_dict(), size, restarts))
        assert f"{prefix}blocks.0.1.attn.qkv.weight" in tensors
        for tree in (tensors, {"teacher": tensors}):
            loaded = load_weights(saved(tree, tmp_path / "file.pth"), HEADS)
            assert loaded.config.backbone.depth == 5  # type: ignore[attr-defined]
            with torch.no_grad():
                torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-6)


def gated_vit(**options: Any) -> Any:
    return small_vit(mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=5.5, **options)


@pytest.mark.thorough
@pytest.mark.parametrize("names", [("fc1", "fc2"), ("w12", "w3"), ("w1", "w2", "w3"), ("fc1_g", "fc1_x", "fc2")])
def test_gated_mlps_are_read_by_the_names_of_timm_and_meta(names: tuple[str, ...], tmp_path: Path) -> None:
    net = gated_vit(init_values=0.1)
    tensors = {}
    for name, value in net.state_dict().items():
        head, mlp, rest = name.partition(".mlp.")
        part, _, kind = rest.partition(".")
        values = value.chunk(len(names) - 1) if part == "fc1" else [value]
        for new, one in zip(names if part == "fc1" else names[-1:], values, strict=False):
            tensors[f"{head}{mlp}{new}.{kind}" if mlp else name] = one.clone()
    for prefix in ("", "module.", "teacher.backbone."):
        loaded = load_weights(saved(behind(prefix, tensors), tmp_path / "file.pth"), HEADS)
        assert loaded.config.backbone.mlp == "swiglu"  # type: ignore[attr-defined]
        with torch.no_grad():
            torch.testing.assert_close(loaded.backbone(images()), pooled(net, images()), rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_other_mlps_and_stems_are_refused_with_what_they_are(tmp_path: Path) -> None:
    def refusal(tensors: dict[str, Tensor]) -> str:
        with pytest.raises(ConfigError) as refused:
            load_weights(saved(tensors, tmp_path / "file.pth"), HEADS)
        return str(refused.value)

    vit = small_vit().state_dict()
    experts = {name.replace(".mlp.fc1.", ".mlp.experts.0."): value for name, value in vit.items()}
    assert "a ViT with other MLPs than raysl's: it has the tensors blocks.0.mlp.experts.0.weight" in refusal(experts)
    wide = small_vit(mlp_layer=timm.layers.SwiGLUPacked, act_layer=nn.SiLU, mlp_ratio=8).state_dict()
    assert "is a ViT whose MLPs have gates and a width of 256; raysl's has 176. " in refusal(wide)
    video = {**vit, "patch_embed.proj.weight": torch.zeros(64, 3, 2, 8, 8)}
    assert "is a ViT with a patch_embed.proj.weight of [64, 3, 2, 8, 8]; " in refusal(video)
    oblong = {**vit, "patch_embed.proj.weight": torch.zeros(64, 3, 8, 4)}
    assert "is a ViT with a patch_embed.proj.weight of [64, 3, 8, 4]; raysl's have square patches" in refusal(oblong)
    video = {**small_resnet().state_dict(), "conv1.weight": torch.zeros(8, 3, 7, 7, 7)}
    assert "a conv1.weight of [8, 3, 7, 7, 7]; raysl's are for images" in refusal(video)
