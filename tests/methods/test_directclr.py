from typing import Any

import pytest
import torch
from lightly.loss import DirectCLRLoss

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.directclr import DirectCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in {"dim": 3, **fields}.items()]
    small = ["backbone.num_stages=2", "backbone.width=4"]
    return Setup.of(load_config("digits/directclr", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_directclr(**fields: Any) -> DirectCLR:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return DirectCLR(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_loss_is_lightlys_of_the_first_dimensions() -> None:
    method, batch = small_directclr(temperature=0.2), whole_batch()
    out = method(batch, STEP)
    first, second = method.backbone(batch.views["global"].flatten(0, 1)).view(NUM, 2, -1).unbind(dim=1)
    assert out.loss.item() == pytest.approx(DirectCLRLoss(loss_dim=3, temperature=0.2)(first, second).item(), rel=1e-9)
    assert tuple(out.metrics) == DirectCLR.logged


def test_other_dimensions_get_a_gradient_through_the_network_alone() -> None:
    method, batch = small_directclr(), whole_batch()
    features: list[torch.Tensor] = []
    method.backbone.register_forward_hook(lambda module, inputs, out: (out.retain_grad(), features.append(out))[0])
    method(batch, STEP).loss.backward()
    grad = features[0].grad
    assert grad is not None
    assert grad[:, :3].abs().min() > 0
    assert grad[:, 3:].abs().max() == 0
    assert not list(method.children())[1:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 1}, "DirectCLR contrasts images"),
        ({"views.num": 1}, "DirectCLR pulls views of an image together"),
        ({"dim": 9}, "method.dim is 9, and the backbone has 8 features; give at most 8"),
    ],
)
def test_check_refuses_settings_without_contrast(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DirectCLR.check(setup_of(**fields))
    DirectCLR.check(setup_of(2))
