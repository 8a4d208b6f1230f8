"""Several ranks on one GPU, over gloo, since NCCL refuses to share a card: collectives, gradients, norm."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from raysl import distributed as dist
from raysl.nn.batch_norm import SyncBatchNorm, convert_sync_batch_norm
from raysl.schedule import Step
from tests.gpu.marks import CUDA, on_gpu
from tests.methods.test_simclr import small_simclr, whole_batch
from tests.rank_processes import RunRanks
from tests.train.problem import problem, running_statistics

pytestmark = on_gpu

COUNTS = {2: [3, 2], 3: [2, 0, 3]}
SHARES = {2: {"even": [3, 3], "uneven": [5, 1]}, 3: {"even": [2, 2, 2], "uneven": [3, 1, 2]}}
STEP = Step(0, 10, 5)


def rows_of(world: int) -> Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def cross_terms(rows: Tensor, everything: Tensor, rank: int) -> Tensor:
    """A loss that differs between ranks and couples their rows."""
    return (rank + 1) * (rows @ everything.T).pow(3).sum() + everything.pow(2).sum() * (rank + 2)


def collectives(world: int) -> dict[str, Any]:
    rank = dist.rank()
    rows = torch.split(rows_of(world), COUNTS[world])[rank].to(CUDA).requires_grad_()
    with dist.planned_rows(COUNTS[world]):
        gathered, places = dist.all_gather(rows), dist.own_rows(rows)
    cross_terms(rows, gathered, rank).backward()
    value = torch.full((2,), rank + 1.0, device=CUDA, requires_grad=True)
    (dist.all_sum(value).pow(2).sum() * (rank + 1)).backward()
    half = torch.full((2,), [256.0, 1.0, 1.0][rank], device=CUDA, dtype=torch.bfloat16)
    image = torch.full((2, 3, 4, 4), float(rank), device=CUDA).to(memory_format=torch.channels_last)
    dist.broadcast([image])
    averaged = [torch.randn(100, generator=torch.Generator().manual_seed(rank)).to(CUDA)]
    dist.average_(averaged)
    once = averaged[0].clone()
    dist.average_(averaged)
    dist.barrier()
    model = nn.Linear(1, 1, bias=False).to(CUDA)
    wrapped = dist.data_parallel(model)
    (wrapped(torch.ones(1, 1, device=CUDA)) * (rank + 1)).sum().backward()
    found = {
        "gathered": gathered.detach(),
        "own_rows": places,
        "ragged": dist.all_gather_ragged(torch.full((rank + 1,), rank, device=CUDA)),
        "gather_grad": rows.grad,
        "sum_grad": value.grad,
        "half": dist.all_sum(half),
        "least": dist.all_least(value.detach()),
        "all_true": [dist.all_true(True, CUDA), dist.all_true(rank != 1, CUDA)],
        "broadcast": image,
        "averaged": [once, averaged[0]],
        "objects": dist.gather_objects({"rank": rank}),
        "ddp": model.weight.grad,
    }
    return to_cpu(found)


def to_cpu(found: Any) -> Any:
    """The same with its tensors on the CPU, where another process can read them."""
    if isinstance(found, Tensor):
        return found.detach().cpu()
    if isinstance(found, dict):
        return {name: to_cpu(value) for name, value in found.items()}
    return [to_cpu(value) for value in found] if isinstance(found, list) else found


def gradients(counts: list[int], device: torch.device) -> dict[str, Any]:
    """One step as the loop takes it, with this rank's share of the batch, in float64."""
    method = small_simclr(projector_norm=True).double().to(device)
    if dist.world() > 1:
        convert_sync_batch_norm(method)
    batch = whole_batch().map(lambda rows: torch.split(rows, counts)[dist.rank()].to(device))
    wrapped = dist.data_parallel(method)
    with dist.planned_rows(counts):
        out = wrapped(batch, STEP)
        (out.loss * (len(batch) * dist.world() / sum(counts))).backward()
    norms = [layer for layer in method.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
    return to_cpu(
        {
            "loss": out.loss.item() * len(batch) / sum(counts),
            "grads": {name: parameter.grad for name, parameter in method.named_parameters()},
            "statistics": running_statistics(method),
            "classes": sorted({type(layer).__name__ for layer in norms}),
            "is_synchronised": all(isinstance(layer, SyncBatchNorm) for layer in norms),
        }
    )


def on_ranks(world: int) -> dict[str, Any]:
    torch.cuda.set_device(CUDA)
    state, _ = problem("train.sync_bn=true", device=CUDA)
    return {
        "collectives": collectives(world),
        "steps": {share: gradients(counts, CUDA) for share, counts in SHARES[world].items()},
        "created": any(isinstance(layer, SyncBatchNorm) for layer in state.method.modules()),
    }


@pytest.fixture(scope="module", params=[2, 3], ids=lambda world: f"{world} ranks")
def ranks(request: pytest.FixtureRequest, run_ranks: RunRanks) -> list[dict[str, Any]]:
    return run_ranks(request.param, on_ranks, request.param, timeout=240)


def test_every_collective_works_on_tensors_of_the_gpu(ranks: list[dict[str, Any]]) -> None:
    world = len(ranks)
    total = world * (world + 1) / 2
    everything = rows_of(world).requires_grad_()
    parts = torch.split(everything, COUNTS[world])
    sum(cross_terms(part, everything, rank) for rank, part in enumerate(parts)).backward()
    grads = torch.cat([rank["collectives"]["gather_grad"] for rank in ranks])
    torch.testing.assert_close(grads, everything.grad, rtol=1e-10, atol=0)
    assert torch.cat([rank["collectives"]["own_rows"] for rank in ranks]).tolist() == list(range(5))
    for rank in (rank["collectives"] for rank in ranks):
        assert torch.equal(rank["gathered"], rows_of(world))
        assert rank["ragged"].tolist() == [owner for owner in range(world) for _ in range(owner + 1)]
        assert rank["sum_grad"].tolist() == [2 * total * total] * 2
        assert rank["half"].tolist() == [{2: 256.0, 3: 258.0}[world]] * 2
        assert rank["least"].tolist() == [1.0, 1.0]
        assert rank["all_true"] == [True, False]
        assert rank["broadcast"].abs().max() == 0
        assert torch.equal(*rank["averaged"])
        assert torch.equal(rank["averaged"][0], ranks[0]["collectives"]["averaged"][0])
        assert rank["objects"] == [{"rank": number} for number in range(world)]
        assert rank["ddp"].item() == total / world


@pytest.mark.parametrize("share", ["even", "uneven"])
def test_ranks_with_synchronised_norm_give_the_gradient_of_one_process(ranks: list[dict[str, Any]], share: str) -> None:
    one = gradients([6], CUDA)
    on_cpu = gradients([6], torch.device("cpu"))
    assert sum(rank["steps"][share]["loss"] for rank in ranks) == pytest.approx(one["loss"], rel=1e-8)
    assert one["loss"] == pytest.approx(on_cpu["loss"], rel=1e-8)
    for rank in (rank["steps"][share] for rank in ranks):
        assert rank["is_synchronised"], rank["classes"]
        for name, grad in one["grads"].items():
            scale = grad.abs().max().item()
            torch.testing.assert_close(rank["grads"][name], grad, rtol=1e-7, atol=1e-7 * scale, msg=name)
            torch.testing.assert_close(on_cpu["grads"][name], grad, rtol=1e-7, atol=1e-7 * scale, msg=name)
        for ours, theirs in zip(rank["statistics"], one["statistics"], strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-7, atol=1e-10)


def test_a_state_made_for_a_gpu_gets_synchronised_norm(ranks: list[dict[str, Any]]) -> None:
    assert all(rank["created"] for rank in ranks)
