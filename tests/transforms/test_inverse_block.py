"""The mask of CAPI."""

import math

import numpy as np
import pytest
import torch
from lightly.models.utils import random_inverse_block_mask as lightly_mask

from raysl.transforms.inverse_block import CyclicMask, InverseBlockMask
from raysl.transforms.random import SampleRandom

NUM = 20_000
SIZES = [(64, 64), (96, 48), (32, 160)]


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def slow_seen(mask: InverseBlockMask, row: int, size: tuple[int, int]) -> np.ndarray:
    """What one image shows, found patch by patch."""
    random = SampleRandom(0, 0, np.array([row]), 0).at(1)
    height, width = size[0] // mask.patch_size, size[1] // mask.patch_size
    return slow_block(mask, height * width - int(height * width * mask.ratio), random, height, width)


def slow_block(
    mask: InverseBlockMask | CyclicMask, num: int, random: SampleRandom, height: int, width: int
) -> np.ndarray:
    """A block of `num` patches, moved round the image."""
    low, high = (min(max(bound, num / width**2), height**2 / num) for bound in mask.aspect)
    aspect = math.exp(np.interp(random.uniform()[0], [0, 1], [math.log(low), math.log(high)]))
    tall, wide = math.ceil(math.sqrt(num * aspect) - 1e-9), math.ceil(math.sqrt(num / aspect) - 1e-9)
    top, left = int(random.integers(0, height - tall + 1)[0]), int(random.integers(0, width - wide + 1)[0])
    block = [(y, x) for y in range(top, top + tall) for x in range(left, left + wide)][:num]
    is_rolled = isinstance(mask, CyclicMask) or mask.is_rolled
    down, across = (int(random.integers(0, side)[0]) if is_rolled else 0 for side in (height, width))
    seen = np.zeros((height, width), dtype=bool)
    for y, x in block:
        seen[(y + down) % height, (x + across) % width] = True
    return seen


@pytest.mark.parametrize("is_rolled", [True, False])
@pytest.mark.parametrize("size", SIZES)
def test_masks_equal_a_loop_over_patches_of_one_image(size: tuple[int, int], is_rolled: bool) -> None:
    mask = InverseBlockMask(patch_size=8, is_rolled=is_rolled)
    hidden = mask.draw(draws(60), size).numpy()
    for row in range(60):
        assert np.array_equal(~hidden[row], slow_seen(mask, row, size))


@pytest.mark.parametrize("size", SIZES)
def test_cyclic_masks_equal_a_loop_with_a_share_for_each_image(size: tuple[int, int]) -> None:
    mask = CyclicMask(patch_size=8, ratios=((0.0, 0.0), (0.375, 0.275)))
    height, width = size[0] // 8, size[1] // 8
    hidden = mask.draw(draws(60), size).numpy()
    for row in range(60):
        random = SampleRandom(0, 0, np.array([row]), 0).at(1)
        mean, spread = mask.ratios[int(random.integers(0, 2)[0])]
        share = mean + spread * float(random.uniform(-1.0, 1.0)[0])
        seen = slow_block(mask, height * width - int(height * width * share + 1e-9), random, height, width)
        assert np.array_equal(~hidden[row], seen)
    shares = mask.draw(draws(), size).double().mean(dim=(1, 2))
    masked = shares[shares > 0]
    assert abs(len(masked) / NUM - 0.5) < 5 * 0.5 / NUM**0.5
    assert masked.min() > 0.1 - 1 / (height * width)
    assert shares.max() <= 0.65
    assert int(shares.max() * height * width) <= mask.most_masked(height * width)


def test_a_cyclic_mask_takes_each_patch_as_often_and_shows_one_patch_at_least() -> None:
    places = CyclicMask(patch_size=8, ratios=((0.5, 0.0),)).draw(draws(), (32, 16)).double().mean(dim=0)
    assert (places - 0.5).abs().max() < 5 * 0.5 / NUM**0.5
    assert set(CyclicMask(patch_size=8, ratios=((1.0, 0.0),)).draw(draws(9), (32, 16)).sum(dim=(1, 2)).tolist()) == {7}


@pytest.mark.parametrize("ratio", [0.0, 0.3, 0.65, 0.97])
@pytest.mark.parametrize("size", SIZES)
def test_each_image_has_the_same_number_of_masked_and_of_predicted_patches(size: tuple[int, int], ratio: float) -> None:
    mask = InverseBlockMask(patch_size=8, ratio=ratio, predicted=0.3)
    num = size[0] // 8 * size[1] // 8
    extras = mask.extras(draws(300), size)
    assert set(extras["mask"].sum(dim=(1, 2)).tolist()) == {int(num * ratio)} == {mask.num_masked(num)}
    assert set(extras["predicted"].sum(dim=(1, 2)).tolist()) == {int(int(num * ratio) * 0.3)}
    assert not (extras["predicted"] & ~extras["mask"]).any()


def test_a_rolled_mask_takes_each_patch_as_often_and_predicts_it_as_often() -> None:
    extras = InverseBlockMask(patch_size=8, ratio=0.5, predicted=0.25).extras(draws(), (32, 16))  # 8 patches
    for name, share in (("mask", 0.5), ("predicted", 0.125)):
        assert (extras[name].double().mean(dim=0) - share).abs().max() < 5 * 0.5 / NUM**0.5
    still = InverseBlockMask(patch_size=8, ratio=0.5, is_rolled=False).draw(draws(), (64, 64)).double().mean(dim=0)
    assert still[0, 0] > 0.8  # a corner is seldom inside
    assert still[3, 3] < 0.3


@pytest.mark.thorough
def test_masks_are_those_of_lightly_in_distribution() -> None:
    torch.manual_seed(0)
    ours = ~InverseBlockMask(patch_size=8, is_rolled=False).draw(draws(), (64, 64))
    keep, _ = lightly_mask((NUM, 64), mask_ratio=0.65, num_prefix_tokens=0, roll=False)
    theirs = torch.zeros(NUM, 64, dtype=torch.bool).scatter_(1, keep, True).view(NUM, 8, 8)
    assert (ours.double().mean(dim=0) - theirs.double().mean(dim=0)).abs().max() < 5 * 0.7 / NUM**0.5
    for dim in (1, 2):  # the heights, and the widths, of blocks
        mine, other = (torch.bincount(seen.any(dim=dim).sum(dim=1), minlength=9) / NUM for seen in (ours, theirs))
        assert (mine - other).abs().max() < 5 * 0.7 / NUM**0.5


def test_a_mask_does_not_depend_on_its_batch() -> None:
    together = InverseBlockMask().extras(draws(30), (224, 224))
    assert not torch.equal(together["mask"][0], together["mask"][1])
    for row in range(30):
        own = InverseBlockMask().extras(SampleRandom(0, 0, np.array([row]), 0).at(1), (224, 224))
        assert all(torch.equal(own[name][0], together[name][row]) for name in own)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"ratio": 1.0}, r"ratio=1.0 is out of range; give a number in \[0, 1\)"),
        ({"predicted": 1.5}, r"predicted=1.5 is out of range; give a number in \[0, 1\]"),
        ({"aspect": (2.0, 0.5)}, r"aspect=\(2.0, 0.5\) holds no number: 2 is above 0.5; write \[0.5, 2\]"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        InverseBlockMask(**settings)
