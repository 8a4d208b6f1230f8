import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import ssl_ey
from raysl.methods.ssl_ey import SSLEY
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import covariances, total_cross_covariance
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(*words: str) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.dim=5", f"train.batch_size={NUM}"]
    return Setup.of(load_config("digits/ssl_ey", [*small, *words]), NUM)


def small_ssl_ey() -> SSLEY:
    torch.manual_seed(0)
    setup = setup_of()
    return SSLEY(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def covariance(one: Tensor, other: Tensor) -> Tensor:
    """By loops over rows."""
    means = sum(one) / len(one), sum(other) / len(other)
    products = [torch.outer(a - means[0], b - means[1]) for a, b in zip(one, other, strict=True)]
    total: Tensor = torch.stack(products).sum(dim=0) / (len(one) - 1)
    return total


def slow(z: Tensor) -> Tensor:
    first, second = z[:, 0], z[:, 1]
    between = covariance(first, second) + covariance(second, first)
    within = covariance(first, first) + covariance(second, second)
    return -2 * between.trace() + (within @ within).trace()


def loss_of(z: Tensor) -> Tensor:
    return ssl_ey(total_cross_covariance(z), covariances(z))


def test_the_loss_is_that_of_the_covariances_between_and_within_views() -> None:
    method, batch = small_ssl_ey(), whole_batch()
    out = method(batch, STEP)
    views = batch.views["global"].unbind(1)
    z = torch.stack([method.projector(method.backbone(view)) for view in views], dim=1)
    assert out.loss.item() == pytest.approx(slow(z).item(), rel=1e-9)
    assert out.loss.item() == pytest.approx((out.metrics["penalty"] - 4 * out.metrics["reward"]).item(), rel=1e-9)
    assert tuple(out.metrics) == SSLEY.logged


def test_the_gradient_is_that_of_the_loops() -> None:
    z = torch.randn(9, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    found, expected = (torch.func.grad(function)(z) for function in (loss_of, slow))
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


def test_the_least_loss_is_minus_the_squares_of_the_correlations_of_the_views() -> None:
    # Independent dimensions that correlate by r between the views, each scaled to a variance a: their loss is
    # 4 a a - 4 a r, least at a = r / 2.
    n, r = 20_000, torch.tensor([0.9, 0.5, 0.1], dtype=torch.float64)
    noise = torch.randn(n, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    white = torch.linalg.qr((noise - noise.mean(dim=0)).flatten(1)).Q.view(n, 3, 3) * (n - 1) ** 0.5
    shared, own = white[:, 0], white[:, 1:]
    z = r.sqrt() * shared[:, None] + (1 - r).sqrt() * own
    scales = torch.linspace(0.05, 1.0, 96, dtype=torch.float64)
    losses = torch.stack([loss_of(scale.sqrt() * z[:, :, :1]) for scale in scales])
    assert scales[losses.argmin()].item() == pytest.approx(0.45, abs=0.01)
    assert losses.min().item() == pytest.approx(-(0.9**2), abs=1e-3)
    best = loss_of((r / 2).sqrt() * z)
    assert best.item() == pytest.approx(-r.square().sum().item(), abs=1e-6)


def test_a_constant_embedding_is_worse_than_the_least() -> None:
    z = torch.zeros(6, 2, 3, dtype=torch.float64)
    assert loss_of(z).item() == 0.0


def test_misfits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"covariances of shapes \[\[2, 2\]\] must be two of \[D, D\]"):
        ssl_ey(torch.tensor(0.0), [torch.eye(2)])
    with pytest.raises(ConfigError, match=r"method\.views\.num is 3; SSL-EY correlates two views"):
        SSLEY.check(setup_of("method.views.num=3"))
    SSLEY.check(setup_of())
