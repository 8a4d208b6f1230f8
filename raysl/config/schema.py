"""The tree of settings of a run, with the base classes of every component's `Config`.

Nodes with a `name` (method, backbone, data, optim, each benchmark, each callback) are components: the name selects a
class through `raysl.components`, and the node has the fields of that class's nested `Config`.
A field that may differ when a run is started again under the same name has the metadata `MAY_CHANGE`.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self

from raysl.config.background import parse_color
from raysl.config.component import ASKS_TRUST
from raysl.config.component import MAY_CHANGE as MAY_CHANGE
from raysl.config.component import ComponentConfig as ComponentConfig
from raysl.config.optim_schema import OptimConfig as OptimConfig
from raysl.config.optim_schema import Phase as Phase
from raysl.config.ranges import (
    Count,
    Interpolation,
    Location,
    NotEmpty,
    NumChannels,
    Place,
    Rising,
    Seed,
    Share,
    Side,
    Within,
)
from raysl.config.train_schema import TrainConfig as TrainConfig
from raysl.config.train_schema import limit_workers as limit_workers
from raysl.errors import ConfigError
from raysl.trained import is_trained

Amount = Annotated[float, Within(0, 1_000_000)]
Byte = Annotated[int, Within(0, 255)]
Deviation = Annotated[float, Within(0.001, 1)]
Value = Annotated[float, Within(-1e12, 1e12)]
Rival = Literal["untrained", "pixels"]
ViewPreset = Literal["imagenet", "cifar", "digits", "document", "satellite", "medical"]


LIBRARIES = ("timm:", "torchvision:")
"""Beginnings of the names of published networks: `timm:vit_small_patch14_dinov2.lvd142m`."""


@dataclass(frozen=True, kw_only=True)
class MethodConfig(ComponentConfig):
    """Base of every method's settings."""

    weights: Location | None = None
    """Initial weights, by path or URI. Of a run or checkpoint of raysl: the backbone and, for the same method, all
    other parts that fit; or the name of one that comes with raysl (`raysl list weights`). Of others: a file, or a
    published network, timm:NAME or torchvision:NAME, which a start first converts into a run in `storage`. A resumed
    run keeps its weights. Default: random weights, or those of `backbone.pretrained`."""
    transforms: tuple[str, ...] = field(default=(), metadata=ASKS_TRUST)
    """Transforms of your own, applied last to every view: `path/to/file.py:Class` or `package.module:Class`, each with
    the defaults of its fields."""

    def is_place(self, field: str, text: str) -> bool:
        """Whether a text is a path or a URI, and neither a backbone that comes with raysl nor a published network."""
        return not (is_trained(text) or text.startswith(LIBRARIES))


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
    """Values that become 0 and 255 where `channels` is a number; those outside are cut off: [0, 10000]. Default: images
    of 8 bits as they are, DICOM files by the window that they name, and none of other types."""
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
class ClusterConfig:
    """What the cluster may grow to, and how long a run waits for it."""

    max_cpus: Amount | None = field(default=None, metadata=MAY_CHANGE)
    """CPUs that the cluster's autoscaler may add up to. Default: as its configuration says, which is read on the head
    node or from the RayCluster; if it cannot be read, the CPUs that are up."""
    max_gpus: Amount | None = field(default=None, metadata=MAY_CHANGE)
    """GPUs that the cluster's autoscaler may add up to. Default: likewise."""
    wait_minutes: Annotated[float, Within(0.01, 1_000_000)] | None = field(default=None, metadata=MAY_CHANGE)
    """Minutes that a run waits for nodes, or for others to free them, before it fails. Default: for ever; it says each
    minute what is missing."""


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
