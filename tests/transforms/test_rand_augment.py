"""RandAugment and AutoAugment against torchvision's, image by image."""

import numpy as np
import pytest
import torch
import torchvision.transforms.v2 as vision
from torch import Tensor

from raysl.transforms import functional
from raysl.transforms.augment_ops import OPS, apply_ops, operation_values
from raysl.transforms.auto_augment import POLICIES, AutoAugment, policy_table
from raysl.transforms.rand_augment import NUM_OPS, RandAugment
from raysl.transforms.random import SampleRandom

NUM = 20_000
THEIR_NAMES = {name.lower(): name for name in vision.AutoAugment._AUGMENTATION_SPACE} | {"identity": "Identity"}
ON_LEVELS = ("posterize", "equalize")
TOLERANCE = 2e-5  # that of resampling, the largest of all


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def their_name(op: str) -> str:
    return THEIR_NAMES[op.replace("_", "")]


def theirs(image: Tensor, op: str, value: float) -> Tensor:
    """What torchvision does to one image at a magnitude; on the uint8 image where it counts levels."""
    reference = vision.RandAugment(interpolation=vision.InterpolationMode.BILINEAR)
    image = functional.to_uint8(image) if op in ON_LEVELS else image
    out = reference._apply_image_or_video_transform(
        image, their_name(op), value, interpolation=reference.interpolation, fill=reference._fill
    )
    return functional.to_float(out) if op in ON_LEVELS else out


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("bin_", [0, 4, 9])
def test_each_operation_equals_torchvision_at_its_magnitude(images: Tensor, op: str, bin_: int) -> None:
    levels = functional.to_float(functional.to_uint8(images))
    height, width = 36, 44
    space = vision.RandAugment._AUGMENTATION_SPACE | vision.AutoAugment._AUGMENTATION_SPACE
    magnitudes, is_signed = space[their_name(op)]
    table = magnitudes(10, height, width)
    number = np.full(9, OPS.index(op))
    signs = np.array([1.0, -1.0] * 4 + [1.0])
    values = operation_values(number, np.full(9, bin_ / 9), signs, (height, width))
    expected = []
    for row in range(9):
        magnitude = 0.0 if table is None else float(table[bin_]) * (signs[row] if is_signed else 1.0)
        expected.append(theirs(levels[row], op, magnitude))
    ours = apply_ops(levels, torch.from_numpy(number)[:, None], torch.from_numpy(values)[:, None], 0.0)
    assert (ours - torch.stack(expected)).abs().max() <= TOLERANCE


def test_images_go_through_their_own_operations_in_their_order(images: Tensor) -> None:
    geometry_and_colour = RandAugment(num_ops=3)
    params = geometry_and_colour.draw(draws(9), (36, 44))
    ours = geometry_and_colour.apply(images, params)
    for row in range(9):
        image = images[row]
        for op, value in zip(params["ops"][row].tolist(), params["values"][row].tolist(), strict=True):
            image = apply_ops(image[None], torch.tensor([[op]]), torch.tensor([[value]], dtype=torch.float64), 0.0)[0]
        assert torch.equal(ours[row], image)
    assert len(params["ops"].unique(dim=0)) > 5


def test_rand_augment_draws_every_operation_and_sign_alike() -> None:
    params = RandAugment().draw(draws(), (224, 224))
    for stage in range(2):
        counts = params["ops"][:, stage].bincount(minlength=NUM_OPS)
        assert len(counts) == 14
        expected = NUM / 14
        assert ((counts - expected) ** 2 / expected).sum() < 13 + 5 * (2 * 13) ** 0.5  # chi-square
        turns = params["values"][:, stage][params["ops"][:, stage] == OPS.index("rotate")]
        assert set(turns.tolist()) == {-9.0, 9.0}
        assert abs((turns > 0).double().mean() - 0.5) < 5 * 0.5 / len(turns) ** 0.5


def test_rand_augment_varies_its_magnitude_normally_inside_its_range() -> None:
    transform = RandAugment(num_ops=1, magnitude=9.0, magnitude_std=0.5, num_bins=11)
    params = transform.draw(draws(100_000), (224, 224))
    levels = params["values"][params["ops"] == OPS.index("rotate")].abs() / 3.0  # 30 degrees are magnitude 10
    assert levels.max() == 10.0
    assert abs(levels.median() - 9.0) < 5 * 0.5 * 1.26 / len(levels) ** 0.5
    for bound, share in [(8.0, 0.02275), (8.5, 0.15866), (9.5, 0.84134)]:
        assert abs((levels < bound).double().mean() - share) < 5 * (share * (1 - share) / len(levels)) ** 0.5


def test_rand_augment_leaves_operations_out_with_their_probability() -> None:
    share = (RandAugment(p=0.5).draw(draws(), (32, 32))["ops"] == 0).double().mean()
    assert abs(share - (0.5 + 0.5 / 14)) < 5 * 0.5 / (2 * NUM) ** 0.5


@pytest.mark.parametrize("policy", POLICIES)
def test_policies_are_torchvisions(policy: str) -> None:
    table = vision.AutoAugment(policy=vision.AutoAugmentPolicy(policy))._policies
    expected = [[(name, p, bin_ or 0) for name, p, bin_ in pair] for pair in table]
    ours = [[(their_name(OPS[int(op)]), p, bin_) for op, p, bin_ in pair] for pair in policy_table(policy).tolist()]
    assert ours == expected


def test_auto_augment_draws_the_operations_of_its_policy_with_their_probabilities() -> None:
    params = AutoAugment(policy="svhn").draw(draws(), (32, 32))
    pairs = policy_table("svhn")
    for place in range(2):
        expected = np.zeros(len(OPS))
        np.add.at(expected, pairs[:, place, 0].astype(int), pairs[:, place, 1] / len(pairs))
        expected[0] = 1.0 - expected.sum()
        found = params["ops"][:, place].bincount(minlength=len(OPS)).numpy() / NUM
        assert (np.abs(found - expected) < 5 * np.sqrt(expected * (1 - expected) / NUM) + 1e-12).all()


def test_fill_comes_in_from_outside() -> None:
    images = torch.full((2, 3, 20, 20), 0.25)
    ops = torch.tensor([[OPS.index("translate_x")], [OPS.index("rotate")]])
    moved = apply_ops(images, ops, torch.tensor([[5.0], [45.0]]), 0.75)
    assert (moved[0, :, :, :5] - 0.75).abs().max() < 1e-6
    assert (moved[0, :, :, 5:] - 0.25).abs().max() < 1e-6
    assert (moved[1, :, 0, 0] - 0.75).abs().max() < 1e-6


@pytest.mark.parametrize("transform", [RandAugment(num_ops=3), AutoAugment(policy="cifar10", fill=0.5)])
def test_an_image_does_not_depend_on_its_batch(cuts, transform) -> None:
    images = torch.stack(cuts(40, 35, 43)).float() / 255.0
    together = transform.apply(images, transform.draw(draws(40), (35, 43)))
    for row in range(40):
        params = transform.draw(SampleRandom(0, 0, np.array([row]), 0).at(1), (35, 43))
        assert torch.equal(transform.apply(images[row : row + 1], params)[0], together[row])
    assert (together != images).flatten(1).any(1).sum() > 30


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RandAugment(num_ops=0), "num_ops=0"),
        (lambda: RandAugment(magnitude=31), "magnitude=31"),
        (lambda: RandAugment(magnitude_std=-1.0), "magnitude_std=-1.0"),
        (lambda: RandAugment(fill=128), "128 of 255 is 0.5"),
        (lambda: AutoAugment(policy="imagenet1k"), "imagenet, cifar10, svhn"),
        (lambda: AutoAugment(fill=2.0), "fill=2.0"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
