"""Intervals of numbers, and of differences of two networks on the same images."""

import math

import pytest
import torch

from raysl.benchmarks.metric import Metric, bootstrap, interval_of_difference, mean_of, wilson


def pair(both: int, first: int, second: int, neither: int) -> tuple[Metric, Metric]:
    """Two networks by the numbers of images that both, one of them or neither got right."""
    one = [True] * (both + first) + [False] * (second + neither)
    other = [True] * both + [False] * first + [True] * second + [False] * neither
    return mean_of("one", torch.tensor(one)), mean_of("other", torch.tensor(other))


@pytest.mark.parametrize(
    ("num_right", "num", "ends"),
    [(50, 50, (92.865, 100.0)), (0, 50, (0.0, 7.135)), (0, 1, (0.0, 79.345)), (81, 263, (25.530, 36.621))],
)
def test_wilsons_interval_has_its_known_ends(num_right: int, num: int, ends: tuple[float, float]) -> None:
    found = wilson(num_right, num)
    assert [100 * end for end in found] == pytest.approx(ends, abs=0.005)  # 81 of 263: Newcombe 1998, method 3
    assert found[0] <= num_right / num <= found[1]


@pytest.mark.parametrize("share", [0.0, 1.0])
@pytest.mark.parametrize("num", [1, 7, 50, 10_000])
def test_a_share_of_none_or_all_has_a_width_and_holds_the_share(share: float, num: int) -> None:
    metric = mean_of("top1", torch.full((num,), share))
    low, high = metric.interval or (math.nan, math.nan)
    assert high - low > 100 * 1.9 / (num + 4)
    assert low <= metric.value <= high
    assert (low == 0.0) == (share == 0.0)


def test_hits_have_wilsons_interval_and_other_means_that_of_a_bootstrap() -> None:
    hits = torch.tensor([True] * 30 + [False] * 10)
    low, high = wilson(30, 40)
    assert mean_of("top1", hits).interval == (100 * low, 100 * high)
    precisions = torch.linspace(0, 1, 40)
    assert mean_of("map", precisions, seed=3).interval == bootstrap(100 * precisions.double(), seed=3)
    assert mean_of("alignment", torch.zeros(9), unit="").interval is None, "distances are no shares"


def test_values_that_are_all_the_same_have_no_bootstrap() -> None:
    assert bootstrap(torch.full((50,), 3.0)) is None
    assert bootstrap(torch.tensor([3.0] * 49 + [4.0])) is not None


@pytest.mark.parametrize(
    ("counts", "ends"),
    [((14, 5, 0, 22), (1.148, 22.649)), ((36, 12, 2, 0), (5.693, 34.043))],
)
def test_a_paired_difference_has_newcombes_interval(
    counts: tuple[int, int, int, int], ends: tuple[float, float]
) -> None:
    """Altman et al. 2000, Statistics with Confidence, table 6.2: 0.011 to 0.226; Newcombe 1998: 0.0569 to 0.3404."""
    one, other = pair(*counts)
    assert interval_of_difference(one, other) == pytest.approx(ends, abs=0.001)
    back = interval_of_difference(other, one)
    assert back == pytest.approx((-ends[1], -ends[0]), abs=0.001)


def test_four_images_of_fifty_do_not_tell_two_networks_apart_and_five_do() -> None:
    assert (interval_of_difference(*pair(46, 4, 0, 0)) or (1, 1))[0] < 0
    assert (interval_of_difference(*pair(45, 5, 0, 0)) or (-1, -1))[0] > 0


def test_networks_that_get_all_right_differ_by_nothing_beyond_an_interval_of_some_width() -> None:
    low, high = interval_of_difference(*pair(50, 0, 0, 0)) or (0, 0)
    assert -8 < low < -5 < 5 < high < 8


def test_pairs_make_the_interval_narrow_where_networks_err_alike_and_are_not_needed() -> None:
    one, other = pair(60, 10, 5, 25)
    alone = Metric("other", other.value, interval=other.interval)
    paired, unpaired = interval_of_difference(one, other), interval_of_difference(one, alone)
    assert paired is not None
    assert unpaired is not None
    assert unpaired[0] < paired[0] < 5 < paired[1] < unpaired[1]
    lows = (one.value - one.interval[0], other.interval[1] - other.value)  # type: ignore[index]
    assert unpaired[0] == pytest.approx(5 - math.hypot(*lows))


@pytest.mark.thorough
def test_the_interval_holds_the_difference_in_95_of_100_cases() -> None:
    draws = torch.Generator().manual_seed(0)
    shares = torch.tensor([0.6, 0.15, 0.1, 0.15])
    held = 0
    for _ in range(400):
        drawn = torch.multinomial(shares, 200, replacement=True, generator=draws).bincount(minlength=4)
        low, high = interval_of_difference(*pair(*drawn.tolist())) or (0, 0)
        held += low <= 5 <= high
    assert 0.92 <= held / 400 <= 0.98


def test_values_other_than_hits_are_paired_too() -> None:
    draws = torch.Generator().manual_seed(0)
    shared = torch.rand(400, generator=draws)
    one = mean_of("map", (shared * 0.9 + 0.1 * torch.rand(400, generator=draws)))
    other = mean_of("map", (shared * 0.9 + 0.05 * torch.rand(400, generator=draws)))
    assert one.per_image is not None
    assert other.per_image is not None
    reach = 1.96 * (one.per_image - other.per_image).std().item() / 20
    low, high = interval_of_difference(one, other) or (0, 0)
    assert (high - low) / 2 == pytest.approx(reach, rel=0.4)
    assert low > 0


def test_deviations_alone_are_those_of_one_draw_of_each_and_of_neither_nothing_is_known() -> None:
    one, other = Metric("a", 50.4, deviation=4.8), Metric("a", 50.0, deviation=3.6)
    assert interval_of_difference(one, other) == pytest.approx((0.4 - 1.96 * 6, 0.4 + 1.96 * 6), abs=0.001)
    assert interval_of_difference(one, Metric("a", 50.0)) is None
    assert interval_of_difference(Metric("a", math.nan, deviation=1.0), other) is None
