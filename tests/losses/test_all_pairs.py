"""Losses over all pairs, a few rows at a time: the same numbers, in little memory."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from raysl.losses import all_pairs, contrastive_accuracy, nt_xent
from raysl.losses.all_pairs import log_sum_exp


@pytest.fixture(params=["kept", "recomputed"])
def few_at_a_time(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three rows of twelve products at a time, kept for the backward pass or made anew in it."""
    monkeypatch.setattr(all_pairs, "AT_ONCE", 3 * 12)
    monkeypatch.setattr(all_pairs, "MOST_STORED", 10**6 if request.param == "kept" else 0)


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def places(num_anchors: int, num_keys: int) -> Tensor:
    return torch.stack(
        [torch.randperm(num_keys, generator=torch.Generator().manual_seed(n))[:2] for n in range(num_anchors)]
    )


def plain(anchors: Tensor, keys: Tensor, left_out: Tensor) -> tuple[Tensor, Tensor]:
    products = anchors @ keys.T
    return products.scatter(1, left_out, -torch.inf).logsumexp(dim=1), products.gather(1, left_out)


@pytest.mark.usefixtures("few_at_a_time")
@pytest.mark.parametrize("num_anchors", [0, 1, 3, 7])
def test_parts_give_values_and_gradients_of_the_whole(num_anchors: int) -> None:
    anchors, keys, left_out = normal(num_anchors, 5), normal(12, 5, seed=1), places(7, 12)[:num_anchors]
    weights = normal(num_anchors, 3, seed=2)
    found = []
    for function in (plain, log_sum_exp):
        inputs = [anchors.clone().requires_grad_(), keys.clone().requires_grad_()]
        sums, left = function(*inputs, left_out)
        value = (weights[:, 0] * sums).sum() + (weights[:, 1:] * left).sum()
        found.append([sums, left, *torch.autograd.grad(value, inputs)])
    for ours, expected in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-12, atol=1e-14)


@pytest.mark.usefixtures("few_at_a_time")
def test_gradients_agree_with_finite_differences() -> None:
    inputs = (normal(4, 3).requires_grad_(), normal(12, 3, seed=1).requires_grad_())
    assert torch.autograd.gradcheck(lambda anchors, keys: log_sum_exp(anchors, keys, places(4, 12)), inputs)


@pytest.mark.usefixtures("few_at_a_time")
def test_a_second_backward_pass_gives_the_same_gradient_and_one_side_may_have_none() -> None:
    anchors, keys = normal(5, 3).requires_grad_(), normal(12, 3, seed=1)
    sums, left = log_sum_exp(anchors, keys, places(5, 12))
    first, second = (torch.autograd.grad(sums.sum() + left.sum(), anchors, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@pytest.mark.usefixtures("few_at_a_time")
def test_nt_xent_and_its_accuracy_do_not_depend_on_the_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    z, rows = normal(6, 2, 4).requires_grad_(), torch.arange(6)
    loss, accuracy = nt_xent(z, z, rows), contrastive_accuracy(z, z, rows)
    (grad,) = torch.autograd.grad(loss, z)
    monkeypatch.undo()
    whole = nt_xent(z, z, rows)
    torch.testing.assert_close(loss, whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(grad, torch.autograd.grad(whole, z)[0], rtol=1e-11, atol=1e-14)
    assert torch.equal(accuracy, contrastive_accuracy(z, z, rows))


@pytest.mark.usefixtures("few_at_a_time")
def test_a_backward_pass_inside_autocast_stays_in_fp32() -> None:
    z, rows = normal(6, 2, 4, dtype=torch.float32).requires_grad_(), torch.arange(6)
    (outside,) = torch.autograd.grad(nt_xent(z, z, rows), z)
    with torch.autocast("cpu", torch.bfloat16):
        (inside,) = torch.autograd.grad(nt_xent(z, z, rows), z)
    torch.testing.assert_close(inside, outside, rtol=0, atol=0)


class _Largest(TorchDispatchMode):
    """Elements of the largest tensor that an operation gives."""

    num = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = func(*args, **(kwargs or {}))
        for value in given if isinstance(given, tuple | list) else [given]:
            if torch.is_tensor(value):
                self.num = max(self.num, value.numel())
        return given


@pytest.mark.thorough
def test_no_tensor_of_a_large_batch_holds_all_pairs() -> None:
    z, rows = normal(2304, 2, 2, dtype=torch.float32).requires_grad_(), torch.arange(2304)
    assert (2 * len(z)) ** 2 > all_pairs.MOST_STORED
    with _Largest() as largest:
        loss = nt_xent(z, z, rows)
        contrastive_accuracy(z, z, rows)
        loss.backward()
    assert largest.num <= all_pairs.AT_ONCE


def test_equal_embeddings_are_not_nearer_than_each_other() -> None:
    z = normal(1, 1, 64, dtype=torch.float32).expand(300, 2, 64)
    assert contrastive_accuracy(z, z, torch.arange(300)) == 0


@pytest.mark.parametrize(("gigabytes", "rows", "is_stored"), [(80, 2560, True), (8, 512, False)])
def test_a_gpu_holds_as_many_products_as_its_memory_allows(
    monkeypatch: pytest.MonkeyPatch, gigabytes: int, rows: int, is_stored: bool
) -> None:
    """Of 8,192 anchors and keys, SimCLR's 4,096 images on one GPU."""
    properties = SimpleNamespace(total_memory=gigabytes << 30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    with FakeTensorMode():
        anchors, keys = torch.empty(8192, 4, device="cuda"), torch.empty(8192, 4, device="cuda")
        assert next(all_pairs._parts(anchors, keys)).stop == rows
    most = all_pairs._share_of_memory(torch.device("cuda"), 64, all_pairs.MOST_STORED)
    assert (most >= 8192**2) == is_stored
    assert all_pairs._share_of_memory(torch.device("cpu"), 64, all_pairs.MOST_STORED) == all_pairs.MOST_STORED
