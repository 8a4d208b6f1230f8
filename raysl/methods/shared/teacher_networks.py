"""Reading a trained network that a method learns from, on the driver and on each worker."""

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from raysl.checkpoint.backbone import Checkpoint, load_checkpoint
from raysl.checkpoint.checkpoint_folder import STATE_FILE, local_copy, newest
from raysl.checkpoint.published import PublishedWeights
from raysl.checkpoint.tensors import load_tensors
from raysl.components import resolve
from raysl.config.component import make_absolute
from raysl.config.linked import find_size_setting
from raysl.config.ranges import Amount, Location, Side
from raysl.config.schema import LIBRARIES
from raysl.errors import ConfigError, StorageError
from raysl.methods.method import Backbone, Setup
from raysl.trained import is_trained

UNTRAINED = "untrained"
"""Name of a random teacher: a network like the student with other random weights."""
Target = Literal["labels", "features", "tokens"]


def is_path(text: str) -> bool:
    """Whether a name of a teacher is a path or a URI, and neither a published network nor a random one."""
    return not (text == UNTRAINED or text.startswith(LIBRARIES))


@dataclass(frozen=True, kw_only=True)
class TeacherConfig:
    """One of several networks that a student learns from.

    >>> TeacherConfig(teacher="timm:vit_small_patch14_dinov2.lvd142m").title
    'vit_small_patch14_dinov2_lvd142m'
    """

    teacher: Location
    """As `method.teacher`."""
    name: str | None = None
    """Name in the logged numbers, such as `dino_loss`. Default: that of its network or run."""
    target: Target = "tokens"
    """As `method.target`."""
    size: Side | None = None
    """As `method.teacher_size`."""
    weight: Amount = 1.0
    """Weight of the distance of its features or scores (lambda in AM-RADIO's equation 2)."""
    place_weight: Amount = 1.0
    """Weight of the distance of the features of places, with target=tokens (gamma in its equation 3)."""

    def __post_init__(self) -> None:
        """Make a path absolute."""
        make_absolute(self, lambda _, text: is_path(text) and not is_trained(text))

    @property
    def title(self) -> str:
        """Name of the teacher in the logged numbers."""
        last = self.teacher.rstrip("/").rpartition("/")[2].rpartition(":")[2]
        return self.name or re.sub(r"\W+", "_", last)


def library_config(name: str) -> Any:
    """Return the settings of the backbone that such a name stands for, with its published weights.

    >>> library_config("timm:resnet18.a1_in1k").model, library_config("torchvision:resnet18").pretrained
    ('resnet18', True)
    """
    library, _, model = name.partition(":")
    model, _, tag = model.partition(".")
    return resolve("backbone", library).Config(model=model, pretrained=tag or True)


def read_published(name: str) -> tuple[Backbone, tuple[float, ...], tuple[float, ...]]:
    """Return a published network, and the mean and deviation of its images."""
    config = library_config(name)
    backbone: type[Backbone] = resolve("backbone", config.name)
    network = backbone(config.at_random())
    published = backbone.published(config)
    if not any(weight.is_meta for weight in network.parameters()):  # as where only sizes are asked for
        PublishedWeights(config.name, published).fill_backbone(network)
    return network.eval(), published.mean, published.std


class ImagesOf(nn.Module):
    """Turns images that are normalised for a run into those that another network was trained on.

    Args:
        mean, std: statistics of the run's images, of each channel.
        their_mean, their_std: statistics of the other network's images.
        size: side in pixels to which images are brought; None leaves them.
    """

    factor: Tensor
    shift: Tensor

    def __init__(
        self,
        mean: tuple[float, ...],
        std: tuple[float, ...],
        their_mean: tuple[float, ...],
        their_std: tuple[float, ...],
        size: int | None = None,
    ) -> None:
        super().__init__()
        columns = (torch.tensor(values, dtype=torch.float64) for values in (mean, std, their_mean, their_std))
        run_mean, run_std, mean_wanted, std_wanted = (column[:, None, None] for column in columns)
        self.register_buffer("factor", (run_std / std_wanted).float(), persistent=False)  # [C, 1, 1]
        self.register_buffer("shift", ((run_mean - mean_wanted) / std_wanted).float(), persistent=False)
        self.size = size

    def forward(self, images: Tensor) -> Tensor:
        """Return images [n, C, size, size] of images [n, C, H, W]."""
        images = images * self.factor.to(images.dtype) + self.shift.to(images.dtype)
        if self.size is None or images.shape[-2:] == (self.size, self.size):
            return images
        return F.interpolate(images, (self.size, self.size), mode="bilinear", antialias=True)


def read_teacher(setup: Setup, key: str = "teacher", uri: str | None = None) -> Checkpoint:
    """Return the checkpoint at `method.teacher`, or another key, or the newest one of the run there.

    Args:
        uri: value of the setting. Default: read from the settings.
    """
    try:
        checkpoint = load_checkpoint(uri or getattr(setup.method, key))
    except ConfigError as error:
        raise ConfigError(f"method.{key}: {error}") from error
    run, teacher = setup.config.data, checkpoint.config.data
    if teacher.channels != run.channels:
        raise ConfigError(
            f"data.channels is {run.channels}, and that of method.{key} {teacher.channels}; set "
            f"data.channels={teacher.channels}"
        )
    if (teacher.mean, teacher.std) != (run.mean, run.std):
        raise ConfigError(
            f"data.mean and data.std are {list(run.mean)} and {list(run.std)}, and those of method.{key} "
            f"{list(teacher.mean)} and {list(teacher.std)}; set data.mean={list(teacher.mean)} "
            f"data.std={list(teacher.std)}"
        )
    return checkpoint


def read_classifier(checkpoint: Checkpoint) -> nn.Linear:
    """Read the linear classifier from a checkpoint of method=supervised."""
    if checkpoint.meta["method"] != "supervised":
        raise ConfigError(
            f"method.teacher: {checkpoint.uri} is of method={checkpoint.meta['method']}, which knows no classes; set "
            "method.target=features, or give a checkpoint of method=supervised"
        )
    with local_copy(newest(checkpoint.uri, [STATE_FILE]), [STATE_FILE]) as folder:
        state: dict[str, Tensor] = load_tensors(folder / STATE_FILE)["method"]
    layer = nn.Linear(checkpoint.backbone.feature_dim, len(state["classifier.bias"]))
    layer.load_state_dict({name: state[f"classifier.{name}"] for name in ("weight", "bias")})
    return layer


def check_several(config: Any) -> None:
    """Refuse one teacher beside several, and names that are not different."""
    if config.teacher is not None:
        raise ConfigError(
            "method.teacher and method.teachers are both set; give all teachers in method.teachers, and leave "
            "method.teacher out"
        )
    names = [teacher.title for teacher in config.teachers]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            f"method.teachers: {twice!r} is the name of more than one teacher in the logged numbers; give each a name "
            "of its own, as [{teacher: runs/a, name: a}, ...]"
        )


def check_teacher(setup: Setup, config: TeacherConfig, key: str) -> None:
    """Refuse a teacher that cannot be read or downloaded, does not take the views, or does not know their classes.

    Args:
        key: name of the teacher below `method`: `teacher`, or `teachers[0]`.
    """
    size = config.size or setup.method.views.size
    if is_path(config.teacher):
        _check_checkpoint(setup, config, read_teacher(setup, key, config.teacher), size)
        return
    if config.target == "labels":
        raise ConfigError(f"method.{key}={config.teacher} knows no classes of these images; set method.target=features")
    if config.teacher != UNTRAINED:
        if setup.config.backbone.in_channels != 3:
            raise ConfigError(
                f"method.{key}={config.teacher} takes red, green and blue, and data.channels="
                f"{setup.config.data.channels}; give the run of a teacher of such images"
            )
        network = library_config(config.teacher)
        backbone: type[Backbone] = resolve("backbone", network.name)
        backbone.check_side(network.at_random(), size)
        _fetch(backbone, network, key)


def _fetch(backbone: type[Backbone], config: Any, key: str) -> None:
    """Download a published teacher into its library's cache, so that one that cannot be had is refused at once."""
    try:
        backbone.published(config)
    except StorageError as error:
        raise StorageError(
            f"method.{key}: {error}. A file that is here already teaches too: raysl convert FILE --out runs/teacher "
            f"backbone={config.name} backbone.model={config.model}, then method.{key}=runs/teacher"
        ) from error


def _check_checkpoint(setup: Setup, config: TeacherConfig, checkpoint: Checkpoint, size: int) -> None:
    """Refuse a teacher of raysl whose patches do not cover the views, or with other classes."""
    patch_size = checkpoint.backbone.patch_size
    if patch_size is not None and size % patch_size and config.size is not None:
        raise ConfigError(f"method.teacher_size is {size}, which the teacher's patches of {patch_size} do not cover")
    if patch_size is not None and size % patch_size:
        raise ConfigError(
            f"views of {size} pixels are not covered by the teacher's patches of {patch_size}; set "
            f"{find_size_setting(setup.config, size)}={(size // patch_size + 1) * patch_size}"
        )
    if config.target == "labels":
        num_classes = read_classifier(checkpoint).out_features
        if setup.method.label_weight > 0 and num_classes != setup.data.num_classes:
            raise ConfigError(
                f"the teacher knows {num_classes} classes, and the images have {setup.data.num_classes}; set "
                "method.label_weight=0, or give a teacher of the same classes"
            )
