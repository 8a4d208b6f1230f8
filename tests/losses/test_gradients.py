import math

import pytest
import torch
from torch import Tensor

from raysl.losses import hog, hog_patches

SOBEL = ((1, 0, -1), (2, 0, -2), (1, 0, -1))


def picture(*shape: int, seed: int = 2) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def mirrored(place: int, side: int) -> int:
    return -place if place < 0 else 2 * (side - 1) - place if place >= side else place


def slow_hog(channel: list[list[float]], cell: int, num_bins: int) -> list[list[list[float]]]:
    """[num_bins][h][w] of one channel, a pixel at a time."""
    height, width = len(channel), len(channel[0])
    counts = [[[0.0] * (width // cell) for _ in range(height // cell)] for _ in range(num_bins)]
    for row in range(height):
        for column in range(width):
            gx = gy = 0.0
            for i in range(3):
                for j in range(3):
                    pixel = channel[mirrored(row + i - 1, height)][mirrored(column + j - 1, width)]
                    gx += SOBEL[i][j] * pixel
                    gy += SOBEL[j][i] * pixel
            turns = math.atan2(gx, gy) / math.pi % 1
            counts[min(int(turns * num_bins), num_bins - 1)][row // cell][column // cell] += math.hypot(gx, gy)
    for row in range(height // cell):
        for column in range(width // cell):
            length = math.sqrt(sum(counts[number][row][column] ** 2 for number in range(num_bins)))
            for number in range(num_bins):
                counts[number][row][column] /= max(length, 1e-12)
    return counts


@pytest.mark.parametrize(("cell", "num_bins"), [(4, 9), (2, 5), (8, 1)])
def test_histograms_are_those_of_a_loop_over_pixels(cell: int, num_bins: int) -> None:
    images = picture(2, 3, 16, 8)
    found = hog(images, cell, num_bins)
    assert found.shape == (2, 3, num_bins, 16 // cell, 8 // cell)
    for image in range(2):
        for channel in range(3):
            expected = torch.tensor(slow_hog(images[image, channel].tolist(), cell, num_bins), dtype=torch.float64)
            torch.testing.assert_close(found[image, channel], expected, rtol=1e-9, atol=1e-12)


def test_a_patch_has_the_histograms_of_its_cells() -> None:
    images = picture(2, 3, 16, 24)
    whole, patches = hog(images, 4, 9), hog_patches(images, 8, 4, 9)
    assert patches.shape == (2, 6, 108)
    for row in range(2):
        for column in range(3):
            cells = whole[..., 2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
            assert torch.equal(patches[:, 3 * row + column], cells.flatten(1))


def test_contrast_and_brightness_leave_histograms_as_they_are() -> None:
    images = picture(1, 3, 16, 16)
    torch.testing.assert_close(hog(0.3 * images + 5, 8), hog(images, 8), rtol=1e-9, atol=1e-12)
    assert not torch.allclose(hog(images.transpose(2, 3), 8).transpose(3, 4), hog(images, 8))


@pytest.mark.parametrize("num_bins", [1, 2, 9, 12])
@pytest.mark.parametrize("is_across", [False, True])
def test_edges_in_opposite_directions_are_in_one_bin(is_across: bool, num_bins: int) -> None:
    ramp = torch.arange(16.0).expand(1, 1, 16, 16)
    ramp = ramp if is_across else ramp.transpose(2, 3)
    assert torch.equal(hog(ramp, num_bins=num_bins), hog(-ramp, num_bins=num_bins))


def test_a_flat_cell_has_a_histogram_of_zeros_and_half_precision_gives_fp32() -> None:
    assert hog(torch.full((1, 3, 16, 16), 0.7)).abs().sum() == 0
    found = hog(picture(1, 3, 16, 16).to(torch.bfloat16))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.norm(dim=2), torch.ones(1, 3, 2, 2))


def test_cells_and_patches_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="cells of 5 pixels do not cover images of 16 x 16"):
        hog(picture(1, 3, 16, 16), 5)
    with pytest.raises(ValueError, match="patches of 4 pixels do not hold whole cells of 8"):
        hog_patches(picture(1, 3, 16, 16), 4)
