"""A method trained by raysl's own loop for some steps of plain SGD in float64, with all that another implementation
needs to take the same steps: the initial method, the batches, the clock."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from raysl.checkpoint import TrainState
from raysl.data.batch import Batch
from raysl.methods.method import Method
from raysl.schedule import Step
from raysl.train import LocalReporter, fit
from tests.methods.properties import InFloat64, small

STEPS = 20
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
    """

    begun: Method
    ended: Method
    batches: Sequence[Batch]
    steps: Sequence[Step]

    @property
    def config(self) -> Any:
        """The method's settings."""
        return self.begun.config


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
    fit(state, state.method, plan, stream, reporter=LocalReporter())
    return Course(begun, state.method, batches, [plan.step(number) for number in range(num_steps)])


def assert_equal(found: Tensor, expected: Tensor, what: str, rtol: float = 1e-9) -> None:
    """Fail where a value is further off than `rtol` of the largest one; of a tensor below 1e-3, such as a bias in front
    of a normalisation, whose gradient is rounding alone, than `rtol` of 1e-3."""
    assert found.shape == expected.shape, f"{what}: {list(found.shape)} beside {list(expected.shape)}"
    scale = max(expected.abs().max().item(), 1e-3)
    worst = (found.double() - expected.double()).abs().max().item() / scale
    assert worst <= rtol, f"{what} is off by {worst:.1e} of its largest value"
