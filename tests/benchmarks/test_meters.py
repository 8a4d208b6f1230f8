import pytest
import torch

from raysl.benchmarks.meters import Meter, PrecisionAtK, RecallAtK, TopK, top_k_hits
from tests.rank_processes import RunRanks

FIRST = torch.tensor([[3.0, 2, 1], [3, 1, 2], [1, 3, 2]])
SECOND = torch.tensor([[3.0, 2, 1], [1, 3, 2], [1, 3, 2]])
INTEGERS = torch.tensor([0, 1, 2])
MANY = torch.tensor([[1, 0, 1], [0, 1, 0], [0, 1, 1]])  # 5 classes on 3 images


def percents(meter: Meter) -> list[float]:
    return [round(100 * share, 4) for share in meter.values().values()]


@pytest.mark.parametrize("labels", [INTEGERS, torch.eye(3, dtype=torch.int64)])
def test_accuracy_of_one_class_an_image_is_cumulative(labels: torch.Tensor) -> None:
    meter = TopK((1, 2))
    meter.update(FIRST, labels)
    assert percents(meter) == [33.3333, 66.6667]
    meter.update(SECOND, labels)
    assert percents(meter) == [50.0, 83.3333]


def test_of_several_classes_any_is_a_hit() -> None:
    scores = torch.tensor([[3.0, 2, 1], [3, 1, 2], [1, 3, 2], [1, 2, 3], [3, 2, 1], [2, 3, 1], [1, 2, 3]])
    labels = torch.tensor([[1, 1, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 0, 1], [1, 0, 1], [0, 1, 1]])
    meter = TopK((1, 2))
    meter.update(scores, labels)
    assert meter.values() == {1: pytest.approx(4 / 7), 2: pytest.approx(6 / 7)}


def test_precision_and_recall_of_several_classes_by_hand() -> None:
    precision, recall = PrecisionAtK((1, 2)), RecallAtK((1, 2))
    for meter in (precision, recall):
        meter.update(FIRST, MANY)  # right: 0; nothing, nothing; 1 and 2
    assert precision.values() == {1: pytest.approx(2 / 3), 2: pytest.approx(3 / 6)}
    assert recall.values() == {1: pytest.approx(2 / 5), 2: pytest.approx(3 / 5)}
    for meter in (precision, recall):
        meter.update(SECOND, torch.eye(3, dtype=torch.int64))  # right: 0; 1; second place
    assert precision.values() == {1: pytest.approx(4 / 6), 2: pytest.approx(6 / 12)}
    assert recall.values() == {1: pytest.approx(4 / 8), 2: pytest.approx(6 / 8)}


def test_precision_and_recall_of_one_class_an_image() -> None:
    third = torch.tensor([[3.0, 2, 1], [3, 1, 2], [2, 3, 1]])
    for labels in (INTEGERS, torch.eye(3, dtype=torch.int64)):
        precision, recall = PrecisionAtK((1, 2)), RecallAtK((1, 2))
        for meter in (precision, recall):
            meter.update(SECOND, labels)
            meter.update(third, labels)
        assert precision.values() == {1: pytest.approx(3 / 6), 2: pytest.approx(4 / 12)}
        assert recall.values() == {1: pytest.approx(3 / 6), 2: pytest.approx(4 / 6)}


def test_an_ignored_class_takes_no_place_and_an_image_without_a_class_does_not_count() -> None:
    scores = torch.tensor([[9.0, 2, 1], [1, 2, 3], [3, 2, 1]])
    labels = torch.tensor([[-1, 1, 0], [0, 0, 0], [0, 1, -1]])
    assert top_k_hits(scores, labels, 1).tolist() == [True, False, False]
    meter = TopK((1, 2, 9))
    meter.update(scores, labels)
    assert meter.values() == {1: 0.5, 2: 1.0, 9: 1.0}
    unlabelled = TopK((1,))
    unlabelled.update(scores, torch.tensor([-1, 2, 2]))
    assert unlabelled.values() == {1: 0.5}


@pytest.mark.parametrize("kind", [TopK, PrecisionAtK, RecallAtK])
def test_counts_go_on_in_another_meter_and_are_forgotten_on_reset(kind: type[Meter]) -> None:
    one, other, both = kind((1, 2)), kind((1, 2)), kind((1, 2))
    one.update(FIRST, INTEGERS)
    other.load_state_dict(one.state_dict())
    assert other.values() == one.values()
    other.update(SECOND, INTEGERS)
    for scores in (FIRST, SECOND):
        both.update(scores, INTEGERS)
    assert other.values() == both.values() != one.values()
    other.reset()
    other.update(FIRST, INTEGERS)
    assert other.values() == one.values()


def test_many_small_updates_are_one_large() -> None:
    generator = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(200, 7, generator=generator), torch.randint(7, (200,), generator=generator)
    whole, parts = TopK((1, 5)), TopK((1, 5))
    whole.update(scores, labels)
    for rows in torch.arange(200).split(4):
        parts.update(scores[rows], labels[rows])
    assert parts.values() == whole.values()


def shares_of_this_rank() -> dict[int, float]:
    from raysl import distributed as dist

    meter = TopK((1, 2))
    for scores in (FIRST, SECOND)[dist.rank() :: 2]:
        meter.update(scores, INTEGERS)
    return meter.values()


def test_workers_count_together(run_ranks: RunRanks) -> None:
    assert run_ranks(2, shares_of_this_rank) == 2 * [{1: pytest.approx(0.5), 2: pytest.approx(5 / 6)}]


def test_impossible_meters_are_refused() -> None:
    for ks in ((), (1, 0)):
        with pytest.raises(ValueError, match="every k at least 1"):
            TopK(ks)
    with pytest.raises(ValueError, match=r"counts for k=\[1\] do not fit k=\[1, 5\]"):
        TopK((1, 5)).load_state_dict(TopK((1,)).state_dict())
