"""Finding the tensors of a network that the user names, such as one of timm or torchvision, in a file of weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.weights.contents import describe_tree
from raysl.weights.layouts import LAYOUTS, PLAIN, Layout, Location, Rules, StoredBackbone, check_rules
from raysl.weights.search import choices, locations_in, tensors_at


def find_named(tree: Mapping[str, Any], backbone: Backbone, rules: Rules, where: str) -> StoredBackbone:
    """Find the tensors of a network in the content of a file: at the location where most have the network's names.

    Args:
        tree: content of the file, by plain names.

    Returns:
        The tensors by the names in the network's `state_dict`; those of a classifier keep the file's names.

    Raises:
        ConfigError: if no tensor has one of these names, or several networks have them all and no rule chooses one.
    """
    check_rules(rules)
    wanted = backbone.state_dict()
    layouts = [LAYOUTS[rules.layout]] if rules.layout else LAYOUTS.values()
    ranks = [location for layout in layouts for location in layout.locations(rules) or PLAIN]
    numbers: dict[Location, int] = {}
    for location in dict.fromkeys(_locations(tree, [name.removeprefix("network.") for name in wanted])):
        if location.bare in ranks or rules.layout is None:
            numbers[location] = len(backbone.renamed(tensors_at(tree, location)[0]).keys() & wanted.keys())
    most = max((num for location, num in numbers.items() if rules.allow(location)), default=0)
    if most == 0:
        first = [name.removeprefix("network.") for name in wanted][:2]
        raise ConfigError(
            f"{where} has no tensor of {backbone.title}, which has {' and '.join(first)}; {describe_tree(tree)}. Give "
            "the file's own backbone.model, or say where the tensors are, such as key=state_dict prefix=module."
        )
    whole = [location for location, num in numbers.items() if num == most]
    best = min(filter(rules.allow, whole), key=lambda location: _rank(ranks, location))
    others = tuple(location for location in whole if location != best)
    if best.bare not in ranks and any(rules.allow(location) for location in others):
        raise ConfigError(f"{where} holds {len(whole)} networks of {backbone.title}; choose one: {choices(whole)}")
    tensors, num_outside = tensors_at(tree, best)
    layout = Layout(backbone.config.name)
    return StoredBackbone(layout, best, "named", backbone.renamed(tensors), num_outside, others)


def _rank(ranks: list[Location], location: Location) -> int:
    return ranks.index(location.bare) if location.bare in ranks else len(ranks)


def _locations(tree: Mapping[str, Any], names: list[str], keys: tuple[str, ...] = ()) -> Iterator[Location]:
    """Yield the locations that may hold a network: those with its first tensors, and every dictionary of tensors, whose
    names may be those of the official code that the library converts."""
    yield from locations_in(tree, names[:2], keys)
    for prefix in ("", "module."):
        if any(str(name).startswith(prefix) and isinstance(value, Tensor) for name, value in tree.items()):
            yield Location(keys, prefix)
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _locations(value, names, (*keys, str(name)))
