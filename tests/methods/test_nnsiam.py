from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.nnsiam import NNSiam
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(**fields: Any) -> Setup:
    mine = {"queue_size": 9, "hidden_dims": "[8]", "output_dim": 5, "predictor_dim": 4, **fields}
    words = [f"method.{name}={value}" for name, value in mine.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", f"train.batch_size={NUM}"]
    return Setup.of(load_config("digits/nnsiam", [*small, *words]), NUM)


def small_nnsiam(**fields: Any) -> NNSiam:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return NNSiam(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_predictions_are_drawn_to_the_neighbours_of_the_other_views_projections() -> None:
    method, batch = small_nnsiam(), whole_batch()
    out = method(batch, STEP)
    z = [method.projector(method.backbone(view)) for view in batch.views["global"].unbind(1)]
    p, total = [method.predictor(rows) for rows in z], 0.0
    for one, other in ((0, 1), (1, 0)):
        for n in range(NUM):
            cosines = torch.stack([z[other][n] @ key for key in method.queue.keys])
            neighbour, prediction = method.queue.keys[cosines.argmax()], p[one][n]
            total -= (prediction @ neighbour / prediction.norm() / neighbour.norm()).item() / NUM / 2
    assert out.loss.item() == pytest.approx(total, rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(-total)
    assert tuple(out.metrics) == NNSiam.logged


def test_the_projections_of_first_views_enter_the_support_set() -> None:
    method, batch = small_nnsiam(), whole_batch()
    expected = method.projector(method.backbone(batch.views["global"][:, 0]))
    method.after_update(STEP, batch, method(batch, STEP).carry)
    torch.testing.assert_close(method.queue.keys[:NUM], torch.nn.functional.normalize(expected.detach(), dim=-1))
    assert method.queue.num_filled == NUM


def test_neighbours_get_no_gradient_and_the_predictor_keeps_its_rate() -> None:
    method = small_nnsiam()
    method(whole_batch(), STEP).loss.backward()
    assert not method.queue.keys.requires_grad
    predictor = {id(parameter) for parameter in method.predictor.parameters()}
    for group in method.param_groups(method.setup.config.optim):
        assert {id(parameter) in predictor for parameter in group["params"]} == {group["is_lr_constant"]}


def test_a_support_set_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.queue_size is 5 and train\.batch_size 6"):
        NNSiam.check(setup_of(queue_size=5))
    NNSiam.check(setup_of())
