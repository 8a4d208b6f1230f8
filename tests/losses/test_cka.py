import pytest
import torch
from torch import Tensor

from raysl.losses import cka


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def slow_cka(student: Tensor, teacher: Tensor) -> float:
    """Kernels by a product for each pair of patches, centred entry by entry by means of rows, columns and all."""
    terms = []
    for own, other in zip(student, teacher, strict=True):
        centred = []
        for z in (own.tolist(), other.tolist()):
            num = len(z)
            kernel = [[sum(a * b for a, b in zip(z[i], z[j], strict=True)) for j in range(num)] for i in range(num)]
            rows = [sum(row) / num for row in kernel]
            every = sum(rows) / num
            centred.append([[kernel[i][j] - rows[i] - rows[j] + every for j in range(num)] for i in range(num)])
        pairs = [(i, j) for i in range(len(own)) for j in range(len(own))]
        products = [sum(centred[a][i][j] * centred[b][i][j] for i, j in pairs) for a, b in ((0, 1), (0, 0), (1, 1))]
        terms.append(1 - products[0] / (products[1] * products[2]) ** 0.5)
    return sum(terms) / len(terms)


def test_it_equals_a_slow_loop() -> None:
    student, teacher = numbers(3, 7, 4), numbers(3, 7, 5, seed=1) + 2
    assert cka(student, teacher).item() == pytest.approx(slow_cka(student, teacher), rel=1e-12)


def test_features_that_are_turned_scaled_and_moved_have_no_loss() -> None:
    student = numbers(2, 6, 4)
    turn, _ = torch.linalg.qr(numbers(4, 4, seed=2))
    assert cka(student, 3 * student @ turn + 5).item() == pytest.approx(0, abs=1e-12)
    assert cka(student, numbers(2, 6, 4, seed=3)).item() > 0.1


def test_gradients_agree_with_finite_differences_and_none_flows_into_the_teacher() -> None:
    student, teacher = numbers(2, 5, 3).requires_grad_(), numbers(2, 5, 4, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda own: cka(own, teacher.detach()), (student,))
    cka(student, teacher).backward()
    assert teacher.grad is None


def test_patches_that_are_all_equal_are_finite() -> None:
    student = torch.ones(2, 5, 3, requires_grad=True)
    loss = cka(student, numbers(2, 5, 3).float())
    loss.backward()
    assert loss.item() == pytest.approx(1)
    assert student.grad is not None
    assert student.grad.isfinite().all()


def test_half_precision_is_computed_in_full() -> None:
    student, teacher = 300 * numbers(2, 5, 3), 300 * numbers(2, 5, 3, seed=1)
    found = cka(student.half(), teacher.half())
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(cka(student, teacher).item(), rel=1e-2)


def test_shapes_that_do_not_fit_are_refused() -> None:
    for teacher in (torch.ones(2, 4, 3), torch.ones(1, 5, 3)):
        with pytest.raises(ValueError, match=r"must be \[n, N, D\] and \[n, N, E\], N >= 2"):
            cka(torch.ones(2, 5, 3), teacher)
    with pytest.raises(ValueError, match="N >= 2"):
        cka(torch.ones(2, 1, 3), torch.ones(2, 1, 3))
