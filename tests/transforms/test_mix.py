"""Mixup and CutMix."""

import numpy as np
import pytest
import torch
from scipy.stats import beta as beta_distribution
from scipy.stats import kstest
from torch import Tensor

from raysl.data.batch import Batch
from raysl.transforms.mix import CutMix, Mixup, MixupOrCutMix, lane_partners
from raysl.transforms.random import SampleRandom

NUM = 20_000
LANES = torch.tensor([0, 0, 1, 0, 1, 2, 3, 3, 0])


def draws(num: int = NUM) -> SampleRandom:
    return SampleRandom(0, 0, np.arange(num), 0).at(1)


def test_partners_are_the_next_row_of_the_lane_and_after_the_last_the_first() -> None:
    assert lane_partners(LANES).tolist() == [1, 3, 4, 8, 2, 5, 7, 6, 0]
    assert lane_partners(torch.tensor([5])).tolist() == [0]
    assert len(lane_partners(torch.empty(0, dtype=torch.int64))) == 0


def test_two_processes_make_the_pairs_of_one() -> None:
    lanes = torch.arange(6).repeat_interleave(4)
    whole = lane_partners(lanes)
    assert torch.cat([lane_partners(lanes[:8]), lane_partners(lanes[8:]) + 8]).tolist() == whole.tolist()


def mixed_by_hand(images: Tensor, params: dict[str, Tensor]) -> Tensor:
    out = []
    for row, image in enumerate(images):
        other, lam = images[params["partner"][row]], params["lam"][row].item()
        top, left, height, width = params["box"][row].tolist()
        if height * width > 0:
            mixed = image.clone()
            mixed[:, top : top + height, left : left + width] = other[:, top : top + height, left : left + width]
        else:
            mixed = lam * image + (1.0 - lam) * other
        out.append(mixed)
    return torch.stack(out)


@pytest.mark.parametrize("mix", [Mixup(alpha=0.8), CutMix(), MixupOrCutMix(p=0.8)])
def test_images_are_mixed_as_by_hand(images: Tensor, mix) -> None:
    params = mix.draw(draws(9), LANES, (36, 44))
    mixed = mix.apply(images, params)
    assert (mixed - mixed_by_hand(images, params)).abs().max() < 1e-6
    assert torch.equal(mixed[5], images[5])  # alone in its lane
    assert not torch.equal(mixed[0], images[0])


def test_labels_have_the_share_of_the_pixels() -> None:
    mix = MixupOrCutMix()
    params = mix.draw(draws(9), LANES, (36, 44))
    own = torch.eye(9, dtype=torch.float64)
    pixels = own[:, :, None, None].expand(-1, -1, 36, 44).contiguous()  # row i is 1 in its channel i
    shares = mix.apply(pixels, params).mean(dim=(2, 3))
    labels = mix.mix_labels(own, params)
    assert (labels - shares).abs().max() < 1e-12
    assert torch.allclose(labels.sum(dim=1), torch.ones(9, dtype=torch.float64))


@pytest.mark.parametrize("alpha", [0.2, 0.8, 1.0, 3.0])
def test_mixup_shares_have_the_beta_distribution(alpha: float) -> None:
    lam = Mixup(alpha=alpha).draw(draws(), torch.zeros(NUM, dtype=torch.int64), (32, 32))["lam"].numpy()
    assert kstest(lam, beta_distribution(alpha, alpha).cdf).pvalue > 1e-4


@pytest.mark.thorough
def test_cutmix_boxes_follow_the_rule_of_the_paper() -> None:
    height, width = 32, 48
    params = CutMix(alpha=1.0).draw(draws(), torch.zeros(NUM, dtype=torch.int64), (height, width))
    box = params["box"].numpy()
    assert (box >= 0).all()
    assert (box[:, :2] + box[:, 2:] <= [height, width]).all()
    assert np.allclose(params["lam"].numpy(), 1.0 - box[:, 2] * box[:, 3] / (height * width))

    random = np.random.default_rng(0)
    expected = []
    for _ in range(NUM):
        share = np.sqrt(1.0 - random.beta(1.0, 1.0))
        cut_height, cut_width = int(height * share), int(width * share)
        y, x = random.integers(height), random.integers(width)
        top, bottom = np.clip([y - cut_height // 2, y + cut_height // 2], 0, height)
        left, right = np.clip([x - cut_width // 2, x + cut_width // 2], 0, width)
        expected.append([top, left, bottom - top, right - left])
    theirs = np.array(expected)
    error = np.sqrt(2 / NUM) * theirs.std(axis=0)
    assert (np.abs(box.mean(axis=0) - theirs.mean(axis=0)) < 5 * error).all()
    assert (np.abs(box.std(axis=0) - theirs.std(axis=0)) < 5 * error).all()


def test_each_kind_of_mix_has_its_probability() -> None:
    mix = MixupOrCutMix(p=0.6, switch_p=0.3, mixup=Mixup(alpha=1.0))
    params = mix.draw(draws(), torch.arange(NUM) // 4, (224, 224))
    is_cut = params["box"][:, 2:].amin(dim=1) > 0
    is_blended = ~is_cut & (params["lam"] < 1.0)
    assert abs(is_cut.double().mean() - 0.18) < 5 * (0.18 * 0.82 / NUM) ** 0.5 + 0.01  # some boxes are empty
    assert abs(is_blended.double().mean() - 0.42) < 5 * (0.42 * 0.58 / NUM) ** 0.5


def test_what_is_drawn_belongs_to_the_sample_wherever_it_is() -> None:
    mix = MixupOrCutMix()
    whole = mix.draw(draws(40), torch.zeros(40, dtype=torch.int64), (32, 32))
    part = mix.draw(SampleRandom(0, 0, np.arange(30, 40), 0).at(1), torch.zeros(10, dtype=torch.int64), (32, 32))
    for name in ("lam", "box"):
        assert torch.equal(part[name], whole[name][30:])


def shared(step: int, num_rows: int) -> SampleRandom:
    none = torch.empty(0, dtype=torch.int64)
    return Batch({}, none, none, step=step).shared("mix", num_rows)


def test_one_draw_for_all_is_that_of_the_step() -> None:
    mix = MixupOrCutMix()
    params = [mix.draw(shared(step, num), torch.zeros(num, dtype=torch.int64), (32, 32)) for step, num in TWO_RANKS]
    assert len(params[0]["lam"].unique()) == 1
    assert params[0]["lam"][0] == params[1]["lam"][0]
    assert torch.equal(params[0]["box"][0], params[1]["box"][0])
    steps = [mix.draw(shared(step, 2), LANES[:2], (32, 32))["lam"][0].item() for step in range(20)]
    assert len(set(steps)) > 15


TWO_RANKS = [(7, 8), (7, 5)]  # step, rows


def test_images_in_uneven_sizes_do_not_depend_on_their_batch(images: Tensor) -> None:
    odd = images[:, :, :35, :43].contiguous()
    mix, lanes = MixupOrCutMix(), torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    together = mix.apply(odd, mix.draw(draws(9), lanes, (35, 43)))
    for lane in range(3):
        rows = torch.nonzero(lanes == lane)[:, 0]
        random = SampleRandom(0, 0, rows.numpy(), 0).at(1)
        alone = mix.apply(odd[rows], mix.draw(random, lanes[rows], (35, 43)))
        assert torch.equal(alone, together[rows])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Mixup(alpha=0.0), "alpha=0.0"),
        (lambda: CutMix(alpha=-1.0), "alpha=-1.0"),
        (lambda: MixupOrCutMix(p=1.1), "p=1.1"),
        (lambda: MixupOrCutMix(switch_p=1.1), "switch_p=1.1"),
        (lambda: Mixup().draw(draws(3), LANES, (8, 8)), "9 lanes were given for 3 images"),
    ],
)
def test_settings_out_of_range_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
