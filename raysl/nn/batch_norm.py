"""Batch normalisation over the images of all ranks, or over images shuffled among them."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from raysl import distributed as dist
from raysl.data.batch import Batch
from raysl.transforms.device import to_device


class SyncBatchNorm(_BatchNorm):
    """Batch normalisation with mean and variance over the rows of all ranks, for CPUs, in any precision.

    torch's SyncBatchNorm refuses CPU tensors; this one takes [B, C] and [B, C, ...], ranks with different B (at least
    1), and float64. On one process it is torch's BatchNorm. The host waits for one collective in each pass, forward and
    backward; on a GPU torch's is faster.

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
            ValueError: if the whole batch has only one value per channel.
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
    """Replace the module's BatchNorm layers, in place, by layers over all ranks or over those of a group.

    Parameters and buffers stay the same objects, and a layer that contains others, such as timm's with an activation,
    still ends with them. CUDA modules get torch's SyncBatchNorm, others the one of this file: move the module to its
    device first, or set `is_on_gpu`. (torch's makes the host wait once per layer and pass, for a count.)

    >>> type(convert_sync_batch_norm(nn.Sequential(nn.BatchNorm1d(4)))[0]).__name__
    'SyncBatchNorm'
    """
    if is_on_gpu is None:
        is_on_gpu = any(parameter.is_cuda for parameter in module.parameters())
    if is_on_gpu:
        return _run_children(nn.SyncBatchNorm.convert_sync_batchnorm(module, group))  # type: ignore[no-untyped-call]
    if isinstance(module, _BatchNorm) and not isinstance(module, SyncBatchNorm | nn.SyncBatchNorm):
        return _synchronised(module, group)
    for name, child in module.named_children():
        module.add_module(name, convert_sync_batch_norm(child, group, is_on_gpu))
    return module


def norm_statistics(module: nn.Module) -> list[Tensor]:
    """Return the running means and variances of all BatchNorm layers, the buffers themselves."""
    return _statistics(layer for layer in module.modules() if isinstance(layer, _BatchNorm))


def local_statistics(module: nn.Module) -> list[Tensor]:
    """Return those of the layers that see only some ranks' rows, which differ between ranks until they are averaged."""
    layers = (layer for layer in module.modules() if isinstance(layer, _BatchNorm))
    return _statistics(layer for layer in layers if not _sees_all(layer))


def _sees_all(layer: _BatchNorm) -> bool:
    return isinstance(layer, SyncBatchNorm | nn.SyncBatchNorm) and layer.process_group is None


def _statistics(layers: Iterable[_BatchNorm]) -> list[Tensor]:
    pairs = ((layer.running_mean, layer.running_var) for layer in layers)
    return [value for pair in pairs for value in pair if value is not None]


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
    new = SyncBatchNorm(layer.num_features, layer.eps, layer.momentum, layer.affine, layer.track_running_stats)
    new.process_group = group
    new.weight, new.bias = layer.weight, layer.bias
    new.running_mean, new.running_var = layer.running_mean, layer.running_var
    new.num_batches_tracked = layer.num_batches_tracked
    new.training = layer.training
    for name, child in layer.named_children():
        new.add_module(name, child)
    return _run_children(new)


class _WithChildren(nn.Module):
    """First base class of a normalisation that ends with the layers it contains."""

    def forward(self, input: Tensor) -> Tensor:
        out: Tensor = super().forward(input)
        for layer in self.children():
            out = layer(out)
        return out


class _SyncBatchNormThenChildren(_WithChildren, SyncBatchNorm):
    pass


class _TorchSyncBatchNormThenChildren(_WithChildren, nn.SyncBatchNorm):
    pass


_THEN_CHILDREN: dict[type[nn.Module], type[nn.Module]] = {
    SyncBatchNorm: _SyncBatchNormThenChildren,
    nn.SyncBatchNorm: _TorchSyncBatchNormThenChildren,
}


def _run_children(module: nn.Module) -> nn.Module:
    """Have the normalisations in a module that contain other layers pass their output through them."""
    for layer in module.modules():
        if type(layer) in _THEN_CHILDREN and list(layer.children()):
            layer.__class__ = _THEN_CHILDREN[type(layer)]
    return module


@torch.no_grad()
def in_shuffled_order(network: nn.Module, images: Tensor, batch: Batch, slot: str) -> Tensor:
    """Return outputs for this rank's images, each normalised together with images of all ranks (MoCo, arXiv 1911.05722,
    section 3.3, "Shuffling BN").

    The images of all ranks are shuffled among the ranks, pass through the network, and the outputs are put back in
    order.

    >>> batch = Batch({}, torch.arange(3), torch.zeros(3))
    >>> in_shuffled_order(nn.Identity(), torch.arange(3.0)[:, None], batch, "example").flatten()
    tensor([0., 1., 2.])

    Args:
        network: a teacher, whose outputs need no gradients.
        images: [B, ...] of this rank.
        batch: the step's batch; the order is a function of seed, step and `slot`.
        slot: name of the draw.

    Returns:
        Outputs [B, ...] of this rank's images.
    """
    everyone, local_rows = dist.all_gather(images), dist.own_rows(images)  # [N, ...], [B]
    drawn = batch.shared(slot).permutation(len(everyone))[0]
    order = to_device(torch.from_numpy(drawn), images.device)  # [N], the image at each position
    outputs: Tensor = network(everyone[order[local_rows]])
    return dist.all_gather(outputs)[torch.argsort(order)[local_rows]]
