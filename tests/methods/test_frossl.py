from typing import Any

import pytest
import torch
from lightly.loss import FroSSLLoss

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import frossl
from raysl.methods.frossl import FroSSL
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.moments import unit_columns
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/frossl", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_frossl(**fields: Any) -> FroSSL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return FroSSL(setup, ResNet(setup.config.backbone)).double()


def whole_batch(num_views: int) -> Batch:
    images = torch.randn(NUM, num_views, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


@pytest.mark.parametrize("num_views", [2, 3])
@pytest.mark.parametrize("invariance", [1.0, 2.5])
def test_loss_is_lightlys_for_any_number_of_views(num_views: int, invariance: float) -> None:
    method, batch = small_frossl(invariance=invariance), whole_batch(num_views)
    out = method(batch, STEP)
    z = [method.projector(method.backbone(view)) for view in batch.views["global"].unbind(dim=1)]
    assert out.loss.item() == pytest.approx(FroSSLLoss(invariance)(z).item(), rel=1e-9)
    assert tuple(out.metrics) == FroSSL.logged


def test_the_norm_is_that_of_the_eigenvalues_which_sum_to_one() -> None:
    z = torch.randn(9, 1, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    unit = unit_columns(z)
    torch.testing.assert_close(unit.square().sum(dim=0), torch.ones(1, 4, dtype=torch.float64))
    matrix = unit[:, 0].T @ unit[:, 0]
    shares = torch.linalg.eigvalsh(matrix) / matrix.trace()
    assert shares.sum().item() == pytest.approx(1)
    assert frossl(unit, [matrix]).item() == pytest.approx(shares.square().sum().log().item(), rel=1e-9)


def test_embeddings_without_a_dimension_of_their_own_have_a_finite_gradient() -> None:
    method = small_frossl()
    out = method(whole_batch(2).map(torch.zeros_like), STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_products_must_be_those_of_the_views() -> None:
    with pytest.raises(ValueError, match=r"needs 2 products of \[3, 3\]"):
        frossl(torch.ones(4, 2, 3), [torch.eye(3)])


@pytest.mark.parametrize(
    ("batch_size", "num", "message"), [(1, 2, "one image has no covariance"), (NUM, 1, "method.views.num is 1; FroSSL")]
)
def test_check_refuses_settings_without_a_covariance(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        FroSSL.check(setup_of(batch_size, **{"views.num": num}))
    FroSSL.check(setup_of(2))
