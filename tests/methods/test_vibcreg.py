from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import vibcreg
from raysl.methods.vibcreg import VIbCReg
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.iter_norm import IterNorm
from raysl.nn.moments import covariances
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in {"dim": 8, "num_groups": 2, **fields}.items()]
    small = ["backbone.num_stages=2", "backbone.width=4"]
    return Setup.of(load_config("digits/vibcreg", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_vibcreg(**fields: Any) -> VIbCReg:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return VIbCReg(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_covariances_are_those_of_dimensions_of_one_scale() -> None:
    z = torch.randn(9, 2, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    out, scaled = (vibcreg(rows, covariances(rows)) for rows in (z, z * torch.tensor([1.0, 5.0, 0.2, 3.0])))
    assert scaled.covariance.item() == pytest.approx(out.covariance.item(), rel=1e-9)
    expected = 0.0
    for view in z.unbind(dim=1):
        correlations = torch.corrcoef(view.T) - torch.eye(4, dtype=torch.float64)
        expected += correlations.square().mean().item()
    assert out.covariance.item() == pytest.approx(expected, rel=1e-9)
    terms = 25 * out.invariance + 25 * out.variance + 200 * out.covariance
    assert out.loss.item() == pytest.approx(terms.item(), rel=1e-9)


def test_embeddings_are_whitened_where_that_is_not_left_out() -> None:
    assert isinstance(small_vibcreg().expander[-1], IterNorm)
    assert not isinstance(small_vibcreg(num_groups="null").expander[-1], IterNorm)
    out = small_vibcreg()(whole_batch(), STEP)
    assert tuple(out.metrics) == VIbCReg.logged


def test_embeddings_that_are_one_have_a_finite_gradient() -> None:
    method = small_vibcreg(num_groups="null")
    out = method(whole_batch().map(torch.zeros_like), STEP)
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


def test_check_refuses_groups_of_unequal_size_and_what_vicreg_does() -> None:
    with pytest.raises(ConfigError, match=r"method\.num_groups is 3, which does not divide method\.dim 8"):
        VIbCReg.check(setup_of(num_groups=3))
    with pytest.raises(ConfigError, match="one image has no variance"):
        VIbCReg.check(setup_of(1))
    VIbCReg.check(setup_of(2))
