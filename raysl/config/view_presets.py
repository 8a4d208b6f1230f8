"""Presets of views: how images of one kind may be cropped, turned and coloured, for any method.

A preset has values for the fields of view recipes. They override the defaults of the method, and settings in
`method.views` override them. Only fields that the method's recipe has get a value: numbers of views, small views, masks
and tiles stay the method's. No preset turns on a colour change that the method does not use.
"""

from collections.abc import Iterator
from typing import Any

from raysl.config.dump import Keys, plain
from raysl.config.fields import Setting, find, put, settings_in
from raysl.config.schema import MethodConfig, ViewPreset
from raysl.errors import ConfigError

_NO_OPERATIONS: dict[str, Any] = {"solarize_p": 0.0, "second_solarize_p": 0.0, "photometric_p": 0.0, "policy": None}
_NO_COLOURS: dict[str, Any] = {
    "jitter_p": 0.0,
    "grayscale_p": 0.0,
    "blur_p": 0.0,
    "second_blur_p": 0.0,
    "local_blur_p": 0.0,
    **_NO_OPERATIONS,
}
PRESETS: dict[ViewPreset, dict[str, Any]] = {
    # ImageNet's numbers are those of the papers, which are the defaults of the methods.
    "imagenet": {},
    # SimCLR (arXiv 2002.05709, appendix B.9) and lightly's benchmark leave the blur out at 32 pixels; AutoAugment
    # learned a policy on CIFAR-10 (arXiv 1805.09501), which only methods with a policy take. Crops and colours stay the
    # method's, on which recipes for CIFAR-10 differ.
    "cifar": {"blur_p": 0.0, "second_blur_p": 0.0, "local_blur_p": 0.0, "policy": "cifar10"},
    # Ours, for grey digits of 8x8 pixels: they may not be mirrored and have no colours, a blur would leave nothing, and
    # less than half of a digit may look like another one; writing is turned, moved, stretched and slanted instead.
    "digits": {
        "min_scale": 0.5,
        "flip": 0.0,
        "affine_p": 0.9,
        "degrees": 15.0,
        "translate": 0.1,
        "scale": [0.85, 1.15],
        "shear": 15.0,
        **_NO_COLOURS,
    },
    # Ours, for scanned or photographed pages: text may not be mirrored, a crop keeps some lines, a scanner turns a page
    # by a few degrees, the tint is that of paper and lamp, and inverted pages are rare.
    "document": {
        "min_scale": 0.3,
        "flip": 0.0,
        "affine_p": 0.5,
        "degrees": 3.0,
        "translate": 0.02,
        "scale": [0.95, 1.05],
        "shear": 2.0,
        "jitter": [0.4, 0.4, 0.2, 0.02],
        "jitter_strength": 1.0,
        **_NO_OPERATIONS,
    },
    # Crops, brightness and contrast without hue and saturation, which tell plants from soil, as SSL4EO-S12 has them
    # (arXiv 2211.07044, its code for MoCo); images from above may be flipped; no sensor inverts light.
    "satellite": {
        "min_scale": 0.2,
        "vertical_flip": 0.5,
        "jitter": [0.4, 0.4, 0.0, 0.0],
        "jitter_strength": 1.0,
        **_NO_OPERATIONS,
    },
    # MoCo-CXR (arXiv 2010.05352) for X-rays, which goes for slices and other grey images too: turns by 10 degrees and
    # mirror images alone, as a finding may be a few pixels that a blur removes, and grey has no colours. It does not
    # crop; ours keep half of the area, since views without crops are too much alike.
    "medical": {
        "min_scale": 0.5,
        "affine_p": 1.0,
        "degrees": 10.0,
        **_NO_COLOURS,
    },
}
"""Values by preset and field of the recipe."""

_UNSET = object()


def apply_preset(tree: dict[str, Any]) -> dict[str, Any]:
    """Add the values of the preset to a run's plain settings where `method.views` has none."""
    values = _values(tree)
    for keys, setting in _views(tree):
        if setting.name in values and find(tree, keys, _UNSET) is _UNSET:
            tree = put(tree, keys, values[setting.name])
    return tree


def remove_preset(tree: dict[str, Any]) -> dict[str, Any]:
    """Remove the values in `method.views` that equal the preset's or the defaults, so that another preset can set them.

    Only fields that some preset has are removed.
    """
    values, fields = _values(tree), {name for preset in PRESETS.values() for name in preset}
    for keys, setting in _views(tree):
        usual = values.get(setting.name, plain(setting.default))
        if setting.name in fields and plain(find(tree, keys, _UNSET)) == usual:
            views = find(tree, keys[:-1])
            tree = put(tree, keys[:-1], {name: value for name, value in views.items() if name != setting.name})
    return tree


def _values(tree: dict[str, Any]) -> dict[str, Any]:
    """Return the values of the tree's preset; empty for unknown names, which are refused when settings are built."""
    name = tree.get("views")
    if isinstance(name, dict):
        first = next(iter(name), "min_scale")
        raise ConfigError(
            f"views: give the name of a preset, one of {', '.join(PRESETS)}, or set values in method.views.{first}"
        )
    return next((values for preset, values in PRESETS.items() if preset == name), {})


def _views(tree: dict[str, Any]) -> Iterator[tuple[Keys, Setting]]:
    """Yield the settings of the method's recipe of views to which presets may apply.

    A field with the same name but another meaning, such as the positions of a tile (`jitter` of Jigsaw), is left out,
    and so are the fields of small views if the recipe makes none.
    """
    settings = list(settings_in(MethodConfig, tree.get("method"), ("method",)))
    num_local = next((find(tree, keys, one.default) for keys, one in settings if one.name == "num_local"), None)
    shapes = {name: isinstance(value, list) for preset in PRESETS.values() for name, value in preset.items()}
    for keys, setting in settings:
        is_list = isinstance(plain(setting.default), list)
        if keys[:-1] != ("method", "views") or is_list != shapes.get(setting.name, is_list):
            continue
        if num_local or not setting.name.startswith("local_"):
            yield keys, setting
