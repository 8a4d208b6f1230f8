"""Features of patches, the class token's attention to them, and what is computed of both."""

import pytest
import torch

from raysl.errors import ConfigError
from raysl.nn.backbones.class_attention import class_attention
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.backbones.vit import ViT
from raysl.nn.patch_maps import PatchMaps, patch_maps

IMAGES = torch.randn(3, 3, 16, 24, generator=torch.Generator().manual_seed(0))


def vit(**settings: object) -> ViT:
    torch.manual_seed(1)
    config = ViT.Config(size="nano", width=24, depth=2, heads=2, patch_size=4, image_size=16, **settings)  # type: ignore[arg-type]
    network = ViT(config).eval()
    for parameter in network.parameters():
        parameter.data.normal_(std=0.3)
    return network.double()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_registers": 2},
        {"position": "rope", "num_registers": 1},
        {"position": "relative"},
        {"position": "relative", "relative_shared": True},
        {"qk_norm": True, "qkv_bias": False},
    ],
)
def test_attention_gives_the_output_of_the_class_token_back(settings: dict[str, object]) -> None:
    network = vit(**settings)
    inputs, outputs = [], []
    attention = network.blocks[-1].attn
    attention.register_forward_pre_hook(lambda _, given: inputs.append(given))
    attention.register_forward_hook(lambda _, __, out: outputs.append(out))
    shown = class_attention(network, IMAGES.double())
    assert shown is not None
    weights = attention.first_weights(*inputs[0])  # [B, heads, T]
    assert torch.equal(shown.flatten(2), weights[:, :, network.num_prefix_tokens :])
    assert shown.shape == (3, 2, 4, 6)
    torch.testing.assert_close(weights.sum(dim=2), torch.ones(3, 2, dtype=torch.float64))
    x = inputs[0][0]
    values = attention.qkv(x).unflatten(2, (3, 2, -1))[:, :, 2]  # [B, T, heads, d]
    first = torch.einsum("bht,bthd->bhd", weights, values).flatten(1)
    torch.testing.assert_close(attention.proj(first), outputs[0][:, 0], rtol=1e-9, atol=1e-9)


def test_attention_is_that_of_unmasked_tokens() -> None:
    attention, x = vit().blocks[0].attn, torch.randn(2, 5, 24, dtype=torch.float64)
    is_key = torch.tensor([[True, True, False, True, False]]).expand(2, -1)
    weights = attention.first_weights(x, is_key)
    assert (weights[:, :, [2, 4]] == 0).all()
    torch.testing.assert_close(weights[:, :, [0, 1, 3]], attention.first_weights(x[:, [0, 1, 3]]))


def test_networks_whose_class_token_sees_no_patches_have_no_attention() -> None:
    assert class_attention(vit(causal=True, output="mean"), IMAGES.double()) is None
    assert class_attention(ResNet(ResNet.Config(depth=18, width=4)), IMAGES) is None


def test_maps_of_a_vit_are_its_output_tokens_whatever_the_batch() -> None:
    network = vit(num_registers=2)
    hooks = [module for module in network.modules() if module._forward_pre_hooks]
    maps = patch_maps(network, IMAGES.double(), batch_size=2)
    tokens = network.tokens(IMAGES.double())[:, 3:].view(3, 4, 6, 24)
    torch.testing.assert_close(maps.features, tokens.float(), rtol=1e-5, atol=1e-5)
    assert (maps.stage, maps.grid, maps.features.dtype) == ("tokens", (4, 6), torch.float32)
    assert maps.attention is not None
    torch.testing.assert_close(maps.attention, class_attention(network, IMAGES.double()).float())  # type: ignore[union-attr]
    assert [module for module in network.modules() if module._forward_pre_hooks] == hooks == []
    middle = patch_maps(network, IMAGES.double(), "block1")
    expected = network.stages(IMAGES.double(), ["block1"])["block1"][:, 3:].view(3, 4, 6, 24)
    torch.testing.assert_close(middle.features, expected.float())


def test_maps_of_a_resnet_are_the_last_ones_of_four_by_four_places() -> None:
    network = ResNet(ResNet.Config(depth=18, width=4)).eval()
    images = torch.randn(2, 3, 64, 96)
    maps = patch_maps(network, images)
    assert maps.stage == "res4", "res5 has 2 x 3 places"
    assert maps.attention is None
    torch.testing.assert_close(maps.features, network.stages(images, ["res4"])["res4"].permute(0, 2, 3, 1))
    assert patch_maps(network, images, "res5").grid == (2, 3)


def test_what_is_no_map_is_refused() -> None:
    network = ResNet(ResNet.Config(depth=18, width=4)).eval()
    with pytest.raises(ConfigError, match="no map with 4 x 4 places or more for images of 4 x 4 pixels"):
        patch_maps(network, torch.zeros(1, 3, 4, 4))
    with pytest.raises(ValueError, match="no stage 'tokens' in this ResNet"):
        patch_maps(network, torch.zeros(1, 3, 64, 64), "tokens")
    with pytest.raises(ConfigError, match="stage class of this ViT is one vector of an image"):
        patch_maps(vit(), IMAGES.double(), "class")


def maps_of(features: torch.Tensor) -> PatchMaps:
    return PatchMaps(features, "tokens")


@pytest.mark.parametrize("shape", [(2, 5, 4, 7), (1, 3, 4, 40)])
def test_colours_are_the_first_three_principal_components(shape: tuple[int, ...]) -> None:
    scales = 0.7 ** torch.arange(shape[3])
    features = torch.randn(shape, generator=torch.Generator().manual_seed(2)) * scales + 3
    colors = maps_of(features).colors().flatten(0, 2).double()
    rows = features.flatten(0, 2).double()
    centred = rows - rows.mean(dim=0)
    components = centred @ torch.linalg.svd(centred).Vh[:3].T
    for channel in range(3):
        values = components[:, channel]
        if torch.corrcoef(torch.stack([values, colors[:, channel]]))[0, 1] < 0:
            values = -values
        low, high = values.quantile(0.01), values.quantile(0.99)
        expected = ((values - low) / (high - low)).clamp(0, 1) * 255
        assert (expected - colors[:, channel]).abs().max() <= 0.51
    assert torch.equal(maps_of(features).colors(), maps_of(features.clone()).colors())


def test_the_foreground_stands_away_from_the_borders_and_has_colours_of_its_own() -> None:
    generator = torch.Generator().manual_seed(3)
    features = 0.01 * torch.randn(2, 6, 6, 8, generator=generator)
    for sign in (1, -1):
        shifted = features.clone()
        shifted[:, 2:4, 2:5, 0] += sign * 5.0
        inside = torch.zeros(2, 6, 6, dtype=torch.bool)
        inside[:, 2:4, 2:5] = True
        maps = maps_of(shifted)
        assert torch.equal(maps.foreground(), inside)
        colors = maps.colors(foreground=True)
        assert (colors[~inside] == 0).all()
        alone = maps_of(shifted[inside].view(1, 1, -1, 8)).colors()
        assert torch.equal(colors[inside], alone.flatten(0, 2))


def test_equal_patches_have_one_colour() -> None:
    colors = maps_of(torch.ones(2, 4, 4, 5)).colors()
    assert (colors == colors[0, 0, 0]).all()
    assert maps_of(torch.ones(2, 4, 4, 2)).colors(foreground=True).shape == (2, 4, 4, 3)


def test_nearest_patches_are_those_of_the_largest_cosines_without_the_patch_itself() -> None:
    features = torch.randn(3, 4, 5, 6, generator=torch.Generator().manual_seed(4))
    maps = maps_of(features)
    rows = features.flatten(0, 2)
    cosines = torch.nn.functional.cosine_similarity(rows, features[1, 2, 3][None])
    torch.testing.assert_close(maps.similarities(1, 2, 3).flatten(), cosines)
    own = 20 + 2 * 5 + 3
    order = [index for index in cosines.argsort(descending=True).tolist() if index != own][:4]
    near = maps.nearest(1, 2, 3, k=4)
    assert [20 * one.image + 5 * one.row + one.column for one in near] == order
    assert [one.cosine for one in near] == pytest.approx(cosines[order].tolist())
    assert len(maps.nearest(0, 0, 0, k=1000)) == 59
    with pytest.raises(ConfigError, match="no patch at image 3, row 0, column 0; there are 3 images of 4 x 5"):
        maps.nearest(3, 0, 0)


def test_products_of_codes_are_the_cosines_and_fewer_numbers_are_the_best_of_their_length() -> None:
    features = torch.randn(2, 4, 4, 9, generator=torch.Generator().manual_seed(5)) * 0.6 ** torch.arange(9)
    unit = torch.nn.functional.normalize(features.flatten(0, 2).double(), dim=1)
    cosines = unit @ unit.T
    whole = maps_of(features).codes(100).flatten(0, 2).double()
    assert whole.shape[1] == 9
    torch.testing.assert_close(whole @ whole.T, cosines, atol=1e-6, rtol=0)
    short = maps_of(features).codes(3).flatten(0, 2).double()
    u, s, _ = torch.linalg.svd(unit)
    best = (u[:, :3] * s[:3]) @ (u[:, :3] * s[:3]).T
    torch.testing.assert_close(short @ short.T, best, atol=1e-6, rtol=0)
