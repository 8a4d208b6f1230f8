"""Layouts: where libraries and official code keep the tensors of a backbone in their files of weights.

`raysl.weights.search` finds the networks of a file, and the first layout that has one of their locations is taken.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from raysl.config.arguments import words
from raysl.errors import ConfigError, did_you_mean
from raysl.weights.dino_v3 import is_dino_v3
from raysl.weights.names import unwrapped


@dataclass(frozen=True)
class Location:
    """The location of a network in a file.

    Args:
        keys: path from the file's dictionary to the one that holds the tensors.
        prefix: beginning of the tensors' names there.
    """

    keys: tuple[str, ...] = ()
    prefix: str = ""

    @property
    def bare(self) -> "Location":
        """The same location without the `module.` that DDP adds to names."""
        return Location(self.keys, re.sub(r"(?<![^.])module\.", "", self.prefix))

    @property
    def rules(self) -> str:
        """The rules that lead to it: `key=state_dict prefix=encoder.`."""
        key, prefix = ".".join(self.keys), self.prefix
        return " ".join([*([f"key={key}"] if key or not prefix else []), *([f"prefix={prefix}"] if prefix else [])])

    def __str__(self) -> str:
        names = [f"[{'.'.join(self.keys)}]"] if self.keys else []
        return " ".join([*names, *([f"{self.prefix}*"] if self.prefix else [])]) or "plain names"


@dataclass(frozen=True)
class Layout:
    """One way in which backbones are stored.

    Args:
        name: value of `--layout`.
        student: locations of the network that gradients trained, without `module.`; none: any location.
        teacher: locations of its average, where it has one.
        default: the part that is taken, `student` or `teacher`.
        family: kind of its networks, where it holds one kind only.
        mark: text that one name in the file has to contain.
        without: a tensor that files of this layout never have.
        is_like: whether tensors at such a location are of this layout, where it is not named.
        skip: prefixes of names that look like the backbone's but belong to another module.
        settings: settings of the backbone that its tensors do not show.
    """

    name: str
    student: tuple[Location, ...] = ()
    teacher: tuple[Location, ...] = ()
    default: str = "student"
    family: str | None = None
    mark: str = ""
    without: str = ""
    is_like: Callable[[Mapping[str, Tensor]], bool] = bool
    skip: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def locations(self, rules: "Rules") -> tuple[Location, ...]:
        """Return the locations of the rules' part, else of the default one; of both where the rules name a location."""
        part = rules.part or self.default
        first, second = (self.student, self.teacher)[:: -1 if part == "teacher" else 1]
        return (*first, *second) if rules.part is None and rules.names_location else first


@dataclass(frozen=True)
class Rules:
    """How to find a backbone in a file; the defaults find every known layout.

    Args:
        layout: name of the layout; default: recognised.
        part: `student` or `teacher`, for methods that have both; default: the one that their papers measure.
        key: dotted keys from the file's dictionary to the one that holds the tensors, which chooses one of several.
        prefix: beginning of the tensors' names, which is cut off; names without it are left out.
        skip: tensors whose names contain one of these texts keep their initial values.
        strict: refuse a backbone of which some tensors are not in the file.
        trust_code: whether code of others that the file or the checkpoint names may be run.
        grid: rows and columns of a ViT's patches, "14x14", where its positions fit several.

    >>> Rules(key="state_dict", prefix="module.encoder_q.").strict
    True
    """

    layout: str | None = None
    part: str | None = None
    key: str | None = None
    prefix: str | None = None
    skip: Sequence[str] = ()
    strict: bool = True
    trust_code: bool = False
    grid: str | None = None

    @property
    def names_location(self) -> bool:
        """Whether they name where in the file the tensors are."""
        return (self.key, self.prefix) != (None, None)

    def allow(self, location: Location) -> bool:
        """Whether a location has the key and the prefix."""
        is_there = self.key is None or self.key == ".".join(location.keys)
        return is_there and (self.prefix is None or unwrapped(self.prefix) == location.prefix)

    def __post_init__(self) -> None:
        words(self.skip, "skip", "layer4")


@dataclass(frozen=True)
class StoredBackbone:
    """The tensors of a backbone in a file.

    Args:
        family: `resnet` or `vit`, or `named` for a network that the user names.
        num_outside: number of tensors of the same dictionary without the prefix.
        others: locations of further networks in the file.
    """

    layout: Layout
    location: Location
    family: str
    tensors: dict[str, Tensor]
    num_outside: int = 0
    others: tuple[Location, ...] = ()


def _locations(keys: str, *prefixes: str) -> tuple[Location, ...]:
    return tuple(Location(tuple(keys.split(".")) if keys else (), prefix) for prefix in prefixes or ("",))


def _of_mae(tensors: Mapping[str, Tensor]) -> bool:
    """Whether there is a decoder, or the positions of patches are sines and cosines, which MAE does not train."""
    if any(name.startswith(("decoder_", "mask_token")) for name in tensors):
        return True
    locations = tensors.get("pos_embed")
    if locations is None or locations.ndim != 3 or locations.shape[1] < 2:
        return False
    squares = locations[0, 1:].float().square().sum(dim=1)  # [N], each a sum of sin^2 + cos^2
    return bool((squares - locations.shape[2] / 2).abs().max() < 1e-2 * locations.shape[2])


def _of_swav(tensors: Mapping[str, Tensor]) -> bool:
    """Whether there are prototypes, or the head before them."""
    return any("prototypes" in name or "projection_head" in name for name in tensors)


_TRUNK = ("_feature_blocks.", "base_model._feature_blocks.", "", "base_model.")
PLAIN = (*_locations(""), *_locations("state_dict"), *_locations("model"))
"""Places that come before others where a layout may be at any location."""

LAYOUTS = {
    layout.name: layout
    for layout in (
        # VISSL's `.torch` files, whole or the trunk alone
        Layout(
            "vissl",
            student=(
                *_locations("classy_state_dict.base_model.model.trunk", *_TRUNK),
                *_locations("base_model.model.trunk", *_TRUNK),
                *_locations("model.trunk", *_TRUNK),
                *_locations("trunk", *_TRUNK),
                *_locations("", "trunk._feature_blocks.", "_feature_blocks.", "trunk."),
                *_locations("model_state_dict", "trunk._feature_blocks.", "_feature_blocks."),
            ),
            teacher=_locations("loss", *(f"momentum_teacher.trunk.{tail}" for tail in _TRUNK)),
        ),
        # The whole method in `train_state.pt` of a checkpoint
        Layout(
            "raysl",
            student=_locations("method", "backbone."),
            teacher=_locations("method", "teacher.", "teacher.0."),
        ),
        # MoCo v1 and v2; the query encoder is the student, the key encoder the teacher
        Layout(
            "moco",
            student=_locations("state_dict", "encoder_q."),
            teacher=_locations("state_dict", "encoder_k."),
        ),
        # MoCo v3; a ViT-S of it has 12 heads
        Layout(
            "moco_v3",
            student=_locations("state_dict", "base_encoder."),
            teacher=_locations("state_dict", "momentum_encoder."),
            settings={"position": "sincos", "heads": 12},
        ),
        # SimSiam
        Layout("simsiam", student=_locations("state_dict", "encoder.")),
        # iBOT, whole or the teacher's backbone alone
        Layout(
            "ibot",
            student=_locations("student", "backbone."),
            teacher=(*_locations("teacher", "backbone."), *_locations("state_dict")),
            default="teacher",
            family="vit",
            mark="masked_embed",
            without="head.weight",
            settings={"position_resize": "dino"},
        ),
        # DINO, whole; its files of a backbone alone have timm's or torchvision's names
        Layout(
            "dino",
            student=_locations("student", "backbone."),
            teacher=_locations("teacher", "backbone."),
            default="teacher",
            settings={"position_resize": "dino"},
        ),
        # Barlow Twins and VICReg, whole; `resnet50.pth` has torchvision's names
        Layout("barlow_twins", student=_locations("model", "backbone.")),
        # solo-learn, and others on Lightning that call their network `backbone`
        Layout(
            "solo_learn",
            student=_locations("state_dict", "backbone."),
            teacher=_locations("state_dict", "momentum_backbone."),
        ),
        # SwAV and DeepCluster v2
        Layout("swav", student=(*_locations(""), *_locations("state_dict")), is_like=_of_swav),
        # DINOv3, by the names of Meta, timm or Hugging Face
        Layout("dino_v3", family="vit", is_like=is_dino_v3),
        # MAE, whose decoder is left out
        Layout(
            "mae",
            student=_locations("model"),
            family="vit",
            without="head.weight",
            is_like=_of_mae,
            skip=("decoder_", "mask_token"),
            settings={"position": "sincos"},
        ),
        # torchvision's ResNets
        Layout("torchvision", family="resnet"),
        # timm's, DeiT's and DINOv2's ViTs
        Layout("timm", family="vit"),
    )
}
"""Layouts by name, in the order in which they are tried."""


OWN = Layout("raysl")
"""An exported `model.safetensors`, whose metadata has the settings of its network."""


def check_rules(rules: Rules) -> None:
    """Refuse unknown names of parts and layouts."""
    if rules.part not in (None, "student", "teacher"):
        raise ConfigError(
            f"part={rules.part!r} is neither student nor teacher; leave it out to get the one that the paper measures"
        )
    if rules.layout is not None and rules.layout not in LAYOUTS:
        hint = did_you_mean(rules.layout, LAYOUTS)
        raise ConfigError(f"no layout {rules.layout!r}; {hint}Known: {', '.join(LAYOUTS)}")
