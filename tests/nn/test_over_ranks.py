"""Queue, bank, Sinkhorn, k-means and teacher on two and three ranks against one process with all rows."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.errors import ConfigError
from raysl.nn.batch_norm import convert_sync_batch_norm
from raysl.nn.ema import Teacher
from raysl.nn.kmeans import kmeans
from raysl.nn.memory_bank import MemoryBank
from raysl.nn.queue import Queue
from raysl.nn.sinkhorn import sinkhorn
from tests.rank_processes import RunRanks

COUNTS = {1: [7], 2: [5, 2], 3: [4, 0, 3]}
CLOSE: dict[str, float] = {"rtol": 1e-10, "atol": 1e-12}


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def own(rows: Tensor) -> Tensor:
    """This rank's share of seven rows, or of a multiple of seven."""
    counts = COUNTS[dist.world()]
    return torch.split(rows, [count * len(rows) // 7 for count in counts])[dist.rank()]


def pushed() -> dict[str, Tensor]:
    torch.manual_seed(3)
    queue = Queue(10, 4).double()
    for step in range(3):
        queue.push(dist.all_gather(own(numbers(7, 4, seed=step))))
    return dict(queue.state_dict())


def banked() -> Tensor:
    torch.manual_seed(3)
    bank = MemoryBank(9, 4).double()
    index = torch.tensor([3, 1, 3, 8, 0, 3, 1])
    for step in range(2):
        bank.update(dist.all_gather(own(index)), dist.all_gather(own(numbers(7, 4, seed=step))), 0.5)
    return bank.bank


def coded() -> dict[str, Tensor]:
    scores, extra = torch.tanh(numbers(7, 5, seed=1)), torch.tanh(numbers(6, 5, seed=2))
    mask = torch.arange(6) < 4
    return {
        "plain": sinkhorn(own(scores)),
        "extra": sinkhorn(own(scores), extra=extra),
        "masked": sinkhorn(own(scores), extra=extra, extra_mask=mask),
        "hard": sinkhorn(own(scores), extra=extra, is_hard=True),
        "own mask": sinkhorn(own(scores), mask=own(numbers(7, seed=3)) > 0),
    }


def clustered() -> dict[str, Tensor]:
    rows, found = numbers(70, 3, seed=5), {}
    for spherical in (True, False):
        name = "spherical" if spherical else "euclidean"
        found[f"{name}.centroids"], found[name] = kmeans(own(rows), 6, 5, seed=2, spherical=spherical)
    return found


def refused() -> list[str]:
    said = []
    for rows, k in ((numbers(7, 3, seed=0), 8), (torch.full((7, 3), torch.nan), 2)):
        with pytest.raises((ConfigError, ValueError)) as error:
            kmeans(own(rows), k, 1, seed=0)
        said.append(str(error.value))
    return said


def taught() -> list[Tensor]:
    """A teacher with its own statistics of all ranks, made before its student's layers were replaced."""
    torch.manual_seed(4)
    student = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).double()
    teacher = Teacher(student)
    student, teacher = convert_sync_batch_norm(student), convert_sync_batch_norm(teacher)
    with torch.no_grad():
        for parameter in student.parameters():
            parameter.add_(1)
    rows = numbers(7, 4, seed=6)
    counts = {1: [7], 2: [5, 2], 3: [4, 1, 2]}[dist.world()]  # the layer takes at least one row a rank
    teacher(torch.split(rows, counts)[dist.rank()])
    teacher.update(student, 0.9)
    return list(teacher.state_dict().values())


def everything() -> dict[str, Any]:
    return {
        "queue": pushed(),
        "bank": banked(),
        "codes": coded(),
        "clusters": clustered(),
        "refused": refused(),
        "teacher": taught(),
    }


@pytest.fixture(scope="module")
def one() -> dict[str, Any]:
    return everything()


@pytest.fixture(scope="module", params=[pytest.param(2, marks=pytest.mark.slow), 3])
def ranks(request: pytest.FixtureRequest, run_ranks: RunRanks) -> list[dict[str, Any]]:
    return run_ranks(request.param, everything)


def test_queues_and_banks_are_those_of_one_process_bit_for_bit(ranks: list[dict[str, Any]], one: Any) -> None:
    for rank in ranks:
        assert all(torch.equal(rank["queue"][name], value) for name, value in one["queue"].items())
        assert torch.equal(rank["bank"], one["bank"])


def test_codes_are_balanced_over_all_ranks_and_shared_rows_count_once(ranks: list[dict[str, Any]], one: Any) -> None:
    for name, codes in one["codes"].items():
        torch.testing.assert_close(torch.cat([rank["codes"][name] for rank in ranks]), codes, **CLOSE)


def test_clusters_do_not_depend_on_how_rows_are_spread(ranks: list[dict[str, Any]], one: Any) -> None:
    for name in ("spherical", "euclidean"):
        assert torch.equal(torch.cat([rank["clusters"][name] for rank in ranks]), one["clusters"][name])
        for rank in ranks:
            centroids = rank["clusters"][f"{name}.centroids"]
            torch.testing.assert_close(centroids, one["clusters"][f"{name}.centroids"], **CLOSE)
            assert torch.equal(centroids, ranks[0]["clusters"][f"{name}.centroids"])


def test_all_ranks_refuse_too_many_clusters_and_rows_that_are_not_finite(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert "8 clusters in 7 rows: set between 1 and 7" in rank["refused"][0]
        assert "not finite" in rank["refused"][1]


def test_a_teacher_with_synchronised_norms_is_that_of_one_process(ranks: list[dict[str, Any]], one: Any) -> None:
    for rank in ranks:
        for ours, theirs in zip(rank["teacher"], one["teacher"], strict=True):
            torch.testing.assert_close(ours, theirs, **CLOSE)
