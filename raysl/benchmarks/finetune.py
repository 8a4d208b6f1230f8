"""Fine-tuning of a backbone and a classifier by labels (Chen et al. 2020, arXiv 2002.05709, B.5)."""

from dataclasses import dataclass
from typing import Annotated, Any

from typing_extensions import override

from raysl.benchmarks.benchmark import Context, Findings
from raysl.benchmarks.training_runs.run import TrainingBenchmark, TrainingConfig, training_run
from raysl.benchmarks.training_runs.trained import findings, metric_names, trained
from raysl.config.ranges import Amount, Within
from raysl.nn.classifiers import ClassifierKind

TITLE = "Fine-tuned"
FEATURES_ALONE = [""]  # suffixes of the metrics


@dataclass(frozen=True, kw_only=True)
class FinetuneConfig(TrainingConfig):
    """Settings of fine-tuning."""

    lr: Annotated[float, Within(0, 1e6)] = 0.05
    """Peak learning rate for 256 images; it grows with the batch."""
    layer_decay: Annotated[float, Within(0, 1, above=True)] | None = None
    """Factor of the learning rate from each layer of the backbone to the one below it, as ViTs like it: 0.65 to 0.75
    (BEiT, arXiv 2106.08254). Default: one rate for all."""
    head_lr_scale: Amount = 1.0
    """Factor of the learning rate of the classifier."""
    classifier: ClassifierKind = "linear"
    """The classifier: linear, norm_linear, mlp, vit or mobilenet, as `method.classifier`."""

    @property
    def of_method(self) -> dict[str, Any]:
        """Settings of the method, by their names there."""
        return {"classifier": self.classifier, "head_lr_scale": self.head_lr_scale}


class Finetune(TrainingBenchmark):
    """Accuracy of the whole network after fine-tuning it by all labels from its pre-trained weights.

    Metrics `top1` and, with more than five classes, `top5`, of the last epoch on the centre crops of all test images;
    `top1_best` of the best epoch.
    """

    protocol = (
        "The whole network and a fresh linear layer trained on all labels, random crops and flips; centre crops of the "
        "test images, last epoch (SimCLR, Chen et al. 2020, arXiv 2002.05709, appendix B.5; 30 epochs as in lightly)."
    )
    cost = "a supervised training of 30 epochs"

    @dataclass(frozen=True, kw_only=True)
    class Config(FinetuneConfig):
        """The settings of lightly's fine-tuning: SimCLR's at batch 256, for 30 epochs."""

        name: str = "finetune"
        epochs: Annotated[int, Within(1, 1_000_000)] = 30
        """Passes over the training images."""

    config: Config

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return metric_names(num_classes, FEATURES_ALONE)

    @override
    def measure(self, context: Context) -> Findings:
        config = self.config
        run = training_run(context, config, layer_decay=config.layer_decay, **config.of_method)
        return findings(trained(run, config.keep_checkpoints), TITLE, FEATURES_ALONE, context.seed)
