from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl import distributed as dist
from raysl.nn.batch_norm import SyncBatchNorm, convert_sync_batch_norm, local_statistics
from raysl.nn.heads import mlp
from tests.rank_processes import RunRanks

COUNTS = [5, 2]
CASES = {
    "images": ((7, 3, 4, 4), torch.float64, 0.0),
    "vectors": ((7, 6), torch.float64, 0.0),
    "float32": ((7, 3, 4, 4), torch.float32, 0.0),
    "far_mean": ((7, 3, 8, 8), torch.float32, 300.0),
}


def inputs(case: str) -> Tensor:
    shape, dtype, mean = CASES[case]
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return (x * 2 + x.new_tensor(range(7)).view(-1, *[1] * (len(shape) - 1)) + mean).to(dtype)


def norm_pass(layer: nn.Module, whole: Tensor, counts: list[int]) -> dict[str, Any]:
    """Two training passes and an evaluation of this rank's rows, with the gradients of an uneven loss."""
    layer.to(whole.dtype)
    with torch.no_grad():
        layer.weight.copy_(torch.linspace(0.5, 2, len(layer.weight)))
        layer.bias.copy_(torch.linspace(-1, 1, len(layer.bias)))
    x = torch.split(whole, counts)[dist.rank()].clone().requires_grad_()
    weights = torch.split(torch.linspace(-1, 1, whole.numel(), dtype=whole.dtype).view_as(whole), counts)[dist.rank()]
    out = layer(x)
    (out.pow(2) * weights).sum().backward()
    layer(2 * x.detach())
    statistics = [layer.running_mean.clone(), layer.running_var.clone()]
    layer.eval()
    return {
        "out": out.detach(),
        "grad": x.grad,
        "weight": layer.weight.grad,
        "bias": layer.bias.grad,
        "statistics": statistics,
        "eval": layer(x).detach(),
    }


def on_two_ranks() -> dict[str, Any]:
    results = {case: norm_pass(SyncBatchNorm(inputs(case).shape[1]), inputs(case), COUNTS) for case in CASES}
    averaging = SyncBatchNorm(3, momentum=None)
    for scale in (1, 3):
        averaging(torch.split(scale * inputs("float32"), COUNTS)[dist.rank()])
    results["averaging"] = {"statistics": [averaging.running_mean, averaging.running_var]}
    grouped = convert_sync_batch_norm(nn.BatchNorm2d(3), dist.group_of(["here", "there"]))
    results["grouped"] = norm_pass(grouped, inputs("float32"), COUNTS) | {"local": len(local_statistics(grouped))}
    results["alone"] = norm_pass(nn.BatchNorm2d(3), inputs("float32"), COUNTS)
    return results


@pytest.fixture(scope="module")
def ranks(run_ranks: RunRanks) -> list[dict[str, Any]]:
    return run_ranks(2, on_two_ranks)


@pytest.mark.parametrize("case", CASES)
def test_two_ranks_with_uneven_rows_equal_torch_on_the_whole_batch(ranks: list[dict[str, Any]], case: str) -> None:
    x = inputs(case)
    torch_layer = nn.BatchNorm1d(x.shape[1]) if x.dim() == 2 else nn.BatchNorm2d(x.shape[1])
    whole = norm_pass(torch_layer, x.double() if case == "far_mean" else x, [len(x)])
    rtol, atol = {"float32": (1e-5, 1e-5), "far_mean": (1e-3, 1e-3)}.get(case, (1e-10, 1e-11))
    close = {"rtol": rtol, "atol": atol, "check_dtype": False}
    for name in ("out", "grad", "eval"):
        torch.testing.assert_close(torch.cat([rank[case][name] for rank in ranks]), whole[name], **close)
    for name in ("weight", "bias"):
        torch.testing.assert_close(ranks[0][case][name] + ranks[1][case][name], whole[name], **close)
    for rank in ranks:
        for ours, theirs in zip(rank[case]["statistics"], whole["statistics"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=min(rtol, 1e-5), atol=1e-6, check_dtype=False)


def test_a_group_of_ranks_sees_its_own_rows_alone(ranks: list[dict[str, Any]]) -> None:
    for rank in ranks:
        for name, expected in rank["alone"].items():
            torch.testing.assert_close(rank["grouped"][name], expected, rtol=1e-5, atol=1e-5)
        assert rank["grouped"]["local"] == 2, "its statistics differ between groups until they take the mean"


def test_momentum_none_is_the_plain_average_over_passes(ranks: list[dict[str, Any]]) -> None:
    layer = nn.BatchNorm2d(3, momentum=None)
    for scale in (1, 3):
        layer(scale * inputs("float32"))
    for rank in ranks:
        expected = [layer.running_mean, layer.running_var]
        torch.testing.assert_close(rank["averaging"]["statistics"], expected, rtol=1e-5, atol=1e-6)


def test_one_process_gives_torchs_numbers_bit_for_bit() -> None:
    x = inputs("float32")
    ours, theirs = norm_pass(SyncBatchNorm(3), x, [7]), norm_pass(nn.BatchNorm2d(3), x, [7])
    for name in ("out", "grad", "weight", "bias", "eval"):
        assert torch.equal(ours[name], theirs[name])


def test_conversion_keeps_parameters_buffers_and_mode() -> None:
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Sequential(nn.BatchNorm2d(4, eps=1e-3, momentum=0.2)), nn.ReLU())
    network.eval()
    before = dict(network.named_parameters()) | dict(network.named_buffers())
    converted = convert_sync_batch_norm(network)
    layer = converted[1][0]
    assert isinstance(layer, SyncBatchNorm)
    assert (layer.eps, layer.momentum, layer.training) == (1e-3, 0.2, False)
    after = dict(converted.named_parameters()) | dict(converted.named_buffers())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert convert_sync_batch_norm(converted)[1][0] is layer


def test_a_layer_with_a_scale_and_no_shift_stays_one_when_it_is_converted() -> None:
    x = inputs("vectors").float()
    layer = mlp([6, 6], output_norm="scale")[1]
    expected = F.batch_norm(x, None, None, layer.weight, training=True)
    torch.testing.assert_close(layer(x), expected)
    converted = convert_sync_batch_norm(layer)
    assert [name for name, _ in converted.named_parameters()] == ["weight"]
    torch.testing.assert_close(converted(x), expected)


def test_local_statistics_are_those_of_layers_that_see_one_ranks_rows() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), nn.BatchNorm1d(3, track_running_stats=False), SyncBatchNorm(3))
    local = local_statistics(network)
    assert local[0] is network[0].running_mean
    assert local[1] is network[0].running_var
    assert len(local) == 2
