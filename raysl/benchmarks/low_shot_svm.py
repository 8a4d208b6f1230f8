"""Linear support vector machines on a few images a class (Goyal et al. 2019, arXiv 1905.01235, section 5.1)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from raysl.benchmarks.average_precision import Labels, Numbers, average_precisions, mean_average_precision
from raysl.benchmarks.benchmark import ConfigError, FeatureSet, Findings, Labelled, Metric
from raysl.benchmarks.classifiers.classification import curves
from raysl.benchmarks.classifiers.svm_training import (
    Floats,
    LabelledRows,
    Machine,
    MachinesBenchmark,
    MachinesConfig,
    decisions,
    learned_labels,
    normalised,
)
from raysl.benchmarks.low_shot import draw_shots, fitting_shots
from raysl.benchmarks.parallel import run_jobs
from raysl.config.ranges import Count, NotEmpty, Within
from raysl.errors import log
from raysl.hashing import Int64s, hash_words, permutation

_POSITIVES, _NEGATIVES = 103, 104  # part of random keys


class LowShotSVM(MachinesBenchmark):
    """Mean average precision of linear support vector machines on a few images a class, over several draws of them.

    Where images have several labels, each class is learned from k that have it and 19 k that do not; where they have
    one, from k images of each class, of which those of the others are the negatives. Every cost is measured on all test
    images, and that with the best mean over the draws is reported, as the protocol has it. Metric `8_shot` is the mean
    over draws with their standard deviation, `8_shot_min` and `8_shot_max` are the worst and the best draw.
    """

    protocol = (
        "A linear SVM for each class from k images on frozen features, 5 draws, the cost that is best on the test "
        "images; low-shot VOC07 of Goyal et al. 2019 (arXiv 1905.01235) as VISSL has it"
    )
    cost = "seconds to minutes of all CPUs on features, which must fit into memory; 440 small fits of each class"
    in_names = ("shots",)

    @dataclass(frozen=True, kw_only=True)
    class Config(MachinesConfig):
        """Settings of the draws and the machines."""

        name: str = "low_shot_svm"
        shots: Annotated[tuple[Count, ...], NotEmpty()] = (1, 2, 4, 8, 16, 32, 64, 96)
        """Images that have a class; several values are all measured, each once, on nested draws."""
        samples: Annotated[int, Within(1, 1000)] = 5
        """Random choices of the images."""
        negatives: Count = 19
        """Images without a class for each that has it, as far as there are any, where images have several labels."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """A class needs as many images as shots."""
        shots, lines = fitting_shots(config.shots, images)
        return replace(config, shots=shots), lines

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        return [f"{shots}_shot{end}" for shots in dict.fromkeys(config.shots) for end in ("", "_min", "_max")]

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """The draws are a function of the seed and the order of the training rows."""
        labels, test_labels, columns = learned_labels(train, test, num_classes, "low_shot_svm")
        shots, costs = tuple(dict.fromkeys(self.config.shots)), tuple(dict.fromkeys(self.config.costs))
        self._check(labels, shots, columns)
        machine = Machine(self.config.positive_weight, self.config.max_iter, is_dual=False, seed=seed)
        picks = None
        if train.labels.ndim == 1:
            picks = draw_shots(train.labels, num_classes, max(shots), self.config.samples, seed).cpu().numpy()
        shared = _Shared(
            LabelledRows(normalised(train.features), labels),
            LabelledRows(normalised(test.features), test_labels),
            picks,
            self.config,
            machine,
            seed,
        )
        jobs = [(sample, column) for sample in range(self.config.samples) for column in range(len(columns))]
        precisions = np.stack(run_jobs(_measure_class, shared, jobs))  # [S * K, shots, costs]
        areas = precisions.reshape(self.config.samples, len(columns), len(shots), len(costs))
        maps = 100 * np.apply_along_axis(mean_average_precision, 1, areas)  # [S, shots, costs]
        return _findings(maps, shots, costs)

    def _check(self, labels: Labels, shots: tuple[int, ...], columns: Int64s) -> None:
        """Refuse classes with fewer images than shots, and classes that all images have."""
        positives, negatives = (labels == 1).sum(axis=0), (labels == 0).sum(axis=0)
        column = int(positives.argmin())
        if positives[column] < max(shots):
            raise ConfigError(
                f"class number {columns[column]} has {positives[column]} training images, {max(shots)} shots need as "
                "many; set fewer low_shot_svm.shots"
            )
        if not negatives.min():
            raise ConfigError(f"class number {columns[negatives.argmin()]} is on every training image; leave it out")


@dataclass(frozen=True)
class _Shared:
    """Inputs of the jobs of all draws and classes.

    Args:
        picks: int64 [samples, K, shots], the images of each draw where images have one label; else None.
    """

    train: LabelledRows
    test: LabelledRows
    picks: Int64s | None
    config: LowShotSVM.Config
    machine: Machine
    seed: int


def _measure_class(shared: _Shared, sample: int, column: int) -> Numbers:
    """Measure the average precision of a class with one draw, [shots, costs]."""
    config, machines = shared.config, []
    shots, costs = dict.fromkeys(config.shots), dict.fromkeys(config.costs)
    for num in shots:
        index, is_positive = _drawn(shared, sample, column, num)
        rows: Floats = shared.train.features[index]
        machines += [shared.machine.fit(rows, is_positive, cost)[0] for cost in costs]
    scores = decisions(np.stack(machines), shared.test.features)  # [N, shots * costs]
    labels = np.repeat(shared.test.labels[:, column, None], scores.shape[1], axis=1)
    return average_precisions(scores, labels, config.ap).reshape(len(shots), len(costs))


def _drawn(shared: _Shared, sample: int, column: int, num: int) -> tuple[Int64s, NDArray[np.bool_]]:
    """Return the training rows of a class, and which of them have it; the rows of fewer shots come first."""
    if shared.picks is not None:
        drawn = shared.picks[sample, :, :num]  # [K, shots]
        is_own = np.arange(len(drawn)) == column
        return drawn.flatten(), np.repeat(is_own, drawn.shape[1])
    labels, keys = shared.train.labels[:, column], (shared.seed, sample, column)
    positives = _some(np.flatnonzero(labels == 1), num, hash_words(_POSITIVES, *keys))
    negatives = _some(np.flatnonzero(labels == 0), num * shared.config.negatives, hash_words(_NEGATIVES, *keys))
    return np.concatenate([positives, negatives]), np.arange(len(positives) + len(negatives)) < len(positives)


def _some(index: Int64s, num: int, key: int) -> Int64s:
    """Take the first numbers in a random order."""
    return index[permutation(len(index), key)[:num]]


def _findings(maps: Numbers, shots: tuple[int, ...], costs: tuple[float, ...]) -> Findings:
    """Make metrics of [samples, shots, costs] in percent, for each number of shots with the cost of the best mean."""
    best = maps.mean(axis=0).argmax(axis=1)  # [shots]
    of_best = np.take_along_axis(maps, best[None, :, None], axis=2)[:, :, 0]  # [samples, shots]
    log.info("low_shot_svm: the costs of %s shots are %s", list(shots), [costs[number] for number in best])
    metrics: list[Metric] = []
    ends: dict[str, Callable[[Numbers], Any]] = {"": np.mean, "_min": np.min, "_max": np.max}
    lines: dict[str, list[list[float]]] = {"mean": [], "worst draw": [], "best draw": []}
    for num, values in zip(shots, of_best.T, strict=True):
        for (end, summary), line in zip(ends.items(), lines, strict=True):
            what = "" if not end else f", {line}"
            metric = Metric(
                f"{num}_shot{end}",
                float(summary(values)),
                None if end else float(values.std()),
                title=f"Low-shot SVM, mAP of {num} per class{what}",
                is_headline=not end and num in (min(shots), max(shots)),
            )
            metrics.append(metric)
            lines[line].append([float(num), metric.value])
    figures: dict[str, Any] = {"curves": curves("Low-shot SVM", "images per class", "mAP (%)", lines)}
    return Findings(metrics, figures=figures)
