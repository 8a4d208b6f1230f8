import math
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.barlow_twins import BarlowTwins
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import cross_correlation
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms import GaussianBlur, Solarize
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
SHARES = [4, 2]


def setup_of(batch_size: int = 6, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.dim=8", f"train.batch_size={batch_size}"]
    return Setup.of(load_config("digits/barlow_twins", [*small, *words]), 6)


def small_barlow(**fields: Any) -> BarlowTwins:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return BarlowTwins(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def moments(values: list[float]) -> tuple[float, float]:
    mean = sum(values) / len(values)
    return mean, math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)


def slow_correlation(first: Tensor, second: Tensor, is_joint: bool) -> list[list[float]]:
    """Equation 2, one number after another."""
    num, dim = first.shape
    a, b = first.T.tolist(), second.T.tolist()  # a list of images for each dimension
    found = [[0.0] * dim for _ in range(dim)]
    for i in range(dim):
        for j in range(dim):
            mean_a, std_a = moments(a[i] + b[i] if is_joint else a[i])
            mean_b, std_b = moments(a[j] + b[j] if is_joint else b[j])
            found[i][j] = (
                sum((x - mean_a) / std_a * (y - mean_b) / std_b for x, y in zip(a[i], b[j], strict=True)) / num
            )
    return found


@pytest.mark.parametrize("normalize", ["per_view", "joint"])
def test_loss_is_equation_1(normalize: str) -> None:
    method, batch = small_barlow(normalize=normalize, redundancy=0.3, scale=0.7), whole_batch()
    out = method(batch, STEP)
    z = [method.projector(method.backbone(view)) for view in batch.views["global"].unbind(dim=1)]
    c = slow_correlation(z[0], z[1], normalize == "joint")
    agreement = sum((1 - c[i][i]) ** 2 for i in range(8))
    redundancy = sum(c[i][j] ** 2 for i in range(8) for j in range(8) if i != j)
    assert out.loss.item() == pytest.approx(0.7 * (agreement + 0.3 * redundancy), rel=1e-9)
    assert out.metrics["correlation"].item() == pytest.approx(sum(c[i][i] for i in range(8)) / 8, rel=1e-9)
    assert out.metrics["redundancy"].item() == pytest.approx(math.sqrt(redundancy / 56), rel=1e-9)
    assert tuple(out.metrics) == BarlowTwins.logged


def test_views_that_differ_in_mean_and_length_are_one_to_it_but_not_jointly() -> None:
    z = numbers(6, 8)
    pairs = torch.stack([z, 5 + 3 * z], dim=1)
    assert cross_correlation(pairs, 1e-5, is_joint=False).diagonal().min() > 0.999
    assert cross_correlation(pairs, 1e-5, is_joint=True).diagonal().max() < 0.9


def correlation_and_gradient() -> tuple[Tensor, Tensor]:
    shares = SHARES if dist.world() == 2 else [6]
    z = torch.split(numbers(6, 2, 8), shares)[dist.rank()].clone().requires_grad_()
    correlation = cross_correlation(z, 1e-5, is_joint=False)
    correlation.pow(3).sum().backward()
    assert z.grad is not None
    return correlation.detach(), z.grad


def test_the_gradient_is_not_divided_by_the_number_of_ranks(run_ranks: RunRanks) -> None:
    """Every rank's loss is that of the whole batch, and DDP takes the mean of gradients: their sum is W times one's."""
    correlation, gradient = correlation_and_gradient()
    found = run_ranks(2, correlation_and_gradient)
    for many, _ in found:
        torch.testing.assert_close(many, correlation, rtol=1e-9, atol=1e-12)
    gathered = torch.cat([grad for _, grad in found])
    torch.testing.assert_close(gathered, 2 * gradient, rtol=1e-9, atol=1e-12)


def test_loss_and_gradient_are_finite_where_all_embeddings_are_one() -> None:
    method, batch = small_barlow(), whole_batch()
    out = method(batch.map(lambda rows: torch.zeros_like(rows)), STEP)
    out.loss.backward()
    assert out.metrics["correlation"].abs() < 1e-6
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_views_networks_and_weights_are_the_authors() -> None:
    config = load_config("barlow_twins", ["data.path=/images"])
    first, second = config.method.views.recipe().groups["global"]
    assert (first.crop.size, first.crop.scale) == (224, (0.08, 1.0))
    assert first.transforms[-1] == GaussianBlur(p=1.0, sigma=(0.1, 2.0), kernel_size=None)
    assert second.transforms[-2] == GaussianBlur(p=0.1, sigma=(0.1, 2.0), kernel_size=None)
    assert second.transforms[-1] == Solarize(p=0.2)
    method = config.method
    assert (method.redundancy, method.scale, method.dim, method.normalize) == (0.0051, 0.024, 8192, "per_view")
    assert config.optim.lr * method.scale == pytest.approx(0.0048)
    layers = small_barlow().projector
    assert [type(layer).__name__ for layer in layers] == [
        *("Linear", "BatchNorm1d", "ReLU"),
        *("Linear", "BatchNorm1d", "ReLU"),
        "Linear",
    ]
    assert [layer.bias for layer in layers if isinstance(layer, torch.nn.Linear)] == [None] * 3


@pytest.mark.parametrize(
    ("batch_size", "num", "message"),
    [
        (1, 2, "one image has no correlation"),
        (6, 3, "views.num is 3; Barlow Twins correlates"),
    ],
)
def test_check_refuses_settings_without_correlation(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BarlowTwins.check(setup_of(batch_size, **{"views.num": num}))
    BarlowTwins.check(setup_of(2))
