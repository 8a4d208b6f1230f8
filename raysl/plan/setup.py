"""The facts of a run that are known before a process starts."""

from dataclasses import dataclass
from typing import Any

from raysl import distributed as dist
from raysl.components import resolve
from raysl.config.arguments import run_config, whole_number
from raysl.config.schema import RunConfig
from raysl.data.batch import DataInfo
from raysl.nn.backbones.backbone import Backbone, BackboneInfo
from raysl.plan.adapt import adapt
from raysl.plan.plan import TrainPlan
from raysl.plan.reference import for_workers


@dataclass(frozen=True)
class Setup:
    """Everything that a method is built from: the one argument of its `check`, `views` and `__init__`.

    Args:
        config: the run's settings; `config.method` is the method's own node.
        backbone: widths and patches of the network, read without building weights.
        plan: batch, epochs, updates, lanes.
        written: the settings as the user wrote them, where `train.reference_workers` changed them.
    """

    config: RunConfig
    backbone: BackboneInfo
    data: DataInfo
    plan: TrainPlan
    written: RunConfig | None = None

    @property
    def as_written(self) -> RunConfig:
        """The settings as the user wrote them, which checkpoints store."""
        return self.written or self.config

    @property
    def seed(self) -> int:
        """Seed of the run."""
        return self.config.seed

    @property
    def max_corrupt(self) -> int:
        """Number of training images that may be broken before the run stops."""
        return int(self.config.data.max_corrupt * self.data.num_samples)

    @property
    def method(self) -> Any:
        """The method's own settings."""
        return self.config.method

    @classmethod
    def of(
        cls,
        config: RunConfig,
        num_samples: int,
        num_classes: int = 0,
        *,
        plan: TrainPlan | None = None,
        backbone_class: type[Backbone] | None = None,
        fingerprint: str = "",
    ) -> "Setup":
        """Return the setup of a run over a number of images.

        >>> import raysl
        >>> Setup.of(raysl.load_config("quickstart"), num_samples=1442, num_classes=10).plan.epoch_len
        22

        Args:
            config: the run's settings.
            num_samples: number of training images.
            num_classes: number of classes of their labels; 0 without labels.
            plan: default: the plan for the ranks of this process group.
            backbone_class: the class, where its name is not known in this process.
            fingerprint: digest of the training images, if known.

        Raises:
            ConfigError: if an argument is of another kind, or the plan or the backbone cannot be made of these
                settings.
        """
        if not isinstance(config, RunConfig):
            config = run_config(config)  # says what to give
        num_samples = whole_number(num_samples, "num_samples", 1, "a number of images")
        num_classes = whole_number(num_classes, "num_classes", 0, "a number of classes")
        written = adapt(config, num_samples)
        config = for_workers(written)
        plan = plan or TrainPlan.from_config(config, num_samples, dist.world())
        kind: type[Backbone] = backbone_class or resolve("backbone", config.backbone.name)
        data = DataInfo(num_samples, num_classes, config.data.image_size, fingerprint)
        return cls(config, kind.info(config.backbone), data, plan, None if written is config else written)
