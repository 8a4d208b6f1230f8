from typing import Any

import pytest
import torch
from lightly.loss import NegativeCosineSimilarity

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.fastsiam import FastSiam
from raysl.methods.simsiam import SimSiam
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(**fields: Any) -> Setup:
    mine = {"hidden_dims": "[8]", "output_dim": 5, "predictor_dim": 4, **fields}
    words = [f"method.{name}={value}" for name, value in mine.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", f"train.batch_size={NUM}"]
    return Setup.of(load_config("digits/fastsiam", [*small, *words]), NUM)


def small_fastsiam() -> FastSiam:
    torch.manual_seed(0)
    setup = setup_of()
    return FastSiam(setup, ResNet(setup.config.backbone)).double()


def whole_batch(num_views: int = 4) -> Batch:
    generator = torch.Generator().manual_seed(1)
    images = torch.randn(NUM, num_views, 3, 8, 8, dtype=torch.float64, generator=generator)
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_each_view_predicts_the_mean_of_the_others() -> None:
    method, batch = small_fastsiam(), whole_batch()
    out = method(batch, STEP)
    z = [method.projector(method.backbone(view)) for view in batch.views["global"].unbind(1)]
    p, total = [method.predictor(rows) for rows in z], 0.0
    for one in range(4):
        for n in range(NUM):
            target = torch.stack([z[other][n] for other in range(4) if other != one]).mean(dim=0)
            total -= (p[one][n] @ target / p[one][n].norm() / target.norm()).item() / NUM / 4
    assert out.loss.item() == pytest.approx(total, rel=1e-9)
    assert tuple(out.metrics) == FastSiam.logged


def test_the_loss_is_lightlys() -> None:
    method, batch = small_fastsiam(), whole_batch()
    z = torch.stack([method.projector(method.backbone(view)) for view in batch.views["global"].unbind(1)])
    criterion, numbers = NegativeCosineSimilarity(), torch.arange(4)
    terms = [criterion(method.predictor(z[n]), z[numbers != n].mean(dim=0)) for n in range(4)]
    assert method(batch, STEP).loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-9)


def test_with_two_views_it_is_simsiam_gradient_and_all() -> None:
    ours, batch = small_fastsiam(), whole_batch(2)
    theirs = SimSiam(ours.setup, ResNet(ours.setup.config.backbone)).double()
    theirs.load_state_dict(ours.state_dict())
    for method in (ours, theirs):
        method(batch, STEP).loss.backward()
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_a_single_view_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.views\.num is 1; FastSiam predicts a view from the others"):
        FastSiam.check(setup_of(**{"views.num": 1}))
    FastSiam.check(setup_of(**{"views.num": 2}))
