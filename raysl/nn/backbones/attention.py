"""The block of vision transformers (Dosovitskiy et al. 2020, arXiv 2010.11929, eq. 2 and 3), with timm's names."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.nn.backbones.positions import rotate
from raysl.nn.backbones.relative import Offsets, relative_table
from raysl.nn.drop_path import DropPath


class Attention(nn.Module):
    """Self-attention with several heads, fused: [B, T, D] to [B, T, D].

    Args:
        width: size of a token, a multiple of `heads`.
        heads: number of heads, of width / heads channels each.
        qkv_bias: whether queries, keys and values have a bias.
        grid: patches (h, w) that a table of relative positions of its own is made for; None for no table.
        qk_eps: added to the variance where each head's queries and keys are normalised; None does not normalise them.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        qkv_bias: bool = True,
        grid: tuple[int, int] | None = None,
        qk_eps: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.qk_eps = heads, qk_eps
        self.qkv = nn.Linear(width, 3 * width, bias=qkv_bias)
        self.proj = nn.Linear(width, width)
        self.relative_position_bias_table = None if grid is None else relative_table(grid, heads)

    def forward(
        self,
        x: Tensor,
        is_key: Tensor | None = None,
        rotation: Tensor | None = None,
        offsets: Offsets | Tensor | None = None,
    ) -> Tensor:
        """Attend to all tokens, or to those where `is_key` is true, at least one per row: bool [B, T], for all tokens
        of an image, or [B, T, T], a row for each token. Queries and keys of patches are turned first by a `rotation`
        [2, n, N, d], see `rotate`. To the logits is added what the own table has for `offsets`, or `offsets` itself, a
        bias [n, heads, T, T]."""
        batch, num_tokens, width = x.shape
        q, k, v, mask = self._operands(x, is_key, rotation, offsets)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # [B, heads, T, d]
        return self.proj(out.transpose(1, 2).reshape(batch, num_tokens, width))  # type: ignore[no-any-return]

    def first_weights(
        self,
        x: Tensor,
        is_key: Tensor | None = None,
        rotation: Tensor | None = None,
        offsets: Offsets | Tensor | None = None,
    ) -> Tensor:
        """Return the weights by which the first token's output sums the values of all tokens [B, heads, T], in at least
        fp32; they sum to 1. The arguments are those of `forward`, whose fused attention does not return them."""
        q, k, _, mask = self._operands(x, is_key, rotation, offsets)
        q, k = (values if values.dtype == torch.float64 else values.float() for values in (q[:, :, :1], k))
        logits = q @ k.transpose(2, 3) / q.shape[-1] ** 0.5  # [B, heads, 1, T]
        if mask is not None:
            first = mask[:, :, :1]
            logits = logits.masked_fill(~first, -torch.inf) if first.dtype == torch.bool else logits + first
        return logits.softmax(dim=-1)[:, :, 0]  # type: ignore[no-any-return]

    def _operands(
        self, x: Tensor, is_key: Tensor | None, rotation: Tensor | None, offsets: Offsets | Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return queries, keys and values [B, heads, T, d], and the mask of the fused attention or None."""
        batch, num_tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, num_tokens, 3, self.heads, -1).permute(2, 0, 3, 1, 4)  # [3, B, heads, T, d]
        q, k, v = qkv.unbind(0)
        if self.qk_eps is not None:
            q, k = (F.layer_norm(x, x.shape[-1:], eps=self.qk_eps) for x in (q, k))
        if rotation is not None:
            q, k = rotate(q, rotation), rotate(k, rotation)
        mask = None
        if is_key is not None:
            mask = is_key[:, None] if is_key.ndim == 3 else is_key[:, None, None, :]  # [B, 1, 1 or T, T]
        # a bias and a mask become one mask of numbers, in which -inf hides a key
        if offsets is not None:
            bias = self._bias(offsets).to(q.dtype)  # [n, heads, T, T]
            mask = bias if mask is None else torch.where(mask, bias, -torch.inf)
        return q, k, v, mask

    def _bias(self, offsets: Offsets | Tensor) -> Tensor:
        if isinstance(offsets, Tensor):
            return offsets
        assert self.relative_position_bias_table is not None
        return offsets.bias(self.relative_position_bias_table)


class Mlp(nn.Module):
    """Two linear layers with GELU between them and a hidden width of 4 D: [B, T, D] to [B, T, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map each token separately."""
        return self.fc2(self.act(self.fc1(x)))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """A gated MLP, silu(a) * b of two linear maps a and b, then a third (Shazeer 2020, arXiv 2002.05202; DINOv2's):
    [B, T, D] to [B, T, D]."""

    def __init__(self, width: int) -> None:
        super().__init__()
        hidden = gated_width(width)
        self.fc1 = nn.Linear(width, 2 * hidden)
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """Map each token separately."""
        gate, value = self.fc1(x).chunk(2, dim=-1)
        return self.fc2(F.silu(gate) * value)  # type: ignore[no-any-return]


def gated_width(width: int) -> int:
    """Return the hidden width of `SwiGLU`: two thirds of that of `Mlp`, rounded up to a multiple of 8."""
    return (int(4 * width * 2 / 3) + 7) // 8 * 8


class LayerScale(nn.Module):
    """A learned factor per channel (CaiT, Touvron et al. 2021, arXiv 2103.17239, eq. 4), which starts at `value`."""

    def __init__(self, width: int, value: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the input."""
        return x * self.gamma


class Block(nn.Module):
    """Attention and an MLP, each after a layer norm and added to its input: [B, T, D] to [B, T, D].

    >>> Block(width=192, heads=3)(torch.zeros(2, 197, 192)).shape
    torch.Size([2, 197, 192])

    Args:
        width: size of a token, a multiple of `heads`.
        qkv_bias: whether queries, keys and values have a bias.
        layer_scale: initial value of the factors of both branches; None for no factors.
        drop_path: rate at which training drops a branch for a sample, drawn for each branch.
        norm_eps: added to the variance by layer norms.
        grid: see `Attention`.
        qk_norm: whether queries and keys are normalised by each head, without scale and shift.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        qkv_bias: bool = True,
        layer_scale: float | None = None,
        drop_path: float = 0.0,
        number: int = 0,
        mlp: Literal["gelu", "swiglu"] = "gelu",
        norm_eps: float = 1e-6,
        grid: tuple[int, int] | None = None,
        qk_norm: bool = False,
    ) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, eps=norm_eps)
        self.attn = Attention(width, heads, qkv_bias, grid, norm_eps if qk_norm else None)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop_path1 = DropPath(drop_path, 2 * number)
        self.norm2 = nn.LayerNorm(width, eps=norm_eps)
        self.mlp = SwiGLU(width) if mlp == "swiglu" else Mlp(width)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop_path2 = DropPath(drop_path, 2 * number + 1)

    def forward(
        self,
        x: Tensor,
        is_key: Tensor | None = None,
        rotation: Tensor | None = None,
        offsets: Offsets | Tensor | None = None,
    ) -> Tensor:
        """Return the block's output; tokens attend to those where `is_key`, bool [B, T] or [B, T, T], is true, queries
        and keys are turned by a `rotation` [2, n, N, d], and `offsets` add a bias, see `Attention`."""
        x = x + self.drop_path1(self.ls1(self.attn(self.norm1(x), is_key, rotation, offsets)))
        return x + self.drop_path2(self.ls2(self.mlp(self.norm2(x))))  # type: ignore[no-any-return]


class CrossBlock(nn.Module):
    """Attention to other tokens, taken as they are, and an MLP, each after a layer norm and added to its input.

    From [B, M, W] and [B, T, D] to [B, M, W] (CrossMAE, Fu et al. 2024, arXiv 2401.14391).

    >>> CrossBlock(width=192, other_width=96, heads=3)(torch.zeros(2, 5, 192), torch.zeros(2, 50, 96)).shape
    torch.Size([2, 5, 192])

    Args:
        width: size of a token, a multiple of `heads`.
        other_width: size of the tokens that it looks at.
        drop_path, number: arguments of `Block`.
    """

    def __init__(self, width: int, other_width: int, heads: int, drop_path: float = 0.0, number: int = 0) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, eps=1e-6)
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(other_width, 2 * width)
        self.proj = nn.Linear(width, width)
        self.drop_path1 = DropPath(drop_path, 2 * number)
        self.norm2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = Mlp(width)
        self.drop_path2 = DropPath(drop_path, 2 * number + 1)

    def forward(self, x: Tensor, others: Tensor, rotations: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Return tokens [B, M, W] that have looked at others [B, T, D]; queries and keys are turned first by two
        `rotations`, see `rotate`."""
        q = self.q(self.norm1(x)).unflatten(2, (self.heads, -1)).transpose(1, 2)  # [B, heads, M, d]
        k, v = self.kv(others).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)  # [B, heads, T, d]
        if rotations is not None:
            q, k = rotate(q, rotations[0]), rotate(k, rotations[1])
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)  # [B, M, W]
        x = x + self.drop_path1(self.proj(seen))
        return x + self.drop_path2(self.mlp(self.norm2(x)))  # type: ignore[no-any-return]
