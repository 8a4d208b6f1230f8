import math

import pytest
import torch
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.igpt import IGPT
from raysl.nn.backbones.palette import LEVELS, PaletteEmbed, palette
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM, SIDE = 4, 8
MASKED = "method.objective=masked", "backbone.causal=false", "backbone.mask_token=true"


def setup_of(*words: str) -> Setup:
    small = ["backbone.depth=2", "backbone.width=24", "backbone.heads=3", "train.batch_size=4"]
    return Setup.of(load_config("digits/igpt", [*small, *words]), NUM)


def small_igpt(*words: str) -> IGPT:
    torch.manual_seed(0)
    setup = setup_of(*words)
    method = IGPT(setup, ViT(setup.config.backbone)).double()
    torch.nn.init.normal_(method.head.weight)
    return method


def whole_batch() -> Batch:
    images = torch.randn(NUM, 1, 3, SIDE, SIDE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    mask = torch.rand(NUM, 1, SIDE * SIDE, generator=torch.Generator().manual_seed(2)).argsort(dim=2) < 10
    extras = {"global.mask": mask.view(NUM, 1, SIDE, SIDE)}
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1), extras=extras)


def fitted(method: IGPT, batch: Batch) -> IGPT:
    method.before_epoch(STEP, lambda: iter([Batch({"image": batch.views["global"]}, batch.index, batch.label)]))
    return method


@pytest.mark.parametrize("words", [(), MASKED], ids=["next", "masked"])
def test_the_loss_is_the_surprise_of_each_pixel(words: tuple[str, ...]) -> None:
    batch = whole_batch()
    method = fitted(small_igpt(*words), batch)
    out = method(batch, STEP)
    terms = []
    for image, mask in zip(batch.views["global"][:, 0], batch.extras["global.mask"][:, 0], strict=True):
        words_of = method.embed.words(image[None])[0]
        tokens = method.backbone.tokens(image[None], mask[None] if words else None)[0]
        places = mask.flatten().nonzero().flatten().tolist() if words else range(SIDE * SIDE)
        for place in places:
            scores = method.head.weight @ tokens[place + 1 if words else place]
            terms.append((scores.logsumexp(dim=0) - scores[words_of[place]]).item())
    assert out.loss.item() == pytest.approx(sum(terms) / len(terms), rel=1e-9)
    assert tuple(out.metrics) == IGPT.logged


def test_no_pixel_is_seen_by_what_predicts_it() -> None:
    method, images = small_igpt(), whole_batch().views["global"][:1, 0]
    changed = images.clone()
    changed[..., 3, 5] = 1 - changed[..., 3, 5]
    assert method.embed.words(images)[0, 29] != method.embed.words(changed)[0, 29]
    for name in ("block1", "norm"):
        one, other = (method.backbone.stages(view, [name])[name][0] for view in (images, changed))
        torch.testing.assert_close(one[:30], other[:30], rtol=0, atol=0)
        assert (one[30:] != other[30:]).any(dim=1).all()


def test_before_training_every_colour_is_as_likely() -> None:
    setup = setup_of()
    method = IGPT(setup, ViT(setup.config.backbone)).double()
    assert method(whole_batch(), STEP).loss.item() == pytest.approx(math.log(16))


def test_the_palette_is_that_of_the_images_and_stays() -> None:
    batch = whole_batch()
    method = fitted(small_igpt(), batch)
    before = method.embed.colors.clone()
    pixels = batch.views["global"][:, 0].flatten(2) * method.embed.std[:, None] + method.embed.mean[:, None]
    level = ((pixels * LEVELS).floor().clamp(0, LEVELS - 1) + 0.5) / LEVELS  # [NUM, 3, L]
    nearest = torch.cdist(level.transpose(1, 2).double(), before).argmin(dim=2)
    assert torch.equal(method.embed.words(batch.views["global"][:, 0]), nearest)
    method.before_epoch(Step(5, 10, 5), lambda: iter([]))
    assert torch.equal(method.embed.colors, before)


@pytest.mark.thorough
def test_kmeans_reaches_the_means_of_its_colours() -> None:
    numbers = torch.Generator().manual_seed(0)
    counts = torch.zeros(LEVELS**3, dtype=torch.int64)
    places = torch.randint(LEVELS**3, (300,), generator=numbers)
    counts[places] = torch.randint(1, 9, (300,), generator=numbers)
    colors = palette(counts, 8, 100, seed=0)
    level = (torch.arange(LEVELS) + 0.5).double() / LEVELS
    points = torch.cartesian_prod(level, level, level)
    owner = torch.cdist(points, colors).argmin(dim=1)
    for number, color in enumerate(colors):
        weights = counts * (owner == number)
        torch.testing.assert_close(color, (points * weights[:, None]).sum(dim=0) / weights.sum())
    assert torch.equal(colors, palette(counts, 8, 100, seed=0))


def test_colours_that_no_pixel_needs_are_out_of_reach() -> None:
    counts = torch.zeros(LEVELS**3, dtype=torch.int64)
    counts[[0, 77, -1]] = 1
    embed = PaletteEmbed(4, 5)
    embed.fit(counts, 3, seed=0)
    assert embed.table.unique().tolist() == [0, 1, 2]
    assert embed(torch.zeros(1, 3, 2, 3)).shape == (1, 6, 4)


def test_pixels_that_are_hidden_alone_count() -> None:
    batch = whole_batch()
    method = fitted(small_igpt(*MASKED), batch)
    tokens = method.backbone.tokens(batch.views["global"][:, 0], batch.extras["global.mask"][:, 0])[:, 1:]
    mask = batch.extras["global.mask"].flatten()
    words = method.embed.words(batch.views["global"][:, 0]).flatten()
    expected = F.cross_entropy(method.head(tokens).flatten(0, 1)[mask], words[mask])
    torch.testing.assert_close(method(batch, STEP).loss, expected)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["backbone.palette=null"], r"backbone\.palette is not set, and iGPT predicts its colours"),
        (["backbone.causal=false"], r"backbone\.causal is false and method\.objective is next"),
        (["method.objective=masked"], r"set backbone\.causal=false"),
        (["backbone.output=class"], r"set backbone\.output=mean"),
        (["method.objective=masked", "backbone.causal=false"], r"backbone\.mask_token is false"),
    ],
)
def test_settings_that_cannot_work_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        IGPT.check(setup_of(*words))
    IGPT.check(setup_of())
    IGPT.check(setup_of(*MASKED))


def test_patches_of_several_pixels_have_no_colour() -> None:
    with pytest.raises(ConfigError, match=r"backbone\.palette is 16 and backbone\.patch_size 4"):
        ViT(ViT.Config(size="nano", patch_size=4, image_size=8, palette=16))
    with pytest.raises(ConfigError, match=r"backbone\.palette is 16 and backbone\.in_channels 4.*set in_channels=3"):
        ViT(ViT.Config(size="nano", patch_size=1, image_size=8, palette=16, in_channels=4))
