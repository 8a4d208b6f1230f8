"""Settings of how a step is computed, and how it is spread over workers: parts of `TrainConfig`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from raysl.config.component import MAY_CHANGE
from raysl.config.ranges import Count, Within


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Precision, memory and kernels of a step."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast of the forward pass; auto is bf16 on GPUs and fp32 on CPUs. Losses are computed in fp32 either way. fp16
    scales the loss up, and leaves out an update whose gradient overflows."""
    fp32_products: Literal["default", "ieee", "tf32", "bf16"] = "default"
    """What matrix products and convolutions of fp32 tensors may be made of: fp32 (ieee), TF32 of a GPU, or bf16, where
    the device has it. Default: torch's own, TF32 for the convolutions of a GPU alone."""
    channels_last: bool | None = None
    """Keep the channels of a pixel side by side in memory, as tensor cores want them. Default: on a GPU, but
    not with parallel=fsdp."""
    compile: bool = False
    """Compile the blocks of backbones by torch.compile: a minute or more at the start of each worker, for faster steps;
    results differ in the last bits from those without."""
    recompute: Literal["all"] | tuple[str, ...] = field(default=(), metadata=MAY_CHANGE)
    """Stages of the backbone, such as [res2, res3], whose inner activations are computed again in the backward pass
    and not kept: less memory, more time, the same results. `all` takes every stage."""
    deterministic: bool = False
    """Use deterministic GPU kernels, for results that repeat bit for bit there. CPU runs always repeat."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How several workers train one network."""

    parallel: Literal["ddp", "zero1", "fsdp"] = field(default="ddp", metadata=MAY_CHANGE)
    """What each worker holds: everything (ddp), a share of the optimizer's state (zero1), or shares of that, of
    gradients and of weights (fsdp), for networks that do not fit one GPU. Checkpoints are the same in all three."""
    sync_bn: bool = True
    """Batch normalisation over the whole global batch instead of each worker's rows."""
    sync_bn_ranks: Literal["node"] | Count | None = None
    """Batch normalisation over the rows of so many neighbouring workers, or of those of a node, where sync_bn is on.
    Default: all workers, which alone gives the gradient of one process with the whole batch."""
    bucket_mb: Annotated[float, Within(0.001, 1e5)] | None = None
    """Size in MiB of the parts in which ddp and zero1 exchange gradients. Default: torch's, 25."""
    static_graph: bool = False
    """Have ddp and zero1 rely on that every step uses the same weights in the same way."""
    compress_gradients: Literal["fp16", "bf16"] | None = None
    """Type in which ddp and zero1 exchange gradients; loses digits. Default: their own."""
