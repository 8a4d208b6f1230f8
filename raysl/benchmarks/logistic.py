"""Multinomial logistic regression on cached features by L-BFGS (DINOv2, arXiv 2304.07193; low-shot of VISSL)."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.benchmark import FEATURES, Benchmark, FeatureSet, Findings, Labelled
from raysl.benchmarks.classifiers.classification import Lines, check_hold_out, hold_out, measure_stages, names_of_tops
from raysl.benchmarks.classifiers.few_labels import few_label_metrics, fitting_labels
from raysl.benchmarks.classifiers.lbfgs import minimise
from raysl.benchmarks.classifiers.probes import Probes, best_of
from raysl.benchmarks.classifiers.scaling import CHUNK_ROWS, Scaling, chunks_of, device_for, rows_of, softmax
from raysl.config.ranges import Count, NotEmpty, Positive, Within
from raysl.config.schema import BenchmarkConfig

log = logging.getLogger("raysl")

MOST_KEPT = 1 << 30
"""Bytes of scaled features that are kept in memory between the passes; more of them are scaled anew in each."""


class Logistic(Benchmark):
    """Accuracy of multinomial logistic regression on the features, and on those of further stages.

    Minimises |W|^2 / 2 + C sum of cross entropies, biases without penalty: scikit-learn's `LogisticRegression`. The C
    that is right most often on held-out training images is taken for all of them, and measured once on the test images.
    Metrics `top1` and, with more than five classes, `top5`, `mean_per_class` and
    `macro_f1`; of a stage `top1_<stage>` and so on. `top1_5_labels` is the mean, with its deviation, over draws of five
    labelled images of each class.
    """

    protocol = (
        "Multinomial logistic regression of frozen features by full-batch L-BFGS, C chosen on held-out training images "
        "(DINOv2, Oquab et al. 2023, arXiv 2304.07193; VISSL's low-shot logistic regression)"
    )
    cost = "seconds to minutes on features; up to 100 passes over them with all C at once"

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
        """Share of the training images of each class on which C is chosen. None are held out where one is given."""
        labels: tuple[Count, ...] = ()
        """Measured besides: a regression of so many labelled images of each class alone, on features of length 1, as
        low-label tables have it (MSN, Assran et al. 2022, arXiv 2204.07141)."""
        draws: Annotated[int, Within(1, 100_000)] = 3
        """Random choices of those images; MSN has three."""
        label_cost: Positive = 400.0
        """C of those, since so few images leave none to choose it on: MSN's penalty is 0.0025 (its README)."""

    @classmethod
    @override
    def stages(cls, config: Config) -> tuple[str, ...]:
        return (FEATURES, *dict.fromkeys(config.stages))

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """C cannot be chosen if no class has an image to hold out."""
        if len(set(config.costs)) > 1:
            check_hold_out(images, config.holdout, "logistic", "costs")
        labels, lines = fitting_labels(config.labels, images)
        return replace(config, labels=labels), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """Raw pixels have the metrics of the features only."""
        few = [f"top1_{num}_labels" for num in dict.fromkeys(config.labels)]
        return names_of_tops(cls.stages(config), num_classes) + few

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """The held-out images are drawn at random."""

        def classify(rows: FeatureSet, queries: Tensor, name: str) -> tuple[Tensor, Lines]:
            scaling = Scaling.of(self.config.normalize, rows.features, device_for(rows.features))
            cost, tried = self._choose(rows, scaling, num_classes, seed, name)
            every = torch.arange(len(rows.labels))
            return self._fit(rows, every, (cost,), scaling, num_classes).probabilities(queries), tried

        def classify_few(rows: FeatureSet, queries: Tensor) -> Tensor:
            every = torch.arange(len(rows.labels))
            found = self._fit(rows, every, (config.label_cost,), Scaling("l2"), num_classes)
            return found.probabilities(queries).argmax(dim=1)

        config, what = self.config, "Logistic regression"
        found = measure_stages(train, test, num_classes, self.stages(config), what, "C", classify)
        few = few_label_metrics(train, test, num_classes, config.labels, config.draws, seed, what, classify_few)
        return replace(found, metrics=[*found.metrics, *few])

    def _choose(
        self, train: FeatureSet, scaling: Scaling, num_classes: int, seed: int, name: str
    ) -> tuple[float, Lines]:
        """Return the C that is best on held-out rows, and the points [C, percent] of all."""
        costs = tuple(dict.fromkeys(self.config.costs))
        if len(costs) == 1:
            return costs[0], {}
        rest, held = hold_out(train.labels, num_classes, self.config.holdout, seed)
        fitted = self._fit(train, rest, costs, scaling, num_classes)
        shares, losses = fitted.measure(train.features, train.labels, held)
        best = best_of(shares, losses)
        assert best is not None
        log.info("logistic: C=%g of %s, %.2f %% of %d held-out", costs[best], name, 100 * shares[best], len(held))
        points = [[cost, 100 * share] for cost, share in zip(costs, shares.tolist(), strict=True)]
        return costs[best], {name: points}

    def _fit(
        self, train: FeatureSet, index: Tensor, costs: tuple[float, ...], scaling: Scaling, num_classes: int
    ) -> Probes:
        fitted, is_done = fit_logistic(
            train.features,
            train.labels,
            index,
            num_classes,
            costs,
            scaling,
            self.config.tolerance,
            self.config.max_iter,
        )
        if early := [cost for cost, is_there in zip(costs, is_done.tolist(), strict=True) if not is_there]:
            costs_text = ", ".join(f"{cost:g}" for cost in early)
            log.info("logistic: L-BFGS was stopped after %d steps at C=%s", self.config.max_iter, costs_text)
        return fitted


def fit_logistic(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_classes: int,
    costs: tuple[float, ...],
    scaling: Scaling,
    tolerance: float = 1e-4,
    max_iter: int = 100,
) -> tuple[Probes, Tensor]:
    """Fit a logistic regression of the same rows for each C, all in the same passes over the features.

    The mean of the cross entropies plus |W|^2 / (2 C N) is minimised, from zero weights. The gradient of a class's
    biases sums to zero over classes, so that of all equally good ones those that sum to zero are found.

    Args:
        features: [N, D], maybe mapped into memory: a chunk at a time is read.
        labels: int64 [N].
        index: int64 [M], places of the rows that are learned from.
        num_classes: labels lie in [0, num_classes).
        costs: the G values of C.
        scaling: of the features.
        tolerance, max_iter: see `minimise`.

    Returns:
        The classifiers, and whether each got within the tolerance, bool [G].
    """
    device = device_for(features)
    dtype = rows_of(features, index[:1], device).dtype
    shape = num_classes, features.shape[1] + 1  # the last column: the biases
    penalty = 1 / (torch.tensor(costs, dtype=dtype, device=device) * len(index))
    rows = _Rows(features, labels, index, scaling, device)

    def evaluate(points: Tensor, which: Tensor) -> tuple[Tensor, Tensor]:
        loss, grad = _loss_and_gradient(rows, points.view(-1, shape[1]), num_classes)
        gradient, free = grad.view(-1, *shape), points.view(-1, *shape)[..., :-1]  # [A, K, D + 1]
        gradient[..., :-1] += penalty[which, None, None] * free
        return loss + 0.5 * penalty[which] * free.flatten(1).double().square().sum(dim=1), gradient.flatten(1)

    start = torch.zeros(len(costs), shape[0] * shape[1], dtype=dtype, device=device)
    points, is_done = minimise(evaluate, start, tolerance, max_iter)
    weight = points.view(-1, shape[1])
    return Probes(weight[:, :-1].contiguous(), weight[:, -1], num_classes, scaling), is_done


class _Rows:
    """Scaled rows and labels in chunks, for repeated passes; kept in memory if they fit.

    Args:
        features: [N, D].
        labels: int64 [N].
        index: int64 [M], the places of the rows.
        scaling: of the features.
        device: that calculates.
    """

    def __init__(self, features: Tensor, labels: Tensor, index: Tensor, scaling: Scaling, device: torch.device) -> None:
        self.features, self.scaling, self.index, self.device = features, scaling, index, device
        self.targets = labels[index.to(labels.device)].to(device)
        is_kept = len(index) * features.shape[1] * 4 <= MOST_KEPT
        self.kept = torch.cat(list(self._scaled())) if is_kept else None

    def __len__(self) -> int:
        return len(self.index)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        first = 0
        for x in self._scaled() if self.kept is None else torch.split(self.kept, CHUNK_ROWS):
            yield x, self.targets[first : first + len(x)]
            first += len(x)

    def _scaled(self) -> Iterator[Tensor]:
        return (self.scaling(rows) for _, rows in chunks_of(self.features, self.index, self.device))


def _loss_and_gradient(rows: _Rows, weight: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean cross entropy float64 [A] of classifiers [A K, D + 1] over rows, and its gradient of their
    shape."""
    loss = torch.zeros(len(weight) // num_classes, dtype=torch.float64, device=weight.device)
    grad = torch.zeros_like(weight)
    for x, target in rows:
        logits = torch.addmm(weight[:, -1:], weight[:, :-1], x.T).view(-1, num_classes, len(x))  # [A, K, B]
        columns = torch.arange(len(x), device=x.device)
        named = logits[:, target, columns]  # [A, B]
        error, norm = softmax(logits)
        loss += (norm - named).double().sum(dim=1)
        error[:, target, columns] -= 1
        flat = error.flatten(0, 1)  # [A K, B]
        grad[:, :-1].addmm_(flat, x)
        grad[:, -1] += flat.sum(dim=1)
    return loss / len(rows), grad / len(rows)
