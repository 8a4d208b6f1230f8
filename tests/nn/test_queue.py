from collections import deque

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.nn.queue import Queue


def rows_of(num: int, seed: int, *shape: int) -> Tensor:
    return torch.randn(num, *shape, generator=torch.Generator().manual_seed(seed))


def test_it_starts_with_random_unit_rows_of_the_seed() -> None:
    torch.manual_seed(1)
    first = Queue(6, 3)
    torch.manual_seed(1)
    assert torch.equal(Queue(6, 3).keys, first.keys)
    torch.testing.assert_close(first.keys.norm(dim=1), torch.ones(6))
    assert not first.is_filled().any()


@pytest.mark.parametrize("sizes", [[4, 4, 4], [4, 4, 1, 4, 4], [0, 3, 25, 2], [10], [11, 10, 9], [1] * 13])
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
def test_it_holds_what_a_list_of_the_newest_holds(sizes: list[int], shape: tuple[int, ...]) -> None:
    queue, newest = Queue(10, *shape), deque(maxlen=10)
    for step, size in enumerate(sizes):
        rows = rows_of(size, step, *shape)
        queue.push(rows)
        newest.extendleft(F.normalize(rows, dim=-1))
        assert queue.num_filled.item() == queue.is_filled().sum().item() == len(newest)
        held = queue.keys[(queue.pointer - torch.arange(1, 11)) % 10]  # newest first
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(held[: len(newest)], newest, strict=True))


def test_rows_keep_their_places_until_they_are_the_oldest() -> None:
    queue = Queue(5, 2)
    queue.push(rows_of(5, 0, 2))
    before = queue.keys.clone()
    queue.push(rows_of(2, 1, 2))
    assert torch.equal(queue.keys[2:], before[2:])
    assert queue.pointer.item() == 2


def test_a_queue_in_the_middle_of_a_round_is_saved_and_goes_on() -> None:
    ours, theirs = Queue(5, 2).double(), Queue(5, 2).double()
    ours.push(rows_of(7, 0, 2))
    theirs.load_state_dict(ours.state_dict())
    for queue in (ours, theirs):
        queue.push(rows_of(4, 1, 2).double())
    assert ours.keys.dtype == torch.float64
    assert all(torch.equal(value, theirs.state_dict()[name]) for name, value in ours.state_dict().items())


def test_what_is_pushed_is_a_copy_without_gradient_and_needs_no_width_of_its_own() -> None:
    queue, rows = Queue(4, 3), rows_of(2, 0, 3).requires_grad_()
    queue.push(rows)
    assert not queue.keys.requires_grad
    queue.push(torch.zeros(1, 3).bfloat16())
    assert queue.keys.isfinite().all()
    assert queue.keys.dtype == torch.float32


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows of shape \[4\] do not fit a queue of \[3\]"):
        Queue(5, 3).push(torch.ones(2, 4))
    with pytest.raises(ValueError, match="is empty"):
        Queue(0, 3)


def test_several_nearest_rows_are_those_of_the_largest_cosines_in_order() -> None:
    queue, z = Queue(7, 3), rows_of(4, 1, 3)
    found = queue.several_nearest(z, num=3)
    for row, near in zip(z, found, strict=True):
        ranked = sorted(queue.keys.tolist(), key=lambda key: -float(row @ torch.tensor(key)))
        torch.testing.assert_close(near, torch.tensor(ranked[:3]))
    assert torch.equal(found[:, 0], queue.nearest(z))
