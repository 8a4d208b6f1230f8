"""Images shuffled among ranks: each goes to one rank and its output comes back, and one process does the same."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.nn.batch_norm import _routes, in_shuffled_order
from tests.collective_calls import Collectives
from tests.rank_processes import RunRanks

COUNTS = [4, 2, 3]


def images() -> Tensor:
    return torch.randn(9, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


class Noting(nn.Module):
    """Doubles its input and keeps it."""

    seen: Tensor

    def forward(self, x: Tensor) -> Tensor:
        self.seen = x
        return 2 * x[:, :, 0]


def on_rank(counts: list[int]) -> dict[str, Any]:
    rows = torch.split(images(), counts)[dist.rank()]
    batch = Batch({}, torch.arange(len(rows)), torch.zeros(len(rows)), seed=3, step=5)
    network = Noting()
    with dist.planned_rows(counts), Collectives() as watch:
        outputs = in_shuffled_order(network, rows, batch, "test")
    return {"outputs": outputs, "seen": network.seen, "calls": watch.names, "bytes": watch.num_bytes}


def test_ranks_shuffle_as_one_process_and_send_each_image_once(run_ranks: RunRanks) -> None:
    one, ranks = on_rank([9]), run_ranks(3, on_rank, COUNTS)
    assert torch.equal(one["outputs"], 2 * images()[:, :, 0])
    assert not torch.equal(one["seen"], images())
    assert torch.equal(torch.cat([rank["outputs"] for rank in ranks]), one["outputs"])
    assert torch.equal(torch.cat([rank["seen"] for rank in ranks]), one["seen"])
    for rank, count in zip(ranks, COUNTS, strict=True):
        assert rank["calls"] == ["alltoall_base_", "alltoall_base_"]
        assert rank["bytes"] == 2 * count * (2 * 5 + 2) * 8, "what goes out and what comes in"


@pytest.mark.parametrize("counts", [[9], [5, 4], [3, 3, 3], [7, 0, 2]])
def test_what_a_rank_sends_is_what_the_other_receives(counts: list[int]) -> None:
    order = np.random.default_rng(1).permutation(9)
    routes = [_routes(order, counts, rank) for rank in range(len(counts))]
    for sender, route in enumerate(routes):
        assert route.sent == [other.received[sender] for other in routes]
        assert sum(route.sent) == sum(route.received) == counts[sender] == route.rows.shape[1]
