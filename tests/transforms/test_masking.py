"""Masks of patches."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.transforms.masking import BlockMask, Mask, PartMask, PrefixMask, RandomMask, UnitMask
from raysl.transforms.random import SampleRandom

NUM = 20_000


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def masks(transform: Mask, num: int = NUM, size: tuple[int, int] = (224, 224)) -> Tensor:
    """bool [num, H/P, W/P]."""
    return transform.draw(draws(num), size)


def slow_block_mask(transform: BlockMask, row: int, size: tuple[int, int]) -> np.ndarray:
    """The mask of one image, grown patch by patch."""
    random = SampleRandom(0, 0, np.array([row]), 0).at(1)
    height, width = size[0] // transform.patch_size, size[1] // transform.patch_size
    mean, spread = transform.ratios[int(random.integers(0, len(transform.ratios))[0])]
    ratio = random.uniform(mean - spread, mean + spread)[0]
    target, num_tries = int(height * width * ratio + 1e-9), 0
    mask = np.zeros((height, width), dtype=bool)
    while mask.sum() < target and num_tries < 10:
        for_area, for_aspect, for_top, for_left = random.uniforms(4)[0]
        smallest = transform.min_block or (min(height, width) // 3) ** 2
        area = smallest + for_area * (target - mask.sum() - smallest)
        aspect = math.exp(np.interp(for_aspect, [0, 1], [math.log(bound) for bound in transform.aspect]))
        tall, wide = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        num_tries += 1
        if tall >= height or wide >= width:
            continue
        top, left = int(for_top * (height - tall + 1)), int(for_left * (width - wide + 1))
        grown = mask.copy()
        grown[top : top + tall, left : left + wide] = True
        if mask.sum() < grown.sum() <= target:
            mask, num_tries = grown, 0
    return mask


@pytest.mark.parametrize("min_block", [None, 4])
def test_block_masks_equal_a_loop_that_grows_one_alone(min_block: int | None) -> None:
    transform = BlockMask(ratios=((0.0, 0.0), (0.3, 0.2), (0.6, 0.0)), min_block=min_block)
    found = masks(transform, 100, (224, 160))
    for row in range(100):
        assert np.array_equal(found[row].numpy(), slow_block_mask(transform, row, (224, 160)))


def test_half_of_the_views_have_no_mask_and_the_others_even_shares() -> None:
    share = masks(BlockMask(), NUM // 4).double().mean(dim=(1, 2))
    masked = share[share > 0]
    assert abs(len(masked) / (NUM // 4) - 0.5) < 5 * (0.25 / (NUM // 4)) ** 0.5
    assert 0.05 < masked.min() < 0.12
    assert 0.48 < masked.max() <= 0.5
    counts = torch.histc(masked, bins=4, min=0.1, max=0.5)
    assert (counts / len(masked) - 0.25).abs().max() < 0.04  # a few patches below the drawn share


@pytest.mark.thorough
def test_a_share_is_not_exceeded_and_hardly_missed() -> None:
    for ratio, reached in ((0.1, 0.93), (0.4, 0.98), (0.75, 0.98)):
        num_masked = masks(BlockMask(ratios=((ratio, 0.0),)), 2000).sum(dim=(1, 2))
        target = int(196 * ratio)
        assert num_masked.max() == target
        assert num_masked.double().mean() > reached * target


def test_single_blocks_have_aspect_ratios_even_in_the_logarithm() -> None:
    grid = 90  # so fine that rounding to patches hardly changes a ratio, with blocks of 30 x 30 patches
    transform = BlockMask(patch_size=1, ratios=((1 / 9, 0.0),))
    numbers = draws(4000).uniforms(4)
    blocks = transform._blocks(numbers, np.full(4000, 900), grid, grid)
    tall, wide = blocks.any(axis=2).sum(axis=1), blocks.any(axis=1).sum(axis=1)
    logs = np.log(tall / wide)
    bound = math.log(1 / 0.3)
    assert np.abs(logs).max() < bound + 0.05
    counts = np.histogram(logs, bins=10, range=(-bound, bound))[0]
    assert np.abs(counts / 4000 - 0.1).max() < 0.035
    assert abs(logs.mean()) < 5 * 2 * bound / (12 * 4000) ** 0.5


def test_blocks_lie_everywhere_alike() -> None:
    share = masks(BlockMask(ratios=((0.3, 0.0),)), 4000).double().mean(dim=0)
    assert (share - share.flip(0)).abs().max() < 0.06
    assert (share - share.flip(1)).abs().max() < 0.06
    assert (share - share.T).abs().max() < 0.06
    assert share.min() > 0.02  # the corners


@pytest.mark.parametrize(("ratio", "num_masked"), [(0.75, 147), (0.6, 118), (0.0, 0), (1.0, 196)])
def test_a_random_mask_has_an_exact_share(ratio: float, num_masked: int) -> None:
    assert set(masks(RandomMask(ratio=ratio), 100).sum(dim=(1, 2)).tolist()) == {num_masked}


def test_a_random_mask_takes_each_patch_and_each_pair_as_often() -> None:
    found = masks(RandomMask(patch_size=8, ratio=0.5), NUM, (32, 16)).flatten(1).double()  # [NUM, 8]
    together = found.T @ found / NUM
    pairs = torch.where(torch.eye(8).bool(), 0.5, 0.5 * 3 / 7)
    assert (together - pairs).abs().max() < 5 * 0.5 / NUM**0.5


def test_a_part_of_the_masked_patches_is_predicted_each_as_often() -> None:
    random = SampleRandom(0, 0, np.arange(NUM), 0).at(1)
    extras = PartMask(patch_size=8, ratio=0.5, predicted=0.25).extras(random, (32, 16))
    mask, predicted = extras["mask"], extras["predicted"]
    assert torch.equal(mask, masks(RandomMask(patch_size=8, ratio=0.5), NUM, (32, 16)))
    assert not (predicted & ~mask).any()
    assert set(predicted.sum(dim=(1, 2)).tolist()) == {2}
    assert (predicted.double().mean(dim=0) - 0.25).abs().max() < 5 * 0.5 / NUM**0.5


def test_a_prefix_mask_hides_what_follows_a_prefix_of_any_length_as_often() -> None:
    found = masks(PrefixMask(patch_size=8), NUM, (32, 16)).flatten(1)  # [NUM, 8]
    lengths = (~found).sum(dim=1)
    assert torch.equal(found, torch.arange(8) >= lengths[:, None])
    shares = torch.bincount(lengths, minlength=9).double() / NUM
    assert shares[[0, 8]].tolist() == [0, 0]
    assert (shares[1:8] - 1 / 7).abs().max() < 5 * (6 / 49 / NUM) ** 0.5


def test_a_unit_mask_takes_whole_squares_of_patches_each_as_often() -> None:
    found = masks(UnitMask(patch_size=8, unit_size=16, ratio=0.55), NUM, (64, 32))  # 2 x 4 squares, of which 5
    squares = found.view(NUM, 4, 2, 2, 2).transpose(2, 3)  # [NUM, 4, 2, patches down, across]
    assert torch.equal(squares.any(dim=4).any(dim=3), squares.all(dim=4).all(dim=3))
    assert set(found.sum(dim=(1, 2)).tolist()) == {5 * 4}
    assert (found.double().mean(dim=0) - 5 / 8).abs().max() < 5 * 0.5 / NUM**0.5


def test_simmims_mask_hides_30_of_49_squares_as_the_authors_code_does() -> None:
    assert set(masks(UnitMask(), 20).sum(dim=(1, 2)).tolist()) == {30 * 4}


@pytest.mark.parametrize(
    "transform", [BlockMask(ratios=((0.3, 0.2),)), RandomMask(), PartMask(), PrefixMask(), UnitMask()]
)
def test_a_mask_does_not_depend_on_its_batch(transform) -> None:
    together = masks(transform, 30)
    assert not torch.equal(together[0], together[1])
    for row in range(30):
        own = transform.draw(SampleRandom(0, 0, np.array([row]), 0).at(1), (224, 224))
        assert torch.equal(own[0], together[row])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: BlockMask(ratios=()), r"ratios=\(\) is empty"),
        (lambda: BlockMask(ratios=((0.3, 0.4),)), "0.4"),
        (lambda: BlockMask(aspect=(0.0, 1.0)), "aspect"),
        (lambda: RandomMask(ratio=75), "ratio=75"),
        (lambda: UnitMask(ratio=75), "ratio=75"),
        (lambda: UnitMask(unit_size=24), "unit_size=24 is not a multiple of patch_size=16"),
        (lambda: PartMask(ratio=0.5, predicted=0.6), r"predicted=0.6 is outside \[0, ratio=0.5\]"),
        (lambda: masks(PrefixMask(), 1, (16, 16)), "images of 16x16 pixels are one patch of 16"),
        (lambda: masks(RandomMask(), 1, (224, 100)), "does not divide images of 224x100"),
        (lambda: masks(BlockMask(patch_size=15), 1), "patch_size=15"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
