"""The watch sees each kind of event: what it does not see, no other test of this folder can find."""

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.fake_gpu.pretended import needs_pretended_gpu, pretended_gpu
from tests.fake_gpu.watch import (
    CUDA,
    GENERATOR,
    MISMATCH,
    READ,
    SHAPE,
    SOLVER,
    TO_GPU,
    TO_GPU_LATE,
    TO_GPU_PAGEABLE,
    TO_HOST,
    TO_HOST_LATE,
    Watch,
)

pytestmark = needs_pretended_gpu


@pytest.fixture
def watch() -> Iterator[Watch]:
    with pretended_gpu() as watch:
        yield watch


Act = Callable[[Tensor], object]
READS: dict[str, Act] = {
    "item": lambda x: x.sum().item(),
    "float": lambda x: float(x[0, 0]),
    "bool": lambda x: bool(x.sum() > 0),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "equal": lambda x: torch.equal(x, x),
    "index": lambda x: range(4)[x[0, 0].long()],
    "synchronize": lambda x: torch.cuda.synchronize(),
}
TO_HOSTS: dict[str, Act] = {
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to without waiting, into pageable memory": lambda x: x.to("cpu", non_blocking=True),
    "tolist": lambda x: x.tolist(),
    "copy": lambda x: torch.empty(4, 4).copy_(x),
    "copy into pinned memory that blocks": lambda x: torch.empty(4, 4, pin_memory=True).copy_(x),
    "late copy into pageable memory": lambda x: torch.empty(4, 4).copy_(x, non_blocking=True),
}
TO_GPUS: dict[str, Act] = {
    "to": lambda x: torch.ones(4).to(CUDA),
    "to of pinned memory": lambda x: torch.ones(4).pin_memory().to(CUDA),
    "cuda": lambda x: torch.ones(4).cuda(),
    "tensor": lambda x: torch.tensor([1.0, 2.0], device=CUDA),
    "copy": lambda x: x.copy_(torch.ones(4, 4)),
    "foreach copy": lambda x: torch._foreach_copy_([x], [torch.ones(4, 4)]),
    "index of the CPU": lambda x: x[torch.arange(2)],
    "list as an index": lambda x: x[[0, 1]],
    "array as an index": lambda x: x[np.arange(2)],
    "write at an index of the CPU": lambda x: x.index_put_((torch.arange(2),), x[:2]),
}
SHAPES: dict[str, Act] = {
    "nonzero": lambda x: x.nonzero(),
    "where of one": lambda x: torch.where(x > 0),
    "mask": lambda x: x[x > 0],
    "mask of the CPU": lambda x: x[torch.ones(4, dtype=torch.bool)],
    "write by a mask": lambda x: x.__setitem__(x[:, 0] > 0, torch.ones(4, 4, device=CUDA)),
    "masked select": lambda x: torch.masked_select(x, x > 0),
    "unique": lambda x: torch.unique(x),
    "bincount": lambda x: torch.bincount(x[0].long(), minlength=5),
    "repeat": lambda x: torch.repeat_interleave(torch.ones(4, device=CUDA).long()),
}
MISMATCHES: dict[str, Act] = {
    "sum": lambda x: x + torch.ones(4),
    "product": lambda x: x @ torch.ones(4, 4),
    "join": lambda x: torch.cat([x, torch.ones(4, 4)]),
    "module": lambda x: nn.Linear(4, 4)(x),
    "embedding": lambda x: nn.functional.embedding(torch.arange(2), x),
}
FREE: dict[str, Act] = {
    "arithmetic": lambda x: (x @ x + 1.0).relu().sum(),
    "number of the CPU": lambda x: x * torch.tensor(2.0),
    "view": lambda x: x.view(16)[None].expand(2, 16),
    "fill by a mask": lambda x: x.masked_fill(x > 0, 0.0),
    "write of a number by a mask": lambda x: x.__setitem__(x > 0, 0.0),
    "index of the GPU": lambda x: x[torch.arange(2, device=CUDA)],
    "whole": lambda x: torch.full((3,), 2.0, device=CUDA),
    "cpu only": lambda x: torch.arange(4.0)[torch.arange(4.0) > 1].sum().item(),
}


@pytest.mark.parametrize(
    ("kind", "act"),
    [
        pytest.param(kind, act, id=f"{kind}-{name}")
        for kind, acts in {
            READ: READS,
            TO_HOST: TO_HOSTS,
            TO_GPU: TO_GPUS,
            SHAPE: SHAPES,
            MISMATCH: MISMATCHES,
            SOLVER: {"eigh": lambda x: torch.linalg.eigh(x), "svd": lambda x: torch.linalg.svd(x)},
            TO_HOST_LATE: {"": lambda x: torch.empty(4, 4, pin_memory=True).copy_(x, non_blocking=True)},
            TO_GPU_LATE: {"": lambda x: torch.ones(4).pin_memory().to(CUDA, non_blocking=True)},
            TO_GPU_PAGEABLE: {"": lambda x: torch.ones(4).to(CUDA, non_blocking=True)},
            GENERATOR: {"": lambda x: torch.randn(4, generator=torch.Generator(), device=CUDA)},
        }.items()
        for name, act in acts.items()
    ],
)
def test_an_event_is_seen(kind: str, act: Act, watch: Watch) -> None:
    x = torch.randn(4, 4, device=CUDA)
    act(x)
    assert kind in [event.kind for event in watch.events], watch.events


@pytest.mark.parametrize("act", FREE.values(), ids=FREE)
def test_what_stays_on_its_device_is_no_event(act: Act, watch: Watch) -> None:
    act(torch.randn(4, 4, device=CUDA))
    assert watch.events == []


def test_tensors_of_the_cpu_keep_their_numbers(watch: Watch) -> None:
    x = torch.arange(4.0)
    assert x[x > 1].tolist() == [2.0, 3.0]
    assert x.numpy().sum() == 6
    torch.ones(4, device=CUDA).add_(1)
    assert x.sum().item() == 6


def test_a_view_of_pinned_memory_is_pinned_and_memory_given_back_is_not(watch: Watch) -> None:
    part = torch.ones(8).pin_memory()[2:]
    part.to(CUDA, non_blocking=True)
    assert [event.kind for event in watch.events] == [TO_GPU_LATE]
    del part
    assert not watch.pinned


def test_a_large_copy_of_pageable_memory_is_a_wait_and_a_small_one_is_not(watch: Watch) -> None:
    torch.ones(16 * 1024).to(CUDA, non_blocking=True)
    assert watch.waits == []
    torch.ones(16 * 1024 + 1).to(CUDA, non_blocking=True)
    assert [event.num_bytes for event in watch.waits] == [64 * 1024 + 4]


@pytest.mark.thorough
def test_a_module_moves_with_shared_parameters_and_trains(watch: Watch) -> None:
    shared = nn.Linear(4, 4)
    model = nn.Sequential(shared, nn.BatchNorm1d(4), shared)
    weights = list(model.parameters())
    model.to(CUDA)
    assert all(one is other for one, other in zip(model.parameters(), weights, strict=True))
    assert model[0].weight is model[2].weight
    watch.clear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with torch.autocast("cuda", torch.bfloat16):
        y = model(torch.randn(8, 4, device=CUDA))
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    optimizer.step()
    assert all(weight.grad is not None and weight.grad.device == CUDA for weight in weights)
    assert watch.events == []
    assert watch.kernels[""] > 10


def test_a_backward_pass_fails_again_and_the_cpu_works_after_the_end() -> None:
    with pretended_gpu():
        pass
    x = torch.ones(3, requires_grad=True)
    (x * x).sum().backward()
    assert x.grad is not None
    assert not torch.cuda.is_available()
    assert torch.empty(2).numpy().shape == (2,)


def test_kernels_and_bytes_count_no_views(watch: Watch) -> None:
    x = torch.empty(1024, device=CUDA)
    x.view(32, 32).T[3:]
    assert watch.kernels[""] == 0
    x + x
    assert watch.kernels[""] == 1
    assert watch.moved[""] == 3 * 4096
