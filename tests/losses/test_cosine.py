import math

import pytest
import torch

from raysl.losses import negative_cosine


def rows(seed: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(5, 3, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def test_it_is_the_mean_of_cosines_between_rows_of_one_place() -> None:
    p, z = rows(0), rows(1)
    cosines = []
    for one, other in zip(p.tolist(), z.tolist(), strict=True):
        dot = sum(a * b for a, b in zip(one, other, strict=True))
        cosines.append(dot / math.hypot(*one) / math.hypot(*other))
    assert negative_cosine(p, z).item() == pytest.approx(-sum(cosines) / 5, rel=1e-12)
    assert negative_cosine(7 * p, p).item() == pytest.approx(-1)


def test_gradients_are_those_of_finite_differences_on_both_sides() -> None:
    p, z = rows(0).requires_grad_(), rows(1).requires_grad_()
    assert torch.autograd.gradcheck(negative_cosine, (p, z))


def test_half_types_are_widened_under_autocast() -> None:
    p, z = rows(0).bfloat16(), rows(1).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        found = negative_cosine(p, z)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(negative_cosine(p.double(), z.double()).item(), abs=1e-6)
