"""Finding a backbone in a file of weights, which may hold several networks."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.weights.layouts import LAYOUTS, PLAIN, Layout, Location, Rules, StoredBackbone, check_rules

ARCHITECTURES = (
    "ResNets, wide ResNets, ResNeXts and ViTs are known by their tensors; name any other network of torchvision or "
    "timm: backbone=timm backbone.model=convnext_tiny"
)
"""Networks that are read from files, in words."""
_ANCHORS = {
    "resnet": ("conv1.weight", "layer1.0.conv1.weight"),
    "vit": ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
}
"""Names of tensors that every network of a family has."""
_OTHERS = {
    r"conv_proj\.weight$": "torchvision's ViTs: give backbone=torchvision backbone.model={model}",
    r"layer1\.0\.conv2\.(?!weight|bias)": (
        "a ResNet with selective kernels or other blocks, which tensors do not tell: name timm's network, such as "
        "backbone=timm backbone.model=skresnet50; one of raysl is read from its run, or from the model.safetensors of "
        "--to safetensors"
    ),
    r"(^|\.)2\.0\.conv1\.weight$": (
        "an nn.Sequential that has a block after its first norm, without a ReLU between them, as of lightly's "
        "ResNetGenerator; no ResNet of raysl computes this"
    ),
}
"""Networks that are not read by their tensors alone, by patterns of tensors' names."""
_TORCHVISION_VITS = {768: "b", 1024: "l", 1280: "h"}
"""Letters of the sizes of torchvision's ViTs, by width."""
Network = tuple[Location, str]
"""Where a network is, and its family."""
Dictionaries = dict[tuple[str, ...], dict[str, Tensor]]
"""Tensors of each dictionary of a file that has any, by the keys that lead to it."""


def find_backbone(tree: Mapping[str, Any], rules: Rules, where: str) -> StoredBackbone:
    """Find the backbone in the content of a file.

    Args:
        tree: content of the file by plain names, from `raysl.weights.names.plain_names`.

    Raises:
        ConfigError: if no layout is recognised, the tensors of the named layout are missing, or the file has several
            networks and no rule chooses one.
    """
    check_rules(rules)
    dictionaries = dict(_dictionaries(tree))
    present = [
        (location, family) for family, anchors in _ANCHORS.items() for location in _locations_in(dictionaries, anchors)
    ]
    networks = [network for network in present if rules.allow(network[0])]
    names = [name for tensors in dictionaries.values() for name in tensors]
    layouts = list(LAYOUTS.values()) if rules.layout is None else [LAYOUTS[rules.layout]]
    # in the order of LAYOUTS: torchvision's and timm's come last, as their plain names fit most files
    for layout in layouts:
        for location, family in _in_order(networks, layout, rules):
            tensors, num_outside = _tensors_at(dictionaries, location)
            has_mark = any(layout.mark in name for name in names)
            if layout.family not in (None, family) or layout.without in tensors or not has_mark:
                continue
            if rules.layout is not None or layout.is_like(tensors):
                others = tuple(other for other, _ in present if other != location)
                return StoredBackbone(layout, location, family, tensors, num_outside, others)
    raise ConfigError(_not_found(dictionaries, rules, networks, where))


def find_named(tree: Mapping[str, Any], backbone: Backbone, rules: Rules, where: str) -> StoredBackbone:
    """Find the tensors of a network that the user names in a file: at the location where most have its names.

    Returns:
        The tensors by the names in the network's `state_dict`; those of a classifier keep the file's names.

    Raises:
        ConfigError: if no tensor has one of these names, or several networks have them all and no rule chooses one.
    """
    check_rules(rules)
    dictionaries = dict(_dictionaries(tree))
    wanted = backbone.state_dict()
    first = [name.removeprefix("network.") for name in wanted][:2]
    layouts = [LAYOUTS[rules.layout]] if rules.layout else LAYOUTS.values()
    ranks = [location for layout in layouts for location in layout.locations(rules) or PLAIN]
    # every dictionary of tensors may hold it: names may be those of the official code that the library converts
    whole = [Location(keys, prefix) for keys in dictionaries for prefix in ("", "module.")]
    numbers = {
        location: len(backbone.renamed(_tensors_at(dictionaries, location)[0]).keys() & wanted.keys())
        for location in dict.fromkeys([*_locations_in(dictionaries, first), *whole])
        if location.bare in ranks or rules.layout is None
    }
    most = max((num for location, num in numbers.items() if rules.allow(location)), default=0)
    if most == 0:
        raise ConfigError(
            f"{where} has no tensor of {backbone.title}, which has {' and '.join(first)}; {_describe(dictionaries)}. "
            "Give the file's own backbone.model, or say where the tensors are, such as key=state_dict prefix=module."
        )
    whole = [location for location, num in numbers.items() if num == most]
    best = min(
        filter(rules.allow, whole),
        key=lambda location: ranks.index(location.bare) if location.bare in ranks else len(ranks),
    )
    others = tuple(location for location in whole if location != best)
    if best.bare not in ranks and any(rules.allow(location) for location in others):
        raise ConfigError(f"{where} holds {len(whole)} networks of {backbone.title}; choose one: {_choices(whole)}")
    tensors, num_outside = _tensors_at(dictionaries, best)
    layout = Layout(backbone.config.name)
    return StoredBackbone(layout, best, "named", backbone.renamed(tensors), num_outside, others)


def _dictionaries(
    tree: Mapping[str, Any], keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Yield the keys and the tensors of each dictionary of a file that has tensors, those near its top first."""
    if tensors := {str(name): value for name, value in tree.items() if isinstance(value, Tensor)}:
        yield keys, tensors
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _dictionaries(value, (*keys, str(name)))


def _locations_in(dictionaries: Dictionaries, anchors: Sequence[str]) -> Iterator[Location]:
    """Yield the locations, at any depth of a file, where a network has tensors of these names."""
    for keys, tensors in dictionaries.items():
        for name in tensors:
            prefix = name.removesuffix(anchors[0])
            is_cut = name.endswith(anchors[0]) and (not prefix or prefix.endswith("."))
            if is_cut and all(f"{prefix}{anchor}" in tensors for anchor in anchors):
                yield Location(keys, prefix)


def _tensors_at(dictionaries: Dictionaries, location: Location) -> tuple[dict[str, Tensor], int]:
    """Return the tensors at a location, without its prefix, and the number of those beside them."""
    named = dictionaries[location.keys]
    inside = {n.removeprefix(location.prefix): value for n, value in named.items() if n.startswith(location.prefix)}
    return inside, len(named) - len(inside)


def _in_order(networks: Sequence[Network], layout: Layout, rules: Rules) -> list[Network]:
    """Return the networks that may be of a layout, the preferred one first."""
    if layout.student or rules.part == "teacher":
        return [network for location in layout.locations(rules) for network in networks if network[0].bare == location]
    # a layout without locations of its own: a plain one comes first, then the only network of the file
    plain = [network for location in PLAIN for network in networks if network[0].bare == location]
    if not plain and rules.names_location:
        plain = [network for network in networks if not network[0].bare.prefix]
    return plain or (list(networks) if len(networks) == 1 else [])


def _not_found(dictionaries: Dictionaries, rules: Rules, networks: Sequence[Network], where: str) -> str:
    """Return the message for a file in which no network was chosen."""
    if rules.layout is None and rules.part is None and networks:
        return (
            f"{where} holds {len(networks)} networks, in no layout that says which one counts; choose one: "
            f"{_choices(location for location, _ in networks)}"
        )
    layout = None if rules.layout is None else LAYOUTS[rules.layout]
    if layout is not None and rules.part == "teacher" and not layout.teacher:
        return f"layout={rules.layout} has no {rules.part}; leave part out"
    content = f"{_describe(dictionaries)}. {_other_network(dictionaries)}"
    fixed = {name: getattr(rules, name) for name in ("layout", "part", "key", "prefix")}
    fixed = {name: value for name, value in fixed.items() if value is not None}
    if not fixed:
        return (
            f"{where} has no known layout; {content}. Say where the tensors are, such as key=state_dict "
            f"prefix=module., or name the layout: {', '.join(LAYOUTS)}"
        )
    chosen = " ".join(f"{name}={value!r}" for name, value in fixed.items())
    locations = layout.locations(rules)[:3] if layout is not None else ()
    expected = f", whose tensors are at {', '.join(map(str, locations))}" if locations else ""
    return f"{where} has no ResNet or ViT with {chosen}{expected}; {content}. Leave out or change {', '.join(fixed)}"


def _other_network(dictionaries: Dictionaries) -> str:
    """Return the network that a tensor's name points to, with the setting that names it; else those that are known."""
    for tensors in dictionaries.values():
        for name, value in tensors.items():
            for pattern, kind in _OTHERS.items():
                if re.search(pattern, name):
                    model = f"vit_{_TORCHVISION_VITS.get(value.shape[0], 'b')}_{value.shape[-1]}" if value.ndim else ""
                    return f"{name} is of {kind.format(model=model)}"
    return ARCHITECTURES


def _describe(dictionaries: Dictionaries) -> str:
    """Describe the content of a file in words: its first dictionaries of tensors."""
    parts = [
        f"{'.'.join(keys)} ({len(tensors)} tensors, the first {next(iter(tensors))})".strip()
        for keys, tensors in islice(dictionaries.items(), 6)
    ]
    return f"it holds {', '.join(parts) or 'no tensors'}"


def _choices(locations: Iterable[Location]) -> str:
    """Write the rules that lead to some of these networks."""
    return " or ".join(location.rules for location in islice(locations, 6))
