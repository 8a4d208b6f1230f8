"""Clipping by norm equals a loop over the tensors whose norm it is."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.plan.plan import ClipOver
from raysl.train import LocalReporter, fit
from raysl.train.gradients import clip_norm
from tests.optim.probe import Probe
from tests.rank_processes import RunRanks
from tests.train.problem import batches, problem

MOST = 2.0


def filled() -> Probe:
    """Gradients of which some are shorter than `MOST`, and one is not there."""
    method = Probe()
    method.extra = nn.Parameter(torch.zeros(3))  # of no part
    method.fill_gradients(0)
    method.backbone.layer.bias.grad *= 0.01
    method.head.bias.grad = None
    return method


def by_hand(grads: dict[str, Tensor], over: ClipOver) -> dict[str, Tensor]:
    clipped = {}
    for name, grad in grads.items():
        part = {"model": "", "part": name.partition(".")[0], "tensor": name}[over]
        together = [value for other, value in grads.items() if other.startswith(part)]
        norm = sum(float(value.square().sum()) for value in together) ** 0.5
        clipped[name] = grad * min(1.0, MOST / norm)
    return clipped


def gradients(method: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in method.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("over", ["model", "part", "tensor"])
def test_gradients_are_scaled_by_the_norm_of_what_they_belong_to(over: ClipOver) -> None:
    method = filled()
    before = gradients(method)
    clip_norm(method, MOST, over)
    after, expected = gradients(method), by_hand(before, over)
    assert after.keys() == expected.keys()
    for name, grad in expected.items():
        torch.testing.assert_close(after[name], grad, rtol=1e-5, atol=1e-8, msg=name)
    if over == "tensor":
        assert torch.equal(after["backbone.layer.bias"], before["backbone.layer.bias"])  # short ones stay
        assert max(grad.norm() for grad in after.values()) == pytest.approx(MOST, rel=1e-5)


def test_without_gradients_nothing_is_clipped() -> None:
    method = Probe()
    for over in ("model", "part", "tensor"):
        clip_norm(method, MOST, over)
    assert gradients(method) == {}


def test_the_loop_clips_over_what_the_settings_say() -> None:
    state, plan = problem(
        "train.clip_grad=1e-4", "train.clip_grad_over=tensor", "train.epochs=1", "train.batch_size=48"
    )
    seen: list[dict[str, Tensor]] = []

    def look(*_: Any) -> None:
        seen.append(gradients(state.method))

    state.optimizer.register_step_pre_hook(look)
    fit(state, state.method, plan, batches(plan, num=1), reporter=LocalReporter())
    lengths = [float(grad.norm()) for grad in seen[0].values()]
    assert max(lengths) == pytest.approx(1e-4, rel=1e-2)
    assert sum(length > 0.9e-4 for length in lengths) > 1  # each by itself


def updated(over: ClipOver) -> dict[str, Tensor]:
    """Weights after 8 updates by clipped gradients, in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        state, plan = problem("train.clip_grad=1e-2", f"train.clip_grad_over={over}", "data.lanes=4")
        rows = [batch.map(lambda values: values.double() if values.is_floating_point() else values) for batch in
                batches(plan)]  # fmt: skip
        fit(state, dist.data_parallel(state.method), plan, rows, reporter=LocalReporter())
    finally:
        torch.set_default_dtype(torch.float32)
    return {name: value.detach().clone() for name, value in state.method.named_parameters()}


def test_two_ranks_make_the_clipped_updates_of_one(run_ranks: RunRanks) -> None:
    alone = updated("tensor")
    for rank in run_ranks(2, updated, "tensor"):
        for name, value in alone.items():
            torch.testing.assert_close(rank[name], value, rtol=0, atol=1e-9, msg=name)
    assert any(not torch.allclose(value, alone[name]) for name, value in updated("model").items())
