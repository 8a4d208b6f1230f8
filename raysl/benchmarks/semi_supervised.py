"""Fine-tuning of a backbone by the labels of a few images (Goyal et al. 2021, VISSL; Chen et al. 2020, table 7)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
import torch
from typing_extensions import override

from raysl.benchmarks.benchmark import ConfigError, Context, Findings, Labelled
from raysl.benchmarks.finetune import FinetuneConfig
from raysl.benchmarks.metric import Metric, mean_of
from raysl.benchmarks.training_runs.run import TrainingBenchmark, training_run
from raysl.benchmarks.training_runs.trained import Trained, trained
from raysl.components import resolve
from raysl.config.ranges import Every, Length, Location, NotEmpty, Within
from raysl.config.schema import DataConfig
from raysl.schedule import Duration

TITLE = "Semi-supervised"
Percent = Annotated[float, Within(0, 100, above=True)]


class SemiSupervised(TrainingBenchmark):
    """Accuracy of the whole network after fine-tuning it by the labels of 1 % and of 10 % of the images.

    The images are drawn with as many of each class, always the same ones, or are those that files list. Metrics
    `top1_1pct` and, with more than five classes, `top5_1pct` of the last epoch on the centre crops of all test images,
    and so on for each share; the mean over the draws with their standard deviation, where there are several.
    """

    protocol = (
        "The whole network and a fresh linear layer trained on the labels of 1 % and of 10 % of the images; centre "
        "crops of all test images, last epoch (SimCLR, Chen et al. 2020, arXiv 2002.05709, table 7; schedule of VISSL)."
    )
    cost = "trainings of 70 epochs on 1 % and on 10 % of the images, with and without pre-training"
    in_names = ("fractions",)

    @dataclass(frozen=True, kw_only=True)
    class Config(FinetuneConfig):
        """The settings of VISSL's semi-supervised benchmark."""

        name: str = "semi_supervised"
        rivals: tuple[Literal["untrained"], ...] = ("untrained",)
        """Rivals of the pre-trained backbone: the same one from its initial weights, which is what few
        labels alone give."""
        fractions: Annotated[tuple[Percent, ...], NotEmpty()] = (1.0, 10.0)
        """Shares of the training images whose labels are used, in percent, rounded down to whole images."""
        balanced: bool = True
        """Draw as many images of each class; else draw from all alike."""
        draws: Annotated[int, Within(1, 1000)] = 1
        """Random choices of the images, of which no two have an image in common. Each is trained on alone."""
        lists: dict[str, Location] = field(default_factory=dict)
        """Files or URIs (.txt, .npy) that list the images, as `data.subset`, by the suffix of the metrics, in
        place of `fractions`: {1pct: lists/1percent.txt, 10pct: lists/10percent.txt}."""
        epochs: Annotated[int, Within(1, 1_000_000)] = 70
        """Passes over the labelled images."""
        decay_at: tuple[Length, ...] = (Duration.parse("30ep"),)
        """Points of the run at which the learning rate is divided by ten; none: it goes down to 0 along half a
        cosine."""
        eval_every: Every = field(default=Duration.parse("100%"))
        """How often the test images are looked at on the way: they are far more than the labelled ones."""

    config: Config

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """A share needs two images or, if it is balanced, one of each class."""
        if config.lists:
            return config, []
        reasons = {share: _obstacle(config, share, images) for share in config.fractions}
        fitting = tuple(share for share in config.fractions if not reasons[share])
        reason = "; ".join(reason for reason in reasons.values() if reason)
        if not fitting:
            raise ConfigError(reason)
        lines = [f"{reason}; fractions=[{', '.join(f'{share:g}' for share in fitting)}] is measured"] if reason else []
        return replace(config, fractions=fitting), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        tops = ("top1", "top5") if num_classes > 5 else ("top1",)
        return [f"{top}_{ending}" for ending in _endings(config) for top in tops]

    @override
    def measure(self, context: Context) -> Findings:
        """Train on each draw of each share."""
        config = self.config
        metrics: list[Metric] = []
        runs: Sequence[Trained] = []
        for ending, draws in _draws(config, context):
            runs = [self._trained(context, data, draw) for draw, data in enumerate(draws)]
            metrics += _metrics(runs, ending, context.seed)
        return runs[0].as_findings(metrics)  # of the last, usually the largest, share of the images

    def _trained(self, context: Context, data: DataConfig, draw: int) -> Trained:
        config = self.config
        num_train = resolve("source", data.name)(data).required("train").num_samples
        run = training_run(
            context,
            config,
            data=data,
            num_train=num_train,
            seed=context.seed + draw,
            layer_decay=config.layer_decay,
            **config.of_method,
        )
        return trained(run, config.keep_checkpoints)


def _endings(config: SemiSupervised.Config) -> list[str]:
    if config.lists:
        return list(config.lists)
    return list(dict.fromkeys(f"{share:g}pct".replace(".", "_") for share in config.fractions))


def num_drawn(num_train: int, share: float) -> int:
    """Return the images in a share in percent; 12,811 of the 1,281,167 of ImageNet are 1 %.

    >>> num_drawn(1_281_167, 1.0)
    12811
    >>> num_drawn(5000, 1.14)  # a product of floats is a little less than 57
    57
    """
    return int(num_train * Fraction(str(share)) / 100)


def _obstacle(config: SemiSupervised.Config, share: float, images: Labelled) -> str:
    """Return why a share cannot be drawn so often; empty if it can."""
    num, num_classes = num_drawn(images.num_train, share), len(images.classes)
    least = num_classes if config.balanced else 2
    what = f"{share:g} % of the {images.num_train:,} training images is {num:,}"
    if num < max(2, least):
        need = f"one of each of {num_classes} classes needs {num_classes}" if config.balanced else "a batch needs 2"
        return f"{what}, {need}; set larger fractions"
    if num * config.draws > images.num_train:
        return f"{what}, and draws={config.draws} of them are more than there are; set fewer draws"
    if config.balanced and images.counts is not None:
        label = int(np.where(images.counts > 0, images.counts, images.num_train).argmin())
        most = -(-num * config.draws // np.count_nonzero(images.counts))
        if most > images.counts[label]:
            return (
                f"{what}, of which draws={config.draws} take {most:,} of each class, and {images.classes[label]!r} has "
                f"{images.counts[label]:,}; set balanced=false, smaller fractions or fewer draws"
            )
    return ""


def _draws(config: SemiSupervised.Config, context: Context) -> Iterator[tuple[str, list[DataConfig]]]:
    """Yield the suffix of the metrics with the settings of the labelled images of each draw."""
    whole = replace(context.data, limit=None, balanced=False, skip=None)
    if config.lists:
        for ending, uri in config.lists.items():
            yield ending, [replace(whole, subset=uri, subset_by=None)]
        return
    num_train = context.images["train"].num_samples
    for ending, share in zip(_endings(config), dict.fromkeys(config.fractions), strict=True):
        num = num_drawn(num_train, share)
        parts = [replace(whole, limit=num, balanced=config.balanced, skip=draw * num) for draw in range(config.draws)]
        yield ending, parts


def _metrics(runs: Sequence[Trained], ending: str, seed: int) -> Iterator[Metric]:
    """Yield means over the draws with their deviation and the intervals over test images."""
    number = ending.removesuffix("pct").replace("_", ".")
    share = f"{number} % of the labels" if number != ending else ending
    hits = {"top1": torch.stack([run.top1[0] for run in runs]).double()}  # [draws, N]
    if runs[0].scores.shape[1] > 5:
        hits["top5"] = torch.stack([run.top5[0] for run in runs]).double()
    for top, values in hits.items():
        title = f"{TITLE}, {share}, top-{top[3:]}"
        metric = mean_of(f"{top}_{ending}", values.mean(dim=0), title=title, is_headline=top == "top1", seed=seed)
        spread = 100 * values.mean(dim=1).std(correction=0).item()
        yield replace(metric, deviation=spread if len(runs) > 1 else None)
