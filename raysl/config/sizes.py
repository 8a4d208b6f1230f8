"""One switch for the size of images: `data.image_size` and the side of a method's views follow each other.

A method's settings mark the side of its views by their annotation (`ViewSide`). Where only one of the two is given, in
files and overrides together, the other takes its value; both given stay as they are.
"""

from collections.abc import Iterator
from typing import Any

from raysl.config.fields import chosen, group_of, settings_of
from raysl.config.ranges import OfViews, ViewSide, marks_of, rules_of
from raysl.config.schema import DataConfig, MethodConfig

Keys = tuple[str, ...]
IMAGES: Keys = ("data", "image_size")


def linked(tree: dict[str, Any]) -> dict[str, Any]:
    """A run's plain settings with the size that is not given taken from the one that is.

    Where neither is, the views follow a source whose images have a size of their own, and any other source the views.
    """
    for keys, default in _view_sides(tree):
        views, images = _at(tree, keys), _at(tree, IMAGES)
        if views is None and images is None:
            usual = settings_of(DataConfig)[IMAGES[1]].default
            own = _image_size(tree)
            is_own = own != usual or not _is_size(default)
            tree = _put(tree, keys, own) if is_own else _put(tree, IMAGES, default)
        elif views is None and _is_size(images):
            tree = _put(tree, keys, images)
        elif images is None and _is_size(views):
            tree = _put(tree, IMAGES, views)
    return tree


def followed(tree: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Changes to a run's whole plain settings, with the other size where they change one of two that were equal."""
    for keys, _ in _view_sides(tree):
        pair = (keys, IMAGES)
        given = [key for key in pair if _is_size(_at(changes, key))]
        if len(given) == 1 and _at(tree, keys) == _at(tree, IMAGES) and _is_same_method(tree, changes):
            other = pair[1 - pair.index(given[0])]
            changes = _put(changes, other, _at(changes, given[0]))
    return changes


def _view_sides(tree: dict[str, Any]) -> Iterator[tuple[Keys, Any]]:
    """Keys and defaults of the sides of views in the settings of the method that a tree names."""
    method = tree.get("method")
    kind = chosen(MethodConfig, method, "method") if isinstance(method, dict) else MethodConfig
    yield from _marked(kind, ("method",))


def _marked(kind: type[Any], at: Keys, default: Any = None) -> Iterator[tuple[Keys, Any]]:
    for setting in settings_of(kind, default).values():
        keys, group = (*at, setting.name), group_of(setting.kind)
        if OfViews() in marks_of(setting.kind):
            yield keys, setting.default
        elif group is not None and isinstance(setting.default, group):
            yield from _marked(type(setting.default), keys, setting.default)


def _image_size(tree: dict[str, Any]) -> Any:
    data = tree.get("data")
    kind = chosen(DataConfig, data, "data") if isinstance(data, dict) else DataConfig
    return settings_of(kind)[IMAGES[1]].default


def _is_same_method(tree: dict[str, Any], changes: dict[str, Any]) -> bool:
    method = changes.get("method", {})
    return isinstance(method, dict) and method.get("name") in (None, tree["method"]["name"])


def _is_size(value: Any) -> bool:
    """Whether a value can stand in both; others are refused where they were given."""
    return type(value) is int and all(rule.problem(value) is None for rule in rules_of(ViewSide))


def _at(tree: Any, keys: Keys) -> Any:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _put(tree: dict[str, Any], keys: Keys, value: Any) -> dict[str, Any]:
    """The tree with a value set, unless something else than a group of settings is in its way."""
    key, *rest = keys
    below = tree.get(key, {})
    if rest and not isinstance(below, dict):
        return tree
    return {**tree, key: _put(below, tuple(rest), value) if rest else value}
