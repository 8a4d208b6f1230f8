"""Layouts: where libraries and official code keep the tensors of a backbone in their files of weights.

A layout is recognised by the first tensors of a ResNet or a ViT, found under its keys and prefix.
"""

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from raysl.config.arguments import words
from raysl.errors import ConfigError
from raysl.weights.contents import describe_tree, named_tensors, network_to_name
from raysl.weights.dino_v3 import is_dino_v3

ANCHORS = {
    "resnet": ("conv1.weight", "layer1.0.conv1.weight"),
    "vit": ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
}
"""Names of tensors that every network of a family has."""


@dataclass(frozen=True)
class Place:
    """The location of a network in a file.

    Args:
        keys: path from the file's dictionary to the one that holds the tensors.
        prefix: of the tensors' names there.
        mark: text that one name in the file has to contain; empty: none.
    """

    keys: tuple[str, ...] = ()
    prefix: str = ""
    mark: str = ""

    def __str__(self) -> str:
        names = [f"[{'.'.join(self.keys)}]"] if self.keys else []
        return " ".join([*names, *([f"{self.prefix}*"] if self.prefix else [])]) or "plain names"


@dataclass(frozen=True)
class Layout:
    """One way in which backbones are stored.

    Args:
        name: value of `--layout`.
        description: the library or paper that writes it.
        student: places of the network that gradients trained.
        teacher: places of its average, where it has one.
        default: the part that is taken, `student` or `teacher`.
        family: of its networks, where it holds one kind only.
        without: a tensor that files of this layout never have.
        is_like: whether a dictionary of a file may be of this layout, where it is not named.
        skip: prefixes of names that look like the backbone's but belong to another module.
        settings: of the backbone that its tensors do not show.
    """

    name: str
    description: str
    student: tuple[Place, ...] = ()
    teacher: tuple[Place, ...] = ()
    default: str = "student"
    family: str | None = None
    without: str = ""
    is_like: Callable[[Mapping[str, Any]], bool] = bool
    skip: tuple[str, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def places(self, part: str | None) -> tuple[Place, ...]:
        """Return the places of a part; None: the layout's default part."""
        return self.teacher if (part or self.default) == "teacher" else self.student


@dataclass(frozen=True)
class Rules:
    """How to find a backbone in a file; the defaults find every known layout.

    Args:
        layout: its name; default: recognised.
        part: `student` or `teacher`, for methods that have both; default: the one that their papers measure.
        key: dotted keys from the file's dictionary to the one that holds the tensors.
        prefix: of the tensors' names, which is cut off; names without it are left out.
        skip: tensors whose names contain one of these texts keep their initial values.
        strict: refuse a backbone of which some tensors are not in the file.
        trust_code: whether code of others that the file or the checkpoint names may be run.

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

    @property
    def names_place(self) -> bool:
        """Whether they name the location of the backbone."""
        return (self.layout, self.part, self.key, self.prefix) != (None,) * 4

    def __post_init__(self) -> None:
        words(self.skip, "skip", "layer4")


@dataclass(frozen=True)
class StoredBackbone:
    """The tensors of a backbone in a file.

    Args:
        layout: recognised or named; "custom" where key or prefix were given.
        place: of the tensors in the file.
        family: `resnet` or `vit`, or `named` for a network that the user names.
        tensors: by name, without the prefix.
        num_outside: tensors of the same dictionary without the prefix.
    """

    layout: Layout
    place: Place
    family: str
    tensors: dict[str, Tensor]
    num_outside: int


def _places(keys: str, *prefixes: str, mark: str = "") -> tuple[Place, ...]:
    return tuple(Place(tuple(keys.split(".")) if keys else (), prefix, mark) for prefix in prefixes or ("",))


def _of_mae(inner: Mapping[str, Any]) -> bool:
    """Whether there is a decoder, or the positions of patches are sines and cosines, which MAE does not train."""
    if any(str(name).startswith(("decoder_", "mask_token")) for name in inner):
        return True
    places = inner.get("pos_embed")
    if not isinstance(places, Tensor) or places.ndim != 3 or places.shape[1] < 2:
        return False
    squares = places[0, 1:].float().square().sum(dim=1)  # [N], each a sum of sin^2 + cos^2
    return bool((squares - places.shape[2] / 2).abs().max() < 1e-2 * places.shape[2])


def _of_swav(inner: Mapping[str, Any]) -> bool:
    """Whether there are prototypes, or the head before them."""
    return any("prototypes" in str(name) or "projection_head" in str(name) for name in inner)


_PLAIN = (
    *_places("", "", "module."),
    *_places("state_dict", "", "module."),
    *_places("model", "", "module."),
)
_TRUNK = ("_feature_blocks.", "base_model._feature_blocks.", "", "base_model.")

LAYOUTS = {
    layout.name: layout
    for layout in (
        Layout(
            "vissl",
            "VISSL's `.torch` files, whole or the trunk alone",
            student=(
                *_places("classy_state_dict.base_model.model.trunk", *_TRUNK),
                *_places("base_model.model.trunk", *_TRUNK),
                *_places("model.trunk", *_TRUNK),
                *_places("trunk", *_TRUNK),
                *_places("", "trunk._feature_blocks.", "_feature_blocks.", "trunk."),
                *_places("model_state_dict", "trunk._feature_blocks.", "_feature_blocks."),
            ),
            teacher=_places(
                "loss",
                *(
                    f"{head}trunk.{tail}"
                    for head in ("momentum_teacher.module.", "momentum_teacher.")
                    for tail in _TRUNK
                ),
            ),
        ),
        Layout(
            "raysl",
            "the whole method in `train_state.pt` of a checkpoint",
            student=_places("method", "backbone."),
            teacher=_places("method", "teacher.module.", "teacher.module.0."),
        ),
        Layout(
            "moco",
            "MoCo v1 and v2; the query encoder is the student, the key encoder the teacher",
            student=_places("state_dict", "module.encoder_q.", "encoder_q."),
            teacher=_places("state_dict", "module.encoder_k.", "encoder_k."),
        ),
        Layout(
            "moco_v3",
            "MoCo v3; a ViT-S of it has 12 heads",
            student=_places("state_dict", "module.base_encoder.", "base_encoder."),
            teacher=_places("state_dict", "module.momentum_encoder.", "momentum_encoder."),
            settings={"position": "sincos", "heads": 12},
        ),
        Layout("simsiam", "SimSiam", student=_places("state_dict", "module.encoder.", "encoder.")),
        Layout(
            "ibot",
            "iBOT, whole or the teacher's backbone alone",
            student=_places("student", "module.backbone.", "backbone.", mark="masked_embed"),
            teacher=(
                *_places("teacher", "backbone.", "module.backbone.", mark="masked_embed"),
                *_places("state_dict", mark="masked_embed"),
            ),
            default="teacher",
            family="vit",
            without="head.weight",
        ),
        Layout(
            "dino",
            "DINO, whole; its files of a backbone alone have timm's or torchvision's names",
            student=_places("student", "module.backbone.", "backbone."),
            teacher=_places("teacher", "backbone.", "module.backbone."),
            default="teacher",
        ),
        Layout(
            "barlow_twins",
            "Barlow Twins and VICReg, whole; `resnet50.pth` has torchvision's names",
            student=_places("model", "module.backbone.", "backbone."),
        ),
        Layout(
            "solo_learn",
            "solo-learn, and others on Lightning that call their network `backbone`",
            student=_places("state_dict", "backbone."),
            teacher=_places("state_dict", "momentum_backbone."),
        ),
        Layout(
            "swav",
            "SwAV and DeepCluster v2",
            student=(*_places("", "module."), *_places("state_dict", "module.")),
            is_like=_of_swav,
        ),
        Layout(
            "dino_v3",
            "DINOv3's ViTs, by the names of Meta, timm or Hugging Face",
            student=_PLAIN,
            family="vit",
            is_like=is_dino_v3,
        ),
        Layout(
            "mae",
            "MAE, whose decoder is left out",
            student=_places("model"),
            family="vit",
            without="head.weight",
            is_like=_of_mae,
            skip=("decoder_", "mask_token"),
            settings={"position": "sincos"},
        ),
        Layout("torchvision", "torchvision's ResNets", student=_PLAIN, family="resnet"),
        Layout("timm", "timm's, DeiT's and DINOv2's ViTs", student=_PLAIN, family="vit"),
    )
}
"""Layouts by name, in the order in which they are tried."""


OWN = Layout("raysl", "an exported `model.safetensors`, whose metadata has the settings of its network")


def find_backbone(tree: Mapping[str, Any], rules: Rules, where: str) -> StoredBackbone:
    """Find the backbone in the content of a file.

    Args:
        tree: content of the file, from `raysl.weights.files.read_tree`.
        rules: how to find it.
        where: the file, for messages.

    Raises:
        ConfigError: if no layout is recognised, or the tensors of the named layout are missing.
    """
    check_rules(rules)
    if rules.key is not None or rules.prefix is not None:
        return _find_by_key(tree, rules, where)
    layouts = list(LAYOUTS.values()) if rules.layout is None else [LAYOUTS[rules.layout]]
    for layout in layouts:
        for place in layout.places(rules.part):
            is_like = rules.layout is not None or layout.is_like(_inner(tree, place.keys) or {})
            if is_like and (stored := _at(tree, layout, place)):
                return stored
    raise ConfigError(_not_found(tree, rules, layouts, where))


def check_rules(rules: Rules) -> None:
    """Refuse rules that contradict each other.

    Raises:
        ConfigError: with the way to say it.
    """
    if rules.part not in (None, "student", "teacher"):
        raise ConfigError(
            f"part={rules.part!r} is neither student nor teacher; leave it out to get the one that the paper measures"
        )
    if (rules.key, rules.prefix) != (None, None) and (rules.layout, rules.part) != (None, None):
        raise ConfigError(
            "key and prefix say where the tensors are, layout and part ask raysl to find them; give one pair"
        )
    if rules.layout is not None and rules.layout not in LAYOUTS:
        near = difflib.get_close_matches(rules.layout, LAYOUTS, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"no layout {rules.layout!r}; {hint}Known: {', '.join(LAYOUTS)}")


def keys_of(rules: Rules) -> list[tuple[str, ...]]:
    """Return the paths to the dictionaries that may hold the tensors, for rules with a key or a prefix."""
    if rules.key is None:
        return [(), ("state_dict",), ("model",)]
    return [tuple(rules.key.split("."))] if rules.key else [()]


def tensors_at(tree: Mapping[str, Any], place: Place) -> tuple[dict[str, Tensor], int] | None:
    """Return the tensors at a place, without its prefix, and the number of those beside them; None if none is there."""
    inner = _inner(tree, place.keys)
    tensors = {} if inner is None else _cut(inner, place.prefix)
    if inner is None or not tensors:
        return None
    return tensors, sum(isinstance(value, Tensor) for value in inner.values()) - len(tensors)


def _at(tree: Mapping[str, Any], layout: Layout, place: Place) -> StoredBackbone | None:
    """Return the backbone of a layout at a place; None if it is not there."""
    inner = _inner(tree, place.keys)
    if inner is None or (layout.without and f"{place.prefix}{layout.without}" in inner):
        return None
    for family, anchors in ANCHORS.items():
        if layout.family in (None, family) and all(
            isinstance(inner.get(f"{place.prefix}{anchor}"), Tensor) for anchor in anchors
        ):
            if place.mark and not any(place.mark in name for name, _ in named_tensors(tree)):
                return None
            tensors, num_outside = tensors_at(tree, place) or ({}, 0)
            return StoredBackbone(layout, place, family, tensors, num_outside)
    return None


def _find_by_key(tree: Mapping[str, Any], rules: Rules, where: str) -> StoredBackbone:
    prefix, wanted = rules.prefix or "", keys_of(rules)
    custom = Layout("custom", "by key and prefix")
    for keys in wanted:
        if stored := _at(tree, custom, Place(keys, prefix)):
            return stored
    if rules.key and _inner(tree, wanted[0]) is None:
        raise ConfigError(f"{where} has no dictionary at key={rules.key!r}; {describe_tree(tree)}")
    dictionaries = [inner for keys in wanted if (inner := _inner(tree, keys)) is not None]
    inner = next((inner for inner in dictionaries if _cut(inner, prefix)), None)
    if inner is None:
        raise ConfigError(
            f"{where} has no tensor with prefix={prefix!r}; {describe_tree(_inner(tree, wanted[0]) or tree)}"
        )
    raise ConfigError(
        f"the tensors of {where} with prefix={prefix!r} are neither a ResNet's nor a ViT's: none is named "
        f"{' or '.join(anchors[0] for anchors in ANCHORS.values())}; {describe_tree(inner)}. {network_to_name(tree)}"
    )


def _not_found(tree: Mapping[str, Any], rules: Rules, layouts: Sequence[Layout], where: str) -> str:
    part = f" with a {rules.part}" if rules.part else ""
    content = describe_tree(tree)
    if rules.layout is None:
        network = network_to_name(tree)
        return (
            f"{where} has no known layout{part}; {content}. {network}. Say where the tensors are, such as "
            f"key=state_dict prefix=module., or name the layout: {', '.join(LAYOUTS)}"
        )
    if not (places := layouts[0].places(rules.part)):
        return f"layout={rules.layout} has no {rules.part}; leave part out"
    expected = ", ".join(str(place) for place in places[:3])
    return (
        f"{where} is not of layout={rules.layout}{part}, whose tensors are at {expected}; {content}. Leave layout out"
    )


def _inner(tree: Mapping[str, Any], keys: Sequence[str]) -> Mapping[str, Any] | None:
    for key in keys:
        inner = tree.get(key)
        if not isinstance(inner, Mapping):
            return None
        tree = inner
    return tree


def _cut(inner: Mapping[str, Any], prefix: str) -> dict[str, Tensor]:
    named = ((str(name), value) for name, value in inner.items() if isinstance(value, Tensor))
    return {name.removeprefix(prefix): value for name, value in named if name.startswith(prefix)}
