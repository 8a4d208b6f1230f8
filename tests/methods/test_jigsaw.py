import re
from typing import Any

import numpy as np
import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.jigsaw import Jigsaw, ShuffledTiles
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.tiles import permutation_table

STEP = Step(0, 10, 5)
ORDERS = torch.tensor([[4], [0], [11]])


def setup_of(*words: str, **fields: Any) -> Setup:
    words = (*words, *(f"method.{name}={value}" for name, value in fields.items()))
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=3", "method.hidden_dim=5"]
    return Setup.of(load_config("digits/jigsaw", [*small, "method.views.num_permutations=12", *words]), 6)


def small_jigsaw() -> Jigsaw:
    torch.manual_seed(0)
    setup = setup_of()
    return Jigsaw(setup, ResNet(setup.config.backbone)).double()


def batch_of(scale: float = 1.0) -> Batch:
    tiles = scale * torch.randn(3, 9, 3, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"patches": tiles}, torch.arange(3), torch.full((3,), -1), extras={"patches.permutation": ORDERS})


def test_loss_is_that_of_tiles_seen_one_by_one_and_put_side_by_side() -> None:
    method, batch = small_jigsaw().eval(), batch_of()
    out = method(batch, STEP)
    terms = []
    for image in range(3):
        seen = [method.projector(method.backbone(batch.views["patches"][image, tile][None]))[0] for tile in range(9)]
        logits = method.classifier.weight @ torch.cat(seen) + method.classifier.bias  # [P]
        terms.append(logits.exp().sum().log() - logits[ORDERS[image, 0]])
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == Jigsaw.logged


def test_evaluation_gives_100_for_each_image_whose_order_is_recognised() -> None:
    method, batch = small_jigsaw().eval(), batch_of()
    torch.nn.init.zeros_(method.classifier.weight)
    method.classifier.bias.data = torch.eye(12)[11].double()  # says 11 of every image
    assert method.evaluation_step(batch)["permutation_top1"].tolist() == [0, 0, 100]
    assert tuple(method.evaluation_step(batch)) == Jigsaw.evaluated


@pytest.mark.thorough
def test_the_order_that_is_told_puts_the_tiles_back_to_the_image() -> None:
    images = [torch.randint(0, 256, (3, 18, 18), dtype=torch.uint8) for _ in range(8)]
    views = ShuffledTiles(resize=18, size=18, tile_size=6, jitter=1, num_permutations=5, flip=0.0, grayscale_p=0.0)
    recipe, index, table = views.recipe(), np.arange(8), permutation_table(5, 9)
    made = recipe.augment(recipe.crop(images, index, 0, 0), index, 0, 0)
    orders = made.extras["patches.permutation"][:, 0].tolist()
    assert len(set(orders)) > 1
    for image, tiles, order in zip(images, made.views["patches"], orders, strict=True):
        whole = torch.zeros_like(image)
        for tile, cell in zip(tiles, table[order].tolist(), strict=True):
            left, top = cell // 3 * 6, cell % 3 * 6  # cells count down the columns
            whole[:, top : top + 6, left : left + 6] = tile
        assert torch.equal(whole, image)


@pytest.mark.thorough
def test_views_are_the_papers() -> None:
    (view,) = Jigsaw.Config().views.recipe().groups["patches"]
    assert (view.crop.resize, view.crop.size) == (256, 255)
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip", "Grayscale"]
    assert [transform.p for transform in view.transforms] == [0.5, 0.66]
    assert (view.tiles.grid, view.tiles.size, view.tiles.jitter) == (3, 64, 21)
    assert np.array_equal(view.tiles.order, permutation_table(2000, 9))


def test_the_size_of_the_square_leaves_the_size_of_measured_images_alone() -> None:
    config = load_config("jigsaw", ["data.path=/somewhere", "method.views.size=192", "method.views.tile_size=40"])
    assert config.data.image_size == 224
    assert load_config("digits/jigsaw").data.image_size == 16


def test_collapsed_and_huge_tiles_leave_the_loss_finite() -> None:
    method = small_jigsaw()
    for scale in (0.0, 1e6):
        out = method(batch_of(scale), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
    assert method.eval()(batch_of(0.0), STEP).metrics["embedding_std"] < 1e-6


SQUARE = ("method.views.resize=256", "method.views.size=255")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            (*SQUARE, "method.views.tile_size=64", "method.views.jitter=30"),
            "tiles of 64 pixels at 30 positions span 93 pixels, and the 3x3 cells of a square of 255 have 85; set "
            "method.views.size=279 or more, or method.views.jitter=22, or method.views.tile_size=56",
        ),
        (
            ("method.views.grid=2", "method.views.num_permutations=25"),
            "method.views.num_permutations is 25, and 4 tiles have 24 orders",
        ),
        (("method.views.resize=20", "method.views.size=21"), "method.views.size is 21, more than the short side of 20"),
    ],
)
def test_check_refuses_tiles_and_orders_that_cannot_be(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        Jigsaw.check(setup_of(*words))


def test_more_orders_than_a_table_can_have_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"num_permutations: 400000 is out of range; give a number in \[2, 10000\]"):
        setup_of("method.views.num_permutations=400000")


def test_check_accepts_the_defaults() -> None:
    Jigsaw.check(Setup.of(load_config("jigsaw", ["data.path=/somewhere"]), 300))
