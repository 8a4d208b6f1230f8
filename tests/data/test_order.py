"""The order of samples as claims, over drawn (units, batch, lanes, ranks, epoch, step)."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raysl.data.order import Order, default_lanes, rank_share
from raysl.hashing import permutation


@st.composite
def orders(draw: st.DrawFn) -> Order:
    sizes = draw(st.lists(st.integers(1, 30), min_size=1, max_size=20))
    drop_last = draw(st.booleans())
    batch = draw(st.integers(1, sum(sizes) if drop_last else sum(sizes) + 5))
    return Order(
        seed=draw(st.integers(0, 2**40)),
        fingerprint=draw(st.sampled_from(["a", "b"])),
        unit_sizes=np.array(sizes),
        batch_size=batch,
        lanes=draw(st.integers(1, batch)),
        window=draw(st.integers(1, 40)),
        is_exact=draw(st.booleans()),
        drop_last=drop_last,
    )


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


@settings(max_examples=150, deadline=None)
@given(orders(), st.integers(1, 9), st.integers(0, 100))
def test_ranks_laid_side_by_side_give_the_same_batch_at_any_world_size(order: Order, world: int, step: int) -> None:
    parts = [order.batch(step, rank, world) for rank in range(world)]
    np.testing.assert_array_equal(np.concatenate(parts), order.batch(step))
    if order.batch_rows(step) == order.batch_size:
        assert [len(part) for part in parts] == [order.num_rows(rank, world) for rank in range(world)]


@settings(max_examples=100, deadline=None)
@given(orders(), st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9)), min_size=1, max_size=6), st.integers(0, 50))
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


@settings(max_examples=100, deadline=None)
@given(orders(), st.integers(0, 100))
def test_a_resume_reads_at_most_a_window_again_and_the_units_at_its_edges(order: Order, step: int) -> None:
    """Units are read whole; a lane that is gone on with needs those of its open window, of which some rows are used."""
    if order.is_exact:
        return  # rows are read one by one
    in_epoch = step % order.epoch_len
    unit_of = np.repeat(np.arange(len(order.unit_sizes)), order.unit_sizes)
    for lane in range(min(3, order.lanes)):
        rows = [order._lane_rows(0, at, lane) for at in range(order.epoch_len)]
        before, after = np.concatenate([rows[0][:0], *rows[:in_epoch]]), np.concatenate(rows[in_epoch:])
        read_again = np.isin(unit_of[before], unit_of[after])
        assert read_again.sum() <= order.window + 2 * order.unit_sizes.max()


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


def test_a_lane_opens_few_units_at_a_time() -> None:
    order = _order(window=80)
    for step in range(order.epoch_len):
        for lane in range(4):
            rows = order._lane_rows(0, step, lane)
            assert len(np.unique(rows // 40)) <= 5  # two windows of 80 rows touch at most 5 units of 40


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
    assert default_lanes(10) == 10
    assert default_lanes(4096) == 64
