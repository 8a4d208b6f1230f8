"""Batch normalisation over the images of all ranks, or over images shuffled among them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.hashing import Int64s
from raysl.nn.sync_norm import NormalisedOverRanks
from raysl.transforms.device import to_device


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with mean and variance over the rows of all ranks, on CPUs and GPUs, in any precision.

    torch's SyncBatchNorm refuses CPU tensors, and on a GPU makes the host wait in every layer. This one takes [B, C]
    and [B, C, ...], and ranks with different B (at least 1); on a GPU it computes with torch's kernels and does not
    wait. On one process it is torch's BatchNorm.

    >>> SyncBatchNorm(1)(torch.tensor([[1.0], [3.0]])).round(decimals=2)
    tensor([[-1.],
            [ 1.]], grad_fn=<RoundBackward1>)
    """

    process_group: dist.Group | None = None
    """The ranks whose rows count, see `dist.group_of`; None for all."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected [B, C] or [B, C, ...], got {list(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """Bring each channel to mean 0 and variance 1 over the ranks, then scale and shift it.

        Raises:
            ValueError: if this rank has no values, or the whole batch only one value per channel.
        """
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or dist.world() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        self._check_values(input)
        return self._by_kernels(input) if input.is_cuda else self._by_products(input)

    def _check_values(self, input: Tensor) -> None:
        count = input.numel() // input.shape[1]
        others = dist.world(self.process_group) - 1  # each has at least one value
        if count == 0 or count + others == 1:
            raise ValueError(
                f"expected more than 1 value per channel when training, got input size {list(input.shape)}"
            )

    def _by_kernels(self, input: Tensor) -> Tensor:
        share = self._count_pass() if self.training and self.running_mean is not None else 0.0
        statistics = (self.running_mean, self.running_var) if self.training else (None, None)
        affine = self.weight, self.bias
        out: Tensor = NormalisedOverRanks.apply(input, *affine, *statistics, share, self.eps, self.process_group)
        return out

    def _by_products(self, input: Tensor) -> Tensor:
        count, mean, var = _global_moments(input, self.process_group)
        if self.training and self.running_mean is not None:
            assert self.running_var is not None
            share = self._count_pass()
            self.running_mean.lerp_(mean.detach().to(self.running_mean.dtype), share)
            # the running variance is unbiased, as in torch; normalisation takes the biased one
            self.running_var.lerp_((var.detach() * (count / (count - 1))).to(self.running_var.dtype), share)
        scale = torch.rsqrt(var + self.eps)  # [C]
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *[1] * (input.dim() - 2))
        return torch.addcmul(shift.view(shape), input.to(scale.dtype), scale.view(shape)).to(input.dtype)

    def _count_pass(self) -> float:
        """Count a pass, and return its share of the running statistics."""
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        return 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum


def convert_sync_batch_norm(module: nn.Module, group: dist.Group | None = None) -> nn.Module:
    """Replace the module's BatchNorm layers, in place, by layers over all ranks or over those of a group.

    Parameters and buffers stay the same objects, hooks stay in force, and a layer that contains others, such as timm's
    with an activation, still ends with them.

    >>> type(convert_sync_batch_norm(nn.Sequential(nn.BatchNorm1d(4)))[0]).__name__
    'SyncBatchNorm'
    """
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
        return _synchronised(module, group)
    for name, child in module.named_children():
        module.add_module(name, convert_sync_batch_norm(child, group))
    return module


def local_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances of BatchNorm layers that see only some ranks' rows.

    They differ between ranks until they are averaged.
    """
    layers = [layer for layer in module.modules() if isinstance(layer, _BatchNorm) and not _sees_all(layer)]
    return [value for layer in layers for value in (layer.running_mean, layer.running_var) if value is not None]


def _sees_all(layer: _BatchNorm) -> bool:
    return isinstance(layer, SyncBatchNorm | nn.SyncBatchNorm) and layer.process_group is None


def _global_moments(x: Tensor, group: dist.Group | None) -> tuple[int, Tensor, Tensor]:
    """Return the values per channel, mean [C] and biased variance [C] over the ranks of a group.

    Each rank's moments are exact (two passes); they are merged in float64, where the cancellation of E[x^2] - E[x]^2
    does not reach float32.
    """
    wide: Any = torch.promote_types(x.dtype, torch.float32)
    var, mean = torch.var_mean(x.to(wide), dim=[0, *range(2, x.dim())], correction=0)  # [C]
    count = x.numel() // x.shape[1]
    var, mean = var.double(), mean.double()
    sums = dist.all_sum(torch.cat([mean * count, (var + mean**2) * count, mean.new_tensor([count])]), group)  # [2C + 1]
    total = sums[-1].detach()
    mean, square = (sums[:-1] / total).chunk(2)
    var = (square - mean**2).clamp(min=0)
    return int(total), mean.to(wide), var.to(wide)


def _synchronised(layer: _BatchNorm, group: dist.Group | None) -> nn.Module:
    children = dict(layer.named_children())
    kind = _SyncBatchNormThenChildren if children else SyncBatchNorm
    new = kind(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    new.process_group = group
    new.weight, new.bias = layer.weight, layer.bias
    new.running_mean, new.running_var = layer.running_mean, layer.running_var
    new.num_batches_tracked = layer.num_batches_tracked
    new.training = layer.training
    new._forward_pre_hooks, new._forward_hooks = layer._forward_pre_hooks, layer._forward_hooks
    for name, child in children.items():
        new.add_module(name, child)
    return new


class _SyncBatchNormThenChildren(SyncBatchNorm):
    """A normalisation that ends with the layers it contains."""

    def forward(self, input: Tensor) -> Tensor:
        out = super().forward(input)
        for layer in self.children():
            out = layer(out)
        return out


@torch.no_grad()
def in_shuffled_order(network: Callable[[Tensor], Tensor], images: Tensor, batch: Batch, slot: str) -> Tensor:
    """Return outputs for this rank's images, each normalised together with images of all ranks (MoCo, arXiv 1911.05722,
    section 3.3, "Shuffling BN").

    The images of all ranks are shuffled among the ranks, pass through the network, and the outputs are put back in
    order. Each image goes to one other rank and its output comes back, so memory does not grow with the ranks.

    >>> batch = Batch({}, torch.arange(3), torch.zeros(3))
    >>> in_shuffled_order(nn.Identity(), torch.arange(3.0)[:, None], batch, "example").flatten()
    tensor([0., 1., 2.])

    Args:
        network: a teacher, whose outputs [n, ...] of images [n, ...] need no gradients.
        images: [B, ...] of this rank.
        batch: the step's batch; the order is a function of seed, step and `slot`.
        slot: name of the draw.

    Returns:
        Outputs [B, ...] of this rank's images.
    """
    counts = dist.row_shares(images)
    order = batch.shared(slot).permutation(sum(counts))[0]  # [N], the image at each position
    routes = _routes(order, counts, dist.rank())
    outgoing, arranged, back, restored = to_device(torch.from_numpy(routes.rows), images.device)  # [B] each
    outputs: Tensor = network(dist.exchange_rows(images[outgoing], routes.sent, routes.received)[arranged])
    return dist.exchange_rows(outputs[back], routes.received, routes.sent)[restored]


@dataclass(frozen=True)
class _Routes:
    """The way of images to other ranks, and of their outputs back."""

    rows: Int64s
    """[4, B]: this rank's images by the rank they go to; those that arrive by position; outputs by the rank they go
    back to; those that come back by image."""
    sent: list[int]
    """[W], number of images for each rank."""
    received: list[int]
    """[W], number of images from each rank."""


def _routes(order: Int64s, counts: list[int], rank: int) -> _Routes:
    """Route images whose positions are shared among ranks as the images are.

    Args:
        order: int64 [N], the image at each position.
        counts: [W], number of images, and of positions, of each rank.
    """
    ends = np.cumsum(counts)
    first, end = ends[rank] - counts[rank], ends[rank]
    positions = np.flatnonzero((first <= order) & (order < end))  # [B], of this rank's images, rising
    sent = np.bincount(np.searchsorted(ends, positions, side="right"), minlength=len(counts))
    owners = np.searchsorted(ends, order[first:end], side="right")  # [B], the rank with the image at each own position
    received = np.bincount(owners, minlength=len(counts))
    by_owner = np.argsort(owners, kind="stable")  # images arrive by owner, and from each by position
    images = order[positions] - first
    rows = np.stack([images, np.argsort(by_owner), by_owner, np.argsort(images)])
    return _Routes(rows, sent.tolist(), received.tolist())
