"""Object detection by Faster R-CNN or Mask R-CNN, fine-tuned from the backbone (MoCo, arXiv 1911.05722, 4.2)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import ConfigError, Context, Findings, Labelled, Metric, settings_from
from raysl.benchmarks.dense.average_precision import THRESHOLDS, Detected, parse_detections, precisions_by_class
from raysl.benchmarks.dense.benchmark import TargetBenchmark, TargetConfig, Training
from raysl.benchmarks.dense.boxes import BoxImages, BoxSplit
from raysl.benchmarks.dense.coco_scores import coco_precisions, tools
from raysl.benchmarks.dense.dataset_files import TargetSource
from raysl.benchmarks.dense.detector import Detector
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Count, Every, Length, Location, NotEmpty, Side, Within
from raysl.nn.backbones.backbone import TokenBackbone
from raysl.nn.backbones.freezing import check_freeze
from raysl.optim.adam import AdamW
from raysl.optim.sgd import SGD
from raysl.schedule import Duration

USUAL: dict[type[SGD] | type[AdamW], tuple[float, float]] = {SGD: (0.02, 1e-4), AdamW: (1e-4, 0.1)}
"""Learning rate for a batch of 16, and weight decay: Detectron2's of SGD, ViTDet's of AdamW."""


@dataclass(frozen=True)
class Schedule:
    """The default schedule for a dataset, from the papers.

    VOC's is that of VISSL and MoCo for 2007 alone, COCO's the "1x" schedule of Detectron2.

    Args:
        iterations: updates.
        decay_at: where the learning rate falls to a tenth.
        warmup: linear rise of the learning rate.
    """

    iterations: int
    decay_at: tuple[Duration, ...]
    warmup: Duration
    checkpoint_every: Duration


SCHEDULES = {
    "voc": Schedule(12_500, (Duration(76, "%"),), Duration(100, "st"), Duration(500, "st")),
    "coco": Schedule(
        90_000,
        (Duration(200 / 3, "%"), Duration(800 / 9, "%")),
        Duration(1000, "st"),
        Duration(2500, "st"),
    ),
}


class Detection(TargetBenchmark):
    """Average precision of a detector that is fine-tuned with its whole backbone.

    Metrics `ap`, the mean over overlaps from 0.5 to 0.95, `ap50` and `ap75`, in percent; with masks also `mask_ap`,
    `mask_ap50` and `mask_ap75`. Of VOC they are by its rules, of COCO by pycocotools. The figure `per_class` has each
    class's.
    """

    protocol = (
        "Faster R-CNN with a feature pyramid, fine-tuned from the backbone with batch normalisation over the batch on "
        "VOC 2007 trainval or COCO train2017, with masks there on demand (MoCo, He et al. 2019, arXiv 1911.05722, 4.2)."
    )
    cost = "a training of 12,500 (VOC) or 90,000 (COCO) updates of 16 images of 800 px, for a GPU; as much for a rival"

    @dataclass(frozen=True, kw_only=True)
    class Config(TargetConfig):
        """Settings of the papers' fine-tuning."""

        name: str = "detection"
        rivals: tuple[Literal["untrained"], ...] = ()
        """Rivals of the pre-trained backbone: the same one from its initial weights, for as long again."""
        path: Location | None = None
        """Folder or URI of the dataset: `VOCdevkit/VOC2007`, or the one with COCO's `annotations`."""
        more: Location | None = None
        """Folder or URI of another year of VOC whose trainval images are trained on too: `VOCdevkit/VOC2012`, with
        iterations=24000 decay_at=[75%,91.7%] as in MoCo."""
        layout: Literal["voc", "coco"] = "voc"
        """Layout of its folders, and with it the classes, the schedule and the rules of scoring."""
        train_set: str | None = None
        """Training images. Default: trainval of VOC, train2017 of COCO."""
        test_set: str | None = None
        """Test images. Default: test of VOC, val2017 of COCO."""
        masks: bool = False
        """Have Mask R-CNN tell the masks of objects too; COCO alone has them."""
        eleven_points: bool = True
        """Average VOC's precision over recalls 0, 0.1, ..., 1, as its challenges up to 2009 and the papers do; else
        take the area below the curve."""
        norm: Literal["sync", "frozen"] = "sync"
        """Batch normalisation of the backbone: over the whole batch, and then in the pyramid too; or as pre-trained."""
        freeze: tuple[str, ...] = ()
        """Stages of the backbone that stay as they are, with all in front of them. Default: all of it is trained."""
        short_sides: Annotated[tuple[Side, ...], NotEmpty()] = tuple(range(480, 801, 32))
        """Short sides of training images in pixels, one of which is drawn; test images have the largest."""
        long_side: Side = 1333
        """Most pixels of a long side."""
        iterations: Count | None = None
        """Updates. Default: 12,500 of VOC, 90,000 of COCO."""
        optimizer: Literal["auto", "sgd", "adamw"] = "auto"
        """SGD with momentum 0.9, or AdamW; auto takes AdamW for a ViT."""
        lr: Annotated[float, Within(0, 1e6)] | None = None
        """Peak learning rate for a batch of 16; it grows linearly with the batch. Default: 0.02 of SGD, 1e-4 of AdamW
        (ViTDet)."""
        weight_decay: Annotated[float, Within(0, 1000)] | None = None
        """Weight decay. Default: 1e-4 of SGD, 0.1 of AdamW."""
        warmup: Length | None = None
        """Linear rise of the learning rate from a thousandth of it. Default: 100st of VOC, 1000st of COCO."""
        decay_at: tuple[Length, ...] | None = None
        """Points at which the learning rate falls to a tenth. Default: update 9,500 of 12,500 of VOC, 60,000 and 80,000
        of 90,000 of COCO, in proportion."""
        checkpoint_every: Every | None = None
        """How often a checkpoint is saved, from which an interrupted training goes on. Default: 500st of VOC, 2500st
        of COCO."""

    Source = BoxImages
    trained_on = "training images with objects"
    without_path = "detection needs path=, the folder of a dataset as VOCdevkit/VOC2007 or COCO"

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        if config.layout == "voc" and config.masks:
            raise ConfigError("masks=true needs layout=coco: the boxes of VOC have no masks")
        if config.layout == "coco":
            # a missing pycocotools is reported now and not after the training
            tools()
            if config.more is not None:
                raise ConfigError(f"more={config.more} is for another year of VOC; leave it out with layout=coco")
        return super().fit_to(config, images)

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        backbone = checkpoint.config.backbone
        check_freeze(config.freeze, checkpoint.backbone.info(backbone), backbone.name)

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return [f"{kind}{name}" for kind in _kinds(config) for name in ("ap", "ap50", "ap75")]

    @override
    def training(self, context: Context) -> Training:
        return self.training_on(is_vit=isinstance(context.network, TokenBackbone))

    def training_on(self, is_vit: bool) -> Training:
        """Return the training on a ViT or on another network."""
        config, usual = self.config, SCHEDULES[self.config.layout]
        kind = AdamW if config.optimizer == "adamw" or (config.optimizer == "auto" and is_vit) else SGD
        lr, weight_decay = USUAL[kind]
        optim = kind.Config(
            lr=lr if config.lr is None else config.lr,
            lr_batch_size=16,
            schedule="steps",
            decay_at=usual.decay_at if config.decay_at is None else config.decay_at,
            warmup=usual.warmup if config.warmup is None else config.warmup,
            warmup_start=1e-3,
            weight_decay=weight_decay if config.weight_decay is None else config.weight_decay,
            exclude_norm=True,
            exclude_bias=False,
        )
        return Training(
            method=settings_from(config, Detector.Config),
            optim=optim,
            iterations=config.iterations or usual.iterations,
            checkpoint_every=config.checkpoint_every or usual.checkpoint_every,
        )

    @override
    def findings(self, results: Mapping[str, Tensor], source: TargetSource, seed: int) -> Findings:
        detections, sizes = parse_detections(results)
        test = source.required("test")
        assert isinstance(test, BoxSplit)
        return self.scores(detections, test, sizes)

    def scores(self, detections: Sequence[Detected], test: BoxSplit, sizes: Sequence[tuple[int, int]]) -> Findings:
        """Compute the numbers of detections in the test images."""
        metrics: list[Metric] = []
        figures: dict[str, dict[str, float]] = {}
        for kind, title in _kinds(self.config).items():
            by_class = self._by_class(detections, test, sizes, is_mask=kind == "mask_")  # [T, K]
            for name, rows in {"ap": slice(None), "ap50": slice(0, 1), "ap75": slice(5, 6)}.items():
                value = float(np.nanmean(100 * by_class[rows]))
                metrics.append(
                    Metric(f"{kind}{name}", value, title=f"{title}, {name.upper()}", is_headline=name != "ap75")
                )
            values = dict(zip(test.classes, (100 * by_class.mean(axis=0)).tolist(), strict=True))
            figures[f"{title}, AP, %"] = {name: value for name, value in values.items() if value == value}
        return Findings(metrics, figures={"per_class": figures})

    def _by_class(
        self, detections: Sequence[Detected], test: BoxSplit, sizes: Sequence[tuple[int, int]], is_mask: bool
    ) -> np.ndarray:
        """Average precision at each overlap of each class, shares [T, K]; NaN for a class without objects."""
        num_classes = len(test.classes)
        if self.config.layout == "voc":
            return precisions_by_class(detections, test.objects, num_classes, THRESHOLDS, self.config.eleven_points)
        precisions = coco_precisions(detections, test.objects, sizes, num_classes, "segm" if is_mask else "bbox")
        shares: np.ndarray = precisions[..., 0].mean(axis=1)
        return shares


def _kinds(config: Detection.Config) -> dict[str, str]:
    return {"": "Detection"} | ({"mask_": "Masks of objects"} if config.masks else {})
