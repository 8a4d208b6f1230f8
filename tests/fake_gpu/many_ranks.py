"""The steps of one rank among many that are not there, on a pretended GPU: what it exchanges and holds."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.distributed as torch_dist
from torch import Tensor
from torch.utils._pytree import tree_map_only

from raysl import distributed as dist
from raysl.components import Classes
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.data.batch import Batch
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.train.gradients import backward_in_parts
from raysl.train.late import Agreement, FiniteCheck
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import ViewRecipe
from tests.collective_calls import Call, Collectives
from tests.fake_gpu.memory import Memory
from tests.fake_gpu.norm_kernels import norm_kernels
from tests.fake_gpu.pretended import pretended_gpu
from tests.fake_gpu.watch import CUDA, Watch
from tests.fake_gpu.wrapped import wrapping
from tests.fake_ranks import fake_ranks

SAMPLES, CLASSES = 1_281_167, 1000
"""Those of ImageNet."""


@dataclass
class Rank:
    """What one rank did in a step.

    Args:
        watch: with the events of the step.
        calls: its collectives.
        held: bytes on the GPU before the step, the batch among them.
        peak: the most bytes during the step.
        num_weights: weights that train.
    """

    watch: Watch
    calls: Sequence[Call] = field(default_factory=list)
    held: int = 0
    peak: int = 0
    num_weights: int = 0

    @property
    def num_bytes(self) -> int:
        """Bytes of the tensors of all collectives."""
        return sum(call.num_bytes for call in self.calls)


def step_of(config: str, world: int, rows: int, *words: str, is_wrapped: bool = False) -> Rank:
    """Take a few steps as rank 0 of `world`, with `rows` images, and return what the last one was.

    Args:
        config: name of a configuration.
        world: number of ranks.
        rows: images of a rank.
        words: further settings.
        is_wrapped: whether torch wraps the method as in a run, instead of one sum of all gradients.
    """
    sizes = f"train.batch_size={rows * world}", f"train.workers={world}", f"data.lanes={world}"
    loaded = load_config(config, [*sizes, *words])
    with fake_ranks(world), pretended_gpu() as watch, norm_kernels(), wrapping() if is_wrapped else nullcontext():
        memory = Memory()
        watch.observers.append(memory)
        setup, classes = Setup.of(loaded, SAMPLES, CLASSES), Classes.of(loaded)
        plan = TrainPlan.from_config(loaded, SAMPLES, world, "cuda", setup.plan.lanes)
        state = TrainState.create(setup, CUDA, classes=classes)
        model = dist.data_parallel(state.method) if is_wrapped else state.method
        buckets = None if is_wrapped else _buckets(state)
        batch = batch_of(classes.method.views(setup), loaded, rows)
        rank = Rank(watch, num_weights=sum(p.numel() for p in state.method.parameters() if p.requires_grad))
        agreement = Agreement()
        finite = FiniteCheck(CUDA, agreement=agreement)
        # At 20 epochs nothing is frozen any longer. The first step makes the state of the optimizer.
        for index in range(2):
            step = plan.step(plan.epoch_len * 20 + index)
            watch.clear()
            memory.restart()
            rank.held = memory.live
            with Collectives() as collectives, dist.planned_rows(plan.shares(step)):
                out = backward_in_parts(model, batch, plan, step, state.scaler)
                if buckets is not None:
                    torch_dist.all_reduce(buckets)
                finite.add(out.loss, step)
                state.method.after_backward(step)
                state.scaler.step(state.optimizer)
                state.scaler.update()
                state.optimizer.zero_grad(set_to_none=is_wrapped)
                state.synchronise()
                state.method.after_update(step, batch, out.carry)
                agreement.exchange()
            del out
        rank.calls, rank.peak = collectives.calls, memory.peak
    return rank


def _buckets(state: TrainState) -> Tensor:
    """Have gradients lie in one tensor, which is always there, as DDP's buckets are.

    DDP itself asks the driver for timers.
    """
    trained = [parameter for parameter in state.method.parameters() if parameter.requires_grad]
    buckets = torch.zeros(sum(parameter.numel() for parameter in trained), device=CUDA)
    for parameter, part in zip(trained, buckets.split([p.numel() for p in trained]), strict=True):
        parameter.grad = part.view(parameter.shape)
    return buckets


def batch_of(recipe: ViewRecipe, config: RunConfig, rows: int) -> Batch:
    """Return a batch on the pretended GPU with the views and extras of a recipe, made of grey images."""
    index = np.arange(rows)
    images = [torch.full((3, config.data.image_size, config.data.image_size), 127, dtype=torch.uint8)] * rows
    done = recipe.augment(recipe.crop(images, index, 0, 0), index, 0, 0)
    views = {name: view.to(CUDA).float() for name, view in done.views.items()}
    extras = tree_map_only(torch.Tensor, lambda values: values.to(CUDA), done.extras)
    numbers = torch.from_numpy(index).to(CUDA)
    return Batch(views, numbers, torch.zeros_like(numbers), extras=extras, host_key=index)
