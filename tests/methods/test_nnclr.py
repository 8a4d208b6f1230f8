import math
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.nnclr import NNCLR
from raysl.nn.backbones.resnet import ResNet
from raysl.optim.course import peak_lr
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
SHARES = [4, 2]


def setup_of(**fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "train.batch_size=6"]
    sizes = {"method.hidden_dims": "[16]", "method.output_dim": 8, "method.predictor_dim": 12, "method.queue_size": 9}
    words = [f"{name}={value}" for name, value in {**sizes, **fields}.items()]
    return Setup.of(load_config("digits/nnclr", [*small, *words]), 6)


def small_nnclr(**fields: Any) -> NNCLR:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return NNCLR(setup, ResNet(setup.config.backbone)).double()


def whole_batch() -> Batch:
    images = torch.randn(6, 2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(6), torch.full((6,), -1))


def nearest(z: Tensor, keys: Tensor) -> Tensor:
    """By distance, row after row."""
    z = z / z.norm()
    return min(keys, key=lambda key: (z - key).square().sum())


def test_loss_is_equation_3_for_the_neighbours_of_both_views() -> None:
    method, batch = small_nnclr(**{"method.temperature": 0.3}), whole_batch()
    out = method(batch, STEP)
    z = [method.projector(method.backbone(batch.views["global"][:, view])) for view in (0, 1)]
    p = [F.normalize(method.predictor(rows), dim=1) for rows in z]
    terms, hits = [], 0
    for here, there in ((0, 1), (1, 0)):
        for row in range(6):
            neighbor = nearest(z[here][row], method.queue.keys)
            weights = [math.exp(float(neighbor @ other) / 0.3) for other in p[there]]
            terms.append(-math.log(weights[row] / sum(weights)))
            hits += weights[row] == max(weights)
    cosines = [F.cosine_similarity(rows, nearest(rows, method.queue.keys), dim=0).item() for rows in z[0]]
    assert out.loss.item() == pytest.approx(sum(terms) / 12, rel=1e-9)
    assert out.metrics["contrastive_top1"].item() == pytest.approx(100 * hits / 12)
    assert out.metrics["neighbor_cosine"].item() == pytest.approx(sum(cosines) / 6)
    assert tuple(out.metrics) == NNCLR.logged


def test_no_gradient_flows_through_the_neighbours() -> None:
    """The one view's embedding gets its gradient through its own prediction alone."""
    method, batch = small_nnclr(), whole_batch()
    with torch.no_grad():
        method.predictor[-1].weight.zero_()
    method(batch, STEP).loss.backward()
    assert all(p.grad is None or p.grad.abs().max() < 1e-15 for p in method.projector.parameters())
    assert method.predictor[-1].bias.grad.abs().max() > 0


def loss_here() -> tuple[float, int]:
    method, batch = small_nnclr(**{"train.sync_bn": "false"}).eval(), whole_batch()
    first = sum(SHARES[: dist.rank()])
    mine = batch.map(lambda rows: rows[first : first + SHARES[dist.rank()]])
    with dist.planned_rows(SHARES):
        return method(mine, STEP).loss.item(), len(mine.index)


def test_negatives_are_the_predictions_of_all_ranks(run_ranks: RunRanks) -> None:
    found = run_ranks(2, loss_here)
    assert [rows for _, rows in found] == SHARES
    whole = small_nnclr().eval()(whole_batch(), STEP).loss.item()
    assert sum(loss * rows for loss, rows in found) / 6 == pytest.approx(whole, rel=1e-9)


def test_the_first_views_enter_the_support_set_after_the_update() -> None:
    method, batch = small_nnclr(), whole_batch()
    before = method.queue.keys.clone()
    out = method(batch, STEP)
    z = F.normalize(method.projector(method.backbone(batch.views["global"][:, 0])), dim=1)
    assert torch.equal(method.queue.keys, before)
    method.after_update(STEP, batch, out.carry)
    torch.testing.assert_close(method.queue.keys, torch.cat([z, before[6:]]))


def test_once_queued_an_image_finds_itself() -> None:
    """Why the support set is to hold more than the newest batch."""
    method, batch = small_nnclr(), whole_batch()
    method.after_update(STEP, batch, method(batch, STEP).carry)
    assert method(batch, STEP).metrics["neighbor_cosine"].item() == pytest.approx(1.0)


def test_projections_and_predictions_end_as_the_papers() -> None:
    method = small_nnclr(**{"method.hidden_dims": "[16,16]"})
    kinds = [type(layer).__name__ for layer in method.projector]
    assert kinds == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert method.projector[-1].affine
    assert [type(layer).__name__ for layer in method.predictor] == ["Linear", "BatchNorm1d", "ReLU", "Linear"]


@pytest.mark.parametrize("temperature", [1e-4, 1e4])
def test_loss_and_gradient_are_finite_at_extremes(temperature: float) -> None:
    method = small_nnclr(**{"method.temperature": temperature})
    out = method(whole_batch().map(lambda rows: torch.zeros_like(rows)), STEP)
    out.loss.backward()
    assert out.loss.isfinite()
    assert all(p.grad is None or p.grad.isfinite().all() for p in method.parameters())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 3}, "method.views.num is 3; NNCLR contrasts two views: set it to 2"),
        ({"train.batch_size": 1}, "train.batch_size is 1; NNCLR contrasts images"),
        ({"method.queue_size": 5}, "method.queue_size is 5 and train.batch_size 6: embeddings would leave before"),
    ],
)
def test_check_refuses_settings_that_cannot_work(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        NNCLR.check(setup_of(**fields))


def test_settings_are_the_papers() -> None:
    config = load_config("nnclr", ["data.path=/images"])
    NNCLR.check(Setup.of(config, 1_281_167, 1000))
    method, optim = config.method, config.optim
    assert (method.temperature, method.queue_size) == (0.1, 98304)
    assert (method.hidden_dims, method.output_dim, method.predictor_dim) == ((2048, 2048), 256, 4096)
    assert (optim.name, peak_lr(optim, 4096), str(optim.warmup)) == ("lars", pytest.approx(4.8), "10ep")
