"""A batch gone through in parts has the gradient of the whole one, or that of the same parts on other ranks."""

from typing import Any

import pytest
import torch

from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.errors import ConfigError
from raysl.methods.method import StepOutput
from raysl.plan.plan import TrainPlan
from raysl.train.gradients import backward_in_parts
from tests.methods.properties import exact_steps
from tests.rank_processes import RunRanks

PARTS = "train.accumulate=2"
BY_IMAGE = ("mae", "ibot")
"""Methods whose loss is a mean over images, which takes nothing from others: iBOT's head here has no statistics."""
BY_BATCH = ("simclr", "swav", "moco")
"""Methods that compare the images of a batch, or normalise over them."""
WORDS = {"ibot": ("method.head.norm=false",)}


def assert_equal_steps(found: dict[str, Any], expected: dict[str, Any]) -> None:
    for grads, wanted in zip(found["grads"], expected["grads"], strict=True):
        most = max(float(value.abs().max()) for value in wanted.values())
        assert grads.keys() == wanted.keys()
        for name, value in grads.items():
            torch.testing.assert_close(value, wanted[name], rtol=0, atol=1e-9 * most, msg=name)
    for name, value in found["ended"].items():
        torch.testing.assert_close(value, expected["ended"][name], rtol=0, atol=1e-7, msg=name)


@pytest.mark.thorough
@pytest.mark.parametrize("name", BY_IMAGE)
def test_parts_add_up_to_the_batch_where_images_are_alone(name: str) -> None:
    words = WORDS.get(name, ())
    assert_equal_steps(exact_steps(name, PARTS, *words), exact_steps(name, *words))


def in_parts() -> dict[str, Any]:
    return {name: exact_steps(name, PARTS, *WORDS.get(name, ())) for name in (*BY_IMAGE, *BY_BATCH)}


def test_parts_are_the_same_on_any_number_of_ranks(run_ranks: RunRanks) -> None:
    alone = in_parts()
    for found in run_ranks(2, in_parts, timeout=240.0):
        for name, expected in alone.items():
            assert_equal_steps(found[name], expected)


def plan_of(*words: str, world: int = 1) -> TrainPlan:
    config = load_config("quickstart", ["train.batch_size=12", "data.lanes=6", *words])
    return TrainPlan.from_config(config, num_samples=100, world=world)


def test_parts_are_lanes_in_turn() -> None:
    alone, first, second = plan_of(PARTS).step(0), plan_of(PARTS, world=2), plan_of(PARTS, world=2)
    assert plan_of(PARTS).parts(alone, 0) == [(0, 1, 4, 5, 8, 9), (2, 3, 6, 7, 10, 11)]
    assert first.parts(alone, 0) == [(0, 1, 4, 5), (2, 3)]
    assert second.parts(alone, 1) == [(2, 3), (0, 1, 4, 5)]
    assert first.part_shares(alone) == [[4, 2], [2, 4]]
    assert (plan_of(PARTS).least_rows, plan_of().least_rows) == (6, 12)


@pytest.mark.parametrize(
    ("words", "world", "message"),
    [
        (["train.accumulate=7"], 1, r"train.accumulate=7 leaves 0 images of a batch of 12 to one of 1 worker"),
        (["train.accumulate=4"], 2, r"leaves 0 images of a batch of 12 to one of 2 workers in a part"),
        (
            ["train.accumulate=3", "data.drop_last=false"],
            2,
            r"leaves 0 images of the last batch, of 4, to one of 2",
        ),
    ],
)
def test_parts_with_too_few_images_are_refused(words: list[str], world: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(*words, world=world)


class Carrying(torch.nn.Module):
    """Gives back the rows that it saw, and one number more where it is asked to."""

    def __init__(self, extra: bool = False) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(()))
        self.extra = extra

    def forward(self, batch: Batch, step: Any) -> StepOutput:
        values = batch.views["global"].flatten()
        carry = {"index": batch.index, **({"total": values.sum()[None]} if self.extra else {})}
        return StepOutput((self.scale * values).mean(), {"mean": values.mean()}, carry)


def test_loss_metrics_and_carry_are_those_of_the_batch() -> None:
    plan, model = plan_of(PARTS), Carrying()
    batch = Batch({"global": torch.arange(12.0).view(12, 1)}, torch.arange(12), torch.full((12,), -1))
    out = backward_in_parts(model, batch, plan, plan.step(0), torch.amp.GradScaler(enabled=False))
    assert model.scale.grad is not None
    assert (out.loss.item(), out.metrics["mean"].item(), model.scale.grad.item()) == (5.5, 5.5, 5.5)
    assert out.carry["index"].tolist() == list(range(12))
    assert not out.loss.requires_grad
    with pytest.raises(ValueError, match=r"carries 'total', which has no row for each image: set train\.accumulate=1"):
        backward_in_parts(Carrying(extra=True), batch, plan, plan.step(0), torch.amp.GradScaler(enabled=False))
