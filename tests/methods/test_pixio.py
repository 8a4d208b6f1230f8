import re
import warnings
from typing import Any

import pytest
import torch
from lightly.models import utils
from lightly.models.modules.masked_autoencoder_timm import PixioDecoderTIMM
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.methods.pixio import Pixio
from raysl.nn.backbones.backbone import visible_places
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import UnitMask
from tests.methods.masked_images import batch_of, setup_of, small

STEP = Step(0, 10, 5)
MASKED = ((0, 1, 4, 5), (2, 3, 6, 7))  # the square at the upper left or right, of 4 x 4 patches


def test_loss_is_the_mean_error_of_masked_patches_under_trained_positions() -> None:
    method, batch = small("pixio"), batch_of(MASKED)
    decoder, terms = method.decoder, []
    for image in range(2):
        pixels = batch.views["global"][image]  # [1, 3, 16, 16]
        visible = [place for place in range(16) if place not in MASKED[image]]
        tokens = iter(decoder.embed(method.backbone.visible_tokens(pixels, torch.tensor([visible])))[0])
        rows = [next(tokens) + decoder.positions[0, number] for number in range(4)]  # class tokens
        for place in range(16):
            token = decoder.mask_token if place in MASKED[image] else next(tokens)
            rows.append(token + decoder.positions[0, 4 + place])
        x = torch.stack(rows)[None]
        for block in decoder.blocks:
            x = block(x)
        predicted = decoder.pixels(decoder.norm(x))[0, 4:]  # [16, 48]
        for place in MASKED[image]:
            row, column = place // 4 * 4, place % 4 * 4
            target = pixels[0, :, row : row + 4, column : column + 4].permute(1, 2, 0).flatten()
            target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
            terms.append((predicted[place] - target).square().mean())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def lightlys(ours: Any) -> PixioDecoderTIMM:
    """Lightly's decoder with the weights of raysl's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lightly renames it in 1.7
        peer = PixioDecoderTIMM(
            num_patches=16,
            patch_size=4,
            embed_dim=8,
            decoder_embed_dim=12,
            decoder_depth=2,
            decoder_num_heads=2,
            num_prefix_tokens=4,
        ).double()
    peer.decoder_embed.load_state_dict(ours.embed.state_dict())
    peer.decoder_blocks.load_state_dict(ours.blocks.state_dict())
    peer.decoder_norm.load_state_dict(ours.norm.state_dict())
    peer.decoder_pred.load_state_dict(ours.pixels.state_dict())
    peer.mask_token.data.copy_(ours.mask_token.view(1, 1, -1))
    peer.decoder_pos_embed.data.copy_(ours.positions)
    return peer


def test_the_loss_is_that_of_lightlys_decoder() -> None:
    method, batch = small("pixio"), batch_of(MASKED)
    images, mask = batch.views["global"][:, 0], batch.extras["global.mask"].flatten(1)
    places = torch.arange(4, 20).expand(2, -1)
    hidden = places[mask].view(2, -1)
    kept = torch.cat([torch.arange(4).expand(2, -1), places[~mask].view(2, -1)], dim=1)
    keep = visible_places(batch.extras["global.mask"][:, 0], 12)
    peer, tokens = lightlys(method.decoder), method.backbone.visible_tokens(images, keep)
    everything = utils.repeat_token(peer.mask_token, (2, 20))
    decoded = peer.decode(utils.set_at_index(everything, kept, peer.embed(tokens)))
    predicted = peer.predict(utils.get_at_index(decoded, hidden))
    target = utils.normalize_mean_var(utils.get_at_index(utils.patchify(images, 4), hidden - 4))
    torch.testing.assert_close(method(batch, STEP).loss, F.mse_loss(predicted, target), rtol=1e-9, atol=0)


@pytest.mark.parametrize("ratio", [0.5, 0.6, 0.75, 0.9])
def test_masks_hide_whole_squares_as_many_as_lightlys(ratio: float) -> None:
    setup = Setup.of(load_config("pixio", ["data.path=/somewhere", f"method.mask_ratio={ratio}"]), 8192)
    assert Pixio.mask(setup) == UnitMask(patch_size=16, unit_size=64, ratio=ratio)
    _, hidden = utils.random_grid_token_mask((1, 257), mask_ratio=ratio, grid_size=4)
    assert Pixio.num_masked(setup) == hidden.shape[1]


def test_class_tokens_are_the_class_token_and_the_registers() -> None:
    backbone = small("pixio").backbone
    images = batch_of(MASKED).views["global"][:, 0]
    tokens = backbone.tokens(images)
    features = backbone(images)
    torch.testing.assert_close(features, tokens[:, :4].mean(dim=1), rtol=1e-12, atol=0)
    torch.testing.assert_close(backbone.stages(images, ["classes"])["classes"], features, rtol=1e-12, atol=0)
    assert (backbone.feature_stages, backbone.stage_widths["classes"]) == (("classes",), 8)


def test_positions_of_the_decoder_train_and_decay_and_class_tokens_have_their_own() -> None:
    decaying = "optim.decay_tokens=[cls_token,reg_token,mask_token,pos_embed]"
    method = small("pixio", decaying, "backbone.position=learned")
    method(batch_of(MASKED), STEP).loss.backward()
    assert method.decoder.positions.shape == (1, 20, 12)
    assert all(row.abs().max() > 0 for row in method.decoder.positions.grad[0])
    decaying, _ = split_groups(method, method.setup.config.optim)
    decays = {id(parameter) for parameter in decaying["params"]}
    names = {name for name, parameter in method.named_parameters() if id(parameter) in decays}
    tokens = {"decoder.positions", "decoder.mask_token", "backbone.cls_token", "backbone.reg_token"}
    assert tokens | {"backbone.pos_embed"} <= names


def test_settings_and_views_are_the_authors() -> None:
    config = Pixio.Config()
    assert (config.decoder_width, config.decoder_depth, config.decoder_heads) == (512, 32, 16)
    assert (config.mask_ratio, config.mask_block, config.is_normalised) == (0.75, 4, True)
    setup = Setup.of(load_config("pixio", ["data.path=/somewhere"]), 8192)
    Pixio.check(setup)
    (view,) = Pixio.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale, view.transforms) == (256, (0.2, 1.0), ())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.views.size=4", "method.mask_block=2"),
            "mask_block=2 does not divide the 1 patches along a side of a view; give 1",
        ),
        (("method.mask_block=3",), "mask_block=3 does not divide the 4 patches along a side of a view; give 1 or 2"),
        (("method.mask_ratio=0.9",), "mask_ratio=0.9 masks 16 of the 16 patches of a view; Pixio needs masked and"),
        (("method.decoder_width=13",), "method.decoder_width is 13, and has to be a multiple of 4"),
    ],
)
def test_check_refuses_squares_and_decoders_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Pixio.check(setup_of("pixio", *words))
