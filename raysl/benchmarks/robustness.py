"""Accuracy under distribution shift from ImageNet: ImageNet-A, -R, -Sketch, -V2, -C, ReaL, ObjectNet."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import (
    FEATURES,
    PIXELS,
    Benchmark,
    Context,
    Findings,
    Labelled,
    Metric,
    mean_of,
    settings_from,
)
from raysl.benchmarks.classifiers.classification import check_hold_out, check_sets
from raysl.benchmarks.classifiers.probes import Probes
from raysl.benchmarks.classifiers.scaling import Normalize
from raysl.benchmarks.corruptions import corrupted_folders, mean_corruption_error
from raysl.benchmarks.linear import Linear
from raysl.benchmarks.shifted_sets import ShiftedSet, by_folder, objectnet, real_labels, reassessed
from raysl.checkpoint.backbone import Checkpoint
from raysl.config.ranges import Count, Location, NotEmpty, Positive, Within
from raysl.config.schema import BenchmarkConfig
from raysl.errors import ConfigError
from raysl.hashing import Int64s

TITLES = {
    "test": "Robustness: the run's own test images",
    "imagenet_a": "ImageNet-A",
    "imagenet_r": "ImageNet-R",
    "imagenet_sketch": "ImageNet-Sketch",
    "imagenet_v2": "ImageNet-V2",
    "imagenet_real": "ImageNet ReaL",
    "objectnet": "ObjectNet",
    "imagenet_c": "ImageNet-C",
}
SETS = tuple(name for name in TITLES if name != "test")
FOLDER = "features"
"""Where features of the sets lie while they are needed."""
MASKED = ("imagenet_a", "imagenet_r")
"""Sets of a part of the classes, of which alone a prediction is taken."""


class Robustness(Benchmark):
    """Accuracy of one linear classifier of frozen features on other test sets.

    The classifier is that of `linear`, trained on the training images. On ImageNet-A and -R only the classes that the
    set has may be predicted, on ObjectNet those that its objects are; of ReaL and ObjectNet any of an image's classes
    is right. `test_top1` is the accuracy on the run's own test images, `imagenet_a_top1` and so on those of the sets
    that are given, and with more than five classes `_top5`. Intervals are over the images of a set. `imagenet_c_mce`
    is the mean corruption error, which is 100 for AlexNet, and `imagenet_c_top1` the mean accuracy over all corruptions
    and severities; neither has an interval.
    """

    protocol = (
        "one linear classifier of frozen features on ImageNet-A (arXiv 1907.07174), -R (2006.16241), -Sketch "
        "(1905.13549), -V2 (1902.10811), -C (1903.12261), ReaL (2006.07159) and ObjectNet (Barbu et al. 2019): masks "
        "of classes, any of several labels, mCE"
    )
    cost = "that of linear, and a forward pass an image of the sets"
    trains = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Where the sets lie; those that are given are measured. The others are settings of the classifier."""

        name: str = "robustness"
        imagenet_a: Location | None = None
        """Folder or URI of ImageNet-A, with a folder for each WordNet id, as the training images have them."""
        imagenet_r: Location | None = None
        """Folder or URI of ImageNet-R, likewise."""
        imagenet_sketch: Location | None = None
        """Folder or URI of ImageNet-Sketch, likewise."""
        imagenet_v2: Location | None = None
        """Folder or URI of ImageNet-V2, as imagenetv2-matched-frequency-format-val, with a folder for each class's
        number."""
        imagenet_real: Location | None = None
        """File or URI of ReaL's real.json; the images are the test images of the run, ImageNet's validation images."""
        objectnet: Location | None = None
        """Folder or URI of objectnet-1.0, with images/ and mappings/."""
        imagenet_c: Location | None = None
        """Folder or URI of ImageNet-C, with a folder for each corruption in it or in folders of kinds (noise/, blur/),
        of severities 1 to 5 with a folder for each WordNet id. Its images are cropped and not resized before."""
        normalize: Normalize = "standardize"
        """How features are scaled, see `linear`."""
        learning_rates: Annotated[tuple[Positive, ...], NotEmpty()] = Linear.Config.learning_rates
        """Rates that are tried, the best on held-out training images, see `linear`."""
        epochs: Count = 10
        """Passes over the training images."""
        holdout: Annotated[float, Within(0, 0.5, above=True)] = 0.1
        """Share of the training images of each class on which the learning rate is chosen."""

    @classmethod
    @override
    def stages(cls, config: Config) -> tuple[str, ...]:
        """The classifier is trained on features of the run's images."""
        return (FEATURES,)

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """The sets must exist and have the training images' classes."""
        names = _given(config)
        if not names:
            raise ConfigError(f"robustness has no set to be measured on; give one of {', '.join(SETS)}")
        if len(set(config.learning_rates)) > 1:
            check_hold_out(images, config.holdout, "robustness", "learning_rates")
        for name in names:
            uri = getattr(config, name)
            if name == "imagenet_real":
                real_labels(uri, len(images.classes))
            elif name == "imagenet_c":
                corrupted_folders(uri)
            else:
                _read(name, uri, images.classes)
        return config, []

    @classmethod
    @override
    def check(cls, config: Config, checkpoint: Checkpoint) -> None:
        """The sets are of red, green and blue."""
        if (num := checkpoint.backbone.in_channels) != 3:
            raise ConfigError(f"robustness: its sets are red, green and blue, and the backbone takes {num} channels")

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        tops = (1, 5) if num_classes > 5 else (1,)
        sets = [name for name in ("test", *_given(config)) if name != "imagenet_c"]
        of_c = ["imagenet_c_mce", "imagenet_c_top1"] if config.imagenet_c is not None else []
        return [f"{name}_top{k}" for name in sets for k in tops] + of_c

    @override
    def measure(self, context: Context) -> Findings:
        """Features of the sets are extracted by tasks on the cluster."""
        assert context.train is not None
        assert context.test is not None
        check_sets(context.train, context.test, context.num_classes)
        classifier = Linear(settings_from(self.config, Linear.Config))
        probe, _ = classifier.fit(context.train, context.num_classes, context.seed, owner="robustness")
        # logits, since probabilities of the classes that a mask leaves may all be 0 in float32
        logits = probe.scores(context.test.features)[:, 0]
        metrics = list(_metrics("test", logits, context.test.labels.cpu().numpy()[:, None], None))
        for name in _given(self.config):
            if name == "imagenet_c":
                metrics += self._corrupted(context, probe)
                continue
            if name == "imagenet_real":
                labels = real_labels(self.config.imagenet_real, context.num_classes)
                images = reassessed(context.images["test"], labels)
                set_logits = logits[torch.from_numpy(images.rows)]
            else:
                images = _read(name, getattr(self.config, name), context.images["train"].classes)
                set_logits = probe.scores(features_of(context, name, images))[:, 0]
            metrics += _metrics(name, set_logits, images.right, images.allowed)
        context.folder.remove_folder(FOLDER)
        return Findings(metrics, scores=logits.softmax(dim=1), are_probabilities=True)

    def _corrupted(self, context: Context, probe: Probes) -> list[Metric]:
        """Measure ImageNet-C, one severity of one corruption at a time."""
        cropped = replace(context, data=replace(context.data, eval_resize=context.data.image_size))
        assert self.config.imagenet_c is not None
        errors: dict[str, list[float]] = {}
        for corruption, folders in corrupted_folders(self.config.imagenet_c).items():
            for severity, uri in enumerate(folders, start=1):
                images = by_folder(uri, context.images["train"].classes, is_masked=False)
                logits = probe.scores(features_of(cropped, f"{corruption}-{severity}", images))[:, 0]
                hits = top_hits(logits, images.right, images.allowed, 1)
                errors.setdefault(corruption, []).append(100 - 100 * hits.double().mean().item())
                # features of all 75 folders together would take much space
                context.folder.child(FOLDER).remove_folder(f"{corruption}-{severity}")
        every = [error for rates in errors.values() for error in rates]
        return [
            Metric(
                "imagenet_c_mce",
                mean_corruption_error(errors),
                title="ImageNet-C, mean corruption error (AlexNet: 100)",
                is_lower_better=True,
            ),
            Metric("imagenet_c_top1", 100 - sum(every) / len(every), title="ImageNet-C, top-1", is_headline=False),
        ]


def top_hits(logits: Tensor, right: Int64s, allowed: Int64s | None, k: int) -> Tensor:
    """Return whether one of the k likeliest classes is right, bool [M].

    Args:
        logits: float [M, K].
        right: int64 [M, R], classes any of which is right; -1 fills up.
        allowed: classes that are taken; None for all.
        k: fewer where there are fewer classes.
    """
    if allowed is not None:
        columns = torch.from_numpy(allowed)
        ranked = columns[logits[:, columns].topk(min(k, len(columns)), dim=1).indices]  # [M, k]
    else:
        ranked = logits.topk(min(k, logits.shape[1]), dim=1).indices
    return (ranked[:, :, None] == torch.from_numpy(right)[:, None]).flatten(1).any(dim=1)


def features_of(context: Context, name: str, images: ShiftedSet) -> Tensor:
    """Extract features [M, D] of a set's images by the measured network."""
    # Ray, without which benchmarks can still be named
    from raysl.benchmarks.features.extraction import Wanted, feature_sets

    weights = PIXELS if context.side == PIXELS else f"{context.side} {context.checkpoint.digest}"
    wanted = Wanted({context.side: context.network}, {context.side: weights})
    folder = context.folder.child(FOLDER).child(name)
    stored = feature_sets(wanted, images.images, context.data, folder)[context.side]
    return stored.load((FEATURES,)).features


def _read(name: str, uri: str, classes: Sequence[str]) -> ShiftedSet:
    """Read a set by the setting that names its folder."""
    return objectnet(uri, classes) if name == "objectnet" else by_folder(uri, classes, name in MASKED)


def _given(config: Robustness.Config) -> tuple[str, ...]:
    return tuple(name for name in SETS if getattr(config, name) is not None)


def _metrics(name: str, logits: Tensor, right: Int64s, allowed: Int64s | None) -> Iterator[Metric]:
    for k in (1, 5) if logits.shape[1] > 5 else (1,):
        title = f"{TITLES.get(name, name)}, top-{k}"
        is_headline = k == 1 and name != "test"
        yield mean_of(f"{name}_top{k}", top_hits(logits, right, allowed, k), title=title, is_headline=is_headline)
