import math
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.pirl import PIRL
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import check_views
from raysl.transforms import ColorJitter, RandomPhotometric

FIRST, SECOND = Step(0, 10, 5), Step(1, 10, 5)
EPS = torch.finfo(torch.float32).eps
TEMPERATURE = 0.3


def setup_of(num_samples: int = 9, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=1"]
    mine = {"output_dim": 8, "num_negatives": 20, "temperature": TEMPERATURE, "projector_norm": "false", **fields}
    return Setup.of(load_config("digits/pirl", [*small, *(f"method.{k}={v}" for k, v in mine.items())]), num_samples)


def small_pirl(**fields: Any) -> PIRL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return PIRL(setup, ResNet(setup.config.backbone)).double()


def batch_of(*index: int, step: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(9, 1, 3, 8, 8, dtype=torch.float64, generator=generator)
    tiles = torch.randn(9, 9, 3, 6, 6, dtype=torch.float64, generator=generator)
    chosen = torch.tensor(index)
    views = {"global": images[chosen], "patches": tiles[chosen]}
    return Batch(views, chosen, torch.full((len(index),), -1), seed=3, step=step)


def embeddings(method: PIRL, batch: Batch) -> dict[str, Tensor]:
    """f(v_I) and g(v_I^t) of length 1, tile after tile in one pass for batch normalisation."""
    image = method.projector(method.backbone(batch.views["global"][:, 0]))
    h = method.backbone(batch.views["patches"].flatten(0, 1))
    rows = [torch.cat([method.tile_projector(tile) for tile in tiles]) for tiles in h.split(9)]
    tiles = method.tiles_projector(torch.stack(rows))
    return {"image": F.normalize(image, dim=1).detach(), "tiles": F.normalize(tiles, dim=1).detach()}


def exps_of(method: PIRL, batch: Batch, what: str) -> list[list[float]]:
    """exp(m . v / T) of each image's own row of the bank and of those drawn for it."""
    drawn = batch.random(f"pirl.{what}").uniforms(20, 0.0, 9.0).astype(int).tolist()
    found = zip(embeddings(method, batch)[what], batch.index.tolist(), drawn, strict=True)
    return [
        [math.exp((method.bank.bank[place] @ v).item() / TEMPERATURE) for place in (index, *others)]
        for v, index, others in found
    ]


def equation_4(exps: list[list[float]]) -> float:
    total = 0.0
    for own, *others in exps:
        total -= math.log(own / (own + sum(others)))
        total -= sum(math.log(1 - other / (other + sum(others))) for other in others)
    return total / len(exps)


def with_a_constant(exps: list[list[float]], norm: float) -> float:
    noise, total = 20 / 9, 0.0
    for own, *others in exps:
        total -= math.log(own / norm / (own / norm + noise + EPS))
        total -= sum(math.log(noise / (other / norm + noise + EPS)) for other in others)
    return total / len(exps)


@pytest.mark.parametrize("weight", [0.5, 0.2])
def test_loss_is_equation_5_with_independent_negatives(weight: float) -> None:
    method, batch = small_pirl(tiles_weight=weight), batch_of(4, 0, 7)
    image, tiles = (exps_of(method, batch, what) for what in ("image", "tiles"))
    expected = weight * equation_4(tiles) + (1 - weight) * equation_4(image)
    out = method(batch, FIRST)
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)
    assert tuple(out.metrics) == PIRL.logged
    slots = [batch.random(f"pirl.{what}").uniforms(20, 0.0, 9.0) for what in ("image", "tiles")]
    assert (slots[0] != slots[1]).any()


def test_vissls_form_has_a_constant_from_the_first_batch_of_tiles() -> None:
    method, batch = small_pirl(loss="nce"), batch_of(4, 0, 7)
    image, tiles = (exps_of(method, batch, what) for what in ("image", "tiles"))
    norm = 9 * sum(sum(row) for row in tiles) / (3 * 21)
    out = method(batch, FIRST)
    assert out.loss.item() == pytest.approx((with_a_constant(tiles, norm) + with_a_constant(image, norm)) / 2, rel=1e-9)
    method.after_update(FIRST, batch, out.carry)
    later = batch_of(1, 0, step=1)
    image, tiles = (exps_of(method, later, what) for what in ("image", "tiles"))
    expected = (with_a_constant(tiles, norm) + with_a_constant(image, norm)) / 2
    assert method(later, SECOND).loss.item() == pytest.approx(expected, rel=1e-9)


def test_the_bank_remembers_images_and_not_tiles() -> None:
    method, batch = small_pirl(), batch_of(4, 0, 7)
    before, image = method.bank.bank.clone(), embeddings(method, batch)["image"]
    out = method(batch, FIRST)
    assert torch.equal(method.bank.bank, before)
    method.after_update(FIRST, batch, out.carry)
    for index, own in zip((4, 0, 7), image, strict=True):
        torch.testing.assert_close(method.bank.bank[index], F.normalize(0.5 * before[index] + 0.5 * own, dim=0))
    others = [1, 2, 3, 5, 6, 8]
    assert torch.equal(method.bank.bank[others], before[others])


def test_without_tiles_there_is_npid_plus_left() -> None:
    method, batch = small_pirl(tiles_weight=0.0), batch_of(4, 0, 7)
    out = method(batch, FIRST)
    assert out.loss.item() == pytest.approx(equation_4(exps_of(method, batch, "image")), rel=1e-9)
    out.loss.backward()
    assert method.tiles_projector[0].weight.grad.abs().max() == 0


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
@pytest.mark.parametrize("is_collapsed", [False, True])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float, is_collapsed: bool) -> None:
    method, batch = small_pirl(temperature=temperature), batch_of(4, 0, 7)
    if is_collapsed:
        method.bank.bank.fill_(8**-0.5)
    out = method(batch, FIRST)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in method.parameters())


def test_heads_are_linear_and_that_of_tiles_reads_all_nine() -> None:
    shapes = {name: list(value.shape) for name, value in small_pirl().named_parameters() if "projector" in name}
    assert shapes == {
        "projector.0.weight": [8, 8],
        "projector.0.bias": [8],
        "tile_projector.weight": [8, 8],
        "tile_projector.bias": [8],
        "tiles_projector.0.weight": [8, 72],
        "tiles_projector.0.bias": [8],
    }


def test_views_are_an_image_and_tiles_of_another_crop() -> None:
    groups = PIRL.Config().views.recipe().groups
    (image,), (square,) = groups["global"], groups["patches"]
    assert (image.crop.size, image.crop.scale, image.tiles) == (224, (0.08, 1.0), None)
    assert (square.crop.size, square.crop.scale, square.transforms) == (255, (0.6, 1.0), ())
    assert square.tiles is not None
    assert (square.tiles.grid, square.tiles.size, square.tiles.jitter, square.tiles.order) == (3, 64, 21, "random")
    assert square.tile_transforms == image.transforms
    kinds = Counter(type(transform).__name__ for transform in image.transforms)
    assert list(kinds) == ["HorizontalFlip", "ColorJitter", "RandomPhotometric", "Grayscale"]
    assert image.transforms[1] == ColorJitter(p=1.0, brightness=0.4, contrast=0.4, saturation=0.4, hue=0.2)
    assert image.transforms[2] == RandomPhotometric(p=0.66)


def test_the_papers_constants() -> None:
    config = PIRL.Config()
    assert (config.temperature, config.momentum, config.num_negatives, config.tiles_weight) == (0.07, 0.5, 32000, 0.5)
    assert (config.output_dim, config.loss) == (128, "self_normalised")


@pytest.mark.parametrize(
    ("num_samples", "fields", "message"),
    [
        (1, {}, "there is 1 training image; PIRL tells"),
        (9, {"views.num": 2}, "views.num is 2; PIRL compares one"),
        (9, {"views.tile_size": 7}, "method.views: tiles of 7 pixels with jitter 2 do not fit into the 7x7 cells"),
    ],
)
def test_settings_that_cannot_work_are_refused_on_the_driver(
    num_samples: int, fields: dict[str, Any], message: str
) -> None:
    setup = setup_of(num_samples, **fields)
    with pytest.raises(ConfigError, match=message):
        check_views(setup, Classes.of(setup.config))
