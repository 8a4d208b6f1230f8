import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from raysl.nn.memory_bank import MemoryBank


def small() -> MemoryBank:
    torch.manual_seed(0)
    return MemoryBank(6, 4).double()


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_it_starts_as_rows_of_length_one_that_the_seed_draws() -> None:
    assert torch.equal(small().bank, small().bank)
    torch.testing.assert_close(small().bank.norm(dim=1), torch.ones(6).double(), rtol=1e-6, atol=0)


def test_rows_come_by_index_in_any_shape_and_are_copies() -> None:
    bank, index = small(), torch.tensor([[5, 0, 0], [2, 5, 1]])
    rows = bank.rows(index)
    assert rows.shape == (2, 3, 4)
    assert torch.equal(rows[1, 1], bank.bank[5])
    before = bank.bank.clone()
    rows.zero_()
    assert torch.equal(bank.bank, before)


def test_an_update_mixes_then_normalises_and_leaves_other_rows_alone() -> None:
    bank, z = small(), numbers(2, 4)
    before = bank.bank.clone()
    bank.update(torch.tensor([4, 1]), z, 0.3)
    for index, vector in ((4, z[0]), (1, z[1])):
        mixed = 0.3 * before[index] + 0.7 * vector / vector.norm()
        torch.testing.assert_close(bank.bank[index], mixed / mixed.norm(), rtol=1e-12, atol=1e-12)
    others = [0, 2, 3, 5]
    assert torch.equal(bank.bank[others], before[others])


def test_of_a_sample_that_is_there_twice_the_last_row_counts() -> None:
    bank, alone, z = small(), small(), numbers(5, 4)
    bank.update(torch.tensor([2, 0, 2, 2, 0]), z, 0.5)
    alone.update(torch.tensor([2, 0]), z[3:], 0.5)
    assert torch.equal(bank.bank, alone.bank)


def test_momentum_nought_stores_the_embedding_and_no_gradient_enters() -> None:
    bank, z = small(), numbers(1, 4).requires_grad_()
    bank.update(torch.tensor([3]), z, 0.0)
    torch.testing.assert_close(bank.bank[3], F.normalize(z.detach(), dim=1)[0], rtol=1e-12, atol=0)
    assert not bank.bank.requires_grad
    bank.update(torch.tensor([], dtype=torch.int64), z[:0], 0.5)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[3, 4\] must be \[2, 4\]"):
        small().update(torch.tensor([0, 1]), torch.ones(3, 4), 0.5)
    with pytest.raises(ValueError, match=r"give a number in \[0, 1\]"):
        small().update(torch.tensor([0]), torch.ones(1, 4), -0.5)
    with pytest.raises(ValueError, match="is empty"):
        MemoryBank(0, 4)
