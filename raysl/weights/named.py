"""Finding the tensors of a network that the user names, such as one of timm or torchvision, in a file of weights."""

from collections.abc import Iterator, Mapping
from typing import Any

from raysl.errors import ConfigError
from raysl.nn.backbones.backbone import Backbone
from raysl.weights.contents import describe_tree
from raysl.weights.layouts import (
    LAYOUTS,
    Layout,
    Place,
    Rules,
    StoredBackbone,
    check_rules,
    keys_of,
    tensors_at,
)


def find_named(tree: Mapping[str, Any], backbone: Backbone, rules: Rules, where: str) -> StoredBackbone:
    """Find the tensors of a network in the content of a file: at the place where most have the network's names.

    Args:
        tree: content of the file, from `raysl.weights.files.read_tree`.
        backbone: the network.
        rules: how to find them.
        where: the file, for messages.

    Returns:
        The tensors by the names in the network's `state_dict`; those of a classifier keep the file's names.

    Raises:
        ConfigError: if no tensor has one of these names.
    """
    check_rules(rules)
    best, most = None, 0
    for place in dict.fromkeys(_places(rules)):
        if (at_place := tensors_at(tree, place)) is None:
            continue
        tensors, num_outside = at_place
        named = backbone.renamed(tensors)
        num = len(named.keys() & backbone.state_dict().keys())
        if num > most:
            layout = Layout(str(backbone.config.name), "by the name of the network")
            best, most = StoredBackbone(layout, place, "named", named, num_outside), num
    if best is None:
        first = [name.removeprefix("network.") for name in backbone.state_dict()][:2]
        raise ConfigError(
            f"{where} has no tensor of {backbone.title}, which has {' and '.join(first)}; {describe_tree(tree)}. Give "
            "the file's own backbone.model, or say where the tensors are, such as key=state_dict prefix=module."
        )
    return best


def _places(rules: Rules) -> Iterator[Place]:
    """Yield the places to look at: those that key and prefix name, or those of the layouts."""
    if rules.key is not None or rules.prefix is not None:
        yield from (Place(keys, rules.prefix or "") for keys in keys_of(rules))
        return
    for layout in LAYOUTS.values() if rules.layout is None else [LAYOUTS[rules.layout]]:
        yield from layout.places(rules.part)
