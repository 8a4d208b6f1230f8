import numpy as np
import pytest
import torch

from raysl.benchmarks.instance_retrieval.search import precision_at, rank_database, ranks_of, score, trapezoid_precision
from raysl.benchmarks.instance_retrieval.truth import Task


def compute_ap(ranked: list[int], right: set[int], ignored: set[int]) -> float:
    """Oxford Buildings' program, line by line."""
    old_recall, old_precision, area = 0.0, 1.0, 0.0
    num_found = place = 0
    for image in ranked:
        if image in ignored:
            continue
        if image in right:
            num_found += 1
        recall, precision = num_found / len(right), num_found / (place + 1)
        area += (recall - old_recall) * (old_precision + precision) / 2
        old_recall, old_precision = recall, precision
        place += 1
    return area


def test_average_precision_is_that_of_oxford_buildings() -> None:
    random = np.random.default_rng(0)
    for _ in range(30):
        ranked, kinds = random.permutation(25), random.integers(0, 4, 25)
        right, ignored = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 2)
        if len(right) == 0:
            continue
        found = trapezoid_precision(ranks_of(ranked, right, ignored))
        assert found == pytest.approx(compute_ap(ranked.tolist(), set(right.tolist()), set(ignored.tolist())))


def test_by_hand() -> None:
    assert trapezoid_precision(np.array([0, 1, 2])) == 1
    # right ones at ranks 0 and 2: (1 + 1) / 2 and (1/2 + 2/3) / 2, each for a half of the recall
    assert trapezoid_precision(np.array([0, 2])) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)
    # one at rank 3: (0 + 1/4) / 2
    assert trapezoid_precision(np.array([3])) == pytest.approx(1 / 8)
    assert trapezoid_precision(np.array([0, 2]), 4) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 4)
    assert trapezoid_precision(np.array([], np.int64), 4) == 0


def test_what_is_ignored_has_no_rank() -> None:
    ranked = np.array([4, 2, 0, 3, 1])
    assert ranks_of(ranked, np.array([0, 1]), np.array([4, 3])).tolist() == [1, 2]
    assert ranks_of(ranked, np.array([0, 1]), np.array([], np.int64)).tolist() == [2, 4]


def test_precision_counts_no_further_than_to_the_last_right_one() -> None:
    ranks = np.array([0, 2, 3])
    assert precision_at(ranks, 1) == 1
    assert precision_at(ranks, 3) == pytest.approx(2 / 3)
    assert precision_at(ranks, 10) == pytest.approx(3 / 4)
    assert precision_at(np.array([6]), 5) == 0


def test_queries_with_nothing_to_find_are_left_out() -> None:
    none = np.empty(0, np.int64)
    task = Task("", np.array([2, 0]), (np.array([1]), none), (none, none))
    ranked = np.array([[0, 1], [0, 1], [1, 0]])
    found = score(ranked, task, ks=(1, 5))
    assert found.queries.tolist() == [2]
    assert found.average_precision.tolist() == [1.0]
    assert found.precision[1].tolist() == found.precision[5].tolist() == [1.0]


def test_equal_similarities_keep_the_order_of_the_database() -> None:
    assert rank_database(torch.tensor([[0.5, 0.9, 0.5, 0.1]])).tolist() == [[1, 0, 2, 3]]
