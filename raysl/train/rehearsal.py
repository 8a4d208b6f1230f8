"""One step of one rank on tensors of shapes alone, to know its memory, FLOPs and bytes before a run."""

import logging
import math
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from raysl import distributed as dist
from raysl.components import Classes
from raysl.data.batch import Batch
from raysl.distributed.ranks import pretended_world
from raysl.errors import ConfigError
from raysl.methods.shared.device import recomputed_units
from raysl.nn.adapters import add_adapters
from raysl.nn.backbones.freezing import freeze
from raysl.nn.recompute import recompute
from raysl.optim.build import build_optimizer, set_schedules
from raysl.plan.cost import Counts
from raysl.plan.setup import Setup
from raysl.plan.shapes import Shapes, gradients_as_part, to_shapes
from raysl.schedule import Step
from raysl.train.gradients import backward_in_parts
from raysl.train.state import TrainState, make_average
from raysl.transforms import ViewRecipe, network_input

DRAWN = 8
"""Images whose masks and permutations are drawn; those of other rows are the same."""


def rehearse(setup: Setup, classes: Classes, recipe: ViewRecipe) -> Counts:
    """Run two steps of rank 0, from the middle of the run, and return what the second took.

    Args:
        setup: setup of the run on GPUs; `setup.plan.world` ranks are pretended.
    """
    if classes.method.targets(setup) is not None:
        raise ConfigError(f"raysl plan --gpu counts batches of views, and method={setup.method.name} has targets")
    plan = setup.plan
    shapes = Shapes()
    middle = plan.total_steps // 2 // plan.epoch_len * plan.epoch_len
    drawn = _drawn(setup, recipe, plan.shares(plan.step(middle))[0])
    with pretended_world(plan.world), shapes, warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")  # by copies of modules
        state = _build(setup, classes, shapes)
        shapes.answer = True  # balanced assignments ask whether their sums are in range
        batch = replace(drawn, views={name: shapes.shape_of(view) for name, view in drawn.views.items()})
        shapes.assign("batch", batch.views.values())
        with gradients_as_part(state.method, shapes, "gradients"):
            # the first step makes the optimizer's state, and the second is counted
            for index in (middle, middle):
                shapes.restart()
                _step(state, batch, plan.step(index))
                moments = tree_leaves(list(state.optimizer.state.values()))
                shapes.assign("optimizer", [leaf for leaf in moments if isinstance(leaf, Tensor)])
        return _counts(state, batch, shapes)


@contextmanager
def silent_shapes() -> Iterator[None]:
    """Print no traceback of torch's of a rehearsal that fails, for callers that explain the failure."""
    shapes_log = logging.getLogger("torch._subclasses.fake_tensor")
    was_disabled, shapes_log.disabled = shapes_log.disabled, True
    try:
        yield
    finally:
        shapes_log.disabled = was_disabled


def _build(setup: Setup, classes: Classes, shapes: Shapes) -> TrainState:
    config = setup.config
    torch.manual_seed(config.seed)
    backbone = classes.backbone(config.backbone)
    freeze(backbone, config.backbone.freeze)
    add_adapters(backbone, config.backbone.adapters)
    method = classes.method(setup, backbone)
    to_shapes(method, shapes)
    trained = [p for p in method.parameters() if p.requires_grad]
    kept = {id(p) for p in trained}
    shapes.assign("weights", trained)
    shapes.assign(
        "teachers, queues, banks", [t for t in (*method.parameters(), *method.buffers()) if id(t) not in kept]
    )
    # Of what `place_on_device` does, only this changes the counts: shares are calculated, and synchronised
    # statistics are small.
    recompute(recomputed_units(method, config.train))
    optimizer = build_optimizer(method, config.optim, classes.optimizer)
    for group in optimizer.param_groups:
        if group.get("fused") is False:
            group.update(fused=True, foreach=False)
    average = make_average(method, config)
    if average is not None:
        shapes.assign("teachers, queues, banks", average.values.values())
    return TrainState(setup, method.train(), optimizer, average=average)


def _drawn(setup: Setup, recipe: ViewRecipe, rows: int) -> Batch:
    """Return a batch whose masks and permutations are drawn; its views are one number, repeated."""
    num_drawn, data = min(rows, DRAWN), setup.config.data
    drawn = np.arange(num_drawn)
    num_channels = data.channels if isinstance(data.channels, int) else 3
    augmented = recipe.augment(recipe.blank(num_drawn, num_channels), drawn, setup.seed, 0)
    inputs = {name: network_input(view, data.mean, data.std, data.channels) for name, view in augmented.views.items()}
    sources = torch.arange(rows) % num_drawn
    return Batch(
        views={name: torch.zeros(1).expand(rows, *view.shape[1:]) for name, view in inputs.items()},
        index=torch.arange(rows),
        label=torch.arange(rows) % max(setup.data.num_classes, 1),
        extras={name: extra[sources] for name, extra in augmented.extras.items()},
        seed=setup.seed,
        host_key=np.arange(rows),
    )


def _step(state: TrainState, batch: Batch, step: Step) -> None:
    plan, method = state.setup.plan, state.method
    set_schedules(state.optimizer, plan.optim, step, plan.batch_size)
    with dist.planned_rows(plan.shares(step)):
        out = backward_in_parts(method, batch, plan, step, state.scaler)
        method.after_backward(step)
        state.optimizer.step()
        state.optimizer.zero_grad(set_to_none=True)
        method.after_update(step, batch, out.carry)
    state.follow(step)


def _counts(state: TrainState, batch: Batch, shapes: Shapes) -> Counts:
    method = state.method
    units = [unit for parts in method.backbone.units().values() for unit in parts]
    return Counts(
        rows=len(batch),
        pixels=sum(math.prod(view.shape[1:]) // view.shape[2] for view in batch.views.values()),
        peak=dict(shapes.peak),
        gradients=_num_bytes(p for p in method.parameters() if p.requires_grad),
        largest_unit=max((_num_bytes(unit.parameters()) for unit in units), default=0),
        work=list(shapes.work),
        exchanged=shapes.exchanged,
        collectives=shapes.collectives,
    )


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(t.numel() * t.element_size() for t in tensors)
