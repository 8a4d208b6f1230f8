"""solo-learn's augmentations as `method.views`."""

import dataclasses
from typing import Any

from raysl.components import resolve
from raysl.translation.theirs import checked
from raysl.translation.translated import Translation

KEY = "augmentations"
ALIKE = ("rrc.crop_min_scale", "color_jitter.prob", "color_jitter.hue", "grayscale.prob", "horizontal_flip.prob")
"""What two views of one size cannot differ in."""


def fields_of_views(method: str) -> set[str]:
    """Return the names of the settings that a method's views have."""
    views = next(field for field in dataclasses.fields(resolve("method", method).Config) if field.name == "views")
    assert views.default_factory is not dataclasses.MISSING
    return {field.name for field in dataclasses.fields(views.default_factory())}


def translate_views(out: Translation) -> None:
    """Translate the list of views: large ones, a second kind of large ones, and small ones."""
    nodes = [checked(node, (dict,), KEY, "a list of groups") for node in out.theirs.items(KEY)]
    if not nodes:
        out.lacks(KEY, "its list of augmentations is missing: give its file after this one, or method.views.KEY=")
        return
    fields, side = fields_of_views(out.settings["method.name"]), int(_of(nodes[0], "crop_size", 224))
    large = [number for number, node in enumerate(nodes) if _of(node, "crop_size", 224) == side]
    small = [number for number in range(len(nodes)) if number not in large]
    values = _large(nodes[0], side)
    values["num"] = int(sum(_of(nodes[number], "num_crops", 1) for number in large))
    other = nodes[large[1]] if len(large) > 1 else nodes[0]
    values |= {"second_blur_p": _of(other, "gaussian_blur.prob"), "second_solarize_p": _of(other, "solarization.prob")}
    if small:
        node = nodes[small[0]]
        values |= {"num_local": int(_of(node, "num_crops", 1)), "local_size": int(_of(node, "crop_size", 96))}
        values["local_scale"] = [_of(node, "rrc.crop_min_scale", 0.08), _of(node, "rrc.crop_max_scale", 1.0)]
        values["local_blur_p"] = _of(node, "gaussian_blur.prob")
    elif "num_local" in fields:
        values["num_local"] = 0
    out.settings["data.image_size"] = side
    for number, node in enumerate(nodes):
        _line(out, number, node, {key: value for key, value in values.items() if key in fields} if number == 0 else {})
    differing = [key for key in ALIKE if _of(other, key) != _of(nodes[0], key)]
    if differing or len(large) > 2 or len(small) > 1:
        told = ", ".join(differing) or "more than two kinds of one size"
        out.lacks(f"{KEY}[{large[-1]}]", f"views of one size differ in blur and solarisation only, not in {told}")


def _large(node: dict[str, Any], side: int) -> dict[str, Any]:
    """Return the settings of the first view."""
    jitter = [_of(node, f"color_jitter.{name}") for name in ("brightness", "contrast", "saturation", "hue")]
    return {
        "size": side,
        "min_scale": _of(node, "rrc.crop_min_scale", 0.08),
        "interpolation": "bicubic",
        "flip": _of(node, "horizontal_flip.prob"),
        "jitter_p": _of(node, "color_jitter.prob"),
        "jitter": jitter,
        "jitter_strength": 1.0,
        "grayscale_p": _of(node, "grayscale.prob"),
        "blur_p": _of(node, "gaussian_blur.prob"),
        "blur_sigma": [0.1, 2.0],
        "solarize_p": _of(node, "solarization.prob"),
    }


def _line(out: Translation, number: int, node: dict[str, Any], values: dict[str, Any]) -> None:
    key = f"{KEY}[{number}]"
    notes = []
    if _of(node, "gaussian_blur.prob"):
        notes.append("the blur is a Gaussian here, in Pillow made of boxes")
    if _of(node, "equalization.prob"):
        notes.append("no equalisation here")
    if _of(node, "rrc.crop_max_scale", 1.0) != 1 and _of(node, "crop_size", 224) == values.get("size"):
        notes.append("large crops end at the whole area here")
    if isinstance(node.get("rrc"), dict) and node["rrc"].get("enabled") is False:
        notes.append("crops are random here, of any image")
    out.maps(key, {f"method.views.{name}": value for name, value in values.items()}, "; ".join(notes), value="a view")


def _of(node: dict[str, Any], key: str, default: float = 0.0) -> float:
    value: Any = node
    for part in key.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return float(checked(default if value is None else value, (int, float), f"{KEY}: {key}", "a number"))
