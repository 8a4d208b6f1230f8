from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch

from perf import clusterwork
from perf.benchmark import CASES, measure, table
from perf.classifiers import Sizes, knn_contenders, linear_contenders, measure_memory, random_features, with_changes
from perf.clusterwork import Extraction, driver_memory, svm_contenders
from perf.harness import child_numbers, choose_cases
from raysl.errors import ConfigError

TINY = Sizes(
    keys=600,
    queries=200,
    dim=16,
    classes=3,
    svm_rows=40,
    svm_dim=4,
    svm_classes=2,
    few_images=2,
    images=4,
    few_rows=64,
    rows=128,
    width=8,
)


def test_all_find_the_same_neighbours_so_they_name_the_same_classes() -> None:
    answers = {who: run() for who, run in knn_contenders(TINY).items()}
    assert set(answers) >= {"raysl", "scikit-learn", "plain"}
    for answer in answers.values():
        assert answer.tolist() == answers["plain"].tolist()


@pytest.mark.thorough
def test_classes_overlap_so_that_linear_classifiers_are_as_right_as_each_other_and_not_always() -> None:
    sizes = replace(TINY, keys=3000, queries=1000)
    labels = random_features(sizes)[1].labels
    shares = {who: float((run() == labels).float().mean()) for who, run in linear_contenders(sizes).items()}
    assert all(0.7 < share < 0.97 for share in shares.values())
    assert max(shares.values()) - min(shares.values()) < 0.01


@pytest.mark.slow
def test_classifiers_are_told_with_seconds_accuracy_memory_and_goals() -> None:
    numbers = measure(["knn", "linear"], repeats=2, sizes=TINY)
    knn = numbers["cases"]["knn"]
    assert set(knn["seconds"]) == set(knn["memory_mb"]) == set(knn["accuracy"])
    assert len(knn["repeats"]) == 2
    shown = table(numbers)
    assert "kNN, 200 queries of 600 x 16" in shown
    assert shown.count("goal at most") == len(knn["seconds"]) - 1 + 4


@pytest.mark.cluster
def test_memory_is_what_comes_on_top_of_the_features() -> None:
    few = replace(TINY, keys=3000, queries=500, dim=512)
    numbers = child_numbers(measure_memory, {"contender": "plain", "sizes": asdict(few)}, "plain")
    assert numbers["memory_mb"] >= 3000 * 500 * 4 / 2**20


def test_one_after_another_and_side_by_side_machines_are_as_precise(own_ray: None) -> None:
    contenders = svm_contenders(TINY)
    assert contenders["raysl"]() == contenders["one core"]()
    assert len(contenders["raysl"]()) == 2 * 11


@pytest.mark.slow
def test_extraction_is_told_in_images_a_second_beside_the_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_ray: None
) -> None:
    monkeypatch.setattr(clusterwork, "write_pictures", lambda path, side, num: pictures(path, 32, num))
    extraction = Extraction(replace(TINY, few_images=260, images=520, depth=10), tmp_path, side=32)
    rates = extraction.rates()
    assert set(rates) == {"raysl", "forward"}
    assert rates["forward"] > 0
    features = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    assert features == ["1", "2"]


@pytest.mark.slow
def test_a_driver_tells_the_most_that_it_had(own_ray: None) -> None:
    numbers = driver_memory(300, 8)
    assert numbers["most_mb"] >= numbers["before_mb"] > 0


def test_what_does_not_exist_is_refused() -> None:
    assert choose_cases([], CASES) == list(CASES)
    assert choose_cases(["svm", "knn"], CASES) == ["knn", "svm"]
    with pytest.raises(ConfigError, match="--only nn: there is no such case; known: knn"):
        choose_cases(["nn"], CASES)
    assert with_changes(TINY, ["keys=7"]).keys == 7
    with pytest.raises(ConfigError, match="--size key=7: there is no such size; known: keys, queries"):
        with_changes(TINY, ["key=7"])
    with pytest.raises(ConfigError, match="write a whole number from 1 on"):
        with_changes(TINY, ["keys=0"])


def pictures(path: Path, size: int, num: int) -> None:
    from perf.pictures import write_pictures

    write_pictures(path, size, num)


def test_features_are_the_same_each_time() -> None:
    assert torch.equal(random_features(TINY)[0].features, random_features(TINY)[0].features)
