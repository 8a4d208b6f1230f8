"""Finding a backbone in a file of weights, which may hold several networks."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import Tensor

from raysl.errors import ConfigError
from raysl.weights.contents import describe_tree, named_tensors, network_to_name
from raysl.weights.layouts import LAYOUTS, PLAIN, Layout, Location, Rules, StoredBackbone, check_rules

_ANCHORS = {
    "resnet": ("conv1.weight", "layer1.0.conv1.weight"),
    "vit": ("patch_embed.proj.weight", "blocks.0.attn.qkv.weight"),
}
"""Names of tensors that every network of a family has."""
Network = tuple[Location, str]
"""Where a network is, and its family."""


def find_backbone(tree: Mapping[str, Any], rules: Rules, where: str) -> StoredBackbone:
    """Find the backbone in the content of a file.

    Args:
        tree: content of the file by plain names, from `raysl.weights.names.plain_names`.

    Raises:
        ConfigError: if no layout is recognised, the tensors of the named layout are missing, or the file has several
            networks and no rule chooses one.
    """
    check_rules(rules)
    present = [(location, family) for family, anchors in _ANCHORS.items() for location in locations_in(tree, anchors)]
    networks = [network for network in present if rules.allow(network[0])]
    layouts = list(LAYOUTS.values()) if rules.layout is None else [LAYOUTS[rules.layout]]
    # in the order of LAYOUTS: torchvision's and timm's come last, as their plain names fit most files
    for layout in layouts:
        for location, family in _in_order(networks, layout, rules):
            tensors, num_outside = tensors_at(tree, location)
            has_mark = not layout.mark or any(layout.mark in name for name, _ in named_tensors(tree))
            if layout.family not in (None, family) or layout.without in tensors or not has_mark:
                continue
            if rules.layout is not None or layout.is_like(tensors):
                others = tuple(other for other, _ in present if other != location)
                return StoredBackbone(layout, location, family, tensors, num_outside, others)
    raise ConfigError(_not_found(tree, rules, networks, where))


def locations_in(tree: Mapping[str, Any], anchors: Sequence[str], keys: tuple[str, ...] = ()) -> Iterator[Location]:
    """Yield the locations, at any depth of a file, where a network has tensors of these names."""
    first = anchors[0]
    for name in tree:
        prefix = str(name).removesuffix(first)
        is_cut = str(name).endswith(first) and (not prefix or prefix.endswith("."))
        if is_cut and all(isinstance(tree.get(f"{prefix}{anchor}"), Tensor) for anchor in anchors):
            yield Location(keys, prefix)
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from locations_in(value, anchors, (*keys, str(name)))


def tensors_at(tree: Mapping[str, Any], location: Location) -> tuple[dict[str, Tensor], int]:
    """Return the tensors at a location, without its prefix, and the number of those beside them."""
    for key in location.keys:
        tree = tree.get(key, {})
    named = {str(name): value for name, value in tree.items() if isinstance(value, Tensor)}
    inside = {n.removeprefix(location.prefix): value for n, value in named.items() if n.startswith(location.prefix)}
    return inside, len(named) - len(inside)


def choices(locations: Iterable[Location]) -> str:
    """Write the rules that lead to some of these networks."""
    return " or ".join(location.rules for location in islice(locations, 6))


def _in_order(networks: Sequence[Network], layout: Layout, rules: Rules) -> list[Network]:
    """Return the networks that may be of a layout, the preferred one first."""
    if layout.student or rules.part == "teacher":
        return [network for location in layout.locations(rules) for network in networks if network[0].bare == location]
    # a layout without locations of its own: a plain one comes first, then the only network of the file
    plain = [network for location in PLAIN for network in networks if network[0].bare == location]
    if not plain and rules.names_location:
        plain = [network for network in networks if not network[0].bare.prefix]
    return plain or (list(networks) if len(networks) == 1 else [])


def _not_found(tree: Mapping[str, Any], rules: Rules, networks: Sequence[Network], where: str) -> str:
    """Return the message for a file in which no network was chosen."""
    if rules.names_location and not networks:
        return _not_there(tree, rules, where)
    if rules.layout is None and rules.part is None and networks:
        return (
            f"{where} holds {len(networks)} networks, in no layout that says which one counts; choose one: "
            f"{choices(location for location, _ in networks)}"
        )
    part = f" with a {rules.part}" if rules.part else ""
    content = describe_tree(tree)
    if rules.layout is None:
        network = network_to_name(tree)
        return (
            f"{where} has no known layout{part}; {content}. {network}. Say where the tensors are, such as "
            f"key=state_dict prefix=module., or name the layout: {', '.join(LAYOUTS)}"
        )
    layout = LAYOUTS[rules.layout]
    if rules.part == "teacher" and not layout.teacher:
        return f"layout={rules.layout} has no {rules.part}; leave part out"
    expected = ", ".join(str(location) for location in layout.locations(rules)[:3]) or "any location"
    return (
        f"{where} is not of layout={rules.layout}{part}, whose tensors are at {expected}; {content}. Leave layout out"
    )


def _not_there(tree: Mapping[str, Any], rules: Rules, where: str) -> str:
    """Return the message for a key and a prefix that lead to no ResNet or ViT."""
    keys = tuple(rules.key.split(".")) if rules.key else ()
    inner: Any = tree
    for key in keys:
        inner = inner.get(key) if isinstance(inner, Mapping) else None
    if not isinstance(inner, Mapping):
        return f"{where} has no dictionary at key={rules.key!r}; {describe_tree(tree)}"
    prefix = rules.prefix or ""
    dictionaries = [inner, *(value for value in inner.values() if isinstance(value, Mapping))]
    inner = next((one for one in dictionaries if any(str(name).startswith(prefix) for name in one)), None)
    if inner is None:
        return f"{where} has no tensor with prefix={prefix!r}; {describe_tree(tree)}"
    return (
        f"the tensors of {where} with prefix={prefix!r} are neither a ResNet's nor a ViT's: none is named "
        f"{' or '.join(first for first, _ in _ANCHORS.values())}; {describe_tree(inner)}. {network_to_name(tree)}"
    )
