"""Settings that follow others unless they are given, so that `data.image_size` or `data.channels` alone changes all.

A method's settings mark the side of its views (`ViewSide`). If only this or only `data.image_size` is given, in all
layers together, the other takes its value. Other sizes of views in pixels (`WithViews`), such as those of small views,
scale in proportion unless they are given, and so does the side that a backbone's positions are made for.

Settings that are marked by `Adapts` follow the images of a run later on, unless a user has set them.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from raysl.config.dump import Keys, leaves, plain
from raysl.config.fields import Setting, find, list_settings, put, settings_in
from raysl.config.ranges import Adapts, OfViews, ViewSide, WithViews, marks_of, rules_of
from raysl.config.schema import BackboneConfig, DataConfig, MethodConfig, RunConfig
from raysl.errors import ConfigError

IMAGES: Keys = ("data", "image_size")
PATCHES: Keys = ("backbone", "patch_size")
CHANNELS: Keys = ("data", "channels")
IN_CHANNELS: Keys = ("backbone", "in_channels")
MOST = 12
MEAN, STD = 0.5, 0.25
"""Mean and deviation of each channel, where the settings have none."""
WITH_HUE = (1, 3)
"""Numbers of channels for which a turn of the hue is defined; grey has none to turn."""
ADAPT = "adapt"
"""Key of the list of settings that a run may adapt to its images."""


def link_sizes(tree: dict[str, Any], size: Any = None) -> dict[str, Any]:
    """Derive the sizes that are missing in a run's plain settings from the given ones.

    If neither the side of the views nor that of the images is given, both become `size`; without `size`, the views take
    the size of a source with an unusual default, and other sources take the size of the views.
    """
    keys, usual = _views(tree)
    views, images = find(tree, keys), find(tree, IMAGES)
    if views is None and images is None and keys != IMAGES:
        source_size = _source_size(tree)
        if _is_size(size):
            tree = put(put(tree, keys, size), IMAGES, size)
        elif source_size != _usual_size() or not _is_size(usual):
            tree = put(tree, keys, source_size)
        else:
            tree = put(tree, IMAGES, usual)
    elif views is None and _is_size(images):
        tree = put(tree, keys, images)
    elif images is None and _is_size(views):
        tree = put(tree, IMAGES, views)
    side = view_side(tree)
    # defaults of other sizes are made for the default side, so they scale only where the side is another
    for keys, setting, mark in _followers(tree) if _is_size(side) and side != usual else ():
        if find(tree, keys) is None:
            tree = put(tree, keys, _scaled(tree, setting.default, (usual, side), mark))
    return tree


def follow_sizes(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Extend changes to a run's complete settings: of two equal sizes, changing one changes the other."""
    keys, _ = _views(tree)
    views, images = find(changes, keys), find(changes, IMAGES)
    is_linked = find(tree, keys) == find(tree, IMAGES)
    if not is_linked or find(changes, ("method", "name"), tree["method"]["name"]) != tree["method"]["name"]:
        return changes
    if _is_size(views) and not _is_size(images):
        return put(changes, IMAGES, views)
    return put(changes, keys, images) if _is_size(images) and not _is_size(views) else changes


def scale_sizes(tree: dict[str, Any], lower: dict[str, Any], layer: dict[str, Any], before: Any) -> dict[str, Any]:
    """Scale the sizes of lower layers if a layer changes the side of the views.

    Args:
        lower: settings of lower layers that the layer does not replace.
        layer: settings of the layer; sizes in them stay.
        before: side of the views in lower layers, see `view_side`.
    """
    sizes = (find(layer, keys) for keys in (_views(tree)[0], IMAGES))
    side = next(filter(_is_size, sizes), before)
    for keys, _, mark in _followers(tree) if _is_size(before) and side != before else ():
        old = find(lower, keys)
        if _is_size(old) and find(layer, keys) is None and (isinstance(mark, WithViews) or old == before):
            tree = put(tree, keys, _scaled(tree, old, (before, side), mark))
    return tree


def view_side(tree: dict[str, Any]) -> Any:
    """Return the side of the views in plain settings, else of the images, else the default."""
    sizes = (find(tree, keys) for keys in (_views(tree)[0], IMAGES))
    return next((size for size in sizes if size is not None), _source_size(tree))


def backbone_size_overrides(config: RunConfig) -> list[str]:
    """Return overrides that keep the size for which the backbone is made, because it has weights already."""
    tree = {"backbone": plain(config.backbone)}
    marked = [keys for keys, setting in _backbone(tree) if OfViews() in marks_of(setting.kind)]
    return [f"{'.'.join(keys)}={find(tree, keys)}" for keys in marked]


def find_size_setting(config: RunConfig, side: int) -> str:
    """Return the key of the setting with this size, to be named in messages; `data.image_size` if it fits."""
    if side == config.data.image_size:
        return ".".join(IMAGES)
    tree = {"method": plain(config.method)}
    for keys, setting in settings_in(MethodConfig, tree["method"], ("method",)):
        if find(tree, keys) == side and any(isinstance(mark, OfViews | WithViews) for mark in marks_of(setting.kind)):
            return ".".join(keys)
    return "method.views"


def view_size_override(config: RunConfig, scale: float) -> str:
    """Return the override that scales the side of the views, to a multiple of the backbone's patches."""
    tree = {"method": plain(config.method), "backbone": plain(config.backbone), "data": plain(config.data)}
    keys, _ = _views(tree)
    side = view_side(tree)
    return f"{'.'.join(keys)}={_scaled(tree, side, (side, round(scale * side)), WithViews())}"


def _views(tree: dict[str, Any]) -> tuple[Keys, Any]:
    """Return the keys and the default of the side of views of the tree's method; those of the images if it has none."""
    settings = settings_in(MethodConfig, tree.get("method"), ("method",))
    sides = ((keys, setting.default) for keys, setting in settings if OfViews() in marks_of(setting.kind))
    return next(sides, (IMAGES, _usual_size()))


def _followers(tree: dict[str, Any]) -> Iterator[tuple[Keys, Setting, WithViews | OfViews]]:
    """Yield the other sizes that scale with the views: those of views that the method makes, and the backbone's."""
    settings = list(settings_in(MethodConfig, tree.get("method"), ("method",)))
    for keys, setting in settings:
        for mark in marks_of(setting.kind):
            if isinstance(mark, WithViews):
                num = next(
                    (find(tree, other, one.default) for other, one in settings if other == (*keys[:-1], mark.num)), 1
                )
                yield from [(keys, setting, mark)] if num else []
    for keys, setting in _backbone(tree):
        if OfViews() in marks_of(setting.kind):
            yield keys, setting, OfViews()


def _backbone(tree: dict[str, Any]) -> Iterator[tuple[Keys, Setting]]:
    yield from settings_in(BackboneConfig, tree.get("backbone"), ("backbone",))


def _scaled(tree: dict[str, Any], size: int, sides: tuple[int, int], mark: WithViews | OfViews) -> int:
    """Scale a size from views of the first of two sides to the second.

    Sizes that the network sees become multiples of the patch size; the side that a backbone is made for becomes that of
    the largest grid of patches in a view. If no patch fits, the size stays, and checking the views refuses it.
    """
    patch, (before, now) = _patch_size(tree), sides
    if isinstance(mark, OfViews):
        return now - now % patch or size
    unit = patch if mark.is_seen and patch <= now else 1
    return max(round(size * now / before / unit) * unit, unit)


def _patch_size(tree: dict[str, Any]) -> int:
    """Return the side of the backbone's patches; 1 if its settings have none."""
    default = next((setting.default for keys, setting in _backbone(tree) if keys == PATCHES), 1)
    patch = find(tree, PATCHES, default)
    return patch if type(patch) is int and patch > 0 else 1


def _source_size(tree: dict[str, Any]) -> Any:
    return dict(settings_in(DataConfig, tree.get("data"), ("data",)))[IMAGES].default


def _usual_size() -> Any:
    return list_settings(DataConfig)[IMAGES[1]].default


def _is_size(value: Any) -> bool:
    """Whether a value is valid for both sizes; invalid ones are refused later, with the key that has them."""
    return type(value) is int and all(rule.problem(value) is None for rule in rules_of(ViewSide))


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
