"""Linear classification of cached features, with the best of a grid of learning rates (DINOv2, arXiv 2304.07193)."""

from dataclasses import dataclass
from itertools import product
from typing import Annotated

import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import Benchmark, BenchmarkConfig, ConfigError, FeatureSet, Findings, Labelled
from raysl.benchmarks.classifiers.classification import Lines, check_hold_out, hold_out, measure_stages, top_names
from raysl.benchmarks.classifiers.probes import Length, Probes, Setting, best_of, train_probes
from raysl.benchmarks.classifiers.scaling import Normalize, Scaling, device_for
from raysl.config.ranges import Amount, Count, Momentum, NotEmpty, Place, Positive, Within
from raysl.errors import log


class Linear(Benchmark):
    """Accuracy of a linear classifier of the features, and of those of further stages.

    A classifier for each learning rate and weight decay is trained on most of the training images, all in one pass.
    The one that is right most often on the others, which were held out, gives the setting; a classifier is trained with
    it on all training images, and measured once on the test images. Metrics `top1` and, with more than five classes,
    `top5`, `mean_per_class` and `macro_f1`; of a stage `top1_<stage>` and so on.
    """

    protocol = (
        "A linear classifier of frozen, cached features by SGD, the learning rate chosen on held-out training images; "
        "the grid of DINOv2 (Oquab et al. 2023, arXiv 2304.07193, appendix B.3) without augmentation"
    )
    cost = "seconds to minutes on features; 10 epochs of 13 classifiers at once"
    in_names = ("stages",)
    takes_stages = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the training."""

        name: str = "linear"
        stages: tuple[str, ...] = ()
        """Stages of the backbone that are measured beside its features, each by its mean over all places."""
        normalize: Normalize = "standardize"
        """How features are scaled: `none`; `l2`, each image's to length 1; `standardize`, each feature by its mean and
        deviation over the training images; `batch_norm`, the same with the statistics of the batch in training."""
        learning_rates: Annotated[tuple[Positive, ...], NotEmpty()] = (
            1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5
        )  # fmt: skip
        """Rates that are tried, at a batch of 256 images; those of other batches are in proportion. They fall to 0 by a
        cosine."""
        weight_decays: Annotated[tuple[Amount, ...], NotEmpty()] = (0.0,)
        """Decays that are tried, each with every learning rate."""
        epochs: Count = 10
        """Passes over the training images: the 12,500 updates of 1,024 images in DINOv2 are as many of ImageNet."""
        min_updates: Place = 1000
        """Passes are added until there are as many updates, which a few thousand images need."""
        batch_size: Count = 256
        """Images of an update."""
        momentum: Momentum = 0.9
        """Of SGD."""
        holdout: Annotated[float, Within(0, 0.5, above=True)] = 0.1
        """Share of the training images of each class on which the setting is chosen. None are held out where only one
        learning rate and one weight decay are given."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """A setting cannot be chosen if no class has an image to hold out."""
        if len(_settings(config)) > 1:
            check_hold_out(images, config.holdout, "linear", "learning_rates")
        return config, []

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """Raw pixels have the metrics of the features only."""
        return top_names(cls.stages(config), num_classes)

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """The order of the rows is random."""

        def classify(rows: FeatureSet, queries: Tensor, name: str) -> tuple[Tensor, Lines]:
            probe, tried = self.fit(rows, num_classes, seed, name)
            return probe.scores(queries)[:, 0].softmax(dim=1), tried

        stages = self.stages(self.config)
        return measure_stages(train, test, num_classes, stages, "Linear probe", "learning rate", classify)

    def fit(
        self, train: FeatureSet, num_classes: int, seed: int, name: str = "features", owner: str = "linear"
    ) -> tuple[Probes, Lines]:
        """Return the classifier with the setting that is best on held-out rows, and the accuracy of every setting
        there.

        Args:
            seed: seed of the held-out rows and the order of the others.
            name: name of the features, for messages and the lines.
            owner: benchmark whose settings `learning_rates` and so on are, for messages.

        Raises:
            ConfigError: if no rows are held out, or the weights grow without bound at every setting.
        """
        scaling = Scaling.of(self.config.normalize, train.features, device_for(train.features))
        chosen, tried = self._choose(train, scaling, num_classes, seed, name, owner)
        every = torch.arange(len(train.labels))
        return self._train(train, every, [chosen], scaling, num_classes, seed), tried

    def _choose(
        self, train: FeatureSet, scaling: Scaling, num_classes: int, seed: int, name: str, owner: str
    ) -> tuple[Setting, Lines]:
        """Return the setting that is best on held-out rows, and the accuracy of each learning rate, a line for each
        weight decay."""
        settings = _settings(self.config)
        if len(settings) == 1:
            return settings[0], {}
        rest, held = hold_out(train.labels, num_classes, self.config.holdout, seed)
        probes = self._train(train, rest, settings, scaling, num_classes, seed)
        shares, losses = probes.measure(train.features, train.labels, held)
        best = best_of(shares, losses)
        if best is None:
            raise ConfigError(
                f"{owner}: the weights grew without bound at every learning rate, the least of which is "
                f"{min(self.config.learning_rates):g}; set smaller {owner}.learning_rates, or "
                f"{owner}.normalize=standardize"
            )
        percent = 100 * shares[best]
        log.info("%s: %s of %s, %.2f %% of %d held-out", owner, settings[best], name, percent, len(held))
        lines: Lines = {}
        for setting, share in zip(settings, shares.tolist(), strict=True):
            line = name if len(self.config.weight_decays) == 1 else f"{name}, weight decay {setting.weight_decay:g}"
            lines.setdefault(line, []).append([setting.lr, 100 * share])
        return settings[best], lines

    def _train(
        self, train: FeatureSet, index: Tensor, settings: list[Setting], scaling: Scaling, num_classes: int, seed: int
    ) -> Probes:
        config = self.config
        length = Length(config.epochs, config.batch_size, config.min_updates, config.momentum)
        return train_probes(train.features, train.labels, index, num_classes, settings, scaling, length, seed)


def _settings(config: Linear.Config) -> list[Setting]:
    return [Setting(*pair) for pair in dict.fromkeys(product(config.learning_rates, config.weight_decays))]
