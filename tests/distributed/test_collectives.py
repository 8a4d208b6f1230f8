from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from raysl import distributed as dist
from raysl.distributed import parallel
from tests.collective_calls import Collectives
from tests.rank_processes import RunRanks

COUNTS = [2, 0, 3]


def whole() -> Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def cross_terms(rows: Tensor, everything: Tensor, rank: int) -> Tensor:
    """A loss that differs between ranks and couples their rows."""
    return (rank + 1) * (rows @ everything.T).pow(3).sum() + everything.pow(2).sum() * (rank + 2)


def on_three_ranks() -> dict[str, Any]:
    rank = dist.rank()
    rows = torch.split(whole(), COUNTS)[rank].clone().requires_grad_()
    gathered = dist.all_gather(rows)
    cross_terms(rows, gathered, rank).backward()
    value = torch.full((2,), rank + 1.0, dtype=torch.float64, requires_grad=True)
    (dist.all_sum(value).pow(2).sum() * (rank + 1)).backward()
    sum_grad, value.grad = value.grad, None
    dist.all_mean(value).pow(2).sum().backward()
    strided = torch.full((2, 3, 4, 4), float(rank)).to(memory_format=torch.channels_last)
    dist.broadcast([strided])
    averaged = torch.full((3,), float(rank))
    dist.average_([averaged])
    return {
        "gathered": gathered.detach(),
        "integers": dist.all_gather(torch.arange(COUNTS[rank]) + 10 * rank),
        "own_rows": dist.own_rows(rows),
        "row_counts": dist.row_counts(len(rows)),
        "gather_grad": rows.grad,
        "sum_grad": sum_grad,
        "mean_grad": value.grad,
        "broadcast": strided,
        "average": averaged,
        "all_true": [dist.all_true(True), dist.all_true(rank != 1)],
        "uninterrupted": train(4, stop_at=None),
        "resumed": train(4, stop_at=2),
        "averaged_grad": averaged_gradient(),
        "twice": averaged_twice(),
        "half": in_bf16(),
        "planned": in_a_step(),
        "options": {name: averaged_gradient(**options) for name, options in DDP_OPTIONS.items()},
        "in_group": in_group(),
        "same_loss": of_the_same_loss(),
        "exchanged": exchanged(),
        "stacked": [dist.all_stacked(torch.full(shape, rank)).tolist() for shape in ((), (2,))],
        "averaged_many": averaged_many(),
        "storages": storages_of_gradients(),
    }


DDP_OPTIONS: dict[str, dict[str, Any]] = {
    "bucket_mb": {"bucket_mb": 0.001},
    "is_static": {"is_static": True},
    "fp16": {"compression": "fp16"},
    "bf16": {"compression": "bf16"},
}


def in_group() -> dict[str, Any]:
    """A sum, and its gradient, over the ranks on "a" (0 and 2) and on "b" (1)."""
    group = dist.group_of(["a", "b", "a"])
    value = torch.full((2,), dist.rank() + 1.0, requires_grad=True)
    total = dist.all_sum(value, group)
    (total.sum() * (dist.rank() + 1)).backward()
    return {"sum": total.detach(), "grad": value.grad, "of_all": dist.group_of(["a"] * 3)}


def averaged_twice() -> list[list[Tensor]]:
    """Numbers that differ between ranks, averaged once and once more."""
    generator = torch.Generator().manual_seed(dist.rank())
    tensors = [torch.randn(1000, generator=generator), torch.rand(3, 5, generator=generator)]
    dist.average_(tensors)
    once = [tensor.clone() for tensor in tensors]
    dist.average_(tensors)
    return [once, tensors]


def in_bf16() -> dict[str, Any]:
    """Sums over ranks that bf16 has no numbers for on the way: 256 + 1 + 1, which it rounds to 256 and to 258."""
    own = torch.full((2,), [256.0, 1.0, 1.0][dist.rank()], dtype=torch.bfloat16, requires_grad=True)
    total = dist.all_sum(own)
    (total * own.detach()).sum().backward()
    rows = torch.ones(COUNTS[dist.rank()], 2, dtype=torch.bfloat16, requires_grad=True)
    (dist.all_gather(rows) * own.detach()).sum().backward()
    double = torch.full((1,), 1e-9, dtype=torch.float64) + 1
    return {"sum": total.detach(), "sum_grad": own.grad, "gather_grad": rows.grad, "double": dist.all_sum(double)}


def in_a_step() -> dict[str, Any]:
    """What a step with planned rows gathers without asking anybody, and what it refuses."""
    rank = dist.rank()
    rows = torch.split(whole(), COUNTS)[rank].clone().requires_grad_()
    with dist.planned_rows(COUNTS):
        with Collectives() as forward:
            gathered = dist.all_gather(rows)
            places = dist.own_rows(rows)
        told = []
        for wrong in (rows.repeat(2, 1) if len(rows) else torch.ones(1, 4), rows.new_zeros(7, 4)):
            with pytest.raises(ValueError, match="all_gather_ragged") as error:
                dist.all_gather(wrong)
            told.append(str(error.value))
            with pytest.raises(ValueError, match="all_gather_ragged"):
                dist.own_rows(wrong)
        ragged = dist.all_gather_ragged(torch.full((rank + 1,), rank))
    with Collectives() as backward:
        cross_terms(rows, gathered, rank).backward()
    return {
        "gathered": gathered.detach(),
        "own_rows": places,
        "grad": rows.grad,
        "calls": [forward.names, backward.names],
        "told": told[1],
        "ragged": ragged,
        "after": dist.all_gather(torch.full((3 - rank,), rank)),
    }


def of_the_same_loss() -> dict[str, Any]:
    """Gradients of one loss that all ranks compute from gathered rows and from their sum, as the loop weighs it."""
    rows = torch.split(whole(), COUNTS)[dist.rank()].clone().requires_grad_()
    grads, calls = [], []
    with dist.planned_rows(COUNTS):
        for same_loss in (False, True):
            rows.grad = None
            gathered = dist.all_gather(rows, same_loss=same_loss)
            total = dist.all_sum(rows.T @ rows, same_loss=same_loss)
            loss = gathered.pow(3).sum() + total.pow(3).sum()
            with Collectives() as backward:
                (loss * len(rows) * dist.world() / sum(COUNTS)).backward()
            grads.append(rows.grad)
            calls.append(len(backward.calls))
    return {"grads": grads, "calls": calls}


SENT = [[1, 0, 1], [0, 0, 2], [2, 1, 0]]
"""Rows that each rank sends to each."""


def exchanged() -> Tensor:
    """Rows 10 r + 0, 10 r + 1, ... of rank r, sent as `SENT` says."""
    rank = dist.rank()
    rows = torch.arange(sum(SENT[rank]))[:, None] + 10 * rank
    return dist.exchange_rows(rows, SENT[rank], [sent[rank] for sent in SENT])[:, 0]


def averaged_many() -> int:
    """Operations that it takes to average a hundred tensors."""
    tensors = [torch.full((3,), float(dist.rank())) for _ in range(100)]
    with Collectives() as watch:
        dist.average_(tensors)
    assert all(tensor.tolist() == [1.0] * 3 for tensor in tensors)
    return len(watch.others) + len(watch.calls)


def train(num_steps: int, stop_at: int | None) -> list[Tensor]:
    """Weights after some steps of SGD, with a new start from the weights and nothing else at `stop_at`."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(200, 700), nn.Tanh(), nn.Linear(700, 600), nn.Tanh(), nn.Linear(600, 3))
    wrapped = dist.data_parallel(model)
    for step in range(num_steps):
        if step == stop_at:
            weights = {name: value.clone() for name, value in model.state_dict().items()}
            model = nn.Sequential(nn.Linear(200, 700), nn.Tanh(), nn.Linear(700, 600), nn.Tanh(), nn.Linear(600, 3))
            model.load_state_dict(weights)
            wrapped = dist.data_parallel(model)
        images = torch.randn(4, 200, generator=torch.Generator().manual_seed(100 * step + dist.rank()))
        wrapped(images).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None
    return [parameter.detach().clone() for parameter in model.parameters()]


def averaged_gradient(**options: Any) -> Tensor:
    model = nn.Linear(1, 1, bias=False)
    wrapped = dist.data_parallel(model, **options)
    for _ in range(2):
        model.weight.grad = None
        (wrapped(torch.ones(1, 1)) * (dist.rank() + 1)).sum().backward()
    return model.weight.grad


def storages_of_gradients() -> int:
    """In how many storages the gradients of a layer lie."""
    layer = nn.Linear(3, 2)
    wrapped = dist.data_parallel(layer)
    wrapped(torch.ones(1, 3)).sum().backward()
    return len({parameter.grad.untyped_storage().data_ptr() for parameter in layer.parameters()})


@pytest.fixture(scope="module")
def ranks(run_ranks: RunRanks) -> list[dict[str, Any]]:
    return run_ranks(3, on_three_ranks)


def test_all_gather_joins_uneven_rows_in_rank_order(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["gathered"], whole())
        assert rank["row_counts"] == COUNTS
        assert rank["integers"].tolist() == [0, 1, 20, 21, 22]
    assert [rank["own_rows"].tolist() for rank in ranks] == [[0, 1], [], [2, 3, 4]]


def test_gradient_of_all_gather_is_that_of_one_process(ranks: list[dict[str, Any]]) -> None:
    everything = whole().requires_grad_()
    parts = torch.split(everything, COUNTS)
    sum(cross_terms(part, everything, rank) for rank, part in enumerate(parts)).backward()
    torch.testing.assert_close(torch.cat([rank["gather_grad"] for rank in ranks]), everything.grad, rtol=1e-12, atol=0)


def test_gradients_of_sums_and_means_are_summed_over_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["sum_grad"].tolist() == [72.0, 72.0]  # d/dx of (1 + 2 + 3) * (sum of x)^2 with sum 6
        torch.testing.assert_close(rank["mean_grad"], torch.full((2,), 4.0, dtype=torch.float64))  # 3 * 2 * mean / 3


def test_broadcast_average_and_all_true_agree_on_all_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert torch.equal(rank["broadcast"], torch.zeros(2, 3, 4, 4))
        assert rank["average"].tolist() == [1.0] * 3
        assert rank["all_true"] == [True, False]


def test_data_parallel_averages_gradients(ranks: list[dict[str, Any]]) -> None:
    assert [rank["averaged_grad"].item() for rank in ranks] == [2.0] * 3


def test_gradients_lie_in_the_buckets_that_are_exchanged(ranks: list[dict[str, Any]]) -> None:
    assert [rank["storages"] for rank in ranks] == [1, 1, 1]


def test_a_new_start_at_three_ranks_changes_no_bit(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for resumed, uninterrupted in zip(rank["resumed"], rank["uninterrupted"], strict=True):
            assert torch.equal(resumed, uninterrupted)


def test_the_mean_of_equal_numbers_keeps_their_bits(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for once, twice, first in zip(*rank["twice"], ranks[0]["twice"][0], strict=True):
            assert torch.equal(once, twice)
            assert torch.equal(once, first)


def test_half_types_are_summed_in_float32_and_wide_ones_as_they_are(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for name in ("sum", "sum_grad"):
            assert rank["half"][name].dtype == torch.bfloat16
            assert rank["half"][name].tolist() == [258.0, 258.0]
        assert (rank["half"]["gather_grad"] == 258.0).all()
        torch.testing.assert_close(rank["half"]["double"].item(), 3 + 3e-9, rtol=0, atol=1e-12)


def test_a_step_gathers_planned_rows_in_one_exchange(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["planned"]["calls"] == [["_allgather_base_"], ["_reduce_scatter_base_"]]
        assert torch.equal(rank["planned"]["gathered"], whole())
        assert torch.equal(rank["planned"]["grad"], rank["gather_grad"])
        assert torch.equal(rank["planned"]["own_rows"], rank["own_rows"])


def test_a_loss_that_all_ranks_share_is_summed_over_them_without_an_exchange(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        asked, known = rank["same_loss"]["grads"]
        torch.testing.assert_close(known, asked, rtol=1e-12, atol=0)
        assert rank["same_loss"]["calls"] == [2, 0]


def test_rows_go_to_the_ranks_they_are_sent_to(ranks: list[dict[str, Any]]) -> None:
    assert [rank["exchanged"].tolist() for rank in ranks] == [[0, 20, 21], [22], [1, 10, 11]]


def test_tensors_of_all_ranks_are_stacked_in_rank_order(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        assert rank["stacked"] == [[0, 1, 2], [[0, 0], [1, 1], [2, 2]]]


def test_averaging_many_tensors_takes_a_few_operations(ranks: list[dict[str, Any]]) -> None:
    assert [rank["averaged_many"] < 10 for rank in ranks] == [True] * 3


def test_a_step_refuses_rows_that_are_not_its_batchs(ranks: list[dict[str, Any]]) -> None:
    for number, rank in enumerate(ranks):
        told = "7 rows cannot be gathered as rows of this step's batch, of which the 3 ranks hold [2, 0, 3] and this"
        assert rank["planned"]["told"].startswith(f"{told} is rank {number} of 3")
        assert rank["planned"]["ragged"].tolist() == [0, 1, 1, 2, 2, 2]
        assert rank["planned"]["after"].tolist() == [0, 0, 0, 1, 1, 2]


def test_one_process_refuses_them_too() -> None:
    with dist.planned_rows([4]), pytest.raises(ValueError, match="8 rows cannot be gathered"):
        dist.all_gather(torch.zeros(8, 2))
    assert len(dist.all_gather(torch.zeros(8, 2))) == 8


def test_ddp_is_not_told_to_move_inputs_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `device_ids` it would look for them among the arguments, of which the first calls have none."""
    told: dict[str, Any] = {}

    class Recorder(nn.Module):
        """Takes note of what DistributedDataParallel would get."""

        def __init__(self, module: nn.Module, **kwargs: Any) -> None:
            super().__init__()
            told.update(kwargs)

        def forward(self) -> Tensor:
            return torch.zeros((), requires_grad=True)

    monkeypatch.setattr(parallel, "DistributedDataParallel", Recorder)
    monkeypatch.setattr(parallel, "_no_buffer_broadcast", dict)
    monkeypatch.setattr(parallel, "world", lambda: 2)
    with FakeTensorMode():
        dist.data_parallel(nn.Linear(2, 2, device="cuda"))
    assert told == {"static_graph": False, "gradient_as_bucket_view": True}


@pytest.mark.parametrize("name", DDP_OPTIONS)
def test_options_of_ddp_change_no_gradient(ranks: list[dict[str, Any]], name: str) -> None:
    for rank in ranks:
        digits = 1e-2 if name in ("fp16", "bf16") else 1e-6
        torch.testing.assert_close(rank["options"][name], torch.full((1, 1), 2.0), rtol=digits, atol=0)


def test_a_sum_over_a_group_and_its_gradient_know_no_other_ranks(ranks: list[dict[str, Any]]) -> None:
    for rank, total in zip(ranks, [4.0, 2.0, 4.0], strict=True):
        assert rank["in_group"]["sum"].tolist() == [total] * 2
        assert rank["in_group"]["grad"].tolist() == [total] * 2  # of the losses 1, 2, 3 times the sum
        assert rank["in_group"]["of_all"] is None


def test_one_process_is_the_identity() -> None:
    rows = torch.randn(3, 2)
    model = nn.Linear(2, 2)
    assert dist.all_gather(rows) is rows
    assert dist.all_sum(rows) is rows
    assert dist.own_rows(rows).tolist() == [0, 1, 2]
    assert dist.data_parallel(model) is model
    assert dist.is_main()
