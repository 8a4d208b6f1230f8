from typing import Any

import pytest
import torch
from lightly.loss.emp_ssl_loss import EMPSSLLoss
from torch.nn import functional as F

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.losses import coding_rate
from raysl.methods.emp_ssl import EMPSSL
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM, PATCHES = 6, 4


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in fields.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/emp_ssl", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_emp_ssl(**fields: Any) -> EMPSSL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return EMPSSL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, PATCHES, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_loss_is_equation_3_turned_and_its_terms_are_lightlys() -> None:
    method, batch = small_emp_ssl(invariance=7.0, eps=0.3), whole_batch()
    out = method(batch, STEP)
    h = method.backbone(batch.views["global"].flatten(0, 1))
    z = F.normalize(method.projector(h), dim=-1).view(NUM, PATCHES, -1).detach()
    rates, cosines = [], []
    for patch in range(PATCHES):
        matrix = torch.eye(5, dtype=torch.float64)
        for row in z[:, patch]:
            matrix = matrix + 5 / (NUM * 0.3) * torch.outer(row, row)
        rates.append(float(torch.linalg.slogdet(matrix).logabsdet) / 2)
        cosines += [float(F.cosine_similarity(z[n, patch], z[n].mean(dim=0), dim=0)) for n in range(NUM)]
    rate, agreement = sum(rates) / PATCHES, sum(cosines) / len(cosines)
    assert out.metrics["coding_rate"].item() == pytest.approx(rate, rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(agreement, rel=1e-9)
    assert out.loss.item() == pytest.approx(-rate - 7 * agreement, rel=1e-9)
    theirs = EMPSSLLoss(tcr_eps=0.3, inv_coef=7.0)(list(z.unbind(dim=1)))
    assert theirs.item() == pytest.approx(
        rate - 7 * agreement, rel=1e-6
    )  # lightly lowers the rate, and has float32 ones
    assert tuple(out.metrics) == EMPSSL.logged


def test_the_rate_is_larger_where_rows_differ() -> None:
    same, apart = torch.tensor([[4.0, 0.0], [0.0, 0.0]]), 2 * torch.eye(2)
    assert coding_rate(apart, 4) > coding_rate(same, 4) > 0


def test_embeddings_that_are_one_have_a_finite_gradient() -> None:
    method = small_emp_ssl()
    out = method(whole_batch().map(torch.zeros_like), STEP)
    out.loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.thorough
def test_patches_have_one_area_and_shape() -> None:
    views = load_config("emp_ssl", ["data.path=/images"]).method.views.recipe().groups["global"]
    assert len(views) == 100
    assert {(view.crop.scale, view.crop.ratio, view.size) for view in views} == {((0.25, 0.25), (1.0, 1.0), 224)}


@pytest.mark.parametrize(
    ("batch_size", "num", "message"), [(1, 2, "one image fills no volume"), (NUM, 1, "method.views.num is 1; EMP-SSL")]
)
def test_check_refuses_settings_without_a_volume(batch_size: int, num: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EMPSSL.check(setup_of(batch_size, **{"views.num": num}))
    EMPSSL.check(setup_of(2))
