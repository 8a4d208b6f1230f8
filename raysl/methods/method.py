"""The base class of self-supervised methods, and the names that the file of a method needs beside it."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, cast

from torch import Tensor, nn

from raysl.components import resolve
from raysl.config.schema import MethodConfig as MethodConfig
from raysl.config.schema import OptimConfig as OptimConfig
from raysl.data.batch import Batch as Batch
from raysl.data.stream.targets import TargetRecipe
from raysl.errors import ConfigError as ConfigError
from raysl.methods.shared.reconstruction import Reconstruction as Reconstruction
from raysl.methods.shared.setup_checks import check_batch, check_queue, check_some_views, check_two_views
from raysl.nn.backbones.backbone import Backbone as Backbone
from raysl.nn.backbones.backbone import TokenBackbone as TokenBackbone
from raysl.nn.backbones.backbone import visible_places as visible_places
from raysl.nn.drop_path import drop_slots, keyed_draws
from raysl.optim.groups import split_groups
from raysl.plan.setup import Setup as Setup
from raysl.schedule import Step as Step
from raysl.transforms import Mask, Transform, ViewRecipe


@dataclass
class StepOutput:
    """Result of a training step."""

    loss: Tensor
    """Scalar, the mean over this rank's images."""
    metrics: dict[str, Tensor] = field(default_factory=dict)
    """Detached scalars; the loop averages them over ranks. Those of `batch_collapse` are there in logged steps only."""
    carry: dict[str, Tensor] = field(default_factory=dict)
    """Detached tensors for `after_update`, a row per image of this rank: keys for a queue, rows of a bank."""


class Method(nn.Module, ABC):
    """A self-supervised method: its views, its networks, its loss.

    A subclass nests a frozen `Config` with the paper's defaults, whose `views` is a recipe. Its loss is the mean over
    this rank's images; what the paper calls "the batch" is gathered by `raysl.distributed`. The loop and DDP then
    compute the gradient of one process with the whole batch. State that must survive a restart is a parameter or a
    buffer created in `__init__`, written only in `after_update` and `before_epoch`, the same on every rank.
    """

    Config: ClassVar[type[MethodConfig]]
    logged: ClassVar[tuple[str, ...] | None] = None
    """Names in `StepOutput.metrics`, so that `train.expect` can be checked before training; None if unknown."""
    evaluated: ClassVar[tuple[str, ...]] = ()
    """Names of the values of `evaluation_step`; empty if the method has no task to measure on held-out images."""
    compiles: ClassVar[Literal["no", "step", "graphs"]] = "graphs"
    """How far `train.compile=step` holds: not at all, since `training_step` draws random numbers on the host; or
    without CUDA graphs, since it computes with numbers of the `Step`, which change; or with them."""
    compiled_step: "Callable[[Method, Batch, Step], StepOutput] | None" = None
    """Computes `training_step` if the step is compiled."""
    exports_teacher: ClassVar[bool] = False
    """Whether benchmarks load the network of `teacher`, not the one that gradients train."""
    why_two_views: ClassVar[str] = ""
    """Why the method takes two views, no more and no less, for the message of `check`; empty where it takes others."""
    why_several_views: ClassVar[str] = ""
    """Why a single view, large or small, is not enough; empty where it is."""
    why_several_images: ClassVar[str] = ""
    """Why a batch of a single image is not enough; empty where it is."""
    why_full_queue: ClassVar[str] = ""
    """What happens to the rows of a queue smaller than a batch; empty without a queue."""

    def __init__(self, setup: Setup, backbone: Backbone) -> None:
        super().__init__()
        self.setup = setup
        self.config: Any = setup.config.method
        self.backbone = backbone

    @classmethod
    def logged_by(cls, config: Any) -> tuple[str, ...] | None:
        """Return `logged` for these settings of the method."""
        return cls.logged

    @classmethod
    def evaluated_by(cls, config: Any) -> tuple[str, ...]:
        """Return `evaluated` for these settings of the method."""
        return cls.evaluated

    @property
    def given_parts(self) -> dict[str, str]:
        """Parts of the method, such as `teacher`, whose weights come from where a setting of it says, by part: the
        setting. `method.weights` leaves them alone."""
        return {}

    @property
    def most_entropy(self) -> float | None:
        """The `teacher_entropy` of equal scores, in nats, the largest that the method can log; None if it logs none."""
        return None

    @classmethod
    def check(cls, setup: Setup) -> None:
        """Refuse settings that cannot work, on the driver, before views are made and workers start. Default: what the
        attributes `why_two_views` and so on refuse.

        Raises:
            ConfigError: with the numbers and what to set instead.
        """
        if cls.why_two_views:
            check_two_views(setup, cls.why_two_views)
        if cls.why_several_views:
            check_some_views(setup, cls.why_several_views)
        if cls.why_several_images:
            check_batch(setup, cls.why_several_images)
        if cls.why_full_queue:
            check_queue(setup, cls.why_full_queue)

    @classmethod
    def views(cls, setup: Setup) -> ViewRecipe:
        """Return the views that the data pipeline makes, by default those of `Config.views` with `mask`; called after
        `check`.

        Raises:
            ValueError: if the settings make no views; the message is shown after `method.views:`.
        """
        config: Any = setup.config.method
        mask = cls.mask(setup)
        recipe: ViewRecipe = config.views.recipe() if mask is None else config.views.recipe(mask)
        return recipe

    @classmethod
    def mask(cls, setup: Setup) -> Mask | None:
        """Return the mask of patches that `Config.views` draws for each (large) view; None, the default, for none."""
        return None

    @classmethod
    def all_views(cls, setup: Setup) -> ViewRecipe:
        """Return `views` with the transforms that `method.transforms` names, behind those of each view.

        Raises:
            ConfigError: if a name is not that of a transform, or the transform needs arguments.
            ValueError: if the settings make no views, or views with a box cannot have these transforms.
        """
        transforms = tuple(_make_transform(name) for name in setup.config.method.transforms)
        return cls.views(setup).with_transforms(transforms)

    @classmethod
    def targets(cls, setup: Setup) -> TargetRecipe | None:
        """How images and their targets (boxes, masks) become batches, of a method whose source has targets. Default:
        None, batches are made of the views."""
        return None

    @abstractmethod
    def training_step(self, batch: Batch, step: Step) -> StepOutput:
        """Return the loss on this rank's rows of a global batch.

        In a step `dist.all_gather` takes one row per image of this rank, `dist.all_gather_ragged` any number. A step
        must not read a number from a tensor (`.item()`, `if`, a mask as an index): the host would wait for the GPU.
        """

    def forward(self, batch: Batch, step: Step) -> StepOutput:
        """Run `training_step` under DDP's hooks, with random numbers keyed by sample (`nn.drop_path`)."""
        if self.compiled_step is None:
            with keyed_draws(batch, drop_slots(self)):
                return self.training_step(batch, step)
        with keyed_draws(batch, drop_slots(self), is_compiled=True):
            return self.compiled_step(self, batch, step)

    def evaluation_step(self, batch: Batch) -> dict[str, Tensor]:
        """Measure the method's own task on held-out images with views as in training: a value per row [B], by the names
        in `evaluated`, NaN for an image that does not count. Called every `train.eval_every` in evaluation mode, once
        for every image."""
        return {}

    def reconstruct(self, batch: Batch) -> Reconstruction | None:
        """Return what the method sees of images and which pixels it predicts, or None, the default, if it shows none.

        Called every `train.reconstruct_every` in evaluation mode and without gradients, by the main worker alone, so
        without exchanges between workers. The views are whole images without transforms, one in each group, with masks
        as in training, the same each time.
        """
        return None

    def class_scores(self, h: Tensor) -> Tensor | None:
        """Return scores [B, K] of the training images' classes from features [B, D] of `export`'s network, or None, the
        default, if the method learns no classes. `raysl.Predictor` uses their softmax as probabilities."""
        return None

    def before_epoch(self, step: Step, batches: Callable[[], Iterator[Batch]]) -> None:
        """Called at an epoch's first step, never on a resume inside it; torch and numpy are seeded from (seed, step),
        the same on every rank.

        Args:
            step: where training is.
            batches: this rank's share of the training images without augmentation, in dataset order, as the group
                "image" of one view; each call iterates over them once.
        """

    def after_backward(self, step: Step) -> None:
        """Called when gradients are complete, before they are clipped."""

    def after_update(self, step: Step, batch: Batch, carry: dict[str, Tensor]) -> None:
        """Called after the optimizer's step: the place to write queues, banks and teachers, the same on every rank.

        `dist.all_gather` works as in a step.

        Args:
            step: where training was before the update.
            batch: the step's batch.
            carry: the step's `StepOutput.carry`.
        """

    def param_groups(self, optim: OptimConfig) -> list[dict[str, Any]]:
        """Return parameter groups for the optimizer, with the keys of `raysl.optim.groups`.

        By default the trainable parameters, split into those with and without weight decay.
        """
        return split_groups(self, optim)

    def student(self) -> nn.Sequential:
        """Return the backbone with `projector` behind it, which a teacher follows, of a method that has one."""
        return nn.Sequential(self.backbone, self.get_submodule("projector"))

    def project(self, images: Tensor) -> Tensor:
        """Return the projections of one view, which batch normalisation takes by itself."""
        z: Tensor = self.get_submodule("projector")(self.backbone(images))
        return z

    def export(self) -> Backbone:
        """Return the network that benchmarks load."""
        return cast(Backbone, self.get_submodule("teacher.module")) if self.exports_teacher else self.backbone


def _make_transform(name: str) -> Transform:
    kind = resolve("transform", name)
    if not issubclass(kind, Transform):
        raise ConfigError(f"method.transforms: {name} is not a Transform; derive it from raysl.transforms.Transform")
    try:
        return kind()
    except TypeError as error:
        raise ConfigError(f"method.transforms: {name} needs arguments ({error}); give its fields defaults") from error
