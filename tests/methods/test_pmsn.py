import math
from typing import Any

import pytest
import torch
from lightly.loss import PMSNLoss
from torch import Tensor
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.errors import ConfigError
from raysl.methods.msn import MSN
from raysl.methods.pmsn import PMSN
from raysl.nn.backbones.vit import ViT
from raysl.plan.setup import Setup
from tests.methods.test_msn import SMALL, at, whole_batch


def small(name: str = "pmsn", **fields: Any) -> MSN:
    torch.manual_seed(0)
    words = [*SMALL, *(f"method.{field}={value}" for field, value in fields.items())]
    setup = Setup.of(load_config(f"digits/{name}", words), 12)
    method: MSN = (PMSN if name == "pmsn" else MSN)(setup, ViT(setup.config.backbone))
    return method.double()


def means(seed: int = 3) -> Tensor:
    return torch.softmax(torch.randn(5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)), dim=0)


def away(method: MSN, mean: Tensor) -> Tensor:
    return method._away_from_prior(mean, -(mean * mean.log()).sum())


@pytest.mark.thorough
@pytest.mark.parametrize("exponent", [0, 0.25, 2])
def test_the_divergence_is_that_of_the_mean_from_shares_of_a_power_law(exponent: float) -> None:
    shares = [k**-exponent for k in range(1, 6)]
    prior = [share / sum(shares) for share in shares]
    mean = means()
    expected = sum(p * math.log(p / q) for p, q in zip(mean.tolist(), prior, strict=True))
    found = away(small(prior_exponent=exponent), mean).item()
    assert found == pytest.approx(expected, rel=1e-12)
    at_prior = away(small(prior_exponent=exponent), torch.tensor(prior, dtype=torch.float64)).item()
    assert at_prior == pytest.approx(0, abs=1e-12)
    assert found > 1e-3


def test_lightlys_divergence_has_the_two_sides_exchanged() -> None:
    mean = means()
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        peer = PMSNLoss(power_law_exponent=0.25)
        theirs = peer.regularization_loss(mean)
        prior = torch.arange(1, 6).double() ** -0.25
        exchanged = F.kl_div((prior / prior.sum()).log(), mean, reduction="sum")
    finally:
        torch.set_default_dtype(before)
    torch.testing.assert_close(away(small(), mean), exchanged, rtol=1e-9, atol=0)
    assert abs(theirs - exchanged) > 1e-3


def test_with_an_even_prior_and_balanced_assignments_the_loss_is_that_of_msn() -> None:
    batch = whole_batch()
    ours = small(prior_exponent=0, sinkhorn_iters=3, entropy_weight=0.7)
    msn = small("msn", sinkhorn_iters=3, entropy_weight=0.7)
    expected, found = (method(batch, at(0)).loss for method in (msn, ours))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)
    other = small(prior_exponent=1, sinkhorn_iters=3, entropy_weight=0.7)(batch, at(0)).loss
    assert abs(other - expected) > 1e-4


@pytest.mark.thorough
def test_minimising_the_divergence_ends_at_the_power_law() -> None:
    method = small(prior_exponent=1)
    scores = torch.zeros(5, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([scores], lr=2.0)
    for _ in range(500):
        optimizer.zero_grad()
        away(method, torch.softmax(scores, dim=0)).backward()
        optimizer.step()
    assert (torch.softmax(scores, dim=0) * torch.arange(1, 6)).tolist() == pytest.approx([60 / 137] * 5, rel=1e-6)


def test_settings_are_the_papers() -> None:
    config = PMSN.Config()
    assert (config.prior_exponent, config.sinkhorn_iters, config.temperature, config.prototypes) == (0.25, 0, 0.1, 1024)
    assert load_config("pmsn", ["data.path=/images"]).method.prior_exponent == 0.25


def test_an_exponent_outside_its_range_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prior_exponent"):
        load_config("digits/pmsn", ["method.prior_exponent=-1"])
