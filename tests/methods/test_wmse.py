from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pytest
import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.wmse import WMSE, distance, whitened
from raysl.nn.backbones.resnet import ResNet
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.plan.setup import Setup
from raysl.schedule import Step
from tests.rank_processes import RunRanks

STEP = Step(0, 10, 5)
SHARES = {1: [11], 2: [7, 4], 3: [4, 3, 4]}


def setup_of(num_samples: int = 12, **fields: Any) -> Setup:
    small = ["backbone.num_stages=2", "backbone.width=4", "method.hidden_dim=16"]
    mine = {"method.output_dim": 3, "method.sub_batch": 5, "train.batch_size": 11, **fields}
    words = [f"{name}={value}" for name, value in mine.items()]
    return Setup.of(load_config("digits/wmse", [*small, *words]), num_samples)


def small_wmse(**fields: Any) -> WMSE:
    torch.manual_seed(0)
    setup = setup_of(**fields)
    return WMSE(setup, ResNet(setup.config.backbone)).double()


def whole_batch(views: int = 2) -> Batch:
    images = torch.randn(11, views, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return Batch({"global": images}, torch.arange(11), torch.full((11,), -1), seed=3, step=2)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_whitening(v: Tensor) -> Tensor:
    """Gram and Schmidt's way to Cholesky's factor: each dimension without what the ones before it tell of it."""
    rows = v - v.mean(dim=0)
    columns: list[Tensor] = []
    for column in rows.T:
        rest = column - sum(((column @ other) / (other @ other) * other for other in columns), torch.zeros_like(column))
        columns.append(rest)
    return torch.stack([column / (column @ column / (len(v) - 1)).sqrt() for column in columns], dim=1)


def slow_loss(v: Tensor, groups: Sequence[Sequence[int]]) -> float:
    """The mean distance of section 3: sub-batch by sub-batch, pair by pair."""
    terms = []
    for group in groups:
        views = [slow_whitening(v[list(group), view]) for view in range(v.shape[1])]
        for first, second in combinations(views, 2):
            for a, b in zip(first, second, strict=True):
                terms.append((a / a.norm() - b / b.norm()).square().sum().item())
    return sum(terms) / len(terms)


def test_whitened_views_have_mean_0_and_covariance_1() -> None:
    z = whitened(numbers(9, 2, 3) @ numbers(3, 3, seed=1) + 5)
    assert z.mean(dim=0).abs().max() < 1e-12
    for view in z.unbind(dim=1):
        torch.testing.assert_close(view.T @ view / 8, torch.eye(3, dtype=torch.float64), rtol=0, atol=1e-10)


def test_whitening_is_cholesky_s() -> None:
    v = numbers(9, 2, 3)
    expected = torch.stack([slow_whitening(view) for view in v.unbind(dim=1)], dim=1)
    torch.testing.assert_close(whitened(v), expected, rtol=1e-9, atol=1e-12)


def test_embeddings_that_have_become_one_give_nan_and_with_eps_do_not() -> None:
    v = torch.ones(9, 2, 3, dtype=torch.float64)
    assert whitened(v).isnan().any()
    assert whitened(v, eps=0.01).abs().max() == 0
    few = numbers(2, 2, 3)
    assert whitened(few, eps=0.01).isfinite().all()


@pytest.mark.parametrize("views", [2, 4])
def test_loss_is_the_distance_of_whitened_pairs_by_sub_batches(views: int) -> None:
    method, batch = small_wmse(**{"method.whitenings": 2, "method.views.num": views}), whole_batch(views)
    out = method(batch, STEP)
    h = torch.stack([method.backbone(view) for view in batch.views["global"].unbind(dim=1)], dim=1)  # [11, V, H]
    v = method.projector(h.flatten(0, 1)).unflatten(0, (11, views))
    draw = batch.shared("wmse.sub_batches")
    orders = [draw.permutation(11)[0].tolist() for _ in range(2)]
    assert orders[0] != orders[1]
    expected = sum(slow_loss(v, (order[:6], order[6:])) for order in orders) / 2  # 11 images in parts of 5 or more
    assert out.loss.item() == pytest.approx(expected, rel=1e-9)
    assert out.metrics["agreement"].item() == pytest.approx(1 - expected / 2, rel=1e-9)
    assert tuple(out.metrics) == WMSE.logged


def test_distance_is_0_for_equal_views_and_4_for_opposite_ones() -> None:
    z = numbers(5, 1, 3)
    assert distance(torch.cat([z, 2 * z], dim=1)).item() == pytest.approx(0, abs=1e-12)
    assert distance(torch.cat([z, -z], dim=1)).item() == pytest.approx(4)


def loss_and_gradient() -> tuple[Tensor, Tensor]:
    method, shares = small_wmse(), SHARES[dist.world()]
    first, own = sum(shares[: dist.rank()]), shares[dist.rank()]
    mine = whole_batch().map(lambda rows: rows[first : first + own])
    method = convert_sync_batch_norm(method)
    with dist.planned_rows(shares):
        out = method(mine, STEP)
        (out.loss * own / 11).backward()  # what the loop and DDP make of it, less the mean over ranks
        gradient = dist.all_sum(method.projector[-1].weight.grad)
    return out.loss.detach(), gradient


@pytest.mark.parametrize("world", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_sub_batches_are_the_same_on_any_number_of_ranks(world: int, run_ranks: RunRanks) -> None:
    loss, gradient = loss_and_gradient()
    for many, found in run_ranks(world, loss_and_gradient):
        torch.testing.assert_close(many, loss, rtol=1e-9, atol=0)
        torch.testing.assert_close(found, gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method.views.num": 1}, "method.views.num is 1; W-MSE pulls views"),
        ({"method.sub_batch": 3}, "method.sub_batch is 3 and method.output_dim 3: .* set method.sub_batch=6, or"),
        ({"method.output_dim": 11, "method.sub_batch": 22}, "train.batch_size is 11 and .* train.batch_size=22 or"),
        ({"train.batch_size": 1, "method.eps": 0.001}, "train.batch_size is 1 and .* train.batch_size=6 or more"),
        ({"train.batch_size": 10, "data.drop_last": "false"}, "epoch has 2 images and .* set data.drop_last=true, or"),
    ],
)
def test_check_refuses_what_cannot_be_whitened(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WMSE.check(setup_of(**fields))


@pytest.mark.thorough
def test_check_accepts_what_can() -> None:
    WMSE.check(setup_of())
    WMSE.check(setup_of(**{"method.sub_batch": 3, "method.eps": 0.001}))
    for name in ("wmse", "cifar10/wmse"):
        WMSE.check(Setup.of(load_config(name, ["data.path=/images"]), 50_000, 10))


def test_settings_are_the_papers() -> None:
    method = WMSE.Config()
    assert (method.hidden_dim, method.output_dim, method.sub_batch, method.whitenings, method.eps) == (
        1024,
        64,
        128,
        1,
        0,
    )
    assert load_config("wmse", ["data.path=/images"]).method.views.num == 4
