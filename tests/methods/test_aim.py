import re
from typing import Any

import pytest
import torch
from lightly.models.modules import AIMPredictionHead
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import patchify
from raysl.methods.aim import AIM
from raysl.nn.backbones.backbone import TokenBackbone
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import PrefixMask

STEP = Step(0, 10, 5)
LENGTHS = (1, 6, 15)  # of the prefix of each image, of 16 patches


def setup_of(*words: str) -> Setup:
    small = ["train.batch_size=3", "backbone.width=8", "backbone.heads=2", "backbone.depth=2", "method.head_width=12"]
    return Setup.of(load_config("digits/aim", [*small, *words]), 6)


def small_aim(*words: str) -> AIM:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return AIM(setup, ViT(setup.config.backbone)).double()


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(3, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.arange(16) >= torch.tensor(LENGTHS)[:, None]
    return Batch(
        {"global": images}, torch.arange(3), torch.full((3,), -1), extras={"global.mask": mask.view(3, 1, 4, 4)}
    )


def predictions(method: AIM, batch: Batch) -> Tensor:
    """[3, 16, 48], of the next patch each."""
    mask = batch.extras["global.mask"].flatten(1)
    tokens: Tensor = method.backbone.causal_tokens(batch.views["global"].flatten(0, 1), ~mask)
    return method.head(tokens[:, 1:])  # type: ignore[no-any-return]


def changed(images: Tensor, place: int) -> Tensor:
    """Images with another patch at a place of 16."""
    row, column = place // 4 * 4, place % 4 * 4
    other = images.clone()
    other[..., row : row + 4, column : column + 4] = 3.0 + torch.arange(4.0).double()
    return other


def test_loss_is_the_mean_error_of_the_normalised_next_patch_behind_the_prefix() -> None:
    method, batch = small_aim(), batch_of()
    patches, told = patchify(batch.views["global"].flatten(0, 1), 4), predictions(method, batch)
    of_images = []
    for image, length in enumerate(LENGTHS):
        terms = []
        for place in range(length, 16):
            pixels = patches[image, place]
            pixels = (pixels - pixels.mean()) / (pixels.var() + 1e-6).sqrt()
            terms.append((told[image, place - 1] - pixels).square().mean())
        of_images.append(torch.stack(terms).mean())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(of_images).mean(), rtol=1e-9, atol=0)


def test_a_prediction_knows_what_is_before_it_and_the_prefix_and_nothing_else() -> None:
    method, batch = small_aim(), batch_of()
    before = predictions(method, batch)
    for place in range(16):
        after = predictions(method, batch_of(changed(batch.views["global"], place)))
        differs = (after - before).abs().amax(dim=2) > 1e-12  # [3, 16]
        for image, length in enumerate(LENGTHS):
            knows = [token >= place or place < length for token in range(16)]
            assert differs[image].tolist() == knows


def test_a_prefix_of_all_patches_is_attention_in_both_directions() -> None:
    method, images = small_aim(), batch_of().views["global"].flatten(0, 1)
    everything = torch.ones(3, 16, dtype=torch.bool)
    torch.testing.assert_close(
        method.backbone.causal_tokens(images, everything), method.backbone.tokens(images), rtol=1e-9, atol=1e-12
    )


def test_the_head_is_lightlys() -> None:
    method = small_aim("method.head_depth=3")
    peer = AIMPredictionHead(input_dim=8, output_dim=48, hidden_dim=12, num_blocks=3).double()
    ours = [value for name, value in method.head.named_parameters() if not name.startswith("positions")]
    for own, theirs in zip(ours, peer.parameters(), strict=True):
        theirs.data.copy_(own)
    for module in peer.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = 1e-6
    tokens = torch.randn(2, 16, 8, dtype=torch.float64)
    torch.testing.assert_close(method.head(tokens), peer(tokens + method.head.positions), rtol=1e-9, atol=1e-12)


def test_settings_and_views_are_the_papers() -> None:
    config = AIM.Config()
    assert (config.head_width, config.head_depth, config.is_normalised) == (2048, 12, True)
    setup = Setup.of(load_config("aim", ["data.path=/somewhere"]), 8192)
    AIM.check(setup)
    (view,) = AIM.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.4, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == PrefixMask(patch_size=14)


def test_every_parameter_of_the_head_trains_and_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_aim().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(torch.randn(3, 1, 3, 16, 16)), STEP)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert all(parameter.grad.abs().max() > 0 for parameter in method.head.parameters())
    assert tuple(out.metrics) == AIM.logged


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("backbone.patch_size=16",), "a view of 16 pixels is one patch"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
        (("backbone.width=6", "backbone.position=learned"), "have 6 channels, .* try backbone.width=8"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AIM.check(setup_of(*words))


def test_a_network_without_causal_attention_says_what_to_do() -> None:
    method, images = small_aim(), torch.zeros(1, 3, 16, 16)
    with pytest.raises(TypeError, match=re.escape("ViT has no causal attention; take backbone=vit")):
        TokenBackbone.causal_tokens(method.backbone, images, torch.ones(1, 16, dtype=torch.bool))
