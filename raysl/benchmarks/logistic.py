"""Multinomial logistic regression on cached features by L-BFGS (DINOv2, arXiv 2304.07193; low-shot of VISSL)."""

from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.average_precision import Kind
from raysl.benchmarks.benchmark import Benchmark, BenchmarkConfig, ConfigError, FeatureSet, Findings, Labelled, Needs
from raysl.benchmarks.classifiers.classification import (
    Lines,
    check_hold_out,
    classify_stages,
    hold_out,
    measure_stages,
    suffix_of,
    top_names,
)
from raysl.benchmarks.classifiers.logistic_fit import fit_logistic
from raysl.benchmarks.classifiers.probes import Probes, best_of
from raysl.benchmarks.classifiers.scaling import Scaling, device_for
from raysl.benchmarks.classifiers.several_labels import binary_labels, draw, map_metrics, measure_precision
from raysl.benchmarks.classifiers.svm_training import warn_of_classes
from raysl.benchmarks.low_shot import few_label_metrics, fitting_shots
from raysl.config.ranges import Count, NotEmpty, Positive, Within
from raysl.errors import log


class Logistic(Benchmark):
    """Accuracy of multinomial logistic regression on the features, and on those of further stages.

    Minimises |W|^2 / 2 + C sum of cross entropies, biases without penalty: scikit-learn's `LogisticRegression`. The C
    that is right most often on held-out training images is taken for all of them, and measured once on the test images.
    Metrics `top1` and, with more than five classes, `top5`, `mean_per_class` and
    `macro_f1`; of a stage `top1_<stage>` and so on. `top1_5_labels` is the mean, with its deviation, over draws of five
    labelled images of each class.

    `loss=sigmoid` is for images with several labels: a binary regression for each class, all with the C whose mean
    average precision is best on held-out images. Its metric is `map`.
    """

    protocol = (
        "Multinomial logistic regression of frozen features by full-batch L-BFGS, C chosen on held-out training images "
        "(DINOv2, Oquab et al. 2023, arXiv 2304.07193; VISSL's low-shot logistic regression)"
    )
    cost = "seconds to minutes on features; up to 100 passes over them with all C at once"
    in_names = ("stages", "labels")
    takes_stages = True

    @dataclass(frozen=True, kw_only=True)
    class Config(BenchmarkConfig):
        """Settings of the regression."""

        name: str = "logistic"
        stages: tuple[str, ...] = ()
        """Stages of the backbone that are measured beside its features, each by its mean over all places."""
        normalize: Literal["none", "l2", "standardize"] = "standardize"
        """How features are scaled: `none`; `l2`, each image's to length 1; `standardize`, each feature by its mean and
        deviation over the training images, as VISSL does."""
        costs: Annotated[tuple[Positive, ...], NotEmpty()] = (
            1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0, 1e4, 1e5
        )  # fmt: skip
        """C that are tried: weights of the images against the penalty. The range is that of DINOv2, which has four
        values where this has one."""
        max_iter: Count = 100
        """Steps of L-BFGS at most."""
        tolerance: Annotated[float, Within(0, 1, above=True)] = 1e-4
        """It ends where no element of the gradient of the mean loss is larger."""
        holdout: Annotated[float, Within(0, 0.5, above=True)] = 0.1
        """Share of the training images of each class on which C is chosen. None are held out where one is given. A
        dataset with published validation images, such as `data.validation_split` of torchvision's, has C chosen on
        those."""
        holdout_images: Count | None = None
        """Number of images that C is chosen on, drawn from all training images, instead of a share of each class."""
        loss: Literal["softmax", "sigmoid"] = "softmax"
        """One regression over all classes, or a binary one for each class, for images with several labels."""
        ap: Kind = "all"
        """Average precision of `sigmoid`: the area under all points of the curve (`all`), or the mean at eleven
        (`11point`), as VOC 2007 has it."""
        labels: tuple[Count, ...] = ()
        """Numbers of labelled images of each class that a further regression learns from alone, on features of length
        1, as low-label tables have it (MSN, Assran et al. 2022, arXiv 2204.07141)."""
        draws: Annotated[int, Within(1, 100_000)] = 3
        """Random choices of those images; MSN has three."""
        label_cost: Positive = 400.0
        """C of those, since so few images leave none to choose it on: MSN's penalty is 0.0025 (its README)."""

    @classmethod
    @override
    def needs(cls, config: Config) -> Needs:
        return Needs(labels="one" if config.loss == "softmax" else "any")

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """C cannot be chosen if no class has an image to hold out."""
        if len(set(config.costs)) > 1 and not images.num_validation:
            if config.holdout_images is not None and config.holdout_images >= images.num_train:
                raise ConfigError(
                    f"logistic.holdout_images={config.holdout_images} of {images.num_train:,} training images leaves "
                    "none to learn from; set a smaller one"
                )
            if config.holdout_images is None and not images.is_multilabel:
                check_hold_out(images, config.holdout, "logistic", "costs")
        if config.loss == "sigmoid":
            if config.labels:
                raise ConfigError("logistic.labels= measures images with one label each; leave it out of loss=sigmoid")
            return config, []
        labels, lines = fitting_shots(config.labels, images, "labels")
        return replace(config, labels=labels), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """Raw pixels have the metrics of the features only."""
        if config.loss == "sigmoid":
            return [f"map{suffix_of(stage)}" for stage in cls.stages(config)]
        few = [f"top1_{num}_labels" for num in dict.fromkeys(config.labels)]
        return top_names(cls.stages(config), num_classes) + few

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """The held-out images are drawn at random."""

        config, what = self.config, "Logistic regression"

        def classify(rows: FeatureSet, queries: Tensor, name: str) -> tuple[Tensor, Lines]:
            scaling = Scaling.of(config.normalize, rows.features, device_for(rows.features))
            cost, tried = self._choose(rows, scaling, num_classes, seed, name)
            fitted = self._fit(rows, torch.arange(len(rows.labels)), (cost,), scaling, num_classes)
            scores = fitted.scores(queries)[:, 0]
            return scores if config.loss == "sigmoid" else scores.softmax(dim=1), tried

        def classify_few(rows: FeatureSet, queries: Tensor) -> Tensor:
            every = torch.arange(len(rows.labels))
            fitted = self._fit(rows, every, (config.label_cost,), Scaling("l2"), num_classes)
            return fitted.scores(queries)[:, 0].softmax(dim=1).argmax(dim=1)

        if config.loss == "sigmoid":
            train, test = binary_labels(train, "train", num_classes), binary_labels(test, "test", num_classes)
            labels = test.labels.cpu().numpy().astype(np.int8)
            warn_of_classes(labels, np.arange(num_classes), "logistic")
            scores, figures = classify_stages(train, test, self.stages(config), what, ("C", "mAP (%)"), classify)
            metrics, by_class = map_metrics(scores, labels, what, config.ap)
            return Findings(metrics, figures={"per_class": by_class, **figures})
        findings = measure_stages(train, test, num_classes, self.stages(config), what, "C", classify)
        few = few_label_metrics(train, test, num_classes, config.labels, config.draws, seed, what, classify_few)
        return replace(findings, metrics=[*findings.metrics, *few])

    def _choose(
        self, train: FeatureSet, scaling: Scaling, num_classes: int, seed: int, name: str
    ) -> tuple[float, Lines]:
        """Return the C that is best on held-out rows, and the points [C, percent] of all."""
        costs = tuple(dict.fromkeys(self.config.costs))
        if len(costs) == 1:
            return costs[0], {}
        rest, held = self._hold_out(train, num_classes, seed)
        fitted = self._fit(train, rest, costs, scaling, num_classes)
        if self.config.loss == "sigmoid":
            shares, losses = measure_precision(fitted, train, held, self.config.ap)
        else:
            shares, losses = fitted.measure(train.features, train.labels, held)
        best = best_of(shares, losses)
        assert best is not None
        log.info("logistic: C=%g of %s, %.2f %% of %d held-out", costs[best], name, 100 * shares[best], len(held))
        points = [[cost, 100 * share] for cost, share in zip(costs, shares.tolist(), strict=True)]
        return costs[best], {name: points}

    def _hold_out(self, train: FeatureSet, num_classes: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return places of the rows that are learned from, and of those that C is chosen on."""
        config, num = self.config, len(train.labels)
        if train.num_validation:
            first = num - train.num_validation
            return torch.arange(first), torch.arange(first, num)
        if config.holdout_images is not None:
            return draw(num, config.holdout_images, seed)
        if config.loss == "sigmoid":
            return draw(num, max(1, round(num * config.holdout)), seed)
        return hold_out(train.labels, num_classes, config.holdout, seed)

    def _fit(
        self, train: FeatureSet, index: Tensor, costs: tuple[float, ...], scaling: Scaling, num_classes: int
    ) -> Probes:
        limits = self.config.tolerance, self.config.max_iter
        fitted, is_done = fit_logistic(train.features, train.labels, index, num_classes, costs, scaling, *limits)
        if early := [cost for cost, is_there in zip(costs, is_done.tolist(), strict=True) if not is_there]:
            costs_text = ", ".join(f"{cost:g}" for cost in early)
            log.info("logistic: L-BFGS was stopped after %d steps at C=%s", self.config.max_iter, costs_text)
        return fitted
