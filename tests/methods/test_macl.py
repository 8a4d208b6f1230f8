from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.macl import MACL
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.losses.test_macl import slow_macl

STEP = Step(0, 10, 5)


def setup_of(batch_size: int = 6, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16", "method.output_dim=8"]
    words = [f"method.{name}={value}" for name, value in fields.items()]
    return Setup.of(load_config("digits/macl", [*small, f"train.batch_size={batch_size}", *words]), 6)


def small_macl(**fields: Any) -> MACL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return MACL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def test_loss_is_that_of_the_projected_views_at_the_logged_temperature() -> None:
    method, batch = small_macl(temperature=0.2, growth=0.6, threshold=0.1), whole_batch()
    out = method(batch, STEP)
    z = method.projector(method.backbone(batch.views["global"].flatten(0, 1))).unflatten(0, (6, 2))
    expected = slow_macl(z.detach(), list(range(6)), 0.2, 0.6, 0.1)
    found = [out.loss, out.metrics["alignment"], out.metrics["temperature"]]
    assert [value.item() for value in found] == pytest.approx(expected, rel=1e-9)
    assert tuple(out.metrics) == MACL.logged
    assert not any(value.requires_grad for value in out.metrics.values())


def test_the_papers_constants() -> None:
    config = load_config("macl", ["data.path=/images"])
    method = config.method
    assert (method.temperature, method.growth, method.threshold, method.output_dim) == (0.1, 0.5, 0.0, 128)
    assert (config.train.batch_size, config.train.epochs) == (256, 200)


@pytest.mark.parametrize(
    ("batch_size", "fields", "message"),
    [
        (1, {}, "train.batch_size is 1; MACL contrasts images"),
        (6, {"views.num": 1}, "num is 1 and method.views.num_local is 0; MACL pulls views"),
        (6, {"growth": 0.8, "threshold": 0.25}, "temperature of 0 or less .* set method.growth below 0.8"),
    ],
)
def test_check_refuses_settings_without_contrast(batch_size: int, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MACL.check(setup_of(batch_size, **fields))
    MACL.check(setup_of(growth=0.79, threshold=0.25))
