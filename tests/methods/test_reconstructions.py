"""What methods that predict pixels show of images: true pixels where they see them, their predictions elsewhere."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.components import ALIASES, resolve
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.losses import masked_patch_l1, masked_patch_mse, patchify
from raysl.methods.method import Method
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
SMALL = ("backbone.width=8", "backbone.heads=2", "backbone.depth=2", "train.batch_size=2")
WORDS: dict[str, tuple[str, ...]] = {
    "mae": (*SMALL, "method.decoder_width=12", "method.decoder_depth=1", "method.decoder_heads=2"),
    "pixio": (*SMALL, "method.decoder_width=12", "method.decoder_depth=1", "method.decoder_heads=2"),
    "cmae": (*SMALL, "method.decoder_width=12", "method.decoder_depth=1", "method.decoder_heads=2"),
    "cross_mae": (*SMALL, "method.decoder_width=12", "method.decoder_depth=1", "method.decoder_heads=2"),
    "mixmim": ("backbone.width=16", "method.decoder_width=12", "method.decoder_depth=1", "method.decoder_heads=2"),
    "simmim": SMALL,
    "spark": ("backbone.width=8", "method.decoder_width=16", "train.batch_size=2"),
    "aim": (*SMALL, "method.head_width=8", "method.head_depth=1"),
    "salt": (*SMALL, "method.target=pixels", "method.predictor_width=12", "method.predictor_depth=1"),
    "igpt": SMALL,
    "colorization": (),
}


def made(name: str, *words: str) -> tuple[Method, Batch]:
    """A method of digits with random weights, and a batch of two random images with its masks."""
    config = load_config(f"digits/{name}", [*WORDS[name], *words])
    setup = Setup.of(config, 6)
    kind = resolve("method", name)
    kind.check(setup)
    torch.manual_seed(0)
    method: Method = kind(setup, resolve("backbone", config.backbone.name)(config.backbone)).eval()
    recipe, index = kind.views(setup).of_whole_images(), np.arange(2)
    side = recipe.size
    generator = torch.Generator().manual_seed(1)
    images = [torch.randint(256, (3, side, side), dtype=torch.uint8, generator=generator) for _ in index]
    augmented = recipe.augment(recipe.crop(images, index, 0, 0), index, 0, 0)
    views = {group: view.float() / 127.5 - 1 for group, view in augmented.views.items()}
    return method, Batch(views, torch.arange(2), torch.full((2,), -1), extras=augmented.extras)


def shown(method: Method, batch: Batch) -> Any:
    with torch.no_grad():
        return method.reconstruct(batch)


def hidden_in(batch: Batch, patch_size: int) -> Tensor:
    """Pixels behind the mask, bool [N, 1, H, W]."""
    mask = batch.extras["global.mask"][:, 0]
    return mask.repeat_interleave(patch_size, 1).repeat_interleave(patch_size, 2)[:, None]


def test_every_method_with_pictures_is_tested_here() -> None:
    kinds = {name: resolve("method", name) for name in ALIASES["method"]}
    assert {name for name, kind in kinds.items() if kind.reconstruct is not Method.reconstruct} == set(WORDS)


@pytest.mark.parametrize("name", ["mae", "pixio", "cmae", "cross_mae", "mixmim", "simmim", "spark"])
def test_visible_patches_stay_and_all_masked_ones_are_predicted(name: str) -> None:
    method, batch = made(name)
    images, hidden = batch.views["global"][:, 0], hidden_in(batch, 4).expand(-1, 3, -1, -1)
    assert 0 < hidden.float().mean() < 1
    result = shown(method, batch)
    assert torch.equal(result.images, images)
    for pictures in (result.seen, result.predicted):
        assert torch.equal(pictures[~hidden], images[~hidden])
    assert result.seen[hidden].isnan().all()
    assert result.predicted.isfinite().all()
    assert not torch.isclose(result.predicted[hidden], images[hidden]).all()
    again = shown(method, batch)
    assert torch.equal(again.predicted, result.predicted), "nothing is random"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mae", ()),
        ("mae", ("method.is_normalised=false",)),
        ("pixio", ()),
        ("simmim", ()),
        ("spark", ()),
        ("spark", ("method.is_normalised=false",)),
        ("cross_mae", ("method.predicted_ratio=0.75", "method.mask_ratio=0.75")),
    ],
)
def test_the_error_of_what_is_shown_is_the_loss(name: str, words: tuple[str, ...]) -> None:
    method, batch = made(name, *words)
    result, mask = shown(method, batch), batch.extras["global.mask"][:, 0].flatten(1)
    predicted, patches = patchify(result.predicted, 4), patchify(result.images, 4)
    with torch.no_grad():
        loss = method.training_step(batch, STEP).loss
    if name == "simmim":
        error = masked_patch_l1(predicted, patches, mask)
    elif "method.is_normalised=false" in words:
        error = masked_patch_mse(predicted, patches, mask, is_normalised=False)
    else:
        # the true patch's own deviation scales the error of a patch
        variance = patches.var(dim=2) + 1e-6
        errors = (predicted - patches).square().mean(dim=2) / variance
        error = ((errors * mask).sum(dim=1) / mask.sum(dim=1)).mean()
    torch.testing.assert_close(error, loss, rtol=1e-4, atol=1e-5)


def test_aim_shows_the_prefix_and_each_patch_as_those_before_it_predict_it() -> None:
    method, batch = made("aim", "method.is_normalised=false")
    result, images = shown(method, batch), batch.views["global"][:, 0]
    mask = batch.extras["global.mask"][:, 0].flatten(1)
    first = int((~mask[0]).sum())  # patches of the prefix of the first image
    assert mask[0].tolist() == [False] * first + [True] * (16 - first)
    seen, predicted, patches = (patchify(values, 4) for values in (result.seen, result.predicted, images))
    assert torch.equal(seen[0, :first], patches[0, :first])
    assert torch.equal(predicted[0, :first], patches[0, :first])
    assert seen[0, first:].isnan().all()
    with torch.no_grad():
        tokens = method.backbone.causal_tokens(images, ~mask)[:, 1:]  # type: ignore[operator]
        pixels = method.head(tokens)  # type: ignore[operator]
    at = max(first, 1)
    torch.testing.assert_close(predicted[0, at:], pixels[0, at - 1 : -1])


def test_salt_shows_the_blocks_that_it_predicts_and_nothing_where_it_predicts_latents() -> None:
    method, batch = made("salt")
    result = shown(method, batch)
    unseen = batch.extras["global.mask"][:, 0].flatten(1)
    targets = batch.extras["global.targets"][:, 0].flatten(2).any(dim=1)
    seen, predicted, patches = (patchify(values, 4) for values in (result.seen, result.predicted, result.images))
    assert torch.equal(seen[~unseen], patches[~unseen])
    assert seen[unseen].isnan().all()
    assert predicted[targets].isfinite().all()
    assert predicted[unseen & ~targets].isnan().all()
    assert (targets <= unseen).all()
    latents, batch = made("salt", "method.target=latents", "method.teacher=untrained")
    assert shown(latents, batch) is None


@pytest.mark.parametrize("objective", ["next", "masked"])
def test_igpt_shows_the_likeliest_colours_of_its_palette(objective: str) -> None:
    masked = ("backbone.causal=false", "backbone.mask_token=true") if objective == "masked" else ()
    method: Any
    method, batch = made("igpt", f"method.objective={objective}", *masked)
    torch.nn.init.normal_(method.head.weight)
    assert shown(method, batch) is None, "there is no palette yet"
    embed = method.embed
    embed.colors.copy_(torch.rand(embed.colors.shape))
    result, images = shown(method, batch), batch.views["global"][:, 0]
    palette = (embed.colors - embed.mean) / embed.std
    words = embed.words(images)
    quantised = palette[words].transpose(1, 2).reshape(images.shape)
    mask = batch.extras["global.mask"][:, 0] if objective == "masked" else None
    with torch.no_grad():
        tokens = method.backbone.tokens(images, mask)
        best = method.head(tokens[:, 1:] if objective == "masked" else tokens[:, :-1]).argmax(dim=2)
    expected = palette[best].transpose(1, 2).reshape(images.shape)
    if mask is None:
        assert torch.equal(result.seen, quantised)
        assert torch.equal(result.predicted, expected)
    else:
        hidden = mask[:, None].expand_as(images)
        assert torch.equal(result.seen[~hidden], quantised[~hidden])
        assert result.seen[hidden].isnan().all()
        assert torch.equal(result.predicted[hidden], expected[hidden])
        assert torch.equal(result.predicted[~hidden], quantised[~hidden])


@pytest.mark.thorough
def test_colorization_keeps_the_lightness_and_gives_the_colours_of_its_bins() -> None:
    from raysl.transforms.functional_color import to_lab

    method: Any
    method, batch = made("colorization")
    blue = int((method.bins - torch.tensor([10.0, -40.0])).norm(dim=1).argmin())
    with torch.no_grad():
        method.classifier.weight.zero_()
        method.classifier.bias.view(len(method.bins), -1).fill_(-50.0)[blue] = 50.0  # of each cell
    grey = torch.full_like(batch.views["global"], 0.5).sub_(method.mean).div_(method.std)
    result = shown(method, Batch({"global": grey}, batch.index, batch.label))
    before, after = (to_lab(values * method.std + method.mean) for values in (result.images, result.predicted))
    torch.testing.assert_close(after[:, 0], before[:, 0], atol=0.01, rtol=0)
    ab = after[:, 1:].mean(dim=(0, 2, 3)) * 255 - 128
    torch.testing.assert_close(ab, method.bins[blue], atol=1.5, rtol=0)
    lightness = result.seen * method.std + method.mean
    torch.testing.assert_close(lightness, before[:, :1].expand_as(lightness), atol=1e-5, rtol=0)
