"""What networks see of images: each kind of channels beside its definition."""

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.config.load import load_config
from raysl.data.stream.loader import LocalBatches
from raysl.errors import ConfigError
from raysl.train.prepare import prepare
from raysl.train.state import TrainState
from raysl.transforms import network_input, normalize
from raysl.transforms.channels import to_pixels

MEAN, STD = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
SHORT = ("data.limit=64", "train.batch_size=32", "train.device=cpu", "data.lanes=4")


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def scaled(values: Tensor) -> Tensor:
    """One channel [B, H, W] three times, each with its own mean and deviation."""
    return torch.stack([(values - mean) / std for mean, std in zip(MEAN, STD, strict=True)], dim=1)


@pytest.mark.parametrize("is_float", [False, True])
def test_each_kind_of_channels_is_what_its_definition_says(is_float: bool) -> None:
    images = pixels(2, 3, 4, 5)
    floats = images.float() / 255
    given = floats if is_float else images
    assert torch.equal(network_input(given, MEAN, STD), normalize(given, MEAN, STD))
    bgr = network_input(given, MEAN, STD, "bgr")
    torch.testing.assert_close(bgr[:, 0], (floats[:, 2] - 0.6) / 0.3)
    torch.testing.assert_close(bgr[:, 2], (floats[:, 0] - 0.4) / 0.1)
    gray = 0.299 * floats[:, 0] + 0.587 * floats[:, 1] + 0.114 * floats[:, 2]
    torch.testing.assert_close(network_input(given, MEAN, STD, "gray"), scaled(gray), rtol=1e-3, atol=2e-3)


def test_lightness_is_that_of_cie_lab() -> None:
    colors = torch.tensor([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]], dtype=torch.uint8)
    found = network_input(colors[:, :, None, None], (0, 0, 0), (1, 1, 1), "lab_l")[..., 0, 0]  # [4, 3]
    expected = torch.tensor([0.5324, 0.8773, 0.3230, 1.0])  # published for sRGB and D65
    torch.testing.assert_close(found, expected[:, None].expand(4, 3), rtol=0, atol=1e-4)


def test_lightness_of_grey_levels_is_the_cube_root_of_their_light() -> None:
    levels = torch.tensor([0, 30, 119, 255], dtype=torch.uint8)
    images = levels[:, None, None, None].expand(4, 3, 1, 1).contiguous()
    light = [((level / 255 + 0.055) / 1.055) ** 2.4 if level > 10 else level / 255 / 12.92 for level in levels.tolist()]
    expected = torch.tensor([(116 * value ** (1 / 3) - 16) / 100 if value > 0.009 else 0.0 for value in light])
    found = network_input(images, (0, 0, 0), (1, 1, 1), "lab_l")
    torch.testing.assert_close(found, expected[:, None, None, None].expand(4, 3, 1, 1).float(), rtol=0, atol=1e-4)


@pytest.mark.parametrize("channels", ["bgr", "gray", "lab_l"])
def test_views_of_several_axes_go_through_at_once(channels: str) -> None:
    images = pixels(2, 3, 3, 4, 4)
    found = network_input(images, MEAN, STD, channels)
    assert found.shape == images.shape
    for view in range(3):
        assert torch.equal(found[:, view], network_input(images[:, view].contiguous(), MEAN, STD, channels))


@pytest.mark.thorough
@pytest.mark.parametrize("channels", ["bgr", "gray", "lab_l"])
def test_training_and_plain_images_have_the_runs_channels(channels: str) -> None:
    words = ["data=photos", "data.image_size=32", *SHORT]
    plain, other = (
        prepare(load_config("quickstart", [*words, *more])) for more in ((), (f"data.channels={channels}",))
    )
    for name in ("from_step", "plain"):
        rgb, seen = (
            next(LocalBatches(run.loader).from_step(0) if name == "from_step" else LocalBatches(run.loader).plain())
            for run in (plain, other)
        )
        group = next(iter(rgb.views))
        mean, std = plain.config.data.mean, plain.config.data.std
        images = rgb.views[group] * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        expected = network_input(images.clamp(0, 1), mean, std, channels)
        assert not np.allclose(seen.views[group], rgb.views[group], atol=0.1)
        torch.testing.assert_close(seen.views[group], expected, rtol=0, atol=0.02)


@pytest.mark.thorough
def test_colorization_takes_no_other_channels_and_shows_alexnet_the_lightness() -> None:
    with pytest.raises(ConfigError, match=r"data.channels is gray, and colorization .* leave data.channels out"):
        prepare(load_config("digits/colorization", ["data.channels=gray"]))
    words = ["backbone=alexnet", "backbone.variant=colorization", "backbone.output=mean", "data.image_size=96", *SHORT]
    run = prepare(load_config("digits/colorization", words))
    state = TrainState.create(run.setup, classes=run.classes)
    seen: list[Tensor] = []
    state.method.backbone.conv1.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    batch = next(LocalBatches(run.loader).from_step(0))
    state.method(batch, run.setup.plan.step(0)).loss.backward()
    data = run.config.data
    images = batch.views["global"].flatten(0, 1)
    rgb = images * torch.tensor(data.std)[:, None, None] + torch.tensor(data.mean)[:, None, None]
    expected = network_input(rgb.clamp(0, 1), data.mean, data.std, "lab_l")[:, :1]
    torch.testing.assert_close(seen[0], expected, rtol=0, atol=0.02)


@pytest.mark.parametrize("channels", ["rgb", "bgr"])
def test_pixels_come_back_from_what_the_network_gets(channels: Literal["rgb", "bgr"]) -> None:
    images = pixels(2, 3, 4, 5)
    normal = network_input(images, MEAN, STD, channels)
    assert torch.equal(to_pixels(normal, MEAN, STD, channels), images)
    normal[0, :, 1, 2] = torch.nan
    expected = images.clone()
    expected[0, :, 1, 2] = 128
    assert torch.equal(to_pixels(normal, MEAN, STD, channels), expected)


def test_grey_and_many_channels_are_shown_as_three() -> None:
    images = pixels(2, 3, 4, 5)
    grey = to_pixels(network_input(images, MEAN, STD, "gray"), MEAN, STD, "gray")
    assert torch.equal(grey[:, 0], grey[:, 2])
    many = pixels(2, 5, 4, 5)
    numbers = (0.5,) * 5
    assert torch.equal(to_pixels(network_input(many, numbers, numbers, 5), numbers, numbers, 5), many[:, :3])
