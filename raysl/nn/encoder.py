"""A transformer's encoder (Vaswani et al. 2017, arXiv 1706.03762, section 3.1), whose dropout belongs to samples."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.nn.drop_path import Dropout

_NUM_SLOTS = 4
"""Slots for random numbers of a layer."""


class EncoderLayer(nn.Module):
    """Attention and an MLP with ReLU, each added to its input and followed by a layer norm: [B, T, D] to [B, T, D].

    `torch.nn.TransformerEncoderLayer(batch_first=True)` with its initial weights, and with `Dropout` in place of
    torch's.

    >>> EncoderLayer(width=64, heads=8, hidden_dim=128)(torch.zeros(2, 5, 64)).shape
    torch.Size([2, 5, 64])

    Args:
        width: size of a token, D, a multiple of `heads`.
        heads: number of attention heads.
        hidden_dim: width of the MLP's hidden layer.
        dropout: rate at which training drops attention, hidden values, and values of both branches, in [0, 1).
        number: position of the layer in its network.
    """

    def __init__(self, width: int, heads: int, hidden_dim: int, dropout: float = 0.0, number: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        # the initial weights of torch's MultiheadAttention
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.proj.bias)
        self.fc1, self.fc2 = nn.Linear(width, hidden_dim), nn.Linear(hidden_dim, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        drops = [Dropout(dropout, _NUM_SLOTS * number + slot) for slot in range(_NUM_SLOTS)]
        self.drop_attention, self.drop1, self.drop_hidden, self.drop2 = drops

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens, each informed by all of its row."""
        x = self.norm1(x + self.drop1(self._attend(x)))
        return self.norm2(x + self.drop2(self.fc2(self.drop_hidden(F.relu(self.fc1(x))))))  # type: ignore[no-any-return]

    def _attend(self, x: Tensor) -> Tensor:
        num, tokens, width = x.shape
        qkv = self.qkv(x).view(num, tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [3, B, heads, T, d]
        q, k, v = qkv.unbind(0)
        shares = (q @ k.mT / (width // self.heads) ** 0.5).softmax(dim=-1)  # [B, heads, T, T]
        out = self.drop_attention(shares) @ v.to(shares.dtype)  # [B, heads, T, d]
        return self.proj(out.transpose(1, 2).reshape(num, tokens, width))  # type: ignore[no-any-return]


def position_waves(num: int, width: int) -> Tensor:
    """Return sines and cosines [num, width] that tell tokens apart, as All4One's code adds them (Estepa et al. 2023,
    arXiv 2303.09417; solo-learn): token t has sin(x r) over its values x if t is even, cos(x r) if it is odd, with a
    rate r that falls from one pair of tokens to the next.

    >>> position_waves(3, 2)
    tensor([[0.0000, 0.8415],
            [1.0000, 0.5403],
            [0.0000, 0.0100]])
    """
    pairs = (num + 1) // 2
    rates = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)  # [pairs]
    angles = rates[:, None] * torch.arange(width, dtype=torch.float64)  # [pairs, width]
    return torch.stack([angles.sin(), angles.cos()], dim=1).flatten(0, 1)[:num].float()
