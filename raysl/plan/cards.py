"""GPUs by name, with their published peaks."""

from dataclasses import dataclass

from raysl.errors import ConfigError

GIB = 1 << 30


@dataclass(frozen=True)
class Card:
    """A GPU's published peaks; products are dense, without sparsity.

    Args:
        memory: bytes that programs can use, fewer than the name says: of the L4 error correction takes a sixteenth.
        bandwidth: speed of the memory, bytes/s.
        half: products of bf16 and fp16, FLOP/s.
        tf32: products of fp32 numbers rounded to TF32, FLOP/s.
        single: products of fp32, FLOP/s.
        source: where the numbers are published.
    """

    name: str
    memory: int
    bandwidth: float
    half: float
    tf32: float
    single: float
    source: str


CARDS = {
    "h100": Card(
        *("H100 SXM 80 GB", int(79.1 * GIB), 3.35e12, 989e12, 494e12, 67e12),
        "NVIDIA H100 Tensor Core GPU data sheet, halved where it counts sparsity",
    ),
    "a100": Card(
        *("A100 SXM 80 GB", int(79.1 * GIB), 2.039e12, 312e12, 156e12, 19.5e12),
        "NVIDIA A100 Tensor Core GPU data sheet",
    ),
    "l4": Card(
        *("L4 24 GB", 22 * GIB, 300e9, 121e12, 60e12, 30.3e12),
        "NVIDIA L4 Tensor Core GPU data sheet, halved where it counts sparsity",
    ),
}


def card_of(name: str) -> Card:
    """Return a card by its name.

    >>> card_of("l4").name
    'L4 24 GB'
    """
    if name.lower() not in CARDS:
        raise ConfigError(f"--gpu={name} is not known; choose from {', '.join(CARDS)}")
    return CARDS[name.lower()]
