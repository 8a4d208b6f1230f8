"""The shape of a self-supervised method."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from raysl.config.schema import MethodConfig, OptimConfig
from raysl.data.batch import Batch, DataInfo
from raysl.nn.backbones.backbone import Backbone
from raysl.schedule import Step
from raysl.transforms.view import ViewRecipe

if TYPE_CHECKING:
    from raysl.train.plan import TrainPlan


@dataclass
class StepOutput:
    """What a training step gives back."""

    loss: Tensor
    """Scalar, the mean over this rank's images."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars; the loop averages them over ranks."""
    features: Tensor | None = None
    """Detached backbone features [B, D]."""


class Method(nn.Module, ABC):
    """A self-supervised method: its views, its networks, its loss.

    A subclass nests a frozen `Config` with the paper's defaults. Its loss is the mean over this rank's images and takes
    what the paper calls "the batch" from `raysl.dist`; the loop and DDP then give the gradient of one process holding
    the whole batch. State that must survive a restart is a parameter or a buffer made in `__init__`.
    """

    Config: ClassVar[type[MethodConfig]]
    logged: ClassVar[tuple[str, ...] | None] = None
    """Names in `StepOutput.metrics`, so that `train.expect` can be checked before training; None: not told."""

    def __init__(self, config: Any, backbone: Backbone, data: DataInfo) -> None:
        super().__init__()
        self.config = config
        self.backbone = backbone
        self.data = data

    @classmethod
    @abstractmethod
    def views(cls, config: Any) -> ViewRecipe:
        """The views that the data pipeline makes for this method; called after `check`.

        Raises:
            ValueError: if the settings make no views; the user reads the message behind `method.views:`.
        """

    @classmethod
    def check(cls, config: Any, data: DataInfo, plan: "TrainPlan") -> None:
        """Refuse settings that cannot work, on the driver, before views are made and any worker starts.

        Raises:
            ConfigError: with the numbers and a way out.
        """

    @abstractmethod
    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """The loss on this rank's rows of a global batch.

        In a step `dist.all_gather` takes one row for each image of the rank, `dist.all_gather_ragged` any number. A
        step reads no number from a tensor (`.item()`, `if`, a mask as an index): the host would wait for the GPU.
        """

    def forward(self, batch: Batch, step: Step) -> StepOutput:
        """`training_step`, where DDP's hooks see it."""
        return self.training_step(batch, step)

    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Accuracy of the pretext task on held-out images; empty where a method has none."""
        return {}

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """Called at an epoch's first step, never on a resume inside it.

        Args:
            step: where training is.
            batches: makes this rank's stream of plain images in dataset order.
        """

    def after_backward(self, step: Step) -> None:
        """Called when gradients are complete, before they are clipped."""

    def after_update(self, step: Step) -> None:
        """Called when the optimizer has moved the weights, with running statistics the same on every rank."""

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Parameters for the optimizer, in groups with the keys of `raysl.optim.groups`.

        By default those that train, split into those that decay and those that do not.
        """
        from raysl.optim.groups import split_groups

        return split_groups(self, optim)

    def export(self) -> Backbone:
        """The network that benchmarks load."""
        return self.backbone
