import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import vicreg
from raysl.methods.vicreg import VICReg
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import covariances
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import ColorJitter, GaussianBlur, Solarize

STEP = Step(0, 10, 5)


def setup_of(batch_size: int = 6, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.dim=8", f"train.batch_size={batch_size}"]
    return Setup.of(load_config("digits/vicreg", [*small, *words]), 6)


def small_vicreg(**fields: Any) -> VICReg:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return VICReg(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def slow_terms(first: Tensor, second: Tensor) -> dict[str, float]:
    """Equations 1 to 5, one number after another."""
    num, dim = first.shape
    terms = {"invariance": 0.0, "variance": 0.0, "covariance": 0.0}
    for a, b in zip(first.flatten().tolist(), second.flatten().tolist(), strict=True):
        terms["invariance"] += (a - b) ** 2 / (num * dim)
    for z in (first.tolist(), second.tolist()):
        means = [sum(row[j] for row in z) / num for j in range(dim)]
        for j in range(dim):
            for k in range(dim):
                c = sum((row[j] - means[j]) * (row[k] - means[k]) for row in z) / (num - 1)
                if j == k:
                    terms["variance"] += max(0.0, 1 - math.sqrt(c + 1e-4)) / dim
                else:
                    terms["covariance"] += c**2 / dim
    return terms


def test_loss_is_equation_6() -> None:
    method, batch = small_vicreg(invariance=2.0, variance=3.0, covariance=5.0), whole_batch()
    out = method(batch, STEP)
    z = [method.expander(method.backbone(view)) for view in batch.views["global"].unbind(dim=1)]
    terms = slow_terms(z[0], z[1])
    assert min(terms.values()) > 0
    for name, term in terms.items():
        assert out.metrics[name].item() == pytest.approx(term, rel=1e-9)
    expected = 2 * terms["invariance"] + 3 * terms["variance"] + 5 * terms["covariance"]
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)
    assert tuple(out.metrics) == VICReg.logged


def test_a_dimension_that_varies_enough_costs_nothing() -> None:
    z = torch.tensor([-1.0, 1.0], dtype=torch.float64)[:, None, None] * torch.tensor([[[1.0, 2.0], [0.25, 2.0]]])
    out = vicreg(z, covariances(z), eps=0.0)  # deviations of the first dimension: sqrt(2) and sqrt(2) / 4
    assert out.variance.item() == pytest.approx((1 - 2**0.5 / 4) / 2)


def test_loss_and_gradient_are_finite_where_all_embeddings_are_one() -> None:
    method, batch = small_vicreg(), whole_batch()
    out = method(batch.map(lambda rows: torch.zeros_like(rows)), STEP)
    out.loss.backward()
    assert out.metrics["variance"].item() == pytest.approx(2 * (1 - 0.01))
    assert out.metrics["embedding_std"] < 1e-6
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_views_networks_and_weights_are_the_authors() -> None:
    config = load_config("vicreg", ["data.path=/images"])
    first, second = config.method.views.recipe().groups["global"]
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    assert first.crop.interpolation == "bicubic"
    assert (first.crop, first.transforms[:3]) == (second.crop, second.transforms[:3])
    assert first.transforms[1] == ColorJitter(p=0.8, brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)
    assert first.transforms[3:] == (GaussianBlur(p=1.0, sigma=(0.1, 2.0)),)
    assert second.transforms[3:] == (GaussianBlur(p=0.1, sigma=(0.1, 2.0)), Solarize(p=0.2))
    method = config.method
    assert (method.invariance, method.variance, method.covariance, method.dim) == (25, 12.5, 1, 8192)
    layers = [type(layer).__name__ for layer in small_vicreg().expander]
    assert layers == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear"]


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [
        (1, 2, "one image has no variance"),
        (6, 3, "method.views.num is 3; VICReg compares"),
    ],
)
def test_check_refuses_settings_without_variance_or_pairs(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        VICReg.check(setup_of(batch_size, **{"views.num": num}))
    VICReg.check(setup_of(2))
