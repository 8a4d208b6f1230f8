"""The tree of settings of a run: what every component's `Config` derives from.

Nodes with a `name` (method, backbone, data, optim, each benchmark, each callback) are components: the name picks a
class through `raysl.components`, and the node then takes the fields of that class's nested `Config`.
A field that may differ when a run is started again under its name carries `MAY_CHANGE`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from raysl.config.background import parse_color
from raysl.config.component import MAY_CHANGE as MAY_CHANGE
from raysl.config.component import ComponentConfig as ComponentConfig
from raysl.config.compute import ComputeConfig, ParallelConfig
from raysl.config.optim_schema import OptimConfig as OptimConfig
from raysl.config.optim_schema import Phase as Phase
from raysl.config.ranges import (
    AnyBound,
    Count,
    Every,
    Interpolation,
    Length,
    Location,
    Momentum,
    Place,
    Rising,
    Seed,
    Share,
    Side,
    Within,
)
from raysl.schedule import Duration

Byte = Annotated[int, Within(0, 255)]
Deviation = Annotated[float, Within(0.001, 1)]
Rival = Literal["untrained", "pixels"]
ViewPreset = Literal["imagenet", "cifar", "digits", "document", "satellite", "medical"]


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ComponentConfig):
    """Base of every method's settings."""

    weights: Location | None = None
    """Run or checkpoint of raysl, a path or a URI, whose weights a new run begins with: the backbone, and of the same
    method all other parts that fit. A run that goes on has its own. Default: random ones."""


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ComponentConfig):
    """Base of every backbone's settings."""

    freeze: tuple[str, ...] = ()
    """Stages that stay as they begin, with all in front of them, or all: weights do not train, and normalisation keeps
    its running statistics. What comes behind trains, and a teacher's copy is frozen alike."""


@dataclass(frozen=True, kw_only=True)
class DataConfig(ComponentConfig):
    """Base of every source's settings, and what the data pipeline needs beside them."""

    image_size: Side = 224
    """Side of the square images that benchmarks and `load_backbone` users feed, in pixels; follows the size of the
    method's views, and that follows it, unless both are given."""
    eval_resize: Side | None = None
    """Short side before the centre crop of evaluation, in pixels.
    Default: image_size * 256 / 224 from 64 px on, else image_size."""
    eval_interpolation: Interpolation = "bilinear"
    """How that resize is done, antialiased in either case: of plain images in training, `raysl extract` and predictors.
    A benchmark has an `interpolation` of its own in its place."""
    mean: tuple[Share, Share, Share] = (0.485, 0.456, 0.406)
    """Channel means of the normalisation, of images in [0, 1]."""
    std: tuple[Deviation, Deviation, Deviation] = (0.229, 0.224, 0.225)
    """Channel standard deviations of the normalisation, of images in [0, 1]."""
    channels: Literal["rgb", "bgr", "gray", "lab_l"] = "rgb"
    """What the network sees, in training and measurement: red, green and blue; those backwards, each with its own mean
    and std; or one channel three times, which mean and std then go with: grey, or the lightness L / 100 of CIE Lab."""
    limit: Count | None = None
    """Use only so many images of each split, an even share of the file order; default: all."""
    balanced: bool = False
    """Take the training images of `limit` from all classes alike; where that leaves a rest, the first classes
    give one more."""
    skip: Place | None = None
    """Take the training images of `limit` from a draw that is always the same, after the first so many:
    limit=n skip=0 and limit=n skip=n share none. Default: no draw, an even share."""
    subset: Location | None = None
    """File or URI (.txt, .npy) that lists the training images to use: a file name (with or without its folders and
    extension) or an index a line; `limit` chooses among them."""
    subset_by: Literal["name", "index"] | None = None
    """What the lines of `subset` are. Default: indices if all are plain numbers and no image is called so, else
    names."""
    label_type: Literal["standard", "sample_index", "zero"] = "standard"
    """Labels of the dataset, each sample's index, or 0 for all; the latter two name no classes that benchmarks
    could measure."""
    background: str | tuple[Byte, Byte, Byte] = "white"
    """What transparent images are blended with: a colour by its name, as '#rrggbb' or as [red, green, blue] in
    [0, 255]; none drops alpha and takes the colours stored under it."""
    lanes: Annotated[int, Within(1, 10_000_000)] | None = None
    """Fixed parts of a global batch, each with its own read units; a worker takes whole lanes.
    Default: 64, or the batch where that is smaller."""
    window: Count = 2048
    """Rows of one lane that are shuffled together where a dataset is too large for an exact permutation."""
    drop_last: bool = True
    """Leave out the images that fill no batch at the end of an epoch, other ones each time; else the last batch of each
    epoch is smaller."""
    exact_below: Place = 4_194_304
    """Datasets with fewer rows get an exact permutation each epoch, if their source can read any row."""
    augment_on: Literal["auto", "task", "device"] = field(default="auto", metadata=MAY_CHANGE)
    """Where views are augmented: in the data tasks, on the worker's device, or on the device
    where it is a GPU (auto)."""
    scaled_decode: bool = True
    """Decode large JPEG files at 1/2, 1/4 or 1/8 of their size where every view of them is smaller still; training
    alone, evaluation decodes in full."""
    max_corrupt: Share = field(default=0.05, metadata=MAY_CHANGE)
    """Share of the training images that may turn out to be broken before the run stops;
    up to there they are replaced."""
    changed: Literal["refuse", "accept"] = field(default="refuse", metadata=MAY_CHANGE)
    """What a resume does when the training images are not those that the run began with: refuse, or go on with them, at
    the same step, or at the beginning of its epoch where epochs have another length now."""
    buffer_gb: Annotated[float, Within(0.001, 1e6)] | None = field(default=None, metadata=MAY_CHANGE)
    """Memory that views may fill in Ray's object store before the data tasks wait; default: Ray's own share of it."""
    prefetch: Annotated[int, Within(1, 1000)] = field(default=2, metadata=MAY_CHANGE)
    """Blocks that each worker holds ready ahead of training."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_color(self.background)


@dataclass(frozen=True, kw_only=True)
class CourseConfig:
    """How long, how wide and how safely to train: a part of `TrainConfig`."""

    epochs: Annotated[int, Within(1, 1_000_000)] = field(default=100, metadata=MAY_CHANGE)
    """Passes over the training images. A run that has begun may get more of them, with `extend`, and never fewer."""
    end: Length | None = None
    """End of a run whose length is stated in updates, within its `epochs`: 12500st. Default: the last epoch's end."""
    extend: bool = field(default=False, metadata=MAY_CHANGE)
    """Go on with a run whose `epochs` have grown; its learning rate then follows the curve of the longer run."""
    batch_size: Annotated[int, Within(1, 10_000_000)] = 256
    """Images in a global batch, over all workers."""
    workers: Annotated[int, Within(1, 65_536)] = field(default=1, metadata=MAY_CHANGE)
    """Training processes; one per GPU."""
    reference_workers: Annotated[int, Within(1, 65_536)] | None = None
    """Workers that the settings are stated for. On r times as many the batch is r times as large, so that each worker's
    part stays, the peak learning rate grows with it (by `optim.lr_scaling`; r times for none), and what is stated in
    updates (500st) is divided by r, `log_every` apart. Such a run keeps its workers. Default: nothing is scaled."""
    uneven: bool = field(default=False, metadata=MAY_CHANGE)
    """Allow a number of workers that does not divide the lanes: ranks hold uneven rows, the gradient stays exact."""
    device: Literal["auto", "cpu", "cuda"] = field(default="auto", metadata=MAY_CHANGE)
    """Where to train; auto takes GPUs when the cluster has or can start them."""
    threads: Annotated[int, Within(1, 1024)] | None = field(default=None, metadata=MAY_CHANGE)
    """Threads of torch in each worker; default: its share of the node's CPUs.
    Other counts change the last bits of results."""
    cpus_per_worker: Annotated[float, Within(0.01, 1024)] | None = field(default=None, metadata=MAY_CHANGE)
    """CPUs that Ray reserves for each worker; default: 1, or a fraction where the data tasks
    would be left without one."""
    gpus_per_worker: Annotated[float, Within(0.01, 1)] = field(default=1.0, metadata=MAY_CHANGE)
    """Share of a GPU that Ray reserves for the worker of a run that has one, so that runs share a GPU: 0.25. Nothing
    keeps such a run to its share of the memory. Several workers have a GPU each, for NCCL takes no two ranks on one."""
    accumulate: Count = 1
    """Parts that each worker's rows of a batch are gone through in, one after another, before an update: memory is that
    of one part. Negatives, batch statistics and balanced assignments are then those of a part, over all workers."""
    clip_grad: Annotated[float, Within(0, 1e9, above=True)] | None = None
    """Largest norm of the gradient; default: no clipping."""
    clip_grad_over: Literal["model", "part", "tensor"] = "model"
    """Whose norm `clip_grad` bounds: all gradients' together, that of each part of the method (backbone, each head) by
    itself, as in DINOv2, or of each tensor by itself, as in DINO and iBOT."""
    clip_grad_value: Annotated[float, Within(0, 1e9, above=True)] | None = None
    """Largest value in the gradient, plus or minus, before its norm is looked at; default: no clipping."""
    ema: Momentum | None = None
    """Keep an exponential moving average of all weights, of which this share stays at each update: 0.9999. It is saved
    in `train_state.pt`. Default: none."""
    ema_every: Count = 1
    """Updates of the weights between two of their average."""
    ema_warmup: Length = field(default=Duration.parse("5%"))
    """How long the average stays a copy of the weights, so that the first ones leave no trace in it."""
    ema_buffers: Literal["average", "copy"] = "average"
    """What the average has for buffers of floating point, such as running statistics: averages too, or the present
    ones, which take no memory."""
    ema_export: bool = False
    """Export the averaged backbone, which benchmarks then measure, in place of the one that is trained."""
    log_every: Every = field(default=Duration.parse("10st"), metadata=MAY_CHANGE)
    """How often a line goes to metrics.jsonl and TensorBoard."""
    checkpoint_every: Every = field(default=Duration.parse("1ep"), metadata=MAY_CHANGE)
    """How often a checkpoint is saved; the last step always saves one."""
    keep_checkpoints: Count = field(default=2, metadata=MAY_CHANGE)
    """Newest checkpoints that stay in the run's folder."""
    online_knn_every: Every | None = field(default=None, metadata=MAY_CHANGE)
    """How often the kNN accuracy on held-out images is measured during training; default: never."""
    eval_every: Every | None = field(default=None, metadata=MAY_CHANGE)
    """How often a method with a task of its own (RotNet's turns, Jigsaw's permutations) is tried on held-out images
    during training; default: never."""
    max_failures: Annotated[int, Within(-1, 1_000_000)] = field(default=3, metadata=MAY_CHANGE)
    """Losses of a worker or a node that are repaired before the run gives up; -1 for no limit."""
    expect: dict[str, Annotated[tuple[AnyBound, AnyBound], Rising()]] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Ranges that final metrics must lie in, {metric: [low, high]}; the run fails otherwise."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ComputeConfig, ParallelConfig, CourseConfig):
    """Training: its course, how workers share it, how a step is computed."""

    def __post_init__(self) -> None:
        if self.workers > 1 and self.gpus_per_worker < 1 and self.device != "cpu":
            raise ValueError(
                f"gpus_per_worker={self.gpus_per_worker:g} of {self.workers} workers: NCCL takes no two ranks on one "
                "GPU; set train.workers=1, or train.gpus_per_worker=1"
            )


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(ComponentConfig):
    """Base of every benchmark's settings."""

    required: bool = True
    """Refuse images on which it cannot be measured; else it is left out there, with a line that says so. One that a
    file of yours or the command line names is required unless it says otherwise."""
    rivals: tuple[Rival, ...] = ("untrained", "pixels")
    """What is measured beside the pre-trained backbone: the same one with initial weights, and raw pixels."""
    data: str | dict[str, Any] | None = None
    """Images of its own: a dataset of the catalog by its name, or settings {name: voc, path: ...} of a source. Size and
    normalisation stay those of the run unless they are given. Default: those of the run."""
    interpolation: Interpolation = "bicubic"
    """How images that are measured are resized, bilinear or bicubic, antialiased in either case. Benchmarks on features
    that agree in it share one pass over the images."""


@dataclass(frozen=True, kw_only=True)
class CallbackConfig(ComponentConfig):
    """Base of every callback's settings."""

    name: str = ""
    """Alias, `package.module:Class`, or `path/to/file.py:Class`."""


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """Everything that defines a run. Frozen once loaded."""

    name: str = field(default="run", metadata=MAY_CHANGE)
    """Name of the run: its folder inside `storage`. Starting the same name again resumes it."""
    storage: Location = field(default="./runs", metadata=MAY_CHANGE)
    """Folder or URI (s3://, gs://) that holds the runs."""
    seed: Seed = 0
    """Seed of everything random: initial weights, sample order, augmentation."""
    method: MethodConfig
    """Self-supervised method."""
    backbone: BackboneConfig
    """Network that is trained."""
    data: DataConfig
    """Images."""
    views: ViewPreset | None = field(default=None, metadata=MAY_CHANGE)
    """Preset of how images of a kind may be cropped, turned and coloured, over the method's defaults and under what is
    set in `method.views`, where its values stand. Default: none; imagenet is the method's defaults too."""
    optim: OptimConfig
    """Optimizer and learning rate."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, batch, workers, checkpoints."""
    benchmarks: dict[str, BenchmarkConfig] = field(default_factory=dict, metadata=MAY_CHANGE)
    """What is measured after training: settings by benchmark name."""
    callbacks: dict[str, CallbackConfig] = field(default_factory=dict, metadata=MAY_CHANGE)
    """What observes training: settings by callback name, `[profiler, path/to/file.py:Mine]` for their defaults."""


def is_may_change(metadata: Any) -> bool:
    """Whether a field with this metadata may differ when a run is started again under its name."""
    return bool(metadata.get("may_change", False))
