import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.losses import info_nce, nce, nce_log_norm, self_normalised_nce

EPS = torch.finfo(torch.float32).eps


def numbers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


def units(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    return F.normalize(numbers(*shape, seed=seed, dtype=dtype), dim=-1)


def slow_info_nce(q: Tensor, keys: Tensor, queue: Tensor, temperature: float) -> float:
    """Equation 1 of MoCo, one query after another."""
    terms = []
    for query, key in zip(q, keys, strict=True):
        near = math.exp(F.cosine_similarity(query, key, dim=0).item() / temperature)
        far = [math.exp(F.cosine_similarity(query, other, dim=0).item() / temperature) for other in queue]
        terms.append(-math.log(near / (near + sum(far))))
    return sum(terms) / len(terms)


def slow_nce(z: Tensor, rows: Tensor, norm: float, num_samples: int, temperature: float) -> float:
    """Equations 5 to 7 of NPID as VISSL writes them, one probability after another."""
    num_noise, total = rows.shape[1] - 1, 0.0
    noise = num_noise / num_samples
    for own, vectors in zip(F.normalize(z, dim=-1), rows, strict=True):
        p = [math.exp((w @ own).item() / temperature) / norm for w in vectors]
        total += math.log(p[0] / (p[0] + noise + EPS))
        total += sum(math.log(noise / (other + noise + EPS)) for other in p[1:])
    return -total / len(z)


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_info_nce_equals_a_slow_loop(temperature: float) -> None:
    q, keys, queue = numbers(4, 5), numbers(4, 5, seed=1), units(7, 5, seed=2)
    expected = slow_info_nce(q, keys, queue, temperature)
    assert info_nce(q, keys, queue, temperature).item() == pytest.approx(expected, rel=1e-12)


def test_info_nce_of_equal_cosines_is_the_log_of_the_number_of_keys() -> None:
    same = torch.ones(3, 4)
    assert info_nce(same, same, F.normalize(torch.ones(9, 4), dim=1), 0.2).item() == pytest.approx(math.log(10))


def test_gradients_of_info_nce_agree_with_finite_differences() -> None:
    q, keys, queue = numbers(3, 4).requires_grad_(), numbers(3, 4, seed=1), units(5, 4, seed=2)
    assert torch.autograd.gradcheck(lambda own: info_nce(own, keys, queue, 0.3), (q,))


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_nce_equals_a_slow_loop(temperature: float) -> None:
    z, rows, norm = numbers(4, 5), units(4, 7, 5, seed=1), 37.5
    loss = nce(z, rows, torch.tensor(math.log(norm)).double(), 50, temperature)
    assert loss.item() == pytest.approx(slow_nce(z, rows, norm, 50, temperature), rel=1e-6)  # log Z was a float32
    exact = nce(z, rows, torch.tensor(norm, dtype=torch.float64).log(), 50, temperature)
    assert exact.item() == pytest.approx(slow_nce(z, rows, norm, 50, temperature), rel=1e-12)


def test_the_norm_constant_of_ranks_together_is_the_mean_over_the_batch_times_n() -> None:
    z, rows = numbers(5, 4), units(5, 6, 4, seed=1)
    expected = torch.einsum("bkd,bd->bk", rows, F.normalize(z, dim=-1)).div(0.1).exp().mean() * 80
    by_rank = [nce_log_norm(z[part], rows[part], 80, 0.1) for part in (slice(0, 4), slice(4, 5))]
    found = torch.logsumexp(torch.cat(by_rank), 0) - math.log(5)
    torch.testing.assert_close(found.exp(), expected, rtol=1e-12, atol=0)


def test_gradients_of_nce_agree_with_finite_differences() -> None:
    z, rows = numbers(3, 4).requires_grad_(), units(3, 5, 4, seed=1)
    log_norm = torch.tensor(3.0, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda own: nce(own, rows, log_norm, 20, 0.2), (z,))


@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_self_normalised_nce_equals_a_slow_loop(temperature: float) -> None:
    z, rows = numbers(4, 5), units(4, 7, 5, seed=1)
    total = 0.0
    for own, vectors in zip(F.normalize(z, dim=-1), rows, strict=True):
        near, *far = [math.exp((w @ own).item() / temperature) for w in vectors]
        total += math.log(near / (near + sum(far))) + sum(math.log(1 - other / (other + sum(far))) for other in far)
    assert self_normalised_nce(z, rows, temperature).item() == pytest.approx(-total / 4, rel=1e-12)


def test_self_normalised_nce_is_nce_with_the_constant_of_an_images_own_noise() -> None:
    z, rows = numbers(1, 5), units(1, 7, 5, seed=1)
    log_norm = nce_log_norm(z, rows[:, 1:], 50, 0.2)  # the mean over 6 noise rows, times 50
    torch.testing.assert_close(self_normalised_nce(z, rows, 0.2), nce(z, rows, log_norm[0], 50, 0.2), rtol=1e-5, atol=0)


def test_gradients_of_self_normalised_nce_agree_with_finite_differences() -> None:
    z, rows = numbers(3, 4).requires_grad_(), units(3, 5, 4, seed=1)
    assert torch.autograd.gradcheck(lambda own: self_normalised_nce(own, rows, 0.2), (z,))


@pytest.mark.parametrize("temperature", [1e-3, 0.07, 100.0])
@pytest.mark.parametrize("kind", ["random", "collapsed", "zero", "huge"])
def test_contrast_is_finite_in_value_and_gradient(kind: str, temperature: float) -> None:
    z = numbers(4, 5, dtype=torch.float32)
    z = {"random": z, "collapsed": torch.ones_like(z), "zero": torch.zeros_like(z), "huge": 1e15 * z}[kind]
    z.requires_grad_()
    others = units(6, 5, seed=1, dtype=torch.float32) if kind == "random" else F.normalize(torch.ones(6, 5), dim=1)
    rows = others.expand(4, 6, 5)
    log_norm = torch.logsumexp(nce_log_norm(z, rows, 30, temperature), 0) - math.log(4)
    losses = (
        info_nce(z, z.detach(), others, temperature),
        nce(z, rows, log_norm, 30, temperature),
        self_normalised_nce(z, rows, temperature),
    )
    for loss in losses:
        (grad,) = torch.autograd.grad(loss, z)
        assert loss.isfinite()
        assert grad.isfinite().all()


def test_contrast_is_computed_in_fp32_at_the_least() -> None:
    q, queue, rows = numbers(4, 5).bfloat16(), units(6, 5).bfloat16(), units(4, 6, 5).bfloat16()
    log_norm = torch.tensor(3.0)
    with torch.autocast("cpu", torch.bfloat16):
        low = info_nce(q, q, queue, 0.1), nce(q, rows, log_norm, 30), self_normalised_nce(q, rows)
    wide, wide_rows = q.float(), rows.float()
    high = (
        info_nce(wide, wide, queue.float(), 0.1),
        nce(wide, wide_rows, log_norm, 30),
        self_normalised_nce(wide, wide_rows),
    )
    for ours, theirs in zip(low, high, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_nce_without_noise_is_refused() -> None:
    with pytest.raises(ValueError, match=r"rows \[2, 1, 3\] contain no noise"):
        nce(torch.ones(2, 3), torch.ones(2, 1, 3), torch.tensor(0.0), 5)
    with pytest.raises(ValueError, match=r"rows \[2, 1, 3\] contain no noise"):
        self_normalised_nce(torch.ones(2, 3), torch.ones(2, 1, 3))
