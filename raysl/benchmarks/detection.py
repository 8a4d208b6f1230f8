"""Object detection by Faster R-CNN or Mask R-CNN that is fine-tuned from the backbone (MoCo, arXiv 1911.05722, 4.2)."""

from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch

from raysl import distributed as dist
from raysl.benchmarks.benchmark import Benchmark, Context, Findings, Labelled, Metric, Needs
from raysl.benchmarks.dense.average_precision import THRESHOLDS, Detected, precisions_by_class
from raysl.benchmarks.dense.boxes import BoxSplit, coco_boxes, voc_boxes
from raysl.benchmarks.dense.coco_scores import coco_precisions, run_lengths, tools
from raysl.benchmarks.dense.detector import Detector
from raysl.benchmarks.dense.pictures import Picture, Seeing
from raysl.benchmarks.dense.schedules import SCHEDULES, optim_of
from raysl.benchmarks.dense.stream import DenseBatches
from raysl.benchmarks.dense.training import Course, forget, trained, version_of
from raysl.config.ranges import Count, Every, Interpolation, Length, Location, NotEmpty, Side, Within
from raysl.config.schema import BenchmarkConfig
from raysl.data.order import rank_share
from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import TokenBackbone
from raysl.plan.plan import TrainPlan
from raysl.storage.folder import Folder

STRIDE = 32
"""Sides of batches are multiples of it, as in torchvision."""


class Detection(Benchmark):
    """Average precision of a detector that is trained from the backbone, all of it.

    Metrics `ap`, the mean over overlaps from 0.5 to 0.95, `ap50` and `ap75`, in percent; with masks also `mask_ap`,
    `mask_ap50` and `mask_ap75`. Of VOC they are by its rules, of COCO by pycocotools. The figure `per_class` has each
    class's.
    """

    protocol = (
        "Faster R-CNN with a feature pyramid, fine-tuned from the backbone with batch normalisation over the batch on "
        "VOC 2007 trainval or COCO train2017, with masks there on demand (MoCo, He et al. 2019, arXiv 1911.05722, 4.2)."
    )
    cost = "a training of 12,500 (VOC) or 90,000 (COCO) updates of 16 images of 800 px, for a GPU; as much for a rival"
    trains = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the papers' fine-tuning."""

        name: str = "detection"
        interpolation: Interpolation = "bilinear"
        """How images that are measured are resized; Detectron2 has bilinear."""
        rivals: tuple[Literal["untrained"], ...] = ()
        """What is trained beside the pre-trained backbone: the same one from its initial weights, for as long again."""
        path: Location | None = None
        """Folder or URI of the dataset: `VOCdevkit/VOC2007`, or the one with COCO's `annotations`."""
        more: Location | None = None
        """Folder or URI of another year of VOC whose trainval images are trained on too: `VOCdevkit/VOC2012`, with
        iterations=24000 decay_at=[75%,91.7%] as in MoCo."""
        layout: Literal["voc", "coco"] = "voc"
        """Layout of its folders, and with it the classes, the schedule and the rules of what is right."""
        train_set: str | None = None
        """Training images. Default: trainval of VOC, train2017 of COCO."""
        test_set: str | None = None
        """Test images. Default: test of VOC, val2017 of COCO."""
        limit: Count | None = None
        """Use only so many images of each set, an even share; default: all."""
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
        batch_size: Count = 16
        """Images of an update."""
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
        precision: Literal["auto", "fp32", "bf16"] = "auto"
        """Autocast of the forward pass in training; auto is bf16 on GPUs and fp32 on CPUs."""
        workers: Annotated[int, Within(1, 65_536)] | None = None
        """Training processes, which share the batch. Default: as many as the run had."""
        checkpoint_every: Every | None = None
        """How often a checkpoint is saved, from which an interrupted training goes on. Default: 500st of VOC, 2500st
        of COCO."""

    @classmethod
    def needs(cls, config: Config) -> Needs:
        """See `Benchmark.needs`: it has its own images."""
        return Needs(labels="none", test=False, own_images=True)

    @classmethod
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """See `Benchmark.fit_to`; the dataset has to be there, and to fill a batch."""
        if config.layout == "voc" and config.masks:
            raise ConfigError("masks=true needs layout=coco: the boxes of VOC have no masks")
        if config.layout == "coco":
            tools()
            if config.more is not None:
                raise ConfigError(f"more={config.more} is for another year of VOC; leave it out with layout=coco")
        train = _training_split(config)
        _test_split(config)
        if len(train) < config.batch_size:
            raise ConfigError(
                f"{len(train)} training images with objects do not fill a batch of {config.batch_size}; set a smaller "
                "batch_size"
            )
        if config.workers is not None and config.batch_size < config.workers:
            raise ConfigError(f"batch_size={config.batch_size} leaves some of {config.workers} workers without images")
        return config, []

    @classmethod
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """See `Benchmark.metrics`."""
        return [f"{kind}{name}" for kind in _kinds(config) for name in ("ap", "ap50", "ap75")]

    def measure(self, context: Context) -> Findings:
        """See `Benchmark.measure`. It trains on workers of Ray Train."""
        from raysl.benchmarks.dense.workers import on_workers

        return on_workers(self.measure_on, context, self.config.workers)

    def measure_on(self, context: Context, device: torch.device) -> Findings:
        """Measure in this process, as one of the ranks that are there.

        Args:
            context: what the benchmark was handed.
            device: where to train.

        Raises:
            ConfigError: if a file cannot be read, or the network cannot be trained so.
            NonFiniteLoss: if the loss stops being finite.
        """
        train, test = _training_split(self.config), _test_split(self.config)
        if train.classes != test.classes:
            odd = sorted(set(train.classes) ^ set(test.classes))
            raise ConfigError(f"training and test images have other classes: {', '.join(odd[:5])}")
        patch = context.checkpoint.backbone.patch_size
        multiple = int(np.lcm(STRIDE, 2 * patch if patch else 1))
        config = self.config
        seeing = Seeing(context.data, config.short_sides, config.long_side, multiple, config.masks)
        course = self._course(train, isinstance(context.network, TokenBackbone))

        def batches(plan: TrainPlan) -> DenseBatches[Picture]:
            return DenseBatches(
                plan,
                len(train),
                train.fingerprint,
                lambda place, random: seeing.for_training(train, place, random),
                seeing.collate,
                device,
            )

        method = trained(course, context, device, batches)
        assert isinstance(method, Detector)
        found: list[Detected] = []
        sizes: list[tuple[int, int]] = []
        for place in rank_share(len(test), dist.rank(), dist.world()):
            image = test.image(place)
            sizes.append((image.shape[1], image.shape[2]))
            found.append(detected(method, seeing.for_measuring(image), seeing, sizes[-1], device))
        found = [one for part in dist.gather_objects(found) for one in part]
        sizes = [one for part in dist.gather_objects(sizes) for one in part]
        forget(course, context)
        return self.findings(found, test, sizes)

    def findings(self, found: list[Detected], test: BoxSplit, sizes: list[tuple[int, int]]) -> Findings:
        """Numbers of what was found in the test images, whose heights and widths are `sizes`."""
        metrics: list[Metric] = []
        figures: dict[str, dict[str, float]] = {}
        for kind, title in _kinds(self.config).items():
            by_class = self._by_class(found, test, sizes, is_mask=kind == "mask_")  # [T, K]
            for name, rows in {"ap": slice(None), "ap50": slice(0, 1), "ap75": slice(5, 6)}.items():
                value = float(np.nanmean(100 * by_class[rows]))
                metrics.append(
                    Metric(f"{kind}{name}", value, title=f"{title}, {name.upper()}", is_headline=name != "ap75")
                )
            values = dict(zip(test.classes, (100 * by_class.mean(axis=0)).tolist(), strict=True))
            figures[f"{title}, AP, %"] = {name: value for name, value in values.items() if value == value}
        return Findings(metrics, figures={"per_class": figures})

    def _by_class(
        self, found: list[Detected], test: BoxSplit, sizes: list[tuple[int, int]], is_mask: bool
    ) -> np.ndarray:
        """Average precision at each overlap of each class, shares [T, K]; NaN of one without objects."""
        num_classes = len(test.classes)
        if self.config.layout == "voc":
            return precisions_by_class(found, test.objects, num_classes, THRESHOLDS, self.config.eleven_points)
        precisions = coco_precisions(found, test.objects, sizes, num_classes, "segm" if is_mask else "bbox")
        shares: np.ndarray = precisions[..., 0].mean(axis=1)
        return shares

    def _course(self, train: BoxSplit, is_vit: bool) -> Course:
        config, usual = self.config, SCHEDULES[self.config.layout]
        return Course(
            method=Detector,
            settings=Detector.Config(norm=config.norm, freeze=config.freeze, masks=config.masks),
            optim=optim_of(
                "adamw" if config.optimizer == "adamw" or (config.optimizer == "auto" and is_vit) else "sgd",
                lr=config.lr,
                weight_decay=config.weight_decay,
                decay_at=usual.decay_at if config.decay_at is None else config.decay_at,
                warmup=usual.warmup if config.warmup is None else config.warmup,
            ),
            iterations=config.iterations or usual.iterations,
            batch_size=config.batch_size,
            precision=config.precision,
            clip_grad=None,
            checkpoint_every=config.checkpoint_every or usual.checkpoint_every,
            num_samples=len(train),
            num_classes=len(train.classes),
            fingerprint=f"{train.fingerprint}-{config.short_sides}-{config.long_side}",
            version=version_of(self),
        )


@torch.no_grad()
def detected(
    method: Detector, picture: Picture, seeing: Seeing, size: tuple[int, int], device: torch.device
) -> Detected:
    """What a detector finds in an image, in pixels of its file.

    Args:
        method: in evaluation mode.
        picture: the image as the detector sees it.
        seeing: how it was made.
        size: height and width of the file's image.
        device: where the detector is.
    """
    batch = seeing.collate([picture], torch.zeros(1, dtype=torch.int64)).map(lambda values: values.to(device))
    (one,) = method.found(batch)
    boxes = one["boxes"].float() / one["boxes"].new_tensor([*picture.scale, *picture.scale])
    boxes[:, 0::2] = boxes[:, 0::2].clamp(0, size[1])
    boxes[:, 1::2] = boxes[:, 1::2].clamp(0, size[0])
    masks = run_lengths(one["masks"].float().cpu(), boxes.cpu(), size) if "masks" in one else ()
    return Detected(boxes.cpu().numpy(), one["scores"].float().cpu().numpy(), one["labels"].cpu().numpy(), masks)


def _kinds(config: Detection.Config) -> dict[str, str]:
    """What begins the names of metrics, and their titles."""
    return {"": "Detection"} | ({"mask_": "Masks of objects"} if config.masks else {})


def _training_split(config: Detection.Config) -> BoxSplit:
    chosen = config.train_set or SCHEDULES[config.layout].train_set
    split = _split(config, chosen)
    if config.more is not None:
        split = split.with_more(voc_boxes(Folder(config.more), SCHEDULES["voc"].train_set))
    return split.trainable(with_apart=config.layout == "voc").part(config.limit)


def _test_split(config: Detection.Config) -> BoxSplit:
    return _split(config, config.test_set or SCHEDULES[config.layout].test_set).part(config.limit)


def _split(config: Detection.Config, chosen: str) -> BoxSplit:
    """A set of images.

    Raises:
        ConfigError: if there is no path, or the dataset is not there.
    """
    if config.path is None:
        raise ConfigError("detection needs path=, the folder of a dataset as VOCdevkit/VOC2007 or COCO")
    folder = Folder(config.path)
    return voc_boxes(folder, chosen) if config.layout == "voc" else coco_boxes(folder, chosen, config.masks)
