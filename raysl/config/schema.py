"""The tree of settings of a run: what every component's `Config` derives from.

Nodes with a `name` (method, backbone, data, optim, each benchmark) are components: the name picks a class through
`raysl.components`, and the node then takes the fields of that class's nested `Config`.
A field that may differ when a run is started again under its name carries `MAY_CHANGE`.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from raysl.errors import ConfigError as ConfigError
from raysl.schedule import Duration

MAY_CHANGE: dict[str, bool] = {"may_change": True}


@dataclass(frozen=True, kw_only=True)
class ComponentConfig:
    """A node whose `name` picks the class that reads it."""

    name: str
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ComponentConfig):
    """Base of every method's settings."""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ComponentConfig):
    """Base of every backbone's settings."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(ComponentConfig):
    """Base of every source's settings, and what the data pipeline needs beside them."""

    image_size: int = 224
    """Side of the square images that benchmarks and `load_backbone` users feed, in pixels."""
    eval_resize: int | None = None
    """Short side before the centre crop of evaluation, in pixels.
    Default: image_size * 256 / 224 from 64 px on, else image_size."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Channel means of the normalisation, of images in [0, 1]."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Channel standard deviations of the normalisation, of images in [0, 1]."""
    limit: int | None = None
    """Use only so many images of each split, an even share of the file order; default: all."""
    balanced: bool = False
    """Take the training images of `limit` from all classes alike; where that leaves a rest, the first classes
    give one more."""
    skip: int | None = None
    """Take the training images of `limit` from a draw that is always the same, after the first so many:
    limit=n skip=0 and limit=n skip=n share none. Default: no draw, an even share."""
    subset: str | None = None
    """File or URI (.txt, .npy) that lists the training images to use: a file name (with or without its folders and
    extension) or an index a line; `limit` chooses among them."""
    label_type: Literal["standard", "sample_index", "zero"] = "standard"
    """Labels of the dataset, each sample's index, or 0 for all; the latter two name no classes that benchmarks
    could measure."""
    lanes: int | None = None
    """Fixed parts of a global batch, each with its own read units; a worker takes whole lanes.
    Default: 64, or the batch where that is smaller."""
    window: int = 2048
    """Rows of one lane that are shuffled together where a dataset is too large for an exact permutation."""
    drop_last: bool = True
    """Leave out the images that fill no batch at the end of an epoch, other ones each time; else the last batch of each
    epoch is smaller."""
    exact_below: int = 4_194_304
    """Datasets with fewer rows get an exact permutation each epoch, if their source can read any row."""
    augment_on: Literal["auto", "task", "device"] = field(default="auto", metadata=MAY_CHANGE)
    """Where views are augmented: in the data tasks, on the worker's device, or on the device
    where it is a GPU (auto)."""
    scaled_decode: bool = True
    """Decode large JPEG files at 1/2, 1/4 or 1/8 of their size where every view of them is smaller still; training
    alone, evaluation decodes in full."""
    max_corrupt: float = field(default=0.05, metadata=MAY_CHANGE)
    """Share of the training images that may turn out to be broken before the run stops;
    up to there they are replaced."""
    changed: Literal["refuse", "accept"] = field(default="refuse", metadata=MAY_CHANGE)
    """What a resume does when the training images are not those that the run began with: refuse, or go on with them at
    the beginning of the epoch that it was in."""
    buffer_gb: float | None = field(default=None, metadata=MAY_CHANGE)
    """Memory that views may fill in Ray's object store before the data tasks wait; default: Ray's own share of it."""
    prefetch: int = field(default=2, metadata=MAY_CHANGE)
    """Blocks that each worker holds ready ahead of training, at least 1."""

    def __post_init__(self) -> None:
        if self.subset is not None:  # workers run in other directories
            from raysl.storage import absolute

            object.__setattr__(self, "subset", absolute(self.subset))


@dataclass(frozen=True, kw_only=True)
class OptimConfig(ComponentConfig):
    """Base of every optimizer's settings, with the schedule of its learning rate."""

    lr: float = 0.3
    """Peak learning rate for `lr_batch_size` images."""
    lr_scaling: Literal["none", "linear", "sqrt"] = "linear"
    """How the learning rate grows with train.batch_size / lr_batch_size."""
    lr_batch_size: int = 256
    """Global batch size that `lr` is stated for."""
    schedule: Literal["cosine", "constant"] = "cosine"
    """Course of the learning rate after the warm-up."""
    warmup: Duration = field(default=Duration.parse("10ep"))
    """Linear rise from 0 to the peak: epochs (10ep), steps (500st) or a share of the run (5%)."""
    final_lr: float = 0.0
    """Learning rate at the end, as a share of the peak, in [0, 1]."""
    weight_decay: float = 1e-6
    """L2 penalty on the weights."""
    exclude_norm_and_bias: bool = True
    """Leave one-dimensional parameters (biases, normalisation) out of weight decay and of layer-wise scaling."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """How long, how wide and how safely to train."""

    epochs: int = 100
    """Passes over the training images."""
    batch_size: int = 256
    """Images in a global batch, over all workers."""
    workers: int = field(default=1, metadata=MAY_CHANGE)
    """Training processes; one per GPU."""
    uneven: bool = field(default=False, metadata=MAY_CHANGE)
    """Allow a number of workers that does not divide the lanes: ranks hold uneven rows, the gradient stays exact."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=MAY_CHANGE)
    """Where to train; auto takes GPUs when the cluster has or can start them."""
    threads: int | None = field(default=None, metadata=MAY_CHANGE)
    """Threads of torch in each worker; default: its share of the node's CPUs.
    Other counts change the last bits of results."""
    cpus_per_worker: float | None = field(default=None, metadata=MAY_CHANGE)
    """CPUs that Ray reserves for each worker; default: 1, or a fraction where the data tasks
    would be left without one."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Autocast of the forward pass; auto is bf16 on GPUs and fp32 on CPUs. Losses are computed in fp32 either way."""
    sync_bn: bool = True
    """Batch normalisation over the whole global batch instead of each worker's rows."""
    clip_grad: float | None = None
    """Largest norm of the gradient; default: no clipping."""
    deterministic: bool = False
    """Use deterministic GPU kernels, for results that repeat bit for bit there. CPU runs always repeat."""
    log_every: Duration = field(default=Duration.parse("10st"), metadata=MAY_CHANGE)
    """How often a line goes to metrics.jsonl and TensorBoard."""
    checkpoint_every: Duration = field(default=Duration.parse("1ep"), metadata=MAY_CHANGE)
    """How often a checkpoint is saved; the last step always saves one."""
    keep_checkpoints: int = field(default=2, metadata=MAY_CHANGE)
    """Newest checkpoints that stay in the run's folder, at least 1."""
    online_knn_every: Duration | None = field(default=None, metadata=MAY_CHANGE)
    """How often the kNN accuracy on held-out images is measured during training; default: never."""
    max_failures: int = field(default=3, metadata=MAY_CHANGE)
    """Losses of a worker or a node that are repaired before the run gives up; -1 for no limit."""
    expect: dict[str, tuple[float, float]] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Ranges that final metrics must lie in, {metric: [low, high]}; the run fails otherwise."""


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(ComponentConfig):
    """Base of every benchmark's settings."""

    required: bool = True
    """Refuse images on which it cannot be measured; else it is left out there, with a line that says so. One that a
    file of yours or the command line names is required unless it says otherwise."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run. Frozen once loaded."""

    name: str = field(default="run", metadata=MAY_CHANGE)
    """Name of the run: its folder inside `storage`. Starting the same name again resumes it."""
    storage: str = field(default="./runs", metadata=MAY_CHANGE)
    """Folder or URI (s3://, gs://) that holds the runs."""
    seed: int = 0
    """Seed of everything random: initial weights, sample order, augmentation."""
    method: MethodConfig
    """Self-supervised method."""
    backbone: BackboneConfig
    """Network that is trained."""
    data: DataConfig
    """Images."""
    optim: OptimConfig
    """Optimizer and learning rate."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, batch, workers, checkpoints."""
    benchmarks: dict[str, BenchmarkConfig] = field(default_factory=dict, metadata=MAY_CHANGE)
    """What is measured after training: settings by benchmark name."""


def is_may_change(metadata: Any) -> bool:
    """Whether a field with this metadata may differ when a run is started again under its name."""
    return bool(metadata.get("may_change", False))
