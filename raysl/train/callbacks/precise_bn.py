"""Batch normalisation statistics over many images, for the exported backbone."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from raysl import distributed as dist
from raysl.config.ranges import Count
from raysl.train.callbacks.callback import Callback, CallbackConfig, Run


class PreciseBN(Callback):
    """Replaces the running averages in the exported backbone of every checkpoint by statistics over `images` images.

    The images are those of `Run.images`, without augmentation, as in benchmarks. A copy of the backbone
    sees them in training batches, 256 at a time on each worker; mean and unbiased variance of each layer's inputs are
    taken over all images, in float64. Only `backbone.safetensors` has these statistics: `train_state.pt`, the training
    itself and its own measurements (`train.online_knn_every`) keep the running averages. So a run ends in the same
    training state with and without this callback, bit for bit, and resumes exactly.

    Source: PreciseBN of Detectron2; Wu and Johnson 2021, arXiv 2105.07576, section 3.
    """

    @dataclass(frozen=True, kw_only=True)
    class Config(CallbackConfig):
        """Settings of the statistics."""

        images: Count = 10_000
        """Training images of all workers together."""

    @override
    def on_train_start(self, run: Run) -> None:
        if not _layers(run.state.method.export()):
            run.note(f"precise_bn does nothing: {run.state.config.backbone.name} has no batch normalisation to follow")

    @override
    @torch.no_grad()
    def before_checkpoint(self, run: Run) -> None:
        backbone = run.state.exported(as_copy=True).eval()
        layers = _layers(backbone)
        if not layers:
            return
        moments = {name: _Moments(layer) for name, layer in layers.items()}
        with ExitStack() as hooks:
            for name, layer in layers.items():
                hooks.enter_context(layer.register_forward_pre_hook(moments[name].add))
            for batch in run.images(self.config.images):
                backbone(batch.views["image"][:, 0])
        buffers: dict[str, Tensor] = {}
        for name, moment in moments.items():
            mean, var = moment.over_ranks()
            if mean is not None and var is not None:
                buffers |= {f"{name}.running_mean": mean, f"{name}.running_var": var}
        run.state.export_buffers = buffers


class _Moments:
    def __init__(self, layer: _BatchNorm) -> None:
        assert layer.running_mean is not None
        self.kind = layer.running_mean.dtype
        self.sums = torch.zeros(2, layer.num_features, dtype=torch.float64, device=layer.running_mean.device)
        self.count = 0

    def add(self, layer: nn.Module, args: Any) -> None:
        """Add a batch, and make the layer, which is in evaluation mode, normalise with the batch's statistics."""
        values = args[0].double().transpose(0, 1).flatten(1)  # [C, N]
        self.sums += torch.stack([values.sum(dim=1), values.square().sum(dim=1)])
        self.count += values.shape[1]
        layer.get_buffer("running_mean").copy_(values.mean(dim=1))
        layer.get_buffer("running_var").copy_(values.var(dim=1, correction=0))

    def over_ranks(self) -> tuple[Tensor | None, Tensor | None]:
        """Return mean and unbiased variance [C]; None for fewer than two values."""
        count = int(dist.all_sum(torch.tensor(self.count, dtype=torch.float64, device=self.sums.device)))
        total, squares = dist.all_sum(self.sums)
        if count < 2:
            return None, None
        mean = total / count
        # the sums are float64, where the difference of squares keeps its digits
        var = (squares / count - mean.square()).clamp(min=0) * (count / (count - 1))
        return mean.to(self.kind), var.to(self.kind)


def _layers(backbone: nn.Module) -> dict[str, _BatchNorm]:
    return {
        name: module
        for name, module in backbone.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }
