"""Classification from a few labelled images a class (SimpleShot, Wang et al. 2019, arXiv 1911.04623, "CL2N")."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, BenchmarkConfig, ConfigError, FeatureSet, Labelled, Metric, mean_of
from raysl.benchmarks.classifiers.classification import unseen_note, with_note
from raysl.config.ranges import Count, NotEmpty, Within

MEMORY = 1 << 26
"""Float values of draws that are worked on at once."""
CHUNK_ROWS = 4096
"""Test rows that are compared at once."""


class LowShot(Benchmark):
    """Accuracy of the nearest class mean of a few images, averaged over many draws of those images.

    Features have the mean of the (unlabelled) training set subtracted and are normalised; a test image gets the class
    whose mean is nearest. Every draw has all classes and is measured on all test images: these are not the paper's
    episodes of five classes. Metric `1_shot` is the mean over draws with their standard deviation; its interval is over
    the test images, of the draws as they are. The draws are a function of the seed and the order of the training rows.
    """

    protocol = (
        "Nearest class mean of a few centred and normalised features among all classes, over many draws "
        "(SimpleShot, Wang et al. 2019, arXiv 1911.04623, CL2N)."
    )
    cost = "seconds on features"
    in_names = ("shots",)

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the draws."""

        name: str = "low_shot"
        shots: Annotated[tuple[Count, ...], NotEmpty()] = (1, 5)
        """Labelled images of each class; several values are all measured, each once, on nested draws."""
        draws: Annotated[int, Within(1, 100_000)] = 200
        """Random choices of the labelled images."""
        similarity: Literal["euclidean", "cosine"] = "euclidean"
        """How a test image is compared with a class mean: by the Euclidean distance to the mean as it is, which is the
        rule of SimpleShot (mileyan/simple_shot, `metric_class_type`), or by the cosine, which takes no account of how
        far the images of a class lie apart."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """A class needs as many images as shots."""
        shots, lines = fitting_shots(config.shots, images)
        return replace(config, shots=shots), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return list(dict.fromkeys(f"{shots}_shot" for shots in config.shots))

    @torch.no_grad()
    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> list[Metric]:
        train.check("train", num_classes)
        test.check("test", num_classes)
        picks = draw_shots(train.labels, num_classes, max(self.config.shots), self.config.draws, seed)
        mean = _mean(train.features)
        metrics = []
        for shots in dict.fromkeys(self.config.shots):
            by_draw, by_image = [], torch.zeros(len(test.labels), dtype=torch.float64, device=test.labels.device)
            at_once = max(1, MEMORY // (picks.shape[1] * (shots * len(mean) + CHUNK_ROWS)))
            for part in torch.split(picks[:, :, :shots], at_once):
                hits_of_draws, hits_of_images = self._hits(train, test, mean, part)
                by_draw.append(hits_of_draws)
                by_image += hits_of_images
            metric = mean_of(f"{shots}_shot", by_image / len(picks), title=f"Low-shot, {shots} per class", seed=seed)
            accuracy = 100 * torch.cat(by_draw).double() / len(test.labels)  # [draws]
            metrics.append(replace(metric, deviation=accuracy.std(correction=0).item()))
        return with_note(metrics, unseen_note(train.labels, test.labels, num_classes))

    def _hits(self, train: FeatureSet, test: FeatureSet, mean: Tensor, picks: Tensor) -> tuple[Tensor, Tensor]:
        """Count the test rows that each draw [draws, K, shots] of training rows gets right, and the draws that get each
        row right.

        Both are int64: [draws], [N].
        """
        # classes without training images have no mean, so a position among the means is not a label
        classes = train.labels[picks[0, :, 0]]  # [K]
        labelled = F.normalize(train.features[picks].float() - mean, dim=-1)
        means = labelled.mean(dim=2)  # [draws, K, D]
        if self.config.similarity == "cosine":
            means = F.normalize(means, dim=-1)
        # The nearest mean has the smallest |q - m|^2, which is the largest q.m - |m|^2 / 2.
        half_squares = means.square().sum(dim=-1) / 2  # [draws, K]
        of_draws, of_images = torch.zeros(len(picks), dtype=torch.int64, device=picks.device), []
        chunks = zip(torch.split(test.features, CHUNK_ROWS), torch.split(test.labels, CHUNK_ROWS), strict=True)
        for chunk, target in chunks:
            queries = F.normalize(chunk.float() - mean, dim=1)
            scores = torch.einsum("nd,skd->snk", queries, means) - half_squares[:, None]  # [draws, B, K]
            is_hit = classes[scores.argmax(dim=2)] == target  # [draws, B]
            of_draws += is_hit.sum(dim=1)
            of_images.append(is_hit.sum(dim=0))
        return of_draws, torch.cat(of_images)


def fitting_shots(
    shots: tuple[int, ...], images: Labelled, setting: str = "shots"
) -> tuple[tuple[int, ...], list[str]]:
    """Return the numbers of shots that every class has enough images for, and a line on the others; see
    `Benchmark.fit_to`.
    """
    if images.counts is None or (label := images.rarest) is None:
        return shots, []
    least = int(images.counts[label])
    fitting = tuple(num for num in shots if num <= least)
    if fitting == shots:
        return shots, []
    over = ", ".join(str(num) for num in shots if num not in fitting)
    why = f"{setting}={over} needs as many training images of each class, and {images.classes[label]!r} has "
    if not least:
        raise ConfigError(f"{why}none; leave out classes without training images")
    if not fitting:
        raise ConfigError(f"{why}{least:,}; set fewer {setting}")
    return fitting, [f"{why}{least:,}; {setting}={list(fitting)} is measured"]


def draw_shots(labels: Tensor, num_classes: int, shots: int, draws: int, seed: int) -> Tensor:
    """Draw `shots` rows of each of the K classes that have any at random, int64 [draws, K, shots].

    Draw number d depends on (seed, d) alone, and its first images are the same for any number of shots.
    """
    classes = labels.cpu().numpy()
    counts = np.bincount(classes, minlength=num_classes)
    present = np.flatnonzero(counts)
    if (short := np.flatnonzero((counts > 0) & (counts < shots))).size:
        raise ValueError(
            f"class {short[0]} has {counts[short[0]]} training images, {shots} shots need {shots} "
            f"({short.size} of {len(present)} classes are short); take fewer shots or more images"
        )
    positions = (np.cumsum(counts) - counts)[present, None] + np.arange(shots)  # [K, shots], in rows sorted by class
    # a counter-based generator, whose stream does not change with numpy's release
    bits = (np.random.Philox(key=np.array([seed, draw], np.uint64)).random_raw(len(classes)) for draw in range(draws))
    picks = np.stack([np.lexsort((keys, classes))[positions] for keys in bits])
    return torch.from_numpy(picks).to(labels.device)


def _mean(features: Tensor) -> Tensor:
    """Average all rows, which may exceed memory, float32 [D]."""
    total = torch.zeros(features.shape[1], dtype=torch.float64, device=features.device)
    for chunk in torch.split(features, CHUNK_ROWS):
        total += chunk.sum(dim=0, dtype=torch.float64)
    return (total / len(features)).float()


Classify = Callable[[FeatureSet, Tensor], Tensor]
"""From labelled rows and features [N, D] of others to the classes of these, int64 [N]."""


@torch.no_grad()
def few_label_metrics(
    train: FeatureSet,
    test: FeatureSet,
    num_classes: int,
    labels: Sequence[int],
    draws: int,
    seed: int,
    what: str,
    classify: Classify,
) -> list[Metric]:
    """Return `top1_5_labels` and so on: the mean accuracy over draws of five labelled images of each class, with its
    deviation.

    The draws are those of `low_shot`, nested: the same images for any number of labels, and more.
    """
    if not labels:
        return []
    picks = draw_shots(train.labels, num_classes, max(labels), draws, seed)  # [draws, K, most]
    metrics = []
    for num in dict.fromkeys(labels):
        shares = []
        for rows in picks[:, :, :num].flatten(1):
            few = FeatureSet(train.features[rows.to(train.features.device)], train.labels[rows])
            hits = classify(few, test.features).to(test.labels.device) == test.labels
            shares.append(100 * hits.double().mean())
        accuracy = torch.stack(shares).cpu()
        title = f"{what}, {num} {'label' if num == 1 else 'labels'} per class"
        spread = accuracy.std(correction=0).item() if draws > 1 else None
        metrics.append(Metric(f"top1_{num}_labels", accuracy.mean().item(), spread, title=title, is_headline=False))
    return metrics
