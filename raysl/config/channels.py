"""Settings that follow `data.channels` where it is a number, so that it alone changes them all."""

from typing import Any

from raysl.config.dump import Keys, plain
from raysl.config.fields import find, put, settings_in
from raysl.config.schema import MethodConfig

CHANNELS: Keys = ("data", "channels")
IN_CHANNELS: Keys = ("backbone", "in_channels")
MOST = 12
MEAN, STD = 0.5, 0.25
"""Of each channel, where the settings have none."""
WITH_HUE = (1, 3)
"""Numbers of channels for which a turn of the hue is defined; grey has none to turn."""


def link_channels(tree: dict[str, Any]) -> dict[str, Any]:
    """Derive what is missing in a run's plain settings from the number of channels of its images.

    That is the mean and the deviation of each channel, the channels that the backbone takes, and a colour jitter that
    turns no hue, where an image has none.
    """
    num = find(tree, CHANNELS)
    if type(num) is not int or num not in range(1, MOST + 1):
        return tree
    missing: dict[Keys, Any] = {("data", "mean"): [MEAN] * num, ("data", "std"): [STD] * num, IN_CHANNELS: num}
    if num not in WITH_HUE:
        missing |= _without_hue(tree)
    for keys, value in missing.items():
        if find(tree, keys) is None:
            tree = put(tree, keys, value)
    return tree


def follow_channels(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Extend changes to a run's complete settings by what follows another number of channels."""
    num = find(changes, CHANNELS)
    if type(num) is not int or num == find(tree, CHANNELS):
        return changes
    nodes = {name: changes[name] for name in ("data", "backbone") if isinstance(changes.get(name), dict)}
    linked = link_channels(nodes)
    return {**changes, "data": linked["data"], "backbone": linked["backbone"]}


def _without_hue(tree: dict[str, Any]) -> dict[Keys, Any]:
    """Return the colour jitters of the method's views, by their keys, without their turn of the hue."""
    return {
        keys: [*plain(setting.default)[:3], 0.0]
        for keys, setting in settings_in(MethodConfig, tree.get("method"), ("method",))
        if setting.name == "jitter" and isinstance(setting.default, tuple) and len(setting.default) == 4
    }
