from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.nnbyol import NNBYOL
from raysl.nn.backbones.resnet import ResNet
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    words = [f"method.{name}={value}" for name, value in {"queue_size": 9, **fields}.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=8", "method.output_dim=5"]
    return Setup.of(load_config("digits/nnbyol", [*small, f"train.batch_size={batch_size}", *words]), NUM)


def small_nnbyol(**fields: Any) -> NNBYOL:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return NNBYOL(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def test_predictions_are_drawn_to_the_neighbours_of_the_targets() -> None:
    method, batch = small_nnbyol(), whole_batch()
    out = method(batch, STEP)
    total = 0.0
    views = batch.views["global"].unbind(dim=1)
    p = [method.predictor(method.projector(method.backbone(view))) for view in views]
    targets = [method.teacher(view) for view in views]
    for one, other in ((0, 1), (1, 0)):
        for n in range(NUM):
            row = targets[other][n]
            cosines = [float(row @ key) for key in method.queue.keys]
            neighbour = method.queue.keys[cosines.index(max(cosines))]
            neighbour = neighbour / neighbour.norm()  # the queue is filled in float32
            prediction = p[one][n] / p[one][n].norm()
            total += float((prediction - neighbour).square().sum()) / NUM
    assert out.loss.item() == pytest.approx(total, rel=1e-9)
    assert tuple(out.metrics) == NNBYOL.logged


def test_the_targets_of_first_views_enter_the_support_set() -> None:
    method, batch = small_nnbyol(), whole_batch()
    expected = method.teacher(batch.views["global"][:, 0])
    out = method(batch, STEP)
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.queue.keys[:NUM], torch.nn.functional.normalize(expected, dim=-1))
    assert method.queue.num_filled == NUM


def test_neighbours_get_no_gradient() -> None:
    method = small_nnbyol()
    method(whole_batch(), STEP).loss.backward()
    assert all(p.grad is None for p in method.teacher.parameters())
    assert not method.queue.keys.requires_grad


def test_a_support_set_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"method\.queue_size is 5 and train\.batch_size 6"):
        NNBYOL.check(setup_of(queue_size=5))
    NNBYOL.check(setup_of())
