"""The shape of a self-supervised method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from raysl.config.schema import MethodConfig, OptimConfig
from raysl.data.batch import Batch
from raysl.data.stream.targets import TargetRecipe
from raysl.nn.backbones.backbone import Backbone
from raysl.nn.drop_path import draws_of
from raysl.plan.setup import Setup
from raysl.schedule import Step
from raysl.transforms.view_recipe import ViewRecipe


@dataclass
class StepOutput:
    """What a training step gives back."""

    loss: Tensor
    """Scalar, the mean over this rank's images."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars; the loop averages them over ranks."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Detached tensors for `after_update`, a row for each image of the rank: keys for a queue, rows of a bank."""


class Method(nn.Module, ABC):
    """A self-supervised method: its views, its networks, its loss.

    A subclass nests a frozen `Config` with the paper's defaults, whose `views` is a recipe. Its loss is the mean over
    this rank's images and takes what the paper calls "the batch" from `raysl.distributed`; the loop and DDP then give
    the gradient of one process holding the whole batch. State that must survive a restart is a parameter or a buffer
    made in `__init__`; it is written in `after_update` and `before_epoch` alone, alike on every rank.
    """

    Config: ClassVar[type[MethodConfig]]
    logged: ClassVar[tuple[str, ...] | None] = None
    """Names in `StepOutput.metrics`, so that `train.expect` can be checked before training; None: not told."""
    evaluated: ClassVar[tuple[str, ...]] = ()
    """Names that `evaluation_step` gives; empty where a method has no task that held-out images could tell of."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__()
        self.setup = setup
        self.config: Any = setup.config.method
        self.backbone = backbone

    @classmethod
    def logged_by(cls, config: Any) -> tuple[str, ...] | None:
        """`logged`, of these settings of the method."""
        return cls.logged

    @classmethod
    def evaluated_by(cls, config: Any) -> tuple[str, ...]:
        """`evaluated`, of these settings of the method."""
        return cls.evaluated

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse settings that cannot work, on the driver, before views are made and any worker starts.

        Raises:
            ConfigError: with the numbers and a way out.
        """

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """The views that the data pipeline makes for this method; called after `check`. By default those of
        `Config.views`.

        Raises:
            ValueError: if the settings make no views; the user reads the message behind `method.views:`.
        """
        config: Any = setup.config.method
        recipe: ViewRecipe = config.views.recipe()
        return recipe

    @classmethod
    def targets(cls, setup: Setup) -> TargetRecipe | None:
        """How images and their targets (boxes, masks) become batches, of a method whose source has targets. Default:
        None, batches are made of the views."""
        return None

    @abstractmethod
    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """The loss on this rank's rows of a global batch.

        In a step `dist.all_gather` takes one row for each image of the rank, `dist.all_gather_ragged` any number. A
        step reads no number from a tensor (`.item()`, `if`, a mask as an index): the host would wait for the GPU.
        """

    def forward(self, batch: Batch, step: Step) -> StepOutput:
        """`training_step`, where DDP's hooks see it; what networks draw belongs to the samples (`nn.drop_path`)."""
        with draws_of(batch):
            return self.training_step(batch, step)

    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """How well the method's own task is done on held-out images, seen as in training: a value for each row [B], by
        the names in `evaluated`. Called every `train.eval_every` in evaluation mode, for every image once."""
        return {}

    def class_scores(self, h: Tensor) -> Tensor | None:
        """Scores [B, K] of the classes of the training images, by features [B, D] of `export`'s network; None, as by
        default, where a method learns no classes. `raysl.Predictor` takes their softmax for probabilities."""
        return None

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """Called at an epoch's first step, never on a resume inside it; torch and numpy are seeded from (seed, step),
        alike on every rank.

        Args:
            step: where training is.
            batches: this rank's share of the training images without augmentation, in dataset order, as the group
                "image" of one view; each call goes through them once.
        """

    def after_backward(self, step: Step) -> None:
        """Called when gradients are complete, before they are clipped."""

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Called when the optimizer has moved the weights, with running statistics the same on every rank: the place
        to write queues, banks and teachers, alike on every rank (`dist.all_gather` works as in a step).

        Args:
            step: where training was before the update.
            batch: what the step saw.
            carry: `StepOutput.carry` of the step.
        """

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Parameters for the optimizer, in groups with the keys of `raysl.optim.groups`.

        By default those that train, split into those that decay and those that do not.
        """
        from raysl.optim.groups import split_groups

        return split_groups(self, optim)

    def export(self) -> Backbone:
        """The network that benchmarks load."""
        return self.backbone
