"""A linear classifier on a frozen backbone, trained on augmented images (Chen et al. 2020, arXiv 2002.05709, B.6)."""

from dataclasses import dataclass

from typing_extensions import override

from raysl.benchmarks.benchmark import ConfigError, Context, Findings
from raysl.benchmarks.training_runs.run import TrainingBenchmark, TrainingConfig, training_run
from raysl.benchmarks.training_runs.trained import findings, metric_names, suffixes, trained
from raysl.checkpoint.backbone import Checkpoint
from raysl.nn.classifiers import StageHead

TITLE = "Linear probe, augmented"


class LinearAugmented(TrainingBenchmark):
    """Accuracy of a linear layer on the frozen backbone, trained on augmented images: the papers' linear evaluation.

    The backbone is in evaluation mode. Further classifiers, on inner stages of it, are trained in the same pass.
    Metrics `top1` and, with more than five classes, `top5`, of the last epoch on the centre crops of all test images;
    `top1_best` of the best epoch, which some report; and for a classifier on the stage res4 `top1_res4` and so on.
    """

    protocol = (
        "A linear layer on the frozen backbone, trained on random crops and flips; centre crops of the test images, "
        "last epoch (SimCLR, Chen et al. 2020, arXiv 2002.05709, appendix B.6)."
    )
    cost = "a training of 90 epochs, without the backward pass of the backbone"

    @dataclass(frozen=True, kw_only=True)
    class Config(TrainingConfig):
        """The settings of SimCLR's linear evaluation at batch 256, with the cosine of its code."""

        name: str = "linear_augmented"
        batch_norm: bool = False
        """Put batch normalisation in front of the linear layer, as VISSL's linear evaluation has it."""
        stages: tuple[StageHead, ...] = ()
        """Further classifiers, on stages of the backbone, each with its pool and its factor of the learning rate:
        [{stage: res4}, {stage: res3, pool: {size: 2}}, {stage: avgpool, lr_scale: 10}]."""

    config: Config

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return metric_names(num_classes, suffixes(config.stages))

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        """The stages must exist."""
        info = checkpoint.backbone.info(checkpoint.config.backbone)
        if unknown := [head.stage for head in config.stages if head.stage not in info.stages]:
            known = f"its stages: {', '.join(info.stages)}" if info.stages else "it names none"
            backbone = checkpoint.config.backbone.name
            raise ConfigError(f"{config.name}.stages: no stage {unknown[0]!r} in {backbone}; {known}")

    @override
    def measure(self, context: Context) -> Findings:
        config = self.config
        kind = "norm_linear" if config.batch_norm else "linear"
        run = training_run(context, config, freeze=True, classifier=kind, heads=config.stages)
        return findings(trained(run, config.keep_checkpoints), TITLE, suffixes(config.stages), context.seed)
