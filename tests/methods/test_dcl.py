from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import dcl
from raysl.methods.dcl import DCL
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.losses.test_dcl import slow_dcl

STEP = Step(0, 10, 5)


def setup_of(batch_size: int = 6, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16", "method.output_dim=8"]
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/dcl", [*small, f"train.batch_size={batch_size}", *words]), 6)


def small_dcl(**fields: Any) -> DCL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return DCL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


@pytest.mark.parametrize("weighted", [False, True])
def test_loss_is_the_papers_equation_on_the_projected_views(weighted: bool) -> None:
    method, batch = small_dcl(temperature=0.2, weighted=str(weighted).lower(), sigma=0.7), whole_batch()
    out = method(batch, STEP)
    z = method.projector(method.backbone(batch.views["global"].flatten(0, 1))).unflatten(0, (6, 2))
    expected = slow_dcl(z.detach(), list(range(6)), 0.2, 0.7 if weighted else None)
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)
    assert tuple(out.metrics) == DCL.logged


def test_weights_of_pairs_are_one_on_average_and_larger_for_those_far_apart() -> None:
    z = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 1.0], [1.0, 0.0]]], dtype=torch.float64)  # cosines 1 and 0
    both = [dcl(z[rows], z, rows, 1.0, 0.5) - dcl(z[rows], z, rows, 1.0) for rows in torch.arange(2)[:, None]]
    near = torch.tensor([1.0, 0.0], dtype=torch.float64)
    weights = 2 - (near / 0.5).exp() / (near / 0.5).exp().mean()
    assert weights.mean().item() == pytest.approx(1.0)
    assert weights[0] < 1 < weights[1]
    assert [gap.item() for gap in both] == pytest.approx(((1 - weights) * near).tolist())


def test_the_papers_constants() -> None:
    config = DCL.Config()
    assert (config.temperature, config.sigma, config.output_dim, config.weighted) == (0.1, 0.5, 128, False)


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [
        (1, 2, "train.batch_size is 1; DCL contrasts images"),
        (6, 1, "num is 1 and method.views.num_local is 0; DCL pulls views"),
    ],
)
def test_check_refuses_settings_without_contrast(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DCL.check(setup_of(batch_size, **{"views.num": num}))
