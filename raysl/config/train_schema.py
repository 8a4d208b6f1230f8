"""Settings of training: its length and workers, how they share it, and how a step is computed."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from raysl.config.component import MAY_CHANGE
from raysl.config.ranges import Adapts, AnyBound, Count, Every, Length, Momentum, Rising, Within
from raysl.schedule import Duration

Workers = Annotated[int, Within(1, 65_536)]


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """Training: its length and workers, how they share it, and how a step is computed."""

    epochs: Annotated[int, Within(1, 1_000_000)] = field(default=100, metadata=MAY_CHANGE)
    """Passes over the training images. With `extend`, a run that has begun may get more of them, never fewer."""
    end: Every | None = None
    """End of the run in updates, within its `epochs`: 12500st. Default: the end of the last epoch."""
    extend: bool = field(default=False, metadata=MAY_CHANGE)
    """Continue a run with more `epochs`; its learning rate then follows the curve of the longer run."""
    batch_size: Annotated[int, Within(1, 10_000_000), Adapts("batch")] = 256
    """Images in a global batch, over all workers."""
    workers: Workers | Annotated[tuple[Workers, Workers], Rising(strictly=True)] = field(default=1, metadata=MAY_CHANGE)
    """Training processes; one per GPU. [2, 8] trains on as many of 2 to 8 as the cluster holds: with fewer once a node
    is lost for good, with more once one comes, and always with the same batches (ranks may have uneven rows)."""
    reference_workers: Workers | None = None
    """Number of workers for which the settings are made. With r times as many, the batch is r times as large, the peak
    learning rate grows with it (by `optim.lr_scaling`; r times for none), and durations in updates (500st), except
    `log_every`, are divided by r. Such a run keeps its number of workers. Default: nothing is scaled."""
    uneven: bool = field(default=False, metadata=MAY_CHANGE)
    """Allow a number of workers that does not divide the lanes: ranks have uneven rows, the gradient stays exact. A
    range of `workers` allows it in any case."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=MAY_CHANGE)
    """Where to train; auto takes GPUs when the cluster has or can start them."""
    threads: Annotated[int, Within(1, 1024)] | None = field(default=None, metadata=MAY_CHANGE)
    """Threads of torch in each worker. Default: its share of the node's CPUs; on a machine without a cluster, of those
    that other work leaves when the run begins, see "What repeats bit for bit". Other numbers change the last bits."""
    cpus_per_worker: Annotated[float, Within(0.01, 1024)] | None = field(default=None, metadata=MAY_CHANGE)
    """CPUs that Ray reserves for each worker; default: 1, or a fraction if no CPU would be left for the data tasks."""
    gpus_per_worker: Annotated[float, Within(0.01, 1)] = field(default=1.0, metadata=MAY_CHANGE)
    """Share of a GPU that Ray reserves for the worker of a run with one worker, so that runs share a GPU: 0.25. GPU
    memory is not limited to that share. Several workers need a GPU each, because NCCL allows one rank per GPU."""
    accumulate: Count = 1
    """Parts into which each worker's rows of a batch are divided, to be processed one after another before an update in
    the memory of one part. Negatives, batch statistics and balanced assignments are then those of a part, over all
    workers."""
    view_scale: dict[str, Annotated[float, Within(0.1, 1)]] | None = None
    """Smaller views in a part of the run, for less time: {0%: 0.5, 75%: 1} trains with views of half the side for three
    quarters of the run, as FastDINOv2 does (arXiv 2507.03779; its noise at the end is not included). Points are shares
    of the run or epochs (10ep); a size holds from the first epoch that begins at its point or later. Sides become
    multiples of the patch size. Evaluation keeps `data.image_size`. Default: views keep their size."""
    patch_drop: dict[str, Annotated[float, Within(0, 1, below=True)]] | None = None
    """Share of each view's patches that a ViT leaves out in training, drawn anew for each view, for less time: {0%:
    0.5, 90%: 0} trains on half of the patches for nine tenths of the run and then on all of them, as FLIP does (arXiv
    2212.00794). Points are as those of `view_scale`. A momentum teacher and all measurements see all patches. For
    methods that take one feature of each whole view. Default: all patches stay."""
    warm_heads: Length | None = None
    """How long a backbone that begins with weights waits while projector, predictor, prototypes or decoder learn: 1ep.
    Neither its weights nor its running statistics change, and the learning rate takes its course. Default: not at
    all."""
    clip_grad: Annotated[float, Within(0, 1e9, above=True)] | None = None
    """Largest norm of the gradient; default: no clipping."""
    clip_grad_over: Literal["model", "part", "tensor"] = "model"
    """What the norm is taken over: all gradients together, each part of the method (backbone, each head) as in DINOv2,
    or each tensor as in DINO and iBOT."""
    clip_grad_value: Annotated[float, Within(0, 1e9, above=True)] | None = None
    """Largest absolute value in the gradient, applied before `clip_grad`; default: no clipping."""
    ema: Momentum | None = None
    """Momentum of an exponential moving average of all weights: 0.9999. It is saved in `train_state.pt`. Default: no
    average."""
    ema_every: Count = 1
    """Updates of the weights per update of the average."""
    ema_warmup: Length = field(default=Duration.parse("5%"))
    """How long the average stays a copy of the weights, so that it does not contain the first ones."""
    ema_buffers: Literal["average", "copy"] = "average"
    """Floating-point buffers, such as running statistics, of the average: averaged too, or copies of the present ones,
    which take no memory."""
    ema_export: bool = False
    """Export the averaged backbone, which benchmarks then measure, instead of the trained one."""
    log_every: Every = field(default=Duration.parse("10st"), metadata=MAY_CHANGE)
    """How often metrics are written to metrics.jsonl and TensorBoard."""
    checkpoint_every: Every = field(default=Duration.parse("1ep"), metadata=MAY_CHANGE)
    """How often a checkpoint is saved; the last step always saves one."""
    keep_checkpoints: Count = field(default=2, metadata=MAY_CHANGE)
    """Number of newest checkpoints to keep in the run's folder."""
    online_knn_every: Every | None = field(default=None, metadata=MAY_CHANGE)
    """How often the kNN accuracy on held-out images is measured during training; default: never."""
    online_rank: bool = field(default=False, metadata=MAY_CHANGE)
    """Whether RankMe and LiDAR, which need no labels, are logged where the online kNN is measured."""
    online_probe: Every | None = field(default=None, metadata=MAY_CHANGE)
    """How often a linear classifier that is trained along, without effect on the network, is measured on held-out
    images: 1ep. Its loss and accuracy on training images are logged with the others. Default: there is none."""
    online_probe_lr: Annotated[float, Within(0, 1000, above=True)] = field(default=1e-3, metadata=MAY_CHANGE)
    """Learning rate of that classifier, by Adam."""
    eval_every: Every | None = field(default=None, metadata=MAY_CHANGE)
    """How often a method's pretext task (RotNet's rotations, Jigsaw's permutations) is evaluated on held-out images
    during training; default: never."""
    reconstruct_every: Every | None = field(default=Duration.parse("20%"), metadata=MAY_CHANGE)
    """How often methods that predict pixels (MAE, MixMIM, SparK) store pictures of their predictions for ten held-out
    images, in the folder `reconstructions` and for the report; also at the start and at the end of the run. null:
    never. With parallel=fsdp there are none."""
    patch_pictures: bool = field(default=True, metadata=MAY_CHANGE)
    """Whether the report shows the network's features of the patches of ten held-out images, before and after
    training: principal components, attention by head, and similar patches."""
    max_failures: Annotated[int, Within(-1, 1_000_000)] = field(default=3, metadata=MAY_CHANGE)
    """Failures without a saved step between them after which the run continues; -1 for no limit. Nodes that are taken
    away after a notice do not count."""
    hang_timeout: Annotated[float, Within(5, 1e6)] = field(default=600.0, metadata=MAY_CHANGE)
    """Seconds after which a worker that does not answer, or for which the others wait, counts as lost."""
    expect: dict[str, Annotated[tuple[AnyBound, AnyBound], Rising()]] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Expected ranges of final metrics, {metric: [low, high]}; outside them the run fails."""
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

    def __post_init__(self) -> None:
        for name in ("view_scale", "patch_drop"):
            for start in getattr(self, name) or ():
                if Duration.parse(start).unit == "st":
                    raise ValueError(f"{name}: {start} is in updates; give a share of the run (75%) or epochs (10ep)")
        if self.most_workers > 1 and self.gpus_per_worker < 1 and self.device != "cpu":
            raise ValueError(
                f"gpus_per_worker={self.gpus_per_worker:g} with {self.most_workers} workers: NCCL allows one rank per "
                "GPU; set train.workers=1, or train.gpus_per_worker=1"
            )
        if self.is_elastic and self.reference_workers is not None:
            raise ValueError(
                f"workers=[{self.least_workers}, {self.most_workers}] keeps the batch on any number of workers, and "
                f"reference_workers={self.reference_workers} makes it follow that number; leave one of the two out"
            )

    @property
    def least_workers(self) -> int:
        """Smallest number of workers that the run trains on."""
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def most_workers(self) -> int:
        """Largest number of workers that the run trains on."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def is_elastic(self) -> bool:
        """Whether the number of workers may change while the run trains."""
        return not isinstance(self.workers, int)

    @property
    def is_uneven_allowed(self) -> bool:
        """Whether ranks may have uneven rows."""
        return self.uneven or self.is_elastic


def limit_workers(workers: int | tuple[int, int], most: int) -> int | tuple[int, int]:
    """Return a setting `train.workers` with no number above `most`.

    >>> limit_workers(8, 4), limit_workers((2, 8), 4), limit_workers((2, 8), 2)
    (4, (2, 4), 2)
    """
    if isinstance(workers, int):
        return min(workers, most)
    low, high = (min(number, most) for number in workers)
    return (low, high) if low < high else high
