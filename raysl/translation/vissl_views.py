"""VISSL's TRANSFORMS as `method.views`."""

import dataclasses
from collections.abc import Collection
from typing import Any

from raysl.components import resolve
from raysl.errors import ConfigError
from raysl.translation.translated import Translation
from raysl.translation.vissl_settings import checked, numbers

LISTED = "DATA.TRAIN.TRANSFORMS"
SHARES = (
    "flip",
    "jitter_p",
    "grayscale_p",
    "blur_p",
    "second_blur_p",
    "local_blur_p",
    "solarize_p",
    "second_solarize_p",
)
"""Probabilities of views: what no transform of the file sets is 0."""


def fields_of_views(method: str) -> set[str]:
    """Return the names of the settings that a method's views have."""
    views = next(field for field in dataclasses.fields(resolve("method", method).Config) if field.name == "views")
    assert views.default_factory is not dataclasses.MISSING
    return {field.name for field in dataclasses.fields(views.default_factory())}


class Views:
    """Collects the settings of views from a list of transforms."""

    def __init__(self, out: Translation, fields: Collection[str]) -> None:
        self.out = out
        self.fields = fields
        self.shares = dict.fromkeys(SHARES, 0.0)
        self.num = 1
        self.num_local = 0

    def translate(self) -> None:
        """Translate all transforms; what none of them does is turned off."""
        for number, item in enumerate(self.out.vissl.items(LISTED)):
            node = checked(item, (dict,), LISTED, "a list of groups")
            key, name = f"{LISTED}[{number}]", str(node.get("name"))
            translate = _TRANSFORMS.get(name)
            if translate is None:
                self.out.lacks(key, "raysl's views have no such transform", value=name)
            else:
                translate(self, key, node)
        shares = {name: value for name, value in self.shares.items() if name in self.fields}
        self.out.settings |= {f"method.views.{name}": value for name, value in shares.items()}
        if "num" in self.fields:
            self.out.settings["method.views.num"] = self.num
        if "num_local" in self.fields:
            self.out.settings["method.views.num_local"] = self.num_local

    def set(self, key: str, node: dict[str, Any], note: str = "", **values: Any) -> None:
        """Set fields of the views that a transform decides; those that the method's views lack are listed."""
        known = {name: value for name, value in values.items() if name in self.fields}
        self.shares |= {name: value for name, value in known.items() if name in self.shares}
        settings = {f"method.views.{name}": value for name, value in known.items()}
        lost = [name for name in values if name not in self.fields and values[name]]
        # fields that the views lack do not matter where others were translated, or where they are 0
        if settings or not lost:
            self.out.maps(key, settings, note, value=node.get("name"))
        else:
            self.out.lacks(key, f"the views of this method have no {', '.join(lost)}", value=node.get("name"))

    def alike(self, *names: str, share: float) -> None:
        """Give the other views of a recipe the same probability."""
        self.shares |= {name: share for name in names if name in self.fields}

    def of(self, key: str, node: dict[str, Any], name: str, default: float) -> float:
        """Return a number of a transform."""
        return float(checked(node.get(name, default), (int, float), f"{key}.{name}", "a number"))


def _copies(views: Views, key: str, node: dict[str, Any]) -> None:
    views.num = int(views.of(key, node, "num_times", 2))
    views.set(key, node, num=views.num)


def _multi_crop(views: Views, key: str, node: dict[str, Any]) -> None:
    counts = [int(count) for count in numbers(node.get("num_crops"), f"{key}.num_crops", 1)]
    sides = [int(side) for side in numbers(node.get("size_crops"), f"{key}.size_crops", len(counts))]
    listed = checked(node.get("crop_scales", [[0.08, 1.0]] * len(counts)), (list,), f"{key}.crop_scales", "a list")
    scales = [numbers(scale, f"{key}.crop_scales", 2) for scale in listed]
    if len(scales) < len(counts):
        raise ConfigError(f"{key}.crop_scales: {len(scales)} for {len(counts)} kinds of crops; give one for each")
    views.num, views.num_local = counts[0], counts[1] if len(counts) > 1 else 0
    values: dict[str, Any] = {
        "num": counts[0],
        "size": sides[0],
        "min_scale": scales[0][0],
        "interpolation": "bilinear",
    }
    notes = [] if scales[0][1] == 1 else [f"large crops end at {scales[0][1]:g} of the area in VISSL, at 1 here"]
    if len(counts) > 1:
        values |= {"num_local": counts[1], "local_size": sides[1], "local_scale": scales[1]}
    if len(counts) > 2:
        notes.append(f"only two sizes here; {sum(counts[2:])} crops of other sizes are left out")
    views.out.settings["data.image_size"] = sides[0]
    views.set(key, node, "; ".join(notes), **values)


def _crop(views: Views, key: str, node: dict[str, Any]) -> None:
    size = node.get("size", 224)
    side = int(checked(size[0] if isinstance(size, list) and size else size, (int,), f"{key}.size", "a whole number"))
    scale = numbers(node.get("scale", [0.08, 1.0]), f"{key}.scale", 2)
    views.out.settings["data.image_size"] = side
    note = "" if scale[1] == 1 else f"crops end at {scale[1]:g} of the area in VISSL, at 1 here"
    views.set(key, node, note, size=side, min_scale=scale[0], interpolation="bilinear")


def _flip(views: Views, key: str, node: dict[str, Any]) -> None:
    views.set(key, node, flip=views.of(key, node, "p", 0.5))


def _distortion(views: Views, key: str, node: dict[str, Any]) -> None:
    """VISSL reads the strength alone, whatever else the file gives."""
    strength = views.of(key, node, "strength", 1.0)
    jitter = [round(amount * strength, 10) for amount in (0.8, 0.8, 0.8, 0.2)]
    views.set(key, node, jitter=jitter, jitter_strength=1.0, jitter_p=0.8, grayscale_p=0.2)


def _jitter(views: Views, key: str, node: dict[str, Any]) -> None:
    amounts = [views.of(key, node, name, 0.0) for name in ("brightness", "contrast", "saturation", "hue")]
    views.set(key, node, jitter=amounts, jitter_strength=1.0, jitter_p=1.0)


def _gray(views: Views, key: str, node: dict[str, Any]) -> None:
    views.set(key, node, grayscale_p=views.of(key, node, "p", 0.1))


def _blur(views: Views, key: str, node: dict[str, Any]) -> None:
    sigma = [views.of(key, node, "radius_min", 0.1), views.of(key, node, "radius_max", 2.0)]
    note = "a Gaussian here, in a kernel of 23 pixels; Pillow makes its blur of boxes and does not cut it"
    share = views.of(key, node, "p", 0.5)
    # VISSL blurs all crops alike, raysl has a probability for each kind of view
    views.alike("second_blur_p", "local_blur_p", share=share)
    views.set(key, node, note, blur_p=share, blur_sigma=sigma, blur_kernel_size=23)


def _solarize(views: Views, key: str, node: dict[str, Any]) -> None:
    note = "at a fixed threshold of a half; VISSL draws it"
    share = views.of(key, node, "prob", views.of(key, node, "p", 0.66))
    views.alike("second_solarize_p", share=share)
    views.set(key, node, note, solarize_p=share)


def _by_crop(views: Views, key: str, node: dict[str, Any]) -> None:
    """`ImgPilMultiCropRandomApply`: a probability for each crop, of one blur or solarisation."""
    inner = node.get("transforms") or [{}]
    first = checked(inner[0] if isinstance(inner, list) else inner, (dict,), f"{key}.transforms", "a list of groups")
    shares = numbers(node.get("prob"), f"{key}.prob", 1)
    kind = {"ImgPilGaussianBlur": "blur_p", "ImgPilRandomSolarize": "solarize_p"}.get(str(first.get("name")))
    second = shares[1] if len(shares) > 1 else shares[0]
    if kind is None:
        views.out.lacks(key, "raysl's views have no such transform for single crops", value=node.get("name"))
    elif kind == "blur_p":
        sigma = [views.of(key, first, "radius_min", 0.1), views.of(key, first, "radius_max", 2.0)]
        local: dict[str, Any] = {"local_blur_p": shares[2]} if len(shares) > 2 else {}
        note = "small crops alike" if len(set(shares[2:])) > 1 else ""
        views.set(
            key, node, note, blur_p=shares[0], second_blur_p=second, blur_sigma=sigma, blur_kernel_size=23, **local
        )
    else:
        views.set(key, node, "at a fixed threshold of a half", solarize_p=shares[0], second_solarize_p=second)


def _normalize(views: Views, key: str, node: dict[str, Any]) -> None:
    mean, std = (numbers(node.get(name), f"{key}.{name}", 3) for name in ("mean", "std"))
    views.out.maps(key, {"data.mean": mean, "data.std": std}, value="Normalize")


def _nothing(views: Views, key: str, node: dict[str, Any]) -> None:
    views.out.drops(key, value=node.get("name"))


_TRANSFORMS = {
    "ImgReplicatePil": _copies,
    "ImgPilToMultiCrop": _multi_crop,
    "RandomResizedCrop": _crop,
    "RandomHorizontalFlip": _flip,
    "ImgPilColorDistortion": _distortion,
    "ColorJitter": _jitter,
    "RandomGrayscale": _gray,
    "ImgPilGaussianBlur": _blur,
    "ImgPilRandomSolarize": _solarize,
    "ImgPilMultiCropRandomApply": _by_crop,
    "ImgRotatePil": _nothing,
    "ToTensor": _nothing,
    "Normalize": _normalize,
}
"""What to do with a transform, by its name."""
