"""Which settings a run may adapt to its images: those that are marked (`ranges.Adapts`) and that no user has set."""

from collections.abc import Iterable
from typing import Any

from raysl.config.dump import leaves
from raysl.config.fields import find, settings_in
from raysl.config.ranges import Adapts, marks_of
from raysl.config.schema import RunConfig
from raysl.errors import ConfigError

ADAPT = "adapt"
"""Key of the list of these settings."""


def adaptable_keys(tree: dict[str, Any], layers: Iterable[tuple[dict[str, Any], bool]]) -> list[str]:
    """Return the dotted keys of the settings that a run may adapt.

    Args:
        layers: settings from the lowest layer up, each with whether it is a configuration of raysl. A list `adapt` in
            one replaces what the layers below allow.
    """
    marked = [
        ".".join(keys)
        for keys, setting in settings_in(RunConfig, tree)
        if any(isinstance(mark, Adapts) for mark in marks_of(setting.kind))
    ]
    free, method = set(marked), None
    for values, is_ours in layers:
        before, method = method, find(values, ("method", "name"), method)
        # another method comes with settings of its own, which nobody has set so far
        if free and before not in (None, method):
            free |= {key for key in marked if key.startswith("method.")}
        if isinstance(listed := values.get(ADAPT), list | tuple):
            # a list may be made for another method, whose settings these are not
            if wrong := [key for key in listed if key not in marked and not str(key).startswith("method.")]:
                way = f"name some of {', '.join(marked)}, or [] for none"
                raise ConfigError(f"adapt: {wrong[0]!r} cannot be adapted; {way}")
            free = set(listed)
        elif not is_ours:
            free -= {".".join(map(str, keys)) for keys, _ in leaves(values)}
    return [key for key in marked if key in free]
