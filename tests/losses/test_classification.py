"""Losses on classes."""

import math

import torch

from raysl.losses import one_hot, smoothed, soft_binary_cross_entropy, soft_cross_entropy, top_share

LABELS = torch.tensor([2, 0, -1])


def test_unlabelled_rows_are_of_no_class() -> None:
    assert one_hot(LABELS, 3).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert one_hot(LABELS, 3, torch.float64).dtype is torch.float64


def test_smoothing_spreads_a_share_over_all_classes() -> None:
    target = smoothed(one_hot(torch.tensor([0, 1, 2, -1]), 4, torch.float64), 0.1)
    expected = [[0.925, 0.025, 0.025, 0.025], [0.025, 0.925, 0.025, 0.025], [0.025, 0.025, 0.925, 0.025], [0.0] * 4]
    torch.testing.assert_close(target, torch.tensor(expected, dtype=torch.float64))


def test_cross_entropy_is_that_of_the_formula_and_counts_rows_without_a_target_as_0() -> None:
    logits = torch.randn(3, 2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    targets = smoothed(one_hot(LABELS, 3, torch.float64), 0.2)
    total = 0.0
    for row in range(3):
        for view in range(2):
            scores = [math.exp(value) for value in logits[row, view].tolist()]
            total -= sum(targets[row, k].item() * math.log(scores[k] / sum(scores)) for k in range(3))
    loss = soft_cross_entropy(logits, targets[:, None])
    assert abs(loss.item() - total / 6) < 1e-12
    loss.backward()
    assert logits.grad is not None
    assert torch.equal(logits.grad[2], torch.zeros(2, 3))
    assert torch.autograd.gradcheck(lambda x: soft_cross_entropy(x, targets[:, None]), logits)


def test_binary_cross_entropy_leaves_out_what_is_neither_present_nor_absent() -> None:
    logits = torch.tensor([[1.0, -2.0, 3.0], [0.5, 0.0, -1.0]], dtype=torch.float64)
    labels = torch.tensor([[1, 0, -1], [-1, 1, 0]])
    total = 0.0
    for row, column, sign in ((0, 0, 1), (0, 1, -1), (1, 1, 1), (1, 2, -1)):
        total += math.log(1 + math.exp(-sign * logits[row, column].item()))
    loss = soft_binary_cross_entropy(logits, labels == 1, labels == 0)
    assert abs(loss.item() - total / 6) < 1e-12


def test_losses_stay_finite_and_above_half_precision() -> None:
    for size in (1e4, -1e4):
        logits = torch.tensor([[size, 0.0]], dtype=torch.bfloat16)
        present = torch.tensor([[0.0, 1.0]])
        for loss in (soft_cross_entropy(logits, present), soft_binary_cross_entropy(logits, present, 1 - present)):
            assert loss.dtype is torch.float32
            assert loss.isfinite()


def test_a_hit_is_one_of_the_highest_scores() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0], [3.0, 2.0, 1.0]])
    targets = one_hot(torch.tensor([2, 2]), 3)
    assert top_share(logits, targets, 1).tolist() == [0, 0]
    assert top_share(logits, targets, 2).tolist() == [1, 0]
    assert top_share(logits, targets, 5).tolist() == [1, 1]
