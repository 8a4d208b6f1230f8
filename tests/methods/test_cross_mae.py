import math
import re
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import patchify
from raysl.methods.cross_mae import CrossMAE
from raysl.nn.backbones.backbone import TokenBackbone
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import PartMask

STEP = Step(0, 10, 5)
VISIBLE = ((12, 13, 14, 15), (1, 4, 8, 15))  # of 16 patches
PREDICTED = ((0, 3, 7, 11), (2, 3, 9, 14))


def setup_of(*words: str) -> Setup:
    small = ["backbone.width=8", "backbone.heads=2", "backbone.depth=2", "train.batch_size=2"]
    decoder = ["method.decoder_width=12", "method.decoder_depth=3", "method.decoder_heads=2"]
    ratios = ["method.mask_ratio=0.75", "method.predicted_ratio=0.25"]
    return Setup.of(load_config("digits/cross_mae", [*small, *decoder, *ratios, *words]), 6)


def small_method(*words: str) -> CrossMAE:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return CrossMAE(setup, ViT(setup.config.backbone)).double()


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(2, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask, predicted = torch.ones(2, 16, dtype=torch.bool), torch.zeros(2, 16, dtype=torch.bool)
    for image in range(2):
        mask[image, list(VISIBLE[image])] = False
        predicted[image, list(PREDICTED[image])] = True
    extras = {"global.mask": mask.view(2, 1, 4, 4), "global.predicted": predicted.view(2, 1, 4, 4)}
    return Batch({"global": images}, torch.arange(2), torch.full((2,), -1), extras=extras)


def slow_prediction(method: CrossMAE, pixels: Tensor, visible: tuple[int, ...], place: int) -> Tensor:
    """The pixels of one patch of one image [1, 3, 16, 16], which looks at the visible ones, a head at a time."""
    backbone, decoder = method.backbone, method.decoder
    x = backbone._embed(pixels)[:, [0, *(1 + at for at in visible)]]
    maps = [x[0]]
    for block in backbone.blocks:
        x = block(x)
        maps.append(x[0])
    y = decoder.mask_token + decoder.positions[0, place]
    for weights, norm, block in zip(decoder.mixture, decoder.norms, decoder.blocks, strict=True):
        tokens = norm(sum(weight * tokens for weight, tokens in zip(weights, maps, strict=True)))
        q = block.q(block.norm1(y))
        keys, values = block.kv(tokens).chunk(2, dim=1)
        heads = []
        for part in (slice(0, 6), slice(6, 12)):
            shares = torch.softmax(keys[:, part] @ q[part] / math.sqrt(6), dim=0)
            heads.append(shares @ values[:, part])
        y = y + block.proj(torch.cat(heads))
        y = y + block.mlp(block.norm2(y))
    return decoder.pixels(decoder.norm(y))  # type: ignore[no-any-return]


@pytest.mark.parametrize("is_normalised", [True, False])
def test_loss_is_the_mean_error_of_the_predicted_patches_alone(is_normalised: bool) -> None:
    method, batch = small_method(f"method.is_normalised={is_normalised}"), batch_of()
    terms = []
    for image in range(2):
        pixels = batch.views["global"][image]
        for place in PREDICTED[image]:
            target = patchify(pixels, 4)[0, place]
            if is_normalised:
                target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
            terms.append((slow_prediction(method, pixels, VISIBLE[image], place) - target).square().mean())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_a_prediction_does_not_depend_on_which_others_are_predicted() -> None:
    method, batch = small_method(), batch_of()
    keep = torch.tensor(VISIBLE)
    maps = method.backbone.visible_maps(batch.views["global"].flatten(0, 1), keep)
    together = method.decoder(maps, torch.tensor(PREDICTED))
    for number in range(4):
        alone = method.decoder(maps, torch.tensor(PREDICTED)[:, [number]])
        torch.testing.assert_close(alone[:, 0], together[:, number], rtol=1e-9, atol=1e-12)


def test_predictions_know_nothing_of_masked_pixels() -> None:
    method, batch = small_method(), batch_of()
    images = batch.views["global"][:, 0].requires_grad_()
    maps = method.backbone.visible_maps(images, torch.tensor(VISIBLE))
    method.decoder(maps, torch.tensor(PREDICTED)).square().sum().backward()
    assert images.grad is not None
    sums = patchify(images.grad, 4).abs().sum(dim=2)  # [2, 16]
    for image, visible in enumerate(VISIBLE):
        assert {place for place in range(16) if sums[image, place] > 0} == set(visible)


def test_maps_are_those_of_all_depths_in_front_of_the_final_norm_which_is_not_trained() -> None:
    method, images = small_method(), batch_of().views["global"].flatten(0, 1)
    keep = torch.tensor(VISIBLE)
    maps = method.backbone.visible_maps(images, keep)
    assert [tuple(tokens.shape) for tokens in maps] == [(2, 5, 8)] * 3
    assert torch.equal(method.backbone.norm(maps[-1]), method.backbone.visible_tokens(images, keep))
    assert not [p for p in method.backbone.norm.parameters() if p.requires_grad]
    assert all(p.requires_grad for name, p in method.backbone.named_parameters() if not name.startswith("norm."))
    assert torch.equal(method.backbone.blocks[0](maps[0]), maps[1])


def test_everything_trains_and_half_precision_gives_a_loss_in_fp32() -> None:
    method = small_method().float()
    with torch.autocast("cpu", torch.bfloat16):
        out = method(batch_of(torch.randn(2, 1, 3, 16, 16)), STEP)
    out.loss.backward()
    assert out.loss.dtype == torch.float32
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in method.parameters() if p.requires_grad)
    assert tuple(out.metrics) == CrossMAE.logged


def test_settings_and_views_are_those_of_the_authors() -> None:
    config = CrossMAE.Config()
    assert (config.mask_ratio, config.predicted_ratio, config.decoder_depth, config.decoder_width) == (
        0.75, 0.25, 12, 512,
    )  # fmt: skip
    setup = Setup.of(load_config("cross_mae", ["data.path=/somewhere"]), 8192)
    CrossMAE.check(setup)
    (view,) = CrossMAE.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.2, 1.0))
    assert view.mask == PartMask(patch_size=16, ratio=0.75, predicted=0.75)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("method.predicted_ratio=0.8",), "method.predicted_ratio=0.8 is above method.mask_ratio=0.75"),
        (("method.predicted_ratio=0.01",), "predicts 0 of them"),
        (("method.mask_ratio=0.99",), "masks 16 of the 16 patches"),
        (("method.decoder_heads=5",), "method.decoder_width is 12, and has to be a multiple of 4"),
        (("method.views.size=18", "data.image_size=16"), "views of 18 pixels are not covered by patches of 4"),
    ],
)
def test_check_refuses_what_cannot_work(words: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        CrossMAE.check(setup_of(*words))


def test_a_backbone_without_patches_or_maps_says_what_to_do() -> None:
    setup = Setup.of(load_config("quickstart", ["method=cross_mae"]), 64)
    with pytest.raises(ConfigError, match=r"backbone 'resnet' has no patches, .* set backbone=vit"):
        CrossMAE.check(setup)
    with pytest.raises(TypeError, match="ViT has no maps of its blocks; take backbone=vit"):
        TokenBackbone.visible_maps(small_method().backbone, torch.zeros(1, 3, 16, 16), torch.tensor([[0]]))


@pytest.mark.thorough
def test_mixtures_of_maps_begin_with_xaviers_weights() -> None:
    mixture = small_method("method.decoder_depth=40", "backbone.depth=39").decoder.mixture
    bound = (6 / 80) ** 0.5
    assert mixture.shape == (40, 40)
    assert 0.97 * bound < mixture.abs().max().item() <= bound
