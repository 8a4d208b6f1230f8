import re

import pytest
import torch

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.losses import patchify
from raysl.methods.mae import MAE
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.masking import RandomMask
from tests.methods.masked_images import batch_of, setup_of, small

STEP = Step(0, 10, 5)
MASKED = ((0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11), (0, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14))  # of 16 patches


@pytest.mark.parametrize("is_normalised", [True, False])
def test_loss_is_the_mean_error_of_masked_patches(is_normalised: bool) -> None:
    method, batch = small("mae", f"method.is_normalised={is_normalised}"), batch_of(MASKED)
    decoder, terms = method.decoder, []
    for image in range(2):
        pixels = batch.views["global"][image]  # [1, 3, 16, 16]
        visible = [place for place in range(16) if place not in MASKED[image]]
        tokens = iter(decoder.embed(method.backbone.visible_tokens(pixels, torch.tensor([visible])))[0])
        rows = [next(tokens)]  # the class token, whose position is zero
        for place in range(16):
            token = decoder.mask_token if place in MASKED[image] else next(tokens)
            rows.append(token + decoder.positions[0, 1 + place])
        x = torch.stack(rows)[None]
        for block in decoder.blocks:
            x = block(x)
        predicted = decoder.pixels(decoder.norm(x))[0, 1:]  # [16, 48]
        for place in MASKED[image]:
            row, column = place // 4 * 4, place % 4 * 4
            target = pixels[0, :, row : row + 4, column : column + 4].permute(1, 2, 0).flatten()
            if is_normalised:
                target = (target - target.mean()) / (target.var() + 1e-6).sqrt()
            terms.append((predicted[place] - target).square().mean())
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


def test_predictions_know_nothing_of_masked_pixels() -> None:
    method, batch = small("mae"), batch_of(MASKED)
    images = batch.views["global"][:, 0].requires_grad_()
    keep = torch.tensor([[place for place in range(16) if place not in masked] for masked in MASKED])
    method.decoder(method.backbone.visible_tokens(images, keep), keep).square().sum().backward()
    assert images.grad is not None
    sums = patchify(images.grad, 4).abs().sum(dim=2)  # [2, 16]
    for image, masked in enumerate(MASKED):
        assert {place for place in range(16) if sums[image, place] == 0} == set(masked)


def test_the_backbone_runs_on_visible_patches_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    method = small("mae")
    lengths: list[int] = []
    method.backbone.blocks[0].register_forward_hook(lambda _, inputs, __: lengths.append(inputs[0].shape[1]))
    method(batch_of(MASKED), STEP)
    assert lengths == [1 + 4]


def test_registers_go_through_the_decoder_beside_the_class_token() -> None:
    method = small("mae", "backbone.num_registers=2")
    out = method(batch_of(MASKED), STEP)
    out.loss.backward()
    assert method.backbone.reg_token.grad.abs().max() > 0
    assert method.decoder.positions[0, :3].abs().max() == 0


def test_tokens_and_positions_get_no_weight_decay() -> None:
    method = small("mae", "backbone.position=learned")
    decaying, excluded = split_groups(method, method.setup.config.optim)
    kept = {id(parameter) for parameter in excluded["params"]}
    free = {name for name, parameter in method.named_parameters() if id(parameter) in kept}
    assert {"decoder.mask_token", "backbone.cls_token", "backbone.pos_embed"} <= free
    assert (decaying["weight_decay_scale"], excluded["weight_decay_scale"]) == (1.0, 0.0)
    assert "decoder.positions" not in dict(method.named_parameters())


def test_the_decoder_starts_as_the_authors() -> None:
    decoder = small("mae", "method.decoder_width=96", "method.decoder_heads=3").decoder
    for layer in (decoder.embed, decoder.blocks[0].attn.qkv, decoder.blocks[0].mlp.fc2, decoder.pixels):
        bound = (6 / sum(layer.weight.shape)) ** 0.5  # Xavier's uniform
        assert 0.97 * bound < layer.weight.abs().max() <= bound
        assert layer.weight.std().item() == pytest.approx(bound / 3**0.5, rel=0.1)
        assert layer.bias.abs().max() == 0


@pytest.mark.thorough
def test_views_are_the_papers() -> None:
    setup = Setup.of(load_config("mae", ["data.path=/somewhere"]), 4096)
    MAE.check(setup)
    (view,) = MAE.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.2, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask == RandomMask(patch_size=16, ratio=0.75)


def test_the_decoder_is_thrown_away() -> None:
    method = small("mae")
    assert method.export() is method.backbone
    assert not any("decoder" in name for name in method.export().state_dict())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("method.views.size=18", "data.image_size=16"),
            "views of 18 pixels are not covered by patches of 4; set method.views.size=16 or 20, or another",
        ),
        (("method.mask_ratio=0.98",), "method.mask_ratio=0.98 masks 16 of the 16 patches of a view"),
        (("method.mask_ratio=0.01",), "method.mask_ratio=0.01 masks 0 of the 16 patches of a view"),
        (
            ("method.decoder_width=64", "method.decoder_heads=3"),
            "method.decoder_width is 64, and has to be a multiple of 4, for the positions, and of "
            "method.decoder_heads=3; try decoder_heads=4 decoder_width=64",
        ),
    ],
)
def test_check_refuses_patches_and_decoders_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        MAE.check(setup_of("mae", *words))
