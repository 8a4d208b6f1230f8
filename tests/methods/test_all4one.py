from typing import Any

import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.all4one import All4One, feature_loss
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.build import build_optimizer
from raysl.plan.setup import Setup
from raysl.schedule import Step

STEP = Step(0, 10, 5)
NUM = 6


def setup_of(batch_size: int = NUM, **fields: Any) -> Setup:
    mine = {
        "queue_size": 9,
        "hidden_dim": 8,
        "output_dim": 6,
        "heads": 2,
        "predictor_dim": 8,
        "num_neighbors": 3,
        **fields,
    }
    words = [f"method.{name}={value}" for name, value in mine.items()]
    small = ["backbone.num_stages=2", "backbone.width=4", f"train.batch_size={batch_size}"]
    return Setup.of(load_config("digits/all4one", [*small, *words]), NUM)


def small_all4one(**fields: Any) -> All4One:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return All4One(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(NUM, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(NUM), torch.full((NUM,), -1))


def unit(row: Tensor) -> Tensor:
    return row / row.norm()


def picks(rows: Tensor, everyone: Tensor, temperature: float) -> float:
    total = 0.0
    for n, row in enumerate(rows):
        scores = torch.stack([unit(row) @ unit(other) for other in everyone]) / temperature
        total += (scores.logsumexp(dim=0) - scores[n]).item() / len(rows)
    return total


def features(z: list[Tensor], targets: list[Tensor]) -> float:
    own, others, width = 0.0, 0.0, z[0].shape[1]
    for n in (0, 1):
        for i in range(width):
            for j in range(width):
                cosine = (unit(targets[n][:, i]) @ unit(z[1 - n][:, j])).item()
                if i == j:
                    own += (cosine - 1) ** 2 / width / 2
                else:
                    others += cosine**2 / (width * (width - 1)) / 2
    return own**0.5 / 2 + others**0.5 / 2


def test_the_loss_is_half_the_sum_of_the_three_objectives() -> None:
    method, batch = small_all4one(dropout=0.0), whole_batch()
    out = method(batch, STEP)
    views = batch.views["global"].unbind(1)
    z = [method.projector(method.backbone(view)) for view in views]
    p, q = [method.predictor(rows) for rows in z], [method.centroid_predictor(rows) for rows in z]
    targets = [torch.stack([unit(row) for row in method.teacher(view)]) for view in views]
    near = [
        torch.stack([method.queue.keys[(method.queue.keys @ row).argsort(descending=True)[:3]] for row in t])
        for t in targets
    ]
    centroid, neighbor = 0.0, 0.0
    for one, other in ((0, 1), (1, 0)):
        whole = method.encoder(near[one] + method.positions)[:, 0]
        replaced = torch.stack([torch.stack([q[other][n], *near[other][n][:2]]) for n in range(NUM)])
        mixed = method.encoder(replaced + method.positions)[:, 0]
        centroid += picks(whole, mixed, 0.1) / 2
        neighbor += picks(near[one][:, 0], p[other], 0.2) / 2
    assert out.metrics["centroid_loss"].item() == pytest.approx(centroid, rel=1e-9)
    assert out.metrics["neighbor_loss"].item() == pytest.approx(neighbor, rel=1e-9)
    assert out.metrics["feature_loss"].item() == pytest.approx(10 * features(z, targets), rel=1e-9)
    assert out.loss.item() == pytest.approx((centroid + neighbor + 10 * features(z, targets)) / 2, rel=1e-9)
    assert tuple(out.metrics) == All4One.logged


def test_the_feature_objective_is_0_for_equal_views_without_correlations_and_1_for_opposite_ones() -> None:
    z = torch.eye(4, dtype=torch.float64)[:, None].expand(4, 2, 4)
    assert feature_loss(z, z).item() == pytest.approx(0.0)
    assert feature_loss(z, -z).item() == pytest.approx(1.0)
    same = torch.ones(4, 2, 4, dtype=torch.float64)
    assert feature_loss(same, same).item() == pytest.approx(0.5)


def test_the_teachers_embeddings_of_first_views_enter_the_queue_and_it_follows() -> None:
    method, batch = small_all4one(momentum=0.5), whole_batch()
    expected, slow = method.teacher(batch.views["global"][:, 0]), next(method.teacher.parameters()).clone()
    out = method(batch, STEP)
    with torch.no_grad():
        next(method.backbone.parameters()).add_(1.0)
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.queue.keys[:NUM], torch.nn.functional.normalize(expected, dim=-1))
    torch.testing.assert_close(next(method.teacher.parameters()), slow + 0.5)


@pytest.mark.thorough
def test_dropout_is_that_of_the_sample() -> None:
    method, batch = small_all4one(dropout=0.5), whole_batch()
    first = method(batch, STEP).metrics["centroid_loss"]
    torch.manual_seed(5)
    assert torch.equal(method(batch, STEP).metrics["centroid_loss"], first)
    assert not torch.equal(small_all4one(dropout=0.0)(batch, STEP).metrics["centroid_loss"], first)


def test_self_attention_has_a_tenth_of_the_learning_rate() -> None:
    method = small_all4one()
    optimizer = build_optimizer(method, method.setup.config.optim)
    encoder = {id(parameter) for parameter in method.encoder.parameters()}
    for group in optimizer.param_groups:
        assert {id(parameter) in encoder for parameter in group["params"]} == {group["lr_scale"] == 0.1}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"queue_size": 5}, r"method\.queue_size is 5 and train\.batch_size 6"),
        ({"num_neighbors": 10}, r"method\.num_neighbors is 10 of a queue of 9"),
        ({"heads": 4}, r"method\.output_dim is 6, not a multiple of method\.heads 4; give 8"),
        ({"momentum": 0.9, "final_momentum": 0.5}, r"the teacher must slow down; give 0\.9 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        All4One.check(setup_of(**fields))
    All4One.check(setup_of())
