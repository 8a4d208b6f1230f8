"""Files of DINOv3 by the names of Meta, timm and Hugging Face give raysl's ViT with rotary positions, and its outputs
are those of the network that the weights are of."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import LayerNorm
from timm.models.eva import Eva
from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.vit import ViT
from raysl.weights.convert import convert, load_weights
from tests.weights.networks import shaken

WIDTH, HEADS, DEPTH = 64, 2, 3


def eva(qkv_bias: bool = True, width: int = WIDTH, depth: int = DEPTH, **options: Any) -> Any:
    """A small network of timm's DINOv3, with the options of its `vit_small_patch16_dinov3`."""
    torch.manual_seed(0)
    net = Eva(
        img_size=32,
        patch_size=8,
        num_classes=0,
        embed_dim=width,
        depth=depth,
        num_heads=HEADS,
        qkv_bias=qkv_bias,
        init_values=1e-5,
        rope_type="dinov3",
        rope_temperature=100,
        rope_rotate_half=True,
        use_rot_pos_emb=True,
        use_abs_pos_emb=False,
        num_reg_tokens=4,
        use_fc_norm=False,
        norm_layer=partial(LayerNorm, eps=1e-5),
        dynamic_img_size=True,
        **options,
    )
    return shaken(net)


def periods(num: int = WIDTH // HEADS // 4, base: float = 100.0) -> Tensor:
    return base ** (torch.arange(num) / num)


def meta(net: Any) -> dict[str, Tensor]:
    """The same weights by Meta's names, with everything else that Meta's files have."""
    tensors: dict[str, Tensor] = {"mask_token": torch.randn(1, WIDTH), "rope_embed.periods": periods()}
    for name, value in net.state_dict().items():
        name = (
            name.replace("reg_token", "storage_tokens").replace("gamma_1", "ls1.gamma").replace("gamma_2", "ls2.gamma")
        )
        if name.endswith("q_bias"):
            # Keys have a bias in the file, which the mask takes away.
            noise, zero = torch.randn(WIDTH), torch.zeros(WIDTH)
            v_bias = net.state_dict()[name.replace("q_bias", "v_bias")]
            block = name.removesuffix("q_bias")
            tensors[f"{block}qkv.bias"] = torch.cat([value, noise, v_bias])
            tensors[f"{block}qkv.bias_mask"] = torch.cat([zero + 1, zero, zero + 1])
        elif not name.endswith("v_bias"):
            tensors[name] = value
    return tensors


def loaded(path: Path, *words: str) -> ViT:
    """The backbone in a file whose size is not one of the published."""
    backbone = load_weights(str(path), ["backbone.image_size=32", *words]).backbone
    assert isinstance(backbone, ViT)
    return backbone


def assert_tokens(backbone: ViT, theirs: Tensor, images: Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(backbone.double().tokens(images), theirs, rtol=1e-9, atol=1e-9)


def images(height: int = 32, width: int = 48) -> Tensor:
    return torch.randn(2, 3, height, width, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def exact(net: Any) -> Any:
    """timm's network in float64, its periods too, which it computes in float32."""
    net = net.double()
    rope = net.rope
    rope.periods = periods().double() if hasattr(rope, "periods") else rope.periods
    return net


@pytest.mark.parametrize("names", ["meta", "timm"])
@pytest.mark.parametrize("qkv_bias", [True, False])
def test_a_file_gives_the_tokens_of_timms_network(tmp_path: Path, names: str, qkv_bias: bool) -> None:
    net = eva(qkv_bias)
    tensors = meta(net) if names == "meta" else net.state_dict()
    # Meta's periods show the number of heads; timm's file leaves it to the width, and this width is nobody's.
    backbone = loaded(_saved(tmp_path, tensors), *(() if names == "meta" else (f"backbone.heads={HEADS}",)))
    with torch.no_grad():
        theirs = exact(net).forward_features(images())
    assert_tokens(backbone, theirs, images())
    assert backbone.config.qkv_bias is qkv_bias
    assert backbone.config.mask_token is (names == "meta")
    assert (backbone.config.position, backbone.config.norm_eps, backbone.config.num_registers) == ("rope", 1e-5, 4)


@pytest.mark.thorough
def test_metas_layout_is_recognised_and_the_heads_are_those_of_the_periods(tmp_path: Path) -> None:
    converted = convert(str(_saved(tmp_path, meta(eva()))), str(tmp_path / "run"), overrides=["backbone.image_size=32"])
    assert "in the layout of dino_v3" in converted.summary
    assert converted.table is not None
    assert not converted.table.problems
    backbone = loaded(_saved(tmp_path, meta(eva())))
    assert (backbone.num_heads, backbone.config.rope_base) == (HEADS, 100.0)


@pytest.mark.thorough
def test_periods_in_bf16_and_of_another_base_are_understood(tmp_path: Path) -> None:
    for base in (100.0, 64.0):
        tensors = meta(eva()) | {"rope_embed.periods": periods(base=base).bfloat16()}
        assert loaded(_saved(tmp_path, tensors)).config.rope_base == base


def test_a_file_of_hugging_face_gives_the_tokens_of_its_network(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.DINOv3ViTConfig(
        patch_size=8,
        image_size=32,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=DEPTH,
        num_attention_heads=HEADS,
        num_register_tokens=4,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    net = shaken(transformers.DINOv3ViTModel(config))
    save_file({name: value.contiguous() for name, value in net.state_dict().items()}, tmp_path / "model.safetensors")
    backbone = loaded(tmp_path / "model.safetensors", f"backbone.heads={HEADS}")
    with torch.no_grad():
        theirs = net.double()(images()).last_hidden_state
        ours = backbone.double().tokens(images())
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)  # its rotations are in float32


def test_what_raysls_vit_lacks_is_refused_with_the_network_to_name(tmp_path: Path) -> None:
    gated = meta(eva())
    for block in range(DEPTH):
        for name in ("w1", "w2"):
            gated[f"blocks.{block}.mlp.{name}.weight"] = torch.zeros(4 * WIDTH, WIDTH)
        del gated[f"blocks.{block}.mlp.fc1.weight"]
    other = meta(eva()) | {"rope_embed.periods": torch.tensor([1.0, 2.0, 50.0, 60.0, 70.0, 80.0, 90.0, 95.0])}
    for tensors, message in (
        (gated, "backbone=timm backbone.model=vit_small_plus_patch16_dinov3"),
        (other, "do not rise from 1 in a geometric row"),
    ):
        with pytest.raises(ConfigError, match=message):
            loaded(_saved(tmp_path, tensors))


def _saved(folder: Path, tensors: dict[str, Tensor]) -> Path:
    torch.save(tensors, folder / "dinov3.pth")
    return folder / "dinov3.pth"
