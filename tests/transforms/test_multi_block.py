"""The blocks of I-JEPA."""

import numpy as np
import pytest
import torch
from torch import Tensor

from raysl.transforms.multi_block import MultiBlockMask
from raysl.transforms.random import SampleRandom

NUM = 3000


def drawn(mask: MultiBlockMask, num: int = NUM, size: tuple[int, int] = (224, 224)) -> dict[str, Tensor]:
    return mask.extras(SampleRandom(0, 0, np.arange(num), 0).at(1), size)


def sides(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Heights and widths of blocks [..., h, w]."""
    return blocks.any(dim=-1).sum(dim=-1), blocks.any(dim=-2).sum(dim=-1)


def test_blocks_are_rectangles_within_their_ranges() -> None:
    targets = drawn(MultiBlockMask())["targets"]  # [NUM, 4, 14, 14]
    tall, wide = sides(targets)
    assert torch.equal(tall * wide, targets.sum(dim=(2, 3)))
    exact = {
        (round((196 * share * ratio) ** 0.5), round((196 * share / ratio) ** 0.5))
        for share in np.linspace(0.15, 0.2, 101)
        for ratio in np.linspace(0.75, 1.5, 101)
    }
    found = set(zip(tall.flatten().tolist(), wide.flatten().tolist(), strict=True))
    assert found <= exact
    assert len(found) > 8  # not one size a batch
    assert len(set(zip(tall[0].tolist(), wide[0].tolist(), strict=True))) > 1  # nor one an image


def test_targets_lie_everywhere_also_at_the_border() -> None:
    share = drawn(MultiBlockMask())["targets"].double().mean(dim=(0, 1))
    assert (share - share.flip(0)).abs().max() < 0.04
    assert (share - share.flip(1)).abs().max() < 0.04
    assert share[0, 0] > 0.005
    assert share.mean().item() == pytest.approx(0.175, abs=0.005)


@pytest.mark.thorough
def test_a_context_is_cut_to_its_first_patches() -> None:
    mask = MultiBlockMask(max_context=52)
    whole, cut = (~drawn(each)["mask"].flatten(1) for each in (MultiBlockMask(), mask))
    for row, kept in zip(whole, cut, strict=True):
        assert torch.equal(kept.nonzero(), row.nonzero()[:52])
    assert whole.sum(dim=1).double().mean() > 80
    assert mask.most((224, 224))[0] == 52
    assert mask.most((96, 96))[0] < 52
    with pytest.raises(ValueError, match="max_context=9 must be at least 1 and min_context=10"):
        MultiBlockMask(max_context=9)


@pytest.mark.thorough
def test_a_context_is_a_square_less_the_targets() -> None:
    mask = MultiBlockMask()
    found = drawn(mask)
    context, targets = ~found["mask"], found["targets"]
    assert not (context & targets.any(dim=1)).any()
    number = 0
    for seen, gone in zip(context, targets.any(dim=1), strict=True):
        rows, columns = seen.any(dim=1).nonzero(), seen.any(dim=0).nonzero()
        box = torch.zeros(14, 14, dtype=torch.bool)
        box[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1] = True
        assert torch.equal(seen, box & ~gone)
        number += int(box.sum() >= 0.85 * 196 - 1)
    assert number > 0.5 * NUM  # others have a side that targets cover whole
    assert context.sum(dim=(1, 2)).min() >= mask.min_context


def test_contexts_that_are_too_small_are_drawn_anew_for_their_image_alone() -> None:
    strict, loose = MultiBlockMask(min_context=80), MultiBlockMask(min_context=1)
    first, second = drawn(strict, 300), drawn(loose, 300)
    num_loose = (~second["mask"]).sum(dim=(1, 2))
    kept = num_loose >= 80
    assert 0 < kept.sum() < 300
    assert torch.equal(first["targets"][kept], second["targets"][kept])
    assert ((~first["mask"]).sum(dim=(1, 2)) > num_loose)[~kept].all()


@pytest.mark.parametrize(
    ("patch_size", "size", "fields"),
    [
        (16, (224, 224), {}),
        (14, (224, 224), {}),
        (4, (32, 16), {}),
        (4, (16, 16), {"target_scale": (0.01, 0.9), "target_aspect": (0.2, 4.0), "context_scale": (0.1, 0.3)}),
    ],
)
def test_no_image_exceeds_the_most(patch_size: int, size: tuple[int, int], fields: dict) -> None:
    mask = MultiBlockMask(patch_size=patch_size, **fields)
    found = drawn(mask, size=size)
    context, target = mask.most(size)
    assert (~found["mask"]).sum(dim=(1, 2)).max() <= context
    assert found["targets"].sum(dim=(2, 3)).max() <= target
    assert target <= 1.4 * found["targets"].sum(dim=(2, 3)).max()


def test_a_mask_does_not_depend_on_its_batch() -> None:
    mask = MultiBlockMask(min_context=80)
    together = drawn(mask, 30)
    for row in range(30):
        own = mask.extras(SampleRandom(0, 0, np.array([row]), 0).at(1), (224, 224))
        assert all(torch.equal(own[name][0], together[name][row]) for name in ("mask", "targets"))
    assert torch.equal(mask.draw(SampleRandom(0, 0, np.arange(30), 0).at(1), (224, 224)), together["mask"])


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_targets": 0}, "num_targets=0"),
        ({"target_scale": (0.0, 0.2)}, "target_scale"),
        ({"context_scale": (0.5, 1.2)}, "context_scale"),
        ({"target_aspect": (1.5, 0.75)}, "target_aspect"),
    ],
)
def test_settings_out_of_range_are_refused(fields: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MultiBlockMask(**fields)
