import math

import numpy as np
import pytest
import torch

from raysl.benchmarks.instance_retrieval.pooling import Region, gem, region_maxima, rmac_regions


def paper_regions(height: int, width: int, levels: int) -> list[tuple[int, int, int]]:
    """The authors' rule, written with fractions of places as they have it."""
    steps = [2, 3, 4, 5, 6, 7]
    short = min(height, width)
    shifts = [(max(height, width) - short) / (step - 1) for step in steps]
    overlaps = [abs((short * short - short * shift) / (short * short) - 0.4) for shift in shifts]
    best = overlaps.index(min(overlaps))
    more_wide = best + 1 if width > height else 0
    more_high = best + 1 if height > width else 0
    found = []
    for level in range(1, levels + 1):
        side = math.floor(2 * short / (level + 1))
        half = math.floor(side / 2 - 1)
        tops, lefts = [], []
        for starts, length, more in ((tops, height, more_high), (lefts, width, more_wide)):
            step = 0.0 if level + more == 1 else (length - side) / (level + more - 1)
            starts += [math.floor(half + place * step + 1e-9) - half for place in range(level + more)]
        found += [(top, left, side) for top in tops for left in lefts]
    return found


@pytest.mark.parametrize(("height", "width"), [(7, 7), (24, 32), (32, 24), (10, 64), (17, 18), (5, 31), (3, 4)])
@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_regions_are_those_of_the_paper(height: int, width: int, levels: int) -> None:
    regions = rmac_regions(height, width, levels)
    assert regions == [Region(*box) for box in paper_regions(height, width, levels)]
    assert all(0 <= top <= height - side and 0 <= left <= width - side for top, left, side in regions)


def test_a_square_map_of_seven_has_fourteen_regions() -> None:
    regions = rmac_regions(7, 7)
    assert len(regions) == 1 + 4 + 9
    assert regions[0] == (0, 0, 7)
    assert regions[1:5] == [(0, 0, 4), (0, 3, 4), (3, 0, 4), (3, 3, 4)]
    assert regions[5] == (0, 0, 3)
    assert regions[-1] == (4, 4, 3)


def test_a_map_of_four_to_three_has_two_overlapping_squares_at_first() -> None:
    assert rmac_regions(24, 32, levels=1) == [(0, 0, 24), (0, 8, 24)]


@pytest.mark.parametrize("size", [(1, 1), (1, 5), (2, 2)])
def test_a_map_of_a_place_or_two_has_no_regions_smaller_than_a_place(size: tuple[int, int]) -> None:
    regions = rmac_regions(*size, levels=6)
    assert regions
    assert min(region.side for region in regions) == 1


def test_maxima_are_those_of_each_region() -> None:
    maps = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
    regions = rmac_regions(6, 9)
    found = region_maxima(maps, regions)
    assert found.shape == (len(regions), 4)
    for row, (top, left, side) in zip(found, regions, strict=True):
        slow = [maps[channel, top : top + side, left : left + side].max().item() for channel in range(4)]
        assert row.tolist() == slow


def test_gem_is_the_formula() -> None:
    maps = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    slow = (np.maximum(maps.double().numpy(), 1e-6) ** 3).mean(axis=(1, 2)) ** (1 / 3)
    assert gem(maps, 3).numpy() == pytest.approx(slow, rel=1e-6)


def test_gem_lies_between_the_mean_and_the_maximum_and_does_not_overflow() -> None:
    maps = torch.rand(3, 4, 5, generator=torch.Generator().manual_seed(0)) * 1e30
    assert torch.allclose(gem(maps, 1), maps.mean(dim=(1, 2)))
    assert torch.allclose(gem(maps, 900), maps.amax(dim=(1, 2)), rtol=1e-2)
    assert (gem(maps, 4) > maps.mean(dim=(1, 2))).all()
