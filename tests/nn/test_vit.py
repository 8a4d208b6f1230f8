import math
import re
from collections.abc import Mapping
from typing import Any

import pytest
import timm
import torch
import torchvision
from torch import Tensor
from torch.nn import functional as F

from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.nn.backbones.attention import Block
from raysl.nn.backbones.backbone import BackboneInfo, visible_places
from raysl.nn.backbones.init import Init
from raysl.nn.backbones.positions import RotaryPositions, resize_positions, rotate, sincos_positions
from raysl.nn.backbones.relative import relative_index, resize_table
from raysl.nn.backbones.vit import ViT
from raysl.nn.drop_path import drop_slots, keyed_draws
from raysl.nn.ema import Teacher


def small(**fields: object) -> ViT:
    torch.manual_seed(0)
    return ViT(ViT.Config(**({"width": 16, "depth": 3, "heads": 2, "patch_size": 4, "image_size": 16} | fields)))


def images_of(height: int = 16, width: int = 16, num: int = 2) -> Tensor:
    return torch.randn(num, 3, height, width, generator=torch.Generator().manual_seed(1))


def from_torchvision(theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """torchvision's weights of a ViT under timm's names, without the classifier."""
    changes = {
        "class_token": "cls_token",
        "encoder.pos_embedding": "pos_embed",
        "conv_proj": "patch_embed.proj",
        "encoder.ln": "norm",
        "encoder.layers.encoder_layer_": "blocks.",
        "self_attention.in_proj_": "attn.qkv.",
        "self_attention.out_proj": "attn.proj",
        "ln_": "norm",
        "mlp.0": "mlp.fc1",
        "mlp.3": "mlp.fc2",
    }
    found = {}
    for name, value in theirs.items():
        if not name.startswith("heads."):
            for old, new in changes.items():
                name = name.replace(old, new)
            found[name] = value
    return found


@pytest.mark.thorough
def test_features_are_torchvisions_with_its_weights() -> None:
    torch.manual_seed(0)
    theirs = torchvision.models.vit_b_16().eval()
    torch.nn.init.normal_(theirs.class_token)
    theirs.heads = torch.nn.Identity()
    with torch.device("meta"):
        ours = ViT(ViT.Config(size="base")).eval()
    ours.load_state_dict(from_torchvision(theirs.state_dict()), strict=True, assign=True)
    images = images_of(224, 224, num=1)
    with torch.no_grad():
        torch.testing.assert_close(ours(images), theirs(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "num_parameters"),
    [("tiny", 5_524_416), ("small", 21_665_664), ("base", 85_798_656), ("large", 303_301_632)],
)
def test_sizes_have_the_published_numbers_of_weights(size: str, num_parameters: int) -> None:
    with torch.device("meta"):
        network = ViT(ViT.Config(size=size))
    assert sum(parameter.numel() for parameter in network.parameters()) == num_parameters


def test_names_are_timms() -> None:
    block = ["norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2"]
    layers = ["patch_embed.proj", *(f"blocks.{number}.{name}" for number in range(3) for name in block), "norm"]
    expected = {"cls_token", "pos_embed"} | {f"{layer}.{kind}" for layer in layers for kind in ("weight", "bias")}
    assert set(small().state_dict()) == set(small(position="sincos").state_dict()) == expected
    more = set(small(num_registers=2, mask_token=True, layer_scale=0.1).state_dict()) - expected
    assert more == {"reg_token", "mask_token", *(f"blocks.{n}.ls{k}.gamma" for n in range(3) for k in (1, 2))}
    assert expected - set(small(qkv_bias=False).state_dict()) == {f"blocks.{n}.attn.qkv.bias" for n in range(3)}


def test_weights_start_small_and_biases_at_zero() -> None:
    network = small(width=96, heads=3, image_size=64, layer_scale=0.1, num_registers=8)
    for weight in (network.blocks[0].attn.qkv.weight, network.blocks[2].mlp.fc2.weight, network.pos_embed):
        assert weight.std().item() == pytest.approx(0.02, rel=0.03)
    assert network.reg_token.std().item() == pytest.approx(0.02, rel=0.1)
    assert network.blocks[1].mlp.fc1.bias.abs().max() == 0
    assert torch.equal(network.blocks[1].ls2.gamma, torch.full((96,), 0.1))
    assert network.norm.eps == network.blocks[0].norm1.eps == 1e-6


def spread(values: Tensor) -> tuple[float, float]:
    """Deviation and largest value."""
    return float(values.detach().std()), float(values.detach().abs().max())


def xavier(out: int, into: int) -> tuple[float, float]:
    bound = (6 / (out + into)) ** 0.5
    return bound / 3**0.5, bound


NORMAL, CUT = (0.02, None), (0.02 * 0.5396, 0.02)
"""Deviation and bound of a normal distribution, and of one that is cut at one deviation."""
PATCHES = {  # of 8 x 8 pixels: deviation, bound, whether the bias is 0
    "timm": (*((1 / 192) ** 0.5 / 3**0.5, (1 / 192) ** 0.5), False),
    "mae": (*xavier(96, 192), False),
    "moco_v3": (*xavier(96, 192), True),
    "beit": (*CUT, True),
    "ijepa": (*NORMAL, True),
    "msn": ((2 / 192) ** 0.5, None, True),
    "ibot": (*((1 / 192) ** 0.5 / 3**0.5, (1 / 192) ** 0.5), False),
    "dino_v2": (*((1 / 192) ** 0.5 / 3**0.5, (1 / 192) ** 0.5), False),
    "dino_v3": (*((1 / 192) ** 0.5 / 3**0.5, (1 / 192) ** 0.5), False),
    "igpt": (*((1 / 192) ** 0.5 / 3**0.5, (1 / 192) ** 0.5), False),
}
QKV = {"mae": xavier(288, 96), "moco_v3": xavier(96, 96), "beit": CUT, "igpt": (96**-0.5, None)}
PROJ = {"igpt": (3**-0.5 * 96**-0.5, None)}
FC1 = {"mae": xavier(384, 96), "moco_v3": xavier(384, 96), "beit": CUT}
TOKENS = {  # other deviations than 0.02
    "moco_v3": {"cls_token": 1e-6},
    "beit": dict.fromkeys(("cls_token", "reg_token", "mask_token", "pos_embed"), CUT[0]),
    "ibot": {"mask_token": 0.0},
    "dino_v2": {"cls_token": 1e-6, "reg_token": 1e-6, "mask_token": 0.0},
    "dino_v3": {"mask_token": 0.0},
    "igpt": {"pos_embed": 0.01},
}


@pytest.mark.parametrize("scheme", sorted(PATCHES))
def test_weights_start_as_in_the_code_of_the_paper(scheme: Init) -> None:
    torch.manual_seed(0)
    network = small(width=96, heads=3, image_size=64, patch_size=8, num_registers=8, mask_token=True, init=scheme)

    def assert_spread(values: Tensor, expected: tuple[float, float | None], what: str) -> None:
        std, most = spread(values)
        assert std == pytest.approx(expected[0], rel=0.04), what
        if expected[1] is not None:
            assert 0.98 * expected[1] < most <= expected[1] * 1.0001, what

    *patches, is_zero = PATCHES[scheme]
    assert_spread(network.patch_embed.proj.weight, tuple(patches), "patches")
    assert (network.patch_embed.proj.bias.abs().max() == 0) == is_zero
    for number, block in enumerate(network.blocks, start=1):
        for part in block.attn.qkv.weight.chunk(3):
            assert_spread(part, QKV.get(scheme, NORMAL), "queries, keys or values")
        assert_spread(block.mlp.fc1.weight, FC1.get(scheme, NORMAL), "fc1")
        if scheme in PROJ:
            assert_spread(block.attn.proj.weight, PROJ[scheme], "proj")
        shrink = (2 * number) ** -0.5 if scheme == "beit" else 1.0
        std, most = FC1.get(scheme, NORMAL)
        assert_spread(block.mlp.fc2.weight, (std * shrink, None if most is None else most * shrink), "fc2")
        assert all(layer.bias.abs().max() == 0 for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc2))
    for name in ("cls_token", "reg_token", "mask_token", "pos_embed"):
        std, _ = spread(getattr(network, name))
        assert std == pytest.approx(TOKENS.get(scheme, {}).get(name, 0.02), rel=0.35), name


def test_drop_path_rises_or_is_the_same_in_all_blocks() -> None:
    def rates(**settings: Any) -> list[float]:
        return [block.drop_path2.rate for block in small(drop_path=0.4, **settings).blocks]

    assert rates() == pytest.approx([0.0, 0.2, 0.4])
    assert rates(drop_path_uniform=True) == [0.4, 0.4, 0.4]


def test_a_gated_mlp_multiplies_one_half_by_the_silu_of_the_other() -> None:
    torch.manual_seed(0)
    mlp = small(width=96, heads=3, mlp="swiglu").double().blocks[0].mlp
    assert (mlp.fc1.out_features, mlp.fc2.in_features) == (512, 256)  # 4 * 96 * 2 / 3
    x = torch.randn(2, 3, 96, dtype=torch.float64)
    both = x @ mlp.fc1.weight.T + mlp.fc1.bias
    gate, value = both[..., :256], both[..., 256:]
    assert torch.allclose(mlp(x), (gate / (1 + (-gate).exp()) * value) @ mlp.fc2.weight.T + mlp.fc2.bias)
    with torch.device("meta"):
        large = ViT(ViT.Config(size="large", mlp="swiglu"))
    assert large.blocks[0].mlp.fc2.in_features == 2736  # DINOv2's ViT-L


@pytest.mark.parametrize("qk_norm", [False, True])
def test_a_block_is_attention_and_mlp_each_behind_a_norm(qk_norm: bool) -> None:
    torch.manual_seed(0)
    block = Block(8, heads=2, layer_scale=0.5, norm_eps=1e-6, qk_norm=qk_norm).double()
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    normed = F.layer_norm(x[0], (8,), eps=1e-6)
    q, k, v = (block.attn.qkv(normed)).split(8, dim=1)
    heads = []
    for channels in (slice(0, 4), slice(4, 8)):
        queries, keys = q[:, channels], k[:, channels]
        if qk_norm:
            queries, keys = F.layer_norm(queries, (4,), eps=1e-6), F.layer_norm(keys, (4,), eps=1e-6)
        scores = torch.stack([torch.stack([a @ b for b in keys]) for a in queries]) / 4**0.5
        heads.append(scores.softmax(dim=1) @ v[:, channels])
    middle = x[0] + 0.5 * block.attn.proj(torch.cat(heads, dim=1))
    inner = block.mlp.fc1(F.layer_norm(middle, (8,), eps=1e-6))
    expected = middle + 0.5 * block.mlp.fc2(inner * (1 + torch.erf(inner / 2**0.5)) / 2)
    torch.testing.assert_close(block(x)[0], expected)


@pytest.mark.parametrize("output", ["class", "mean", "class_mean"])
@pytest.mark.parametrize("num_registers", [0, 2])
def test_features_are_of_the_normalised_tokens(output: str, num_registers: int) -> None:
    network = small(output=output, num_registers=num_registers)
    images = images_of()
    tokens = network.tokens(images)
    assert tokens.shape == (2, 1 + num_registers + 16, 16)
    parts = {"class": [tokens[:, 0]], "mean": [tokens[:, 1 + num_registers :].mean(dim=1)]}
    parts["class_mean"] = parts["class"] + parts["mean"]
    assert torch.equal(network(images), torch.cat(parts[output], dim=1))
    assert network.feature_dim == network(images).shape[1]
    assert network.num_prefix_tokens == 1 + num_registers


def test_stages_stop_at_the_deepest_one_asked_for() -> None:
    network = small(num_registers=1)
    ran: list[int] = []
    network.blocks[2].register_forward_hook(lambda *_: ran.append(3))
    images = images_of()
    early = network.stages(images, ["block2", "block1"])
    assert list(early) == ["block2", "block1"]
    assert not ran
    late = network.stages(images, ["mean", "norm", "block3", "block1", "class"])
    assert ran
    assert torch.equal(early["block1"], late["block1"])
    assert torch.equal(late["norm"], network.tokens(images))
    assert torch.equal(late["norm"], network.norm(late["block3"]))
    assert torch.equal(late["class"], late["norm"][:, 0])
    assert torch.equal(late["mean"], late["norm"][:, 2:].mean(dim=1))
    assert {name: out.shape[-1] for name, out in late.items()}.items() <= network.stage_widths.items()
    assert network.stages(images, []) == {}
    with pytest.raises(ValueError, match=r"no stage 'block4' .* block1, block2, block3, norm, class, mean, last1$"):
        network.stages(images, ["block4"])


@torch.no_grad()
def test_last_blocks_are_dinov2s_class_tokens_beside_the_mean_of_the_last_patches() -> None:
    network = small(depth=5, num_registers=2)
    x = network._embed(images_of())
    tokens = []
    for block in network.blocks:
        x = block(x)
        tokens.append(network.norm(x))
    patches = tokens[-1][:, 3:].mean(dim=1)
    found = network.stages(images_of(), ["last4", "last1"])
    torch.testing.assert_close(found["last1"], torch.cat([tokens[-1][:, 0], patches], dim=1))
    torch.testing.assert_close(found["last4"], torch.cat([*(own[:, 0] for own in tokens[-4:]), patches], dim=1))
    assert "last4" not in small(depth=3).stage_widths


def test_facts_tell_the_patch_size() -> None:
    widths = dict.fromkeys(["block1", "block2", "block3", "block4", "norm", "class", "mean"], 96)
    widths |= {"last1": 192, "last4": 480}
    assert ViT.info(ViT.Config(size="nano", patch_size=8, output="class_mean")) == BackboneInfo(
        192, 8, widths, num_layers=4
    )


def test_positions_stay_as_they_are_on_their_own_grid() -> None:
    places = torch.randn(1, 12, 4)
    assert resize_positions(places, (3, 4), (3, 4)) is places


@pytest.mark.parametrize("new", [(5, 5), (3, 7), (8, 4)])
def test_positions_are_resized_as_an_image(new: tuple[int, int]) -> None:
    rows, columns = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
    places = torch.stack([torch.ones(6, 6), rows, columns], dim=2).view(1, 36, 3)
    found = resize_positions(places, (6, 6), new).view(*new, 3)
    torch.testing.assert_close(found[..., 0], torch.ones(new))
    middle = (new[0] // 2, new[1] // 2)  # away from the border a ramp stays one
    for channel, axis in ((1, 0), (2, 1)):
        expected = (middle[axis] + 0.5) * 6 / new[axis] - 0.5
        assert found[(*middle, channel)].item() == pytest.approx(expected, abs=0.1)
    image = places.view(1, 6, 6, 3).movedim(3, 1)
    plain = resize_positions(places, (6, 6), new, "plain").view(*new, 3)
    for ours, is_smooth in ((found, True), (plain, False)):
        bicubic = F.interpolate(image, size=new, mode="bicubic", antialias=is_smooth)
        torch.testing.assert_close(ours, bicubic[0].movedim(0, 2))


def test_positions_are_resized_as_in_dino() -> None:
    """Its code asks for a grid of 6.1 patches, of which it gets 6."""
    row = torch.arange(14.0).expand(14, 14)
    found = resize_positions(row.reshape(1, 196, 1), (14, 14), (6, 6), "dino").view(6, 6)
    assert torch.allclose(found[2, 1:5], (torch.arange(1.0, 5.0) + 0.5) * 14 / 6.1 - 0.5, atol=0.2)
    plain = resize_positions(row.reshape(1, 196, 1), (14, 14), (6, 6), "plain").view(6, 6)
    assert (plain - found)[0, 5] > 0.15  # the last patch lies a tenth of one further in
    network, other = small(), small(position_resize="dino")
    assert not torch.allclose(network(images_of(8, 8)), other(images_of(8, 8)), atol=1e-6)
    assert torch.equal(network(images_of()), other(images_of()))


def test_images_of_other_sizes_get_interpolated_positions() -> None:
    network = small()
    torch.nn.init.normal_(network.pos_embed)
    wide = small()
    with torch.no_grad():
        network.blocks = torch.nn.ModuleList()
        tokens = network.stages(images_of(8, 24), ["norm"])["norm"]
        places = resize_positions(network.pos_embed[:, 1:], (4, 4), (2, 6))
        patches = network.norm(network.patch_embed(images_of(8, 24)) + places)
    torch.testing.assert_close(tokens[:, 1:], patches)
    assert wide(images_of(8, 24)).shape == (2, 16)


def test_sincos_positions_are_maes() -> None:
    height, width, dim = 2, 3, 8
    found = sincos_positions(height, width, dim)
    expected = torch.zeros(1, 1 + height * width, dim)
    for row in range(height):
        for column in range(width):
            for half, place in enumerate((column, row)):
                for i in range(dim // 4):
                    angle = place / 10000 ** (i / (dim / 4))
                    at = half * dim // 2 + i
                    expected[0, 1 + row * width + column, at] = math.sin(angle)
                    expected[0, 1 + row * width + column, at + dim // 4] = math.cos(angle)
    torch.testing.assert_close(found, expected)
    network = small(position="sincos")
    assert torch.equal(network.pos_embed, sincos_positions(4, 4, 16))
    assert not network.pos_embed.requires_grad
    with pytest.raises(ValueError, match="6 channels"):
        sincos_positions(2, 2, 6)


@pytest.mark.thorough
def test_rotated_networks_are_timms_with_its_weights() -> None:
    torch.manual_seed(0)
    theirs = timm.create_model("vit_small_patch16_dinov3_qkvb", depth=2).double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tensors = {re.sub(r"gamma_(\d)", r"ls\1.gamma", name): value for name, value in theirs.state_dict().items()}
    for block in ("blocks.0.attn.", "blocks.1.attn."):
        q, v = tensors.pop(f"{block}q_bias"), tensors.pop(f"{block}v_bias")
        tensors[f"{block}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])  # keys have no bias
    ours = small(
        width=384, depth=2, heads=6, patch_size=16, position="rope", num_registers=4, layer_scale=1e-5, norm_eps=1e-5
    )
    ours.load_state_dict(tensors)
    images = images_of(96, 160).double()
    with torch.no_grad():
        # timm has its places in float32
        torch.testing.assert_close(
            ours.double().eval().tokens(images), theirs.forward_features(images), rtol=0, atol=1e-5
        )


def test_a_rotation_depends_on_the_difference_of_places_alone() -> None:
    positions = RotaryPositions(8).double()
    q, k = torch.randn(2, 1, 1, 1, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    table = positions(torch.zeros(1, 3, 4, 4, dtype=torch.float64), (4, 4))  # [2, 1, 16, 8]
    scores = rotate(q.expand(1, 1, 16, 8), table)[0, 0] @ rotate(k.expand(1, 1, 16, 8), table)[0, 0].T
    scores = scores.view(4, 4, 4, 4)  # row and column of the query, of the key
    torch.testing.assert_close(scores[0, 0, 2, 1], scores[1, 2, 3, 3])
    assert not torch.isclose(scores[0, 0, 2, 1], scores[2, 1, 0, 0])


def test_rotations_take_any_grid_and_leave_classes_and_registers() -> None:
    network = small(position="rope", num_registers=2)
    assert not any("pos_embed" in name or "rope" in name for name in network.state_dict())
    assert network.tokens(images_of(24, 8)).shape == (2, 3 + 12, 16)
    x = torch.randn(1, 2, 5, 8)
    turned = rotate(x, RotaryPositions(8)(images_of(num=1), (2, 1)))
    assert torch.equal(turned[:, :, :3], x[:, :, :3])
    assert not torch.isclose(turned[:, :, 3:], x[:, :, 3:]).all(dim=-1).any()


def test_dropped_patches_take_their_rotation_with_them() -> None:
    network = small(position="rope")
    images = images_of()
    everything = torch.arange(16).expand(2, -1)
    torch.testing.assert_close(network.visible_tokens(images, everything), network.tokens(images))
    swapped = everything.flip(1)
    found = network.visible_tokens(images, swapped)
    torch.testing.assert_close(found[:, 1:].flip(1), network.tokens(images)[:, 1:])
    maps = network.visible_maps(images, swapped)
    torch.testing.assert_close(network.norm(maps[-1]), found)
    torch.testing.assert_close(network.stages(images, ["norm"])["norm"], network.tokens(images))


@pytest.mark.parametrize("field", ["rope_shift", "rope_jitter", "rope_rescale"])
def test_training_moves_places_for_each_view_alike_on_any_rank(field: str) -> None:
    network, images = small(position="rope", **{field: 2.0}), images_of(num=6)
    batch = Batch({}, torch.arange(6), torch.full((6,), -1))
    with keyed_draws(batch, drop_slots(network)):
        whole = network(images)
    parts = []
    for rows in (slice(0, 2), slice(2, 6)):
        with keyed_draws(Batch({}, batch.index[rows], batch.label[rows])):
            parts.append(network(images[rows]))
    torch.testing.assert_close(torch.cat(parts), whole)
    still = small(position="rope")(images)
    assert not torch.isclose(whole, still).all(dim=1).any()
    assert torch.equal(network.eval()(images), still)
    assert torch.equal(Teacher(network.train())(images), still)


def test_the_fastest_pair_turns_so_often_over_an_image() -> None:
    sines, cosines = RotaryPositions(4, turns=0.5)(torch.zeros(1, 3, 4, 4), (4, 1))
    turns = torch.atan2(sines[0, :, 0], cosines[0, :, 0]) / (2 * math.pi)
    torch.testing.assert_close(turns, 0.5 * torch.tensor([-0.375, -0.125, 0.125, 0.375]))
    images = images_of()
    slow, fast = (small(position="rope", rope_turns=turns).tokens(images) for turns in (2.0, 7.0))
    assert torch.equal(slow, small(position="rope").tokens(images))
    assert not torch.isclose(slow, fast).all(dim=-1).any()


def test_random_places_stay_in_their_range() -> None:
    images = torch.zeros(2000, 3, 4, 4)
    positions = RotaryPositions(4, base=1.0, rescale=2.0)
    sines, cosines = positions(images, (4, 1))
    turns = torch.atan2(sines[:, 2, 0], cosines[:, 2, 0]) / (2 * math.pi)  # the place 0.25, scaled
    assert turns.min() > 0.125 - 1e-6
    assert turns.max() < 0.5
    logs = (turns / 0.25).log() / math.log(2)
    assert logs.mean().item() == pytest.approx(0, abs=0.05)
    assert logs.std().item() == pytest.approx(3**-0.5, abs=0.03)


def relative(**fields: object) -> ViT:
    """A network whose tables are not 0."""
    network = small(position="relative", **fields)
    for name, parameter in network.named_parameters():
        if name.endswith("relative_position_bias_table"):
            torch.nn.init.normal_(parameter)
    return network


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("grid", [(4, 4), (2, 6)])
def test_networks_with_relative_positions_are_timms_beit_with_its_weights(shared: bool, grid: tuple[int, int]) -> None:
    torch.manual_seed(0)
    side = {"img_size": (grid[0] * 16, grid[1] * 16), "embed_dim": 32, "depth": 2, "num_heads": 4}
    kinds = {"use_abs_pos_emb": False, "use_rel_pos_bias": not shared, "use_shared_rel_pos_bias": shared}
    theirs = timm.models.beit.Beit(**side, **kinds, init_values=0.1, global_pool="token").double().eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    tensors = {re.sub(r"gamma_(\d)", r"ls\1.gamma", name): value for name, value in theirs.state_dict().items()}
    tensors = {name: value for name, value in tensors.items() if not name.startswith("head.")}
    for block in ("blocks.0.attn.", "blocks.1.attn."):
        q, v = tensors.pop(f"{block}q_bias"), tensors.pop(f"{block}v_bias")
        tensors[f"{block}qkv.bias"] = torch.cat([q, torch.zeros_like(q), v])  # keys have no bias
    shape = {"width": 32, "depth": 2, "heads": 4, "patch_size": 16, "image_size": 64, "layer_scale": 0.1}
    ours = small(**shape, position="relative", relative_shared=shared).double().eval()
    if grid == (4, 4):
        ours.load_state_dict(tensors)
    else:  # the same offsets by a table of their own
        ours.load_state_dict({name: value for name, value in tensors.items() if "table" not in name}, strict=False)
        for name, parameter in ours.named_parameters():
            if "table" in name:
                parameter.data = tensors[name]
        ours.native_grid = grid
    images = images_of(16 * grid[0], 16 * grid[1]).double()
    with torch.no_grad():
        wanted = theirs.forward_features(images)
        torch.testing.assert_close(ours.tokens(images), wanted, rtol=0, atol=1e-12)


def test_rows_of_relative_positions_are_timms_and_registers_count_as_the_class() -> None:
    theirs = timm.models.beit.gen_relative_position_index((3, 2))
    assert torch.equal(relative_index((3, 2)), theirs)
    ours = relative_index((3, 2), num_prefix=2)
    for left in (slice(0, 2), slice(1, 3)):
        assert torch.equal(ours[1:, 1:], theirs)
        assert (ours[:2, left][:, :1] == theirs[0, 0]).all()
    assert (ours[2:, 0] == theirs[1, 0]).all()
    assert (ours[0, 2:] == theirs[0, 1]).all()


def test_tables_start_at_0_and_decay_only_where_they_are_named() -> None:
    shared, own = small(position="relative", relative_shared=True), small(position="relative")
    assert [name for name in shared.state_dict() if "table" in name] == ["rel_pos_bias.relative_position_bias_table"]
    assert [name for name in own.state_dict() if "table" in name] == [
        f"blocks.{number}.attn.relative_position_bias_table" for number in range(3)
    ]
    plain = small(position="rope", rope_base=1.0)
    for network in (shared, own):
        tables = {name: value for name, value in network.state_dict().items() if "table" in name}
        assert all(table.shape == (52, 2) and not table.any() for table in tables.values())
        assert tables.keys() <= network.no_decay()
        assert not any("pos_embed" in name for name in network.state_dict())
    assert {name for name in plain.no_decay() if "table" in name} == set()
    assert own.layer_of("blocks.1.attn.relative_position_bias_table") == 2
    assert shared.layer_of("rel_pos_bias.relative_position_bias_table") == 4


def test_a_table_for_another_grid_is_an_image_of_its_offsets() -> None:
    rows, columns = torch.meshgrid(torch.linspace(-3, 3, 7), torch.linspace(-3, 3, 7), indexing="ij")
    table = torch.stack([rows.flatten(), columns.flatten()], dim=1)
    found = resize_table(torch.cat([table, torch.full((3, 2), 9.0)]), (4, 4), (7, 3), "plain")
    assert found.shape == (13 * 5 + 3, 2)
    assert (found[-3:] == 9).all()
    image = found[:-3].view(13, 5, 2)
    torch.testing.assert_close(image, -image.flip(0, 1))
    # An offset of one patch of 7 is about half of one of 4, bicubically.
    torch.testing.assert_close(image[4:9, 2, 0], torch.arange(-2.0, 3) * 7 / 13, rtol=0, atol=0.05)
    network = relative()
    assert network.tokens(images_of(24, 8)).shape == (2, 13, 16)


@pytest.mark.parametrize("shared", [False, True])
def test_dropped_patches_take_their_relative_positions_with_them(shared: bool) -> None:
    network = relative(relative_shared=shared, num_registers=2)
    images = images_of(24, 16)
    everything = torch.arange(24).expand(2, -1)
    whole = network.tokens(images)
    assert not torch.isclose(whole, small(position="relative", num_registers=2).tokens(images)).all(dim=2).any()
    torch.testing.assert_close(network.visible_tokens(images, everything), whole)
    found = network.visible_tokens(images, everything.flip(1))
    torch.testing.assert_close(found[:, 3:].flip(1), whole[:, 3:])
    torch.testing.assert_close(network.norm(network.visible_maps(images, everything.flip(1))[-1]), found)
    torch.testing.assert_close(network.stages(images, ["norm"])["norm"], whole)
    padded = torch.cat([everything[:, :6], everything[:, :2]], dim=1)
    is_visible = (torch.arange(8) < 6).expand(2, -1)
    part = network.visible_tokens(images, padded, is_visible)[:, :9]
    torch.testing.assert_close(part, network.visible_tokens(images, everything[:, :6]))


def test_relative_positions_of_causal_tokens_leave_later_patches_unseen() -> None:
    network = relative()
    images, others = images_of(), images_of()
    others[:, :, 8:] += 1
    is_prefix = torch.zeros(2, 16, dtype=torch.bool)
    first, second = (network.causal_tokens(pair, is_prefix)[:, :9] for pair in (images, others))
    torch.testing.assert_close(first, second)
    assert network.causal_tokens(images, ~is_prefix).allclose(network.tokens(images), atol=1e-5)


def test_masked_patches_are_replaced_and_no_others() -> None:
    network = small(mask_token=True, num_registers=1)
    images = images_of()
    mask = torch.zeros(2, 4, 4, dtype=torch.bool)
    assert torch.equal(network.tokens(images, mask), network.tokens(images))
    mask[0, 1, 2] = True
    changed = images.clone()
    changed[0, :, 4:8, 8:12] = 5.0
    assert torch.equal(network.tokens(images, mask), network.tokens(changed, mask))
    assert torch.equal(network.tokens(images, mask)[1], network.tokens(images)[1])
    assert not torch.allclose(network.tokens(images, mask)[0], network.tokens(images)[0])
    network.blocks = torch.nn.ModuleList()
    expected = network.norm(network.mask_token[0, 0] + network.pos_embed[0, 1 + 6])
    torch.testing.assert_close(network.tokens(images, mask)[0, 2 + 6], expected)


def test_masks_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match=r"set backbone\.mask_token=true"):
        small().tokens(images_of(), torch.ones(2, 4, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask \[2, 2, 8\] does not fit 2 images of 4x4 patches"):
        small(mask_token=True).tokens(images_of(), torch.ones(2, 2, 8, dtype=torch.bool))


def test_dropped_patches_leave_the_tokens_of_the_others_alone() -> None:
    network = small(position="sincos", num_registers=2)
    images = images_of()
    mask = torch.rand(2, 16, generator=torch.Generator().manual_seed(0)).argsort(dim=1).view(2, 4, 4) < 11
    keep = visible_places(mask, 5)
    found = network.visible_tokens(images, keep)
    assert found.shape == (2, 3 + 5, 16)
    for row in range(2):
        alone = []
        for place in keep[row].tolist():
            top, left = 4 * (place // 4), 4 * (place % 4)
            patch = network.patch_embed(images[row : row + 1, :, top : top + 4, left : left + 4])
            alone.append(patch + network.pos_embed[:, 1 + place : 2 + place])
        x = torch.cat([network.cls_token + network.pos_embed[:, :1], network.reg_token, *alone], dim=1)
        for block in network.blocks:
            x = block(x)
        torch.testing.assert_close(found[row], network.norm(x)[0])
    everything = torch.arange(16).expand(2, -1)
    assert torch.equal(network.visible_tokens(images, everything), network.tokens(images))


def test_drop_path_rates_rise_from_zero() -> None:
    network = small(depth=5, drop_path=0.2)
    rates = [(block.drop_path1.rate, block.drop_path2.rate) for block in network.blocks]
    assert rates == [(pytest.approx(rate),) * 2 for rate in (0, 0.05, 0.1, 0.15, 0.2)]
    assert small(depth=1, drop_path=0.2).blocks[0].drop_path1.rate == 0
    places = [drop.slot for block in network.blocks for drop in (block.drop_path1, block.drop_path2)]
    assert places == list(range(10)), "each draws for itself"


def test_tokens_and_learned_positions_have_no_decay() -> None:
    assert small().no_decay() == {"cls_token", "pos_embed"}
    everything = small(num_registers=2, mask_token=True)
    assert everything.no_decay() == {"cls_token", "pos_embed", "reg_token", "mask_token"}
    assert small(position="sincos").no_decay() == {"cls_token"}
    rest = {name for name, value in everything.named_parameters() if value.dim() > 1} - everything.no_decay()
    assert all(name.endswith(".weight") for name in rest)


@pytest.mark.parametrize("output", ["class", "mean", "class_mean"])
@pytest.mark.parametrize("side", [16, 24])
def test_gradient_reaches_every_parameter(output: str, side: int) -> None:
    network = small(output=output, num_registers=2, mask_token=True, layer_scale=0.1, drop_path=0.2)
    images = images_of(side, side, num=8)
    mask = torch.rand(8, side // 4, side // 4) < 0.3
    (network(images).square().sum() + network.tokens(images, mask).sin().sum()).backward()
    assert [name for name, value in network.named_parameters() if value.grad is None or not value.grad.any()] == []


def test_a_step_without_masks_gives_the_mask_token_a_gradient_of_zero() -> None:
    network = small(mask_token=True)
    network(images_of()).sum().backward()
    assert torch.equal(network.mask_token.grad, torch.zeros(1, 1, 16))


@pytest.mark.parametrize(
    ("height", "width", "words"),
    [(18, 16, "images of 18x16 .* patch_size=4; give 16 or 20 for 18"), (16, 3, "give 4 for 3")],
)
def test_sides_that_patches_do_not_fill_are_refused(height: int, width: int, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        small()(images_of(height, width))


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"width": 100, "heads": 3}, "width 100 is not a multiple of backbone.heads 3; try heads=2"),
        ({"image_size": 18}, "image_size 18 is not a multiple of backbone.patch_size 4; try image_size=16"),
        ({"position": "sincos", "width": 18}, "multiple of 4, not 18; try 20"),
        ({"position": "rope", "width": 20}, "not width 20 / heads 2; try width=16"),
    ],
)
def test_impossible_networks_are_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        small(**fields)


def test_half_precision_keeps_the_residuals_in_fp32() -> None:
    network = small(mask_token=True)
    images, mask = images_of(24, 24), torch.rand(2, 6, 6) < 0.5
    with torch.autocast("cpu", torch.bfloat16):
        inner = network.stages(images, ["block3"])["block3"]
        found = network.tokens(images, mask)
    assert inner.dtype == torch.float32
    torch.testing.assert_close(found.float(), network.tokens(images, mask), rtol=0.1, atol=0.1)


def test_visible_tokens_are_the_same_where_others_fill_them_up() -> None:
    network = ViT(ViT.Config(size="nano", patch_size=4, image_size=16, num_registers=2)).double()
    images = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    keep = torch.tensor([[1, 5, 9, 0, 15], [2, 3, 4, 6, 7]])
    is_visible = torch.tensor([[True, True, True, False, False], [True] * 5])
    found = network.visible_tokens(images, keep, is_visible)
    alone = network.visible_tokens(images[:1], keep[:1, :3])
    torch.testing.assert_close(found[:1, :6], alone, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(found[1:], network.visible_tokens(images[1:], keep[1:]), rtol=1e-12, atol=1e-12)
