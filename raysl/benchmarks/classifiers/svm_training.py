"""Linear support vector machines of one class against the rest, by liblinear, in pieces that run anywhere."""

import warnings
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.svm import LinearSVC
from torch import Tensor
from typing_extensions import override

from raysl.benchmarks.average_precision import Kind, Labels, Numbers
from raysl.benchmarks.benchmark import (
    FEATURES,
    Benchmark,
    BenchmarkConfig,
    ConfigError,
    FeatureSet,
    Needs,
    missing_negatives,
)
from raysl.config.ranges import Count, Interpolation, NotEmpty, Positive
from raysl.config.schema import Rival
from raysl.errors import log
from raysl.hashing import Int64s

CHUNK_ROWS = 4096
"""Rows that are normalised at once."""
Floats = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class MachinesConfig(BenchmarkConfig):
    """Settings of machines of one class against the rest."""

    interpolation: Interpolation = "bilinear"
    """How images that are measured are resized; VISSL has bilinear."""
    rivals: tuple[Rival, ...] = ("untrained",)
    """Rivals of the pre-trained backbone. Raw pixels, 3,072 values an image, take longer than all
    else."""
    costs: Annotated[tuple[Positive, ...], NotEmpty()] = (
        0.01, 0.1, 1.0, 2.0, 5.0, 10.0, 15.0, 20.0, 50.0, 100.0, 1000.0
    )  # fmt: skip
    """Costs of an error that are tried for each class."""
    ap: Kind = "all"
    """Average precision: the area under all points of the curve (`all`), or the mean at eleven (`11point`)."""
    positive_weight: Positive = 2.0
    """Weight of the images that have the class; others weigh 1."""
    max_iter: Count = 2000
    """Steps of liblinear at most."""


class MachinesBenchmark(Benchmark):
    """Base of the benchmarks `svm` and `low_shot_svm`, for images with several labels or one."""

    @classmethod
    @override
    def needs(cls, config: Any) -> Needs:
        return Needs(labels="any")


@dataclass(frozen=True)
class Machine:
    """Settings of a machine: squared hinge loss, half the squared weights as penalty, the bias included.

    Args:
        positive_weight: weight of the images that have the class; others weigh 1.
        is_dual: whether the dual problem is solved, in a random order, as VISSL does; else the primal one, which has
            the same solution, sooner if the cost is high; None: the one that is faster.
    """

    positive_weight: float = 2.0
    max_iter: int = 2000
    is_dual: bool | None = True
    seed: int = 0

    def fit(self, rows: Floats, is_positive: NDArray[np.bool_], cost: float) -> tuple[Numbers, bool]:
        """Fit weights and bias [D + 1] to rows [N, D]; return also whether they are within liblinear's tolerance of
        1e-4.

        Args:
            is_positive: bool [N], neither all nor none.
            cost: weight of an error.
        """
        machine = LinearSVC(
            C=cost,
            class_weight={1: self.positive_weight, -1: 1.0},
            dual=is_dual_faster(len(rows), rows.shape[1], cost) if self.is_dual is None else self.is_dual,
            max_iter=self.max_iter,
            random_state=self.seed,
        )
        # a fit that stops at max_iter warns; it is counted, since hundreds of warnings would hide other messages
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", ConvergenceWarning)
            machine.fit(rows, np.where(is_positive, 1, -1))
        is_done = not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)
        return np.append(machine.coef_[0], machine.intercept_[0]), is_done


def is_dual_faster(num_rows: int, width: int, cost: float) -> bool:
    """Whether liblinear solves the dual problem sooner than the primal one.

    Measured on features of a ResNet-50: the dual takes 0.7 to 1.1 of the time for more features than rows and costs up
    to 0.1, and 2 to 10 times as long for costs from 1 on, where it is mostly stopped before its end.
    """
    return width > num_rows and cost <= 0.1


SECONDS = {True: 9e-7, False: 1.8e-7}
"""Seconds of a core that a fit takes for each feature of each row by the dual and by the primal problem; the mean over
the default costs, measured on 1,512 images of 2,048 features."""


@dataclass(frozen=True)
class LabelledRows:
    """Normalised features float32 [N, D] and labels int8 [N, K] of 1 present, 0 absent and -1 ignore."""

    features: Floats
    labels: Labels


def decisions(weights: Numbers, features: Floats) -> Numbers:
    """Return scores [N, M] of machines [M, D + 1] for features [N, D]."""
    scores = features @ weights[:, :-1].T.astype(np.float32)
    return np.asarray(scores + weights[:, -1], dtype=np.float64)


def cross_validated(rows: LabelledRows, column: int, cost: float, folds: int, machine: Machine) -> tuple[float, int]:
    """Return the mean average precision of a class over held-out folds, and the number of fits that hit the iteration
    limit.

    The parts are consecutive rows of each class; images to ignore count as absent, and the precision is scikit-learn's,
    not interpolated: VISSL's way to choose a cost.
    """
    is_positive = rows.labels[:, column] == 1
    precisions, num_stopped = [], 0
    for rest, held in StratifiedKFold(folds).split(rows.features, is_positive):
        weights, is_done = machine.fit(rows.features[rest], is_positive[rest], cost)
        scores = decisions(weights[None], rows.features[held])[:, 0]
        precisions.append(average_precision_score(is_positive[held], scores))
        num_stopped += not is_done
    return float(np.mean(precisions)), num_stopped


def fit_class(rows: LabelledRows, column: int, cost: float, machine: Machine) -> Numbers:
    """Fit weights and bias [D + 1] of a class against all other rows, ignored ones included."""
    return machine.fit(rows.features, rows.labels[:, column] == 1, cost)[0]


def normalised(features: Tensor) -> Floats:
    """Return rows [N, D] divided by their lengths plus 1e-5, as in VISSL, in memory, which liblinear needs."""
    scaled = np.empty(tuple(features.shape), dtype=np.float32)
    for first in range(0, len(features), CHUNK_ROWS):
        chunk = features[first : first + CHUNK_ROWS].float()
        chunk = chunk / (torch.linalg.vector_norm(chunk, dim=1, keepdim=True) + 1e-5)
        scaled[first : first + CHUNK_ROWS] = chunk.cpu().numpy()
    return scaled


def learned_labels(train: FeatureSet, test: FeatureSet, num_classes: int, name: str) -> tuple[Labels, Labels, Int64s]:
    """Return training and test labels, see `one_against_rest`, of the classes that machines can be trained for, and
    the numbers of these classes, int64 [L].

    Numbers that no training image has are no classes where each image has one label; of several labels an image, all
    classes count.
    """
    labels, test_labels = one_against_rest(train, "train", num_classes), one_against_rest(test, "test", num_classes)
    has_images = (labels == 1).any(axis=0) if train.labels.ndim == 1 else np.ones(num_classes, dtype=np.bool_)
    learned = np.flatnonzero(has_images)
    warn_of_classes(test_labels, learned, name)
    return labels[:, learned], test_labels[:, learned], learned


def warn_of_classes(test_labels: Labels, learned: Int64s, name: str) -> None:
    """Warn of classes that have no average precision; refuse images of which no class has one.

    Args:
        test_labels: [N, K] of 1 present, 0 absent and -1 ignore.
        learned: classes with a machine.
    """
    is_present, is_absent = (test_labels == 1).any(axis=0), (test_labels == 0).any(axis=0)
    is_learned = np.isin(np.arange(test_labels.shape[1]), learned)
    if not (is_present & is_absent & is_learned).any():
        raise ConfigError(
            "no class is on some test images and absent on others; give test images that are labelled as the training "
            "images are"
        )
    lines = {
        "is on no test image": is_learned & ~is_present,
        "is on each test image": is_learned & is_present & ~is_absent,
        "is on no training image": ~is_learned & is_present,
    }
    for line, is_affected in lines.items():
        if numbers := np.flatnonzero(is_affected).tolist():
            log.warning("%s: class %s %s; the mean is over the others", name, ", ".join(map(str, numbers)), line)


def one_against_rest(rows: FeatureSet, split: str, num_classes: int) -> Labels:
    """Return labels int8 [N, K]: 1 present, 0 absent, -1 ignore; single labels become one class against the others.

    Raises:
        ConfigError: if a label is outside of these, a class is unknown or present everywhere, or features are not
            finite.
    """
    for stage in (FEATURES, *rows.stages):
        rows.at(stage).check_finite(split if stage == FEATURES else f"{split} {stage}")
    if rows.labels.ndim == 1:
        # features were checked above; without columns, only the labels are checked here
        FeatureSet(rows.features[:, :0], rows.labels).check(split, num_classes)
        return np.asarray((rows.labels.cpu()[:, None] == torch.arange(num_classes)).numpy(), dtype=np.int8)
    if rows.labels.shape[1] != num_classes or not -1 <= int(rows.labels.min()) <= int(rows.labels.max()) <= 1:
        raise ConfigError(
            f"the {split} labels are {list(rows.labels.shape)} with values from {int(rows.labels.min())} to "
            f"{int(rows.labels.max())}; several labels an image are 1 present, 0 absent or -1 ignore of each of "
            f"{num_classes} classes"
        )
    labels = np.asarray(rows.labels.cpu().numpy(), dtype=np.int8)
    if reason := missing_negatives(labels, split):
        raise ConfigError(reason)
    return labels
