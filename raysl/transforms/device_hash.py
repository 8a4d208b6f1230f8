"""The hash of `raysl.hashing` on tensors: the same numbers on any device, without a copy of them from the host."""

import torch
from torch import Tensor

from raysl.hashing import GOLDEN, hash_words

CHILD, DRAW = 3, 4  # the purpose of a key, see `raysl.transforms.random`

_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
"""Shifts and factors of SplitMix64's finaliser, which ends with a shift by 31."""


def absorb(state: Tensor, numbers: Tensor) -> Tensor:
    """Do one round of `raysl.hashing.absorb` on int64 tensors that broadcast, whose bits are those of unsigned words.

    >>> absorb(torch.tensor([1]), torch.tensor([2]))
    tensor([-972091869234291113])
    """
    return _mix_(state ^ _mix_(numbers + as_signed(GOLDEN)))


def units(bits: Tensor) -> Tensor:
    """Return float64 numbers from [0, 1), multiples of 2**-53, of hashes."""
    return _shifted(bits, 11).double().mul_(2.0**-53)


def drawn(keys: Tensor, counter: int, num: int) -> Tensor:
    """Return float64 [B, num] from [0, 1) for the keys of B samples, from a counter on."""
    counters = torch.arange(num, device=keys.device).add_(as_signed(counter))
    return units(absorb(keys[:, None], counters))


def uniforms(keys: Tensor, slot: int, num_draws: int, num: int) -> Tensor:
    """Return float64 [B, num]: those of `SampleRandom.at(slot).uniforms(num)` after some draws, of samples' keys.

    >>> uniforms(torch.tensor([7]), slot=1, num_draws=0, num=2)
    tensor([[0.3698, 0.4258]], dtype=torch.float64)
    """
    child = absorb(absorb(keys, keys.new_full((1,), CHILD)), keys.new_full((1,), as_signed(slot)))
    return drawn(child, hash_words(DRAW, num_draws), num)


def as_signed(word: int) -> int:
    """Return the int64 with the bits of a word in [0, 2**64).

    >>> as_signed(2**64 - 1)
    -1
    """
    return word - (1 << 64) if word >> 63 else word


def _mix_(bits: Tensor) -> Tensor:
    """Apply SplitMix64's finaliser in place; products wrap around modulo 2**64."""
    for shift, factor in _STEPS:
        bits.bitwise_xor_(_shifted(bits, shift)).mul_(as_signed(factor))
    return bits.bitwise_xor_(_shifted(bits, 31))


def _shifted(bits: Tensor, shift: int) -> Tensor:
    """Shift to the right and fill with zeros: torch repeats the sign."""
    return torch.bitwise_right_shift(bits, shift).bitwise_and_((1 << (64 - shift)) - 1)
