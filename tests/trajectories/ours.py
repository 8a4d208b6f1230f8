"""A method trained by raysl's own loop for some steps of plain SGD in float64, with all that another implementation
needs to take the same steps: the initial method, the batches, the clock."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from raysl.train.state import TrainState
from tests.methods.properties import InFloat64, small

STEPS = 8
LR = 0.05
MOMENTUM = 0.9
PLAIN = (
    "data.limit=64",  # 4 whole batches of 16 an epoch
    "train.log_every=1ep",
    "train.checkpoint_every=100ep",
    "train.clip_grad=null",
    "optim=sgd",
    f"optim.lr={LR}",
    f"optim.momentum={MOMENTUM}",
    "optim.lr_scaling=none",
    "optim.schedule=constant",
    "optim.warmup=0st",
    "optim.weight_decay=0",
    "optim.weight_decay_end=null",
    "optim.layer_decay=null",
)
"""Settings of the steps. Some digits configurations have other optimizers, whose settings go with them."""


@dataclass(frozen=True)
class Course:
    """What raysl did.

    Args:
        begun, ended: the method before the first step and after the last one.
        batches: one a step, in float64.
        steps: the clock at each step.
        first: the method's state when the first step began, behind `before_epoch`.
    """

    begun: Method
    ended: Method
    batches: Sequence[Batch]
    steps: Sequence[Step]
    first: dict[str, Tensor] = field(default_factory=dict)

    @property
    def config(self) -> Any:
        """The method's settings."""
        return self.begun.config


class Peer(ABC):
    """A model that takes the steps of a course."""

    @abstractmethod
    def loss(self, batch: Batch, step: Step) -> Tensor:
        """Of one step."""

    @abstractmethod
    def pairs(self, ended: Method) -> list[tuple[str, Tensor, Tensor]]:
        """Name, raysl's tensor and lightly's tensor of all that is compared at the end."""

    @abstractmethod
    def trained(self) -> list[nn.Parameter]:
        """What the optimizer moves."""

    def after_backward(self, step: Step) -> None:  # noqa: B027 - most do nothing
        """Between the gradients and the update."""

    def after_update(self, batch: Batch, step: Step) -> None:  # noqa: B027 - likewise
        """After the update."""


def train(peer: Peer, ours: Course) -> None:
    """Plain SGD on the batches of a course."""
    optimizer = torch.optim.SGD(peer.trained(), lr=LR, momentum=MOMENTUM)
    torch.set_default_dtype(torch.float64)  # lightly makes temperatures and weights of this type
    try:
        for batch, step in zip(ours.batches, ours.steps, strict=True):
            optimizer.zero_grad()
            peer.loss(batch, step).sum().backward()
            peer.after_backward(step)
            optimizer.step()
            peer.after_update(batch, step)
    finally:
        torch.set_default_dtype(torch.float32)


def course(name: str, *words: str, num_steps: int = STEPS) -> Course:
    """Train a method with `configs/digits/NAME.yaml`, `PLAIN` and further settings; `num_steps` is a multiple of 4."""
    torch.set_num_threads(1)
    run = small(name, *PLAIN, f"train.epochs={num_steps // 4}", *words)
    state = TrainState.create(run.setup, classes=run.classes)
    state.method.double()
    begun = copy.deepcopy(state.method).train()
    plan, stream = run.setup.plan, InFloat64(run)
    assert plan.total_steps == num_steps
    batches = list(islice(stream.from_step(0), num_steps))
    first: dict[str, Tensor] = {}

    def keep(*_: object) -> None:
        if not first:
            first.update(copy.deepcopy(state.method.state_dict()))

    state.method.register_forward_pre_hook(keep)
    fit(state, state.method, plan, stream, reporter=LocalReporter())
    return Course(begun, state.method, batches, [plan.step(number) for number in range(num_steps)], first)


def assert_equal(found: Tensor, expected: Tensor, what: str, rtol: float = 1e-9) -> None:
    """Fail where a value is further off than `rtol` of the largest one; of a tensor below 1e-3, such as a bias in front
    of a normalisation, whose gradient is rounding alone, than `rtol` of 1e-3."""
    assert found.shape == expected.shape, f"{what}: {list(found.shape)} beside {list(expected.shape)}"
    scale = max(expected.abs().max().item(), 1e-3)
    worst = (found.double() - expected.double()).abs().max().item() / scale
    assert worst <= rtol, f"{what} is off by {worst:.1e} of its largest value"
