from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.rotnet import RotNet, TurnedCrops
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
TURNS = torch.tensor([[0, 3], [1, 1], [2, 0]])


def setup_of(**fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=3"]
    return Setup.of(load_config("digits/rotnet", [*small, *words]), 6)


def small_rotnet() -> RotNet:
    torch.manual_seed(0)
    setup = setup_of()
    return RotNet(setup, ResNet(setup.config.backbone)).double()


def batch_of(scale: float = 1.0) -> Batch:
    images = scale * torch.randn(3, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(3), torch.full((3,), -1), extras={"global.rotation": TURNS})


def test_loss_is_the_mean_negative_log_likelihood_of_the_turns() -> None:
    method, batch = small_rotnet().eval(), batch_of()
    out = method(batch, STEP)
    terms = []
    for image in range(3):
        for view in range(2):
            h = method.backbone(batch.views["global"][image, view][None])[0]
            scores = [
                (row @ h + b).exp() for row, b in zip(method.classifier.weight, method.classifier.bias, strict=True)
            ]
            terms.append(-(scores[TURNS[image, view]] / sum(scores)).log())
    torch.testing.assert_close(out.loss, torch.stack(terms).mean(), rtol=1e-9, atol=0)
    assert tuple(out.metrics) == RotNet.logged


def test_evaluation_tells_of_each_image_how_many_of_its_turns_are_recognised() -> None:
    method, batch = small_rotnet().eval(), batch_of()
    torch.nn.init.zeros_(method.classifier.weight)
    method.classifier.bias.data = torch.tensor([1.0, 0.0, 0.0, 0.0]).double()  # says "not turned" of every image
    assert method.evaluation_step(batch)["rotation_top1"].tolist() == [50, 0, 50]
    assert tuple(method.evaluation_step(batch)) == RotNet.evaluated
    assert method(batch, STEP).metrics["rotation_top1"] == pytest.approx(100 / 3)


def test_the_turn_that_is_told_is_that_of_the_pixels() -> None:
    images = [torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8) for _ in range(40)]
    recipe = TurnedCrops(size=8, min_scale=1.0, flip=0.0).recipe()
    index = np.arange(40)
    made = recipe.augment(recipe.crop(images, index, 0, 0), index, 0, 0)
    turns = made.extras["global.rotation"]  # [B, 1]
    assert set(turns.flatten().tolist()) == {0, 1, 2, 3}
    for image, view, quarters in zip(images, made.views["global"], turns, strict=True):
        assert torch.equal(view[0], image.rot90(int(quarters), (1, 2)))


def test_mirrored_images_keep_the_sense_of_their_turn() -> None:
    images = [torch.randint(0, 256, (3, 8, 8), dtype=torch.uint8) for _ in range(40)]
    recipe = TurnedCrops(size=8, min_scale=1.0, flip=1.0).recipe()
    index = np.arange(40)
    made = recipe.augment(recipe.crop(images, index, 0, 0), index, 0, 0)
    for image, view, quarters in zip(images, made.views["global"], made.extras["global.rotation"], strict=True):
        assert torch.equal(view[0], image.flip(2).rot90(int(quarters), (1, 2)))


def test_views_are_the_papers() -> None:
    views = RotNet.Config().views
    (view,) = views.recipe().groups["global"]
    assert (view.crop.size, view.crop.scale) == (224, (0.08, 1.0))
    assert [type(transform).__name__ for transform in view.transforms] == ["HorizontalFlip", "RandomRotation90"]
    assert replace(views, num=4).recipe().num_views == 4


def test_collapsed_and_huge_features_leave_the_loss_finite() -> None:
    method = small_rotnet()
    for scale in (0.0, 1e6):
        out = method(batch_of(scale), STEP)
        out.loss.backward()
        assert out.loss.isfinite()
        assert all(parameter.grad.isfinite().all() for parameter in method.parameters())
    torch.nn.init.constant_(method.classifier.bias, 1e4)
    assert method(batch_of(0.0), STEP).loss.isfinite()
    assert method.eval()(batch_of(0.0), STEP).metrics["embedding_std"] < 1e-6


def test_affine_maps_that_turn_as_far_as_the_task_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"method.views.degrees is 45; .* set it below 45"):
        RotNet.check(setup_of(**{"views.degrees": 45}))
    RotNet.check(setup_of(**{"views.degrees": 45, "views.affine_p": 0}))
    with pytest.raises(ConfigError, match=r"method.views.vertical_flip is 0.5; .* set it to 0"):
        RotNet.check(setup_of(**{"views.vertical_flip": 0.5}))
    RotNet.check(setup_of())
