"""Normalisation over ranks by torch's kernels for GPUs, for which slow sums stand in here: beside torch's own function,
and beside one process with all rows."""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as torch_dist
from torch import Tensor, nn
from torch.nn.modules._functions import SyncBatchNorm as TorchSyncNorm
from typing_extensions import override

from raysl.nn.batch_norm import SyncBatchNorm
from tests.collective_calls import Collectives
from tests.nn.test_batch_norm import inputs, norm_pass
from tests.rank_processes import RunRanks

COUNTS = [3, 1, 3]
WAITING = ("aten._local_scalar_dense", "aten.index", "aten.nonzero", "aten.masked_select")
"""Operations for whose result the host waits, if they are on a GPU."""


def by_channel(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def over_rows(x: Tensor) -> list[int]:
    return [0, *range(2, x.dim())]


def batch_norm_stats(x: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    var, mean = torch.var_mean(x, dim=over_rows(x), correction=0)
    return mean, torch.rsqrt(var + eps)


def batch_norm_gather_stats_with_counts(
    x: Tensor,
    means: Tensor,
    invstds: Tensor,
    running_mean: Tensor,
    running_var: Tensor,
    share: float,
    eps: float,
    counts: Tensor,
) -> tuple[Tensor, Tensor]:
    total, by_rank = counts.sum(), counts[:, None]
    mean = (means * by_rank).sum(dim=0) / total
    var = ((invstds**-2 - eps + (means - mean) ** 2) * by_rank).sum(dim=0) / total
    running_mean.lerp_(mean, share)
    running_var.lerp_(var * total / (total - 1), share)
    return mean, torch.rsqrt(var + eps)


def batch_norm_elemt(x: Tensor, weight: Tensor, bias: Tensor, mean: Tensor, invstd: Tensor, eps: float) -> Tensor:
    return (x - by_channel(mean, x)) * by_channel(invstd * weight, x) + by_channel(bias, x)


def batch_norm_backward_reduce(
    grad: Tensor, x: Tensor, mean: Tensor, invstd: Tensor, weight: Tensor, *needs: bool
) -> tuple[Tensor, ...]:
    total = grad.sum(dim=over_rows(x))
    product = (grad * (x - by_channel(mean, x))).sum(dim=over_rows(x))
    return total, product, product * invstd, total


def batch_norm_backward_elemt(
    grad: Tensor,
    x: Tensor,
    mean: Tensor,
    invstd: Tensor,
    weight: Tensor,
    total: Tensor,
    product: Tensor,
    counts: Tensor,
) -> Tensor:
    num = counts.sum()
    slope = (x - by_channel(mean, x)) * by_channel(invstd**2 * product / num, x)
    return (grad - by_channel(total / num, x) - slope) * by_channel(invstd * weight, x)


KERNELS = (
    batch_norm_stats,
    batch_norm_gather_stats_with_counts,
    batch_norm_elemt,
    batch_norm_backward_reduce,
    batch_norm_backward_elemt,
)


class Ours(SyncBatchNorm):
    """The way of a GPU."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        return self._by_kernels(input) if self.training else super().forward(input)


class Torchs(SyncBatchNorm):
    """torch's function, without its layer's check for a GPU."""

    @override
    def forward(self, input: Tensor) -> Tensor:
        if not self.training:
            return super().forward(input)
        statistics, group = (self.running_mean, self.running_var), torch_dist.group.WORLD
        world, share = torch_dist.get_world_size(), self._count_pass()
        return TorchSyncNorm.apply(input, self.weight, self.bias, *statistics, self.eps, share, group, world)


def on_rank(case: str) -> dict[str, Any]:
    found = {}
    with mock.patch.multiple(torch, **{kernel.__name__: kernel for kernel in KERNELS}):
        for kind in (Ours, Torchs):
            with Collectives() as watch:
                passed = norm_pass(kind(inputs(case).shape[1]), inputs(case), COUNTS)
            waits = sum(name.startswith(WAITING) for name in watch.others)
            found[kind.__name__] = {**passed, "calls": watch.names, "waits": waits}
    return found


@pytest.mark.parametrize("case", ["images", "vectors"])
def test_the_way_of_a_gpu_is_torchs_in_value_and_gradient_and_never_waits(case: str, run_ranks: RunRanks) -> None:
    x = inputs(case)
    whole = norm_pass(nn.BatchNorm1d(x.shape[1]) if x.dim() == 2 else nn.BatchNorm2d(x.shape[1]), x, [len(x)])
    ranks = run_ranks(len(COUNTS), on_rank, case)
    for name in ("out", "grad", "weight", "bias", "eval", "statistics"):
        for rank in ranks:
            torch.testing.assert_close(rank["Ours"][name], rank["Torchs"][name], rtol=1e-12, atol=1e-12)
    for name in ("out", "grad", "eval"):
        torch.testing.assert_close(torch.cat([rank["Ours"][name] for rank in ranks]), whole[name], rtol=1e-9, atol=1e-9)
    for name in ("weight", "bias"):
        torch.testing.assert_close(sum(rank["Ours"][name] for rank in ranks), whole[name], rtol=1e-9, atol=1e-9)
    for rank in ranks:
        torch.testing.assert_close(rank["Ours"]["statistics"], whole["statistics"], rtol=1e-9, atol=1e-9)
        assert rank["Ours"]["calls"] == ["_allgather_base_", "allreduce_", "_allgather_base_"]
        assert rank["Ours"]["waits"] == 0
        assert rank["Torchs"]["waits"] == 6, "three a pass"
