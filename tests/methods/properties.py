"""What every method is put through, on any number of ranks: a few steps on digits, with the settings of its own
`configs/digits/NAME.yaml`, as the loop takes them."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from raysl import distributed as dist
from raysl.components import ALIASES
from raysl.config.load import load_config
from raysl.data.batch import Batch
from raysl.data.stream.loader import LocalBatches
from raysl.plan.plan import TrainPlan
from raysl.train import LocalReporter, fit
from raysl.train.prepare import Prepared, prepare
from raysl.train.state import TrainState

Steps = dict[str, Any]
"""What `exact_steps` gives."""
METHODS = sorted(ALIASES["method"])
FEW = ("dino", "mae", "moco", "simclr", "swav", "vicreg")
"""One of each family, for the default tier."""
SMALL = (
    "data.limit=62",  # 3 batches of 16 and one of 14
    "train.batch_size=16",
    "data.drop_last=false",
    "data.lanes=5",  # which neither 2 nor 3 ranks share evenly
    "train.uneven=true",
    "train.epochs=2",
    "train.log_every=1st",
    "train.checkpoint_every=1st",
    "train.keep_checkpoints=100",
    "train.precision=fp32",
    "benchmarks={}",
    "optim.warmup=2st",
    "train.online_knn_every=null",
)
TINY = {
    "resnet": ("backbone.depth=10", "backbone.width=8"),
    "swin": ("backbone.depths=[1,2]", "backbone.windows=[4]", "backbone.width=16", "backbone.head_dim=8"),
    "vit": ("backbone.depth=2", "backbone.width=24", "backbone.heads=3"),
}
"""Settings of a small network of each kind."""
FURTHER = {
    "dino_v3": (
        "method.local_weight=0.5",
        "method.gram_weight=1",
        "method.gram_teacher=untrained",
        "method.gram_size=32",
        "method.gram_update_every=3st",
        "method.gram_updates=2",
    ),
    "salt": ("method.target=latents", "method.teacher=untrained"),
}
"""Settings that switch on parts of a method that its own configuration has switched off."""
STOPS = (4, 7)
"""Steps to go on from: at the end of the first epoch, and before the last step."""


@cache
def small(name: str, *words: str) -> Prepared:
    """A run of a method over 62 digits, with further settings; `backbone=NAME` among them picks another network."""
    network = load_config(f"digits/{name}").backbone.name
    is_own = any(word.startswith("backbone=") for word in words)
    run = prepare(
        load_config(f"digits/{name}", [*SMALL, *(() if is_own else TINY[network]), *FURTHER.get(name, ()), *words])
    )
    loader = replace(run.loader, augment_in_task=True)
    plan = TrainPlan.from_config(run.config, run.setup.data.num_samples, dist.world(), lanes=run.setup.plan.lanes)
    return replace(run, loader=loader, setup=replace(run.setup, plan=plan))


class InFloat64:
    """This rank's batches in float64."""

    def __init__(self, run: Prepared) -> None:
        self.stream = LocalBatches(run.loader, dist.rank(), dist.world())

    def from_step(self, step: int) -> Iterator[Batch]:
        """See `BatchStream.from_step`."""
        return map(_double, self.stream.from_step(step))

    def plain(self) -> Iterator[Batch]:
        """See `BatchStream.plain`."""
        return map(_double, self.stream.plain())


def _double(batch: Batch) -> Batch:
    wide = batch.map(lambda values: values.double() if values.is_floating_point() else values)
    return replace(wide, host_key=batch.host_key)


def exact_steps(name: str, *words: str) -> Steps:
    """Two epochs in float64: the gradients of each step, and all that a checkpoint keeps at the end."""
    torch.set_num_threads(1)
    run = small(name, *words)
    state = TrainState.create(run.setup, classes=run.classes)
    state.method.double()
    begun = _copies(state)
    grads: list[dict[str, Tensor]] = []
    state.optimizer.register_step_pre_hook(lambda *_: grads.append(_gradients(state)))
    fit(state, dist.data_parallel(state.method), run.setup.plan, InFloat64(run), reporter=LocalReporter())
    return {"grads": grads, "begun": begun, "ended": _copies(state)}


def _gradients(state: TrainState) -> dict[str, Tensor]:
    found = state.method.named_parameters()
    return {name: p.grad.clone() for name, p in found if p.requires_grad and p.grad is not None}


def _copies(state: TrainState) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.method.state_dict().items()}


def restarted(name: str, folder: str, *words: str) -> dict[int, list[str]]:
    """For each stop, the names of tensors whose bits are others than those of the run that went through; with further
    settings."""
    torch.set_num_threads(1)
    path = Path(folder, f"{name}-{dist.world()}")
    run = small(name, *words)
    through = _trained(run, TrainState.create(run.setup, classes=run.classes), LocalReporter(path, keep=100))
    differing = {}
    for stop in STOPS:
        state = TrainState.create(run.setup, classes=run.classes)
        state.load(path / f"checkpoint_{stop:09d}")
        again = _trained(run, state, LocalReporter())
        differing[stop] = [key for key, value in through.items() if not torch.equal(value, again[key])]
    return differing


def _trained(run: Prepared, state: TrainState, reporter: LocalReporter) -> dict[str, Tensor]:
    stream = LocalBatches(run.loader, dist.rank(), dist.world())
    fit(state, dist.data_parallel(state.method), run.setup.plan, stream, reporter=reporter)
    kept = _copies(state)
    for number, values in state.optimizer.state_dict()["state"].items():
        kept |= {f"optimizer.{number}.{key}": value.clone() for key, value in values.items() if torch.is_tensor(value)}
    return kept


def on_ranks(names: list[str], folder: str) -> tuple[dict[str, Any], dict[str, dict[int, list[str]]]]:
    """`exact_steps` and `restarted` of methods, on the ranks that are there."""
    return {name: exact_steps(name) for name in names}, {name: restarted(name, folder) for name in names}
