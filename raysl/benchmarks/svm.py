"""Linear support vector machines on frozen features, by average precision (Goyal et al. 2019, arXiv 1905.01235)."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.average_precision import Numbers
from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, Outlook
from raysl.benchmarks.classifiers.classification import Lines, classify_stages, suffix_of
from raysl.benchmarks.classifiers.several_labels import map_metrics
from raysl.benchmarks.classifiers.svm_training import (
    SECONDS,
    LabelledRows,
    Machine,
    MachinesBenchmark,
    MachinesConfig,
    cross_validated,
    decisions,
    fit_class,
    learned_labels,
    normalised,
)
from raysl.benchmarks.parallel import run_jobs
from raysl.config.component import MAY_CHANGE
from raysl.config.ranges import Within
from raysl.errors import ConfigError, log


class SVM(MachinesBenchmark):
    """Mean average precision of a linear support vector machine for each class, with several labels an image or one.

    Features are brought to length 1. Each class has the cost that is best on held-out parts of the training images, and
    is then learned from all of them. Metric `map`; of a stage `map_<stage>`. The cross-validations, one for each class
    and cost, are Ray tasks where they are long enough.
    """

    protocol = (
        "A linear SVM for each class on frozen features, its cost by 3-fold cross-validated average precision; "
        "VOC07 classification of Goyal et al. 2019 (arXiv 1905.01235) as VISSL has it"
    )
    cost = "minutes of all CPUs (svm.cores) on features, which must fit into memory; 34 fits of each class"
    in_names = ("stages",)
    takes_stages = True

    @dataclass(frozen=True, kw_only=True)
    class Config(MachinesConfig):
        """Settings of the machines."""

        name: str = "svm"
        stages: tuple[str, ...] = ()
        """Stages of the backbone that are measured beside its features, each by its mean over all places."""
        folds: Annotated[int, Within(2, 100)] = 3
        """Parts of the training images, each of which is held out once. There is no need of them where one cost is
        given."""
        dual: bool | Literal["auto"] = "auto"
        """Solve the dual problem, as VISSL does, which stops before its end at high costs; else the primal one, which
        has the same solution. auto: the one that is faster, which is the primal one but for low costs and more features
        than images."""
        cores: Annotated[int, Within(1, 4096)] | None = field(default=None, metadata=MAY_CHANGE)
        """CPU cores at a time; default: all that the cluster has free."""

    @classmethod
    @override
    def fit_to(cls, config: Config, images: Labelled) -> tuple[Config, list[str]]:
        """Each fold needs an image of each class."""
        if images.counts is not None and (label := images.rarest) is not None:
            _check_positives(config, int(images.counts[label]), images.num_train, repr(images.classes[label]))
        return config, []

    @classmethod
    @override
    def metrics(cls, config: Config, num_classes: int) -> list[str]:
        """Raw pixels have the metric of the features only."""
        return [f"map{suffix_of(stage)}" for stage in cls.stages(config)]

    @classmethod
    @override
    def outlook(cls, config: Config, num_rows: int, width: int, num_classes: int) -> Outlook:
        """Every fit takes a time in proportion to the size of the features."""
        num_costs, num_stages = len(set(config.costs)), len(cls.stages(config))
        num = num_classes * ((config.folds * num_costs if num_costs > 1 else 0) + 1)
        what = f"{num * num_stages:,} fits of support vector machines to {num_rows:,} x {width:,} features"
        what += f" of {num_stages} stages" if num_stages > 1 else ""
        seconds = num * num_rows * width * SECONDS[config.dual is True]
        return Outlook(what, seconds, config.cores, "fewer svm.costs or svm.folds take less")

    @override
    def run(self, train: FeatureSet, test: FeatureSet, num_classes: int, seed: int) -> Findings:
        """The order in which liblinear visits the rows is random."""
        labels, test_labels, columns = learned_labels(train, test, num_classes, "svm")
        positives = (labels == 1).sum(axis=0)
        # if the rarest and the most frequent class have enough images with and without it, all have
        for column in np.argsort(positives)[[0, -1]].tolist():
            _check_positives(self.config, int(positives[column]), len(labels), f"number {columns[column]}")

        def classify(rows: FeatureSet, queries: Tensor, name: str) -> tuple[Tensor, Lines]:
            weights = self._train(LabelledRows(normalised(rows.features), labels), seed, name)
            return torch.from_numpy(decisions(weights, normalised(queries))), {}

        scores, _ = classify_stages(train, test, self.stages(self.config), "SVM", ("", ""), classify)
        metrics, by_class = map_metrics(scores, test_labels, "SVM", self.config.ap, columns.tolist())
        figures = {"per_class": by_class}
        if test.labels.ndim > 1:
            return Findings(metrics, figures=figures)
        # classes without training images have no machine, and are never predicted
        of_all = torch.full((len(test_labels), num_classes), -torch.inf)
        of_all[:, torch.from_numpy(columns)] = next(iter(scores.values())).float()
        return Findings(metrics, scores=of_all, figures=figures)

    def _train(self, rows: LabelledRows, seed: int, name: str) -> Numbers:
        """Train weights and biases [K, D + 1], each class with its best cost."""
        is_dual = None if self.config.dual == "auto" else self.config.dual
        machine = Machine(self.config.positive_weight, self.config.max_iter, is_dual, seed)
        classes, costs = range(rows.labels.shape[1]), tuple(dict.fromkeys(self.config.costs))
        chosen = dict.fromkeys(classes, costs[0])
        if len(costs) > 1:
            jobs = [(column, cost) for cost in sorted(costs, reverse=True) for column in classes]  # slow ones first
            settings = (self.config.folds, machine)
            precisions = run_jobs(cross_validated, rows, [(*job, *settings) for job in jobs], self.config.cores)
            results = dict(zip(jobs, precisions, strict=True))
            chosen = {column: max(costs, key=lambda cost: results[column, cost][0]) for column in classes}
            num_stopped = sum(stopped for _, stopped in results.values())
            log.info("svm: the costs of %s are %s", name, ", ".join(f"{cost:g}" for cost in chosen.values()))
            if num_stopped:
                what = "svm: %d of %d fits of %s were stopped after %d steps, as are those of the papers"
                log.info(what, num_stopped, len(jobs) * self.config.folds, name, self.config.max_iter)
        last = [(column, cost, machine) for column, cost in chosen.items()]
        return np.stack(run_jobs(fit_class, rows, last, self.config.cores))


def _check_positives(config: SVM.Config, num_positive: int, num_rows: int, label: str) -> None:
    """Refuse a class that all images of a fold have, or none."""
    least = config.folds if len(set(config.costs)) > 1 else 1
    if num_positive < least:
        raise ConfigError(
            f"class {label} has {num_positive} training images, {least} are needed to hold out each of {least} parts "
            "once; set a smaller svm.folds, a single one of svm.costs, or leave the class out"
        )
    if num_rows - num_positive < least:
        raise ConfigError(
            f"class {label} is on {num_positive} of {num_rows} training images, which leaves too few without it; "
            "leave the class out"
        )
