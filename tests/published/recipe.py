"""A recipe as it is built: its plan, its views, its networks, and a training step of a small copy of it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl.components import Classes
from raysl.config.load import load_config
from raysl.config.schema import RunConfig
from raysl.methods.method import Method
from raysl.nn.ema import Teacher
from raysl.plan.plan import TrainPlan
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.train.prepare import make_views
from raysl.train.state import TrainState
from raysl.transforms.view_recipe import ViewRecipe
from tests.small_copy import ROWS, SmallCopy

IMAGES = 1_281_167
"""Training images of ImageNet-1k."""
FEW_IMAGES = 8192
"""Images of a set for which networks are made with values: memory banks and queues are small."""

_HEADS = ("method.head.num_prototypes=4096", "method.head.hidden_dim=512")
_TWO_HEADS = (*_HEADS, "method.patch_head.num_prototypes=4096", "method.patch_head.hidden_dim=512")
NARROW = {
    "aim": ("method.head_depth=1", "method.head_width=512"),
    "barlow_twins": ("method.dim=1024",),
    "capi": ("method.predictor_depth=1", "method.num_clusters=4096"),
    "cross_mae": ("method.decoder_depth=2",),
    "data2vec": ("method.num_layers=2", "backbone.width=384", "backbone.heads=6"),
    "dino": _HEADS,
    "dino_v2": _TWO_HEADS,
    "dino_v3": _TWO_HEADS,
    "emp_ssl": ("method.hidden_dim=1024",),
    "franca": _TWO_HEADS,
    "ibot": _HEADS,
    "ijepa": ("method.predictor_depth=2",),
    "mixmim": ("method.decoder_depth=2",),
    "mmcr": ("method.hidden_dim=1024",),
    "paka": (*_TWO_HEADS, "method.paka_hidden_dim=512"),
    "pixio": ("method.decoder_depth=2",),
    "ressl": ("method.queue_size=4096",),
    "simmim": ("backbone.width=384", "backbone.heads=6"),
    "ssl_ey": ("method.dim=1024",),
    "vicreg": ("method.dim=1024",),
    "vicregl": ("method.dim=1024",),
    "resnet": ("backbone.width=32",),
    "swin": ("backbone.depths=[1,1,2,1]",),
    "vit": ("backbone.width=192", "backbone.heads=3"),
}
"""Settings of methods and backbones whose weights are drawn quickly, by the same rules."""


@dataclass(frozen=True)
class Recipe:
    """A configuration and what is built of it.

    Args:
        name: of the configuration.
        num_images: of the dataset that it is for.
        build: settings of the network that is measured, where the real one is too large.
    """

    name: str
    num_images: int = IMAGES
    build: Sequence[str] = ()

    @cached_property
    def config(self) -> RunConfig:
        return load_config(self.name, ["data.path=/images"])

    @cached_property
    def plan(self) -> TrainPlan:
        return TrainPlan.from_config(self.config, self.num_images)

    @cached_property
    def views(self) -> ViewRecipe:
        setup = Setup.of(self.config, self.num_images, 1000)
        return make_views(setup, Classes.of(self.config))

    @cached_property
    def state(self) -> TrainState:
        """Networks of their real size without values, and the optimizer."""
        if self.config.method.name == "colorization":  # it looks for the colours that there are
            return TrainState.create(self._setup(FEW_IMAGES))
        with torch.device("meta"):
            return TrainState.create(self._setup(self.num_images), "meta")

    @property
    def method(self) -> Method:
        return self.state.method

    @cached_property
    def drawn(self) -> Method:
        """The method with initial weights; of a ViT two blocks, of a ResNet narrower ones."""
        depth = ["backbone.depth=2"] if self.config.backbone.name == "vit" else self._narrow
        return TrainState.create(self._setup(FEW_IMAGES, *depth, *NARROW.get(self.config.method.name, ()))).method

    @cached_property
    def blocks(self) -> nn.Module:
        """All blocks of the backbone with initial weights, narrower ones."""
        if self.config.backbone.name != "vit":
            return self.drawn.backbone
        config = load_config(self.name, ["data.path=/images", "adapt=[]", *self.build, *self._narrow])
        torch.manual_seed(config.seed)
        return Classes.of(config).backbone(config.backbone)

    @property
    def _narrow(self) -> Sequence[str]:
        return NARROW.get(self.config.backbone.name, ())

    def _setup(self, num_images: int, *words: str) -> Setup:
        config = load_config(self.name, ["data.path=/images", "adapt=[]", *self.build, *words])
        return Setup.of(config, max(num_images, config.train.batch_size), 1000)

    @property
    def points(self) -> list[Step]:
        """The start, the end of the warm-up, a quarter of the run, a half, the last update."""
        total = self.plan.total_steps
        return [self.plan.step(index) for index in (0, self.num_warmup, total // 4, total // 2, total - 1)]

    @property
    def num_warmup(self) -> int:
        """Updates of the warm-up; of a course in phases, those of a first one that rises."""
        optim, total, epoch_len = self.plan.optim, self.plan.total_steps, self.plan.epoch_len
        if not optim.phases:
            return optim.warmup.steps(total, epoch_len)
        first = optim.phases[0]
        return first.length.steps(total, epoch_len) if first.end is not None and first.end > first.start else 0

    @cached_property
    def step(self) -> "SmallStep":
        """What a training step of a small copy does; its loss and its gradient are finite."""
        copy = SmallCopy.of(self.name)
        with _calls_of_norms(copy.method) as calls:
            out = copy.forward_and_backward()
        momenta: list[float] = []
        if any(isinstance(module, Teacher) for module in copy.method.modules()):
            for point in self.points:
                with _momenta_of_teachers() as given:
                    copy.method.after_update(point, copy.batch, out.carry)
                momenta.append(given[0])
        return SmallStep(calls, momenta)


@dataclass(frozen=True)
class SmallStep:
    """What a training step did.

    Args:
        views_through_norm: for each part of the method with batch normalisation, the views of an image that each pass
            through its first such layer had.
        momenta: share of the teacher that an update keeps, at each point of the run; empty without a teacher.
    """

    views_through_norm: dict[str, list[float]]
    momenta: list[float]


@contextmanager
def _calls_of_norms(method: nn.Module) -> Iterator[dict[str, list[float]]]:
    calls: dict[str, list[float]] = {}
    handles = []
    for part, module in method.named_children():
        first = next((layer for layer in module.modules() if isinstance(layer, _BatchNorm)), None)
        if first is not None:

            def note(_: nn.Module, given: Any, part: str = part) -> None:
                calls.setdefault(part, []).append(len(given[0]) / ROWS)

            handles.append(first.register_forward_pre_hook(note))
    yield calls
    for handle in handles:
        handle.remove()


@contextmanager
def _momenta_of_teachers() -> Iterator[list[float]]:
    given: list[float] = []
    with patch.object(Teacher, "update", lambda self, student, momentum: given.append(momentum)):
        yield given
