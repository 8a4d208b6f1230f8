"""What transforms and crops draw, and that they apply it."""

import colorsys
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torchvision.transforms as vision
import torchvision.transforms.functional as F
from torch import Tensor

from raysl.transforms import (
    Affine,
    CenterCrop,
    ColorJitter,
    GaussianBlur,
    Grayscale,
    HorizontalFlip,
    RandomResizedCrop,
    SampleRandom,
    Solarize,
    VerticalFlip,
)

NUM = 4000


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def test_color_jitter_draws_torchvision_ranges() -> None:
    params = ColorJitter(p=0.8, brightness=0.4, contrast=(0.5, 2.0), saturation=1.5, hue=0.1).draw(draws(), (32, 32))
    for name, low, high in [
        ("brightness", 0.6, 1.4),
        ("contrast", 0.5, 2.0),
        ("saturation", 0, 2.5),
        ("hue", -0.1, 0.1),
    ]:
        values = params[name]
        assert low <= values.min() < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < values.max() < high
        assert abs(values.mean() - (low + high) / 2) < 0.03 * (high - low)
    assert abs(params["mask"].double().mean() - 0.8) < 0.03
    assert torch.equal(params["order"].sort(dim=1).values, torch.arange(4).expand(NUM, 4))


def jittered(
    images: Tensor, params: dict[str, Tensor], operations: Sequence[Callable[[Tensor, float], Tensor]]
) -> Tensor:
    """Each of 9 images by itself, one operation after another."""
    factors = [params[name] for name in ("brightness", "contrast", "saturation", "hue")]
    expected = images.clone()
    for row in range(9):
        for number in params["order"][row].tolist() if params["mask"][row] else []:
            expected[row] = operations[number](expected[row], factors[number][row].item())
    assert 0 < params["mask"].sum() < 9
    return expected


def test_color_jitter_applies_each_images_own_order(images: Tensor) -> None:
    params = ColorJitter(p=0.7).draw(draws(9), (36, 44))
    operations = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]
    expected = jittered(images, params, operations)
    assert len(params["order"].unique(dim=0)) > 4
    assert (ColorJitter(p=0.7).apply(images, params) - expected).abs().max() < 1e-5


def tensorflow_brightness(image: Tensor, factor: float) -> Tensor:
    return (image + factor - 1).clamp(0, 1)


def tensorflow_contrast(image: Tensor, factor: float) -> Tensor:
    return torch.stack([plane.mean() + factor * (plane - plane.mean()) for plane in image]).clamp(0, 1)


def tensorflow_saturation(image: Tensor, factor: float) -> Tensor:
    """Python's own HSV, pixel by pixel."""
    changed = image.clone()
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column].tolist())
            changed[:, row, column] = torch.tensor(colorsys.hsv_to_rgb(hue, min(1.0, saturation * factor), value))
    return changed


@pytest.mark.thorough
def test_jitter_by_tensorflows_arithmetic_is_its_definition_pixel_by_pixel(images: Tensor) -> None:
    jitter = ColorJitter(p=0.7, brightness=0.4, contrast=0.4, saturation=0.9, hue=0.1, arithmetic="tensorflow")
    params = jitter.draw(draws(9), (36, 44))
    operations = [tensorflow_brightness, tensorflow_contrast, tensorflow_saturation, F.adjust_hue]
    expected = jittered(images, params, operations)
    assert (jitter.apply(images, params) - expected).abs().max() < 1e-5
    torchvision = ColorJitter(p=0.7, brightness=0.4, contrast=0.4, saturation=0.9, hue=0.1)
    assert (torchvision.apply(images, params) - expected).abs().max() > 0.1


def test_color_jitter_leaves_out_what_does_nothing() -> None:
    full, partial = ColorJitter().draw(draws(), (32, 32)), ColorJitter(contrast=0.0, hue=0.0).draw(draws(), (32, 32))
    assert set(full) - set(partial) == {"contrast", "hue"}
    assert torch.equal(full["saturation"], partial["saturation"])


@pytest.mark.parametrize(
    ("transform", "apply"),
    [
        (HorizontalFlip(p=0.5), lambda image, params: F.hflip(image) if params["mask"] else image),
        (VerticalFlip(p=0.5), lambda image, params: F.vflip(image) if params["mask"] else image),
        (Grayscale(p=0.5), lambda image, params: F.rgb_to_grayscale(image, 3) if params["mask"] else image),
        (
            GaussianBlur(p=0.5),
            lambda image, params: (
                F.gaussian_blur(image, [3, 3], [params["sigma"].item()] * 2) if params["sigma"] else image
            ),
        ),
        (
            Solarize(p=0.5, threshold=0.3),
            lambda image, params: F.solarize(image, 0.3) if params["threshold"] <= 1 else image,
        ),
        (
            Affine(p=0.5, degrees=30, translate=(0.1, 0.2), scale=(0.8, 1.2), shear=(-10, 10, -5, 5)),
            lambda image, params: (
                F.affine(
                    image,
                    params["angle"].item(),
                    params["translate"].tolist(),
                    params["scale"].item(),
                    params["shear"].tolist(),
                    interpolation=F.InterpolationMode.BILINEAR,
                )
                if params["mask"]
                else image
            ),
        ),
    ],
)
def test_half_of_the_images_change_as_torchvision_changes_them(images: Tensor, transform, apply) -> None:
    params = transform.draw(draws(9), (36, 44))
    rows = [{name: values[row] for name, values in params.items()} for row in range(9)]
    expected = torch.stack([apply(image, row) for image, row in zip(images, rows, strict=True)])
    changed = (expected != images).flatten(1).any(1)
    assert 1 <= changed.sum() <= 8
    assert (transform.apply(images, params) - expected).abs().max() < 2e-5


def test_affine_draws_whole_pixels_inside_its_ranges() -> None:
    params = Affine(degrees=20, translate=(0.25, 0.125), scale=(0.9, 1.3), shear=7).draw(draws(), (40, 80))
    assert params["angle"].abs().max() < 20
    assert params["translate"].abs().amax(0).tolist() == [20, 5]
    assert torch.equal(params["translate"], params["translate"].round())
    assert 0.9 <= params["scale"].min() < params["scale"].max() < 1.3
    assert 6.9 < params["shear"][:, 0].abs().max() < 7
    assert not params["shear"][:, 1].any()


def test_blur_draws_its_range_and_no_width_for_the_others() -> None:
    sigma = GaussianBlur(p=0.3, sigma=(0.5, 1.5)).draw(draws(), (32, 32))["sigma"]
    chosen = sigma[sigma > 0]
    assert abs(len(chosen) / NUM - 0.3) < 0.04
    assert 0.5 <= chosen.min() < chosen.max() < 1.5
    assert abs(chosen.mean() - 1.0) < 0.03


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HorizontalFlip(p=1.5), "p=1.5"),
        (lambda: ColorJitter(hue=0.7), "hue=0.7"),
        (lambda: ColorJitter(contrast=(1.0, 0.5)), "contrast"),
        (lambda: GaussianBlur(sigma=(0.0, 1.0)), "sigma"),
        (lambda: GaussianBlur(kernel_size=4), "try 5"),
        (lambda: Solarize(threshold=128), "128 of 255 is 0.5"),
        (lambda: Affine(scale=(0.0, 1.0)), "scale"),
        (lambda: Affine(translate=(0.0, 2.0)), "translate"),
        (lambda: RandomResizedCrop(size=32, scale=(0.5, 1.5)), "scale"),
        (lambda: RandomResizedCrop(size=0), "size=0"),
        (lambda: CenterCrop(size=224, resize=200), "resize=200"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.thorough
@pytest.mark.parametrize("shape", [(32, 32), (100, 150), (300, 60), (60, 300)])
def test_random_resized_crop_has_torchvisions_distribution(shape: tuple[int, int]) -> None:
    height, width = shape
    crop = RandomResizedCrop(size=32, scale=(0.2, 1.0))
    params = crop.draw(draws(), np.full(NUM, height), np.full(NUM, width))
    ours = np.stack([params[name] for name in ("top", "left", "height", "width")], axis=1)
    assert (ours[:, :2] >= 0).all()
    assert (ours[:, :2] + ours[:, 2:] <= shape).all()

    torch.manual_seed(0)
    image = torch.empty(1, height, width)
    theirs = [vision.RandomResizedCrop.get_params(image, [0.2, 1.0], [3 / 4, 4 / 3]) for _ in range(2000)]
    for statistic in (np.mean, np.std):
        for value in (area, log_ratio, centre):
            difference = statistic(value(ours, shape)) - statistic(value(np.array(theirs), shape))
            assert abs(difference) < 0.025, (statistic.__name__, value.__name__)


def area(boxes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return boxes[:, 2] * boxes[:, 3] / (shape[0] * shape[1])


def log_ratio(boxes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return np.log(boxes[:, 3] / boxes[:, 2])


def centre(boxes: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
    return (boxes[:, :2] + boxes[:, 2:] / 2) / shape


def test_random_resized_crop_falls_back_to_the_largest_central_box() -> None:
    crop = RandomResizedCrop(size=32, scale=(1.0, 1.0))
    params = crop.draw(draws(3), np.array([10, 400, 30]), np.array([400, 10, 30]))
    assert params["height"][:2].tolist() == [10, 13]
    assert params["width"][:2].tolist() == [13, 10]
    assert params["top"][:2].tolist() == [0, (400 - 13) // 2]
    assert params["left"][:2].tolist() == [(400 - 13) // 2, 0]


@pytest.mark.parametrize("shape", [(100, 150), (151, 90), (40, 40), (427, 640)])
def test_center_crop_equals_torchvision(photos: list[Tensor], shape: tuple[int, int]) -> None:
    image = photos[1][:, : shape[0], : shape[1]]
    expected = vision.Compose([vision.Resize(73), vision.CenterCrop(64)])(image)
    ours = CenterCrop(size=64, resize=73).apply(image, {})
    assert (ours.int() - expected.int()).abs().max() <= 1  # torchvision's first version resizes in float


def test_an_image_of_the_right_size_is_not_copied(cuts) -> None:
    image = cuts(1, 32, 32)[0]
    whole = {"top": 0, "left": 0, "height": 32, "width": 32}
    assert RandomResizedCrop(size=32).apply(image, whole).data_ptr() == image.data_ptr()
    assert CenterCrop(size=32, resize=32).apply(image, {}).data_ptr() == image.data_ptr()
