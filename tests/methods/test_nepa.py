"""NEPA: what predicts what, and its loss beside the one of stable-pretraining."""

import re
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.nepa import NEPA
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)


def setup_of(*words: str) -> Setup:
    small = ["train.batch_size=3", "backbone.width=8", "backbone.heads=2", "backbone.depth=2"]
    return Setup.of(load_config("digits/nepa", [*small, *words]), 6)


def small_nepa(*words: str) -> NEPA:
    torch.manual_seed(0)
    setup = setup_of(*words)
    return NEPA(setup, ViT(setup.config.backbone)).double()


def batch_of(images: Tensor | None = None) -> Batch:
    if images is None:
        images = torch.randn(3, 1, 3, 16, 16, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(3), torch.full((3,), -1))


def tokens_of(method: NEPA, images: Tensor) -> Tensor:
    """Causal tokens [B, P + 16, 8] of images [B, 3, 16, 16]."""
    return method.backbone.causal_tokens(images, torch.zeros(len(images), 16, dtype=torch.bool))


@pytest.mark.parametrize("num_registers", [0, 2])
def test_loss_is_the_mean_of_the_negative_cosine_with_the_next_embedding(num_registers: int) -> None:
    method, batch = small_nepa(f"backbone.num_registers={num_registers}"), batch_of()
    images = batch.views["global"][:, 0]
    weight, bias = method.backbone.patch_embed.proj.weight, method.backbone.patch_embed.proj.bias
    terms = []
    for image, tokens in zip(images, tokens_of(method, images), strict=True):
        for place in range(16):
            row, column = place // 4 * 4, place % 4 * 4
            embedding = (weight * image[:, row : row + 4, column : column + 4]).sum(dim=(1, 2, 3)) + bias
            told = tokens[num_registers + place]  # the token before the patch
            terms.append(-(told * embedding).sum() / (told.norm() * embedding.norm()))
    torch.testing.assert_close(method(batch, STEP).loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)


class Given(nn.Module):
    """A module that returns what it was made with."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, *_: Any, **__: Any) -> Tensor:
        return self.value


@pytest.mark.thorough
def test_the_loss_is_stable_pretrainings_over_the_same_sequence() -> None:
    peers = pytest.importorskip("stable_pretraining.methods.nepa")  # of the extra `peers`
    method, batch = small_nepa(), batch_of()
    images = batch.views["global"][:, 0]
    embeddings = method.backbone.patch_embed(images)
    # theirs has no class token: one in front of its sequence gives the first patch something that predicts it.
    sequence = torch.cat([torch.ones(3, 1, 8, dtype=torch.float64), embeddings], dim=1)
    theirs = peers.NEPA(img_size=16, patch_size=4, embed_dim=8, depth=1, num_heads=2).double().train()
    theirs.patch_embed, theirs.norm = Given(sequence), nn.Identity()
    theirs.blocks = nn.ModuleList([Given(tokens_of(method, images))])
    torch.testing.assert_close(method(batch, STEP).loss, theirs(images).loss, rtol=1e-9, atol=0)


def test_a_prediction_knows_only_what_is_before_it() -> None:
    method, images = small_nepa(), batch_of().views["global"][:, 0]
    before = tokens_of(method, images)[:, :-1]  # predictions of patches 0 to 15
    for place in range(16):
        row, column = place // 4 * 4, place % 4 * 4
        other = images.clone()
        other[..., row : row + 4, column : column + 4] = 3.0 + torch.arange(4.0).double()
        differs = (tokens_of(method, other)[:, :-1] - before).abs().amax(dim=(0, 2)) > 1e-12  # [16]
        assert differs.tolist() == [told > place for told in range(16)]


def test_targets_get_no_gradient() -> None:
    method, batch = small_nepa(), batch_of()
    images = batch.views["global"][:, 0]
    method(batch, STEP).loss.backward()
    found = method.backbone.patch_embed.proj.weight.grad.clone()
    method.zero_grad()
    told = tokens_of(method, images)[:, :-1].flatten(0, 1)
    embeddings = method.backbone.patch_embed(images).detach().flatten(0, 1)
    (-nn.functional.cosine_similarity(told, embeddings)).mean().backward()
    torch.testing.assert_close(found, method.backbone.patch_embed.proj.weight.grad, rtol=1e-9, atol=1e-15)


def test_features_are_of_attention_in_both_directions() -> None:
    method, images = small_nepa(), batch_of().views["global"][:, 0]
    other = images.clone()
    other[..., 12:, 12:] += 1.0  # the last patch
    export = method.export()
    first = (export.tokens(other) - export.tokens(images))[:, 1].abs().max()
    assert first > 1e-6


def test_settings_and_views_are_the_authors() -> None:
    setup = Setup.of(load_config("nepa", ["data.path=/somewhere"]), 8192)
    NEPA.check(setup)
    (view,) = NEPA.views(setup).groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip"]
    assert view.mask is None
    assert setup.method.views.num == 1


def test_flat_images_and_half_precision_give_a_finite_loss_in_fp32() -> None:
    for images in (torch.zeros(3, 1, 3, 16, 16), 1e6 * torch.randn(3, 1, 3, 16, 16)):
        method = small_nepa().float()
        with torch.autocast("cpu", torch.bfloat16):
            out = method(batch_of(images), STEP)
        out.loss.backward()
        assert out.loss.dtype == torch.float32
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
        assert tuple(out.metrics) == NEPA.logged


@pytest.mark.parametrize(
    ("name", "words", "message"),
    [
        (
            "digits/nepa",
            ("method.views.size=18", "data.image_size=16"),
            "views of 18 pixels are not covered by patches",
        ),
        ("quickstart", ("method=nepa",), "backbone 'resnet' has no patches"),
    ],
)
def test_check_refuses_what_has_no_patches(name: str, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        NEPA.check(Setup.of(load_config(name, list(words)), 64))
