"""Batch normalisation over the images of all ranks."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl import distributed as dist


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with mean and variance over the rows of all ranks, for CPUs, in any precision.

    torch's own refuses CPU tensors; this one takes [B, C] and [B, C, ...], ranks with different B (at least 1), and
    float64. On one process it is torch's BatchNorm. One collective a pass, forward and backward, whose result is read:
    on a GPU torch's is faster.
    """

    process_group: dist.Group | None = None
    """The ranks whose rows count, see `dist.group_of`; None: all."""

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected [B, C] or [B, C, ...], got {list(input.shape)}")

    def forward(self, input: Tensor) -> Tensor:
        """The input, each channel with mean 0 and variance 1 over the ranks, then scaled and shifted.

        Raises:
            ValueError: if there is only one value a channel in the whole batch.
        """
        uses_batch = self.training or self.running_mean is None
        if not uses_batch or dist.world() == 1:
            return super().forward(input)
        self._check_input_dim(input)
        count, mean, var = _global_moments(input, self.process_group)
        if count <= 1:
            raise ValueError(
                f"expected more than 1 value per channel when training, got input size {list(input.shape)}"
            )
        if self.training and self.running_mean is not None:
            self._track(count, mean.detach(), var.detach())
        scale = torch.rsqrt(var + self.eps)  # [C]
        if self.weight is not None:
            scale = scale * self.weight
        shift = -mean * scale if self.bias is None else self.bias - mean * scale
        shape = (1, -1, *[1] * (input.dim() - 2))
        return torch.addcmul(shift.view(shape), input.to(scale.dtype), scale.view(shape)).to(input.dtype)

    def _track(self, count: int, mean: Tensor, var: Tensor) -> None:
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        self.num_batches_tracked.add_(1)
        share = 1 / int(self.num_batches_tracked) if self.momentum is None else self.momentum
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_((var * (count / (count - 1))).to(self.running_var.dtype), share)


def convert_sync_batch_norm(
    module: nn.Module, group: dist.Group | None = None, is_on_gpu: bool | None = None
) -> nn.Module:
    """The module with its BatchNorm layers replaced, in place, by ones over all ranks, or those of a group.

    Parameters and buffers stay the same objects, and a layer that holds others, as timm's with an activation do, still
    ends with them. CUDA modules get torch's SyncBatchNorm, others the one of this file: move the module to its device
    first, or say where it will be. (torch's makes the host wait once a layer and pass, for a count.)
    """
    if is_on_gpu is None:
        is_on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    if is_on_gpu:
        return _with_what_follows(nn.SyncBatchNorm.convert_sync_batchnorm(module, group))  # type: ignore[no-untyped-call]
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
        return _like(module, group)
    for name, child in module.named_children():
        module.add_module(name, convert_sync_batch_norm(child, group, is_on_gpu))
    return module


def norm_statistics(module: nn.Module) -> list[Tensor]:
    """Running means and variances of all BatchNorm layers, the buffers themselves."""
    return _statistics(layer for layer in module.modules() if isinstance(layer, _BatchNorm))


def local_statistics(module: nn.Module) -> list[Tensor]:
    """Those of the layers that see the rows of some ranks, so that ranks differ until they take the mean."""
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return _statistics(layer for layer in layers if not _sees_all(layer))


def _sees_all(layer: _BatchNorm) -> bool:
    return isinstance(layer, SyncBatchNorm | nn.SyncBatchNorm) and layer.process_group is None


def _statistics(layers: Iterable[_BatchNorm]) -> list[Tensor]:
    pairs = ((layer.running_mean, layer.running_var) for layer in layers)
    return [value for pair in pairs for value in pair if value is not None]


def _global_moments(x: Tensor, group: dist.Group | None) -> tuple[int, Tensor, Tensor]:
    """Values per channel, mean [C] and biased variance [C] over the ranks of a group.

    Each rank's own moments are exact (two passes); their sums are merged in float64, where the cancellation of
    E[x^2] - E[x]^2 does not reach float32.
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


def _like(layer: _BatchNorm, group: dist.Group | None) -> nn.Module:
    new = SyncBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    new.process_group = group
    new.weight, new.bias = layer.weight, layer.bias
    new.running_mean, new.running_var = layer.running_mean, layer.running_var
    new.num_batches_tracked = layer.num_batches_tracked
    new.training = layer.training
    for name, child in layer.named_children():
        new.add_module(name, child)
    return _with_what_follows(new)


class _ThenChildren(nn.Module):
    """First base of a normalisation that ends with the layers it holds."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input)
        for layer in self.children():
            out = layer(out)
        return out


class _SyncBatchNormThenChildren(_ThenChildren, SyncBatchNorm):
    pass


class _TorchSyncBatchNormThenChildren(_ThenChildren, nn.SyncBatchNorm):
    pass


_THEN_CHILDREN: dict[type[nn.Module], type[nn.Module]] = {
    SyncBatchNorm: _SyncBatchNormThenChildren,
    nn.SyncBatchNorm: _TorchSyncBatchNormThenChildren,
}


def _with_what_follows(module: nn.Module) -> nn.Module:
    """The module; normalisations in it that hold other layers pass their output through those."""
    for layer in module.modules():
        if type(layer) in _THEN_CHILDREN and list(layer.children()):
            layer.__class__ = _THEN_CHILDREN[type(layer)]
    return module
