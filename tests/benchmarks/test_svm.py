import logging
from dataclasses import fields, replace

import numpy as np
import pytest
import ray
import torch
from sklearn.model_selection import cross_val_score
from sklearn.svm import LinearSVC

from raysl.benchmarks import parallel
from raysl.benchmarks.average_precision import average_precision, mean_average_precision
from raysl.benchmarks.benchmark import FeatureSet, Findings, Labelled, by_name
from raysl.benchmarks.classifiers import svm_training
from raysl.benchmarks.classifiers.svm_training import LabelledRows, Machine, cross_validated, fit_class, normalised
from raysl.benchmarks.svm import SVM
from raysl.cluster.connection import connect
from raysl.config.schema import is_may_change
from raysl.errors import ConfigError
from raysl.process.screen import duration
from tests.benchmarks.test_knn import digits, random_set
from tests.benchmarks.test_linear import perfect_set

COSTS = (0.1, 1.0, 10.0)


def svm(train: FeatureSet, test: FeatureSet, num_classes: int, **settings: object) -> Findings:
    return SVM(SVM.Config(**{"costs": COSTS, "dual": True, **settings})).run(train, test, num_classes, seed=0)


def several(num: int, seed: int, num_classes: int = 3) -> FeatureSet:
    """Rows with any number of classes each, some to be ignored, whose features tell something of them."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(-1, 2, (num, num_classes), generator=generator)
    labels[:4, :] = torch.tensor([0, 1, 0, 1])[:, None]
    features = torch.randn(num, 6, generator=generator)
    features[:, :num_classes] += 0.8 * labels
    return FeatureSet(features, labels)


def theirs(cost: float) -> LinearSVC:
    return LinearSVC(C=cost, class_weight={1: 2, -1: 1}, dual=True, max_iter=2000, random_state=0)


def slow_svm(train: FeatureSet, test: FeatureSet) -> tuple[list[float], list[float]]:
    """Average precision and cost of each class, by scikit-learn alone."""
    rows, queries = (each.features / (each.features.norm(dim=1, keepdim=True) + 1e-5) for each in (train, test))
    areas, chosen = [], []
    for column in range(train.labels.shape[1]):
        target = np.where(train.labels[:, column] == 1, 1, -1)
        precisions = [
            cross_val_score(theirs(cost), rows.numpy(), target, cv=3, scoring="average_precision").mean()
            for cost in COSTS
        ]
        chosen.append(COSTS[int(np.argmax(precisions))])
        scores = theirs(chosen[-1]).fit(rows.numpy(), target).decision_function(queries.numpy())
        areas.append(average_precision(scores, test.labels[:, column].numpy().astype(np.int8)))
    return areas, chosen


@pytest.mark.thorough
def test_several_labels_an_image_are_measured_as_by_scikit_learn_alone(caplog: pytest.LogCaptureFixture) -> None:
    train, test = several(90, 0), several(60, 1)
    with caplog.at_level(logging.INFO, logger="raysl"):
        found = svm(train, test, 3)
    areas, chosen = slow_svm(train, test)
    assert f"the costs of features are {', '.join(f'{cost:g}' for cost in chosen)}" in caplog.text
    assert by_name(found.metrics)["map"].value == pytest.approx(100 * np.mean(areas))
    assert found.figures["per_class"]["SVM of features: average precision (%)"] == pytest.approx(
        {str(label): 100 * area for label, area in enumerate(areas)}
    )
    low, high = found.metrics[0].interval or (0, 0)
    assert low < found.metrics[0].value < high
    assert found.scores is None


@pytest.mark.thorough
def test_images_to_ignore_are_negatives_in_training_and_dropped_in_test() -> None:
    train, test = several(90, 0), several(60, 1)
    as_absent = FeatureSet(train.features, train.labels.clamp(min=0))
    assert svm(train, test, 3).metrics == svm(as_absent, test, 3).metrics
    assert svm(train, FeatureSet(test.features, test.labels.clamp(min=0)), 3).metrics != svm(train, test, 3).metrics


@pytest.mark.thorough
def test_one_label_an_image_is_each_class_against_the_rest() -> None:
    train, test = random_set(90, 0), random_set(60, 1)
    apart = [FeatureSet(rows.features, torch.eye(4, dtype=torch.int64)[rows.labels]) for rows in (train, test)]
    one, other = svm(train, test, 4), svm(*apart, 4)
    assert one.metrics == other.metrics
    assert one.scores is not None
    assert (one.scores.argmax(dim=1) == test.labels).float().mean() > 0.4


@pytest.mark.thorough
def test_perfect_features_give_100_and_random_ones_the_share_of_the_class() -> None:
    assert by_name(svm(perfect_set(80, 0), perfect_set(60, 1), 4).metrics)["map"].value == 100
    noise = FeatureSet(torch.randn(2000, 6, generator=torch.Generator().manual_seed(0)), random_set(2000, 1).labels)
    assert by_name(svm(random_set(400, 0), noise, 4).metrics)["map"].value == pytest.approx(25, abs=4)


@pytest.mark.thorough
def test_raw_digits_are_ranked_nearly_right_by_both_average_precisions() -> None:
    train, test = digits()
    found = [svm(train, test, 10, costs=(1.0,), ap=ap).metrics[0].value for ap in ("all", "11point")]
    assert found == [pytest.approx(97.4, abs=1), pytest.approx(96.5, abs=1.5)]
    assert found[0] != found[1]


def test_the_primal_and_the_dual_problem_have_one_solution() -> None:
    rows = normalised(random_set(60, 0).features)
    is_positive = random_set(60, 0).labels.numpy() == 1
    dual, is_done = Machine(max_iter=100_000).fit(rows, is_positive, 10.0)
    primal, also = Machine(is_dual=False).fit(rows, is_positive, 10.0)
    assert is_done
    assert also
    np.testing.assert_allclose(dual, primal, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize(("width", "cost", "is_dual"), [(64, 0.01, True), (64, 10.0, False), (3, 0.01, False)])
def test_the_problem_that_is_solved_sooner_is_chosen_by_shape_and_cost(width: int, cost: float, is_dual: bool) -> None:
    features = torch.randn(40, width, generator=torch.Generator().manual_seed(0))
    rows, is_positive = normalised(features), np.arange(40) % 3 == 0
    fitted = {kind: Machine(is_dual=kind).fit(rows, is_positive, cost)[0] for kind in (None, True, False)}
    assert np.array_equal(fitted[None], fitted[is_dual])
    assert not np.array_equal(fitted[None], fitted[not is_dual])
    assert SVM.Config().dual == "auto"


def test_what_it_takes_is_told_in_fits_and_minutes_on_the_cores_that_it_may_use() -> None:
    outlook = SVM.outlook(SVM.Config(), 1512, 2048, 10)
    assert outlook.line("svm", 2, 4.0) == (
        "svm: 340 fits of support vector machines to 1,512 x 2,048 features for each of 2 networks, about 95 s on "
        "4 cores; fewer svm.costs or svm.folds take less"
    ).replace("95 s", duration(2 * outlook.seconds / 4))
    assert "on 2 cores" in SVM.outlook(SVM.Config(cores=2), 1512, 2048, 10).line("svm", 2, 4.0)
    assert SVM.outlook(SVM.Config(dual=True), 1512, 2048, 10).seconds > 3 * outlook.seconds
    assert SVM.outlook(SVM.Config(), 100, 64, 3).line("svm", 1, 1.0) == ""
    at_stages = SVM.outlook(SVM.Config(stages=("res3", "res4")), 1512, 2048 + 512 + 1024, 10)
    assert at_stages.what == "1,020 fits of support vector machines to 1,512 x 3,584 features of 3 stages"
    assert at_stages.seconds == pytest.approx(outlook.seconds * 3584 / 2048)


@pytest.mark.thorough
def test_the_number_of_cores_makes_no_other_result() -> None:
    alone = svm(several(60, 0), several(40, 1), 3, cores=1)
    assert alone.metrics == svm(several(60, 0), several(40, 1), 3).metrics
    assert is_may_change({field.name: field for field in fields(SVM.Config)}["cores"].metadata)


def test_a_fit_that_is_stopped_is_told() -> None:
    rows = LabelledRows(normalised(random_set(60, 0).features), several(60, 0).labels.numpy().astype(np.int8))
    assert cross_validated(rows, 0, 1000.0, 3, Machine(max_iter=1))[1] == 3
    assert cross_validated(rows, 0, 0.01, 3, Machine(max_iter=10_000))[1] == 0
    assert fit_class(rows, 0, 0.01, Machine()).shape == (7,)


def test_rows_are_divided_by_their_length_and_a_little_more_in_any_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [6e-6, 8e-6]]).half()
    expected = rows.float() / (rows.float().norm(dim=1, keepdim=True) + 1e-5)
    np.testing.assert_allclose(normalised(rows), expected)
    monkeypatch.setattr(svm_training, "CHUNK_ROWS", 2)
    np.testing.assert_allclose(normalised(rows), expected)


def svm_in_tasks(train: FeatureSet, test: FeatureSet) -> Findings:
    parallel.WORTH_S = 0.0
    return svm(train, test, 3, costs=(0.1, 1.0))


@pytest.mark.slow  # the processes that import this
def test_tasks_give_what_this_process_gives(shared_ray: None, monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = several(40, 0), several(30, 1)
    here = svm(train, test, 3, costs=(0.1, 1.0))
    monkeypatch.setattr(parallel, "WORTH_S", 0.0)
    connect()
    assert svm(train, test, 3, costs=(0.1, 1.0)).metrics == here.metrics
    assert ray.get(ray.remote(num_cpus=1)(svm_in_tasks).remote(train, test)).metrics == here.metrics


def test_stages_have_metrics_of_their_own_and_pixels_have_none() -> None:
    train, test = several(60, 0), several(40, 1)
    config = SVM.Config(stages=("layer3",), costs=(1.0,))
    assert SVM.stages(config) == ("", "layer3")
    sets = [FeatureSet(rows.features, rows.labels, {"layer3": rows.features[:, :2]}) for rows in (train, test)]
    found = by_name(SVM(config).run(*sets, 3, 0).metrics)
    assert list(found) == SVM.metrics(config, 3) == ["map", "map_layer3"]
    alone = svm(*[FeatureSet(rows.features[:, :2], rows.labels) for rows in (train, test)], 3, costs=(1.0,))
    assert found["map_layer3"].value == alone.metrics[0].value != found["map"].value
    assert list(by_name(SVM(config).run(train, test, 3, 0).metrics)) == ["map"]


def labelled(*counts: int) -> Labelled:
    names = tuple(f"class {place}" for place in range(len(counts)))
    return Labelled(10, 10, names, np.array(counts, dtype=np.int64), is_multilabel=True)


def test_a_class_with_too_few_images_is_named_on_the_driver_and_again_where_it_is_measured() -> None:
    assert SVM.needs(SVM.Config()).labels == "any"
    assert SVM.fit_to(SVM.Config(), labelled(3, 7)) == (SVM.Config(), [])
    with pytest.raises(ConfigError, match="class 'class 1' has 2 training images, 3 are needed"):
        SVM.fit_to(SVM.Config(), labelled(3, 2))
    with pytest.raises(ConfigError, match="class 'class 0' has 0 training images, 1 are needed"):
        SVM.fit_to(SVM.Config(costs=(1.0,)), labelled(0, 5))
    rows = several(40, 0)
    none = FeatureSet(rows.features, rows.labels * torch.tensor([1, 0, 1]))
    with pytest.raises(ConfigError, match="class number 1 has 0 training images"):
        svm(none, rows, 3)
    every = FeatureSet(rows.features, torch.cat([torch.ones(40, 1, dtype=torch.int64), rows.labels[:, 1:]], dim=1))
    with pytest.raises(ConfigError, match="class number 0 is on 40 of 40 training images"):
        svm(every, rows, 3)


@pytest.mark.thorough
def test_a_class_without_test_images_is_left_out_of_the_mean_and_told(caplog: pytest.LogCaptureFixture) -> None:
    train, test = several(60, 0), several(40, 1)
    without = FeatureSet(test.features, torch.where(torch.tensor([False, True, False]), 0, test.labels))
    found = svm(train, without, 3)
    (by_class,) = found.figures["per_class"].values()
    assert list(by_class) == ["0", "2"]
    assert found.metrics[0].value == pytest.approx(
        100 * mean_average_precision(np.array(list(by_class.values())) / 100)
    )
    assert "svm: class 1 is on no test image; the mean is over the others" in caplog.text
    everywhere = FeatureSet(test.features, torch.where(torch.tensor([False, True, False]), 1, test.labels))
    assert svm(train, everywhere, 3).metrics[0].value == found.metrics[0].value
    assert "svm: class 1 is on each test image; the mean is over the others" in caplog.text
    with pytest.raises(ConfigError, match="no class is on some test images and absent on others"):
        svm(train, FeatureSet(test.features, 0 * test.labels), 3)


@pytest.mark.thorough
def test_a_number_that_no_image_has_is_no_class(caplog: pytest.LogCaptureFixture) -> None:
    train, test = random_set(60, 0), random_set(40, 1)
    found, expected = (
        svm(*(FeatureSet(rows.features, rows.labels + first) for rows in (train, test)), 4 + first) for first in (2, 0)
    )
    assert found.metrics == expected.metrics
    assert found.scores is not None
    assert expected.scores is not None
    assert torch.equal(found.scores.argmax(dim=1), expected.scores.argmax(dim=1) + 2)
    assert list(found.figures["per_class"].values()) == [
        {str(int(label) + 2): area for label, area in of_class.items()}
        for of_class in expected.figures["per_class"].values()
    ]
    assert SVM.fit_to(SVM.Config(), replace(labelled(0, 5), is_multilabel=False)) == (SVM.Config(), [])
    assert "the mean is over the others" not in caplog.text
    moved = FeatureSet(test.features, test.labels.where(test.labels != 3, 4))
    assert svm(train, moved, 5).metrics != expected.metrics
    assert "svm: class 4 is on no training image; the mean is over the others" in caplog.text


def test_labels_and_features_that_mean_nothing_are_refused() -> None:
    train, test = several(40, 0), several(30, 1)
    with pytest.raises(ConfigError, match=r"the train labels are \[40, 3\] with values from -1 to 1; .* each of 4"):
        svm(train, test, 4)
    with pytest.raises(ConfigError, match=r"the test labels are \[30, 3\] with values from -2 to 2"):
        svm(train, FeatureSet(test.features, 2 * test.labels), 3)
    with pytest.raises(ConfigError, match="the test labels range from 0 to 3, outside 0 to 2"):
        svm(train, random_set(30, 1), 3)
    with pytest.raises(ConfigError, match="40 of 40 train rows have features that are not finite"):
        svm(FeatureSet(train.features * torch.nan, train.labels), test, 3)
