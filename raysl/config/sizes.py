"""Sizes that follow each other: `data.image_size` is the one switch.

A method's settings mark the side of its views (`ViewSide`). Where only that or only `data.image_size` is given, in all
layers together, the other takes its value. Other sizes of views in pixels (`WithViews`), such as those of small views,
follow in proportion unless they are given, and so does the side that a backbone's positions are made for.
"""

from collections.abc import Iterator
from typing import Any

from raysl.config.dump import Keys, plain
from raysl.config.fields import Setting, find, put, settings_in, settings_of
from raysl.config.ranges import OfViews, ViewSide, WithViews, marks_of, rules_of
from raysl.config.schema import BackboneConfig, DataConfig, MethodConfig, RunConfig

IMAGES: Keys = ("data", "image_size")
PATCHES: Keys = ("backbone", "patch_size")


def linked(tree: dict[str, Any], size: Any = None) -> dict[str, Any]:
    """A run's plain settings with the sizes that are not given taken from those that are.

    Where neither the side of the views nor that of the images is given, both are `size`; without one, the views follow
    a source whose images have a size of their own, and any other source the views.
    """
    for keys, default in _view_sides(tree):
        views, images = find(tree, keys), find(tree, IMAGES)
        if views is None and images is None:
            source_size = _source_size(tree)
            if _is_size(size):
                tree = put(put(tree, keys, size), IMAGES, size)
            elif source_size != _usual_size() or not _is_size(default):
                tree = put(tree, keys, source_size)
            else:
                tree = put(tree, IMAGES, default)
        elif views is None and _is_size(images):
            tree = put(tree, keys, images)
        elif images is None and _is_size(views):
            tree = put(tree, IMAGES, views)
    side = side_of(tree)
    usual = next((default for _, default in _view_sides(tree)), _usual_size())
    for keys, setting, mark in _followers(tree) if _is_size(side) and side != usual else ():
        if find(tree, keys) is None:
            tree = put(tree, keys, _scaled(tree, setting.default, (usual, side), mark))
    return tree


def followed(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes to a run's whole plain settings, with the other size where they change one of two that were equal."""
    method = find(changes, ("method", "name"))
    for keys, _ in _view_sides(tree) if method in (None, tree["method"]["name"]) else ():
        given = [key for key in (keys, IMAGES) if _is_size(find(changes, key))]
        if len(given) == 1 and find(tree, keys) == find(tree, IMAGES):
            changes = put(changes, IMAGES if given == [keys] else keys, find(changes, given[0]))
    return changes


def in_proportion(tree: dict[str, Any], kept: dict[str, Any], layer: dict[str, Any], before: Any) -> dict[str, Any]:
    """Settings after a layer, with the sizes that were given below it scaled where it changes the side of the views.

    Args:
        tree: the settings with the layer.
        kept: those below the layer that it does not replace.
        layer: its settings; the sizes that it gives stay.
        before: side of the views below it, see `side_of`.
    """
    given = [find(layer, keys) for keys in (*(keys for keys, _ in _view_sides(tree)), IMAGES)]
    side = next((size for size in given if _is_size(size)), before)
    for keys, _, mark in _followers(tree) if _is_size(before) and side != before else ():
        old = find(kept, keys)
        if _is_size(old) and find(layer, keys) is None and (isinstance(mark, WithViews) or old == before):
            tree = put(tree, keys, _scaled(tree, old, (before, side), mark))
    return tree


def side_of(tree: dict[str, Any]) -> Any:
    """Side of the views in plain settings, or of the images where the method marks none; the default where neither is
    given."""
    places = [*(keys for keys, _ in _view_sides(tree)), IMAGES]
    return next((size for keys in places if (size := find(tree, keys)) is not None), _source_size(tree))


def made_for(config: RunConfig) -> list[str]:
    """Overrides that keep the size that the backbone is made for, for one whose weights are there already."""
    tree = {"backbone": plain(config.backbone)}
    marked = [keys for keys, setting in _backbone(tree) if OfViews() in marks_of(setting.kind)]
    return [f"{'.'.join(keys)}={find(tree, keys)}" for keys in marked]


def setting_of(config: RunConfig, side: int) -> str:
    """The setting to change where images of so many pixels do not fit: `data.image_size` where it is that one."""
    if side == config.data.image_size:
        return ".".join(IMAGES)
    tree = {"method": plain(config.method)}
    for keys, setting in settings_in(MethodConfig, tree["method"], ("method",)):
        if find(tree, keys) == side and any(isinstance(mark, OfViews | WithViews) for mark in marks_of(setting.kind)):
            return ".".join(keys)
    return "method.views"


def _view_sides(tree: dict[str, Any]) -> Iterator[tuple[Keys, Any]]:
    """Keys and defaults of the sides of views in the settings of the method that a tree names."""
    for keys, setting in settings_in(MethodConfig, tree.get("method"), ("method",)):
        if OfViews() in marks_of(setting.kind):
            yield keys, setting.default


def _followers(tree: dict[str, Any]) -> Iterator[tuple[Keys, Setting, WithViews | OfViews]]:
    """The other sizes that follow the side of the views: those of the method, unless it makes no views of that size,
    and the backbone's."""
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
    """A size that was meant for views of the first side, for those of the second. It is a whole number of patches where
    the network sees it; the side that a backbone is made for is that of the largest grid of patches in a view. Where
    not even one patch fits in, which is refused when the views are checked, that stays."""
    patch, (before, now) = _patch_size(tree), sides
    if isinstance(mark, OfViews):
        return now - now % patch or size
    unit = patch if mark.is_seen and patch <= now else 1
    return max(round(size * now / before / unit) * unit, unit)


def _patch_size(tree: dict[str, Any]) -> int:
    """Side of the backbone's patches, as far as its settings tell; else 1."""
    default = next((setting.default for keys, setting in _backbone(tree) if keys == PATCHES), 1)
    given = find(tree, PATCHES, default)
    return given if type(given) is int and given > 0 else 1


def _source_size(tree: dict[str, Any]) -> Any:
    """Side of the images where nobody gives it: that of the source."""
    return dict(settings_in(DataConfig, tree.get("data"), ("data",)))[IMAGES].default


def _usual_size() -> Any:
    return settings_of(DataConfig)[IMAGES[1]].default


def _is_size(value: Any) -> bool:
    """Whether a value can stand in both; others are refused where they were given."""
    return type(value) is int and all(rule.problem(value) is None for rule in rules_of(ViewSide))
