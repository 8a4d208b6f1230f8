from typing import Any

import pytest
import torch
from lightly.loss import DirectCLRLoss
from torch.nn import functional as F

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


def test_loss_picks_the_other_view_of_each_image_among_other_views_alone() -> None:
    method, batch = small_directclr(temperature=0.2), whole_batch()
    out = method(batch, STEP)
    # Batch normalisation sees each view by itself.
    first, second = (F.normalize(method.backbone(view)[:, :3], dim=1) for view in batch.views["global"].unbind(1))
    cosines = first @ second.T / 0.2
    expected = (F.cross_entropy(cosines, torch.arange(NUM)) + F.cross_entropy(cosines.T, torch.arange(NUM))) / 2
    torch.testing.assert_close(out.loss, expected, rtol=1e-9, atol=0)
    assert tuple(out.metrics) == DirectCLR.logged


def test_lightlys_loss_has_negatives_of_both_views() -> None:
    method, batch = small_directclr(temperature=0.2), whole_batch()
    first, second = (method.backbone(view) for view in batch.views["global"].unbind(1))
    theirs = DirectCLRLoss(loss_dim=3, temperature=0.2)(first, second)
    assert theirs > method(batch, STEP).loss


def test_other_dimensions_get_a_gradient_through_the_network_alone() -> None:
    method, batch = small_directclr(), whole_batch()
    features: list[torch.Tensor] = []
    method.backbone.register_forward_hook(lambda module, inputs, out: (out.retain_grad(), features.append(out))[0])
    method(batch, STEP).loss.backward()
    assert len(features) == 2
    for view in features:
        assert view.grad is not None
        assert view.grad[:, :3].abs().min() > 0
        assert view.grad[:, 3:].abs().max() == 0
    assert not list(method.children())[1:]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch_size": 1}, "DirectCLR contrasts images"),
        ({"views.num": 3}, "DirectCLR contrasts two views"),
        ({"dim": 9}, "method.dim is 9, and the backbone has 8 features; give at most 8"),
    ],
)
def test_check_refuses_settings_without_contrast(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        DirectCLR.check(setup_of(**fields))
    DirectCLR.check(setup_of(2))
