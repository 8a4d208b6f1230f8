import pytest
import torch

from raysl.benchmarks.classifiers.classification import top_k_hits

FIRST = torch.tensor([[3.0, 2, 1], [3, 1, 2], [1, 3, 2]])
INTEGERS = torch.tensor([0, 1, 2])


@pytest.mark.parametrize("labels", [INTEGERS, torch.eye(3, dtype=torch.int64)])
def test_accuracy_of_one_class_an_image_is_cumulative(labels: torch.Tensor) -> None:
    hits = [top_k_hits(FIRST, labels, k).tolist() for k in (1, 2, 9)]
    assert hits == [[True, False, False], [True, False, True], [True, True, True]]


def test_of_several_classes_any_is_a_hit() -> None:
    scores = torch.tensor([[3.0, 2, 1], [3, 1, 2], [1, 3, 2], [1, 2, 3]])
    labels = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 1, 1], [1, 0, 0]])
    assert top_k_hits(scores, labels, 1).tolist() == [True, False, True, False]
    assert top_k_hits(scores, labels, 2).tolist() == [True, True, True, False]


def test_an_ignored_class_takes_no_place_and_an_image_without_a_class_is_a_miss() -> None:
    scores = torch.tensor([[9.0, 2, 1], [1, 2, 3], [3, 2, 1]])
    labels = torch.tensor([[-1, 1, 0], [0, 0, 0], [0, 1, -1]])
    assert top_k_hits(scores, labels, 1).tolist() == [True, False, False]
    assert top_k_hits(scores, torch.tensor([-1, 2, 2]), 1).tolist() == [False, True, False]
