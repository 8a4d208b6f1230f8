"""A small run on batches in memory, for tests of the loop."""

from typing import Any

import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.methods.method import StepOutput
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train import TrainPlan
from raysl.train.callbacks.callback import Callback, Run
from raysl.train.state import TrainState

IMAGES = (48, 0)  # and classes
SMALL = (
    "backbone.num_stages=2",
    "backbone.width=4",
    "method.hidden_dim=8",
    "method.output_dim=4",
    "optim.lr=0.1",
    "train.batch_size=12",
    "train.epochs=2",
    "train.log_every=100st",
    "train.checkpoint_every=100st",
    "train.precision=fp32",
)


def problem(*overrides: str, device: torch.device | str = "cpu") -> tuple[TrainState, TrainPlan]:
    """A fresh state and its plan of 8 steps, for the ranks that are there."""
    config = load_config("quickstart", [*SMALL, *overrides])
    device_type = torch.device(device).type
    plan = TrainPlan.from_config(config, IMAGES[0], dist.world(), device_type)
    return TrainState.create(Setup.of(config, *IMAGES), device), plan


def batches(plan: TrainPlan, device: torch.device | str = "cpu", num: int = 4) -> list[Batch]:
    """This rank's rows of some global batches, which do not depend on the number of ranks."""
    generator = torch.Generator().manual_seed(0)
    made = []
    for _ in range(num):
        views = torch.randn(plan.batch_size, 2, 3, 8, 8, generator=generator)
        whole = Batch({"global": views}, torch.arange(plan.batch_size), torch.full((plan.batch_size,), -1))
        made.append(whole.map(lambda rows: torch.split(rows, plan.rows)[dist.rank()].to(device)))
    return made


class StopAt(Callback):
    """Asks the run to stop after some updates."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run, step: Step, out: StepOutput) -> None:
        """See `Callback.on_step_end`."""
        if step.index == self.step:
            run.stop("the test wants it")


def tensors_of(state: TrainState) -> dict[str, Tensor]:
    """Copies of all that a checkpoint keeps of the method and the optimizer, by name, on the CPU."""
    found = {f"method.{name}": value for name, value in state.method.state_dict().items()}
    for number, values in state.optimizer.state_dict()["state"].items():
        found |= {f"optimizer.{number}.{name}": value for name, value in values.items() if torch.is_tensor(value)}
    return {name: value.detach().cpu().clone() for name, value in found.items()}


def differing(left: dict[str, Any], right: dict[str, Any]) -> list[str]:
    """Names of tensors that are not the same to the last bit."""
    assert left.keys() == right.keys()
    return [name for name in left if not torch.equal(left[name], right[name])]


def running_statistics(module: nn.Module) -> list[Tensor]:
    """Running means and variances of all BatchNorm layers of a module, the buffers themselves."""
    return [value for name, value in module.named_buffers() if name.endswith(("running_mean", "running_var"))]
