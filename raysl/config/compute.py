"""Settings of a step's computation and its distribution over workers: parts of `TrainConfig`."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from raysl.config.component import MAY_CHANGE
from raysl.config.ranges import Count, Within


@dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """Precision, memory and kernels of a step."""

    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Autocast of the forward pass; auto is bf16 on GPUs and fp32 on CPUs. Losses are always computed in fp32. fp16
    scales the loss up, and skips an update whose gradient overflows."""
    fp32_products: Literal["default", "ieee", "tf32", "bf16"] = "default"
    """Precision of matrix products and convolutions of fp32 tensors: fp32 (ieee), TF32 of a GPU, or bf16, if the device
    has it. Default: torch's, which is TF32 only for convolutions on a GPU."""
    channels_last: bool | None = None
    """Keep the channels of a pixel together in memory, as tensor cores need them. Default: on a GPU, except with
    parallel=fsdp."""
    compile: bool | Literal["step"] = False
    """Compile the blocks of backbones with torch.compile: a minute or more at the start of each worker, then faster
    steps; results differ in the last bits. `step` compiles the method's whole step, with its heads, teacher and loss,
    for one worker."""
    cuda_graphs: bool = False
    """With compile=step on a GPU, record the kernels of a step once and replay them, which spares the host their
    launches; for batches of one size (`data.drop_last=true`)."""
    recompute: Literal["all"] | tuple[str, ...] = field(default=(), metadata=MAY_CHANGE)
    """Stages of the backbone, such as [res2, res3], whose inner activations are computed again in the backward pass
    instead of stored: less memory, more time, the same results. `all` means every stage."""
    deterministic: bool = False
    """Use deterministic GPU kernels, so that results on a GPU repeat bit for bit, as they always do on CPUs."""


@dataclass(frozen=True, kw_only=True)
class ParallelConfig:
    """How several workers train one network."""

    parallel: Literal["ddp", "zero1", "fsdp"] = field(default="ddp", metadata=MAY_CHANGE)
    """What each worker stores: everything (ddp), a share of the optimizer's state (zero1), or shares of this, of
    gradients and of weights (fsdp), for networks that do not fit one GPU. Checkpoints are the same for all three."""
    sync_bn: bool = True
    """Batch normalisation over the whole global batch instead of each worker's rows."""
    sync_bn_ranks: Literal["node"] | Count | None = None
    """With sync_bn, batch normalisation over the rows of that number of neighbouring workers, or of a node's workers.
    Default: all workers; only this gives the gradient of one process with the whole batch."""
    bucket_mb: Annotated[float, Within(0.001, 1e5)] | None = None
    """Size in MiB of the parts in which ddp and zero1 exchange gradients. Default: torch's, 25."""
    static_graph: bool = False
    """Let ddp and zero1 assume that every step uses the same weights in the same way."""
    compress_gradients: Literal["fp16", "bf16"] | None = None
    """Type in which ddp and zero1 exchange gradients, at lower precision. Default: that of the gradients."""
