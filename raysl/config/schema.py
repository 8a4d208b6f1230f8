"""The tree of settings of a run, with the base classes of every component's `Config`.

Nodes with a `name` (method, backbone, data, optim, each benchmark, each callback) are components: the name selects a
class through `raysl.components`, and the node has the fields of that class's nested `Config`.
A field that may differ when a run is started again under the same name has the metadata `MAY_CHANGE`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from raysl.config.background import parse_color
from raysl.config.cluster import ClusterConfig as ClusterConfig
from raysl.config.component import ASKS_TRUST
from raysl.config.component import MAY_CHANGE as MAY_CHANGE
from raysl.config.component import ComponentConfig as ComponentConfig
from raysl.config.compute import ComputeConfig, ParallelConfig
from raysl.config.optim_schema import OptimConfig as OptimConfig
from raysl.config.optim_schema import Phase as Phase
from raysl.config.ranges import (
    Adapts,
    AnyBound,
    Count,
    Every,
    Interpolation,
    Length,
    Location,
    Momentum,
    NotEmpty,
    NumChannels,
    Place,
    Rising,
    Seed,
    Share,
    Side,
    Within,
)
from raysl.errors import ConfigError
from raysl.schedule import Duration
from raysl.trained import is_trained

Workers = Annotated[int, Within(1, 65_536)]
Byte = Annotated[int, Within(0, 255)]
Deviation = Annotated[float, Within(0.001, 1)]
Value = Annotated[float, Within(-1e12, 1e12)]
Rival = Literal["untrained", "pixels"]
ViewPreset = Literal["imagenet", "cifar", "digits", "document", "satellite", "medical"]


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ComponentConfig):
    """Base of every method's settings."""

    weights: Location | None = None
    """Path or URI of a run or checkpoint of raysl with initial weights: of the backbone and, for the same method, all
    other parts that fit; or the name of one that comes with raysl (`raysl list weights`). A resumed run keeps its
    weights. Default: random weights, or those of `backbone.pretrained`."""
    transforms: tuple[str, ...] = field(default=(), metadata=ASKS_TRUST)
    """Transforms of your own, applied last to every view: `path/to/file.py:Class` or `package.module:Class`, each with
    the defaults of its fields."""

    def is_place(self, field: str, text: str) -> bool:
        """Whether a text is a path or a URI, and not the name of a backbone that comes with raysl."""
        return not is_trained(text)


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """Low-rank adapters of linear layers (LoRA, Hu et al. 2021, arXiv 2106.09685)."""

    rank: Annotated[int, Within(1, 4096)] = 8
    """Rank of the matrix that a layer learns beside its weights, which stay."""
    alpha: Annotated[float, Within(0, 1e6, above=True)] = 16.0
    """The matrix counts alpha / rank times."""
    targets: Annotated[tuple[str, ...], NotEmpty()] = ("qkv", "proj", "fc1", "fc2")
    """Last parts of the names of these layers; the default are attention and MLP in ViTs of raysl and timm."""

    @property
    def scale(self) -> float:
        """Factor of the matrix."""
        return self.alpha / self.rank


@dataclass(frozen=True, kw_only=True)
class BackboneConfig(ComponentConfig):
    """Base of every backbone's settings."""

    freeze: tuple[str, ...] = ()
    """Stages that stay frozen, with all stages before them, or `all`: neither weights nor running statistics of
    normalisation change. Later stages train; the same stages of a teacher are frozen."""
    in_channels: NumChannels = 3
    """Channels of the images that the network takes. Follows `data.channels` where that is a number."""
    adapters: AdapterConfig | None = None
    """Train low-rank adapters of a network that begins with somebody's weights, and none of these weights:
    adapters.rank=8. Default: all weights train."""

    @property
    def is_pretrained(self) -> bool:
        """Whether a new run begins with published weights of the network."""
        return False

    def at_random(self) -> Self:
        """Return these settings for a network that begins at random."""
        return self


@dataclass(frozen=True, kw_only=True)
class DataConfig(ComponentConfig):
    """Base of every source's settings, with those of the data pipeline."""

    image_size: Side = 224
    """Side of the square images for benchmarks and users of `load_backbone`, in pixels. If only this or only the size
    of the method's views is given, the other takes its value."""
    eval_resize: Side | None = None
    """Short side before the centre crop of evaluation, in pixels.
    Default: image_size * 256 / 224 from 64 px on, else image_size."""
    eval_interpolation: Interpolation = "bilinear"
    """Interpolation of that resize, always antialiased, for plain images in training, `raysl extract` and predictors.
    Benchmarks have their own `interpolation`."""
    mean: tuple[Share, ...] = (0.485, 0.456, 0.406)
    """Channel means of the normalisation, of images in [0, 1]. Default where `channels` is a number: 0.5 each."""
    std: tuple[Deviation, ...] = (0.229, 0.224, 0.225)
    """Channel standard deviations of the normalisation, of images in [0, 1]. Default where `channels` is a number:
    0.25 each."""
    channels: Literal["rgb", "bgr", "gray", "lab_l"] | NumChannels = "rgb"
    """Input channels of the network, in training and measurement: red, green and blue; the reverse, each channel with
    its mean and std; or three times the same normalised channel: grey, or the lightness L / 100 of CIE Lab. A number
    from 1 to 12 takes images with that number of channels as they are stored, such as those of a satellite."""
    value_range: Annotated[tuple[Value, Value], Rising(strictly=True)] | None = None
    """Stored values that become 0 and 255 where `channels` is a number; those outside are cut off: [0, 10000]. Default:
    images of 8 bits as they are, and none of other types."""
    limit: Count | None = None
    """Use only this number of images of each split, at even distances in the order of files; default: all. Where that
    would read more than four times their bytes, they are those of a few read units, unless images are sorted by
    class."""
    balanced: bool = False
    """Take the same number of training images from each class, `limit` in total; the first classes give one more if
    it does not divide evenly."""
    skip: Place | None = None
    """Take the `limit` training images from a fixed random order, after this number of them: limit=n skip=0 and limit=n
    skip=n have none in common. Default: images at even distances."""
    subset: Location | None = None
    """File or URI (.txt, .npy) that lists the training images to use: per line a file name (with or without its folders
    and extension) or an index; `limit` chooses among them."""
    subset_by: Literal["name", "index"] | None = None
    """Meaning of the lines of `subset`. Default: indices if all are plain numbers and no image has such a name, else
    names."""
    label_type: Literal["standard", "sample_index", "zero"] = "standard"
    """Labels of the dataset, each sample's index, or 0 for all; benchmarks need the labels of the dataset."""
    background: str | tuple[Byte, Byte, Byte] = "white"
    """Colour behind transparent images: a name, '#rrggbb' or [red, green, blue] in [0, 255]; none ignores transparency
    and takes the stored colours."""
    lanes: Annotated[int, Within(1, 10_000_000)] | None = None
    """Fixed parts of a global batch, each with separate read units; a worker takes whole lanes.
    Default: 64, or the batch size if that is smaller; fewer, down to 16, of a dataset with fewer than 256 units."""
    window: Count | None = None
    """Rows of one lane that are shuffled together where rows are not read one by one, rounded to whole read units.
    Default: as many as make epochs differ nearly as much as with an exact permutation."""
    drop_last: bool = True
    """Leave out the incomplete last batch of each epoch, with other images each time; else that batch is smaller."""
    exact_below: Place | None = None
    """Datasets with fewer rows get an exact permutation each epoch, if their source can read any row; default: all."""
    augment_on: Literal["auto", "task", "device"] = field(default="auto", metadata=MAY_CHANGE)
    """Where views are augmented: in the data tasks, on the worker's device, or (auto) on the device if it is a GPU,
    else in the tasks."""
    scaled_decode: bool = True
    """Decode large JPEG files at 1/2, 1/4 or 1/8 of their size if all their views are smaller; in training only,
    evaluation decodes in full."""
    max_corrupt: Share = field(default=0.05, metadata=MAY_CHANGE)
    """Share of the training images that may be corrupt, and are replaced, before the run stops."""
    max_pixels: Count | None = field(default=None, metadata=MAY_CHANGE | ASKS_TRUST)
    """Pixels up to which an image is decoded, of a palette a fifth of them; larger ones count as corrupt. Default: the
    variable RAYSL_MAX_PIXELS on each node, or else 178956970."""
    max_file_bytes: Count | None = field(default=None, metadata=MAY_CHANGE | ASKS_TRUST)
    """Bytes of an image's file up to which it is read. Default: the variable RAYSL_MAX_FILE_BYTES, or else 1 GiB."""
    changed: Literal["refuse", "accept"] = field(default="refuse", metadata=MAY_CHANGE)
    """What a resume does if the training images have changed: refuse, or accept them and continue at the same step, or
    at the beginning of its epoch if the length of epochs has changed."""
    buffer_gb: Annotated[float, Within(0.001, 1e6)] | None = field(default=None, metadata=MAY_CHANGE)
    """Memory of each node's object store that blocks of images ahead of training may fill; default: a quarter of it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        parse_color(self.background)
        for name, values in (("mean", self.mean), ("std", self.std)):
            if len(values) != self.num_channels:
                same = ",".join([f"{values[0] if values else 0.5:g}"] * self.num_channels)
                raise ConfigError(
                    f"{name}: {len(values)} values for data.channels={self.channels}, which needs {self.num_channels}, "
                    f"one for each channel; give {self.num_channels}, such as [{same}]; `raysl ingest --check` prints "
                    "those of your images"
                )
        if self.value_range is not None and not isinstance(self.channels, int):
            raise ConfigError(
                f"value_range: it is for images that are taken as they are stored, and data.channels={self.channels}; "
                "set data.channels to the number of channels, or leave value_range out"
            )

    @property
    def num_channels(self) -> int:
        """Channels of an image as it is decoded."""
        return self.channels if isinstance(self.channels, int) else 3


@dataclass(frozen=True, kw_only=True)
class CourseConfig:
    """Length, workers and checkpoints of training: a part of `TrainConfig`."""

    epochs: Annotated[int, Within(1, 1_000_000)] = field(default=100, metadata=MAY_CHANGE)
    """Passes over the training images. With `extend`, a run that has begun may get more of them, never fewer."""
    end: Length | None = None
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
    max_failures: Annotated[int, Within(-1, 1_000_000)] = field(default=3, metadata=MAY_CHANGE)
    """Failures without a saved step between them after which the run continues; -1 for no limit. Nodes that are taken
    away after a notice do not count."""
    hang_timeout: Annotated[float, Within(5, 1e6)] = field(default=600.0, metadata=MAY_CHANGE)
    """Seconds after which a worker that does not answer, or for which the others wait, counts as lost."""
    expect: dict[str, Annotated[tuple[AnyBound, AnyBound], Rising()]] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Expected ranges of final metrics, {metric: [low, high]}; outside them the run fails."""


@dataclass(frozen=True, kw_only=True)
class TrainConfig(ComputeConfig, ParallelConfig, CourseConfig):
    """Training: its length and workers, how they share it, and how a step is computed."""

    def __post_init__(self) -> None:
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


@dataclass(frozen=True, kw_only=True)
class BenchmarkConfig(ComponentConfig):
    """Base of every benchmark's settings."""

    required: bool = False
    """Whether images on which it cannot be measured are an error; otherwise it is left out, with a warning. Benchmarks
    that your file or the command line names are required unless it says false."""
    rivals: tuple[Rival, ...] = ("untrained", "pixels")
    """Baselines that are measured too: the same backbone with initial weights, and raw pixels."""
    data: str | dict[str, Any] | None = None
    """Images for this benchmark: the name of a dataset in the catalog, or settings {name: voc, path: ...} of a source.
    Size and normalisation are those of the run unless they are given. Default: the images of the run."""
    interpolation: Interpolation = "bicubic"
    """How images are resized, bilinear or bicubic, always antialiased. Benchmarks on features with the same value share
    one pass over the images."""


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
    """Network to train."""
    data: DataConfig
    """Images."""
    adapt: tuple[str, ...] = field(default=(), metadata=MAY_CHANGE)
    """Settings that may be made smaller where the images or the memory are too few for them; the start says which were.
    Default: batch, warm-up, queue and clusters, as far as they come from a configuration of raysl and not from you."""
    views: ViewPreset | None = field(default=None, metadata=MAY_CHANGE)
    """Preset of crops, rotations and colour changes for a kind of images. It overrides the method's defaults, and
    settings in `method.views` override it. Default: none; imagenet equals the method's defaults."""
    optim: OptimConfig
    """Optimizer and learning rate."""
    train: TrainConfig = field(default_factory=TrainConfig)
    """Length, batch size, workers, checkpoints."""
    cluster: ClusterConfig = field(default_factory=ClusterConfig, metadata=MAY_CHANGE)
    """What the cluster may grow to, and how long to wait for it."""
    benchmarks: dict[str, BenchmarkConfig] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Benchmarks after training: settings by name."""
    callbacks: dict[str, CallbackConfig] = field(default_factory=dict, metadata=MAY_CHANGE)
    """Callbacks during training: settings by name; `[profiler, path/to/file.py:Mine]` for their defaults."""


def is_may_change(metadata: Any) -> bool:
    """Whether a field with this metadata may differ when a run is started again under the same name."""
    return bool(metadata.get("may_change", False))
