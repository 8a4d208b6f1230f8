from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.svm import LinearSVC

from raysl.benchmarks import parallel
from raysl.benchmarks.average_precision import average_precision
from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.classifiers.svm_training import LabelledRows, Machine
from raysl.benchmarks.low_shot import draw_shots
from raysl.benchmarks.low_shot_svm import LowShotSVM, _drawn, _Shared
from raysl.cluster.connection import connect
from raysl.errors import ConfigError
from tests.benchmarks.test_knn import digits, random_set
from tests.benchmarks.test_linear import perfect_set
from tests.benchmarks.test_svm import several

SMALL: dict[str, Any] = {"shots": (1, 4), "samples": 3, "costs": (0.1, 1.0, 100.0)}


def low_shot_svm(train: FeatureSet, test: FeatureSet, num_classes: int, **settings: Any) -> Findings:
    return LowShotSVM(LowShotSVM.Config(**{**SMALL, **settings})).run(train, test, num_classes, seed=3)


def slow_maps(train: FeatureSet, test: FeatureSet, shots: int) -> np.ndarray:
    """Mean average precision in percent of each draw and cost, by scikit-learn alone; one label an image."""
    rows, queries = (each.features / (each.features.norm(dim=1, keepdim=True) + 1e-5) for each in (train, test))
    picks = draw_shots(train.labels, 4, 4, 3, seed=3)[:, :, :shots].flatten(1)
    maps = np.empty((3, 3))
    for draw, places in enumerate(picks):
        for number, cost in enumerate(SMALL["costs"]):
            areas = []
            for column in range(4):
                machine = LinearSVC(C=cost, class_weight={True: 2, False: 1}, dual=False, max_iter=2000)
                machine.fit(rows[places].numpy(), (train.labels[places] == column).numpy())
                scores = machine.decision_function(queries.numpy())
                areas.append(average_precision(scores, (test.labels == column).numpy().astype(np.int8)))
            maps[draw, number] = 100 * np.mean(areas)
    return maps


@pytest.mark.thorough
def test_one_label_an_image_is_measured_as_by_scikit_learn_alone() -> None:
    train, test = random_set(60, 0), random_set(40, 1)
    found = by_name(low_shot_svm(train, test, 4).metrics)
    for shots in (1, 4):
        maps = slow_maps(train, test, shots)
        best = maps[:, maps.mean(axis=0).argmax()]
        metric = found[f"{shots}_shot"]
        assert metric.value == pytest.approx(best.mean(), abs=0.2)  # a pair of close scores may change places
        assert metric.deviation == pytest.approx(best.std(), abs=0.2)
        assert found[f"{shots}_shot_min"].value == pytest.approx(best.min(), abs=0.2)
        assert found[f"{shots}_shot_max"].value == pytest.approx(best.max(), abs=0.2)


def shared_of(labels: torch.Tensor, picks: np.ndarray | None, **settings: Any) -> _Shared:
    rows = LabelledRows(np.zeros((len(labels), 1), dtype=np.float32), labels.numpy().astype(np.int8))
    return _Shared(rows, rows, picks, LowShotSVM.Config(**settings), Machine(), seed=0)


def test_a_class_of_several_is_drawn_with_19_negatives_for_each_positive_and_none_to_ignore() -> None:
    labels = several(400, 0).labels
    shared = shared_of(labels, None)
    for column in range(3):
        places, is_positive = _drawn(shared, 1, column, 4)
        assert is_positive.sum() == 4
        assert len(places) == len(set(places.tolist())) == 80
        assert (labels[places, column].numpy() == is_positive).all()
        fewer, _ = _drawn(shared, 1, column, 2)
        assert set(fewer.tolist()) < set(places.tolist())
        assert set(_drawn(shared, 0, column, 4)[0].tolist()) != set(places.tolist())
    every, is_positive = _drawn(shared, 0, 0, 50)
    assert len(every) - 50 == (labels[:, 0] == 0).sum()
    assert len(_drawn(shared_of(labels, None, negatives=2), 0, 0, 4)[0]) == 12


def test_a_class_alone_on_its_images_has_those_of_the_others_as_negatives() -> None:
    labels = random_set(60, 0).labels
    picks = draw_shots(labels, 4, 4, 2, seed=0).numpy()
    shared = shared_of(torch.eye(4)[labels], picks)
    places, is_positive = _drawn(shared, 1, 2, 3)
    assert torch.bincount(labels[places]).tolist() == [3, 3, 3, 3]
    assert ((labels[places] == 2).numpy() == is_positive).all()


@pytest.mark.thorough
def test_several_labels_an_image_teach_more_with_more_images() -> None:
    found = by_name(low_shot_svm(several(300, 0), several(200, 1), 3, shots=(1, 16)).metrics)
    one, many = found["1_shot"].value, found["16_shot"].value
    share = 100 * 1 / 2  # of the images that count, half have a class
    assert share < one < many < 100
    assert found["16_shot_min"].value < many < found["16_shot_max"].value


@pytest.mark.thorough
def test_perfect_features_give_100_and_random_ones_the_share_of_the_class() -> None:
    perfect = by_name(low_shot_svm(perfect_set(80, 0), perfect_set(60, 1), 4).metrics)
    assert [metric.value for metric in perfect.values()] == 6 * [100]
    noise = FeatureSet(torch.randn(1000, 6, generator=torch.Generator().manual_seed(0)), random_set(1000, 1).labels)
    found = by_name(low_shot_svm(random_set(80, 0), noise, 4).metrics)
    assert found["4_shot"].value == pytest.approx(25, abs=4)


@pytest.mark.thorough
def test_raw_digits_have_their_known_precision() -> None:
    train, test = digits()
    found = low_shot_svm(train, test, 10, shots=(1, 8), samples=3, costs=(1.0, 5.0))
    metrics = by_name(found.metrics)
    assert metrics["1_shot"].value == pytest.approx(69, abs=4)
    assert metrics["8_shot"].value == pytest.approx(92, abs=2)
    (curve,) = found.figures["curves"].values()
    assert curve["lines"]["mean"] == [[1, metrics["1_shot"].value], [8, metrics["8_shot"].value]]
    assert curve["lines"]["worst draw"][1] == [8, metrics["8_shot_min"].value]


@pytest.mark.thorough
def test_names_are_exactly_those_that_are_given_and_the_means_of_the_fewest_and_the_most_lead() -> None:
    config = LowShotSVM.Config(**{**SMALL, "shots": (4, 1, 2, 4)})
    metrics = LowShotSVM(config).run(random_set(60, 0), random_set(40, 1), 4, 0).metrics
    names = [f"{shots}_shot{end}" for shots in (4, 1, 2) for end in ("", "_min", "_max")]
    assert [metric.name for metric in metrics] == LowShotSVM.metrics(config, 4) == names
    assert [metric.name for metric in metrics if metric.is_headline] == ["4_shot", "1_shot"]


def labelled(*counts: int) -> Labelled:
    names = tuple(f"class {place}" for place in range(len(counts)))
    return Labelled(sum(counts), 10, names, np.array(counts, dtype=np.int64))


def test_shots_that_a_class_has_no_images_for_are_left_out_with_a_line() -> None:
    assert LowShotSVM.needs(LowShotSVM.Config()).labels == "any"
    assert LowShotSVM.fit_to(LowShotSVM.Config(), labelled(96, 100)) == (LowShotSVM.Config(), [])
    fitted, lines = LowShotSVM.fit_to(LowShotSVM.Config(), labelled(200, 20))
    assert fitted.shots == (1, 2, 4, 8, 16)
    assert lines == [
        "shots=32, 64, 96 needs as many training images of each class, and 'class 1' has 20; "
        "shots=[1, 2, 4, 8, 16] is measured"
    ]
    with pytest.raises(ConfigError, match="'class 0' has none; leave out classes without training images"):
        LowShotSVM.fit_to(LowShotSVM.Config(), replace(labelled(0, 5), is_multilabel=True))
    assert LowShotSVM.fit_to(LowShotSVM.Config(shots=(4,)), labelled(0, 5))[1] == [], "labels may begin at 1"
    with pytest.raises(ConfigError, match="'class 0' has 3; set fewer shots"):
        LowShotSVM.fit_to(LowShotSVM.Config(shots=(4,)), labelled(3, 5))


def test_sets_that_mean_nothing_are_refused_where_they_are_measured() -> None:
    train, test = several(40, 0), several(30, 1)
    with pytest.raises(ConfigError, match=r"class number \d has \d+ training images, 40 shots need as many"):
        low_shot_svm(train, test, 3, shots=(40,))
    with pytest.raises(ConfigError, match="no class is on some test images and absent on others"):
        low_shot_svm(train, FeatureSet(test.features, 0 * test.labels), 3)
    every = FeatureSet(train.features, torch.ones_like(train.labels))
    with pytest.raises(ConfigError, match="class number 0 is on every training image"):
        low_shot_svm(every, test, 3)
    with pytest.raises(ConfigError, match="30 of 30 test rows have features that are not finite"):
        low_shot_svm(train, FeatureSet(test.features * torch.inf, test.labels), 3)


def test_a_number_that_no_image_has_is_no_class() -> None:
    train, test = random_set(40, 0), random_set(30, 1)
    later = [FeatureSet(rows.features, rows.labels + 2) for rows in (train, test)]
    settings = {"shots": (1, 3), "samples": 2, "costs": (1.0,)}
    assert low_shot_svm(*later, 6, **settings).metrics == low_shot_svm(train, test, 4, **settings).metrics
    with pytest.raises(ConfigError, match=r"class number [2-5] has"):
        low_shot_svm(*later, 6, shots=(30,))


@pytest.mark.slow  # the processes that import this
def test_tasks_give_what_this_process_gives(shared_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = random_set(40, 0), random_set(30, 1)
    here = low_shot_svm(train, test, 4)
    monkeypatch.setattr(parallel, "WORTH_S", 0.0)
    connect()
    assert low_shot_svm(train, test, 4).metrics == here.metrics
