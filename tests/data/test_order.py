"""The order of samples as claims, over drawn (units, batch, lanes, ranks, epoch, step)."""

import pickle
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.data.order import SORTED_ROWS, Order, Part, default_lanes, rank_share
from raysl.hashing import feistel, permutation


@st.composite
def orders(draw: st.DrawFn) -> Order:
    sizes = draw(st.lists(st.integers(0, 30), min_size=1, max_size=20).filter(any))
    drop_last = draw(st.booleans())
    batch = draw(st.integers(1, sum(sizes) if drop_last else sum(sizes) + 5))
    return Order(
        seed=draw(st.integers(0, 2**40)),
        fingerprint=draw(st.sampled_from(["a", "b"])),
        unit_sizes=np.array(sizes),
        batch_size=batch,
        lanes=draw(st.integers(1, batch)),
        window=draw(st.none() | st.integers(1, 40)),
        is_exact=draw(st.booleans()),
        drop_last=drop_last,
    )


@st.composite
def mixes(draw: st.DrawFn) -> Order:
    """Orders of two or three sources, none of them empty, with any number of rows an epoch."""
    sizes = draw(st.lists(st.lists(st.integers(1, 30), min_size=1, max_size=8), min_size=2, max_size=3))
    whole = sum(map(sum, sizes))
    ends = sorted(draw(st.sets(st.integers(1, whole - 1), min_size=len(sizes) - 1, max_size=len(sizes) - 1)))
    rows = np.diff([0, *ends, whole]).tolist()
    mix = tuple(Part("part", len(part), num) for part, num in zip(sizes, rows, strict=True))
    order = draw(orders())
    batch = draw(st.integers(1, whole))
    unit_sizes, lanes = np.concatenate(sizes), draw(st.integers(1, batch))
    return replace(order, unit_sizes=unit_sizes, batch_size=batch, lanes=lanes, mix=mix)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(mixes(), st.integers(1, 5))
def test_a_mix_takes_each_source_by_its_rows_and_its_images_equally_often(order: Order, num_epochs: int) -> None:
    order = replace(order, drop_last=False)
    ends = np.cumsum([part.units for part in order.mix])
    source_of = np.repeat(np.searchsorted(ends, np.arange(len(order.unit_sizes)), side="right"), order.unit_sizes)
    counts = np.zeros(order.num_samples, int)
    for epoch in range(num_epochs):
        keys = np.concatenate([order.batch(epoch * order.epoch_len + step) for step in range(order.epoch_len)])
        assert len(np.unique(keys)) == len(keys) == order.num_samples
        samples = order.samples_of(keys)
        assert np.bincount(source_of[samples]).tolist() == [part.rows for part in order.mix]
        counts += np.bincount(samples, minlength=order.num_samples)
    for number in range(len(order.mix)):
        assert np.ptp(counts[source_of == number]) <= 1


def test_a_mix_shuffles_the_sources_together_and_goes_on_where_an_epoch_ended() -> None:
    units, mix = np.full(40, 25), (Part("small", 8, 700), Part("large", 32, 300))  # 200 and 800 images
    for is_exact in (True, False):
        order = Order(0, "mix", units, 100, lanes=4, window=None, is_exact=is_exact, mix=mix)
        batches = [order.samples_of(order.batch(step)) for step in range(30)]
        small = np.array([(batch < 200).sum() for batch in batches])
        assert abs(small.mean() - 70) < 1e-9
        assert small.min() > 20, "no part of an epoch is of one source alone"
        assert small.max() < 100
        large = np.concatenate(batches)
        large = large[large >= 200]
        assert len(np.unique(large)) == 800, "900 draws of three epochs go through all 800 images once"


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(orders(), st.integers(0, 3))
def test_an_epoch_holds_no_sample_twice_and_leaves_out_less_than_a_batch_or_none(order: Order, epoch: int) -> None:
    steps = range(epoch * order.epoch_len, (epoch + 1) * order.epoch_len)
    batches = [order.batch(step) for step in steps]
    assert [len(batch) for batch in batches] == [order.batch_rows(step) for step in steps]
    assert all(len(batch) == order.batch_size for batch in batches[:-1])
    seen = np.concatenate(batches)
    assert len(seen) == len(set(seen.tolist()))
    assert seen.min() >= 0
    assert seen.max() < order.num_samples
    assert order.num_samples - len(seen) < (order.batch_size if order.drop_last else 1)


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(orders() | mixes(), st.integers(1, 9), st.integers(0, 100))
def test_ranks_laid_side_by_side_give_the_same_batch_at_any_world_size(order: Order, world: int, step: int) -> None:
    parts = [order.batch(step, rank, world) for rank in range(world)]
    np.testing.assert_array_equal(np.concatenate(parts), order.batch(step))
    if order.batch_rows(step) == order.batch_size:
        assert [len(part) for part in parts] == [order.num_rows(rank, world) for rank in range(world)]


@pytest.mark.thorough
@settings(max_examples=100, deadline=None)
@given(
    orders() | mixes(),
    st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=6),
    st.integers(0, 50),
)
def test_any_chain_of_restarts_with_other_ranks_consumes_what_an_undisturbed_run_does(
    order: Order, stints: list[tuple[int, int]], start: int
) -> None:
    """Each stint is (steps until it is stopped, ranks); each starts in a new process, which knows the step alone."""
    step, seen = start, []
    for num_steps, world in stints:
        process = pickle.loads(pickle.dumps(order))
        for _ in range(num_steps):
            seen += [process.batch(step, rank, world) for rank in range(world)]
            step += 1
    np.testing.assert_array_equal(np.concatenate(seen), np.concatenate([order.batch(at) for at in range(start, step)]))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given((orders() | mixes()).filter(lambda order: not order.is_exact), st.integers(0, 2), st.integers(0, 100))
def test_a_queue_for_each_lane_that_is_fed_with_windows_gives_the_batches(order: Order, epoch: int, start: int) -> None:
    """A resume begins with the window that the lane is in, and drops the rows before its step."""
    start %= order.epoch_len
    for lane in range(order.lanes):
        queue = _queue(order, epoch, lane, start)
        for step in range(start, order.epoch_len):
            batch = order.batch(epoch * order.epoch_len + step)
            rows = batch[order.lanes_of(step) == lane]
            assert step == order.epoch_len - 1 or len(rows) == order.lane_rows(lane)
            assert [next(queue) for _ in rows] == rows.tolist()
        assert not list(queue)


def _queue(order: Order, epoch: int, lane: int, start: int) -> Iterator[int]:
    """The samples of a lane from a step of an epoch on."""
    cuts = order.windows(epoch, lane)
    drop = start * order.lane_rows(lane)
    for number, (first, stop) in enumerate(pairwise(cuts.tolist())):
        if stop > drop:
            samples = order.window_samples(epoch, lane, number)
            assert len(samples) == stop - first > 0
            yield from samples[max(0, drop - first) :].tolist()


@pytest.mark.thorough
@settings(max_examples=150, deadline=None)
@given(orders().filter(lambda order: not order.is_exact), st.integers(0, 2))
def test_a_window_has_all_rows_of_its_units_but_those_beyond_a_cut_of_lanes(order: Order, epoch: int) -> None:
    unit_of = np.repeat(np.arange(len(order.unit_sizes)), order.unit_sizes)
    windows = [
        np.unique(unit_of[order.window_samples(epoch, lane, number)])
        for lane in range(order.lanes)
        for number in range(len(order.windows(epoch, lane)) - 1)
    ]
    used = np.unique(np.concatenate(windows))
    # each read of a unit beyond its first is due to a cut of lanes
    assert sum(map(len, windows)) - len(used) <= order.lanes - 1
    # a unit between the cuts has all its rows in one window, and no window has more units than a complete one
    assert max(map(len, windows)) <= order.window_units


@pytest.mark.parametrize(
    ("batch", "lanes", "window", "window_units"),
    [(4096, 64, None, 8), (4096, 512, None, 1), (4096, 64, 2048, 32), (4096, 64, 10, 1), (4096, 1, None, 487)],
)
def test_a_window_has_rows_enough_for_a_good_shuffle_or_as_many_as_are_asked_for(
    batch: int, lanes: int, window: int | None, window_units: int
) -> None:
    order = _order(unit_sizes=np.full(20000, 64), batch_size=batch, lanes=lanes, window=window)
    assert order.window_units == window_units
    if window is None:
        assert order.window_units * 64 >= 0.95 * batch / lanes * 8


def test_lanes_need_new_windows_at_different_steps() -> None:
    order = _order(unit_sizes=np.full(20000, 64), batch_size=4096, lanes=64, window=None)
    assert order._lane_start(1) % 512 == 0, "windows counted from the first unit of the epoch would end together"
    first_rows = [int(order.windows(0, lane)[1]) for lane in range(64)]
    assert set(first_rows) == {64 * units for units in range(1, 9)}
    for rank in range(8):
        assert len(set(first_rows[8 * rank : 8 * rank + 8])) >= 5


STORED = {
    (7, False, False): 3914309705,
    (7, False, True): 4120124043,
    (64, False, False): 584062970,
    (64, False, True): 3960988046,
    (None, False, False): 1273580190,
    (None, False, True): 1126887065,
    (None, True, False): 2968378295,
    (None, True, True): 2307457302,
}
"""Checksums by (window, is_exact, drop_last) of the rows that runs were trained on."""


@pytest.mark.parametrize("case", STORED)
def test_the_order_never_changes(case: tuple[int | None, bool, bool]) -> None:
    window, is_exact, drop_last = case
    sizes = np.random.default_rng(0).integers(1, 90, 50)
    order = Order(5, "stored", sizes, 100, 7, window, is_exact, drop_last)
    steps, ranks = range(2 * order.epoch_len + 1), range(3)
    rows = np.concatenate([order.batch(step, rank, 3) for step, rank in product(steps, ranks)])
    assert crc32(rows.astype("<i8").tobytes()) == STORED[case]


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(orders(), st.integers(0, 60))
def test_a_step_needs_no_step_before_it(order: Order, step: int) -> None:
    walked = pickle.loads(pickle.dumps(order))
    for earlier in range(step):
        walked.batch(earlier)
    np.testing.assert_array_equal(walked.batch(step), order.batch(step))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**63), st.integers(0, 300))
def test_permutation_holds_each_place_once(key: int, n: int) -> None:
    assert sorted(permutation(n, key).tolist()) == list(range(n))


@pytest.mark.thorough
@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**63), st.integers(1, 3000))
def test_a_feistel_network_is_a_permutation_at_any_size(key: int, n: int) -> None:
    assert sorted(feistel(n, key, np.arange(n)).tolist()) == list(range(n))


@pytest.mark.thorough
@pytest.mark.parametrize("n", [SORTED_ROWS, SORTED_ROWS + 1, 1_000_003])
def test_a_feistel_network_is_a_permutation_of_many_rows(n: int) -> None:
    assert np.array_equal(np.sort(feistel(n, 3, np.arange(n))), np.arange(n))


def _chi_square(counts: np.ndarray) -> float:
    """Chi-square of counts that should be equal, in standard deviations from its mean."""
    num = counts.size - 1
    return float(((counts - counts.mean()) ** 2).sum() / counts.mean() - num) / (2 * num) ** 0.5


@pytest.mark.parametrize("n", [SORTED_ROWS + 1, 1_281_167, 10**9, 10**12 + 39])
def test_rows_of_a_feistel_network_look_uniform_and_independent(n: int) -> None:
    num = min(50_000, n // 20)  # most of the rows would be more even than chance
    rows = feistel(n, 11, np.arange(num))
    parts = rows * 100 // n
    assert abs(_chi_square(np.bincount(parts, minlength=100))) < 4
    pairs = np.bincount(parts[:-1] * 100 + parts[1:], minlength=10_000)
    assert abs(_chi_square(pairs)) < 4
    last_digits = np.bincount(rows % 256, minlength=256)
    assert abs(_chi_square(last_digits)) < 4
    another_epoch = feistel(n, 12, np.arange(num)) * 100 // n
    assert abs(_chi_square(np.bincount(parts * 100 + another_epoch, minlength=10_000))) < 4


@pytest.mark.thorough
def test_one_position_of_a_feistel_network_is_uniform_over_keys() -> None:
    n = SORTED_ROWS + 1
    rows = np.array([feistel(n, key, np.array([0, 1, n - 1])) for key in range(4000)])
    for column in rows.T:
        assert abs(_chi_square(np.bincount(column * 20 // n, minlength=20))) < 4


def test_an_exact_order_of_any_size_computes_only_the_rows_of_a_batch() -> None:
    order = _order(is_exact=True, unit_sizes=np.full(1000, 10**9), batch_size=4096, lanes=64)
    batches = [order.batch(step) for step in (0, 1, 5 * order.epoch_len // 2)]
    assert len(np.unique(np.concatenate(batches))) == 3 * 4096
    np.testing.assert_array_equal(np.concatenate([order.batch(1, rank, 3) for rank in range(3)]), batches[1])


@pytest.mark.thorough
@given(st.integers(1, 200), st.integers(1, 20))
def test_lanes_are_shared_out_whole_and_as_evenly_as_can_be(lanes: int, world: int) -> None:
    parts = [rank_share(lanes, rank, world) for rank in range(world)]
    assert [lane for part in parts for lane in part] == list(range(lanes))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


def _order(**changes: object) -> Order:
    settings = {
        "seed": 0,
        "fingerprint": "x",
        "unit_sizes": np.full(50, 40),
        "batch_size": 20,
        "lanes": 4,
        "window": 100,
        "is_exact": False,
    }
    return Order(**(settings | changes))


def test_seed_epoch_and_dataset_each_give_another_order() -> None:
    base = _order()
    first = base.batch(0)
    for other in (_order(seed=1).batch(0), _order(fingerprint="y").batch(0), base.batch(base.epoch_len)):
        assert len(np.intersect1d(first, other)) < 10


@pytest.mark.thorough
def test_exact_permutations_mix_evenly() -> None:
    order = _order(is_exact=True, unit_sizes=np.array([1000]), batch_size=10)
    firsts = np.array([order.batch(epoch * order.epoch_len)[0] for epoch in range(2000)])
    assert abs(firsts.mean() - 499.5) < 20
    assert np.bincount(firsts // 100, minlength=10).min() > 150


def test_bad_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="fewer than a batch"):
        _order(batch_size=3000)
    with pytest.raises(ValueError, match=r"lanes must be in \[1, batch size 20\], not 21"):
        _order(lanes=21)


@pytest.mark.parametrize(
    ("batch", "units", "shares", "lanes"),
    [
        (10, None, 1, 10),
        (4096, None, 1, 64),
        (4096, 256, 1, 64),
        (4096, 255, 1, 32),
        (4096, 10, 1, 16),
        (4096, 10, 32, 32),
        (4096, 10, 64, 64),
        (96, 200, 3, 32),  # three workers share neither 32 nor 64 lanes evenly
        (48, 10, 3, 12),
        (48, 10, 1, 16),
        (10, 1, 1, 10),
        (60, 1, 20, 20),
        (64, 1, 100, 64),  # too few for the workers, which the plan refuses
    ],
)
def test_few_units_have_few_lanes_but_enough_for_the_workers(
    batch: int, units: int | None, shares: int, lanes: int
) -> None:
    assert default_lanes(batch, units, shares) == lanes
